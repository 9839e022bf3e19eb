//! The registry: the daemon's record of GPUs, tenants and sessions. Each part has its own rules.
//! The registry passes the decisions of the parts on to the arbiters.
//!
//! | part | job |
//! |---|---|
//! | [`Gpus`] | the GPUs and their arbiters |
//! | [`Tenants`] | all tenants, by name |
//! | [`crate::tenant`] | one tenant |
//! | [`crate::memory`] | promises and limits of memory, and NVML's figures |
//! | [`Waiting`] | the jobs that wait, in the order in which they came |
//! | [`Allocations`] | the parts of GPUs that a node's agent gave to containers |
//! | [`Finder`] | finds the tenant of a process, and changes nothing |
//! | [`Placer`] | chooses the GPUs of a job |
//!
//! A part sees only the parts that its methods name. [`Registry`] itself has the other rules that
//! change several parts at once: for processes that come and go (`admission`), and for the changes
//! of administrators (`settings`).

mod admission;
mod allocations;
mod finder;
mod placing;
mod settings;
mod tenants;
mod waiting;

pub use admission::{Admitted, Guest, Membership, Refused};
pub use allocations::Allocations;
pub use placing::place_whole;
pub use settings::Changed;
pub use tenants::{MAX_DESERTED, Tenants};
pub use waiting::Lack;

use crate::gpus::Gpus;
use crate::identity::cgroup::{Kind, Place};
use crate::identity::{Key, read};
use crate::lines::Lines;
use crate::memory::{Held, Memory, caps};
use crate::nvml::OnGpu;
use crate::probes::Connected;
use crate::shm::SharedPage;
use crate::state::{SavedTenant, State, gather};
use crate::tenant::{Allotment, Tenant};
use deepres_abi::beat::BeatPage;
use deepres_model::admin::WaitingStatus;
use deepres_model::allocation::{Allocation, Token};
use deepres_model::clock::monotonic_ns;
use deepres_model::config::Config;
use deepres_model::identity::Found;
use deepres_model::probes::MeteringStatus;
use deepres_model::process::ProcessKey;
use deepres_model::slurm::JobName;
use deepres_policy::signals::DriverSums;
use finder::Finder;
use placing::Placer;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use waiting::Waiting;

/// An order to an arbiter. The future is ready once the order is in force.
pub type Order = oneshot::Receiver<()>;

