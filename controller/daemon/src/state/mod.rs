//! What a daemon remembers over its own death: accounts, what was asked and set, and up to where each process was charged.
//!
//! The file is JSON, so that an administrator can read it. Within a major version fields are only added: an older daemon ignores those
//! that it does not know, a newer one takes those that are missing for zero or absent. Parsing is pure and believes nothing:
//! what does not fit is refused whole, and the numbers in it are bounded where they are used.

mod file;

pub use file::{Saved, StateFile};

use crate::arbiter::{SavedAccount, SavedMeter};
use crate::identity::Key;
use deepres_model::authority::Wish;
use deepres_model::identity::Container;
use deepres_model::identity::Found;
use deepres_model::probes::Adopted;
use deepres_model::process::ProcessKey;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Files of another major version are set aside.
const MAJOR: u32 = 1;
/// Raised when a field is added.
const MINOR: u32 = 4;

/// Which layout a file has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Version {
    major: u32,
    minor: u32,
}

/// The part of a file that every version has.
#[derive(Deserialize)]
struct Head {
    deepres_state: Version,
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    deepres_state: Version,
    /// The kernel's name of this run of the machine. The monotonic clock and the process ids begin anew with another.
    pub boot: String,
    /// When this was so: ns of `CLOCK_MONOTONIC`.
    pub saved_ns: u64,
    /// GPUs.
    #[serde(default)]
    pub gpus: Vec<SavedGpu>,
    /// Tenants.
    #[serde(default)]
    pub tenants: Vec<SavedTenant>,
    /// Processes without a session that an administrator adopted.
    #[serde(default)]
    pub adopted: Vec<Adopted>,
    /// Processes without a session that are stopped until they are adopted.
    #[serde(default)]
    pub held: Vec<ProcessKey>,
    /// Processes that are taken off the GPUs.
    #[serde(default)]
    pub away: Vec<AwayProcess>,
}

/// A process that is taken off the GPUs with the rest of its tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwayProcess {
    /// The tenant's name.
    pub tenant: String,
    /// The process.
    pub process: ProcessKey,
}

/// A GPU's own counters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedGpu {
    /// Its UUID, `GPU-…`.
    pub uuid: String,
    /// Time in which two tenants or more wanted it, ns.
    pub contended_ns: u64,
    /// Time in which none did, ns.
    pub idle_ns: u64,
    /// Hand-offs.
    pub handoffs: u64,
    /// What those cost of which it could be told, ns.
    pub handoff_total_ns: u64,
}

/// A tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedTenant {
    /// Its name.
    pub name: String,
    /// Whose it is.
    pub uid: u32,
    /// What makes it the one that it is; absent: its name.
    pub key: Option<Key>,
    /// How it was found.
    pub found: Option<Found>,
    /// The container of its first process.
    pub container: Option<Container>,
    /// The groups of its user.
    pub groups: Vec<u32>,
    /// What its job asked for.
    pub asked: Wish,
    /// When: ns of `CLOCK_MONOTONIC`.
    pub asked_ns: u64,
    /// GPU time that its job has used, ns.
    pub job_used_ns: u64,
    /// What an administrator set.
    pub set: Wish,
    /// An administrator paused it.
    pub paused: bool,
    /// When a deadline was set: ns of `CLOCK_MONOTONIC`.
    pub set_ns: u64,
    /// The guarantee that it asked for did not fit beside those of others.
    pub lacks_room: bool,
    /// Somebody of it was here.
    pub is_here: bool,
    /// Its accounts, by GPU.
    pub accounts: Vec<OnGpu<SavedAccount>>,
    /// Its processes.
    pub sessions: Vec<SavedSession>,
}

/// Something that there is one of for each GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnGpu<T> {
    /// The GPU's UUID, `GPU-…`.
    pub uuid: String,
    /// What there is.
    #[serde(flatten)]
    pub saved: T,
}

/// A process of a tenant, and up to where it was charged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSession {
    /// The process.
    #[serde(flatten)]
    pub process: ProcessKey,
    /// When: ns of `CLOCK_MONOTONIC`. Absent: as of the whole file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ns: Option<u64>,
    /// What its meter said, by GPU.
    #[serde(default)]
    pub meters: Vec<OnGpu<SavedMeter>>,
}

/// Why a file is of no use.
#[derive(Debug)]
pub enum StateError {
    /// Not a state file, or not a whole one.
    Garbage(serde_json::Error),
    /// One of another major version.
    Major(u32),
    /// It says that it was written later than now.
    Future,
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Garbage(error) => write!(f, "it is no state of a deepres daemon: {error}"),
            Self::Major(major) => {
                write!(f, "it has layout version {major}, and this release of deepres reads version {MAJOR}")
            }
            Self::Future => write!(f, "it says that it was written later than now"),
        }
    }
}

impl std::error::Error for StateError {}

impl State {
    /// The state of this run of the machine.
    pub fn new(boot: &str, saved_ns: u64, gpus: Vec<SavedGpu>, tenants: Vec<SavedTenant>) -> Self {
        let deepres_state = Version { major: MAJOR, minor: MINOR };
        Self {
            deepres_state,
            boot: boot.to_owned(),
            saved_ns,
            gpus,
            tenants,
            adopted: Vec::new(),
            held: Vec::new(),
            away: Vec::new(),
        }
    }

