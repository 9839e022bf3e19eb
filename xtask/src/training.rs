//! The unmodified training scripts, which the demo and a benchmark run as tenants.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::build::{self, Artefacts};
use crate::host::Host;
use deepres_e2e::demo::TORCH_SCRIPT;
use deepres_e2e::stand_ins;
use deepres_e2e::venv::{self, Venv};

/// The tinygrad script, relative to the workspace.
pub const SCRIPT: &str = "tests/workloads/python/train.py";

/// Returns the configuration of the simulated GPU, with the times of the tinygrad script's kernels.
pub fn simgpu_config() -> PathBuf {
    crate::workspace().join("tests/workloads/simgpu-demo.toml")
}

/// Returns the configuration of the simulated GPU, with the times of the PyTorch script's kernels.
pub fn torch_simgpu_config() -> PathBuf {
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
    /// PyTorch on the simulated GPU.
    Torch(Torch),
    /// PyTorch with NVIDIA's libraries.
    RealTorch(Venv),
}

impl Trainer {
    /// Returns tinygrad's script.
    pub fn tinygrad() -> Result<Self> {
        Ok(Self::Tinygrad(venv::training()?))
    }

    /// Returns PyTorch's script. Installs PyTorch first if the cache lacks it.
    pub fn torch(artefacts: &Artefacts, is_real: bool) -> Result<Self> {
        Ok(if is_real {
            Self::RealTorch(venv::framework("torch")?)
        } else {
            Self::Torch(Torch::new(artefacts)?)
        })
    }

    /// Returns the script, relative to the workspace.
    pub fn script(&self) -> &'static str {
        match self {
            Self::Tinygrad(_) => SCRIPT,
            Self::Torch(_) | Self::RealTorch(_) => TORCH_SCRIPT,
        }
    }

    /// Returns the configuration of the simulated GPU for the script's kernels.
    pub fn simgpu_config(&self) -> PathBuf {
        match self {
            Self::Tinygrad(_) => simgpu_config(),
            Self::Torch(_) | Self::RealTorch(_) => torch_simgpu_config(),
        }
    }

    /// Returns the command `deepres run OPTIONS -- SCRIPT ARGUMENTS` on a host. Files of the script
    /// go to the file `cache`.
    pub fn run(&self, host: &Host, options: &[&str], arguments: &[&str], cache: &Path) -> Result<Command> {
        match self {
            Self::Tinygrad(venv) => run(host, venv, options, arguments, cache),
            Self::Torch(torch) => Ok(torch.managed(host, options, TORCH_SCRIPT, arguments)),
            Self::RealTorch(venv) => {
                let mut command = host.deepres(&[]);
                command.arg("run").args(options).arg("--").arg(venv.python());
                command.arg(crate::workspace().join(TORCH_SCRIPT)).args(arguments);
                Ok(command)
            }
        }
    }
}

/// PyTorch on simulated GPUs, with the stand-ins for NVIDIA's libraries.
pub struct Torch {
    venv: Venv,
    stand_ins: PathBuf,
    simgpu: PathBuf,
}

impl Torch {
    /// Returns PyTorch. Installs PyTorch and builds the stand-ins first if they are missing.
    pub fn new(artefacts: &Artefacts) -> Result<Self> {
        let venv = venv::torch_alone()?;
        let stand_ins = artefacts.folder().join("stand-ins");
        stand_ins::lay_out(&stand_ins::used_by_torch(&venv)?, &build::stand_ins()?, &stand_ins)?;
        Ok(Self { venv, stand_ins, simgpu: artefacts.simgpu() })
    }

    /// Returns the command `deepres run OPTIONS -- SCRIPT ARGUMENTS` on a host.
    pub fn managed(&self, host: &Host, options: &[&str], script: &str, arguments: &[&str]) -> Command {
        let mut command = host.deepres(&[&self.stand_ins]);
        command.arg("run").args(options).arg("--").arg(self.venv.python());
        command.arg(crate::workspace().join(script)).args(arguments);
        command
    }

    /// Returns the command of a script without deepres, on a simulated GPU with the configuration
    /// `config` and the state in the folder `state`.
    pub fn bare(&self, config: &Path, state: &Path, script: &str, arguments: &[&str]) -> Result<Command> {
        let mut command = Command::new(self.venv.python());
        command.arg(crate::workspace().join(script)).args(arguments);
        command.env("SIMGPU_CONFIG", config).env("SIMGPU_STATE", state);
        command.env("LD_LIBRARY_PATH", env::join_paths([&self.simgpu, &self.stand_ins])?);
        Ok(command)
    }
}
