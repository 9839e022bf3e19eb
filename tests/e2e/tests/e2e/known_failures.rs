//! Mistakes of published interposers. A naive library that makes the mistake breaks the client.
//! Under deepres, the client gets the same answers as without any library.

use std::path::Path;
use std::process::Command;

use deepres_e2e::clients::c_library_on;
use deepres_e2e::prelude::*;

/// A client's exit code, signal and standard output. The standard error is missing, because the
/// libraries write to it.
type Life = (i32, Option<i32>, String);

fn live(host: &Host, command: Command) -> Life {
    let Finished { code, signal, stdout, .. } = host.spawn(command).finish();
    (code, signal, stdout)
}

/// Adds the client's part `what` to `command`. The environment of the command may make the client a
/// tenant.
fn hazard(mut command: Command, what: &[&str]) -> Command {
    command.args(what);
    command
}

fn naive(host: &Host, mistake: &str, program: &Path, what: &[&str]) -> Command {
    let mut command = hazard(host.command(program), what);
    command.env("LD_PRELOAD", c_library("naive")).env("NAIVE", mistake);
    command
}

/// Runs the client alone, as a tenant, and with a naive library that makes the mistake. Asserts
/// that only the naive library breaks the client.
#[track_caller]
fn assert_only_the_naive_library_fails(mistake: &str, program: &Path, what: &[&str]) {
    let (host, _daemon) = Host::new().with_daemon();
    let bare = live(&host, hazard(host.command(program), what));
    assert_eq!((bare.0, bare.1), (0, None), "{mistake}: alone it works: {bare:?}");
    let mut ours = hazard(host.preloaded(program), what);
    ours.env("DEEPRES_TENANT", mistake).env("DEEPRES_MEMORY", "4GiB");
    assert_eq!(live(&host, ours), bare, "{mistake}: under deepres");
    // Only a session makes a tenant, so the process had a session.
    assert!(host.ps().find(mistake).is_some(), "{mistake}: under deepres it is a tenant");
    // The same library without the mistake is harmless, so the mistake causes the failure.
    assert_eq!(live(&host, naive(&host, "", program, what)), bare, "{mistake}: not made");
    assert_ne!(live(&host, naive(&host, mistake, program, what)), bare, "{mistake}: made");
}

/// Declares tests in which the client `hazards` runs one of its parts, and only a naive library
/// with this mistake fails.
macro_rules! hazards {
    ($($name:ident: $mistake:literal, $part:literal;)+) => {
        $(
            #[test]
            fn $name() {
                assert_only_the_naive_library_fails($mistake, &c_client("hazards"), &[$part]);
            }
        )+
    };
}

hazards! {
    a_function_that_changed_its_parameters_is_told_from_the_one_before: "by-name", "abi";
    a_variant_for_per_thread_streams_launches_on_them: "detour", "per-thread";
    the_real_dlsym_is_found_without_dlsym: "itself", "launches";
    no_marker_gets_into_a_capture: "markers", "capture";
    a_thread_that_looks_at_events_breaks_no_capture_of_another_thread: "looks", "capture-meanwhile";
    nothing_is_put_on_the_legacy_stream_while_one_that_waits_for_it_is_captured: "legacy-markers", "capture-blocking";
    events_end_with_their_context: "pooled-events", "contexts";
    physical_memory_needs_no_current_context: "no-context", "without-context";
    null_and_odd_arguments_are_the_drivers_to_answer: "null", "nulls";
    a_forked_child_inherits_no_lock: "thread", "forked";
    device_memory_is_not_swapped_for_managed_memory: "managed", "device-memory";
}

#[test]
fn names_that_only_begin_like_the_drivers_are_somebody_elses() {
    let lookalikes = c_library("lookalikes").display().to_string();
    assert_only_the_naive_library_fails("prefix", &c_program("lookups"), &[&lookalikes]);
}

#[test]
fn a_look_up_in_a_librarys_constructor_waits_for_nobody() {
    let library = c_library("constructor").display().to_string();
    let client = c_client("hazards");
    assert_only_the_naive_library_fails("lock", &client, &["constructor", &library]);
}

