//! A scenario: a GPU, its tenants and what they do. TOML; docs/evaluation-scenarios.md describes every key.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use deepres_controller::policy::class::Class;
use deepres_controller::policy::entitlement::{self, Request};
use deepres_controller::policy::priority::{Criticality, Priority};
use deepres_controller::quantity::parse_share;
use serde::{Deserialize, Deserializer, de};

use crate::trace::{Stretch, Trace};

/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;
/// Tenants at most: the design's thousand, and room.
const MAX_TENANTS: usize = 4096;
/// A day is longer than anything that has been asked of it.
const MAX_S: f64 = 86_400.0;

/// A scenario, as its file says.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name in reports.
    pub name: String,
    /// What it shows: a sentence.
    pub shows: String,
    /// How long it lasts; what is measured begins after `warmup_s`.
    #[serde(rename = "duration_s", deserialize_with = "seconds")]
    pub duration_ns: u64,
    /// Not measured.
    #[serde(rename = "warmup_s", default, deserialize_with = "seconds_or_none")]
    pub warmup_ns: u64,
    /// Where the random numbers begin.
    #[serde(default)]
    pub seed: u64,
    /// The GPU.
    #[serde(default)]
    pub gpu: Gpu,
    /// Who shares it.
    #[serde(rename = "tenant")]
    pub tenants: Vec<Tenant>,
}

/// The GPU, and what it costs to share it.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gpu {
    /// How long one context has the GPU while others wait, where the hardware takes turns.
    #[serde(rename = "slice_ms", deserialize_with = "millis")]
    pub slice_ns: u64,
    /// What such a turn costs.
    #[serde(rename = "switch_us", deserialize_with = "micros_or_none")]
    pub switch_ns: u64,
    /// From the last kernel of one tenant to the first of the next under deepres: bell, decision, gate.
    #[serde(rename = "handoff_us", deserialize_with = "micros")]
    pub handoff_ns: u64,
}

impl Default for Gpu {
    fn default() -> Self {
        Self { slice_ns: 2_000_000, switch_ns: 50_000, handoff_ns: 100_000 }
    }
}

/// One tenant.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// How many there are of it: `NAME-1`, `NAME-2`, …
    #[serde(default = "one")]
    pub count: usize,
    /// Its class.
    #[serde(default, deserialize_with = "from_str")]
    pub class: Class,
    /// The share it asks for.
    #[serde(default, rename = "share", deserialize_with = "share")]
    pub share_ppm: Option<u32>,
    /// How critical it is.
    #[serde(default, deserialize_with = "from_str")]
    pub criticality: Criticality,
    /// When it has to be done.
    #[serde(default, rename = "deadline_s", deserialize_with = "maybe_seconds")]
    pub deadline_ns: Option<u64>,
    /// GPU time that its whole job takes.
    #[serde(default, rename = "size_s", deserialize_with = "maybe_seconds")]
    pub size_ns: Option<u64>,
    /// The part of the SMs that its kernels can use.
    #[serde(default = "whole", rename = "sm", deserialize_with = "part_of_sms")]
    pub sm_ppm: u32,
    /// When it has work: pairs of seconds. Without any, always.
    #[serde(default, deserialize_with = "spans")]
    pub active_s: Vec<(u64, u64)>,
    /// It works in steps: kernels, then a pause.
    pub steps: Option<Steps>,
    /// It answers requests.
    pub requests: Option<Requests>,
    /// It does what was recorded, over and over.
    pub trace: Option<Recorded>,
}

/// What was recorded of a program (docs/traces.md).
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    /// The file, from where the scenario is.
    pub file: PathBuf,
    /// Between the end of the recording and its next beginning.
    #[serde(default, rename = "pause_ms", deserialize_with = "millis_or_none")]
    pub pause_ns: u64,
    /// What is in it.
    #[serde(skip)]
    pub stretches: Arc<Vec<Stretch>>,
}

