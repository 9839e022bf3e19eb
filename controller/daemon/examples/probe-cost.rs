//! Measures the cost of the eBPF programs for an ioctl in the real kernel. `cargo xtask bench
//! trace` runs this program, one part after the other.
//!
//! One thread makes calls in batches. A figure is the mean of the least disturbed batch. The
//! figures to compare come from the same device, once watched and once not. So only the programs
//! differ.

use deepres_daemon::probes::devices::Devices;
use deepres_daemon::probes::kernel::{Asked, AttachPoint, Kernel, KernelError};
use deepres_daemon::probes::metering::{programs::Programs, symbols};
use deepres_daemon::probes::{Before, Watcher};
use deepres_model::config::ProbesKeys;
use deepres_model::config::UnmanagedPolicy;
use deepres_model::process::ProcessKey;
use serde::Serialize;
use serde_json::json;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A device that refuses NVIDIA's numbers immediately.
const REFUSING: &str = "/dev/fuse";
/// A device that reads a page behind the argument, and returns success for unknown numbers.
const ACCEPTING: &str = "/dev/btrfs-control";
/// The configuration's name for [`REFUSING`], as if it were a device of NVIDIA.
const REFUSING_KEY: &str = "nvidia=10:229";
/// The configuration's name for [`ACCEPTING`], as if it were a device of NVIDIA.
const ACCEPTING_KEY: &str = "nvidia=10:234";
/// The devices to watch in measurements in which deepres watches neither [`REFUSING`] nor
/// [`ACCEPTING`]. A host with NVIDIA's driver has as many kinds of devices.
const OTHERS: [&str; 5] =
    ["nvidia=195", "nvidia-uvm=511:0", "nvidia-uvm-tools=511:1", "nvidia-caps=510", "nvidia-nvswitch=509"];
/// The ioctl number of the command NV_ESC_RM_CONTROL.
const COMMAND: u64 = 0xc020_462a;
/// The ioctl number of the command NV_ESC_RM_MAP_MEMORY.
const MAP_MEMORY: u64 = 0xc038_464e;
/// The ioctl number of the command NV_ESC_RM_ALLOC.
const ALLOC: u64 = 0xc030_462b;
/// The ioctl number of a command that the eBPF programs do not know. So the programs do not look
/// at the command's argument.
const UNKNOWN: u64 = 0xc000_46ff;
/// In NV_ESC_RM_ALLOC's argument: the index of the word of 8 bytes whose upper half is the class.
const CLASS: usize = 1;
/// In NV_ESC_RM_ALLOC's argument: the index of the word of 8 bytes with the address of the class's
/// own arguments.
const PARAMETERS: usize = 2;
/// In the class's own arguments: the index of the word of 8 bytes with the size of the memory.
const ITS_SIZE: usize = 8;
/// The class NV01_MEMORY_LOCAL_USER: memory of the GPU.
const MEMORY: u64 = 0x40;
/// Index of the class's own arguments in the buffer, words.
const BEHIND: usize = 256;
/// Size of the argument's buffer, words: a page, because the accepting device reads a page.
const WORDS: usize = 512;
/// Number of batches. The batches are short, so that some are undisturbed even on a busy machine.
const BATCHES: u32 = 600;
const CALLS: u32 = 200;
const ROUNDS: u32 = 12;
const RING_BYTES: u32 = 16 << 20;
/// Time between two calls. At this pace, the eBPF programs must lose no event.
const PACE: Duration = Duration::from_micros(10);
/// Number of calls in a measurement of lost events.
const PACED_CALLS: u64 = 200_000;
/// Size of a ring that is too small for the events of [`FLOOD_THREADS`] threads, bytes.
const SMALL_RING_BYTES: u32 = 64 << 10;
/// Calls of each thread that calls as fast as it can.
const FLOOD_CALLS: u64 = 8_000;
/// Number of threads that call as fast as they can.
const FLOOD_THREADS: u64 = 8;
/// The most time for the start of `deepres trace`.
const TRACE_LIMIT: Duration = Duration::from_secs(20);
/// Environment variable with the path of the tracing `deepres`.
const DEEPRES: &str = "DEEPRES_BINARY";

