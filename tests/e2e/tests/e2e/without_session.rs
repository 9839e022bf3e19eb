//! Limits that a job was given hold in each way in which a process gets no session. The table in
//! docs/daemon.md lists the ways.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use deepres_abi::PPM;
use deepres_abi::fallback::Fallback;
use deepres_abi::wire::{self, Hello, Refusal, RefusalKind, Role, Welcome};
use deepres_e2e::calls::Calls;
use deepres_e2e::clients::{c_library_on, loader};
use deepres_e2e::host::mute_socket;
use deepres_e2e::prelude::*;
use deepres_e2e::skip::root_or_skipped;
use deepres_e2e::users::AS_NOBODY;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, accept, recv, send};
use zerocopy::IntoBytes;

use crate::ways_in::{OLDER, driver_without};

const LIMIT_BYTES: u64 = GIB;
const SHARE: &str = "25%";
/// Time of a measurement.
const MEASURED: Duration = Duration::from_secs(2);
/// Time within which a process without a session begins. The handshake takes up to three seconds.
const BEGINS_WITHIN: Duration = Duration::from_secs(30);

/// A stand-in for a daemon, which gives each process that asks for a session the same answer. The
/// drop ends it.
struct Answering {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Answering {
    /// Listens at the tenant socket of `host`. Without an answer, hangs up after each hello.
    fn start(host: &Host, answer: Option<Vec<u8>>) -> Self {
        let socket = make_socket(host);
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                if is_ready(&socket, Duration::from_millis(20)) {
                    serve(&accept(&socket).expect("a connection waits"), answer.as_deref());
                }
            }
        });
        Self { is_over, thread: Some(thread) }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().expect("nobody else takes it").join();
        assert!(ended.is_ok() || thread::panicking());
    }
}

/// Makes the tenant socket of a host that has no daemon.
fn make_socket(host: &Host) -> OwnedFd {
    let folder = host.deepres_dir().join("tenant");
    fs::create_dir_all(&folder).expect("a folder of our own");
    for part in [host.deepres_dir(), folder] {
        fs::set_permissions(part, PermissionsExt::from_mode(0o755)).expect("a folder of our own");
    }
    mute_socket(&host.tenant_socket())
}

fn is_ready(socket: &OwnedFd, within: Duration) -> bool {
    let limit = Timespec { tv_sec: 0, tv_nsec: within.as_nanos() as i64 };
    poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&limit)) == Ok(1)
}

/// Reads a hello, and answers it if the process asks for a session.
fn serve(connection: &OwnedFd, answer: Option<&[u8]>) {
    let mut packet = [0; wire::MAX_FRAME_BYTES];
    if !is_ready(connection, Duration::from_millis(500)) {
        return;
    }
    let Ok((_, read)) = recv(connection, &mut packet[..], RecvFlags::empty()) else { return };
    let asks = wire::decode::<Hello>(&packet[..read]).is_ok_and(|hello| hello.role() == Some(Role::Session));
    if let Some(answer) = answer.filter(|_| asks) {
        // The process can be gone.
        let _ = send(connection, answer, SendFlags::NOSIGNAL);
    }
}

/// The processes of a way: one that shows its memory, and one that keeps the GPU busy.
struct Clients {
    host: Host,
    what: String,
    reason: &'static str,
    view: Process,
    backlog: Process,
    _daemon: Box<dyn std::any::Any>,
}

impl Clients {
    /// Starts the processes by `command`. `_daemon` lives as long as the processes.
    fn start(
        host: Host,
        what: String,
        reason: &'static str,
        command: impl Fn(&Host, &str) -> Command,
        daemon: impl std::any::Any,
    ) -> Self {
        let start = |name, arguments: &[&str]| {
            let mut command = command(&host, name);
            command.args(arguments).env("DEEPRES_MEMORY", "1GiB").env("DEEPRES_SHARE", SHARE);
            host.spawn(command)
        };
        let view = start("view", &[]);
        let backlog = start("backlog", &["--kernel", "busy_1000us", "--sync-every", "1"]);
        Self { host, what, reason, view, backlog, _daemon: Box::new(daemon) }
    }
}

/// Returns the command by which a job that was preloaded by hand runs a C client.
fn preloaded(host: &Host, client: &str) -> Command {
    host.preloaded(c_client(client))
}

