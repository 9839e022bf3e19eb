//! `deepres run --record`: creates the file to which the job's processes append.

use anyhow::{Context, Result};
use deepres_abi::recording::Head;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use zerocopy::IntoBytes;

/// Variable that names the file to the job's processes.
pub const VARIABLE: &str = "DEEPRES_RECORD";
/// Permissions: only the owner may read the file, because it shows what the owner runs.
const MODE: u32 = 0o600;

/// Creates or empties the file and writes its head. Returns the absolute path, because the job can
/// change its directory.
pub fn begin(path: &Path) -> Result<PathBuf> {
    let cannot = || format!("cannot record into {}", path.display());
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(MODE);
    let mut file = options.open(path).with_context(cannot)?;
    file.write_all(Head::CURRENT.as_bytes()).with_context(cannot)?;
    std::path::absolute(path).with_context(cannot)
}
