//! Guaranteed memory. The daemon promises the same memory only once. If a later job asks for
//! promised memory, `deepres run` refuses the job with the reason, or waits.

use deepres_e2e::calls::Calls;
use deepres_e2e::prelude::*;

/// A GPU of 4 GiB.
const GPU: &str = "memory_bytes = 4294967296\ncontext_overhead_bytes = 0\nkernel = [{ name = \"busy_1000us\", ns = 1000000 }]\n";

fn host() -> Host {
    Host::new().simgpu(GPU)
}

/// Returns the options of a guaranteed tenant with a share of 40 %.
fn guaranteed<'a>(name: &'a str, memory: &'a str) -> [&'a str; 8] {
    ["--name", name, "--class", "guaranteed", "--share", "40%", "--memory", memory]
}

/// Runs the client that prints the memory that it sees of the GPU. Returns after the client has
/// printed it.
fn viewing(host: &Host, options: &[&str]) -> Process {
    host.told(host.run(options, c_client("view"), &[])).0
}

/// Runs a client until it holds this much memory.
fn holding(host: &Host, options: &[&str], bytes: u64) -> Process {
    host.start(host.run(options, c_client("yields"), &[&bytes.to_string()]), "holding")
}

/// Runs a client that takes all memory that it can get. Returns the client's output.
fn filled(host: &Host, options: &[&str]) -> Value {
    host.finish(host.run(options, c_client("fill"), &["33554432", "cuMemAlloc_v2"])).success().json()
}

#[test]
fn guaranteed_memory_that_others_have_is_refused_with_the_reason_or_waited_for() {
    let (host, _daemon) = host().with_daemon();
    let first = viewing(&host, &guaranteed("first", "3GiB"));

    let refused = host.finish(host.run(&guaranteed("second", "2GiB"), c_client("view"), &[]));
    refused.refused("other tenants and their guarantees leave 1 GiB on a GPU");
    assert!(refused.stderr.contains("--wait"), "{}", refused.stderr);

    // The daemon admits a tenant without a guarantee. The tenant takes the memory that is free.
    viewing(&host, &["--name", "fair", "--memory", "4GiB"]).finish().success();

    let options = [&guaranteed("second", "2GiB")[..], &["--wait"]].concat();
    let mut second = host.spawn(host.run(&options, c_client("view"), &[]));
    second.await_error_line(|line| line.contains("waiting: the daemon cannot guarantee 2 GiB of memory"));
    thread::sleep(Duration::from_millis(600));
    assert!(host.ps().find("second").is_none(), "it waits still");
    first.finish().success();
    second.await_json();
    second.finish().success();
}

#[test]
fn jobs_that_wait_get_their_memory_in_the_order_in_which_they_came() {
    let (host, _daemon) = host().with_daemon();
    let first = viewing(&host, &guaranteed("first", "3GiB"));
    let wait = |name, memory| {
        let options = [&guaranteed(name, memory)[..], &["--wait"]].concat();
        let mut job = host.spawn(host.run(&options, c_client("view"), &[]));
        job.await_error_line(|line| line.contains("waiting: the daemon cannot guarantee"));
        job
    };
    // There is room for the second of these jobs, and the first came before.
    let [mut long, mut short] =
        [("long", "2GiB"), ("short", "1GiB")].map(|(name, memory)| wait(name, memory));
    let refused = host.finish(host.run(&guaranteed("late", "1GiB"), c_client("view"), &[]));
    refused.refused("other jobs came before, and wait for guaranteed memory");
    let status = host.status();
    let waiting: Vec<_> = status["waiting"].as_array().expect("a list").iter().collect();
    let told: Vec<_> = waiting.iter().map(|job| (&job["tenant"], &job["memory_bytes"])).collect();
    assert_eq!(told, [(&"long".into(), &(2 * GIB).into()), (&"short".into(), &GIB.into())]);
    let shown = host.shows(&["ps"]);
    let at = |name| shown.find(&format!("\n{name} ")).unwrap_or_else(|| panic!("no {name} in {shown}"));
    assert!(at("WAITING") < at("long") && at("long") < at("short"), "{shown}");
    assert!(host.ps().find("short").is_none(), "it waits for its turn");
    first.finish().success();
    for job in [&mut long, &mut short] {
        job.await_json();
    }
    assert!(host.status()["waiting"].as_array().is_some_and(Vec::is_empty), "nobody waits any more");
    for job in [long, short] {
        job.finish().success();
    }
}

