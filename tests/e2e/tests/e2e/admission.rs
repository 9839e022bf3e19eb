//! Guaranteed memory. The daemon promises it once. A later job that asks for promised memory is
//! refused with the reason, or waits.

use deepres_e2e::prelude::*;

const GPU: &str = "memory_bytes = 4294967296\ncontext_overhead_bytes = 0\n";

#[test]
fn guaranteed_memory_that_others_have_is_refused_with_the_reason_or_waited_for() {
    let host = Host::new().simgpu(GPU);
    let _daemon = host.daemon();
    let guaranteed =
        |name, share, memory| ["--name", name, "--class", "guaranteed", "--share", share, "--memory", memory];
    let view = || c_client("view");
    let (first, _) = host.told(host.run(&guaranteed("first", "40%", "3GiB"), view(), &[]));

    let refused = host.finish(host.run(&guaranteed("second", "40%", "2GiB"), view(), &[]));
    refused.refused("what they hold leave 1 GiB of a GPU's");
    assert!(refused.stderr.contains("--wait"), "{}", refused.stderr);

    // A tenant without a guarantee is admitted, and takes the memory that is free.
    let (fair, _) = host.told(host.run(&["--name", "fair", "--memory", "4GiB"], view(), &[]));
    fair.finish().success();

    let options: Vec<&str> = guaranteed("second", "40%", "2GiB").into_iter().chain(["--wait"]).collect();
    let mut second = host.spawn(host.run(&options, view(), &[]));
    second.await_error_line(|line| line.contains("waiting: 2 GiB of memory"));
    thread::sleep(Duration::from_millis(600));
    assert!(host.ps().find("second").is_none(), "it waits still");
    first.finish().success();
    second.await_json();
    second.finish().success();
}

#[test]
fn nobody_waits_for_a_guarantee_that_was_not_asked_for() {
    let host = Host::new().simgpu(GPU);
    let options = ["--class", "fair", "--memory", "2GiB", "--wait"];
    let refused = host.finish(host.run(&options, c_client("view"), &[]));
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("a tenant of class fair has no guarantee"), "{}", refused.stderr);
}

#[test]
fn more_memory_than_any_gpu_has_is_refused_at_once_and_never_waited_for() {
    let host = Host::new().simgpu(GPU);
    let _daemon = host.daemon();
    let options = ["--name", "huge", "--class", "guaranteed", "--share", "40%", "--memory", "5GiB", "--wait"];
    let refused = host.finish(host.run(&options, c_client("view"), &[]));
    refused.refused("the largest GPU has 4 GiB");
    assert!(!refused.stderr.contains("waiting"), "{}", refused.stderr);
}

