//! `cargo xtask bench policy`: measures the cost of a decision of the policy.

use std::fs;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};

use super::check;
use crate::{build, command};

/// Names of the measurements (tests/eval/benches/policy.rs), and their limits, ns.
const MEASURED: [(&str, Option<f64>); 7] = [
    ("decision-16-tenants-1-gpu", Some(20_000.0)),
    ("decisions-1000-tenants-on-8-gpus", Some(1_000_000.0)),
    ("decisions-1000-tenants-on-each-of-8-gpus", Some(1_000_000.0)),
    ("decision-15-guests-beside-an-owner", Some(20_000.0)),
    ("decisions-1000-tenants-on-8-gpus-all-but-8-of-them-guests", Some(1_000_000.0)),
    ("review-16-tenants", None),
    ("review-1000-tenants", None),
];

/// Options of `cargo xtask bench policy`.
#[derive(clap::Args)]
pub struct Options {
    /// Print one JSON object instead of text: the mean of each measurement, in nanoseconds
    #[arg(long)]
    json: bool,
}

/// Measures and prints. Fails if a figure is above its limit.
pub fn run(options: &Options) -> Result<()> {
    let mut cargo = build::cargo();
    // This is the profile of the evaluation. It optimises, but links faster than a release, which
    // takes minutes to link.
    cargo.args(["bench", "--quiet", "--profile", "eval", "--package", "deepres-eval", "--bench", "policy"]);
    command::output(&mut cargo)?;
    let mut means = Map::new();
    let mut bars = Vec::new();
    for (name, limit_ns) in MEASURED {
        let file = build::target().join("criterion").join(name).join("new/estimates.json");
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let estimates: Value = serde_json::from_str(&text)?;
        let mean_ns = estimates["mean"]["point_estimate"].as_f64().context("criterion estimated no mean")?;
        if !options.json {
            let limit =
                limit_ns.map_or_else(String::new, |limit_ns| format!(" (at most {:.0})", limit_ns / 1e3));
            println!("  {name:<60}{:>10.2} us{limit}", mean_ns / 1e3);
        }
        bars.extend(limit_ns.map(|limit_ns| (name, mean_ns <= limit_ns)));
        means.insert(format!("{}_ns", name.replace('-', "_")), json!(mean_ns));
    }
    if options.json {
        println!("{}", Value::Object(means));
    }
    check(&bars)
}
