//! Counts how clients reach the driver, and what went past us.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::log::say;

/// Look-ups answered with a hook.
pub static HOOKED: AtomicU64 = AtomicU64::new(0);
/// Functions that we hook, but that were handed out from another copy of the driver library than the first.
pub static OTHER_INSTANCE: AtomicU64 = AtomicU64::new(0);
/// Functions that we hook, but whose address from `cuGetProcAddress` is not one that the driver exports.
pub static UNKNOWN_ADDRESS: AtomicU64 = AtomicU64::new(0);
/// Requests for the driver's private tables, through which a client may launch without us.
pub static EXPORT_TABLES: AtomicU64 = AtomicU64::new(0);

/// Adds one to a counter.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Writes the counts, at debug level.
pub fn report() {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    say!(
        Debug,
        "look-ups: {} hooked, {} from another libcuda, {} of unknown address; {} requests for private tables",
        read(&HOOKED),
        read(&OTHER_INSTANCE),
        read(&UNKNOWN_ADDRESS),
        read(&EXPORT_TABLES)
    );
}
