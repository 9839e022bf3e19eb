//! The daemon's directory: the daemon makes it safe, locks it, and creates the sockets in it.

use deepres_abi::directory::CLOSED_MARK;
use deepres_abi::grant::FailMode;
use deepres_model::directory::Directory;
use deepres_model::packet;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::getuid;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Mode of the directory of root's daemon, which serves every user.
const SHARED_DIRECTORY_MODE: u32 = 0o755;
/// Mode of the directory of another user's daemon, which serves only this user.
const OWN_DIRECTORY_MODE: u32 = 0o700;
/// Mode of the tenant socket's directory. A container that mounts the directory can look the socket
/// up. The socket has a mode of its own.
const TENANT_DIRECTORY_MODE: u32 = 0o755;
/// Mode of the tenant socket of root's daemon, to which every user may connect.
const SHARED_SOCKET_MODE: u32 = 0o666;
/// Mode of a socket or lock file that only the daemon's user and root may use.
const OWN_SOCKET_MODE: u32 = 0o600;
/// Mode of the admin socket if the members of a group may administer the daemon.
const GROUP_SOCKET_MODE: u32 = 0o660;
/// The kernel's table of Unix sockets.
const UNIX_SOCKETS: &str = "/proc/net/unix";
/// The flag of a listening socket in the table of Unix sockets (`__SO_ACCEPTCON`).
const LISTENING: u32 = 0x10000;
/// The time for which the daemon waits until no process listens at a socket.
const LISTENED_LIMIT: Duration = Duration::from_millis(500);
/// The time between two checks whether a process still listens at a socket.
const LISTENED_POLL: Duration = Duration::from_millis(10);
/// Write permission for group and others.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// The most bytes of a socket's path (`sun_path` in unix(7), without the null byte).
const MAX_SOCKET_BYTES: usize = 107;

