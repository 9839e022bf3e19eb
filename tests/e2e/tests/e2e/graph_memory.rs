//! Memory that graphs allocate never passes the limit, however deep in a graph the allocation is.
//! If the driver would grant an allocation within the limit, the interposer lets it through.

use deepres_e2e::calls::{Calls, WORK};
use deepres_e2e::prelude::*;

const LIMIT_MIB: u64 = 400;
const SUCCESS: &str = "0";
const INVALID_VALUE: &str = "1";
const FULL: &str = "2";

fn host() -> Host {
    // Contexts take no memory, so the GPU's record contains allocations alone.
    Host::new().simgpu("context_overhead_bytes = 0\n")
}

/// Functions that make graphs that allocate.
const GRAPHS: &str = r#"
CHILD, OWNED_BY_PARENT, FREES_AT_LAUNCH = 4, 1, 1
def new_graph(): return new(cuda.cuGraphCreate, 0)
def behind(node): return (byref(node), c_size_t(1)) if node else (None, c_size_t(0))
def allocation(graph, mib, after=None):
    params = struct.pack("iiiiQQ56xQQQQ", PINNED, 0, DEVICE, 0, 0, 0, 0, 0, mib << 20, 0)
    params = ctypes.create_string_buffer(params, len(params))
    node = new(cuda.cuGraphAddMemAllocNode, graph, *behind(after), params)
    return node, c_uint64(struct.unpack_from("Q", params, 112)[0])
def free_node(graph, at, after=None): return new(cuda.cuGraphAddMemFreeNode, graph, *behind(after), at)
def nested(depth, mib):
    graph = new_graph()
    allocation(graph, mib)
    for _ in range(depth):
        inner, graph = graph, new_graph()
        child = struct.pack("i12xQi228x", CHILD, inner.value, OWNED_BY_PARENT)
        new(cuda.cuGraphAddNode_v2, graph, None, None, c_size_t(0), child)
    return executable(graph)
def chain(count, mib):
    graph, last = new_graph(), None
    for _ in range(count):
        node, at = allocation(graph, mib, last)
        last = free_node(graph, at, node)
    return executable(graph)
def leaving(mib, flags=0):
    graph = new_graph()
    _, at = allocation(graph, mib)
    return executable(graph, flags), at
def freeing(at):
    graph = new_graph()
    free_node(graph, at)
    return executable(graph)
def free_later(at): return cuda.cuMemFreeAsync(at, stream) or cuda.cuStreamSynchronize(stream)
"#;

/// Asks a client under the limit for these values, with these faults of the driver. Asserts the
/// values, and that the tenant never held more than the limit.
#[track_caller]
fn assert_answers(faults: &str, answers: &[(&str, &str)]) {
    let (host, _daemon) = host().with_daemon();
    let limit = format!("{LIMIT_MIB}MiB");
    let variables = [("DEEPRES_TENANT", "t"), ("DEEPRES_MEMORY", &limit), ("SIMGPU_FAULTS", faults)];
    let mut calls = Calls::start(&host, &variables);
    calls.define(WORK);
    calls.define(GRAPHS);
    for (expression, answer) in answers {
        assert_eq!(calls.asks(expression), *answer, "{expression}");
    }
    assert_within_the_limit(&host);
}

#[track_caller]
fn assert_within_the_limit(host: &Host) {
    let peak_bytes = host.truth().gpus[0].memory_peak_bytes;
    assert!(peak_bytes <= LIMIT_MIB * MIB, "{} MiB were held", peak_bytes / MIB);
}

/// Lets five threads in each of the processes of a tenant launch graphs, free and trim for three
/// seconds. Returns how often each thread had memory, by process.
#[track_caller]
fn race(processes: usize, mib: u64) -> Vec<Vec<u64>> {
    let (host, _daemon) = host().with_daemon();
    let start = |_| {
        let mut command = host.preloaded(c_client("graphs"));
        command.args(["3000", &mib.to_string()]);
        command.env("DEEPRES_TENANT", "t").env("DEEPRES_MEMORY", format!("{LIMIT_MIB}MiB"));
        host.spawn(command)
    };
    let clients: Vec<Process> = (0..processes).map(start).collect();
    let finished: Vec<String> = clients.into_iter().map(|client| client.finish().success().stdout).collect();
    assert_within_the_limit(&host);
    let numbers = |said: &String| said.lines().map(|line| line.parse().expect("a number")).collect();
    finished.iter().map(numbers).collect()
}

