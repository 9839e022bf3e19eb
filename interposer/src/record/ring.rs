//! A ring of one thread's events on their way to the trace. The thread fills the ring and the
//! recording thread empties it, without a lock.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The number of events for which a ring has room: more than a thread makes between two looks of
/// the recording thread.
const PLACES: u32 = 8192;
/// The number of words of an event.
pub const WORDS: usize = 7;

/// An event: the words that a thread writes for one call.
pub type Event = [u64; WORDS];

/// A ring of one thread's events on their way to the trace.
#[derive(Debug)]
pub struct Ring {
    /// The thread that fills the ring.
    thread: AtomicU32,
    is_free: AtomicBool,
    head: AtomicU32,
    tail: AtomicU32,
    lost: AtomicU64,
    places: Box<[[AtomicU64; WORDS]]>,
}

impl Ring {
    /// Returns a ring that no thread has.
    pub fn new() -> Self {
        Self {
            thread: AtomicU32::new(0),
            is_free: AtomicBool::new(true),
            head: AtomicU32::new(0),
            tail: AtomicU32::new(0),
            lost: AtomicU64::new(0),
            places: (0..PLACES).map(|_| [const { AtomicU64::new(0) }; WORDS]).collect(),
        }
    }

    /// Takes the oldest event out, and returns it. Only the recording thread calls this.
    pub fn pop(&self) -> Option<Event> {
        let tail = self.tail.load(Ordering::Relaxed);
        if tail == self.head.load(Ordering::Acquire) {
            return None;
        }
        let place = self.places.get((tail % PLACES) as usize)?;
        let event = std::array::from_fn(|word| place[word].load(Ordering::Relaxed));
        self.tail.store(tail.wrapping_add(1), Ordering::Release);
        Some(event)
    }

    /// Counts an event that found no place in a ring. Any thread may call this.
    pub fn count_lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of events lost since the last call.
    pub fn take_lost(&self) -> u64 {
        self.lost.swap(0, Ordering::Relaxed)
    }

    /// Returns the id of the thread whose events are in the ring.
    pub fn thread(&self) -> u32 {
        self.thread.load(Ordering::Relaxed)
    }

    /// Gives the ring to the calling thread `thread`. Returns `None` if another thread has the
    /// ring, or if the ring is not empty.
    pub fn adopt(&self, thread: u32) -> Option<RingOwner<'_>> {
        let is_empty = self.tail.load(Ordering::Acquire) == self.head.load(Ordering::Relaxed);
        let is_adopted = is_empty && self.is_free.swap(false, Ordering::Acquire);
        is_adopted.then(|| {
            self.thread.store(thread, Ordering::Relaxed);
            RingOwner { ring: self, thread: PhantomData }
        })
    }
}

/// A ring in the hands of the thread that fills it. When the thread ends, it drops this value. Once
/// the ring is empty, another thread can have the ring.
#[derive(Debug)]
pub struct RingOwner<'a> {
    ring: &'a Ring,
    /// Keeps the compiler from moving the value to another thread.
    thread: PhantomData<*const ()>,
}

impl RingOwner<'_> {
    /// Puts an event in. If the ring is full, counts the event as lost.
    pub fn push(&self, event: &Event) {
        let ring = self.ring;
        let head = ring.head.load(Ordering::Relaxed);
        let place = ring.places.get((head % PLACES) as usize);
        match place.filter(|_| head.wrapping_sub(ring.tail.load(Ordering::Acquire)) < PLACES) {
            Some(place) => {
                for (to, from) in place.iter().zip(event) {
                    to.store(*from, Ordering::Relaxed);
                }
                ring.head.store(head.wrapping_add(1), Ordering::Release);
            }
            None => ring.count_lost(),
        }
    }
}

impl Drop for RingOwner<'_> {
    fn drop(&mut self) {
        self.ring.is_free.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_do_not_fit_are_counted_and_the_others_come_out_in_order() {
        let ring = Ring::new();
        let own = ring.adopt(7).unwrap();
        for number in 0..u64::from(PLACES) + 5 {
            own.push(&[number; WORDS]);
        }
        assert_eq!(ring.take_lost(), 5);
        assert_eq!(ring.take_lost(), 0);
        for number in 0..u64::from(PLACES) {
            assert_eq!(ring.pop(), Some([number; WORDS]));
        }
        assert_eq!(ring.pop(), None);
    }

    #[test]
    fn two_threads_lose_nothing_that_is_not_counted() {
        const EVENTS: u64 = 200_000;
        let ring = Ring::new();
        let (mut seen, mut before) = (0, None);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let own = ring.adopt(7).unwrap();
                (0..EVENTS).for_each(|number| own.push(&[number; WORDS]));
            });
            loop {
                let is_done = writer.is_finished();
                while let Some(event) = ring.pop() {
                    assert!(event.iter().all(|word| *word == event[0]) && before < Some(event[0]));
                    before = Some(event[0]);
                    seen += 1;
                }
                if is_done {
                    break;
                }
            }
        });
        assert_eq!(seen + ring.take_lost(), EVENTS);
    }

    #[test]
    fn a_ring_changes_hands_when_its_thread_is_gone_and_all_is_read() {
        let ring = Ring::new();
        let first = ring.adopt(1).unwrap();
        first.push(&[1; WORDS]);
        assert!(ring.adopt(2).is_none());
        drop(first);
        assert!(ring.adopt(2).is_none(), "there is something in it");
        ring.pop();
        let second = ring.adopt(2);
        assert!(second.is_some() && ring.thread() == 2);
        assert!(ring.adopt(3).is_none());
    }
}