/// Starts the processes of each way in which no daemon accepts a process, each way on a host that
/// `make` returns.
fn all_ways(make: impl Fn() -> Host) -> Vec<Clients> {
    let mut ways = Vec::new();
    let answered = |reason, what: String, answer: Option<Vec<u8>>| {
        let host = make();
        let daemon = Answering::start(&host, answer);
        Clients::start(host, what, reason, preloaded, daemon)
    };
    for kind in [
        RefusalKind::Version,
        RefusalKind::Malformed,
        RefusalKind::Request,
        RefusalKind::Full,
        RefusalKind::Namespace,
        RefusalKind::Stopping,
        RefusalKind::NoRoom,
    ] {
        let refusal = Refusal::new(kind, "as the test says").as_bytes().to_vec();
        ways.push(answered("as the test says", format!("refused: {kind:?}"), Some(refusal)));
    }
    ways.push(answered("it closed the connection", "hung up".to_owned(), None));
    ways.push(answered("unreadable", "garbage".to_owned(), Some(vec![0x5a; 100])));
    let bare = Welcome::new(1, 0).as_bytes().to_vec();
    ways.push(answered("has only 0 descriptors", "no pages".to_owned(), Some(bare)));

    let simgpu = artefacts().simgpu.display();
    let under_wsl2 = vec![
        ("LD_LIBRARY_PATH", format!("{}:{simgpu}", loader().display())),
        ("DRIVER_FILE", format!("{simgpu}/libcuda.so.1")),
    ];
    let (driver, libraries) = driver_without(&OLDER);
    let of_driver = vec![("LD_LIBRARY_PATH", libraries)];
    let unnamed = vec![("DEEPRES_TENANT", "-a/../b".to_owned())];
    let of_mig = "mig = true\nkernel = [{ name = \"busy_1000us\", ns = 1000000 }]\n";
    for (what, host, variables, kept) in [
        ("no daemon and no directory", make(), vec![], None),
        ("no daemon under WSL2", make(), under_wsl2, None),
        ("no daemon, older functions missing", make(), of_driver, Some(driver)),
        ("no daemon on a MIG device", make().simgpu(of_mig), vec![], None),
        ("no daemon, a name that cannot be one", make(), unnamed, None),
    ] {
        let absent = move |host: &Host, client: &str| {
            let mut command = preloaded(host, client);
            command.envs(variables.iter().cloned());
            command
        };
        ways.push(Clients::start(host, what.to_owned(), "no daemon at", absent, kept));
    }
    let hanging = make();
    let socket = make_socket(&hanging);
    ways.push(Clients::start(hanging, "hangs".to_owned(), "did not answer within", preloaded, socket));
    let (full, daemon) = make().config("max_connections = 1\n").with_daemon();
    let mut first = full.spawn(full.preloaded(c_client("view")));
    first.await_json();
    ways.push(Clients::start(full, "full".to_owned(), "(max_connections)", preloaded, (first, daemon)));
    // The simulated GPUs of two hosts differ in their UUIDs, so this daemon manages other GPUs.
    let (other, daemon) = make().with_daemon();
    let socket = other.tenant_socket();
    let elsewhere = move |host: &Host, client: &str| {
        let mut command = host.preloaded(c_client(client));
        command.env("DEEPRES_SOCKET", &socket);
        command
    };
    let reason = "does not manage every GPU";
    ways.push(Clients::start(make(), "other GPUs".to_owned(), reason, elsewhere, (daemon, other)));
    ways
}

#[test]
fn a_refused_process_keeps_the_lower_ones_of_its_limits_and_of_those_that_the_refusal_tells() {
    let mut refusal = Refusal::new(RefusalKind::Request, "as the test says");
    let (share_ppm, memory_bytes) = (Some(PPM / 4), Some(LIMIT_BYTES));
    refusal.set_fallback(&Fallback { share_ppm, memory_bytes, ..Fallback::default() });
    let host = Host::new();
    let _daemon = Answering::start(&host, Some(refusal.as_bytes().to_vec()));
    // An empty variable asks for nothing.
    for (share, memory, kept, kept_bytes) in [
        ("", "", "25%", LIMIT_BYTES),
        ("50%", "512MiB", "25%", LIMIT_BYTES / 2),
        ("10%", "2GiB", "10%", LIMIT_BYTES),
    ] {
        let mut command = preloaded(&host, "view");
        command.env("DEEPRES_SHARE", share).env("DEEPRES_MEMORY", memory).env("DEEPRES_LOG", "info");
        let mut view = host.spawn(command);
        let total = view.await_json_within(BEGINS_WITHIN)["total"].as_u64();
        let said = view.stderr();
        assert_eq!(total, Some(kept_bytes), "{said}");
        assert!(said.contains("as the test says; the job keeps its limits by itself"), "{said}");
        assert!(said.contains(&format!("GPU 0: {kept}, {kept_bytes} bytes")), "{said}");
        view.finish().success();
    }
}

