//! A check, the basis of its expectation, and its result.

use std::fmt::Debug;

use deepres_abi::driver::result::{self, CUresult};
use serde::{Deserialize, Serialize};

/// Basis of an expectation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// NVIDIA's driver API reference says so.
    Documented,
    /// The reference does not say so, and only a real driver can confirm it.
    Guess,
}

impl Basis {
    /// Returns the name for people and for JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Documented => "documented",
            Self::Guess => "guess",
        }
    }
}

/// One check of a driver.
pub struct Check {
    /// Name, which states the expected behaviour.
    pub name: &'static str,
    /// Basis of the expectation.
    pub basis: Basis,
    /// Runs the check.
    pub ask: fn(&mut Facts) -> Result<(), Stop>,
}

impl Check {
    /// Runs the check in this process.
    pub fn run(&self) -> Outcome {
        let mut facts = Facts::default();
        let ended = (self.ask)(&mut facts);
        let mut outcome = Outcome::of(facts);
        match ended {
            Ok(()) => {}
            Err(Stop::Absent(what)) => {
                outcome.is_absent = true;
                outcome.stopped = Some(what);
            }
            Err(Stop::Failed(call, code)) => {
                outcome.stopped = Some(format!("{call} answered {}", named(code)))
            }
        }
        outcome
    }
}

/// Reason why a check cannot go on.
#[derive(Debug)]
pub enum Stop {
    /// The driver or the device lacks the subject of the check.
    Absent(String),
    /// A call failed, and the rest of the check depends on the call.
    Failed(&'static str, CUresult),
}

/// Result of a check.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// The facts, one by one.
    pub facts: Vec<Fact>,
    /// Reason why the check ended early, if it did.
    pub stopped: Option<String>,
    /// Whether the check ended early because the driver or the device lacks something.
    pub is_absent: bool,
}

impl Outcome {
    /// Returns the outcome of a check that came to its end.
    pub fn of(facts: Facts) -> Self {
        Self { facts: facts.0, ..Self::default() }
    }

    /// Returns `agrees`, `differs` or `absent`.
    pub fn verdict(&self) -> &'static str {
        match (&self.stopped, self.is_absent) {
            _ if self.facts.iter().any(|fact| !fact.holds) => "differs",
            (Some(_), true) => "absent",
            (Some(_), false) => "differs",
            (None, _) => "agrees",
        }
    }
}

/// One answer of the driver, and the expected answer.
#[derive(Debug, Serialize, Deserialize)]
pub struct Fact {
    /// Description of the question.
    pub what: String,
    /// Expected answer.
    pub expected: String,
    /// Actual answer.
    pub got: String,
    /// Whether both agree.
    pub holds: bool,
}

/// The answers of a check so far.
#[derive(Debug, Default)]
pub struct Facts(Vec<Fact>);

impl Facts {
    /// Adds a result code.
    pub fn code(&mut self, what: &str, got: CUresult, expected: CUresult) {
        self.push(what, named(expected), named(got), got == expected);
    }

    /// Adds a value.
    pub fn is<T: PartialEq + Debug>(&mut self, what: &str, got: T, expected: T) {
        self.push(what, format!("{expected:?}"), format!("{got:?}"), got == expected);
    }

    /// Adds a value that should have a property. `holds` says whether the value has the property.
    pub fn has(&mut self, what: &str, got: impl Debug, property: &str, holds: bool) {
        self.push(what, property.to_owned(), format!("{got:?}"), holds);
    }

    fn push(&mut self, what: &str, expected: String, got: String, holds: bool) {
        self.0.push(Fact { what: what.to_owned(), expected, got, holds });
    }
}

/// Returns the text of a code, for example `INVALID_VALUE (1)`.
fn named(code: CUresult) -> String {
    let name = result::name(code).map_or("no code of the API", |name| name.to_str().unwrap_or_default());
    format!("{} ({code})", name.trim_start_matches("CUDA_ERROR_"))
}
