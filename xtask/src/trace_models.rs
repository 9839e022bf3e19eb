//! `cargo xtask trace-models`: records known models in PyTorch on the simulated GPU, for the
//! evaluation of policies.
//!
//! A recording has the script's whole life. A trace here has only the work after the script's
//! pause. Its handles are small numbers, and the cost model gives the time of each kernel.
//! docs/traces.md describes both.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use deepres_abi::recording::{
    CHUNK_MAGIC, ChunkHead, FILE_MAGIC, Head, MAJOR, MAX_CHUNK_BYTES, MAX_RECORD_BYTES, MINOR, Record, Shape,
    checksum, take,
};
use simgpu_engine::Config;
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::build;
use crate::command;
use crate::host::{Device, Host};
use crate::process::Interrupt;
use crate::training::Torch;

/// The script with the models, relative to the workspace.
const SCRIPT: &str = "tests/workloads/python/torch_models.py";
/// The cost model, relative to the workspace.
const COSTS: &str = "tests/workloads/simgpu-models.toml";
/// The folder of the traces, relative to the workspace.
const FOLDER: &str = "tests/eval/traces";
/// The models that the script knows.
const MODELS: [&str; 5] = ["resnet50", "mobilenet_v2", "bert_base", "wav2vec2_base", "decoder"];
/// The work that the script does with a model: training or serving.
const WORK: [&str; 2] = ["train", "infer"];
/// The least length of the script's pause between its warm-up and its work, ns. The pause is a
/// second.
const PAUSE_NS: u64 = 900_000_000;
/// The most bytes of all traces together.
const MOST_BYTES: usize = 5_000_000;
/// The prefix of the names of the stand-ins' kernels.
const STAND_IN: &str = "standin_";

/// Records all models, and writes the traces and their page.
pub fn run() -> Result<()> {
    let artefacts = build::artefacts()?;
    let torch = Torch::new(&artefacts)?;
    let config = crate::workspace().join(COSTS);
    let text = fs::read_to_string(&config).with_context(|| format!("cannot read {}", config.display()))?;
    let costs = Config::parse(&text).with_context(|| format!("in {}", config.display()))?;
    let interrupt = Interrupt::catch()?;
    let recordings = tempfile::tempdir().context("cannot create a temporary directory")?;
    let host = Host::start(&artefacts, Device::Simulated { config: Some(config) }, &interrupt)?;
    let mut traces = Vec::new();
    for (model, work) in MODELS.iter().flat_map(|model| WORK.map(|work| (*model, work))) {
        interrupt.check()?;
        let name = format!("{model}-{work}");
        eprintln!("recording {name}");
        let recording = recordings.path().join(&name);
        let file = recording.to_str().context("the temporary directory's name is not UTF-8")?;
        command::prepare(&mut torch.managed(&host, &["--record", file], SCRIPT, &[model, work]))?;
        let bytes = fs::read(&recording).with_context(|| format!("cannot read {file}"))?;
        let trace = Work::of(&bytes)
            .and_then(|work| work.trace(&costs))
            .with_context(|| format!("in the recording of {name}"))?;
        traces.push((name, trace));
    }
    let bytes: usize = traces.iter().map(|(_, trace)| trace.bytes.len()).sum();
    ensure!(bytes <= MOST_BYTES, "the traces have {bytes} bytes, and {MOST_BYTES} are the most");
    let folder = crate::workspace().join(FOLDER);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let write = |file: PathBuf, content: &[u8]| {
        fs::write(&file, content).with_context(|| format!("cannot write {}", file.display()))
    };
    for (name, trace) in &traces {
        write(folder.join(name).with_extension("trace"), &trace.bytes)?;
    }
    write(folder.join("README.md"), page(&traces).as_bytes())
}

/// A call of the recorded program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Launch { shape: u64, stream: u64, is_captured: bool },
    Copy { api: u16, stream: u64, bytes: u64 },
    Memory { api: u16, bytes: u64 },
    Wait { api: u16, lasted_ns: u64 },
}

