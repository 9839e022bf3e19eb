//! A GPU under MPS in virtual time. Runs go on at the same time, each on at most its part of the
//! SMs. If the runs need more than all SMs, all slow down alike.

use std::collections::VecDeque;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::curve::{Curve, WHOLE};
use super::scenario::{Arrivals, Scenario, Tenant};

/// Two moments that differ by less are one, ms.
const INSTANT_MS: f64 = 1e-9;

/// A run that goes on, waits, or could begin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Position of the tenant.
    pub tenant: usize,
    /// Position of the instance among the tenant's instances.
    pub instance: usize,
    /// Number of requests in the run.
    pub batch: u32,
    /// When the run is due, ms. A run of surplus work is not due.
    pub due_ms: Option<f64>,
    /// The time for which the run has had a place, ms.
    pub had_ms: f64,
    /// The part at which the run began, percent. Nothing if the run has not begun.
    pub began_at: Option<usize>,
    /// Whether the run has a place now.
    pub holds: bool,
}

/// The place of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Place {
    /// Position of the candidate.
    pub candidate: usize,
    /// The part of the SMs, percent. A run that has begun keeps its part.
    pub part: usize,
}

/// Decides which runs have places.
pub trait Policy {
    /// Appends the places from now on to `places`.
    fn choose(&mut self, now_ms: f64, candidates: &[Candidate], places: &mut Vec<Place>);
    /// Returns the most requests that a run of the tenant takes.
    fn batch(&self, tenant: usize) -> u32;
    /// Returns the part at which the tenant's next run begins, percent.
    fn part(&self, tenant: usize) -> usize;
    /// Returns the time after which the policy decides again in any case, ms.
    fn look_ms(&self) -> Option<f64> {
        None
    }
    /// Returns the time for which a run that gets a place does nothing, ms.
    fn handoff_ms(&self) -> f64 {
        0.0
    }
    /// Takes the news that a run had a place for a time, ms.
    fn ran(&mut self, _tenant: usize, _part: usize, _ms: f64) {}
    /// Tells the policy that a run has ended, after `had_ms` in its place.
    fn ended(&mut self, _tenant: usize, _part: usize, _batch: u32, _had_ms: f64) {}
    /// Takes the news that requests came.
    fn arrived(&mut self, _now_ms: f64, _tenant: usize, _requests: u32) {}
    /// Returns how often a tenant got another part.
    fn resizes(&self) -> u64 {
        0
    }
}

/// The figures of one tenant.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figures {
    /// The number of runs that were due, and the number of these that ended in time.
    pub due: f64,
    /// Runs that ended in time.
    pub in_time: f64,
    /// Runs that ended.
    pub ended: f64,
    /// Requests that came, and are due before the scenario ends.
    pub requests: f64,
    /// Requests that were answered in time.
    pub answered: f64,
}

/// The result of a run of a scenario.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// The figures of each tenant.
    pub tenants: Vec<Figures>,
    /// The area of the work that was done, as a part of all SMs and time.
    pub area: f64,
    /// The number of times that a run got a place.
    pub places: u64,
}

/// A run that has begun.
#[derive(Debug, Clone)]
struct Active {
    batch: u32,
    part: usize,
    /// The part of the run that is left.
    left: f64,
    had_ms: f64,
    /// When the requests came, ms.
    requests: Vec<f64>,
    /// The time left of the change of places, ms.
    changes_ms: f64,
    holds: bool,
}

struct Instance {
    run: Option<Active>,
    /// The host's pause lasts until then, ms.
    ready_ms: f64,
}

struct State<'a> {
    tenant: &'a Tenant,
    curve: &'a Curve,
    instances: Vec<Instance>,
    /// The window of a periodic tenant: its end, ms, and whether a run is still to end in it.
    window: Option<(f64, bool)>,
    /// When the requests that wait came, ms.
    queue: VecDeque<f64>,
    next_ms: f64,
    gaps: usize,
    random: ChaCha8Rng,
    figures: Figures,
}

