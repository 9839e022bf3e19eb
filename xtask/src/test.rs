//! `cargo xtask test`: everything that has to hold, in one command.

use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use deepres_e2e::stolen::{self, Taken};

use crate::build::Artefacts;
use crate::sanitize::Sanitizer;
use crate::{build, codegen, command, compatibility, dist, ebpf, fuzz, large, venv};

/// Options of `cargo xtask test`.
#[derive(clap::Args)]
pub struct Options {
    /// Run only tests whose name contains this, and no other checks.
    #[arg(long, value_name = "NAME")]
    filter: Option<String>,
    /// Run the tests with these frameworks from PyPI, and nothing else; without a name, with all. Each downloads some GB and keeps 5 to 7 GB in
    /// target/venv-NAME.
    #[arg(long, value_name = "FRAMEWORK", conflicts_with = "filter", num_args = 0.., value_parser = large::FRAMEWORKS)]
    large: Option<Vec<String>>,
}

/// What has been run so far.
#[derive(Default)]
struct Tally {
    passed: u64,
    failed: u64,
    /// Tests that failed only while the hypervisor took the CPUs away, each try again.
    not_measured: Vec<String>,
    /// What failed, as a command that repeats it.
    failures: Vec<String>,
}

impl Tally {
    /// A check that is not made of tests counts as one.
    fn check(&mut self, what: &str, outcome: Result<()>) {
        match outcome {
            Ok(()) => self.passed += 1,
            Err(error) => {
                self.failed += 1;
                self.failures.push(format!("{what}: {error:#}"));
            }
        }
    }

    /// Runs `cargo test …` and adds up what its harnesses report.
    fn tests(&mut self, cargo: &mut Command) -> Result<()> {
        heading(&command::shown(cargo));
        let (status, output) = command::teed(cargo)?;
        self.add(&command::shown(cargo), status, &output);
        Ok(())
    }

    /// The same for tests that measure: one that fails while the hypervisor takes CPU time ([`DISTURBED_PERCENT`], [`DISTURBED_MS`]) is tried again, alone, when it
    /// no longer does. If it did so try after try, that is no failure, and is named.
    fn measurements(&mut self, command: impl Fn() -> Command, await_quiet: impl Fn()) -> Result<()> {
        let shown = command::shown(&command());
        heading(&shown);
        let (status, output) = command::teed(&mut command())?;
        let mut failures = Failure::all(&output);
        let (passed, failed) = totals(&output);
        if status.success() || failures.len() as u64 != failed {
            self.add(&shown, status, &output);
            return Ok(());
        }
        self.passed += passed;
        let began = Instant::now();
        for _ in 0..TRIES {
            for failure in failures.iter_mut().filter(|failure| failure.is_disturbed()) {
                if began.elapsed() > TRIED_FOR {
                    break;
                }
                heading(&format!("tried again, alone: {}", failure.name));
                await_quiet();
                let mut cargo = command();
                cargo.args(["--", "--exact", &failure.name]);
                let (status, output) = command::teed(&mut cargo)?;
                let again = Failure::all(&output).into_iter().find(|again| again.name == failure.name);
                failure.has_passed = again.is_none() && status.success();
                if !again.is_some_and(|again| again.is_disturbed()) {
                    failure.taken = None;
                }
            }
            let before = failures.len();
            failures.retain(|failure| !failure.has_passed);
            self.passed += (before - failures.len()) as u64;
        }
        let (unmeasurable, failures): (Vec<_>, Vec<_>) =
            failures.into_iter().partition(Failure::is_disturbed);
        self.not_measured.extend(unmeasurable.into_iter().map(|failure| failure.name));
        self.failed += failures.len() as u64;
        if !failures.is_empty() {
            let names: Vec<String> = failures.into_iter().map(|failure| failure.name).collect();
            self.failures.push(format!("failed: {shown} -- --exact {}", names.join(" ")));
        }
        Ok(())
    }

    /// Says what failed and how much, and gives the exit status.
    fn report(&self) -> ExitCode {
        eprintln!();
        for name in &self.not_measured {
            eprintln!("not measured: {name}: the hypervisor took the CPUs away whenever it ran (see above)");
        }
        for failure in &self.failures {
            eprintln!("{failure}");
        }
        let not_measured = match self.not_measured.len() {
            0 => String::new(),
            number => format!(", {number} not measured"),
        };
        println!("{} passed, {} failed{not_measured}", self.passed, self.failed);
        if self.failures.is_empty() && self.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn add(&mut self, shown: &str, status: ExitStatus, output: &str) {
        let (passed, failed) = totals(output);
        self.passed += passed;
        self.failed += failed;
        if !status.success() {
            // A harness that was killed, or that never compiled, reports no failures of its own.
            self.failed += u64::from(failed == 0);
            self.failures.push(format!("failed ({status}): {shown}"));
        }
    }
}

/// A test that failed.
#[derive(Debug, PartialEq)]
struct Failure {
    name: String,
    /// What the hypervisor took meanwhile, if the test said so; none, too, once it failed in peace.
    taken: Option<Taken>,
    /// Later, when it was tried again.
    has_passed: bool,
}

impl Failure {
    /// Whether it says nothing of what was tested.
    fn is_disturbed(&self) -> bool {
        self.taken.is_some_and(|taken| taken.percent >= DISTURBED_PERCENT || taken.at_once_ms >= DISTURBED_MS)
    }

