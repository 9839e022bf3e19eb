//! The interface between the eBPF programs (`ebpf/`) and the daemon: the keys, values and records
//! of their maps, and the programs' globals. The daemon sets the globals before it loads the
//! programs.
//!
//! All types are plain data without padding. The daemon reads map values and ring records as bytes,
//! and relies only on their types. A record describes an argument of a user's program, so it can
//! contain anything.
//!
//! | map | kind | key → value | written by |
//! |---|---|---|---|
//! | `SETS` | array, mapped by the daemon | a set's number ([`sets_of`]) → [`Set`] of the keys that have it | kernel; the daemon removes keys of dead processes |
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
//! | `TAKEN` | array | a source's number → children of the source that the kernel added to `METERED` so far | kernel |
//! | `GIVEN` | array | a source's number → the value of `TAKEN` at which the kernel adds no more | daemon |
//! | `LAUNCHES` | per-CPU hash | [`LaunchKey`] → [`LaunchValue`] | kernel; the daemon removes keys of dead processes |
//! | `UNCOUNTED` | per-CPU array | [`uncounted`] → number | kernel |
//! | `BEGUN` | ring | [`Begun`] | kernel |

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The most rules for watched devices.
pub const MAX_WATCHES: usize = 8;
/// The number of buckets in a latency histogram.
pub const BUCKETS: usize = 24;
/// Bucket 0 counts latencies below two to this power, ns. The end of each further bucket is twice
/// the end before. The last bucket has no end.
pub const FIRST_BUCKET_LOG2: u32 = 8;
/// The most bytes of an ioctl's argument in an [`Event`].
pub const PAYLOAD_BYTES: usize = 192;
/// The most commands of one process and family with counters of their own. Further commands share
/// counters, under [`REST`].
pub const COMMANDS_APART: u32 = 128;
/// The value of [`StatKey::command`] for all commands beyond [`COMMANDS_APART`]. No ioctl of the
/// GPU's devices has this number.
pub const REST: u32 = u32::MAX;
/// The length of a clock tick of /proc, ns.
pub const TICK_NS: u64 = 10_000_000;
/// The value of [`Inflight::descriptor`] if the program does not know the descriptor, as at the
/// driver's own functions.
pub const NO_DESCRIPTOR: u32 = u32::MAX;
/// The most threads that may keep an ioctl in `INFLIGHT`, because another thread has their slot.
pub const MAX_INFLIGHT: u32 = 16_384;
/// The number of slots for threads in a watched ioctl, as a power of two.
const SLOTS_LOG2: u32 = 14;
/// The number of slots.
pub const SLOTS: u32 = 1 << SLOTS_LOG2;

/// A rule for watched devices. The rule applies to a device if its masked number is `value`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Watch {
    /// The value of the device's number under [`Self::mask`] for which the rule applies.
    pub value: u32,
    /// The bits of a device's number that the rule compares with [`Self::value`].
    pub mask: u32,
    /// The [`Family`] of the device.
    pub family: u32,
}

impl Watch {
    /// A rule that applies to no device, because no device has all bits set.
    pub const NOTHING: Self = Self { value: u32::MAX, mask: u32::MAX, family: 0 };
}

/// Returns a device number in the kernel's form: 12 bits of major and 20 bits of minor.
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

/// The number of bits in a minor number.
pub const MINOR_BITS: u32 = 20;
/// The largest minor number.
pub const MINOR_MASK: u32 = (1 << MINOR_BITS) - 1;

/// The set of ioctls to which a device's commands belong.
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

/// The key of counters: one command of one device, as one process uses it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct StatKey {
    /// When the process began, ns of `CLOCK_BOOTTIME`. The time distinguishes the process from a
    /// later process with the same id.
    pub started_ns: u64,
    /// The process's id, as the host sees it.
    pub pid: u32,
    /// The [`device`].
    pub device: u32,
    /// The ioctl's number.
    pub command: u32,
    /// The device's [`Family`].
    pub family: u32,
}

/// The number of places in a set. Each key can be in two sets.
pub const WAYS: usize = 8;

