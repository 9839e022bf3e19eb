//! Processes that die between any two stores to the shared state.

use super::world::{Client, START_NS, World, kernel};
use crate::{
    EventStatus, Host, Work,
    config::ALL_SMS_PPM,
    journal::failpoint,
    liveness,
    truth::{Observer, Snapshot},
};
use std::{
    fs::{self, Permissions},
    mem::ManuallyDrop,
    os::unix::fs::{MetadataExt, PermissionsExt},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Lets one test at a time have a forked process. A forked process inherits the locked files of all
/// tests, so two such processes could wait for each other for ever.
fn alone() -> MutexGuard<'static, ()> {
    static FORKED: Mutex<()> = Mutex::new(());
    FORKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `child` in a forked process that attaches by itself. The test kills the process after
/// `stores` stores of `child` to the shared state. Returns whether the child ran to its end.
fn killed_after(world: &World, stores: u64, child: impl FnOnce(&Host)) -> bool {
    let _alone = alone();
    // SAFETY: the child uses no lock that another thread of the test program can hold, except the
    // allocator's, which glibc resets in a forked child. The child leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // A panic (which prints its own message) must not unwind into the test, because the child
        // would remove the test's directory. The host stays attached.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let host = ManuallyDrop::new(world.process());
            failpoint::LEFT.with(|left| left.set(stores));
            child(&host);
        }));
        // SAFETY: `_exit` ends the child without running the test program's exit handlers.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
    let mut status = 0;
    // SAFETY: `pid` is the child forked above; `status` is valid for writing.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    let killed = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL;
    assert!(
        killed || libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        "the child failed: {status:#x}"
    );
    !killed
}

fn check_accounts(truth: &Snapshot) {
    for (index, gpu) in truth.gpus.iter().enumerate() {
        assert_eq!(gpu.busy_ns + gpu.switch_ns + gpu.idle_ns, gpu.elapsed_ns);
        assert_eq!(truth.processes.iter().map(|p| p.gpus[index].kernel_busy_ns).sum::<u64>(), gpu.busy_ns);
        let held: u64 = truth.processes.iter().map(|p| p.gpus[index].memory_bytes).sum();
        assert_eq!(held, gpu.memory_used_bytes);
    }
}

#[test]
fn a_process_killed_at_any_store_leaves_a_whole_state() {
    // The victim makes every kind of change to the state, on two GPUs. A neighbour has running
    // work, and waits for the victim's work.
    let mut stores = 0;
    loop {
        let (world, [neighbour]) = World::with("gpus = 2\ncontext_overhead_bytes = 7").with_clients();
        let long = neighbour.kernel(10_000);
        let came_through = killed_after(&world, stores, |host| {
            let context = host.create_context(0).expect("context");
            let far = host.create_context(1).expect("context");
            let [s1, s2] = [(); 2].map(|()| host.create_stream(context).expect("stream"));
            let s3 = host.create_stream(far).expect("stream");
            host.reserve_memory(context, 100).expect("memory");
            let event = host.create_event().expect("event");
            let x = host.submit(s1, kernel(1500, ALL_SMS_PPM), &[]).expect("submit");
            let meeting = Work::Collective { duration_ns: 20, sm_ppm: 1, name: 3, peers: 2 };
            let y = host.submit(s3, kernel(10, 1), &[x]).expect("submit");
            host.submit(s3, meeting, &[]).expect("submit");
            host.submit(s1, meeting, &[]).expect("submit");
            host.submit(s2, kernel(400, 300_000), &[y]).expect("submit");
            host.record(s2, event).expect("record");
            let gate = host.submit(s3, Work::HostWait, &[]).expect("submit");
            world.go_to(4500);
            host.event_status(event);
            host.release(gate);
            host.release_memory(context, 50);
            host.destroy_event(event);
            host.destroy_stream(s2);
            world.go_to(6000);
            host.destroy_context(far);
            host.destroy_context(context);
        });
        world.go_to(7000);
        let truth = world.truth();
        check_accounts(&truth);
        assert!(truth.processes.iter().skip(1).all(|victim| !victim.alive && victim.gpus[0].contexts == 0));
        assert_eq!(
            truth.gpus.iter().map(|gpu| gpu.memory_used_bytes).collect::<Vec<_>>(),
            [7, 0],
            "after {stores} stores"
        );
        // The neighbour's kernel runs to its end, and processes can create new objects.
        assert!(neighbour.host.wait(long, crate::WaitPolicy::Auto) <= START_NS + 40_000);
        let again = Client::new(&world);
        let last = again.kernel(10);
        again.host.wait(last, crate::WaitPolicy::Auto);
        check_accounts(&world.truth());
        if came_through {
            break;
        }
        stores += 1;
    }
    assert!(stores > 300, "only {stores} stores were tried");
}

