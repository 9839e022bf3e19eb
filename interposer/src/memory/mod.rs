//! Device memory: what the process holds, charged to its tenant's ledger before the driver is asked.
//!
//! Each allocation is remembered with what it was charged, so that a free gives back exactly that, and a free of anything else
//! gives back nothing. What shares memory with others is charged by what it shares: blocks of small allocations ([`slabs`]), pools ([`pools`]), what
//! graphs allocate ([`graphs`]).

pub mod beyond;
pub mod charge;
mod code;
mod contexts;
pub mod exports;
pub mod graphs;
mod held;
pub mod late;
pub mod ledgers;
mod needs;
pub mod pools;
pub mod pressure;
mod room;
pub mod site;
mod slabs;
mod table;
pub mod tiles;

use std::collections::{BTreeMap, btree_map};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use deepres_abi::driver::ApiId;
use deepres_abi::driver::result::{CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS};
use deepres_abi::ledger::Refused;
use deepres_abi::meter::{MemoryKind, REFUSED_BY_DRIVER};
use deepres_abi::quantity::Bytes;

use crate::brief::{Brief, Guard};
use crate::driver::calls::Context;
use crate::driver::memory::{self, PoolHandle};
use crate::log::say;
use crate::meter::gpu::Gpu;
use crate::os;
use crate::process::Process;
use crate::session::Session;
use beyond::{Beyond, Way};
use charge::BLOCK_BYTES;
use code::Libraries;
use contexts::Contexts;
use exports::Exports;
use graphs::{Full, Graphs, Taker};
use held::Held;
use pools::Pools;
use site::{Promise, Site};
use slabs::Slabs;
use table::Table;
pub use table::mixed;
use tiles::Tiles;

/// Tables that the allocations are spread over, each with a lock of its own.
const SHARDS: usize = 64;
/// Of what the limit refuses one process, every how many are written to stderr.
const REFUSALS_PER_LINE: u64 = 1000;

/// What identifies an allocation: addresses and the several kinds of handles are numbers of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Name {
    /// A device address.
    Address(u64),
    /// A handle of physical memory.
    Handle(u64),
    /// An array or a mipmapped array.
    Array(u64),
    /// A context, for what the driver takes for it.
    Context(u64),
    /// A module.
    Module(u64),
}

impl Name {
    /// A bijection for each class of names; a clash between classes would need numbers of 61 bits.
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
    /// The context that the allocation dies with, or 0.
    context: usize,
    /// For physical memory: handles and mappings that keep it.
    uses: u32,
    /// The number under which it is known to be exported, or 0.
    exported: u32,
}

/// See the module.
pub struct Accounts {
    /// By [`Name::mixed`].
    shards: [Brief<Table<Entry>>; SHARDS],
    /// Physical memory that is mapped: length and handle of each mapping, by its address.
    mappings: Mutex<BTreeMap<u64, (u64, u64)>>,
    slabs: Slabs,
    /// What is beyond the limit.
    pub beyond: Beyond,
    /// Pools of the process.
    pub pools: Pools,
    /// What its graphs allocate.
    pub graphs: Graphs,
    /// What the driver takes for contexts.
    contexts: Contexts,
    /// Libraries that are loaded.
    libraries: Libraries,
    /// What is mapped into arrays.
    tiles: Tiles,
    /// What was exported, and came back.
    exports: Exports,
    refusals: AtomicU64,
}

