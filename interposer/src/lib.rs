//! The preloaded library of deepres, which stands between an unmodified process and the CUDA
//! driver.
//!
//! [`resolve`] makes the process find hooks in place of the driver's functions, by each of the
//! three ways of looking them up. [`hooks`] translate the driver's ABI and decide nothing. The
//! other modules decide, and hold no pointers of the driver. Nothing runs when the library is
//! loaded. A process that never looks up a hooked function pays only for the mapping.
//!
//! A hook never panics. A hook never makes a call fail that would have worked, except where a limit
//! requires this. If a hook cannot do its work, it forwards the call unchanged.

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
mod process;
mod record;
mod resolve;
mod session;
mod standalone;
mod thread;
mod unshared;
