//! `libcudart.so.13` for unmodified frameworks on the simulated GPU: the runtime's public API on
//! the public API of the driver.
//!
//! [`exports`] holds every function of the runtime's header under its exported name. `api`
//! translates arguments and results. [`code`] holds the code that a program registers, and `device`
//! the contexts. [`twelve`] holds functions that only the runtime of CUDA 12 has. This crate's
//! README lists the limits of the library.

#[macro_use]
pub mod table;

mod api;
pub mod code;
mod device;
mod edge;
pub mod exports;
pub mod registration;
pub mod twelve;
