//! One check of `deepres doctor`: what it found, and what to do about it.

use serde::Serialize;

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Worth knowing.
    Note,
    /// Something of deepres is missing or weaker; the rest works.
    Limited,
    /// Programs cannot share a GPU here.
    Bad,
}

impl Verdict {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Note => "note",
            Self::Limited => "limited",
            Self::Bad => "bad",
        }
    }
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// How it went.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do.
    pub remedy: Option<String>,
}

impl Check {
    /// All is well.
    pub fn good(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Good, found: found.into(), remedy: None }
    }

    /// Something to know, and what can be done where it is not wanted.
    pub fn advice(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Note, found: found.into(), remedy: Some(remedy.into()) }
    }

    /// Something is weaker than it could be.
    pub fn limited(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Limited, found: found.into(), remedy: Some(remedy.into()) }
    }

    /// Nothing works without it.
    pub fn bad(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Bad, found: found.into(), remedy: Some(remedy.into()) }
    }
}
