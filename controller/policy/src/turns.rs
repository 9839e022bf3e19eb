//! The turns that several sessions of one tenant take inside the tenant's leases.
//!
//! The arbiter lets backlogged sessions in one at a time. Together, backlogged sessions would make
//! the GPU switch between them every few milliseconds. The hardware's switches cost some hundredths
//! of the GPU's time, and hide which session used which time. The arbiter lets sessions with pauses
//! in together, because one session uses the GPU in another session's pauses. The meters tell
//! backlogged sessions from sessions with pauses: if backlogged sessions run together, each session
//! also counts the time of the other sessions.

use super::lease::Grant;
use alloc::vec::Vec;
use core::time::Duration;

/// The number of a session.
type SessionId = u64;

const fn ns(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

/// The time under a lease after which the arbiter judges whether sessions have pauses, ns.
const JUDGED_OVER_NS: u64 = ns(Duration::from_millis(40));
/// If the GPU time that all sessions count exceeds this part of the leases' time, the sessions are
/// backlogged; percent.
const BACKLOGGED_PERCENT: u64 = 130;
/// If a session with the turn uses less than this part of the leases' time, the sessions have
/// pauses; percent.
const PAUSING_PERCENT: u64 = 60;
/// The time for which sessions with pauses run together before the arbiter judges again whether
/// they have pauses, ns.
const TOGETHER_NS: u64 = ns(Duration::from_secs(1));
/// The most GPU time that a session may lack, compared with the other sessions, when it wants the
/// GPU again, ns. So a session cannot make up for more rest than the arbiter judges at once.
const MADE_UP_FOR_NS: u64 = JUDGED_OVER_NS;

/// The observation of one session since the last decision about turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The session's number.
    pub session: SessionId,
    /// Whether the session has work in flight or a waiting thread.
    pub wants: bool,
    /// GPU time that the session counted since the last observation, ns.
    pub used_ns: u64,
}

/// The turns of one tenant's sessions: the session that may launch now, and the GPU time of each
/// session.
#[derive(Debug, Default)]
pub struct Turns {
    /// The session that has the turn; `None` if the arbiter lets all sessions in.
    holder: Option<SessionId>,
    idle_since_ns: Option<u64>,
    /// GPU time of each session, in the order of the sessions' numbers. The session with the least
    /// time gets the next turn.
    had_ns: Vec<(SessionId, u64)>,
    /// The least GPU time among the sessions that want the GPU, at its highest so far, ns. The
    /// value does not fall when a session comes back after a rest.
    least_ns: u64,
    /// The time under leases since the arbiter last judged whether sessions have pauses, ns.
    leased_ns: u64,
    /// The GPU time that all sessions used in `leased_ns`, ns.
    used_ns: u64,
    /// The time until which sessions with pauses run together, ns.
    together_until_ns: u64,
}

impl Turns {
    /// Makes room for this many sessions, so that [`Self::observe`] does not allocate for them.
    pub fn reserve(&mut self, sessions: usize) {
        self.had_ns.reserve(sessions.saturating_sub(self.had_ns.len()));
    }

    /// Returns whether a session may launch while its tenant may launch.
    pub fn admits(&self, session: SessionId) -> bool {
        self.holder.is_none_or(|holder| holder == session)
    }

    /// Returns whether the arbiter lets sessions in one at a time.
    pub fn is_taken(&self) -> bool {
        self.holder.is_some()
    }

    /// Records the observations of the last `elapsed_ns`, in which the tenant had the grant
    /// `grant`. Also judges whether sessions have pauses. The sessions are in the order of their
    /// numbers.
    pub fn observe(&mut self, now_ns: u64, elapsed_ns: u64, grant: Grant, sessions: &[Seen]) {
        debug_assert!(sessions.is_sorted_by_key(|seen| seen.session));
        self.align(sessions);
        self.count(sessions);
        match grant {
            Grant::Leased { .. } => self.leased_ns = self.leased_ns.saturating_add(elapsed_ns),
            // Work that completes while the gate is closed began under an earlier lease.
            Grant::Closed | Grant::Paused | Grant::Once => {}
            Grant::Open => (self.leased_ns, self.used_ns) = (0, 0),
        }
        if self.leased_ns >= JUDGED_OVER_NS {
            self.judge(now_ns, sessions);
            (self.leased_ns, self.used_ns) = (0, 0);
        }
        if self.holder.is_some_and(|holder| sessions.iter().all(|seen| seen.session != holder)) {
            self.pass_on(sessions);
        }
    }

