//! The interface between the kernel programs (`ebpf/`) and the daemon: names, keys, values and
//! records of their maps, and the globals that the daemon sets before it loads them.
//!
//! Everything is plain data without padding. The daemon reads map values and ring records as bytes,
//! and relies only on their types. A record describes an argument of a user's program, which may
//! contain anything.
//!
//! | map | kind | key → value | written by |
//! |---|---|---|---|
//! | `SETS` | array, mapped by the daemon | a set's number ([`sets_of`]) → [`Set`] of the keys that have it | kernel; the daemon removes the dead |
//! | `ROWS` | per-CPU array | a [`Place`]'s row → [`StatValue`] | kernel |
//! | `FREE_ROWS` | stack | rows that are not in use | both |
//! | `SLOTS` | array | [`slot`] → [`Slot`] | kernel |
//! | `INFLIGHT` | hash | thread id → [`Inflight`], for threads whose slot another thread has | kernel |
//! | `TOTALS` | per-CPU array | 0 → [`Totals`] | kernel |
//! | `COMMANDS` | hash | [`CommandKey`] → [`CommandValue`] | daemon |
//! | `NEWS` | ring | [`News`] | kernel |
//! | `TRACED` | hash | process id → when it started, in [`TICK_NS`] | both |
//! | `EVENTS` | ring | [`Event`] | kernel |
//! | `SEEN` | hash, forgets the longest unused | [`SeenKey`] → [`SeenValue`] | kernel |
//! | `METERED` | hash | process id → [`MeteredValue`] | both |
//! | `LAUNCHES` | per-CPU hash | [`LaunchKey`] → [`LaunchValue`] | kernel; the daemon removes the dead |
//! | `UNCOUNTED` | per-CPU array | [`uncounted`] → number | kernel |
//! | `BEGUN` | ring | [`Begun`] | kernel |

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The most kinds of devices that can be watched.
pub const MAX_WATCHES: usize = 8;
/// Number of buckets in a latency histogram.
pub const BUCKETS: usize = 24;
/// Bucket 0 ends at two to this power, ns. Each further bucket ends at twice the former, and the
/// last has no end.
pub const FIRST_BUCKET_LOG2: u32 = 8;
/// Bytes of an ioctl's argument that an [`Event`] holds.
pub const PAYLOAD_BYTES: usize = 192;
/// The most commands of one process and family that are counted separately. Further commands are
/// counted together, as [`REST`].
pub const COMMANDS_APART: u32 = 128;
/// Value of [`StatKey::command`] for all commands beyond [`COMMANDS_APART`]. No ioctl of the GPU's
/// devices has this number.
pub const REST: u32 = u32::MAX;
/// Length of a clock tick of /proc, ns.
pub const TICK_NS: u64 = 10_000_000;
/// Value of [`Inflight::descriptor`] if the descriptor is unknown, as at the driver's own
/// functions.
pub const NO_DESCRIPTOR: u32 = u32::MAX;
/// The most threads that can be in a watched ioctl at a time while another thread has their slot.
pub const MAX_INFLIGHT: u32 = 16_384;
/// Number of slots for threads in a watched ioctl, as a power of two.
const SLOTS_LOG2: u32 = 14;
/// Number of slots.
pub const SLOTS: u32 = 1 << SLOTS_LOG2;

/// A rule for watched devices: it applies to those whose masked number is `value`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Watch {
    /// The required value of the masked number.
    pub value: u32,
    /// The bits of the number that count.
    pub mask: u32,
    /// The [`Family`] of the device.
    pub family: u32,
}

impl Watch {
    /// Watches nothing, because no device has all bits set.
    pub const NOTHING: Self = Self { value: u32::MAX, mask: u32::MAX, family: 0 };
}

/// Returns a device number as the kernel keeps it: 12 bits of major and 20 bits of minor.
pub const fn device(major: u32, minor: u32) -> u32 {
    (major << MINOR_BITS) | (minor & MINOR_MASK)
}

