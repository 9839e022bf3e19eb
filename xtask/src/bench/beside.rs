//! `cargo xtask bench beside`: a best-effort trainer beside a trainer with pauses, and beside a
//! server of requests.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::bar;
use super::pieces::{As, Kit, LONG_KERNEL_MS, SETTLED, Served, Times, kernels_ns, record};

/// The name of the tenant that should run as fast beside the guest as alone.
const FIRST: &str = "first";
/// The tenant that runs in the pauses of the first tenant.
const GUEST: &str = "guest";
const BEST_EFFORT: [&str; 4] = ["--name", GUEST, "--class", "best-effort"];
/// Steps of the guest, which is always backlogged.
const GUEST_STEPS: [&str; 2] = ["busy_1000usx32", "sync"];
/// Arguments of the trainer. A step is 20 ms of work, followed by a pause as for the next batch.
const TRAINER: [&str; 6] = ["--kernel", "busy_1000us", "--kernels", "20", "--gap-us", "10000"];
/// Servers: the work of a request (ms), the requests per second, and the SLO. The requests use
/// about 15 and 20 % of the GPU.
const SERVERS: [(&str, &str, &str); 2] = [("5", "30", "50ms"), ("25", "8", "250ms")];

const US_PER_MS: f64 = 1e3;
const NS_PER_MS: f64 = 1e6;

/// Options of `cargo xtask bench beside`.
#[derive(clap::Args)]
pub struct Options {
    /// Time to measure each pair, in seconds
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = super::seconds)]
    seconds: f64,
}

#[derive(Serialize)]
struct Report {
    trainer: TrainerReport,
    servers: Vec<ServerReport>,
    guest_longest_kernel_ms: f64,
}

/// The figures of a trainer with pauses: alone, and beside the guest under deepres and under
/// time-slicing.
#[derive(Serialize)]
struct TrainerReport {
    steps_per_s_alone: f64,
    deepres: Trained,
    time_slicing: Trained,
}

/// A trainer's figures beside the guest.
#[derive(Serialize)]
struct Trained {
    /// Steps per second, as a part of the steps per second without a guest.
    speed: f64,
    /// The guest's GPU time, as a part of the time that the trainer left.
    harvested_of_gaps: f64,
}

/// The figures of a server of requests: alone, and beside the guest under deepres and under
/// time-slicing.
#[derive(Serialize)]
struct ServerReport {
    work_ms: f64,
    requests_per_s: f64,
    alone: Millis,
    /// The SLO of the server in the run with an SLO.
    slo: &'static str,
    deepres: Asked,
    /// Figures of the server in the run without an SLO.
    without_slo: Asked,
    time_slicing: Asked,
    /// The largest allowed growth of the 99th percentile, ms: the guest's longest kernel and a
    /// hand-off.
    p99_may_grow_by_ms: f64,
}

/// A server's figures beside the guest.
#[derive(Serialize)]
struct Asked {
    took: Millis,
    p99_added_ms: f64,
    p99_of_alone: f64,
    harvested_of_gaps: f64,
}

#[derive(Serialize, Clone, Copy)]
struct Millis {
    p50: f64,
    p99: f64,
}

impl From<Times> for Millis {
    fn from(times: Times) -> Self {
        Self { p50: times.p50 / US_PER_MS, p99: times.p99 / US_PER_MS }
    }
}

/// Figures of one run of the first tenant beside the guest.
struct Run {
    served: Served,
    harvested_of_gaps: f64,
    handoff_ms: f64,
}

/// Measures both pairs of programs, and returns the figures.
pub fn run(options: &Options) -> Result<impl super::Report> {
    let bench = Bench { kit: Kit::new()?, seconds: options.seconds };
    Ok(Report {
        trainer: bench.trainer()?,
        servers: SERVERS
            .into_iter()
            .map(|(work_ms, rate, slo)| bench.server(work_ms, rate, slo))
            .collect::<Result<_>>()?,
        guest_longest_kernel_ms: LONG_KERNEL_MS,
    })
}

impl super::Report for Report {
    fn bars(&self) -> Vec<(String, bool)> {
        let trained = &self.trainer.deepres;
        let is_soon = |server: &ServerReport| {
            let added_ms = server.deepres.p99_added_ms.max(server.without_slo.p99_added_ms);
            added_ms <= server.p99_may_grow_by_ms
        };
        vec![
            bar("at least 0.99 of the trainer's speed alone", trained.speed >= 0.99),
            bar("at least 0.8 of the trainer's gaps harvested", trained.harvested_of_gaps >= 0.8),
            bar(
                "at most the guest's longest kernel and a hand-off added to the tail",
                self.servers.iter().all(is_soon),
            ),
        ]
    }

