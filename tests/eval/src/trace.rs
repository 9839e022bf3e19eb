//! A recorded trace as a workload. Reads the file of `deepres run --record` and cuts the recorded
//! run into work and pauses (docs/traces.md).

use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use deepres_abi::recording::{FILE_MAGIC, Head, MAJOR, Shape};
use deepres_policy::granularity::Kernel;
pub use deepres_policy::granularity::recorded::Process;
use deepres_policy::granularity::recorded::{self, LEAST_PAUSE_NS, blocks};
use zerocopy::FromBytes as _;

/// The most kernels in one batch.
const MOST_KERNELS: usize = 100_000;
/// The largest file that the evaluation reads, bytes. Such a file holds more launches than a
/// scenario may have, and a machine has memory for the file's content.
const MOST_BYTES: u64 = 1 << 30;

/// The content of a whole file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    /// Processes in the order in which they began to record.
    pub processes: Vec<Process>,
    /// Bytes at the end that are no whole chunk, because the writer died.
    pub torn_bytes: usize,
}

/// Kernels that become available together, after a pause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    /// Time since the end of the earlier work, ns.
    pub pause_ns: u64,
    /// Time of each kernel, ns.
    pub kernels_ns: Vec<u64>,
}

impl Trace {
    /// Reads a file.
    ///
    /// # Errors
    /// The file is no trace, is too large, or has another major version.
    pub fn read(file: &Path) -> Result<Self> {
        let bytes = read_file(file, MOST_BYTES, "record a minute or two of what is typical")
            .with_context(|| format!("cannot read the trace {}", file.display()))?;
        Self::parse(&bytes).with_context(|| format!("in the trace {}", file.display()))
    }

    /// Reads a file's bytes up to the first chunk that is not whole.
    ///
    /// # Errors
    /// The bytes are no trace, or a trace of another major version.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let (head, chunks) = Head::read_from_prefix(bytes)
            .ok()
            .context("this is no trace: it is shorter than a trace's head")?;
        ensure!(head.magic == FILE_MAGIC, "this is no trace: `deepres run --record FILE` makes one");
        ensure!(
            head.major == MAJOR,
            "a trace of version {}, and this release reads version {MAJOR}",
            head.major
        );
        let (processes, torn_bytes) = recorded::read(chunks)?;
        Ok(Self { processes, torn_bytes })
    }

    /// Returns the defects of the trace that do not prevent reading the rest.
    pub fn flaws(&self) -> Vec<String> {
        let mut flaws = Vec::new();
        if self.torn_bytes > 0 {
            flaws.push(format!("its last {} bytes are torn: the writer died", self.torn_bytes));
        }
        for process in &self.processes {
            if process.lost > 0 {
                flaws.push(format!(
                    "process {} lost {} records: what it did is not all here",
                    process.pid, process.lost
                ));
            }
            if !process.is_whole {
                flaws.push(format!(
                    "process {} did not end its recording: it was killed, or still runs",
                    process.pid
                ));
            }
        }
        flaws
    }

    /// Returns the work of the process with the most launches, in stretches.
    ///
    /// # Errors
    /// No kernel of the trace ran.
    pub fn stretches(&self) -> Result<Vec<Stretch>> {
        let stretches = self.busiest().map(stretches).unwrap_or_default();
        if stretches.is_empty() {
            // Missing data can be the reason, so the error names the defects.
            let flaws = self.flaws().into_iter().map(|flaw| format!("; {flaw}")).collect::<String>();
            bail!("no kernel was launched in it{flaws}");
        }
        Ok(stretches)
    }

    /// Returns the iteration of the process with the most launches. If the trace does not tell the
    /// width of a kernel, the kernel has the width that it has on an H200. Returns nothing if the
    /// process does not repeat itself.
    pub fn iteration(&self) -> Option<Vec<Kernel>> {
        Some(self.busiest()?.iteration(width_percent)?.kernels())
    }

    fn busiest(&self) -> Option<&Process> {
        self.processes.iter().max_by_key(|process| process.launches.len())
    }
}

/// Returns the part of the SMs of an H200 that a kernel's blocks can use, percent. The function
/// serves kernels for which the trace does not tell how many blocks run at once. It counts only
/// blocks and their threads, because the trace does not have the kernel's registers. Returns `None`
/// for a graph.
fn width_percent(shape: &Shape) -> Option<f64> {
    /// SMs of the GPU, and the most threads and blocks on each of them.
    const SMS: f64 = 132.0;
    const THREADS: f64 = 2048.0;
    const BLOCKS: f64 = 32.0;
    let threads = shape.block.into_iter().map(f64::from).product::<f64>();
    let blocks = blocks(shape) as f64;
    if blocks == 0.0 || threads == 0.0 {
        return None;
    }
    let at_once = SMS * (THREADS / threads).floor().clamp(1.0, BLOCKS);
    Some(100.0 * (blocks / at_once).min(1.0))
}