/// Returns the major number of a [`device`].
pub const fn major(device: u32) -> u32 {
    device >> MINOR_BITS
}

/// Returns the minor number of a [`device`].
pub const fn minor(device: u32) -> u32 {
    device & MINOR_MASK
}

/// Number of bits in a minor number.
pub const MINOR_BITS: u32 = 20;
/// The largest minor number.
pub const MINOR_MASK: u32 = (1 << MINOR_BITS) - 1;

/// The language of a device's ioctls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Family {
    /// `/dev/nvidiactl` and `/dev/nvidiaN`: the resource manager's escapes.
    Rm = 0,
    /// `/dev/nvidia-uvm`: unified memory. Only compute programs open it.
    Uvm = 1,
    /// `/dev/nvidia-modeset`: displays.
    Modeset = 2,
    /// Capabilities, NVSwitch and everything else.
    Other = 3,
}

impl Family {
    /// Returns the family with this number, or [`Family::Other`] if there is none.
    pub const fn from_u32(number: u32) -> Self {
        match number {
            0 => Self::Rm,
            1 => Self::Uvm,
            2 => Self::Modeset,
            _ => Self::Other,
        }
    }
}

/// One process's use of one command of one device.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct StatKey {
    /// When the process began, ns of `CLOCK_BOOTTIME`. It distinguishes the process from a later
    /// one with the same id.
    pub started_ns: u64,
    /// The process's id, as seen by the host.
    pub pid: u32,
    /// The [`device`].
    pub device: u32,
    /// The ioctl's number.
    pub command: u32,
    /// The device's [`Family`].
    pub family: u32,
}

/// The most keys with the same number, in each of the two sets that a key can be in.
pub const WAYS: usize = 8;

/// The place where a key says which row has its counters. A helper call for a kernel hash map would
/// take as long as all counting in a row. Places are searched by loads alone.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Place {
    /// [`Self::FREE`], [`Self::CLAIMED`], or the row plus [`Self::FIRST_ROW`].
    pub state: u64,
    /// The key that owns the row. Valid if the place has a row.
    pub key: StatKey,
}

impl Place {
    /// The place is free.
    pub const FREE: u64 = 0;
    /// A program is writing the place's key.
    pub const CLAIMED: u64 = 1;
    /// The state of a key with row 0.
    pub const FIRST_ROW: u64 = 2;
}

/// The places of keys that have the same number.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Set {
    /// The places, in no order.
    pub places: [Place; WAYS],
}

/// Returns the numbers of the two sets, among `sets` (a power of two), in which a key can have a
/// place. Without the `seed`, it cannot be predicted which keys share a set.
#[inline(always)]
pub const fn sets_of(key: &StatKey, seed: u64, sets: u32) -> [u32; 2] {
    /// Odd numbers without a pattern: from the golden ratio, and from MurmurHash3.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    const MIX: u64 = 0xff51_afd7_ed55_8ccd;
    let who = key.started_ns ^ seed ^ ((key.pid as u64) << u32::BITS);
    let what = ((key.command as u64) << u32::BITS) | (key.device ^ (key.family << (MINOR_BITS - 1))) as u64;
    let mixed = who.wrapping_mul(SPREAD) ^ what;
    let mixed = (mixed ^ (mixed >> u32::BITS)).wrapping_mul(MIX);
    let mixed = mixed ^ (mixed >> u32::BITS);
    [mixed as u32 & (sets - 1), (mixed >> u32::BITS) as u32 & (sets - 1)]
}

/// Counters of a [`StatKey`] on one CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StatValue {
    /// Number of calls.
    pub calls: u64,
    /// Number of failed calls.
    pub errors: u64,
    /// Time inside the calls, ns.
    pub time_ns: u64,
    /// Longest call, ns.
    pub longest_ns: u64,
    /// Number of successful calls that allocated, mapped or moved memory.
    pub memory_calls: u64,
    /// Memory that these calls asked for, bytes, as far as their arguments tell.
    pub allocated_bytes: u64,
    /// Memory that these calls mapped or moved, bytes, as far as their arguments tell.
    pub mapped_bytes: u64,
    /// When the last call ended, ns of `CLOCK_MONOTONIC`.
    pub last_ns: u64,
    /// The command's [`facts`]. 0 before they were looked up.
    pub facts: u64,
    /// Number of calls by latency.
    pub buckets: [u64; BUCKETS],
}

