//! Words that change together, under a reader and a writer.

use deepres_abi::grant::{GateState, GrantSlot, LeaseTerms};
use deepres_abi::seqlock::SeqLock;
use loom::sync::Arc;

use super::beside;

#[test]
fn a_reader_never_sees_half_a_write() {
    loom::model(|| {
        let lock = Arc::new(SeqLock::<2>::default());
        let writer = beside(&lock, |lock| {
            lock.write([1, 1]);
            lock.write([2, 2]);
        });
        if let Some([a, b]) = lock.read() {
            assert_eq!(a, b);
        }
        writer.join().unwrap();
        assert_eq!(lock.read(), Some([2, 2]));
    });
}

#[test]
fn two_readers_each_see_writes_in_their_order() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let lock = Arc::new(SeqLock::<1>::default());
        let read_twice = |lock: &SeqLock<1>| {
            let first = lock.read();
            let second = lock.read();
            if let (Some([first]), Some([second])) = (first, second) {
                assert!(first <= second, "a reader goes back in time");
            }
        };
        let reader = beside(&lock, read_twice);
        let writer = beside(&lock, |lock| lock.write([1]));
        read_twice(&lock);
        reader.join().unwrap();
        writer.join().unwrap();
    });
}

#[test]
fn terms_read_after_a_leased_gate_are_that_lease_or_visibly_another() {
    loom::model(|| {
        let slot = Arc::new(GrantSlot::default());
        let controller = beside(&slot, |slot| {
            for lease in 1..=2 {
                let terms = LeaseTerms { expires_ns: lease, window_ns: lease, ..LeaseTerms::default() };
                slot.set_gate(GateState::Leased, terms);
            }
        });
        let gate = slot.gate();
        if gate.state == GateState::Leased
            && let Some(terms) = slot.terms()
        {
            assert_eq!(u64::from(terms.epoch), terms.expires_ns, "terms are of one lease");
            assert_eq!(terms.expires_ns, terms.window_ns, "terms are of one write");
            assert!(terms.epoch >= gate.epoch, "never the terms of an earlier lease");
        }
        controller.join().unwrap();
    });
}
