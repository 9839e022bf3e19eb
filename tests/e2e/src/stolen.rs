//! CPU time that the hypervisor takes from this machine: what a test measures meanwhile says little about deepres.
//!
//! On a shared virtual machine a CPU can stand still for a second, between any two instructions, and no program on it can do anything about
//! that. The kernel counts it (steal in /proc/stat, proc(5)). A test that fails says how much it was; the runner decides by that whether
//! to try again.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

/// What stands before the figure in a failed test's output.
const SAID: &str = "taken by the hypervisor while the test ran: ";
/// How long [`await_quiet`] wants the CPUs for itself to see whether they are taken: only who wants a CPU is denied one.
const TRIED: Duration = Duration::from_millis(300);
/// Between two tries.
const PAUSE: Duration = Duration::from_secs(3);

/// USER_HZ, the same on all x86-64 and arm64 kernels.
const TICKS_PER_SECOND: f64 = 100.0;

/// Counts from a moment on. A test that fails while this lives says in its output how much it was.
#[derive(Debug)]
pub struct Stolen {
    began: Instant,
    ticks: u64,
}

impl Stolen {
    /// Counts from now on.
    pub fn start() -> Self {
        Self { began: Instant::now(), ticks: ticks() }
    }

    /// The part of all CPUs' time that was taken since, percent.
    pub fn percent(&self) -> f64 {
        let seconds = ticks().saturating_sub(self.ticks) as f64 / TICKS_PER_SECOND;
        100.0 * seconds / (self.began.elapsed().as_secs_f64() * cpus() as f64)
    }

    /// What a failed test said, percent.
    pub fn said(output: &str) -> Option<f64> {
        output.lines().rev().find_map(|line| line.strip_prefix(SAID)?.split(' ').next()?.parse().ok())
    }
}

impl Drop for Stolen {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("{SAID}{:.1} % of all CPUs' time", self.percent());
        }
    }
}

/// Waits until the hypervisor leaves the machine its CPUs: less than this part of their time is taken, percent. Whether that came to be
/// within the limit.
pub fn await_quiet(percent: f64, within: Duration) -> bool {
    let began = Instant::now();
    loop {
        let stolen = Stolen::start();
        thread::scope(|scope| {
            for _ in 0..cpus() {
                scope.spawn(|| while stolen.began.elapsed() < TRIED {});
            }
        });
        if stolen.percent() < percent {
            return true;
        }
        if began.elapsed() > within {
            return false;
        }
        thread::sleep(PAUSE);
    }
}

fn cpus() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// The eighth figure of the first line: ticks of all CPUs together. 0 where the kernel does not tell.
fn ticks() -> u64 {
    fs::read_to_string("/proc/stat").ok().and_then(|stat| steal(&stat)).unwrap_or(0)
}

fn steal(stat: &str) -> Option<u64> {
    stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().nth(7)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_line_is_read() {
        let stat = "cpu  2649713 1349644 340196 1261170 11495 0 5513 184769 7 8\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(steal(stat), Some(184_769));
        assert_eq!(steal("cpu  1 2 3"), None);
    }

    #[test]
    fn what_is_said_is_understood() {
        let output = format!("some line\n{SAID}23.4 % of all CPUs' time\nanother\n");
        assert_eq!(Stolen::said(&output), Some(23.4));
        assert_eq!(Stolen::said("nothing"), None);
    }
}
