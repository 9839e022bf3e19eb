//! The cost of the latest hand-offs, or the time of the latest turns, and its quantiles.

/// Number of remembered samples. This many are enough for a 99th percentile, and few enough to
/// follow a change within seconds.
const REMEMBERED: usize = 256;
/// The arbiter uses the mean cost from this number of samples on.
const BELIEVED_FROM: usize = 8;
/// The most that a hand-off counts in the mean, as a multiple of the median.
const MEDIANS_COUNTED: u64 = 16;

/// The costs of the latest hand-offs, or the times of the latest turns (samples), ns.
#[derive(Debug)]
pub struct Latency {
    samples_ns: [u64; REMEMBERED],
    count: usize,
    next: usize,
    /// The sum of all samples ever, ns.
    pub total_ns: u64,
}

impl Default for Latency {
    fn default() -> Self {
        Self { samples_ns: [0; REMEMBERED], count: 0, next: 0, total_ns: 0 }
    }
}

impl Latency {
    /// Adds a sample, ns.
    pub fn add(&mut self, sample_ns: u64) {
        self.total_ns = self.total_ns.saturating_add(sample_ns);
        self.samples_ns[self.next] = sample_ns;
        self.next = (self.next + 1) % REMEMBERED;
        self.count = (self.count + 1).min(REMEMBERED);
    }

    fn samples_ns(&self) -> &[u64] {
        &self.samples_ns[..self.count]
    }

    /// Returns the value that `percent` of the samples do not exceed, ns; 0 without samples.
    pub fn quantile_ns(&self, percent: usize) -> u64 {
        let mut sorted = self.samples_ns;
        let sorted = &mut sorted[..self.count];
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
        sorted.get(rank).copied().unwrap_or(0)
    }

    /// Returns the mean cost of a hand-off, ns, or the median if the median is greater. Returns
    /// `None` with fewer than `BELIEVED_FROM` samples. In the mean, each sample counts as at most
    /// `MEDIANS_COUNTED` medians. So the delay of a busy machine is part of the cost, and a time in
    /// which a process was stopped is not. Some hand-offs cost less than most, because the next
    /// tenant's work arrives during the drain.
    pub fn usual_ns(&self) -> Option<u64> {
        let samples = self.samples_ns().len();
        (samples >= BELIEVED_FROM).then(|| {
            let median_ns = self.quantile_ns(50);
            let most_ns = median_ns.saturating_mul(MEDIANS_COUNTED);
            let sum_ns: u64 = self.samples_ns().iter().map(|sample_ns| (*sample_ns).min(most_ns)).sum();
            (sum_ns / samples as u64).max(median_ns)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_latest_samples() {
        let mut latency = Latency::default();
        assert_eq!((latency.quantile_ns(50), latency.usual_ns()), (0, None));
        for sample_ns in 1..=100 {
            latency.add(sample_ns);
        }
        assert_eq!(
            (latency.quantile_ns(50), latency.quantile_ns(99), latency.usual_ns()),
            (50, 99, Some(50))
        );
        latency.add(1_000_000);
        assert_eq!(latency.usual_ns(), Some((5050 + 16 * 51) / 101), "one that was held up says little");
        for _ in 0..REMEMBERED {
            latency.add(7);
        }
        assert_eq!((latency.quantile_ns(1), latency.quantile_ns(99)), (7, 7));
    }
}
