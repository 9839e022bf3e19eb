//! The ledger: device memory held by all sessions of one tenant, on each GPU, exact under races and safe against kills.
//!
//! There is no shared total to repair. Each session has a slot that it alone changes, and what the tenant holds is the sum of
//! the slots. A killed session's slot is cleared by the controller; a reservation that was under way dies with it.
//!
//! A slot has five words: `promised`, all bytes that were ever asked for and not withdrawn, `taken`, those of them that allocations took, `leaving`, those
//! that the driver was told to take back, `stayed`, those of them that it did not, and `released`, those that it did take back. A session holds what it took less what was
//! released; what is leaving and did not stay is on its way out, and what is promised and not taken is being asked for: pending. The words are sums over a life, modulo
//! 2⁶⁴; what counts is how far one is ahead of another.
//!
//! *The limit is never passed.* [`Account::reserve`] first adds to `promised` and then looks at the sum of what is promised and not released. Of several
//! that would pass the limit together, the one whose addition comes last in the (sequentially consistent) order sees all the others:
//! nothing moves when [`Reservation::commit`] adds to `taken`. `released` is read before `promised`, so nothing is seen given back that was not seen promised.
//!
//! *Nothing is refused that would have fitted.* While others' pending or leaving bytes are what is in the way, a reservation steps back and tries
//! again, since those may yet be withdrawn or given back; it is refused only by what is held, and stays, at one moment. Slots are read one by one, and
//! bytes that left one session and that another took meanwhile would be counted twice: so `leaving`, which only grows, is read again, and if none
//! of it has grown, at the end of the first reading at least as much stayed as was seen.

use core::ops::Range;

use crate::MAX_GPUS;
use crate::page::{Head, Kind, Page};
use crate::sync::{AtomicU32, AtomicU64, Ordering, spin_hint};

/// Sessions that one tenant can have at a time.
#[cfg(not(loom))]
pub const MAX_SESSIONS: usize = 512;
/// The model checker follows few.
#[cfg(loom)]
pub const MAX_SESSIONS: usize = 3;

/// Tries after which the caller is asked whether to go on.
#[cfg(not(loom))]
const SPINS: u32 = 64;
/// Under the model checker one retry shows the path.
#[cfg(loom)]
const SPINS: u32 = 1;

/// More than any GPU has, bytes. What is asked for in one request is at most this, so that nothing comes near half of 2⁶⁴.
const MOST_BYTES: u64 = 1 << 48;

/// How far `word` is ahead of `other`; nothing, if it is behind.
#[inline(always)]
fn ahead(word: u64, other: u64) -> u64 {
    let distance = word.wrapping_sub(other);
    if distance.cast_signed() < 0 { 0 } else { distance }
}

/// Alone on its cache line: each is another process's to change.
#[derive(Debug)]
#[repr(C, align(64))]
struct Slot {
    taken_bytes: AtomicU64,
    leaving_bytes: AtomicU64,
    released_bytes: AtomicU64,
    promised_bytes: AtomicU64,
    /// What a thread of the session was refused by the driver for lack of memory on the GPU and waits for; 0: none does.
    needed_bytes: AtomicU64,
    /// Not 0: its owner holds a lock that ends with it ([`LedgerGpu::set_locked`]).
    is_locked: AtomicU64,
    stayed_bytes: AtomicU64,
}

impl Slot {
    /// What of it stays. `leaving` first: see the module.
    fn staying_bytes(&self) -> u64 {
        let leaving = self.leaving_bytes.load(Ordering::SeqCst);
        ahead(self.ever_staying_bytes(), leaving)
    }

    /// What was taken, and what was leaving and stayed.
    fn ever_staying_bytes(&self) -> u64 {
        let taken = self.taken_bytes.load(Ordering::SeqCst);
        taken.wrapping_add(self.stayed_bytes.load(Ordering::SeqCst))
    }

    /// `bytes`, or all that stays, are leaving. Returns how many.
    #[inline(always)]
    fn leave(&self, bytes: u64) -> u64 {
        Self::move_up(&self.leaving_bytes, bytes, || self.ever_staying_bytes())
    }

