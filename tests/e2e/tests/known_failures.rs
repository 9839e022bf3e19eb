//! Mistakes that published interposers made (design: "known ways to fail"): each breaks a client when a naive library makes it, and the
//! client under deepres is answered as without anybody in between.

use std::{path::Path, process::Command};

use deepres_e2e::{
    Finished, Host,
    clients::{Way, c_client, c_library, c_program},
    host::COMMAND_LIMIT,
};

/// How a client ended and what it said; what the libraries say to standard error is theirs.
type Life = (i32, Option<i32>, String);

fn live(host: &Host, command: Command) -> Life {
    let Finished { code, signal, stdout, .. } = host.spawn(command).finish(COMMAND_LIMIT);
    (code, signal, stdout)
}

/// The client that does `what`, in the environment of `host` (as a tenant or not).
fn hazard(mut command: Command, what: &[&str]) -> Command {
    command.args(what);
    command
}

fn naive(host: &Host, mistake: &str, program: &Path, what: &[&str]) -> Command {
    let mut command = hazard(host.command(program), what);
    command.env("LD_PRELOAD", c_library("naive")).env("NAIVE", mistake);
    command
}

/// Runs the client alone, as a tenant, and with a naive library that makes the mistake.
#[track_caller]
fn assert_only_the_naive_library_fails(mistake: &str, program: &Path, what: &[&str]) {
    let host = Host::new();
    let _daemon = host.daemon();
    let bare = live(&host, hazard(host.command(program), what));
    assert_eq!((bare.0, bare.1), (0, None), "{mistake}: alone it works: {bare:?}");
    let mut ours = hazard(host.preloaded(program), what);
    ours.env("DEEPRES_TENANT", mistake).env("DEEPRES_MEMORY", "4GiB");
    assert_eq!(live(&host, ours), bare, "{mistake}: under deepres");
    // The same library without the mistake is harmless: it is the mistake that shows.
    assert_eq!(live(&host, naive(&host, "", program, what)), bare, "{mistake}: not made");
    assert_ne!(live(&host, naive(&host, mistake, program, what)), bare, "{mistake}: made");
}

#[track_caller]
fn assert_only_the_naive_client_fails(mistake: &str, what: &str) {
    assert_only_the_naive_library_fails(mistake, &c_client("hazards", Way::Dlsym), &[what]);
}

#[test]
fn names_that_only_begin_like_the_drivers_are_somebody_elses() {
    let lookalikes = c_library("lookalikes").display().to_string();
    assert_only_the_naive_library_fails("prefix", &c_program("lookups"), &[&lookalikes]);
}

#[test]
fn a_function_that_changed_its_parameters_is_told_from_the_one_before() {
    assert_only_the_naive_client_fails("by-name", "abi");
}

#[test]
fn a_variant_for_per_thread_streams_launches_on_them() {
    assert_only_the_naive_client_fails("detour", "per-thread");
}

#[test]
fn a_look_up_in_a_librarys_constructor_waits_for_nobody() {
    let library = c_library("constructor").display().to_string();
    let client = c_client("hazards", Way::Dlsym);
    assert_only_the_naive_library_fails("lock", &client, &["constructor", &library]);
}

#[test]
fn the_real_dlsym_is_found_without_dlsym() {
    assert_only_the_naive_client_fails("itself", "launches");
}

#[test]
fn no_marker_gets_into_a_capture() {
    assert_only_the_naive_client_fails("markers", "capture");
}

#[test]
fn events_end_with_their_context() {
    assert_only_the_naive_client_fails("pooled-events", "contexts");
}

#[test]
fn physical_memory_needs_no_current_context() {
    assert_only_the_naive_client_fails("no-context", "without-context");
}

#[test]
fn null_and_odd_arguments_are_the_drivers_to_answer() {
    assert_only_the_naive_client_fails("null", "nulls");
}

#[test]
fn a_forked_child_inherits_no_lock() {
    assert_only_the_naive_client_fails("thread", "forked");
}

#[test]
fn device_memory_is_not_swapped_for_managed_memory() {
    assert_only_the_naive_client_fails("managed", "device-memory");
}

