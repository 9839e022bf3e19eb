//! The calls of a tenant to the kernel driver (ioctls): sums since the tenant appeared, and rates
//! of the last seconds. The figures are the number of calls, the memory for which the calls ask,
//! and the time for which the driver blocks them. The probes count the calls of each process. This
//! module adds the counts up for the tenant.

use alloc::collections::BTreeMap;
use core::time::Duration;

/// The span after which an observation counts half as much in the rates.
const SPAN_NS: u64 = Duration::from_secs(4).as_nanos() as u64;
const SECOND_NS: u128 = Duration::from_secs(1).as_nanos();
const PERMILLE: u128 = 1000;

/// Counts of calls to the kernel driver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DriverSums {
    /// Ioctls on the GPU's devices.
    pub calls: u64,
    /// Ioctls that failed, by the answer of the kernel or the driver.
    pub errors: u64,
    /// Time for which ioctls blocked threads, ns.
    pub time_ns: u64,
    /// Ioctls that allocated, mapped or moved memory.
    pub memory_calls: u64,
    /// Memory for which ioctls asked, bytes, as far as the ioctls' arguments tell.
    pub allocated_bytes: u64,
    /// Memory that ioctls mapped or moved, bytes, as far as the ioctls' arguments tell.
    pub mapped_bytes: u64,
}

impl DriverSums {
    fn with(self, other: Self, join: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            calls: join(self.calls, other.calls),
            errors: join(self.errors, other.errors),
            time_ns: join(self.time_ns, other.time_ns),
            memory_calls: join(self.memory_calls, other.memory_calls),
            allocated_bytes: join(self.allocated_bytes, other.allocated_bytes),
            mapped_bytes: join(self.mapped_bytes, other.mapped_bytes),
        }
    }

    // The sum saturates, because the bytes are a program's argument and can be any number.
    fn plus(self, other: Self) -> Self {
        self.with(other, u64::saturating_add)
    }
}

/// Rates of calls to the kernel driver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DriverRates {
    /// Ioctls a second.
    pub calls_per_s: u64,
    /// Time for which ioctls blocked threads in each second, added up over threads, parts per
    /// thousand. With several threads the time can exceed a second.
    pub blocked_permille: u64,
    /// Memory for which ioctls asked, bytes a second.
    pub allocated_bytes_per_s: u64,
    /// Memory that ioctls mapped or moved, bytes a second.
    pub mapped_bytes_per_s: u64,
}

/// The sums and rates of a tenant's calls to the kernel driver.
#[derive(Debug, Clone, Default)]
pub struct DriverSignals {
    /// The counts of each process at the last observation.
    by_process: BTreeMap<u32, DriverSums>,
    sums: DriverSums,
    recent: DriverSums,
    recent_ns: u64,
    looked_ns: u64,
}

impl DriverSignals {
    /// Adds the new calls of the tenant's processes. The counts, by pid, are those since the start
    /// of each process. `lives` returns whether any process has a pid.
    pub fn observe(
        &mut self,
        now_ns: u64,
        processes: impl Iterator<Item = (u32, DriverSums)>,
        lives: impl Fn(u32) -> bool,
    ) {
        let mut since = DriverSums::default();
        for (pid, sums) in processes {
            let before = self.by_process.insert(pid, sums).unwrap_or_default();
            // If the count is lower than before, another process now has the pid.
            let before = if sums.calls < before.calls { DriverSums::default() } else { before };
            since = since.plus(sums.with(before, u64::saturating_sub));
        }
        self.by_process.retain(|pid, _| lives(*pid));
        self.sums = self.sums.plus(since);
        let elapsed_ns = if self.looked_ns == 0 { 0 } else { now_ns.saturating_sub(self.looked_ns) };
        self.looked_ns = now_ns;
        self.recent = self.recent.plus(since);
        self.recent_ns = self.recent_ns.saturating_add(elapsed_ns);
        while self.recent_ns > SPAN_NS {
            self.recent = self.recent.with(self.recent, |amount, _| amount / 2);
            self.recent_ns /= 2;
        }
    }

