//! The arbiter's records of tenants and their sessions.

use super::account::Account;
use super::overdue::Overdue;
use super::overlap::{Overlap, Said, Shared};
use super::requests::Requests;
use super::saved::{Awaited, Baseline};
use super::stopped::Stopped;
use super::{SessionId, SessionSeat, TenantSeat};
use crate::demand::Demand;
use crate::entitlement::Entitlement;
use crate::lease::Grant;
use crate::turns::{self, Turns};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use deepres_abi::PPM;
use deepres_abi::meter::Reading;
use deepres_abi::quantity::MIN_SHARE_PPM;

/// The work that was in flight when a session came back after a time without an arbiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Brought {
    /// No work was in flight, or the core has subtracted the excess of the charges already.
    Nothing,
    /// The session has had work in flight at each reading since.
    InFlight,
    /// The work of the session is complete, and the core has not subtracted the excess yet.
    Complete,
}

/// A session of a tenant on this GPU: the last reading of its meter, and the state of its gate.
#[derive(Debug)]
pub struct Session {
    pub(super) seat: SessionSeat,
    /// The last reading of the meter. The memory figures in it are of the last time that the
    /// session was active.
    pub(super) last: Reading,
    /// The wait for the session's counters; `Some` until the process has carried the counters of
    /// its earlier sessions over.
    pub(super) awaited: Option<Awaited>,
    pub(super) brought: Brought,
    pub(super) stopped: Stopped,
    pub(super) overdue: Overdue,
    /// The last reading of the time by which launches took longer than usual, ns.
    pub(super) stretched_ns: u64,
    /// The part of the SMs that the session's launches use at most, parts per million; 0 for all
    /// SMs. The process reports it.
    pub(super) sm_ppm: u32,
    /// The MPS server with which the session counts; 0 for all SMs.
    pub(super) mps_server: u64,
    /// The last reading of the number of times that all work in flight ended. Each meter page
    /// begins at 0.
    pub(super) ends: u64,
    /// The GPU time that other sessions of the tenant count too.
    pub(super) overlap: Overlap,
    /// The grant that the session's gate shows.
    pub(super) gate: Grant,
    /// Whether the session knows that the hardware can take turns between its tenant's work and
    /// other tenants' work.
    pub(super) is_beside: bool,
}

impl Session {
    pub(super) fn new(seat: SessionSeat, from: Option<Baseline>, awaited: Option<Awaited>) -> Self {
        Self {
            seat,
            last: from.map_or_else(Reading::default, |from| from.meter.into()),
            awaited,
            brought: Brought::Nothing,
            stopped: Stopped::default(),
            overdue: Overdue::default(),
            stretched_ns: 0,
            sm_ppm: 0,
            mps_server: 0,
            ends: 0,
            overlap: Overlap::default(),
            // A new grant page shows a closed gate.
            gate: Grant::Closed,
            is_beside: false,
        }
    }

    /// Returns the last reading of the session's meter.
    pub fn last(&self) -> &Reading {
        &self.last
    }

    /// Returns how long work that does not end has been in flight, ns; `None` without such work.
    /// `longest_ns` is the length of the tenant's longest kernel.
    pub fn overdue_ns(&self, longest_ns: u64, now_ns: u64) -> Option<u64> {
        self.overdue.overdue_ns(longest_ns, now_ns)
    }

    /// Returns the point up to which the core charged the session. For most sessions, this is the
    /// last reading, at `looked_ns`. For a session that waits for its counters, it is an earlier
    /// point, or `None` if the point is unknown.
    pub(super) fn charged_up_to(&self, looked_ns: u64) -> Option<Baseline> {
        match self.awaited {
            None => Some(Baseline { meter: self.last.into(), at_ns: looked_ns }),
            Some(awaited) => awaited.from,
        }
    }

    /// Returns whether the session was at rest at the last reading: no thread waited, and no work
    /// was in flight.
    pub(super) fn is_at_rest(&self) -> bool {
        !self.last.wants() && self.awaited.is_none() && !self.stopped.is_stopped()
    }

    /// Returns whether the session's process is stopped, and the core has used all its counters.
    pub(super) fn stands_still(&self) -> bool {
        self.stopped.is_stopped() && self.awaited.is_none()
    }

    /// Returns whether the session ever launched anything. Many processes that see a GPU never use
    /// this GPU.
    fn launches(&self) -> bool {
        (self.last.kernel_launches | self.last.graph_launches) != 0
    }
}

/// A tenant and its state on this GPU.
#[derive(Debug)]
pub struct Tenant {
    pub(super) seat: TenantSeat,
    pub(super) account: Account,
    /// The GPU time in `account` that the core has already added to the use of the job, ns.
    pub(super) counted_ns: u64,
    /// GPU time that the tenant's job has used on all GPUs, ns.
    pub(super) job_used_ns: u64,
    /// The part of the GPU's memory that the tenant holds.
    pub(super) memory_ppm: u32,
    pub(super) demand: Demand,
    /// The tenant's entitlement; `None` before the first computation.
    pub(super) owed: Option<Entitlement>,
    /// The entitlement that the core told the sessions, parts per million.
    pub(super) entitled_ppm: u32,
    /// Whether the tenant was idle at the last computation of entitlements. Its part is then lent
    /// to the other tenants.
    pub(super) is_lent: bool,
    pub(super) sessions: BTreeMap<SessionId, Session>,
    /// GPU time that each session with an open gate may have in flight, ns.
    pub(super) run_ahead_ns: u64,
    pub(super) turns: Turns,
    /// The latest observation of each session, in the order of the sessions' numbers.
    pub(super) seen: Vec<turns::Seen>,
    /// The moments at which any session had work on the GPU. The core records them if several
    /// sessions launch.
    pub(super) said: Said,
    /// The time in which the tenant shared the GPU with another tenant.
    pub(super) shared: Shared,
    /// The sum of the tenant's uses that no other tenant's turn interrupted, ns.
    pub(super) short_uses_ns: u64,
    /// Whether the tenant wanted nothing and had used nothing at the last look. For such a tenant
    /// with closed gates, only the idle time grows until one of its meters changes.
    pub(super) rests: bool,
    /// The tenant's requests, if the tenant has an SLO.
    pub(super) requests: Option<Box<Requests>>,
}

