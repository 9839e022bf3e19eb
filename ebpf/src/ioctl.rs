//! The beginning and the end of an ioctl on a watched device. The daemon attaches one of three
//! pairs of programs:
//!
//! 1. probes at the driver's own ioctl functions
//! 2. the tracepoints of the ioctl system call
//! 3. the raw tracepoints of all system calls, if the kernel's tracing file system is not available

use crate::probe::{Inflight, MAX_INFLIGHT, NO_DESCRIPTOR, SLOTS as SLOT_COUNT, Slot, slot};
use crate::walk::{Task, Watched};
use crate::{atomic, count, trace, walk};
use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::{bpf_ktime_get_ns, bpf_probe_read_kernel};
use aya_ebpf::macros::{kprobe, kretprobe, map, raw_tracepoint, tracepoint};
use aya_ebpf::maps::{Array, HashMap};
use aya_ebpf::programs::{ProbeContext, RawTracePointContext, RetProbeContext, TracePointContext};

/// The number of the ioctl system call on x86-64.
const IOCTL: i64 = 16;
/// The index of the first argument or the result in a tracepoint's record, in words of 8 bytes.
/// Before it come one header word and the number of the system call.
const FIRST_WORD: usize = 2;
/// The offset of a system call's first argument in the `pt_regs` of x86-64, bytes.
const DI: usize = 112;
/// The offset of a system call's second argument in the `pt_regs` of x86-64, bytes.
const SI: usize = 104;
/// The offset of a system call's third argument in the `pt_regs` of x86-64, bytes.
const DX: usize = 96;

/// The map flag `BPF_F_MMAPABLE`. With the flag, the values begin at a page, so each [`Slot`] has a
/// cache line of its own.
const PAGE_ALIGNED: u32 = 1 << 10;

#[map]
static SLOTS: Array<Slot> = Array::with_max_entries(SLOT_COUNT, PAGE_ALIGNED);
#[map]
static INFLIGHT: HashMap<u32, Inflight> = HashMap::with_max_entries(MAX_INFLIGHT, 0);

/// Runs at the tracepoint `syscalls:sys_enter_ioctl`, when a thread begins an ioctl.
#[tracepoint]
pub fn ioctl_enter(context: TracePointContext) -> u32 {
    let (task, descriptor) = (Task::current(), word(&context, FIRST_WORD) as u32);
    if let Some(watched) = walk::watched(task, descriptor) {
        let (command, argument) = (word(&context, FIRST_WORD + 1) as u32, word(&context, FIRST_WORD + 2));
        begin(task, watched, descriptor, command, argument);
    }
    0
}

/// Runs at the tracepoint `syscalls:sys_exit_ioctl`, when an ioctl returns.
#[tracepoint]
pub fn ioctl_exit(context: TracePointContext) -> u32 {
    end(word(&context, FIRST_WORD) as i64);
    0
}

/// Runs at the raw tracepoint `sys_enter`, when a thread begins any system call.
#[raw_tracepoint(tracepoint = "sys_enter")]
pub fn raw_enter(context: RawTracePointContext) -> i32 {
    // The calls of 32-bit programs have other numbers. The tracepoint of ioctl does not see these
    // calls either.
    if context.arg::<i64>(1) != IOCTL {
        return 0;
    }
    let task = Task::current();
    if !task.is_compat() {
        let registers = context.arg::<*const u8>(0);
        // SAFETY: the helper returns an error for memory that cannot be read.
        let register =
            |at| unsafe { bpf_probe_read_kernel(registers.wrapping_add(at).cast::<u64>()) }.unwrap_or(0);
        let descriptor = register(DI) as u32;
        if let Some(watched) = walk::watched(task, descriptor) {
            begin(task, watched, descriptor, register(SI) as u32, register(DX));
        }
    }
    0
}

/// Runs at the raw tracepoint `sys_exit`, when any system call returns.
#[raw_tracepoint(tracepoint = "sys_exit")]
pub fn raw_exit(context: RawTracePointContext) -> i32 {
    // The program need not check which call ends, because `end` finds only ioctls that began.
    end(context.arg::<i64>(1));
    0
}

