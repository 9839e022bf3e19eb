//! The checks of the runtime library. A program of nvcc (`tests/workloads/cuda/shared_runtime.cu`)
//! calls the library, and prints the answers as one JSON object.
//!
//! The stand-in for NVIDIA's library (`tests/simgpu/runtime`) gives the same answers.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value};

use crate::check::{Basis, Facts, Outcome};

/// An answer of the program: its name, and its expected value.
type Answer = (&'static str, i64);

/// Answers that follow from NVIDIA's reference of the runtime's API. Most expected values are codes
/// of the runtime, and the others are values of the program or of the device.
const DOCUMENTED: &[Answer] = &[
    ("count", 0),
    ("some_devices", 1),
    ("set", 0),
    ("get", 0),
    ("current", 0),
    ("properties", 0),
    ("warp", 32),
    ("no_device", 101),
    ("last", 101),
    ("last_again", 0),
    ("malloc", 0),
    ("to", 0),
    ("from", 0),
    ("same", 1),
    ("device_pointer", 0),
    ("device_type", 2),
    ("host_pointer", 0),
    ("host_type", 0),
    ("read_symbol", 0),
    ("symbol", 7),
    ("write_symbol", 0),
    ("read_symbol_again", 0),
    ("symbol_again", 9),
    ("symbol_size", 0),
    ("symbol_bytes", 16),
    ("attribute", 0),
    ("attributes", 0),
    ("shared", 60000),
    ("occupancy", 0),
    ("some_blocks", 1),
    ("stream", 0),
    ("event", 0),
    ("record", 0),
    ("launch", 0),
    ("too_many_threads", 9),
    ("record_end", 0),
    ("wait", 0),
    ("elapsed", 0),
    ("capture", 0),
    ("captured", 0),
    ("nodes", 0),
    ("node_count", 1),
    ("instantiate", 0),
    ("graph_launch", 0),
    ("synchronize", 0),
    ("free", 0),
    ("error_name", 99),
];
/// Answers for which the reference allows others.
const GUESSES: &[Answer] = &[("profiler", 0), ("positive", 1), ("free_again", 1)];

/// Runs the program. Returns the checks: name, basis and outcome of each.
pub fn ask(program: &Path) -> Result<[(&'static str, Basis, Outcome); 2]> {
    let ran = Command::new(program).output().with_context(|| format!("cannot run {}", program.display()))?;
    // Without an object there is no answer, and each check differs.
    let said: Map<String, Value> = serde_json::from_slice(&ran.stdout).unwrap_or_default();
    let stopped = (!ran.status.success()).then(|| {
        format!("the program ended with {}: {}", ran.status, String::from_utf8_lossy(&ran.stderr).trim())
    });
    let compared = |answers: &[Answer]| {
        let mut facts = Facts::default();
        facts.is("number of answers", said.len(), DOCUMENTED.len() + GUESSES.len());
        for (name, expected) in answers {
            facts.is(name, said.get(*name).and_then(Value::as_i64), Some(*expected));
        }
        Outcome { stopped: stopped.clone(), ..Outcome::of(facts) }
    };
    Ok([
        ("runtime/calls_answer_as_the_reference_says", Basis::Documented, compared(DOCUMENTED)),
        ("runtime/other_calls_answer_as_the_stand_in_does", Basis::Guess, compared(GUESSES)),
    ])
}
