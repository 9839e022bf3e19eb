//! The clients under `tests/workloads`: C programs, built here on first use, and the training script.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::artefacts::{artefacts, repository, run, target};

/// How a C client reaches the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Bound by the linker to libcuda.so.1.
    Linked,
    /// dlopen and one dlsym a function.
    Dlsym,
    /// One dlsym, of cuGetProcAddress_v2.
    ProcAddress,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Linked, Self::Dlsym, Self::ProcAddress];

    fn define(self) -> &'static str {
        match self {
            Self::Linked => "WAY_LINKED",
            Self::Dlsym => "WAY_DLSYM",
            Self::ProcAddress => "WAY_PROC_ADDRESS",
        }
    }
}

/// Path of `tests/workloads/c/NAME.c`, compiled to reach the driver in this way.
pub fn c_client(name: &str, way: Way) -> PathBuf {
    let mut flags = vec![format!("-D{}", way.define()), "-pthread".to_owned()];
    if way == Way::Linked {
        flags.extend(["-L".to_owned(), artefacts().simgpu.display().to_string(), "-lcuda".to_owned()]);
    }
    compile(name, &format!("{name}-{way:?}"), &flags)
}

/// Path of `tests/workloads/c/NAME.c` compiled as a program that does not know of the driver.
pub fn c_program(name: &str) -> PathBuf {
    compile(name, name, &["-pthread".to_owned(), "-ldl".to_owned()])
}

/// Path of `tests/workloads/c/NAME.c` compiled as a shared library.
pub fn c_library(name: &str) -> PathBuf {
    compile(name, &format!("lib{name}.so"), &["-shared".to_owned(), "-fPIC".to_owned(), "-ldl".to_owned()])
}

/// The training script.
pub fn training_script() -> PathBuf {
    repository().join("tests/workloads/python/train.py")
}

/// The simulated GPU's configuration under the training script.
pub fn demo_simgpu() -> String {
    let path = repository().join("tests/workloads/simgpu-demo.toml");
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn compile(name: &str, output: &str, flags: &[String]) -> PathBuf {
    let folder = target().join("e2e-clients");
    let source = repository().join("tests/workloads/c").join(name).with_extension("c");
    let product = folder.join(output);
    if !is_newer(&product, &source) {
        fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        // Tests of one binary run in parallel: each compiles beside and puts its product in place at once.
        let beside =
            folder.join(format!("{output}.{}.{:?}", std::process::id(), std::thread::current().id()));
        let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
        let mut command = Command::new(compiler);
        command.args(["-O1", "-Wall", "-Wextra", "-Werror"]).arg(&source).args(flags).arg("-o").arg(&beside);
        run(&mut command).unwrap_or_else(|error| panic!("compiling a client: {error:#}"));
        fs::rename(&beside, &product).unwrap_or_else(|error| panic!("{}: {error}", product.display()));
    }
    product
}

/// Whether the product is younger than every C file, headers included.
fn is_newer(product: &Path, source: &Path) -> bool {
    let modified = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
    let Some(built) = modified(product) else { return false };
    let Some(folder) = source.parent().and_then(|folder| fs::read_dir(folder).ok()) else { return false };
    folder.flatten().all(|file| modified(&file.path()).is_some_and(|changed| changed < built))
}