/// The reason for which a directory cannot be a daemon's directory.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// A living daemon has the directory.
    #[error(
        "another deepres daemon ({pid}) serves {directory} already; use that daemon, or choose another directory by DEEPRES_DIR"
    )]
    Served {
        /// The process id that the other daemon wrote into its lock file.
        pid: String,
        /// The directory.
        directory: Directory,
    },
    /// A process listens at a socket without holding the daemon's lock. Most likely, the process is
    /// a service manager.
    #[error(
        "another process listens at {} already, most likely a service manager; start the daemon by it (`systemctl start deepres`), or choose another directory by DEEPRES_DIR", .0.display()
    )]
    Listened(PathBuf),
    /// Other users could put their files into the directory.
    #[error(
        "another user owns {} or may write to it; make it yours alone, or choose another directory by DEEPRES_DIR", .0.display()
    )]
    Unsafe(PathBuf),
    /// The kernel takes no socket at this path.
    #[error(
        "the path {} is too long for a socket: it has {bytes} bytes, and the most is {most}; choose a shorter directory by DEEPRES_DIR",
        .0.display(), bytes = .0.as_os_str().len(), most = MAX_SOCKET_BYTES
    )]
    TooLong(PathBuf),
    /// The group to which the socket should belong does not exist. The text is the group's name or
    /// number.
    #[error("there is no group `{0}` (admin_group); see `getent group`")]
    NoGroup(String),
    /// The file cannot be created.
    #[error("cannot create {}: {source}", path.display())]
    Unusable {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Sockets that a service manager opened for the daemon. The service manager keeps these sockets
/// when the daemon ends.
#[derive(Debug, Default)]
pub struct Inherited {
    /// The tenant socket.
    pub tenants: Option<OwnedFd>,
    /// The admin socket.
    pub administrators: Option<OwnedFd>,
}

/// The device and the number of a file.
type FileId = (u64, u64);

/// A socket that the daemon made: its path, and its identity as a file.
#[derive(Debug)]
struct Made {
    path: PathBuf,
    file: Option<FileId>,
}

impl Made {
    fn at(path: PathBuf) -> Self {
        Self { file: id_at(&path), path }
    }

    /// Returns whether the path still leads to the socket.
    fn is_there(&self) -> bool {
        self.file.is_some() && id_at(&self.path) == self.file
    }
}

fn id_at(path: &Path) -> Option<FileId> {
    std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Sockets that the daemon made anew, because somebody had removed the earlier sockets.
#[derive(Debug, Default)]
pub struct Renewed {
    /// The tenant socket.
    pub tenants: Option<OwnedFd>,
    /// The admin socket.
    pub administrators: Option<UnixListener>,
}

/// The daemon's files. When this value is dropped, it removes the sockets that the daemon made.
#[derive(Debug)]
pub struct Files {
    directory: Directory,
    admin_group: Option<u32>,
    /// The tenant socket that the daemon made; `None` if a service manager made it.
    own_tenants: Option<Made>,
    /// The admin socket that the daemon made; `None` if a service manager made it.
    own_administrators: Option<Made>,
    /// The tenant socket.
    pub tenants: OwnedFd,
    /// The admin socket.
    pub administrators: UnixListener,
    /// The lock file; its open descriptor holds the lock.
    lock: File,
    /// The fail mode of which the tenant directory tells.
    fail_mode: FailMode,
}

impl Files {
    /// Prepares `directory`: replaces the sockets of a dead daemon, and leaves a living daemon and
    /// inherited sockets alone. Lets the members of `admin_group` administer the daemon.
    ///
    /// # Errors
    /// [`FilesError`].
    pub fn prepare(
        directory: &Directory,
        inherited: Inherited,
        admin_group: Option<u32>,
    ) -> Result<Self, FilesError> {
        make_directories(directory)?;
        let lock = take_lock(directory)?;
        let (tenants, own_tenants) = match inherited.tenants {
            Some(socket) => {
                rustix::io::ioctl_fionbio(&socket, true).map_err(|error| FilesError::Unusable {
                    path: directory.tenant_socket(),
                    source: error.into(),
                })?;
                (socket, None)
            }
            None => make_tenant_socket(directory).map(|(socket, made)| (socket, Some(made)))?,
        };
        let (administrators, own_administrators) = match inherited.administrators {
            Some(socket) => {
                let socket = UnixListener::from(socket);
                let path = directory.admin_socket();
                socket.set_nonblocking(true).map_err(|source| FilesError::Unusable { path, source })?;
                (socket, None)
            }
            None => make_admin_socket(directory, admin_group).map(|(socket, made)| (socket, Some(made)))?,
        };
        let directory = directory.clone();
        let fail_mode = FailMode::Open;
        Ok(Self {
            directory,
            admin_group,
            own_tenants,
            own_administrators,
            tenants,
            administrators,
            lock,
            fail_mode,
        })
    }

    /// Tells processes that start after the daemon's end whether their launches fail
    /// ([`CLOSED_MARK`]).
    ///
    /// # Errors
    /// [`FilesError::Unusable`].
    pub fn mark(&mut self, fail_mode: FailMode) -> Result<(), FilesError> {
        self.fail_mode = fail_mode;
        let path = self.directory.tenant_directory().join(CLOSED_MARK);
        let marked = match fail_mode {
            FailMode::Closed => File::create(&path).map(drop),
            FailMode::Open => std::fs::remove_file(&path),
        };
        match marked {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(FilesError::Unusable { path, source })
            }
            _ => Ok(()),
        }
    }

    /// Returns whether a socket that the daemon made is gone from its place.
    pub fn are_lost(&self) -> bool {
        self.own_sockets().any(|made| !made.is_there())
    }

    /// Makes the directory and the lost sockets anew, and returns the new sockets. The earlier
    /// sockets still serve a container that mounts the former directory.
    ///
    /// # Errors
    /// [`FilesError`]. The caller may try again after [`FilesError::Unusable`]. After any other
    /// error, the directory belongs to another daemon.
    pub fn renew(&mut self) -> Result<Renewed, FilesError> {
        make_directories(&self.directory)?;
        let held = self.lock.metadata().ok().map(|found| (found.dev(), found.ino()));
        if id_at(&self.directory.lock_file()) != held {
            self.lock = take_lock(&self.directory)?;
        }
        let mut renewed = Renewed::default();
        if let Some(made) = self.own_tenants.as_mut().filter(|made| !made.is_there()) {
            let (socket, anew) = make_tenant_socket(&self.directory)?;
            (*made, renewed.tenants) = (anew, Some(socket));
        }
        if let Some(made) = self.own_administrators.as_mut().filter(|made| !made.is_there()) {
            let (socket, anew) = make_admin_socket(&self.directory, self.admin_group)?;
            (*made, renewed.administrators) = (anew, Some(socket));
        }
        self.mark(self.fail_mode)?;
        Ok(renewed)
    }

    fn own_sockets(&self) -> impl Iterator<Item = &Made> {
        self.own_tenants.iter().chain(&self.own_administrators)
    }
}

fn make_directories(directory: &Directory) -> Result<(), FilesError> {
    make_own_directory(directory)?;
    make_directory(&directory.tenant_directory(), TENANT_DIRECTORY_MODE)
}

fn make_tenant_socket(directory: &Directory) -> Result<(OwnedFd, Made), FilesError> {
    let path = free(directory.tenant_socket())?;
    let socket =
        packet::listener(&path).map_err(|source| FilesError::Unusable { path: path.clone(), source })?;
    set_mode(&path, if getuid().is_root() { SHARED_SOCKET_MODE } else { OWN_SOCKET_MODE })?;
    Ok((socket, Made::at(path)))
}

fn make_admin_socket(
    directory: &Directory,
    admin_group: Option<u32>,
) -> Result<(UnixListener, Made), FilesError> {
    let path = free(directory.admin_socket())?;
    let at = |source| FilesError::Unusable { path: path.clone(), source };
    let socket = UnixListener::bind(&path).map_err(at)?;
    match admin_group {
        None => set_mode(&path, OWN_SOCKET_MODE)?,
        Some(group) => {
            std::os::unix::fs::chown(&path, None, Some(group)).map_err(at)?;
            set_mode(&path, GROUP_SOCKET_MODE)?;
        }
    }
    socket.set_nonblocking(true).map_err(at)?;
    Ok((socket, Made::at(path)))
}

/// Removes the socket of a dead daemon, and returns the path.
fn free(path: PathBuf) -> Result<PathBuf, FilesError> {
    // After SIGKILL, a daemon can still be exiting.
    let until = Instant::now() + LISTENED_LIMIT;
    while path.exists() && is_listened_at(&path) {
        if Instant::now() >= until {
            return Err(FilesError::Listened(path));
        }
        std::thread::sleep(LISTENED_POLL);
    }
    match std::fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(FilesError::Unusable { path, source }),
        _ => Ok(path),
    }
}