/// Returns a process's work in stretches. A launch begins a new stretch if the GPU has been idle
/// for a while.
fn stretches(process: &Process) -> Vec<Stretch> {
    let mut stretches: Vec<Stretch> = Vec::new();
    for (_, pause_ns, took_ns) in process.paced() {
        match stretches.last_mut() {
            Some(last) if pause_ns < LEAST_PAUSE_NS && last.kernels_ns.len() < MOST_KERNELS => {
                last.kernels_ns.push(took_ns);
            }
            last => {
                let pause_ns = if last.is_none() { 0 } else { pause_ns };
                stretches.push(Stretch { pause_ns, kernels_ns: vec![took_ns] });
            }
        }
    }
    stretches
}

/// Reads a regular file's bytes. Refuses pipes and devices, because they may never end.
fn read_file(file: &Path, most_bytes: u64, remedy: &str) -> Result<Vec<u8>> {
    let found = std::fs::metadata(file)?;
    ensure!(found.is_dir() || found.is_file(), "it is no regular file");
    ensure!(
        found.len() <= most_bytes,
        "it has {} bytes, and {most_bytes} are the most: {remedy}",
        found.len()
    );
    Ok(std::fs::read(file)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_abi::recording::{CHUNK_MAGIC, ChunkHead, Record, checksum};
    use proptest::prelude::*;
    use zerocopy::IntoBytes as _;

    fn bytes_of(record: &Record<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        record.encode(|part| bytes.extend_from_slice(part));
        bytes
    }

    fn chunk(records: &[Vec<u8>]) -> Vec<u8> {
        let records = records.concat();
        let head = ChunkHead {
            magic: CHUNK_MAGIC,
            bytes: records.len() as u32,
            checksum: checksum(&records),
            pid: 7,
            began_ns: 5,
            base_ns: 1_000_000,
        };
        [head.as_bytes(), &records].concat()
    }

    fn launch(at_ns: u64, is_captured: bool) -> Vec<u8> {
        bytes_of(&Record::Launch { at_ns, thread: 1, shape: 0, stream: 0, is_captured })
    }

    fn example() -> (Vec<u8>, Vec<u8>) {
        let shape =
            Shape { key: 99, api: 1, function: 2, grid: [3, 1, 1], block: [64, 1, 1], shared_bytes: 0 };
        let first = chunk(&[
            bytes_of(&Record::Shape(0, shape)),
            launch(0, false),
            launch(10, false),
            // A record of a later minor version.
            vec![4, 200, 1, 2, 3],
            bytes_of(&Record::Took(99, 100_000)),
        ]);
        let second = chunk(&[
            launch(5_000_000, false),
            launch(5_000_000, true),
            bytes_of(&Record::Lost(4)),
            bytes_of(&Record::End),
        ]);
        (first, second)
    }

    fn file(chunks: &[&[u8]]) -> Vec<u8> {
        [&[Head::CURRENT.as_bytes()][..], chunks].concat().concat()
    }

    #[test]
    fn launches_that_follow_each_other_are_one_stretch_and_a_pause_begins_the_next() {
        let (first, second) = example();
        let trace = Trace::parse(&file(&[&first, &second])).unwrap();
        let process = &trace.processes[0];
        assert_eq!((process.lost, process.captured, process.is_whole, trace.torn_bytes), (4, 1, true, 0));
        assert_eq!(trace.flaws(), ["process 7 lost 4 records: what it did is not all here"]);
        let cut = Trace::parse(&file(&[&first, &second[..9]])).unwrap().flaws();
        assert!(
            cut.len() == 2 && cut[0].contains("9 bytes are torn") && cut[1].contains("did not end"),
            "{cut:?}"
        );
        let stretches = trace.stretches().unwrap();
        assert_eq!(
            stretches,
            [
                Stretch { pause_ns: 0, kernels_ns: vec![100_000; 2] },
                Stretch { pause_ns: 4_800_000, kernels_ns: vec![100_000] },
            ]
        );
    }

    #[test]
    fn a_file_that_was_cut_anywhere_is_read_up_to_the_last_whole_chunk() {
        let (first, second) = example();
        let whole = file(&[&first, &second]);
        let head = Head::CURRENT.as_bytes().len();
        for end in 0..whole.len() {
            match Trace::parse(&whole[..end]) {
                Err(_) => assert!(end < head),
                Ok(trace) => {
                    let launches = trace.processes.first().map_or(0, |process| process.launches.len());
                    assert_eq!(launches, if end < head + first.len() { 0 } else { 2 }, "cut at {end}");
                }
            }
        }
    }

    #[test]
    fn a_trace_of_which_nothing_is_left_says_what_is_missing() {
        let (first, _) = example();
        let torn = Trace::parse(&file(&[&first[..20]])).unwrap();
        let error = torn.stretches().unwrap_err().to_string();
        assert_eq!(error, "no kernel was launched in it; its last 20 bytes are torn: the writer died");
    }

    /// `cargo xtask trace-models` writes these traces.
    #[test]
    fn the_traces_of_known_models_are_whole_small_workloads() {
        const MOST_BYTES: u64 = 5_000_000;
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces");
        let (mut bytes, mut models) = (0, 0);
        for file in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if file.extension().is_none_or(|extension| extension != "trace") {
                continue;
            }
            models += 1;
            bytes += std::fs::metadata(&file).unwrap().len();
            let trace = Trace::read(&file).unwrap();
            let [process] = &*trace.processes else { panic!("{} has one process", file.display()) };
            assert_eq!(trace.flaws(), Vec::<String>::new(), "{}", file.display());
            for shape in &process.shapes {
                let (name, took) = (process.names.get(&shape.function), process.took.get(&shape.key));
                assert!(name.is_some() && took.is_some(), "{}: {shape:?}", file.display());
            }
            let stretches = trace.stretches().unwrap();
            let launches: usize = stretches.iter().map(|stretch| stretch.kernels_ns.len()).sum();
            assert_eq!(launches, process.launches.len());
            assert!(launches >= 500 && stretches.len() > 1, "{}: {launches} launches", file.display());
        }
        assert_eq!(models, 10);
        assert!(bytes <= MOST_BYTES, "{bytes} bytes");
    }

    #[test]
    fn a_file_that_may_not_end_or_is_too_large_is_not_read() {
        let says = |file: &Path| format!("{:#}", Trace::read(file).unwrap_err());
        assert!(says(Path::new("/dev/zero")).contains("no regular file"), "{}", says(Path::new("/dev/zero")));
        let folder = tempfile::tempdir().unwrap();
        let large = folder.path().join("large.trace");
        std::fs::File::create(&large).unwrap().set_len(MOST_BYTES + 1).unwrap();
        assert!(says(&large).contains("1073741824 are the most"), "{}", says(&large));
    }

    #[test]
    fn a_file_that_is_no_trace_is_refused_and_a_broken_trace_breaks_nothing() {
        assert!(Trace::parse(b"").is_err() && Trace::parse(&[7; 64]).is_err());
        let mut newer = Head::CURRENT;
        newer.major += 1;
        assert!(Trace::parse(newer.as_bytes()).unwrap_err().to_string().contains("version 3"));
        let (first, second) = example();
        let whole = file(&[&first, &second]);
        for at in 0..whole.len() {
            let mut broken = whole.clone();
            broken[at] ^= 0x55;
            let _ = Trace::parse(&broken).map(|trace| trace.stretches().is_ok());
        }
        assert!(Trace::parse(&file(&[])).unwrap().stretches().is_err());
    }

    fn any_record() -> impl Strategy<Value = Vec<u8>> {
        let number = || prop_oneof![0..4u64, any::<u64>()];
        let numbers = || (number(), number(), number(), any::<u32>(), any::<bool>());
        prop_oneof![
            numbers().prop_map(|(shape, key, function, api, _)| {
                let shared_bytes = api;
                let (grid, block) = ([api; 3], [1; 3]);
                let of = Shape { key, api: api as u16, function, grid, block, shared_bytes };
                bytes_of(&Record::Shape(shape, of))
            }),
            numbers().prop_map(|(at_ns, shape, stream, thread, is_captured)| {
                bytes_of(&Record::Launch { at_ns, thread, shape, stream, is_captured })
            }),
            numbers().prop_map(|(at_ns, lasted_ns, _, thread, _)| {
                bytes_of(&Record::Wait { at_ns, thread, api: thread as u16, lasted_ns })
            }),
            (number(), number()).prop_map(|(key, ns)| bytes_of(&Record::Took(key, ns))),
            number().prop_map(|count| bytes_of(&Record::Lost(count))),
            // Bytes that can be any record, or no record.
            prop::collection::vec(0..12u8, 1..20).prop_map(|body| {
                let mut record = vec![body.len() as u8];
                record.extend(body);
                record
            }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), keeps_head in any::<bool>()) {
            let bytes = if keeps_head { file(&[&bytes]) } else { bytes };
            let _ = Trace::parse(&bytes).map(|trace| trace.stretches().is_ok());
        }

        #[test]
        fn any_records_in_whole_chunks_are_read_or_refused(chunks in prop::collection::vec(prop::collection::vec(any_record(), 0..12), 0..4)) {
            let chunks: Vec<Vec<u8>> = chunks.iter().map(|records| chunk(records)).collect();
            let chunks: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
            if let Ok(trace) = Trace::parse(&file(&chunks)) {
                prop_assert_eq!(trace.torn_bytes, 0);
                let stretches = trace.stretches().unwrap_or_default();
                prop_assert!(stretches.iter().all(|stretch| stretch.kernels_ns.iter().all(|ns| *ns > 0)));
            }
        }
    }
}
