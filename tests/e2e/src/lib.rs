//! What the end-to-end tests stand on: the built artefacts, one private host a test, guarded processes, the clients.
//!
//! A test makes a [`Host`], starts a daemon and clients on it, and looks at three things that must agree: what the client
//! says it did, what deepres says (`deepres ps --json`), and what the simulated GPU recorded ([`Host::truth`]).

pub mod artefacts;
pub mod awake;
pub mod cache;
pub mod clients;
pub mod containers;
pub mod contention;
pub mod host;
pub mod ledger;
pub mod probes;
mod process;
mod ps;
pub mod random;
pub mod shares;
pub mod skip;
pub mod stolen;
pub mod venv;
pub mod witness;

pub use host::{Host, Tally};
pub use process::{Finished, Process, alive};
pub use ps::{Ps, Session, Tenant};
