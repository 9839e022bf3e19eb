//! Programs that do nothing. Benchmarks attach them to measure the cost of any attached program,
//! and compare it with the cost of the real programs.

use aya_ebpf::macros::{raw_tracepoint, tracepoint};
use aya_ebpf::programs::{RawTracePointContext, TracePointContext};

/// An empty program, which benchmarks attach in place of `ioctl_enter` and `ioctl_exit`.
#[tracepoint]
pub fn empty_tracepoint(_context: TracePointContext) -> u32 {
    0
}

/// An empty program, which benchmarks attach in place of `raw_enter` and `raw_exit`.
#[raw_tracepoint(tracepoint = "sys_enter")]
pub fn empty_raw(_context: RawTracePointContext) -> i32 {
    0
}
