//! The atomics of this crate: the real atomics, or the model checker's under `--cfg loom`.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// Makes a sequentially consistent fence directly after a read-modify-write. On x86-64, a
/// read-modify-write is itself a full barrier, so the function only stops the compiler from
/// reordering. The model checker models no particular machine and needs the fence.
#[inline(always)]
pub fn fence_after_exchange() {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(any(not(target_arch = "x86_64"), loom))]
    fence(Ordering::SeqCst);
}

/// Makes one turn of a spin loop. The turn tells the processor core that the thread waits, and lets
/// the model checker run another thread.
pub fn spin_hint() {
    #[cfg(not(loom))]
    core::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}
