//! `cargo xtask eval --placement`: compares the placement of deepres with other ways to choose
//! GPUs, on matrices of real machines.
//!
//! Each policy gets the same arrivals ([`arrivals`]). The policy places each job on its own copy
//! of the machine. The figures compare each placement of a job with several GPUs with the best set
//! of the GPUs that have room at that moment ([`reference`]).

pub mod arrivals;
pub mod matrix;
mod page;
pub mod policy;
pub mod reference;
mod report;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use deepres_abi::PPM;
use deepres_policy::placement::{GpuSet, Room};
use serde::Serialize;

use arrivals::Arrival;
use matrix::Matrix;
pub use page::page;
use policy::{Placer, Policy};
use reference::Reference;
pub use report::{print_json, print_table};

/// The figures of a policy on one machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Name of the matrix: its file without the ending.
    pub matrix: String,
    /// Number of GPUs of the machine.
    pub gpus: usize,
    /// Name of the policy.
    pub policy: &'static str,
    /// Mean bandwidth of the pairs of a job's GPUs, as a part of the best set's. Mean over the jobs
    /// with several GPUs.
    pub bandwidth_vs_best_mean: f64,
    /// Bandwidth of the weakest pair of a job's GPUs, as a part of the best set's. Mean over the
    /// jobs with several GPUs.
    pub bandwidth_vs_best_worst: f64,
    /// Number of jobs that got no GPUs although enough time of the GPUs was free. Time is free if
    /// no job on the GPUs asked for it, whatever the policy took for the jobs.
    pub refused_though_free: u64,
    /// Number of jobs with GPUs that cannot all copy to each other directly, although other GPUs
    /// with room could.
    pub p2p_missed: u64,
}

/// A file without a usable matrix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Name of the file without the ending.
    pub matrix: String,
    /// The reason for which the file is no usable matrix.
    pub reason: String,
}

/// The result of the evaluation.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// The figures of each policy on each machine.
    pub rows: Vec<Row>,
    /// The files without a usable matrix.
    pub skipped: Vec<Skipped>,
}

/// Returns the folder of the matrices that come with deepres.
pub fn ours() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../topologies")
}

/// Evaluates all policies on the matrix in the file `path`, or on all matrices in the folder
/// `path`.
///
/// # Errors
/// The file or the folder cannot be read, or the folder has no file.
pub fn run(path: &Path) -> Result<Report> {
    let mut report = Report::default();
    for matrix in matrices(path)? {
        match matrix {
            Ok(matrix) => {
                report.rows.extend(evaluate(&matrix, arrivals::COUNT, &arrivals::SEEDS, &Policy::ALL));
            }
            Err(skipped) => report.skipped.push(skipped),
        }
    }
    Ok(report)
}

/// Reads the matrix in the file `path`, or all matrices in the folder `path`.
fn matrices(path: &Path) -> Result<Vec<Result<Matrix, Skipped>>> {
    let read = |file: PathBuf| {
        let bytes = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let text = String::from_utf8_lossy(&bytes);
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let parsed = Matrix::parse(&name, &text);
        Ok(parsed.map_err(|flaw| Skipped { matrix: name, reason: flaw.to_string() }))
    };
    files(path)?.into_iter().map(read).collect()
}

/// Returns the files with matrices: `path`, or all files in the folder `path` that are no notes.
fn files(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let folder = || format!("cannot read the folder {}", path.display());
    let mut files = Vec::new();
    for entry in path.read_dir().with_context(folder)? {
        let file = entry.with_context(folder)?.path();
        if file.is_file() && file.extension().is_none_or(|ending| ending != "md") {
            files.push(file);
        }
    }
    files.sort();
    ensure!(!files.is_empty(), "the folder {} has no file", path.display());
    Ok(files)
}

