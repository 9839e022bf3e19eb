//! Lets tenants follow a plan, and measures whether the plan is better than no plan.
//!
//! In a stint *with* the plan, the daemon installs the plan in the grant pages of the tenants'
//! sessions. A thread for each tenant copies the tenant's place from its meter page into the grant
//! pages of the others. In another stint, there is no plan. The work of both stints is a pair of
//! the trial ([`deepres_policy::granularity::trial`]). A plan that is kept stays on for longer, and
//! the daemon goes on measuring.
//!
//! A pair says nothing about the plan if a tenant has no work, or if the tenants take turns. The
//! daemon then withdraws the plan, and goes on after a whole stint in which all tenants worked at
//! once.

use super::Known;
use crate::Shared;
use crate::registry::Registry;
use crate::shm::SharedPage;
use deepres_abi::grant::{GateState, GrantPage};
use deepres_abi::meter::MeterPage;
use deepres_abi::plan::{MOST_CUTS, Place, PlanHead};
use deepres_model::admin::plan::{DeploymentStatus, Stage};
use deepres_model::process::ProcessKey;
use deepres_policy::granularity::device::Mix;
use deepres_policy::granularity::gate::MOST_MISSES;
use deepres_policy::granularity::trial::{MOST_PAIRS, Trial, Verdict};
use deepres_policy::granularity::{Kernel, Plan, Search};
use rustix::thread::futex;
use rustix::time::Timespec;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// The length of a stint, in iterations of all tenants. A stint then has at most 3 % of its work
/// too much or too little at its two ends.
const STINT_ITERATIONS: u32 = 32;
/// The shortest stint. The counts of a meter are up to a segment late, which is 0.1 % of this time.
const LEAST_STINT: Duration = Duration::from_millis(500);
/// The iterations within which a tenant finds its iteration and meets the others. To find an
/// iteration takes two at most, and to meet the others takes another one. One more is left for a
/// slow start.
const SETTLE_ITERATIONS: u32 = 4;
/// The length of a stint with a plan that is kept, in stints. The stint without the plan then costs
/// an eighth of the gain.
const KEPT_STINTS: u32 = 7;
/// Pause between two looks at the tenants' places and sessions. A tenant that departs tells the
/// others by itself, so no tenant waits for this look.
const LOOK: Duration = Duration::from_millis(50);
/// The longest sleep of a thread that relays places, after which it looks whether the plan has
/// ended.
const RELAY_NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// The longest wait of a launch at its cuts, ns. A launch that waits for room in its own window
/// waits as long.
const MOST_BOUND_NS: f64 = 1e9;

const _: () = assert!(MOST_PAIRS == u8::BITS as usize);

/// A plan that an administrator has turned on.
#[derive(Debug)]
pub(super) struct Deployed {
    pub of: Vec<Known>,
    pub plan: Plan,
    pub stage: Stage,
    why: Option<String>,
    trial: Trial,
    /// A bit for each of the last [`MOST_PAIRS`] pairs, of which the lowest is the last one: 1 for
    /// a pair without a result.
    failures: u8,
    follows: bool,
    task: Option<AbortHandle>,
}

impl Drop for Deployed {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Deployed {
    pub fn new(of: Vec<Known>, plan: Plan) -> Self {
        let trial = Trial::default();
        Self { of, plan, stage: Stage::Trial, why: None, trial, failures: 0, follows: false, task: None }
    }

    pub fn is_on(&self) -> bool {
        self.stage != Stage::Dropped
    }

    pub fn has(&self, tenant: &str) -> bool {
        self.of.iter().any(|(name, _)| name == tenant)
    }

    pub fn status(&self) -> DeploymentStatus {
        let measured = self.trial.measured();
        DeploymentStatus {
            stage: self.stage,
            follows: self.follows,
            why: self.why.clone(),
            pairs: self.trial.pairs(),
            gain: measured.map(|measured| measured.gain),
            noise: measured.map(|measured| measured.noise_squared.sqrt()),
        }
    }

