//! Finds the processes that use the GPU, with and without the interposer. Programs in the kernel
//! count ioctls, and the daemon reads the counts. `docs/probes.md` is the page for users.
//!
//! | module | job |
//! |---|---|
//! | [`kernel`] | loads and attaches the eBPF programs, reads their maps |
//! | `btf` | finds the fields of the running kernel's structs |
//! | [`devices`] | finds the GPU's devices |
//! | [`attach_point`] | pure: chooses where the daemon attaches the probes |
//! | [`metering`] | counts the launches of programs that cannot load the interposer |
//! | [`watch`] | the thread that reads all reports and keeps the list of unmanaged processes |
//! | [`users`] | pure: decides which processes the daemon reports as unmanaged, and when |
//! | [`activity`] | adds up the calls of processes to the driver |
//! | [`inside`] | finds the threads that are inside the driver now |
//! | [`room`] | computes the number of counters |
//! | `rows` | the counters in the kernel: their owners and values |
//! | [`scan`] | reads /proc about processes |
//! | [`reader`] | the threads for reads that a process can block |
//! | `large` | pure: processes with more descriptors than one look covers |
//! | [`hold`] | the held processes |
//! | [`connected`] | the processes that have sessions |

pub mod activity;
pub mod attach_point;
pub mod btf;
pub mod connected;
pub mod devices;
pub mod hold;
pub mod inside;
pub mod kernel;
mod large;
pub mod metering;
pub mod reader;
pub mod room;
mod rows;
pub mod scan;
pub mod users;
pub mod watch;

pub use connected::{Announced, Connected, Presence};
pub use watch::{Before, Watcher};
