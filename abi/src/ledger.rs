//! The ledger: the device memory that all sessions of a tenant hold on each GPU. The ledger stays
//! exact when sessions race and when a process is killed.
//!
//! The ledger has no shared total. Each session has a slot, and only this session changes the
//! slot's counts. The tenant holds the sum of its slots. If a session is killed, the daemon clears
//! its slot, and with the slot any unfinished reservation.
//!
//! Five words of a slot count bytes:
//!
//! - `promised`: all bytes that the session ever asked for and did not withdraw;
//! - `taken`: the part of `promised` that became allocations;
//! - `leaving`: the part of `taken` that the session told the driver to free;
//! - `stayed`: the part of `leaving` that the driver did not free;
//! - `released`: the part of `leaving` that the driver freed.
//!
//! From these words, the module computes three amounts. A session *holds* `taken` less `released`.
//! Of the held bytes, `taken` plus `stayed` less `leaving` are *staying*. `promised` less `taken`
//! are *pending*. Each word sums up the whole life of the slot, modulo 2⁶⁴, so only differences
//! between words count.
//!
//! *The tenant never passes its limit.* [`Account::reserve`] first adds to `promised`. Then the
//! method reads the sum of `promised` less `released` over all slots. All additions have one
//! (sequentially consistent) order. If several requests together would exceed the limit, the
//! request with the last addition sees all others. [`Reservation::commit`] adds to `taken`, which
//! does not change that sum. The sum reads `released` before `promised`, so it never counts a
//! release without its promise.
//!
//! *No request that fits is refused.* Pending and leaving bytes of other requests can still vanish.
//! If only such bytes are in the way, a request withdraws its promise and tries again. A request is
//! refused in two cases only. Either staying bytes were in its way, all at one moment, or its
//! caller stopped trying.
//!
//! A reader reads the slots one by one. If one session frees bytes while another session takes
//! them, the reader could count them twice. So at the end, the reader reads `leaving` again, which
//! only grows. If `leaving` has not grown, all counted bytes were staying at one moment: when the
//! first reading of `leaving` ended.

use core::ops::Range;

use crate::MAX_GPUS;
use crate::page::{Head, Kind, Page};
use crate::sync::{AtomicU32, AtomicU64, Ordering, spin_hint};

/// The most sessions that a tenant can have at a time.
#[cfg(not(loom))]
pub const MAX_SESSIONS: usize = 512;
/// The most sessions under the model checker, which cannot follow many sessions.
#[cfg(loom)]
pub const MAX_SESSIONS: usize = 3;

/// The number of tries after which [`Account::reserve`] asks its caller whether to go on.
#[cfg(not(loom))]
const SPINS: u32 = 64;
/// The number of tries under the model checker, which needs only one retry to see the path.
#[cfg(loom)]
const SPINS: u32 = 1;

/// The most bytes that one request can ask for, so that no word comes near half of 2⁶⁴. No GPU has
/// so much memory.
const MOST_BYTES: u64 = 1 << 48;

/// Returns how far `word` is ahead of `other`, or 0 if it is behind.
#[inline(always)]
fn ahead(word: u64, other: u64) -> u64 {
    let distance = word.wrapping_sub(other);
    if distance.cast_signed() < 0 { 0 } else { distance }
}

/// The counts of a session on one GPU. Each slot has its own cache line, because different
/// processes change different slots.
#[derive(Debug)]
#[repr(C, align(64))]
struct Slot {
    taken_bytes: AtomicU64,
    leaving_bytes: AtomicU64,
    released_bytes: AtomicU64,
    promised_bytes: AtomicU64,
    /// Bytes for which a thread of the session waits, because the driver lacked GPU memory; 0 if no
    /// thread waits.
    needed_bytes: AtomicU64,
    /// Not 0 if the session holds a lock that the kernel releases when the process dies
    /// ([`LedgerGpu::set_locked`]).
    is_locked: AtomicU64,
    stayed_bytes: AtomicU64,
}

