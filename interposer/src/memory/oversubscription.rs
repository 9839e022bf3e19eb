//! Oversubscription: memory beyond the limit, for a tenant with `--oversubscribe managed`. This
//! memory is managed memory, and is on the GPU while the tenant has a lease.
//!
//! No ledger contains such memory. This module counts the memory, and the meter page shows it
//! beside the memory that the tenant holds. The memory that the tenant holds and the memory beyond
//! the limit together stay below the size of the GPU.
//!
//! The meter thread moves the memory to the GPU and back in parts ([`crate::meter::mover`]). The
//! part of an allocation that is on the GPU is always its beginning.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use deepres_abi::MAX_GPUS;
use deepres_abi::driver::result::{CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS};
use deepres_abi::meter::MemoryKind;
use deepres_abi::oversubscribe::HostMemory;

use super::charge;
use super::site::{Promise, Site};
use super::{Accounts, Answer, Name, Request, lock};
use crate::driver::managed;
use crate::lock_order::{Mutex, Rank};
use crate::log::say;
use crate::meter::gpu::Gpu;
use crate::os::{self, Patience};
use crate::process::{self, Process};
use crate::session::Session;

/// The kind of memory for a request for linear memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Device memory, for which the job asked.
    Device,
    /// Managed memory, in place of device memory.
    Managed,
}

/// The value of [`OnGpu::ability`] before the interposer has asked the driver.
const UNKNOWN: u8 = 0;
/// The value of [`OnGpu::ability`] for a GPU that moves managed memory by pages. A process can then
/// have more managed memory than the GPU has.
const CAN: u8 = 1;
/// The value of [`OnGpu::ability`] for a GPU that does not move managed memory by pages.
const CANNOT: u8 = 2;

/// The time for which a request waits for reservations of host memory by other processes of the
/// tenant, ns. A driver call takes less.
const PATIENCE_NS: u64 = 100_000_000;

/// An allocation beyond the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The length of the allocation, bytes.
    pub bytes: u64,
    /// The GPU's ordinal in this process.
    pub ordinal: usize,
    /// The context whose end frees the allocation.
    pub context: usize,
    /// Whether the meter thread moves the allocation. If the job itself asked for managed memory,
    /// the job places the allocation.
    moves: bool,
    /// Whether the interposer told the driver that the GPU is the allocation's preferred location.
    is_preferred: bool,
    /// The length of the part that the meter thread moved to the GPU, bytes. The part is the
    /// beginning of the allocation.
    brought_bytes: u64,
    /// The maximum of `brought_bytes` since the job made the allocation, or since the driver
    /// refused to move it. The part between `brought_bytes` and this maximum is in the host's
    /// memory.
    most_brought_bytes: u64,
}

/// A part of an allocation that the meter thread is about to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// The address of the whole allocation.
    pub base: u64,
    /// The address of the part.
    pub address: u64,
    /// The length of the part, bytes.
    pub bytes: u64,
    /// The length of the whole allocation, bytes.
    pub whole_bytes: u64,
    /// The allocation's context.
    pub context: usize,
    /// Whether the meter thread must first tell the driver that the GPU is the allocation's
    /// preferred location.
    pub is_first: bool,
}

#[derive(Debug, Default)]
struct OnGpu {
    held_bytes: AtomicU64,
    brought_bytes: AtomicU64,
    ability: AtomicU8,
}

/// All allocations of this process beyond the limit, each with the part that is on the GPU.
#[derive(Default)]
pub struct Oversubscription {
    /// Whether the job asked for oversubscription.
    is_wanted: AtomicBool,
    /// Whether the process ever had an allocation beyond the limit. Before the first such
    /// allocation, a free pays only one load of this field.
    is_used: AtomicBool,
    gpus: [OnGpu; MAX_GPUS],
    pieces: Mutex<{ Rank::Oversubscribed as u8 }, BTreeMap<u64, Piece>>,
    /// The host memory that the allocations beyond the limit have reserved and do not use yet,
    /// bytes.
    promised_bytes: AtomicU64,
    /// The lock that a thread holds while it copies `promised_bytes` to the tenant's ledger.
    telling: Mutex<{ Rank::HostAccount as u8 }, ()>,
}

