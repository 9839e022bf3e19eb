//! Owners that use the GPU together.
//!
//! A program whose bottleneck is the host leaves the GPU idle between its kernels. These gaps are
//! too short for hand-offs. If all owners together want less than the GPU can give, each of them
//! can have all that it wants, and nobody needs a lease of its own. So all their gates are open
//! then, and the hardware runs each kernel when it comes. The scheduler goes on to read the meters.
//! Once the owners want more, it gives the GPU to one tenant at a time again.

use super::state::{Rank, Tenant};
use super::{Beside, Grant, MAX_DRAIN_NS, STAY_LEASED_NS, Scheduler, Step, Stuck, ns};
use crate::gang::Order;
use crate::tuning::Tuning;
use core::mem;
use core::time::Duration;
use deepres_abi::PPM;

/// The owners use the GPU together while they want at most this part of its time, parts per
/// million. The rest is for the hardware's changes between their kernels.
const ROOM_PPM: u64 = 850_000;
/// The time over which the scheduler measures what a tenant wants, ns.
const DEMAND_NS: u64 = ns(Duration::from_millis(50));
/// The time over which the scheduler measures the speed of a tenant, ns: some steps of a program.
const SPEED_NS: u64 = ns(Duration::from_millis(300));
/// The time between two looks at owners that use the GPU together, ns.
const LOOK_NS: u64 = ns(Duration::from_millis(2));
/// An owner is harmed if it has less than this part of what it had with the GPU for itself, or is
/// owed, parts per million.
const UNHARMED_PPM: u64 = 750_000;
/// If an owner is harmed, no owners use the GPU together for this many times as long. So an owner
/// whose meter shows too little takes a sixteenth of the others' time at most.
const TIMES_APART: u64 = 16;
/// The longest time for which no owners use the GPU together after one of them was harmed, ns.
const LONGEST_APART_NS: u64 = ns(Duration::from_secs(10));

/// Lets a mean of used GPU time over `OVER_NS` go on by `free_ns`, in which `used_ns` were used.
fn gone_on<const OVER_NS: u64>(mean_ns: u64, used_ns: i64, free_ns: u64) -> u64 {
    let kept_ns = mean_ns - mean_ns * free_ns.min(OVER_NS) / OVER_NS;
    kept_ns.saturating_add_signed(used_ns).min(OVER_NS * 2)
}

/// The GPU time that a tenant uses while it waits neither at the gate nor on the device, as running
/// means.
#[derive(Debug, Clone, Copy)]
pub struct Demand {
    /// The use in [`DEMAND_NS`], ns. A tenant that is new counts as if it used all of the time.
    wanted_ns: u64,
    /// The use in [`SPEED_NS`] while the owners do not use the GPU together, ns.
    alone_ns: u64,
    /// The time in which `alone_ns` was measured, up to [`SPEED_NS`], ns.
    measured_ns: u64,
    /// The use in [`SPEED_NS`] while they do, ns. At their beginning, it is `alone_ns`.
    together_ns: u64,
    noted_ns: u64,
    /// Whether the tenant has waited at the closed gate since `noted_ns`.
    is_held_up: bool,
}

impl Demand {
    pub fn new(now_ns: u64) -> Self {
        Self {
            wanted_ns: DEMAND_NS,
            alone_ns: 0,
            measured_ns: 0,
            together_ns: 0,
            noted_ns: now_ns,
            is_held_up: false,
        }
    }

    fn free_ns(&self, now_ns: u64) -> u64 {
        if self.is_held_up { 0 } else { now_ns.saturating_sub(self.noted_ns) }
    }

    /// Records that the tenant used this GPU time since the last call, ns; negative if an earlier
    /// call counted too much. For `waited_ns` of the time, its work waited for other tenants' work
    /// on the device.
    pub fn note(&mut self, used_ns: i64, waited_ns: u64, are_together: bool, now_ns: u64) {
        let free_ns = self.free_ns(now_ns).saturating_sub(waited_ns);
        self.noted_ns = now_ns;
        self.wanted_ns = gone_on::<DEMAND_NS>(self.wanted_ns, used_ns, free_ns);
        self.together_ns = gone_on::<SPEED_NS>(self.together_ns, used_ns, free_ns);
        if !are_together {
            self.alone_ns = gone_on::<SPEED_NS>(self.alone_ns, used_ns, free_ns);
            self.measured_ns = self.measured_ns.saturating_add(free_ns).min(SPEED_NS);
            self.together_ns = self.alone_ns;
        }
    }

    /// Returns the part of the GPU's time that the tenant wants, parts per million.
    fn wanted_ppm(&self, now_ns: u64) -> u64 {
        gone_on::<DEMAND_NS>(self.wanted_ns, 0, self.free_ns(now_ns)) * u64::from(PPM) / DEMAND_NS
    }

    /// Returns whether the speed of the tenant with the GPU for itself is known.
    fn is_measured(&self) -> bool {
        self.measured_ns == SPEED_NS
    }

