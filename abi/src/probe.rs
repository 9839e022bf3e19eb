//! What the kernel programs (`ebpf/`) and the controller share: names, keys, values and records of their maps, and the globals that
//! the controller sets before it loads them.
//!
//! Everything is plain data without padding. The controller takes what comes out of a map or a ring as bytes and believes none of it
//! further than its type: a record describes a user's argument, and that can hold anything.
//!
//! | map | kind | key → value | written by |
//! |---|---|---|---|
//! | `SETS` | array, mapped by the controller | a number from a [`StatKey`] → [`Set`] of those that have it | kernel; the controller removes the dead |
//! | `ROWS` | per-CPU array | a [`Place`]'s row → [`StatValue`] | kernel |
//! | `FREE_ROWS` | stack | rows that are nobody's | both |
//! | `SLOTS` | array | [`slot`] → [`Slot`] | kernel |
//! | `INFLIGHT` | hash | thread id → [`Inflight`], of those whose slot another has | kernel |
//! | `TOTALS` | per-CPU array | 0 → [`Totals`] | kernel |
//! | `COMMANDS` | hash | [`CommandKey`] → [`CommandValue`] | controller |
//! | `NEWS` | ring | [`News`] | kernel |
//! | `TRACED` | hash | process id → when it started, in [`TICK_NS`] | both |
//! | `EVENTS` | ring | [`Event`] | kernel |
//! | `SEEN` | hash, forgets the longest unused | [`SeenKey`] → [`SeenValue`] | kernel |
//! | `METERED` | hash | process id → [`MeteredValue`] | both |
//! | `LAUNCHES` | per-CPU hash | [`LaunchKey`] → [`LaunchValue`] | kernel; the controller removes the dead |
//! | `UNCOUNTED` | per-CPU array | [`uncounted`] → how many | kernel |
//! | `BEGUN` | ring | [`Begun`] | kernel |

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Kinds of devices that can be watched, at most.
pub const MAX_WATCHES: usize = 8;
/// Buckets of a latency histogram.
pub const BUCKETS: usize = 24;
/// Bucket 0 ends at two to this, ns; each further one at twice that, and the last has no end.
pub const FIRST_BUCKET_LOG2: u32 = 8;
/// Bytes of an ioctl's argument that an [`Event`] holds.
pub const PAYLOAD_BYTES: usize = 192;
/// Commands of one process and family that are counted apart, at most; the others of it are counted together, as [`REST`].
pub const COMMANDS_APART: u32 = 128;
/// In [`StatKey::command`]: all commands beyond [`COMMANDS_APART`]. No ioctl of the GPU's devices has this number.
pub const REST: u32 = u32::MAX;
/// Clock ticks of /proc, ns.
pub const TICK_NS: u64 = 10_000_000;
/// In [`Inflight::descriptor`]: it is not known, as at the driver's own functions.
pub const NO_DESCRIPTOR: u32 = u32::MAX;
/// Threads that can be inside a watched ioctl at a time while another has their slot, at most.
pub const MAX_INFLIGHT: u32 = 16_384;
/// Slots for threads that are inside a watched ioctl, as a power of two.
const SLOTS_LOG2: u32 = 14;
/// How many slots there are.
pub const SLOTS: u32 = 1 << SLOTS_LOG2;

/// Which devices are watched: those whose number, masked, is `value`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Watch {
    /// What the masked number has to be.
    pub value: u32,
    /// Its bits that count.
    pub mask: u32,
    /// Which language the device speaks, a [`Family`].
    pub family: u32,
}

impl Watch {
    /// Watches nothing: no device has all bits set.
    pub const NOTHING: Self = Self { value: u32::MAX, mask: u32::MAX, family: 0 };
}

/// A device number as the kernel keeps it: 12 bits of major, 20 of minor.
pub const fn device(major: u32, minor: u32) -> u32 {
    (major << MINOR_BITS) | (minor & MINOR_MASK)
}

