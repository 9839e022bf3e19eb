//! The counters for each process and command, and the report of a process's first call.

use crate::probe::{
    COMMANDS_APART as MOST_APART, CommandKey, CommandValue, Inflight, News, REST, SeenKey, SeenValue,
    StatKey, StatValue, Totals, bucket, facts, heap, object,
};
use crate::rows;
use crate::walk::Task;
use aya_ebpf::Global;
use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::helpers::generated::bpf_probe_read_user;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{HashMap, LruHashMap, PerCpuArray, RingBuf};
use core::mem::MaybeUninit;

/// The size of `COMMANDS`: the most commands of which the daemon may know the argument.
const COMMAND_ENTRIES: u32 = 512;
/// The size of `SEEN`: the most processes that the programs remember as reported.
const SEEN_ENTRIES: u32 = 8192;
/// The size of `NEWS`: the bytes of [`News`] records that wait for the daemon.
const NEWS_BYTES: u32 = 64 << 10;

/// The most commands of one process and family with counters of their own. If memory is short, the
/// daemon sets a lower number.
#[unsafe(no_mangle)]
static COMMANDS_APART: Global<u32> = Global::new(MOST_APART);

#[map]
static COMMANDS: HashMap<CommandKey, CommandValue> = HashMap::with_max_entries(COMMAND_ENTRIES, 0);
#[map]
static TOTALS: PerCpuArray<Totals> = PerCpuArray::with_max_entries(1, 0);
#[map]
static SEEN: LruHashMap<SeenKey, SeenValue> = LruHashMap::with_max_entries(SEEN_ENTRIES, 0);
#[map]
static NEWS: RingBuf = RingBuf::with_byte_size(NEWS_BYTES, 0);

/// Changes the counters of the whole host by `change`. Each CPU has its own copy of the counters.
#[inline(always)]
pub fn total(change: impl FnOnce(&mut Totals)) {
    if let Some(totals) = TOTALS.get_ptr_mut(0) {
        // SAFETY: the entry is this CPU's own, and programs do not interrupt each other on a CPU.
        change(unsafe { &mut *totals });
    }
}

/// Returns the daemon's facts about a command, or `None` if the daemon knows none.
#[inline(always)]
pub fn command(family: u32, command: u32) -> Option<CommandValue> {
    // SAFETY: the daemon makes the entries before the programs run, and never changes them.
    unsafe { COMMANDS.get(CommandKey { family, command }) }.copied()
}

/// Counts an ioctl that took `latency_ns` and returned `result`.
#[inline(always)]
pub fn ended(task: Task, ioctl: &Inflight, latency_ns: u64, result: i64) {
    total(|totals| totals.calls += 1);
    let key = StatKey {
        started_ns: task.process_started_ns(),
        pid: task.process(),
        device: ioctl.device,
        command: ioctl.command,
        family: ioctl.family,
    };
    let Some(value) = find_or_make(&key) else {
        total(|totals| totals.unattributed += 1);
        return;
    };
    // SAFETY: the entry is this CPU's own, and programs do not interrupt each other on a CPU.
    let value = unsafe { &mut *value };
    value.calls += 1;
    value.time_ns += latency_ns;
    if latency_ns > value.longest_ns {
        value.longest_ns = latency_ns;
    }
    value.last_ns = ioctl.began_ns + latency_ns;
    if let Some(bucket) = value.buckets.get_mut(bucket(latency_ns)) {
        *bucket += 1;
    }
    if value.facts == 0 {
        value.facts = command(ioctl.family, ioctl.command).map_or(facts::NONE, |known| known.facts);
    }
    if result < 0 || !succeeded(value, ioctl.argument) {
        value.errors += 1;
    }
}

/// Returns whether the driver carried out a call whose result is 0 or more. If so, counts the
/// call's memory.
///
/// Most refusals of the driver are a status in the argument, not a result. The function reads the
/// argument at most twice, because each read takes 30 to 80 ns.
#[inline(always)]
fn succeeded(value: &mut StatValue, argument: u64) -> bool {
    let kind = facts::kind(value.facts);
    if kind == facts::OBJECT {
        let Some(words) = read::<[u64; object::WORDS]>(argument, 0) else { return true };
        if words[object::STATUS_WORD] as u32 != 0 {
            return false;
        }
        if let object::MEMORY_SYSTEM | object::MEMORY_LOCAL_USER = (words[object::CLASS_WORD] >> 32) as u32 {
            allocated(value, read_bytes(words[object::PARAMETERS_WORD], object::SIZE_AT, 0));
        }
        return true;
    }
    if kind == facts::HEAP {
        let Some(words) = read::<[u64; heap::WORDS]>(argument, 0) else { return true };
        if (words[heap::STATUS_WORD] >> 32) as u32 != 0 {
            return false;
        }
        match words[heap::FUNCTION_WORD] as u32 {
            heap::ALLOC_SIZE => allocated(value, words[heap::SIZE_WORD]),
            heap::ALLOC_SIZE_RANGE => allocated(value, words[heap::RANGE_SIZE_WORD]),
            _ => {}
        }
        return true;
    }
    let (status_at, amount_at) = (facts::status_at(value.facts), facts::amount_at(value.facts));
    if kind == facts::NO_MEMORY {
        return status_at.is_none_or(|at| read::<u32>(argument, at).unwrap_or(0) == 0);
    }
    let above = if kind == facts::ALLOCATES_UP_TO { 1 } else { 0 };
    let (status, bytes) = status_and_bytes(argument, status_at, amount_at, above);
    if status != 0 {
        return false;
    }
    if kind == facts::MAPS {
        value.memory_calls += 1;
        value.mapped_bytes = value.mapped_bytes.wrapping_add(bytes);
    } else {
        allocated(value, bytes);
    }
    true
}

