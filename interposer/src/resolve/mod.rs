//! The ways in which a job's look-up of a driver function ends at the hook. There are three routes:
//!
//! | route | handled by |
//! |---|---|
//! | linked against libcuda | the exports of [`crate::hooks`] come first in the search order |
//! | `dlsym`, `dlvsym` | [`entry`] jumps to the real function, unless [`decide`] answers |
//! | `cuGetProcAddress` | [`addresses`] maps the driver's answer to the hook of the same ABI |

pub mod addresses;
mod copies;
mod decide;
pub mod elf;
mod entry;
mod keep;
mod launches;

pub use copies::is_behind_another;
pub use decide::{c_lookups, is_disabled, next_definition, next_loaded};
pub use keep::keep;
pub use launches::lost_ways;
