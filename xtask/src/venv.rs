//! The Python environments of the test clients, pinned: tinygrad with NVIDIA's compiler library, and all the others.

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

    /// The folder of `libnvrtc.so.*` and its builtins, for LD_LIBRARY_PATH.
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
    with_requirements("venv", "requirements.txt")
}

/// Prepares `target/venv-clients`, that of the tests' other clients and their nvcc.
pub fn prepare_clients() -> Result<Venv> {
    with_requirements("venv-clients", "requirements-clients.txt")
}

/// Prepares `target/venv-torch`, gigabytes of it.
pub fn prepare_torch() -> Result<Venv> {
    with_requirements("venv-torch", "requirements-torch.txt")
}

/// Prepares an environment, unless an earlier run left it with the same requirements.
fn with_requirements(name: &str, requirements: &str) -> Result<Venv> {
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
    command::run(pip(&venv).arg("install").arg("-r").arg(&requirements))?;
    fs::write(&marker, wanted).with_context(|| format!("cannot write {}", marker.display()))?;
    Ok(venv)
}

/// Prepares a further environment with one package, for a build tool that PyPI carries.
pub fn with_package(name: &str, package: &str) -> Result<Venv> {
    let venv = create(&build::target().join("tools").join(name))?;
    let marker = venv.folder.join("deepres-package.txt");
    if !fs::read_to_string(&marker).is_ok_and(|installed| installed == package) {
        eprintln!("installing {package} into {} (kept for the next run)", venv.folder.display());
        command::run(pip(&venv).args(["install", package]))?;
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
    command::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder))?;
    Ok(venv)
}

/// Whether Python is there with the modules that make an environment; Debian packs them apart.
pub fn can_create() -> bool {
    let mut python = Command::new("python3");
    python.args(["-c", "import venv, ensurepip"]).stdout(Stdio::null()).stderr(Stdio::null());
    python.status().is_ok_and(|status| status.success())
}
