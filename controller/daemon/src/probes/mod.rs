//! Who uses the GPU, preloaded or not: programs in the kernel that count ioctls, and what follows from it. `docs/probes.md` is for users.
//!
//! | module | job |
//! |---|---|
//! | [`kernel`] | loads and attaches the kernel programs, reads their maps |
//! | `btf` | where the running kernel's structs have their fields |
//! | [`devices`] | which devices are the GPU's |
//! | [`way`] | pure: how the kernel is asked to tell of ioctls |
//! | [`metering`] | counts the launches of programs that cannot be preloaded |
//! | [`watch`] | the thread that reads everything and keeps the board |
//! | [`users`] | pure: who is to be told of as unmanaged, and when |
//! | [`activity`] | what processes do in the driver, added up |
//! | [`inside`] | which threads are inside the driver now |
//! | [`room`] | how many counters there is room for |
//! | `rows` | the counters in the kernel: whose they are, and what is in them |
//! | `memory` | where the kernel has its mapping of all memory |
//! | [`scan`] | what /proc tells of processes |
//! | [`reader`] | the threads that read what a process can make wait |
//! | `large` | pure: who has more descriptors open than can be looked at at once |
//! | [`hold`] | who is stopped until it is adopted |
//! | [`connected`] | which processes are sessions |

pub mod activity;
pub mod btf;
pub mod connected;
pub mod devices;
pub mod hold;
pub mod inside;
pub mod kernel;
mod large;
mod memory;
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
