//! Containers that get deepres by a CDI device. Their root file system contains nothing of deepres,
//! and can have an older glibc.

use std::fs;
use std::path::PathBuf;

use deepres_e2e::clients::{c_client_on, c_program_on};
use deepres_e2e::containers::{Container, Containers, OUTER_ROOT, Users};
use deepres_e2e::prelude::*;
use deepres_e2e::skip::root_or_skipped;
use simgpu_engine::Config;

use crate::mps::{SIMGPU, daemon_with_mps, parts};

/// Time of a measurement. A hundred quanta pass in it.
const MEASURED: Duration = Duration::from_secs(3);
/// Time after which both clients are connected, metered and past their first launches.
const SETTLED: Duration = Duration::from_millis(700);
/// Time within which a dead process's memory is free again, on a busy machine.
const FREED_WITHIN: Duration = Duration::from_secs(5);
/// Time limit for reconnecting. The library tries several times within it.
const RECONNECTED_WITHIN: Duration = Duration::from_secs(10);
/// Size of an allocation of the client `fill`. No kind of allocation rounds it.
const CHUNK_BYTES: &str = "33554432";

fn client(name: &str) -> String {
    c_client_on(CLibrary::OldGlibc, name, Way::ProcAddress).display().to_string()
}

/// Starts the client that keeps the GPU backlogged.
fn start(containers: &Containers<'_>, device: &str, users: Users, arguments: &[&str]) -> Container {
    let client = client("backlog");
    let mut container = containers.start(device, users, &[&[client.as_str()], arguments].concat());
    container.process.await_exactly("ready");
    container
}

/// Returns the id of the namespace of this kind in which a process is.
fn namespace(pid: u32, kind: &str) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/{kind}")).expect("it runs")
}

#[test]
fn a_container_stays_inside_its_devices_memory() {
    let host = Host::new();
    let Some(containers) = Containers::on(&host) else { return };
    let _daemon = host.daemon();
    let device = containers.device("small", &["--tenant", "small", "--memory", "1GiB"]);
    // These kinds of allocation take exactly the requested amount from the GPU.
    let program = [&client("fill"), CHUNK_BYTES, "cuMemAlloc_v2", "cuMemCreate"];
    let said = containers.finish(&device, Users::Apart, &program).success();
    // Only the library wrote messages. The loader, for example, wrote none.
    assert!(said.stderr.lines().all(|line| line.starts_with("deepres: refused cuMem")), "{}", said.stderr);
    let said = said.json();
    assert_eq!(said["device_total"], GIB);
    // The context's memory counts too.
    let left = GIB - Config::default().context_overhead_bytes;
    for kind in said["kinds"].as_array().expect("a list") {
        assert_eq!(
            (&kind["code"], kind["bytes"].as_u64().map(|bytes| bytes > left / 2)),
            (&2.into(), Some(true)),
            "{kind}"
        );
    }
    let most = host.truth().processes.iter().map(|process| process.gpus[0].memory_peak_bytes).max();
    assert!(most.is_some_and(|most| most <= GIB), "{most:?}");
    assert_eq!(host.ps().tenant("small").memory_limit_bytes, Some(GIB));
}