/// Calls of a function in a batch. A probe makes each call thirty times slower.
const LAUNCHES: u32 = 100;
/// The time for which the example measures the watching thread. The thread searches /proc twice in
/// this time.
const IDLE: Duration = Duration::from_secs(65);
/// Pause after the start, because the thread is not idle at first.
const SETTLED: Duration = Duration::from_secs(3);
const PERCENT: f64 = 100.0;

/// Result of `deepres trace --json` with its output in a file.
#[derive(Serialize)]
struct Traced {
    /// Calls that the trace did not show at 100,000 calls a second.
    lost_by_trace: u64,
    /// Calls that the trace did not show when eight threads call as fast as they can for a moment.
    lost_in_a_burst: u64,
    /// Whether the trace reported the right number of lost calls both times.
    trace_adds_up: bool,
}

#[derive(Serialize)]
struct Report {
    way: &'static str,
    bare_ns: f64,
    empty_other_ns: f64,
    ours_other_ns: f64,
    empty_watched_ns: f64,
    ours_watched_ns: f64,
    unrelated_bare_ns: f64,
    unrelated_empty_ns: f64,
    unrelated_ours_ns: f64,
    unrelated_syscall_tax_ns: f64,
    /// Events that the reader of the ring did not get.
    lost_at_1e5_per_s: u64,
    /// The call that costs most above an empty program. `*_watched_ns` are the figures of this
    /// call.
    dearest: &'static str,
    /// Cost of each call above an empty program, ns.
    watched: Vec<(&'static str, f64)>,
    drop_counter_exact: bool,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (part, further) = (arguments.next(), arguments.next());
    let measured = match (part.as_deref(), further) {
        (Some("tracepoints"), None) => measure(AttachPoint::Tracepoints).map(|report| json!(report)),
        (Some("raw-tracepoints"), None) => measure(AttachPoint::RawTracepoints).map(|report| json!(report)),
        (Some("launch"), None) => launch_probe_ns().map(|ns| json!(ns)),
        (Some("trace"), None) => traced().map(|traced| json!(traced)),
        (Some("idle"), None) => idle_percent().map(|percent| json!(percent)),
        _ => {
            eprintln!("usage: probe-cost tracepoints|raw-tracepoints|launch|trace|idle");
            return ExitCode::FAILURE;
        }
    };
    match measured {
        Ok(measured) => {
            println!("{measured}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cannot measure: {error}");
            ExitCode::FAILURE
        }
    }
}

fn traced() -> Result<Traced, KernelError> {
    let (lost_by_trace, paced_adds_up) = lost_by_the_command(call_paced)?;
    let (lost_in_a_burst, burst_adds_up) = lost_by_the_command(call_in_a_burst)?;
    Ok(Traced { lost_by_trace, lost_in_a_burst, trace_adds_up: paced_adds_up && burst_adds_up })
}

/// Stands in for the driver's function of this name. The probe finds the function in this program's
/// symbols.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn cuLaunchKernel(launches: u64) -> u64 {
    std::hint::black_box(launches) + 1
}

fn own() -> Result<ProcessKey, KernelError> {
    ProcessKey::of(std::process::id()).ok_or_else(|| KernelError::Refused("/proc is not there".to_owned()))
}