/// Facts about a command's argument in one word: where the driver's own status is, and where an
/// amount of memory is.
pub mod facts {
    /// Set in all facts, so that none is 0.
    const KNOWN: u64 = 1 << 63;
    const AT_BITS: u32 = 16;
    const AMOUNT_SHIFT: u32 = AT_BITS;
    const KIND_SHIFT: u32 = 2 * AT_BITS;
    const AT_MASK: u64 = (1 << AT_BITS) - 1;
    const KIND_MASK: u64 = 0xff;

    /// The command does nothing with memory.
    pub const NO_MEMORY: u64 = 0;
    /// The command maps or moves memory. 64 bits hold the number of bytes.
    pub const MAPS: u64 = 1;
    /// The command asks for memory. 64 bits hold the offset of the last byte.
    pub const ALLOCATES_UP_TO: u64 = 2;
    /// The command asks for memory, or does something else with it. A function number in the
    /// argument decides ([`super::heap`]).
    pub const HEAP: u64 = 3;
    /// The command makes an object, which is memory if its class says so ([`super::object`]).
    pub const OBJECT: u64 = 4;

    /// Facts of a command with neither a status nor memory.
    pub const NONE: u64 = KNOWN;

    /// Returns the facts of a command with its status at `status_at`. The command does `kind` with
    /// the amount at `amount_at`.
    pub const fn new(status_at: Option<u16>, kind: u64, amount_at: u16) -> u64 {
        let status = match status_at {
            Some(at) => at as u64 + 1,
            None => 0,
        };
        KNOWN | status | (amount_at as u64) << AMOUNT_SHIFT | kind << KIND_SHIFT
    }

    /// Returns where the driver's status is, 32 bits.
    #[inline(always)]
    pub const fn status_at(facts: u64) -> Option<u64> {
        match facts & AT_MASK {
            0 => None,
            at => Some(at - 1),
        }
    }

    /// Returns what the command does with memory.
    #[inline(always)]
    pub const fn kind(facts: u64) -> u64 {
        facts >> KIND_SHIFT & KIND_MASK
    }

    /// Returns where the amount is, 64 bits.
    #[inline(always)]
    pub const fn amount_at(facts: u64) -> u64 {
        facts >> AMOUNT_SHIFT & AT_MASK
    }
}

/// NV_ESC_RM_VID_HEAP_CONTROL (`NVOS32_PARAMETERS`). A number in its argument decides what it does.
/// Positions are in words of 8 bytes.
pub mod heap {
    /// Number of words that are read.
    pub const WORDS: usize = 12;
    /// The function number: the lower half of this word.
    pub const FUNCTION_WORD: usize = 1;
    /// The driver's status: the upper half of this word.
    pub const STATUS_WORD: usize = 2;
    /// NVOS32_FUNCTION_ALLOC_SIZE.
    pub const ALLOC_SIZE: u32 = 2;
    /// Position of the size for that function.
    pub const SIZE_WORD: usize = 11;
    /// NVOS32_FUNCTION_ALLOC_SIZE_RANGE.
    pub const ALLOC_SIZE_RANGE: u32 = 14;
    /// Position of the size for that function.
    pub const RANGE_SIZE_WORD: usize = 10;
}

