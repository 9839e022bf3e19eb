//! Charges a tenant if the GPU idles for this tenant while another tenant wants the GPU. The tenant
//! is a gang whose ranks wait for each other, or a holder in a short pause.

use super::state::{Budget, Hold, Rank, Tenant};
use super::{Scheduler, longest_patience_ns, ns, short_pause_ns};
use crate::TenantId;
use crate::gang::Order;
use crate::tuning::Tuning;
use core::time::Duration;

/// All tenants bear the idle time in short pauses of holders, up to the passed time divided by this
/// number. The scheduler charges further idle time to the holder alone. With a larger divisor, a
/// program with a small share and short pauses gets less than it is owed. With a smaller divisor,
/// the other tenants get less than they are owed (`eval --sweep 200`).
const PAUSES_PART: u64 = 16;
/// The most idle time that all tenants may bear at once, ns.
const MOST_PAUSES_NS: u64 = ns(Duration::from_millis(10));

/// The idle time in short pauses of holders that all tenants may bear, at the beginning.
pub(super) const PAUSES: Budget = Budget::new(PAUSES_PART, MOST_PAUSES_NS);

/// The tenant for which the GPU idles while another tenant wants it.
#[derive(Debug, Clone, Copy)]
pub struct Idling {
    tenant: TenantId,
    /// The beginning of the idle time, ns.
    since_ns: u64,
    /// The moment up to which the scheduler charged the idle time, ns.
    charged_ns: u64,
    /// GPU time that the holder's meter showed for the hold at `charged_ns`, ns.
    used_ns: u64,
}

impl Idling {
    /// Returns the tenant for which the GPU idles.
    pub fn tenant(&self) -> TenantId {
        self.tenant
    }
}

impl Scheduler {
    /// Charges the tenant of `idling` for the time in which the GPU idled for the tenant although
    /// another tenant wanted the GPU. For a gang, the first idle time of a hand-off is free. A
    /// short pause of a holder counts from its beginning.
    ///
    /// In the fluid limit, the other tenants would have the GPU in the pause of a holder. So the
    /// holder owes its part of the pause. The scheduler charges the time that exceeds the budget of
    /// such pauses ([`PAUSES`]) to the holder, as if it had used the GPU.
    pub(super) fn charge_idling(&mut self, now_ns: u64, tuning: &Tuning) {
        let Some(idling) = self.idling else { return };
        let pauses = self.order == Order::Apart && !self.is_gang(idling.tenant);
        let patience_ns = |tenant: &Tenant| {
            let falls_behind = tenant.falls_behind(self.clocks[tenant.rank as usize].now(), tuning);
            if falls_behind { longest_patience_ns(tuning) } else { short_pause_ns(tuning) }
        };
        let (free_ns, most_ns) = if pauses {
            (0, self.tenants.get(idling.tenant).map_or(0, patience_ns))
        } else {
            (tuning.grace_ns, u64::MAX)
        };
        let from_ns = idling.charged_ns.max(idling.since_ns.saturating_add(free_ns));
        let until_ns = now_ns.min(from_ns.saturating_add(most_ns));
        let hold = self.hold.as_mut().filter(|hold| hold.tenant == idling.tenant);
        let used_ns = hold.as_ref().map_or(0, |hold| hold.used_ns.saturating_sub(idling.used_ns));
        let idle_ns = until_ns.saturating_sub(from_ns).saturating_sub(used_ns);
        let mut charged_ns = idle_ns;
        if let Some(tenant) = self.tenants.get_mut(idling.tenant) {
            let clock = &mut self.clocks[tenant.rank as usize];
            if pauses && !tenant.wanted {
                let borne_ns = self.borne.pauses.spend(idle_ns, now_ns);
                let owes_ns = clock
                    .part_ns(borne_ns, tenant.weight_ppm)
                    .saturating_add(clock.run_beside(idle_ns - borne_ns, tenant.weight_ppm));
                tenant.set_lag(tenant.lag_ns.saturating_sub(owes_ns), clock.now());
                charged_ns = owes_ns.unsigned_abs();
            } else {
                tenant.charge(idle_ns);
            }
        }
        // The charged time counts as used, so the meter need not show a use of it.
        if let Some(hold) = hold {
            hold.used_ns = hold.used_ns.saturating_add(charged_ns);
        }
    }

    /// Records the tenant for which the GPU idles from `now_ns` on, if any.
    pub(super) fn note_idling(&mut self, now_ns: u64) {
        let used_ns = self.hold.map_or(0, |hold| hold.used_ns);
        let since_ns = |tenant| {
            self.idling.filter(|idling| idling.tenant == tenant).map_or(now_ns, |idling| idling.since_ns)
        };
        self.idling = self.idling_tenant().map(|tenant| Idling {
            tenant,
            since_ns: since_ns(tenant),
            charged_ns: now_ns,
            used_ns,
        });
    }

    /// Returns the tenant for which the GPU idles while another tenant wants the GPU. There are
    /// three cases. Other GPUs of a gang still drain. The gang's rank on this GPU has no work. A
    /// holder is in a short pause.
    fn idling_tenant(&self) -> Option<TenantId> {
        let is_idle = |hold: Hold| {
            let seen = self.tenants.get(hold.tenant).map(|gang| gang.seen)?;
            // If a thread of a tenant with a lease still shows as waiting, the thread is on its way
            // from the gate. So the GPU does not idle for a pause.
            (!seen.in_flight && (hold.drain_give_up_ns.is_some() || !seen.waiting)).then_some(hold.tenant)
        };
        match (self.order, self.hold) {
            (Order::Apart, Some(hold)) if hold.drain_give_up_ns.is_none() && self.beside.is_none() => {
                is_idle(hold).filter(|holder| !self.is_guest(*holder))
            }
            (Order::Until { tenant, .. }, None) => self.next_apart(Rank::Owner, None).map(|_| tenant),
            (Order::Drain { tenant, .. }, None) => Some(tenant),
            (Order::Held { tenant, .. } | Order::Drain { tenant, .. }, Some(hold))
                if hold.tenant == tenant =>
            {
                is_idle(hold)
            }
            _ => None,
        }
        .filter(|tenant| self.next(Rank::Owner, Some(*tenant)).is_some())
    }
}
