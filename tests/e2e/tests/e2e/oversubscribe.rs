//! Tenants that asked for managed memory beyond their limit: how much they get, and where the
//! memory is.

use std::fs;

use deepres_e2e::contention::Log;
use deepres_e2e::prelude::*;

/// Time within which memory is moved, however busy the machine is.
const MOVE_LIMIT: Duration = Duration::from_secs(20);

fn swapper(host: &Host, name: &str, limit: Option<&str>, bytes: u64, kernels: &str) -> Process {
    let mut options = vec!["--name", name, "--oversubscribe", "managed"];
    options.extend(limit.iter().flat_map(|limit| ["--memory", limit]));
    host.spawn(host.run(&options, c_client("swap"), &[&bytes.to_string(), kernels]))
}

/// Starts the client like [`swapper`], and waits until the process has its memory.
fn holding(host: &Host, name: &str, limit: Option<&str>, bytes: u64, kernels: &str) -> Process {
    let mut process = swapper(host, name, limit, bytes, kernels);
    process.await_exactly("holding");
    process
}

/// Returns the managed memory on the GPU of each living process, bytes, in the order in which the
/// processes attached.
fn managed(host: &Host) -> Vec<u64> {
    let truth = host.truth();
    truth
        .processes
        .iter()
        .filter(|process| process.alive)
        .map(|process| process.gpus[0].managed_bytes)
        .collect()
}

/// Waits until the managed memory of the processes is as wanted.
#[track_caller]
fn await_managed(host: &Host, is_so: impl Fn(&[u64]) -> bool) {
    await_value_within(|| managed(host), |managed| is_so(managed), MOVE_LIMIT);
}

#[test]
fn what_is_beyond_the_limit_is_given_shown_brought_to_the_gpu_and_freed() {
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    let mut client = holding(&host, "t", Some("256MiB"), 512 * MIB, "2000");
    // The tenant is alone, and all of its memory fits.
    await_managed(&host, |managed| managed == [256 * MIB]);
    let account = host.ps().tenant("t").clone();
    assert_eq!((account.memory_bytes, account.oversubscribed_bytes), (256 * MIB, 256 * MIB));
    assert_eq!(account.refusals, 0);
    let told = host.shows(&["ps"]);
    assert!(told.contains("256 MiB beyond the limit"), "{told}");
    let said = client.await_json_within(Duration::from_secs(60));
    assert_eq!(said["changed"].as_u64(), Some(0), "{said}");
    let account = host.ps().tenant("t").clone();
    assert_eq!((account.memory_bytes, account.oversubscribed_bytes), (0, 0), "all of it was freed");
    assert_eq!(managed(&host), [0]);
    client.finish().success();
}

#[test]
fn two_tenants_that_together_have_more_than_the_gpu_both_run_and_what_is_beyond_follows_the_lease() {
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    // The limits leave 384 MiB of the GPU. The memory of one tenant beyond its limit fits there,
    // and that of both tenants does not.
    let mut first = holding(&host, "first", Some("320MiB"), 640 * MIB, "1500");
    await_managed(&host, |managed| managed == [320 * MIB]);
    let mut second = holding(&host, "second", Some("320MiB"), 640 * MIB, "1500");
    // In turn, each tenant has all or most of its memory beyond the limit on the GPU.
    await_managed(&host, |managed| managed.len() == 2 && managed[1] >= 192 * MIB);
    await_managed(&host, |managed| managed[0] >= 192 * MIB);
    assert!(managed(&host).iter().sum::<u64>() <= 384 * MIB);
    for client in [&mut first, &mut second] {
        let said = client.await_json_within(Duration::from_secs(100));
        assert_eq!(said["changed"].as_u64(), Some(0), "{said}");
    }
    for client in [first, second] {
        client.finish().success();
    }
    for tenant in ["first", "second"] {
        assert_eq!(host.ps().tenant(tenant).refusals, 0);
    }
}