    fn print(&self) {
        let of_hundred = |part: f64| part * 100.0;
        println!("{:<28} {:>10} {:>14}", "beside a best-effort trainer", "deepres", "time-slicing");
        let row = |what: &str, ours: f64, theirs: f64, unit: &str| {
            println!("{what:<28} {ours:>8.2} {unit:<2} {theirs:>11.2} {unit}");
        };
        let TrainerReport { deepres, time_slicing, .. } = &self.trainer;
        row("trainer: speed", of_hundred(deepres.speed), of_hundred(time_slicing.speed), "%");
        let harvested = [deepres.harvested_of_gaps, time_slicing.harvested_of_gaps].map(of_hundred);
        row("  harvested of its gaps", harvested[0], harvested[1], "%");
        for server in &self.servers {
            println!(
                "requests of {:.0} ms of work, {:.0} a second: alone {:.2} ms (median), {:.2} ms (99 %)",
                server.work_ms, server.requests_per_s, server.alone.p50, server.alone.p99
            );
            let theirs = &server.time_slicing;
            let with_slo = format!(" with --slo {}", server.slo);
            for (ours, how) in [(&server.deepres, with_slo.as_str()), (&server.without_slo, " without")] {
                println!(" {how}");
                row("  median", ours.took.p50, theirs.took.p50, "ms");
                row("  99 %", ours.took.p99, theirs.took.p99, "ms");
                row("  99 %, added", ours.p99_added_ms, theirs.p99_added_ms, "ms");
                println!("    (may be {:.2} ms)", server.p99_may_grow_by_ms);
                let harvested = [ours.harvested_of_gaps, theirs.harvested_of_gaps].map(of_hundred);
                row("  harvested of its gaps", harvested[0], harvested[1], "%");
            }
        }
    }
}

struct Bench {
    kit: Kit,
    seconds: f64,
}

impl Bench {
    fn trainer(&self) -> Result<TrainerReport> {
        let alone = self.run(&TRAINER, As::Tenant(&["--name", FIRST]), None)?.served.speed();
        let of = |run: &Run| Trained {
            speed: run.served.speed() / alone,
            harvested_of_gaps: run.harvested_of_gaps,
        };
        let (deepres, time_slicing) = self.beside(&TRAINER)?;
        Ok(TrainerReport { steps_per_s_alone: alone, deepres: of(&deepres), time_slicing: of(&time_slicing) })
    }

    fn server(&self, work_ms: &str, rate: &str, slo: &'static str) -> Result<ServerReport> {
        let arguments = ["--kernel", "busy_1000us", "--kernels", work_ms, "--rate", rate];
        let alone: Millis = self.run(&arguments, As::Tenant(&["--name", FIRST]), None)?.served.took_us.into();
        let of = |run: &Run| {
            let took: Millis = run.served.took_us.into();
            Asked {
                took,
                p99_added_ms: took.p99 - alone.p99,
                p99_of_alone: took.p99 / alone.p99,
                harvested_of_gaps: run.harvested_of_gaps,
            }
        };
        let (without_slo, time_slicing) = self.beside(&arguments)?;
        let latency = As::Tenant(&["--name", FIRST, "--slo", slo]);
        let deepres = self.run(&arguments, latency, Some(As::Tenant(&BEST_EFFORT)))?;
        Ok(ServerReport {
            work_ms: work_ms.parse().context("milliseconds")?,
            requests_per_s: rate.parse().context("a rate")?,
            alone,
            slo,
            deepres: of(&deepres),
            without_slo: of(&without_slo),
            time_slicing: of(&time_slicing),
            p99_may_grow_by_ms: LONG_KERNEL_MS + deepres.handoff_ms,
        })
    }

    /// Runs the first tenant beside the guest, once under deepres and once without deepres. Returns
    /// the figures of both runs.
    fn beside(&self, arguments: &[&str]) -> Result<(Run, Run)> {
        let guest = As::Tenant(&BEST_EFFORT);
        let deepres = self.run(arguments, As::Tenant(&["--name", FIRST]), Some(guest))?;
        Ok((deepres, self.run(arguments, As::Bare, Some(As::Bare))?))
    }

    fn run(&self, arguments: &[&str], how: As<'_>, guest: Option<As<'_>>) -> Result<Run> {
        let host = self.kit.host()?;
        let guest = match guest {
            Some(guest) => Some((self.kit.pace(&host, guest, &GUEST_STEPS)?, guest)),
            None => None,
        };
        let seconds = (self.seconds + SETTLED.as_secs_f64()).to_string();
        let mut arguments = arguments.to_vec();
        arguments.extend(["--seconds", &seconds]);
        let first = self.kit.serve(&host, how, &arguments)?;
        let mut harvested_of_gaps = 0.0;
        if let Some((mut guest, guest_is)) = guest {
            self.kit.interrupt.sleep(SETTLED)?;
            let pids = [first.pid(&host, how, FIRST)?, guest.pid(&host, guest_is, GUEST)?];
            let before = record(&host)?;
            // The second observation comes before the end of the first tenant.
            self.kit.interrupt.sleep(Duration::from_secs_f64(self.seconds).saturating_sub(SETTLED))?;
            let after = record(&host)?;
            guest.still_runs()?;
            let [used_ns, harvested_ns] =
                pids.map(|pid| kernels_ns(&after, pid).saturating_sub(kernels_ns(&before, pid)));
            let gaps_ns = (after.at_ns - before.at_ns).saturating_sub(used_ns);
            harvested_of_gaps = harvested_ns as f64 / gaps_ns as f64;
        }
        let served = first.served()?;
        let handoff_ns = host.ps()?.gpus.first().context("the daemon knows no GPU")?.handoff_p50_ns;
        Ok(Run { served, harvested_of_gaps, handoff_ms: handoff_ns as f64 / NS_PER_MS })
    }
}
