//! A scenario: GPUs, their tenants and what they do. TOML; docs/evaluation-scenarios.md describes every key, tests/scenarios/schema.json lists
//! them for editors.

mod check;
mod place;
mod units;

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, ensure};
use deepres_policy::class::Class;
use deepres_policy::entitlement::Request;
use deepres_policy::lease::guard::DEFAULT_MAX_HARM_PPM;
use deepres_policy::priority::{Criticality, Priority, Weights};
use serde::Deserialize;

use crate::trace::{Stretch, Trace};
use check::Fault;

/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;
/// A day is longer than anything that has been asked of it.
const MAX_S: f64 = 86_400.0;
/// All of a GPU's time, or of its SMs, parts per million.
const WHOLE: u32 = deepres_abi::PPM;

/// A scenario, as its file says.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a scenario")]
pub struct Scenario {
    /// Its name in reports.
    pub name: String,
    /// What it shows: a sentence.
    pub shows: String,
    /// How long it lasts; what is measured begins after `warmup_s`.
    #[serde(rename = "duration_s", deserialize_with = "units::seconds")]
    pub duration_ns: u64,
    /// Not measured.
    #[serde(rename = "warmup_s", default, deserialize_with = "units::seconds_or_none")]
    pub warmup_ns: u64,
    /// Where the random numbers begin.
    #[serde(default, deserialize_with = "units::seed")]
    pub seed: u64,
    /// How many GPUs there are, all alike.
    #[serde(default = "units::one", deserialize_with = "units::gpus")]
    pub gpus: usize,
    /// Each of them.
    #[serde(default)]
    pub gpu: Gpu,
    /// What the operator of deepres set.
    #[serde(default)]
    pub policy: Operator,
    /// Who shares them.
    #[serde(rename = "tenant")]
    pub tenants: Vec<Tenant>,
}

/// A GPU, and what it costs to share it.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table: `[gpu]`")]
pub struct Gpu {
    /// What the hardware does with several contexts, under policies that leave it to.
    pub device: Hardware,
    /// How long one context has the GPU while others wait, where the hardware takes turns.
    #[serde(rename = "slice_ms", deserialize_with = "units::millis")]
    pub slice_ns: u64,
    /// What such a turn costs.
    #[serde(rename = "switch_us", deserialize_with = "units::micros_or_none")]
    pub switch_ns: u64,
    /// From the last kernel of one tenant to the first of the next under deepres: bell, decision, gate.
    #[serde(rename = "handoff_us", deserialize_with = "units::micros")]
    pub handoff_ns: u64,
}

/// What the hardware does with several contexts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hardware {
    /// They take turns.
    #[default]
    TimeSlice,
    /// They run together.
    Mps,
}

impl Default for Gpu {
    fn default() -> Self {
        Self { device: Hardware::default(), slice_ns: 2_000_000, switch_ns: 50_000, handoff_ns: 100_000 }
    }
}

/// What the operator of deepres set: `[priority]` and `max_harm` of its configuration.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table: `[policy]`")]
pub struct Operator {
    /// What guests may cost owners.
    #[serde(rename = "max_harm", deserialize_with = "units::part")]
    pub max_harm_ppm: u32,
    /// What urgency weighs,
    #[serde(deserialize_with = "units::weight")]
    pub urgency: f64,
    /// the job's size,
    #[serde(deserialize_with = "units::weight")]
    pub size: f64,
    /// and how critical it is.
    #[serde(deserialize_with = "units::weight")]
    pub criticality: f64,
}

impl Default for Operator {
    fn default() -> Self {
        let Weights { urgency, size, criticality } = Weights::default();
        Self { max_harm_ppm: DEFAULT_MAX_HARM_PPM, urgency, size, criticality }
    }
}

impl Operator {
    /// What the terms of a priority value weigh.
    pub fn weights(&self) -> Weights {
        Weights { urgency: self.urgency, size: self.size, criticality: self.criticality }
    }
}

