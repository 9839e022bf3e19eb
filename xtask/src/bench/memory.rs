//! `cargo xtask bench memory`: tests a tenant's memory limit by a race of threads and processes,
//! some of which are killed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use deepres_e2e::contention::{Kill, Log};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use super::{bar, hook, now_ns, quantile};
use crate::build::{self, Artefacts};
use crate::host::{Admin, Device, Host};
use crate::process::{Interrupt, Running};

/// The racing tenant.
const TENANT: &str = "race";
/// The tenant's limit. The tenant's threads want far more memory than this limit.
const LIMIT_BYTES: u64 = 1 << 30;
/// Contexts take no memory. So the simulated GPU's record contains only allocations.
const SIMGPU_TOML: &str = "context_overhead_bytes = 0\n";
/// Time between two looks at a race that should reach a point.
const POLL: Duration = Duration::from_millis(1);
/// The time without progress after which the benchmark takes a race for hanging.
const STALL_LIMIT: Duration = Duration::from_secs(60);
const NS_PER_MS: f64 = 1e6;
/// Time within which the memory of a killed process must be available again, ms.
const RECLAIM_LIMIT_MS: f64 = 100.0;

/// Options of `cargo xtask bench memory`.
#[derive(clap::Args)]
pub struct Options {
    /// Number of allocations and frees, all together
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    operations: u64,
    /// Number of processes at a time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    processes: u32,
    /// Number of threads of each process
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    /// Number of processes that are killed during the race
    #[arg(long, value_name = "N", default_value_t = 40)]
    kills: u32,
    /// Number of runs that time an allocation and its free, bare and hooked
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

#[derive(Serialize)]
struct Report {
    operations: u64,
    breaches: u64,
    false_refusals: u64,
    race_threads: u32,
    race_processes: u32,
    kills: usize,
    alloc_ns_bare: f64,
    alloc_ns_hooked: f64,
    /// 99th percentile of the time from a kill until the memory is available again, ms; `None` if
    /// no process was killed.
    reclaim_ms_after_kill_p99: Option<f64>,
}

/// Runs the race, times an allocation, and returns the figures.
pub fn run(options: &Options) -> Result<impl super::Report> {
    let artefacts = build::artefacts()?;
    let interrupt = Interrupt::catch()?;
    let (alloc_ns_bare, alloc_ns_hooked) = hook::allocation(options.rounds)?;
    let raced = Race::start(options, &artefacts, &interrupt)?.finish(&interrupt)?;
    let slowest = raced.reclaim_p99();
    let report = Report {
        operations: raced.operations,
        breaches: raced.breaches,
        false_refusals: raced.false_refusals,
        race_threads: options.threads,
        race_processes: options.processes,
        kills: raced.reclaims.len(),
        alloc_ns_bare,
        alloc_ns_hooked,
        reclaim_ms_after_kill_p99: slowest.map(|reclaim| reclaim.ns() as f64 / NS_PER_MS),
    };
    eprintln!(
        "{} allocations given, {} refused, {} operations cut short; at most {} of {LIMIT_BYTES} bytes held by the clients' record, {} by the GPU's",
        raced.successes, raced.refusals, raced.cut_short, raced.most_bytes, raced.true_peak_bytes
    );
    if let Some(Reclaim { exit_ns, account_ns }) = slowest {
        eprintln!(
            "until the memory of a killed process was free (99 %), the end of the process took {:.2} ms, and the account another {:.2} ms",
            exit_ns as f64 / NS_PER_MS,
            account_ns as f64 / NS_PER_MS
        );
    }
    Ok(report)
}

impl super::Report for Report {
    const IS_ALWAYS_CHECKED: bool = true;

    fn print(&self) {
        println!(
            "{} operations by {} processes with {} threads each, {} killed: {} breaches, {} false refusals",
            self.operations,
            self.race_processes,
            self.race_threads,
            self.kills,
            self.breaches,
            self.false_refusals
        );
        match self.reclaim_ms_after_kill_p99 {
            Some(ms) => println!("memory of a killed process was free after {ms:.2} ms (99 %)"),
            None => println!("no process was killed, so the time until its memory is free was not measured"),
        }
        println!(
            "cuMemAlloc + cuMemFree: {:.1} ns bare, {:.1} ns under a limit",
            self.alloc_ns_bare, self.alloc_ns_hooked
        );
    }

