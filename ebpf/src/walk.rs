//! From the current task to the device behind one of its descriptors: task → files → table → file → inode → device number.
//!
//! Where each step's field lies is read from the running kernel's type information and set before the programs are loaded. The
//! kernel takes a global that cannot change any more for a constant, so it knows each of these loads to be of the field it is meant to
//! be, and lets the first of them be plain loads. The others are plain loads, too, where the kernel has a function that gives an
//! address a type (6.2): a load that faults is 0 then. Elsewhere a helper makes them, at four times the cost.

use crate::probe::{CAST_CALL, MAX_WATCHES, Watch};
use aya_ebpf::Global;
use aya_ebpf::helpers::bpf_probe_read_kernel;
use aya_ebpf::helpers::generated::bpf_get_current_task_btf;
use core::arch::asm;

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

/// The kernel's numbers of the types `files_struct` and `file`; 0: it cannot give an address a type.
#[unsafe(no_mangle)]
static FILES_TYPE: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static FILE_TYPE: Global<u32> = Global::new(0);
/// Where a `files_struct` has an array of files of its own, of the same type as every table of files.
#[unsafe(no_mangle)]
static FILES_ARRAY: Global<u32> = Global::new(0);

/// Whether there are block devices with the number of one that is watched: only then a device's kind has to be looked at.
#[unsafe(no_mangle)]
static HAS_TWINS: Global<u32> = Global::new(0);

/// Which devices are watched.
#[unsafe(no_mangle)]
static WATCHES: [Global<Watch>; MAX_WATCHES] = [const { Global::new(Watch::NOTHING) }; MAX_WATCHES];

/// The bits of a mode that tell the kind of a file, and a character device's.
const KIND: u16 = 0o170_000;
const CHARACTER_DEVICE: u16 = 0o020_000;
/// In a task's status: it is in a system call of 32-bit programs (`TS_COMPAT`).
const COMPAT: u32 = 2;

/// A device that is watched.
pub struct Watched {
    /// Its number.
    pub device: u32,
    /// Its family.
    pub family: u32,
}

/// The current task: one call gives it, and loads from it what other calls would tell.
#[derive(Clone, Copy)]
pub struct Task(pub(crate) *const u8);

impl Task {
    /// Asks for it.
    #[inline(always)]
    pub fn current() -> Self {
        // SAFETY: it only says which task runs.
        Self(unsafe { bpf_get_current_task_btf() }.cast())
    }

    /// The thread's id, as the host sees it.
    #[inline(always)]
    pub fn thread(self) -> u32 {
        // SAFETY: a task has this field.
        unsafe { field(self.0, TASK_PID.load()) }
    }

    /// The process's id, as the host sees it.
    #[inline(always)]
    pub fn process(self) -> u32 {
        // SAFETY: a task has this field.
        unsafe { field(self.0, TASK_TGID.load()) }
    }

    /// When its process began, ns of `CLOCK_BOOTTIME`.
    #[inline(always)]
    pub fn process_started_ns(self) -> u64 {
        // SAFETY: a task has this field; its leader lives as long as the task.
        unsafe {
            let leader = field::<*const u8>(self.0, TASK_LEADER.load());
            if leader.is_null() { 0 } else { field(leader, TASK_STARTED.load()) }
        }
    }

    /// Whether it is in a system call of 32-bit programs, which have numbers of their own.
    #[inline(always)]
    pub fn is_compat(self) -> bool {
        // SAFETY: a task has this field.
        unsafe { field::<u32>(self.0, TASK_STATUS.load()) & COMPAT != 0 }
    }
}

/// The device behind a descriptor of the current task, if it is watched.
#[inline(always)]
pub fn watched(task: Task, descriptor: u32) -> Option<Watched> {
    // SAFETY: the kernel checks each load before it runs the program: the first ones by the type of what they load from, the others,
    // by a helper, when they happen. A table that is replaced meanwhile lives until the current grace period is over, and so does a
    // file or inode; if one is reused, another device's number is read, as if the ioctl had come a moment later.
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
        if FILES_TYPE.load() == 0 {
            return device_of(bpf_probe_read_kernel(place).ok()?);
        }
        // What is cast is to the place in the table as a `files_struct` is to its own first one.
        let files = place.cast::<u8>().wrapping_sub(FILES_ARRAY.load() as usize);
        device_of(field(cast(files, FILES_TYPE.load()), FILES_ARRAY.load()))
    }
}

/// The device that an open file is, if it is watched.
#[inline(always)]
pub fn watched_file(file: *const u8) -> Option<Watched> {
    // SAFETY: as in `watched`.
    unsafe { device_of(if FILES_TYPE.load() == 0 { file } else { cast(file, FILE_TYPE.load()) }) }
}

/// # Safety
/// If the kernel gives types, this has one.
#[inline(always)]
unsafe fn device_of(file: *const u8) -> Option<Watched> {
    if file.is_null() {
        return None;
    }
    // SAFETY: by the contract; the kernel checks it.
    unsafe {
        let inode = load::<*const u8>(file, FILE_INODE.load())?;
        let device = load::<u32>(inode, INODE_RDEV.load())?;
        let family = family(device)?;
        if HAS_TWINS.load() != 0 && load::<u16>(inode, INODE_MODE.load())? & KIND != CHARACTER_DEVICE {
            return None;
        }
        Some(Watched { device, family })
    }
}

/// Loads a field, by a helper where the kernel gives no types.
///
/// # Safety
/// As for [`field`], if it gives types.
#[inline(always)]
unsafe fn load<T: Copy>(base: *const u8, offset: u32) -> Option<T> {
    // SAFETY: by the contract; the helper answers an error for what cannot be read.
    unsafe {
        if FILES_TYPE.load() == 0 {
            bpf_probe_read_kernel(base.wrapping_add(offset as usize).cast()).ok()
        } else {
            Some(field(base, offset))
        }
    }
}

/// Gives an address the type of this number, for the kernel's check; it may point to anything.
///
/// # Safety
/// The kernel has the function that the controller puts here.
#[inline(always)]
pub(crate) unsafe fn cast(address: *const u8, kind: u32) -> *const u8 {
    let typed;
    // SAFETY: by the contract; it changes nothing.
    unsafe {
        asm!(
            "call {cast}",
            cast = const CAST_CALL,
            inlateout("r1") address => _,
            inlateout("r2") u64::from(kind) => _,
            lateout("r0") typed,
            lateout("r3") _, lateout("r4") _, lateout("r5") _,
        );
    }
    typed
}

/// The family of a device that is watched.
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

/// When a task that is not the current one began, ns of `CLOCK_BOOTTIME`.
#[inline(always)]
pub fn started_ns_of(task: *const u8) -> u64 {
    // SAFETY: the helper answers an error for what cannot be read.
    unsafe { bpf_probe_read_kernel(task.wrapping_add(TASK_STARTED.load() as usize).cast()) }.unwrap_or(0)
}

/// The process that a task which is not the current one belongs to.
#[inline(always)]
pub fn process_of(task: *const u8) -> Option<u32> {
    // SAFETY: the helper answers an error for what cannot be read.
    unsafe { bpf_probe_read_kernel(task.wrapping_add(TASK_TGID.load() as usize).cast()) }.ok()
}

/// Loads a field of one of the kernel's structs.
///
/// # Safety
/// `base` points to a struct that has a `T` at `offset`.
#[inline(always)]
pub(crate) unsafe fn field<T: Copy>(base: *const u8, offset: u32) -> T {
    // SAFETY: by the contract; volatile, so that the load stays where the checks before it are.
    unsafe { base.wrapping_add(offset as usize).cast::<T>().read_volatile() }
}
