//! Metering from outside, for programs that deepres cannot be loaded into: probes at the driver library's functions count what its
//! processes launch and allocate. Nothing is held up by them, so nothing is limited.
//!
//! A metered process is followed in the kernel, and so are its children. The library that they use is probed in the processes that use
//! it and nowhere else, but for one function: whoever calls `cuInit` in a library that is known tells of itself, so that a child is probed
//! before it can launch.
//!
//! | module | job |
//! |---|---|
//! | [`entry`] | which functions are counted |
//! | `shares` | how many probes one user may have |
//! | [`symbols`] | where a file has them |
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

/// How long the answer to who wants a process metered may take: milliseconds, and seconds on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(4);
/// How long whoever asks the daemon for it waits: longer.
pub const PATIENCE: Duration = LIMIT.saturating_add(Duration::from_secs(2));

/// What a process is metered for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Purpose {
    /// The tenant, for people to read.
    pub tenant: Option<String>,
    /// It was started to be metered: it is none of those that are told of as unmanaged.
    pub is_managed: bool,
}

enum Order {
    Meter { pid: u32, purpose: Purpose, answer: oneshot::Sender<Result<(), String>> },
    Stop,
}

/// The metering thread. It may be waiting for a file system or for a process: nobody waits for it.
pub struct Metering {
    board: Arc<Mutex<MeteringStatus>>,
    orders: mpsc::Sender<Order>,
    wake: Arc<OwnedFd>,
}

impl Metering {
    /// Starts the thread, which loads nothing before someone is to be metered. `refusal` says why nobody can be, if so.
    ///
    /// # Errors
    /// The system's: no thread, no descriptor.
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

    /// Meters a process and the children that it will have, from before the answer on.
    pub fn meter(&self, pid: u32, purpose: Purpose) -> oneshot::Receiver<Result<(), String>> {
        let (answer, answered) = oneshot::channel();
        // A thread that is gone drops the answer, which is one.
        let _ = self.orders.send(Order::Meter { pid, purpose, answer });
        self.ring();
        answered
    }

    /// How things stand.
    pub fn board(&self) -> MeteringStatus {
        self.board.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn ring(&self) {
        // It fails only if it has been rung for ever.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Metering {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Stop);
        self.ring();
    }
}
