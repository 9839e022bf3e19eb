//! The ledger of the tenant: that of the daemon there is, and those of the last few before.
//!
//! What a call reserved in one ledger it must commit or give back in the same one, and a call may take long. So a ledger stays mapped while the next
//! [`PLACES`] daemons come, and nobody counts which calls use it: a call takes what it needs to know along ([`Ledger`]), and asks before it
//! settles whether its ledger is there still ([`Ledgers::has`]). Addresses stay mapped for good, so a call that is late by that many daemons
//! touches nothing that is not ours.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use deepres_abi::ledger::{Account, LedgerPage};

use crate::pages::{self, Mapped, PageError};

/// Ledgers that are mapped at a time.
const PLACES: usize = 4;

#[derive(Debug, Default)]
struct Place {
    page: AtomicPtr<LedgerPage>,
    slot: AtomicUsize,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Ledgers {
    /// How many there were before the present one; it is in the place of that number.
    generation: AtomicU32,
    places: [Place; PLACES],
}

/// A ledger, and where the process stands in it.
#[derive(Debug, Clone, Copy)]
pub struct Ledger {
    page: &'static LedgerPage,
    /// The process's slot in it.
    pub slot: usize,
    /// Counts the ledgers of the process.
    pub generation: u32,
}

impl Ledgers {
    /// Ledgers of which the first is `page`, in which the process has `slot`.
    pub fn new(page: &'static LedgerPage, slot: usize) -> Self {
        let ledgers = Self::default();
        ledgers.put(0, page, slot);
        ledgers
    }

    /// Makes `page` the present ledger, in which the process has `slot`: that of the first daemon, after a time without one. One thread of the process
    /// calls this.
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

    /// Which ledger is the present one ([`Ledger::generation`]).
    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// The present ledger.
    #[inline]
    pub fn present(&self) -> Ledger {
        let generation = self.generation();
        let place = self.place(generation);
        // SAFETY: the place of a generation that was announced has a page, and pages in places are never unmapped.
        let page = unsafe { &*place.page.load(Ordering::Relaxed) };
        Ledger { page, slot: place.slot.load(Ordering::Relaxed), generation }
    }

    /// Whether the ledger of that generation is mapped still. If not, what was in it is no more.
    #[inline]
    pub fn has(&self, generation: u32) -> bool {
        // The oldest place is the next to be taken.
        self.generation().wrapping_sub(generation) < PLACES as u32 - 1
    }

    /// Makes the page in `memory` the present ledger, in which the process has `slot`. One thread of the process calls this.
    ///
    /// # Errors
    /// [`PageError`].
    pub fn replace(&self, memory: &OwnedFd, slot: usize) -> Result<(), PageError> {
        const BOTH: pages::Protection = libc::PROT_READ | libc::PROT_WRITE;
        let page = Mapped::<LedgerPage>::new(memory, BOTH)?;
        let generation = self.generation().wrapping_add(1);
        let place = self.place(generation);
        // SAFETY: null, or a page that was kept here.
        match unsafe { place.page.load(Ordering::Relaxed).as_ref() } {
            // SAFETY: kept below or by whoever called `new`, checked by the mapping above, and mapped as it was.
            Some(old) => unsafe { pages::replace(old, memory, BOTH) }.map_err(PageError::Map)?,
            None => place.page.store(std::ptr::from_ref(page.keep()).cast_mut(), Ordering::Relaxed),
        }
        place.slot.store(slot, Ordering::Relaxed);
        self.generation.store(generation, Ordering::Release);
        Ok(())
    }
}

impl Ledger {
    /// The process's account on a GPU, by the controller's index.
    pub fn account(&self, index: usize) -> Option<Account<'static>> {
        self.page.gpu(index)?.account(self.slot)
    }

    /// The process's account of the host's memory. `None`: the controller is older and knows of none.
    pub fn host(&self) -> Option<Account<'static>> {
        let host = self.page.host();
        host.account(self.slot).filter(|_| self.slot < host.slots())
    }

    /// The process holds the lock of its slot.
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
        // SAFETY: a terminated name; the descriptor is new, and what is mapped is unmapped again.
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
