//! The bound: the progress that the owners of a scenario would have under the best of several
//! schedulers that know the work beforehand. The bound shows which part of the distance to the
//! fluid limit comes from the hardware, and not from the policy.
//!
//! The hardware is the scenario's hardware. Only the device cuts kernels. The device lets contexts
//! take turns of a slice, so a tenant that comes waits for the rest of another tenant's slice. A
//! turn costs a switch, and a change of the gates costs a hand-off. Under MPS, the device runs the
//! kernels of all open gates at once.
//!
//! The schedulers form a family, and the bound is the best result of any scheduler of the family:
//!
//! - **Turns**: all owners' gates are always open, which is the plain hardware without guests.
//! - **Fair**: one owner's gate is open at a time. Among the owners that are not ahead of the fluid
//!   limit, the owner whose request the fluid limit would end first goes first. A request is the
//!   rest of the burst, or the scheduler's limit on requests if the limit is less. The scheduler
//!   knows each burst when it begins, and reads each tenant's GPU time without delay. A tenant that
//!   comes takes its place at once: the holder's gate closes, and the device takes turns until the
//!   holder's kernel is done.
//!
//! - **Patient**: a fair scheduler that waits for a holder whose pauses take less than two
//!   hand-offs, as long as the holder's request lasts. The request of such an owner is the limit.
//!
//! - **Careful**: a fair or patient scheduler that lets at most one owner with kernels longer than
//!   a slice on the device. If two owners had such kernels there, a third owner would wait for both
//!   slices.
//!
//! So the bound is the result of a scheduler on this model, and no proof: another scheduler can do
//! better. For example, no scheduler of the family idles for a longer pause. Guests do not run at
//! all, because the bound is about owners. The family shares no code with the scheduler of deepres.

use std::cell::RefCell;
use std::iter;
use std::rc::Rc;

use crate::device::{self, Device, Tenant};
use crate::engine::{self, Run, Witness};
use crate::gate::{Gate, Launch};
use crate::metrics::worst;
use crate::scenario::{self, Scenario};
use crate::standings::Standings;

/// The fair schedulers: the limit on requests and the options of each.
const FAIR: [Rule; 9] = [
    Rule { slices: 1.0, is_patient: false, is_careful: false },
    Rule { slices: 5.0, is_patient: false, is_careful: false },
    Rule { slices: f64::INFINITY, is_patient: false, is_careful: false },
    Rule { slices: 1.0, is_patient: false, is_careful: true },
    Rule { slices: 5.0, is_patient: false, is_careful: true },
    Rule { slices: 1.0, is_patient: true, is_careful: false },
    Rule { slices: 5.0, is_patient: true, is_careful: false },
    Rule { slices: 1.0, is_patient: true, is_careful: true },
    Rule { slices: 5.0, is_patient: true, is_careful: true },
];
/// The length of a pause below which a patient scheduler waits, hand-offs.
const PATIENCE: u64 = 2;
/// Work in flight that keeps the device busy until the next launch, hand-offs.
const WINDOW: u64 = 2;
/// Work that does not count, because it is below the rounding of the times, ns.
const NOTHING_NS: f64 = 0.5;

/// Returns the bound: the greatest part of the fluid limit's progress that any of the schedulers
/// gives to its worst owner. `progress` reads each tenant's progress from a run, and `fluid` is
/// each tenant's progress under the fluid limit. `standings` are the entitlements over time. Once a
/// scheduler gives every owner the progress of the fluid limit, the function tries no further
/// scheduler. Returns `None` without owners.
pub fn bound(
    scenario: &Scenario,
    standings: &Standings,
    fluid: &[f64],
    progress: impl Fn(&Run) -> Vec<f64>,
) -> Option<f64> {
    let mut best: Option<f64> = None;
    let rules = FAIR.iter().filter(|rule| rule.matters(scenario));
    let runs = iter::once_with(|| turns(scenario)).chain(rules.map(|rule| fair(scenario, standings, rule)));
    for run in runs {
        let worst = worst(scenario, &progress(&run), fluid)?;
        best = Some(best.map_or(worst, |best| best.max(worst)));
        if worst >= 1.0 {
            break;
        }
    }
    best
}

