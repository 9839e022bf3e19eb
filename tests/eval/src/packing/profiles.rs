//! Scenarios from a folder of measurements: times of models by part of the SMs and batch, times of
//! pairs that run together, arrivals.
//!
//! If the folder has profiles of `deepres profile` (`*.toml`), their programs are the tenants of
//! one scenario. Else the folder has published measurements:
//!
//! | folder | source |
//! |---|---|
//! | `igniter` | iGniter's profiles of a V100 with TensorRT, with pairs |
//! | `gpulet-0909wlgur` | profiles for gpulet, with pairs; the GPU is not named |
//! | `has-gpu` | HAS-GPU's profiles of a V100 with PyTorch, which is bound by the host |
//! | `parvagpu` | ParvaGPU's profiles of an A100 with MIG, its rates and SLOs |
//! | `orion` | gaps between requests |
//! | `disb` | the workloads D, E and REAL of DISB |

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use deepres_model::profile::Profile;
use serde::Deserialize;

use super::bars::WRONG_PROFILES;
use super::curve::{Curve, WHOLE};
use super::policy::served_vs_owed;
use super::scenario::{Arrivals, MOST_TENANTS, Scenario, Tenant};
use super::{Row, evaluate, policy, sim};

/// Parts that operating points may use are multiples of this, percent.
const STEP: usize = 5;
/// The length of the scenarios, ms.
const DURATION_MS: f64 = 20_000.0;
/// The cost of a change of places, ms.
const HANDOFF_MS: f64 = 0.1;
/// Rates are scaled so that the work fills this part of the GPU's area.
const LOAD: f64 = 0.6;
/// The error of wrong profiles.
const WRONG: f64 = 0.1;

/// A table of comma-separated values: its columns by name, and its rows.
struct Table {
    columns: BTreeMap<String, usize>,
    rows: Vec<Vec<String>>,
    file: String,
}

impl Table {
    /// Reads a file. Lines that begin with `#` are notes.
    fn read(folder: &Path, name: &str) -> Result<Self> {
        let path = folder.join(name);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let cells = |line: &str| line.split(',').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        let head = lines.next().with_context(|| format!("{} has no line", path.display()))?;
        let columns = cells(head).into_iter().enumerate().map(|(at, column)| (column, at)).collect();
        Ok(Self { columns, rows: lines.map(cells).collect(), file: path.display().to_string() })
    }

    fn text<'a>(&self, row: &'a [String], column: &str) -> Result<&'a str> {
        let at = self.columns.get(column);
        let cell = at.and_then(|at| row.get(*at));
        cell.map(String::as_str).with_context(|| format!("{} has no column `{column}` in a row", self.file))
    }

    fn number(&self, row: &[String], column: &str) -> Result<f64> {
        let text = self.text(row, column)?;
        text.parse().with_context(|| format!("{}: `{text}` in the column `{column}` is no number", self.file))
    }
}

/// The measurements of one source: the points of each model.
#[derive(Default)]
struct Models {
    points: BTreeMap<String, Vec<(u32, usize, f64)>>,
    /// The additional time of a model's runs beside another model's runs, as a part of the time
    /// alone.
    slower: BTreeMap<(String, String), f64>,
}

impl Models {
    /// Reads a table with the columns `model`, `batch`, `part` and `time`.
    fn read(
        table: &Table,
        part: &str,
        part_of: fn(f64) -> usize,
        time: (&str, f64),
        is_meant: fn(&Table, &[String]) -> bool,
    ) -> Result<Self> {
        let mut models = Self::default();
        for row in table.rows.iter().filter(|row| is_meant(table, row)) {
            let model = table.text(row, "model")?.to_owned();
            let batch = table.number(row, "batch")? as u32;
            let point = (batch, part_of(table.number(row, part)?), table.number(row, time.0)? * time.1);
            models.points.entry(model).or_default().push(point);
        }
        Ok(models)
    }

