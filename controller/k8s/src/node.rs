//! The plugin's knowledge of its node: GPUs from the daemon, containers from the kubelet, and its
//! own records of allocations. A *look*, once a second, brings the three together.

#[cfg(feature = "dra")]
mod claims;

#[cfg(feature = "dra")]
pub use claims::Grant;

use crate::api::{
    CdiDevice, ContainerAllocateResponse, Device, Empty, HEALTHY, ListPodResourcesResponse, UNHEALTHY, path,
};
use crate::daemon::{Daemon, DaemonError};
use crate::evidence::{CHECKPOINT, Evidence};
use crate::grpc::Client;
use crate::plugin::Resource;
use crate::record::{Phase, Record};
use anyhow::Result;
use deepres_model::admin::GpuStatus;
use deepres_model::directory::Directory;
use deepres_policy::shares::{Part, Shares, Slots};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// The place in the name of a further CDI device that stands for the GPU's UUID.
const UUID: &str = "{uuid}";

/// The times by which the plugin acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// The time between two looks.
    pub look: Duration,
    /// The time for which an allocation needs no container. Within it, the kubelet lists the
    /// container for the first time.
    pub young: Duration,
    /// The time after an allocation in which another container of the same pod may follow.
    pub settle: Duration,
    /// The time for which a surplus of healthy devices stays. Within it, the scheduler learns of
    /// all containers that came or went.
    pub surplus: Duration,
    /// The longest time from the plugin's answer until the kubelet's own record has the devices
    /// that the kubelet gives to a container.
    pub giving: Duration,
    /// The time for which a container's start waits for room before the kubelet tries again. The
    /// kubelet allows 30 s.
    pub hold: Duration,
    /// The time without the daemon after which all devices are unhealthy. A daemon restarts in
    /// less.
    pub daemon_timeout: Duration,
    /// The time for which an allocation waits for the daemon, and a look for a moment at which the
    /// kubelet gives nothing.
    pub wait: Duration,
    /// The time between two lists that only make the kubelet write its checkpoint.
    pub nudge: Duration,
    /// The time after a failed registration.
    pub retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            look: Duration::from_secs(1),
            young: Duration::from_secs(10),
            settle: Duration::from_secs(2),
            surplus: Duration::from_secs(60),
            giving: Duration::from_millis(500),
            hold: Duration::from_secs(20),
            daemon_timeout: Duration::from_secs(30),
            wait: Duration::from_secs(5),
            nudge: Duration::from_secs(10),
            retry: Duration::from_secs(5),
        }
    }
}

/// The plugin's settings, which an administrator gives.
#[derive(Debug, Clone)]
pub struct Options {
    /// The kubelet's folder of device plugins.
    pub kubelet_dir: PathBuf,
    /// The kubelet's socket of PodResources.
    pub pod_resources: PathBuf,
    /// The folder of CDI specifications.
    pub cdi_dir: PathBuf,
    /// The path of the interposer on the node.
    pub library: PathBuf,
    /// The name of a further CDI device for each GPU of a container, with `{uuid}` in place of the
    /// GPU's UUID. This CDI device gives the container the GPU's device files and the driver.
    pub gpu_device: Option<String>,
    /// The GPUs that are set aside for containers with whole GPUs, by number or UUID.
    pub whole: Vec<String>,
    /// Whether containers get GPUs by claims, and not by the kubelet's devices.
    pub by_claims: bool,
    /// The directory of the daemon.
    pub directory: Directory,
    /// The times.
    pub timing: Timing,
}

/// A record, and what this plugin saw of it.
#[derive(Debug)]
struct Held {
    record: Record,
    /// When the plugin made or read the record.
    since: Instant,
    /// Whether the kubelet has listed the container.
    is_seen: bool,
    /// When the container last started. `None`: not yet, or an earlier plugin let it start.
    started: Option<Instant>,
}

impl Held {
    fn new(record: Record) -> Self {
        Self { record, since: Instant::now(), is_seen: false, started: None }
    }
}

#[derive(Debug, Default)]
struct State {
    /// The memory of each GPU, bytes, by UUID.
    memory: BTreeMap<String, u64>,
    shares: Shares,
    whole: BTreeSet<String>,
    records: Vec<Held>,
    evidence: Evidence,
    /// The faults of GPUs, by UUID, as the daemon tells them.
    faults: BTreeMap<String, String>,
    /// When a container last got devices.
    allocated: Option<Instant>,
    /// When the daemon last answered. `None` before its first answer.
    answered: Option<Instant>,
    /// Whether the daemon did not answer at the last look.
    is_away: bool,
    /// When the kubelet last got a list that only made it write its checkpoint.
    nudged: Option<Instant>,
}

