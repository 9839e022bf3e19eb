//! The arbiter: one thread for each GPU. The thread reads the meters, lets
//! [`deepres_policy::arbiter`] decide, and sets the gates.

mod events;
mod explain;
mod freezer;
mod gangs;
mod job;
mod questions;
mod report;
mod session;
mod worker;

pub use deepres_policy::arbiter::{Baseline, Counters, SavedAccount, SavedMeter, SessionId, Snapshot};
pub use events::Bell;
pub use gangs::GangBoard;
pub use job::JobUse;
pub use report::Report;

use crate::mps_clients::Client;
use crate::shm::SharedPage;
use deepres_abi::beat::BeatPage;
use deepres_abi::grant::{FailMode, GrantPage};
use deepres_abi::ledger::LedgerPage;
use deepres_abi::meter::MeterPage;
use deepres_model::admin::ShareStatus;
use deepres_model::process::ProcessKey;
use deepres_policy::TenantId;
use deepres_policy::arbiter::{self as core, ProcessId};
use deepres_policy::entitlement::Request;
use deepres_policy::lease::trust::UserId;
use deepres_policy::priority::{Priority, Weights};
use deepres_policy::tuning::QuantumBounds;
use events::Ringer;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// The parameters of an arbiter.
#[derive(Debug)]
pub struct Setup {
    /// The daemon's number for the GPU, and the index of its slot in each page.
    pub gpu: usize,
    /// The board on which the arbiters of a host agree on gangs. `None` without `gangs` in the
    /// configuration, and on a host with one GPU.
    pub board: Option<Arc<GangBoard>>,
    /// The host's heartbeat.
    pub beat: Arc<SharedPage<BeatPage>>,
    /// The age of the last heartbeat at which tenants take the daemon for dead, ns.
    pub heartbeat_limit_ns: u64,
    /// The GPU's memory, bytes.
    pub memory_bytes: u64,
    /// The bounds of the quantum.
    pub quantum: QuantumBounds,
    /// The weights of the terms of a priority value.
    pub weights: Weights,
    /// The most GPU time that guests may cost owners, parts per million of the time.
    pub max_harm_ppm: u32,
    /// Whether the arbiter opens or closes the gates at its end.
    pub fail_mode: FailMode,
}

impl Setup {
    /// Returns the part of these parameters that the arbiter's core uses.
    fn of_core(&self) -> core::Setup {
        core::Setup {
            heartbeat_limit_ns: self.heartbeat_limit_ns,
            quantum: self.quantum,
            weights: self.weights,
            max_harm_ppm: self.max_harm_ppm,
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            has_peers: self.board.is_some(),
        }
    }
}

/// The state of one GPU that the previous daemon saved.
#[derive(Debug, Default)]
pub struct Restored {
    /// When the previous daemon saved the state, ns of `CLOCK_MONOTONIC`.
    pub saved_ns: u64,
    /// The GPU's counters.
    pub counters: Counters,
    /// The tenants with their accounts on this GPU.
    pub accounts: Vec<(TenantSeat, SavedAccount)>,
    /// For each process that can come back: the point up to which the previous daemon charged it.
    pub baselines: Vec<(TenantId, ProcessKey, Baseline)>,
}

impl Restored {
    /// Returns the state in the form that the arbiter's core takes over.
    fn of_core(&self) -> core::Restored {
        let baselines = self.baselines.iter();
        core::Restored {
            saved_ns: self.saved_ns,
            counters: self.counters,
            accounts: self.accounts.iter().map(|(seat, saved)| (seat.of_core(), *saved)).collect(),
            baselines: baselines
                .map(|(tenant, process, baseline)| (*tenant, process_id(*process), *baseline))
                .collect(),
        }
    }
}

/// The registry's description of a tenant, for an arbiter.
#[derive(Debug, Clone)]
pub struct TenantSeat {
    /// The tenant's number.
    pub id: TenantId,
    /// The share, class and caps that the tenant asks for. The arbiter fills in the priority value,
    /// and whether the tenant is idle.
    pub request: Request,
    /// The declarations about the tenant's job: deadline, size and criticality.
    pub priority: Priority,
    /// The GPU time that this job has used on all GPUs.
    pub job: Arc<JobUse>,
    /// The latency that the tenant wants for a request (SLO), ns.
    pub slo_ns: Option<u64>,
    /// The part of the SMs that the daemon granted, parts per million; `None` without one.
    pub sm_ppm: Option<u32>,
    /// Whether the daemon uses MPS, so that parts of the SMs count.
    pub uses_mps: bool,
    /// Whether the tenant takes turns with all others, because its memory follows its turns.
    pub takes_turns: bool,
    /// The memory limit, bytes, or [`deepres_abi::grant::NO_LIMIT`].
    pub memory_limit_bytes: u64,
    /// The memory limit that all sessions of the tenant on this GPU know, bytes. If the limit was
    /// higher before, the ledger already shows all memory that the sessions took under the higher
    /// limit.
    pub limit_in_force: Arc<AtomicU64>,
    /// Whether the arbiter charges the tenant for the time of its copies.
    pub charge_copies: bool,
    /// Whether the daemon keeps the tenant off the GPU: an administrator paused the tenant, or the
    /// tenant is suspended.
    pub is_paused: bool,
    /// Whether the tenant is suspended, or the daemon is moving it off the GPU. The driver then
    /// holds back the work that the tenant's meters show in flight.
    pub is_suspended: bool,
    /// The tenant's ledger.
    pub ledger: Arc<SharedPage<LedgerPage>>,
}

