//! `cargo xtask compatibility`: lists the programs that have run with deepres, and writes
//! `docs/compatibility.md`.
//!
//! Each row of the page names the test that shows the row's result. The command writes the page
//! after these tests have passed. `cargo xtask test --deep` runs the same tests. `cargo xtask test`
//! runs most of them, and checks that the page matches the rows and the pinned versions.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::test::program::{self, Outcome};
use crate::{build, command};

/// Options of `cargo xtask compatibility`.
#[derive(clap::Args)]
pub struct Options {
    /// Run the frameworks' tests too, which take gigabytes each
    #[arg(long)]
    pub large: bool,
    /// Run nothing, and fail if the page does not match the current rows and versions
    #[arg(long)]
    pub check: bool,
}

/// The place that states a client's version.
enum Version {
    /// A file of Python requirements states the version of the package.
    Pinned { file: &'static str, package: &'static str },
    /// Cargo.lock states the version of the crate.
    Locked(&'static str),
    /// The client comes with the distribution.
    Of(&'static str),
}

/// The part of a client's work that the simulated GPU can run.
#[derive(Clone, Copy)]
enum Reach {
    /// The simulated GPU can run the whole client.
    Whole,
    /// The simulated GPU can run the whole client, which takes gigabytes of disk.
    LargeWhole,
    /// The client up to the end of its look-ups.
    LookUps,
    /// The client up to the end of its look-ups. The client takes gigabytes.
    LargeLookUps,
}

impl Reach {
    fn is_whole(self) -> bool {
        matches!(self, Self::Whole | Self::LargeWhole)
    }

    fn is_large(self) -> bool {
        matches!(self, Self::LargeWhole | Self::LargeLookUps)
    }
}

struct Row {
    client: &'static str,
    version: Version,
    run: &'static str,
    result: &'static str,
    reach: Reach,
    /// The prefix of the names of the end-to-end tests that show the row.
    test: &'static str,
}

const CLIENTS: &str = "requirements-clients.txt";
const TORCH_ALONE: &str = "requirements-torch-alone.txt";
const TORCH: &str = "PyTorch, with [stand-ins](../tests/simgpu/runtime/README.md) for NVIDIA's libraries";
const TENSORFLOW: &str =
    "TensorFlow, with [stand-ins](../tests/simgpu/runtime/README.md) for NVIDIA's libraries";
const OF_TENSORFLOW: Version =
    Version::Pinned { file: "requirements-tensorflow.txt", package: "tensorflow[and-cuda]" };

const ROWS: &[Row] = &[
    Row {
        client: "C programs, linked, by `dlsym` and by `cuGetProcAddress`",
        version: Version::Of("CUDA 13 API"),
        run: "launches of every kind, graphs, both kinds of default stream",
        result: "deepres counts each launch once; the numbers equal those in the simulated GPU's record",
        reach: Reach::Whole,
        test: "ways_in::a_client_is_counted_launch_by_launch_however_it_reaches_the_driver",
    },
    Row {
        client: "tinygrad, with NVIDIA's NVRTC",
        version: Version::Pinned { file: "requirements.txt", package: "tinygrad" },
        run: "a conv net trains while another conv net trains on the same GPU",
        result: "shares by the simulated GPU's record, memory; the same results as without deepres",
        reach: Reach::Whole,
        test: "training::",
    },
    Row {
        client: TORCH,
        version: Version::Pinned { file: TORCH_ALONE, package: "torch" },
        run: "a transformer trains (AdamW, mixed precision, DataLoader), runs out of memory and trains on",
        result: "trains; the same shapes, allocator statistics and errors as without deepres; deepres counts each launch; an allocation above the limit raises `OutOfMemoryError`",
        reach: Reach::Whole,
        test: "torch::pytorch_trains",
    },
    Row {
        client: TORCH,
        version: Version::Pinned { file: TORCH_ALONE, package: "torch" },
        run: "the same training with expandable segments, and with `cudaMallocAsync`",
        result: "trains; the same shapes, allocator statistics and errors as without deepres; deepres counts each launch; an allocation above the limit raises `OutOfMemoryError`",
        reach: Reach::Whole,
        test: "torch::each_allocator",
    },
    Row {
        client: TORCH,
        version: Version::Pinned { file: TORCH_ALONE, package: "torch" },
        run: "a service answers requests with pauses, beside a trainer; trainings end by an exception, by `OutOfMemoryError`, and by SIGTERM with a handler and without",
        result: "the same answers, exit status and errors as without deepres; a job that ended leaves no memory in the ledger",
        reach: Reach::Whole,
        test: "torch::jobs_",
    },
    Row {
        client: TORCH,
        version: Version::Pinned { file: TORCH_ALONE, package: "torch" },
        run: "ResNet-50, an LSTM, attention, CUDA graphs, streams, workers that load data, IPC, fork and spawn, two GPUs",
        result: "the same results as without",
        reach: Reach::Whole,
        test: "torch::the_parts_of_pytorch",
    },
    Row {
        client: TORCH,
        version: Version::Pinned { file: TORCH_ALONE, package: "torch" },
        run: "two ranks train by NCCL, on two GPUs and on one",
        result: "both ranks make all their steps",
        reach: Reach::Whole,
        test: "torch::two_ranks_train",
    },
    Row {
        client: TORCH,
        version: Version::Pinned { file: TORCH_ALONE, package: "torch" },
        run: "`torch.compile` with Triton, by default and with CUDA graphs",
        result: "models are compiled and train as without deepres",
        reach: Reach::LargeWhole,
        test: "torch::compiled_models",
    },
    Row {
        client: TENSORFLOW,
        version: OF_TENSORFLOW,
        run: "Keras trains a conv net with XLA, and attention with mixed precision; runs out of memory and trains on",
        result: "trains; the same shapes, steps and errors as without deepres; an allocation above the limit raises `ResourceExhaustedError`",
        reach: Reach::LargeWhole,
        test: "tensorflow::keras_trains",
    },
    Row {
        client: "numba-cuda",
        version: Version::Pinned { file: CLIENTS, package: "numba-cuda" },
        run: "kernels in two streams, pinned memory, events, allocations until memory runs out",
        result: "deepres counts launches and GPU time; an allocation above the limit raises `CudaAPIError`; every look-up of a hooked function gets the hook",
        reach: Reach::Whole,
        test: "clients::numba",
    },
    Row {
        client: "cuda.bindings with cuda.core",
        version: Version::Pinned { file: CLIENTS, package: "cuda-bindings" },
        run: "kernels in two streams, pinned memory, events, allocations until memory runs out",
        result: "deepres counts launches and GPU time; an allocation above the limit raises `CUDAError`; every look-up of a hooked function gets the hook",
        reach: Reach::Whole,
        test: "clients::cuda_bindings",
    },
    Row {
        client: "PyCUDA",
        version: Version::Pinned { file: "requirements-pycuda.txt", package: "pycuda" },
        run: "kernels in one stream, pinned memory, events, allocations until memory runs out",
        result: "deepres counts launches and GPU time; an allocation above the limit raises `MemoryError`",
        reach: Reach::Whole,
        test: "clients::pycuda",
    },
    Row {
        client: "cudarc (Rust)",
        version: Version::Locked("cudarc"),
        run: "kernels in two streams, pinned memory, events, allocations until memory runs out",
        result: "deepres counts launches and GPU time; an allocation above the limit returns `CUDA_ERROR_OUT_OF_MEMORY`; every look-up of a hooked function gets the hook",
        reach: Reach::Whole,
        test: "clients::cudarc",
    },
    Row {
        client: "nvidia-ml-py",
        version: Version::Pinned { file: CLIENTS, package: "nvidia-ml-py" },
        run: "memory, utilisation and processes, by every version of the calls",
        result: "NVML shows the tenant's own part of the GPU",
        reach: Reach::Whole,
        test: "nvml::",
    },
    Row {
        client: "Python's multiprocessing",
        version: Version::Of("Debian 12"),
        run: "fork, spawn and forkserver",
        result: "each child process gets the same answers of the driver as without deepres",
        reach: Reach::Whole,
        test: "process_life::multiprocessing",
    },
    Row {
        client: "libasan, jemalloc, libfaketime, libeatmydata",
        version: Version::Of("Debian 12"),
        run: "preloaded before and behind deepres",
        result: "both work",
        reach: Reach::Whole,
        test: "loader_life::other_peoples",
    },
    Row {
        client: "podman, with runc",
        version: Version::Of("Debian 12"),
        run: "a container of Debian 11 with namespaces of its own, by CDI",
        result: "runs under its limits; nothing in the image changes",
        reach: Reach::Whole,
        test: "containers::",
    },
    Row {
        client: "programs for musl, and static programs",
        version: Version::Of("musl 1.2"),
        run: "`deepres run`, directly, as a script's interpreter and from a shell",
        result: "the programs run as without deepres, neither metered nor limited; if `deepres run` recognises such a program, it prints a warning",
        reach: Reach::Whole,
        test: "run_command::a_program_that_loads_no_library",
    },
    Row {
        client: "nvcc's static libcudart",
        version: Version::Pinned { file: CLIENTS, package: "nvidia-cuda-nvcc" },
        run: "device count, malloc, launch",
        result: "the program's first call fails, as without deepres",
        reach: Reach::LookUps,
        test: "clients::no_look_up_of_a_static_libcudart",
    },
    Row {
        client: "PyTorch, with NVIDIA's libraries",
        version: Version::Pinned { file: "requirements-torch.txt", package: "torch" },
        run: "import, device query, init, a sum on the GPU and one without",
        result: "the program sees one device, and `cudaGetDeviceCount` fails (named symbol not found); the sum without a GPU is right",
        reach: Reach::LargeLookUps,
        test: "large::torch",
    },
    Row {
        client: "TensorFlow, with NVIDIA's libraries",
        version: OF_TENSORFLOW,
        run: "import, devices, a sum",
        result: "the program sees one device, and `cudaGetDevice` fails (named symbol not found)",
        reach: Reach::LargeLookUps,
        test: "large::tensorflow",
    },
    Row {
        client: "JAX",
        version: Version::Pinned { file: "requirements-jax.txt", package: "jax[cuda13]" },
        run: "import, devices, a sum on the GPU and one without",
        result: "the device's executor cannot be made (named symbol not found); the sum without a GPU is right",
        reach: Reach::LargeLookUps,
        test: "large::jax",
    },
];

const HEAD: &str = "\
# Programs that ran with deepres

Each row of the tables names a program of another maker, unchanged from PyPI, crates.io or Debian,
and the test that runs the program. The column *shown* has the day on which the test last passed
while `cargo xtask compatibility` wrote this page. [clients.md](clients.md) has notes on single
programs.

All programs of the tables ran on the simulated GPU, and none of them on a real GPU yet.
";
const LOOK_UPS: &str = "
## As far as the simulated GPU goes

NVIDIA's runtime library (libcudart) checks that the driver is NVIDIA's. The simulated driver fails
libcudart's check, so programs on NVIDIA's libcudart do no GPU work on the simulated GPU. libcudart
looks up all driver functions before the check. So the tests check two facts. deepres answers each
look-up of a hooked function with the hook. The program prints the same text as without deepres.
";
const WHOLE: &str = "\n## From beginning to end\n";
const TABLE: &str = "\n| client | version | work | result | test | shown |\n|---|---|---|---|---|---|\n";

impl Version {
    fn text(&self) -> Result<String> {
        let read = |path: PathBuf| {
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        match self {
            Self::Of(text) => Ok((*text).to_owned()),
            Self::Pinned { file, package } => {
                let text = read(crate::workspace().join("tests/workloads/python").join(file))?;
                let pin = text.lines().find_map(|line| line.strip_prefix(package)?.strip_prefix("=="));
                pin.map(str::to_owned).with_context(|| format!("{file} pins no {package}"))
            }
            Self::Locked(package) => {
                let text = read(crate::workspace().join("Cargo.lock"))?;
                let mut lines = text.lines().skip_while(|line| *line != format!("name = \"{package}\""));
                let version =
                    lines.nth(1).and_then(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
                version.map(str::to_owned).with_context(|| format!("Cargo.lock has no {package}"))
            }
        }
    }
}

impl Row {
    /// Returns the row's line of the table without the last column. The last column is the day of
    /// the row's last pass.
    fn begins(&self) -> Result<String> {
        let deep = if self.is_deep()? { " (`cargo xtask test --deep`)" } else { "" };
        let version = self.version.text()?;
        Ok(format!(
            "| {} | {version} | {} | {} | `{}`{deep} |",
            self.client, self.run, self.result, self.test
        ))
    }

    /// Returns whether only the deep track runs a test of the row, by the attributes of the tests.
    fn is_deep(&self) -> Result<bool> {
        let (text, name) = self.source()?;
        let mut is_ignored = false;
        for line in text.lines().map(str::trim_start) {
            if line.starts_with("#[") {
                is_ignored |= line.starts_with("#[ignore");
            } else if is_ignored && line.starts_with(&name) {
                return Ok(true);
            } else {
                is_ignored = false;
            }
        }
        Ok(false)
    }

    /// Returns the text of the file with the row's tests, and the beginning of the tests' lines.
    fn source(&self) -> Result<(String, String)> {
        let (module, name) = self.test.split_once("::").context("a row's test is in a module")?;
        let path = crate::workspace().join("tests/e2e/tests/e2e").join(module).with_extension("rs");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok((text, format!("fn {name}")))
    }

    /// Returns the day of the row's last pass, from a page that contains the row.
    fn day<'p>(&self, page: &'p str) -> Result<&'p str> {
        let begins = self.begins()?;
        let day = page.lines().find_map(|line| line.strip_prefix(&begins)?.strip_suffix('|'));
        day.map(str::trim).with_context(|| {
            let large = if self.reach.is_large() { " --large" } else { "" };
            format!(
                "the page has no row for `{}` as it is now; run `cargo xtask compatibility{large}`",
                self.client
            )
        })
    }
}

/// Returns the page's text. `day` returns the day of each row's last pass.
fn page<'d>(day: impl Fn(&Row) -> Result<&'d str>) -> Result<String> {
    let mut page = HEAD.to_owned();
    for (heading, is_whole) in [(WHOLE, true), (LOOK_UPS, false)] {
        page += heading;
        page += TABLE;
        for row in ROWS.iter().filter(|row| row.reach.is_whole() == is_whole) {
            writeln!(page, "{} {} |", row.begins()?, day(row)?)?;
        }
    }
    Ok(page)
}

/// Runs the tests that the rows name and writes the page, or checks the page.
pub fn run(options: &Options) -> Result<()> {
    let path = crate::workspace().join("docs/compatibility.md");
    let found = fs::read_to_string(&path).unwrap_or_default();
    if options.check {
        let page = page(|row| row.day(&found))?;
        ensure!(found == page, "{} is not up to date; run `cargo xtask compatibility`", path.display());
        return Ok(());
    }
    let is_run = |row: &Row| !row.reach.is_large() || options.large;
    // If this run leaves a row's test out, the page must have the row unchanged.
    for row in ROWS.iter().filter(|row| !is_run(row)) {
        row.day(&found)?;
    }
    let artefacts = build::artefacts()?;
    for row in ROWS.iter().filter(|row| is_run(row)) {
        let mut tests = build::cargo();
        tests.args([
            "test",
            "--package",
            "deepres-e2e",
            "--test",
            "e2e",
            row.test,
            "--",
            "--include-ignored",
        ]);
        tests.env("DEEPRES_ARTEFACTS", artefacts.folder());
        let Outcome { status, output, .. } = program::run(&mut tests)?;
        let ran = output.lines().filter(|line| line.starts_with("test ") && line.ends_with("... ok")).count();
        if !status.success() || ran == 0 {
            bail!(
                "`{}` is not shown, because a test failed or none ran ({ran} passed): {}",
                row.client,
                command::shown(&tests)
            );
        }
    }
    let today = command::output(Command::new("date").args(["--utc", "+%F"]))?;
    let page = page(|row| if is_run(row) { Ok(today.trim()) } else { row.day(&found) })?;
    fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_changed_is_not_taken_for_shown() {
        let shown = page(|_| Ok("2026-01-02")).unwrap();
        let large = ROWS.iter().find(|row| row.reach.is_large()).unwrap();
        assert_eq!(large.day(&shown).unwrap(), "2026-01-02");
        assert_eq!(page(|row| row.day(&shown)).unwrap(), shown);
        let version = large.version.text().unwrap();
        assert!(large.day(&shown.replace(&version, "0.1")).is_err());
    }

    #[test]
    fn a_row_whose_test_the_quick_track_leaves_out_says_so() {
        let says_so = |client: &str| {
            let row = ROWS.iter().find(|row| row.client == client).unwrap();
            row.begins().unwrap().ends_with("(`cargo xtask test --deep`) |")
        };
        assert!(says_so("PyCUDA"));
        assert!(!says_so("numba-cuda"));
    }

    #[test]
    fn every_row_has_a_version_and_a_test() {
        for row in ROWS {
            assert!(!row.version.text().unwrap().is_empty());
            let (text, test) = row.source().unwrap();
            assert!(text.lines().any(|line| line.trim_start().starts_with(&test)), "{}", row.test);
        }
    }
}