/// A closed loop, as training is: so many kernels, all finished, then a pause.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Steps {
    /// Kernels in a step.
    #[serde(deserialize_with = "positive")]
    pub kernels: u64,
    /// How long one takes with the whole GPU.
    #[serde(rename = "kernel_us", deserialize_with = "micros")]
    pub kernel_ns: u64,
    /// Between two steps.
    #[serde(default, rename = "pause_ms", deserialize_with = "millis_or_none")]
    pub pause_ns: u64,
    /// Kernels and pauses vary by this part of themselves, evenly, up and down.
    #[serde(default, deserialize_with = "fraction")]
    pub jitter: f64,
}

/// An open loop, as a service is: requests come however busy it is, and are answered in turn.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requests {
    /// How they come.
    pub arrival: Arrival,
    /// How many come in a second, on average.
    #[serde(rename = "per_s", deserialize_with = "rate")]
    pub per_s: f64,
    /// Kernels in one.
    #[serde(deserialize_with = "positive")]
    pub kernels: u64,
    /// How long a kernel takes with the whole GPU.
    #[serde(rename = "kernel_us", deserialize_with = "micros")]
    pub kernel_ns: u64,
    /// Kernels vary by this part of themselves, evenly, up and down.
    #[serde(default, deserialize_with = "fraction")]
    pub jitter: f64,
    /// An answer later than this is a miss.
    #[serde(default, rename = "slo_ms", deserialize_with = "maybe_millis")]
    pub slo_ns: Option<u64>,
}

/// How requests come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrival {
    /// Independently of each other.
    Poisson,
    /// At equal distances.
    Periodic,
}

impl Scenario {
    /// Reads a scenario from a file.
    ///
    /// # Errors
    /// What is wrong with it, with line and key.
    pub fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read the scenario {}", file.display()))?;
        let folder = file.parent().unwrap_or(Path::new("."));
        Self::parse_in(folder, &text).with_context(|| format!("in the scenario {}", file.display()))
    }

    /// Reads a scenario.
    ///
    /// # Errors
    /// What is wrong with it, with line and key.
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_in(Path::new("."), text)
    }

    fn parse_in(folder: &Path, text: &str) -> Result<Self> {
        let mut scenario: Self = toml::from_str(text)?;
        let mut tenants = Vec::new();
        for mut tenant in scenario.tenants {
            if let Some(recorded) = &mut tenant.trace {
                let trace = Trace::read(&folder.join(&recorded.file));
                let stretches = trace.and_then(|trace| trace.stretches());
                recorded.stretches =
                    Arc::new(stretches.with_context(|| format!("tenant `{}`", tenant.name))?);
            }
            ensure!(tenant.count <= MAX_TENANTS, "tenant `{}`: more than {MAX_TENANTS} of it", tenant.name);
            for number in 1..=tenant.count {
                let name =
                    if tenant.count > 1 { format!("{}-{number}", tenant.name) } else { tenant.name.clone() };
                tenants.push(Tenant { name, count: 1, ..tenant.clone() });
            }
        }
        scenario.tenants = tenants;
        scenario.check()?;
        Ok(scenario)
    }

    fn check(&self) -> Result<()> {
        ensure!(!self.tenants.is_empty(), "there is no tenant: add a [[tenant]]");
        ensure!(self.tenants.len() <= MAX_TENANTS, "more than {MAX_TENANTS} tenants");
        ensure!(
            self.warmup_ns < self.duration_ns,
            "warmup_s is not below duration_s: nothing is left to measure"
        );
        for (index, tenant) in self.tenants.iter().enumerate() {
            let name = &tenant.name;
            ensure!(!name.is_empty(), "a tenant has an empty name");
            if self.tenants[..index].iter().any(|other| other.name == *name) {
                bail!("two tenants are called `{name}`");
            }
            let does = [tenant.steps.is_some(), tenant.requests.is_some(), tenant.trace.is_some()];
            match does.into_iter().filter(|does| *does).count() {
                0 => bail!(
                    "tenant `{name}` has nothing to do: add [tenant.steps], [tenant.requests] or [tenant.trace]"
                ),
                1 => {}
                _ => bail!(
                    "tenant `{name}` has more than one of [tenant.steps], [tenant.requests] and [tenant.trace]: keep one"
                ),
            }
            ensure!(
                tenant.active_s.first().is_none_or(|(from_ns, _)| *from_ns < self.duration_ns),
                "tenant `{name}` is active only after the end: `active_s` begins when duration_s is over"
            );
            ensure!(
                tenant.class != Class::Guaranteed || tenant.share_ppm.is_some(),
                "tenant `{name}` is guaranteed, but asks for no share: add `share`"
            );
        }
        ensure!(
            entitlement::fits(self.tenants.iter().map(|tenant| tenant.request(0))),
            "the guaranteed shares add up to more than the GPU"
        );
        Ok(())
    }
}

