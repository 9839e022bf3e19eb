//! A program can reach the driver in any way, and other libraries can be preloaded beside deepres.
//! Each look-up gets a hook, or the same answer as without deepres.

use std::path::{Path, PathBuf};
use std::process::Command;

use deepres_e2e::prelude::*;

#[test]
fn the_driver_is_hooked_however_it_is_opened() {
    let (host, _daemon) = Host::new().with_daemon();
    for way in ["local", "global", "deepbind", "absolute", "again", "namespace"] {
        let (client, said) = host.told(host.run(&["--name", way], c_program("loads"), &[way]));
        assert_eq!(said["object"], "libdeepres.so", "{way}: whose launch function it found");
        host.await_launches(way, said["kernel_launches"].as_u64());
        client.finish().success();
    }
}

#[test]
fn a_look_up_in_another_copy_of_the_driver_leads_no_call_of_the_first_there_and_past_no_limit() {
    let (host, _daemon) = Host::new().with_daemon();
    let copy = host.path().join("libcuda.so.1");
    std::fs::copy(artefacts().simgpu.join("libcuda.so.1"), &copy).expect("a folder of our own");
    for way in [Way::Linked, Way::Dlsym] {
        for place in ["here", "namespace"] {
            let client = c_client_by("second_copy", way);
            let arguments = [copy.to_str().expect("UTF-8"), place];
            let mut bare = host.command(&client);
            bare.args(arguments);
            let mut bare = host.spawn(bare);
            bare.close_stdin();
            let bare = bare.finish().success().stdout;
            assert!(bare.lines().all(|line| line.ends_with('0')), "{bare}");
            let name = format!("{way:?}-{place}");
            let mut ours = host.spawn(host.run(&["--name", &name, "--memory", "4GiB"], &client, &arguments));
            ours.await_line(|line| line.starts_with("6 GiB"));
            host.await_launches(&name, Some(1));
            ours.close_stdin();
            let ours = ours.finish().success().stdout;
            assert_eq!(ours, bare.replace("6 GiB: 0", "6 GiB: 2"), "{name}");
        }
    }
}

#[test]
fn a_library_is_replaced_under_the_jobs_that_use_it_and_under_a_daemon_that_goes_on() {
    let (host, _daemon) = Host::new().with_daemon();
    let installed = host.path().join("libdeepres.so");
    // The installation replaces the library as package managers do: a new file takes the old file's
    // name.
    let install = || {
        let beside = host.path().join("new");
        std::fs::copy(&artefacts().library, &beside).expect("a folder of our own");
        std::fs::rename(&beside, &installed).expect("the same folder");
    };
    let start = |name: &str| {
        let mut command = host.preloaded(c_client("backlog"));
        command
            .args(["--kernel", "busy_1000us", "--progress"])
            .env("LD_PRELOAD", &installed)
            .env("DEEPRES_TENANT", name);
        host.start(command, "ready")
    };
    install();
    let _before = start("before");
    install();
    let _after = start("after");
    let launched =
        |ps: &Ps| ["before", "after"].map(|name| ps.find(name).map_or(0, |tenant| tenant.kernel_launches));
    let first = launched(&host.ps());
    host.await_ps(|ps| launched(ps).iter().zip(first).all(|(now, first)| *now > first + 50));
}

/// Returns the path of a library from a Debian package, in a folder that the linker searches.
fn system_library(name: &str, package: &str) -> PathBuf {
    let folders =
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu/faketime", "/usr/lib64", "/usr/lib"];
    let found = folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{name} is not on this machine: apt-get install {package}"))
}

#[test]
fn other_peoples_preloaded_libraries_work_beside_us_in_either_order() {
    let (host, _daemon) = Host::new().with_daemon();
    let ours = artefacts().library.display().to_string();
    for (name, package, variables) in [
        ("libjemalloc.so.2", "libjemalloc2", &[][..]),
        ("libeatmydata.so", "libeatmydata1", &[]),
        // libfaketime fakes every clock. CLOCK_MONOTONIC is excluded, because the daemon compares
        // it.
        ("libfaketimeMT.so.1", "libfaketime", &[("FAKETIME", "-1d"), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")]),
        // The sanitizer's allocator refuses to be loaded second without the first option. The
        // second option is set because memory that the driver keeps until the end is no leak of
        // deepres.
        ("libasan.so.8", "libasan8", &[("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0")]),
    ] {
        let theirs = system_library(name, package).display().to_string();
        for (order, preload) in
            [("before", format!("{theirs}:{ours}")), ("behind", format!("{ours}:{theirs}"))]
        {
            for way in [Way::Dlsym, Way::ProcAddress] {
                let tenant = format!("{name} {order} {way:?}");
                let mut command = host.preloaded(c_client_by("launches", way));
                command
                    .env("LD_PRELOAD", &preload)
                    .env("DEEPRES_TENANT", &tenant)
                    .envs(variables.iter().copied());
                let (client, said) = host.told(command);
                host.await_launches(&tenant, said["kernel_launches"].as_u64());
                client.finish().success();
            }
        }
    }
}

#[test]
fn a_tool_that_brings_some_of_the_drivers_functions_sees_the_same_calls_as_alone() {
    let (host, _daemon) = Host::new().with_daemon();
    let (tool, client) = (c_library("counts"), c_client_by("launches", Way::Linked));
    let live = |mut command: Command, meanwhile: &dyn Fn(Option<u64>)| {
        command.env("LD_PRELOAD", &tool);
        let (client, said) = host.told(command);
        meanwhile(said["kernel_launches"].as_u64());
        client.finish().success().stderr
    };
    let alone = live(host.command(&client), &|_| {});
    assert!(alone.starts_with("counted "), "{alone}");
    let metered = |launches| {
        host.await_launches("counted", launches);
    };
    let beside = live(host.run(&["--name", "counted"], &client, &[]), &metered);
    assert!(beside.lines().any(|line| line == alone.trim_end()), "{beside} instead of {alone}");
}
