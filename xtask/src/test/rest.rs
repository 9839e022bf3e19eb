//! The rest of a run of the deep track: the tests that failed in it. The whole track takes more than
//! an hour. So if only tests were at fault, a developer mends these tests and runs the rest.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use super::deep::git;
use super::tally::Tally;
use crate::{build, command};

/// What the tests test: the product and its build, the simulated GPU, and no tests.
const TESTED: [&str; 12] = [
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
    "abi",
    "controller",
    "ebpf",
    "interposer",
    "tests/simgpu",
    "xtask/src/dist",
    ":(exclude)abi/tests",
    ":(exclude)interposer/tests",
    ":(exclude,glob)controller/*/tests/**",
];

/// A whole run of the deep track in which nothing but tests failed.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Failed {
    /// The commit on which the track ran.
    pub commit: String,
    /// The number of tests and checks that passed.
    pub passed: u64,
    /// The failed tests of each test program.
    pub tests: Vec<(String, Vec<String>)>,
}

impl Failed {
    /// Returns the run as recorded on this machine, if the product of the present commit is the
    /// product of the run.
    ///
    /// # Errors
    /// If there is no record, or if the product changed since the run.
    pub fn read() -> Result<Self> {
        let (file, whole) = (file(), "run `cargo xtask test --deep`");
        let text = fs::read(&file).with_context(|| {
            format!("{} records no run in which only tests failed; {whole}", file.display())
        })?;
        let failed: Self =
            serde_json::from_slice(&text).with_context(|| format!("cannot read {}", file.display()))?;
        let changed = changed(&crate::workspace(), &failed.commit)?;
        ensure!(changed.is_empty(), "the product changed since {}; {whole}\n{changed}", failed.commit);
        Ok(failed)
    }

    /// Returns the names of the tests.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tests.iter().flat_map(|(_, names)| names).map(String::as_str)
    }
}

/// Records a run of the whole track on `commit`, if nothing but tests failed. Otherwise deletes the
/// record. `commit` is `None` if the working tree differs from the commit.
pub fn record(tally: &Tally, commit: Option<String>) -> Result<()> {
    let file = file();
    let Some((tests, commit)) = tally.failed_tests().zip(commit) else {
        return match fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot delete {}", file.display()))
            }
            _ => Ok(()),
        };
    };
    eprintln!("mend these tests, commit, and run `cargo xtask test --deep --rest`");
    let failed = Failed { commit, passed: tally.passed(), tests: tests.to_vec() };
    fs::write(&file, serde_json::to_vec_pretty(&failed)?)
        .with_context(|| format!("cannot write {}", file.display()))
}

fn file() -> PathBuf {
    build::target().join("deep-failed.json")
}

/// Returns the files of the product that differ between `commit` and the present commit, one a line.
///
/// # Errors
/// If `commit` is no ancestor of the present commit.
fn changed(root: &Path, commit: &str) -> Result<String> {
    command::run(&mut git(root, &["merge-base", "--is-ancestor", commit, "HEAD"]))?;
    command::output(git(root, &["diff", "--name-only", commit, "HEAD", "--"]).args(TESTED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_the_product_asks_for_the_whole_track_and_a_change_of_tests_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let call = |arguments: &[&str]| command::output(&mut git(root, arguments)).unwrap();
        let commit = |file: &str| {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "x").unwrap();
            call(&["add", "."]);
            call(&["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "--quiet", "--message", file]);
            call(&["rev-parse", "HEAD"]).trim().to_owned()
        };
        call(&["init", "--quiet"]);
        let first = commit("interposer/src/lib.rs");
        for file in
            ["interposer/tests/session.rs", "controller/cli/tests/a/b.rs", "tests/e2e/a.rs", "docs/a.md"]
        {
            commit(file);
        }
        assert_eq!(changed(root, &first).unwrap(), "");
        commit("tests/simgpu/a.rs");
        commit("controller/cli/src/a.rs");
        assert_eq!(changed(root, &first).unwrap(), "controller/cli/src/a.rs\ntests/simgpu/a.rs\n");
        assert!(changed(root, "0123456789012345678901234567890123456789").is_err());
    }
}
