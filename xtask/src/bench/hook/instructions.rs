//! Counts by callgrind the instructions that a call executes in its own thread. The count is the
//! same on a busy machine and on a quiet machine.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::command;

/// Number of calls in the shorter of two runs. The difference of the two runs contains only calls.
const FEW: u32 = 20_000;
/// Number of calls in the longer of two runs.
const MANY: u32 = 60_000;

/// Returns whether this machine has callgrind.
pub fn is_available() -> bool {
    Command::new("valgrind")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Returns the instructions that the client executes for one call of `name`. `start` returns the
/// command to which valgrind and the client are appended. callgrind simulates neither the kernel
/// nor the cost of reading the clock.
pub fn per_call(client: &Path, name: &str, start: impl Fn() -> Command) -> Result<f64> {
    let folder = tempfile::Builder::new().prefix("deepres-callgrind-").tempdir()?;
    let total = |calls: u32| -> Result<u64> {
        let out = folder.path().join(format!("{calls}"));
        let mut counted = start();
        counted
            .args(["valgrind", "--quiet", "--tool=callgrind", "--separate-threads=yes"])
            .arg(format!("--callgrind-out-file={}", out.display()))
            .arg(client)
            .args(["--calls", name, &calls.to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        command::run(&mut counted)?;
        of_first_thread(&out)
    };
    let (few, many) = (total(FEW)?, total(MANY)?);
    ensure!(many > few, "more calls of {name} executed fewer instructions");
    Ok((many - few) as f64 / f64::from(MANY - FEW))
}

/// Returns the total of the program's first thread. callgrind writes one file for each thread.
fn of_first_thread(out: &Path) -> Result<u64> {
    let path = format!("{}-01", out.display());
    let text = fs::read_to_string(&path).with_context(|| format!("callgrind wrote no {path}"))?;
    let Some(total) = text.lines().find_map(|line| line.strip_prefix("totals: ")) else {
        bail!("{path} has no totals");
    };
    total.trim().parse().with_context(|| format!("{path}: {total:?} is no number"))
}
