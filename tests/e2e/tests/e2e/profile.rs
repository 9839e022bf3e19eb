//! `deepres profile` measures a program's requests, one run of the program for each point.

use std::fs;
use std::path::Path;
use std::process::Command;

use deepres_e2e::prelude::*;

use crate::mps::{by_mps, mps, set_ceiling};

/// Pause of the server between two requests, µs.
const GAP_US: &str = "4000";
/// The time of a measured sweep on a busy machine.
const SWEEPS_WITHIN: Duration = Duration::from_secs(90);

/// Returns the command `deepres profile OPTIONS --out FILE -- COMMAND`. The folder in which MPS
/// would listen does not exist.
fn profile(host: &Host, options: &[&str], out: &Path, program: impl AsRef<Path>, words: &[&str]) -> Command {
    let mut command = host.deepres(&["profile"]);
    command.args(options).arg("--out").arg(out).arg("--").arg(program.as_ref()).args(words);
    command.env("CUDA_MPS_PIPE_DIRECTORY", host.path().join("no-mps"));
    command
}

/// Returns the text of a file; empty if there is none.
fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Returns the times in a profile: batch, part, GPU time, latency, ms.
fn points(file: &Path) -> Vec<[f64; 4]> {
    let text = text(file);
    let value = |block: &str, key: &str| {
        let found = block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
        found.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {key} in {block}"))
    };
    let blocks = text.split("[[points]]").skip(1);
    blocks.map(|block| ["batch", "part_percent", "ms", "latency_ms"].map(|key| value(block, key))).collect()
}

#[test]
fn a_command_that_cannot_be_measured_is_named_with_its_output() {
    let (host, _daemon) = Host::new().with_daemon();
    let out = host.path().join("p.toml");
    let refused = |options: &[&str], words: &[&str], says: &[&str]| {
        let done = host.finish(profile(&host, options, &out, "sh", words));
        for part in says {
            done.refused(part);
        }
        assert!(!out.exists(), "{}", text(&out));
    };
    let fails = "echo begins; echo 'CUDA is broken' >&2; exit 3";
    refused(
        &["--batch", "7"],
        &["-c", fails],
        &["batch 7 on 100 %", "status: 3", "begins", "CUDA is broken"],
    );
    refused(&["--batch", "7"], &["-c", "exit 0"], &["batch 7 on 100 %", "saw no work", "printed nothing"]);
    refused(&[], &["-c", "exit 0"], &["has no {batch}"]);
    refused(&["--sm", "10,0", "--batch", "1"], &["-c", "exit 0"], &["`0` is not a part of the SMs"]);
    refused(&["--batch", "1", "--patience", "300ms"], &["-c", "sleep 60"], &["too few requests"]);
    let busy = c_client("backlog").display().to_string();
    let words = ["-c", "exec \"$0\" --sync-every 1000000", &busy];
    refused(&["--batch", "1", "--patience", "1s"], &words, &["must be idle for more than two hand-offs"]);
    let serve = c_client("serve").display().to_string();
    let few = ["-c", "exec \"$0\" --kernel quick --gap-us 20000 --seconds 0.07", &serve];
    refused(&["--batch", "1"], &few, &["ended too early"]);

    fs::write(&out, "command = [\"other\"]\n").unwrap();
    host.finish(profile(&host, &["--batch", "1"], &out, "true", &[])).refused("another command (`other`)");
    fs::write(&out, "speed = 7\n").unwrap();
    host.finish(profile(&host, &["--batch", "1"], &out, "true", &[])).refused("cannot go on with");
}

