//! Tests of the eBPF programs in the real kernel: their counts, their reports, and the calls that
//! the programs must ignore.
//!
//! The tests need root (CAP_BPF and CAP_PERFMON) and a build with the eBPF programs (`cargo xtask
//! ebpf`). Without these, each test prints its reason and is skipped.

mod counts;
mod events;
mod support;