/// Returns whether a process listens at a socket of this path, by the kernel's table. A trial
/// connection would disturb the listening process.
fn is_listened_at(path: &Path) -> bool {
    let Ok(table) = std::fs::read(UNIX_SOCKETS) else { return false };
    let wanted = path.as_os_str().as_bytes();
    table.split(|byte| *byte == b'\n').any(|line| {
        // The fields are: Num RefCount Protocol Flags Type St Inode Path. The path can contain
        // blanks.
        let mut rest = line;
        let mut field = || {
            let start = rest.iter().position(|byte| *byte != b' ')?;
            let (field, left) =
                rest[start..].split_at_checked(rest[start..].iter().position(|byte| *byte == b' ')?)?;
            rest = left.get(1..)?;
            Some(field)
        };
        let flags = field().and_then(|_| field()).and_then(|_| field()).and_then(|_| field());
        let is_listening = flags
            .and_then(|flags| std::str::from_utf8(flags).ok())
            .is_some_and(|flags| u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & LISTENING != 0));
        is_listening && field().and_then(|_| field()).and_then(|_| field()).is_some() && rest == wanted
    })
}

impl Drop for Files {
    fn drop(&mut self) {
        for made in self.own_sockets().filter(|made| made.is_there()) {
            // The call can fail, because the socket can be removed already.
            let _ = std::fs::remove_file(&made.path);
        }
        // A child process that another thread has just forked still holds the descriptor, so the
        // descriptor's end alone would not free the lock.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

/// Makes the directory. If the directory exists, checks that it belongs to this user alone.
fn make_directory(path: &Path, mode: u32) -> Result<(), FilesError> {
    let is_new = !path.exists();
    match DirBuilder::new().mode(mode).recursive(true).create(path) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            return Err(FilesError::Unusable { path: path.to_owned(), source });
        }
        _ => {}
    }
    if is_new {
        // The umask may have removed permissions.
        set_mode(path, mode)?;
    }
    match is_safe(path) {
        Ok(true) => Ok(()),
        Ok(false) => Err(FilesError::Unsafe(path.to_owned())),
        Err(source) => Err(FilesError::Unusable { path: path.to_owned(), source }),
    }
}

/// Returns whether a path leads to a directory that belongs to this user alone.
fn is_safe(path: &Path) -> io::Result<bool> {
    let found = std::fs::symlink_metadata(path)?;
    Ok(found.is_dir() && found.uid() == getuid().as_raw() && found.mode() & WRITABLE_BY_OTHERS == 0)
}

