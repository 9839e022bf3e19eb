//! The memory pools of the process. The charge of a pool is all memory that the pool has reserved
//! on its device, in use or not.
//!
//! The driver decides how much a pool grows by an allocation. So before the call, the interposer
//! reserves the largest possible growth. After the call, the interposer asks the pool for its
//! actual size. Each time the process has waited for the GPU, the interposer asks the pool again,
//! because the pool may have returned memory.
//!
//! If the limit leaves no room for growth, the interposer first makes pools return unused memory.
//! After that, an allocation can still succeed if it fits into the pool without growth.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use deepres_abi::MAX_GPUS;
use deepres_abi::driver::result::{CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS};
use deepres_abi::ledger::Refused;
use deepres_abi::meter::MemoryKind;

use super::account::Reservation;
use super::charge;
use super::held::Held;
use super::site::{Promise, Site};
use super::{Plain, lock, try_lock};
use crate::driver::calls::Context;
use crate::driver::memory::{self, PoolHandle, Stock};
use crate::lock_order::{Guard, Mutex, Rank};
use crate::meter::gpu::Gpu;
use crate::process::Process;
use crate::session::Session;

/// The smallest growth of a pool, bytes. A larger allocation makes the pool grow by more.
const GROWTH_BYTES: u64 = 32 << 20;

/// A memory pool of this process, with its charge and its live allocations.
pub struct Pool {
    handle: PoolHandle,
    /// The device of the pool's memory, or `None` if the memory is the host's or another process's.
    ordinal: Option<usize>,
    /// Whether the job has destroyed the pool. The interposer can then no longer ask the pool, and
    /// the handle can belong to another pool.
    is_destroyed: AtomicBool,
    /// The charge of the pool. A thread holds this lock while the pool can be growing, and while
    /// the thread destroys the pool.
    state: Mutex<{ Rank::PoolCharge as u8 }, Held>,
    /// The live allocations of the pool, with their sizes. The allocations belong to no context and
    /// outlive contexts.
    live: Mutex<{ Rank::PoolAllocations as u8 }, Plain<u64, u64>>,
}

/// All memory pools of the process, each with its charge and its live allocations.
pub struct Pools {
    is_used: AtomicBool,
    pools: Mutex<{ Rank::Pools as u8 }, Vec<Arc<Pool>>>,
    /// Whether the meter thread must check a destroyed pool again. The job has freed all
    /// allocations of such a pool, but the streams may not have reached the frees yet.
    is_release_due: AtomicBool,
    /// The last known current pool of each device; 0 if none is known.
    present: [AtomicUsize; MAX_GPUS],
}

impl Default for Pools {
    fn default() -> Self {
        Self {
            is_used: AtomicBool::new(false),
            pools: Mutex::default(),
            is_release_due: AtomicBool::new(false),
            present: [const { AtomicUsize::new(0) }; MAX_GPUS],
        }
    }
}

/// An allocation of a pool that the job is freeing.
pub struct Freed(Arc<Pool>, u64, u64);

/// Returns the most bytes by which an allocation of `bytes` can make a pool grow.
fn growth(bytes: u64) -> u64 {
    charge::blocks(bytes).max(GROWTH_BYTES)
}

