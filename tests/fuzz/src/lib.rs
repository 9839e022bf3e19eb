//! Fuzz targets: each takes any bytes, hands them to code that faces someone untrusted, and panics if a promise is broken.
//!
//! `cargo xtask fuzz` runs them under libFuzzer. `cargo test -p deepres-fuzz` replays the seeds, among them every input that once
//! broke something.

mod targets;

// What the interposer does with what a daemon says, and with code that a job loads. It is no library that could be linked to: that would define `dlsym` here.
#[path = "../../../interposer/src/config.rs"]
#[expect(dead_code, reason = "the interposer uses the rest of it")]
mod config;
#[path = "../../../interposer/src/descriptor.rs"]
#[expect(dead_code, reason = "the interposer uses the rest of it")]
mod descriptor;
#[path = "../../../interposer/src/handshake.rs"]
#[expect(dead_code, reason = "the interposer uses the rest of it")]
mod handshake;
#[path = "../../../interposer/src/image/mod.rs"]
#[cfg_attr(not(test), expect(dead_code, reason = "the interposer uses the rest of it"))]
mod image;
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
    admin, cgroup, code, config as configuration, conversation, directory, frames, images, meters,
    pages as shared_pages, quantities, state, symbols, trace, welcome,
};

/// Code under attack.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, and that of the folder of its seeds.
    pub name: &'static str,
    /// One input.
    pub run: fn(&[u8]),
}

/// All there are.
pub const TARGETS: &[Target] = &[
    Target { name: "admin", run: admin::run },
    Target { name: "cgroup", run: cgroup::run },
    Target { name: "code", run: code::run },
    Target { name: "config", run: configuration::run },
    Target { name: "conversation", run: conversation::run },
    Target { name: "directory", run: directory::run },
    Target { name: "frames", run: frames::run },
    Target { name: "images", run: images::run },
    Target { name: "meters", run: meters::run },
    Target { name: "pages", run: shared_pages::run },
    Target { name: "quantities", run: quantities::run },
    Target { name: "state", run: state::run },
    Target { name: "symbols", run: symbols::run },
    Target { name: "trace", run: trace::run },
    Target { name: "welcome", run: welcome::run },
];

/// The target of that name.
///
/// # Panics
/// If there is none.
pub fn target(name: &str) -> Target {
    let names = || TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(", ");
    let found = TARGETS.iter().find(|target| target.name == name);
    *found.unwrap_or_else(|| panic!("there is no target `{name}`; there are {}", names()))
}
