//! `cargo xtask bench torch`: the speed of PyTorch trainers with deepres, as a part of their speed
//! without.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use deepres_e2e::demo::TORCH_SCRIPT;
use serde::Serialize;

use super::{bar, median};
use crate::build::{self, Artefacts};
use crate::host::{Device, Host};
use crate::process::{Interrupt, Running};
use crate::training::{Torch, torch_simgpu_config};

/// The simulated GPU for a program whose bottleneck is Python: every kernel takes 2 µs.
const SMALL_KERNELS: &str = "kernel = [{ name = '*', ns = 2000 }]\n";
/// The names of the tenants that train together.
const TENANTS: [&str; 2] = ["one", "other"];

/// The measurements of the benchmark.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum Case {
    /// One trainer, with steps of 26 ms of GPU time
    Alone,
    /// One trainer with small kernels, which reads each loss
    HostBound,
    /// One trainer with small kernels, which reads each tenth loss
    HostBoundAhead,
    /// Two trainers with small kernels at once. Together, they need less than the whole GPU. So in
    /// the fluid limit, both have the speed that each has on a GPU of its own
    Together,
}

impl Case {
    /// Returns the least speed.
    fn bar(self) -> f64 {
        match self {
            Self::Alone => 0.99,
            Self::HostBound | Self::HostBoundAhead => 0.97,
            Self::Together => 0.95,
        }
    }

    fn sync_every(self) -> &'static str {
        if self == Self::HostBoundAhead { "10" } else { "1" }
    }

    fn trainers(self) -> usize {
        if self == Self::Together { TENANTS.len() } else { 1 }
    }
}

/// Options of `cargo xtask bench torch`.
#[derive(clap::Args)]
pub struct Options {
    /// Cases to measure (default: all)
    cases: Vec<Case>,
    /// Number of pairs of runs of each case: one run with deepres and one without
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pairs: u32,
    /// Time of each run after its warm-up, seconds
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = super::seconds)]
    seconds: f64,
}

/// The speed of a case.
#[derive(Serialize)]
struct Figure {
    case: Case,
    /// The steps with deepres, as a part of the steps without: the median of all pairs.
    speed: f64,
    /// The lowest speed of a pair.
    lowest: f64,
    /// The highest speed of a pair.
    highest: f64,
    /// The median of the steps of all trainers without deepres, steps/s.
    bare_steps_per_s: f64,
    /// The steps of all trainers on one GPU without deepres, as a part of `bare_steps_per_s`: the
    /// median of all pairs. `None` for one trainer.
    time_slicing: Option<f64>,
    /// The bar for the speed.
    bar: f64,
}

#[derive(Serialize)]
struct Report {
    pairs: u32,
    seconds: f64,
    figures: Vec<Figure>,
}

/// Measures the cases, and returns the figures.
pub fn run(options: &Options) -> Result<impl super::Report> {
    let artefacts = build::artefacts()?;
    let bench = Bench {
        torch: Torch::new(&artefacts)?,
        artefacts,
        seconds: options.seconds.to_string(),
        interrupt: Interrupt::catch()?,
        folder: tempfile::tempdir().context("cannot create a temporary directory")?,
    };
    let cases = if options.cases.is_empty() { Case::value_variants() } else { &options.cases };
    let figures = cases.iter().map(|case| bench.measure(*case, options.pairs)).collect::<Result<_>>()?;
    Ok(Report { pairs: options.pairs, seconds: options.seconds, figures })
}

struct Bench {
    torch: Torch,
    artefacts: Artefacts,
    seconds: String,
    interrupt: Interrupt,
    folder: tempfile::TempDir,
}

impl Bench {
    fn measure(&self, case: Case, pairs: u32) -> Result<Figure> {
        let config = if case == Case::Alone {
            torch_simgpu_config()
        } else {
            let config = self.folder.path().join("small-kernels.toml");
            fs::write(&config, SMALL_KERNELS)
                .with_context(|| format!("cannot write {}", config.display()))?;
            config
        };
        let device = Device::Simulated { config: Some(config.clone()) };
        let host = Host::start(&self.artefacts, device, &self.interrupt)?;
        let (mut speeds, mut bare, mut sliced) = (Vec::new(), Vec::new(), Vec::new());
        for pair in 0..pairs {
            // Each way runs first in every second pair, because a machine's speed drifts.
            let mut rates = [0.0; 2];
            for way in if pair % 2 == 0 { [0, 1] } else { [1, 0] } {
                rates[way] =
                    if way == 0 { self.bare(case, &config, false)? } else { self.managed(case, &host)? };
            }
            let [without, with] = rates;
            eprintln!("{case:?}: {with:.1} steps/s with deepres, {without:.1} without");
            if case.trainers() > 1 {
                let on_one = self.bare(case, &config, true)?;
                eprintln!("{case:?}: {on_one:.1} steps/s without deepres on one GPU");
                sliced.push(on_one / without);
            }
            speeds.push(with / without);
            bare.push(without);
        }
        Ok(Figure {
            case,
            lowest: speeds.iter().copied().fold(f64::INFINITY, f64::min),
            highest: speeds.iter().copied().fold(0.0, f64::max),
            speed: median(&mut speeds),
            bare_steps_per_s: median(&mut bare),
            time_slicing: (!sliced.is_empty()).then(|| median(&mut sliced)),
            bar: case.bar(),
        })
    }

