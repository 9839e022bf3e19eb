//! The arbiter's records of tenants and their sessions.

use super::account::Account;
use super::overdue::Overdue;
use super::overlap::{Overlap, Said};
use super::saved::{Awaited, Baseline};
use super::stopped::Stopped;
use super::{SessionId, SessionSeat, TenantSeat};
use crate::demand::Demand;
use crate::entitlement::Entitlement;
use crate::lease::Grant;
use crate::turns::{self, Turns};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use deepres_abi::meter::Reading;

/// A session of a tenant.
#[derive(Debug)]
pub struct Session {
    pub(super) seat: SessionSeat,
    /// The last reading of the meter. Its memory figures date from the last time that the session
    /// was active.
    pub(super) last: Reading,
    /// `Some` while the session's counters go on from earlier sessions and are not carried over
    /// yet.
    pub(super) awaited: Option<Awaited>,
    pub(super) stopped: Stopped,
    pub(super) overdue: Overdue,
    /// The time that several sessions of the tenant count, each as its own.
    pub(super) overlap: Overlap,
    /// The grant that the session's gate shows.
    pub(super) gate: Grant,
}

impl Session {
    pub(super) fn new(seat: SessionSeat, from: Option<Baseline>, awaited: Option<Awaited>) -> Self {
        Self {
            seat,
            last: from.map_or_else(Reading::default, |from| from.meter.into()),
            awaited,
            stopped: Stopped::default(),
            overdue: Overdue::default(),
            overlap: Overlap::default(),
            // A new grant page says so.
            gate: Grant::Closed,
        }
    }

    /// Returns the last reading of the session's meter.
    pub fn last(&self) -> &Reading {
        &self.last
    }

    /// Returns how long work has been in flight that does not end, for a tenant whose longest
    /// kernel took `longest_ns`; `None` without such work.
    pub fn overdue_ns(&self, longest_ns: u64, now_ns: u64) -> Option<u64> {
        self.overdue.overdue_ns(longest_ns, now_ns)
    }

    /// Returns the point up to which the session was charged: `looked_ns`, when the meters were last
    /// read, unless the session waits for its counters. Returns `None` if the point is not known
    /// yet.
    pub(super) fn charged_up_to(&self, looked_ns: u64) -> Option<Baseline> {
        match self.awaited {
            None => Some(Baseline { meter: self.last.into(), at_ns: looked_ns }),
            Some(awaited) => awaited.from,
        }
    }

    /// Returns whether the session had nothing under way at the last reading.
    pub(super) fn is_at_rest(&self) -> bool {
        !self.last.wants() && self.awaited.is_none() && !self.stopped.is_stopped()
    }

    /// Returns whether the session ever launched anything. Many processes that see the GPU never
    /// use it.
    fn launches(&self) -> bool {
        (self.last.kernel_launches | self.last.graph_launches) != 0
    }
}

/// A tenant and its state on this GPU.
#[derive(Debug)]
pub struct Tenant {
    pub(super) seat: TenantSeat,
    pub(super) account: Account,
    /// The part of `account` that is already added to the job's use, ns.
    pub(super) counted_ns: u64,
    /// GPU time that the tenant's job has used on all GPUs, ns.
    pub(super) job_used_ns: u64,
    /// The part of the GPU's memory that the tenant holds.
    pub(super) memory_ppm: u32,
    pub(super) demand: Demand,
    /// The tenant's entitlement; `None` until it was computed.
    pub(super) owed: Option<Entitlement>,
    /// The entitlement that the sessions were told, parts per million.
    pub(super) entitled_ppm: u32,
    /// Whether the tenant was idle when entitlements were last computed, so that its part was lent
    /// to the others.
    pub(super) is_lent: bool,
    pub(super) sessions: BTreeMap<SessionId, Session>,
    /// How far sessions with an open gate may run ahead, ns.
    pub(super) run_ahead_ns: u64,
    pub(super) turns: Turns,
    /// The latest observation of each session, in the order of their numbers.
    pub(super) seen: Vec<turns::Seen>,
    /// When the sessions had work on the GPU; used if several of them launch.
    pub(super) said: Said,
}

impl Tenant {
    /// Returns a tenant that was not seen on this GPU yet.
    pub(super) fn new(seat: TenantSeat, account: Account) -> Self {
        Self {
            seat,
            counted_ns: account.totals.gpu_ns,
            account,
            job_used_ns: 0,
            memory_ppm: 0,
            demand: Demand::default(),
            owed: None,
            entitled_ppm: 0,
            is_lent: false,
            sessions: BTreeMap::new(),
            run_ahead_ns: 0,
            turns: Turns::default(),
            seen: Vec::new(),
            said: Said::default(),
        }
    }

    /// Returns the account.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Returns the tenant's description.
    pub fn seat(&self) -> &TenantSeat {
        &self.seat
    }

    /// Returns the estimate of how much of the GPU the tenant wants, parts per million.
    pub fn demand_ppm(&self) -> u32 {
        self.demand.ppm()
    }

    /// Returns the entitlement; `None` until it was computed.
    pub fn owed(&self) -> Option<Entitlement> {
        self.owed
    }

    /// Returns the entitlement that the sessions know, parts per million.
    pub fn entitled_ppm(&self) -> u32 {
        self.entitled_ppm
    }

    /// Returns whether the tenant's part is lent to others because the tenant was idle.
    pub fn is_lent(&self) -> bool {
        self.is_lent
    }

    /// Returns the sessions connected at present, by their numbers.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.sessions.iter().map(|(id, session)| (*id, session))
    }

    /// Returns whether the tenant has sessions on this GPU.
    pub fn is_present(&self) -> bool {
        !self.sessions.is_empty()
    }

    /// Returns the number of sessions that launch.
    pub(super) fn launching(&self) -> usize {
        self.sessions.values().filter(|session| session.launches()).count()
    }

    /// Returns the grant for one session while the tenant's grant is `grant`. With `takes_turns`, a
    /// session whose turn it is not gets a closed gate. Ranks of a gang take no turns, because
    /// nobody knows which rank has its turn on another GPU.
    pub(super) fn grant_of(&self, session: SessionId, grant: Grant, takes_turns: bool) -> Grant {
        match grant {
            Grant::Leased { .. } if takes_turns && !self.turns.admits(session) => Grant::Closed,
            grant => grant,
        }
    }
}
