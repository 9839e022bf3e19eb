//! Errors of the engine.

use std::{io, path::PathBuf};

/// Not enough device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{requested_bytes} bytes asked for, {free_bytes} of {total_bytes} free on GPU {gpu}")]
pub struct OutOfMemory {
    /// The GPU.
    pub gpu: usize,
    /// The requested size.
    pub requested_bytes: u64,
    /// Free memory at the time of the request.
    pub free_bytes: u64,
    /// All memory of the GPU.
    pub total_bytes: u64,
}

/// Errors of the engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine could not use a file of the state directory.
    #[error("simgpu state {path}: cannot {action}: {source}", path = path.display())]
    Io {
        /// The attempted action.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The state directory holds something that this version cannot use.
    #[error("simgpu state {path}: {reason}; remove the directory (no process may be using it) or set SIMGPU_STATE to another", path = path.display())]
    BadState {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The configuration is not valid.
    #[error("simgpu configuration: {0}")]
    Config(String),
    /// `SIMGPU_FAULTS` is not valid.
    #[error("SIMGPU_FAULTS: {0}")]
    Faults(String),
    /// There is no GPU of this index.
    #[error("no GPU {gpu}: the host has {count}")]
    NoSuchGpu {
        /// The requested index.
        gpu: usize,
        /// Number of GPUs.
        count: usize,
    },
    /// The GPU's compute mode lets one process in, and another process has a context on the GPU.
    #[error("another process uses GPU {gpu}, which lets one process in (compute_mode)")]
    Exclusive {
        /// The GPU.
        gpu: usize,
    },
    /// The GPU's compute mode lets no process in.
    #[error("GPU {gpu} lets no process in (compute_mode)")]
    Prohibited {
        /// The GPU.
        gpu: usize,
    },
    /// A table of the shared state is full.
    #[error("simgpu has no room for another {what}: all {limit} are in use")]
    Full {
        /// The kind of object.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The context, stream or event does not exist (any more).
    #[error("the {0} does not exist (any more)")]
    Gone(&'static str),
    /// Not enough device memory.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// This process is a forked child of the process that attached. A driver's state does not
    /// survive fork.
    #[error("this process was forked from the one that uses the GPU; CUDA cannot be used in it")]
    Forked,
}

impl Error {
    /// Returns whether the error is that a needed file does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}
