//! Contexts that take turns.

use super::world::{Client, START_NS, World};
use crate::{CopyKind, EventStatus, WaitPolicy, Work};

/// Length of a run. The run covers so many slices that its begin and end do not matter.
const LONG_NS: u64 = 1_000_000_000;

#[test]
fn two_backlogged_processes_get_equal_slices() {
    let (world, [a, b]) = World::new().with_clients();
    a.kernel(LONG_NS);
    b.kernel(LONG_NS);
    // 100 rounds of two slices and two switches.
    world.go_to(100 * 2200);
    let truth = world.truth();
    let gpu = truth.gpus[0];
    assert_eq!(truth.processes.iter().map(|p| p.gpus[0].busy_ns).collect::<Vec<_>>(), [100_000, 100_000]);
    // The first context finds the GPU empty: a switch without cost.
    assert_eq!((gpu.busy_ns, gpu.switch_ns, gpu.idle_ns, gpu.switches), (200_000, 20_000, 0, 201));
}

#[test]
fn idle_time_between_two_contexts_is_told_from_the_pauses_of_one() {
    let (world, [a, b]) = World::new().with_clients();
    a.kernel(100);
    world.go_to(150);
    b.kernel(100);
    world.go_to(300);
    b.kernel(10);
    world.go_to(400);
    let gpu = world.truth().gpus[0];
    assert_eq!(gpu.busy_ns, 210);
    assert_eq!(gpu.handover_idle_ns, 50, "of {} ns", gpu.idle_ns);
    a.kernel(10);
    world.go_to(500);
    assert!(world.truth().gpus[0].handover_idle_ns > 50 + 80);
}

#[test]
fn small_kernels_beside_a_long_one_get_the_same_share() {
    let (world, [a, b]) = World::new().with_clients();
    a.kernel(LONG_NS);
    for _ in 0..1000 {
        b.kernel(30);
    }
    world.go_to(10 * 2200);
    let busy: Vec<_> = world.truth().processes.iter().map(|p| p.gpus[0].busy_ns).collect();
    assert_eq!(busy, [10_000, 10_000]);
}

#[test]
fn a_context_with_nothing_to_run_gives_way_at_once() {
    let (world, [a, b]) = World::new().with_clients();
    let x = a.kernel(50);
    let y = b.kernel(50);
    world.go_to(5000);
    // `a` has no work left, so the switch is the cheap one.
    assert_eq!((a.done(x), a.done(y)), (Some(50), Some(110)));
}

#[test]
fn a_newcomer_waits_for_the_end_of_the_present_slice() {
    let (world, [a, b]) = World::new().with_clients();
    a.kernel(LONG_NS);
    world.go_to(3400);
    let y = b.kernel(50);
    world.go_to(10_000);
    // While `a` is alone, its slices end at 1000, 2000, 3000, 4000.
    assert_eq!(a.done(y), Some(4150));
}

#[test]
fn a_newcomer_that_need_not_wait_interrupts_the_slice_and_the_slice_goes_on_later() {
    let (world, [a, b, c]) = World::with("newcomers_wait = false").with_clients();
    a.kernel(LONG_NS);
    world.go_to(100);
    c.kernel(LONG_NS);
    // `c` runs from 200 to 1200, and `a` goes on from 1300 to 2200. From 2300 on, `c` has its turn.
    world.go_to(2500);
    let y = b.kernel(50);
    world.go_to(3460);
    assert_eq!(a.done(y), Some(2650));
    let busy = || world.truth().processes.iter().map(|p| p.gpus[0].busy_ns).collect::<Vec<_>>();
    // From 2660 on, `c` had the rest of its slice, 800.
    assert_eq!(busy(), [1000, 50, 2000]);
    world.go_to(4560);
    assert_eq!(busy(), [2000, 50, 2000]);
}

#[test]
fn a_context_that_always_has_work_is_no_newcomer() {
    let (world, [a, b]) = World::with("newcomers_wait = false").with_clients();
    a.kernel(LONG_NS);
    for _ in 0..1000 {
        b.kernel(30);
    }
    // Both come at the beginning: `b` has its slice first.
    world.go_to(100 + 20 * 1100);
    let busy: Vec<_> = world.truth().processes.iter().map(|p| p.gpus[0].busy_ns).collect();
    assert_eq!(busy, [10_000, 10_000]);
}

