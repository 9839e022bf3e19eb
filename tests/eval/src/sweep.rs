//! Draws mixes of programs at random, and shows the figures of deepres in the worst mixes. The
//! mixes stand for cases of which nobody thought when writing the scenarios.
//!
//! Each tenant of a mix is an owner. A tenant's kernels take 20 us to 30 ms, its bursts 0.1 to 300
//! ms, and its pauses up to 3 s. All three are log-uniform. Shares are in the ratio of weights from
//! 1 to 10, and together are the whole GPU.
//!
//! A run ends at some moment of each program's step. One step more or less would be a large part of
//! a slow program's work. So in a sweep, the progress of a tenant is a difference of two means of
//! its GPU time. From the mean over the last quarter of the samples, the sweep subtracts the mean
//! over the first quarter.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{panic, thread};

use anyhow::{Context as _, Result, ensure};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::Serialize;

use crate::bound::bound;
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
/// Part of the tenants that answer requests. The other tenants work in steps.
const SERVICES: f64 = 0.3;
/// Part of the programs with steps that never pause.
const WITHOUT_PAUSE: f64 = 0.3;
/// Variation of the kernels and pauses of half of the tenants.
const JITTER: f64 = 0.1;

/// The length of a mix, in cycles of its slowest tenant, within the bounds of [`LENGTH_S`].
const CYCLES: f64 = 40.0;
/// The fewest longest kernels that each tenant's share of a mix holds, within [`LENGTH_S`]. Chance
/// decides before which tenant a long kernel comes. With this number of kernels, chance hardly
/// counts.
const KERNELS: f64 = 50.0;
/// Shortest and longest measured time of a mix, s.
const LENGTH_S: (f64, f64) = (10.0, 120.0);
/// The most kernels of a mix if each tenant were alone. A scenario may have at most twice this
/// number.
const MOST_KERNELS: f64 = 1e7;
/// The time before the measured time, as a part of the measured time.
const WARMUP: f64 = 0.15;

/// Number of mixes whose scenarios are written, for each figure.
const WORST: usize = 5;

/// The figures of one mix under deepres.
#[derive(Debug, Clone, PartialEq)]
pub struct Mix {
    /// Number of the mix, from 0.
    pub number: u64,
    /// Number of tenants of the mix.
    pub tenants: usize,
    /// The least progress of a tenant, as a part of its progress under the fluid limit.
    pub vs_gps: f64,
    /// The least progress of a tenant, as a part of the lesser of its progress under plain
    /// time-slicing and under the fluid limit.
    pub vs_nothing: f64,
    /// `vs_gps` of the best scheduler that [`crate::bound`] knows.
    pub bound: f64,
}

/// A function that returns a figure of a mix.
pub type Figure = fn(&Mix) -> f64;

impl Mix {
    /// The figures by which mixes are compared, with their names in reports.
    pub const FIGURES: [(&str, Figure); 3] = [
        ("of the fluid limit", |mix| mix.vs_gps),
        ("of the bound", |mix| mix.vs_bound()),
        ("of nothing", |mix| mix.vs_nothing),
    ];

    /// Returns `vs_gps` as a part of the bound; if the bound is above 1, returns `vs_gps`.
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
    /// The least `vs_gps` of a mix, divided by the mix's bound if the bound is below 1.
    pub worst_vs_bound: f64,
    /// The median of `vs_gps` over mixes.
    pub median_progress_vs_gps: f64,
    /// The least progress of a tenant of any mix, as a part of its progress under plain
    /// time-slicing or under the fluid limit. Of the two, the lesser progress counts.
    pub worst_vs_nothing: f64,
    /// Scenario files of the mixes that are the worst by any figure.
    pub worst_files: Vec<PathBuf>,
    /// The figures of each mix.
    #[serde(skip)]
    pub each: Vec<Mix>,
}

/// Draws and runs `mixes` mixes, and returns their figures. Writes the scenarios of the worst mixes
/// into `folder`.
///
/// # Errors
/// `mixes` is 0, or a scenario cannot be written.
pub fn run(mixes: u64, seed: u64, folder: &Path) -> Result<Sweep> {
    ensure!(mixes > 0, "a sweep needs a mix: give --sweep 1 or more");
    let each = on_all_processors(mixes, |number| evaluate(&scenario(seed, number)?, number))?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let sweep = Sweep::new(each, |number| file(folder, seed, number));
    write_worst(&sweep, seed)?;
    Ok(sweep)
}