/// The rule of a fair scheduler.
#[derive(Debug, Clone, Copy)]
struct Rule {
    /// Longest request, slices.
    slices: f64,
    is_patient: bool,
    is_careful: bool,
}

impl Rule {
    /// Returns whether the rule's options change anything in a scenario.
    fn matters(&self, scenario: &Scenario) -> bool {
        let owners = || scenario.tenants.iter().filter(|tenant| !tenant.is_guest());
        (!self.is_patient || owners().any(|owner| pauses_quickly(scenario, owner)))
            && (!self.is_careful || owners().filter(|owner| has_long_kernels(scenario, owner)).count() > 1)
    }
}

/// Returns whether a patient scheduler waits for the tenant in its pauses.
fn pauses_quickly(scenario: &Scenario, tenant: &scenario::Tenant) -> bool {
    let limit_ns = PATIENCE * scenario.gpu.handoff_ns;
    tenant.steps.as_ref().is_some_and(|steps| steps.pause_ns < limit_ns)
}

/// Returns whether the tenant has kernels longer than a slice, which the device cuts.
fn has_long_kernels(scenario: &Scenario, tenant: &scenario::Tenant) -> bool {
    tenant.longest_kernel_ns() > scenario.gpu.slice_ns
}

fn device(scenario: &Scenario) -> Box<dyn Device> {
    device::of(&scenario.gpu, scenario.tenants.len(), scenario.gpu.switch_ns)
}

/// Runs a scenario with the gates of all owners open.
fn turns(scenario: &Scenario) -> Run {
    let guests = scenario.tenants.iter().map(scenario::Tenant::is_guest).collect();
    engine::run(scenario, device(scenario).as_mut(), &mut AllOpen { guests }, None)
}

/// Runs a scenario under a fair scheduler.
fn fair(scenario: &Scenario, standings: &Standings, rule: &Rule) -> Run {
    let state = Rc::new(RefCell::new(Fair::new(scenario, standings, rule)));
    let mut gate = FairGate(Rc::clone(&state));
    engine::run(scenario, device(scenario).as_mut(), &mut gate, Some(&mut Knowledge(state)))
}

/// Open gates for all owners, and closed gates for all guests.
struct AllOpen {
    guests: Vec<bool>,
}

impl Gate for AllOpen {
    fn admit(&mut self, _: u64, launch: &Launch) -> bool {
        !self.guests[launch.tenant]
    }
    fn done(&mut self, _: u64, _: Tenant, _: u64, _: bool) {}
    fn rests(&mut self, _: u64, _: Tenant) {}
    fn wake_ns(&self) -> Option<u64> {
        None
    }
    fn wake(&mut self, _: u64, _: &mut Vec<Tenant>) {}
}

#[derive(Debug, Clone, Default)]
struct Seat {
    is_guest: bool,
    /// Whether a patient scheduler waits for the owner in its pauses.
    is_quick: bool,
    /// Whether the owner has kernels that a careful scheduler never runs beside other such kernels.
    is_long: bool,
    /// The burst's work that is not done, ns. `in_flight_ns` is the launched part of this work.
    left_ns: f64,
    in_flight_ns: u64,
    used_ns: u64,
    /// The tenant's GPU time in the fluid limit, less the tenant's GPU time, ns.
    lag_ns: f64,
}

impl Seat {
    fn has_more(&self) -> bool {
        self.left_ns - self.in_flight_ns as f64 > NOTHING_NS
    }
}

/// A fair scheduler, and the state of the tenants that it schedules.
#[derive(Debug)]
struct Fair<'a> {
    standings: &'a Standings,
    /// Time from a decision until the gate is open. The device's own switch is a part of the
    /// hand-off, and comes after this time.
    lead_ns: u64,
    handoff_ns: u64,
    slice_ns: u64,
    longest_request_ns: f64,
    seats: Vec<Seat>,
    /// Owners with a burst that is not done.
    active: Vec<Tenant>,
    holder: Option<Tenant>,
    /// The rest of the holder's request, ns.
    request_left_ns: f64,
    /// When the holder's gate opens, if it is still closed.
    opens_ns: Option<u64>,
    /// Until when the scheduler waits for a holder that pauses.
    waits_ns: Option<u64>,
}

