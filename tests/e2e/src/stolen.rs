//! Counts CPU time that the hypervisor takes from this machine. Measurements during that time say
//! little about deepres.
//!
//! On a shared virtual machine, the hypervisor can stop a CPU for a second between any two
//! instructions. No program on the CPU can prevent that. The hypervisor reports a part of this time
//! to the kernel, which counts it (steal in /proc/stat, proc(5)).
//!
//! A watcher thread on each CPU, which runs before all other threads, sees the rest of the time:
//! the watcher wakes up late. If a test fails, it prints the stolen time. The test runner reads
//! this figure to decide whether it runs the test again.

use std::{
    fmt, fs,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::awake;

/// Text before the figures in a failed test's output.
const SAID: &str = "taken by the hypervisor while the test ran: ";
/// Text between the figures.
const AT_ONCE: &str = " % of all CPUs' time, ms at once at most: ";
/// The time for which [`await_quiet`] keeps all CPUs busy, to see whether the hypervisor takes CPUs
/// away. The hypervisor takes time only from a CPU that has work.
const TRIED: Duration = Duration::from_millis(300);
/// Time between two tries of [`await_quiet`].
const PAUSE: Duration = Duration::from_secs(3);

/// Time between two wake-ups of a CPU's watcher.
const WATCHED_EVERY: Duration = Duration::from_millis(2);
/// Least delay that counts as a stop of the CPU. Shorter delays come from interrupts or from an
/// idle CPU's wake-up.
const LATE: Duration = Duration::from_millis(1);
/// Least length of a stop that the watcher records individually.
const LONG: Duration = Duration::from_millis(5);
/// All stops of at least [`LONG`].
static STOPS: Mutex<Vec<Stop>> = Mutex::new(Vec::new());
/// Time that CPUs stood still since the watchers started, as the watchers saw it, summed over all
/// CPUs, ns.
static STOOD_STILL_NS: AtomicU64 = AtomicU64::new(0);

/// USER_HZ, which is the same on all x86-64 and arm64 kernels.
const TICKS_PER_SECOND: f64 = 100.0;

struct Stop {
    ended: Instant,
    lasted: Duration,
}

/// CPU time that the hypervisor took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Taken {
    /// Part of all CPUs' time, percent: the greater of the kernel's and the watchers' figure.
    pub percent: f64,
    /// Longest single stop of a CPU, ms.
    pub at_once_ms: f64,
}

impl Taken {
    /// Returns the figures that a failed test printed.
    pub fn said(output: &str) -> Option<Self> {
        let read = |line: &str| {
            let (percent, at_once_ms) = line.strip_prefix(SAID)?.split_once(AT_ONCE)?;
            Some(Self { percent: percent.parse().ok()?, at_once_ms: at_once_ms.parse().ok()? })
        };
        output.lines().rev().find_map(read)
    }
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}{AT_ONCE}{:.0}", self.percent, self.at_once_ms)
    }
}

/// Counts the CPU time that the hypervisor takes from the creation of the value on. If a test fails
/// while the value lives, drop prints the figures.
#[derive(Debug)]
pub struct Stolen {
    began: Instant,
    ticks: u64,
    stood_still_ns: u64,
}

impl Stolen {
    /// Starts to count, and keeps the CPUs awake.
    pub fn start() -> Self {
        awake::keep();
        Self::count()
    }

    /// Starts to count without keeping the CPUs awake. Tests that use a CPU all the time call this
    /// function, because a sibling CPU that is kept awake would slow them.
    pub fn count() -> Self {
        watch();
        Self { began: Instant::now(), ticks: ticks(), stood_still_ns: STOOD_STILL_NS.load(Ordering::Relaxed) }
    }

    /// Returns the CPU time that the hypervisor took since the creation.
    pub fn taken(&self) -> Taken {
        let told = ticks().saturating_sub(self.ticks) as f64 / TICKS_PER_SECOND;
        let seen = STOOD_STILL_NS.load(Ordering::Relaxed) - self.stood_still_ns;
        let seconds = told.max(Duration::from_nanos(seen).as_secs_f64());
        let stops = STOPS.lock().unwrap_or_else(PoisonError::into_inner);
        let longest = stops.iter().filter(|stop| stop.ended >= self.began).map(|stop| stop.lasted).max();
        Taken {
            percent: 100.0 * seconds
                / (self.began.elapsed().as_secs_f64() * awake::cpus().count().max(1) as f64),
            at_once_ms: longest.unwrap_or_default().as_secs_f64() * 1e3,
        }
    }
}

impl Drop for Stolen {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("{SAID}{}", self.taken());
        }
    }
}

/// Waits until the hypervisor takes less than `percent` of the CPUs' time. Returns false if the
/// hypervisor still takes more after `within`.
pub fn await_quiet(percent: f64, within: Duration) -> bool {
    let began = Instant::now();
    loop {
        let stolen = Stolen::start();
        thread::scope(|scope| {
            for _ in awake::cpus() {
                // Without the thread, the CPU's figure is that of a CPU with less work.
                let _ =
                    thread::Builder::new().spawn_scoped(scope, || while stolen.began.elapsed() < TRIED {});
            }
        });
        if stolen.taken().percent < percent {
            return true;
        }
        if began.elapsed() > within {
            return false;
        }
        thread::sleep(PAUSE);
    }
}

/// Starts a watcher on each CPU that this process may use; further calls do nothing. If the process
/// lacks the rights or threads for watchers, only the kernel's figure counts.
fn watch() {
    static STARTED: OnceLock<()> = OnceLock::new();
    STARTED.get_or_init(|| {
        for cpu in awake::cpus() {
            awake::spawn(move || watch_cpu(cpu));
        }
    });
}

/// Adds up the time for which the CPU stands still, until the process ends.
fn watch_cpu(cpu: usize) {
    // SCHED_FIFO runs before all threads that are scheduled fairly.
    if !awake::bind_to(cpu) || !awake::set_scheduling(libc::SCHED_FIFO, 1) {
        return;
    }
    loop {
        let began = Instant::now();
        thread::sleep(WATCHED_EVERY);
        let late = began.elapsed().saturating_sub(WATCHED_EVERY);
        if late >= LONG {
            let stop = Stop { ended: Instant::now(), lasted: late };
            STOPS.lock().unwrap_or_else(PoisonError::into_inner).push(stop);
        }
        if late >= LATE {
            STOOD_STILL_NS.fetch_add(late.as_nanos() as u64, Ordering::Relaxed);
        }
    }
}

/// Returns the eighth figure of the first line: steal ticks of all CPUs together. Returns 0 if the
/// kernel does not report it.
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
    fn a_report_of_stolen_time_is_understood() {
        let taken = Taken { percent: 23.4, at_once_ms: 118.0 };
        assert_eq!(Taken::said(&format!("some line\n{SAID}{taken}\nanother\n")), Some(taken));
        assert_eq!(Taken::said("nothing"), None);
    }
}
