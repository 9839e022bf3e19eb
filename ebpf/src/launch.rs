//! Counts calls into the driver's library, of processes that are metered from outside. The probe's
//! cookie names the function that the process called.
//!
//! Another task on the same CPU can interrupt a probe inside a process, and change the same
//! counter. So each change is atomic.

use crate::atomic;
use crate::probe::{Begun, LaunchKey, LaunchValue, MeteredValue, SOURCES, TICK_NS, cookie, uncounted};
use crate::walk::{self, Task};
use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::helpers::generated::bpf_get_attach_cookie;
use aya_ebpf::macros::{map, raw_tracepoint, uprobe};
use aya_ebpf::maps::{Array, HashMap, PerCpuArray, PerCpuHashMap, RingBuf};
use aya_ebpf::programs::{ProbeContext, RawTracePointContext};

/// The size of `METERED`: the most processes that the programs can meter. The daemon sets the size.
/// The map contains only processes that the daemon names, and their children.
const METERED_ENTRIES: u32 = 1;
/// The size of `LAUNCHES`: the most pairs of process and function. The daemon sets the size.
const LAUNCHES_ENTRIES: u32 = 1;
/// The index of the argument with the number of bytes, in functions with such an argument.
const SIZE: usize = 1;
/// The size of `BEGUN`: the bytes of [`Begun`] records that wait for the daemon.
const BEGUN_BYTES: u32 = 16 << 10;

#[map]
static METERED: HashMap<u32, MeteredValue> = HashMap::with_max_entries(METERED_ENTRIES, 0);
#[map]
static TAKEN: Array<u64> = Array::with_max_entries(SOURCES, 0);
#[map]
static GIVEN: Array<u64> = Array::with_max_entries(SOURCES, 0);
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
    // SAFETY: the kernel can replace the value during the read. The value then belongs to the one
    // or the other process, and its start time shows to which.
    let Some(metered) = (unsafe { METERED.get(pid) }) else { return 0 };
    let start_ticks = task.process_started_ns() / TICK_NS;
    if metered.start_ticks != start_ticks {
        return 0;
    }
    // SAFETY: the kernel gave this context to this program.
    let cookie = unsafe { bpf_get_attach_cookie(context.as_ptr()) };
    if cookie::tells(cookie) {
        let begun = Begun { start_ticks, job: metered.job, pid, reserved: 0 };
        // If the ring is full, the daemon finds the process a moment later, when it looks by
        // itself.
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
        // The insertion fails if another CPU has made the entry meanwhile, or if the map is full.
        // The second look-up shows which.
        let _ = LAUNCHES.insert(key, empty, BPF_NOEXIST.into());
        LAUNCHES.get_ptr_mut(key)
    });
    let Some(value) = value else {
        miss(uncounted::CALLS);
        return;
    };
    // SAFETY: the entry lives until the program ends, and the code takes only the addresses of its
    // fields.
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

/// Counts a call or process for which a map had no room. `what` is a constant of [`uncounted`].
#[inline(always)]
fn miss(what: u32) {
    if let Some(uncounted) = UNCOUNTED.get_ptr_mut(what) {
        // SAFETY: the counter is an aligned array entry, which lives for ever.
        unsafe { atomic::add(uncounted, 1) };
    }
}

/// Runs at `sched_process_fork`: meters the child of a metered process.
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
        let child_value = MeteredValue { start_ticks, ..metered };
        if !take_room(metered.source) || METERED.insert(child, child_value, 0).is_err() {
            miss(uncounted::PROCESSES);
        }
    }
    0
}

/// Takes room for one child in a source's part of `METERED`. Returns `false` if the part is full.
/// CPUs that call this at the same time can pass the limit by one child each.
#[inline(always)]
fn take_room(source: u32) -> bool {
    let (Some(taken), Some(given)) = (TAKEN.get_ptr_mut(source), GIVEN.get_ptr(source)) else {
        return false;
    };
    // SAFETY: both are aligned array entries, which live for ever.
    unsafe {
        if taken.read_volatile() >= given.read_volatile() {
            return false;
        }
        atomic::add(taken, 1);
    }
    true
}