/// NV_ESC_RM_ALLOC (`NVOS64_PARAMETERS`). A class in its argument decides what is made. Positions
/// are in words of 8 bytes.
pub mod object {
    /// Number of words in the whole argument.
    pub const WORDS: usize = 6;
    /// The class: the upper half of this word.
    pub const CLASS_WORD: usize = 1;
    /// NV01_MEMORY_SYSTEM: host memory.
    pub const MEMORY_SYSTEM: u32 = 0x3e;
    /// NV01_MEMORY_LOCAL_USER: device memory.
    pub const MEMORY_LOCAL_USER: u32 = 0x40;
    /// The address of the class's own arguments. For these classes they are
    /// `NV_MEMORY_ALLOCATION_PARAMS`.
    pub const PARAMETERS_WORD: usize = 2;
    /// Offset of the size in those arguments, bytes.
    pub const SIZE_AT: u64 = 64;
    /// The driver's status: the lower half of this word.
    pub const STATUS_WORD: usize = 5;
}

/// Returns the bucket of a latency.
#[inline(always)]
pub const fn bucket(latency_ns: u64) -> usize {
    let mut rest = latency_ns >> FIRST_BUCKET_LOG2;
    let mut bucket = 0;
    // Five comparisons are used, because the kernel's virtual machine has no instruction that
    // counts leading zeros.
    if rest >= 1 << 16 {
        rest >>= 16;
        bucket += 16;
    }
    if rest >= 1 << 8 {
        rest >>= 8;
        bucket += 8;
    }
    if rest >= 1 << 4 {
        rest >>= 4;
        bucket += 4;
    }
    if rest >= 1 << 2 {
        rest >>= 2;
        bucket += 2;
    }
    if rest >= 1 << 1 {
        rest >>= 1;
        bucket += 1;
    }
    bucket += rest as usize;
    if bucket >= BUCKETS { BUCKETS - 1 } else { bucket }
}

/// An ioctl that has begun.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Inflight {
    /// When it began, ns of `CLOCK_MONOTONIC`.
    pub began_ns: u64,
    /// Its argument.
    pub argument: u64,
    /// Its device.
    pub device: u32,
    /// Its number.
    pub command: u32,
    /// The device's [`Family`].
    pub family: u32,
    /// The descriptor.
    pub descriptor: u32,
}

/// A slot in which a thread keeps an ioctl that has begun, if no other thread uses the slot. Taking
/// and freeing an array entry costs a tenth of inserting and removing a hash entry.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Slot {
    /// The thread that has the slot. 0 if none has.
    pub owner: u64,
    /// Number of threads that would use this slot and have their ioctl in `INFLIGHT`.
    pub others: u64,
    /// The owner's ioctl.
    pub ioctl: Inflight,
    /// 0. A slot fills a cache line.
    pub reserved: [u64; 2],
}

const _: () = assert!(size_of::<Slot>() == 64);

/// Returns the slot of a thread. Neighbouring threads get distant slots, so they share no cache
/// line.
#[inline(always)]
pub const fn slot(tid: u32) -> u32 {
    /// 2³² divided by the golden ratio.
    const SPREAD: u32 = 0x9e37_79b1;
    tid.wrapping_mul(SPREAD) >> (u32::BITS - SLOTS_LOG2)
}

/// Counters of the whole host on one CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Totals {
    /// Number of watched ioctls that ended.
    pub calls: u64,
    /// Number of these ioctls without a row.
    pub unattributed: u64,
    /// Number of watched ioctls that could not be followed to their end for lack of room. No other
    /// counter includes them.
    pub untimed: u64,
    /// Number of [`News`] records that had no room.
    pub news_lost: u64,
    /// Number of [`Event`]s written.
    pub events: u64,
    /// Number of [`Event`]s that had no room, including those of ioctls in `untimed`.
    pub events_lost: u64,
}

/// A command of a [`Family`].
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CommandKey {
    /// The [`Family`].
    pub family: u32,
    /// The ioctl's number.
    pub command: u32,
}

/// The kernel programs' knowledge about a command.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CommandValue {
    /// The command's [`facts`].
    pub facts: u64,
    /// Size of the argument, bytes. 0 if the number itself tells.
    pub argument_bytes: u32,
    /// Always 0.
    pub reserved: u32,
}

