//! The fitted curve of a profile, and what follows from it, as text.

use super::NS_PER_MS;
use crate::ps::print_table;
use deepres_model::fitted::KNEE_TOLERANCE;
use deepres_model::profile::{Point, Profile};
use deepres_model::text::harmless;
use deepres_policy::packing::knapsack::WHOLE_PERCENT;
use deepres_policy::packing::profile::{Profile as Fit, Unfit};
use std::io::{self, Write};

/// The host limits the speed of a request that takes this many times its GPU time.
const HOST_BOUND: f64 = 1.5;
/// The width of the chart of a batch, columns.
const CHART: usize = 20;
/// The bars of the chart, from the lowest to the highest.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A profile with its fitted curve.
pub struct Curve<'a> {
    /// The measurements.
    pub profile: &'a Profile,
    /// The measured batches in rising order.
    pub batches: Vec<u32>,
    /// The measured parts in rising order, percent.
    pub parts: Vec<usize>,
    fit: Fit,
}

/// The best batch and part for an SLO.
struct Best {
    batch: u32,
    part: usize,
    efficacy: f64,
}

impl<'a> Curve<'a> {
    /// Fits the curve.
    ///
    /// # Errors
    /// The profile has no point.
    pub fn of(profile: &'a Profile) -> Result<Self, Unfit> {
        let fit = Fit::fit(&profile.measured())?;
        Ok(Self { profile, batches: profile.batches(), parts: profile.parts_percent(), fit })
    }

    /// Returns whether more than one part was measured, so that the curve is known.
    pub fn is_known(&self) -> bool {
        self.parts.len() > 1
    }

    /// Returns the fitted time, ms.
    pub fn ms(&self, part: usize, batch: u32) -> f64 {
        self.fit.time_ns(part, batch) / NS_PER_MS
    }

    /// Returns the knee, percent. The knee is at least as wide as the narrowest measured part.
    /// Returns `None` if the curve is not known.
    pub fn knee(&self, batch: u32) -> Option<usize> {
        let least = *self.parts.first()?;
        self.is_known().then(|| self.fit.knee_percent(batch, KNEE_TOLERANCE).max(least))
    }

    /// Returns the batch and the part of greatest efficacy, of those whose requests take at most
    /// half of the SLO. The time of the host has to fit into the SLO too.
    fn best(&self, slo_ms: f64) -> Option<Best> {
        let host_ms = |batch| self.profile.widest(batch).map_or(0.0, Point::host_ms);
        let each = self.parts.iter().flat_map(|&part| {
            self.batches.iter().filter_map(move |&batch| {
                let host_ns = host_ms(batch) * NS_PER_MS;
                let batch = self.fit.best_batch(part, &[batch], slo_ms * NS_PER_MS, host_ns)?;
                Some(Best { batch, part, efficacy: self.fit.efficacy(part, batch) })
            })
        });
        each.max_by(|one, other| one.efficacy.total_cmp(&other.efficacy))
    }

    /// Returns the warnings about programs whose speed the host limits.
    pub fn warnings(&self) -> Vec<String> {
        let widest = self.batches.iter().filter_map(|batch| self.profile.widest(*batch));
        let bound = widest.filter(|point| point.ms + point.host_ms() > HOST_BOUND * point.ms);
        let warning = |point: &Point| {
            format!(
                "the host limits the program with batch {}: a request takes {}, of which {} is GPU time; a \
                 smaller part of the SMs gains no more than turns on the whole GPU",
                point.batch,
                ms(point.ms + point.host_ms()),
                ms(point.ms)
            )
        };
        bound.map(warning).collect()
    }

    /// Prints the measurements, the curve, and the figures that follow.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Profile { command, gpu, points, slo_ms, .. } = self.profile;
        writeln!(out, "{} on {}\n", harmless(&command.join(" ")), harmless(gpu))?;
        let head = ["SMs".to_owned()].into_iter();
        let head = head.chain(self.batches.iter().map(|batch| format!("batch {batch}")));
        let row = |part: &usize| {
            let cell =
                |batch: &u32| self.profile.point(*batch, *part).map_or("-".to_owned(), |one| ms(one.ms));
            [format!("{part} %")].into_iter().chain(self.batches.iter().map(cell)).collect()
        };
        let rows: Vec<Vec<String>> =
            [head.collect()].into_iter().chain(self.parts.iter().rev().map(row)).collect();
        writeln!(out, "GPU time of a request")?;
        print_table(&rows, out)?;

