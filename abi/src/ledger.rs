//! The ledger: the device memory that all sessions of one tenant hold on each GPU. It is exact
//! under races and safe against kills.
//!
//! There is no shared total to repair. Each session has a slot that only this session changes, and
//! the tenant holds the sum of the slots. When a session is killed, the daemon clears its slot. An
//! unfinished reservation ends with the slot.
//!
//! Five words of a slot count bytes:
//!
//! - `promised`: all bytes that were ever asked for and not withdrawn;
//! - `taken`: the part of `promised` that became allocations;
//! - `leaving`: the part of `taken` that the driver was told to free;
//! - `stayed`: the part of `leaving` that the driver did not free;
//! - `released`: the part of `leaving` that the driver freed.
//!
//! A session holds `taken` less `released`. Bytes that are leaving and did not stay are on their
//! way out. Bytes that are promised and not taken are pending. The words are sums over the life of
//! a slot, modulo 2⁶⁴. Only the distances between them count.
//!
//! *The limit is never passed.* [`Account::reserve`] first adds to `promised`, and then reads the
//! sum of promised and not released bytes. The additions of all requests have one (sequentially
//! consistent) order. If several requests would exceed the limit together, the one whose addition
//! comes last sees all the others. [`Reservation::commit`] adds to `taken`, which does not change
//! that sum. `released` is read before `promised`, so a release is never seen without its promise.
//!
//! *Nothing is refused that would have fitted.* If only pending or leaving bytes of others are in
//! the way, a request steps back and tries again. Those bytes may still be withdrawn or given back.
//! A request is refused only because of bytes that were held and staying, all at one moment, or
//! because its caller gives up.
//!
//! Slots are read one by one. Bytes that leave one session while another session takes them could
//! be counted twice. So `leaving`, which only grows, is read again at the end. If it has not grown,
//! at least the counted bytes were staying at the end of its first reading.

use core::ops::Range;

use crate::MAX_GPUS;
use crate::page::{Head, Kind, Page};
use crate::sync::{AtomicU32, AtomicU64, Ordering, spin_hint};

/// Sessions that one tenant can have at a time.
#[cfg(not(loom))]
pub const MAX_SESSIONS: usize = 512;
/// The model checker can only follow a few.
#[cfg(loom)]
pub const MAX_SESSIONS: usize = 3;

/// Tries after which the caller is asked whether to go on.
#[cfg(not(loom))]
const SPINS: u32 = 64;
/// One retry is enough for the model checker to see the path.
#[cfg(loom)]
const SPINS: u32 = 1;

/// More than any GPU has, bytes. It is the most that one request can ask for, so that no word comes
/// near half of 2⁶⁴.
const MOST_BYTES: u64 = 1 << 48;

/// Returns how far `word` is ahead of `other`, or 0 if it is behind.
#[inline(always)]
fn ahead(word: u64, other: u64) -> u64 {
    let distance = word.wrapping_sub(other);
    if distance.cast_signed() < 0 { 0 } else { distance }
}

/// A session's words on one GPU. Each slot has its own cache line, because different processes
/// change different slots.
#[derive(Debug)]
#[repr(C, align(64))]
struct Slot {
    taken_bytes: AtomicU64,
    leaving_bytes: AtomicU64,
    released_bytes: AtomicU64,
    promised_bytes: AtomicU64,
    /// Bytes that the driver refused to a thread of the session for lack of GPU memory, while the
    /// thread waits for them. 0 if no thread waits.
    needed_bytes: AtomicU64,
    /// Not 0 if the owner holds a lock that ends with its process ([`LedgerGpu::set_locked`]).
    is_locked: AtomicU64,
    stayed_bytes: AtomicU64,
}

impl Slot {
    /// Returns the held bytes that stay. `leaving` is read first (see the module).
    fn staying_bytes(&self) -> u64 {
        let leaving = self.leaving_bytes.load(Ordering::SeqCst);
        ahead(self.ever_staying_bytes(), leaving)
    }

    /// Returns the sum of the bytes that were taken and of the bytes that were leaving and stayed.
    fn ever_staying_bytes(&self) -> u64 {
        let taken = self.taken_bytes.load(Ordering::SeqCst);
        taken.wrapping_add(self.stayed_bytes.load(Ordering::SeqCst))
    }

    /// Marks `bytes` as leaving, or all staying bytes if there are fewer. Returns the number.
    #[inline(always)]
    fn leave(&self, bytes: u64) -> u64 {
        Self::move_up(&self.leaving_bytes, bytes, || self.ever_staying_bytes())
    }

    /// Records that `bytes` that were leaving stay.
    fn stay(&self, bytes: u64) {
        if bytes != 0 {
            self.stayed_bytes.fetch_add(bytes, Ordering::SeqCst);
        }
    }

