//! The ledger of the tenant: that of the daemon there is, and that of the one before for as long as a call that began with it goes on.
//!
//! What a call reserved in one ledger it must commit or give back in the same one. So a call marks the ledger that it uses, and memory
//! is unmapped only when nobody does.

use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use deepres_abi::ledger::{Account, LedgerPage};

use crate::pages::{Mapped, PageError};

/// Ledgers at a time: the present one, and some that calls are not through with yet.
const PLACES: usize = 4;

#[derive(Debug)]
struct Place {
    page: AtomicPtr<LedgerPage>,
    slot: AtomicUsize,
    generation: AtomicU32,
    /// Calls that use it, or are about to find out that it is not the present one.
    users: AtomicUsize,
}

impl Default for Place {
    fn default() -> Self {
        Self {
            page: AtomicPtr::new(ptr::null_mut()),
            slot: AtomicUsize::new(0),
            generation: AtomicU32::new(0),
            users: AtomicUsize::new(0),
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Ledgers {
    present: AtomicUsize,
    places: [Place; PLACES],
}

/// A ledger in use.
#[derive(Debug)]
pub struct Ledger<'a> {
    place: &'a Place,
    page: &'a LedgerPage,
    /// Counts the ledgers of the process.
    pub generation: u32,
}

impl Ledgers {
    /// Ledgers of which the first is `page`, in which the process has `slot`.
    pub fn new(page: &'static LedgerPage, slot: usize) -> Self {
        let ledgers = Self::default();
        let first = &ledgers.places[0];
        first.page.store(ptr::from_ref(page).cast_mut(), Ordering::SeqCst);
        first.slot.store(slot, Ordering::SeqCst);
        ledgers
    }

    /// The present ledger, for one call.
    pub fn enter(&self) -> Ledger<'_> {
        loop {
            let present = self.present.load(Ordering::SeqCst) % PLACES;
            let place = &self.places[present];
            place.users.fetch_add(1, Ordering::SeqCst);
            // A place is emptied only when it is not the present one and nobody uses it, in this order of looking: so either that
            // sees us, or we see that it is not the present one.
            if self.present.load(Ordering::SeqCst) % PLACES == present {
                let page = place.page.load(Ordering::SeqCst);
                // SAFETY: the present place holds a ledger, which stays mapped while it is the present one or used.
                let page = unsafe { &*page };
                return Ledger { place, page, generation: place.generation.load(Ordering::SeqCst) };
            }
            place.users.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Which ledger is the present one ([`Ledger::generation`]), for who only wants to know whether it is still the one he knows.
    pub fn generation(&self) -> u32 {
        let present = self.present.load(Ordering::SeqCst) % PLACES;
        self.places[present].generation.load(Ordering::SeqCst)
    }

    /// Makes the page in `memory` the present ledger, in which the process has `slot`. One thread of the process calls this.
    ///
    /// # Errors
    /// [`PageError`], also when calls that take long use all the ledgers there may be.
    pub fn replace(&self, memory: &OwnedFd, slot: usize) -> Result<(), PageError> {
        let page = Mapped::<LedgerPage>::new(memory, libc::PROT_READ | libc::PROT_WRITE)?;
        let present = self.present.load(Ordering::SeqCst) % PLACES;
        let next_generation = self.places[present].generation.load(Ordering::SeqCst).wrapping_add(1);
        let mut free =
            (0..PLACES).filter(|at| *at != present && self.places[*at].users.load(Ordering::SeqCst) == 0);
        let Some(at) = free.next() else {
            let busy = std::io::Error::other("allocations that began with earlier daemons are under way");
            return Err(PageError::Map(busy));
        };
        let place = &self.places[at];
        place.slot.store(slot, Ordering::SeqCst);
        place.generation.store(next_generation, Ordering::SeqCst);
        let old = place.page.swap(ptr::from_ref(page.keep()).cast_mut(), Ordering::SeqCst);
        self.present.store(at, Ordering::SeqCst);
        if !old.is_null() {
            // SAFETY: a ledger that was put here by `new` or by us, kept, not the present one and used by nobody.
            unsafe { libc::munmap(old.cast(), size_of::<LedgerPage>()) };
        }
        Ok(())
    }
}

impl Ledger<'_> {
    /// The process's account on a GPU, by the controller's index.
    pub fn account(&self, index: usize) -> Option<Account<'_>> {
        self.page.gpu(index)?.account(self.place.slot.load(Ordering::SeqCst))
    }
}

impl Drop for Ledger<'_> {
    fn drop(&mut self) {
        self.place.users.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd as _, FromRawFd as _};

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
        let begun = ledgers.enter();
        let reservation = begun.account(0).unwrap().reserve(60, 100, || ()).unwrap();
        ledgers.replace(&new, 1).unwrap();
        let fresh = ledgers.enter();
        assert_eq!((begun.generation, fresh.generation, ledgers.generation()), (0, 1, 1));
        assert_eq!(fresh.account(0).unwrap().held_bytes(), 0);
        reservation.commit();
        assert_eq!(begun.account(0).unwrap().held_bytes(), 60);
        assert_eq!(fresh.account(0).unwrap().held_bytes(), 0);
    }

    #[test]
    fn calls_that_never_end_keep_their_ledgers_and_no_more() {
        let ledgers = first(&memory());
        let held: Vec<_> = (1..PLACES)
            .map(|_| {
                let held = ledgers.enter();
                ledgers.replace(&memory(), 1).unwrap();
                held
            })
            .collect();
        let last = ledgers.enter();
        assert!(ledgers.replace(&memory(), 1).is_err());
        drop(held);
        ledgers.replace(&memory(), 1).unwrap();
        assert_ne!(last.generation, ledgers.enter().generation);
        assert_eq!(last.account(0).unwrap().held_bytes(), 0);
    }

    #[test]
    fn calls_of_many_threads_go_on_while_daemons_come_and_go() {
        let ledgers = first(&memory());
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let ledger = ledgers.enter();
                        let account = ledger.account(0).unwrap();
                        account.reserve(1, u64::MAX, std::thread::yield_now).unwrap().commit();
                        account.release(1);
                    }
                });
            }
            for _ in 0..300 {
                // Calls may take long on a busy machine: then the next attempt has more luck.
                let _ = ledgers.replace(&memory(), 1);
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(ledgers.enter().account(0).unwrap().tenant_held_bytes(), 0);
    }
}