/// Starts a `deepres run` whose first process waits for a line of input, and then becomes a C
/// client. The client's environment has the granted limits (`DEEPRES_FALLBACK`), and not the limits
/// for which the job asked.
fn later(host: &Host, options: &[&str], client: &str, arguments: &[&str]) -> Process {
    let client = c_client(client).display().to_string();
    let script = "read go; unset DEEPRES_SHARE DEEPRES_MEMORY; client=$1; shift; exec \"$client\" \"$@\"";
    let arguments = [&["-c", script, "sh", &client][..], arguments].concat();
    host.spawn(host.run(options, "sh", &arguments))
}

#[test]
fn a_process_that_its_job_starts_after_the_daemons_death_has_the_jobs_limits() {
    let (host, mut daemon) = Host::new().config("[caps]\nmemory = \"2GiB\"\n").with_daemon();
    // The first job asks for its limit, and the second gets the rest of the cap.
    let mut ways = [
        ("asks", &["--name", "asks", "--memory", "1GiB", "--share", SHARE][..]),
        ("capped", &["--name", "capped"]),
    ]
    .map(|(name, options)| {
        let job = later(&host, options, "view", &[]);
        host.await_ps(|ps| ps.find(name).is_some());
        job
    });
    daemon.kill();
    for job in &mut ways {
        job.say("go");
        assert!(
            job.await_json()["total"].as_u64().is_some_and(|total| total <= LIMIT_BYTES),
            "{}",
            job.stderr()
        );
        assert!(job.stderr().contains("keeps its limits by itself until"), "{}", job.stderr());
    }
    // The daemon's record wins again.
    let _next = host.daemon();
    host.await_ps(|ps| ps.find("asks").is_some_and(|asks| asks.sessions.len() == 1));
    host.call(&["set", "asks", "--memory", "512MiB"]).success();
    let halved = format!("\"total\":{},", LIMIT_BYTES / 2);
    ways[0].await_line(|line| line.contains(&halved));
}

/// Starts a process of the tenant `name` by a C client. The process has a session, and the
/// environment names no limit.
fn earlier(host: &Host, name: &str, client: &str, arguments: &[&str]) -> Process {
    let mut command = preloaded(host, client);
    command.args(arguments).env("DEEPRES_TENANT", name);
    host.spawn(command)
}

#[test]
fn a_memory_limit_of_deepres_set_holds_for_a_process_that_its_job_starts_after_the_daemons_death() {
    let (host, mut daemon) = Host::new().with_daemon();
    let asks = ["--memory", "1GiB"];
    let mut jobs = [
        ("lowered", &asks[..], "512MiB", LIMIT_BYTES / 2),
        ("raised", &asks, "2GiB", 2 * LIMIT_BYTES),
        ("given", &[], "512MiB", LIMIT_BYTES / 2),
    ]
    .map(|(name, options, limit, bytes)| {
        let new = later(&host, &[&["--name", name][..], options].concat(), "view", &[]);
        host.await_ps(|ps| ps.find(name).is_some());
        let mut earlier = earlier(&host, name, "view", &[]);
        earlier.await_json();
        host.call(&["set", name, "--memory", limit]).success();
        let shown = format!("\"total\":{bytes},");
        earlier.await_line(|line| line.contains(&shown));
        (name, earlier, new, shown)
    });
    daemon.kill();
    for (name, _earlier, new, shown) in &mut jobs {
        let file = host.deepres_dir().join("standalone").join(name);
        eventually("the session uses its tenant's file", || file.exists());
        new.say("go");
        new.await_line(|line| line.contains(&**shown));
        assert!(new.stderr().contains("keeps its limits by itself until"), "{}", new.stderr());
    }
}

