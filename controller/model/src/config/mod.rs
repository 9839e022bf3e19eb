//! The daemon's configuration: a TOML file in which every key is optional. `deploy/deepres.toml`
//! documents each key.

mod caps;
mod device;
mod keys;
mod policy;
mod probes;
mod schema;
mod settings;
mod web;

pub use probes::{ProbesKeys, UnmanagedPolicy};
pub use web::{WebAddress, WebAddressError};

pub use caps::{CapOf, Caps};
pub use device::{DeviceKey, DeviceKeyError};
pub use policy::{Defaults, PriorityKeys};
pub use schema::schema;
pub use settings::{Loaded, Origin, Reloaded, Setting};

use crate::text::{harmless, is_name};
use deepres_abi::grant::FailMode;
use deepres_abi::wire::TENANT_NAME_BYTES;
use deepres_policy::tuning::QuantumBounds;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The system's configuration file.
const SYSTEM_FILE: &str = "/etc/deepres/deepres.toml";
/// The user's configuration file, below the directory for configuration.
const USER_FILE: &str = "deepres/deepres.toml";

/// Bounds of the heartbeat limit, ms. With a lower limit, a busy machine's scheduler makes a daemon
/// look dead. With a higher limit, a dead daemon stops all tenants for too long.
const HEARTBEAT_LIMIT_MS: Range<u64> = 20..60_001;
/// Bounds of the times for moving memory, ms. In less time, no memory can move. The upper bound is
/// a day.
const MOVING_MS: Range<u64> = 100..86_400_001;
/// Bounds of the quantum, ms. With a shorter quantum, hand-offs take too much of the GPU's time.
/// With a longer quantum, users notice the wait.
const QUANTUM_MS: Range<u64> = 1..1_001;
/// Bounds of the number of connections. No machine has more descriptors than the upper bound.
const MAX_CONNECTIONS: Range<u64> = 1..1_000_001;
/// Bounds of a number without other bounds: the numbers that TOML has.
const ANY: Range<u64> = 0..i64::MAX as u64;

