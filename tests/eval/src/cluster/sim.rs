//! The scheduler, the kubelets and the events of the day.
//!
//! - The scheduler takes a job when it comes, and otherwise when the view of a node changes, the
//!   oldest job that fits first. Of the nodes with enough free devices it takes any, because the
//!   default scores count processors and memory only.
//! - A job reaches its node a second later. A pod that its node refuses fails. Its controller makes
//!   a new pod after 10 s, and after twice the time for each further failure, up to 6 minutes.
//! - A kubelet writes its node's status when it has changed, every 10 s at most.

use super::jobs::{DAY_MS, Job, Random, SECOND_MS};
use super::node::{Given, Plugin};
use super::{Policy, Row, Size};
use deepres_policy::shares::SHARES;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

/// The time from the binding of a pod until its kubelet admits it.
const BIND_MS: u64 = SECOND_MS;
/// The time between two writes of a node's status (nodeStatusUpdateFrequency).
const STATUS_MS: u64 = 10 * SECOND_MS;
/// The time after which a job's controller makes a new pod, and the longest such time (the Job
/// controller's back-off).
const AGAIN_MS: u64 = 10 * SECOND_MS;
const AGAIN_MOST_MS: u64 = 360 * SECOND_MS;
/// The time after which the scheduler tries again when HAMi's node lock was taken.
const LOCKED_MS: u64 = SECOND_MS;
/// Writes of a refused pod: its status, its successor, and the successor's binding.
const REFUSAL_WRITES: u64 = 3;
/// Writes of HAMi for a pod with one container (4707fb0). The pod's annotations: the choice
/// (Scheduler.Filter), the phase "allocating" (Scheduler.Bind), the erased request
/// (patchErasedAnnotation), and the phase "success" (PodAllocationSuccess). The node's: the lock
/// (nodelock.LockNode) and its release.
const HAMI_WRITES: u64 = 6;
/// Of these, the writes until the binding fails because another pod has the node's lock.
const HAMI_FAILED_WRITES: u64 = 1;
//
// By HAMi's page docs/develop/protocol.md, its plugin and its scheduler each write an annotation of
// each node every 30 s. The plugin of 4707fb0 writes only what has changed, so the figures leave
// these out.
/// Messages on a node of deepres. For each second: the list of pods and the daemon's allocations.
/// For each job: GetPreferredAllocation, Allocate, PreStartContainer, and the daemon's record, its
/// holder and its end.
const DEEPRES_MESSAGES_S: f64 = 2.0;
const DEEPRES_MESSAGES_JOB: u64 = 6;
/// Messages for each job of a plugin without a daemon: GetPreferredAllocation and Allocate. HAMi
/// answers Allocate only.
const COUNTED_MESSAGES_JOB: u64 = 2;
const HAMI_MESSAGES_JOB: u64 = 1;
const MINUTE_MS: u64 = 60 * SECOND_MS;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A job ends on a node.
    End { job: usize, node: usize },
    /// A plugin looks.
    Look { node: usize },
    /// A kubelet writes its node's status.
    Report { node: usize },
    /// A job reaches its node.
    Admit { job: usize, node: usize },
    /// A job comes to the scheduler.
    Arrive { job: usize },
}

#[derive(Debug)]
struct Node {
    /// The devices in the node's status.
    allocatable: usize,
    /// The shares of the pods that the scheduler bound and that are not over.
    bound: usize,
    /// The shares of running jobs, by GPU. For HAMi: of bound jobs.
    used: Vec<usize>,
    plugin: Option<Plugin>,
    /// When the plugin's next look is planned.
    look_ms: Option<u64>,
    reports: bool,
    locked_until_ms: u64,
}

impl Node {
    fn free(&self) -> usize {
        self.allocatable.saturating_sub(self.bound)
    }

    fn hole(&self) -> usize {
        SHARES - self.used.iter().copied().min().unwrap_or(SHARES)
    }
}

