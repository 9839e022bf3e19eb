//! The memory that the driver takes by itself, for contexts and code. No call of the driver returns
//! the amount, but NVML shows it: the memory of the process beyond all other charges. On each GPU,
//! this memory is one charge.
//!
//! In a *look*, the interposer asks NVML through the daemon. The interposer looks when a context
//! begins or ends. The interposer also looks if the GPU's free memory changed while the driver
//! loaded or unloaded code. If the limit has no room for the growth, the interposer ends the new
//! context or code again, and refuses the call.
//!
//! If NVML does not answer in time, the meter thread looks again later, and waits for no answer.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use deepres_abi::MAX_GPUS;
use deepres_abi::driver::ApiId;
use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::ledger::Refused;
use deepres_abi::meter::MemoryKind;

use super::charge::BLOCK_BYTES;
use super::held::Held;
use super::site::Site;
use super::{Accounts, Request, Why, lock, try_lock};
use crate::driver::calls::Context;
use crate::driver::managed;
use crate::handshake::Question;
use crate::lock_order::{Mutex, Rank};
use crate::log::say;
use crate::meter::context::ContextState;
use crate::meter::gpu::Gpu;
use crate::os;
use crate::process::{self, Process};
use crate::session::Session;

/// The most questions to NVML in one look. The look ends when the account is equal before and after
/// a question. After so many questions, the look uses the last figure.
const LOOKS: u32 = 4;
/// The first pause, and the longest pause, between two looks that the meter thread repeats without
/// an answer, ns.
const PAUSE_NS: (u64, u64) = (100_000_000, 10_000_000_000);
/// The time for which the meter thread waits for an answer of the daemon, ns. The daemon waits for
/// NVML for a shorter time.
const ANSWER_NS: u64 = 3_000_000_000;
/// The time between two checks of the meter thread for an answer, ns.
const LOOK_NS: u64 = 2_000_000;
/// The number of unanswered looks of the meter thread after which it warns the job.
const TOLD_AFTER: u32 = 4;

/// The charge on one GPU for the memory that the driver takes by itself, and the state of the
/// looks.
struct OnGpu {
    /// The lock that a thread holds while it looks, so that no older figure replaces a newer
    /// figure.
    turn: Mutex<{ Rank::OverheadTurn as u8 }, ()>,
    /// The charge. A thread holds this lock only for a few instructions at a time.
    held: Mutex<{ Rank::OverheadCharge as u8 }, Held>,
    /// The growth by the context that the interposer measured last, bytes.
    context_bytes: AtomicU64,
    /// Whether the last look got no answer of NVML, so that the meter thread must look again.
    is_due: AtomicBool,
}

/// A context that the job made and that still exists.
struct Known {
    handle: usize,
    /// The ordinal of the context's GPU.
    ordinal: usize,
    /// The measured growth by the context and by the code in it, bytes.
    grown_bytes: i64,
}

/// The contexts of the process, and the charge for the memory that the driver takes by itself on
/// each GPU.
pub struct Overhead {
    contexts: Mutex<{ Rank::OverheadContexts as u8 }, Vec<Known>>,
    gpus: [OnGpu; MAX_GPUS],
}

impl Default for Overhead {
    fn default() -> Self {
        let gpu = |ordinal| OnGpu {
            turn: Mutex::default(),
            held: Mutex::new(Held::nothing(MemoryKind::Driver, ordinal)),
            context_bytes: AtomicU64::new(0),
            is_due: AtomicBool::new(false),
        };
        Self { contexts: Mutex::default(), gpus: std::array::from_fn(gpu) }
    }
}

impl Overhead {
    /// Removes a context that has ended. Returns the context's entry, or `None` if the context is
    /// unknown.
    fn forget(&self, handle: usize) -> Option<Known> {
        let mut contexts = lock(&self.contexts);
        let place = contexts.iter().position(|known| known.handle == handle)?;
        Some(contexts.remove(place))
    }

    /// Records that a context or the code in it has grown by `bytes`.
    fn note_growth(&self, handle: usize, bytes: i64) {
        if let Some(known) = lock(&self.contexts).iter_mut().find(|known| known.handle == handle) {
            known.grown_bytes = known.grown_bytes.saturating_add(bytes);
        }
    }

