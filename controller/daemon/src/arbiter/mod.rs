//! One thread for each GPU: it watches the meters, asks [`deepres_policy::lease`] and sets the gates.

pub mod account;
mod arrears;
mod events;
mod frozen;
mod gangs;
mod latency;
mod overdue;
mod overlap;
mod owed;
mod report;
mod saved;
mod stopped;
mod tenant;
mod worker;

pub use events::Bell;
pub use gangs::GangBoard;
pub use owed::JobUse;
pub use report::Report;
pub use saved::{Baseline, SavedAccount, SavedMeter, Snapshot};

use crate::shm::SharedPage;
use deepres_abi::beat::BeatPage;
use deepres_abi::grant::{FailMode, GrantPage};
use deepres_abi::ledger::LedgerPage;
use deepres_abi::meter::MeterPage;
use deepres_model::admin::ShareStatus;
use deepres_model::process::ProcessKey;
use deepres_policy::TenantId;
use deepres_policy::entitlement::Request;
use deepres_policy::lease::trust::UserId;
use deepres_policy::priority::{Priority, Weights};
use deepres_policy::tuning::QuantumBounds;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// A session's number, never used again.
pub type SessionId = u64;

/// What an arbiter needs to begin.
#[derive(Debug)]
pub struct Setup {
    /// The daemon's number for the GPU: its slot in each page.
    pub gpu: usize,
    /// Where the arbiters of a host with several GPUs agree, if tenants are to have several at once (`gangs` in the configuration).
    pub board: Option<Arc<GangBoard>>,
    /// The host's heartbeat.
    pub beat: Arc<SharedPage<BeatPage>>,
    /// After how long without a heartbeat tenants take the daemon for gone, ns.
    pub heartbeat_limit_ns: u64,
    /// The GPU's memory, bytes.
    pub memory_bytes: u64,
    /// Bounds of the quantum.
    pub quantum: QuantumBounds,
    /// What the terms of a priority value weigh.
    pub weights: Weights,
    /// What guests may cost owners, parts per million of the time.
    pub max_harm_ppm: u32,
    /// What tenants do without a daemon: how their gates are left at the end.
    pub fail_mode: FailMode,
}

/// What an arbiter has to know of the daemon before.
#[derive(Debug, Default)]
pub struct Restored {
    /// When that was so: ns of `CLOCK_MONOTONIC`.
    pub saved_ns: u64,
    /// The GPU's counters; the accounts and meters in it are not looked at.
    pub counters: Snapshot,
    /// Accounts.
    pub accounts: Vec<(TenantSeat, SavedAccount)>,
    /// Up to where processes were charged that may come back.
    pub baselines: Vec<(TenantId, ProcessKey, Baseline)>,
}

/// A tenant as an arbiter needs it.
#[derive(Debug, Clone)]
pub struct TenantSeat {
    /// Its number.
    pub id: TenantId,
    /// What it asks for, and may have; its priority value is the arbiter's to work out.
    pub request: Request,
    /// What it says of its job.
    pub priority: Priority,
    /// What that has used.
    pub job: Arc<JobUse>,
    /// How soon its requests are to be answered, ns.
    pub slo_ns: Option<u64>,
    /// Its memory limit, bytes, or [`deepres_abi::grant::NO_LIMIT`].
    pub memory_limit_bytes: u64,
    /// The limit that all of its sessions on the GPU have been told, bytes: what they held beyond a lower one before then shows in the ledger.
    pub limit_in_force: Arc<AtomicU64>,
    /// Whether the time of its copies is charged.
    pub charge_copies: bool,
    /// It is kept off the GPU: an administrator paused it, or it is suspended.
    pub is_paused: bool,
    /// Its memory is on the host, or on its way: what seems to be in flight waits in the driver.
    pub is_suspended: bool,
    /// Its memory.
    pub ledger: Arc<SharedPage<LedgerPage>>,
}

