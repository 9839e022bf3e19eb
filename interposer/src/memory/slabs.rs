//! Small allocations. The driver serves small allocations from shared blocks, so the interposer
//! charges whole blocks.
//!
//! The interposer knows a block by its addresses. The charge of a block lasts from its first
//! allocation until the job has freed its last allocation.
//!
//! A request normally reserves a whole block, because the driver can need a new block. If the limit
//! leaves no room for a block, the request can still fit into an existing block. Such a request
//! runs alone ([`Slabs::alone`]). This request waits until no other request of the process has a
//! reservation, and later small requests wait for this request ([`Slabs::reserve`]). So no other
//! request can take the free place that this request found.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::ledger::Refused;
use deepres_abi::meter::MemoryKind;

use super::charge::{BLOCK_BYTES, UNIT_BYTES};
use super::held::{Exit, Held};
use super::site::{Promise, Site};
use super::{Plain, Request, lock, try_lock};
use crate::lock_order::{Guard, Mutex, Rank};
use crate::meter::gpu::Gpu;
use crate::os::Patience;
use crate::process::Process;
use crate::session::Session;

/// The number of places in a block.
const UNITS: u64 = BLOCK_BYTES / UNIT_BYTES;
/// The time for which a small request waits until no other request of the process has a
/// reservation, ns. A free can stay in the driver until the GPU has finished its work.
const ALONE_NS: u64 = 20_000_000;

/// A block that contains at least one allocation.
struct Block {
    held: Held,
    /// The context whose end frees the block.
    context: usize,
    /// The allocations: the place at which each begins, and its length in units.
    pieces: BTreeMap<u64, u64>,
    /// The allocations that the job is freeing.
    leaving: Vec<Piece>,
    /// The exit of the block's charge, while the job is freeing all allocations of the block.
    exit: Option<Exit>,
}

/// A small allocation: the place at which it begins, and its length in units.
type Piece = (u64, u64);

/// All blocks that small allocations of the process share, each with its charge.
#[derive(Default)]
pub struct Slabs {
    /// The blocks, by block number.
    blocks: Mutex<{ Rank::Blocks as u8 }, Plain<u64, Block>>,
    /// The lock of the request that runs while no other request has a reservation.
    turn: Mutex<{ Rank::SlabsTurn as u8 }, ()>,
    is_anyone_alone: AtomicBool,
}

/// The permission of a small request to run while no other request of the process has a reservation
/// ([`Slabs::alone`]).
pub struct Alone<'a> {
    slabs: &'a Slabs,
    _turn: Guard<'a, ()>,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.slabs.is_anyone_alone.store(false, Ordering::SeqCst);
    }
}

impl Block {
    fn new(held: Held, context: usize) -> Self {
        Self { held, context, pieces: BTreeMap::new(), leaving: Vec::new(), exit: None }
    }

    /// Notes that an allocation stays in the block, so that the block stays charged.
    fn stay(&mut self, process: &Process) {
        if let Some(exit) = self.exit.take() {
            exit.cancel(process);
        }
    }

    /// Returns whether `units` consecutive places are free.
    fn has_hole(&self, units: u64) -> bool {
        let pieces = self.pieces.iter().map(|(place, length)| (*place, *length));
        let mut taken: Vec<Piece> = pieces.chain(self.leaving.iter().copied()).collect();
        taken.sort_unstable();
        let mut end = 0;
        for (at, length) in taken {
            if at >= end + units {
                return true;
            }
            end = end.max(at + length);
        }
        UNITS >= end + units
    }
}

/// Returns the number of the block that contains an address, and the place in the block.
fn place_of(address: u64) -> (u64, u64) {
    (address / BLOCK_BYTES, address % BLOCK_BYTES / UNIT_BYTES)
}

