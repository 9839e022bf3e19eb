//! The pace at which the arbiter answers the bells of one ringer. A process that rings its bells in
//! a loop would otherwise make the arbiter look without a pause.
//!
//! Each ring costs its ringer a price in time. A ringer that rings more slowly than one ring per
//! price, or that was quiet before, has an answer at once. Any other ring has its answer later, and
//! the arbiter does not listen to that bell until then.
//!
//! A ring with a cause costs as much as a ring without a cause. The cause would be a change of the
//! ringer's own meter page, and a process can change its meter page as often as it rings.

use core::time::Duration;

/// The price of a ring, ns. In a program, each ring belongs to a burst of launches, or to a gate
/// that the arbiter changed. Bursts every 0.3 ms, and two rings in a hand-off every 2 ms, cost less
/// than nine tenths of the time. A look of 10 µs takes a twentieth of this price.
pub const RING_NS: u64 = Duration::from_micros(200).as_nanos() as u64;
/// The increase of the price for each session of the ringer, ns, because a look reads the meters of
/// all sessions.
pub const SESSION_NS: u64 = Duration::from_micros(1).as_nanos() as u64;
/// The time that a quiet ringer has saved at most, ns: a hundred rings of one session. A hand-off
/// may wake a hundred threads, and each of these threads may ring.
pub const SAVED_NS: u64 = Duration::from_millis(20).as_nanos() as u64;

/// The rings of one ringer that the ringer has paid for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pace {
    /// The time up to which the ringer has spent its time, ns.
    spent_ns: u64,
}

impl Pace {
    /// Charges a ring at `now_ns` to a ringer with this many sessions. Returns when the arbiter
    /// answers the ring, ns: `now_ns`, or a later time.
    pub fn ring(&mut self, now_ns: u64, sessions: usize) -> u64 {
        let price_ns = RING_NS.saturating_add(SESSION_NS.saturating_mul(sessions as u64));
        let spent_ns = self.spent_ns.max(now_ns.saturating_sub(SAVED_NS));
        self.spent_ns = spent_ns.saturating_add(price_ns);
        self.spent_ns.max(now_ns)
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

    fn price_ns(sessions: usize) -> u64 {
        RING_NS + SESSION_NS * sessions as u64
    }

    #[test]
    fn a_bell_that_rings_without_end_has_an_answer_for_each_price_and_at_once_after_a_pause() {
        let saved = SAVED_NS / price_ns(1);
        let mut pace = Pace::default();
        // The bell rings anew as soon as the ring before has its answer.
        let mut now_ns = START_NS;
        for count in 1..=10 * saved {
            let answer_ns = pace.ring(now_ns, 1);
            assert_eq!(answer_ns == now_ns, count <= saved, "{count}");
            now_ns = answer_ns;
        }
        assert!((now_ns - START_NS).abs_diff(9 * saved * price_ns(1)) < price_ns(1));
        assert!(!pace.is_as_new(now_ns));
        now_ns += price_ns(1);
        assert_eq!(pace.ring(now_ns, 1), now_ns);
        assert!(pace.is_as_new(now_ns + SAVED_NS));
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
                assert_eq!(pace.ring(START_NS + at_ns, 1), START_NS + at_ns);
            }
        }
    }

    proptest! {
        // The rings do not wait for answers, as the rings of several bells do not.
        #[test]
        fn answers_are_bounded_in_each_span(
            gaps_ns in prop::collection::vec(prop_oneof![0..10_000u64, 0..MS, 0..50 * MS], 1..500),
            sessions in 1..1_000usize,
            first in any::<prop::sample::Index>(),
        ) {
            let (mut pace, mut now_ns) = (Pace::default(), START_NS);
            let answers_ns: Vec<u64> = gaps_ns
                .iter()
                .map(|gap_ns| {
                    now_ns += gap_ns;
                    pace.ring(now_ns, sessions)
                })
                .collect();
            let span = &answers_ns[first.index(answers_ns.len())..];
            for (count, answer_ns) in span.iter().enumerate() {
                prop_assert!(count as u64 <= (SAVED_NS + answer_ns - span[0]) / price_ns(sessions));
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
                prop_assert_eq!(pace.ring(now_ns, sessions), now_ns);
            }
        }
    }
}
