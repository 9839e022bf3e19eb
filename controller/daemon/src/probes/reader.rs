//! Reads data of /proc for which the kernel looks into a process: its command line and its
//! mappings. Such a read takes the lock of the process's memory map. A process can keep this lock
//! for as long as it likes, by a file system of its own that does not answer. Therefore threads of
//! their own read this data. Other threads wait for the result for a limited time at most.

use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{ClockId, clock_gettime};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::Duration;

/// The most threads of one pool. Each process can block two threads.
const MAX_READERS: usize = 16;
/// The most readings that wait for a thread.
const MAX_WAITING: usize = 1 << 16;
/// The time without work after which a thread ends.
const IDLE: Duration = Duration::from_secs(10);
/// The characters of a command line that the daemon keeps.
const COMMAND_CHARS: usize = 120;

type Reading = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    waiting: VecDeque<Reading>,
    readers: usize,
    idle: usize,
}

/// A pool of threads. All clones share the pool.
#[derive(Clone, Default)]
pub struct Readers(Arc<(Mutex<State>, Condvar)>);

impl Readers {
    /// Queues a reading. The reading delivers its result itself, and can take for ever. If too many
    /// readings wait, the pool drops the reading.
    pub fn start(&self, reading: impl FnOnce() + Send + 'static) {
        let (state, more) = &*self.0;
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.waiting.len() >= MAX_WAITING {
            return;
        }
        state.waiting.push_back(Box::new(reading));
        if state.idle >= state.waiting.len() {
            more.notify_one();
        } else if state.readers < MAX_READERS {
            let pool = Arc::clone(&self.0);
            let reader = std::thread::Builder::new().name("deepres-read".to_owned());
            state.readers += usize::from(reader.spawn(move || serve(&pool)).is_ok());
        }
    }

    /// Reads something and waits for the result, but for at most `limit`. Returns `None` without a
    /// result.
    pub fn within<T: Send + 'static>(
        &self,
        limit: Duration,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.start(move || {
            // If the caller no longer waits, the send fails.
            let _ = answer.send(read());
        });
        answered.recv_timeout(limit).ok()
    }
}

fn serve(pool: &(Mutex<State>, Condvar)) {
    let (state, more) = pool;
    let lock = || state.lock().unwrap_or_else(PoisonError::into_inner);
    let mut held = lock();
    loop {
        if let Some(reading) = held.waiting.pop_front() {
            drop(held);
            reading();
            held = lock();
            continue;
        }
        held.idle += 1;
        let (back, waited) = more.wait_timeout(held, IDLE).unwrap_or_else(PoisonError::into_inner);
        held = back;
        held.idle -= 1;
        if waited.timed_out() && held.waiting.is_empty() {
            held.readers -= 1;
            return;
        }
    }
}

/// One thread for one kind of reading. So a reading waits only for readings of the same kind.
pub struct Reader(mpsc::Sender<Reading>);

impl Reader {
    /// Starts the thread. The thread ends after this value is dropped and the queued readings are
    /// done.
    ///
    /// # Errors
    /// The system's error, for lack of threads.
    pub fn start(name: &str) -> std::io::Result<Self> {
        let (readings, received) = mpsc::channel::<Reading>();
        let thread = std::thread::Builder::new().name(name.to_owned());
        thread.spawn(move || received.into_iter().for_each(|reading| reading()))?;
        Ok(Self(readings))
    }

    /// Queues a reading behind the earlier readings.
    pub fn read(&self, reading: impl FnOnce() + Send + 'static) {
        // If the thread has panicked, the send fails, and no thread runs the reading.
        let _ = self.0.send(Box::new(reading));
    }
}

/// Returns the processor time of the calling thread, ns, without the time in which the thread
/// waited.
pub fn thread_ns() -> u64 {
    let taken = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(taken.tv_sec as u64, taken.tv_nsec as u32).as_nanos() as u64
}

/// Returns a descriptor that wakes a thread which polls it.
///
/// # Errors
/// The system's error, for lack of descriptors.
pub fn bell() -> std::io::Result<Arc<OwnedFd>> {
    Ok(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
}

/// Rings a bell.
pub fn ring(bell: &OwnedFd) {
    // If the counter is full, the write fails, but the bell has already rung.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// Returns the command line of a process, shortened; `None` without a command line. The process can
/// block this call for as long as it likes.
pub fn command_line(pid: u32) -> Option<String> {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = words.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    let words: Vec<_> = words.map(String::from_utf8_lossy).collect();
    (!words.is_empty()).then(|| shortened(&words.join(" ")))
}

/// Returns a command in the form that the status shows: shortened and harmless.
pub fn shortened(command: &str) -> String {
    deepres_model::text::harmless(&command.chars().take(COMMAND_CHARS).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn a_reading_that_never_ends_keeps_nobody_waiting() {
        let readers = Readers::default();
        let stuck = Arc::new(Barrier::new(2));
        let its = Arc::clone(&stuck);
        assert_eq!(readers.within(Duration::from_millis(5), move || its.wait().is_leader()), None);
        assert_eq!(readers.within(Duration::from_secs(60), || 7), Some(7), "another thread reads");
        stuck.wait();
    }

    #[test]
    fn so_many_readings_that_never_end_are_the_most_there_are_threads_for() {
        let readers = Readers::default();
        let stuck = Arc::new(Barrier::new(MAX_READERS + 1));
        for _ in 0..MAX_READERS {
            let its = Arc::clone(&stuck);
            readers.start(move || {
                its.wait();
            });
        }
        let (answer, answered) = mpsc::channel();
        readers.start(move || answer.send(7).unwrap());
        assert!(answered.recv_timeout(Duration::from_millis(20)).is_err());
        assert_eq!(readers.0.0.lock().unwrap().readers, MAX_READERS);
        stuck.wait();
        assert_eq!(answered.recv(), Ok(7), "it was only late");
    }

    #[test]
    fn readings_of_one_kind_wait_for_each_other_and_for_no_others() {
        let (stuck, free) = (Reader::start("stuck").unwrap(), Reader::start("free").unwrap());
        let (answer, answered) = mpsc::channel();
        let (go, gone) = mpsc::channel::<()>();
        let its = answer.clone();
        stuck.read(move || {
            gone.recv().unwrap();
            its.send("first").unwrap();
        });
        let its = answer.clone();
        stuck.read(move || its.send("second").unwrap());
        free.read(move || answer.send("another kind").unwrap());
        assert_eq!(answered.recv(), Ok("another kind"));
        go.send(()).unwrap();
        drop(stuck);
        assert_eq!(
            (answered.recv(), answered.recv()),
            (Ok("first"), Ok("second")),
            "also once it is dropped"
        );
        drop(free);
        assert!(answered.recv().is_err());
    }

    #[test]
    fn the_time_of_a_thread_is_without_its_waits() {
        let before_ns = thread_ns();
        std::thread::sleep(Duration::from_millis(50));
        assert!(thread_ns() - before_ns < 25_000_000);
    }

    #[test]
    fn a_process_has_the_command_line_that_it_was_started_with() {
        let own = command_line(std::process::id()).unwrap();
        assert!(!own.is_empty() && own.chars().count() <= COMMAND_CHARS);
        assert_eq!(command_line(0), None);
    }
}
