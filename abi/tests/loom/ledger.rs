//! The memory of one tenant, for which several sessions ask at once.

use deepres_abi::ledger::{LedgerGpu, Refused};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::beside;

/// A request that waits for others stops after so many tries.
const TRIES: u32 = 2;

fn ledger(sessions: usize) -> Arc<LedgerGpu> {
    let gpu = Arc::new(LedgerGpu::default());
    for slot in 0..sessions {
        gpu.open(slot).unwrap();
    }
    gpu
}

/// Reserves and commits `bytes` for the session in `slot`. Returns an error if the ledger refuses.
fn take(gpu: &LedgerGpu, slot: usize, bytes: u64, limit_bytes: u64) -> Result<(), Refused> {
    let account = gpu.account(slot).unwrap();
    let mut tries = TRIES;
    let goes_on = || {
        thread::yield_now();
        tries -= 1;
        tries > 0
    };
    account.reserve(bytes, limit_bytes, goes_on).map(|reservation| reservation.commit())
}

/// Lets the owners of two slots ask for six bytes each, both at once. The tenant's limit is ten
/// bytes.
fn race_for_the_last_bytes(mine: usize, theirs: usize) {
    loom::model(move || {
        let gpu = ledger(mine.max(theirs) + 1);
        let other = beside(&gpu, move |gpu| take(gpu, theirs, 6, 10).is_ok());
        let is_mine = take(&gpu, mine, 6, 10).is_ok();
        let is_theirs = other.join().unwrap();
        assert!(!(is_mine && is_theirs), "both cannot fit");
        assert_eq!(gpu.held_bytes(), if is_mine || is_theirs { 6 } else { 0 });
    });
}

#[test]
fn two_sessions_racing_never_pass_the_limit() {
    race_for_the_last_bytes(0, 1);
}

#[test]
#[ignore = "deep: takes long"]
fn two_threads_of_one_session_never_pass_the_limit() {
    race_for_the_last_bytes(0, 0);
}

#[test]
fn a_session_in_a_slot_that_nobody_looked_at_meanwhile_never_passes_the_limit_with_another() {
    loom::model(|| {
        let gpu = ledger(2);
        let newcomer = beside(&gpu, |gpu| {
            // The daemon does this for a new session.
            gpu.shrink(1..2);
            gpu.open(1).unwrap();
            take(gpu, 1, 6, 10).is_ok()
        });
        let is_mine = take(&gpu, 0, 6, 10).is_ok();
        let is_theirs = newcomer.join().unwrap();
        assert!(!(is_mine && is_theirs), "both cannot fit");
        assert_eq!(gpu.held_bytes(), if is_mine || is_theirs { 6 } else { 0 });
    });
}

#[test]
fn the_part_of_a_reservation_that_was_not_needed_never_stays() {
    loom::model(|| {
        let gpu = ledger(1);
        let reservation = gpu.account(0).unwrap().reserve(6, 10, || false).unwrap();
        let other = beside(&gpu, |gpu| gpu.staying_at_one_moment());
        reservation.commit_part(2);
        assert!(other.join().unwrap().is_none_or(|bytes| bytes <= 2), "four were never taken");
    });
}

#[test]
fn bytes_on_their_way_from_pending_to_held_are_never_missed() {
    loom::model(|| {
        let gpu = ledger(2);
        let reservation = gpu.account(0).unwrap().reserve(6, 10, || false).unwrap();
        let other = beside(&gpu, |gpu| take(gpu, 1, 6, 10).is_ok());
        reservation.commit();
        assert!(!other.join().unwrap(), "six are held or pending at every moment");
    });
}

#[test]
fn memory_that_a_session_gives_back_and_takes_again_is_never_missed() {
    loom::model(|| {
        let gpu = ledger(2);
        take(&gpu, 0, 6, 10).unwrap();
        let other = beside(&gpu, |gpu| take(gpu, 1, 5, 10).is_ok());
        // The tenant always holds at least six bytes. The driver took two more bytes by itself, and
        // gives them back at once.
        let account = gpu.account(0).unwrap();
        account.charge(2);
        account.release(2);
        assert!(!other.join().unwrap(), "six are held at every moment");
    });
}

#[test]
fn memory_that_moves_between_two_sessions_refuses_nothing_to_a_third() {
    // The tenant's limit is ten bytes, and it holds five at every moment.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let gpu = ledger(3);
        take(&gpu, 0, 5, 10).unwrap();
        let mover = beside(&gpu, |gpu| {
            gpu.account(0).unwrap().release(5);
            gpu.account(2).unwrap().charge(5);
        });
        let account = gpu.account(1).unwrap();
        let mut tries = 1;
        let goes_on = || {
            tries += 1;
            thread::yield_now();
            tries < TRIES
        };
        let is_refused = account.reserve(5, 10, goes_on).map(drop).is_err();
        mover.join().unwrap();
        // The request may run out of tries. But the ledger must not say that the tenant holds ten
        // bytes.
        assert!(!is_refused || tries > 1);
        take(&gpu, 1, 5, 10).unwrap();
    });
}