/// The major number of a [`device`].
pub const fn major(device: u32) -> u32 {
    device >> MINOR_BITS
}

/// The minor number of a [`device`].
pub const fn minor(device: u32) -> u32 {
    device & MINOR_MASK
}

/// Bits of a minor number.
pub const MINOR_BITS: u32 = 20;
/// The largest minor number.
pub const MINOR_MASK: u32 = (1 << MINOR_BITS) - 1;

/// The language of a device's ioctls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Family {
    /// `/dev/nvidiactl` and `/dev/nvidiaN`: the resource manager's escapes.
    Rm = 0,
    /// `/dev/nvidia-uvm`: unified memory. Only compute opens it.
    Uvm = 1,
    /// `/dev/nvidia-modeset`: displays.
    Modeset = 2,
    /// Capabilities, NVSwitch and whatever else.
    Other = 3,
}

impl Family {
    /// The family of this number; what is none is [`Family::Other`].
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
    /// When the process began, ns of `CLOCK_BOOTTIME`: tells it from another that gets its id later.
    pub started_ns: u64,
    /// Its id, as the host sees it.
    pub pid: u32,
    /// The [`device`].
    pub device: u32,
    /// The ioctl's number.
    pub command: u32,
    /// The device's [`Family`].
    pub family: u32,
}

/// Keys that have the same number, at most, in each of the two sets that a key can be in.
pub const WAYS: usize = 8;

/// Where a key says which row its counters are in. A hash map of the kernel's would be asked by a call that takes as long as all that is counted in a row:
/// this is looked through by loads alone.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Place {
    /// [`Self::FREE`], [`Self::CLAIMED`], or a row and [`Self::FIRST_ROW`].
    pub state: u64,
    /// Whose row it is; of a place that has one.
    pub key: StatKey,
}

impl Place {
    /// Nobody's.
    pub const FREE: u64 = 0;
    /// Somebody writes its key.
    pub const CLAIMED: u64 = 1;
    /// The state of a key whose row is the first one.
    pub const FIRST_ROW: u64 = 2;
}

/// The places of keys that have the same number.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Set {
    /// In no order.
    pub places: [Place; WAYS],
}

/// The two sets, of `sets`, a power of two, in which a key can have a place. Nobody can know whose place is beside whose without the `seed`.
#[inline(always)]
pub const fn sets_of(key: &StatKey, seed: u64, sets: u32) -> [u32; 2] {
    /// Odd numbers without a pattern, from the golden ratio and as MurmurHash3 has them.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    const MIX: u64 = 0xff51_afd7_ed55_8ccd;
    let who = key.started_ns ^ seed ^ ((key.pid as u64) << u32::BITS);
    let what = ((key.command as u64) << u32::BITS) | (key.device ^ (key.family << (MINOR_BITS - 1))) as u64;
    let mixed = who.wrapping_mul(SPREAD) ^ what;
    let mixed = (mixed ^ (mixed >> u32::BITS)).wrapping_mul(MIX);
    let mixed = mixed ^ (mixed >> u32::BITS);
    [mixed as u32 & (sets - 1), (mixed >> u32::BITS) as u32 & (sets - 1)]
}

/// Counters of a [`StatKey`], of one CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StatValue {
    /// Calls.
    pub calls: u64,
    /// Those that failed.
    pub errors: u64,
    /// Time inside, ns.
    pub time_ns: u64,
    /// The longest of them, ns.
    pub longest_ns: u64,
    /// Successful calls that allocated, mapped or moved memory.
    pub memory_calls: u64,
    /// Memory that they asked for, bytes, as far as their arguments tell.
    pub allocated_bytes: u64,
    /// Memory that they mapped or moved, bytes, likewise.
    pub mapped_bytes: u64,
    /// When the last ended, ns of `CLOCK_MONOTONIC`.
    pub last_ns: u64,
    /// The command's [`facts`]; 0 before they were looked up.
    pub facts: u64,
    /// Calls by latency.
    pub buckets: [u64; BUCKETS],
}