impl TenantSeat {
    /// Returns the part of the description that the arbiter's core uses.
    fn of_core(&self) -> core::TenantSeat {
        core::TenantSeat {
            id: self.id,
            request: self.request,
            priority: self.priority,
            slo_ns: self.slo_ns,
            sm_ppm: self.sm_ppm,
            uses_mps: self.uses_mps,
            takes_turns: self.takes_turns,
            is_paused: self.is_paused,
            is_suspended: self.is_suspended,
        }
    }
}

/// The registry's description of a session, for an arbiter.
#[derive(Debug, Clone)]
pub struct SessionSeat {
    /// The session's number.
    pub id: SessionId,
    /// The grant page, in which the arbiter writes what the session may do.
    pub grant: Arc<SharedPage<GrantPage>>,
    /// The meter page, in which the session writes what it did.
    pub meter: Arc<SharedPage<MeterPage>>,
    /// Whether the session's process is a client of MPS.
    pub mps: Arc<Client>,
    /// The session's slot in the tenant's ledger.
    pub ledger_slot: usize,
    /// The bell that the session rings to wake this GPU's arbiter.
    pub bell: Bell,
    /// The session's process, if it is known.
    pub process: Option<ProcessKey>,
    /// The number of the user or container whose tenants share their debts; `None` for tenants that
    /// share no debts.
    pub user: Option<UserId>,
    /// Whether the session's meter continues the counts of earlier sessions of the same process.
    pub continues: bool,
}

impl SessionSeat {
    /// Returns the payer of the rings of this session, a session of `tenant`.
    fn ringer(&self, tenant: TenantId) -> Ringer {
        self.user.map_or(Ringer::Tenant(tenant), Ringer::User)
    }

    /// Returns the part of the description that the arbiter's core uses.
    fn of_core(&self) -> core::SessionSeat {
        core::SessionSeat {
            id: self.id,
            process: self.process.map(process_id),
            user: self.user,
            continues: self.continues,
        }
    }
}

/// Returns the identity of a process in the form that the arbiter's core uses.
fn process_id(process: ProcessKey) -> ProcessId {
    (process.pid, process.start_ticks)
}

/// A command of the daemon's main thread to an arbiter's thread.
#[derive(Debug)]
enum Command {
    Enter { tenant: TenantSeat, session: SessionSeat, done: oneshot::Sender<()> },
    Leave { tenant: TenantId, session: SessionId, may_return: bool },
    Bury { tenant: TenantId, process: ProcessKey },
    Restore { restored: Box<Restored> },
    StopWaiting,
    Save { answer: oneshot::Sender<Snapshot> },
    SetTenant { seat: TenantSeat, done: oneshot::Sender<()> },
    Forget { tenant: TenantId },
    Report { answer: oneshot::Sender<Report> },
    Explain { tenant: TenantId, answer: oneshot::Sender<Option<ShareStatus>> },
    Stop,
}

/// The time for which this thread asks to run at once, ns: the least that Linux takes.
const SLICE_NS: u64 = 100_000;

/// Asks the system to run this thread soon whenever it wakes, for short times. An arbiter works for
/// some ten microseconds at a time, and the GPU can idle until it does. From version 6.12 on, Linux
/// lets a thread that asks for a shorter time than the running thread take its place at once. Other
/// versions ignore the question.
fn ask_for_short_slices() {
    // SAFETY: all zeroes are a valid value of this plain structure.
    let mut attributes = unsafe { std::mem::zeroed::<libc::sched_attr>() };
    let (this_thread, size) = (0, size_of_val(&attributes));
    let room = &raw mut attributes;
    // SAFETY: the structure has room for `size` bytes.
    let is_told = unsafe { libc::syscall(libc::SYS_sched_getattr, this_thread, room, size, 0) } == 0;
    // An administrator may have chosen another policy for the daemon.
    if is_told && attributes.sched_policy == libc::SCHED_OTHER as u32 {
        attributes.sched_runtime = SLICE_NS;
        let wanted = &raw const attributes;
        // SAFETY: the system only reads the structure, which it filled above.
        unsafe { libc::syscall(libc::SYS_sched_setattr, this_thread, wanted, 0) };
    }
}