/// The registry: the daemon's record of GPUs, tenants and sessions.
#[derive(Debug)]
pub struct Registry {
    config: Config,
    /// The container or pod in which the daemon runs.
    home: Option<Place>,
    gpus: Gpus,
    tenants: Tenants,
    memory: Memory,
    waiting: Waiting,
    allocations: Allocations,
    /// The number of the next tenant, session or keeper.
    next_id: u64,
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
            config,
            home: read::place(std::process::id()),
            gpus,
            tenants: Tenants::default(),
            memory: Memory::default(),
            waiting: Waiting::default(),
            allocations: Allocations::default(),
            next_id: 1,
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
        &self.config
    }

    /// Returns the GPUs that the daemon manages, with their arbiters.
    pub fn gpus(&self) -> &Gpus {
        &self.gpus
    }

    /// Returns the jobs that wait, in the order in which they get what they lack.
    pub fn waiting(&self) -> Vec<WaitingStatus> {
        self.waiting.status(monotonic_ns())
    }

    /// Returns all tenants, with and without processes.
    pub fn tenants(&self) -> &Tenants {
        &self.tenants
    }

    /// Returns the search for the tenant of a process.
    pub fn finder(&self) -> Finder<'_> {
        Finder::new(&self.config, self.home.as_ref(), &self.allocations, &self.tenants)
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
        self.allocations.record(allocation, &self.gpus)
    }

    /// Removes an allocation from the record. Does nothing if there is no such allocation.
    pub fn release(&mut self, token: &Token) {
        self.allocations.remove(token);
    }

    fn placer(&mut self) -> Placer<'_> {
        Placer::new(&self.gpus, &self.memory, &mut self.tenants, &mut self.waiting)
    }

    /// Ends all arbiters. Each arbiter opens its gates, or closes them if the fail mode is closed.
    pub fn open_gates(&mut self) {
        self.gpus = Gpus::default();
    }

    /// Returns the numbers of GPUs, tenants and sessions, as one line. The numbers leave out
    /// deserted tenants.
    pub fn summary(&self) -> String {
        let living = || self.tenants.living().map(|(_, tenant)| tenant.members.sessions().len());
        let (sessions, tenants): (usize, usize) = (living().sum(), living().count());
        format!("{sessions} processes of {tenants} tenants on {} GPUs", self.gpus.count())
    }

    /// Changes a tenant, and tells every arbiter that knows the tenant. Returns the orders to the
    /// arbiters.
    pub fn change(&mut self, name: &str, change: impl FnOnce(&mut Tenant)) -> Vec<Order> {
        if let Some(tenant) = self.tenants.get_mut(name) {
            change(tenant);
        }
        self.tell(name)
    }

    /// Tells every arbiter that knows a tenant the tenant's present wishes, limits and pauses.
    /// Returns the orders to the arbiters.
    fn tell(&self, name: &str) -> Vec<Order> {
        let Some(tenant) = self.tenants.get(name) else { return Vec::new() };
        tenant.gpus().iter().filter_map(|gpu| self.gpus.tell(*gpu, tenant)).collect()
    }

    fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// Bounds the tenant of the Slurm job in the cgroup at this path by the part of the GPUs that
    /// Slurm gave to the job.
    pub fn allot(&mut self, path: &str, allotment: &Allotment) {
        let of_job = Key::Cgroup(path.to_owned());
        let Some(name) = self.tenants.of_key(&of_job).map(|(name, _)| name.to_owned()) else { return };
        drop(self.change(&name, |tenant| tenant.allot(allotment.clone())));
        drop(self.share_out_anew(&name));
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
        let of_job = self.tenants.iter().filter(|(name, tenant)| is_of_job(name, tenant));
        let (gone, living): (Vec<_>, Vec<_>) = of_job.partition(|(_, tenant)| tenant.is_deserted());
        let names = |tenants: Vec<(&str, &Tenant)>| -> Vec<String> {
            tenants.into_iter().map(|(name, _)| name.to_owned()).collect()
        };
        for (name, tenant) in &gone {
            tracing::info!(tenant = name, gpu_ns = tenant.job.ns(), "a Slurm job ended");
        }
        let (gone, living) = (names(gone), names(living));
        gone.iter().for_each(|name| self.forget(name));
        living
    }

    /// Shares out a user's caps among the user's tenants again. Returns the orders to the arbiters.
    fn share_out(&mut self, user: u32) -> Vec<Order> {
        let changed = caps::share_out(&mut self.tenants, self.gpus.count(), user);
        changed.iter().flat_map(|name| self.tell(name)).collect()
    }

    /// Shares out the caps of a tenant's user again, when earlier changes are in force. If other
    /// tenants of the user have given up memory, this tenant may get this memory.
    pub fn share_out_anew(&mut self, name: &str) -> Vec<Order> {
        let user = self.tenants.get(name).map(|tenant| tenant.owner.user);
        user.map(|user| self.share_out(user)).unwrap_or_default()
    }

    /// Computes the ceilings of all tenants again. Returns the orders to the arbiters.
    fn renew_ceilings(&mut self) -> Vec<Order> {
        let window_ns = self.config.memory_follow_ns();
        let changed = self.memory.renew_ceilings(&mut self.tenants, &self.gpus, monotonic_ns(), window_ns);
        let tell = |(name, gpu): (String, usize)| self.gpus.tell(gpu, self.tenants.get(&name)?);
        changed.into_iter().filter_map(tell).collect()
    }

    /// Compares NVML's figures (`found`) with the ledgers' figures from just before (`before`) and
    /// from now. Then shares out memory again, because its use has changed. The function does not
    /// wait for the arbiters.
    pub fn reconcile(&mut self, found: &BTreeMap<usize, OnGpu>, before: &Held) {
        self.memory.reconcile(&mut self.tenants, found, before);
        for user in caps::users_with_memory_caps(&self.tenants) {
            drop(self.share_out(user));
        }
        drop(self.renew_ceilings());
    }

    /// Adds the calls of processes to the driver, counted since the start of each process, to the
    /// processes' tenants. A process that the daemon meters from outside counts for its tenant too.
    pub fn observe_driver(
        &mut self,
        now_ns: u64,
        activity: &BTreeMap<u32, DriverSums>,
        metering: &MeteringStatus,
    ) {
        for (name, tenant) in self.tenants.iter_mut() {
            let metered = metering.living().filter(|process| process.tenant.as_deref() == Some(name));
            let sessions = tenant.members.sessions().values().map(|session| session.pid);
            let own: BTreeSet<u32> = sessions.chain(metered.map(|process| process.pid)).collect();
            let processes = own.into_iter().filter_map(|pid| Some((pid, *activity.get(&pid)?)));
            tenant.driver.observe(now_ns, processes, |pid| activity.contains_key(&pid));
        }
    }

    /// If a tenant is deserted, records the time. If the tenant was on no GPU, it has no account to
    /// remember, and the registry forgets it.
    fn note_desertion(&mut self, name: &str) {
        let Some(tenant) = self.tenants.get_mut(name) else { return };
        if !tenant.members.note_desertion() {
            return;
        }
        let forgotten = if tenant.has_no_accounts() { Some(name.to_owned()) } else { None };
        if let Some(name) = forgotten.or_else(|| self.tenants.too_many_deserted()) {
            self.forget(&name);
        }
    }

    /// Forgets the tenants that have been deserted for at least `linger`.
    pub fn forget_deserted(&mut self, linger: Duration) {
        self.tenants.deserted_for(linger).iter().for_each(|name| self.forget(name));
    }

    fn forget(&mut self, name: &str) {
        let Some(tenant) = self.tenants.remove(name) else { return };
        tenant
            .gpus()
            .iter()
            .filter_map(|gpu| self.gpus.arbiter(*gpu))
            .for_each(|arbiter| arbiter.forget(tenant.id));
    }

    /// Restores the tenants that the previous daemon saved. The caller must do this before it
    /// admits any process.
    ///
    /// # Errors
    ///
    /// Returns the system's error for lack of memory or descriptors. The tenants restored before
    /// the error stay.
    pub fn restore(&mut self, state: &State) -> io::Result<()> {
        let caps_of = |saved: &SavedTenant| self.config.caps_of(saved.uid, &saved.groups);
        let defaults = self.config.defaults.wish();
        gather::restore(state, &self.gpus, &mut self.tenants, &mut self.next_id, defaults, caps_of)?;
        self.allocations.restore(&state.allocations);
        let users: BTreeSet<u32> = self.tenants.iter().map(|(_, tenant)| tenant.owner.user).collect();
        users.into_iter().for_each(|user| drop(self.share_out(user)));
        Ok(())
    }

    /// Returns the processes without a session that may come back.
    pub fn returning(&self) -> Vec<ProcessKey> {
        self.tenants.iter().flat_map(|(_, tenant)| tenant.members.returning().iter().copied()).collect()
    }

    /// Ends the wait for tenants of the previous daemon, because all of their processes had time to
    /// come back.
    pub fn stop_waiting(&mut self) {
        self.gpus.arbiters().for_each(|arbiter| arbiter.stop_waiting());
        let mut awaited = Vec::new();
        for (name, tenant) in self.tenants.iter_mut() {
            if tenant.members.stop_waiting() {
                awaited.push((name.to_owned(), tenant.owner.user));
            }
        }
        for user in awaited.iter().map(|(_, user)| *user).collect::<BTreeSet<u32>>() {
            drop(self.share_out(user));
        }
        awaited.iter().for_each(|(name, _)| self.note_desertion(name));
    }

    /// Forgets dead processes that had a session before. Empties the slots that these processes
    /// could still write.
    pub fn bury_the_dead(&mut self) {
        let gpus = self.gpus.count();
        for (_, tenant) in self.tenants.iter_mut() {
            let (dead, slots) = tenant.members.bury_the_dead();
            for process in dead {
                self.gpus.arbiters().for_each(|arbiter| arbiter.bury(tenant.id, process));
            }
            for slot in slots {
                tenant.memory.clear_slot(slot, gpus);
            }
            tenant.give_slots_back(gpus);
        }
    }
}
