//! Streams, tickets, events and waits.

use super::world::{Client, START_NS, World, kernel};
use crate::{CopyKind, Error, EventStatus, Ticket, WaitPolicy, Work, config::ALL_SMS_PPM};
use std::{thread, time::Duration};

const FULL: u32 = ALL_SMS_PPM;

#[test]
fn a_stream_runs_in_order_and_keeps_the_exact_times() {
    let (world, [a]) = World::new().with_clients();
    let tickets = [100, 1, 50].map(|ns| a.kernel(ns));
    world.go_to(100_000);
    assert_eq!(tickets.map(|ticket| a.done(ticket)), [Some(100), Some(101), Some(151)]);
}

#[test]
fn nothing_completes_before_its_time_whoever_looks() {
    let world = World::new();
    let (a, b) = (Client::new(&world), world.process());
    let ticket = a.kernel(100);
    world.go_to(99);
    assert_eq!((a.done(ticket), b.query(ticket)), (None, None));
    world.go_to(100);
    assert_eq!(b.query(ticket), Some(START_NS + 100));
}

#[test]
fn a_launch_starts_after_its_latency_and_costs_its_overhead() {
    let (world, [a]) = World::with("launch_latency_ns = 7\nlaunch_overhead_ns = 3").with_clients();
    let first = a.kernel(100);
    let graph = a
        .host
        .submit(a.stream, Work::Kernel { duration_ns: 40, sm_ppm: FULL, kernels: 5 }, &[])
        .expect("submit");
    world.go_to(1000);
    assert_eq!((a.done(first), a.done(graph)), (Some(110), Some(110 + 40 + 15)));
    assert_eq!(world.truth().processes[0].gpus[0].kernels, 6);
}

#[test]
fn kernels_scatter_about_their_times_and_their_overhead_does_not() {
    let (world, [a]) =
        World::with("kernel_jitter_ppm = 400000\njitter_seed = 3\nlaunch_overhead_ns = 50").with_clients();
    let mut before = 0;
    let took: Vec<u64> = (0..200)
        .map(|_| {
            let ticket = a.kernel(100);
            world.go_to(before + 1_000);
            let done = a.done(ticket).expect("it is long over");
            let took = done - before;
            before += 1_000;
            took
        })
        .collect();
    assert!(took.iter().all(|took| (110..=190).contains(took)), "{took:?}");
    assert!(took.iter().any(|took| *took < 130) && took.iter().any(|took| *took > 170), "{took:?}");
    let busy_ns = world.truth().processes[0].gpus[0].kernel_busy_ns;
    assert_eq!(busy_ns, took.iter().sum::<u64>());
}

#[test]
fn heads_of_several_streams_run_together_when_they_fit() {
    let (world, [a]) = World::new().with_clients();
    let (x, y) = (a.part_kernel(a.stream, 100, 500_000), a.part_kernel(a.another_stream(), 60, 500_000));
    world.go_to(1000);
    assert_eq!((a.done(x), a.done(y)), (Some(100), Some(60)));
    // Overlapping time counts once.
    assert_eq!(world.truth().gpus[0].busy_ns, 100);
}

#[test]
fn heads_that_do_not_fit_slow_down_in_proportion() {
    let (world, [a]) = World::new().with_clients();
    // Together the kernels want 1.5 times the SMs: 60 ns of the shorter take 90. The remaining 40
    // of the longer run at full speed.
    let (x, y) = (a.part_kernel(a.stream, 100, FULL), a.part_kernel(a.another_stream(), 60, 500_000));
    world.go_to(1000);
    assert_eq!((a.done(y), a.done(x)), (Some(90), Some(130)));
}

#[test]
fn copies_of_a_kind_share_the_bandwidth_and_run_beside_kernels() {
    let (world, [a]) = World::new().with_clients();
    let copy = Work::Copy { kind: CopyKind::HostToDevice, bytes: 100 };
    let [x, y] =
        [a.stream, a.another_stream()].map(|stream| a.host.submit(stream, copy, &[]).expect("submit"));
    let k = a.part_kernel(a.another_stream(), 150, FULL);
    world.go_to(1000);
    assert_eq!([x, y, k].map(|ticket| a.done(ticket)), [Some(200), Some(200), Some(150)]);
    let account = world.truth().processes[0].gpus[0];
    assert_eq!(
        (account.busy_ns, account.kernel_busy_ns, account.copy_busy_ns, account.copies),
        (200, 150, 200, 2)
    );
}

#[test]
fn work_waits_for_other_streams_tickets() {
    let (world, [a]) = World::new().with_clients();
    let (s1, s2) = (a.another_stream(), a.another_stream());
    let (x, y) = (a.part_kernel(a.stream, 100, 1), a.part_kernel(s1, 30, 1));
    let after_both = a.host.submit(s2, kernel(10, 1), &[x, y, Ticket { sequence: 0, ..x }]).expect("submit");
    a.host.wait_in_stream(s1, &[after_both]).expect("submit");
    let last = a.part_kernel(s1, 5, 1);
    world.go_to(1000);
    assert_eq!([y, after_both, last].map(|ticket| a.done(ticket)), [Some(30), Some(110), Some(115)]);
}

