//! Carries out orders.

use super::account::Account;
use super::arrears::Arrears;
use super::saved::{Awaited, Baseline, Restored, SavedAccount, SavedMeter, Snapshot};
use super::tenant::{Session, Tenant};
use super::{Actions, Core, Order, SessionId, SessionSeat, TenantSeat};
use crate::TenantId;
use crate::lease::Grant;
use core::time::Duration;
use deepres_abi::grant::LeaseTerms;

/// The time within which a process with earlier sessions must carry its counters into its new meter
/// page. An honest process sets the counters as soon as it gets the page.
const CARRY_LIMIT_NS: u64 = Duration::from_secs(1).as_nanos() as u64;

impl Core {
    /// Carries out an order. `now_ns` is the time of the last reading of the meters.
    pub(super) fn obey(&mut self, order: Order, now_ns: u64, actions: &mut Actions) {
        match order {
            Order::Enter { tenant, session } => self.enter(tenant, session, now_ns, actions),
            Order::Leave { tenant, session, may_return } => self.leave(tenant, session, may_return, actions),
            Order::SetTenant(seat) => {
                self.scheduler.set_paused(seat.id, seat.is_paused);
                if let Some(tenant) = self.tenants.get_mut(&seat.id) {
                    tenant.describe(seat, now_ns);
                }
                self.owes_anew = true;
            }
            Order::Forget(tenant) => {
                self.tenants.remove(&tenant);
                self.baselines.retain(|(of, _), _| *of != tenant);
                self.scheduler.forget(tenant);
            }
            Order::Bury(tenant, process) => {
                self.baselines.remove(&(tenant, process));
            }
            Order::Restore(restored) => self.restore(*restored, now_ns),
            Order::StopWaiting => {
                self.restored_ns = None;
                self.settle_arrears(now_ns);
                self.take_excess(now_ns);
                self.arrears = None;
            }
        }
    }

    /// Sets the counters, accounts and baselines to the state that the previous daemon saved.
    fn restore(&mut self, restored: Restored, now_ns: u64) {
        self.looked_ns = now_ns;
        self.restored_ns = Some(restored.saved_ns);
        self.contended_ns = restored.counters.contended_ns;
        self.idle_ns = restored.counters.idle_ns;
        self.handoffs = restored.counters.handoffs;
        self.latency.total_ns = restored.counters.handoff_total_ns;
        self.turns = restored.counters.turns;
        self.turns_took.total_ns = restored.counters.turn_total_ns;
        let in_flight_ns = restored.accounts.iter().map(|(_, saved)| saved.uncharged_ns).max();
        // If a process had not come back to the previous daemon, that daemon charged it only up to
        // an earlier moment.
        let charged_ns = restored.baselines.iter().map(|(_, _, baseline)| baseline.at_ns);
        let began_ns = charged_ns.fold(restored.saved_ns, u64::min);
        self.arrears = Some(Arrears::since(began_ns, in_flight_ns.unwrap_or(0)));
        for (seat, saved) in restored.accounts {
            let class = seat.request.class;
            self.scheduler.restore(seat.id, class, saved.entitled_ppm, saved.lag_ns, now_ns);
            self.scheduler.set_paused(seat.id, seat.is_paused);
            let mut tenant = Tenant::new(seat, Account::restore(&saved, now_ns));
            tenant.entitled_ppm = saved.entitled_ppm;
            tenant.describe(seat, now_ns);
            self.tenants.insert(seat.id, tenant);
        }
        self.baselines = restored
            .baselines
            .into_iter()
            .map(|(tenant, process, baseline)| ((tenant, process), baseline))
            .collect();
    }