    /// Returns the ordinals of the GPUs with contexts.
    fn ordinals(&self) -> BTreeSet<usize> {
        lock(&self.contexts).iter().map(|known| known.ordinal).collect()
    }

    fn held_bytes(&self, ordinal: usize) -> u64 {
        self.gpus.get(ordinal).map_or(0, |gpu| lock(&gpu.held).bytes)
    }

    fn due(&self) -> Vec<usize> {
        let is_due = |ordinal: &usize| self.gpus[*ordinal].is_due.load(Ordering::Acquire);
        (0..MAX_GPUS).filter(is_due).collect()
    }

    /// Moves the charges to a new ledger of the session.
    pub fn move_to(&self, session: &Session, gpus: &[Gpu]) {
        self.gpus.iter().for_each(|gpu| lock(&gpu.held).follow_on(session, gpus));
    }
}

/// A growth for which the limit has no room.
struct Excess {
    bytes: u64,
    refused: Refused,
}

/// Returns the size of a GPU's account, bytes, and whether no request is under way. The size
/// includes pending bytes, because the driver may already have given the memory of such a request.
fn account(site: &Site<'_>) -> (u64, bool) {
    let (held_bytes, pending_bytes) = (site.account.held_bytes(), site.account.pending_bytes());
    (held_bytes.saturating_add(pending_bytes), pending_bytes == 0)
}

impl Accounts {
    /// Makes a context on the GPU `ordinal` by `make`, and charges the memory that the driver takes
    /// for the context. Returns the result for the job. If the context already exists (`is_there`),
    /// only runs `make`.
    ///
    /// `make` returns the driver's result and the handle. If the limit has no room, `end` destroys
    /// the new context.
    pub fn make_context(
        &self,
        process: &Process,
        (api, ordinal): (ApiId, usize),
        is_there: impl FnOnce() -> bool,
        make: impl FnOnce() -> (u32, Option<Context>),
        end: impl FnOnce(Context),
    ) -> u32 {
        let site = Site::of(process, ordinal).filter(|_| !is_there());
        let Some((site, gpu)) = site.zip(self.overhead.gpus.get(ordinal)) else { return make().0 };
        let request = Request { api, kind: MemoryKind::Driver, ordinal, context: 0, bytes: 0 };
        let (result, made) = make();
        let Some(made) = made.filter(|_| result == CUDA_SUCCESS) else {
            return self.answered(&site, &request, result);
        };
        // If an old entry has the same handle, the end of that context bypassed the interposer.
        self.overhead.forget(made.0);
        lock(&self.overhead.contexts).push(Known { handle: made.0, ordinal, grown_bytes: 0 });
        let likely_bytes = gpu.context_bytes.load(Ordering::Relaxed);
        match self.look(process, &site, request, likely_bytes.cast_signed(), true) {
            Ok(Some(grown_bytes)) => {
                gpu.context_bytes.store(grown_bytes, Ordering::Relaxed);
                self.overhead.note_growth(made.0, grown_bytes.cast_signed());
            }
            Ok(None) => {}
            Err(Excess { bytes, refused }) => {
                self.overhead.forget(made.0);
                end(made);
                return self.refuse(&site, &Request { bytes, ..request }, Why::Limit(refused));
            }
        }
        result
    }

    /// Loads code into the current `context` by `load`. Returns the result for the job. If the
    /// limit has no room for the memory that the driver took for the code, runs `unload` and
    /// refuses the call.
    pub fn load_code(
        &self,
        process: &Process,
        (api, context): (ApiId, &ContextState),
        load: impl FnOnce() -> u32,
        unload: impl FnOnce(),
    ) -> u32 {
        let ordinal = context.ordinal;
        let Some(site) = self.asked_site(process, ordinal) else { return load() };
        let before = free_bytes(process);
        let result = load();
        let request = Request { api, kind: MemoryKind::Driver, ordinal, context: 0, bytes: 0 };
        if result != CUDA_SUCCESS {
            return self.answered(&site, &request, result);
        }
        let taken_bytes =
            before.zip(free_bytes(process)).map_or(0, |(before, now)| before.saturating_sub(now));
        if taken_bytes < BLOCK_BYTES {
            return result;
        }
        match self.look(process, &site, request, taken_bytes.cast_signed(), true) {
            Ok(grown) => {
                self.overhead.note_growth(context.handle().0, grown.unwrap_or(0).cast_signed());
                result
            }
            Err(Excess { bytes, refused }) => {
                unload();
                self.refuse(&site, &Request { bytes, ..request }, Why::Limit(refused))
            }
        }
    }

