//! Paths of the built parts under test. If nobody has built the parts, this module builds them.

use std::{
    env, fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

use anyhow::{Context, Result, ensure};

use crate::{
    stand_ins,
    venv::{self, Venv, children},
};

/// Folder with `deepres`, `libdeepres.so` and `simgpu/`. `cargo xtask test` sets the variable,
/// because it builds once for all test programs.
const ARTEFACTS_VARIABLE: &str = "DEEPRES_ARTEFACTS";

/// zig from PyPI. `cargo xtask dist` links with it.
const ZIG: &str = "ziglang==0.15.2";
/// Packages from which cargo builds the artefacts.
const PACKAGES: [&str; 4] = ["deepres-interposer", "deepres", "simgpu-cuda", "simgpu-nvml"];

/// The built parts.
#[derive(Debug)]
pub struct Artefacts {
    /// Folder of `deepres` and `libdeepres.so`.
    pub folder: PathBuf,
    /// Path of the command `deepres`.
    pub deepres: PathBuf,
    /// Path of the preloaded library.
    pub library: PathBuf,
    /// Folder with the simulated `libcuda.so.1` and `libnvidia-ml.so.1`, for LD_LIBRARY_PATH, and
    /// the stand-in for MPS.
    pub simgpu: PathBuf,
}

/// Top folder of the repository.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate lies in tests/e2e")
}

/// The workspace's build folder.
pub fn target() -> &'static Path {
    static TARGET: OnceLock<PathBuf> = OnceLock::new();
    TARGET.get_or_init(|| {
        env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), PathBuf::from)
    })
}

/// Returns the built parts. If the environment names no folder, the function builds them first.
pub fn artefacts() -> &'static Artefacts {
    static ARTEFACTS: OnceLock<Artefacts> = OnceLock::new();
    ARTEFACTS
        .get_or_init(|| find_or_build().unwrap_or_else(|error| panic!("the parts under test: {error:#}")))
}

fn find_or_build() -> Result<Artefacts> {
    let folder = match env::var_os(ARTEFACTS_VARIABLE) {
        Some(folder) => PathBuf::from(folder),
        None => build()?,
    };
    Artefacts::in_folder(folder)
}

impl Artefacts {
    fn in_folder(folder: PathBuf) -> Result<Self> {
        let artefacts = Self {
            deepres: folder.join("deepres"),
            library: folder.join("libdeepres.so"),
            simgpu: folder.join("simgpu"),
            folder,
        };
        let driver = artefacts.simgpu.join("libcuda.so.1");
        for file in [&artefacts.deepres, &artefacts.library, &driver] {
            ensure!(
                file.is_absolute() && file.exists(),
                "{} is not there (looked where {ARTEFACTS_VARIABLE}, an absolute path, says)",
                file.display()
            );
        }
        Ok(artefacts)
    }

    /// Whether these parts come from `cargo xtask dist`, which builds for systems older than this
    /// one.
    pub fn are_portable(&self) -> bool {
        self.folder == repository().join("dist")
    }
}

/// Returns zig's C compiler. This compiler makes programs for other C libraries than this
/// machine's.
pub(crate) fn zig_cc() -> Command {
    let mut zig = Command::new(prepared(zig()).python());
    zig.args(["-m", "ziglang", "cc"]);
    zig
}

/// Folder with cargo's products. `cargo xtask test` sets the variable, because it builds the whole
/// workspace.
const BUILT_VARIABLE: &str = "DEEPRES_BUILT";

/// Returns the folder with cargo's debug products of these packages. If the environment names no
/// folder, the function builds the packages first.
pub fn built(packages: &[&str]) -> PathBuf {
    if let Some(folder) = env::var_os(BUILT_VARIABLE) {
        return folder.into();
    }
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet"]).current_dir(repository());
    cargo.args(packages.iter().flat_map(|package| ["--package", package]));
    run(&mut cargo).unwrap_or_else(|error| panic!("building what a test runs: {error:#}"));
    target().join("debug")
}

fn build() -> Result<PathBuf> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--release", "--quiet"]).current_dir(repository());
    for package in PACKAGES {
        cargo.args(["-p", package]);
    }
    let status = cargo.status().with_context(|| format!("{cargo:?}"))?;
    ensure!(status.success(), "{cargo:?} failed");

    let (built, folder) = (target().join("release"), target().join("deepres"));
    let simgpu = folder.join("simgpu");
    fs::create_dir_all(&simgpu)?;
    for (from, to) in [
        ("deepres", folder.join("deepres")),
        ("libdeepres.so", folder.join("libdeepres.so")),
        ("libcuda.so", simgpu.join("libcuda.so.1")),
        ("libcuda.so", simgpu.join("libcuda.so")),
        ("libnvidia_ml.so", simgpu.join("libnvidia-ml.so.1")),
        ("nvidia-cuda-mps-control", simgpu.join("nvidia-cuda-mps-control")),
    ] {
        // Test binaries start one after the other, so no other process replaces the link at this
        // time.
        let _ = fs::remove_file(&to);
        symlink(built.join(from), &to).with_context(|| format!("linking {}", to.display()))?;
    }
    Ok(folder)
}

