//! The Python environments of the clients, with pinned requirements, in the [`cache`].

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    artefacts::{repository, run, run_shown},
    cache, stand_ins,
};

/// Frameworks from PyPI. Each framework has an environment of its own, of some GB.
pub const FRAMEWORKS: [&str; 3] = ["torch", "tensorflow", "jax"];

/// A Python environment.
#[derive(Debug)]
pub struct Venv {
    folder: PathBuf,
}

impl Venv {
    /// Returns the environment's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of the interpreter.
    pub fn python(&self) -> PathBuf {
        self.folder.join("bin/python")
    }

    /// Returns the folder of the packages: `lib/python3.X/site-packages`.
    pub fn packages(&self) -> Result<PathBuf> {
        let pythons = children(&self.folder.join("lib"));
        let mut folders = pythons.iter().map(|python| python.join("site-packages"));
        folders
            .find(|folder| folder.is_dir())
            .with_context(|| format!("no packages in {}", self.folder.display()))
    }

    /// Returns the folder of `libnvrtc.so.*` and its builtins, for LD_LIBRARY_PATH. CUDA's headers
    /// are in `../include`.
    pub fn nvrtc(&self) -> Result<PathBuf> {
        let holds_nvrtc = |folder: &Path| {
            children(folder).iter().any(|file| {
                file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libnvrtc.so"))
            })
        };
        // The folder is PACKAGES/nvidia/TOOLKIT/lib.
        children(&self.packages()?.join("nvidia"))
            .iter()
            .map(|toolkit| toolkit.join("lib"))
            .find(|folder| holds_nvrtc(folder))
            .with_context(|| {
                format!("no libnvrtc.so* in {}: remove that folder and run again", self.folder.display())
            })
    }

    /// Returns the command `pip` of this environment. The command does not search for a newer
    /// version of itself.
    pub fn pip(&self) -> Command {
        let mut pip = Command::new(self.python());
        pip.args(["-m", "pip", "--disable-pip-version-check"]);
        pip
    }
}

/// Returns the paths of what a folder contains. A folder that cannot be read is empty.
pub(crate) fn children(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// Returns the environment of the training script: tinygrad and NVRTC. Makes the environment first
/// if the cache lacks it.
pub fn training() -> Result<Venv> {
    with_requirements("venv", "requirements.txt", &Recipe::default())
}

/// Returns the environment of the tests' other clients, with nvcc. Makes the environment first if
/// the cache lacks it.
pub fn clients() -> Result<Venv> {
    with_requirements("venv-clients", "requirements-clients.txt", &Recipe::default())
}

/// Returns the environment with PyCUDA. If the cache lacks it, pip compiles PyCUDA with the headers
/// of `clients` and links it to the driver in the folder `driver`.
pub fn pycuda(clients: &Venv, driver: &Path) -> Result<Venv> {
    let libraries = clients.nvrtc()?;
    let headers = libraries.with_file_name("include");
    // PyCUDA's build reads its settings from the home directory.
    let home = cache::folder().join("venv-pycuda-home");
    fs::create_dir_all(&home).with_context(|| format!("cannot create {}", home.display()))?;
    let settings = format!(
        "CUDA_INC_DIR = [{headers:?}]\nCUDADRV_LIB_DIR = [{driver:?}]\nCUDART_LIB_DIR = [{libraries:?}]\n\
         CUDA_ENABLE_CURAND = False\n"
    );
    fs::write(home.join(".aksetup-defaults.py"), settings).context("cannot write PyCUDA's settings")?;
    // No test measures PyCUDA's own speed.
    let variables = [("HOME", home.as_os_str()), ("CFLAGS", OsStr::new("-O0"))];
    let recipe =
        Recipe { further: headers.display().to_string(), variables: &variables, ..Recipe::default() };
    with_requirements("venv-pycuda", "requirements-pycuda.txt", &recipe)
}

/// Returns the environment with PyTorch and without NVIDIA's libraries, for the stand-ins. Makes
/// the environment first if the cache lacks it.
pub fn torch_alone() -> Result<Venv> {
    let recipe = Recipe { options: &["--no-deps"], then: Some(stand_ins::note_imports), ..Recipe::default() };
    with_requirements("venv-torch-alone", "requirements-torch-alone.txt", &recipe)
}

/// Returns the environment with a Jupyter kernel. Makes the environment first if the cache lacks
/// it.
pub fn jupyter() -> Result<Venv> {
    with_requirements("venv-jupyter", "requirements-jupyter.txt", &Recipe::default())
}

/// Returns the environment with Ray. Makes the environment first if the cache lacks it.
pub fn ray() -> Result<Venv> {
    with_requirements("venv-ray", "requirements-ray.txt", &Recipe::default())
}

/// Returns the environment with Helm and the schemas of Kubernetes. Makes the environment first if
/// the cache lacks it.
pub fn kubernetes() -> Result<Venv> {
    with_requirements("venv-kubernetes", "requirements-kubernetes.txt", &Recipe::default())
}

/// Returns the script of axe-core, which checks the accessibility of the page that runs it. Makes
/// the environment with the script first if the cache lacks it.
pub fn axe() -> Result<PathBuf> {
    let recipe = Recipe { options: &["--no-deps"], ..Recipe::default() };
    let venv = with_requirements("venv-axe", "requirements-axe.txt", &recipe)?;
    Ok(venv.packages()?.join("axe_playwright_python/axe.min.js"))
}

/// Returns the environment of one of the [`FRAMEWORKS`]. Makes the environment first if the cache
/// lacks it.
pub fn framework(name: &str) -> Result<Venv> {
    with_requirements(&format!("venv-{name}"), &format!("requirements-{name}.txt"), &Recipe::default())
}

/// Returns an environment with one package, for a build tool from PyPI. Makes the environment first
/// if the cache lacks it.
pub fn with_package(name: &str, package: &str) -> Result<Venv> {
    make(name, package, |venv| run(venv.pip().args(["install", "--no-cache-dir", package])))
}

/// The settings of a Python environment, in addition to its requirements.
#[derive(Default)]
struct Recipe<'a> {
    /// Further text that belongs to the recipe.
    further: String,
    /// Options of pip.
    options: &'a [&'a str],
    /// The variables of packages that pip builds.
    variables: &'a [(&'a str, &'a OsStr)],
    /// Work after the installation.
    then: Option<fn(&Venv) -> Result<()>>,
}

