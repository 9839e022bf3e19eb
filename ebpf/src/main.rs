//! The programs that deepres runs in the kernel. They watch ioctls on the GPU's devices, count them
//! in maps, and report each one if the controller asked for that. `probe`, from `abi`, has the
//! layouts of all data that leaves the kernel.
//!
//! | module | its job |
//! |---|---|
//! | `atomic` | atomic changes of map entries |
//! | `walk` | finds the device behind a descriptor of the current task |
//! | `ioctl` | sees beginning and end of an ioctl, in whichever way the kernel allows |
//! | `count` | counters for each process and command |
//! | `trace` | single events, and the processes that are followed |
//! | `rows` | finds the row of counters of a process and command |
//! | `launch` | calls into the driver's library, of processes that are metered from outside |
//! | `empty` | programs that do nothing, as the baseline of measurements |

#![feature(asm_experimental_arch)]
#![no_std]
#![no_main]

mod atomic;
mod count;
mod empty;
mod ioctl;
mod launch;
// Of the layouts in `abi`, only this file is compiled for the BPF target, which lacks most of what
// the other files need.
#[expect(dead_code, reason = "the controller uses the rest")]
#[path = "../../abi/src/probe.rs"]
mod probe;
mod rows;
mod trace;
mod walk;

/// The kernel allows the helpers that read its memory only to programs under the GPL. The GPL is
/// one of deepres' two licences.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// The layouts that these programs were built with.
#[used]
#[unsafe(no_mangle)]
static LAYOUT: aya_ebpf::Global<u64> = aya_ebpf::Global::new(probe::LAYOUT);

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // The kernel refuses to load a program that can get here.
    loop {}
}
