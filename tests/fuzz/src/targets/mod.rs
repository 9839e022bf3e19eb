//! The targets, a module each.

pub mod admin;
pub mod cgroup;
pub mod config;
pub mod conversation;
pub mod directory;
pub mod excerpts;
pub mod frames;
pub mod http;
pub mod images;
pub mod meters;
pub mod pages;
pub mod quantities;
pub mod state;
pub mod symbols;
pub mod trace;
pub mod welcome;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// Returns the folder of a target. The folder lies in a folder of this process that an exit handler
/// removes, because libFuzzer drops nothing.
fn folder(target: &str) -> PathBuf {
    static ALL: LazyLock<PathBuf> = LazyLock::new(|| {
        extern "C" fn remove() {
            let _ = std::fs::remove_dir_all(&*ALL as &Path);
        }
        // SAFETY: the handler only removes files.
        unsafe { libc::atexit(remove) };
        tempfile::tempdir().expect("a folder of our own").keep()
    });
    let folder = ALL.join(target);
    std::fs::create_dir_all(&folder).expect("a folder of our own");
    folder
}
