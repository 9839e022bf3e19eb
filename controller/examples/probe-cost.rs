//! What the kernel programs cost an ioctl, in the real kernel: `cargo xtask bench trace` runs this.
//!
//! One thread calls in batches; a figure is the mean of the batch that was disturbed least. Figures of one device come from the same
//! device, watched or not, so that only the programs differ.

use deepres_controller::config::UnmanagedPolicy;
use deepres_controller::probes::devices::Devices;
use deepres_controller::probes::kernel::{Asked, Kernel, KernelError, Way};
use deepres_controller::probes::metering::{programs::Programs, symbols};
use deepres_controller::probes::{Settings, Watcher};
use deepres_controller::process::ProcessKey;
use serde::Serialize;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// It refuses NVIDIA's numbers at once.
const DEVICE: &str = "/dev/fuse";
const WATCHED: &str = "nvidia=10:229";
const OTHER: &str = "nvidia=10:4000";
/// NV_ESC_RM_CONTROL.
const COMMAND: u64 = 0xc020_462a;
const BATCHES: u32 = 60;
const CALLS: u32 = 5_000;
const ROUNDS: u32 = 5;
const RING_BYTES: u32 = 16 << 20;
/// The rate at which nothing may be lost, and for how long.
const PACE: Duration = Duration::from_micros(10);
const PACED_CALLS: u64 = 200_000;
/// A ring that cannot hold them, and how many.
const SMALL_RING_BYTES: u32 = 64 << 10;
const FLOOD_CALLS: u64 = 50_000;

/// Calls of a function in a batch, which a probe slows down thirtyfold.
const LAUNCHES: u32 = 2_000;
/// How long the watching thread is watched.
const IDLE: Duration = Duration::from_secs(10);
/// After its start, which is not idle.
const SETTLED: Duration = Duration::from_secs(3);
const PERCENT: f64 = 100.0;

/// Everything, for xtask to print.
#[derive(Serialize)]
struct Reports {
    /// The first is the way that the daemon takes where the driver's functions cannot be probed.
    ways: Vec<Report>,
    /// What a probe adds to a launch, ns.
    launch_probe_ns: f64,
    /// What the watching thread takes of a core with the programs attached and nothing to do, percent.
    idle_percent: f64,
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
    lost_at_1e5_per_s: u64,
    drop_counter_exact: bool,
}

