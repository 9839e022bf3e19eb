//! A scenario: GPUs, their tenants and the tenants' work, in TOML. docs/evaluation-scenarios.md
//! describes every key, and tests/scenarios/schema.json lists the keys for editors.

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
/// Longest time, s. No scenario needs more than a day.
const MAX_S: f64 = 86_400.0;
/// All of a GPU's time, or of its SMs, parts per million.
const WHOLE: u32 = deepres_abi::PPM;

/// A scenario, as its file describes it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a scenario")]
pub struct Scenario {
    /// Name in reports.
    pub name: String,
    /// A sentence about the scenario, for reports.
    pub shows: String,
    /// Length of the scenario. The measured time begins after `warmup_s`.
    #[serde(rename = "duration_s", deserialize_with = "units::seconds")]
    pub duration_ns: u64,
    /// Time at the beginning that is not measured.
    #[serde(rename = "warmup_s", default, deserialize_with = "units::seconds_or_none")]
    pub warmup_ns: u64,
    /// Seed of the random numbers.
    #[serde(default, deserialize_with = "units::seed")]
    pub seed: u64,
    /// Number of GPUs, which are all alike.
    #[serde(default = "units::one", deserialize_with = "units::gpus")]
    pub gpus: usize,
    /// The properties of each GPU.
    #[serde(default)]
    pub gpu: Gpu,
    /// Settings of the operator of deepres.
    #[serde(default)]
    pub policy: Operator,
    /// The tenants that share the GPUs.
    #[serde(rename = "tenant")]
    pub tenants: Vec<Tenant>,
}

/// A GPU, and the costs of sharing it.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table: `[gpu]`")]
pub struct Gpu {
    /// The hardware's behaviour with several contexts.
    pub device: Hardware,
    /// The slice: the time for which one context has the GPU while other contexts wait.
    #[serde(rename = "slice_ms", deserialize_with = "units::millis")]
    pub slice_ns: u64,
    /// Cost of a switch between two contexts.
    #[serde(rename = "switch_us", deserialize_with = "units::micros_or_none")]
    pub switch_ns: u64,
    /// Time from the last kernel of one tenant to the first kernel of the next under deepres. In
    /// this time, the bell rings, the arbiter decides, the gate opens, and the hardware switches.
    #[serde(rename = "handoff_us", deserialize_with = "units::micros")]
    pub handoff_ns: u64,
}

/// The hardware's behaviour with several contexts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hardware {
    /// Contexts take turns.
    #[default]
    TimeSlice,
    /// Contexts run together.
    Mps,
}

impl Hardware {
    /// Returns the part of the GPU that a kernel takes from the kernels of other contexts, parts
    /// per million. `sm_ppm` is the part of the SMs that the kernel can use.
    pub fn part_ppm(self, sm_ppm: u32) -> u32 {
        match self {
            Self::TimeSlice => WHOLE,
            Self::Mps => sm_ppm,
        }
    }
}

impl Default for Gpu {
    fn default() -> Self {
        Self { device: Hardware::default(), slice_ns: 2_000_000, switch_ns: 50_000, handoff_ns: 100_000 }
    }
}

/// Settings of the operator of deepres: `[priority]` and `max_harm` of the daemon's configuration.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table: `[policy]`")]
pub struct Operator {
    /// Most harm that guests may do to owners.
    #[serde(rename = "max_harm", deserialize_with = "units::part")]
    pub max_harm_ppm: u32,
    /// Weight of urgency.
    #[serde(deserialize_with = "units::weight")]
    pub urgency: f64,
    /// Weight of the job's size.
    #[serde(deserialize_with = "units::weight")]
    pub size: f64,
    /// Weight of the criticality.
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
    /// Returns the weights of the terms of a priority value.
    pub fn weights(&self) -> Weights {
        Weights { urgency: self.urgency, size: self.size, criticality: self.criticality }
    }
}

