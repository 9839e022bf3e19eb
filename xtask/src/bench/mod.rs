//! `cargo xtask bench`: measures the costs of deepres.

mod beside;
mod connect;
mod crowd;
mod daemon;
mod faces;
mod gangs;
mod handoff;
mod hook;
mod memory;
mod pieces;
mod policy;
mod preload;
mod share;
mod storm;
mod suspend;
mod torch;
mod trace;

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Subcommand;
use deepres_e2e::stolen::Stolen;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Options of `cargo xtask bench`.
#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    output: Output,
    #[command(subcommand)]
    bench: Bench,
}

/// The options for the output of a benchmark: as text or as JSON, with or without a check of the
/// bars.
#[derive(clap::Args)]
struct Output {
    /// Print one JSON object instead of text
    #[arg(long, global = true)]
    json: bool,
    /// Fail if a figure is past its bar
    #[arg(long, global = true)]
    check: bool,
}

impl Output {
    /// Prints a report, and checks its bars if the options or the report ask for it.
    fn show<R: Report>(&self, report: &R) -> Result<()> {
        if self.json {
            println!("{}", serde_json::to_string(report)?);
        } else {
            report.print();
        }
        if self.check || R::IS_ALWAYS_CHECKED { check(&report.bars()) } else { Ok(()) }
    }
}

/// The figures of a benchmark.
trait Report: Serialize {
    /// Whether a figure past its bar is an error even without `--check`.
    const IS_ALWAYS_CHECKED: bool = false;

    /// Prints the figures as text.
    fn print(&self);

    /// Returns the bars, and whether the figures hold them.
    fn bars(&self) -> Vec<(String, bool)>;
}

/// Returns a bar, and whether the figure holds it.
fn bar(bar: impl Into<String>, holds: bool) -> (String, bool) {
    (bar.into(), holds)
}

/// The cost to measure.
#[derive(Subcommand)]
enum Bench {
    /// Measure what hooks add to driver calls: launches, allocations, memory queries
    ///
    /// A driver that does nothing serves a client that calls each function ten million times. The
    /// client runs bare and under `deepres run` in turn. Under `deepres run` there is a live daemon
    /// and the gate is open. The client also launches in bursts, beside another tenant that wants
    /// the GPU, and with a share but without a daemon. The output shows the medians of the runs.
    Hook(hook::Options),
    /// Measure what deepres adds to a process's first CUDA call, with a daemon and without one
    ///
    /// A client loads a driver that does nothing and calls cuInit. The client runs in turn bare, as
    /// a tenant of a daemon, and preloaded where no daemon runs. The output shows the medians.
    Connect(connect::Options),
    /// Measure a best-effort tenant's part of another tenant's pauses, and the cost for the other
    /// tenant
    ///
    /// A trainer with pauses and a server of requests run alone and beside a best-effort trainer. A
    /// third run replaces deepres by the simulated GPU's own time-slicing.
    Beside(beside::Options),
    /// Measure the daemon's cost while a thousand idle processes are connected, and fail above a
    /// limit
    Daemon(daemon::Options),
    /// Measure what people and Prometheus cost who look: scrapes of the metrics, `deepres top`, and
    /// the page
    ///
    /// A thousand idle tenants are on eight simulated GPUs, each on one. The output shows the
    /// median scrape, the first scrape after a rest, the bytes of the compressed answer, and the
    /// CPU time of `deepres top`. The output also shows how much ten scrapes a second delay an
    /// arbiter. With 200 idle tenants, twelve that work, and Chromium, it shows the frames in which
    /// the page's chart changes.
    Faces(faces::Options),
    /// Measure the speed and the shares of two tenants with ranks on two and on four GPUs
    ///
    /// The kernels of a tenant's ranks spin for each other. Turns under deepres and turns under the
    /// simulated GPU's own time-slicing alternate. The output compares the steps of both.
    Gangs(gangs::Options),
    /// Measure how long hand-offs take, and how soon a new share holds or a waiting tenant runs
    Handoff(handoff::Options),
    /// Check that racing processes stay within their tenant's memory limit, and measure the cost
    ///
    /// Threads of several processes of one tenant allocate and free memory on a simulated GPU as
    /// fast as they can. Some of the processes are killed during the race.
    ///
    /// The report counts breaches: moments at which more than the limit was held, by the clients'
    /// own record or by the simulated GPU's. The report also counts false refusals: requests that
    /// would have fitted at every moment of their call.
    ///
    /// The time of an allocation and its free is measured as in `bench hook`, under a limit.
    Memory(memory::Options),
    /// Measure what a decision of the policy costs, and what a review of all entitlements costs
    ///
    /// The cases are sixteen tenants on one GPU and a thousand on eight, with one decision for each
    /// GPU. The output shows the mean.
    Policy,
    /// Measure what preloading the library adds to a process that does not use CUDA
    ///
    /// Runs /bin/true bare and preloaded in turn. The output shows the medians.
    Preload(preload::Options),
    /// Measure how exact shares of GPU time are, and what sharing costs
    ///
    /// Two or three backlogged tenants share a simulated GPU, for each choice of shares and work.
    /// The output compares the GPU time used with the entitlement and with the meter. The output
    /// also compares the work done with one tenant alone, and one tenant alone with the bare
    /// driver. A program with pauses runs beside long kernels and beside itself. The output
    /// compares its GPU time with the fluid limit and with the bound of the evaluation.
    Share(share::Options),
    /// Measure how long many processes that start at once wait until they are served
    ///
    /// Three hundred preloaded processes start one right after the other and call cuInit, which
    /// connects a session. The command fails if a process gets no session or waits too long.
    Storm(storm::Options),
    /// Measure the speed of two trainers that take turns on a GPU without memory for both
    ///
    /// Each trainer takes 60 % of the simulated GPU's memory. The output compares their time
    /// together with the time one after the other, and shows the cost of moving their memory.
    Suspend(suspend::Options),
    /// Measure the speed of PyTorch trainers with deepres, as a part of their speed without
    ///
    /// An unmodified PyTorch trains on the simulated GPU, alone and two at once, with large kernels
    /// and with small ones. Runs with deepres and without alternate. The output shows the medians.
    Torch(torch::Options),
    /// Measure what the eBPF programs cost an ioctl, and whether they lose events (needs root)
    ///
    /// Compares the programs of deepres with empty programs on the same device, watched or not, and
    /// on another system call.
    Trace,
}

