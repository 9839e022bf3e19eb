//! Which row of counters a process and command has: found by loads alone, without a call.

use crate::atomic;
use crate::probe::{Place, Set, StatKey, StatValue, WAYS, sets_of};
use aya_ebpf::Global;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, PerCpuArray, Stack};

/// Of a map: the controller can have it in its own memory (`BPF_F_MMAPABLE`).
const MAPPED: u32 = 1 << 10;

/// How many there are of each; the controller sets what memory allows.
const ENTRIES: u32 = 1;
#[map]
static SETS: Array<Set> = Array::with_max_entries(ENTRIES, MAPPED);
#[map]
static ROWS: PerCpuArray<StatValue> = PerCpuArray::with_max_entries(ENTRIES, 0);
#[map]
static FREE_ROWS: Stack<u32> = Stack::with_max_entries(ENTRIES, 0);

/// How many sets there are, a power of two.
#[unsafe(no_mangle)]
static SETS_COUNT: Global<u32> = Global::new(ENTRIES);
/// What only the controller knows.
#[unsafe(no_mangle)]
static SETS_SEED: Global<u64> = Global::new(0);

/// A key's number of words.
const KEY_WORDS: usize = size_of::<StatKey>() / size_of::<u64>();

/// This CPU's counters of a key, if it has a row.
#[inline(always)]
pub fn find(key: &StatKey) -> Option<*mut StatValue> {
    let wanted = words(key);
    for index in sets_of(key, SETS_SEED.load(), SETS_COUNT.load()) {
        let set = SETS.get_ptr_mut(index)?;
        for way in 0..WAYS {
            // SAFETY: an entry of an array, which is there for ever. A key is complete once its place has a row, and the machine keeps the
            // order of loads. If the place becomes another's meanwhile, the row is nobody's until the controller has read it once more.
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

/// Gives a key a row, which is zero, if there is room. Two CPUs that do so at the same time give it two, which count together.
#[inline(always)]
pub fn make(key: &StatKey) -> Option<*mut StatValue> {
    let row = FREE_ROWS.pop().ok()??;
    for index in sets_of(key, SETS_SEED.load(), SETS_COUNT.load()) {
        let set = SETS.get_ptr_mut(index)?;
        for way in 0..WAYS {
            // SAFETY: as in `find`; what is claimed is this program's until its state says more.
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
    // There was room for it a moment ago.
    let _ = FREE_ROWS.push(row, 0);
    None
}

#[inline(always)]
fn words(key: &StatKey) -> [u64; KEY_WORDS] {
    // SAFETY: it is plain data of so many words.
    unsafe { core::mem::transmute_copy(key) }
}