/// Returns the training script's Python environment.
pub fn python() -> &'static Venv {
    static PYTHON: OnceLock<Venv> = OnceLock::new();
    PYTHON.get_or_init(|| prepared(venv::training()))
}

/// Returns the Python environment of the other clients, with nvcc.
pub fn clients_python() -> &'static Venv {
    static PYTHON: OnceLock<Venv> = OnceLock::new();
    PYTHON.get_or_init(|| prepared(venv::clients()))
}

/// A framework, and the stand-ins for NVIDIA's libraries that it finds.
#[derive(Debug)]
pub struct Framework {
    venv: Venv,
    stand_ins: PathBuf,
}

impl Framework {
    /// Puts the stand-ins into `folder` of the build folder, after building them if nobody did.
    fn with_stand_ins(venv: Venv, used: fn(&Venv) -> Result<String>, folder: &str) -> Self {
        let stand_ins = target().join("e2e-clients").join(folder);
        used(&venv)
            .and_then(|list| stand_ins::lay_out(&list, &built(&stand_ins::PACKAGES), &stand_ins))
            .unwrap_or_else(|error| panic!("the stand-ins for NVIDIA's libraries: {error:#}"));
        Self { venv, stand_ins }
    }

    /// Returns the path of the interpreter.
    pub fn python(&self) -> PathBuf {
        self.venv.python()
    }

    /// Returns the folder of the framework's packages, for PYTHONPATH.
    pub fn packages(&self) -> PathBuf {
        prepared(self.venv.packages())
    }

    /// Returns the path of the runtime library.
    pub fn runtime(&self) -> PathBuf {
        self.stand_ins.join(stand_ins::RUNTIME)
    }

    /// Returns a folder with Triton, for PYTHONPATH. `torch.compile` needs Triton. The folder has
    /// links to the package in the environment of PyTorch with NVIDIA's libraries.
    pub fn triton(&self) -> PathBuf {
        let packages = prepared(venv::framework("torch").and_then(|venv| venv.packages()));
        let folder = target().join("e2e-clients/triton");
        fs::create_dir_all(&folder).expect("the build folder is writable");
        let parts = children(&packages).into_iter().filter_map(|path| {
            let name = path.file_name()?.to_owned();
            name.to_string_lossy().starts_with("triton").then_some((path, name))
        });
        for (path, name) in parts {
            let link = folder.join(name);
            let _ = fs::remove_file(&link);
            symlink(path, link).expect("the build folder is writable");
        }
        folder
    }

    /// Returns a command that runs this Python, so that the framework finds the simulated driver
    /// and the stand-ins.
    pub fn prepared(&self, mut command: Command) -> Command {
        let folders = [&artefacts().simgpu, &self.stand_ins];
        command.env("LD_LIBRARY_PATH", env::join_paths(folders).expect("no colon in a build folder"));
        command
    }
}

/// Returns PyTorch without NVIDIA's libraries, and with the stand-ins.
pub fn torch() -> &'static Framework {
    static TORCH: OnceLock<Framework> = OnceLock::new();
    TORCH.get_or_init(|| {
        Framework::with_stand_ins(prepared(venv::torch_alone()), stand_ins::used_by_torch, "stand-ins")
    })
}

/// Returns TensorFlow with the stand-ins, which it finds before NVIDIA's libraries.
pub fn tensorflow() -> &'static Framework {
    static TENSORFLOW: OnceLock<Framework> = OnceLock::new();
    TENSORFLOW.get_or_init(|| {
        let venv = prepared(venv::framework("tensorflow"));
        Framework::with_stand_ins(venv, stand_ins::used_by_tensorflow, "stand-ins-tensorflow")
    })
}

/// Returns the Python environment with PyCUDA.
pub fn pycuda() -> Venv {
    prepared(venv::pycuda(clients_python(), &artefacts().simgpu))
}

/// Returns the Python environment with zig.
pub fn zig() -> Result<Venv> {
    venv::with_package("zig", ZIG)
}

/// Returns the folder of an environment's NVRTC.
pub fn nvrtc(venv: &Venv) -> PathBuf {
    venv.nvrtc().unwrap_or_else(|error| panic!("the Python clients: {error:#}"))
}

fn prepared<T>(venv: Result<T>) -> T {
    venv.unwrap_or_else(|error| panic!("the Python clients: {error:#}"))
}

/// Runs a command that takes long, and shows its output on standard error. Standard output is for
/// results. Returns an error if the command fails.
pub(crate) fn run_shown(command: &mut Command) -> Result<()> {
    command.stdin(Stdio::null()).stdout(io::stderr());
    let status = command.status().with_context(|| format!("{command:?}"))?;
    ensure!(status.success(), "{command:?} failed");
    Ok(())
}

/// Runs a command. Returns an error if the command fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?} failed:\n{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
