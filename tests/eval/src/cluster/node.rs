//! A node with the device plugin of deepres: the plugin's state, and what the kubelet gave. The
//! plugin's decisions are those of [`Shares`].

use super::jobs::SECOND_MS;
use deepres_policy::shares::{Part, Shares, Slots};
use std::time::Duration;

/// The time after an allocation in which another container of the same pod may follow (`Timing` of
/// deepres-k8s).
const SETTLE_MS: u64 = 2 * SECOND_MS;

/// A container, as the plugin knows it.
#[derive(Debug)]
struct Held {
    job: usize,
    gpu: String,
    slots: Slots,
    waits: bool,
    /// The GPUs whose device files the container has.
    among: Vec<String>,
    /// Whether the container has ended. The plugin's next look finds out.
    is_over: bool,
}

impl Held {
    fn part(&self) -> Part<'_> {
        Part { gpu: &self.gpu, slots: &self.slots, waits: self.waits, among: &self.among }
    }
}

/// The plugin of a node, and its kubelet's devices.
#[derive(Debug)]
pub struct Plugin {
    shares: Shares,
    /// The containers. Containers that wait come last, the longest wait first.
    held: Vec<Held>,
    /// The devices that the kubelet believes to be given.
    given: Slots,
    /// The time for which the plugin publishes freed shares.
    surplus: Duration,
    allocated_ms: Option<u64>,
    /// When the plugin next looks, if there is something to do.
    pub look_ms: Option<u64>,
    /// The number of choices and publications.
    pub decisions: u64,
    /// The number of lists that the plugin sent to the kubelet.
    pub lists: u64,
}

/// The answer of a node to a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Given {
    /// A GPU, on which the container starts.
    Gpu(usize),
    /// The container waits for a GPU.
    Wait,
    /// Nothing: the pod fails.
    Nothing,
}

/// A container that starts: its job, and the place of its GPU.
pub type Start = (usize, usize);

/// Returns the name of a GPU.
fn name(gpu: usize) -> String {
    format!("GPU-{gpu:02}")
}

/// Returns the place of a GPU.
fn place_of(name: &str) -> usize {
    name.trim_start_matches("GPU-").parse().expect("the plugin chooses among the node's GPUs")
}

impl Plugin {
    /// Returns the plugin of a node without containers, which has published its shares. The plugin
    /// publishes freed shares for the time `surplus`.
    pub fn new(gpus: usize, surplus: Duration) -> Self {
        let mut plugin = Self {
            shares: Shares::new((0..gpus).map(name)),
            held: Vec::new(),
            given: Slots::default(),
            surplus,
            allocated_ms: None,
            look_ms: None,
            decisions: 0,
            lists: 0,
        };
        plugin.publish(0);
        plugin
    }

    /// Returns the number of healthy devices.
    pub fn healthy(&self) -> usize {
        self.shares.healthy()
    }

    /// Gives devices to a job's container. The kubelet refuses a pod for which too few devices are
    /// free.
    pub fn admit(&mut self, job: usize, share: usize, now_ms: u64) -> Given {
        let open = self.shares.open(&self.given);
        if open.count() < share {
            return Given::Nothing;
        }
        let held = self.used();
        let (spare, rest) = (open.without(&held), open.iter().filter(|slot| held.contains(*slot)));
        let slots: Slots = spare.iter().chain(rest).take(share).collect();
        let choice = self.shares.choose(&slots, self.held.iter().map(Held::part));
        let choice = choice.expect("the node has GPUs");
        let (gpu, waits) = (choice.gpu.to_owned(), choice.waits);
        self.decisions += 1;
        let given = if waits { Given::Wait } else { Given::Gpu(place_of(&gpu)) };
        let place = if waits { self.held.len() } else { self.waiting_from() };
        self.given.add(&slots);
        let among = self.shares.open_gpus().cloned().collect();
        self.held.insert(place, Held { job, gpu, slots, waits, among, is_over: false });
        self.allocated_ms = Some(now_ms);
        self.publish(now_ms);
        given
    }

    /// Ends a job's container, of which the kubelet knows at once.
    pub fn end(&mut self, job: usize, now_ms: u64) {
        if let Some(held) = self.held.iter_mut().find(|held| held.job == job) {
            held.is_over = true;
            self.given.remove(&held.slots);
        }
        self.look_by(now_ms.next_multiple_of(SECOND_MS));
    }

    /// Looks, as the plugin does once a second. Returns the containers that start after a wait.
    pub fn look(&mut self, now_ms: u64) -> Vec<Start> {
        self.look_ms = None;
        self.held.retain(|held| !held.is_over);
        let mut started = Vec::new();
        loop {
            let parts: Vec<Part<'_>> = self.held.iter().map(Held::part).collect();
            let Some((place, choice)) = self.shares.next_change(&parts) else { break };
            let (gpu, waits) = (choice.gpu.to_owned(), choice.waits);
            self.decisions += 1;
            if !waits {
                started.push((self.held[place].job, place_of(&gpu)));
            }
            (self.held[place].gpu, self.held[place].waits) = (gpu, waits);
            self.held.sort_by_key(|held| held.waits);
        }
        self.publish(now_ms);
        started
    }

    fn waiting_from(&self) -> usize {
        self.held.iter().position(|held| held.waits).unwrap_or(self.held.len())
    }

    fn used(&self) -> Slots {
        self.held.iter().map(|held| &held.slots).collect()
    }

    fn publish(&mut self, now_ms: u64) {
        let before = self.healthy();
        let settled_ms = self.allocated_ms.map_or(0, |at| at + SETTLE_MS);
        let is_settled = now_ms >= settled_ms;
        let (used, now) = (self.used(), Duration::from_millis(now_ms));
        self.shares.observe(&used, self.held.iter().map(Held::part), is_settled, now, self.surplus);
        self.decisions += 1;
        self.lists += u64::from(self.healthy() != before);
        if !is_settled {
            self.look_by(settled_ms.next_multiple_of(SECOND_MS));
        }
        if let Some(since) = self.shares.surplus_since() {
            let due_ms = (since + self.surplus).as_millis() as u64;
            self.look_by(due_ms.max(now_ms + 1).next_multiple_of(SECOND_MS));
        }
    }

    fn look_by(&mut self, at_ms: u64) {
        self.look_ms = Some(self.look_ms.map_or(at_ms, |before| before.min(at_ms)));
    }
}
