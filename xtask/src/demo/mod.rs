//! `cargo xtask demo`: two unmodified training programs share one GPU, 70 to 30.

mod client;
mod report;

use std::io::{IsTerminal as _, Write as _};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use deepres_e2e::demo::{ARGUMENTS, CLIENTS};
use simgpu_engine::truth;

use self::client::Client;
use self::report::Report;
use crate::build::{self, Artefacts};
use crate::host::{Device, Host, Ps};
use crate::process::Interrupt;
use crate::training::{self, Trainer};

/// Time limit until both scripts train. Before that, the scripts compile their kernels on the CPU.
const READY_LIMIT: Duration = Duration::from_secs(180);
/// Time between two live lines.
const LIVE_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two checks of processes and signals.
const POLL: Duration = Duration::from_millis(20);

/// Options of `cargo xtask demo`.
#[derive(clap::Args)]
pub struct Options {
    /// Time to measure from the moment when both programs train, in seconds
    #[arg(long, default_value_t = 20.0, value_parser = crate::bench::seconds)]
    seconds: f64,
    /// Print one JSON object instead of a table, with the live lines on standard error
    #[arg(long)]
    json: bool,
    /// Train with tinygrad, which takes 0.2 GB, in the place of PyTorch, which takes 1.5 GB
    #[arg(long)]
    small: bool,
}

/// Runs the demo and prints its result.
pub fn run(options: &Options) -> Result<()> {
    let artefacts = build::artefacts()?;
    let interrupt = Interrupt::catch()?;
    let trainer = trainer(&artefacts, options.small)?;
    let device = Device::of_this_machine(trainer.simgpu_config());
    let host = Host::start(&artefacts, device, &interrupt)?;
    eprintln!(
        "daemon started; {} GPU; two tenants run {}, first compiling its kernels",
        host.device().name(),
        trainer.script()
    );
    if let Trainer::Torch(_) = trainer {
        eprintln!(
            "PyTorch is the unmodified package from PyPI; on the simulated GPU, stand-ins of deepres take the place \
             of NVIDIA's libraries (tests/simgpu/runtime)"
        );
    }
    let mut clients = Vec::new();
    for client in CLIENTS {
        // Each program has a cache of its own, so that no program finds the other's compiled
        // kernels.
        let cache = artefacts.folder().join(format!("{}.cache", client.name));
        let mut command = trainer.run(&host, &client.options(), &ARGUMENTS, &cache)?;
        clients.push(Client::start(client.name, &mut command)?);
    }

    let report = observe(&host, trainer.script(), &mut clients, options, &interrupt)?;
    // The demo ends everything before it shows the result. So the result is the last text on the
    // screen.
    drop(clients);
    drop(host);
    if options.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{report}");
    }
    Ok(())
}

/// Returns PyTorch's script, or tinygrad's if the user wants it or PyTorch cannot be had.
fn trainer(artefacts: &Artefacts, is_small: bool) -> Result<Trainer> {
    if !is_small {
        let is_real = matches!(Device::of_this_machine(training::simgpu_config()), Device::Real);
        match Trainer::torch(artefacts, is_real) {
            Ok(trainer) => return Ok(trainer),
            Err(error) => eprintln!("PyTorch cannot be installed, so tinygrad trains: {error:#}"),
        }
    }
    Trainer::tinygrad()
}

/// All figures of one moment.
pub struct Moment {
    /// The daemon's figures.
    pub ps: Ps,
    /// The simulated GPU's record.
    pub truth: Option<truth::Snapshot>,
}

impl Moment {
    fn now(host: &Host) -> Result<Self> {
        let ps = host.ps()?;
        let truth = match host.device() {
            Device::Simulated { .. } => {
                Some(truth::snapshot(&host.simgpu_state()).context("the simulated GPU's record")?)
            }
            Device::Real => None,
        };
        Ok(Self { ps, truth })
    }
}

/// Waits until both programs train, and then measures for the given time. Returns the report.
fn observe(
    host: &Host,
    script: &'static str,
    clients: &mut [Client],
    options: &Options,
    interrupt: &Interrupt,
) -> Result<Report> {
    let deadline = Instant::now() + READY_LIMIT;
    while !clients.iter().all(Client::trains) {
        watch(clients, interrupt)?;
        if Instant::now() > deadline {
            bail!("the programs did not begin to train within {READY_LIMIT:?}");
        }
        thread::sleep(POLL);
    }
    let first = Moment::now(host)?;
    let start = Instant::now();
    let mut live = Live::new(options.json);
    let mut next_line = start + LIVE_INTERVAL;
    while start.elapsed().as_secs_f64() < options.seconds {
        watch(clients, interrupt)?;
        if Instant::now() >= next_line {
            next_line += LIVE_INTERVAL;
            live.show(&report(host, script, &first, &Moment::now(host)?)?)?;
        }
        thread::sleep(POLL);
    }
    report(host, script, &first, &Moment::now(host)?)
}

fn report(host: &Host, script: &'static str, first: &Moment, last: &Moment) -> Result<Report> {
    let names = CLIENTS.map(|client| client.name);
    Report::between(host.device().name(), script, &names, first, last)
}

/// Checks that no signal asks the task to stop, and that no program has ended.
fn watch(clients: &mut [Client], interrupt: &Interrupt) -> Result<()> {
    interrupt.check()?;
    clients.iter_mut().try_for_each(Client::require_alive)
}

/// Live output: one line for each tenant. On a terminal, each look replaces the lines.
struct Live {
    to_stderr: bool,
    in_place: bool,
    lines_shown: usize,
}

impl Live {
    fn new(to_stderr: bool) -> Self {
        let in_place =
            if to_stderr { std::io::stderr().is_terminal() } else { std::io::stdout().is_terminal() };
        Self { to_stderr, in_place, lines_shown: 0 }
    }

    fn show(&mut self, report: &Report) -> Result<()> {
        let lines = report.live_lines();
        let mut text = String::new();
        if self.in_place && self.lines_shown > 0 {
            // The cursor moves up by the number of written lines. The program then writes each line
            // again.
            text += &format!("\x1b[{}A", self.lines_shown);
        }
        for line in &lines {
            text += if self.in_place { "\x1b[2K" } else { "" };
            text += line;
            text.push('\n');
        }
        self.lines_shown = lines.len();
        if self.to_stderr {
            std::io::stderr().write_all(text.as_bytes())?;
        } else {
            std::io::stdout().write_all(text.as_bytes())?;
        }
        Ok(())
    }
}