#[test]
fn without_a_limit_what_the_gpu_lacks_is_managed() {
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    let mut first = swapper(&host, "first", None, 640 * MIB, "0");
    first.await_json();
    first.finish().success();
    let holder = host.start(
        host.run(&["--name", "holder"], c_client("swap"), &[&(640 * MIB).to_string(), "1500"]),
        "holding",
    );
    let second = holding(&host, "second", None, 640 * MIB, "1500");
    let account = host.ps().tenant("second").clone();
    assert_eq!((account.memory_bytes, account.oversubscribed_bytes), (384 * MIB, 256 * MIB));
    for mut client in [holder, second] {
        assert_eq!(client.await_json_within(Duration::from_secs(60))["changed"].as_u64(), Some(0));
        client.finish().success();
    }
}

#[test]
fn a_tenant_never_has_more_than_the_gpu_and_one_that_did_not_ask_has_no_more_than_its_limit() {
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    for (name, options, bytes) in [
        ("more", vec!["--oversubscribe", "managed"], 1056 * MIB),
        ("plain", vec![], 288 * MIB),
        ("suspended", vec!["--oversubscribe", "suspend"], 288 * MIB),
    ] {
        let options = [vec!["--name", name, "--memory", "256MiB"], options].concat();
        let finished = host.finish(host.run(&options, c_client("swap"), &[&bytes.to_string(), "1"]));
        assert!(finished.code != 0, "{name}: {}", finished.stdout);
    }
    let mut client = swapper(&host, "all", Some("256MiB"), 1024 * MIB, "8");
    assert_eq!(client.await_json()["changed"].as_u64(), Some(0));
    client.finish().success();
}

#[test]
fn a_tenant_that_is_killed_leaves_nothing_behind() {
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    let client = holding(&host, "t", Some("64MiB"), 512 * MIB, "100000");
    await_managed(&host, |managed| managed.iter().sum::<u64>() > 0);
    drop(client);
    await_value_within(|| host.truth().gpus[0].managed_bytes, |bytes| *bytes == 0, MOVE_LIMIT);
}

#[test]
fn what_is_beyond_the_limit_is_memory_like_any_other_but_for_what_is_documented() {
    const LIMIT: u64 = 64 * MIB;
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    let options = ["--name", "t", "--memory", "64MiB", "--oversubscribe", "managed"];
    for way in [Way::Linked, Way::Dlsym, Way::ProcAddress] {
        let (client, said) = host.told(host.run(&options, c_client_by("beyond", way), &[&LIMIT.to_string()]));
        assert_eq!(said["managed"], 0b111, "the limit's own is not, the rest is: {said}");
        assert_eq!((&said["kept"], &said["pitch"]), (&1.into(), &1024.into()), "{said}");
        for refused in ["pooled", "physical", "array"] {
            assert_eq!(said[refused], 2, "{refused} memory stays within the limit: {said}");
        }
        assert_eq!(said["exported"], 0, "{said}");
        assert_eq!((&said["free"], &said["total"]), (&0.into(), &LIMIT.into()), "{said}");
        // These are CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and _INVALIDATED, the same codes as for
        // memory within the limit.
        assert_eq!(said["captured"], json!([900, 900, 0]), "{said}");
        assert_eq!(said["ended"], json!([901, 901, 0]), "{said}");
        assert_eq!(
            (&said["child"], &said["freed"], &said["twice"]),
            (&0.into(), &0.into(), &1.into()),
            "{said}"
        );
        // The meter thread reports the oversubscribed bytes, and the ledger shows the memory within
        // the limit.
        host.await_ps(|ps| {
            let account = ps.tenant("t");
            (account.memory_bytes, account.oversubscribed_bytes) == (LIMIT, 0)
        });
        client.finish().success();
    }
}

