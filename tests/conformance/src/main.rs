//! Checks a driver's behaviour: error codes, capture rules, event times, memory, look-ups,
//! contexts, streams.
//!
//! The same program runs on the simulated driver and on a real one. Each check runs in a process of
//! its own. A check that crashes, hangs or breaks its context therefore affects no other check.
//!
//! A check states the basis of its expectation: the driver API's reference, or a guess that a real
//! GPU has to confirm. If a real driver answers differently, both the simulated driver and the
//! expectation here are wrong.

#[macro_use]
mod driver;
mod check;
mod checks;
mod gpu;
mod runtime;
mod sequence;

use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Parser;
use serde_json::{Value, json};

use check::{Basis, Check, Fact, Outcome};

/// Time after which a check counts as hanging. The first context of a real driver takes a second.
const CHECK_LIMIT: Duration = Duration::from_secs(60);
/// Time between two looks for the end of a check.
const POLL: Duration = Duration::from_millis(1);

/// Check that a CUDA driver behaves as deepres assumes
#[derive(Parser)]
struct Options {
    /// Print one JSON object with all findings instead of a line for each check
    #[arg(long)]
    json: bool,
    /// Run only checks whose name contains one of these texts
    names: Vec<String>,
    /// Check the runtime library instead of the driver, by this program: `shared_runtime.cu`,
    /// linked to the library
    #[arg(long, value_name = "PROGRAM", conflicts_with = "names")]
    runtime: Option<PathBuf>,
    /// Make this many random calls instead of the checks, print the answer to each, free
    /// everything, and wait for the end of standard input
    #[arg(long, value_name = "CALLS", requires = "seed")]
    sequence: Option<usize>,
    /// Seed of the random calls
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Print no answers; instead, after every so many calls, print what the memory counts for and
    /// wait for a line (simulated driver only)
    #[arg(long, value_name = "CALLS", requires = "sequence", value_parser = clap::value_parser!(u64).range(1..))]
    account: Option<u64>,
    /// Run this check in this process, and print its result
    #[arg(long, hide = true, value_name = "NAME")]
    check: Option<String>,
    /// Be the second process of a check that needs one, and execute the lines of standard input
    #[arg(long, hide = true)]
    opener: bool,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    if let (Some(calls), Some(seed)) = (options.sequence, options.seed) {
        let ran = match options.account {
            Some(every) => sequence::run_accounted(seed, calls, every as usize),
            None => sequence::run(seed, calls),
        };
        ran.map_err(|stop| anyhow!("the sequence cannot begin: {stop:?}"))?;
        println!("end");
        std::io::stdin().read_to_end(&mut Vec::new()).context("standard input")?;
        return Ok(ExitCode::SUCCESS);
    }
    if options.opener {
        checks::ipc::be_the_other_process()
            .map_err(|stop| anyhow!("the second process cannot begin: {stop:?}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(name) = &options.check {
        let check = checks::all().find(|check| check.name == *name).context("no check of that name")?;
        println!("{}", serde_json::to_string(&check.run())?);
        return Ok(ExitCode::SUCCESS);
    }
    let began = Instant::now();
    let mut report = Report { is_json: options.json, ..Report::default() };
    if let Some(program) = &options.runtime {
        for (name, basis, outcome) in runtime::ask(program)? {
            report.add(name, basis, &outcome);
        }
    }
    let is_chosen = |check: &&Check| {
        options.names.is_empty() || options.names.iter().any(|name| check.name.contains(name.as_str()))
    };
    for check in checks::all().filter(|_| options.runtime.is_none()).filter(is_chosen) {
        report.add(check.name, check.basis, &run(check)?);
    }
    report.end(began.elapsed())
}

/// The outcomes so far.
#[derive(Default)]
struct Report {
    is_json: bool,
    outcomes: Vec<Value>,
    agree: u32,
    differ: u32,
    absent: u32,
}

impl Report {
    fn add(&mut self, name: &str, basis: Basis, outcome: &Outcome) {
        let verdict = outcome.verdict();
        *match verdict {
            "agrees" => &mut self.agree,
            "absent" => &mut self.absent,
            _ => &mut self.differ,
        } += 1;
        let (basis, facts) = (basis.name(), &outcome.facts);
        if self.is_json {
            self.outcomes.push(json!({
                "check": name, "basis": basis, "verdict": verdict, "stopped": outcome.stopped, "facts": facts,
            }));
            return;
        }
        println!("{verdict:<7} {basis:<10} {name} ({} facts)", facts.len());
        for Fact { what, expected, got, .. } in facts.iter().filter(|fact| !fact.holds) {
            println!("        {what}: {got}, expected {expected}");
        }
        if let Some(stopped) = &outcome.stopped {
            println!("        {stopped}");
        }
    }

    /// Prints the summary with the time that the checks took. Returns success if nothing differs.
    fn end(self, took: Duration) -> Result<ExitCode> {
        let Self { is_json, outcomes, agree, differ, absent } = self;
        if agree + differ + absent == 0 {
            bail!("no check has such a name");
        }
        let (driver, seconds) = (driver::description(), took.as_secs_f64());
        if is_json {
            let report = json!({
                "driver": driver, "checks": outcomes, "agree": agree, "differ": differ, "absent": absent,
                "seconds": seconds,
            });
            println!("{report}");
        } else {
            println!("{driver}: {agree} agree, {differ} differ, {absent} absent, in {seconds:.1} s");
        }
        Ok(if differ == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Runs a check in a process of its own.
fn run(check: &Check) -> Result<Outcome> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--check", check.name])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a check's process")?;
    let ended = await_end(&mut child)?;
    let mut said = String::new();
    child.stdout.take().context("the output was piped")?.read_to_string(&mut said)?;
    if let Some(found) = said.lines().last().and_then(|line| serde_json::from_str(line).ok()) {
        return Ok(found);
    }
    Ok(Outcome { stopped: Some(ended), ..Outcome::default() })
}

/// Waits for a check within its time limit, and returns how it ended.
fn await_end(child: &mut Child) -> Result<String> {
    let deadline = Instant::now() + CHECK_LIMIT;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(match status.signal() {
                Some(signal) => format!("killed by signal {signal}"),
                None => format!("ended with {status} and said nothing"),
            });
        }
        if Instant::now() > deadline {
            child.kill().context("cannot end a check that hangs")?;
            child.wait()?;
            return Ok(format!("still running after {CHECK_LIMIT:?}"));
        }
        std::thread::sleep(POLL);
    }
}
