//! Calls of the driver library, counted by entry point: one program for all of them, told apart by the cookie each is attached with.

use crate::count;
use crate::probe::{CallKey, CallValue};
use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{bpf_get_attach_cookie, bpf_ktime_get_ns};
use aya_ebpf::macros::{map, uprobe};
use aya_ebpf::maps::PerCpuHashMap;
use aya_ebpf::programs::ProbeContext;

/// Processes times entry points.
const CALLS_ENTRIES: u32 = 4096;

#[map]
static CALLS: PerCpuHashMap<CallKey, CallValue> = PerCpuHashMap::with_max_entries(CALLS_ENTRIES, 0);

/// An entry point of the driver library is called.
#[uprobe]
pub fn driver_call(context: ProbeContext) -> u32 {
    // SAFETY: the context is the program's own.
    let cookie = unsafe { bpf_get_attach_cookie(context.as_ptr()) };
    let key = CallKey { pid: (bpf_get_current_pid_tgid() >> 32) as u32, entry_point: cookie as u32 };
    let bytes = match cookie >> 32 {
        1 => context.arg::<u64>(0),
        2 => context.arg::<u64>(1),
        3 => context.arg::<u64>(2),
        4 => context.arg::<u64>(3),
        _ => None,
    };
    // SAFETY: no more than reading a clock.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    let mut value = CALLS.get_ptr_mut(key);
    if value.is_none() {
        // Another CPU may have made it meanwhile: what counts is whether it is there now.
        let _ = CALLS.insert(key, CallValue { calls: 0, bytes: 0, last_ns: 0 }, BPF_NOEXIST.into());
        value = CALLS.get_ptr_mut(key);
    }
    let Some(value) = value else {
        count::total(|totals| totals.calls_unattributed += 1);
        return 0;
    };
    // SAFETY: the value is this CPU's, and programs do not interrupt each other on a CPU.
    let value = unsafe { &mut *value };
    value.calls += 1;
    value.bytes = value.bytes.wrapping_add(bytes.unwrap_or(0));
    value.last_ns = now_ns;
    0
}
