//! The virtual GPUs of one host. All processes share the virtual GPUs through a file in shared
//! memory.
//!
//! The model has no daemon and no thread per stream. The state holds the time up to which it is
//! computed. The first process that asks for a result computes the events up to the present, each
//! with its exact time. Between two events every quantity is linear, so the result does not depend
//! on when a process asks.
//!
//! - [`Host`]: the operations of a process (contexts, streams, work, events, memory).
//! - [`Config`]: the properties of the GPUs and the cost of kernels.
//! - [`topology`]: the machine's common ancestors, NVLinks and NUMA nodes, which NVML tells.
//! - `mps`: MPS servers, whose clients run kernels at once ([`Host::serve`], [`Host::join`]).
//! - [`truth`]: the true GPU time and memory of every process on every GPU, for observers.
//! - [`faults`]: errors, delays and deaths on demand.
//!
//! `tests/simgpu/README.md` says what the model covers and what it leaves out.

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
mod mps;
mod namespace;
mod shared;
mod sim;
#[cfg(test)]
mod tests;
pub mod topology;
pub mod truth;
mod wait;
pub mod work;

pub use checkpoint::{Call, CheckpointError, CheckpointState};
pub use clock::Clock;
pub use config::{ALL_SMS_PPM, ComputeMode, Config, CopyKind, KernelCost, PciAddress};
pub use error::{Error, OutOfMemory};
pub use host::{Host, MemoryInfo, Options};
pub use shared::open_as_its_directory;
pub use work::{ContextId, EventId, EventStatus, StreamId, Ticket, WaitPolicy, Work};

/// The most GPUs that one virtual host has.
pub const MAX_GPUS: usize = 16;
