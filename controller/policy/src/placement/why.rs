//! The explanation of a placement.

use super::topology::Tier;
use core::fmt;

/// A reason for which one set of GPUs is better than another, in the order of weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Criterion {
    /// All pairs of the set can copy to each other directly.
    P2p,
    /// More bandwidth in all pairs together.
    Bandwidth,
    /// More bandwidth of the weakest pair.
    WeakestPair,
    /// The chosen GPUs have less free time than others, so that whole GPUs stay free.
    Fit,
    /// More that others leave on the chosen GPUs, or fewer jobs there, for a job without a share.
    MostLeft,
    /// Fewer GPUs with jobs of the other kind: single shares for a gang, gangs for a single share.
    Apart,
    /// Nearer NUMA nodes and common ancestors.
    Near,
    /// Less loss to the whole GPUs that are left.
    Left,
    /// The places of the GPUs. All else is equal.
    Order,
    /// There was no other set.
    OnlyOne,
}

/// The reasons for a placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Why {
    /// The nearest tier that joins the chosen GPUs, among those with room.
    pub tier: Tier,
    /// Number of GPUs with room for the job.
    pub with_room: usize,
    /// Number of sets that were compared.
    pub sets: u64,
    /// The bandwidth in one direction, the mean over the pairs, MB/s; `None` for one GPU.
    pub mean_mb_s: Option<u64>,
    /// The bandwidth of the weakest pair, MB/s; `None` for one GPU.
    pub weakest_mb_s: Option<u32>,
    /// Whether all pairs can copy to each other directly. If not, no set with room could.
    pub has_p2p: bool,
    /// The first reason for which the set is better than the second best.
    pub decided_by: Criterion,
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NvLink => "joined by NVLinks",
            Self::Switch => "joined by PCI Express switches",
            Self::NumaNode => "on one NUMA node",
            Self::NearNodes => "on near NUMA nodes",
            Self::Any => "on far NUMA nodes",
        })
    }
}

impl fmt::Display for Criterion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::P2p => "all its GPUs can copy to each other directly",
            Self::Bandwidth => "its pairs have the most bandwidth",
            Self::WeakestPair => "its weakest pair has the most bandwidth",
            Self::MostLeft => "the least is promised to others there",
            Self::Apart => "it keeps gangs and single shares apart",
            Self::Fit => "it leaves the least unused, so that other GPUs stay whole",
            Self::Near => "its GPUs are nearest to each other",
            Self::Left => "it costs the GPUs that are left the least",
            Self::Order => "it comes first among equals",
            Self::OnlyOne => "there is no other set",
        })
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// MB/s in a GB/s.
        const MB: f64 = 1e3;
        write!(f, "GPUs with room: {}", self.with_room)?;
        if let (Some(mean), Some(weakest)) = (self.mean_mb_s, self.weakest_mb_s) {
            let (mean, weakest) = (mean as f64 / MB, f64::from(weakest) / MB);
            write!(f, "; the chosen are {}, with {mean:.1} GB/s a pair", self.tier)?;
            write!(f, " and {weakest:.1} GB/s in the weakest pair")?;
            if !self.has_p2p {
                write!(f, "; no set with room can copy directly in all pairs")?;
            }
        }
        match self.decided_by {
            Criterion::OnlyOne => write!(f, "; {}", self.decided_by),
            _ => write!(f, "; of {} sets this one, because {}", self.sets, self.decided_by),
        }
    }
}
