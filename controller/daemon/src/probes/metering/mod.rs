//! Metering from outside, for programs that cannot load the interposer. Probes at the functions of
//! the driver's library count the launches and allocations of such a process. The probes delay no
//! call, so they limit nothing.
//!
//! The eBPF programs follow a metered process and its children. The daemon probes a library's
//! functions only in the metered processes that use the library. There is one exception: a probe at
//! `cuInit` of each known library acts in all processes. When a metered process calls `cuInit`,
//! this probe reports the process. So the daemon can probe a child of a metered process before the
//! child's first launch.
//!
//! | module | job |
//! |---|---|
//! | [`entry`] | the functions that metering counts |
//! | `shares` | the number of probes that one source may have |
//! | [`symbols`] | finds the functions in a file |
//! | `libraries` | the files that a process has mapped |
//! | [`programs`] | the eBPF programs |
//! | `worker` | the thread that attaches, reads and forgets |
//! | `undertaker` | the thread that detaches |

pub mod entry;
mod libraries;
pub mod programs;
mod shares;
pub mod symbols;
mod undertaker;
mod worker;

use super::connected::Connected;
use deepres_model::probes::MeteringStatus;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;
use tokio::sync::oneshot;

/// The most time for the answer to a request to meter a process. The answer usually takes
/// milliseconds, and seconds on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(4);
/// Time for which the requesting process waits for the daemon. This time is longer than [`LIMIT`].
pub const PATIENCE: Duration = LIMIT.saturating_add(Duration::from_secs(2));

/// The reason for metering a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Purpose {
    /// The tenant's name, for display.
    pub tenant: Option<String>,
    /// Whether a user started the process by `deepres run --no-preload`. The daemon does not report
    /// such a process as unmanaged.
    pub is_managed: bool,
}

enum Order {
    Meter { pid: u32, purpose: Purpose, answer: oneshot::Sender<Result<(), String>> },
    Stop,
}

/// Handle of the metering thread. The thread can wait for a file system or a process, so no other
/// thread waits for it.
pub struct Metering {
    board: Arc<Mutex<MeteringStatus>>,
    orders: mpsc::Sender<Order>,
    wake: Arc<OwnedFd>,
}

impl Metering {
    /// Starts the thread. The thread loads the programs only for the first metered process. If no
    /// process can be metered, `refusal` is the reason.
    ///
    /// # Errors
    /// The system's error, for lack of threads or descriptors.
    pub fn start(refusal: Option<String>, connected: Arc<Connected>) -> std::io::Result<Self> {
        let board = Arc::new(Mutex::new(MeteringStatus::default()));
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (orders, received) = mpsc::channel();
        let (its_board, its_wake) = (Arc::clone(&board), Arc::clone(&wake));
        let worker = worker::Worker::new(refusal, connected, its_board)?;
        std::thread::Builder::new()
            .name("deepres-meter".to_owned())
            .spawn(move || worker.run(&its_wake, &received))?;
        Ok(Self { board, orders, wake })
    }

    /// Meters a process and its future children. The returned channel gets the answer after
    /// metering has begun.
    pub fn meter(&self, pid: u32, purpose: Purpose) -> oneshot::Receiver<Result<(), String>> {
        let (answer, answered) = oneshot::channel();
        // If the thread has ended, the order and its answer are dropped. The caller sees the
        // channel closed.
        let _ = self.orders.send(Order::Meter { pid, purpose, answer });
        self.ring();
        answered
    }

    /// Returns a copy of the status of all metered processes.
    pub fn board(&self) -> MeteringStatus {
        self.board.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn ring(&self) {
        // If the counter is full, the write fails, and the thread wakes anyway.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Metering {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Stop);
        self.ring();
    }
}
