//! The ledgers of the tenant: the ledger of the current daemon, and the ledgers of the last few
//! daemons before it.
//!
//! A call must settle its reservation in the ledger in which it made the reservation, and a call
//! can take long. So a ledger stays mapped while later daemons come, until the interposer reuses
//! its place among [`PLACES`]. The interposer does not count the calls that use a ledger. Instead,
//! a call carries its ledger along ([`Ledger`]), and asks [`Ledgers::has`] before it settles.
//!
//! While no daemon is there, or another process of the tenant has no session, the process counts
//! its memory in the tenant's file too ([`super::account`]). So a ledger has two generations: an
//! even generation without the file, and an odd generation with the file.
//!
//! The address ranges stay mapped for good. So a call that outlasts so many daemons still uses only
//! memory of deepres.

use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use deepres_abi::ledger::LedgerPage;
use deepres_abi::wire::Uuid;

use super::account::Account;
use crate::meter::gpu::Shared;
use crate::pages::{self, Mapped, PageError};
use crate::standalone::file::TenantFile;

/// The number of ledgers that are mapped at a time.
const PLACES: usize = 4;
/// The bit of a generation in which the tenant's file counts the memory too.
const WITH_FILE: u32 = 1;

#[derive(Debug, Default)]
struct Place {
    page: AtomicPtr<LedgerPage>,
    slot: AtomicUsize,
}

/// The ledgers of this process: the ledger of the present daemon, and those of the last few
/// daemons.
#[derive(Debug)]
pub struct Ledgers {
    /// Twice the number of ledgers before the current ledger, plus [`WITH_FILE`] if the file
    /// counts. The number of ledgers also selects the place of the current ledger.
    generation: AtomicU32,
    places: [Place; PLACES],
    /// The tenant's file, from the moment at which the process first used it.
    file: Shared<TenantFile>,
}

/// A ledger, and the process's slot in it.
#[derive(Debug, Clone, Copy)]
pub struct Ledger {
    page: &'static LedgerPage,
    /// The process's slot in the ledger.
    pub slot: usize,
    /// The ledger's number among the ledgers of the process.
    pub generation: u32,
    /// The tenant's file, if the process counts its memory there too.
    file: Option<&'static TenantFile>,
}

/// Returns the number of ledgers before the ledger of a generation.
const fn ledgers_before(generation: u32) -> u32 {
    generation / 2
}

impl Ledgers {
    /// Returns ledgers with `page` as the first, in which the process has `slot`. If `page` is in
    /// the tenant's file, `file` is that file.
    pub fn new(page: &'static LedgerPage, slot: usize, file: Option<&'static TenantFile>) -> Self {
        let ledgers =
            Self { generation: AtomicU32::new(0), places: Default::default(), file: Shared::none() };
        ledgers.file.set(file);
        ledgers.put(0, page, slot);
        ledgers
    }

