//! Finds the device behind a descriptor of the current task: task → files → table → file → inode →
//! device number.
//!
//! The controller reads each field's offset from the running kernel's type information, and sets
//! the offsets before it loads the programs. The kernel treats a read-only global as a constant.
//! Therefore the verifier knows which field each load reads, and allows plain loads for the first
//! steps. A helper makes the other loads.

use crate::probe::{MAX_WATCHES, Watch};
use aya_ebpf::Global;
use aya_ebpf::helpers::bpf_probe_read_kernel;
use aya_ebpf::helpers::generated::bpf_get_current_task_btf;

#[unsafe(no_mangle)]
static TASK_FILES: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static TASK_LEADER: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static TASK_STARTED: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static TASK_TGID: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static TASK_PID: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static FILES_FDT: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static FDT_MAX: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static FDT_FD: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static FILE_INODE: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static INODE_RDEV: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static INODE_MODE: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static TASK_STATUS: Global<u32> = Global::new(0);

/// 1 if a block device has the number of a watched device. Only then the programs check a device's
/// kind.
#[unsafe(no_mangle)]
static HAS_TWINS: Global<u32> = Global::new(0);

/// The watched devices.
#[unsafe(no_mangle)]
static WATCHES: [Global<Watch>; MAX_WATCHES] = [const { Global::new(Watch::NOTHING) }; MAX_WATCHES];

/// Bits of an inode's mode that hold the kind of file, and their value for a character device.
const KIND: u16 = 0o170_000;
const CHARACTER_DEVICE: u16 = 0o020_000;
/// Bit of a task's status: the task is in a system call of a 32-bit program (`TS_COMPAT`).
const COMPAT: u32 = 2;

/// A watched device.
pub struct Watched {
    /// Device number.
    pub device: u32,
    /// The device's [`crate::probe::Family`].
    pub family: u32,
}

/// The current task. One call gets the task; further facts are loads from it, without a call each.
#[derive(Clone, Copy)]
pub struct Task(*const u8);

impl Task {
    /// Asks the kernel for the current task.
    #[inline(always)]
    pub fn current() -> Self {
        // SAFETY: the helper only says which task runs.
        Self(unsafe { bpf_get_current_task_btf() }.cast())
    }

    /// The thread's id, as the host sees it.
    #[inline(always)]
    pub fn thread(self) -> u32 {
        // SAFETY: `task_struct` has this field.
        unsafe { field(self.0, TASK_PID.load()) }
    }

    /// The process's id, as the host sees it.
    #[inline(always)]
    pub fn process(self) -> u32 {
        // SAFETY: `task_struct` has this field.
        unsafe { field(self.0, TASK_TGID.load()) }
    }

    /// Returns when the task's process began, ns of `CLOCK_BOOTTIME`.
    #[inline(always)]
    pub fn process_started_ns(self) -> u64 {
        // SAFETY: `task_struct` has these fields; the leader lives as long as the task.
        unsafe {
            let leader = field::<*const u8>(self.0, TASK_LEADER.load());
            if leader.is_null() { 0 } else { field(leader, TASK_STARTED.load()) }
        }
    }

    /// Whether the task is in a system call of a 32-bit program. Those calls have numbers of their
    /// own.
    #[inline(always)]
    pub fn is_compat(self) -> bool {
        // SAFETY: `task_struct` has this field.
        unsafe { field::<u32>(self.0, TASK_STATUS.load()) & COMPAT != 0 }
    }
}

/// Returns the device behind a descriptor of the current task, if the device is watched.
#[inline(always)]
pub fn watched(task: Task, descriptor: u32) -> Option<Watched> {
    // SAFETY: the verifier checks the first loads by type before the program runs; the helper checks
    // the others when they run. A replaced table, file or inode lives until the current grace period
    // ends. If one is reused, the program reads another device's number, as if the ioctl had come a
    // moment later.
    unsafe {
        let files = field::<*const u8>(task.0, TASK_FILES.load());
        if files.is_null() {
            return None;
        }
        let table = field::<*const u8>(files, FILES_FDT.load());
        if table.is_null() || descriptor >= field::<u32>(table, FDT_MAX.load()) {
            return None;
        }
        let place = field::<*const *const u8>(table, FDT_FD.load()).wrapping_add(descriptor as usize);
        watched_file(bpf_probe_read_kernel(place).ok()?)
    }
}

/// Returns the device of an open file, if the device is watched.
#[inline(always)]
pub fn watched_file(file: *const u8) -> Option<Watched> {
    if file.is_null() {
        return None;
    }
    let inode = read::<*const u8>(file, FILE_INODE.load())?;
    let device = read::<u32>(inode, INODE_RDEV.load())?;
    let family = family(device)?;
    if HAS_TWINS.load() != 0 && read::<u16>(inode, INODE_MODE.load())? & KIND != CHARACTER_DEVICE {
        return None;
    }
    Some(Watched { device, family })
}

/// Reads a field of one of the kernel's structs by the helper. `None` if the memory cannot be read.
#[inline(always)]
fn read<T: Copy>(base: *const u8, offset: u32) -> Option<T> {
    // SAFETY: the helper returns an error for memory that cannot be read.
    unsafe { bpf_probe_read_kernel(base.wrapping_add(offset as usize).cast()).ok() }
}

/// Returns the family of a device, if the device is watched.
#[inline(always)]
fn family(device: u32) -> Option<u32> {
    if device == 0 {
        return None;
    }
    for watch in &WATCHES {
        let watch = watch.load();
        if device & watch.mask == watch.value {
            return Some(watch.family);
        }
        if watch.value == Watch::NOTHING.value {
            return None;
        }
    }
    None
}

/// Returns when a task other than the current one began, ns of `CLOCK_BOOTTIME`.
#[inline(always)]
pub fn started_ns_of(task: *const u8) -> u64 {
    read(task, TASK_STARTED.load()).unwrap_or(0)
}

/// Returns the process id of a task other than the current one.
#[inline(always)]
pub fn process_of(task: *const u8) -> Option<u32> {
    read(task, TASK_TGID.load())
}

/// Loads a field of one of the kernel's structs.
///
/// # Safety
/// `base` points to a struct that has a `T` at `offset`.
#[inline(always)]
unsafe fn field<T: Copy>(base: *const u8, offset: u32) -> T {
    // SAFETY: by the contract the field exists. The load is volatile so that it stays after the
    // checks before it.
    unsafe { base.wrapping_add(offset as usize).cast::<T>().read_volatile() }
}
