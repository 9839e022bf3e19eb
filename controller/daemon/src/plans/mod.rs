//! Learns the iterations of tenants, searches plans for tenants that run at once, and lets tenants
//! follow a plan ([`deploy`]; docs/granularity.md).
//!
//! An administrator asks the daemon to learn a tenant. The daemon then asks the tenant's sessions
//! for an excerpt of their calls ([`deepres_abi::excerpt`]). A session may write any excerpt. So
//! the daemon reads excerpts of a bounded size, from a bounded number of sessions, on another
//! thread.

mod deploy;

use crate::Shared;
use crate::gpus::Gpus;
use crate::registry::Registry;
use crate::shm::SharedPage;
use crate::state::SavedPlan;
use crate::tenant::Session;
use deepres_abi::PPM;
use deepres_abi::excerpt::Excerpt;
use deepres_abi::grant::GrantPage;
use deepres_abi::meter::MeterPage;
use deepres_model::admin::plan::{
    CutStatus, FoundStatus, IterationStatus, KernelStatus, MOST_LEARN_MS, PlanStatus, PredictionStatus,
};
use deepres_model::clock::monotonic_ns;
use deepres_model::text::harmless;
use deepres_policy::TenantId;
use deepres_policy::granularity::recorded::{self, Iteration, Process, Purpose};
use deepres_policy::granularity::{Kernel, MOST_TENANTS, Plan, Search};
use deploy::Deployed;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// The most sessions of a tenant that the daemon asks for an excerpt.
const MOST_SESSIONS: usize = 8;
/// The most tenants of which the daemon knows an iteration. An iteration takes some MiB at most.
const MOST_LESSONS: usize = 64;
/// The time within which a session finishes its excerpt. A session finishes within milliseconds.
const FINISH_LIMIT: Duration = Duration::from_secs(1);
/// Pause between two looks whether the excerpts are finished.
const LOOK: Duration = Duration::from_millis(10);
/// The most characters of a kernel's name.
const NAME_SHOWN: usize = 100;
/// The most kernels of all tenants for which the daemon searches a plan. The time of a search grows
/// with the kernels, and is some 1 s for so many.
const MOST_KERNELS: usize = deepres_abi::plan::MOST_KERNELS;
/// The width of a kernel whose width is not known, percent.
const WHOLE_PERCENT: f64 = 100.0;
/// The largest part of an iteration's kernels whose times may be unknown in a search: one in so
/// many.
const UNKNOWN_PART: usize = 10;

/// An iteration that the daemon learned of a tenant.
#[derive(Debug)]
struct Learned {
    kernels: Vec<Kernel>,
    status: IterationStatus,
}

#[derive(Debug)]
struct Lesson {
    /// The tenant, because another tenant may get the name later.
    tenant: TenantId,
    is_recording: bool,
    /// The iteration, or why there is none; `None` before the first excerpt.
    learned: Option<Result<Arc<Learned>, String>>,
}

/// A tenant's name and its iteration.
type Known = (String, Arc<Learned>);

/// A search for a plan, for tenants on one GPU.
#[derive(Debug)]
struct Found {
    /// The tenants' iterations. A plan holds only for these.
    of: Vec<Known>,
    /// The plan, or why there is none; `None` while the search runs.
    plan: Option<Result<Plan, String>>,
}

impl Found {
    fn is_of(&self, tenants: &[Known]) -> bool {
        let mut pairs = self.of.iter().zip(tenants);
        self.of.len() == tenants.len()
            && pairs.all(|(one, other)| one.0 == other.0 && Arc::ptr_eq(&one.1, &other.1))
    }
}

/// The iterations that the daemon knows, and the plans that it found.
#[derive(Debug, Default)]
pub struct Plans {
    lessons: BTreeMap<String, Lesson>,
    /// The plan for each GPU.
    found: BTreeMap<usize, Found>,
    /// The plan of each GPU that an administrator has turned on.
    deployed: BTreeMap<usize, Deployed>,
    /// The number of the last excerpt or installation.
    number: u32,
}

