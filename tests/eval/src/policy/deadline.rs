//! Runs one batch at a time without pre-emption, the batch with the earliest deadline first (Liu
//! and Layland, JACM 1973).
//!
//! The SLO gives the due time of a request or step. Without an SLO, the deadline of the job gives
//! it. Batches without a due time, or with the same due time, run in the order in which they came.
//! The gate decides again at the end of each batch.

use std::collections::BTreeSet;

use crate::device::Tenant;
use crate::gate::{Gate, Launch};
use crate::scenario::Scenario;

/// Due time, arrival time and tenant of a batch. The least place comes first.
type Place = (u64, u64, Tenant);

/// The gate under the policy `earliest-deadline`.
#[derive(Debug)]
pub struct EarliestDeadline {
    holder: Option<Tenant>,
    waiting: BTreeSet<Place>,
    places: Vec<Option<Place>>,
    /// Time when each tenant's whole job is due.
    deadlines_ns: Vec<u64>,
    next_ns: Option<u64>,
}

impl EarliestDeadline {
    /// Returns the gate for a scenario's tenants.
    pub fn new(scenario: &Scenario) -> Self {
        let deadline = |tenant: &crate::scenario::Tenant| tenant.deadline_ns.unwrap_or(u64::MAX);
        Self {
            holder: None,
            waiting: BTreeSet::new(),
            places: vec![None; scenario.tenants.len()],
            deadlines_ns: scenario.tenants.iter().map(deadline).collect(),
            next_ns: None,
        }
    }

    fn decide_again(&mut self, now_ns: u64, tenant: Tenant) {
        if self.holder == Some(tenant) {
            self.holder = None;
            self.next_ns = Some(now_ns);
        }
    }
}

impl Gate for EarliestDeadline {
    fn admit(&mut self, now_ns: u64, launch: &Launch) -> bool {
        let tenant = launch.tenant;
        if self.holder == Some(tenant) {
            return true;
        }
        let due_ns = launch.due_ns.unwrap_or(self.deadlines_ns[tenant]);
        let place = (due_ns, launch.arrived_ns, tenant);
        if let Some(before) = self.places[tenant].replace(place) {
            self.waiting.remove(&before);
        }
        self.waiting.insert(place);
        if self.holder.is_none() {
            self.next_ns = Some(now_ns);
        }
        false
    }

    fn done(&mut self, _: u64, _: Tenant, _: u64, _: bool) {}

    fn batch_done(&mut self, now_ns: u64, tenant: Tenant) {
        self.decide_again(now_ns, tenant);
    }

    fn rests(&mut self, _: u64, _: Tenant) {}

    fn wake_ns(&self) -> Option<u64> {
        self.next_ns
    }

    fn wake(&mut self, _: u64, retry: &mut Vec<Tenant>) {
        self.next_ns = None;
        if self.holder.is_none()
            && let Some((_, _, tenant)) = self.waiting.pop_first()
        {
            self.places[tenant] = None;
            self.holder = Some(tenant);
            retry.push(tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::Policy;
    use crate::policy::tests::used_percent;
    use crate::scenario::Scenario;

    #[test]
    fn equals_without_deadlines_have_equal_parts() {
        let tenants = [("a", "count = 3", "kernels = 10, kernel_us = 1000")];
        let used = used_percent(Policy::EarliestDeadline, &tenants);
        assert!(used.iter().all(|used| (used - 33.3).abs() < 0.5), "{used:?}");
    }

    #[test]
    fn a_backlogged_service_gives_way_between_two_of_its_requests_to_one_that_is_due_earlier() {
        // The first tenant has far more work than fits, due in five seconds. The second tenant's
        // requests are due in 20 ms.
        const PERIODIC: &str = "arrival = \"periodic\", kernels = 1";
        let backlogged = format!("requests = {{ {PERIODIC}, per_s = 200, kernel_us = 8000, slo_ms = 5000 }}");
        let urgent = format!("requests = {{ {PERIODIC}, per_s = 10, kernel_us = 1000, slo_ms = 20 }}");
        let tenants = [("backlogged", backlogged.as_str(), ""), ("urgent", &urgent, "")];
        let run = Policy::EarliestDeadline.run_alone(&Scenario::of("duration_s = 2", &tenants));
        assert_eq!((run.outcomes[1].missed, run.outcomes[1].timed), (0, 19), "{:?}", run.outcomes[1]);
        // At most one request of the other tenant and two switches are ahead of a request.
        assert!(run.outcomes[1].latencies_ns.iter().all(|ns| *ns <= 9_200_000));
    }

    #[test]
    fn a_jobs_deadline_goes_before_none() {
        let tenants = [
            ("whenever", "", "kernels = 10, kernel_us = 1000"),
            ("due", "deadline_s = 60", "kernels = 10, kernel_us = 1000, pause_ms = 10"),
        ];
        let used = used_percent(Policy::EarliestDeadline, &tenants);
        // After each step of a tenant, the other tenant has a step.
        assert!((used[1] - 50.0).abs() < 1.0, "{used:?}");
    }
}