/// A place of a set: a key, and the row that has the key's counters. The programs search the places
/// by loads alone. A helper call for a hash map of the kernel would take as long as all counting in
/// a row.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Place {
    /// [`Self::FREE`], [`Self::CLAIMED`], or the row plus [`Self::FIRST_ROW`].
    pub state: u64,
    /// The key that owns the row. Valid only while the place has a row.
    pub key: StatKey,
}

impl Place {
    /// The state of a place without a key.
    pub const FREE: u64 = 0;
    /// The state of a place while a program writes the key into it.
    pub const CLAIMED: u64 = 1;
    /// The state of a place whose key has row 0.
    pub const FIRST_ROW: u64 = 2;
}

/// The places of keys with the same set number.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Set {
    /// The places, in no particular order.
    pub places: [Place; WAYS],
}

/// Returns the numbers of the two sets in which a key can have a place. `sets` is the number of all
/// sets, a power of two. Only a program that knows `seed` can predict which keys share a set.
#[inline(always)]
pub const fn sets_of(key: &StatKey, seed: u64, sets: u32) -> [u32; 2] {
    /// An odd factor that spreads the bits of the process and the seed: 2⁶⁴ divided by the golden
    /// ratio.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    /// An odd factor from MurmurHash3, which mixes the bits of the whole key.
    const MIX: u64 = 0xff51_afd7_ed55_8ccd;
    let who = key.started_ns ^ seed ^ ((key.pid as u64) << u32::BITS);
    let what = ((key.command as u64) << u32::BITS) | (key.device ^ (key.family << (MINOR_BITS - 1))) as u64;
    let mixed = who.wrapping_mul(SPREAD) ^ what;
    let mixed = (mixed ^ (mixed >> u32::BITS)).wrapping_mul(MIX);
    let mixed = mixed ^ (mixed >> u32::BITS);
    [mixed as u32 & (sets - 1), (mixed >> u32::BITS) as u32 & (sets - 1)]
}

/// The counters of a [`StatKey`] on one CPU.
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
    /// Memory for which calls asked, bytes, as far as the calls' arguments show.
    pub allocated_bytes: u64,
    /// Memory that calls mapped or moved, bytes, as far as the calls' arguments show.
    pub mapped_bytes: u64,
    /// When the last call ended, ns of `CLOCK_MONOTONIC`.
    pub last_ns: u64,
    /// The command's [`facts`], or 0 until the program has looked them up.
    pub facts: u64,
    /// Number of calls by latency.
    pub buckets: [u64; BUCKETS],
}

/// Facts about a command's argument, in one word: the place of the driver's status, and the place
/// of an amount of memory.
pub mod facts {
    /// A bit that all facts have, so that no facts are 0.
    const KNOWN: u64 = 1 << 63;
    const AT_BITS: u32 = 16;
    const AMOUNT_SHIFT: u32 = AT_BITS;
    const KIND_SHIFT: u32 = 2 * AT_BITS;
    const AT_MASK: u64 = (1 << AT_BITS) - 1;
    const KIND_MASK: u64 = 0xff;

    /// The command does nothing with memory.
    pub const NO_MEMORY: u64 = 0;
    /// The command maps or moves memory. 64 bits of the argument hold the number of bytes.
    pub const MAPS: u64 = 1;
    /// The command asks for memory. 64 bits of the argument hold the offset of the last byte.
    pub const ALLOCATES_UP_TO: u64 = 2;
    /// The command asks for memory, or does something else with memory. A function number in the
    /// argument decides ([`super::heap`]).
    pub const HEAP: u64 = 3;
    /// The command makes an object. By its class, the object can be memory ([`super::object`]).
    pub const OBJECT: u64 = 4;

    /// The facts of a command with neither a status nor memory.
    pub const NONE: u64 = KNOWN;

    /// Returns the facts of a command. The driver's status is at `status_at` of the argument, and
    /// the amount of memory at `amount_at`. `kind` is the command's use of the memory.
    pub const fn new(status_at: Option<u16>, kind: u64, amount_at: u16) -> u64 {
        let status = match status_at {
            Some(at) => at as u64 + 1,
            None => 0,
        };
        KNOWN | status | (amount_at as u64) << AMOUNT_SHIFT | kind << KIND_SHIFT
    }

