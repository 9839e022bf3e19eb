//! These tests kill a session after every single instruction of its work with the tenant's ledger.
//! After the kill, all bytes that the session held must come back. The other sessions must not
//! exceed the limit, and the dead session's bytes must not refuse them.
//!
//! The victim is a forked child that shares the ledger's memory. The test steps the child one
//! instruction at a time, by ptrace, and kills one child after each change of the ledger. The test
//! does not kill after an instruction that changes nothing in the ledger, because the effect is the
//! same as before the next change.
#![cfg(not(loom))]

use std::ptr::{from_ref, null_mut};

use deepres_abi::ledger::{LedgerGpu, MAX_SESSIONS};

const LIMIT_BYTES: u64 = 100;
/// Bytes that the victim holds before it begins.
const BEFORE_BYTES: u64 = 20;
/// Bytes that the other session holds all the time.
const OTHER_BYTES: u64 = 10;
const VICTIM: usize = 0;
const OTHER: usize = 1;
/// The most instructions that the test steps. Each call takes far fewer instructions.
const MAX_INSTRUCTIONS: usize = 200_000;

/// Returns a ledger that a forked child shares. The ledger stays mapped as long as the test runs.
fn shared_ledger() -> &'static LedgerGpu {
    // SAFETY: the mapping is new, zeroed, large enough, page-aligned and never unmapped. A ledger
    // contains only atomics, for which zeros are valid.
    unsafe {
        let address = libc::mmap(
            null_mut(),
            size_of::<LedgerGpu>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(address, libc::MAP_FAILED);
        &*address.cast::<LedgerGpu>()
    }
}

/// Returns all bytes of the ledger. By two images, the test finds out whether an instruction
/// changed the ledger.
fn image(ledger: &LedgerGpu) -> Vec<u8> {
    let start = from_ref(ledger).cast::<u8>();
    // SAFETY: the bytes belong to the mapping, and their only other writer is stopped.
    unsafe { std::slice::from_raw_parts(start, size_of::<LedgerGpu>()) }.to_vec()
}

/// Waits for the child's next stop. Returns true if the child has ended, and false if it has
/// stopped.
fn is_over(child: i32) -> bool {
    let mut status = 0;
    // SAFETY: the child is ours, and its status has room.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    if libc::WIFEXITED(status) {
        assert_eq!(libc::WEXITSTATUS(status), 0, "the victim failed by itself");
    }
    libc::WIFEXITED(status) || libc::WIFSIGNALED(status)
}

fn request(child: i32, what: libc::c_uint) {
    // SAFETY: the child is ours and stopped. Neither request reads or writes memory of this
    // process.
    let done = unsafe { libc::ptrace(what, child, null_mut::<libc::c_void>(), null_mut::<libc::c_void>()) };
    assert_eq!(done, 0, "ptrace: {}", std::io::Error::last_os_error());
}

/// Runs `act` in a child, and kills the child right after its change number `changes` of the
/// ledger. Returns false if the child ended before that change.
fn killed_after(ledger: &LedgerGpu, changes: usize, act: fn(&LedgerGpu)) -> bool {
    // SAFETY: the child only uses the ledger, stops itself and exits. A fork of a process with
    // threads permits all of that.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: the child only uses the ledger, stops itself and exits.
        unsafe {
            libc::ptrace(libc::PTRACE_TRACEME, 0, null_mut::<libc::c_void>(), null_mut::<libc::c_void>());
            libc::raise(libc::SIGSTOP);
            act(ledger);
            libc::_exit(0);
        }
    }
    assert!(!is_over(child));
    let mut seen = image(ledger);
    let mut left = changes;
    for _ in 0..MAX_INSTRUCTIONS {
        if left == 0 {
            request(child, libc::PTRACE_KILL);
            while !is_over(child) {}
            return true;
        }
        request(child, libc::PTRACE_SINGLESTEP);
        if is_over(child) {
            return false;
        }
        let now = image(ledger);
        left -= usize::from(now != seen);
        seen = now;
    }
    panic!("the victim does not come to an end");
}

