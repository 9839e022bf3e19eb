//! Charges the tenants by the readings of the meters, and passes the readings to the scheduler.

use super::overdue::Overdue;
use super::overlap::UNINTERRUPTED_NS;
use super::requests;
use super::stopped::QUIET_NS;
use super::tenant::{Brought, Session, Tenant};
use super::{Actions, Core, Event, Readings, SessionId, SessionReading};
use crate::lease::{Grant, Phase, Seen, short_pause_ns};
use crate::turns;
use core::iter::Peekable;
use core::slice::Iter;
use deepres_abi::meter::Reading;

/// The readings that the caller passed to a turn, in the order of the sessions.
struct Told<'a>(Peekable<Iter<'a, SessionReading>>);

impl<'a> Told<'a> {
    fn new(readings: &'a Readings) -> Self {
        Self(readings.sessions.iter().peekable())
    }

    /// Returns the reading of `session`, which must be the next session; `None` if the caller left
    /// the session out.
    fn of(&mut self, session: SessionId) -> Option<&'a SessionReading> {
        self.0.next_if(|reading| reading.session == session)
    }

    /// Returns whether the next reading is of a session of this tenant.
    fn is_of(&mut self, tenant: &Tenant) -> bool {
        self.0.peek().is_some_and(|reading| tenant.sessions.contains_key(&reading.session))
    }
}