    /// Unloads code from the current `context` by `unload`, and returns the result of `unload`.
    pub fn unload_code(
        &self,
        process: &Process,
        context: &ContextState,
        unload: impl FnOnce() -> u32,
    ) -> u32 {
        let before = free_bytes(process).filter(|_| self.overhead.held_bytes(context.ordinal) != 0);
        let result = unload();
        let given_bytes = before.and_then(|before| Some(free_bytes(process)?.saturating_sub(before)));
        if let Some(given_bytes) = given_bytes.filter(|bytes| *bytes >= BLOCK_BYTES) {
            self.overhead.note_growth(context.handle().0, -given_bytes.cast_signed());
            self.look_again(process, context.ordinal, -given_bytes.cast_signed());
        }
        result
    }

    /// Adjusts the charge after the end of a context.
    pub(super) fn end_overhead_of(&self, process: &Process, context: usize) {
        let Some(Known { ordinal, grown_bytes, .. }) = self.overhead.forget(context) else { return };
        if self.overhead.ordinals().contains(&ordinal) {
            return self.look_again(process, ordinal, -grown_bytes);
        }
        // NVML reports nothing for a process without contexts.
        let Some((site, gpu)) = Site::of(process, ordinal).zip(self.overhead.gpus.get(ordinal)) else {
            return;
        };
        let _uncancelled = os::uncancelled();
        let _turn = lock(&gpu.turn);
        gpu.is_due.store(false, Ordering::Release);
        lock(&gpu.held).set(&site, 0, None);
    }

    /// Looks at a GPU after a call that the interposer does not refuse. The call may have taken
    /// memory or given memory back. `change_bytes` is the likely change.
    pub(super) fn look_again(&self, process: &Process, ordinal: usize, change_bytes: i64) {
        let Some(site) = self.asked_site(process, ordinal) else { return };
        if self.overhead.gpus[ordinal].is_due.load(Ordering::Acquire) {
            return process.wake_meter();
        }
        let api = ApiId::cuCtxDestroy_v2;
        let request = Request { api, kind: MemoryKind::Driver, ordinal, context: 0, bytes: 0 };
        // This look refuses nothing, so it returns no error.
        let _ = self.look(process, &site, request, change_bytes, false);
    }

    /// Looks at all GPUs on which the process has contexts.
    pub(super) fn look_everywhere(&self, process: &Process) {
        self.overhead.ordinals().into_iter().for_each(|ordinal| self.look_again(process, ordinal, 0));
    }

    /// Looks at all GPUs on which the process has contexts, after the call `api` succeeded. Returns
    /// the result for the job. If a limit has no room for the new memory, runs `undo` and refuses
    /// the call.
    pub(super) fn admit_everywhere(&self, process: &Process, api: ApiId, undo: impl FnOnce()) -> u32 {
        for ordinal in self.overhead.ordinals() {
            let Some(site) = self.asked_site(process, ordinal) else { continue };
            let request = Request { api, kind: MemoryKind::Driver, ordinal, context: 0, bytes: 0 };
            if let Err(Excess { bytes, refused }) = self.look(process, &site, request, 0, true) {
                undo();
                return self.refuse(&site, &Request { bytes, ..request }, Why::Limit(refused));
            }
        }
        CUDA_SUCCESS
    }

