//! The comparison of a plan with no plan, by the measured work of the tenants.
//!
//! The tenants follow the plan in one stint of time, and do not follow it in another one. The two
//! stints are a *pair*. The gain of a pair is the ratio of the work in both stints, less one. A
//! plan is better if the mean gain of the last pairs exceeds its noise, and no tenant's work falls
//! by more than the noise. The noise is the bound of the 95 % confidence interval of the mean
//! (Student's t).
//!
//! A rule that looks at the gain again and again finds a gain by chance sooner or later. So the
//! rule believes in a gain only after [`MOST_PAIRS`] pairs. A harm ends the trial earlier, because
//! a wrong verdict of harm costs only the gain.
//!
//! By turns, the stint with the plan is the first and the second one of its pair. So if the
//! tenants' work grows or shrinks all the time, this drift is noise, and not a gain.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The least number of pairs for a verdict of harm. With fewer pairs, the interval is wider than
/// most losses: for three pairs, Student's t is 4.3.
pub const LEAST_PAIRS: usize = 4;
/// After this many pairs, the trial keeps or drops a plan. The same number of latest pairs decides
/// about a plan that is kept. With more pairs, the interval hardly gets narrower: Student's t falls
/// from 2.36 to 1.96.
pub const MOST_PAIRS: usize = 8;
/// Student's t for a confidence of 95 %, for [`LEAST_PAIRS`] to [`MOST_PAIRS`] pairs.
const STUDENT: [f64; MOST_PAIRS - LEAST_PAIRS + 1] = [3.182, 2.776, 2.571, 2.447, 2.365];

/// The rule's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The pairs do not decide yet.
    Open,
    /// The plan is better than no plan by more than the noise.
    Better,
    /// The plan is not better by more than the noise.
    NotBetter,
    /// With the plan, the tenant of this number does less work, by more than the noise.
    Harms(usize),
}

/// A mean of gains, and the variance of this mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// The mean gain, as a part of the work without a plan.
    pub gain: f64,
    /// The square of the noise. The square root needs the standard library.
    pub noise_squared: f64,
}

impl Measured {
    /// Returns whether the gain differs from zero by more than the noise.
    fn is_clear(self) -> bool {
        self.gain * self.gain > self.noise_squared
    }
}

/// The pairs that were measured.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trial {
    /// The gain of all tenants together, and the gain of each tenant.
    pairs: VecDeque<(f64, Vec<f64>)>,
    /// Whether the next pair begins with the stint without the plan.
    begins_without: bool,
}

impl Trial {
    /// Returns whether the next pair begins with the stint without the plan.
    pub fn begins_without(&self) -> bool {
        self.begins_without
    }

    /// Adds a pair of stints: the work of each tenant for each second, with and without the plan,
    /// in any one unit.
    ///
    /// # Errors
    /// The number of a tenant that did no work without the plan. The pair does not count.
    pub fn add(&mut self, with: &[f64], without: &[f64]) -> Result<(), usize> {
        let gain = |with: f64, without: f64| with / without - 1.0;
        if let Some(idle) = without.iter().position(|work| *work <= 0.0) {
            return Err(idle);
        }
        self.begins_without = !self.begins_without;
        if self.pairs.len() == MOST_PAIRS {
            self.pairs.pop_front();
        }
        let each = with.iter().zip(without).map(|(with, without)| gain(*with, *without)).collect();
        self.pairs.push_back((gain(with.iter().sum(), without.iter().sum()), each));
        Ok(())
    }

    /// Returns the number of pairs that decide.
    pub fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// Returns the measured gain of all tenants together; `None` before [`LEAST_PAIRS`] pairs.
    pub fn measured(&self) -> Option<Measured> {
        self.mean_of(|(all, _)| *all)
    }

    /// Returns the verdict on the plan.
    pub fn verdict(&self) -> Verdict {
        let Some(all) = self.measured() else { return Verdict::Open };
        let tenants = self.pairs.front().map_or(0, |(_, each)| each.len());
        let loses = |tenant: &usize| {
            let of = |pair: &(f64, Vec<f64>)| pair.1.get(*tenant).copied().unwrap_or(0.0);
            self.mean_of(of).is_some_and(|own| own.gain < 0.0 && own.is_clear())
        };
        if let Some(tenant) = (0..tenants).find(loses) {
            return Verdict::Harms(tenant);
        }
        match all.gain > 0.0 && all.is_clear() {
            _ if self.pairs.len() < MOST_PAIRS => Verdict::Open,
            true => Verdict::Better,
            false => Verdict::NotBetter,
        }
    }