impl Core {
    /// Charges all tenants by the readings of a turn, and passes the figures of each tenant to the
    /// scheduler.
    pub(super) fn look(&mut self, now_ns: u64, readings: &Readings, actions: &mut Actions) {
        let looked_ns = core::mem::replace(&mut self.looked_ns, now_ns);
        let elapsed_ns = now_ns.saturating_sub(looked_ns);
        let wanting = self.tenants.values().filter(|tenant| tenant.account.wants).count();
        let entitled = self.tenants.values().filter(|tenant| tenant.account.wants);
        let entitled_ppm = entitled.map(|tenant| u64::from(tenant.entitled_ppm)).sum::<u64>();
        let rivals_ppm = (wanting > 1).then_some(entitled_ppm);
        if wanting > 1 {
            self.contended_ns = self.contended_ns.saturating_add(elapsed_ns);
        }
        let was_unwanted = wanting == 0 && self.has_sessions();
        let mut all_used_ns = 0u64;
        let (mut is_wanted, mut is_unsettled, mut is_awaited) = (false, false, false);
        let may_ask = now_ns.saturating_sub(self.asked_ns) >= QUIET_NS;
        let mut told = Told::new(readings);
        for (id, tenant) in &mut self.tenants {
            if tenant.rests && !tenant.may_launch() && !told.is_of(tenant) {
                continue;
            }
            tenant.rest_until(looked_ns);
            let grant = self.scheduler.grant(*id);
            let may_launch = !matches!(grant, Grant::Closed | Grant::Paused);
            // The gate is closed, and the drain has ended or the arbiter gave it up. So the
            // scheduler no longer waits for the work in flight.
            let is_given_up = !may_launch && !self.scheduler.awaits_end(*id);
            let is_shared = self.scheduler.shares(*id);
            let others_ns = self.short_uses_ns.saturating_sub(tenant.short_uses_ns);
            if is_shared || tenant.sessions.values().any(|session| session.last.in_flight) {
                tenant.shared.pass(elapsed_ns, is_shared, others_ns);
            } else {
                tenant.shared.skip(others_ns);
            }
            let has_several = tenant.launching() > 1;
            if !has_several {
                tenant.said.forget();
            }
            tenant.seen.clear();
            self.pairs.clear();
            let (mut ends, mut occupied_ns, mut ended_ns) = (0u64, 0u64, None);
            for (number, session) in &mut tenant.sessions {
                let Some(told) = told.of(*number) else {
                    if session.stopped.is_still(may_ask, now_ns) {
                        actions.asks.push(*number);
                    }
                    is_unsettled |= session.stopped.is_stopped();
                    tenant.seen.push(turns::Seen { session: *number, wants: false, used_ns: 0 });
                    continue;
                };
                let is_brought =
                    session.awaited.is_some_and(|awaited| told.is_carried || now_ns >= awaited.until_ns);
                let (reading, asks) = session.stopped.look(
                    &session.last,
                    told.meter,
                    may_launch,
                    may_ask,
                    now_ns,
                    told.is_stopped,
                );
                if asks {
                    actions.asks.push(*number);
                }
                self.scheduler.observe_edges(*id, told.began_ns, told.ended_ns);
                if tenant.seat.is_suspended {
                    session.overdue = Overdue::default();
                } else if session.overdue.look(&reading, is_given_up, tenant.account.longest_ns, now_ns) {
                    actions.events.push(Event::Endless { session: *number });
                }
                let before = if is_brought {
                    if let Some(from) = session.awaited.take().and_then(|awaited| awaited.from) {
                        let used_ns = tenant.account.catch_up(&from, &reading, now_ns);
                        match &mut self.arrears {
                            Some(arrears) => {
                                arrears.claim(*id, used_ns);
                                if reading.in_flight {
                                    session.brought = Brought::InFlight;
                                }
                            }
                            None => tenant.account.settle(used_ns),
                        }
                    }
                    reading
                } else if session.awaited.is_some() {
                    // The core uses the session's present state (work in flight, waiting threads).
                    // The core does not use the counters, because the process has not carried all
                    // of them over.
                    self.pairs.push((reading, reading));
                    is_awaited = true;
                    continue;
                } else {
                    session.last
                };
                if session.brought == Brought::InFlight && !reading.in_flight {
                    session.brought = Brought::Complete;
                }
                (session.sm_ppm, session.mps_server) = (told.sm_ppm, told.mps_server);
                let ends_before = core::mem::replace(&mut session.ends, told.ends);
                ends = ends.saturating_add(told.ends.saturating_sub(ends_before));
                occupied_ns =
                    occupied_ns.saturating_add(reading.occupied_ns.saturating_sub(before.occupied_ns));
                ended_ns = ended_ns.max(told.ended_ns);
                let counted_ns = reading.compute_ns.saturating_sub(before.compute_ns);
                let others_ns = if has_several {
                    let intervals = readings.intervals.get(told.intervals.clone()).unwrap_or_default();
                    let others_ns = session.overlap.look(&tenant.said, intervals, counted_ns);
                    actions.lacks_room |= others_ns.is_none();
                    others_ns.unwrap_or(0)
                } else {
                    session.overlap.forget();
                    0
                };
                let stretched_before_ns = core::mem::replace(&mut session.stretched_ns, told.stretched_ns);
                let stretched_ns = told.stretched_ns.saturating_sub(stretched_before_ns);
                let others_ns =
                    others_ns + tenant.shared.take(counted_ns.saturating_sub(others_ns), stretched_ns);
                let charged = Reading { compute_ns: before.compute_ns.saturating_add(others_ns), ..before };
                self.pairs.push((charged, reading));
                // The module `turns` gets the time with double counting, because double counting
                // shows that the sessions are backlogged.
                let used_ns = counted_ns.min(elapsed_ns);
                tenant.seen.push(turns::Seen { session: *number, wants: reading.wants(), used_ns });
                session.last = reading;
                is_unsettled |= session.stopped.is_stopped();
            }
            // Sessions on parts of the SMs run at once, and each counts only its own time.
            let turn = if self.scheduler.is_in_space() { Grant::Open } else { grant };
            tenant.turns.observe(now_ns, elapsed_ns, turn, &tenant.seen);
            tenant.account.pass(elapsed_ns, tenant.entitled_ppm, rivals_ppm);
            let was_idle = tenant.is_present() && !tenant.account.wants;
            let mut seen = if tenant.is_present() {
                let is_left = tenant.sessions.values().any(|session| session.stopped.leaves_in_flight());
                tenant.account.look(now_ns, is_left, self.pairs.drain(..))
            } else {
                tenant.account.wants = false;
                Seen::default()
            };
            // A meter can show the last work of a burst late, so the core keeps the shared time
            // until the next burst begins.
            if was_idle && tenant.account.wants {
                tenant.shared.forget();
            }
            if rivals_ppm.is_some() {
                tenant.account.had(seen.used_ns);
            }
            if seen.used_ns <= UNINTERRUPTED_NS {
                tenant.short_uses_ns = tenant.short_uses_ns.saturating_add(seen.used_ns);
                self.short_uses_ns = self.short_uses_ns.saturating_add(seen.used_ns);
            }
            if let Some(arrears) = &mut self.arrears {
                arrears.charged(seen.used_ns);
            }
            if grant == Grant::Paused {
                seen.waiting = false;
                tenant.account.wants = seen.in_flight;
            }
            if let Some((requests, slo_ns)) = tenant.requests.as_mut().zip(tenant.seat.slo_ns) {
                if grant == Grant::Paused || tenant.sessions.is_empty() {
                    requests.interrupt();
                } else {
                    let rival = match self.scheduler.phase() {
                        Phase::Held(rival) | Phase::Draining(rival) if !may_launch && rival != *id => {
                            Some(rival)
                        }
                        _ => None,
                    };
                    let look = requests::Look {
                        from_ns: looked_ns,
                        now_ns,
                        wants: tenant.account.wants,
                        is_open: grant == Grant::Open,
                        ends,
                        occupied_ns,
                        ended_ns,
                        used_ns: seen.used_ns,
                        rival,
                        awaits_set: !may_launch && self.scheduler.is_in_space(),
                        short_ns: short_pause_ns(&self.tuning),
                        slo_ns,
                    };
                    requests.look(&look, &mut tenant.account.totals.served);
                }
            }
            seen.sm_ppm = tenant.part_ppm(self.mps_server);
            seen.ended = ends > 0;
            is_wanted |= tenant.account.wants;
            let paused_ns = elapsed_ns.saturating_sub(seen.used_ns);
            tenant.demand.observe(seen.used_ns, if was_idle { paused_ns } else { 0 });
            all_used_ns = all_used_ns.saturating_add(seen.used_ns);
            self.scheduler.observe(*id, now_ns, seen);
            let is_quiet =
                seen == Seen { longest_ns: seen.longest_ns, sm_ppm: seen.sm_ppm, ..Seen::default() };
            let is_pending = tenant.requests.as_ref().is_some_and(|requests| requests.is_pending());
            tenant.rests =
                is_quiet && !is_shared && !is_pending && tenant.sessions.values().all(Session::is_at_rest);
        }
        debug_assert!(told.0.next().is_none(), "readings are in the order of the sessions");
        if !actions.asks.is_empty() {
            self.asked_ns = now_ns;
        }
        actions.is_stirred |= is_wanted || all_used_ns > 0;
        (self.is_wanted, self.is_unsettled) = (is_wanted, is_unsettled || is_awaited);
        if was_unwanted {
            // If work began and ended between two readings, only the GPU time shows that work.
            self.idle_ns = self.idle_ns.saturating_add(elapsed_ns.saturating_sub(all_used_ns));
        }
        if self.baselines.is_empty() && !is_awaited {
            self.settle_arrears(now_ns);
        }
        let mut sessions = self.tenants.values().flat_map(|tenant| tenant.sessions.values());
        if self.arrears.is_some() && sessions.all(|session| session.brought != Brought::InFlight) {
            self.take_excess(now_ns);
        }
    }

