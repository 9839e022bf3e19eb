//! Where the files of deepres are: one rule for the daemon, for the commands and for the jobs.
//!
//! Paths are bytes here; [`Directory::path`] gives them one by one, since nothing in this crate allocates.

/// Names the directory.
pub const DIRECTORY_VARIABLE: &str = "DEEPRES_DIR";
/// Names the tenant socket.
pub const SOCKET_VARIABLE: &str = "DEEPRES_SOCKET";
/// Names the user's directory for what lives as long as their session does.
const RUNTIME_VARIABLE: &str = "XDG_RUNTIME_DIR";

/// The directory in [`Directory`] that holds the tenant socket and nothing else, and stays when a daemon ends: a container that has it
/// mounted meets the next daemon in it, and never the administrators' socket.
pub const TENANT_DIRECTORY: &str = "tenant";
/// The socket in it that tenants connect to.
pub const TENANT_SOCKET: &str = "tenant.sock";
/// The socket in [`Directory`] that administrators connect to.
pub const ADMIN_SOCKET: &str = "admin.sock";

const SYSTEM_DIRECTORY: &[u8] = b"/run/deepres";
/// Appended to the runtime directory.
const IN_RUNTIME_DIRECTORY: &[u8] = b"/deepres";
/// The user's number is appended.
const TEMPORARY_PREFIX: &[u8] = b"/tmp/deepres-";
const ROOT: u32 = 0;

/// What decides about the directory: three variables, each of them as if absent when empty, and the user.
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
    /// The environment names it, by itself or by the socket in it.
    Named(&'a [u8]),
    /// The system's: root's daemon serves everyone.
    System,
    /// The user's own, in their runtime directory.
    Runtime(&'a [u8]),
    /// The user's own where there is no runtime directory. Anyone may have made it: look whose it is.
    Temporary(u32),
}

impl<T: AsRef<[u8]>> Places<T> {
    /// Reads the environment by `variable`, for the user with the number `user`.
    pub fn read(user: u32, variable: impl Fn(&'static str) -> Option<T>) -> Self {
        let named = |name| variable(name).filter(|value| !value.as_ref().is_empty());
        Self {
            directory: named(DIRECTORY_VARIABLE),
            socket: named(SOCKET_VARIABLE),
            runtime: named(RUNTIME_VARIABLE),
            user,
        }
    }

    /// The tenant socket that the environment names: then a job has no other.
    pub fn socket(&self) -> Option<&T> {
        self.socket.as_ref()
    }

    /// Where this user's own daemon lives: the directory that the environment names, else the system's for root, else one of the
    /// user's own.
    pub fn own(&self) -> Directory<'_> {
        match self.named() {
            Some(named) => named,
            None if self.user == ROOT => Directory::System,
            None => self.users(),
        }
    }

    /// Where to look for a daemon, best first: what the environment names, and nothing else if it names one; else the system's, then
    /// the user's.
    pub fn candidates(&self) -> impl Iterator<Item = Directory<'_>> {
        let (first, second) = match self.named() {
            Some(named) => (named, None),
            None => (Directory::System, (self.user != ROOT).then(|| self.users())),
        };
        core::iter::once(first).chain(second)
    }

    fn users(&self) -> Directory<'_> {
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

/// The directory of a tenant socket: the parent of its own, if that has the name that it should.
fn directory_of(socket: &[u8]) -> &[u8] {
    let parent = parent(socket);
    let name = parent.rsplit(|byte| *byte == b'/').next();
    if name == Some(TENANT_DIRECTORY.as_bytes()) { self::parent(parent) } else { parent }
}

/// What comes before the last component of a path.
fn parent(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) => b"/",
        Some(slash) => path.get(..slash).unwrap_or(path),
        None => b".",
    }
}

impl<'a> Directory<'a> {
    /// The path's bytes, in their order.
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

/// The digits of a number.
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
