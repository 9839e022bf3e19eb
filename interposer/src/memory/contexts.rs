//! What the driver takes for contexts. No call of the driver's tells: it is what NVML says of the process, less its account, once the context was made
//! beyond before.
//!
//! The first context of a process on a GPU is measured, and the first one beside others; later ones take what those took, which must then be free under the
//! limit before the driver is asked. Of one that is measured it shows afterwards: if it passes the limit, it is ended again and refused.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use deepres_abi::MAX_GPUS;
use deepres_abi::driver::ApiId;
use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::ledger::{Refused, Reservation};
use deepres_abi::meter::MemoryKind;

use super::site::{Promise, Site};
use super::{Accounts, Name, Request, Why};
use crate::driver::calls::Context;
use crate::driver::code::is_eager;
use crate::process::Process;

/// How often NVML is asked for a figure between two equal looks at the account, before the last one is taken.
const LOOKS: u32 = 4;
/// In [`Contexts::taken_bytes`]: not measured.
const UNKNOWN: u64 = u64::MAX;

/// Those of one GPU.
struct OnGpu {
    /// Held while one is being made: what it takes is not to be mistaken for another's.
    turn: Mutex<()>,
    /// What the first context on the GPU took, and the first beside others.
    taken_bytes: [AtomicU64; 2],
}

/// Contexts that NVML has not told of yet.
#[derive(Debug, Default)]
struct LateOnes {
    /// With their GPUs' ordinals.
    contexts: Vec<(usize, usize)>,
    /// How often one came or went.
    changes: u64,
}

/// See the module.
pub struct Contexts {
    /// Those there are, with their GPUs' ordinals.
    there: Mutex<Vec<(usize, usize)>>,
    /// Of those the ones that NVML has not told of.
    late: Mutex<LateOnes>,
    /// Whether there are such.
    is_any_late: AtomicBool,
    gpus: [OnGpu; MAX_GPUS],
}

impl Default for Contexts {
    fn default() -> Self {
        let gpu = |_| OnGpu { turn: Mutex::default(), taken_bytes: [const { AtomicU64::new(UNKNOWN) }; 2] };
        Self {
            there: Mutex::default(),
            late: Mutex::default(),
            is_any_late: AtomicBool::new(false),
            gpus: std::array::from_fn(gpu),
        }
    }
}

