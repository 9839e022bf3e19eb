//! `deepres run --record`: makes the file that the job's processes append to.

use anyhow::{Context, Result};
use deepres_abi::recording::Head;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use zerocopy::IntoBytes;

/// Names the file to the job's processes.
pub const VARIABLE: &str = "DEEPRES_RECORD";
/// It tells what somebody runs: its owner's alone.
const MODE: u32 = 0o600;

/// Makes the file, or empties it, and writes its head. Returns where it is, wherever the job goes.
pub fn begin(path: &Path) -> Result<PathBuf> {
    let cannot = || format!("cannot record into {}", path.display());
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(MODE);
    let mut file = options.open(path).with_context(cannot)?;
    file.write_all(Head::CURRENT.as_bytes()).with_context(cannot)?;
    std::path::absolute(path).with_context(cannot)
}
