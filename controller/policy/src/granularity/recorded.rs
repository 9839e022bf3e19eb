//! Reads from a recording of a process its launches, and the iteration that the launches repeat.
//!
//! A recording is a trace of `deepres run --record`, or an excerpt that the daemon asked for. An
//! excerpt and a trace have the same records ([`deepres_abi::recording`]). A process can write any
//! records. So the work and the memory of this module grow at most in proportion to the records'
//! bytes, but for a sort.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use deepres_abi::recording::{Broken, Record, Shape, take, take_chunk};

use super::{Kernel, period};

/// Shortest pause between two kernels. A shorter pause does not count, because a launch and its
/// event take as long.
pub const LEAST_PAUSE_NS: u64 = 20_000;
/// Time of a kernel if the recording contains no measured time at all.
const UNKNOWN_NS: u64 = 10_000;
/// The whole, percent.
const WHOLE_PERCENT: f64 = 100.0;
/// Parts of the names of kernels that only training has: gradients and optimisers.
const TRAINING: [&str; 7] = ["backward", "bwd", "_grad", "grad_", "adam", "sgd", "multi_tensor_apply"];

/// A launch that ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launched {
    /// Time of the launch, ns of the recorded host's clock.
    pub at_ns: u64,
    /// Thread that launched.
    pub thread: u32,
    /// Kernel and geometry, as the place in [`Process::shapes`].
    pub shape: usize,
    /// Stream of the launch.
    pub stream: u64,
}

/// The record of one process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Process {
    /// Process id in the process's own namespace.
    pub pid: u32,
    /// Kernels with their geometry.
    pub shapes: Vec<Shape>,
    /// Names of functions, by handle.
    pub names: BTreeMap<u64, String>,
    /// Launches that ran, in order of time.
    pub launches: Vec<Launched>,
    /// Number of launches that the program captured into graphs, which therefore did not run.
    pub captured: u64,
    /// Copies in order of time: (time, bytes).
    pub copies: Vec<(u64, u64)>,
    /// Allocations in order of time: (time, bytes).
    pub allocations: Vec<(u64, u64)>,
    /// Waits of the program's threads in order of time: beginning and length, ns.
    pub waits: Vec<(u64, u64)>,
    /// Streams that waited for an event, in order of time: (time, stream).
    pub follows: Vec<(u64, u64)>,
    /// Blocks that run at once, by function, block and bytes of dynamic shared memory.
    pub resident: BTreeMap<(u64, [u32; 3], u32), u32>,
    /// Measured times by key: number of times and their sum, ns.
    pub took: BTreeMap<u64, (u64, u64)>,
    /// Number of lost records.
    pub lost: u64,
    /// Whether the process ended its recording.
    pub is_whole: bool,
}

/// A recording that no process of deepres wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// A record is cut off, or longer than its chunk.
    Broken,
    /// A shape has not the number that follows the shape before (number found).
    Shape(u64),
    /// A launch has a shape that no record describes (number found).
    Launch(u64),
}

impl From<Broken> for Flaw {
    fn from(_: Broken) -> Self {
        Self::Broken
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken => Broken.fmt(f),
            Self::Shape(number) => write!(f, "a shape has the number {number}"),
            Self::Launch(number) => write!(f, "a launch has the unknown shape {number}"),
        }
    }
}

impl core::error::Error for Flaw {}

/// Reads chunks, up to the first one that is not whole. Returns the processes in the order in which
/// they began to record, and the number of bytes that are left.
///
/// # Errors
/// [`Flaw`] if the records of a whole chunk make no sense.
pub fn read(mut chunks: &[u8]) -> Result<(Vec<Process>, usize), Flaw> {
    let mut processes: BTreeMap<(u64, u32), Process> = BTreeMap::new();
    while let Some((head, records)) = take_chunk(&mut chunks) {
        let process = processes.entry((head.began_ns, head.pid)).or_default();
        process.pid = head.pid;
        process.take_in(head.base_ns, records)?;
    }
    let mut processes: Vec<Process> = processes.into_values().collect();
    for process in &mut processes {
        process.launches.sort_by_key(|launch| launch.at_ns);
        process.copies.sort_unstable();
        process.allocations.sort_unstable();
        process.waits.sort_unstable();
        process.follows.sort_unstable();
    }
    Ok((processes, chunks.len()))
}

/// The purpose of an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The iteration trains: the name of one of its kernels says so.
    Training,
    /// The iteration answers a request: no name says that it trains, and the host waits for the
    /// GPU.
    Inference,
    /// The kernels have no names, or the host never waits.
    Unknown,
}