/// The simulation of a day under one policy.
pub struct Sim<'a> {
    policy: Policy,
    size: Size,
    jobs: &'a [Job],
    nodes: Vec<Node>,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    now_ms: u64,
    /// The jobs that fit on no node, by share.
    pending: BTreeMap<usize, BTreeSet<usize>>,
    /// The GPU and the failures of each job.
    gpu_of: Vec<usize>,
    failures: Vec<u32>,
    /// The number of GPUs with so many free shares.
    rooms: [usize; SHARES + 1],
    random: Random,
    writes: u64,
    writes_of_minute: Vec<u64>,
    decisions: u64,
    messages: u64,
    refused: u64,
    refused_though_room: u64,
    pending_though_room: u64,
    waited_on_node: u64,
    waited_though_room: u64,
    waits_ms: Vec<u64>,
    used_ms: u64,
}

impl<'a> Sim<'a> {
    /// Returns a day whose jobs have not come yet. Plugins of deepres publish freed shares for the
    /// time `surplus`.
    pub fn new(policy: Policy, size: Size, surplus: Duration, jobs: &'a [Job]) -> Self {
        let node = |_| {
            let plugin = (policy == Policy::Deepres).then(|| Plugin::new(size.gpus, surplus));
            let all = size.gpus * SHARES;
            Node {
                allocatable: plugin.as_ref().map_or(all, Plugin::healthy),
                bound: 0,
                used: vec![0; size.gpus],
                plugin,
                look_ms: None,
                reports: false,
                locked_until_ms: 0,
            }
        };
        let mut rooms = [0; SHARES + 1];
        rooms[SHARES] = size.nodes * size.gpus;
        let arrivals = jobs.iter().enumerate().map(|(job, Job { arrives_ms, .. })| (*arrives_ms, job));
        Self {
            policy,
            size,
            jobs,
            nodes: (0..size.nodes).map(node).collect(),
            events: arrivals.map(|(at_ms, job)| Reverse((at_ms, Event::Arrive { job }))).collect(),
            now_ms: 0,
            pending: BTreeMap::new(),
            gpu_of: vec![0; jobs.len()],
            failures: vec![0; jobs.len()],
            rooms,
            random: Random::new(2),
            writes: 0,
            writes_of_minute: vec![0; (DAY_MS / MINUTE_MS) as usize],
            decisions: 0,
            messages: 0,
            refused: 0,
            refused_though_room: 0,
            pending_though_room: 0,
            waited_on_node: 0,
            waited_though_room: 0,
            waits_ms: Vec::new(),
            used_ms: 0,
        }
    }

    /// Lets the day pass, and returns the figures.
    pub fn run(mut self) -> Row {
        while let Some(Reverse((at_ms, event))) = self.events.pop() {
            if at_ms >= DAY_MS {
                break;
            }
            self.now_ms = at_ms;
            match event {
                Event::Arrive { job } => self.arrive(job),
                Event::Admit { job, node } => self.admit(job, node),
                Event::End { job, node } => self.end(job, node),
                Event::Look { node } => self.look(node),
                Event::Report { node } => self.report(node),
            }
        }
        self.row()
    }

    fn at(&mut self, after_ms: u64, event: Event) {
        self.events.push(Reverse((self.now_ms + after_ms, event)));
    }

    fn write(&mut self, count: u64) {
        self.writes += count;
        self.writes_of_minute[(self.now_ms / MINUTE_MS) as usize] += count;
    }

    fn has_room(&self, share: usize) -> bool {
        self.rooms[share..].iter().any(|gpus| *gpus > 0)
    }

    /// Returns whether a GPU of another node has room for a share.
    fn has_room_beside(&self, node: usize, share: usize) -> bool {
        let own = self.nodes[node].used.iter().filter(|used| SHARES - **used >= share).count();
        self.rooms[share..].iter().sum::<usize>() > own
    }

    /// Returns whether a node has room for a share, as the scheduler sees it.
    fn fits(&self, node: usize, share: usize) -> bool {
        let node = &self.nodes[node];
        match self.policy {
            Policy::Deepres | Policy::Counted => node.free() >= share,
            Policy::Hami => node.hole() >= share,
        }
    }

    fn pick(&mut self, share: usize) -> Option<usize> {
        let (count, first) = (self.nodes.len(), self.random.below(self.nodes.len()));
        let mut with_room = (0..count).map(|node| (first + node) % count).filter(|n| self.fits(*n, share));
        match self.policy {
            Policy::Deepres | Policy::Counted => with_room.next(),
            Policy::Hami => with_room.max_by_key(|node| self.nodes[*node].bound),
        }
    }

