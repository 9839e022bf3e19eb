//! Small allocations. The driver serves them from shared blocks, so whole blocks are charged.
//!
//! A block is known by its addresses. It is charged from its first allocation until its last one is
//! freed. Each allocation is kept by its place in the block.
//!
//! A request normally reserves a whole block, because the driver may need a new one. If the limit
//! leaves no room for a block, the request may still fit into an existing block. Such a request
//! runs alone ([`Slabs::alone`]): it waits until no other request of the process has a reservation,
//! and later requests wait for it ([`Slabs::give_way`]). So no other request can take the free
//! place that it found.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::meter::MemoryKind;

use super::charge::{BLOCK_BYTES, UNIT_BYTES};
use super::held::{Exit, Held};
use super::site::{Promise, Site};
use super::table::{Table, mixed};
use crate::meter::gpu::Gpu;
use crate::os::Patience;
use crate::process::Process;
use crate::session::Session;
use crate::spin_lock::{Guard, SpinLock};

/// Number of places in a block.
const UNITS: usize = (BLOCK_BYTES / UNIT_BYTES) as usize;
/// Number of tables that the blocks are spread over.
const SHARDS: usize = 16;
/// How long a request waits until it is alone, ns. A free may stay in the driver until the GPU has
/// finished its work.
const ALONE_NS: u64 = 20_000_000;

/// A block that contains at least one allocation.
pub struct Block {
    held: Held,
    /// The context whose end frees the block.
    context: usize,
    /// The allocation with the lowest place. Often it is the only one.
    first: Option<Piece>,
    more: Option<Box<More>>,
}

/// Further state of a block that has, or had, several allocations.
#[derive(Default)]
struct More {
    /// All allocations but the first, by place.
    others: Vec<Piece>,
    /// Allocations that are being freed while others are in the block.
    leaving: Vec<Piece>,
    /// Set while all allocations of the block are being freed.
    exit: Option<Exit>,
}

/// A small allocation: the place where it begins, and its length in units.
type Piece = (u16, u16);

/// All shared blocks of the process. See the module.
#[derive(Default)]
pub struct Slabs {
    /// Blocks by block number.
    shards: [SpinLock<Table<Block>>; SHARDS],
    /// Held by the request that runs alone.
    turn: Mutex<()>,
    is_anyone_alone: AtomicBool,
    /// Whether there ever was a small allocation.
    is_used: AtomicBool,
}

/// Permission to run alone. See [`Slabs::alone`].
pub struct Alone<'a> {
    slabs: &'a Slabs,
    _turn: MutexGuard<'a, ()>,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.slabs.is_anyone_alone.store(false, Ordering::SeqCst);
    }
}

impl Block {
    fn pieces(&self) -> impl Iterator<Item = Piece> {
        self.first.into_iter().chain(self.more.iter().flat_map(|more| more.others.iter().copied()))
    }

    fn leaving(&self) -> &[Piece] {
        self.more.as_deref().map_or(&[], |more| &more.leaving)
    }

    fn is_empty(&self) -> bool {
        self.first.is_none() && self.leaving().is_empty()
    }

    /// Whether the allocation at `place` is the only one in the block.
    #[inline]
    fn has_only(&self, place: u16) -> bool {
        let is_all = |more: &More| more.others.is_empty() && more.leaving.is_empty();
        self.first.is_some_and(|first| first.0 == place) && self.more.as_deref().is_none_or(is_all)
    }

    fn more(&mut self) -> &mut More {
        self.more.get_or_insert_default()
    }

    fn take_exit(&mut self) -> Option<Exit> {
        self.more.as_mut()?.exit.take()
    }

    /// Inserts an allocation into a block that is already charged, and withdraws the block that was
    /// promised to it. If all other allocations of the block were being freed, the block stays
    /// charged.
    #[inline(never)]
    fn insert_beside(&mut self, site: Site<'_>, piece: Piece, promise: Promise) {
        site.withdraw(promise);
        if let Some(exit) = self.take_exit() {
            exit.cancel_in(site.session);
        }
        self.insert(piece);
    }

    /// Notes that `piece`, which was removed from the block, is being freed.
    fn begin_leaving(&mut self, process: &Process, piece: Piece) {
        let exit = if self.first.is_none() { self.held.leave(process) } else { None };
        let more = self.more();
        more.leaving.push(piece);
        more.exit = exit;
    }

    /// Inserts `piece`. The driver gives a place out again only once it is free. A piece that is
    /// already recorded at that place was freed past the interposer, and is replaced.
    fn insert(&mut self, piece: Piece) {
        let later = match &mut self.first {
            None => {
                self.first = Some(piece);
                return;
            }
            Some(first) if first.0 == piece.0 => {
                *first = piece;
                return;
            }
            Some(first) if piece.0 < first.0 => std::mem::replace(first, piece),
            Some(_) => piece,
        };
        let others = &mut self.more().others;
        match others.binary_search_by_key(&later.0, |other| other.0) {
            Ok(at) => others[at] = later,
            Err(at) => others.insert(at, later),
        }
    }

