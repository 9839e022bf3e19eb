//! Clients of an MPS server, which run at once.

use super::world::{Client, World};
use crate::{Error, Host, layout::MAX_PROCESSES};

const PERCENT: u32 = 10_000;
/// Length of a run, as in the tests of sharing.
const LONG_NS: u64 = 1_000_000_000;

/// A host with a server, and a client for each percentage of the SMs.
struct Served<const N: usize> {
    world: World,
    server: Host,
    clients: [Client; N],
}

fn served<const N: usize>(percents: [u32; N]) -> Served<N> {
    served_by(World::new(), percents)
}

fn served_by<const N: usize>(world: World, percents: [u32; N]) -> Served<N> {
    let server = world.process();
    let number = server.serve().expect("a server");
    let clients = percents.map(|percent| {
        let host = world.process();
        host.join(number, percent * PERCENT).expect("a living server");
        let context = host.create_context(0).expect("context");
        let stream = host.create_stream(context).expect("stream");
        Client { host, context, stream }
    });
    Served { world, server, clients }
}

#[test]
fn clients_run_at_once_each_as_fast_as_its_part_allows() {
    let Served { world, server: _server, clients: [a, b] } = served([40, 60]);
    let (x, y) = (a.kernel(1000), b.kernel(1200));
    world.go_to(10_000);
    assert_eq!((a.done(x), b.done(y)), (Some(2500), Some(2000)));
    let truth = world.truth();
    let of = |number: usize| truth.processes[number].gpus[0];
    assert_eq!((of(1).kernel_busy_ns, of(1).sm_ns), (2500, 1000));
    assert_eq!((of(2).kernel_busy_ns, of(2).sm_ns), (2000, 1200));
    let gpu = truth.gpus[0];
    assert_eq!((gpu.busy_ns, gpu.sm_ns, gpu.switch_ns), (2500, 2200, 0));
    assert_eq!(truth.processes[1].sm_limit_ppm, Some(40 * PERCENT));
}

#[test]
fn a_server_with_its_clients_is_one_process_to_an_exclusive_gpu() {
    let world = World::with("compute_mode = \"exclusive-process\"\n");
    let Served { world, server, clients: [a, b] } = served_by(world, [40, 60]);
    let (x, y) = (a.kernel(1000), b.kernel(1200));
    world.go_to(10_000);
    assert_eq!((a.done(x), b.done(y)), (Some(2500), Some(2000)));
    let alone = world.process();
    assert!(matches!(alone.create_context(0), Err(Error::Exclusive { gpu: 0 })));
    drop(server);
    alone.create_context(0).expect("the server has ended");
    assert!(matches!(world.process().serve(), Err(Error::Exclusive { gpu: 0 })));
}

#[test]
fn all_kernels_of_a_client_share_its_part_and_narrow_kernels_do_not_feel_it() {
    let Served { world, server: _server, clients: [a] } = served([50]);
    let narrow = a.part_kernel(a.stream, 100, 300_000);
    world.go_to(1000);
    assert_eq!(a.done(narrow), Some(100));
    let x = a.part_kernel(a.stream, 100, 500_000);
    let y = a.part_kernel(a.another_stream(), 100, 500_000);
    world.go_to(5000);
    assert_eq!((a.done(x), a.done(y)), (Some(1200), Some(1200)));
}

#[test]
fn clients_with_more_than_all_sms_share_them_in_proportion() {
    let Served { world, server: _server, clients: [a, b] } = served([100, 50]);
    let (x, y) = (a.kernel(1000), b.kernel(250));
    world.go_to(10_000);
    // 66.6 % and 33.3 % of the SMs, until the second client is done.
    assert_eq!(b.done(y), Some(751));
    assert!(a.done(x).is_some_and(|at| (1250..=1252).contains(&at)), "{:?}", a.done(x));
}

