//! The device memory that the process holds. The interposer charges memory to the tenant's ledger
//! before it asks the driver for the memory.
//!
//! The account remembers each allocation with its charge. So a free gives back exactly that charge.
//! A free of an unknown allocation gives back nothing.
//!
//! If several allocations share memory, the interposer charges the memory as a whole. Examples are
//! blocks of small allocations ([`slabs`]), pools ([`pools`]) and the memory of graphs
//! ([`graphs`]). For memory that the driver takes by itself, the interposer learns the amount and
//! adds the charge afterwards ([`overhead`]).

pub mod account;
pub mod charge;
pub mod graphs;
mod held;
pub mod ledgers;
mod needs;
pub mod overhead;
pub mod oversubscription;
pub mod pools;
pub mod pressure;
mod room;
mod shared;
pub mod site;
mod slabs;
pub mod tiles;

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use deepres_abi::driver::ApiId;
use deepres_abi::driver::result::{CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS};
use deepres_abi::ledger::Refused;
use deepres_abi::meter::{MemoryKind, REFUSED_BY_DRIVER};
use deepres_abi::quantity::Bytes;

use crate::driver::calls::Context;
use crate::driver::memory::{self, PoolHandle};
use crate::lock_order::{Guard, Mutex, Rank};
use crate::log::say;
use crate::meter::gpu::Gpu;
use crate::process::Process;
use crate::session::Session;
use charge::{BLOCK_BYTES, SHARED_MAX_BYTES};
use graphs::{Full, Graphs, Taker};
use held::Held;
use overhead::Overhead;
use oversubscription::{Oversubscription, Way};
use pools::Pools;
use site::{Promise, Site};
use slabs::Slabs;
use tiles::Tile;

/// The number of refusals by the limit for which the process writes one line on stderr.
const REFUSALS_PER_LINE: u64 = 1000;

/// A hash table whose hashes need neither secrets nor time. The standard library's default asks the
/// kernel for random numbers. If the job's system call filter refuses them, the standard library
/// aborts the process. The driver chooses the keys, so nobody gains by equal hashes.
pub type Plain<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;

/// Spreads numbers over all bits by a multiplication.
#[derive(Debug, Default)]
pub struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        /// 2⁶⁴ divided by the golden ratio.
        const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
        let product = (self.0 ^ number).wrapping_mul(MULTIPLIER);
        // The table takes the place from the low bits, which only the low bits of a number reach.
        self.0 = product ^ (product >> u32::BITS);
    }

    #[inline]
    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    #[inline]
    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }
}

/// The key of an allocation. Addresses and each kind of handle have number spaces of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Name {
    /// A device address.
    Address(u64),
    /// A handle of physical memory.
    Handle(u64),
    /// An array or a mipmapped array.
    Array(u64),
}

#[derive(Debug)]
struct Entry {
    held: Held,
    /// The context whose end frees the allocation, or 0.
    context: usize,
    /// For physical memory: the number of handles and mappings that keep the memory alive.
    uses: u32,
    /// Whether the process exported the memory. If so, other processes can keep it alive too.
    is_exported: bool,
}

/// All allocations of the process, each with its charge.
#[derive(Default)]
pub struct Accounts {
    entries: Mutex<{ Rank::Allocations as u8 }, Plain<Name, Entry>>,
    /// The mappings of physical memory: the length and handle of each mapping, by address.
    mappings: Mutex<{ Rank::Mappings as u8 }, BTreeMap<u64, (u64, u64)>>,
    slabs: Slabs,
    /// The memory beyond the limit.
    pub oversubscription: Oversubscription,
    /// The process's memory pools.
    pub pools: Pools,
    /// The memory that the process's graphs allocate.
    pub graphs: Graphs,
    /// The contexts, and the memory that the driver takes by itself.
    overhead: Overhead,
    /// The memory that is mapped into arrays.
    tiles: Mutex<{ Rank::Tiles as u8 }, Vec<Tile>>,
    /// Whether the process ever exported physical memory.
    has_exported: AtomicBool,
    refusals: AtomicU64,
}

/// A request of the job for GPU memory.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// The driver's function that the job called.
    pub api: ApiId,
    /// The kind of memory for which the job asks.
    pub kind: MemoryKind,
    /// The GPU's ordinal in this process.
    pub ordinal: usize,
    /// The context whose end will free the allocation, or 0.
    pub context: usize,
    /// The amount to charge, bytes. For linear memory and pools: the amount for which the caller
    /// asked.
    pub bytes: u64,
}

/// The reason for which an allocation was refused.
#[derive(Debug, Clone, Copy)]
enum Why {
    /// The limit leaves no room for the request.
    Limit(Refused),
    /// The driver has no memory left.
    Driver,
}

/// The driver's answer to a request: the result, and the name and the bytes of the allocation.
pub type Answer = (u32, Option<(Name, u64)>);

/// Locks a mutex, and returns the guard.
pub fn lock<const RANK: u8, T>(mutex: &Mutex<RANK, T>) -> Guard<'_, T> {
    mutex.lock()
}

