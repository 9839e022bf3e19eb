//! The virtual GPU on the machine's own clock, with real processes.
//!
//! The bounds are generous, because these tests run beside others on small machines. The tests
//! inside the crate check exact figures on a virtual clock.

use deepres_e2e::stolen::Stolen;
use simgpu_engine::{Error, Host, Options, StreamId, WaitPolicy, Work, truth::Observer};
use std::{
    os::unix::fs::FileExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

const MS: u64 = 1_000_000;

/// A state directory in shared memory, for a test that measures times.
struct State {
    directory: TempDir,
    _stolen: Stolen,
}

impl State {
    fn path(&self) -> &Path {
        self.directory.path()
    }
}

fn state() -> State {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in shared memory");
    State { directory, _stolen: Stolen::start() }
}

/// Attaches with this configuration, for a state that does not exist yet.
fn attach_with(dir: &Path, config: &str) -> Result<Host, Error> {
    Host::attach_with(Options {
        state_dir: Some(dir.to_owned()),
        config_toml: Some(config.into()),
        ..Options::default()
    })
}

fn attach(dir: &Path) -> Host {
    attach_with(dir, "").expect("attach")
}

fn stream(host: &Host) -> StreamId {
    host.create_stream(host.create_context(0).expect("context")).expect("stream")
}

fn kernel(ns: u64) -> Work {
    Work::Kernel { duration_ns: ns, sm_ppm: 1_000_000, kernels: 1 }
}

/// A process that attaches and does `work`. Drop kills the process.
struct Child(libc::pid_t);

impl Child {
    fn start(dir: &Path, work: impl FnOnce(Host)) -> Self {
        // SAFETY: the child uses no lock that another thread of the test program can hold, except
        // the allocator's, which glibc resets in a forked child. The child leaves by `_exit`.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork failed");
        if pid == 0 {
            // A panic (which prints its own message) must not unwind into the test, because the
            // child would remove the test's directory.
            let outcome = catch_unwind(AssertUnwindSafe(|| work(attach(dir))));
            // SAFETY: `_exit` ends the child without running the test program's exit handlers.
            unsafe { libc::_exit(i32::from(outcome.is_err())) };
        }
        Self(pid)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let mut status = 0;
        // SAFETY: the process is a child of this one and nobody has waited for it yet; `status` is
        // valid for writing.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, &mut status, 0);
        }
    }
}

fn flood(host: Host, kernel_ns: u64) {
    let stream = stream(&host);
    loop {
        host.submit(stream, kernel(kernel_ns), &[]).expect("submit");
    }
}

#[test]
fn waiting_ends_soon_after_the_kernel_and_not_before() {
    let dir = state();
    let host = attach(dir.path());
    let stream = stream(&host);
    for policy in [WaitPolicy::Auto, WaitPolicy::Spin, WaitPolicy::Yield, WaitPolicy::Block] {
        let late_ns = (0..20).map(|_| {
            let ticket = host.submit(stream, kernel(MS), &[]).expect("submit");
            let at_ns = host.wait(ticket, policy);
            let woke_ns = host.now_ns();
            assert!(woke_ns >= at_ns, "{policy:?}");
            woke_ns - at_ns
        });
        let best_ns = late_ns.min().expect("some");
        assert!(best_ns < MS, "{policy:?}: {best_ns} ns late at best");
    }
}

#[test]
fn releasing_a_host_wait_wakes_the_waiter_at_once() {
    let dir = state();
    let host = attach(dir.path());
    let stream = stream(&host);
    let late_ns = (0..10).map(|_| {
        let gate = host.submit(stream, Work::HostWait, &[]).expect("submit");
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                host.wait(gate, WaitPolicy::Block);
                host.now_ns()
            });
            // The pause is long enough for the waiter to fall asleep, and not a multiple of the
            // waiter's longest sleep.
            thread::sleep(Duration::from_millis(3));
            let released_ns = host.now_ns();
            host.release(gate);
            waiter.join().expect("no panic").saturating_sub(released_ns)
        })
    });
    let best_ns = late_ns.min().expect("some");
    assert!(best_ns < MS, "{best_ns} ns late at best");
}

