//! The ABI edge. Each implemented function checks and reads the API's raw arguments, calls the
//! logic, and writes the results.
#![expect(
    non_snake_case,
    clippy::too_many_arguments,
    reason = "names and arguments are NVIDIA's, documented in its driver API reference"
)]

#[macro_use]
mod arguments;
mod checkpoint;
mod context;
mod copy;
mod device;
mod event;
mod external;
mod general;
mod graph;
mod green;
mod launch;
mod memory;
mod module;
mod node;
mod pool;
mod stream;
pub mod unsupported;
mod vmm;

/// Names that most modules use.
mod prelude {
    pub use std::ffi::{c_char, c_void};
    pub use std::sync::Arc;

    pub use deepres_abi::driver::types::*;

    pub(crate) use crate::status::{self, Result};
}

/// The driver's functions. Each module implements some of them as functions of this type. The trait
/// [`unsupported::Unsupported`] has all functions; the functions of the type hide those of the
/// trait.
pub struct Api;