/// Functions for the memory of a client.
const MEMORY: &str = r#"
def free_bytes():
    free = c_size_t()
    must(cuda.cuMemGetInfo_v2(byref(free), byref(c_size_t())))
    return free.value
def free(name): return cuda.cuMemFree_v2(kept[name])
"#;
/// The driver's code for a refused allocation.
const OUT_OF_MEMORY: &str = "2";

/// Starts a process of a tenant with a memory limit of [`LIMIT_BYTES`].
fn member(host: &Host) -> Calls {
    let variables = [("DEEPRES_TENANT", "family"), ("DEEPRES_MEMORY", "1GiB")];
    let mut client = Calls::start(host, &variables);
    client.define(MEMORY);
    client
}

/// Returns the expression that allocates `bytes` under a name.
fn take(name: &str, bytes: u64) -> String {
    format!("linear('{name}', {bytes})")
}

#[test]
fn while_no_daemon_runs_the_memory_of_dead_processes_is_free_for_an_earlier_process() {
    let host = Host::new().light_contexts();
    let joined = member(&host);
    let mut daemon = host.daemon();
    host.await_ps(|ps| ps.find("family").is_some_and(|family| family.sessions.len() == 1));
    let mut dying = [joined, member(&host)];
    let mut stays = member(&host);
    for process in &mut dying {
        process.does(&take("half", LIMIT_BYTES / 2));
    }
    daemon.kill();
    assert_eq!(stays.asks(&take("all", LIMIT_BYTES)), OUT_OF_MEMORY);
    for process in &mut dying {
        process.0.process.kill();
    }
    stays.does(&take("all", LIMIT_BYTES));
}

#[test]
fn while_no_daemon_runs_earlier_and_new_processes_of_a_tenant_share_its_memory_limit() {
    const HELD_BYTES: u64 = LIMIT_BYTES / 4 * 3;
    const REST_BYTES: u64 = LIMIT_BYTES - HELD_BYTES;
    let (host, mut daemon) = Host::new().light_contexts().with_daemon();
    let mut earlier = member(&host);
    earlier.does(&take("most", HELD_BYTES));
    for _ in 0..2 {
        daemon.kill();
        let mut new = member(&host);
        let free_bytes = || new.asks("free_bytes()").parse::<u64>().expect("a number");
        await_value(free_bytes, |free| *free == REST_BYTES);
        assert_eq!(new.asks(&take("rest", REST_BYTES + 2 * MIB)), OUT_OF_MEMORY);
        new.does(&take("rest", REST_BYTES));
        assert_eq!(earlier.asks(&take("rest", 2 * MIB)), OUT_OF_MEMORY);
        new.does("free('rest')");
        earlier.does(&take("rest", REST_BYTES));
        assert_eq!(new.asks(&take("rest", 2 * MIB)), OUT_OF_MEMORY);
        earlier.does("free('rest')");
        new.does(&take("rest", REST_BYTES));
        new.0.process.kill();
        earlier.does(&take("rest", REST_BYTES));
        earlier.does("free('rest')");
        daemon = host.daemon();
        host.await_ps(|ps| {
            ps.find("family")
                .is_some_and(|family| family.sessions.len() == 1 && family.memory_bytes == HELD_BYTES)
        });
    }
}

#[test]
fn a_session_and_a_process_that_the_daemon_refuses_share_their_tenants_memory_limit() {
    const HELD_BYTES: u64 = LIMIT_BYTES / 4 * 3;
    const REST_BYTES: u64 = LIMIT_BYTES - HELD_BYTES;
    let (host, _daemon) = Host::new().light_contexts().config("max_connections = 1\n").with_daemon();
    let mut session = member(&host);
    host.await_ps(|ps| ps.find("family").is_some_and(|family| family.sessions.len() == 1));
    session.does(&take("most", HELD_BYTES));
    for _ in 0..2 {
        let mut refused = member(&host);
        let free_bytes = || refused.asks("free_bytes()").parse::<u64>().expect("a number");
        await_value(free_bytes, |free| *free == REST_BYTES);
        assert!(refused.0.process.stderr().contains("(max_connections)"));
        assert_eq!(refused.asks(&take("rest", REST_BYTES + 2 * MIB)), OUT_OF_MEMORY);
        refused.does(&take("rest", REST_BYTES));
        assert_eq!(session.asks(&take("rest", 2 * MIB)), OUT_OF_MEMORY);
        refused.0.process.kill();
        session.does(&take("rest", REST_BYTES));
        session.does("free('rest')");
    }
}

