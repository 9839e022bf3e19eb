//! The deep track of `cargo xtask test`, and the page about its last pass.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use deepres_e2e::{containers, venv};

use super::program::Program;
use super::rest::Failed;
use super::tally::Tally;
use super::{
    EndToEnd, MEASURES, cargo_tests, heading, is_timeless, measured, models, prepare, program, selected,
    start_beside, together,
};
use crate::build::{self, Artefacts};
use crate::sanitize::Sanitizer;
use crate::{command, dist, ebpf, eval, fuzz};

/// The time that each fuzz target runs, s.
const FUZZ_SECONDS: u32 = 20;
/// The time for random calls of two processes, s. The test compares these calls with the same calls
/// without deepres.
const CALLS_SECONDS: &str = "120";
/// The page about the last pass.
const NOTE: &str = "docs/deep-check.md";
/// The text before the commit on this page.
const COMMIT: &str = "Commit: ";

/// The argument that selects the tests of both tracks.
const BOTH_TRACKS: [&str; 1] = ["--include-ignored"];

/// Makes everything that the tests of the deep track need besides the product.
fn prepare_all() -> Result<()> {
    prepare(true)?;
    if rustix::process::geteuid().is_root() {
        containers::system_root()?;
    }
    venv::jupyter()?;
    venv::ray()?;
    venv::kubernetes()?;
    venv::axe()?;
    for framework in venv::FRAMEWORKS {
        venv::framework(framework)?;
    }
    Ok(())
}

/// Builds the product as users get it, and the clients that need it.
fn product() -> Result<Artefacts> {
    heading("cargo xtask dist");
    let artefacts = dist::build()?;
    venv::pycuda(&venv::clients()?, &artefacts.simgpu())?;
    Ok(artefacts)
}

/// Runs the deep track.
pub fn run(tally: &mut Tally) -> Result<()> {
    prepare_all()?;
    thread::scope(|scope| {
        // The last step of the product's build uses one processor, and the models need no product.
        let mut beside = vec![start_beside(scope, |tally| models(tally, &BOTH_TRACKS))?];
        let artefacts = product()?;
        heading("cargo build --workspace --lib --bins --tests");
        let programs = program::build_all()?;
        let mut end_to_end = EndToEnd::of(&programs, &artefacts, &BOTH_TRACKS)?;
        end_to_end.environment.push(("DEEPRES_CALLS_SECONDS", CALLS_SECONDS.as_ref()));
        let others = || programs.iter().filter(|program| program.name != super::END_TO_END);
        let (timeless, timed): (Vec<Program>, Vec<Program>) = others().cloned().partition(is_timeless);
        let product = artefacts.clone();
        beside.push(start_beside(scope, move |tally| {
            timeless.iter().try_for_each(|program| together(tally, program, &[], &BOTH_TRACKS))?;
            without_time(tally, &product)
        })?);
        end_to_end.together(tally, &[])?;
        for program in &timed {
            together(tally, program, &[], &BOTH_TRACKS)?;
        }
        // These builds use the processor that the other checks leave idle.
        beside.push(start_beside(scope, |_| {
            sanitizers()?
                .try_for_each(|sanitizer| program::build(sanitizer.tests()?.arg("--no-run")).map(drop))
        })?);
        for checks in beside {
            tally.add(checks.join().expect("a check that fails gives an error")?);
        }
        end_to_end.measured(tally, &[])?;
        others().try_for_each(|program| measured(tally, program, &[], &BOTH_TRACKS, &[]))
    })?;
    sanitizers()?.try_for_each(|sanitizer| cargo_tests(tally, &mut sanitizer.tests()?, &[]))
}

