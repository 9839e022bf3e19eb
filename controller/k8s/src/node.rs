//! The plugin's knowledge of its node: GPUs from the daemon, containers from the kubelet, and its own
//! records of allocations. A *look*, once a second, brings the three together.

use crate::api::{
    CdiDevice, ContainerAllocateResponse, Device, Empty, HEALTHY, ListPodResourcesResponse, UNHEALTHY, path,
};
use crate::daemon::{Daemon, DaemonError};
use crate::evidence::{CHECKPOINT, Evidence};
use crate::grpc::Client;
use crate::plugin::Resource;
use crate::record::Record;
use crate::shares::{Part, Shares, Slots, lacking};
use anyhow::Result;
use deepres_model::directory::Directory;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// The place in the name of a further CDI device that stands for the GPU's UUID.
const UUID: &str = "{uuid}";

/// The times by which the plugin acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// The time between two looks.
    pub look: Duration,
    /// The time for which an allocation needs no container. Within it, the kubelet lists the container
    /// for the first time.
    pub young: Duration,
    /// The time after an allocation in which another container of the same pod may follow.
    pub settle: Duration,
    /// The time after which it is quiet: the scheduler has learned of all containers that came or went.
    pub quiet: Duration,
    /// The time for which a container's start waits for room before the kubelet tries again. The
    /// kubelet allows 30 s.
    pub hold: Duration,
    /// The time without the daemon after which all devices are unhealthy. A daemon restarts in less.
    pub away: Duration,
    /// The time for which an allocation waits for the daemon.
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
            quiet: Duration::from_secs(60),
            hold: Duration::from_secs(20),
            away: Duration::from_secs(30),
            wait: Duration::from_secs(5),
            nudge: Duration::from_secs(10),
            retry: Duration::from_secs(5),
        }
    }
}

/// What an administrator tells the plugin.
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
    /// GPU's UUID. It brings the container the GPU's device files and the driver.
    pub gpu_device: Option<String>,
    /// The GPUs that are set aside for containers with whole GPUs, by number or UUID.
    pub whole: Vec<String>,
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
}

#[derive(Debug, Default)]
struct State {
    /// The memory of each GPU, bytes, by UUID.
    memory: BTreeMap<String, u64>,
    shares: Shares,
    whole: BTreeSet<String>,
    records: Vec<Held>,
    evidence: Evidence,
    /// The shares of all containers.
    used: Slots,
    /// When a container last got devices.
    allocated: Option<Instant>,
    /// When a container's devices last came or went.
    stirred: Option<Instant>,
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

    /// Returns the room that a container's GPU lacks, in shares; 0 if the container can start. A
    /// container that waits lets those go first that do not wait or have waited longer.
    fn lacking(&self, held: &Held) -> usize {
        let Some(own) = held.record.part() else { return 0 };
        let comes_before = |other: &&Held| !other.record.waits || other.since < held.since;
        let before = self.records.iter().filter(comes_before).filter_map(|other| other.record.part());
        lacking(own.slots, own.gpu, before)
    }
}