    /// Returns the number of stints with the plan in the next pair, and whether the pair begins
    /// with the stint without the plan.
    fn next_pair(&self) -> (u32, bool) {
        (if self.stage == Stage::Kept { KEPT_STINTS } else { 1 }, self.trial.begins_without())
    }

    fn name(&self, tenant: usize) -> &str {
        self.of.get(tenant).map_or("a tenant", |(name, _)| name)
    }

    /// Takes the result of a pair of stints into account: the work with and without the plan, or
    /// why there is no result. If [`MOST_MISSES`] of the last pairs have no result, drops the plan.
    /// So a tenant cannot delay others by a plan, and depart before each result.
    fn judge(&mut self, pair: Result<(Vec<f64>, Vec<f64>), String>) {
        let counted = pair.and_then(|(with, without)| {
            let added = self.trial.add(&with, &without);
            added.map_err(|tenant| format!("`{}` did no work without the plan", self.name(tenant)))
        });
        self.failures = self.failures << 1 | u8::from(counted.is_err());
        self.why = counted.err();
        if self.why.is_some() {
            if self.failures.count_ones() >= MOST_MISSES {
                self.stage = Stage::Dropped;
            }
            return;
        }
        (self.stage, self.why) = match self.trial.verdict() {
            Verdict::Open => (Stage::Trial, None),
            Verdict::Better => (Stage::Kept, None),
            Verdict::Harms(tenant) => {
                (Stage::Dropped, Some(format!("`{}` did less work with the plan", self.name(tenant))))
            }
            Verdict::NotBetter => {
                let why = "the plan is not better than no plan by more than the noise";
                (Stage::Dropped, Some(why.to_owned()))
            }
        };
    }
}

/// Why a stint has no result.
#[derive(Debug)]
enum Miss {
    /// A tenant has no work, or the tenants take turns. This says nothing about the plan.
    Rest(String),
    /// The tenants do not follow the plan, or cannot.
    Departed(String),
}

impl From<String> for Miss {
    fn from(why: String) -> Self {
        Self::Departed(why)
    }
}

/// The session of a tenant that follows a plan.
#[derive(Debug, Clone)]
struct Party {
    name: String,
    process: Option<ProcessKey>,
    grant: Arc<SharedPage<GrantPage>>,
    meter: Arc<SharedPage<MeterPage>>,
    kernels: usize,
    /// The time of an iteration alone, ns.
    alone_ns: f64,
}

impl Party {
    fn place(&self, number: u32) -> Place {
        Place::of(self.meter.page().progress().read().1, number)
    }

    /// Returns the work that the session has done on a GPU, ns of the tenant alone.
    fn work_ns(&self, gpu: usize) -> f64 {
        let launches = self.meter.page().slot(gpu).map_or(0, |slot| {
            let reading = slot.read();
            reading.kernel_launches.wrapping_add(reading.graph_launches)
        });
        launches as f64 / self.kernels.max(1) as f64 * self.alone_ns
    }

    /// Returns whether the session may launch on a GPU without a lease. If the gates of several
    /// tenants are open, they run at once.
    fn is_open(&self, gpu: usize) -> bool {
        self.grant.page().slot(gpu).is_some_and(|slot| slot.gate().state == GateState::Open)
    }
}

/// The last work that the daemon saw of the tenants of a stint.
struct Work<'a> {
    gpu: usize,
    parties: &'a [Party],
    /// The work of each tenant, and since when it is the same.
    seen: Vec<(f64, Instant)>,
}

impl<'a> Work<'a> {
    fn new(gpu: usize, parties: &'a [Party]) -> Self {
        let now = Instant::now();
        Self { gpu, parties, seen: parties.iter().map(|party| (party.work_ns(gpu), now)).collect() }
    }

