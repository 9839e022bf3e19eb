//! Pools: each counts for what it has reserved of its device's memory, in use or not.
//!
//! How much an allocation makes a pool grow is the driver's business: before the call as much is promised as it can be, and after it the pool says
//! what it has. It is asked again whenever it may have given something back: when the process has waited for the GPU. If the limit leaves no room
//! for growth, what pools do not use is given back first; what then fits into a pool without growth is let through.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use deepres_abi::driver::result::{CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS};
use deepres_abi::ledger::Refused;
use deepres_abi::meter::MemoryKind;

use super::charge;
use super::held::Held;
use super::site::{Promise, Site};
use super::table::Plain;
use crate::driver::calls::Context;
use crate::driver::memory::{self, PoolHandle};
use crate::meter::gpu::Gpu;
use crate::process::Process;
use crate::session::Session;

/// A pool grows by so much, or by more if more is asked for.
const GROWTH_BYTES: u64 = 32 << 20;

/// One pool.
pub struct Pool {
    handle: PoolHandle,
    /// The device whose memory it is; `None`: of the host, or another process's.
    ordinal: Option<usize>,
    /// Nobody can ask it any more, and its handle may be another's.
    is_destroyed: AtomicBool,
    /// What it is charged. Held while the pool may be growing, and while it is being destroyed.
    state: Mutex<Held>,
    /// What was allocated from it and not freed, with the context that it dies with.
    live: Mutex<Plain<u64, usize>>,
}

/// See the module.
#[derive(Default)]
pub struct Pools {
    is_used: AtomicBool,
    pools: Mutex<Vec<Arc<Pool>>>,
}

/// An allocation of a pool's that is being freed.
pub struct Freed(Arc<Pool>, u64, usize);

/// What an allocation may make a pool grow by.
fn growth(bytes: u64) -> u64 {
    charge::blocks(bytes).max(GROWTH_BYTES)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// Its state, unless an allocation is under way: then that looks at what there is.
    fn try_state(&self) -> Option<MutexGuard<'_, Held>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn is_destroyed(&self) -> bool {
        self.is_destroyed.load(Ordering::Acquire)
    }

    fn site<'p>(&self, process: &'p Process) -> Option<(usize, Site<'p>)> {
        Some((self.ordinal?, Site::of(process, self.ordinal?)?))
    }

    /// Charges what it has.
    fn settle(&self, held: &mut Held, site: &Site<'_>, promise: Promise) {
        match self.handle.stock().filter(|_| !self.is_destroyed()) {
            Some(stock) => held.set(site, stock.reserved_bytes, promise),
            None => site.withdraw(promise),
        }
    }

    fn trim(&self, held: &mut Held, site: &Site<'_>) {
        if !self.is_destroyed() {
            self.handle.trim();
            self.settle(held, site, None);
        }
    }

    /// See [`Pools::allocate`]; without waiting for room.
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
        let promise = site.reserve(growth_bytes).or_else(|_| {
            self.trim(&mut state, site);
            give_back();
            site.reserve(growth_bytes)
        });
        match promise {
            Ok(promise) => {
                let (result, at) = call();
                self.settle(&mut state, site, promise);
                if let Some(at) = at.filter(|_| result == CUDA_SUCCESS) {
                    lock(&self.live).insert(at, context);
                }
                Ok(result)
            }
            Err(refused) => {
                let Some(before) = self.handle.stock().filter(|stock| stock.spare_bytes() >= bytes) else {
                    return Err(refused);
                };
                let (result, at) = call();
                let Some(at) = at.filter(|_| result == CUDA_SUCCESS) else { return Ok(result) };
                let grown = self
                    .handle
                    .stock()
                    .map_or(0, |now| now.reserved_bytes.saturating_sub(before.reserved_bytes));
                if grown != 0 {
                    match site.reserve(grown) {
                        Ok(promise) => self.settle(&mut state, site, promise),
                        // What is spare lies in too many pieces, or is not free yet for this stream.
                        Err(refused) => {
                            memory::take_back(&process.calls, Context(context), at);
                            self.trim(&mut state, site);
                            return Err(refused);
                        }
                    }
                }
                lock(&self.live).insert(at, context);
                Ok(result)
            }
        }
    }
}

/// The living pool of that handle: the last, where the driver has destroyed another that is not marked yet.
fn find(pools: &[Arc<Pool>], handle: PoolHandle) -> Option<Arc<Pool>> {
    pools.iter().rfind(|pool| pool.handle == handle && !pool.is_destroyed()).cloned()
}