/// The daemon's configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Time without a heartbeat after which tenants take the daemon for gone.
    pub heartbeat_limit_ms: u64,
    /// The tenants' behaviour without a daemon.
    pub fail_mode: FailModeKey,
    /// Time for which a tenant is listed after its last process ended.
    pub tenant_linger_s: u64,
    /// Time for which a backlogged tenant stays on the GPU before the daemon suspends it for a
    /// suspended tenant.
    pub suspend_turn_ms: u64,
    /// Time for which the daemon keeps memory for a tenant that held it, if the tenant's memory
    /// follows its use.
    pub memory_follow_ms: u64,
    /// Longest time that the driver may take to move a tenant's memory to the host or back.
    pub suspend_limit_ms: u64,
    /// Time without tenants after which a daemon that `deepres run` started ends.
    pub idle_exit_s: u64,
    /// The most connections at a time.
    pub max_connections: usize,
    /// The most connections of one user at a time. Root and the daemon's own user have no such
    /// bound, but each of their containers has it.
    pub max_connections_per_user: usize,
    /// Name or number of a group whose members may administer the daemon. Root and the daemon's own
    /// user always may.
    pub admin_group: Option<String>,
    /// The address at which the daemon serves metrics.
    #[serde(deserialize_with = "listen_address")]
    pub metrics: Option<SocketAddr>,
    /// The address at which the daemon serves the page.
    pub web: Option<WebAddress>,
    /// Names of tenants that span all containers and other processes of a user. Any other name
    /// holds only inside its container.
    pub shared_names: Vec<String>,
    /// Whether a process in a Kubernetes pod needs the token of an allocation.
    pub pods_need_token: bool,
    /// Whether a tenant that uses several GPUs at once gets leases on all of them or on none.
    pub gangs: bool,
    /// The use of MPS.
    pub mps: MpsKey,
    /// The users whose jobs MPS serves at once.
    pub mps_users: MpsUsersKey,
    /// Bounds of the quantum.
    pub quantum: QuantumKeys,
    /// Caps for every user.
    pub caps: Caps,
    /// Caps for the members of a group, by group number. These replace the caps for every user.
    pub groups: BTreeMap<String, Caps>,
    /// Caps for single users, by user number. These replace all other caps.
    pub users: BTreeMap<String, Caps>,
    /// The probes.
    pub probes: ProbesKeys,
    /// Slurm's jobs.
    pub slurm: SlurmKeys,
    /// The part of the time that best-effort tenants may cost the owners, parts per million.
    #[serde(rename = "max_harm", serialize_with = "caps::percent", deserialize_with = "policy::part")]
    pub max_harm_ppm: u32,
    /// The weights of the terms of a priority value.
    pub priority: PriorityKeys,
    /// The wishes of a tenant that asks for nothing.
    pub defaults: Defaults,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            heartbeat_limit_ms: 250,
            fail_mode: FailModeKey::Open,
            tenant_linger_s: 60,
            suspend_turn_ms: 30_000,
            memory_follow_ms: 60_000,
            suspend_limit_ms: 300_000,
            idle_exit_s: 600,
            max_connections: 4096,
            max_connections_per_user: 1024,
            admin_group: None,
            metrics: None,
            web: None,
            shared_names: Vec::new(),
            pods_need_token: false,
            gangs: true,
            mps: MpsKey::Use,
            mps_users: MpsUsersKey::One,
            quantum: QuantumKeys::default(),
            caps: Caps::default(),
            groups: BTreeMap::new(),
            users: BTreeMap::new(),
            probes: ProbesKeys::default(),
            slurm: SlurmKeys::default(),
            max_harm_ppm: policy::MAX_HARM_PPM,
            priority: PriorityKeys::default(),
            defaults: Defaults::default(),
        }
    }
}

/// Returns the address in a text, at which the daemon is to listen.
///
/// # Errors
/// The message.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!("`{text}` is not an address with a port; give for example 127.0.0.1:9442, or [::]:9442 for all addresses of the machine")
    })
}

/// Reads an address from the file.
fn listen_address<'de, D: Deserializer<'de>>(value: D) -> Result<Option<SocketAddr>, D::Error> {
    parse_address(&String::deserialize(value)?).map(Some).map_err(D::Error::custom)
}

/// The tenants' behaviour without a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailModeKey {
    /// Tenants launch without leases until a daemon is back.
    Open,
    /// While no daemon runs, all launches of tenants fail.
    Closed,
}

impl FailModeKey {
    /// Returns the mode's value for the grant page.
    pub fn mode(self) -> FailMode {
        match self {
            Self::Open => FailMode::Open,
            Self::Closed => FailMode::Closed,
        }
    }

    /// Returns the fail mode's name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
        }
    }
}

/// The use of MPS for parts of the SMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MpsKey {
    /// Jobs get no part of the SMs, and no part counts.
    Off,
    /// Jobs run on their parts of the SMs if an MPS control daemon runs.
    Use,
    /// As `Use`, and the daemon starts an MPS control daemon if none runs.
    Start,
}

/// The users whose jobs the MPS control daemon of root's daemon serves at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MpsUsersKey {
    /// One user at a time. The jobs of other users wait.
    One,
    /// All users. Their jobs are clients of one MPS server, without isolation from each other.
    All,
}

/// The bounds of the quantum, as the configuration gives them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QuantumKeys {
    /// The shortest quantum, ms.
    pub min_ms: u64,
    /// The longest quantum, ms.
    pub max_ms: u64,
}

impl Default for QuantumKeys {
    fn default() -> Self {
        let QuantumBounds { min_ns, max_ns } = QuantumBounds::default();
        Self { min_ms: min_ns / crate::clock::NS_PER_MS, max_ms: max_ns / crate::clock::NS_PER_MS }
    }
}