/// Locks a mutex, or returns `None` if another thread has the lock.
pub fn try_lock<const RANK: u8, T>(mutex: &Mutex<RANK, T>) -> Option<Guard<'_, T>> {
    mutex.try_lock()
}

impl Request {
    fn is_linear(&self) -> bool {
        matches!(self.kind, MemoryKind::Linear | MemoryKind::Pitch)
    }

    /// Returns whether the driver serves the request from a block that several small allocations
    /// share.
    fn is_small(&self) -> bool {
        self.is_linear() && self.bytes <= SHARED_MAX_BYTES
    }

    /// Returns the amount to reserve for the request, bytes.
    fn reserved_bytes(&self) -> u64 {
        match self.is_linear() {
            _ if self.is_small() => BLOCK_BYTES,
            true => charge::blocks(self.bytes),
            false => self.bytes,
        }
    }
}

impl Accounts {
    fn entries(&self) -> Guard<'_, Plain<Name, Entry>> {
        lock(&self.entries)
    }

    /// Allocates memory for `request`, and returns the result for the job. First reserves the
    /// memory, then asks the driver by `call`, and then records the allocation under the name from
    /// `call`. If the limit leaves no room, refuses the request without a call.
    ///
    /// Small linear allocations share blocks. If the job may oversubscribe, it gets linear and
    /// managed memory beyond the limit.
    pub fn allocate(&self, process: &Process, request: Request, call: &mut dyn FnMut(Way) -> Answer) -> u32 {
        let Some(site) = Site::of_call(process, request.ordinal) else { return call(Way::Device).0 };
        let reserved_bytes = request.reserved_bytes();
        let mut promise = self.slabs.reserve(&site, &request);
        if promise.is_err() {
            if request.is_small()
                && let Some(result) = self.allocate_in_a_hole(process, &site, &request, call)
            {
                return result;
            }
            self.give_back(process, request.ordinal);
            promise = self.slabs.reserve(&site, &request);
        }
        let promise = match promise {
            Ok(promise) => promise,
            Err(refused) => {
                let oversubscribed = self.allocate_oversubscribed(process, &site, &request, call);
                return oversubscribed.unwrap_or_else(|| self.refuse(&site, &request, Why::Limit(refused)));
            }
        };
        let ((result, named), promise) = site.ask(reserved_bytes, promise, || call(Way::Device));
        match named.filter(|_| result == CUDA_SUCCESS) {
            Some((Name::Address(address), bytes)) if request.is_linear() && bytes <= SHARED_MAX_BYTES => {
                self.slabs.insert(process, &site, address, bytes, &request, promise);
            }
            Some((name, bytes)) => {
                let bytes = if request.is_linear() { charge::blocks(bytes) } else { bytes };
                self.enter(process, &site, &request, (name, bytes), promise);
            }
            None => {
                site.withdraw(promise);
                let is_full = result == CUDA_ERROR_OUT_OF_MEMORY && request.is_linear();
                let oversubscribed =
                    is_full.then(|| self.allocate_oversubscribed(process, &site, &request, call)).flatten();
                return oversubscribed.unwrap_or_else(|| self.answered(&site, &request, result));
            }
        }
        result
    }

    /// Allocates a small request although the limit leaves no room for another block. The request
    /// must fit beside other allocations in a charged block. Returns `None` if no block has room
    /// for the request.
    #[cold]
    fn allocate_in_a_hole(
        &self,
        process: &Process,
        site: &Site<'_>,
        request: &Request,
        call: &mut dyn FnMut(Way) -> Answer,
    ) -> Option<u32> {
        let _alone = self.slabs.alone(site)?;
        if !self.slabs.has_hole(request.context, request.bytes) {
            return None;
        }
        let (result, named) = call(Way::Device);
        let Some((Name::Address(address), bytes)) = named.filter(|_| result == CUDA_SUCCESS) else {
            return Some(self.answered(site, request, result));
        };
        // The driver can use a new block, although an existing block has room.
        let promise = if self.slabs.knows(address) { Ok(None) } else { site.reserve(BLOCK_BYTES) };
        match promise {
            Ok(promise) => {
                self.slabs.insert(process, site, address, bytes, request, promise);
                Some(result)
            }
            Err(_) => {
                memory::take_back(&process.calls, Context(request.context), address);
                None
            }
        }
    }

    /// Allocates by `call` from `pool`, and returns the result for the job. Without a pool, `call`
    /// allocates from the current pool of the request's device.
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
    /// allocates. Returns the result for the job.
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

    /// Reserves `bytes`, and returns the reservation. If there is no room, first frees unused
    /// memory of pools and graphs, and tries once more.
    fn promise(
        &self,
        process: &Process,
        site: &Site<'_>,
        ordinal: usize,
        bytes: u64,
    ) -> Result<Promise, Refused> {
        site.reserve(bytes).or_else(|_| {
            self.give_back(process, ordinal);
            site.reserve(bytes)
        })
    }

    /// Makes the pools and graphs of the process return unused memory of a device to the driver.
    #[cold]
    fn give_back(&self, process: &Process, ordinal: usize) {
        let Some(_relaxed) = process.calls.beside_captures() else { return };
        self.pools.trim(process, ordinal);
        self.graphs.trim(process, ordinal);
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
        let mut entries = self.entries();
        let held = Held::new(request.kind, request.ordinal, site, bytes, promise);
        let entry = Entry { held, context: request.context, uses: 1, is_exported: false };
        let replaced = entries.insert(name, entry);
        drop(entries);
        // The driver gives a name out again only after its free. So if the table still has an entry
        // of that name, the free bypassed the interposer.
        if let Some(freed) = replaced {
            freed.held.give_back(process, None);
        }
    }

    /// Handles the driver's answer to a request for which the limit had room. If the GPU is full,
    /// counts a refusal. Returns the result for the job.
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
        let (api, wanted, gpu) = (request.api.symbol(), Bytes(request.bytes), site.gpu);
        let refused = match why {
            Why::Limit(refused) => refused,
            // The job gets the same error as without deepres.
            Why::Driver => {
                say!(Debug, "{api}: the driver has no {wanted} left on {gpu}");
                return CUDA_ERROR_OUT_OF_MEMORY;
            }
        };
        let number = self.refusals.fetch_add(1, Ordering::Relaxed);
        if number.is_multiple_of(REFUSALS_PER_LINE) {
            say!(
                Warn,
                "refused {api} of {wanted} on {gpu}: the tenant holds {} of the {} that it may hold{}",
                Bytes(refused.held_bytes),
                Bytes(site.limit_bytes()),
                if self.oversubscription.is_wanted() { ", and the GPU has no room beyond that" } else { "" }
            );
        }
        CUDA_ERROR_OUT_OF_MEMORY
    }

    /// Frees the allocation at an address by `free`, and returns the result of `free`.
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

    /// Runs `free`, and gives back the charge of `name` if `free` succeeds. Returns the result of
    /// `free`. Removes the entry before `free` runs, because the driver can afterwards give the
    /// same name to another thread.
    pub fn free(&self, process: &Process, name: Name, free: impl FnOnce() -> u32) -> u32 {
        let entry = self.entries().remove(&name);
        let Some(mut entry) = entry else { return free() };
        let exit = entry.held.leave(process);
        let result = free();
        if result == CUDA_SUCCESS {
            entry.held.give_back(process, exit);
        } else {
            if let Some(exit) = exit {
                exit.cancel(process);
            }
            let mut entries = self.entries();
            // The check is under the lock. So a thread that ends the context later removes the
            // entries that it finds here.
            if process.is_gone(entry.context) {
                entry.held.give_back(process, None);
                return result;
            }
            if let Some(session) = process.session() {
                entry.held.follow_on(session, &process.gpus);
            }
            entries.insert(name, entry);
        }
        result
    }

    /// Updates the accounts of pools and graphs, after the process has waited for the GPU. Pools
    /// and graphs may have returned memory to the driver meanwhile.
    #[inline]
    pub fn refresh(&self, process: &Process) {
        self.pools.refresh(process);
        self.graphs.refresh(process);
    }

    /// Removes all allocations that ended with a context, and gives back their charges.
    pub fn forget_context(&self, context: usize, process: &Process) {
        self.forget_tiles_of(process, context);
        for (_, entry) in self.entries().extract_if(|_, entry| entry.context == context) {
            entry.held.give_back(process, None);
        }
        self.slabs.forget_context(process, context);
        self.oversubscription.forget_context(context);
        if let Some(session) = process.session() {
            self.oversubscription.publish(session, &process.gpus);
        }
        self.graphs.forget_live();
        self.refresh(process);
        self.end_overhead_of(process, context);
    }

    /// Moves all charges to a new ledger of the session. The interposer already charges new
    /// allocations there.
    pub fn move_to(&self, session: &Session, gpus: &[Gpu]) {
        self.entries().values_mut().for_each(|entry| entry.held.follow_on(session, gpus));
        self.slabs.move_to(session, gpus);
        self.pools.move_to(session, gpus);
        self.graphs.move_to(session, gpus);
        self.overhead.move_to(session, gpus);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::{BuildHasher as _, BuildHasherDefault};

    use super::*;

    #[test]
    fn the_names_of_allocations_spread_over_a_table_however_far_apart_they_are() {
        const NAMES: u64 = 1024;
        let hash = |name: Name| BuildHasherDefault::<Spread>::default().hash_one(name);
        for apart_bytes in [1, 256, 4096, BLOCK_BYTES, 1 << 32] {
            let kinds = [Name::Address as fn(u64) -> Name, Name::Handle, Name::Array];
            for kind in kinds {
                let names = (0..NAMES).map(|number| kind(0x7f00_0000_0000 + number * apart_bytes));
                let hashes: Vec<u64> = names.map(hash).collect();
                let places: HashSet<u64> = hashes.iter().map(|hash| hash % (2 * NAMES)).collect();
                assert!(places.len() as u64 > NAMES / 2, "{apart_bytes} bytes apart: {}", places.len());
            }
            assert_ne!(hash(Name::Address(apart_bytes)), hash(Name::Handle(apart_bytes)));
        }
    }
}
