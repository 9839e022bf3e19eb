//! The one lock of a host: a robust pthread mutex in shared memory.
//!
//! The kernel releases it when its holder dies, and tells the next one so. Never held while sleeping.

use std::{cell::UnsafeCell, mem::MaybeUninit};

/// The lock. All zeros is not a valid one: see [`Lock::init`].
#[repr(C, align(64))]
pub struct Lock(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: a process-shared mutex exists to be used by many threads of many processes at once; pthread calls
// are the only access.
unsafe impl Sync for Lock {}
// SAFETY: as above; it is never moved once initialised, since it only ever lives in the mapping.
unsafe impl Send for Lock {}

/// How the lock was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Released by its last holder.
    Clean,
    /// Its last holder died with it; what it guards may be half changed.
    HolderDied,
}

impl Lock {
    /// Makes the lock usable.
    ///
    /// # Safety
    /// No one may use it yet.
    pub unsafe fn init(&self) {
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: `attributes` is initialised by the first call before the others use it, the mutex is
        // writable memory of the right type that no one else uses (the caller's promise). None of these calls
        // can fail with valid arguments on Linux.
        unsafe {
            libc::pthread_mutexattr_init(attributes.as_mut_ptr());
            libc::pthread_mutexattr_setpshared(attributes.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED);
            libc::pthread_mutexattr_setrobust(attributes.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST);
            libc::pthread_mutex_init(self.0.get(), attributes.as_ptr());
            libc::pthread_mutexattr_destroy(attributes.as_mut_ptr());
        }
    }

    /// Takes the lock. After [`Found::HolderDied`] the caller repairs what the lock guards; if it dies in
    /// that, the next one is told the same.
    ///
    /// # Panics
    /// If the mutex is not one, which [`crate::shared`] rules out by the file's magic and version.
    #[inline]
    pub fn lock(&self) -> Found {
        // SAFETY: initialised before the file was published (`crate::shared`).
        match unsafe { libc::pthread_mutex_lock(self.0.get()) } {
            0 => Found::Clean,
            libc::EOWNERDEAD => Found::HolderDied,
            error => panic!(
                "the lock of the simulated GPU is unusable: {}",
                std::io::Error::from_raw_os_error(error)
            ),
        }
    }

    /// Says that the repair after [`Found::HolderDied`] is done.
    pub fn repaired(&self) {
        // SAFETY: initialised, and held by this thread: called between `lock` and `unlock` only.
        unsafe { libc::pthread_mutex_consistent(self.0.get()) };
    }

    /// Releases the lock.
    ///
    /// # Safety
    /// The calling thread holds it.
    #[inline]
    pub unsafe fn unlock(&self) {
        // SAFETY: initialised, and held by this thread, as the caller promises.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) };
    }
}