    fn curve(&self, model: &str) -> Result<Curve> {
        let points =
            self.points.get(model).with_context(|| format!("the profiles have no model `{model}`"))?;
        Curve::new(points.iter().copied()).with_context(|| format!("in the profile of `{model}`"))
    }

    /// Takes the times of pairs: the columns of the models, and for each of the two its batch, its
    /// part and its time.
    fn pairs(&mut self, table: &Table, of: impl Fn(&[String]) -> Result<Vec<Pair>>) -> Result<()> {
        let mut sums: BTreeMap<(String, String), (f64, f64)> = BTreeMap::new();
        for row in &table.rows {
            for pair in of(row)? {
                let Ok(curve) = self.curve(&pair.model) else { continue };
                let alone_ms = curve.time_ms(pair.part, pair.batch);
                let sum = sums.entry((pair.model, pair.beside)).or_default();
                *sum = (sum.0 + (pair.ms / alone_ms - 1.0).max(0.0), sum.1 + 1.0);
            }
        }
        self.slower = sums.into_iter().map(|(pair, (sum, count))| (pair, sum / count)).collect();
        Ok(())
    }

    fn tenant(&self, model: &str, slo_ms: f64, arrivals: Arrivals) -> Result<Tenant> {
        let curve = self.curve(model)?;
        Ok(Tenant {
            name: model.to_owned(),
            batches: curve.batches(),
            parts: curve.parts(STEP),
            rectangle: None,
            curve,
            later: None,
            slo_ms,
            arrivals,
            instances: 1,
            pause_ms: 0.0,
            profile_error: 0.0,
            slower: Vec::new(),
        })
    }

    /// Makes a scenario of tenants. Fills in how much they slow each other down.
    fn scenario(&self, name: &str, mut tenants: Vec<Tenant>) -> Scenario {
        let names: Vec<String> = tenants.iter().map(|tenant| tenant.name.clone()).collect();
        for tenant in &mut tenants {
            let slower = |other: &String| self.slower.get(&(tenant.name.clone(), other.clone())).copied();
            tenant.slower = names.iter().map(|other| slower(other).unwrap_or(0.0)).collect();
        }
        Scenario {
            name: name.to_owned(),
            duration_ms: DURATION_MS,
            handoff_ms: HANDOFF_MS,
            full: false,
            seed: 1,
            tenants,
        }
    }
}

/// A measurement of a model beside another.
struct Pair {
    model: String,
    beside: String,
    batch: u32,
    part: usize,
    ms: f64,
}

fn percent(part: f64) -> usize {
    part as usize
}

/// Returns the part of an instance of MIG: an A100 has seven slices of its SMs.
fn slices(count: f64) -> usize {
    const SLICES: f64 = 7.0;
    (count / SLICES * WHOLE as f64).round() as usize
}

fn every(_: &Table, _: &[String]) -> bool {
    true
}

fn igniter(folder: &Path) -> Result<Models> {
    let table = Table::read(folder, "igniter/v100-tensorrt-latency.csv")?;
    let mut models = Models::read(&table, "sm_percent", percent, ("latency_ms", 1.0), every)?;
    let pairs = Table::read(folder, "igniter/v100-tensorrt-pairs.csv")?;
    models.pairs(&pairs, |row| {
        let part = pairs.number(row, "sm_percent_a")? as usize;
        let name = |column: &str| pairs.text(row, column).map(str::to_owned);
        let (a, b) = (name("model_a")?, name("model_b")?);
        Ok(vec![
            Pair {
                model: a.clone(),
                beside: b.clone(),
                batch: pairs.number(row, "batch_a")? as u32,
                part,
                ms: pairs.number(row, "latency_a_ms")?,
            },
            Pair {
                model: b,
                beside: a,
                batch: pairs.number(row, "batch_b")? as u32,
                part: WHOLE - part,
                ms: pairs.number(row, "latency_b_ms")?,
            },
        ])
    })?;
    Ok(models)
}