    /// Returns the offset of the driver's status (32 bits), or `None` if the command has no status.
    #[inline(always)]
    pub const fn status_at(facts: u64) -> Option<u64> {
        match facts & AT_MASK {
            0 => None,
            at => Some(at - 1),
        }
    }

    /// Returns the kind: the command's use of memory.
    #[inline(always)]
    pub const fn kind(facts: u64) -> u64 {
        facts >> KIND_SHIFT & KIND_MASK
    }

    /// Returns the offset in the argument of the amount of memory, a number of 64 bits.
    #[inline(always)]
    pub const fn amount_at(facts: u64) -> u64 {
        facts >> AMOUNT_SHIFT & AT_MASK
    }
}

/// The argument of NV_ESC_RM_VID_HEAP_CONTROL (`NVOS32_PARAMETERS`). A function number in the
/// argument selects the command's task. Positions are in words of 8 bytes.
pub mod heap {
    /// The number of words that the program reads.
    pub const WORDS: usize = 12;
    /// The word whose lower half is the function number.
    pub const FUNCTION_WORD: usize = 1;
    /// The word whose upper half is the driver's status.
    pub const STATUS_WORD: usize = 2;
    /// The function number NVOS32_FUNCTION_ALLOC_SIZE: the program asks for memory.
    pub const ALLOC_SIZE: u32 = 2;
    /// The word with the size, if the function number is NVOS32_FUNCTION_ALLOC_SIZE.
    pub const SIZE_WORD: usize = 11;
    /// The function number NVOS32_FUNCTION_ALLOC_SIZE_RANGE: the program asks for memory within a
    /// range of addresses.
    pub const ALLOC_SIZE_RANGE: u32 = 14;
    /// The word with the size, if the function number is NVOS32_FUNCTION_ALLOC_SIZE_RANGE.
    pub const RANGE_SIZE_WORD: usize = 10;
}

/// The argument of NV_ESC_RM_ALLOC (`NVOS64_PARAMETERS`). A class in the argument decides which
/// object the command makes. Positions are in words of 8 bytes.
pub mod object {
    /// The number of words in the whole argument.
    pub const WORDS: usize = 6;
    /// The word whose upper half is the class.
    pub const CLASS_WORD: usize = 1;
    /// The class NV01_MEMORY_SYSTEM: host memory.
    pub const MEMORY_SYSTEM: u32 = 0x3e;
    /// The class NV01_MEMORY_LOCAL_USER: device memory.
    pub const MEMORY_LOCAL_USER: u32 = 0x40;
    /// The word with the address of the class's own arguments. For these classes, the arguments are
    /// `NV_MEMORY_ALLOCATION_PARAMS`.
    pub const PARAMETERS_WORD: usize = 2;
    /// The offset of the size in the class's own arguments, bytes.
    pub const SIZE_AT: u64 = 64;
    /// The word whose lower half is the driver's status.
    pub const STATUS_WORD: usize = 5;
}

/// Returns the bucket of a latency.
#[inline(always)]
pub const fn bucket(latency_ns: u64) -> usize {
    let mut rest = latency_ns >> FIRST_BUCKET_LOG2;
    let mut bucket = 0;
    // The code makes five comparisons, because the kernel's virtual machine has no instruction that
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

/// An ioctl that has begun, with the data that the program needs when the ioctl ends.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Inflight {
    /// When the ioctl began, ns of `CLOCK_MONOTONIC`.
    pub began_ns: u64,
    /// The ioctl's argument.
    pub argument: u64,
    /// The [`device`] of the ioctl.
    pub device: u32,
    /// The ioctl's number.
    pub command: u32,
    /// The device's [`Family`].
    pub family: u32,
    /// The file descriptor, or [`NO_DESCRIPTOR`].
    pub descriptor: u32,
}

