//! `libcuda.so.1` of the simulated GPU: the CUDA driver API on a virtual device.
//!
//! [`exports`] holds every function of the driver's table under its exported name. `api` translates
//! arguments and results. All other files hold the logic, one subject a file. Kernels take time and
//! compute nothing; memory is real. This crate's README lists what the model covers.

pub mod account;
mod api;
mod arena;
mod array;
mod capture;
mod condition;
mod context;
mod copy;
mod device;
mod edge;
mod event;
pub mod exports;
mod external;
mod graph;
mod graph_memory;
mod green;
mod handle;
mod image;
mod ipc;
mod lookup;
mod mapping;
mod memory;
mod module;
pub mod mps;
mod operation;
mod pending;
mod pool;
mod process;
mod residency;
mod status;
mod stream;
mod vmm;
