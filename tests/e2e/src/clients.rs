//! The clients under `tests/workloads`: Python scripts, and C, CUDA and Rust programs. This module
//! builds the programs on first use.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::artefacts::{artefacts, built, clients_python, nvrtc, repository, run, target, zig_cc};

/// The way in which a C client reaches the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The linker binds the functions of libcuda.so.1.
    Linked,
    /// dlopen, then one dlsym for each function.
    Dlsym,
    /// One dlsym, of cuGetProcAddress_v2.
    ProcAddress,
}

impl Way {
    /// All ways.
    pub const ALL: [Self; 3] = [Self::Linked, Self::Dlsym, Self::ProcAddress];

    fn define(self) -> &'static str {
        match self {
            Self::Linked => "WAY_LINKED",
            Self::Dlsym => "WAY_DLSYM",
            Self::ProcAddress => "WAY_PROC_ADDRESS",
        }
    }
}

/// Returns the path of `tests/workloads/c/NAME.c`, compiled to reach the driver by dlsym.
pub fn c_client(name: &str) -> PathBuf {
    c_client_by(name, Way::Dlsym)
}

/// Returns the path of `tests/workloads/c/NAME.c`, compiled to reach the driver in this way.
pub fn c_client_by(name: &str, way: Way) -> PathBuf {
    let mut flags = vec![format!("-D{}", way.define()), "-pthread".to_owned(), "-lm".to_owned()];
    if way == Way::Linked {
        flags.extend(["-L".to_owned(), artefacts().simgpu.display().to_string(), "-lcuda".to_owned()]);
    }
    compile(name, &format!("{name}-{way:?}"), &flags)
}

/// Returns the path of `tests/workloads/c/NAME.c`, compiled as a program that does not use the
/// driver.
pub fn c_program(name: &str) -> PathBuf {
    compile(name, name, &["-pthread".to_owned(), "-ldl".to_owned()])
}

/// A C library that this machine's compiler does not link to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CLibrary {
    /// The glibc of Debian 11.
    OldGlibc,
    /// musl as a shared library.
    Musl,
    /// musl, linked statically.
    Static,
}

impl CLibrary {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::OldGlibc => &["-target", "x86_64-linux-gnu.2.31", "-ldl"],
            Self::Musl => &["-target", "x86_64-linux-musl", "-dynamic"],
            Self::Static => &["-target", "x86_64-linux-musl", "-static"],
        }
    }
}

/// Returns the path of `tests/workloads/c/NAME.c`, compiled for another C library to reach the
/// driver in this way. The client is not linked to libcuda.
pub fn c_client_on(library: CLibrary, name: &str, way: Way) -> PathBuf {
    assert_ne!(way, Way::Linked, "there is no driver to link to for {library:?}");
    let mut flags = vec![format!("-D{}", way.define()), "-pthread".to_owned(), "-lm".to_owned()];
    flags.extend(library.flags().iter().map(|flag| (*flag).to_owned()));
    compile_by(zig_cc(), name, &format!("{name}-{way:?}-{library:?}"), &flags)
}

/// Returns the path of `tests/workloads/c/NAME.c`, compiled for another C library as a program that
/// does not use the driver.
pub fn c_program_on(library: CLibrary, name: &str) -> PathBuf {
    let flags: Vec<String> = library.flags().iter().map(|flag| (*flag).to_owned()).collect();
    compile_by(zig_cc(), name, &format!("{name}-{library:?}"), &flags)
}

/// Returns the path of `tests/workloads/c/NAME.c`, compiled as a shared library.
pub fn c_library(name: &str) -> PathBuf {
    compile(name, &format!("lib{name}.so"), &["-shared".to_owned(), "-fPIC".to_owned(), "-ldl".to_owned()])
}

/// Returns the path of `tests/workloads/c/NAME.c`, compiled as a shared library and linked to
/// `driver`. The library `driver` defines functions with the driver's names.
pub fn c_library_on(name: &str, driver: &Path) -> PathBuf {
    let flags =
        ["-shared", "-fPIC", "-ldl"].map(str::to_owned).into_iter().chain([driver.display().to_string()]);
    let on = driver.file_stem().unwrap_or_default().display();
    compile(name, &format!("lib{name}-{on}.so"), &flags.collect::<Vec<_>>())
}

/// Returns the folder of a `libcuda.so.1` that only loads another one: the file that the variable
/// `DRIVER_FILE` names.
pub fn loader() -> PathBuf {
    c_driver("loader")
}

/// Returns the folder of a `libcuda.so.1` that calls its own `cuEventCreate` by the dynamic linker.
pub fn unbound() -> PathBuf {
    c_driver("unbound")
}

/// Returns the folder of a `libcuda.so.1` that is compiled from `tests/workloads/c/NAME.c`.
fn c_driver(name: &str) -> PathBuf {
    let flags = ["-shared", "-fPIC", "-ldl", "-Wl,-soname,libcuda.so.1"].map(str::to_owned);
    let library = compile(name, &format!("{name}/libcuda.so.1"), &flags);
    library.parent().expect("a folder").to_owned()
}

/// Returns the path of the training script.
pub fn training_script() -> PathBuf {
    repository().join("tests/workloads/python/train.py")
}

/// Returns the path of the Python script of this name.
pub fn script(name: &str) -> PathBuf {
    repository().join("tests/workloads/python").join(name).with_extension("py")
}

