//! A host for the demo and the benchmarks: a daemon in a temporary directory, with a simulated or a
//! real GPU.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::build::Artefacts;
use crate::command;
use crate::process::{Interrupt, Running, ended};

/// Time limit for the daemon's first answer.
const START_LIMIT: Duration = Duration::from_secs(10);
/// Time between two requests to a daemon that is starting.
const START_POLL: Duration = Duration::from_millis(50);

/// The GPU that the tenants share.
pub enum Device {
    /// The simulated GPU, with this configuration.
    Simulated { config: Option<PathBuf> },
    /// The machine's GPU, through NVIDIA's driver.
    Real,
}

impl Device {
    /// Returns the machine's GPU if the machine has a GPU and an installed driver, else a simulated
    /// GPU.
    pub fn of_this_machine(config: PathBuf) -> Self {
        if Path::new("/dev/nvidia0").exists() && driver_is_installed() {
            Self::Real
        } else {
            Self::Simulated { config: Some(config) }
        }
    }

    /// Returns the device's name in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Simulated { .. } => "simulated",
            Self::Real => "real",
        }
    }
}

fn driver_is_installed() -> bool {
    // The path is absolute, because /sbin is not in every user's PATH.
    let mut known = Command::new("/sbin/ldconfig");
    known.arg("-p").stderr(Stdio::null());
    command::output(&mut known).is_ok_and(|libraries| libraries.contains("libcuda.so.1"))
}

/// A daemon and its directory. The drop ends the daemon and removes the directory.
pub struct Host {
    // Fields drop in this order: first the daemon, then its directory.
    daemon: Running,
    directory: tempfile::TempDir,
    device: Device,
    deepres: PathBuf,
    simgpu: PathBuf,
}

impl Host {
    /// Starts a daemon, and waits until it answers.
    pub fn start(artefacts: &Artefacts, device: Device, interrupt: &Interrupt) -> Result<Self> {
        Self::configured(artefacts, device, interrupt, None)
    }

    /// Starts a daemon as [`Self::start`] does, with a configuration file.
    pub fn configured(
        artefacts: &Artefacts,
        device: Device,
        interrupt: &Interrupt,
        config: Option<&Path>,
    ) -> Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("deepres-xtask-")
            .tempdir()
            .context("cannot create a temporary directory")?;
        let mut command = Command::new(artefacts.deepres());
        command.args(["daemon", "--log", "warn"]);
        if let Some(config) = config {
            command.arg("--config").arg(config);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        environment(&mut command, directory.path(), &device, &artefacts.simgpu(), &[]);
        let daemon = Running::start(&mut command)?;
        let mut host =
            Self { daemon, directory, device, deepres: artefacts.deepres(), simgpu: artefacts.simgpu() };
        let deadline = Instant::now() + START_LIMIT;
        loop {
            interrupt.check()?;
            if host.answers() {
                return Ok(host);
            }
            if let Some(status) = host.daemon.exited()? {
                bail!("the daemon {} before it answered: {}", ended(status), host.daemon.shown());
            }
            if Instant::now() > deadline {
                bail!("the daemon did not answer within {START_LIMIT:?}: {}", host.daemon.shown());
            }
            thread::sleep(START_POLL);
        }
    }

    /// Returns the GPU that the tenants share.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the daemon's process id.
    pub fn daemon_pid(&self) -> u32 {
        self.daemon.id()
    }

    /// Returns the path of the admin socket.
    fn admin_socket(&self) -> PathBuf {
        self.directory.path().join("admin.sock")
    }

    /// Returns the folder of the simulated GPU's state.
    pub fn simgpu_state(&self) -> PathBuf {
        simgpu_state(self.directory.path())
    }

    /// Returns the command `deepres` on this host. Clients of this command look for libraries in
    /// `folders` first.
    pub fn deepres(&self, folders: &[&Path]) -> Command {
        let mut command = Command::new(&self.deepres);
        environment(&mut command, self.directory.path(), &self.device, &self.simgpu, folders);
        command
    }

    /// Returns a command that runs a program on this host. The program finds this host's driver and
    /// daemon.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        environment(&mut command, self.directory.path(), &self.device, &self.simgpu, &[]);
        command
    }

    /// Returns the answer of `deepres ps`.
    pub fn ps(&self) -> Result<Ps> {
        let mut command = self.deepres(&[]);
        let text = command::output(command.args(["ps", "--json"]))?;
        serde_json::from_str(&text)
            .with_context(|| format!("cannot read the output of {}: {text}", command::shown(&command)))
    }

    /// Returns the UUID of the first GPU, as the stub driver takes it in `STUB_DRIVER_UUID`.
    pub fn stub_uuid(&self) -> Result<String> {
        let uuid = self.ps()?.gpus.first().context("the daemon knows no GPU")?.uuid.clone();
        Ok(uuid.trim_start_matches("GPU-").replace('-', ""))
    }

    fn answers(&self) -> bool {
        let mut command = self.deepres(&[]);
        command.args(["ps", "--json"]).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }
}

