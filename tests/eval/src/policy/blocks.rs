//! Grid blocks, in which both block-counting baselines measure a kernel.
//!
//! A scenario gives lengths, and no grids. A kernel is taken to fill the GPU with waves of one block an SM, each wave as long as this: then blocks are
//! proportional to time, which is the best case for whoever counts them.

/// SMs of the GPU (an H200).
pub const SMS: u64 = 132;
/// How long a block runs, ns.
const BLOCK_NS: u64 = 10_000;

/// Blocks of a kernel of this length.
pub fn of(length_ns: u64) -> u64 {
    SMS * length_ns.div_ceil(BLOCK_NS).max(1)
}
