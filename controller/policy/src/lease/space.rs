//! Sets of owners that use the GPU at once, each on its part of the SMs.
//!
//! If the parts of all active owners add up to the whole GPU at most, all of them are in the set.
//! They take nothing from each other, so their gates are open, and the scheduler charges nothing.
//! Otherwise the scheduler chooses the set by the one rule, with the exceptions of [`super::due`]
//! for owners with SLOs. It goes through the owners that want the GPU in their order, and takes
//! each owner whose part still fits. Each owner of the set has a lease. So its session rings the
//! bell at the end of a burst, and the place is free at once.
//!
//! The scheduler charges an owner for its *place*. The charge is the time in which the owner wants
//! the GPU and may use its part of the SMs, times the part. So an owner whose meter shows less than
//! it uses pays for its place too. A place is *spare* if no owner that waits would fit on the SMs
//! without this owner and those after it in the order. An owner in a spare place takes nothing from
//! others, so it pays only until it owes its place for a quantum. This debt keeps it behind owners
//! that had less.
//!
//! The first place of a set is never spare while an owner waits. When the scheduler chooses a set,
//! the first owner comes before each owner that waits. So its virtual time is at most the virtual
//! time at which the request of the waiting owner is due. Two bounds follow for an owner that waits
//! and always wants the GPU, whatever the parts are and however they change:
//!
//! - The owner is behind the first owner of the set by at most its own request, and the place of
//!   the first owner for one *term*, the time until the next choice.
//! - While the owner waits, each other owner pays as the first of a set only up to that virtual
//!   time, and for one term beyond. The first owner pays in all of this time, except while its
//!   place drains. So the wait ends.
//!
//! An owner that [`super::due`] puts first or last changes both bounds: by the most that an owner
//! may be ahead if it comes first, or behind if it comes last.
//!
//! The part of an owner can change at any time, because an owner without a fixed part has the part
//! of its widest kernel. If the parts of a set no longer fit, the scheduler takes owners out of the
//! set until they fit. Of the set, the scheduler keeps the owners that it chose first.
//!
//! The scheduler chooses anew after a quantum, or when the request of an owner that waits is due
//! before the requests of the set. If an owner of the set pauses, the others keep their places, and
//! an owner that waits may take the free one. An owner that loses its place keeps its part until
//! its work in flight has drained.

use super::clock::{Clock, signed};
use super::state::{Rank, Stuck, Tenant};
use super::together::LOOK_NS;
use super::{Grant, POLL_NS, Scheduler, short_pause_ns};
use crate::TenantId;
use crate::tuning::Tuning;
use core::mem;
use deepres_abi::PPM;

impl Tenant {
    /// Returns whether an owner wants the GPU. A short pause of an owner with a place does not
    /// count.
    pub fn asks(&self, now_ns: u64, short_ns: u64) -> bool {
        let pauses_shortly =
            || self.pauses_shortly() && now_ns.saturating_sub(self.stopped_wanting_ns) <= short_ns;
        let is_asking = self.seen.wants() || (self.may_launch() && pauses_shortly());
        self.rank == Rank::Owner && self.is_here() && is_asking
    }

    /// Returns whether the work in flight of an owner that lost its place still has its part.
    fn drains(&self) -> bool {
        self.seen.in_flight && !self.may_launch()
    }

    /// Returns whether the tenant has its part of the SMs: by its gate, or by work in flight until
    /// the limit of the drain.
    fn occupies(&self, now_ns: u64) -> bool {
        self.may_launch() || (self.drains() && now_ns < self.drains_until_ns)
    }

    /// Charges the place that the tenant had for `passed_ns`. In a spare place, the tenant pays
    /// until it owes its place for `most_ns`.
    fn charge_place(&mut self, passed_ns: u64, most_ns: Option<u64>, clock: &mut Clock) {
        let mut area_ns = self.area_ns(passed_ns);
        if let Some(most_ns) = most_ns {
            let left_ns = self.lag_ns(clock.now()).saturating_add(signed(self.area_ns(most_ns)));
            area_ns = area_ns.min(u64::try_from(left_ns).unwrap_or(0));
        }
        if self.wanted {
            self.vtime += self.weighted(area_ns);
        } else {
            self.charge_beside(area_ns, clock);
        }
    }
}

impl Scheduler {
    /// Returns whether owners use the GPU at once, each with a part of the SMs.
    pub fn is_in_space(&self) -> bool {
        self.company.is_in_space()
    }

