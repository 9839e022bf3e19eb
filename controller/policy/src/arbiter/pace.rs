//! The pace at which the arbiter answers the bells of one ringer. A process that rings its bells in
//! a loop would otherwise make the arbiter look without a pause.
//!
//! Each look costs its ringer a price in time. If the ringer rang less than one price after its
//! last look, and has saved nothing, the arbiter looks later. The look answers all rings up to
//! then, so the ringer pays once for all of them. So a ring waits at most one price, and a ringer
//! of many processes waits no longer than a ringer of one.
//!
//! A bell that rings again before its answer is shut until the answer. To shut a bell and to listen
//! to it again takes time, so each shut bell costs the ringer a price too.
//!
//! A look with a cause costs as much as a look without a cause. The cause would be a change of the
//! ringer's own meter page, and a process can change its meter page as often as it rings.

use core::time::Duration;

/// The price of a look, ns. In a program, each ring belongs to a burst of launches, or to a gate
/// that the arbiter changed. Bursts every 0.3 ms, and two rings in a hand-off every 2 ms, cost less
/// than nine tenths of the time. A look of 10 µs takes a twentieth of this price.
pub const PRICE_NS: u64 = Duration::from_micros(200).as_nanos() as u64;
/// The increase of the price for each session on the GPU, ns. A look reads the meter of each
/// session in less than a quarter of this time.
pub const SESSION_NS: u64 = Duration::from_micros(1).as_nanos() as u64;
/// The price of a bell that the arbiter shuts, ns. The arbiter makes two system calls for the bell,
/// and takes two events of it beyond the first ring. These calls and events cost less than this
/// time.
pub const SHUT_NS: u64 = Duration::from_micros(5).as_nanos() as u64;
/// The time that a quiet ringer has saved at most, ns: a hundred looks. A hand-off can wake a
/// hundred threads, and each of these threads can ring.
pub const SAVED_NS: u64 = Duration::from_millis(20).as_nanos() as u64;

/// Returns the price of a look at this many sessions, ns.
pub fn price_ns(sessions: usize) -> u64 {
    PRICE_NS.saturating_add(SESSION_NS.saturating_mul(sessions as u64))
}

/// The looks that one ringer has paid for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pace {
    /// The time up to which the ringer has spent its time, ns.
    spent_ns: u64,
}

impl Pace {
    /// Charges a look at this many sessions to a ringer that rings at `now_ns`. Returns the time of
    /// the look, ns: `now_ns`, or a later time. Until that time, further rings cost nothing, and
    /// the caller does not call this function again.
    pub fn look(&mut self, now_ns: u64, sessions: usize) -> u64 {
        self.charge(now_ns, price_ns(sessions));
        self.spent_ns.max(now_ns)
    }

    /// Charges a bell that the arbiter shuts at `now_ns`. The next look is later by this price.
    pub fn shut(&mut self, now_ns: u64) {
        self.charge(now_ns, SHUT_NS);
    }

    fn charge(&mut self, now_ns: u64, price_ns: u64) {
        self.spent_ns = self.spent_ns.max(now_ns.saturating_sub(SAVED_NS)).saturating_add(price_ns);
    }

    /// Returns whether the ringer has saved all the time that it can save.
    pub fn is_as_new(&self, now_ns: u64) -> bool {
        self.spent_ns.saturating_add(SAVED_NS) <= now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START_NS: u64 = 1_000_000_000;
    const MS: u64 = 1_000_000;

    #[test]
    fn a_bell_that_rings_without_end_has_an_answer_for_each_price_and_at_once_after_a_pause() {
        let saved = SAVED_NS / price_ns(1);
        let mut pace = Pace::default();
        // The bell rings anew as soon as the ring before has its answer.
        let mut now_ns = START_NS;
        for count in 1..=10 * saved {
            let answer_ns = pace.look(now_ns, 1);
            assert_eq!(answer_ns == now_ns, count <= saved, "{count}");
            now_ns = answer_ns;
        }
        assert!((now_ns - START_NS).abs_diff(9 * saved * price_ns(1)) < price_ns(1));
        assert!(!pace.is_as_new(now_ns));
        now_ns += price_ns(1);
        assert_eq!(pace.look(now_ns, 1), now_ns);
        assert!(pace.is_as_new(now_ns + SAVED_NS));
    }

    #[test]
    fn shut_bells_delay_the_next_look_and_quiet_ringers_save_no_more_by_them() {
        let mut pace = Pace::default();
        let bells = SAVED_NS / SHUT_NS;
        (0..bells).for_each(|_| pace.shut(START_NS));
        assert_eq!(pace.look(START_NS, 1), START_NS + price_ns(1));
        assert_eq!(
            pace.look(START_NS + SAVED_NS + 2 * price_ns(1), 1),
            START_NS + SAVED_NS + 2 * price_ns(1)
        );
    }

    #[test]
    fn rings_of_real_programs_have_an_answer_at_once() {
        let mut pace = Pace::default();
        // In each hand-off, a thread that waits rings, and the work before it ends.
        let bursts = (0..10_000).map(|burst| (burst * 3 * MS / 10, 1));
        let handoffs = (0..1_500).map(|handoff| (handoff * 2 * MS, 2));
        let mut rings: Vec<_> = bursts.chain(handoffs).collect();
        rings.sort_unstable();
        for (at_ns, count) in rings {
            for _ in 0..count {
                assert_eq!(pace.look(START_NS + at_ns, 1), START_NS + at_ns);
            }
        }
    }

    proptest! {
        #[test]
        fn looks_are_bounded_in_each_span_and_no_ring_waits_longer_than_a_price(
            gaps_ns in prop::collection::vec(prop_oneof![0..10_000u64, 0..MS, 0..50 * MS], 1..500),
            sessions in 1..1_000usize,
            first in any::<prop::sample::Index>(),
        ) {
            let (mut pace, mut now_ns) = (Pace::default(), START_NS);
            let mut looks_ns: Vec<u64> = Vec::new();
            for gap_ns in gaps_ns {
                now_ns += gap_ns;
                // The look that is due answers each ring before it.
                if looks_ns.last().is_none_or(|look_ns| *look_ns <= now_ns) {
                    let look_ns = pace.look(now_ns, sessions);
                    prop_assert!(look_ns <= now_ns + price_ns(sessions));
                    looks_ns.push(look_ns);
                }
            }
            let span = &looks_ns[first.index(looks_ns.len())..];
            for (count, look_ns) in span.iter().enumerate() {
                prop_assert!(count as u64 <= (SAVED_NS + look_ns - span[0]) / price_ns(sessions));
            }
        }

        #[test]
        fn a_ringer_within_its_pace_never_waits(
            gaps_ns in prop::collection::vec(0..5 * MS, 1..500),
            sessions in 1..1_000usize,
        ) {
            let (mut pace, mut now_ns) = (Pace::default(), START_NS);
            for gap_ns in gaps_ns {
                now_ns += gap_ns + price_ns(sessions);
                prop_assert_eq!(pace.look(now_ns, sessions), now_ns);
            }
        }
    }
}
