//! A job that is metered from outside: between fork and exec its first process asks the daemon to count what it launches, and waits until the
//! daemon does. So nothing that it launches comes before.

use super::{connect, libraries};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Has the command's process, which runs the file `program`, ask the daemon at `socket` to meter it for the tenant, before it begins. If that cannot be, it says why and
/// begins.
pub fn meter(command: &mut Command, program: &Path, socket: PathBuf, tenant: String) {
    let files: Vec<PathBuf> = libraries::find_driver().into_iter().chain([program.to_owned()]).collect();
    // SAFETY: this process has one thread, so its child between fork and exec may do whatever it could.
    unsafe {
        command.pre_exec(move || {
            // The daemon looks for the driver's functions in what this process has mapped: what the program will map, or is.
            files.iter().for_each(|file| map(file));
            if let Err(error) = connect::be_metered(&socket, &tenant, std::process::id()) {
                eprintln!("deepres: the program runs, and what it launches is not counted: {error:#}");
            }
            Ok(())
        });
    }
}

/// Maps a file's beginning until exec takes the mapping away. What cannot be mapped is not probed.
fn map(path: &Path) {
    let Ok(file) = File::open(path) else { return };
    // SAFETY: memory of its own that nobody looks at.
    let _ = unsafe { mmap(std::ptr::null_mut(), MAPPED_BYTES, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) };
}

/// A page: the file behind it is what counts.
const MAPPED_BYTES: usize = 4096;