    /// Returns the bytes that the session holds. `released` is read first (see the module).
    fn held_bytes(&self) -> u64 {
        let released = self.released_bytes.load(Ordering::SeqCst);
        ahead(self.taken_bytes.load(Ordering::SeqCst), released)
    }

    /// Returns the bytes that are held or pending. `released` is read first (see the module).
    fn held_and_pending_bytes(&self) -> u64 {
        let released = self.released_bytes.load(Ordering::SeqCst);
        ahead(self.promised_bytes.load(Ordering::SeqCst), released)
    }

    /// Returns the pending bytes. `taken` is read first, so that a reservation that is committed
    /// meanwhile still counts as pending. In the opposite order, pending bytes could be missed.
    fn pending_bytes(&self) -> u64 {
        let taken = self.taken_bytes.load(Ordering::SeqCst);
        ahead(self.promised_bytes.load(Ordering::SeqCst), taken)
    }

    /// Records that `bytes` that were promised are taken.
    #[inline(always)]
    fn take(&self, bytes: u64) {
        let taken = self.taken_bytes.fetch_add(bytes, Ordering::SeqCst).wrapping_add(bytes);
        // This happens only if the slot was cleared although its owner lives.
        if ahead(taken, self.promised_bytes.load(Ordering::SeqCst)) != 0 {
            self.promise_up_to(taken);
        }
    }

    #[cold]
    fn promise_up_to(&self, taken: u64) {
        let behind = |promised: u64| (ahead(taken, promised) != 0).then_some(taken);
        // An error means that `promised` is high enough by now.
        let _ = self.promised_bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, behind);
    }

    /// Withdraws `bytes` that were promised and are not needed. Bytes that were taken stay
    /// promised, because a slot is in memory that other processes can write.
    fn withdraw(&self, bytes: u64) {
        let mut now = self.promised_bytes.load(Ordering::SeqCst);
        loop {
            let pending_bytes = ahead(now, self.taken_bytes.load(Ordering::SeqCst));
            let next = now.wrapping_sub(bytes.min(pending_bytes));
            match self.promised_bytes.compare_exchange_weak(now, next, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return,
                Err(changed) => now = changed,
            }
        }
    }

    /// Gives back `bytes`, or all held bytes if there are fewer. Returns the number.
    #[inline(always)]
    fn release(&self, bytes: u64) -> u64 {
        Self::move_up(&self.released_bytes, bytes, || self.taken_bytes.load(Ordering::SeqCst))
    }

    /// Adds `bytes` to `word`, up to `most`. The bound is needed because a slot is in memory that
    /// other processes can write. Returns the number of bytes added.
    #[inline(always)]
    fn move_up(word: &AtomicU64, bytes: u64, most: impl Fn() -> u64) -> u64 {
        let mut now = word.load(Ordering::SeqCst);
        loop {
            let bytes = bytes.min(ahead(most(), now));
            let next = now.wrapping_add(bytes);
            match word.compare_exchange_weak(now, next, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return bytes,
                Err(changed) => now = changed,
            }
        }
    }
}

/// The memory of one tenant on one GPU.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct LedgerGpu {
    /// All slots in use are below this. The daemon raises it before it gives out a slot.
    slots_used: AtomicU32,
    /// Number of times that the daemon made room.
    rooms_made: AtomicU32,
    /// The most bytes that were seen held at once.
    peak_bytes: AtomicU64,
    /// The most memory that the daemon can make room for, bytes. A larger request waits in vain. 0
    /// if the daemon can make no room.
    obtainable_bytes: AtomicU64,
    /// Number of times that another tenant began to wait for memory that this tenant has.
    presses: AtomicU32,
    slots: [Slot; MAX_SESSIONS],
}

/// The memory of one tenant on every GPU.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct LedgerPage {
    head: Head,
    gpus: [LedgerGpu; MAX_GPUS],
    host: LedgerGpu,
}

// SAFETY: the type is repr(C), begins with the head, contains only atomics, and has its own kind.
unsafe impl Page for LedgerPage {
    const KIND: Kind = Kind::Ledger;
    fn head(&self) -> &Head {
        &self.head
    }
}

impl LedgerPage {
    /// Returns the ledger of a GPU, if there is such a GPU.
    pub fn gpu(&self, gpu: usize) -> Option<&LedgerGpu> {
        self.gpus.get(gpu)
    }

    /// Returns the ledger of the host's memory. It counts memory that the host has promised and not
    /// given yet. In a page of an older daemon no session has a slot in it.
    pub fn host(&self) -> &LedgerGpu {
        &self.host
    }

    /// Returns the ledgers of the first `gpus` GPUs, and the ledger of the host's memory.
    pub fn all(&self, gpus: usize) -> impl Iterator<Item = &LedgerGpu> {
        self.gpus.iter().take(gpus).chain([&self.host])
    }
}

/// The refusal of a reservation that would exceed the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Bytes that all sessions of the tenant held at that moment.
    pub held_bytes: u64,
}