impl Pool {
    /// Returns the charge of the pool. Returns `None` while another thread allocates from the pool,
    /// because the other thread will settle the charge.
    fn try_state(&self) -> Option<Guard<'_, Held>> {
        try_lock(&self.state)
    }

    fn is_destroyed(&self) -> bool {
        self.is_destroyed.load(Ordering::Acquire)
    }

    fn site<'p>(&self, process: &'p Process) -> Option<(usize, Site<'p>)> {
        Some((self.ordinal?, Site::of(process, self.ordinal?)?))
    }

    /// Charges the pool's reserved memory. If the driver does not report the amount, charges the
    /// former amount and all possible growth.
    fn settle(&self, held: &mut Held, site: &Site<'_>, promise: Promise) {
        if self.is_destroyed() {
            return site.withdraw(promise);
        }
        let grown_bytes = promise.as_ref().map_or(0, Reservation::bytes);
        let bytes = self.handle.stock().map_or(held.bytes + grown_bytes, |stock| stock.reserved_bytes);
        held.set(site, bytes, promise);
    }

    /// Returns the most bytes of the pool's reserved memory that its live allocations can use.
    fn used_bytes(&self) -> u64 {
        lock(&self.live).values().map(|bytes| growth(*bytes)).sum()
    }

    /// Makes the pool return unused memory to the driver. Returns whether the pool did so.
    fn trim(&self, process: &Process, held: &mut Held, site: &Site<'_>) -> bool {
        !self.is_destroyed()
            && self.trim_by(process, held, site, || self.handle.trim(), |is_trimmed| *is_trimmed)
    }

    /// Trims the pool by `call`, and returns the answer of `call`. From the answer of `call`,
    /// `gave_all` computes whether the pool has only used memory left.
    ///
    /// The interposer does not know beforehand how much memory the driver will take back. So during
    /// the call, the ledger shows all of the charge as leaving, and requests that lack this room
    /// wait.
    fn trim_by<T>(
        &self,
        process: &Process,
        held: &mut Held,
        site: &Site<'_>,
        call: impl FnOnce() -> T,
        gave_all: impl FnOnce(&T) -> bool,
    ) -> T {
        let exit = held.leave(process);
        let answer = call();
        let left_bytes = match self.handle.stock() {
            Some(stock) => stock.reserved_bytes,
            None if gave_all(&answer) => held.bytes.min(self.used_bytes()),
            None => held.bytes,
        };
        held.shrink(site, left_bytes, exit);
        answer
    }

    /// Allocates from the pool, without a wait for room. Returns the driver's result
    /// ([`Pools::allocate`]).
    fn allocate(
        &self,
        process: &Process,
        site: &Site<'_>,
        context: usize,
        bytes: u64,
        give_back: &dyn Fn(),
        call: &mut dyn FnMut() -> (u32, Option<u64>),
    ) -> Result<u32, Refused> {
        let mut state = lock(&self.state);
        let growth_bytes = growth(bytes);
        let promise = match site.reserve(growth_bytes) {
            Ok(promise) => promise,
            Err(_) => {
                let within = Within { process, site, context, bytes };
                // The spare memory comes first. If the pool returned it for each small request, the
                // pool would grow again for the next. The call that keeps all of the memory shows
                // whether the pool can return any.
                let can_trim = |stock: &Stock| self.handle.trim_to(stock.reserved_bytes);
                let result = self.allocate_spare(&mut state, &within, can_trim, call);
                if let Some(result) = result.filter(|result| *result != CUDA_ERROR_OUT_OF_MEMORY) {
                    return Ok(result);
                }
                let gives_back = self.trim(process, &mut state, site);
                give_back();
                match site.reserve(growth_bytes) {
                    Ok(promise) => promise,
                    Err(refused) => {
                        let result = self.allocate_spare(&mut state, &within, |_| gives_back, call);
                        return result.ok_or(refused);
                    }
                }
            }
        };
        let (result, at) = call();
        match at.filter(|_| result == CUDA_SUCCESS) {
            Some(at) => {
                lock(&self.live).insert(at, bytes);
                self.settle(&mut state, site, promise);
            }
            None => {
                site.withdraw(promise);
                self.settle(&mut state, site, None);
            }
        }
        Ok(result)
    }

    /// Allocates within the pool's spare memory, and returns the driver's result. Returns `None`,
    /// and leaves the pool as it was, if the spare memory does not suffice. `can_trim` says whether
    /// the pool can return memory. If the pool cannot return memory, the interposer could not undo
    /// unexpected growth.
    fn allocate_spare(
        &self,
        state: &mut Held,
        within: &Within<'_, '_>,
        can_trim: impl FnOnce(&Stock) -> bool,
        call: &mut dyn FnMut() -> (u32, Option<u64>),
    ) -> Option<u32> {
        let Within { process, site, context, bytes } = *within;
        let before = self.handle.stock().filter(|stock| stock.spare_bytes() >= bytes && can_trim(stock))?;
        let (result, at) = call();
        let Some(at) = at.filter(|_| result == CUDA_SUCCESS) else { return Some(result) };
        let now = self.handle.stock();
        let grown = now.map_or(growth(bytes), |now| now.reserved_bytes.saturating_sub(before.reserved_bytes));
        if grown != 0 {
            match site.reserve(grown) {
                Ok(promise) => self.settle(state, site, promise),
                // The spare memory is too fragmented, or is not free for this stream yet.
                Err(_) => {
                    memory::take_back(&process.calls, Context(context), at);
                    self.trim(process, state, site);
                    return None;
                }
            }
        }
        lock(&self.live).insert(at, bytes);
        Some(result)
    }
}

