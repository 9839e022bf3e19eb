//! Finds the processes that use the GPU, preloaded or not. Programs in the kernel count ioctls, and
//! the daemon acts on the result. `docs/probes.md` is for users.
//!
//! | module | job |
//! |---|---|
//! | [`kernel`] | loads and attaches the kernel programs, reads their maps |
//! | `btf` | finds the fields of the running kernel's structs |
//! | [`devices`] | which devices are the GPU's |
//! | [`way`] | pure: how the kernel reports ioctls |
//! | [`metering`] | counts the launches of programs that cannot be preloaded |
//! | [`watch`] | the thread that reads everything and keeps the board |
//! | [`users`] | pure: which processes to report as unmanaged, and when |
//! | [`activity`] | adds up the calls of processes to the driver |
//! | [`inside`] | which threads are inside the driver now |
//! | [`room`] | how many counters there is room for |
//! | `rows` | the counters in the kernel: their owners and values |
//! | [`scan`] | reads /proc about processes |
//! | [`reader`] | the threads for reads that a process can block |
//! | `large` | pure: processes with more descriptors than one look covers |
//! | [`hold`] | the processes that are stopped until they are adopted |
//! | [`connected`] | which processes are sessions |

pub mod activity;
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
pub mod way;

pub use connected::{Announced, Connected, Presence};
pub use watch::{Before, Watcher};