#[test]
fn copies_and_markers_of_another_context_need_no_turn() {
    let (world, [a, b]) = World::new().with_clients();
    let x = a.kernel(5000);
    let event = b.host.create_event().expect("event");
    let copy = b
        .host
        .submit(b.stream, Work::Copy { kind: CopyKind::HostToDevice, bytes: 300 }, &[])
        .expect("submit");
    b.host.record(b.stream, event).expect("record");
    world.go_to(200);
    assert_eq!(b.done(copy), None);
    world.go_to(10_000);
    assert_eq!((a.done(x), b.done(copy)), (Some(5000), Some(300)));
    assert_eq!(b.host.event_status(event), EventStatus::Done { at_ns: START_NS + 300 });
    let truth = world.truth();
    let (gpu, copier) = (truth.gpus[0], truth.processes[1].gpus[0]);
    assert_eq!((gpu.busy_ns, gpu.copy_busy_ns, gpu.switches), (5000, 300, 1));
    assert_eq!((copier.busy_ns, copier.kernel_busy_ns, copier.copy_busy_ns), (300, 0, 300));
}

#[test]
fn copies_of_all_contexts_share_the_bandwidth_also_during_a_switch() {
    let (world, [a, b]) = World::new().with_clients();
    a.kernel(950);
    a.kernel(1000);
    b.kernel(10);
    // The first copy runs alone for 100, then two copies share the bandwidth for 200 each. The
    // switch lasts from 1000 to 1100.
    let copy = |client: &Client, bytes| {
        let stream = client.another_stream();
        client.host.submit(stream, Work::Copy { kind: CopyKind::HostToDevice, bytes }, &[]).expect("submit")
    };
    world.go_to(900);
    let x = copy(&a, 300);
    world.go_to(1000);
    let y = copy(&b, 100);
    world.go_to(10_000);
    assert_eq!((a.done(x), b.done(y)), (Some(1300), Some(1200)));
}

#[test]
fn three_contexts_go_round() {
    let world = World::new();
    let clients = [(); 3].map(|()| Client::new(&world));
    for client in &clients {
        client.kernel(LONG_NS);
    }
    world.go_to(30 * 1100);
    let busy: Vec<_> = world.truth().processes.iter().map(|p| p.gpus[0].busy_ns).collect();
    assert_eq!(busy, [10_000; 3]);
}

#[test]
fn gpus_do_not_share_time() {
    let world = World::with("gpus = 16");
    let host = world.process();
    let tickets: Vec<_> = (0..16)
        .map(|gpu| {
            let stream = host.create_stream(host.create_context(gpu).expect("context")).expect("stream");
            host.submit(stream, super::world::kernel(500 + gpu as u64, 1), &[]).expect("submit")
        })
        .collect();
    for (gpu, ticket) in tickets.into_iter().enumerate() {
        assert_eq!(host.wait(ticket, WaitPolicy::Auto), START_NS + 500 + gpu as u64);
    }
    let uuids: std::collections::HashSet<_> = (0..16).map(|gpu| host.uuid(gpu)).collect();
    assert_eq!(uuids.len(), 16);
}

#[test]
fn utilization_is_the_busy_part_of_the_last_second() {
    const SECOND: u64 = 1_000_000_000;
    let (world, [a]) = World::new().with_clients();
    a.kernel(SECOND / 4);
    world.go_to(SECOND);
    let ppm = world.truth().gpus[0].utilization_ppm;
    assert!((240_000..=260_000).contains(&ppm), "{ppm}");
    world.go_to(3 * SECOND);
    assert_eq!(world.truth().gpus[0].utilization_ppm, 0);
}

#[test]
fn a_kernel_that_never_ends_can_be_shared_with() {
    let (world, [a, b]) = World::new().with_clients();
    a.kernel(u64::MAX);
    let y = b.kernel(50);
    world.go_to(10_000);
    assert_eq!(b.done(y), Some(1150));
    a.host.destroy_context(a.context);
    let z = b.kernel(50);
    world.go_to(20_000);
    assert_eq!(b.done(z), Some(10_050));
}

#[test]
fn kernels_of_urgent_streams_have_their_sms_first() {
    let (world, [a]) = World::new().with_clients();
    let urgent = a.host.create_urgent_stream(a.context, 5).expect("stream");
    let x = a.part_kernel(a.stream, 100, 600_000);
    let other = a.part_kernel(a.another_stream(), 100, 600_000);
    let y = a.part_kernel(urgent, 50, 700_000);
    world.go_to(10_000);
    // For 50 the kernels get 300 of the 1200 thousandths that they want, so 12.5 of 100 are done.
    // Then they get 1000 of 1200.
    assert_eq!(a.done(y), Some(50));
    assert_eq!((a.done(x), a.done(other)), (Some(155), Some(155)));
}

#[test]
fn a_kernel_to_which_an_urgent_stream_leaves_nothing_waits() {
    let (world, [a]) = World::new().with_clients();
    let urgent = a.host.create_urgent_stream(a.context, 1).expect("stream");
    let x = a.kernel(100);
    world.go_to(40);
    let y = a.part_kernel(urgent, 500, 1_000_000);
    world.go_to(10_000);
    assert_eq!((a.done(y), a.done(x)), (Some(540), Some(600)));
    assert_eq!(world.truth().gpus[0].busy_ns, 600);
}
