//! A packing scenario: models that share one GPU, each with runs on a part of the SMs.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use deepres_model::profile::Point;
use serde::Deserialize;

use super::curve::{Curve, WHOLE};

/// Parts that operating points may use beside the measured parts are multiples of this, percent.
const STEP: usize = 5;
/// The longest scenario, s.
const MOST_S: f64 = 3_600.0;
/// The greatest number of tenants: the bound over all configurations grows as 2 to this power.
pub const MOST_TENANTS: usize = 12;

/// When a tenant's requests come.
#[derive(Debug, Clone, PartialEq)]
pub enum Arrivals {
    /// A whole batch every so many ms. The run is due when the next batch comes.
    Periodic(f64),
    /// At random, so many a second on average.
    Poisson(f64),
    /// After these gaps, ms, again and again.
    Gaps(Vec<f64>),
    /// The tenant always has work, and no request is due.
    Closed,
}

/// A tenant of a packing scenario.
#[derive(Debug, Clone)]
pub struct Tenant {
    /// Name of the model.
    pub name: String,
    /// The true times of its runs.
    pub curve: Curve,
    /// The true times from the middle of the scenario on, if they change.
    pub later: Option<Curve>,
    /// The greatest number of requests in one run.
    pub batches: Vec<u32>,
    /// The parts at which it may run, percent.
    pub parts: Vec<usize>,
    /// The part that the scenario gives for its runs, percent, if it gives one.
    pub rectangle: Option<usize>,
    /// The time within which a request is to be answered, ms.
    pub slo_ms: f64,
    /// When requests come.
    pub arrivals: Arrivals,
    /// The number of runs that may go on at once.
    pub instances: usize,
    /// The time on the host after each run, ms, in which the instance does not use the GPU.
    pub pause_ms: f64,
    /// By how much the profile that policies know is wrong: 0.1 says that runs seem 10 % longer.
    pub profile_error: f64,
    /// The additional time of the tenant's runs beside each other tenant, as a part of the time
    /// alone.
    pub slower: Vec<f64>,
}

impl Tenant {
    /// Returns requests a second.
    pub fn rate_hz(&self) -> f64 {
        match &self.arrivals {
            Arrivals::Periodic(period_ms) => f64::from(self.largest_batch()) * 1e3 / period_ms,
            Arrivals::Poisson(rate_hz) => *rate_hz,
            Arrivals::Gaps(gaps) => 1e3 * gaps.len() as f64 / gaps.iter().sum::<f64>(),
            Arrivals::Closed => 0.0,
        }
    }

    /// Returns the greatest batch.
    pub fn largest_batch(&self) -> u32 {
        self.batches.iter().copied().max().unwrap_or(1)
    }

    /// Returns the GPU time that the tenant's work needs if all runs have all SMs, as a part of all
    /// time. Of the batches whose run takes at most half of the SLO, the function takes the batch
    /// that needs the least GPU time.
    pub fn temporal(&self) -> f64 {
        self.least(|batch| self.curve.time_ms(WHOLE, batch))
    }

    /// Returns the area that its work needs at least, as a part of all SMs and time.
    pub fn area(&self) -> f64 {
        self.least(|batch| self.curve.area_ms(batch))
    }

    fn least(&self, figure: impl Fn(u32) -> f64) -> f64 {
        let is_periodic = matches!(self.arrivals, Arrivals::Periodic(_));
        let quick = |batch: &u32| is_periodic || 2.0 * self.curve.time_ms(WHOLE, *batch) <= self.slo_ms;
        let mut batches: Vec<u32> = self.batches.iter().copied().filter(quick).collect();
        if batches.is_empty() {
            batches.extend(self.batches.iter().min());
        }
        let each = batches.iter().map(|batch| figure(*batch) / f64::from(*batch) / 1e3);
        self.rate_hz() * each.fold(f64::INFINITY, f64::min)
    }
}

