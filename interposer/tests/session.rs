//! Tests of a client under the library, with a controller that the test moves by hand.

mod support;

use std::cell::Cell;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use deepres_abi::MAX_GPUS;
use deepres_abi::driver::pfn;
use deepres_abi::driver::result::{CUDA_ERROR_NOT_PERMITTED, CUDA_SUCCESS};
use deepres_abi::grant::{Appraisal, FailMode, GateState, LeaseTerms};
use deepres_abi::page::{MAJOR, MINOR};
use deepres_abi::wire::{self, Refusal, RefusalKind, Role, Welcome};
use zerocopy::IntoBytes as _;

use support::{Client, Controller, Driver, await_go, now_ns, of_version, part, say, until};

/// The number of launches of a launching client.
const LAUNCHES: u64 = 10_000;
/// The time after which a forked child that still waits is killed, s.
const CHILD_SECONDS: u32 = 15;
/// The limit of the tests that hold memory.
const LIMIT_BYTES: u64 = 64 << 20;

/// The clients' actions. In the test process itself, this does nothing.
#[test]
#[ignore = "does nothing by itself: the other tests start it as their client"]
fn client_process() {
    let Some(part) = part() else { return };
    let driver = Driver::load();
    let init: pfn::cuInit = driver.function(c"cuInit");
    let retain: pfn::cuDevicePrimaryCtxRetain = driver.function(c"cuDevicePrimaryCtxRetain");
    let set_current: pfn::cuCtxSetCurrent = driver.function(c"cuCtxSetCurrent");
    let launch: pfn::cuLaunchKernel = driver.function(c"cuLaunchKernel");
    let alloc: pfn::cuMemAlloc_v2 = driver.function(c"cuMemAlloc_v2");
    let alloc_managed: pfn::cuMemAllocManaged = driver.function(c"cuMemAllocManaged");
    let free: pfn::cuMemFree_v2 = driver.function(c"cuMemFree_v2");
    if part == "init" {
        // SAFETY: `cuInit` takes no pointer.
        return say(unsafe { init(0) });
    }
    if part == "fork while another thread begins" {
        // SAFETY: `cuInit` takes no pointer.
        let beginning = std::thread::spawn(move || unsafe { init(0) });
        await_go();
        // SAFETY: the child only retains a context, which takes no lock of the parent, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut context = null_mut();
            // SAFETY: the result has room. The alarm ends a child that waits for ever, and the child
            // runs no exit handlers of the parent.
            unsafe {
                libc::alarm(CHILD_SECONDS);
                libc::_exit(retain(&mut context, 0) as i32);
            }
        }
        let mut status = 0;
        // SAFETY: the result has room.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        say(status);
        assert_eq!(beginning.join().unwrap(), CUDA_SUCCESS);
        return;
    }
    // SAFETY: the driver's documented use. Results have room.
    let begin = || unsafe {
        assert_eq!(init(0), CUDA_SUCCESS);
        let mut context = null_mut();
        assert_eq!(retain(&mut context, 0), CUDA_SUCCESS);
        assert_eq!(set_current(context), CUDA_SUCCESS);
    };
    // SAFETY: the stub driver reads none of the arguments.
    let launch = || unsafe { launch(null_mut(), 1, 1, 1, 1, 1, 1, 0, null_mut(), null_mut(), null_mut()) };
    begin();
    say("ready");
    await_go();
    match part.as_str() {
        "launch" => loop {
            for _ in 0..LAUNCHES {
                assert_eq!(launch(), CUDA_SUCCESS);
            }
            say("launched");
            await_go();
        },
        "hold" => {
            let hold = |bytes| {
                let mut at = 0;
                // SAFETY: the driver's documented use. The result has room.
                assert_eq!(unsafe { alloc(&mut at, bytes) }, CUDA_SUCCESS);
                at
            };
            let hold_managed = |bytes| {
                let mut at = 0;
                // SAFETY: the driver's documented use. The result has room.
                assert_eq!(unsafe { alloc_managed(&mut at, bytes, 0) }, CUDA_SUCCESS);
                at
            };
            // The meter page counts managed memory by its kind, and leaves linear memory out.
            let (kept, freed) = (hold_managed(2 << 20), hold(6 << 20));
            say("held");
            await_go();
            // SAFETY: the memory was allocated above.
            assert_eq!(unsafe { free(freed) }, CUDA_SUCCESS);
            say("freed");
            await_go();
            // SAFETY: the memory was allocated above.
            assert_eq!(unsafe { free(kept) }, CUDA_SUCCESS);
            say("freed");
            await_go();
        }
        // Launches until the result differs from the result before, and prints the new result.
        "launch until" => {
            let mut last = None;
            loop {
                let result = launch();
                if last.replace(result) != Some(result) {
                    say(result);
                    await_go();
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        "launch once" => {
            say(launch());
            await_go();
        }
        "fork" => {
            // SAFETY: the child only launches, which takes no lock, and ends at once.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let code = launch();
                // SAFETY: ends the child without running exit handlers of the parent.
                unsafe { libc::_exit(code as i32) };
            }
            let mut status = 0;
            // SAFETY: the result has room.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            say(status);
            await_go();
            assert_eq!(launch(), CUDA_SUCCESS);
            await_go();
        }
        other => panic!("no such part: {other}"),
    }
}

fn start(controller: &Controller, part: &str) -> (Client, support::Connection) {
    let mut client = controller.client(part);
    let connection = controller.welcome();
    assert_eq!(client.answer(), "ready");
    (client, connection)
}

/// Lets a client launch once and end. Returns the text that the client wrote to stderr.
#[track_caller]
fn launches_once(mut client: Client) -> String {
    assert_eq!(client.answer(), "ready");
    client.gives(CUDA_SUCCESS);
    client.finish()
}

#[test]
fn every_launch_is_counted_and_timed_and_the_meter_comes_to_rest() {
    let controller = Controller::new();
    let (mut client, connection) = start(&controller, "launch");
    assert_eq!(connection.hello.gpus().len(), 1);
    assert!(wire::text(&connection.hello.client).is_some_and(|line| line.starts_with("session-")));
    assert_eq!(connection.hello.pid, client.pid());
    client.gives("launched");
    let meter = controller.meter();
    until("all is complete", || !meter.read().in_flight && meter.read().kernel_launches == LAUNCHES);
    let reading = meter.read();
    assert!(reading.compute_ns > 0 && reading.compute_ns < 1_000_000_000, "{reading:?}");
    assert_eq!((reading.waits, reading.graph_launches, reading.in_flight_ns), (0, 0, 0));
    assert_eq!(client.end(), "");
}

#[test]
fn a_closed_gate_holds_a_launch_back_and_rings_and_a_paused_one_does_not_ring() {
    for state in [GateState::Closed, GateState::Paused] {
        let controller = Controller::new();
        let (mut client, _connection) = start(&controller, "launch once");
        controller.set_gate(state, LeaseTerms::default());
        // The heartbeat is set an hour ahead, so only the gate decides.
        client.go();
        let meter = controller.meter();
        until("it waits", || meter.read().waiters == 1);
        if state == GateState::Closed {
            until("it rings", || controller.rings() == 1);
        }
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!((meter.read().kernel_launches, controller.rings()), (0, 0), "{state:?}: no other ring");
        let opened = Instant::now();
        controller.set_gate(GateState::Open, LeaseTerms::default());
        assert_eq!(client.answer(), CUDA_SUCCESS.to_string());
        assert!(opened.elapsed() < Duration::from_millis(100));
        let reading = meter.read();
        assert_eq!((reading.waiters, reading.waits), (0, 1));
        assert!(reading.wait_ns >= 50_000_000);
    }
}

#[test]
fn a_client_that_launches_after_a_rest_rings_though_the_gate_is_open() {
    let controller = Controller::new();
    let (mut client, _connection) = start(&controller, "launch");
    let rings = |client: &mut Client| {
        client.gives("launched");
        until("all is complete", || !controller.meter().read().in_flight);
        controller.rings()
    };
    assert_eq!(rings(&mut client), 1, "it is there");
    assert_eq!(rings(&mut client), 0, "it still is");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(rings(&mut client), 1, "it is there again");
}

#[test]
fn under_a_lease_launches_go_until_it_expires_and_again_when_it_is_renewed() {
    let controller = Controller::new();
    let (mut client, _connection) = start(&controller, "launch");
    let terms = LeaseTerms { epoch: 0, expires_ns: now_ns(), window_ns: 1_000_000, spin_ns: 0 };
    controller.set_gate(GateState::Leased, terms);
    client.go();
    until("it waits", || controller.meter().read().waiters == 1);
    until("it rings", || controller.rings() == 1);
    controller.slot().renew(LeaseTerms { expires_ns: now_ns() + 60_000_000_000, ..terms });
    assert_eq!(client.answer(), "launched");
    let meter = controller.meter();
    until("all is complete", || !meter.read().in_flight && meter.read().kernel_launches == LAUNCHES);
    until("it gives the lease back", || controller.rings() > 0);
}

#[test]
fn a_client_finds_a_controller_that_came_back_and_its_meter_goes_on() {
    let mut controller = Controller::new();
    let (mut client, connection) = start(&controller, "launch");
    assert_eq!(connection.hello.sessions_before, 0);
    client.gives("launched");
    until("all is complete", || !controller.meter().read().in_flight);
    // The client launches on while there is no controller.
    drop(connection);
    client.gives("launched");
    controller.restart();
    let again = controller.welcome();
    assert_eq!(again.hello.sessions_before, 1);
    until("the meter is brought up to date", || controller.meter.is_carried());
    assert_eq!(controller.meter().read().kernel_launches, 2 * LAUNCHES);
    let brought_ns = controller.meter().read().compute_ns;
    assert!(brought_ns > 0);
    client.gives("launched");
    until("the new session meters", || controller.meter().read().kernel_launches == 3 * LAUNCHES);
    until("all is complete", || !controller.meter().read().in_flight);
    assert!(controller.meter().read().compute_ns > brought_ns);
}

#[test]
fn a_client_keeps_its_share_without_a_controller_and_then_waits_at_the_next_controllers_gate() {
    let mut controller = Controller::new();
    // One launch uses up so small a share for longer than the test takes.
    controller.slot().set_share_ppm(Some(1));
    let (mut client, connection) = start(&controller, "launch until");
    let launched = |controller: &Controller| controller.meter().read().kernel_launches;
    client.gives(CUDA_SUCCESS);
    client.go();
    until("a controller's open gate lets launches pass", || launched(&controller) > 100);
    drop(connection);
    until("a launch waits", || controller.meter().read().waiters == 1);
    controller.restart();
    controller.set_gate(GateState::Closed, LeaseTerms::default());
    let again = controller.welcome();
    assert_eq!(again.hello.sessions_before, 1);
    until("the meter is brought up to date", || controller.meter.is_carried());
    until("the launch waits for this controller", || controller.rings() > 0);
    let brought = launched(&controller);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!((controller.meter().read().waiters, launched(&controller)), (1, brought));
    controller.set_gate(GateState::Open, LeaseTerms::default());
    until("launches pass again", || launched(&controller) > brought + 100);
    assert_eq!(controller.meter().read().waiters, 0);
}

#[test]
fn a_client_keeps_its_share_while_a_controller_hangs_and_obeys_its_gate_afterwards() {
    let controller = Controller::new();
    controller.grant.set_session(77, 100_000_000, FailMode::Open);
    // One launch uses up so small a share for longer than the test takes.
    controller.slot().set_share_ppm(Some(1));
    let (mut client, _connection) = start(&controller, "launch until");
    let launched = || controller.meter().read().kernel_launches;
    client.gives(CUDA_SUCCESS);
    client.go();
    until("the controller's open gate lets launches pass", || launched() > 100);
    // The heartbeat stops while the gate is open.
    controller.beat.beat(controller.gpu(), now_ns());
    // The first launch waits for the beginning of the session's own gate, and then passes that gate.
    let held = Cell::new(launched());
    until("a launch waits for 50 ms, and no other passes", || {
        std::thread::sleep(Duration::from_millis(50));
        let before = held.replace(launched());
        (controller.meter().read().waiters, held.get()) == (1, before)
    });
    let held = held.get();
    controller.beat.beat(controller.gpu(), now_ns() + 3_600_000_000_000);
    until("launches pass again", || launched() > held + 100);
    controller.set_gate(GateState::Closed, LeaseTerms::default());
    until("a launch waits for the controller", || controller.meter().read().waiters == 1);
    until("the controller's bell rings", || controller.rings() > 0);
}

#[test]
fn held_memory_moves_to_the_ledger_of_a_controller_that_came_back() {
    let mut controller = Controller::new();
    controller.slot().set_memory_limit(LIMIT_BYTES);
    let (mut client, connection) = start(&controller, "hold");
    client.gives("held");
    let held = |controller: &Controller| {
        let ledger = controller.ledger.gpu(controller.gpu()).unwrap().held_bytes();
        (ledger, controller.meter().read().held_bytes.iter().sum::<u64>())
    };
    assert_eq!(held(&controller), (8 << 20, 2 << 20));
    drop(connection);
    controller.restart();
    let connection = controller.welcome();
    until("it moved", || held(&controller) == (8 << 20, 2 << 20));
    client.gives("freed");
    assert_eq!(held(&controller), (2 << 20, 2 << 20));
    drop(connection);
    controller.restart();
    let _again = controller.welcome();
    until("it moved", || held(&controller) == (2 << 20, 2 << 20));
    client.gives("freed");
    assert_eq!(held(&controller), (0, 0));
}

#[test]
fn held_memory_counts_once_with_a_controller_that_lost_the_session_and_lives() {
    let mut controller = Controller::new();
    controller.slot().set_memory_limit(LIMIT_BYTES);
    let (mut client, connection) = start(&controller, "hold");
    // The controller emptied the account when the connection ended. The client now allocates memory
    // without a session.
    drop(connection);
    client.gives("held");
    let ledger = controller.ledger.gpu(controller.gpu()).unwrap();
    assert_eq!(ledger.account(1).unwrap().held_bytes(), 8 << 20);
    controller.take_back();
    let _connection = controller.welcome();
    let by_slot = || [1, 2].map(|slot| ledger.account(slot).unwrap().held_bytes());
    until("it moved", || by_slot() == [0, 8 << 20]);
    client.gives("freed");
    assert_eq!(by_slot(), [0, 2 << 20]);
    client.gives("freed");
    assert_eq!(by_slot(), [0, 0]);
}

#[test]
#[ignore = "deep: takes long"]
fn nvmls_excess_over_the_account_is_charged_and_given_back_as_the_figures_say() {
    const MIB: u64 = 1 << 20;
    let controller = Controller::new();
    controller.slot().set_memory_limit(LIMIT_BYTES);
    let (mut client, _connection) = start(&controller, "hold");
    client.gives("held");
    let account = controller.ledger.gpu(controller.gpu()).unwrap().account(1).unwrap();
    assert_eq!(account.held_bytes(), 8 * MIB);
    let tell = |seen_bytes| {
        let (asked_ns, mark) = (now_ns(), account.mark());
        let (least_bytes, most_bytes) = account.bounds_since(mark);
        controller.slot().set_appraisal(Appraisal { asked_ns, seen_bytes, least_bytes, most_bytes });
    };
    let told = |what: &str, seen_mib: u64, held_mib: u64| {
        until(what, || {
            tell(seen_mib * MIB);
            std::thread::sleep(Duration::from_millis(100));
            account.held_bytes() == held_mib * MIB
        });
    };
    // Two of the 8 MiB are managed memory, which can be on the host.
    told("it grew", 100, 100);
    assert!(account.tenant_held_bytes() > LIMIT_BYTES, "nothing is taken back");
    told("it shrank", 30, 32);
    // A single figure changes nothing.
    tell(200 * MIB);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(account.held_bytes(), 32 * MIB);
    client.gives("freed");
    client.gives("freed");
    assert_eq!(account.held_bytes(), 24 * MIB);
}

#[test]
fn controllers_that_come_and_go_leave_nothing_behind_in_a_client() {
    let mut controller = Controller::new();
    let (mut client, mut connection) = start(&controller, "launch");
    client.go();
    let settle = |controller: &Controller, client: &mut Client| {
        until("the meter is brought up to date", || controller.meter.is_carried());
        assert_eq!(client.answer(), "launched");
        client.go();
    };
    let renew = |controller: &mut Controller, connection: support::Connection| {
        controller.restart();
        drop(connection);
        controller.welcome()
    };
    // The client keeps the last few ledgers mapped.
    for _ in 0..4 {
        connection = renew(&mut controller, connection);
        settle(&controller, &mut client);
    }
    let (descriptors, mappings) = (client.descriptors(), client.shared_mappings());
    for _ in 0..30 {
        connection = renew(&mut controller, connection);
        settle(&controller, &mut client);
    }
    assert_eq!((client.descriptors(), client.shared_mappings()), (descriptors, mappings));
}

#[test]
fn a_controller_of_another_minor_version_is_understood() {
    let controller = Controller::new();
    let mut client = controller.client("launch once");
    let connection = controller.accept();
    let mut welcome = Welcome::new(77, 1);
    welcome.gpu_index[0] = controller.gpu() as u8;
    controller.answer(&connection, &of_version(welcome.as_bytes(), MAJOR, MINOR + 5, 100));
    assert_eq!(client.answer(), "ready");
    client.gives(CUDA_SUCCESS);
    until("it meters", || controller.meter().read().kernel_launches == 1);
    assert_eq!(client.finish(), "");
}

#[test]
fn a_controller_of_another_major_version_is_reported_once_and_the_job_runs() {
    let mut controller = Controller::new();
    let (mut client, connection) = start(&controller, "launch");
    client.gives("launched");
    // An administrator upgrades the daemon under a running job.
    controller.restart();
    drop(connection);
    let newer = Refusal::new(RefusalKind::Version, "in whatever way another version says it");
    controller.refuse_with(&of_version(newer.as_bytes(), MAJOR + 1, 0, 0));
    for _ in 0..3 {
        client.gives("launched");
    }
    // The client's meter thread reads the answer at its own pace.
    std::thread::sleep(Duration::from_millis(500));
    let errors = client.end();
    assert_eq!(errors.lines().count(), 1, "{errors}");
    for part in [&format!("version {}", MAJOR + 1), "same deepres release", "unmetered"] {
        assert!(errors.contains(part), "{errors}");
    }
    // A client that starts under the upgraded daemon gets the same refusal.
    let client = controller.client("launch once");
    controller.refuse_with(&of_version(newer.as_bytes(), MAJOR + 1, 0, 0));
    let errors = launches_once(client);
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("same deepres release") && errors.contains("unmetered"), "{errors}");
}

