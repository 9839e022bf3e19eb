//! Which threads are inside the driver at this moment: calls that began and have not ended. And those that have, unnoticed.

use super::kernel::Kernel;
use deepres_abi::probe::{Event, Inflight};
use deepres_model::clock::monotonic_ns;
use deepres_model::process::{ProcessKey, text};
use zerocopy::FromZeros;

/// ioctl's numbers among the system calls of x86-64 and of its 32-bit programs.
const IOCTLS: [&str; 2] = ["16", "54"];
/// What /proc says of a thread that is not asleep.
const RUNNING: &str = "running";

/// The calls that the threads of the processes that `is_asked_for` are inside of, those that began first first. Of each there is what was known when it
/// began, and how long ago that was; what its argument points to is not read.
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

/// Calls that have returned without the kernel's telling: of more threads than it has room for it tells of no return. Each stays where it was kept
/// until its thread makes another call.
pub fn missed(kernel: &Kernel) -> Vec<(u32, Inflight)> {
    let missed = kernel.inside().into_iter().filter(|(tid, call)| !is_inside(*tid, call));
    // It may have returned since it was read, and been noticed.
    missed.filter(|(tid, call)| kernel.keeps(*tid, call)).collect()
}

/// Whether the thread still is where it was: a return may have gone unnoticed, and its id may be another's by now.
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

/// The process that a thread is of, which has its first thread's number.
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