/// Returns the time that a probe adds to a call of a function in this process, ns.
fn launch_probe_ns() -> Result<f64, KernelError> {
    let wrong = |error: String| KernelError::Refused(error);
    let file = File::open("/proc/self/exe").map_err(|error| wrong(error.to_string()))?;
    let points = symbols::points(&file).map_err(|error| wrong(error.to_string()))?;
    let call_ns = || {
        let batch = || {
            let began = Instant::now();
            (0..LAUNCHES).for_each(|number| {
                std::hint::black_box(cuLaunchKernel(number.into()));
            });
            began.elapsed().as_nanos() as f64 / f64::from(LAUNCHES)
        };
        (0..BATCHES).map(|_| batch()).fold(f64::INFINITY, f64::min)
    };
    let bare_ns = call_ns();
    let mut programs = Programs::load()?;
    let who = own()?;
    programs.meter(who, 1, 0)?;
    let probes = points.iter().map(|point| programs.attach(&file, *point, Some(who.pid)));
    let _probes = probes.collect::<Result<Vec<_>, _>>()?;
    let probed_ns = call_ns();
    let counted: u64 = programs.counts().iter().map(|(_, value)| value.calls).sum();
    if counted != u64::from(BATCHES) * u64::from(LAUNCHES) {
        return Err(wrong(format!("{counted} calls were counted")));
    }
    Ok(probed_ns - bare_ns)
}

/// Returns the part of a core that the watching thread uses, percent.
fn idle_percent() -> Result<f64, KernelError> {
    let devices = OTHERS.iter().map(|key| key.parse().expect("it is a device")).collect();
    let settings = ProbesKeys { enabled: true, devices, unmanaged: UnmanagedPolicy::Report };
    let watcher = Watcher::start(settings, std::sync::Arc::default(), Before::default());
    let watcher = watcher.map_err(|error| KernelError::Refused(error.to_string()))?;
    std::thread::sleep(SETTLED);
    let state = watcher.board().probes;
    if state.state != "attached" {
        return Err(KernelError::Refused(format!("the probes are {}: {}", state.state, state.detail)));
    }
    let before = processor_time();
    std::thread::sleep(IDLE);
    Ok((processor_time() - before).as_secs_f64() / IDLE.as_secs_f64() * PERCENT)
}

/// Returns the processor time of all threads of this process.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// A call whose cost the example measures.
struct Case {
    name: &'static str,
    device: &'static str,
    command: u64,
    argument: Box<[u64; WORDS]>,
}

/// Returns calls that take different paths through the programs:
///
/// - a call that the device refuses at once
/// - a call whose argument the programs do not read
/// - a call with a status
/// - a call with a status and an amount
/// - a call with an amount behind an address
fn cases() -> Vec<Case> {
    let mut allocation = Box::new([0; WORDS]);
    allocation[CLASS] = MEMORY << 32;
    allocation[PARAMETERS] = &raw const allocation[BEHIND] as u64;
    allocation[BEHIND + ITS_SIZE] = 1 << 20;
    let none = || Box::new([0; WORDS]);
    vec![
        Case { name: "a refused call", device: REFUSING, command: COMMAND, argument: none() },
        Case { name: "an unknown call", device: ACCEPTING, command: UNKNOWN, argument: none() },
        Case { name: "a control call", device: ACCEPTING, command: COMMAND, argument: none() },
        Case { name: "a mapping", device: ACCEPTING, command: MAP_MEMORY, argument: none() },
        Case { name: "an allocation", device: ACCEPTING, command: ALLOC, argument: allocation },
    ]
}

fn opened(device: &str) -> Result<File, KernelError> {
    let file = File::options().read(true).write(true).open(device);
    file.map_err(|error| KernelError::Refused(format!("{device}: {error}")))
}

fn devices(keys: &[&str]) -> Devices {
    let keys: Vec<_> = keys.iter().map(|key| key.parse().expect("it is a device")).collect();
    Devices::find(&keys)
}

/// Cost of a call: bare, with empty programs, with deepres watching other devices, with deepres
/// watching its device.
#[derive(Clone, Copy)]
struct Costs {
    bare: f64,
    empty: f64,
    other: f64,
    watched: f64,
}

