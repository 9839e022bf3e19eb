//! `cargo xtask codegen`: generates the tables of the driver API (`deepres-abi`) and of the
//! runtime's API (`tests/simgpu/runtime`) from NVIDIA's published headers.
//!
//! The headers come from a pinned wheel. The C preprocessor reads them with the switch that
//! declares every variant of every function. The table contains only facts: names, types, versions,
//! values.

mod header;
mod layout;
mod render;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use deepres_e2e::venv;

use self::header::Header;
use crate::{build, command};

/// Wheel with `cuda.h` and the `*Typedefs.h` headers.
const WHEEL: &str = "nvidia-cuda-runtime==13.5.37";
/// The prefix of the wheel's file name.
const WHEEL_FILE: &str = "nvidia_cuda_runtime-13.5.37-";
/// Folder of the headers inside the wheel.
const INCLUDE: &str = "nvidia/cu13/include";
/// Headers that declare driver functions, in order of inclusion.
const HEADERS: &[&str] = &[
    "cuda.h",
    "cudaTypedefs.h",
    "cudaProfilerTypedefs.h",
    "cudaGL.h",
    "cudaGLTypedefs.h",
    "cudaEGL.h",
    "cudaEGLTypedefs.h",
    "cudaVDPAU.h",
    "cudaVDPAUTypedefs.h",
];
/// The headers that declare the runtime's functions and structures.
const RUNTIME_HEADERS: &[&str] = &["cuda_runtime_api.h", "cuda_profiler_api.h"];
/// Headers that `HEADERS` and `RUNTIME_HEADERS` name or include and that a build machine can lack.
/// The text contains only the types and macros that declarations need, and the profiler's
/// functions.
const STAND_IN_HEADERS: &[(&str, &str)] = &[
    ("crt/host_defines.h", HOST_DEFINES),
    ("cudaProfiler.h", ""),
    ("cuda_profiler_api.h", PROFILER_API),
    ("GL/gl.h", ""),
    ("EGL/egl.h", ""),
    ("EGL/eglext.h", "typedef int EGLint; typedef void *EGLImageKHR, *EGLStreamKHR, *EGLSyncKHR;\n"),
    ("vdpau/vdpau.h", ""),
];
/// The macros of `crt/host_defines.h` by which the runtime's headers mark declarations. Only nvcc
/// gives the marks a meaning.
const HOST_DEFINES: &str = "#define __host__\n#define __device__\n#define __cudart_builtin__\n\
    #define __device_builtin__\n#define __align__(n) __attribute__((aligned(n)))\n\
    #define __builtin_align__(n) __align__(n)\n#define CUDARTAPI\n#define CUDART_CB\n";
/// The functions of `cuda_profiler_api.h`, which lies in another wheel.
const PROFILER_API: &str = "cudaError_t cudaProfilerStart(void);\ncudaError_t cudaProfilerStop(void);\n";
/// The headers that declare structures of the driver API.
const STRUCTURE_HEADERS: &[&str] = &["cuda.h", "cudaEGL.h"];

/// The generated file that has only those names of the headers that other files name.
const CONSTANTS: &str = "constants.rs";

/// Options of `cargo xtask codegen`.
#[derive(clap::Args)]
pub struct Options {
    /// Change nothing, and fail if a committed file differs from the generated one
    #[arg(long)]
    pub check: bool,
}

/// The generated files of one API.
struct Generated {
    /// Folder of the files, from the top folder of the repository.
    folder: &'static str,
    files: BTreeMap<&'static str, String>,
    functions: usize,
}