#[test]
fn a_stream_that_got_its_work_first_can_wait_for_one_that_got_it_later() {
    let (world, [a, b]) = World::new().with_clients();
    let later = a.another_stream();
    a.part_kernel(a.stream, 10, 1);
    let x = a.part_kernel(later, 100, 1);
    let y = a.host.submit(a.stream, kernel(10, 1), &[x]).expect("submit");
    // This kernel would get the GPU if `a`'s context had nothing to run for a moment.
    b.kernel(500);
    world.go_to(1000);
    assert_eq!(a.done(y), Some(110));
}

#[test]
fn work_waits_for_another_process_and_another_gpu() {
    let (world, [a, b]) = World::with("gpus = 2").with_clients();
    let far = b.host.create_stream(b.host.create_context(1).expect("context")).expect("stream");
    let x = a.kernel(100);
    let y = b.host.submit(far, kernel(10, FULL), &[x]).expect("submit");
    let z = a.host.submit(a.another_stream(), kernel(10, FULL), &[y]).expect("submit");
    let w = b.host.submit(b.stream, kernel(5, FULL), &[z]).expect("submit");
    world.go_to(10_000);
    // The last kernel needs another context's turn on GPU 0: one idle switch.
    assert_eq!([x, y, z, w].map(|ticket| a.done(ticket)), [Some(100), Some(110), Some(120), Some(135)]);
}

#[test]
fn a_context_that_only_waits_does_not_take_the_gpu() {
    let (world, [a, b]) = World::new().with_clients();
    let x = a.kernel(5000);
    let y = b.host.submit(b.stream, kernel(5, FULL), &[x]).expect("submit");
    world.go_to(10_000);
    assert_eq!((a.done(x), a.done(y)), (Some(5000), Some(5015)));
    assert_eq!(world.truth().gpus[0].switches, 2);
}

#[test]
fn a_host_wait_holds_the_stream_until_released() {
    let (world, [a]) = World::new().with_clients();
    let before = a.kernel(10);
    let gate = a.host.submit(a.stream, Work::HostWait, &[]).expect("submit");
    let after = a.kernel(10);
    world.go_to(500);
    assert_eq!([before, gate, after].map(|ticket| a.done(ticket)), [Some(10), None, None]);
    a.host.release(gate);
    world.go_to(600);
    assert_eq!([gate, after].map(|ticket| a.done(ticket)), [Some(500), Some(510)]);
    // A second release, and a release of an item that is no host wait, do nothing.
    a.host.release(gate);
    a.host.release(after);
}

#[test]
fn a_host_wait_released_early_holds_nothing_up() {
    let (world, [a]) = World::new().with_clients();
    a.kernel(100);
    let gate = a.host.submit(a.stream, Work::HostWait, &[]).expect("submit");
    let after = a.kernel(10);
    a.host.release(gate);
    world.go_to(1000);
    assert_eq!((a.done(gate), a.done(after)), (Some(100), Some(110)));
}

#[test]
fn a_thread_waiting_behind_a_host_wait_wakes_when_it_is_released() {
    let (_world, [a]) = World::new().with_clients();
    let gate = a.host.submit(a.stream, Work::HostWait, &[]).expect("submit");
    let after = a.kernel(10);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| a.host.wait(after, WaitPolicy::Auto));
        thread::sleep(Duration::from_millis(1));
        a.host.release(gate);
        assert_eq!(waiter.join().expect("no panic"), START_NS + 10);
    });
}

#[test]
fn an_event_keeps_the_time_of_its_last_record() {
    let world = World::new();
    let (a, b) = (Client::new(&world), world.process());
    let event = a.host.create_event().expect("event");
    assert_eq!(a.host.event_status(event), EventStatus::NeverRecorded);
    assert_eq!(a.host.event_ticket(event), None);
    a.kernel(100);
    a.host.record(a.stream, event).expect("record");
    assert_eq!(a.host.event_status(event), EventStatus::Pending);
    world.go_to(150);
    assert_eq!(
        b.event_status(crate::EventId::from_bits(event.to_bits())),
        EventStatus::Done { at_ns: START_NS + 100 }
    );
    a.kernel(100);
    let again = a.host.record(a.stream, event).expect("record");
    assert_eq!((a.host.event_status(event), a.host.event_ticket(event)), (EventStatus::Pending, Some(again)));
    assert_eq!(a.host.wait_event(event, WaitPolicy::Block), EventStatus::Done { at_ns: START_NS + 250 });
    // The event outlives its stream and its context.
    a.host.destroy_context(a.context);
    assert_eq!(a.host.event_status(event), EventStatus::Done { at_ns: START_NS + 250 });
    a.host.destroy_event(event);
    assert_eq!(a.host.event_status(event), EventStatus::Gone);
    assert!(matches!(a.host.record(a.stream, event), Err(Error::Gone(_))));
}