impl Plans {
    /// Forgets what the daemon knows of tenants that it has forgotten.
    pub fn forget(&mut self, registry: &Registry) {
        let tenants = registry.tenants();
        self.lessons
            .retain(|name, lesson| tenants.get(name).is_some_and(|tenant| tenant.id == lesson.tenant));
        let lessons = &self.lessons;
        let are_known = |of: &[Known]| of.iter().all(|(name, _)| lessons.contains_key(name));
        self.found.retain(|_, found| are_known(&found.of));
        self.deployed.retain(|_, deployed| are_known(&deployed.of));
    }

    /// Returns the plans that tenants follow, for the state file.
    pub(crate) fn saved(&self, gpus: &Gpus) -> Vec<SavedPlan> {
        let numbered: Vec<_> = gpus.iter().collect();
        let saved = |(gpu, deployed): (&usize, &Deployed)| {
            let tenants = deployed.of.iter().map(|(name, learned)| (name.clone(), learned.status.clone()));
            let uuid = numbered.get(*gpu)?.uuid_text.clone();
            Some(SavedPlan { uuid, tenants: tenants.collect(), plan: deployed.plan.clone() })
        };
        self.deployed.iter().filter(|(_, deployed)| deployed.is_on()).filter_map(saved).collect()
    }

    /// Restores the plans that tenants followed under the previous daemon, except the plans of
    /// tenants that this daemon does not know. The caller calls [`resume`] afterwards.
    pub(crate) fn restore(&mut self, saved: Vec<SavedPlan>, registry: &Registry) {
        for SavedPlan { uuid, tenants, plan } in saved {
            let Some(gpu) = registry.gpus().number_named(&uuid) else { continue };
            let known = |(name, status): &(String, IterationStatus)| {
                let tenant = registry.tenants().get(name)?.id;
                let learned = Learned { kernels: kernels_of(status), status: status.clone() };
                Some((name.clone(), tenant, Arc::new(learned)))
            };
            let all: Option<Vec<_>> = tenants.iter().map(known).collect();
            let Some(all) = all.filter(|all| is_whole(&plan, all.len())) else { continue };
            for (name, tenant, learned) in &all {
                let learned = Some(Ok(Arc::clone(learned)));
                let lesson = Lesson { tenant: *tenant, is_recording: false, learned };
                self.lessons.insert(name.clone(), lesson);
            }
            let of = all.into_iter().map(|(name, _, learned)| (name, learned)).collect();
            self.deployed.insert(gpu, Deployed::new(of, plan));
        }
    }

    /// Returns a tenant of a plan that is on, and that leaves no room for a plan of these tenants
    /// on the GPU: a tenant follows one plan at most, and a GPU has one plan at most.
    fn in_the_way(&self, gpu: usize, of: &[Known]) -> Option<&str> {
        let is_there = |at: usize, tenant: &str| at == gpu || of.iter().any(|(name, _)| name == tenant);
        let on = self.deployed.iter().filter(|(_, deployed)| deployed.is_on());
        let mut tenants =
            on.flat_map(|(at, deployed)| deployed.of.iter().map(|(name, _)| (*at, name.as_str())));
        tenants.find(|(at, tenant)| is_there(*at, tenant)).map(|(_, tenant)| tenant)
    }

    /// Returns a number that no excerpt and no installation has. The number differs from those of
    /// an earlier daemon, whose excerpts a session may have begun.
    fn next_number(&mut self) -> u32 {
        let before = if self.number == 0 { (monotonic_ns() >> 20) as u32 } else { self.number };
        self.number = before.wrapping_add(1).max(1);
        self.number
    }

    fn status(&self, name: &str) -> PlanStatus {
        let lesson = self.lessons.get(name);
        let learned = lesson.and_then(|lesson| lesson.learned.as_ref());
        let is_recording = lesson.is_some_and(|lesson| lesson.is_recording);
        let none =
            || format!("the daemon has not recorded the tenant; `deepres plan learn {name}` records it");
        PlanStatus {
            tenant: name.to_owned(),
            recording: is_recording,
            why_unknown: match learned {
                Some(learned) => learned.as_ref().err().cloned(),
                None => (!is_recording).then(none),
            },
            iteration: learned.and_then(|learned| Some(learned.as_ref().ok()?.status.clone())),
            plans: self.plans_of(name),
        }
    }