impl Default for LedgerGpu {
    fn default() -> Self {
        Self {
            slots_used: AtomicU32::new(0),
            rooms_made: AtomicU32::new(0),
            peak_bytes: AtomicU64::new(0),
            obtainable_bytes: AtomicU64::new(0),
            presses: AtomicU32::new(0),
            slots: core::array::from_fn(|_| Slot {
                taken_bytes: AtomicU64::new(0),
                leaving_bytes: AtomicU64::new(0),
                released_bytes: AtomicU64::new(0),
                promised_bytes: AtomicU64::new(0),
                needed_bytes: AtomicU64::new(0),
                is_locked: AtomicU64::new(0),
                stayed_bytes: AtomicU64::new(0),
            }),
        }
    }
}

impl LedgerGpu {
    /// Returns the most bytes that the tenant held at once. Under a limit no peak is missed, and
    /// reservations of other threads at that moment are included. Without a limit the value is the
    /// most that was seen.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes.load(Ordering::Relaxed)
    }

    /// Records that `bytes` were held at one moment.
    #[inline]
    pub fn note_peak(&self, bytes: u64) {
        // No decision depends on the peak, so the model checker need not interleave it.
        if cfg!(not(loom)) && bytes > self.peak_bytes.load(Ordering::Relaxed) {
            self.peak_bytes.fetch_max(bytes, Ordering::Relaxed);
        }
    }

    /// Returns the bytes that sessions wait for because the driver lacked memory. It is the
    /// smallest of these amounts, because that can be had first. 0 if no session waits.
    pub fn needed_bytes(&self) -> u64 {
        let needs = self.used().iter().map(|slot| slot.needed_bytes.load(Ordering::SeqCst));
        needs.filter(|bytes| *bytes > 0).min().unwrap_or(0)
    }

    /// Sets the largest amount that a session may wait for. Only the daemon calls this.
    pub fn set_obtainable(&self, bytes: u64) {
        self.obtainable_bytes.store(bytes, Ordering::SeqCst);
    }

    /// Makes waiting sessions ask the driver again. Only the daemon calls this, once there is room.
    pub fn announce_room(&self) {
        self.rooms_made.fetch_add(1, Ordering::SeqCst);
    }

    /// Records that another tenant waits for memory that this tenant has. Only the daemon calls
    /// this.
    pub fn press(&self) {
        self.presses.fetch_add(1, Ordering::SeqCst);
    }

    /// Opens `slot` for a session, empty. Only the daemon calls this, before it tells the session
    /// its slot.
    ///
    /// Returns `None` if there is no such slot.
    pub fn open(&self, slot: usize) -> Option<()> {
        self.clear(slot)?;
        self.slots_used.fetch_max(slot as u32 + 1, Ordering::SeqCst);
        Some(())
    }

    /// Empties the slot of a dead session. Only the daemon calls this, once the process is gone.
    ///
    /// Returns the bytes that the session held, or `None` if there is no such slot.
    pub fn clear(&self, slot: usize) -> Option<u64> {
        let slot = self.slots.get(slot)?;
        slot.is_locked.store(0, Ordering::SeqCst);
        slot.promised_bytes.store(slot.taken_bytes.load(Ordering::SeqCst), Ordering::SeqCst);
        slot.needed_bytes.store(0, Ordering::SeqCst);
        let freed_bytes = slot.release(u64::MAX);
        // This overrides whatever the owner wrote there.
        slot.leaving_bytes.store(slot.ever_staying_bytes(), Ordering::SeqCst);
        Some(freed_bytes)
    }

    /// Excludes empty slots at the end of the range `unused` from all later reading. The range must
    /// contain the last slots in use. No session owns slots of the range, or writes in them. Only
    /// the daemon calls this, and it opens none of these slots meanwhile.
    pub fn shrink(&self, unused: Range<usize>) {
        let now = self.slots_used.load(Ordering::SeqCst);
        let used = self.used();
        let is_empty = |slot: &Slot| slot.held_and_pending_bytes() == 0;
        let filled = used.iter().rposition(|slot| !is_empty(slot)).map_or(0, |last| last + 1);
        let still_used = filled.max(unused.start);
        if used.len() == unused.end && still_used < unused.end {
            // An error means that slots behind the range were opened meanwhile.
            let _ =
                self.slots_used.compare_exchange(now, still_used as u32, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Records that the owner of `slot` holds a lock on the byte with the slot's number in the
    /// ledger's file. The kernel removes the lock when the owner dies.
    pub fn set_locked(&self, slot: usize) {
        if let Some(slot) = self.slots.get(slot) {
            slot.is_locked.store(1, Ordering::SeqCst);
        }
    }

    /// Returns the slots with held or pending bytes whose owners have taken their locks. Such an
    /// owner is dead if it no longer holds its lock.
    pub fn suspects(&self) -> impl Iterator<Item = usize> {
        let is_suspect = |slot: &Slot| {
            let is_anything = slot.held_and_pending_bytes() != 0;
            is_anything && slot.is_locked.load(Ordering::SeqCst) != 0
        };
        self.used().iter().enumerate().filter(move |(_, slot)| is_suspect(slot)).map(|(number, _)| number)
    }

    /// Returns the number of slots that are or were in use. Later slots hold nothing.
    pub fn slots(&self) -> usize {
        self.used().len()
    }

    /// Returns the bytes that the tenant holds. While sessions allocate and free, the value of each
    /// slot is right, but the sum need not be right for one moment.
    pub fn held_bytes(&self) -> u64 {
        self.used().iter().fold(0, |sum, slot| sum.saturating_add(slot.held_bytes()))
    }

    /// Returns bytes that the tenant held at least at some moment of the call, without leaving
    /// bytes. Returns `None` if more bytes began to leave meanwhile.
    pub fn staying_at_one_moment(&self) -> Option<u64> {
        let leaving = || {
            let words = self.used().iter().map(|slot| slot.leaving_bytes.load(Ordering::SeqCst));
            // Each word only grows, so the sum, modulo 2⁶⁴, is the same only if all words are the
            // same.
            words.fold(0_u64, u64::wrapping_add)
        };
        let before = leaving();
        let staying_bytes =
            self.used().iter().fold(0, |sum: u64, slot| sum.saturating_add(slot.staying_bytes()));
        (leaving() == before).then_some(staying_bytes)
    }

    /// Returns the account of the session that owns `slot`, if there is such a slot.
    pub fn account(&self, slot: usize) -> Option<Account<'_>> {
        Some(Account { gpu: self, slot: self.slots.get(slot)? })
    }

    fn used(&self) -> &[Slot] {
        // The count is bounded, because it is in memory that every session of the tenant can write.
        let used = (self.slots_used.load(Ordering::SeqCst) as usize).min(MAX_SESSIONS);
        &self.slots[..used]
    }

    /// Returns the bytes that the tenant holds or asks for. A reservation that was made before its
    /// session saw that the limit was lowered is included.
    pub fn held_and_pending_bytes(&self) -> u64 {
        self.used().iter().fold(0, |sum, slot| sum.saturating_add(slot.held_and_pending_bytes()))
    }
}

/// The memory of one session on one GPU.
#[derive(Debug, Clone, Copy)]
pub struct Account<'a> {
    gpu: &'a LedgerGpu,
    slot: &'a Slot,
}

