//! Tests of the engine on a virtual clock. No test here depends on the speed of the machine.

mod compute_mode;
mod death;
mod invariants;
mod meeting;
mod memory;
mod mps;
mod order;
mod sharing;
mod world;
