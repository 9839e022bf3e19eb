//! The state file. The daemon reads the file once at its start, and later replaces the whole file
//! again and again.
//!
//! The daemon writes a new file beside the old file and renames it. So a reader always finds a
//! complete file, even if the daemon is killed at any moment.
//!
//! The daemon does not sync the file to the disk. The clock and the process ids in it are valid for
//! this run of the machine only. So after a power failure, the file is useless anyway. A daemon
//! that waits for a disk would be late for its tenants.

use super::{State, StateError, parse};
use deepres_model::clock::monotonic_ns;
use rustix::process::getuid;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The mode of the state file. Only the owner may read the file, because it shows which user runs
/// which programs.
const MODE: u32 = 0o600;
/// The largest file that the daemon reads or writes. The state of all processes that one daemon can
/// serve is smaller.
const MAX_BYTES: usize = 64 << 20;
/// Write permission for group and others.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// The file from which the daemon reads the kernel's id of this run of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The outcome of writing the state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Saved {
    /// An arbiter did not answer, so the state is incomplete. The daemon wrote nothing.
    Nothing,
    /// The file has this state already. The daemon wrote nothing.
    Already,
    /// The daemon wrote the state, because it differs from the state in the file.
    Anew,
    /// The daemon cannot write the file, for this reason.
    Failed(String),
}

/// The state file: its path, and the state that the daemon last wrote.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    boot: String,
    last: Option<State>,
    /// The most bytes that the daemon writes.
    most_bytes: usize,
    /// Whether the last attempt to write failed. The daemon logs a failure once.
    is_failing: bool,
    /// Whether the file lacks iterations or plans of the state. The daemon logs this once.
    is_short: bool,
}

impl StateFile {
    /// Returns the state file at `path`, for this run of the machine.
    pub fn at(path: PathBuf) -> Self {
        // Without /proc, the daemon could not recognise any process, so an empty id does no harm.
        let boot = std::fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned();
        Self { path, boot, last: None, most_bytes: MAX_BYTES, is_failing: false, is_short: false }
    }

    /// Returns the file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the kernel's id of this run of the machine.
    pub fn boot(&self) -> &str {
        &self.boot
    }