impl Slot {
    /// Returns the staying bytes: held bytes that the session did not tell the driver to free.
    /// Reads `leaving` first, so that the result misses no byte that begins to leave during the
    /// call.
    fn staying_bytes(&self) -> u64 {
        let leaving = self.leaving_bytes.load(Ordering::SeqCst);
        ahead(self.ever_staying_bytes(), leaving)
    }

    /// Returns the sum of `taken` and `stayed`.
    fn ever_staying_bytes(&self) -> u64 {
        let taken = self.taken_bytes.load(Ordering::SeqCst);
        taken.wrapping_add(self.stayed_bytes.load(Ordering::SeqCst))
    }

    /// Marks `bytes` as leaving, or all staying bytes if there are fewer. Returns the number of
    /// bytes marked.
    #[inline(always)]
    fn leave(&self, bytes: u64) -> u64 {
        Self::move_up(&self.leaving_bytes, bytes, || self.ever_staying_bytes())
    }

    /// Records that the driver did not free `bytes` of the bytes that [`Self::leave`] marked.
    fn stay(&self, bytes: u64) {
        if bytes != 0 {
            self.stayed_bytes.fetch_add(bytes, Ordering::SeqCst);
        }
    }

    /// Returns the bytes that the session holds: `taken` less `released`. Reads `released` first,
    /// so that the result never counts a release without the allocation before it.
    fn held_bytes(&self) -> u64 {
        let released = self.released_bytes.load(Ordering::SeqCst);
        ahead(self.taken_bytes.load(Ordering::SeqCst), released)
    }

    /// Returns the held and pending bytes: `promised` less `released`. Reads `released` first, so
    /// that the result never counts a release without its promise.
    fn held_and_pending_bytes(&self) -> u64 {
        let released = self.released_bytes.load(Ordering::SeqCst);
        ahead(self.promised_bytes.load(Ordering::SeqCst), released)
    }

    /// Returns the pending bytes. Reads `taken` first. So the result still includes a reservation
    /// that its session commits during the call. In the opposite order, the result could leave out
    /// pending bytes.
    fn pending_bytes(&self) -> u64 {
        let taken = self.taken_bytes.load(Ordering::SeqCst);
        ahead(self.promised_bytes.load(Ordering::SeqCst), taken)
    }

    /// Records that `bytes` of the promised bytes became allocations.
    #[inline(always)]
    fn take(&self, bytes: u64) {
        let taken = self.taken_bytes.fetch_add(bytes, Ordering::SeqCst).wrapping_add(bytes);
        // If another process cleared the slot while the slot's owner was alive, `taken` can be
        // ahead of `promised`.
        if ahead(taken, self.promised_bytes.load(Ordering::SeqCst)) != 0 {
            self.promise_up_to(taken);
        }
    }

    #[cold]
    fn promise_up_to(&self, taken: u64) {
        let behind = |promised: u64| (ahead(taken, promised) != 0).then_some(taken);
        // An error means that another thread has raised `promised` far enough.
        let _ = self.promised_bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, behind);
    }

    /// Withdraws `bytes` of the promise, because the session does not need them. Withdraws no more
    /// than the pending bytes, because other processes can write the slot too.
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

    /// Records that `bytes` were freed, or all held bytes if there are fewer. Returns the number of
    /// bytes recorded.
    #[inline(always)]
    fn release(&self, bytes: u64) -> u64 {
        Self::move_up(&self.released_bytes, bytes, || self.taken_bytes.load(Ordering::SeqCst))
    }

    /// Adds `bytes` to `word`, but not past `most`. The bound is necessary, because other processes
    /// can write the slot too. Returns the number of bytes added.
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
    /// All slots in use have numbers below this number. The daemon raises the number before it
    /// gives out a slot.
    slots_used: AtomicU32,
    /// The number of times that the daemon made room.
    rooms_made: AtomicU32,
    /// The most bytes that the tenant was seen to hold at once.
    peak_bytes: AtomicU64,
    /// The most memory for which the daemon can make room, bytes; 0 if the daemon can make no room.
    /// No session waits for more memory than this. In the ledger of the host's memory: the most
    /// memory that the tenant's sessions may hold beside other tenants, bytes; 0 without a bound.
    obtainable_bytes: AtomicU64,
    /// The number of times that another tenant began to wait for memory that this tenant has.
    presses: AtomicU32,
    slots: [Slot; MAX_SESSIONS],
}

