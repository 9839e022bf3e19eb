//! Placement: chooses the GPUs of a job by the machine's topology and by what is promised on each
//! GPU.
//!
//! [`Topology`] says how the GPUs of a machine reach each other, and [`bandwidth`] how fast.
//! [`place`] chooses GPUs for a [`Request`]. The result explains itself ([`Why`]).
//!
//! The ideas come from the DLC paper and from vgpu-manager. The DLC paper has a tree of GPUs, so
//! that the GPUs of a job can copy to each other directly. vgpu-manager has tiers of links. Neither
//! of these systems compares all sets of free GPUs. [`place`] does, because deepres manages at most
//! 16 GPUs of a machine, so there are at most 12,870 sets of one size.

pub mod bandwidth;
mod choice;
mod set;
#[cfg(test)]
mod tests;
mod topology;
mod why;

pub use choice::{Placement, Refusal, Request, Room, place};
pub use set::GpuSet;
pub use topology::{Branch, Fabric, Gpu, Level, NvLink, P2p, Pair, Remote, Tier, Topology, Wire};
pub use why::{Criterion, Why};