/// One tenant.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table: `[[tenant]]`")]
pub struct Tenant {
    /// Name of the tenant.
    pub name: String,
    /// Place in the scenario, which seeds the tenant's random numbers.
    #[serde(skip)]
    pub number: u64,
    /// Number of copies of this tenant: `NAME-1`, `NAME-2`, …
    #[serde(default = "units::one", deserialize_with = "units::count")]
    pub count: usize,
    /// The tenant's GPU, from 0. If the file names none, the tenant gets the first of the GPUs with
    /// the fewest tenants. Reading a scenario sets this field.
    #[serde(default, deserialize_with = "units::maybe_gpu")]
    pub gpu: Option<usize>,
    /// Class of the tenant.
    #[serde(default, deserialize_with = "units::from_str")]
    pub class: Class,
    /// Share that the tenant asks for.
    #[serde(default, rename = "share", deserialize_with = "units::maybe_share")]
    pub share_ppm: Option<u32>,
    /// The largest entitlement that the tenant can get.
    #[serde(default, rename = "cap", deserialize_with = "units::maybe_share")]
    pub cap_ppm: Option<u32>,
    /// Criticality of the job.
    #[serde(default, deserialize_with = "units::criticality")]
    pub criticality: Criticality,
    /// Time when the job has to be done.
    #[serde(default, rename = "deadline_s", deserialize_with = "units::maybe_seconds")]
    pub deadline_ns: Option<u64>,
    /// GPU time of the whole job. When the job has used this time, the tenant has no more work.
    #[serde(default, rename = "size_s", deserialize_with = "units::maybe_seconds")]
    pub size_ns: Option<u64>,
    /// Part of the SMs that the tenant's kernels can use.
    #[serde(default = "units::whole", rename = "sm", deserialize_with = "units::share")]
    pub sm_ppm: u32,
    /// Times with work: pairs of seconds. Without such times, the tenant always has work.
    #[serde(default, deserialize_with = "units::spans")]
    pub active_s: Vec<(u64, u64)>,
    /// Times with work, and the load in each.
    #[serde(default)]
    pub phases: Vec<Phase>,
    /// Work in steps: kernels, then a pause.
    pub steps: Option<Steps>,
    /// Work as requests.
    pub requests: Option<Requests>,
    /// A recording that is repeated.
    pub trace: Option<Recorded>,
}

/// A time in which a tenant has work.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, for example { from_s = 0, to_s = 20, load = 0.5 }")]
pub struct Phase {
    /// When the phase begins, ns after the start of the scenario.
    #[serde(rename = "from_s", default, deserialize_with = "units::seconds_or_none")]
    pub from_ns: u64,
    /// When the phase ends, ns after the start of the scenario.
    #[serde(rename = "to_s", deserialize_with = "units::seconds")]
    pub to_ns: u64,
    /// Load: factor for the rate of requests, or for the number of kernels in a step.
    #[serde(default = "units::normal", deserialize_with = "units::load")]
    pub load: f64,
}

/// A recording of a program (docs/traces.md).
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table: `[tenant.trace]`")]
pub struct Recorded {
    /// File, relative to the scenario.
    pub file: PathBuf,
    /// Time between the end of the recording and its next beginning.
    #[serde(default, rename = "pause_ms", deserialize_with = "units::millis_or_none")]
    pub pause_ns: u64,
    /// Content of the file.
    #[serde(skip)]
    pub stretches: Arc<Vec<Stretch>>,
    /// Defects that do not prevent reading the file.
    #[serde(skip)]
    pub flaws: Vec<String>,
}

/// Kernels that are alike, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, for example { kernels = 40, kernel_us = 150 }")]
pub struct Part {
    /// Number of kernels.
    #[serde(deserialize_with = "units::kernels")]
    pub kernels: u64,
    /// Time that one kernel takes with the whole GPU.
    #[serde(rename = "kernel_us", deserialize_with = "units::micros")]
    pub kernel_ns: u64,
    /// Part of the SMs that the kernels can use. Without this key, the tenant's value holds.
    #[serde(default, rename = "sm", deserialize_with = "units::maybe_share")]
    pub sm_ppm: Option<u32>,
}