impl Tenant {
    /// What it asks the policy for, with this priority value.
    pub fn request(&self, priority_ppm: u32) -> Request {
        Request { class: self.class, asked_ppm: self.share_ppm, priority_ppm, ..Request::default() }
    }

    /// What it says of its job.
    pub fn priority(&self) -> Priority {
        Priority { criticality: self.criticality, deadline_ns: self.deadline_ns, size_ns: self.size_ns }
    }

    /// Whether the other does the same but for its name.
    pub fn is_like(&self, other: &Self) -> bool {
        Self { name: other.name.clone(), ..self.clone() } == *other
    }

    /// Whether it only has what others leave.
    pub fn is_guest(&self) -> bool {
        self.class == Class::BestEffort
    }
}

fn one() -> usize {
    1
}

fn whole() -> u32 {
    1_000_000
}

/// A number within `bounds` times `unit_ns`.
fn scaled<'de, D: Deserializer<'de>>(
    deserializer: D,
    least: f64,
    unit_ns: f64,
    unit: &str,
) -> Result<u64, D::Error> {
    let number = f64::deserialize(deserializer)?;
    let ns = number * unit_ns;
    let most = MAX_S * SECOND as f64;
    if !(ns >= least && ns <= most) {
        let least = if least > 0.0 { "above 0" } else { "0 or more" };
        return Err(de::Error::custom(format!(
            "{number} {unit} is out of range: give {least}, and a day at most"
        )));
    }
    Ok(ns.round() as u64)
}

const MS: f64 = 1e6;
const US: f64 = 1e3;

fn seconds<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    scaled(d, 1.0, SECOND as f64, "s")
}

fn seconds_or_none<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    scaled(d, 0.0, SECOND as f64, "s")
}

fn maybe_seconds<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
    seconds(d).map(Some)
}

fn millis<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    scaled(d, 1.0, MS, "ms")
}

fn millis_or_none<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    scaled(d, 0.0, MS, "ms")
}

fn maybe_millis<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
    millis(d).map(Some)
}

fn micros<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    scaled(d, 1.0, US, "us")
}

fn micros_or_none<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    scaled(d, 0.0, US, "us")
}

fn positive<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    /// Kernels of one step: more are not a step.
    const MOST: u64 = 1_000_000;
    match u64::deserialize(d)? {
        number @ 1..=MOST => Ok(number),
        number => Err(de::Error::custom(format!("{number} is out of range: give 1 to {MOST}"))),
    }
}

fn rate<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
    /// Requests a second that one process could take in.
    const MOST: f64 = 1e6;
    match f64::deserialize(d)? {
        number if number > 0.0 && number <= MOST => Ok(number),
        number => {
            Err(de::Error::custom(format!("{number} is out of range: give a rate above 0, {MOST} at most")))
        }
    }
}