/// The memory of one tenant on all GPUs.
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
    /// Returns the ledger of a GPU, or `None` if `gpu` is no GPU index.
    pub fn gpu(&self, gpu: usize) -> Option<&LedgerGpu> {
        self.gpus.get(gpu)
    }

    /// Returns the ledger of the host's memory. This ledger counts the host memory that sessions
    /// reserved, because the driver can move their oversubscribed memory to the host. On a page of
    /// an older daemon, no session has a slot in this ledger.
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
    /// Bytes that all sessions of the tenant held at the moment of the refusal.
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
    /// Returns the most bytes that the tenant held at once. The result includes other threads'
    /// reservations at that moment. For a tenant with a limit, the result misses no peak. For a
    /// tenant without a limit, the result is the most that the daemon or a session saw.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes.load(Ordering::Relaxed)
    }

    /// Records that the tenant held `bytes` at one moment.
    #[inline]
    pub fn note_peak(&self, bytes: u64) {
        // No decision depends on the peak, so the model checker need not interleave it.
        if cfg!(not(loom)) && bytes > self.peak_bytes.load(Ordering::Relaxed) {
            self.peak_bytes.fetch_max(bytes, Ordering::Relaxed);
        }
    }

    /// Returns the bytes for which a session waits, because the driver lacked memory; 0 if no
    /// session waits. If several sessions wait, returns the smallest amount, because the daemon can
    /// make room for the smallest amount first.
    pub fn needed_bytes(&self) -> u64 {
        let needs = self.used().iter().map(|slot| slot.needed_bytes.load(Ordering::SeqCst));
        needs.filter(|bytes| *bytes > 0).min().unwrap_or(0)
    }

    /// Sets the most memory for which a session may wait, or which sessions may hold of the host's
    /// memory. Only the daemon calls this.
    pub fn set_obtainable(&self, bytes: u64) {
        self.obtainable_bytes.store(bytes, Ordering::SeqCst);
    }

    /// Returns the amount that the daemon last set by [`Self::set_obtainable`], bytes; 0 if the
    /// daemon has set none.
    pub fn obtainable_bytes(&self) -> u64 {
        self.obtainable_bytes.load(Ordering::SeqCst)
    }

    /// Makes waiting sessions ask the driver again. Only the daemon calls this, after it has made
    /// room.
    pub fn announce_room(&self) {
        self.rooms_made.fetch_add(1, Ordering::SeqCst);
    }

    /// Records that another tenant waits for memory that this tenant has. Only the daemon calls
    /// this.
    pub fn press(&self) {
        self.presses.fetch_add(1, Ordering::SeqCst);
    }

    /// Empties `slot` and opens it for a session. Only the daemon calls this, before it tells the
    /// session its slot. Returns `None` if `slot` is no slot number.
    pub fn open(&self, slot: usize) -> Option<()> {
        self.clear(slot)?;
        self.slots_used.fetch_max(slot as u32 + 1, Ordering::SeqCst);
        Some(())
    }

    /// Empties the slot of a dead session. The daemon calls this after the process has ended.
    /// Without a daemon, the tenant's other processes call this. Returns the bytes that the session
    /// held, or `None` if `slot` is no slot number.
    pub fn clear(&self, slot: usize) -> Option<u64> {
        let slot = self.slots.get(slot)?;
        slot.promised_bytes.store(slot.taken_bytes.load(Ordering::SeqCst), Ordering::SeqCst);
        slot.needed_bytes.store(0, Ordering::SeqCst);
        let freed_bytes = slot.release(u64::MAX);
        // The store overrides any value that the owner left there.
        slot.leaving_bytes.store(slot.ever_staying_bytes(), Ordering::SeqCst);
        // This is the last step. If the caller dies before, the slot stays a suspect, and another
        // process clears it.
        slot.is_locked.store(0, Ordering::SeqCst);
        Some(freed_bytes)
    }

    /// Takes empty slots at the end of the range `unused` out of use, so that no reader reads them.
    /// The range must contain the last slots in use. No session may own or write a slot of the
    /// range. Only the daemon calls this, and opens none of these slots during the call.
    pub fn shrink(&self, unused: Range<usize>) {
        let now = self.slots_used.load(Ordering::SeqCst);
        let used = self.used();
        let is_empty = |slot: &Slot| slot.held_and_pending_bytes() == 0;
        let filled = used.iter().rposition(|slot| !is_empty(slot)).map_or(0, |last| last + 1);
        let still_used = filled.max(unused.start);
        if used.len() == unused.end && still_used < unused.end {
            // An error means that the daemon has meanwhile opened slots behind the range.
            let _ =
                self.slots_used.compare_exchange(now, still_used as u32, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Records that the owner of `slot` holds a lock on a byte of the ledger's file. The byte has
    /// the slot's number. The kernel releases the lock when the owner dies.
    pub fn set_locked(&self, slot: usize) {
        if let Some(slot) = self.slots.get(slot) {
            slot.is_locked.store(1, Ordering::SeqCst);
        }
    }

    /// Returns the slots with held or pending bytes whose owners took their locks. If such an owner
    /// no longer holds its lock, it is dead.
    pub fn suspects(&self) -> impl Iterator<Item = usize> {
        let is_suspect = |slot: &Slot| {
            let is_anything = slot.held_and_pending_bytes() != 0;
            is_anything && slot.is_locked.load(Ordering::SeqCst) != 0
        };
        self.used().iter().enumerate().filter(move |(_, slot)| is_suspect(slot)).map(|(number, _)| number)
    }

    /// Returns the number of slots that are or were in use. The slots behind them hold nothing.
    pub fn slots(&self) -> usize {
        self.used().len()
    }

    /// Returns the bytes that the tenant holds. The value of each slot is right. But while sessions
    /// allocate and free, the sum can be an amount that the tenant never held.
    pub fn held_bytes(&self) -> u64 {
        self.used().iter().fold(0, |sum, slot| sum.saturating_add(slot.held_bytes()))
    }

    /// Returns a number of staying bytes: at some moment of the call, the tenant held at least so
    /// many. Returns `None` if more bytes began to leave during the call.
    pub fn staying_at_one_moment(&self) -> Option<u64> {
        let leaving = || {
            let words = self.used().iter().map(|slot| slot.leaving_bytes.load(Ordering::SeqCst));
            // Each word only grows. So the sum, modulo 2⁶⁴, stays the same only if all words stay
            // the same.
            words.fold(0_u64, u64::wrapping_add)
        };
        let before = leaving();
        let staying_bytes =
            self.used().iter().fold(0, |sum: u64, slot| sum.saturating_add(slot.staying_bytes()));
        (leaving() == before).then_some(staying_bytes)
    }

    /// Returns the account of the session that owns `slot`, or `None` if `slot` is no slot number.
    pub fn account(&self, slot: usize) -> Option<Account<'_>> {
        Some(Account { gpu: self, slot: self.slots.get(slot)? })
    }

    fn used(&self) -> &[Slot] {
        // The function bounds the count, because each session of the tenant can write it.
        let used = (self.slots_used.load(Ordering::SeqCst) as usize).min(MAX_SESSIONS);
        &self.slots[..used]
    }

    /// Returns the bytes that the tenant holds or asks for. If a session made a reservation under a
    /// former limit, the result includes the reservation.
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
    /// Reserves `bytes`, if the tenant then holds at most `limit_bytes`. The caller must reserve
    /// the bytes before it asks the driver for them.
    ///
    /// If only unfinished requests and frees of other threads are in the way, the method tries
    /// again. Between tries the method calls `goes_on`, which can sleep. If `goes_on` returns
    /// false, the method stops.
    ///
    /// # Errors
    /// [`Refused`] if staying bytes leave no room, or if `goes_on` returned false.
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

    /// Reserves `bytes` in a single try. Returns `None` if held, pending or leaving bytes are in
    /// the way.
    #[inline(always)]
    fn reserve_at_once(self, bytes: u64, limit_bytes: u64) -> Option<Reservation<'a>> {
        // A request that can never fit adds nothing to `promised`, because the addition would be in
        // the way of other requests.
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

    /// Continues [`Account::reserve`] after a first try without success, and returns the result of
    /// [`Account::reserve`].
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

    /// Charges `bytes` that the driver has already allocated, even past the limit. The caller could
    /// not reserve these bytes beforehand.
    pub fn charge(self, bytes: u64) {
        self.slot.promised_bytes.fetch_add(bytes, Ordering::SeqCst);
        self.slot.take(bytes);
    }

    /// Marks `bytes` that were committed or charged as leaving, and returns them. The caller calls
    /// this before it tells the driver to free the bytes. The tenant holds the bytes until the
    /// driver has freed them. But the ledger refuses no request because of leaving bytes.
    #[inline(always)]
    pub fn leave(self, bytes: u64) -> Leaving<'a> {
        Leaving { account: self, bytes: self.slot.leave(bytes) }
    }

    /// Releases `bytes` that were committed or charged, after the driver has freed them.
    pub fn release(self, bytes: u64) {
        self.leave(bytes).finish();
    }

    /// Begins to wait for `bytes`, which the driver refused because other tenants have the GPU's
    /// memory. Returns `None` if the daemon cannot make so much room.
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

    /// Returns a mark of the present moment, for [`Self::bounds_since`].
    pub fn mark(self) -> Mark {
        let released_bytes = self.slot.released_bytes.load(Ordering::SeqCst);
        Mark { ever_staying_bytes: self.slot.ever_staying_bytes(), released_bytes }
    }

    /// Returns the least and the most bytes of the driver's memory that this session may have held
    /// at any one moment since `mark`. The least leaves out bytes that a thread was giving back to
    /// the driver ([`Self::leave`]). The most includes reserved bytes ([`Self::reserve`]).
    pub fn bounds_since(self, mark: Mark) -> (u64, u64) {
        let leaving_bytes = self.slot.leaving_bytes.load(Ordering::SeqCst);
        let promised_bytes = self.slot.promised_bytes.load(Ordering::SeqCst);
        (ahead(mark.ever_staying_bytes, leaving_bytes), ahead(promised_bytes, mark.released_bytes))
    }

    /// Returns whether both values are the same session's account on the same GPU.
    pub fn is_same(self, other: Self) -> bool {
        core::ptr::eq(self.slot, other.slot)
    }

    /// Returns the pending bytes of this session.
    pub fn pending_bytes(self) -> u64 {
        self.slot.pending_bytes()
    }

    /// Returns the bytes that the whole tenant holds.
    pub fn tenant_held_bytes(self) -> u64 {
        self.gpu.held_bytes()
    }
}

