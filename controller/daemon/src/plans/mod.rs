//! Learns the iterations of tenants, searches plans for tenants that run at once, and lets tenants
//! follow a plan ([`deploy`]; docs/granularity.md).
//!
//! An administrator asks the daemon to learn a tenant. The daemon then asks the tenant's sessions
//! for an excerpt of their calls ([`deepres_abi::excerpt`]). A session can write any excerpt. So
//! the daemon reads excerpts of a bounded size, from a bounded number of sessions, on another
//! thread.

mod deploy;

use crate::Shared;
use crate::registry::Registry;
use crate::shm::SharedPage;
use crate::state::{SavedIteration, SavedPlan, Serialized, saver};
use crate::tenant::Session;
use deepres_abi::PPM;
use deepres_abi::excerpt::Excerpt;
use deepres_abi::grant::GrantPage;
use deepres_abi::meter::MeterPage;
use deepres_model::admin::plan::{
    CutStatus, FoundStatus, IterationStatus, KernelStatus, MOST_LEARN_MS, PlanStatus, PredictionStatus,
};
use deepres_model::clock::monotonic_ns;
use deepres_model::process::ProcessKey;
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
/// The most tenants of which the daemon knows an iteration.
const MOST_LESSONS: usize = 64;
/// The most kernels of all iterations that the daemon knows: as many as plans on 16 GPUs can have.
/// The state file has these kernels, each in some 600 bytes at most. So they take a third of the
/// largest state file at most.
const MOST_KEPT_KERNELS: usize = 16 * MOST_KERNELS;
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
/// The largest part of an iteration's kernels whose times can be unknown in a search: one in so
/// many.
const UNKNOWN_PART: usize = 10;

/// An iteration that the daemon learned of a tenant.
#[derive(Debug)]
struct Learned {
    kernels: Vec<Kernel>,
    /// The iteration as the state file has it. Each state shares this value.
    status: Serialized<IterationStatus>,
}

#[derive(Debug)]
struct Lesson {
    /// The tenant, because another tenant can get the name later.
    tenant: TenantId,
    is_recording: bool,
    /// The iteration, or why there is none; `None` before the first excerpt.
    learned: Option<Result<Arc<Learned>, String>>,
}

impl Lesson {
    fn iteration(&self) -> Option<&Arc<Learned>> {
        self.learned.as_ref()?.as_ref().ok()
    }

