//! `cargo xtask bench hook`: the time and the instructions that hooks add to a driver call.

mod bursts;
mod instructions;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use self::bursts::Bursts;
use super::median;
use crate::build::Artefacts;
use crate::host::{Device, Host};
use crate::process::{Interrupt, Running};
use crate::{build, command};

/// Name of the pair of an allocation and its free.
const ALLOCATION: &str = "cuMemAlloc+Free";
/// The measured calls, in the order of the report, and the most time that hooks may add to each,
/// ns. The last function has no hook.
const APIS: &[(&str, f64)] = &[
    ("cuLaunchKernel", 20.0),
    ("cuLaunchKernelEx", 20.0),
    (ALLOCATION, 100.0),
    ("cuMemGetInfo", 20.0),
    ("cuGraphLaunch", 40.0),
    ("cuCtxGetDevice", 1.0),
];
/// The least scaling of launches by two threads, relative to the bare driver.
const LEAST_SCALE_RATIO: f64 = 0.97;
/// The name of the client's tenant.
const TENANT: &str = "bench";
/// The memory limit of the client's tenant.
const MEMORY: &str = "16GiB";
/// Number of kernels that the client launches one by one in a run, warm-ups included. The daemon's
/// meter must show all of them.
const KERNEL_LAUNCHES: u64 = 2 * 10_100_000;

/// Options of `cargo xtask bench hook`.
#[derive(clap::Args)]
pub struct Options {
    /// Number of runs of bare and of hooked, each with ten million calls of each function
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Count instructions alone, for a machine too busy to measure times
    #[arg(long)]
    instructions: bool,
}

#[derive(Serialize)]
struct Report {
    /// Time that hooks add to a kernel launch while the gate is open, ns.
    added_ns: Option<f64>,
    /// Figures of launches under a lease.
    #[serde(flatten)]
    bursts: Option<Bursts>,
    apis: Vec<Api>,
    /// Launch rate of two threads, divided by twice the rate of one thread. `None` if the benchmark
    /// took no times.
    scale: Option<Scale>,
    /// The tool that counted the instructions, or the reason for which there is no count.
    instructions_by: &'static str,
}

#[derive(Serialize)]
struct Api {
    name: &'static str,
    bare_ns: Option<f64>,
    hooked_ns: Option<f64>,
    added_ns: Option<f64>,
    hooked_instructions: Option<f64>,
    added_instructions: Option<f64>,
}

/// The time (ns) or the instructions of one call: without the interposer, with the interposer, and
/// the difference.
#[derive(Clone, Copy)]
struct Figures {
    bare: f64,
    hooked: f64,
    added: f64,
}

#[derive(Serialize)]
struct Scale {
    bare: f64,
    hooked: f64,
    /// Scaling under hooks, divided by the scaling of the bare driver.
    ratio: f64,
}

impl Figures {
    fn new(bare: f64, hooked: f64) -> Self {
        Self { bare, hooked, added: hooked - bare }
    }
}

/// Figures of one run of the client.
#[derive(Deserialize)]
struct Run {
    /// The file that contains the address of cuLaunchKernel in the client.
    hooked_by: PathBuf,
    scale: f64,
    #[serde(flatten)]
    mean_ns: BTreeMap<String, f64>,
}

/// The parts of the benchmark: the stub driver, the client program that calls it, and a running
/// daemon that manages the stub's GPU.
struct Bench {
    artefacts: Artefacts,
    host: Host,
    client: PathBuf,
    driver: PathBuf,
    uuid: String,
    interrupt: Interrupt,
}

/// Returns the time of an allocation with its free, ns: first without the interposer, then with the
/// interposer under a memory limit.
pub fn allocation(rounds: u32) -> Result<(f64, f64)> {
    let (times, _) = Bench::start()?.times(rounds)?;
    let figures = times.get(ALLOCATION).with_context(|| format!("no figure for {ALLOCATION}"))?;
    Ok((figures.bare, figures.hooked))
}

