//! The policy from outside: the lease policy on a model of a GPU, and the memory that a turn of the
//! arbiter's core takes.

mod allocations;
mod lease_policy;
mod liars;
mod model;