impl State<'_> {
    /// Returns the time to the next request, ms.
    fn gap_ms(&mut self) -> f64 {
        match &self.tenant.arrivals {
            Arrivals::Periodic(period_ms) => *period_ms,
            Arrivals::Poisson(rate_hz) => {
                let uniform = (self.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
                -(1.0 - uniform).ln() * 1e3 / rate_hz
            }
            Arrivals::Gaps(gaps) => {
                self.gaps += 1;
                gaps[(self.gaps - 1) % gaps.len()]
            }
            Arrivals::Closed => f64::INFINITY,
        }
    }

    /// Returns whether the tenant has work beside the runs that have begun, and when it is due.
    fn work(&self, now_ms: f64, full: bool, begun: usize) -> Option<Option<f64>> {
        match &self.tenant.arrivals {
            Arrivals::Closed => Some(None),
            Arrivals::Periodic(_) => {
                let due_ms = self.window.filter(|(_, is_owed)| *is_owed).map(|(end_ms, _)| end_ms);
                match due_ms.filter(|_| begun == 0) {
                    Some(due_ms) => Some(Some(due_ms)),
                    None => full.then_some(None),
                }
            }
            _ => {
                let oldest_ms = self.queue.front()?;
                Some(Some((oldest_ms + self.tenant.slo_ms).max(now_ms)))
            }
        }
    }
}

/// Runs a scenario under a policy.
pub fn run(scenario: &Scenario, policy: &mut dyn Policy) -> Outcome {
    let mut states: Vec<State> = scenario
        .tenants
        .iter()
        .enumerate()
        .map(|(index, tenant)| {
            let mut seed = [0; 32];
            seed[..8].copy_from_slice(&scenario.seed.to_le_bytes());
            seed[8..16].copy_from_slice(&(index as u64).to_le_bytes());
            let instance = |_| Instance { run: None, ready_ms: 0.0 };
            let mut state = State {
                tenant,
                curve: &tenant.curve,
                instances: (0..tenant.instances).map(instance).collect(),
                window: None,
                queue: VecDeque::new(),
                next_ms: 0.0,
                gaps: 0,
                random: ChaCha8Rng::from_seed(seed),
                figures: Figures::default(),
            };
            if !matches!(tenant.arrivals, Arrivals::Periodic(_)) {
                state.next_ms = state.gap_ms();
            }
            state
        })
        .collect();
    let mut device = Device { scenario, now_ms: 0.0, area_ms: 0.0, places: 0 };
    let (mut candidates, mut from, mut places) = (Vec::new(), Vec::new(), Vec::new());
    while device.now_ms < scenario.duration_ms - INSTANT_MS {
        device.arrive(&mut states, policy);
        device.candidates(&mut states, policy, &mut candidates, &mut from);
        places.clear();
        policy.choose(device.now_ms, &candidates, &mut places);
        device.place(&mut states, policy, &candidates, &from, &places);
        device.advance(&mut states, policy);
    }
    device.close(&mut states);
    Outcome {
        area: device.area_ms / scenario.duration_ms,
        places: device.places,
        tenants: states.into_iter().map(|state| state.figures).collect(),
    }
}

struct Device<'a> {
    scenario: &'a Scenario,
    now_ms: f64,
    area_ms: f64,
    places: u64,
}