/// The handle by which the daemon talks to an arbiter's thread.
#[derive(Debug)]
pub struct Arbiter {
    commands: mpsc::Sender<Command>,
    bell: Bell,
    stirred: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Arbiter {
    /// Starts the arbiter's thread.
    ///
    /// # Errors
    /// The system's error, for lack of descriptors or threads.
    pub fn start(setup: Setup) -> io::Result<Self> {
        let bell = Bell::new()?;
        let (commands, orders) = mpsc::channel();
        let name = format!("gpu{}", setup.gpu);
        let stirred = Arc::new(AtomicBool::new(true));
        let worker = worker::Worker::new(setup, orders, &bell, Arc::clone(&stirred))?;
        let run = move || {
            ask_for_short_slices();
            worker.run();
        };
        let thread = std::thread::Builder::new().name(name).spawn(run)?;
        Ok(Self { commands, bell, stirred, thread: Some(thread) })
    }

    /// Returns whether a tenant wanted the GPU since the last call.
    pub fn has_stirred(&self) -> bool {
        self.stirred.swap(false, Ordering::Relaxed)
    }

    fn order(&self, command: Command) {
        // An arbiter that has stopped takes no orders. If a caller waits for an answer, it sees the
        // channel closed.
        if self.commands.send(command).is_ok() {
            self.bell.ring();
        }
    }

    /// Lets a session in. The returned channel gets an answer once the session's gate, limit and
    /// heartbeat are in force.
    pub fn enter(&self, tenant: TenantSeat, session: SessionSeat) -> oneshot::Receiver<()> {
        let (done, answer) = oneshot::channel();
        self.order(Command::Enter { tenant, session, done });
        answer
    }

    /// Takes a session out and leaves its gate open. If the session was the tenant's last, the
    /// tenant's lease ends. With `may_return`, the arbiter remembers the point up to which it
    /// charged the process.
    pub fn leave(&self, tenant: TenantId, session: SessionId, may_return: bool) {
        self.order(Command::Leave { tenant, session, may_return });
    }

    /// Makes the arbiter forget a process that died.
    pub fn bury(&self, tenant: TenantId, process: ProcessKey) {
        self.order(Command::Bury { tenant, process });
    }

    /// Makes the arbiter take over the state that the previous daemon saved. The caller must do
    /// this before any session enters.
    pub fn restore(&self, restored: Restored) {
        self.order(Command::Restore { restored: Box::new(restored) });
    }

    /// Ends the wait for processes of the previous daemon. If such a process comes later without a
    /// saved baseline, the arbiter does not charge its earlier use.
    pub fn stop_waiting(&self) {
        self.order(Command::StopWaiting);
    }

    /// Asks for the state that the daemon saves. The returned channel gets the answer.
    pub fn snapshot(&self) -> oneshot::Receiver<Snapshot> {
        let (answer, snapshot) = oneshot::channel();
        self.order(Command::Save { answer });
        snapshot
    }

    /// Changes a tenant's wishes and limits, and whether the tenant is paused. The returned channel
    /// gets an answer once the change is in force.
    pub fn set_tenant(&self, seat: TenantSeat) -> oneshot::Receiver<()> {
        let (done, answer) = oneshot::channel();
        self.order(Command::SetTenant { seat, done });
        answer
    }

    /// Makes the arbiter forget a tenant and its account.
    pub fn forget(&self, tenant: TenantId) {
        self.order(Command::Forget { tenant });
    }

    /// Asks for the derivation of a tenant's share. The returned channel gets the answer.
    pub fn explain(&self, tenant: TenantId) -> oneshot::Receiver<Option<ShareStatus>> {
        let (answer, explained) = oneshot::channel();
        self.order(Command::Explain { tenant, answer });
        explained
    }

    /// Asks for the state of the GPU, its tenants and its sessions. The returned channel gets the
    /// answer.
    pub fn report(&self) -> oneshot::Receiver<Report> {
        let (answer, report) = oneshot::channel();
        self.order(Command::Report { answer });
        report
    }
}

impl Drop for Arbiter {
    /// Opens every gate, or closes every gate if tenants are to fail closed. Then ends the thread.
    fn drop(&mut self) {
        self.order(Command::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("an arbiter thread panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_asks_for_short_slices_keeps_its_policy_and_priority() {
        let attributes = || {
            // SAFETY: all zeroes are a valid value of this plain structure.
            let mut attributes = unsafe { std::mem::zeroed::<libc::sched_attr>() };
            let size = size_of_val(&attributes);
            // SAFETY: the structure has room for `size` bytes.
            unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
            attributes
        };
        let asks = move || {
            let before = attributes();
            ask_for_short_slices();
            (before, attributes())
        };
        let (before, after) = std::thread::spawn(asks).join().unwrap();
        assert_eq!((before.sched_policy, before.sched_nice), (after.sched_policy, after.sched_nice));
        // Versions of Linux before 6.12 tell no time.
        assert_eq!(after.sched_runtime, before.sched_runtime.min(SLICE_NS));
    }
}
