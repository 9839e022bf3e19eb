//! What tests of the kernel programs share: what they take, and the real device that stands in for the driver's.

use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, chmod, makedev, mknodat};

use crate::{Host, skip};

/// The stand-in: nothing else opens it, and it refuses NVIDIA's numbers.
pub const DEVICE: &str = "/dev/vga_arbiter";
/// Its numbers.
pub const NUMBERS: (u32, u32) = (10, 256);
/// All may open it.
const OPEN_MODE: u32 = 0o666;

/// Whether this machine can run the test; and if not says that it is skipped.
pub fn are_possible() -> bool {
    let is_there = Path::new(DEVICE).exists();
    if !is_there {
        skip::skipped(&format!("{DEVICE} is not there"));
    }
    is_there && skip::root_or_skipped()
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