/// Checks that a daemon of this user would take the directory, for a caller that only reads files
/// in it.
///
/// # Errors
/// The system's error if there is no directory, else [`FilesError::Unsafe`].
pub fn check_own_directory(directory: &Directory) -> io::Result<()> {
    match is_safe(directory.path())? {
        true => Ok(()),
        false => Err(io::Error::other(FilesError::Unsafe(directory.path().to_owned()))),
    }
}

/// Makes the directory as a daemon would, for a caller that needs the directory before a daemon
/// runs.
///
/// # Errors
/// [`FilesError`].
pub fn make_own_directory(directory: &Directory) -> Result<(), FilesError> {
    // The tenant socket has the longest path.
    let socket = directory.tenant_socket();
    if socket.as_os_str().len() > MAX_SOCKET_BYTES {
        return Err(FilesError::TooLong(socket));
    }
    let mode = if getuid().is_root() { SHARED_DIRECTORY_MODE } else { OWN_DIRECTORY_MODE };
    make_directory(directory.path(), mode)
}

fn take_lock(directory: &Directory) -> Result<File, FilesError> {
    let path = directory.lock_file();
    let unusable = |source: io::Error| FilesError::Unusable { path: path.clone(), source };
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(OWN_SOCKET_MODE);
    let mut lock = options.open(&path).map_err(unusable)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let mut pid = String::new();
            let _ = lock.read_to_string(&mut pid);
            let pid = match pid.trim() {
                "" => "just starting".to_owned(),
                pid => format!("pid {pid}"),
            };
            return Err(FilesError::Served { pid, directory: directory.clone() });
        }
        Err(error) => return Err(unusable(error.into())),
    }
    lock.set_len(0).map_err(unusable)?;
    writeln!(lock, "{}", std::process::id()).map_err(unusable)?;
    Ok(lock)
}

/// Returns the number of a group, by its name or number.
///
/// # Errors
/// [`FilesError::NoGroup`].
pub fn group_number(group: &str) -> Result<u32, FilesError> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    match nix::unistd::Group::from_name(group) {
        Ok(Some(found)) => Ok(found.gid.as_raw()),
        _ => Err(FilesError::NoGroup(group.to_owned())),
    }
}

