//! The controller from outside: its command line, its daemon over real sockets, and its lease policy on a model GPU.

mod build;
mod cdi;
mod cli;
mod daemon;
mod hostile;
mod identities;
mod lease_policy;
mod liars;
mod model;
mod restarts;
mod support;
mod units;
mod versions;