#[test]
fn a_containers_users_are_bounded_as_the_user_that_started_it() {
    let caps = format!(
        "[caps]\nmemory = \"1GiB\"\n\
        [users.0]\nmemory = \"4GiB\"\nshare = \"50%\"\n\
        [users.{OUTER_ROOT}]\nmemory = \"2GiB\"\n"
    );
    let host = Host::new().config(&caps);
    let Some(containers) = Containers::on(&host) else { return };
    let _daemon = host.daemon();
    let asks = |name| containers.device(name, &["--tenant", name, "--share", "80%", "--memory", "3GiB"]);
    let (mapped, plain, other) = (asks("mapped"), asks("plain"), asks("other"));
    let client = client("backlog");
    let ordinary = containers.start_with(&["--user", "1000"], &other, Users::Shared, &[&client]);
    let _running = [
        start(&containers, &mapped, Users::Apart, &[]),
        start(&containers, &plain, Users::Shared, &[]),
        ordinary,
    ];
    let all = |ps: &Ps| ["mapped", "plain", "other"].iter().all(|name| ps.find(name).is_some());
    let ps = host.await_ps(all);
    let memory_limit = |name| ps.tenant(name).memory_limit_bytes.expect("all are bounded");
    let roots = [memory_limit("mapped"), memory_limit("plain")];
    assert!(
        roots.contains(&(3 * GIB)) && roots.contains(&GIB),
        "root made the user namespace of one: {roots:?}"
    );
    assert_eq!(memory_limit("other"), GIB, "an ordinary user without a namespace is that user");
}

#[test]
fn a_container_with_a_part_of_the_sms_is_a_client_of_the_hosts_mps() {
    let host = Host::new().simgpu(SIMGPU).config("mps = \"start\"\n");
    let Some(containers) = Containers::on(&host) else { return };
    let _daemon = daemon_with_mps(&host);
    let device = containers.device("part", &["--tenant", "part", "--sm", "40%"]);
    let _running = start(&containers, &device, Users::Shared, &[]);
    assert_eq!(parts(&host), [Some(40)]);
}

#[test]
fn a_wish_of_a_container_itself_is_a_request_like_any_other() {
    let host = Host::new().config("[users.0]\nmemory = \"1GiB\"\n");
    let Some(containers) = Containers::on(&host) else { return };
    let _daemon = host.daemon();
    let device = containers.device("greedy", &["--tenant", "greedy", "--memory", "512MiB"]);
    let fill = client("fill");
    let program = ["env", "DEEPRES_MEMORY=64GiB", &fill, CHUNK_BYTES, "cuMemAlloc_v2"];
    let said = containers.finish(&device, Users::Apart, &program).success().json();
    assert_eq!(said["device_total"], GIB);
}

#[test]
fn a_container_without_a_name_is_known_by_its_id_with_all_its_processes() {
    let host = Host::new();
    let Some(containers) = Containers::on(&host) else { return };
    let _daemon = host.daemon();
    let device = containers.device("nameless", &["--share", "30%"]);
    let script = format!("{0} & exec {0}", client("backlog"));
    let start = |users| containers.start(&device, users, &["sh", "-c", &script]);
    let running = [start(Users::Apart), start(Users::Shared)];
    // The daemon lists a session a moment before the GPU's arbiter knows it.
    let both = |ps: &Ps| {
        let complete = |tenant: &&deepres_e2e::Tenant| tenant.sessions.len() == 2 && tenant.entitled_ppm > 0;
        ps.tenants.iter().filter(complete).count() == 2
    };
    let ps = host.await_ps(both);
    for container in &running {
        let id = containers.id(container);
        let name = format!("podman-{}", &id[..12]);
        assert_eq!(ps.tenant(&name).sessions.len(), 2, "{name}");
        assert_eq!(ps.tenant(&name).entitled_ppm, 300_000, "each has the device's share for itself");
    }
}

#[test]
fn a_name_holds_in_its_container_alone_unless_it_is_shared() {
    for (config, tenants) in [("", vec!["train", "train-2"]), ("shared_names = [\"train\"]\n", vec!["train"])]
    {
        let host = Host::new().config(config);
        let Some(containers) = Containers::on(&host) else { return };
        let _daemon = host.daemon();
        let device = containers.device("train", &["--tenant", "train", "--memory", "1GiB"]);
        let _running = [Users::Shared; 2].map(|users| start(&containers, &device, users, &[]));
        let all = |ps: &Ps| ps.tenants.iter().map(|tenant| tenant.sessions.len()).sum::<usize>() == 2;
        let ps = host.await_ps(all);
        let names: Vec<&str> = ps.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
        assert_eq!(names, tenants, "{config}");
    }
}

