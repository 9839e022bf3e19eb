//! The names that most end-to-end tests use.

pub use std::{
    thread,
    time::{Duration, Instant},
};

pub use rustix::process::Signal;
pub use serde_json::{Value, json};

pub use crate::{
    Finished, Host, Orders, Process, Ps, Tally, Tenant,
    artefacts::artefacts,
    clients::{CLibrary, Way, c_client, c_client_by, c_library, c_program, script},
    host::{COMMAND_LIMIT, await_value, await_value_within, caught_up, eventually, eventually_within},
    ps::number,
    shares::{Window, assert_trainers_share},
};

/// Bytes of a mebibyte.
pub const MIB: u64 = 1 << 20;
/// Bytes of a gibibyte.
pub const GIB: u64 = 1 << 30;
