//! What the engine promises, on a virtual clock: no test here depends on how fast the machine is.

mod death;
mod invariants;
mod meeting;
mod memory;
mod order;
mod sharing;
mod world;
