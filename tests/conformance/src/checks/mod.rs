//! The checks, by subject.

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
mod physical;
mod pools;
mod streams;

use crate::check::Check;

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
use checks;

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
    ]
    .into_iter()
    .flatten()
}
