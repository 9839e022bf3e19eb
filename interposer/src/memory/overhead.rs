//! The memory that the driver takes by itself, for contexts and code. No call of the driver returns
//! the amount, but NVML shows it: the memory of the process beyond all other charges. On each GPU,
//! this memory is one charge.
//!
//! The daemon tells each session NVML's figure every second ([`Appraisal`]). The meter thread
//! adjusts the charge by these figures. So the charge also follows memory that the driver takes
//! without a call that the interposer could refuse. Examples are code that the driver loads at its
//! first use, local memory, the heap of kernels, and executable graphs. If the charge exceeds the
//! limit, the tenant keeps what it holds, and the ledger refuses its next allocation.
//!
//! In a *look*, the interposer asks NVML through the daemon, because it can still undo a call. The
//! interposer looks when a context begins or ends. The interposer also looks if the GPU's free
//! memory changed while the driver loaded or unloaded code. If the limit has no room for the
//! growth, the interposer ends the new context or code again, and refuses the call. If NVML does
//! not answer in time, the charge follows with the daemon's next figures.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use deepres_abi::MAX_GPUS;
use deepres_abi::driver::ApiId;
use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::grant::{Appraisal, GrantSlot};
use deepres_abi::ledger::Refused;
use deepres_abi::meter::MemoryKind;

use super::charge::BLOCK_BYTES;
use super::held::Held;
use super::site::Site;
use super::{Accounts, Request, Why, lock, try_lock};
use crate::driver::calls::Context;
use crate::driver::managed;
use crate::lock_order::{Mutex, Rank};
use crate::log::say;
use crate::meter::context::ContextState;
use crate::meter::gpu::Gpu;
use crate::os;
use crate::process::{self, Process};
use crate::session::Session;

/// The most questions to NVML in one look, which compares NVML's figure with the account. The look
/// ends when the account is equal before and after a question. After so many questions, the look
/// uses the last figure.
const LOOKS: u32 = 4;
/// The time after a look without an answer after which the meter thread warns the job, ns. The
/// daemon tells the figures every second.
const TOLD_AFTER_NS: u64 = 2_000_000_000;

/// The charge on one GPU for the memory that the driver takes by itself, and the state of the
/// looks.
struct OnGpu {
    /// The lock that a thread holds while it looks, so that no older figure replaces a newer
    /// figure.
    turn: Mutex<{ Rank::OverheadTurn as u8 }, ()>,
    /// The charge for memory that the driver takes by itself. A thread holds this lock only for a
    /// few instructions at a time.
    held: Mutex<{ Rank::OverheadCharge as u8 }, Held>,
    /// The memory that the driver took for the context that the interposer measured last, bytes.
    context_bytes: AtomicU64,
    /// The number of calls under way that the interposer may undo after a look.
    making: AtomicU32,
    /// When the charge last changed, ns of `CLOCK_MONOTONIC`.
    changed_ns: AtomicU64,
    /// When a look got no answer of NVML, ns of `CLOCK_MONOTONIC`; 0 if the charge has followed
    /// NVML since.
    unanswered_ns: AtomicU64,
}

/// A call under way that the interposer may undo. Until the drop of this value, no appraisal
/// changes the charge, because the look would then find no growth to refuse.
struct Making<'a>(&'a AtomicU32);

impl<'a> Making<'a> {
    fn begin(gpu: &'a OnGpu) -> Self {
        gpu.making.fetch_add(1, Ordering::SeqCst);
        Self(&gpu.making)
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl OnGpu {
    /// Notes that the charge changes at this moment. The caller holds the turn.
    fn note_change(&self) {
        self.changed_ns.store(os::now_ns(), Ordering::Relaxed);
        self.unanswered_ns.store(0, Ordering::Relaxed);
    }
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
            making: AtomicU32::new(0),
            changed_ns: AtomicU64::new(0),
            unanswered_ns: AtomicU64::new(0),
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

    /// Moves the charges to a new ledger of the session. The process's other charges are there
    /// already. Appraisals of the time before do not count, because their accounts miss charges.
    pub fn move_to(&self, session: &Session, gpus: &[Gpu]) {
        for gpu in &self.gpus {
            lock(&gpu.held).follow_on(session, gpus);
            gpu.changed_ns.store(os::now_ns(), Ordering::Relaxed);
        }
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
        let _making = Making::begin(gpu);
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
        let _making = Making::begin(&self.overhead.gpus[ordinal]);
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
                self.overhead.note_growth(context.home().0, grown.unwrap_or(0).cast_signed());
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
            self.overhead.note_growth(context.home().0, -given_bytes.cast_signed());
            self.look_again(process, context.ordinal, -given_bytes.cast_signed());
        }
        result
    }

    /// Sets the charge on the GPU of an ended context to NVML's figure, or to 0 if the process has
    /// no other context.
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
        lock(&gpu.held).set(&site, 0, None);
        gpu.note_change();
    }

