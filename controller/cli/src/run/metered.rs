//! A job that is metered from outside. Between fork and exec, the job's first process asks the
//! daemon to meter the process, and waits until the daemon meters it. So the daemon counts every
//! launch.

use super::{connect, libraries};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes the command's process ask the daemon at `socket` to meter the process for the tenant,
/// before the process starts the file `program`. If the daemon cannot meter the process, the
/// process prints the reason and goes on.
pub fn meter(command: &mut Command, program: &Path, socket: PathBuf, tenant: String) {
    let files: Vec<PathBuf> = libraries::find_driver().into_iter().chain([program.to_owned()]).collect();
    // SAFETY: this process has one thread, so its child between fork and exec may call any
    // function.
    unsafe {
        command.pre_exec(move || {
            // The daemon looks for the driver's functions in the files that this process has
            // mapped. So the process already maps two files that the program will map later: the
            // program and the driver's library.
            files.iter().for_each(|file| map(file));
            if let Err(error) = connect::be_metered(&socket, &tenant, std::process::id()) {
                eprintln!("deepres: the program runs, but the daemon does not count its launches: {error:#}");
            }
            Ok(())
        });
    }
}

/// Maps the beginning of a file. The mapping lasts until exec. If a file cannot be mapped, the
/// daemon cannot probe it.
fn map(path: &Path) {
    let Ok(file) = File::open(path) else { return };
    // SAFETY: the mapping is new memory, and no code reads it.
    let _ = unsafe { mmap(std::ptr::null_mut(), MAPPED_BYTES, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) };
}

/// One page is enough, because the daemon only looks at the file behind the mapping.
const MAPPED_BYTES: usize = 4096;