    /// Returns the plans that a tenant follows, and the other plans that the daemon found for it.
    fn plans_of(&self, name: &str) -> Vec<FoundStatus> {
        let followed = self.deployed.iter().filter(|(_, deployed)| deployed.has(name));
        let followed = followed.map(|(gpu, deployed)| {
            let status = found_status(*gpu, &deployed.of, Some(&Ok(deployed.plan.clone())));
            let plan = status.plan.map(|plan| PredictionStatus { installed: deployed.is_on(), ..plan });
            FoundStatus { plan, deployment: Some(deployed.status()), ..status }
        });
        let is_other = |(gpu, found): &(&usize, &Found)| {
            let is_followed = self.deployed.get(*gpu).is_some_and(|deployed| found.is_of(&deployed.of));
            found.of.iter().any(|(tenant, _)| tenant == name) && !is_followed
        };
        let others = self.found.iter().filter(is_other);
        followed
            .chain(others.map(|(gpu, found)| found_status(*gpu, &found.of, found.plan.as_ref())))
            .collect()
    }
}

/// Returns whether a plan of the state file is a plan for this number of tenants.
fn is_whole(plan: &Plan, tenants: usize) -> bool {
    (2..=MOST_TENANTS).contains(&tenants) && plan.cuts.iter().all(|cut| cut.tenant.max(cut.other) < tenants)
}

/// Returns the kernels of an iteration, as [`Iteration::kernels`] has them.
fn kernels_of(status: &IterationStatus) -> Vec<Kernel> {
    let known: Vec<u64> = status.kernels.iter().filter_map(|kernel| kernel.duration_ns).collect();
    let sum_ns = known.iter().fold(0_u64, |sum_ns, ns| sum_ns.saturating_add(*ns));
    let mean_ns = sum_ns.checked_div(known.len() as u64).unwrap_or(1);
    let kernel = |kernel: &KernelStatus| Kernel {
        key: kernel.key,
        duration_ns: kernel.duration_ns.unwrap_or(mean_ns),
        width_percent: kernel.width_percent.unwrap_or(WHOLE_PERCENT),
        stream: kernel.stream as u64,
        pause_ns: kernel.pause_ns,
        joins: kernel.joins,
    };
    status.kernels.iter().map(kernel).collect()
}

fn found_status(gpu: usize, of: &[Known], plan: Option<&Result<Plan, String>>) -> FoundStatus {
    let tenants: Vec<String> = of.iter().map(|(name, _)| name.clone()).collect();
    let whole = |ns: f64| ns.round() as u64;
    let predicted = |plan: &Plan| PredictionStatus {
        pays: plan.pays(),
        installed: false,
        gain: plan.gain(),
        in_order_gain: plan.in_order_gain,
        sequential_ns: whole(plan.sequential_ns),
        unplanned_ns: whole(plan.unplanned_ns),
        planned_ns: whole(plan.planned_ns),
        bound_ns: whole(plan.bound_ns),
        cost_ns: whole(plan.cost_ns),
        longest_wait_ns: whole(plan.longest_wait_ns),
        cuts: plan
            .cuts
            .iter()
            .map(|cut| CutStatus {
                tenant: tenants.get(cut.tenant).cloned().unwrap_or_default(),
                kernel: cut.kernel,
                other: tenants.get(cut.other).cloned().unwrap_or_default(),
                until: cut.until,
            })
            .collect(),
    };
    FoundStatus {
        gpu,
        why_none: plan.and_then(|plan| plan.as_ref().err().cloned()),
        plan: plan.and_then(|plan| Some(predicted(plan.as_ref().ok()?))),
        deployment: None,
        tenants,
    }
}

/// Returns what the daemon knows of a tenant. If the tenants that run at once have changed, begins
/// a search.
///
/// # Errors
/// There is no such tenant.
pub(crate) fn show(name: &str, shared: &Rc<Shared>) -> Result<PlanStatus, String> {
    shared.registry.borrow().tenants().named(name)?;
    consider(shared);
    Ok(shared.plans.borrow().status(name))
}

