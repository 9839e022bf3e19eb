//! The daemon's configuration: a TOML file, every key optional. `deploy/deepres.toml` documents each.

mod keys;

use crate::policy::tuning::QuantumBounds;
use crate::quantity::{parse_bytes, parse_share};
use deepres_abi::PPM;
use deepres_abi::grant::{FailMode, NO_LIMIT};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The system's configuration file.
const SYSTEM_FILE: &str = "/etc/deepres/deepres.toml";
/// The user's, below the directory for configuration.
const USER_FILE: &str = "deepres/deepres.toml";

/// Bounds of the heartbeat limit: below, a busy machine's scheduler looks like a dead daemon; above, a dead one holds everybody up.
const HEARTBEAT_LIMIT_MS: Range<u64> = 20..60_001;
/// Bounds of the quantum, ms: below, hand-offs eat the GPU; above, waiting is felt.
const QUANTUM_MS: Range<u64> = 1..1_001;
/// Bounds of the number of connections: some, and no more than there are descriptors on any machine.
const MAX_CONNECTIONS: Range<u64> = 1..1_000_001;

/// What the daemon goes by.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// After how long without a heartbeat tenants take the daemon for gone.
    pub heartbeat_limit_ms: u64,
    /// What they do then.
    pub fail_mode: FailModeKey,
    /// How long a tenant is listed after its last process.
    pub tenant_linger_s: u64,
    /// How long a daemon that `deepres run` started stays without tenants.
    pub idle_exit_s: u64,
    /// Connections at a time.
    pub max_connections: usize,
    /// Bounds of the quantum.
    pub quantum: QuantumKeys,
    /// Caps for every user.
    pub caps: Caps,
    /// Caps for single users, by number, instead of those for all.
    pub users: BTreeMap<String, Caps>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            heartbeat_limit_ms: 250,
            fail_mode: FailModeKey::Open,
            tenant_linger_s: 60,
            idle_exit_s: 600,
            max_connections: 4096,
            quantum: QuantumKeys::default(),
            caps: Caps::default(),
            users: BTreeMap::new(),
        }
    }
}

/// What tenants do when the daemon is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailModeKey {
    /// Go on, ungated.
    Open,
    /// Let launches fail.
    Closed,
}

impl FailModeKey {
    /// Its word in the grant page.
    pub fn mode(self) -> FailMode {
        match self {
            Self::Open => FailMode::Open,
            Self::Closed => FailMode::Closed,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
        }
    }
}

/// Bounds of the quantum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QuantumKeys {
    /// The shortest.
    pub min_ms: u64,
    /// The longest.
    pub max_ms: u64,
}

impl Default for QuantumKeys {
    fn default() -> Self {
        let QuantumBounds { min_ns, max_ns } = QuantumBounds::default();
        Self { min_ms: min_ns / crate::clock::NS_PER_MS, max_ms: max_ns / crate::clock::NS_PER_MS }
    }
}

/// What each tenant of a user may have at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Caps {
    /// Share, parts per million.
    #[serde(rename = "share", deserialize_with = "share")]
    pub share_ppm: u32,
    /// Memory on each GPU, bytes.
    #[serde(rename = "memory", deserialize_with = "memory")]
    pub memory_bytes: u64,
}

impl Default for Caps {
    fn default() -> Self {
        Self { share_ppm: PPM, memory_bytes: NO_LIMIT }
    }
}

fn share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    parse_share(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

/// The word for no limit.
const UNLIMITED: &str = "unlimited";

fn memory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    match String::deserialize(deserializer)?.as_str() {
        UNLIMITED => Ok(NO_LIMIT),
        text => parse_bytes(text).map_err(serde::de::Error::custom),
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Something in it is wrong.
    #[error("{}:{line}: {message}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        message: String,
    },
}

