//! Draws mixes of programs at random, and shows how deepres does in the worst of them. The mixes
//! stand for what nobody thought of when the scenarios were written.
//!
//! Each tenant of a mix is an owner. Its kernels take 20 us to 30 ms, its bursts 0.1 to 300 ms, and
//! its pauses up to 3 s. All three are drawn evenly over their orders of magnitude. Shares are in
//! the ratio of weights from 1 to 10, and together are the whole GPU.
//!
//! A run ends at some moment of each program's step, and one step more or less would be a large
//! part of a slow program's work. So progress here is the GPU time of a tenant between two means:
//! the mean over the first quarter of the samples of its curve, and the mean over the last quarter.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{panic, thread};

use anyhow::{Context as _, Result, ensure};
use deepres_policy::entitlement::Entitlement;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::Serialize;

use crate::bound::bound;
use crate::device::Tenant;
use crate::engine::{Run, Witness};
use crate::metrics::worst;
use crate::policy::Policy;
use crate::scenario::Scenario;
use crate::standings::Standings;

/// Fewest and most tenants of a mix.
const TENANTS: (u64, u64) = (2, 12);
/// Shortest and longest kernel, us.
const KERNEL_US: (f64, f64) = (20.0, 30_000.0);
/// Shortest and longest burst of kernels, us. A burst has one kernel at least.
const BURST_US: (f64, f64) = (100.0, 300_000.0);
/// Shortest and longest pause that is not 0, us.
const PAUSE_US: (f64, f64) = (100.0, 3_000_000.0);
/// Least and greatest weight.
const WEIGHTS: (u64, u64) = (1, 10);
/// Part of the tenants that answer requests. The others work in steps.
const SERVICES: f64 = 0.3;
/// Part of the programs with steps that never pause.
const WITHOUT_PAUSE: f64 = 0.3;
/// Variation of the kernels and pauses of half of the tenants.
const JITTER: f64 = 0.1;

/// A mix lasts for so many cycles of its slowest tenant, where that is within [`LENGTH_S`].
const CYCLES: f64 = 40.0;
/// A mix lasts until each tenant's share is so many of the longest kernels, within [`LENGTH_S`].
/// Which tenant a long kernel comes before is chance, and must not count.
const KERNELS: f64 = 50.0;
/// Shortest and longest measured time of a mix, s.
const LENGTH_S: (f64, f64) = (10.0, 120.0);
/// Most kernels of a mix if each tenant were alone. A scenario may have no more than twice as many.
const MOST_KERNELS: f64 = 1e7;
/// The time before, as a part of the measured time.
const WARMUP: f64 = 0.15;

/// Number of mixes whose scenarios are written, for each figure.
const WORST: usize = 5;

/// The figures of one mix under deepres.
#[derive(Debug, Clone, PartialEq)]
pub struct Mix {
    /// Number of the mix, from 0.
    pub number: u64,
    /// Number of its tenants.
    pub tenants: usize,
    /// The least progress of a tenant, as a part of its progress under the fluid limit.
    pub vs_gps: f64,
    /// The same, as a part of the lesser of plain time-slicing's and the fluid limit's.
    pub vs_nothing: f64,
    /// `vs_gps` of the best scheduler that [`crate::bound`] knows.
    pub bound: f64,
}

/// A figure of a mix.
type Figure = fn(&Mix) -> f64;

impl Mix {
    /// The figures by which mixes are compared, with their names in reports.
    pub const FIGURES: [(&str, Figure); 3] = [
        ("of the fluid limit", |mix| mix.vs_gps),
        ("of the bound", |mix| mix.vs_bound()),
        ("of nothing", |mix| mix.vs_nothing),
    ];

    /// Returns `vs_gps` as a part of the bound, or of the fluid limit if that is less.
    pub fn vs_bound(&self) -> f64 {
        self.vs_gps / self.bound.min(1.0)
    }
}

/// The figures of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sweep {
    /// Number of mixes.
    pub mixes: u64,
    /// The least progress of any tenant of any mix, as a part of its progress under the fluid
    /// limit.
    pub worst_progress_vs_gps: f64,
    /// The least such part of a mix as a part of the mix's bound, where that is less than 1.
    pub worst_vs_bound: f64,
    /// The median over mixes of the least such part in a mix.
    pub median_progress_vs_gps: f64,
    /// The least progress of any tenant of any mix, as a part of the lesser of plain time-slicing's
    /// and the fluid limit's.
    pub worst_vs_nothing: f64,
    /// Scenarios of the mixes that are the worst by any of the figures.
    pub worst_files: Vec<PathBuf>,
    /// The figures of each mix.
    #[serde(skip)]
    pub each: Vec<Mix>,
}

