//! The memory that the launches of one graph need.
//!
//! When the job adds an allocation node, the driver fixes the node's address. The driver gives an
//! address out again only to a node that is ordered behind the free of the earlier memory. A launch
//! maps memory at all these addresses, and can reuse memory that another graph no longer uses.
//!
//! So a graph never needs more than its addresses cover, in whole blocks. The memory that the graph
//! has mapped already, and the spare memory of the device's graphs, reduce the need.

use std::ops::Range;

use super::Plain;
use super::charge::BLOCK_BYTES;
use crate::driver::memory::{MemoryNode, Stock};

/// The need of one graph on one device.
#[derive(Debug, Clone)]
pub struct Need {
    /// The device's ordinal.
    pub ordinal: usize,
    /// The size of the union of all blocks that the graph allocates on this device, bytes.
    total_bytes: u64,
    /// The allocations that a launch leaves allocated: the address, and the blocks there.
    kept: Vec<(u64, Range<u64>)>,
}

/// The memory that launches of one graph can need on each device, and the addresses that they free.
#[derive(Debug, Clone, Default)]
pub struct Needs {
    /// The needs on each device.
    pub devices: Vec<Need>,
    /// The addresses that a launch can free.
    pub freed: Vec<u64>,
}

/// Returns the number of bytes in the union of `ranges`.
fn covered(mut ranges: Vec<Range<u64>>) -> u64 {
    ranges.sort_unstable_by_key(|range| range.start);
    let (mut bytes, mut end) = (0_u64, 0);
    for range in ranges {
        bytes = bytes.saturating_add(range.end.saturating_sub(range.start.max(end)));
        end = end.max(range.end);
    }
    bytes
}

/// Returns the whole blocks that an allocation touches, as a range of addresses.
fn blocks_at(address: u64, bytes: u64) -> Range<u64> {
    let end = address.saturating_add(bytes).checked_next_multiple_of(BLOCK_BYTES);
    address - address % BLOCK_BYTES..end.unwrap_or(u64::MAX)
}

impl Needs {
    /// Returns the needs of a graph with these nodes.
    pub fn of(nodes: &[MemoryNode]) -> Self {
        let freed: Vec<u64> = nodes
            .iter()
            .filter_map(|node| if let MemoryNode::Frees(address) = node { Some(*address) } else { None })
            .collect();
        let mut unmatched: Plain<u64, usize> = Plain::default();
        freed.iter().for_each(|address| *unmatched.entry(*address).or_default() += 1);
        let mut devices: Vec<(Need, Vec<Range<u64>>)> = Vec::new();
        for node in nodes {
            let MemoryNode::Allocates(device, address, bytes) = *node else { continue };
            let Ok(ordinal) = usize::try_from(device) else { continue };
            let at = devices.iter().position(|(need, _)| need.ordinal == ordinal).unwrap_or_else(|| {
                devices.push((Need { ordinal, total_bytes: 0, kept: Vec::new() }, Vec::new()));
                devices.len() - 1
            });
            let (need, all) = &mut devices[at];
            let blocks = blocks_at(address, bytes);
            all.push(blocks.clone());
            need.kept.push((address, blocks));
        }
        let finished = |(mut need, all): (Need, Vec<Range<u64>>)| {
            need.total_bytes = covered(all);
            // Each free node cancels one allocation at its address.
            need.kept.retain(|(address, _)| match unmatched.get_mut(address) {
                Some(count) if *count > 0 => {
                    *count -= 1;
                    false
                }
                _ => true,
            });
            need
        };
        Self { devices: devices.into_iter().map(finished).collect(), freed }
    }

    /// Returns whether the graph neither allocates nor frees memory.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty() && self.freed.is_empty()
    }

    /// Returns the addresses that a launch leaves allocated.
    pub fn kept(&self) -> impl Iterator<Item = u64> {
        self.devices.iter().flat_map(|need| need.kept.iter().map(|(address, _)| *address))
    }
}

