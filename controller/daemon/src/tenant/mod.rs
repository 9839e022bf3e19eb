//! A tenant: its owner, its terms, its members, its memory and its residence.

mod allotment;
mod members;
mod slots;
mod terms;

pub use allotment::Allotment;
pub use members::{Ended, KeeperId, Members, Session};
pub use terms::Terms;

use crate::arbiter::{JobUse, SavedAccount, TenantSeat};
use crate::identity::{Facts, Key};
use crate::memory::TenantMemory;
use crate::residency::Residence;
use crate::state::OnGpu;
use deepres_abi::PPM;
use deepres_abi::grant::NO_LIMIT;
use deepres_abi::oversubscribe::Oversubscribe;
use deepres_abi::quantity::MIN_SHARE_PPM;
use deepres_abi::wire::FittedFields;
use deepres_model::authority::Wants;
use deepres_model::fitted::{Choice, Fitted};
use deepres_model::identity::{Container, Found};
use deepres_policy::TenantId;
use deepres_policy::class::Class;
use deepres_policy::entitlement::Request;
use deepres_policy::memory::Holding;
use deepres_policy::placement::GpuSet;
use deepres_policy::signals::DriverSignals;
use std::sync::Arc;

/// The owner of a tenant, and the rule by which the daemon found the owner.
#[derive(Debug, Clone)]
pub struct Owner {
    /// The key that distinguishes the tenant from all others.
    pub key: Key,
    /// The rule by which the daemon found the tenant of the tenant's first process.
    pub found: Found,
    /// The container of the tenant's first process.
    pub container: Option<Container>,
    /// The path of the cgroup of the container, pod or batch job of the tenant's first process.
    /// `None` if the process was in none, or if an older daemon saved the tenant.
    pub place: Option<String>,
    /// The user who owns the tenant.
    pub user: u32,
    /// The groups of the tenant's first process, as far as the configuration has caps for them.
    pub groups: Vec<u32>,
}

impl Owner {
    /// Returns whether a process with these facts is in the container of the tenant's first
    /// process. The container's id alone proves nothing, because every user can make a cgroup whose
    /// name has the id. Only the whole path of a cgroup shows who made it.
    pub fn has_container_of(&self, facts: &Facts) -> bool {
        let is_there = self.place.is_some() && self.place.as_deref() == facts.path();
        is_there && self.container.is_some() && self.container.as_ref() == facts.container()
    }

    /// Records the place of a process that has joined the tenant. The tenant must have the
    /// process's container, and no place. An older daemon saved tenants without their places.
    pub fn learn_place(&mut self, facts: &Facts) {
        let is_its = self.container.is_some() && self.container.as_ref() == facts.container();
        if self.place.is_none() && is_its {
            self.place = facts.path().map(str::to_owned);
        }
    }
}

/// A tenant, as the registry records it.
#[derive(Debug)]
pub struct Tenant {
    /// The tenant's number.
    pub id: TenantId,
    /// The tenant's owner.
    pub owner: Owner,
    /// The wishes of the tenant and the grants.
    pub terms: Terms,
    /// The tenant's processes.
    pub members: Members,
    /// The tenant's memory.
    pub memory: TenantMemory,
    /// Whether the daemon may take the tenant's memory off the GPUs, and whether the daemon has
    /// taken the memory off.
    pub residence: Residence,
    /// The calls of the tenant's processes to the driver.
    pub driver: DriverSignals,
    /// The GPU time that the tenant's job has used on all GPUs.
    pub job: Arc<JobUse>,
    /// The GPUs that the cluster gave to the tenant's job, or that the daemon chose because the job
    /// asked for a number of GPUs.
    pub placed: Option<Placed>,
    /// The profile of the tenant's program, by the last keeper that had one.
    pub profiled: Option<Profiled>,
    /// The tenant's saved accounts on GPUs that this daemon does not manage, a lost GPU for
    /// example. A later daemon can manage these GPUs again.
    pub elsewhere: Vec<OnGpu<SavedAccount>>,
    /// The GPUs on which any session of the tenant has been.
    gpus: Vec<usize>,
}

/// The GPUs that the daemon or a cluster's scheduler chose for a job.
#[derive(Debug, Clone)]
pub struct Placed {
    /// The GPUs.
    pub gpus: GpuSet,
    /// The reason, as a sentence.
    pub why: String,
}