/// The calls of a process.
#[derive(Default)]
struct Work {
    shapes: Vec<Shape>,
    /// Names of functions, by handle.
    names: BTreeMap<u64, Vec<u8>>,
    /// Time, thread, and call.
    calls: Vec<(u64, u32, Call)>,
    lost: u64,
}

/// A trace to keep, and its figures.
struct Kept {
    bytes: Vec<u8>,
    launches: usize,
    /// GPU time by the name of the kernel, ns.
    time_ns: BTreeMap<String, u64>,
}

impl Work {
    /// Returns the work after the pause of the recorded process with the most calls.
    fn of(recording: &[u8]) -> Result<Self> {
        let (head, mut rest) = Head::read_from_prefix(recording).ok().context("the file has no head")?;
        ensure!(
            head.magic == FILE_MAGIC && (head.major, head.minor) == (MAJOR, MINOR),
            "the file is no recording of this version"
        );
        let mut processes: BTreeMap<(u64, u32), Self> = BTreeMap::new();
        while let Ok((chunk, after)) = ChunkHead::read_from_prefix(rest) {
            let mut records = after.get(..chunk.bytes as usize).context("the last chunk is cut off")?;
            rest = &after[records.len()..];
            let process = processes.entry((chunk.began_ns, chunk.pid)).or_default();
            while !records.is_empty() {
                if let Some(record) = take(&mut records)? {
                    process.take_in(chunk.base_ns, record);
                }
            }
        }
        let most = processes.into_values().max_by_key(|process| process.calls.len());
        let mut work = most.context("no process was recorded")?;
        ensure!(work.lost == 0, "{} records are lost; record again on a quieter machine", work.lost);
        work.calls.sort_by_key(|(at_ns, ..)| *at_ns);
        work.keep_after_the_pause()?;
        Ok(work)
    }

    fn take_in(&mut self, base_ns: u64, record: Record<'_>) {
        let mut call = |at_ns, thread, call| self.calls.push((base_ns + at_ns, thread, call));
        match record {
            Record::Shape(_, shape) => self.shapes.push(shape),
            Record::Name(function, name) => {
                self.names.insert(function, name.to_vec());
            }
            Record::Launch { at_ns, thread, shape, stream, is_captured } => {
                call(at_ns, thread, Call::Launch { shape, stream, is_captured });
            }
            Record::Copy { at_ns, thread, api, stream, bytes } => {
                call(at_ns, thread, Call::Copy { api, stream, bytes });
            }
            Record::Memory { at_ns, thread, api, bytes } => call(at_ns, thread, Call::Memory { api, bytes }),
            Record::Wait { at_ns, thread, api, lasted_ns } => {
                call(at_ns, thread, Call::Wait { api, lasted_ns });
            }
            Record::Lost(count) => self.lost += count,
            Record::Took(..) | Record::End | Record::Resident { .. } | Record::Follow { .. } => {}
        }
    }

    /// Drops the calls before the last long time without a launch.
    fn keep_after_the_pause(&mut self) -> Result<()> {
        let is_launch = |call: &&(u64, u32, Call)| matches!(call.2, Call::Launch { .. });
        let launches: Vec<u64> = self.calls.iter().filter(is_launch).map(|(at_ns, ..)| *at_ns).collect();
        // The first steps can pause as long, while the driver loads code.
        let last = launches.windows(2).rfind(|pair| pair[1] - pair[0] >= PAUSE_NS);
        let from_ns = last.context("the script's pause is missing")?[0];
        // A wait for the warm-up lasts into the pause. The first copies of the work come at its
        // end.
        self.calls.retain(|(at_ns, ..)| *at_ns > from_ns + PAUSE_NS / 2);
        Ok(())
    }

