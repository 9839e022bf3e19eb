//! The effective values of a configuration, each with its origin: `deepres config show` prints
//! them, and `deepres reload` compares them.

use super::{Config, ConfigError, MpsUsersKey, SYSTEM_FILE, default_files, keys};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

/// The origin of a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The key is not set.
    Default,
    /// The line of the configuration file that sets the key, from 1.
    Line(usize),
    /// The option of `deepres daemon` that sets the key, for example `--metrics`.
    Option(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Line(line) => write!(f, "line {line}"),
            Self::Option(option) => f.write_str(option),
        }
    }
}

/// A key of the configuration with its effective value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// The path of the key, for example `caps.share`.
    pub key: String,
    /// The value as the file would give it; `None` for a key without a value.
    pub value: Option<String>,
    /// The origin of the value.
    pub origin: Origin,
}

/// A configuration with the origins of its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// The file that was read, if there was one.
    pub file: Option<PathBuf>,
    /// The origins of the keys that are set, by path.
    origins: BTreeMap<String, Origin>,
}

/// The effect of a new configuration on a daemon that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reloaded {
    /// The configuration that the daemon has from now on.
    pub loaded: Loaded,
    /// The keys whose new values are in force from now on.
    pub now: Vec<String>,
    /// The keys whose new values are in force when the daemon next starts.
    pub later: Vec<String>,
}

impl From<Config> for Loaded {
    /// Returns the configuration without origins.
    fn from(config: Config) -> Self {
        Self { config, file: None, origins: BTreeMap::new() }
    }
}

