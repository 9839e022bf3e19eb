//! Policies that choose GPUs: the policy of deepres, and others by the rules of their sources. The
//! others are written anew from their rules, and get the benefit of each doubt.

mod go_gpuallocator;
mod gpu_manager;
mod hami;
mod random;
mod vgpu_manager;

use deepres_policy::placement::{GpuSet, Level, Pair, Request, Room, Topology, place};

/// A policy that chooses GPUs on one machine.
pub trait Placer {
    /// Returns the GPUs of a job; `None` if the policy refuses the job.
    fn place(&mut self, rooms: &[Room], request: &Request) -> Option<GpuSet>;

    /// Returns the share of each GPU that the policy takes for a job, parts per million.
    fn takes_ppm(&self, request: &Request) -> u32 {
        request.share_ppm
    }
}

/// The policies that the evaluation compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The policy of deepres.
    Deepres,
    /// The tree of tkestack/gpu-manager.
    GpuManager,
    /// The best-effort policy of NVIDIA/go-gpuallocator.
    GoGpuallocator,
    /// The scores of Project-HAMi/HAMi.
    Hami,
    /// The tiers of coldzerofear/vgpu-manager.
    VgpuManager,
    /// A random choice.
    Random,
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 6] =
        [Self::Deepres, Self::GpuManager, Self::GoGpuallocator, Self::Hami, Self::VgpuManager, Self::Random];

    /// Returns the name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Deepres => "deepres",
            Self::GpuManager => "gpu-manager",
            Self::GoGpuallocator => "go-gpuallocator",
            Self::Hami => "hami",
            Self::VgpuManager => "vgpu-manager",
            Self::Random => "random",
        }
    }

    /// Returns the policy for a machine.
    pub fn placer(self, topology: &Topology) -> Box<dyn Placer + '_> {
        match self {
            Self::Deepres => Box::new(Deepres(topology)),
            Self::GpuManager => Box::new(gpu_manager::Tree::new(topology)),
            Self::GoGpuallocator => Box::new(go_gpuallocator::BestEffort::new(topology)),
            Self::Hami => Box::new(hami::Scores(topology)),
            Self::VgpuManager => Box::new(vgpu_manager::Tiers::new(topology)),
            Self::Random => Box::new(random::Random::new()),
        }
    }
}

struct Deepres<'a>(&'a Topology);

impl Placer for Deepres<'_> {
    fn place(&mut self, rooms: &[Room], request: &Request) -> Option<GpuSet> {
        place(self.0, rooms, request).ok().map(|placement| placement.gpus)
    }
}

/// Returns the GPUs on which at least this share is free.
pub fn with_room(rooms: &[Room], share_ppm: u32) -> GpuSet {
    (0..rooms.len()).filter(|gpu| rooms[*gpu].share_ppm >= share_ppm).collect()
}

/// Returns the score of a common ancestor in go-gpuallocator. HAMi and vgpu-manager have it too.
fn level_score(level: Level) -> u64 {
    match level {
        Level::Board => 60,
        Level::Pix => 50,
        Level::Pxb => 40,
        Level::Phb => 30,
        Level::Node => 20,
        Level::System => 10,
    }
}

/// The score of each NVLink in these three policies.
const LINK_SCORE: u64 = 100;

/// Returns the score of a pair in HAMi and vgpu-manager, which know NVSwitches.
fn pair_score(pair: &Pair) -> u64 {
    level_score(pair.wire.level) + LINK_SCORE * u64::from(pair.links)
}

/// Returns the sum of the scores of a set's pairs.
fn set_score(topology: &Topology, set: GpuSet, score: fn(&Pair) -> u64) -> u64 {
    set.pairs().map(|(a, b)| score(topology.pair(a, b))).sum()
}