    /// Looks at the tenants.
    ///
    /// # Errors
    /// The tenants take turns, or a tenant has had no work for this time.
    fn look(&mut self, within: Duration) -> Result<(), Miss> {
        if !self.parties.iter().all(|party| party.is_open(self.gpu)) {
            return Err(Miss::Rest("the tenants take turns".to_owned()));
        }
        for (party, (work_ns, since)) in self.parties.iter().zip(&mut self.seen) {
            let done_ns = party.work_ns(self.gpu);
            if done_ns > *work_ns {
                (*work_ns, *since) = (done_ns, Instant::now());
            } else if since.elapsed() >= within {
                return Err(Miss::Rest(format!("`{}` has no work", party.name)));
            }
        }
        Ok(())
    }
}

/// Returns the sessions of tenants on a GPU: one of each.
///
/// # Errors
/// A tenant has no session on the GPU, or several.
fn parties(gpu: usize, of: &[Known], registry: &Registry) -> Result<Vec<Party>, String> {
    let party = |(name, learned): &Known| {
        let tenant = registry.tenancy.tenants().named(name)?;
        let mut sessions = tenant.members.sessions().values().filter(|session| session.gpus.contains(&gpu));
        let session = sessions.next().ok_or_else(|| format!("`{name}` has no process on the GPU now"))?;
        if sessions.next().is_some() {
            return Err(format!("`{name}` has several processes on the GPU, and a plan is for one"));
        }
        Ok(Party {
            name: name.clone(),
            process: session.process,
            grant: Arc::clone(&session.grant),
            meter: Arc::clone(&session.meter),
            kernels: learned.kernels.len(),
            alone_ns: alone_ns(&learned.kernels),
        })
    };
    of.iter().map(party).collect()
}

fn alone_ns(kernels: &[Kernel]) -> f64 {
    Mix::new(&[kernels]).map_or(0.0, |mix| mix.sequential_ns())
}

/// Returns the reason if tenants cannot follow this plan on the GPU now.
pub(super) fn check(gpu: usize, of: &[Known], plan: &Plan, registry: &Registry) -> Result<(), String> {
    if plan.cuts.len() > MOST_CUTS {
        return Err(format!("the plan has {} cuts, and {MOST_CUTS} is the most", plan.cuts.len()));
    }
    if plan.sequential_ns > MOST_BOUND_NS {
        return Err(
            "an iteration of all tenants takes longer than 1 s, the longest wait of a launch".to_owned()
        );
    }
    match renewed(of, &parties(gpu, of, registry)?) {
        None => Ok(()),
        Some(name) => Err(format!(
            "the daemon learned another process of `{name}`, whose kernels have other keys; `deepres plan learn \
             {name}` learns this one"
        )),
    }
}

/// Returns the first tenant that runs in another process than the one that the daemon learned. The
/// keys of kernels hold only in one process.
fn renewed<'p>(of: &[Known], parties: &'p [Party]) -> Option<&'p str> {
    let is_renewed = |((_, learned), party): (&Known, &Party)| {
        learned.status.process.zip(party.process).is_some_and(|(of, now)| of != now)
    };
    of.iter().zip(parties).find(|pair| is_renewed(*pair)).map(|(_, party)| party.name.as_str())
}

/// A plan in the pages of sessions. A drop withdraws it.
#[derive(Debug)]
struct Installation {
    number: u32,
    parties: Vec<Party>,
    is_over: Arc<AtomicBool>,
}

impl Installation {
    fn begin(number: u32, plan: &Plan, of: &[Known], parties: Vec<Party>) -> Result<Self, String> {
        let installation = Self { number, parties, is_over: Arc::default() };
        // Within this time, each tenant can finish an iteration even if the others run first.
        let wait_limit_ns = plan.sequential_ns.min(MOST_BOUND_NS) as u64;
        for (tenant, (party, (_, learned))) in installation.parties.iter().zip(of).enumerate() {
            let keys = learned.kernels.iter().map(|kernel| kernel.key);
            let head = PlanHead { tenant, wait_limit_ns };
            let slot = party.grant.page().plan();
            if !slot.install(number, head, of.len(), keys, plan.cuts.iter().copied()) {
                return Err(format!("the plan has no room in the page of `{}`", party.name));
            }
        }
        for tenant in 0..installation.parties.len() {
            installation.relay(tenant)?;
        }
        Ok(installation)
    }

