//! Memory that the driver takes for contexts. No driver call tells the amount. It is the growth,
//! while the context was made, of the memory that NVML reports beyond the process's account.
//!
//! The first context of a process on a GPU is measured, and the first one beside others. Later
//! contexts are charged with the measured amounts, which must be free under the limit before the
//! driver is asked. A measured context is known only afterwards: if it exceeds the limit, it is
//! ended again and refused.

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

/// How often NVML is asked until the account is equal before and after the question. After so many
/// tries the last figure is taken.
const LOOKS: u32 = 4;
/// Value of [`OnGpu::taken_bytes`] while the amount is not measured.
const UNKNOWN: u64 = u64::MAX;

/// The state of one GPU.
struct OnGpu {
    /// Held while a context is being made, so that its memory is not taken for another's.
    turn: Mutex<()>,
    /// Memory of the first context on the GPU, and of the first context beside others, bytes.
    taken_bytes: [AtomicU64; 2],
}

/// Contexts that NVML has not reported yet.
#[derive(Debug, Default)]
struct LateOnes {
    /// The contexts with the ordinals of their GPUs.
    contexts: Vec<(usize, usize)>,
    /// Number of changes of the list.
    changes: u64,
}

/// The contexts of the process. See the module.
pub struct Contexts {
    /// Existing contexts, with the ordinals of their GPUs.
    there: Mutex<Vec<(usize, usize)>>,
    /// Existing contexts that NVML has not reported yet.
    late: Mutex<LateOnes>,
    /// Whether `late` contains any context.
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
    /// Returns a guard for a GPU, or `None` if there is no such GPU. While the guard lives, no
    /// other thread makes a context there or measures a module that it loads.
    pub fn turn(&self, ordinal: usize) -> Option<MutexGuard<'_, ()>> {
        Some(self.gpus.get(ordinal)?.turn.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Does what [`Self::turn`] does, but returns `None` if another thread holds the guard.
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

    /// Adds a context that NVML has not reported yet.
    fn note_late(&self, context: usize, ordinal: usize) {
        let mut late = self.lock_late();
        late.contexts.push((context, ordinal));
        late.changes += 1;
        self.is_any_late.store(true, Ordering::Release);
    }

    /// Returns a GPU with contexts that NVML has not reported yet, and a number that changes with
    /// the list.
    pub fn late(&self) -> Option<(usize, u64)> {
        if !self.is_any_late.load(Ordering::Acquire) {
            return None;
        }
        let late = self.lock_late();
        late.contexts.first().map(|(_, ordinal)| (*ordinal, late.changes))
    }

    /// Moves the first late context to the end of the list, because NVML does not report it. The
    /// next call of [`Self::late`] may return another GPU.
    pub fn defer_late(&self) {
        let mut late = self.lock_late();
        if !late.contexts.is_empty() {
            late.contexts.rotate_left(1);
        }
    }

    /// Removes and returns the late contexts of a GPU that NVML now reports. Returns `None` if the
    /// list has changed since [`Self::late`] returned `changes`.
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

    /// Returns the existing contexts with the ordinals of their GPUs. While the guard lives, no
    /// context is added.
    pub fn lock(&self) -> MutexGuard<'_, Vec<(usize, usize)>> {
        self.there.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a copy of the existing contexts, as of one moment.
    pub fn there(&self) -> Vec<(usize, usize)> {
        self.lock().clone()
    }

    /// Removes a context that has ended.
    pub fn forget(&self, context: usize) {
        self.lock().retain(|(known, _)| *known != context);
        self.end_late(|late, _| late == context);
    }
}

impl Accounts {
    /// Makes a context on the GPU `ordinal` by `make`, and charges the memory that the driver takes
    /// for it. If the context `is_there` already, only runs `make`.
    ///
    /// `make` returns the result and the handle. `end` destroys a context that is refused
    /// afterwards.
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
        // The libraries are loaded into the new context too. One promise covers all, because a
        // second one would wait for the first.
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
        // NVML reports nothing for a process without contexts.
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
        // A thread that loads a library finds this context with all earlier libraries, or waits for
        // the lock.
        let mut there = self.contexts.lock();
        // An old entry with the same handle means that the end of that context bypassed the
        // interposer.
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

    /// Whether a context exists that the interposer saw being made.
    pub fn has_context(&self, context: Context) -> bool {
        self.device_of_context(context).is_some()
    }

    /// Returns the ordinal of the context's GPU, if the interposer saw the context being made.
    pub fn device_of_context(&self, context: Context) -> Option<usize> {
        let there = self.contexts.lock();
        there.iter().find(|(known, _)| *known == context.0).map(|(_, ordinal)| *ordinal)
    }

    /// Returns the existing context that was made last.
    pub fn last_context(&self) -> Option<Context> {
        self.contexts.lock().last().map(|(context, _)| Context(*context))
    }

    /// Reserves the amount of `request`, unless the amount is 0. Even 0 bytes are refused if the
    /// tenant is above its limit.
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

    /// Returns the memory that a new context has taken, bytes. If the figures are steady, stores it
    /// as the amount of such contexts. Returns `None` if NVML does not report the process.
    fn taken_since(
        &self,
        process: &Process,
        site: &Site<'_>,
        (ordinal, own_bytes): (usize, u64),
        (before_bytes, was_steady): (i64, bool),
        taken: &AtomicU64,
    ) -> Option<u64> {
        let (after_bytes, is_steady) = self.beyond_account(process, site, ordinal, own_bytes)?;
        // Code that the driver loads at once came with the context, and is charged separately.
        let library_bytes = self.libraries.bytes();
        let code_bytes = if library_bytes != 0 && is_eager() { library_bytes } else { 0 };
        let bytes = after_bytes.saturating_sub(before_bytes).max(0).unsigned_abs().saturating_sub(code_bytes);
        if was_steady && is_steady {
            taken.store(bytes, Ordering::Relaxed);
        }
        Some(bytes)
    }

    /// Returns the memory that NVML reports for the process, less the process's account. The
    /// difference is negative if the account counts memory that is not on the GPU at the moment.
    ///
    /// The second value is true if the account did not change meanwhile, apart from the caller's
    /// own promise of `own_bytes`.
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