#[test]
fn a_daemon_that_is_going_down_or_ends_before_it_answers_is_waited_for() {
    let goes_down = |controller: &Controller| {
        controller.refuse_with(Refusal::new(RefusalKind::Stopping, "going down").as_bytes());
    };
    let ends = |controller: &Controller| drop(controller.accept());
    for answers in [goes_down as fn(&Controller), ends] {
        let controller = Controller::new();
        let client = controller.client("launch once");
        answers(&controller);
        let _connection = controller.welcome();
        assert_eq!(launches_once(client), "");
    }
}

#[test]
fn an_open_gate_is_none_without_a_controller_if_launches_are_to_fail_then() {
    let mut controller = Controller::new();
    controller.grant.set_session(77, 100_000_000, FailMode::Closed);
    let (mut client, connection) = start(&controller, "launch until");
    client.gives(CUDA_SUCCESS);
    // The heartbeat stops while the gate is open.
    controller.beat.beat(controller.gpu(), now_ns());
    client.gives(CUDA_ERROR_NOT_PERMITTED);
    controller.beat.beat(controller.gpu(), now_ns() + 3_600_000_000_000);
    client.gives(CUDA_SUCCESS);
    // The connection ends.
    drop(connection);
    client.gives(CUDA_ERROR_NOT_PERMITTED);
    controller.restart();
    let _again = controller.welcome();
    client.gives(CUDA_SUCCESS);
}

