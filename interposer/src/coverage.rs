//! Records the coverage of this process for `deepres ps --coverage`: the functions that it looked
//! up, the functions that it got, and its bypasses. [`bypass`] counts each call that a hook lets
//! through unmetered.
//!
//! A process looks functions up before it has a session. So this module keeps the coverage in the
//! process, and copies it to the meter page now and then.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use deepres_abi::coverage::{Bypass, Bypasses, Coverage};
use deepres_abi::driver::{self, ApiId};
use deepres_abi::meter::MeterPage;

use crate::log::say;
use crate::resolve;

/// The time between two copies of the counters to the shared page, ns.
const PUBLISH_NS: u64 = 100_000_000;

/// The coverage of this process.
pub static OWN: Coverage = Coverage::new();
/// The bypasses of this process.
pub static BYPASSES: Bypasses = Bypasses::new();
/// When the module last copied the coverage, ns of `CLOCK_MONOTONIC`.
static PUBLISHED_NS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Whether the look-ups of this thread are those of the interposer, which do not count.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Adds one to a counter.
pub fn count(counter: &AtomicU64) {
    if !IS_QUIET.get() {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts a bypass: a call of a hooked function that the interposer neither meters nor charges.
#[cold]
pub fn bypass(reason: Bypass) {
    BYPASSES.count(reason);
}

/// Resets the counters of calls in a forked child, which does not inherit its parent's calls.
pub fn forget_calls() {
    OWN.forget_calls();
    BYPASSES.forget();
}

/// Notes a look-up of `id` by its exported name. `is_hooked`: the caller got the hook.
pub fn note(id: ApiId, is_hooked: bool) {
    if !IS_QUIET.get() {
        OWN.note(id, is_hooked);
    }
}

/// Notes a look-up by `cuGetProcAddress` that got the driver's own function of this family and
/// version.
pub fn note_forwarded(family: &[u8], version: u32, per_thread: bool) {
    match driver::resolve(family, version, per_thread).or_else(|| driver::variants(family).next_back()) {
        Some(id) => note(id, false),
        None => count(&OWN.unknown_names),
    }
}

/// Counts the libraries that bypass the interposer, and warns if there are more than before. The
/// call takes the dynamic linker's lock. A thread can hold this lock while it waits for the GPU, so
/// the meter thread must not call this.
pub fn look_past() {
    let (found, before) = (crate::driver::bound_past(), OWN.bound_past.load(Ordering::Relaxed));
    if found > before {
        OWN.bound_past.store(found, Ordering::Relaxed);
        say!(
            Warn,
            "{found} libraries are bound to the driver itself (by RTLD_DEEPBIND or dlmopen): deepres does not see their launches and allocations"
        );
    }
}

/// Looks `cuLaunchKernel` up in every way in which the process can. Returns the ways that do not
/// lead to the hook, as words for a message; `None` if all ways lead to the hook. The call takes
/// the dynamic linker's lock, as [`look_past`] does.
pub fn lost_look_ups() -> Option<String> {
    IS_QUIET.set(true);
    let lost = resolve::lost_ways();
    IS_QUIET.set(false);
    OWN.lost_ways.store(lost.len() as u64, Ordering::Relaxed);
    (!lost.is_empty()).then(|| lost.join(", by "))
}

/// Copies the coverage to the page, if the last copy is old enough.
pub fn publish(page: &MeterPage, now_ns: u64) {
    if now_ns.saturating_sub(PUBLISHED_NS.load(Ordering::Relaxed)) >= PUBLISH_NS {
        publish_now(page, now_ns);
    }
}

/// Copies the coverage to the page at once.
pub fn publish_now(page: &MeterPage, now_ns: u64) {
    PUBLISHED_NS.store(now_ns, Ordering::Relaxed);
    page.coverage().copy_from(&OWN);
    page.bypasses().copy_from(&BYPASSES);
}

/// Logs the counts at debug level.
pub fn report() {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let hooked = ApiId::ALL.into_iter().filter(|id| OWN.is_hooked(*id)).count();
    say!(
        Debug,
        "look-ups: {hooked} functions hooked; {} from another libcuda, {} of unknown address; {} requests for private tables, {} for the C library's dlsym",
        read(&OWN.other_instance),
        read(&OWN.unknown_address),
        read(&OWN.export_tables),
        read(&OWN.given_lookups)
    );
}
