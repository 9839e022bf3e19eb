//! The cost of the latest hand-offs, and their quantiles.

/// Hand-offs remembered: enough for a 99th percentile, few enough to follow a change within seconds.
const REMEMBERED: usize = 256;
/// Hand-offs needed before their mean is believed.
const BELIEVED_FROM: usize = 8;
/// A hand-off counts as so many times the median at most.
const MEDIANS_COUNTED: u64 = 16;

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

    /// The mean, once there are enough samples for one. None counts as more than some medians: that a busy machine holds one up now and then is part of what
    /// they cost, that a process was stopped in one is not.
    pub fn usual_ns(&self) -> Option<u64> {
        let samples = self.samples_ns.len();
        (samples >= BELIEVED_FROM).then(|| {
            let most_ns = self.quantile_ns(50).saturating_mul(MEDIANS_COUNTED);
            let sum_ns: u64 = self.samples_ns.iter().map(|sample_ns| (*sample_ns).min(most_ns)).sum();
            sum_ns / samples as u64
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
