//! Stand-ins for NVIDIA's libraries, with which an unmodified PyTorch or TensorFlow works on the
//! simulated GPU.
//!
//! The runtime (`tests/simgpu/runtime`) and the functions of the compute libraries that a training
//! needs (`tests/simgpu/libs`) are ours. For each compute library that a framework uses, this
//! module makes a facade: a library of NVIDIA's name with NVIDIA's symbol versions. A facade needs
//! `libsimgpu_libs.so`, and answers all other functions that the framework uses with an error of
//! NVIDIA's library.
//!
//! PyTorch's libraries import the functions. TensorFlow opens NVIDIA's libraries by name and looks
//! the functions up, without versions. TensorFlow is built for CUDA 12, so it opens
//! `libcudart.so.12`. This library too is a facade, of the stand-in for CUDA 13. The facade refuses
//! the functions whose arguments CUDA 13 changed.
//!
//! The folder of the stand-ins belongs into LD_LIBRARY_PATH. PyTorch's libraries look in the
//! folders of NVIDIA's packages first, so NVIDIA's packages must be absent. TensorFlow looks in
//! LD_LIBRARY_PATH first.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fmt::Write as _,
    fs::{self, File},
    path::Path,
    process::Command,
};

use anyhow::{Context as _, Result};
use object::{
    Endianness,
    elf::{FileHeader64, SHT_DYNSYM},
    read::{
        ReadCache,
        elf::{FileHeader as _, Sym as _},
    },
};

use crate::{artefacts::run, venv::Venv};

/// Packages from which cargo builds the stand-ins.
pub const PACKAGES: [&str; 2] = ["simgpu-runtime", "simgpu-libs"];
/// Our library with functions of NVIDIA's compute libraries.
const LIBS: &str = "libsimgpu_libs.so";
/// The runtime, which is a library of its own.
pub const RUNTIME: &str = "libcudart.so.13";
/// The facade of the runtime for programs of CUDA 12.
const RUNTIME_12: &str = "libcudart.so.12";
/// The answer of `cudaRuntimeGetVersion` in [`RUNTIME_12`]: the version of the library in
/// TensorFlow's packages, 1000 × major + 10 × minor.
const VERSION_12: u32 = 12_090;
/// Functions of CUDA 12's runtime that have other arguments in CUDA 13, by NVIDIA's headers of both
/// versions.
const CHANGED_SINCE_12: [&str; 14] = [
    "cudaGetDeviceProperties",
    "cudaGraphAddDependencies",
    "cudaGraphAddNode",
    "cudaGraphGetEdges",
    "cudaGraphNodeGetDependencies",
    "cudaGraphNodeGetDependentNodes",
    "cudaGraphRemoveDependencies",
    "cudaMemAdvise",
    "cudaMemPrefetchAsync",
    "cudaMemcpy3DBatchAsync",
    "cudaMemcpyBatchAsync",
    "cudaPointerGetAttributes",
    "cudaStreamGetCaptureInfo",
    "cudaStreamUpdateCaptureDependencies",
];
/// The file of an environment that lists what PyTorch uses: a library, a version or `-`, and a
/// function on each line. A list can have a library without a function.
const IMPORTS: &str = "nvidia-imports.txt";
/// The file beside the facades that says of what they were made.
const MADE_OF: &str = "made-of.txt";

/// Libraries whose symbols have no versions, and the beginning of their functions' names.
const UNVERSIONED: [(&str, &str); 4] = [
    ("cuFile", "libcufile.so.0"),
    ("cusparseLt", "libcusparseLt.so.0"),
    ("nccl", "libnccl.so.2"),
    ("nvshmem", "libnvshmem_host.so.3"),
];

/// Libraries that TensorFlow opens, and the beginnings of the names under which it looks functions
/// up. TensorFlow only opens the library without a beginning.
const OPENED: [(&str, &[&str]); 9] = [
    (RUNTIME_12, &["cuda", "__cuda"]),
    ("libcublas.so.12", &["cublas"]),
    ("libcublasLt.so.12", &["cublasLt"]),
    ("libcudnn.so.9", &["cudnn"]),
    ("libcufft.so.11", &["cufft"]),
    ("libcupti.so.12", &["cupti"]),
    ("libcusolver.so.11", &[]),
    ("libcusparse.so.12", &["cusparse"]),
    ("libnccl.so.2", &["nccl"]),
];