impl Device<'_> {
    /// Takes the requests that have come, and ends the windows that are over.
    fn arrive(&self, states: &mut [State], policy: &mut dyn Policy) {
        for (index, state) in states.iter_mut().enumerate() {
            if let Some(later) = state.tenant.later.as_ref()
                && self.now_ms >= self.scenario.duration_ms / 2.0
            {
                state.curve = later;
            }
            while state.next_ms <= self.now_ms + INSTANT_MS {
                let came_ms = state.next_ms;
                state.next_ms += state.gap_ms();
                if matches!(state.tenant.arrivals, Arrivals::Periodic(_)) {
                    if let Some((_, true)) = state.window
                        && !self.scenario.full
                    {
                        // The run of the last window is too late.
                        state.instances.iter_mut().for_each(|instance| instance.run = None);
                    }
                    state.window = Some((state.next_ms, true));
                    if state.next_ms <= self.scenario.duration_ms + INSTANT_MS {
                        state.figures.due += 1.0;
                        state.figures.requests += f64::from(state.tenant.largest_batch());
                    }
                    policy.arrived(self.now_ms, index, state.tenant.largest_batch());
                } else {
                    state.queue.push_back(came_ms);
                    if came_ms + state.tenant.slo_ms <= self.scenario.duration_ms {
                        state.figures.requests += 1.0;
                    }
                    policy.arrived(self.now_ms, index, 1);
                }
            }
            // A server leaves out requests that its next run cannot answer in time.
            let is_free = state.instances.iter().any(|one| one.run.is_none());
            while let Some(came_ms) = state.queue.front() {
                let batch = (state.queue.len() as u32).min(policy.batch(index));
                let run_ms = if is_free { state.curve.time_ms(policy.part(index), batch) } else { 0.0 };
                if came_ms + state.tenant.slo_ms > self.now_ms + run_ms {
                    break;
                }
                state.queue.pop_front();
            }
        }
    }

    /// Lists the runs that go on or could begin, with the positions of tenant and instance.
    fn candidates(
        &self,
        states: &mut [State],
        policy: &dyn Policy,
        candidates: &mut Vec<Candidate>,
        from: &mut Vec<(usize, usize)>,
    ) {
        candidates.clear();
        from.clear();
        for (tenant, state) in states.iter().enumerate() {
            let mut begun: Vec<usize> =
                (0..state.instances.len()).filter(|one| state.instances[*one].run.is_some()).collect();
            let left = |one: &usize| state.instances[*one].run.as_ref().map_or(1.0, |run| run.left);
            begun.sort_by(|one, other| left(one).total_cmp(&left(other)));
            // The run that is nearest to its end is the one that the window owes.
            let owed_ms = state.window.filter(|(_, is_owed)| *is_owed).map(|(end_ms, _)| end_ms);
            for (position, &instance) in begun.iter().enumerate() {
                let Some(run) = &state.instances[instance].run else { continue };
                let oldest_ms = run.requests.first().map(|came_ms| came_ms + state.tenant.slo_ms);
                candidates.push(Candidate {
                    tenant,
                    instance,
                    batch: run.batch,
                    due_ms: oldest_ms.or(owed_ms.filter(|_| position == 0)),
                    had_ms: run.had_ms,
                    began_at: Some(run.part),
                    holds: run.holds,
                });
                from.push((tenant, instance));
            }
            let is_free =
                |instance: &Instance| instance.run.is_none() && instance.ready_ms <= self.now_ms + INSTANT_MS;
            let mut waiting = state.queue.len();
            for (instance, _) in state.instances.iter().enumerate().filter(|(_, one)| is_free(one)) {
                let begun = from.iter().filter(|(of, _)| *of == tenant).count();
                let Some(due_ms) = state.work(self.now_ms, self.scenario.full, begun) else { break };
                let is_queue = matches!(state.tenant.arrivals, Arrivals::Poisson(_) | Arrivals::Gaps(_));
                let batch = if is_queue {
                    let batch = (waiting as u32).min(policy.batch(tenant));
                    waiting -= batch as usize;
                    batch
                } else {
                    state.tenant.largest_batch()
                };
                if batch == 0 {
                    break;
                }
                candidates.push(Candidate {
                    tenant,
                    instance,
                    batch,
                    due_ms,
                    had_ms: 0.0,
                    began_at: None,
                    holds: false,
                });
                from.push((tenant, instance));
            }
        }
    }

    /// Gives the places, and begins runs.
    fn place(
        &mut self,
        states: &mut [State],
        policy: &dyn Policy,
        candidates: &[Candidate],
        from: &[(usize, usize)],
        places: &[Place],
    ) {
        let mut is_placed = vec![None; candidates.len()];
        for place in places {
            is_placed[place.candidate] = Some(place.part);
        }
        for ((candidate, &(tenant, instance)), part) in candidates.iter().zip(from).zip(is_placed) {
            let state = &mut states[tenant];
            let run = &mut state.instances[instance].run;
            let Some(part) = part else {
                if let Some(run) = run {
                    run.holds = false;
                }
                continue;
            };
            let run = run.get_or_insert_with(|| {
                let is_queue = !state.queue.is_empty();
                let taken = if is_queue { candidate.batch as usize } else { 0 };
                let requests = state.queue.drain(..taken).collect();
                Active {
                    batch: candidate.batch,
                    part,
                    left: 1.0,
                    had_ms: 0.0,
                    requests,
                    changes_ms: 0.0,
                    holds: false,
                }
            });
            if !run.holds {
                run.holds = true;
                run.changes_ms = policy.handoff_ms();
                self.places += 1;
            }
        }
    }

    /// Runs up to the next event.
    fn advance(&mut self, states: &mut [State], policy: &mut dyn Policy) {
        let scenario = self.scenario;
        let holders: Vec<(usize, usize)> = states
            .iter()
            .enumerate()
            .flat_map(|(tenant, state)| {
                let holds = |one: &Instance| one.run.as_ref().is_some_and(|run| run.holds);
                (0..state.instances.len())
                    .filter(move |one| holds(&state.instances[*one]))
                    .map(move |instance| (tenant, instance))
            })
            .collect();
        let mut speeds = Vec::with_capacity(holders.len());
        let mut used = 0.0;
        for &(tenant, instance) in &holders {
            let state = &states[tenant];
            let Some(run) = &state.instances[instance].run else { continue };
            let time_ms = state.curve.time_ms(run.part, run.batch);
            used += state.curve.area_ms(run.batch) / time_ms;
            let beside = holders.iter().filter(|(other, _)| *other != tenant);
            let slower: f64 = 1.0 + beside.map(|(other, _)| state.tenant.slower[*other]).sum::<f64>();
            speeds.push(1.0 / (time_ms * slower));
        }
        let crowded = f64::max(used, 1.0);
        speeds.iter_mut().for_each(|speed| *speed /= crowded);
        let mut until_ms = policy.look_ms().map_or(f64::INFINITY, |look_ms| self.now_ms + look_ms);
        until_ms = until_ms.min(scenario.duration_ms);
        for state in states.iter() {
            until_ms = until_ms.min(state.next_ms);
            let oldest = state.queue.front().map(|came_ms| came_ms + state.tenant.slo_ms);
            let ready = state.instances.iter().map(|one| one.ready_ms);
            for event_ms in ready.chain(oldest).filter(|event_ms| *event_ms > self.now_ms + INSTANT_MS) {
                until_ms = until_ms.min(event_ms);
            }
        }
        if scenario.tenants.iter().any(|tenant| tenant.later.is_some())
            && self.now_ms < scenario.duration_ms / 2.0
        {
            until_ms = until_ms.min(scenario.duration_ms / 2.0);
        }
        for (&(tenant, instance), speed) in holders.iter().zip(&speeds) {
            let Some(run) = &states[tenant].instances[instance].run else { continue };
            until_ms = until_ms.min(self.now_ms + run.changes_ms + run.left / speed);
        }
        let elapsed_ms = (until_ms - self.now_ms).max(0.0);
        self.now_ms = until_ms;
        for (&(tenant, instance), speed) in holders.iter().zip(&speeds) {
            let state = &mut states[tenant];
            let Some(run) = &mut state.instances[instance].run else { continue };
            let changes_ms = run.changes_ms.min(elapsed_ms);
            run.changes_ms -= changes_ms;
            let ran_ms = elapsed_ms - changes_ms;
            let done = (ran_ms * speed).min(run.left);
            run.left -= done;
            run.had_ms += ran_ms;
            self.area_ms += done * state.curve.area_ms(run.batch);
            policy.ran(tenant, run.part, elapsed_ms);
            if run.changes_ms <= INSTANT_MS && run.left / speed <= INSTANT_MS {
                policy.ended(tenant, run.part, run.batch, run.had_ms);
                if let Some(run) = state.instances[instance].run.take() {
                    state.end(&run, self.now_ms, scenario.duration_ms);
                }
                state.instances[instance].ready_ms = self.now_ms + state.tenant.pause_ms;
            }
        }
    }

    /// Counts what is due and not done when the scenario ends.
    fn close(&self, states: &mut [State]) {
        for state in states {
            let overdue = |run: &&Active| {
                run.requests
                    .first()
                    .is_some_and(|came| came + state.tenant.slo_ms <= self.scenario.duration_ms)
            };
            let runs = state.instances.iter().filter_map(|one| one.run.as_ref());
            state.figures.due += runs.filter(overdue).count() as f64;
        }
    }
}