/// Returns the file of a mix.
fn file(folder: &Path, seed: u64, number: u64) -> PathBuf {
    folder.join(format!("seed-{seed}-mix-{number}.toml"))
}

/// Writes the scenarios of the worst mixes.
fn write_worst(sweep: &Sweep, seed: u64) -> Result<()> {
    for (mix, file) in sweep.worst() {
        let text = draw(seed, mix.number);
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

impl Sweep {
    /// Returns the figures of these mixes. `file` returns the file of a mix by its number.
    pub fn new(each: Vec<Mix>, file: impl Fn(u64) -> PathBuf) -> Self {
        let least = |figure: fn(&Mix) -> f64| each.iter().map(figure).fold(f64::INFINITY, f64::min);
        Self {
            mixes: each.len() as u64,
            worst_progress_vs_gps: least(|mix| mix.vs_gps),
            worst_vs_bound: least(Mix::vs_bound),
            median_progress_vs_gps: median(each.iter().map(|mix| mix.vs_gps).collect()),
            worst_vs_nothing: least(|mix| mix.vs_nothing),
            worst_files: worst_of(&each).into_iter().map(file).collect(),
            each,
        }
    }

    /// Returns the mixes that are the worst by any of the figures, with their scenarios.
    pub fn worst(&self) -> impl Iterator<Item = (&Mix, &Path)> {
        let mixes = worst_of(&self.each)
            .into_iter()
            .filter_map(|number| self.each.iter().find(|mix| mix.number == number));
        mixes.zip(self.worst_files.iter().map(PathBuf::as_path))
    }

    /// Returns the scenario of one of the worst mixes.
    pub fn file_of(&self, number: u64) -> Option<&Path> {
        self.worst().find(|(mix, _)| mix.number == number).map(|(_, file)| file)
    }
}

/// Returns the numbers of the mixes that are the worst by any figure. The worst mixes by the first
/// figure come first.
fn worst_of(each: &[Mix]) -> Vec<u64> {
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

/// An observer that observes nothing, because a sweep needs no lags.
struct Unwatched;

impl Witness for Unwatched {}

/// Returns a mix as a scenario.
fn scenario(seed: u64, number: u64) -> Result<Scenario> {
    Scenario::parse(&draw(seed, number)).with_context(|| format!("in mix {number} of seed {seed}"))
}

/// A tenant of a mix, with properties drawn at random.
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

/// Returns the measured time of a mix, and the time before the measured time, whole seconds.
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

/// Returns a number rounded to three digits, so that people can read the scenario.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Outcome;
    use crate::scenario::Pauses;

    #[test]
    fn each_mix_is_a_scenario_of_owners_within_the_bounds_of_the_draw() {
        let within = |(least, most): (f64, f64), us: f64| us >= 0.99 * least && us <= 1.01 * most;
        for number in 0..300 {
            let scenario = scenario(7, number).unwrap();
            assert!((2..=12).contains(&scenario.tenants.len()));
            for tenant in &scenario.tenants {
                let profile = tenant.steps.as_ref().map(|steps| &steps.profile);
                let part = profile.unwrap_or_else(|| &tenant.requests.as_ref().unwrap().profile)[0];
                let kernel_us = part.kernel_ns as f64 / 1e3;
                assert!(!tenant.is_guest() && within(KERNEL_US, kernel_us), "{number}: {part:?}");
                let burst_us = kernel_us * part.kernels as f64;
                assert!(burst_us >= 0.6 * BURST_US.0 && burst_us <= 1.1 * BURST_US.1, "{number}: {part:?}");
                let pause_us = tenant.steps.as_ref().map_or(0.0, |steps| steps.pause_ns as f64 / 1e3);
                assert!(pause_us == 0.0 || within(PAUSE_US, pause_us), "{number}: {pause_us}");
            }
            let shares: u32 = scenario.tenants.iter().filter_map(|tenant| tenant.share_ppm).sum();
            assert!((999_980..=1_000_000).contains(&shares), "{number}: {shares}");
        }
    }

    #[test]
    fn the_draw_has_every_kind_of_program() {
        let tenants: Vec<_> = (0..100).flat_map(|number| scenario(1, number).unwrap().tenants).collect();
        let part = |is: &dyn Fn(&crate::scenario::Tenant) -> bool| {
            tenants.iter().filter(|tenant| is(tenant)).count() as f64 / tenants.len() as f64
        };
        let steps = |is: fn(&crate::scenario::Steps) -> bool| {
            part(&|tenant: &crate::scenario::Tenant| tenant.steps.as_ref().is_some_and(is))
        };
        let parts = [
            part(&|tenant| tenant.requests.is_some()),
            steps(|steps| steps.pause_ns == 0),
            steps(|steps| steps.pauses == Pauses::Exponential),
            steps(|steps| steps.pause_ns > 0 && steps.pauses == Pauses::Regular),
            part(&|tenant| tenant.longest_kernel_ns() < 200_000),
            part(&|tenant| tenant.longest_kernel_ns() > 5_000_000),
        ];
        assert!(parts.iter().all(|part| (0.1..0.5).contains(part)), "{parts:?}");
    }

    #[test]
    fn a_mix_depends_on_its_seed_and_number_and_on_nothing_else() {
        let tenants = |seed, number| {
            let text = draw(seed, number);
            text.split_once("[[tenant]]").unwrap().1.to_owned()
        };
        assert_eq!(tenants(3, 5), tenants(3, 5));
        assert!(tenants(3, 5) != tenants(3, 6) && tenants(3, 5) != tenants(4, 5));
    }

    #[test]
    fn a_sweep_is_the_same_each_time_and_its_files_run() {
        let folder = tempfile::tempdir().unwrap();
        // The test draws short mixes, so that the test is short.
        let short = |number| {
            let mut scenario = scenario(2, number)?;
            (scenario.duration_ns, scenario.warmup_ns) = (3_000_000_000, 300_000_000);
            evaluate(&scenario, number)
        };
        let each = on_all_processors(4, short).unwrap();
        assert_eq!(each, on_all_processors(4, short).unwrap());
        assert_eq!(each.iter().map(|mix| mix.number).collect::<Vec<_>>(), [0, 1, 2, 3]);
        let sweep = Sweep::new(each, |number| file(folder.path(), 2, number));
        write_worst(&sweep, 2).unwrap();
        for (mix, file) in sweep.worst() {
            assert_eq!(Scenario::read(file).unwrap().name, format!("mix {} of seed 2", mix.number));
        }
    }

    #[test]
    fn the_worst_mixes_by_each_figure_are_named_once_each() {
        let mix = |number, vs_gps, bound, vs_nothing| Mix { number, tenants: 2, vs_gps, bound, vs_nothing };
        let mut each: Vec<Mix> = (0..20).map(|number| mix(number, 1.0, 1.0, 1.0)).collect();
        each[7] = mix(7, 0.5, 0.5, 0.9);
        each[11] = mix(11, 0.8, 1.1, 0.2);
        let sweep = Sweep::new(each, |number| PathBuf::from(number.to_string()));
        let numbers: Vec<u64> = sweep.worst().map(|(mix, _)| mix.number).collect();
        assert!(numbers.starts_with(&[7, 11]), "{numbers:?}");
        assert_eq!(numbers.iter().filter(|number| [7, 11].contains(*number)).count(), 2, "{numbers:?}");
        let figures = (sweep.worst_progress_vs_gps, sweep.worst_vs_bound, sweep.worst_vs_nothing);
        assert_eq!((figures, sweep.median_progress_vs_gps), ((0.5, 0.8, 0.2), 1.0));
    }

    #[test]
    fn one_step_more_or_less_at_the_end_hardly_counts_as_progress() {
        // One run has a step of 10 every 10 samples, and the other run has its steps half a step
        // later.
        let run = |shift: u64| {
            let curve_ns = (0..400).map(|sample| (sample + shift) / 10 * 10).collect();
            let outcome = Outcome { curve_ns, ..Outcome::default() };
            Run {
                outcomes: vec![outcome],
                busy_ns: 0,
                harvested_ns: 0,
                standings: Standings::at_first(&scenario(1, 0).unwrap()),
            }
        };
        assert_eq!(progress(&run(0)), [300.0]);
        assert_eq!(progress(&run(5)), [300.0]);
    }

    #[test]
    fn numbers_are_rounded_to_three_digits() {
        assert_eq!([20.0467, 0.123456, 123456.0, 9.996].map(rounded), [20.0, 0.123, 123_000.0, 10.0]);
    }

    #[test]
    fn a_failed_task_fails_the_sweep() {
        let task = |number| if number == 3 { anyhow::bail!("number 3") } else { Ok(number) };
        assert_eq!(on_all_processors(3, task).unwrap(), [0, 1, 2]);
        assert_eq!(on_all_processors(9, task).unwrap_err().to_string(), "number 3");
    }
}
