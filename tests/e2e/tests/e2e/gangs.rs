//! Tenants with ranks on two GPUs, whose kernels spin until the other rank's kernel runs. Such a
//! tenant has both GPUs or none, and its share of each.

use deepres_e2e::prelude::*;

/// A kernel of a ring spins until the kernel of the tenant's other rank has begun.
const SIMGPU_TOML: &str = r#"
gpus = 2
kernel = [
    { name = "ring_*", ns = 1000000, meets = 2 },
    { name = "slow_ring_*", ns = 5000000, meets = 2 },
]
"#;
/// Time after which all tenants are connected and the daemon knows that they use both GPUs.
const SETTLED: Duration = Duration::from_secs(2);
const MEASURED: Duration = Duration::from_secs(4);
const ALLOWED_POINTS: f64 = 3.0;
/// Time limit for some turns, after a bounded wait for work that does not end.
const GOES_ON_WITHIN: Duration = Duration::from_secs(20);

fn host() -> Host {
    Host::measuring().simgpu(SIMGPU_TOML)
}

/// Starts a tenant with one process that has a thread for each GPU.
fn ring(host: &Host, name: &str, share: &str, kernel: &str, depth: &str) -> Process {
    let arguments = ["--kernel", &format!("{kernel}_{name}"), "--depth", depth];
    let options = ["--name", name, "--share", share];
    host.start(host.run(&options, c_client("ring"), &arguments), "ready")
}

/// Starts one rank of a tenant that has a process for each rank.
fn rank(host: &Host, name: &str, share: &str, rank: &str, depth: &str) -> Process {
    let arguments = ["--kernel", &format!("ring_{name}"), "--rank", rank, "--depth", depth];
    let mut command = host.preloaded(c_client("ring"));
    command.args(arguments).env("DEEPRES_TENANT", name).env("DEEPRES_SHARE", share);
    host.start(command, "ready")
}

/// Returns each tenant's part of each GPU, percent.
fn shares(host: &Host, names: &[&str]) -> Vec<[f64; 2]> {
    let pids: Vec<Vec<u32>> = names.iter().map(|name| host.ps().tenant(name).pids()).collect();
    let before = host.truth();
    thread::sleep(MEASURED);
    let after = host.truth();
    let tallies = [0, 1].map(|gpu| Tally::between_on(gpu, &before, &after));
    pids.iter().map(|pids| tallies.each_ref().map(|tally| tally.percent(pids))).collect()
}

fn assert_shares(had: &[[f64; 2]], owed: &[f64]) {
    println!("{had:.1?} of {owed:?}");
    for (had, owed) in had.iter().zip(owed) {
        assert!(
            had.iter().all(|had| (had - owed).abs() <= ALLOWED_POINTS),
            "{had:.1?} % and is owed {owed} %"
        );
    }
}

fn assert_goes_on(process: &Process) {
    let before = process.last_number();
    await_value_within(|| process.last_number(), |now| *now >= before + 100, GOES_ON_WITHIN);
}

fn assert_seventy_thirty(kernel: &str, depth: &str) {
    let (host, _daemon) = host().with_daemon();
    let gangs = [ring(&host, "major", "70%", kernel, depth), ring(&host, "minor", "30%", kernel, depth)];
    thread::sleep(SETTLED);
    let before = gangs.each_ref().map(Process::last_number);
    let had = shares(&host, &["major", "minor"]);
    assert_shares(&had, &[70.0, 30.0]);
    let done = [0, 1].map(|gang: usize| gangs[gang].last_number() - before[gang]);
    println!("{done:?} rounds");
    assert!(done.iter().all(|rounds| *rounds > 100), "{done:?} rounds");
}

/// Tests that measure. Each test runs alone on the machine.
mod measured {
    use super::*;

    #[test]
    fn two_gangs_share_two_gpus_by_their_shares_and_neither_spins_for_good() {
        assert_seventy_thirty("ring", "8");
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn gangs_that_wait_for_each_of_their_long_kernels_share_two_gpus_by_their_shares() {
        assert_seventy_thirty("slow_ring", "1");
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn gangs_of_processes_that_launch_ahead_share_two_gpus_too() {
        let (host, _daemon) = host().with_daemon();
        let _ranks = ["0", "1"].map(|number| rank(&host, "pair", "50%", number, "8"));
        let _gang = ring(&host, "threads", "50%", "ring", "8");
        thread::sleep(SETTLED);
        assert_shares(&shares(&host, &["pair", "threads"]), &[50.0, 50.0]);
    }

    #[test]
    fn when_a_rank_is_killed_or_stopped_the_other_tenant_goes_on() {
        let (host, _daemon) = host().with_daemon();
        let mut ranks = ["0", "1"].map(|number| rank(&host, "pair", "50%", number, "1"));
        let gang = ring(&host, "threads", "50%", "ring", "1");
        assert_goes_on(&gang);
        assert_goes_on(&ranks[0]);
        host.stop(ranks[1].pid());
        assert_goes_on(&gang);
        ranks[1].signal(Signal::CONT);
        assert_goes_on(&ranks[0]);
        ranks[1].kill();
        assert_goes_on(&gang);
    }
}