/// Runs the tests that failed in the last run of the whole track. Returns that run.
///
/// # Errors
/// If the product changed since that run.
pub fn run_rest(tally: &mut Tally) -> Result<Failed> {
    let failed = Failed::read()?;
    prepare_all()?;
    let artefacts = product()?;
    heading("cargo build --workspace --lib --bins --tests");
    let programs = program::build_all()?;
    let mut environment = EndToEnd::of(&programs, &artefacts, &BOTH_TRACKS)?.environment;
    environment.push(("DEEPRES_CALLS_SECONDS", CALLS_SECONDS.as_ref()));
    for (name, tests) in &failed.tests {
        let found = programs.iter().find(|program| program.name == name.trim_end_matches(MEASURES));
        let program = found.with_context(|| format!("only the whole track runs {name}"))?;
        let names: Vec<&str> = tests.iter().map(String::as_str).collect();
        let all = [&["--exact", "--test-threads=1"], &names[..], &BOTH_TRACKS].concat();
        tally.tests(name, |one| program.run(&selected(&all, one), &environment))?;
    }
    ensure!(tally.passed() >= failed.names().count() as u64, "some of the failed tests are gone");
    Ok(failed)
}

/// Returns the sanitizers.
///
/// # Errors
/// If the source of the standard library is missing.
fn sanitizers() -> Result<impl Iterator<Item = Sanitizer>> {
    ensure!(
        ebpf::has_own_source(),
        "ThreadSanitizer needs the source of the standard library; run `rustup component add rust-src`"
    );
    Ok(Sanitizer::ALL.into_iter())
}

/// Runs the checks that neither wait nor depend on time.
fn without_time(tally: &mut Tally, artefacts: &Artefacts) -> Result<()> {
    features(tally)?;
    for selection in [&[][..], &["--packing"], &["--plans"]] {
        let what = [&["cargo xtask eval"], selection, &["--bars"]].concat().join(" ");
        heading(&what);
        tally.check(&what, eval::check_bars(selection));
    }
    heading("cargo xtask fuzz");
    let options = fuzz::Options { targets: Vec::new(), seconds: FUZZ_SECONDS, seed: 0 };
    tally.check("cargo xtask fuzz", fuzz::run(&options));
    heading("cargo xtask dist --verify");
    tally.check("cargo xtask dist --verify", dist::verify(artefacts));
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
    let mut ask = git(&crate::workspace(), &["merge-base", "--is-ancestor", commit, "HEAD"]);
    let status = ask.status().with_context(|| format!("cannot start: {}", command::shown(&ask)))?;
    ensure!(
        status.success(),
        "{NOTE} names {commit}, which is not an ancestor of this commit; run `cargo xtask test --deep`"
    );
    Ok(())
}

/// Writes the page: the deep track passed on `commit`, the commit of the working tree. `rest` is the
/// run of the whole track, if this run had only the tests that failed in it.
pub fn note_pass(commit: &str, rest: Option<&Failed>) -> Result<()> {
    let date = command::output(Command::new("date").args(["--utc", "+%F"]))?;
    let rest = rest.map_or_else(String::new, |whole| {
        let names: Vec<String> = whole.names().map(|name| format!("- `{name}`\n")).collect();
        format!(
            "\nThe whole track ran on {}, where {} tests and checks passed. These tests failed there, and\n\
             passed on the commit above, which has the same product:\n\n{}",
            whole.commit,
            whole.passed,
            names.concat()
        )
    });
    let text = format!(
        "# The last pass of the deep track\n\n\
         `cargo xtask test --deep` writes this page. If the commit is no ancestor of the commit under test,\n\
         `cargo xtask test` fails.\n\n{COMMIT}{commit}\nDate: {}\n{rest}",
        date.trim()
    );
    fs::write(note(), text).with_context(|| format!("cannot write {NOTE}"))
}

/// Returns the present commit. Returns `None` and says so if the working tree differs from it.
pub fn commit() -> Result<Option<String>> {
    let root = crate::workspace();
    let changed = command::output(&mut git(&root, &["status", "--porcelain"]))?;
    if !changed.is_empty() {
        eprintln!(
            "{NOTE} does not note this run, because the working tree differs from the commit\n{changed}"
        );
        return Ok(None);
    }
    Ok(Some(command::output(&mut git(&root, &["rev-parse", "HEAD"]))?.trim().to_owned()))
}

fn note() -> PathBuf {
    crate::workspace().join(NOTE)
}

/// Returns a command of git in the checkout `root`.
pub fn git(root: &Path, arguments: &[&str]) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(root).args(arguments).stderr(Stdio::inherit());
    git
}
