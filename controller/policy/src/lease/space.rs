//! Sets of owners that use the GPU at once, each on its part of the SMs.
//!
//! If the parts of all active owners add up to the whole GPU at most, all of them are in the set.
//! These owners take nothing from each other, so the scheduler charges nothing. Otherwise the
//! scheduler chooses the set by the one rule: it goes through the owners that want the GPU in their
//! order, and takes each owner whose part still fits.
//!
//! The scheduler charges an owner for its *place*: the time in which the owner may use its part of
//! the SMs, times the part. So the scheduler also charges an owner that pauses in its place, and an
//! owner whose meter shows less than its use.
//!
//! The scheduler chooses anew after a quantum, or when the request of an owner that waits is due
//! before the requests of the set. If an owner of the set pauses, the others keep their places, and
//! an owner that waits may take the free one. An owner that loses its place keeps its part until its
//! work in flight has drained.

use super::clock::Clock;
use super::state::{Rank, Stuck, Tenant};
use super::together::LOOK_NS;
use super::{DRAIN_POLL_NS, Grant, Scheduler, short_pause_ns};
use crate::TenantId;
use crate::tuning::Tuning;
use deepres_abi::PPM;

impl Tenant {
    /// Returns whether an owner wants the GPU. A short pause of an owner with a place does not count.
    fn asks(&self, now_ns: u64, short_ns: u64) -> bool {
        let pauses_shortly =
            || self.pauses_shortly() && now_ns.saturating_sub(self.stopped_wanting_ns) <= short_ns;
        let is_asking = self.seen.wants() || (self.may_launch() && pauses_shortly());
        self.rank == Rank::Owner && self.is_here() && is_asking
    }

    /// Returns whether the work in flight of an owner that lost its place still has its part.
    fn drains(&self) -> bool {
        self.seen.in_flight && !self.may_launch()
    }

    /// Returns whether the tenant has its part of the SMs: by an open gate, or by work in flight until
    /// the limit of the drain.
    fn occupies(&self, now_ns: u64) -> bool {
        self.may_launch() || (self.drains() && now_ns < self.drains_until_ns)
    }

    /// Charges the place that the tenant had for `passed_ns`.
    fn charge_place(&mut self, passed_ns: u64, clock: &mut Clock) {
        let area_ns = u128::from(passed_ns) * u128::from(self.part_ppm()) / u128::from(PPM);
        let area_ns = u64::try_from(area_ns).unwrap_or(u64::MAX);
        if self.wanted {
            self.vtime += self.weighted(area_ns);
        } else {
            self.charge_beside(area_ns, clock);
        }
    }
}

impl Scheduler {
    /// Charges the places that owners had in the last `elapsed_ns`, unless all active owners fit.
    pub(super) fn charge_places(&mut self, elapsed_ns: u64) {
        if !self.company.has_places() {
            return;
        }
        let clock = &mut self.clocks[Rank::Owner as usize];
        for tenant in self.tenants.values_quietly().filter(|tenant| tenant.is_on_gpu()) {
            tenant.charge_place(elapsed_ns, clock);
        }
    }

    /// Sets the gates of owners that fit in space, and returns the time of the next look, ns.
    /// `fits_whole`: the parts of all active owners fit.
    pub(super) fn space_step(&mut self, fits_whole: bool, now_ns: u64, tuning: &Tuning) -> u64 {
        self.company.set_places(!fits_whole);
        for tenant in self.tenants.values_quietly() {
            tenant.set_free(true, now_ns);
            tenant.is_chosen &= tenant.rank == Rank::Owner && tenant.is_here();
            if tenant.drains() && now_ns >= tenant.drains_until_ns {
                // If no use explains this time, all owners take turns one by one.
                tenant.stuck.get_or_insert(Stuck { since_ns: now_ns, used_ns: 0 });
            }
        }
        if fits_whole {
            for tenant in self.tenants.values_quietly() {
                tenant.is_chosen = tenant.is_active(now_ns);
            }
        } else if let Some(keeps) = self.chooses_anew(now_ns, tuning) {
            self.choose(keeps, now_ns, tuning);
        }
        let mut after = None;
        let loses = |tenant: &Tenant| tenant.may_launch() && !tenant.is_chosen;
        while let Some(id) = self.tenants.next_after(after, loses) {
            let limit_ns = self.drain_limit_ns(id, false, now_ns);
            if let Some(tenant) = self.tenants.get_quietly(id) {
                tenant.drains_until_ns = now_ns.saturating_add(limit_ns);
            }
            self.change(id, Grant::Closed, false);
            after = Some(id);
        }
        if after.is_some() {
            // The last readings do not show launches that passed a gate just before it closed.
            return now_ns.saturating_add(1);
        }
        let mut occupied_ppm = self.parts_ppm(|tenant| tenant.occupies(now_ns));
        while let Some(id) = self.tenants.next_after(after, |tenant| tenant.is_chosen && !tenant.may_launch())
        {
            let Some(tenant) = self.tenants.get(id) else { break };
            let more_ppm = if tenant.occupies(now_ns) { 0 } else { u64::from(tenant.part_ppm()) };
            if occupied_ppm + more_ppm <= u64::from(PPM) {
                occupied_ppm += more_ppm;
                self.change(id, Grant::Open, false);
            }
            after = Some(id);
        }
        let waits = self.tenants.values().any(|tenant| tenant.seen.waiting && !tenant.may_launch());
        now_ns.saturating_add(if waits { DRAIN_POLL_NS } else { LOOK_NS })
    }