    fn arguments(&self, case: Case) -> [&str; 5] {
        ["--wait", "--seconds", &self.seconds, "--sync-every", case.sync_every()]
    }

    /// Trains without deepres, all trainers on one GPU if `on_one`, else each on a GPU of its own.
    /// Returns the steps of all trainers in a second.
    fn bare(&self, case: Case, config: &Path, on_one: bool) -> Result<f64> {
        let folder = |_| tempfile::Builder::new().prefix("deepres-simgpu-").tempdir();
        let gpus = if on_one { 1 } else { case.trainers() };
        let gpus =
            (0..gpus).map(folder).collect::<std::io::Result<Vec<_>>>().context("cannot create a folder")?;
        let command = |gpu: &tempfile::TempDir| {
            self.torch.bare(config, gpu.path(), TORCH_SCRIPT, &self.arguments(case))
        };
        self.train(gpus.iter().cycle().take(case.trainers()).map(command).collect::<Result<_>>()?)
    }

    /// Trains with deepres, all trainers on one GPU. Returns the steps of all trainers in a second.
    fn managed(&self, case: Case, host: &Host) -> Result<f64> {
        let command = |name| self.torch.managed(host, &["--name", name], TORCH_SCRIPT, &self.arguments(case));
        self.train(TENANTS.into_iter().take(case.trainers()).map(command).collect())
    }

    /// Runs trainers at once, from the moment at which all are warm.
    fn train(&self, commands: Vec<Command>) -> Result<f64> {
        let mut trainers = commands.into_iter().map(Trainer::start).collect::<Result<Vec<_>>>()?;
        for trainer in &mut trainers {
            trainer.await_line("warmed up")?;
        }
        self.interrupt.check()?;
        for trainer in &mut trainers {
            let input = trainer.process.child().stdin.as_mut().context("a trainer has no input")?;
            input.write_all(b"\n").context("cannot start a trainer")?;
        }
        let mut steps_per_s = 0.0;
        for mut trainer in trainers {
            let line = trainer.await_line("trained ")?;
            steps_per_s += rate(&line).with_context(|| format!("a trainer says: {line}"))?;
            trainer.process.finish()?;
        }
        self.interrupt.check()?;
        Ok(steps_per_s)
    }
}

/// Returns the steps in a second of the line `trained N steps in T s`.
fn rate(line: &str) -> Option<f64> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ["trained", steps, "steps", "in", seconds, "s"] = *words else { return None };
    Some(steps.parse::<f64>().ok()? / seconds.parse::<f64>().ok()?)
}

/// A running training.
struct Trainer {
    process: Running,
    output: BufReader<ChildStdout>,
}

impl Trainer {
    fn start(mut command: Command) -> Result<Self> {
        let mut process = Running::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let output = process.child().stdout.take().context("a trainer has no output")?;
        Ok(Self { process, output: BufReader::new(output) })
    }

    /// Returns the next line that begins so.
    fn await_line(&mut self, beginning: &str) -> Result<String> {
        let mut line = String::new();
        loop {
            line.clear();
            let bytes = self.output.read_line(&mut line).context("cannot read a trainer's output")?;
            anyhow::ensure!(bytes > 0, "a trainer ended too early: {}", self.process.shown());
            if line.starts_with(beginning) {
                return Ok(line);
            }
        }
    }
}

impl super::Report for Report {
    fn print(&self) {
        println!("steps with deepres, as a part of the steps without ({} pairs):", self.pairs);
        for Figure { case, speed, lowest, highest, bare_steps_per_s, time_slicing, bar } in &self.figures {
            let time_slicing =
                time_slicing.map_or(String::new(), |part| format!("; {part:.3} without deepres on one GPU"));
            println!(
                "  {:<16} {speed:.3} ({lowest:.3} to {highest:.3}), at least {bar}; {bare_steps_per_s:.1} steps/s{time_slicing}",
                format!("{case:?}")
            );
        }
    }

    fn bars(&self) -> Vec<(String, bool)> {
        let holds = |figure: &Figure| figure.speed >= figure.bar;
        self.figures
            .iter()
            .map(|figure| bar(format!("{:?} keeps {} of its speed", figure.case, figure.bar), holds(figure)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trainers_last_line_gives_its_rate() {
        assert_eq!(rate("trained 300 steps in 1.5000 s\n"), Some(200.0));
        assert_eq!(rate("trained 300 steps\n"), None);
    }
}
