//! The site of a request: the account to which the interposer charges the request, and the tenant's
//! limit on the request's GPU.

use deepres_abi::coverage::Bypass;
use deepres_abi::driver::result::CUDA_ERROR_OUT_OF_MEMORY;
use deepres_abi::grant::{GrantSlot, NO_LIMIT};
use deepres_abi::ledger::Refused;

use super::account::{Account, Reservation};
use super::ledgers::Ledger;
use super::room;
use crate::coverage;
use crate::meter::gpu::Gpu;
use crate::os::Patience;
use crate::process::Process;
use crate::session::Session;

/// The time for which a request waits for unfinished requests of other threads and processes of the
/// tenant, ns. A driver call takes 1 µs to 1 ms. But a free can take until the GPU has finished its
/// work.
const PATIENCE_NS: u64 = 1_000_000_000;

/// The session, GPU, ledger and account to which the interposer charges one request.
#[derive(Clone, Copy)]
pub struct Site<'p> {
    /// The session whose pages the interposer uses.
    pub session: &'static Session,
    /// The GPU for whose memory the job asks.
    pub gpu: &'p Gpu,
    /// The ledger that was current when the request began.
    pub ledger: Ledger,
    /// The account of the process in the ledger.
    pub account: Account,
    grant: &'p GrantSlot,
}

/// The reservation for a request, or `None` if the tenant has no limit.
pub type Promise = Option<Reservation>;

impl<'p> Site<'p> {
    /// Returns the site for the GPU `ordinal`. Returns `None` if there is no session, or if the
    /// daemon does not manage the GPU.
    pub fn of(process: &'p Process, ordinal: usize) -> Option<Self> {
        let (session, gpu) = process.session().zip(process.gpus.get(ordinal))?;
        let ledger = session.ledger();
        let (grant, account) = gpu.grant().zip(ledger.account(gpu.index()?, gpu.uuid()))?;
        Some(Self { session, gpu, ledger, account, grant })
    }

    /// Returns the site for a call that takes memory of the GPU `ordinal`. If there is none, counts
    /// the call as a bypass.
    pub fn of_call(process: &'p Process, ordinal: usize) -> Option<Self> {
        let site = Self::of(process, ordinal);
        if site.is_none() {
            let has_session = process.session().is_some();
            coverage::bypass(if has_session { Bypass::UnchargedGpu } else { Bypass::NoSession });
        }
        site
    }

    /// Returns the tenant's present limit on the GPU, bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.grant.memory_limit()
    }

    /// Returns whether any request of this process has a reservation.
    pub fn is_anything_promised(&self) -> bool {
        self.account.pending_bytes() != 0
    }

    /// Returns whether the site's ledger is still the current ledger.
    pub fn is_present(&self) -> bool {
        self.ledger.generation == self.session.ledger_generation()
    }

    /// Reserves `bytes` for the request, and returns the reservation.
    ///
    /// # Errors
    /// [`Refused`] if the held memory leaves no room.
    pub fn reserve(&self, bytes: u64) -> Result<Promise, Refused> {
        let limit_bytes = self.limit_bytes();
        if limit_bytes == NO_LIMIT {
            return Ok(None);
        }
        let reserved = self.reserve_within(bytes, limit_bytes);
        reserved.map(Some).or_else(|refused| self.reserve_anew(bytes, limit_bytes, refused))
    }

    fn reserve_within(&self, bytes: u64, limit_bytes: u64) -> Result<Reservation, Refused> {
        let mut patience = Patience::default();
        let goes_on = || self.limit_bytes() == limit_bytes && patience.goes_on(PATIENCE_NS);
        let reservation = self.account.reserve(bytes, limit_bytes, goes_on)?;
        if self.grant.memory_limit_is(limit_bytes) {
            return Ok(reservation);
        }
        // The site made the reservation under another limit.
        self.withdraw(Some(reservation));
        Err(Refused { held_bytes: self.account.tenant_held_bytes() })
    }

    /// Tries to reserve again, if the limit has changed since the first attempt, or if the slots of
    /// dead sessions have been cleared. Returns the reservation.
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

    /// Runs `call`, and returns the result with the remaining reservation. If the GPU lacks memory,
    /// waits until other tenants have made room for `bytes`, and runs `call` again. The request has
    /// no reservation while it waits, so that the tenant's other threads and processes can
    /// allocate.
    pub fn ask<T>(
        &self,
        bytes: u64,
        mut promise: Promise,
        mut call: impl FnMut() -> (u32, T),
    ) -> ((u32, T), Promise) {
        let mut answered = call();
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

    /// Waits until other tenants have made room for `bytes`, because the driver has no memory left.
    /// Returns false if the daemon can make no room.
    #[cold]
    pub fn await_room(&self, bytes: u64) -> bool {
        room::wait(self.session, self.gpu, (&self.ledger, self.account), bytes)
    }

    /// Withdraws a reservation that the request does not need. If the reservation's ledger is no
    /// longer mapped, the reservation is gone with the ledger.
    pub fn withdraw(&self, promise: Promise) {
        if !self.session.has_ledger(self.ledger.generation) {
            drop(promise.and_then(Reservation::in_file));
        }
    }

    /// Records that the driver allocated `bytes`, which can be more or less than the reserved
    /// bytes. Returns the account that contains the bytes. If the ledger is no longer mapped,
    /// withdraws the reservation and returns `None`.
    pub fn settle(&self, promise: Promise, bytes: u64) -> Option<Account> {
        if !self.session.has_ledger(self.ledger.generation) {
            self.withdraw(promise);
            return None;
        }
        let promised_bytes = promise.as_ref().map_or(0, Reservation::bytes);
        if let Some(promise) = promise {
            promise.commit_part(bytes);
        }
        if bytes > promised_bytes {
            self.account.charge(bytes - promised_bytes);
        }
        Some(self.account)
    }
}