    /// Forgets the sessions that are gone, and adds the new sessions. So `had_ns` has the sessions
    /// of `sessions`, in the same order. A new session begins with the least GPU time of all
    /// sessions.
    fn align(&mut self, sessions: &[Seen]) {
        if self.had_ns.iter().map(|(id, _)| *id).eq(sessions.iter().map(|seen| seen.session)) {
            return;
        }
        let is_here = |id: SessionId| sessions.binary_search_by_key(&id, |seen| seen.session).is_ok();
        self.had_ns.retain(|(id, _)| is_here(*id));
        for seen in sessions {
            if let Err(place) = self.place(seen.session) {
                self.had_ns.insert(place, (seen.session, self.least_ns));
            }
        }
    }

    /// Adds the observed GPU time to the time of each session. The caller has aligned the sessions.
    fn count(&mut self, sessions: &[Seen]) {
        let mut least_ns = None;
        for (seen, (_, had_ns)) in sessions.iter().zip(&mut self.had_ns) {
            self.used_ns = self.used_ns.saturating_add(seen.used_ns);
            *had_ns += seen.used_ns;
            if seen.wants || seen.used_ns > 0 {
                *had_ns = self.least_ns.saturating_sub(MADE_UP_FOR_NS).max(*had_ns);
                least_ns = Some(least_ns.map_or(*had_ns, |least_ns: u64| least_ns.min(*had_ns)));
            }
        }
        self.least_ns = self.least_ns.max(least_ns.unwrap_or(0));
    }

    /// Returns the place of a session in `had_ns`, or as an error the place at which to insert it.
    fn place(&self, session: SessionId) -> Result<usize, usize> {
        self.had_ns.binary_search_by_key(&session, |(id, _)| *id)
    }

    /// Returns the GPU time that a session has had, ns.
    fn had_ns(&self, session: SessionId) -> u64 {
        self.place(session).map_or(0, |place| self.had_ns[place].1)
    }

    fn judge(&mut self, now_ns: u64, sessions: &[Seen]) {
        let used_percent = self.used_ns.saturating_mul(100) / self.leased_ns.max(1);
        if self.holder.is_some() {
            if used_percent < PAUSING_PERCENT {
                self.holder = None;
                self.together_until_ns = now_ns.saturating_add(TOGETHER_NS);
            }
        } else if used_percent > BACKLOGGED_PERCENT && now_ns >= self.together_until_ns {
            // The counts so far are of no use, because each session also counted the time of the
            // other sessions.
            self.had_ns.clear();
            self.least_ns = 0;
            self.pass_on(sessions);
        }
    }

    /// Begins a lease with the turn of the next session. The tenant has nothing in flight at this
    /// moment.
    pub fn begin(&mut self, sessions: &[Seen]) {
        if self.holder.is_some() {
            self.pass_on(sessions);
        }
    }

    /// Checks the turn within a lease. If the holder of the turn has been idle for `grace_ns` and
    /// another session wants the GPU, gives the turn to the next session. Returns the time of the
    /// next call, ns; `None` if none is needed.
    pub fn step(&mut self, now_ns: u64, grace_ns: u64, sessions: &[Seen]) -> Option<u64> {
        let holder = self.holder?;
        let wants = |id: SessionId| sessions.iter().any(|seen| seen.session == id && seen.wants);
        let is_awaited = sessions.iter().any(|seen| seen.wants && seen.session != holder);
        if wants(holder) || !is_awaited {
            self.idle_since_ns = None;
            return None;
        }
        let idle_ends_ns = self.idle_since_ns.get_or_insert(now_ns).saturating_add(grace_ns);
        if now_ns < idle_ends_ns {
            return Some(idle_ends_ns);
        }
        self.pass_on(sessions);
        None
    }

