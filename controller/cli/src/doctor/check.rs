//! One check of `deepres doctor`: the finding and the remedy.

use serde::Serialize;

/// The result of a check: whether the checked part of deepres works on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The check found no fault.
    Good,
    /// A fact that is useful to know.
    Note,
    /// A part of deepres is missing or weaker. The rest works.
    Limited,
    /// Programs cannot share a GPU on this machine.
    Bad,
}

impl Verdict {
    /// Returns the verdict's name, as `deepres doctor` prints it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Note => "note",
            Self::Limited => "limited",
            Self::Bad => "bad",
        }
    }
}

/// One check of `deepres doctor`, with its result, finding and remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The subject of the check.
    pub name: &'static str,
    /// The result of the check.
    pub verdict: Verdict,
    /// The finding of the check, as a sentence.
    pub found: String,
    /// The remedy, if one is needed.
    pub remedy: Option<String>,
}

impl Check {
    /// Returns a check whose result is good.
    pub fn good(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Good, found: found.into(), remedy: None }
    }

    /// Returns a check with a fact, and a remedy for users who want to change it.
    pub fn advice(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Note, found: found.into(), remedy: Some(remedy.into()) }
    }

    /// Returns a check with the verdict `limited`, for a part of deepres that is missing or weaker.
    pub fn limited(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Limited, found: found.into(), remedy: Some(remedy.into()) }
    }

    /// Returns a check with the verdict `bad`, for a part without which deepres does not work.
    pub fn bad(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Bad, found: found.into(), remedy: Some(remedy.into()) }
    }
}
