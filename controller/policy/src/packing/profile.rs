//! The time of a model's run, by its part of the SMs and its batch.
//!
//! A run has work that more SMs make shorter, and work that they do not. Both grow with the batch:
//! T(S, b) = max(floor, (a0 + a1 b) / S + c0 + c1 b), with S as a part of all SMs. The floor is the
//! time of the host, if the program is bound by it.

use alloc::vec::Vec;
use core::fmt;

use super::knapsack::WHOLE_PERCENT;

/// A measurement of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Requests in one run.
    pub batch: u32,
    /// The part of the SMs, percent: 1 to 100.
    pub part_percent: usize,
    /// The time of the run, ns: more than 0.
    pub time_ns: f64,
}

impl Measured {
    /// Returns whether the figures are in range: a batch of at least 1, a part of 1 to 100 percent,
    /// a positive time.
    pub fn is_usable(&self) -> bool {
        let is_time = self.time_ns.is_finite() && self.time_ns > 0.0;
        self.batch > 0 && (1..=WHOLE_PERCENT).contains(&self.part_percent) && is_time
    }
}

/// The reason for which measurements have no fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// There is no measurement.
    Nothing,
    /// A measurement has a batch of 0, a part out of 1 to 100 percent, or a time that is not
    /// positive. The figure is its position.
    OutOfRange(usize),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("a profile needs a measurement"),
            Self::OutOfRange(position) => write!(
                f,
                "measurement {position} is out of range: the batch is at least 1, the part 1 to 100 percent, and the \
                 time positive"
            ),
        }
    }
}

impl core::error::Error for Unfit {}

/// The number of terms beside the floor.
const TERMS: usize = 4;
/// The most floors that a fit tries.
const MOST_FLOORS: usize = 64;
/// A measurement lies on the floor if it is at most this many times the floor.
const ON_FLOOR: f64 = 1.02;
/// One in this number of measurements may have a larger relative error than the error of the fit.
const ONE_IN: usize = 10;
/// The least pivot of a term. With a smaller pivot, the measurements say nothing about the term,
/// and the fit leaves it out.
const LEAST_PIVOT: f64 = 1e-9;

/// A fitted profile.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Profile {
    /// The least time of a run, ns.
    pub floor_ns: f64,
    /// The terms a0, a1, c0 and c1, ns.
    pub terms_ns: [f64; TERMS],
}

impl Profile {
    /// Fits a profile to measurements, by least squares of relative errors. Tries measured times as
    /// the floor, and takes the profile whose 90th percentile of the relative error is least.
    ///
    /// # Errors
    /// There is no measurement, or one is out of range.
    pub fn fit(measured: &[Measured]) -> Result<Self, Unfit> {
        if let Some(position) = measured.iter().position(|one| !one.is_usable()) {
            return Err(Unfit::OutOfRange(position));
        }
        let mut floors: Vec<f64> = measured.iter().map(|one| one.time_ns).collect();
        floors.sort_by(f64::total_cmp);
        floors.dedup();
        floors.truncate(MOST_FLOORS);
        let without = core::iter::once(0.0);
        let fits = without.chain(floors).filter_map(|floor_ns| {
            let above: Vec<Measured> =
                measured.iter().copied().filter(|one| one.time_ns > ON_FLOOR * floor_ns).collect();
            let profile = (!above.is_empty()).then(|| Self { floor_ns, terms_ns: least_squares(&above) })?;
            Some((profile.error(measured), profile))
        });
        let best = fits.min_by(|(one, _), (other, _)| one.total_cmp(other));
        best.filter(|_| !measured.is_empty()).map(|(_, profile)| profile).ok_or(Unfit::Nothing)
    }

    /// Returns the relative error that nine in ten measurements do not exceed.
    pub fn error(&self, measured: &[Measured]) -> f64 {
        let error = |one: &Measured| (self.time_ns(one.part_percent, one.batch) / one.time_ns - 1.0).abs();
        let mut errors: Vec<f64> = measured.iter().map(error).collect();
        errors.sort_by(f64::total_cmp);
        let rank = errors.len() * (ONE_IN - 1) / ONE_IN;
        errors.get(rank.min(errors.len().saturating_sub(1))).copied().unwrap_or(0.0)
    }

