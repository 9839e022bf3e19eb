//! Kernels that spin for their peers.

use super::world::{World, kernel};
use crate::{Host, StreamId, Ticket, WaitPolicy, Work, config::ALL_SMS_PPM, liveness};

fn collective(name: u64, ns: u64) -> Work {
    Work::Collective { duration_ns: ns, sm_ppm: ALL_SMS_PPM, name, peers: 2 }
}

fn rank(host: &Host, gpu: usize) -> StreamId {
    host.create_stream(host.create_context(gpu).expect("context")).expect("stream")
}

fn submit(host: &Host, stream: StreamId, work: Work) -> Ticket {
    host.submit(stream, work, &[]).expect("submit")
}

#[test]
fn a_kernel_spins_until_its_peer_on_another_gpu_has_begun() {
    let world = World::with("gpus = 2");
    let host = world.process();
    let [near, far] = [0, 1].map(|gpu| rank(&host, gpu));
    let x = submit(&host, near, collective(7, 50));
    submit(&host, far, kernel(300, ALL_SMS_PPM));
    let y = submit(&host, far, collective(7, 80));
    world.go_to(1000);
    let times = [x, y].map(|ticket| host.query(ticket).map(|at_ns| at_ns - super::world::START_NS));
    assert_eq!(times, [Some(350), Some(380)]);
    // A spinning kernel counts as having the GPU.
    let busy: Vec<u64> = world.truth().gpus.iter().map(|gpu| gpu.busy_ns).collect();
    assert_eq!(busy, [350, 380]);
    assert_eq!(world.truth().processes[0].gpus[0].kernels, 1);
}

#[test]
fn kernels_of_another_name_or_of_the_same_context_are_no_peers() {
    let (world, [a]) = World::with("gpus = 2").with_clients();
    let far = rank(&a.host, 1);
    let x = submit(&a.host, a.stream, collective(7, 50));
    let twin = submit(&a.host, a.another_stream(), collective(7, 50));
    let other = submit(&a.host, far, collective(8, 50));
    world.go_to(10_000);
    assert_eq!([x, twin, other].map(|ticket| a.done(ticket)), [None; 3]);
    let peer = rank(&a.host, 1);
    let y = submit(&a.host, peer, collective(7, 50));
    world.go_to(30_000);
    // On GPU 1 the two contexts take turns; the later one has its turn from 11000 + 100 on at the
    // latest.
    assert!(a.done(x).is_some() && a.done(y).is_some());
    assert_eq!([twin, other].map(|ticket| a.done(ticket)), [None; 2], "each has met one peer");
}

#[test]
fn a_kernel_that_has_begun_counts_though_another_has_its_turn() {
    let (world, [a, b]) = World::new().with_clients();
    let x = submit(&a.host, a.stream, collective(7, 50));
    let y = submit(&b.host, b.stream, collective(7, 60));
    world.go_to(10_000);
    // `a` spins for its slice of 1000. `b` begins after the switch and goes on. Then `a` does the
    // rest of its work.
    assert_eq!((b.done(y), a.done(x)), (Some(1160), Some(1220)));
}

#[test]
fn of_more_than_meet_the_others_spin_on() {
    let world = World::with("gpus = 3");
    let host = world.process();
    let ranks = [0, 1, 2].map(|gpu| rank(&host, gpu));
    let tickets = ranks.map(|stream| submit(&host, stream, collective(7, 50)));
    world.go_to(1000);
    assert_eq!(tickets.map(|ticket| host.query(ticket).is_some()), [true, true, false]);
    let late = submit(&host, ranks[0], collective(7, 50));
    world.go_to(2000);
    assert!(host.query(late).is_some() && host.query(tickets[2]).is_some());
}

#[test]
fn two_gangs_that_each_hold_one_gpu_go_on_by_turns() {
    let world = World::with("gpus = 2");
    let host = world.process();
    let ranks: Vec<[StreamId; 2]> = (0..2).map(|_| [0, 1].map(|gpu| rank(&host, gpu))).collect();
    // The two gangs come first on different GPUs.
    let tickets = [(0, 0), (1, 1), (0, 1), (1, 0)]
        .map(|(gang, gpu)| submit(&host, ranks[gang][gpu], collective(gang as u64, 50)));
    world.go_to(10_000);
    assert!(tickets.iter().all(|ticket| host.query(*ticket).is_some()));
}

#[test]
fn a_dead_peer_is_waited_for_until_another_comes() {
    let (world, [a]) = World::with("gpus = 2").with_clients();
    let peer = world.process();
    let far = rank(&peer, 1);
    // The peer begins and then dies. A kernel on the first stream keeps the two from meeting
    // before.
    submit(&a.host, a.stream, kernel(500, ALL_SMS_PPM));
    let x = submit(&a.host, a.stream, collective(7, 50));
    submit(&peer, far, collective(7, 50));
    world.go_to(300);
    world.truth();
    drop(peer);
    world.go_to(5 * liveness::INTERVAL_NS);
    assert_eq!(a.done(x), None);
    let again = world.process();
    let far = rank(&again, 1);
    let y = submit(&again, far, collective(7, 50));
    again.wait(y, WaitPolicy::Auto);
    assert!(a.done(x).is_some());
}
