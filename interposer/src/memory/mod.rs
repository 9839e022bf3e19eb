//! Device memory: what the process holds, charged to its tenant's ledger before the driver is asked.
//!
//! Each allocation is remembered with what it was charged, so that a free gives back exactly that, and a free of anything else
//! gives back nothing.

pub mod charge;
pub mod ledgers;
pub mod pressure;
mod room;

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use deepres_abi::driver::ApiId;
use deepres_abi::driver::result::{CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS};
use deepres_abi::grant::NO_LIMIT;
use deepres_abi::ledger::{Account, Refused, Reservation};
use deepres_abi::meter::MemoryKind;

use crate::log::say;
use crate::meter::gpu::Gpu;
use crate::process::Process;
use crate::session::Session;

/// Tables that the allocations are spread over, each with a lock of its own.
const SHARDS: usize = 64;
/// Of refusals of one process, every how many are written to stderr.
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
}

impl Name {
    const fn mixed(self) -> u64 {
        /// 2⁶⁴ divided by the golden ratio.
        const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
        let (number, class) = match self {
            Self::Address(number) => (number, 0),
            Self::Handle(number) => (number, 1),
            Self::Array(number) => (number, 2),
        };
        (number ^ (class << 61)).wrapping_mul(MULTIPLIER)
    }
}

/// Names are mixed already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, value: u64) {
        // The table takes its buckets by the low bits, which a product with aligned addresses leaves zero.
        self.0 = value ^ (value >> 32);
    }
}

/// Keyed by [`Name::mixed`], which is a bijection for each class of names; a clash between classes would need numbers of 61 bits.
type Table = HashMap<u64, Entry, BuildHasherDefault<Identity>>;

#[derive(Debug, Clone, Copy)]
struct Entry {
    bytes: u64,
    kind: MemoryKind,
    /// The GPU's ordinal in this process.
    ordinal: usize,
    /// The context that the allocation dies with, or 0.
    context: usize,
    /// The ledger that it is in ([`ledgers::Ledger::generation`]).
    generation: u32,
    /// For physical memory: handles and mappings that keep it.
    uses: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Accounts {
    shards: [Mutex<Table>; SHARDS],
    /// Physical memory that is mapped: length and handle of each mapping, by its address.
    mappings: Mutex<BTreeMap<u64, (u64, u64)>>,
    refusals: AtomicU64,
}

impl Default for Accounts {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            mappings: Mutex::default(),
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
    /// What it counts for.
    pub bytes: u64,
}

impl Accounts {
    fn shard(&self, name: Name) -> MutexGuard<'_, Table> {
        let mixed = name.mixed();
        // The table itself uses the other bits.
        let shard = &self.shards[(mixed >> 48) as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Charges `request`, runs `allocate`, and remembers what it named; or refuses for lack of room without running it. `allocate` returns
    /// the driver's result with the allocation's name and what it turned out to count for.
    pub fn allocate(
        &self,
        process: &Process,
        request: Request,
        mut allocate: impl FnMut() -> (u32, Option<(Name, u64)>),
    ) -> u32 {
        let Some((session, gpu)) = process.session().zip(process.gpus.get(request.ordinal)) else {
            return allocate().0;
        };
        let ledger = session.ledger();
        let Some((grant, account)) = gpu.grant().zip(gpu.index().and_then(|index| ledger.account(index)))
        else {
            return allocate().0;
        };
        let limit_bytes = grant.memory_limit();
        let reservation = match reserve(session, account, request.bytes, limit_bytes) {
            Ok(reservation) => reservation,
            Err(refused) => {
                self.refuse(gpu, request, limit_bytes, refused.held_bytes);
                return CUDA_ERROR_OUT_OF_MEMORY;
            }
        };
        let mut answered = allocate();
        if answered.0 == CUDA_ERROR_OUT_OF_MEMORY
            && let Some(later) = room::ask_again(session, gpu, account, request.bytes, &mut allocate)
        {
            answered = later;
        }
        let (result, named) = answered;
        let named = named.filter(|_| result == CUDA_SUCCESS);
        let bytes = named.map_or(0, |(_, bytes)| bytes);
        // A ledger that is gone took with it what was promised there.
        if session.has_ledger(&ledger) {
            settle(account, reservation, bytes);
        } else {
            mem::forget(reservation);
        }
        let Some((name, _)) = named else { return result };
        let mut entry = Entry {
            bytes,
            kind: request.kind,
            ordinal: request.ordinal,
            context: request.context,
            generation: ledger.generation,
            uses: 1,
        };
        hold(gpu, entry, true);
        let mut shard = self.shard(name);
        // The daemon may have come back meanwhile, after this shard was moved to its new ledger.
        move_one(session, gpu, &mut entry);
        let replaced = shard.insert(name.mixed(), entry);
        drop(shard);
        // The driver gives a name out again only once it is free: that free went past us.
        if let Some(freed) = replaced {
            give_back(process, freed);
        }
        result
    }

    #[cold]
    fn refuse(&self, gpu: &Gpu, request: Request, limit_bytes: u64, held_bytes: u64) {
        if let Some(meter) = gpu.meter() {
            meter.last_refused_bytes.store(request.bytes, Ordering::Relaxed);
            meter.last_refused_api.store(request.api as u32, Ordering::Relaxed);
            meter.refusals.fetch_add(1, Ordering::Relaxed);
        }
        let number = self.refusals.fetch_add(1, Ordering::Relaxed);
        if number.is_multiple_of(REFUSALS_PER_LINE) {
            say!(
                Warn,
                "{} refused: {} bytes asked for, {held_bytes} of the tenant's {limit_bytes} held on GPU {}",
                request.api.symbol(),
                request.bytes,
                request.ordinal
            );
        }
    }

    /// Runs `free`, and gives back what `name` was charged if it succeeds. The allocation is forgotten before: once the driver has freed it, it
    /// may give the same name to another thread.
    pub fn free(&self, process: &Process, name: Name, free: impl FnOnce() -> u32) -> u32 {
        let entry = self.shard(name).remove(&name.mixed());
        let result = free();
        let Some(mut entry) = entry else { return result };
        if result == CUDA_SUCCESS {
            give_back(process, entry);
        } else {
            let mut shard = self.shard(name);
            if let Some((session, gpu)) = process.session().zip(process.gpus.get(entry.ordinal)) {
                move_one(session, gpu, &mut entry);
            }
            shard.insert(name.mixed(), entry);
        }
        result
    }

    /// Physical memory lives until its last handle is released and its last mapping is gone: takes one use away while `free` runs.
    pub fn release_handle(&self, process: &Process, handle: u64, free: impl FnOnce() -> u32) -> u32 {
        let name = Name::Handle(handle);
        let last = {
            let mut shard = self.shard(name);
            match shard.get_mut(&name.mixed()) {
                Some(entry) if entry.uses > 1 => {
                    entry.uses -= 1;
                    false
                }
                Some(_) => true,
                None => return free(),
            }
        };
        if last {
            return self.free(process, name, free);
        }
        let result = free();
        if result != CUDA_SUCCESS {
            self.retain_handle(handle);
        }
        result
    }

    /// Another handle or mapping keeps the memory of `handle`.
    pub fn retain_handle(&self, handle: u64) {
        let name = Name::Handle(handle);
        if let Some(entry) = self.shard(name).get_mut(&name.mixed()) {
            entry.uses = entry.uses.saturating_add(1);
        }
    }

    fn mappings(&self) -> MutexGuard<'_, BTreeMap<u64, (u64, u64)>> {
        self.mappings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `handle` was mapped at `address`.
    pub fn map(&self, address: u64, bytes: u64, handle: u64) {
        self.retain_handle(handle);
        self.mappings().insert(address, (bytes, handle));
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
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for (_, entry) in shard.extract_if(|_, entry| entry.context == context) {
                give_back(process, entry);
            }
        }
    }