    /// Returns the site of a GPU, or `None` if no daemon can answer a question about the GPU.
    fn asked_site<'p>(&self, process: &'p Process, ordinal: usize) -> Option<Site<'p>> {
        let site = Site::of(process, ordinal).filter(|_| ordinal < MAX_GPUS)?;
        site.session.standalone().is_none().then_some(site)
    }

    /// Looks at a GPU: charges the memory that NVML reports beyond the other charges.
    /// `change_bytes` is the likely change. Returns the growth, or `None` if NVML did not answer.
    ///
    /// # Errors
    /// [`Excess`] if the limit has no room for the growth, and the call `may_be_refused`.
    fn look(
        &self,
        process: &Process,
        site: &Site<'_>,
        request: Request,
        change_bytes: i64,
        may_be_refused: bool,
    ) -> Result<Option<u64>, Excess> {
        let ordinal = request.ordinal;
        let gpu = &self.overhead.gpus[ordinal];
        let _uncancelled = os::uncancelled();
        let _turn = lock(&gpu.turn);
        let Some(found) = self.ask_nvml(process, site, ordinal) else {
            if site.session.standalone().is_none() {
                gpu.is_due.store(true, Ordering::Release);
                process.wake_meter();
            }
            return Ok(None);
        };
        gpu.is_due.store(false, Ordering::Release);
        let held_bytes = self.overhead.held_bytes(ordinal);
        let bytes = self.beyond(site, ordinal, found, change_bytes);
        let grown_bytes = bytes.saturating_sub(held_bytes);
        let promise = if may_be_refused && grown_bytes != 0 {
            let promise = self.promise(process, site, ordinal, grown_bytes);
            promise.map_err(|refused| Excess { bytes: grown_bytes, refused })?
        } else {
            None
        };
        lock(&gpu.held).set(site, bytes, promise);
        Ok(Some(grown_bytes))
    }

    /// Returns the memory that NVML reports for the process, and the size of the account at that
    /// moment. Returns `None` if NVML did not answer, or if the answer does not belong to the
    /// site's account.
    fn ask_nvml(&self, process: &Process, site: &Site<'_>, ordinal: usize) -> Option<(u64, u64)> {
        self.refresh(process);
        let mut looks = LOOKS;
        loop {
            let (before_bytes, _) = account(site);
            let seen_bytes = process.appraise(ordinal)?;
            let (after_bytes, is_at_rest) = account(site);
            looks -= 1;
            if (is_at_rest && before_bytes == after_bytes) || looks == 0 {
                return is_usable(site).then_some((seen_bytes, before_bytes.max(after_bytes)));
            }
        }
    }

    /// Returns the memory beyond the other charges, if NVML reports `seen_bytes` while the account
    /// has `account_bytes`.
    ///
    /// Managed memory may be on the GPU or not, so NVML's figure leaves a range. The result is the
    /// former charge with its likely change. If this sum is outside the range, the result is the
    /// nearer end of the range.
    fn beyond(
        &self,
        site: &Site<'_>,
        ordinal: usize,
        (seen_bytes, account_bytes): (u64, u64),
        change_bytes: i64,
    ) -> u64 {
        let held_bytes = self.overhead.held_bytes(ordinal);
        let (beside_bytes, _) = self.oversubscription.amounts(ordinal);
        let place = MemoryKind::Managed.place();
        let managed = site.gpu.meter().zip(place).map(|(meter, place)| &meter.held_bytes[place]);
        let managed_bytes = managed.map_or(0, |bytes| bytes.load(Ordering::Relaxed));
        let others_bytes = account_bytes.saturating_sub(held_bytes);
        let least_bytes = seen_bytes.saturating_sub(others_bytes.saturating_add(beside_bytes));
        let most_bytes = seen_bytes.saturating_sub(others_bytes.saturating_sub(managed_bytes));
        held_bytes.saturating_add_signed(change_bytes).clamp(least_bytes, most_bytes)
    }

    /// Returns whether a context exists that the interposer saw begin.
    pub fn has_context(&self, context: Context) -> bool {
        self.device_of_context(context).is_some()
    }

    /// Returns the ordinal of the context's GPU, or `None` if the interposer did not see the
    /// context begin.
    pub fn device_of_context(&self, context: Context) -> Option<usize> {
        let contexts = lock(&self.overhead.contexts);
        contexts.iter().find(|known| known.handle == context.0).map(|known| known.ordinal)
    }

    /// Returns the newest of the existing contexts, or `None` if there is none.
    pub fn last_context(&self) -> Option<Context> {
        lock(&self.overhead.contexts).last().map(|known| Context(known.handle))
    }
}

/// Returns the free memory of the current context's GPU, bytes. The function works during a stream
/// capture too.
fn free_bytes(process: &Process) -> Option<u64> {
    let _relaxed = process.calls.beside_captures()?;
    managed::free_bytes()
}

