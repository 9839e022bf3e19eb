//! The eBPF programs' counters of processes and commands. The kernel and the daemon share the
//! memory that assigns rows to keys.

use super::activity::join;
use super::kernel::{KernelError, named, refused};
use super::room::Room;
use aya::Ebpf;
use aya::maps::{MapData, PerCpuArray, PerCpuValues, Stack};
use deepres_abi::probe::{Place, Set, StatKey, StatValue, WAYS, sets_of};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Number of places for each row. With this many places, a key finds a place in its two sets as
/// long as there are rows.
const PLACES_PER_ROW: usize = 4;
/// Words of 8 bytes in a place: the state, then the key.
const PLACE_WORDS: usize = size_of::<Place>() / size_of::<u64>();
const KEY_WORDS: usize = PLACE_WORDS - 1;

type StatValueBytes = [u8; size_of::<StatValue>()];

/// Returns the number of sets for a number of rows.
pub(super) fn sets(rows: usize) -> u32 {
    (rows * PLACES_PER_ROW / WAYS).next_power_of_two() as u32
}

/// Returns a secret number, which stays the same while this process lives.
pub(super) fn seed() -> u64 {
    static SEED: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());
    *SEED
}

/// The counters of ioctls in the kernel, by process, device and command.
pub(super) struct Rows {
    sets: Sets,
    values: PerCpuArray<MapData, StatValueBytes>,
    free: Stack<MapData, u32>,
    /// Rows that the daemon took from their keys, with their values at that time. A program that
    /// found such a row just before can still count in it.
    retired: Vec<(StatKey, u32, StatValue)>,
}

impl Rows {
    /// Takes over the counters of newly loaded programs.
    pub(super) fn take(ebpf: &mut Ebpf, room: Room) -> Result<Self, KernelError> {
        let (values, free) = (named(ebpf.take_map("ROWS")), named(ebpf.take_map("FREE_ROWS")));
        let mut free = free.and_then(Stack::try_from).map_err(refused)?;
        for row in (0..room.rows as u32).rev() {
            free.push(row, 0).map_err(refused)?;
        }
        Ok(Self {
            sets: Sets::take(ebpf, sets(room.rows))?,
            values: values.and_then(PerCpuArray::try_from).map_err(refused)?,
            free,
            retired: Vec::new(),
        })
    }

    /// Returns the counters of all processes, added up over CPUs. Counters only grow while a
    /// process lives.
    pub(super) fn all(&self) -> Vec<(StatKey, StatValue)> {
        let mut sums: BTreeMap<StatKey, StatValue> = BTreeMap::new();
        for (_, key, row) in self.sets.taken(0..self.sets.places) {
            let value = self.value(row);
            // If several CPUs gave a key a row at the same time, the key has several rows.
            sums.entry(key).and_modify(|sum| join(sum, &value)).or_insert(value);
        }
        sums.into_iter().collect()
    }

    /// Takes a key's rows away and returns their counts; `None` without rows. If a program adds to
    /// the rows later, the next [`Self::take_late`] returns these counts.
    pub(super) fn remove(&mut self, key: &StatKey) -> Option<StatValue> {
        let places = self.sets.of(key);
        let mut sum: Option<StatValue> = None;
        for (place, _, row) in places {
            self.sets.free(place);
            let value = self.value(row);
            self.retired.push((*key, row, value));
            match &mut sum {
                Some(sum) => join(sum, &value),
                None => sum = Some(value),
            }
        }
        sum
    }

    /// Returns the counts that programs added to rows after the removal, and frees the rows for
    /// others. Before the call, the caller lets pass the few microseconds that a running program
    /// may take.
    pub(super) fn take_late(&mut self) -> Vec<(StatKey, StatValue)> {
        let mut late = Vec::new();
        for (key, row, before) in std::mem::take(&mut self.retired) {
            late.extend(later(&self.value(row), &before).map(|value| (key, value)));
            let is_zero = zeros().and_then(|zeros| self.values.set(row, zeros, 0).ok());
            if is_zero.is_some() {
                // The push succeeds, because the row came from this stack.
                let _ = self.free.push(row, 0);
            }
        }
        late
    }

    fn value(&self, row: u32) -> StatValue {
        let mut sum = StatValue::new_zeroed();
        let values = self.values.get(&row, 0);
        let values = values.iter().flat_map(|values| values.iter());
        values
            .filter_map(|value| StatValue::read_from_bytes(value).ok())
            .for_each(|value| join(&mut sum, &value));
        sum
    }
}

/// Returns a row of counters that are 0 on each CPU.
fn zeros() -> Option<PerCpuValues<StatValueBytes>> {
    let cpus = aya::util::nr_cpus().ok()?;
    PerCpuValues::try_from(vec![[0; size_of::<StatValue>()]; cpus]).ok()
}

/// Returns the growth of counters since `before`; `None` without growth.
fn later(now: &StatValue, before: &StatValue) -> Option<StatValue> {
    let mut later = *now;
    later.calls -= before.calls;
    later.errors -= before.errors;
    later.time_ns = later.time_ns.saturating_sub(before.time_ns);
    later.memory_calls -= before.memory_calls;
    // The amounts come from a program's argument, so their sum may have wrapped around.
    later.allocated_bytes = later.allocated_bytes.saturating_sub(before.allocated_bytes);
    later.mapped_bytes = later.mapped_bytes.saturating_sub(before.mapped_bytes);
    for (bucket, before) in later.buckets.iter_mut().zip(before.buckets) {
        *bucket -= before;
    }
    (later.calls > 0).then_some(later)
}

