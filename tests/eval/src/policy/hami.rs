//! A token bucket for each tenant, filled by the utilisation that is seen.
//!
//! Rule and constants are those of HAMi-core's src/multiprocess/multiprocess_utilization_watcher.{c,h} as of June 2026: a launch takes as many tokens
//! as its grid has blocks, and sleeps 10 ms at a time while there are less than none; every 120 ms the bucket gets `share` more, which grows while
//! the process's utilisation of the last second is at or below its limit and shrinks while it is above, in integer percent.
//!
//! The limits: what each tenant is owed. A best-effort tenant gets what the others leave on average, which an operator would have to know
//! beforehand; it gets 5 % at least.

use std::collections::VecDeque;

use super::{blocks, owed};
use crate::device::Tenant;
use crate::gate::{Gate, Launch};
use crate::metrics;
use crate::scenario::{SECOND, Scenario};

/// `g_wait`
const WATCH_NS: u64 = 120_000_000;
/// `g_cycle`
const SLEEP_NS: u64 = 10_000_000;
/// `FACTOR`
const FACTOR: i64 = 32;
/// Threads that an SM holds (an H200).
const THREADS: i64 = 2048;
const SMS: i64 = blocks::SMS as i64;
/// The divisor in `delta`.
const DIVISOR: i64 = 2560;
/// The least difference that `delta` goes by, percent.
const MIN_DIFFERENCE: i64 = 5;
/// A limit at which nothing is limited, percent.
const UNLIMITED: i64 = 100;
/// The least limit a guest gets here, percent.
const MIN_GUEST: i64 = 5;

#[derive(Debug)]
struct Bucket {
    limit_percent: i64,
    tokens: i64,
    total: i64,
    share: i64,
    waiting_until_ns: Option<u64>,
    /// (end, length) of the kernels of the last second.
    recent: VecDeque<(u64, u64)>,
}

/// The buckets.
#[derive(Debug)]
pub struct HamiLike {
    buckets: Vec<Bucket>,
    watch_ns: u64,
}

impl HamiLike {
    /// Buckets for the scenario's tenants.
    pub fn new(scenario: &Scenario) -> Self {
        let left = 1.0 - metrics::demand_of_owners(scenario);
        let percent = |part: f64| (part * 100.0).round() as i64;
        let limit = |(tenant, owed): (&crate::scenario::Tenant, super::Entitlement)| match tenant.is_guest() {
            true => percent(left).max(MIN_GUEST),
            false => percent(f64::from(owed.ppm) / 1e6).max(1),
        };
        let bucket = |limit_percent| Bucket {
            limit_percent,
            tokens: 0,
            total: THREADS * SMS * FACTOR,
            share: 0,
            waiting_until_ns: None,
            recent: VecDeque::new(),
        };
        Self {
            buckets: scenario.tenants.iter().zip(owed(scenario)).map(limit).map(bucket).collect(),
            watch_ns: WATCH_NS,
        }
    }
}

impl Bucket {
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
