//! The preloaded library of deepres: stands between an unmodified process and the CUDA driver.
//!
//! [`resolve`] makes the process find our hooks instead of the driver's functions, by each of the three routes that
//! clients take. [`hooks`] translate the driver's ABI and hold no decisions; the other modules decide and hold no pointer of
//! the driver's. Nothing runs when the library is loaded: a process that never looks a hooked function up pays for mapping it.
//!
//! A hook never panics and never makes a call fail that would have worked, except where a limit says so: whatever it cannot
//! do, it forwards untouched.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
compile_error!("the interposer is written for x86-64 Linux with glibc: its entry points are assembly");

mod brief;
mod capture;
mod config;
mod coverage;
mod descriptor;
mod driver;
mod gate;
mod handshake;
mod held_up;
mod hooks;
mod image;
mod launch;
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