impl Contexts {
    /// While the result lives nobody else on that GPU makes a context, nor has measured what it loads. `None`: there is no such GPU.
    pub fn turn(&self, ordinal: usize) -> Option<MutexGuard<'_, ()>> {
        Some(self.gpus.get(ordinal)?.turn.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The same, if nobody has it now.
    pub fn try_turn(&self, ordinal: usize) -> Option<MutexGuard<'_, ()>> {
        match self.gpus.get(ordinal)?.turn.try_lock() {
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn lock_late(&self) -> MutexGuard<'_, LateOnes> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// NVML has not told of one yet.
    fn note_late(&self, context: usize, ordinal: usize) {
        let mut late = self.lock_late();
        late.contexts.push((context, ordinal));
        late.changes += 1;
        self.is_any_late.store(true, Ordering::Release);
    }

    /// A GPU with contexts that NVML has not told of yet, and a number that changes with them.
    pub fn late(&self) -> Option<(usize, u64)> {
        if !self.is_any_late.load(Ordering::Acquire) {
            return None;
        }
        let late = self.lock_late();
        late.contexts.first().map(|(_, ordinal)| (*ordinal, late.changes))
    }

    /// NVML does not tell of those on that GPU: others have their turn.
    pub fn defer_late(&self) {
        let mut late = self.lock_late();
        if !late.contexts.is_empty() {
            late.contexts.rotate_left(1);
        }
    }

    /// NVML tells of those on a GPU, if they are the same as at that number of [`Self::late`].
    pub fn take_late(&self, ordinal: usize, changes: u64) -> Option<Vec<usize>> {
        if self.lock_late().changes != changes {
            return None;
        }
        Some(self.end_late(|_, of| of == ordinal))
    }

    fn end_late(&self, is_meant: impl Fn(usize, usize) -> bool) -> Vec<usize> {
        let mut late = self.lock_late();
        let ended = late.contexts.extract_if(.., |(context, ordinal)| is_meant(*context, *ordinal));
        let ended: Vec<usize> = ended.map(|(context, _)| context).collect();
        late.changes += u64::from(!ended.is_empty());
        if late.contexts.is_empty() {
            self.is_any_late.store(false, Ordering::Release);
        }
        ended
    }

    /// The contexts there are, with their GPUs' ordinals; while the result lives there come no others.
    pub fn lock(&self) -> MutexGuard<'_, Vec<(usize, usize)>> {
        self.there.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same at one moment.
    pub fn there(&self) -> Vec<(usize, usize)> {
        self.lock().clone()
    }

    /// One has ended.
    pub fn forget(&self, context: usize) {
        self.lock().retain(|(known, _)| *known != context);
        self.end_late(|late, _| late == context);
    }
}

impl Accounts {
    /// Makes a context on the GPU `ordinal` by `make`, unless `is_there` one already, and charges what the driver takes for it. `make` returns the result and
    /// the handle; `end` takes a context back that is refused.
    pub fn make_context(
        &self,
        process: &Process,
        (api, ordinal): (ApiId, usize),
        is_there: impl Fn() -> bool,
        make: impl FnOnce() -> (u32, Option<Context>),
        end: impl FnOnce(Context),
    ) -> u32 {
        if is_there() {
            return make().0;
        }
        let _turn = self.contexts.turn(ordinal);
        let Some(site) = Site::of(process, ordinal).filter(|_| !is_there()) else { return make().0 };
        let Some(gpu) = self.contexts.gpus.get(ordinal) else { return make().0 };
        let is_first = self.contexts.lock().iter().all(|(_, other)| *other != ordinal);
        let taken = &gpu.taken_bytes[usize::from(!is_first)];
        let known_bytes = Some(taken.load(Ordering::Relaxed)).filter(|bytes| *bytes != UNKNOWN);
        let mut bytes = known_bytes.unwrap_or(0);
        // With the context come the libraries. One promise for all: a second one would wait for the first, which is in its way.
        let libraries = self.libraries.wanted();
        let library_bytes = libraries.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        let mut request = Request {
            api,
            kind: MemoryKind::Context,
            ordinal,
            context: 0,
            bytes: library_bytes.saturating_add(bytes),
        };
        let mut promise = match self.promise_any(process, &site, &request) {
            Ok(promise) => promise,
            Err(refused) => return self.refuse(&site, &request, Why::Limit(refused)),
        };
        let own_bytes = promise.as_ref().map_or(0, Reservation::bytes);
        // A process without contexts there is none of NVML's.
        let before = match known_bytes {
            Some(_) => None,
            None if is_first => Some((0, true)),
            None => self.beyond_account(process, &site, ordinal, own_bytes),
        };
        let mut is_late = known_bytes.is_none() && before.is_none();
        let (result, made) = make();
        let Some(made) = made.filter(|_| result == CUDA_SUCCESS) else {
            site.withdraw(promise);
            return self.answered(&site, &request, result);
        };
        if let Some(before) = before {
            let taken_bytes = self.taken_since(process, &site, (ordinal, own_bytes), before, taken);
            is_late = taken_bytes.is_none();
            bytes = taken_bytes.unwrap_or(0);
            site.withdraw(promise);
            request.bytes = library_bytes.saturating_add(bytes);
            promise = match self.promise_any(process, &site, &request) {
                Ok(promise) => promise,
                Err(refused) => {
                    end(made);
                    return self.refuse(&site, &request, Why::Limit(refused));
                }
            };
        }
        request.bytes = bytes;
        request.context = made.0;
        // Whoever loads a library finds the context with all those before it, or waits.
        let mut there = self.contexts.lock();
        // One of that handle whose end went past us is gone.
        there.retain(|(known, _)| *known != made.0);
        there.push((made.0, ordinal));
        let of_libraries = promise.as_mut().map(|promise| promise.split_off(library_bytes));
        self.libraries.enter_context(&site, (ordinal, made.0), &libraries, of_libraries);
        self.enter_context(process, &site, &request, promise);
        drop(there);
        if is_late && site.session.standalone().is_none() {
            self.contexts.note_late(made.0, ordinal);
            process.wake_meter();
        }
        result
    }

    /// Whether a context is there that was made with our knowledge.
    pub fn has_context(&self, context: Context) -> bool {
        self.device_of_context(context).is_some()
    }

    /// The ordinal of the GPU on which that context was made, if it was with our knowledge.
    pub fn device_of_context(&self, context: Context) -> Option<usize> {
        let there = self.contexts.lock();
        there.iter().find(|(known, _)| *known == context.0).map(|(_, ordinal)| *ordinal)
    }

    /// Of those that are there the one that was made last.
    pub fn last_context(&self) -> Option<Context> {
        self.contexts.lock().last().map(|(context, _)| Context(*context))
    }

    /// Promises what `request` asks for, if that is anything: nothing fits under any limit.
    fn promise_any(&self, process: &Process, site: &Site<'_>, request: &Request) -> Result<Promise, Refused> {
        if request.bytes == 0 { Ok(None) } else { self.promise(process, site, request) }
    }

    fn enter_context(&self, process: &Process, site: &Site<'_>, request: &Request, promise: Promise) {
        if request.bytes == 0 {
            return site.withdraw(promise);
        }
        let name = Name::Context(request.context as u64);
        self.enter(process, site, request, (name, request.bytes), promise);
    }

    /// What a context has taken that was just made, bytes; remembered as what such a context takes, if the figures are steady. `None`: NVML does not tell.
    fn taken_since(
        &self,
        process: &Process,
        site: &Site<'_>,
        (ordinal, own_bytes): (usize, u64),
        (before_bytes, was_steady): (i64, bool),
        taken: &AtomicU64,
    ) -> Option<u64> {
        let (after_bytes, is_steady) = self.beyond_account(process, site, ordinal, own_bytes)?;
        // What is loaded at once came with the context, and counts for itself.
        let library_bytes = self.libraries.bytes();
        let code_bytes = if library_bytes != 0 && is_eager() { library_bytes } else { 0 };
        let bytes = after_bytes.saturating_sub(before_bytes).max(0).unsigned_abs().saturating_sub(code_bytes);
        if was_steady && is_steady {
            taken.store(bytes, Ordering::Relaxed);
        }
        Some(bytes)
    }

    /// What NVML says that the process holds beyond its account; less than nothing where that counts what is not the GPU's at the moment. And whether the
    /// account stood still meanwhile, but for the caller's own promise of `own_bytes`.
    pub(super) fn beyond_account(
        &self,
        process: &Process,
        site: &Site<'_>,
        ordinal: usize,
        own_bytes: u64,
    ) -> Option<(i64, bool)> {
        self.refresh(process);
        let mut looks = LOOKS;
        loop {
            let before_bytes = site.account.held_bytes();
            let seen_bytes = process.appraise(ordinal)?;
            looks -= 1;
            let is_steady =
                site.account.held_bytes() == before_bytes && site.account.pending_bytes() == own_bytes;
            if is_steady || looks == 0 {
                return Some((
                    seen_bytes.cast_signed().saturating_sub(before_bytes.cast_signed()),
                    is_steady,
                ));
            }
        }
    }
}