/// Draws and runs this many mixes. Writes the scenarios of the worst into `folder`.
///
/// # Errors
/// There are no mixes, or a scenario cannot be written.
pub fn run(mixes: u64, seed: u64, folder: &Path) -> Result<Sweep> {
    ensure!(mixes > 0, "a sweep needs a mix: give --sweep 1 or more");
    let each = on_all_processors(mixes, |number| evaluate(&scenario(seed, number)?, number))?;
    let mut worst_files = Vec::new();
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for number in worst_of(&each) {
        let file = folder.join(format!("seed-{seed}-mix-{number}.toml"));
        std::fs::write(&file, draw(seed, number))
            .with_context(|| format!("cannot write {}", file.display()))?;
        worst_files.push(file);
    }
    let least = |figure: fn(&Mix) -> f64| each.iter().map(figure).fold(f64::INFINITY, f64::min);
    Ok(Sweep {
        mixes,
        worst_progress_vs_gps: least(|mix| mix.vs_gps),
        worst_vs_bound: least(Mix::vs_bound),
        median_progress_vs_gps: median(each.iter().map(|mix| mix.vs_gps).collect()),
        worst_vs_nothing: least(|mix| mix.vs_nothing),
        worst_files,
        each,
    })
}

/// Returns the numbers of the mixes that are the worst by any figure, those of the first figure
/// first.
pub fn worst_of(each: &[Mix]) -> Vec<u64> {
    let mut worst: Vec<u64> = Vec::new();
    for (_, figure) in Mix::FIGURES {
        let mut order: Vec<&Mix> = each.iter().collect();
        order.sort_by(|one, other| figure(one).total_cmp(&figure(other)));
        for mix in order.into_iter().take(WORST) {
            if !worst.contains(&mix.number) {
                worst.push(mix.number);
            }
        }
    }
    worst
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Calls `task` for each number below `count`, on all of the machine's processors. Returns the
/// results in the order of the numbers.
fn on_all_processors<T: Send>(count: u64, task: impl Fn(u64) -> Result<T> + Sync) -> Result<Vec<T>> {
    let next = AtomicU64::new(0);
    let work = || {
        let numbers = std::iter::from_fn(|| {
            let number = next.fetch_add(1, Ordering::Relaxed);
            (number < count).then_some(number)
        });
        numbers.map(|number| Ok((number, task(number)?))).collect::<Result<Vec<(u64, T)>>>()
    };
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    let mut results = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let results = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| panic::resume_unwind(panic)))
            .collect::<Result<Vec<_>>>()?;
        anyhow::Ok(results.into_iter().flatten().collect::<Vec<_>>())
    })?;
    results.sort_by_key(|(number, _)| *number);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// Runs one mix.
fn evaluate(scenario: &Scenario, number: u64) -> Result<Mix> {
    let at_first = Standings::at_first(scenario);
    let ours = Policy::Deepres.run(scenario, &at_first, &mut Unwatched);
    let under = |policy: Policy| progress(&policy.run(scenario, &ours.standings, &mut Unwatched));
    let (fluid, turns) = (under(Policy::Gps), under(Policy::TimeSlice));
    let bound = bound(scenario, &ours.standings, &fluid, progress);
    let lesser: Vec<f64> = fluid.iter().zip(&turns).map(|(fluid, turns)| fluid.min(*turns)).collect();
    let ours = progress(&ours);
    let ran = |figure: Option<f64>| figure.with_context(|| format!("no tenant of mix {number} ever ran"));
    Ok(Mix {
        number,
        tenants: scenario.tenants.len(),
        vs_gps: ran(worst(scenario, &ours, &fluid))?,
        vs_nothing: ran(worst(scenario, &ours, &lesser))?,
        bound: ran(bound)?,
    })
}

/// Returns the GPU time of each tenant between the first and the last quarter of the measured time,
/// ns.
pub fn progress(run: &Run) -> Vec<f64> {
    let mean = |samples: &[u64]| {
        samples.iter().map(|had_ns| *had_ns as f64).sum::<f64>() / samples.len().max(1) as f64
    };
    let between = |curve_ns: &[u64]| {
        let quarter = curve_ns.len() / 4;
        mean(&curve_ns[curve_ns.len() - quarter..]) - mean(&curve_ns[..quarter])
    };
    run.outcomes.iter().map(|outcome| between(&outcome.curve_ns)).collect()
}

/// An observer that looks away, because a sweep needs no lags.
struct Unwatched;

impl Witness for Unwatched {
    fn available(&mut self, _: u64, _: Tenant, _: u64) {}
    fn look(&mut self, _: u64, _: &[u64]) {}
    fn owe(&mut self, _: u64, _: &[Entitlement]) {}
    fn rests(&mut self, _: u64, _: Tenant) {}
    fn lag_ns(&self, _: Tenant) -> u64 {
        0
    }
    fn wanted_ns(&self, _: Tenant) -> u64 {
        0
    }
    fn claim_ns(&self, _: Tenant) -> u64 {
        0
    }
    fn owed_ppm(&self, _: Tenant) -> u32 {
        0
    }
}

/// Returns a mix as a scenario.
fn scenario(seed: u64, number: u64) -> Result<Scenario> {
    Scenario::parse(&draw(seed, number)).with_context(|| format!("in mix {number} of seed {seed}"))
}