/// The profile of a job's program (`deepres run --profile`).
#[derive(Debug, Clone)]
pub struct Profiled {
    /// The fitted profile.
    pub fitted: Fitted,
    /// The part of the SMs that `--sm auto` took from the profile.
    pub auto: Option<Choice>,
}

impl Profiled {
    /// Returns the profile in a keeper's hello, if it has one. `slo_ns` is the SLO for which the
    /// job asked.
    pub fn of(fields: &FittedFields, slo_ns: Option<u64>) -> Option<Self> {
        let fitted = Fitted::from_fields(fields)?;
        let is_auto = |choice: &Choice| choice.part_percent == fields.auto_percent as usize;
        let auto = (fields.auto_percent > 0).then(|| fitted.choice(slo_ns)).filter(is_auto);
        Some(Self { fitted, auto })
    }
}

/// The reason for the GPUs of a job that a cluster's scheduler placed.
const BY_CLUSTER: &str = "the cluster gave these GPUs to the job";

impl Placed {
    /// Returns the GPUs that the cluster gave to a job with these terms; `None` if it gave none, or
    /// if the GPUs are not known.
    pub fn by_cluster(terms: &Terms) -> Option<Self> {
        let gpus = terms.allotment()?.gpus.as_ref().filter(|gpus| !gpus.is_empty())?;
        Some(Self { gpus: gpus.iter().copied().collect(), why: BY_CLUSTER.to_owned() })
    }
}

impl Tenant {
    /// Returns the choice of `--sm auto`, if the tenant still has the chosen part of the SMs. An
    /// administrator may have set another part, or a later keeper may have asked for one.
    pub fn sm_auto(&self) -> Option<&Choice> {
        let ppm = |choice: &Choice| choice.part_percent as u32 * (PPM / 100);
        let stated_ppm = self.terms.stated().sm_ppm;
        self.profiled.as_ref()?.auto.as_ref().filter(|choice| stated_ppm == Some(ppm(choice)))
    }

    /// Returns a tenant without members that was on no GPU.
    pub fn new(id: TenantId, owner: Owner, terms: Terms, memory: TenantMemory) -> Self {
        let placed = Placed::by_cluster(&terms);
        Self {
            id,
            owner,
            terms,
            members: Members::default(),
            memory,
            residence: Residence::default(),
            driver: DriverSignals::default(),
            job: Arc::default(),
            placed,
            profiled: None,
            elsewhere: Vec::new(),
            gpus: Vec::new(),
        }
    }

    /// Returns whether the tenant was on no GPU, also with earlier daemons.
    pub fn has_no_accounts(&self) -> bool {
        self.gpus.is_empty() && self.elsewhere.is_empty()
    }

    /// Bounds the tenant by the part of the GPUs that the cluster gave to its job.
    pub fn allot(&mut self, allotment: Allotment) {
        self.terms.allot(allotment);
        self.placed = Placed::by_cluster(&self.terms);
    }

    /// Returns whether the cluster gave the tenant's job only other GPUs than this GPU. On such a
    /// GPU, the tenant may run in the pauses of other tenants.
    pub fn is_outside(&self, gpu: usize) -> bool {
        self.terms.allotment().is_some_and(|allotment| allotment.lacks(gpu))
    }

    /// Returns the GPUs on which any session of the tenant has been.
    pub fn gpus(&self) -> &[usize] {
        &self.gpus
    }

    /// Returns whether a session of the tenant has been on a GPU.
    pub fn is_on(&self, gpu: usize) -> bool {
        self.gpus.contains(&gpu)
    }

    /// Returns the GPUs on which the tenant's promises count: the GPUs that the daemon chose, and
    /// the GPUs on which its sessions are. If the daemon chose none, these are the GPUs on which a
    /// session has been.
    pub fn promised_gpus(&self) -> GpuSet {
        let Some(placed) = &self.placed else { return self.gpus.iter().copied().collect() };
        let here = self.gpus.iter().copied().filter(|gpu| self.members.are_on(*gpu));
        placed.gpus.iter().chain(here).collect()
    }

    /// Returns whether the tenant is on a GPU or can come to it. A tenant whose GPUs the daemon
    /// chose comes to no other.
    pub fn may_be_on(&self, gpu: usize) -> bool {
        (self.placed.is_none() && self.gpus.is_empty()) || self.promised_gpus().contains(gpu)
    }