    fn bars(&self) -> Vec<(String, bool)> {
        let is_free_soon = self.reclaim_ms_after_kill_p99.is_none_or(|ms| ms <= RECLAIM_LIMIT_MS);
        vec![
            bar("no breach of the limit", self.breaches == 0),
            bar("no refusal of a request that fits", self.false_refusals == 0),
            bar(format!("a killed process's memory is free within {RECLAIM_LIMIT_MS} ms"), is_free_soon),
        ]
    }
}

/// The result of the race: counts of operations and refusals, breaches of the limit, and the times
/// after kills.
struct Raced {
    operations: u64,
    successes: u64,
    refusals: u64,
    cut_short: u64,
    breaches: u64,
    false_refusals: u64,
    most_bytes: u64,
    true_peak_bytes: u64,
    reclaims: Vec<Reclaim>,
}

/// The time from a kill until the memory of the process was available again.
#[derive(Clone, Copy)]
struct Reclaim {
    /// Time until the kernel had ended the process and freed its memory, ns.
    exit_ns: u64,
    /// Time from the end of the process until the account no longer had its memory, ns.
    account_ns: u64,
}

impl Reclaim {
    fn ns(self) -> u64 {
        self.exit_ns + self.account_ns
    }
}

impl Raced {
    /// Returns the reclaim at the 99th percentile; `None` without kills.
    fn reclaim_p99(&self) -> Option<Reclaim> {
        let mut sorted = self.reclaims.clone();
        sorted.sort_unstable_by_key(|reclaim| reclaim.ns());
        quantile(&sorted, 99)
    }
}

/// A client process of the race, and the pipes to it.
struct Racer {
    number: u32,
    running: Running,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Racer {
    fn await_line(&mut self, wanted: &str) -> Result<()> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        ensure!(
            line.trim_end() == wanted,
            "the line is {line:?}, not {wanted:?}, from {}",
            self.running.shown()
        );
        Ok(())
    }
}

struct Race<'a> {
    options: &'a Options,
    host: Host,
    folder: tempfile::TempDir,
    library: std::path::PathBuf,
    client: std::path::PathBuf,
    log: Log,
    started: u32,
}

impl<'a> Race<'a> {
    fn start(options: &'a Options, artefacts: &Artefacts, interrupt: &Interrupt) -> Result<Self> {
        let client = build::c_client("contend")?;
        let folder = tempfile::Builder::new().prefix("deepres-race-").tempdir_in("/dev/shm")?;
        let config = folder.path().join("simgpu.toml");
        fs::write(&config, SIMGPU_TOML).with_context(|| format!("cannot write {}", config.display()))?;
        let host = Host::start(artefacts, Device::Simulated { config: Some(config) }, interrupt)?;
        let log = Log::create(&folder.path().join("log"), options.operations)?;
        Ok(Self { options, host, folder, library: artefacts.library(), client, log, started: 0 })
    }