    /// Starts the thread that relays a tenant's place to the others.
    fn relay(&self, tenant: usize) -> Result<(), String> {
        let number = self.number;
        let is_over = Arc::clone(&self.is_over);
        let from = Arc::clone(&self.parties[tenant].meter);
        let others = self.parties.iter().enumerate().filter(|(other, _)| *other != tenant);
        let to: Vec<_> = others.map(|(_, party)| Arc::clone(&party.grant)).collect();
        let relay = move || {
            let mut told = Place::Coming;
            while !is_over.load(Ordering::Relaxed) {
                let progress = from.page().progress();
                let (seen, word) = progress.read();
                let place = Place::of(word, number);
                if place != told {
                    told = place;
                    for page in &to {
                        page.page().plan().set_place(tenant, place.word(number));
                        wake(page);
                    }
                }
                // A session can change its page without pause. A place that lasts for less than a
                // switch serves no cut.
                thread::sleep(Duration::from_nanos(Search::default().switch_ns));
                // The wait ends early if the place has changed since the reading.
                let _ = futex::wait(progress.changes(), futex::Flags::empty(), seen, Some(&RELAY_NAP));
            }
        };
        let started = thread::Builder::new().name(format!("plan-{tenant}")).spawn(relay);
        started.map(drop).map_err(|error| format!("the daemon cannot start a thread: {error}"))
    }

    /// Returns the reason for which the tenants have not met.
    fn why_apart(&self) -> String {
        match self.unless(|place| place != Place::Coming) {
            Some(name) => format!("`{name}` does not repeat the iteration that the daemon learned"),
            None => "the tenants did not meet at the beginning of an iteration".to_owned(),
        }
    }

    /// Returns the first tenant whose place is not as `is` says.
    fn unless(&self, is: impl Fn(Place) -> bool) -> Option<&str> {
        let party = self.parties.iter().find(|party| !is(party.place(self.number)));
        party.map(|party| party.name.as_str())
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for party in &self.parties {
            party.grant.page().plan().withdraw();
            wake(&party.grant);
            // The thread that relays the tenant's place then sees that the plan is over.
            let changes = party.meter.page().progress().changes();
            let _ = futex::wake(changes, futex::Flags::empty(), 1);
        }
    }
}

/// Wakes the launches that wait at a cut.
fn wake(grant: &SharedPage<GrantPage>) {
    // The wake fails only for a bad address.
    let _ = futex::wake(grant.page().plan().changes(), futex::Flags::empty(), u32::MAX >> 1);
}

/// The stints of a plan.
struct Stints<'a> {
    gpu: usize,
    of: &'a [Known],
    plan: &'a Plan,
    period: Duration,
    shared: &'a Shared,
}

impl<'a> Stints<'a> {
    fn new(gpu: usize, of: &'a [Known], plan: &'a Plan, shared: &'a Shared) -> Self {
        let periods_ns = of.iter().map(|(_, learned)| learned.status.period_ns as f64);
        let longest_ns = periods_ns.fold(plan.sequential_ns, f64::max).min(MOST_BOUND_NS);
        Self { gpu, of, plan, period: Duration::from_nanos(longest_ns as u64), shared }
    }

    fn parties(&self) -> Result<Vec<Party>, String> {
        parties(self.gpu, self.of, &self.shared.registry.borrow())
    }

    /// Returns the reason if the sessions are not those of `before` any more.
    fn stay(&self, before: &[Party]) -> Result<(), String> {
        let now = self.parties()?;
        let left = before.iter().zip(&now).find(|(one, other)| !Arc::ptr_eq(&one.meter, &other.meter));
        left.map_or(Ok(()), |(party, _)| Err(format!("the process of `{}` has ended", party.name)))
    }

