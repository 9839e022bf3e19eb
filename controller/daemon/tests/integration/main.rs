//! The daemon from outside, over real sockets.

mod build;
mod daemon;
mod hostile;
mod identities;
mod metrics;
mod placing;
mod restarts;
