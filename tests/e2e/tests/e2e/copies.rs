//! Charged copies. Their time counts toward the share, by the record of the simulated GPU.

use deepres_e2e::prelude::*;

/// Kernels by name. A copy of 1 MB takes 1 ms, much longer than the host takes to move 1 MB.
const SIMGPU_TOML: &str = r#"
host_to_device_bytes_per_us = 1000
kernel = [
    { name = "k80", ns = 79000, sm_ppm = 100000 },
    { name = "k1000", ns = 999000 },
    { name = "k4000", ns = 3999000 },
]
"#;
/// Copies of 2 and 4 ms.
const COPY_2_MS: &str = "to:2000000";
const COPY_4_MS: &str = "to:4000000";
const MEASURED: Duration = Duration::from_secs(4);
/// Time after which kernels and copies are known and the burst at the beginning is over.
const SETTLED: Duration = Duration::from_millis(1200);
/// Greatest allowed error of the meter, in percentage points of the time.
const METER_POINTS: f64 = 1.0;
/// Greatest allowed error of a share, in percentage points.
const SHARE_POINTS: f64 = 3.0;
const CHARGED: &str = "--charge-copies";

fn host() -> Host {
    Host::measuring().simgpu(SIMGPU_TOML)
}

fn start(host: &Host, name: &str, options: &[&str], steps: &[&str]) -> Process {
    let options = [&["--name", name], options].concat();
    host.start(host.run(&options, c_client_by("pace", Way::ProcAddress), steps), "ready")
}

/// GPU time used: ns, or percent of the time.
#[derive(Debug, Clone, Copy)]
struct Had<T> {
    kernels: T,
    copies: T,
    /// Time of kernels or copies, with overlapping time counted once.
    either: T,
}

fn had(host: &Host, pid: u32) -> (u64, Had<u64>) {
    let truth = host.truth();
    let process = truth.processes.iter().find(|process| process.pid == pid).expect("it is attached");
    let gpu = process.gpus[0];
    let had = Had { kernels: gpu.kernel_busy_ns, copies: gpu.copy_busy_ns, either: gpu.busy_ns };
    (truth.at_ns, had)
}

/// Returns a process's part of the time, and the part that its tenant is charged, percent.
fn percent(host: &Host, name: &str, pid: u32) -> (Had<f64>, f64) {
    let look = || (had(host, pid), host.ps().tenant(name).gpu_ns);
    let ((began_ns, before), charged_before_ns) = look();
    thread::sleep(MEASURED);
    let ((ended_ns, after), charged_after_ns) = look();
    let part = |before: u64, after: u64| (after - before) as f64 * 100.0 / (ended_ns - began_ns) as f64;
    let had = Had {
        kernels: part(before.kernels, after.kernels),
        copies: part(before.copies, after.copies),
        either: part(before.either, after.either),
    };
    let charged = part(charged_before_ns, charged_after_ns);
    println!("{name}: {had:.2?} % of the time, charged {charged:.2} %");
    (had, charged)
}

/// Returns the process of a tenant that has one process.
fn pid_of(host: &Host, name: &str) -> u32 {
    host.ps().tenant(name).sessions[0].pid
}

/// Runs the pattern alone, once without and once with charged copies.
fn assert_charged(steps: &[&str]) {
    for (options, is_charged) in [(&[][..], false), (&[CHARGED], true)] {
        let (host, _daemon) = host().with_daemon();
        let _client = start(&host, "copies", options, steps);
        thread::sleep(SETTLED);
        let (had, charged) = percent(&host, "copies", pid_of(&host, "copies"));
        assert!(had.copies > 5.0 && had.kernels > 5.0, "{had:?}");
        let wanted = if is_charged { had.either } else { had.kernels };
        assert!((charged - wanted).abs() <= METER_POINTS, "charged {charged:.2} %, had {had:.2?}");
    }
}

/// Tests that measure. Each runs alone on the machine.
mod measured {
    use super::*;

