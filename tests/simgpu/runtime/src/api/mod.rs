//! The ABI edge. Each function of the runtime translates its arguments for the driver, and the
//! driver's results for the program.
#![expect(
    non_snake_case,
    non_upper_case_globals,
    clippy::too_many_arguments,
    reason = "names and arguments are NVIDIA's, documented in its runtime API reference"
)]

#[macro_use]
mod macros;
mod copy;
pub mod device;
mod forwards;
mod general;
mod graph;
pub mod kernel;
mod memory;
pub mod unsupported;

/// The runtime's functions. Each module implements some of them as functions of this type. The
/// trait [`unsupported::Unsupported`] has all functions; the functions of the type hide those of
/// the trait.
pub struct Api;
