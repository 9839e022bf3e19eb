//! The use of a tenant's job on all GPUs.

use std::sync::atomic::{AtomicU64, Ordering};

/// GPU time that a tenant's job has used on all GPUs, for the rest of its declared size. The next
/// job under the same name has its own.
#[derive(Debug, Default)]
pub struct JobUse(AtomicU64);

impl JobUse {
    /// Returns the use of a job that used `used_ns` before.
    pub fn of(used_ns: u64) -> Self {
        Self(AtomicU64::new(used_ns))
    }

    /// Returns the GPU time used so far, ns.
    pub fn ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds GPU time used on one GPU.
    pub(super) fn add(&self, used_ns: u64) {
        self.0.fetch_add(used_ns, Ordering::Relaxed);
    }
}