impl State<'_> {
    /// Counts a run that has ended.
    fn end(&mut self, run: &Active, now_ms: f64, duration_ms: f64) {
        self.figures.ended += 1.0;
        if let (Arrivals::Periodic(period_ms), Some((end_ms, true))) = (&self.tenant.arrivals, self.window) {
            self.window = Some((end_ms, false));
            if end_ms <= duration_ms + INSTANT_MS {
                self.figures.in_time += 1.0;
                // The requests of the batch came evenly over the period before the window.
                let began_ms = end_ms - period_ms;
                let answered = (began_ms - now_ms + self.tenant.slo_ms) / period_ms;
                self.figures.answered += f64::from(run.batch) * answered.clamp(0.0, 1.0);
            }
        }
        let Some(oldest_ms) = run.requests.first() else { return };
        if oldest_ms + self.tenant.slo_ms <= duration_ms {
            self.figures.due += 1.0;
            self.figures.in_time +=
                f64::from(u8::from(now_ms <= oldest_ms + self.tenant.slo_ms + INSTANT_MS));
        }
        let in_time = run.requests.iter().filter(|came_ms| {
            let due_ms = **came_ms + self.tenant.slo_ms;
            now_ms <= due_ms + INSTANT_MS && due_ms <= duration_ms
        });
        self.figures.answered += in_time.count() as f64;
    }
}

/// Returns the mean part of the SMs that a run uses if it has all of them.
pub fn width(tenant: &Tenant, batch: u32) -> f64 {
    tenant.curve.area_ms(batch) / tenant.curve.time_ms(WHOLE, batch)
}