/// A launch of an iteration, with the facts that the recording has about the launch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// The launch for the search of plans. If its time or width is not known, the search takes the
    /// mean time and all SMs.
    pub kernel: Kernel,
    /// The place of the kernel and its geometry in [`Process::shapes`].
    pub shape: usize,
    /// Whether the time is measured.
    pub has_time: bool,
    /// Whether the width is known.
    pub has_width: bool,
    /// The time before the kernel in which none of the tenant's kernels runs, ns.
    pub idle_ns: u64,
}

/// The iteration of a process.
#[derive(Debug, Clone, PartialEq)]
pub struct Iteration {
    /// The launches, in their order. The first one comes after the longest pause.
    pub steps: Vec<Step>,
    /// The purpose.
    pub purpose: Purpose,
    /// The number of times that the recording has the whole iteration.
    pub repeats: usize,
    /// The number of launches that the repetition explains, of all launches of the recording.
    pub explained: usize,
    /// The time from the beginning of an iteration to the next one, ns: the median.
    pub period_ns: u64,
}

impl Iteration {
    /// Returns the kernels, for the search of plans.
    pub fn kernels(&self) -> Vec<Kernel> {
        self.steps.iter().map(|step| step.kernel).collect()
    }
}

/// Returns the part of the SMs that a kernel uses in the mean over its waves, percent. `at_once`
/// blocks run at once. The last wave can have fewer blocks.
pub fn width_by_waves(blocks: u64, at_once: u64) -> f64 {
    let at_once = at_once.max(1);
    let waves = blocks.div_ceil(at_once).max(1);
    WHOLE_PERCENT * blocks as f64 / (waves as f64 * at_once as f64)
}

/// Returns the number of a shape's blocks; 0 for a graph.
pub fn blocks(shape: &Shape) -> u64 {
    shape.grid.into_iter().map(u64::from).fold(1, u64::saturating_mul)
}

impl Process {
    fn take_in(&mut self, base_ns: u64, mut records: &[u8]) -> Result<(), Flaw> {
        while !records.is_empty() {
            if let Some(record) = take(&mut records)? {
                self.record(base_ns, record)?;
            }
        }
        Ok(())
    }

    fn record(&mut self, base_ns: u64, record: Record<'_>) -> Result<(), Flaw> {
        let at = |at_ns: u64| base_ns.saturating_add(at_ns);
        match record {
            Record::Shape(number, shape) => {
                if number != self.shapes.len() as u64 {
                    return Err(Flaw::Shape(number));
                }
                self.shapes.push(shape);
            }
            Record::Name(function, name) => {
                self.names.insert(function, String::from_utf8_lossy(name).into_owned());
            }
            Record::Launch { is_captured: true, .. } => self.captured += 1,
            Record::Launch { at_ns, thread, shape, stream, .. } => {
                let number = usize::try_from(shape).ok().filter(|number| *number < self.shapes.len());
                let shape = number.ok_or(Flaw::Launch(shape))?;
                self.launches.push(Launched { at_ns: at(at_ns), thread, shape, stream });
            }
            Record::Copy { at_ns, bytes, .. } => self.copies.push((at(at_ns), bytes)),
            Record::Memory { at_ns, bytes, .. } => self.allocations.push((at(at_ns), bytes)),
            Record::Wait { at_ns, lasted_ns, .. } => self.waits.push((at(at_ns), lasted_ns)),
            Record::Follow { at_ns, stream, .. } => self.follows.push((at(at_ns), stream)),
            Record::Resident { function, block, shared_bytes, blocks } => {
                self.resident.insert((function, block, shared_bytes), blocks);
            }
            Record::Took(key, ns) => {
                let (count, sum_ns) = self.took.entry(key).or_default();
                *count += 1;
                *sum_ns = sum_ns.saturating_add(ns);
            }
            Record::Lost(count) => self.lost = self.lost.saturating_add(count),
            Record::End => self.is_whole = true,
        }
        Ok(())
    }

    /// Returns the mean measured time of a shape, ns, if the recording has one.
    fn measured_ns(&self, shape: &Shape) -> Option<u64> {
        self.took.get(&shape.key).map(|(count, sum_ns)| (sum_ns / (*count).max(1)).max(1))
    }

    /// Returns the time of a launch of each shape, ns: the mean of the shape's measured times, or
    /// else the mean of all measured times.
    fn times_ns(&self) -> Vec<u64> {
        let all = self.took.values();
        let (count, sum_ns) =
            all.fold((0u64, 0u64), |(count, sum), (more, ns)| (count + more, sum.saturating_add(*ns)));
        let mean_ns = sum_ns.checked_div(count).map_or(UNKNOWN_NS, |mean_ns| mean_ns.max(1));
        self.shapes.iter().map(|shape| self.measured_ns(shape).unwrap_or(mean_ns)).collect()
    }