/// Kills a session before the first change that `act` makes, and after each change. `has_bytes`
/// lists the bytes that the driver may have given the session by each of these kills. So the list
/// has one element more than `act` makes changes.
fn walk(act: fn(&LedgerGpu), has_bytes: &[u64]) {
    for changes in 0.. {
        let ledger = shared_ledger();
        ledger.open(VICTIM).unwrap();
        ledger.open(OTHER).unwrap();
        ledger.account(VICTIM).unwrap().charge(BEFORE_BYTES);
        ledger.account(OTHER).unwrap().charge(OTHER_BYTES);
        let killed = killed_after(ledger, changes, act);
        if !killed {
            assert_eq!(changes, has_bytes.len(), "another number of changes than there should be");
            return;
        }
        let at = format!("killed after change {changes}");

        // Until the daemon clears the slot, no other session gets bytes that the driver may have
        // given the victim.
        let other = ledger.account(OTHER).unwrap();
        let free_bytes = LIMIT_BYTES - OTHER_BYTES - has_bytes[changes];
        assert!(other.reserve(free_bytes + 1, LIMIT_BYTES, || false).is_err(), "{at}");
        let held_bytes = ledger.held_bytes() - OTHER_BYTES;
        assert!(held_bytes <= LIMIT_BYTES - OTHER_BYTES, "{at}: {held_bytes} held");
        assert_eq!(ledger.clear(VICTIM), Some(held_bytes), "{at}");
        assert_eq!(ledger.held_bytes(), OTHER_BYTES, "{at}");
        assert!(
            (0..MAX_SESSIONS).all(|slot| slot == OTHER || ledger.account(slot).unwrap().held_bytes() == 0)
        );
        // After the daemon has cleared the slot, the other session gets all that the limit leaves,
        // and not a byte more.
        other.reserve(LIMIT_BYTES - OTHER_BYTES, LIMIT_BYTES, || false).expect(&at).commit();
        assert!(other.reserve(1, LIMIT_BYTES, || false).is_err(), "{at}");
    }
}

#[test]
fn a_session_killed_while_it_reserves_and_commits_leaves_nothing_behind() {
    let reserve_and_commit = |ledger: &LedgerGpu| {
        let account = ledger.account(VICTIM).unwrap();
        account.reserve(30, LIMIT_BYTES, || false).unwrap().commit();
    };
    // The changes: the promise, the taken bytes, the peak.
    walk(reserve_and_commit, &[20, 50, 50, 50]);
}

#[test]
fn a_session_killed_while_it_takes_a_part_of_its_reservation_leaves_nothing_behind() {
    let reserve_and_commit_part = |ledger: &LedgerGpu| {
        let account = ledger.account(VICTIM).unwrap();
        account.reserve(30, LIMIT_BYTES, || false).unwrap().commit_part(10);
    };
    // The changes: the promise, the withdrawal of the rest, the taken bytes, the peak.
    walk(reserve_and_commit_part, &[20, 50, 30, 30, 30]);
}

#[test]
fn a_session_killed_while_it_withdraws_leaves_nothing_behind() {
    let reserve_and_withdraw = |ledger: &LedgerGpu| {
        let account = ledger.account(VICTIM).unwrap();
        drop(account.reserve(30, LIMIT_BYTES, || false).unwrap());
    };
    // The changes: the promise, the withdrawal.
    walk(reserve_and_withdraw, &[20, 50, 20]);
}

#[test]
fn a_session_killed_while_it_is_refused_leaves_nothing_behind() {
    let ask_for_too_much = |ledger: &LedgerGpu| {
        let account = ledger.account(VICTIM).unwrap();
        assert!(account.reserve(LIMIT_BYTES - BEFORE_BYTES, LIMIT_BYTES, || false).is_err());
    };
    walk(ask_for_too_much, &[20, 20, 20]);
}

#[test]
fn a_session_killed_while_it_gives_back_leaves_nothing_behind() {
    // The changes: the leaving bytes, the release.
    walk(|ledger| ledger.account(VICTIM).unwrap().release(BEFORE_BYTES), &[20, 20, 0]);
}