/// Returns the figures of policies on a machine. Random numbers with each of these seeds give
/// `count` arrivals at the idle machine.
pub fn evaluate(matrix: &Matrix, count: usize, seeds: &[u64], policies: &[Policy]) -> Vec<Row> {
    let topology = &matrix.topology;
    let drawn: Vec<_> = seeds.iter().map(|seed| arrivals::draw(topology.len(), count, *seed)).collect();
    let mut reference = Reference::new(topology);
    let mut row = |policy: &Policy| {
        let mut figures = Figures::default();
        for arrivals in &drawn {
            let machine = Machine::new(policy.placer(topology), topology.len());
            machine.serve(arrivals, &mut reference, &mut figures);
        }
        Row {
            matrix: matrix.name.clone(),
            gpus: topology.len(),
            policy: policy.name(),
            bandwidth_vs_best_mean: figures.mean(figures.mean_parts),
            bandwidth_vs_best_worst: figures.mean(figures.worst_parts),
            refused_though_free: figures.refused_though_free,
            p2p_missed: figures.p2p_missed,
        }
    };
    policies.iter().map(&mut row).collect()
}

/// A machine whose GPUs one policy gives to jobs.
struct Machine<'a> {
    placer: Box<dyn Placer + 'a>,
    rooms: Vec<Room>,
    /// The time for which no job asked, of all GPUs together, parts per million.
    free_ppm: u64,
    /// The GPUs that each job holds, by the number of arrivals at which the job ends.
    ends: BTreeMap<usize, Vec<Held>>,
}

/// The GPUs that a job holds.
struct Held {
    gpus: GpuSet,
    /// The share of each GPU that the policy took for the job, parts per million.
    taken_ppm: u32,
    /// The time for which the job asked, of all its GPUs together, parts per million.
    asked_ppm: u64,
}

/// Counts over the arrivals.
#[derive(Default)]
struct Figures {
    gangs: u64,
    mean_parts: f64,
    worst_parts: f64,
    refused_though_free: u64,
    p2p_missed: u64,
}

impl Figures {
    /// Returns the mean over the jobs with several GPUs; 1 without such jobs.
    fn mean(&self, parts: f64) -> f64 {
        if self.gangs == 0 { 1.0 } else { parts / self.gangs as f64 }
    }
}

impl<'a> Machine<'a> {
    fn new(placer: Box<dyn Placer + 'a>, gpus: usize) -> Self {
        let whole = Room { share_ppm: PPM, ..Room::default() };
        let free_ppm = gpus as u64 * u64::from(PPM);
        Self { placer, rooms: vec![whole; gpus], free_ppm, ends: BTreeMap::new() }
    }

    fn serve(mut self, arrivals: &[Arrival], reference: &mut Reference, figures: &mut Figures) {
        for (now, arrival) in arrivals.iter().enumerate() {
            while let Some(first) = self.ends.first_entry().filter(|first| *first.key() <= now) {
                for held in first.remove() {
                    self.free_ppm += held.asked_ppm;
                    release(&mut self.rooms, &held);
                }
            }
            let request = arrival.request();
            let asked_ppm = request.gpus.get() as u64 * u64::from(request.share_ppm);
            let taken_ppm = self.placer.takes_ppm(&request);
            let Some(gpus) = self.placer.place(&self.rooms, &request) else {
                figures.refused_though_free += u64::from(self.free_ppm >= asked_ppm);
                continue;
            };
            if gpus.len() > 1 {
                let with_room = policy::with_room(&self.rooms, taken_ppm);
                let (mean, worst) = reference.parts(gpus, with_room);
                figures.gangs += 1;
                figures.mean_parts += mean;
                figures.worst_parts += worst;
                figures.p2p_missed += u64::from(reference.misses_p2p(gpus, with_room));
            }
            let held = Held { gpus, taken_ppm, asked_ppm };
            self.free_ppm -= asked_ppm;
            take(&mut self.rooms, &held);
            self.ends.entry(now + arrival.stays).or_default().push(held);
        }
    }
}

/// Returns the count of jobs on a GPU to which a job with these GPUs belongs.
fn jobs(room: &mut Room, gpus: GpuSet) -> &mut u32 {
    if gpus.len() > 1 { &mut room.gangs } else { &mut room.singles }
}

fn take(rooms: &mut [Room], held: &Held) {
    for gpu in held.gpus.iter() {
        assert!(rooms[gpu].share_ppm >= held.taken_ppm, "GPU {gpu} has no room");
        rooms[gpu].share_ppm -= held.taken_ppm;
        *jobs(&mut rooms[gpu], held.gpus) += 1;
    }
}

fn release(rooms: &mut [Room], held: &Held) {
    for gpu in held.gpus.iter() {
        rooms[gpu].share_ppm += held.taken_ppm;
        *jobs(&mut rooms[gpu], held.gpus) -= 1;
    }
}
