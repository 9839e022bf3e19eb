//! The registry: the daemon's record of GPUs, tenants and sessions. Each part has its own rules.
//!
//! | part | job |
//! |---|---|
//! | [`Tenancy`] | the record of the tenants on the GPUs; it gives the arbiters their orders |
//! | [`Gpus`] | the GPUs and their arbiters |
//! | [`Tenants`] | all tenants, by name |
//! | [`crate::tenant`] | one tenant |
//! | [`crate::memory`] | promises and limits of memory, and NVML's figures |
//! | [`Waiting`] | the jobs that wait, in the order in which they came |
//! | [`Allocations`] | the parts of GPUs that a node's agent gave to containers |
//! | [`Finder`] | finds the tenant of a process, and changes nothing |
//! | [`Placer`](placing::Placer) | chooses the GPUs of a job |
//!
//! A part sees only the parts that its methods name. [`Tenancy`] has the GPUs, the tenants and the
//! memory to itself, and changes them together. [`Registry`] has the other rules that concern
//! several parts: for processes that come and go (`admission`), and for the changes of
//! administrators (`settings`).

mod admission;
mod allocations;
mod finder;
mod placing;
mod settings;
mod tenancy;
mod tenants;
mod waiting;

pub use admission::{Admitted, Guest, Membership, Refused};
pub use allocations::Allocations;
pub use placing::place_whole;
pub use settings::Changed;
#[cfg(test)]
pub use settings::tests::registry_with_a_tenant;
pub use tenants::{MAX_DESERTED, Tenants};
pub use waiting::Lack;

use crate::gpus::Gpus;
use crate::identity::cgroup::{Kind, Place};
use crate::identity::{Key, read};
use crate::lines::Lines;
use crate::probes::Connected;
use crate::shm::SharedPage;
use crate::state::State;
use crate::tenant::{Allotment, Tenant};
use deepres_abi::beat::BeatPage;
use deepres_model::admin::WaitingStatus;
use deepres_model::allocation::{Allocation, Token};
use deepres_model::clock::monotonic_ns;
use deepres_model::config::Config;
use deepres_model::identity::Found;
use deepres_model::slurm::JobName;
use finder::Finder;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use tenancy::Tenancy;
use tokio::sync::oneshot;
use waiting::Waiting;

/// An order to an arbiter. The future is ready once the order is in force.
pub type Order = oneshot::Receiver<()>;

/// The registry: the daemon's record of GPUs, tenants and sessions.
#[derive(Debug)]
pub struct Registry {
    /// The record of the tenants on the GPUs.
    pub tenancy: Tenancy,
    /// The container or pod in which the daemon runs.
    home: Option<Place>,
    waiting: Waiting,
    allocations: Allocations,
    beat: Arc<SharedPage<BeatPage>>,
    /// The processes that have a session.
    connected: Arc<Connected>,
    /// The log lines that each source has caused lately.
    lines: Rc<Lines>,
}

impl Registry {
    /// Returns a registry without tenants.
    pub fn new(config: Config, gpus: Gpus, beat: Arc<SharedPage<BeatPage>>) -> Self {
        Self {
            tenancy: Tenancy::new(config, gpus),
            home: read::place(std::process::id()),
            waiting: Waiting::default(),
            allocations: Allocations::default(),
            beat,
            connected: Arc::default(),
            lines: Rc::default(),
        }
    }

    /// Returns the log lines that each source has caused lately.
    pub fn lines(&self) -> Rc<Lines> {
        Rc::clone(&self.lines)
    }

    /// Returns the processes that have a session.
    pub fn connected(&self) -> Arc<Connected> {
        Arc::clone(&self.connected)
    }

    /// Returns the daemon's configuration.
    pub fn config(&self) -> &Config {
        self.tenancy.config()
    }

    /// Returns the jobs that wait, in the order in which they get what they lack.
    pub fn waiting(&self) -> Vec<WaitingStatus> {
        self.waiting.status(monotonic_ns())
    }

    /// Returns a [`Finder`], by which the caller finds the tenant of a process.
    pub fn finder(&self) -> Finder<'_> {
        Finder::new(self.config(), self.home.as_ref(), &self.allocations, self.tenancy.tenants())
    }

    /// Returns the record of allocations.
    pub fn allocations(&self) -> &Allocations {
        &self.allocations
    }

    /// Records an allocation, or replaces the allocation of the same token.
    ///
    /// # Errors
    ///
    /// Returns the message for the agent if the allocation is impossible.
    pub fn allocate(&mut self, allocation: Allocation) -> Result<(), String> {
        self.allocations.record(allocation, self.tenancy.gpus())
    }

    /// Removes an allocation from the record. Does nothing if there is no such allocation.
    pub fn release(&mut self, token: &Token) {
        self.allocations.remove(token);
    }

    /// Bounds the tenant of the Slurm job in the cgroup at this path by the part of the GPUs that
    /// Slurm gave to the job.
    pub fn allot(&mut self, path: &str, allotment: &Allotment) {
        let of_job = Key::Cgroup(path.to_owned());
        let known = self.tenancy.tenants().of_key(&of_job);
        let Some(name) = known.map(|(name, _)| name.to_owned()) else { return };
        drop(self.tenancy.change(&name, |tenant| tenant.allot(allotment.clone())));
        drop(self.tenancy.share_out_anew(&name));
    }

    /// Forgets the tenants of a Slurm job that has ended. Returns the names of the tenants that
    /// have members still, and stay.
    pub fn end_job(&mut self, job: u32) -> Vec<String> {
        let named = JobName::Number(job);
        let name_of_job = Kind::Slurm { job: named.clone() }.name();
        let is_of_job = |name: &str, tenant: &Tenant| {
            tenant.terms.allotment().is_some_and(|allotment| allotment.job == Some(job))
                || match &tenant.owner.found {
                    Found::Slurm { job: own } => *own == named,
                    Found::Name { within: Some(within) } => *within == name_of_job,
                    // Without Slurm's cgroups, `deepres slurm task-prolog` names the tenant.
                    Found::Name { within: None } => name == name_of_job,
                    _ => false,
                }
        };
        let of_job = self.tenancy.tenants().iter().filter(|(name, tenant)| is_of_job(name, tenant));
        let (gone, living): (Vec<_>, Vec<_>) = of_job.partition(|(_, tenant)| tenant.is_deserted());
        let names = |tenants: Vec<(&str, &Tenant)>| -> Vec<String> {
            tenants.into_iter().map(|(name, _)| name.to_owned()).collect()
        };
        for (name, tenant) in &gone {
            tracing::info!(tenant = name, gpu_ns = tenant.job.ns(), "a Slurm job ended");
        }
        let (gone, living) = (names(gone), names(living));
        gone.iter().for_each(|name| self.tenancy.forget(name));
        living
    }

    /// Restores the tenants that the previous daemon saved. The caller must do this before it
    /// admits any process.
    ///
    /// # Errors
    ///
    /// Returns the system's error for lack of memory or descriptors. The tenants restored before
    /// the error stay.
    pub fn restore(&mut self, state: &State) -> io::Result<()> {
        self.allocations.restore(&state.allocations);
        self.tenancy.restore(state)
    }
}