#[test]
fn a_looker_killed_at_any_store_changes_nothing_for_the_others() {
    // Three streams on two GPUs wait for each other. So a process that looks has to wake other
    // contexts and GPUs.
    let run = |stores: Option<u64>| {
        let (world, [a, b]) = World::with("gpus = 2").with_clients();
        let far = a.host.create_stream(a.host.create_context(1).expect("context")).expect("stream");
        let event = b.host.create_event().expect("event");
        let w = a.kernel(1500);
        let x = b.host.submit(b.stream, kernel(700, 400_000), &[]).expect("submit");
        let y = a.host.submit(far, kernel(10, 1), &[w, x]).expect("submit");
        let z = b.host.submit(b.stream, kernel(5, 1), &[y]).expect("submit");
        b.host.record(b.stream, event).expect("record");
        let came_through = stores.map(|stores| {
            killed_after(&world, stores, |host| {
                for ns in [1000, 1800, 2600, 5000] {
                    world.go_to(ns);
                    host.event_status(event);
                }
            })
        });
        world.go_to(20_000);
        // The reader is a process that has not looked at the state before.
        let fresh = world.process();
        let times = [w, x, y, z].map(|ticket| fresh.query(ticket));
        check_accounts(&world.truth());
        (times, fresh.event_status(event), came_through)
    };
    let (times, status, _) = run(None);
    assert!(times.iter().all(Option::is_some), "{times:?}");
    let mut stores = 0;
    loop {
        let (killed_times, killed_status, came_through) = run(Some(stores));
        assert_eq!((killed_times, killed_status), (times, status), "after {stores} stores");
        if came_through == Some(true) {
            break;
        }
        stores += 1;
    }
    assert!(stores > 100, "only {stores} stores were tried");
}

#[test]
fn a_looker_killed_at_any_store_leaves_no_client_of_a_dead_server() {
    const LATER_NS: u64 = 2 * liveness::INTERVAL_NS;
    let mut stores = 0;
    loop {
        let (world, [neighbour]) = World::with("gpus = 2\ncontext_overhead_bytes = 7").with_clients();
        let client = world.process();
        client.reserve_process_memory(1, 5).expect("memory");
        // The server ends, and no process notices before the clock goes on.
        killed_after(&world, u64::MAX, |host| assert_eq!(host.serve().expect("a server"), 2));
        client.join(2, ALL_SMS_PPM / 2).expect("the server seems to live");
        let contexts = [0, 1].map(|gpu| client.create_context(gpu).expect("context"));
        let stream = client.create_stream(contexts[0]).expect("stream");
        client.submit(stream, kernel(u64::MAX, ALL_SMS_PPM), &[]).expect("submit");
        let came_through = killed_after(&world, stores, |host| {
            world.go_to(LATER_NS);
            host.context_is_idle(contexts[0]);
        });
        world.go_to(LATER_NS);
        let truth = world.truth();
        check_accounts(&truth);
        let used: Vec<_> = truth.gpus.iter().map(|gpu| gpu.memory_used_bytes).collect();
        assert_eq!(used, [7, 0], "after {stores} stores");
        assert!(client.has_lost_server());
        let next = neighbour.kernel(10);
        assert_eq!(neighbour.host.wait(next, crate::WaitPolicy::Auto), START_NS + LATER_NS + 10);
        if came_through {
            break;
        }
        stores += 1;
    }
    assert!(stores > 30, "only {stores} stores were tried");
}

