//! Finds values of a scenario that are valid alone and impossible together. The error names line
//! and key.

use std::collections::BTreeMap;
use std::iter::repeat_n;

use deepres_policy::class::Class;
use deepres_policy::entitlement;

use super::place::{Step, line_of};
use super::{Gpu, MAX_S, Part, Recorded, SECOND, Scenario, Tenant};

/// The most tenants of a scenario: the thousand tenants of the design, and some more.
pub const MAX_TENANTS: usize = 4096;
/// The most seconds of all tenants together. The evaluation computes each tenant's entitlement ten
/// times a second, so this limit stands for some minutes of evaluation.
const MAX_TENANT_SECONDS: u64 = 100_000_000;
/// The most kernels in a scenario, which are some minutes of evaluation.
const MAX_KERNELS: f64 = 2e7;
/// The greatest product of kernels and tenants on a GPU, because some policies look at all tenants
/// for each kernel. The hour of a thousand tenants has 4.4e8 such looks, and takes a minute.
const MAX_LOOKS: f64 = 5e9;
/// The most time slices in a run.
const MAX_SLICES: f64 = 2e7;

/// A fault, and its place.
#[derive(Debug)]
pub struct Fault {
    path: Vec<Step>,
    says: String,
}

impl Fault {
    fn new(path: Vec<Step>, says: String) -> Self {
        Self { path, says }
    }