fn gpulet(folder: &Path) -> Result<Models> {
    let table = Table::read(folder, "gpulet-0909wlgur/inference.csv")?;
    let mut models = Models::read(&table, "sm_percent", percent, ("latency_ms", 1.0), every)?;
    let pairs = Table::read(folder, "gpulet-0909wlgur/pairs.csv")?;
    models.pairs(&pairs, |row| {
        Ok(vec![Pair {
            model: pairs.text(row, "model_a")?.to_owned(),
            beside: pairs.text(row, "model_b")?.to_owned(),
            batch: pairs.number(row, "batch_a")? as u32,
            part: pairs.number(row, "sm_percent_a")? as usize,
            ms: pairs.number(row, "latency_a_ms")?,
        }])
    })?;
    Ok(models)
}

fn parvagpu(folder: &Path) -> Result<Models> {
    let table = Table::read(folder, "parvagpu/a100-mig.csv")?;
    let is_alone =
        |table: &Table, row: &[String]| table.text(row, "processes").is_ok_and(|count| count == "1");
    Models::read(&table, "gpcs", slices, ("latency_s", 1e3), is_alone)
}

/// The models of ParvaGPU's files of rates and SLOs, in the order of their columns.
const PARVAGPU: [&str; 11] = [
    "bert",
    "densenet121",
    "densenet169",
    "densenet201",
    "inceptionv3",
    "mobilenetv2",
    "resnet101",
    "resnet152",
    "resnet50",
    "vgg16",
    "vgg19",
];

/// Returns the scenarios S1 to S6 of ParvaGPU: SLOs and rates of models.
fn parvagpu_scenarios(folder: &Path) -> Result<Vec<Scenario>> {
    let models = parvagpu(folder)?;
    let rows = |name: &str| -> Result<Vec<Vec<Option<f64>>>> {
        let path = folder.join("parvagpu").join(name);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        Ok(lines.map(|line| line.split(',').map(|cell| cell.trim().parse().ok()).collect()).collect())
    };
    let (slos, rates) = (rows("SLO_latency.csv")?, rows("SLO_req_rate.csv")?);
    let each = slos.iter().zip(&rates).enumerate().map(|(index, (slos, rates))| {
        let known = PARVAGPU.iter().zip(slos.iter().zip(rates));
        let tenants: Result<Vec<Tenant>> = known
            .filter_map(|(model, (slo, rate))| Some((*model, (*slo)?, (*rate)?)))
            .map(|(model, slo_ms, rate_hz)| models.tenant(model, slo_ms, Arrivals::Poisson(rate_hz)))
            .collect();
        Ok(models.scenario(&format!("parvagpu-s{}", index + 1), tenants?))
    });
    each.collect()
}

/// Scales the rates of a scenario, so that the work fills this part of the GPU's area.
fn scaled_to(mut scenario: Scenario, load: f64) -> Scenario {
    let area: f64 = scenario.tenants.iter().map(Tenant::area).sum();
    scale(&mut scenario, load / area);
    scenario
}

fn scale(scenario: &mut Scenario, factor: f64) {
    for tenant in &mut scenario.tenants {
        match &mut tenant.arrivals {
            Arrivals::Poisson(rate_hz) => *rate_hz *= factor,
            Arrivals::Gaps(gaps) => gaps.iter_mut().for_each(|gap| *gap /= factor),
            Arrivals::Periodic(_) | Arrivals::Closed => {}
        }
    }
}

/// Returns the same scenario with profiles that are wrong, in turn upwards and downwards.
fn with_wrong_profiles(scenario: &Scenario) -> Scenario {
    let mut wrong = scenario.clone();
    wrong.name.push_str(WRONG_PROFILES);
    for (index, tenant) in wrong.tenants.iter_mut().enumerate() {
        tenant.profile_error = if index % 2 == 0 { WRONG } else { -WRONG };
    }
    wrong
}

