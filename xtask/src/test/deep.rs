//! The deep track of `cargo xtask test`, and the page about its last pass.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use deepres_e2e::{containers, venv};

use super::tally::Tally;
use super::{EndToEnd, cargo_tests, heading, measured, models, prepare, program, together};
use crate::sanitize::Sanitizer;
use crate::{build, command, dist, ebpf, eval, fuzz};

/// The time that each fuzz target runs, s.
const FUZZ_SECONDS: u32 = 20;
/// The time for random calls of two processes, s. The test compares these calls with the same calls
/// without deepres.
const CALLS_SECONDS: &str = "120";
/// The page about the last pass.
const NOTE: &str = "docs/deep-check.md";
/// The text before the commit on this page.
const COMMIT: &str = "Commit: ";

/// Runs the deep track.
pub fn run(tally: &mut Tally) -> Result<()> {
    prepare(true)?;
    if rustix::process::geteuid().is_root() {
        containers::system_root()?;
    }
    venv::jupyter()?;
    for framework in venv::FRAMEWORKS {
        venv::framework(framework)?;
    }
    heading("cargo xtask dist");
    let artefacts = dist::build()?;
    heading("cargo xtask dist --verify");
    tally.check("cargo xtask dist --verify", dist::verify(&artefacts));
    venv::pycuda(&venv::clients()?, &artefacts.simgpu())?;
    heading("cargo build --workspace --lib --bins --tests");
    let programs = program::build_all()?;
    let mut end_to_end = EndToEnd::of(&programs, &artefacts, &["--include-ignored"])?;
    end_to_end.environment.push(("DEEPRES_CALLS_SECONDS", CALLS_SECONDS.as_ref()));
    end_to_end.together(tally, &[])?;
    end_to_end.measured(tally, &[])?;
    for program in programs.iter().filter(|program| program.name != super::END_TO_END) {
        together(tally, program, &[], &["--include-ignored"])?;
        measured(tally, program, &[], &["--include-ignored"], &[])?;
    }
    features(tally)?;
    models(tally, &["--include-ignored"])?;
    heading("cargo xtask eval --bars");
    tally.check("cargo xtask eval --bars", eval::check_bars(&[]));
    heading("cargo xtask eval --packing --bars");
    tally.check("cargo xtask eval --packing --bars", eval::check_bars(&["--packing"]));
    heading("cargo xtask eval --plans --bars");
    tally.check("cargo xtask eval --plans --bars", eval::check_bars(&["--plans"]));
    heading("cargo xtask fuzz");
    let options = fuzz::Options { targets: Vec::new(), seconds: FUZZ_SECONDS, seed: 0 };
    tally.check("cargo xtask fuzz", fuzz::run(&options));
    for sanitizer in Sanitizer::ALL {
        if sanitizer == Sanitizer::Thread && !ebpf::has_own_source() {
            bail!(
                "ThreadSanitizer needs the source of the standard library; run `rustup component add rust-src`"
            );
        }
        cargo_tests(tally, &mut sanitizer.tests()?, &[])?;
    }
    Ok(())
}

/// Checks the code of features that no build has by default.
fn features(tally: &mut Tally) -> Result<()> {
    heading("the DRA driver");
    let dra = |command: &str| {
        let mut cargo = build::cargo();
        cargo.args([command, "--package", "deepres-k8s", "--features", "dra"]);
        cargo
    };
    let mut clippy = dra("clippy");
    clippy.args(["--all-targets", "--", "-D", "warnings"]);
    tally.check("style", command::run(&mut clippy));
    // The plugin's other tests have run.
    cargo_tests(tally, &mut dra("test"), &["dra::"])
}

/// Checks that the last pass of the deep track was on a commit of this history. Succeeds if the
/// deep track has never passed.
pub fn check_last_pass() -> Result<()> {
    let Ok(text) = fs::read_to_string(note()) else {
        eprintln!("{NOTE} notes no pass of the deep track yet; `cargo xtask test --deep` writes it");
        return Ok(());
    };
    let commit = text.lines().find_map(|line| line.strip_prefix(COMMIT));
    let commit = commit.with_context(|| format!("{NOTE} names no commit"))?.trim();
    let mut ask = git(&["merge-base", "--is-ancestor", commit, "HEAD"]);
    let status = ask.status().with_context(|| format!("cannot start: {}", command::shown(&ask)))?;
    ensure!(
        status.success(),
        "{NOTE} names {commit}, which is not an ancestor of this commit; run `cargo xtask test --deep`"
    );
    Ok(())
}

/// Writes the page: the deep track passed on this commit. Writes nothing if the working tree
/// differs from the commit.
pub fn note_pass() -> Result<()> {
    let changed = command::output(&mut git(&["status", "--porcelain"]))?;
    if !changed.is_empty() {
        eprintln!(
            "{NOTE} does not note this pass, because the working tree differs from the commit\n{changed}"
        );
        return Ok(());
    }
    let commit = command::output(&mut git(&["rev-parse", "HEAD"]))?;
    let date = command::output(Command::new("date").args(["--utc", "+%F"]))?;
    let text = format!(
        "# The last pass of the deep track\n\n\
         `cargo xtask test --deep` writes this page. `cargo xtask test` fails if the commit is no ancestor of the\n\
         commit under test.\n\n{COMMIT}{}\nDate: {}\n",
        commit.trim(),
        date.trim()
    );
    fs::write(note(), text).with_context(|| format!("cannot write {NOTE}"))
}

fn note() -> PathBuf {
    crate::workspace().join(NOTE)
}

fn git(arguments: &[&str]) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(crate::workspace()).args(arguments).stderr(Stdio::inherit());
    git
}
