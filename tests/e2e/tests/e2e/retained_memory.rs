//! Memory that the driver keeps after objects were freed also counts: shared blocks, pools, rows of
//! arrays, memory of graphs. The account and the GPU's record agree at every stage.

use deepres_e2e::calls::{Calls, WORK};
use deepres_e2e::prelude::*;

const LIMIT_BYTES: u64 = 400 * MIB;
const OUT_OF_MEMORY: &str = "2";

/// A client under the limit, and the host on which its memory counts.
struct Keeper {
    host: Host,
    _daemon: Process,
    calls: Calls,
}

impl Keeper {
    fn start() -> Self {
        // Contexts take no memory, so the GPU's record contains allocations alone.
        let (host, daemon) = Host::new().light_contexts().with_daemon();
        let limit = LIMIT_BYTES.to_string();
        let mut calls = Calls::start(&host, &[("DEEPRES_TENANT", "keeper"), ("DEEPRES_MEMORY", &limit)]);
        calls.define(WORK);
        Self { host, _daemon: daemon, calls }
    }

    #[track_caller]
    fn does(&mut self, expression: &str) {
        self.calls.does(expression);
    }

    #[track_caller]
    fn assert_full(&mut self, expression: &str) {
        assert_eq!(self.calls.asks(expression), OUT_OF_MEMORY, "{expression}");
    }

    /// Asserts that all of these calls succeed.
    #[track_caller]
    fn do_all(&mut self, expressions: &str) {
        assert_eq!(self.calls.asks(&format!("any({expressions})")), "False", "{expressions}");
    }

    /// Asserts that the account has this many MiB of a kind, and agrees with the GPU's record.
    #[track_caller]
    fn assert_counts(&self, kind: &str, mib: u64) {
        let account = self.host.account("keeper");
        let truth = self.host.truth().gpus[0];
        assert_eq!(account["memory_by_kind"][kind].as_u64().unwrap_or(0), mib * MIB, "{account}");
        assert_eq!(account["memory_bytes"].as_u64(), Some(truth.memory_used_bytes), "{account}");
        assert!(truth.memory_peak_bytes <= LIMIT_BYTES, "{truth:?}");
    }

    /// Makes a call that succeeds, and asserts the same as [`Self::assert_counts`].
    #[track_caller]
    fn comes_to_count(&mut self, expression: &str, kind: &str, mib: u64) {
        self.does(expression);
        self.assert_counts(kind, mib);
    }
}

#[test]
fn small_allocations_count_for_the_blocks_that_they_share() {
    let mut keeper = Keeper::start();
    keeper.do_all("linear(i, 512) for i in range(5000)");
    keeper.assert_counts("linear", 4);
    // One allocation is left in the first block, and one in the last.
    keeper.do_all("cuda.cuMemFree_v2(kept[i]) for i in range(1, 4999)");
    keeper.assert_counts("linear", 4);
    keeper.do_all("cuda.cuMemFree_v2(kept[i]) for i in (0, 4999)");
    keeper.assert_counts("linear", 0);
}

#[test]
fn a_small_allocation_that_fits_beside_others_is_given_at_the_limit_and_not_a_byte_more() {
    let mut keeper = Keeper::start();
    keeper.does("linear('one', 512)");
    keeper.does("linear('rest', 398 << 20)");
    keeper.does("linear('another', 1 << 20)");
    keeper.does("linear('small', (1 << 20) - 512)");
    keeper.assert_full("linear('large', 512)");
    keeper.assert_counts("linear", 400);
    keeper.do_all("cuda.cuMemFree_v2(kept[name]) for name in ('rest', 'one', 'another', 'small')");
    keeper.assert_counts("linear", 0);
}

#[test]
fn an_array_counts_for_its_rows_however_short_they_are() {
    let mut keeper = Keeper::start();
    // The array has 65,535 rows of one number. Each row begins at a multiple of the pitch.
    keeper.comes_to_count(
        "cuda.cuArrayCreate_v2(byref(c_void_p()), struct.pack('QQII', 1, 65535, 3, 1))",
        "array",
        32,
    );
}

#[test]
fn a_pool_counts_for_what_it_keeps_and_gives_it_back_before_anything_is_refused() {
    let mut keeper = Keeper::start();
    keeper.does("pool('own')");
    // By this attribute, the pool keeps all memory that is freed.
    keeper.does("cuda.cuMemPoolSetAttribute(kept['own'], 4, byref(c_uint64(2**64 - 1)))");
    keeper.comes_to_count("take('memory', 'own', 100 << 20)", "pool", 100);
    keeper.comes_to_count("give('memory')", "pool", 100);
    // Other allocations can have all of the pool's spare memory.
    keeper.comes_to_count("linear('other', 400 << 20)", "pool", 0);
    keeper.does("cuda.cuMemFree_v2(kept['other'])");
    keeper.does("take('memory', 'own', 40 << 20)");
    // At the limit, the pool itself can still allocate its spare memory.
    keeper.does("cuda.cuMemFreeAsync(kept['memory'], None)");
    keeper.does("take('memory', 'own', 10 << 20)");
    keeper.does("linear('other', 360 << 20)");
    keeper.does("take('spare', 'own', 20 << 20)");
    keeper.assert_full("take('more', 'own', 20 << 20)");
    keeper.assert_counts("pool", 40);
    keeper.does("cuda.cuMemFree_v2(kept['other'])");
    keeper.comes_to_count("end_pool('own')", "pool", 40);
    keeper.does("give('memory')");
    keeper.comes_to_count("give('spare')", "pool", 0);
}