impl<'a> Account<'a> {
    /// Reserves `bytes` if the tenant then holds at most `limit_bytes`. The caller must reserve
    /// before it asks the driver for the bytes.
    ///
    /// While only unfinished requests and frees of others are in the way, `goes_on` is called
    /// between tries. It returns whether to try again, and may sleep.
    ///
    /// # Errors
    /// [`Refused`] if held bytes leave no room, or if `goes_on` returned false.
    #[inline(always)]
    pub fn reserve(
        self,
        bytes: u64,
        limit_bytes: u64,
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<Reservation<'a>, Refused> {
        match self.reserve_at_once(bytes, limit_bytes) {
            Some(reservation) => Ok(reservation),
            None if bytes > limit_bytes.min(MOST_BYTES) => Err(Refused { held_bytes: self.gpu.held_bytes() }),
            None => self.reserve_among_others(bytes, limit_bytes, &mut goes_on),
        }
    }

    /// Reserves `bytes` if nothing is in the way.
    #[inline(always)]
    fn reserve_at_once(self, bytes: u64, limit_bytes: u64) -> Option<Reservation<'a>> {
        // A request that can never fit is not even announced, because it would be in the way of
        // others.
        if bytes > limit_bytes.min(MOST_BYTES) {
            return None;
        }
        self.slot.promised_bytes.fetch_add(bytes, Ordering::SeqCst);
        let promised_bytes = self.gpu.held_and_pending_bytes();
        if promised_bytes <= limit_bytes {
            return Some(Reservation { account: self, bytes, sum_bytes: promised_bytes });
        }
        self.slot.withdraw(bytes);
        None
    }

    /// Continues [`Account::reserve`] after something was in the way.
    #[cold]
    fn reserve_among_others(
        self,
        bytes: u64,
        limit_bytes: u64,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Reservation<'a>, Refused> {
        let mut spins = 0;
        loop {
            if let Some(held_bytes) = self.gpu.staying_at_one_moment()
                && held_bytes.saturating_add(bytes) > limit_bytes
            {
                return Err(Refused { held_bytes });
            }
            if spins < SPINS {
                spins += 1;
                spin_hint();
            } else if !goes_on() {
                return Err(Refused { held_bytes: self.gpu.held_bytes() });
            }
            if let Some(reservation) = self.reserve_at_once(bytes, limit_bytes) {
                return Ok(reservation);
            }
        }
    }

    /// Charges `bytes` that the driver has already taken, regardless of the limit. It is for memory
    /// that could not be reserved beforehand.
    pub fn charge(self, bytes: u64) {
        self.slot.promised_bytes.fetch_add(bytes, Ordering::SeqCst);
        self.slot.take(bytes);
    }

    /// Marks `bytes` that were committed or charged as leaving, before the driver is told to free
    /// them. They count until the driver has freed them, but no request is refused because of them.
    #[inline(always)]
    pub fn leave(self, bytes: u64) -> Leaving<'a> {
        Leaving { account: self, bytes: self.slot.leave(bytes) }
    }

    /// Gives back `bytes` that were committed or charged and that the driver has freed.
    pub fn release(self, bytes: u64) {
        self.leave(bytes).finish();
    }

    /// Begins to wait for `bytes` that the driver refused within the limit, because other tenants
    /// have the GPU's memory. Returns `None` if the daemon cannot make so much room.
    pub fn wait_for_room(self, bytes: u64) -> Option<Waiting<'a>> {
        let waiting =
            Waiting { account: self, bytes, rooms_made: self.gpu.rooms_made.load(Ordering::SeqCst) };
        waiting.goes_on().then_some(waiting)
    }

    /// Returns how often another tenant began to wait for memory that this tenant has.
    pub fn presses(self) -> u32 {
        self.gpu.presses.load(Ordering::SeqCst)
    }

    /// Returns the bytes that this session holds.
    pub fn held_bytes(self) -> u64 {
        self.slot.held_bytes()
    }

    /// Returns the bytes that are promised to unfinished requests of this session.
    pub fn pending_bytes(self) -> u64 {
        self.slot.pending_bytes()
    }

    /// Returns the bytes that the whole tenant holds.
    pub fn tenant_held_bytes(self) -> u64 {
        self.gpu.held_bytes()
    }
}