    fn mean_of(&self, of: impl Fn(&(f64, Vec<f64>)) -> f64) -> Option<Measured> {
        let count = self.pairs.len();
        let student = STUDENT.get(count.checked_sub(LEAST_PAIRS)?)?;
        let gain = self.pairs.iter().map(&of).sum::<f64>() / count as f64;
        let squares = self.pairs.iter().map(|pair| (of(pair) - gain) * (of(pair) - gain)).sum::<f64>();
        let of_mean = squares / ((count - 1) * count) as f64;
        Some(Measured { gain, noise_squared: student * student * of_mean })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn trial(pairs: &[[f64; 2]]) -> Trial {
        let mut trial = Trial::default();
        pairs.iter().for_each(|with| trial.add(with, &[1.0, 1.0]).unwrap());
        trial
    }

    #[test]
    fn a_plan_is_better_only_if_its_gain_exceeds_its_noise() {
        assert_eq!(trial(&[[1.1, 1.1]; MOST_PAIRS - 1]).verdict(), Verdict::Open, "too few pairs");
        assert_eq!(trial(&[[1.1, 1.1]; MOST_PAIRS]).verdict(), Verdict::Better);
        let scattered = [[1.3, 1.3], [0.9, 0.9], [1.3, 1.3], [0.9, 0.9]];
        assert_eq!(trial(&scattered).verdict(), Verdict::Open, "10 % with a noise of 37 %");
        assert_eq!(trial(&[scattered, scattered].concat()).verdict(), Verdict::NotBetter);
        assert_eq!(trial(&[[1.0, 1.0]; MOST_PAIRS]).verdict(), Verdict::NotBetter);
        let measured = trial(&scattered).measured().unwrap();
        assert!((measured.gain - 0.1).abs() < 1e-9, "{measured:?}");
        // The standard deviation is 0.231, that of the mean 0.115, and Student's t 3.182.
        assert!((measured.noise_squared.sqrt() - 0.367).abs() < 1e-3, "{measured:?}");
    }

    #[test]
    fn a_plan_that_takes_work_from_one_tenant_is_refused_whatever_all_gain() {
        assert_eq!(trial(&[[1.5, 0.9]; LEAST_PAIRS - 1]).verdict(), Verdict::Open, "too few pairs");
        assert_eq!(trial(&[[1.5, 0.9]; LEAST_PAIRS]).verdict(), Verdict::Harms(1));
        let unclear = [[1.5, 0.8], [1.5, 1.1]].repeat(MOST_PAIRS / 2);
        assert_eq!(trial(&unclear).verdict(), Verdict::Better, "within the noise of the tenant");
    }

    /// Returns the kept ones of trials of a plan that does nothing, if the stints of both tenants
    /// differ at random.
    fn kept_without_gain(trials: u32) -> u32 {
        // Marsaglia's xorshift. A sum of twelve parts is nearly normal.
        let mut state = 88_172_645_463_325_252_u64;
        let mut part = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 53) as f64 - 0.5
        };
        let mut work = || 1.0 + 0.02 * (0..12).map(|_| part()).sum::<f64>();
        let mut is_kept = || {
            let mut trial = Trial::default();
            while trial.verdict() == Verdict::Open {
                let work = work();
                trial.add(&[work, work], &[1.0, 1.0]).unwrap();
            }
            trial.verdict() == Verdict::Better
        };
        (0..trials).filter(|_| is_kept()).count() as u32
    }

    #[test]
    fn a_plan_without_gain_is_kept_in_one_of_forty_trials() {
        // The interval of 95 % leaves 2.5 % above it. A rule that looked after each pair kept 6 %.
        let kept = kept_without_gain(4_000);
        assert!(kept <= 4_000 * 3 / 100, "{kept}");
    }

    #[test]
    fn a_kept_plan_is_judged_by_its_latest_pairs_and_not_by_pairs_without_work() {
        let mut kept = trial(&[[1.1, 1.1]; MOST_PAIRS]);
        assert_eq!(kept.add(&[5.0, 5.0], &[1.0, 0.0]), Err(1));
        assert_eq!((kept.pairs(), kept.verdict()), (MOST_PAIRS, Verdict::Better));
        (0..MOST_PAIRS).for_each(|_| kept.add(&[0.99, 1.0], &[1.0, 1.0]).unwrap());
        assert_eq!(kept.verdict(), Verdict::Harms(0));
    }

    #[test]
    fn work_that_shrinks_or_grows_all_the_time_is_no_gain_and_no_harm() {
        for growth in [0.99_f64, 1.01] {
            let mut trial = Trial::default();
            let work = |stint: i32| [growth.powi(stint), growth.powi(stint)];
            for pair in 0..MOST_PAIRS as i32 {
                let (first, second) = (work(2 * pair), work(2 * pair + 1));
                let (with, without) = if trial.begins_without() { (second, first) } else { (first, second) };
                trial.add(&with, &without).unwrap();
                assert!([Verdict::Open, Verdict::NotBetter].contains(&trial.verdict()), "{trial:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_plan_that_never_gains_is_never_better(
            losses in proptest::collection::vec((0.0f64..0.5, 0.0f64..0.5), 0..20),
        ) {
            let mut trial = Trial::default();
            for (one, other) in losses {
                trial.add(&[1.0 - one, 1.0 - other], &[1.0, 1.0]).unwrap();
                prop_assert!(trial.verdict() != Verdict::Better);
            }
        }
    }
}