#[test]
fn a_destroyed_pool_counts_until_the_stream_has_come_to_the_end_of_its_memory() {
    const POOLED_BYTES: u64 = 128 * MIB;
    let (host, _daemon) = Host::new().with_daemon();
    let mut client = Calls::start(&host, &[("DEEPRES_TENANT", "ends"), ("DEEPRES_MEMORY", "2GiB")]);
    client.define(WORK);
    client.define(
        "def free_bytes():\n\
         \x20free = c_size_t()\n\
         \x20must(cuda.cuMemGetInfo_v2(byref(free), byref(c_size_t())))\n\
         \x20return free.value\n\
         busy, quick, other = kernel('busy_20000us'), kernel('quick'), new(cuda.cuStreamCreate, NON_BLOCKING)",
    );
    let free_bytes = |client: &mut Calls| client.asks("free_bytes()").parse::<u64>().expect("a number");
    let before = free_bytes(&mut client);
    client.does("pool('own')");
    client.define("kept['memory'] = c_uint64()");
    client.does(&format!(
        "cuda.cuMemAllocFromPoolAsync(byref(kept['memory']), c_size_t({POOLED_BYTES}), kept['own'], stream)"
    ));
    // The memory waits to be freed behind half a second of kernels.
    assert_eq!(client.asks("any(launch(busy, stream) for _ in range(25))"), "False");
    client.does("cuda.cuMemFreeAsync(kept['memory'], stream)");
    client.does("end_pool('own')");
    client.does("launch(quick, other) or cuda.cuStreamSynchronize(other)");
    assert!(free_bytes(&mut client) + POOLED_BYTES <= before);
    client.does("cuda.cuStreamSynchronize(stream)");
    await_value(|| free_bytes(&mut client), |free| *free == before);
}

#[test]
fn captured_memory_counts_from_the_upload_or_launch_on_until_it_is_trimmed() {
    let mut keeper = Keeper::start();
    // Instantiates a graph with an upload, and returns the driver's code and its reason.
    keeper.calls.define(
        "graph = captured(50 << 20)\n\
         first, second = executable(graph), c_void_p()\n\
         trim = lambda: cuda.cuDeviceGraphMemTrim(0)\n\
         def uploaded():\n\
         \x20UPLOAD = 2\n\
         \x20params = ctypes.create_string_buffer(struct.pack('QQQi4x', UPLOAD, stream.value, 0, 0))\n\
         \x20code = cuda.cuGraphInstantiateWithParams(byref(second), graph, params)\n\
         \x20return f\"{code} {struct.unpack_from('i', params, 24)[0]}\"",
    );
    keeper.assert_counts("graph", 0);
    keeper.do_all("launch_graph(first) for _ in range(3)");
    keeper.assert_counts("graph", 50);
    // A pool can take the memory that graphs keep, and graphs can take it again afterwards.
    keeper.calls.define("other = c_uint64()");
    keeper.comes_to_count("cuda.cuMemAllocAsync(byref(other), c_size_t(380 << 20), stream)", "graph", 0);
    keeper.does("cuda.cuMemFreeAsync(other, stream) or cuda.cuStreamSynchronize(stream)");
    keeper.comes_to_count("launch_graph(first)", "graph", 50);
    keeper.comes_to_count("trim()", "graph", 0);
    // An upload takes the memory of the next launch.
    keeper.comes_to_count("cuda.cuGraphUpload(first, stream)", "graph", 50);
    keeper.comes_to_count("launch_graph(first)", "graph", 50);
    keeper.does("trim()");
    assert_eq!(keeper.calls.asks("uploaded()"), "0 0");
    keeper.assert_counts("graph", 50);
    keeper.does("trim()");
    // Now the graph has no room any more.
    keeper.does("linear('other', 360 << 20)");
    keeper.assert_full("cuda.cuGraphUpload(first, stream)");
    keeper.assert_full("launch_graph(first)");
    assert_eq!(keeper.calls.asks("uploaded()"), format!("{OUT_OF_MEMORY} 1"));
    keeper.assert_counts("graph", 0);
    keeper.does("cuda.cuMemFree_v2(kept['other'])");
    keeper.comes_to_count("cuda.cuGraphExecDestroy(first)", "graph", 0);
}
