//! The jobs of a day.

use super::Size;
use deepres_policy::shares::SHARES;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Milliseconds of a second.
pub const SECOND_MS: u64 = 1_000;
/// Milliseconds of the day.
pub const DAY_MS: u64 = 24 * 60 * 60 * SECOND_MS;
/// The seed of the random numbers.
const SEED: u64 = 1;
/// The shares of jobs, hundredths of a GPU, each as often.
const SHARES_OF_JOBS: [usize; 14] = [5, 10, 10, 20, 20, 25, 30, 30, 40, 50, 50, 60, 75, 100];
/// The part of the GPUs' time for which the jobs ask together.
const LOAD: f64 = 0.75;
/// By how much of the mean the rate of arrivals rises by day and falls by night. At the peak the
/// jobs ask for 97.5 % of the GPUs.
const SWING: f64 = 0.3;
/// The shortest run.
const SHORTEST_MS: u64 = 30 * SECOND_MS;

/// A job: a pod with one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// When the job arrives, ms of the day.
    pub arrives_ms: u64,
    /// Its share, hundredths of a GPU.
    pub share: usize,
    /// The job's run time, ms.
    pub runs_ms: u64,
}

/// A source of random numbers.
#[derive(Debug)]
pub struct Random(ChaCha8Rng);

impl Random {
    /// Returns a source that begins at a number.
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// Returns a number from 0 to 1, without 1.
    pub fn part(&mut self) -> f64 {
        f64::from(self.0.next_u32()) / (f64::from(u32::MAX) + 1.0)
    }

    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.part() * bound as f64) as usize
    }
}

/// Draws the jobs of a day, in the order of their arrivals. Runs have an exponential distribution,
/// most jobs are short.
pub fn draw(size: Size) -> Vec<Job> {
    let mut random = Random::new(SEED);
    let count = size.nodes * size.gpus * size.jobs_per_gpu;
    let mean_share = SHARES_OF_JOBS.iter().sum::<usize>() as f64 / (SHARES_OF_JOBS.len() * SHARES) as f64;
    let mean_ms = LOAD * DAY_MS as f64 / (size.jobs_per_gpu as f64 * mean_share);
    let mut jobs: Vec<Job> = (0..count)
        .map(|_| {
            let arrives_ms = loop {
                let day = random.part();
                let rate = 1.0 - SWING * (std::f64::consts::TAU * day).cos();
                if random.part() * (1.0 + SWING) < rate {
                    break (day * DAY_MS as f64) as u64;
                }
            };
            let share = SHARES_OF_JOBS[random.below(SHARES_OF_JOBS.len())];
            let runs_ms = (-(1.0 - random.part()).ln() * mean_ms) as u64;
            Job { arrives_ms, share, runs_ms: runs_ms.max(SHORTEST_MS) }
        })
        .collect();
    jobs.sort_by_key(|job| job.arrives_ms);
    jobs
}