/// A thread's wait for room. Dropping the value ends the wait.
#[derive(Debug)]
#[must_use = "dropping it says that the session waits no longer"]
pub struct Waiting<'a> {
    account: Account<'a>,
    bytes: u64,
    rooms_made: u32,
}

impl Waiting<'_> {
    /// Whether room was made since the wait began, so that the driver may be asked again.
    pub fn is_over(&self) -> bool {
        self.account.gpu.rooms_made.load(Ordering::SeqCst) != self.rooms_made
    }

    /// Whether it makes sense to wait on. The waiting thread must call this now and then, because
    /// the call writes again how much is needed. The session's threads share that word, and a
    /// thread that ends its wait resets it.
    pub fn goes_on(&self) -> bool {
        // The daemon makes no room for 0 bytes, so such a request would wait for ever.
        if self.bytes == 0 || self.bytes > self.account.gpu.obtainable_bytes.load(Ordering::SeqCst) {
            return false;
        }
        let word = &self.account.slot.needed_bytes;
        let less = |now: u64| (now == 0 || self.bytes < now).then_some(self.bytes);
        // An error means that a smaller need is recorded already.
        let _ = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        true
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.account.slot.needed_bytes.store(0, Ordering::SeqCst);
    }
}

/// Bytes promised to a request that the driver has not answered yet. Dropping the value gives them
/// back.
#[derive(Debug)]
#[must_use = "commit it once the driver has allocated; dropping gives the bytes back"]
pub struct Reservation<'a> {
    account: Account<'a>,
    bytes: u64,
    /// Bytes of the tenant that were held or promised when this reservation was made, including the
    /// reservation. It is what the tenant holds once the reservation is committed.
    sum_bytes: u64,
}

impl<'a> Reservation<'a> {
    /// Returns the promised bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Commits `bytes` of the reservation, which the driver allocated, and gives the rest back. The
    /// rest is given back first, so that it never counts as staying.
    pub fn commit_part(mut self, bytes: u64) {
        if bytes < self.bytes {
            let less = self.bytes - bytes;
            self.account.slot.withdraw(less);
            self.bytes = bytes;
            // The sum was read from words that other processes can write, so it may be less than
            // this reservation alone.
            self.sum_bytes = self.sum_bytes.saturating_sub(less);
        }
        self.commit();
    }

    /// Commits the reservation after the driver has allocated.
    #[inline(always)]
    pub fn commit(self) {
        self.account.slot.take(self.bytes);
        self.account.gpu.note_peak(self.sum_bytes);
        core::mem::forget(self);
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.account.slot.withdraw(self.bytes);
    }
}

/// Bytes that the driver was told to free. Dropping the value records that they stay after all.
#[derive(Debug)]
#[must_use = "finish it once the driver has freed; dropping means that it did not"]
pub struct Leaving<'a> {
    account: Account<'a>,
    bytes: u64,
}