    /// `bytes` that were leaving stay.
    fn stay(&self, bytes: u64) {
        if bytes != 0 {
            self.stayed_bytes.fetch_add(bytes, Ordering::SeqCst);
        }
    }

    /// What the session holds. `released` first: see the module.
    fn held_bytes(&self) -> u64 {
        let released = self.released_bytes.load(Ordering::SeqCst);
        ahead(self.taken_bytes.load(Ordering::SeqCst), released)
    }

    /// What is held or being asked for. `released` first: see the module.
    fn held_and_pending_bytes(&self) -> u64 {
        let released = self.released_bytes.load(Ordering::SeqCst);
        ahead(self.promised_bytes.load(Ordering::SeqCst), released)
    }

    /// What is being asked for. `taken` first: what is committed meanwhile counts still, rather than something that is asked for not at all.
    fn pending_bytes(&self) -> u64 {
        let taken = self.taken_bytes.load(Ordering::SeqCst);
        ahead(self.promised_bytes.load(Ordering::SeqCst), taken)
    }

    /// `bytes` that were promised are taken.
    #[inline(always)]
    fn take(&self, bytes: u64) {
        let taken = self.taken_bytes.fetch_add(bytes, Ordering::SeqCst).wrapping_add(bytes);
        // Only where the slot was emptied although its owner lives.
        if ahead(taken, self.promised_bytes.load(Ordering::SeqCst)) != 0 {
            self.promise_up_to(taken);
        }
    }

    #[cold]
    fn promise_up_to(&self, taken: u64) {
        let behind = |promised: u64| (ahead(taken, promised) != 0).then_some(taken);
        // An error says that it is as much by now.
        let _ = self.promised_bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, behind);
    }

    /// `bytes` that were promised are not needed. What was taken stays promised: a slot is in memory that other processes can write.
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

    /// Gives back `bytes`, or all there is. Returns how many.
    #[inline(always)]
    fn release(&self, bytes: u64) -> u64 {
        Self::move_up(&self.released_bytes, bytes, || self.taken_bytes.load(Ordering::SeqCst))
    }

    /// Adds `bytes` to `word`, which stays below `most`: a slot is in memory that other processes can write. Returns how many.
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

/// One tenant's memory on one GPU.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct LedgerGpu {
    /// Slots in use are all below this; raised by the controller before a slot is given out.
    slots_used: AtomicU32,
    /// Counts the times at which the controller made room.
    rooms_made: AtomicU32,
    /// The most that was held at once, as far as was seen.
    peak_bytes: AtomicU64,
    /// How much memory others' could make room for, bytes: whoever needs more waits in vain. 0: nobody can make room.
    obtainable_bytes: AtomicU64,
    /// Counts the times at which another tenant began to wait for memory that this one has.
    presses: AtomicU32,
    slots: [Slot; MAX_SESSIONS],
}

/// One tenant's memory on every GPU.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct LedgerPage {
    head: Head,
    gpus: [LedgerGpu; MAX_GPUS],
    host: LedgerGpu,
}

// SAFETY: repr(C), head first, atomics only, and its kind is its own.
unsafe impl Page for LedgerPage {
    const KIND: Kind = Kind::Ledger;
    fn head(&self) -> &Head {
        &self.head
    }
}

impl LedgerPage {
    /// The ledger of a GPU, if there is such a GPU.
    pub fn gpu(&self, gpu: usize) -> Option<&LedgerGpu> {
        self.gpus.get(gpu)
    }

    /// The same of the host's memory: what it has promised, as long as it has not given it. In a page of an older controller nobody has a slot there.
    pub fn host(&self) -> &LedgerGpu {
        &self.host
    }

    /// The ledgers of the first `gpus` GPUs, and that of the host.
    pub fn all(&self, gpus: usize) -> impl Iterator<Item = &LedgerGpu> {
        self.gpus.iter().take(gpus).chain([&self.host])
    }
}