/// The counts of a session at one moment ([`Account::mark`]).
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    ever_staying_bytes: u64,
    released_bytes: u64,
}

/// A thread's wait for room. A drop of the value ends the wait.
#[derive(Debug)]
#[must_use = "dropping it says that the session waits no longer"]
pub struct Waiting<'a> {
    account: Account<'a>,
    bytes: u64,
    rooms_made: u32,
}

impl Waiting<'_> {
    /// Returns whether the daemon made room since the wait began. If so, the thread can ask the
    /// driver again.
    pub fn is_over(&self) -> bool {
        self.account.gpu.rooms_made.load(Ordering::SeqCst) != self.rooms_made
    }

    /// Returns whether the thread should wait on. The call also records again how much memory the
    /// thread needs. All threads of the session share that record, and a thread that ends its wait
    /// resets the record. So each waiting thread must call this method now and then.
    pub fn goes_on(&self) -> bool {
        // The daemon makes no room for 0 bytes, so such a request would wait for ever.
        if self.bytes == 0 || self.bytes > self.account.gpu.obtainable_bytes.load(Ordering::SeqCst) {
            return false;
        }
        let word = &self.account.slot.needed_bytes;
        let less = |now: u64| (now == 0 || self.bytes < now).then_some(self.bytes);
        // An error means that the record already has a smaller need.
        let _ = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        true
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.account.slot.needed_bytes.store(0, Ordering::SeqCst);
    }
}

