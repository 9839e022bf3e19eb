//! One point of a profile: starts the command under `deepres run`, and reads its requests and their
//! GPU time from the daemon's status.

use super::place;
use crate::mps;
use anyhow::{Context, Result, bail};
use deepres_abi::PPM;
use deepres_model::admin::client::Client;
use deepres_model::admin::{GpuStatus, Reply, Request, Status};
use deepres_model::process::own_program;
use deepres_model::profile::{BATCH, Point};
use deepres_model::quantity::Time;
use deepres_model::text::harmless;
use deepres_model::wish::Value;
use deepres_policy::packing::knapsack::WHOLE_PERCENT;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process_group, set_parent_process_death_signal, waitid,
};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The SLO of the command if the user gives none. The daemon only counts requests of tenants with
/// an SLO.
const ANY_SLO_NS: u64 = 1_000_000_000;
/// Time between two looks at the status, about that between two looks of the arbiter.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time within which the command ends after SIGTERM. Then it gets SIGKILL.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
/// Time between two looks whether the command has ended.
const END_LOOK_EVERY: Duration = Duration::from_millis(5);
/// The first requests load code, and libraries try several kernels in them. Beside this many
/// measured requests, one request at the beginning does not count.
const WARM_UP: u64 = 10;
/// The least number of requests in a measurement. A program without pauses would seem to have one
/// long request.
const LEAST_REQUESTS: u64 = 5;
/// The most of the command's output that an error shows.
const TAIL_LINES: usize = 8;
const TAIL_BYTES: usize = 4_096;
/// Parts of a millisecond in which times are stored.
const MS_PARTS: f64 = 1e4;

/// The command whose requests are measured.
pub struct Job<'a> {
    /// The command, with [`BATCH`] in the place of the batch.
    pub command: &'a [String],
    /// The SLO, ns, if there is one.
    pub slo_ns: Option<u64>,
    /// Number of requests after which the command is ended.
    pub requests: u64,
    /// The longest time without a new request.
    pub patience: Duration,
    /// The number of a signal that ends the measurement; 0 before it comes.
    pub signal: &'a AtomicUsize,
}

/// A point, and the circumstances of its measurement.
pub struct Measurement {
    /// The point.
    pub point: Point,
    /// The name of the GPU.
    pub gpu: String,
    /// Whether another tenant wanted the GPU at the same time.
    pub is_disturbed: bool,
}

/// The counters of a tenant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Reading {
    gpu_ns: u64,
    ended: u64,
    latency_ns: u64,
    /// Time in which several tenants wanted the GPU at once, ns. The counter is the GPU's, so the
    /// time stays in it when the daemon forgets a tenant.
    contended_ns: u64,
}

impl Reading {
    /// Returns the counters on the GPU that the tenant uses most, and this GPU.
    fn of<'a>(status: &'a Status, tenant: &str) -> Option<(Self, &'a GpuStatus)> {
        let own = status.tenants.iter().find(|other| other.name == tenant)?;
        let account = own.gpus.iter().max_by_key(|account| account.gpu_ns)?;
        let requests = account.requests.as_ref()?;
        let gpu = status.gpus.iter().find(|gpu| gpu.index == account.gpu)?;
        let reading = Self {
            gpu_ns: account.gpu_ns,
            ended: requests.ended,
            latency_ns: requests.latency_ns,
            contended_ns: gpu.contended_ns,
        };
        Some((reading, gpu))
    }

    /// Returns whether another tenant wanted the GPU too since an earlier reading.
    fn is_disturbed_since(&self, before: &Self) -> bool {
        self.contended_ns > before.contended_ns
    }

    /// Returns the mean request between two readings.
    fn point(&self, before: &Self, batch: u32, part_percent: usize) -> Option<Point> {
        let requests = self.ended.checked_sub(before.ended).filter(|requests| *requests >= LEAST_REQUESTS)?;
        let mean_ms = |later_ns: u64, earlier_ns: u64| {
            let ns = later_ns.saturating_sub(earlier_ns) as f64 / requests as f64;
            (ns / 1e6 * MS_PARTS).round() / MS_PARTS
        };
        let ms = mean_ms(self.gpu_ns, before.gpu_ns);
        let latency_ms = Some(mean_ms(self.latency_ns, before.latency_ns)).filter(|ms| *ms > 0.0);
        (ms > 0.0).then_some(Point { batch, part_percent, ms, latency_ms, requests: Some(requests) })
    }
}

