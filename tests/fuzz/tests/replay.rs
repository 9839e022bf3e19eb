//! Runs every seed through its target, so that an input that once broke something does not break it
//! again.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Gives a target the process to itself, as under the fuzzer. Some targets keep a GPU, a folder or
/// a socket between inputs.
static PROCESS: Mutex<()> = Mutex::new(());

fn seeds(target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    let entries = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("every target has seeds in {}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn every_target_keeps_its_promises_on_its_seeds() {
    let _process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    for target in deepres_fuzz::TARGETS {
        let files = seeds(target.name);
        assert!(!files.is_empty(), "`{}` has no seeds", target.name);
        for file in files {
            eprintln!("{}", file.display());
            (target.run)(&std::fs::read(file).unwrap());
        }
    }
}

#[test]
fn every_target_takes_any_bytes() {
    let _process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    let noise: Vec<u8> = (0..4096_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for target in deepres_fuzz::TARGETS {
        for length in [0, 1, 15, 560, noise.len()] {
            (target.run)(&noise[..length]);
        }
    }
}
