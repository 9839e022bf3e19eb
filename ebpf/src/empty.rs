//! Programs that do nothing. They show the cost of attaching any program at all, which benchmarks
//! compare with the cost of the real programs.

use aya_ebpf::macros::{raw_tracepoint, tracepoint};
use aya_ebpf::programs::{RawTracePointContext, TracePointContext};

/// Stands in for `ioctl_enter` and `ioctl_exit`.
#[tracepoint]
pub fn empty_tracepoint(_context: TracePointContext) -> u32 {
    0
}

/// Stands in for `raw_enter` and `raw_exit`.
#[raw_tracepoint(tracepoint = "sys_enter")]
pub fn empty_raw(_context: RawTracePointContext) -> i32 {
    0
}