    #[test]
    fn copies_between_kernels_are_charged_where_that_is_asked_for() {
        assert_charged(&["to:100000", "k80x10", "to:400000", "k80", "wait:100"]);
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn long_copies_that_are_waited_for_are_charged_too() {
        assert_charged(&[COPY_4_MS, "sync", "k1000", "sync", "wait:1000"]);
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn copies_beside_kernels_of_the_same_tenant_are_charged_once() {
        assert_charged(&["--streams", "2", "k1000", COPY_2_MS, "k1000", "sync", "wait:500"]);
    }

    #[test]
    fn a_tenant_whose_copies_are_charged_has_its_share_with_them() {
        let (host, _daemon) = host().with_daemon();
        let _copier = start(&host, "copier", &[CHARGED], &[COPY_4_MS, "k4000"]);
        let _other = start(&host, "other", &[], &["k1000x20", "sync"]);
        thread::sleep(SETTLED);
        let pids = ["copier", "other"].map(|name| pid_of(&host, name));
        let (began_ns, before) = had(&host, pids[0]);
        let other_before = had(&host, pids[1]).1;
        thread::sleep(MEASURED);
        let (ended_ns, after) = had(&host, pids[0]);
        let other_after = had(&host, pids[1]).1;
        let percent = |ns: u64| ns as f64 * 100.0 / (ended_ns - began_ns) as f64;
        let copier = percent(after.either - before.either);
        let kernels = percent(after.kernels - before.kernels);
        let other = percent(other_after.kernels - other_before.kernels);
        println!(
            "the copier had {copier:.2} % with its copies, {kernels:.2} % without, the other {other:.2} %"
        );
        assert!((copier - other).abs() <= SHARE_POINTS, "{copier:.2} % and {other:.2} %");
        assert!(copier > 30.0, "both have work all the time: {copier:.2} %");
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn an_administrator_says_whether_copies_are_charged_and_all_who_look_are_told() {
        let (host, _daemon) = host().config("[caps]\ncharge_copies = true\n").with_daemon();
        let shown = |arguments: &[&str]| host.shows(arguments);
        host.finish(host.run(&["--charge-copies=false"], "true", &[])).refused("copies");
        let _client = start(&host, "copies", &[], &[COPY_2_MS, "k1000", "sync"]);
        thread::sleep(SETTLED);
        let pid = pid_of(&host, "copies");
        let why = shown(&["ps", "-v"]);
        assert!(why.contains("copies     charged by the cap for everybody"), "{why}");
        let explained = shown(&["explain", "copies"]);
        assert!(explained.contains("of the last second, copies included"), "{explained}");
        let (had, charged) = percent(&host, "copies", pid);
        assert!((charged - had.either).abs() <= METER_POINTS, "charged {charged:.2} %, had {had:.2?}");
        let set = shown(&["set", "copies", "--charge-copies=false"]);
        assert!(!set.contains("copies charged"), "{set}");
        let (had, charged) = percent(&host, "copies", pid);
        assert!((charged - had.kernels).abs() <= METER_POINTS, "charged {charged:.2} %, had {had:.2?}");
        let why = shown(&["ps", "-v"]);
        assert!(why.contains("copies     not charged set by an administrator"), "{why}");
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn without_a_daemon_copies_count_toward_the_share_where_the_environment_says_so() {
        for (variables, is_charged) in
            [(&[("DEEPRES_CHARGE_COPIES", "true")][..], true), (&[("DEEPRES_CHARGE_COPIES", "off")], false)]
        {
            let host = host();
            let mut command = host.alone(c_client_by("pace", Way::ProcAddress));
            command.args([COPY_2_MS, "k1000x2"]).env("DEEPRES_SHARE", "30%").envs(variables.iter().copied());
            let client = host.start(command, "ready");
            thread::sleep(SETTLED);
            let (began_ns, before) = had(&host, client.pid());
            thread::sleep(MEASURED);
            let (ended_ns, after) = had(&host, client.pid());
            let percent = |ns: u64| ns as f64 * 100.0 / (ended_ns - began_ns) as f64;
            let [kernels, either] =
                [after.kernels - before.kernels, after.either - before.either].map(percent);
            println!("{kernels:.2} % of the time in kernels, {either:.2} % with copies");
            let counted = if is_charged { either } else { kernels };
            assert!((counted - 30.0).abs() <= METER_POINTS, "{kernels:.2} %, {either:.2} % with copies");
        }
    }
}