#[test]
fn where_managed_memory_does_not_move_what_is_beyond_the_limit_is_refused_and_why_is_said() {
    let (host, _daemon) =
        Host::new().simgpu("context_overhead_bytes = 0\nmanaged_memory_migrates = false\n").with_daemon();
    let options = ["--name", "t", "--memory", "64MiB", "--oversubscribe", "managed"];
    let bytes = (64 * MIB).to_string();
    let mut client = host.spawn(host.run(&options, c_client("beyond"), &[&bytes]));
    assert_eq!(client.await_json()["refused"], json!([2, 2, 2]));
    let finished = client.finish().success();
    assert_eq!(finished.stderr.matches("concurrentManagedAccess").count(), 1, "{}", finished.stderr);
}

#[test]
fn without_a_daemon_it_is_the_same() {
    let host = Host::of_one_gib();
    let alone = |client: &str, limit: &str, arguments: &[&str]| {
        let mut command = host.alone(c_client(client));
        command.args(arguments).env("DEEPRES_MEMORY", limit).env("DEEPRES_OVERSUBSCRIBE", "managed");
        host.spawn(command)
    };
    let mut client = alone("beyond", "64MiB", &[&(64 * MIB).to_string()]);
    let said = client.await_json();
    assert_eq!(
        (&said["managed"], &said["kept"], &said["pooled"]),
        (&7.into(), &1.into(), &2.into()),
        "{said}"
    );
    client.finish().success();
    let mut client = alone("swap", "256MiB", &[&(512 * MIB).to_string(), "2000"]);
    client.await_exactly("holding");
    // The tenant is alone, and all of its memory fits.
    await_managed(&host, |managed| managed == [256 * MIB]);
    assert_eq!(client.await_json()["changed"].as_u64(), Some(0));
    client.finish().success();
}

#[test]
fn races_of_threads_and_processes_and_a_kill_leave_nothing_on_the_account_or_the_gpu() {
    const OPERATIONS: u64 = 20_000;
    const LIMIT: u64 = 64 * MIB;
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    let log = Log::create(&host.path().join("log"), OPERATIONS).expect("a folder of our own");
    let racer = |number: u32| {
        let mut command = host.preloaded(c_client("contend"));
        command.arg(log.path()).args([OPERATIONS.to_string(), number.to_string()]).arg("4");
        command.env("DEEPRES_TENANT", "race").env("DEEPRES_MEMORY", LIMIT.to_string());
        command.env("DEEPRES_OVERSUBSCRIBE", "managed");
        host.spawn(command)
    };
    let (mut first, mut second) = (racer(0), racer(1));
    eventually("the race goes on", || log.begun().expect("the log is there") >= OPERATIONS / 2);
    second.kill();
    let mut third = racer(2);
    for racer in [&mut first, &mut third] {
        racer.await_exactly("done");
    }
    let (truth, account) = (host.truth().gpus[0], host.ps().tenant("race").clone());
    // Managed memory within the limit counts wherever its pages are.
    let managed = host.status()["tenants"][0]["gpus"][0]["memory_by_kind"]["managed"].as_u64();
    let held_bytes = account.memory_bytes - managed.unwrap_or(0);
    assert_eq!(held_bytes, truth.memory_used_bytes, "account and GPU agree");
    assert!(truth.memory_peak_bytes <= LIMIT, "within the limit: {}", truth.memory_peak_bytes);
    assert!(account.oversubscribed_bytes > 0, "it went beyond the limit: {account:?}");
    for mut racer in [first, third] {
        racer.say("");
        racer.await_exactly("freed");
        racer.finish().success();
    }
    let (truth, account) = (host.truth().gpus[0], host.ps().tenant("race").clone());
    assert_eq!((account.memory_bytes, account.oversubscribed_bytes), (0, 0));
    assert_eq!((truth.memory_used_bytes, truth.managed_bytes), (0, 0));
}