/// The answer of a function that is not supported, by the beginning of the library's name.
const ANSWERS: [(&str, u32); 9] = [
    ("libcublas", 15),   // CUBLAS_STATUS_NOT_SUPPORTED
    ("libcudart", 801),  // cudaErrorNotSupported
    ("libcudnn", 3000),  // CUDNN_STATUS_NOT_SUPPORTED
    ("libcufft", 16),    // CUFFT_NOT_SUPPORTED
    ("libcupti", 27),    // CUPTI_ERROR_NOT_SUPPORTED
    ("libcusolver", 9),  // CUSOLVER_STATUS_NOT_SUPPORTED
    ("libcusparse", 10), // CUSPARSE_STATUS_NOT_SUPPORTED
    ("libnccl", 3),      // ncclInternalError
    ("libnvrtc", 11),    // NVRTC_ERROR_INTERNAL_ERROR
];
/// The answer of all other libraries, of which each takes a number but 0 for an error.
const ANSWER: u32 = 1;

/// A function of one of NVIDIA's libraries that a framework uses.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Import {
    /// The file that has the function.
    library: String,
    version: Option<String>,
    function: String,
}

/// Returns the functions of NVIDIA's libraries that a library imports.
fn imports_of(library: &Path) -> Result<Vec<Import>> {
    let file = File::open(library).with_context(|| format!("cannot open {}", library.display()))?;
    // PyTorch's largest library has half a gigabyte, of which this function reads the symbols
    // alone.
    let data = &ReadCache::new(file);
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let symbols = sections.symbols(endian, data, SHT_DYNSYM)?;
    let Some(versions) = sections.versions(endian, data)? else { return Ok(Vec::new()) };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut imports = Vec::new();
    for (index, symbol) in symbols.enumerate().filter(|(_, symbol)| symbol.is_undefined(endian)) {
        let function = text(symbol.name(endian, symbols.strings())?);
        let version = versions.version(versions.version_index(endian, index))?;
        let found = match version.and_then(|version| Some((version.file()?, version.name()))) {
            Some((library, version)) => Some((text(library), Some(text(version)))),
            None => UNVERSIONED
                .iter()
                .find(|(prefix, _)| function.starts_with(prefix))
                .map(|(_, library)| ((*library).to_owned(), None)),
        };
        if let Some((library, version)) = found
            && is_nvidias(&library)
        {
            imports.push(Import { library, version, function });
        }
    }
    Ok(imports)
}

/// Whether a library is one of NVIDIA's packages. The driver is none.
fn is_nvidias(library: &str) -> bool {
    ["libcu", "libnccl", "libnv"].iter().any(|prefix| library.starts_with(prefix))
        && !library.starts_with("libcuda.")
}

/// Writes the list of the imports of PyTorch's libraries to [`IMPORTS`] in the environment's
/// folder.
pub(crate) fn note_imports(environment: &Venv) -> Result<()> {
    let mut imports = BTreeSet::new();
    let libraries = environment.packages()?.join("torch/lib");
    for entry in fs::read_dir(&libraries).with_context(|| format!("cannot list {}", libraries.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "so") {
            imports.extend(imports_of(&path)?);
        }
    }
    let list = environment.folder().join(IMPORTS);
    fs::write(&list, listed(&imports)).with_context(|| format!("cannot write {}", list.display()))
}

fn listed(imports: &BTreeSet<Import>) -> String {
    let line = |Import { library, version, function }: &Import| {
        format!("{library} {} {function}\n", version.as_deref().unwrap_or("-"))
    };
    imports.iter().map(line).collect()
}

/// Returns what PyTorch in an environment uses of NVIDIA's libraries, for [`lay_out`].
pub fn used_by_torch(environment: &Venv) -> Result<String> {
    let list = environment.folder().join(IMPORTS);
    fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))
}

/// Returns what TensorFlow in an environment uses of NVIDIA's libraries, for [`lay_out`]. For each
/// function that TensorFlow looks up, a library of TensorFlow's has a function of the same name.
pub fn used_by_tensorflow(environment: &Venv) -> Result<String> {
    let library = environment.packages()?.join("tensorflow/libtensorflow_framework.so.2");
    let mut imports: BTreeSet<Import> = exports_of(&library)?.into_iter().filter_map(looked_up).collect();
    let only_opened = OPENED.iter().filter(|(_, beginnings)| beginnings.is_empty());
    imports.extend(only_opened.map(|(library, _)| Import {
        library: (*library).to_owned(),
        version: None,
        function: String::new(),
    }));
    Ok(listed(&imports))
}

/// Returns a function of NVIDIA's that TensorFlow looks up; `None` for a function of its own.
fn looked_up(function: String) -> Option<Import> {
    let follows = |beginning: &&str| {
        function
            .strip_prefix(*beginning)
            .is_some_and(|rest| rest.starts_with(|next: char| next.is_ascii_uppercase()))
    };
    // The longest beginning decides: `cublasLt` before `cublas`.
    let beginnings = OPENED.iter().flat_map(|(library, all)| all.iter().map(move |one| (*library, *one)));
    let (library, _) = beginnings.filter(|(_, one)| follows(one)).max_by_key(|(_, one)| one.len())?;
    Some(Import { library: library.to_owned(), version: None, function })
}

