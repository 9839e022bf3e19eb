//! Jobs that arrive at a machine and leave it, drawn at random.

use std::num::NonZero;

use deepres_abi::{MAX_GPUS, PPM};
use deepres_policy::placement::{GpuSet, Request};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Number of jobs that arrive at each machine.
pub const COUNT: usize = 10_000;
/// The seeds of the random numbers in the evaluation.
pub const SEEDS: [u64; 1] = [1];

/// Shares of jobs with a part of a GPU, percent.
const PARTS: [u32; 6] = [10, 20, 25, 30, 40, 50];
/// The numbers of GPUs for which jobs with several GPUs ask. Smaller numbers are more frequent.
const GANGS: [usize; 8] = [2, 2, 2, 2, 3, 4, 4, 8];
/// The number of jobs in which each kind of job has a fixed number.
const KINDS: u32 = 20;
/// The number of jobs, of [`KINDS`], that ask for a part of one GPU.
const SINGLE_PARTS: u32 = 8;
/// The number of jobs, of [`KINDS`], that ask for one whole GPU.
const SINGLE_WHOLES: u32 = 5;
/// The number of jobs, of [`KINDS`], that ask for several whole GPUs. The remaining jobs ask for a
/// part of several GPUs.
const WHOLE_GANGS: u32 = 5;

/// A job that arrives at the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Number of GPUs.
    pub gpus: NonZero<usize>,
    /// Share of each GPU, parts per million.
    pub share_ppm: u32,
    /// The time for which the job stays, in arrivals of jobs.
    pub stays: usize,
}

impl Arrival {
    /// Returns the wish that the job has. The memory of jobs is not part of the evaluation.
    pub fn request(&self) -> Request {
        let among = GpuSet::first(MAX_GPUS);
        Request { gpus: self.gpus, share_ppm: self.share_ppm, memory_bytes: 0, among }
    }
}

/// Draws the jobs for a machine with this number of GPUs from random numbers with this seed.
/// Together the jobs ask for as much time as the machine has.
pub fn draw(gpus: usize, count: usize, seed: u64) -> Vec<Arrival> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut below = |bound: u32| random.next_u32() % bound;
    let gangs: Vec<usize> = GANGS.into_iter().filter(|gang| *gang <= gpus).collect();
    let mut arrivals: Vec<Arrival> = (0..count)
        .map(|_| {
            let kind = below(KINDS);
            let gang = if gangs.is_empty() { 1 } else { gangs[below(gangs.len() as u32) as usize] };
            let part_ppm = PARTS[below(PARTS.len() as u32) as usize] * (PPM / 100);
            let (gpus, share_ppm) = match kind {
                0..SINGLE_PARTS => (1, part_ppm),
                _ if kind < SINGLE_PARTS + SINGLE_WHOLES => (1, PPM),
                _ if kind < SINGLE_PARTS + SINGLE_WHOLES + WHOLE_GANGS => (gang, PPM),
                _ => (gang, part_ppm),
            };
            let gpus = NonZero::new(gpus).expect("each job has a GPU");
            Arrival { gpus, share_ppm, stays: 0 }
        })
        .collect();
    let asked = |arrival: &Arrival| arrival.gpus.get() as u64 * u64::from(arrival.share_ppm);
    let asked_ppm: u64 = arrivals.iter().map(asked).sum();
    // A job stays for this time on the average.
    let mean = (gpus as u64 * u64::from(PPM) * count as u64).div_ceil(asked_ppm.max(1));
    for arrival in &mut arrivals {
        arrival.stays = 1 + below(2 * mean as u32) as usize;
    }
    arrivals
}