    /// Moves what is held to a new ledger of the session's. New allocations go there already.
    pub fn move_to(&self, session: &Session, gpus: &[Gpu]) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for entry in shard.values_mut() {
                if let Some(gpu) = gpus.get(entry.ordinal) {
                    move_one(session, gpu, entry);
                }
            }
        }
    }
}

/// The driver answered: `bytes` are held, of which what was promised may be more or less.
#[inline]
fn settle(account: Account<'_>, reservation: Option<Reservation<'_>>, bytes: u64) {
    let promised_bytes = reservation.as_ref().map_or(0, Reservation::bytes);
    match reservation {
        Some(reservation) if bytes != 0 => reservation.commit(),
        _ => return account.charge(bytes),
    }
    if bytes > promised_bytes {
        account.charge(bytes - promised_bytes);
    } else if bytes < promised_bytes {
        account.release(promised_bytes - bytes);
    }
}

/// Promises `bytes` of `account` to a request under a limit; without one nothing need be promised.
fn reserve<'a>(
    session: &Session,
    account: Account<'a>,
    bytes: u64,
    limit_bytes: u64,
) -> Result<Option<Reservation<'a>>, Refused> {
    if limit_bytes == NO_LIMIT {
        return Ok(None);
    }
    let reserve = || account.reserve(bytes, limit_bytes, std::thread::yield_now);
    reserve().or_else(|refused| session.bury_dead().then(reserve).unwrap_or(Err(refused))).map(Some)
}

/// Moves an allocation to the ledger there is, if it is in one of before. Its table's lock is held, so it is moved once.
fn move_one(session: &Session, gpu: &Gpu, entry: &mut Entry) {
    if entry.generation == session.ledger_generation() {
        return;
    }
    let ledger = session.ledger();
    entry.generation = ledger.generation;
    if let Some(account) = gpu.index().and_then(|index| ledger.account(index)) {
        account.charge(entry.bytes);
    }
}

fn give_back(process: &Process, entry: Entry) {
    let Some((session, gpu)) = process.session().zip(process.gpus.get(entry.ordinal)) else { return };
    let ledger = session.ledger();
    // What was in a ledger of before went with it.
    if entry.generation == ledger.generation
        && let Some(account) = gpu.index().and_then(|index| ledger.account(index))
    {
        account.release(entry.bytes);
    }
    hold(gpu, entry, false);
}

/// Keeps the meter page's count by kind.
fn hold(gpu: &Gpu, entry: Entry, more: bool) {
    let Some(held) = gpu.meter().and_then(|meter| meter.held_bytes.get(entry.kind as usize)) else { return };
    if more {
        held.fetch_add(entry.bytes, Ordering::Relaxed);
    } else {
        let _ = held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            Some(held.saturating_sub(entry.bytes))
        });
    }
}
