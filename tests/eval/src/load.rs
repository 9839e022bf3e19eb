//! The behaviour of a tenant's program outside the GPU: when work becomes available, and what
//! follows when the work is done.

use std::collections::VecDeque;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::device::Kernel;
use crate::scenario::{Arrival, Part, Pauses, Phase, Recorded, Requests, SECOND, Steps, Tenant};

/// A batch of work: kernels that the program launches one after the other. The program waits for
/// all of them.
#[derive(Debug, Clone)]
pub struct Batch {
    /// The kernels.
    pub kernels: Vec<Kernel>,
    /// Time of the program's thread from one launch to the next, ns.
    pub launch_ns: u64,
    /// Time when the program asked for the batch.
    pub arrived_ns: u64,
    /// Time when the batch must be done, if there is a limit.
    pub due_ns: Option<u64>,
}

/// The program of one tenant, which decides when the tenant has kernels to launch.
#[derive(Debug)]
pub struct Program {
    work: Work,
    phases: Vec<Phase>,
    /// Part of the SMs that the program's kernels can use, unless a kernel says otherwise.
    sm_ppm: u32,
    random: ChaCha8Rng,
    queue: VecDeque<Waiting>,
    is_busy: bool,
    is_over: bool,
}

/// A request that waits for earlier requests. The program makes the request's kernels when its turn
/// comes, from the random numbers of its arrival. The queue keeps little for each request, because
/// under overload millions of requests wait.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    arrived_ns: u64,
    /// Position of the request's first random number.
    first_word: u64,
}

#[derive(Debug, Clone)]
enum Work {
    Steps(Steps),
    Requests(Requests),
    /// A recording, and the number of its next stretch.
    Recorded(Recorded, usize),
}

