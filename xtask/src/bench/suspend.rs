//! `cargo xtask bench suspend`: two trainers, each with 60 % of the GPU's memory, take turns on the
//! whole GPU. The benchmark compares their time together with the time of two runs one after the
//! other.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use simgpu_engine::truth;

use super::bar;
use crate::build::{self, Artefacts};
use crate::host::{Device, Host};
use crate::process::{Interrupt, Running, ended};
use crate::training;
use deepres_e2e::venv::{self, Venv};

/// The names of the two tenants that take turns.
const TENANTS: [&str; 2] = ["one", "other"];
/// Time between two looks at a trainer and its memory.
const POLL: Duration = Duration::from_millis(20);
/// Number of looks in each turn. The looks show which tenant is suspended.
const LOOKS_EACH_TURN: u32 = 4;
/// Memory of the GPU for a trainer alone: more than the trainer wants.
const AMPLE_BYTES: u64 = 8 << 30;
/// Bytes that move to the host or back in a microsecond. At this low rate, the cost of moving
/// shows.
const BYTES_PER_US: u64 = 4_000;
/// The least speed, relative to one trainer after the other. The loss by moving memory is not
/// subtracted yet.
const LEAST_FRACTION: f64 = 0.95;

/// Options of `cargo xtask bench suspend`.
#[derive(clap::Args)]
pub struct Options {
    /// Number of steps of each trainer
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    steps: u32,
    /// Time that each trainer stays on the GPU before the other gets it, ms
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    turn_ms: u64,
}

#[derive(Serialize)]
struct Report {
    steps: u32,
    turn_ms: u64,
    host_bytes_per_us: u64,
    /// Median of a trainer's memory, bytes.
    usual_bytes: u64,
    /// Maximum of a trainer's memory, bytes.
    most_bytes: u64,
    gpu_bytes: u64,
    one_after_the_other_s: f64,
    together_s: f64,
    /// Time of one trainer after the other, divided by the time of both together.
    speed: f64,
    /// Time for moving memory when the turn changes, as a part of a turn.
    moving_fraction: f64,
    least_speed: f64,
    /// Number of suspensions of a tenant.
    suspensions: usize,
}

/// Runs both trainers, one after the other and together, and returns the figures.
pub fn run(options: &Options) -> Result<impl super::Report> {
    let bench = Bench {
        options,
        artefacts: build::artefacts()?,
        venv: venv::training()?,
        interrupt: Interrupt::catch()?,
        folder: tempfile::tempdir().context("cannot create a temporary directory")?,
    };
    let report = bench.measure()?;
    // Without suspensions, the benchmark has measured nothing.
    ensure!(
        report.suspensions >= TENANTS.len(),
        "the GPU had room for both trainers at once; give more --steps"
    );
    Ok(report)
}

impl super::Report for Report {
    fn print(&self) {
        println!(
            "two trainers of {} bytes, {} at most, on a GPU of {}; {} steps each; turns of {} ms; {} bytes/µs to the host and back",
            self.usual_bytes,
            self.most_bytes,
            self.gpu_bytes,
            self.steps,
            self.turn_ms,
            self.host_bytes_per_us
        );
        println!(
            "{:.1} s one after the other, {:.1} s together with {} suspensions: {:.3} of that speed (at least {:.3})",
            self.one_after_the_other_s, self.together_s, self.suspensions, self.speed, self.least_speed
        );
    }

    fn bars(&self) -> Vec<(String, bool)> {
        vec![bar("speed of two in turns", self.speed >= self.least_speed)]
    }
}

struct Bench<'a> {
    options: &'a Options,
    artefacts: Artefacts,
    venv: Venv,
    interrupt: Interrupt,
    folder: tempfile::TempDir,
}

