//! `cargo xtask test`: runs all checks with one command.
//!
//! Each change must pass the quick track. The deep track repeats the tests on the product as users
//! get it. The deep track also runs sanitizers, longer fuzzing and frameworks from PyPI.

mod deep;
mod needs;
pub mod program;
mod rest;
mod tally;
mod unmeasured;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::OnceLock;
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Instant;

use anyhow::{Context as _, Result};
use deepres_e2e::{artefacts, awake, containers, venv};

use crate::build::{self, Artefacts};
use crate::{codegen, command, compatibility, ebpf};
use program::Program;
use tally::Tally;

/// Options of `cargo xtask test`.
#[derive(clap::Args)]
pub struct Options {
    /// Run only tests whose name contains NAME, and no other checks.
    #[arg(long, value_name = "NAME", conflicts_with = "deep")]
    filter: Option<String>,
    /// Run the deep track, and note a pass in docs/deep-check.md. The deep track runs every test on
    /// the product as `cargo xtask dist` makes it, and adds sanitizers and fuzzing. The deep track
    /// also adds PyTorch, TensorFlow and JAX from PyPI (some 20 GB in the cache).
    #[arg(long)]
    deep: bool,
    /// Run only the tests that failed in the last run of the deep track on this machine. If they pass
    /// and the product has not changed since, the deep track has passed.
    #[arg(long, requires = "deep")]
    rest: bool,
}

/// The program of the end-to-end tests.
const END_TO_END: &str = "deepres-e2e e2e";
/// The number of end-to-end tests that run at once. A test waits for much of its time, so this
/// number of tests keeps two processors busy.
const TOGETHER: &str = "--test-threads=8";
/// Packages whose tests neither wait nor depend on time.
const TIMELESS: [&str; 2] = ["deepres-eval", "deepres-policy"];
/// The module name of end-to-end tests that measure. Each of these tests runs alone on the machine.
const MEASURED: &str = "::measured::";

/// The end of the names of runs of such tests.
const MEASURES: &str = ", tests that measure";

/// Prints a heading, with the minutes and seconds since the first heading.
fn heading(text: &str) {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    let seconds = BEGAN.get_or_init(Instant::now).elapsed().as_secs();
    eprintln!("\n== {}:{:02} {text}", seconds / 60, seconds % 60);
}

/// Installs the needs of the tests, runs the tests, and prints `N passed, N failed` as the last
/// line.
pub fn run(options: &Options) -> Result<ExitCode> {
    heading("packages that the tests need");
    needs::install(options.deep)?;
    let mut tally = Tally::default();
    let mut finished = None;
    if options.rest {
        finished = Some(deep::run_rest(&mut tally)?);
    } else if options.deep {
        deep::run(&mut tally)?;
    } else {
        quick(&mut tally, options.filter.as_deref())?;
    }
    tally.judge(&unmeasured::last());
    unmeasured::note(&tally.unmeasured())?;
    if options.deep {
        let commit = deep::commit()?;
        if tally.is_passed()
            && let Some(commit) = &commit
        {
            deep::note_pass(commit, finished.as_ref())?;
        }
        if finished.is_none() {
            rest::record(&tally, commit)?;
        }
    }
    Ok(tally.report())
}

/// Runs the quick track. With a filter, runs only tests whose names contain the filter.
fn quick(tally: &mut Tally, filter: Option<&str>) -> Result<()> {
    let is_whole = filter.is_none();
    let filter: Vec<&str> = filter.into_iter().collect();
    thread::scope(|scope| {
        let mut beside = Vec::new();
        if is_whole {
            // The models need no other build. So they use the processors that a build leaves idle.
            beside.push(start_beside(scope, |tally| models(tally, &[]))?);
        }
        prepare(false)?;
        if is_whole {
            heading("cargo xtask ebpf");
            tally.check("cargo xtask ebpf", ebpf::build().map(drop));
            tally.check("the deep track", deep::check_last_pass());
        }
        heading("cargo build --workspace --lib --bins --tests");
        let programs = program::build_all()?;
        let artefacts = build::check_artefacts()?;
        let end_to_end = EndToEnd::of(&programs, &artefacts, &[])?;
        let others = || programs.iter().filter(|program| program.name != END_TO_END);
        if is_whole {
            beside.push(start_beside(scope, style)?);
        }
        let (timeless, timed): (Vec<Program>, Vec<Program>) = others().cloned().partition(is_timeless);
        let filter = &filter[..];
        beside.push(start_beside(scope, move |tally| {
            timeless.iter().try_for_each(|program| together(tally, program, filter, &[]))
        })?);
        end_to_end.together(tally, filter)?;
        for program in &timed {
            together(tally, program, filter, &[])?;
        }
        for checks in beside {
            tally.add(checks.join().expect("a check that fails gives an error")?);
        }
        for program in others() {
            measured(tally, program, filter, &[], &[])?;
        }
        end_to_end.measured(tally, filter)
    })
}

/// Returns whether the program's tests neither wait nor depend on time.
fn is_timeless(program: &Program) -> bool {
    TIMELESS.contains(&program.package())
}

/// Starts checks beside builds and beside tests that may share the machine, at the lowest priority.
/// The tests that measure run after all such checks.
fn start_beside<'scope>(
    scope: &'scope Scope<'scope, '_>,
    checks: impl FnOnce(&mut Tally) -> Result<()> + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, Result<Tally>>> {
    let run = || {
        // Child processes inherit the scheduling policy. So a test that needs a processor gets the
        // processor before these checks.
        awake::set_scheduling(libc::SCHED_IDLE, 0);
        let mut tally = Tally::default();
        checks(&mut tally)?;
        Ok(tally)
    };
    thread::Builder::new().spawn_scoped(scope, run).context("cannot start a thread")
}