/// Bytes promised to a request that the driver has not answered yet. A drop of the value withdraws
/// the promise.
#[derive(Debug)]
#[must_use = "commit it once the driver has allocated; dropping gives the bytes back"]
pub struct Reservation<'a> {
    account: Account<'a>,
    bytes: u64,
    /// The bytes that the tenant held or asked for when it made this reservation, with the
    /// reservation. After the commit, the tenant holds so many bytes.
    sum_bytes: u64,
}

impl<'a> Reservation<'a> {
    /// Returns the promised bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Commits `bytes` of the reservation, which the driver allocated, and withdraws the rest. The
    /// method withdraws the rest first, so that no reader takes the rest for memory that stays.
    pub fn commit_part(mut self, bytes: u64) {
        if bytes < self.bytes {
            let less = self.bytes - bytes;
            self.account.slot.withdraw(less);
            self.bytes = bytes;
            // Other processes can write the words behind the sum, so the sum can be less than this
            // reservation alone.
            self.sum_bytes = self.sum_bytes.saturating_sub(less);
        }
        self.commit();
    }

    /// Commits the reservation, after the driver has allocated the bytes.
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

/// Bytes that the caller told the driver to free. A drop of the value records that the driver did
/// not free them.
#[derive(Debug)]
#[must_use = "finish it once the driver has freed; dropping means that it did not"]
pub struct Leaving<'a> {
    account: Account<'a>,
    bytes: u64,
}

