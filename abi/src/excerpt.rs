//! An excerpt: a short recording of a session's calls, at the end of the session's meter page. From
//! an excerpt, the daemon learns the tenant's iteration.
//!
//! The daemon asks for an excerpt by a number in the grant page
//! ([`crate::grant::GrantPage::ask_for_excerpt`]). While the daemon asks for the number, the
//! session records. When the daemon asks for another number, or the excerpt is full, the session
//! finishes the excerpt. The content is a sequence of chunks ([`crate::recording`]), without the
//! head of a file.
//!
//! The session can write any bytes at any time. So the daemon copies the bytes before it reads
//! them, and [`EXCERPT_BYTES`] bounds the daemon's work.

use crate::sync::{AtomicU8, AtomicU32, Ordering};

/// The most bytes of an excerpt: some 20,000 launches.
#[cfg(not(loom))]
pub const EXCERPT_BYTES: usize = 1 << 19;
/// The most bytes of an excerpt under the model checker.
#[cfg(loom)]
pub const EXCERPT_BYTES: usize = 2;

/// The place for an excerpt in a meter page. The Linux kernel gives the place memory when the
/// session first writes it.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Excerpt {
    /// The number of the excerpt that is finished; 0 for none.
    finished: AtomicU32,
    /// The number of bytes of the finished excerpt.
    length: AtomicU32,
    bytes: [AtomicU8; EXCERPT_BYTES],
}

impl Excerpt {
    /// Writes `bytes` at `place`. Returns false, and writes nothing, if there is no room. Only the
    /// session's recording thread calls this.
    #[must_use]
    pub fn write(&self, place: usize, bytes: &[u8]) -> bool {
        let room = place.checked_add(bytes.len()).and_then(|end| self.bytes.get(place..end));
        let Some(room) = room else { return false };
        for (to, from) in room.iter().zip(bytes) {
            to.store(*from, Ordering::Relaxed);
        }
        true
    }

    /// Says that the excerpt with this number has `length` bytes, and is finished.
    pub fn finish(&self, number: u32, length: usize) {
        self.length.store(length as u32, Ordering::Relaxed);
        self.finished.store(number, Ordering::Release);
    }

    /// Returns the number of the finished excerpt; 0 for none.
    pub fn finished(&self) -> u32 {
        self.finished.load(Ordering::Acquire)
    }

    /// Calls `tell` with each byte of the finished excerpt, in order. The caller must not trust the
    /// bytes, because the session can write any.
    pub fn read(&self, mut tell: impl FnMut(u8)) {
        let length = (self.length.load(Ordering::Relaxed) as usize).min(EXCERPT_BYTES);
        self.bytes.iter().take(length).for_each(|byte| tell(byte.load(Ordering::Relaxed)));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::alloc::{Layout, alloc_zeroed};
    use std::boxed::Box;
    use std::vec::Vec;

    /// Returns an empty place. The value is too large for the stack of a thread.
    fn empty() -> Box<Excerpt> {
        // SAFETY: the layout is not empty. The memory is from the allocator of boxes, and zeros are
        // an excerpt.
        unsafe { Box::from_raw(alloc_zeroed(Layout::new::<Excerpt>()).cast()) }
    }

    #[test]
    fn an_excerpt_is_told_as_it_was_written_and_never_beyond_its_place() {
        let excerpt = empty();
        assert!(excerpt.write(0, b"first") && excerpt.write(5, b" second"));
        assert!(!excerpt.write(EXCERPT_BYTES - 1, b"ab") && !excerpt.write(usize::MAX, b"a"));
        assert_eq!(excerpt.finished(), 0);
        excerpt.finish(7, 12);
        let told = || {
            let mut told = Vec::new();
            excerpt.read(|byte| told.push(byte));
            told
        };
        assert_eq!((excerpt.finished(), &*told()), (7, &b"first second"[..]));
        excerpt.finish(8, usize::MAX);
        assert_eq!(told().len(), EXCERPT_BYTES, "the page bounds the length that the session writes");
    }
}
