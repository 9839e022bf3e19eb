//! A fitted profile, as `deepres run --profile` hands it to the daemon. `--sm auto` chooses a part
//! of the SMs by the profile, and the daemon computes operating points from it.

use crate::profile::{Point, Profile};
use crate::quantity::Time;
use deepres_abi::wire::{FittedFields, PROFILE_BATCHES};
use deepres_policy::packing::knapsack::WHOLE_PERCENT;
use deepres_policy::packing::points::{MOST_NEED, Service, operating_points};
use deepres_policy::packing::profile::{Profile as Curve, Unfit};
use std::fmt;
use std::slice;

/// At the knee, a run takes at most this part longer than on all SMs.
pub const KNEE_TOLERANCE: f64 = 0.05;
/// The distance of two parts between which a choice decides, percent.
const STEP_PERCENT: usize = 5;
/// The longest time in a profile, ns: a day. The shortest is 0.
const MOST_NS: f64 = 86_400e9;
/// The most requests a second in a profile.
const MOST_HZ: f64 = 1e9;
const NS_PER_MS: f64 = 1e6;

/// A fitted profile of a program.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitted {
    /// The time of a run by its part of the SMs and its batch.
    pub curve: Curve,
    /// Time of the host in a run, ns, while the GPU has no work of the run.
    pub host_ns: f64,
    /// The measured batches in rising order.
    pub batches: Vec<u32>,
    /// The batch that the program runs, if it is known.
    pub batch: Option<u32>,
    /// The time within which requests are to be answered by the profile's file, ns.
    pub slo_ns: Option<u64>,
    /// Requests a second by the profile's file.
    pub rate_hz: Option<f64>,
    /// The narrowest measured part, percent.
    least_percent: usize,
}

/// The reason for which a profile gives no part of the SMs.
#[derive(Debug, thiserror::Error)]
pub enum NoPart {
    /// The profile has no points.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// The profile has points on one part only.
    #[error(
        "the profile has points on one part of the SMs only, so the curve is not known; measure more parts by `deepres profile --sm 10,20,40,60,80,100`, on a host with MPS"
    )]
    OnePart,
    /// The profile has more batches than a daemon takes.
    #[error(
        "the profile has {0} batches, and deepres takes {PROFILE_BATCHES}; remove the points of some batches"
    )]
    Batches(usize),
}

/// The part of the SMs that follows from a profile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// The part, percent.
    pub part_percent: usize,
    /// The batch of the choice.
    pub batch: u32,
    /// The time of a run of the batch on the part, ns.
    pub run_ns: f64,
    /// The time of a run of the batch on all SMs, ns.
    pub whole_ns: f64,
    /// The rule of the choice.
    pub rule: Rule,
}

/// The rule by which a part follows from a profile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// The least part on which a run takes hardly longer than on all SMs.
    Knee,
    /// The part and the batch of least area at which requests are answered in time.
    Point {
        /// The SLO, ns.
        slo_ns: u64,
        /// Requests a second.
        rate_hz: f64,
        /// Whether requests are in time at this point. If they are at no point, the choice is the
        /// quickest point.
        in_time: bool,
    },
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |ns: f64| Time(ns as u64);
        let Self { part_percent, batch, run_ns, whole_ns, rule } = *self;
        match rule {
            Rule::Knee => {
                write!(f, "{part_percent}% of the SMs, the knee of its profile at batch {batch}, ")?
            }
            Rule::Point { slo_ns, rate_hz, in_time: true } => write!(
                f,
                "{part_percent}% of the SMs, the least area at which its profile answers {rate_hz:.1} requests/s within {}: batch {batch}, ",
                Time(slo_ns)
            )?,
            Rule::Point { slo_ns, rate_hz, in_time: false } => write!(
                f,
                "{part_percent}% of the SMs, the quickest point, because its profile does not answer {rate_hz:.1} requests/s within {} on any part: batch {batch}, ",
                Time(slo_ns)
            )?,
        }
        write!(f, "a run takes {}, and {} on all SMs", time(run_ns), time(whole_ns))
    }
}

impl Fitted {
    /// Fits a profile. `command` is the program and its arguments: the batch in it is the only one
    /// that the program runs.
    ///
    /// # Errors
    /// [`NoPart`].
    pub fn of(profile: &Profile, command: &[String]) -> Result<Self, NoPart> {
        let (curve, batches) = (Curve::fit(&profile.measured())?, profile.batches());
        if batches.len() > PROFILE_BATCHES {
            return Err(NoPart::Batches(batches.len()));
        }
        let [least_percent, _, ..] = profile.parts_percent()[..] else { return Err(NoPart::OnePart) };
        let host_ms = batches.iter().filter_map(|batch| profile.widest(*batch)).map(Point::host_ms);
        Ok(Self {
            curve,
            host_ns: host_ms.fold(0.0, f64::max) * NS_PER_MS,
            batch: profile.batch_of(command).filter(|batch| batches.contains(batch)),
            batches,
            slo_ns: profile.slo_ms.map(|ms| (ms * NS_PER_MS) as u64),
            rate_hz: profile.rate_hz,
            least_percent,
        })
    }