#[test]
fn a_users_later_tenants_leave_one_that_runs_what_it_holds_of_the_cap() {
    let simgpu = format!("{GPU}kernel = [{{ name = \"busy_1000us\", ns = 1000000 }}]\n");
    let host = Host::new().simgpu(&simgpu).config("[caps]\nmemory = \"1GiB\"\n");
    let _daemon = host.daemon();
    let bytes = (640 * MIB).to_string();
    let mut holder = host.start(host.run(&["--name", "holder"], c_client("yields"), &[&bytes]), "holding");

    let options = ["--name", "late", "--memory", "800MiB"];
    host.finish(host.run(&options, c_client("view"), &[]))
        .refused("beside what the user's other tenants have of it there is 384 MiB");

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
fn what_a_users_tenants_hold_together_never_passes_the_cap_however_fast_they_grow() {
    const CAP_BYTES: u64 = 1 << 30;
    const PIECE_BYTES: u64 = 16 << 20;
    let host = Host::new().simgpu(GPU).config("[caps]\nmemory = \"1GiB\"\n");
    let _daemon = host.daemon();
    let greedy = |name: &str| {
        let client = c_client("greedy");
        host.spawn(host.run(&["--name", name], client, &["6000"]))
    };
    let [first, second] = ["first", "second"].map(greedy);
    thread::sleep(Duration::from_secs(2));
    for process in [first, second, greedy("third")] {
        let most = process.finish().success().stdout;
        let most: u64 = most.trim().parse().expect("a number");
        assert!(most >= CAP_BYTES / 3 - PIECE_BYTES, "each had its part of it: {most}");
    }
    let peak = host.truth().gpus[0].memory_peak_bytes;
    assert!(peak <= CAP_BYTES, "{peak} bytes held at once");
}

#[test]
fn who_comes_beside_one_that_had_all_of_a_cap_has_its_part_at_once() {
    let simgpu = format!("{GPU}kernel = [{{ name = \"busy_1000us\", ns = 1000000 }}]\n");
    let host = Host::new().simgpu(&simgpu).config("[caps]\nmemory = \"1GiB\"\n");
    let _daemon = host.daemon();
    let holding = |name: &str, bytes: u64| {
        let client = c_client("yields");
        host.start(host.run(&["--name", name], client, &[&bytes.to_string()]), "holding")
    };
    let _holder = holding("holder", 64 << 20);
    let _late = holding("late", 512 << 20);
}

#[test]
fn memory_that_others_hold_cannot_be_guaranteed_either() {
    let host = Host::new().simgpu(
        "memory_bytes = 4294967296\ncontext_overhead_bytes = 0\nkernel = [{ name = \"busy_1000us\", ns = 1000000 }]\n",
    );
    let _daemon = host.daemon();
    let bytes = (2u64 << 30).to_string();
    let _holder = host.start(host.run(&["--name", "holder"], c_client("yields"), &[&bytes]), "holding");
    let options = ["--name", "late", "--class", "guaranteed", "--share", "40%", "--memory", "3GiB"];
    host.finish(host.run(&options, c_client("view"), &[])).refused("what they hold leave 2 GiB of a GPU's");
}

#[test]
fn who_runs_already_gets_no_guarantee_that_cannot_be_kept_and_administrators_give_none() {
    let host = Host::new().simgpu(GPU);
    let _daemon = host.daemon();
    let options = ["--name", "first", "--class", "guaranteed", "--share", "40%", "--memory", "3GiB"];
    let (_first, _) = host.told(host.run(&options, c_client("view"), &[]));
    let mut command = host.preloaded(c_client("view"));
    for (name, value) in [("TENANT", "late"), ("CLASS", "guaranteed"), ("SHARE", "40%"), ("MEMORY", "2GiB")] {
        command.env(format!("DEEPRES_{name}"), value);
    }
    let (_late, _) = host.told(command);
    let class = || host.tenant("late")["class"].clone();
    assert_eq!(class(), "fair");
    let set = |memory| host.call(&["set", "late", "--class", "guaranteed", "--memory", memory]);
    let refused = set("2GiB");
    refused.refused("2 GiB of memory cannot be guaranteed now");
    assert_eq!(class(), "fair");
    set("1GiB").success();
    assert_eq!(class(), "guaranteed");
}

#[test]
fn what_was_promised_is_kept_from_those_who_come_later() {
    let host = Host::new().simgpu(
        "memory_bytes = 4294967296\ncontext_overhead_bytes = 0\nkernel = [{ name = \"busy_1000us\", ns = 1000000 }]\n",
    );
    let mut daemon = host.daemon();
    let options = ["--name", "first", "--class", "guaranteed", "--share", "40%", "--memory", "3GiB"];
    let (first, _) = host.told(host.run(&options, c_client("view"), &[]));
    let greedy = |name| {
        let arguments = ["33554432", "cuMemAlloc_v2"];
        host.finish(host.run(&["--name", name], c_client("fill"), &arguments)).success().json()
    };
    let filled = greedy("greedy");
    assert_eq!(filled["kinds"][0]["bytes"], 1u64 << 30, "{filled}");
    assert_eq!(filled["info_total"], 1u64 << 30, "{filled}");
    // This tenant has no limit of its own.
    daemon.await_error_line(|line| {
        line.contains("refused 32 MiB for cuMemAlloc_v2")
            && line.contains("passes the 1 GiB that others leave it")
    });
    first.finish().success();
    let filled = greedy("later");
    assert_eq!(filled["kinds"][0]["bytes"], 4u64 << 30, "nothing is promised any more: {filled}");
}

#[test]
fn memory_is_guaranteed_on_the_gpu_that_a_job_uses_or_not_at_all() {
    let host = Host::new().simgpu(
        "gpus = 2\nmemory_bytes = 4294967296\ncontext_overhead_bytes = 0\nkernel = [{ name = \"busy_1000us\", ns = 1000000 }]\n",
    );
    let _daemon = host.daemon();
    let bytes = (2u64 << 30).to_string();
    let mut command = host.run(&["--name", "holder"], c_client("yields"), &[&bytes]);
    command.env("CUDA_VISIBLE_DEVICES", "0");
    let _holder = host.start(command, "holding");
    for (name, gpu, class) in [("beside", "0", "fair"), ("elsewhere", "1", "guaranteed")] {
        let options = ["--name", name, "--class", "guaranteed", "--share", "40%", "--memory", "3GiB"];
        let mut command = host.run(&options, c_client("view"), &[]);
        command.env("CUDA_VISIBLE_DEVICES", gpu);
        let (client, _) = host.told(command);
        let tenant = host.tenant(name);
        assert_eq!(tenant["class"], class, "{name}: {tenant}");
        client.finish().success();
    }
}

#[test]
fn an_administrator_promises_no_more_than_there_is_on_the_gpu_that_a_job_uses() {
    let host = Host::new().simgpu(
        "gpus = 2\nmemory_bytes = 4294967296\ncontext_overhead_bytes = 0\nkernel = [{ name = \"busy_1000us\", ns = 1000000 }]\n",
    );
    let _daemon = host.daemon();
    let holding = |options: &[&str], bytes: u64| {
        host.start(host.run(options, c_client("yields"), &[&bytes.to_string()]), "holding")
    };
    let _holder = holding(&["--name", "holder"], 2 << 30);
    // The tenant sees both GPUs, and uses the first.
    let options = ["--name", "first", "--class", "guaranteed", "--share", "40%", "--memory", "1GiB"];
    let _first = holding(&options, 512 << 20);
    let set = |memory| host.call(&["set", "first", "--memory", memory]);
    let refused = set("3GiB");
    refused.refused("what they hold leave 2 GiB of a GPU's");
    set("2GiB").success();
}

#[test]
fn who_was_promised_nothing_takes_no_promised_memory_by_following_its_use() {
    let host = Host::new().simgpu(GPU);
    let _daemon = host.daemon();
    let options = ["--name", "first", "--class", "guaranteed", "--share", "40%", "--memory", "3GiB"];
    let (first, _) = host.told(host.run(&options, c_client("view"), &[]));
    let arguments = ["33554432", "cuMemAlloc_v2"];
    let options = ["--name", "follower", "--memory-follow-use"];
    let follower = host.spawn(host.run(&options, c_client("fill"), &arguments));
    let filled = follower.finish().success().json();
    assert_eq!(filled["kinds"][0]["bytes"], 1u64 << 30, "{filled}");
    let bytes = (512u64 << 20).to_string();
    let follower = host.start(host.run(&options, c_client("holds"), &[&bytes]), "holding");
    let told = host.shows(&["ps", "-v"]);
    assert!(told.contains("1 GiB are kept for it"), "{told}");
    assert!(told.contains("may hold 1 GiB at most"), "{told}");
    first.finish().success();
    // Without other tenants, all of the GPU's memory is kept for the follower.
    let all = |told: &str| told.contains("4 GiB are kept for it") && told.contains("may hold 4 GiB at most");
    eventually("all of it is the follower's", || all(&host.shows(&["ps", "-v"])));
    follower.finish().success();
}

#[test]
fn what_a_tenant_does_not_use_of_its_promise_is_lent_where_it_allows_that() {
    let gpu = "memory_bytes = 4294967296\ncontext_overhead_bytes = 0\nkernel = [{ name = \"busy_1000us\", ns = 1000000 }]\n";
    let host = Host::new().simgpu(gpu).config("memory_follow_ms = 200\n");
    let _daemon = host.daemon();
    let options = ["--name", "first", "--class", "guaranteed", "--share", "40%", "--memory", "3GiB"];
    let options = [&options[..], &["--memory-follow-use"]].concat();
    let (first, _) = host.told(host.run(&options, c_client("view"), &[]));
    let greedy = || {
        let arguments = ["33554432", "cuMemAlloc_v2"];
        let run = host.run(&["--name", "greedy"], c_client("fill"), &arguments);
        host.finish(run).success().json()["kinds"][0]["bytes"].as_u64().expect("a number")
    };
    // Everything but the margin is lent, once the daemon has seen for a while that `first` uses
    // nothing.
    await_value(greedy, |bytes| *bytes == (4096 - 256) * MIB);
    let told = host.shows(&["ps", "-v"]);
    assert!(told.contains("it follows its use as asked"), "{told}");
    assert!(told.contains("256 MiB are kept for it"), "{told}");

    // Lent memory comes back once the borrower has freed it, and not before.
    let bytes = (3072 * MIB).to_string();
    let holder = host.start(host.run(&["--name", "holder"], c_client("yields"), &[&bytes]), "holding");
    let stop = || host.call(&["set", "first", "--memory-follow-use=false"]);
    let refused = stop();
    refused.refused("cannot be guaranteed now");
    // The limit of `first` follows the memory that is left, and is never below the memory that is
    // kept for it.
    let arguments = ["33554432", "cuMemAlloc_v2"];
    let filled = host.finish(host.run(&["--name", "first"], c_client("fill"), &arguments)).success();
    let mine = filled.json()["kinds"][0]["bytes"].as_u64().expect("a number");
    assert!((256 * MIB..=1024 * MIB).contains(&mine), "{mine}");
    holder.signal(Signal::TERM);
    eventually("it is given back", || stop().code == 0);
    assert_eq!(greedy(), 1024 * MIB);
    first.finish().success();
}