    /// Returns each launch with the time since the end of all earlier work, and its own time, ns.
    pub fn paced(&self) -> Vec<(Launched, u64, u64)> {
        let times_ns = self.times_ns();
        let mut done_ns = 0;
        let each = self.launches.iter().map(|launch| {
            let pause_ns = launch.at_ns.saturating_sub(done_ns);
            let took_ns = times_ns.get(launch.shape).copied().unwrap_or(UNKNOWN_NS);
            done_ns = done_ns.max(launch.at_ns).saturating_add(took_ns);
            (*launch, pause_ns, took_ns)
        });
        each.collect()
    }

    /// Returns the part of the SMs that a shape uses, percent, if the recording tells it.
    fn width_percent(&self, shape: &Shape) -> Option<f64> {
        let at_once = self.resident.get(&(shape.function, shape.block, shape.shared_bytes))?;
        Some(width_by_waves(blocks(shape), u64::from(*at_once)))
    }

    /// Returns the iteration of the process, or `None` if its launches do not repeat themselves. If
    /// the recording does not tell the width of a kernel, `width_percent` can tell it.
    pub fn iteration(&self, width_percent: impl Fn(&Shape) -> Option<f64>) -> Option<Iteration> {
        let keys: Vec<u64> = self.launches.iter().map(|launch| launch.shape as u64).collect();
        let found = period::find(&keys)?;
        let length = found.length;
        let times_ns = self.times_ns();
        let gaps = self.gaps(&times_ns);
        let begin = found.last;
        // Each place can be the first one. The longest pause tells where a program begins anew.
        let whole = |first: usize| period::occurrences(&keys, &keys[first..first + length]);
        let from_any = whole(begin);
        let idle_ns: Vec<u64> =
            (0..length).map(|at| median(from_any.iter().map(|first| gaps[first + at].1))).collect();
        let shift = (0..length).max_by_key(|at| (idle_ns[*at], length - at)).unwrap_or(0);
        // The iteration before the last one has the same launches.
        let first = (begin + shift).checked_sub(length).unwrap_or(begin);
        let occurrences = whole(first);
        let joining = self.joining();
        let step = |at: usize| {
            let launch = self.launches[first + at];
            let shape = &self.shapes[launch.shape];
            let width = self.width_percent(shape).or_else(|| width_percent(shape));
            let of_all =
                |of: fn(&(u64, u64)) -> u64| median(occurrences.iter().map(|begin| of(&gaps[begin + at])));
            let (pause_ns, idle_ns) = (of_all(|gap| gap.0), of_all(|gap| gap.1));
            let joins = occurrences.iter().filter(|begin| joining.contains(&(**begin + at))).count();
            Step {
                kernel: Kernel {
                    key: shape.key,
                    duration_ns: times_ns[launch.shape],
                    width_percent: width.unwrap_or(WHOLE_PERCENT),
                    stream: launch.stream,
                    pause_ns: if pause_ns < LEAST_PAUSE_NS { 0 } else { pause_ns },
                    joins: 2 * joins > occurrences.len(),
                },
                shape: launch.shape,
                has_time: self.took.contains_key(&shape.key),
                has_width: width.is_some(),
                idle_ns,
            }
        };
        let begins = occurrences.windows(2).filter(|pair| pair[1] - pair[0] == length);
        let period_ns =
            median(begins.map(|pair| self.launches[pair[1]].at_ns - self.launches[pair[0]].at_ns));
        let steps: Vec<Step> = (0..length).map(step).collect();
        let purpose = self.purpose(&steps, occurrences.len());
        Some(Iteration { steps, purpose, repeats: occurrences.len(), explained: found.explained, period_ns })
    }

    /// Returns for each launch the time since the end of the earlier work of its stream, and since
    /// the end of all earlier work, ns.
    fn gaps(&self, times_ns: &[u64]) -> Vec<(u64, u64)> {
        let mut ends_ns: BTreeMap<u64, u64> = BTreeMap::new();
        let mut all_end_ns = self.launches.first().map_or(0, |launch| launch.at_ns);
        let each = self.launches.iter().map(|launch| {
            let end_ns = ends_ns.entry(launch.stream).or_insert(launch.at_ns);
            let gap = (launch.at_ns.saturating_sub(*end_ns), launch.at_ns.saturating_sub(all_end_ns));
            *end_ns = (*end_ns).max(launch.at_ns).saturating_add(times_ns[launch.shape]);
            all_end_ns = all_end_ns.max(*end_ns);
            gap
        });
        each.collect()
    }