impl<'a> Fair<'a> {
    fn new(scenario: &Scenario, standings: &'a Standings, rule: &Rule) -> Self {
        let gpu = &scenario.gpu;
        let seat = |tenant: &scenario::Tenant| Seat {
            is_guest: tenant.is_guest(),
            is_quick: rule.is_patient && pauses_quickly(scenario, tenant),
            is_long: rule.is_careful && has_long_kernels(scenario, tenant),
            ..Seat::default()
        };
        Self {
            standings,
            lead_ns: gpu.handoff_ns.saturating_sub(gpu.switch_ns),
            handoff_ns: gpu.handoff_ns,
            slice_ns: gpu.slice_ns,
            longest_request_ns: rule.slices * gpu.slice_ns as f64,
            seats: scenario.tenants.iter().map(seat).collect(),
            active: Vec::new(),
            holder: None,
            request_left_ns: 0.0,
            opens_ns: None,
            waits_ns: None,
        }
    }

    fn weight(&self, now_ns: u64, tenant: Tenant) -> f64 {
        self.standings.at(now_ns).get(tenant).map_or(1.0, |owed| f64::from(owed.weight_ppm.max(1)))
    }

    /// Subtracts the GPU time that each active owner used since the last call from its lag. Adds
    /// the sum to the lags of all active owners, by weight.
    fn charge(&mut self, now_ns: u64, used_ns: &[u64]) {
        let mut spent_ns = 0;
        for tenant in &self.active {
            let seat = &mut self.seats[*tenant];
            let had_ns = used_ns[*tenant] - seat.used_ns;
            seat.used_ns = used_ns[*tenant];
            seat.lag_ns -= had_ns as f64;
            spent_ns += had_ns;
        }
        if spent_ns > 0 {
            let sum: f64 = self.active.iter().map(|tenant| self.weight(now_ns, *tenant)).sum();
            for place in 0..self.active.len() {
                let tenant = self.active[place];
                self.seats[tenant].lag_ns += spent_ns as f64 * self.weight(now_ns, tenant) / sum;
            }
        }
    }

    /// Returns the virtual time at which the fluid limit would have served the tenant's debt and
    /// this request.
    fn deadline(&self, now_ns: u64, tenant: Tenant, request_ns: f64) -> f64 {
        (request_ns - self.seats[tenant].lag_ns) / self.weight(now_ns, tenant)
    }

    /// Returns the GPU time that the tenant would use in one go.
    fn request_ns(&self, tenant: Tenant) -> f64 {
        let seat = &self.seats[tenant];
        if seat.is_quick { self.longest_request_ns } else { seat.left_ns.min(self.longest_request_ns) }
    }

    /// Begins a burst of a tenant, or the part of the burst that the tenant's thread can launch
    /// now. This work takes `work_ns` with the whole GPU.
    fn begin(&mut self, now_ns: u64, tenant: Tenant, work_ns: u64) {
        self.seats[tenant].left_ns += work_ns as f64;
        if !self.active.contains(&tenant) {
            self.active.push(tenant);
        }
        if self.holder == Some(tenant) {
            self.waits_ns = None;
        }
        match self.holder {
            None => self.choose(now_ns),
            Some(holder) if holder == tenant && self.request_left_ns <= 0.0 => self.choose(now_ns),
            Some(holder) if holder != tenant && self.seats[tenant].lag_ns >= -NOTHING_NS => {
                let request_ns = self.request_ns(tenant) + self.handoff_ns as f64;
                let is_first = self.deadline(now_ns, tenant, request_ns)
                    < self.deadline(now_ns, holder, self.request_left_ns);
                if is_first && self.has_room(tenant) {
                    self.give(now_ns, tenant);
                } else if is_first {
                    self.request_left_ns = 0.0;
                }
            }
            Some(_) => {}
        }
    }

