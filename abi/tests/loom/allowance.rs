//! GPU time of a tenant's processes, without a daemon.

use deepres_abi::allowance::{Allowance, BURST_NS, TICK_NS};
use loom::sync::Arc;
use loom::thread;

#[test]
fn time_that_two_processes_cover_is_charged_once() {
    loom::model(|| {
        let account = Arc::new(Allowance::default());
        let other = {
            let account = Arc::clone(&account);
            thread::spawn(move || account.cover(0, 2 * TICK_NS))
        };
        let mine = account.cover(TICK_NS, 3 * TICK_NS);
        assert_eq!(mine + other.join().unwrap(), 3 * TICK_NS);
    });
}

#[test]
fn two_charges_are_both_to_be_made_up_for() {
    loom::model(|| {
        let account = Arc::new(Allowance::default());
        let other = {
            let account = Arc::clone(&account);
            thread::spawn(move || account.charge(BURST_NS + 7, 100, 500_000))
        };
        account.charge(BURST_NS + 7, 10, 100_000);
        other.join().unwrap();
        assert_eq!((account.due_ns(), account.charged_ns()), (7 + 200 + 100, 110));
    });
}