#[test]
fn waiting_ends_at_the_predicted_moment() {
    let (_world, [a, b]) = World::new().with_clients();
    let x = a.kernel(3000);
    b.kernel(3000);
    // Slices 0-1000, 1100-2100 (b), 2200-3200, (b) 3300-4300, 4400-5400.
    assert_eq!(a.host.wait(x, WaitPolicy::Auto), START_NS + 5400);
    assert_eq!(a.host.now_ns(), START_NS + 5400);
}

#[test]
fn waiting_goes_on_past_what_one_look_ahead_sees() {
    let (_world, [a]) = World::new().with_clients();
    for _ in 0..1000 {
        a.kernel(10);
    }
    let last = a.host.last_ticket(a.stream);
    assert_eq!(a.host.wait(last, WaitPolicy::Block), START_NS + 10_000);
}

#[test]
fn waiting_for_a_context_waits_for_all_its_streams() {
    let (_world, [a]) = World::new().with_clients();
    let (x, y) = (a.part_kernel(a.another_stream(), 500, 1), a.part_kernel(a.another_stream(), 700, 1));
    assert!(!a.host.context_is_idle(a.context));
    a.host.wait_context(a.context, WaitPolicy::Auto);
    assert_eq!((a.done(x), a.done(y), a.host.now_ns()), (Some(500), Some(700), START_NS + 700));
    assert!(a.host.context_is_idle(a.context));
}

#[test]
fn a_full_queue_makes_submission_wait_for_a_place() {
    let (_world, [a]) = World::with("queue_depth = 4").with_clients();
    for _ in 0..4 {
        a.kernel(100);
    }
    assert_eq!(a.host.now_ns(), START_NS);
    a.kernel(100);
    assert_eq!(a.host.now_ns(), START_NS + 100);
    // More items than the queue holds, in one submission.
    let last = a.host.submit_all(a.stream, &[kernel(10, FULL); 9], &[]).expect("submit");
    assert_eq!(a.host.wait(last, WaitPolicy::Auto), START_NS + 500 + 90);
}

#[test]
fn a_destroyed_streams_work_still_runs_and_its_slot_is_not_confused_with_the_next() {
    let (world, [a]) = World::new().with_clients();
    let old = a.another_stream();
    let x = a.part_kernel(old, 100, FULL);
    a.host.destroy_stream(old);
    assert!(matches!(a.host.submit(old, kernel(1, 1), &[]), Err(Error::Gone(_))));
    assert_eq!(a.done(x), None);
    let y = a.host.submit(a.stream, kernel(10, FULL), &[x]).expect("submit");
    world.go_to(200);
    assert_eq!(a.host.query(x), Some(0), "complete, its time forgotten with the stream");
    assert_eq!(a.done(y), Some(110));
    let new = a.another_stream();
    assert_eq!(new.index, old.index, "the slot is used again");
    let z = a.part_kernel(new, 100, FULL);
    assert_eq!((a.host.query(x), a.done(z)), (Some(0), None));
}

#[test]
fn completion_times_are_kept_for_a_ring_of_items() {
    let (world, [a]) = World::new().with_clients();
    let first = a.kernel(1);
    let second = a.kernel(1);
    world.go_to(10);
    for _ in 0..1023 {
        a.kernel(0);
        a.host.wait(a.host.last_ticket(a.stream), WaitPolicy::Auto);
    }
    assert_eq!((a.host.query(first), a.done(second)), (Some(0), Some(2)));
}

#[test]
fn more_than_the_concurrency_limit_runs_in_batches() {
    let (world, [a]) = World::new().with_clients();
    let streams: Vec<_> = (0..200).map(|_| a.another_stream()).collect();
    let tickets: Vec<_> = streams.iter().map(|&stream| a.part_kernel(stream, 100, 1)).collect();
    world.go_to(10_000);
    let early = tickets.iter().filter(|&&ticket| a.done(ticket) == Some(100)).count();
    let late = tickets.iter().filter(|&&ticket| a.done(ticket) == Some(200)).count();
    assert_eq!((early, late), (128, 72));
}

#[test]
fn work_waits_for_all_of_several_contexts_on_another_gpu() {
    let (world, [a, b]) = World::with("gpus = 2").with_clients();
    let far = a.host.create_stream(a.host.create_context(1).expect("context")).expect("stream");
    let w = a.kernel(1500);
    let x = b.kernel(700);
    let y = a.host.submit(far, kernel(10, 1), &[w, x]).expect("submit");
    world.go_to(20_000);
    assert_eq!([w, x, y].map(|ticket| a.done(ticket)), [Some(2310), Some(1800), Some(2320)]);
}