/// A request for memory that must fit into a pool's spare memory.
struct Within<'r, 'p> {
    process: &'r Process,
    site: &'r Site<'p>,
    context: usize,
    bytes: u64,
}

/// Returns the living pool with this handle. If several pools have the handle, returns the last
/// pool. The driver has destroyed the earlier pools, and the interposer has not marked them yet.
fn find(pools: &[Arc<Pool>], handle: PoolHandle) -> Option<Arc<Pool>> {
    pools.iter().rfind(|pool| pool.handle == handle && !pool.is_destroyed()).cloned()
}

impl Pools {
    fn all(&self) -> Vec<Arc<Pool>> {
        if self.is_used.load(Ordering::Relaxed) { lock(&self.pools).clone() } else { Vec::new() }
    }

    /// Returns the pool with this handle. If the pool is unknown, adds the pool with the device
    /// that `ordinal` returns.
    pub fn get(&self, handle: PoolHandle, ordinal: impl FnOnce() -> Option<usize>) -> Arc<Pool> {
        self.get_or_add(handle, ordinal).0
    }

    /// Returns the pool that [`Self::get`] returns, and whether the pool was known before.
    fn get_or_add(&self, handle: PoolHandle, ordinal: impl FnOnce() -> Option<usize>) -> (Arc<Pool>, bool) {
        let mut pools = lock(&self.pools);
        match find(&pools, handle) {
            Some(known) => (known, true),
            None => (self.push(&mut pools, handle, ordinal()), false),
        }
    }

    /// Forgets a pool that was unknown before a failed allocation. The handle of such a pool can be
    /// invalid.
    fn forget_unused(&self, pool: &Arc<Pool>) {
        /// Number of references to a pool that no other thread is about to use: the reference of
        /// the list, and the reference of the caller.
        const HOLDERS: usize = 2;
        let mut pools = lock(&self.pools);
        let has_nothing =
            || lock(&pool.live).is_empty() && pool.try_state().is_some_and(|held| held.bytes == 0);
        if Arc::strong_count(pool) == HOLDERS && has_nothing() {
            pools.retain(|other| !Arc::ptr_eq(other, pool));
        }
    }

    /// Adds a pool that the driver has just made, with memory on the device `ordinal`. Returns the
    /// pool.
    pub fn created(&self, handle: PoolHandle, ordinal: Option<usize>) -> Arc<Pool> {
        self.push(&mut lock(&self.pools), handle, ordinal)
    }

    fn push(&self, pools: &mut Vec<Arc<Pool>>, handle: PoolHandle, ordinal: Option<usize>) -> Arc<Pool> {
        let held = Held::nothing(MemoryKind::Pool, ordinal.unwrap_or(usize::MAX));
        let pool = Arc::new(Pool {
            handle,
            ordinal,
            is_destroyed: AtomicBool::new(false),
            state: Mutex::new(held),
            live: Mutex::default(),
        });
        pools.push(Arc::clone(&pool));
        self.is_used.store(true, Ordering::Release);
        pool
    }

