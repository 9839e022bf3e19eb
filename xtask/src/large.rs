//! `cargo xtask test --large`: the frameworks from PyPI, gigabytes each.

use anyhow::Result;

use crate::{build, venv};

/// The frameworks: each has its requirements in `tests/workloads/python/requirements-NAME.txt` and its test in `tests/e2e/tests/large.rs`.
pub const FRAMEWORKS: [&str; 3] = ["torch", "tensorflow", "jax"];

/// Prepares a framework's environment and gives the command that tests it.
pub fn tests(framework: &str, artefacts: &build::Artefacts) -> Result<std::process::Command> {
    let venv = venv::prepare_large(framework)?;
    let mut tests = build::cargo();
    tests
        .args([
            "test",
            "--package",
            "deepres-e2e",
            "--test",
            "large",
            "--",
            "--ignored",
            "--nocapture",
            framework,
        ])
        .env("DEEPRES_ARTEFACTS", artefacts.folder())
        .env("DEEPRES_VENV_LARGE", venv.folder());
    Ok(tests)
}