    /// Adjusts the charge on a GPU by NVML's figure, after a call that the interposer does not
    /// refuse. The call may have taken memory or given memory back. `change_bytes` is the likely
    /// change.
    pub(super) fn look_again(&self, process: &Process, ordinal: usize, change_bytes: i64) {
        let Some(site) = self.asked_site(process, ordinal) else { return };
        if self.overhead.gpus[ordinal].unanswered_ns.load(Ordering::Relaxed) != 0 {
            return;
        }
        let api = ApiId::cuCtxDestroy_v2;
        let request = Request { api, kind: MemoryKind::Driver, ordinal, context: 0, bytes: 0 };
        // This look refuses nothing, so it returns no error.
        let _ = self.look(process, &site, request, change_bytes, false);
    }

    /// Adjusts the charge by NVML's figure on each GPU with a context of the process.
    pub(super) fn look_everywhere(&self, process: &Process) {
        self.overhead.ordinals().into_iter().for_each(|ordinal| self.look_again(process, ordinal, 0));
    }

    /// Adjusts the charge by NVML's figure on each GPU with a context of the process, after the
    /// call `api` succeeded. Returns the result for the job. If a limit has no room for the new
    /// memory, runs `undo` and refuses the call.
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

    /// Returns the session and account of a GPU, or `None` if no daemon can answer a question about
    /// the GPU.
    fn asked_site<'p>(&self, process: &'p Process, ordinal: usize) -> Option<Site<'p>> {
        let site = Site::of(process, ordinal).filter(|_| ordinal < MAX_GPUS)?;
        site.session.standalone().is_none().then_some(site)
    }

    /// Asks NVML about a GPU, and charges the memory that NVML reports beyond the other charges.
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
                gpu.unanswered_ns.store(os::now_ns(), Ordering::Relaxed);
            }
            return Ok(None);
        };
        let held_bytes = self.overhead.held_bytes(ordinal);
        let bytes = self.driver_bytes(site, ordinal, found, change_bytes);
        let grown_bytes = bytes.saturating_sub(held_bytes);
        let promise = if may_be_refused && grown_bytes != 0 {
            let promise = self.promise(process, site, ordinal, grown_bytes);
            promise.map_err(|refused| Excess { bytes: grown_bytes, refused })?
        } else {
            None
        };
        lock(&gpu.held).set(site, bytes, promise);
        gpu.note_change();
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
    /// has `account_bytes`: the former charge with its likely change. If this sum is outside the
    /// range, the result is the nearer end of the range.
    fn driver_bytes(
        &self,
        site: &Site<'_>,
        ordinal: usize,
        (seen_bytes, account_bytes): (u64, u64),
        change_bytes: i64,
    ) -> u64 {
        let (least_bytes, most_bytes) = self.range(site, ordinal, seen_bytes, [account_bytes; 2]);
        let held_bytes = self.overhead.held_bytes(ordinal);
        held_bytes.saturating_add_signed(change_bytes).clamp(least_bytes, most_bytes)
    }

    /// Returns the range of the memory beyond the other charges, if NVML reports `seen_bytes` while
    /// the account has between `least` and `most` bytes.
    fn range(&self, site: &Site<'_>, ordinal: usize, seen_bytes: u64, account: [u64; 2]) -> (u64, u64) {
        let held_bytes = self.overhead.held_bytes(ordinal);
        let (beside_bytes, _) = self.oversubscription.amounts(ordinal);
        let place = MemoryKind::Managed.place();
        let managed = site.gpu.meter().zip(place).map(|(meter, place)| &meter.held_bytes[place]);
        let managed_bytes = managed.map_or(0, |bytes| bytes.load(Ordering::Relaxed));
        let others = account.map(|account_bytes| account_bytes.saturating_sub(held_bytes));
        range_of(seen_bytes, others, managed_bytes, beside_bytes)
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

/// Returns the range of the memory beyond the other charges, if NVML reports `seen_bytes` while the
/// other charges are between `least` and `most` bytes. Of these, `managed_bytes` can be on the GPU
/// or not, as can `beside_bytes` that are in no account. So the range can be wide even if both
/// bounds are equal.
fn range_of(seen_bytes: u64, [least, most]: [u64; 2], managed_bytes: u64, beside_bytes: u64) -> (u64, u64) {
    let least_bytes = seen_bytes.saturating_sub(most.saturating_add(beside_bytes));
    let most_bytes = seen_bytes.saturating_sub(least.saturating_sub(managed_bytes));
    (least_bytes, most_bytes.max(least_bytes))
}

/// Returns the charge of `held_bytes`, adjusted by the ranges of two figures: a charge outside both
/// ranges moves to the nearest end of a range.
fn adjusted(held_bytes: u64, one: (u64, u64), other: (u64, u64)) -> u64 {
    held_bytes.clamp(one.0.min(other.0), one.1.max(other.1))
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

/// The appraisals of one GPU that the meter thread has taken in.
#[derive(Debug, Default)]
struct Seen {
    /// The time of the newest appraisal ([`Appraisal::asked_ns`]).
    asked_ns: u64,
    /// The time of the last appraisal that fitted the charge, and its range of the charge.
    range: Option<(u64, (u64, u64))>,
    /// Whether the thread has warned the job of the present lack of figures.
    is_told: bool,
}

/// The appraisals that the meter thread has taken in, by GPU. The module's documentation explains
/// more.
#[derive(Debug, Default)]
pub struct Appraisals([Seen; MAX_GPUS]);

impl Appraisals {
    /// Takes in the newest appraisals, and adjusts the charges by them.
    pub fn step(&mut self, process: &Process, now_ns: u64) {
        for (ordinal, (gpu, seen)) in process.gpus.iter().zip(&mut self.0).enumerate() {
            let appraisal = gpu.grant().and_then(GrantSlot::appraisal);
            if let Some(appraisal) = appraisal.filter(|appraisal| appraisal.asked_ns != seen.asked_ns) {
                seen.asked_ns = appraisal.asked_ns;
                seen.range = process.memory.follow(process, ordinal, appraisal, seen.range);
            }
            let unanswered_ns = process.memory.overhead.gpus[ordinal].unanswered_ns.load(Ordering::Relaxed);
            let is_late = unanswered_ns != 0 && now_ns.saturating_sub(unanswered_ns) > TOLD_AFTER_NS;
            if is_late && !seen.is_told {
                say!(
                    Warn,
                    "deepres does not charge the memory of this process's contexts and code on {} until NVML reports it to the daemon",
                    process::gpu_name(ordinal)
                );
            }
            seen.is_told = is_late;
        }
    }
}

impl Accounts {
    /// Adjusts the charge by an appraisal, if the charge fits neither this appraisal nor the one
    /// before. A single figure can contain an allocation that the account learns of a moment later.
    /// Returns the time and the range of the appraisal, or `None` if it is not of the present
    /// charge.
    fn follow(
        &self,
        process: &Process,
        ordinal: usize,
        appraisal: Appraisal,
        before: Option<(u64, (u64, u64))>,
    ) -> Option<(u64, (u64, u64))> {
        let gpu = self.overhead.gpus.get(ordinal)?;
        let site = Site::of(process, ordinal).filter(is_usable)?;
        // The next figure then finds the account of pools and graphs up to date.
        self.refresh(process);
        let _turn = try_lock(&gpu.turn)?;
        let is_of_present = |asked_ns: u64| gpu.changed_ns.load(Ordering::Relaxed) < asked_ns;
        if gpu.making.load(Ordering::SeqCst) != 0 || !is_of_present(appraisal.asked_ns) {
            return None;
        }
        let Appraisal { seen_bytes, least_bytes, most_bytes, .. } = appraisal;
        let now = self.range(&site, ordinal, seen_bytes, [least_bytes, most_bytes]);
        if let Some((_, before)) = before.filter(|(asked_ns, _)| is_of_present(*asked_ns)) {
            process.believe_appraisals();
            gpu.unanswered_ns.store(0, Ordering::Relaxed);
            let mut held = lock(&gpu.held);
            let bytes = adjusted(held.bytes, before, now);
            if bytes != held.bytes {
                held.set(&site, bytes, None);
                gpu.note_change();
            }
        }
        Some((appraisal.asked_ns, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvmls_excess_over_the_account_is_between_the_bounds_of_the_account() {
        assert_eq!(range_of(150, [100, 100], 0, 0), (50, 50));
        assert_eq!(range_of(150, [80, 120], 0, 0), (30, 70), "others came and went meanwhile");
        assert_eq!(range_of(150, [100, 100], 40, 0), (50, 90), "managed memory may be on the host");
        assert_eq!(range_of(150, [100, 100], 0, 20), (30, 50), "memory beyond the limit may be there");
        assert_eq!(range_of(90, [100, 100], 0, 0), (0, 0));
        assert_eq!(range_of(u64::MAX, [0, u64::MAX], u64::MAX, u64::MAX), (0, u64::MAX));
    }

    #[test]
    fn the_charge_moves_only_as_far_as_two_figures_say() {
        let point = |bytes| (bytes, bytes);
        assert_eq!(adjusted(0, point(500), point(0)), 0, "an allocation that the account learned of late");
        assert_eq!(adjusted(0, point(500), point(300)), 300);
        assert_eq!(adjusted(400, point(100), point(300)), 300);
        assert_eq!(adjusted(200, point(100), point(300)), 200);
        assert_eq!(adjusted(200, (100, 300), (150, 250)), 200);
    }
}