    /// All whose output a harness shows, `---- NAME stdout ----` and what it said.
    fn all(output: &str) -> Vec<Self> {
        let name = |line: &str| Some(line.strip_prefix("---- ")?.strip_suffix(" stdout ----")?.to_owned());
        let mut all: Vec<(String, String)> = Vec::new();
        for line in output.lines() {
            if let Some(name) = name(line) {
                all.push((name, String::new()));
            } else if let Some((_, said)) = all.last_mut() {
                *said += line;
                said.push('\n');
            }
        }
        all.into_iter()
            .map(|(name, said)| Self { name, taken: Taken::said(&said), has_passed: false })
            .collect()
    }
}

/// What all harnesses of an output report: passed and failed.
fn totals(output: &str) -> (u64, u64) {
    output
        .lines()
        .filter_map(counts)
        .fold((0, 0), |(passed, failed), more| (passed + more.0, failed + more.1))
}

/// `test result: FAILED. 3 passed; 1 failed; 0 ignored; …` → (3, 1).
fn counts(line: &str) -> Option<(u64, u64)> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let count = |name: &str| {
        let field = counts.split(';').find(|field| field.trim_end().ends_with(name))?;
        field.trim().strip_suffix(name)?.trim().parse().ok()
    };
    Some((count("passed")?, count("failed")?))
}

/// With the minutes and seconds since the first.
fn heading(text: &str) {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    let seconds = BEGAN.get_or_init(Instant::now).elapsed().as_secs();
    eprintln!("\n== {}:{:02} {text}", seconds / 60, seconds % 60);
}

/// Installs what the tests need, runs them, and prints `N passed, N failed` as its last line.
pub fn run(options: &Options) -> Result<ExitCode> {
    install_needs()?;
    let mut tally = Tally::default();
    if let Some(frameworks) = &options.large {
        let artefacts = build::artefacts()?;
        let all = large::FRAMEWORKS.map(str::to_owned);
        for framework in if frameworks.is_empty() { &all[..] } else { frameworks } {
            tally.tests(&mut large::tests(framework, &artefacts)?)?;
        }
        return Ok(tally.report());
    }
    let (venv, venv_clients) = (venv::prepare()?, venv::prepare_clients()?);

    if options.filter.is_none() {
        heading("cargo xtask ebpf");
        tally.check("cargo xtask ebpf", ebpf::build().map(drop));
        for check in [
            &["fmt", "--all", "--check"][..],
            &["fmt", "--manifest-path", "ebpf/Cargo.toml", "--check"],
            &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
        ] {
            let mut cargo = build::cargo();
            cargo.args(check);
            heading(&command::shown(&cargo));
            tally.check("style", command::run(&mut cargo));
        }
        let check = compatibility::Options { large: false, check: true };
        heading("cargo xtask compatibility --check");
        tally.check("cargo xtask compatibility --check", compatibility::run(&check));
        heading("cargo xtask codegen --check");
        tally.check("cargo xtask codegen --check", codegen::run(&codegen::Options { check: true }));
    }

    let units = || {
        let mut units = build::cargo();
        units.args(["test", "--workspace", "--exclude", END_TO_END]);
        filtered(&mut units, options);
        units
    };
    tally.measurements(units, await_quiet)?;

    let mut models = build::cargo();
    models
        .args(["test", "--release", "--package", "deepres-abi", "--test", "loom", "--target-dir"])
        .arg(build::target().join("loom"))
        .env("RUSTFLAGS", "--cfg loom")
        // Optimising across crates takes longer than the models run.
        .env("CARGO_PROFILE_RELEASE_LTO", "off");
    tally.tests(filtered(&mut models, options))?;

    if options.filter.is_none() {
        heading("cargo xtask fuzz");
        let short = fuzz::Options { targets: Vec::new(), seconds: FUZZ_SECONDS, seed: FUZZ_SEED };
        tally.check("cargo xtask fuzz", fuzz::run(&short));
        tally.tests(&mut Sanitizer::Address.tests(true)?)?;
        if ebpf::has_own_source() {
            tally.tests(&mut Sanitizer::Thread.tests(true)?)?;
        } else {
            eprintln!("no ThreadSanitizer: the toolchain has no source of the standard library");
        }
    }

    let artefacts = parts(&mut tally, options)?;
    let venv_pycuda = venv::prepare_pycuda(&venv_clients, &artefacts.simgpu())?;
    let end_to_end = || {
        let mut end_to_end = build::cargo();
        end_to_end
            .args(["test", "--package", END_TO_END])
            .env("DEEPRES_ARTEFACTS", artefacts.folder())
            .env("DEEPRES_VENV", venv.folder())
            .env("DEEPRES_VENV_CLIENTS", venv_clients.folder())
            .env("DEEPRES_VENV_PYCUDA", venv_pycuda.folder());
        filtered(&mut end_to_end, options);
        end_to_end
    };
    tally.measurements(end_to_end, await_quiet)?;

    Ok(tally.report())
}