/// Runs the benchmark that the options name.
pub fn run(options: &Options) -> Result<()> {
    let never_sleeps = matches!(
        options.bench,
        Bench::Connect(_) | Bench::Hook(_) | Bench::Policy | Bench::Preload(_) | Bench::Trace
    );
    let stolen = if never_sleeps { Stolen::count() } else { Stolen::start() };
    let outcome = measure(&options.bench, &options.output);
    let taken = stolen.taken();
    eprintln!(
        "taken by the hypervisor meanwhile: {:.1} % of all CPUs' time, {:.0} ms at once at most",
        taken.percent, taken.at_once_ms
    );
    outcome
}

fn measure(bench: &Bench, output: &Output) -> Result<()> {
    match bench {
        Bench::Beside(options) => output.show(&beside::run(options)?),
        Bench::Connect(options) => output.show(&connect::run(options)?),
        Bench::Gangs(options) => output.show(&gangs::run(options)?),
        Bench::Handoff(options) => output.show(&handoff::run(options)?),
        Bench::Daemon(options) => output.show(&daemon::run(options)?),
        Bench::Faces(options) => output.show(&faces::run(options)?),
        Bench::Hook(options) => output.show(&hook::run(options)?),
        Bench::Memory(options) => output.show(&memory::run(options)?),
        Bench::Policy => output.show(&policy::run()?),
        Bench::Preload(options) => output.show(&preload::run(options)?),
        Bench::Trace => output.show(&trace::run()?),
        Bench::Share(options) => output.show(&share::run(options, output.json)?),
        Bench::Storm(options) => output.show(&storm::run(options)?),
        Bench::Suspend(options) => output.show(&suspend::run(options)?),
        Bench::Torch(options) => output.show(&torch::run(options)?),
    }
}

/// Checks that the figures hold all bars. The error names the missed bar.
fn check(bars: &[(String, bool)]) -> Result<()> {
    let missed: Vec<&str> = bars.iter().filter(|(_, holds)| !holds).map(|(bar, _)| bar.as_str()).collect();
    ensure!(missed.is_empty(), "past the bar: {}", missed.join("; "));
    Ok(())
}

/// Returns the value of an option for the time to measure, seconds.
pub fn seconds(text: &str) -> Result<f64, String> {
    /// The shortest time that the option accepts, s. Tenants take turns of milliseconds, so a
    /// shorter measurement would show nothing.
    const LEAST: f64 = 1.0;
    /// The longest time that the option accepts, s: a day.
    const MOST: f64 = 86_400.0;
    match text.parse::<f64>() {
        Ok(seconds) if (LEAST..=MOST).contains(&seconds) => Ok(seconds),
        _ => Err(format!("give a number of seconds from {LEAST} to {MOST}")),
    }
}

/// Returns the present time of the clock that the clients also read, ns.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32).as_nanos() as u64
}

/// Returns the percentile `percent` of sorted values, which is one of the values. Returns `None`
/// without values.
fn quantile<T: Copy>(sorted: &[T], percent: usize) -> Option<T> {
    sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1)).copied()
}

/// Returns the middle value. If the number of values is even, returns the mean of the two middle
/// values.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_that_are_missed_are_named() {
        assert!(check(&[bar("one", true)]).is_ok());
        let missed = check(&[bar("one", false), bar("two", true), bar("three", false)]);
        assert_eq!(missed.unwrap_err().to_string(), "past the bar: one; three");
    }

    #[test]
    fn the_median_ignores_outliers() {
        assert_eq!(median(&mut [9000.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 9000.0]), 3.0);
    }
}
