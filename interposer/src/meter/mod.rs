//! Metering of GPU time: the job's threads cut their launches into segments between pairs of
//! events, and the meter thread reads the segments.

pub mod account;
pub mod alone;
pub mod clock;
pub mod context;
pub mod estimates;
pub mod gpu;
pub mod graphs;
pub mod lane;
mod leaders;
pub mod measure;
pub mod mover;
pub mod reconnect;
pub mod segment;
pub mod thread;
pub mod union;
pub mod width;
