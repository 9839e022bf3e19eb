//! Programs that work piece by piece, or all the time. The programs run as tenants of a host, or
//! without deepres. This module reads their reports, and their GPU time from the simulated GPU's
//! record.

use std::io::{BufRead as _, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use simgpu_engine::truth;

use crate::build::{self, Artefacts};
use crate::host::{Device, Host};
use crate::process::{Interrupt, Running};

/// Configuration of the simulated GPU, with the times of the clients' kernels. The GPU takes 1 µs
/// more for each launch.
const SIMGPU_TOML: &str = "kernel = [
    { name = \"quick\", ns = 2000 },
    { name = \"busy_200us\", ns = 200000 },
    { name = \"busy_1000us\", ns = 1000000 },
]
";
/// Time of the longest of these kernels, with its launch, ms.
pub const LONG_KERNEL_MS: f64 = 1.001;
/// Time from the last client's first launch to the first observation.
pub const SETTLED: Duration = Duration::from_millis(700);
/// Line that a client prints when it begins to launch.
const READY: &str = "ready";

/// The built programs and settings that clients need.
pub struct Kit {
    artefacts: Artefacts,
    serve: PathBuf,
    pace: PathBuf,
    config: PathBuf,
    pub interrupt: Interrupt,
}

/// A tenant, or a program without deepres.
pub struct Client {
    running: Running,
    lines: Lines<BufReader<ChildStdout>>,
}

/// The way in which a client runs.
#[derive(Clone, Copy)]
pub enum As<'a> {
    /// As a tenant, with these options of `deepres run`.
    Tenant(&'a [&'a str]),
    /// Without deepres, as a bare program.
    Bare,
}

/// The times that pieces of work took, microseconds.
#[derive(Debug, Clone, Copy, Deserialize, Serialize)]
pub struct Times {
    pub mean: f64,
    pub p50: f64,
    pub p99: f64,
}

/// The report that `serve` prints at its end.
#[derive(Debug, Clone, Deserialize)]
pub struct Served {
    pub pieces: u64,
    pub seconds: f64,
    pub took_us: Times,
    pub launch_us: Times,
}

impl Served {
    /// Returns the number of pieces of work for each second of the run.
    pub fn speed(&self) -> f64 {
        self.pieces as f64 / self.seconds
    }
}

impl Kit {
    /// Builds the product and the clients.
    pub fn new() -> Result<Self> {
        let artefacts = build::artefacts()?;
        let (serve, pace) = (build::c_client("serve")?, build::c_client("pace")?);
        let config = build::target().join("deepres/pieces-simgpu.toml");
        std::fs::write(&config, SIMGPU_TOML).with_context(|| format!("cannot write {}", config.display()))?;
        Ok(Self { artefacts, serve, pace, config, interrupt: Interrupt::catch()? })
    }

    /// Starts a host without tenants.
    pub fn host(&self) -> Result<Host> {
        let device = Device::Simulated { config: Some(self.config.clone()) };
        Host::start(&self.artefacts, device, &self.interrupt)
    }

    /// Starts a host as [`Self::host`] does, with the lines `toml` in the daemon's configuration.
    pub fn configured_host(&self, toml: &str) -> Result<Host> {
        let device = Device::Simulated { config: Some(self.config.clone()) };
        let config = build::target().join("deepres/pieces-daemon.toml");
        std::fs::write(&config, toml).with_context(|| format!("cannot write {}", config.display()))?;
        Host::configured(&self.artefacts, device, &self.interrupt, Some(&config))
    }

    /// Starts the client `serve`.
    pub fn serve(&self, host: &Host, how: As<'_>, arguments: &[&str]) -> Result<Client> {
        start(host, how, &self.serve, arguments)
    }

    /// Starts the client `pace`. The steps of a client decide whether the client is backlogged.
    pub fn pace(&self, host: &Host, how: As<'_>, arguments: &[&str]) -> Result<Client> {
        start(host, how, &self.pace, arguments)
    }
}

/// Starts a client on a host, and waits until it launches.
pub fn start(host: &Host, how: As<'_>, program: &Path, arguments: &[&str]) -> Result<Client> {
    let mut command = match how {
        As::Tenant(options) => {
            let mut command = host.deepres(&[]);
            command.arg("run").args(options).arg("--").arg(program);
            command
        }
        As::Bare => {
            let mut command: Command = host.command(program);
            command.env("DEEPRES_DISABLE", "1");
            command
        }
    };
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut running = Running::start(&mut command)?;
    let output = running.child().stdout.take().context("the output was piped")?;
    let mut lines = BufReader::new(output).lines();
    let line = lines.next().transpose()?.unwrap_or_default();
    ensure!(line == READY, "the client printed {line:?}: {}", running.shown());
    Ok(Client { running, lines })
}

impl Client {
    /// Waits until the client `serve` has ended by itself, and returns its report.
    pub fn served(mut self) -> Result<Served> {
        let line = self.lines.next().transpose()?.unwrap_or_default();
        let served = serde_json::from_str(&line)
            .with_context(|| format!("the client printed {line:?}: {}", self.running.shown()))?;
        self.running.finish()?;
        Ok(served)
    }

    /// Fails if the client has ended.
    pub fn still_runs(&mut self) -> Result<()> {
        ensure!(self.running.exited()?.is_none(), "the client ended too early: {}", self.running.shown());
        Ok(())
    }

    /// Returns the process that uses the GPU: the client itself, or the only process of the tenant
    /// `tenant`.
    pub fn pid(&self, host: &Host, how: As<'_>, tenant: &str) -> Result<u32> {
        if let As::Bare = how {
            return Ok(self.running.id());
        }
        let ps = host.ps()?;
        let (tenant, _) =
            ps.on_first_gpu(tenant).with_context(|| format!("{tenant} has no session on the GPU"))?;
        let [session] = &tenant.sessions[..] else {
            bail!("{} has {} processes", tenant.name, tenant.sessions.len())
        };
        Ok(session.pid)
    }
}

/// Reads the simulated GPU's record of a host: the true GPU time of each process.
pub fn record(host: &Host) -> Result<truth::Snapshot> {
    truth::snapshot(&host.simgpu_state()).context("the simulated GPU's record")
}

/// Returns the kernel time of a process so far, ns.
pub fn kernels_ns(record: &truth::Snapshot, pid: u32) -> u64 {
    let found = record.processes.iter().find(|process| process.pid == pid);
    found.and_then(|process| process.gpus.first()).map_or(0, |gpu| gpu.kernel_busy_ns)
}
