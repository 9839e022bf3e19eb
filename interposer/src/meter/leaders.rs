//! The *leaders*: kernels that are followed in their stream by a dependent launch
//! ([`Kind::Dependent`](super::segment::Kind::Dependent)).
//!
//! A lane that ends a segment after a launch cannot know whether the next launch is dependent. So
//! the lane notes the kernel after which a dependent launch found the segment ended. From then on,
//! no segment ends right after that kernel.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of marks (bits) in the set. If two kernels share a mark, their segments end one
/// launch later than necessary.
const MARKS: usize = 4096;

/// A set of keys. The set can also report keys that no thread added.
#[derive(Debug)]
pub struct Leaders([AtomicU64; MARKS / u64::BITS as usize]);

impl Default for Leaders {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; MARKS / u64::BITS as usize])
    }
}

/// Returns the position of a key's mark: the index of the word in the set, and the bit in the word.
fn place(key: u64) -> (usize, u64) {
    /// 2⁶⁴ divided by the golden ratio. The multiples of this number are spread evenly.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mark = (key.wrapping_mul(SPREAD) >> (u64::BITS - MARKS.ilog2())) as usize;
    (mark / u64::BITS as usize, 1 << (mark % u64::BITS as usize))
}

impl Leaders {
    /// Adds the key of a kernel that a dependent launch followed.
    pub fn add(&self, key: u64) {
        let (word, bit) = place(key);
        if let Some(word) = self.0.get(word) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Returns whether a thread has added the key, or a key with the same mark.
    pub fn has(&self, key: u64) -> bool {
        let (word, bit) = place(key);
        self.0.get(word).is_some_and(|word| word.load(Ordering::Relaxed) & bit != 0)
    }
}