/// One tenant.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table: `[[tenant]]`")]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// Its place in the scenario, which its random numbers begin with.
    #[serde(skip)]
    pub number: u64,
    /// How many there are of it: `NAME-1`, `NAME-2`, …
    #[serde(default = "units::one", deserialize_with = "units::count")]
    pub count: usize,
    /// The GPU that it is on, from 0. Without, the first of those with the fewest tenants; always known in a scenario that was read.
    #[serde(default, deserialize_with = "units::maybe_gpu")]
    pub gpu: Option<usize>,
    /// Its class.
    #[serde(default, deserialize_with = "units::from_str")]
    pub class: Class,
    /// The share it asks for.
    #[serde(default, rename = "share", deserialize_with = "units::maybe_share")]
    pub share_ppm: Option<u32>,
    /// The most that it can be owed.
    #[serde(default, rename = "cap", deserialize_with = "units::maybe_share")]
    pub cap_ppm: Option<u32>,
    /// How critical it is.
    #[serde(default, deserialize_with = "units::criticality")]
    pub criticality: Criticality,
    /// When it has to be done.
    #[serde(default, rename = "deadline_s", deserialize_with = "units::maybe_seconds")]
    pub deadline_ns: Option<u64>,
    /// GPU time that its whole job takes: then it is done, and has nothing more to do.
    #[serde(default, rename = "size_s", deserialize_with = "units::maybe_seconds")]
    pub size_ns: Option<u64>,
    /// The part of the SMs that its kernels can use.
    #[serde(default = "units::whole", rename = "sm", deserialize_with = "units::share")]
    pub sm_ppm: u32,
    /// When it has work: pairs of seconds. Without any, always.
    #[serde(default, deserialize_with = "units::spans")]
    pub active_s: Vec<(u64, u64)>,
    /// When it has work, and how much.
    #[serde(default)]
    pub phases: Vec<Phase>,
    /// It works in steps: kernels, then a pause.
    pub steps: Option<Steps>,
    /// It answers requests.
    pub requests: Option<Requests>,
    /// It does what was recorded, over and over.
    pub trace: Option<Recorded>,
}

/// A time in which a tenant has work.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, for example { from_s = 0, to_s = 20, load = 0.5 }")]
pub struct Phase {
    /// From then,
    #[serde(rename = "from_s", default, deserialize_with = "units::seconds_or_none")]
    pub from_ns: u64,
    /// to then.
    #[serde(rename = "to_s", deserialize_with = "units::seconds")]
    pub to_ns: u64,
    /// Requests come so many times as often; steps have so many times the kernels.
    #[serde(default = "units::normal", deserialize_with = "units::load")]
    pub load: f64,
}

/// What was recorded of a program (docs/traces.md).
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table: `[tenant.trace]`")]
pub struct Recorded {
    /// The file, from where the scenario is.
    pub file: PathBuf,
    /// Between the end of the recording and its next beginning.
    #[serde(default, rename = "pause_ms", deserialize_with = "units::millis_or_none")]
    pub pause_ns: u64,
    /// What is in it.
    #[serde(skip)]
    pub stretches: Arc<Vec<Stretch>>,
    /// What is wrong with it, and did not keep it from being read.
    #[serde(skip)]
    pub flaws: Vec<String>,
}

/// Kernels that are alike, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, for example { kernels = 40, kernel_us = 150 }")]
pub struct Part {
    /// How many.
    #[serde(deserialize_with = "units::kernels")]
    pub kernels: u64,
    /// How long one takes with the whole GPU.
    #[serde(rename = "kernel_us", deserialize_with = "units::micros")]
    pub kernel_ns: u64,
    /// The part of the SMs that they can use; without, the tenant's.
    #[serde(default, rename = "sm", deserialize_with = "units::maybe_share")]
    pub sm_ppm: Option<u32>,
}

/// A closed loop, as training is: so many kernels, all finished, then a pause.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table: `[tenant.steps]`")]
pub struct Steps {
    /// Kernels in a step.
    #[serde(default, deserialize_with = "units::maybe_kernels")]
    pub kernels: Option<u64>,
    /// How long one takes with the whole GPU.
    #[serde(default, rename = "kernel_us", deserialize_with = "units::maybe_micros")]
    pub kernel_ns: Option<u64>,
    /// The kernels of a step, in place of those two; always known in a scenario that was read.
    #[serde(default)]
    pub profile: Vec<Part>,
    /// Between two steps.
    #[serde(default, rename = "pause_ms", deserialize_with = "units::millis_or_none")]
    pub pause_ns: u64,
    /// How pauses vary.
    #[serde(default)]
    pub pauses: Pauses,
    /// Kernels, and regular pauses, vary by this part of themselves, evenly, up and down.
    #[serde(default, deserialize_with = "units::fraction")]
    pub jitter: f64,
    /// A step that takes longer than this is a miss.
    #[serde(default, rename = "slo_ms", deserialize_with = "units::maybe_millis")]
    pub slo_ns: Option<u64>,
}

/// How pauses vary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pauses {
    /// By the jitter.
    #[default]
    Regular,
    /// Not foreseeable: `pause_ms` is their mean.
    Exponential,
}