    /// Returns whether the lesson is of the tenant that has this name now.
    fn is_of(&self, name: &str, registry: &Registry) -> bool {
        registry.tenancy.tenants().get(name).is_some_and(|tenant| tenant.id == self.tenant)
    }
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
        self.lessons.retain(|name, lesson| lesson.is_of(name, registry));
        let lessons = &self.lessons;
        let are_known = |of: &[Known]| of.iter().all(|(name, _)| lessons.contains_key(name));
        self.found.retain(|_, found| are_known(&found.of));
        self.deployed.retain(|_, deployed| are_known(&deployed.of));
    }

    /// Returns the iterations that the daemon knows, and the plans that tenants follow, for the
    /// state file. Leaves out forgotten tenants, because another tenant can have a name by now.
    pub(crate) fn saved(&self, registry: &Registry) -> (Vec<SavedIteration>, Vec<SavedPlan>) {
        let is_known = |name: &String| self.lessons.get(name).is_some_and(|of| of.is_of(name, registry));
        let iteration = |(name, lesson): (&String, &Lesson)| {
            let iteration = lesson.iteration()?.status.clone();
            Some(SavedIteration { tenant: name.clone(), iteration })
        };
        let iterations =
            self.lessons.iter().filter(|(name, _)| is_known(name)).filter_map(iteration).collect();
        let numbered: Vec<_> = registry.tenancy.gpus().iter().collect();
        let plan = |(gpu, deployed): (&usize, &Deployed)| {
            let tenants = deployed.of.iter().map(|(name, learned)| (name.clone(), learned.status.clone()));
            let uuid = numbered.get(*gpu)?.uuid_text.clone();
            Some(SavedPlan { uuid, tenants: tenants.collect(), plan: deployed.plan.clone() })
        };
        let is_saved = |of: &Deployed| of.is_on() && of.of.iter().all(|(name, _)| is_known(name));
        let on = self.deployed.iter().filter(|(_, deployed)| is_saved(deployed));
        (iterations, on.filter_map(plan).collect())
    }

    /// Restores the iterations that the previous daemon knew, and the plans that tenants followed.
    /// Logs the iterations and plans that this daemon cannot use. The caller calls [`resume`]
    /// afterwards.
    pub(crate) fn restore(
        &mut self,
        iterations: Vec<SavedIteration>,
        plans: Vec<SavedPlan>,
        registry: &Registry,
    ) {
        for SavedIteration { tenant, iteration } in iterations {
            if let Err(why) = self.recall(&tenant, &iteration, registry) {
                let tenant = harmless(&tenant);
                tracing::warn!(tenant, why, "the daemon leaves an iteration of the state out");
            }
        }
        for saved in plans {
            let uuid = harmless(&saved.uuid);
            if let Err(why) = self.restore_plan(saved, registry) {
                tracing::warn!(gpu = uuid, why, "the daemon leaves a plan of the state out");
            }
        }
    }

    fn restore_plan(&mut self, saved: SavedPlan, registry: &Registry) -> Result<(), String> {
        let SavedPlan { uuid, tenants, plan } = saved;
        let gpu = registry.tenancy.gpus().number_named(&uuid).ok_or("the daemon does not manage the GPU")?;
        if !is_whole(&plan, tenants.len()) {
            return Err("the plan is not for these tenants".to_owned());
        }
        let mut of: Vec<Known> = Vec::new();
        for (name, status) in tenants {
            let learned = self.recall(&name, &status, registry)?;
            of.push((name, learned));
        }
        self.deployed.insert(gpu, Deployed::new(of, plan));
        Ok(())
    }

    /// Returns an iteration of the state file. If the daemon knows no iteration of the tenant yet,
    /// the daemon knows this iteration from now on.
    ///
    /// # Errors
    /// The daemon does not know the tenant, no process can have the iteration, or the daemon has no
    /// room for it.
    fn recall(
        &mut self,
        name: &str,
        status: &Serialized<IterationStatus>,
        registry: &Registry,
    ) -> Result<Arc<Learned>, String> {
        let tenant = registry.tenancy.tenants().named(name)?.id;
        let known = self.lessons.get(name).and_then(Lesson::iteration).cloned();
        if let Some(known) = known.as_ref().filter(|known| known.status == *status) {
            return Ok(Arc::clone(known));
        }
        if !is_possible(status) {
            return Err("no process can have this iteration".to_owned());
        }
        let learned = Arc::new(Learned { kernels: kernels_of(status), status: status.clone() });
        if known.is_none() {
            self.room(name, learned.kernels.len())?;
            let lesson = Lesson { tenant, is_recording: false, learned: Some(Ok(Arc::clone(&learned))) };
            self.lessons.insert(name.to_owned(), lesson);
        }
        Ok(learned)
    }

    /// Returns the reason if the daemon has no room for an iteration of this tenant with so many
    /// kernels.
    fn room(&self, name: &str, kernels: usize) -> Result<(), String> {
        let others = || self.lessons.iter().filter(move |(other, _)| other.as_str() != name);
        let why = if others().count() >= MOST_LESSONS {
            format!("the daemon knows {MOST_LESSONS} tenants already, the most that it keeps")
        } else {
            let of_others = others().filter_map(|(_, lesson)| Some(lesson.iteration()?.kernels.len()));
            let kept: usize = of_others.sum();
            if kept + kernels <= MOST_KEPT_KERNELS {
                return Ok(());
            }
            format!(
                "the iteration has {kernels} kernels, those of other tenants have {kept}, and the daemon keeps {MOST_KEPT_KERNELS} at most"
            )
        };
        Err(format!("{why}; it forgets a tenant some time after the tenant's end"))
    }

    /// Keeps the iteration that the daemon learned of a tenant, or why there is none.
    fn keep(&mut self, name: &str, tenant: TenantId, learned: Result<Learned, String>) {
        let learned = learned.and_then(|learned| {
            self.room(name, learned.kernels.len())?;
            Ok(Arc::new(learned))
        });
        if let Some(lesson) = self.lesson_of(name, tenant) {
            lesson.learned = Some(learned);
        }
    }

    fn lesson_of(&mut self, name: &str, tenant: TenantId) -> Option<&mut Lesson> {
        self.lessons.get_mut(name).filter(|lesson| lesson.tenant == tenant)
    }

    /// Returns a tenant of a plan that is on, if the plan leaves no room for a plan of these
    /// tenants on the GPU. A tenant follows one plan at most, and a GPU has one plan at most.
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
            iteration: lesson.and_then(|lesson| Some(IterationStatus::clone(&lesson.iteration()?.status))),
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