/// What the kernel has to know of a command's argument, in one word: where the driver's own status is and where an amount of memory.
pub mod facts {
    /// Set in all of them: so none is 0.
    const KNOWN: u64 = 1 << 63;
    const AT_BITS: u32 = 16;
    const AMOUNT_SHIFT: u32 = AT_BITS;
    const KIND_SHIFT: u32 = 2 * AT_BITS;
    const AT_MASK: u64 = (1 << AT_BITS) - 1;
    const KIND_MASK: u64 = 0xff;

    /// Nothing of memory.
    pub const NO_MEMORY: u64 = 0;
    /// Maps or moves memory: 64 bits say how many bytes.
    pub const MAPS: u64 = 1;
    /// Asks for memory: 64 bits say the last byte's offset.
    pub const ALLOCATES_UP_TO: u64 = 2;
    /// Asks for memory or does something else with it, as its function says ([`super::heap`]).
    pub const HEAP: u64 = 3;
    /// Makes an object, which is memory if its class says so ([`super::object`]).
    pub const OBJECT: u64 = 4;

    /// Of a command without either.
    pub const NONE: u64 = KNOWN;

    /// Of a command whose status is at `status_at`, and which does `kind` with the amount at `amount_at`.
    pub const fn new(status_at: Option<u16>, kind: u64, amount_at: u16) -> u64 {
        let status = match status_at {
            Some(at) => at as u64 + 1,
            None => 0,
        };
        KNOWN | status | (amount_at as u64) << AMOUNT_SHIFT | kind << KIND_SHIFT
    }

    /// Where the driver's status is, 32 bits.
    #[inline(always)]
    pub const fn status_at(facts: u64) -> Option<u64> {
        match facts & AT_MASK {
            0 => None,
            at => Some(at - 1),
        }
    }

    /// What it does with memory.
    #[inline(always)]
    pub const fn kind(facts: u64) -> u64 {
        facts >> KIND_SHIFT & KIND_MASK
    }

    /// Where the amount is, 64 bits.
    #[inline(always)]
    pub const fn amount_at(facts: u64) -> u64 {
        facts >> AMOUNT_SHIFT & AT_MASK
    }
}

/// NV_ESC_RM_VID_HEAP_CONTROL (`NVOS32_PARAMETERS`): what it does is a number in its argument. In words of 8 bytes.
pub mod heap {
    /// As much of it as is looked at.
    pub const WORDS: usize = 12;
    /// What it does: the lower half.
    pub const FUNCTION_WORD: usize = 1;
    /// The driver's status: the upper half.
    pub const STATUS_WORD: usize = 2;
    /// NVOS32_FUNCTION_ALLOC_SIZE.
    pub const ALLOC_SIZE: u32 = 2;
    /// Where that has the size.
    pub const SIZE_WORD: usize = 11;
    /// NVOS32_FUNCTION_ALLOC_SIZE_RANGE.
    pub const ALLOC_SIZE_RANGE: u32 = 14;
    /// Where that has the size.
    pub const RANGE_SIZE_WORD: usize = 10;
}

/// NV_ESC_RM_ALLOC (`NVOS64_PARAMETERS`): what is made is a class in its argument. In words of 8 bytes.
pub mod object {
    /// All of it.
    pub const WORDS: usize = 6;
    /// The class: the upper half.
    pub const CLASS_WORD: usize = 1;
    /// NV01_MEMORY_SYSTEM: host memory.
    pub const MEMORY_SYSTEM: u32 = 0x3e;
    /// NV01_MEMORY_LOCAL_USER: device memory.
    pub const MEMORY_LOCAL_USER: u32 = 0x40;
    /// The address of the class's own arguments, for these `NV_MEMORY_ALLOCATION_PARAMS`.
    pub const PARAMETERS_WORD: usize = 2;
    /// Where those have the size, bytes.
    pub const SIZE_AT: u64 = 64;
    /// The driver's status: the lower half.
    pub const STATUS_WORD: usize = 5;
}

