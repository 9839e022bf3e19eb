//! `cargo xtask bench`: what deepres costs those who use it.

mod beside;
mod crowd;
mod daemon;
mod handoff;
mod hook;
mod memory;
mod pieces;
mod policy;
mod preload;
mod share;
mod storm;
mod suspend;
mod trace;

use anyhow::{Result, ensure};
use clap::Subcommand;
use deepres_e2e::stolen::Stolen;

/// Which cost to measure.
#[derive(Subcommand)]
pub enum Bench {
    /// What hooks add to driver calls: launches, allocations, memory queries.
    ///
    /// A driver that does nothing serves a client that calls each function a million times, bare and then
    /// under `deepres run` with a live daemon and an open gate, in turns. Shown is the median of the turns.
    Hook(hook::Options),
    /// What a best-effort tenant makes of another's pauses, and what that costs the other.
    ///
    /// A trainer with pauses and a server of requests, each alone, beside a best-effort trainer, and beside it with the simulated GPU's own
    /// time-slicing instead of deepres.
    Beside(beside::Options),
    /// What the daemon takes while a thousand processes are connected and do nothing. Fails if that is more than it may be.
    Daemon(daemon::Options),
    /// How fast the GPU changes hands, and how soon a new quota or a waiting tenant has it.
    Handoff(handoff::Options),
    /// Whether racing processes stay inside their tenant's memory, and what that costs.
    ///
    /// Threads of several processes of one tenant allocate and free on a simulated GPU as fast as they can, and some processes are killed among
    /// it. Counted are moments at which more than the limit was held (by the clients' own record, and by the simulated GPU's) and
    /// refusals that nothing justifies that was really held: at no moment of the call was what had been given, and not yet been given
    /// back, enough to leave too little room. The time of an allocation and its free is that of `bench hook`, under a limit.
    Memory(memory::Options),
    /// What a decision of the policy costs, and a review of what everybody is owed.
    ///
    /// Sixteen tenants on one GPU, and a thousand on eight; one decision on each GPU. Shown is the mean.
    Policy(policy::Options),
    /// What preloading the library adds to a process that uses no CUDA.
    ///
    /// Runs /bin/true bare and preloaded in turns; shown are the medians.
    Preload(preload::Options),
    /// How exact shares of GPU time are, and what sharing costs.
    ///
    /// Two or three tenants that always have work share a simulated GPU, for each choice of shares and work; shown are the distance of what they
    /// had from what they are owed and from what the meter says, and the work done against one tenant alone. Also, what one tenant alone does against the
    /// bare driver.
    Share(share::Options),
    /// How long many processes that start at once wait until they are served.
    ///
    /// Three hundred processes start one right after the other, preloaded, and call cuInit, which is when a process
    /// gets its session. Fails if any of them goes without one, or waits for longer than it may.
    Storm(storm::Options),
    /// How fast two trainers are that take turns on a GPU whole, since it has not the memory for both.
    ///
    /// Each takes 60 % of the simulated GPU's memory. Their time together is set against that of one after the other, with what moving them costs told beside it.
    Suspend(suspend::Options),
    /// What the kernel programs cost an ioctl, and whether they lose events. Takes root.
    ///
    /// Ours against empty programs on the same device, watched or not, and on another system call.
    Trace(trace::Options),
}

/// Runs a benchmark.
pub fn run(bench: &Bench) -> Result<()> {
    let never_sleeps =
        matches!(bench, Bench::Hook(_) | Bench::Policy(_) | Bench::Preload(_) | Bench::Trace(_));
    let stolen = if never_sleeps { Stolen::count() } else { Stolen::start() };
    let outcome = measure(bench);
    let taken = stolen.taken();
    eprintln!(
        "taken by the hypervisor meanwhile: {:.1} % of all CPUs' time, {:.0} ms at once at most",
        taken.percent, taken.at_once_ms
    );
    outcome
}

fn measure(bench: &Bench) -> Result<()> {
    match bench {
        Bench::Beside(options) => beside::run(options),
        Bench::Handoff(options) => handoff::run(options),
        Bench::Daemon(options) => daemon::run(options),
        Bench::Hook(options) => hook::run(options),
        Bench::Memory(options) => memory::run(options),
        Bench::Policy(options) => policy::run(options),
        Bench::Preload(options) => preload::run(options),
        Bench::Trace(options) => trace::run(options),
        Bench::Share(options) => share::run(options),
        Bench::Storm(options) => storm::run(options),
        Bench::Suspend(options) => suspend::run(options),
    }
}

/// Fails if one of these does not hold, and says which.
fn check(bars: &[(&str, bool)]) -> Result<()> {
    let missed: Vec<&str> = bars.iter().filter(|(_, holds)| !holds).map(|(bar, _)| *bar).collect();
    ensure!(missed.is_empty(), "past the bar: {}", missed.join("; "));
    Ok(())
}

/// A time to measure, as an option.
pub fn seconds(text: &str) -> Result<f64, String> {
    /// Less than this says nothing: tenants take turns of milliseconds.
    const LEAST: f64 = 1.0;
    /// A day.
    const MOST: f64 = 86_400.0;
    match text.parse::<f64>() {
        Ok(seconds) if (LEAST..=MOST).contains(&seconds) => Ok(seconds),
        _ => Err(format!("a number of seconds from {LEAST} to {MOST}")),
    }
}

/// The middle value; the mean of the two in the middle of an even number.
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
        assert!(check(&[("one", true)]).is_ok());
        let missed = check(&[("one", false), ("two", true), ("three", false)]);
        assert_eq!(missed.unwrap_err().to_string(), "past the bar: one; three");
    }

    #[test]
    fn the_median_ignores_outliers() {
        assert_eq!(median(&mut [9000.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 9000.0]), 3.0);
    }
}
