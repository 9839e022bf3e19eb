//! What is charged for one thing: so many bytes of a kind on a GPU, in one ledger.

use std::mem;
use std::sync::atomic::Ordering;

use deepres_abi::ledger::{Account, Leaving};
use deepres_abi::meter::MemoryKind;

use super::ledgers::Ledger;
use super::site::{Promise, Site};
use crate::meter::gpu::Gpu;
use crate::process::Process;
use crate::session::Session;

/// See the module. Whoever has it keeps it behind a lock.
#[derive(Debug)]
pub struct Held {
    /// So many.
    pub bytes: u64,
    kind: MemoryKind,
    /// The GPU's ordinal in this process.
    ordinal: usize,
    /// The ledger that they are in ([`Ledger::generation`]).
    generation: u32,
    /// The account there; `None`: in none.
    account: Option<Account<'static>>,
}

/// Bytes that the driver was told to take back.
#[derive(Debug)]
pub struct Exit {
    /// The ledger that they are in ([`Ledger::generation`]).
    generation: u32,
    leaving: Leaving<'static>,
}

fn account(session: &Session, gpu: &Gpu) -> Option<(Ledger, Account<'static>)> {
    let ledger = session.ledger();
    Some((ledger, ledger.account(gpu.index()?)?))
}

impl Held {
    /// Nothing yet.
    pub const fn nothing(kind: MemoryKind, ordinal: usize) -> Self {
        Self { bytes: 0, kind, ordinal, generation: 0, account: None }
    }

    /// The GPU that it is on, as an ordinal of this process.
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// What the driver has just given: `bytes`, for which `promise` is. Behind the lock that it is going to be kept behind: whoever moves all to a new
    /// ledger finds it, or it is in that one already.
    pub fn new(kind: MemoryKind, ordinal: usize, site: &Site<'_>, bytes: u64, promise: Promise) -> Self {
        site.settle(promise, bytes);
        let mut held = Self::in_account(kind, ordinal, site, bytes);
        // The daemon came back meanwhile: what was settled is in the ledger of before.
        held.follow(site.session, site.gpu);
        held.count(site.gpu, bytes, 0);
        held
    }

    /// The same, where `promise` is for all of it and nothing came between; else it is given back.
    #[inline(always)]
    pub fn promised(
        kind: MemoryKind,
        ordinal: usize,
        site: &Site<'_>,
        bytes: u64,
        promise: Promise,
    ) -> Result<Self, Promise> {
        match promise {
            Some(promise) if promise.bytes() == bytes && !kind.is_counted() && site.is_present() => {
                promise.commit();
                Ok(Self::in_account(kind, ordinal, site, bytes))
            }
            promise => Err(promise),
        }
    }

    #[inline(always)]
    fn in_account(kind: MemoryKind, ordinal: usize, site: &Site<'_>, bytes: u64) -> Self {
        Self { bytes, kind, ordinal, generation: site.ledger.generation, account: Some(site.account) }
    }

    /// From now on it is `bytes`; `promise` is for what they grow by.
    pub fn set(&mut self, site: &Site<'_>, bytes: u64, promise: Promise) {
        let (more, less) = (bytes.saturating_sub(self.bytes), self.bytes.saturating_sub(bytes));
        site.settle(promise, more);
        if let Some((ledger, account)) = account(site.session, site.gpu) {
            // The daemon may have come back meanwhile: what there was, and what was settled, may each be in a ledger of before.
            let kept = if self.generation == ledger.generation { self.bytes } else { 0 };
            let settled = if site.ledger.generation == ledger.generation { more } else { 0 };
            let charged = kept + settled;
            if charged < bytes {
                account.charge(bytes - charged);
            } else if charged > bytes {
                account.release(charged - bytes);
            }
            if self.generation != ledger.generation {
                self.release(site.session);
            }
            if site.ledger.generation != ledger.generation && site.session.has_ledger(site.ledger.generation)
            {
                site.account.release(more);
            }
            self.generation = ledger.generation;
            self.account = Some(account);
        }
        self.count(site.gpu, more, less);
        self.bytes = bytes;
    }

    /// The driver is about to be told to take it back.
    #[inline(always)]
    pub fn leave(&self, process: &Process) -> Option<Exit> {
        let account = self.account_in(process.session()?)?;
        Some(Exit { generation: self.generation, leaving: account.leave(self.bytes) })
    }

    /// The driver was told to take back what it can of it, all of which was leaving by `exit`: `bytes` stay.
    pub fn shrink(&mut self, site: &Site<'_>, bytes: u64, exit: Option<Exit>) {
        match (exit, self.bytes.checked_sub(bytes)) {
            // Nothing came between.
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

    /// The driver took it back.
    #[inline(always)]
    pub fn give_back(self, process: &Process, exit: Option<Exit>) {
        match (process.session(), exit) {
            // Nothing came between.
            (Some(session), Some(exit))
                if exit.generation == self.generation
                    && session.has_ledger(exit.generation)
                    && !self.kind.is_counted() =>
            {
                exit.leaving.finish();
            }
            (session, exit) => self.give_back_late(process, session, exit),
        }
    }

    #[inline(never)]
    fn give_back_late(self, process: &Process, session: Option<&Session>, exit: Option<Exit>) {
        let Some(session) = session else { return };
        match exit {
            // What was in a ledger of before went with it.
            Some(exit) if session.has_ledger(exit.generation) => {
                exit.leaving.finish();
                // It was moved while the driver was busy.
                if exit.generation != self.generation {
                    self.release(session);
                }
            }
            Some(exit) => {
                mem::forget(exit);
                self.release(session);
            }
            None => self.release(session),
        }
        if let Some(gpu) = process.gpus.get(self.ordinal) {
            self.count(gpu, 0, self.bytes);
        }
    }

    /// The account that it is in, if that is of the ledger there is.
    #[inline(always)]
    fn account_in(&self, session: &Session) -> Option<Account<'static>> {
        self.account.filter(|_| self.generation == session.ledger_generation())
    }

    /// Takes it out of the account that it is in, one of before too: with the same daemon that may be in the same ledger, which was emptied when the
    /// session ended, and has what was charged since.
    fn release(&self, session: &Session) {
        if let Some(account) = self.account.filter(|_| session.has_ledger(self.generation)) {
            account.release(self.bytes);
        }
    }

    /// Moves it to the ledger there is, if it is in one of before.
    pub fn follow(&mut self, session: &Session, gpu: &Gpu) {
        if self.generation == session.ledger_generation() {
            return;
        }
        if let Some((ledger, account)) = account(session, gpu) {
            account.charge(self.bytes);
            self.release(session);
            self.generation = ledger.generation;
            self.account = Some(account);
        }
    }

    /// The same, for the GPU that it is on.
    pub fn follow_on(&mut self, session: &Session, gpus: &[Gpu]) {
        if let Some(gpu) = gpus.get(self.ordinal) {
            self.follow(session, gpu);
        }
    }

    /// Keeps the meter page's count by kind.
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
    /// The driver did not take it back.
    pub fn cancel(self, process: &Process) {
        match process.session() {
            Some(session) => self.cancel_in(session),
            None => mem::forget(self),
        }
    }

    /// The same.
    pub fn cancel_in(self, session: &Session) {
        if !session.has_ledger(self.generation) {
            mem::forget(self);
        }
    }
}
