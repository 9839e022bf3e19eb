//! Metering of GPU time: segments of launches between pairs of events, and the thread that reads
//! them.

pub mod account;
pub mod alone;
pub mod clock;
pub mod context;
pub mod estimates;
pub mod gpu;
pub mod graphs;
pub mod lane;
pub mod measure;
pub mod mover;
pub mod reconnect;
pub mod segment;
pub mod thread;
pub mod union;