#[test]
fn processes_killed_at_random_among_others_harm_nobody() {
    const ROUNDS: u64 = 60;
    let dir = state();
    let host = attach(dir.path());
    let stream = stream(&host);
    let event = host.create_event().expect("event");
    let mut victims: Vec<Child> =
        (0..3).map(|_| Child::start(dir.path(), |host| flood(host, 5_000))).collect();
    for round in 0..ROUNDS {
        // The moments are unrelated to the victims' activity.
        thread::sleep(Duration::from_micros(round * 7919 % 2000));
        drop(victims.remove(0));
        host.submit(stream, kernel(1000), &[]).expect("submit");
        host.record(stream, event).expect("record");
        host.wait_event(event, WaitPolicy::Auto);
        victims.push(Child::start(dir.path(), |host| flood(host, 5_000)));
    }
    drop(victims);
    let truth = Observer::open(dir.path()).expect("created").snapshot();
    let (gpu, processes) = (truth.gpus[0], &truth.processes);
    assert_eq!(gpu.busy_ns + gpu.switch_ns + gpu.idle_ns, gpu.elapsed_ns);
    assert_eq!(processes.iter().map(|process| process.gpus[0].kernel_busy_ns).sum::<u64>(), gpu.busy_ns);
    assert_eq!(processes.iter().filter(|process| process.alive).count(), 1);
    assert_eq!(gpu.memory_used_bytes, host.config().context_overhead_bytes);
}

#[test]
fn a_waiter_for_a_kernel_whose_peer_is_on_its_way_sees_it_begin() {
    /// A pause that is longer than a thread needs to fall asleep, and much shorter than the longest
    /// sleep.
    const LAUNCH_LATENCY: Duration = Duration::from_millis(2);
    let dir = state();
    let config = format!("gpus = 2\nlaunch_latency_ns = {}", LAUNCH_LATENCY.as_nanos());
    let host = attach_with(dir.path(), &config).expect("attach");
    let tickets = [0, 1].map(|gpu| {
        let stream = host.create_stream(host.create_context(gpu).expect("context")).expect("stream");
        let work = Work::Collective { duration_ns: 50, sm_ppm: 1_000_000, name: 7, peers: 2 };
        host.submit(stream, work, &[]).expect("submit")
    });
    let began = Instant::now();
    for ticket in tickets {
        host.wait(ticket, WaitPolicy::Block);
    }
    assert!(began.elapsed() < 3 * LAUNCH_LATENCY, "{:?}", began.elapsed());
}

#[test]
fn a_process_finds_the_state_that_another_created() {
    let dir = state();
    let with = |config| attach_with(dir.path(), config).expect("attach");
    assert!(Observer::open(dir.path()).expect_err("nobody created it").is_not_found());
    let first = with("gpus = 3");
    let second = with("gpus = 5");
    assert_eq!((first.gpu_count(), second.gpu_count()), (3, 3));
    assert_eq!(first.uuid(2), second.uuid(2));
    assert_ne!(first.uuid(1), attach(state().path()).uuid(0));
}

#[test]
fn a_state_of_another_kind_is_refused_with_what_to_do() {
    let dir = state();
    std::fs::write(dir.path().join("state"), "something else").expect("write");
    let options = Options { state_dir: Some(dir.path().to_owned()), ..Options::default() };
    let error = Host::attach_with(options).expect_err("not a state").to_string();
    assert!(error.contains("remove the directory"), "{error}");
}

#[test]
fn a_state_of_another_version_is_replaced_once_nobody_uses_it() {
    /// The second word of the file.
    const VERSION_OFFSET: u64 = 8;
    let dir = state();
    let with = |config| attach_with(dir.path(), config);
    let user = with("gpus = 3").expect("attach");
    let file = std::fs::File::options().write(true).open(dir.path().join("state")).expect("open");
    file.write_all_at(&u64::MAX.to_le_bytes(), VERSION_OFFSET).expect("write");
    assert!(matches!(with("gpus = 5"), Err(Error::BadState { .. })));
    drop(user);
    // A process that another test forks has the locks of this one until it ends.
    let patience = Instant::now() + Duration::from_secs(10);
    let replaced = loop {
        match with("gpus = 5") {
            Err(Error::BadState { .. }) if Instant::now() < patience => {
                thread::sleep(Duration::from_millis(1));
            }
            attached => break attached.expect("attach"),
        }
    };
    assert_eq!(replaced.gpu_count(), 5);
}