/// Bytes that the count includes for an allocation in progress. A drop of the value subtracts the
/// bytes from the count.
struct Counted<'a>(&'a OnGpu, u64);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.held_bytes.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl Oversubscription {
    /// Notes that the job asked for oversubscription.
    pub fn want(&self) {
        self.is_wanted.store(true, Ordering::Relaxed);
    }

    /// Returns whether the job asked for oversubscription.
    pub fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    /// Returns whether the process ever had an allocation beyond the limit.
    #[inline(always)]
    pub fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    fn gpu(&self, ordinal: usize) -> Option<&OnGpu> {
        self.gpus.get(ordinal)
    }

    /// Returns all bytes beyond the limit on a GPU, and the part that the meter thread moved to the
    /// GPU.
    pub fn amounts(&self, ordinal: usize) -> (u64, u64) {
        let load = |amount: &AtomicU64| amount.load(Ordering::Relaxed);
        self.gpu(ordinal).map_or((0, 0), |gpu| (load(&gpu.held_bytes), load(&gpu.brought_bytes)))
    }

    /// Returns whether `address` is the beginning of an allocation beyond the limit.
    pub fn has(&self, address: u64) -> bool {
        self.is_used() && lock(&self.pieces).contains_key(&address)
    }

    /// Returns whether a GPU supports memory beyond the limit. If the GPU does not support it,
    /// warns once.
    fn is_able(&self, ordinal: usize) -> bool {
        let Some(gpu) = self.gpu(ordinal) else { return false };
        match gpu.ability.load(Ordering::Relaxed) {
            CAN => true,
            CANNOT => false,
            _ => {
                let can = managed::migrates(ordinal) == Some(true);
                let seen = gpu.ability.swap(if can { CAN } else { CANNOT }, Ordering::Relaxed);
                if !can && seen == UNKNOWN {
                    say!(
                        Warn,
                        "DEEPRES_OVERSUBSCRIBE=managed: {} cannot move managed memory in use (no concurrentManagedAccess), so deepres refuses memory beyond the limit there",
                        process::gpu_name(ordinal)
                    );
                }
                can
            }
        }
    }