/// Returns whether a process can have an iteration of the state file.
fn is_possible(status: &IterationStatus) -> bool {
    let is_width = |percent: f64| (0.0..=WHOLE_PERCENT).contains(&percent);
    !status.kernels.is_empty()
        && status.unknown_times.max(status.unknown_widths) <= status.kernels.len()
        && status.kernels.iter().all(|kernel| kernel.width_percent.is_none_or(is_width))
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
    shared.registry.borrow().tenancy.tenants().named(name)?;
    consider(shared);
    Ok(shared.plans.borrow().status(name))
}

/// Lets a tenant and others follow the plan that the daemon found for them.
///
/// # Errors
/// There is no plan that pays, or the tenants cannot follow it.
pub(crate) fn on(name: &str, shared: &Rc<Shared>) -> Result<PlanStatus, String> {
    shared.registry.borrow().tenancy.tenants().named(name)?;
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
    shared.registry.borrow().tenancy.tenants().named(name)?;
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
        let tenant = registry.tenancy.tenants().named(name)?;
        let sessions = tenant.members.sessions().values().take(MOST_SESSIONS);
        let asked = |session: &Session| Asked {
            grant: Arc::clone(&session.grant),
            meter: Arc::clone(&session.meter),
            process: session.process,
        };
        (tenant.id, sessions.map(asked).collect::<Vec<_>>())
    };
    if asked.is_empty() {
        return Err(format!("`{name}` has no process on a GPU now; start its program first"));
    }
    plans.room(name, 0)?;
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
            let excerpt = |asked: &Asked| (asked.process, bytes_of(asked.meter.page().excerpt()));
            lesson_of(&finished.iter().map(excerpt).collect::<Vec<_>>())
        });
        let learned = learned.await;
        let learned = learned.unwrap_or_else(|_| Err("the reading of the excerpt failed".to_owned()));
        own.plans.borrow_mut().keep(&name, id, learned);
        // The recording ends once the state file has the iteration. So no death of the daemon loses
        // an iteration after `deepres plan learn` has shown it, unless the saver logs a failure.
        saver::save(&own).await;
        if let Some(lesson) = own.plans.borrow_mut().lesson_of(&name, id) {
            lesson.is_recording = false;
        }
        consider(&own);
    });
    Ok(status)
}

/// A session that the daemon asks for an excerpt.
struct Asked {
    grant: Arc<SharedPage<GrantPage>>,
    meter: Arc<SharedPage<MeterPage>>,
    process: Option<ProcessKey>,
}

/// Returns the bytes of a finished excerpt.
fn bytes_of(excerpt: &Excerpt) -> Vec<u8> {
    let mut bytes = Vec::new();
    excerpt.read(|byte| bytes.push(byte));
    bytes
}

/// Asks sessions for an excerpt, and returns the sessions whose excerpts are finished in time.
async fn record(number: u32, asked: Vec<Asked>, lasts: Duration) -> Vec<Asked> {
    let ask = |number: u32| asked.iter().for_each(|asked| asked.grant.page().ask_for_excerpt(number));
    let is_finished = |asked: &Asked| asked.meter.page().excerpt().finished() == number;
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
    asked.into_iter().filter(is_finished).collect()
}

/// Learns the iteration of the process with the most launches.
fn lesson_of(excerpts: &[(Option<ProcessKey>, Vec<u8>)]) -> Result<Learned, String> {
    if excerpts.is_empty() {
        return Err(
            "no process of the tenant sent an excerpt: each has an older library of deepres, or is stopped"
                .to_owned(),
        );
    }
    let mut busiest: Option<(Option<ProcessKey>, Process)> = None;
    for (key, excerpt) in excerpts {
        let (processes, _) =
            recorded::read(excerpt).map_err(|flaw| format!("an excerpt makes no sense: {flaw}"))?;
        let all = processes.into_iter().map(|process| (*key, process)).chain(busiest.take());
        busiest = all.max_by_key(|(_, process)| process.launches.len());
    }
    let busiest = busiest.filter(|(_, process)| !process.launches.is_empty());
    let (key, process) =
        busiest.ok_or("the tenant launched nothing while the daemon recorded; record for longer")?;
    let Some(iteration) = process.iteration(|_| None) else {
        return Err(format!(
            "the {} launches that the daemon recorded do not repeat themselves; record for longer",
            process.launches.len()
        ));
    };
    let status = Serialized::new(iteration_status(key, &process, &iteration));
    Ok(Learned { kernels: iteration.kernels(), status })
}