#[test]
fn jobs_wait_in_their_order_for_a_cap_of_which_their_users_other_tenants_have_too_much() {
    let (host, _daemon) = host().config("[caps]\nmemory = \"1GiB\"\n").with_daemon();
    let named = |name, memory| ["--name", name, "--memory", memory, "--class", "fair"];
    let first = viewing(&host, &named("first", "800MiB"));
    let wait = |name, memory, reason: &str| {
        let options = [&named(name, memory)[..], &["--wait"]].concat();
        let mut job = host.spawn(host.run(&options, c_client("view"), &[]));
        job.await_error_line(|line| line.contains("waiting: ") && line.contains(reason));
        job
    };
    let mut long = wait("long", "800MiB", "of which the user's other tenants leave 224 MiB");
    // The cap has room for this job, but the other job came before.
    let mut short = wait("short", "200MiB", "other jobs of the user came before");
    let refused = host.finish(host.run(&named("late", "200MiB"), c_client("view"), &[]));
    refused.refused("or wait for it with --wait");
    let status = host.status();
    let waiting = status["waiting"].as_array().expect("a list").iter();
    let told: Vec<_> = waiting.map(|job| (&job["tenant"], &job["memory_bytes"])).collect();
    assert_eq!(told, [(&"long".into(), &(800 * MIB).into()), (&"short".into(), &(200 * MIB).into())]);
    first.finish().success();
    for job in [&mut long, &mut short] {
        job.await_json();
    }
    for job in [long, short] {
        job.finish().success();
    }
    let beyond = [&named("beyond", "2GiB")[..], &["--wait"]].concat();
    host.finish(host.run(&beyond, c_client("view"), &[])).refused("the cap for everybody is 1 GiB");
}

#[test]
fn more_memory_than_any_gpu_has_is_refused_at_once_and_never_waited_for() {
    let (host, _daemon) = host().with_daemon();
    let options = [&guaranteed("huge", "5GiB")[..], &["--wait"]].concat();
    let refused = host.finish(host.run(&options, c_client("view"), &[]));
    refused.refused("the largest GPU has 4 GiB");
    assert!(!refused.stderr.contains("waiting"), "{}", refused.stderr);
}

#[test]
fn a_users_later_tenants_leave_a_running_one_the_memory_that_it_holds_of_the_cap() {
    let (host, _daemon) = host().config("[caps]\nmemory = \"1GiB\"\n").with_daemon();
    let mut holder = holding(&host, &["--name", "holder"], 640 * MIB);

    let options = ["--name", "late", "--memory", "800MiB"];
    host.finish(host.run(&options, c_client("view"), &[]))
        .refused("of which the user's other tenants leave 384 MiB");

    // The daemon does not refuse a process that runs already. The process gets a lower limit until
    // there is room.
    let mut late = host.preloaded(c_client("yields"));
    late.env("DEEPRES_TENANT", "late").env("DEEPRES_MEMORY", "800MiB").arg((320 * MIB).to_string());
    let _late = host.start(late, "holding");
    let limits = |holder: u64, late: u64| {
        move |ps: &Ps| {
            let limit = |name| ps.find(name).and_then(|tenant| tenant.memory_limit_bytes);
            (limit("holder"), limit("late")) == (Some(holder * MIB), Some(late * MIB))
        }
    };
    host.await_ps(limits(640, 384));
    holder.signal(Signal::USR2);
    holder.await_exactly("freed");
    host.await_ps(limits(224, 800));
}

