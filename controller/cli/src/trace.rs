//! `deepres trace`: shows the calls of processes to the GPU's driver.

mod show;

use super::completions;
use anyhow::{Context, Result, bail};
use clap_complete::ArgValueCompleter;
use deepres_abi::probe::Event;
use deepres_daemon::probes::devices::Devices;
use deepres_daemon::probes::inside::{missed, process_of, unfinished};
use deepres_daemon::probes::kernel::{Asked, Kernel, Ring};
use deepres_daemon::trace::decode::{decode, decode_unfinished};
use deepres_daemon::trace::summary::Summary;
use deepres_model::admin::Status;
use deepres_model::admin::client::Client;
use deepres_model::config::DeviceKey;
use deepres_model::process::ProcessKey;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use show::Output;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// Size of the ring of events, bytes. At a million events a second, the ring holds a quarter of a
/// second. The memory belongs to this trace alone, and is freed with it.
const RING_BYTES: u32 = 64 << 20;
/// The most events that the command shows before its main loop checks anything else.
const EVENTS_AT_ONCE: usize = 1 << 14;
/// Pause between two looks for new processes of the tenant and for processes that have ended.
const LOOK: Duration = Duration::from_millis(100);
/// The number that shells add to a signal's number for the exit status of a killed process.
const SIGNALLED: i32 = 128;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command shows ioctls on /dev/nvidia*, by which programs ask the driver for memory, contexts and channels. \
Launches need no ioctl. The command needs root, or CAP_BPF and CAP_PERFMON. Each line has the time since the \
start, process and thread, duration, name, the main fields of the argument, and the driver's answer. The \
command counts events that came too fast to be shown.

Examples:
  sudo deepres trace -- python train.py
  sudo deepres trace -p 4711 --json
  sudo deepres trace --tenant nightly --summary")]
pub struct Args {
    /// Trace this process and its children (may be given more than once)
    #[arg(short, long = "pid", value_name = "PID", conflicts_with = "all")]
    pid: Vec<u32>,
    /// Trace a tenant's processes, also those that start later
    #[arg(
        long, value_name = "TENANT", conflicts_with = "all",
        add = ArgValueCompleter::new(completions::tenants)
    )]
    tenant: Option<String>,
    /// Trace all processes
    #[arg(long)]
    all: bool,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
    /// Print no calls, only a summary at the end
    #[arg(long)]
    summary: bool,
    /// Device to watch, by its name in /proc/devices or as NAME=MAJOR[:MINOR] [default: NVIDIA's]
    #[arg(long = "device", value_name = "DEVICE")]
    devices: Vec<DeviceKey>,
    /// Program to run and trace, with its arguments
    #[arg(trailing_var_arg = true, value_name = "COMMAND", conflicts_with = "all")]
    command: Vec<OsString>,
}

/// The signal that told this process to stop; 0 if no signal has come.
static TOLD_BY: AtomicI32 = AtomicI32::new(0);

extern "C" fn stop(signal: libc::c_int) {
    TOLD_BY.store(signal, Ordering::Relaxed);
}

fn told_by() -> libc::c_int {
    TOLD_BY.load(Ordering::Relaxed)
}