impl Config {
    /// Reads `file`, else the user's file (but for root), else the system's; without any, the defaults.
    ///
    /// # Errors
    /// [`ConfigError`], naming file and line.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        if let Some(file) = file {
            return Self::read(file);
        }
        match default_files().into_iter().find(|file| file.exists()) {
            Some(file) => Self::read(&file),
            None => Ok(Self::default()),
        }
    }

    fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
        Self::parse(&text).map_err(|(line, message)| ConfigError::Invalid {
            path: path.to_owned(),
            line,
            message,
        })
    }

    /// Reads a configuration, or says what is wrong in which line.
    fn parse(text: &str) -> Result<Self, (usize, String)> {
        let line_at = |offset: usize| text[..offset.min(text.len())].matches('\n').count() + 1;
        let at = |error: toml::de::Error| {
            (line_at(error.span().map_or(0, |span| span.start)), error.message().replace('\n', " "))
        };
        let table = toml::de::DeTable::parse(text).map_err(at)?;
        if let Some(unknown) = keys::first_unknown(table.get_ref()) {
            return Err((line_at(unknown.offset), unknown.message));
        }
        let config: Self = toml::from_str(text).map_err(at)?;
        config.check().map_err(|(key, message)| {
            let offset = text.lines().position(|line| line.trim_start().starts_with(key)).unwrap_or(0);
            (offset + 1, message)
        })?;
        Ok(config)
    }

    /// Bounds that no type expresses: the offending key and what is wrong with it.
    fn check(&self) -> Result<(), (&'static str, String)> {
        let within = |key, value, bounds: &Range<u64>| {
            if bounds.contains(&value) {
                Ok(())
            } else {
                Err((
                    key,
                    format!("`{key}` is {value}; it must be from {} to {}", bounds.start, bounds.end - 1),
                ))
            }
        };
        within("max_connections", self.max_connections as u64, &MAX_CONNECTIONS)?;
        within("heartbeat_limit_ms", self.heartbeat_limit_ms, &HEARTBEAT_LIMIT_MS)?;
        within("min_ms", self.quantum.min_ms, &QUANTUM_MS)?;
        within("max_ms", self.quantum.max_ms, &QUANTUM_MS)?;
        if self.quantum.min_ms > self.quantum.max_ms {
            return Err(("min_ms", "`min_ms` is more than `max_ms`".to_owned()));
        }
        match self.users.keys().find(|uid| uid.parse::<u32>().is_err()) {
            Some(uid) => Err(("[users", format!("`{uid}` is not a user number (see `id -u NAME`)"))),
            None => Ok(()),
        }
    }

    /// After how long without a heartbeat tenants take the daemon for gone.
    pub fn heartbeat_limit(&self) -> Duration {
        Duration::from_millis(self.heartbeat_limit_ms)
    }

    /// How long a tenant is listed after its last process.
    pub fn tenant_linger(&self) -> Duration {
        Duration::from_secs(self.tenant_linger_s)
    }

    /// How long a daemon that `deepres run` started stays without tenants.
    pub fn idle_exit(&self) -> Duration {
        Duration::from_secs(self.idle_exit_s)
    }

    /// Bounds of the quantum.
    pub fn quantum_bounds(&self) -> QuantumBounds {
        QuantumBounds {
            min_ns: self.quantum.min_ms * crate::clock::NS_PER_MS,
            max_ns: self.quantum.max_ms * crate::clock::NS_PER_MS,
        }
    }

    /// What the tenants of this user may have.
    pub fn caps_of(&self, uid: u32) -> Caps {
        self.users.get(&uid.to_string()).copied().unwrap_or(self.caps)
    }
}

fn default_files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    if !rustix::process::getuid().is_root() {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = variable("XDG_CONFIG_HOME").or_else(|| variable("HOME").map(|home| home.join(".config")));
        files.extend(home.map(|home| home.join(USER_FILE)));
    }
    files.push(PathBuf::from(SYSTEM_FILE));
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_file_is_the_defaults_and_documents_every_key() {
        let documented = include_str!("../../deploy/deepres.toml");
        assert_eq!(Config::parse(documented), Ok(Config::default()));
        let uncommented: String = documented
            .lines()
            .map(|line| {
                line.strip_prefix("# ")
                    .filter(|line| line.contains(" = ") || line.starts_with('['))
                    .unwrap_or(line)
            })
            .map(|line| format!("{line}\n"))
            .collect();
        assert_ne!(uncommented, documented);
        let mut config = Config::parse(&uncommented).unwrap();
        assert!(!config.users.is_empty(), "the example of a user is there");
        config.users.clear();
        assert_eq!(config, Config::default());
        for key in keys::all() {
            assert!(uncommented.contains(&format!("{key} = ")), "{key} is not documented");
        }
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_line_and_the_nearest_name() {
        let (line, message) = Config::parse("fail_mode = \"open\"\nheartbeat_limt_ms = 100\n").unwrap_err();
        assert_eq!(line, 2);
        assert_eq!(message, "unknown key `heartbeat_limt_ms`; did you mean `heartbeat_limit_ms`?");
        let (line, message) = Config::parse("[quantum]\nmin_ms = 5\nmaxms = 9\n").unwrap_err();
        assert_eq!((line, message.as_str()), (3, "unknown key `quantum.maxms`; did you mean `max_ms`?"));
        let (_, message) = Config::parse("[users.7]\nzzz = 9\n").unwrap_err();
        assert!(message.contains("the keys here are share, memory"), "{message}");
    }

    #[test]
    fn impossible_values_are_refused_with_their_line() {
        for (text, line, part) in [
            ("\nheartbeat_limit_ms = 1\n", 2, "from 20"),
            ("[caps]\nshare = \"200%\"\n", 2, "percentage"),
            ("[caps]\nmemory = \"12XB\"\n", 2, "size"),
            ("[quantum]\nmin_ms = 9\nmax_ms = 8\n", 2, "more than"),
            ("fail_mode = \"ajar\"\n", 1, "ajar"),
            ("[users.bob]\nshare = \"10%\"\n", 1, "id -u"),
            ("fail_mode = \n", 1, ""),
            ("max_connections = 0\n", 1, "from 1"),
        ] {
            let (found, message) = Config::parse(text).unwrap_err();
            assert_eq!(found, line, "{text}: {message}");
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn a_users_own_caps_come_before_those_for_all() {
        let config = Config::parse("[caps]\nshare = \"50%\"\n[users.7]\nmemory = \"1GiB\"\n").unwrap();
        assert_eq!(config.caps_of(1), Caps { share_ppm: 500_000, memory_bytes: NO_LIMIT });
        assert_eq!(config.caps_of(7), Caps { share_ppm: PPM, memory_bytes: 1 << 30 });
    }
}