/// A reservation that would pass the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// What all sessions of the tenant held at that moment, bytes.
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
    /// The most that the tenant held at once, bytes. Under a limit nothing is missed, and what requests of other threads were promised meanwhile counts; else
    /// it is as much as was seen.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes.load(Ordering::Relaxed)
    }

    /// So much was held at one moment.
    #[inline]
    pub fn note_peak(&self, bytes: u64) {
        // Nothing follows from it, so it is nothing for the model checker to interleave.
        if cfg!(not(loom)) && bytes > self.peak_bytes.load(Ordering::Relaxed) {
            self.peak_bytes.fetch_max(bytes, Ordering::Relaxed);
        }
    }

    /// What sessions wait for that the driver did not have, bytes: the least of it, since that is to be had first; 0: none waits.
    pub fn needed_bytes(&self) -> u64 {
        let needs = self.used().iter().map(|slot| slot.needed_bytes.load(Ordering::SeqCst));
        needs.filter(|bytes| *bytes > 0).min().unwrap_or(0)
    }

    /// Says for how much it makes sense to wait. The controller's to call.
    pub fn set_obtainable(&self, bytes: u64) {
        self.obtainable_bytes.store(bytes, Ordering::SeqCst);
    }

    /// Lets whoever waits ask the driver again. The controller's to call, once there is room.
    pub fn announce_room(&self) {
        self.rooms_made.fetch_add(1, Ordering::SeqCst);
    }

    /// Another tenant waits for memory that this one has. The controller's to call.
    pub fn press(&self) {
        self.presses.fetch_add(1, Ordering::SeqCst);
    }

    /// Opens `slot` for a session, empty. The controller's to call, before it tells the session its slot.
    ///
    /// Returns `None` if there is no such slot.
    pub fn open(&self, slot: usize) -> Option<()> {
        self.clear(slot)?;
        self.slots_used.fetch_max(slot as u32 + 1, Ordering::SeqCst);
        Some(())
    }

    /// Empties the slot of a session that is dead. The controller's to call, once the process is gone.
    ///
    /// Returns the bytes it held, or `None` if there is no such slot.
    pub fn clear(&self, slot: usize) -> Option<u64> {
        let slot = self.slots.get(slot)?;
        slot.is_locked.store(0, Ordering::SeqCst);
        slot.promised_bytes.store(slot.taken_bytes.load(Ordering::SeqCst), Ordering::SeqCst);
        slot.needed_bytes.store(0, Ordering::SeqCst);
        let freed_bytes = slot.release(u64::MAX);
        // Whatever its owner wrote there.
        slot.leaving_bytes.store(slot.ever_staying_bytes(), Ordering::SeqCst);
        Some(freed_bytes)
    }

    /// Has nobody look any more at the `unused` slots, the last in use, as far as nothing is in them: nobody has them, nor writes in them any more. The
    /// controller's to call; while it does it opens none of them.
    pub fn shrink(&self, unused: Range<usize>) {
        let now = self.slots_used.load(Ordering::SeqCst);
        let used = self.used();
        let is_empty = |slot: &Slot| slot.held_and_pending_bytes() == 0;
        let filled = used.iter().rposition(|slot| !is_empty(slot)).map_or(0, |last| last + 1);
        let still_used = filled.max(unused.start);
        if used.len() == unused.end && still_used < unused.end {
            // An error says that others behind them were opened meanwhile.
            let _ =
                self.slots_used.compare_exchange(now, still_used as u32, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// The owner of `slot` holds a lock on the byte of that number of the ledger's file, which the kernel takes away when it dies.
    pub fn set_locked(&self, slot: usize) {
        if let Some(slot) = self.slots.get(slot) {
            slot.is_locked.store(1, Ordering::SeqCst);
        }
    }

    /// Slots in which something is held or asked for, and whose owners are dead unless they hold their locks.
    pub fn suspects(&self) -> impl Iterator<Item = usize> {
        let is_suspect = |slot: &Slot| {
            let is_anything = slot.held_and_pending_bytes() != 0;
            is_anything && slot.is_locked.load(Ordering::SeqCst) != 0
        };
        self.used().iter().enumerate().filter(move |(_, slot)| is_suspect(slot)).map(|(number, _)| number)
    }

    /// How many slots are or were in use: none behind them holds anything.
    pub fn slots(&self) -> usize {
        self.used().len()
    }

    /// What the tenant holds, bytes. While sessions take and give back it is right for each, not for all of them at one moment.
    pub fn held_bytes(&self) -> u64 {
        self.used().iter().fold(0, |sum, slot| sum.saturating_add(slot.held_bytes()))
    }

    /// What the tenant held at least at some moment of the call, leaving bytes aside; `None` if more began to leave meanwhile.
    pub fn staying_at_one_moment(&self) -> Option<u64> {
        let leaving = || {
            let words = self.used().iter().map(|slot| slot.leaving_bytes.load(Ordering::SeqCst));
            // Each only grows, so their sum, modulo 2⁶⁴, is the same only if all are.
            words.fold(0_u64, u64::wrapping_add)
        };
        let before = leaving();
        let staying_bytes =
            self.used().iter().fold(0, |sum: u64, slot| sum.saturating_add(slot.staying_bytes()));
        (leaving() == before).then_some(staying_bytes)
    }

    /// The account of the session that owns `slot`, if there is such a slot.
    pub fn account(&self, slot: usize) -> Option<Account<'_>> {
        Some(Account { gpu: self, slot: self.slots.get(slot)? })
    }

    fn used(&self) -> &[Slot] {
        // Bounded: the word lies in memory that every session of the tenant can write.
        let used = (self.slots_used.load(Ordering::SeqCst) as usize).min(MAX_SESSIONS);
        &self.slots[..used]
    }

    /// What the tenant holds or asks for, bytes: what was reserved under a limit, before that was seen to be lowered, is in it.
    pub fn held_and_pending_bytes(&self) -> u64 {
        self.used().iter().fold(0, |sum, slot| sum.saturating_add(slot.held_and_pending_bytes()))
    }
}

/// What one session holds on one GPU.
#[derive(Debug, Clone, Copy)]
pub struct Account<'a> {
    gpu: &'a LedgerGpu,
    slot: &'a Slot,
}