/// Traces until a signal tells this process to stop, or until no traced process lives.
pub fn run(args: Args) -> Result<ExitCode> {
    if args.pid.is_empty() && args.tenant.is_none() && !args.all && args.command.is_empty() {
        bail!("no process to trace; give -p PID, --tenant NAME, --all, or -- COMMAND");
    }
    let devices = Devices::find(&args.devices);
    if devices.is_empty() {
        bail!(
            "/proc/devices lists none of the devices; load the NVIDIA driver (`deepres doctor`), or name other devices by --device"
        );
    }
    let asked = if args.all { Asked::All(RING_BYTES) } else { Asked::Some(RING_BYTES) };
    let mut kernel = Kernel::attach(&devices, asked, None)?;
    let mut ring = kernel.take_events().context("the eBPF programs have no ring of events")?;
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, stop as *const () as libc::sighandler_t) };
    }
    let mut followed = Vec::new();
    for pid in &args.pid {
        let who = ProcessKey::of(*pid).with_context(|| {
            format!("there is no process {pid}; `deepres ps` lists the processes that use a GPU")
        })?;
        if let Some(process) = process_of(*pid).filter(|process| process != pid) {
            bail!("{pid} is a thread, and a trace is of whole processes; give -p {process}");
        }
        followed.push(who);
        kernel.follow(who)?;
    }
    if let Some(name) = &args.tenant
        && begin_with(name, &mut kernel)? == 0
    {
        eprintln!("deepres: tenant `{name}` has no process yet");
    }
    let mut child = start(&args.command, &mut kernel)?;
    let mut tracer = Tracer {
        output: Output::new(args.json, !args.summary),
        summary: Summary::default(),
        lost: 0,
        missed: 0,
    };
    let mut written = Ok(());
    let mut status = None;
    let mut looked = None::<Instant>;
    let (mut is_child_told, mut is_daemon_gone) = (false, false);
    while told_by() == 0 || child.is_some() {
        if let Some(child) = &child
            && told_by() != 0
            && !std::mem::replace(&mut is_child_told, true)
        {
            // The signal fails if the child has just ended.
            if told_by() == libc::SIGTERM {
                let _ = kill_process(Pid::from_child(child), Signal::TERM);
            }
            // The child gets a terminal's SIGINT by itself. But if the daemon has stopped the child
            // (`hold`), the child acts on SIGINT only after SIGCONT.
            let _ = kill_process(Pid::from_child(child), Signal::CONT);
        }
        if looked.is_none_or(|looked| looked.elapsed() >= LOOK) {
            looked = Some(Instant::now());
            if let Some(name) = &args.tenant {
                match Client::connect().and_then(|mut client| client.status()) {
                    Ok(status) => {
                        follow_tenant(name, &status, &mut kernel)?;
                        is_daemon_gone = false;
                    }
                    // Only a daemon knows new processes of the tenant. The probes follow the known
                    // processes anyway.
                    Err(error) if !std::mem::replace(&mut is_daemon_gone, true) => {
                        eprintln!(
                            "deepres: the trace misses new processes of `{name}` until a daemon answers: {error}"
                        );
                    }
                    Err(_) => {}
                }
            }
            kernel.forget_followed();
            if let Some(ended) = child.as_mut().map(Child::try_wait).transpose()?.flatten() {
                status = Some(ended);
                child = None;
            }
            let waits_for_none = args.tenant.is_none() && !args.all && child.is_none();
            if waits_for_none && followed.iter().all(|process| !process.is_alive()) {
                break;
            }
        }
        match tracer.read(&mut ring, &kernel) {
            Ok(true) => {}
            Ok(false) => wait(&ring),
            Err(error) => {
                written = Err(error);
                break;
            }
        }
    }
    // The count comes before the detachment, because until then the probes notice returns.
    tracer.missed = missed(&kernel)
        .iter()
        .filter_map(|(tid, _)| ProcessKey::of(process_of(*tid)?))
        .filter(|who| args.all || kernel.follows(*who))
        .count() as u64;
    // The detached probes add nothing. The command still shows the last events, and the number of
    // lost events is final.
    kernel.detach();
    let written = written
        .and_then(|()| tracer.read_all(&mut ring, &kernel))
        .and_then(|()| tracer.tell_unfinished(&kernel, args.all))
        .and_then(|()| tracer.output.summary(&tracer.summary, tracer.lost, args.summary));
    if kernel.skipped() > 0 {
        eprintln!(
            "deepres: the kernel skipped the probes for {} ioctls; some of them may belong to this trace",
            kernel.skipped()
        );
    }
    if let Some(mut child) = child {
        status = Some(child.wait()?);
    }
    match written {
        // The reader has closed the pipe (`deepres trace … | head`).
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            return Err(error).context("cannot write the trace, so later calls are missing");
        }
        _ => {}
    }
    let code = status.map_or(0, |status| status.code().unwrap_or(SIGNALLED + status.signal().unwrap_or(0)));
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Starts the command. Before that, follows this process, so that the probes also follow its
/// children from their start and miss no call.
fn start(command: &[OsString], kernel: &mut Kernel) -> Result<Option<Child>> {
    let [program, arguments @ ..] = command else { return Ok(None) };
    let own = std::process::id();
    kernel.follow(ProcessKey::of(own).with_context(|| format!("/proc does not show process {own}"))?)?;
    let child = Command::new(program).args(arguments).spawn();
    Ok(Some(child.with_context(|| format!("cannot start {}", program.display()))?))
}