/// Returns the path of the Rust client, which cargo builds.
pub fn cudarc_client() -> PathBuf {
    built_by_cargo("deepres-cudarc-client", "cudarc-client")
}

/// Returns the path of the program that checks a driver's behaviour (`tests/conformance`). Cargo
/// builds the program.
pub fn conformance() -> PathBuf {
    built_by_cargo("deepres-conformance", "conformance")
}

/// Returns the path of the program that calls every hooked function. Cargo builds the program.
pub fn every_call() -> PathBuf {
    built_by_cargo("deepres-every-call", "every-call")
}

/// Returns the folder of a `libcuda.so.1` that records how each function is called. Cargo builds
/// the library.
pub fn recording_driver() -> PathBuf {
    driver_library("deepres-every-call", "librecording_cuda.so", "recording-driver")
}

/// Returns the folder of a `libcuda.so.1` in which every call does next to nothing. Cargo builds
/// the library.
pub fn stub_driver() -> PathBuf {
    driver_library("deepres-stub-driver", "libstub_cuda.so", "stub-driver")
}

/// Builds a library with cargo and copies it to `libcuda.so.1` in a folder of its own. Returns the
/// folder of the copy.
fn driver_library(package: &str, library: &str, folder: &str) -> PathBuf {
    let built = built_by_cargo(package, library);
    build(&built, &format!("{folder}/libcuda.so.1"), |product| {
        let mut copy = Command::new("cp");
        copy.arg(&built).arg(product);
        copy
    });
    target().join("e2e-clients").join(folder)
}

fn built_by_cargo(package: &str, binary: &str) -> PathBuf {
    built(&[package]).join(binary)
}

/// Returns the path of `tests/workloads/cuda/NAME.cu`, compiled by PyPI's nvcc. nvcc links
/// libcudart statically.
pub fn cuda_program(name: &str) -> PathBuf {
    cuda_program_with(name, &[])
}

/// Does the same as [`cuda_program`], but links the runtime library at `runtime`.
pub fn cuda_program_on(name: &str, runtime: &Path) -> PathBuf {
    let linker = ["-cudart", "none", "-Xlinker"].map(OsStr::new);
    cuda_program_with(name, &[&linker[..], &[runtime.as_os_str()]].concat())
}

fn cuda_program_with(name: &str, arguments: &[&OsStr]) -> PathBuf {
    let toolkit = nvrtc(clients_python());
    let toolkit = toolkit.parent().expect("the folder of libraries lies in the toolkit's");
    let source = repository().join("tests/workloads/cuda").join(name).with_extension("cu");
    build(&source, name, |product| {
        let mut nvcc = Command::new(toolkit.join("bin/nvcc"));
        // The wheels have the folder `lib`, and nvcc's own profile names `lib64`.
        nvcc.arg("-L").arg(toolkit.join("lib")).arg(&source).args(arguments).arg("-o").arg(product);
        nvcc
    })
}

/// Returns the simulated GPU's configuration for the training script.
pub fn demo_simgpu() -> String {
    simgpu_of("simgpu-demo.toml")
}

/// Returns the simulated GPU's configuration for PyTorch's training script.
pub fn torch_simgpu() -> String {
    simgpu_of("simgpu-torch.toml")
}

fn simgpu_of(name: &str) -> String {
    let path = repository().join("tests/workloads").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn compile(name: &str, output: &str, flags: &[String]) -> PathBuf {
    compile_by(Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into())), name, output, flags)
}

fn compile_by(compiler: Command, name: &str, output: &str, flags: &[String]) -> PathBuf {
    let source = repository().join("tests/workloads/c").join(name).with_extension("c");
    build(&source, output, |product| {
        let mut command = compiler;
        command.args(["-O1", "-Wall", "-Wextra", "-Werror"]).arg(&source).args(flags).arg("-o").arg(product);
        command
    })
}

/// Runs the compiler if its product is missing or older than the sources. Returns the path of the
/// product.
fn build(source: &Path, output: &str, compiler: impl FnOnce(&Path) -> Command) -> PathBuf {
    let folder = target().join("e2e-clients");
    let product = folder.join(output);
    if !is_newer(&product, source) {
        let within = product.parent().unwrap_or(&folder);
        fs::create_dir_all(within).unwrap_or_else(|error| panic!("{}: {error}", within.display()));
        // Tests of one binary run in parallel. Therefore each test compiles to a file of its own,
        // and a rename puts the product in place atomically.
        static BUILDS: AtomicU32 = AtomicU32::new(0);
        let build = BUILDS.fetch_add(1, Ordering::Relaxed);
        let beside = folder.join(format!("{output}.{}-{build}", std::process::id()));
        run(&mut compiler(&beside)).unwrap_or_else(|error| panic!("compiling a client: {error:#}"));
        fs::rename(&beside, &product).unwrap_or_else(|error| panic!("{}: {error}", product.display()));
    }
    product
}

/// Whether the product is younger than every file beside its source, headers included.
fn is_newer(product: &Path, source: &Path) -> bool {
    let modified = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
    let Some(built) = modified(product) else { return false };
    let Some(folder) = source.parent().and_then(|folder| fs::read_dir(folder).ok()) else { return false };
    folder.flatten().all(|file| modified(&file.path()).is_some_and(|changed| changed < built))
}