/// A session as an arbiter needs it.
#[derive(Debug, Clone)]
pub struct SessionSeat {
    /// Its number.
    pub id: SessionId,
    /// What it may do.
    pub grant: Arc<SharedPage<GrantPage>>,
    /// What it does.
    pub meter: Arc<SharedPage<MeterPage>>,
    /// Its slot in the tenant's ledger.
    pub ledger_slot: usize,
    /// What it rings, on this GPU.
    pub bell: Bell,
    /// Its process, if it can be told.
    pub process: Option<ProcessKey>,
    /// Whose it is, if what its user's tenants owe is each other's: not so of those who may have all that there is.
    pub user: Option<UserId>,
    /// Its meter goes on from sessions that the process had before.
    pub continues: bool,
}

/// An order to an arbiter.
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

/// The arbiter's other end.
#[derive(Debug)]
pub struct Arbiter {
    commands: mpsc::Sender<Command>,
    bell: Bell,
    stirred: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Arbiter {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's, for lack of descriptors or threads.
    pub fn start(setup: Setup) -> io::Result<Self> {
        let bell = Bell::new()?;
        let (commands, orders) = mpsc::channel();
        let name = format!("gpu{}", setup.gpu);
        let stirred = Arc::new(AtomicBool::new(true));
        let worker = worker::Worker::new(setup, orders, &bell, Arc::clone(&stirred))?;
        let thread = std::thread::Builder::new().name(name).spawn(move || worker.run())?;
        Ok(Self { commands, bell, stirred, thread: Some(thread) })
    }

    /// Whether anybody wanted the GPU since this was last asked.
    pub fn has_stirred(&self) -> bool {
        self.stirred.swap(false, Ordering::Relaxed)
    }

    fn order(&self, command: Command) {
        // A stopped arbiter takes no more orders; whoever waits for the answer sees its end of the channel closed.
        if self.commands.send(command).is_ok() {
            self.bell.ring();
        }
    }

    /// Lets a session in. Its gate, limit and heartbeat hold once the answer is there.
    pub fn enter(&self, tenant: TenantSeat, session: SessionSeat) -> oneshot::Receiver<()> {
        let (done, answer) = oneshot::channel();
        self.order(Command::Enter { tenant, session, done });
        answer
    }

    /// Takes a session out: what its tenant held is free if it was the last. Its gate is left open. If its process `may_return`, it is
    /// remembered up to where it was charged.
    pub fn leave(&self, tenant: TenantId, session: SessionId, may_return: bool) {
        self.order(Command::Leave { tenant, session, may_return });
    }

    /// Forgets a process that died without coming back.
    pub fn bury(&self, tenant: TenantId, process: ProcessKey) {
        self.order(Command::Bury { tenant, process });
    }

    /// Takes up what the daemon before left. To be called before anybody enters.
    pub fn restore(&self, restored: Restored) {
        self.order(Command::Restore { restored: Box::new(restored) });
    }

    /// Whoever comes from now on without being known is charged for nothing before.
    pub fn stop_waiting(&self) {
        self.order(Command::StopWaiting);
    }

    /// Asks for what is to be remembered.
    pub fn snapshot(&self) -> oneshot::Receiver<Snapshot> {
        let (answer, snapshot) = oneshot::channel();
        self.order(Command::Save { answer });
        snapshot
    }

    /// Changes what a tenant is owed and may hold, and whether it is paused. In force once the answer is there.
    pub fn set_tenant(&self, seat: TenantSeat) -> oneshot::Receiver<()> {
        let (done, answer) = oneshot::channel();
        self.order(Command::SetTenant { seat, done });
        answer
    }

    /// Forgets a tenant and its account.
    pub fn forget(&self, tenant: TenantId) {
        self.order(Command::Forget { tenant });
    }

    /// Asks how a tenant's share comes about.
    pub fn explain(&self, tenant: TenantId) -> oneshot::Receiver<Option<ShareStatus>> {
        let (answer, explained) = oneshot::channel();
        self.order(Command::Explain { tenant, answer });
        explained
    }

    /// Asks how things stand.
    pub fn report(&self) -> oneshot::Receiver<Report> {
        let (answer, report) = oneshot::channel();
        self.order(Command::Report { answer });
        report
    }
}

impl Drop for Arbiter {
    /// Opens every gate, or closes it if tenants are to fail closed, and ends the thread.
    fn drop(&mut self) {
        self.order(Command::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("an arbiter thread had panicked");
        }
    }
}