    /// Gives the GPU to the owner that goes first.
    fn choose(&mut self, now_ns: u64) {
        let may_go = |tenant: &Tenant| self.seats[*tenant].has_more() && self.has_room(*tenant);
        let waiting = self.active.iter().copied().filter(may_go);
        let place = |tenant: Tenant| {
            let is_ahead = self.seats[tenant].lag_ns < -NOTHING_NS;
            let request_ns = if is_ahead { 0.0 } else { self.request_ns(tenant) };
            (is_ahead, self.deadline(now_ns, tenant, request_ns))
        };
        let first = waiting
            .map(|tenant| (place(tenant), tenant))
            .min_by(|((ahead, at), _), ((other, other_at), _)| ahead.cmp(other).then(at.total_cmp(other_at)));
        match first {
            Some((_, tenant)) => self.give(now_ns, tenant),
            None => (self.holder, self.waits_ns) = (None, None),
        }
    }

    /// Returns whether another owner has work in flight.
    fn is_beside_others(&self, tenant: Tenant) -> bool {
        self.active.iter().any(|other| *other != tenant && self.seats[*other].in_flight_ns > 0)
    }

    /// Returns whether the scheduler lets the owner's kernels be in flight now.
    fn has_room(&self, tenant: Tenant) -> bool {
        !self.seats[tenant].is_long || !self.is_beside_others(tenant)
    }

    /// Opens the gate of this tenant. A hand-off passes first, unless the GPU idles.
    fn give(&mut self, now_ns: u64, tenant: Tenant) {
        (self.request_left_ns, self.waits_ns) = (self.request_ns(tenant), None);
        if self.holder != Some(tenant) {
            let is_idle = self.holder.is_none() && !self.is_beside_others(tenant);
            let lead_ns = if is_idle { 0 } else { self.lead_ns };
            (self.holder, self.opens_ns) = (Some(tenant), Some(now_ns + lead_ns));
        }
    }

    fn admit(&mut self, launch: &Launch) -> bool {
        if self.holder != Some(launch.tenant) || self.opens_ns.is_some() {
            return false;
        }
        // Between two kernels of the holder, the device would turn to another owner's cut kernel.
        let is_beside_others = self.is_beside_others(launch.tenant);
        let window_ns = if is_beside_others { self.slice_ns } else { WINDOW * self.handoff_ns };
        let seat = &mut self.seats[launch.tenant];
        let may_go = seat.in_flight_ns == 0 || seat.in_flight_ns + launch.length_ns <= window_ns;
        if may_go {
            seat.in_flight_ns += launch.length_ns;
        }
        may_go
    }

    fn done(&mut self, now_ns: u64, tenant: Tenant, length_ns: u64) {
        let seat = &mut self.seats[tenant];
        seat.in_flight_ns -= length_ns;
        seat.left_ns -= length_ns as f64;
        if self.holder == Some(tenant) {
            self.request_left_ns -= length_ns as f64;
            // At the end of a burst, the next burst can follow at once.
            if self.request_left_ns <= 0.0 && self.seats[tenant].left_ns > NOTHING_NS {
                self.choose(now_ns);
            }
        } else if self.holder.is_none() {
            self.choose(now_ns);
        }
    }

    fn rests(&mut self, now_ns: u64, tenant: Tenant) {
        self.active.retain(|other| *other != tenant);
        if self.holder == Some(tenant) {
            if self.seats[tenant].is_quick && self.request_left_ns > 0.0 {
                self.waits_ns = Some(now_ns + PATIENCE * self.handoff_ns);
            } else {
                self.choose(now_ns);
            }
        }
    }
}

/// The gate of a fair scheduler.
struct FairGate<'a>(Rc<RefCell<Fair<'a>>>);

