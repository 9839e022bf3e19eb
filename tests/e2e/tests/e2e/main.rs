//! The end-to-end tests. All tests are in one program, so that the linker runs once.
//!
//! A test's module and attributes determine its track:
//!
//! | track | mark | how it runs |
//! |---|---|---|
//! | quick | none | beside others, eight at a time |
//! | quick, measuring | in a module `measured` | alone on the machine, after the others |
//! | deep | `#[ignore = "deep: …"]` | with `cargo xtask test --deep` |

mod admission;
mod agreement;
mod allocators;
mod bad_input;
mod captures;
mod cgroups;
mod chaos;
mod clients;
mod conformance;
mod containers;
mod contention;
mod contexts;
mod copies;
mod coverage;
mod deaths;
mod descendants;
mod descriptors;
mod every_call;
mod faults;
mod gangs;
mod graph_memory;
mod hardships;
mod hot_path;
mod ipc;
mod joining;
mod killed;
mod known_failures;
mod kubernetes;
mod large;
mod latency;
mod ledger;
mod loader_life;
mod memory;
mod metered;
mod metering;
mod metrics;
mod mig;
mod mps;
mod notebooks;
mod nvml;
mod overdue;
mod overheads;
mod oversubscribe;
mod own_daemon;
mod own_tenants;
mod packages;
mod pause;
mod pieces;
mod placement;
mod plans;
mod pressure;
mod process_life;
mod profile;
mod ray;
mod reconciliation;
mod recording;
mod restarts;
mod retained_memory;
mod rights;
mod run_command;
mod sequences;
mod set;
mod shareable;
mod sharing;
mod slurm;
mod standalone;
mod storm;
mod stuck_log;
mod suspend;
mod suspend_training;
mod tensorflow;
mod together;
mod torch;
mod training;
mod transparency;
mod unmanaged;
mod walked;
mod ways_in;
mod web;
mod without_session;
