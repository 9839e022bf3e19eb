//! Fuzz targets. Each fuzz target passes arbitrary bytes to code that faces an untrusted party, and
//! panics if the code breaks a promise.
//!
//! `cargo xtask fuzz` runs the targets under libFuzzer. `cargo test -p deepres-fuzz` replays the
//! seeds, including every input that once broke something.

mod targets;

// The interposer's code that handles a daemon's messages. This crate includes the files, because
// linking the interposer as a library would define `dlsym` here.
#[path = "../../../interposer/src/config.rs"]
#[expect(dead_code, reason = "the interposer uses the rest of it")]
mod config;
#[path = "../../../interposer/src/descriptor.rs"]
#[expect(dead_code, reason = "the interposer uses the rest of it")]
mod descriptor;
#[path = "../../../interposer/src/handshake.rs"]
#[expect(dead_code, reason = "the interposer uses the rest of it")]
mod handshake;
#[path = "../../../interposer/src/log.rs"]
mod log;
#[path = "../../../interposer/src/os.rs"]
#[expect(dead_code, reason = "the interposer uses the rest of it")]
mod os;
#[path = "../../../interposer/src/pages.rs"]
#[cfg_attr(not(test), expect(dead_code, reason = "the interposer uses the rest of it"))]
mod pages;
#[path = "../../../interposer/src/unshared.rs"]
#[expect(dead_code, reason = "the interposer uses the rest of it")]
mod unshared;

use targets::{
    admin, cgroup, config as configuration, conversation, directory, excerpts, frames, http, images, meters,
    pages as shared_pages, quantities, state, symbols, trace, welcome,
};

/// A fuzz target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Name of the target and of the folder of its seeds.
    pub name: &'static str,
    /// Runs one input.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "admin", run: admin::run },
    Target { name: "cgroup", run: cgroup::run },
    Target { name: "config", run: configuration::run },
    Target { name: "conversation", run: conversation::run },
    Target { name: "directory", run: directory::run },
    Target { name: "excerpts", run: excerpts::run },
    Target { name: "frames", run: frames::run },
    Target { name: "http", run: http::run },
    Target { name: "images", run: images::run },
    Target { name: "meters", run: meters::run },
    Target { name: "pages", run: shared_pages::run },
    Target { name: "quantities", run: quantities::run },
    Target { name: "state", run: state::run },
    Target { name: "symbols", run: symbols::run },
    Target { name: "trace", run: trace::run },
    Target { name: "welcome", run: welcome::run },
];

/// Returns the target of this name.
///
/// # Panics
/// If there is no such target.
pub fn target(name: &str) -> Target {
    let names = || TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(", ");
    let found = TARGETS.iter().find(|target| target.name == name);
    *found.unwrap_or_else(|| panic!("there is no target `{name}`; there are {}", names()))
}