impl Pools {
    fn all(&self) -> Vec<Arc<Pool>> {
        if self.is_used.load(Ordering::Relaxed) { lock(&self.pools).clone() } else { Vec::new() }
    }

    /// The pool, which is of the memory of the device that `ordinal` says if it was not known.
    pub fn get(&self, handle: PoolHandle, ordinal: impl FnOnce() -> Option<usize>) -> Arc<Pool> {
        let mut pools = lock(&self.pools);
        if let Some(known) = find(&pools, handle) {
            return known;
        }
        self.push(&mut pools, handle, ordinal())
    }

    /// The pool, which the driver has just made, of the memory of the device `ordinal`.
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

    /// Allocates `bytes` by `call`, which returns the driver's result and the address, from the pool `handle` or, without one, the present one of the
    /// device `ordinal`. Before it is refused `give_back` has the rest of the process give back what it does not use on the device that it is told.
    ///
    /// # Errors
    /// [`Refused`], with the site.
    pub fn allocate<'p>(
        &self,
        process: &'p Process,
        handle: Option<PoolHandle>,
        (ordinal, context): (usize, usize),
        bytes: u64,
        give_back: impl Fn(usize),
        mut call: impl FnMut() -> (u32, Option<u64>),
    ) -> Result<u32, (Site<'p>, Refused)> {
        let Some(handle) = handle.or_else(|| PoolHandle::current(ordinal)) else { return Ok(call().0) };
        let pool = self.get(handle, || handle.ordinal(process.gpus.len()));
        loop {
            let Some((ordinal, site)) = pool.site(process) else { return Ok(call().0) };
            let give_back = || give_back(ordinal);
            let result = pool.allocate(process, &site, context, bytes, &give_back, &mut call);
            // Nobody else is kept from the pool while this one waits for others to be moved off the GPU.
            match result {
                Ok(CUDA_ERROR_OUT_OF_MEMORY) if site.await_room(growth(bytes)) => {}
                Ok(result) => return Ok(result),
                Err(refused) => return Err((site, refused)),
            }
        }
    }

    /// What was allocated at `address` is about to be freed, if it is a pool's.
    pub fn begin_free(&self, address: u64) -> Option<Freed> {
        self.all().into_iter().find_map(|pool| {
            let context = lock(&pool.live).remove(&address)?;
            Some(Freed(pool, address, context))
        })
    }

    /// The driver did not free it.
    pub fn cancel_free(&self, Freed(pool, address, context): Freed) {
        lock(&pool.live).insert(address, context);
    }

    /// Forgets what died with a context.
    pub fn forget_context(&self, context: usize) {
        for pool in self.all() {
            lock(&pool.live).retain(|_, own| *own != context);
        }
    }

    /// Asks every pool what it has: some may have given something back.
    pub fn refresh(&self, process: &Process) {
        for pool in self.all() {
            let Some((mut state, (_, site))) = pool.try_state().zip(pool.site(process)) else { continue };
            if !pool.is_destroyed() {
                pool.settle(&mut state, &site, None);
            } else if lock(&pool.live).is_empty() {
                state.set(&site, 0, None);
                lock(&self.pools).retain(|other| !Arc::ptr_eq(other, &pool));
            }
        }
    }

    /// Has the pools of a device give back what they do not use.
    pub fn trim(&self, process: &Process, ordinal: usize) {
        for pool in self.all().iter().filter(|pool| pool.ordinal == Some(ordinal)) {
            if let Some((mut state, site)) = pool.try_state().zip(Site::of(process, ordinal)) {
                pool.trim(&mut state, &site);
            }
        }
    }

    /// Destroys a pool by `call`. What is in use of it stays until it is freed.
    pub fn destroy(&self, process: &Process, handle: PoolHandle, call: impl FnOnce() -> u32) -> u32 {
        let Some(pool) = find(&lock(&self.pools), handle) else { return call() };
        {
            let mut state = lock(&pool.state);
            if let Some((_, site)) = pool.site(process) {
                // As its end does; afterwards nobody can ask it any more.
                pool.trim(&mut state, &site);
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

    /// Moves what is held to a new ledger of the session's.
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
    fn a_pool_that_gets_the_handle_of_one_that_is_being_destroyed_is_another() {
        let handle = PoolHandle(1);
        let pools = Pools::default();
        let old = pools.created(handle, Some(0));
        assert!(Arc::ptr_eq(&pools.get(handle, || None), &old));
        // The driver has destroyed it, and the thread that asked for that does not know yet.
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
