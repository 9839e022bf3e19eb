//! A check, what it stands on, and what it found.

use std::fmt::Debug;

use deepres_abi::driver::result::{self, CUresult};
use serde::{Deserialize, Serialize};

/// What an expectation stands on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// NVIDIA's driver API reference says so.
    Documented,
    /// It does not; a real driver has to be asked.
    Guess,
}

impl Basis {
    /// For people and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Documented => "documented",
            Self::Guess => "guess",
        }
    }
}

/// One thing that a driver is asked.
pub struct Check {
    /// What it holds.
    pub name: &'static str,
    /// What that stands on.
    pub basis: Basis,
    /// Asks.
    pub ask: fn(&mut Facts) -> Result<(), Stop>,
}

impl Check {
    /// Runs it in this process.
    pub fn run(&self) -> Outcome {
        let mut facts = Facts::default();
        let ended = (self.ask)(&mut facts);
        let mut outcome = Outcome { facts: facts.0, ..Outcome::default() };
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

/// Why a check cannot go on.
#[derive(Debug)]
pub enum Stop {
    /// The driver or the device lacks what it is about.
    Absent(String),
    /// A call that everything else needs failed.
    Failed(&'static str, CUresult),
}

/// What a check found.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// One by one.
    pub facts: Vec<Fact>,
    /// Why it ended early, if it did.
    pub stopped: Option<String>,
    /// It ended early since the driver or device lacks something.
    pub is_absent: bool,
}

impl Outcome {
    /// `agrees`, `differs` or `absent`.
    pub fn verdict(&self) -> &'static str {
        match (&self.stopped, self.is_absent) {
            _ if self.facts.iter().any(|fact| !fact.holds) => "differs",
            (Some(_), true) => "absent",
            (Some(_), false) => "differs",
            (None, _) => "agrees",
        }
    }
}

/// One answer beside what was expected.
#[derive(Debug, Serialize, Deserialize)]
pub struct Fact {
    /// What was asked.
    pub what: String,
    /// What was expected.
    pub expected: String,
    /// What came.
    pub got: String,
    /// Whether they agree.
    pub holds: bool,
}

/// The answers of a check so far.
#[derive(Debug, Default)]
pub struct Facts(Vec<Fact>);

impl Facts {
    /// A result code.
    pub fn code(&mut self, what: &str, got: CUresult, expected: CUresult) {
        self.push(what, named(expected), named(got), got == expected);
    }

    /// Any value.
    pub fn is<T: PartialEq + Debug>(&mut self, what: &str, got: T, expected: T) {
        self.push(what, format!("{expected:?}"), format!("{got:?}"), got == expected);
    }

    /// A value with a property.
    pub fn has(&mut self, what: &str, got: impl Debug, property: &str, holds: bool) {
        self.push(what, property.to_owned(), format!("{got:?}"), holds);
    }

    fn push(&mut self, what: &str, expected: String, got: String, holds: bool) {
        self.0.push(Fact { what: what.to_owned(), expected, got, holds });
    }
}

/// `INVALID_VALUE (1)`
fn named(code: CUresult) -> String {
    let name = result::name(code).map_or("no code of the API", |name| name.to_str().unwrap_or_default());
    format!("{} ({code})", name.trim_start_matches("CUDA_ERROR_"))
}
