//! What the parts of deepres agree on: shared-memory pages, handshake frames, the table of the CUDA driver API, where files are
//! ([`directory`]) and how shares and sizes are written ([`quantity`]).
//!
//! Everything here is plain data that two processes built at different times may look at together, so each page carries
//! magic, version and size ([`page`]), is made of atomics alone, and is never indexed by a value that the other side wrote.
//! `no_std` and allocation-free: the interposer uses it on the launch path.
//!
//! | page | written by | read by | one for each |
//! |---|---|---|---|
//! | [`beat`] | controller | every tenant | host |
//! | [`grant`] | controller | tenant (sealed, read-only) | session |
//! | [`meter`] | tenant | controller, which trusts none of it | session |
//! | [`ledger`] | the tenant's sessions | they and the controller | tenant |
//! | [`standalone`] | the tenant's processes, without a controller | they | tenant |
//!
//! [`probe`] is what the kernel programs and the controller share; the programs compile that file alone.
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

/// GPUs that one host can have. Pages hold one slot for each, indexed by the controller's GPU index.
pub const MAX_GPUS: usize = 16;

/// A whole in parts per million, the unit of shares.
pub const PPM: u32 = 1_000_000;