#[test]
fn freeing_what_was_never_counted_takes_nothing_from_the_account() {
    let host = Host::new();
    let _daemon = host.daemon();
    let client = c_client("hazards", Way::Dlsym);
    let ours = host.run(&["--name", "freer", "--memory", "1GiB"], &client, &["unknown-frees"]);
    let (code, _, said) = live(&host, ours);
    assert_eq!(code, 0);
    assert!(said.ends_with("some is held: 1\n"), "{said}");
    let (_, _, said) = live(&host, naive(&host, "underflow", &client, &["unknown-frees"]));
    assert!(said.ends_with("some is held: 0\n"), "{said}");
}

/// What loads a kernel lazily, or may take as long: the process dies in it.
#[test]
fn nothing_that_loads_a_kernel_is_asked_on_the_way_of_a_launch() {
    let host = Host::new();
    let _daemon = host.daemon();
    let client = c_client("hazards", Way::Dlsym);
    let fatal: Vec<String> = [
        "cuFuncGetName",
        "cuFuncGetAttribute",
        "cuFuncGetModule",
        "cuFuncGetParamInfo",
        "cuFuncLoad",
        "cuKernelGetFunction",
        "cuKernelGetName",
        "cuKernelGetAttribute",
        "cuModuleGetFunction",
        "cuModuleGetLoadingMode",
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
        "cuOccupancyMaxPotentialBlockSize",
    ]
    .iter()
    // The client itself looks its one kernel up.
    .map(|function| format!("die:{function}:{}", if *function == "cuModuleGetFunction" { 2 } else { 1 }))
    .collect();
    let mut ours = host.run(&["--name", "namer"], &client, &["launches"]);
    ours.env("SIMGPU_FAULTS", fatal.join(","));
    assert_eq!(live(&host, ours), (0, None, "failed: 0, waited 0\n".to_owned()));
    let mut naive = naive(&host, "naming", &client, &["launches"]);
    naive.env("SIMGPU_FAULTS", fatal.join(","));
    assert_ne!(live(&host, naive).0, 0, "the naive library asks");
}

#[test]
fn whoever_dies_inside_an_allocation_holds_nobody_up() {
    let host = Host::new();
    let _daemon = host.daemon();
    let client = c_client("hazards", Way::Dlsym);
    let lock = host.path().join("naive.lock");
    let ours = || host.run(&["--name", "mortal", "--memory", "1GiB"], &client, &["allocate"]);
    let theirs = || {
        let mut command = naive(&host, "shared-lock", &client, &["allocate"]);
        command.env("NAIVE_FILE", &lock);
        command
    };
    let dying = |mut command: Command| {
        command.env("SIMGPU_FAULTS", "die:cuMemAlloc_v2:1");
        assert_eq!(live(&host, command).0, 128 + 9);
    };
    let allocated = (0, None, "allocated 0\n".to_owned());
    dying(ours());
    assert_eq!(live(&host, ours()), allocated);
    assert_eq!(live(&host, theirs()), allocated, "before somebody died");
    dying(theirs());
    assert_eq!(live(&host, theirs()).1, Some(14), "it waits until the alarm ends it");
}

/// A library that exports the driver's names is passed by whoever looks in the driver's own, and limits do not hold. Nothing says so.
#[test]
fn a_client_that_looks_into_the_drivers_library_is_seen_too() {
    let host = Host::new();
    let _daemon = host.daemon();
    let client = c_client("hazards", Way::Dlsym);
    let mut exports = hazard(host.command(&client), &["launches"]);
    exports.env("LD_PRELOAD", c_library("exports"));
    let (_, _, said) = live(&host, exports);
    assert!(said.ends_with("seen: 0\n"), "{said}");
    let mut ours = host.spawn(host.run(&["--name", "looker"], &client, &["launches"]));
    assert!(ours.await_end(COMMAND_LIMIT).success().stdout.starts_with("failed: 0"));
    let launches = host.ps().tenant("looker").kernel_launches;
    assert_eq!(launches, 1000, "every launch was metered");
}