impl Gate for FairGate<'_> {
    fn admit(&mut self, _: u64, launch: &Launch) -> bool {
        self.0.borrow_mut().admit(launch)
    }
    fn done(&mut self, now_ns: u64, tenant: Tenant, length_ns: u64, _: bool) {
        self.0.borrow_mut().done(now_ns, tenant, length_ns);
    }
    fn rests(&mut self, now_ns: u64, tenant: Tenant) {
        self.0.borrow_mut().rests(now_ns, tenant);
    }
    fn wake_ns(&self) -> Option<u64> {
        let fair = self.0.borrow();
        [fair.opens_ns, fair.waits_ns].into_iter().flatten().min()
    }
    fn wake(&mut self, now_ns: u64, retry: &mut Vec<Tenant>) {
        let mut fair = self.0.borrow_mut();
        if fair.waits_ns.is_some_and(|until_ns| until_ns <= now_ns) {
            fair.choose(now_ns);
        }
        if fair.opens_ns.is_some_and(|opens_ns| opens_ns <= now_ns) {
            fair.opens_ns = None;
            retry.extend(fair.holder);
        }
    }
}

/// The knowledge of a fair scheduler: the work of each burst, and each tenant's GPU time.
struct Knowledge<'a>(Rc<RefCell<Fair<'a>>>);