/// Returns whether a figure of NVML fits the site's account. If the account moved to a new ledger,
/// the figure does not fit. If the GPU's gate is paused, the figure does not fit either, because
/// the memory of a suspended tenant is on the host.
fn is_usable(site: &Site<'_>) -> bool {
    site.is_present() && !site.gpu.is_paused()
}

/// A question that the meter thread sent to the daemon.
#[derive(Debug)]
struct Asked {
    question: Question,
    ordinal: usize,
    /// The size of the process's account when the interposer asked, bytes.
    before_bytes: u64,
    until_ns: u64,
}

/// The looks that the meter thread repeats, because NVML did not answer in time.
#[derive(Debug)]
pub struct LateLooks {
    due_ns: u64,
    pause_ns: u64,
    asked: Option<Asked>,
    /// The number of looks, which selects the GPU of the next look.
    looks: usize,
    in_vain: u32,
}

impl Default for LateLooks {
    fn default() -> Self {
        Self { due_ns: 0, pause_ns: PAUSE_NS.0, asked: None, looks: 0, in_vain: 0 }
    }
}

impl LateLooks {
    /// Sends the next question, or checks for an answer. Returns the time until the next call is
    /// due, ns, or `None` if no look is due.
    pub fn step(&mut self, process: &Process, now_ns: u64) -> Option<u64> {
        let due = process.memory.overhead.due();
        if due.is_empty() {
            *self = Self::default();
            return None;
        }
        if let Some(asked) = self.asked.take() {
            self.receive(process, asked, now_ns);
        } else if now_ns >= self.due_ns {
            let ordinal = due[self.looks % due.len()];
            self.looks = self.looks.wrapping_add(1);
            self.ask(process, ordinal, now_ns);
        }
        Some(if self.asked.is_some() { LOOK_NS } else { self.due_ns.saturating_sub(now_ns) })
    }

    fn ask(&mut self, process: &Process, ordinal: usize, now_ns: u64) {
        process.memory.refresh(process);
        match Site::of(process, ordinal).zip(process.question(ordinal)) {
            Some((site, question)) => {
                let until_ns = now_ns.saturating_add(ANSWER_NS);
                let (before_bytes, _) = account(&site);
                self.asked = Some(Asked { question, ordinal, before_bytes, until_ns });
            }
            None => self.pause(ordinal, now_ns, true),
        }
    }

    fn receive(&mut self, process: &Process, asked: Asked, now_ns: u64) {
        match asked.question.answer() {
            Err(question) if now_ns < asked.until_ns => self.asked = Some(Asked { question, ..asked }),
            Ok(Some(seen_bytes)) => {
                process.believe_appraisals();
                if process.memory.settle_late(process, asked.ordinal, seen_bytes, asked.before_bytes) {
                    *self = Self { looks: self.looks, ..Self::default() };
                } else {
                    self.pause(asked.ordinal, now_ns, false);
                }
            }
            _ => self.pause(asked.ordinal, now_ns, true),
        }
    }

    fn pause(&mut self, ordinal: usize, now_ns: u64, is_in_vain: bool) {
        self.in_vain = self.in_vain.saturating_add(u32::from(is_in_vain));
        if is_in_vain && self.in_vain == TOLD_AFTER {
            say!(
                Warn,
                "deepres does not charge the memory of this process's contexts and code on {} until NVML reports it to the daemon",
                process::gpu_name(ordinal)
            );
        }
        self.due_ns = now_ns.saturating_add(self.pause_ns);
        self.pause_ns = (self.pause_ns * 2).min(PAUSE_NS.1);
    }
}

impl Accounts {
    /// Charges the amount that NVML reported to the meter thread. Returns false if the account
    /// changed between the question and the answer, or if another thread is looking.
    fn settle_late(&self, process: &Process, ordinal: usize, seen_bytes: u64, before_bytes: u64) -> bool {
        let gpu = &self.overhead.gpus[ordinal];
        let Some(_turn) = try_lock(&gpu.turn) else { return false };
        let Some(site) = Site::of(process, ordinal).filter(is_usable) else { return false };
        let (account_bytes, is_at_rest) = account(&site);
        if !is_at_rest || account_bytes != before_bytes {
            return false;
        }
        gpu.is_due.store(false, Ordering::Release);
        let bytes = self.beyond(&site, ordinal, (seen_bytes, account_bytes), 0);
        lock(&gpu.held).set(&site, bytes, None);
        true
    }
}
