//! `cargo xtask fuzz`: runs libFuzzer on all inputs that cross a trust boundary.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use anyhow::{Context as _, Result, bail};

use crate::{build, command, sanitize};

/// Options of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub struct Options {
    /// Targets to run; without any, all of libFuzzer's (tests/fuzz/src/lib.rs lists them)
    ///
    /// There is one more target, `calls`. The target `calls` makes random driver calls in two
    /// processes at once, with deepres and without, and compares the answers.
    #[arg(value_name = "TARGET")]
    pub targets: Vec<String>,
    /// Time to run each target, in seconds
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub seconds: u32,
    /// Seed of libFuzzer, which repeats a run with the same corpus; 0 takes another seed each time
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u32,
}

/// Compiler flags with which the program reports to libFuzzer the edges that an input took.
pub const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares";
/// The time after which the fuzzer takes an input for hanging, s.
const TIMEOUT_S: u32 = 10;
/// The memory of a target above which the input is a finding, MiB.
const MEMORY_MIB: u32 = 2048;
/// The longest input, bytes. Frames, meters and configurations are shorter. libFuzzer cuts images
/// to this length.
const MAX_INPUT_BYTES: u32 = 8192;

/// The target that runs without libFuzzer.
const CALLS: &str = "calls";

/// Runs the targets, several at once, and prints each result.
pub fn run(options: &Options) -> Result<()> {
    if options.targets.iter().any(|target| target == CALLS) {
        calls(options.seconds)?;
        if options.targets.len() == 1 {
            return Ok(());
        }
    }
    let folder = build::target().join("fuzz");
    let program = build_program()?;
    let mut targets = if options.targets.is_empty() { all()? } else { options.targets.clone() };
    targets.retain(|target| target != CALLS);
    let waiting = Mutex::new(VecDeque::from(targets));
    let failures = Mutex::new(Vec::new());
    let next = || waiting.lock().ok()?.pop_front();
    let work = || {
        while let Some(target) = next() {
            match fuzz(&program, &folder, &target, options) {
                Ok(report) => println!("{report}"),
                Err(error) => {
                    eprintln!("{error:#}");
                    if let Ok(mut failures) = failures.lock() {
                        failures.push(target);
                    }
                }
            }
        }
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    let failures = failures.into_inner().unwrap_or_default();
    if !failures.is_empty() {
        bail!("an input broke {}", failures.join(", "));
    }
    Ok(())
}

/// Runs random pairs of sequences of driver calls. Prints each pair before it runs.
fn calls(seconds: u32) -> Result<()> {
    let artefacts = build::artefacts()?;
    let mut cargo = build::cargo();
    cargo
        .args(["test", "--package", "deepres-e2e", "--test", "e2e", "--", "--ignored", "--nocapture"])
        .arg("fresh_pairs_are_answered_as_without_deepres")
        .env("DEEPRES_ARTEFACTS", artefacts.folder())
        .env("DEEPRES_CALLS_SECONDS", seconds.to_string());
    command::run(&mut cargo).context("put the pair that was printed last into tests/fuzz/seeds/calls")
}

/// Returns the names of all targets. The folders of seeds have the same names, and a test requires
/// a folder for each target.
fn all() -> Result<Vec<String>> {
    let folder = seeds();
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut names = entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

fn seeds() -> PathBuf {
    crate::workspace().join("tests/fuzz/seeds")
}

fn build_program() -> Result<PathBuf> {
    let mut cargo = sanitize::with_address_sanitizer()?;
    command::run(cargo.args(["build", "--package", "deepres-fuzz"]))?;
    Ok(build::target().join("debug/deepres-fuzz"))
}

fn fuzz(program: &Path, folder: &Path, target: &str, options: &Options) -> Result<String> {
    let corpus = folder.join("corpus").join(target);
    let findings = folder.join("findings").join(target);
    for folder in [&corpus, &findings] {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let mut command = Command::new(program);
    command
        .env("DEEPRES_FUZZ_TARGET", target)
        // Memory that a target keeps for the next input is no leak.
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .arg(&corpus)
        .arg(seeds().join(target))
        .args([
            format!("-max_total_time={}", options.seconds),
            format!("-seed={}", options.seed),
            format!("-timeout={TIMEOUT_S}"),
            format!("-rss_limit_mb={MEMORY_MIB}"),
            format!("-max_len={MAX_INPUT_BYTES}"),
            format!("-artifact_prefix={}/", findings.display()),
            "-print_final_stats=1".to_owned(),
        ])
        .stdin(Stdio::null());
    let shown = command::shown(&command);
    let output = command.output().with_context(|| format!("cannot start: {shown}"))?;
    let log = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{log}\n{target} failed ({}): {shown}\nthe input is in {}", output.status, findings.display());
    }
    summary(target, &log).with_context(|| format!("{log}\ncannot read the output of libFuzzer: {shown}"))
}

/// Returns a summary of libFuzzer's log in one line; `None` without a result.
fn summary(target: &str, log: &str) -> Option<String> {
    let states: Vec<(u64, &str)> = log
        .lines()
        .filter(|line| line.starts_with('#'))
        .filter_map(|line| Some((number_after(line, "cov: ")?, line)))
        .collect();
    let ((first, _), (last, state)) = (states.first()?, states.last()?);
    let inputs = log.lines().find_map(|line| number_after(line, "stat::number_of_executed_units:"))?;
    let kept = number_after(state, "corp: ")?;
    Some(format!("{target}: {inputs} inputs, edges {first} → {last}, {kept} inputs kept, nothing broke"))
}

fn number_after(line: &str, name: &str) -> Option<u64> {
    let rest = line[line.find(name)? + name.len()..].trim_start();
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_tells_inputs_and_growth() {
        let log = "INFO: seed\n#2\tINITED cov: 40 ft: 41 corp: 1/1b exec/s: 0 rss: 30Mb\n#512\tpulse  cov: 44 ft: 50 corp: 3/9b lim: 4\n#900\tDONE   cov: 45 ft: 52 corp: 4/12b lim: 8\n###### Recommended dictionary. ######\nstat::number_of_executed_units: 900\n";
        let expected = "frames: 900 inputs, edges 40 → 45, 4 inputs kept, nothing broke";
        assert_eq!(summary("frames", log).as_deref(), Some(expected));
        assert_eq!(summary("frames", "libFuzzer was killed"), None);
    }
}
