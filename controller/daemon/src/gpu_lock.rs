//! One arbiter for each GPU of the host: a lock file per UUID, whose lock the kernel releases when
//! its holder dies.
//!
//! A daemon takes the lock in each of the usual places to which it may write (`/run/lock`, `/tmp`).
//! On some hosts only root may write to `/run/lock`. There, a user's daemon and root's daemon still
//! both take the lock in `/tmp`, so the two notice each other.
//!
//! Root's daemon has precedence: it replaces another user's lock file by a file of its own. The
//! other daemon sees the replacement ([`GpuLock::is_taken_away`]) and ends, and then root's daemon
//! begins. If a process that is no daemon holds the lock, root's daemon waits for at most
//! [`YIELD_LIMIT`].

use deepres_model::directory::Directory;
use deepres_model::text::harmless;
use rustix::fs::{Access, FlockOperation, Mode, OFlags, access, fchmod, flock, open};
use rustix::io::Errno;
use rustix::process::getuid;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Mode of a user's lock file. Every user may take the lock, so every user may open the file.
/// (`ROOT_MODE`: only root may open root's file, so that no user keeps root's daemon from the GPU.)
const MODE: u32 = 0o666;
const ROOT_MODE: u32 = 0o600;
/// The user id of root.
const ROOT: u32 = 0;
/// The most bytes that the daemon reads of the note in another daemon's lock file.
const MAX_NOTE_BYTES: u64 = 4096;
/// The time for which root's daemon waits for the end of a daemon whose lock file it replaced. The
/// other daemon looks every [`LOOK_EVERY`], opens its gates and saves its state.
const YIELD_LIMIT: Duration = Duration::from_secs(5);
/// The time between two checks of a daemon whether its locks are still its own.
pub const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The time between two checks of root's daemon whether the other daemon has released its lock.
const YIELD_LOOK: Duration = Duration::from_millis(10);
/// The most attempts to open a file that other processes create and remove again and again.
const OPEN_ATTEMPTS: u32 = 10;

/// The lock of a GPU. The daemon holds the lock until this value is dropped.
#[derive(Debug)]
pub struct GpuLock {
    path: PathBuf,
    file: File,
}

/// The reason for which the daemon cannot take a GPU's lock.
#[derive(Debug, thiserror::Error)]
pub enum GpuLockError {
    /// Another daemon has the GPU.
    #[error(
        "another deepres daemon ({holder}) manages GPU {uuid} already; use that daemon, or stop it first"
    )]
    Held {
        /// The UUID of the GPU, `GPU-…`.
        uuid: String,
        /// The process id and directory that the other daemon wrote into its lock file.
        holder: String,
    },
    /// Root's daemon has the GPU, or had the GPU before.
    #[error(
        "root's deepres daemon manages GPU {uuid}, or did so before; use that daemon, or have root remove {}", path.display()
    )]
    Roots {
        /// The UUID of the GPU, `GPU-…`.
        uuid: String,
        /// The path of the lock file.
        path: PathBuf,
    },
    /// The lock file cannot be used.
    #[error("cannot lock {}: {source}", path.display())]
    Unusable {
        /// The path of the lock file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Returns the directories of this host's GPU locks. Containers and some distributions lack
/// `/run/lock`, and in others only root may write to it. `/tmp` exists everywhere.
pub fn lock_directories() -> Vec<PathBuf> {
    ["/run/lock", "/tmp"].map(PathBuf::from).into_iter().filter(|place| place.is_dir()).collect()
}

impl GpuLock {
    /// Takes the locks of these GPUs in `places`, for the daemon in `directory`: all locks or none.
    /// Takes the locks of another user's daemon last. In a place to which this user may not write,
    /// only looks for a lock of root's daemon.
    ///
    /// # Errors
    /// [`GpuLockError::Held`] with the holder, or the reason for which a file cannot be used.
    pub fn take_all<'u>(
        places: &[PathBuf],
        uuids: impl IntoIterator<Item = &'u str>,
        directory: &Directory,
    ) -> Result<Vec<Self>, GpuLockError> {
        let uuids: Vec<&str> = uuids.into_iter().collect();
        let is_open = |place: &&PathBuf| access(*place, Access::WRITE_OK).is_ok();
        let (open, shut): (Vec<&PathBuf>, Vec<&PathBuf>) = places.iter().partition(is_open);
        let all = |places: Vec<&'_ PathBuf>| -> Vec<(PathBuf, &'u str)> {
            let of_place =
                |place: &PathBuf| uuids.iter().map(|uuid| (place.clone(), *uuid)).collect::<Vec<_>>();
            places.into_iter().flat_map(of_place).collect()
        };
        let is_roots = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.uid() == ROOT);
        let foreign = all(shut).into_iter().find(|(place, uuid)| is_roots(&lock_file(place, uuid)));
        if let Some((place, uuid)) = foreign {
            return Err(GpuLockError::Roots { uuid: uuid.to_owned(), path: lock_file(&place, uuid) });
        }
        if let (Some(place), true) = (places.first(), open.is_empty()) {
            let source = io::ErrorKind::PermissionDenied.into();
            return Err(GpuLockError::Unusable { path: place.clone(), source });
        }
        let mut wanted = all(open);
        wanted.sort_by_cached_key(|(place, uuid)| is_of_another(&lock_file(place, uuid), ROOT));
        wanted.into_iter().map(|(place, uuid)| Self::take(&place, uuid, directory)).collect()
    }

    fn take(locks: &Path, uuid: &str, directory: &Directory) -> Result<Self, GpuLockError> {
        let path = lock_file(locks, uuid);
        let unusable = |source: io::Error| GpuLockError::Unusable { path: path.clone(), source };
        let displaced = if getuid().is_root() { displace(&path, ROOT).map_err(unusable)? } else { None };
        let mut file = loop {
            let mut file = match open_shared(&path) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(GpuLockError::Roots { uuid: uuid.to_owned(), path });
                }
                opened => opened.map_err(unusable)?,
            };
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Between the opening and the locking, the holder may have removed the file.
                Ok(()) if is_at(&file, &path) => break file,
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    let mut holder = String::new();
                    let _ = (&mut file).take(MAX_NOTE_BYTES).read_to_string(&mut holder);
                    // Every user can write the note in the file.
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
        if displaced.is_some_and(|theirs| !is_given_up(&theirs, YIELD_LIMIT)) {
            tracing::warn!(path = %path.display(), "another process does not release the GPU's lock: the daemon goes on without waiting");
        }
        Ok(Self { path, file })
    }

    /// Returns whether root's daemon replaced this lock file. Root's daemon then manages the GPU as
    /// soon as this daemon has ended.
    pub fn is_taken_away(&self) -> bool {
        self.path.symlink_metadata().is_ok() && !is_at(&self.file, &self.path)
    }
}