/// Returns the driver's status (0 if the command has none) and an amount of bytes plus `above`. If
/// both lie close to each other in the argument, reads once.
#[inline(always)]
fn status_and_bytes(argument: u64, status_at: Option<u64>, amount_at: u64, above: u64) -> (u32, u64) {
    /// The number of words of 4 bytes that one read covers.
    const WINDOW: usize = 8;
    const WORD: u64 = 4;
    let Some(status_at) = status_at else { return (0, read_bytes(argument, amount_at, above)) };
    let from = if status_at < amount_at { status_at } else { amount_at };
    let (status_word, amount_word) = ((status_at - from) / WORD, (amount_at - from) / WORD);
    if status_word < WINDOW as u64 && amount_word < WINDOW as u64 - 1 {
        // The array stays behind a pointer, because the compiler would copy each word of a value.
        let mut words = MaybeUninit::<[u64; WINDOW / 2]>::uninit();
        // SAFETY: `words` has room for the read. If the memory cannot be read, the read fails. Else
        // the read writes all of `words`. Both words lie inside the window.
        unsafe {
            if load(argument.wrapping_add(from), words.as_mut_ptr()) {
                let first = words.as_ptr().cast::<u32>();
                let amount = first.add(amount_word as usize).cast::<u64>().read_unaligned();
                return (first.add(status_word as usize).read(), amount.wrapping_add(above));
            }
        }
    }
    (read(argument, status_at).unwrap_or(0), read_bytes(argument, amount_at, above))
}

/// Returns an amount of bytes plus `above`, or 0 if the amount cannot be read.
#[inline(always)]
fn read_bytes(argument: u64, at: u64, above: u64) -> u64 {
    match read::<u64>(argument, at) {
        Some(amount) => amount.wrapping_add(above),
        None => 0,
    }
}

#[inline(always)]
fn allocated(value: &mut StatValue, bytes: u64) {
    value.memory_calls += 1;
    value.allocated_bytes = value.allocated_bytes.wrapping_add(bytes);
}

/// Returns the `T` at an offset of a program's argument, or `None` if it cannot be read.
#[inline(always)]
fn read<T>(argument: u64, at: u64) -> Option<T> {
    let mut there = MaybeUninit::<T>::uninit();
    // SAFETY: `there` has room for a `T`. A successful read writes all of it, and the callers read
    // only plain data.
    unsafe { load(argument.wrapping_add(at), there.as_mut_ptr()).then(|| there.assume_init()) }
}

/// Copies a `T` from an address of the program to `to`. Returns `false` if the memory cannot be
/// read.
///
/// # Safety
/// `to` has room for a `T`.
#[inline(always)]
unsafe fn load<T>(address: u64, to: *mut T) -> bool {
    // SAFETY: by the contract there is room; the helper returns an error for memory that cannot be
    // read.
    unsafe { bpf_probe_read_user(to.cast(), size_of::<T>() as u32, address as *const _) == 0 }
}

#[inline(always)]
fn find_or_make(key: &StatKey) -> Option<*mut StatValue> {
    if let Some(value) = rows::find(key) {
        return Some(value);
    }
    let process = SeenKey { started_ns: key.started_ns, pid: key.pid, family: key.family };
    let seen = see(&process);
    let mut key = *key;
    if let Some(seen) = seen {
        // SAFETY: the entry lives until the program ends, even if the map evicts the entry. Threads
        // of one process can pass the limit at the same time, by at most one command for each CPU.
        let seen = unsafe { &mut *seen };
        if seen.commands >= COMMANDS_APART.load() {
            // This row counts all devices together, because a process can invent as many devices as
            // there are device numbers.
            (key.command, key.device) = (REST, 0);
            if let Some(value) = rows::find(&key) {
                return Some(value);
            }
        } else {
            seen.commands += 1;
        }
    }
    rows::make(&key)
}

/// Returns the entry of a process. If the process had no entry, makes one and reports the process.
#[inline(always)]
fn see(process: &SeenKey) -> Option<*mut SeenValue> {
    if let Some(seen) = SEEN.get_ptr_mut(process) {
        return Some(seen);
    }
    if SEEN.insert(process, SeenValue { commands: 0 }, BPF_NOEXIST.into()).is_ok()
        && NEWS.output::<News>(&News { key: *process }, 0).is_err()
    {
        total(|totals| totals.news_lost += 1);
    }
    SEEN.get_ptr_mut(process)
}