    /// Records that a session of the tenant is on a GPU.
    pub fn come_to(&mut self, gpu: usize) {
        if !self.is_on(gpu) {
            self.gpus.push(gpu);
        }
    }

    /// Returns whether the tenant has no session and no keeper, and the daemon awaits no member of
    /// the previous daemon.
    pub fn is_deserted(&self) -> bool {
        self.members.is_deserted()
    }

    /// Empties the slots of the ledger that no process writes any more, on the first `gpus` GPUs.
    pub fn give_slots_back(&self, gpus: usize) {
        self.memory.give_slots_back(self.members.used_slots(), gpus);
    }

    /// Returns the tenant's wants for parts of its user's caps on a GPU.
    pub fn wants_on(&self, gpu: usize) -> Wants {
        self.terms.wants(self.memory.held_bytes(gpu))
    }

    /// Records the memory that the tenant holds on a GPU now. If the tenant's memory does not
    /// follow its use, forgets all recorded amounts instead.
    pub fn note_use(&mut self, gpu: usize, now_ns: u64, window_ns: u64) {
        if self.terms.granted().memory_follows_use.value {
            self.memory.note_use(gpu, now_ns, window_ns);
        } else {
            self.memory.forget_use();
        }
    }

    /// Returns the part of the granted memory that the daemon keeps for the tenant on a GPU, bytes.
    /// Returns `None` if the tenant's memory does not follow its use.
    pub fn kept_bytes(&self, gpu: usize) -> Option<u64> {
        let granted = self.terms.granted();
        let follows_use = granted.memory_follows_use.value;
        follows_use.then(|| self.memory.kept_bytes(gpu, granted.memory_bytes.value)).flatten()
    }

    /// Returns the tenant's memory on a GPU as the policy of ceilings sees it.
    pub fn holding(&self, gpu: usize) -> Holding {
        let found = self.memory.by_nvml(gpu).map_or(0, |seen| seen.bytes);
        let is_firm = !self.residence.may_leave();
        let firm_bytes = if is_firm { self.memory.held_bytes(gpu).max(found) } else { 0 };
        let kept_bytes = self.kept_bytes(gpu);
        let promised_bytes = if self.memory.is_promised_on(gpu) { self.terms.promised_bytes() } else { 0 };
        Holding { promised_bytes: promised_bytes.min(kept_bytes.unwrap_or(u64::MAX)), firm_bytes, kept_bytes }
    }

    /// Returns the tenant's description for the arbiter of a GPU.
    pub fn seat_on(&self, gpu: usize) -> TenantSeat {
        let mut seat = self.seat();
        let ceiling_bytes = self.memory.ceiling_bytes(gpu).unwrap_or(NO_LIMIT);
        let bound_bytes = if self.terms.is_bound() { self.memory.bound_bytes(gpu) } else { NO_LIMIT };
        if let Some(allotment) = self.terms.allotment().filter(|allotment| allotment.lacks(gpu)) {
            seat.request = Request { class: Class::BestEffort, cap_ppm: MIN_SHARE_PPM, ..Request::default() };
            seat.memory_limit_bytes = seat.memory_limit_bytes.min(self.elsewhere_bytes(allotment));
        }
        TenantSeat {
            memory_limit_bytes: seat.memory_limit_bytes.min(ceiling_bytes).min(bound_bytes),
            limit_in_force: self.memory.limit_in_force(gpu),
            ..seat
        }
    }

    /// Returns the tenant's memory on a GPU that this allotment lacks, bytes. The tenant of a name
    /// has none, because a job with whole GPUs can give any number of names.
    fn elsewhere_bytes(&self, allotment: &Allotment) -> u64 {
        if matches!(self.owner.key, Key::Name { .. }) { 0 } else { allotment.elsewhere_bytes }
    }