fn main() -> ExitCode {
    let mut reports = Vec::new();
    for way in [Way::Tracepoints, Way::RawTracepoints] {
        match measure(way) {
            Ok(report) => reports.push(report),
            Err(error) => {
                eprintln!("cannot measure {}: {error}", way.name());
                return ExitCode::FAILURE;
            }
        }
    }
    let reports = launch_probe_ns().and_then(|launch_probe_ns| {
        Ok(Reports { ways: reports, launch_probe_ns, idle_percent: idle_percent()? })
    });
    match reports {
        Ok(reports) => {
            println!("{}", serde_json::to_string(&reports).expect("numbers are JSON"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cannot measure: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Stands for the driver's function of this name, which the probe finds in this program's symbols.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn cuLaunchKernel(launches: u64) -> u64 {
    std::hint::black_box(launches) + 1
}

/// What a probe adds to a call of a function that this process has.
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
    let own = std::process::id();
    let who = ProcessKey::of(own).ok_or_else(|| wrong("/proc is not there".to_owned()))?;
    programs.meter(who, 1)?;
    let probes = points.iter().map(|point| programs.attach(&file, *point, Some(own)));
    let _probes = probes.collect::<Result<Vec<_>, _>>()?;
    let probed_ns = call_ns();
    let counted: u64 = programs.counts().iter().map(|(_, value)| value.calls).sum();
    if counted != u64::from(BATCHES) * u64::from(LAUNCHES) {
        return Err(wrong(format!("{counted} calls were counted")));
    }
    Ok(probed_ns - bare_ns)
}

/// What the watching thread takes of a core.
fn idle_percent() -> Result<f64, KernelError> {
    let devices = vec![OTHER.parse().expect("it is a device")];
    let settings = Settings { uses_kernel: true, devices, policy: UnmanagedPolicy::Report };
    let watcher = Watcher::start(settings, std::sync::Arc::default());
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

/// Processor time of this process, all threads.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn measure(way: Way) -> Result<Report, KernelError> {
    let file = File::options().read(true).write(true).open(DEVICE);
    let file = file.map_err(|error| KernelError::Refused(format!("{DEVICE}: {error}")))?;
    let devices = |key: &str| Devices::find(&[key.parse().expect("it is a device")]);
    let mut least = [f64::INFINITY; 8];
    for _ in 0..ROUNDS {
        let mut take = |index: usize, ns: f64| least[index] = least[index].min(ns);
        take(0, ioctl_ns(&file));
        take(1, unrelated_ns());
        let empty = Kernel::attach_empty(way)?;
        take(2, ioctl_ns(&file));
        take(3, unrelated_ns());
        take(4, ioctl_ns(&file));
        drop(empty);
        let other = Kernel::attach(&devices(OTHER), Asked::None, Some(way))?;
        take(5, ioctl_ns(&file));
        take(6, unrelated_ns());
        drop(other);
        let watched = Kernel::attach(&devices(WATCHED), Asked::None, Some(way))?;
        take(7, ioctl_ns(&file));
        drop(watched);
    }
    let [
        bare,
        unrelated_bare,
        empty_other,
        unrelated_empty,
        empty_watched,
        ours_other,
        unrelated_ours,
        ours_watched,
    ] = least;
    Ok(Report {
        way: way.name(),
        bare_ns: bare,
        empty_other_ns: empty_other,
        ours_other_ns: ours_other,
        empty_watched_ns: empty_watched,
        ours_watched_ns: ours_watched,
        unrelated_bare_ns: unrelated_bare,
        unrelated_empty_ns: unrelated_empty,
        unrelated_ours_ns: unrelated_ours,
        unrelated_syscall_tax_ns: unrelated_ours - unrelated_bare,
        lost_at_1e5_per_s: lost_when_paced(&file, way)?,
        drop_counter_exact: counts_drops_exactly(&file, way)?,
    })
}

fn call(file: &File) {
    let mut argument = [0u64; 8];
    // SAFETY: the device refuses the number and does not touch the argument.
    unsafe { libc::ioctl(file.as_raw_fd(), COMMAND, argument.as_mut_ptr()) };
}

fn ioctl_ns(file: &File) -> f64 {
    least_mean_ns(|| call(file))
}

fn unrelated_ns() -> f64 {
    least_mean_ns(|| {
        // SAFETY: it takes nothing and changes nothing.
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

/// Events that are missing at the end, counted as lost or not.
fn lost_when_paced(file: &File, way: Way) -> Result<u64, KernelError> {
    let mut kernel = following(RING_BYTES, way)?;
    let mut ring = kernel.take_events().ok_or(KernelError::NotBuilt)?;
    let is_done = AtomicBool::new(false);
    let received = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut received = 0;
            loop {
                // In this order: what came before the end is read after it.
                let ends = is_done.load(Ordering::SeqCst);
                received += std::iter::from_fn(|| ring.pop()).count() as u64;
                if ends {
                    return received;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let mut next = Instant::now();
        for _ in 0..PACED_CALLS {
            call(file);
            next += PACE;
            while Instant::now() < next {
                std::hint::spin_loop();
            }
        }
        is_done.store(true, Ordering::SeqCst);
        reader.join().unwrap_or(0)
    });
    Ok(PACED_CALLS - received)
}

fn counts_drops_exactly(file: &File, way: Way) -> Result<bool, KernelError> {
    let mut kernel = following(SMALL_RING_BYTES, way)?;
    let mut ring = kernel.take_events().ok_or(KernelError::NotBuilt)?;
    (0..FLOOD_CALLS).for_each(|_| call(file));
    let received = std::iter::from_fn(|| ring.pop()).count() as u64;
    let lost = kernel.totals().events_lost;
    Ok(lost > 0 && lost == FLOOD_CALLS - received)
}

fn following(ring_bytes: u32, way: Way) -> Result<Kernel, KernelError> {
    let devices = Devices::find(&[WATCHED.parse().expect("it is a device")]);
    let mut kernel = Kernel::attach(&devices, Asked::Some(ring_bytes), Some(way))?;
    kernel.follow(std::process::id())?;
    Ok(kernel)
}