#[test]
fn leaving_memory_is_given_to_nobody_before_it_is_released() {
    loom::model(|| {
        let gpu = ledger(2);
        take(&gpu, 0, 6, 10).unwrap();
        let free = Arc::new(AtomicU64::new(10 - 6));
        let leaver = {
            let (gpu, free) = (Arc::clone(&gpu), Arc::clone(&free));
            thread::spawn(move || {
                let leaving = gpu.account(0).unwrap().leave(6);
                // The driver frees the bytes here.
                free.fetch_add(6, Ordering::SeqCst);
                leaving.finish();
            })
        };
        if take(&gpu, 1, 10, 10).is_ok() {
            assert_eq!(free.load(Ordering::SeqCst), 10, "the ledger gave only free memory");
        }
        leaver.join().unwrap();
    });
}

#[test]
fn only_memory_that_stays_refuses_at_once() {
    loom::model(|| {
        let gpu = ledger(2);
        take(&gpu, 0, 6, 10).unwrap();
        let leaving = gpu.account(0).unwrap().leave(6);
        let other = beside(&gpu, |gpu| {
            let mut looks = 0;
            let goes_on = || {
                looks += 1;
                false
            };
            let is_given = gpu.account(1).unwrap().reserve(10, 10, goes_on).map(drop).is_ok();
            assert!(is_given || looks == 1, "it was asked whether to wait");
        });
        leaving.finish();
        other.join().unwrap();
        take(&gpu, 1, 10, 10).unwrap();
    });
}

#[test]
fn the_memory_of_a_dead_session_comes_back_whole_and_once() {
    loom::model(|| {
        let gpu = ledger(2);
        take(&gpu, 0, 4, 10).unwrap();
        // The session died in the middle of a request.
        std::mem::forget(gpu.account(0).unwrap().reserve(3, 10, || false).unwrap());
        let controller = beside(&gpu, |gpu| assert_eq!(gpu.clear(0), Some(4)));
        // This request does not fit beside the dead session's bytes.
        let early = take(&gpu, 1, 10, 10).is_ok();
        controller.join().unwrap();
        if !early {
            take(&gpu, 1, 10, 10).unwrap();
        }
        assert_eq!(gpu.held_bytes(), 10);
        assert!(take(&gpu, 1, 1, 10).is_err());
    });
}

#[test]
fn a_slot_that_is_given_out_again_begins_empty() {
    loom::model(|| {
        let gpu = ledger(2);
        take(&gpu, 0, 4, 10).unwrap();
        std::mem::forget(gpu.account(0).unwrap().reserve(3, 10, || false).unwrap());
        let controller = beside(&gpu, |gpu| {
            gpu.clear(0).unwrap();
            gpu.open(0).unwrap();
            take(gpu, 0, 4, 10)
        });
        let mine = take(&gpu, 1, 6, 10).is_ok();
        let next = controller.join().unwrap().is_ok();
        let expected = if mine { 6 } else { 0 } + if next { 4 } else { 0 };
        assert_eq!(gpu.held_bytes(), expected);
    });
}

#[test]
fn a_lowered_limit_binds_every_later_reader() {
    loom::model(|| {
        let gpu = ledger(2);
        let limit_bytes = Arc::new(AtomicU64::new(10));
        let administrator = beside(&limit_bytes, |limit_bytes| limit_bytes.store(5, Ordering::Release));
        let other = {
            let (gpu, limit_bytes) = (Arc::clone(&gpu), Arc::clone(&limit_bytes));
            thread::spawn(move || {
                let seen_bytes = limit_bytes.load(Ordering::Acquire);
                (seen_bytes, take(&gpu, 1, 4, seen_bytes).is_ok())
            })
        };
        let seen_bytes = limit_bytes.load(Ordering::Acquire);
        let mine = take(&gpu, 0, 4, seen_bytes).is_ok();
        administrator.join().unwrap();
        let (theirs_seen_bytes, theirs) = other.join().unwrap();
        assert_eq!(gpu.held_bytes(), 4 * (u64::from(mine) + u64::from(theirs)));
        if (seen_bytes, theirs_seen_bytes) == (5, 5) {
            assert!(gpu.held_bytes() <= 5, "both went by the lower limit");
        }
        assert!(take(&gpu, 0, 4, limit_bytes.load(Ordering::Acquire)).is_err() || gpu.held_bytes() <= 5);
    });
}

#[test]
fn memory_that_leaves_one_session_for_another_is_counted_once_although_other_memory_stays() {
    loom::model(|| {
        let gpu = ledger(2);
        take(&gpu, 0, 6, 10).unwrap();
        take(&gpu, 1, 3, 10).unwrap();
        let other = beside(&gpu, |gpu| gpu.staying_at_one_moment());
        // The driver frees three bytes of one session. Three bytes of the other session stay,
        // although the session told the driver to free them.
        let [from, to] = [0, 1].map(|slot| gpu.account(slot).unwrap());
        let leaving = to.leave(3);
        from.release(3);
        drop(leaving);
        to.charge(3);
        assert!(other.join().unwrap().is_none_or(|bytes| bytes <= 9), "nine were held at most");
    });
}
