//! A program with pauses beside another program, by real processes. Each program is owed half of
//! the GPU. The evaluation (`tests/eval`) computes the fluid limit and the bound of the same pair.

use std::fs;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::cell::{Cell, Measured, Tenant};
use super::tenants::Bench;
use crate::{build, command, eval};

/// Share of each tenant, percent.
const SHARE: u32 = 50;
/// GPU time that the simulated GPU adds to each kernel, µs (`launch_overhead_ns`).
const LAUNCH_US: u32 = 1;
/// How far a tenant may be below the limit, percentage points.
const ALLOWED_POINTS: f64 = 3.0;

const US_PER_MS: f64 = 1e3;
const NS_PER_US: f64 = 1e3;

/// A program that repeats its kernels, a wait for them, and a time on the host.
#[derive(Clone, Copy)]
pub struct Program {
    kernels: u32,
    kernel_us: u32,
    /// The program in the words of the client `pace`.
    pub steps: &'static [&'static str],
}

/// 1 ms of work, and 0.5 ms on the host.
pub const PAUSING: Program =
    Program { kernels: 5, kernel_us: 200, steps: &["busy_200usx5", "sync", "wait:500"] };
/// Kernels of 12 ms.
const LONG: Program = Program { kernels: 20, kernel_us: 12_000, steps: &["busy_12000usx20", "sync"] };

/// The pairs: what runs beside the program with pauses, and both programs.
pub const PAIRS: [(&str, [Program; 2]); 2] =
    [("kernels-of-12-ms", [PAUSING, LONG]), ("itself", [PAUSING, PAUSING])];

/// The figures of a pair.
#[derive(Serialize)]
pub struct PairReport {
    /// The program beside the program with pauses.
    beside: &'static str,
    /// The program with pauses, and the program beside it.
    tenants: Vec<TenantReport>,
    /// The least `had_percent` of a tenant, as a part of its `fluid_percent`.
    worst_vs_fluid: f64,
    /// `worst_vs_fluid` of the best scheduler that the evaluation knows.
    bound: f64,
    /// How far a tenant is below the fluid limit, or below the part `bound` of the fluid limit. The
    /// tenant that lacks most counts. Percentage points of the time.
    missing_points: f64,
    /// Largest error of a tenant's meter, as in the other cells.
    pub meter_error_points: f64,
}

/// The figures of one tenant of a pair: percentages of the time in which its kernels ran.
#[derive(Serialize)]
struct TenantReport {
    alone_percent: f64,
    had_percent: f64,
    /// GPU time that deepres charged.
    metered_percent: f64,
    fluid_percent: f64,
    /// Without deepres, beside the other program.
    time_sliced_percent: f64,
}

/// The output of the evaluation.
#[derive(Deserialize)]
struct Evaluated {
    rows: Vec<Limit>,
}

/// The fluid limit of a pair, and the bound.
#[derive(Deserialize)]
struct Limit {
    bound: Option<f64>,
    tenants: Vec<Progress>,
}

/// The work of a tenant in the fluid limit.
#[derive(Deserialize)]
struct Progress {
    /// Work, as a part of the work alone.
    progress: f64,
}

impl Program {
    fn tenant(&self, place: usize, share: u32) -> Tenant {
        Tenant { name: format!("tenant-{place}"), share, processes: 1, steps: self.steps }
    }

    /// Returns the program as a tenant of a scenario. The program alone has kernels running in the
    /// part `used` of the time, so its pauses are the rest.
    fn table(&self, place: usize, used: f64) -> String {
        let Self { kernels, kernel_us, .. } = self;
        let kernel_us = kernel_us + LAUNCH_US;
        let work_ms = f64::from(kernels * kernel_us) / US_PER_MS;
        let pause_ms = (work_ms / used - work_ms).max(0.0);
        format!(
            "[[tenant]]\nname = \"tenant-{place}\"\nshare = \"{SHARE}%\"\n[tenant.steps]\n\
             kernels = {kernels}\nkernel_us = {kernel_us}\npause_ms = {pause_ms:.6}\n"
        )
    }
}

/// Measures both programs of a pair alone and together. Compares their GPU time with the fluid
/// limit and the bound.
pub fn measure(bench: &Bench, beside: &'static str, programs: &[Program; 2]) -> Result<PairReport> {
    let alone = |program: &Program| {
        let measured = bench.measure(&Cell { tenants: vec![program.tenant(0, 100)] })?;
        Ok(measured.used_fraction())
    };
    let alone: Vec<f64> = programs.iter().map(alone).collect::<Result<_>>()?;
    let tenant = |(place, program): (usize, &Program)| program.tenant(place, SHARE);
    let cell = Cell { tenants: programs.iter().enumerate().map(tenant).collect() };
    let time_sliced = bench.time_sliced(&cell.tenants)?;
    let measured = bench.measure(&cell)?;
    let limit = evaluate(&scenario(programs, &alone, measured.handoff_ns))?;
    PairReport::of(beside, &measured, [&alone, &time_sliced], &limit)
}

/// Returns the scenario of a pair whose programs alone use these parts of the time. A hand-off
/// costs `handoff_ns`.
fn scenario(programs: &[Program; 2], alone: &[f64], handoff_ns: u64) -> String {
    let handoff_us = handoff_ns as f64 / NS_PER_US;
    let mut text = format!(
        "name = \"pauses\"\nshows = \"A program with pauses beside another program.\"\n\
         duration_s = 12\nwarmup_s = 2\n[gpu]\nhandoff_us = {handoff_us:.3}\n"
    );
    for (place, (program, used)) in programs.iter().zip(alone).enumerate() {
        text.push_str(&program.table(place, *used));
    }
    text
}

