//! Undoable changes of the state. If a process is killed at any instruction, each of its changes is
//! either complete or has not happened.
//!
//! Before a word changes, its place and old value go into the journal, which also lies in the
//! shared file. When the holder empties the journal, the change becomes final. A process that takes
//! the lock from a dead holder first restores the old values from the journal. No other repair is
//! needed, because every state between two transactions is consistent.
//!
//! The same code can also change an [`Overlay`]. So a process can look ahead without changing the
//! state.

use crate::layout::{JOURNAL, State, Word};
use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    marker::PhantomData,
};

/// Reads and changes of words of the state.
pub trait Memory {
    /// Returns the word's value.
    fn get(&self, word: &Word) -> u64;
    /// Changes the word.
    fn put(&mut self, word: &Word, value: u64);
    /// Makes all changes since the last commit final together.
    fn commit(&mut self);

    /// Adds to a word.
    #[inline]
    fn add(&mut self, word: &Word, value: u64) {
        let old = self.get(word);
        self.put(word, old.wrapping_add(value));
    }

    /// Lowers a word to `value` if it is higher.
    #[inline]
    fn lower(&mut self, word: &Word, value: u64) {
        if self.get(word) > value {
            self.put(word, value);
        }
    }
}

/// The state itself, changed through the journal. The value exists only while its process holds the
/// lock.
pub struct Logged<'a> {
    state: &'a State,
    len: usize,
}

impl<'a> Logged<'a> {
    /// Returns access for the holder of the lock, with an empty journal.
    #[inline]
    pub fn new(state: &'a State) -> Self {
        debug_assert_eq!(state.journal.len.load(), 0, "a transaction was left open");
        Self { state, len: 0 }
    }
}

impl Memory for Logged<'_> {
    #[inline]
    fn get(&self, word: &Word) -> u64 {
        word.load()
    }

    #[inline]
    fn put(&mut self, word: &Word, value: u64) {
        let old = word.load();
        if old == value {
            return;
        }
        let offset = std::ptr::from_ref(word) as usize - std::ptr::from_ref(self.state) as usize;
        let entry = &self.state.journal.entries[self.len];
        entry.offset.store(offset as u64);
        entry.old.store(old);
        self.len += 1;
        self.state.journal.len.store(self.len as u64);
        failpoint::pass();
        word.store(value);
        failpoint::pass();
    }

    #[inline]
    fn commit(&mut self) {
        if self.len != 0 {
            self.len = 0;
            self.state.journal.len.store(0);
            failpoint::pass();
        }
    }
}

/// Undoes the transaction that a dead or panicking holder of the lock left open. A kill inside this
/// function does no harm, because the next holder calls the function again.
pub fn roll_back(state: &State) {
    let len = state.journal.len.load().min(JOURNAL as u64) as usize;
    for entry in state.journal.entries[..len].iter().rev() {
        let offset = entry.offset.load() as usize;
        assert!(
            offset.is_multiple_of(size_of::<Word>()) && offset < size_of::<State>(),
            "the journal is not one"
        );
        // SAFETY: `put` made the offset from a word of this state, and the assertion above keeps
        // the offset aligned and inside the state. Every word of the state outside the lock is a
        // `Word`. The lock contains no `Word` that could be passed to `put`.
        let word = unsafe { &*std::ptr::from_ref(state).byte_add(offset).cast::<Word>() };
        word.store(entry.old.load());
    }
    state.journal.len.store(0);
}

/// The state with changes that only the overlay's owner sees.
pub struct Overlay<'a> {
    /// Changed values by their words' addresses.
    changed: HashMap<usize, u64, BuildHasherDefault<AddressHasher>>,
    of: PhantomData<&'a State>,
}

impl<'a> Overlay<'a> {
    /// Returns an overlay without changes. The caller holds the lock while it uses the overlay.
    /// Otherwise the overlay would mix values of several moments.
    pub fn new(_: &'a State) -> Self {
        Self { changed: HashMap::default(), of: PhantomData }
    }
}

impl Memory for Overlay<'_> {
    #[inline]
    fn get(&self, word: &Word) -> u64 {
        self.changed.get(&std::ptr::from_ref(word).addr()).copied().unwrap_or_else(|| word.load())
    }

    #[inline]
    fn put(&mut self, word: &Word, value: u64) {
        self.changed.insert(std::ptr::from_ref(word).addr(), value);
    }

    fn commit(&mut self) {}
}

/// A hasher for words' addresses. One multiplication spreads the addresses well enough.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only addresses are hashed");
    }

    fn write_usize(&mut self, address: usize) {
        /// 2^64 / golden ratio, as in Fibonacci hashing.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        self.0 = (address as u64).wrapping_mul(SPREAD).rotate_left(u32::BITS);
    }
}

/// Lets a test kill the process between any two stores.
pub mod failpoint {
    #[cfg(test)]
    thread_local! {
        /// The number of calls of [`pass`] that this thread still survives. The next call kills the
        /// process. With `u64::MAX`, no call kills the process.
        pub static LEFT: std::cell::Cell<u64> = const { std::cell::Cell::new(u64::MAX) };
    }

    /// Marks a moment at which a test may kill the process.
    #[inline(always)]
    pub fn pass() {
        #[cfg(test)]
        LEFT.with(|left| match left.get() {
            u64::MAX => {}
            0 => {
                // SAFETY: `kill` ends this process and touches no memory.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
            passes => left.set(passes - 1),
        });
    }
}