/// A tenant of a mix.
struct Drawn {
    weight: u64,
    kernels: u64,
    kernel_us: f64,
    pause_us: f64,
    is_service: bool,
    is_exponential: bool,
    jitter: f64,
}

impl Drawn {
    fn new(random: &mut Random) -> Self {
        let is_service = random.is(SERVICES);
        let never_pauses = random.is(WITHOUT_PAUSE) && !is_service;
        let kernel_us = rounded(random.log_uniform(KERNEL_US));
        let burst_us = random.log_uniform(BURST_US);
        let pause_us = rounded(random.log_uniform(PAUSE_US));
        Self {
            weight: random.whole(WEIGHTS),
            kernels: ((burst_us / kernel_us).round() as u64).max(1),
            kernel_us,
            pause_us: if never_pauses { 0.0 } else { pause_us },
            is_service,
            is_exponential: random.is(0.5) && !never_pauses,
            jitter: if random.is(0.5) { JITTER } else { 0.0 },
        }
    }

    fn burst_us(&self) -> f64 {
        self.kernels as f64 * self.kernel_us
    }

    /// Writes the tenant's lines of a scenario.
    fn write(&self, text: &mut String, name: usize, weights: u64) {
        /// Digits of a share in percent, as many as a scenario can have.
        const STEPS: u64 = 10_000;
        // The share is rounded down, so that all shares fit.
        let share = (self.weight * 100 * STEPS / weights) as f64 / STEPS as f64;
        let Self { kernels, kernel_us, pause_us, jitter, .. } = self;
        let work = format!("kernels = {kernels}\nkernel_us = {kernel_us}\njitter = {jitter}\n");
        let how = if self.is_service {
            let per_s = rounded(1e6 / (self.burst_us() + pause_us));
            format!("[tenant.requests]\narrival = \"poisson\"\nper_s = {per_s}\n{work}")
        } else {
            let pauses = if self.is_exponential { "exponential" } else { "regular" };
            let pause_ms = pause_us / 1e3;
            format!("[tenant.steps]\n{work}pause_ms = {pause_ms}\npauses = \"{pauses}\"\n")
        };
        text.push_str(&format!("\n[[tenant]]\nname = \"t{name}\"\nshare = \"{share}%\"\n{how}"));
    }
}

/// Returns the text of a mix.
fn draw(seed: u64, number: u64) -> String {
    let mut random = Random::new(seed, number);
    let count = random.whole(TENANTS);
    let tenants: Vec<Drawn> = (0..count).map(|_| Drawn::new(&mut random)).collect();
    let weights = tenants.iter().map(|tenant| tenant.weight).sum();
    let (length_s, warmup_s) = length_s(&tenants, weights);
    let mut text = format!(
        "name = \"mix {number} of seed {seed}\"\nshows = \"Programs that were drawn at random share a GPU.\"\nduration_s = {}\n\
         warmup_s = {warmup_s}\nseed = {number}\n",
        length_s + warmup_s
    );
    for (name, tenant) in (1..).zip(&tenants) {
        tenant.write(&mut text, name, weights);
    }
    text
}

/// Returns the measured time of a mix and the time before, whole seconds.
fn length_s(tenants: &[Drawn], weights: u64) -> (u64, u64) {
    let longest_us = tenants.iter().map(|tenant| tenant.kernel_us).fold(0.0, f64::max);
    let wished_us = tenants.iter().map(|tenant| {
        let share = tenant.weight as f64 / weights as f64;
        let cycle_us = tenant.pause_us + tenant.burst_us() / share;
        (CYCLES * cycle_us).max(KERNELS * longest_us / share)
    });
    let length_s = (wished_us.fold(0.0, f64::max) / 1e6).clamp(LENGTH_S.0, LENGTH_S.1);
    let kernels_per_s: f64 = tenants.iter().map(|tenant| 1e6 / tenant.kernel_us).sum();
    let length_s = length_s.min(MOST_KERNELS / kernels_per_s).ceil();
    (length_s as u64, (length_s * WARMUP).ceil() as u64)
}

/// Returns a number to three digits, so that people can read the scenario.
fn rounded(number: f64) -> f64 {
    let step = 10f64.powf(number.log10().floor() - 2.0);
    // Division by a power of ten is exact to the last digit, and multiplication by its inverse is
    // not.
    if step < 1.0 { (number / step).round() / (1.0 / step).round() } else { (number / step).round() * step }
}

/// Random numbers of one mix.
struct Random(ChaCha8Rng);

impl Random {
    fn new(seed: u64, number: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&number.to_le_bytes());
        Self(ChaCha8Rng::from_seed(bytes))
    }

    /// Returns a number from [0, 1).
    fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn is(&mut self, probability: f64) -> bool {
        self.uniform() < probability
    }

    fn whole(&mut self, (least, most): (u64, u64)) -> u64 {
        least + (self.uniform() * (most - least + 1) as f64) as u64
    }

    fn log_uniform(&mut self, (least, most): (f64, f64)) -> f64 {
        least * (most / least).powf(self.uniform())
    }
}
