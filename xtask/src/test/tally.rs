//! Counts passes and failures over all test programs and checks of a run.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use deepres_e2e::skip;
use deepres_e2e::stolen::{self, Taken};

use super::heading;
use super::program::Outcome;
use super::unmeasured::Unmeasured;

/// The part of all CPUs' time, in percent, from which on a failure means nothing, because the
/// hypervisor takes this time. The run then tries the test again.
const DISTURBED_PERCENT: f64 = 1.0;
/// The length of a CPU's stop, in ms, from which on a failure means nothing.
const DISTURBED_MS: f64 = 50.0;
/// The number of times that the tally tries each test again.
const TRIES: usize = 3;
/// The time within which the tally tries tests again, for all tests together.
const TRIED_FOR: Duration = Duration::from_secs(600);
/// The longest wait for quiet CPUs before the tally tries a test again.
const QUIET_WITHIN: Duration = Duration::from_secs(60);
/// The most tests that one run may leave unmeasured.
const MOST_NOT_MEASURED: usize = 3;

/// The results so far.
#[derive(Default)]
pub struct Tally {
    passed: u64,
    failed: u64,
    /// Tests that the hypervisor disturbed in each try.
    not_measured: Vec<String>,
    /// The reasons for which test programs skipped tests.
    skips: BTreeSet<String>,
    /// The failures, with the test program or check that failed.
    failures: Vec<String>,
    /// The failed tests of each run of a test program, as far as the program named them.
    failed_tests: Vec<(String, Vec<String>)>,
}

impl Tally {
    /// Counts a check that is not a test program as one test.
    pub fn check(&mut self, what: &str, outcome: Result<()>) {
        match outcome {
            Ok(()) => self.passed += 1,
            Err(error) => {
                self.failed += 1;
                self.failures.push(format!("{what}: {error:#}"));
            }
        }
    }