/// What the end-to-end tests run: the very files that users get, or with a filter what builds faster.
fn parts(tally: &mut Tally, options: &Options) -> Result<Artefacts> {
    if options.filter.is_none() {
        heading("cargo xtask dist");
        match dist::run() {
            Ok(artefacts) => {
                tally.check("cargo xtask dist", Ok(()));
                return Ok(artefacts);
            }
            Err(error) => tally.check("cargo xtask dist", Err(error)),
        }
    }
    build::artefacts()
}

/// If it never is quiet, the tests tell.
fn await_quiet() {
    stolen::await_quiet(DISTURBED_PERCENT, QUIET_WITHIN);
}

/// How long each fuzz target runs here: enough to meet again what it once knew; finding more takes hours.
const FUZZ_SECONDS: u32 = 3;
/// The same draws each time: what a change breaks is found where it is made.
const FUZZ_SEED: u32 = 1;

/// A failure while more of all CPUs' time was taken says nothing, and is tried again.
const DISTURBED_PERCENT: f64 = 1.0;
/// So did one while a CPU stood still for so long at once, ms.
const DISTURBED_MS: f64 = 50.0;
/// How often each.
const TRIES: usize = 3;
/// How long all together.
const TRIED_FOR: Duration = Duration::from_secs(600);
/// How long the CPUs are waited for before a test is tried again.
const QUIET_WITHIN: Duration = Duration::from_secs(60);

/// The package whose tests need built artefacts and Python clients.
const END_TO_END: &str = "deepres-e2e";

/// With this set, a test that lacks the kernel programs or the rights for them fails instead of saying so.
const REQUIRE_PROBES: &str = "DEEPRES_REQUIRE_PROBES";

fn filtered<'c>(cargo: &'c mut Command, options: &Options) -> &'c mut Command {
    if options.filter.is_none() {
        cargo.env(REQUIRE_PROBES, "1");
    }
    cargo.arg("--no-fail-fast").args(&options.filter)
}

/// What a machine with a Rust toolchain may still lack. A C compiler is not on the list: rustc links with it.
fn install_needs() -> Result<()> {
    let mut lacking = Vec::new();
    if !venv::can_create() {
        lacking.extend(["python3", "python3-venv"]);
    }
    lacking.extend(TOOLS.into_iter().filter(|tool| !is_there(tool)));
    let libraries = LIBRARIES.into_iter().filter(|(_, file)| !Path::new(LIBRARY_FOLDER).join(file).exists());
    lacking.extend(libraries.map(|(package, _)| package));
    if lacking.is_empty() {
        return Ok(());
    }
    let packages = lacking.join(" ");
    if !rustix::process::geteuid().is_root() {
        bail!("the tests need more of this machine: apt-get install {packages}");
    }
    let mut update = Command::new("apt-get");
    command::prepare(update.arg("update")).with_context(|| format!("the tests need {packages}"))?;
    let mut install = Command::new("apt-get");
    install.args(["install", "--yes", "--no-install-recommends"]).args(lacking);
    command::prepare(install.env("DEBIAN_FRONTEND", "noninteractive"))
}

/// Commands that the tests call, each in the package of its name: the compiler that nvcc hands its host code to, and what makes
/// and runs containers.
const TOOLS: [&str; 4] = ["g++", "podman", "runc", "debootstrap"];

/// Where Debian puts libraries.
const LIBRARY_FOLDER: &str = "/usr/lib/x86_64-linux-gnu";
/// Libraries by their packages: those that people preload, which the tests preload beside ours, and another C library.
const LIBRARIES: [(&str, &str); 5] = [
    ("libasan8", "libasan.so.8"),
    ("libeatmydata1", "libeatmydata.so"),
    ("libfaketime", "faketime/libfaketimeMT.so.1"),
    ("libjemalloc2", "libjemalloc.so.2"),
    ("musl", "/lib/ld-musl-x86_64.so.1"),
];

