//! The eBPF programs of deepres. The programs watch ioctls on the GPU's devices and count them in
//! maps. If the daemon asks for it, they report each ioctl. The module `probe`, from `abi`, has the
//! layouts of all data that leaves the kernel.
//!
//! | module | its job |
//! |---|---|
//! | `atomic` | changes map entries atomically |
//! | `walk` | finds the device behind a descriptor of the current task |
//! | `ioctl` | sees the beginning and the end of an ioctl, by the driver's own functions or by tracepoints |
//! | `count` | keeps counters for each process and command |
//! | `trace` | reports each ioctl of the processes that the daemon traces, and of their children |
//! | `rows` | finds the row of counters of a process and command |
//! | `launch` | counts calls into the driver's library, if the process is metered from outside |
//! | `empty` | programs that do nothing, as the baseline of measurements |

#![feature(asm_experimental_arch)]
#![no_std]
#![no_main]

mod atomic;
mod count;
mod empty;
mod ioctl;
mod launch;
// Of the files of `abi`, this crate compiles only this file. The BPF target lacks features that the
// other files need.
#[expect(dead_code, reason = "the controller uses the rest")]
#[path = "../../abi/src/probe.rs"]
mod probe;
mod rows;
mod trace;
mod walk;

/// The licence. The kernel lets only programs under the GPL use the helpers that read the kernel's
/// memory. The GPL is one of the two licences of deepres.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// The hash of the layouts with which these programs were built.
#[used]
#[unsafe(no_mangle)]
static LAYOUT: aya_ebpf::Global<u64> = aya_ebpf::Global::new(probe::LAYOUT);

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // The kernel refuses to load a program that can get here.
    loop {}
}