/// A closed loop, as in training: a step runs some kernels, waits for all of them, then pauses.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table: `[tenant.steps]`")]
pub struct Steps {
    /// Number of kernels in a step.
    #[serde(default, deserialize_with = "units::maybe_kernels")]
    pub kernels: Option<u64>,
    /// Time that one kernel takes with the whole GPU.
    #[serde(default, rename = "kernel_us", deserialize_with = "units::maybe_micros")]
    pub kernel_ns: Option<u64>,
    /// The kernels of a step, instead of the two keys above. Reading a scenario sets this field.
    #[serde(default)]
    pub profile: Vec<Part>,
    /// Time that the program's thread takes from one launch to the next. 0: the thread launches all
    /// kernels of a step at once.
    #[serde(default, rename = "launch_us", deserialize_with = "units::micros_or_none")]
    pub launch_ns: u64,
    /// Time between two steps.
    #[serde(default, rename = "pause_ms", deserialize_with = "units::millis_or_none")]
    pub pause_ns: u64,
    /// The distribution of the pauses between steps.
    #[serde(default)]
    pub pauses: Pauses,
    /// The greatest variation of kernels and regular pauses, up and down, as a part of their
    /// length. Variations are evenly distributed.
    #[serde(default, deserialize_with = "units::fraction")]
    pub jitter: f64,
    /// Time after which a step misses its SLO.
    #[serde(default, rename = "slo_ms", deserialize_with = "units::maybe_millis")]
    pub slo_ns: Option<u64>,
}

/// The distribution of the pauses between the steps of a closed loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pauses {
    /// Pauses vary by the jitter.
    #[default]
    Regular,
    /// Pauses are random; `pause_ms` is their mean.
    Exponential,
}

/// An open loop, as in a service. Requests come even if earlier requests wait, and the service
/// answers the requests in order.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table: `[tenant.requests]`")]
pub struct Requests {
    /// The pattern in which requests arrive.
    pub arrival: Arrival,
    /// Requests per second, on average.
    #[serde(rename = "per_s", deserialize_with = "units::rate")]
    pub per_s: f64,
    /// Number of kernels in a request.
    #[serde(default, deserialize_with = "units::maybe_kernels")]
    pub kernels: Option<u64>,
    /// Time that a kernel takes with the whole GPU.
    #[serde(default, rename = "kernel_us", deserialize_with = "units::maybe_micros")]
    pub kernel_ns: Option<u64>,
    /// The kernels of a request, instead of the two keys above. Reading a scenario sets this field.
    #[serde(default)]
    pub profile: Vec<Part>,
    /// The greatest variation of kernels, up and down, as a part of their length. Variations are
    /// evenly distributed.
    #[serde(default, deserialize_with = "units::fraction")]
    pub jitter: f64,
    /// Time after which an answer misses its SLO.
    #[serde(default, rename = "slo_ms", deserialize_with = "units::maybe_millis")]
    pub slo_ns: Option<u64>,
}

/// The pattern in which requests arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrival {
    /// Requests come independently of each other.
    Poisson,
    /// Requests come at equal distances.
    Periodic,
}

impl Scenario {
    /// Reads a scenario from a file. Returns the complete scenario.
    ///
    /// # Errors
    /// The error in the scenario, with its line and key.
    pub fn read(file: &Path) -> Result<Self> {
        let text = read_text(file).with_context(|| format!("cannot read the scenario {}", file.display()))?;
        let folder = file.parent().unwrap_or(Path::new("."));
        Self::parse_in(folder, &text).with_context(|| format!("in the scenario {}", file.display()))
    }

    /// Reads one of deepres' own scenarios, by the name of its file.
    ///
    /// # Errors
    /// No scenario has this name.
    pub fn ours(file: &str) -> Result<Self> {
        Self::read(&ours().join(file))
    }

