//! Every way to reach a driver function leads to its hook. deepres, the client and the GPU count
//! the same launches.

use std::path::{Path, PathBuf};
use std::process::Command;

use deepres_e2e::clients::{c_library_on, loader, unbound};
use deepres_e2e::prelude::*;
use deepres_e2e::witness::{Client, assert_every_look_up_is_answered_with_our_hook};

/// Runs `launches` as this tenant, and compares the counts of client, deepres and GPU.
fn assert_every_launch_is_counted(host: &Host, tenant: &str, command: Command) {
    let (client, said) = host.told(command);
    let count = |key: &str| said[key].as_u64().unwrap_or_else(|| panic!("{key} in {said}"));
    let wanted = (count("kernel_launches"), count("graph_launches"));
    let ps =
        host.await_ps(|ps| ps.find(tenant).is_some_and(|t| (t.kernel_launches, t.graph_launches) == wanted));
    assert_eq!(count("graph_nodes"), 3, "{tenant}: the graph holds what was captured and nothing else");
    let pids = ps.tenant(tenant).pids();
    assert_eq!(pids.len(), 1, "{tenant}: one session");
    let run = host.record(pids[0]).gpus[0].kernels;
    assert_eq!(run, count("kernels_run"), "{tenant}: the GPU ran what was launched");
    client.finish().success();
}

#[test]
fn a_client_is_counted_launch_by_launch_however_it_reaches_the_driver() {
    let (host, _daemon) = Host::new().with_daemon();
    for way in Way::ALL {
        let tenant = format!("{way:?}");
        let command = host.run(&["--name", &tenant], c_client_by("launches", way), &[]);
        assert_every_launch_is_counted(&host, &tenant, command);
    }
}

/// A driver can answer look-ups with addresses that are no exports'. Name and version of a look-up
/// then lead to the hook.
#[test]
fn a_client_is_counted_though_the_driver_answers_look_ups_with_addresses_of_no_export() {
    let (host, _daemon) = Host::new().with_daemon();
    let mut command = host.run(&["--name", "stubs"], c_client_by("launches", Way::ProcAddress), &[]);
    command.env("SIMGPU_STUBS", "1");
    assert_every_launch_is_counted(&host, "stubs", command);
    assert_every_look_up_is_answered_with_our_hook(&Client {
        variables: &[("SIMGPU_STUBS", "1")],
        ..Client::new(&c_client_by("launches", Way::ProcAddress))
    });
}

/// Runs `launches` in every way with only these libraries preloaded, and compares the counts.
fn assert_every_way_is_counted_beside(preloaded: &[&Path]) {
    let (host, _daemon) = Host::new().with_daemon();
    let preload = preloaded.iter().map(|library| library.display().to_string()).collect::<Vec<_>>().join(":");
    for way in Way::ALL {
        let tenant = format!("{way:?}");
        let mut command = host.preloaded(c_client_by("launches", way));
        command.env("LD_PRELOAD", &preload).env("DEEPRES_TENANT", &tenant);
        println!("{tenant} with {preload}");
        assert_every_launch_is_counted(&host, &tenant, command);
    }
}

/// One library finds the real `dlsym` by its version, as tracers do. This look-up must find the
/// hook too. The other library gets `dlsym` by the C library's handle, and so bypasses the
/// libraries in between.
#[test]
fn a_client_is_counted_beside_a_library_that_wraps_dlsym_in_either_order() {
    for wraps in ["wrapnext", "wraphandle"] {
        let (wraps, ours) = (&c_library(wraps), &artefacts().library);
        for preloaded in [[wraps, ours], [ours, wraps]] {
            assert_every_way_is_counted_beside(&preloaded.map(PathBuf::as_path));
        }
    }
}

/// A tool before deepres asks for the next symbol. A wrapper of `dlsym` behind deepres hides the
/// original caller.
#[test]
fn a_client_is_counted_between_a_tool_that_wants_the_next_one_and_a_library_that_wraps_dlsym() {
    for wraps in ["wrapnext", "wraphandle"] {
        let (tool, wraps) = (c_library("counts"), c_library(wraps));
        assert_every_way_is_counted_beside(&[&tool, &artefacts().library, &wraps]);
    }
}

