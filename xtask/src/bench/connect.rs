//! `cargo xtask bench connect`: measures what deepres adds to a process's first CUDA call.

use std::process::Command;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::hook::{measure, stub};
use super::{bar, median};
use crate::build;
use crate::host::{Device, Host};
use crate::process::Interrupt;

/// Number of runs of each kind before the runs that count.
const WARM_UP_RUNS: u32 = 20;
/// The most time that deepres may add with a daemon, ms.
const LIMIT_MS: f64 = 0.6;

/// Options of `cargo xtask bench connect`.
#[derive(clap::Args)]
pub struct Options {
    /// Number of runs of each kind
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
}

#[derive(Serialize)]
struct Report {
    runs: u32,
    bare_ms: f64,
    /// Time that deepres adds in a tenant of a daemon, ms.
    added_ms_with_daemon: f64,
    /// Time that deepres adds if no daemon runs and the environment names no limit, ms.
    added_ms_alone: f64,
}

/// Figures of one run of the client.
#[derive(Deserialize)]
struct Run {
    first_call_ms: f64,
}

/// Measures the first call in all three ways, and returns the figures.
pub fn run(options: &Options) -> Result<impl super::Report> {
    let artefacts = build::artefacts()?;
    let (client, driver) = stub()?;
    let interrupt = Interrupt::catch()?;
    let host = Host::start(&artefacts, Device::Simulated { config: None }, &interrupt)?;
    let uuid = host.stub_uuid()?;
    let nowhere = tempfile::Builder::new().prefix("deepres-nowhere-").tempdir()?;

    let plain = || {
        let mut plain = Command::new(&client);
        plain.env("LD_LIBRARY_PATH", &driver);
        plain
    };
    let with_daemon = || {
        let mut tenant = host.deepres(&[&driver]);
        tenant.args(["run", "--name", "bench", "--"]).arg(&client);
        tenant
    };
    let alone = || {
        let mut alone = plain();
        alone.env("LD_PRELOAD", artefacts.library()).env("DEEPRES_DIR", nowhere.path());
        alone
    };
    let mut times_ms = [vec![], vec![], vec![]];
    for run in 0..WARM_UP_RUNS + options.runs {
        interrupt.check()?;
        for (mut command, times_ms) in [plain(), with_daemon(), alone()].into_iter().zip(&mut times_ms) {
            command.arg("--first-call").env("STUB_DRIVER_UUID", &uuid);
            let measured: Run = measure(&mut command, |_| Ok(()))?;
            if run >= WARM_UP_RUNS {
                times_ms.push(measured.first_call_ms);
            }
        }
    }
    let [bare_ms, with_daemon_ms, alone_ms] = times_ms.each_mut().map(|times_ms| median(times_ms));
    Ok(Report {
        runs: options.runs,
        bare_ms,
        added_ms_with_daemon: with_daemon_ms - bare_ms,
        added_ms_alone: alone_ms - bare_ms,
    })
}

impl super::Report for Report {
    fn print(&self) {
        println!(
            "first call: bare {:.3} ms, added with a daemon {:.3} ms (at most {LIMIT_MS} ms), alone {:.3} ms",
            self.bare_ms, self.added_ms_with_daemon, self.added_ms_alone
        );
    }

    fn bars(&self) -> Vec<(String, bool)> {
        vec![bar("a first call takes 0.6 ms more at most", self.added_ms_with_daemon <= LIMIT_MS)]
    }
}