    fn enter(&mut self, seat: TenantSeat, session: SessionSeat, now_ns: u64, actions: &mut Actions) {
        let from = self.baseline(seat.id, &session);
        let until_ns = now_ns.saturating_add(CARRY_LIMIT_NS);
        let awaited = session.continues.then_some(Awaited { from, until_ns });
        // The previous daemon died before it saved anything of this tenant.
        let unwritten = |from: Baseline| SavedAccount { since_ns: from.at_ns, ..SavedAccount::default() };
        let account =
            || from.map_or_else(|| Account::new(now_ns), |from| Account::restore(&unwritten(from), now_ns));
        let id = seat.id;
        self.scheduler.enter(id, seat.request.class, now_ns);
        if let Some(user) = session.user {
            self.scheduler.set_user(id, user, now_ns);
        }
        self.scheduler.set_paused(id, seat.is_paused);
        self.tenants.entry(id).or_insert_with(|| Tenant::new(seat, account())).describe(seat, now_ns);
        let Some(tenant) = self.tenants.get(&id) else { return };
        let grant = self.scheduler.grant(id);
        let terms = self.terms(id, tenant, grant);
        let gate = tenant.grant_of(session.id, grant, !self.scheduler.is_gang(id));
        let mut session = Session::new(session, from, awaited);
        session.set_gate(gate, terms, actions);
        actions.entitled.push((session.seat.id, tenant.entitled_ppm));
        if let Some(tenant) = self.tenants.get_mut(&id) {
            tenant.sessions.insert(session.seat.id, session);
        }
        self.owes_anew = true;
    }

    /// Returns the point from which the core charges a session that continues the counters of
    /// earlier sessions. Returns `None` if the session has no earlier counters, or the point is
    /// unknown.
    fn baseline(&mut self, tenant: TenantId, session: &SessionSeat) -> Option<Baseline> {
        let known = session.process.and_then(|process| self.baselines.remove(&(tenant, process)));
        if !session.continues {
            return None;
        }
        // If there is no baseline, the previous daemon died before it saved anything of this
        // process. So the process used everything that it counts after the daemon last saved.
        let unknown = || Some(Baseline { meter: SavedMeter::default(), at_ns: self.restored_ns? });
        known.or_else(unknown)
    }

    fn leave(&mut self, id: TenantId, session: SessionId, may_return: bool, actions: &mut Actions) {
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        let Some(mut session) = tenant.sessions.remove(&session) else { return };
        if tenant.sessions.is_empty() {
            tenant.account.wants = false;
            self.scheduler.leave(id, self.looked_ns);
        }
        if let Some(process) = session.seat.process.filter(|_| may_return)
            && let Some(baseline) = session.charged_up_to(self.looked_ns)
        {
            self.baselines.insert((id, process), baseline);
        }
        // A process that only closed its connection goes on without the daemon.
        session.set_gate(Grant::Open, LeaseTerms::default(), actions);
        self.owes_anew = true;
    }

    /// Returns the state to save, as of the last turn. Settles the arrears first.
    pub fn snapshot(&mut self) -> Snapshot {
        // A saved baseline says that the core has charged a process up to there. So charge the
        // processes that are back first.
        self.settle_arrears(self.looked_ns);
        let account = |(id, tenant): (&TenantId, &Tenant)| {
            (*id, tenant.account.save(tenant.entitled_ppm, self.scheduler.lag_ns(*id)))
        };
        let of_session = |id: TenantId, session: &Session| {
            let baseline = session.charged_up_to(self.looked_ns)?;
            let at_ns = session.awaited.is_some().then_some(baseline.at_ns);
            Some((id, session.seat.process?, baseline.meter, at_ns))
        };
        let here = self
            .tenants
            .iter()
            .flat_map(|(id, tenant)| tenant.sessions.values().filter_map(|session| of_session(*id, session)));
        let away = self.baselines.iter();
        let away = away.map(|((tenant, process), from)| (*tenant, *process, from.meter, Some(from.at_ns)));
        Snapshot {
            now_ns: self.looked_ns,
            counters: self.counters(),
            accounts: self.tenants.iter().map(account).collect(),
            meters: here.chain(away).collect(),
        }
    }
}