    /// Returns the launches before which their stream waited for an event. A recording does not
    /// tell which work comes before an event. So such a launch counts as one that comes after all
    /// launches before it.
    fn joining(&self) -> BTreeSet<usize> {
        let mut waiting = BTreeSet::new();
        let mut follows = self.follows.iter().peekable();
        let mut joining = BTreeSet::new();
        for (place, launch) in self.launches.iter().enumerate() {
            while let Some((_, stream)) = follows.next_if(|(at_ns, _)| *at_ns <= launch.at_ns) {
                waiting.insert(*stream);
            }
            if waiting.remove(&launch.stream) {
                joining.insert(place);
            }
        }
        joining
    }

    fn purpose(&self, steps: &[Step], repeats: usize) -> Purpose {
        let functions: BTreeSet<u64> = steps.iter().map(|step| self.shapes[step.shape].function).collect();
        let names = functions.iter().filter_map(|function| self.names.get(function));
        let names: Vec<String> = names.map(|name| name.to_ascii_lowercase()).collect();
        let trains = names.iter().any(|name| TRAINING.iter().any(|part| name.contains(part)));
        match trains {
            true => Purpose::Training,
            // A server waits for each of its answers.
            false if !names.is_empty() && self.waits.len() >= repeats => Purpose::Inference,
            false => Purpose::Unknown,
        }
    }
}

/// Returns the middle one of some numbers; 0 of none.
fn median(numbers: impl Iterator<Item = u64>) -> u64 {
    let mut numbers: Vec<u64> = numbers.collect();
    let middle = numbers.len() / 2;
    if numbers.is_empty() {
        return 0;
    }
    *numbers.select_nth_unstable(middle).1
}

