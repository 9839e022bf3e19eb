//! Metering from outside, for programs into which deepres cannot be loaded. Probes at the driver
//! library's functions count the launches and allocations of such a process. The probes hold up no
//! call, so they limit nothing.
//!
//! The kernel follows a metered process and its children. The daemon probes a library only in the
//! processes that use it, with one exception: a probe at `cuInit` of each known library acts in all
//! processes. It reports a metered process's call, so that a child is probed before it can launch.
//!
//! | module | job |
//! |---|---|
//! | [`entry`] | which functions are counted |
//! | `shares` | how many probes one user may have |
//! | [`symbols`] | finds the functions in a file |
//! | `libraries` | which files a process has mapped |
//! | [`programs`] | the kernel programs |
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

/// Most time for the answer to a request to meter a process. Usually the answer takes milliseconds;
/// on a busy machine it takes seconds.
pub const LIMIT: Duration = Duration::from_secs(4);
/// Time that the requesting side waits for the daemon. It is longer than [`LIMIT`].
pub const PATIENCE: Duration = LIMIT.saturating_add(Duration::from_secs(2));

/// The reason for metering a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Purpose {
    /// The tenant's name, for display.
    pub tenant: Option<String>,
    /// Whether the process was started to be metered. If so, it is not reported as unmanaged.
    pub is_managed: bool,
}

enum Order {
    Meter { pid: u32, purpose: Purpose, answer: oneshot::Sender<Result<(), String>> },
    Stop,
}

/// Handle of the metering thread. The thread may wait for a file system or a process, so nobody
/// waits for the thread.
pub struct Metering {
    board: Arc<Mutex<MeteringStatus>>,
    orders: mpsc::Sender<Order>,
    wake: Arc<OwnedFd>,
}

impl Metering {
    /// Starts the thread, which loads the programs only when a process is to be metered. `refusal`
    /// is the reason if no process can be metered.
    ///
    /// # Errors
    /// The system's error if it provides no thread or no descriptor.
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

    /// Meters a process and its future children. Metering begins before the answer arrives.
    pub fn meter(&self, pid: u32, purpose: Purpose) -> oneshot::Receiver<Result<(), String>> {
        let (answer, answered) = oneshot::channel();
        // If the thread has ended, the order and its answer are dropped, which the caller notices.
        let _ = self.orders.send(Order::Meter { pid, purpose, answer });
        self.ring();
        answered
    }

    /// Returns a copy of the board.
    pub fn board(&self) -> MeteringStatus {
        self.board.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn ring(&self) {
        // The write fails only if the counter is full.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Metering {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Stop);
        self.ring();
    }
}
