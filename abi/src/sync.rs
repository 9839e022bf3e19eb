//! The crate's only access to atomics: the real ones, or the model checker's under `--cfg loom`.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// A sequentially consistent fence directly after a read-modify-write. On x86-64 such an
/// instruction is itself a full barrier, and another barrier would cost as much again. The model
/// checker knows no machine and needs the fence.
#[inline(always)]
pub fn fence_after_exchange() {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(any(not(target_arch = "x86_64"), loom))]
    fence(Ordering::SeqCst);
}

/// One turn of a spin loop. It informs the processor core, and lets the model checker run another
/// thread.
pub fn spin_hint() {
    #[cfg(not(loom))]
    core::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}