/// Puts the stand-ins for a framework into `folder`. `list` is what the framework uses. `built` is
/// cargo's folder with the stand-ins' own libraries. Does nothing if the folder has them already.
pub fn lay_out(list: &str, built: &Path, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let libs = built.join(LIBS);
    for (from, to) in [(built.join("libcudart.so"), RUNTIME), (libs.clone(), LIBS)] {
        // A process that maps the old file keeps it.
        let new = folder.join(format!("{to}.new"));
        fs::copy(&from, &new).with_context(|| format!("cannot copy {}", from.display()))?;
        fs::rename(&new, folder.join(to)).with_context(|| format!("cannot replace {to}"))?;
    }
    let exported = exports_of(&libs)?;
    let mut runtime = exports_of(&built.join("libcudart.so"))?;
    runtime.retain(|function| !CHANGED_SINCE_12.contains(&function.as_str()));
    let all = exported.iter().chain(&runtime);
    let made_of = format!("{list}\n{}", all.fold(String::new(), |all, one| all + one + "\n"));
    if fs::read_to_string(folder.join(MADE_OF)).is_ok_and(|known| known == made_of) {
        return Ok(());
    }
    let mut facades = BTreeMap::<&str, (BTreeSet<&str>, Vec<&str>)>::new();
    for line in list.lines() {
        let mut words = line.split(' ');
        let (Some(library), Some(version), Some(function)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let (versions, lacking) = facades.entry(library).or_default();
        versions.extend(Some(version).filter(|version| *version != "-"));
        let present = if library == RUNTIME_12 { &runtime } else { &exported };
        if !function.is_empty() && !present.contains(function) {
            lacking.push(function);
        }
    }
    for (library, (versions, lacking)) in facades.iter().filter(|(library, _)| **library != RUNTIME) {
        facade(folder, library, versions, lacking)?;
    }
    fs::write(folder.join(MADE_OF), made_of).context("cannot write what the facades were made of")
}

/// Returns the functions that a library exports.
fn exports_of(library: &Path) -> Result<BTreeSet<String>> {
    let data = &*fs::read(library).with_context(|| format!("cannot read {}", library.display()))?;
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let symbols = header.sections(endian, data)?.symbols(endian, data, SHT_DYNSYM)?;
    let own = symbols.iter().filter(|symbol| !symbol.is_undefined(endian));
    own.map(|symbol| Ok(String::from_utf8_lossy(symbol.name(endian, symbols.strings())?).into_owned()))
        .collect()
}

/// Compiles the facade of a library.
fn facade(folder: &Path, library: &str, versions: &BTreeSet<&str>, lacking: &[&str]) -> Result<()> {
    let answer =
        ANSWERS.iter().find(|(prefix, _)| library.starts_with(prefix)).map_or(ANSWER, |(_, code)| *code);
    let mut source = String::from(
        "void simgpu_unsupported(const char *name);\n\
         #define CODE(name, code) long name(void) { simgpu_unsupported(#name); return code; }\n\
         #define TEXT(name) const char *name(void) { return \"not supported by the stand-in\"; }\n",
    );
    if library == RUNTIME_12 {
        let _ = writeln!(source, "int cudaRuntimeGetVersion(int *to) {{ *to = {VERSION_12}; return 0; }}");
    }
    for function in lacking {
        let _ = match function.ends_with("ErrorString") || function.ends_with("LastError") {
            true => writeln!(source, "TEXT({function})"),
            false => writeln!(source, "CODE({function}, {answer})"),
        };
    }
    let file = folder.join(format!("{library}.c"));
    fs::write(&file, source).with_context(|| format!("cannot write {}", file.display()))?;
    let mut compiler = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-shared", "-fPIC", "-w"]).arg(&file).arg("-Wl,--no-as-needed");
    compiler.arg(format!("-Wl,-soname,{library}"));
    if !versions.is_empty() {
        // A library has one version of its own. All its symbols have that version.
        let nodes =
            versions.iter().map(|version| format!("{version} {{ global: *; }};\n")).collect::<String>();
        let map = folder.join(format!("{library}.map"));
        fs::write(&map, nodes).with_context(|| format!("cannot write {}", map.display()))?;
        compiler.arg(format!("-Wl,--version-script={}", map.display()));
    }
    if library == RUNTIME_12 {
        compiler.arg(format!("-Wl,-rpath-link,{}", folder.display())).arg(folder.join(RUNTIME));
    }
    let new = folder.join(format!("{library}.new"));
    compiler.arg("-L").arg(folder).arg("-lsimgpu_libs").arg("-o").arg(&new);
    run(&mut compiler)?;
    fs::rename(&new, folder.join(library)).with_context(|| format!("cannot replace {library}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensorflow_looks_functions_up_by_the_names_of_nvidias_libraries() {
        let library = |function: &str| looked_up(function.to_owned()).map(|import| import.library);
        assert_eq!(library("cublasSgemm_v2").as_deref(), Some("libcublas.so.12"));
        assert_eq!(library("cublasLtMatmul").as_deref(), Some("libcublasLt.so.12"));
        assert_eq!(library("__cudaRegisterFunction").as_deref(), Some(RUNTIME_12));
        assert_eq!(library("cudaMalloc").as_deref(), Some(RUNTIME_12));
        assert_eq!(
            [library("cuInit"), library("cudnn_frontend"), library("TF_NewBuffer")],
            [None, None, None]
        );
    }

    /// Compiles a C program or library.
    fn compile(folder: &Path, source: &str, product: &str, arguments: &[&str]) {
        let file = folder.join("source.c");
        fs::write(&file, source).unwrap();
        run(Command::new("cc").arg("-w").arg(&file).args(arguments).arg("-o").arg(folder.join(product)))
            .unwrap();
    }

    #[test]
    fn a_facade_has_the_name_the_versions_and_the_functions_that_our_library_lacks() {
        let (built, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let source = "void simgpu_unsupported(const char *name) {} int cublasCreate_v2(void) { return 0; }";
        compile(built.path(), source, LIBS, &["-shared", "-fPIC"]);
        compile(
            built.path(),
            "int cudaMalloc(void) { return 7; } int cudaMemAdvise(void) { return 8; }",
            "libcudart.so",
            &["-shared", "-fPIC", "-Wl,-soname,libcudart.so.13"],
        );
        let list = "libcublas.so.13 libcublas.so.13 cublasCreate_v2\n\
            libcublas.so.13 libcublas.so.13 cublasSgemm_v2\n\
            libcudart.so.13 libcudart.so.13 cudaMalloc\n\
            libcudart.so.12 - cudaMalloc\nlibcudart.so.12 - cudaMemAdvise\n\
            libcusolver.so.11 - \n\
            libnccl.so.2 - ncclGetErrorString\n";
        let lay_out = || lay_out(list, built.path(), folder.path()).unwrap();
        lay_out();
        let exported = |library: &str| exports_of(&folder.path().join(library)).unwrap();
        assert!(exported(RUNTIME).contains("cudaMemAdvise"));
        let of_12 = ["cudaMemAdvise", "cudaRuntimeGetVersion"].map(str::to_owned);
        assert_eq!(exported(RUNTIME_12), BTreeSet::from(of_12), "it refuses a call that CUDA 13 changed");
        assert_eq!(exported("libcusolver.so.11"), BTreeSet::new());
        let blas = exported("libcublas.so.13");
        assert!(blas.contains("cublasSgemm_v2") && !blas.contains("cublasCreate_v2"), "{blas:?}");
        assert!(exported("libnccl.so.2").contains("ncclGetErrorString"));
        let made = || fs::metadata(folder.path().join("libcublas.so.13")).unwrap().modified().unwrap();
        let first = made();
        lay_out();
        assert_eq!(made(), first, "nothing changed, so nothing is compiled again");

        let client = "int main(void) { return cublasSgemm_v2() != 15 || ncclGetErrorString() == 0; }";
        let libraries =
            ["libcublas.so.13", "libnccl.so.2"].map(|name| folder.path().join(name).display().to_string());
        let search = format!("-Wl,-rpath-link,{}", folder.path().display());
        compile(folder.path(), client, "client", &[&libraries[0], &libraries[1], &search]);
        let import = |library: &str, version: Option<&str>, function: &str| Import {
            library: library.to_owned(),
            version: version.map(str::to_owned),
            function: function.to_owned(),
        };
        let mut imports = imports_of(&folder.path().join("client")).unwrap();
        imports.sort();
        let expected = [
            import("libcublas.so.13", Some("libcublas.so.13"), "cublasSgemm_v2"),
            import("libnccl.so.2", None, "ncclGetErrorString"),
        ];
        assert_eq!(imports, expected);
        let answer =
            Command::new(folder.path().join("client")).env("LD_LIBRARY_PATH", folder.path()).status();
        assert!(answer.unwrap().success(), "it answers with cuBLAS' code");
    }
}