/// The bucket of a latency.
#[inline(always)]
pub const fn bucket(latency_ns: u64) -> usize {
    let mut rest = latency_ns >> FIRST_BUCKET_LOG2;
    let mut bucket = 0;
    // Five comparisons: the kernel's machine has no instruction that counts leading zeros.
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
    /// When, ns of `CLOCK_MONOTONIC`.
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

/// Where a thread keeps an ioctl that has begun, if no other thread has one there: taking an entry of an array and giving it back costs a tenth of
/// making one of a hash and removing it.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Slot {
    /// The thread that has it; 0 if none has.
    pub owner: u64,
    /// Threads whose slot it would be, and whose ioctl is in `INFLIGHT`.
    pub others: u64,
    /// Its ioctl.
    pub ioctl: Inflight,
    /// 0: a slot fills a cache line.
    pub reserved: [u64; 2],
}

const _: () = assert!(size_of::<Slot>() == 64);

/// The slot of a thread. Neighbours are far from each other, and so not in one cache line.
#[inline(always)]
pub const fn slot(tid: u32) -> u32 {
    /// 2 to the 32, divided by the golden ratio.
    const SPREAD: u32 = 0x9e37_79b1;
    tid.wrapping_mul(SPREAD) >> (u32::BITS - SLOTS_LOG2)
}

/// Counters of the whole host, of one CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Totals {
    /// Watched ioctls that ended.
    pub calls: u64,
    /// Those of them that there was no row for.
    pub unattributed: u64,
    /// Watched ioctls that there was no room to follow to their end: they are in no other counter.
    pub untimed: u64,
    /// [`News`] that had no room.
    pub news_lost: u64,
    /// [`Event`]s written.
    pub events: u64,
    /// [`Event`]s that had no room, and those of ioctls in `untimed`.
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

/// What the kernel has to know of a command.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CommandValue {
    /// Its [`facts`].
    pub facts: u64,
    /// Bytes of the argument; 0 if the number itself tells.
    pub argument_bytes: u32,
    /// 0.
    pub reserved: u32,
}

/// Bytes of the argument, as an ioctl's number tells where it follows the usual encoding.
pub const fn encoded_bytes(command: u32) -> u32 {
    (command >> 16) & 0x3fff
}

/// A process and a language that it spoke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SeenKey {
    /// As [`StatKey::started_ns`].
    pub started_ns: u64,
    /// The process's id, as the host sees it.
    pub pid: u32,
    /// The device's [`Family`].
    pub family: u32,
}

/// How many rows a [`SeenKey`] has.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SeenValue {
    /// Commands counted apart.
    pub commands: u32,
}

/// A process spoke to a kind of device for the first time, or for the first in a long while. It is told whether or not there is room to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct News {
    /// What.
    pub key: SeenKey,
}

/// A process whose calls into the driver's library are counted, and whose children's are.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MeteredValue {
    /// When it started, in [`TICK_NS`]: a later process of the same id is another.
    pub start_ticks: u64,
    /// The controller's number for what it belongs to.
    pub job: u64,
}

/// What the attached probes carry: which function they are at and what is told of it.
pub mod cookie {
    /// Bits of the function's number.
    const ENTRY_BITS: u32 = 16;
    const SIZED: u64 = 1 << ENTRY_BITS;
    const TELLS: u64 = 2 << ENTRY_BITS;

    /// For a function that is counted; if it `is_sized`, its second argument is an amount of bytes.
    pub const fn counted(entry: u16, is_sized: bool) -> u64 {
        entry as u64 | if is_sized { SIZED } else { 0 }
    }

