//! Charges a tenant for a GPU that idles for it while another tenant wants the GPU: a gang whose
//! ranks wait for each other, or a holder in a short pause.

use super::state::{Budget, Hold, Rank};
use super::{Scheduler, ns, short_pause_ns};
use crate::TenantId;
use crate::gang::Order;
use crate::tuning::Tuning;
use core::time::Duration;

/// All tenants bear the idle time in short pauses of holders up to one part in this many of the time.
/// Beyond that, the holder alone bears it. With a smaller part, a program with a small share that
/// pauses shortly has less than it is owed; with a greater part, the others have (`eval --sweep 200`).
const PAUSES_PART: u64 = 16;
/// The most of this time that may be left, ns.
const MOST_PAUSES_NS: u64 = ns(Duration::from_millis(10));

/// The idle time in short pauses of holders that all tenants may still bear.
#[derive(Debug)]
pub struct Pauses(Budget);

impl Default for Pauses {
    fn default() -> Self {
        Self(Budget::new(PAUSES_PART, MOST_PAUSES_NS))
    }
}

/// The tenant for which the GPU idles, and up to where the scheduler has charged the idle time.
#[derive(Debug, Clone, Copy)]
pub struct Kept {
    tenant: TenantId,
    since_ns: u64,
    /// The moment up to which the scheduler charged the idle time, ns.
    charged_ns: u64,
    /// GPU time that the hold's meter showed at that moment, ns.
    used_ns: u64,
}

impl Scheduler {
    /// Charges a tenant for the time in which the GPU idled for it although another tenant wanted
    /// it. The scheduler charges the time of a hand-off to no tenant, here as elsewhere. A short pause
    /// saves hand-offs, so it counts from its beginning.
    ///
    /// In the fluid limit, others would have the GPU in the pause, and a tenant that pauses is owed
    /// nothing. So the tenant owes them the pause. It gives that back while it waits, and is owed its
    /// part of the time meanwhile. Its debt is therefore its part of the pause. What exceeds the
    /// budget of such pauses is charged to the tenant as if it had used the GPU.
    pub(super) fn charge_kept(&mut self, now_ns: u64, tuning: &Tuning) {
        let Some(kept) = self.kept else { return };
        let pauses = self.order == Order::Apart && !self.is_gang(kept.tenant);
        let (free_ns, most_ns) =
            if pauses { (0, short_pause_ns(tuning)) } else { (tuning.grace_ns, u64::MAX) };
        let from_ns = kept.charged_ns.max(kept.since_ns.saturating_add(free_ns));
        let until_ns = now_ns.min(from_ns.saturating_add(most_ns));
        let hold = self.hold.as_mut().filter(|hold| hold.tenant == kept.tenant);
        let used_ns = hold.as_ref().map_or(0, |hold| hold.used_ns.saturating_sub(kept.used_ns));
        let idle_ns = until_ns.saturating_sub(from_ns).saturating_sub(used_ns);
        let mut charged_ns = idle_ns;
        if let Some(tenant) = self.tenants.get_mut(kept.tenant) {
            let clock = &mut self.clocks[tenant.rank as usize];
            if pauses && !tenant.wanted {
                let borne_ns = self.pauses.0.spend(idle_ns, now_ns);
                let owes_ns = clock
                    .part_ns(borne_ns, tenant.weight_ppm)
                    .saturating_add(clock.run_beside(idle_ns - borne_ns, tenant.weight_ppm));
                tenant.set_lag(tenant.lag_ns.saturating_sub(owes_ns), clock.now());
                charged_ns = owes_ns.unsigned_abs();
            } else {
                tenant.charge(idle_ns);
            }
        }
        // The meter need not show a use of the time that is charged.
        if let Some(hold) = hold {
            hold.used_ns = hold.used_ns.saturating_add(charged_ns);
        }
    }

    /// Notes for which tenant the GPU idles from now on.
    pub(super) fn note_kept(&mut self, now_ns: u64) {
        let used_ns = self.hold.map_or(0, |hold| hold.used_ns);
        let since_ns =
            |tenant| self.kept.filter(|kept| kept.tenant == tenant).map_or(now_ns, |kept| kept.since_ns);
        self.kept = self.kept_for().map(|tenant| Kept {
            tenant,
            since_ns: since_ns(tenant),
            charged_ns: now_ns,
            used_ns,
        });
    }

    /// Returns the tenant for which the GPU idles while another tenant wants it: the other GPUs of
    /// a gang drain, its rank on this GPU has nothing to do, or a holder pauses shortly.
    fn kept_for(&self) -> Option<TenantId> {
        let is_idle = |hold: Hold| {
            let seen = self.tenants.get(hold.tenant).map(|gang| gang.seen)?;
            // A thread with a lease that waits is on its way from the gate.
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
