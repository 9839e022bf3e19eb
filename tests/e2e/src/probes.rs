//! The parts that tests of the eBPF programs share: the requirements of the tests, and a real
//! device in place of the GPU's devices.

use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, chmod, makedev, mknodat};

use crate::{Host, skip};

/// The stand-in device. No other program opens the device, and the device refuses the numbers of
/// NVIDIA's ioctls.
pub const DEVICE: &str = "/dev/vga_arbiter";
/// Major and minor number of the stand-in device.
pub const NUMBERS: (u32, u32) = (10, 256);
/// Mode with which all users may open the device.
const OPEN_MODE: u32 = 0o666;

/// Configuration with which the daemon watches the stand-in device.
pub const CONFIG: &str = "[probes]\ndevices = [\"nvidia-uvm=10:256\"]\n";

/// Returns whether this machine can run the test. If not, the function reports the test as skipped.
fn are_possible() -> bool {
    let is_there = Path::new(DEVICE).exists();
    if !is_there {
        skip::skipped(&format!("{DEVICE} is not there"));
    }
    is_there && skip::root_or_skipped()
}

/// Returns a host for a test of the eBPF programs, with this configuration of the daemon unless
/// it is empty. If the machine cannot run the test, reports the test as skipped and returns `None`.
pub fn host(config: &str) -> Option<Host> {
    are_possible().then(|| configured(Host::new(), config))
}

/// Returns a host like [`host`], for a test that measures.
pub fn measuring(config: &str) -> Option<Host> {
    are_possible().then(|| configured(Host::measuring(), config))
}

fn configured(host: Host, config: &str) -> Host {
    if config.is_empty() { host } else { host.config(config) }
}

/// Makes a node of the stand-in device in the host's folder, and returns its path. All users may
/// open the node.
pub fn open_node(host: &Host) -> std::path::PathBuf {
    let node = host.path().join("gpu");
    let made =
        mknodat(CWD, &node, FileType::CharacterDevice, Mode::from(OPEN_MODE), makedev(NUMBERS.0, NUMBERS.1));
    made.and_then(|()| chmod(&node, Mode::from(OPEN_MODE)))
        .unwrap_or_else(|error| panic!("{}: {error}", node.display()));
    node
}
