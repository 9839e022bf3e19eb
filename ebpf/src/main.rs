//! The programs that deepres runs in the kernel. They watch ioctls on the GPU's devices, count them in
//! maps and, where someone asked for it, tell each one. `probe`, from abi, has the layouts of everything that leaves the kernel.
//!
//! | module | its job |
//! |---|---|
//! | `atomic` | changes that no other CPU sees half of |
//! | `walk` | which device a descriptor of the current task is |
//! | `ioctl` | beginning and end of an ioctl, by whatever way the kernel tells of it |
//! | `count` | counters for each process and command |
//! | `trace` | single events, and who is followed |
//! | `rows` | which row of counters a process and command has |
//! | `user` | a look at a program's memory |
//! | `launch` | calls into the driver's library, of processes that are metered from outside |
//! | `empty` | programs that do nothing, to measure the others against |

#![feature(asm_experimental_arch)]
#![no_std]
#![no_main]

mod atomic;
mod count;
mod empty;
mod ioctl;
mod launch;
// The one file of the layouts that is compiled for the kernel's machine, which lacks most of what the others take.
#[expect(dead_code, reason = "the controller uses the rest")]
#[path = "../../abi/src/probe.rs"]
mod probe;
mod rows;
mod trace;
mod user;
mod walk;

/// Helpers that read the kernel's memory are for programs under this licence alone; it is one of the two that deepres has.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// Which layouts these programs were built with.
#[used]
#[unsafe(no_mangle)]
static LAYOUT: aya_ebpf::Global<u64> = aya_ebpf::Global::new(probe::LAYOUT);

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // The kernel refuses a program that can get here.
    loop {}
}
