//! Keeps the CPUs from sleeping while tests measure.
//!
//! The hypervisor of a virtual machine gives an idle CPU to other machines. On a busy host, the
//! hypervisor returns the CPU about a millisecond after a timer should have woken it. A GPU's own
//! clock does not wait for the CPU. Therefore the tests ask the kernel to tolerate no latency of
//! its idle states (Documentation/power/pm_qos_interface.rst). An idle CPU then polls instead of
//! going to sleep. A thread of the test that wakes up runs at once, as on a machine of its own.
//!
//! If the process lacks the right to ask, a thread of the lowest policy (SCHED_IDLE, sched(7)) uses
//! the spare time of each CPU. Such a thread is worse: with autogroups (sched(7)), the kernel gives
//! it the weight of its whole session against threads of other sessions. Those threads then wait
//! for milliseconds. The thread does not yield. Under Linux 6.18, a thread that yielded again and
//! again kept kernel threads from running for a minute (compare the kernel's commit 1319ea57529e).

use std::io::Write as _;
use std::{fs, hint, io, mem, sync::OnceLock, thread};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Keeps all CPUs that this process may use awake until the process ends.
pub fn keep() {
    static STARTED: OnceLock<()> = OnceLock::new();
    STARTED.get_or_init(|| {
        if tolerate_no_latency().is_ok() {
            return;
        }
        for cpu in cpus() {
            spawn(move || {
                if bind_to(cpu) && set_scheduling(libc::SCHED_IDLE, 0) {
                    loop {
                        // The pause instruction leaves most of a shared core to the sibling CPU.
                        hint::spin_loop();
                    }
                }
            });
        }
    });
}

/// Makes idle CPUs poll until the process ends.
fn tolerate_no_latency() -> io::Result<()> {
    const LATENCY_US: i32 = 0;
    let mut request = fs::File::options().write(true).open("/dev/cpu_dma_latency")?;
    request.write_all(&LATENCY_US.to_ne_bytes())?;
    // The kernel forgets the request when the file is closed.
    mem::forget(request);
    Ok(())
}

/// Starts a thread that improves measurements. If the kernel refuses another thread, the function
/// does nothing, because the measurements work without the thread.
pub(crate) fn spawn(run: impl FnOnce() + Send + 'static) {
    if let Err(error) = thread::Builder::new().spawn(run) {
        eprintln!("measuring with one helping thread less: {error}");
    }
}

/// Returns the CPUs on which this process may run.
pub fn cpus() -> impl Iterator<Item = usize> {
    let ours = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(move |cpu| ours.is_set(*cpu))
}

/// Binds the calling thread to a CPU. Returns false if the kernel refuses.
pub fn bind_to(cpu: usize) -> bool {
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).is_ok()
}

/// Puts the calling thread under a policy of sched(7), with a priority of that policy. Returns
/// false if the process lacks the right.
pub fn set_scheduling(policy: i32, priority: i32) -> bool {
    let priority = libc::sched_param { sched_priority: priority };
    // SAFETY: 0 is the calling thread, and the parameters are ours.
    unsafe { libc::sched_setscheduler(0, policy, &priority) == 0 }
}