    /// Counts `bytes` more. Returns `None` if the process's memory beyond the limit and the
    /// tenant's held memory together would exceed the size of the GPU.
    fn count(&self, ordinal: usize, tenant_bytes: u64, bytes: u64) -> Option<Counted<'_>> {
        let gpu = self.gpu(ordinal)?;
        let total_bytes = managed::total_bytes(ordinal)?;
        let count = |held: u64| {
            let sum = held.checked_add(bytes)?;
            (sum.checked_add(tenant_bytes)? <= total_bytes).then_some(sum)
        };
        gpu.held_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count).ok()?;
        Some(Counted(gpu, bytes))
    }

    /// Reserves `bytes` of the host's memory, because the driver can move the allocation there.
    /// Returns `None` if the host has no room for so many bytes of the tenant's processes together.
    /// The inner value is `None` if no ledger contains the reservation.
    fn promise_by_host(&self, site: &Site<'_>, bytes: u64) -> Option<Promise> {
        let host = {
            let _uncancelled = os::uncancelled();
            host_memory()
        };
        let Some(room_bytes) = host.map(|host| host.room_bytes()) else { return Some(None) };
        let Some(account) = site.ledger.host() else {
            let promised_bytes = self.promised_bytes.load(Ordering::Relaxed);
            return (promised_bytes.saturating_add(bytes) <= room_bytes).then_some(None);
        };
        let room_bytes = site.ledger.host_bound_bytes().map_or(room_bytes, |bound| bound.min(room_bytes));
        let mut patience = Patience::default();
        account.reserve(bytes, room_bytes, || patience.goes_on(PATIENCE_NS)).ok().map(Some)
    }

    /// Writes the amount of this process's reserved host memory into the tenant's ledger.
    fn tell_of_host(&self, session: &Session) {
        let Some(account) = session.ledger().host() else { return };
        let _one_at_a_time = lock(&self.telling);
        let (told_bytes, now_bytes) = (account.held_bytes(), self.promised_bytes.load(Ordering::Relaxed));
        if told_bytes < now_bytes {
            account.charge(now_bytes - told_bytes);
        } else {
            account.release(told_bytes - now_bytes);
        }
    }

    fn enter(&self, address: u64, piece: Piece, counted: Counted<'_>) {
        // From here on, the entry in the table stands for these counted bytes.
        std::mem::forget(counted);
        self.is_used.store(true, Ordering::Relaxed);
        self.promised_bytes.fetch_add(piece.promised_bytes(), Ordering::Relaxed);
        let replaced = lock(&self.pieces).insert(address, piece);
        // The driver gives an address out again only after its free. So if the table still has an
        // entry of that address, the free bypassed the interposer.
        if let Some(gone) = replaced {
            self.uncount(&gone);
        }
    }

    fn uncount(&self, piece: &Piece) {
        let Some(gpu) = self.gpu(piece.ordinal) else { return };
        gpu.held_bytes.fetch_sub(piece.bytes, Ordering::Relaxed);
        gpu.brought_bytes.fetch_sub(piece.brought_bytes, Ordering::Relaxed);
        self.promised_bytes.fetch_sub(piece.promised_bytes(), Ordering::Relaxed);
    }

    /// Frees the allocation at `address` by `free`, and returns the result of `free`. If this
    /// module does not know the address, returns `free` itself as the error. Removes the entry
    /// before `free` runs, because the driver can give the same address to another thread as soon
    /// as `free` has run.
    pub fn free<F: FnOnce() -> u32>(&self, process: &Process, address: u64, free: F) -> Result<u32, F> {
        let Some(piece) = lock(&self.pieces).remove(&address) else { return Err(free) };
        let result = free();
        // The code asks `is_gone` under the lock. Otherwise another thread could end the context
        // and remove its entries before this entry is in the table again.
        let mut pieces = lock(&self.pieces);
        if result == CUDA_SUCCESS || process.is_gone(piece.context) {
            self.uncount(&piece);
        } else {
            pieces.insert(address, piece);
        }
        drop(pieces);
        if let Some(session) = process.session() {
            self.publish(session, &process.gpus);
        }
        Ok(result)
    }

    /// Removes the allocations that ended with a context.
    pub fn forget_context(&self, context: usize) {
        if !self.is_used() {
            return;
        }
        let mut pieces = lock(&self.pieces);
        for (_, piece) in pieces.extract_if(.., |_, piece| piece.context == context) {
            self.uncount(&piece);
        }
    }

    /// Returns the next part to move to a GPU, of at most `most_bytes`, or `None` if there is none.
    pub fn next_to_bring(&self, ordinal: usize, most_bytes: u64) -> Option<Move> {
        let pieces = lock(&self.pieces);
        let mut waiting = pieces.iter().filter(|(_, piece)| {
            piece.moves && piece.ordinal == ordinal && piece.brought_bytes < piece.bytes
        });
        let (base, piece) = waiting.next()?;
        let bytes = (piece.bytes - piece.brought_bytes).min(most_bytes);
        (bytes > 0).then(|| piece.part(*base, piece.brought_bytes, bytes))
    }

    /// Returns the next part to move off a GPU, of at most `most_bytes`, or `None` if there is
    /// none.
    pub fn next_to_let_go(&self, ordinal: usize, most_bytes: u64) -> Option<Move> {
        let pieces = lock(&self.pieces);
        let mut there =
            pieces.iter().filter(|(_, piece)| piece.ordinal == ordinal && piece.brought_bytes > 0);
        let (base, piece) = there.next_back()?;
        let bytes = piece.brought_bytes.min(most_bytes);
        Some(piece.part(*base, piece.brought_bytes - bytes, bytes))
    }

    /// Sets whether the GPU is the preferred location of the allocations on it. Returns the
    /// allocations that changed; the caller tells the driver about them. If `is_preferred` is true,
    /// the method leaves out allocations without a part on the GPU.
    pub fn turn_preferred(&self, ordinal: usize, is_preferred: bool) -> Vec<(u64, Piece)> {
        let mut pieces = lock(&self.pieces);
        let others = pieces.iter_mut().filter(|(_, piece)| {
            let is_there = piece.brought_bytes > 0 || !is_preferred;
            piece.ordinal == ordinal && piece.is_preferred != is_preferred && is_there
        });
        others
            .map(|(base, piece)| {
                piece.is_preferred = is_preferred;
                (*base, *piece)
            })
            .collect()
    }

    /// Records that the part `done` is now on the GPU (`is_there`) or no longer there. Does nothing
    /// if another allocation has taken the place of the allocation.
    pub fn moved(&self, done: &Move, is_there: bool) {
        let offset_bytes = done.address - done.base;
        let brought_bytes = if is_there { offset_bytes } else { offset_bytes + done.bytes };
        self.change(done, &[brought_bytes], |piece, gpu| {
            piece.is_preferred = is_there;
            if is_there {
                piece.brought_bytes += done.bytes;
                piece.most_brought_bytes = piece.most_brought_bytes.max(piece.brought_bytes);
                gpu.brought_bytes.fetch_add(done.bytes, Ordering::Relaxed);
            } else {
                piece.brought_bytes -= done.bytes;
                gpu.brought_bytes.fetch_sub(done.bytes, Ordering::Relaxed);
            }
        });
    }

    /// Records that the driver refused to move the part `tried`. From now on, the meter thread does
    /// not move this allocation.
    pub fn stays(&self, tried: &Move) {
        let offset_bytes = tried.address - tried.base;
        self.change(tried, &[offset_bytes, offset_bytes + tried.bytes], |piece, gpu| {
            (piece.moves, piece.is_preferred) = (false, false);
            gpu.brought_bytes.fetch_sub(piece.brought_bytes, Ordering::Relaxed);
            // Nobody knows now where the memory is.
            (piece.brought_bytes, piece.most_brought_bytes) = (0, 0);
        });
    }

    /// Changes the allocation of `part`, if the address still has the same allocation. The
    /// allocation is the same if its length and context agree, and if its `brought_bytes` is among
    /// the given values.
    fn change(&self, part: &Move, brought_bytes: &[u64], change: impl FnOnce(&mut Piece, &OnGpu)) {
        let mut pieces = lock(&self.pieces);
        let Some(piece) = pieces.get_mut(&part.base) else { return };
        let is_same = piece.bytes == part.whole_bytes
            && piece.context == part.context
            && brought_bytes.contains(&piece.brought_bytes);
        if let Some(gpu) = self.gpu(piece.ordinal).filter(|_| is_same) {
            let before_bytes = piece.promised_bytes();
            change(piece, gpu);
            self.promised_bytes.fetch_add(piece.promised_bytes(), Ordering::Relaxed);
            self.promised_bytes.fetch_sub(before_bytes, Ordering::Relaxed);
        }
    }

    /// Writes the amounts beyond the limit to the meter page, and the reserved host memory to the
    /// tenant's ledger.
    pub fn publish(&self, session: &Session, gpus: &[Gpu]) {
        if !self.is_used() {
            return;
        }
        self.tell_of_host(session);
        for (ordinal, gpu) in gpus.iter().enumerate() {
            let slot = gpu.index().and_then(|index| session.meter().oversubscribed(index));
            let Some(slot) = slot else { continue };
            let (held_bytes, brought_bytes) = self.amounts(ordinal);
            slot.held_bytes.store(held_bytes, Ordering::Relaxed);
            slot.brought_bytes.store(brought_bytes, Ordering::Relaxed);
        }
    }
}

