//! Keeps the CPUs from sleeping while tests measure.
//!
//! On a virtual machine a CPU that has nothing to do is given to others, and comes back when its host gets round to it: on a busy host a
//! millisecond after a timer that should have woken it up, each time. A GPU's own clock does not wait for that. So that whoever is woken up runs
//! at once, as it does on a machine of its own, a thread that gives way to everybody (SCHED_IDLE, sched(7)) has each CPU's spare time.

use std::{hint, sync::OnceLock, thread};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Some ten microseconds.
const SPINS: u32 = 400;

/// Keeps all CPUs that there are for us awake from now on, for as long as the process lives.
pub fn keep() {
    static STARTED: OnceLock<()> = OnceLock::new();
    STARTED.get_or_init(|| {
        for cpu in cpus() {
            thread::spawn(move || {
                if bind_to(cpu) && set_scheduling(libc::SCHED_IDLE, 0) {
                    loop {
                        // Leaves a CPU that shares its core most of it.
                        (0..SPINS).for_each(|_| hint::spin_loop());
                        // Who yields to all others means those that have something to do.
                        thread::yield_now();
                    }
                }
            });
        }
    });
}

/// The CPUs that this process may run on.
pub fn cpus() -> impl Iterator<Item = usize> {
    let ours = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(move |cpu| ours.is_set(*cpu))
}

/// Binds this thread to a CPU. Whether that could be done.
pub fn bind_to(cpu: usize) -> bool {
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).is_ok()
}

/// Puts this thread under a policy of sched(7), with a priority of that policy. False without the right to.
pub fn set_scheduling(policy: i32, priority: i32) -> bool {
    let priority = libc::sched_param { sched_priority: priority };
    // SAFETY: 0 is the calling thread, and the parameters are ours.
    unsafe { libc::sched_setscheduler(0, policy, &priority) == 0 }
}