impl Witness for Knowledge<'_> {
    fn available(&mut self, now_ns: u64, tenant: Tenant, work_ns: u64) {
        let mut fair = self.0.borrow_mut();
        if !fair.seats[tenant].is_guest {
            fair.begin(now_ns, tenant, work_ns);
        }
    }
    fn look(&mut self, now_ns: u64, used_ns: &[u64]) {
        self.0.borrow_mut().charge(now_ns, used_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    /// Returns a scenario of one GPU with slices of 2 ms, switches of 50 us and hand-offs of 100
    /// us.
    fn scenario(tenants: &str) -> Scenario {
        let text = format!("name = \"bound\"\nshows = \"bounds\"\nduration_s = 20\nwarmup_s = 2\n{tenants}");
        Scenario::parse(&text).unwrap()
    }

    fn tenant(name: &str, keys: &str, kernels: u64, kernel_us: u64, pause_ms: f64) -> String {
        let steps = format!("{{ kernels = {kernels}, kernel_us = {kernel_us}, pause_ms = {pause_ms} }}");
        format!("[[tenant]]\nname = \"{name}\"\n{keys}\nsteps = {steps}\n")
    }

    fn work(run: &Run) -> Vec<f64> {
        run.outcomes.iter().map(|outcome| outcome.work_ns as f64).collect()
    }

    /// Returns the bound, and the figure of plain time-slicing.
    fn bound_and_turns(scenario: &Scenario) -> (Option<f64>, Option<f64>) {
        let standings = Standings::at_first(scenario);
        let fluid = work(&Policy::Gps.run_alone(scenario));
        let turns = worst(scenario, &work(&Policy::TimeSlice.run_alone(scenario)), &fluid);
        (bound(scenario, &standings, &fluid, work), turns)
    }

    fn fair_work(scenario: &Scenario, rule: Rule) -> Vec<f64> {
        work(&fair(scenario, &Standings::at_first(scenario), &rule))
    }

    const PLAIN: Rule = Rule { slices: 1.0, is_patient: false, is_careful: false };

    #[test]
    fn the_bound_is_never_below_plain_time_slicing() {
        let pauses = [0.0, 0.3, 2.0];
        for (one_us, other_us) in [(40, 12_000), (250, 250), (30_000, 30_000)] {
            for (one_ms, other_ms) in pauses.into_iter().zip(pauses.into_iter().rev()) {
                let tenants = tenant("a", "", 10, one_us, one_ms) + &tenant("b", "", 10, other_us, other_ms);
                let (bound, turns) = bound_and_turns(&scenario(&tenants));
                assert!(bound >= turns, "{one_us}, {other_us}: {bound:?}, {turns:?}");
            }
        }
    }

    #[test]
    fn bursts_shorter_than_a_slice_wait_for_the_rest_of_the_slices_of_long_kernels() {
        let tenants = tenant("eager", "", 25, 40, 0.5) + &tenant("long", "", 20, 12_000, 2.0);
        let (bound, _) = bound_and_turns(&scenario(&tenants));
        // A cycle is a burst, a pause, the rest of a slice and two switches: 1.5 ms of work and
        // pause in 3.1 ms. In the fluid limit a cycle takes 2.5 ms.
        assert!((bound.unwrap() - 2.5 / 3.1).abs() < 0.01, "{bound:?}");
    }

    #[test]
    fn tenants_of_unequal_shares_that_always_have_work_lose_little_more_than_hand_offs() {
        let tenants =
            tenant("a", "share = \"80%\"", 10, 1_000, 0.0) + &tenant("b", "share = \"20%\"", 10, 700, 0.0);
        let (bound, turns) = bound_and_turns(&scenario(&tenants));
        assert!(bound.unwrap() >= 0.98 && turns.unwrap() <= 0.65, "{bound:?}, {turns:?}");
    }

    #[test]
    fn each_change_of_the_holder_costs_a_hand_off() {
        let tenants = tenant("a", "", 10, 1_000, 0.0) + &tenant("b", "", 10, 1_000, 0.0);
        let work = fair_work(&scenario(&tenants), PLAIN);
        // Each request is a slice of 2 ms, and a hand-off of 0.1 ms comes before it.
        let busy = work.iter().sum::<f64>() / 18e9;
        assert!((busy - 2.0 / 2.1).abs() < 0.002, "{busy}");
    }

    #[test]
    fn a_newcomer_does_not_wait_for_the_end_of_a_long_kernel() {
        let tenants = tenant("rare", "", 1, 1_000, 50.0) + &tenant("long", "", 1, 200_000, 0.0);
        let work = fair_work(&scenario(&tenants), Rule { slices: f64::INFINITY, ..PLAIN });
        // At worst a slice and two turns of the device pass before a burst of 1 ms is done.
        let steps = work[0] / 1e6;
        assert!(steps >= 18e3 / (50.0 + 1.0 + 2.0 + 0.2), "{steps}");
    }

    #[test]
    fn waiting_in_pauses_shorter_than_two_hand_offs_helps_short_bursts_among_many() {
        let tenants = tenant("short", "", 5, 60, 0.15)
            + &tenant("b", "", 1, 10_000, 0.0)
            + &tenant("c", "", 1, 10_000, 0.0);
        let scenario = scenario(&tenants);
        let [patient, other] = [true, false]
            .map(|is_patient| fair_work(&scenario, Rule { slices: 5.0, is_patient, ..PLAIN })[0]);
        assert!(patient > 1.5 * other, "{patient}, {other}");
    }

    #[test]
    fn a_short_burst_waits_for_fewer_slices_if_only_one_owner_has_long_kernels_on_the_device() {
        let tenants = tenant("short", "", 1, 200, 0.5)
            + &tenant("b", "", 1, 25_000, 1.0)
            + &tenant("c", "", 1, 25_000, 1.0);
        let scenario = scenario(&tenants);
        let [careful, other] =
            [true, false].map(|is_careful| fair_work(&scenario, Rule { is_careful, ..PLAIN })[0]);
        assert!(careful > 1.2 * other, "{careful}, {other}");
    }

    #[test]
    fn a_careful_scheduler_lets_a_newcomer_with_long_kernels_wait_for_one_kernel_and_no_burst() {
        let tenants = tenant("rare", "", 1, 3_000, 20.0) + &tenant("long", "", 50, 5_000, 0.0);
        let rule = Rule { slices: f64::INFINITY, is_careful: true, ..PLAIN };
        let steps = fair_work(&scenario(&tenants), rule)[0] / 3e6;
        // At worst a kernel of 5 ms and a hand-off pass before the step.
        assert!(steps >= 18e3 / (20.0 + 3.0 + 5.0 + 0.1), "{steps}");
    }

    #[test]
    fn guests_take_nothing_from_the_bound() {
        let owners = tenant("a", "", 10, 500, 1.0) + &tenant("b", "", 10, 500, 1.0);
        let guest = tenant("guest", "class = \"best-effort\"", 10, 20_000, 0.0);
        let of_owners = bound_and_turns(&scenario(&owners)).0.unwrap();
        let with_guest = bound_and_turns(&scenario(&(owners + &guest))).0.unwrap();
        assert!((of_owners - with_guest).abs() < 0.001, "{of_owners}, {with_guest}");
        assert_eq!(bound_and_turns(&scenario(&guest)).0, None);
    }
}