#[test]
fn beside_one_that_takes_no_room_what_is_beyond_the_limit_stays_where_it_is() {
    const LOOKS: u32 = 40;
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    let _first = holding(&host, "first", Some("320MiB"), 640 * MIB, "100000");
    await_managed(&host, |managed| managed == [320 * MIB]);
    // With the second tenant the GPU is almost full. Less memory is free than the first tenant has
    // there beyond its limit.
    let arguments = [&(320 * MIB).to_string(), "100000"];
    let _plain = host.start(
        host.run(&["--name", "plain"], c_client("swap"), &arguments.map(|argument| argument as &str)),
        "holding",
    );
    let (begun, mut looks) = (Instant::now(), 0);
    while looks < LOOKS {
        looks = if managed(&host)[0] == 320 * MIB { looks + 1 } else { 0 };
        assert!(begun.elapsed() < MOVE_LIMIT, "it comes and goes");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A client that runs one line of Python after another (`pieces.py`), with a limit of 64 MiB and
/// managed memory beyond it.
struct Asked(Orders);

impl Asked {
    fn start(host: &Host, variables: &[(&str, &str)]) -> Self {
        let mut command = host.preloaded("python3");
        command.arg(script("pieces")).env("DEEPRES_TENANT", "t");
        command.env("DEEPRES_OVERSUBSCRIBE", "managed").env("DEEPRES_MEMORY", "64MiB");
        command.envs(variables.iter().copied());
        let mut asked = Self(Orders::new(host.spawn(command), 0, |number| format!("{number} ")));
        assert_eq!(asked.says("start()"), "0");
        asked
    }

    fn says(&mut self, line: &str) -> String {
        self.0.ask(line)
    }

    fn await_answer(&mut self, what: &str, answer: &str, line: &str) {
        eventually_within(what, MOVE_LIMIT, || self.says(line) == answer);
    }
}

#[test]
fn what_the_driver_does_not_bring_to_the_gpu_belongs_there_no_longer() {
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    // The meter thread brings the first part to the GPU, and advises the driver that all of the
    // memory belongs there. The prefetch of the next part fails.
    let mut client = Asked::start(&host, &[("SIMGPU_FAULTS", "cuMemPrefetchAsync_v2:2:1")]);
    assert_eq!(client.says("linear('limit', 64 << 20)"), "0");
    assert_eq!(client.says("linear('beyond', 64 << 20)"), "0");
    client.await_answer("a part is brought", "0", "place('beyond', 32 << 20, PREFETCHED)");
    client.await_answer("the advice is taken back", "-2", "place('beyond', 64 << 20, PREFERRED)");
}

#[test]
fn the_host_promises_memory_to_all_processes_of_a_tenant_together() {
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    // The interposer leaves a sixteenth of the 16 GiB free, so 512 MiB are left to promise.
    let meminfo = host.path().join("meminfo");
    let available_kib = (1024 + 512) * 1024;
    fs::write(&meminfo, format!("MemTotal: {} kB\nMemAvailable: {available_kib} kB\n", 16 << 20))
        .expect("the host's own folder");
    let libraries = [artefacts().library.clone(), c_library("fake_meminfo")];
    let preloaded = libraries.map(|library| library.display().to_string()).join(":");
    let variables = [("LD_PRELOAD", preloaded.as_str()), ("MEMINFO", meminfo.to_str().expect("plain text"))];
    let (mut first, mut second) = (Asked::start(&host, &variables), Asked::start(&host, &variables));
    assert_eq!(first.says("linear('limit', 64 << 20)"), "0");
    assert_eq!(first.says("linear('beyond', 384 << 20)"), "0");
    assert_eq!(second.says("linear('beyond', 384 << 20)"), "2");
    assert_eq!(second.says("linear('beyond', 128 << 20)"), "0");
    assert_eq!(second.says("linear('more', 2 << 20)"), "2");
    assert_eq!(first.says("cuda.cuMemFree_v2(kept['beyond'])"), "0");
    assert_eq!(second.says("linear('more', 384 << 20)"), "0");
    assert_eq!(first.says("linear('beyond', 2 << 20)"), "2");
    // Other processes can have the memory that was promised to a dead process.
    second.0.process.kill();
    first.await_answer("the dead one's is given back", "0", "linear('beyond', 512 << 20)");
}