#[test]
fn a_forked_child_does_not_keep_its_dead_parent_alive() {
    let world = World::new();
    let mut pipe = [0; 2];
    // SAFETY: `pipe` has room for the two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    killed_after(&world, u64::MAX, |_| {
        // SAFETY: this process has one thread. The grandchild only sleeps in a read that ends
        // with this test's end of the pipe.
        unsafe {
            if libc::fork() == 0 {
                libc::close(pipe[1]);
                let mut byte = 0_u8;
                libc::read(pipe[0], (&raw mut byte).cast(), 1);
                libc::_exit(0);
            }
        }
    });
    // The grandchild drops the lock as soon as it runs, which can be a moment after its parent's
    // death.
    let deadline = Instant::now() + Duration::from_secs(5);
    while world.truth().processes[0].alive {
        assert!(Instant::now() < deadline, "still taken for alive");
        std::thread::yield_now();
    }
    for fd in pipe {
        // SAFETY: the descriptor is this test's own and is not used any more.
        unsafe { libc::close(fd) };
    }
}

#[test]
fn a_process_of_another_pid_namespace_is_known_by_its_id_here() {
    let _alone = alone();
    let world = World::new();
    let mut pipe = [0; 2];
    // SAFETY: `pipe` has room for the two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    // SAFETY: as in `killed_after`, for the child and the grandchild. The grandchild is the first
    // process of its namespace and sleeps until it is killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: `unshare` touches no memory, and this process has one thread.
            let is_apart = unsafe {
                libc::unshare(libc::CLONE_NEWPID) == 0
                    || libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWPID) == 0
            };
            assert!(is_apart, "no pid namespace can be made: {}", std::io::Error::last_os_error());
            // SAFETY: as for the fork of the child above.
            let grandchild = unsafe { libc::fork() };
            if grandchild == 0 {
                assert_eq!(std::process::id(), 1);
                let host = ManuallyDrop::new(world.process());
                host.create_context(0).expect("context");
                // SAFETY: `pause` only sleeps.
                unsafe { libc::pause() };
            }
            // SAFETY: the buffer is that of a live number, and `grandchild` is a child of this
            // process.
            unsafe {
                libc::write(pipe[1], (&raw const grandchild).cast(), size_of_val(&grandchild));
                libc::waitpid(grandchild, ptr::null_mut(), 0);
            }
        }));
        // SAFETY: as in `killed_after`.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
    let mut pid: libc::pid_t = 0;
    // SAFETY: the buffer is that of a live number. Only the child has the other end, so its death
    // ends the read.
    let read = unsafe {
        libc::close(pipe[1]);
        libc::read(pipe[0], (&raw mut pid).cast(), size_of_val(&pid))
    };
    assert_eq!(read, size_of_val(&pid) as isize, "the child has said why");
    let deadline = Instant::now() + Duration::from_secs(5);
    let holds_memory = |truth: &Snapshot| truth.processes.iter().any(|process| process.gpus[0].contexts == 1);
    while !holds_memory(&world.truth()) {
        assert!(Instant::now() < deadline, "it never attached");
        std::thread::yield_now();
    }
    let truth = world.truth();
    let [process] = &truth.processes[..] else { panic!("one process: {truth:?}") };
    assert_eq!((process.pid, process.alive), (pid as u32, true));

    let mut status = 0;
    // SAFETY: the descriptor is this test's own and is not used any more. This test made the
    // processes, and `status` is valid for writing.
    unsafe {
        libc::close(pipe[0]);
        assert_eq!(libc::kill(pid, libc::SIGKILL), 0);
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
    }
    assert_eq!(status, 0);
    let dead = &world.truth().processes[0];
    assert_eq!((dead.pid, dead.alive, dead.gpus[0].contexts), (0, false, 0));
}

#[test]
fn a_directory_that_all_may_write_to_makes_a_state_that_all_may_use() {
    let modes = |mode| {
        let world = World::new();
        fs::set_permissions(world.dir.path(), Permissions::from_mode(mode)).expect("chmod");
        let _host = world.process();
        ["state", "alive", "create"].map(|file| {
            let found = fs::metadata(world.dir.path().join(file)).expect("stat");
            found.mode() & 0o066 == 0o066
        })
    };
    assert_eq!(modes(0o777), [true; 3]);
    assert_eq!(modes(0o700), [false; 3]);
}

#[test]
fn a_dead_process_gives_back_its_events() {
    let (world, [a]) = World::new().with_clients();
    killed_after(&world, u64::MAX, |host| {
        assert_eq!(host.create_event().expect("event").index, 0);
    });
    world.truth();
    assert_eq!(a.host.create_event().expect("event").index, 0);
}

