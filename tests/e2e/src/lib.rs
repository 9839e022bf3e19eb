//! The parts that all end-to-end tests share: the built artefacts, one private host for each test,
//! guarded processes, and the clients.
//!
//! A test makes a [`Host`], and starts a daemon and clients on it. The test then compares three
//! accounts that must agree: the client's own, deepres' (`deepres ps --json`), and the simulated
//! GPU's record ([`Host::truth`]).

pub mod artefacts;
pub mod awake;
pub mod browser;
pub mod cache;
pub mod calls;
pub mod clients;
pub mod containers;
pub mod contention;
pub mod demo;
pub mod finally;
pub mod gangs;
pub mod host;
pub mod ledger;
pub mod prelude;
pub mod probes;
mod process;
mod ps;
pub mod random;
pub mod shares;
pub mod signals;
pub mod skip;
pub mod slurm;
pub mod stand_ins;
pub mod stolen;
pub mod swap;
pub mod users;
pub mod venv;
pub mod witness;

pub use host::{Host, Tally};
pub use process::{Finished, Orders, Process, alive};
pub use ps::{Ps, Session, Tenant};
