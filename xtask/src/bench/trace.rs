//! `cargo xtask bench trace`: measures the cost of the eBPF programs for an ioctl, and whether
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
        // The report counts the events that the command loses. The report does not count the events
        // that the ring could not take.
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
        let ns = |what: &str, ns: f64, more: &str| println!("  {what:<38} {ns:>7.1} ns{more}");
        let count = |what: &str, value: &Value| println!("  {what:<38} {value:>7}");
        let at_most = |limit_ns: f64| format!(" (at most {limit_ns})");
        let figure = |figures: &Value, key: &str| figures[key].as_f64().unwrap_or(f64::NAN);
        for report in &self.ways {
            let number = |key: &str| figure(report, key);
            let above = |ours: &str, empty: &str| number(ours) - number(empty);
            let other_ns = above("ours_other_ns", "empty_other_ns");
            let watched_ns = above("ours_watched_ns", "empty_watched_ns");
            println!("{}", report["way"].as_str().unwrap_or_default());
            ns("an ioctl, bare", number("bare_ns"), "");
            ns("with empty programs", number("empty_other_ns"), "");
            ns("deepres, above empty, another device", other_ns, &at_most(OTHER_LIMIT_NS));
            ns("deepres, above empty, a watched device", watched_ns, &at_most(WATCHED_LIMIT_NS));
            ns("added to an unrelated system call", number("unrelated_syscall_tax_ns"), "");
            for call in report["watched"].as_array().into_iter().flatten() {
                let name = call[0].as_str().unwrap_or_default();
                ns(&format!("  {name}"), call[1].as_f64().unwrap_or(f64::NAN), "");
            }
            count("events lost at 100,000 a second", &report["lost_at_1e5_per_s"]);
            count("lost events are counted exactly", &report["drop_counter_exact"]);
        }
        println!("deepres trace --json into a file, at 100,000 calls a second");
        count("calls that are missing", &self.all["lost_by_trace"]);
        count("200,000 at once, by eight threads", &self.all["lost_in_a_burst"]);
        count("the trace names its missing calls", &self.all["trace_adds_up"]);
        println!("metering from outside");
        ns("added to a launch", figure(&self.all, "launch_probe_ns"), "");
        println!("the daemon's watching thread, with the programs attached and idle");
        let percent = figure(&self.all, "idle_percent");
        println!("  {:<38} {percent:>7.2} % (at most {IDLE_LIMIT_PERCENT})", "of one core");
    }
}
