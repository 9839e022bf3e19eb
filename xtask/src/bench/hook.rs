//! `cargo xtask bench hook`: nanoseconds that hooks add to a driver call.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::median;
use crate::host::{Device, Host};
use crate::process::{Interrupt, Running};
use crate::{build, command};

/// The calls measured, in order of report.
const APIS: &[&str] =
    &["cuLaunchKernel", "cuLaunchKernelEx", "cuMemAlloc+Free", "cuMemGetInfo", "cuGraphLaunch"];
/// The tenant that the client runs as.
const TENANT: &str = "bench";
/// Kernels that the client launches in one run, warm-ups included: the daemon's meter must have seen them all.
const KERNEL_LAUNCHES: u64 = 2 * 1_100_000;

/// Options of `cargo xtask bench hook`.
#[derive(clap::Args)]
pub struct Options {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// How often to measure each of bare and hooked.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

#[derive(Serialize)]
struct Report {
    apis: Vec<Api>,
}

#[derive(Serialize)]
struct Api {
    name: &'static str,
    bare_ns: f64,
    hooked_ns: f64,
    added_ns: f64,
}

/// What one run of the client found.
#[derive(Deserialize)]
struct Run {
    /// The file that the address of cuLaunchKernel lies in.
    hooked_by: PathBuf,
    #[serde(flatten)]
    mean_ns: BTreeMap<String, f64>,
}

/// Measures and prints.
pub fn run(options: &Options) -> Result<()> {
    let artefacts = build::artefacts()?;
    let (client, driver) = stub()?;
    let interrupt = Interrupt::catch()?;
    let host = Host::start(&artefacts, Device::Simulated { config: None }, &interrupt)?;
    let uuid = host.ps()?.gpus.first().context("the daemon knows no GPU")?.uuid.clone();
    let uuid: String = uuid.trim_start_matches("GPU-").replace('-', "");

    let (mut bare, mut hooked) = (BTreeMap::<String, Vec<f64>>::new(), BTreeMap::<String, Vec<f64>>::new());
    for round in 1..=options.rounds {
        interrupt.check()?;
        let mut plain = Command::new(&client);
        plain.env("LD_LIBRARY_PATH", &driver);
        let run = measure(&mut plain, &uuid, |_| Ok(()))?;
        ensure!(run.hooked_by.starts_with(&driver), "the bare run is hooked by {}", run.hooked_by.display());
        collect(&mut bare, run);

        interrupt.check()?;
        let mut preloaded = host.deepres(&[&driver]);
        preloaded.args(["run", "--name", TENANT, "--"]).arg(&client);
        let run = measure(&mut preloaded, &uuid, |run| seen_by_daemon(&host, run, round))?;
        collect(&mut hooked, run);
        eprintln!("round {round} of {}", options.rounds);
    }

    let apis = APIS.iter().map(|&name| {
        let of = |runs: &mut BTreeMap<String, Vec<f64>>| runs.get_mut(name).map(|values| median(values));
        let (bare_ns, hooked_ns) =
            of(&mut bare).zip(of(&mut hooked)).with_context(|| format!("no figure for {name}"))?;
        Ok(Api { name, bare_ns, hooked_ns, added_ns: hooked_ns - bare_ns })
    });
    let report = Report { apis: apis.collect::<Result<_>>()? };
    if options.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{:<18} {:>9} {:>10} {:>9}", "call", "bare ns", "hooked ns", "added ns");
        for api in &report.apis {
            println!("{:<18} {:>9.1} {:>10.1} {:>9.1}", api.name, api.bare_ns, api.hooked_ns, api.added_ns);
        }
    }
    Ok(())
}

/// Builds the stub driver and its client; returns the client and the folder of the driver.
fn stub() -> Result<(PathBuf, PathBuf)> {
    let mut cargo = build::cargo();
    command::run(cargo.args(["build", "--release", "--package", "deepres-stub-driver"]))?;
    let built = build::target().join("release");
    let folder = build::target().join("deepres/stub");
    build::install(&built.join("libstub_cuda.so"), &folder.join("libcuda.so.1"))?;
    Ok((built.join("stub-client"), folder))
}

/// Runs the client; `look` sees its figures while it is still alive.
fn measure(command: &mut Command, uuid: &str, look: impl FnOnce(&Run) -> Result<()>) -> Result<Run> {
    command.env("STUB_DRIVER_UUID", uuid).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut running = Running::start(command)?;
    let output = running.child().stdout.take().context("the output was piped")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    if line.is_empty() {
        bail!("said nothing: {}", running.shown());
    }
    let run: Run = serde_json::from_str(&line)
        .with_context(|| format!("not understood: {line} from {}", running.shown()))?;
    look(&run)?;
    // The client ends when its standard input does.
    drop(running.child().stdin.take());
    running.finish()?;
    Ok(run)
}

/// Requires that the run went through our library and that the daemon metered it: else the figures mean nothing.
fn seen_by_daemon(host: &Host, run: &Run, round: u32) -> Result<()> {
    ensure!(
        run.hooked_by.file_name() == Some(Path::new("libdeepres.so").as_os_str()),
        "the hooked run's cuLaunchKernel is in {}",
        run.hooked_by.display()
    );
    let ps = host.ps()?;
    let launches = ps.on_first_gpu(TENANT).map_or(0, |(_, gpu)| gpu.kernel_launches);
    let expected = KERNEL_LAUNCHES * u64::from(round);
    ensure!(launches >= expected, "the daemon has seen {launches} launches of {expected}");
    Ok(())
}

fn collect(runs: &mut BTreeMap<String, Vec<f64>>, run: Run) {
    for (name, ns) in run.mean_ns {
        runs.entry(name).or_default().push(ns);
    }
}
