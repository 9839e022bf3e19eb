//! `cargo xtask sanitize`: the tests again, under a sanitizer.
//!
//! Sanitizers are no stable feature of the compiler, but the stable toolchain has their run-time libraries, and `RUSTC_BOOTSTRAP` lets it use them:
//! no other toolchain has to be fetched. For AddressSanitizer our own packages alone are built anew, as the fuzz targets are; a program
//! between cargo and the compiler adds what that takes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::{build, command, ebpf, fuzz};

/// What watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Sanitizer {
    /// Memory that is used out of its bounds, or after it was freed.
    Address,
    /// Data that two threads use at once.
    Thread,
}

/// Options of `cargo xtask sanitize`.
#[derive(clap::Args)]
pub struct Options {
    /// What watches; without it, one after the other.
    #[arg(value_enum)]
    sanitizer: Option<Sanitizer>,
}

/// Named where the standard library is built, so that build scripts and procedural macros have the one there is.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";
const EXECUTABLE: u32 = 0o755;
/// Tests that are left out: of arithmetic in safe code without threads, by the ten thousand cases each.
pub const LEFT_OUT: &str = "policy::";

impl Sanitizer {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Address, Self::Thread];

    /// The packages whose tests it watches. The interposer is not there: its tests define `dlsym`, which sanitizers need for themselves. What it
    /// does with a daemon's messages is among the fuzz targets.
    const fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Address => &["deepres-abi", "deepres-model", "deepres-daemon", "deepres", "simgpu-engine"],
            Self::Thread => &["deepres-abi", "deepres-model", "deepres-daemon", "deepres"],
        }
    }

    /// The command that builds and runs the tests, without arguments for the tests.
    pub fn tests(self) -> Result<Command> {
        let mut tests = match self {
            Self::Address => with_address_sanitizer()?,
            Self::Thread => build::cargo(),
        };
        tests.args(["test", "--no-fail-fast", "--lib", "--tests"]);
        tests.args(self.packages().iter().flat_map(|package| ["--package", package]));
        if self == Self::Thread {
            // What the standard library orders is seen only if it is watched too.
            tests
                .args(["-Zbuild-std", "--target", PLATFORM, "--target-dir"])
                .arg(build::target().join("thread-sanitizer"))
                .env("RUSTC_BOOTSTRAP", "1")
                .env("RUSTFLAGS", "-Zsanitizer=thread");
        }
        Ok(tests)
    }
}

/// Cargo, which builds our own packages with AddressSanitizer and for libFuzzer, and all others as ever.
pub fn with_address_sanitizer() -> Result<Command> {
    let wrapper = build::target().join("address-sanitizer/rustc");
    // Only where the wrapper is: a package that asks for this variable would be built anew.
    let script = format!("#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec \"$@\" -Zsanitizer=address {}\n", fuzz::FLAGS);
    if fs::read_to_string(&wrapper).ok().as_ref() != Some(&script) {
        let folder = wrapper.parent().context("a file without a folder")?;
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        fs::write(&wrapper, script).with_context(|| format!("cannot write {}", wrapper.display()))?;
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(EXECUTABLE))?;
    }
    let mut cargo = build::cargo();
    cargo
        .env("RUSTC_WORKSPACE_WRAPPER", wrapper)
        // Pages of a process are never freed, nor are those of its tests.
        .env("ASAN_OPTIONS", "detect_leaks=0");
    Ok(cargo)
}

/// Runs the tests under what was asked for.
pub fn run(options: &Options) -> Result<()> {
    for sanitizer in options.sanitizer.map_or(Sanitizer::ALL.to_vec(), |one| vec![one]) {
        if sanitizer == Sanitizer::Thread && !ebpf::has_own_source() {
            bail!("ThreadSanitizer needs the source of the standard library: rustup component add rust-src");
        }
        command::run(sanitizer.tests()?.args(["--", "--skip", LEFT_OUT]))?;
    }
    Ok(())
}
