//! Programs that do nothing: what attaching anything at all costs, to tell from what ours do.

use aya_ebpf::macros::{raw_tracepoint, tracepoint};
use aya_ebpf::programs::{RawTracePointContext, TracePointContext};

/// In the place of `ioctl_enter` and `ioctl_exit`.
#[tracepoint]
pub fn empty_tracepoint(_context: TracePointContext) -> u32 {
    0
}

/// In the place of `raw_enter` and `raw_exit`.
#[raw_tracepoint(tracepoint = "sys_enter")]
pub fn empty_raw(_context: RawTracePointContext) -> i32 {
    0
}
