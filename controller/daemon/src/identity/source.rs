//! Whom that is counted for which one may not take from the others: connections, probes.

use super::read;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher as _};

/// Whom something is counted for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// A user, wherever its processes are.
    User(u32),
    /// A container of a user without a limit: root in there is not root out here.
    Place {
        /// Its cgroup.
        path: String,
        /// Its name for people.
        name: String,
    },
}

impl Source {
    /// Whom what this user's process takes is counted for.
    pub fn of(pid: u32, user: u32) -> Self {
        let place = if is_exempt(user) { read::place(pid) } else { None };
        // A daemon in a container is there for those who are in it.
        let place = place.filter(|place| read::place(std::process::id()).as_ref() != Some(place));
        place.map_or(Self::User(user), |place| Self::Place { name: place.name(), path: place.path })
    }

    /// A number that tells it from others, if it may not have all that there is.
    pub fn number(&self) -> Option<u64> {
        self.has_limit().then(|| {
            let mut hasher = DefaultHasher::new();
            self.hash(&mut hasher);
            hasher.finish()
        })
    }

    /// Whether it may not have all that there is.
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

/// Whether a user's own processes may have as many connections as there are.
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
