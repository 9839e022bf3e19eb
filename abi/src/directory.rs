//! The places of the files of deepres. The daemon, the commands and the jobs use this one rule.
//!
//! Paths are bytes here. [`Directory::path`] returns the bytes one by one, because this crate does
//! not allocate.

/// The environment variable that names the directory.
pub const DIRECTORY_VARIABLE: &str = "DEEPRES_DIR";
/// The environment variable that names the tenant socket.
pub const SOCKET_VARIABLE: &str = "DEEPRES_SOCKET";
/// The environment variable that names the user's directory for files of the login session.
const RUNTIME_VARIABLE: &str = "XDG_RUNTIME_DIR";

/// The directory in [`Directory`] that contains only the tenant socket and the [`CLOSED_MARK`]. The
/// directory stays when a daemon ends. So a container that mounts the directory finds the next
/// daemon there, and never sees the admin socket.
pub const TENANT_DIRECTORY: &str = "tenant";
/// An empty file in the tenant directory, which a daemon with a closed fail mode leaves at its end.
/// The launches of processes that start later fail until a daemon runs.
pub const CLOSED_MARK: &str = "closed";
/// The tenant socket, in the tenant directory.
pub const TENANT_SOCKET: &str = "tenant.sock";
/// The admin socket, in [`Directory`].
pub const ADMIN_SOCKET: &str = "admin.sock";

const SYSTEM_DIRECTORY: &[u8] = b"/run/deepres";
/// The text that deepres appends to the user's runtime directory, to get the path of its own
/// directory.
const IN_RUNTIME_DIRECTORY: &[u8] = b"/deepres";
/// The text to which deepres appends the user's number, to get the path of a directory below
/// `/tmp`.
const TEMPORARY_PREFIX: &[u8] = b"/tmp/deepres-";
const ROOT: u32 = 0;

/// The values that decide which directory deepres uses: three environment variables and the user.
/// deepres ignores empty variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places<T> {
    directory: Option<T>,
    socket: Option<T>,
    runtime: Option<T>,
    user: u32,
}

/// A directory for the sockets and files of deepres.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Directory<'a> {
    /// The directory that the environment names, by its own path or by the path of the socket in
    /// the directory.
    Named(&'a [u8]),
    /// The system's directory. Root's daemon uses this directory, and serves all users.
    System,
    /// The user's own directory, inside this runtime directory.
    Runtime(&'a [u8]),
    /// The directory of the user with this number, if the user has no runtime directory. Any user
    /// may have created it, so the caller must check its owner.
    Temporary(u32),
}

impl<T: AsRef<[u8]>> Places<T> {
    /// Returns the values for the user with the number `user`. The function calls `variable` to
    /// read a variable of the environment.
    pub fn read(user: u32, variable: impl Fn(&'static str) -> Option<T>) -> Self {
        let named = |name| variable(name).filter(|value| !value.as_ref().is_empty());
        Self {
            directory: named(DIRECTORY_VARIABLE),
            socket: named(SOCKET_VARIABLE),
            runtime: named(RUNTIME_VARIABLE),
            user,
        }
    }

    /// Returns the tenant socket that the environment names. If the environment names a socket, a
    /// job uses no other socket.
    pub fn socket(&self) -> Option<&T> {
        self.socket.as_ref()
    }

    /// Returns the directory of the user's own daemon: the directory that the environment names.
    /// Otherwise, returns the system's directory for root, and the user's own directory for any
    /// other user.
    pub fn own(&self) -> Directory<'_> {
        match self.named() {
            Some(named) => named,
            None if self.user == ROOT => Directory::System,
            None => self.users(),
        }
    }

    /// Returns the directories in which to look for a daemon, the best first. If the environment
    /// names a directory, returns only that directory. Otherwise, returns the system's directory
    /// and the user's own.
    pub fn candidates(&self) -> impl Iterator<Item = Directory<'_>> {
        let (first, second) = match self.named() {
            Some(named) => (named, None),
            None => (Directory::System, (self.user != ROOT).then(|| self.users())),
        };
        core::iter::once(first).chain(second)
    }

    /// Returns the directory that belongs to the user alone, whatever the environment names.
    pub fn users(&self) -> Directory<'_> {
        match &self.runtime {
            Some(runtime) => Directory::Runtime(runtime.as_ref()),
            None => Directory::Temporary(self.user),
        }
    }

    fn named(&self) -> Option<Directory<'_>> {
        let of_socket = || self.socket.as_ref().map(|socket| directory_of(socket.as_ref()));
        self.directory.as_ref().map(AsRef::as_ref).or_else(of_socket).map(Directory::Named)
    }
}