/// Measures all calls, and returns the figures.
pub fn run(options: &Options) -> Result<impl super::Report> {
    let bench = Bench::start()?;
    let times = if options.instructions { None } else { Some(bench.times(options.rounds)?) };
    let can_count = instructions::is_available();
    let apis = APIS.iter().map(|&(name, _)| {
        let time = match &times {
            Some((times, _)) => Some(*times.get(name).with_context(|| format!("no figure for {name}"))?),
            None => None,
        };
        let instructions = if can_count { Some(bench.instructions(name)?) } else { None };
        Ok(Api {
            name,
            bare_ns: time.map(|time| time.bare),
            hooked_ns: time.map(|time| time.hooked),
            added_ns: time.map(|time| time.added),
            hooked_instructions: instructions.map(|counted| counted.hooked),
            added_instructions: instructions.map(|counted| counted.added),
        })
    });
    let apis: Vec<Api> = apis.collect::<Result<_>>()?;
    let added_ns = apis.first().and_then(|launch| launch.added_ns);
    let bursts = if options.instructions { None } else { Some(bench.bursts(options.rounds)?) };
    let instructions_by = if can_count { "callgrind" } else { "skipped: valgrind is not installed" };
    let scale = times.map(|(_, scale)| scale);
    Ok(Report { added_ns, bursts, apis, scale, instructions_by })
}

impl super::Report for Report {
    fn bars(&self) -> Vec<(String, bool)> {
        let added = self.apis.iter().zip(APIS).map(|(api, (name, most_ns))| {
            let holds = api.added_ns.is_some_and(|added_ns| added_ns <= *most_ns);
            (format!("{name} takes at most {most_ns} ns more"), holds)
        });
        let scales = self.scale.as_ref().is_some_and(|scale| scale.ratio >= LEAST_SCALE_RATIO);
        let scales = (format!("two threads scale to {LEAST_SCALE_RATIO} of the bare driver"), scales);
        added.chain([scales]).chain(bursts::bars(self.bursts.as_ref())).collect()
    }

    fn print(&self) {
        println!(
            "{:<18} {:>9} {:>10} {:>9} {:>13} {:>7}",
            "call", "bare ns", "hooked ns", "added ns", "instructions", "added"
        );
        for api in &self.apis {
            let with = |figure: Option<f64>, digits: usize| {
                figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.digits$}"))
            };
            println!(
                "{:<18} {:>9} {:>10} {:>9} {:>13} {:>7}",
                api.name,
                with(api.bare_ns, 1),
                with(api.hooked_ns, 1),
                with(api.added_ns, 1),
                with(api.hooked_instructions, 0),
                with(api.added_instructions, 0)
            );
        }
        if let Some(bursts) = &self.bursts {
            println!(
                "a launch of a burst: added {:.1} ns under a lease and {:.1} ns without a daemon; {:.3} event records under a lease",
                bursts.added_contended_ns, bursts.added_standalone_ns, bursts.records_per_launch_contended
            );
        }
        if let Some(scale) = &self.scale {
            println!(
                "two threads launch {:.2} times twice the launches of one thread; bare {:.2}; ratio {:.3}",
                scale.hooked, scale.bare, scale.ratio
            );
        }
        println!("instructions: {}", self.instructions_by);
    }
}

impl Bench {
    fn start() -> Result<Self> {
        let artefacts = build::artefacts()?;
        let (client, driver) = stub()?;
        let interrupt = Interrupt::catch()?;
        let host = Host::start(&artefacts, Device::Simulated { config: None }, &interrupt)?;
        let uuid = host.stub_uuid()?;
        Ok(Self { artefacts, host, client, driver, uuid, interrupt })
    }

    /// Returns a command that runs a program as a tenant. The caller appends the program and its
    /// arguments.
    fn tenant(&self) -> Command {
        self.tenant_named(TENANT)
    }

    fn tenant_named(&self, name: &str) -> Command {
        let mut command = self.host.deepres(&[&self.driver]);
        command.args(["run", "--name", name, "--memory", MEMORY, "--"]).env("STUB_DRIVER_UUID", &self.uuid);
        command
    }

    /// Returns a command that runs the client without deepres.
    fn plain(&self) -> Command {
        let mut plain = Command::new(&self.client);
        plain.env("LD_LIBRARY_PATH", &self.driver).env("STUB_DRIVER_UUID", &self.uuid);
        plain
    }

    fn times(&self, rounds: u32) -> Result<(BTreeMap<String, Figures>, Scale)> {
        let mut bare = BTreeMap::<String, Vec<f64>>::new();
        let mut hooked = BTreeMap::<String, Vec<f64>>::new();
        let (mut bare_scale, mut hooked_scale) = (Vec::new(), Vec::new());
        for round in 1..=rounds {
            self.interrupt.check()?;
            let run: Run = measure(&mut self.plain(), |_| Ok(()))?;
            let by = run.hooked_by.display();
            ensure!(run.hooked_by.starts_with(&self.driver), "{by} hooks the bare run");
            bare_scale.push(run.scale);
            collect(&mut bare, run);

            self.interrupt.check()?;
            let mut preloaded = self.tenant();
            preloaded.arg(&self.client);
            let run: Run = measure(&mut preloaded, |run| seen_by_daemon(&self.host, run, round))?;
            hooked_scale.push(run.scale);
            collect(&mut hooked, run);
            eprintln!("round {round} of {rounds}");
        }
        let times = bare.into_iter().filter_map(|(name, mut bare)| {
            let hooked = median(hooked.get_mut(&name)?);
            Some((name, Figures::new(median(&mut bare), hooked)))
        });
        let (bare, hooked) = (median(&mut bare_scale), median(&mut hooked_scale));
        Ok((times.collect(), Scale { bare, hooked, ratio: hooked / bare }))
    }