impl Piece {
    /// Returns the host memory that must stay reserved, bytes: the whole length, less the part that
    /// is already in the host's memory.
    fn promised_bytes(&self) -> u64 {
        self.bytes - (self.most_brought_bytes - self.brought_bytes)
    }

    fn part(&self, base: u64, offset_bytes: u64, bytes: u64) -> Move {
        Move {
            base,
            address: base + offset_bytes,
            bytes,
            whole_bytes: self.bytes,
            context: self.context,
            is_first: !self.is_preferred,
        }
    }
}

impl Accounts {
    /// Allocates memory beyond the limit by `call`, for a request that exceeds the limit or the
    /// GPU. Returns the result for the job, or `None` if this request cannot have memory beyond the
    /// limit.
    ///
    /// If the job itself asked for managed memory, the job places the memory. Otherwise the job
    /// treats the memory as device memory, and the meter thread moves it.
    #[cold]
    pub(super) fn allocate_oversubscribed(
        &self,
        process: &Process,
        site: &Site<'_>,
        request: &Request,
        call: &mut dyn FnMut(Way) -> Answer,
    ) -> Option<u32> {
        let oversubscription = &self.oversubscription;
        let moves = request.is_linear();
        let is_kind = moves || request.kind == MemoryKind::Managed;
        if !oversubscription.is_wanted() || !is_kind || !oversubscription.is_able(request.ordinal) {
            return None;
        }
        let bytes = charge::managed(request.bytes);
        let counted = oversubscription.count(request.ordinal, site.account.tenant_held_bytes(), bytes)?;
        let promise = oversubscription.promise_by_host(site, bytes)?;
        let (result, named) = call(if moves { Way::Managed } else { Way::Device });
        let Some((Name::Address(address), _)) = named.filter(|_| result == CUDA_SUCCESS) else {
            site.withdraw(promise);
            // If the driver has no managed memory either, the caller refuses the request, and the
            // job gets the same error.
            return (result != CUDA_ERROR_OUT_OF_MEMORY).then_some(result);
        };
        let Request { ordinal, context, .. } = *request;
        let piece = Piece {
            bytes,
            ordinal,
            context,
            moves,
            is_preferred: false,
            brought_bytes: 0,
            most_brought_bytes: 0,
        };
        oversubscription.enter(address, piece, counted);
        oversubscription.publish(site.session, &process.gpus);
        // The code withdraws the promise only at this point. So the amount counts twice for a
        // moment, and no moment misses the amount.
        site.withdraw(promise);
        // Nothing else wakes the meter thread, which must move the new memory to the GPU.
        process.wake_meter();
        Some(result)
    }
}

