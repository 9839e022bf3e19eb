//! The log file of a daemon that `deepres run` started. The daemon limits its size.
//!
//! No other program rotates this log, so the daemon rotates it. A full file becomes
//! `daemon.log.old` and replaces the older file of that name.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The most bytes in one file, unless a single line is longer. Together with the older file, the
/// daemon keeps twice this number of bytes.
const LIMIT_BYTES: u64 = 4 << 20;
/// Ending of the older file's name.
const OLDER: &str = ".old";
/// Permissions: only the user may read the log.
const MODE: u32 = 0o600;

/// Opens a log for appending. Creates the file if it is missing.
pub fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(MODE).custom_flags(libc::O_NOFOLLOW).open(path)
}

/// A log file. Clones write to the same file.
#[derive(Debug, Clone)]
pub struct LogFile(Arc<Mutex<Open>>);

#[derive(Debug)]
struct Open {
    path: PathBuf,
    file: File,
    size_bytes: u64,
    /// Whether stdout and stderr of this process go into the file too.
    has_output: bool,
}

impl LogFile {
    /// Opens the log at `path`. Stdout and stderr must already go to this file.
    pub fn of_output(path: &Path) -> io::Result<Self> {
        Self::new(path, true)
    }

    fn new(path: &Path, has_output: bool) -> io::Result<Self> {
        let file = open(path)?;
        let size_bytes = file.metadata()?.len();
        Ok(Self(Arc::new(Mutex::new(Open { path: path.to_owned(), file, size_bytes, has_output }))))
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A poisoned lock does no harm, because the file stays usable after a panic.
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.make_room(bytes.len() as u64);
        let written = open.file.write(bytes)?;
        open.size_bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Open {
    /// Starts a new file if `more_bytes` do not fit into this one.
    fn make_room(&mut self, more_bytes: u64) {
        if self.size_bytes == 0 || self.size_bytes.saturating_add(more_bytes) <= LIMIT_BYTES {
            return;
        }
        if self.rotate().is_err() {
            // If the log cannot make a new file, it empties this file.
            let _ = self.file.set_len(0);
        }
        self.size_bytes = 0;
    }

    fn rotate(&mut self) -> io::Result<()> {
        let mut older = OsString::from(&self.path);
        older.push(OLDER);
        match std::fs::rename(&self.path, older) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.file = open(&self.path)?;
        if self.has_output {
            for output in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
                // SAFETY: both descriptors are open, and this process uses stdout and stderr only
                // for output.
                if unsafe { libc::dup2(self.file.as_raw_fd(), output) } < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    const LINE: &[u8] = b"a line of some length, as a daemon writes them\n";

    #[test]
    fn a_log_that_is_full_is_set_aside_and_no_more_than_two_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("daemon.log");
        std::fs::write(&path, "from before\n").unwrap();
        let mut log = LogFile::new(&path, false).unwrap();
        let lines = 3 * LIMIT_BYTES / LINE.len() as u64;
        for _ in 0..lines {
            log.write_all(LINE).unwrap();
        }
        log.clone().write_all(b"the last\n").unwrap();
        let (now, older) =
            (std::fs::read(&path).unwrap(), std::fs::read(folder.path().join("daemon.log.old")).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
        assert!(now.len() as u64 <= LIMIT_BYTES && older.len() as u64 <= LIMIT_BYTES);
        assert!(older.len() as u64 > LIMIT_BYTES - LINE.len() as u64, "it was full");
        assert!(now.ends_with(b"the last\n"));
        assert!(older.chunks(LINE.len()).all(|line| line == LINE), "no line is torn");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, MODE);
    }

    #[test]
    fn a_log_that_cannot_be_set_aside_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("daemon.log");
        let mut log = LogFile::new(&path, false).unwrap();
        log.write_all(&vec![b'x'; LIMIT_BYTES as usize]).unwrap();
        std::fs::create_dir(folder.path().join("daemon.log.old")).unwrap();
        log.write_all(LINE).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), LINE);
        // If somebody removes the file, the log creates a new one when it is full.
        log.write_all(&vec![b'x'; LIMIT_BYTES as usize]).unwrap();
        std::fs::remove_file(&path).unwrap();
        log.write_all(LINE).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), LINE);
    }
}