    /// Subtracts the excess of the charges from the next charges of the sessions that came back
    /// with work in flight, in equal parts. [`super::arrears`] explains the excess.
    pub(super) fn take_excess(&mut self, now_ns: u64) {
        let count: u64 = self.tenants.values().map(Tenant::brought).sum();
        let Some(arrears) = self.arrears.as_mut().filter(|_| count != 0) else { return };
        let part_ns = arrears.take_excess(now_ns) / count;
        for tenant in self.tenants.values_mut() {
            tenant.account.take_off(part_ns.saturating_mul(tenant.brought()));
            tenant.sessions.values_mut().for_each(|session| session.brought = Brought::Nothing);
        }
    }

    /// Charges the GPU time that processes used while no daemon ran, as far as the processes have
    /// claimed it.
    pub(super) fn settle_arrears(&mut self, now_ns: u64) {
        let Some(arrears) = &mut self.arrears else { return };
        arrears.settle(now_ns, |tenant, used_ns| {
            if let Some(tenant) = self.tenants.get_mut(&tenant) {
                tenant.account.settle(used_ns);
            }
        });
    }

    /// Corrects the last readings for a time in which the arbiter did not run. In that time each
    /// session counted the turns of other sessions as its own. So all sessions together can claim
    /// more than the time that passed. This function subtracts the excess from all claims in equal
    /// parts, as [`super::arrears`] does for the time between two daemons.
    pub(super) fn level(&mut self, now_ns: u64, readings: &Readings) {
        let in_flight_ns = self.tenants.values().map(|tenant| tenant.account.uncharged_ns()).max();
        self.silence.begin_anew(self.looked_ns, in_flight_ns.unwrap_or(0));
        let mut told = Told::new(readings);
        for session in self.tenants.values_mut().flat_map(|tenant| tenant.sessions.values_mut()) {
            let Some(told) = told.of(session.seat.id).filter(|_| session.awaited.is_none()) else {
                continue;
            };
            let used_ns = told.meter.compute_ns.saturating_sub(session.last.compute_ns);
            self.silence.claim(session.seat.id, used_ns);
            // The last reading moves forward by the whole claim, and back by the settled part
            // below.
            session.last.compute_ns = session.last.compute_ns.saturating_add(used_ns);
        }
        let tenants = &mut self.tenants;
        self.silence.settle(now_ns, |number, settled_ns| {
            let session = tenants.values_mut().find_map(|tenant| tenant.sessions.get_mut(&number));
            if let Some(session) = session {
                session.last.compute_ns = session.last.compute_ns.saturating_sub(settled_ns);
            }
        });
    }
}