impl Loaded {
    /// Reads `file`, else the user's file (unless the user is root), else the system's file. If
    /// none of these files exists, returns the defaults.
    ///
    /// # Errors
    /// [`ConfigError`], which names file, line and column.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        let found = || default_files().into_iter().find(|file| file.exists());
        match file.map(Path::to_owned).or_else(found) {
            Some(file) => {
                let (config, lines) = Config::read(&file)?;
                let origins = lines.into_iter().map(|(key, line)| (key, Origin::Line(line))).collect();
                Ok(Self { config, file: Some(file), origins })
            }
            None => Ok(Config::default().into()),
        }
    }

    /// Returns the configuration for the daemon of root or of a plain user. Only root's daemon can
    /// start an MPS control daemon for all users. The system's file is for root's daemon. A plain
    /// user's daemon that reads the system's file starts its MPS control daemon for its user alone.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] if another file of a plain user's daemon asks for MPS for all
    /// users.
    pub fn for_daemon(mut self, is_roots: bool) -> Result<Self, ConfigError> {
        if is_roots || self.config.mps_users == MpsUsersKey::One {
            return Ok(self);
        }
        let own = self.file.clone().filter(|file| file.as_path() != Path::new(SYSTEM_FILE));
        match (own, self.origins.remove("mps_users")) {
            (Some(path), Some(Origin::Line(line))) => {
                let message = "only root's daemon can have `mps_users = \"all\"`: the MPS control daemon of a plain user serves this user alone; leave the key out".to_owned();
                Err(ConfigError::Invalid { path, line, column: 1, message })
            }
            _ => {
                self.config.mps_users = MpsUsersKey::One;
                Ok(self)
            }
        }
    }

    /// Records that an option of the command line has set a key.
    pub fn set_by_option(&mut self, key: &str, option: &str) {
        self.origins.insert(key.to_owned(), Origin::Option(option.to_owned()));
    }

    /// Returns every key with its effective value, in the order of the documented configuration
    /// file.
    pub fn settings(&self) -> Vec<Setting> {
        let origin = |key: &str| self.origins.get(key).cloned().unwrap_or(Origin::Default);
        let values = keys::values(&self.config.to_table());
        values.into_iter().map(|(key, value)| Setting { origin: origin(&key), key, value }).collect()
    }

    /// Returns the file of this configuration, if the later configuration `next` comes from another
    /// file or from no file.
    pub fn lost_file(&self, next: &Self) -> Option<&Path> {
        self.file.as_deref().filter(|file| next.file.as_deref() != Some(*file))
    }

    /// Returns the effect of the configuration `next` on a daemon that runs with this
    /// configuration.
    pub fn reloaded(&self, next: Self) -> Reloaded {
        let config = self.config.reloaded(&next.config);
        let mut loaded = Self { config, ..next.clone() };
        let now = loaded.differences(self);
        let later = loaded.differences(&next);
        for key in &later {
            // The daemon keeps the value, so the value keeps its origin.
            match self.origins.get(key) {
                Some(origin) => drop(loaded.origins.insert(key.clone(), origin.clone())),
                None => drop(loaded.origins.remove(key)),
            }
        }
        Reloaded { loaded, now, later }
    }

    /// Returns the keys whose values differ between two configurations.
    fn differences(&self, other: &Self) -> Vec<String> {
        let values = |loaded: &Self| -> BTreeMap<String, Option<String>> {
            keys::values(&loaded.config.to_table()).into_iter().collect()
        };
        let (own, others) = (values(self), values(other));
        let all: BTreeSet<&String> = own.keys().chain(others.keys()).collect();
        all.into_iter().filter(|key| own.get(*key) != others.get(*key)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(text: &str) -> Loaded {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("deepres.toml");
        std::fs::write(&file, text).unwrap();
        Loaded::load(Some(&file)).unwrap()
    }

    fn setting(loaded: &Loaded, key: &str) -> (Option<String>, Origin) {
        let found = loaded.settings().into_iter().find(|setting| setting.key == key).unwrap();
        (found.value, found.origin)
    }

    #[test]
    fn each_value_is_shown_with_its_origin() {
        let text = "gangs = false\n[caps]\nmemory = \"1.5GiB\"\n[users.7]\nclass = \"fair\"\n[defaults]\nslo = \"90ms\"\n";
        let mut loaded = loaded(text);
        loaded.config.metrics = "127.0.0.1:9442".parse().ok();
        loaded.set_by_option("metrics", "--metrics");
        let text = |value: &str| Some(value.to_owned());
        for (key, value, origin) in [
            ("gangs", text("false"), Origin::Line(1)),
            ("caps.memory", text("\"1.5 GiB\""), Origin::Line(3)),
            ("caps.share", text("\"100%\""), Origin::Default),
            ("users.7.class", text("\"fair\""), Origin::Line(5)),
            ("users.7.memory", text("\"unlimited\""), Origin::Default),
            ("defaults.slo", text("\"90ms\""), Origin::Line(7)),
            ("defaults.share", None, Origin::Default),
            ("admin_group", None, Origin::Default),
            ("metrics", text("\"127.0.0.1:9442\""), Origin::Option("--metrics".to_owned())),
            ("max_harm", text("\"1%\""), Origin::Default),
        ] {
            assert_eq!(setting(&loaded, key), (value, origin), "{key}");
        }
    }

    #[test]
    fn only_a_daemon_of_root_has_an_mps_for_all_users() {
        let all = || loaded("mps = \"start\"\nmps_users = \"all\"\n");
        let roots = all();
        assert_eq!(roots.clone().for_daemon(true).unwrap(), roots);
        let refused = all().for_daemon(false).unwrap_err().to_string();
        assert!(refused.contains("deepres.toml:2:1: only root's daemon"), "{refused}");
        let systems = Loaded { file: Some(SYSTEM_FILE.into()), ..all() };
        let users = systems.for_daemon(false).unwrap();
        assert_eq!(setting(&users, "mps_users"), (Some("\"one\"".to_owned()), Origin::Default));
        assert_eq!(setting(&users, "mps").1, Origin::Line(1));
    }

    #[test]
    fn a_configuration_whose_file_is_gone_is_lost_and_one_without_a_file_is_not() {
        let (own, other) = (loaded("gangs = false\n"), loaded("gangs = false\n"));
        let none = Loaded::from(Config::default());
        assert_eq!(own.lost_file(&own), None);
        assert_eq!(own.lost_file(&none), own.file.as_deref());
        assert_eq!(own.lost_file(&other), own.file.as_deref());
        assert_eq!(none.lost_file(&own), None);
    }

    #[test]
    fn a_reload_changes_what_a_running_daemon_can_change_and_tells_the_rest() {
        let before = loaded("gangs = false\ntenant_linger_s = 5\n[users.7]\nshare = \"10%\"\n");
        let next = loaded("\n\ntenant_linger_s = 6\n[quantum]\nmin_ms = 5\n[users.8]\nslo = false\n");
        let Reloaded { loaded, now, later } = before.reloaded(next);
        assert!(now.contains(&"tenant_linger_s".to_owned()) && now.contains(&"users.7.share".to_owned()));
        assert!(now.contains(&"users.8.slo".to_owned()), "{now:?}");
        assert_eq!(later, ["gangs", "quantum.min_ms"]);
        assert_eq!(setting(&loaded, "gangs"), (Some("false".to_owned()), Origin::Line(1)));
        assert_eq!(setting(&loaded, "quantum.min_ms"), (Some("4".to_owned()), Origin::Default));
        assert_eq!(setting(&loaded, "tenant_linger_s"), (Some("6".to_owned()), Origin::Line(3)));
        let again = loaded.reloaded(loaded.clone());
        assert!(again.now.is_empty() && again.later.is_empty());
    }
}