    /// Gives the turn to the session that has had the least time among the sessions that want the
    /// GPU. If no session wants the GPU, gives the turn to the session that has had the least time.
    fn pass_on(&mut self, sessions: &[Seen]) {
        let next = sessions.iter().min_by_key(|seen| (!seen.wants, self.had_ns(seen.session)));
        self.holder = next.map(|seen| seen.session);
        self.idle_since_ns = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE_NS: u64 = 5_000_000;
    const LEASED: Grant = Grant::Leased { expires_ns: u64::MAX };

    fn seen(session: SessionId, wants: bool, used_ns: u64) -> Seen {
        Seen { session, wants, used_ns }
    }

    /// Runs leases in which each session that may launch uses `used_ns`. Returns the GPU time that
    /// each session had.
    fn lease(turns: &mut Turns, leases: u64, used_ns: impl Fn(usize) -> u64) -> [u64; 3] {
        let mut had = [0; 3];
        for number in 1..=leases {
            let idle = [1, 2, 3].map(|id| seen(id, true, 0));
            turns.begin(&idle);
            let admitted = [1, 2, 3].map(|id| turns.admits(id));
            let count = admitted.iter().filter(|admitted| **admitted).count();
            let now = [0, 1, 2].map(|place| {
                let used_ns = if admitted[place] { used_ns(count) } else { 0 };
                had[place] += used_ns;
                seen(place as u64 + 1, true, used_ns)
            });
            turns.observe(number * LEASE_NS, LEASE_NS, LEASED, &now);
        }
        had
    }

    #[test]
    fn backlogged_sessions_are_let_in_one_at_a_time_and_have_as_much_each() {
        let mut turns = Turns::default();
        // Each meter also counts the others' time.
        lease(&mut turns, 100, |_| LEASE_NS);
        assert_eq!([1, 2, 3].iter().filter(|id| turns.admits(**id)).count(), 1);
        let had = lease(&mut turns, 300, |_| LEASE_NS);
        assert_eq!(had, [100 * LEASE_NS; 3]);
    }

    #[test]
    fn sessions_with_pauses_are_let_in_together() {
        let mut turns = Turns::default();
        lease(&mut turns, 100, |_| LEASE_NS / 4);
        assert!([1, 2, 3].iter().all(|id| turns.admits(*id)));
        // The sessions are backlogged for a while, and then have pauses: a session with the turn
        // uses a quarter of the lease.
        lease(&mut turns, 20, |_| LEASE_NS);
        assert_eq!([1, 2, 3].iter().filter(|id| turns.admits(**id)).count(), 1);
        lease(&mut turns, 20, |_| LEASE_NS / 4);
        assert!([1, 2, 3].iter().all(|id| turns.admits(*id)));
    }

    #[test]
    fn a_session_that_rested_while_another_used_the_gpu_does_not_keep_it_waiting_for_as_long() {
        let [busy, rests] = [1, 2];
        let mut turns = Turns::default();
        let alone = |turns: &mut Turns, grant| {
            for look in 1..=1_000 {
                // At every third look the busy session has nothing under way.
                let wants = look % 3 != 0;
                let now = [seen(busy, wants, LEASE_NS), seen(rests, false, 0)];
                turns.observe(look * LEASE_NS, LEASE_NS, grant, &now);
            }
        };
        let leases_of = |turns: &mut Turns, session| {
            let both = [seen(busy, true, 0), seen(rests, true, 0)];
            let mut count = 0;
            for _ in 0..100 {
                turns.begin(&both);
                let used = both.map(|of| match (turns.is_taken(), turns.admits(of.session)) {
                    (_, true) => Seen { used_ns: LEASE_NS, ..of },
                    _ => of,
                });
                count += u64::from(turns.admits(session));
                turns.observe(0, LEASE_NS, LEASED, &used);
            }
            count
        };
        // The other session rested before there were turns.
        alone(&mut turns, Grant::Open);
        let at_least = 100 / 2 - MADE_UP_FOR_NS / LEASE_NS;
        assert!(leases_of(&mut turns, busy) >= at_least);
        assert!(turns.is_taken());
        // The other session rests while there are turns. It comes back when the busy session has
        // nothing under way.
        alone(&mut turns, Grant::Open);
        turns.observe(0, 0, LEASED, &[seen(busy, false, 0), seen(rests, true, 0)]);
        assert!(turns.is_taken());
        assert!(leases_of(&mut turns, busy) >= at_least);
    }

    #[test]
    fn an_idle_holder_passes_its_turn_on_and_one_that_leaves_too() {
        let mut turns = Turns::default();
        lease(&mut turns, 20, |_| LEASE_NS);
        let holder = [1, 2, 3].into_iter().find(|id| turns.admits(*id)).unwrap();
        let all = [1, 2, 3].map(|id| seen(id, id != holder, 0));
        assert_eq!(turns.step(1_000, 100, &all), Some(1_100));
        assert!(turns.admits(holder));
        assert_eq!(turns.step(1_100, 100, &all), None);
        assert!(!turns.admits(holder));
        let next = [1, 2, 3].into_iter().find(|id| turns.admits(*id)).unwrap();
        let left: Vec<Seen> = all.into_iter().filter(|seen| seen.session != next).collect();
        turns.observe(2_000, 0, LEASED, &left);
        assert!(left.iter().any(|seen| turns.admits(seen.session)), "someone's turn it is");
    }
}
