//! What a tenant's program does, from outside the GPU: when work becomes available, and what follows when it is done.

use std::collections::VecDeque;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::scenario::{Arrival, Recorded, Requests, SECOND, Steps, Tenant};

/// A piece of work: kernels that become available together and are waited for together.
#[derive(Debug, Clone)]
pub struct Batch {
    /// How long each kernel takes with the whole GPU, ns.
    pub kernels_ns: Vec<u64>,
    /// When it was asked for.
    pub arrived_ns: u64,
    /// When it has to be done, if it has to.
    pub due_ns: Option<u64>,
}

/// The program of one tenant.
#[derive(Debug)]
pub struct Program {
    work: Work,
    active: Vec<(u64, u64)>,
    random: ChaCha8Rng,
    queue: VecDeque<Batch>,
    is_busy: bool,
}

#[derive(Debug, Clone)]
enum Work {
    Steps(Steps),
    Requests(Requests),
    /// What was recorded, and which stretch of it is next.
    Recorded(Recorded, usize),
}

impl Program {
    /// The program of a tenant; equal seeds and numbers do the same, whatever else is in the scenario.
    pub fn new(tenant: &Tenant, seed: u64, number: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&number.to_le_bytes());
        let work = match (tenant.steps, tenant.requests, &tenant.trace) {
            (Some(steps), ..) => Work::Steps(steps),
            (None, Some(requests), _) => Work::Requests(requests),
            (None, None, Some(recorded)) => Work::Recorded(recorded.clone(), 0),
            (None, None, None) => unreachable!("a scenario is checked when it is read"),
        };
        let active = if tenant.active_s.is_empty() { vec![(0, u64::MAX)] } else { tenant.active_s.clone() };
        Self { work, active, random: ChaCha8Rng::from_seed(bytes), queue: VecDeque::new(), is_busy: false }
    }

    /// When it does something for the first time.
    pub fn begins_ns(&mut self) -> Option<u64> {
        let begin_ns = self.active.first()?.0;
        match self.work {
            Work::Steps(_) | Work::Recorded(..) => Some(begin_ns),
            Work::Requests(requests) => self.next_arrival(begin_ns, &requests),
        }
    }

    /// Its moment has come. Returns the batch that becomes available now, if one does, and when its next moment is.
    pub fn act(&mut self, now_ns: u64) -> (Option<Batch>, Option<u64>) {
        match self.work {
            Work::Steps(steps) => {
                let Some(at_ns) = self.active_from(now_ns) else { return (None, None) };
                if at_ns > now_ns {
                    return (None, Some(at_ns));
                }
                self.is_busy = true;
                (Some(self.batch(now_ns, steps.kernels, steps.kernel_ns, steps.jitter, None)), None)
            }
            Work::Recorded(ref recorded, next) => {
                let Some(at_ns) = self.active_from(now_ns) else { return (None, None) };
                if at_ns > now_ns {
                    return (None, Some(at_ns));
                }
                self.is_busy = true;
                let kernels_ns = recorded.stretches[next].kernels_ns.clone();
                (Some(Batch { kernels_ns, arrived_ns: now_ns, due_ns: None }), None)
            }
            Work::Requests(requests) => {
                let due_ns = requests.slo_ns.map(|slo_ns| now_ns.saturating_add(slo_ns));
                let batch = self.batch(now_ns, requests.kernels, requests.kernel_ns, requests.jitter, due_ns);
                let next_ns = self.next_arrival(now_ns, &requests);
                if self.is_busy {
                    self.queue.push_back(batch);
                    return (None, next_ns);
                }
                self.is_busy = true;
                (Some(batch), next_ns)
            }
        }
    }

    /// A batch is done. Returns the next one that is there already, and, for who works in steps, its next moment.
    pub fn done(&mut self, now_ns: u64) -> (Option<Batch>, Option<u64>) {
        self.is_busy = false;
        match self.work {
            Work::Steps(steps) => {
                let pause_ns = self.varied(steps.pause_ns, steps.jitter);
                (None, Some(now_ns.saturating_add(pause_ns)))
            }
            Work::Recorded(ref recorded, ref mut next) => {
                *next = (*next + 1) % recorded.stretches.len();
                // From the end to the beginning as long as the scenario says.
                let pause_ns =
                    if *next == 0 { recorded.pause_ns } else { recorded.stretches[*next].pause_ns };
                (None, Some(now_ns.saturating_add(pause_ns)))
            }
            Work::Requests(_) => {
                let next = self.queue.pop_front();
                self.is_busy = next.is_some();
                (next, None)
            }
        }
    }

    /// Requests that wait for the one that is answered.
    pub fn queued(&self) -> &VecDeque<Batch> {
        &self.queue
    }

    fn batch(
        &mut self,
        now_ns: u64,
        kernels: u64,
        kernel_ns: u64,
        jitter: f64,
        due_ns: Option<u64>,
    ) -> Batch {
        let kernels_ns = (0..kernels).map(|_| self.varied(kernel_ns, jitter).max(1)).collect();
        Batch { kernels_ns, arrived_ns: now_ns, due_ns }
    }

    fn next_arrival(&mut self, now_ns: u64, requests: &Requests) -> Option<u64> {
        let mean_ns = SECOND as f64 / requests.per_s;
        let distance_ns = match requests.arrival {
            Arrival::Periodic => mean_ns,
            // From (0, 1]: the logarithm of 0 is none.
            Arrival::Poisson => -(1.0 - self.uniform()).ln() * mean_ns,
        };
        self.active_from(now_ns.saturating_add(distance_ns.round().max(1.0) as u64))
    }

    /// The first moment not before `at_ns` in which it is active.
    fn active_from(&self, at_ns: u64) -> Option<u64> {
        let (from_ns, _) = self.active.iter().find(|(_, to_ns)| at_ns < *to_ns)?;
        Some(at_ns.max(*from_ns))
    }

    fn varied(&mut self, value: u64, jitter: f64) -> u64 {
        if jitter == 0.0 {
            return value;
        }
        let factor = 1.0 + jitter * (2.0 * self.uniform() - 1.0);
        (value as f64 * factor).round() as u64
    }

    /// From [0, 1), in steps of 2⁻⁵³.
    fn uniform(&mut self) -> f64 {
        (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}