/// The plugin's knowledge of its node.
#[derive(Debug)]
pub struct Node {
    options: Options,
    daemon: Daemon,
    state: Mutex<State>,
    lists: [watch::Sender<Vec<Device>>; 2],
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
        let since = Instant::now();
        let records = Record::read_all(&options.cdi_dir)?;
        let records = records.into_iter().map(|record| Held { record, since, is_seen: false }).collect();
        let state = Mutex::new(State { records, ..State::default() });
        let daemon = Daemon::new(options.directory.clone());
        Ok(Self { options, daemon, state, lists: Default::default() })
    }

    /// Returns the options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the lists of a resource's devices: the present list, and each later list.
    pub fn devices(&self, resource: Resource) -> watch::Receiver<Vec<Device>> {
        self.lists[resource as usize].subscribe()
    }

    /// Looks again and again. Never returns. `on_gpus` is called once, with the resources of the node,
    /// when the daemon has named its GPUs.
    pub async fn watch(&self, on_gpus: impl FnOnce(Vec<Resource>)) -> Infallible {
        let mut on_gpus = Some(on_gpus);
        let mut kubelet = None;
        loop {
            let evidence = self.evidence(&mut kubelet).await;
            let mut state = self.state.lock().await;
            self.meet_daemon(&mut state).await;
            if let Some(evidence) = evidence {
                self.compare(&mut state, evidence).await;
            }
            self.let_start(&mut state);
            self.publish(&mut state);
            if state.answered.is_some()
                && let Some(on_gpus) = on_gpus.take()
            {
                let all =
                    [(Resource::Share, !state.shares.is_empty()), (Resource::Gpu, !state.whole.is_empty())];
                on_gpus(all.into_iter().filter(|(_, has)| *has).map(|(resource, _)| resource).collect());
            }
            drop(state);
            sleep(self.options.timing.look).await;
        }
    }

    /// Asks the kubelet which containers have which devices. Returns `None` without an answer.
    async fn evidence(&self, kubelet: &mut Option<Client>) -> Option<Evidence> {
        if kubelet.is_none() {
            *kubelet = Client::connect(&self.options.pod_resources).await.ok();
        }
        // The plugin reads the checkpoint first. A container whose end comes in between counts once
        // more; a new container is young.
        let checkpoint = match std::fs::read_to_string(self.options.kubelet_dir.join(CHECKPOINT)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => {
                // Without the file, containers could seem gone that run.
                tracing::warn!(
                    "the plugin cannot read the kubelet's checkpoint, and ends no allocation: {error}"
                );
                return None;
            }
        };
        let listed: Result<ListPodResourcesResponse, _> =
            kubelet.as_mut()?.unary(path::POD_RESOURCES, Empty {}).await;
        match listed {
            Ok(listed) => Some(Evidence::new(listed, &checkpoint)),
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
        if state.answered.is_none() || state.is_away {
            self.learn_gpus(state).await?;
        }
        let known: BTreeSet<_> = self.daemon.tokens().await?.into_iter().collect();
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

    async fn learn_gpus(&self, state: &mut State) -> Result<(), DaemonError> {
        let gpus = self.daemon.gpus().await?;
        let memory: BTreeMap<_, _> = gpus.iter().map(|gpu| (gpu.uuid.clone(), gpu.memory_bytes)).collect();
        if memory == state.memory {
            return Ok(());
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
        Ok(())
    }

    /// Compares the records with the kubelet's word: ends the allocations of containers that are gone,
    /// and learns the names of new containers.
    async fn compare(&self, state: &mut State, evidence: Evidence) {
        state.records.sort_by_key(|held| Reverse(held.since));
        let mut seen = BTreeMap::<BTreeSet<String>, usize>::new();
        let mut kept = Vec::new();
        for mut held in std::mem::take(&mut state.records) {
            let ids = held.record.ids();
            let newer = seen.entry(ids.clone()).or_default();
            let is_there = *newer < evidence.count(&ids);
            *newer += 1;
            held.is_seen |= is_there;
            if !is_there && (held.is_seen || held.since.elapsed() >= self.options.timing.young) {
                if let Err(error) = held.record.remove(&self.options.cdi_dir) {
                    tracing::warn!("{error:#}");
                    kept.push(held);
                    continue;
                }
                tracing::info!(
                    device = held.record.device(),
                    holder = ?held.record.holder(),
                    "a container is gone, and its allocation ended"
                );
                // If the daemon is away, the next look tells it.
                drop(self.daemon.release(held.record.allocation.token).await);
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

    /// Lets each waiting container start whose GPU has room now.
    fn let_start(&self, state: &mut State) {
        let can_start = |held: &Held| held.record.waits && state.lacking(held) == 0;
        let Some(place) = state.records.iter().position(can_start) else { return };
        let record = Record { waits: false, ..state.records[place].record.clone() };
        match record.write(&self.options.cdi_dir, &self.options.library, &self.options.directory) {
            Ok(()) => {
                tracing::info!(device = record.device(), "the GPU has room for a container that waited");
                state.records[place].record = record;
                self.let_start(state);
            }
            // The next look tries again.
            Err(error) => tracing::warn!("{error:#}"),
        }
    }

    /// Publishes the devices.
    fn publish(&self, state: &mut State) {
        let timing = &self.options.timing;
        // The evidence may have ids of an earlier release.
        let listed = state.evidence.ids().filter_map(|id| Slots::of_ids([id]).ok());
        let used: Slots = listed.chain(state.parts().map(|part| part.slots.clone())).collect();
        if used != state.used {
            (state.used, state.stirred) = (used.clone(), Some(Instant::now()));
        }
        let is_settled = state.allocated.is_none_or(|at| at.elapsed() >= timing.settle);
        let is_quiet = state.stirred.is_none_or(|at| at.elapsed() >= timing.quiet);
        let parts = state.records.iter().filter_map(|held| held.record.part());
        state.shares.observe(&used, parts, is_settled, is_quiet);
        let is_there = state.answered.is_some_and(|at| at.elapsed() < timing.away);
        let health = |is_healthy: bool| if is_healthy && is_there { HEALTHY } else { UNHEALTHY }.to_owned();
        let shares = state
            .shares
            .devices()
            .into_iter()
            .map(|device| Device { health: health(device.health == HEALTHY), ..device });
        let whole = state.whole.iter().map(|uuid| Device { id: uuid.clone(), health: health(true) });
        let is_due = state.nudged.is_none_or(|at| at.elapsed() >= timing.nudge);
        let nudges = is_due && state.evidence.is_doubtful();
        if nudges {
            state.nudged = Some(Instant::now());
        }
        for (list, devices) in self.lists.iter().zip([shares.collect::<Vec<_>>(), whole.collect()]) {
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
        let state = self.state.lock().await;
        match resource {
            Resource::Share => {
                let held = state.records.iter().flat_map(|held| held.record.ids()).collect();
                state.shares.prefer(available, must, size, &held).map_err(Refusal::Impossible)
            }
            Resource::Gpu => {
                let rest = size.saturating_sub(must.len());
                if rest == 0 {
                    return Ok(must);
                }
                let among = available.into_iter().filter(|id| !must.contains(id)).collect();
                let placed = self.daemon.place(rest, among).await?;
                Ok([must, placed].concat())
            }
        }
    }

    /// Gives devices to a container. Returns what the container needs.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn allocate(
        &self,
        resource: Resource,
        ids: &[String],
    ) -> Result<ContainerAllocateResponse, Refusal> {
        let mut state = self.state.lock().await;
        let (gpus, slots, waits) = match resource {
            Resource::Share => {
                let slots = state.shares.checked(ids).map_err(Refusal::Impossible)?;
                let choice = state.shares.choose(&slots, state.parts()).map_err(Refusal::Impossible)?;
                (vec![choice.gpu.to_owned()], Some(slots), choice.waits)
            }
            Resource::Gpu => {
                if let Some(unknown) = ids.iter().find(|id| !state.whole.contains(*id)) {
                    return Err(Refusal::Impossible(format!("the GPU {unknown:?} is not set aside")));
                }
                (ids.to_vec(), None, false)
            }
        };
        let memory = gpus.iter().filter_map(|uuid| state.memory.get(uuid)).min();
        let memory = *memory.ok_or_else(|| Refusal::Impossible("the kubelet named no devices".to_owned()))?;
        let unavailable = |error: anyhow::Error| Refusal::Unavailable(format!("{error:#}"));
        let record = Record { waits, ..Record::new(gpus, slots, memory).map_err(unavailable)? };
        self.tell(&record).await?;
        if let Err(error) =
            record.write(&self.options.cdi_dir, &self.options.library, &self.options.directory)
        {
            // If the daemon is away now, the next look tells it.
            drop(self.daemon.release(record.allocation.token).await);
            return Err(unavailable(error));
        }
        let devices = self
            .options
            .gpu_device
            .iter()
            .flat_map(|template| record.allocation.gpus.iter().map(|uuid| template.replace(UUID, uuid)));
        let devices = devices.chain([record.device()]).map(|name| CdiDevice { name }).collect();
        tracing::info!(
            device = record.device(),
            gpus = ?record.allocation.gpus,
            share_ppm = record.allocation.share_ppm,
            waits,
            "a container gets an allocation"
        );
        let since = Instant::now();
        state.records.push(Held { record, since, is_seen: false });
        state.allocated = Some(since);
        self.publish(&mut state);
        Ok(ContainerAllocateResponse { cdi_devices: devices, ..Default::default() })
    }

    /// Waits until the container with these devices can start.
    ///
    /// # Errors
    /// [`Refusal`]. The kubelet tries again later.
    pub async fn start(&self, ids: &[String]) -> Result<(), Refusal> {
        let ids: BTreeSet<String> = ids.iter().cloned().collect();
        let began = Instant::now();
        loop {
            let lacking = {
                let state = self.state.lock().await;
                let own = state.records.iter().filter(|held| held.record.ids() == ids);
                // An older record with these devices is of a container that has ended.
                let Some(held) = own.max_by_key(|held| held.since) else {
                    let reason = "the device plugin has no record of the container's devices; delete the pod";
                    return Err(Refusal::Impossible(reason.to_owned()));
                };
                if !held.record.waits {
                    return Ok(());
                }
                state.lacking(held)
            };
            if began.elapsed() >= self.options.timing.hold {
                return Err(Refusal::Unavailable(format!(
                    "the container waits for {} {} on one GPU, and {lacking} more have to become free",
                    ids.len(),
                    Resource::Share.name()
                )));
            }
            sleep(self.options.timing.look).await;
        }
    }

    /// Puts an allocation on the daemon's record. Waits for a daemon that restarts.
    async fn tell(&self, record: &Record) -> Result<(), Refusal> {
        let began = Instant::now();
        loop {
            match self.daemon.allocate(record.allocation.clone()).await {
                Err(DaemonError::Away(_)) if began.elapsed() < self.options.timing.wait => {
                    sleep(self.options.timing.look).await;
                }
                answered => return Ok(answered?),
            }
        }
    }
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
