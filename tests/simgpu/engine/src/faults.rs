//! Errors, delays and deaths on demand, by API name and call count: `SIMGPU_FAULTS`.
//!
//! The variable holds rules separated by commas:
//!
//! | rule | effect |
//! |---|---|
//! | `cuMemAlloc_v2:3:2` | the 3rd call returns error 2 |
//! | `cuLaunchKernel:every:100:719` | every 100th call returns error 719 |
//! | `cuCtxSynchronize:delay:5ms` | every call takes 5 ms longer (`ns`, `us`, `ms`, `s`) |
//! | `die:cuLaunchKernel:10` | the process is killed inside the 10th call, before the call's work |
//! | `die-after:cuLaunchKernel:10` | the process is killed in the 10th call, after the call's work and before its return |
//! | `reenter:cuCtxDestroy_v2` | the driver calls its own exports before the work of every call; `reenter:*` holds for all functions |
//!
//! Each rule counts the calls of all threads of the process. Names are the exact exported names.

use crate::Error;
use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

/// Instruction to a call before its own work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Do the work of the call.
    Proceed,
    /// Return this error and do nothing.
    Fail(u32),
    /// Call exports of the driver by the dynamic linker, and then do the work.
    Reenter,
}

/// The name in a rule that holds for all functions.
const ALL: &str = "*";

#[derive(Debug, PartialEq, Eq)]
enum Effect {
    Fail { nth: u64, code: u32 },
    FailEvery { every: u64, code: u32 },
    Delay(Duration),
    Die { nth: u64 },
    DieAfter { nth: u64 },
    Reenter,
}

#[derive(Debug)]
struct Rule {
    api: String,
    effect: Effect,
    calls: AtomicU64,
}

/// The rules of one process.
#[derive(Debug)]
pub struct Faults {
    rules: Vec<Rule>,
}

impl Faults {
    /// Reads rules in the form of the variable.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let rules = text
            .split(',')
            .map(str::trim)
            .filter(|rule| !rule.is_empty())
            .map(parse_rule)
            .collect::<Result<_, _>>()?;
        Ok(Self { rules })
    }

    /// Counts a call of `api`. Delays the call or kills the process if a rule says so. Returns what
    /// the call has to do.
    pub fn check(&self, api: &str) -> Action {
        let mut action = Action::Proceed;
        let is_named = |rule: &Rule| rule.api == api || (rule.api == ALL && rule.effect == Effect::Reenter);
        let is_meant = |rule: &&Rule| is_named(rule) && !matches!(rule.effect, Effect::DieAfter { .. });
        for rule in self.rules.iter().filter(is_meant) {
            let call = rule.calls.fetch_add(1, Ordering::Relaxed) + 1;
            match rule.effect {
                Effect::Fail { nth, code } if call == nth => action = Action::Fail(code),
                Effect::FailEvery { every, code } if call.is_multiple_of(every) => {
                    action = Action::Fail(code)
                }
                Effect::Delay(time) => std::thread::sleep(time),
                Effect::Die { nth } if call == nth => die(),
                Effect::Reenter if action == Action::Proceed => action = Action::Reenter,
                _ => {}
            }
        }
        action
    }

    /// Kills the process if a rule says so. The caller has done the work of a call of `api`.
    pub fn check_end(&self, api: &str) {
        for rule in self.rules.iter().filter(|rule| rule.api == api) {
            if let Effect::DieAfter { nth } = rule.effect
                && rule.calls.fetch_add(1, Ordering::Relaxed) + 1 == nth
            {
                die();
            }
        }
    }
}

