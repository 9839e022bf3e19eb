//! The charge for one object: an amount of one kind of memory on one GPU, in one ledger.

use std::mem;
use std::sync::atomic::Ordering;

use deepres_abi::meter::MemoryKind;

use super::account::{Account, Leaving};
use super::ledgers::Ledger;
use super::site::{Promise, Site};
use crate::meter::gpu::Gpu;
use crate::process::Process;
use crate::session::Session;

/// The charge for one object: an amount of memory of one kind on one GPU. The object's owner keeps
/// the charge behind a lock.
#[derive(Debug)]
pub struct Held {
    /// The charged amount, bytes.
    pub bytes: u64,
    kind: MemoryKind,
    /// The GPU's ordinal in this process.
    ordinal: usize,
    /// The ledger that contains the charge ([`Ledger::generation`]).
    generation: u32,
    /// The account that contains the charge, if any does.
    account: Option<Account>,
}

/// A charge whose memory the driver is about to free.
#[derive(Debug)]
pub struct Exit {
    /// The ledger that contains the charge ([`Ledger::generation`]).
    generation: u32,
    leaving: Leaving,
}

fn account(session: &Session, gpu: &Gpu) -> Option<(Ledger, Account)> {
    let ledger = session.ledger();
    Some((ledger, ledger.account(gpu.index()?, gpu.uuid())?))
}

impl Held {
    /// Returns a charge of no bytes, for memory of this kind on the GPU `ordinal`.
    pub const fn nothing(kind: MemoryKind, ordinal: usize) -> Self {
        Self { bytes: 0, kind, ordinal, generation: 0, account: None }
    }

    /// Returns the GPU's ordinal in this process.
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// Charges `bytes` that the driver has just allocated, and returns the charge. `promise` is the
    /// reservation for these bytes.
    ///
    /// The caller holds the lock that will guard the charge. So a thread that moves all charges to
    /// a new ledger finds this charge, or the charge is in the new ledger already.
    pub fn new(kind: MemoryKind, ordinal: usize, site: &Site<'_>, bytes: u64, promise: Promise) -> Self {
        let account = site.settle(promise, bytes);
        let mut held = Self { bytes, kind, ordinal, generation: site.ledger.generation, account };
        // If the daemon restarted meanwhile, `settle` charged the amount in a former ledger.
        held.follow(site.session, site.gpu);
        held.count(site.gpu, bytes, 0);
        held
    }

    /// Changes the amount to `bytes`. `promise` is the reservation for the growth.
    pub fn set(&mut self, site: &Site<'_>, bytes: u64, promise: Promise) {
        let (more, less) = (bytes.saturating_sub(self.bytes), self.bytes.saturating_sub(bytes));
        let settled = site.settle(promise, more);
        if let Some((ledger, account)) = account(site.session, site.gpu) {
            // If the daemon died or came back meanwhile, the old amount, the settled growth, or
            // both can be in a former ledger.
            self.move_to(site.session, &ledger, account);
            account.take_over(more, settled);
            if less != 0 {
                account.release(less);
            }
        }
        self.count(site.gpu, more, less);
        self.bytes = bytes;
    }

    /// Marks the charge as leaving, before the caller tells the driver to free the memory. Returns
    /// `None` if the present ledger does not contain the charge.
    pub fn leave(&self, process: &Process) -> Option<Exit> {
        self.leave_in(process.session()?)
    }

    fn leave_in(&self, session: &Session) -> Option<Exit> {
        let account = self.account_in(session)?;
        Some(Exit { generation: self.generation, leaving: account.leave(self.bytes) })
    }

    /// Reduces the charge to the `bytes` that the driver kept. With an `exit`, all of the charge
    /// was marked as leaving.
    pub fn shrink(&mut self, site: &Site<'_>, bytes: u64, exit: Option<Exit>) {
        match (exit, self.bytes.checked_sub(bytes)) {
            // The ledger did not change meanwhile.
            (Some(exit), Some(less)) if site.is_present() && exit.generation == self.generation => {
                exit.leaving.finish_part(less);
                self.count(site.gpu, 0, less);
                self.bytes = bytes;
            }
            (exit, _) => {
                if let Some(exit) = exit {
                    exit.cancel_in(site.session);
                }
                self.set(site, bytes, None);
            }
        }
    }