fn simgpu_state(directory: &Path) -> PathBuf {
    directory.join("simgpu")
}

fn environment(command: &mut Command, directory: &Path, device: &Device, simgpu: &Path, folders: &[&Path]) {
    let mut library_path: Vec<PathBuf> = folders.iter().map(|folder| (*folder).to_owned()).collect();
    command.env("DEEPRES_DIR", directory);
    match device {
        Device::Simulated { config } => {
            library_path.push(simgpu.to_owned());
            command.env("SIMGPU_STATE", simgpu_state(directory));
            if let Some(config) = config {
                command.env("SIMGPU_CONFIG", config);
            }
        }
        Device::Real => {
            library_path.extend(env::split_paths(&env::var_os("LD_LIBRARY_PATH").unwrap_or_default()))
        }
    }
    // The folders contain no colon.
    command.env("LD_LIBRARY_PATH", env::join_paths(&library_path).unwrap_or_else(|_| OsString::new()));
}

/// A connection to the daemon's admin socket. With this connection, a request needs no new process.
pub struct Admin(BufReader<UnixStream>);

impl Admin {
    /// Connects to the daemon of a host.
    pub fn connect(host: &Host) -> Result<Self> {
        let path = host.admin_socket();
        let stream =
            UnixStream::connect(&path).with_context(|| format!("cannot connect to {}", path.display()))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a request, and returns the line of the reply.
    pub fn ask(&mut self, request: &Value) -> Result<String> {
        writeln!(self.0.get_mut(), "{request}")?;
        let mut reply = String::new();
        self.0.read_line(&mut reply)?;
        Ok(reply)
    }

    /// Returns the answer of `deepres ps`, over this connection.
    pub fn status(&mut self) -> Result<Ps> {
        let reply = self.ask(&json!({ "op": "status" }))?;
        serde_json::from_str(&reply).with_context(|| format!("cannot read the reply {reply}"))
    }
}

/// The parts of `deepres ps --json` that the tasks read.
#[derive(Clone, Debug, Deserialize)]
pub struct Ps {
    pub now_ns: u64,
    pub gpus: Vec<Gpu>,
    pub tenants: Vec<Tenant>,
}

/// A GPU in the status.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Gpu {
    pub uuid: String,
    /// Time in which at least two tenants had work running or waiting, ns.
    pub contended_ns: u64,
    pub handoffs: u64,
    /// Recent mean cost of a hand-off, ns.
    pub handoff_ns: u64,
    pub handoff_p50_ns: u64,
    pub handoff_p99_ns: u64,
    pub quantum_ns: u64,
    /// 99th percentile of the latest turns of the arbiter, ns.
    pub turn_p99_ns: u64,
}

/// A tenant in the status.
#[derive(Clone, Debug, Deserialize)]
pub struct Tenant {
    pub name: String,
    pub memory_limit_bytes: Option<u64>,
    /// Whether the tenant is suspended.
    #[serde(default)]
    pub suspended: bool,
    pub gpus: Vec<TenantGpu>,
    pub sessions: Vec<Session>,
}

/// A tenant's figures on one GPU since its start.
#[derive(Clone, Debug, Deserialize)]
pub struct TenantGpu {
    pub gpu: usize,
    /// Entitlement, parts per million. `None` while the tenant has no session on this GPU.
    pub entitled_ppm: Option<u64>,
    pub gpu_ns: u64,
    pub wanted_ns: u64,
    /// Time in which another tenant wanted the GPU too, ns.
    pub contended_ns: u64,
    /// The tenant's part of `contended_ns`, ns.
    pub owed_ns: u64,
    pub wait_ns: u64,
    pub kernel_launches: u64,
    pub graph_launches: u64,
    pub memory_bytes: u64,
    #[serde(default)]
    pub memory_by_kind: BTreeMap<String, u64>,
}

/// A process of a tenant in the status.
#[derive(Clone, Debug, Deserialize)]
pub struct Session {
    pub pid: u32,
}

impl Ps {
    /// Returns the tenant of this name with its figures on GPU 0; `None` until the tenant has a
    /// session there.
    pub fn on_first_gpu(&self, name: &str) -> Option<(&Tenant, &TenantGpu)> {
        let tenant = self.tenants.iter().find(|tenant| tenant.name == name)?;
        Some((tenant, tenant.gpus.iter().find(|gpu| gpu.gpu == 0)?))
    }
}
