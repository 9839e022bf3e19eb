//! Small allocations: the driver serves them from blocks that they share, so what counts is the blocks.
//!
//! A block is known by the addresses in it. It is charged from the first allocation in it to the last, each of which is kept by the place where it
//! begins. A request reserves a block, since it may need one; if the limit leaves no room for that, it may still fit beside others. Then
//! it is let through alone: whoever has something promised is waited for, and whoever comes meanwhile waits ([`Slabs::give_way`]), so that the place
//! that was seen is there.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use deepres_abi::meter::MemoryKind;

use super::Identity;
use super::charge::{BLOCK_BYTES, UNIT_BYTES};
use super::held::{Exit, Held};
use super::site::{Patience, Promise, Site};
use crate::meter::gpu::Gpu;
use crate::process::Process;
use crate::session::Session;

/// Places in a block.
const UNITS: usize = (BLOCK_BYTES / UNIT_BYTES) as usize;
/// Tables that the blocks are spread over.
const SHARDS: usize = 16;
/// Empty blocks that a table keeps: what is freed is often allocated again.
const EMPTY: usize = 4;
/// How long a request waits for others to be out of the driver. A free may be there until the GPU is through.
const ALONE_NS: u64 = 20_000_000;

struct Block {
    held: Held,
    /// The context that it dies with.
    context: usize,
    /// What begins in each place: its length in units, or 0.
    lengths: [u16; UNITS],
    /// Allocations in it, those that are being freed too.
    live: usize,
    /// Those: place and length.
    leaving: Vec<(u16, u16)>,
    /// All of it is being freed.
    exit: Option<Exit>,
}

#[derive(Default)]
struct Shard {
    /// By number, empty ones too.
    blocks: HashMap<u64, Box<Block>, BuildHasherDefault<Identity>>,
    empty: usize,
}

/// See the module.
#[derive(Default)]
pub struct Slabs {
    shards: [Mutex<Shard>; SHARDS],
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

/// A small allocation that is being freed.
pub struct Freed {
    block: u64,
    place: u16,
    units: u16,
}

impl Block {
    fn new(ordinal: usize, context: usize) -> Self {
        Self {
            held: Held::nothing(MemoryKind::Linear, ordinal),
            context,
            lengths: [0; UNITS],
            live: 0,
            leaving: Vec::new(),
            exit: None,
        }
    }

    /// Whether `units` places in a row are free.
    fn has_hole(&self, units: usize) -> bool {
        let mut taken: Vec<(usize, usize)> =
            self.leaving.iter().map(|(at, n)| (*at as usize, *n as usize)).collect();
        taken.extend(
            self.lengths.iter().enumerate().filter(|(_, n)| **n != 0).map(|(at, n)| (at, *n as usize)),
        );
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

fn place_of(address: u64) -> (u64, usize) {
    (address / BLOCK_BYTES, (address % BLOCK_BYTES / UNIT_BYTES) as usize)
}

impl Slabs {
    fn shard(&self, block: u64) -> MutexGuard<'_, Shard> {
        self.shards[block as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> impl Iterator<Item = MutexGuard<'_, Shard>> {
        self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner))
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
        self.all().any(|shard| {
            shard
                .blocks
                .values()
                .any(|block| block.context == context && block.live != 0 && block.has_hole(units))
        })
    }

    /// Whether the block that `address` is in is charged.
    pub fn knows(&self, address: u64) -> bool {
        let (number, _) = place_of(address);
        self.shard(number).blocks.get(&number).is_some_and(|block| block.live != 0)
    }

    /// The driver put `bytes` at `address`; a block was promised by `promise`.
    pub fn insert(&self, site: &Site<'_>, address: u64, bytes: u64, of: (usize, usize), promise: Promise) {
        let (ordinal, context) = of;
        let (number, place) = place_of(address);
        let mut shard = self.shard(number);
        self.is_used.store(true, Ordering::Relaxed);
        let mut is_new = false;
        let block = shard.blocks.entry(number).or_insert_with(|| {
            is_new = true;
            Box::new(Block::new(ordinal, context))
        });
        let is_reused = block.live == 0 && !is_new;
        if is_reused {
            block.held = Held::nothing(MemoryKind::Linear, ordinal);
            block.context = context;
        }
        if block.live == 0 {
            block.held.set(site, BLOCK_BYTES, promise);
        } else {
            site.withdraw(promise);
        }
        if let Some(exit) = block.exit.take() {
            exit.cancel_in(site.session);
        }
        let units = bytes.div_ceil(UNIT_BYTES).max(1).min(UNITS as u64) as u16;
        // The driver gives an address out again only once it is free: that free went past us.
        if std::mem::replace(&mut block.lengths[place], units) == 0 {
            block.live += 1;
        }
        shard.empty -= usize::from(is_reused);
    }

    /// What was put at `address` is about to be freed, if it is known.
    pub fn begin_free(&self, process: &Process, address: u64) -> Option<Freed> {
        if !self.is_used.load(Ordering::Relaxed) || !address.is_multiple_of(UNIT_BYTES) {
            return None;
        }
        let (number, place) = place_of(address);
        let mut shard = self.shard(number);
        let block = shard.blocks.get_mut(&number)?;
        let units = std::mem::take(&mut block.lengths[place]);
        if units == 0 {
            return None;
        }
        let freed = Freed { block: number, place: place as u16, units };
        block.leaving.push((freed.place, units));
        if block.live == block.leaving.len() && block.exit.is_none() {
            block.exit = block.held.leave(process);
        }
        Some(freed)
    }

    /// The driver freed it, or did not.
    pub fn end_free(&self, process: &Process, freed: &Freed, is_freed: bool) {
        let mut shard = self.shard(freed.block);
        // Nothing is left to be done if the context went meanwhile.
        let Some(block) = shard.blocks.get_mut(&freed.block) else { return };
        let Some(place) = block.leaving.iter().position(|one| *one == (freed.place, freed.units)) else {
            return;
        };
        block.leaving.swap_remove(place);
        if !is_freed {
            block.lengths[freed.place as usize] = freed.units;
            if let Some(exit) = block.exit.take() {
                exit.cancel(process);
            }
            return;
        }
        block.live -= 1;
        if block.live == 0 {
            let exit = block.exit.take();
            block.held.give_back(process, exit);
            if shard.empty < EMPTY {
                shard.empty += 1;
            } else {
                shard.blocks.remove(&freed.block);
            }
        }
    }

    /// Forgets what died with a context.
    pub fn forget_context(&self, process: &Process, context: usize) {
        for mut shard in self.all() {
            let is_gone = |block: &Block| block.context == context && block.live != 0;
            for (_, mut block) in shard.blocks.extract_if(|_, block| is_gone(block)) {
                let exit = block.exit.take();
                block.held.give_back(process, exit);
            }
        }
    }

    /// Moves what is held to a new ledger of the session's.
    pub fn move_to(&self, session: &Session, gpus: &[Gpu]) {
        for mut shard in self.all() {
            shard.blocks.values_mut().for_each(|block| block.held.follow_on(session, gpus));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_is_what_neither_lives_nor_leaves() {
        let mut block = Block::new(0, 1);
        assert!(block.has_hole(UNITS));
        block.lengths[0] = 100;
        block.lengths[200] = 100;
        block.leaving.push((300, 3000));
        assert!(block.has_hole(796) && !block.has_hole(797));
        block.lengths[3400] = 696;
        assert!(block.has_hole(100) && !block.has_hole(101));
    }
}