        let [a0, a1, c0, c1] = self.fit.terms_ns.map(|ns| ns / NS_PER_MS);
        if self.is_known() {
            writeln!(
                out,
                "\nT(S, b) = max({:.3}, ({a0:.3} {} b) / S {} {} b) ms; nine in ten of {} points are within {:.1} %",
                self.fit.floor_ns / NS_PER_MS,
                signed(a1),
                signed(c0),
                signed(c1),
                points.len(),
                100.0 * self.fit.error(&self.profile.measured())
            )?;
        } else {
            writeln!(out, "\nThe curve needs more parts of the SMs than one.")?;
        }
        writeln!(out)?;
        print_table(&self.figures(), out)?;
        let Some(slo_ms) = *slo_ms else { return Ok(()) };
        match self.best(slo_ms) {
            Some(Best { batch, part, .. }) => writeln!(
                out,
                "\nBest for an SLO of {}: batch {batch} on {part} % of the SMs, {} of GPU time, at most {:.0} requests/s",
                ms(slo_ms),
                ms(self.ms(part, batch)),
                f64::from(batch) * 1e3 / self.ms(part, batch)
            ),
            None => writeln!(out, "\nNo batch takes at most half of the SLO of {}.", ms(slo_ms)),
        }
    }

    /// Returns the table of the figures of each batch.
    fn figures(&self) -> Vec<Vec<String>> {
        let least = self.parts.first().copied().unwrap_or(WHOLE_PERCENT);
        let head = ["BATCH", "GPU TIME", "IN ALL", "KNEE", "AT KNEE", "EFFICACY"].map(str::to_owned);
        let chart = |chart: String| self.is_known().then_some(chart);
        let row = |batch: &u32| {
            let widest = self.profile.widest(*batch);
            let knee = self.knee(*batch);
            let at = knee.unwrap_or(WHOLE_PERCENT);
            let figures = [
                batch.to_string(),
                widest.map_or("-".to_owned(), |point| ms(point.ms)),
                widest.map_or("-".to_owned(), |point| ms(point.ms + point.host_ms())),
                knee.map_or("-".to_owned(), |knee| format!("{knee} %")),
                knee.map_or("-".to_owned(), |knee| ms(self.ms(knee, *batch))),
                format!("{:.0}", self.fit.efficacy(at, *batch)),
            ];
            figures.into_iter().chain(chart(self.chart(least, *batch))).collect()
        };
        let head = head.into_iter().chain(chart(format!("T FROM {least} % TO 100 %"))).collect();
        [head].into_iter().chain(self.batches.iter().map(row)).collect()
    }

    /// Returns the times from a part to all SMs as bars in a line. The longest time has a full bar.
    fn chart(&self, least: usize, batch: u32) -> String {
        let part = |column: usize| least + (WHOLE_PERCENT - least) * column / (CHART - 1);
        let times: Vec<f64> = (0..CHART).map(|column| self.ms(part(column), batch)).collect();
        let most = times.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let bar = |ms: &f64| {
            let height = (ms / most * BARS.len() as f64).ceil() as usize;
            BARS[height.clamp(1, BARS.len()) - 1]
        };
        times.iter().map(bar).collect()
    }
}

/// Returns a time with about three digits.
pub fn ms(ms: f64) -> String {
    match ms {
        ..0.9995 => format!("{ms:.3} ms"),
        0.9995..9.995 => format!("{ms:.2} ms"),
        _ => format!("{ms:.1} ms"),
    }
}