/// Lets a tenant and others follow the plan that the daemon found for them.
///
/// # Errors
/// There is no plan that pays, or the tenants cannot follow it.
pub(crate) fn on(name: &str, shared: &Rc<Shared>) -> Result<PlanStatus, String> {
    shared.registry.borrow().tenants().named(name)?;
    consider(shared);
    let mut plans = shared.plans.borrow_mut();
    if plans.deployed.values().any(|deployed| deployed.is_on() && deployed.has(name)) {
        return Ok(plans.status(name));
    }
    let of_tenant = |found: &Found| found.of.iter().any(|(tenant, _)| tenant == name);
    let found = plans.found.iter().find(|(_, found)| of_tenant(found));
    let (gpu, found) = found.ok_or_else(|| {
        format!("the daemon knows no tenants under MPS that run beside `{name}`; `deepres plan learn` makes it know them")
    })?;
    let (gpu, of) = (*gpu, found.of.clone());
    let plan = match &found.plan {
        None => return Err("the daemon searches still; repeat the command in a second".to_owned()),
        Some(Err(why)) => return Err(why.clone()),
        Some(Ok(plan)) if !plan.pays() => {
            return Err(format!("no plan pays; `deepres plan show {name}` has the figures"));
        }
        Some(Ok(plan)) => plan.clone(),
    };
    deploy::check(gpu, &of, &plan, &shared.registry.borrow())?;
    if let Some(other) = plans.in_the_way(gpu, &of) {
        return Err(format!("`{other}` follows another plan; `deepres plan off {other}` ends it"));
    }
    plans.deployed.insert(gpu, Deployed::new(of, plan));
    drop(plans);
    deploy::start(gpu, shared);
    Ok(shared.plans.borrow().status(name))
}

/// Ends the plan that a tenant follows. No launch waits at a cut any more.
///
/// # Errors
/// There is no such tenant, or it follows no plan.
pub(crate) fn off(name: &str, shared: &Rc<Shared>) -> Result<PlanStatus, String> {
    shared.registry.borrow().tenants().named(name)?;
    let mut plans = shared.plans.borrow_mut();
    let before = plans.deployed.len();
    plans.deployed.retain(|_, deployed| !deployed.has(name));
    if plans.deployed.len() == before {
        return Err(format!("`{name}` follows no plan"));
    }
    Ok(plans.status(name))
}

/// Lets tenants go on to follow the plans of the previous daemon.
pub(crate) fn resume(shared: &Rc<Shared>) {
    let gpus: Vec<usize> = shared.plans.borrow().deployed.keys().copied().collect();
    gpus.into_iter().for_each(|gpu| deploy::start(gpu, shared));
}

/// Begins to record a tenant for some time, ms, and to learn its iteration.
///
/// # Errors
/// The reason why the daemon cannot record the tenant.
pub(crate) fn learn(name: &str, ms: u64, shared: &Rc<Shared>) -> Result<PlanStatus, String> {
    if ms == 0 || ms > MOST_LEARN_MS {
        return Err(format!("an excerpt takes 1 ms to {MOST_LEARN_MS} ms, not {ms}"));
    }
    let mut plans = shared.plans.borrow_mut();
    plans.forget(&shared.registry.borrow());
    let (id, asked) = {
        let registry = shared.registry.borrow();
        let tenant = registry.tenants().named(name)?;
        let sessions = tenant.members.sessions().values().take(MOST_SESSIONS);
        let pages = |session: &Session| (Arc::clone(&session.grant), Arc::clone(&session.meter));
        (tenant.id, sessions.map(pages).collect::<Vec<_>>())
    };
    if asked.is_empty() {
        return Err(format!("`{name}` has no process on a GPU now; start its program first"));
    }
    if plans.lessons.len() >= MOST_LESSONS && !plans.lessons.contains_key(name) {
        return Err(format!(
            "the daemon knows {MOST_LESSONS} tenants already, the most that it keeps; it forgets a tenant some time after the tenant's end"
        ));
    }
    let lesson = plans.lessons.entry(name.to_owned());
    let lesson = lesson.or_insert(Lesson { tenant: id, is_recording: false, learned: None });
    if lesson.is_recording {
        return Err(format!(
            "the daemon records `{name}` already; `deepres plan show {name}` shows the result"
        ));
    }
    lesson.is_recording = true;
    let number = plans.next_number();
    let (name, own) = (name.to_owned(), Rc::clone(shared));
    let status = plans.status(&name);
    tokio::task::spawn_local(async move {
        let finished = record(number, asked, Duration::from_millis(ms)).await;
        let learned = tokio::task::spawn_blocking(move || {
            lesson_of(&finished.iter().map(|meter| bytes_of(meter.page().excerpt())).collect::<Vec<_>>())
        });
        let learned = learned.await;
        let learned = learned.unwrap_or_else(|_| Err("the reading of the excerpt failed".to_owned()));
        if let Some(lesson) =
            own.plans.borrow_mut().lessons.get_mut(&name).filter(|lesson| lesson.tenant == id)
        {
            lesson.is_recording = false;
            lesson.learned = Some(learned.map(Arc::new));
        }
        consider(&own);
    });
    Ok(status)
}

