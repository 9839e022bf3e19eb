//! The data that the parts of deepres share: pages in shared memory, frames of the handshake, and
//! the table of the CUDA driver API. The crate also finds the places of files ([`directory`]), names
//! GPUs ([`gpu_name`]), and reads shares and sizes as people write them ([`quantity`]).
//!
//! Two processes of different builds can share a page. So each page carries magic, version and size
//! ([`page`]), and consists only of atomics. Before a reader uses a value of a page as an index,
//! the reader checks the value. The crate is `no_std` and does not allocate, because the interposer
//! uses it on the launch path.
//!
//! | page | written by | read by | one for each |
//! |---|---|---|---|
//! | [`beat`] | daemon | every tenant | host |
//! | [`grant`] | daemon | tenant (sealed, read-only) | session |
//! | [`meter`] | tenant | daemon, which trusts none of it | session |
//! | [`ledger`] | the tenant's sessions | the tenant's sessions and the daemon | tenant |
//! | [`standalone`] | the tenant's processes, without a daemon | the tenant's processes | tenant |
//!
//! The eBPF programs and the daemon share [`probe`]. The eBPF programs compile no other file of
//! this crate.
#![cfg_attr(not(any(test, loom)), no_std)]

pub mod allowance;
pub mod beat;
pub mod class;
pub mod coverage;
pub mod criticality;
pub mod directory;
pub mod driver;
pub mod excerpt;
pub mod fallback;
pub mod forwarded;
pub mod gate;
pub mod gpu_name;
pub mod grant;
pub mod label;
pub mod ledger;
pub mod meter;
pub mod oversubscribe;
pub mod page;
pub mod plan;
pub mod probe;
pub mod quantity;
pub mod recording;
pub mod seqlock;
pub mod standalone;
pub mod sync;
pub mod tally;
#[cfg(feature = "serde")]
mod text;
pub mod turn;
pub mod visible;
pub mod wire;
pub mod wish;

/// The most GPUs that one host can have. A page has one slot for each GPU; the daemon's GPU index
/// names the slot.
pub const MAX_GPUS: usize = 16;

/// The whole, in parts per million. Parts per million are the unit of shares.
pub const PPM: u32 = 1_000_000;