/// Runs the command with this batch on this part of the SMs, percent. Calls `progress` with the
/// number of requests that have ended. Returns `None` if a signal came.
///
/// # Errors
/// The command failed, or had too few requests. The message has the end of its output.
pub fn measure(
    job: &Job<'_>,
    batch: u32,
    part_percent: usize,
    mut progress: impl FnMut(u64),
) -> Result<Option<Measurement>> {
    let tenant = format!("profile-{}-{batch}-{part_percent}", std::process::id());
    let output = tempfile::tempfile().context("cannot make a file for the command's output")?;
    let mut running = Running::start(job, &tenant, batch, part_percent, &output)?;
    let failed = |says: String| format!("{}: {says}{}", place(batch, part_percent), tail(&output));
    let warm_up = job.requests.div_ceil(WARM_UP);
    let mut first: Option<Reading> = None;
    let mut begin: Option<Reading> = None;
    let mut last: Option<Reading> = None;
    let mut gpu = String::new();
    let mut progressed = Instant::now();
    let mut trouble = None;
    let has_ended = loop {
        if job.signal.load(Ordering::Relaxed) != 0 {
            running.end()?;
            return Ok(None);
        }
        // The status of a command that has ended has all its requests.
        let has_ended = running.has_ended()?;
        match Client::question(&Request::Status) {
            Ok(Reply::Status(status)) => {
                if let Some((now, used)) = Reading::of(&status, &tenant) {
                    first.get_or_insert(now);
                    gpu.clone_from(&used.name);
                    if last.is_none_or(|last| now.ended > last.ended) {
                        progressed = Instant::now();
                        progress(now.ended);
                    }
                    if begin.is_none() && now.ended >= warm_up {
                        begin = Some(now);
                    }
                    let granted = status.tenants.iter().find(|one| one.name == tenant);
                    let granted_ppm = granted.and_then(|one| one.sm_ppm).unwrap_or(PPM);
                    if granted_ppm != part_ppm(part_percent) {
                        running.end()?;
                        bail!(
                            "{}: the daemon granted {} of the SMs; see `mps` in its configuration",
                            place(batch, part_percent),
                            Value::Share(granted_ppm)
                        );
                    }
                    // A request that still runs has its GPU time in a later reading.
                    if now.ended == 0 || last.is_none_or(|last| now.ended > last.ended) {
                        last = Some(now);
                    }
                }
                trouble = None;
            }
            // Before the first measurement, `deepres run` starts a daemon.
            Ok(_) => {}
            Err(error) => trouble = Some(error),
        }
        let counted = last.zip(begin).map_or(0, |(last, begin)| last.ended.saturating_sub(begin.ended));
        if has_ended || counted >= job.requests || progressed.elapsed() > job.patience {
            break has_ended && counted < job.requests;
        }
        std::thread::sleep(LOOK_EVERY);
    };
    let status = running.end()?;
    if has_ended && !status.success() {
        bail!(failed(format!("the command failed ({status})")));
    }
    let last = last.unwrap_or_default();
    let contended_ns = first.map_or(0, |first| first.contended_ns);
    let all = Reading { contended_ns, ..Reading::default() };
    let begin = begin.unwrap_or(all);
    let point = last.point(&begin, batch, part_percent);
    // If the command ended early, the first requests are better than none.
    let Some(point) = point.or_else(|| last.point(&all, batch, part_percent)) else {
        let cause = match trouble {
            Some(error) => error.to_string(),
            None if last.gpu_ns == 0 => "the daemon saw no work of the command on a GPU".to_owned(),
            None => format!(
                "{} requests seen in {} of GPU time, and a measurement needs {LEAST_REQUESTS}; between two requests, \
                 the GPU must be idle for more than two hand-offs (about 0.2ms)",
                last.ended,
                Time(last.gpu_ns)
            ),
        };
        let end = if has_ended { "the command ended too early" } else { "too few requests" };
        bail!(failed(format!("{end}: {cause}")));
    };
    Ok(Some(Measurement { point, gpu, is_disturbed: last.is_disturbed_since(&begin) }))
}

fn part_ppm(part_percent: usize) -> u32 {
    (part_percent * PPM as usize / WHOLE_PERCENT) as u32
}