/// Writes the generated files, or compares them with `--check`.
pub fn run(options: &Options) -> Result<()> {
    let root = crate::workspace();
    let include = headers(&build::target().join("codegen"))?;
    let mut named = BTreeSet::new();
    add_names(&root, &mut named)?;
    let mut stale = Vec::new();
    for Generated { folder, files, functions } in
        [driver(&root, &include, &named)?, runtime(&root, &include, &named)?]
    {
        for (name, content) in files {
            let path = root.join(folder).join(name);
            let content = rustfmt(&root, &content)?;
            if fs::read_to_string(&path).is_ok_and(|old| old == content) {
                continue;
            }
            stale.push(format!("{folder}/{name}"));
            if !options.check {
                fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
        println!("{folder}: {functions} functions from {WHEEL}");
    }
    match (options.check, stale.is_empty()) {
        (_, true) => println!("the generated files are up to date"),
        (false, false) => println!("wrote {}", stale.join(", ")),
        (true, false) => bail!(
            "{} differ from the files of {WHEEL}; run `cargo xtask codegen` and commit the result",
            stale.join(", ")
        ),
    }
    Ok(())
}

/// Reads the handwritten types of an API, and checks their layouts against the headers.
fn handwritten(path: &Path, include: &Path, headers: &[&str], declared: &Header) -> Result<BTreeSet<String>> {
    let types = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    compile(include, &layout::assertions(&types, headers, declared)?)?;
    Ok(table::handwritten_names(&types))
}

/// Generates the table of the driver API. `named` has the words of the sources of deepres.
fn driver(root: &Path, include: &Path, named: &BTreeSet<String>) -> Result<Generated> {
    let folder = "abi/src/driver";
    let declared = header::parse(&preprocess(include, HEADERS, &[])?, render::DRIVER_RESULT)?;
    let macros = header::parse_macros(&preprocess(include, HEADERS, &["-dM"])?);
    let types = root.join(folder).join("types.rs");
    let table = table::build(&declared, &handwritten(&types, include, STRUCTURE_HEADERS, &declared)?)?;
    let mut documented = BTreeMap::new();
    for name in HEADERS {
        let path = include.join(name);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        for (family, codes) in header::parse_errors(&text) {
            documented.entry(family).or_insert_with(BTreeSet::new).extend(codes);
        }
    }
    let mut files = BTreeMap::from([
        ("functions.rs", render::functions(&declared, &documented, &table)?),
        ("result.rs", render::results(&declared)?),
    ]);
    let is_named = with_new_names(named, &files);
    files.insert(CONSTANTS, render::constants("driver API", &declared, &macros, &table.aliases, is_named));
    Ok(Generated { folder, files, functions: table.rows.len() })
}

/// Generates the table of the runtime's API.
fn runtime(root: &Path, include: &Path, named: &BTreeSet<String>) -> Result<Generated> {
    let folder = "tests/simgpu/runtime/src/table";
    let declared = header::parse(&preprocess(include, RUNTIME_HEADERS, &[])?, "cudaError_t")?;
    let types = root.join(folder).join("types.rs");
    let plain = table::plain(&declared, &handwritten(&types, include, RUNTIME_HEADERS, &declared)?)?;
    let mut files = BTreeMap::from([
        ("functions.rs", render::plain_functions(&plain)),
        ("errors.rs", render::runtime_errors(&declared)?),
    ]);
    let is_named = with_new_names(named, &files);
    let none = BTreeMap::new();
    files.insert(CONSTANTS, render::constants("runtime's API", &declared, &none, &plain.aliases, is_named));
    Ok(Generated { folder, files, functions: plain.functions.len() })
}

/// Returns whether the sources or the new files name a type or constant. A new function can have
/// types that no source names yet.
fn with_new_names(named: &BTreeSet<String>, files: &BTreeMap<&str, String>) -> impl Fn(&str) -> bool {
    let new: BTreeSet<String> = files.values().flat_map(|text| words(text)).collect();
    move |name| named.contains(name) || new.contains(name)
}

/// Adds the words of all Rust files below a folder to `named`. Leaves out build folders and
/// `constants.rs`.
fn add_names(folder: &Path, named: &mut BTreeSet<String>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if entry.file_type()?.is_dir() {
            if name != "target" && !name.starts_with('.') {
                add_names(&path, named)?;
            }
        } else if name.ends_with(".rs") && name != CONSTANTS {
            let text =
                fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            named.extend(words(&text));
        }
    }
    Ok(())
}

/// Returns the words of a source file.
fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned)
}

/// Returns the folder of NVIDIA's headers. If `cuda.h` is missing, downloads and unpacks `WHEEL`.
/// Also writes the stand-in headers.
fn headers(cache: &Path) -> Result<PathBuf> {
    let unpacked = cache.join(WHEEL);
    let include = unpacked.join(INCLUDE);
    if !include.join("cuda.h").exists() {
        let wheels = cache.join("wheels");
        command::run(venv::training()?.pip().args(["download", "--no-deps", "-d"]).arg(&wheels).arg(WHEEL))?;
        let wheel = fs::read_dir(&wheels)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(WHEEL_FILE)))
            .with_context(|| format!("pip left no {WHEEL_FILE}*.whl in {}", wheels.display()))?;
        command::run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg(&unpacked))?;
    }
    for (name, content) in STAND_IN_HEADERS {
        let path = stand_ins(&include).join(name);
        fs::create_dir_all(path.parent().expect("has a folder"))?;
        fs::write(path, content)?;
    }
    Ok(include)
}

/// Returns the folder of the stand-in headers.
fn stand_ins(include: &Path) -> PathBuf {
    include.ancestors().nth(3).expect("INCLUDE has three parts").join("stand-ins")
}

/// Returns the text of headers after the C preprocessor. The text declares every variant of every
/// function.
fn preprocess(include: &Path, headers: &[&str], more: &[&str]) -> Result<String> {
    let all = include.join("deepres_all.h");
    fs::write(&all, headers.iter().map(|name| format!("#include <{name}>\n")).collect::<String>())?;
    let mut cc = Command::new("cc");
    cc.args(["-E", "-P", "-D__CUDA_API_VERSION_INTERNAL", "-I"])
        .arg(include)
        .arg("-I")
        .arg(stand_ins(include));
    command::output(cc.args(more).arg(all))
}

/// Fails if a C file does not compile against the headers.
fn compile(include: &Path, source: &str) -> Result<()> {
    let file = build::target().join("codegen/layout.c");
    fs::write(&file, source)?;
    let mut cc = Command::new("cc");
    command::run(
        cc.args(["-std=c11", "-fsyntax-only", "-I"])
            .arg(include)
            .arg("-I")
            .arg(stand_ins(include))
            .arg(&file),
    )
    .context("the layouts in types.rs are not those of the headers")
}

fn rustfmt(root: &Path, source: &str) -> Result<String> {
    let file = build::target().join("codegen/generated.rs");
    fs::write(&file, source)?;
    command::run(
        Command::new("rustfmt")
            .args(["--edition", "2024", "--config-path"])
            .arg(root.join("rustfmt.toml"))
            .arg(&file),
    )?;
    Ok(fs::read_to_string(file)?)
}
