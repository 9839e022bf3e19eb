//! The state that a daemon saves for the next daemon: accounts, wishes, settings of administrators,
//! and the points up to which the daemon charged processes.
//!
//! The file is JSON, so that an administrator can read it. A new minor version only adds fields. An
//! older daemon ignores fields that it does not know. A newer daemon takes a missing field for zero
//! or absent.
//!
//! The parser trusts nothing. If a part of a file does not fit, the parser refuses the whole file.
//! If only an iteration does not fit, the parser leaves the iteration out and logs the reason,
//! because the accounts do not depend on iterations. The code that uses a number of the file bounds
//! the number.

mod file;
pub(crate) mod gather;
pub(crate) mod saver;
mod serialized;

pub use file::{Saved, StateFile};
pub use serialized::Serialized;

use crate::arbiter::{Counters, SavedAccount, SavedMeter};
use crate::identity::Key;
use crate::tenant::Allotment;
use deepres_model::admin::plan::IterationStatus;
use deepres_model::allocation::Allocation;
use deepres_model::authority::Wish;
use deepres_model::identity::Container;
use deepres_model::identity::Found;
use deepres_model::probes::Adopted;
use deepres_model::process::ProcessKey;
use deepres_policy::granularity::Plan;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::fmt;

/// The major version of the layout. The daemon refuses files of another major version.
const MAJOR: u32 = 1;
/// The minor version of the layout. A change that adds a field raises the minor version.
const MINOR: u32 = 11;
/// The size of the comma between two iterations or plans, bytes.
const COMMA_BYTES: usize = 1;

/// The version of the state file's layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Version {
    major: u32,
    minor: u32,
}

/// The part of the state file that each version of the layout has.
#[derive(Deserialize)]
struct Head {
    deepres_state: Version,
}

/// The state that a daemon saves, as the content of the state file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    deepres_state: Version,
    /// The kernel's id of this run of the machine. The monotonic clock and the process ids begin
    /// anew with the next run.
    pub boot: String,
    /// When the state was saved, ns of `CLOCK_MONOTONIC`.
    pub saved_ns: u64,
    /// The state of each GPU.
    #[serde(default)]
    pub gpus: Vec<SavedGpu>,
    /// The state of each tenant.
    #[serde(default)]
    pub tenants: Vec<SavedTenant>,
    /// Unmanaged processes that an administrator adopted.
    #[serde(default)]
    pub adopted: Vec<Adopted>,
    /// Held processes: unmanaged processes that the daemon stopped until an administrator adopts
    /// them.
    #[serde(default)]
    pub held: Vec<ProcessKey>,
    /// The allocations of the node's agent.
    #[serde(default)]
    pub allocations: Vec<Allocation>,
    /// Processes of tenants that are suspended, or on their way off the GPUs or back.
    #[serde(default, alias = "away")]
    pub suspended: Vec<SuspendedProcess>,
    /// The iterations that the daemon learned.
    #[serde(default, deserialize_with = "readable")]
    pub iterations: Vec<SavedIteration>,
    /// The plans that tenants follow.
    #[serde(default, deserialize_with = "readable")]
    pub plans: Vec<SavedPlan>,
}

/// The iteration that the daemon learned of a tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedIteration {
    /// The tenant's name.
    pub tenant: String,
    /// The iteration.
    pub iteration: Serialized<IterationStatus>,
}

/// Reads iterations or plans, and leaves out the ones that do not have this layout.
fn readable<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<Vec<T>, D::Error> {
    let all = match Value::deserialize(from)? {
        Value::Array(all) => all,
        other => vec![other],
    };
    let mut readable = Vec::new();
    for value in all {
        match serde_json::from_value(value) {
            Ok(part) => readable.push(part),
            Err(reason) => {
                tracing::warn!(%reason, "the daemon leaves an iteration or a plan of the state out")
            }
        }
    }
    Ok(readable)
}

/// A plan that tenants follow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedPlan {
    /// The GPU's UUID, `GPU-…`.
    pub uuid: String,
    /// The tenants' names and iterations, by their numbers in the plan.
    pub tenants: Vec<(String, Serialized<IterationStatus>)>,
    /// The plan.
    pub plan: Plan,
}

/// A process that is suspended with the rest of its tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspendedProcess {
    /// The tenant's name.
    pub tenant: String,
    /// The key of the process.
    pub process: ProcessKey,
}

/// The saved counters of one GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedGpu {
    /// The GPU's UUID, `GPU-…`.
    pub uuid: String,
    /// The GPU's counters.
    #[serde(flatten)]
    pub counters: Counters,
}

