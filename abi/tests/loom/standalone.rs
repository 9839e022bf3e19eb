//! State that a tenant's processes share without a daemon: GPU time and turns.

use deepres_abi::allowance::{Allowance, BURST_NS, TICK_NS};
use deepres_abi::turn::Turn;
use loom::sync::Arc;

use super::beside;

#[test]
fn time_that_two_processes_cover_is_charged_once() {
    loom::model(|| {
        let account = Arc::new(Allowance::default());
        let other = beside(&account, |account| account.cover(0, 2 * TICK_NS));
        let mine = account.cover(TICK_NS, 3 * TICK_NS);
        assert_eq!(mine + other.join().unwrap(), 3 * TICK_NS);
    });
}

#[test]
fn two_charges_are_both_to_be_made_up_for() {
    loom::model(|| {
        let account = Arc::new(Allowance::default());
        let other = beside(&account, |account| account.charge(BURST_NS + 7, 100, 500_000));
        account.charge(BURST_NS + 7, 10, 100_000);
        other.join().unwrap();
        assert_eq!((account.due_ns(), account.charged_ns()), (7 + 200 + 100, 110));
    });
}

#[test]
fn of_two_processes_one_has_the_turn() {
    loom::model(|| {
        const UNTIL_NS: u64 = 1 << 30;
        let turn = Arc::new(Turn::default());
        let other = beside(&turn, |turn| turn.take(1, 0, UNTIL_NS));
        let mine = turn.take(0, 0, UNTIL_NS);
        assert!(mine != other.join().unwrap());
        assert!(turn.is_held_by(usize::from(!mine)));
    });
}