/// Runs at the entry of a driver's ioctl function. The arguments are the file, the command and the
/// command's argument.
#[kprobe]
pub fn driver_enter(context: ProbeContext) -> u32 {
    let Some(file) = context.arg::<*const u8>(0) else { return 0 };
    if let Some(watched) = walk::watched_file(file) {
        let [command, argument] = [1, 2].map(|index| context.arg::<u64>(index).unwrap_or(0));
        begin(Task::current(), watched, NO_DESCRIPTOR, command as u32, argument);
    }
    0
}

/// Runs at the return from a driver's ioctl function.
#[kretprobe]
pub fn driver_exit(context: RetProbeContext) -> u32 {
    end(context.ret::<i64>());
    0
}

#[inline(always)]
fn word(context: &TracePointContext, index: usize) -> u64 {
    // SAFETY: the record has this word. The kernel checks the access when it loads the program.
    unsafe { context.as_ptr().cast::<u64>().add(index).read_volatile() }
}

#[inline(always)]
fn begin(task: Task, Watched { device, family }: Watched, descriptor: u32, command: u32, argument: u64) {
    let tid = task.thread();
    let ioctl = Inflight {
        // SAFETY: the helper only reads a clock.
        began_ns: unsafe { bpf_ktime_get_ns() },
        argument,
        device,
        command,
        family,
        descriptor,
    };
    keep(tid, ioctl);
}

#[inline(always)]
fn end(result: i64) {
    let task = Task::current();
    let Some(ioctl) = take(task.thread()) else { return };
    // SAFETY: the helper only reads a clock.
    let latency_ns = unsafe { bpf_ktime_get_ns() }.saturating_sub(ioctl.began_ns);
    count::ended(task, &ioctl, latency_ns, result);
    trace::ended(task, &ioctl, latency_ns, result);
}

/// Stores the current thread's ioctl until it ends.
#[inline(always)]
fn keep(tid: u32, ioctl: Inflight) {
    let Some(place) = SLOTS.get_ptr_mut(slot(tid)) else { return };
    // SAFETY: an array entry lives for ever. The fields without atomic changes belong to the slot's
    // owner.
    unsafe {
        let owner = atomic::exchange_if(&raw mut (*place).owner, 0, tid.into());
        if owner == 0 || owner == u64::from(tid) {
            (&raw mut (*place).ioctl).write_volatile(ioctl);
            if owner == 0 {
                return;
            }
        } else if INFLIGHT.get_ptr(tid).is_some() {
            let _ = INFLIGHT.insert(tid, ioctl, 0);
        } else if INFLIGHT.insert(tid, ioctl, 0).is_ok() {
            atomic::add(&raw mut (*place).others, 1);
            return;
        }
    }
    // Either the maps have no room, or this ioctl replaced an earlier ioctl whose return the kernel
    // missed.
    count::total(|totals| totals.untimed += 1);
    trace::untimed(Task::current());
}

/// Removes and returns the ioctl that the current thread stored, or returns `None` if it stored
/// none.
#[inline(always)]
fn take(tid: u32) -> Option<Inflight> {
    let place = SLOTS.get_ptr_mut(slot(tid))?;
    // SAFETY: as in `keep`. This thread reads the ioctl before it frees the slot. The processor
    // keeps the order of a load and a later store (x86-64). The compiler keeps the order of
    // volatile accesses. So the next owner writes the slot only after the read.
    unsafe {
        if (&raw const (*place).owner).read_volatile() == u64::from(tid) {
            let ioctl = (&raw const (*place).ioctl).read_volatile();
            (&raw mut (*place).owner).write_volatile(0);
            return Some(ioctl);
        }
        if (&raw const (*place).others).read_volatile() == 0 {
            return None;
        }
        // This entry belongs to this thread. While the thread runs here, it changes the entry
        // nowhere else.
        let ioctl = *INFLIGHT.get(tid)?;
        // The removal succeeds, because the entry exists and no other thread removes it.
        let _ = INFLIGHT.remove(tid);
        atomic::add(&raw mut (*place).others, u64::MAX);
        Some(ioctl)
    }
}
