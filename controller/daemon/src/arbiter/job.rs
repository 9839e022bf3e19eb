//! The GPU time that a tenant's job has used, on all GPUs together.

use std::sync::atomic::{AtomicU64, Ordering};

/// GPU time that a tenant's job has used on all GPUs. The policy subtracts this time from the
/// declared size of the job. A later job under the same name has a value of its own.
#[derive(Debug, Default)]
pub struct JobUse(AtomicU64);

impl JobUse {
    /// Returns the use of a job that has already used `used_ns`.
    pub fn of(used_ns: u64) -> Self {
        Self(AtomicU64::new(used_ns))
    }

    /// Returns the GPU time used so far, ns.
    pub fn ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds GPU time that the job used on one GPU, ns.
    pub(super) fn add(&self, used_ns: u64) {
        self.0.fetch_add(used_ns, Ordering::Relaxed);
    }
}
