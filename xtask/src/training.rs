//! The unmodified training scripts, which the demo and a benchmark run as tenants.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::build::{self, Artefacts};
use crate::host::Host;
use deepres_e2e::stand_ins;
use deepres_e2e::venv::{self, Venv};

/// The tinygrad script, relative to the workspace.
pub const SCRIPT: &str = "tests/workloads/python/train.py";
/// The PyTorch script, relative to the workspace.
pub const TORCH_SCRIPT: &str = "tests/workloads/python/torch_train.py";

/// Returns the configuration of the simulated GPU, with the times of the tinygrad script's kernels.
pub fn simgpu_config() -> PathBuf {
    crate::workspace().join("tests/workloads/simgpu-demo.toml")
}

/// Returns the configuration of the simulated GPU, with the times of the PyTorch script's kernels.
fn torch_simgpu_config() -> PathBuf {
    crate::workspace().join("tests/workloads/simgpu-torch.toml")
}

/// Returns the command `deepres run OPTIONS -- SCRIPT ARGUMENTS` on a host. The script keeps its
/// compiled kernels in the file `cache`.
pub fn run(host: &Host, venv: &Venv, options: &[&str], arguments: &[&str], cache: &Path) -> Result<Command> {
    let mut command = host.deepres(&[&venv.nvrtc()?]);
    command.arg("run").args(options).arg("--").arg(venv.python());
    command.arg(crate::workspace().join(SCRIPT)).args(arguments);
    command.env("DEV", "CUDA").env("CACHEDB", cache);
    Ok(command)
}

/// A training script with its environment.
pub enum Trainer {
    /// tinygrad with NVIDIA's NVRTC.
    Tinygrad(Venv),
    /// PyTorch, on the simulated GPU with the folder of the stand-ins for NVIDIA's libraries.
    Torch { venv: Venv, stand_ins: Option<PathBuf> },
}

impl Trainer {
    /// Returns tinygrad's script.
    pub fn tinygrad() -> Result<Self> {
        Ok(Self::Tinygrad(venv::training()?))
    }

    /// Returns PyTorch's script. Installs PyTorch first if the cache lacks it.
    pub fn torch(artefacts: &Artefacts, is_real: bool) -> Result<Self> {
        if is_real {
            return Ok(Self::Torch { venv: venv::framework("torch")?, stand_ins: None });
        }
        let venv = venv::torch_alone()?;
        let folder = artefacts.folder().join("stand-ins");
        stand_ins::lay_out(&stand_ins::used_by_torch(&venv)?, &build::stand_ins()?, &folder)?;
        Ok(Self::Torch { venv, stand_ins: Some(folder) })
    }

    /// Returns the script, relative to the workspace.
    pub fn script(&self) -> &'static str {
        match self {
            Self::Tinygrad(_) => SCRIPT,
            Self::Torch { .. } => TORCH_SCRIPT,
        }
    }

    /// Returns the configuration of the simulated GPU for the script's kernels.
    pub fn simgpu_config(&self) -> PathBuf {
        match self {
            Self::Tinygrad(_) => simgpu_config(),
            Self::Torch { .. } => torch_simgpu_config(),
        }
    }

    /// Returns the command `deepres run OPTIONS -- SCRIPT ARGUMENTS` on a host. Files of the script
    /// go to the file `cache`.
    pub fn run(&self, host: &Host, options: &[&str], arguments: &[&str], cache: &Path) -> Result<Command> {
        let (venv, stand_ins) = match self {
            Self::Tinygrad(venv) => return run(host, venv, options, arguments, cache),
            Self::Torch { venv, stand_ins } => (venv, stand_ins),
        };
        let folders: Vec<&Path> = stand_ins.iter().map(PathBuf::as_path).collect();
        let mut command = host.deepres(&folders);
        command.arg("run").args(options).arg("--").arg(venv.python());
        command.arg(crate::workspace().join(TORCH_SCRIPT)).args(arguments);
        Ok(command)
    }
}