    /// Reads a scenario from its text.
    ///
    /// # Errors
    /// The error in the scenario, with its line and key.
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

    /// Reads the traces of the scenario. Converts values that a file can give in two ways into one
    /// form.
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

    /// Replaces repeated tenants by numbered copies, and gives each tenant a GPU.
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

    /// Returns the part of the scenario that runs on one GPU.
    pub fn on_gpu(&self, gpu: usize) -> Self {
        let tenants = self.tenants.iter().filter(|tenant| tenant.gpu == Some(gpu)).cloned().collect();
        Self { gpus: 1, tenants, ..self.without_tenants() }
    }

    /// Returns the scenario without its tenants.
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

/// Returns a file's text. The file can be a pipe, and may be no scenario.
fn read_text(file: &Path) -> Result<String> {
    /// The most bytes of a file. No handwritten scenario is longer.
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

/// Name of the file of the bars. The file lies in the folder of the scenarios, but is no scenario.
pub const BARS: &str = "bars.toml";

/// Returns the folder of the scenarios that come with deepres.
pub fn ours() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios")
}

/// Returns the files of deepres' own scenarios, in the order of their names.
///
/// # Errors
/// The folder cannot be read, or has no scenarios.
pub fn all() -> Result<Vec<PathBuf>> {
    let folder = ours();
    let entries = std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let is_scenario = path.extension().is_some_and(|extension| extension == "toml");
        if is_scenario && !path.ends_with(BARS) {
            files.push(path);
        }
    }
    files.sort();
    ensure!(!files.is_empty(), "there is no scenario in {}", folder.display());
    Ok(files)
}

/// Converts the two ways to give the kernels of a step or request into one form. An error names the
/// key.
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
    /// Returns the tenant's request for a share, with this priority value.
    pub fn request(&self, priority_ppm: u32) -> Request {
        let cap_ppm = self.cap_ppm.unwrap_or(WHOLE);
        Request { class: self.class, asked_ppm: self.share_ppm, cap_ppm, priority_ppm, ..Request::default() }
    }

    /// Returns the terms of the tenant's priority.
    pub fn priority(&self) -> Priority {
        Priority { criticality: self.criticality, deadline_ns: self.deadline_ns, size_ns: self.size_ns }
    }

    /// Returns whether the tenant is a guest.
    pub fn is_guest(&self) -> bool {
        self.class == Class::BestEffort
    }

    /// Returns the time within which requests must be answered, or steps be done.
    pub fn slo_ns(&self) -> Option<u64> {
        let of_steps = self.steps.as_ref().and_then(|steps| steps.slo_ns);
        self.requests.as_ref().map_or(of_steps, |requests| requests.slo_ns)
    }

    /// Returns the part of the SMs that the tenant's widest kernel can use, parts per million.
    pub fn widest_ppm(&self) -> u32 {
        let steps = self.steps.as_ref().map(|steps| &steps.profile);
        let requests = self.requests.as_ref().map(|requests| &requests.profile);
        let parts = steps.into_iter().chain(requests).flatten();
        parts.map(|part| part.sm_ppm.unwrap_or(self.sm_ppm)).max().unwrap_or(self.sm_ppm)
    }

    /// Returns the tenant's longest possible kernel, ns.
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
impl Scenario {
    /// The key that makes a tenant a guest.
    pub const GUEST: &str = "class = \"best-effort\"";

    /// Returns a scenario with these keys at its head. Each tenant has a name, keys, and the keys
    /// of its steps if it has steps.
    pub fn of(head: &str, tenants: &[(&str, &str, &str)]) -> Scenario {
        let mut text = format!("name = \"test\"\nshows = \"the subject of a test\"\n{head}\n");
        for (name, keys, steps) in tenants {
            text += &format!("[[tenant]]\nname = \"{name}\"\n{keys}\n");
            if !steps.is_empty() {
                text += &format!("steps = {{ {steps} }}\n");
            }
        }
        Scenario::parse(&text).unwrap()
    }
}

#[cfg(test)]
mod tests;
