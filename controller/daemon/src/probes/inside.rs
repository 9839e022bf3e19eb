//! Finds the threads that are inside the driver: their calls began and have not ended. Also finds
//! calls whose return the kernel missed.

use super::kernel::Kernel;
use deepres_abi::probe::{Event, Inflight};
use deepres_model::clock::monotonic_ns;
use deepres_model::process::{ProcessKey, text};
use zerocopy::FromZeros;

/// Numbers of the ioctl system call on x86-64, for 64-bit and for 32-bit programs.
const IOCTLS: [&str; 2] = ["16", "54"];
/// First word of /proc/TID/syscall for a thread that does not sleep.
const RUNNING: &str = "running";

/// Returns the unfinished calls of the processes that `is_asked_for` selects, oldest first. Each
/// event has the data from the call's beginning, and the time since then. The event has no data of
/// the argument.
pub fn unfinished(kernel: &Kernel, is_asked_for: impl Fn(ProcessKey) -> bool) -> Vec<Event> {
    let now_ns = monotonic_ns();
    let mut events: Vec<Event> = kernel
        .inside()
        .into_iter()
        .filter(|(tid, call)| is_inside(*tid, call))
        .filter_map(|(tid, call)| {
            let pid = process_of(tid)?;
            is_asked_for(ProcessKey::of(pid)?).then(|| event(pid, tid, &call, now_ns))
        })
        .collect();
    events.sort_by_key(|event| event.began_ns);
    events
}

/// Returns the calls that have returned although the kernel did not report their return, each with
/// its thread. The kernel misses returns if too many threads are in a call. An entry stays in the
/// kernel's map until its thread makes another call.
pub fn missed(kernel: &Kernel) -> Vec<(u32, Inflight)> {
    let missed = kernel.inside().into_iter().filter(|(tid, call)| !is_inside(*tid, call));
    // Since the function read the list, a call may have returned with a report.
    missed.filter(|(tid, call)| kernel.keeps(*tid, call)).collect()
}

/// Returns whether the thread is still in this call. The kernel may have missed the return, and
/// another thread can have the id by now.
fn is_inside(tid: u32, call: &Inflight) -> bool {
    let Some(doing) = text(tid, "syscall") else { return false };
    let mut words = doing.split_ascii_whitespace();
    let number = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
    match words.next() {
        Some(RUNNING) => true,
        Some(number_of_call) if IOCTLS.contains(&number_of_call) => {
            words.nth(1).and_then(number).is_some_and(|command| command as u32 == call.command)
        }
        _ => false,
    }
}

/// Returns the id of a thread's process.
pub fn process_of(tid: u32) -> Option<u32> {
    text(tid, "status")?.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

fn event(pid: u32, tid: u32, call: &Inflight, now_ns: u64) -> Event {
    let mut event = Event::new_zeroed();
    event.began_ns = call.began_ns;
    event.latency_ns = now_ns.saturating_sub(call.began_ns);
    event.argument = call.argument;
    event.pid = pid;
    event.tid = tid;
    event.device = call.device;
    event.family = call.family;
    event.command = call.command;
    event.descriptor = call.descriptor;
    let name = std::fs::read(format!("/proc/{tid}/comm")).unwrap_or_default();
    for (place, byte) in
        event.name.iter_mut().zip(name.split(|byte| *byte == b'\n').next().unwrap_or_default())
    {
        *place = *byte;
    }
    event
}
