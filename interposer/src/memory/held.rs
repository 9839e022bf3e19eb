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
        Self { bytes: 0, kind, ordinal, generation: 0 }
    }

    /// What the driver has just given: `bytes`, for which `promise` is.
    #[inline]
    pub fn new(kind: MemoryKind, ordinal: usize, site: &Site<'_>, bytes: u64, promise: Promise) -> Self {
        site.settle(promise, bytes);
        let mut held = Self { bytes, kind, ordinal, generation: site.ledger.generation };
        // The daemon came back meanwhile: what was settled is in the ledger of before.
        held.follow(site.session, site.gpu);
        held.count(site.gpu, bytes, 0);
        held
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
            self.generation = ledger.generation;
        }
        self.count(site.gpu, more, less);
        self.bytes = bytes;
    }

    /// The driver is about to be told to take it back.
    pub fn leave(&self, process: &Process) -> Option<Exit> {
        let (session, gpu) = process.session().zip(process.gpus.get(self.ordinal))?;
        let (ledger, account) = account(session, gpu)?;
        let generation = ledger.generation;
        (self.generation == generation).then(|| Exit { generation, leaving: account.leave(self.bytes) })
    }

    /// The driver took it back.
    pub fn give_back(&mut self, process: &Process, exit: Option<Exit>) {
        let Some((session, gpu)) = process.session().zip(process.gpus.get(self.ordinal)) else { return };
        match exit {
            // What was in a ledger of before went with it.
            Some(exit) if session.has_ledger(exit.generation) => {
                exit.leaving.finish();
                // It was moved while the driver was busy.
                if exit.generation != self.generation {
                    self.release(session, gpu);
                }
            }
            Some(exit) => {
                mem::forget(exit);
                self.release(session, gpu);
            }
            None => self.release(session, gpu),
        }
        self.count(gpu, 0, self.bytes);
        self.bytes = 0;
    }

    fn release(&self, session: &Session, gpu: &Gpu) {
        if let Some((ledger, account)) = account(session, gpu)
            && self.generation == ledger.generation
        {
            account.release(self.bytes);
        }
    }

    /// Moves it to the ledger there is, if it is in one of before.
    pub fn follow(&mut self, session: &Session, gpu: &Gpu) {
        if self.generation == session.ledger_generation() {
            return;
        }
        if let Some((ledger, account)) = account(session, gpu) {
            self.generation = ledger.generation;
            account.charge(self.bytes);
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
        if !self.kind.is_counted() {
            return;
        }
        let Some(held) = gpu.meter().and_then(|meter| meter.held_bytes.get(self.kind as usize)) else {
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