    /// Charges the places that owners had in the last `elapsed_ns`, unless all active owners fit.
    pub(super) fn charge_places(&mut self, elapsed_ns: u64, now_ns: u64, tuning: &Tuning) {
        if !self.company.is_in_space() {
            return;
        }
        let Self { company, tenants, clocks, .. } = self;
        let clock = &mut clocks[Rank::Owner as usize];
        let (from_ns, short_ns) = (now_ns.saturating_sub(elapsed_ns), short_pause_ns(tuning));
        let mut room_ppm = u64::from(PPM);
        for id in &company.set {
            let Some(tenant) = tenants.get_quietly(*id) else { continue };
            let had = matches!(tenant.grant, Grant::Leased { .. }) || tenant.drains();
            // The first owner always pays, so that owners take turns if all requests are refused.
            let is_charged = room_ppm == u64::from(PPM) || !tenant.is_refused();
            if had && is_charged && (tenant.wanted || tenant.asks(from_ns, short_ns)) {
                let is_spare = room_ppm < company.waits_ppm;
                tenant.charge_place(elapsed_ns, is_spare.then_some(tuning.quantum_ns), clock);
                room_ppm = room_ppm.saturating_sub(u64::from(tenant.part_ppm()));
            }
        }
        tenants.astir_with(|id, tenant| {
            if tenant.wanted {
                tenant.wanted_part(elapsed_ns, tenant.may_launch() || tenant.drains());
            }
            if tenant.drains() && !company.set.contains(&id) {
                tenant.charge_place(elapsed_ns, None, clock);
            }
        });
    }

    /// Sets the gates of owners that fit in space, and returns the time of the next look, ns.
    /// `fits_whole`: the parts of all active owners fit.
    pub(super) fn space_step(&mut self, fits_whole: bool, now_ns: u64, tuning: &Tuning) -> u64 {
        for tenant in self.tenants.values_quietly() {
            tenant.set_free(true, now_ns);
            if tenant.drains() && now_ns >= tenant.drains_until_ns {
                // The part of the SMs is free for others, whether or not the work ends.
                tenant.stuck.get_or_insert(Stuck { since_ns: now_ns, used_ns: 0 });
            }
        }
        if fits_whole {
            let active = self.tenants.iter().filter(|(_, tenant)| tenant.is_active(now_ns));
            self.company.set.clear();
            self.company.set.extend(active.map(|(id, _)| *id));
            self.company.chosen_ns = 0;
        } else {
            let is_owner = |tenant: &Tenant| tenant.rank == Rank::Owner && tenant.is_here();
            self.company.set.retain(|id| self.tenants.get(*id).is_some_and(is_owner));
            self.keep_what_fits();
            self.admit(now_ns, tuning);
            self.choose(now_ns, tuning);
        }
        let short_ns = short_pause_ns(tuning);
        let parts = self.waiting(now_ns, short_ns).map(|(_, tenant)| u64::from(tenant.part_ppm()));
        self.company.waits_ppm = parts.min().unwrap_or(u64::MAX);
        if self.close_gates(now_ns) {
            // The last readings do not show launches that passed a gate just before it closed.
            return now_ns.saturating_add(1);
        }
        let term_ends_ns = self.company.chosen_ns.saturating_add(tuning.quantum_ns);
        let expires_ns = term_ends_ns.saturating_add(tuning.lead_ns);
        self.open_gates(if fits_whole { Grant::Open } else { Grant::Leased { expires_ns } }, now_ns);
        if fits_whole {
            return now_ns.saturating_add(LOOK_NS);
        }
        let waits = self.tenants.astir().any(|(_, tenant)| tenant.seen.waiting && !tenant.may_launch());
        let pause_ends_ns = self
            .members()
            .filter(|tenant| !tenant.seen.wants() && tenant.asks(now_ns, short_ns))
            .map(|tenant| tenant.stopped_wanting_ns.saturating_add(short_ns + 1));
        now_ns
            .saturating_add(if waits { POLL_NS } else { LOOK_NS })
            .min(term_ends_ns)
            .min(pause_ends_ns.min().unwrap_or(u64::MAX))
    }

    /// Takes owners out of the set if the parts of the owners before them in the set have grown and
    /// leave them no room.
    fn keep_what_fits(&mut self) {
        let mut room_ppm = u64::from(PPM);
        self.company.set.retain(|id| {
            let part_ppm = self.tenants.get(*id).map_or(0, |tenant| u64::from(tenant.part_ppm()));
            let fits = part_ppm <= room_ppm;
            room_ppm -= if fits { part_ppm } else { 0 };
            fits
        });
    }