impl Tenant {
    /// Returns a tenant without sessions on this GPU, with this account.
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
            shared: Shared::default(),
            short_uses_ns: 0,
            rests: false,
            requests: None,
        }
    }

    /// Replaces the caller's description of the tenant. With an SLO, the core begins to measure
    /// requests at `now_ns`, unless it measures them already.
    pub(super) fn describe(&mut self, seat: TenantSeat, now_ns: u64) {
        self.seat = seat;
        match seat.slo_ns {
            Some(_) => _ = self.requests.get_or_insert_with(|| Box::new(Requests::new(now_ns))),
            None => self.requests = None,
        }
    }

    /// Returns whether a gate of a session is not closed.
    pub(super) fn may_launch(&self) -> bool {
        self.sessions.values().any(|session| !matches!(session.gate, Grant::Closed | Grant::Paused))
    }

    /// Adds the idle time of a tenant that has rested until `now_ns`.
    pub(super) fn rest_until(&mut self, now_ns: u64) {
        if self.rests {
            let idle_ns = self.account.rest(now_ns);
            self.demand.observe(0, if self.is_present() { idle_ns } else { 0 });
            self.sessions.values_mut().for_each(|session| session.stopped.rest(now_ns));
        }
    }

    /// Returns the tenant's account on this GPU.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Returns the tenant's requests; `None` if the tenant has no SLO.
    pub fn requests(&self) -> Option<&Requests> {
        self.requests.as_deref()
    }

    /// Returns the caller's description of the tenant.
    pub fn seat(&self) -> &TenantSeat {
        &self.seat
    }

    /// Returns the MPS server of the processes that launch, and the part of the SMs that these
    /// processes use together at most, parts per million. Each process counts with the part that it
    /// reports, but at least with the granted part and the least `--sm`. Before the first launch,
    /// returns the server of all processes, and the granted part of one process.
    ///
    /// Returns `None` if the processes use all SMs. Clients of several servers do so, because the
    /// hardware does not run them at once.
    pub(super) fn part(&self) -> Option<(u64, u32)> {
        let granted_ppm = self.seat.sm_ppm.unwrap_or(0);
        let has_launched = self.sessions.values().any(Session::launches);
        let part_ppm = |session: &Session| match session.sm_ppm {
            _ if !has_launched => 0,
            0 => PPM,
            reported_ppm => reported_ppm.max(granted_ppm).max(MIN_SHARE_PPM),
        };
        let counted = self.sessions.values().filter(|session| session.launches() == has_launched);
        let mut parts = counted.map(|session| (session.mps_server, part_ppm(session)));
        let (server, mut parts_ppm) = parts.next()?;
        for (other, part_ppm) in parts {
            if other != server {
                return None;
            }
            parts_ppm = parts_ppm.saturating_add(part_ppm);
        }
        let parts_ppm = parts_ppm.max(granted_ppm);
        let counts = self.seat.uses_mps && server != 0 && (1..PPM).contains(&parts_ppm);
        counts.then_some((server, parts_ppm))
    }

    /// Returns the part of the SMs with which the tenant counts, parts per million; 0 for all SMs.
    /// The clients of `server` count with their parts.
    pub(super) fn part_ppm(&self, server: u64) -> u32 {
        self.part().filter(|(own, _)| *own == server).map_or(0, |(_, part_ppm)| part_ppm)
    }

    /// Returns the estimate of the tenant's demand: how much of the GPU the tenant wants, parts per
    /// million.
    pub fn demand_ppm(&self) -> u32 {
        self.demand.ppm()
    }

    /// Returns the entitlement; `None` before the first computation.
    pub fn owed(&self) -> Option<Entitlement> {
        self.owed
    }

    /// Returns the entitlement that the core told the sessions, parts per million.
    pub fn entitled_ppm(&self) -> u32 {
        self.entitled_ppm
    }

    /// Returns whether the tenant's part is lent to other tenants because the tenant was idle.
    pub fn is_lent(&self) -> bool {
        self.is_lent
    }

    /// Returns the connected sessions with their numbers, in the order of the numbers.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.sessions.iter().map(|(id, session)| (*id, session))
    }

    /// Returns whether the tenant has sessions on this GPU.
    pub fn is_present(&self) -> bool {
        !self.sessions.is_empty()
    }

    /// Returns the number of sessions that came back with work in flight, and whose excess of
    /// charges the core has not yet subtracted.
    pub(super) fn brought(&self) -> u64 {
        self.sessions.values().filter(|session| session.brought != Brought::Nothing).count() as u64
    }

    /// Returns the number of sessions that have launched anything.
    pub(super) fn launching(&self) -> usize {
        self.sessions.values().filter(|session| session.launches()).count()
    }

    /// Returns the grant of one session while the tenant's grant is `grant`. With `takes_turns`, a
    /// session gets a closed gate outside its turn.
    pub(super) fn grant_of(&self, session: SessionId, grant: Grant, takes_turns: bool) -> Grant {
        match grant {
            Grant::Leased { .. } if takes_turns && !self.turns.admits(session) => Grant::Closed,
            grant => grant,
        }
    }
}
