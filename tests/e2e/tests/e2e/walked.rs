//! A process is killed at many points of a memory call: in the hook, in the account, in the driver,
//! and on the way back. The daemon then frees all memory of the process, and meanwhile no process
//! passes the limit.
//!
//! The test runs the victim in single steps (ptrace) from the call to its return. The test kills
//! the victim after each change of the tenant's account, and at places spread evenly over the call.
//! `abi/tests/kills.rs` does the same for the account alone. `killed.rs` kills inside every call of
//! the driver.

use std::ptr::null_mut;

use deepres_e2e::calls::Calls;
use deepres_e2e::ledger::{Ledger, SLOT_BYTES};
use deepres_e2e::prelude::*;

const LIMIT_BYTES: u64 = 400 * MIB;
/// Memory that another process of the tenant holds.
const OTHER_BYTES: u64 = 300 * MIB;
/// Rest of the limit.
const LEFT_BYTES: u64 = LIMIT_BYTES - OTHER_BYTES;
const OUT_OF_MEMORY: &str = "2";
const TENANT: &str = "walked";
/// Slot of the victim. The tenant's other process connects first and has the slot before.
const SLOT: usize = 1;
/// Places at which the victim is killed, in addition to those after each change of the account, in
/// the quick and in the deep track.
const FEW_PLACES: usize = 6;
const MANY_PLACES: usize = 16;
/// Upper bound on the instructions of a call. Every call takes far fewer.
const MOST_STEPS: usize = 5_000_000;
/// Calls, and the size of each request. Small linear allocations take a separate path in the
/// interposer.
const CALLS: [(&str, u64); 8] = [
    ("cuMemAlloc_v2", 512),
    ("cuMemAlloc_v2", 8 * MIB),
    ("cuMemAllocPitch_v2", 8 * MIB),
    ("cuMemAllocManaged", 8 * MIB),
    ("cuMemAllocAsync", 8 * MIB),
    ("cuMemAllocFromPoolAsync_ptsz", 8 * MIB),
    ("cuMemCreate", 8 * MIB),
    ("cuArrayCreate_v2", 8 * MIB),
];

/// The point where a walk ends.
#[derive(Debug, Clone, Copy)]
enum End {
    /// The return of the call.
    Return,
    /// The test kills the process right after this many changes of the account.
    Changes(usize),
    /// After this many instructions.
    Steps(usize),
}

/// Length of a walk: instructions and changes of the account.
struct Walked {
    steps: usize,
    changes: usize,
}

/// Makes a ptrace request without arguments: attaches to a process, or lets the process go on.
fn trace(pid: u32, what: libc::c_uint) {
    // SAFETY: the process is a child of ours. None of the requests made here reads or writes our
    // memory.
    let done =
        unsafe { libc::ptrace(what, pid as i32, null_mut::<libc::c_void>(), null_mut::<libc::c_void>()) };
    assert_eq!(done, 0, "ptrace: {}", std::io::Error::last_os_error());
}

/// Waits until a traced process stops, and returns the signal that stopped it.
fn stopped_by(pid: u32) -> i32 {
    let mut status = 0;
    // SAFETY: the process is a child of ours, and `status` is valid for a write.
    assert_eq!(unsafe { libc::waitpid(pid as i32, &mut status, libc::__WALL) }, pid as i32);
    assert!(libc::WIFSTOPPED(status), "the victim ended by itself: {status:x}");
    libc::WSTOPSIG(status)
}

/// Walks the victim through its call up to `end`, and returns the length of the walk.
fn walk(victim: &mut Process, ledger: &Ledger, end: End) -> Walked {
    let pid = victim.pid();
    victim.await_exactly("ready");
    trace(pid, libc::PTRACE_SEIZE);
    victim.say("");
    assert_eq!(stopped_by(pid), libc::SIGUSR1, "it stops before the call");
    let mut seen: [u8; SLOT_BYTES] = ledger.slot(SLOT);
    let mut walked = Walked { steps: 0, changes: 0 };
    loop {
        match end {
            End::Changes(changes) if walked.changes == changes => return walked,
            End::Steps(steps) if walked.steps == steps => return walked,
            _ => {}
        }
        trace(pid, libc::PTRACE_SINGLESTEP);
        if stopped_by(pid) == libc::SIGUSR1 {
            return walked;
        }
        walked.steps += 1;
        assert!(walked.steps < MOST_STEPS, "the call does not come to an end");
        let now = ledger.slot(SLOT);
        walked.changes += usize::from(now != seen);
        seen = now;
    }
}