    /// Returns whether the tenant has much less than it had with the GPU for itself, and than it is
    /// owed. It is owed `owed_ppm` of the GPU's time, parts per million.
    fn is_harmed(&self, owed_ppm: u64) -> bool {
        let owed_ns = self.alone_ns.min(SPEED_NS * owed_ppm / u64::from(PPM));
        self.together_ns < owed_ns * UNHARMED_PPM / u64::from(PPM)
    }
}

/// The state of the owners' use of the GPU together.
#[derive(Debug, Clone, Copy, Default)]
pub struct Together {
    /// The beginning of the use, ns; `None` while the GPU is for one tenant at a time.
    pub since_ns: Option<u64>,
    /// No use begins before this time, ns.
    not_before_ns: u64,
}

impl Tenant {
    /// Notes whether the tenant waits at the closed gate until the next decision.
    pub fn note_held_up(&mut self) {
        let is_closed = matches!(self.grant, Grant::Closed | Grant::Paused | Grant::Once);
        self.demand.is_held_up = is_closed && self.seen.waiting && !self.seen.in_flight;
    }
}

impl Scheduler {
    /// Returns whether the owners can use the GPU together: they want less than it can give, and no
    /// gang, guest or request with an SLO needs the GPU for itself.
    pub(super) fn has_room_for_all(&self, now_ns: u64) -> bool {
        let is_recent = self
            .contended_ns
            .is_some_and(|contended_ns| now_ns.saturating_sub(contended_ns) <= STAY_LEASED_NS);
        let may_begin = now_ns >= self.together.not_before_ns;
        if self.order != Order::Apart || !is_recent || !may_begin || !self.gangs.is_empty() {
            return false;
        }
        let mut wanted_ppm = 0;
        for tenant in self.tenants.values().filter(|tenant| tenant.is_here()) {
            match tenant.rank {
                Rank::Guest if tenant.wanted => return false,
                Rank::Guest => {}
                Rank::Owner if tenant.has_objective() || tenant.stuck.is_some() => return false,
                Rank::Owner if tenant.wanted && !tenant.demand.is_measured() => return false,
                Rank::Owner => wanted_ppm += tenant.demand.wanted_ppm(now_ns),
            }
            if wanted_ppm > ROOM_PPM {
                return false;
            }
        }
        true
    }

    /// Ends the owners' use of the GPU together for a while if one of them is harmed by it.
    pub(super) fn note_harm(&mut self, now_ns: u64) {
        let Some(since_ns) = self.together.since_ns else { return };
        let owners = || {
            let all = self.tenants.values();
            all.filter(|tenant| tenant.is_here() && tenant.rank == Rank::Owner)
        };
        let all_ppm = owners().map(|owner| u64::from(owner.weight_ppm)).sum::<u64>().max(1);
        let owed_ppm = |owner: &Tenant| u64::from(owner.weight_ppm) * u64::from(PPM) / all_ppm;
        if owners().any(|owner| owner.demand.is_harmed(owed_ppm(owner))) {
            let apart_ns = now_ns.saturating_sub(since_ns).saturating_mul(TIMES_APART);
            self.together.not_before_ns = now_ns.saturating_add(apart_ns.min(LONGEST_APART_NS));
        }
    }

    /// Decides while no tenant has the GPU: opens the gates of all owners if the GPU has room for
    /// them. Otherwise closes the gates that it opened for them, and returns nothing.
    pub(super) fn together_step(&mut self, now_ns: u64, tuning: &Tuning) -> Option<Step> {
        self.note_harm(now_ns);
        let has_room = self.has_room_for_all(now_ns);
        let since_ns = self.together.since_ns;
        self.together.since_ns = has_room.then(|| since_ns.unwrap_or(now_ns));
        if !has_room && since_ns.is_none() {
            return None;
        }
        let mut all = mem::take(&mut self.all);
        all.clear();
        all.extend(self.tenants.iter().map(|(id, _)| *id));
        let mut wake_ns = now_ns.saturating_add(LOOK_NS);
        for id in &all {
            let Some(tenant) = self.tenants.get(*id) else { continue };
            if has_room && tenant.is_here() && tenant.rank == Rank::Owner {
                wake_ns = wake_ns.min(self.keep_leased(*id, tenant.grant, now_ns, tuning));
                continue;
            }
            let rest_ns = tenant.remaining_ns();
            self.change(*id, Grant::Closed, false);
            let other = self.beside.and_then(|beside| self.tenants.get(beside.tenant));
            if rest_ns > other.map_or(0, Tenant::remaining_ns) {
                let until_ns = now_ns.saturating_add(MAX_DRAIN_NS);
                let progress = Stuck { since_ns: now_ns, used_ns: 0 };
                self.beside = Some(Beside { tenant: *id, until_ns, progress });
            }
        }
        self.all = all;
        has_room.then_some(Step::Stay(Some(wake_ns)))
    }
}
