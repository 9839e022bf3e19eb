//! Small allocations: the driver serves them from blocks that they share, so what counts is the blocks.
//!
//! A block is known by the addresses in it. It is charged from the first allocation in it to the last, each of which is kept by the place where it
//! begins. A request reserves a block, since it may need one; if the limit leaves no room for that, it may still fit beside others. Then
//! it is let through alone: whoever has something promised is waited for, and whoever comes meanwhile waits ([`Slabs::give_way`]), so that the place
//! that was seen is there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::meter::MemoryKind;

use super::charge::{BLOCK_BYTES, UNIT_BYTES};
use super::held::{Exit, Held};
use super::site::{Promise, Site};
use super::table::{Table, mixed};
use crate::brief::{Brief, Guard};
use crate::meter::gpu::Gpu;
use crate::os::Patience;
use crate::process::Process;
use crate::session::Session;

/// Places in a block.
const UNITS: usize = (BLOCK_BYTES / UNIT_BYTES) as usize;
/// Tables that the blocks are spread over.
const SHARDS: usize = 16;
/// How long a request waits for others to be out of the driver. A free may be there until the GPU is through.
const ALONE_NS: u64 = 20_000_000;

/// A block with something in it.
pub struct Block {
    held: Held,
    /// The context that it dies with.
    context: usize,
    /// The first thing in it. Often there is no other.
    first: Option<Piece>,
    more: Option<Box<More>>,
}

/// What a block has that has, or had, several things in it.
#[derive(Default)]
struct More {
    /// By place, all behind the first.
    others: Vec<Piece>,
    /// What of it is being freed while others are there.
    leaving: Vec<Piece>,
    /// All of it is being freed.
    exit: Option<Exit>,
}

/// A small allocation: the place where it begins, and its length in units.
type Piece = (u16, u16);

/// See the module.
#[derive(Default)]
pub struct Slabs {
    /// Blocks by number.
    shards: [Brief<Table<Block>>; SHARDS],
    /// Held by whoever is alone.
    turn: Mutex<()>,
    is_anyone_alone: AtomicBool,
    /// Whether there ever was a small allocation.
    is_used: AtomicBool,
}

/// See [`Slabs::alone`].
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

    /// Whether what is at `place` is all there is in it.
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

    /// One beside others, or where there was none that was not being freed; `promise` was for a block.
    #[inline(never)]
    fn insert_beside(&mut self, site: Site<'_>, piece: Piece, promise: Promise) {
        site.withdraw(promise);
        if let Some(exit) = self.take_exit() {
            exit.cancel_in(site.session);
        }
        self.insert(piece);
    }

    /// `piece`, which was taken out of it, is being freed while others are there, or are being freed too.
    fn begin_leaving(&mut self, process: &Process, piece: Piece) {
        let exit = if self.first.is_none() { self.held.leave(process) } else { None };
        let more = self.more();
        more.leaving.push(piece);
        more.exit = exit;
    }

    /// The driver gives a place out again only once it is free, so what was there is gone: that free went past us.
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

    /// Whether `units` places in a row are free.
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

/// The block that an address is in, as a number that tables can go by, and the place there.
fn place_of(address: u64) -> (u64, usize) {
    (mixed(address / BLOCK_BYTES), (address % BLOCK_BYTES / UNIT_BYTES) as usize)
}

/// A block with this in it, which was not promised, or in a ledger of before.
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
        // The table itself uses the other bits.
        self.shards[(block >> 48) as usize % SHARDS].lock()
    }

    fn all(&self) -> impl Iterator<Item = Guard<'_, Table<Block>>> {
        self.shards.iter().map(Brief::lock)
    }

    /// Whether somebody is alone, whom one that has just been promised a block is in the way of: it withdraws, and comes again after this.
    #[inline]
    pub fn is_anyone_alone(&self) -> bool {
        self.is_anyone_alone.load(Ordering::SeqCst)
    }

    /// Waits until whoever is alone is through.
    #[cold]
    pub fn give_way(&self) {
        drop(self.turn.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// For the length of a call that has nothing promised, once nobody else of the process has; if that is soon.
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

    /// Whether `bytes` fit beside others in a block of `context`.
    pub fn has_hole(&self, context: usize, bytes: u64) -> bool {
        let units = bytes.div_ceil(UNIT_BYTES) as usize;
        self.all().any(|shard| shard.values().any(|block| block.context == context && block.has_hole(units)))
    }

    /// Whether the block that `address` is in is charged.
    pub fn knows(&self, address: u64) -> bool {
        let (number, _) = place_of(address);
        self.shard(number).contains(number)
    }

    /// The driver put `bytes` at `address`; a block was promised by `promise`.
    #[inline(always)]
    pub fn insert(&self, site: &Site<'_>, address: u64, bytes: u64, of: (usize, usize), promise: Promise) {
        let (ordinal, context) = of;
        let (number, place) = place_of(address);
        // Whoever has it in its cache keeps it there.
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

    /// Frees what was put at `address` by `free`, which is given back if nothing there is known.
    #[inline(always)]
    pub fn free<F: FnOnce() -> u32>(&self, process: &Process, address: u64, free: F) -> Result<u32, F> {
        if !self.is_used.load(Ordering::Relaxed) {
            return Err(free);
        }
        let (number, place) = place_of(address);
        // The last of its block is forgotten before: whoever gets a place there meanwhile is charged for the block anew.
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

    /// The same for one that may have others beside it.
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

    /// The driver did not free the last of a block.
    #[cold]
    fn put_back(&self, process: &Process, number: u64, mut block: Block, exit: Option<Exit>) {
        if let Some(exit) = exit {
            exit.cancel(process);
        }
        let mut shard = self.shard(number);
        match shard.get_mut(number) {
            // Others got places there meanwhile, and the block was charged for them.
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

    /// The driver freed one of several, or did not.
    fn end_leaving(&self, process: &Process, number: u64, piece: Piece, is_freed: bool) {
        let mut shard = self.shard(number);
        // Nothing is left to be done if the context went meanwhile.
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

    /// Forgets what died with a context.
    pub fn forget_context(&self, process: &Process, context: usize) {
        for mut shard in self.all() {
            for mut block in shard.extract(|block| block.context == context) {
                let exit = block.take_exit();
                block.held.give_back(process, exit);
            }
        }
    }

    /// Moves what is held to a new ledger of the session's.
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