/// An open loop, as a service is: requests come however busy it is, and are answered in turn.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table: `[tenant.requests]`")]
pub struct Requests {
    /// How they come.
    pub arrival: Arrival,
    /// How many come in a second, on average.
    #[serde(rename = "per_s", deserialize_with = "units::rate")]
    pub per_s: f64,
    /// Kernels in one.
    #[serde(default, deserialize_with = "units::maybe_kernels")]
    pub kernels: Option<u64>,
    /// How long a kernel takes with the whole GPU.
    #[serde(default, rename = "kernel_us", deserialize_with = "units::maybe_micros")]
    pub kernel_ns: Option<u64>,
    /// The kernels of a request, in place of those two; always known in a scenario that was read.
    #[serde(default)]
    pub profile: Vec<Part>,
    /// Kernels vary by this part of themselves, evenly, up and down.
    #[serde(default, deserialize_with = "units::fraction")]
    pub jitter: f64,
    /// An answer later than this is a miss.
    #[serde(default, rename = "slo_ms", deserialize_with = "units::maybe_millis")]
    pub slo_ns: Option<u64>,
}

/// How requests come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrival {
    /// Independently of each other.
    Poisson,
    /// At equal distances.
    Periodic,
}

impl Scenario {
    /// Reads a scenario from a file.
    ///
    /// # Errors
    /// What is wrong with it, with line and key.
    pub fn read(file: &Path) -> Result<Self> {
        let text = read_text(file).with_context(|| format!("cannot read the scenario {}", file.display()))?;
        let folder = file.parent().unwrap_or(Path::new("."));
        Self::parse_in(folder, &text).with_context(|| format!("in the scenario {}", file.display()))
    }

    /// Reads a scenario that comes with deepres.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn ours(file: &str) -> Result<Self> {
        Self::read(&ours().join(file))
    }

    /// Reads a scenario.
    ///
    /// # Errors
    /// What is wrong with it, with line and key.
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_in(Path::new("."), text)
    }

    fn parse_in(folder: &Path, text: &str) -> Result<Self> {
        let mut scenario: Self = toml::from_str(text)?;
        scenario
            .complete(folder)
            .and_then(|()| scenario.check())
            .map_err(|fault| anyhow!(fault.located(text)))?;
        scenario.expand();
        Ok(scenario)
    }

    /// Reads traces, and brings what can be said in two ways into one.
    fn complete(&mut self, folder: &Path) -> Result<(), Fault> {
        for (number, tenant) in self.tenants.iter_mut().enumerate() {
            let at = |keys: &[&'static str], says: String| Fault::of_tenant(number, keys, says);
            if let Some(recorded) = &mut tenant.trace {
                let trace = Trace::read(&folder.join(&recorded.file));
                let broken = |error: anyhow::Error| at(&["trace", "file"], format!("{error:#}"));
                let trace = trace.map_err(broken)?;
                recorded.flaws = trace.flaws();
                recorded.stretches = Arc::new(trace.stretches().map_err(broken)?);
            }
            if let Some(steps) = &mut tenant.steps {
                complete_profile(&mut steps.profile, steps.kernels, steps.kernel_ns)
                    .map_err(|(key, says)| at(&["steps", key], says))?;
            }
            if let Some(requests) = &mut tenant.requests {
                complete_profile(&mut requests.profile, requests.kernels, requests.kernel_ns)
                    .map_err(|(key, says)| at(&["requests", key], says))?;
            }
            if !tenant.phases.is_empty() && !tenant.active_s.is_empty() {
                return Err(at(&["phases"], "this and active_s say the same: keep one".to_owned()));
            }
            let phase = |(from_ns, to_ns): &(u64, u64)| Phase { from_ns: *from_ns, to_ns: *to_ns, load: 1.0 };
            tenant.phases.extend(tenant.active_s.iter().map(phase));
        }
        Ok(())
    }

    /// Numbers repeated tenants, and puts each on a GPU.
    fn expand(&mut self) {
        let mut tenants = Vec::new();
        let mut on_gpu = vec![0; self.gpus];
        for tenant in std::mem::take(&mut self.tenants) {
            for number in 1..=tenant.count {
                let name =
                    if tenant.count > 1 { format!("{}-{number}", tenant.name) } else { tenant.name.clone() };
                let gpu = tenant.gpu.unwrap_or_else(|| {
                    let emptiest = on_gpu.iter().enumerate().min_by_key(|(_, tenants)| **tenants);
                    emptiest.map_or(0, |(gpu, _)| gpu)
                });
                on_gpu[gpu] += 1;
                let place = tenants.len() as u64;
                tenants.push(Tenant { name, number: place, count: 1, gpu: Some(gpu), ..tenant.clone() });
            }
        }
        self.tenants = tenants;
    }

    /// The part of the scenario that one GPU has.
    pub fn on_gpu(&self, gpu: usize) -> Self {
        let tenants = self.tenants.iter().filter(|tenant| tenant.gpu == Some(gpu)).cloned().collect();
        Self { gpus: 1, tenants, ..self.without_tenants() }
    }

    /// All of it but for the tenants.
    pub fn without_tenants(&self) -> Self {
        Self {
            name: self.name.clone(),
            shows: self.shows.clone(),
            gpu: self.gpu.clone(),
            tenants: Vec::new(),
            ..*self
        }
    }
}