/// Returns an environment with pinned requirements, and makes it first if the cache lacks it.
fn with_requirements(name: &str, requirements: &str, recipe: &Recipe<'_>) -> Result<Venv> {
    let requirements = repository().join("tests/workloads/python").join(requirements);
    let wanted = fs::read_to_string(&requirements)
        .with_context(|| format!("cannot read {}", requirements.display()))?;
    make(name, &format!("{wanted}{}", recipe.further), |venv| {
        // The cache keeps the environment itself. A second copy in pip's cache would be as large.
        let mut install = venv.pip();
        install.args(["install", "--no-cache-dir"]).args(recipe.options).arg("-r").arg(&requirements);
        // A framework takes gigabytes, so the user sees how far pip is.
        run_shown(install.envs(recipe.variables.iter().copied()))?;
        recipe.then.map_or(Ok(()), |then| then(venv))
    })
}

fn make(name: &str, recipe: &str, install: impl FnOnce(&Venv) -> Result<()>) -> Result<Venv> {
    let recipe = format!("{}{recipe}", python_version()?);
    let folder = cache::entry(name, &recipe, |folder| {
        eprintln!("installing the Python environment {} (kept for the next run)", folder.display());
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder))?;
        install(&Venv { folder: folder.to_owned() })
    })?;
    Ok(Venv { folder })
}

/// Returns the text `sys.prefix sys.version` of Python. Fails if Python cannot make environments.
fn python_version() -> Result<&'static str> {
    static VERSION: OnceLock<Option<String>> = OnceLock::new();
    let version = VERSION.get_or_init(|| {
        // Debian packages the modules that make environments separately from Python.
        let mut python = Command::new("python3");
        python.args(["-c", "import sys, venv, ensurepip; print(sys.prefix, sys.version)"]);
        let output = python.stderr(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    });
    match version {
        Some(version) => Ok(version),
        None => bail!(
            "Python cannot create virtual environments here: `python3 -c 'import venv, ensurepip'` fails; \
             install it (Debian, Ubuntu: apt-get install python3-venv) and run again"
        ),
    }
}

/// Returns whether Python can make environments.
pub fn can_create() -> bool {
    python_version().is_ok()
}
