//! The daemon from outside, over real sockets.

mod allocations;
mod build;
mod daemon;
mod hostile;
mod identities;
mod metrics;
mod placing;
mod restarts;