    /// Returns a fault at keys of the scenario itself.
    fn at(keys: &[&'static str], says: impl Into<String>) -> Self {
        Self::new(keys.iter().map(|key| Step::Key(key)).collect(), says.into())
    }

    /// Returns a fault at keys of a tenant, by the tenant's place in the file.
    pub fn of_tenant(number: usize, keys: &[&'static str], says: impl Into<String>) -> Self {
        let head = [Step::Key("tenant"), Step::Place(number)];
        Self::new(head.into_iter().chain(keys.iter().map(|key| Step::Key(key))).collect(), says.into())
    }

    /// Returns the message, with its key and the line of the text.
    pub fn located(&self, text: &str) -> String {
        let keys = self.path.iter().filter_map(|step| match step {
            Step::Key(key) => Some(*key),
            Step::Place(_) => None,
        });
        let key = keys.collect::<Vec<_>>().join(".");
        format!("line {}, `{key}`: {}", line_of(text, &self.path), self.says)
    }
}

impl Scenario {
    /// Checks the scenario. The tenants are those of the file, and not numbered yet.
    pub fn check(&self) -> Result<(), Fault> {
        if self.tenants.is_empty() {
            return Err(Fault::at(&["tenant"], "there is none: add a [[tenant]]"));
        }
        if self.warmup_ns >= self.duration_ns {
            let says = "this is not below duration_s: nothing is left to measure";
            return Err(Fault::at(&["warmup_s"], says));
        }
        if self.name.trim().is_empty() {
            return Err(Fault::at(&["name"], "it is empty: reports tell scenarios by their names"));
        }
        if has_no_picture(&self.name) {
            return Err(Fault::at(
                &["name"],
                "the name has a control character, or another that no picture can have: leave it out",
            ));
        }
        if self.gpu.handoff_ns >= self.duration_ns {
            let says = "a hand-off takes as long as all of duration_s: nobody would ever run";
            let is_said = self.gpu.handoff_ns != Gpu::default().handoff_ns;
            return Err(Fault::at(if is_said { &["gpu", "handoff_us"] } else { &["duration_s"] }, says));
        }
        let operator = &self.policy;
        if operator.urgency + operator.size + operator.criticality <= 0.0 {
            return Err(Fault::at(
                &["policy"],
                "urgency, size and criticality weigh nothing: give one of them a weight",
            ));
        }
        let mut places = BTreeMap::new();
        let mut tenants = 0usize;
        let (mut kernels, mut work_ns) = (0.0, 0.0);
        for (number, tenant) in self.tenants.iter().enumerate() {
            self.check_tenant(tenant).map_err(|(keys, says)| Fault::of_tenant(number, &keys, says))?;
            tenants = tenants.saturating_add(tenant.count);
            if tenants > MAX_TENANTS {
                let says = format!("with these there are more than {MAX_TENANTS} tenants");
                return Err(Fault::of_tenant(number, &["count"], says));
            }
            if (tenants as u64).saturating_mul(self.duration_ns / SECOND) > MAX_TENANT_SECONDS {
                let says = format!(
                    "{tenants} tenants are too many for this time: make duration_s {} at most",
                    MAX_TENANT_SECONDS / tenants as u64
                );
                return Err(Fault::of_tenant(number, &["count"], says));
            }
            let names = (1..=tenant.count).map(|copy| match tenant.count {
                1 => tenant.name.clone(),
                _ => format!("{}-{copy}", tenant.name),
            });
            for name in names {
                if let Some(before) = places.insert(name.clone(), number) {
                    let says = format!(
                        "two tenants are called `{name}`: this one, and number {} of the file",
                        before + 1
                    );
                    return Err(Fault::of_tenant(number, &["name"], says));
                }
            }
            kernels += tenant.count as f64 * tenant.most_kernels(self.duration_ns);
            if kernels > MAX_KERNELS {
                let says = format!(
                    "with this tenant it may come to {kernels:.0} kernels, and {MAX_KERNELS:.0} are the most; make duration_s \
                     shorter, kernels longer or requests rarer"
                );
                return Err(Fault::of_tenant(number, &["name"], says));
            }
            let on_each = tenants.div_ceil(self.gpus);
            if kernels * on_each as f64 > MAX_LOOKS {
                let says = format!(
                    "with this tenant it may come to {kernels:.0} kernels, and {:.0} are the most with {on_each} tenants on a GPU; make \
                     duration_s shorter, kernels longer, requests rarer or tenants fewer",
                    MAX_LOOKS / on_each as f64
                );
                return Err(Fault::of_tenant(number, &["name"], says));
            }
            work_ns += tenant.count as f64 * tenant.most_work_ns(self.duration_ns);
        }
        let slices = work_ns.min(self.gpus as f64 * self.duration_ns as f64) / self.gpu.slice_ns as f64;
        if slices > MAX_SLICES {
            let says = format!(
                "it may come to more than {MAX_SLICES:.0} slices of `gpu.slice_ms`; make them longer, or duration_s shorter"
            );
            let is_said = self.gpu.slice_ns != Gpu::default().slice_ns;
            return Err(Fault::at(if is_said { &["gpu", "slice_ms"] } else { &["duration_s"] }, says));
        }
        self.check_promises()
    }

    /// Checks that the guarantees of all tenants fit on each GPU together.
    fn check_promises(&self) -> Result<(), Fault> {
        let mut expanded = self.clone();
        expanded.expand();
        let numbers =
            self.tenants.iter().enumerate().flat_map(|(number, tenant)| repeat_n(number, tenant.count));
        let all: Vec<(usize, &Tenant)> = numbers.zip(&expanded.tenants).collect();
        for gpu in 0..self.gpus {
            let own = || all.iter().filter(|(_, tenant)| tenant.gpu == Some(gpu));
            if !entitlement::fits(own().map(|(_, tenant)| tenant.request(0))) {
                let guaranteed = own().filter(|(_, tenant)| tenant.class == Class::Guaranteed);
                let last = guaranteed.map(|(number, _)| *number).next_back().unwrap_or(0);
                let remedy = match self.gpus {
                    1 => "",
                    _ => ": put some on others, by `gpu` (without one each goes where the fewest are)",
                };
                let says = format!("the guaranteed shares on GPU {gpu} add up to more than the GPU{remedy}");
                return Err(Fault::of_tenant(last, &["share"], says));
            }
        }
        Ok(())
    }

    /// Checks one tenant. The error names the keys and the reason.
    fn check_tenant(&self, tenant: &Tenant) -> Result<(), (Vec<&'static str>, String)> {
        let wrong = |keys: &[&'static str], says: &str| Err((keys.to_vec(), says.to_owned()));
        if tenant.name.trim().is_empty() {
            return wrong(&["name"], "a tenant has an empty name");
        }
        if has_no_picture(&tenant.name) {
            return wrong(
                &["name"],
                "the name has a control character, or another that no picture can have: leave it out",
            );
        }
        if tenant.gpu.is_some_and(|gpu| gpu >= self.gpus) {
            return Err((
                vec!["gpu"],
                format!("there is no such GPU: gpus = {}, and they count from 0", self.gpus),
            ));
        }
        let does = [tenant.steps.is_some(), tenant.requests.is_some(), tenant.trace.is_some()];
        match does.into_iter().filter(|does| *does).count() {
            0 => {
                let says = "it has nothing to do: add [tenant.steps], [tenant.requests] or [tenant.trace]";
                return wrong(&["name"], says);
            }
            1 => {}
            _ => {
                let says =
                    "it has more than one of [tenant.steps], [tenant.requests] and [tenant.trace]: keep one";
                return wrong(&["name"], says);
            }
        }
        let at_once = |key: &'static str, work_ns: f64| {
            let says = "that is longer than a day";
            if work_ns > MAX_S * SECOND as f64 { Err((vec![key], says.to_owned())) } else { Ok(()) }
        };
        tenant.steps.iter().try_for_each(|steps| at_once("steps", sum(&steps.profile).1))?;
        tenant.requests.iter().try_for_each(|requests| at_once("requests", sum(&requests.profile).1))?;
        tenant.trace.iter().try_for_each(|recorded| at_once("trace", recorded_sum(recorded).1))?;
        let key = if tenant.active_s.is_empty() { "phases" } else { "active_s" };
        let mut before_ns = 0;
        for phase in &tenant.phases {
            if phase.from_ns < before_ns || phase.to_ns <= phase.from_ns {
                return wrong(&[key], "the times are not in order, each later than the one before");
            }
            before_ns = phase.to_ns;
        }
        if tenant.phases.first().is_some_and(|first| first.from_ns >= self.duration_ns) {
            return wrong(&[key], "it is active only after the end: this begins when duration_s is over");
        }
        if tenant.trace.is_some() && tenant.phases.iter().any(|phase| phase.load != 1.0) {
            return wrong(&["phases"], "a recording has the load that it has: leave `load` out");
        }
        if tenant.class == Class::Guaranteed && tenant.share_ppm.is_none() {
            return wrong(&["class"], "it is guaranteed, but asks for no share: add `share`");
        }
        if tenant.share_ppm > tenant.cap_ppm && tenant.cap_ppm.is_some() {
            return wrong(&["share"], "it asks for more than its cap: lower this, or raise `cap`");
        }
        Ok(())
    }
}

impl Tenant {
    /// Returns the most kernels that the tenant can finish or receive in `duration_ns`.
    pub(super) fn most_kernels(&self, duration_ns: u64) -> f64 {
        let duration_ns = duration_ns as f64;
        let load = self.phases.iter().map(|phase| phase.load).fold(1.0, f64::max);
        if let Some(requests) = &self.requests {
            return load * requests.per_s * duration_ns / SECOND as f64 * sum(&requests.profile).0;
        }
        // The tenant begins one more cycle than it finishes.
        let cycles = |work_ns: f64, pause_ns: f64| duration_ns / (work_ns + pause_ns).max(1.0) + 1.0;
        match (&self.steps, &self.trace) {
            (Some(steps), _) => {
                let (kernels, work_ns) = sum(&steps.profile);
                // Random pauses can be short.
                let pause_ns =
                    if steps.pauses == super::Pauses::Regular { steps.pause_ns as f64 } else { 0.0 };
                let launches_ns = steps.launch_ns as f64 * (kernels - 1.0);
                load * kernels * cycles(work_ns.max(launches_ns), pause_ns)
            }
            (None, Some(recorded)) => {
                let (kernels, ns) = recorded_sum(recorded);
                kernels * cycles(ns, 0.0)
            }
            (None, None) => 0.0,
        }
    }

    /// Returns the GPU time of the most kernels that the tenant can finish, ns. The pauses of a
    /// recording count too.
    fn most_work_ns(&self, duration_ns: u64) -> f64 {
        let steps = self.steps.as_ref().map(|steps| sum(&steps.profile));
        let requests = self.requests.as_ref().map(|requests| sum(&requests.profile));
        let recorded = self.trace.as_ref().map(recorded_sum);
        let (kernels, work_ns) = [steps, requests, recorded].into_iter().flatten().next().unwrap_or_default();
        self.most_kernels(duration_ns) * work_ns / kernels.max(1.0)
    }
}

/// Returns whether a name has a character that no picture may have. XML 1.0 forbids these
/// characters.
fn has_no_picture(name: &str) -> bool {
    name.chars().any(|c| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}'))
}

/// Returns the number of kernels in a profile, and their time, ns.
fn sum(profile: &[Part]) -> (f64, f64) {
    profile.iter().fold((0.0, 0.0), |(kernels, ns), part| {
        (kernels + part.kernels as f64, ns + part.kernels as f64 * part.kernel_ns as f64)
    })
}

/// Returns the number of kernels in a recording, and its length, ns.
fn recorded_sum(recorded: &Recorded) -> (f64, f64) {
    recorded.stretches.iter().fold((0.0, recorded.pause_ns as f64), |(kernels, ns), stretch| {
        let work_ns: f64 = stretch.kernels_ns.iter().map(|ns| *ns as f64).sum();
        (kernels + stretch.kernels_ns.len() as f64, ns + work_ns + stretch.pause_ns as f64)
    })
}