    /// For a function that tells that a process begins to use the library, and counts nothing.
    pub const fn telling(entry: u16) -> u64 {
        entry as u64 | TELLS
    }

    /// The function's number.
    #[inline(always)]
    pub const fn entry(cookie: u64) -> u32 {
        cookie as u16 as u32
    }

    /// Whether the second argument is an amount of bytes.
    #[inline(always)]
    pub const fn is_sized(cookie: u64) -> bool {
        cookie & SIZED != 0
    }

    /// Whether it tells and counts nothing.
    #[inline(always)]
    pub const fn tells(cookie: u64) -> bool {
        cookie & TELLS != 0
    }
}

/// What there was no room for.
pub mod uncounted {
    /// Calls that `LAUNCHES` had no room for.
    pub const CALLS: u32 = 0;
    /// Processes that `METERED` had no room for.
    pub const PROCESSES: u32 = 1;
    /// How many of these there are.
    pub const KINDS: u32 = 2;
}

/// One process's use of one function of the driver's library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LaunchKey {
    /// As [`MeteredValue::start_ticks`].
    pub start_ticks: u64,
    /// The process's id, as the host sees it.
    pub pid: u32,
    /// The function, as the cookie has it.
    pub entry: u32,
}

/// Counters of a [`LaunchKey`], of one CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LaunchValue {
    /// Calls.
    pub calls: u64,
    /// Bytes that they asked for.
    pub bytes: u64,
    /// When the last began, ns of `CLOCK_MONOTONIC`.
    pub last_ns: u64,
}

/// A metered process begins to use a driver's library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Begun {
    /// As [`MeteredValue::start_ticks`].
    pub start_ticks: u64,
    /// As [`MeteredValue::job`].
    pub job: u64,
    /// The process's id, as the host sees it.
    pub pid: u32,
    /// 0.
    pub reserved: u32,
}

/// One ioctl, told in full.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Event {
    /// When it began, ns of `CLOCK_MONOTONIC`.
    pub began_ns: u64,
    /// How long it took, ns.
    pub latency_ns: u64,
    /// Its argument, most often an address.
    pub argument: u64,
    /// What it returned, an error below 0.
    pub result: i64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Device.
    pub device: u32,
    /// The device's [`Family`].
    pub family: u32,
    /// The ioctl's number.
    pub command: u32,
    /// The descriptor.
    pub descriptor: u32,
    /// Bytes of `payload` that were read.
    pub payload_bytes: u32,
    /// 0.
    pub reserved: u32,
    /// The thread's name, ended by a 0.
    pub name: [u8; 16],
    /// What the argument points to, as it was at the end of the call.
    pub payload: [u8; PAYLOAD_BYTES],
}

/// Where the kernel's structs have what the programs look for, in bytes. Read from the running kernel's type information.
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
    /// `task_struct.mm`
    pub task_memory: u32,
    /// `mm_struct.pgd`
    pub memory_table: u32,
}

/// In the place of the kernel's function `bpf_rdonly_cast` the programs call a helper of this number, which no kernel has. The controller puts the
/// function's number there; where the kernel has no such function, nothing ever gets to the call.
pub const CAST_CALL: u32 = 1_234_567;

/// How it is found where the kernel's mapping of all memory begins.
pub mod mapping {
    /// It begins at a multiple of this, bytes.
    pub const STEP: u64 = 1 << 30;
    /// Not there.
    pub const NOT_THERE: i32 = 0;
    /// There.
    pub const FOUND: i32 = 1;
}

/// Stands for this file: the kernel programs carry it, so that those of another build are told from ours.
pub const LAYOUT: u64 = hash(include_bytes!("probe.rs"));

/// FNV-1a.
const fn hash(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
}

/// Which ioctls become [`Event`]s.
pub mod tracing {
    /// None.
    pub const NONE: u32 = 0;
    /// Those of the processes in `TRACED`, and of their children.
    pub const SOME: u32 = 1;
    /// All that are watched.
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
