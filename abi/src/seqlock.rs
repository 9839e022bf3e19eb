//! A few words that change together. One writer writes them, and many readers read them without
//! ever blocking the writer.
//!
//! The algorithm is from Boehm, "Can seqlocks get along with programming language memory models?"
//! (MSPC 2012). The words themselves are relaxed atomics; fences on both sides order them.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence, spin_hint};

/// The number of attempts after which a reader stops. A write takes nanoseconds. If so many
/// attempts fail, the writer died during a write, or writes without pause. The page of a dead
/// writer stays mapped in its readers.
#[cfg(not(loom))]
const READ_ATTEMPTS: u32 = 1_000;
/// The number of attempts under the model checker, which needs only two attempts to see both
/// outcomes.
#[cfg(loom)]
const READ_ATTEMPTS: u32 = 2;

/// `N` words that a reader sees as of one moment.
#[derive(Debug)]
#[repr(C)]
pub struct SeqLock<const N: usize> {
    /// A counter of the writes. The counter is odd while a write is in progress.
    sequence: AtomicU32,
    words: [AtomicU64; N],
}

impl<const N: usize> Default for SeqLock<N> {
    fn default() -> Self {
        Self { sequence: AtomicU32::new(0), words: core::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl<const N: usize> SeqLock<N> {
    /// Replaces the words. For each lock, only one thread of the whole system may call this.
    pub fn write(&self, words: [u64; N]) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        // An odd value means that a writer died during its write. This write makes the words whole
        // again.
        let writing = sequence | 1;
        self.sequence.store(writing, Ordering::Relaxed);
        fence(Ordering::Release);
        for (slot, word) in self.words.iter().zip(words) {
            slot.store(word, Ordering::Relaxed);
        }
        self.sequence.store(writing.wrapping_add(1), Ordering::Release);
    }

    /// Returns the words that one write left. Returns `None` if no attempt saw the words of a whole
    /// write.
    pub fn read(&self) -> Option<[u64; N]> {
        for _ in 0..READ_ATTEMPTS {
            let before = self.sequence.load(Ordering::Acquire);
            if before & 1 == 0 {
                let words = core::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
                fence(Ordering::Acquire);
                if self.sequence.load(Ordering::Relaxed) == before {
                    return Some(words);
                }
            }
            spin_hint();
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn written_values_are_read() {
        let lock = SeqLock::<3>::default();
        assert_eq!(lock.read(), Some([0, 0, 0]));
        lock.write([1, 2, 3]);
        assert_eq!(lock.read(), Some([1, 2, 3]));
    }

    #[test]
    fn a_writer_that_died_halfway_makes_readers_give_up_until_the_next_write() {
        let lock = SeqLock::<2>::default();
        lock.sequence.store(7, Ordering::Relaxed);
        assert_eq!(lock.read(), None);
        lock.write([4, 5]);
        assert_eq!(lock.read(), Some([4, 5]));
    }
}