/// Returns the command by which a plain user runs a C client. The client has the library, and no
/// variable of deepres: the user's runtime directory has the daemon's directory. If the test may
/// not become a plain user, reports this part of the test as skipped and returns `None`.
fn bare(host: &Host, client: &str) -> Option<Command> {
    if !root_or_skipped() {
        return None;
    }
    let runtime = host.path().join("runtime");
    fs::create_dir(&runtime).expect("a folder of our own");
    symlink(host.deepres_dir(), runtime.join("deepres")).expect("a folder of our own");
    let mut command = host.alone("setpriv");
    command.args(AS_NOBODY).arg(c_client(client));
    command.env_remove("DEEPRES_DIR").env("XDG_RUNTIME_DIR", runtime);
    Some(command)
}

#[test]
fn a_new_process_launches_nothing_without_a_daemon_if_launches_are_to_fail() {
    const CLOSED: &str = "fail_mode = \"closed\"\n";
    let host = Host::new().config(CLOSED);
    host.let_all_users_in();
    let mut daemon = host.daemon();
    let options = ["--name", "a", "--memory", "1GiB"];
    let mut view = later(&host, &options, "view", &[]);
    let mut launcher = later(&host, &["--name", "b"], "backlog", &["--kernel", "quick"]);
    host.await_ps(|ps| ["a", "b"].iter().all(|name| ps.find(name).is_some()));
    daemon.kill();
    view.say("go");
    assert_eq!(view.await_json()["total"], LIMIT_BYTES, "the memory limit holds: {}", view.stderr());
    launcher.say("go");
    let done = launcher.finish();
    done.refused("launches of the job fail until a daemon takes it up");
    done.refused("800");
    // The daemon's mark tells a job that no `deepres run` started, whether a variable names the
    // socket, the directory, or neither.
    let mut jobs = vec![host.preloaded(c_client("backlog")), host.alone(c_client("backlog"))];
    jobs.extend(bare(&host, "backlog"));
    for job in jobs {
        let done = host.finish(job);
        done.refused("launches of the job fail until a daemon takes it up");
        done.refused("800");
    }

    // A daemon that has no room says that launches are to fail.
    let (host, _daemon) = Host::new().config(&format!("max_connections = 1\n{CLOSED}")).with_daemon();
    let mut first = host.spawn(host.preloaded(c_client("view")));
    first.await_json();
    let done = host.finish(host.preloaded(c_client("backlog")));
    done.refused("(max_connections); the launches of the job fail until");
    done.refused("800");
    first.kill();
    let mut job = host.spawn(host.preloaded(c_client("backlog")));
    job.await_exactly("ready");
}

#[test]
fn a_program_that_initialises_the_driver_past_us_keeps_its_limits() {
    let host = Host::new();
    let library = c_library_on("deepbound", &artefacts().simgpu.join("libcuda.so.1"));
    let allocated = |limit: &str| {
        let mut command = host.alone(c_client("late"));
        command.arg(&library).env("DEEPRES_MEMORY", limit);
        host.finish(command).success().json()["allocated"].clone()
    };
    assert_eq!((allocated("3GiB"), allocated("1GiB")), (json!(0), json!(2)));
}

#[test]
fn a_job_that_nothing_can_hold_to_its_limits_does_not_get_the_gpu() {
    let host = Host::new();
    // A job that can start no threads cannot be metered.
    let with = |name: &str, value: &str| {
        let mut command = host.alone(c_client("filtered"));
        command.args(["threads", "early"]).env(name, value);
        host.finish(command)
    };
    let done = with("DEEPRES_MEMORY", "1GiB");
    done.refused("the job may not use the GPU");
    done.refused("800");
    let done = with("DEEPRES_CHARGE_COPIES", "true").success();
    assert!(done.stderr.contains("the job runs unmetered"), "{}", done.stderr);
    // Nor can a job under a driver that lacks a function that deepres needs.
    let (_folder, libraries) = driver_without(&["cuStreamIsCapturing"]);
    let mut command = host.alone(c_client("view"));
    command.env("LD_LIBRARY_PATH", libraries).env("DEEPRES_MEMORY", "1GiB");
    let done = host.finish(command);
    done.refused("this driver has no cuStreamIsCapturing, so nothing can hold the job to its limits");
    done.refused("800");
}