    /// Returns the batch that the program runs: the batch in its command, or the only batch of the
    /// profile.
    pub fn known_batch(&self) -> Option<u32> {
        self.batch.or(if let [only] = self.batches[..] { Some(only) } else { None })
    }

    /// Returns the part of the SMs for `--sm auto`: with an SLO and a rate of requests, the
    /// operating point; else the knee. The job's own SLO counts before the SLO of the profile.
    pub fn choice(&self, slo_ns: Option<u64>) -> Choice {
        let (part_percent, batch, rule) = match (slo_ns.or(self.slo_ns), self.rate_hz) {
            (Some(slo_ns), Some(rate_hz)) => {
                let parts = self.parts_percent();
                // The part is for the batch that the program runs, if it is known.
                let batches = self.batch.as_ref().map_or(&self.batches[..], slice::from_ref);
                let service = Service { batches, ..self.service(&parts, slo_ns, rate_hz) };
                let found = operating_points(&[service], MOST_NEED);
                let point = found.each[0];
                (point.part_percent, point.batch, Rule::Point { slo_ns, rate_hz, in_time: point.in_time })
            }
            _ => {
                let batch = self.batch.or(self.batches.last().copied()).unwrap_or(1);
                let knee = self.curve.knee_percent(batch, KNEE_TOLERANCE);
                (knee.max(self.least_percent), batch, Rule::Knee)
            }
        };
        let time_ns = |part_percent| self.curve.time_ns(part_percent, batch);
        Choice { part_percent, batch, run_ns: time_ns(part_percent), whole_ns: time_ns(WHOLE_PERCENT), rule }
    }

    /// Returns the parts of the SMs among which a choice decides, percent. Parts that are narrower
    /// than all measured parts are left out, because their times are unknown.
    pub fn parts_percent(&self) -> Vec<usize> {
        let steps = (self.least_percent..WHOLE_PERCENT).step_by(STEP_PERCENT);
        steps.chain([WHOLE_PERCENT]).collect()
    }

    /// Returns the figures by which the policy finds an operating point among all measured batches.
    pub fn service<'a>(&'a self, parts_percent: &'a [usize], slo_ns: u64, rate_hz: f64) -> Service<'a> {
        Service {
            profile: &self.curve,
            batches: &self.batches,
            parts_percent,
            rate_hz,
            // The rest of the SLO is the host's time.
            slo_ns: (slo_ns as f64 - self.host_ns).max(1.0),
            pause_ns: self.host_ns,
            instances: 1,
        }
    }

    /// Returns the fields of a hello, with the part that `--sm auto` chose.
    pub fn fields(&self, auto: Option<&Choice>) -> FittedFields {
        let mut batches = [0; PROFILE_BATCHES];
        batches.iter_mut().zip(&self.batches).for_each(|(place, batch)| *place = *batch);
        FittedFields {
            floor_ns: self.curve.floor_ns,
            terms_ns: self.curve.terms_ns,
            host_ns: self.host_ns,
            rate_hz: self.rate_hz.unwrap_or(0.0),
            slo_ns: self.slo_ns.unwrap_or(0),
            batches,
            batch: self.batch.unwrap_or(0),
            least_percent: self.least_percent as u32,
            auto_percent: auto.map_or(0, |choice| choice.part_percent as u32),
        }
    }