/// The kernel's array of sets. The array stays mapped until this value is dropped.
struct Sets {
    address: *mut c_void,
    places: usize,
}

// SAFETY: the mapping belongs to this value alone, which unmaps it when dropped. All accesses
// through it are atomic.
unsafe impl Send for Sets {}

impl Sets {
    fn take(ebpf: &mut Ebpf, sets: u32) -> Result<Self, KernelError> {
        let map = named(ebpf.map("SETS")).map_err(refused)?;
        let aya::maps::Map::Array(map) = map else {
            return Err(KernelError::Refused("the map of the sets is not an array".to_owned()));
        };
        let places = sets as usize * WAYS;
        // SAFETY: the kernel chooses the address of this fresh mapping. The array has this many
        // places, and the descriptor is the map's.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                places * size_of::<Place>(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                map.fd().as_fd(),
                0,
            )
        };
        Ok(Self { address: address.map_err(refused)?, places })
    }

    fn words(&self, place: usize) -> &[AtomicU64; PLACE_WORDS] {
        assert!(place < self.places);
        // SAFETY: the mapping lasts from `take` until the drop and has this many places of this
        // many words. Atomics accept any bytes.
        unsafe { &*self.address.cast::<[AtomicU64; PLACE_WORDS]>().add(place) }
    }

    /// Returns the places of a key, with their rows. If several CPUs gave the key a place at the
    /// same time, the key has several places.
    fn of(&self, key: &StatKey) -> Vec<(usize, StatKey, u32)> {
        let [first, second] = sets_of(key, seed(), (self.places / WAYS) as u32);
        let sets = std::iter::once(first).chain((second != first).then_some(second));
        let places = sets.flat_map(|set| self.taken(set as usize * WAYS..(set as usize + 1) * WAYS));
        places.filter(|(_, other, _)| other == key).collect()
    }

    /// Returns the places in a range that have a row, with their keys and rows.
    fn taken(&self, places: Range<usize>) -> impl Iterator<Item = (usize, StatKey, u32)> {
        places.filter_map(|place| {
            let [state, key @ ..] = self.words(place);
            let row = state.load(Ordering::Acquire).checked_sub(Place::FIRST_ROW)?;
            let key: [u64; KEY_WORDS] = key.each_ref().map(|word| word.load(Ordering::Relaxed));
            Some((place, StatKey::read_from_bytes(key.as_bytes()).ok()?, row as u32))
        })
    }

    /// Frees a place. If a place has a row, only the daemon frees the place.
    fn free(&self, place: usize) {
        self.words(place)[0].store(Place::FREE, Ordering::Release);
    }
}

impl Drop for Sets {
    fn drop(&mut self) {
        // SAFETY: `take` made the mapping, and no reference into it is left.
        let _ = unsafe { munmap(self.address, self.places * size_of::<Place>()) };
    }
}

const _: () = assert!(size_of::<Set>() == WAYS * size_of::<Place>());

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_abi::probe::BUCKETS;

    #[test]
    fn calls_after_the_reading_of_a_row_are_the_rows_increase() {
        let mut before = StatValue::new_zeroed();
        (before.calls, before.errors, before.time_ns, before.longest_ns) = (5, 2, 900, 400);
        (before.memory_calls, before.allocated_bytes, before.mapped_bytes) = (3, 4096, 100);
        before.buckets = [7; BUCKETS];
        assert_eq!(later(&before, &before), None);
        let mut more = StatValue::new_zeroed();
        (more.calls, more.errors, more.time_ns, more.longest_ns, more.last_ns) = (1, 1, 50, 40, 9);
        (more.memory_calls, more.allocated_bytes, more.mapped_bytes) = (1, 64, 10);
        more.buckets[2] = 1;
        let mut now = before;
        join(&mut now, &more);
        // Nobody knows in which part the longest call was.
        assert_eq!(later(&now, &before), Some(StatValue { longest_ns: 400, ..more }));
    }

    #[test]
    fn a_key_is_looked_for_in_the_same_sets_by_both_sides_and_those_are_spread() {
        const SETS: u32 = 64;
        const KEYS: u32 = 6_400;
        let key = |pid| StatKey { started_ns: 1, pid, device: 2, command: 3, family: 0 };
        let mut keys_in = [0; SETS as usize];
        for pid in 0..KEYS {
            sets_of(&key(pid), 1, SETS).into_iter().for_each(|set| keys_in[set as usize] += 1);
        }
        let mean = (2 * KEYS / SETS) as i32;
        assert!(keys_in.iter().all(|keys: &i32| (keys - mean).abs() < mean / 2), "{keys_in:?}");
        let other = |seed| {
            (0..KEYS).filter(|pid| sets_of(&key(*pid), 1, SETS) == sets_of(&key(*pid), seed, SETS)).count()
        };
        assert!(other(2) < KEYS as usize / 100, "without the seed nobody knows who is beside whom");
    }

    #[test]
    fn there_are_sets_for_all_rows_of_any_machine() {
        for rows in 1..=5_000 {
            let sets = sets(rows);
            assert!(sets.is_power_of_two() && sets as usize * WAYS >= rows, "{rows}");
        }
    }
}