/// A slot, in which a thread keeps an ioctl that has begun, if no other thread has the slot. To
/// take and free an array entry costs a tenth of an insertion and removal in a hash map.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Slot {
    /// The thread that has the slot, or 0 if no thread has the slot.
    pub owner: u64,
    /// The number of threads that keep their ioctl in `INFLIGHT`, because another thread has this
    /// slot.
    pub others: u64,
    /// The owner's ioctl.
    pub ioctl: Inflight,
    /// Always 0. With these words, a slot fills a cache line.
    pub reserved: [u64; 2],
}

const _: () = assert!(size_of::<Slot>() == 64);

/// Returns the slot of a thread. Threads with neighbouring ids get distant slots, so they share no
/// cache line.
#[inline(always)]
pub const fn slot(tid: u32) -> u32 {
    /// A factor that gives neighbouring thread ids distant slots: 2³² divided by the golden ratio.
    const SPREAD: u32 = 0x9e37_79b1;
    tid.wrapping_mul(SPREAD) >> (u32::BITS - SLOTS_LOG2)
}

/// Counters of the whole host, on one CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Totals {
    /// Number of watched ioctls that ended.
    pub calls: u64,
    /// Number of ioctls in `calls` that have no row of counters, for lack of room.
    pub unattributed: u64,
    /// Number of watched ioctls that the program could not follow to their end for lack of room. No
    /// other counter includes them.
    pub untimed: u64,
    /// Number of [`News`] records for which the ring had no room.
    pub news_lost: u64,
    /// Number of [`Event`]s written.
    pub events: u64,
    /// Number of [`Event`]s for which the ring had no room, including events of ioctls in
    /// `untimed`.
    pub events_lost: u64,
}

/// The key of a command: a [`Family`] and a number.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CommandKey {
    /// The [`Family`].
    pub family: u32,
    /// The ioctl's number.
    pub command: u32,
}

/// The daemon's knowledge about a command, for the eBPF programs.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CommandValue {
    /// The command's [`facts`].
    pub facts: u64,
    /// The size of the argument, bytes; 0 if the command's number encodes the size.
    pub argument_bytes: u32,
    /// Always 0.
    pub reserved: u32,
}

/// Returns the size of an ioctl's argument, bytes. The ioctl's number must follow the usual
/// encoding of Linux.
pub const fn encoded_bytes(command: u32) -> u32 {
    (command >> 16) & 0x3fff
}

/// The key of a process and a family of devices that it used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SeenKey {
    /// When the process began, as [`StatKey::started_ns`].
    pub started_ns: u64,
    /// The process's id, as the host sees it.
    pub pid: u32,
    /// The device's [`Family`].
    pub family: u32,
}

/// The value of a [`SeenKey`]: the number of commands for which the process has counters.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SeenValue {
    /// Number of commands with counters of their own.
    pub commands: u32,
}

/// A record of a process's first call to a family of devices, or of its first call in a long while.
/// The program writes the record even if the maps have no room for the call's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct News {
    /// The process and the family.
    pub key: SeenKey,
}

/// A process whose calls into the driver's library the programs count. Its children are metered
/// too.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MeteredValue {
    /// When the process started, in [`TICK_NS`]. The time distinguishes the process from a later
    /// process with the same id.
    pub start_ticks: u64,
    /// The daemon's number for the process's job.
    pub job: u64,
    /// The daemon's number for the source (a user or a container) whose part of `METERED` the
    /// process takes, below [`SOURCES`].
    pub source: u32,
    /// Always 0.
    pub reserved: u32,
}

/// The most sources that have metered processes at a time.
pub const SOURCES: u32 = 64;

/// The value that an attached probe carries: the number of its function, and facts about the
/// function.
pub mod cookie {
    /// The number of bits of the value that contain the number of the probe's function.
    const ENTRY_BITS: u32 = 16;
    const SIZED: u64 = 1 << ENTRY_BITS;
    const TELLS: u64 = 2 << ENTRY_BITS;

    /// Returns the cookie of a function whose calls the probe counts. `is_sized` says whether the
    /// function's second argument is a number of bytes.
    pub const fn counted(entry: u16, is_sized: bool) -> u64 {
        entry as u64 | if is_sized { SIZED } else { 0 }
    }