fn is_there(tool: &str) -> bool {
    let mut command = Command::new(tool);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn counts_come_from_result_lines_alone() {
        let line = "test result: FAILED. 3 passed; 12 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s";
        assert_eq!(counts(line), Some((3, 12)));
        assert_eq!(counts("test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured"), Some((0, 0)));
        assert_eq!(counts("test driver::tests::result ... ok"), None);
        assert_eq!(counts("running 3 tests"), None);
    }

    #[test]
    fn failures_are_found_with_what_was_taken_meanwhile() {
        let output = "\
            test a ... FAILED\ntest b ... FAILED\n\nfailures:\n\n---- a stdout ----\nhad 3 %\n\
            taken by the hypervisor while the test ran: 23.4 % of all CPUs' time, ms at once at most: 12\nmore\n\n\
            ---- b stdout ----\nhad 4 %\n\nfailures:\n    a\n    b\n";
        let failure = |name: &str, taken| Failure { name: name.to_owned(), taken, has_passed: false };
        let taken = |percent, at_once_ms| failure("a", Some(Taken { percent, at_once_ms }));
        assert_eq!(Failure::all(output), [taken(23.4, 12.0), failure("b", None)]);
        assert!(taken(23.4, 12.0).is_disturbed() && taken(0.4, 120.0).is_disturbed());
        assert!(!taken(0.4, 12.0).is_disturbed() && !failure("b", None).is_disturbed());
    }

    /// Runs harnesses that fail as told, with what was taken meanwhile: first one of ten tests, then each of one.
    fn measured(tries: &[&[(&str, f64)]]) -> Tally {
        let folder = tempfile::tempdir().unwrap();
        for (number, failing) in tries.iter().enumerate() {
            let mut said = String::new();
            for (name, percent) in *failing {
                said += &format!(
                    "---- {name} stdout ----\ntaken by the hypervisor while the test ran: {percent} % of all CPUs' time, ms at once at most: 7\n"
                );
            }
            let all = if number == 0 { 10 } else { 1 };
            said += &format!(
                "test result: X. {} passed; {} failed; 0 ignored\n",
                all - failing.len(),
                failing.len()
            );
            std::fs::write(folder.path().join(number.to_string()), said).unwrap();
        }
        let script = "n=$(ls done* 2> /dev/null | wc -l); touch done$n; cat $n; ! grep -q stdout $n";
        let mut tally = Tally::default();
        let command = || {
            let mut command = Command::new("sh");
            command.args(["-c", script]).current_dir(folder.path());
            command
        };
        tally.measurements(command, || ()).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2 * tries.len(), "so many tries");
        tally
    }

    #[test]
    fn what_fails_while_the_cpus_are_taken_is_tried_again() {
        let tally = measured(&[&[]]);
        assert_eq!((tally.passed, tally.failed, tally.not_measured.len()), (10, 0, 0));
        let tally = measured(&[&[("a", 23.0)], &[]]);
        assert_eq!((tally.passed, tally.failed, tally.not_measured.len()), (10, 0, 0));
        assert!(tally.failures.is_empty());
        let tally = measured(&[
            &[("a", 23.0), ("b", 1.5)],
            &[("a", 7.0)],
            &[("b", 0.9)],
            &[("a", 23.0)],
            &[("a", 9.0)],
        ]);
        assert_eq!((tally.passed, tally.failed), (8, 1), "b failed while little was taken");
        assert_eq!(tally.not_measured, ["a"]);
        assert!(tally.failures[0].ends_with("--exact b"), "{}", tally.failures[0]);
        // What fails undisturbed, failed.
        let tally = measured(&[&[("a", 0.5)]]);
        assert_eq!((tally.passed, tally.failed, tally.not_measured.len()), (9, 1, 0));
        let tally = measured(&[&[("a", 23.0)], &[("a", 0.5)]]);
        assert_eq!((tally.passed, tally.failed, tally.not_measured.len()), (9, 1, 0));
    }

    #[test]
    fn a_killed_harness_counts_as_a_failure() {
        let mut tally = Tally::default();
        let killed = ExitStatus::from_raw(9);
        tally.add("cargo test", killed, "test result: ok. 2 passed; 0 failed; 0 ignored\ntest x ... ok");
        assert_eq!((tally.passed, tally.failed, tally.failures.len()), (2, 1, 1));
        assert!(tally.failures[0].contains("signal: 9"), "{}", tally.failures[0]);
    }
}