/// The saved data of one tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedTenant {
    /// The tenant's name.
    pub name: String,
    /// The user who owns the tenant.
    pub uid: u32,
    /// The key that distinguishes the tenant from all others. If absent, the tenant's name is the
    /// key.
    pub key: Option<Key>,
    /// The rule by which the daemon found the tenant of the tenant's first process.
    pub found: Option<Found>,
    /// The container of the tenant's first process.
    pub container: Option<Container>,
    /// The path of the cgroup of the container, pod or batch job of the tenant's first process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// The groups of the tenant's first process, as far as the configuration has caps for them.
    pub groups: Vec<u32>,
    /// The wishes of the tenant's job.
    pub asked: Wish,
    /// When the daemon first got the job's wishes, ns of `CLOCK_MONOTONIC`.
    pub asked_ns: u64,
    /// GPU time that the job has used, ns.
    pub job_used_ns: u64,
    /// The settings of an administrator.
    pub set: Wish,
    /// Whether an administrator paused the tenant.
    pub paused: bool,
    /// When an administrator last set a deadline, ns of `CLOCK_MONOTONIC`.
    pub set_ns: u64,
    /// Whether the tenant's guarantee did not fit beside the guarantees of other tenants.
    pub lacks_room: bool,
    /// The part of the GPUs that the cluster gave to the tenant's job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allotment: Option<Allotment>,
    /// The GPUs that the daemon chose for the tenant's job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placed: Option<SavedPlacement>,
    /// Whether the tenant had a session or a keeper, or the daemon awaited one.
    pub is_here: bool,
    /// The processes of the tenant's sessions and keepers, and the processes that can come back. If
    /// absent, the daemon did not know all of these processes.
    pub members: Option<Vec<ProcessKey>>,
    /// The tenant's accounts, by GPU.
    pub accounts: Vec<OnGpu<SavedAccount>>,
    /// The tenant's processes that had a session or can come back.
    pub sessions: Vec<SavedSession>,
}

/// The GPUs that the daemon chose for a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedPlacement {
    /// The UUIDs of the GPUs, `GPU-…`.
    pub gpus: Vec<String>,
    /// The reason, as a sentence.
    pub why: String,
}

/// A saved value of a tenant or process for one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnGpu<T> {
    /// The GPU's UUID, `GPU-…`.
    pub uuid: String,
    /// The saved value.
    #[serde(flatten)]
    pub saved: T,
}

/// A process of a tenant, and the point up to which the arbiters charged it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSession {
    /// The key of the process.
    #[serde(flatten)]
    pub process: ProcessKey,
    /// When the arbiters charged the process up to this point, ns of `CLOCK_MONOTONIC`. If absent,
    /// [`State::saved_ns`] holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ns: Option<u64>,
    /// The counters of the process's meter, by GPU.
    #[serde(default)]
    pub meters: Vec<OnGpu<SavedMeter>>,
}

/// The reason for which the daemon cannot use a file.
#[derive(Debug)]
pub enum StateError {
    /// The file is no state file, or is incomplete.
    Garbage(serde_json::Error),
    /// The file has another major version, given here.
    Major(u32),
    /// The file has a time of writing that is later than now.
    Future,
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Garbage(error) => write!(f, "the file is not a state of a deepres daemon: {error}"),
            Self::Major(major) => {
                write!(
                    f,
                    "the file has layout version {major}, and this release of deepres reads version {MAJOR}"
                )
            }
            Self::Future => write!(f, "the file's time is later than now"),
        }
    }
}

impl std::error::Error for StateError {}

