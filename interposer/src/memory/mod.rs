//! Device memory that the process holds. The interposer charges it to the tenant's ledger before it
//! asks the driver.
//!
//! The account remembers each allocation with the amount that it charged for it. A free therefore
//! gives back exactly that amount. A free of an unknown allocation gives back nothing.
//!
//! Memory that several allocations share is charged as a whole: blocks of small allocations
//! ([`slabs`]), pools ([`pools`]) and the memory of graphs ([`graphs`]).

pub mod charge;
mod code;
mod contexts;
pub mod exports;
pub mod graphs;
mod held;
pub mod ledgers;
mod needs;
pub mod oversubscription;
pub mod pools;
pub mod pressure;
mod room;
pub mod site;
mod slabs;
mod table;
pub mod tiles;
pub mod unreported_contexts;

use std::collections::{BTreeMap, btree_map};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use deepres_abi::driver::ApiId;
use deepres_abi::driver::result::{CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS};
use deepres_abi::ledger::Refused;
use deepres_abi::meter::{MemoryKind, REFUSED_BY_DRIVER};
use deepres_abi::quantity::Bytes;

use crate::driver::calls::Context;
use crate::driver::memory::{self, PoolHandle};
use crate::log::say;
use crate::meter::gpu::Gpu;
use crate::os;
use crate::process::Process;
use crate::session::Session;
use crate::spin_lock::{Guard, SpinLock};
use charge::BLOCK_BYTES;
use code::Libraries;
use contexts::Contexts;
use exports::Exports;
use graphs::{Full, Graphs, Taker};
use held::Held;
use oversubscription::{Oversubscription, Way};
use pools::Pools;
use site::{Promise, Site};
use slabs::Slabs;
use table::Table;
pub use table::mixed;
use tiles::Tiles;

/// Number of tables that the allocations are spread over. Each table has its own lock.
const SHARDS: usize = 64;
/// Number of refusals by the limit for each line on stderr, counted in each process.
const REFUSALS_PER_LINE: u64 = 1000;

/// Key of an allocation. Addresses and the kinds of handles are separate number spaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Name {
    /// A device address.
    Address(u64),
    /// A handle of physical memory.
    Handle(u64),
    /// An array or a mipmapped array.
    Array(u64),
    /// A context: the memory that the driver takes for it.
    Context(u64),
    /// A module.
    Module(u64),
}

impl Name {
    /// Maps the name to a table key. The mapping is a bijection within each class of names. Names
    /// of two classes can only clash if a number has 61 bits.
    const fn mixed(self) -> u64 {
        let (number, class) = match self {
            Self::Address(number) => (number, 0),
            Self::Handle(number) => (number, 1),
            Self::Array(number) => (number, 2),
            Self::Context(number) => (number, 3),
            Self::Module(number) => (number, 4),
        };
        mixed(number ^ (class << 61))
    }
}

#[derive(Debug)]
struct Entry {
    held: Held,
    /// The context whose end frees the allocation, or 0.
    context: usize,
    /// For physical memory: the number of handles and mappings that keep it alive.
    uses: u32,
    /// The number under which `exports` knows this allocation as exported, or 0.
    exported: u32,
}

/// All allocations of the process with their charges. See the module.
pub struct Accounts {
    /// Allocations by [`Name::mixed`].
    shards: [SpinLock<Table<Entry>>; SHARDS],
    /// Mappings of physical memory: length and handle of each mapping, by address.
    mappings: Mutex<BTreeMap<u64, (u64, u64)>>,
    slabs: Slabs,
    /// Memory beyond the limit.
    pub oversubscription: Oversubscription,
    /// The process's memory pools.
    pub pools: Pools,
    /// Memory that the process's graphs allocate.
    pub graphs: Graphs,
    /// Memory that the driver takes for contexts.
    contexts: Contexts,
    /// Loaded libraries.
    libraries: Libraries,
    /// Memory that is mapped into arrays.
    tiles: Tiles,
    /// Memory that the process exported, and memory that it imported again.
    exports: Exports,
    refusals: AtomicU64,
}

