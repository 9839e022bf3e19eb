//! Launches of one thread, in segments that this thread and the meter thread close.

use deepres_abi::tally::{Attempt, Taken, Tally};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;

use super::beside;

/// The number of launches in a segment.
const LENGTH: u32 = 2;
const PREEMPTIONS: usize = 3;

/// A lane's tally, the launches for which a thread accounted, and whether the owner is inside the
/// driver.
#[derive(Default)]
struct Lane {
    tally: Tally,
    launched: AtomicU64,
    ns: AtomicU64,
    is_inside: AtomicBool,
    /// Whether a thread dropped a segment, perhaps during a launch.
    is_dropped: AtomicBool,
    /// The known times of settled launches, as the bits of [`ns_of`].
    late_ns: AtomicU64,
    /// The known times of launches during which no thread was allowed to close the segment. Only
    /// the owner writes this.
    in_time_ns: AtomicU64,
}

/// Returns the known time of the launch with this number: a bit of its own.
fn ns_of(number: u64) -> u64 {
    1 << number
}

impl Lane {
    fn add(&self, taken: Taken) {
        self.launched.fetch_add(taken.launched, Ordering::Relaxed);
        self.ns.fetch_add(taken.ns, Ordering::Relaxed);
    }

    fn settle(&self) {
        if let Some(late) = self.tally.settle() {
            self.add(late);
            self.late_ns.fetch_add(late.ns, Ordering::Relaxed);
        }
    }

    fn close(&self) {
        if self.tally.begin_closing() {
            assert!(!self.is_inside.load(Ordering::Relaxed), "a launch of it is under way");
            self.add(self.tally.account(self.tally.launched_at_end()));
            self.tally.closed();
        }
    }

    fn discard(&self) {
        loop {
            match self.tally.seize() {
                Attempt::Done => break,
                Attempt::Idle => return,
                Attempt::Busy => thread::yield_now(),
            }
        }
        self.is_dropped.store(true, Ordering::Relaxed);
        self.add(self.tally.account(self.tally.launched_at_end()));
        self.tally.closed();
    }

    /// Makes the launch with this number.
    fn launch(&self, number: u64) {
        if let Some(launched) = self.tally.next(1) {
            self.tally.put(launched, ns_of(number));
            return;
        }
        let is_open = loop {
            match self.tally.claim() {
                Attempt::Done => break true,
                Attempt::Idle => break false,
                Attempt::Busy => thread::yield_now(),
            }
        };
        if !is_open {
            self.settle();
            self.tally.set_target((self.tally.launched() as u32).wrapping_add(LENGTH));
            self.tally.open();
        }
        self.is_inside.store(true, Ordering::Relaxed);
        let launched = self.tally.launched().wrapping_add(1);
        self.tally.put(launched, ns_of(number));
        self.in_time_ns.fetch_add(ns_of(number), Ordering::Relaxed);
        self.is_inside.store(false, Ordering::Relaxed);
        self.tally.release();
        if self.tally.is_full_at(launched) {
            self.close();
        }
    }
}

/// Lets an owner launch `launches` times beside another thread. Then closes the rest, and checks
/// that the tally accounted for each launch once.
fn each_launch_is_accounted_for_once(launches: u64, other: impl Fn(&Lane) + Copy + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(move || {
        let lane = Arc::new(Lane::default());
        let meter = beside(&lane, other);
        (0..launches).for_each(|number| lane.launch(number));
        meter.join().unwrap();
        lane.close();
        lane.settle();
        assert_eq!(lane.launched.load(Ordering::Relaxed), launches);
        assert_eq!(lane.ns.load(Ordering::Relaxed), (0..launches).map(ns_of).sum());
        let is_dropped = lane.is_dropped.load(Ordering::Relaxed);
        let late_ns = lane.late_ns.load(Ordering::Relaxed) & lane.in_time_ns.load(Ordering::Relaxed);
        assert!(is_dropped || late_ns == 0, "{late_ns:b} was a segment's");
    });
}

#[test]
fn each_launch_is_accounted_for_once_however_segments_are_closed() {
    each_launch_is_accounted_for_once(4, |lane| {
        lane.close();
        lane.settle();
        lane.close();
    });
}

#[test]
fn each_launch_is_accounted_for_once_where_both_threads_settle_late_ones() {
    each_launch_is_accounted_for_once(3, |lane| {
        lane.close();
        lane.settle();
        lane.settle();
    });
}

#[test]
#[ignore = "deep: takes long"]
fn each_launch_is_accounted_for_once_where_its_segment_ends_soon_or_is_dropped_under_it() {
    each_launch_is_accounted_for_once(3, |lane| {
        lane.tally.end_soon();
        lane.discard();
        lane.settle();
    });
}