impl<'a> Account<'a> {
    /// Reserves `bytes` if the tenant then holds at most `limit_bytes`. To be called before the driver is asked for them.
    /// While only others' unfinished requests and frees are in the way, `goes_on` is asked between tries whether to try again; it may sleep.
    ///
    /// # Errors
    /// [`Refused`] when what is held leaves no room, or when `goes_on` gave up.
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
    pub fn reserve_at_once(self, bytes: u64, limit_bytes: u64) -> Option<Reservation<'a>> {
        // What can never fit is not even announced: it would be in the others' way.
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

    /// [`Account::reserve`] from where something was in the way.
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

    /// Charges `bytes` that the driver has taken already, limit or not: what could not be asked for beforehand.
    pub fn charge(self, bytes: u64) {
        self.slot.promised_bytes.fetch_add(bytes, Ordering::SeqCst);
        self.slot.take(bytes);
    }

    /// The driver is about to be told to take `bytes` back that were committed or charged. Until it did they count, and stand in nobody's way for good.
    #[inline(always)]
    pub fn leave(self, bytes: u64) -> Leaving<'a> {
        Leaving { account: self, bytes: self.slot.leave(bytes) }
    }

    /// Gives back `bytes` that were committed or charged and that the driver has freed.
    pub fn release(self, bytes: u64) {
        self.leave(bytes).finish();
    }

    /// The session was refused `bytes` by the driver, within its limit: others have the GPU's memory. `None` if nobody can make so much room.
    pub fn wait_for_room(self, bytes: u64) -> Option<Waiting<'a>> {
        let waiting =
            Waiting { account: self, bytes, rooms_made: self.gpu.rooms_made.load(Ordering::SeqCst) };
        waiting.goes_on().then_some(waiting)
    }

    /// How often another tenant began to wait for memory that this one has.
    pub fn presses(self) -> u32 {
        self.gpu.presses.load(Ordering::SeqCst)
    }

    /// What this session holds, bytes.
    pub fn held_bytes(self) -> u64 {
        self.slot.held_bytes()
    }

    /// What is promised to this session's requests that are under way, bytes.
    pub fn pending_bytes(self) -> u64 {
        self.slot.pending_bytes()
    }

    /// What the whole tenant holds, bytes.
    pub fn tenant_held_bytes(self) -> u64 {
        self.gpu.held_bytes()
    }
}