impl State {
    /// Returns the parts of GPUs that containers have.
    fn parts(&self) -> impl Iterator<Item = Part<'_>> + Clone {
        self.records.iter().filter_map(|held| held.record.part())
    }

    /// Returns the places of the records with parts, in the order in which containers start. First
    /// come the containers that do not wait, then the longest wait. Records that an earlier plugin
    /// left are of one age, so the name decides.
    fn in_order(&self) -> Vec<usize> {
        let mut places: Vec<usize> =
            (0..self.records.len()).filter(|place| self.records[*place].record.part().is_some()).collect();
        let order = |place: &usize| {
            let Held { record, since, .. } = &self.records[*place];
            (record.phase == Phase::Waits, *since, &record.name)
        };
        places.sort_by(|one, other| order(one).cmp(&order(other)));
        places
    }

    /// Returns the room that a container's GPU lacks, in shares; 0 if the container can start.
    fn lacking(&self, place: usize) -> usize {
        let Held { record, .. } = &self.records[place];
        let (Some(slots), Some(gpu)) = (&record.slots, record.allocation.gpus.first()) else { return 0 };
        let before = self.in_order().into_iter().take_while(|other| *other != place);
        self.shares.lacking(slots, gpu, before.filter_map(|other| self.records[other].record.part()))
    }

    /// Returns the next change for the containers that wait: the place of a record, and its next
    /// form.
    fn next_change(&self) -> Option<(usize, Record)> {
        let places = self.in_order();
        let parts: Vec<Part<'_>> =
            places.iter().filter_map(|place| self.records[*place].record.part()).collect();
        let (at, choice) = self.shares.next_change(&parts)?;
        let record = &self.records[places[at]].record;
        let phase = if choice.waits { Phase::Waits } else { Phase::Runs };
        Some((places[at], Record { phase, ..record.on(choice.gpu, *self.memory.get(choice.gpu)?) }))
    }

    /// Returns the GPUs that take no container with shares.
    fn shut(&self) -> BTreeSet<String> {
        let whole = self.records.iter().filter(|held| held.record.slots.is_none());
        let whole = whole.flat_map(|held| &held.record.allocation.gpus);
        self.faults.keys().chain(whole).cloned().collect()
    }

    /// Returns why a GPU that is set aside takes no container; `None` if it does. A GPU can have
    /// containers with shares from before it was set aside.
    fn obstacle_of_whole(&self, gpu: &str) -> Option<&'static str> {
        let has_shares = |Held { record, .. }: &Held| {
            let is_there = record.slots.is_some() && record.phase != Phase::Waits;
            (is_there || record.claim.is_some()) && record.allocation.gpus.iter().any(|own| own == gpu)
        };
        if !self.whole.contains(gpu) {
            return Some("is not set aside");
        }
        if self.faults.contains_key(gpu) {
            return Some("has a fault");
        }
        self.records.iter().any(has_shares).then_some("still has containers with shares")
    }

    /// Returns the place of an init container that has ended: a later container of its pod started
    /// after it. The kubelet gives devices to the containers of a pod in their order. A sidecar
    /// before the init container can start again beside it.
    fn ended_init(&self) -> Option<usize> {
        self.records.iter().position(|held| {
            let Held { record, started: Some(started), .. } = held else { return false };
            if record.phase != Phase::Runs || record.slots.is_none() {
                return false;
            }
            let later = self.evidence.after_init(&record.ids());
            let is_later = |other: &&Held| other.since >= held.since && other.started > Some(*started);
            !later.is_empty()
                && self.records.iter().filter(is_later).any(|other| later.contains(&&other.record.ids()))
        })
    }

    /// Returns why a container cannot use its GPUs; `None` if it can.
    fn fault(&self, record: &Record) -> Option<String> {
        self.answered?;
        record.allocation.gpus.iter().find_map(|gpu| match self.faults.get(gpu) {
            Some(fault) => Some(format!("the container's GPU {gpu} has a fault ({fault})")),
            None if self.memory.contains_key(gpu) => None,
            None => Some(format!("the container's GPU {gpu} is gone")),
        })
    }
}

/// Whether the kubelet is giving devices to a container.
#[derive(Debug, Default)]
struct Giving {
    /// The number of calls of Allocate without an answer yet.
    calls: usize,
    /// The time up to which the kubelet may still give the devices of the plugin's last answer.
    until: Option<Instant>,
}

/// A call of Allocate.
struct Call(Arc<Node>);

impl Call {
    fn new(node: &Arc<Node>) -> Self {
        node.giving().calls += 1;
        Self(Arc::clone(node))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.giving().calls -= 1;
        self.0.gives();
    }
}

