//! The ledgers of the tenant: the ledger of the current daemon, and the ledgers of the last few
//! daemons before it.
//!
//! A call must settle its reservation in the ledger in which it made the reservation, and a call
//! may take long. So a ledger stays mapped while later daemons come, until the interposer reuses
//! its place among [`PLACES`]. The interposer does not count the calls that use a ledger. Instead,
//! a call carries its ledger along ([`Ledger`]), and asks [`Ledgers::has`] before it settles.
//!
//! The address ranges stay mapped for good. So a call that outlasts so many daemons still uses only
//! memory of deepres.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use deepres_abi::ledger::{Account, LedgerPage};

use crate::pages::{self, Mapped, PageError};

/// The number of ledgers that are mapped at a time.
const PLACES: usize = 4;

#[derive(Debug, Default)]
struct Place {
    page: AtomicPtr<LedgerPage>,
    slot: AtomicUsize,
}

/// The ledgers of this process: the ledger of the present daemon, and those of the last few
/// daemons.
#[derive(Debug, Default)]
pub struct Ledgers {
    /// The number of ledgers before the current ledger. The number also selects the place of the
    /// current ledger.
    generation: AtomicU32,
    places: [Place; PLACES],
}

/// A ledger, and the process's slot in it.
#[derive(Debug, Clone, Copy)]
pub struct Ledger {
    page: &'static LedgerPage,
    /// The process's slot in the ledger.
    pub slot: usize,
    /// The ledger's number among the ledgers of the process.
    pub generation: u32,
}

impl Ledgers {
    /// Returns ledgers with `page` as the first, in which the process has `slot`.
    pub fn new(page: &'static LedgerPage, slot: usize) -> Self {
        let ledgers = Self::default();
        ledgers.put(0, page, slot);
        ledgers
    }

    /// Makes `page` the current ledger, in which the process has `slot`. The page is from the first
    /// daemon after a time without a daemon. Only one thread of the process calls this.
    pub fn follow(&self, page: &'static LedgerPage, slot: usize) {
        self.put(self.generation().wrapping_add(1), page, slot);
    }

    fn put(&self, generation: u32, page: &'static LedgerPage, slot: usize) {
        let place = self.place(generation);
        place.slot.store(slot, Ordering::Relaxed);
        place.page.store(std::ptr::from_ref(page).cast_mut(), Ordering::Release);
        self.generation.store(generation, Ordering::Release);
    }

    fn place(&self, generation: u32) -> &Place {
        &self.places[generation as usize % PLACES]
    }

    /// Returns the number of the current ledger ([`Ledger::generation`]).
    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the current ledger.
    #[inline]
    pub fn present(&self) -> Ledger {
        let generation = self.generation();
        let place = self.place(generation);
        // SAFETY: `put` and `replace` store a page in a generation's place before they announce the
        // generation. No code unmaps pages in places.
        let page = unsafe { &*place.page.load(Ordering::Relaxed) };
        Ledger { page, slot: place.slot.load(Ordering::Relaxed), generation }
    }

    /// Returns whether the ledger of that generation is still mapped. If it is not mapped, its
    /// contents are gone.
    #[inline]
    pub fn has(&self, generation: u32) -> bool {
        // The result is false for the oldest place, because the next daemon's ledger takes that
        // place.
        self.generation().wrapping_sub(generation) < PLACES as u32 - 1
    }

    /// Makes the page in `memory` the current ledger, in which the process has `slot`. Only one
    /// thread of the process calls this.
    ///
    /// # Errors
    /// [`PageError`] if the page is invalid or the system does not map it.
    pub fn replace(&self, memory: &OwnedFd, slot: usize) -> Result<(), PageError> {
        const BOTH: pages::Protection = libc::PROT_READ | libc::PROT_WRITE;
        let page = Mapped::<LedgerPage>::new(memory, BOTH)?;
        let generation = self.generation().wrapping_add(1);
        let place = self.place(generation);
        // SAFETY: the pointer is null or a page that stays mapped for good.
        match unsafe { place.page.load(Ordering::Relaxed).as_ref() } {
            // SAFETY: `old` stays mapped, because the `None` arm below or the caller of `new` kept
            // it. The mapping above has checked the new page, and the protection is the same as
            // before.
            Some(old) => unsafe { pages::replace(old, memory, BOTH) }.map_err(PageError::Map)?,
            None => place.page.store(std::ptr::from_ref(page.keep()).cast_mut(), Ordering::Relaxed),
        }
        place.slot.store(slot, Ordering::Relaxed);
        self.generation.store(generation, Ordering::Release);
        Ok(())
    }
}