/// A packing scenario.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Name of the scenario.
    pub name: String,
    /// Length, ms.
    pub duration_ms: f64,
    /// The cost of a change of places, ms.
    pub handoff_ms: f64,
    /// Whether every tenant always has work, more than it is owed.
    pub full: bool,
    /// The seed of the random numbers.
    pub seed: u64,
    /// The tenants.
    pub tenants: Vec<Tenant>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScenarioFile {
    duration_s: f64,
    #[serde(default)]
    handoff_us: f64,
    #[serde(default)]
    full: bool,
    #[serde(default)]
    seed: u64,
    tenants: Vec<TenantFile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantFile {
    name: String,
    part_percent: Option<usize>,
    run_ms: Option<f64>,
    #[serde(default)]
    points: Vec<Point>,
    batch: Option<u32>,
    slo_ms: f64,
    rate_hz: Option<f64>,
    #[serde(default)]
    gaps_ms: Vec<f64>,
    #[serde(default = "one")]
    instances: usize,
    #[serde(default)]
    pause_ms: f64,
    #[serde(default)]
    profile_error: f64,
    #[serde(default)]
    slower_beside_percent: f64,
}

fn one() -> usize {
    1
}

/// Returns the folder of the packing scenarios that come with deepres.
pub fn ours() -> PathBuf {
    crate::scenario::ours().join("packing")
}

/// Returns the files of the packing scenarios that come with deepres.
///
/// # Errors
/// The folder cannot be listed.
pub fn all() -> Result<Vec<PathBuf>> {
    let folder = ours();
    let entries = std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let paths: Result<Vec<PathBuf>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut files = paths?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    ensure!(!files.is_empty(), "there is no packing scenario in {}", folder.display());
    Ok(files)
}

impl Scenario {
    /// Reads a scenario.
    ///
    /// # Errors
    /// The file cannot be read, or is no packing scenario.
    pub fn read(file: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Self::parse(name, &text).with_context(|| format!("in the packing scenario {}", file.display()))
    }

    /// Parses a scenario.
    ///
    /// # Errors
    /// The text is no packing scenario.
    pub fn parse(name: String, text: &str) -> Result<Self> {
        let file: ScenarioFile = toml::from_str(text)?;
        let ScenarioFile { duration_s, handoff_us, full, seed, tenants } = file;
        ensure!(
            duration_s > 0.0 && duration_s <= MOST_S,
            "`duration_s` is {duration_s}: give more than 0, and at most {MOST_S}"
        );
        ensure!((0.0..=1e6).contains(&handoff_us), "`handoff_us` is {handoff_us}: give 0 to 1000000");
        ensure!(
            (1..=MOST_TENANTS).contains(&tenants.len()),
            "{} tenants: give 1 to {MOST_TENANTS}",
            tenants.len()
        );
        let count = tenants.len();
        let tenants: Result<Vec<Tenant>> = tenants
            .into_iter()
            .map(|tenant| {
                let name = tenant.name.clone();
                tenant.checked(count).with_context(|| format!("tenant `{name}`"))
            })
            .collect();
        let tenants = tenants?;
        for (index, tenant) in tenants.iter().enumerate() {
            let twice = tenants[..index].iter().any(|other| other.name == tenant.name);
            ensure!(!twice, "two tenants have the name `{}`", tenant.name);
        }
        let is_periodic = |tenant: &Tenant| matches!(tenant.arrivals, Arrivals::Periodic(_));
        ensure!(
            !full || tenants.iter().all(is_periodic),
            "`full` needs tenants without `rate_hz` and `gaps_ms`"
        );
        Ok(Self { name, duration_ms: duration_s * 1e3, handoff_ms: handoff_us / 1e3, full, seed, tenants })
    }
}

impl TenantFile {
    fn checked(self, tenants: usize) -> Result<Tenant> {
        let Self {
            name,
            part_percent,
            run_ms,
            points,
            batch,
            slo_ms,
            rate_hz,
            gaps_ms,
            instances,
            pause_ms,
            profile_error,
            slower_beside_percent,
        } = self;
        ensure!(!name.is_empty(), "`name` is empty");
        ensure!(slo_ms.is_finite() && slo_ms > 0.0, "`slo_ms` is {slo_ms}: give more than 0");
        ensure!((1..=8).contains(&instances), "`instances` is {instances}: give 1 to 8");
        ensure!((0.0..=1e6).contains(&pause_ms), "`pause_ms` is {pause_ms}: give 0 to 1000000");
        ensure!(
            (-0.9..=9.0).contains(&profile_error),
            "`profile_error` is {profile_error}: give -0.9 to 9, a part of the time of a run"
        );
        ensure!(
            (0.0..=1_000.0).contains(&slower_beside_percent),
            "`slower_beside_percent` is {slower_beside_percent}: give 0 to 1000"
        );
        ensure!(batch != Some(0), "`batch` is 0: give at least 1");
        let is_rectangle = part_percent.is_some() || run_ms.is_some();
        let (curve, batches, parts) = match (part_percent, run_ms) {
            (Some(part), Some(ms)) if points.is_empty() => {
                let batch = batch.unwrap_or(1);
                let curve = rectangle(batch, part, ms)?;
                let mut parts = curve.parts(0);
                parts.retain(|narrow| *narrow <= part);
                (curve, vec![batch], parts)
            }
            _ => {
                ensure!(!is_rectangle, "give either `part_percent` and `run_ms`, or `points`");
                ensure!(!points.is_empty(), "give `part_percent` and `run_ms`, or `points`");
                let curve = Curve::new(points.into_iter().map(|one| (one.batch, one.part_percent, one.ms)))?;
                let batches = batch.map_or_else(|| curve.batches(), |batch| vec![batch]);
                let parts = curve.parts(STEP);
                (curve, batches, parts)
            }
        };
        let arrivals = match rate_hz {
            _ if !gaps_ms.is_empty() => {
                ensure!(rate_hz.is_none(), "give either `rate_hz` or `gaps_ms`");
                let is_gap = |gap: &f64| gap.is_finite() && *gap >= 0.0;
                let is_usable = gaps_ms.iter().all(is_gap) && gaps_ms.iter().sum::<f64>() > 0.0;
                ensure!(is_usable, "`gaps_ms` has a negative gap, or only zeros");
                Arrivals::Gaps(gaps_ms)
            }
            Some(rate_hz) => {
                ensure!((1e-3..=1e6).contains(&rate_hz), "`rate_hz` is {rate_hz}: give 0.001 to 1000000");
                Arrivals::Poisson(rate_hz)
            }
            None => {
                ensure!(
                    batches.len() == 1,
                    "without `rate_hz`, a batch comes every `slo_ms`: give its size as `batch`"
                );
                Arrivals::Periodic(slo_ms)
            }
        };
        let slower = vec![slower_beside_percent / 100.0; tenants];
        Ok(Tenant {
            name,
            curve,
            later: None,
            batches,
            parts,
            rectangle: part_percent,
            slo_ms,
            arrivals,
            instances,
            pause_ms,
            profile_error,
            slower,
        })
    }
}

/// Returns the curve of runs that take `ms` on a part of the SMs and on all wider parts. On
/// narrower parts, the area of a run stays the same.
fn rectangle(batch: u32, part: usize, ms: f64) -> Result<Curve> {
    let narrower = (STEP..part).step_by(STEP).map(|narrow| (batch, narrow, ms * part as f64 / narrow as f64));
    Curve::new(narrower.chain([(batch, part, ms), (batch, WHOLE, ms)]))
}

/// The published table of models, as it is recalled: name, part, percent, SLO, ms, run, ms.
pub const TABLE: [(&str, usize, f64, f64); 8] = [
    ("alexnet", 30, 25.0, 8.0),
    ("mobilenet", 20, 25.0, 10.0),
    ("resnet-50", 40, 50.0, 28.0),
    ("vgg-19", 50, 100.0, 55.0),
    ("bert", 30, 25.0, 9.0),
    ("resnet-18", 30, 25.0, 12.0),
    ("inception", 40, 50.0, 25.0),
    ("resnext-50", 50, 100.0, 40.0),
];
/// The batch of the table.
const TABLE_BATCH: u32 = 16;
/// The length of a scenario of some models of the table, ms.
const SUBSET_MS: f64 = 2_000.0;

/// Returns a scenario of the models of the table whose bits are set.
pub fn of_table(bits: usize, full: bool) -> Result<Scenario> {
    let chosen: Vec<usize> = (0..TABLE.len()).filter(|model| bits >> model & 1 == 1).collect();
    let tenants: Result<Vec<Tenant>> = chosen
        .iter()
        .map(|&model| {
            let (name, part, slo_ms, run_ms) = TABLE[model];
            let curve = rectangle(TABLE_BATCH, part, run_ms)?;
            let mut parts = curve.parts(0);
            parts.retain(|narrow| *narrow <= part);
            Ok(Tenant {
                name: name.to_owned(),
                curve,
                later: None,
                batches: vec![TABLE_BATCH],
                parts,
                rectangle: Some(part),
                slo_ms,
                arrivals: Arrivals::Periodic(slo_ms),
                instances: 1,
                pause_ms: 0.0,
                profile_error: 0.0,
                slower: vec![0.0; chosen.len()],
            })
        })
        .collect();
    let names: Vec<&str> = chosen.iter().map(|model| TABLE[*model].0).collect();
    let load = if full { "full" } else { "owed" };
    Ok(Scenario {
        name: format!("{load}: {}", names.join("+")),
        duration_ms: SUBSET_MS,
        handoff_ms: 0.0,
        full,
        seed: 0,
        tenants: tenants?,
    })
}
