//! A process killed anywhere on the whole way of a call of memory, through hook, account and driver and back: what it had comes back whole, and meanwhile nobody passes
//! the limit.
//!
//! The victim is walked by ptrace, one instruction at a time, from where it calls to where the call returns. It is killed after each change that it makes of its tenant's
//! account, and at places spread evenly over the way between. `abi/tests/kills.rs` walks through the account alone; `killed.rs` kills inside every call of the driver.

use std::ptr::null_mut;

use deepres_e2e::{
    Host, Process,
    clients::{Way, c_client},
    host::COMMAND_LIMIT,
    ledger::{Ledger, SLOT_BYTES},
};

const MIB: u64 = 1 << 20;
const LIMIT_BYTES: u64 = 400 * MIB;
/// What another process of the tenant holds.
const OTHER_BYTES: u64 = 300 * MIB;
/// What is left beside that.
const LEFT_BYTES: u64 = LIMIT_BYTES - OTHER_BYTES;
const OUT_OF_MEMORY: &str = "2";
const TENANT: &str = "walked";
/// The victim's: the other one connects first.
const SLOT: usize = 1;
/// Places at which it is killed beside those after each change of the account.
const PLACES: usize = 16;
/// Far more than any call takes.
const MOST_STEPS: usize = 5_000_000;
/// Calls, and how much each is of: small ones of linear memory go a way of their own.
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

/// Where a walk ends.
#[derive(Debug, Clone, Copy)]
enum End {
    /// Where the call returns.
    Return,
    /// Right after so many changes of the account.
    Changes(usize),
    /// After so many instructions.
    Steps(usize),
}

/// How far a walk came.
struct Walked {
    steps: usize,
    changes: usize,
}

/// Lets a stopped process go on, or attaches to one.
fn trace(pid: u32, what: libc::c_uint) {
    // SAFETY: a child of ours; none of the requests made here reads or writes memory of ours.
    let done =
        unsafe { libc::ptrace(what, pid as i32, null_mut::<libc::c_void>(), null_mut::<libc::c_void>()) };
    assert_eq!(done, 0, "ptrace: {}", std::io::Error::last_os_error());
}

/// Waits until a traced process stops, and returns by which signal.
fn stopped_by(pid: u32) -> i32 {
    let mut status = 0;
    // SAFETY: a child of ours, and room for its status.
    assert_eq!(unsafe { libc::waitpid(pid as i32, &mut status, libc::__WALL) }, pid as i32);
    assert!(libc::WIFSTOPPED(status), "the victim ended by itself: {status:x}");
    libc::WSTOPSIG(status)
}

/// Walks through the victim's call up to `end`.
fn walk(victim: &mut Process, ledger: &Ledger, end: End) -> Walked {
    let pid = victim.pid();
    victim.await_line(|line| line == "ready", COMMAND_LIMIT);
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

/// A tenant with a process that holds most of what it may, and its account.
struct Tenant {
    host: Host,
    daemon: Process,
    /// Takes what there is, and gives it back.
    other: Process,
    asked: usize,
}

impl Tenant {
    fn start() -> Self {
        // Contexts' own memory is none, so that the GPU's record is of allocations alone.
        let host = Host::new().simgpu("context_overhead_bytes = 0\n");
        let daemon = host.daemon();
        let other = host.spawn(in_tenant(&host, "overheads"));
        let mut tenant = Self { host, daemon, other, asked: 0 };
        assert_eq!(tenant.ask("create 0 0"), "0");
        assert_eq!(tenant.ask(&format!("allocate 0 {OTHER_BYTES}")), "0");
        tenant
    }

    /// What the driver answered the other process.
    fn ask(&mut self, what: &str) -> String {
        self.other.say(what);
        let prefix = format!("{} ", self.asked);
        self.asked += 1;
        self.other.await_line(|line| line.starts_with(&prefix), COMMAND_LIMIT)[prefix.len()..].to_owned()
    }

    /// Walks a victim through its call up to `end` and kills it.
    fn kill_at(&mut self, ledger: &Ledger, how: &str, (api, bytes): (&str, u64), end: End) -> Walked {
        let mut command = in_tenant(&self.host, "walked");
        command.args([how, api, &bytes.to_string()]);
        let mut victim = self.host.spawn(command);
        let walked = walk(&mut victim, ledger, end);
        victim.kill();
        let at = format!("{how} {api} of {bytes} bytes, {end:?}");
        // Whatever it had, or was promised, the other can have at once, and not a byte more.
        assert_eq!(self.ask(&format!("allocate 1 {LEFT_BYTES}")), "0", "{at}");
        assert_eq!(self.ask("allocate 2 1"), OUT_OF_MEMORY, "{at}");
        assert_eq!(self.ask("free 1 0"), "0", "{at}");
        self.host.await_ps(|ps| ps.tenant(TENANT).sessions.len() == 1, COMMAND_LIMIT);
        let truth = self.host.truth().gpus[0];
        assert_eq!(truth.memory_used_bytes, OTHER_BYTES, "{at}");
        assert!(truth.memory_peak_bytes <= LIMIT_BYTES, "{at}: {truth:?}");
        assert_eq!(self.host.ps().tenant(TENANT).memory_bytes, OTHER_BYTES, "{at}");
        walked
    }
}

fn in_tenant(host: &Host, client: &str) -> std::process::Command {
    let mut command = host.preloaded(c_client(client, Way::Dlsym));
    command.env("DEEPRES_TENANT", TENANT).env("DEEPRES_MEMORY", LIMIT_BYTES.to_string());
    command
}

/// Kills processes everywhere on the way of each call, which changes the account so often at least.
fn kill_everywhere(how: &str, least_changes: usize) {
    let mut tenant = Tenant::start();
    let ledger = Ledger::of(&tenant.daemon);
    for call in CALLS {
        let whole = tenant.kill_at(&ledger, how, call, End::Return);
        println!("{how} {}: {} instructions, {} changes of the account", call.0, whole.steps, whole.changes);
        assert!(whole.changes >= least_changes, "{how} {}: {} changes", call.0, whole.changes);
        for changes in 0..whole.changes {
            tenant.kill_at(&ledger, how, call, End::Changes(changes + 1));
        }
        for place in 0..PLACES {
            tenant.kill_at(&ledger, how, call, End::Steps(whole.steps * place / PLACES));
        }
    }
}

#[test]
fn a_process_killed_anywhere_while_it_allocates_leaves_nothing_behind() {
    // Promised, taken.
    kill_everywhere("allocate", 2);
}

#[test]
fn a_process_killed_anywhere_while_it_frees_leaves_nothing_behind() {
    // What a pool has it keeps until it is trimmed, or the process waits for the GPU.
    kill_everywhere("free", 0);
}

#[test]
fn a_process_killed_anywhere_while_it_is_refused_leaves_nothing_behind() {
    // Promised, withdrawn.
    kill_everywhere("refused", 2);
}