/// Follows the present processes of the tenant. Returns their number.
fn begin_with(name: &str, kernel: &mut Kernel) -> Result<usize> {
    let status = Client::connect()?.status()?;
    let is_tenant = status.tenants.iter().any(|tenant| tenant.name == name);
    let followed = follow_tenant(name, &status, kernel)?;
    if !is_tenant && followed == 0 {
        bail!("there is no tenant `{name}`; `deepres ps` lists the tenants");
    }
    Ok(followed)
}

/// Follows the tenant's processes: processes with sessions, adopted processes, and processes that
/// are metered from outside. Returns their number.
fn follow_tenant(name: &str, status: &Status, kernel: &mut Kernel) -> Result<usize> {
    let sessions =
        status.tenants.iter().filter(|tenant| tenant.name == name).flat_map(|tenant| &tenant.sessions);
    let is_its = |tenant: &Option<String>| tenant.as_deref() == Some(name);
    let adopted = status.unmanaged.iter().filter(|user| is_its(&user.tenant)).map(|user| user.pid);
    let metered =
        status.metering.living().filter(|process| is_its(&process.tenant)).map(|process| process.pid);
    let pids: BTreeSet<u32> = sessions.map(|session| session.pid).chain(adopted).chain(metered).collect();
    let living: Vec<ProcessKey> = pids.into_iter().filter_map(ProcessKey::of).collect();
    for who in &living {
        kernel.follow(*who)?;
    }
    Ok(living.len())
}

/// Waits until there are events, but at most for [`LOOK`].
fn wait(ring: &Ring<Event>) {
    let mut descriptors = [PollFd::from_borrowed_fd(ring.as_fd(), PollFlags::IN)];
    let pause = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
    // An interrupted wait is no error, because the caller checks again.
    let _ = poll(&mut descriptors, Some(&pause));
}

struct Tracer {
    output: Output,
    summary: Summary,
    lost: u64,
    /// Calls whose return the kernel did not report.
    missed: u64,
}

impl Tracer {
    /// Shows some of the waiting events, and reports lost events. Returns whether more events can
    /// wait.
    fn read(&mut self, ring: &mut Ring<Event>, kernel: &Kernel) -> std::io::Result<bool> {
        let mut shown = 0;
        while shown < EVENTS_AT_ONCE
            && let Some(event) = ring.pop()
        {
            let event = decode(&event);
            self.summary.add(&event);
            self.output.event(&event)?;
            shown += 1;
        }
        let totals = kernel.totals();
        let lost = totals.events_lost + self.missed;
        if lost > self.lost {
            self.output.lost(lost - self.lost)?;
            self.lost = lost;
        }
        self.output.flush()?;
        Ok(shown == EVENTS_AT_ONCE)
    }

    /// Shows the calls that traced processes have begun and not ended.
    fn tell_unfinished(&mut self, kernel: &Kernel, of_all: bool) -> std::io::Result<()> {
        for event in unfinished(kernel, |who| of_all || kernel.follows(who)) {
            let event = decode_unfinished(&event);
            self.summary.add(&event);
            self.output.event(&event)?;
        }
        Ok(())
    }

    fn read_all(&mut self, ring: &mut Ring<Event>, kernel: &Kernel) -> std::io::Result<()> {
        while self.read(ring, kernel)? {}
        Ok(())
    }
}