    /// Closes the gates of tenants without a place. Returns whether there were any.
    fn close_gates(&mut self, now_ns: u64) -> bool {
        let mut has_closed = false;
        loop {
            let loses =
                |(id, tenant): &(&TenantId, &Tenant)| tenant.may_launch() && !self.company.set.contains(id);
            let Some(id) = self.tenants.iter().find(loses).map(|(id, _)| *id) else { return has_closed };
            let limit_ns = self.drain_limit_ns(id, false, now_ns);
            if let Some(tenant) = self.tenants.get_quietly(id) {
                tenant.drains_until_ns = now_ns.saturating_add(limit_ns);
            }
            self.change(id, Grant::Closed, false);
            has_closed = true;
        }
    }

    /// Gives this grant to the owners of the set, as far as the work in flight of other owners
    /// leaves room.
    fn open_gates(&mut self, grant: Grant, now_ns: u64) {
        let occupied = self.tenants.values().filter(|tenant| tenant.occupies(now_ns));
        let mut occupied_ppm = occupied.map(|tenant| u64::from(tenant.part_ppm())).sum::<u64>();
        let set = mem::take(&mut self.company.set);
        for id in &set {
            let Some(tenant) = self.tenants.get(*id) else { continue };
            let more_ppm = if tenant.occupies(now_ns) { 0 } else { u64::from(tenant.part_ppm()) };
            if tenant.may_launch() || occupied_ppm + more_ppm <= u64::from(PPM) {
                occupied_ppm += more_ppm;
                self.change(*id, grant, matches!(tenant.grant, Grant::Leased { .. }));
            }
        }
        self.company.set = set;
    }

    /// Returns the owners of the set.
    fn members(&self) -> impl Iterator<Item = &Tenant> {
        self.company.set.iter().filter_map(|id| self.tenants.get(*id))
    }

    /// Returns the owners that want the GPU and are not in the set.
    fn waiting(&self, now_ns: u64, short_ns: u64) -> impl Iterator<Item = (TenantId, &Tenant)> {
        let waits = move |(id, tenant): &(&TenantId, &Tenant)| {
            tenant.asks(now_ns, short_ns) && !self.company.set.contains(id)
        };
        self.tenants.astir().filter(waits).map(|(id, tenant)| (*id, tenant))
    }

    /// Chooses the set of owners anew if it is time to. Otherwise gives free places to owners that
    /// wait.
    fn choose(&mut self, now_ns: u64, tuning: &Tuning) {
        let short_ns = short_pause_ns(tuning);
        let mean = self.clocks[Rank::Owner as usize].eligible_after(0);
        let is_over = now_ns >= self.company.chosen_ns.saturating_add(tuning.quantum_ns);
        let first = self.waiting(now_ns, short_ns).min_by_key(|(_, tenant)| tenant.place(mean));
        let Some((_, first)) = first else {
            if is_over {
                self.company.chosen_ns = now_ns;
            }
            return;
        };
        let asking = || self.members().filter(|tenant| tenant.asks(now_ns, short_ns));
        // A change of the set costs as much as a short pause. `first` must find room beside the
        // owners that it does not precede.
        let mut rest_ppm = u64::from(PPM);
        let mut precedes = false;
        for tenant in asking() {
            if first.precedes(tenant, short_ns, mean) {
                precedes = true;
            } else {
                rest_ppm = rest_ppm.saturating_sub(u64::from(tenant.part_ppm()));
            }
        }
        let is_first = precedes && u64::from(first.part_ppm()) <= rest_ppm;
        let preempts = is_first && now_ns >= self.preempts_ns(tuning);
        let kept_ppm = asking().map(|tenant| u64::from(tenant.part_ppm())).sum::<u64>();
        let mut room_ppm = u64::from(PPM).saturating_sub(kept_ppm);
        let fits = |tenant: &Tenant, room_ppm| u64::from(tenant.part_ppm()) <= room_ppm;
        if is_over || preempts {
            if !is_over {
                self.preempted_ns = Some(now_ns);
            }
            self.company.set.clear();
            self.company.chosen_ns = now_ns;
            room_ppm = u64::from(PPM);
        } else if self.waiting(now_ns, short_ns).any(|(_, tenant)| fits(tenant, room_ppm)) {
            let asks = |tenant: &Tenant| tenant.asks(now_ns, short_ns);
            self.company.set.retain(|id| self.tenants.get(*id).is_some_and(asks));
        } else {
            return;
        }
        loop {
            let waiting = self.waiting(now_ns, short_ns).filter(|(_, tenant)| fits(tenant, room_ppm));
            let Some((id, tenant)) = waiting.min_by_key(|(_, tenant)| tenant.place(mean)) else { return };
            room_ppm -= u64::from(tenant.part_ppm());
            self.company.set.push(id);
        }
    }
}