/// Returns the fluid limit and the bound of a scenario.
fn evaluate(scenario: &str) -> Result<Limit> {
    let file = build::target().join("deepres/pauses-scenario.toml");
    fs::write(&file, scenario).with_context(|| format!("cannot write {}", file.display()))?;
    let mut evaluation = eval::program();
    evaluation.args(["--json", "--policy", "gps", "--scenario"]).arg(&file);
    let text = command::output(&mut evaluation)?;
    let Evaluated { rows } =
        serde_json::from_str(&text).with_context(|| format!("cannot read the evaluation: {text}"))?;
    rows.into_iter().next().context("the evaluation has no row")
}

impl PairReport {
    /// `alone` are the parts of the time that each program's kernels take alone, and `time_sliced`
    /// those beside the other program without deepres.
    fn of(
        beside: &'static str,
        measured: &Measured,
        [alone, time_sliced]: [&[f64]; 2],
        limit: &Limit,
    ) -> Result<Self> {
        let bound = limit.bound.context("the evaluation has no bound")?;
        let elapsed_ns = measured.elapsed_ns as f64;
        let each = measured.tenants.iter().zip(alone).zip(&limit.tenants).zip(time_sliced);
        let tenants: Vec<TenantReport> = each
            .map(|(((had, alone), fluid), time_sliced)| TenantReport {
                alone_percent: alone * 100.0,
                had_percent: had.true_ns as f64 * 100.0 / elapsed_ns,
                metered_percent: had.metered_ns as f64 * 100.0 / elapsed_ns,
                fluid_percent: fluid.progress * alone * 100.0,
                time_sliced_percent: time_sliced * 100.0,
            })
            .collect();
        let missing = |tenant: &TenantReport| tenant.fluid_percent * bound.min(1.0) - tenant.had_percent;
        let part = |tenant: &TenantReport| tenant.had_percent / tenant.fluid_percent;
        Ok(Self {
            beside,
            worst_vs_fluid: tenants.iter().map(part).fold(f64::INFINITY, f64::min),
            bound,
            missing_points: tenants.iter().map(missing).fold(0.0, f64::max),
            meter_error_points: measured.meter_error_points(),
            tenants,
        })
    }

    /// Returns whether each tenant has as much as the limit gives it, but for the allowed points.
    pub fn is_near(&self) -> bool {
        self.missing_points <= ALLOWED_POINTS
    }

    /// Returns the figures as a line of text.
    pub fn line(&self) -> String {
        let of_each = |figure: fn(&TenantReport) -> f64| {
            let figures: Vec<String> =
                self.tenants.iter().map(|tenant| format!("{:.1}", figure(tenant))).collect();
            figures.join(", ")
        };
        format!(
            "beside {}: {} % of the time, in the fluid limit {} %, by time-slicing {} %, alone {} %\n\
             {:<11}worst {:.3} of the fluid limit (bound {:.3}), {:.2} p missing, \
             metered {} % (error {:.2} p)",
            self.beside,
            of_each(|tenant| tenant.had_percent),
            of_each(|tenant| tenant.fluid_percent),
            of_each(|tenant| tenant.time_sliced_percent),
            of_each(|tenant| tenant.alone_percent),
            "",
            self.worst_vs_fluid,
            self.bound,
            self.missing_points,
            of_each(|tenant| tenant.metered_percent),
            self.meter_error_points,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::cell::Had;
    use super::*;

    fn pair(true_ns: [u64; 2], bound: f64) -> PairReport {
        let tenants = true_ns.map(|true_ns| Had { share: SHARE, true_ns, metered_ns: true_ns }).to_vec();
        let measured = Measured { tenants, elapsed_ns: 1_000, bound_fraction: 1.0, handoff_ns: 100 };
        let tenants = [0.6, 0.5].map(|progress| Progress { progress }).into();
        PairReport::of(
            "itself",
            &measured,
            [&[0.5, 1.0], &[0.2, 0.3]],
            &Limit { bound: Some(bound), tenants },
        )
        .unwrap()
    }

    #[test]
    fn a_tenant_may_lack_what_the_hardware_takes_and_three_points() {
        // The fluid limit gives 30 % and 50 % of the time.
        let report = pair([240, 430], 0.9);
        assert!((report.missing_points - 3.0).abs() < 1e-9, "{}", report.missing_points);
        assert!((report.worst_vs_fluid - 0.8).abs() < 1e-9, "{}", report.worst_vs_fluid);
        assert!(pair([250, 430], 0.9).is_near() && !pair([250, 410], 0.9).is_near());
        // The bound is no reason to lack more than the fluid limit gives.
        assert!(pair([300, 500], 1.1).is_near());
    }

    #[test]
    fn the_rest_of_a_programs_time_alone_is_its_pauses() {
        let text = scenario(&[PAUSING, LONG], &[0.67, 1.0], 150_000);
        assert!(text.contains("handoff_us = 150.000") && text.contains("pause_ms = 0.495000"), "{text}");
        assert!(text.contains("kernel_us = 12001\npause_ms = 0.000000"), "{text}");
    }
}
