//! The Python environments of the test clients, pinned: tinygrad with NVIDIA's compiler library, and all the others.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::{build, command};

/// A Python environment with what `requirements.txt` names.
pub struct Venv {
    folder: PathBuf,
}

impl Venv {
    /// The environment's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The interpreter.
    pub fn python(&self) -> PathBuf {
        self.folder.join("bin/python")
    }

    /// The folder of `libnvrtc.so.*` and its builtins, for LD_LIBRARY_PATH; beside it is that of CUDA's headers.
    pub fn nvrtc(&self) -> Result<PathBuf> {
        let holds_nvrtc = |folder: &Path| {
            fs::read_dir(folder).is_ok_and(|mut entries| {
                entries.any(|entry| {
                    entry.is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with("libnvrtc.so"))
                })
            })
        };
        // lib/python3.X/site-packages/nvidia/TOOLKIT/lib
        children(&self.folder.join("lib"))
            .iter()
            .flat_map(|python| children(&python.join("site-packages/nvidia")))
            .map(|toolkit| toolkit.join("lib"))
            .find(|folder| holds_nvrtc(folder))
            .with_context(|| {
                format!("no libnvrtc.so* in {}: remove that folder and run again", self.folder.display())
            })
    }
}

fn children(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// Prepares `target/venv`, the training script's: all that the demo needs.
pub fn prepare() -> Result<Venv> {
    with_requirements("venv", "requirements.txt", &[])
}

/// Prepares `target/venv-clients`, that of the tests' other clients and their nvcc.
pub fn prepare_clients() -> Result<Venv> {
    with_requirements("venv-clients", "requirements-clients.txt", &[])
}

/// Prepares `target/venv-pycuda`. PyCUDA is built, with the headers that came with the other clients and the driver in `driver`: a minute.
pub fn prepare_pycuda(clients: &Venv, driver: &Path) -> Result<Venv> {
    let libraries = clients.nvrtc()?;
    let headers = libraries.with_file_name("include");
    // Where its build looks for what a user prefers is the home directory.
    let home = build::target().join("venv-pycuda-home");
    fs::create_dir_all(&home).with_context(|| format!("cannot create {}", home.display()))?;
    let settings = format!(
        "CUDA_INC_DIR = [{headers:?}]\nCUDADRV_LIB_DIR = [{driver:?}]\nCUDART_LIB_DIR = [{libraries:?}]\nCUDA_ENABLE_CURAND = False\n"
    );
    fs::write(home.join(".aksetup-defaults.py"), settings).context("cannot write PyCUDA's settings")?;
    // Nothing waits for it, so it need not be fast.
    let variables = [("HOME", home.as_os_str()), ("CFLAGS", OsStr::new("-O0"))];
    with_requirements("venv-pycuda", "requirements-pycuda.txt", &variables)
}

/// Prepares `target/venv-NAME` for a framework: gigabytes.
pub fn prepare_large(name: &str) -> Result<Venv> {
    with_requirements(&format!("venv-{name}"), &format!("requirements-{name}.txt"), &[])
}

/// Prepares an environment, unless an earlier run left it with the same requirements; `variables` are for what is built meanwhile.
fn with_requirements(name: &str, requirements: &str, variables: &[(&str, &OsStr)]) -> Result<Venv> {
    let requirements = crate::workspace().join("tests/workloads/python").join(requirements);
    let wanted = fs::read_to_string(&requirements)
        .with_context(|| format!("cannot read {}", requirements.display()))?;
    let venv = create(&build::target().join(name))?;
    // Written last: its presence says that everything it names is installed.
    let marker = venv.folder.join("deepres-requirements.txt");
    if fs::read_to_string(&marker).is_ok_and(|installed| installed == wanted) {
        return Ok(venv);
    }
    eprintln!(
        "installing the Python clients' requirements into {} (kept for the next run)",
        venv.folder.display()
    );
    // What is kept is the environment; another copy in pip's cache would be as large.
    let mut install = pip(&venv);
    install.args(["install", "--no-cache-dir", "-r"]).arg(&requirements).envs(variables.iter().copied());
    command::prepare(&mut install)?;
    fs::write(&marker, wanted).with_context(|| format!("cannot write {}", marker.display()))?;
    Ok(venv)
}

/// Prepares a further environment with one package, for a build tool that PyPI carries.
pub fn with_package(name: &str, package: &str) -> Result<Venv> {
    let venv = create(&build::target().join("tools").join(name))?;
    let marker = venv.folder.join("deepres-package.txt");
    if !fs::read_to_string(&marker).is_ok_and(|installed| installed == package) {
        eprintln!("installing {package} into {} (kept for the next run)", venv.folder.display());
        command::prepare(pip(&venv).args(["install", package]))?;
        fs::write(&marker, package).with_context(|| format!("cannot write {}", marker.display()))?;
    }
    Ok(venv)
}

/// `pip` of an environment; without its look for a newer self.
pub fn pip(venv: &Venv) -> Command {
    let mut pip = Command::new(venv.python());
    pip.args(["-m", "pip", "--disable-pip-version-check"]);
    pip
}

fn create(folder: &Path) -> Result<Venv> {
    let venv = Venv { folder: folder.to_owned() };
    if venv.python().exists() {
        return Ok(venv);
    }
    if !can_create() {
        bail!(
            "Python cannot create virtual environments here: `python3 -c 'import venv, ensurepip'` fails; \
             install it (Debian, Ubuntu: apt-get install python3-venv) and run again"
        );
    }
    command::prepare(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder))?;
    Ok(venv)
}

/// Whether Python is there with the modules that make an environment; Debian packs them apart.
pub fn can_create() -> bool {
    let mut python = Command::new("python3");
    python.args(["-c", "import venv, ensurepip"]).stdout(Stdio::null()).stderr(Stdio::null());
    python.status().is_ok_and(|status| status.success())
}