fn set_mode(path: &Path, mode: u32) -> Result<(), FilesError> {
    std::fs::set_permissions(path, Permissions::from_mode(mode))
        .map_err(|source| FilesError::Unusable { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{Shutdown, shutdown};

    #[test]
    fn a_dead_daemons_sockets_are_replaced_and_a_living_ones_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::at(scratch.path().join("d"));
        let first = Files::prepare(&directory, Inherited::default(), None).unwrap();
        let refused = Files::prepare(&directory, Inherited::default(), None).unwrap_err().to_string();
        assert!(refused.contains(&format!("pid {}", std::process::id())), "{refused}");
        packet::connection(&directory.tenant_socket()).unwrap();
        drop(first);
        assert!(!directory.tenant_socket().exists());
        // A killed daemon leaves its socket like this. A child process of another test can hold the
        // descriptor for a moment more.
        let killed = UnixListener::bind(directory.tenant_socket()).unwrap();
        shutdown(&killed, Shutdown::Both).unwrap();
        drop(killed);
        assert!(packet::connection(&directory.tenant_socket()).is_err());
        let _second = Files::prepare(&directory, Inherited::default(), None).unwrap();
        packet::connection(&directory.tenant_socket()).unwrap();
    }

    #[test]
    fn a_daemon_whose_directory_was_removed_makes_it_anew_unless_another_has_it() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::at(scratch.path().join("d"));
        let mut files = Files::prepare(&directory, Inherited::default(), None).unwrap();
        files.mark(FailMode::Closed).unwrap();
        assert!(!files.are_lost());
        std::fs::remove_dir_all(directory.path()).unwrap();
        assert!(files.are_lost());
        let renewed = files.renew().unwrap();
        assert!(renewed.tenants.is_some() && renewed.administrators.is_some() && !files.are_lost());
        let mark = directory.tenant_directory().join(CLOSED_MARK);
        assert!(mark.exists(), "the fail mode is told again");
        packet::connection(&directory.tenant_socket()).unwrap();
        assert!(Files::prepare(&directory, Inherited::default(), None).is_err(), "its lock is there again");
        // One lost socket comes back alone.
        std::fs::remove_file(directory.admin_socket()).unwrap();
        let again = files.renew().unwrap();
        assert!(again.tenants.is_none() && again.administrators.is_some());
        std::fs::remove_dir_all(directory.path()).unwrap();
        let mut others = Files::prepare(&directory, Inherited::default(), None).unwrap();
        File::create(&mark).unwrap();
        others.mark(FailMode::Open).unwrap();
        assert!(!mark.exists(), "a daemon with an open fail mode removes another's mark");
        assert!(matches!(files.renew(), Err(FilesError::Served { .. })));
        drop(files);
        assert!(directory.tenant_socket().exists(), "the other daemon's socket stays");
        drop(others);
    }

    #[test]
    fn sockets_that_somebody_else_listens_at_are_left_alone() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::at(scratch.path().join("a daemon's"));
        for taken in [directory.admin_socket(), directory.tenant_socket()] {
            drop(Files::prepare(&directory, Inherited::default(), None).unwrap());
            let theirs = UnixListener::bind(&taken).unwrap();
            let refused = Files::prepare(&directory, Inherited::default(), None).unwrap_err().to_string();
            assert!(refused.contains(&taken.display().to_string()), "{refused}");
            assert!(taken.exists() && is_listened_at(&taken));
            drop(theirs);
            // A child of another test has a copy until it executes its program.
            while is_listened_at(&taken) {
                std::thread::yield_now();
            }
        }
        let _files = Files::prepare(&directory, Inherited::default(), None).unwrap();
    }

    #[test]
    fn the_tenants_directory_stays_for_the_next_daemon_and_holds_their_socket_alone() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::at(scratch.path().join("d"));
        let first = Files::prepare(&directory, Inherited::default(), None).unwrap();
        let found = || std::fs::metadata(directory.tenant_directory()).unwrap();
        let inode = found().ino();
        assert_eq!(found().mode() & 0o777, 0o755);
        assert_eq!(std::fs::read_dir(directory.tenant_directory()).unwrap().count(), 1);
        drop(first);
        assert_eq!(std::fs::read_dir(directory.tenant_directory()).unwrap().count(), 0);
        let _second = Files::prepare(&directory, Inherited::default(), None).unwrap();
        assert_eq!(found().ino(), inode, "a mount of the directory shows the second daemon's socket");
    }

    #[test]
    fn a_directory_whose_sockets_paths_are_too_long_is_refused_with_the_limit() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = |bytes: usize| {
            let rest = bytes - Directory::at(scratch.path().join("")).tenant_socket().as_os_str().len() - 1;
            Directory::at(scratch.path().join("x".repeat(rest)))
        };
        let long = directory(MAX_SOCKET_BYTES + 1);
        let refused = Files::prepare(&long, Inherited::default(), None).unwrap_err().to_string();
        assert!(refused.contains("107") && refused.contains("DEEPRES_DIR"), "{refused}");
        assert!(!long.path().exists());
        Files::prepare(&directory(MAX_SOCKET_BYTES), Inherited::default(), None).unwrap();
    }

    #[test]
    fn only_administrators_reach_the_admin_socket() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::at(scratch.path().join("d"));
        let _files = Files::prepare(&directory, Inherited::default(), None).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&directory.admin_socket()), 0o600);
        if deepres_e2e::skip::root_or_skipped() {
            let _served =
                Files::prepare(&Directory::at(scratch.path().join("g")), Inherited::default(), Some(4711))
                    .unwrap();
            let admin_socket = scratch.path().join("g/admin.sock");
            assert_eq!((mode(&admin_socket), std::fs::metadata(&admin_socket).unwrap().gid()), (0o660, 4711));
        }
        assert!(matches!(group_number("no such group"), Err(FilesError::NoGroup(_))));
        let everyone = getuid().is_root();
        assert_eq!(mode(&directory.tenant_socket()), if everyone { 0o666 } else { 0o600 });
    }

    #[test]
    fn a_directory_that_others_write_to_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::set_permissions(scratch.path(), Permissions::from_mode(0o777)).unwrap();
        let directory = Directory::at(scratch.path());
        let prepared = Files::prepare(&directory, Inherited::default(), None);
        assert!(matches!(prepared, Err(FilesError::Unsafe(_))));
        assert!(check_own_directory(&directory).unwrap_err().to_string().contains("another user"));
        std::fs::set_permissions(scratch.path(), Permissions::from_mode(0o700)).unwrap();
        check_own_directory(&directory).unwrap();
    }
}
