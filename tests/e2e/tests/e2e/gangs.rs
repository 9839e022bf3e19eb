//! Tenants with ranks on several GPUs, whose kernels spin until the other ranks' kernels run. Such
//! a tenant has all of its GPUs or none, and its share of each.

use deepres_e2e::gangs::{self, ALLOWED_POINTS, Done, LEAST_OF_TIME_SLICING, SETTLED};
use deepres_e2e::prelude::*;

/// A kernel of a ring spins until the kernel of the tenant's other rank has begun.
const SIMGPU_TOML: &str = r#"
gpus = 2
kernel = [
    { name = "ring_*", ns = 1000000, meets = 2 },
    { name = "slow_ring_*", ns = 5000000, meets = 2 },
]
"#;
const MEASURED: Duration = Duration::from_secs(4);
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
fn shares(host: &Host, names: &[&str]) -> Vec<Vec<f64>> {
    let pids: Vec<Vec<u32>> = names.iter().map(|name| host.ps().tenant(name).pids()).collect();
    let before = host.truth();
    thread::sleep(MEASURED);
    let after = host.truth();
    let tally = |gpu| Tally::between_on(gpu, &before, &after);
    let tallies: Vec<Tally> = (0..after.gpus.len()).map(tally).collect();
    pids.iter().map(|pids| tallies.iter().map(|tally| tally.percent(pids)).collect()).collect()
}

/// Starts two gangs with a process for each rank: as tenants that are owed half of each GPU, or
/// without deepres. Returns the work of the gangs.
fn work_of_two_gangs(gpus: usize, is_ours: bool) -> Done {
    let host = Host::measuring().simgpu(&gangs::simgpu_toml(gpus));
    let _daemon = is_ours.then(|| host.daemon());
    let rank = |gang: &str, rank: usize| {
        let client = c_client(gangs::CLIENT);
        let mut command = if is_ours { host.preloaded(client) } else { host.command(client) };
        if is_ours {
            command.env("DEEPRES_TENANT", gang).env("DEEPRES_SHARE", "50%");
        }
        command.args(gangs::rank(gang, gpus, rank));
        host.start(command, "ready")
    };
    let both = gangs::NAMES.map(|gang| (0..gpus).map(|number| rank(gang, number)).collect::<Vec<Process>>());
    thread::sleep(SETTLED);
    let pids = both.each_ref().map(|ranks| ranks.iter().map(Process::pid).collect());
    let first = host.truth();
    thread::sleep(MEASURED);
    Done::between(&first, &host.truth(), &pids)
}

fn assert_shares(had: &[Vec<f64>], owed: &[f64]) {
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
    #[ignore = "deep: takes long"]
    fn two_gangs_do_nearly_the_steps_of_time_slicing_on_two_gpus_and_on_four() {
        for gpus in [2, 4] {
            let [plain, ours] = [false, true].map(|is_ours| work_of_two_gangs(gpus, is_ours));
            let points = ours.error_points([50, 50]);
            let [plain, ours] = [plain, ours].map(|done| done.steps_per_s().iter().sum::<f64>());
            let figures = format!(
                "{ours:.0} steps/s on {gpus} GPUs, {plain:.0} by time-slicing; shares {points:.1} points off"
            );
            println!("{figures}");
            assert!(ours >= plain * LEAST_OF_TIME_SLICING && points <= ALLOWED_POINTS, "{figures}");
        }
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
