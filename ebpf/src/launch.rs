//! Calls into the driver's library, of processes that are metered from outside: counted by function, which the probe's cookie names.
//!
//! Probes in programs can be interrupted by other tasks of the same CPU, which may be at the same counter: each change is atomic.

use crate::atomic;
use crate::probe::{Begun, LaunchKey, LaunchValue, MeteredValue, TICK_NS, cookie, uncounted};
use crate::walk::{self, Task};
use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::helpers::generated::bpf_get_attach_cookie;
use aya_ebpf::macros::{map, raw_tracepoint, uprobe};
use aya_ebpf::maps::{HashMap, PerCpuArray, PerCpuHashMap, RingBuf};
use aya_ebpf::programs::{ProbeContext, RawTracePointContext};

/// Processes that are metered, at most. Only those that the controller names come here, and their children; the controller sets it.
const METERED_ENTRIES: u32 = 1;
/// Processes times functions that are counted, at most; the controller sets it.
const LAUNCHES_ENTRIES: u32 = 1;
/// The argument that says how many bytes, of the functions that have one.
const SIZE: usize = 1;
/// Beginnings that wait to be read, bytes.
const BEGUN_BYTES: u32 = 16 << 10;

#[map]
static METERED: HashMap<u32, MeteredValue> = HashMap::with_max_entries(METERED_ENTRIES, 0);
#[map]
static LAUNCHES: PerCpuHashMap<LaunchKey, LaunchValue> = PerCpuHashMap::with_max_entries(LAUNCHES_ENTRIES, 0);
#[map]
static UNCOUNTED: PerCpuArray<u64> = PerCpuArray::with_max_entries(uncounted::KINDS, 0);
#[map]
static BEGUN: RingBuf = RingBuf::with_byte_size(BEGUN_BYTES, 0);

/// At the entry of one of the library's functions.
#[uprobe]
pub fn library_call(context: ProbeContext) -> u32 {
    let task = Task::current();
    let pid = task.process();
    // SAFETY: a value that is replaced while it is read is one process's or another's, and the start tells.
    let Some(metered) = (unsafe { METERED.get(pid) }) else { return 0 };
    let start_ticks = task.process_started_ns() / TICK_NS;
    if metered.start_ticks != start_ticks {
        return 0;
    }
    // SAFETY: the context is this program's.
    let cookie = unsafe { bpf_get_attach_cookie(context.as_ptr()) };
    if cookie::tells(cookie) {
        let begun = Begun { start_ticks, job: metered.job, pid, reserved: 0 };
        // Without room it is found a moment later, by the controller's own looking.
        let _ = BEGUN.output::<Begun>(&begun, 0);
        return 0;
    }
    count(&context, cookie, LaunchKey { start_ticks, pid, entry: cookie::entry(cookie) });
    0
}

#[inline(always)]
fn count(context: &ProbeContext, cookie: u64, key: LaunchKey) {
    let value = LAUNCHES.get_ptr_mut(key).or_else(|| {
        let empty = LaunchValue { calls: 0, bytes: 0, last_ns: 0 };
        // Another CPU may have made it meanwhile, and the map may be full: what counts is whether it is there now.
        let _ = LAUNCHES.insert(key, empty, BPF_NOEXIST.into());
        LAUNCHES.get_ptr_mut(key)
    });
    let Some(value) = value else {
        miss(uncounted::CALLS);
        return;
    };
    // SAFETY: the entry lives until the program ends; only its fields' addresses are taken.
    let (calls, bytes, last_ns) =
        unsafe { (&raw mut (*value).calls, &raw mut (*value).bytes, &raw mut (*value).last_ns) };
    let amount = if cookie::is_sized(cookie) { context.arg::<u64>(SIZE) } else { None };
    // SAFETY: fields of the entry; no more than reading a clock.
    unsafe {
        atomic::add(calls, 1);
        if let Some(amount) = amount {
            atomic::add(bytes, amount);
        }
        last_ns.write_volatile(bpf_ktime_get_ns());
    }
}

/// Counts what there was no room for.
#[inline(always)]
fn miss(what: u32) {
    if let Some(uncounted) = UNCOUNTED.get_ptr_mut(what) {
        // SAFETY: an aligned counter of an array, which is there for ever.
        unsafe { atomic::add(uncounted, 1) };
    }
}

/// `sched_process_fork`: the child of one who is metered is metered.
#[raw_tracepoint(tracepoint = "sched_process_fork")]
pub fn meter_fork(context: RawTracePointContext) -> i32 {
    let parent = Task::current();
    // SAFETY: as in `library_call`.
    let Some(metered) = (unsafe { METERED.get(parent.process()) }) else { return 0 };
    let metered = *metered;
    if metered.start_ticks != parent.process_started_ns() / TICK_NS {
        return 0;
    }
    let task = context.arg::<*const u8>(1);
    if let Some(child) = walk::process_of(task)
        && child != parent.process()
    {
        let start_ticks = walk::started_ns_of(task) / TICK_NS;
        if METERED.insert(child, MeteredValue { start_ticks, job: metered.job }, 0).is_err() {
            miss(uncounted::PROCESSES);
        }
    }
    0
}