#[test]
fn a_name_in_a_privileged_container_of_another_kind_holds_in_there_alone_for_all_processes() {
    if !root_or_skipped() {
        return;
    }
    let (host, _daemon) = Host::new().with_daemon();
    let view = c_client("view");
    // To the daemon, privileged containers of LXC and systemd-nspawn look like this.
    let mut inside = host.preloaded("unshare");
    inside.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).arg(&view);
    inside.env("DEEPRES_MEMORY", "1GiB");
    let _running = [inside, host.preloaded(&view)].map(|mut command| {
        command.env("DEEPRES_TENANT", "prod");
        host.told(command)
    });
    // A process of the container that the tenant did not start, and that gives no name.
    let pid = host.ps().tenant("prod").pids()[0].to_string();
    let mut nameless = host.preloaded("nsenter");
    nameless.args(["--target", &pid, "--pid", "--mount"]).arg(&view);
    let (_nameless, said) = host.told(nameless);
    assert_eq!(said["total"], GIB, "the name's limit holds");
    let tenants = host.ps().tenants;
    let found: Vec<_> = tenants.iter().map(|tenant| (tenant.name.as_str(), tenant.sessions.len())).collect();
    assert_eq!(found, [("prod", 2), ("prod-2", 1)]);
}

#[test]
fn a_container_sees_the_tenant_socket_alone_and_cannot_change_it() {
    let host = Host::new();
    let Some(containers) = Containers::on(&host) else { return };
    let daemon = host.daemon();
    let device = containers.device("curious", &["--tenant", "curious"]);
    for users in [Users::Shared, Users::Apart] {
        let script = "cd /run/deepres && echo $(find . | sort); \
            for what in 'rm tenant/tenant.sock' 'touch tenant/x' 'mv tenant/tenant.sock tenant/x' \
                'mount -o remount,rw tenant' 'rm /usr/lib/deepres/lib/libdeepres.so' \
                'dd of=/usr/lib/deepres/lib/libdeepres.so count=0 conv=notrunc'; \
            do $what </dev/null >/dev/null 2>&1 && echo \"$what: done\"; done; true";
        let said = containers.finish(&device, users, &["sh", "-c", script]).success();
        assert_eq!(said.stdout, ". ./tenant ./tenant/tenant.sock\n", "{users:?}");
    }
    assert_eq!(host.ps().daemon_pid, daemon.pid(), "the daemon goes on");
}

#[test]
fn a_running_container_meets_the_next_daemon() {
    let host = Host::new();
    let Some(containers) = Containers::on(&host) else { return };
    let mut daemon = host.daemon();
    let device = containers.device("patient", &["--tenant", "patient", "--memory", "1GiB"]);
    let container = start(&containers, &device, Users::Apart, &["--hold", "536870912"]);
    let pids = host.ps().tenant("patient").pids();
    assert_eq!(pids.len(), 1);
    daemon.kill();
    let _next = host.daemon();
    let is_back = |ps: &Ps| ps.find("patient").is_some_and(|tenant| tenant.pids() == pids);
    let ps = host.await_ps_within(is_back, RECONNECTED_WITHIN);
    assert_eq!(ps.tenant("patient").memory_limit_bytes, Some(GIB));
    let launched = |ps: &Ps| ps.find("patient").map_or(0, |tenant| tenant.kernel_launches);
    let before = launched(&ps);
    host.await_ps(|ps| launched(ps) > before);
    drop(container);
}

