//! The cost of the calls on the launch path, and of two busy processes: `cargo bench -p
//! simgpu-engine`.
//!
//! Prints nanoseconds per call: the median of batches, on a state that no other process uses.

use simgpu_engine::{Clock, Host, Options, StreamId, WaitPolicy, Work};
use std::{hint::black_box, path::Path, time::Instant};

const BATCH: u32 = 512;
const BATCHES: usize = 401;
const KERNEL_NS: u64 = 1000;
const KERNEL: Work = Work::Kernel { duration_ns: KERNEL_NS, sm_ppm: 1_000_000, kernels: 1 };

fn main() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let host = attach(dir.path());
    let context = host.create_context(0).expect("context");
    let stream = host.create_stream(context).expect("stream");
    let event = host.create_event().expect("event");
    let drain = || host.wait_context(context, WaitPolicy::Spin);

    report("submit a kernel, queue not full", drain, || {
        host.submit(stream, KERNEL, &[]).expect("submit");
    });
    report("record an event", drain, || {
        host.record(stream, event).expect("record");
    });
    let done = host.submit(stream, KERNEL, &[]).expect("submit");
    host.wait(done, WaitPolicy::Spin);
    report(
        "query a ticket that is done",
        || (),
        || {
            black_box(host.query(done));
        },
    );
    let long = host
        .submit(stream, Work::Kernel { duration_ns: u64::MAX, sm_ppm: 1, kernels: 1 }, &[])
        .expect("submit");
    report(
        "query a ticket that is pending",
        || (),
        || {
            black_box(host.query(long));
        },
    );
    report(
        "reserve and release memory",
        || (),
        || {
            host.reserve_memory(context, 512).expect("memory");
            host.release_memory(context, 512);
        },
    );
    host.destroy_context(context);

    let context = host.create_context(0).expect("context");
    let stream = host.create_stream(context).expect("stream");
    let own_ns = KERNEL_NS + host.config().launch_latency_ns + host.config().launch_overhead_ns;
    report(
        &format!("submit a kernel and wait for it, {own_ns} ns of which are its latency and run"),
        || (),
        || {
            let ticket = host.submit(stream, KERNEL, &[]).expect("submit");
            host.wait(ticket, WaitPolicy::Spin);
        },
    );
    saturate(dir.path());
    flood(&host, stream);
}

/// Runs one process that launches as fast as it can. Prints the CPU time that it needs, and how
/// busy it keeps the GPU.
fn flood(host: &Host, stream: StreamId) {
    const LAUNCHES: u32 = 100_000;
    const FLOOD_KERNEL: Work = Work::Kernel { duration_ns: 5000, sm_ppm: 1_000_000, kernels: 1 };
    let cpu_ns = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is valid for writing.
        unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    };
    let (start, start_cpu_ns) = (Instant::now(), cpu_ns());
    for _ in 0..LAUNCHES {
        host.submit(stream, FLOOD_KERNEL, &[]).expect("submit");
    }
    host.wait(host.last_ticket(stream), WaitPolicy::Auto);
    let wall_ns = start.elapsed().as_nanos() as f64;
    println!(
        "one process, its queue full all the time: {:.1} % of a CPU, GPU {:.1} % busy",
        100.0 * (cpu_ns() - start_cpu_ns) / wall_ns,
        100.0 * f64::from(LAUNCHES) * (5000 + host.config().launch_overhead_ns) as f64 / wall_ns
    );
}

fn attach(dir: &Path) -> Host {
    let options = Options {
        state_dir: Some(dir.to_owned()),
        config_toml: Some(String::new()),
        clock: Clock::Monotonic,
    };
    Host::attach_with(options).expect("attach")
}

fn report(what: &str, before_batch: impl Fn(), call: impl Fn()) {
    let mut ns: Vec<u128> = (0..BATCHES)
        .map(|_| {
            before_batch();
            let start = Instant::now();
            for _ in 0..BATCH {
                call();
            }
            start.elapsed().as_nanos() / u128::from(BATCH)
        })
        .collect();
    ns.sort_unstable();
    println!("{what}: {} ns", ns[BATCHES / 2]);
}

/// Runs two processes for two seconds, each with 50 000 launches of 5 us a second. Prints the part
/// of a CPU that they need.
fn saturate(dir: &Path) {
    const LAUNCHES: u64 = 100_000;
    const PERIOD_NS: u64 = 20_000;
    const PER_WAKE: u64 = 50;
    let children = [(); 2].map(|()| {
        // SAFETY: this program has one thread. The child attaches for itself and leaves by `_exit`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let host = attach(dir);
            let stream: StreamId =
                host.create_stream(host.create_context(0).expect("context")).expect("stream");
            let start_ns = host.now_ns();
            for n in 0..LAUNCHES {
                host.submit(stream, Work::Kernel { duration_ns: 5000, sm_ppm: 1_000_000, kernels: 1 }, &[])
                    .expect("submit");
                if n % PER_WAKE == 0 {
                    let due_ns = start_ns + n * PERIOD_NS;
                    std::thread::sleep(std::time::Duration::from_nanos(due_ns.saturating_sub(host.now_ns())));
                }
            }
            // SAFETY: `_exit` ends the child.
            unsafe { libc::_exit(0) };
        }
        pid
    });
    let start = Instant::now();
    let cpu_ns: i64 = children
        .into_iter()
        .map(|pid| {
            let mut status = 0;
            let mut usage = std::mem::MaybeUninit::uninit();
            // SAFETY: the call waits for a child made above. Both pointers are valid for writing,
            // and the call writes the usage on success.
            let usage: libc::rusage = unsafe {
                assert_eq!(libc::wait4(pid, &mut status, 0, usage.as_mut_ptr()), pid);
                usage.assume_init()
            };
            [usage.ru_utime, usage.ru_stime]
                .map(|time| time.tv_sec * 1_000_000_000 + time.tv_usec * 1000)
                .iter()
                .sum::<i64>()
        })
        .sum();
    let wall_ns = start.elapsed().as_nanos() as f64;
    println!(
        "two processes, {:.0} launches/s together: {:.1} % of a CPU",
        2.0 * LAUNCHES as f64 * 1e9 / wall_ns,
        100.0 * cpu_ns as f64 / wall_ns
    );
}
