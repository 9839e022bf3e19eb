//! The sources that are charged for scarce resources (connections, probes), so that one source
//! cannot take all of them from the others.

use super::read;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher as _};

/// A source that is charged.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// A user, wherever the user's processes are.
    User(u32),
    /// A container of a user without a limit, because root inside a container is not root on the
    /// host.
    Place {
        /// The container's cgroup.
        path: String,
        /// The container's name for display.
        name: String,
    },
}

impl Source {
    /// Returns the source that is charged for this user's process.
    pub fn of(pid: u32, user: u32) -> Self {
        let place = if is_exempt(user) { read::place(pid) } else { None };
        // A daemon in a container serves that container's processes, so its own container is no
        // source.
        let place = place.filter(|place| read::place(std::process::id()).as_ref() != Some(place));
        place.map_or(Self::User(user), |place| Self::Place { name: place.name(), path: place.path })
    }

    /// Returns a number that distinguishes this source from others, if the source has a limit.
    pub fn number(&self) -> Option<u64> {
        self.has_limit().then(|| {
            let mut hasher = DefaultHasher::new();
            self.hash(&mut hasher);
            hasher.finish()
        })
    }

    /// Whether the source has a limit below the total.
    pub fn has_limit(&self) -> bool {
        match self {
            Self::User(user) => !is_exempt(*user),
            Self::Place { .. } => true,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(user) => write!(f, "user {user}"),
            Self::Place { name, .. } => f.write_str(name),
        }
    }
}

/// Whether a user's own processes have no limit: root and the daemon's user.
fn is_exempt(user: u32) -> bool {
    user == 0 || user == rustix::process::getuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_user_has_is_counted_for_the_user_and_who_is_where_the_daemon_is_has_no_limit() {
        assert_eq!(Source::of(std::process::id(), 4711), Source::User(4711));
        let own = rustix::process::getuid().as_raw();
        let here = Source::of(std::process::id(), own);
        assert!(here == Source::User(own) && !here.has_limit());
    }
}