type Pages = (Arc<SharedPage<GrantPage>>, Arc<SharedPage<MeterPage>>);

/// Returns the bytes of a finished excerpt.
fn bytes_of(excerpt: &Excerpt) -> Vec<u8> {
    let mut bytes = Vec::new();
    excerpt.read(|byte| bytes.push(byte));
    bytes
}

/// Asks sessions for an excerpt, and returns the pages with the excerpts that are finished in time.
async fn record(number: u32, asked: Vec<Pages>, lasts: Duration) -> Vec<Arc<SharedPage<MeterPage>>> {
    let ask = |number: u32| asked.iter().for_each(|(grant, _)| grant.page().ask_for_excerpt(number));
    let is_finished = |(_, meter): &Pages| meter.page().excerpt().finished() == number;
    let all_finished = async |limit: Duration| {
        let until = Instant::now() + limit;
        while Instant::now() < until && !asked.iter().all(is_finished) {
            tokio::time::sleep(LOOK.min(until - Instant::now())).await;
        }
    };
    ask(number);
    all_finished(lasts).await;
    ask(0);
    all_finished(FINISH_LIMIT).await;
    asked.iter().filter(|pages| is_finished(pages)).map(|(_, meter)| Arc::clone(meter)).collect()
}

/// Learns the iteration of the process with the most launches.
fn lesson_of(excerpts: &[Vec<u8>]) -> Result<Learned, String> {
    if excerpts.is_empty() {
        return Err(
            "no process of the tenant sent an excerpt: each has an older library of deepres, or is stopped"
                .to_owned(),
        );
    }
    let mut busiest: Option<Process> = None;
    for excerpt in excerpts {
        let (processes, _) =
            recorded::read(excerpt).map_err(|flaw| format!("an excerpt makes no sense: {flaw}"))?;
        let all = processes.into_iter().chain(busiest.take());
        busiest = all.max_by_key(|process| process.launches.len());
    }
    let process = busiest.filter(|process| !process.launches.is_empty());
    let process =
        process.ok_or("the tenant launched nothing while the daemon recorded; record for longer")?;
    let Some(iteration) = process.iteration(|_| None) else {
        return Err(format!(
            "the {} launches that the daemon recorded do not repeat themselves; record for longer",
            process.launches.len()
        ));
    };
    Ok(Learned { kernels: iteration.kernels(), status: iteration_status(&process, &iteration) })
}

/// Reads an excerpt that a session wrote. Returns whether the excerpt has an iteration. For the
/// fuzz target.
pub fn reads(excerpt: &[u8]) -> bool {
    lesson_of(&[excerpt.to_vec()]).is_ok()
}

fn iteration_status(process: &Process, iteration: &Iteration) -> IterationStatus {
    let mut streams: BTreeMap<u64, usize> = BTreeMap::new();
    let kernel = |step: &recorded::Step| {
        let next = streams.len();
        let name = process.shapes.get(step.shape).and_then(|shape| process.names.get(&shape.function));
        KernelStatus {
            name: name.map(|name| harmless(&name.chars().take(NAME_SHOWN).collect::<String>())),
            key: step.kernel.key,
            stream: *streams.entry(step.kernel.stream).or_insert(next),
            duration_ns: step.has_time.then_some(step.kernel.duration_ns),
            width_percent: step.has_width.then_some(step.kernel.width_percent),
            pause_ns: step.kernel.pause_ns,
            idle_ns: step.idle_ns,
            joins: step.kernel.joins,
        }
    };
    let without =
        |known: fn(&recorded::Step) -> bool| iteration.steps.iter().filter(|step| !known(step)).count();
    IterationStatus {
        learned_ns: monotonic_ns(),
        purpose: match iteration.purpose {
            Purpose::Training => "training",
            Purpose::Inference => "inference",
            Purpose::Unknown => "unknown",
        }
        .to_owned(),
        period_ns: iteration.period_ns,
        idle_ns: iteration.steps.iter().fold(0, |sum, step| step.idle_ns.saturating_add(sum)),
        repeats: iteration.repeats,
        launches: process.launches.len(),
        explained: iteration.explained,
        lost: process.lost,
        unknown_times: without(|step| step.has_time),
        unknown_widths: without(|step| step.has_width),
        kernels: iteration.steps.iter().map(kernel).collect(),
    }
}