    /// Gives the charge back, after the driver has freed the memory. With an `exit`, all of the
    /// charge was marked as leaving.
    pub fn give_back(self, process: &Process, exit: Option<Exit>) {
        let Some(session) = process.session() else { return };
        match exit {
            Some(exit) => exit.finish_in(session),
            None => self.release(session),
        }
        if let Some(gpu) = process.gpus.get(self.ordinal) {
            self.count(gpu, 0, self.bytes);
        }
    }

    /// Returns the account that contains the charge, if the account is in the current ledger.
    fn account_in(&self, session: &Session) -> Option<Account> {
        self.account.filter(|_| self.generation == session.ledger_generation())
    }

    /// Returns the account that contains the charge. A charge in an unmapped ledger is gone with
    /// that ledger.
    fn mapped_account(&self, session: &Session) -> Option<Account> {
        match session.has_ledger(self.generation) {
            true => self.account,
            false => self.account?.in_file(),
        }
    }

    /// Takes the charge out of its account, even if the account is in a former ledger. A session
    /// that connects to the same daemon again can get the same ledger. The daemon emptied the slot
    /// when the session ended, so it contains only charges since then.
    fn release(&self, session: &Session) {
        if let Some(account) = self.mapped_account(session) {
            account.release(self.bytes);
        }
    }

    /// Moves the charge to the current ledger, if the charge is in a former ledger.
    pub fn follow(&mut self, session: &Session, gpu: &Gpu) {
        if self.generation == session.ledger_generation() {
            return;
        }
        if let Some((ledger, account)) = account(session, gpu) {
            self.move_to(session, &ledger, account);
        }
    }

    /// Moves the charge to `account` in the ledger `ledger`.
    fn move_to(&mut self, session: &Session, ledger: &Ledger, account: Account) {
        account.take_over(self.bytes, self.mapped_account(session));
        self.generation = ledger.generation;
        self.account = Some(account);
    }

    /// Moves the charge to the current ledger as [`Self::follow`] does, on the charge's GPU in
    /// `gpus`.
    pub fn follow_on(&mut self, session: &Session, gpus: &[Gpu]) {
        if let Some(gpu) = gpus.get(self.ordinal) {
            self.follow(session, gpu);
        }
    }

    /// Moves the charge as [`Self::follow_on`] does, and moves its exit too. So an exit is always
    /// in the account that contains the charge.
    pub fn follow_with(&mut self, exit: &mut Option<Exit>, session: &Session, gpus: &[Gpu]) {
        let cancelled = exit.take().map(|exit| exit.cancel_in(session));
        self.follow_on(session, gpus);
        *exit = cancelled.and_then(|()| self.leave_in(session));
    }

    /// Updates the amount of this kind of memory on the meter page.
    fn count(&self, gpu: &Gpu, more: u64, less: u64) {
        let Some(place) = self.kind.place() else { return };
        let Some(held) = gpu.meter().and_then(|meter| meter.held_bytes.get(place)) else {
            return;
        };
        if more != 0 {
            held.fetch_add(more, Ordering::Relaxed);
        }
        if less != 0 {
            let less_of = |held: u64| Some(held.saturating_sub(less));
            let _ = held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less_of);
        }
    }
}

impl Exit {
    /// Cancels the exit, because the driver did not free the memory.
    pub fn cancel(self, process: &Process) {
        match process.session() {
            Some(session) => self.cancel_in(session),
            None => mem::forget(self),
        }
    }

    /// Cancels the exit as [`Self::cancel`] does, in the session `session`.
    pub fn cancel_in(self, session: &Session) {
        if !session.has_ledger(self.generation) {
            drop(self.leaving.in_file());
        }
    }

    /// Records in the session `session` that the driver freed the memory.
    fn finish_in(self, session: &Session) {
        if session.has_ledger(self.generation) {
            self.leaving.finish();
        } else if let Some(in_file) = self.leaving.in_file() {
            in_file.finish();
        }
    }
}

