//! Evaluates policies that share a GPU, in virtual time. `cargo xtask eval` prints the results. The
//! end-to-end tests compare the results with the same scenarios in real time. `cargo xtask eval
//! --placement` evaluates policies that choose GPUs, and `--packing` policies that share the SMs.
//! `--cluster` evaluates a day on a cluster, and `--plans` plans for tenants that repeat
//! themselves.

pub mod bars;
pub mod beside;
pub mod bound;
#[cfg(test)]
mod claims;
pub mod cluster;
pub mod device;
pub mod engine;
pub mod fluid;
pub mod gate;
pub mod load;
pub mod metrics;
pub mod packing;
pub mod page;
pub mod placement;
pub mod plans;
pub mod plot;
pub mod policy;
pub mod report;
pub mod scenario;
pub mod standings;
pub mod sweep;
pub mod trace;
