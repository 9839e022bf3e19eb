//! Where the built parts lie, and building them when nobody has.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use anyhow::{Context, Result, bail, ensure};

/// Folder with `deepres`, `libdeepres.so` and `simgpu/`. Set by `cargo xtask test`, which builds once for all.
const ARTEFACTS_VARIABLE: &str = "DEEPRES_ARTEFACTS";

/// A Python environment under `target/`, and how to make it.
struct Venv {
    /// Set by `cargo xtask test`, which prepares it.
    variable: &'static str,
    /// Where it is otherwise.
    folder: &'static str,
    requirements: &'static str,
}

/// tinygrad and NVRTC.
const TRAINING: Venv = Venv {
    variable: "DEEPRES_VENV",
    folder: "venv",
    requirements: "tests/workloads/python/requirements.txt",
};
/// The other Python clients, and nvcc.
const CLIENTS: Venv = Venv {
    variable: "DEEPRES_VENV_CLIENTS",
    folder: "venv-clients",
    requirements: "tests/workloads/python/requirements-clients.txt",
};

/// The packages behind the artefacts.
const PACKAGES: [&str; 4] = ["deepres-interposer", "deepres", "simgpu-cuda", "simgpu-nvml"];

/// The built parts.
#[derive(Debug)]
pub struct Artefacts {
    /// The folder of `deepres` and `libdeepres.so`.
    pub folder: PathBuf,
    /// The one binary.
    pub deepres: PathBuf,
    /// The library that is preloaded.
    pub library: PathBuf,
    /// The folder with the simulated `libcuda.so.1` and `libnvidia-ml.so.1`, for LD_LIBRARY_PATH.
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

/// The built parts, built first if the environment names none.
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
}

/// The built parts as users get them, for systems older than this one.
pub fn portable_artefacts() -> &'static Artefacts {
    static ARTEFACTS: OnceLock<Artefacts> = OnceLock::new();
    let dist = repository().join("dist");
    ARTEFACTS.get_or_init(|| {
        if env::var_os(ARTEFACTS_VARIABLE).is_none_or(|folder| Path::new(&folder) != dist) {
            let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            cargo.args(["xtask", "dist"]).current_dir(repository());
            run(&mut cargo).unwrap_or_else(|error| panic!("the parts for old systems: {error:#}"));
        }
        Artefacts::in_folder(dist).unwrap_or_else(|error| panic!("the parts for old systems: {error:#}"))
    })
}

/// zig's C compiler (which `cargo xtask dist` installs): it makes programs for other C libraries than this machine's.
pub(crate) fn zig_cc() -> Command {
    let mut zig = Command::new(target().join("tools/zig/bin/python"));
    zig.args(["-m", "ziglang", "cc"]);
    zig
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
    ] {
        // Test binaries start one after the other, so the replacement races with nobody.
        let _ = fs::remove_file(&to);
        std::os::unix::fs::symlink(built.join(from), &to)
            .with_context(|| format!("linking {}", to.display()))?;
    }
    Ok(folder)
}

/// A Python with a client's requirements, and the folder of its NVRTC.
#[derive(Debug)]
pub struct Python {
    /// The interpreter.
    pub interpreter: PathBuf,
    /// For LD_LIBRARY_PATH.
    pub nvrtc: PathBuf,
}

/// The training script's Python environment, prepared first if it is not there.
pub fn python() -> &'static Python {
    static PYTHON: OnceLock<Python> = OnceLock::new();
    PYTHON.get_or_init(|| TRAINING.find_or_make())
}

/// The Python environment of the other clients, with nvcc in it; prepared first if it is not there.
pub fn clients_python() -> &'static Python {
    static PYTHON: OnceLock<Python> = OnceLock::new();
    PYTHON.get_or_init(|| CLIENTS.find_or_make())
}

/// Set by `cargo xtask test`, which builds PyCUDA.
const PYCUDA_VARIABLE: &str = "DEEPRES_VENV_PYCUDA";

/// The Python that has PyCUDA.
pub fn pycuda_interpreter() -> PathBuf {
    let venv = env::var_os(PYCUDA_VARIABLE).map_or_else(|| target().join("venv-pycuda"), PathBuf::from);
    let interpreter = venv.join("bin/python");
    assert!(interpreter.exists(), "{} is not there: `cargo xtask test` builds PyCUDA", interpreter.display());
    interpreter
}

impl Venv {
    fn find_or_make(&self) -> Python {
        self.try_find_or_make().unwrap_or_else(|error| panic!("the Python clients: {error:#}"))
    }

    fn try_find_or_make(&self) -> Result<Python> {
        let venv = env::var_os(self.variable).map_or_else(|| target().join(self.folder), PathBuf::from);
        let interpreter = venv.join("bin/python");
        if nvrtc_folder(&venv).is_err() {
            let requirements = repository().join(self.requirements);
            run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
            run(Command::new(&interpreter)
                .args(["-m", "pip", "install", "--quiet", "-r"])
                .arg(requirements))?;
        }
        Ok(Python { interpreter, nvrtc: nvrtc_folder(&venv)? })
    }
}

fn nvrtc_folder(venv: &Path) -> Result<PathBuf> {
    for python in fs::read_dir(venv.join("lib"))?.flatten() {
        let Ok(toolkits) = fs::read_dir(python.path().join("site-packages/nvidia")) else { continue };
        for toolkit in toolkits.flatten() {
            let folder = toolkit.path().join("lib");
            let Ok(mut files) = fs::read_dir(&folder) else { continue };
            if files.any(|file| {
                file.is_ok_and(|file| file.file_name().to_string_lossy().starts_with("libnvrtc.so"))
            }) {
                return Ok(folder);
            }
        }
    }
    bail!("no libnvrtc.so under {}", venv.display())
}

/// Runs a command that has to succeed.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?} failed:\n{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