#[test]
fn a_forked_child_goes_unmetered_and_leaves_the_parents_session_alone() {
    let controller = Controller::new();
    let (mut client, connection) = start(&controller, "fork");
    controller.set_gate(GateState::Closed, LeaseTerms::default());
    // The child neither waits nor fails.
    client.gives(0);
    assert_eq!(controller.meter().read().waiters, 0);
    controller.set_gate(GateState::Open, LeaseTerms::default());
    client.go();
    until("the parent is metered still", || controller.meter().read().kernel_launches == 1);
    drop(connection);
}

#[test]
fn a_child_forked_while_another_thread_begins_the_session_does_not_wait_for_that_thread() {
    let controller = Controller::new();
    let mut client = controller.client("fork while another thread begins");
    // The other thread waits for an answer that does not come.
    let _unanswered = controller.accept();
    client.go();
    controller.refuse("no room for the child");
    assert_eq!(client.answer(), "0", "the child retained its context");
    let errors = client.finish();
    assert!(errors.contains("no room for the child"), "{errors}");
}

#[test]
fn a_refusal_is_told_once_and_the_job_runs() {
    let controller = Controller::new();
    let client = controller.client("launch once");
    controller.refuse("no room for you");
    let errors = launches_once(client);
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.starts_with("deepres: ") && errors.contains("no room for you"), "{errors}");
}