impl Default for Accounts {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| SpinLock::default()),
            mappings: Mutex::default(),
            slabs: Slabs::default(),
            oversubscription: Oversubscription::default(),
            pools: Pools::default(),
            graphs: Graphs::default(),
            contexts: Contexts::default(),
            libraries: Libraries::default(),
            tiles: Tiles::default(),
            exports: Exports::default(),
            refusals: AtomicU64::new(0),
        }
    }
}

/// A request for memory.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// The driver call.
    pub api: ApiId,
    /// The kind of memory.
    pub kind: MemoryKind,
    /// The GPU's ordinal in this process.
    pub ordinal: usize,
    /// The context whose end will free the allocation, or 0.
    pub context: usize,
    /// The amount to charge. For linear memory and pools: the amount that the caller asked for.
    pub bytes: u64,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy)]
enum Why {
    /// The limit leaves no room for it.
    Limit(Refused),
    /// The driver has no memory left.
    Driver,
}

impl Accounts {
    fn shard(&self, name: Name) -> Guard<'_, Table<Entry>> {
        let mixed = name.mixed();
        // The table uses the other bits for itself.
        let shard = &self.shards[(mixed >> 48) as usize % SHARDS];
        shard.lock()
    }

    /// Charges `request`, runs `allocate`, and records the allocation under the name that
    /// `allocate` returned. If the limit leaves no room, refuses the request and does not run
    /// `allocate`.
    ///
    /// `allocate` returns the driver's result, and the allocation's name with the amount to charge.
    pub fn allocate(
        &self,
        process: &Process,
        request: Request,
        mut allocate: impl FnMut() -> (u32, Option<(Name, u64)>),
    ) -> u32 {
        let Some(site) = Site::of(process, request.ordinal) else { return allocate().0 };
        let promise = match self.promise(process, &site, &request) {
            Ok(promise) => promise,
            Err(refused) => return self.managed_or_refuse(process, &site, &request, refused, &mut allocate),
        };
        let ((result, named), promise) = site.ask(request.bytes, promise, allocate);
        match named.filter(|_| result == CUDA_SUCCESS) {
            Some((name, bytes)) => self.enter(process, &site, &request, (name, bytes), promise),
            None => {
                site.withdraw(promise);
                return self.answered(&site, &request, result);
            }
        }
        result
    }

    /// Handles a request that exceeds the limit. If the job itself asked for managed memory and may
    /// oversubscribe, the request is served beyond the limit. Otherwise it is refused.
    #[cold]
    fn managed_or_refuse(
        &self,
        process: &Process,
        site: &Site<'_>,
        request: &Request,
        refused: Refused,
        allocate: &mut dyn FnMut() -> (u32, Option<(Name, u64)>),
    ) -> u32 {
        let managed = (request.kind == MemoryKind::Managed).then(|| {
            self.allocate_oversubscribed(process, site, request, false, || {
                let (result, named) = allocate();
                let address = named.and_then(|(name, bytes)| match name {
                    Name::Address(address) => Some((address, bytes)),
                    _ => None,
                });
                (result, address)
            })
        });
        managed.flatten().unwrap_or_else(|| self.refuse(site, request, Why::Limit(refused)))
    }

    /// Handles a request for linear memory that exceeds the limit: serves it beyond the limit if
    /// the job may oversubscribe, or refuses it.
    #[cold]
    fn linear_beyond_or_refuse(
        &self,
        process: &Process,
        site: &Site<'_>,
        request: &Request,
        refused: Refused,
        allocate: &mut dyn FnMut(Way) -> (u32, Option<(u64, u64)>),
    ) -> u32 {
        self.allocate_oversubscribed(process, site, request, true, || allocate(Way::Managed))
            .unwrap_or_else(|| self.refuse(site, request, Why::Limit(refused)))
    }

    /// Does what [`Self::allocate`] does, for linear memory. `allocate` returns an address and the
    /// size of the allocation there. Small allocations share blocks.
    #[inline(always)]
    pub fn allocate_linear(
        &self,
        process: &Process,
        request: Request,
        mut allocate: impl FnMut(Way) -> (u32, Option<(u64, u64)>),
    ) -> u32 {
        let Some(site) = Site::of(process, request.ordinal) else { return allocate(Way::Device).0 };
        // The fast path of a small allocation is written out here, so that it takes no further
        // calls.
        let is_small = request.bytes <= charge::SHARED_MAX_BYTES;
        let Some(promise) = is_small.then(|| site.reserve_at_once(BLOCK_BYTES)).flatten() else {
            return self.allocate_linear_anyway(process, site, request, allocate);
        };
        if self.slabs.is_anyone_alone() {
            site.withdraw(Some(promise));
            self.slabs.give_way();
            return self.allocate_linear_anyway(process, site, request, allocate);
        }
        match allocate(Way::Device) {
            (CUDA_SUCCESS, Some((address, bytes))) if bytes <= charge::SHARED_MAX_BYTES => {
                let of = (request.ordinal, request.context);
                self.slabs.insert(&site, address, bytes, of, Some(promise));
                CUDA_SUCCESS
            }
            answered => {
                self.end_linear(process, site, request, (BLOCK_BYTES, Some(promise)), answered, allocate)
            }
        }
    }

    /// Continues [`Self::allocate_linear`] for a large request, for a tenant without a limit, or if
    /// the fast path found an obstacle.
    #[inline(never)]
    fn allocate_linear_anyway(
        &self,
        process: &Process,
        site: Site<'_>,
        request: Request,
        mut allocate: impl FnMut(Way) -> (u32, Option<(u64, u64)>),
    ) -> u32 {
        let block_bytes = charge::blocks(request.bytes);
        let is_small = request.bytes <= charge::SHARED_MAX_BYTES;
        let promise = loop {
            match site.reserve(block_bytes) {
                Ok(promise) if is_small && self.slabs.is_anyone_alone() => {
                    site.withdraw(promise);
                    self.slabs.give_way();
                }
                Ok(promise) => break promise,
                Err(_) if is_small => {
                    return self.allocate_tightly(process, &site, &request, &mut allocate);
                }
                Err(_) => match self.promise_after_trimming(process, &site, request.ordinal, block_bytes) {
                    Ok(promise) => break promise,
                    Err(refused) => {
                        return self.linear_beyond_or_refuse(
                            process,
                            &site,
                            &request,
                            refused,
                            &mut allocate,
                        );
                    }
                },
            }
        };
        let answered = allocate(Way::Device);
        self.end_linear(process, site, request, (block_bytes, promise), answered, allocate)
    }

    /// Completes a linear allocation after the driver has `answered`. `promise` reserves
    /// `promised_bytes` for the request.
    #[inline(never)]
    fn end_linear(
        &self,
        process: &Process,
        site: Site<'_>,
        request: Request,
        (promised_bytes, promise): (u64, Promise),
        answered: (u32, Option<(u64, u64)>),
        mut allocate: impl FnMut(Way) -> (u32, Option<(u64, u64)>),
    ) -> u32 {
        let ((result, named), promise) =
            site.ask_again(promised_bytes, promise, answered, &mut || allocate(Way::Device));
        match named.filter(|_| result == CUDA_SUCCESS) {
            Some((address, bytes)) if bytes <= charge::SHARED_MAX_BYTES => {
                self.slabs.insert(&site, address, bytes, (request.ordinal, request.context), promise);
            }
            Some((address, bytes)) => {
                let named = (Name::Address(address), charge::blocks(bytes));
                self.enter(process, &site, &request, named, promise);
            }
            None => {
                site.withdraw(promise);
                return self.after_refusal(process, &site, &request, result, &mut allocate);
            }
        }
        result
    }

    /// Handles linear memory that the driver refused with `result`. If the GPU is full and the job
    /// asked for oversubscription, the request is served beyond the limit.
    #[cold]
    fn after_refusal(
        &self,
        process: &Process,
        site: &Site<'_>,
        request: &Request,
        result: u32,
        allocate: &mut dyn FnMut(Way) -> (u32, Option<(u64, u64)>),
    ) -> u32 {
        let is_full = result == CUDA_ERROR_OUT_OF_MEMORY;
        is_full
            .then(|| self.allocate_oversubscribed(process, site, request, true, || allocate(Way::Managed)))
            .flatten()
            .unwrap_or_else(|| self.answered(site, request, result))
    }

    /// Allocates a small request although the limit leaves no room for another block. The request
    /// is placed beside others in a block that is already charged, if it fits there.
    #[cold]
    fn allocate_tightly(
        &self,
        process: &Process,
        site: &Site<'_>,
        request: &Request,
        allocate: &mut dyn FnMut(Way) -> (u32, Option<(u64, u64)>),
    ) -> u32 {
        let alone = self.slabs.alone(site);
        let of = (request.ordinal, request.context);
        if alone.is_some() && self.slabs.has_hole(request.context, request.bytes) {
            let (result, named) = allocate(Way::Device);
            let Some((address, bytes)) = named.filter(|_| result == CUDA_SUCCESS) else {
                return self.answered(site, request, result);
            };
            if self.slabs.knows(address) {
                self.slabs.insert(site, address, bytes, of, None);
                return result;
            }
            // The driver used a new block although an existing block had room.
            match site.reserve(BLOCK_BYTES) {
                Ok(promise) => {
                    self.slabs.insert(site, address, bytes, of, promise);
                    return result;
                }
                Err(_) => memory::take_back(&process.calls, Context(request.context), address),
            }
        }
        drop(alone);
        let promise = loop {
            match self.promise_after_trimming(process, site, request.ordinal, BLOCK_BYTES) {
                Ok(promise) if self.slabs.is_anyone_alone() => {
                    site.withdraw(promise);
                    self.slabs.give_way();
                }
                Ok(promise) => break promise,
                Err(refused) => {
                    return self.linear_beyond_or_refuse(process, site, request, refused, allocate);
                }
            }
        };
        let ((result, named), promise) = site.ask(BLOCK_BYTES, promise, || allocate(Way::Device));
        match named.filter(|_| result == CUDA_SUCCESS) {
            Some((address, bytes)) => self.slabs.insert(site, address, bytes, of, promise),
            None => {
                site.withdraw(promise);
                return self.after_refusal(process, site, request, result, allocate);
            }
        }
        result
    }

    /// Allocates by `call` from `pool`. Without a pool, `call` allocates from the current pool of
    /// the request's device.
    pub fn allocate_from_pool(
        &self,
        process: &Process,
        request: Request,
        pool: Option<PoolHandle>,
        call: impl FnMut() -> (u32, Option<u64>),
    ) -> u32 {
        let of = (request.ordinal, request.context);
        let give_back = |ordinal| self.give_back(process, ordinal);
        match self.pools.allocate(process, pool, of, request.bytes, give_back, call) {
            Ok((result, site)) => site.map_or(result, |site| self.answered(&site, &request, result)),
            Err((site, refused)) => self.refuse(&site, &request, Why::Limit(refused)),
        }
    }

    /// Launches or uploads a graph by `call`, if there is room for the memory that the graph
    /// allocates.
    pub fn take_for_graph(
        &self,
        process: &Process,
        api: ApiId,
        taker: Taker,
        call: impl FnMut() -> u32,
    ) -> u32 {
        match self.graphs.take(process, |ordinal| self.give_back(process, ordinal), taker, call) {
            Ok(result) => result,
            Err(Full { ordinal, bytes, site, why }) => {
                let request = Request { api, kind: MemoryKind::Graph, ordinal, context: 0, bytes };
                self.refuse(&site, &request, why)
            }
        }
    }

    /// Reserves the amount of `request`. If there is no room, first frees unused memory of pools
    /// and graphs and tries once more.
    fn promise(&self, process: &Process, site: &Site<'_>, request: &Request) -> Result<Promise, Refused> {
        let again = |_| self.promise_after_trimming(process, site, request.ordinal, request.bytes);
        site.reserve(request.bytes).or_else(again)
    }

    /// Makes the pools and graphs of the process return unused memory of a device to the driver.
    #[cold]
    fn give_back(&self, process: &Process, ordinal: usize) {
        let Some(_relaxed) = process.calls.beside_captures() else { return };
        self.pools.trim(process, ordinal);
        self.graphs.trim(process, ordinal);
    }

    #[cold]
    fn promise_after_trimming(
        &self,
        process: &Process,
        site: &Site<'_>,
        ordinal: usize,
        bytes: u64,
    ) -> Result<Promise, Refused> {
        self.give_back(process, ordinal);
        site.reserve(bytes)
    }

    /// Records an allocation with its charge.
    fn enter(
        &self,
        process: &Process,
        site: &Site<'_>,
        request: &Request,
        named: (Name, u64),
        promise: Promise,
    ) {
        let (name, bytes) = named;
        let mut shard = self.shard(name);
        let held = Held::new(request.kind, request.ordinal, site, bytes, promise);
        let entry = Entry { held, context: request.context, uses: 1, exported: 0 };
        let replaced = shard.insert(name.mixed(), entry);
        drop(shard);
        // The driver gives a name out again only once it is free. A replaced entry means that its
        // free bypassed the interposer.
        if let Some(freed) = replaced {
            freed.held.give_back(process, None);
        }
    }

    /// Handles the driver's answer to a request for which the limit had room. Counts a refusal if
    /// the GPU is full.
    fn answered(&self, site: &Site<'_>, request: &Request, result: u32) -> u32 {
        match result {
            CUDA_ERROR_OUT_OF_MEMORY => self.refuse(site, request, Why::Driver),
            result => result,
        }
    }

    #[cold]
    fn refuse(&self, site: &Site<'_>, request: &Request, why: Why) -> u32 {
        if let Some(meter) = site.gpu.meter() {
            let flag = if matches!(why, Why::Driver) { REFUSED_BY_DRIVER } else { 0 };
            meter.last_refused_bytes.store(request.bytes, Ordering::Relaxed);
            meter.last_refused_api.store(request.api as u32 | flag, Ordering::Relaxed);
            meter.refusals.fetch_add(1, Ordering::Relaxed);
        }
        let (api, wanted, gpu) = (request.api.symbol(), Bytes(request.bytes), request.ordinal);
        let refused = match why {
            Why::Limit(refused) => refused,
            // The job sees the same error as without deepres.
            Why::Driver => {
                say!(Debug, "{api}: the driver has no {wanted} left on GPU {gpu}");
                return CUDA_ERROR_OUT_OF_MEMORY;
            }
        };
        let number = self.refusals.fetch_add(1, Ordering::Relaxed);
        if number.is_multiple_of(REFUSALS_PER_LINE) {
            say!(
                Warn,
                "{api} refused: {wanted} asked for on GPU {gpu}, where the tenant holds {} of the {} that it may{}",
                Bytes(refused.held_bytes),
                Bytes(site.limit_bytes()),
                if self.oversubscription.is_wanted() {
                    ", and beyond that there is no room for it"
                } else {
                    ""
                }
            );
        }
        CUDA_ERROR_OUT_OF_MEMORY
    }

    /// Frees the allocation at an address by `free`.
    pub fn free_address(&self, process: &Process, address: u64, free: impl FnOnce() -> u32) -> u32 {
        let free = match self.slabs.free(process, address, free) {
            Ok(result) => return result,
            Err(free) => free,
        };
        let free = match self.oversubscription.is_used() {
            true => match self.oversubscription.free(process, address, free) {
                Ok(result) => return result,
                Err(free) => free,
            },
            false => free,
        };
        let pooled = self.pools.begin_free(address);
        let left = self.graphs.begin_free(address);
        let result = self.free(process, Name::Address(address), free);
        if let Some(left) = left.filter(|_| result != CUDA_SUCCESS) {
            self.graphs.cancel_free(address, left);
        }
        match pooled {
            Some(freed) if result == CUDA_SUCCESS => self.pools.end_free(process, &freed),
            Some(freed) => self.pools.cancel_free(freed),
            None => {}
        }
        self.graphs.refresh(process);
        result
    }

    /// Runs `free`, and gives back the charge of `name` if `free` succeeds. The entry is removed
    /// before `free` runs, because the driver may afterwards give the same name to another thread.
    pub fn free(&self, process: &Process, name: Name, free: impl FnOnce() -> u32) -> u32 {
        let entry = self.shard(name).remove(name.mixed());
        let Some(mut entry) = entry else { return free() };
        let exit = entry.held.leave(process);
        let result = free();
        if result == CUDA_SUCCESS {
            entry.held.give_back(process, exit);
        } else {
            if let Some(exit) = exit {
                exit.cancel(process);
            }
            let mut shard = self.shard(name);
            // The check is made under the lock, because the thread that ends the context afterwards
            // removes the entries that it finds here.
            if process.is_gone(entry.context) {
                entry.held.give_back(process, None);
                return result;
            }
            if let Some(session) = process.session() {
                entry.held.follow_on(session, &process.gpus);
            }
            shard.insert(name.mixed(), entry);
        }
        result
    }

    /// Updates the accounts of pools and graphs after the process has waited for the GPU. Both may
    /// have returned memory to the driver meanwhile.
    #[inline]
    pub fn refresh(&self, process: &Process) {
        self.pools.refresh(process);
        self.graphs.refresh(process);
    }

    /// Takes one use of physical memory away while `free` runs. Physical memory lives until its
    /// last handle is released and its last mapping is gone.
    pub fn release_handle(&self, process: &Process, handle: u64, free: impl FnOnce() -> u32) -> u32 {
        if self.exports.is_used() {
            let _uncancelled = os::uncancelled();
            let _turn = self.exports.turn();
            let last = |free| self.release_shared(process, handle, free);
            return self.release_use(handle, free, last);
        }
        self.release_use(handle, free, |free| self.free(process, Name::Handle(handle), free))
    }

    /// Takes one use away while `free` runs. If it is the last use, runs `last` with `free`
    /// instead.
    #[inline(always)]
    fn release_use<F: FnOnce() -> u32>(&self, handle: u64, free: F, last: impl FnOnce(F) -> u32) -> u32 {
        let name = Name::Handle(handle);
        let is_last = {
            let mut shard = self.shard(name);
            match shard.get_mut(name.mixed()) {
                Some(entry) if entry.uses > 1 => {
                    entry.uses -= 1;
                    false
                }
                Some(_) => true,
                None => return free(),
            }
        };
        if is_last {
            return last(free);
        }
        let result = free();
        if result != CUDA_SUCCESS {
            self.retain_handle(handle);
        }
        result
    }

    /// Adds a handle or mapping that keeps the memory of `handle`. Returns false if the handle is
    /// unknown.
    pub fn retain_handle(&self, handle: u64) -> bool {
        let name = Name::Handle(handle);
        let mut shard = self.shard(name);
        let Some(entry) = shard.get_mut(name.mixed()) else { return false };
        entry.uses = entry.uses.saturating_add(1);
        true
    }

    fn mappings(&self) -> MutexGuard<'_, BTreeMap<u64, (u64, u64)>> {
        self.mappings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps `handle` at `address` by `map`. The use is counted before `map` runs, because another
    /// thread may release the handle as soon as the driver has mapped it.
    pub fn map(
        &self,
        process: &Process,
        address: u64,
        bytes: u64,
        handle: u64,
        map: impl FnOnce() -> u32,
    ) -> u32 {
        let is_kept = self.retain_handle(handle);
        // An existing mapping stays recorded, because the driver refuses to map over it.
        let is_noted = is_kept
            && match self.mappings().entry(address) {
                btree_map::Entry::Vacant(place) => {
                    place.insert((bytes, handle));
                    true
                }
                btree_map::Entry::Occupied(_) => false,
            };
        let result = map();
        if result != CUDA_SUCCESS {
            if is_noted {
                self.mappings().remove(&address);
            }
            if is_kept {
                self.release_handle(process, handle, || CUDA_SUCCESS);
            }
        } else if is_kept && !is_noted {
            // The driver accepted the mapping, so the unmap of the old mapping bypassed the
            // interposer.
            let gone = self.mappings().insert(address, (bytes, handle));
            if let Some((_, gone)) = gone {
                self.release_handle(process, gone, || CUDA_SUCCESS);
            }
        }
        result
    }

    /// Obtains a further handle of the memory at `address` by `retain`, which also returns the
    /// handle. The use is counted before `retain` runs, because another thread may unmap the memory
    /// as soon as the driver has returned the handle.
    pub fn retain(
        &self,
        process: &Process,
        address: u64,
        retain: impl FnOnce() -> (u32, Option<u64>),
    ) -> u32 {
        let mapped = {
            let mappings = self.mappings();
            let last = mappings.range(..=address).next_back();
            last.filter(|(at, (bytes, _))| address - **at < *bytes).map(|(_, (_, handle))| *handle)
        };
        let kept = mapped.filter(|handle| self.retain_handle(*handle));
        let (result, handle) = retain();
        let handle = handle.filter(|_| result == CUDA_SUCCESS);
        if let Some(handle) = handle.filter(|handle| Some(*handle) != kept) {
            self.retain_handle(handle);
        }
        if let Some(kept) = kept.filter(|kept| Some(*kept) != handle) {
            self.release_handle(process, kept, || CUDA_SUCCESS);
        }
        result
    }

    /// Runs `unmap`, which unmaps all mappings within `bytes` bytes at `address`.
    pub fn unmap(&self, process: &Process, address: u64, bytes: u64, unmap: impl FnOnce() -> u32) -> u32 {
        let end = address.saturating_add(bytes);
        let gone: Vec<(u64, (u64, u64))> = self
            .mappings()
            .extract_if(address..end, |at, (size, _)| at.saturating_add(*size) <= end)
            .collect();
        let result = unmap();
        if result == CUDA_SUCCESS {
            for (_, (_, handle)) in gone {
                self.release_handle(process, handle, || CUDA_SUCCESS);
            }
        } else {
            self.mappings().extend(gone);
        }
        result
    }

    /// Removes all allocations that ended with a context.
    pub fn forget_context(&self, context: usize, process: &Process) {
        self.contexts.forget(context);
        self.libraries.forget_context(process, context);
        self.forget_tiles_of(process, context);
        for shard in &self.shards {
            let mut shard = shard.lock();
            for entry in shard.extract(|entry| entry.context == context) {
                entry.held.give_back(process, None);
            }
        }
        self.slabs.forget_context(process, context);
        self.oversubscription.forget_context(context);
        if let Some(session) = process.session() {
            self.oversubscription.publish(session, &process.gpus);
        }
        self.graphs.forget_live();
        self.refresh(process);
    }

    /// Moves all charges to a new ledger of the session. New allocations are charged there already.
    pub fn move_to(&self, session: &Session, gpus: &[Gpu]) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.values_mut().for_each(|entry| entry.held.follow_on(session, gpus));
        }
        self.slabs.move_to(session, gpus);
        self.pools.move_to(session, gpus);
        self.libraries.move_to(session, gpus);
        self.graphs.move_to(session, gpus);
        self.exports.move_to(session, gpus);
    }
}