impl State {
    /// Returns a state of this run of the machine.
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
            allocations: Vec::new(),
            suspended: Vec::new(),
            iterations: Vec::new(),
            plans: Vec::new(),
        }
    }

    /// Returns whether the state has any news compared with `other`.
    fn differs_from(&self, other: &Self) -> bool {
        // Time alone is no news, and neither are turns of an arbiter that has nothing to decide.
        let news = |gpu: &SavedGpu| {
            let counters = Counters { idle_ns: 0, turns: 0, turn_total_ns: 0, ..gpu.counters };
            SavedGpu { counters, uuid: gpu.uuid.clone() }
        };
        self.tenants != other.tenants
            || self.adopted != other.adopted
            || self.held != other.held
            || self.allocations != other.allocations
            || self.suspended != other.suspended
            || self.iterations != other.iterations
            || self.plans != other.plans
            || !self.gpus.iter().map(news).eq(other.gpus.iter().map(news))
    }

    /// Returns the bytes of the state file.
    ///
    /// # Errors
    ///
    /// Returns the error of the serialisation. The types of the state should cause no such error.
    pub fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(self)?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Returns the bytes of the state file, and the number of iterations and plans that the bytes
    /// lack. If the whole state has more than `most_bytes`, the method leaves out iterations, then
    /// plans, the largest first, because the accounts need neither. If the rest alone has more than
    /// `most_bytes`, so have the bytes. Afterwards, the state is the same as before.
    ///
    /// # Errors
    ///
    /// Returns the same error as [`Self::to_bytes`].
    fn write_within(&mut self, most_bytes: usize) -> serde_json::Result<(Vec<u8>, usize)> {
        let bytes = self.to_bytes()?;
        if bytes.len() <= most_bytes {
            return Ok((bytes, 0));
        }
        let (plans, iterations) = (sized(&self.plans)?, sized(&self.iterations)?);
        let sizes = plans.iter().map(|(bytes, _)| bytes).chain(iterations.iter().map(|(bytes, _)| bytes));
        let all_bytes: usize = sizes.sum();
        // The last plan and the last iteration have no comma.
        let needed_bytes = (bytes.len() + 2 * COMMA_BYTES).saturating_sub(all_bytes);
        let mut room_bytes = most_bytes.saturating_sub(needed_bytes);
        let plans = fitting(plans, &mut room_bytes);
        let iterations = fitting(iterations, &mut room_bytes);
        let left_out = (self.plans.len() - plans.len()) + (self.iterations.len() - iterations.len());
        let plans = std::mem::replace(&mut self.plans, plans);
        let iterations = std::mem::replace(&mut self.iterations, iterations);
        let bytes = self.to_bytes();
        (self.plans, self.iterations) = (plans, iterations);
        Ok((bytes?, left_out))
    }
}

/// Returns each part with the bytes of its JSON and of a comma, the smallest first.
fn sized<T: Serialize>(parts: &[T]) -> serde_json::Result<Vec<(usize, &T)>> {
    let sized =
        parts.iter().map(|part| serde_json::to_vec(part).map(|json| (json.len() + COMMA_BYTES, part)));
    let mut sized = sized.collect::<serde_json::Result<Vec<(usize, &T)>>>()?;
    sized.sort_by_key(|(bytes, _)| *bytes);
    Ok(sized)
}

/// Returns the first parts that fit into `room_bytes`, and takes their bytes off the room.
fn fitting<T: Clone>(sized: Vec<(usize, &T)>, room_bytes: &mut usize) -> Vec<T> {
    let mut fitting = Vec::new();
    for (bytes, part) in sized {
        let Some(left_bytes) = room_bytes.checked_sub(bytes) else { break };
        *room_bytes = left_bytes;
        fitting.push(part.clone());
    }
    fitting
}