/// Tests that measure. Each test runs alone on the machine.
mod measured {
    use super::*;
    use deepres_e2e::shares::ALLOWED_POINTS;

    /// The share [`SHARE`], percent.
    const SHARE_PERCENT: f64 = 25.0;
    /// Greatest difference between a share and the GPU time of a process in a way, percentage
    /// points. The processes of all ways run at once.
    const KEPT_POINTS: f64 = 5.0;
    /// Time after which the burst at the beginning of a job is over.
    const SETTLED: Duration = Duration::from_millis(1200);

    #[test]
    fn in_each_way_a_process_without_a_session_keeps_its_memory_limit_and_its_share() {
        let first = Host::measuring();
        let mut ways = all_ways(|| Host::beside(&first));
        for way in &mut ways {
            let total = way.view.await_json_within(BEGINS_WITHIN)["total"].as_u64();
            assert_eq!(total, Some(LIMIT_BYTES), "{}: {}", way.what, way.view.stderr());
            let said = way.view.stderr();
            assert!(said.contains(way.reason) && said.contains("keeps its limits"), "{}: {said}", way.what);
            way.backlog.await_line_within(|line| line == "ready", BEGINS_WITHIN);
        }
        thread::sleep(SETTLED);
        let before: Vec<_> = ways.iter().map(|way| way.host.truth()).collect();
        thread::sleep(MEASURED);
        for (way, before) in ways.iter().zip(&before) {
            let tally = Tally::between_on(0, before, &way.host.truth());
            let had = tally.percent_of_time(&[way.backlog.pid()]);
            println!("{}: had {had:.1} % of the time", way.what);
            assert!((had - SHARE_PERCENT).abs() <= KEPT_POINTS, "{}: had {had:.1} % of the time", way.what);
        }
    }

    #[test]
    fn a_share_of_deepres_set_holds_for_earlier_and_new_processes_after_the_daemons_death() {
        const SET_PERCENT: f64 = 10.0;
        let (host, mut daemon) = Host::measuring().with_daemon();
        let arguments = ["--kernel", "busy_1000us", "--sync-every", "1"];
        let mut new = later(&host, &["--name", "job", "--share", SHARE], "backlog", &arguments);
        host.await_ps(|ps| ps.find("job").is_some());
        let mut earlier = earlier(&host, "job", "backlog", &arguments);
        earlier.await_exactly("ready");
        host.call(&["set", "job", "--share", "10%"]).success();
        thread::sleep(SETTLED);
        daemon.kill();
        new.say("go");
        new.await_line_within(|line| line == "ready", BEGINS_WITHIN);
        thread::sleep(SETTLED);
        let tally = Tally::over(&host, MEASURED);
        // No other job uses the GPU, so all kernels are the two processes'.
        let had = tally.percent_of_time(&tally.by_pid_ns.keys().copied().collect::<Vec<_>>());
        println!("had {had:.2} % of the time");
        assert!((had - SET_PERCENT).abs() <= KEPT_POINTS, "owed {SET_PERCENT} %: {}", new.stderr());
    }

    #[test]
    fn a_process_that_its_job_starts_after_the_daemons_death_has_the_jobs_share() {
        let (host, mut daemon) = Host::measuring().with_daemon();
        let arguments = ["--kernel", "busy_1000us", "--sync-every", "1"];
        let mut job = later(&host, &["--name", "asks", "--share", SHARE], "backlog", &arguments);
        host.await_ps(|ps| ps.find("asks").is_some());
        daemon.kill();
        job.say("go");
        job.await_line_within(|line| line == "ready", BEGINS_WITHIN);
        thread::sleep(SETTLED);
        let tally = Tally::over(&host, MEASURED);
        // No other job uses the GPU, so all kernels are the client's.
        let had = tally.percent_of_time(&tally.by_pid_ns.keys().copied().collect::<Vec<_>>());
        println!("had {had:.2} % of the time");
        assert!((had - SHARE_PERCENT).abs() <= ALLOWED_POINTS, "owed {SHARE}: {}", job.stderr());
        assert!(job.stderr().contains("keeps its limits by itself until"), "{}", job.stderr());
    }
}
