//! `cargo xtask test`: everything that has to hold, in one command.
//!
//! The quick track is what each change has to pass. The deep track repeats the tests on the product as users get it, and adds
//! sanitizers, longer fuzzing and frameworks from PyPI.

mod deep;
mod needs;
mod program;
mod tally;
mod unmeasured;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::OnceLock;
use std::thread;
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
    /// Run only tests whose name contains this, and no other checks.
    #[arg(long, value_name = "NAME", conflicts_with = "deep")]
    filter: Option<String>,
    /// Run the deep track: every test on the product as `cargo xtask dist` makes it, sanitizers, longer fuzzing, and PyTorch, TensorFlow
    /// and JAX from PyPI (some 20 GB in the cache). A pass is noted in docs/deep-check.md.
    #[arg(long)]
    deep: bool,
}

/// The program of the end-to-end tests.
const END_TO_END: &str = "deepres-e2e e2e";
/// So many end-to-end tests run beside each other: most of them wait most of the time.
const TOGETHER: &str = "--test-threads=8";
/// End-to-end tests in modules of this name measure, and have the machine to themselves.
const MEASURED: &str = "::measured::";

/// With the minutes and seconds since the first.
fn heading(text: &str) {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    let seconds = BEGAN.get_or_init(Instant::now).elapsed().as_secs();
    eprintln!("\n== {}:{:02} {text}", seconds / 60, seconds % 60);
}

/// Installs what the tests need, runs them, and prints `N passed, N failed` as its last line.
pub fn run(options: &Options) -> Result<ExitCode> {
    heading("what the tests need of the machine");
    needs::install()?;
    let mut tally = Tally::default();
    if options.deep {
        deep::run(&mut tally)?;
    } else {
        quick(&mut tally, options.filter.as_deref())?;
    }
    tally.judge(&unmeasured::last());
    unmeasured::note(&tally.unmeasured())?;
    if options.deep && tally.is_passed() {
        deep::note_pass()?;
    }
    Ok(tally.report())
}

/// The quick track, or those of its tests whose name contains the filter.
fn quick(tally: &mut Tally, filter: Option<&str>) -> Result<()> {
    prepare(false)?;
    let is_whole = filter.is_none();
    if is_whole {
        heading("cargo xtask ebpf");
        tally.check("cargo xtask ebpf", ebpf::build().map(drop));
        tally.check("the deep track", deep::check_last_pass());
        for manifest in ["Cargo.toml", "ebpf/Cargo.toml"] {
            let mut format = build::cargo();
            format.args(["fmt", "--all", "--check", "--manifest-path", manifest]);
            tally.check("style", command::run(&mut format));
        }
    }
    heading("cargo build --workspace --lib --bins --tests");
    let programs = program::build_all()?;
    let artefacts = build::check_artefacts()?;
    let end_to_end = EndToEnd::of(&programs, &artefacts, &[])?;
    let filter: Vec<&str> = filter.into_iter().collect();
    // Most of the tests that run together wait; what has to be built takes the processors meanwhile, and yields to them.
    let beside = thread::scope(|scope| {
        let beside = scope.spawn(|| if is_whole { beside() } else { Ok(Tally::default()) });
        end_to_end.together(tally, &filter)?;
        beside.join().expect("a check that fails gives an error")
    })?;
    tally.add(beside);
    for program in programs.iter().filter(|program| program.name != END_TO_END) {
        tally.tests(&program.name, |one| program.run(&selected(&filter, one), &[]))?;
    }
    end_to_end.measured(tally, &filter)
}

/// Makes what the tests run beside the product: a test that made it would be measured with it.
fn prepare(is_portable: bool) -> Result<()> {
    heading("Python environments, zig, a root file system for containers");
    venv::training()?;
    venv::clients()?;
    artefacts::zig()?;
    if rustix::process::geteuid().is_root() {
        containers::prepare(is_portable)?;
    }
    Ok(())
}

/// Arguments of a test program for one test alone, else for those that the filter leaves.
fn selected<'a>(filter: &[&'a str], one: Option<&'a str>) -> Vec<&'a str> {
    match one {
        Some(name) => vec!["--exact", name, "--include-ignored"],
        None => filter.to_vec(),
    }
}

/// Checks that mostly compile, at the lowest priority.
fn beside() -> Result<Tally> {
    // Children inherit the policy: whoever waits for a processor gets it before them.
    awake::set_scheduling(libc::SCHED_IDLE, 0);
    let mut tally = Tally::default();
    models(&mut tally, &[])?;
    heading("cargo clippy");
    let mut clippy = build::cargo();
    clippy.args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]);
    tally.check("style", command::run(&mut clippy));
    let check = compatibility::Options { large: false, check: true };
    tally.check("cargo xtask compatibility --check", compatibility::run(&check));
    heading("cargo xtask codegen --check");
    tally.check("cargo xtask codegen --check", codegen::run(&codegen::Options { check: true }));
    Ok(tally)
}

/// Runs the loom models, those of the deep track too if the arguments include them.
fn models(tally: &mut Tally, arguments: &[&str]) -> Result<()> {
    let mut models = build::cargo();
    models
        .args(["test", "--release", "--package", "deepres-abi", "--test", "loom", "--target-dir"])
        .arg(build::target().join("loom"))
        .env("RUSTFLAGS", "--cfg loom")
        // Optimising across crates takes longer than the models run.
        .env("CARGO_PROFILE_RELEASE_LTO", "off");
    cargo_tests(tally, &mut models, arguments)
}

/// Builds tests by this command of cargo and runs them with these arguments.
fn cargo_tests(tally: &mut Tally, cargo: &mut Command, arguments: &[&str]) -> Result<()> {
    let programs = program::build(cargo.arg("--no-run"))?;
    // Variables of the build are the tests' too, as if cargo ran them: those of a sanitizer among them.
    let environment: Vec<(&str, &Path)> =
        cargo.get_envs().filter_map(|(name, value)| Some((name.to_str()?, Path::new(value?)))).collect();
    for program in &programs {
        tally.tests(&format!("{} ({})", program.name, command::shown(cargo)), |one| {
            program.run(&selected(arguments, one), &environment)
        })?;
    }
    Ok(())
}

/// The end-to-end tests on a build of the product.
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

    /// Runs those that may share the machine.
    fn together(&self, tally: &mut Tally, filter: &[&str]) -> Result<()> {
        let all = [filter, &["--skip", MEASURED, TOGETHER], self.arguments].concat();
        self.run(tally, "end-to-end tests, together", &all)
    }

    /// Runs those that measure.
    fn measured(&self, tally: &mut Tally, filter: &[&str]) -> Result<()> {
        // Several filters of a test program select what any one of them does.
        let listed = self.program.list(MEASURED)?;
        let names = listed.iter().map(String::as_str);
        let names: Vec<&str> = names.filter(|name| filter.iter().all(|part| name.contains(part))).collect();
        if names.is_empty() {
            return Ok(());
        }
        let all = [&["--exact", "--test-threads=1"], &names[..], self.arguments].concat();
        self.run(tally, "end-to-end tests that measure", &all)
    }

    fn run(&self, tally: &mut Tally, name: &str, all: &[&str]) -> Result<()> {
        tally.tests(name, |one| match one {
            None => self.program.run(all, &self.environment),
            Some(_) => self.program.run(&selected(&[], one), &self.environment),
        })
    }
}