    /// Whether writing this after `other` would tell anything new.
    fn differs_from(&self, other: &Self) -> bool {
        // Time alone tells nothing, and idle time is time alone.
        let idle_aside = |gpu: &SavedGpu| SavedGpu { idle_ns: 0, ..gpu.clone() };
        self.tenants != other.tenants
            || self.adopted != other.adopted
            || self.held != other.held
            || self.away != other.away
            || !self.gpus.iter().map(idle_aside).eq(other.gpus.iter().map(idle_aside))
    }

    /// The file's bytes.
    ///
    /// # Errors
    /// None is expected of these types.
    pub fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(self)?;
        bytes.push(b'\n');
        Ok(bytes)
    }
}

/// Reads a file's bytes.
///
/// # Errors
/// [`StateError`].
pub fn parse(bytes: &[u8]) -> Result<State, StateError> {
    let head: Head = serde_json::from_slice(bytes).map_err(StateError::Garbage)?;
    if head.deepres_state.major != MAJOR {
        return Err(StateError::Major(head.deepres_state.major));
    }
    serde_json::from_slice(bytes).map_err(StateError::Garbage)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state with everything in it.
    pub fn example() -> State {
        let uuid = "GPU-00000000-0000-0000-0000-000000000001".to_owned();
        let account = SavedAccount { since_ns: 5, lag_ns: -7, ..SavedAccount::default() };
        let meter = SavedMeter { compute_ns: 11, ..SavedMeter::default() };
        let process = ProcessKey { pid: 4711, start_ticks: 99 };
        let tenant = SavedTenant {
            name: "train".to_owned(),
            uid: 1000,
            key: Some(Key::Cgroup("/docker/4711".to_owned())),
            found: Some(Found::Container),
            set: Wish { share_ppm: Some(700_000), ..Wish::default() },
            accounts: vec![OnGpu { uuid: uuid.clone(), saved: account }],
            sessions: vec![SavedSession {
                process,
                at_ns: None,
                meters: vec![OnGpu { uuid: uuid.clone(), saved: meter }],
            }],
            is_here: true,
            paused: true,
            ..SavedTenant::default()
        };
        let gpu = SavedGpu { uuid, handoffs: 3, ..SavedGpu::default() };
        let adopted = vec![Adopted { process, tenant: Some("train".to_owned()) }];
        let away = vec![AwayProcess { tenant: "train".to_owned(), process }];
        State {
            adopted,
            held: vec![process],
            away,
            ..State::new("this boot", 1_000, vec![gpu], vec![tenant])
        }
    }

    #[test]
    fn a_state_survives_its_bytes() {
        let state = example();
        assert_eq!(parse(&state.to_bytes().unwrap()).unwrap(), state);
    }

    #[test]
    fn a_newer_minor_version_is_read_and_an_older_one_lacks_nothing_that_is_needed() {
        let text = String::from_utf8(example().to_bytes().unwrap()).unwrap();
        let newer = text
            .replacen(&format!("\"minor\":{MINOR}"), "\"minor\":9,\"patch\":[1]", 1)
            .replacen("\"pid\":4711", "\"pid\":4711,\"cgroup\":{\"a\":[]}", 1)
            .replacen("\"lag_ns\":-7", "\"lag_ns\":-7,\"temper\":\"mild\"", 1);
        assert_eq!(newer.matches("\"minor\":9,\"patch\"").count(), 1);
        let read = parse(newer.as_bytes()).unwrap();
        assert_eq!(read.tenants, example().tenants);
        let bare =
            r#"{"deepres_state":{"major":1,"minor":0},"boot":"b","saved_ns":1,"tenants":[{"name":"a"}]}"#;
        assert_eq!(parse(bare.as_bytes()).unwrap().tenants[0].name, "a");
    }

    #[test]
    fn another_major_version_and_garbage_are_refused_with_what_was_found() {
        let text = String::from_utf8(example().to_bytes().unwrap()).unwrap();
        let other = text.replacen("\"major\":1", "\"major\":2", 1);
        assert!(matches!(parse(other.as_bytes()), Err(StateError::Major(2))));
        // Another major version may have nothing else in common with ours.
        assert!(matches!(
            parse(br#"{"deepres_state":{"major":7,"minor":0},"boot":[]}"#),
            Err(StateError::Major(7))
        ));
        let bytes = text.as_bytes();
        for end in 0..bytes.len() - 2 {
            assert!(matches!(parse(&bytes[..end]), Err(StateError::Garbage(_))), "cut at {end}");
        }
        for garbage in [&b"\0\0\0\0"[..], b"[]", b"{}", b"null", b"{\"deepres_state\":1}", &[0xFF; 99]] {
            assert!(matches!(parse(garbage), Err(StateError::Garbage(_))));
        }
    }

    #[test]
    fn time_that_passes_is_no_reason_to_write() {
        let (before, mut after) = (example(), example());
        after.saved_ns += 1;
        after.gpus[0].idle_ns += 1;
        assert!(!after.differs_from(&before));
        after.tenants[0].accounts[0].saved.totals.gpu_ns += 1;
        assert!(after.differs_from(&before));
    }
}
