//! `cargo xtask bench trace`: measures the cost of the kernel programs for an ioctl, and whether
//! they lose events.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use std::process::Command;

use crate::{build, command, ebpf};

/// Example program that measures in this machine's kernel.
const EXAMPLE: &str = "probe-cost";
/// The most time that the programs of deepres may cost more than empty programs, ns.
const OTHER_LIMIT_NS: f64 = 60.0;
const WATCHED_LIMIT_NS: f64 = 200.0;
/// The most CPU time of the watching thread, percent of a core.
const IDLE_LIMIT_PERCENT: f64 = 0.5;
/// Fields of the output of `--json`.
const FIELDS: [&str; 8] = [
    "bare_ns",
    "empty_other_ns",
    "ours_other_ns",
    "empty_watched_ns",
    "ours_watched_ns",
    "unrelated_syscall_tax_ns",
    "lost_at_1e5_per_s",
    "drop_counter_exact",
];

/// Options of `cargo xtask bench trace`.
#[derive(clap::Args)]
pub struct Options {
    /// Print one JSON object instead of text; it covers the tracepoints, which the daemon uses
    #[arg(long)]
    json: bool,
}

/// Measures and prints.
pub fn run(options: &Options) -> Result<()> {
    ebpf::build()?;
    let mut cargo = build::cargo();
    cargo.args(["build", "--release", "--quiet", "--package", "deepres", "--bin", "deepres"]);
    command::run(&mut cargo)?;
    let mut cargo = build::cargo();
    cargo.args(["build", "--release", "--quiet", "--package", "deepres", "--example", EXAMPLE]);
    command::run(&mut cargo)?;
    let all = measure()?;
    let reports = all["ways"].as_array().context("nothing was measured")?;
    if options.json {
        let report = reports.first().context("nothing was measured")?;
        let mut report = report.clone();
        // The report counts the events that the command loses. It does not count the events that
        // the ring could not take.
        report["lost_at_1e5_per_s"] = all["lost_by_trace"].clone();
        let fields: Vec<String> =
            FIELDS.iter().map(|field| format!("\"{field}\":{}", report[field])).collect();
        println!("{{{}}}", fields.join(","));
    } else {
        print(&all, reports);
    }
    judge(&all, reports)
}

/// Runs the measurements of the example, each in a process of its own. Returns the figures.
fn measure() -> Result<Value> {
    let part = |name: &str| -> Result<Value> {
        let mut example = Command::new(build::target().join("release/examples").join(EXAMPLE));
        example.arg(name).env("DEEPRES_BINARY", build::target().join("release/deepres"));
        Ok(serde_json::from_str(&command::output(&mut example)?)?)
    };
    let mut all = part("trace")?;
    all["ways"] = json!([part("tracepoints")?, part("raw-tracepoints")?]);
    all["launch_probe_ns"] = part("launch")?;
    all["idle_percent"] = part("idle")?;
    Ok(all)
}

/// Fails if a figure is past its bar. The bars for costs hold for the way of attachment that the
/// daemon uses.
fn judge(all: &Value, reports: &[Value]) -> Result<()> {
    let report = reports.first().context("nothing was measured")?;
    let above = |ours: &str, empty: &str| {
        report[ours].as_f64().unwrap_or(f64::NAN) - report[empty].as_f64().unwrap_or(f64::NAN)
    };
    let holds = [
        ("another device's ioctl", above("ours_other_ns", "empty_other_ns") <= OTHER_LIMIT_NS),
        ("a watched ioctl", above("ours_watched_ns", "empty_watched_ns") <= WATCHED_LIMIT_NS),
        ("idling", all["idle_percent"].as_f64().is_some_and(|percent| percent <= IDLE_LIMIT_PERCENT)),
        ("no event is lost", all["lost_by_trace"] == 0 && all["trace_adds_up"] == true),
        ("lost events are counted", reports.iter().all(|report| report["drop_counter_exact"] == true)),
    ];
    let past: Vec<&str> = holds.iter().filter(|(_, holds)| !holds).map(|(what, _)| *what).collect();
    ensure!(past.is_empty(), "past the bar: {}", past.join(", "));
    Ok(())
}

fn print(all: &Value, reports: &[Value]) {
    for report in reports {
        let number = |key: &str| report[key].as_f64().unwrap_or(f64::NAN);
        let above = |ours: &str, empty: &str| number(ours) - number(empty);
        println!("{}", report["way"].as_str().unwrap_or_default());
        println!("  an ioctl, bare                         {:>7.1} ns", number("bare_ns"));
        println!("  with empty programs                    {:>7.1} ns", number("empty_other_ns"));
        println!(
            "  deepres, above empty, another device   {:>7.1} ns (at most {OTHER_LIMIT_NS})",
            above("ours_other_ns", "empty_other_ns")
        );
        println!(
            "  deepres, above empty, a watched device {:>7.1} ns (at most {WATCHED_LIMIT_NS})",
            above("ours_watched_ns", "empty_watched_ns")
        );
        println!("  added to an unrelated system call      {:>7.1} ns", number("unrelated_syscall_tax_ns"));
        for call in report["watched"].as_array().into_iter().flatten() {
            println!(
                "    {:<36} {:>7.1} ns",
                call[0].as_str().unwrap_or_default(),
                call[1].as_f64().unwrap_or(f64::NAN)
            );
        }
        println!("  events lost at 100,000 a second        {:>7}", report["lost_at_1e5_per_s"]);
        println!("  lost events are counted exactly        {:>7}", report["drop_counter_exact"]);
    }
    let number = |key: &str| all[key].as_f64().unwrap_or(f64::NAN);
    println!("deepres trace --json into a file, at 100,000 calls a second");
    println!("  calls that are missing                 {:>7}", all["lost_by_trace"]);
    println!("  200,000 at once, by eight threads      {:>7}", all["lost_in_a_burst"]);
    println!("  the trace names its missing calls      {:>7}", all["trace_adds_up"]);
    println!("metering from outside");
    println!("  added to a launch                      {:>7.1} ns", number("launch_probe_ns"));
    println!("the daemon's watching thread, with the programs attached and idle");
    println!(
        "  of one core                            {:>7.2} % (at most {IDLE_LIMIT_PERCENT})",
        number("idle_percent")
    );
}