/// A thread that waits for room. Dropped, it does not any more.
#[derive(Debug)]
#[must_use = "dropping it says that the session waits no longer"]
pub struct Waiting<'a> {
    account: Account<'a>,
    bytes: u64,
    rooms_made: u32,
}

impl Waiting<'_> {
    /// Whether room was made since this began: the driver may be asked again.
    pub fn is_over(&self) -> bool {
        self.account.gpu.rooms_made.load(Ordering::SeqCst) != self.rooms_made
    }

    /// Whether it makes sense to wait on. To be asked now and then: it says again what is needed, since the session's other threads, which have
    /// the word in common, take theirs away.
    pub fn goes_on(&self) -> bool {
        // Who needs nothing would be made no room for, and wait for ever.
        if self.bytes == 0 || self.bytes > self.account.gpu.obtainable_bytes.load(Ordering::SeqCst) {
            return false;
        }
        let word = &self.account.slot.needed_bytes;
        let less = |now: u64| (now == 0 || self.bytes < now).then_some(self.bytes);
        // An error says that less is needed already.
        let _ = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        true
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.account.slot.needed_bytes.store(0, Ordering::SeqCst);
    }
}

/// Bytes promised to a request that the driver has not answered yet. Dropped, they go back.
#[derive(Debug)]
#[must_use = "commit it once the driver has allocated; dropping gives the bytes back"]
pub struct Reservation<'a> {
    account: Account<'a>,
    bytes: u64,
    /// With what else was held or promised when it was made: what the tenant holds once this is held.
    sum_bytes: u64,
}

impl<'a> Reservation<'a> {
    /// What was promised, bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes `bytes`, or all there are, out of it as a reservation of their own.
    pub fn split_off(&mut self, bytes: u64) -> Reservation<'a> {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Reservation { account: self.account, bytes, sum_bytes: self.sum_bytes }
    }

    /// The driver allocated `bytes` of what was promised: they are held, and the rest goes back. It goes first: it never counts as what stays.
    pub fn commit_part(mut self, bytes: u64) {
        if bytes < self.bytes {
            let less = self.bytes - bytes;
            self.account.slot.withdraw(less);
            self.bytes = bytes;
            // It was summed over words that others can write: it may be less than this alone.
            self.sum_bytes = self.sum_bytes.saturating_sub(less);
        }
        self.commit();
    }

    /// The driver allocated: what was promised is held.
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

/// Bytes that the driver was told to take back. Dropped, they stay after all.
#[derive(Debug)]
#[must_use = "finish it once the driver has freed; dropping means that it did not"]
pub struct Leaving<'a> {
    account: Account<'a>,
    bytes: u64,
}

impl Leaving<'_> {
    /// The driver freed them.
    #[inline(always)]
    pub fn finish(self) {
        self.account.slot.release(self.bytes);
        core::mem::forget(self);
    }

    /// The driver freed `bytes` of them, or all, and not the rest.
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
    fn a_reservation_that_is_split_is_held_or_goes_back_part_by_part() {
        let gpu = ledger(1);
        let account = gpu.account(0).unwrap();
        let mut whole = account.reserve(100, 100, || false).unwrap();
        let part = whole.split_off(30);
        assert_eq!((whole.bytes(), part.bytes(), account.pending_bytes()), (70, 30, 100));
        part.commit();
        assert_eq!((account.held_bytes(), account.pending_bytes()), (30, 70));
        drop(whole.split_off(20));
        drop(whole.split_off(u64::MAX));
        assert_eq!((whole.bytes(), account.pending_bytes()), (0, 0));
        whole.commit();
        assert_eq!(gpu.held_bytes(), 30);
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
