//! Allocators that take all free memory get all of their tenant's part. The clients ask for memory
//! as TensorFlow, JAX and PyTorch do.

use deepres_e2e::calls::Calls;
use deepres_e2e::prelude::*;

const GPU_BYTES: u64 = 4096 * MIB;
const LIMIT_BYTES: u64 = 1000 * MIB;

/// Functions that take memory as frameworks do, and return its size. The allocators take all memory
/// that there is, except for `preallocate`.
const FRAMEWORKS: &str = r#"
must(start())
def view():
    """Returns the memory that the driver shows: free, in all, and of the device."""
    free, total, device = c_size_t(), c_size_t(), c_size_t()
    must(cuda.cuMemGetInfo_v2(byref(free), byref(total)) or cuda.cuDeviceTotalMem_v2(byref(device), 0))
    return free.value, total.value, device.value
def is_given(code):
    if code != 2: must(code)
    return code == 0
def grow():
    """Takes regions like TensorFlow's allocator with memory growth. Each region is twice as large as
    the last one. If there is no such region, the allocator asks for nine tenths, again and again."""
    taken, following = 0, 2 << 20
    while True:
        size = following
        while not is_given(linear("region", size)):
            size = -(-int(size * .9) // 256) * 256
            if size < 2 << 20: return taken
        taken += size
        if size == following: following *= 2
def preallocate():
    """Takes three quarters of the free memory at once, like JAX's allocator."""
    size = view()[0] * 3 // 4
    must(linear("region", size))
    return size
def expandable():
    """Maps pieces into one range of addresses, like PyTorch's allocator with expandable segments. Unmaps
    the half that came last, and maps pieces there again."""
    PIECE, taken, base = 20 << 20, 0, c_uint64()
    whole = view()[2] * 9 // 8 // PIECE * PIECE
    properties, access = struct.pack("iiiiQ8x", PINNED, 0, DEVICE, 0, 0), struct.pack("iii", DEVICE, 0, 3)
    must(cuda.cuMemAddressReserve(byref(base), c_size_t(whole), c_size_t(0), c_uint64(0), c_uint64(0)))
    at = lambda offset: c_uint64(base.value + offset)
    for is_again in False, True:
        piece = c_uint64()
        while taken < whole and is_given(cuda.cuMemCreate(byref(piece), c_size_t(PIECE), properties, c_uint64(0))):
            must(cuda.cuMemMap(at(taken), c_size_t(PIECE), c_size_t(0), piece, c_uint64(0)))
            must(cuda.cuMemSetAccess(at(taken), c_size_t(PIECE), access, c_size_t(1)) or cuda.cuMemRelease(piece))
            taken += PIECE
        if is_again: return taken
        kept = taken // PIECE // 2 * PIECE
        must(cuda.cuMemUnmap(at(kept), c_size_t(taken - kept)))
        taken = kept
"#;

fn host() -> Host {
    Host::new().simgpu(&format!("memory_bytes = {GPU_BYTES}\ncontext_overhead_bytes = 0\n"))
}

fn start(host: &Host, name: &str, limit_bytes: u64) -> Calls {
    let options = ["--name", name, "--memory", &limit_bytes.to_string()];
    Calls::run(host, host.run(&options, "python3", &[]), FRAMEWORKS)
}

/// Runs a client that takes all the memory it can get. Requires that the client's view, the account
/// and the GPU's record agree.
#[track_caller]
fn assert_fills_its_part(way: &str, least_bytes: u64) {
    let (host, _daemon) = host().with_daemon();
    let mut client = start(&host, "framework", LIMIT_BYTES);
    assert_eq!(client.asks("view()"), format!("({LIMIT_BYTES}, {LIMIT_BYTES}, {LIMIT_BYTES})"));
    let taken: u64 = client.asks(way).parse().expect("a number");
    assert!((least_bytes..=LIMIT_BYTES).contains(&taken), "{taken}");
    let truth = host.truth().gpus[0];
    assert_eq!(client.asks("view()[0]"), (LIMIT_BYTES - truth.memory_used_bytes).to_string());
    assert!(truth.memory_peak_bytes <= LIMIT_BYTES, "{truth:?}");
    assert_eq!(host.ps().tenant("framework").memory_bytes, truth.memory_used_bytes);
    client.0.process.finish().success();
}

#[test]
fn regions_that_grow_fill_the_tenants_part() {
    assert_fills_its_part("grow()", LIMIT_BYTES - 8 * MIB);
}

#[test]
fn expandable_segments_fill_the_tenants_part_and_are_mapped_again_after_they_were_given_back() {
    assert_fills_its_part("expandable()", LIMIT_BYTES - 20 * MIB);
}

#[test]
fn tenants_that_take_three_quarters_of_what_is_free_do_not_meet() {
    let (host, _daemon) = host().with_daemon();
    let mut tenants = ["a", "b", "c", "d"].map(|name| start(&host, name, GPU_BYTES / 4));
    for client in &mut tenants {
        assert_eq!(client.asks("preallocate()"), (GPU_BYTES / 4 * 3 / 4).to_string());
    }
}

#[test]
fn all_that_is_shown_as_free_can_be_had_at_once_and_the_limit_answers_before_the_driver() {
    let (host, _daemon) = host().with_daemon();
    // The limit is no multiple of the blocks in which the driver takes memory.
    let mut client = start(&host, "all", 1001 * MIB - 1000);
    client.does("linear('first', 3 << 20)");
    assert_eq!(client.asks("view()[0]"), (996 * MIB).to_string());
    client.does("linear('all', view()[0])");
    for (wrong, code) in [
        ("linear('none', 0)", "2"),
        ("cuda.cuMemAlloc_v2(None, c_size_t(64 << 20))", "2"),
        ("cuda.cuMemAllocManaged(None, c_size_t(64 << 20), 1)", "2"),
        ("cuda.cuMemCreate(None, c_size_t(64 << 20), None, c_uint64(0))", "1"),
        ("linear('more', 64 << 20)", "2"),
    ] {
        assert_eq!(client.asks(wrong), code, "{wrong}");
    }
}

/// Takes most of the limit from a pool that keeps its memory, and gives it back. Then asks the pool
/// for small pieces. Prints the pool's reserved memory after each piece, MiB.
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