impl Default for Accounts {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Brief::default()),
            mappings: Mutex::default(),
            slabs: Slabs::default(),
            beyond: Beyond::default(),
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

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// The call.
    pub api: ApiId,
    /// Kind of memory.
    pub kind: MemoryKind,
    /// The GPU's ordinal in this process.
    pub ordinal: usize,
    /// The context that the allocation will die with, or 0.
    pub context: usize,
    /// What it counts for; of linear memory and pools', what is asked for.
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
        // The table itself uses the other bits.
        let shard = &self.shards[(mixed >> 48) as usize % SHARDS];
        shard.lock()
    }

    /// Charges `request`, runs `allocate`, and remembers what it named; or refuses for lack of room without running it. `allocate` returns
    /// the driver's result with the allocation's name and what it turned out to count for.
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

    /// The limit leaves no room for it: it is given beyond the limit if the job asked for managed memory itself and may have that; else it is refused.
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
            self.allocate_beyond(process, site, request, false, || {
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

    /// The limit leaves no room for linear memory: it is given beyond the limit, or refused.
    #[cold]
    fn linear_beyond_or_refuse(
        &self,
        process: &Process,
        site: &Site<'_>,
        request: &Request,
        refused: Refused,
        allocate: &mut dyn FnMut(Way) -> (u32, Option<(u64, u64)>),
    ) -> u32 {
        self.allocate_beyond(process, site, request, true, || allocate(Way::Beyond))
            .unwrap_or_else(|| self.refuse(site, request, Why::Limit(refused)))
    }

    /// As [`Self::allocate`], for linear memory: `allocate` names an address and how much is there. Small allocations share blocks.
    #[inline(always)]
    pub fn allocate_linear(
        &self,
        process: &Process,
        request: Request,
        mut allocate: impl FnMut(Way) -> (u32, Option<(u64, u64)>),
    ) -> u32 {
        let Some(site) = Site::of(process, request.ordinal) else { return allocate(Way::Device).0 };
        // All that a small one takes if nothing is in its way stands here, so that it is not spread over calls.
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

    /// The same for those that are large, have no limit, or have something in their way.
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

    /// The driver has `answered` a request for which `promised` bytes are promised.
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

    /// The driver refused linear memory with `result`: if it has none, that is given beyond what there is, where the job asked for that.
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
            .then(|| self.allocate_beyond(process, site, request, true, || allocate(Way::Beyond)))
            .flatten()
            .unwrap_or_else(|| self.answered(site, request, result))
    }

    /// A small allocation for which the limit leaves no block of its own: beside others, if it fits there.
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
            // The driver took another block after all.
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

    /// Allocates by `call` from a pool, or from the present one of the request's device.
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

    /// Launches or uploads a graph by `call`, if there is room for what it allocates.
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

    /// Promises what `request` asks for. Before it is refused, what nobody uses is given back.
    fn promise(&self, process: &Process, site: &Site<'_>, request: &Request) -> Result<Promise, Refused> {
        let again = |_| self.promise_after_trimming(process, site, request.ordinal, request.bytes);
        site.reserve(request.bytes).or_else(again)
    }

    /// Has the process give back what nobody uses on a device.
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

    /// Remembers what was allocated.
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
        // The driver gives a name out again only once it is free: that free went past us.
        if let Some(freed) = replaced {
            freed.held.give_back(process, None);
        }
    }

    /// The driver has answered so what the limit had room for.
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
            // The job is told so as it is without deepres.
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
                if self.beyond.is_wanted() { ", and beyond that there is no room for it" } else { "" }
            );
        }
        CUDA_ERROR_OUT_OF_MEMORY
    }

    /// Frees what is at an address by `free`.
    pub fn free_address(&self, process: &Process, address: u64, free: impl FnOnce() -> u32) -> u32 {
        let free = match self.slabs.free(process, address, free) {
            Ok(result) => return result,
            Err(free) => free,
        };
        let free = match self.beyond.is_used() {
            true => match self.beyond.free(process, address, free) {
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

    /// Runs `free`, and gives back what `name` was charged if it succeeds. The allocation is forgotten before: once the driver has freed it, it
    /// may give the same name to another thread.
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
            // Under the lock: whoever ends the context forgets what is here afterwards.
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

    /// The process has waited for the GPU: pools and graphs may have given something back.
    #[inline]
    pub fn refresh(&self, process: &Process) {
        self.pools.refresh(process);
        self.graphs.refresh(process);
    }

    /// Physical memory lives until its last handle is released and its last mapping is gone: takes one use away while `free` runs.
    pub fn release_handle(&self, process: &Process, handle: u64, free: impl FnOnce() -> u32) -> u32 {
        if self.exports.is_used() {
            let _uncancelled = os::uncancelled();
            let _turn = self.exports.turn();
            let last = |free| self.release_shared(process, handle, free);
            return self.release_use(handle, free, last);
        }
        self.release_use(handle, free, |free| self.free(process, Name::Handle(handle), free))
    }

    /// Takes one use away while `free` runs, or `last` with it, if it is the last.
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

    /// Another handle or mapping keeps the memory of `handle`. False if it is not known.
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

    /// Maps `handle` at `address` by `map`. It is kept before: the handle may be released as soon as the driver has mapped it.
    pub fn map(
        &self,
        process: &Process,
        address: u64,
        bytes: u64,
        handle: u64,
        map: impl FnOnce() -> u32,
    ) -> u32 {
        let is_kept = self.retain_handle(handle);
        // What is mapped there already stays noted: the driver refuses to map over it.
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
            // What was there went past us.
            let gone = self.mappings().insert(address, (bytes, handle));
            if let Some((_, gone)) = gone {
                self.release_handle(process, gone, || CUDA_SUCCESS);
            }
        }
        result
    }

    /// Has the driver name another handle of the memory at `address`, by `retain`, which returns it too. It is kept before: another
    /// thread may unmap it as soon as the driver has named it.
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

    /// Runs `unmap`, which unmaps everything in `bytes` bytes at `address`.
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

    /// Forgets what died with a context.
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
        self.beyond.forget_context(context);
        if let Some(session) = process.session() {
            self.beyond.publish(session, &process.gpus);
        }
        self.graphs.forget_live();
        self.refresh(process);
    }

    /// Moves what is held to a new ledger of the session's. New allocations go there already.
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