impl Need {
    /// Returns the most bytes by which a launch of this graph can increase the memory that the
    /// device's graphs have reserved. `stock` is the present memory of the device's graphs; `None`
    /// if the launch must not rely on spare memory. `is_live` returns whether the memory at an
    /// address is allocated.
    pub fn growth(&self, stock: Option<Stock>, is_live: impl Fn(u64) -> bool) -> u64 {
        let Some(stock) = stock else { return self.total_bytes };
        let live = self.kept.iter().filter(|(address, _)| is_live(*address));
        let own_bytes = covered(live.map(|(_, blocks)| blocks.clone()).collect()).min(stock.used_bytes);
        self.total_bytes.saturating_sub(own_bytes).saturating_sub(stock.spare_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x7f00_0000_0000;

    fn allocates(block: u64, blocks: u64) -> MemoryNode {
        MemoryNode::Allocates(0, AT + block * BLOCK_BYTES, blocks * BLOCK_BYTES)
    }

    fn frees(block: u64) -> MemoryNode {
        MemoryNode::Frees(AT + block * BLOCK_BYTES)
    }

    fn stock(reserved: u64, used: u64) -> Option<Stock> {
        Some(Stock { reserved_bytes: reserved * BLOCK_BYTES, used_bytes: used * BLOCK_BYTES })
    }

    fn growth(nodes: &[MemoryNode], stock: Option<Stock>, live: &[u64]) -> u64 {
        let needs = Needs::of(nodes);
        let is_live = |address| live.iter().any(|block| AT + block * BLOCK_BYTES == address);
        needs.devices[0].growth(stock, is_live) / BLOCK_BYTES
    }

    #[test]
    fn allocations_at_the_same_address_are_needed_once() {
        let chain = [allocates(0, 4), frees(0), allocates(0, 2), frees(0), allocates(0, 4), frees(0)];
        assert_eq!(growth(&chain, None, &[]), 4);
        assert_eq!(growth(&[allocates(0, 4), allocates(2, 4), allocates(10, 1)], None, &[]), 7);
    }

    #[test]
    fn small_allocations_share_blocks() {
        let small = |at| MemoryNode::Allocates(0, AT + at, 512);
        let needs = Needs::of(&[small(0), small(512), small(BLOCK_BYTES - 256)]);
        assert_eq!(
            needs.devices[0].growth(None, |_| false),
            2 * BLOCK_BYTES,
            "the last one reaches into a second"
        );
    }

    #[test]
    fn a_graphs_living_memory_and_spare_memory_need_not_be_had_again() {
        let nodes = [allocates(0, 3), allocates(3, 2)];
        assert_eq!(growth(&nodes, stock(5, 5), &[0, 3]), 0);
        assert_eq!(growth(&nodes, stock(5, 5), &[3]), 3);
        assert_eq!(growth(&nodes, stock(6, 5), &[3]), 2);
        assert_eq!(growth(&nodes, stock(1, 1), &[0, 3]), 4, "no more lives than is in use");
        assert_eq!(growth(&nodes, None, &[0, 3]), 5, "nobody else may count on it");
    }

    #[test]
    fn memory_that_the_graph_frees_itself_is_not_left_allocated() {
        let kept =
            |nodes: &[_]| Needs::of(nodes).kept().map(|at| (at - AT) / BLOCK_BYTES).collect::<Vec<_>>();
        assert_eq!(kept(&[allocates(0, 1), frees(0), allocates(4, 1)]), [4]);
        assert_eq!(kept(&[allocates(0, 1), frees(0), allocates(0, 1)]), [0], "allocated again");
    }

    #[test]
    fn absurd_sizes_are_needed_whole() {
        let all = MemoryNode::Allocates(0, BLOCK_BYTES, u64::MAX);
        assert_eq!(Needs::of(&[all]).devices[0].growth(None, |_| false), u64::MAX - BLOCK_BYTES);
    }
}