    fn arrive(&mut self, job: usize) {
        let share = self.jobs[job].share;
        match self.pick(share) {
            Some(node) => self.bind(job, node),
            None => {
                let is_first = self.failures[job] == 0;
                self.pending_though_room += u64::from(is_first && self.has_room(share));
                self.pending.entry(share).or_default().insert(job);
            }
        }
    }

    /// Binds the oldest jobs that fit on a node whose view has changed.
    fn offer(&mut self, node: usize) {
        loop {
            let fitting = self.pending.iter().filter(|(share, _)| self.fits(node, **share));
            let oldest = fitting.filter_map(|(share, jobs)| Some((*jobs.first()?, *share))).min();
            let Some((job, share)) = oldest else { return };
            self.pending.entry(share).or_default().remove(&job);
            self.bind(job, node);
        }
    }

    fn bind(&mut self, job: usize, node: usize) {
        let share = self.jobs[job].share;
        if self.policy == Policy::Hami {
            if self.nodes[node].locked_until_ms > self.now_ms {
                self.write(HAMI_FAILED_WRITES);
                return self.at(LOCKED_MS, Event::Arrive { job });
            }
            self.nodes[node].locked_until_ms = self.now_ms + BIND_MS;
            self.write(HAMI_WRITES);
            let used = &self.nodes[node].used;
            let gpu = (0..used.len()).min_by_key(|gpu| used[*gpu]).expect("the node has GPUs");
            self.take(job, node, gpu);
        }
        self.nodes[node].bound += share;
        self.at(BIND_MS, Event::Admit { job, node });
    }

    /// Counts a job's share as used.
    fn take(&mut self, job: usize, node: usize, gpu: usize) {
        self.gpu_of[job] = gpu;
        let used = self.nodes[node].used[gpu] + self.jobs[job].share;
        self.set_used(node, gpu, used);
    }

    fn set_used(&mut self, node: usize, gpu: usize, used: usize) {
        assert!(used <= SHARES, "GPU {gpu} of node {node} has {used} shares in use");
        let before = std::mem::replace(&mut self.nodes[node].used[gpu], used);
        self.rooms[SHARES - before] -= 1;
        self.rooms[SHARES - used] += 1;
    }

    fn admit(&mut self, job: usize, node: usize) {
        let share = self.jobs[job].share;
        self.decisions += 1;
        self.messages += match self.policy {
            Policy::Deepres => DEEPRES_MESSAGES_JOB,
            Policy::Counted => COUNTED_MESSAGES_JOB,
            Policy::Hami => HAMI_MESSAGES_JOB,
        };
        if self.policy == Policy::Hami {
            return self.start(job, node);
        }
        let now_ms = self.now_ms;
        let used = &self.nodes[node].used;
        let fullest = (0..used.len()).filter(|gpu| SHARES - used[*gpu] >= share).max_by_key(|gpu| used[*gpu]);
        let given = match &mut self.nodes[node].plugin {
            Some(plugin) => plugin.admit(job, share, now_ms),
            None => fullest.map_or(Given::Nothing, Given::Gpu),
        };
        match given {
            Given::Gpu(gpu) => {
                self.take(job, node, gpu);
                self.start(job, node);
            }
            Given::Wait => {
                self.waited_on_node += 1;
                self.waited_though_room += u64::from(self.has_room_beside(node, share));
            }
            Given::Nothing => {
                self.refused += 1;
                self.refused_though_room += u64::from(self.has_room(share));
                self.write(REFUSAL_WRITES);
                self.nodes[node].bound -= share;
                let again_ms = AGAIN_MS << self.failures[job].min(u64::BITS / 4);
                self.failures[job] += 1;
                self.at(again_ms.min(AGAIN_MOST_MS), Event::Arrive { job });
                self.offer(node);
            }
        }
        self.after(node);
    }

    fn start(&mut self, job: usize, node: usize) {
        let Job { arrives_ms, share, runs_ms } = self.jobs[job];
        self.waits_ms.push(self.now_ms - arrives_ms);
        self.used_ms += share as u64 * runs_ms.min(DAY_MS - self.now_ms);
        self.at(runs_ms, Event::End { job, node });
    }

