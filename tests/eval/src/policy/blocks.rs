//! Grid blocks: the unit in which `tgs-like` and `hami-like` measure a kernel.
//!
//! A scenario gives the lengths of kernels, and no grids. The evaluation assumes that a kernel
//! fills the GPU with waves of one block for each SM, and that each wave takes [`BLOCK_NS`]. Blocks
//! are then proportional to time, which is the best case for a policy that counts blocks.

/// Number of SMs of the GPU (an H200).
pub const SMS: u64 = 132;
/// Run time of a block, ns.
const BLOCK_NS: u64 = 10_000;

/// Returns the number of blocks of a kernel of this length.
pub fn of(length_ns: u64) -> u64 {
    SMS * length_ns.div_ceil(BLOCK_NS).max(1)
}