/// The four models of the published table, measured: the batch is 16.
fn measured_four(folder: &Path) -> Result<Vec<Scenario>> {
    const BATCH: u32 = 16;
    let table = Table::read(folder, "igniter/v100-tensorrt-fit-points.csv")?;
    let models = Models::read(&table, "sm_percent", percent, ("gpu_latency_ms", 1.0), every)?;
    // iGniter measured no MobileNet.
    let others = gpulet(folder)?;
    let four = [
        (&models, "alexnet", 25.0),
        (&others, "mobilenet", 25.0),
        (&models, "resnet50", 50.0),
        (&models, "vgg19", 100.0),
    ];
    let tenants: Result<Vec<Tenant>> = four
        .into_iter()
        .map(|(models, model, slo_ms)| {
            let tenant = models.tenant(model, slo_ms, Arrivals::Periodic(slo_ms))?;
            Ok(Tenant { batches: vec![BATCH], ..tenant })
        })
        .collect();
    let owed = models.scenario("c4-measured", tenants?);
    let full = Scenario { name: "c4-measured, always work".to_owned(), full: true, ..owed.clone() };
    Ok(vec![with_wrong_profiles(&owed), owed, full])
}

/// iGniter's workloads: model, SLO, ms, requests a second. Each model has three.
const IGNITER: [(&str, [(f64, f64); 3]); 4] = [
    ("alexnet", [(10.0, 1_000.0), (15.0, 500.0), (20.0, 2_000.0)]),
    ("resnet50", [(10.0, 400.0), (20.0, 600.0), (30.0, 200.0)]),
    ("vgg19", [(20.0, 300.0), (30.0, 400.0), (40.0, 200.0)]),
    ("ssd", [(30.0, 200.0), (40.0, 100.0), (50.0, 300.0)]),
];
/// The example of iGniter's README: model, SLO, ms, requests a second.
const IGNITER_EXAMPLE: [(&str, f64, f64); 3] =
    [("alexnet", 15.0, 500.0), ("resnet50", 40.0, 400.0), ("vgg19", 60.0, 200.0)];

fn igniter_scenarios(folder: &Path) -> Result<Vec<Scenario>> {
    let models = igniter(folder)?;
    let poisson = |model: &str, slo_ms, rate_hz| models.tenant(model, slo_ms, Arrivals::Poisson(rate_hz));
    let example: Result<Vec<Tenant>> =
        IGNITER_EXAMPLE.iter().map(|(model, slo_ms, rate_hz)| poisson(model, *slo_ms, *rate_hz)).collect();
    let mut scenarios = vec![scaled_to(models.scenario("igniter-example", example?), LOAD)];
    for workload in 0..3 {
        let tenants: Result<Vec<Tenant>> = IGNITER
            .iter()
            .map(|(model, each)| {
                let (slo_ms, rate_hz) = each[workload];
                poisson(model, slo_ms, rate_hz)
            })
            .collect();
        let name = format!("igniter-w{}", workload + 1);
        scenarios.push(scaled_to(models.scenario(&name, tenants?), LOAD));
    }
    Ok(scenarios)
}