    fn end(&mut self, job: usize, node: usize) {
        let (share, gpu) = (self.jobs[job].share, self.gpu_of[job]);
        self.nodes[node].bound -= share;
        let used = self.nodes[node].used[gpu] - share;
        self.set_used(node, gpu, used);
        let now_ms = self.now_ms;
        if let Some(plugin) = &mut self.nodes[node].plugin {
            plugin.end(job, now_ms);
        }
        self.after(node);
        self.offer(node);
    }

    fn look(&mut self, node: usize) {
        let now_ms = self.now_ms;
        let Node { plugin: Some(plugin), look_ms, .. } = &mut self.nodes[node] else { return };
        if *look_ms != Some(now_ms) {
            return;
        }
        *look_ms = None;
        for (job, gpu) in plugin.look(now_ms) {
            self.take(job, node, gpu);
            self.start(job, node);
        }
        self.after(node);
    }

    /// Plans the next look of a node's plugin and the next report of its kubelet.
    fn after(&mut self, node: usize) {
        let now_ms = self.now_ms;
        let Node { plugin: Some(plugin), look_ms, reports, allocatable, .. } = &mut self.nodes[node] else {
            return;
        };
        if let Some(next_ms) = plugin.look_ms.filter(|next_ms| *look_ms != Some(*next_ms)) {
            *look_ms = Some(next_ms);
            self.events.push(Reverse((next_ms, Event::Look { node })));
        }
        if !*reports && plugin.healthy() != *allocatable {
            *reports = true;
            // The kubelets do not write at the same moment.
            let phase_ms = node as u64 * STATUS_MS / self.size.nodes as u64;
            let next_ms = (now_ms + STATUS_MS - phase_ms) / STATUS_MS * STATUS_MS + phase_ms;
            self.events.push(Reverse((next_ms, Event::Report { node })));
        }
    }

    fn report(&mut self, node: usize) {
        self.nodes[node].reports = false;
        let Some(healthy) = self.nodes[node].plugin.as_ref().map(Plugin::healthy) else { return };
        if std::mem::replace(&mut self.nodes[node].allocatable, healthy) != healthy {
            self.write(1);
            self.offer(node);
        }
    }

    fn row(mut self) -> Row {
        let seconds = (DAY_MS / SECOND_MS) as f64;
        let per_node_h = |count: f64| count / self.size.nodes as f64 / 24.0;
        self.waits_ms.sort_unstable();
        let plugins = || self.nodes.iter().filter_map(|node| node.plugin.as_ref());
        let decisions = self.decisions + plugins().map(|plugin| plugin.decisions).sum::<u64>();
        let lists: u64 = plugins().map(|plugin| plugin.lists).sum();
        let looks = plugins().count() as f64 * seconds * DEEPRES_MESSAGES_S;
        let wait_s = |at: usize| self.waits_ms.get(at).map_or(0.0, |ms| *ms as f64 / SECOND_MS as f64);
        let started = self.waits_ms.len();
        let gpus = self.size.nodes * self.size.gpus;
        Row {
            policy: self.policy.name(),
            nodes: self.size.nodes,
            gpus,
            jobs: self.jobs.len(),
            api_writes_per_s: self.writes as f64 / seconds,
            api_writes_per_s_peak: self.writes_of_minute.iter().copied().max().unwrap_or(0) as f64
                / (MINUTE_MS / SECOND_MS) as f64,
            api_writes_per_job: self.writes as f64 / self.jobs.len().max(1) as f64,
            decisions_per_node_h: per_node_h(decisions as f64),
            messages_per_node_h: per_node_h((self.messages + lists) as f64 + looks),
            refused: self.refused,
            refused_though_room: self.refused_though_room,
            pending_though_room: self.pending_though_room,
            waited_on_node: self.waited_on_node,
            waited_though_room: self.waited_though_room,
            wait_s_mean: self.waits_ms.iter().sum::<u64>() as f64
                / (started.max(1) as f64 * SECOND_MS as f64),
            wait_s_p99: wait_s(started * 99 / 100),
            not_started: self.jobs.len() - started,
            used: self.used_ms as f64 / (gpus * SHARES) as f64 / DAY_MS as f64,
        }
    }
}
