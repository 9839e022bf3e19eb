//! Finds the device behind a descriptor of the current task: task → files → table → file → inode →
//! device number.
//!
//! The daemon reads the offset of each field from the type information of the running kernel. The
//! daemon sets the offsets before it loads the programs. The kernel treats a read-only global as a
//! constant. So the verifier knows which field each load reads, and allows plain loads for the
//! first steps. A helper makes the other loads.

use crate::probe::{MAX_WATCHES, Watch};
use aya_ebpf::Global;
use aya_ebpf::helpers::bpf_probe_read_kernel;
use aya_ebpf::helpers::generated::bpf_get_current_task_btf;

macro_rules! offsets {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        static $name: Global<u32> = Global::new(0);
    )* };
}

offsets! {
    TASK_FILES TASK_LEADER TASK_STARTED TASK_TGID TASK_PID FILES_FDT FDT_MAX FDT_FD FILE_INODE INODE_RDEV
    INODE_MODE TASK_STATUS
}

/// 1 if a block device has the same number as a watched device; else 0. Only if the value is 1, the
/// programs check whether a device is a character device.
#[unsafe(no_mangle)]
static HAS_TWINS: Global<u32> = Global::new(0);

/// The watched devices.
#[unsafe(no_mangle)]
static WATCHES: [Global<Watch>; MAX_WATCHES] = [const { Global::new(Watch::NOTHING) }; MAX_WATCHES];

/// The bits of an inode's mode that hold the kind of file.
const KIND: u16 = 0o170_000;
/// The value of the bits `KIND` for a character device.
const CHARACTER_DEVICE: u16 = 0o020_000;
/// The bit of a task's status for a system call of a 32-bit program (`TS_COMPAT`).
const COMPAT: u32 = 2;

/// A watched device.
pub struct Watched {
    /// The device number.
    pub device: u32,
    /// The device's [`crate::probe::Family`].
    pub family: u32,
}

/// The current task. To get the task takes one call. To get facts about the task takes loads, and
/// no call.
#[derive(Clone, Copy)]
pub struct Task(*const u8);

impl Task {
    /// Returns the current task.
    #[inline(always)]
    pub fn current() -> Self {
        // SAFETY: the helper only returns which task runs.
        Self(unsafe { bpf_get_current_task_btf() }.cast())
    }

    /// Returns the thread's id, as the host sees it.
    #[inline(always)]
    pub fn thread(self) -> u32 {
        // SAFETY: `task_struct` has this field.
        unsafe { field(self.0, TASK_PID.load()) }
    }

    /// Returns the process's id, as the host sees it.
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

    /// Returns whether the task is in a system call of a 32-bit program. The system calls of such
    /// programs have numbers of their own.
    #[inline(always)]
    pub fn is_compat(self) -> bool {
        // SAFETY: `task_struct` has this field.
        unsafe { field::<u32>(self.0, TASK_STATUS.load()) & COMPAT != 0 }
    }
}

/// Returns the device behind a descriptor of the current task. Returns `None` if no rule watches
/// the device.
#[inline(always)]
pub fn watched(task: Task, descriptor: u32) -> Option<Watched> {
    // SAFETY: the verifier checks the first loads by type before the program runs. The helper
    // checks the other loads when they run. If another thread replaces a table, file or inode, the
    // old struct lives until the current grace period ends. If the kernel meanwhile reuses the
    // struct for another file, the program reads another device's number, as if the ioctl had come
    // a moment later.
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

/// Returns the device of an open file. Returns `None` if no rule watches the device.
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

/// Returns a field of a kernel struct, read by the helper. Returns `None` if the memory cannot be
/// read.
#[inline(always)]
fn read<T: Copy>(base: *const u8, offset: u32) -> Option<T> {
    // SAFETY: the helper returns an error for memory that cannot be read.
    unsafe { bpf_probe_read_kernel(base.wrapping_add(offset as usize).cast()).ok() }
}

/// Returns the family of a device, or `None` if no rule watches the device.
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

/// Returns when a task began, ns of `CLOCK_BOOTTIME`. Works for any task, not only the current
/// task.
#[inline(always)]
pub fn started_ns_of(task: *const u8) -> u64 {
    read(task, TASK_STARTED.load()).unwrap_or(0)
}

/// Returns the process id of a task. Works for any task, not only the current task.
#[inline(always)]
pub fn process_of(task: *const u8) -> Option<u32> {
    read(task, TASK_TGID.load())
}

/// Returns a field of a kernel struct, by a plain load.
///
/// # Safety
/// `base` points to a struct that has a `T` at `offset`.
#[inline(always)]
unsafe fn field<T: Copy>(base: *const u8, offset: u32) -> T {
    // SAFETY: by the contract the field exists. The load is volatile, so the compiler keeps it
    // after the checks before it.
    unsafe { base.wrapping_add(offset as usize).cast::<T>().read_volatile() }
}
