//! CPU time that the hypervisor takes from this machine: what a test measures meanwhile says little about deepres.
//!
//! On a shared virtual machine a CPU can stand still for a second, between any two instructions, and no program on it can do anything about
//! that. The kernel counts what it is told of (steal in /proc/stat, proc(5)); a thread on each CPU that runs before all others sees the rest: it
//! wakes up late. A test that fails says how much it was; the runner decides by that whether to try again.

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

/// What stands before the figures in a failed test's output.
const SAID: &str = "taken by the hypervisor while the test ran: ";
/// What stands between them.
const AT_ONCE: &str = " % of all CPUs' time, ms at once at most: ";
/// How long [`await_quiet`] wants the CPUs for itself to see whether they are taken: only who wants a CPU is denied one.
const TRIED: Duration = Duration::from_millis(300);
/// Between two tries.
const PAUSE: Duration = Duration::from_secs(3);

/// How often a CPU's watcher wakes up.
const WATCHED_EVERY: Duration = Duration::from_millis(2);
/// Waking up so much later is no stop of the CPU: an interrupt, an idle CPU's first steps.
const LATE: Duration = Duration::from_millis(1);
/// A stop of a CPU that is remembered by itself.
const LONG: Duration = Duration::from_millis(5);
/// Those there were.
static STOPS: Mutex<Vec<Stop>> = Mutex::new(Vec::new());
/// For how long all CPUs together stood still since the first [`Stolen::start`], as their watchers saw it, ns.
static STOOD_STILL_NS: AtomicU64 = AtomicU64::new(0);

/// USER_HZ, the same on all x86-64 and arm64 kernels.
const TICKS_PER_SECOND: f64 = 100.0;

struct Stop {
    ended: Instant,
    lasted: Duration,
}

/// How much it was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Taken {
    /// The part of all CPUs' time, percent: as the kernel was told or as the watchers saw it, whichever is more.
    pub percent: f64,
    /// The longest that a CPU stood still at a time, ms.
    pub at_once_ms: f64,
}

impl Taken {
    /// What a failed test said.
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

/// Counts from a moment on. A test that fails while this lives says in its output how much it was.
#[derive(Debug)]
pub struct Stolen {
    began: Instant,
    ticks: u64,
    stood_still_ns: u64,
}

impl Stolen {
    /// Counts from now on, and keeps the CPUs awake.
    pub fn start() -> Self {
        awake::keep();
        Self::count()
    }

    /// Counts from now on, for what has a CPU all the time: one that is kept awake beside it on the same core would slow it.
    pub fn count() -> Self {
        watch();
        Self { began: Instant::now(), ticks: ticks(), stood_still_ns: STOOD_STILL_NS.load(Ordering::Relaxed) }
    }

    /// What was taken since.
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

/// Waits until the hypervisor leaves the machine its CPUs: less than this part of their time is taken, percent. Whether that came to be
/// within the limit.
pub fn await_quiet(percent: f64, within: Duration) -> bool {
    let began = Instant::now();
    loop {
        let stolen = Stolen::start();
        thread::scope(|scope| {
            for _ in awake::cpus() {
                scope.spawn(|| while stolen.began.elapsed() < TRIED {});
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

/// Starts a watcher on each CPU that there is for us, once. Where the rights for that are lacking, what the kernel was told must do.
fn watch() {
    static STARTED: OnceLock<()> = OnceLock::new();
    STARTED.get_or_init(|| {
        for cpu in awake::cpus() {
            thread::spawn(move || watch_cpu(cpu));
        }
    });
}

/// Counts for how long the CPU stood still, for as long as the process lives.
fn watch_cpu(cpu: usize) {
    // Before all that are scheduled fairly.
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
        let taken = Taken { percent: 23.4, at_once_ms: 118.0 };
        assert_eq!(Taken::said(&format!("some line\n{SAID}{taken}\nanother\n")), Some(taken));
        assert_eq!(Taken::said("nothing"), None);
    }
}
