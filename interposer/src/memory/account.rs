//! The account of this process on one GPU.
//!
//! While a daemon is there, the account is the session's slot in the daemon's ledger. After the
//! daemon's death, the tenant's sessions still share that ledger, but new processes of the tenant
//! cannot find that ledger. New processes share the tenant's file ([`crate::standalone`]). So do
//! processes that a living daemon refuses. So while a process of the tenant has no session, each
//! session has two slots, and an account has two parts. A request must fit into both parts. The
//! ledger bounds all sessions of the tenant, also those that cannot reach the file, for example in
//! another container. The file bounds the sessions and the other processes together.
//!
//! The two parts end at different times. The interposer unmaps a former ledger after some daemons
//! ([`super::ledgers`]), and everything in that ledger is gone. The file stays, so a call that
//! outlasts its ledger still has to settle the part in the file (`in_file`).

use std::mem;

use deepres_abi::ledger::{self, Refused, Waiting};

/// The memory of this process on one GPU, in one or two ledgers.
#[derive(Debug, Clone, Copy)]
pub struct Account {
    ledger: ledger::Account<'static>,
    /// The part in the tenant's file, if the account has two parts.
    file: Option<ledger::Account<'static>>,
}

/// Bytes promised to a request in each part of an account ([`ledger::Reservation`]).
#[derive(Debug)]
#[must_use = "commit it once the driver has allocated; dropping gives the bytes back"]
pub struct Reservation {
    ledger: ledger::Reservation<'static>,
    file: Option<ledger::Reservation<'static>>,
}

/// Bytes in each part of an account that the caller told the driver to free ([`ledger::Leaving`]).
#[derive(Debug)]
#[must_use = "finish it once the driver has freed; dropping means that it did not"]
pub struct Leaving {
    ledger: ledger::Leaving<'static>,
    file: Option<ledger::Leaving<'static>>,
}

impl Account {
    /// Makes an account from the session's slot in the daemon's `ledger`. While a process of the
    /// tenant has no session, the account has a second slot, in the tenant's `file`.
    pub fn new(ledger: ledger::Account<'static>, file: Option<ledger::Account<'static>>) -> Self {
        Self { ledger, file }
    }

    /// Reserves `bytes` in each part, as [`ledger::Account::reserve`] does.
    ///
    /// # Errors
    /// [`Refused`] if a part has no room.
    #[inline(always)]
    pub fn reserve(
        self,
        bytes: u64,
        limit_bytes: u64,
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<Reservation, Refused> {
        let ledger = self.ledger.reserve(bytes, limit_bytes, &mut goes_on)?;
        let file = match self.file {
            Some(file) => Some(file.reserve(bytes, limit_bytes, goes_on)?),
            None => None,
        };
        Ok(Reservation { ledger, file })
    }

    /// Charges `bytes` that the driver has already allocated, even past the limit.
    pub fn charge(self, bytes: u64) {
        self.parts().for_each(|part| part.charge(bytes));
    }

    /// Marks `bytes` as leaving, before the caller tells the driver to free them. Returns them.
    pub fn leave(self, bytes: u64) -> Leaving {
        Leaving { ledger: self.ledger.leave(bytes), file: self.file.map(|file| file.leave(bytes)) }
    }

    /// Releases `bytes`, after the driver has freed them.
    pub fn release(self, bytes: u64) {
        self.parts().for_each(|part| part.release(bytes));
    }

    /// Moves a charge of `bytes` from the account `before` to this account. A part that both
    /// accounts have keeps the charge, so no reader sees the charge twice there. Without `before`,
    /// no account has the charge.
    pub fn take_over(self, bytes: u64, before: Option<Self>) {
        self.parts_without(before).for_each(|part| part.charge(bytes));
        if let Some(before) = before {
            before.parts_without(Some(self)).for_each(|part| part.release(bytes));
        }
    }

    /// Returns the part in the file as an account, because the ledger is no longer mapped.
    pub fn in_file(self) -> Option<Self> {
        self.file.map(|file| Self::new(file, None))
    }

    /// Returns the parts of this account that `other` lacks.
    fn parts_without(self, other: Option<Self>) -> impl Iterator<Item = ledger::Account<'static>> {
        let is_others = move |part: &ledger::Account<'static>| {
            other.is_some_and(|other| other.parts().any(|own| own.is_same(*part)))
        };
        self.parts().filter(move |part| !is_others(part))
    }

    fn parts(self) -> impl Iterator<Item = ledger::Account<'static>> {
        [Some(self.ledger), self.file].into_iter().flatten()
    }

    /// Returns the bytes that this process holds.
    pub fn held_bytes(self) -> u64 {
        self.ledger.held_bytes()
    }

    /// Returns the pending bytes of this process.
    pub fn pending_bytes(self) -> u64 {
        self.ledger.pending_bytes()
    }

    /// Returns the bytes that the whole tenant holds, by the part with more bytes.
    pub fn tenant_held_bytes(self) -> u64 {
        self.parts().map(ledger::Account::tenant_held_bytes).max().unwrap_or(0)
    }

    /// Begins to wait for `bytes` that the daemon can make room for
    /// ([`ledger::Account::wait_for_room`]).
    pub fn wait_for_room(self, bytes: u64) -> Option<Waiting<'static>> {
        self.ledger.wait_for_room(bytes)
    }

    /// Returns how often another tenant began to wait for memory that this tenant has.
    pub fn presses(self) -> u32 {
        self.ledger.presses()
    }
}