    /// Reads the state that the previous daemon saved since the machine started. Returns `None`
    /// without such a state. If the file cannot be trusted, renames it and logs this.
    pub fn load(&mut self) -> Option<State> {
        let bytes = match read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                self.refuse(&error);
                return None;
            }
        };
        match parse(&bytes) {
            Ok(state) if state.boot != self.boot => {
                tracing::info!(path = %self.path.display(), "the state is from before the machine started: all accounts begin anew");
                None
            }
            Ok(state) if state.saved_ns > monotonic_ns() => {
                self.refuse(&StateError::Future);
                None
            }
            Ok(state) => {
                self.last = Some(state.clone());
                Some(state)
            }
            Err(error) => {
                self.refuse(&error);
                None
            }
        }
    }

    fn refuse(&self, reason: &dyn std::error::Error) {
        let aside = self.path.with_extension("json.refused");
        let path = self.path.display();
        match std::fs::rename(&self.path, &aside) {
            Ok(()) => {
                tracing::warn!(%path, reason = %reason, aside = %aside.display(), "the daemon cannot use the state and set it aside: all accounts begin anew");
            }
            Err(error) => {
                tracing::warn!(%path, reason = %reason, %error, "the daemon can neither use the state nor set it aside: all accounts begin anew");
            }
        }
    }

    /// Forgets what the file contains, because the file is gone.
    pub fn forget(&mut self) {
        self.last = None;
    }

    /// Writes a state, unless the file has the same state already. If the state is too large,
    /// leaves out iterations and plans. Logs the first failure of several. The next state is
    /// another attempt.
    pub fn save(&mut self, mut state: State) -> Saved {
        if self.last.as_ref().is_some_and(|last| !state.differs_from(last)) {
            return Saved::Already;
        }
        match write(&self.path, &mut state, self.most_bytes) {
            Ok(left_out) => {
                self.last = Some(state);
                self.note_left_out(left_out);
                if std::mem::take(&mut self.is_failing) {
                    tracing::info!(path = %self.path.display(), "the daemon writes the state again");
                }
                Saved::Anew
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::warn!(path = %self.path.display(), %error, "the daemon cannot write the state: a restart would lose all charges from now on; make room there");
                }
                Saved::Failed(error.to_string())
            }
        }
    }

    /// Logs the first of several writes that left out iterations or plans.
    fn note_left_out(&mut self, left_out: usize) {
        let was_short = std::mem::replace(&mut self.is_short, left_out > 0);
        if self.is_short && !was_short {
            tracing::warn!(path = %self.path.display(), left_out, most_bytes = self.most_bytes, "the state file lacks the largest iterations or plans: the state has more bytes than a daemon reads; after a restart, learn their tenants again");
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let found = file.metadata()?;
    let refused = |reason| Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    if !found.is_file() {
        return refused("the path is not a file");
    }
    if found.uid() != getuid().as_raw() || found.mode() & WRITABLE_BY_OTHERS != 0 {
        return refused("another user owns the file or may write to it");
    }
    if found.len() > MAX_BYTES as u64 {
        return refused("the file is too large");
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes a state of at most `most_bytes`. Returns the number of iterations and plans that the file
/// lacks.
fn write(path: &Path, state: &mut State, most_bytes: usize) -> io::Result<usize> {
    let (bytes, left_out) = state.write_within(most_bytes)?;
    if bytes.len() > most_bytes {
        // The next daemon would refuse a larger file, and all accounts would begin anew.
        return Err(io::Error::other(format!("the state has {} bytes, more than {most_bytes}", bytes.len())));
    }
    let new = path.with_extension("json.new");
    // A killed daemon may have left an incomplete file, and another process may have left any file.
    // This line removes the file.
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&new)?;
    file.write_all(&bytes)?;
    std::fs::rename(&new, path)?;
    Ok(left_out)
}

#[cfg(test)]
mod tests {
    use super::super::tests::example;
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    fn file() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        (folder, path)
    }

    fn of_this_boot(path: &Path) -> State {
        State { boot: StateFile::at(path.to_owned()).boot, ..example() }
    }

    #[test]
    fn the_next_daemon_loads_the_state_that_a_daemon_saved() {
        let (folder, path) = file();
        assert!(StateFile::at(path.clone()).load().is_none());
        // A daemon was killed while it wrote.
        std::fs::write(folder.path().join("state.json.new"), "{\"deepres").unwrap();
        let state = of_this_boot(&path);
        StateFile::at(path.clone()).save(state.clone());
        assert_eq!(StateFile::at(path.clone()).load(), Some(state));
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, MODE);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn iterations_and_plans_never_keep_the_rest_of_a_state_from_the_file() {
        let (_folder, path) = file();
        let state = of_this_boot(&path);
        let needed = State { iterations: Vec::new(), plans: Vec::new(), ..state.clone() };
        let needed_bytes = needed.to_bytes().unwrap().len();
        let mut file = StateFile { most_bytes: needed_bytes, ..StateFile::at(path.clone()) };
        assert_eq!(file.save(state.clone()), Saved::Anew);
        assert!(file.is_short);
        assert_eq!(StateFile::at(path.clone()).load(), Some(needed));
        // The daemon does not write the same state again and again for what the file lacks.
        assert_eq!(file.save(state.clone()), Saved::Already);
        file.most_bytes = MAX_BYTES;
        assert_eq!(file.save(State { held: Vec::new(), ..state.clone() }), Saved::Anew);
        assert!(!file.is_short);
        let mut file = StateFile { most_bytes: needed_bytes - 1, ..StateFile::at(path) };
        assert!(matches!(file.save(state), Saved::Failed(_)));
    }

    #[test]
    fn a_state_from_before_the_machine_started_is_not_taken() {
        let (_folder, path) = file();
        StateFile::at(path.clone()).save(example());
        assert!(StateFile::at(path).load().is_none());
    }

    #[test]
    fn a_state_that_cannot_be_believed_is_set_aside_and_the_next_state_is_written() {
        let (folder, path) = file();
        let future = State { saved_ns: u64::MAX, ..of_this_boot(&path) }.to_bytes().unwrap();
        let exposed = of_this_boot(&path).to_bytes().unwrap();
        for (bytes, mode) in
            [(&b"garbage"[..], MODE), (b"", MODE), (&future, MODE), (&exposed, 0o666), (&[0xA5; 9999], MODE)]
        {
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let mut file = StateFile::at(path.clone());
            assert!(file.load().is_none());
            assert_eq!(std::fs::read(folder.path().join("state.json.refused")).unwrap(), bytes);
            file.save(of_this_boot(&path));
            assert!(StateFile::at(path.clone()).load().is_some());
        }
        // `load` does not follow a link to another file, and does not wait for a pipe that never
        // ends.
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(StateFile::at(path.clone()).load().is_none() && !path.exists());
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(StateFile::at(path.clone()).load().is_none() && !path.exists());
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_no_end_of_the_daemon() {
        let mut file = StateFile::at(PathBuf::from("/proc/no-such/state.json"));
        file.save(example());
        assert!(file.is_failing && file.last.is_none());
    }
}