    /// Returns the counts since the tenant appeared. The counts lack the last second of processes
    /// that have ended.
    pub fn sums(&self) -> DriverSums {
        self.sums
    }

    /// Returns the rates over the last seconds.
    pub fn lately(&self) -> DriverRates {
        let span_ns = u128::from(self.recent_ns);
        let rate = |amount: u64, unit: u128| match span_ns {
            0 => 0,
            span_ns => u64::try_from((u128::from(amount) * unit + span_ns / 2) / span_ns).unwrap_or(u64::MAX),
        };
        DriverRates {
            calls_per_s: rate(self.recent.calls, SECOND_NS),
            blocked_permille: rate(self.recent.time_ns, PERMILLE),
            allocated_bytes_per_s: rate(self.recent.allocated_bytes, SECOND_NS),
            mapped_bytes_per_s: rate(self.recent.mapped_bytes, SECOND_NS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn calls(calls: u64) -> DriverSums {
        DriverSums {
            calls,
            time_ns: calls * SECOND / 100,
            allocated_bytes: calls << 20,
            ..DriverSums::default()
        }
    }

    /// Observes each second.
    fn looked(looks: &[&[(u32, u64)]]) -> DriverSignals {
        let mut signals = DriverSignals::default();
        for (second, look) in looks.iter().enumerate() {
            let processes = look.iter().map(|(pid, count)| (*pid, calls(*count)));
            signals.observe((second as u64 + 1) * SECOND, processes, |pid| {
                look.iter().any(|(living, _)| *living == pid)
            });
        }
        signals
    }

    #[test]
    fn the_calls_of_processes_are_added_up_and_stay_when_they_end() {
        assert_eq!(looked(&[&[(1, 5)], &[(1, 7), (2, 10)], &[(2, 10)]]).sums(), calls(17));
    }

    #[test]
    fn a_number_that_comes_again_is_another_process() {
        assert_eq!(looked(&[&[(1, 5)], &[], &[(1, 6)]]).sums(), calls(11));
        assert_eq!(looked(&[&[(1, 5)], &[(1, 2)]]).sums(), calls(7), "between two looks");
    }

    #[test]
    fn a_process_that_leaves_its_tenant_and_comes_back_is_not_counted_twice() {
        let mut signals = DriverSignals::default();
        signals.observe(SECOND, [(1, calls(5))].into_iter(), |_| true);
        signals.observe(2 * SECOND, std::iter::empty(), |_| true);
        signals.observe(3 * SECOND, [(1, calls(6))].into_iter(), |_| true);
        assert_eq!(signals.sums(), calls(6));
    }

    #[test]
    fn rates_are_of_the_last_seconds() {
        assert_eq!(looked(&[&[(1, 5)]]).lately(), DriverRates::default(), "of no time there is no rate");
        let steady: Vec<[(u32, u64); 1]> = (0..30).map(|second| [(1, 50 * second)]).collect();
        let steady: Vec<&[(u32, u64)]> = steady.iter().map(|look| &look[..]).collect();
        let rates = looked(&steady).lately();
        assert_eq!((rates.calls_per_s, rates.blocked_permille), (50, 500));
        assert_eq!((rates.allocated_bytes_per_s, rates.mapped_bytes_per_s), (50 << 20, 0));
        let mut over = looked(&steady);
        for second in 0..60 {
            over.observe((31 + second) * SECOND, [(1, calls(50 * 29))].into_iter(), |_| true);
        }
        assert_eq!(over.lately(), DriverRates::default());
    }

    #[test]
    fn no_amount_that_a_program_names_is_too_large() {
        let mut signals = DriverSignals::default();
        for second in 1..10 {
            let most = DriverSums { calls: second, allocated_bytes: u64::MAX, ..DriverSums::default() };
            signals.observe(second * SECOND, [(second as u32, most)].into_iter(), |_| true);
        }
        assert_eq!(signals.sums().allocated_bytes, u64::MAX);
        assert!(signals.lately().allocated_bytes_per_s > 0);
    }
}