    /// Allocates `bytes` from the pool `handle` by `call`, which returns the driver's result and
    /// the address. Without a handle, `call` allocates from the current pool of the device
    /// `ordinal`.
    ///
    /// Before a refusal, `give_back` frees unused memory of the rest of the process on the given
    /// device. Returns the driver's result, and the site of the charge if there is one.
    ///
    /// # Errors
    /// [`Refused`] with the site, if the limit leaves no room.
    pub fn allocate<'p>(
        &self,
        process: &'p Process,
        handle: Option<PoolHandle>,
        (ordinal, context): (usize, usize),
        bytes: u64,
        give_back: impl Fn(usize),
        mut call: impl FnMut() -> (u32, Option<u64>),
    ) -> Result<(u32, Option<Site<'p>>), (Site<'p>, Refused)> {
        let (pool, was_known) = match handle {
            Some(handle) => self.get_or_add(handle, || handle.ordinal(process.gpus.len(), ordinal)),
            None => (self.present(ordinal), true),
        };
        let result = loop {
            let charged = pool.ordinal.and_then(|ordinal| Some((ordinal, Site::of_call(process, ordinal)?)));
            let Some((ordinal, site)) = charged else { break Ok((call().0, None)) };
            let give_back = || give_back(ordinal);
            let result = pool.allocate(process, &site, context, bytes, &give_back, &mut call);
            // While this request waits for other tenants to leave the GPU, no thread holds the
            // pool's lock.
            match result {
                Ok(CUDA_ERROR_OUT_OF_MEMORY) if site.await_room(growth(bytes)) => {}
                Ok(result) => break Ok((result, Some(site))),
                Err(refused) => break Err((site, refused)),
            }
        };
        if !was_known && !matches!(result, Ok((CUDA_SUCCESS, _))) {
            self.forget_unused(&pool);
        }
        result
    }

    /// Returns the pool from which `cuMemAllocAsync` allocates on a device. If the driver does not
    /// name the pool, returns the last known pool, or else the device's default pool. If no pool is
    /// known, returns a stand-in without a handle.
    fn present(&self, ordinal: usize) -> Arc<Pool> {
        let known = self.present.get(ordinal);
        match PoolHandle::current(ordinal) {
            Some(handle) => {
                if let Some(known) = known {
                    known.store(handle.0, Ordering::Relaxed);
                }
                self.get(handle, || Some(ordinal))
            }
            None => {
                let last = known.map_or(0, |known| known.load(Ordering::Relaxed));
                let last = if last == 0 { PoolHandle::default_of(ordinal) } else { Some(PoolHandle(last)) };
                last.map_or_else(|| self.nameless(ordinal), |last| self.get(last, || Some(ordinal)))
            }
        }
    }

    #[cold]
    fn nameless(&self, ordinal: usize) -> Arc<Pool> {
        let mut pools = lock(&self.pools);
        let is_it = |pool: &&Arc<Pool>| pool.handle == PoolHandle::UNKNOWN && pool.ordinal == Some(ordinal);
        let known = pools.iter().find(is_it).cloned();
        known.unwrap_or_else(|| self.push(&mut pools, PoolHandle::UNKNOWN, Some(ordinal)))
    }

    /// Removes the allocation at `address` before the job frees it. Returns `None` if the
    /// allocation belongs to no pool.
    pub fn begin_free(&self, address: u64) -> Option<Freed> {
        self.all().into_iter().find_map(|pool| {
            let bytes = lock(&pool.live).remove(&address)?;
            Some(Freed(pool, address, bytes))
        })
    }

    /// Completes a free that the driver has carried out.
    pub fn end_free(&self, process: &Process, Freed(pool, ..): &Freed) {
        if pool.is_destroyed()
            && let Some((mut state, (_, site))) = pool.try_state().zip(pool.site(process))
        {
            self.release(process, pool, &mut state, &site);
        }
    }

    /// Restores an allocation that the driver did not free.
    pub fn cancel_free(&self, Freed(pool, address, bytes): Freed) {
        lock(&pool.live).insert(address, bytes);
    }

    /// Sets the charge of each pool to the memory that the driver now reports for it, because a
    /// pool may have returned memory.
    pub fn refresh(&self, process: &Process) {
        for pool in self.all() {
            let Some((mut state, (_, site))) = pool.try_state().zip(pool.site(process)) else { continue };
            if pool.is_destroyed() {
                self.release(process, &pool, &mut state, &site);
            } else {
                pool.settle(&mut state, &site, None);
            }
        }
    }

    /// Gives back the charge of a destroyed pool. The driver keeps the pool's memory until the job
    /// has freed all allocations and the streams have reached those frees. The driver does not
    /// report that moment. Only the end of the streams' work shows it.
    fn release(&self, process: &Process, pool: &Arc<Pool>, state: &mut Held, site: &Site<'_>) {
        if !lock(&pool.live).is_empty() {
            return;
        }
        if pool.ordinal.is_some_and(|ordinal| process.may_have_work(ordinal)) {
            return self.defer_release(process);
        }
        state.set(site, 0, None);
        lock(&self.pools).retain(|other| !Arc::ptr_eq(other, pool));
    }

    fn defer_release(&self, process: &Process) {
        self.is_release_due.store(true, Ordering::SeqCst);
        process.wake_meter();
    }

    /// Returns whether the meter thread must check a destroyed pool again.
    pub fn is_release_due(&self) -> bool {
        self.is_release_due.load(Ordering::SeqCst)
    }

    /// Gives back the charges of destroyed pools whose work is complete. The meter thread calls
    /// this after it has read the markers. This method waits for no other thread.
    pub fn release_due(&self, process: &Process) {
        if !self.is_release_due() {
            return;
        }
        self.is_release_due.store(false, Ordering::SeqCst);
        for pool in self.all().iter().filter(|pool| pool.is_destroyed()) {
            let Some((_, site)) = pool.site(process) else { continue };
            match pool.try_state() {
                Some(mut state) => self.release(process, pool, &mut state, &site),
                None => self.defer_release(process),
            }
        }
    }

    /// Makes the pools of a device return unused memory to the driver.
    pub fn trim(&self, process: &Process, ordinal: usize) {
        for pool in self.all().iter().filter(|pool| pool.ordinal == Some(ordinal)) {
            let Some((mut state, site)) = pool.try_state().zip(Site::of(process, ordinal)) else { continue };
            if pool.is_destroyed() {
                self.release(process, pool, &mut state, &site);
            } else {
                pool.trim(process, &mut state, &site);
            }
        }
    }

    /// Trims a pool by `call`, and returns the result of `call`. `is_of_all` says whether `call`
    /// trims all unused memory or a part. While `call` runs, the lock keeps other threads from
    /// allocating, because they can rely on spare memory.
    pub fn trim_one(
        &self,
        process: &Process,
        (handle, is_of_all): (PoolHandle, bool),
        call: impl FnOnce() -> u32,
    ) -> u32 {
        let Some(pool) = find(&lock(&self.pools), handle) else { return call() };
        let mut state = lock(&pool.state);
        match pool.site(process).filter(|_| !pool.is_destroyed()) {
            Some((_, site)) => {
                pool.trim_by(process, &mut state, &site, call, |result| is_of_all && *result == CUDA_SUCCESS)
            }
            None => call(),
        }
    }

    /// Destroys a pool by `call`, and returns the result of `call`. Used memory of the pool stays
    /// charged until the job frees it.
    pub fn destroy(&self, process: &Process, handle: PoolHandle, call: impl FnOnce() -> u32) -> u32 {
        let Some(pool) = find(&lock(&self.pools), handle) else { return call() };
        {
            let mut state = lock(&pool.state);
            if let Some((_, site)) = pool.site(process) {
                // The destruction trims the pool too. The code trims the pool beforehand, because
                // it cannot ask a destroyed pool for its size.
                pool.trim(process, &mut state, &site);
            }
            let result = call();
            if result != CUDA_SUCCESS {
                return result;
            }
            pool.is_destroyed.store(true, Ordering::Release);
            if state.bytes != 0 {
                return result;
            }
        }
        lock(&self.pools).retain(|other| !Arc::ptr_eq(other, &pool));
        CUDA_SUCCESS
    }

    /// Moves all charges to a new ledger of the session.
    pub fn move_to(&self, session: &Session, gpus: &[Gpu]) {
        for pool in self.all() {
            lock(&pool.state).follow_on(session, gpus);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_that_nothing_was_had_from_is_not_remembered() {
        let pools = Pools::default();
        let pool = pools.get(PoolHandle(1), || Some(0));
        let other = Arc::clone(&pool);
        pools.forget_unused(&pool);
        assert_eq!(pools.all().len(), 1, "another is about to use it");
        drop(other);
        lock(&pool.live).insert(1, 1);
        pools.forget_unused(&pool);
        assert_eq!(pools.all().len(), 1, "something was had from it");
        lock(&pool.live).remove(&1);
        pools.forget_unused(&pool);
        assert_eq!(pools.all().len(), 0);
    }

    #[test]
    fn a_pool_that_gets_the_handle_of_one_that_is_being_destroyed_is_another() {
        let handle = PoolHandle(1);
        let pools = Pools::default();
        let old = pools.created(handle, Some(0));
        assert!(Arc::ptr_eq(&pools.get(handle, || None), &old));
        // The driver has destroyed the pool, but the thread that destroys it has not marked it yet.
        let being_destroyed = lock(&old.state);
        let new = pools.created(handle, Some(1));
        assert!(Arc::ptr_eq(&pools.get(handle, || None), &new));
        old.is_destroyed.store(true, Ordering::Release);
        drop(being_destroyed);
        assert!(Arc::ptr_eq(&pools.get(handle, || None), &new));
        new.is_destroyed.store(true, Ordering::Release);
        let third = pools.get(handle, || Some(2));
        assert_eq!(third.ordinal, Some(2), "the handle is another's by now");
    }
}
