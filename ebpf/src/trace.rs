//! Reports single ioctls for `deepres trace`, and follows processes: the traced processes, and
//! their children from birth.

use crate::count;
use crate::probe::{Event, Inflight, PAYLOAD_BYTES, TICK_NS, encoded_bytes, tracing};
use crate::walk::{self, Task};
use aya_ebpf::Global;
use aya_ebpf::helpers::bpf_get_current_comm;
use aya_ebpf::helpers::generated::bpf_probe_read_user;
use aya_ebpf::macros::{map, raw_tracepoint};
use aya_ebpf::maps::{HashMap, RingBuf};
use aya_ebpf::programs::RawTracePointContext;

/// The size of `TRACED`: the most processes that the programs can follow.
const TRACED_ENTRIES: u32 = 16_384;
/// The size of `EVENTS`: the bytes of events that wait for the daemon. The daemon sets the size.
const EVENTS_BYTES: u32 = 4096;

#[unsafe(no_mangle)]
static TRACING: Global<u32> = Global::new(tracing::NONE);

#[map]
static TRACED: HashMap<u32, u64> = HashMap::with_max_entries(TRACED_ENTRIES, 0);
#[map]
static EVENTS: RingBuf = RingBuf::with_byte_size(EVENTS_BYTES, 0);

/// Reports an ioctl, if the daemon asked for the events of the process.
#[inline(always)]
pub fn ended(task: Task, ioctl: &Inflight, latency_ns: u64, result: i64) {
    if !is_asked_for(task) {
        return;
    }
    let Some(mut entry) = EVENTS.reserve::<Event>(0) else {
        count::total(|totals| totals.events_lost += 1);
        return;
    };
    let event = entry.as_mut_ptr();
    // SAFETY: the entry has room for an event. The code writes each field before it submits the
    // entry.
    unsafe {
        (&raw mut (*event).began_ns).write(ioctl.began_ns);
        (&raw mut (*event).latency_ns).write(latency_ns);
        (&raw mut (*event).argument).write(ioctl.argument);
        (&raw mut (*event).result).write(result);
        (&raw mut (*event).pid).write(task.process());
        (&raw mut (*event).tid).write(task.thread());
        (&raw mut (*event).device).write(ioctl.device);
        (&raw mut (*event).family).write(ioctl.family);
        (&raw mut (*event).command).write(ioctl.command);
        (&raw mut (*event).descriptor).write(ioctl.descriptor);
        (&raw mut (*event).reserved).write(0);
        (&raw mut (*event).name).write(bpf_get_current_comm().unwrap_or_default());
        let payload = &raw mut (*event).payload;
        (&raw mut (*event).payload_bytes).write(read_argument(ioctl, payload.cast()));
    }
    entry.submit(0);
    count::total(|totals| totals.events += 1);
}

/// Counts an event as lost, because the kernel could not follow the ioctl to its end.
#[inline(always)]
pub fn untimed(task: Task) {
    if is_asked_for(task) {
        count::total(|totals| totals.events_lost += 1);
    }
}

/// Returns whether the daemon asked for the events of the current task's process.
#[inline(always)]
fn is_asked_for(task: Task) -> bool {
    match TRACING.load() {
        tracing::NONE => false,
        tracing::SOME => is_followed(task),
        _ => true,
    }
}

/// Returns whether the programs follow the current task's process. By the start time, the function
/// excludes an earlier process with the same id.
#[inline(always)]
fn is_followed(task: Task) -> bool {
    // SAFETY: the kernel can replace the value during the read. The value then belongs to the one
    // or the other process. The start time of another process does not match.
    unsafe { TRACED.get(task.process()) }
        .is_some_and(|started| *started == task.process_started_ns() / TICK_NS)
}

/// Copies the data to which an ioctl's argument points to `payload`, as far as the program knows
/// the length. Returns the number of bytes.
///
/// # Safety
/// `payload` has room for [`PAYLOAD_BYTES`].
#[inline(always)]
unsafe fn read_argument(ioctl: &Inflight, payload: *mut u8) -> u32 {
    let known = count::command(ioctl.family, ioctl.command).map_or(0, |known| known.argument_bytes);
    let bytes = if known != 0 { known } else { encoded_bytes(ioctl.command) };
    // If the command does not encode a size, the loop tries the largest length first, then shorter
    // lengths.
    let lengths = if bytes != 0 { [bytes, 0, 0] } else { [PAYLOAD_BYTES as u32, 64, 16] };
    for length in lengths {
        let length = if length > PAYLOAD_BYTES as u32 { PAYLOAD_BYTES as u32 } else { length };
        // SAFETY: by the contract there is room. If the memory cannot be read, the helper returns
        // an error.
        if length != 0
            && unsafe { bpf_probe_read_user(payload.cast(), length, ioctl.argument as *const _) } == 0
        {
            return length;
        }
    }
    0
}

/// Runs at `sched_process_fork`: follows the child of a followed process.
#[raw_tracepoint(tracepoint = "sched_process_fork")]
pub fn follow_fork(context: RawTracePointContext) -> i32 {
    let parent = Task::current();
    if !is_followed(parent) {
        return 0;
    }
    let task = context.arg::<*const u8>(1);
    if let Some(child) = walk::process_of(task)
        && child != parent.process()
        && TRACED.insert(child, walk::started_ns_of(task) / TICK_NS, 0).is_err()
    {
        count::total(|totals| totals.events_lost += 1);
    }
    0
}
