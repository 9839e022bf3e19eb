//! Tests of the policy from outside: the lease policy on a model of a GPU, and the allocations in a
//! turn of the arbiter's core.

mod allocations;
mod lease_policy;
mod liars;
mod model;