fn measure(point: AttachPoint) -> Result<Report, KernelError> {
    const MOST: f64 = f64::INFINITY;
    let mut least: Vec<(Case, File, Costs)> = Vec::new();
    for case in cases() {
        let file = opened(case.device)?;
        least.push((case, file, Costs { bare: MOST, empty: MOST, other: MOST, watched: MOST }));
    }
    let [mut unrelated_bare, mut unrelated_empty, mut unrelated_ours] = [MOST; 3];
    for _ in 0..ROUNDS {
        for (case, file, costs) in &mut least {
            costs.bare = costs.bare.min(ioctl_ns(file, case));
        }
        unrelated_bare = unrelated_bare.min(unrelated_ns());
        let empty = Kernel::attach_empty(point)?;
        for (case, file, costs) in &mut least {
            costs.empty = costs.empty.min(ioctl_ns(file, case));
        }
        unrelated_empty = unrelated_empty.min(unrelated_ns());
        drop(empty);
        let other = Kernel::attach(&devices(&OTHERS), Asked::None, Some(point))?;
        for (case, file, costs) in &mut least {
            costs.other = costs.other.min(ioctl_ns(file, case));
        }
        unrelated_ours = unrelated_ours.min(unrelated_ns());
        drop(other);
        let watched = Kernel::attach(&devices(&[REFUSING_KEY, ACCEPTING_KEY]), Asked::None, Some(point))?;
        for (case, file, costs) in &mut least {
            costs.watched = costs.watched.min(ioctl_ns(file, case));
        }
        drop(watched);
    }
    let above = |costs: &Costs| costs.watched - costs.empty;
    let dearest = least.iter().max_by(|a, b| above(&a.2).total_cmp(&above(&b.2)));
    let (Some((dearest, _, worst)), Some((_, refusing, first))) = (dearest, least.first()) else {
        return Err(KernelError::Refused("nothing was measured".to_owned()));
    };
    Ok(Report {
        way: point.name(),
        bare_ns: first.bare,
        empty_other_ns: first.empty,
        ours_other_ns: first.other,
        empty_watched_ns: worst.empty,
        ours_watched_ns: worst.watched,
        unrelated_bare_ns: unrelated_bare,
        unrelated_empty_ns: unrelated_empty,
        unrelated_ours_ns: unrelated_ours,
        unrelated_syscall_tax_ns: unrelated_ours - unrelated_bare,
        dearest: dearest.name,
        watched: least.iter().map(|(case, _, costs)| (case.name, above(costs))).collect(),
        lost_at_1e5_per_s: lost_when_paced(refusing, point)?,
        drop_counter_exact: counts_drops_exactly(refusing, point)?,
    })
}

fn call(file: &File) {
    let mut argument = [0u64; 8];
    // SAFETY: the device refuses the number and does not touch the argument.
    unsafe { libc::ioctl(file.as_raw_fd(), COMMAND, argument.as_mut_ptr()) };
}

fn ioctl_ns(file: &File, case: &Case) -> f64 {
    least_mean_ns(|| {
        // SAFETY: neither device writes to the argument, and the buffer is a page for the device
        // that reads.
        unsafe { libc::ioctl(file.as_raw_fd(), case.command, case.argument.as_ptr()) };
    })
}

fn unrelated_ns() -> f64 {
    least_mean_ns(|| {
        // SAFETY: the call takes no argument and changes nothing.
        unsafe { libc::syscall(libc::SYS_getppid) };
    })
}