impl Ledger {
    /// Returns the process's account on a GPU, or `None` if there is no such GPU. `index` is the
    /// daemon's index of the GPU.
    pub fn account(&self, index: usize) -> Option<Account<'static>> {
        self.page.gpu(index)?.account(self.slot)
    }

    /// Returns the process's account of the host's memory, or `None` if an older daemon gives none.
    pub fn host(&self) -> Option<Account<'static>> {
        let host = self.page.host();
        host.account(self.slot).filter(|_| self.slot < host.slots())
    }

    /// Returns the most host memory that the tenant may reserve beside other tenants, bytes.
    /// Returns `None` if the daemon sets no bound.
    pub fn host_bound_bytes(&self) -> Option<u64> {
        Some(self.page.host().obtainable_bytes()).filter(|bytes| *bytes != 0)
    }

    /// Notes in the ledger that the process holds the lock of its slot.
    pub fn set_locked(&self, index: usize) {
        if let Some(gpu) = self.page.gpu(index) {
            gpu.set_locked(self.slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd as _, FromRawFd as _};
    use std::ptr;

    use deepres_abi::page;

    use super::*;

    fn memory() -> OwnedFd {
        // SAFETY: the name is terminated, the descriptor is new and owned by nobody else, and the
        // mapping is removed before the end of the block.
        unsafe {
            let memory = OwnedFd::from_raw_fd(libc::memfd_create(c"ledger".as_ptr(), libc::MFD_CLOEXEC));
            let bytes = size_of::<LedgerPage>();
            assert_eq!(libc::ftruncate(memory.as_raw_fd(), bytes as i64), 0);
            let both = libc::PROT_READ | libc::PROT_WRITE;
            let address = libc::mmap(ptr::null_mut(), bytes, both, libc::MAP_SHARED, memory.as_raw_fd(), 0);
            page::create::<LedgerPage>(address.cast(), bytes).unwrap().gpu(0).unwrap().open(1).unwrap();
            libc::munmap(address, bytes);
            memory
        }
    }

    fn first(memory: &OwnedFd) -> Ledgers {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        Ledgers::new(Mapped::new(memory, both).unwrap().keep(), 1)
    }

    #[test]
    fn a_call_ends_with_the_ledger_that_it_began_with() {
        let (old, new) = (memory(), memory());
        let ledgers = first(&old);
        let begun = ledgers.present();
        let reservation = begun.account(0).unwrap().reserve(60, 100, || false).unwrap();
        ledgers.replace(&new, 1).unwrap();
        let fresh = ledgers.present();
        assert_eq!((begun.generation, fresh.generation), (0, 1));
        assert_eq!(fresh.account(0).unwrap().held_bytes(), 0);
        reservation.commit();
        assert_eq!(begun.account(0).unwrap().held_bytes(), 60);
        assert_eq!(fresh.account(0).unwrap().held_bytes(), 0);
    }

    #[test]
    fn a_call_that_outlasts_several_daemons_is_told_that_its_ledger_is_gone() {
        let ledgers = first(&memory());
        let begun = ledgers.present();
        for _ in 2..PLACES {
            ledgers.replace(&memory(), 1).unwrap();
            assert!(ledgers.has(begun.generation));
        }
        ledgers.replace(&memory(), 1).unwrap();
        assert!(!ledgers.has(begun.generation));
    }

    #[test]
    fn calls_of_many_threads_go_on_while_daemons_come_and_go() {
        let ledgers = first(&memory());
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        let account = ledgers.present().account(0).unwrap();
                        account.reserve(1, u64::MAX, || true).unwrap().commit();
                        account.release(1);
                    }
                });
            }
            for _ in 0..100 {
                ledgers.replace(&memory(), 1).unwrap();
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert_eq!(ledgers.present().account(0).unwrap().tenant_held_bytes(), 0);
    }
}