fn fraction<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
    match f64::deserialize(d)? {
        number if (0.0..1.0).contains(&number) => Ok(number),
        number => Err(de::Error::custom(format!("{number} is out of range: give 0 to less than 1"))),
    }
}

fn from_str<'de, D, T>(d: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    String::deserialize(d)?.parse().map_err(de::Error::custom)
}

fn percent<'de, D: Deserializer<'de>>(d: D) -> Result<u32, D::Error> {
    parse_share(&String::deserialize(d)?).map_err(de::Error::custom)
}

fn share<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u32>, D::Error> {
    percent(d).map(Some)
}

fn part_of_sms<'de, D: Deserializer<'de>>(d: D) -> Result<u32, D::Error> {
    percent(d)
}

fn spans<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<(u64, u64)>, D::Error> {
    let spans: Vec<(f64, f64)> = Vec::deserialize(d)?;
    let mut before = 0.0;
    for (from, to) in &spans {
        if !(*from >= before && to > from && *to <= MAX_S) {
            return Err(de::Error::custom(
                "active_s wants pairs of seconds in order, each later than the one before",
            ));
        }
        before = *to;
    }
    let ns = |seconds: f64| (seconds * SECOND as f64).round() as u64;
    Ok(spans.into_iter().map(|(from, to)| (ns(from), ns(to))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        name = "two"
        shows = "nothing"
        duration_s = 10
        [[tenant]]
        name = "a"
        share = "30%"
        [tenant.steps]
        kernels = 10
        kernel_us = 1000
        [[tenant]]
        name = "b"
        count = 2
        class = "best-effort"
        active_s = [[0, 2], [4, 5.5]]
        [tenant.requests]
        arrival = "poisson"
        per_s = 20
        kernels = 5
        kernel_us = 100
        slo_ms = 50
    "#;

    #[test]
    fn a_scenario_is_read_and_repeated_tenants_are_numbered() {
        let scenario = Scenario::parse(GOOD).unwrap();
        let names: Vec<_> = scenario.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
        assert_eq!(names, ["a", "b-1", "b-2"]);
        assert_eq!(scenario.tenants[0].share_ppm, Some(300_000));
        assert_eq!(scenario.tenants[1].active_s, [(0, 2 * SECOND), (4 * SECOND, 5 * SECOND + SECOND / 2)]);
    }

    #[test]
    fn what_is_unknown_or_impossible_is_named_with_its_line() {
        for (from, to, says) in [
            ("kernels = 10\n", "kernels = 10\n        kernel = 5\n", "line 10"),
            ("kernel_us = 1000", "kernel_us = -3", "out of range"),
            ("share = \"30%\"", "share = \"130%\"", "line 7"),
            ("class = \"best-effort\"", "class = \"urgent\"", "line 14"),
            ("arrival = \"poisson\"", "arrival = \"sometimes\"", "sometimes"),
            ("active_s = [[0, 2], [4, 5.5]]", "active_s = [[2, 1]]", "in order"),
            ("active_s = [[0, 2], [4, 5.5]]", "active_s = [[10, 12]]", "only after the end"),
            ("share = \"30%\"", "trace = { file = \"no.trace\" }", "cannot read the trace"),
            ("duration_s = 10", "duration_s = 10\n        warmup_s = 10", "warmup_s"),
            ("name = \"b\"\n        count = 2", "name = \"a\"", "two tenants"),
            ("[tenant.steps]\n        kernels = 10\n        kernel_us = 1000", "", "nothing to do"),
            ("slo_ms = 50", "slo_ms = nan", "out of range"),
            ("share = \"30%\"", "class = \"guaranteed\"", "asks for no share"),
        ] {
            assert!(GOOD.contains(from), "{from}");
            let error = format!("{:#}", Scenario::parse(&GOOD.replace(from, to)).unwrap_err());
            assert!(error.contains(says), "{to}: {error}");
        }
    }
}