/// Returns scenarios whose programs are bound by the host: between the runs, the host works.
fn host_bound(folder: &Path) -> Result<Vec<Scenario>> {
    const BATCH: u32 = 8;
    let table = Table::read(folder, "has-gpu/latency.csv")?;
    let is_whole =
        |table: &Table, row: &[String]| table.text(row, "quota_percent").is_ok_and(|quota| quota == "100");
    let models = Models::read(&table, "sm_percent", percent, ("latency_ms", 1.0), is_whole)?;
    let mut tenants = Vec::new();
    for (model, points) in &models.points {
        let curve = models.curve(model)?;
        let (whole_ms, area_ms) = (curve.time_ms(WHOLE, BATCH), curve.area_ms(BATCH));
        // A run with all SMs uses them for its area. The host takes the rest of its time.
        let pause_ms = whole_ms - area_ms;
        let work = points.iter().filter(|(batch, ..)| *batch == BATCH).map(|&(batch, part, ms)| {
            (batch, part, (ms - pause_ms).max(area_ms * WHOLE as f64 / part as f64))
        });
        let curve = Curve::new(work).with_context(|| format!("in the profile of `{model}`"))?;
        let slo_ms = 2.0 * whole_ms;
        let tenant = models.tenant(model, slo_ms, Arrivals::Periodic(slo_ms))?;
        let parts = curve.parts(STEP);
        tenants.push(Tenant { batches: vec![BATCH], parts, curve, pause_ms, ..tenant });
    }
    ensure!(!tenants.is_empty(), "the profiles of has-gpu have no model");
    let scenario = models.scenario("host-bound", tenants);
    Ok(vec![Scenario { full: true, ..scenario }])
}

/// A workload of DISB.
#[derive(Deserialize)]
struct Disb {
    tasks: Vec<DisbTask>,
}

