//! A token bucket for each tenant, filled by the observed utilisation.
//!
//! The rule and the constants are those of HAMi-core's
//! src/multiprocess/multiprocess_utilization_watcher.{c,h} as of June 2026. A launch takes as many
//! tokens as its grid has blocks. While the number of tokens is negative, a launch sleeps 10 ms at
//! a time. Every 120 ms the bucket gets `share` more tokens. `share` grows while the process's
//! utilisation of the last second is at or below its limit, and shrinks while the utilisation is
//! above the limit. Utilisation is in integer percent.
//!
//! In HAMi-core, a launch also waits while `recent_kernel` is below 0, with any number of tokens.
//! HAMi-core itself never sets this value. Another program sets the value for tasks of low
//! priority. So in the evaluation, no launch waits for `recent_kernel`.
//!
//! The limit of an owner is its entitlement. The limit of a best-effort tenant is the GPU time that
//! the other tenants leave on average, at least 5 %. A real operator would have to know this time
//! beforehand.

use std::collections::VecDeque;

use deepres_policy::entitlement::Entitlement;

use super::blocks;
use crate::device::Tenant;
use crate::gate::{Gate, Launch};
use crate::metrics;
use crate::scenario::{SECOND, Scenario};
use crate::standings::Standings;

/// The time between two looks at the utilisation, at which the buckets get tokens, ns (`g_wait` in
/// HAMi-core).
const WATCH_NS: u64 = 120_000_000;
/// The time for which a launch without tokens sleeps, ns (`g_cycle` in HAMi-core).
const SLEEP_NS: u64 = 10_000_000;
/// The most tokens of a bucket at first, for each thread that the GPU holds (`FACTOR` in
/// HAMi-core).
const FACTOR: i64 = 32;
/// Threads that an SM holds (an H200).
const THREADS: i64 = 2048;
const SMS: i64 = blocks::SMS as i64;
/// The divisor in the step by which `share` changes (in the function `delta` of HAMi-core).
const DIVISOR: i64 = 2560;
/// The least difference between limit and utilisation by which `share` changes, percent.
const MIN_DIFFERENCE: i64 = 5;
/// The limit from which on no launch waits, percent.
const UNLIMITED: i64 = 100;
/// The least limit of a guest in the evaluation, percent.
const MIN_GUEST: i64 = 5;

#[derive(Debug)]
struct Bucket {
    limit_percent: i64,
    tokens: i64,
    total: i64,
    share: i64,
    waiting_until_ns: Option<u64>,
    /// The end and the length of each kernel of the last second, ns.
    recent: VecDeque<(u64, u64)>,
}

/// The token buckets of the policy `hami-like`.
#[derive(Debug)]
pub struct HamiLike {
    buckets: Vec<Bucket>,
    watch_ns: u64,
}

impl HamiLike {
    /// Returns the buckets for the scenario's tenants.
    pub fn new(scenario: &Scenario) -> Self {
        let left = 1.0 - metrics::demand_of_owners(scenario);
        let owed = Standings::at_first(scenario);
        let percent = |part: f64| (part * 100.0).round() as i64;
        let limit = |(tenant, owed): (&crate::scenario::Tenant, &Entitlement)| match tenant.is_guest() {
            true => percent(left).max(MIN_GUEST),
            false => percent(f64::from(owed.ppm) / 1e6).max(1),
        };
        Self {
            buckets: scenario.tenants.iter().zip(owed.at(0)).map(limit).map(Bucket::new).collect(),
            watch_ns: WATCH_NS,
        }
    }
}

impl Bucket {
    fn new(limit_percent: i64) -> Self {
        Self {
            limit_percent,
            tokens: 0,
            total: THREADS * SMS * FACTOR,
            share: 0,
            waiting_until_ns: None,
            recent: VecDeque::new(),
        }
    }

    fn watch(&mut self, now_ns: u64) {
        while self.recent.front().is_some_and(|(end_ns, _)| end_ns + SECOND <= now_ns) {
            self.recent.pop_front();
        }
        let busy_ns: u64 = self.recent.iter().map(|(_, length_ns)| length_ns).sum();
        let used_percent = (busy_ns.min(SECOND) * 100 / SECOND) as i64;
        if self.share == self.total && self.tokens < 0 {
            self.total *= 2;
            self.share = self.total;
        }
        let difference = (self.limit_percent - used_percent).abs().max(MIN_DIFFERENCE);
        let mut step = SMS * SMS * THREADS * difference / DIVISOR;
        if difference > self.limit_percent / 2 {
            step = step * difference * 2 / (self.limit_percent + 1);
        }
        self.share = if used_percent <= self.limit_percent {
            (self.share + step).min(self.total)
        } else {
            (self.share - step).max(0)
        };
        self.tokens = (self.tokens + self.share).min(self.total);
    }
}

