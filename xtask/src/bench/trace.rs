//! `cargo xtask bench trace`: measures the cost of the kernel programs for an ioctl, and whether
//! they lose events.

use std::process::Command;

use anyhow::{Context as _, Result};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::bar;
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

/// The figures of the example: for each way of attachment, and in common.
struct Report {
    all: Value,
    ways: Vec<Value>,
}

/// Runs the example in all ways of attachment, and returns the figures.
pub fn run() -> Result<impl super::Report> {
    ebpf::build()?;
    for part in [["--bin", "deepres"], ["--example", EXAMPLE]] {
        let mut cargo = build::cargo();
        command::run(cargo.args(["build", "--release", "--quiet", "--package", "deepres"]).args(part))?;
    }
    let all = measure()?;
    let ways = all["ways"].as_array().filter(|ways| !ways.is_empty()).context("nothing was measured")?;
    Ok(Report { ways: ways.clone(), all })
}

/// The report covers the tracepoints, which the daemon uses.
impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // The report counts the events that the command loses. It does not count the events that
        // the ring could not take.
        let figure = |field: &str| match field {
            "lost_at_1e5_per_s" => &self.all["lost_by_trace"],
            _ => &self.ways[0][field],
        };
        serializer.collect_map(FIELDS.map(|field| (field, figure(field))))
    }
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

impl super::Report for Report {
    const IS_ALWAYS_CHECKED: bool = true;

    /// The bars for costs apply to the way of attachment that the daemon uses.
    fn bars(&self) -> Vec<(String, bool)> {
        let (all, used) = (&self.all, &self.ways[0]);
        let above = |ours: &str, empty: &str| {
            used[ours].as_f64().unwrap_or(f64::NAN) - used[empty].as_f64().unwrap_or(f64::NAN)
        };
        let is_counted = |way: &Value| way["drop_counter_exact"] == true;
        vec![
            bar("another device's ioctl", above("ours_other_ns", "empty_other_ns") <= OTHER_LIMIT_NS),
            bar("a watched ioctl", above("ours_watched_ns", "empty_watched_ns") <= WATCHED_LIMIT_NS),
            bar("idling", all["idle_percent"].as_f64().is_some_and(|percent| percent <= IDLE_LIMIT_PERCENT)),
            bar("no event is lost", all["lost_by_trace"] == 0 && all["trace_adds_up"] == true),
            bar("lost events are counted", self.ways.iter().all(is_counted)),
        ]
    }

    fn print(&self) {
        for report in &self.ways {
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
            println!(
                "  added to an unrelated system call      {:>7.1} ns",
                number("unrelated_syscall_tax_ns")
            );
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
        let number = |key: &str| self.all[key].as_f64().unwrap_or(f64::NAN);
        println!("deepres trace --json into a file, at 100,000 calls a second");
        println!("  calls that are missing                 {:>7}", self.all["lost_by_trace"]);
        println!("  200,000 at once, by eight threads      {:>7}", self.all["lost_in_a_burst"]);
        println!("  the trace names its missing calls      {:>7}", self.all["trace_adds_up"]);
        println!("metering from outside");
        println!("  added to a launch                      {:>7.1} ns", number("launch_probe_ns"));
        println!("the daemon's watching thread, with the programs attached and idle");
        println!(
            "  of one core                            {:>7.2} % (at most {IDLE_LIMIT_PERCENT})",
            number("idle_percent")
        );
    }
}
