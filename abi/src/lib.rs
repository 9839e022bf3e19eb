//! The common ground of all parts of deepres: shared-memory pages, handshake frames, the table of
//! the CUDA driver API, the places of files ([`directory`]), and the notation of shares and sizes
//! ([`quantity`]).
//!
//! Two processes that were built at different times may use this data together. So each page
//! carries magic, version and size ([`page`]), consists only of atomics, and is never indexed by a
//! value that the other side wrote. The crate is `no_std` and does not allocate, because the
//! interposer uses it on the launch path.
//!
//! | page | written by | read by | one for each |
//! |---|---|---|---|
//! | [`beat`] | daemon | every tenant | host |
//! | [`grant`] | daemon | tenant (sealed, read-only) | session |
//! | [`meter`] | tenant | daemon, which trusts none of it | session |
//! | [`ledger`] | the tenant's sessions | the tenant's sessions and the daemon | tenant |
//! | [`standalone`] | the tenant's processes, without a daemon | the tenant's processes | tenant |
//!
//! [`probe`] is shared by the kernel programs and the daemon. The kernel programs compile only that
//! file.
#![cfg_attr(not(any(test, loom)), no_std)]

pub mod allowance;
pub mod beat;
pub mod class;
pub mod coverage;
pub mod criticality;
pub mod directory;
pub mod driver;
pub mod forwarded;
pub mod gate;
pub mod grant;
pub mod label;
pub mod ledger;
pub mod meter;
pub mod oversubscribe;
pub mod page;
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
pub mod wire;
pub mod wish;

/// The most GPUs that one host can have. Pages have one slot for each, indexed by the daemon's GPU
/// index.
pub const MAX_GPUS: usize = 16;

/// A whole in parts per million, the unit of shares.
pub const PPM: u32 = 1_000_000;