    /// Returns the trace of the calls, from time 0.
    fn trace(&self, costs: &Config) -> Result<Kept> {
        let began_ns = self.calls.first().context("no call is left")?.0;
        let mut file = File::default();
        let (mut shapes, mut functions) = (Numbers::default(), Numbers::default());
        let (mut threads, mut streams) = (Numbers::default(), Numbers::default());
        let (mut launches, mut time_ns) = (0, BTreeMap::<String, u64>::new());
        let mut known = Vec::new();
        for (at_ns, thread, call) in &self.calls {
            let at_ns = at_ns - began_ns;
            let thread = threads.of((*thread).into()) as u32;
            match *call {
                Call::Launch { shape, stream, is_captured } => {
                    let old = self.shapes.get(shape as usize).context("a launch has an unknown shape")?;
                    let key = shapes.of(shape);
                    if key == known.len() as u64 {
                        let name = self.names.get(&old.function).context("a kernel has no name")?;
                        let text = String::from_utf8_lossy(name).into_owned();
                        let cost = costs.kernel_cost(&text, old.grid, old.block, old.shared_bytes);
                        let ns = cost.duration_ns + costs.launch_overhead_ns;
                        let functions_before = functions.0.len() as u64;
                        let function = functions.of(old.function);
                        if function == functions_before {
                            file.add(&Record::Name(function, name));
                        }
                        file.add(&Record::Shape(key, Shape { key, function, ..old.clone() }));
                        file.add(&Record::Took(key, ns));
                        known.push((text, ns));
                    }
                    let stream = streams.of(stream);
                    file.add(&Record::Launch { at_ns, thread, shape: key, stream, is_captured });
                    let (name, ns) = &known[key as usize];
                    *time_ns.entry(name.clone()).or_default() += ns;
                    launches += 1;
                }
                Call::Copy { api, stream, bytes } => {
                    let stream = streams.of(stream);
                    file.add(&Record::Copy { at_ns, thread, api, stream, bytes });
                }
                Call::Memory { api, bytes } => file.add(&Record::Memory { at_ns, thread, api, bytes }),
                Call::Wait { api, lasted_ns } => {
                    file.add(&Record::Wait { at_ns, thread, api, lasted_ns });
                }
            }
        }
        file.add(&Record::End);
        Ok(Kept { bytes: file.whole(), launches, time_ns })
    }
}

/// Small numbers for handles, in the order of their first use.
#[derive(Default)]
struct Numbers(BTreeMap<u64, u64>);

impl Numbers {
    fn of(&mut self, handle: u64) -> u64 {
        let next = self.0.len() as u64;
        *self.0.entry(handle).or_insert(next)
    }
}

/// A trace in the making.
#[derive(Default)]
struct File {
    chunks: Vec<u8>,
    records: Vec<u8>,
}

impl File {
    fn add(&mut self, record: &Record<'_>) {
        if self.records.len() + 2 * MAX_RECORD_BYTES > MAX_CHUNK_BYTES {
            self.end_chunk();
        }
        record.encode(|part| self.records.extend_from_slice(part));
    }

    fn end_chunk(&mut self) {
        let head = ChunkHead {
            magic: CHUNK_MAGIC,
            bytes: self.records.len() as u32,
            checksum: checksum(&self.records),
            pid: 1,
            began_ns: 0,
            base_ns: 0,
        };
        self.chunks.extend_from_slice(head.as_bytes());
        self.chunks.append(&mut self.records);
    }

    fn whole(mut self) -> Vec<u8> {
        self.end_chunk();
        [Head::CURRENT.as_bytes(), &self.chunks].concat()
    }
}

