//! One arbiter for each GPU of the host: a lock per UUID that the kernel releases when its holder dies.

use crate::directory::Directory;
use crate::text::harmless;
use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock, open};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Every user may take the lock, so every user may open the file.
const MODE: u32 = 0o666;
/// Bytes read of what the holder wrote about itself.
const MAX_NOTE_BYTES: u64 = 4096;
/// How often the file may come and go between two system calls before we give up.
const OPEN_ATTEMPTS: u32 = 10;

/// The lock; held while this lives.
#[derive(Debug)]
pub struct GpuLock {
    path: PathBuf,
    #[expect(dead_code, reason = "held for its lock")]
    file: File,
}

/// Why a GPU cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum GpuLockError {
    /// Another daemon has it.
    #[error(
        "GPU {uuid} is managed by another deepres daemon already ({holder}); use that one, or stop it first"
    )]
    Held {
        /// The GPU.
        uuid: String,
        /// Its process and directory, as it wrote them down.
        holder: String,
    },
    /// The lock cannot be taken.
    #[error("cannot lock {}: {source}", path.display())]
    Unusable {
        /// The lock file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Where the locks of this host are.
pub fn lock_directory() -> PathBuf {
    let usual = Path::new("/run/lock");
    // A container or a foreign distribution may lack it; /tmp is everywhere, and sticky too.
    if usual.is_dir() { usual.to_owned() } else { PathBuf::from("/tmp") }
}

impl GpuLock {
    /// Takes the lock of the GPU `uuid` for the daemon in `directory`.
    ///
    /// # Errors
    /// [`GpuLockError::Held`], with the holder, or why the file cannot be used.
    pub fn take(locks: &Path, uuid: &str, directory: &Directory) -> Result<Self, GpuLockError> {
        let path = locks.join(format!("deepres-gpu-{uuid}.lock"));
        let unusable = |source: io::Error| GpuLockError::Unusable { path: path.clone(), source };
        let mut file = loop {
            let mut file = open_shared(&path).map_err(unusable)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Unless its holder removed it between our opening and locking it.
                Ok(()) if is_at(&file, &path) => break file,
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    let mut holder = String::new();
                    let _ = (&mut file).take(MAX_NOTE_BYTES).read_to_string(&mut holder);
                    // Every user can write it.
                    let holder = harmless(holder.trim());
                    return Err(GpuLockError::Held {
                        uuid: uuid.to_owned(),
                        holder: if holder.is_empty() { "just starting".to_owned() } else { holder },
                    });
                }
                Err(error) => return Err(unusable(error.into())),
            }
        };
        file.set_len(0).map_err(unusable)?;
        writeln!(file, "pid {}, directory {directory}", std::process::id()).map_err(unusable)?;
        Ok(Self { path, file })
    }
}

impl Drop for GpuLock {
    /// Removes the file, still locked: who has it open sees that it is no longer there. In a sticky directory another user's
    /// file stays, which does no harm.
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Whether `path` leads to this very file.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |found: std::fs::Metadata| (found.dev(), found.ino());
    let there = path.symlink_metadata().map(identity).ok();
    there.is_some() && there == file.metadata().map(identity).ok()
}

/// Opens the file, which another user may have made. Where `fs.protected_regular` is on, opening such a file in a sticky
/// directory with `O_CREAT` is refused, so that is tried only when there is none.
fn open_shared(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    for _ in 0..OPEN_ATTEMPTS {
        match open(path, flags, Mode::empty()) {
            Err(Errno::NOENT) => {}
            opened => return Ok(opened?.into()),
        }
        match open(path, flags | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(MODE)) {
            Err(Errno::EXIST) => {}
            made => {
                let made = made?;
                // Whatever the umask took away.
                fchmod(&made, Mode::from_raw_mode(MODE))?;
                return Ok(made.into());
            }
        }
    }
    Err(io::Error::other("it keeps coming and going"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_to_come_is_told_who_holds_the_gpu_and_gets_it_once_that_one_is_gone() {
        let locks = tempfile::tempdir().unwrap();
        let take = |directory: &str| GpuLock::take(locks.path(), "GPU-x", &Directory::at(directory));
        let first = take("/first").unwrap();
        let refused = take("/second").unwrap_err().to_string();
        assert!(refused.contains("/first") && refused.contains(&std::process::id().to_string()), "{refused}");
        drop(first);
        let second = take("/second").unwrap();
        assert!(take("/third").is_err());
        drop(second);
        assert_eq!(std::fs::read_dir(locks.path()).unwrap().count(), 0, "nothing is left behind");
    }

    #[test]
    fn a_lock_file_that_was_removed_is_not_taken_for_the_lock() {
        let locks = tempfile::tempdir().unwrap();
        let path = locks.path().join("l");
        let opened = open_shared(&path).unwrap();
        assert!(is_at(&opened, &path));
        std::fs::remove_file(&path).unwrap();
        assert!(!is_at(&opened, &path));
        let another = open_shared(&path).unwrap();
        assert!(!is_at(&opened, &path) && is_at(&another, &path));
    }

    #[test]
    fn a_link_in_the_place_of_the_lock_is_not_followed() {
        let locks = tempfile::tempdir().unwrap();
        let target = locks.path().join("precious");
        std::fs::write(&target, "data").unwrap();
        std::os::unix::fs::symlink(&target, locks.path().join("deepres-gpu-GPU-x.lock")).unwrap();
        assert!(matches!(
            GpuLock::take(locks.path(), "GPU-x", &Directory::at("/d")),
            Err(GpuLockError::Unusable { .. })
        ));
        assert_eq!(std::fs::read_to_string(target).unwrap(), "data");
    }
}
