//! Counters for each process and command, and what is told of a process that does something for the first time.

use crate::probe::{
    COMMANDS_APART as MOST_APART, CommandKey, CommandValue, Inflight, News, REST, SeenKey, SeenValue,
    StatKey, StatValue, Totals, bucket, facts, heap, object,
};
use crate::walk::Task;
use crate::{rows, user};
use aya_ebpf::Global;
use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{HashMap, LruHashMap, PerCpuArray, RingBuf};
use core::mem::MaybeUninit;

/// Commands whose arguments are known.
const COMMAND_ENTRIES: u32 = 512;
/// Processes that are remembered to have been told of.
const SEEN_ENTRIES: u32 = 8192;
/// First times that wait to be read, bytes.
const NEWS_BYTES: u32 = 64 << 10;

/// Commands of one process and family that are counted apart, as there is room.
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

/// Changes this CPU's counters of the whole host.
#[inline(always)]
pub fn total(change: impl FnOnce(&mut Totals)) {
    if let Some(totals) = TOTALS.get_ptr_mut(0) {
        // SAFETY: the value is this CPU's, and programs do not interrupt each other on a CPU.
        change(unsafe { &mut *totals });
    }
}

/// What the controller knows of a command.
#[inline(always)]
pub fn command(family: u32, command: u32) -> Option<CommandValue> {
    // SAFETY: entries are made before the programs run and never change.
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
    // SAFETY: the value is this CPU's, and programs do not interrupt each other on a CPU.
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
    if result < 0 || !succeeded(task, value, ioctl.argument) {
        value.errors += 1;
    }
}

/// Looks into the argument of a call that returned: the driver mostly says no by a status of its own there. If it did not, what was done with memory
/// is counted. A look by a helper is dear (see `user`), so there are at most two.
#[inline(always)]
fn succeeded(task: Task, value: &mut StatValue, argument: u64) -> bool {
    let kind = facts::kind(value.facts);
    if kind == facts::OBJECT {
        let Some(words) = read::<[u64; object::WORDS]>(task, argument, 0) else { return true };
        if words[object::STATUS_WORD] as u32 != 0 {
            return false;
        }
        if let object::MEMORY_SYSTEM | object::MEMORY_LOCAL_USER = (words[object::CLASS_WORD] >> 32) as u32 {
            allocated(value, read_bytes(task, words[object::PARAMETERS_WORD], object::SIZE_AT, 0));
        }
        return true;
    }
    if kind == facts::HEAP {
        let Some(words) = read::<[u64; heap::WORDS]>(task, argument, 0) else { return true };
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
        return status_at.is_none_or(|at| read::<u32>(task, argument, at).unwrap_or(0) == 0);
    }
    let above = if kind == facts::ALLOCATES_UP_TO { 1 } else { 0 };
    let (status, bytes) = status_and_bytes(task, argument, status_at, amount_at, above);
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

/// The driver's status, 0 where there is none, and an amount of bytes, of which the argument has so much less: in one look if they are close to
/// each other.
#[inline(always)]
fn status_and_bytes(
    task: Task,
    argument: u64,
    status_at: Option<u64>,
    amount_at: u64,
    above: u64,
) -> (u32, u64) {
    /// Words of 4 bytes that are looked at together.
    const WINDOW: usize = 8;
    const WORD: u64 = 4;
    let Some(status_at) = status_at else { return (0, read_bytes(task, argument, amount_at, above)) };
    let from = if status_at < amount_at { status_at } else { amount_at };
    let (status_word, amount_word) = ((status_at - from) / WORD, (amount_at - from) / WORD);
    if status_word < WINDOW as u64 && amount_word < WINDOW as u64 - 1 {
        // Not by value, which would be a copy of each word.
        let mut words = MaybeUninit::<[u64; WINDOW / 2]>::uninit();
        // SAFETY: there is room for what is read, and the helper answers an error for what cannot be; all of it is written then, and both
        // places are within.
        unsafe {
            if user::read(task, argument.wrapping_add(from), words.as_mut_ptr()) {
                let first = words.as_ptr().cast::<u32>();
                let amount = first.add(amount_word as usize).cast::<u64>().read_unaligned();
                return (first.add(status_word as usize).read(), amount.wrapping_add(above));
            }
        }
    }
    (read(task, argument, status_at).unwrap_or(0), read_bytes(task, argument, amount_at, above))
}

/// An amount of bytes, 0 where it cannot be read.
#[inline(always)]
fn read_bytes(task: Task, argument: u64, at: u64, above: u64) -> u64 {
    match read::<u64>(task, argument, at) {
        Some(amount) => amount.wrapping_add(above),
        None => 0,
    }
}

#[inline(always)]
fn allocated(value: &mut StatValue, bytes: u64) {
    value.memory_calls += 1;
    value.allocated_bytes = value.allocated_bytes.wrapping_add(bytes);
}

/// Reads what a program's argument has at an offset.
#[inline(always)]
fn read<T>(task: Task, argument: u64, at: u64) -> Option<T> {
    let mut there = MaybeUninit::<T>::uninit();
    // SAFETY: there is room, all of which is written if it can be read; what is read here is plain data.
    unsafe { user::read(task, argument.wrapping_add(at), there.as_mut_ptr()).then(|| there.assume_init()) }
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
        // SAFETY: the entry lives until the program ends, forgotten or not. Threads of one process may pass the limit together, by as many
        // commands as there are CPUs.
        let seen = unsafe { &mut *seen };
        if seen.commands >= COMMANDS_APART.load() {
            // Of all devices together: a process can offer as many as there are numbers.
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

/// What is known of a process, which is told of if nothing is.
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
