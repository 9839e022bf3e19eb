//! Counts calls into the driver's library, for processes that are metered from outside. The probe's
//! cookie names the function.
//!
//! Another task on the same CPU can interrupt a probe in a program and change the same counter.
//! Therefore each change is atomic.

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

/// Most processes that can be metered; the controller sets the number. Only processes that the
/// controller names, and their children, are entered.
const METERED_ENTRIES: u32 = 1;
/// Most pairs of process and function that can be counted; the controller sets the number.
const LAUNCHES_ENTRIES: u32 = 1;
/// Index of the argument with the amount of bytes, in functions that have one.
const SIZE: usize = 1;
/// Bytes of [`Begun`] records that wait until the controller reads them.
const BEGUN_BYTES: u32 = 16 << 10;

#[map]
static METERED: HashMap<u32, MeteredValue> = HashMap::with_max_entries(METERED_ENTRIES, 0);
#[map]
static LAUNCHES: PerCpuHashMap<LaunchKey, LaunchValue> = PerCpuHashMap::with_max_entries(LAUNCHES_ENTRIES, 0);
#[map]
static UNCOUNTED: PerCpuArray<u64> = PerCpuArray::with_max_entries(uncounted::KINDS, 0);
#[map]
static BEGUN: RingBuf = RingBuf::with_byte_size(BEGUN_BYTES, 0);

/// Runs at the entry of one of the library's functions.
#[uprobe]
pub fn library_call(context: ProbeContext) -> u32 {
    let task = Task::current();
    let pid = task.process();
    // SAFETY: if the kernel replaces the value during the read, the value belongs to one process or
    // another; the start time tells which.
    let Some(metered) = (unsafe { METERED.get(pid) }) else { return 0 };
    let start_ticks = task.process_started_ns() / TICK_NS;
    if metered.start_ticks != start_ticks {
        return 0;
    }
    // SAFETY: the context is the one that the kernel gave to this program.
    let cookie = unsafe { bpf_get_attach_cookie(context.as_ptr()) };
    if cookie::tells(cookie) {
        let begun = Begun { start_ticks, job: metered.job, pid, reserved: 0 };
        // If the ring is full, the controller finds the process a moment later by its own look.
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
        // The insertion fails if another CPU made the entry meanwhile or if the map is full. The
        // second look-up decides.
        let _ = LAUNCHES.insert(key, empty, BPF_NOEXIST.into());
        LAUNCHES.get_ptr_mut(key)
    });
    let Some(value) = value else {
        miss(uncounted::CALLS);
        return;
    };
    // SAFETY: the entry lives until the program ends, and only its fields' addresses are taken.
    let (calls, bytes, last_ns) =
        unsafe { (&raw mut (*value).calls, &raw mut (*value).bytes, &raw mut (*value).last_ns) };
    let amount = if cookie::is_sized(cookie) { context.arg::<u64>(SIZE) } else { None };
    // SAFETY: the pointers are fields of the entry, and the helper only reads a clock.
    unsafe {
        atomic::add(calls, 1);
        if let Some(amount) = amount {
            atomic::add(bytes, amount);
        }
        last_ns.write_volatile(bpf_ktime_get_ns());
    }
}

/// Counts a call or process that had no room; `what` is a constant of [`uncounted`].
#[inline(always)]
fn miss(what: u32) {
    if let Some(uncounted) = UNCOUNTED.get_ptr_mut(what) {
        // SAFETY: the counter is an aligned array entry, which lives for ever.
        unsafe { atomic::add(uncounted, 1) };
    }
}

/// `sched_process_fork`: enters the child of a metered process as metered.
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