#[test]
fn a_killed_container_gives_everything_back_and_harms_nobody() {
    let host = Host::new();
    let Some(containers) = Containers::on(&host) else { return };
    let _daemon = host.daemon();
    let device = |name| containers.device(name, &["--tenant", name]);
    let (doomed, other) = (device("doomed"), device("other"));
    let hold = (2 * GIB).to_string();
    let victim = start(&containers, &doomed, Users::Apart, &["--hold", &hold]);
    let _other = start(&containers, &other, Users::Apart, &[]);
    let used = || host.truth().gpus[0].memory_used_bytes;
    assert!(used() >= 2 * GIB && host.ps().tenant("doomed").memory_bytes >= 2 * GIB);
    containers.kill(victim);
    eventually_within("the GPU's memory is free", FREED_WITHIN, || used() < 2 * GIB);
    let gone = |ps: &Ps| {
        ps.find("doomed").is_none_or(|tenant| tenant.memory_bytes == 0 && tenant.sessions.is_empty())
    };
    let launched = host.await_ps_within(gone, FREED_WITHIN).tenant("other").kernel_launches;
    host.await_ps(|ps| ps.tenant("other").kernel_launches > launched);
}

#[test]
fn programs_that_cannot_load_the_library_run_unharmed() {
    let host = Host::new();
    let Some(containers) = Containers::on(&host) else { return };
    let _daemon = host.daemon();
    let device = containers.device("any", &[]);
    let finish = |program: &str| containers.finish(&device, Users::Apart, &[program]).success();
    for library in [CLibrary::Static, CLibrary::Musl, CLibrary::OldGlibc] {
        let said = finish(&c_program_on(library, "hello").display().to_string());
        assert_eq!((said.stdout.as_str(), said.stderr.as_str()), ("hello\n", ""), "{library:?}");
    }
    // A program that is linked to glibc does load the library.
    let maps = containers.finish(&device, Users::Apart, &["cat", "/proc/self/maps"]).success().stdout;
    assert!(maps.contains("/usr/lib/deepres/lib/x86_64-linux-gnu/libdeepres.so"), "{maps}");
    if artefacts().are_portable() {
        assert!(maps.lines().any(|line| line.contains("libc-2.31.so")), "an older glibc: {maps}");
    }
}

#[test]
fn a_container_with_a_read_only_root_and_an_ordinary_user_is_a_tenant_too() {
    let host = Host::new();
    let Some(containers) = Containers::on(&host) else { return };
    let _daemon = host.daemon();
    let device = containers.device("strict", &["--tenant", "strict", "--memory", "1GiB"]);
    let options = ["--read-only", "--user", "1000:1000"];
    let program = [&client("fill"), CHUNK_BYTES, "cuMemAlloc_v2"];
    let container = containers.start_with(&options, &device, Users::Apart, &program);
    let said = container.process.finish().success().json();
    assert_eq!(said["device_total"], GIB);
}

/// Tests that measure. Each test runs alone on the machine.
mod measured {
    use super::*;

    #[test]
    fn two_containers_share_the_gpu_as_their_devices_say() {
        let host = Host::measuring();
        let Some(containers) = Containers::on(&host) else { return };
        let _daemon = host.daemon();
        let device = |name, share| containers.device(name, &["--tenant", name, "--share", share]);
        let (major, minor) = (device("major", "70%"), device("minor", "30%"));
        let kernel = ["--kernel", "busy_1000us"];
        let _running = [
            start(&containers, &major, Users::Apart, &kernel),
            start(&containers, &minor, Users::Apart, &kernel),
        ];
        thread::sleep(SETTLED);
        Window::measure(&host, MEASURED).assert_shares(&[("major", 70.0), ("minor", 30.0)]);
        let ps = host.ps();
        let [first, second] = ["major", "minor"].map(|name| ps.tenant(name).sessions[0].pid);
        for kind in ["pid", "mnt", "user"] {
            let of = |pid| namespace(pid, kind);
            assert!(of(first) != of(second) || kind == "user", "both are in one {kind} namespace");
            assert!(
                [first, second].iter().all(|pid| of(*pid) != of(std::process::id())),
                "one is in our {kind} namespace"
            );
        }
    }
}