#[test]
fn memory_that_the_driver_refuses_a_graph_on_a_full_gpu_is_told() {
    let (host, _daemon) =
        Host::new().simgpu("memory_bytes = 268435456\ncontext_overhead_bytes = 0\n").with_daemon();
    let mut client = Calls::start(&host, &[("DEEPRES_TENANT", "t")]);
    client.define(WORK);
    client.define(GRAPHS);
    assert_eq!(client.asks("launch_graph(nested(0, 300))"), FULL);
    let account = host.status()["tenants"][0]["gpus"][0].clone();
    assert_eq!(account["refusals"], 1, "{account}");
    assert_eq!(account["last_refusal"]["by"], "driver", "{account}");
    assert_eq!(account["last_refusal"]["bytes"], 300 * MIB, "{account}");
}

#[test]
fn a_graph_is_looked_into_however_deep_it_goes() {
    for depth in [0, 1, 8, 9, 12, 100] {
        let launched = |mib: u64| format!("launch_graph(nested({depth}, {mib}))");
        assert_answers("", &[(&launched(402), FULL), (&launched(300), SUCCESS)]);
    }
}

#[test]
fn allocations_that_follow_each_other_are_had_one_after_the_other() {
    for (mib, answer) in [(300, SUCCESS), (402, FULL)] {
        let launched = format!("launch_graph(chain(5, {mib}))");
        assert_answers("", &[(&launched, answer), (&launched, answer)]);
    }
}

/// Three times launches a graph that leaves 300 MiB allocated, with these answers. The memory
/// counts while it is allocated, and no longer once it has been freed and reused. A launch can then
/// allocate memory again that another allocation has freed.
fn assert_leaves(flags: &str, launches: [&str; 3]) {
    let launch = "launch_graph(kept['graph'][0])";
    let made = format!("kept.update(graph=leaving(300, {flags}))");
    let [first, second, third] = launches;
    assert_answers(
        "",
        &[
            (&made, "None"),
            (launch, first),
            (launch, second),
            (launch, third),
            ("linear('over', 300 << 20)", FULL),
            ("free_later(kept['graph'][1])", SUCCESS),
            ("linear('over', 300 << 20)", SUCCESS),
            (launch, FULL),
            ("cuda.cuMemFree_v2(kept['over'])", SUCCESS),
            (launch, SUCCESS),
        ],
    );
}

#[test]
fn a_graph_that_frees_what_it_left_is_launched_again() {
    assert_leaves("FREES_AT_LAUNCH", [SUCCESS; 3]);
}

#[test]
fn a_graph_that_left_something_allocated_is_refused_by_the_driver() {
    assert_leaves("0", [SUCCESS, INVALID_VALUE, INVALID_VALUE]);
}

#[test]
fn a_graph_does_not_count_on_memory_that_another_left() {
    let turns = [("launch_graph(kept['one'][0])", SUCCESS), ("launch_graph(kept['two'][0])", SUCCESS)];
    let made = [
        ("kept.update(one=leaving(200, FREES_AT_LAUNCH), two=leaving(200, FREES_AT_LAUNCH))", "None"),
        ("kept.update(frees=freeing(kept['one'][1]))", "None"),
    ];
    // Another graph frees the first one's memory, and another allocation takes it. The second graph
    // has memory of its own.
    let taken = [
        ("launch_graph(kept['frees'])", SUCCESS),
        ("cuda.cuDeviceGraphMemTrim(0)", SUCCESS),
        ("linear('other', 200 << 20)", SUCCESS),
        ("launch_graph(kept['one'][0])", FULL),
        ("launch_graph(kept['two'][0])", SUCCESS),
    ];
    assert_answers("", &[&made[..], &turns, &turns, &turns, &taken].concat());
}

#[test]
fn a_graph_that_the_driver_does_not_destroy_is_held_to_the_limit_as_before() {
    let faults = [1, 2, 3].map(|call| format!("cuGraphExecDestroy:{call}:999")).join(",");
    let destroy = "cuda.cuGraphExecDestroy(kept['graph'])";
    let launch = "launch_graph(kept['graph'])";
    assert_answers(
        &faults,
        &[
            ("kept.update(graph=chain(1, 300))", "None"),
            ("linear('over', 300 << 20)", SUCCESS),
            (launch, FULL),
            (destroy, "999"),
            (destroy, "999"),
            (destroy, "999"),
            (launch, FULL),
            ("cuda.cuMemFree_v2(kept['over'])", SUCCESS),
            (launch, SUCCESS),
            (destroy, SUCCESS),
        ],
    );
}

#[test]
fn no_race_of_launches_frees_and_trims_passes_the_limit() {
    // Three graphs and the allocations of two threads do not fit together.
    for count in race(1, 130).concat() {
        assert!(count > 0, "everybody has something now and then");
    }
}

#[test]
fn no_race_of_two_processes_with_graphs_passes_the_limit() {
    for counts in race(2, 70) {
        assert!(counts.iter().sum::<u64>() > 0, "each has something now and then: {counts:?}");
    }
}
