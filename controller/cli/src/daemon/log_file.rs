//! The log of a daemon that `deepres run` started: a file that does not grow without end.
//!
//! Nobody rotates it from outside, so the daemon does: a file that is full becomes `daemon.log.old`, in place of the one before.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of one file, at most, but for a line that is longer. With the older one twice as much is kept.
const LIMIT_BYTES: u64 = 4 << 20;
/// What the older one's name ends in.
const OLDER: &str = ".old";
/// It is its user's alone.
const MODE: u32 = 0o600;

/// Opens a log to go on with, and makes it if there is none.
pub fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(MODE).custom_flags(libc::O_NOFOLLOW).open(path)
}

/// A log file. Clones write to the same one.
#[derive(Debug, Clone)]
pub struct LogFile(Arc<Mutex<Open>>);

#[derive(Debug)]
struct Open {
    path: PathBuf,
    file: File,
    size_bytes: u64,
    /// What this process and its libraries write to stdout and stderr goes into it too.
    has_output: bool,
}

impl LogFile {
    /// Goes on with the log at `path`, where stdout and stderr go already.
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
        // Who panicked with it left a file that can be written to all the same.
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
    /// Begins a new file if so much more is too much for this one.
    fn make_room(&mut self, more_bytes: u64) {
        if self.size_bytes == 0 || self.size_bytes.saturating_add(more_bytes) <= LIMIT_BYTES {
            return;
        }
        if self.rotate().is_err() {
            // Where no file can be made, this one begins anew.
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
                // SAFETY: both are open, and nothing here takes either for anything but where output goes.
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
        // One that somebody removed is made again.
        log.write_all(&vec![b'x'; LIMIT_BYTES as usize]).unwrap();
        std::fs::remove_file(&path).unwrap();
        log.write_all(LINE).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), LINE);
    }
}
