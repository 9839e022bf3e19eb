//! `cargo xtask bench preload`: measures the cost of the interposer for a process that never uses
//! CUDA.

use std::process::Command;
use std::time::Instant;

use anyhow::Result;
use serde::Serialize;

use super::{bar, median};
use crate::{build, command};

/// The program that the benchmark starts. The program does nothing.
const NOTHING: &str = "/bin/true";
/// Number of runs of each kind before the runs that count.
const WARM_UP_RUNS: u32 = 50;
/// The most time that preloading may add, ms.
const LIMIT_MS: f64 = 0.3;

/// Options of `cargo xtask bench preload`.
#[derive(clap::Args)]
pub struct Options {
    /// Number of runs of bare and of preloaded
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
}

#[derive(Serialize)]
struct Report {
    runs: u32,
    bare_ms: f64,
    preloaded_ms: f64,
    added_ms: f64,
}

/// Measures the start of a process, and returns the figures.
pub fn run(options: &Options) -> Result<impl super::Report> {
    let library = build::artefacts()?.library();
    let mut bare = Command::new(NOTHING);
    bare.env_remove("LD_PRELOAD");
    let mut preloaded = Command::new(NOTHING);
    preloaded.env("LD_PRELOAD", &library);
    let (mut bare_ms, mut preloaded_ms) = (Vec::new(), Vec::new());
    for run in 0..WARM_UP_RUNS + options.runs {
        for (command, times_ms) in [(&mut bare, &mut bare_ms), (&mut preloaded, &mut preloaded_ms)] {
            let start = Instant::now();
            command::run(command)?;
            let elapsed = start.elapsed();
            if run >= WARM_UP_RUNS {
                times_ms.push(elapsed.as_secs_f64() * 1e3);
            }
        }
    }
    let (bare_ms, preloaded_ms) = (median(&mut bare_ms), median(&mut preloaded_ms));
    Ok(Report { runs: options.runs, bare_ms, preloaded_ms, added_ms: preloaded_ms - bare_ms })
}

impl super::Report for Report {
    fn print(&self) {
        let Self { bare_ms, preloaded_ms, added_ms, .. } = self;
        println!(
            "{NOTHING}: bare {bare_ms:.3} ms, preloaded {preloaded_ms:.3} ms, added {added_ms:.3} ms (at most {LIMIT_MS} ms)"
        );
    }

    fn bars(&self) -> Vec<(String, bool)> {
        vec![bar("a process starts 0.3 ms later at most", self.added_ms <= LIMIT_MS)]
    }
}