/// A file's text. It may be a pipe's end, and need not be one of ours.
fn read_text(file: &Path) -> Result<String> {
    /// Bytes of a scenario that nobody wrote by hand, and then some.
    const MOST: u64 = 64 << 20;
    let mut bytes = Vec::new();
    File::open(file)?.take(MOST + 1).read_to_end(&mut bytes)?;
    ensure!(bytes.len() as u64 <= MOST, "it has more than {MOST} bytes: no scenario is that long");
    String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        anyhow!("line {line} is no UTF-8, which TOML is written in")
    })
}

/// Where the scenarios are that come with deepres.
pub fn ours() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios")
}

/// The files of those, in the order of their names.
///
/// # Errors
/// The folder cannot be read, or holds none.
pub fn all() -> Result<Vec<PathBuf>> {
    let folder = ours();
    let entries = std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            files.push(path);
        }
    }
    files.sort();
    ensure!(!files.is_empty(), "there is no scenario in {}", folder.display());
    Ok(files)
}

/// Brings the two ways to say what a step or request runs into one. An error says at which key.
fn complete_profile(
    profile: &mut Vec<Part>,
    kernels: Option<u64>,
    kernel_ns: Option<u64>,
) -> Result<(), (&'static str, String)> {
    match (profile.is_empty(), kernels, kernel_ns) {
        (true, Some(kernels), Some(kernel_ns)) => profile.push(Part { kernels, kernel_ns, sm_ppm: None }),
        (false, None, None) => {}
        (false, ..) => {
            return Err(("profile", "this stands in place of kernels and kernel_us: keep one".to_owned()));
        }
        (true, None, _) => {
            return Err(("kernels", "missing: say how many kernels there are, or give a profile".to_owned()));
        }
        (true, _, None) => {
            return Err(("kernel_us", "missing: say how long a kernel takes, or give a profile".to_owned()));
        }
    }
    Ok(())
}

impl Tenant {
    /// What it asks the policy for, with this priority value.
    pub fn request(&self, priority_ppm: u32) -> Request {
        let cap_ppm = self.cap_ppm.unwrap_or(WHOLE);
        Request { class: self.class, asked_ppm: self.share_ppm, cap_ppm, priority_ppm, ..Request::default() }
    }

    /// What it says of its job.
    pub fn priority(&self) -> Priority {
        Priority { criticality: self.criticality, deadline_ns: self.deadline_ns, size_ns: self.size_ns }
    }

    /// Whether it only has what others leave.
    pub fn is_guest(&self) -> bool {
        self.class == Class::BestEffort
    }

    /// How soon its requests are to be answered, or its steps to be done.
    pub fn slo_ns(&self) -> Option<u64> {
        let of_steps = self.steps.as_ref().and_then(|steps| steps.slo_ns);
        self.requests.as_ref().map_or(of_steps, |requests| requests.slo_ns)
    }

    /// The longest kernel that it can have, ns.
    pub fn longest_kernel_ns(&self) -> u64 {
        let longest = |profile: &[Part], jitter: f64| {
            let kernel_ns = profile.iter().map(|part| part.kernel_ns).max().unwrap_or(0);
            (kernel_ns as f64 * (1.0 + jitter)).ceil() as u64
        };
        let recorded = |recorded: &Recorded| {
            let all = recorded.stretches.iter().flat_map(|stretch| stretch.kernels_ns.iter().copied());
            all.max().unwrap_or(0)
        };
        let steps = self.steps.as_ref().map(|steps| longest(&steps.profile, steps.jitter));
        let requests = self.requests.as_ref().map(|requests| longest(&requests.profile, requests.jitter));
        let recorded = self.trace.as_ref().map(recorded);
        [steps, requests, recorded].into_iter().flatten().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