#[test]
fn a_signal_leaves_what_was_measured_and_a_second_call_goes_on() {
    let (host, _daemon) = Host::new().with_daemon();
    let (out, runs) = (host.path().join("p.toml"), host.path().join("runs"));
    let script = format!(
        "echo {{batch}} >> {}; exec \"$0\" --kernel busy_1000us --kernels {{batch}} --gap-us {GAP_US}",
        runs.display()
    );
    let serve = c_client("serve").display().to_string();
    let call = |requests: &str, batches: &str| {
        let options = ["--requests", requests, "--batch", batches];
        profile(&host, &options, &out, "sh", &["-c", &script, &serve])
    };
    host.finish(call("10", "1")).success();
    // A sweep without end: each batch needs many requests.
    let mut long = host.spawn(call("1000000", "1,2,3"));
    eventually("the second batch runs", || text(&runs).lines().any(|line| line == "2"));
    host.finish(call("10", "1")).refused("another `deepres profile` writes");
    long.signal(Signal::INT);
    let stopped = long.await_end();
    assert_eq!(stopped.signal, Some(Signal::INT.as_raw()), "{stopped:?}");
    assert!(stopped.stderr.contains("p.toml has the points measured so far (1)"), "{}", stopped.stderr);
    eventually("the command has ended", || host.ps().tenants.iter().all(|tenant| tenant.sessions.is_empty()));
    assert_eq!(points(&out).len(), 1);

    let done = host.finish(call("10", "1,2,4")).success();
    let batches: Vec<f64> = points(&out).iter().map(|point| point[0]).collect();
    assert_eq!(batches, [1.0, 2.0, 4.0]);
    assert_eq!(text(&runs), "1\n2\n2\n4\n", "batch 1 ran once");
    assert!(done.stderr.contains("[3/3] batch 4 on 100 % of the SMs") && !done.stderr.contains("[1/3]"));
    assert!(done.stderr.contains("no MPS runs"), "{}", done.stderr);
    host.finish(call("10", "1,2,4")).success();
    assert_eq!(text(&runs), "1\n2\n2\n4\n", "nothing is left to measure");
}

#[test]
fn each_run_gets_its_part_of_the_sms_where_mps_runs() {
    let (host, _daemon) = Host::new().with_daemon();
    let (out, runs, svg) = (host.path().join("p.toml"), host.path().join("runs"), host.path().join("p.svg"));
    let script = format!(
        "echo $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE {{batch}} >> {}; exec \"$0\" --kernels {{batch}} --gap-us {GAP_US}",
        runs.display()
    );
    let _mps = mps(&host);
    set_ceiling(&host, 60);
    let serve = c_client("serve").display().to_string();
    let options = ["--requests", "10", "--batch", "3", "--sm", "20%,50", "--slo", "60ms", "--svg"];
    let options = [&options[..], &[svg.to_str().expect("a plain path")]].concat();
    let call = by_mps(&host, profile(&host, &options, &out, "sh", &["-c", &script, &serve]));
    let done = host.finish(call).success();
    assert_eq!(text(&runs), "100 3\n50 3\n20 3\n");
    assert!(
        done.stdout.contains("T(S, b) = max(") && done.stdout.contains("Best for an SLO of 60.0 ms: batch 3")
    );
    assert!(text(&svg).matches("<circle ").count() >= 3, "{}", text(&svg));
    assert!(text(&out).contains("slo_ms = 60"), "{}", text(&out));
    assert!(done.stderr.contains("at most 60% of the SMs"), "{}", done.stderr);
}

/// Tests that measure. Each test runs alone on the machine.
mod measured {
    use super::*;

    #[test]
    fn the_measured_time_is_that_of_the_gpu() {
        let (host, _daemon) = Host::measuring().with_daemon();
        let out = host.path().join("p.toml");
        let words = ["--kernel", "busy_1000us", "--kernels", "{batch}", "--gap-us", GAP_US];
        let call = profile(&host, &["--requests", "60", "--batch", "2,6"], &out, c_client("serve"), &words);
        let done = host.spawn(call).finish_within(SWEEPS_WITHIN).success();
        println!("{}{}", done.stderr, done.stdout);
        let points = points(&out);
        assert_eq!(points.len(), 2, "{points:?}");
        for [batch, part, ms, latency_ms] in points {
            assert_eq!(part, 100.0);
            // Each request has a kernel of a millisecond for each in its batch.
            assert!((ms / batch - 1.0).abs() < 0.1, "batch {batch}: {ms} ms");
            assert!(latency_ms > 0.9 * batch && latency_ms < batch + 3.0, "batch {batch}: {latency_ms} ms");
        }
    }
}
