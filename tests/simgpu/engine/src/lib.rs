//! The virtual GPUs of one host, shared by all processes through a file in shared memory.
//!
//! Nothing here runs by itself: no daemon, no thread per stream. The state carries the time up to which it
//! has been worked out, and whoever looks at it first works it out up to the present, event by event, with
//! the exact time of each event. Between two events everything is linear, so the answer does not depend on
//! who looks or when.
//!
//! - [`Host`]: what a process does with the GPUs (contexts, streams, work, events, memory).
//! - [`Config`]: what the GPUs are like and what a kernel costs.
//! - [`truth`]: what every process really had of every GPU, readable from outside.
//! - [`faults`]: errors, delays and deaths on demand.
//!
//! What is modelled and what is not: `tests/simgpu/README.md`.

mod checkpoint;
pub mod clock;
pub mod config;
pub mod error;
pub mod faults;
mod guard;
mod host;
mod jitter;
mod journal;
mod layout;
mod liveness;
mod lock;
mod locker;
mod managed;
mod namespace;
mod shared;
mod sim;
#[cfg(test)]
mod tests;
pub mod truth;
mod wait;
pub mod work;

pub use checkpoint::{Call, CheckpointError, CheckpointState};
pub use clock::Clock;
pub use config::{Ancestor, Config, CopyKind, KernelCost, PciAddress};
pub use error::{Error, OutOfMemory};
pub use host::{Host, MemoryInfo, Options};
pub use shared::open_as_its_directory;
pub use work::{ContextId, EventId, EventStatus, StreamId, Ticket, WaitPolicy, Work};

/// The most GPUs that one virtual host has.
pub const MAX_GPUS: usize = 16;