/// Works to the end, even if the kubelet resets its call. Otherwise a file could lie there without
/// a record, or an older file could replace a newer one.
async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
) -> Result<T, Refusal> {
    tokio::spawn(work).await.unwrap_or_else(|error| Err(Refusal::Unavailable(error.to_string())))
}

/// The plugin's knowledge of its node.
#[derive(Debug)]
pub struct Node {
    options: Arc<Options>,
    daemon: Daemon,
    state: Mutex<State>,
    lists: [watch::Sender<Vec<Device>>; 2],
    /// When the plugin began.
    began: Instant,
    /// The connection to the kubelet. When a kubelet lists its pods, it forgets the devices that it
    /// is giving to a container at that moment. The kubelet would give them again
    /// (`UpdateAllocatedDevices` in its devicemanager). So the plugin asks for a list only while
    /// the kubelet gives no devices. Before the list is there, the plugin chooses no devices for
    /// the next container.
    kubelet: Mutex<Option<Client>>,
    giving: std::sync::Mutex<Giving>,
}

/// The reason for which a container does not get what the kubelet asks for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The kubelet's choice of devices is not possible.
    #[error("{0}")]
    Impossible(String),
    /// The plugin cannot do it now.
    #[error("{0}")]
    Unavailable(String),
}

impl From<DaemonError> for Refusal {
    fn from(error: DaemonError) -> Self {
        match error {
            DaemonError::Refused(reason) => Self::Impossible(reason),
            DaemonError::Away(reason) => Self::Unavailable(reason),
        }
    }
}

impl Node {
    /// Returns a node with the records of earlier plugins.
    ///
    /// # Errors
    /// The folder of CDI specifications cannot be read.
    pub fn new(options: Options) -> Result<Self> {
        let began = Instant::now();
        Record::remove_unfinished(&options.cdi_dir)?;
        let records = Record::read_all(&options.cdi_dir)?;
        let records = records.into_iter().map(|record| Held { since: began, ..Held::new(record) }).collect();
        let state = Mutex::new(State { records, ..State::default() });
        let daemon = Daemon::new(options.directory.clone());
        let (lists, kubelet, giving) = Default::default();
        let options = Arc::new(options);
        Ok(Self { options, daemon, state, lists, began, kubelet, giving })
    }

    /// Returns the options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the lists of a resource's devices: the present list, and each later list.
    pub fn devices(&self, resource: Resource) -> watch::Receiver<Vec<Device>> {
        self.lists[resource as usize].subscribe()
    }

    /// Looks again and again. Never returns. `on_gpus` is called once, with the resources of the
    /// node, when the daemon has named its GPUs.
    pub async fn watch(&self, on_gpus: impl FnOnce(Vec<Resource>)) -> Infallible {
        let mut on_gpus = Some(on_gpus);
        // Until a new plugin registers, the kubelet refuses all pods. So the first list of devices
        // waits for the daemon alone. The records name what containers have, and only the kubelet's
        // word ends an allocation.
        let mut evidence = None;
        loop {
            let mut state = self.state.lock().await;
            self.meet_daemon(&mut state).await;
            if let Some((asked, evidence)) = evidence.take() {
                self.compare(&mut state, evidence, asked).await;
                self.end_inits(&mut state).await;
            }
            // A container that waits starts on no GPU that is shut since the last look.
            let shut = state.shut();
            state.shares.set_shut(shut);
            self.let_start(&mut state).await;
            self.publish(&mut state);
            let is_first = state.answered.is_some() && on_gpus.is_some();
            if let Some(on_gpus) = on_gpus.take_if(|_| is_first) {
                let all =
                    [(Resource::Share, !state.shares.is_empty()), (Resource::Gpu, !state.whole.is_empty())];
                on_gpus(all.into_iter().filter(|(_, has)| *has).map(|(resource, _)| resource).collect());
            }
            drop(state);
            if !is_first {
                sleep(self.options.timing.look).await;
            }
            evidence = if self.needs_evidence().await { self.evidence().await } else { None };
        }
    }

    /// Returns whether the plugin needs the kubelet's word. The kubelet itself tells the end of a
    /// claim, so the plugin asks only for the name of the claim's container.
    async fn needs_evidence(&self) -> bool {
        let needs = |held: &Held| held.record.claim.is_none() || held.record.holder().is_none();
        !self.options.by_claims || self.state.lock().await.records.iter().any(needs)
    }

    fn giving(&self) -> std::sync::MutexGuard<'_, Giving> {
        self.giving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the kubelet begins to give the devices of the plugin's answer.
    fn gives(&self) {
        self.giving().until = Some(Instant::now() + self.options.timing.giving);
    }

