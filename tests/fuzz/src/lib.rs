//! Fuzz targets: each takes any bytes, hands them to code that faces someone untrusted, and panics if a promise is broken.
//!
//! `cargo xtask fuzz` runs them under libFuzzer. `cargo test -p deepres-fuzz` replays the seeds, among them every input that once
//! broke something.

mod admin;
mod config;
mod conversation;
mod directory;
mod frames;
mod images;
mod meters;
mod pages;
mod quantities;

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
    Target { name: "config", run: config::run },
    Target { name: "conversation", run: conversation::run },
    Target { name: "directory", run: directory::run },
    Target { name: "frames", run: frames::run },
    Target { name: "images", run: images::run },
    Target { name: "meters", run: meters::run },
    Target { name: "pages", run: pages::run },
    Target { name: "quantities", run: quantities::run },
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