/// A tenant with a process that holds most of the limit, and its daemon.
struct Tenant {
    host: Host,
    daemon: Process,
    /// Process that allocates all free memory and frees it again.
    other: Calls,
}

impl Tenant {
    fn start() -> Self {
        // Contexts take no memory, so the GPU's record contains allocations alone.
        let (host, daemon) = Host::new().simgpu("context_overhead_bytes = 0\n").with_daemon();
        let limit = LIMIT_BYTES.to_string();
        let mut other = Calls::start(&host, &[("DEEPRES_TENANT", TENANT), ("DEEPRES_MEMORY", &limit)]);
        other.does(&format!("linear('held', {OTHER_BYTES})"));
        Self { host, daemon, other }
    }

    /// Walks a victim through its call up to `end` and kills it.
    fn kill_at(&mut self, ledger: &Ledger, how: &str, (api, bytes): (&str, u64), end: End) -> Walked {
        let mut command = self.host.preloaded(c_client("walked"));
        command.args([how, api, &bytes.to_string()]);
        command.env("DEEPRES_TENANT", TENANT).env("DEEPRES_MEMORY", LIMIT_BYTES.to_string());
        let mut victim = self.host.spawn(command);
        let walked = walk(&mut victim, ledger, end);
        victim.kill();
        let at = format!("{how} {api} of {bytes} bytes, {end:?}");
        // The other process can have the victim's held and reserved memory at once, and not one
        // byte more.
        assert_eq!(self.other.asks(&format!("linear('left', {LEFT_BYTES})")), "0", "{at}");
        assert_eq!(self.other.asks("linear('more', 1)"), OUT_OF_MEMORY, "{at}");
        assert_eq!(self.other.asks("cuda.cuMemFree_v2(kept['left'])"), "0", "{at}");
        self.host.await_ps(|ps| ps.tenant(TENANT).sessions.len() == 1);
        let truth = self.host.truth().gpus[0];
        assert_eq!(truth.memory_used_bytes, OTHER_BYTES, "{at}");
        assert!(truth.memory_peak_bytes <= LIMIT_BYTES, "{at}: {truth:?}");
        assert_eq!(self.host.ps().tenant(TENANT).memory_bytes, OTHER_BYTES, "{at}");
        walked
    }
}

/// Kills processes at this many places of each call, and after each change of the account. Asserts
/// that each call changes the account at least `least_changes` times.
fn kill_everywhere(how: &str, least_changes: usize, places: usize) {
    let mut tenant = Tenant::start();
    let ledger = Ledger::of(&tenant.daemon);
    for call in CALLS {
        let whole = tenant.kill_at(&ledger, how, call, End::Return);
        println!("{how} {}: {} instructions, {} changes of the account", call.0, whole.steps, whole.changes);
        assert!(whole.changes >= least_changes, "{how} {}: {} changes", call.0, whole.changes);
        for changes in 0..whole.changes {
            tenant.kill_at(&ledger, how, call, End::Changes(changes + 1));
        }
        for place in 0..places {
            tenant.kill_at(&ledger, how, call, End::Steps(whole.steps * place / places));
        }
    }
}

#[test]
fn a_process_killed_anywhere_while_it_allocates_leaves_nothing_behind() {
    // The two changes are the reservation and the charge.
    kill_everywhere("allocate", 2, FEW_PLACES);
}

#[test]
#[ignore = "deep: takes long"]
fn a_process_killed_at_many_places_while_it_allocates_leaves_nothing_behind() {
    kill_everywhere("allocate", 2, MANY_PLACES);
}

#[test]
#[ignore = "deep: takes long"]
fn a_process_killed_anywhere_while_it_frees_leaves_nothing_behind() {
    // A pool keeps its memory until the client trims it or waits for the GPU. So a free may change
    // nothing in the account.
    kill_everywhere("free", 0, MANY_PLACES);
}

#[test]
#[ignore = "deep: takes long"]
fn a_process_killed_anywhere_while_it_is_refused_leaves_nothing_behind() {
    // The two changes are the reservation and its withdrawal.
    kill_everywhere("refused", 2, MANY_PLACES);
}