/// Runs the tests of a program that may share the machine.
fn together(tally: &mut Tally, program: &Program, filter: &[&str], arguments: &[&str]) -> Result<()> {
    let together = [filter, &["--skip", MEASURED], arguments].concat();
    tally.tests(&program.name, |one| program.run(&selected(&together, one), &[]))
}

/// Runs the tests of a program that measure, one after the other.
fn measured(
    tally: &mut Tally,
    program: &Program,
    filter: &[&str],
    arguments: &[&str],
    environment: &[(&str, &Path)],
) -> Result<()> {
    // With several filters, a test program selects the tests that match any filter. So this code
    // selects the tests that match all filters.
    let listed = program.list(MEASURED)?;
    let names = listed.iter().map(String::as_str);
    let names: Vec<&str> = names.filter(|name| filter.iter().all(|part| name.contains(part))).collect();
    if names.is_empty() {
        return Ok(());
    }
    let all = [&["--exact", "--test-threads=1"], &names[..], arguments].concat();
    tally.tests(&format!("{}{MEASURES}", program.name), |one| program.run(&selected(&all, one), environment))
}

/// Makes everything that the tests need besides the product. If a test made these things during its
/// run, the test would measure this work too.
fn prepare(is_portable: bool) -> Result<()> {
    heading("Python environments, zig, a root file system for containers");
    venv::training()?;
    venv::clients()?;
    venv::torch_alone()?;
    artefacts::zig()?;
    if rustix::process::geteuid().is_root() {
        containers::prepare(is_portable)?;
    }
    Ok(())
}

/// Returns the arguments of a test program. The arguments select the test `one` alone, or the tests
/// that the filter selects.
fn selected<'a>(filter: &[&'a str], one: Option<&'a str>) -> Vec<&'a str> {
    match one {
        Some(name) => vec!["--exact", name, "--include-ignored"],
        None => filter.to_vec(),
    }
}

/// Checks the style, and the files that xtask writes.
fn style(tally: &mut Tally) -> Result<()> {
    for manifest in ["Cargo.toml", "ebpf/Cargo.toml"] {
        let mut format = build::cargo();
        format.args(["fmt", "--all", "--check", "--manifest-path", manifest]);
        tally.check("style", command::run(&mut format));
    }
    heading("cargo clippy");
    let mut clippy = build::cargo();
    clippy.args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]);
    tally.check("style", command::run(&mut clippy));
    let check = compatibility::Options { large: false, check: true };
    tally.check("cargo xtask compatibility --check", compatibility::run(&check));
    heading("cargo xtask codegen --check");
    tally.check("cargo xtask codegen --check", codegen::run(&codegen::Options { check: true }));
    Ok(())
}

/// Runs the loom models. The arguments can include the models of the deep track.
fn models(tally: &mut Tally, arguments: &[&str]) -> Result<()> {
    let mut models = build::cargo();
    models
        .args(["test", "--profile", "loom", "--package", "deepres-abi", "--test", "loom", "--target-dir"])
        .arg(build::target().join("loom"))
        .env("RUSTFLAGS", "--cfg loom");
    cargo_tests(tally, &mut models, arguments)
}

/// Builds tests with the command `cargo`, and runs them with these arguments.
fn cargo_tests(tally: &mut Tally, cargo: &mut Command, arguments: &[&str]) -> Result<()> {
    let programs = program::build(cargo.arg("--no-run"))?;
    // The tests get the variables of the build, for example a sanitizer's, as with cargo.
    let environment: Vec<(&str, &Path)> =
        cargo.get_envs().filter_map(|(name, value)| Some((name.to_str()?, Path::new(value?)))).collect();
    let together = [arguments, &["--skip", MEASURED]].concat();
    for program in &programs {
        tally.tests(&format!("{} ({})", program.name, command::shown(cargo)), |one| {
            program.run(&selected(&together, one), &environment)
        })?;
        measured(tally, program, &[], arguments, &environment)?;
    }
    Ok(())
}

/// The end-to-end tests, on one build of the product.
struct EndToEnd<'a> {
    program: &'a Program,
    environment: Vec<(&'a str, &'a Path)>,
    /// Further arguments of each run.
    arguments: &'a [&'a str],
}

impl<'a> EndToEnd<'a> {
    fn of(programs: &'a [Program], artefacts: &'a Artefacts, arguments: &'a [&'a str]) -> Result<Self> {
        let program = programs.iter().find(|program| program.name == END_TO_END);
        Ok(Self {
            program: program.with_context(|| format!("cargo built no {END_TO_END}"))?,
            environment: vec![("DEEPRES_ARTEFACTS", artefacts.folder())],
            arguments,
        })
    }

    /// Runs the tests that may share the machine.
    fn together(&self, tally: &mut Tally, filter: &[&str]) -> Result<()> {
        let all = [filter, &["--skip", MEASURED, TOGETHER], self.arguments].concat();
        let together: [(&str, &Path); 1] = [("DEEPRES_TESTS_TOGETHER", "1".as_ref())];
        let environment = [&self.environment[..], &together].concat();
        tally.tests(&self.program.name, |one| match one {
            None => self.program.run(&all, &environment),
            Some(_) => self.program.run(&selected(&[], one), &self.environment),
        })
    }

    /// Runs the tests that measure.
    fn measured(&self, tally: &mut Tally, filter: &[&str]) -> Result<()> {
        measured(tally, self.program, filter, self.arguments, &self.environment)
    }
}
