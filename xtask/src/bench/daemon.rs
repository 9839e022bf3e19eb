//! `cargo xtask bench daemon`: what the daemon costs while many sessions are connected and do nothing.
//!
//! The sessions are hellos of this process over sockets of their own, as a thousand programs would send them: real programs would need
//! gigabytes here and cost the daemon the same.

use std::fs;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use deepres_abi::wire::{self, Hello, MAX_FRAME_BYTES, Refusal, Role, Uuid, Welcome};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendFlags, SocketAddrUnix, SocketType, connect, recvmsg,
    send, socket,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use zerocopy::IntoBytes as _;

use crate::build;
use crate::host::{Device, Host};
use crate::process::Interrupt;

/// What the daemon may take of a core.
const LIMIT_CPU_PERCENT: f64 = 1.0;
/// What it may have resident.
const LIMIT_RESIDENT_MIB: f64 = 64.0;
/// Sessions of one tenant.
const SESSIONS_PER_TENANT: usize = 10;
/// After the last session begins, until the daemon is at rest.
const SETTLE: Duration = Duration::from_secs(2);
/// Clock ticks of /proc in a second; the same on every Linux of x86-64.
const TICKS_PER_S: f64 = 100.0;
const KIB_PER_MIB: f64 = 1024.0;

/// Options of `cargo xtask bench daemon`.
#[derive(clap::Args)]
pub struct Options {
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// How many sessions to connect.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    sessions: u32,
    /// How long to watch the daemon, in seconds.
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
}

#[derive(Serialize)]
struct Report {
    sessions: usize,
    /// Of how many tenants.
    tenants: usize,
    /// Of how many GPUs each session sees all.
    gpus: usize,
    /// Of what kind they are.
    clients: &'static str,
    seconds: f64,
    cpu_percent: f64,
    resident_mib: f64,
    /// How long it took until all were served.
    all_served_s: f64,
}

/// Measures and prints.
pub fn run(options: &Options) -> Result<()> {
    let artefacts = build::artefacts()?;
    let interrupt = Interrupt::catch()?;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .context("cannot raise the number of descriptors")?;
    let host = Host::start(&artefacts, Device::Simulated { config: None }, &interrupt)?;
    let gpus = host.ps()?.gpus.iter().map(|gpu| parse_uuid(&gpu.uuid)).collect::<Result<Vec<_>>>()?;

    let began = Instant::now();
    let wanted = options.sessions as usize;
    let mut sessions = Vec::with_capacity(wanted);
    for number in 0..wanted {
        interrupt.check()?;
        let tenant = format!("tenant-{}", number / SESSIONS_PER_TENANT);
        let session = join(&host.tenant_socket(), &tenant, &gpus)
            .with_context(|| format!("session {} of {wanted}", number + 1))?;
        sessions.push(session);
    }
    let all_served_s = began.elapsed().as_secs_f64();

    thread::sleep(SETTLE);
    let (before, begin) = (cpu_s(host.daemon_pid())?, Instant::now());
    while begin.elapsed() < Duration::from_secs(u64::from(options.seconds)) {
        interrupt.check()?;
        thread::sleep(Duration::from_millis(100));
    }
    let seconds = begin.elapsed().as_secs_f64();
    let cpu_percent = (cpu_s(host.daemon_pid())? - before) * 100.0 / seconds;
    let resident_mib = resident_mib(host.daemon_pid())?;
    let ps = host.ps()?;
    let served: usize = ps.tenants.iter().map(|tenant| tenant.sessions.len()).sum();
    ensure!(served == sessions.len(), "the daemon lists {served} sessions of {}", sessions.len());

    let report = Report {
        sessions: served,
        tenants: ps.tenants.len(),
        gpus: gpus.len(),
        clients: "hellos of one process",
        seconds,
        cpu_percent,
        resident_mib,
        all_served_s,
    };
    if options.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!(
            "{} idle sessions of {} tenants ({}): {cpu_percent:.2} % of a core (at most {LIMIT_CPU_PERCENT} %), {resident_mib:.1} MiB resident (at most {LIMIT_RESIDENT_MIB} MiB)",
            report.sessions, report.tenants, report.clients
        );
    }
    ensure!(cpu_percent <= LIMIT_CPU_PERCENT, "the daemon took {cpu_percent:.2} % of a core");
    ensure!(resident_mib <= LIMIT_RESIDENT_MIB, "the daemon had {resident_mib:.1} MiB resident");
    Ok(())
}

/// One session, as a program's library begins it. It lasts as long as the socket.
fn join(path: &Path, tenant: &str, gpus: &[Uuid]) -> Result<OwnedFd> {
    let connection = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
    connect(&connection, &SocketAddrUnix::new(path)?)?;
    let mut hello = Hello::new(Role::Session);
    let now = clock_gettime(ClockId::Monotonic);
    hello.monotonic_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    hello.pid = std::process::id();
    for (place, uuid) in hello.gpu_uuids.iter_mut().zip(gpus) {
        *place = *uuid;
    }
    hello.gpu_count = gpus.len() as u32;
    wire::set_text(&mut hello.tenant, tenant);
    wire::set_text(&mut hello.client, "bench daemon");
    send(&connection, hello.as_bytes(), SendFlags::NOSIGNAL)?;
    let mut bytes = [0; MAX_FRAME_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
    // The descriptors of the pages are closed with it: an idle program looks at none of them.
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let received =
        recvmsg(&connection, &mut [IoSliceMut::new(&mut bytes)], &mut beside, RecvFlags::CMSG_CLOEXEC)?;
    let answer = bytes.get(..received.bytes).unwrap_or_default();
    if let Ok(refusal) = wire::decode::<Refusal>(answer) {
        bail!("refused: {}", wire::text(&refusal.reason).unwrap_or("no reason was given"));
    }
    wire::decode::<Welcome>(answer)?;
    Ok(connection)
}

fn parse_uuid(text: &str) -> Result<Uuid> {
    let digits: String = text.trim_start_matches("GPU-").chars().filter(|digit| *digit != '-').collect();
    let mut uuid = Uuid::default();
    ensure!(digits.len() == 2 * uuid.len(), "{text} is no UUID");
    for (byte, at) in uuid.iter_mut().zip((0..).step_by(2)) {
        let digits = digits.get(at..at + 2).with_context(|| format!("{text} is no UUID"))?;
        *byte = u8::from_str_radix(digits, 16).with_context(|| format!("{text} is no UUID"))?;
    }
    Ok(uuid)
}

/// Processor time that a process has used, seconds.
fn cpu_s(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("the daemon is gone")?;
    let (_, fields) = stat.rsplit_once(')').context("an unknown stat line")?;
    // utime and stime are the 14th and 15th of proc(5); two were before the parenthesis.
    let times = fields.split_ascii_whitespace().skip(11).take(2);
    let ticks: u64 = times.map(str::parse::<u64>).sum::<Result<u64, _>>().context("an unknown stat line")?;
    Ok(ticks as f64 / TICKS_PER_S)
}

fn resident_mib(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("the daemon is gone")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse().context("an unknown VmRSS")?;
    Ok(kib / KIB_PER_MIB)
}