/// Returns the state in a file's bytes.
///
/// # Errors
///
/// Returns [`StateError`] if the bytes are no state of this major version.
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
    use deepres_model::allocation::{PodContainer, Token};
    use deepres_policy::granularity::Cut;
    use serde_json::json;

    /// Returns a state with a value in every field.
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
            place: Some("/docker/4711".to_owned()),
            set: Wish { share_ppm: Some(700_000), ..Wish::default() },
            accounts: vec![OnGpu { uuid: uuid.clone(), saved: account }],
            sessions: vec![SavedSession {
                process,
                at_ns: None,
                meters: vec![OnGpu { uuid: uuid.clone(), saved: meter }],
            }],
            placed: Some(SavedPlacement { gpus: vec![uuid.clone()], why: "it has room".to_owned() }),
            is_here: true,
            paused: true,
            ..SavedTenant::default()
        };
        let gpu = SavedGpu { uuid, counters: Counters { handoffs: 3, ..Counters::default() } };
        let adopted = vec![Adopted { process, tenant: Some("train".to_owned()) }];
        let suspended = vec![SuspendedProcess { tenant: "train".to_owned(), process }];
        let allocation = Allocation {
            token: Token::of([7; 16]),
            share_ppm: 300_000,
            memory_bytes: 1 << 30,
            gpus: vec![gpu.uuid.clone()],
            holder: Some(PodContainer::default()),
        };
        let iteration = Serialized::new(IterationStatus {
            learned_ns: 5,
            process: Some(process),
            purpose: "training".to_owned(),
            period_ns: 9,
            idle_ns: 1,
            repeats: 3,
            launches: 4,
            explained: 3,
            lost: 0,
            unknown_times: 0,
            unknown_widths: 0,
            kernels: Vec::new(),
        });
        let plan = Plan {
            cuts: vec![Cut { tenant: 0, kernel: 3, other: 1, until: 2 }],
            sequential_ns: 20.0,
            unplanned_ns: 15.0,
            planned_ns: 12.0,
            in_order_gain: 0.125,
            bound_ns: 10.0,
            residue_ns: 2.0,
            cost_ns: 1.0,
            longest_wait_ns: 3.0,
        };
        let iterations = vec![SavedIteration { tenant: "train".to_owned(), iteration: iteration.clone() }];
        let tenants = vec![("train".to_owned(), iteration)];
        let plans = vec![SavedPlan { uuid: gpu.uuid.clone(), tenants, plan }];
        State {
            adopted,
            held: vec![process],
            allocations: vec![allocation],
            suspended,
            iterations,
            plans,
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
            .replacen(&format!("\"minor\":{MINOR}"), "\"minor\":99,\"patch\":[1]", 1)
            .replacen("\"pid\":4711", "\"pid\":4711,\"cgroup\":{\"a\":[]}", 1)
            .replacen("\"lag_ns\":-7", "\"lag_ns\":-7,\"temper\":\"mild\"", 1);
        assert_eq!(newer.matches("\"minor\":99,\"patch\"").count(), 1);
        let read = parse(newer.as_bytes()).unwrap();
        assert_eq!(read.tenants, example().tenants);
        let bare =
            r#"{"deepres_state":{"major":1,"minor":0},"boot":"b","saved_ns":1,"tenants":[{"name":"a"}]}"#;
        assert_eq!(parse(bare.as_bytes()).unwrap().tenants[0].name, "a");
    }

    #[test]
    fn an_iteration_or_a_plan_that_cannot_be_read_is_left_out_alone() {
        let state = example();
        let mut file: Value = serde_json::from_slice(&state.to_bytes().unwrap()).unwrap();
        let good = file["iterations"][0].clone();
        let mut damaged = good.clone();
        damaged["iteration"]["kernels"] = json!("nonsense");
        file["iterations"] = json!([damaged, good, 7]);
        assert_eq!(parse(file.to_string().as_bytes()).unwrap(), state);
        let good = file["plans"][0].clone();
        let mut damaged = good.clone();
        damaged["plan"] = json!("nonsense");
        file["plans"] = json!([damaged, good]);
        assert_eq!(parse(file.to_string().as_bytes()).unwrap(), state);
        let without = State { iterations: Vec::new(), ..state };
        for nonsense in [json!({ "train": 1 }), json!("nonsense"), Value::Null] {
            file["iterations"] = nonsense;
            assert_eq!(parse(file.to_string().as_bytes()).unwrap(), without);
        }
    }

    #[test]
    fn a_state_that_is_too_large_lacks_the_largest_iterations_and_then_the_plans() {
        let iteration = |tenant: &str, bytes: usize| {
            let usual = IterationStatus::clone(&example().iterations[0].iteration);
            let iteration = Serialized::new(IterationStatus { purpose: "x".repeat(bytes), ..usual });
            SavedIteration { tenant: tenant.to_owned(), iteration }
        };
        let state = State { iterations: vec![iteration("large", 2000), iteration("small", 1)], ..example() };
        let needed = State { iterations: Vec::new(), plans: Vec::new(), ..state.clone() };
        let written = |most_bytes: usize| {
            let mut whole = state.clone();
            let (bytes, left_out) = whole.write_within(most_bytes).unwrap();
            assert_eq!(whole, state, "the state keeps what the bytes lack");
            assert!(bytes.len() <= most_bytes, "{} > {most_bytes}", bytes.len());
            let read = parse(&bytes).unwrap();
            assert_eq!((&read.tenants, &read.allocations), (&state.tenants, &state.allocations));
            let names: Vec<&str> = read.iterations.iter().map(|saved| saved.tenant.as_str()).collect();
            (left_out, read.plans.len(), names.join(" "))
        };
        let whole_bytes = state.to_bytes().unwrap().len();
        assert_eq!(written(whole_bytes), (0, 1, "large small".to_owned()));
        assert_eq!(written(whole_bytes - 1), (1, 1, "small".to_owned()));
        let without_iterations = State { plans: state.plans.clone(), ..needed.clone() };
        let bytes = without_iterations.to_bytes().unwrap().len() + COMMA_BYTES;
        assert_eq!(written(bytes), (2, 1, String::new()));
        assert_eq!(written(needed.to_bytes().unwrap().len()), (3, 0, String::new()));
    }

    #[test]
    fn another_major_version_and_garbage_are_refused_with_what_was_found() {
        let text = String::from_utf8(example().to_bytes().unwrap()).unwrap();
        let other = text.replacen("\"major\":1", "\"major\":2", 1);
        assert!(matches!(parse(other.as_bytes()), Err(StateError::Major(2))));
        // A file of another major version may share only the version with files of this one.
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
        after.gpus[0].counters.idle_ns += 1;
        after.gpus[0].counters.turns += 1;
        assert!(!after.differs_from(&before));
        after.tenants[0].accounts[0].saved.totals.gpu_ns += 1;
        assert!(after.differs_from(&before));
    }
}