/// Returns the page about the traces.
fn page(traces: &[(String, Kept)]) -> String {
    let mut page = "# Traces of known models\n\n\
        `cargo xtask trace-models` wrote this folder.\n\
        [docs/traces.md](../../../docs/traces.md#traces-of-known-models) explains the models, the cost\n\
        model and the format. The last column has the kernels of the stand-ins for NVIDIA's libraries,\n\
        whose grids are made up, and their part of the GPU time. All other kernels are PyTorch's own.\n\n\
        | trace | launches | GPU time, ms | kernels with a made-up grid |\n|---|---|---|---|\n"
        .to_owned();
    for (name, trace) in traces {
        let all: u64 = trace.time_ns.values().sum();
        let ours = trace.time_ns.iter().filter(|(kernel, _)| kernel.starts_with(STAND_IN));
        let ours: Vec<String> =
            ours.map(|(kernel, ns)| format!("`{kernel}` {:.0} %", 100.0 * *ns as f64 / all as f64)).collect();
        let _ = writeln!(
            page,
            "| `{name}.trace` | {} | {:.1} | {} |",
            trace.launches,
            all as f64 / 1e6,
            ours.join(", ")
        );
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A recording with two launches before the pause, and one behind it.
    fn recording(pause_ns: u64) -> Vec<u8> {
        let (mut file, at_ns) = (File::default(), 2 * pause_ns);
        let shape = |key, function| Shape {
            key,
            api: 1,
            function,
            grid: [2000, 1, 1],
            block: [256, 1, 1],
            shared_bytes: 0,
        };
        let launch =
            |at_ns, shape| Record::Launch { at_ns, thread: 9, shape, stream: 77, is_captured: false };
        file.add(&Record::Name(500, b"before"));
        file.add(&Record::Name(600, b"standin_after"));
        file.add(&Record::Shape(0, shape(1 << 40, 500)));
        file.add(&launch(0, 0));
        file.add(&launch(at_ns, 0));
        file.add(&Record::Wait { at_ns: at_ns + 1, thread: 9, api: 3, lasted_ns: 4 });
        file.add(&Record::Shape(1, shape(1 << 41, 600)));
        let copy = Record::Copy { at_ns: at_ns + pause_ns - 10, thread: 9, api: 4, stream: 77, bytes: 64 };
        file.add(&copy);
        file.add(&launch(at_ns + pause_ns, 1));
        file.add(&Record::Took(1 << 41, 99));
        file.whole()
    }

    #[test]
    fn a_trace_has_the_work_after_the_pause_with_the_times_of_the_cost_model() {
        let costs = Config::parse("kernel = [{ name = 'standin_*', ns_per_wave = 5000 }]").unwrap();
        let kept = Work::of(&recording(PAUSE_NS)).unwrap().trace(&costs).unwrap();
        let took_ns = 2 * 5000 + costs.launch_overhead_ns;
        assert_eq!(
            (kept.launches, &kept.time_ns),
            (1, &BTreeMap::from([("standin_after".to_owned(), took_ns)]))
        );
        let mut expected = File::default();
        let shape =
            Shape { key: 0, api: 1, function: 0, grid: [2000, 1, 1], block: [256, 1, 1], shared_bytes: 0 };
        expected.add(&Record::Copy { at_ns: 0, thread: 0, api: 4, stream: 0, bytes: 64 });
        expected.add(&Record::Name(0, b"standin_after"));
        expected.add(&Record::Shape(0, shape));
        expected.add(&Record::Took(0, took_ns));
        expected.add(&Record::Launch { at_ns: 10, thread: 0, shape: 0, stream: 0, is_captured: false });
        expected.add(&Record::End);
        assert_eq!(kept.bytes, expected.whole());
        let page = page(&[("model-train".to_owned(), kept)]);
        assert!(page.ends_with("| `model-train.trace` | 1 | 0.0 | `standin_after` 100 % |\n"), "{page}");
    }

    #[test]
    fn a_recording_without_the_pause_is_refused() {
        let error = Work::of(&recording(PAUSE_NS / 3)).err().unwrap().to_string();
        assert!(error.contains("pause is missing"), "{error}");
        assert!(Work::of(b"nothing").is_err());
    }

    #[test]
    fn the_cost_model_is_a_configuration_of_the_simulated_gpu() {
        let text = fs::read_to_string(crate::workspace().join(COSTS)).unwrap();
        let costs = Config::parse(&text).unwrap();
        let product = costs.kernel_cost("standin_cublas_gemm", [32, 32, 64], [256, 1, 1], 0).duration_ns;
        // 4,096 rows, columns and terms: 137 billion operations, at 989 TFLOP/s at best.
        assert!((139_000..600_000).contains(&product), "{product} ns");
    }
}
