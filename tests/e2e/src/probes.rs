//! What tests of the kernel programs share: what they take, and the real device that stands in for the driver's.

use std::{env, path::Path};

use rustix::{
    fs::{CWD, FileType, Mode, chmod, makedev, mknodat},
    process::geteuid,
};

use crate::Host;

/// The stand-in: nothing else opens it, and it refuses NVIDIA's numbers.
pub const DEVICE: &str = "/dev/vga_arbiter";
/// Its numbers.
pub const NUMBERS: (u32, u32) = (10, 256);
/// Set where the tests must not be left out.
const REQUIRED: &str = "DEEPRES_REQUIRE_PROBES";
/// All may open it.
const OPEN_MODE: u32 = 0o666;

/// Whether this machine can run the test; says what it lacks if not.
pub fn are_possible() -> bool {
    let lacks = if !geteuid().is_root() {
        "root"
    } else if !Path::new(DEVICE).exists() {
        DEVICE
    } else {
        return true;
    };
    assert!(env::var_os(REQUIRED).is_none(), "the test lacks {lacks}");
    eprintln!("NOT TESTED: it lacks {lacks}");
    false
}

/// A node of the stand-in in the host's folder, which all may open.
pub fn open_node(host: &Host) -> std::path::PathBuf {
    let node = host.path().join("gpu");
    let made =
        mknodat(CWD, &node, FileType::CharacterDevice, Mode::from(OPEN_MODE), makedev(NUMBERS.0, NUMBERS.1));
    made.and_then(|()| chmod(&node, Mode::from(OPEN_MODE)))
        .unwrap_or_else(|error| panic!("{}: {error}", node.display()));
    node
}