#[cfg(test)]
mod tests {
    use deepres_abi::MAX_GPUS;
    use deepres_abi::wire::Uuid;

    use super::*;
    use crate::meter::gpu::Shared;
    use crate::standalone::Local;
    use crate::standalone::file::TenantFile;

    const GPU: Uuid = [7; size_of::<Uuid>()];

    /// Returns a session without limits, and the index of its GPU.
    fn session() -> (&'static Session, [u8; MAX_GPUS]) {
        let local = Local::unlimited(&[GPU]).unwrap();
        let index = local.gpu_index;
        (Box::leak(Box::new(Session::local(local, false))), index)
    }

    /// A session that counts in the tenant's file too.
    struct Case {
        session: &'static Session,
        gpus: [Gpu; 1],
        file: &'static TenantFile,
        _directory: tempfile::TempDir,
    }

    impl Case {
        fn new() -> Self {
            let (session, index) = session();
            let gpus = [Gpu::of(GPU, 0, 0)];
            session.attach(&gpus, &index, None);
            let directory = tempfile::tempdir().unwrap();
            let file = TenantFile::open(directory.path(), "tenant").unwrap();
            let file: &'static TenantFile = Box::leak(Box::new(file));
            session.count_in(file);
            Self { session, gpus, file, _directory: directory }
        }

        fn charge(&self, bytes: u64) -> Held {
            let (ledger, account) = account(self.session, &self.gpus[0]).unwrap();
            account.charge(bytes);
            let (kind, generation) = (MemoryKind::Linear, ledger.generation);
            Held { bytes, kind, ordinal: 0, generation, account: Some(account) }
        }

        /// Gives the session another ledger, without the file.
        fn next_ledger(&self) {
            let (next, index) = session();
            self.session.hand_over(next, &Shared::none(), &self.gpus, &index);
        }

        /// Returns the bytes that the session holds in the present ledger, and in the file.
        fn held_bytes(&self) -> (u64, u64) {
            let (_, account) = account(self.session, &self.gpus[0]).unwrap();
            (account.held_bytes(), self.file.account(&GPU).unwrap().held_bytes())
        }
    }

    #[test]
    fn a_charge_moves_with_its_exit_and_leaves_nothing_in_the_file() {
        for is_freed in [false, true] {
            let case = Case::new();
            let (mut leaves, mut stays) = (case.charge(60), case.charge(40));
            let mut exit = leaves.leave_in(case.session);
            assert_eq!(case.held_bytes(), (100, 100));
            case.next_ledger();
            leaves.follow_with(&mut exit, case.session, &case.gpus);
            stays.follow_on(case.session, &case.gpus);
            assert_eq!(case.held_bytes(), (100, 0));
            case.session.count_in(case.file);
            leaves.follow_with(&mut exit, case.session, &case.gpus);
            stays.follow_on(case.session, &case.gpus);
            assert_eq!(case.held_bytes(), (100, 100));
            let exit = exit.expect("the driver still has the memory");
            match is_freed {
                true => exit.finish_in(case.session),
                false => exit.cancel_in(case.session),
            }
            let held_bytes = if is_freed { 40 } else { 100 };
            assert_eq!(case.held_bytes(), (held_bytes, held_bytes));
        }
    }

    #[test]
    fn a_charge_that_outlasts_its_ledger_leaves_nothing_in_the_file() {
        const LEDGERS: u32 = 3;
        let case = Case::new();
        let (freed, mut kept, released) = (case.charge(60), case.charge(40), case.charge(20));
        let [freed, cancelled] = [&freed, &kept].map(|held| held.leave_in(case.session).unwrap());
        let generation = released.generation;
        (0..LEDGERS).for_each(|_| case.next_ledger());
        assert!(!case.session.has_ledger(generation));
        freed.finish_in(case.session);
        released.release(case.session);
        cancelled.cancel_in(case.session);
        assert_eq!(case.held_bytes(), (0, 40));
        kept.follow_on(case.session, &case.gpus);
        assert_eq!(case.held_bytes(), (40, 0));
    }
}
