//! `cargo xtask bench policy`: measures the cost of a decision of the policy.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::Value;

use super::bar;
use crate::{build, command};

/// Names of the measurements (tests/eval/benches/policy.rs), and their limits, ns.
const MEASURED: [(&str, Option<f64>); 10] = [
    ("decision-16-tenants-1-gpu", Some(20_000.0)),
    ("decisions-1000-tenants-on-8-gpus", Some(1_000_000.0)),
    ("decisions-1000-tenants-on-each-of-8-gpus", Some(1_000_000.0)),
    ("decision-15-guests-beside-an-owner", Some(20_000.0)),
    ("decisions-1000-tenants-on-8-gpus-all-but-8-of-them-guests", Some(1_000_000.0)),
    ("packing-decision-16-tenants-1-gpu", Some(20_000.0)),
    ("packing-decisions-1000-tenants-on-8-gpus", Some(1_000_000.0)),
    ("plan-3-tenants-of-500-kernels", Some(1e9)),
    ("review-16-tenants", None),
    ("review-1000-tenants", None),
];

/// The mean of each measurement, ns, by its name.
#[derive(Serialize)]
struct Report(BTreeMap<String, f64>);

/// Measures the decisions, and returns the means.
pub fn run() -> Result<impl super::Report> {
    let mut cargo = build::cargo();
    // The profile of the evaluation optimises, but links faster than a release, which takes minutes
    // to link.
    cargo.args(["bench", "--quiet", "--profile", "eval", "--package", "deepres-eval", "--bench", "policy"]);
    command::output(&mut cargo)?;
    let mean = |(name, _): (&str, Option<f64>)| {
        let file = build::target().join("criterion").join(name).join("new/estimates.json");
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let estimates: Value = serde_json::from_str(&text)?;
        let mean_ns = estimates["mean"]["point_estimate"].as_f64().context("criterion estimated no mean")?;
        Ok((field(name), mean_ns))
    };
    Ok(Report(MEASURED.into_iter().map(mean).collect::<Result<_>>()?))
}

/// Returns the field of the report with the mean of a measurement.
fn field(name: &str) -> String {
    format!("{}_ns", name.replace('-', "_"))
}

impl super::Report for Report {
    const IS_ALWAYS_CHECKED: bool = true;

    fn print(&self) {
        for (name, limit_ns) in MEASURED {
            let limit =
                limit_ns.map_or_else(String::new, |limit_ns| format!(" (at most {:.0})", limit_ns / 1e3));
            println!("  {name:<60}{:>10.2} us{limit}", self.0[&field(name)] / 1e3);
        }
    }

    fn bars(&self) -> Vec<(String, bool)> {
        let limited = MEASURED.into_iter().filter_map(|(name, limit_ns)| Some((name, limit_ns?)));
        limited.map(|(name, limit_ns)| bar(name, self.0[&field(name)] <= limit_ns)).collect()
    }
}