impl Drop for GpuLock {
    /// Removes the file before the lock is released. A process that has the file open then sees
    /// that the file is gone. In a sticky directory, a process cannot remove the file of another
    /// user. Such a file stays, and does no harm.
    fn drop(&mut self) {
        if is_at(&self.file, &self.path) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn lock_file(locks: &Path, uuid: &str) -> PathBuf {
    locks.join(format!("deepres-gpu-{uuid}.lock"))
}

/// Returns whether `path` is a file of a user other than `owner`.
fn is_of_another(path: &Path, owner: u32) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_file() && found.uid() != owner)
}

/// Removes a lock file of a user other than `owner`, because any process of that user could hold
/// its lock for ever. Returns the removed file.
fn displace(path: &Path, owner: u32) -> io::Result<Option<File>> {
    // `open_shared` refuses a path that is no regular file.
    if !is_of_another(path, owner) {
        return Ok(None);
    }
    tracing::warn!(path = %path.display(), "the GPU's lock belongs to another user: the daemon takes it");
    // A daemon that is just ending removes its own file.
    let theirs = match open(path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened?,
    };
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(Some(theirs.into())),
    }
}

/// Returns whether the holder releases the lock on `file` within `limit`.
fn is_given_up(file: &File, limit: Duration) -> bool {
    let began = Instant::now();
    while flock(file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if began.elapsed() > limit {
            return false;
        }
        thread::sleep(YIELD_LOOK);
    }
    true
}

/// Returns whether `path` leads to the file that `file` has open.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |found: std::fs::Metadata| (found.dev(), found.ino());
    let there = path.symlink_metadata().map(identity).ok();
    there.is_some() && there == file.metadata().map(identity).ok()
}

