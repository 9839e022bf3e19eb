//! The true time of a run by its part of the SMs and its batch, from measured points.

use anyhow::{Result, ensure};
use deepres_policy::packing::profile::Measured;
use std::collections::BTreeMap;

/// All SMs, percent.
pub const WHOLE: usize = 100;

/// A measured curve. Between points the time is linear in the batch, and in the inverse of the
/// part.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// For each batch, the parts in rising order, percent, with the time of a run, ms.
    batches: Vec<(u32, Vec<(usize, f64)>)>,
}

impl Curve {
    /// Takes points of a batch, a part, percent, and a time, ms.
    ///
    /// # Errors
    /// There is no point, or one is out of range.
    pub fn new(points: impl IntoIterator<Item = (u32, usize, f64)>) -> Result<Self> {
        let mut batches: BTreeMap<u32, BTreeMap<usize, f64>> = BTreeMap::new();
        for (batch, part, ms) in points {
            ensure!(batch > 0, "a batch of 0 requests: give at least 1");
            ensure!((1..=WHOLE).contains(&part), "a part of {part} %: give 1 to 100");
            ensure!(ms.is_finite() && ms > 0.0, "a time of {ms} ms: give more than 0");
            batches.entry(batch).or_default().insert(part, ms);
        }
        ensure!(!batches.is_empty(), "no point: give the time of a run at one part at least");
        let batches =
            batches.into_iter().map(|(batch, parts)| (batch, parts.into_iter().collect())).collect();
        Ok(Self { batches })
    }

    /// Returns the time of a run of this many requests on this part, ms.
    pub fn time_ms(&self, part: usize, batch: u32) -> f64 {
        self.by_batch(batch, |parts| time_ms(parts, part))
    }

    /// Returns the area of a run: the least product of part and time, in ms of the whole GPU.
    pub fn area_ms(&self, batch: u32) -> f64 {
        let area = |parts: &[(usize, f64)]| {
            let each = parts.iter().map(|&(part, ms)| part as f64 * ms / WHOLE as f64);
            each.fold(f64::INFINITY, f64::min)
        };
        self.by_batch(batch, area)
    }

    fn by_batch(&self, batch: u32, figure: impl Fn(&[(usize, f64)]) -> f64) -> f64 {
        let at = self.batches.partition_point(|(measured, _)| *measured < batch);
        let above = self.batches.get(at);
        let below = at.checked_sub(1).map(|below| &self.batches[below]);
        match (below, above) {
            (Some((low, below)), Some((high, above))) => {
                let along = f64::from(batch - low) / f64::from(high - low);
                figure(below) * (1.0 - along) + figure(above) * along
            }
            (None, Some((_, parts))) => figure(parts),
            (Some((most, parts)), None) => figure(parts) * f64::from(batch) / f64::from(*most),
            (None, None) => 0.0,
        }
    }

    /// Returns the batches with measurements.
    pub fn batches(&self) -> Vec<u32> {
        self.batches.iter().map(|(batch, _)| *batch).collect()
    }

    /// Returns the parts at which a tenant may run, percent: multiples of `step` from the narrowest
    /// measured part on, and the measured parts.
    pub fn parts(&self, step: usize) -> Vec<usize> {
        let measured = self.batches.iter().flat_map(|(_, parts)| parts.iter().map(|(part, _)| *part));
        let mut parts: Vec<usize> = measured.collect();
        let least = parts.iter().copied().min().unwrap_or(WHOLE);
        if step > 0 {
            parts.extend((least.next_multiple_of(step)..=WHOLE).step_by(step));
        }
        parts.sort_unstable();
        parts.dedup();
        parts
    }

    /// Returns the measurements.
    pub fn measured(&self) -> Vec<Measured> {
        let each = self.batches.iter().flat_map(|(batch, parts)| {
            parts.iter().map(|&(part_percent, ms)| Measured {
                batch: *batch,
                part_percent,
                time_ns: ms * 1e6,
            })
        });
        each.collect()
    }
}

/// Returns the time on a part, ms, from the times on parts in rising order.
fn time_ms(parts: &[(usize, f64)], part: usize) -> f64 {
    let at = parts.partition_point(|(measured, _)| *measured < part);
    let above = parts.get(at);
    let below = at.checked_sub(1).map(|below| parts[below]);
    let narrow = |part: usize| 1.0 / part.max(1) as f64;
    match (below, above) {
        (Some((low, slow)), Some(&(high, quick))) => {
            let along = (narrow(part) - narrow(high)) / (narrow(low) - narrow(high));
            slow * along + quick * (1.0 - along)
        }
        // Below the narrowest measured part, the area stays.
        (None, Some(&(least, ms))) => ms * least as f64 * narrow(part),
        (Some((_, ms)), None) => ms,
        (None, None) => 0.0,
    }
}