#[test]
fn a_client_with_limits_gets_no_gpu_if_it_sees_more_than_can_be_limited() {
    let controller = Controller::new();
    let variables = [("STUB_DRIVER_GPUS", "17"), ("DEEPRES_MEMORY", "1GiB")];
    let mut client = controller.client_with("init", &variables);
    assert_eq!(client.answer(), CUDA_ERROR_NOT_PERMITTED.to_string());
    let errors = client.finish();
    assert!(errors.contains("sees 17 GPUs") && errors.contains("may not use the GPU"), "{errors}");
    // Without limits, the client has a session on the first GPUs.
    let client = controller.client_with("launch once", &variables[..1]);
    assert_eq!(controller.welcome().hello.gpus().len(), MAX_GPUS);
    launches_once(client);
}

#[test]
fn a_session_is_announced_before_it_begins_and_the_announcement_ends_once_it_has() {
    let controller = Controller::new();
    let mut client = controller.client("launch once");
    let announced = controller.accept_any();
    assert_eq!(announced.hello.role(), Some(Role::Arriving));
    assert!(!announced.has_ended());
    let begun = controller.accept_any();
    assert_eq!(begun.hello.role(), Some(Role::Session));
    assert!(!announced.has_ended(), "it is on its way still");
    controller.say_welcome(&begun);
    assert_eq!(client.answer(), "ready");
    assert!(announced.has_ended());
    client.gives(CUDA_SUCCESS);
    client.finish();
}

#[test]
fn a_controller_without_announcements_refuses_them_and_no_message_tells_of_it() {
    let controller = Controller::new();
    let client = controller.client("launch once");
    let announced = controller.accept_any();
    controller.say_no(announced, "4 is no role");
    let _session = controller.welcome();
    let errors = launches_once(client);
    assert!(!errors.contains("no role"), "{errors}");
}
