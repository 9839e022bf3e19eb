//! Where a request is charged: the tenant's account on the GPU that it is about, and the limit there.

use std::mem;

use deepres_abi::driver::result::CUDA_ERROR_OUT_OF_MEMORY;
use deepres_abi::grant::{GrantSlot, NO_LIMIT};
use deepres_abi::ledger::{Account, Refused, Reservation};

use super::ledgers::Ledger;
use super::room;
use crate::meter::gpu::Gpu;
use crate::os::Patience;
use crate::process::Process;
use crate::session::Session;

/// How long a request waits for others' unfinished ones: a call of the driver's takes 1 µs to 1 ms, a free until the GPU is through with what it was
/// given.
const PATIENCE_NS: u64 = 1_000_000_000;

/// See the module.
#[derive(Clone, Copy)]
pub struct Site<'p> {
    /// The session.
    pub session: &'static Session,
    /// The GPU.
    pub gpu: &'p Gpu,
    /// The ledger that was the present one when the request began.
    pub ledger: Ledger,
    /// The process's account there.
    pub account: Account<'static>,
    grant: &'p GrantSlot,
}

/// What was promised to a request; nothing, without a limit.
pub type Promise = Option<Reservation<'static>>;

impl<'p> Site<'p> {
    /// That of the GPU `ordinal`, if there is a session and it is managed.
    #[inline(always)]
    pub fn of(process: &'p Process, ordinal: usize) -> Option<Self> {
        let (session, gpu) = process.session().zip(process.gpus.get(ordinal))?;
        let ledger = session.ledger();
        let (grant, account) = gpu.grant().zip(ledger.account(gpu.index()?))?;
        Some(Self { session, gpu, ledger, account, grant })
    }

    /// What the tenant may hold there at this moment.
    #[inline]
    pub fn limit_bytes(&self) -> u64 {
        self.grant.memory_limit()
    }

    /// Whether anything is promised to requests of this process.
    pub fn is_anything_promised(&self) -> bool {
        self.account.pending_bytes() != 0
    }

    /// Whether its ledger is the present one still.
    #[inline]
    pub fn is_present(&self) -> bool {
        self.ledger.generation == self.session.ledger_generation()
    }

    /// Promises `bytes` to the request if there is a limit, and nothing in the way.
    #[inline(always)]
    pub fn reserve_at_once(&self, bytes: u64) -> Option<Reservation<'static>> {
        let limit_bytes = self.limit_bytes();
        if limit_bytes == NO_LIMIT {
            return None;
        }
        self.under(limit_bytes, self.account.reserve_at_once(bytes, limit_bytes)?)
    }

    /// What was reserved under a limit, if that is the limit still.
    #[inline(always)]
    fn under(&self, limit_bytes: u64, reservation: Reservation<'static>) -> Option<Reservation<'static>> {
        if self.grant.memory_limit_is(limit_bytes) {
            return Some(reservation);
        }
        self.withdraw(Some(reservation));
        None
    }

    /// Promises `bytes` to the request.
    ///
    /// # Errors
    /// [`Refused`], if what is held leaves no room.
    #[inline(always)]
    pub fn reserve(&self, bytes: u64) -> Result<Promise, Refused> {
        let limit_bytes = self.limit_bytes();
        if limit_bytes == NO_LIMIT {
            return Ok(None);
        }
        let reserved = self.reserve_within(bytes, limit_bytes);
        reserved.map(Some).or_else(|refused| self.reserve_anew(bytes, limit_bytes, refused))
    }

    #[inline(always)]
    fn reserve_within(&self, bytes: u64, limit_bytes: u64) -> Result<Reservation<'static>, Refused> {
        let mut patience = Patience::default();
        let goes_on = || self.limit_bytes() == limit_bytes && patience.goes_on(PATIENCE_NS);
        let reservation = self.account.reserve(bytes, limit_bytes, goes_on)?;
        self.under(limit_bytes, reservation)
            .ok_or_else(|| Refused { held_bytes: self.account.tenant_held_bytes() })
    }

    /// The same once more, where the limit has changed meanwhile or sessions that are dead stood in the way.
    #[cold]
    fn reserve_anew(
        &self,
        bytes: u64,
        mut limit_bytes: u64,
        mut refused: Refused,
    ) -> Result<Promise, Refused> {
        let mut is_buried = false;
        loop {
            let now_bytes = self.limit_bytes();
            if now_bytes == NO_LIMIT {
                return Ok(None);
            }
            if now_bytes == limit_bytes {
                if is_buried || !self.gpu.index().is_some_and(|index| self.session.bury_dead(index)) {
                    return Err(refused);
                }
                is_buried = true;
            }
            limit_bytes = now_bytes;
            match self.reserve_within(bytes, limit_bytes) {
                Ok(reservation) => return Ok(Some(reservation)),
                Err(again) => refused = again,
            }
        }
    }

    /// Runs `call`, and again each time that others made room for `bytes` that the GPU lacked. What was promised is not while the request waits: the
    /// rest of the tenant goes on. Returns the promise too, if there is one still.
    #[inline]
    pub fn ask<T>(
        &self,
        bytes: u64,
        promise: Promise,
        mut call: impl FnMut() -> (u32, T),
    ) -> ((u32, T), Promise) {
        let answered = call();
        self.ask_again(bytes, promise, answered, &mut call)
    }

    /// The same once it was run, and answered that.
    pub fn ask_again<T>(
        &self,
        bytes: u64,
        mut promise: Promise,
        mut answered: (u32, T),
        call: &mut dyn FnMut() -> (u32, T),
    ) -> ((u32, T), Promise) {
        while answered.0 == CUDA_ERROR_OUT_OF_MEMORY {
            self.withdraw(promise.take());
            if !self.await_room(bytes) {
                return (answered, None);
            }
            match self.reserve(bytes) {
                Ok(again) => promise = again,
                Err(_) => return (answered, None),
            }
            answered = call();
        }
        (answered, promise)
    }

    /// The driver has no memory for `bytes`: waits until others made room. False if none is to be had.
    #[cold]
    pub fn await_room(&self, bytes: u64) -> bool {
        room::wait(self.session, self.gpu, (&self.ledger, self.account), bytes)
    }

    /// What was promised is not needed. A ledger that is gone took with it what was promised there.
    pub fn withdraw(&self, promise: Promise) {
        if !self.session.has_ledger(self.ledger.generation) {
            mem::forget(promise);
        }
    }

    /// The driver answered: `bytes` are held, of which what was promised may be more or less.
    #[inline]
    pub fn settle(&self, promise: Promise, bytes: u64) {
        if !self.session.has_ledger(self.ledger.generation) {
            return mem::forget(promise);
        }
        let promised_bytes = promise.as_ref().map_or(0, Reservation::bytes);
        if let Some(promise) = promise {
            promise.commit_part(bytes);
        }
        if bytes > promised_bytes {
            self.account.charge(bytes - promised_bytes);
        }
    }
}