#[derive(Deserialize)]
struct DisbTask {
    id: String,
    load: DisbLoad,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum DisbLoad {
    Periodic {
        frequency: f64,
    },
    Poisson {
        frequency: f64,
    },
    /// The times of the requests, ms.
    Trace {
        trace: Vec<f64>,
    },
    Continuous,
}

/// The models of DISB whose times are known, by the beginning of their tasks' names.
const DISB: [(&str, &str); 4] = [
    ("resnet152", "resnet152"),
    ("densenet201", "densenet201"),
    ("vgg19", "vgg19"),
    ("inceptionv3", "inception"),
];
/// The SLO of DISB's tasks in time, ms; DISB gives none.
const DISB_SLO_MS: f64 = 100.0;

fn disb(folder: &Path) -> Result<Vec<Scenario>> {
    let models = gpulet(folder)?;
    let mut scenarios = Vec::new();
    for name in ["D", "E", "REAL"] {
        let path = folder.join("disb").join(format!("{name}.json"));
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let workload: Disb =
            serde_json::from_str(&text).with_context(|| format!("in the workload {}", path.display()))?;
        let mut tenants = Vec::new();
        for task in workload.tasks {
            let model = DISB.iter().find(|(begins, _)| task.id.starts_with(begins));
            let Some((_, model)) = model else { continue };
            let arrivals = match task.load {
                DisbLoad::Periodic { frequency } => Arrivals::Gaps(vec![1e3 / frequency]),
                DisbLoad::Poisson { frequency } => Arrivals::Poisson(frequency),
                DisbLoad::Trace { trace } => {
                    let gaps: Vec<f64> = trace.windows(2).map(|pair| (pair[1] - pair[0]).max(0.0)).collect();
                    ensure!(gaps.iter().sum::<f64>() > 0.0, "{}: the trace is empty", task.id);
                    Arrivals::Gaps(gaps)
                }
                DisbLoad::Continuous => Arrivals::Closed,
            };
            let mut tenant = models.tenant(model, DISB_SLO_MS, arrivals)?;
            tenant.batches = vec![1];
            tenants.push(tenant);
        }
        let mut scenario = models.scenario(&format!("disb-{}", name.to_lowercase()), tenants);
        // The best-effort tasks have the models of the others.
        for (index, tenant) in scenario.tenants.iter_mut().enumerate() {
            tenant.name = format!("{}-{index}", tenant.name);
        }
        scenarios.push(scenario);
    }
    Ok(scenarios)
}

/// Returns scenarios with recorded gaps between requests: with exact profiles, with wrong profiles,
/// and with a model that another model replaces.
fn traces(folder: &Path) -> Result<Vec<Scenario>> {
    let models = igniter(folder)?;
    let path = folder.join("orion/inter_arrival_times_s.json");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let gaps_s: Vec<f64> =
        serde_json::from_str(&text).with_context(|| format!("in the gaps {}", path.display()))?;
    ensure!(gaps_s.iter().sum::<f64>() > 0.0, "{} has no gap", path.display());
    let slos = [("alexnet", 40.0), ("resnet50", 80.0), ("vgg19", 120.0), ("ssd", 200.0)];
    let tenants: Result<Vec<Tenant>> = slos
        .into_iter()
        .enumerate()
        .map(|(index, (model, slo_ms))| {
            let mut gaps: Vec<f64> = gaps_s.iter().map(|gap| gap * 1e3).collect();
            // Each tenant begins elsewhere in the trace.
            let begin = index * gaps.len() / slos.len();
            gaps.rotate_left(begin);
            models.tenant(model, slo_ms, Arrivals::Gaps(gaps))
        })
        .collect();
    let exact = scaled_to(models.scenario("orion-gaps", tenants?), LOAD);
    let mut swapped = exact.clone();
    swapped.name = "orion-gaps, alexnet becomes resnet50".to_owned();
    swapped.tenants[0].later = Some(models.curve("resnet50")?);
    swapped.tenants[0].slo_ms = 80.0;
    // The second model is some six times as large.
    scale(&mut swapped, 0.5);
    Ok(vec![with_wrong_profiles(&exact), exact, swapped])
}

/// The SLO of a program whose profile has none: this many times the run of its largest batch on all
/// SMs.
const RUNS_IN_SLO: f64 = 2.0;

/// Returns the scenario of the profiles in this folder; `None` if the folder has none. If a profile
/// has no rate, the function chooses the rates of all programs. Together the programs fill a fixed
/// part of the GPU's area, in equal parts.
fn own(folder: &Path) -> Result<Option<Scenario>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let paths: Result<Vec<_>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut files = paths?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    if files.is_empty() {
        return Ok(None);
    }
    ensure!(
        files.len() <= MOST_TENANTS,
        "{} has {} profiles: give at most {MOST_TENANTS}",
        folder.display(),
        files.len()
    );
    let mut models = Models::default();
    let mut profiles = Vec::new();
    for file in &files {
        let profile = Profile::read(file).with_context(|| format!("in the profile {}", file.display()))?;
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let points = profile.points.iter().map(|point| (point.batch, point.part_percent, point.ms));
        models.points.insert(name.clone(), points.collect());
        profiles.push((name, profile));
    }
    let has_rates = profiles.iter().all(|(_, profile)| profile.rate_hz.is_some());
    let mut tenants = Vec::new();
    for (name, profile) in profiles {
        let curve = models.curve(&name)?;
        let batches = curve.batches();
        let largest = batches.last().copied().unwrap_or(1);
        let slo_ms = profile.slo_ms.unwrap_or(RUNS_IN_SLO * curve.time_ms(WHOLE, largest));
        let pauses = batches.iter().filter_map(|batch| profile.widest(*batch)).map(|point| point.host_ms());
        let pause_ms = pauses.sum::<f64>() / batches.len() as f64;
        let alone = models.tenant(&name, slo_ms, Arrivals::Poisson(1.0))?;
        let rate_hz = profile.rate_hz.filter(|_| has_rates).unwrap_or(1.0 / alone.area());
        ensure!((1e-3..=1e6).contains(&rate_hz), "`rate_hz` of `{name}` is {rate_hz}: give 0.001 to 1000000");
        tenants.push(Tenant { arrivals: Arrivals::Poisson(rate_hz), pause_ms, ..alone });
    }
    let scenario = models.scenario("profiles", tenants);
    Ok(Some(if has_rates { scenario } else { scaled_to(scenario, LOAD) }))
}

