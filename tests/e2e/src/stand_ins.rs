//! Stand-ins for NVIDIA's libraries, with which an unmodified PyTorch works on the simulated GPU.
//!
//! The runtime (`tests/simgpu/runtime`) and the functions of the compute libraries that a training
//! needs (`tests/simgpu/libs`) are ours. For each compute library that PyTorch imports, this module
//! makes a facade: a library of NVIDIA's name with NVIDIA's symbol versions. A facade needs
//! `libsimgpu_libs.so`, and answers all other functions that PyTorch imports with an error of
//! NVIDIA's library.
//!
//! The folder of the stand-ins belongs into LD_LIBRARY_PATH. PyTorch's libraries look in the folders
//! of NVIDIA's packages first, so NVIDIA's packages must be absent.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fmt::Write as _,
    fs::{self, File},
    path::{Path, PathBuf},
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

use crate::artefacts::run;

/// Packages from which cargo builds the stand-ins.
pub const PACKAGES: [&str; 2] = ["simgpu-runtime", "simgpu-libs"];
/// Our library with functions of NVIDIA's compute libraries.
const LIBS: &str = "libsimgpu_libs.so";
/// The runtime, which is a library of its own.
pub const RUNTIME: &str = "libcudart.so.13";
/// The file of an environment that lists PyTorch's imports: a library, a version or `-`, and a
/// function on each line.
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

/// The answer of a function that is not supported, by the beginning of the library's name.
const ANSWERS: [(&str, u32); 8] = [
    ("libcublas", 15),   // CUBLAS_STATUS_NOT_SUPPORTED
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

/// A function that a library imports from another one.
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
    // PyTorch's largest library has half a gigabyte, of which this function reads the symbols alone.
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

/// Writes the list of the imports of PyTorch's libraries to [`IMPORTS`] in the environment's folder.
pub(crate) fn note_imports(environment: &Path) -> Result<()> {
    let mut imports = BTreeSet::new();
    let libraries = libraries_of_torch(environment)?;
    for entry in fs::read_dir(&libraries).with_context(|| format!("cannot list {}", libraries.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "so") {
            imports.extend(imports_of(&path)?);
        }
    }
    let line = |Import { library, version, function }: &Import| {
        format!("{library} {} {function}\n", version.as_deref().unwrap_or("-"))
    };
    let list = environment.join(IMPORTS);
    fs::write(&list, imports.iter().map(line).collect::<String>())
        .with_context(|| format!("cannot write {}", list.display()))
}

/// Puts the stand-ins for PyTorch in `environment` into `folder`. `built` is cargo's folder with the
/// stand-ins' own libraries. Does nothing if the folder has them already.
pub fn lay_out(environment: &Path, built: &Path, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let libs = built.join(LIBS);
    for (from, to) in [(built.join("libcudart.so"), RUNTIME), (libs.clone(), LIBS)] {
        // A process that maps the old file keeps it.
        let new = folder.join(format!("{to}.new"));
        fs::copy(&from, &new).with_context(|| format!("cannot copy {}", from.display()))?;
        fs::rename(&new, folder.join(to)).with_context(|| format!("cannot replace {to}"))?;
    }
    let list = environment.join(IMPORTS);
    let list = fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))?;
    let exported = exports_of(&libs)?;
    let made_of = format!("{list}\n{}", exported.iter().fold(String::new(), |all, one| all + one + "\n"));
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
        if !exported.contains(function) {
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
    let new = folder.join(format!("{library}.new"));
    compiler.arg("-L").arg(folder).arg("-lsimgpu_libs").arg("-o").arg(&new);
    run(&mut compiler)?;
    fs::rename(&new, folder.join(library)).with_context(|| format!("cannot replace {library}"))
}

/// Returns the folder of PyTorch's libraries in an environment.
fn libraries_of_torch(environment: &Path) -> Result<PathBuf> {
    let lib = environment.join("lib");
    let entries = fs::read_dir(&lib).with_context(|| format!("cannot list {}", lib.display()))?;
    let mut folders = entries.flatten().map(|entry| entry.path().join("site-packages/torch/lib"));
    folders.find(|folder| folder.is_dir()).with_context(|| format!("no PyTorch in {}", environment.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compiles a C program or library.
    fn compile(folder: &Path, source: &str, product: &str, arguments: &[&str]) {
        let file = folder.join("source.c");
        fs::write(&file, source).unwrap();
        run(Command::new("cc").arg("-w").arg(&file).args(arguments).arg("-o").arg(folder.join(product)))
            .unwrap();
    }

    #[test]
    fn a_facade_has_the_name_the_versions_and_the_functions_that_our_library_lacks() {
        let (built, environment) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folder = tempfile::tempdir().unwrap();
        let source = "void simgpu_unsupported(const char *name) {} int cublasCreate_v2(void) { return 0; }";
        compile(built.path(), source, LIBS, &["-shared", "-fPIC"]);
        fs::write(built.path().join("libcudart.so"), "the runtime").unwrap();
        let list = "libcublas.so.13 libcublas.so.13 cublasCreate_v2\n\
            libcublas.so.13 libcublas.so.13 cublasSgemm_v2\n\
            libcudart.so.13 libcudart.so.13 cudaMalloc\n\
            libnccl.so.2 - ncclGetErrorString\n";
        fs::write(environment.path().join(IMPORTS), list).unwrap();
        let lay_out = || lay_out(environment.path(), built.path(), folder.path()).unwrap();
        lay_out();
        assert_eq!(fs::read_to_string(folder.path().join(RUNTIME)).unwrap(), "the runtime");
        let exported = exports_of(&folder.path().join("libcublas.so.13")).unwrap();
        assert!(exported.contains("cublasSgemm_v2") && !exported.contains("cublasCreate_v2"), "{exported:?}");
        assert!(exports_of(&folder.path().join("libnccl.so.2")).unwrap().contains("ncclGetErrorString"));
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
