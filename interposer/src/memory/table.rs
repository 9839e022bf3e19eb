//! Tables of allocations. The keys are numbers that are already mixed.
//!
//! Often memory is freed before anything else is allocated. So one entry is kept in front, where it
//! is found, inserted and removed without the hash table.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, DefaultHasher, Hasher};

/// A hash table with fixed hash keys. The standard library's default asks the kernel for random
/// numbers, and aborts the process if the job's system call filter refuses them.
pub type Plain<K, V> = HashMap<K, V, BuildHasherDefault<DefaultHasher>>;

/// Spreads similar numbers. Different numbers stay different.
pub const fn mixed(number: u64) -> u64 {
    /// 2⁶⁴ divided by the golden ratio.
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    number.wrapping_mul(MULTIPLIER)
}

/// A hasher for keys that are already mixed.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, value: u64) {
        // The table chooses buckets by the low bits. A product with an aligned address has zeroes
        // there.
        self.0 = value ^ (value >> 32);
    }
}

/// A hash table with one entry in front. See the module.
#[derive(Debug)]
pub struct Table<V> {
    /// Any one of the entries.
    front: Option<(u64, V)>,
    others: HashMap<u64, V, BuildHasherDefault<Identity>>,
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self { front: None, others: HashMap::default() }
    }
}

impl<V> Table<V> {
    /// Returns the value of `key`.
    #[inline]
    pub fn get_mut(&mut self, key: u64) -> Option<&mut V> {
        match &mut self.front {
            Some((front, value)) if *front == key => Some(value),
            _ if self.others.is_empty() => None,
            _ => self.others.get_mut(&key),
        }
    }

    /// Whether there is a value for `key`.
    pub fn contains(&self, key: u64) -> bool {
        matches!(&self.front, Some((front, _)) if *front == key) || self.others.contains_key(&key)
    }

    /// Inserts `value` for `key`, which must not be in the table.
    #[inline(always)]
    pub fn put(&mut self, key: u64, value: V) {
        if self.front.is_none() {
            self.front = Some((key, value));
        } else {
            self.put_behind(key, value);
        }
    }

    #[inline(never)]
    fn put_behind(&mut self, key: u64, value: V) {
        self.others.insert(key, value);
    }

    /// Inserts `value` for `key`. Returns the value that it replaces.
    #[inline]
    pub fn insert(&mut self, key: u64, value: V) -> Option<V> {
        if let Some(known) = self.get_mut(key) {
            return Some(std::mem::replace(known, value));
        }
        self.put(key, value);
        None
    }

    /// Removes and returns the value of `key`.
    #[inline]
    pub fn remove(&mut self, key: u64) -> Option<V> {
        self.remove_if(key, |_| true)
    }

    /// Removes and returns the value of `key` if it `is_meant`.
    #[inline(always)]
    pub fn remove_if(&mut self, key: u64, is_meant: impl FnOnce(&V) -> bool) -> Option<V> {
        match &self.front {
            Some((front, value)) if *front == key => {
                if is_meant(value) {
                    self.front.take().map(|(_, value)| value)
                } else {
                    None
                }
            }
            _ if self.others.is_empty() => None,
            _ => self.remove_behind(key, is_meant),
        }
    }

    #[inline(never)]
    fn remove_behind(&mut self, key: u64, is_meant: impl FnOnce(&V) -> bool) -> Option<V> {
        match self.others.entry(key) {
            Entry::Occupied(known) if is_meant(known.get()) => Some(known.remove()),
            _ => None,
        }
    }

    /// Returns all values.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.front.iter().map(|(_, value)| value).chain(self.others.values())
    }

    /// Returns all values for changes.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.front.iter_mut().map(|(_, value)| value).chain(self.others.values_mut())
    }

    /// Removes and returns all values that are meant.
    pub fn extract(&mut self, is_meant: impl Fn(&V) -> bool) -> impl Iterator<Item = V> {
        let front = self.front.take_if(|(_, value)| is_meant(value));
        let others = self.others.extract_if(move |_, value| is_meant(value));
        front.into_iter().chain(others).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_table_with_a_front_is_a_table() {
        let (mut table, mut model) = (Table::default(), BTreeMap::new());
        let mut number = 1_u64;
        for round in 0..20_000 {
            number = mixed(number ^ (number >> 29)).wrapping_add(round);
            let key = (number >> 40) % 7;
            match (number >> 50) % 5 {
                0 | 1 => assert_eq!(table.insert(key, round), model.insert(key, round)),
                2 => {
                    let is_meant = |value: &u64| !value.is_multiple_of(3);
                    let expected = model.get(&key).copied().filter(is_meant);
                    model.retain(|at, value| *at != key || !is_meant(value));
                    assert_eq!(table.remove_if(key, is_meant), expected);
                }
                _ if (number >> 61) == 1 => assert_eq!(table.remove(key), model.remove(&key)),
                3 => assert_eq!(table.get_mut(key), model.get_mut(&key)),
                _ if (number >> 60) == 0 => {
                    let is_meant = |value: &u64| value.is_multiple_of(2);
                    let mut extracted: Vec<u64> = table.extract(is_meant).collect();
                    extracted.sort_unstable();
                    let mut expected: Vec<u64> =
                        model.extract_if(.., |_, value| is_meant(value)).map(|(_, value)| value).collect();
                    expected.sort_unstable();
                    assert_eq!(extracted, expected);
                }
                _ => assert_eq!(table.contains(key), model.contains_key(&key)),
            }
            let sorted = |mut values: Vec<u64>| {
                values.sort_unstable();
                values
            };
            let expected = sorted(model.values().copied().collect());
            assert_eq!(sorted(table.values().copied().collect()), expected);
            assert_eq!(sorted(table.values_mut().map(|value| *value).collect()), expected);
        }
    }

    #[test]
    fn what_is_put_and_taken_at_once_leaves_the_table_behind_the_front_as_it_is() {
        let mut table = Table::default();
        table.put(1, 'a');
        table.put(2, 'b');
        assert_eq!((table.remove(1), table.others.len()), (Some('a'), 1));
        for key in 3..100 {
            table.put(key, 'c');
            assert_eq!((table.others.len(), table.remove(key)), (1, Some('c')));
        }
    }
}
