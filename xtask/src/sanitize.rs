//! `cargo xtask sanitize`: runs the tests under a sanitizer.
//!
//! Sanitizers are an unstable feature of the compiler. The stable toolchain has their run-time
//! libraries, and `RUSTC_BOOTSTRAP` enables them. So the command needs no other toolchain. For
//! AddressSanitizer, as for the fuzz targets, only the packages of this workspace are built anew. A
//! wrapper between cargo and the compiler adds the flags.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::{build, command, ebpf, fuzz};

/// A sanitizer of the compiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Sanitizer {
    /// Memory that is used out of its bounds or after it was freed
    Address,
    /// Data that two threads use at once
    Thread,
}

/// Options of `cargo xtask sanitize`.
#[derive(clap::Args)]
pub struct Options {
    /// Sanitizer to use; without it, one after the other
    #[arg(value_enum)]
    sanitizer: Option<Sanitizer>,
}

/// The target. Cargo gets the target's name if it also builds the standard library. Build scripts
/// and procedural macros then use the existing standard library.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";
const EXECUTABLE: u32 = 0o755;

impl Sanitizer {
    /// Both sanitizers.
    pub const ALL: [Self; 2] = [Self::Address, Self::Thread];

    /// Returns the packages whose tests the sanitizer runs. The packages leave out the interposer,
    /// because its tests define `dlsym`, which sanitizers need for themselves. The fuzz targets
    /// cover the interposer's handling of a daemon's messages. The packages also leave out the
    /// policy, which is safe code without threads: its tests take ten thousand cases each.
    const fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Address => &["deepres-abi", "deepres-model", "deepres-daemon", "deepres", "simgpu-engine"],
            Self::Thread => &["deepres-abi", "deepres-model", "deepres-daemon", "deepres"],
        }
    }

    /// Returns the command that builds and runs the tests. The command has no arguments for the
    /// tests yet.
    pub fn tests(self) -> Result<Command> {
        let mut tests = match self {
            Self::Address => with_address_sanitizer()?,
            Self::Thread => build::cargo(),
        };
        tests.args(["test", "--no-fail-fast", "--lib", "--tests"]);
        tests.args(self.packages().iter().flat_map(|package| ["--package", package]));
        if self == Self::Thread {
            // ThreadSanitizer sees the memory orderings of the standard library only if the library
            // is instrumented too.
            tests
                .args(["-Zbuild-std", "--target", PLATFORM, "--target-dir"])
                .arg(build::target().join("thread-sanitizer"))
                .env("RUSTC_BOOTSTRAP", "1")
                .env("RUSTFLAGS", "-Zsanitizer=thread");
        }
        Ok(tests)
    }
}

/// Returns a cargo command that builds the packages of this workspace with AddressSanitizer and for
/// libFuzzer. The command builds all other packages as usual.
pub fn with_address_sanitizer() -> Result<Command> {
    let wrapper = build::target().join("address-sanitizer/rustc");
    // Only the wrapper sets the variable. Otherwise cargo would build each package anew that reads
    // the variable.
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
        // The sanitizer does not report leaks, because the pages of a process and of its tests are
        // never freed.
        .env("ASAN_OPTIONS", "detect_leaks=0");
    Ok(cargo)
}

/// Runs the tests under the chosen sanitizers.
pub fn run(options: &Options) -> Result<()> {
    for sanitizer in options.sanitizer.map_or(Sanitizer::ALL.to_vec(), |one| vec![one]) {
        if sanitizer == Sanitizer::Thread && !ebpf::has_own_source() {
            bail!(
                "ThreadSanitizer needs the source of the standard library; run `rustup component add rust-src`"
            );
        }
        command::run(&mut sanitizer.tests()?)?;
    }
    Ok(())
}