#[test]
fn the_memory_of_a_users_tenants_never_passes_the_cap_however_fast_they_grow() {
    const CAP_BYTES: u64 = 1 << 30;
    const PIECE_BYTES: u64 = 16 << 20;
    let (host, _daemon) = host().config("[caps]\nmemory = \"1GiB\"\n").with_daemon();
    let greedy = |name: &str| host.start(host.run(&["--name", name], c_client("greedy"), &[]), "ready");
    let mut all = ["first", "second", "third"].map(greedy);
    // Each has its part at some time, while those before it ask for more.
    for process in &mut all {
        process.say("");
        process.await_line(|most| most.parse::<u64>().is_ok_and(|most| most >= CAP_BYTES / 3 - PIECE_BYTES));
    }
    thread::sleep(Duration::from_secs(2));
    for process in all {
        process.finish().success();
    }
    let peak = host.truth().gpus[0].memory_peak_bytes;
    assert!(peak <= CAP_BYTES, "{peak} bytes held at once");
}

#[test]
fn a_tenant_beside_one_that_had_all_of_a_cap_has_its_part_at_once() {
    let (host, _daemon) = host().config("[caps]\nmemory = \"1GiB\"\n").with_daemon();
    let _holder = holding(&host, &["--name", "holder"], 64 << 20);
    let _late = holding(&host, &["--name", "late"], 512 << 20);
}

#[test]
fn memory_that_others_hold_cannot_be_guaranteed_either() {
    let (host, _daemon) = host().with_daemon();
    let _holder = holding(&host, &["--name", "holder"], 2 << 30);
    host.finish(host.run(&guaranteed("late", "3GiB"), c_client("view"), &[]))
        .refused("other tenants and their guarantees leave 2 GiB on a GPU");
}

#[test]
fn a_running_tenant_gets_no_guarantee_that_cannot_be_kept_and_administrators_give_none() {
    let (host, _daemon) = host().with_daemon();
    let _first = viewing(&host, &guaranteed("first", "3GiB"));
    let mut command = host.preloaded(c_client("view"));
    for (name, value) in [("TENANT", "late"), ("CLASS", "guaranteed"), ("SHARE", "40%"), ("MEMORY", "2GiB")] {
        command.env(format!("DEEPRES_{name}"), value);
    }
    let (_late, _) = host.told(command);
    let class = || host.tenant("late")["class"].clone();
    assert_eq!(class(), "fair");
    let set = |memory| host.call(&["set", "late", "--class", "guaranteed", "--memory", memory]);
    let refused = set("2GiB");
    refused.refused("cannot guarantee 2 GiB of memory now");
    assert_eq!(class(), "fair");
    set("1GiB").success();
    assert_eq!(class(), "guaranteed");
}

#[test]
fn guaranteed_memory_is_kept_from_later_tenants() {
    let (host, mut daemon) = host().with_daemon();
    let first = viewing(&host, &guaranteed("first", "3GiB"));
    let greedy = filled(&host, &["--name", "greedy"]);
    assert_eq!(greedy["kinds"][0]["bytes"], 1u64 << 30, "{greedy}");
    assert_eq!(greedy["info_total"], 1u64 << 30, "{greedy}");
    // This tenant has no limit of its own.
    daemon.await_error_line(|line| {
        line.contains("refused 32 MiB for cuMemAlloc_v2")
            && line.contains("would exceed the 1 GiB that others leave")
    });
    first.finish().success();
    let later = filled(&host, &["--name", "later"]);
    assert_eq!(later["kinds"][0]["bytes"], 4u64 << 30, "nothing is promised any more: {later}");
}

