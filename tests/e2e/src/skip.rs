//! Tests that cannot run here say so: `cargo xtask test` fails for each reason that [`ALLOWED`] does not list.

use std::io::{self, Write as _};

use rustix::process::geteuid;

/// What a line about a skipped test begins with.
const SAID: &str = "skipped: ";
/// The reason of every test that needs root.
const NO_ROOT: &str = "only root may do what this test does";
/// Reasons that may stand in a passing run. Whoever runs the tests as a plain user has no root; everything else that a test needs, the run
/// installs.
pub const ALLOWED: [&str; 1] = [NO_ROOT];

/// Says that a test, or a part of one, is skipped.
pub fn skipped(why: &str) {
    // libtest captures what the macros print, and shows it for failures alone.
    let line = format!("\n{SAID}{why}\n");
    io::stderr().write_all(line.as_bytes()).expect("standard error can be written to");
}

/// Whether the test has root's rights; if not, says that it is skipped.
pub fn root_or_skipped() -> bool {
    let is_root = geteuid().is_root();
    if !is_root {
        skipped(NO_ROOT);
    }
    is_root
}

/// The reasons for which tests were skipped, from what they wrote to standard error.
pub fn reasons(stderr: &str) -> impl Iterator<Item = &str> {
    stderr.lines().filter_map(|line| line.strip_prefix(SAID))
}
