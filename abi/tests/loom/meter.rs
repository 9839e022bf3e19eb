//! A session's report of the times at which its work was on the GPU.

use deepres_abi::meter::{INTERVALS, Intervals};
use loom::sync::Arc;

use super::beside;

/// Returns the end of the interval that begins at `start_ns`.
fn end_of(start_ns: u64) -> u64 {
    start_ns + 100
}

#[test]
fn no_interval_is_told_twice_in_a_wrong_order_or_mixed_with_another() {
    const ADDED: u64 = INTERVALS as u64 + 1;
    loom::model(|| {
        let intervals = Arc::new(Intervals::default());
        // loom remembers only the last access to each word, and a writer reads before it writes. So
        // loom finds more interleavings if the other thread is the reader.
        let reader = beside(&intervals, |intervals| {
            let (mut since, mut last_ns) = (0, 0);
            let mut look = || {
                since = intervals.since(since, |start_ns, end_ns| {
                    assert_eq!(end_ns, end_of(start_ns), "of two intervals");
                    assert!(start_ns > last_ns, "{start_ns} after {last_ns}");
                    last_ns = start_ns;
                });
            };
            look();
            look();
        });
        (1..=ADDED).for_each(|number| intervals.add(number, end_of(number)));
        reader.join().unwrap();
        let mut last = None;
        assert_eq!(intervals.since(0, |start_ns, end_ns| last = Some((start_ns, end_ns))), ADDED);
        assert_eq!(last, Some((ADDED, end_of(ADDED))), "the last one is there once nobody writes");
    });
}
