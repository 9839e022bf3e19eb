//! Every interleaving of the lock-free parts, by the model checker: `RUSTFLAGS="--cfg loom" cargo test -p deepres-abi --release --test loom`.
#![cfg(loom)]

use deepres_abi::allowance::{Allowance, BURST_NS, TICK_NS};
use deepres_abi::grant::{GateState, GrantSlot, LeaseTerms};
use deepres_abi::ledger::LedgerGpu;
use deepres_abi::meter::MeterSlot;
use deepres_abi::seqlock::SeqLock;
use deepres_abi::turn::Turn;
use loom::sync::Arc;
use loom::thread;

#[test]
fn a_seqlock_reader_never_sees_half_a_write() {
    loom::model(|| {
        let lock = Arc::new(SeqLock::<2>::default());
        let writer = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || {
                lock.write([1, 1]);
                lock.write([2, 2]);
            })
        };
        if let Some([a, b]) = lock.read() {
            assert_eq!(a, b);
        }
        writer.join().unwrap();
        assert_eq!(lock.read(), Some([2, 2]));
    });
}

#[test]
fn terms_read_after_a_leased_gate_are_that_lease_or_visibly_another() {
    loom::model(|| {
        let slot = Arc::new(GrantSlot::default());
        let controller = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                for lease in 1..=2 {
                    slot.set_gate(
                        GateState::Leased,
                        LeaseTerms { expires_ns: lease, window_ns: lease, ..LeaseTerms::default() },
                    );
                }
            })
        };
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

#[test]
fn two_sessions_racing_never_pass_the_limit() {
    loom::model(|| {
        let gpu = Arc::new(LedgerGpu::default());
        gpu.open(0).unwrap();
        gpu.open(1).unwrap();
        let other = {
            let gpu = Arc::clone(&gpu);
            thread::spawn(move || {
                gpu.account(1)
                    .unwrap()
                    .reserve(6, 10, thread::yield_now)
                    .map(|reservation| reservation.commit())
                    .is_ok()
            })
        };
        let mine = gpu
            .account(0)
            .unwrap()
            .reserve(6, 10, thread::yield_now)
            .map(|reservation| reservation.commit())
            .is_ok();
        let theirs = other.join().unwrap();
        assert!(!(mine && theirs), "both cannot fit");
        assert_eq!(gpu.held_bytes(), if mine || theirs { 6 } else { 0 });
    });
}

#[test]
fn bytes_on_their_way_from_pending_to_held_are_never_missed() {
    loom::model(|| {
        let gpu = Arc::new(LedgerGpu::default());
        gpu.open(0).unwrap();
        gpu.open(1).unwrap();
        let reservation = gpu.account(0).unwrap().reserve(6, 10, || ()).unwrap();
        let other = {
            let gpu = Arc::clone(&gpu);
            thread::spawn(move || gpu.account(1).unwrap().reserve(6, 10, thread::yield_now).is_ok())
        };
        reservation.commit();
        assert!(!other.join().unwrap(), "six are held or pending at every moment");
    });
}

#[test]
fn a_thread_that_passes_the_gate_never_looks_as_if_it_wanted_nothing() {
    loom::model(|| {
        let slot = Arc::new(MeterSlot::default());
        slot.enter_wait();
        let controller = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || assert!(slot.read().wants()))
        };
        slot.leave_wait_to_launch();
        controller.join().unwrap();
    });
}

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

#[test]
fn of_two_processes_one_has_the_turn() {
    loom::model(|| {
        const UNTIL_NS: u64 = 1 << 30;
        let turn = Arc::new(Turn::default());
        let other = {
            let turn = Arc::clone(&turn);
            thread::spawn(move || turn.take(1, 0, UNTIL_NS))
        };
        let mine = turn.take(0, 0, UNTIL_NS);
        assert!(mine != other.join().unwrap());
        assert!(turn.is_held_by(usize::from(!mine)));
    });
}