/// Returns the host's memory, or `None` if the system does not tell.
fn host_memory() -> Option<HostMemory> {
    HostMemory::parse(&std::fs::read_to_string(HostMemory::FILE).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn entered(oversubscription: &Oversubscription, address: u64, bytes: u64, context: usize) {
        oversubscription.gpus[0].held_bytes.fetch_add(bytes, Ordering::Relaxed);
        let piece = Piece {
            bytes,
            ordinal: 0,
            context,
            moves: true,
            is_preferred: false,
            brought_bytes: 0,
            most_brought_bytes: 0,
        };
        oversubscription.enter(address, piece, Counted(&oversubscription.gpus[0], bytes));
    }

    #[test]
    fn memory_that_is_brought_and_let_go_by_parts_is_counted_exactly() {
        let oversubscription = Oversubscription::default();
        entered(&oversubscription, 0x1000_0000, 5 * MIB, 1);
        entered(&oversubscription, 0x2000_0000, 2 * MIB, 2);
        assert_eq!(oversubscription.next_to_let_go(0, MIB), None);
        let mut brought = Vec::new();
        while let Some(part) = oversubscription.next_to_bring(0, 2 * MIB) {
            brought.push((part.address, part.bytes, part.is_first));
            oversubscription.moved(&part, true);
        }
        let first = 0x1000_0000;
        let expected = [
            (first, 2 * MIB, true),
            (first + 2 * MIB, 2 * MIB, false),
            (first + 4 * MIB, MIB, false),
            (0x2000_0000, 2 * MIB, true),
        ];
        assert_eq!(brought, expected);
        assert_eq!(oversubscription.amounts(0), (7 * MIB, 7 * MIB));
        assert_eq!(oversubscription.turn_preferred(0, true).len(), 0);
        assert_eq!(oversubscription.turn_preferred(0, false).len(), 2);
        assert_eq!(oversubscription.turn_preferred(0, false).len(), 0);
        assert_eq!(oversubscription.turn_preferred(0, true).len(), 2);
        let part = oversubscription.next_to_let_go(0, 3 * MIB).unwrap();
        assert_eq!((part.address, part.bytes), (0x2000_0000, 2 * MIB), "the last brought goes first");
        oversubscription.moved(&part, false);
        let part = oversubscription.next_to_let_go(0, 3 * MIB).unwrap();
        assert_eq!((part.address, part.bytes), (first + 2 * MIB, 3 * MIB), "from its end");
        oversubscription.moved(&part, false);
        assert_eq!(oversubscription.amounts(0), (7 * MIB, 2 * MIB));
        oversubscription.forget_context(1);
        assert_eq!(oversubscription.amounts(0), (2 * MIB, 0));
    }

    #[test]
    fn memory_that_sits_on_the_host_is_not_promised_by_it_again() {
        let oversubscription = Oversubscription::default();
        entered(&oversubscription, 0x1000_0000, 4 * MIB, 1);
        let promised = || oversubscription.promised_bytes.load(Ordering::Relaxed) / MIB;
        let brings = |bytes| oversubscription.moved(&oversubscription.next_to_bring(0, bytes).unwrap(), true);
        let lets_go =
            |bytes| oversubscription.moved(&oversubscription.next_to_let_go(0, bytes).unwrap(), false);
        brings(3 * MIB);
        assert_eq!(promised(), 4, "it may have to go to the host at any time");
        lets_go(2 * MIB);
        assert_eq!(promised(), 2, "2 MiB are there, and no longer among what is available");
        brings(MIB);
        assert_eq!(promised(), 3);
        brings(2 * MIB);
        assert_eq!(promised(), 4);
        lets_go(4 * MIB);
        assert_eq!(promised(), 0);
        oversubscription.stays(&oversubscription.next_to_bring(0, MIB).unwrap());
        assert_eq!(promised(), 4, "nobody knows where it is");
        oversubscription.forget_context(1);
        assert_eq!(promised(), 0);
    }

    #[test]
    fn an_allocation_that_is_another_by_now_is_not_taken_for_the_one_that_was_moved() {
        let oversubscription = Oversubscription::default();
        entered(&oversubscription, 0x1000_0000, 4 * MIB, 1);
        let part = oversubscription.next_to_bring(0, MIB).unwrap();
        oversubscription.forget_context(1);
        oversubscription.moved(&part, true);
        entered(&oversubscription, 0x1000_0000, 2 * MIB, 2);
        oversubscription.moved(&part, true);
        oversubscription.stays(&part);
        assert_eq!(oversubscription.amounts(0), (2 * MIB, 0));
        let part = oversubscription.next_to_bring(0, MIB).unwrap();
        oversubscription.moved(&part, true);
        let part = oversubscription.next_to_bring(0, MIB).unwrap();
        oversubscription.stays(&part);
        assert_eq!(
            (oversubscription.amounts(0), oversubscription.next_to_bring(0, MIB)),
            ((2 * MIB, 0), None)
        );
    }

    #[test]
    fn an_allocation_that_was_not_made_is_not_counted() {
        let oversubscription = Oversubscription::default();
        oversubscription.gpus[0].held_bytes.fetch_add(MIB, Ordering::Relaxed);
        drop(Counted(&oversubscription.gpus[0], MIB));
        assert_eq!(oversubscription.amounts(0), (0, 0));
    }

    #[test]
    fn the_host_keeps_a_part_of_its_memory() {
        let text = "MemTotal:       16 kB\nMemFree:  1 kB\nMemAvailable:    9 kB\n";
        let host = HostMemory::parse(text).unwrap();
        assert_eq!(host, HostMemory { total_bytes: 16 << 10, available_bytes: 9 << 10 });
        assert_eq!(host.room_bytes(), 8 << 10);
        assert_eq!(HostMemory { available_bytes: 1, ..host }.room_bytes(), 0);
        assert_eq!(HostMemory::parse("MemTotal: 16 kB\n"), None);
        assert!(host_memory().is_some());
    }
}