    /// Returns the work of each tenant with and without the plan, for each unit of time. The stint
    /// with the plan lasts for `stints` stints.
    ///
    /// # Errors
    /// The reason why there is no result.
    async fn pair(&self, stints: u32, begins_without: bool) -> Result<(Vec<f64>, Vec<f64>), Miss> {
        if begins_without {
            let without = self.stint(false, 1).await?;
            return Ok((self.stint(true, stints).await?, without));
        }
        Ok((self.stint(true, stints).await?, self.stint(false, 1).await?))
    }

    /// Returns the work of each tenant in a stint with or without the plan, for each unit of time.
    ///
    /// # Errors
    /// The reason why the tenants did not follow the plan, or why there is no result.
    async fn stint(&self, has_plan: bool, stints: u32) -> Result<Vec<f64>, Miss> {
        self.set_follows(false);
        let parties = self.parties()?;
        let mut work = Work::new(self.gpu, &parties);
        let installation = if has_plan {
            let number = self.shared.plans.borrow_mut().next_number();
            Some(Installation::begin(number, self.plan, self.of, parties.clone())?)
        } else {
            None
        };
        self.settle(&mut work, installation.as_ref()).await?;
        self.set_follows(has_plan);
        let began = Instant::now();
        let until = began + (self.period * STINT_ITERATIONS).max(LEAST_STINT) * stints;
        let before: Vec<f64> = parties.iter().map(|party| party.work_ns(self.gpu)).collect();
        while Instant::now() < until {
            tokio::time::sleep(LOOK.min(until - Instant::now())).await;
            self.stay(&parties)?;
            work.look(self.patience())?;
            let keeps = |place| matches!(place, Place::At { .. });
            if let Some(name) = installation.as_ref().and_then(|plan| plan.unless(keeps)) {
                return Err(format!("`{name}` does not keep to the plan any more").into());
            }
        }
        let lasted_ns = began.elapsed().as_nanos() as f64;
        let after = parties.iter().map(|party| party.work_ns(self.gpu));
        Ok(after.zip(before).map(|(after, before)| (after - before) / lasted_ns).collect())
    }