#[test]
fn all_clients_of_a_server_take_one_turn_beside_a_process_without_mps() {
    let Served { world, server: _server, clients: [a, b] } = served([40, 60]);
    let alone = Client::new(&world);
    let other = Client::new(&world);
    for client in [&a, &b, &alone, &other] {
        client.kernel(LONG_NS);
    }
    // 10 rounds of three slices and three switches.
    world.go_to(10 * 3300);
    let truth = world.truth();
    let busy: Vec<_> = truth.processes.iter().map(|process| process.gpus[0].kernel_busy_ns).collect();
    assert_eq!(busy, [0, 10_000, 10_000, 10_000, 10_000]);
    assert_eq!((truth.gpus[0].busy_ns, truth.gpus[0].sm_ns), (30_000, 30_000));
}

#[test]
fn the_end_of_a_server_ends_its_clients_and_nobody_else() {
    let Served { world, server, clients: [a, b] } = served([40, 60]);
    let alone = Client::new(&world);
    a.host.reserve_process_memory(0, 64).expect("memory");
    let (x, y) = (a.kernel(LONG_NS), alone.kernel(3000));
    world.go_to(1500);
    assert!(!a.host.has_lost_server());
    drop(server);
    assert!(a.host.has_lost_server() && b.host.has_lost_server() && !alone.host.has_lost_server());
    assert!(matches!(a.host.create_context(0), Err(Error::Gone(_))));
    assert!(matches!(a.host.reserve_process_memory(0, 64), Err(Error::Gone(_))));
    assert!(a.host.submit(a.stream, super::world::kernel(1, 1), &[]).is_err());
    assert_eq!(a.host.query(x), Some(0), "nobody waits for it");
    world.go_to(10_000);
    assert_eq!(alone.done(y), Some(4100), "it has the GPU from then on");
    let truth = world.truth();
    assert_eq!(truth.gpus[0].memory_used_bytes, 0);
    assert_eq!(
        truth.processes.iter().map(|process| process.alive).collect::<Vec<_>>(),
        [false, true, true, true]
    );
    assert!(truth.processes[1..3].iter().all(|client| client.gpus[0].contexts == 0));
}

#[test]
fn a_new_server_has_no_clients_of_the_one_whose_number_it_has() {
    let Served { world, server, clients: [lost] } = served([40]);
    let number = server.number();
    drop(server);
    // A new process has the number of a dead one once there are no fresh numbers.
    let mut others = (0..MAX_PROCESSES).map(|_| world.process());
    let next = others.find(|host| host.number() == number).expect("the number is given again");
    assert_eq!(next.serve().expect("a server"), number);
    assert!(lost.host.has_lost_server() && next.clients().is_empty());
    let client = world.process();
    client.join(number, PERCENT).expect("a living server");
    assert_eq!(next.clients().len(), 1);
}

#[test]
fn a_client_that_ends_leaves_its_sms_at_once() {
    let Served { world, server, clients: [a, b] } = served([100, 100]);
    let x = a.kernel(1000);
    b.kernel(LONG_NS);
    world.go_to(1000);
    assert_eq!(server.clients().len(), 2);
    drop(b);
    world.go_to(5000);
    // Half of the kernel was done.
    assert_eq!(a.done(x), Some(1500));
    assert_eq!(server.clients().len(), 1);
    assert!(!a.host.has_lost_server());
}

#[test]
fn a_process_joins_living_servers_only() {
    let Served { world: _world, server, clients: [a] } = served([40]);
    let number = server.number();
    assert!(matches!(a.host.join(a.host.number(), PERCENT), Err(Error::Gone(_))));
    drop(server);
    assert!(matches!(a.host.join(number, PERCENT), Err(Error::Gone(_))));
}

#[test]
fn interference_slows_kernels_beside_another_client_only() {
    let table = "interference = [{ client = '*', beside = '*', factor = 1.25 }]";
    let Served { world, server: _server, clients: [a, b] } = served_by(World::with(table), [50, 50]);
    let x = a.part_kernel(a.stream, 1000, 500_000);
    world.go_to(500);
    let y = b.part_kernel(b.stream, 100, 500_000);
    world.go_to(10_000);
    assert_eq!(b.done(y), Some(625));
    // 125 at 4/5 of its speed.
    assert_eq!(a.done(x), Some(1025));
}
