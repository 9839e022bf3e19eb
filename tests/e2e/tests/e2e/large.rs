//! The frameworks from PyPI. Each framework gets as far with deepres as without, and all its
//! look-ups get hooks.
//!
//! The frameworks' CUDA libraries ask the driver to prove that it is NVIDIA's. The simulated driver
//! cannot prove that, so the frameworks do no GPU work in these tests.

use std::fs;
use std::path::{Path, PathBuf};

use deepres_e2e::prelude::*;
use deepres_e2e::venv;
use deepres_e2e::witness::{Client, assert_every_look_up_is_answered_with_our_hook};

/// Time limit. The import of a framework reads gigabytes, on a machine with other work.
const CLIENT_LIMIT: Duration = Duration::from_secs(200);

/// Shell script that runs a command in a mount namespace with a GPU's device files, because JAX
/// looks for these files first. The files are other names of /dev/null.
const WITH_DEVICE_FILES: &str = r#"
set -e
dev=$(mktemp -d)
mount -t tmpfs none "$dev"
for node in null zero full random urandom tty; do touch "$dev/$node"; mount --bind "/dev/$node" "$dev/$node"; done
for folder in shm pts; do mkdir "$dev/$folder"; mount --rbind "/dev/$folder" "$dev/$folder"; done
for node in nvidia0 nvidiactl; do mknod -m 666 "$dev/$node" c 1 3; done
mount --rbind "$dev" /dev
umount -l "$dev"
rmdir "$dev"
exec "$@"
"#;

fn python(framework: &str) -> PathBuf {
    venv::framework(framework).unwrap_or_else(|error| panic!("{framework}: {error:#}")).python()
}

/// Returns the folders of a framework's CUDA libraries, as LD_LIBRARY_PATH lists them.
fn cuda_libraries(python: &Path) -> String {
    let list = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let lib = python.parent().and_then(Path::parent).expect("a virtual environment").join("lib");
    let packages = list(&lib).flat_map(|python| list(&python.join("site-packages/nvidia")));
    let folders = packages.map(|package| package.join("lib")).filter(|folder| folder.is_dir());
    folders.map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(":")
}

/// Runs the client without and with deepres, and asserts equal output. Returns the output.
#[track_caller]
fn assert_gets_as_far_and_looks_nothing_up_past_the_hooks(client: &Client<'_>) -> Value {
    let host = Host::new();
    let mut bare = host.command(client.program);
    client.prepare(&mut bare);
    let bare = host.spawn(bare).finish_within(client.within).success().json();
    drop(host);

    let (said, got) = assert_every_look_up_is_answered_with_our_hook(client);
    println!("{bare}\n{} functions looked up and answered with hooks", got.len());
    let said: Value = said.lines().find_map(|line| serde_json::from_str(line).ok()).expect("a JSON line");
    assert_eq!(said, bare, "it gets as far as without deepres");
    for symbol in ["cuInit", "cuLaunchKernel", "cuLaunchKernelEx", "cuGraphLaunch", "cuMemAlloc_v2"] {
        assert!(got.iter().any(|name| name == symbol), "{symbol} is not among {got:?}");
    }
    said
}

#[test]
#[ignore = "deep: gigabytes"]
fn torch_gets_as_far_as_without_and_looks_nothing_up_past_the_hooks() {
    let script = script("framework_client").display().to_string();
    let said = assert_gets_as_far_and_looks_nothing_up_past_the_hooks(&Client {
        arguments: &[&script, "torch"],
        within: CLIENT_LIMIT,
        ..Client::new(&python("torch"))
    });
    assert_eq!(said["work without a GPU"], 4.0, "{said}");
}

#[test]
#[ignore = "deep: gigabytes"]
fn tensorflow_gets_as_far_as_without_and_looks_nothing_up_past_the_hooks() {
    let script = script("framework_client").display().to_string();
    let python = python("tensorflow");
    let said = assert_gets_as_far_and_looks_nothing_up_past_the_hooks(&Client {
        arguments: &[&script, "tensorflow"],
        within: CLIENT_LIMIT,
        // Without its GPU libraries the framework does not look for a GPU.
        libraries: &cuda_libraries(&python),
        forwarders: &["libtensorflow_framework.so.2"],
        ..Client::new(&python)
    });
    assert_eq!(said["devices"].as_array().map(Vec::len), Some(1), "{said}");
}

#[test]
#[ignore = "deep: gigabytes"]
fn jax_gets_as_far_as_without_and_looks_nothing_up_past_the_hooks() {
    assert!(rustix::process::geteuid().is_root(), "device files are root's to make");
    let script = script("framework_client").display().to_string();
    let python = python("jax").display().to_string();
    let inside =
        ["-m", "--propagation", "private", "sh", "-c", WITH_DEVICE_FILES, "sh", &python, &script, "jax"];
    let said = assert_gets_as_far_and_looks_nothing_up_past_the_hooks(&Client {
        arguments: &inside,
        within: CLIENT_LIMIT,
        // JAX asks the profiler's library for its version, and that library asks for the private
        // tables of a real driver.
        variables: &[("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")],
        ..Client::new(Path::new("unshare"))
    });
    assert_eq!(said["work without a GPU"], 4.0, "{said}");
}