    /// Returns the profile in a hello. Returns `None` if there is none, or if any figure is out of
    /// range: any process can send any bytes.
    pub fn from_fields(fields: &FittedFields) -> Option<Self> {
        let FittedFields { floor_ns, terms_ns, host_ns, rate_hz, slo_ns, batch, .. } = *fields;
        let least_percent = fields.least_percent as usize;
        let batches: Vec<u32> = fields.batches.into_iter().take_while(|batch| *batch > 0).collect();
        let is_time = |ns: &f64| (-MOST_NS..=MOST_NS).contains(ns);
        let is_good = (1..=WHOLE_PERCENT).contains(&least_percent)
            && !batches.is_empty()
            && batches.is_sorted_by(|one, next| one < next)
            && (batch == 0 || batches.contains(&batch))
            && terms_ns.iter().all(is_time)
            && [floor_ns, host_ns].iter().all(|ns| is_time(ns) && *ns >= 0.0)
            && (0.0..=MOST_HZ).contains(&rate_hz);
        is_good.then(|| Self {
            curve: Curve { floor_ns, terms_ns },
            host_ns,
            batch: (batch > 0).then_some(batch),
            batches,
            slo_ns: (slo_ns > 0).then_some(slo_ns),
            rate_hz: (rate_hz > 0.0).then_some(rate_hz),
            least_percent,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromBytes;

    /// A profile whose times are (1 + b) / S + 1 ms.
    fn profile() -> Profile {
        let each = [1, 3].into_iter().flat_map(|batch| {
            [10, 50, 100].into_iter().map(move |part_percent| {
                let ms = (1.0 + f64::from(batch)) * 100.0 / part_percent as f64 + 1.0;
                Point { batch, part_percent, ms, latency_ms: Some(ms + 2.0), requests: None }
            })
        });
        let command = ["serve", "--batch={batch}"].map(str::to_owned).into();
        Profile { command, points: each.collect(), ..Profile::default() }
    }

    fn fitted(profile: &Profile, words: &[&str]) -> Fitted {
        let command: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Fitted::of(profile, &command).unwrap()
    }

    #[test]
    fn the_part_is_the_knee_at_the_batch_of_the_command_or_at_the_greatest_batch() {
        // 2 / S + 1 ms takes at most 3.15 ms from 94 % on. 4 / S + 1 ms takes at most 5.25 ms from
        // 95 % on.
        for (words, batch, part) in [
            (&["serve", "--batch=1"], 1, 94),
            (&["other", "--batch=1"], 3, 95),
            (&["serve", "--batch=2"], 3, 95),
        ] {
            let choice = fitted(&profile(), words).choice(Some(30_000_000));
            assert_eq!(
                (choice.batch, choice.part_percent, choice.rule),
                (batch, part, Rule::Knee),
                "{words:?}"
            );
        }
        let said = fitted(&profile(), &[]).choice(None).to_string();
        assert!(
            said.starts_with("95% of the SMs, the knee of its profile at batch 3, a run takes 5.211ms"),
            "{said}"
        );
    }

    #[test]
    fn with_an_slo_and_a_rate_the_part_is_the_narrowest_that_answers_in_time() {
        let profile = Profile { rate_hz: Some(20.0), slo_ms: Some(40.0), ..profile() };
        let fitted = fitted(&profile, &[]);
        let choice = fitted.choice(None);
        let Rule::Point { slo_ns: 40_000_000, in_time: true, .. } = choice.rule else { panic!("{choice:?}") };
        assert!(choice.run_ns <= 20e6 && choice.part_percent < 50, "{choice:?}");
        // The job's own SLO counts first.
        let hurried = fitted.choice(Some(8_000_000));
        assert!(hurried.part_percent > choice.part_percent && hurried.run_ns <= 4e6, "{hurried:?}");
        // Of the SLO, the host needs half.
        let beside_host = Fitted { host_ns: 20e6, ..fitted.clone() }.choice(None);
        assert!(choice.run_ns > 10e6 && beside_host.run_ns <= 10e6, "{beside_host:?}");
        let late = fitted.choice(Some(1_000_000));
        assert!(matches!(late.rule, Rule::Point { in_time: false, .. }), "{late:?}");
        assert!(late.to_string().contains("does not answer 20.0 requests/s within 1ms"), "{late}");
    }

    #[test]
    fn the_batch_is_known_by_the_command_or_if_the_profile_has_one_only() {
        let known = |profile: &Profile, words: &[&str]| fitted(profile, words).known_batch();
        let mut profile = profile();
        let both = ["serve", "--batch=3"];
        assert_eq!((known(&profile, &both), known(&profile, &[])), (Some(3), None));
        profile.points.retain(|point| point.batch == 1);
        assert_eq!(known(&profile, &[]), Some(1));
    }

    #[test]
    fn a_profile_of_one_part_gives_no_part() {
        let mut profile = profile();
        profile.points.retain(|point| point.part_percent == 100);
        assert!(matches!(Fitted::of(&profile, &[]), Err(NoPart::OnePart)));
        profile.points.clear();
        assert!(matches!(Fitted::of(&profile, &[]), Err(NoPart::Unfit(_))));
    }

    #[test]
    fn a_profile_passes_through_a_hello_and_other_bytes_are_none() {
        let profile = Profile { rate_hz: Some(20.0), slo_ms: Some(40.0), ..profile() };
        let fitted = fitted(&profile, &["serve", "--batch=3"]);
        let fields = fitted.fields(Some(&fitted.choice(None)));
        assert_eq!(Fitted::from_fields(&fields).as_ref(), Some(&fitted));
        assert_eq!(fields.auto_percent as usize, fitted.choice(None).part_percent);
        assert_eq!(Fitted::from_fields(&FittedFields::default()), None);
        let bytes = [0xA5; size_of::<FittedFields>()];
        assert_eq!(Fitted::from_fields(&FittedFields::read_from_bytes(&bytes).unwrap()), None);
        for wrong in [
            FittedFields { floor_ns: f64::NAN, ..fields },
            FittedFields { host_ns: -1.0, ..fields },
            FittedFields { rate_hz: f64::INFINITY, ..fields },
            FittedFields { batches: [2; PROFILE_BATCHES], ..fields },
            FittedFields { least_percent: 101, ..fields },
            FittedFields { batch: 2, ..fields },
        ] {
            assert_eq!(Fitted::from_fields(&wrong), None, "{wrong:?}");
        }
    }
}