/// Begins a search for each GPU on which the known tenants that run at once have changed. Kernels
/// of several tenants run at once only under MPS, and only processes with a part of the SMs tell
/// that they are under MPS.
fn consider(shared: &Rc<Shared>) {
    let mut plans = shared.plans.borrow_mut();
    plans.forget(&shared.registry.borrow());
    let together = together(&shared.registry.borrow(), &plans.lessons);
    plans.found.retain(|gpu, _| together.contains_key(gpu));
    for (gpu, tenants) in together {
        let of: Vec<Known> =
            tenants.iter().map(|(name, learned, _)| (name.clone(), Arc::clone(learned))).collect();
        if plans.found.get(&gpu).is_some_and(|found| found.is_of(&of)) {
            continue;
        }
        let searched = searchable(&tenants);
        let plan = searched.as_ref().err().map(|why| Err(why.clone()));
        plans.found.insert(gpu, Found { of: of.clone(), plan });
        let Ok(kernels) = searched else { continue };
        let own = Rc::clone(shared);
        tokio::task::spawn_local(async move {
            let plan = tokio::task::spawn_blocking(move || {
                let kernels: Vec<&[Kernel]> = kernels.iter().map(Vec::as_slice).collect();
                Search::default().plan(&kernels).map_err(|error| error.to_string())
            });
            let plan = plan.await.unwrap_or_else(|_| Err("the search failed".to_owned()));
            if let Some(found) = own.plans.borrow_mut().found.get_mut(&gpu).filter(|found| found.is_of(&of)) {
                found.plan = Some(plan);
            }
        });
    }
}

/// A tenant that runs beside others: its name, its iteration, and its part of the SMs, parts per
/// million.
type Beside = (String, Arc<Learned>, u32);

/// Returns the known tenants that run at once, by GPU: two at least.
fn together(registry: &Registry, lessons: &BTreeMap<String, Lesson>) -> BTreeMap<usize, Vec<Beside>> {
    let mut together: BTreeMap<usize, Vec<Beside>> = BTreeMap::new();
    for (name, tenant) in registry.tenants().iter() {
        let learned = lessons.get(name).and_then(|lesson| lesson.learned.as_ref()?.as_ref().ok());
        let Some(learned) = learned else { continue };
        let sessions = || tenant.members.sessions().values();
        let gpus: BTreeSet<usize> = sessions().flat_map(|session| session.gpus.iter().copied()).collect();
        for gpu in gpus {
            let part = |session: &Session| {
                session.meter.page().sm_ppm(gpu).map_or(0, |word| word.load(Ordering::Relaxed)).min(PPM)
            };
            let part_ppm = sessions().map(part).max().unwrap_or(0);
            if part_ppm > 0 {
                together.entry(gpu).or_default().push((name.to_owned(), Arc::clone(learned), part_ppm));
            }
        }
    }
    together.retain(|_, tenants| tenants.len() > 1);
    together
}