fn die() {
    // SAFETY: `kill` sends a signal to this process and touches no memory.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

fn parse_rule(text: &str) -> Result<Rule, Error> {
    let refuse = |why: &str| Error::Faults(format!("{text:?}: {why}"));
    let count = |digits: &str| match digits.parse() {
        Ok(0) | Err(_) => Err(refuse(&format!("{digits:?} is not a call count (1 is the first call)"))),
        Ok(count) => Ok(count),
    };
    let code = |digits: &str| digits.parse().map_err(|_| refuse(&format!("{digits:?} is not an error code")));
    let parts: Vec<&str> = text.split(':').collect();
    let (api, effect) = match parts[..] {
        ["die", api, nth] => (api, Effect::Die { nth: count(nth)? }),
        ["die-after", api, nth] => (api, Effect::DieAfter { nth: count(nth)? }),
        ["reenter", api] => (api, Effect::Reenter),
        [api, "delay", time] => {
            let time =
                parse_duration(time).ok_or_else(|| refuse(&format!("{time:?} is not a time such as 5ms")))?;
            (api, Effect::Delay(time))
        }
        [api, "every", every, error] => (api, Effect::FailEvery { every: count(every)?, code: code(error)? }),
        [api, nth, error] => (api, Effect::Fail { nth: count(nth)?, code: code(error)? }),
        _ => {
            return Err(refuse(
                "use API:N:CODE, API:every:N:CODE, API:delay:TIME, die:API:N, die-after:API:N or reenter:API",
            ));
        }
    };
    if api.is_empty() {
        return Err(refuse("the API's name is missing"));
    }
    Ok(Rule { api: api.to_owned(), effect, calls: AtomicU64::new(0) })
}

fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let ns_per_unit: u64 = match &text[digits..] {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    Some(Duration::from_nanos(text[..digits].parse::<u64>().ok()?.checked_mul(ns_per_unit)?))
}

const UNREAD: u8 = 0;
const NONE: u8 = 1;
const SOME: u8 = 2;
/// Whether this process has rules. In a process without rules, each call pays one load of this
/// flag.
static PRESENT: AtomicU8 = AtomicU8::new(UNREAD);
static PROCESS_FAULTS: OnceLock<Result<Option<Faults>, String>> = OnceLock::new();

/// Reads `SIMGPU_FAULTS` of this process at the first call. `cuInit` calls this function and
/// reports its error. [`check`] cannot report an error, and ignores unreadable rules.
pub fn init() -> Result<(), Error> {
    let outcome = PROCESS_FAULTS.get_or_init(|| match std::env::var("SIMGPU_FAULTS") {
        Ok(text) => Faults::parse(&text).map(Some).map_err(|error| match error {
            Error::Faults(reason) => reason,
            other => other.to_string(),
        }),
        Err(_) => Ok(None),
    });
    PRESENT.store(if matches!(outcome, Ok(Some(_))) { SOME } else { NONE }, Ordering::Relaxed);
    outcome.as_ref().map(|_| ()).map_err(|reason| Error::Faults(reason.clone()))
}

/// Counts a call of `api` and applies this process's rules to it.
#[inline]
pub fn check(api: &str) -> Action {
    if PRESENT.load(Ordering::Relaxed) == NONE { Action::Proceed } else { check_slow(api) }
}

/// Ends a call of `api` for which [`check`] returned [`Action::Proceed`].
#[inline]
pub fn check_end(api: &str) {
    if PRESENT.load(Ordering::Relaxed) == SOME
        && let Some(Ok(Some(faults))) = PROCESS_FAULTS.get()
    {
        faults.check_end(api);
    }
}

#[cold]
fn check_slow(api: &str) -> Action {
    // The first caller of `init` has reported a problem with the variable.
    let _ = init();
    match PROCESS_FAULTS.get() {
        Some(Ok(Some(faults))) => faults.check(api),
        _ => Action::Proceed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn outcomes(rules: &str, api: &str, calls: usize) -> Vec<Action> {
        let faults = Faults::parse(rules).expect("valid");
        (0..calls).map(|_| faults.check(api)).collect()
    }

    #[test]
    fn the_nth_call_fails_and_no_other() {
        use Action::{Fail, Proceed};
        assert_eq!(outcomes("cuMemAlloc_v2:3:2", "cuMemAlloc_v2", 4), [Proceed, Proceed, Fail(2), Proceed]);
        assert_eq!(outcomes("cuMemAlloc_v2:1:2", "cuMemAlloc", 1), [Proceed]);
    }

    #[test]
    fn every_nth_call_fails() {
        use Action::{Fail, Proceed};
        assert_eq!(outcomes("a:1:9, cuX:every:2:719", "cuX", 4), [Proceed, Fail(719), Proceed, Fail(719)]);
    }

    #[test]
    fn a_call_reenters_unless_it_fails() {
        use Action::{Fail, Proceed, Reenter};
        assert_eq!(outcomes("reenter:cuX, cuX:2:1", "cuX", 3), [Reenter, Fail(1), Reenter]);
        assert_eq!(outcomes("reenter:cuX", "cuY", 1), [Proceed]);
        assert_eq!(outcomes("reenter:*", "cuY", 1), [Reenter]);
    }

    #[test]
    fn a_delayed_call_takes_longer() {
        let start = Instant::now();
        assert_eq!(outcomes("cuX:delay:5ms", "cuX", 2), [Action::Proceed; 2]);
        assert!(start.elapsed() >= Duration::from_millis(10));
    }

    #[test]
    fn death_comes_inside_the_nth_call_before_its_work_or_after() {
        for rule in ["die:cuX:2", "die-after:cuX:1"] {
            assert_dies(&Faults::parse(rule).expect("valid"));
        }
    }

    fn assert_dies(faults: &Faults) {
        // SAFETY: the child only calls `check` and `check_end`, which allocate nothing, and
        // `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            faults.check("cuX");
            faults.check_end("cuX");
            faults.check("cuX");
            // SAFETY: ends the child at once; not reached when the rule works.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: `child` is the child forked above; `status` is valid for writing.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL);
    }

    #[test]
    fn rules_that_make_no_sense_are_refused_with_the_rule() {
        for rule in [
            "x",
            "cuX:0:2",
            "cuX:a:2",
            "cuX:1:b",
            "cuX:delay:5",
            "cuX:delay:ms",
            ":1:2",
            "die:cuX",
            "die-after:cuX:0",
            "cuX:every:0:1",
        ] {
            let error = Faults::parse(&format!("cuOk:1:2,{rule}")).expect_err(rule).to_string();
            assert!(error.contains(rule), "{error}");
        }
        Faults::parse("").expect("nothing asked for");
    }
}
