//! The interposer of deepres: a preloaded library between an unmodified process and the CUDA
//! driver.
//!
//! `resolve` answers the process's look-ups of driver functions with hooks, for each of the three
//! ways to look a function up. `hooks` translate the driver's ABI and decide nothing. The other
//! modules decide, and handle no pointers of the driver. When the loader loads the library, no code
//! of the library runs. So a process that never looks up a hooked function pays only for the
//! mapping.
//!
//! A hook never panics. A hook makes no call fail that would succeed without it, except where a
//! limit requires this. If a hook cannot do its work, it forwards the call unchanged.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
compile_error!("the interposer is written for x86-64 Linux with glibc: its entry points are assembly");

mod blocked_calls;
mod capture;
mod config;
mod coverage;
mod descriptor;
mod driver;
mod gate;
mod handshake;
mod hooks;
mod launch;
mod lock_order;
mod log;
mod memory;
mod meter;
mod nvml;
mod os;
mod pages;
mod plan;
mod process;
mod record;
mod reentry;
mod resolve;
mod session;
mod standalone;
mod thread;
mod unshared;
