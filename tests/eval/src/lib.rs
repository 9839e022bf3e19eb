//! Ways to share a GPU, evaluated in virtual time: `cargo xtask eval` prints what comes of it, and the end-to-end tests hold it against
//! what the same scenarios come to in real time.

pub mod beside;
#[cfg(test)]
mod claims;
pub mod device;
pub mod engine;
pub mod fluid;
pub mod gate;
pub mod load;
pub mod metrics;
pub mod page;
pub mod plot;
pub mod policy;
pub mod report;
pub mod scenario;
pub mod standings;
pub mod trace;