/// Returns the directory of a tenant socket: the directory above [`TENANT_DIRECTORY`]. If the
/// socket lies in a directory of another name, returns that directory.
fn directory_of(socket: &[u8]) -> &[u8] {
    let parent = parent(socket);
    let name = parent.rsplit(|byte| *byte == b'/').next();
    if name == Some(TENANT_DIRECTORY.as_bytes()) { self::parent(parent) } else { parent }
}

/// Returns the part of a path before its last component.
fn parent(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) => b"/",
        Some(slash) => path.get(..slash).unwrap_or(path),
        None => b".",
    }
}

impl<'a> Directory<'a> {
    /// Returns the bytes of the directory's path, in order.
    pub fn path(self) -> impl Iterator<Item = u8> + use<'a> {
        let (start, end, user): (&[u8], &[u8], Option<u32>) = match self {
            Self::Named(path) => (path, b"", None),
            Self::System => (SYSTEM_DIRECTORY, b"", None),
            Self::Runtime(runtime) => (runtime, IN_RUNTIME_DIRECTORY, None),
            Self::Temporary(user) => (TEMPORARY_PREFIX, b"", Some(user)),
        };
        start.iter().chain(end).copied().chain(user.into_iter().flat_map(decimal))
    }
}

/// Returns the decimal digits of a number.
fn decimal(number: u32) -> impl Iterator<Item = u8> {
    const BASE: u32 = 10;
    (0..=number.checked_ilog10().unwrap_or(0))
        .rev()
        .map(move |place| b'0' + (number / BASE.pow(place) % BASE) as u8)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const USER: u32 = 1000;

    fn places(user: u32, variables: &[(&str, &'static str)]) -> Places<&'static str> {
        Places::read(user, |name| variables.iter().find(|(named, _)| *named == name).map(|(_, value)| *value))
    }

    fn text(directory: Directory<'_>) -> String {
        String::from_utf8(directory.path().collect()).unwrap()
    }

    fn candidates(places: &Places<&'static str>) -> Vec<String> {
        places.candidates().map(text).collect()
    }

    #[test]
    fn roots_daemon_is_the_systems() {
        let bare = places(ROOT, &[(RUNTIME_VARIABLE, "/run/user/0")]);
        assert_eq!(text(bare.own()), "/run/deepres");
        assert_eq!(candidates(&bare), ["/run/deepres"]);
    }

    #[test]
    fn a_users_own_daemon_is_looked_for_after_the_systems() {
        let session = places(USER, &[(RUNTIME_VARIABLE, "/run/user/1000")]);
        assert_eq!(text(session.own()), "/run/user/1000/deepres");
        assert_eq!(candidates(&session), ["/run/deepres", "/run/user/1000/deepres"]);
        for variables in [&[][..], &[(RUNTIME_VARIABLE, "")]] {
            let bare = places(USER, variables);
            assert_eq!(text(bare.own()), "/tmp/deepres-1000");
            assert_eq!(candidates(&bare), ["/run/deepres", "/tmp/deepres-1000"]);
        }
    }

    #[test]
    fn a_directory_that_is_named_is_the_only_one() {
        let named = places(ROOT, &[(DIRECTORY_VARIABLE, "/d"), (SOCKET_VARIABLE, "/e/tenant/tenant.sock")]);
        assert_eq!(text(named.own()), "/d");
        assert_eq!(candidates(&named), ["/d"]);
    }

    #[test]
    fn the_named_socket_tells_the_directory_too() {
        for (socket, directory) in [
            ("/e/tenant/tenant.sock", "/e"),
            ("/tenant/tenant.sock", "/"),
            ("tenant/tenant.sock", "."),
            ("/e/other.sock", "/e"),
            ("/other.sock", "/"),
            ("other.sock", "."),
        ] {
            let named = places(USER, &[(DIRECTORY_VARIABLE, ""), (SOCKET_VARIABLE, socket)]);
            assert_eq!(candidates(&named), [directory], "{socket}");
            assert_eq!(named.socket(), Some(&socket));
        }
        assert_eq!(places(USER, &[(SOCKET_VARIABLE, "")]).socket(), None);
    }

    #[test]
    fn users_are_written_in_decimal() {
        for user in [0, 7, 10, 65_534, u32::MAX] {
            assert_eq!(text(Directory::Temporary(user)), format!("/tmp/deepres-{user}"));
        }
    }
}
