//! `cargo xtask test`: everything that has to hold, in one command.

use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use anyhow::{Context as _, Result, bail};

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

    /// Says what failed and how much, and gives the exit status.
    fn report(&self) -> ExitCode {
        eprintln!();
        for failure in &self.failures {
            eprintln!("{failure}");
        }
        println!("{} passed, {} failed", self.passed, self.failed);
        if self.failures.is_empty() && self.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn add(&mut self, shown: &str, status: ExitStatus, output: &str) {
        let (passed, failed) = output
            .lines()
            .filter_map(counts)
            .fold((0, 0), |(passed, failed), more| (passed + more.0, failed + more.1));
        self.passed += passed;
        self.failed += failed;
        if !status.success() {
            // A harness that was killed, or that never compiled, reports no failures of its own.
            self.failed += u64::from(failed == 0);
            self.failures.push(format!("failed ({status}): {shown}"));
        }
    }
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

fn heading(text: &str) {
    eprintln!("\n== {text}");
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

    let mut units = build::cargo();
    units.args(["test", "--workspace", "--exclude", END_TO_END]);
    tally.tests(filtered(&mut units, options))?;

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
        let short = fuzz::Options { targets: Vec::new(), seconds: FUZZ_SECONDS };
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
    let mut end_to_end = build::cargo();
    end_to_end
        .args(["test", "--package", END_TO_END])
        .env("DEEPRES_ARTEFACTS", artefacts.folder())
        .env("DEEPRES_VENV", venv.folder())
        .env("DEEPRES_VENV_CLIENTS", venv_clients.folder())
        .env("DEEPRES_VENV_PYCUDA", venv_pycuda.folder());
    tally.tests(filtered(&mut end_to_end, options))?;

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

/// How long each fuzz target runs here: enough to meet again what it once knew; finding more takes hours.
const FUZZ_SECONDS: u32 = 3;

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
    command::run(update.arg("update")).with_context(|| format!("the tests need {packages}"))?;
    let mut install = Command::new("apt-get");
    install.args(["install", "--yes", "--no-install-recommends"]).args(lacking);
    command::run(install.env("DEBIAN_FRONTEND", "noninteractive"))
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
    fn a_killed_harness_counts_as_a_failure() {
        let mut tally = Tally::default();
        let killed = ExitStatus::from_raw(9);
        tally.add("cargo test", killed, "test result: ok. 2 passed; 0 failed; 0 ignored\ntest x ... ok");
        assert_eq!((tally.passed, tally.failed, tally.failures.len()), (2, 1, 1));
        assert!(tally.failures[0].contains("signal: 9"), "{}", tally.failures[0]);
    }
}
