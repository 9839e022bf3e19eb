//! The kernel programs in the real kernel: what they count, tell and leave alone.
//!
//! They take root (CAP_BPF and CAP_PERFMON) and a build with the programs in it (`cargo xtask ebpf`). Elsewhere each test says what is
//! missing and is skipped.

mod counts;
mod events;
mod support;