/// Returns the kernels of tenants for the search, with widths of the whole GPU. Returns the reason
/// if the daemon does not search.
fn searchable(tenants: &[Beside]) -> Result<Vec<Vec<Kernel>>, String> {
    if tenants.len() > MOST_TENANTS {
        return Err(format!(
            "{} tenants run at once, and a plan is for {MOST_TENANTS} at most",
            tenants.len()
        ));
    }
    let all: usize = tenants.iter().map(|(_, learned, _)| learned.kernels.len()).sum();
    if all > MOST_KERNELS {
        return Err(format!(
            "the iterations have {all} kernels together, and the daemon searches for {MOST_KERNELS} at most"
        ));
    }
    let unknown = tenants
        .iter()
        .find(|(_, learned, _)| UNKNOWN_PART * learned.status.unknown_times > learned.kernels.len());
    if let Some((name, Learned { status, kernels }, _)) =
        unknown.map(|(name, learned, part)| (name, &**learned, part))
    {
        return Err(format!(
            "the times of {} of {} kernels of `{name}` are not known; learn it again later",
            status.unknown_times,
            kernels.len()
        ));
    }
    let scaled = |(_, learned, part_ppm): &Beside| {
        let part = f64::from(*part_ppm) / f64::from(PPM);
        let scaled = |kernel: &Kernel| Kernel { width_percent: kernel.width_percent * part, ..*kernel };
        learned.kernels.iter().map(scaled).collect()
    };
    Ok(tenants.iter().map(scaled).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_model::admin::plan::Stage;
    use deepres_policy::granularity::Cut;

    pub(super) fn learned(kernels: usize, unknown_times: usize) -> Arc<Learned> {
        let kernel =
            Kernel { key: 1, duration_ns: 5, width_percent: 80.0, stream: 0, pause_ns: 0, joins: false };
        let status = IterationStatus {
            learned_ns: 0,
            purpose: String::new(),
            period_ns: 0,
            idle_ns: 0,
            repeats: 0,
            launches: 0,
            explained: 0,
            lost: 0,
            unknown_times,
            unknown_widths: 0,
            kernels: Vec::new(),
        };
        Arc::new(Learned { kernels: vec![kernel; kernels], status })
    }

    fn beside(kernels: usize, unknown_times: usize) -> Beside {
        ("a".to_owned(), learned(kernels, unknown_times), 250_000)
    }

    #[test]
    fn a_search_knows_most_times_and_has_a_bound() {
        let kernels = searchable(&[beside(10, 1), beside(10, 0)]).unwrap();
        assert_eq!((kernels.len(), kernels[0].len(), kernels[0][0].width_percent), (2, 10, 20.0));
        let why = |tenants: &[Beside]| searchable(tenants).unwrap_err();
        assert!(why(&[beside(10, 2), beside(10, 0)]).contains("2 of 10 kernels of `a`"));
        assert!(why(&[beside(MOST_KERNELS, 0), beside(1, 0)]).contains("2001 kernels"));
        assert!(why(&vec![beside(1, 0); MOST_TENANTS + 1]).contains("4 tenants"));
    }

    fn plan(cuts: Vec<Cut>) -> Plan {
        Plan { cuts, ..Search::default().plan(&[]).unwrap() }
    }

    #[test]
    fn a_plan_of_the_state_file_has_two_tenants_at_least_and_cuts_of_these() {
        let cut = |other: usize| plan(vec![Cut { tenant: 0, kernel: 0, other, until: 1 }]);
        assert!(is_whole(&cut(1), 2) && !is_whole(&cut(2), 2));
        assert!(!is_whole(&plan(Vec::new()), 1) && !is_whole(&plan(Vec::new()), MOST_TENANTS + 1));
    }

    #[test]
    fn a_plan_ends_no_other_plan_of_its_tenants_or_its_gpu() {
        let of = |names: [&str; 2]| -> Vec<Known> {
            names.iter().map(|name| ((*name).to_owned(), learned(1, 0))).collect()
        };
        let mut plans = Plans::default();
        plans.deployed.insert(0, Deployed::new(of(["a", "b"]), plan(Vec::new())));
        assert_eq!(plans.in_the_way(0, &of(["c", "d"])), Some("a"));
        assert_eq!(plans.in_the_way(1, &of(["b", "c"])), Some("b"));
        assert_eq!(plans.in_the_way(1, &of(["c", "d"])), None);
        plans.deployed.values_mut().for_each(|dropped| dropped.stage = Stage::Dropped);
        assert_eq!(plans.in_the_way(0, &of(["a", "b"])), None);
    }

    #[test]
    fn an_excerpt_without_an_iteration_says_why() {
        let why = |excerpts: &[Vec<u8>]| lesson_of(excerpts).unwrap_err();
        assert!(why(&[]).contains("no process of the tenant sent an excerpt"));
        assert!(why(&[b"nonsense".into()]).contains("launched nothing"));
    }
}
