//! The sources for which the daemon counts scarce resources (connections, probes), so that no
//! source can take all of them.

use super::read;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher as _};

/// A source of processes, for which the daemon counts resources.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// The processes of a user, also in containers, except the containers of [`Source::Place`].
    User(u32),
    /// A container of a user without a limit. The containers of root count separately, because root
    /// inside a container is not root on the host. Some containers (LXC, nspawn) have no cgroup
    /// that tells them apart, but a namespace.
    Place {
        /// The container's cgroup or namespace.
        path: String,
        /// The container's name for display.
        name: String,
    },
}

impl Source {
    /// Returns the source of a process of this user.
    pub fn of(pid: u32, user: u32) -> Self {
        if !is_exempt(user) {
            return Self::User(user);
        }
        // A daemon in a container serves the processes of that container. So its own container is
        // no source.
        let place = read::place(pid).filter(|place| read::place(std::process::id()).as_ref() != Some(place));
        let place = place.map(|place| Self::Place { name: place.name(), path: place.path });
        // In a namespace, a process can make any number of further namespaces. The outermost
        // namespace is the container's.
        let of_namespace = || {
            let namespace = read::outermost_namespace(pid)?;
            Some(Self::Place { path: namespace.path(), name: namespace.name() })
        };
        place.or_else(of_namespace).unwrap_or(Self::User(user))
    }

    /// Returns a number that distinguishes this source from other sources; `None` for a source
    /// without a limit.
    pub fn number(&self) -> Option<u64> {
        self.has_limit().then(|| {
            let mut hasher = DefaultHasher::new();
            self.hash(&mut hasher);
            hasher.finish()
        })
    }

    /// Returns whether the source has a limit below the limit for all.
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

/// Returns whether a user's own processes have no limit. Root and the daemon's user have no limit.
fn is_exempt(user: u32) -> bool {
    user == 0 || user == rustix::process::getuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_counts_for_its_user_and_the_daemons_own_user_has_no_limit() {
        assert_eq!(Source::of(std::process::id(), 4711), Source::User(4711));
        let own = rustix::process::getuid().as_raw();
        let here = Source::of(std::process::id(), own);
        assert!(here == Source::User(own) && !here.has_limit());
    }
}