    fn instructions(&self, name: &str) -> Result<Figures> {
        self.interrupt.check()?;
        let bare = || {
            let mut command = Command::new("env");
            command.env("LD_LIBRARY_PATH", &self.driver).env("STUB_DRIVER_UUID", &self.uuid);
            command
        };
        let bare = instructions::per_call(&self.client, name, bare)?;
        Ok(Figures::new(bare, instructions::per_call(&self.client, name, || self.tenant())?))
    }
}

/// Builds the stub driver and its client. Returns the client and the folder of the driver.
pub fn stub() -> Result<(PathBuf, PathBuf)> {
    let mut cargo = build::cargo();
    command::run(cargo.args(["build", "--release", "--package", "deepres-stub-driver"]))?;
    let built = build::target().join("release");
    let folder = build::target().join("deepres/stub");
    build::install(&built.join("libstub_cuda.so"), &folder.join("libcuda.so.1"))?;
    Ok((built.join("stub-client"), folder))
}

/// Runs the client and returns its figures. Calls `look` with the figures while the client still
/// runs.
pub fn measure<T: DeserializeOwned>(command: &mut Command, look: impl FnOnce(&T) -> Result<()>) -> Result<T> {
    let (running, run) = start(command)?;
    look(&run)?;
    end(running)?;
    Ok(run)
}

/// Starts the client, and returns the client and the object that it prints.
fn start<T: DeserializeOwned>(command: &mut Command) -> Result<(Running, T)> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut running = Running::start(command)?;
    let output = running.child().stdout.take().context("the output was piped")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    if line.is_empty() {
        bail!("the client printed nothing: {}", running.shown());
    }
    let run = serde_json::from_str(&line)
        .with_context(|| format!("not understood: {line} from {}", running.shown()))?;
    Ok((running, run))
}

/// Ends the client. When its standard input closes, the client ends by itself.
fn end(mut running: Running) -> Result<()> {
    drop(running.child().stdin.take());
    running.finish()
}

/// Checks that the calls of the run went through the interposer, and that the daemon metered the
/// calls. Otherwise the figures would mean nothing.
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

#[cfg(test)]
mod tests {
    use super::super::Report as _;
    use super::*;

    #[test]
    fn a_call_that_hooks_make_too_slow_is_named_and_so_is_one_that_was_not_timed() {
        let bursts =
            Bursts { added_contended_ns: 40.0, added_standalone_ns: 40.0, records_per_launch_contended: 0.1 };
        let report = |added_ns: fn(f64) -> Option<f64>| Report {
            added_ns: None,
            bursts: Some(bursts),
            apis: APIS
                .iter()
                .map(|(name, most_ns)| Api {
                    name,
                    bare_ns: None,
                    hooked_ns: None,
                    added_ns: added_ns(*most_ns),
                    hooked_instructions: None,
                    added_instructions: None,
                })
                .collect(),
            scale: Some(Scale { bare: 1.0, hooked: 1.0, ratio: 1.0 }),
            instructions_by: "",
        };
        let check = |report: Report| super::super::check(&report.bars());
        assert!(check(report(Some)).is_ok());
        let slow = report(|most_ns| Some(if most_ns == 100.0 { 101.0 } else { most_ns }));
        assert_eq!(
            check(slow).unwrap_err().to_string(),
            format!("past the bar: {ALLOCATION} takes at most 100 ns more")
        );
        assert!(check(report(|_| None)).is_err());
        let unscaled = Report { scale: Some(Scale { bare: 1.0, hooked: 0.9, ratio: 0.9 }), ..report(Some) };
        assert!(check(unscaled).unwrap_err().to_string().contains("two threads"));
        let recorded = Bursts { records_per_launch_contended: 0.2, ..bursts };
        let many = Report { bursts: Some(recorded), ..report(Some) };
        assert_eq!(check(many).unwrap_err().to_string(), "past the bar: 0.1 event records a launch at most");
        assert!(check(Report { bursts: None, ..report(Some) }).is_err());
    }
}
