//! `cargo xtask sanitize`: the tests again, under a sanitizer of the nightly compiler.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

use crate::{build, command};

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

/// Named, so that build scripts and procedural macros are built without the sanitizer.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";
const TOOLCHAIN: &str = "nightly";

impl Sanitizer {
    const fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Thread => "thread",
        }
    }

    /// The packages whose tests it watches. The interposer is not there: its tests define `dlsym`, which sanitizers need for themselves.
    const fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Address => &["deepres-abi", "simgpu-engine"],
            Self::Thread => &["deepres-abi"],
        }
    }

    /// The tests, as a command.
    pub fn tests(self) -> Command {
        let mut tests = Command::new("rustup");
        tests
            .args(["run", TOOLCHAIN, "cargo", "test", "--no-fail-fast", "--lib", "--tests"])
            .args(["--target", PLATFORM, "--target-dir"])
            .arg(build::target().join("sanitize").join(self.name()))
            .args(self.packages().iter().flat_map(|package| ["--package", package]))
            .current_dir(crate::workspace())
            .env("RUSTFLAGS", format!("-Zsanitizer={}", self.name()))
            // Pages of a process are never freed, nor are those of its tests.
            .env("ASAN_OPTIONS", "detect_leaks=0")
            // Those of the cargo that runs us.
            .env_remove("RUSTC")
            .env_remove("CARGO");
        if self == Self::Thread {
            // What the standard library orders is seen only if it is watched too.
            tests.arg("-Zbuild-std");
        }
        tests
    }
}

/// Runs the tests under what was asked for.
pub fn run(options: &Options) -> Result<()> {
    install()?;
    let asked = options.sanitizer.map_or(vec![Sanitizer::Address, Sanitizer::Thread], |one| vec![one]);
    asked.into_iter().try_for_each(|sanitizer| command::run(&mut sanitizer.tests()))
}

/// Installs the compiler, if it is not there.
pub fn install() -> Result<()> {
    let mut list = Command::new("rustup");
    list.args(["component", "list", "--toolchain", TOOLCHAIN, "--installed"]).stderr(Stdio::null());
    let listed = list.output().context("sanitizers need rustup and a nightly toolchain")?;
    if String::from_utf8_lossy(&listed.stdout).lines().any(|line| line == "rust-src") {
        return Ok(());
    }
    let mut install = Command::new("rustup");
    install.args(["toolchain", "install", TOOLCHAIN, "--profile", "minimal", "--component", "rust-src"]);
    command::run(&mut install)
}
