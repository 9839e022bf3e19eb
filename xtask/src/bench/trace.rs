//! `cargo xtask bench trace`: what the kernel programs cost an ioctl, and whether they lose events.

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{build, command, ebpf};

/// What ours may cost above empty programs, ns.
const OTHER_LIMIT_NS: f64 = 60.0;
const WATCHED_LIMIT_NS: f64 = 200.0;

/// Options of `cargo xtask bench trace`.
#[derive(clap::Args)]
pub struct Options {
    /// Print one JSON object (of the tracepoints, which the daemon takes) instead of text.
    #[arg(long)]
    json: bool,
}

/// Measures and prints.
pub fn run(options: &Options) -> Result<()> {
    ebpf::build()?;
    let mut cargo = build::cargo();
    cargo.args(["run", "--release", "--quiet", "--package", "deepres", "--example", "probe-cost"]);
    let reports: Vec<Value> = serde_json::from_str(&command::output(&mut cargo)?)?;
    if options.json {
        println!("{}", reports.first().context("nothing was measured")?);
        return Ok(());
    }
    for report in &reports {
        let number = |key: &str| report[key].as_f64().unwrap_or(f64::NAN);
        let above = |ours: &str, empty: &str| number(ours) - number(empty);
        println!("{}", report["way"].as_str().unwrap_or_default());
        println!("  an ioctl, bare                         {:>7.1} ns", number("bare_ns"));
        println!("  with empty programs                    {:>7.1} ns", number("empty_other_ns"));
        println!(
            "  ours above that, another device        {:>7.1} ns (at most {OTHER_LIMIT_NS})",
            above("ours_other_ns", "empty_other_ns")
        );
        println!(
            "  ours above that, a watched one         {:>7.1} ns (at most {WATCHED_LIMIT_NS})",
            above("ours_watched_ns", "empty_watched_ns")
        );
        println!("  added to an unrelated system call      {:>7.1} ns", number("unrelated_syscall_tax_ns"));
        println!("  events lost at 100,000 a second        {:>7}", report["lost_at_1e5_per_s"]);
        println!("  lost events are counted exactly        {:>7}", report["drop_counter_exact"]);
    }
    Ok(())
}