#[test]
fn a_library_that_got_the_c_librarys_dlsym_behind_us_is_reported() {
    let host = Host::new();
    let told = |beside: &Path| {
        let mut command = host.preloaded(c_client("past"));
        let preload = format!("{}:{}", artefacts().library.display(), beside.display());
        command.env("LD_PRELOAD", preload).env("DEEPRES_LOG", "debug").env("DEEPRES_MEMORY", "4GiB");
        command.env_remove("DEEPRES_SOCKET");
        host.finish(command).success().stderr
    };
    let taken = told(&c_library("takes"));
    assert!(taken.contains(" 1 for the C library's dlsym"), "{taken}");
    let wrapped = told(&c_library("wraphandle"));
    assert!(wrapped.contains(" 0 for the C library's dlsym"), "it is asked after us: {wrapped}");
}

/// The pattern of TensorFlow: its library has functions with the driver's names, which look up the
/// driver's functions and call them. libcudart calls the driver directly.
#[test]
fn a_client_is_counted_behind_a_library_that_stands_for_the_driver() {
    for (forwards, scope) in ["forwards", "forwards_by_proc_address"]
        .into_iter()
        .flat_map(|forwards| ["local", "global"].map(|scope| (c_library(forwards), scope)))
    {
        let stand_in = c_library_on("stand_in", &forwards).display().to_string();
        let (host, _daemon) = Host::new().light_contexts().with_daemon();
        let (client, said) = host.told(host.run(&["--name", scope], c_program("hosts"), &[scope, &stand_in]));
        let ps = host.await_launches(scope, said["kernel_launches"].as_u64());
        assert_eq!(Some(ps.tenant(scope).memory_bytes), said["bytes"].as_u64(), "{scope}: each byte once");
        client.finish().success();

        let asker = forwards.file_name().and_then(|name| name.to_str()).unwrap();
        assert_every_look_up_is_answered_with_our_hook(&Client {
            arguments: &[scope, &stand_in],
            forwarders: &[asker],
            ..Client::new(&c_program("hosts"))
        });
    }
}

/// The pattern of WSL2: libcuda.so.1 loads the driver, another libcuda, and looks its functions up.
#[test]
fn a_client_is_counted_though_its_libcuda_only_loads_the_driver() {
    let (host, _daemon) = Host::new().with_daemon();
    let simgpu = &artefacts().simgpu;
    let libraries = format!("{}:{}", loader().display(), simgpu.display());
    for way in Way::ALL {
        let tenant = format!("{way:?}");
        let mut command = host.run(&["--name", &tenant], c_client_by("launches", way), &[]);
        command.env("LD_LIBRARY_PATH", &libraries).env("DRIVER_FILE", simgpu.join("libcuda.so.1"));
        assert_every_launch_is_counted(&host, &tenant, command);
    }
}

/// Returns the simulated driver without these functions, in a folder of its own, and the folders in
/// which a client then finds its libraries.
pub fn driver_without(lacks: &[&str]) -> (tempfile::TempDir, String) {
    let mut driver = std::fs::read(artefacts().simgpu.join("libcuda.so.1")).unwrap();
    for name in lacks {
        // Nobody looks the function up under the name that begins with an `x`.
        let name = format!("\0{name}\0");
        let at = driver.windows(name.len()).position(|bytes| bytes == name.as_bytes()).unwrap();
        driver[at + 1] = b'x';
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("libcuda.so.1"), driver).unwrap();
    let libraries = format!("{}:{}", folder.path().display(), artefacts().simgpu.display());
    (folder, libraries)
}

/// Older variants of functions, which a driver may lack if it has the newer variants.
pub const OLDER: [&str; 4] = ["cuDeviceGetUuid", "cuEventElapsedTime", "cuEventDestroy", "cuCtxPushCurrent"];

