//! The checks, by subject.

/// Declares the checks of a subject as `basis function;`. A check's name is the subject followed by
/// the function's name.
macro_rules! checks {
    ($subject:literal: $($basis:ident $name:ident;)+) => {
        /// The checks of this subject.
        pub const CHECKS: &[crate::check::Check] = &[
            $(crate::check::Check { name: concat!($subject, "/", stringify!($name)), basis: crate::check::Basis::$basis, ask: $name },)+
        ];
    };
}

mod captures;
mod checkpoints;
mod contexts;
mod events;
mod general;
mod graphs;
pub mod ipc;
mod launches;
mod lookups;
mod memory;
mod modules;
mod mps;
mod physical;
mod pools;
mod streams;

use crate::check::Check;

/// Names that nearly all subjects use.
mod prelude {
    pub use std::ptr::{null, null_mut};

    pub use deepres_abi::driver::result::*;
    pub use deepres_abi::driver::types::*;

    pub use crate::check::{Facts, Stop};
    pub use crate::gpu::*;
}

/// Returns all checks.
pub fn all() -> impl Iterator<Item = &'static Check> {
    [
        lookups::CHECKS,
        general::CHECKS,
        contexts::CHECKS,
        streams::CHECKS,
        events::CHECKS,
        captures::CHECKS,
        launches::CHECKS,
        modules::CHECKS,
        memory::CHECKS,
        pools::CHECKS,
        physical::CHECKS,
        ipc::CHECKS,
        graphs::CHECKS,
        checkpoints::CHECKS,
        mps::CHECKS,
    ]
    .into_iter()
    .flatten()
}
