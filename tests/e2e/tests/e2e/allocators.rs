//! Allocators that take all free memory get all of their tenant's part. The clients ask for memory
//! as TensorFlow, JAX and PyTorch do.

use deepres_e2e::prelude::*;

const GPU_BYTES: u64 = 4096 * MIB;
const LIMIT_BYTES: u64 = 1000 * MIB;

fn host() -> Host {
    Host::new().simgpu(&format!("memory_bytes = {GPU_BYTES}\ncontext_overhead_bytes = 0\n"))
}

fn start(host: &Host, name: &str, limit_bytes: u64, way: &str) -> (Process, Value) {
    let limit = limit_bytes.to_string();
    let (client, said) = host.told(host.run(
        &["--name", name, "--memory", &limit],
        c_client_by("allocators", Way::ProcAddress),
        &[way],
    ));
    (client, said)
}

/// Runs a client that takes all the memory it can get. Requires that the client's view, the account
/// and the GPU's record agree.
fn assert_fills_its_part(way: &str, least_bytes: u64) {
    let (host, _daemon) = host().with_daemon();
    let (client, said) = start(&host, "framework", LIMIT_BYTES, way);
    for (key, bytes) in [("free", LIMIT_BYTES), ("info_total", LIMIT_BYTES), ("device_total", LIMIT_BYTES)] {
        assert_eq!(number(&said, key), bytes, "{key}: {said}");
    }
    let got = number(&said, "got");
    assert!((least_bytes..=LIMIT_BYTES).contains(&got), "{said}");
    let truth = host.truth().gpus[0];
    assert_eq!(number(&said, "left"), LIMIT_BYTES - truth.memory_used_bytes, "{said}");
    assert!(truth.memory_peak_bytes <= LIMIT_BYTES, "{truth:?}");
    let tenant = host.ps().tenant("framework").clone();
    assert_eq!(tenant.memory_bytes, truth.memory_used_bytes);
    client.finish().success();
}

#[test]
fn regions_that_grow_fill_the_tenants_part() {
    assert_fills_its_part("grow", LIMIT_BYTES - 8 * MIB);
}

#[test]
fn expandable_segments_fill_the_tenants_part_and_are_mapped_again_after_they_were_given_back() {
    assert_fills_its_part("expandable", LIMIT_BYTES - 20 * MIB);
}

#[test]
fn tenants_that_take_three_quarters_of_what_is_free_do_not_meet() {
    let (host, _daemon) = host().with_daemon();
    let tenants = ["a", "b", "c", "d"].map(|name| start(&host, name, GPU_BYTES / 4, "preallocate"));
    for (_, said) in &tenants {
        assert_eq!(number(said, "got"), GPU_BYTES / 4 * 3 / 4, "{said}");
    }
    for (client, _) in tenants {
        client.finish().success();
    }
}

/// Python source of a client. The client takes all memory that the driver shows as free, prints the
/// results, and makes calls with wrong arguments. Its argument is the number of bytes that it takes
/// first.
const ALL_THAT_IS_FREE: &str = r#"
import ctypes, sys
cuda, here = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
for code in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(here), 0), cuda.cuCtxSetCurrent(here)): assert code == 0, code
def take(bytes): return cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(bytes))
def free():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    return free.value
assert take(int(sys.argv[1])) == 0
print("all", free(), take(free()), flush=True)
nothing, large = ctypes.c_void_p(), ctypes.c_size_t(64 << 20)
print("wrong", take(0), cuda.cuMemAlloc_v2(nothing, large), cuda.cuMemAllocManaged(nothing, large, 1), cuda.cuMemCreate(nothing, large, nothing, 0), take(64 << 20), flush=True)
"#;

#[test]
fn all_that_is_shown_as_free_can_be_had_at_once_and_the_limit_answers_before_the_driver() {
    let (host, _daemon) = host().with_daemon();
    // The limit is no multiple of the blocks in which the driver takes memory.
    let limit = (1001 * MIB - 1000).to_string();
    let first = (3 * MIB).to_string();
    let command = host.run(&["--memory", &limit], "python3", &["-c", ALL_THAT_IS_FREE, &first]);
    let said = host.finish(command).success().stdout;
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines, [&format!("all {} 0", 996 * MIB), "wrong 2 2 2 1 2"]);
}

/// Takes most of the limit from a pool that keeps its memory, gives it back to the pool, and then
/// asks the pool for small pieces. Prints the pool's reserved memory after each piece, MiB.
const SMALL_PIECES: &str = r#"
import ctypes
cuda, here, pool = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
for code in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(here), 0), cuda.cuCtxSetCurrent(here)): assert code == 0, code
assert cuda.cuDeviceGetDefaultMemPool(ctypes.byref(pool), 0) == 0
RELEASE_THRESHOLD, RESERVED = 4, 5
assert cuda.cuMemPoolSetAttribute(pool, RELEASE_THRESHOLD, ctypes.byref(ctypes.c_uint64(2**64 - 1))) == 0
def take(mib):
    at = ctypes.c_uint64()
    assert cuda.cuMemAllocAsync(ctypes.byref(at), ctypes.c_size_t(mib << 20), None) == 0
    return at
large = take(980)
assert cuda.cuMemFreeAsync(large, None) == 0 and cuda.cuCtxSynchronize() == 0
for _ in range(3):
    take(1)
    reserved = ctypes.c_uint64()
    assert cuda.cuMemPoolGetAttribute(pool, RESERVED, ctypes.byref(reserved)) == 0
    print(reserved.value >> 20, flush=True)
"#;

#[test]
fn a_pool_near_the_limit_serves_small_pieces_from_its_spare_memory() {
    let (host, _daemon) = host().with_daemon();
    let options = ["--memory", &LIMIT_BYTES.to_string()];
    let said = host.finish(host.run(&options, "python3", &["-c", SMALL_PIECES])).success().stdout;
    let reserved: Vec<u64> = said.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(reserved.len(), 3, "{said}");
    assert!(reserved.iter().all(|mib| *mib >= 980), "the pool gave its memory back: {reserved:?}");
}