    fn remove(&mut self, place: u16) -> Option<Piece> {
        let first = self.first?;
        let others = self.more.as_mut().map(|more| &mut more.others);
        if first.0 == place {
            self.first = others.filter(|others| !others.is_empty()).map(|others| others.remove(0));
            return Some(first);
        }
        let others = others?;
        let at = others.binary_search_by_key(&place, |other| other.0).ok()?;
        Some(others.remove(at))
    }

    /// Whether `units` consecutive places are free.
    fn has_hole(&self, units: usize) -> bool {
        let mut taken: Vec<Piece> = self.pieces().chain(self.leaving().iter().copied()).collect();
        taken.sort_unstable();
        let mut end = 0;
        for (at, length) in taken {
            let (at, length) = (usize::from(at), usize::from(length));
            if at >= end + units {
                return true;
            }
            end = end.max(at + length);
        }
        UNITS >= end + units
    }
}

/// Returns the table key of the block that contains an address, and the place in that block.
fn place_of(address: u64) -> (u64, usize) {
    (mixed(address / BLOCK_BYTES), (address % BLOCK_BYTES / UNIT_BYTES) as usize)
}

/// Inserts a new block that was not fully promised, or whose promise is in a former ledger.
#[inline(never)]
fn put_late(
    mut shard: Guard<'_, Table<Block>>,
    number: u64,
    site: Site<'_>,
    (ordinal, context): (usize, usize),
    piece: Piece,
    promise: Promise,
) {
    let held = Held::new(MemoryKind::Linear, ordinal, &site, BLOCK_BYTES, promise);
    shard.put(number, Block { held, context, first: Some(piece), more: None });
}