/// Returns a term with its sign before it.
fn signed(term: f64) -> String {
    let shown = format!("{:.3}", term.abs());
    format!("{} {shown}", if term < 0.0 && shown != "0.000" { '-' } else { '+' })
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A profile whose times are (1 + b) / S + 1 ms, but 5 ms at least. The host needs 8 ms more.
    pub fn profile() -> Profile {
        let each = [1, 2, 8].into_iter().flat_map(|batch| {
            [10, 20, 40, 60, 80, 100].into_iter().map(move |part_percent| {
                let ms = f64::max(5.0, (1.0 + f64::from(batch)) * 100.0 / part_percent as f64 + 1.0);
                Point { batch, part_percent, ms, latency_ms: Some(ms + 8.0), requests: Some(100) }
            })
        });
        Profile {
            command: ["./infer", "<{batch}>"].map(str::to_owned).into(),
            gpu: "H".to_owned(),
            slo_ms: None,
            rate_hz: None,
            points: each.collect(),
        }
    }

    fn printed(profile: &Profile) -> String {
        let mut out = Vec::new();
        Curve::of(profile).unwrap().print(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_page_has_the_curve_the_knee_and_the_efficacy() {
        let text = printed(&profile());
        assert!(
            text.contains(
                "T(S, b) = max(5.000, (1.000 + 1.000 b) / S + 1.000 + 0.000 b) ms; nine in ten of 18 points are within 0.0 %"
            ),
            "{text}"
        );
        let row = |begin: &str| {
            let line = text.lines().find(|line| line.starts_with(begin)).unwrap_or_default();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert!(row("40 %").ends_with("40 % 6.00 ms 8.50 ms 23.5 ms"), "{text}");
        // 2 / S + 1 = 1.05 * 5 at S = 0.47; 1 / (5.255 ms)^2 / 0.47.
        assert!(row("1 ").starts_with("1 5.00 ms 13.0 ms 48 % 5.17 ms 78"), "{text}");
        assert!(row("1 ").ends_with("█▆▅▄▄▃▃▃▃▂▂▂▂▂▂▂▂▂▂▂"), "{text}");
        assert!(!text.contains("SLO"), "{text}");
    }

    #[test]
    fn the_best_batch_leaves_half_of_the_slo_and_the_time_of_the_host() {
        let mut profile = profile();
        profile.points.retain(|point| point.batch != 2);
        let best = |slo_ms| {
            let best = Curve::of(&profile).unwrap().best(slo_ms);
            best.map(|best| (best.batch, best.part))
        };
        assert_eq!(best(40.0), Some((8, 100)));
        // A batch of 8 takes 10 ms at least.
        assert_eq!(best(19.9), Some((1, 40)));
        // On 40 % of the SMs, a batch of 1 takes 6 ms, and the host 8 ms.
        assert_eq!(best(13.9), Some((1, 60)));
        assert_eq!(best(12.0), None);
        let text = printed(&Profile { slo_ms: Some(40.0), ..profile.clone() });
        assert!(text.contains("SLO of 40.0 ms: batch 8 on 100 % of the SMs, 10.0 ms of GPU time"), "{text}");
        let text = printed(&Profile { slo_ms: Some(12.0), ..profile.clone() });
        assert!(text.contains("No batch takes at most half"), "{text}");
    }

    #[test]
    fn a_program_that_the_host_bounds_is_named() {
        let warnings = Curve::of(&profile()).unwrap().warnings();
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        assert!(warnings[0].contains("with batch 1: a request takes 13.0 ms, of which 5.00 ms is GPU time"));
        let mut quick = profile();
        quick.points.iter_mut().for_each(|point| point.latency_ms = Some(1.4 * point.ms));
        assert!(Curve::of(&quick).unwrap().warnings().is_empty());
    }

    #[test]
    fn one_part_has_times_but_no_curve() {
        let mut profile = profile();
        profile.points.retain(|point| point.part_percent == WHOLE_PERCENT);
        let text = printed(&profile);
        assert!(text.contains("needs more parts") && !text.contains("T(S, b)"), "{text}");
        assert!(text.lines().any(|line| line.starts_with('8') && line.contains("10.0 ms")), "{text}");
        profile.points.clear();
        assert!(Curve::of(&profile).is_err());
    }
}