    /// Waits until all tenants keep to the plan. Without a plan, waits for an iteration.
    async fn settle(&self, work: &mut Work<'_>, installation: Option<&Installation>) -> Result<(), Miss> {
        let Some(installation) = installation else {
            tokio::time::sleep(self.period).await;
            return Ok(());
        };
        let until = Instant::now() + self.patience();
        while installation.unless(|place| matches!(place, Place::At { .. })).is_some() {
            self.stay(work.parties)?;
            work.look(self.patience())?;
            if installation.unless(|place| place != Place::Gone).is_some() || Instant::now() >= until {
                return Err(installation.why_apart().into());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Waits for a whole stint without the plan in which all tenants work at once.
    async fn rest(&self) {
        while let Err(Miss::Rest(why) | Miss::Departed(why)) = self.stint(false, 1).await {
            self.set_why(Some(why));
            tokio::time::sleep(LOOK).await;
        }
        self.set_why(None);
    }

    /// Returns the time within which a tenant with work launches, and meets the others.
    fn patience(&self) -> Duration {
        (self.period * SETTLE_ITERATIONS).max(LEAST_STINT)
    }

    fn set_why(&self, why: Option<String>) {
        if let Some(deployed) = self.shared.plans.borrow_mut().deployed.get_mut(&self.gpu) {
            deployed.why = why;
        }
    }

    fn set_follows(&self, follows: bool) {
        if let Some(deployed) = self.shared.plans.borrow_mut().deployed.get_mut(&self.gpu) {
            deployed.follows = follows;
        }
    }
}

/// Starts the stints of the plan on a GPU.
pub(super) fn start(gpu: usize, shared: &Rc<Shared>) {
    let task = tokio::task::spawn_local(serve(gpu, Rc::clone(shared))).abort_handle();
    if let Some(deployed) = shared.plans.borrow_mut().deployed.get_mut(&gpu) {
        deployed.task = Some(task);
    }
}

/// Lets tenants follow a plan by turns, until it is dropped.
async fn serve(gpu: usize, shared: Rc<Shared>) {
    let found = shared.plans.borrow().deployed.get(&gpu).map(|plan| (plan.of.clone(), plan.plan.clone()));
    let Some((of, plan)) = found else { return };
    let names = of.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(" and ");
    let stints = Stints::new(gpu, &of, &plan, &shared);
    tracing::info!(gpu, tenants = names, predicted_gain = plan.gain(), "the tenants follow a plan on trial");
    loop {
        if let Err(why) = stints.parties() {
            // After a restart of the daemon, the sessions come back one by one.
            stints.set_why(Some(why));
            tokio::time::sleep(LOOK).await;
            continue;
        }
        let next = shared.plans.borrow().deployed.get(&gpu).map(Deployed::next_pair);
        let Some((stints_with, begins_without)) = next else { return };
        let pair = stints.pair(stints_with, begins_without).await;
        stints.set_follows(false);
        let pair = match pair {
            Ok(work) => Ok(work),
            Err(Miss::Departed(why)) => {
                tokio::time::sleep(stints.period).await;
                Err(why)
            }
            Err(Miss::Rest(why)) => {
                stints.set_why(Some(why));
                stints.rest().await;
                continue;
            }
        };
        let mut plans = shared.plans.borrow_mut();
        let Some(deployed) = plans.deployed.get_mut(&gpu) else { return };
        deployed.judge(pair);
        let status = deployed.status();
        tracing::debug!(gpu, tenants = names, ?status, "the daemon measured the plan");
        if !deployed.is_on() {
            tracing::info!(gpu, tenants = names, why = status.why, "the daemon dropped the plan");
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plans::tests::learned;
    use crate::shm::Writer;

    fn party(name: &str) -> Party {
        Party {
            name: name.to_owned(),
            process: Some(ProcessKey { pid: 7, start_ticks: 1 }),
            grant: Arc::new(SharedPage::create("grant", Writer::Controller).expect("a page")),
            meter: Arc::new(SharedPage::create("meter", Writer::Anyone).expect("a page")),
            kernels: 1,
            alone_ns: 1.0,
        }
    }

    #[test]
    fn a_place_reaches_the_others_until_the_plan_is_withdrawn() {
        let parties = vec![party("a"), party("b")];
        let of = ["a", "b"].map(|name| (name.to_owned(), learned(2, 0)));
        let kernels = of.each_ref().map(|(_, learned)| learned.kernels.as_slice());
        let plan = Search::default().plan(&kernels).expect("two tenants");
        let installation = Installation::begin(7, &plan, &of, parties.clone()).expect("it has room");
        let [slot, other] = [0, 1].map(|tenant: usize| parties[tenant].grant.page().plan());
        assert_eq!((slot.number(), other.places(7)), (7, [Place::Coming, Place::Coming, Place::Gone]));
        let tell = |word: u64| {
            let progress = parties[0].meter.page().progress();
            progress.tell(word);
            let _ = futex::wake(progress.changes(), futex::Flags::empty(), 1);
        };
        let is_told = |place| {
            let until = std::time::Instant::now() + Duration::from_secs(10);
            while other.places(7)[0] != place && std::time::Instant::now() < until {
                thread::yield_now();
            }
            assert_eq!(other.places(7)[0], place);
        };
        let there = Place::At { iterations: 3, kernel: 1 };
        tell(there.word(7));
        is_told(there);
        assert_eq!(installation.unless(|place| place == there), Some("b"));
        // Of another installation, and then of none: the tenant counts as one that has not come.
        tell(there.word(6));
        is_told(Place::Coming);
        tell(Place::Gone.word(7));
        is_told(Place::Gone);
        drop(installation);
        assert_eq!((slot.number(), other.number()), (0, 0));
    }

    #[test]
    fn tenants_that_have_not_met_are_told_apart() {
        let parties = vec![party("a"), party("b")];
        let tell = |tenant: usize, place: Place| parties[tenant].meter.page().progress().tell(place.word(7));
        let installation = Installation { number: 7, parties: parties.clone(), is_over: Arc::default() };
        tell(0, Place::Gone);
        assert!(installation.why_apart().contains("`b` does not repeat"), "`b` launched nothing");
        tell(1, Place::Ready);
        assert!(installation.why_apart().contains("did not meet"), "`a` waited in vain");
    }

    #[test]
    fn a_tenant_without_work_and_tenants_that_take_turns_have_no_stint() {
        use deepres_abi::grant::LeaseTerms;
        let parties = vec![party("a"), party("b")];
        let mut work = Work::new(0, &parties);
        let why = |looked: Result<(), Miss>| match looked {
            Err(Miss::Rest(why)) => why,
            other => panic!("{other:?}"),
        };
        assert!(why(work.look(Duration::MAX)).contains("take turns"), "the gates are closed");
        let terms = LeaseTerms { epoch: 0, expires_ns: 0, window_ns: 0, spin_ns: 0 };
        for party in &parties {
            party.grant.page().slot(0).expect("a GPU").set_gate(GateState::Open, terms);
        }
        assert!(work.look(Duration::MAX).is_ok());
        assert!(why(work.look(Duration::ZERO)).contains("`a` has no work"));
    }

    #[test]
    fn a_tenant_in_another_process_than_the_daemon_learned_is_learned_again_first() {
        let of = ["a", "b"].map(|name| (name.to_owned(), learned(2, 0)));
        let mut parties = vec![party("a"), party("b")];
        assert_eq!(renewed(&of, &parties), None);
        parties[0].process = None;
        parties[1].process = Some(ProcessKey { pid: 7, start_ticks: 2 });
        assert_eq!(renewed(&of, &parties), Some("b"), "the kernel gave the process's id anew");
    }

    fn deployed() -> Deployed {
        let plan = Search::default().plan(&[]).expect("a plan of nobody");
        Deployed::new(Vec::new(), plan)
    }

    #[test]
    fn a_plan_is_kept_by_its_gain_and_dropped_without_one() {
        let mut plan = deployed();
        for pair in 1..=MOST_PAIRS {
            assert_eq!(plan.next_pair(), (1, pair.is_multiple_of(2)));
            plan.judge(Ok((vec![1.1, 1.2], vec![1.0, 1.0])));
            assert_eq!(plan.stage == Stage::Kept, pair == MOST_PAIRS);
        }
        let status = plan.status();
        assert!(status.gain.is_some_and(|gain| (gain - 0.15).abs() < 1e-9), "{status:?}");
        assert_eq!(plan.next_pair().0, KEPT_STINTS);
        (0..MOST_PAIRS).for_each(|_| plan.judge(Ok((vec![1.0, 1.0], vec![1.0, 1.0]))));
        assert_eq!((plan.stage, plan.is_on()), (Stage::Dropped, false));
        assert!(plan.status().why.is_some_and(|why| why.contains("by more than the noise")));
    }

    #[test]
    fn three_of_the_last_pairs_without_a_result_drop_a_plan() {
        let mut plan = deployed();
        let departed = || Err("`a` departed from the plan".to_owned());
        for _ in 1..MOST_MISSES {
            plan.judge(departed());
            assert!(plan.status().why.is_some_and(|why| why.contains("`a` departed")));
        }
        (0..MOST_PAIRS).for_each(|_| plan.judge(Ok((vec![1.1], vec![1.0]))));
        assert_eq!((plan.stage, plan.status().why), (Stage::Kept, None));
        for _ in 1..MOST_MISSES {
            plan.judge(departed());
            plan.judge(Ok((vec![1.1], vec![1.0])));
        }
        assert_eq!(plan.stage, Stage::Kept);
        // A tenant that claims to follow, and does no work, does not prolong the trial.
        plan.judge(Ok((vec![1.0], vec![0.0])));
        assert!(!plan.is_on() && plan.status().why.is_some_and(|why| why.contains("did no work")));
    }
}