/// Reads an excerpt that a session wrote. Returns whether the excerpt has an iteration. For the
/// fuzz target.
pub fn reads(excerpt: &[u8]) -> bool {
    lesson_of(&[(None, excerpt.to_vec())]).is_ok()
}

fn iteration_status(key: Option<ProcessKey>, process: &Process, iteration: &Iteration) -> IterationStatus {
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
        process: key,
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

/// Returns the known tenants that run at once, by GPU: two at least, and clients of one MPS server.
fn together(registry: &Registry, lessons: &BTreeMap<String, Lesson>) -> BTreeMap<usize, Vec<Beside>> {
    let mut by_server: BTreeMap<(usize, u64), Vec<Beside>> = BTreeMap::new();
    for (name, tenant) in registry.tenancy.tenants().iter().filter(|(_, tenant)| tenant.terms.caps().sm) {
        let Some(learned) = lessons.get(name).and_then(Lesson::iteration) else { continue };
        let sessions = || tenant.members.sessions().values();
        let gpus: BTreeSet<usize> = sessions().flat_map(|session| session.gpus.iter().copied()).collect();
        for gpu in gpus {
            let part = |session: &Session| {
                let page = session.meter.page();
                let server = session.mps.server(page, gpu);
                let part_ppm = page.sm_ppm(gpu)?.load(Ordering::Relaxed).min(PPM);
                (part_ppm > 0).then_some((part_ppm, server))
            };
            let parts: Vec<(u32, u64)> = sessions().filter_map(part).collect();
            if let Some((part_ppm, server)) = parts.iter().max()
                && *server != 0
                && parts.iter().all(|(_, other)| other == server)
            {
                let beside = (name.to_owned(), Arc::clone(learned), *part_ppm);
                by_server.entry((gpu, *server)).or_default().push(beside);
            }
        }
    }
    let mut together = BTreeMap::new();
    for ((gpu, _), tenants) in by_server.into_iter().filter(|(_, tenants)| tenants.len() > 1) {
        together.entry(gpu).or_insert(tenants);
    }
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
    use crate::gpus::Gpus;
    use crate::shm::Writer;
    use crate::state::{self, SavedTenant, State};
    use deepres_abi::beat::BeatPage;
    use deepres_model::admin::plan::Stage;
    use deepres_model::config::Config;
    use deepres_policy::granularity::Cut;

    pub(super) fn learned(kernels: usize, unknown_times: usize) -> Arc<Learned> {
        let kernel =
            Kernel { key: 1, duration_ns: 5, width_percent: 80.0, stream: 0, pause_ns: 0, joins: false };
        let status = IterationStatus {
            learned_ns: 0,
            process: Some(ProcessKey { pid: 7, start_ticks: 1 }),
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
        Arc::new(Learned { kernels: vec![kernel; kernels], status: Serialized::new(status) })
    }

    fn beside(kernels: usize, unknown_times: usize) -> Beside {
        ("a".to_owned(), learned(kernels, unknown_times), 250_000)
    }

    /// Returns an iteration as the state file has it.
    fn iteration(kernels: usize) -> IterationStatus {
        let kernel = KernelStatus {
            name: Some("gemm".to_owned()),
            key: u64::MAX,
            stream: 0,
            duration_ns: Some(5),
            width_percent: Some(100.0 / 3.0),
            pause_ns: 0,
            idle_ns: 0,
            joins: false,
        };
        IterationStatus { kernels: vec![kernel; kernels], ..IterationStatus::clone(&learned(0, 0).status) }
    }

    fn learned_of(status: &IterationStatus) -> Learned {
        Learned { kernels: kernels_of(status), status: Serialized::new(status.clone()) }
    }

    fn saved(tenant: &str, iteration: IterationStatus) -> SavedIteration {
        SavedIteration { tenant: tenant.to_owned(), iteration: Serialized::new(iteration) }
    }

    /// Returns the registry of a daemon that knows tenants with these names.
    fn registry_of(names: &[&str]) -> Registry {
        let beat = SharedPage::<BeatPage>::create("deepres-test", Writer::Controller).unwrap();
        let mut registry = Registry::new(Config::default(), Gpus::default(), Arc::new(beat));
        let tenant = |name: &&str| SavedTenant { name: (*name).to_owned(), ..SavedTenant::default() };
        let state = State::new("boot", 1, Vec::new(), names.iter().map(tenant).collect());
        registry.restore(&state).unwrap();
        registry
    }

    /// Returns the names of the tenants of which the daemon knows an iteration.
    fn known(plans: &Plans) -> Vec<&str> {
        let known = plans.lessons.iter().filter(|(_, lesson)| lesson.iteration().is_some());
        known.map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn the_next_daemon_knows_the_iterations_without_a_plan() {
        let registry = registry_of(&["a", "b"]);
        let mut plans = Plans::default();
        let id = |name: &str| registry.tenancy.tenants().get(name).unwrap().id;
        for name in ["a", "b"] {
            let tenant = id(name);
            let lesson = Lesson { tenant, is_recording: true, learned: None };
            plans.lessons.insert(name.to_owned(), lesson);
        }
        let status = iteration(3);
        plans.keep("a", id("a"), Ok(learned_of(&status)));
        plans.keep("b", id("b"), Err("it launched nothing".to_owned()));
        let mut state = State::new("boot", 1, Vec::new(), Vec::new());
        (state.iterations, state.plans) = plans.saved(&registry);
        let read = state::parse(&state.to_bytes().unwrap()).unwrap();

        let mut next = Plans::default();
        next.restore(read.iterations, read.plans, &registry_of(&["b", "a"]));
        assert_eq!((known(&next), next.lessons.len()), (vec!["a"], 1));
        let shown = next.status("a");
        assert_eq!((shown.iteration, shown.recording), (Some(status), false));
        // A plan of the state file has the same iteration, and not a copy.
        let registry = registry_of(&["a"]);
        let again = next.recall("a", &Serialized::new(iteration(3)), &registry).unwrap();
        assert!(next.lessons["a"].iteration().is_some_and(|learned| Arc::ptr_eq(learned, &again)));
        // In this registry, another tenant has the name.
        assert!(next.saved(&registry).0.is_empty());
    }

    #[test]
    fn all_iterations_together_have_a_bound() {
        let registry = registry_of(&["a", "b", "c"]);
        let mut plans = Plans::default();
        let half = MOST_KEPT_KERNELS / 2;
        let kernels = [("a", half), ("b", half + 1), ("c", half)];
        let all = kernels.map(|(name, kernels)| saved(name, iteration(kernels)));
        plans.restore(all.into(), Vec::new(), &registry);
        assert_eq!(known(&plans), ["a", "c"]);
        // A tenant's iteration takes the place of the tenant's earlier iteration.
        let tenant = registry.tenancy.tenants().get("a").unwrap().id;
        plans.keep("a", tenant, Ok(learned_of(&iteration(half))));
        assert_eq!(known(&plans), ["a", "c"]);
        plans.keep("a", tenant, Ok(learned_of(&iteration(half + 1))));
        assert_eq!(known(&plans), ["c"]);
        let why = plans.status("a").why_unknown.unwrap();
        assert!(why.contains("the daemon keeps 32000 at most"), "{why}");
    }

    #[test]
    fn an_iteration_that_no_process_can_have_is_left_out_alone() {
        let registry = registry_of(&["a", "b"]);
        let mut wide = iteration(2);
        wide.kernels[1].width_percent = Some(-1.0);
        let unknown = IterationStatus { unknown_times: usize::MAX, ..iteration(2) };
        for damaged in [iteration(0), wide, unknown] {
            let mut plans = Plans::default();
            let all = vec![saved("stranger", iteration(1)), saved("a", damaged), saved("b", iteration(1))];
            plans.restore(all, Vec::new(), &registry);
            assert_eq!((known(&plans), plans.lessons.len()), (vec!["b"], 1));
        }
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
        let why = |excerpts: &[_]| lesson_of(excerpts).unwrap_err();
        assert!(why(&[]).contains("no process of the tenant sent an excerpt"));
        assert!(why(&[(None, b"nonsense".into())]).contains("launched nothing"));
    }
}