/// Returns the size of the argument, bytes, from an ioctl's number that follows the usual encoding.
pub const fn encoded_bytes(command: u32) -> u32 {
    (command >> 16) & 0x3fff
}

/// A process and a family of devices that it used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SeenKey {
    /// When the process began, as [`StatKey::started_ns`].
    pub started_ns: u64,
    /// The process's id, as seen by the host.
    pub pid: u32,
    /// The device's [`Family`].
    pub family: u32,
}

/// The number of rows of a [`SeenKey`].
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SeenValue {
    /// Number of commands counted separately.
    pub commands: u32,
}

/// A process used a family of devices for the first time, or for the first time in a long while.
/// The record is written whether or not there is room to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct News {
    /// The process and the family.
    pub key: SeenKey,
}

/// A process whose calls into the driver's library are counted, including its children's calls.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MeteredValue {
    /// When the process started, in [`TICK_NS`]. It distinguishes the process from a later one with
    /// the same id.
    pub start_ticks: u64,
    /// The daemon's number for the job of the process.
    pub job: u64,
}

/// The values that attached probes carry: the function, and what is known about it.
pub mod cookie {
    /// Number of bits for the function's number.
    const ENTRY_BITS: u32 = 16;
    const SIZED: u64 = 1 << ENTRY_BITS;
    const TELLS: u64 = 2 << ENTRY_BITS;

    /// Returns the cookie of a function that is counted. `is_sized`: whether its second argument is
    /// an amount of bytes.
    pub const fn counted(entry: u16, is_sized: bool) -> u64 {
        entry as u64 | if is_sized { SIZED } else { 0 }
    }

    /// Returns the cookie of a function that only reports that a process begins to use the library.
    /// It is not counted.
    pub const fn telling(entry: u16) -> u64 {
        entry as u64 | TELLS
    }

    /// Returns the function's number.
    #[inline(always)]
    pub const fn entry(cookie: u64) -> u32 {
        cookie as u16 as u32
    }

    /// Whether the second argument is an amount of bytes.
    #[inline(always)]
    pub const fn is_sized(cookie: u64) -> bool {
        cookie & SIZED != 0
    }

    /// Whether the function only reports, and is not counted.
    #[inline(always)]
    pub const fn tells(cookie: u64) -> bool {
        cookie & TELLS != 0
    }
}

/// Counts of things for which there was no room.
pub mod uncounted {
    /// Calls for which `LAUNCHES` had no room.
    pub const CALLS: u32 = 0;
    /// Processes for which `METERED` had no room.
    pub const PROCESSES: u32 = 1;
    /// Number of these kinds.
    pub const KINDS: u32 = 2;
}

/// One process's use of one function of the driver's library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LaunchKey {
    /// When the process started, as [`MeteredValue::start_ticks`].
    pub start_ticks: u64,
    /// The process's id, as seen by the host.
    pub pid: u32,
    /// The function's number, as in the cookie.
    pub entry: u32,
}

/// Counters of a [`LaunchKey`] on one CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LaunchValue {
    /// Number of calls.
    pub calls: u64,
    /// Bytes that the calls asked for.
    pub bytes: u64,
    /// When the last call began, ns of `CLOCK_MONOTONIC`.
    pub last_ns: u64,
}

/// A metered process begins to use a driver's library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Begun {
    /// When the process started, as [`MeteredValue::start_ticks`].
    pub start_ticks: u64,
    /// The job, as [`MeteredValue::job`].
    pub job: u64,
    /// The process's id, as seen by the host.
    pub pid: u32,
    /// Always 0.
    pub reserved: u32,
}