impl Gate for HamiLike {
    fn admit(&mut self, now_ns: u64, launch: &Launch) -> bool {
        let bucket = &mut self.buckets[launch.tenant];
        if bucket.limit_percent >= UNLIMITED {
            return true;
        }
        // A thread that sleeps does not look earlier.
        if bucket.waiting_until_ns.is_some_and(|until_ns| now_ns < until_ns) {
            return false;
        }
        bucket.waiting_until_ns = (bucket.tokens < 0).then_some(now_ns + SLEEP_NS);
        if bucket.waiting_until_ns.is_none() {
            bucket.tokens -= blocks::of(launch.length_ns) as i64;
        }
        bucket.waiting_until_ns.is_none()
    }

    fn done(&mut self, now_ns: u64, tenant: Tenant, length_ns: u64, _: bool) {
        self.buckets[tenant].recent.push_back((now_ns, length_ns));
    }

    fn rests(&mut self, _: u64, _: Tenant) {}

    fn wake_ns(&self) -> Option<u64> {
        let sleepers = self.buckets.iter().filter_map(|bucket| bucket.waiting_until_ns);
        sleepers.chain([self.watch_ns]).min()
    }

    fn wake(&mut self, now_ns: u64, retry: &mut Vec<Tenant>) {
        if now_ns >= self.watch_ns {
            self.watch_ns += WATCH_NS;
            for bucket in &mut self.buckets {
                bucket.watch(now_ns);
            }
        }
        for (tenant, bucket) in self.buckets.iter_mut().enumerate() {
            if bucket.waiting_until_ns.is_some_and(|until_ns| until_ns <= now_ns) {
                bucket.waiting_until_ns = None;
                retry.push(tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    /// Returns the share of a bucket with this limit after a look at a second with this
    /// utilisation.
    fn share_after(limit_percent: i64, share: i64, used_percent: u64) -> i64 {
        let mut bucket = Bucket { share, ..Bucket::new(limit_percent) };
        bucket.recent.push_back((SECOND, used_percent * SECOND / 100));
        bucket.watch(SECOND);
        bucket.share
    }

    #[test]
    fn the_share_moves_by_the_difference_faster_where_that_is_more_than_half_the_limit() {
        // delta is 132 × 132 × 2048 × difference / 2560.
        assert_eq!(share_after(50, 1_000_000, 30), 1_000_000 + 278_784);
        assert_eq!(share_after(50, 1_000_000, 70), 1_000_000 - 278_784);
        // The difference is at least 5 percent.
        assert_eq!(share_after(50, 1_000_000, 48), 1_000_000 + 69_696);
        // Beyond half the limit, delta is multiplied by difference × 2 / (limit + 1).
        assert_eq!(share_after(50, 0, 0), 1_366_588);
        assert_eq!(share_after(50, 1_000, 100), 0);
    }

    #[test]
    fn the_share_is_never_more_than_the_whole_which_doubles_when_it_does_not_suffice() {
        let total = THREADS * SMS * FACTOR;
        assert_eq!((total, share_after(90, total, 0)), (8_650_752, total));
        let mut bucket = Bucket { share: total, tokens: -1, ..Bucket::new(90) };
        bucket.watch(SECOND);
        assert_eq!(bucket.total, 2 * total);
    }

    #[test]
    fn a_launch_takes_its_blocks_and_sleeps_ten_milliseconds_while_there_are_less_than_none() {
        let tenants = [("t", "share = \"30%\"", "kernels = 1, kernel_us = 100")];
        let mut gate = HamiLike::new(&Scenario::of("duration_s = 1", &tenants));
        assert_eq!(gate.buckets[0].limit_percent, 30);
        gate.buckets[0].tokens = 1_320;
        let launch = Launch { tenant: 0, length_ns: 100_000, arrived_ns: 0, due_ns: None };
        // Each launch has 1,320 blocks. The first launch leaves no tokens, and the second launch
        // brings the number below 0.
        assert!(gate.admit(0, &launch) && gate.admit(0, &launch));
        assert_eq!(gate.buckets[0].tokens, -1_320);
        assert!(!gate.admit(5, &launch));
        assert_eq!(gate.wake_ns(), Some(SLEEP_NS + 5));
        gate.buckets[0].tokens = 0;
        assert!(!gate.admit(SLEEP_NS, &launch), "a sleeping tenant does not look");
        let mut retry = Vec::new();
        gate.wake(SLEEP_NS + 5, &mut retry);
        assert!(retry == [0] && gate.admit(SLEEP_NS + 5, &launch));
    }

    #[test]
    fn a_limit_is_kept_in_the_long_run_roughly() {
        let tenants = [("t", "share = \"30%\"", "kernels = 100, kernel_us = 500")];
        let run = Policy::HamiLike.run_alone(&Scenario::of("duration_s = 60\nwarmup_s = 10", &tenants));
        let used_percent = run.outcomes[0].used_ns as f64 / 50e7;
        assert!((20.0..=45.0).contains(&used_percent), "{used_percent}");
    }
}