impl Slabs {
    fn shard(&self, block: u64) -> Guard<'_, Table<Block>> {
        // The table uses the other bits for itself.
        self.shards[(block >> 48) as usize % SHARDS].lock()
    }

    fn all(&self) -> impl Iterator<Item = Guard<'_, Table<Block>>> {
        self.shards.iter().map(SpinLock::lock)
    }

    /// Whether a request runs alone. A request that sees this right after its reservation must
    /// withdraw it, call [`Self::give_way`], and try again.
    #[inline]
    pub fn is_anyone_alone(&self) -> bool {
        self.is_anyone_alone.load(Ordering::SeqCst)
    }

    /// Waits until the request that runs alone is finished.
    #[cold]
    pub fn give_way(&self) {
        drop(self.turn.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Lets a request without a reservation run alone. Waits until no other request of the process
    /// has one. Returns `None` if that takes too long.
    pub fn alone(&self, site: &Site<'_>) -> Option<Alone<'_>> {
        let mut patience = Patience::default();
        let turn = loop {
            match self.turn.try_lock() {
                Ok(turn) => break turn,
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                Err(TryLockError::WouldBlock) if patience.goes_on(ALONE_NS) => {}
                Err(TryLockError::WouldBlock) => return None,
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

    /// Whether an allocation of `bytes` fits into an existing block of `context`.
    pub fn has_hole(&self, context: usize, bytes: u64) -> bool {
        let units = bytes.div_ceil(UNIT_BYTES) as usize;
        self.all().any(|shard| shard.values().any(|block| block.context == context && block.has_hole(units)))
    }

    /// Whether the block that contains `address` is charged.
    pub fn knows(&self, address: u64) -> bool {
        let (number, _) = place_of(address);
        self.shard(number).contains(number)
    }

    /// Records an allocation of `bytes` that the driver placed at `address`. `promise` reserved a
    /// block for it.
    #[inline(always)]
    pub fn insert(&self, site: &Site<'_>, address: u64, bytes: u64, of: (usize, usize), promise: Promise) {
        let (ordinal, context) = of;
        let (number, place) = place_of(address);
        // The flag is stored only once, because a store takes the cache line away from other
        // threads.
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
        let units = bytes.div_ceil(UNIT_BYTES).max(1).min(UNITS as u64) as u16;
        let piece = (place as u16, units);
        let mut shard = self.shard(number);
        if let Some(known) = shard.get_mut(number) {
            return known.insert_beside(*site, piece, promise);
        }
        match Held::promised(MemoryKind::Linear, ordinal, site, BLOCK_BYTES, promise) {
            Ok(held) => shard.put(number, Block { held, context, first: Some(piece), more: None }),
            Err(promise) => put_late(shard, number, *site, of, piece, promise),
        }
    }

    /// Frees the allocation at `address` by `free`. Returns `free` if the address is unknown here.
    #[inline(always)]
    pub fn free<F: FnOnce() -> u32>(&self, process: &Process, address: u64, free: F) -> Result<u32, F> {
        if !self.is_used.load(Ordering::Relaxed) {
            return Err(free);
        }
        let (number, place) = place_of(address);
        // The last allocation of a block is removed before `free` runs. If the driver meanwhile
        // places another one there, the block is charged anew.
        let last = self.shard(number).remove_if(number, |block| block.has_only(place as u16));
        let Some(block) = last else { return self.free_beside(process, number, place as u16, free) };
        let exit = block.held.leave(process);
        let result = free();
        if result == CUDA_SUCCESS {
            block.held.give_back(process, exit);
        } else {
            self.put_back(process, number, block, exit);
        }
        Ok(result)
    }

    /// Continues [`Self::free`] for an allocation that may not be the only one in its block.
    #[inline(never)]
    fn free_beside<F: FnOnce() -> u32>(
        &self,
        process: &Process,
        number: u64,
        place: u16,
        free: F,
    ) -> Result<u32, F> {
        let mut shard = self.shard(number);
        let Some(block) = shard.get_mut(number) else { return Err(free) };
        let Some(piece) = block.remove(place) else { return Err(free) };
        block.begin_leaving(process, piece);
        drop(shard);
        let result = free();
        self.end_leaving(process, number, piece, result == CUDA_SUCCESS);
        Ok(result)
    }

    /// Restores a block because the driver did not free its last allocation.
    #[cold]
    fn put_back(&self, process: &Process, number: u64, mut block: Block, exit: Option<Exit>) {
        if let Some(exit) = exit {
            exit.cancel(process);
        }
        let mut shard = self.shard(number);
        match shard.get_mut(number) {
            // Other allocations were placed in the block meanwhile, and it was charged for them.
            Some(other) => {
                if let Some(exit) = other.take_exit() {
                    exit.cancel(process);
                }
                block.pieces().for_each(|piece| other.insert(piece));
                block.held.give_back(process, None);
            }
            None if process.is_gone(block.context) => block.held.give_back(process, None),
            None => {
                if let Some(session) = process.session() {
                    block.held.follow_on(session, &process.gpus);
                }
                shard.put(number, block);
            }
        }
    }

    /// Records whether the driver freed one of several allocations of a block.
    fn end_leaving(&self, process: &Process, number: u64, piece: Piece, is_freed: bool) {
        let mut shard = self.shard(number);
        // If the context ended meanwhile, nothing is left to do.
        let Some(block) = shard.get_mut(number) else { return };
        let Some(at) = block.leaving().iter().position(|one| *one == piece) else { return };
        block.more().leaving.swap_remove(at);
        if !is_freed {
            block.insert(piece);
            if let Some(exit) = block.take_exit() {
                exit.cancel(process);
            }
        } else if block.is_empty()
            && let Some(mut block) = shard.remove(number)
        {
            let exit = block.take_exit();
            block.held.give_back(process, exit);
        }
    }

    /// Removes the blocks that ended with a context.
    pub fn forget_context(&self, process: &Process, context: usize) {
        for mut shard in self.all() {
            for mut block in shard.extract(|block| block.context == context) {
                let exit = block.take_exit();
                block.held.give_back(process, exit);
            }
        }
    }

    /// Moves all charges to a new ledger of the session.
    pub fn move_to(&self, session: &Session, gpus: &[Gpu]) {
        for mut shard in self.all() {
            shard.values_mut().for_each(|block| block.held.follow_on(session, gpus));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_is_what_neither_lives_nor_leaves() {
        let mut block = empty();
        assert!(block.has_hole(UNITS));
        block.insert((0, 100));
        block.insert((200, 100));
        block.more().leaving.push((300, 3000));
        assert!(block.has_hole(796) && !block.has_hole(797));
        block.insert((3400, 696));
        assert!(block.has_hole(100) && !block.has_hole(101));
    }

    fn empty() -> Block {
        Block { held: Held::nothing(MemoryKind::Linear, 0), context: 1, first: None, more: None }
    }

    #[test]
    fn pieces_are_found_by_place_in_whatever_order_they_came_and_one_place_has_one() {
        let mut block = empty();
        for place in [7, 3, 9, 1, 3] {
            block.insert((place, 2));
        }
        assert_eq!(block.pieces().collect::<Vec<_>>(), [(1, 2), (3, 2), (7, 2), (9, 2)]);
        for place in [1, 9, 3, 7] {
            assert_eq!(block.remove(place), Some((place, 2)));
            assert_eq!(block.remove(place), None);
        }
        assert!(block.is_empty());
    }
}
