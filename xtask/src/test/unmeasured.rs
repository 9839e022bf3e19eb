//! The record of the tests that the last run on this machine could not measure.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use deepres_e2e::cache;

/// The names of unmeasured tests.
pub type Unmeasured = BTreeSet<String>;

/// Returns the tests that the last run recorded; none without such a run.
pub fn last() -> Unmeasured {
    read(&file())
}

/// Records the tests that this run could not measure.
pub fn note(unmeasured: &Unmeasured) -> Result<()> {
    write(&file(), unmeasured)
}

fn file() -> PathBuf {
    cache::folder().join("not-measured.txt")
}

fn read(file: &Path) -> Unmeasured {
    fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn write(file: &Path, unmeasured: &Unmeasured) -> Result<()> {
    let lines: String = unmeasured.iter().flat_map(|name| [name.as_str(), "\n"]).collect();
    fs::write(file, lines).with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noted_tests_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("not-measured.txt");
        assert!(read(&file).is_empty());
        let unmeasured = Unmeasured::from(["a::b".to_owned(), "c".to_owned()]);
        write(&file, &unmeasured).unwrap();
        assert_eq!(read(&file), unmeasured);
    }
}
