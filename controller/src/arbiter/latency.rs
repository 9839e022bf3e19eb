//! The cost of the latest hand-offs, and their quantiles.

/// Hand-offs remembered: enough for a 99th percentile, few enough to follow a change within seconds.
const REMEMBERED: usize = 256;
/// Hand-offs needed before the median is believed.
const BELIEVED_FROM: usize = 8;

/// The latest samples, ns.
#[derive(Debug, Default)]
pub struct Latency {
    samples_ns: Vec<u64>,
    next: usize,
    /// Of all samples ever.
    pub total_ns: u64,
}

impl Latency {
    /// Adds one.
    pub fn add(&mut self, sample_ns: u64) {
        self.total_ns = self.total_ns.saturating_add(sample_ns);
        if self.samples_ns.len() < REMEMBERED {
            self.samples_ns.push(sample_ns);
        } else {
            self.samples_ns[self.next] = sample_ns;
            self.next = (self.next + 1) % REMEMBERED;
        }
    }

    /// The value that `percent` of the samples do not exceed; 0 without samples.
    pub fn quantile_ns(&self, percent: usize) -> u64 {
        let mut sorted = self.samples_ns.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
        sorted.get(rank).copied().unwrap_or(0)
    }

    /// The median, once there are enough samples for one.
    pub fn median_ns(&self) -> Option<u64> {
        (self.samples_ns.len() >= BELIEVED_FROM).then(|| self.quantile_ns(50))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_latest_samples() {
        let mut latency = Latency::default();
        assert_eq!((latency.quantile_ns(50), latency.median_ns()), (0, None));
        for sample_ns in 1..=100 {
            latency.add(sample_ns);
        }
        assert_eq!(
            (latency.quantile_ns(50), latency.quantile_ns(99), latency.median_ns()),
            (50, 99, Some(50))
        );
        for _ in 0..REMEMBERED {
            latency.add(7);
        }
        assert_eq!((latency.quantile_ns(1), latency.quantile_ns(99)), (7, 7));
    }
}