/// One ioctl in full.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Event {
    /// When it began, ns of `CLOCK_MONOTONIC`.
    pub began_ns: u64,
    /// Its duration, ns.
    pub latency_ns: u64,
    /// Its argument, mostly an address.
    pub argument: u64,
    /// Its result. An error is negative.
    pub result: i64,
    /// The process's id.
    pub pid: u32,
    /// The thread's id.
    pub tid: u32,
    /// The [`device`].
    pub device: u32,
    /// The device's [`Family`].
    pub family: u32,
    /// The ioctl's number.
    pub command: u32,
    /// The descriptor.
    pub descriptor: u32,
    /// Bytes of `payload` that were read.
    pub payload_bytes: u32,
    /// Always 0.
    pub reserved: u32,
    /// The thread's name, terminated by 0.
    pub name: [u8; 16],
    /// The memory that the argument points to, as of the end of the call.
    pub payload: [u8; PAYLOAD_BYTES],
}

/// Offsets of the kernel's struct fields that the programs read, bytes. They come from the running
/// kernel's type information.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Offsets {
    /// `task_struct.files`
    pub task_files: u32,
    /// `task_struct.group_leader`
    pub task_leader: u32,
    /// `task_struct.start_boottime`
    pub task_started: u32,
    /// `task_struct.tgid`
    pub task_tgid: u32,
    /// `task_struct.pid`
    pub task_pid: u32,
    /// `files_struct.fdt`
    pub files_fdt: u32,
    /// `fdtable.max_fds`
    pub fdt_max: u32,
    /// `fdtable.fd`
    pub fdt_fd: u32,
    /// `file.f_inode`
    pub file_inode: u32,
    /// `inode.i_rdev`
    pub inode_rdev: u32,
    /// `inode.i_mode`
    pub inode_mode: u32,
    /// `task_struct.thread_info.status`
    pub task_status: u32,
}

/// A hash of this file. The kernel programs carry it, so that programs of another build are
/// recognised.
pub const LAYOUT: u64 = hash(include_bytes!("probe.rs"));

/// Returns the FNV-1a hash.
const fn hash(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
}

/// The choice of ioctls that become [`Event`]s.
pub mod tracing {
    /// None.
    pub const NONE: u32 = 0;
    /// Those of the processes in `TRACED` and of their children.
    pub const SOME: u32 = 1;
    /// All watched ioctls.
    pub const ALL: u32 = 2;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_double_from_256_ns_on() {
        for (ns, expected) in [
            (0, 0),
            (255, 0),
            (256, 1),
            (511, 1),
            (512, 2),
            (1 << 20, 13),
            ((1 << 21) - 1, 13),
            (1 << 29, 22),
            (1 << 30, 23),
            (u64::MAX, 23),
        ] {
            assert_eq!(bucket(ns), expected, "{ns}");
        }
    }

    #[test]
    fn a_cookie_says_what_was_put_into_it() {
        let read = |carried| (cookie::entry(carried), cookie::is_sized(carried), cookie::tells(carried));
        assert_eq!(read(cookie::counted(u16::MAX, true)), (65_535, true, false));
        assert_eq!(read(cookie::counted(7, false)), (7, false, false));
        assert_eq!(read(cookie::telling(7)), (7, false, true));
    }

    #[test]
    fn facts_say_what_was_put_into_them() {
        let read = |word| (facts::status_at(word), facts::kind(word), facts::amount_at(word));
        assert_eq!(read(facts::NONE), (None, facts::NO_MEMORY, 0));
        assert_eq!(read(facts::new(Some(0), facts::MAPS, 8)), (Some(0), facts::MAPS, 8));
        assert_eq!(read(facts::new(Some(40), facts::OBJECT, 0)), (Some(40), facts::OBJECT, 0));
        assert_ne!(facts::NONE, 0, "none is taken for not looked up");
    }

    #[test]
    fn a_device_number_comes_apart_as_it_was_put_together() {
        let null = device(1, 3);
        assert_eq!((null, major(null), minor(null)), (0x10_0003, 1, 3));
        let last = device(4095, MINOR_MASK);
        assert_eq!((major(last), minor(last)), (4095, MINOR_MASK));
        assert_eq!(last, Watch::NOTHING.value, "no kernel gives out the last number of all");
    }
}