#[test]
fn processes_begin_beside_one_that_is_stuck_in_its_beginning() {
    /// Number of processes that start.
    const PROCESSES: usize = 60;
    let (host, _daemon) = Host::new().with_daemon();
    let client = c_client("hazards");
    let stuck = |mut command: Command| {
        command.env("SIMGPU_FAULTS", "cuInit:delay:200s");
        host.spawn(command)
    };
    let lock = host.path().join("naive.lock");
    let theirs = || {
        let mut command = naive(&host, "boot-lock", &client, &["allocate"]);
        command.env("NAIVE_FILE", &lock);
        command
    };
    let ours = || host.run(&["--name", "many"], &client, &["allocate"]);
    let allocated = (0, None, "allocated 0\n".to_owned());
    assert_eq!(live(&host, theirs()), allocated, "while nobody is stuck");
    let _ours = stuck(ours());
    let mut many: Vec<_> = (0..PROCESSES).map(|_| host.spawn(ours())).collect();
    for process in &mut many {
        let Finished { code, signal, stdout, .. } = process.await_end();
        assert_eq!((code, signal, stdout), allocated);
    }
    let mut holder = theirs();
    holder.env("SIMGPU_FAULTS", "cuInit:delay:200s");
    let _theirs = host.spawn(holder);
    let waited = |path: &Path| std::fs::read(path).is_ok_and(|flag| flag.first() == Some(&1));
    while !waited(&lock) {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(live(&host, theirs()).1, Some(14), "it waits until the alarm ends it");
}

#[test]
fn freeing_what_was_never_counted_takes_nothing_from_the_account() {
    let (host, _daemon) = Host::new().with_daemon();
    let client = c_client("hazards");
    let ours = host.run(&["--name", "freer", "--memory", "1GiB"], &client, &["unknown-frees"]);
    let (code, _, said) = live(&host, ours);
    assert_eq!(code, 0);
    assert!(said.ends_with("some is held: 1\n"), "{said}");
    let (_, _, said) = live(&host, naive(&host, "underflow", &client, &["unknown-frees"]));
    assert!(said.ends_with("some is held: 0\n"), "{said}");
}

#[test]
fn a_context_that_was_attached_to_keeps_what_is_in_it_until_its_last_user_leaves() {
    /// Memory that the client allocates before it attaches to the context.
    const PART_BYTES: u64 = 1 << 30;
    let (host, _daemon) = Host::new().with_daemon();
    let client = c_client("hazards");
    let mut bare = host.spawn(hazard(host.command(&client), &["attached"]));
    bare.close_stdin();
    let bare = bare.finish().success().stdout;
    let mut ours = host.spawn(host.run(&["--name", "guest", "--memory", "4GiB"], &client, &["attached"]));
    ours.await_line(|line| line.starts_with("launches that failed: 0"));
    let ps = host.await_launches("guest", Some(1001));
    assert!(ps.tenant("guest").memory_bytes >= PART_BYTES, "what is there is charged: {ps:?}");
    ours.say("");
    ours.await_line(|line| line.starts_with("left for good"));
    assert_eq!(host.ps().tenant("guest").memory_bytes, 0, "it ended with its context");
    ours.say("");
    assert_eq!(ours.finish().success().stdout, bare);
}

#[test]
fn a_launch_with_any_attribute_is_answered_as_without_deepres_and_counted() {
    /// An attribute of streams, one of graphs' nodes, and ids that are no attribute. The client's
    /// other launches succeed.
    const REFUSED: [u32; 5] = [3, 13, 15, 19, 12345];
    /// Number of attributes that the client tries.
    const TRIED: usize = 21;
    let (host, _daemon) = Host::new().with_daemon();
    let client = c_client_by("hazards", Way::ProcAddress);
    let bare = live(&host, hazard(host.command(&client), &["attributes"]));
    let answers: Vec<(u32, u32)> = (bare.2.lines())
        .filter_map(|line| line.strip_prefix("attribute ")?.split_once(": "))
        .map(|(id, code)| (id.parse().unwrap(), code.parse().unwrap()))
        .collect();
    assert_eq!((bare.0, answers.len()), (0, TRIED), "{bare:?}");
    for (id, code) in answers {
        assert_eq!(code, u32::from(REFUSED.contains(&id)), "{id}: {bare:?}");
    }
    // The event is NOT_READY (600) while the launch waits, and complete afterwards, both for the
    // thread and for the stream.
    for id in [7, 12] {
        let awaited = format!("event of {id}: before 600 600, after 0 0\n");
        assert!(bare.2.contains(&awaited), "the launch recorded its event: {bare:?}");
    }
    let mut ours = hazard(host.preloaded(&client), &["attributes"]);
    ours.env("DEEPRES_TENANT", "attributes");
    assert_eq!(live(&host, ours), bare);
    let launched = TRIED - REFUSED.len();
    assert!(bare.2.ends_with(&format!("launched {launched}, waited 0\n")), "{bare:?}");
    assert_eq!(host.ps().tenant("attributes").kernel_launches, launched as u64, "each launch is metered");
}

#[test]
fn a_stream_that_was_not_destroyed_captures_as_before() {
    let (host, _daemon) = Host::new().with_daemon();
    let client = c_client("hazards");
    let failing = |mut command: Command| {
        command.env("SIMGPU_FAULTS", "cuStreamDestroy_v2:1:999");
        live(&host, command)
    };
    let bare = failing(hazard(host.command(&client), &["kept-stream"]));
    assert_eq!(bare.2, "kept 999, launched 0, captured 0, 3 nodes\n");
    let mut ours = hazard(host.preloaded(&client), &["kept-stream"]);
    ours.env("DEEPRES_TENANT", "keeper");
    assert_eq!(failing(ours), bare);
    assert_eq!(host.ps().tenant("keeper").kernel_launches, 1, "what is captured does not run");
}

/// Makes the process die in driver functions that load a kernel lazily, or that may take as long.
#[test]
fn nothing_that_loads_a_kernel_is_asked_on_the_way_of_a_launch() {
    let (host, _daemon) = Host::new().with_daemon();
    let client = c_client("hazards");
    let fatal: Vec<String> =
        "cuFuncGetName cuFuncGetAttribute cuFuncGetModule cuFuncGetParamInfo cuFuncLoad \
         cuKernelGetFunction cuKernelGetName cuKernelGetAttribute cuModuleGetFunction cuModuleGetLoadingMode \
         cuOccupancyMaxActiveBlocksPerMultiprocessor cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags \
         cuOccupancyMaxPotentialBlockSize"
            .split(' ')
            // The client itself looks up its one kernel.
            .map(|function| {
                format!("die:{function}:{}", if function == "cuModuleGetFunction" { 2 } else { 1 })
            })
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
    let (host, _daemon) = Host::new().with_daemon();
    let client = c_client("hazards");
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

/// A library that was opened with `RTLD_DEEPBIND`, or in a namespace of its own, bypasses preloaded
/// libraries. deepres reports such a library.
#[test]
fn a_library_that_is_bound_to_the_driver_itself_or_looks_it_up_past_us_is_told_of() {
    let (host, _daemon) = Host::new().with_daemon();
    let client = c_client("hazards");
    let library = c_library_on("deepbound", &artefacts().simgpu.join("libcuda.so.1")).display().to_string();
    let (opens, looks) = (c_library("opens"), c_library("lookups_alone"));
    let (opens, looks) = (opens.display().to_string(), looks.display().to_string());
    // In a namespace of its own the library has its own driver, and that driver does not know the
    // client's kernel.
    let ways = [("bound", 100, 0, false), ("deepbound", 0, 0, true), ("elsewhere", 0, 100, true)];
    let cases = [&library, &opens].into_iter().flat_map(|library| ways.map(|way| (library, way)));
    // A library that looks up other names bypasses no hook.
    let cases = cases.chain(["deepbound", "elsewhere"].map(|way| (&looks, (way, 0, 0, false))));
    for (number, (library, (way, launches, failed, is_known))) in cases.enumerate() {
        let name = format!("{way}-{number}");
        let mut ours = host.start(host.run(&["--name", &name], &client, &[way, library]), "waited: 0");
        host.await_launches(&name, Some(launches));
        let told = || host.shows(&["ps", "--coverage"]);
        if is_known {
            await_value(told, |told| told.contains("1 libraries bound to the driver itself"));
        }
        ours.say("");
        let ended = ours.finish().success();
        assert_eq!(ended.stdout, format!("failed: {failed}\nwaited: 0\n"), "{library} {way}");
        assert_eq!(ended.stderr.contains("RTLD_DEEPBIND"), is_known, "{library} {way}: {}", ended.stderr);
    }
    let mut naive = naive(&host, "", &client, &["deepbound", &library]);
    naive.env("NAIVE", "markers");
    let mut naive = host.spawn(naive);
    naive.close_stdin();
    assert!(naive.finish().success().stderr.is_empty(), "nobody tells of it");
}

/// A client that looks up functions in the driver's own library bypasses a library that only
/// exports the driver's names. Then limits do not hold, and no message says so.
#[test]
fn a_client_that_looks_into_the_drivers_library_is_seen_too() {
    let (host, _daemon) = Host::new().with_daemon();
    let client = c_client("hazards");
    let mut exports = hazard(host.command(&client), &["launches"]);
    exports.env("LD_PRELOAD", c_library("counts"));
    assert_eq!(host.finish(exports).success().stderr, "counted 0\n");
    let mut ours = host.spawn(host.run(&["--name", "looker"], &client, &["launches"]));
    assert!(ours.await_end().success().stdout.starts_with("failed: 0"));
    let launches = host.ps().tenant("looker").kernel_launches;
    assert_eq!(launches, 1000, "every launch was metered");
}