    /// Waits until the kubelet gives nothing.
    async fn given(&self) {
        loop {
            let now = Instant::now();
            let until = match *self.giving() {
                Giving { calls: 0, until } => until.filter(|until| *until > now),
                _ => Some(now + self.options.timing.giving),
            };
            match until {
                Some(until) => sleep_until(until).await,
                None => return,
            }
        }
    }

    /// Asks the kubelet which containers have which devices. Returns also when the plugin asked, or
    /// `None` without an answer. While this function waits, the kubelet gets no devices for further
    /// containers, so that it soon gives nothing. If the kubelet still gives, the next look asks.
    async fn evidence(&self) -> Option<(Instant, Evidence)> {
        let quiet = async {
            let kubelet = self.kubelet.lock().await;
            self.given().await;
            kubelet
        };
        let mut kubelet = timeout(self.options.timing.wait, quiet).await.ok()?;
        let asked = Instant::now();
        Some((asked, self.ask(&mut kubelet).await?))
    }

    async fn ask(&self, kubelet: &mut Option<Client>) -> Option<Evidence> {
        if kubelet.is_none() {
            *kubelet = Client::connect(&self.options.pod_resources).await.ok();
        }
        // The plugin reads the checkpoint first. A container whose end comes in between counts once
        // more; a new container is young.
        let unreadable = |error: &dyn std::error::Error| {
            // Without the file, containers could seem gone that run.
            tracing::warn!(
                "the plugin cannot read the kubelet's checkpoint, and ends no allocation: {error}"
            );
        };
        let checkpoint = match std::fs::read_to_string(self.options.kubelet_dir.join(CHECKPOINT)) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                unreadable(&error);
                return None;
            }
        };
        let listed: Result<ListPodResourcesResponse, _> =
            kubelet.as_mut()?.unary(path::POD_RESOURCES, Empty {}).await;
        match listed {
            Ok(listed) => {
                Evidence::new(listed, checkpoint.as_deref()).inspect_err(|error| unreadable(error)).ok()
            }
            Err(error) => {
                tracing::debug!(%error, "the kubelet does not list its pods");
                *kubelet = None;
                None
            }
        }
    }

    /// Brings the daemon's record in line with the plugin's.
    async fn meet_daemon(&self, state: &mut State) {
        match self.agree(state).await {
            Ok(()) => {
                if state.is_away {
                    tracing::info!("the daemon answers again");
                }
                (state.answered, state.is_away) = (Some(Instant::now()), false);
            }
            Err(error) => {
                if !state.is_away {
                    tracing::warn!("the daemon does not answer: {error}");
                }
                state.is_away = true;
            }
        }
    }

    async fn agree(&self, state: &mut State) -> Result<(), DaemonError> {
        let is_new = state.answered.is_none() || state.is_away;
        let gpus = if is_new { Some(self.daemon.gpus().await?) } else { None };
        let (tokens, faults) = self.daemon.allocations().await?;
        // The plugin takes the GPUs only with their faults, or a GPU with a fault would seem well.
        if let Some(gpus) = gpus {
            self.take_gpus(state, gpus);
        }
        if faults != state.faults {
            tracing::warn!(?faults, "the faults of GPUs have changed");
            state.faults = faults;
        }
        let known: BTreeSet<_> = tokens.into_iter().collect();
        let own: BTreeSet<_> =
            state.records.iter().map(|held| held.record.allocation.token.clone()).collect();
        for ended in known.difference(&own) {
            self.daemon.release(ended.clone()).await?;
        }
        for held in state.records.iter().filter(|held| !known.contains(&held.record.allocation.token)) {
            match self.daemon.allocate(held.record.allocation.clone()).await {
                Err(DaemonError::Refused(reason)) => {
                    tracing::warn!(
                        device = held.record.device(),
                        "the daemon refuses an allocation: {reason}"
                    );
                }
                answered => answered?,
            }
        }
        Ok(())
    }

    fn take_gpus(&self, state: &mut State, gpus: Vec<GpuStatus>) {
        let memory: BTreeMap<_, _> = gpus.iter().map(|gpu| (gpu.uuid.clone(), gpu.memory_bytes)).collect();
        if memory == state.memory {
            return;
        }
        let mut whole = BTreeSet::new();
        for named in &self.options.whole {
            match gpus.iter().find(|gpu| gpu.uuid == *named || gpu.index.to_string() == *named) {
                Some(gpu) => whole.extend([gpu.uuid.clone()]),
                None => tracing::warn!("the GPU {named} is to be set aside, but the daemon has no such GPU"),
            }
        }
        let uuids = gpus.into_iter().map(|gpu| gpu.uuid).filter(|uuid| !whole.contains(uuid));
        (state.shares, state.whole, state.memory) = (Shares::new(uuids), whole, memory);
    }

    /// Compares the records with `evidence`, the kubelet's answer to a question at `asked`. Ends
    /// the allocations of containers that are gone, and learns the names of new containers. The
    /// answer does not cover containers that came later. Such a container can have the devices of
    /// an ended one.
    async fn compare(&self, state: &mut State, evidence: Evidence, asked: Instant) {
        state.records.sort_by_key(|held| Reverse(held.since));
        let mut seen = BTreeMap::<BTreeSet<String>, usize>::new();
        let mut kept = Vec::new();
        for mut held in std::mem::take(&mut state.records) {
            if held.since >= asked {
                kept.push(held);
                continue;
            }
            let ids = held.record.ids();
            let newer = seen.entry(ids.clone()).or_default();
            let is_there = *newer < evidence.count(&ids);
            // The checkpoint can still have a container that had these devices before.
            held.is_seen |= *newer < evidence.count_listed(&ids);
            *newer += 1;
            let is_claim = held.record.claim.is_some();
            if !is_claim && !is_there && (held.is_seen || held.since.elapsed() >= self.options.timing.young) {
                if let Err(error) = self.end(&held.record).await {
                    tracing::warn!("{error:#}");
                    kept.push(held);
                }
                continue;
            }
            let holder = evidence.holder(&ids).filter(|_| *newer == 1 && held.record.holder().is_none());
            if let Some(holder) = holder {
                let mut allocation = held.record.allocation.clone();
                allocation.holder = Some(holder.clone());
                if self.daemon.allocate(allocation.clone()).await.is_ok() {
                    held.record.allocation = allocation;
                }
            }
            kept.push(held);
        }
        (state.records, state.evidence) = (kept, evidence);
    }

    /// Ends an allocation whose containers are gone: removes its record from the disk and the
    /// daemon's.
    async fn end(&self, record: &Record) -> Result<()> {
        let own = record.clone();
        self.on_disk(move |options| own.remove(&options.cdi_dir)).await?;
        tracing::info!(
            device = record.device(),
            holder = ?record.holder(),
            "a container is gone, and its allocation ended"
        );
        // If the daemon is away, the next look tells it.
        drop(self.daemon.release(record.allocation.token.clone()).await);
        Ok(())
    }

    /// Frees the parts of init containers that have ended.
    async fn end_inits(&self, state: &mut State) {
        while let Some(place) = state.ended_init() {
            let record = Record { phase: Phase::Over, ..state.records[place].record.clone() };
            if !self.keep(&record).await {
                return;
            }
            tracing::info!(device = record.device(), "an init container has ended, and its part is free");
            state.records[place].record = record;
        }
    }

    /// Lets the containers that wait start on a GPU with room, the longest wait first.
    async fn let_start(&self, state: &mut State) {
        while let Some((place, record)) = state.next_change() {
            if record.allocation != state.records[place].record.allocation
                && let Err(error) = self.daemon.allocate(record.allocation.clone()).await
            {
                // The next look tries again.
                tracing::warn!("a container that waits cannot get another GPU: {error}");
                return;
            }
            if !self.keep(&record).await {
                return;
            }
            let (gpus, waits) = (&record.allocation.gpus, record.phase == Phase::Waits);
            tracing::info!(device = record.device(), ?gpus, waits, "a container that waits has a better GPU");
            state.records[place].record = record;
        }
    }

    /// Writes a record. Returns whether the record is written; the next look tries again.
    async fn keep(&self, record: &Record) -> bool {
        self.write(record).await.inspect_err(|error| tracing::warn!("{error:#}")).is_ok()
    }

    async fn write(&self, record: &Record) -> Result<()> {
        let record = record.clone();
        self.on_disk(move |options| record.write(&options.cdi_dir, &options.library, &options.directory))
            .await
    }

    /// Changes files beside the plugin's one thread, because a slow disk takes seconds for a file.
    async fn on_disk(&self, change: impl FnOnce(&Options) -> Result<()> + Send + 'static) -> Result<()> {
        let options = Arc::clone(&self.options);
        tokio::task::spawn_blocking(move || change(&options)).await?
    }

    /// Publishes the devices.
    fn publish(&self, state: &mut State) {
        let timing = &self.options.timing;
        let mut used: Slots = state.records.iter().filter_map(|held| held.record.slots.as_ref()).collect();
        // The evidence can have ids of an earlier release.
        for listed in state.evidence.ids().filter_map(|id| Slots::of_ids([id]).ok()) {
            used.add(&listed);
        }
        let is_settled = state.allocated.is_none_or(|at| at.elapsed() >= timing.settle);
        let parts = state.records.iter().filter_map(|held| held.record.part());
        let shut = state.shut();
        state.shares.set_shut(shut);
        state.shares.observe(&used, parts, is_settled, self.began.elapsed(), timing.surplus);
        let gives =
            !self.options.by_claims && state.answered.is_some_and(|at| at.elapsed() < timing.daemon_timeout);
        let health = |is_healthy: bool| if is_healthy && gives { HEALTHY } else { UNHEALTHY }.to_owned();
        let shares = state.shares.devices();
        let shares = shares.map(|(id, is_healthy)| Device { id, health: health(is_healthy) });
        let is_open = |gpu: &String| state.obstacle_of_whole(gpu).is_none();
        let whole = state.whole.iter().map(|gpu| Device { id: gpu.clone(), health: health(is_open(gpu)) });
        let lists = [shares.collect::<Vec<_>>(), whole.collect()];
        let is_due = state.nudged.is_none_or(|at| at.elapsed() >= timing.nudge);
        let nudges = is_due && state.evidence.is_doubtful();
        if nudges {
            state.nudged = Some(Instant::now());
        }
        for (list, devices) in self.lists.iter().zip(lists) {
            list.send_if_modified(|before| std::mem::replace(before, devices.clone()) != devices || nudges);
        }
    }

    /// Chooses devices for a container among the available devices.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn prefer(
        &self,
        resource: Resource,
        available: Vec<String>,
        must: Vec<String>,
        size: usize,
    ) -> Result<Vec<String>, Refusal> {
        // While the plugin has the connection, it asks for no list.
        let mut kubelet = timeout(self.options.timing.wait, self.kubelet.lock()).await.ok();
        let chosen = match resource {
            Resource::Share => {
                let ids = |state: &State| state.records.iter().flat_map(|held| held.record.ids()).collect();
                let held: BTreeSet<String> = ids(&*self.state.lock().await);
                let is_spare = |id: &&String| !must.contains(id) && !held.contains(*id);
                let mut owned = BTreeSet::new();
                if available.iter().filter(is_spare).count() + must.len() < size
                    && let Some(kubelet) = &mut kubelet
                    && let Some(evidence) = self.ask(kubelet).await
                {
                    owned = evidence.running_ids();
                }
                let state = self.state.lock().await;
                state.shares.prefer(available, must, size, &held, &owned).map_err(Refusal::Impossible)
            }
            Resource::Gpu => {
                let rest = size.saturating_sub(must.len());
                if rest == 0 {
                    return Ok(must);
                }
                let among: Vec<_> = available.into_iter().filter(|id| !must.contains(id)).collect();
                let placed = self.patiently(|| self.daemon.place(rest, among.clone())).await?;
                Ok([must, placed].concat())
            }
        };
        self.gives();
        chosen
    }

    /// Gives devices to a container. Returns what the container needs.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn allocate(
        self: &Arc<Self>,
        resource: Resource,
        ids: Vec<String>,
    ) -> Result<ContainerAllocateResponse, Refusal> {
        // The task begins later, and a look before it must not ask for a list.
        let call = Call::new(self);
        let work = async move {
            let answer = call.0.give(resource, &ids).await;
            drop(call);
            answer
        };
        to_its_end(work).await
    }

    async fn give(&self, resource: Resource, ids: &[String]) -> Result<ContainerAllocateResponse, Refusal> {
        let mut state = self.state.lock().await;
        let (gpus, slots, waits) = match resource {
            Resource::Share => {
                let slots = state.shares.checked(ids).map_err(Refusal::Impossible)?;
                let choice = state.shares.choose(&slots, state.parts()).map_err(Refusal::Impossible)?;
                (vec![choice.gpu.to_owned()], Some(slots), choice.waits)
            }
            Resource::Gpu => {
                let obstacle =
                    |gpu: &String| Some(format!("the GPU {gpu:?} {}", state.obstacle_of_whole(gpu)?));
                if let Some(reason) = ids.iter().find_map(obstacle) {
                    return Err(Refusal::Impossible(reason));
                }
                (ids.to_vec(), None, false)
            }
        };
        let memory = gpus.iter().filter_map(|uuid| state.memory.get(uuid)).min();
        let memory = *memory.ok_or_else(|| Refusal::Impossible("the kubelet named no devices".to_owned()))?;
        let mut record = Record::new(gpus, slots, memory).map_err(unavailable)?;
        if waits {
            // The kubelet never asks again, so the container gets the files of all GPUs that can
            // have room later.
            record.phase = Phase::Waits;
            record.among = state.shares.open_gpus().cloned().collect();
        }
        let files = record.among.iter().filter_map(|uuid| self.files_of(uuid));
        let devices = files.chain([record.device()]).map(|name| CdiDevice { name }).collect();
        self.admit(&mut state, record).await?;
        self.publish(&mut state);
        Ok(ContainerAllocateResponse { cdi_devices: devices, ..Default::default() })
    }

    /// Returns the CDI device with the files of a GPU, if there is one.
    pub(crate) fn files_of(&self, uuid: &str) -> Option<String> {
        self.options.gpu_device.as_ref().map(|name| name.replace(UUID, uuid))
    }

    /// Gives a container its allocation: puts it on the daemon's record, on the disk and on this
    /// plugin's record.
    async fn admit(&self, state: &mut State, record: Record) -> Result<(), Refusal> {
        self.tell(&record).await?;
        if let Err(error) = self.write(&record).await {
            // If the daemon is away now, the next look tells it.
            drop(self.daemon.release(record.allocation.token).await);
            return Err(unavailable(error));
        }
        tracing::info!(
            device = record.device(),
            gpus = ?record.allocation.gpus,
            share_ppm = record.allocation.share_ppm,
            claim = ?record.claim,
            waits = record.phase == Phase::Waits,
            "a container gets an allocation"
        );
        let held = Held::new(record);
        state.allocated = Some(held.since);
        state.records.push(held);
        Ok(())
    }

    /// Waits until the container with these devices can start.
    ///
    /// # Errors
    /// [`Refusal`]. The kubelet tries again later.
    pub async fn start(self: &Arc<Self>, ids: Vec<String>) -> Result<(), Refusal> {
        let ids: Arc<BTreeSet<String>> = Arc::new(ids.into_iter().collect());
        let began = Instant::now();
        loop {
            let (node, own) = (Arc::clone(self), Arc::clone(&ids));
            let obstacle = to_its_end(async move { node.obstacle(&own).await });
            let Some(reason) = obstacle.await? else { return Ok(()) };
            if began.elapsed() >= self.options.timing.hold {
                return Err(Refusal::Unavailable(reason));
            }
            sleep(self.options.timing.look).await;
        }
    }

    /// Returns why the container with these devices cannot start now; `None` if it starts.
    ///
    /// # Errors
    /// [`Refusal`]: the container can never start.
    async fn obstacle(&self, ids: &BTreeSet<String>) -> Result<Option<String>, Refusal> {
        let mut state = self.state.lock().await;
        let own = state.records.iter().enumerate().filter(|(_, held)| held.record.ids() == *ids);
        // An older record with these devices is of a container that has ended.
        let Some((place, _)) = own.max_by_key(|(_, held)| held.since) else {
            let reason = "the device plugin has no record of the container's devices; delete the pod";
            return Err(Refusal::Impossible(reason.to_owned()));
        };
        let record = &state.records[place].record;
        let (count, phase) = (record.slots.as_ref().map_or(0, Slots::count), record.phase);
        // A container that waits can still get another GPU, if one is open.
        let has_hope =
            phase == Phase::Waits && state.shares.open_gpus().any(|gpu| record.among.contains(gpu));
        if !has_hope && let Some(fault) = state.fault(record) {
            return Ok(Some(format!("{fault}; delete the pod, and the next one gets another GPU")));
        }
        let lacking = if phase == Phase::Runs { 0 } else { state.lacking(place) };
        if phase == Phase::Over {
            // The pod starts anew, with its init containers. Room is kept for those that wait.
            let phase = if lacking > 0 { Phase::Waits } else { Phase::Runs };
            let record = Record { phase, ..record.clone() };
            if !self.keep(&record).await {
                return Ok(Some("the plugin cannot write the container's record".to_owned()));
            }
            // The earlier start says nothing about this run.
            let held = &mut state.records[place];
            (held.record, held.started) = (record, None);
        }
        let Held { record, started, .. } = &mut state.records[place];
        if record.phase == Phase::Waits {
            let gpu = record.allocation.gpus.first().map_or("", String::as_str);
            return Ok(Some(format!(
                "the container waits for {count} {} on one GPU, and {lacking} more have to become free on {gpu}, which lacks the least",
                Resource::Share.name()
            )));
        }
        *started = Some(Instant::now());
        Ok(None)
    }

    /// Puts an allocation on the daemon's record.
    async fn tell(&self, record: &Record) -> Result<(), Refusal> {
        self.patiently(|| self.daemon.allocate(record.allocation.clone())).await
    }

    /// Asks the daemon. Waits for a daemon that restarts.
    async fn patiently<T, F>(&self, ask: impl Fn() -> F) -> Result<T, Refusal>
    where
        F: Future<Output = Result<T, DaemonError>>,
    {
        let began = Instant::now();
        loop {
            match ask().await {
                Err(DaemonError::Away(_)) if began.elapsed() < self.options.timing.wait => {
                    sleep(self.options.timing.look).await;
                }
                answered => return Ok(answered?),
            }
        }
    }
}