#[test]
fn memory_is_guaranteed_on_the_gpu_that_a_job_uses_or_not_at_all() {
    let (host, _daemon) = Host::new().simgpu(&format!("gpus = 2\n{GPU}")).with_daemon();
    let bytes = (2u64 << 30).to_string();
    let mut command = host.run(&["--name", "holder"], c_client("yields"), &[&bytes]);
    command.env("CUDA_VISIBLE_DEVICES", "0");
    let _holder = host.start(command, "holding");
    for (name, gpu, class) in [("beside", "0", "fair"), ("elsewhere", "1", "guaranteed")] {
        let mut command = host.run(&guaranteed(name, "3GiB"), c_client("view"), &[]);
        command.env("CUDA_VISIBLE_DEVICES", gpu);
        let (client, _) = host.told(command);
        let tenant = host.tenant(name);
        assert_eq!(tenant["class"], class, "{name}: {tenant}");
        client.finish().success();
    }
}

#[test]
fn an_administrator_promises_no_more_than_there_is_on_the_gpu_that_a_job_uses() {
    let (host, _daemon) = Host::new().simgpu(&format!("gpus = 2\n{GPU}")).with_daemon();
    let _holder = holding(&host, &["--name", "holder"], 2 << 30);
    // The tenant sees both GPUs, and uses the first.
    let _first = holding(&host, &guaranteed("first", "1GiB"), 512 << 20);
    let set = |memory| host.call(&["set", "first", "--memory", memory]);
    let refused = set("3GiB");
    refused.refused("other tenants and their guarantees leave 2 GiB on a GPU");
    set("2GiB").success();
}

#[test]
fn a_tenant_without_a_guarantee_takes_no_guaranteed_memory_by_following_its_use() {
    let (host, _daemon) = host().with_daemon();
    let first = viewing(&host, &guaranteed("first", "3GiB"));
    let options = ["--name", "follower", "--memory-follow-use"];
    let most = filled(&host, &options);
    assert_eq!(most["kinds"][0]["bytes"], 1u64 << 30, "{most}");
    let mut follower = Calls::run(&host, host.run(&options, "python3", &[]), "");
    follower.does("start()");
    follower.does("linear('held', 512 << 20)");
    let told = host.shows(&["ps", "-v"]);
    assert!(told.contains("keeps 1 GiB for the tenant"), "{told}");
    assert!(told.contains("may hold 1 GiB at most"), "{told}");
    first.finish().success();
    // Without other tenants, the daemon keeps all of the GPU's memory for the follower.
    let all =
        |told: &str| told.contains("keeps 4 GiB for the tenant") && told.contains("may hold 4 GiB at most");
    eventually("all of it is the follower's", || all(&host.shows(&["ps", "-v"])));
    follower.0.process.finish().success();
}

#[test]
fn unused_memory_of_a_guarantee_is_lent_if_the_tenant_allows_that() {
    let (host, _daemon) = host().config("memory_follow_ms = 200\n").with_daemon();
    let first = viewing(&host, &[&guaranteed("first", "3GiB")[..], &["--memory-follow-use"]].concat());
    let taken = |name| filled(&host, &["--name", name])["kinds"][0]["bytes"].as_u64().expect("a number");
    let greedy = || taken("greedy");
    // The daemon has seen for a while that `first` uses nothing, and lends all of its memory but
    // the margin.
    await_value(greedy, |bytes| *bytes == (4096 - 256) * MIB);
    let told = host.shows(&["ps", "-v"]);
    assert!(told.contains("it follows its use as asked"), "{told}");
    assert!(told.contains("keeps 256 MiB for the tenant"), "{told}");

    // Lent memory comes back when the borrower frees it, and not before.
    let holder = holding(&host, &["--name", "holder"], 3072 * MIB);
    let stop = || host.call(&["set", "first", "--memory-follow-use=false"]);
    let refused = stop();
    refused.refused("of memory now");
    // The limit of `first` follows the memory that others leave. The limit is never below the
    // memory that the daemon keeps for `first`.
    let mine = taken("first");
    assert!((256 * MIB..=1024 * MIB).contains(&mine), "{mine}");
    holder.signal(Signal::TERM);
    eventually("it is given back", || stop().code == 0);
    assert_eq!(greedy(), 1024 * MIB);
    first.finish().success();
}