impl Bench<'_> {
    fn measure(&self) -> Result<Report> {
        let (usual_bytes, most_bytes, alone) = self.one_after_the_other()?;
        // The trainers' median memory is 60 % of the GPU's. Their short peaks might never coincide.
        let gpu_bytes = (usual_bytes * 10 / 6).max(most_bytes);
        let (together, suspensions) = self.together(gpu_bytes)?;
        // A change of turns moves one tenant's memory to the host, and the other tenant's memory
        // back.
        let moving_ms = (2 * most_bytes / BYTES_PER_US) as f64 / 1e3;
        let moving_fraction = moving_ms / self.options.turn_ms as f64;
        Ok(Report {
            steps: self.options.steps,
            turn_ms: self.options.turn_ms,
            host_bytes_per_us: BYTES_PER_US,
            usual_bytes,
            most_bytes,
            gpu_bytes,
            one_after_the_other_s: alone.as_secs_f64(),
            together_s: together.as_secs_f64(),
            speed: alone.as_secs_f64() / together.as_secs_f64(),
            moving_fraction,
            least_speed: LEAST_FRACTION * (1.0 - moving_fraction),
            suspensions,
        })
    }

    /// Runs two trainers one after the other, with ample memory. Returns the median and the maximum
    /// of a trainer's memory, bytes, and the time of both trainers.
    fn one_after_the_other(&self) -> Result<(u64, u64, Duration)> {
        let host = self.host(AMPLE_BYTES, "")?;
        // The benchmark does not measure the first run, because it compiles the kernels. Later runs
        // find the compiled kernels.
        self.finish(self.start(&host, "first")?, || ())?;
        let begun = Instant::now();
        let (mut usual_bytes, mut most_bytes) = (0, 0);
        for name in TENANTS {
            let mut taken = Vec::new();
            self.finish(self.start(&host, name)?, || {
                taken.extend(
                    truth::snapshot(&host.simgpu_state())
                        .iter()
                        .filter_map(|truth| Some(truth.gpus.first()?.memory_used_bytes)),
                );
            })?;
            taken.retain(|bytes| *bytes > 0);
            taken.sort_unstable();
            usual_bytes = usual_bytes.max(taken.get(taken.len() / 2).copied().unwrap_or(0));
            most_bytes = most_bytes.max(taken.last().copied().unwrap_or(0));
        }
        ensure!(usual_bytes > 0, "the simulated GPU recorded no memory of the trainers'");
        Ok((usual_bytes, most_bytes, begun.elapsed()))
    }

    /// Runs two trainers together on a GPU with this much memory. Returns their time and the number
    /// of suspensions.
    fn together(&self, gpu_bytes: u64) -> Result<(Duration, usize)> {
        let host = self.host(gpu_bytes, &format!("suspend_turn_ms = {}\n", self.options.turn_ms))?;
        let begun = Instant::now();
        let mut trainers =
            TENANTS.map(|name| self.start(&host, name)).into_iter().collect::<Result<Vec<_>>>()?;
        // A request to the daemon takes CPU time from the trainers, so the looks are rare.
        let look_every = Duration::from_millis(self.options.turn_ms) / LOOKS_EACH_TURN;
        let (mut suspensions, mut were_suspended, mut looked) = (0, [false; TENANTS.len()], begun);
        while let Some(trainer) = trainers.pop() {
            self.finish(trainer, || {
                if looked.elapsed() < look_every {
                    return;
                }
                looked = Instant::now();
                let Ok(ps) = host.ps() else { return };
                for (name, was_suspended) in TENANTS.iter().zip(&mut were_suspended) {
                    let is_suspended =
                        ps.tenants.iter().any(|tenant| tenant.name == *name && tenant.suspended);
                    suspensions += usize::from(is_suspended && !*was_suspended);
                    *was_suspended = is_suspended;
                }
            })?;
        }
        Ok((begun.elapsed(), suspensions))
    }

    fn host(&self, memory_bytes: u64, config: &str) -> Result<Host> {
        let simgpu = self.write(
            "simgpu.toml",
            &format!(
                "context_overhead_bytes = 0\nmemory_bytes = {memory_bytes}\nhost_to_device_bytes_per_us = {BYTES_PER_US}\n\
                 device_to_host_bytes_per_us = {BYTES_PER_US}\n{}",
                fs::read_to_string(training::simgpu_config())?
            ),
        )?;
        let config = self.write("deepres.toml", config)?;
        let device = Device::Simulated { config: Some(simgpu) };
        Host::configured(&self.artefacts, device, &self.interrupt, Some(&config))
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.folder.path().join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    fn start(&self, host: &Host, name: &str) -> Result<Running> {
        let options = ["--name", name, "--oversubscribe", "suspend"];
        let arguments = ["--steps", &self.options.steps.to_string()];
        let cache = self.folder.path().join("compiled.cache");
        let mut command = training::run(host, &self.venv, &options, &arguments, &cache)?;
        Running::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))
    }

    /// Waits for a trainer's end, and calls `look` again and again during the wait.
    fn finish(&self, mut trainer: Running, mut look: impl FnMut()) -> Result<()> {
        let status = loop {
            self.interrupt.check()?;
            if let Some(status) = trainer.exited()? {
                break status;
            }
            look();
            thread::sleep(POLL);
        };
        ensure!(status.success(), "{}: {}", ended(status), trainer.shown());
        Ok(())
    }
}