impl Leaving<'_> {
    /// Records that the driver freed all these bytes.
    #[inline(always)]
    pub fn finish(self) {
        self.account.slot.release(self.bytes);
        core::mem::forget(self);
    }

    /// Records that the driver freed `bytes` of these bytes, at most all, and not the rest.
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
    fn the_bounds_since_a_mark_hold_all_that_the_driver_may_have_given_meanwhile() {
        let gpu = ledger(1);
        let account = gpu.account(0).unwrap();
        account.charge(100);
        let mark = account.mark();
        assert_eq!(account.bounds_since(mark), (100, 100));
        // The driver may have freed the leaving bytes, and given the promised bytes, at any moment.
        let leaving = account.leave(30);
        assert_eq!(account.bounds_since(mark), (70, 100));
        let promised = account.reserve(50, 200, || false).unwrap();
        assert_eq!(account.bounds_since(mark), (70, 150));
        leaving.finish();
        promised.commit();
        assert_eq!(account.bounds_since(mark), (70, 150), "the mark may lie before both");
        let mark = account.mark();
        assert_eq!(account.bounds_since(mark), (120, 120));
        drop(account.leave(20));
        assert_eq!(account.bounds_since(mark), (100, 120), "the driver kept them only in the end");
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
    fn the_peak_counts_held_memory_and_none_that_the_driver_refused() {
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
    fn a_need_ends_with_its_wait_and_the_least_need_counts() {
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
    fn leaving_memory_counts_and_refuses_nobody() {
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
    fn freed_parts_of_leaving_memory_are_gone_and_the_rest_stays() {
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
    fn memory_that_the_driver_did_not_free_stays_and_refuses() {
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
    fn a_reservation_gives_back_the_part_that_its_request_did_not_need() {
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
    fn free_slots_are_read_no_more_unless_memory_is_counted_in_them() {
        let gpu = ledger(8);
        gpu.account(5).unwrap().charge(10);
        gpu.shrink(3..7);
        assert_eq!(gpu.slots(), 8, "those behind are in use");
        gpu.shrink(3..8);
        assert_eq!((gpu.slots(), gpu.held_bytes()), (6, 10), "held memory stays counted");
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
    fn a_slot_emptied_under_its_owner_counts_memory_taken_afterwards() {
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
