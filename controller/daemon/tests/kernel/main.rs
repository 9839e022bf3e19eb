//! Tests of the kernel programs in the real kernel: their counts, their reports, and the calls that
//! they must ignore.
//!
//! The tests need root (CAP_BPF and CAP_PERFMON) and a build that contains the programs (`cargo
//! xtask ebpf`). Elsewhere each test names what is missing and is skipped.

mod counts;
mod events;
mod support;
