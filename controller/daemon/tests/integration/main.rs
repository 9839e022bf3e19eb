//! The daemon from outside, over real sockets, and its arbiter on a model GPU.

mod build;
mod daemon;
mod hostile;
mod identities;
mod lease_policy;
mod liars;
mod model;
mod restarts;
