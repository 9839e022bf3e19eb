//! How a client's look-up of a driver function ends at our hook, by each of the three routes.
//!
//! | route | here |
//! |---|---|
//! | linked against libcuda | the exports of [`crate::hooks`] come first in the search order |
//! | `dlsym`, `dlvsym` | [`entry`] jumps to the real one, unless [`decide`] has another answer |
//! | `cuGetProcAddress` | [`addresses`] maps what the driver answered to the hook of the same ABI |

pub mod addresses;
mod copies;
mod decide;
pub mod elf;
mod entry;
mod keep;

pub use copies::is_behind_another;
pub use decide::{c_lookups, is_disabled, next_definition, next_loaded};
pub use keep::keep;