impl Program {
    /// Returns the program of a tenant. With the same seed and tenant number, the program is the
    /// same in any scenario.
    pub fn new(tenant: &Tenant, seed: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&tenant.number.to_le_bytes());
        let work = match (&tenant.steps, &tenant.requests, &tenant.trace) {
            (Some(steps), ..) => Work::Steps(steps.clone()),
            (None, Some(requests), _) => Work::Requests(requests.clone()),
            (None, None, Some(recorded)) => Work::Recorded(recorded.clone(), 0),
            (None, None, None) => unreachable!("a scenario is checked when it is read"),
        };
        let always = Phase { from_ns: 0, to_ns: u64::MAX, load: 1.0 };
        Self {
            work,
            phases: if tenant.phases.is_empty() { vec![always] } else { tenant.phases.clone() },
            sm_ppm: tenant.sm_ppm,
            random: ChaCha8Rng::from_seed(bytes),
            queue: VecDeque::new(),
            is_busy: false,
            is_over: false,
        }
    }

    /// Returns the time of the program's first action.
    pub fn begins_ns(&mut self) -> Option<u64> {
        let begin_ns = self.phases.first()?.from_ns;
        match self.work.clone() {
            Work::Steps(_) | Work::Recorded(..) => Some(begin_ns),
            Work::Requests(requests) => self.next_arrival(begin_ns, &requests),
        }
    }

    /// Ends the job. No work follows.
    pub fn end(&mut self) {
        self.is_over = true;
        self.queue.clear();
    }

    /// Performs the program's action at this moment. Returns the batch that becomes available now,
    /// if there is one, and the time of the program's next action.
    pub fn act(&mut self, now_ns: u64) -> (Option<Batch>, Option<u64>) {
        if self.is_over {
            return (None, None);
        }
        if let Work::Requests(requests) = &self.work {
            let requests = requests.clone();
            let first_word = self.random.get_word_pos() as u64;
            let batch = if self.is_busy {
                self.queue.push_back(Waiting { arrived_ns: now_ns, first_word });
                let words = requests.profile.iter().map(|part| words(part.kernels, requests.jitter));
                self.random.set_word_pos(u128::from(first_word + words.sum::<u64>()));
                None
            } else {
                Some(self.request(now_ns, &requests))
            };
            self.is_busy = true;
            return (batch, self.next_arrival(now_ns, &requests));
        }
        let Some((at_ns, load)) = self.active_from(now_ns) else { return (None, None) };
        if at_ns > now_ns {
            return (None, Some(at_ns));
        }
        self.is_busy = true;
        let batch = match &self.work {
            Work::Recorded(recorded, next) => {
                let kernel = |length_ns: &u64| Kernel { length_ns: *length_ns, sm_ppm: self.sm_ppm };
                let kernels = recorded.stretches[*next].kernels_ns.iter().map(kernel).collect();
                Batch { kernels, launch_ns: 0, arrived_ns: now_ns, due_ns: None }
            }
            Work::Steps(steps) => {
                let steps = steps.clone();
                let due_ns = due_ns(now_ns, steps.slo_ns);
                let batch = self.batch(now_ns, &steps.profile, load, steps.jitter, due_ns);
                Batch { launch_ns: steps.launch_ns, ..batch }
            }
            Work::Requests(_) => unreachable!("requests come by themselves"),
        };
        (Some(batch), None)
    }

    /// Tells the program that its batch is done. Returns the next batch that is available already.
    /// For a program that works in steps, also returns the time of the next action.
    pub fn done(&mut self, now_ns: u64) -> (Option<Batch>, Option<u64>) {
        self.is_busy = false;
        let pause_ns = match &mut self.work {
            Work::Steps(steps) => match (steps.pauses, steps.pause_ns, steps.jitter) {
                (Pauses::Regular, pause_ns, jitter) => self.varied(pause_ns, jitter),
                (Pauses::Exponential, mean_ns, _) => (self.exponential() * mean_ns as f64).round() as u64,
            },
            Work::Recorded(recorded, next) => {
                *next = (*next + 1) % recorded.stretches.len();
                // The scenario sets the pause between the end and the next beginning.
                if *next == 0 { recorded.pause_ns } else { recorded.stretches[*next].pause_ns }
            }
            Work::Requests(requests) => {
                let requests = requests.clone();
                let next = self.queue.pop_front();
                self.is_busy = next.is_some();
                return (next.map(|waiting| self.waited(waiting, &requests)), None);
            }
        };
        (None, Some(now_ns.saturating_add(pause_ns)))
    }

    /// Returns the requests that wait for the present request: arrival times, and times when they
    /// must be done, if there are limits.
    pub fn queued(&self) -> impl Iterator<Item = (u64, Option<u64>)> {
        let slo_ns = match &self.work {
            Work::Requests(requests) => requests.slo_ns,
            Work::Steps(_) | Work::Recorded(..) => None,
        };
        self.queue.iter().map(move |waiting| (waiting.arrived_ns, due_ns(waiting.arrived_ns, slo_ns)))
    }

    /// Returns the batch of a request whose turn has come.
    fn waited(&mut self, waiting: Waiting, requests: &Requests) -> Batch {
        let now_at = self.random.get_word_pos();
        self.random.set_word_pos(u128::from(waiting.first_word));
        let batch = self.request(waiting.arrived_ns, requests);
        self.random.set_word_pos(now_at);
        batch
    }

    fn request(&mut self, arrived_ns: u64, requests: &Requests) -> Batch {
        let due_ns = due_ns(arrived_ns, requests.slo_ns);
        self.batch(arrived_ns, &requests.profile, 1.0, requests.jitter, due_ns)
    }

    /// Returns a batch with the kernels of a profile. `load` multiplies the number of kernels.
    fn batch(&mut self, now_ns: u64, profile: &[Part], load: f64, jitter: f64, due_ns: Option<u64>) -> Batch {
        let mut kernels = Vec::new();
        for part in profile {
            let sm_ppm = part.sm_ppm.unwrap_or(self.sm_ppm);
            let count = ((part.kernels as f64 * load).round() as u64).max(1);
            kernels.extend((0..count).map(|_| {
                let length_ns = self.varied(part.kernel_ns, jitter).max(1);
                Kernel { length_ns, sm_ppm }
            }));
        }
        Batch { kernels, launch_ns: 0, arrived_ns: now_ns, due_ns }
    }

    /// Returns the time of the next request. The rate is that of the phase in which the previous
    /// request came. Between phases, no requests come.
    fn next_arrival(&mut self, now_ns: u64, requests: &Requests) -> Option<u64> {
        let (from_ns, load) = self.active_from(now_ns)?;
        let mean_ns = SECOND as f64 / (requests.per_s * load);
        let distance_ns = match requests.arrival {
            Arrival::Periodic => mean_ns,
            Arrival::Poisson => self.exponential() * mean_ns,
        };
        let at_ns = from_ns.saturating_add(distance_ns.round().max(1.0) as u64);
        self.active_from(at_ns).map(|(at_ns, _)| at_ns)
    }

    /// Returns the first moment from `at_ns` on in which the program is active, and its load then.
    fn active_from(&self, at_ns: u64) -> Option<(u64, f64)> {
        // The phases are in order, and a binary search is needed: a day can have a phase for each
        // second.
        let phase = self.phases.get(self.phases.partition_point(|phase| phase.to_ns <= at_ns))?;
        Some((at_ns.max(phase.from_ns), phase.load))
    }

    fn varied(&mut self, value: u64, jitter: f64) -> u64 {
        if jitter == 0.0 {
            return value;
        }
        let factor = 1.0 + jitter * (2.0 * self.uniform() - 1.0);
        (value as f64 * factor).round() as u64
    }

    /// Returns a random number with an exponential distribution of mean 1.
    fn exponential(&mut self) -> f64 {
        // The argument lies in (0, 1], because the logarithm of 0 does not exist.
        -(1.0 - self.uniform()).ln()
    }

    /// Returns a random number from [0, 1), in steps of 2⁻⁵³.
    fn uniform(&mut self) -> f64 {
        (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Returns the time by which work that arrived at `arrived_ns` must be done.
fn due_ns(arrived_ns: u64, slo_ns: Option<u64>) -> Option<u64> {
    slo_ns.map(|slo_ns| arrived_ns.saturating_add(slo_ns))
}

/// Returns the number of words of random numbers that [`Program::varied`] takes for this many
/// values.
fn words(values: u64, jitter: f64) -> u64 {
    if jitter == 0.0 { 0 } else { 2 * values }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use crate::scenario::Scenario;

    #[test]
    fn a_request_that_waited_has_the_kernels_that_it_would_have_had_at_once() {
        let requests = r#"
            [tenant.requests]
            arrival = "poisson"
            per_s = 10
            profile = [{ kernels = 3, kernel_us = 1000 }, { kernels = 2, kernel_us = 70 }]
            jitter = 0.3
            slo_ms = 5
        "#;
        let scenario = Scenario::of("duration_s = 100", &[("requests", requests, "")]);
        let program = || Program::new(&scenario.tenants[0], 7);
        let (mut prompt, mut late) = (program(), program());
        let lengths = |batch: &Batch| batch.kernels.iter().map(|kernel| kernel.length_ns).collect::<Vec<_>>();
        let mut moment_ns = prompt.begins_ns();
        assert_eq!(moment_ns, late.begins_ns());
        let (mut at_once, mut waited) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            let (batch, next_ns) = prompt.act(moment_ns.unwrap());
            at_once.push(batch.unwrap());
            assert!(prompt.done(moment_ns.unwrap()).0.is_none());
            let (batch, same_ns) = late.act(moment_ns.unwrap());
            waited.extend(batch);
            assert_eq!(next_ns, same_ns);
            moment_ns = next_ns;
        }
        let queued: Vec<_> = late.queued().collect();
        while let Some(batch) = late.done(0).0 {
            waited.push(batch);
        }
        assert_eq!(
            waited.iter().map(lengths).collect::<Vec<_>>(),
            at_once.iter().map(lengths).collect::<Vec<_>>()
        );
        let said = |batch: &Batch| (batch.arrived_ns, batch.due_ns);
        assert_eq!(waited.iter().map(said).collect::<Vec<_>>(), at_once.iter().map(said).collect::<Vec<_>>());
        assert_eq!(queued, waited[1..].iter().map(said).collect::<Vec<_>>());
        // The size matters, because on a machine with few GiB tens of millions of requests can
        // wait.
        assert!(size_of::<Waiting>() <= 16);
    }

    fn run(tenants: &[(&str, &str, &str)]) -> crate::engine::Run {
        Policy::Gps.run_alone(&Scenario::of("duration_s = 100", tenants))
    }

    #[test]
    fn a_phases_load_scales_requests_and_kernels_of_steps() {
        let requests = r#"
            phases = [{ to_s = 50, load = 0.5 }, { from_s = 50, to_s = 100, load = 2 }]
            requests = { arrival = "periodic", per_s = 10, kernels = 1, kernel_us = 1000 }
        "#;
        let phases = "phases = [{ from_s = 20, to_s = 40, load = 0.5 }]";
        let steps = "kernels = 10, kernel_us = 1000, pause_ms = 95";
        let run = run(&[("requests", requests, ""), ("steps", phases, steps)]);
        // 5 and 20 requests per second.
        assert!(run.outcomes[0].latencies_ns.len().abs_diff(250 + 1000) <= 3);
        // Half of ten kernels, each 100 ms.
        assert!(run.outcomes[1].work_ns.abs_diff(1_000_000_000) <= 20_000_000, "{}", run.outcomes[1].work_ns);
    }

    #[test]
    fn exponential_pauses_have_their_mean_and_are_not_alike() {
        let steps = "kernels = 1, kernel_us = 1000, pause_ms = 9, pauses = \"exponential\"";
        let run = run(&[("steps", "", steps)]);
        let steps = run.outcomes[0].latencies_ns.len() as f64;
        assert!((steps - 10_000.0).abs() < 400.0, "{steps}");
        assert!((run.outcomes[0].work_ns as f64 - steps * 1e6).abs() < 1.0);
    }

    #[test]
    fn a_profile_is_run_as_it_is_written() {
        let profile = "[{ kernels = 2, kernel_us = 1000 }, { kernels = 1, kernel_us = 6000 }]";
        let run = run(&[("steps", "", &format!("profile = {profile}, pause_ms = 2, slo_ms = 7.9"))]);
        assert!(run.outcomes[0].latencies_ns.iter().all(|ns| *ns == 8_000_000));
        assert_eq!(
            (run.outcomes[0].missed, run.outcomes[0].timed),
            (10_000, 10_000),
            "each takes 0.1 ms too long"
        );
    }
}