    fn racer(&mut self) -> Result<Racer> {
        let number = self.started;
        self.started += 1;
        let mut command = self.host.command(&self.client);
        command.arg(self.log.path()).arg(self.options.operations.to_string());
        command.arg(number.to_string()).arg(self.options.threads.to_string()).arg("pools");
        command.env("LD_PRELOAD", &self.library).env("DEEPRES_TENANT", TENANT);
        command.env("DEEPRES_MEMORY", LIMIT_BYTES.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = Running::start(&mut command)?;
        let input = running.child().stdin.take().context("the input was piped")?;
        let output = BufReader::new(running.child().stdout.take().context("the output was piped")?);
        Ok(Racer { number, running, input, output })
    }

    fn finish(mut self, interrupt: &Interrupt) -> Result<Raced> {
        let mut admin = Admin::connect(&self.host)?;
        let mut racers = (0..self.options.processes).map(|_| self.racer()).collect::<Result<Vec<_>>>()?;
        let (mut kills, mut reclaims) = (BTreeMap::new(), Vec::new());
        for number in 0..self.options.kills {
            let point =
                self.options.operations * (u64::from(number) + 1) / (u64::from(self.options.kills) + 1);
            self.await_operation(point, interrupt)?;
            let at = number as usize % racers.len();
            let replacement = self.racer()?;
            let victim = std::mem::replace(&mut racers[at], replacement);
            // If a process has not connected yet, it leaves nothing to reclaim.
            admin.await_session(victim.running.id(), true)?;
            let pid = Pid::from_raw(victim.running.id() as i32).context("a process has an id")?;
            let sent_ns = now_ns();
            kill_process(pid, Signal::KILL)?;
            let mut running = victim.running;
            let victim_pid = running.id();
            running.child().wait().context("cannot wait for a process of ours")?;
            let dead_ns = now_ns();
            kills.insert(victim.number, Kill { sent_ns, dead_ns });
            // The memory is available again once neither the account nor the GPU has it.
            admin.await_session(victim_pid, false)?;
            let free_ns = now_ns();
            reclaims.push(Reclaim { exit_ns: dead_ns - sent_ns, account_ns: free_ns - dead_ns });
        }
        for racer in &mut racers {
            racer.await_line("done")?;
        }
        // All processes stand still, so the account and the record show the same moment. Managed
        // memory counts in the account wherever its pages are, so the comparison leaves it out.
        let account_bytes = admin.held_bytes()?.saturating_sub(admin.managed_bytes()?);
        let true_bytes = self.truth()?.memory_used_bytes;
        ensure!(
            account_bytes == true_bytes,
            "the account says {account_bytes} bytes and the GPU {true_bytes} when all operations had ended"
        );
        for racer in &mut racers {
            writeln!(racer.input)?;
            racer.await_line("freed")?;
        }
        let (left_bytes, truly_left_bytes) = (admin.held_bytes()?, self.truth()?.memory_used_bytes);
        ensure!(
            (left_bytes, truly_left_bytes) == (0, 0),
            "everything was freed, and {left_bytes} bytes are left on the account, {truly_left_bytes} on the GPU"
        );
        for Racer { running, input, .. } in racers {
            drop(input);
            running.finish()?;
        }
        let truth = self.truth()?;
        let verdict = self.log.judge(LIMIT_BYTES, &kills).context("the clients' log")?;
        let true_breach = u64::from(truth.memory_peak_bytes > LIMIT_BYTES);
        self.folder.close().context("cannot remove the log")?;
        Ok(Raced {
            operations: verdict.operations,
            successes: verdict.successes,
            refusals: verdict.refusals,
            cut_short: verdict.cut_short,
            breaches: verdict.breaches.max(true_breach),
            false_refusals: verdict.false_refusals,
            most_bytes: verdict.most_bytes,
            true_peak_bytes: truth.memory_peak_bytes,
            reclaims,
        })
    }

    /// Waits until the race has begun this many operations.
    fn await_operation(&self, point: u64, interrupt: &Interrupt) -> Result<()> {
        let (mut last, mut moved) = (0, Instant::now());
        loop {
            interrupt.check()?;
            let begun = self.log.begun()?;
            if begun >= point {
                return Ok(());
            }
            if begun > last {
                (last, moved) = (begun, Instant::now());
            }
            ensure!(moved.elapsed() < STALL_LIMIT, "the race stands still at {begun} operations");
            thread::sleep(POLL);
        }
    }

    fn truth(&self) -> Result<simgpu_engine::truth::Gpu> {
        let snapshot = simgpu_engine::truth::snapshot(&self.host.simgpu_state())?;
        snapshot.gpus.first().copied().context("the simulated host has a GPU")
    }
}

impl Admin {
    fn held_bytes(&mut self) -> Result<u64> {
        let status = self.status()?;
        Ok(status.on_first_gpu(TENANT).map_or(0, |(_, gpu)| gpu.memory_bytes))
    }

    fn managed_bytes(&mut self) -> Result<u64> {
        let status = self.status()?;
        let kinds = status.on_first_gpu(TENANT).map(|(_, gpu)| &gpu.memory_by_kind);
        Ok(kinds.and_then(|kinds| kinds.get("managed")).copied().unwrap_or(0))
    }

    /// Waits until a process has a session; if `is_there` is false, until the process has no
    /// session.
    fn await_session(&mut self, pid: u32, is_there: bool) -> Result<()> {
        let begun = Instant::now();
        loop {
            let status = self.status()?;
            let mut sessions = status.tenants.iter().flat_map(|tenant| &tenant.sessions);
            if sessions.any(|session| session.pid == pid) == is_there {
                return Ok(());
            }
            ensure!(
                begun.elapsed() < STALL_LIMIT,
                "process {pid} has {} session for too long",
                if is_there { "no" } else { "a" }
            );
        }
    }
}