    /// Adds the results of other checks.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.not_measured.extend(other.not_measured);
        self.skips.extend(other.skips);
        self.failures.extend(other.failures);
        self.failed_tests.extend(other.failed_tests);
    }

    /// Runs the tests of a program and adds up the results.
    ///
    /// `run` runs all tests, or only the named test. If a test fails while the hypervisor takes CPU
    /// time ([`DISTURBED_PERCENT`], [`DISTURBED_MS`]), the method tries the test again. The test
    /// then runs alone, when the CPUs are quiet. If the hypervisor disturbs each try, the method
    /// lists the test as not measured.
    pub fn tests(&mut self, name: &str, run: impl Fn(Option<&str>) -> Result<Outcome>) -> Result<()> {
        self.tests_when_quiet(name, run, || {
            stolen::await_quiet(DISTURBED_PERCENT, QUIET_WITHIN);
        })
    }

    fn tests_when_quiet(
        &mut self,
        name: &str,
        run: impl Fn(Option<&str>) -> Result<Outcome>,
        await_quiet: impl Fn(),
    ) -> Result<()> {
        heading(name);
        let outcome = run(None)?;
        let mut failures = Failure::all(&outcome.output);
        let (passed, failed) = totals(&outcome.output);
        self.passed += passed;
        self.skips.extend(outcome.skips);
        // A program that was killed gets no second try. Nor does a program that does not show each
        // failure that it counts.
        let is_shown = failed > 0 && failures.len() as u64 == failed;
        if outcome.status.success() || !is_shown {
            self.failed += failed;
            if !outcome.status.success() {
                self.failed += u64::from(failed == 0);
                self.failures.push(format!("failed ({}): {name}", outcome.status));
            }
            return Ok(());
        }
        let began = Instant::now();
        for _ in 0..TRIES {
            for failure in failures.iter_mut().filter(|failure| failure.is_disturbed()) {
                if began.elapsed() > TRIED_FOR {
                    break;
                }
                heading(&format!("tried again, alone: {}", failure.name));
                await_quiet();
                let outcome = run(Some(&failure.name))?;
                let mut again = Failure::all(&outcome.output).into_iter();
                let again = again.find(|again| again.name == failure.name);
                failure.has_passed = again.is_none() && outcome.status.success();
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
            self.failures.push(format!("failed: {name}: {}", names.join(" ")));
            self.failed_tests.push((name.to_owned(), names));
        }
        Ok(())
    }

    /// Returns whether nothing failed.
    pub fn is_passed(&self) -> bool {
        self.failures.is_empty() && self.failed == 0
    }

    /// Returns the number of tests and checks that passed.
    pub fn passed(&self) -> u64 {
        self.passed
    }

    /// Returns the failed tests of each run of a test program. Returns `None` if nothing failed, or
    /// if anything but named tests failed.
    pub fn failed_tests(&self) -> Option<&[(String, Vec<String>)]> {
        let has_only_tests = self.failed_tests.len() == self.failures.len();
        (has_only_tests && !self.is_passed()).then_some(&self.failed_tests)
    }

    /// Judges the tests that the run skipped or did not measure. The method adds three kinds of
    /// failures: too many unmeasured tests, a test not measured twice in a row, and an unexpected
    /// reason to skip.
    pub fn judge(&mut self, before: &Unmeasured) {
        if self.not_measured.len() > MOST_NOT_MEASURED {
            let number = self.not_measured.len();
            self.check(
                "not measured",
                Err(anyhow::anyhow!(
                    "{number} tests, more than {MOST_NOT_MEASURED}; run again on a quiet machine"
                )),
            );
        }
        let again: Vec<String> =
            self.not_measured.iter().filter(|name| before.contains(*name)).cloned().collect();
        for name in again {
            self.check(&name, Err(anyhow::anyhow!("not measured, and not measured the last time either")));
        }
        let unexpected: Vec<String> =
            self.skips.iter().filter(|why| !skip::ALLOWED.contains(&why.as_str())).cloned().collect();
        for why in unexpected {
            self.check("skipped", Err(anyhow::anyhow!("{why}; deepres_e2e::skip lists the allowed reasons")));
        }
    }

    /// Returns the unmeasured tests.
    pub fn unmeasured(&self) -> Unmeasured {
        self.not_measured.iter().cloned().collect()
    }

    /// Prints the failures and the counts. Returns the exit status.
    pub fn report(&self) -> ExitCode {
        eprintln!();
        for why in &self.skips {
            eprintln!("skipped: {why}");
        }
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
        if self.is_passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// A test that failed.
#[derive(Debug, PartialEq)]
struct Failure {
    name: String,
    /// CPU time that the hypervisor took during the test, if the test printed it. `None` also if
    /// the hypervisor took no CPU time.
    taken: Option<Taken>,
    /// Whether the test passed in a later try.
    has_passed: bool,
}

impl Failure {
    /// Returns whether the failure means nothing, because the hypervisor took too much CPU time.
    fn is_disturbed(&self) -> bool {
        self.taken.is_some_and(|taken| taken.percent >= DISTURBED_PERCENT || taken.at_once_ms >= DISTURBED_MS)
    }

    /// Returns all failures in a test program's output. Each section begins with `---- NAME stdout
    /// ----`, and the test's own output follows.
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

/// Returns the sums of passed and failed tests over all result lines of an output.
fn totals(output: &str) -> (u64, u64) {
    output
        .lines()
        .filter_map(counts)
        .fold((0, 0), |(passed, failed), more| (passed + more.0, failed + more.1))
}

/// Returns the passed and failed tests of a result line. For example, `test result: FAILED. 3
/// passed; 1 failed; 0 ignored; …` gives (3, 1).
fn counts(line: &str) -> Option<(u64, u64)> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let count = |name: &str| {
        let field = counts.split(';').find(|field| field.trim_end().ends_with(name))?;
        field.trim().strip_suffix(name)?.trim().parse().ok()
    };
    Some((count("passed")?, count("failed")?))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::process::ExitStatusExt as _;

    use std::process::ExitStatus;

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
    fn failures_are_found_with_the_cpu_time_taken_meanwhile() {
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

    /// Returns the tally of simulated tries. Each try names the failing tests, and the percentage
    /// of CPU time that the hypervisor took. The first try runs ten tests, each later try runs one.
    fn measured(tries: &[&[(&str, f64)]]) -> Tally {
        let ran = Cell::new(0);
        let run = |_: Option<&str>| {
            let (number, failing) = (ran.get(), tries[ran.get()]);
            ran.set(number + 1);
            let mut output = String::new();
            for (name, percent) in failing {
                output += &format!(
                    "---- {name} stdout ----\ntaken by the hypervisor while the test ran: {percent} % of all CPUs' time, ms at once at most: 7\n"
                );
            }
            let all = if number == 0 { 10 } else { 1 };
            output += &format!(
                "test result: X. {} passed; {} failed; 0 ignored\n",
                all - failing.len(),
                failing.len()
            );
            let status = ExitStatus::from_raw(if failing.is_empty() { 0 } else { 101 << 8 });
            Ok(Outcome { status, output, skips: Vec::new() })
        };
        let mut tally = Tally::default();
        tally.tests_when_quiet("tests", run, || ()).unwrap();
        assert_eq!(ran.get(), tries.len(), "so many tries");
        tally
    }

    #[test]
    fn a_test_that_fails_while_the_cpus_are_taken_is_tried_again() {
        let tally = measured(&[&[]]);
        assert_eq!((tally.passed, tally.failed, tally.not_measured.len()), (10, 0, 0));
        let tally = measured(&[&[("a", 23.0)], &[]]);
        assert_eq!((tally.passed, tally.failed, tally.not_measured.len()), (10, 0, 0));
        assert!(tally.failures.is_empty());
        let mut tally = measured(&[
            &[("a", 23.0), ("b", 1.5)],
            &[("a", 7.0)],
            &[("b", 0.9)],
            &[("a", 23.0)],
            &[("a", 9.0)],
        ]);
        assert_eq!((tally.passed, tally.failed), (8, 1), "b failed while little was taken");
        assert_eq!(tally.not_measured, ["a"]);
        assert!(tally.failures[0].ends_with(": b"), "{}", tally.failures[0]);
        assert_eq!(tally.failed_tests().unwrap(), [("tests".to_owned(), vec!["b".to_owned()])]);
        tally.check("another check", Err(anyhow::anyhow!("it failed")));
        assert_eq!(tally.failed_tests(), None);
        // A failure without a disturbance counts.
        let tally = measured(&[&[("a", 0.5)]]);
        assert_eq!((tally.passed, tally.failed, tally.not_measured.len()), (9, 1, 0));
        let tally = measured(&[&[("a", 23.0)], &[("a", 0.5)]]);
        assert_eq!((tally.passed, tally.failed, tally.not_measured.len()), (9, 1, 0));
    }

    #[test]
    fn a_killed_program_counts_as_a_failure() {
        let mut tally = Tally::default();
        let output = "test result: ok. 2 passed; 0 failed; 0 ignored\ntest x ... ok".to_owned();
        let killed = |_: Option<&str>| {
            Ok(Outcome { status: ExitStatus::from_raw(9), output: output.clone(), skips: Vec::new() })
        };
        tally.tests_when_quiet("cargo test", killed, || ()).unwrap();
        assert_eq!((tally.passed, tally.failed, tally.failures.len()), (2, 1, 1));
        assert!(tally.failures[0].contains("signal: 9"), "{}", tally.failures[0]);
    }

    #[test]
    fn a_test_not_measured_twice_fails_and_so_do_more_than_three() {
        let judged = |names: &[&str], before: &[&str]| {
            let mut tally = Tally::default();
            tally.not_measured.extend(names.iter().map(|name| (*name).to_owned()));
            tally.judge(&before.iter().map(|name| (*name).to_owned()).collect());
            tally.failed
        };
        assert_eq!(judged(&["a", "b", "c"], &["d"]), 0);
        assert_eq!(judged(&["a", "b", "c", "d"], &[]), 1);
        assert_eq!(judged(&["a", "b"], &["b"]), 1);
    }

    #[test]
    fn a_reason_to_skip_that_no_list_has_fails() {
        let mut tally = Tally::default();
        tally.skips.extend(skip::ALLOWED.map(str::to_owned));
        tally.judge(&Unmeasured::new());
        assert!(tally.is_passed());
        tally.skips.insert("the moon is full".to_owned());
        tally.judge(&Unmeasured::new());
        assert_eq!(tally.failed, 1);
    }
}