/// The keys of the section `[slurm]` of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SlurmKeys {
    /// Whether the daemon asks Slurm for the part of the GPUs that a Slurm job has, and bounds the
    /// job by the answer.
    pub check_claims: bool,
}

impl Default for SlurmKeys {
    fn default() -> Self {
        Self { check_claims: true }
    }
}

/// A position in a file: line and character, each from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Position {
    line: usize,
    column: usize,
}

impl Position {
    /// Returns the position of the byte at `offset`.
    fn at(text: &str, offset: usize) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line = before.rsplit('\n').next().unwrap_or(before);
        Self { line: before.matches('\n').count() + 1, column: line.chars().count() + 1 }
    }
}

/// A fault of a value that has the right type: the key's path from the top, and the message.
type Impossible = (Vec<String>, String);

/// The reason why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file has a fault.
    #[error("{}:{line}:{column}: {message}", path.display())]
    Invalid {
        /// The path of the file.
        path: PathBuf,
        /// The number of the line that has the fault, from 1.
        line: usize,
        /// The number of the character in the line at which the fault begins, from 1.
        column: usize,
        /// The message that tells people the fault.
        message: String,
    },
}

impl Config {
    /// Reads a file. Returns the configuration, and the line of each key that the file sets.
    fn read(path: &Path) -> Result<(Self, BTreeMap<String, usize>), ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
        Self::parse(&text).map_err(|(Position { line, column }, message)| ConfigError::Invalid {
            path: path.to_owned(),
            line,
            column,
            message,
        })
    }

    /// Reads a configuration. Returns the configuration, and the line of each key that the text
    /// sets. The error gives the position and the message.
    fn parse(text: &str) -> Result<(Self, BTreeMap<String, usize>), (Position, String)> {
        // The message quotes keys and texts of the file, which can have any characters.
        Self::checked(text).map_err(|(position, message)| (position, harmless(&message)))
    }

    fn checked(text: &str) -> Result<(Self, BTreeMap<String, usize>), (Position, String)> {
        let position = |offset| Position::at(text, offset);
        let at = |error: toml::de::Error| {
            (position(error.span().map_or(0, |span| span.start)), error.message().replace('\n', " "))
        };
        let table = toml::de::DeTable::parse(text).map_err(at)?;
        if let Some(wrong) = keys::first_wrong(table.get_ref()) {
            return Err((position(wrong.offset), wrong.message));
        }
        let config: Self = toml::from_str(text).map_err(at)?;
        config.check().map_err(|(key, message)| (position(keys::offset(table.get_ref(), &key)), message))?;
        Ok((config, keys::lines(table.get_ref(), text)))
    }

    /// Returns the configuration in the form of the file, with every key that has a value.
    fn to_table(&self) -> toml::Table {
        toml::Table::try_from(self).expect("each value has a form in the file")
    }

    /// Returns the configuration that a running daemon has after it reads `next`. Some keys change
    /// only when a daemon starts.
    fn reloaded(&self, next: &Self) -> Self {
        Self {
            heartbeat_limit_ms: self.heartbeat_limit_ms,
            fail_mode: self.fail_mode,
            admin_group: self.admin_group.clone(),
            metrics: self.metrics,
            web: self.web.clone(),
            gangs: self.gangs,
            quantum: self.quantum,
            probes: self.probes.clone(),
            max_harm_ppm: self.max_harm_ppm,
            priority: self.priority,
            ..next.clone()
        }
    }

    /// Checks the bounds that the types do not express. The error gives the key and the message.
    fn check(&self) -> Result<(), Impossible> {
        let at = |path: &[&str]| path.iter().map(|key| (*key).to_owned()).collect::<Vec<String>>();
        if self.quantum.min_ms > self.quantum.max_ms {
            return Err((at(&["quantum", "min_ms"]), "`min_ms` is more than `max_ms`".to_owned()));
        }
        if !PriorityKeys::SUM.contains(&self.priority.sum()) {
            let message = "the weights under [priority] add up to nothing or to more than a million; give other weights";
            return Err((at(&["priority"]), message.to_owned()));
        }
        if self.defaults.lacks_share() {
            let message =
                "`defaults.class` is guaranteed, and this class needs a share; give `defaults.share`";
            return Err((at(&["defaults", "class"]), message.to_owned()));
        }
        if let Some(name) = self.shared_names.iter().find(|name| !is_name(name)) {
            let most = TENANT_NAME_BYTES - 1;
            let message = format!(
                "`shared_names` has the name {name:?}; a tenant's name has from 1 to {most} bytes, all visible characters, and does not begin with a dash"
            );
            return Err((at(&["shared_names"]), message));
        }
        if self.mps_users == MpsUsersKey::All && self.mps != MpsKey::Start {
            let message = "`mps_users` is \"all\", but deepres starts no MPS control daemon; set `mps = \"start\"`, or leave out `mps_users`";
            return Err((at(&["mps_users"]), message.to_owned()));
        }
        let not_a_number = |key: &&String| key.parse::<u32>().is_err();
        if let Some(user) = self.users.keys().find(not_a_number) {
            return Err((
                at(&["users", user]),
                format!("`{user}` is not the number of a user; see `id -u NAME`"),
            ));
        }
        match self.groups.keys().find(not_a_number) {
            Some(group) => Err((
                at(&["groups", group]),
                format!("`{group}` is not the number of a group; see `getent group NAME`"),
            )),
            None => Ok(()),
        }
    }

    /// Returns the time without a heartbeat after which tenants take the daemon for gone.
    pub fn heartbeat_limit(&self) -> Duration {
        Duration::from_millis(self.heartbeat_limit_ms)
    }

    /// Returns the time for which a tenant is listed after its last process ended.
    pub fn tenant_linger(&self) -> Duration {
        Duration::from_secs(self.tenant_linger_s)
    }

    /// Returns the time for which the daemon keeps memory for a tenant that held it, ns. The time
    /// matters for tenants whose memory follows its use.
    pub fn memory_follow_ns(&self) -> u64 {
        self.memory_follow_ms.saturating_mul(crate::clock::NS_PER_MS)
    }

    /// Returns the time for which a backlogged tenant stays on the GPU before it makes room for a
    /// suspended tenant, ns.
    pub fn suspend_turn_ns(&self) -> u64 {
        self.suspend_turn_ms.saturating_mul(crate::clock::NS_PER_MS)
    }

    /// Returns the longest time that the driver may take to move a tenant's memory to the host or
    /// back.
    pub fn suspend_limit(&self) -> Duration {
        Duration::from_millis(self.suspend_limit_ms)
    }

    /// Returns the time without tenants after which a daemon that `deepres run` started ends.
    pub fn idle_exit(&self) -> Duration {
        Duration::from_secs(self.idle_exit_s)
    }

    /// Returns the bounds of the quantum.
    pub fn quantum_bounds(&self) -> QuantumBounds {
        QuantumBounds {
            min_ns: self.quantum.min_ms * crate::clock::NS_PER_MS,
            max_ns: self.quantum.max_ms * crate::clock::NS_PER_MS,
        }
    }

    /// Returns the caps of a user in `groups`, and their origin.
    pub fn caps_of(&self, user: u32, groups: &[u32]) -> (Caps, CapOf) {
        let of_groups = groups.iter().filter_map(|group| self.groups.get(&group.to_string()).copied());
        let (caps, of) = match (self.users.get(&user.to_string()), of_groups.reduce(Caps::or)) {
            (Some(caps), _) => (*caps, CapOf::User(user)),
            (None, Some(caps)) => (caps, CapOf::Groups),
            (None, None) => (self.caps, CapOf::Everyone),
        };
        (Caps { sm: self.mps != MpsKey::Off, ..caps }, of)
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
    use deepres_abi::PPM;
    use deepres_abi::grant::NO_LIMIT;
    use deepres_policy::class::Class;

    #[test]
    fn the_documented_file_is_the_defaults_and_documents_every_key() {
        let documented = include_str!("../../../deploy/deepres.toml");
        assert_eq!(Config::parse(documented).map(|(config, _)| config), Ok(Config::default()));
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
        let (mut config, _) = Config::parse(&uncommented).unwrap();
        assert_ne!(config.defaults, Defaults::default(), "there are examples");
        let shown = toml::to_string(&config).unwrap();
        assert_eq!(Config::parse(&shown).map(|(config, _)| config), Ok(config.clone()), "{shown}");
        config.defaults = Defaults::default();
        assert!(!config.users.is_empty() && !config.groups.is_empty(), "there are examples");
        assert_eq!(config.admin_group.as_deref(), Some("gpuadmin"));
        assert_eq!(config.metrics.map(|address| address.port()), Some(9442));
        assert_eq!(config.web, Some(WebAddress::Unix("/run/deepres/web.sock".into())));
        (config.users, config.groups, config.admin_group, config.metrics, config.web) = Default::default();
        assert_eq!(config, Config::default());
        for key in keys::all() {
            assert!(uncommented.contains(&format!("{key} = ")), "{key} is not documented");
        }
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_line_and_the_nearest_name() {
        let refused = |text: &str| {
            let (Position { line, column }, message) = Config::parse(text).unwrap_err();
            ((line, column), message)
        };
        let (at, message) = refused("fail_mode = \"open\"\nheartbeat_limt_ms = 100\n");
        assert_eq!(at, (2, 1));
        assert_eq!(message, "unknown key `heartbeat_limt_ms`; did you mean `heartbeat_limit_ms`?");
        let (at, message) = refused("[quantum]\nmin_ms = 5\n  maxms = 9\n");
        assert_eq!((at, message.as_str()), ((3, 3), "unknown key `quantum.maxms`; did you mean `max_ms`?"));
        let (_, message) = refused("[users.7]\nzzz = 9\n");
        assert!(message.contains("the known keys are share, memory, class"), "{message}");
    }

    #[test]
    fn impossible_values_are_refused_with_their_line_and_column() {
        for (text, at, part) in [
            ("\nheartbeat_limit_ms = 1\n", (2, 1), "from 20"),
            ("\nsuspend_limit_ms = 0\n", (2, 1), "from 100"),
            ("\nsuspend_turn_ms = 0\n", (2, 1), "from 100"),
            ("\nmemory_follow_ms = 0\n", (2, 1), "from 100"),
            ("[caps]\nshare = \"200%\"\n", (2, 9), "percentage"),
            ("[caps]\nmemory = \"12XB\"\n", (2, 10), "size"),
            ("[quantum]\nmin_ms = 9\nmax_ms = 8\n", (2, 1), "more than"),
            ("fail_mode = \"ajar\"\n", (1, 13), "ajar"),
            ("[users.bob]\nshare = \"10%\"\n", (1, 8), "id -u"),
            ("fail_mode = \n", (1, 13), ""),
            ("max_connections = 0\n", (1, 1), "from 1"),
            ("[caps]\nclass = \"first\"\n", (2, 9), "best-effort"),
            ("[caps]\ncriticality = \"dire\"\n", (2, 15), "critical"),
            ("max_harm = \"1\"\n", (1, 12), "percentage"),
            ("metrics = \"localhost\"\n", (1, 11), "127.0.0.1:9442"),
            ("web = \"0.0.0.0:9443\"\n", (1, 7), "other machines"),
            ("[priority]\nsize = 0\nurgency = 0\ncriticality = 0\n", (1, 2), "nothing"),
            ("[defaults]\nslo = \"30\"\n", (2, 7), "30ms"),
            ("[defaults]\nclass = \"guaranteed\"\n", (2, 1), "share"),
            ("\nshared_names = [\"train\", \"\"]\n", (2, 1), "the name \"\"; a tenant's name"),
            ("shared_names = \"train\"\n", (1, 1), "such as [\"train\"]"),
            ("\nmps_users = \"all\"\n", (2, 1), "set `mps = \"start\"`"),
            ("mps = \"use\"\nmps_users = \"all\"\n", (2, 1), "set `mps = \"start\"`"),
            ("mps_users = \"both\"\n", (1, 13), "both"),
            (
                "shared_names = [\"train\", 1]\n",
                (1, 26),
                "texts, such as [\"train\"], but the list has the number 1",
            ),
            ("\"users\".7.slo = true # é\n[groups.video]\nshare = \"10%\"\n", (2, 9), "getent group"),
        ] {
            let (Position { line, column }, message) = Config::parse(text).unwrap_err();
            assert_eq!((line, column), at, "{text}: {message}");
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_refused_in_words() {
        for (text, line, message) in [
            (
                "\nheartbeat_limit_ms = \"soon\"\n",
                2,
                "`heartbeat_limit_ms` takes a whole number without quotation marks, not the text \"soon\"",
            ),
            (
                "max_connections = -1\n",
                1,
                "`max_connections` takes a whole number that is not negative, not the number -1",
            ),
            (
                "[caps]\nshare = 50\n",
                2,
                "`caps.share` takes a text in quotation marks, such as \"50%\", not the number 50",
            ),
            ("caps = 5\n", 1, "`caps` takes a section (`[caps]`), not the number 5"),
            ("users = []\n", 1, "`users` takes a section (`[users]`), not a list"),
            ("[users]\n1000 = true\n", 2, "`users.1000` is a section (`[users.1000]`), not true"),
            (
                "max_connections = \"\\n\\u001b[31m4\"\n",
                1,
                "`max_connections` takes a whole number without quotation marks, not the text \"??[31m4\"",
            ),
            ("\"fail\\nmode\" = \"open\"\n", 1, "unknown key `fail?mode`; did you mean `fail_mode`?"),
            (
                "idle_exit_s = 1.5\n",
                1,
                "`idle_exit_s` takes a whole number without quotation marks, not the number 1.5",
            ),
        ] {
            let at = Position { line, column: 1 };
            assert_eq!(Config::parse(text), Err((at, message.to_owned())));
        }
        let (_, message) = Config::parse("heartbeat_limit_ms = 99999999999999999999999\n").unwrap_err();
        for type_of_rust in ["u64", "i64", "usize", "u128", "expected a"] {
            assert!(!message.contains(type_of_rust), "{message}");
        }
    }

    #[test]
    fn a_users_own_caps_come_before_those_of_groups_and_those_before_those_for_all() {
        let text = "[caps]\nshare = \"50%\"\n[groups.4]\nshare = \"60%\"\nclass = \"fair\"\n\
                    [groups.5]\nshare = \"20%\"\n[users.7]\nmemory = \"1GiB\"\n";
        let (config, _) = Config::parse(text).unwrap();
        let caps = |share_ppm, memory_bytes, class| Caps { share_ppm, memory_bytes, class, ..Caps::NONE };
        let all = caps(500_000, NO_LIMIT, Class::Guaranteed);
        assert_eq!(config.caps_of(1, &[1, 2]), (all, CapOf::Everyone));
        let fair = caps(600_000, NO_LIMIT, Class::Fair);
        assert_eq!(config.caps_of(1, &[4]), (fair, CapOf::Groups));
        let both = caps(600_000, NO_LIMIT, Class::Guaranteed);
        assert_eq!(config.caps_of(1, &[5, 4]), (both, CapOf::Groups), "of several the most generous of each");
        assert_eq!(config.caps_of(7, &[5]), (caps(PPM, 1 << 30, Class::Guaranteed), CapOf::User(7)));
    }
}
