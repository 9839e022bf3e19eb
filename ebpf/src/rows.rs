//! Finds the row of counters of a process and command, by loads alone and without a call.

use crate::atomic;
use crate::probe::{Place, Set, StatKey, StatValue, WAYS, sets_of};
use aya_ebpf::Global;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, PerCpuArray, Stack};

/// The map flag `BPF_F_MMAPABLE`. With the flag, the daemon can map the map's values into its
/// memory.
const MAPPED: u32 = 1 << 10;

/// The size of each map in this program. Before the daemon loads the program, the daemon sets the
/// real size by the memory that it allows.
const ENTRIES: u32 = 1;
#[map]
static SETS: Array<Set> = Array::with_max_entries(ENTRIES, MAPPED);
#[map]
static ROWS: PerCpuArray<StatValue> = PerCpuArray::with_max_entries(ENTRIES, 0);
#[map]
static FREE_ROWS: Stack<u32> = Stack::with_max_entries(ENTRIES, 0);

/// The number of sets, a power of two.
#[unsafe(no_mangle)]
static SETS_COUNT: Global<u32> = Global::new(ENTRIES);
/// A secret of the daemon. Only a program that knows the secret can compute which keys share a set.
#[unsafe(no_mangle)]
static SETS_SEED: Global<u64> = Global::new(0);

/// The number of words of 8 bytes in a key.
const KEY_WORDS: usize = size_of::<StatKey>() / size_of::<u64>();

/// Returns this CPU's counters of a key, or `None` if the key has no row.
#[inline(always)]
pub fn find(key: &StatKey) -> Option<*mut StatValue> {
    let wanted = words(key);
    for index in sets_of(key, SETS_SEED.load(), SETS_COUNT.load()) {
        let set = SETS.get_ptr_mut(index)?;
        for way in 0..WAYS {
            // SAFETY: an array entry lives for ever. The key of a place is complete before the
            // place's state names a row, and x86-64 keeps the order of loads. The daemon can give
            // the place to another key during the read. In this case, the daemon reuses the row
            // only after it has read the row once more.
            unsafe {
                let place = &raw const (*set).places[way];
                let state = (&raw const (*place).state).read_volatile();
                let key = (&raw const (*place).key).cast::<u64>();
                if state >= Place::FIRST_ROW
                    && key.read_volatile() == wanted[0]
                    && key.add(1).read_volatile() == wanted[1]
                    && key.add(2).read_volatile() == wanted[2]
                {
                    return ROWS.get_ptr_mut((state - Place::FIRST_ROW) as u32);
                }
            }
        }
    }
    None
}

/// Gives a key a row of zeros, and returns this CPU's counters of the row. Returns `None` if there
/// is no room. If two CPUs call this at the same time, the key has two rows, and the daemon adds
/// them up.
#[inline(always)]
pub fn make(key: &StatKey) -> Option<*mut StatValue> {
    let row = FREE_ROWS.pop().ok()??;
    for index in sets_of(key, SETS_SEED.load(), SETS_COUNT.load()) {
        let set = SETS.get_ptr_mut(index)?;
        for way in 0..WAYS {
            // SAFETY: as in `find`. A place that this program claimed belongs to this program until
            // the state names a row.
            unsafe {
                let place = &raw mut (*set).places[way];
                let state = &raw mut (*place).state;
                if state.read_volatile() == Place::FREE
                    && atomic::exchange_if(state, Place::FREE, Place::CLAIMED) == Place::FREE
                {
                    (&raw mut (*place).key).write_volatile(*key);
                    state.write_volatile(u64::from(row) + Place::FIRST_ROW);
                    return ROWS.get_ptr_mut(row);
                }
            }
        }
    }
    // The push finds room, because the row came from this stack.
    let _ = FREE_ROWS.push(row, 0);
    None
}

#[inline(always)]
fn words(key: &StatKey) -> [u64; KEY_WORDS] {
    // SAFETY: a key is plain data of exactly this many words.
    unsafe { core::mem::transmute_copy(key) }
}