/// Returns the scenarios of the measurements in this folder.
///
/// # Errors
/// A file is missing, or has other content.
pub fn scenarios(folder: &Path) -> Result<Vec<Scenario>> {
    ensure!(folder.is_dir(), "{} is no folder", folder.display());
    if let Some(own) = own(folder)? {
        return Ok(vec![with_wrong_profiles(&own), own]);
    }
    let mut scenarios = measured_four(folder)?;
    scenarios.extend(igniter_scenarios(folder)?);
    scenarios.extend(host_bound(folder)?);
    scenarios.extend(traces(folder)?);
    scenarios.extend(disb(folder)?);
    Ok(scenarios)
}

/// The mixes of gpulet's scenarios whose models were measured: model, SLO, ms. DenseNet-169 stands
/// for DenseNet-161, and MobileNet for its second version.
const GPULET: [(&str, &[(&str, f64)]); 2] = [
    ("gpulet-scen2", &[("densenet169", 202.0), ("vgg16", 142.0)]),
    ("gpulet-scen3", &[("resnet50", 108.0), ("vgg16", 142.0), ("mobilenet", 64.0)]),
];
/// The policies whose greatest rates are found.
const AT_MOST: [&str; 7] = [
    "deepres",
    "lease-core",
    "lease-core-shares",
    "temporal-kernel",
    "static-parts",
    "gpulet-like",
    "gslice-like",
];
/// The part of its requests that each tenant has answered in time at the greatest rates.
const ANSWERED: f64 = 0.99;
/// The number of rates that the search tries.
const TRIES: usize = 7;
/// The least length of a try, ms, and the number of SLOs that a try lasts at least.
const TRY_MS: f64 = 5_000.0;
const SLOS_PER_TRY: f64 = 4.0;

/// Returns a row for each policy and each mix. The row is for the greatest rates at which each
/// tenant has 99 % of its requests answered in time. The rates of a mix stay in the same
/// proportion.
///
/// # Errors
/// A file is missing, or has other content.
pub fn most_rates(folder: &Path) -> Result<Vec<Row>> {
    let mixes = match own(folder)? {
        Some(own) => vec![own],
        None => published_mixes(folder)?,
    };
    let mut rows = Vec::new();
    for mut scenario in mixes {
        let longest_ms = scenario.tenants.iter().map(|tenant| tenant.slo_ms).fold(0.0, f64::max);
        scenario.duration_ms = TRY_MS.max(SLOS_PER_TRY * longest_ms);
        scenario.name.push_str(", greatest rates");
        for name in AT_MOST {
            let (mut least, mut most) = (0.0, 1.0);
            for _ in 0..TRIES {
                let load = f64::midpoint(least, most);
                let tried = scaled_to(scenario.clone(), load);
                let outcome = sim::run(&tried, &mut *policy::of(name, &tried));
                if served_vs_owed(&tried, &outcome) >= ANSWERED { least = load } else { most = load }
            }
            let reached = scaled_to(scenario.clone(), least.max(1.0 / f64::from(1 << TRIES)));
            rows.extend(evaluate(&reached, &[name]));
        }
    }
    Ok(rows)
}

/// Returns the mixes of gpulet and of ParvaGPU.
fn published_mixes(folder: &Path) -> Result<Vec<Scenario>> {
    let models = gpulet(folder)?;
    let mut scenarios = Vec::new();
    for (name, mix) in GPULET {
        // Equal parts of the area for each model.
        let tenants: Result<Vec<Tenant>> = mix
            .iter()
            .map(|(model, slo_ms)| {
                let one = models.tenant(model, *slo_ms, Arrivals::Poisson(1.0))?;
                let rate_hz = 1.0 / one.area();
                Ok(Tenant { arrivals: Arrivals::Poisson(rate_hz), ..one })
            })
            .collect();
        scenarios.push(models.scenario(name, tenants?));
    }
    scenarios.extend(parvagpu_scenarios(folder)?);
    Ok(scenarios)
}