impl Leaving<'_> {
    /// Records that the driver freed all of the bytes.
    #[inline(always)]
    pub fn finish(self) {
        self.account.slot.release(self.bytes);
        core::mem::forget(self);
    }

    /// Records that the driver freed `bytes` of them, or all, and not the rest.
    pub fn finish_part(mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.account.slot.release(bytes);
        self.bytes -= bytes;
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.account.slot.stay(self.bytes);
    }
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<LedgerGpu>() == 64 + MAX_SESSIONS * 64);
    assert!(core::mem::offset_of!(LedgerGpu, slots) == 64);
    assert!(core::mem::offset_of!(LedgerPage, gpus) == 64);
    assert!(size_of::<LedgerPage>().is_multiple_of(4096));
};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn ledger(sessions: usize) -> Box<LedgerGpu> {
        let gpu = Box::<LedgerGpu>::default();
        for slot in 0..sessions {
            gpu.open(slot).unwrap();
        }
        gpu
    }

    #[test]
    fn the_limit_binds_the_sum_over_sessions_to_the_byte() {
        let gpu = ledger(2);
        let (a, b) = (gpu.account(0).unwrap(), gpu.account(1).unwrap());
        a.reserve(60, 100, || false).unwrap().commit();
        assert_eq!(b.reserve(41, 100, || false).unwrap_err(), Refused { held_bytes: 60 });
        b.reserve(40, 100, || false).unwrap().commit();
        assert_eq!(gpu.held_bytes(), 100);
        assert_eq!(a.reserve(1, 100, || false).unwrap_err(), Refused { held_bytes: 100 });
        a.release(60);
        a.reserve(60, 100, || false).unwrap().commit();
    }

    #[test]
    fn a_reservation_that_the_driver_refused_goes_back() {
        let gpu = ledger(1);
        let account = gpu.account(0).unwrap();
        drop(account.reserve(100, 100, || false).unwrap());
        account.reserve(100, 100, || false).unwrap().commit();
        assert_eq!(gpu.held_bytes(), 100);
    }

    #[test]
    fn the_peak_is_of_what_was_held_and_not_of_what_the_driver_refused() {
        let ledger = ledger(2);
        let (one, two) = (ledger.account(0).unwrap(), ledger.account(1).unwrap());
        one.reserve(40, 100, || false).unwrap().commit();
        drop(two.reserve(60, 100, || false).unwrap());
        assert_eq!(ledger.peak_bytes(), 40, "the driver had none");
        two.reserve(50, 100, || false).unwrap().commit_part(10);
        assert_eq!(ledger.peak_bytes(), 50, "it took less than it might have");
        one.release(40);
        two.reserve(30, 100, || false).unwrap().commit();
        assert_eq!((ledger.held_bytes(), ledger.peak_bytes()), (40, 50));
    }

    #[test]
    fn a_sum_that_was_read_while_the_slot_was_emptied_is_no_peak() {
        let ledger = ledger(1);
        let account = ledger.account(0).unwrap();
        account.slot.promised_bytes.fetch_add(30, Ordering::SeqCst);
        Reservation { account, bytes: 30, sum_bytes: 0 }.commit_part(10);
        assert_eq!((ledger.held_bytes(), ledger.peak_bytes()), (10, 0));
    }

    #[test]
    fn a_request_larger_than_the_limit_or_than_any_number_is_refused_at_once() {
        let gpu = ledger(1);
        let account = gpu.account(0).unwrap();
        account.reserve(10, 100, || false).unwrap().commit();
        for bytes in [91, 101, u64::MAX] {
            assert_eq!(account.reserve(bytes, 100, || false).unwrap_err(), Refused { held_bytes: 10 });
        }
        account.reserve(0, 10, || false).unwrap().commit();
    }

    #[test]
    fn releasing_more_than_is_held_stops_at_zero() {
        let gpu = ledger(1);
        let account = gpu.account(0).unwrap();
        account.charge(10);
        account.release(11);
        assert_eq!(account.held_bytes(), 0);
    }

    #[test]
    fn a_dead_sessions_memory_is_free_for_the_others() {
        let gpu = ledger(2);
        gpu.account(0).unwrap().reserve(70, 100, || false).unwrap().commit();
        core::mem::forget(gpu.account(0).unwrap().reserve(30, 100, || false).unwrap());
        assert_eq!(gpu.clear(0), Some(70));
        gpu.account(1).unwrap().reserve(100, 100, || false).unwrap().commit();
    }

    #[test]
    fn a_request_that_only_unfinished_ones_block_waits_for_them() {
        let gpu = ledger(2);
        let mut other = Some(gpu.account(0).unwrap().reserve(100, 100, || false).unwrap());
        let reservation = gpu
            .account(1)
            .unwrap()
            .reserve(100, 100, || {
                drop(other.take());
                true
            })
            .unwrap();
        reservation.commit();
        assert_eq!(gpu.held_bytes(), 100);
    }

    #[test]
    fn whoever_waits_no_longer_needs_nothing_and_the_least_need_counts() {
        let gpu = ledger(2);
        let (a, b) = (gpu.account(0).unwrap(), gpu.account(1).unwrap());
        assert!(a.wait_for_room(1).is_none(), "nobody can make room");
        assert!(a.wait_for_room(0).is_none(), "nobody makes room for nothing");
        gpu.set_obtainable(100);
        assert!(a.wait_for_room(101).is_none());
        assert_eq!(gpu.needed_bytes(), 0);
        let (large, small) = (a.wait_for_room(90).unwrap(), b.wait_for_room(10).unwrap());
        assert_eq!(gpu.needed_bytes(), 10);
        drop(small);
        assert_eq!(gpu.needed_bytes(), 90);
        assert!(!large.is_over());
        gpu.announce_room();
        assert!(large.is_over());
        drop(large);
        assert_eq!(gpu.needed_bytes(), 0);
    }

    #[test]
    fn threads_of_a_session_that_wait_on_say_so_again() {
        let gpu = ledger(1);
        gpu.set_obtainable(100);
        let account = gpu.account(0).unwrap();
        let (one, other) = (account.wait_for_room(90).unwrap(), account.wait_for_room(20).unwrap());
        assert_eq!(gpu.needed_bytes(), 20);
        drop(other);
        assert!(one.goes_on());
        assert_eq!(gpu.needed_bytes(), 90);
        gpu.set_obtainable(80);
        assert!(!one.goes_on(), "so much is not to be had any more");
    }

    #[test]
    fn a_session_that_dies_waiting_needs_nothing() {
        let gpu = ledger(1);
        gpu.set_obtainable(100);
        core::mem::forget(gpu.account(0).unwrap().wait_for_room(90).unwrap());
        gpu.clear(0).unwrap();
        assert_eq!(gpu.needed_bytes(), 0);
    }

    #[test]
    fn what_is_leaving_counts_and_refuses_nobody() {
        let gpu = ledger(2);
        gpu.account(0).unwrap().reserve(100, 100, || false).unwrap().commit();
        let mut leaving = Some(gpu.account(0).unwrap().leave(100));
        assert_eq!(gpu.held_bytes(), 100);
        let mut looks = 0;
        let reservation = gpu.account(1).unwrap().reserve(100, 100, || {
            looks += 1;
            leaving.take().into_iter().for_each(Leaving::finish);
            true
        });
        reservation.unwrap().commit();
        assert_eq!((looks, gpu.held_bytes()), (1, 100));
    }

    #[test]
    fn what_the_driver_freed_of_what_was_leaving_is_gone_and_the_rest_stays() {
        let gpu = ledger(1);
        let account = gpu.account(0).unwrap();
        account.charge(100);
        let leaving = account.leave(70);
        assert_eq!((gpu.held_bytes(), gpu.staying_at_one_moment()), (100, Some(30)));
        leaving.finish_part(40);
        assert_eq!((gpu.held_bytes(), gpu.staying_at_one_moment()), (60, Some(60)));
        account.leave(20).finish_part(50);
        assert_eq!(
            (gpu.held_bytes(), gpu.staying_at_one_moment()),
            (40, Some(40)),
            "no more than was leaving"
        );
    }

    #[test]
    fn what_the_driver_did_not_free_stays_and_refuses() {
        let gpu = ledger(1);
        let account = gpu.account(0).unwrap();
        account.charge(60);
        drop(account.leave(60));
        assert_eq!(account.reserve(50, 100, || true).unwrap_err(), Refused { held_bytes: 60 });
        account.release(60);
        account.reserve(100, 100, || false).unwrap().commit();
    }

    #[test]
    fn an_account_counts_on_when_its_words_begin_anew() {
        const LIMIT: u64 = 100;
        for distance in (0..=130).step_by(10) {
            let gpu = ledger(2);
            let slot = &gpu.slots[0];
            for word in [&slot.taken_bytes, &slot.leaving_bytes, &slot.released_bytes, &slot.promised_bytes] {
                word.store(0_u64.wrapping_sub(distance), Ordering::SeqCst);
            }
            let [account, other] = [0, 1].map(|slot| gpu.account(slot).unwrap());
            for round in 0..3 {
                let at = format!("{distance} before, round {round}");
                account.reserve(60, LIMIT, || false).expect(&at).commit();
                assert_eq!((gpu.held_bytes(), gpu.staying_at_one_moment()), (60, Some(60)), "{at}");
                assert!(other.reserve(41, LIMIT, || false).is_err(), "{at}");
                drop(account.reserve(40, LIMIT, || false).expect(&at));
                assert_eq!(account.pending_bytes(), 0, "{at}");
                drop(account.leave(60));
                let leaving = account.leave(60);
                assert_eq!((gpu.held_bytes(), gpu.staying_at_one_moment()), (60, Some(0)), "{at}");
                leaving.finish();
                account.release(1);
                assert_eq!(gpu.held_bytes(), 0, "{at}");
            }
            account.charge(70);
            assert_eq!(gpu.clear(0), Some(70), "{distance} before");
            other.reserve(LIMIT, LIMIT, || false).unwrap().commit();
        }
    }

    #[test]
    fn what_a_request_needed_less_than_it_was_promised_goes_back() {
        let gpu = ledger(1);
        let account = gpu.account(0).unwrap();
        account.reserve(100, 100, || false).unwrap().commit_part(30);
        assert_eq!((account.held_bytes(), account.pending_bytes()), (30, 0));
        account.reserve(70, 100, || false).unwrap().commit_part(80);
        assert_eq!((account.held_bytes(), account.pending_bytes()), (100, 0), "no more than was promised");
    }

    #[test]
    fn no_request_is_so_large_that_an_account_could_lose_count() {
        let gpu = ledger(1);
        let account = gpu.account(0).unwrap();
        for bytes in [MOST_BYTES + 1, 1 << 63, u64::MAX - 1] {
            assert!(account.reserve(bytes, u64::MAX - 1, || false).is_err());
        }
        account.reserve(MOST_BYTES, u64::MAX - 1, || false).unwrap().commit();
        assert_eq!(gpu.held_bytes(), MOST_BYTES);
    }

    #[test]
    fn slots_that_nobody_has_are_looked_at_no_more_unless_something_is_in_them() {
        let gpu = ledger(8);
        gpu.account(5).unwrap().charge(10);
        gpu.shrink(3..7);
        assert_eq!(gpu.slots(), 8, "those behind are in use");
        gpu.shrink(3..8);
        assert_eq!((gpu.slots(), gpu.held_bytes()), (6, 10), "what is held stays counted");
        gpu.clear(5).unwrap();
        core::mem::forget(gpu.account(4).unwrap().reserve(20, 100, || false).unwrap());
        gpu.shrink(3..6);
        assert_eq!(gpu.slots(), 5, "and so does what is promised");
        gpu.clear(4).unwrap();
        gpu.shrink(3..5);
        assert_eq!(gpu.slots(), 3);
        gpu.shrink(7..gpu.slots());
        assert_eq!(gpu.slots(), 3, "it opens none");
        gpu.open(6).unwrap();
        gpu.account(6).unwrap().charge(5);
        assert_eq!(gpu.held_bytes(), 5);
    }

    #[test]
    fn a_slot_count_written_by_a_hostile_session_stays_in_bounds() {
        let gpu = ledger(1);
        gpu.slots_used.store(u32::MAX, Ordering::SeqCst);
        assert_eq!(gpu.held_bytes(), 0);
        assert!(gpu.account(MAX_SESSIONS).is_none());
        assert!(gpu.open(MAX_SESSIONS).is_none());
    }

    #[test]
    fn racing_threads_never_pass_the_limit_and_fill_it_exactly() {
        const THREADS: u64 = 8;
        const LIMIT: u64 = 1_000;
        let gpu = ledger(2);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let gpu = &gpu;
                scope.spawn(move || {
                    let account = gpu.account(thread as usize % 2).unwrap();
                    for round in 0..2_000 {
                        let bytes = 1 + (round * 7 + thread * 13) % 400;
                        if let Ok(reservation) = account.reserve(bytes, LIMIT, || {
                            std::thread::yield_now();
                            true
                        }) {
                            reservation.commit();
                            assert!(gpu.staying_at_one_moment().is_none_or(|held| held <= LIMIT));
                            account.release(bytes);
                        }
                    }
                });
            }
        });
        assert_eq!(gpu.held_bytes(), 0);
        gpu.account(0).unwrap().reserve(LIMIT, LIMIT, || false).unwrap().commit();
    }

    #[test]
    fn a_slot_that_was_emptied_under_its_owner_counts_what_is_taken_there_afterwards() {
        const LIMIT: u64 = 100;
        for is_committed in [true, false] {
            let gpu = ledger(2);
            let [victim, other] = [0, 1].map(|slot| gpu.account(slot).unwrap());
            victim.charge(20);
            let reservation = victim.reserve(30, LIMIT, || false).unwrap();
            gpu.clear(0).unwrap();
            if is_committed {
                reservation.commit();
            } else {
                drop(reservation);
            }
            let held = if is_committed { 30 } else { 0 };
            assert_eq!((gpu.held_bytes(), victim.pending_bytes()), (held, 0));
            let later = victim.reserve(10, LIMIT, || false).unwrap();
            assert!(other.reserve(LIMIT - held - 10 + 1, LIMIT, || false).is_err());
            other.reserve(LIMIT - held - 10, LIMIT, || false).unwrap().commit();
            later.commit();
            assert_eq!(gpu.held_bytes(), LIMIT);
        }
    }
}