#[test]
fn a_dead_process_gives_back_its_memory_and_its_turn() {
    let (world, [a]) = World::with("memory_bytes = 1000").with_clients();
    let came_through = killed_after(&world, u64::MAX, |host| {
        let context = host.create_context(0).expect("context");
        host.reserve_memory(context, 900).expect("memory");
        let stream = host.create_stream(context).expect("stream");
        host.submit(stream, kernel(u64::MAX, ALL_SMS_PPM), &[]).expect("submit");
    });
    assert!(came_through);
    world.go_to(liveness::INTERVAL_NS + 1);
    a.host.reserve_memory(a.context, 900).expect("the dead process's memory is free");
    let x = a.kernel(50);
    world.go_to(liveness::INTERVAL_NS + 1000);
    assert_eq!(a.done(x), Some(liveness::INTERVAL_NS + 1 + 50));
}

#[test]
fn an_account_outlives_its_process() {
    let world = World::new();
    killed_after(&world, u64::MAX, |host| {
        let stream = host.create_stream(host.create_context(0).expect("context")).expect("stream");
        host.submit(stream, kernel(500, ALL_SMS_PPM), &[]).expect("submit");
        world.go_to(500);
        host.now_ns();
        host.query(host.last_ticket(stream));
    });
    let truth = world.truth();
    let [dead] = &truth.processes[..] else { panic!("one process: {truth:?}") };
    assert!(!dead.alive && dead.pid != 0 && dead.start_time != 0 && !dead.comm.is_empty());
    assert_eq!((dead.gpus[0].busy_ns, dead.gpus[0].kernels), (500, 1));
}

#[test]
fn work_that_waits_for_a_dead_process_waits_no_more() {
    let (world, [a]) = World::new().with_clients();
    let event = a.host.create_event().expect("event");
    killed_after(&world, u64::MAX, |host| {
        let stream = host.create_stream(host.create_context(0).expect("context")).expect("stream");
        host.submit(stream, kernel(u64::MAX, ALL_SMS_PPM), &[]).expect("submit");
        host.record(stream, event).expect("record");
    });
    let ticket = a.host.event_ticket(event).expect("recorded");
    let x = a.host.submit(a.stream, kernel(10, ALL_SMS_PPM), &[ticket]).expect("submit");
    world.go_to(3 * liveness::INTERVAL_NS);
    assert!(matches!(a.host.event_status(event), EventStatus::Done { .. }));
    assert!(a.done(x).is_some());
}

#[test]
fn a_forked_child_can_do_nothing_and_harms_nothing() {
    let _alone = alone();
    let (world, [a]) = World::new().with_clients();
    let x = a.kernel(50);
    // SAFETY: as in `killed_after`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let refused = matches!(a.host.create_context(0), Err(crate::Error::Forked));
        let quiet = a.host.is_forked() && a.host.wait(x, crate::WaitPolicy::Auto) == 0;
        drop(a);
        // SAFETY: as in `killed_after`.
        unsafe { libc::_exit(i32::from(!(refused && quiet))) };
    }
    let mut status = 0;
    // SAFETY: `pid` is the child forked above; `status` is valid for writing.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
    world.go_to(1000);
    assert!(world.truth().processes[0].alive);
    assert_eq!(a.done(x), Some(50));
}

#[test]
fn detaching_gives_everything_back_and_keeps_the_account() {
    let (world, [a]) = World::with("context_overhead_bytes = 7").with_clients();
    a.kernel(50);
    world.go_to(30);
    drop(a.host);
    let truth = world.truth();
    assert_eq!((truth.gpus[0].memory_used_bytes, truth.gpus[0].busy_ns), (0, 30));
    assert_eq!((truth.processes[0].alive, truth.processes[0].gpus[0].busy_ns), (false, 30));
}

#[test]
fn a_holder_of_the_lock_that_does_not_go_on_is_seen() {
    const LOOKED: Duration = Duration::from_millis(5);
    let world = World::new();
    let host = world.process();
    let observer = Observer::open_or_create(&world.options()).expect("open");
    assert!(!observer.is_stuck(LOOKED));
    let guard = host.lock_state().expect("not forked");
    assert!(observer.is_stuck(LOOKED));
    drop(guard);
    assert!(!observer.is_stuck(LOOKED));
}
