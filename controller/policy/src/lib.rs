//! The policy: pure functions of `(state, now)` that decide which tenant may use which GPU, how
//! much of the GPU, and when. The functions read no clock and do no I/O.
//!
//! The four layers of the design, from the slowest to the fastest:
//!
//! | layer | question | where |
//! |---|---|---|
//! | placement | which GPUs does a job get? | [`placement`] |
//! | entitlement | what share is each tenant owed? | [`entitlement`] |
//! | packing | which tenants run at once? | [`packing`]; under leases, one at a time |
//! | granularity | which kernels meet, and how much is in flight? | [`granularity`]; [`tuning`] |
//!
//! [`lease`] turns entitlements into leases. [`tuning`] derives the time constants of leases from
//! measurements. [`shares`] says what a cluster's scheduler may give away of a node's GPUs.
//! [`arbiter`] makes all decisions about one GPU: a state machine takes readings and orders, and
//! returns actions.
//!
//! The crate is `no_std`, so that a library inside other programs can use it.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod arbiter;
pub mod class;
pub mod demand;
pub mod entitlement;
pub mod gang;
pub mod granularity;
pub mod lease;
pub mod memory;
pub mod packing;
pub mod placement;
pub mod priority;
pub mod residency;
pub mod shares;
pub mod signals;
pub mod tuning;
pub mod turns;

/// The number of a tenant; never reused.
pub type TenantId = u64;