/// Opens the file, which another user may have made. In a sticky directory, the kernel refuses
/// `O_CREAT` for such a file (`fs.protected_regular`). So the function uses `O_CREAT` only if no
/// file exists.
fn open_shared(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    for _ in 0..OPEN_ATTEMPTS {
        match open(path, flags, Mode::empty()) {
            Err(Errno::NOENT) => {}
            opened => return Ok(opened?.into()),
        }
        let mode = Mode::from_raw_mode(if getuid().is_root() { ROOT_MODE } else { MODE });
        match open(path, flags | OFlags::CREATE | OFlags::EXCL, mode) {
            Err(Errno::EXIST) => {}
            made => {
                let made = made?;
                // The umask may have removed permissions.
                fchmod(&made, mode)?;
                return Ok(made.into());
            }
        }
    }
    Err(io::Error::other("another process keeps creating and removing the file"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_e2e::users::as_user;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    use std::slice::from_ref;

    /// A user and a group that own nothing.
    const NOBODY: u32 = 65_534;

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
    fn another_users_daemon_loses_its_gpu_only_if_all_others_can_be_had() {
        if !deepres_e2e::skip::root_or_skipped() {
            return;
        }
        let locks = tempfile::tempdir().unwrap();
        let theirs = open_shared(&lock_file(locks.path(), "GPU-a")).unwrap();
        std::os::unix::fs::chown(lock_file(locks.path(), "GPU-a"), Some(NOBODY), None).unwrap();
        let places = [locks.path().to_owned()];
        let take =
            |directory: &str| GpuLock::take_all(&places, ["GPU-a", "GPU-b"], &Directory::at(directory));
        let roots = GpuLock::take(locks.path(), "GPU-b", &Directory::at("/first")).unwrap();
        assert!(matches!(take("/second"), Err(GpuLockError::Held { uuid, .. }) if uuid == "GPU-b"));
        assert!(is_at(&theirs, &lock_file(locks.path(), "GPU-a")), "it was left alone");
        drop(roots);
        let both = take("/second").unwrap();
        assert!(both.len() == 2 && !is_at(&theirs, &lock_file(locks.path(), "GPU-a")));
    }

    #[test]
    fn a_daemon_takes_the_lock_in_each_place_so_that_two_meet_in_any() {
        let places = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [first, second] = places.each_ref().map(|place| place.path().to_owned());
        let take = |places: &[PathBuf]| GpuLock::take_all(places, ["GPU-x"], &Directory::at("/d"));
        let both = take(&[first.clone(), second.clone()]).unwrap();
        assert_eq!(both.len(), 2);
        assert!(take(from_ref(&first)).is_err() && take(from_ref(&second)).is_err());
        drop(both);
        take(from_ref(&second)).unwrap();
        // No user may write to a place that does not exist.
        let gone = first.join("gone");
        assert!(matches!(take(from_ref(&gone)), Err(GpuLockError::Unusable { .. })));
        assert_eq!(take(&[gone, second]).unwrap().len(), 1);
    }

    /// On some hosts only root may write to `/run/lock`.
    #[test]
    fn a_plain_user_takes_the_lock_where_it_may_write_and_heeds_roots_lock_where_it_may_not() {
        let [shut, open] = [0o755, 0o1777].map(|mode| {
            let place = tempfile::tempdir().unwrap();
            std::fs::set_permissions(place.path(), Permissions::from_mode(mode)).unwrap();
            place
        });
        let [shut, open] = [shut.path().to_owned(), open.path().to_owned()];
        let places = [shut.clone(), open.clone()];
        let take = |places: &[PathBuf]| GpuLock::take_all(places, ["GPU-x"], &Directory::at("/d"));
        let Some(theirs) = as_user(NOBODY, NOBODY, || take(&places).unwrap()) else { return };
        let taken: Vec<_> = theirs.iter().map(|lock| lock.path.clone()).collect();
        assert_eq!(taken, [lock_file(&open, "GPU-x")]);
        drop(theirs);
        let alone = as_user(NOBODY, NOBODY, || take(from_ref(&shut)).map(drop)).unwrap();
        assert!(matches!(alone, Err(GpuLockError::Unusable { path, .. }) if path == shut));

        let roots = take(&places).unwrap();
        assert_eq!(roots.len(), 2);
        // The lock in the other place can be out of sight, for example in a private `/tmp`.
        std::fs::remove_file(lock_file(&open, "GPU-x")).unwrap();
        let refused = as_user(NOBODY, NOBODY, || take(&places).map(drop)).unwrap();
        let lock = lock_file(&shut, "GPU-x");
        assert!(matches!(refused, Err(GpuLockError::Roots { path, .. }) if path == lock));
        drop(roots);
        assert_eq!(as_user(NOBODY, NOBODY, || take(&places).unwrap().len()), Some(1));
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
    fn a_lock_file_of_another_user_keeps_nobody_from_the_gpu_for_ever() {
        let locks = tempfile::tempdir().unwrap();
        let path = locks.path().join("l");
        let theirs = open_shared(&path).unwrap();
        flock(&theirs, FlockOperation::NonBlockingLockExclusive).unwrap();
        let own = theirs.metadata().unwrap().uid();
        displace(&path, own).unwrap();
        assert!(is_at(&theirs, &path), "one's own is left alone");
        let displaced = displace(&path, own + 1).unwrap().unwrap();
        assert!(!is_given_up(&displaced, Duration::ZERO), "the daemon that has it may need a moment to end");
        let theirs_is_given_up = thread::spawn(move || is_given_up(&displaced, YIELD_LIMIT));
        drop(theirs);
        assert!(theirs_is_given_up.join().unwrap());
        flock(open_shared(&path).unwrap(), FlockOperation::NonBlockingLockExclusive).unwrap();
        let mode = path.metadata().unwrap().mode() & 0o777;
        assert_eq!(mode, if getuid().is_root() { ROOT_MODE } else { MODE });
    }

    #[test]
    fn a_daemon_that_lost_its_lock_sees_it_and_leaves_the_new_holders_alone() {
        let locks = tempfile::tempdir().unwrap();
        let first = GpuLock::take(locks.path(), "GPU-x", &Directory::at("/first")).unwrap();
        assert!(!first.is_taken_away());
        displace(&first.path, getuid().as_raw() + 1).unwrap();
        assert!(!first.is_taken_away(), "until another is there it serves");
        let second = GpuLock::take(locks.path(), "GPU-x", &Directory::at("/second")).unwrap();
        assert!(first.is_taken_away() && !second.is_taken_away());
        drop(first);
        assert!(!second.is_taken_away() && second.path.exists());
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