    /// Returns the sum of the parts of the SMs of some tenants, parts per million.
    fn parts_ppm(&self, is_counted: impl Fn(&Tenant) -> bool) -> u64 {
        self.tenants
            .values()
            .filter(|tenant| is_counted(tenant))
            .map(|tenant| u64::from(tenant.part_ppm()))
            .sum()
    }

    /// Returns whether to choose the set of owners anew, and if so, whether owners of the set that
    /// still want the GPU keep their places.
    fn chooses_anew(&mut self, now_ns: u64, tuning: &Tuning) -> Option<bool> {
        let short_ns = short_pause_ns(tuning);
        let mean = self.clocks[Rank::Owner as usize].eligible_after(0);
        let asking = || self.tenants.values().filter(|tenant| tenant.asks(now_ns, short_ns));
        let waiting = || asking().filter(|tenant| !tenant.is_chosen);
        let first = waiting().min_by_key(|tenant| tenant.order(mean))?;
        let last_due = asking().filter(|tenant| tenant.is_chosen).map(|tenant| tenant.due).max();
        // A change of the set costs as much as a short pause.
        let is_first = last_due.is_some_and(|due| first.due + first.weighted(short_ns) < due);
        let preempts = first.is_owed(mean) && is_first && now_ns >= self.preempts_ns(tuning);
        let kept_ppm = self.parts_ppm(|tenant| tenant.is_chosen && tenant.asks(now_ns, short_ns));
        let fits = |tenant: &Tenant| kept_ppm + u64::from(tenant.part_ppm()) <= u64::from(PPM);
        let has_room = waiting().any(fits);
        if now_ns >= self.company.chosen_ns.saturating_add(tuning.quantum_ns) {
            return Some(false);
        }
        if preempts {
            self.preempted_ns = Some(now_ns);
            return Some(false);
        }
        has_room.then_some(true)
    }

    /// Chooses the set of owners. If `keeps`, owners of the present set that want the GPU stay.
    fn choose(&mut self, keeps: bool, now_ns: u64, tuning: &Tuning) {
        let short_ns = short_pause_ns(tuning);
        let mean = self.clocks[Rank::Owner as usize].eligible_after(0);
        for tenant in self.tenants.values_quietly() {
            tenant.is_chosen &= keeps && tenant.asks(now_ns, short_ns);
        }
        if !keeps {
            self.company.chosen_ns = now_ns;
        }
        let mut room_ppm = u64::from(PPM).saturating_sub(self.parts_ppm(|tenant| tenant.is_chosen));
        loop {
            let fits = |(_, tenant): &(&TenantId, &Tenant)| {
                let part_ppm = u64::from(tenant.part_ppm());
                !tenant.is_chosen && part_ppm <= room_ppm && tenant.asks(now_ns, short_ns)
            };
            let next = self.tenants.iter().filter(fits).min_by_key(|(_, tenant)| tenant.order(mean));
            let Some(id) = next.map(|(id, _)| *id) else { return };
            if let Some(tenant) = self.tenants.get_quietly(id) {
                tenant.is_chosen = true;
                room_ppm -= u64::from(tenant.part_ppm());
            }
        }
    }
}