/// Returns the refusal for a failure of this machine, which can pass.
fn unavailable(error: anyhow::Error) -> Refusal {
    Refusal::Unavailable(format!("{error:#}"))
}

/// Watches a node and serves its resources, until the future is dropped.
///
/// # Errors
/// The folder of CDI specifications cannot be read.
pub async fn run(options: Options) -> Result<Infallible> {
    let node = Arc::new(Node::new(options)?);
    let mut plugins = JoinSet::new();
    let serve = |resources: Vec<Resource>| {
        if resources.is_empty() {
            tracing::warn!("the daemon manages no GPU: this node has no devices");
        }
        for resource in resources {
            plugins.spawn(crate::plugin::serve(Arc::clone(&node), resource));
        }
    };
    Ok(node.watch(serve).await)
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_daemon_harness::Daemon;
    use deepres_model::config::Config;
    use std::path::Path;
    use std::pin::pin;
    use tokio::runtime::{Builder, Runtime};
    use tokio::task::{spawn_blocking, yield_now};

    fn options(folder: &Path, directory: Directory) -> Options {
        Options {
            kubelet_dir: folder.join("plugins"),
            pod_resources: folder.join("kubelet.sock"),
            cdi_dir: folder.join("cdi"),
            library: PathBuf::from("/lib/libdeepres.so"),
            gpu_device: None,
            whole: Vec::new(),
            by_claims: false,
            directory,
            timing: Timing::default(),
        }
    }

    /// Returns a runtime with one thread, and one more for files.
    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap()
    }

    /// Begins a call of the kubelet and resets the call while it waits for the thread for files.
    async fn reset<T>(call: impl Future<Output = T>) {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = spawn_blocking(move || ended.recv());
        tokio::select! {
            biased;
            _ = call => panic!("the call did not wait"),
            () = yield_now() => {}
        }
        drop(end);
        other.await.unwrap().unwrap_err();
    }

    /// Waits until the only record is in this phase, in memory and on the disk.
    async fn until_recorded(node: &Node, phase: Phase) {
        let is_recorded = async {
            loop {
                let records: Vec<Record> =
                    node.state.lock().await.records.iter().map(|held| held.record.clone()).collect();
                let is_there = matches!(&records[..], [record] if record.phase == phase);
                if is_there && Record::read_all(&node.options.cdi_dir).unwrap() == records {
                    return;
                }
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(20), is_recorded).await.expect("the record and its file agree");
    }

    #[test]
    fn a_call_that_the_kubelet_resets_goes_on_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let daemon = Daemon::start(1, Config { pods_need_token: true, ..Config::default() });
        let node = Arc::new(Node::new(options(folder.path(), daemon.directory.clone())).unwrap());
        let ids: Vec<String> = Slots::parse("0-29").unwrap().ids().into_iter().collect();
        runtime().block_on(async {
            node.meet_daemon(&mut *node.state.lock().await).await;
            reset(node.allocate(Resource::Share, ids.clone())).await;
            until_recorded(&node, Phase::Runs).await;
            node.state.lock().await.records[0].record.phase = Phase::Over;
            reset(node.start(ids)).await;
            until_recorded(&node, Phase::Runs).await;
        });
    }

    #[test]
    fn the_kubelet_gives_from_the_moment_of_its_call() {
        let folder = tempfile::tempdir().unwrap();
        let node = Arc::new(Node::new(options(folder.path(), Directory::at("/run/deepres"))).unwrap());
        runtime().block_on(async {
            let mut call = pin!(node.allocate(Resource::Share, vec!["share-0000".to_owned()]));
            tokio::select! {
                biased;
                _ = &mut call => panic!("the call did not wait"),
                () = std::future::ready(()) => {}
            }
            assert_eq!(node.giving().calls, 1);
            call.await.unwrap_err();
            assert!(node.giving().calls == 0 && node.giving().until.is_some());
        });
    }

    #[test]
    fn a_slow_disk_does_not_hold_up_the_plugins_thread() {
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path(), Directory::at("/run/deepres"));
        let node = Node::new(options).unwrap();
        let record = Record::new(vec!["GPU-1".to_owned()], Slots::parse("0-29"), 1 << 30).unwrap();
        runtime().block_on(async {
            // The work of another file keeps the only thread for files.
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let other = spawn_blocking(move || ended.recv());
            let mut keep = pin!(node.keep(&record));
            tokio::select! {
                biased;
                _ = &mut keep => panic!("the plugin's thread wrote the file"),
                () = yield_now() => {}
            }
            drop(end);
            assert!(keep.await && other.await.unwrap().is_err());
        });
        assert_eq!(Record::read_all(&folder.path().join("cdi")).unwrap(), [record]);
    }
}