impl Slabs {
    fn blocks(&self) -> Guard<'_, Plain<u64, Block>> {
        lock(&self.blocks)
    }

    /// Reserves the amount of `request`, and returns the reservation. While another request runs
    /// alone, a small request waits.
    ///
    /// # Errors
    /// [`Refused`] if the held memory leaves no room.
    pub fn reserve(&self, site: &Site<'_>, request: &Request) -> Result<Promise, Refused> {
        loop {
            let promise = site.reserve(request.reserved_bytes())?;
            if !request.is_small() || !self.is_anyone_alone.load(Ordering::SeqCst) {
                return Ok(promise);
            }
            site.withdraw(promise);
            drop(lock(&self.turn));
        }
    }

    /// Waits until no other request of the process has a reservation. While the result lives, the
    /// caller's request, which has no reservation itself, runs alone. Returns `None` if the wait
    /// takes too long.
    pub fn alone(&self, site: &Site<'_>) -> Option<Alone<'_>> {
        let mut patience = Patience::default();
        let turn = loop {
            match try_lock(&self.turn) {
                Some(turn) => break turn,
                None if patience.goes_on(ALONE_NS) => {}
                None => return None,
            }
        };
        self.is_anyone_alone.store(true, Ordering::SeqCst);
        let alone = Alone { slabs: self, _turn: turn };
        while site.is_anything_promised() {
            if !patience.goes_on(ALONE_NS) {
                return None;
            }
        }
        Some(alone)
    }

    /// Returns whether an allocation of `bytes` fits into an existing block of `context`.
    pub fn has_hole(&self, context: usize, bytes: u64) -> bool {
        let units = bytes.div_ceil(UNIT_BYTES);
        self.blocks().values().any(|block| block.context == context && block.has_hole(units))
    }

    /// Returns whether the block that contains `address` is charged.
    pub fn knows(&self, address: u64) -> bool {
        self.blocks().contains_key(&place_of(address).0)
    }

    /// Records an allocation of `bytes` that the driver placed at `address`. `promise` is the
    /// reservation of a block. If the block is already charged, the method withdraws the promise.
    pub fn insert(
        &self,
        process: &Process,
        site: &Site<'_>,
        address: u64,
        bytes: u64,
        request: &Request,
        promise: Promise,
    ) {
        let (number, place) = place_of(address);
        let units = bytes.div_ceil(UNIT_BYTES).clamp(1, UNITS);
        let mut blocks = self.blocks();
        // If a block has no allocation left, the job is freeing the block. Its addresses can be
        // another GPU's by now.
        let is_others = |block: &Block| block.pieces.is_empty() && block.held.ordinal() != request.ordinal;
        if blocks.get(&number).is_some_and(is_others)
            && let Some(Block { held, exit, .. }) = blocks.remove(&number)
        {
            held.give_back(process, exit);
        }
        match blocks.get_mut(&number) {
            Some(block) => {
                site.withdraw(promise);
                // If the job was freeing all other allocations of the block, the block stays
                // charged.
                block.stay(process);
                if block.pieces.is_empty() {
                    block.context = request.context;
                }
                // The driver gives a place out again only after its free. So if the block still has
                // a piece at the place, the free bypassed the interposer, and the new piece
                // replaces the old piece.
                block.pieces.insert(place, units);
            }
            None => {
                let held = Held::new(MemoryKind::Linear, request.ordinal, site, BLOCK_BYTES, promise);
                let mut block = Block::new(held, request.context);
                block.pieces.insert(place, units);
                blocks.insert(number, block);
            }
        }
    }

    /// Frees the allocation at `address` by `free`, and returns the result of `free`. If this
    /// module does not know the address, returns `free` itself as the error.
    pub fn free<F: FnOnce() -> u32>(&self, process: &Process, address: u64, free: F) -> Result<u32, F> {
        let (number, place) = place_of(address);
        let mut blocks = self.blocks();
        let Some(block) = blocks.get_mut(&number) else { return Err(free) };
        let Some(units) = block.pieces.remove(&place) else { return Err(free) };
        block.leaving.push((place, units));
        if block.pieces.is_empty() {
            block.exit = block.held.leave(process);
        }
        drop(blocks);
        let result = free();
        self.end_leaving(process, number, (place, units), result == CUDA_SUCCESS);
        Ok(result)
    }

    /// Records whether the driver freed an allocation.
    fn end_leaving(&self, process: &Process, number: u64, piece: Piece, is_freed: bool) {
        let mut blocks = self.blocks();
        // If the context has ended meanwhile, nothing is left to do.
        let Some(block) = blocks.get_mut(&number) else { return };
        let Some(at) = block.leaving.iter().position(|one| *one == piece) else { return };
        block.leaving.swap_remove(at);
        if !is_freed {
            // Another allocation can have this place by now.
            block.pieces.entry(piece.0).or_insert(piece.1);
            block.stay(process);
        } else if block.pieces.is_empty()
            && block.leaving.is_empty()
            && let Some(Block { held, exit, .. }) = blocks.remove(&number)
        {
            held.give_back(process, exit);
        }
    }

    /// Removes the blocks that ended with a context, and gives back their charges.
    pub fn forget_context(&self, process: &Process, context: usize) {
        for (_, Block { held, exit, .. }) in self.blocks().extract_if(|_, block| block.context == context) {
            held.give_back(process, exit);
        }
    }

    /// Moves all charges to a new ledger of the session.
    pub fn move_to(&self, session: &Session, gpus: &[Gpu]) {
        for Block { held, exit, .. } in self.blocks().values_mut() {
            held.follow_with(exit, session, gpus);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_is_what_neither_lives_nor_leaves() {
        let mut block = Block::new(Held::nothing(MemoryKind::Linear, 0), 1);
        assert!(block.has_hole(UNITS));
        block.pieces.extend([(0, 100), (200, 100)]);
        block.leaving.push((300, 3000));
        assert!(block.has_hole(796) && !block.has_hole(797));
        block.pieces.insert(3400, 696);
        assert!(block.has_hole(100) && !block.has_hole(101));
    }
}