    /// Returns the cookie of a function whose probe only reports that a process begins to use the
    /// library. The probe does not count the call.
    pub const fn telling(entry: u16) -> u64 {
        entry as u64 | TELLS
    }

    /// Returns the number of the function in a cookie.
    #[inline(always)]
    pub const fn entry(cookie: u64) -> u32 {
        cookie as u16 as u32
    }

    /// Returns whether the function's second argument is a number of bytes.
    #[inline(always)]
    pub const fn is_sized(cookie: u64) -> bool {
        cookie & SIZED != 0
    }

    /// Returns whether the probe only reports the call and does not count it.
    #[inline(always)]
    pub const fn tells(cookie: u64) -> bool {
        cookie & TELLS != 0
    }
}

/// The counters of calls and processes for which a map had no room.
pub mod uncounted {
    /// The index of the counter of calls for which the map `LAUNCHES` had no room.
    pub const CALLS: u32 = 0;
    /// The index of the counter of processes for which the map `METERED`, or the source's part of
    /// the map, had no room.
    pub const PROCESSES: u32 = 1;
    /// The number of counters in the map `UNCOUNTED`.
    pub const KINDS: u32 = 2;
}

/// The key of counters: one function of the driver's library, as one process uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LaunchKey {
    /// When the process started, as [`MeteredValue::start_ticks`].
    pub start_ticks: u64,
    /// The process's id, as the host sees it.
    pub pid: u32,
    /// The function's number, as in the cookie.
    pub entry: u32,
}

/// The counters of a [`LaunchKey`] on one CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LaunchValue {
    /// Number of calls.
    pub calls: u64,
    /// Number of bytes for which the calls asked.
    pub bytes: u64,
    /// When the last call began, ns of `CLOCK_MONOTONIC`.
    pub last_ns: u64,
}

/// A record of a metered process that begins to use the driver's library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Begun {
    /// When the process started, as [`MeteredValue::start_ticks`].
    pub start_ticks: u64,
    /// The job, as [`MeteredValue::job`].
    pub job: u64,
    /// The process's id, as the host sees it.
    pub pid: u32,
    /// Always 0.
    pub reserved: u32,
}

/// A record of one ioctl in full, for `deepres trace`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Event {
    /// When the ioctl began, ns of `CLOCK_MONOTONIC`.
    pub began_ns: u64,
    /// The duration of the ioctl, ns.
    pub latency_ns: u64,
    /// The ioctl's argument, in most cases an address.
    pub argument: u64,
    /// The ioctl's result. An error is negative.
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
    /// The file descriptor, or [`NO_DESCRIPTOR`].
    pub descriptor: u32,
    /// The number of bytes that the program read into `payload`.
    pub payload_bytes: u32,
    /// Always 0.
    pub reserved: u32,
    /// The thread's name, terminated by 0.
    pub name: [u8; 16],
    /// The memory to which the argument points, as of the end of the ioctl.
    pub payload: [u8; PAYLOAD_BYTES],
}

/// A hash of this file. The eBPF programs contain the hash of the file with which they were
/// built. So the daemon recognises programs of another build.
pub const LAYOUT: u64 = hash(include_bytes!("probe.rs"));

/// Returns the FNV-1a hash of `bytes`.
const fn hash(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
}

/// The choice of the ioctls that become [`Event`]s.
pub mod tracing {
    /// No ioctls.
    pub const NONE: u32 = 0;
    /// The ioctls of the processes in `TRACED` and of their children.
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
    fn a_cookie_gives_back_its_parts() {
        let read = |carried| (cookie::entry(carried), cookie::is_sized(carried), cookie::tells(carried));
        assert_eq!(read(cookie::counted(u16::MAX, true)), (65_535, true, false));
        assert_eq!(read(cookie::counted(7, false)), (7, false, false));
        assert_eq!(read(cookie::telling(7)), (7, false, true));
    }

    #[test]
    fn facts_give_back_their_parts() {
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