/// Releases of the driver differ in the variants of a function that they export. One is enough.
#[test]
fn a_client_is_counted_though_the_driver_lacks_the_older_or_the_newer_variants() {
    let newer = [
        "cuDeviceGetUuid_v2",
        "cuEventElapsedTime_v2",
        "cuEventDestroy_v2",
        "cuCtxPushCurrent_v2",
        "cuCtxPopCurrent_v2",
        "cuDevicePrimaryCtxRelease_v2",
    ];
    for (age, lacks) in [("older", &OLDER[..]), ("newer", &newer[..])] {
        let (_folder, libraries) = driver_without(lacks);
        let (host, _daemon) = Host::new().with_daemon();
        let mut command = host.run(&["--name", age, "--memory", "1GiB"], c_client("launches"), &[]);
        command.env("LD_LIBRARY_PATH", libraries);
        assert_every_launch_is_counted(&host, age, command);
    }
}

#[test]
fn the_doctor_checks_a_drivers_file_without_a_gpu() {
    let host = Host::new();
    let examine = |folder: &Path| {
        let file = folder.join("libcuda.so.1").display().to_string();
        host.finish(host.deepres(&["doctor", "--driver", &file]))
    };
    let whole = examine(&artefacts().simgpu).success();
    assert!(whole.stdout.contains("all that the interposer needs"), "{}", whole.stdout);
    assert!(whole.stdout.contains("binds its calls of its own functions to itself"), "{}", whole.stdout);
    let partial = examine(&loader());
    assert_eq!(partial.code, 1, "{}", partial.stdout);
    assert!(partial.stdout.contains("the driver lacks cuCtxGetCurrent"), "{}", partial.stdout);
    let bound = examine(&unbound()).stdout;
    assert!(bound.contains("binds the driver's calls of cuEventCreate to the hooks"), "{bound}");
}

/// The machine preloads deepres everywhere, and a container brings its own copy. Only one of them
/// does the work.
#[test]
fn a_client_is_counted_once_where_deepres_is_preloaded_twice() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("libdeepres.so");
    std::fs::copy(&artefacts().library, &copy).unwrap();
    for preloaded in [[&artefacts().library, &copy], [&copy, &artefacts().library]] {
        assert_every_way_is_counted_beside(&preloaded.map(|library| library.as_path()));
    }
}

/// The driver then comes first in every search, so a program that is linked to it calls it past the
/// hooks. A look-up by `dlsym` finds the hooks still.
#[test]
fn a_driver_that_is_preloaded_before_us_is_named_at_the_job_and_in_ps_and_in_the_log() {
    let (host, mut daemon) = Host::new().with_daemon();
    let mut command = host.preloaded(c_client_by("launches", Way::Dlsym));
    command.env("LD_PRELOAD", behind_the_driver()).env("DEEPRES_TENANT", "past");
    let (mut client, _) = host.told(command);
    client.await_error_line(|line| line.contains("finds cuLaunchKernel by linking gets the driver's own"));
    let shown = || host.shows(&["ps"]);
    let line = "finds the driver's own cuLaunchKernel by 1 of its ways";
    await_value(shown, |shown| shown.contains(line));
    daemon.await_error_line(|line| line.contains("a process finds the driver's own cuLaunchKernel"));
    client.finish().success();
}

/// Nothing could hold the launches of a library that is linked to the driver.
#[test]
fn a_job_with_limits_behind_a_driver_that_is_preloaded_before_us_does_not_get_the_gpu() {
    let (host, _daemon) = Host::new().with_daemon();
    let past = |variables: &[(&str, &str)]| {
        let mut command = host.preloaded(c_client_by("view", Way::Dlsym));
        command.env("LD_PRELOAD", behind_the_driver()).envs(variables.iter().copied());
        host.finish(command)
    };
    for limit in [("DEEPRES_MEMORY", "1GiB"), ("DEEPRES_SHARE", "25%"), ("DEEPRES_FALLBACK", "share=25%")] {
        let done = past(&[limit]);
        done.refused("finds cuLaunchKernel by linking gets the driver's own function");
        done.refused("so nothing can hold the job to its limits");
        done.refused("800");
    }
    past(&[]).success();
}

/// Returns the value of `LD_PRELOAD` with the driver before the interposer.
fn behind_the_driver() -> String {
    let driver = artefacts().simgpu.join("libcuda.so.1");
    format!("{}:{}", driver.display(), artefacts().library.display())
}
