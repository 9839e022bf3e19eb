//! Reports tests that cannot run on this machine. `cargo xtask test` fails for each reason that
//! [`ALLOWED`] does not list.

use std::io::{self, Write as _};

use rustix::process::geteuid;

/// Beginning of a line about a skipped test.
const SAID: &str = "skipped: ";
/// Reason of every test that needs root.
const NO_ROOT: &str = "only root may do what this test does";
/// Reasons for which a passing run may skip tests. A plain user who runs the tests has no root.
/// `cargo xtask test` installs everything else that a test needs.
pub const ALLOWED: [&str; 1] = [NO_ROOT];

/// Reports that a test, or a part of a test, is skipped.
pub fn skipped(why: &str) {
    // libtest captures the output of the macros and shows it for failures alone. Therefore the line
    // goes to standard error directly.
    let line = format!("\n{SAID}{why}\n");
    io::stderr().write_all(line.as_bytes()).expect("standard error can be written to");
}

/// Returns whether the test has root's rights. If not, the function reports the test as skipped.
pub fn root_or_skipped() -> bool {
    let is_root = geteuid().is_root();
    if !is_root {
        skipped(NO_ROOT);
    }
    is_root
}

/// Returns the reasons for skipped tests, from the tests' standard error.
pub fn reasons(stderr: &str) -> impl Iterator<Item = &str> {
    stderr.lines().filter_map(|line| line.strip_prefix(SAID))
}
