//! The places of a daemon's files, and the check of whether a socket can be trusted.

use deepres_abi::directory::{self as rule, ADMIN_SOCKET, Places, TENANT_DIRECTORY, TENANT_SOCKET};
use rustix::process::getuid;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The environment variable that names the user's directory for files of the login session.
const RUNTIME_VARIABLE: &str = "XDG_RUNTIME_DIR";
const ROOT: u32 = 0;
/// Write permission for others.
const WRITABLE_BY_OTHERS: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// A daemon's directory, which holds the daemon's sockets, lock file and state file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory(PathBuf);

impl fmt::Display for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

impl Directory {
    /// Returns the directory at `path`. A relative path starts at this process's present directory.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self(std::path::absolute(&path).unwrap_or(path))
    }

    /// Returns the directory's path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the directory of the tenant socket, which containers mount.
    pub fn tenant_directory(&self) -> PathBuf {
        self.0.join(TENANT_DIRECTORY)
    }

    /// Returns the socket to which tenants connect.
    pub fn tenant_socket(&self) -> PathBuf {
        self.tenant_directory().join(TENANT_SOCKET)
    }

    /// Returns the socket to which administrators connect.
    pub fn admin_socket(&self) -> PathBuf {
        self.0.join(ADMIN_SOCKET)
    }

    /// Returns the file on which a living daemon holds a lock.
    pub fn lock_file(&self) -> PathBuf {
        self.0.join("daemon.lock")
    }

    /// Returns the file in which a daemon saves state for the next daemon.
    pub fn state_file(&self) -> PathBuf {
        self.0.join("state.json")
    }

    /// Returns the file with the token for changes on the daemon's page.
    pub fn web_token_file(&self) -> PathBuf {
        self.0.join("web-token")
    }

    /// Returns the log file of a daemon that `deepres run` started.
    pub fn log_file(&self) -> PathBuf {
        self.0.join("daemon.log")
    }

    /// Returns the directory of this user's daemon: `DEEPRES_DIR`, else `/run/deepres` for root,
    /// else a directory of the user's own, in the user's runtime directory or below `/tmp`.
    pub fn own() -> Self {
        places().own().into()
    }

    /// Returns the system's directory. Root's daemon uses this directory, and serves all users.
    pub fn system() -> Self {
        rule::Directory::System.into()
    }

    /// Returns the directories in which a daemon can be, the best first. If the environment names a
    /// directory, the result has only that directory. Otherwise the system's directory comes before
    /// the user's.
    pub fn candidates() -> Vec<Self> {
        places().candidates().map(Self::from).collect()
    }
}

impl From<rule::Directory<'_>> for Directory {
    fn from(directory: rule::Directory<'_>) -> Self {
        Self::at(OsString::from_vec(directory.path().collect()))
    }
}

/// Returns the tenant socket that the environment names; `None` if it names none.
pub fn named_socket() -> Option<PathBuf> {
    places().socket().map(|socket| OsString::from_vec(socket.clone()).into())
}

/// Returns the places that follow from the environment and the user.
fn places() -> Places<Vec<u8>> {
    places_of(getuid().as_raw(), std::env::var_os)
}

/// Returns the places that follow from these variables. A runtime directory that does not exist
/// counts as none. The login service removes it when the user's last login ends, though jobs of the
/// user go on, and the user cannot make it anew.
fn places_of(user: u32, variable: impl Fn(&'static str) -> Option<OsString>) -> Places<Vec<u8>> {
    let is_gone = |name: &str, value: &OsString| name == RUNTIME_VARIABLE && !Path::new(value).is_dir();
    Places::read(user, |name| variable(name).filter(|value| !is_gone(name, value)).map(OsString::into_vec))
}

/// The reason why a socket cannot be trusted.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The socket does not exist.
    #[error("there is no {0}")]
    Missing(PathBuf),
    /// The file is not a socket.
    #[error("{0} is not a socket")]
    NotASocket(PathBuf),
    /// The socket or its directory belongs to another user.
    #[error("{path} belongs to user {owner}, not to you or root, so it is not your deepres daemon's")]
    Foreign {
        /// The socket or its directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Anyone may write to the directory, so anyone could have created the socket.
    #[error("all users may write to {0}, so the socket there may be another user's; run `chmod o-w {0}`")]
    Exposed(PathBuf),
    /// The socket or its directory cannot be examined.
    #[error("cannot look at {0}: {1}")]
    Unreadable(PathBuf, std::io::Error),
}

/// Checks that this user or root made `socket`, in a directory to which nobody else may write.
///
/// # Errors
/// [`TrustError`], which gives the reason.
pub fn check_socket(socket: &Path) -> Result<(), TrustError> {
    let look = |path: &Path| {
        std::fs::symlink_metadata(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => TrustError::Missing(socket.to_owned()),
            _ => TrustError::Unreadable(path.to_owned(), error),
        })
    };
    let trusted = |path: &Path, owner: u32| {
        if owner == ROOT || owner == getuid().as_raw() {
            Ok(())
        } else {
            Err(TrustError::Foreign { path: path.to_owned(), owner })
        }
    };
    let found = look(socket)?;
    if !found.file_type().is_socket() {
        return Err(TrustError::NotASocket(socket.to_owned()));
    }
    trusted(socket, found.uid())?;
    let parent = socket.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let parent_found = look(parent)?;
    trusted(parent, parent_found.uid())?;
    if parent_found.mode() & WRITABLE_BY_OTHERS != 0 && parent_found.mode() & STICKY == 0 {
        return Err(TrustError::Exposed(parent.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_socket_of_this_user_is_trusted_and_other_things_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        assert!(matches!(check_socket(&socket), Err(TrustError::Missing(_))));
        std::fs::write(&socket, "").unwrap();
        assert!(matches!(check_socket(&socket), Err(TrustError::NotASocket(_))));
        std::fs::remove_file(&socket).unwrap();
        let _listener = UnixListener::bind(&socket).unwrap();
        check_socket(&socket).unwrap();
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o777)).unwrap();
        assert!(matches!(check_socket(&socket), Err(TrustError::Exposed(_))));
    }

    #[test]
    fn a_user_whose_runtime_directory_was_removed_has_a_directory_below_tmp() {
        let runtime = tempfile::tempdir().unwrap();
        let named = |name: &str| (name == RUNTIME_VARIABLE).then(|| runtime.path().into());
        let own = || Directory::from(places_of(1000, named).own());
        assert_eq!(own().path(), runtime.path().join("deepres"));
        std::fs::remove_dir(runtime.path()).unwrap();
        assert_eq!(own().path(), Path::new("/tmp/deepres-1000"));
        let named_directory = |name: &str| (name == rule::DIRECTORY_VARIABLE).then(|| runtime.path().into());
        let of_name = Directory::from(places_of(1000, named_directory).own());
        assert_eq!(of_name.path(), runtime.path(), "a directory that the user names stays");
    }

    #[test]
    fn a_socket_of_another_user_is_not_trusted() {
        if !deepres_e2e::skip::root_or_skipped() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let _listener = UnixListener::bind(&socket).unwrap();
        std::os::unix::fs::lchown(&socket, Some(4711), None).unwrap();
        assert!(matches!(check_socket(&socket), Err(TrustError::Foreign { owner: 4711, .. })));
    }
}