    /// Returns the time of a run, ns: at least 1.
    pub fn time_ns(&self, part_percent: usize, batch: u32) -> f64 {
        let sum: f64 =
            terms(part_percent, batch).iter().zip(&self.terms_ns).map(|(one, term)| one * term).sum();
        sum.max(self.floor_ns).max(1.0)
    }

    /// Returns the knee: the least part, percent, on which a run takes at most `1 + tolerance`
    /// times its time on all SMs.
    pub fn knee_percent(&self, batch: u32, tolerance: f64) -> usize {
        let most_ns = self.time_ns(WHOLE_PERCENT, batch) * (1.0 + tolerance);
        let is_enough = |part: &usize| self.time_ns(*part, batch) <= most_ns;
        (1..=WHOLE_PERCENT).find(is_enough).unwrap_or(WHOLE_PERCENT)
    }

    /// Returns the efficacy: requests a second, divided by the run's time in seconds and by the
    /// part of the SMs (1 for all SMs).
    pub fn efficacy(&self, part_percent: usize, batch: u32) -> f64 {
        let time_s = self.time_ns(part_percent, batch) / 1e9;
        f64::from(batch) / (time_s * time_s * part_percent as f64 / WHOLE_PERCENT as f64)
    }

    /// Returns the batch of greatest efficacy on this part. Requests are to be answered within
    /// `slo_ns`. A run of the batch takes at most half of `slo_ns`, and at most `slo_ns` less
    /// `waiting_ns`. Returns nothing if no batch is so quick.
    pub fn best_batch(
        &self,
        part_percent: usize,
        batches: &[u32],
        slo_ns: f64,
        waiting_ns: f64,
    ) -> Option<u32> {
        let most_ns = (slo_ns / 2.0).min(slo_ns - waiting_ns);
        let quick = batches.iter().filter(|batch| self.time_ns(part_percent, **batch) <= most_ns);
        let efficacy = |batch: &u32| self.efficacy(part_percent, *batch);
        quick.copied().max_by(|one, other| efficacy(one).total_cmp(&efficacy(other)))
    }
}

/// Returns the factors of the terms.
fn terms(part_percent: usize, batch: u32) -> [f64; TERMS] {
    let (narrow, batch) = (WHOLE_PERCENT as f64 / part_percent.max(1) as f64, f64::from(batch));
    [narrow, batch * narrow, 1.0, batch]
}

/// Returns the terms of least squared relative error. A term about which the measurements tell
/// nothing is 0.
fn least_squares(measured: &[Measured]) -> [f64; TERMS] {
    let mut sums = [[0.0; TERMS + 1]; TERMS];
    for one in measured {
        let row = terms(one.part_percent, one.batch).map(|term| term / one.time_ns);
        for (sums, left) in sums.iter_mut().zip(row) {
            for (sum, right) in sums.iter_mut().zip(row.into_iter().chain([1.0])) {
                *sum += left * right;
            }
        }
    }
    let scale: [f64; TERMS] = core::array::from_fn(|term| sums[term][term]);
    let mut pivots = [None; TERMS];
    for (column, scale) in scale.into_iter().enumerate() {
        let is_free = |row: &usize| !pivots.contains(&Some(*row));
        let greatest = (0..TERMS)
            .filter(is_free)
            .max_by(|&one, &other| sums[one][column].abs().total_cmp(&sums[other][column].abs()));
        let Some(pivot) = greatest.filter(|&row| sums[row][column].abs() > LEAST_PIVOT * scale) else {
            continue;
        };
        pivots[column] = Some(pivot);
        let of_pivot = sums[pivot].map(|sum| sum / sums[pivot][column]);
        for (row, sums) in sums.iter_mut().enumerate() {
            let factor = sums[column];
            if row == pivot {
                *sums = of_pivot;
            } else {
                for (sum, pivot) in sums.iter_mut().zip(of_pivot) {
                    *sum -= factor * pivot;
                }
            }
        }
    }
    pivots.map(|pivot| pivot.map_or(0.0, |row| sums[row][TERMS]))
}