fn least_mean_ns(call: impl Fn()) -> f64 {
    let batch = || {
        let began = Instant::now();
        (0..CALLS).for_each(|_| call());
        began.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    (0..BATCHES).map(|_| batch()).fold(f64::INFINITY, f64::min)
}

/// Returns the number of events that are missing at the end. Events that the programs counted as
/// lost are included.
fn lost_when_paced(file: &File, point: AttachPoint) -> Result<u64, KernelError> {
    let mut kernel = following(RING_BYTES, point)?;
    let mut ring = kernel.take_events().ok_or(KernelError::NotBuilt)?;
    let is_done = AtomicBool::new(false);
    let received = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut received = 0;
            loop {
                // The loop reads the flag before the ring. So the last round reads all events from
                // before the end.
                let ends = is_done.load(Ordering::SeqCst);
                received += std::iter::from_fn(|| ring.pop()).count() as u64;
                if ends {
                    return received;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        call_paced(file);
        is_done.store(true, Ordering::SeqCst);
        reader.join().unwrap_or(0)
    });
    Ok(PACED_CALLS - received)
}

/// Makes [`PACED_CALLS`] calls from several threads at once, as fast as they can.
fn call_in_a_burst(file: &File) {
    std::thread::scope(|scope| {
        for _ in 0..FLOOD_THREADS {
            scope.spawn(|| (0..PACED_CALLS / FLOOD_THREADS).for_each(|_| call(file)));
        }
    });
}

fn call_paced(file: &File) {
    let mut next = Instant::now();
    for _ in 0..PACED_CALLS {
        call(file);
        next += PACE;
        while Instant::now() < next {
            std::hint::spin_loop();
        }
    }
}

/// Returns the number of the [`PACED_CALLS`] calls that the output of `deepres trace --json` lacks,
/// and whether the trace reports this number itself.
fn lost_by_the_command(call_them: fn(&File)) -> Result<(u64, bool), KernelError> {
    let wrong = |error: String| KernelError::Refused(error);
    let Some(deepres) = std::env::var_os(DEEPRES) else { return Err(wrong(format!("{DEEPRES} is not set"))) };
    let folder = std::env::temp_dir().join(format!("deepres-probe-cost-{}", std::process::id()));
    let written = File::create(&folder).map_err(|error| wrong(error.to_string()))?;
    let own = std::process::id().to_string();
    let trace = std::process::Command::new(deepres)
        .args(["trace", "--json", "--device", REFUSING_KEY, "-p", &own])
        .stdout(written)
        .spawn();
    let mut trace = trace.map_err(|error| wrong(format!("deepres trace: {error}")))?;
    let file = opened(REFUSING)?;
    let lines = || -> (u64, u64) {
        let text = std::fs::read_to_string(&folder).unwrap_or_default();
        let lost = text
            .lines()
            .filter_map(|line| line.strip_prefix("{\"lost\":")?.strip_suffix('}')?.parse::<u64>().ok());
        let lost: u64 = lost.sum();
        (text.lines().filter(|line| line.contains("\"command\"")).count() as u64, lost)
    };
    // The trace has begun once it shows a call.
    let mut before = 0;
    let deadline = Instant::now() + TRACE_LIMIT;
    while lines().0 == 0 && Instant::now() < deadline {
        call(&file);
        before += 1;
        std::thread::sleep(Duration::from_millis(50));
    }
    let unseen = before - lines().0;
    call_them(&file);
    let pid = rustix::process::Pid::from_child(&trace);
    rustix::process::kill_process(pid, rustix::process::Signal::INT)
        .map_err(|error| wrong(error.to_string()))?;
    trace.wait().map_err(|error| wrong(error.to_string()))?;
    let (told, lost) = lines();
    // If the removal fails, nothing is lost, because the file is in the folder for temporary files.
    let _ = std::fs::remove_file(&folder);
    let missing = (before + PACED_CALLS).saturating_sub(told + unseen);
    Ok((missing, missing == lost))
}

fn counts_drops_exactly(file: &File, point: AttachPoint) -> Result<bool, KernelError> {
    let mut kernel = following(SMALL_RING_BYTES, point)?;
    let mut ring = kernel.take_events().ok_or(KernelError::NotBuilt)?;
    std::thread::scope(|scope| {
        for _ in 0..FLOOD_THREADS {
            scope.spawn(|| (0..FLOOD_CALLS).for_each(|_| call(file)));
        }
    });
    let received = std::iter::from_fn(|| ring.pop()).count() as u64;
    let lost = kernel.totals().events_lost;
    Ok(lost > 0 && lost == FLOOD_THREADS * FLOOD_CALLS - received)
}

fn following(ring_bytes: u32, point: AttachPoint) -> Result<Kernel, KernelError> {
    let mut kernel = Kernel::attach(&devices(&[REFUSING_KEY]), Asked::Some(ring_bytes), Some(point))?;
    kernel.follow(own()?)?;
    Ok(kernel)
}