    /// Returns the tenant's description for arbiters, without the bounds of a single GPU.
    pub fn seat(&self) -> TenantSeat {
        let granted = self.terms.granted();
        TenantSeat {
            id: self.id,
            request: Request {
                class: granted.class.value,
                asked_ppm: granted.share_ppm.value,
                cap_ppm: granted.cap_ppm,
                ..Request::default()
            },
            priority: self.terms.priority(&granted),
            job: Arc::clone(&self.job),
            slo_ns: granted.slo_ns.value,
            sm_ppm: granted.sm_ppm.value,
            uses_mps: self.terms.caps().sm,
            takes_turns: self.residence.oversubscribe() == Some(Oversubscribe::Managed),
            memory_limit_bytes: granted.memory_bytes.value.unwrap_or(NO_LIMIT),
            limit_in_force: Arc::default(),
            charge_copies: granted.charge_copies.value,
            is_paused: self.terms.is_paused() || self.residence.is_suspended(),
            is_suspended: self.residence.is_suspended(),
            ledger: Arc::clone(self.memory.ledger()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::cgroup;
    use deepres_model::authority::Wish;
    use deepres_model::config::{CapOf, Caps};
    use deepres_model::profile::{Point, Profile};
    use deepres_model::slurm::JobName;

    /// Returns the memory limits of a tenant with this key on GPU 0, which Slurm gave to its job,
    /// and on GPU 1.
    fn limits_bytes(key: Key) -> [u64; 2] {
        let allotment = Allotment {
            job: Some(7),
            share_ppm: PPM,
            memory_bytes: NO_LIMIT,
            elsewhere_bytes: 10,
            class: Class::Guaranteed,
            gpus: Some(vec![0]),
        };
        let mut terms = Terms::new(Wish::default(), Wish::default(), (Caps::NONE, CapOf::Everyone));
        terms.allot(allotment);
        let found = Found::Slurm { job: JobName::Number(7) };
        let owner = Owner { key, found, container: None, place: None, user: 1_000, groups: Vec::new() };
        let tenant = Tenant::new(1, owner, terms, TenantMemory::new().unwrap());
        [0, 1].map(|gpu| tenant.seat_on(gpu).memory_limit_bytes)
    }

    #[test]
    fn the_names_in_a_job_have_no_memory_on_the_gpus_of_other_jobs() {
        let path = "/slurm/uid_1000/job_7".to_owned();
        assert_eq!(limits_bytes(Key::Cgroup(path.clone())), [NO_LIMIT, 10]);
        let named = Key::Name { user: 1_000, name: "sweep".to_owned(), place: Some(path) };
        assert_eq!(limits_bytes(named), [NO_LIMIT, 0]);
    }

    #[test]
    fn only_a_process_in_the_tenants_container_tells_the_place_that_an_older_state_lacks() {
        let facts = |path: &str, digit: &str| Facts {
            pid: 30,
            process: None,
            place: cgroup::place(&format!("0::{path}/docker-{}.scope", digit.repeat(64))),
            owner: 1_000,
            namespace: None,
            namespaces: Vec::new(),
        };
        let (inside, other) = (facts("/system.slice", "a"), facts("/system.slice", "b"));
        let mut owner = Owner {
            key: Key::Cgroup("/a".to_owned()),
            found: Found::Container,
            container: inside.container().cloned(),
            place: None,
            user: 1_000,
            groups: Vec::new(),
        };
        owner.learn_place(&other);
        assert_eq!(owner.place, None);
        owner.learn_place(&inside);
        owner.learn_place(&facts("/user.slice", "a"));
        assert_eq!(owner.place.as_deref(), inside.path(), "the tenant keeps the first place");
    }

    #[test]
    fn a_part_that_was_set_later_is_not_explained_by_the_profile() {
        let point = |part_percent: usize| {
            let ms = 100.0 / part_percent as f64;
            Point { batch: 1, part_percent, ms, latency_ms: None, requests: None }
        };
        let profile = Profile { points: [10, 50, 100].map(point).into(), ..Profile::default() };
        let fitted = Fitted::of(&profile, &[]).unwrap();
        let auto = fitted.choice(None);
        let part = |percent: usize| Wish { sm_ppm: Some(percent as u32 * (PPM / 100)), ..Wish::default() };
        let asked = part(auto.part_percent);
        let terms = Terms::new(asked, Wish::default(), (Caps::NONE, CapOf::Everyone));
        let key = Key::Cgroup("/job".to_owned());
        let found = Found::Slurm { job: JobName::Number(7) };
        let owner = Owner { key, found, container: None, place: None, user: 0, groups: Vec::new() };
        let mut tenant = Tenant::new(1, owner, terms, TenantMemory::new().unwrap());
        tenant.profiled = Some(Profiled { fitted, auto: Some(auto) });
        assert_eq!(tenant.sm_auto(), Some(&auto));
        tenant.terms.set(part(auto.part_percent - 1), false);
        assert_eq!(tenant.sm_auto(), None);
    }
}
