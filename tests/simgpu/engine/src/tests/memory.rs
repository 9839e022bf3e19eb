//! Device memory.

use super::world::{Client, World};
use crate::{Error, OutOfMemory};

#[test]
fn memory_is_refused_by_the_byte_and_comes_back_with_the_context() {
    let (world, [a, b]) = World::with("memory_bytes = 1000\ncontext_overhead_bytes = 100").with_clients();
    a.host.reserve_memory(a.context, 500).expect("free");
    let refused = b.host.reserve_memory(b.context, 301).expect_err("too much");
    let expected = OutOfMemory { gpu: 0, requested_bytes: 301, free_bytes: 300, total_bytes: 1000 };
    assert!(matches!(refused, Error::OutOfMemory(out) if out == expected), "{refused}");
    b.host.reserve_memory(b.context, 300).expect("free");
    a.host.release_memory(a.context, 100);
    assert_eq!(b.host.memory(0).used_bytes, 900);
    // More than the context holds: everything is released, and not a byte of another context's.
    a.host.release_memory(a.context, 5000);
    assert_eq!(b.host.memory(0).used_bytes, 400);
    b.host.destroy_context(b.context);
    assert_eq!(a.host.memory(0).used_bytes, 0);
    let truth = world.truth();
    let held = truth
        .processes
        .iter()
        .map(|p| (p.gpus[0].memory_bytes, p.gpus[0].memory_peak_bytes))
        .collect::<Vec<_>>();
    assert_eq!(held, [(0, 600), (0, 400)]);
    assert_eq!(truth.gpus[0].memory_peak_bytes, 1000);
}

#[test]
fn a_context_that_does_not_fit_leaves_nothing_behind() {
    let (world, [a]) = World::with("memory_bytes = 150\ncontext_overhead_bytes = 100").with_clients();
    let before = world.truth();
    assert!(matches!(a.host.create_context(0), Err(Error::OutOfMemory(_))));
    assert_eq!(world.truth(), before);
    assert!(matches!(a.host.create_context(1), Err(Error::NoSuchGpu { gpu: 1, count: 1 })));
}

#[test]
fn threads_racing_for_memory_never_get_more_than_there_is() {
    let world = World::with("memory_bytes = 1000");
    let clients = [(); 4].map(|()| Client::new(&world));
    let granted: usize = std::thread::scope(|scope| {
        let threads = clients.each_ref().map(|client| {
            scope.spawn(|| (0..500).filter(|_| client.host.reserve_memory(client.context, 1).is_ok()).count())
        });
        threads.map(|thread| thread.join().expect("no panic")).into_iter().sum()
    });
    assert_eq!((granted, clients[0].host.memory(0).used_bytes), (1000, 1000));
}

#[test]
fn managed_memory_has_what_is_free_and_makes_room_for_others_oldest_first() {
    let (world, [a, b]) = World::with("memory_bytes = 1000\ncontext_overhead_bytes = 100").with_clients();
    assert_eq!(a.host.bring_managed(0, 300), 300);
    world.clock.advance_to(1);
    assert_eq!(b.host.bring_managed(0, 400), 400);
    assert_eq!(a.host.memory(0).used_bytes, 900);
    a.host.reserve_memory(a.context, 350).expect("managed memory makes room");
    assert_eq!(
        (a.host.managed_bytes(0), b.host.managed_bytes(0)),
        (50, 400),
        "the process that brought none for longest goes first"
    );
    assert_eq!(a.host.bring_managed(0, 200), 200, "its own stays before another's");
    assert_eq!((a.host.managed_bytes(0), b.host.managed_bytes(0)), (250, 200));
    assert_eq!(a.host.bring_managed(0, 5000), 450, "all that is not taken otherwise");
    assert_eq!((a.host.managed_bytes(0), b.host.managed_bytes(0)), (450, 0));
    let refused = b.host.reserve_memory(b.context, 451).expect_err("taken memory does not make room");
    assert!(matches!(refused, Error::OutOfMemory(out) if out.free_bytes == 450), "{refused}");
    a.host.let_managed_go(0, 100);
    let truth = world.truth();
    assert_eq!((truth.gpus[0].managed_bytes, truth.gpus[0].memory_used_bytes), (350, 550));
    drop(a);
    assert_eq!(world.truth().gpus[0].managed_bytes, 0, "it goes with its process");
}