impl Reservation {
    /// Returns the promised bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.ledger.bytes()
    }

    /// Commits `bytes` of the reservation, which the driver allocated, and withdraws the rest.
    pub fn commit_part(self, bytes: u64) {
        self.ledger.commit_part(bytes);
        if let Some(file) = self.file {
            file.commit_part(bytes);
        }
    }

    /// Returns the part in the file, because the ledger is no longer mapped.
    pub fn in_file(self) -> Option<ledger::Reservation<'static>> {
        mem::forget(self.ledger);
        self.file
    }
}

impl Leaving {
    /// Records that the driver freed all these bytes.
    pub fn finish(self) {
        self.ledger.finish();
        if let Some(file) = self.file {
            file.finish();
        }
    }

    /// Records that the driver freed `bytes` of these bytes, at most all, and not the rest.
    pub fn finish_part(self, bytes: u64) {
        self.ledger.finish_part(bytes);
        if let Some(file) = self.file {
            file.finish_part(bytes);
        }
    }

    /// Returns the part in the file, because the ledger is no longer mapped.
    pub fn in_file(self) -> Option<ledger::Leaving<'static>> {
        mem::forget(self.ledger);
        self.file
    }
}

#[cfg(test)]
mod tests {
    use deepres_abi::ledger::LedgerGpu;

    use super::*;

    const LIMIT: u64 = 100;

    /// Returns the account of the first of two processes, and the account of the second.
    fn ledger() -> [ledger::Account<'static>; 2] {
        let ledger: &'static LedgerGpu = Box::leak(Box::<LedgerGpu>::default());
        [0, 1].map(|slot| {
            ledger.open(slot).unwrap();
            ledger.account(slot).unwrap()
        })
    }

    /// Returns a session's account without the file, and the account of a new process in the file.
    /// The third value is the session's account with both parts.
    fn accounts() -> (Account, ledger::Account<'static>, Account) {
        let ([own, _], [in_file, newcomer]) = (ledger(), ledger());
        (Account::new(own, None), newcomer, Account::new(own, Some(in_file)))
    }

    #[test]
    fn a_request_needs_room_in_both_parts_and_leaves_nothing_in_either_if_it_is_refused() {
        let (alone, newcomer, both) = accounts();
        alone.reserve(60, LIMIT, || false).unwrap().commit_part(60);
        both.take_over(60, Some(alone));
        newcomer.reserve(30, LIMIT, || false).unwrap().commit();
        assert_eq!((both.tenant_held_bytes(), alone.tenant_held_bytes()), (90, 60));
        assert_eq!(both.reserve(11, LIMIT, || false).unwrap_err(), Refused { held_bytes: 90 });
        assert_eq!(both.pending_bytes(), 0);
        assert!(newcomer.reserve(11, LIMIT, || false).is_err());
        both.reserve(10, LIMIT, || false).unwrap().commit_part(10);
        assert_eq!((both.held_bytes(), newcomer.tenant_held_bytes()), (70, LIMIT));
        // Other sessions of the tenant may have no way to the file.
        both.release(70);
        alone.reserve(LIMIT, LIMIT, || false).unwrap().commit_part(LIMIT);
        assert!(both.reserve(1, LIMIT, || false).is_err());
    }

    #[test]
    fn a_charge_moves_to_the_file_and_out_of_it_again() {
        let (alone, newcomer, both) = accounts();
        newcomer.charge(30);
        alone.charge(60);
        both.take_over(60, Some(alone));
        assert_eq!((alone.held_bytes(), newcomer.tenant_held_bytes()), (60, 90), "and not twice");
        let next = Account::new(ledger()[0], None);
        next.take_over(60, Some(both));
        assert_eq!((next.held_bytes(), alone.held_bytes(), newcomer.tenant_held_bytes()), (60, 0, 30));
        next.take_over(5, None);
        assert_eq!(next.held_bytes(), 65);
    }

    #[test]
    fn memory_that_the_driver_frees_leaves_both_parts() {
        let (alone, newcomer, both) = accounts();
        newcomer.charge(30);
        both.charge(60 + 7);
        both.leave(60).finish();
        assert_eq!((alone.held_bytes(), newcomer.tenant_held_bytes()), (7, 37));
        drop(both.leave(7));
        assert_eq!(both.reserve(70, LIMIT, || true).unwrap_err(), Refused { held_bytes: 37 });
        both.leave(7).finish_part(5);
        assert_eq!((alone.held_bytes(), newcomer.tenant_held_bytes()), (2, 32));
    }

    #[test]
    fn a_call_that_outlasts_its_ledger_settles_its_part_in_the_file() {
        let (alone, newcomer, both) = accounts();
        both.charge(60);
        let (leaving, promised) = (both.leave(60), both.reserve(30, LIMIT, || false).unwrap());
        leaving.in_file().unwrap().finish();
        drop(promised.in_file());
        assert_eq!(newcomer.tenant_held_bytes(), 0);
        newcomer.reserve(LIMIT, LIMIT, || false).unwrap().commit();
        assert_eq!((alone.held_bytes(), alone.pending_bytes()), (60, 30), "no write to the ledger");
        assert!(alone.in_file().is_none() && alone.leave(1).in_file().is_none());
    }
}