/// Returns the last lines of the command's output, as lines of a message.
fn tail(output: &File) -> String {
    let length = output.metadata().map_or(0, |found| found.len());
    let mut bytes = vec![0; TAIL_BYTES];
    let read = output.read_at(&mut bytes, length.saturating_sub(TAIL_BYTES as u64)).unwrap_or(0);
    let text = String::from_utf8_lossy(&bytes[..read]);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    if lines.is_empty() {
        return "; it printed nothing".to_owned();
    }
    let last = &lines[lines.len().saturating_sub(TAIL_LINES)..];
    let shown: String = last.iter().map(|line| format!("\n    {}", harmless(line))).collect();
    format!("; its last output:{shown}")
}

/// A `deepres run` with all processes of its group. Drop kills them.
struct Running {
    child: Child,
    group: Pid,
}

impl Running {
    fn start(job: &Job<'_>, tenant: &str, batch: u32, part_percent: usize, output: &File) -> Result<Self> {
        let has_mps = mps::running().is_some();
        let slo = Time(job.slo_ns.unwrap_or(ANY_SLO_NS)).to_string();
        let program = own_program().context("cannot find the path of this program")?;
        let mut command = Command::new(program);
        command
            .args(["run", "--name", tenant, "--slo", &slo])
            .args(has_mps.then(|| format!("--sm={part_percent}%")))
            .arg("--")
            .args(job.command.iter().map(|word| word.replace(BATCH, &batch.to_string())))
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output.try_clone()?)
            // A signal of the terminal ends this process, which then ends the command.
            .process_group(0);
        // SAFETY: between fork and exec the closure makes one system call.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?));
        }
        let child = command.spawn().context("cannot start `deepres run`")?;
        let group = Pid::from_child(&child);
        Ok(Self { child, group })
    }

    /// Returns whether `deepres run` has ended. The process stays a zombie, so that its group's
    /// number stays its own.
    fn has_ended(&self) -> Result<bool> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let found = waitid(WaitId::Pid(self.group), options).context("cannot wait for `deepres run`")?;
        Ok(found.is_some())
    }

    /// Ends all processes of the command. Returns the status of `deepres run`.
    fn end(&mut self) -> Result<ExitStatus> {
        if !self.has_ended()? {
            let _ = kill_process_group(self.group, Signal::TERM);
            let told = Instant::now();
            while !self.has_ended()? && told.elapsed() < ENDS_WITHIN {
                std::thread::sleep(END_LOOK_EVERY);
            }
        }
        self.kill()
    }

    fn kill(&mut self) -> Result<ExitStatus> {
        // The group can be gone already.
        let _ = kill_process_group(self.group, Signal::KILL);
        self.child.wait().context("cannot wait for `deepres run`")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // After `end`, the child has no process any more, and its number can be another's.
        if self.has_ended().is_ok() {
            let _ = self.kill();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_model::admin::{AccountStatus, RequestStatus, TenantStatus};

    /// A status with a tenant of each name. Each tenant had this many requests of 2 ms.
    fn status(tenants: &[(&str, u64)], contended_ns: u64) -> Status {
        let tenant = |(name, ended): &(&str, u64)| {
            let requests =
                RequestStatus { ended: *ended, latency_ns: ended * 3_000_000, ..Default::default() };
            let account = AccountStatus { gpu: 1, gpu_ns: ended * 2_000_000, ..Default::default() };
            let gpus = vec![AccountStatus { requests: Some(requests), ..account }];
            TenantStatus { name: (*name).to_owned(), gpus, ..Default::default() }
        };
        let gpu =
            |index| GpuStatus { index, contended_ns: index as u64 * contended_ns, ..Default::default() };
        Status {
            gpus: vec![gpu(0), gpu(1)],
            tenants: tenants.iter().map(tenant).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn work_of_a_tenant_that_the_daemon_has_forgotten_disturbs_a_measurement() {
        let read = |status: &Status| Reading::of(status, "own").map(|(reading, gpu)| (reading, gpu.index));
        let (before, gpu) = read(&status(&[("other", 70), ("own", 10)], 0)).unwrap();
        assert_eq!(gpu, 1);
        let (alone, _) = read(&status(&[("own", 20)], 0)).unwrap();
        let (beside, _) = read(&status(&[("own", 20)], 5)).unwrap();
        assert!(!alone.is_disturbed_since(&before) && beside.is_disturbed_since(&before));
        let point = beside.point(&before, 1, 100).unwrap();
        assert_eq!((point.ms, point.latency_ms, point.requests), (2.0, Some(3.0), Some(10)));
        assert!(read(&status(&[("other", 70)], 0)).is_none());
    }
}