/// Returns the bytes of a chunk with these records, as a process writes it.
#[cfg(test)]
fn chunk(records: &[Record<'_>]) -> Vec<u8> {
    use deepres_abi::recording::{CHUNK_MAGIC, checksum};
    let mut bytes = Vec::new();
    records.iter().for_each(|record| record.encode(|part| bytes.extend_from_slice(part)));
    let length = (bytes.len() as u32).to_le_bytes();
    let head = [CHUNK_MAGIC, length, checksum(&bytes).to_le_bytes(), 7u32.to_le_bytes()].concat();
    [head, 5u64.to_le_bytes().into(), 1_000_000u64.to_le_bytes().into(), bytes].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const US: u64 = 1_000;
    const BLOCK: [u32; 3] = [64, 1, 1];

    fn shape(number: u64, blocks: u32) -> Record<'static> {
        let (key, function) = (100 + number, 200 + number);
        let grid = [blocks, 1, 1];
        Record::Shape(number, Shape { key, api: 1, function, grid, block: BLOCK, shared_bytes: 0 })
    }

    fn launch(at_us: u64, shape: u64, stream: u64) -> Record<'static> {
        Record::Launch { at_ns: at_us * US, thread: 1, shape, stream, is_captured: false }
    }

    fn resident(number: u64, blocks: u32) -> Record<'static> {
        Record::Resident { function: 200 + number, block: BLOCK, shared_bytes: 0, blocks }
    }

    fn learn(records: &[Record<'_>]) -> (Process, Iteration) {
        let (processes, left) = read(&chunk(records)).unwrap();
        assert_eq!((processes.len(), left), (1, 0));
        let process = processes.into_iter().next().unwrap();
        let iteration = process.iteration(|_| None).unwrap();
        (process, iteration)
    }

    /// A server: each request has a kernel, two kernels on another stream, and a kernel that waits
    /// for them. Requests come every 2 ms.
    fn server(requests: u64) -> Vec<Record<'static>> {
        let mut records = vec![shape(0, 10), shape(1, 150), shape(2, 1), resident(0, 100), resident(1, 100)];
        records.push(Record::Name(200, b"layer_forward"));
        for number in 0..requests {
            let at_us = 2_000 * number;
            records.extend([launch(at_us, 0, 0), launch(at_us + 1, 1, 9), launch(at_us + 2, 1, 9)]);
            records.push(Record::Follow { at_ns: (at_us + 3) * US, thread: 1, stream: 0 });
            records.extend([launch(at_us + 4, 2, 0)]);
            records.push(Record::Wait { at_ns: (at_us + 5) * US, thread: 1, api: 1, lasted_ns: 500 * US });
        }
        records.extend([
            Record::Took(100, 100 * US),
            Record::Took(101, 200 * US),
            Record::Took(100, 300 * US),
        ]);
        records
    }

    #[test]
    fn a_request_is_learned_with_its_times_widths_streams_and_pauses() {
        let (process, iteration) = learn(&server(8));
        let keys: Vec<u64> = iteration.steps.iter().map(|step| step.kernel.key).collect();
        assert_eq!(keys, [100, 101, 101, 102], "it begins after the longest pause");
        let [first, second, third, last] = &iteration.steps[..] else { panic!("{iteration:?}") };
        assert_eq!((first.kernel.duration_ns, first.has_time), (200 * US, true));
        assert_eq!((second.kernel.duration_ns, second.kernel.stream), (200 * US, 9));
        // All measured times have the mean of 200 us.
        assert_eq!((last.kernel.duration_ns, last.has_time, last.has_width), (200 * US, false, false));
        let widths = [first, second, third, last].map(|step| step.kernel.width_percent);
        assert_eq!(widths, [10.0, 75.0, 75.0, 100.0], "the second wave has half of the blocks");
        // The stream's last kernel ended at 404 us, and the one on the other stream at 401 us.
        assert_eq!((first.kernel.pause_ns, first.idle_ns), (1_600 * US, 1_599 * US));
        assert_eq!((third.kernel.pause_ns, third.idle_ns), (0, 0));
        let joins = [first, second, third, last].map(|step| step.kernel.joins);
        assert_eq!(joins, [false, false, false, true]);
        assert_eq!((iteration.period_ns, iteration.repeats, iteration.explained), (2_000 * US, 8, 32));
        assert_eq!((iteration.purpose, process.lost), (Purpose::Inference, 0));
    }

    #[test]
    fn a_purpose_is_known_by_the_names_of_kernels_alone() {
        let with =
            |name: &'static [u8]| learn(&[server(4), vec![Record::Name(201, name)]].concat()).1.purpose;
        assert_eq!(with(b"void cudnn::bn_bwd_kernel"), Purpose::Training);
        assert_eq!(with(b"FusedAdamMath"), Purpose::Training);
        assert_eq!(with(b"softmax"), Purpose::Inference);
        let nameless: Vec<_> =
            server(4).into_iter().filter(|record| !matches!(record, Record::Name(..))).collect();
        assert_eq!(learn(&nameless).1.purpose, Purpose::Unknown);
    }

    #[test]
    fn widths_count_the_waves() {
        assert_eq!(width_by_waves(50, 100), 50.0);
        assert_eq!(width_by_waves(100, 100), 100.0);
        assert_eq!(width_by_waves(105, 100), 52.5);
        assert!(width_by_waves(0, 0) == 0.0 && width_by_waves(u64::MAX, 0) <= 100.0);
    }

    #[test]
    fn a_recording_that_no_process_of_deepres_wrote_is_refused() {
        let refused = |records: &[Record<'_>]| read(&chunk(records)).unwrap_err();
        assert_eq!(refused(&[shape(1, 1)]), Flaw::Shape(1));
        assert_eq!(refused(&[shape(0, 1), launch(0, 1, 0)]), Flaw::Launch(1));
        assert_eq!(read(b"no chunk at all"), Ok((Vec::new(), 15)));
    }

    proptest! {
        #[test]
        fn any_launches_are_learned_or_refused(
            launches in proptest::collection::vec((0u64..4, 0u64..4, prop_oneof![0u64..9_000, any::<u64>()]), 0..300),
            follows in proptest::collection::vec((any::<u64>(), 0u64..4), 0..9),
            took in proptest::collection::vec((99u64..104, any::<u64>()), 0..9),
        ) {
            let mut records = vec![shape(0, 0), shape(1, u32::MAX), shape(2, 5), shape(3, 9)];
            records.extend([resident(0, 0), resident(1, 1), resident(2, u32::MAX)]);
            records.extend(launches.iter().map(|(shape, stream, at_ns)| Record::Launch {
                at_ns: *at_ns, thread: 1, shape: *shape, stream: *stream, is_captured: false,
            }));
            records.extend(follows.iter().map(|(at_ns, stream)| Record::Follow {
                at_ns: *at_ns, thread: 1, stream: *stream,
            }));
            records.extend(took.iter().map(|(key, ns)| Record::Took(*key, *ns)));
            let (processes, _) = read(&chunk(&records)).unwrap();
            for iteration in processes.iter().filter_map(|process| process.iteration(|_| None)) {
                prop_assert!(iteration.repeats >= 1 && iteration.explained <= launches.len());
                for step in &iteration.steps {
                    prop_assert!((0.0..=100.0).contains(&step.kernel.width_percent), "{step:?}");
                    prop_assert!(step.kernel.duration_ns > 0);
                }
            }
        }
    }
}