    /// Returns the tenant's file, if the process has opened it.
    pub fn file(&self) -> Option<&'static TenantFile> {
        self.file.get()
    }

    /// Lets new requests count in the tenant's file too, until [`Self::count_out`] or the next
    /// ledger. The current ledger is a daemon's. Only one thread of the process calls this.
    pub fn count_in(&self, file: &'static TenantFile) {
        self.file.set(Some(file));
        self.generation.store(self.generation() | WITH_FILE, Ordering::Release);
    }

    /// Lets new requests count in a daemon's ledger alone again. Only one thread of the process
    /// calls this.
    pub fn count_out(&self) {
        self.generation.store(self.generation() & !WITH_FILE, Ordering::Release);
    }

    /// Returns whether new requests count in the tenant's file beside a daemon's ledger.
    pub fn is_with_file(&self) -> bool {
        self.generation() & WITH_FILE != 0
    }

    /// Returns whether the ledger of that generation is the current ledger, with or without the
    /// file.
    pub fn is_current(&self, generation: u32) -> bool {
        ledgers_before(self.generation()) == ledgers_before(generation)
    }

    /// Makes `page` the current ledger, in which the process has `slot`. The page is from the first
    /// daemon after a time without a daemon. Only one thread of the process calls this.
    pub fn follow(&self, page: &'static LedgerPage, slot: usize) {
        self.put(self.next(), page, slot);
    }

    fn put(&self, generation: u32, page: &'static LedgerPage, slot: usize) {
        let place = self.place(generation);
        place.slot.store(slot, Ordering::Relaxed);
        place.page.store(std::ptr::from_ref(page).cast_mut(), Ordering::Release);
        self.generation.store(generation, Ordering::Release);
    }

    fn place(&self, generation: u32) -> &Place {
        &self.places[ledgers_before(generation) as usize % PLACES]
    }

    /// Returns the first generation of the next ledger.
    fn next(&self) -> u32 {
        (self.generation() | WITH_FILE).wrapping_add(1)
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
        let file = if generation & WITH_FILE == 0 { None } else { self.file() };
        Ledger { page, slot: place.slot.load(Ordering::Relaxed), generation, file }
    }

    /// Returns whether the ledger of that generation is still mapped. If it is not mapped, its
    /// contents are gone.
    #[inline]
    pub fn has(&self, generation: u32) -> bool {
        // The result is false for the oldest place, because the next daemon's ledger takes that
        // place.
        ledgers_before(self.generation()).wrapping_sub(ledgers_before(generation)) < PLACES as u32 - 1
    }

    /// Makes the page in `memory` the current ledger, in which the process has `slot`. Only one
    /// thread of the process calls this.
    ///
    /// # Errors
    /// [`PageError`] if the page is invalid or the system does not map it.
    pub fn replace(&self, memory: &OwnedFd, slot: usize) -> Result<(), PageError> {
        const BOTH: pages::Protection = libc::PROT_READ | libc::PROT_WRITE;
        let page = Mapped::<LedgerPage>::new(memory, BOTH)?;
        let generation = self.next();
        let place = self.place(generation);
        // The process can need the file again, so no other page comes to lie over the file.
        let is_files = |page: &LedgerPage| self.file().is_some_and(|file| ptr::eq(file.page.ledger(), page));
        // SAFETY: the pointer is null or a page that stays mapped for good.
        match unsafe { place.page.load(Ordering::Relaxed).as_ref() }.filter(|page| !is_files(page)) {
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
    pub fn account(&self, index: usize, gpu: &Uuid) -> Option<Account> {
        let account = self.page.gpu(index)?.account(self.slot)?;
        Some(Account::new(account, self.file.and_then(|file| file.account(gpu))))
    }

    /// Returns the process's account of the host's memory, or `None` if an older daemon gives none.
    pub fn host(&self) -> Option<Account> {
        let host = self.page.host();
        let account = host.account(self.slot).filter(|_| self.slot < host.slots());
        account.map(|account| Account::new(account, None))
    }

    /// Returns the most host memory that the tenant may reserve beside other tenants, bytes.
    /// Returns `None` if the daemon sets no bound.
    pub fn host_bound_bytes(&self) -> Option<u64> {
        Some(self.page.host().obtainable_bytes()).filter(|bytes| *bytes != 0)
    }

    /// Gives back the memory that dead processes of the tenant held on a GPU, because no daemon
    /// does. `is_dead` says whether the owner of a suspect slot is dead ([`LedgerGpu::suspects`]).
    /// Returns whether any dead process held memory.
    ///
    /// [`LedgerGpu::suspects`]: deepres_abi::ledger::LedgerGpu::suspects
    pub fn bury(&self, index: usize, is_dead: impl Fn(usize) -> bool) -> bool {
        let Some(gpu) = self.page.gpu(index) else { return false };
        let mut is_any_dead = false;
        for slot in gpu.suspects().filter(|slot| *slot != self.slot && is_dead(*slot)) {
            gpu.clear(slot);
            is_any_dead = true;
        }
        is_any_dead
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

    use deepres_abi::page;

    use super::*;

    const GPU: Uuid = [7; size_of::<Uuid>()];

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
        Ledgers::new(Mapped::new(memory, both).unwrap().keep(), 1, None)
    }

    /// Returns the account in the first GPU's part of the current ledger.
    fn account(ledgers: &Ledgers) -> Account {
        ledgers.present().account(0, &GPU).unwrap()
    }

    /// Returns a new tenant's file, and its directory.
    fn file() -> (tempfile::TempDir, &'static TenantFile) {
        let directory = tempfile::tempdir().unwrap();
        let file = TenantFile::open(directory.path(), "tenant").unwrap();
        (directory, Box::leak(Box::new(file)))
    }

    #[test]
    fn a_call_ends_with_the_ledger_that_it_began_with() {
        let (old, new) = (memory(), memory());
        let ledgers = first(&old);
        let begun = ledgers.present();
        let reservation = begun.account(0, &GPU).unwrap().reserve(60, 100, || false).unwrap();
        ledgers.replace(&new, 1).unwrap();
        let fresh = ledgers.present();
        assert_ne!(begun.generation, fresh.generation);
        assert_eq!(fresh.account(0, &GPU).unwrap().held_bytes(), 0);
        reservation.commit_part(60);
        assert_eq!(begun.account(0, &GPU).unwrap().held_bytes(), 60);
        assert_eq!(fresh.account(0, &GPU).unwrap().held_bytes(), 0);
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
                        let account = account(&ledgers);
                        account.reserve(1, u64::MAX, || true).unwrap().commit_part(1);
                        account.release(1);
                    }
                });
            }
            for _ in 0..100 {
                ledgers.replace(&memory(), 1).unwrap();
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert_eq!(account(&ledgers).tenant_held_bytes(), 0);
    }

    #[test]
    fn the_tenants_file_counts_from_the_daemons_death_until_the_next_ledger() {
        let (_directory, file) = file();
        let ledgers = first(&memory());
        let in_file = || file.account(&GPU).unwrap().held_bytes();
        for _ in 0..3 {
            let alone = ledgers.present();
            account(&ledgers).charge(60);
            assert_eq!(in_file(), 0);
            ledgers.count_in(file);
            let both = ledgers.present();
            assert!(both.generation != alone.generation && ledgers.has(alone.generation));
            account(&ledgers).take_over(60, alone.account(0, &GPU));
            account(&ledgers).charge(10);
            assert_eq!((account(&ledgers).held_bytes(), in_file()), (70, 70));
            ledgers.replace(&memory(), 1).unwrap();
            assert!(ledgers.has(alone.generation) && ledgers.has(both.generation));
            account(&ledgers).take_over(70, both.account(0, &GPU));
            assert_eq!((account(&ledgers).held_bytes(), in_file()), (70, 0));
            account(&ledgers).release(70);
        }
    }

    #[test]
    fn the_tenants_file_counts_beside_a_daemon_only_until_nobody_needs_it() {
        let (_directory, file) = file();
        let ledgers = first(&memory());
        for _ in 0..3 {
            ledgers.count_in(file);
            account(&ledgers).charge(60);
            let both = ledgers.present();
            assert!(ledgers.is_with_file());
            ledgers.count_out();
            assert!(!ledgers.is_with_file() && ledgers.is_current(both.generation));
            account(&ledgers).take_over(60, both.account(0, &GPU));
            assert_eq!((account(&ledgers).held_bytes(), file.account(&GPU).unwrap().held_bytes()), (60, 0));
            account(&ledgers).release(60);
        }
        let before = ledgers.present();
        ledgers.replace(&memory(), 1).unwrap();
        assert!(!ledgers.is_current(before.generation));
    }

    #[test]
    fn no_daemons_ledger_comes_to_lie_over_the_tenants_file() {
        let (_directory, file) = file();
        file.account(&GPU).unwrap().charge(60);
        let ledgers = Ledgers::new(file.page.ledger(), file.slot, Some(file));
        for _ in 0..=PLACES {
            ledgers.replace(&memory(), 1).unwrap();
        }
        assert_eq!(file.account(&GPU).unwrap().held_bytes(), 60);
    }
}
