//! `deepres ps --coverage` shows how a process reached the driver, and which calls bypassed the
//! hooks.

use deepres_e2e::prelude::*;

/// Time within which the session's meter thread brings the meter page up to date.
const PAGE_SETTLES_WITHIN: Duration = Duration::from_secs(10);

/// Waits until the process of this tenant satisfies `wanted`.
#[track_caller]
fn await_process(host: &Host, tenant: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let process = || {
        let processes = host.json(&["ps", "--coverage", "--json"]);
        let own = processes.as_array().into_iter().flatten().find(|process| process["tenant"] == tenant);
        own.cloned()
    };
    await_value_within(process, |process| process.as_ref().is_some_and(&wanted), PAGE_SETTLES_WITHIN)
        .expect("it was there")
}

fn names<'p>(process: &'p Value, list: &str) -> Vec<&'p str> {
    process[list].as_array().expect("a list").iter().filter_map(Value::as_str).collect()
}

/// Returns the number of calls of this function that bypassed the hooks.
fn calls(process: &Value, function: &str) -> u64 {
    let all = process["unaccounted"].as_array().expect("a list");
    all.iter().find(|one| one["function"] == function).and_then(|one| one["calls"].as_u64()).unwrap_or(0)
}

/// Returns the calls that hooks let through, by reason.
fn let_through(process: &Value) -> Vec<(&str, u64)> {
    let all = process["bypassed"].as_array().expect("a list");
    let of = |one: &'_ Value| one["calls"].as_u64().expect("a number");
    all.iter().map(|one| (one["reason"].as_str().expect("a name"), of(one))).collect()
}

#[test]
fn every_function_of_a_client_is_listed_as_hooked_or_forwarded_and_nothing_went_past() {
    let (host, _daemon) = Host::new().with_daemon();
    for way in [Way::Dlsym, Way::ProcAddress] {
        let tenant = format!("{way:?}");
        let (client, said) = host.told(host.run(&["--name", &tenant], c_client_by("launches", way), &[]));
        let captured = said["graph_nodes"].as_u64().expect("a number");
        let process = await_process(&host, &tenant, |process| {
            !names(process, "hooked").is_empty() && let_through(process) == [("captured", captured)]
        });
        let (hooked, forwarded) = (names(&process, "hooked"), names(&process, "forwarded"));
        for function in [
            "cuInit",
            "cuLaunchKernel",
            "cuLaunchKernel_ptsz",
            "cuLaunchKernelEx_ptsz",
            "cuLaunchCooperativeKernelMultiDevice",
            "cuLaunchGridAsync",
            "cuGraphLaunch_ptsz",
            "cuMemAllocFromPoolAsync_ptsz",
            "cuMemCreate",
            "cuMemHostAlloc",
            "cuModuleLoadData",
        ] {
            assert!(hooked.contains(&function), "{way:?}: {function} in {hooked:?}");
        }
        for function in ["cuDeviceGet", "cuModuleGetFunction", "cuStreamCreate"] {
            assert!(forwarded.contains(&function), "{way:?}: {function} in {forwarded:?}");
        }
        let because = process["forwarded_because"].as_object().expect("counts by reason");
        let sum: u64 = because.values().filter_map(Value::as_u64).sum();
        assert_eq!(sum, forwarded.len() as u64, "{way:?}: {because:?}");
        assert!(because.contains_key("query") && !because.contains_key("none"), "{way:?}: {because:?}");
        for count in ["other_instance", "unknown_address", "unknown_names", "export_tables"] {
            assert_eq!(process[count], 0, "{way:?}: {count}");
        }
        assert_eq!(process["unaccounted"].as_array().map(Vec::len), Some(0), "{way:?}");
        client.finish().success();
    }
}

#[test]
fn launches_without_an_event_to_time_them_are_counted_as_let_through() {
    let (host, _daemon) = Host::new().with_daemon();
    let mut command = host.run(&["--name", "untimed"], c_client("launches"), &[]);
    command.env("SIMGPU_FAULTS", "cuEventCreate:every:1:2");
    let (client, said) = host.told(command);
    let launches = ["kernel_launches", "graph_launches"].map(|kind| said[kind].as_u64().expect("a number"));
    let launches: u64 = launches.iter().sum();
    await_process(&host, "untimed", |process| let_through(process).contains(&("no-event", launches)));
    let shown = host.shows(&["ps", "--coverage"]);
    let past = shown.lines().nth(1).and_then(|row| row.split_whitespace().nth(4));
    assert_eq!(past, Some(launches.to_string().as_str()), "{shown}");
    assert!(shown.contains(&format!("{launches} calls let through (no-event): The driver")), "{shown}");
    client.finish().success();
}

#[test]
fn calls_that_deepres_does_not_account_for_are_counted_one_by_one() {
    let (host, _daemon) = Host::new().with_daemon();
    let bare = host.finish(host.command(c_client("past"))).success().json();
    for way in Way::ALL {
        let tenant = format!("{way:?}");
        let (client, said) = host.told(host.run(&["--name", &tenant], c_client_by("past", way), &[]));
        assert_eq!(said, bare, "{way:?}: the client is answered as without deepres");
        let counted = [
            "cuMemHostAlloc",
            "cuStreamWriteValue32_v2",
            "cuStreamWriteValue32_v2_ptsz",
            "cuIpcOpenMemHandle_v2",
            "cuCtxSetLimit",
        ];
        await_process(&host, &tenant, |process| {
            counted.iter().all(|function| Some(calls(process, function)) == said[*function].as_u64())
        });
        let shown = host.shows(&["ps", "--coverage"]);
        assert!(
            shown.contains("cuIpcOpenMemHandle_v2 called 2 times: device memory that is not charged"),
            "{shown}"
        );
        client.finish().success();
    }
}
