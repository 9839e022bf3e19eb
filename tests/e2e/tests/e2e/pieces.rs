//! Unusual kinds of memory count by the rule in docs/memory.md. The kinds are pools of host and of
//! managed memory, pools and external memory of another process, and arrays of mapped memory. The
//! account and the GPU's record agree after each step.

use deepres_e2e::calls::Calls;
use deepres_e2e::prelude::*;

const LIMIT_MIB: u64 = 256;
const OUT_OF_MEMORY: &str = "2";

fn start(host: &Host, tenant: &str) -> Calls {
    let limit = format!("{LIMIT_MIB}MiB");
    Calls::start(host, &[("DEEPRES_TENANT", tenant), ("DEEPRES_MEMORY", &limit)])
}

fn host() -> Host {
    Host::new().light_contexts()
}

/// Asserts that a tenant's account has this many MiB of a kind.
#[track_caller]
fn assert_counts(host: &Host, tenant: &str, kind: &str, mib: u64) {
    let account = host.account(tenant);
    assert_eq!(account["memory_by_kind"][kind].as_u64().unwrap_or(0), mib * MIB, "{kind}: {account}");
    assert_eq!(account["memory_bytes"].as_u64(), Some(mib * MIB), "{account}");
}

/// Asserts that a tenant's account has this many MiB of a kind, and that the GPU has given out as
/// much.
#[track_caller]
fn assert_all_counts(host: &Host, tenant: &str, kind: &str, mib: u64) {
    assert_counts(host, tenant, kind, mib);
    assert_taken(host, mib);
}

#[track_caller]
fn assert_taken(host: &Host, mib: u64) {
    assert_eq!(host.truth().gpus[0].memory_used_bytes, mib * MIB);
}

#[test]
fn a_pool_of_the_hosts_memory_counts_for_nothing_and_one_of_managed_memory_for_what_it_has() {
    let (host, _daemon) = host().with_daemon();
    let mut client = start(&host, "t");
    for (name, location) in [("host", "HOST"), ("numa", "HOST_NUMA")] {
        client.does(&format!("pool('{name}', {location})"));
        client.does(&format!("take('{name} memory', '{name}', 1 << 30)"));
        client.does(&format!("write('{name} memory', 7)"));
    }
    assert_all_counts(&host, "t", "pool", 0);
    for (name, location) in [("near", "DEVICE"), ("anywhere", "0")] {
        client.does(&format!("pool('{name}', {location}, kind=MANAGED)"));
        client.does(&format!("take('{name} memory', '{name}', 128 << 20)"));
    }
    assert_counts(&host, "t", "pool", 256);
    assert_taken(&host, 0);
    assert_eq!(client.asks("take('more', 'near', 32 << 20)"), OUT_OF_MEMORY);
    client.does("give('near memory')");
    client.does("give('anywhere memory')");
    assert_counts(&host, "t", "pool", 0);
}

#[test]
fn the_drivers_own_pools_of_managed_memory_and_of_a_part_of_a_devices_count_as_those_that_are_made() {
    /// `CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN`, and the second domain of the first device.
    const PART: &str = "6, 0x100";
    let (host, _daemon) = host().with_daemon();
    for (tenant, asked) in [("first", "False"), ("present", "True")] {
        let mut client = start(&host, tenant);
        client.does(&format!("driver_pool('anywhere', 0, 0, MANAGED, {asked})"));
        client.does(&format!("driver_pool('near', DEVICE, 0, MANAGED, {asked})"));
        client.does(&format!("driver_pool('part', {PART}, PINNED, {asked})"));
        client.does(&format!("pool('own part', {PART})"));
        for name in ["anywhere", "near", "part", "own part"] {
            client.does(&format!("take('{name} memory', '{name}', 64 << 20)"));
        }
        assert_counts(&host, tenant, "pool", 256);
        for name in ["anywhere", "near", "part", "own part"] {
            assert_eq!(client.asks(&format!("take('more', '{name}', 32 << 20)")), OUT_OF_MEMORY, "{name}");
        }
        for name in ["anywhere", "near", "part", "own part"] {
            client.does(&format!("give('{name} memory')"));
        }
        assert_counts(&host, tenant, "pool", 0);
    }
}

#[test]
fn a_pool_that_another_tenant_imports_counts_for_its_owner_alone() {
    let (host, _daemon) = host().with_daemon();
    let (mut owner, mut guest) = (start(&host, "owner"), start(&host, "guest"));
    owner.does("pool('shared', handles=FILE_DESCRIPTOR)");
    owner.does("take('memory', 'shared', 64 << 20)");
    owner.does("write('memory', 7)");
    let descriptor = owner.asks("export_pool('shared')");
    let data = owner.asks("export_pointer('memory')");
    guest.does(&format!("import_pool('pool', {}, {descriptor})", owner.pid()));
    guest.does(&format!("import_pointer('memory', 'pool', '{data}')"));
    assert_eq!(guest.asks("read('memory')"), "7");
    guest.does("write('memory', 8)");
    assert_eq!(owner.asks("read('memory')"), "8");
    assert_counts(&host, "owner", "pool", 64);
    assert_counts(&host, "guest", "pool", 0);
    assert_taken(&host, 64);
    assert_ne!(guest.asks("take('own', 'pool', 1 << 20)"), "0", "an imported pool gives nothing new");
    guest.does("give('memory')");
    assert_counts(&host, "guest", "pool", 0);
    owner.does("give('memory')");
    assert_all_counts(&host, "owner", "pool", 0);
}

#[test]
fn memory_of_a_pool_counts_beyond_the_end_of_its_context_and_of_the_pool() {
    let (host, _daemon) = host().with_daemon();
    let mut client = start(&host, "t");
    client.does("pool('own')");
    client.does("in_a_context_that_ends(lambda: take('memory', 'own', 64 << 20))");
    assert_all_counts(&host, "t", "pool", 64);
    client.does("write('memory', 7)");
    client.does("end_pool('own')");
    client.does("in_a_context_that_ends(lambda: 0)");
    assert_all_counts(&host, "t", "pool", 64);
    assert_eq!(client.asks("read('memory')"), "7");
    client.does("give('memory')");
    // No call asks about a destroyed pool any more. The meter thread sees that the process's work
    // has ended.
    eventually("it counts no more", || host.account("t")["memory_bytes"] == 0);
    assert_all_counts(&host, "t", "pool", 0);
}

#[test]
fn external_memory_counts_where_it_was_made() {
    let (host, _daemon) = host().with_daemon();
    let (mut owner, mut guest) = (start(&host, "owner"), start(&host, "guest"));
    owner.does("physical('memory', 200 << 20)");
    let descriptor = owner.asks("export_physical('memory')");
    let pid = owner.pid();
    guest.does(&format!("external('import', {pid}, {descriptor}, 200 << 20)"));
    guest.does("buffer('all', 'import', 0, 200 << 20)");
    guest.does("buffer('part', 'import', 2 << 20, 4096)");
    guest.does("write('part', 9)");
    guest.does("picture('picture', 'import', 3)");
    // The guest's own limit is still free.
    guest.does("physical('own', 256 << 20)");
    assert_eq!(guest.asks("physical('more', 2 << 20)"), OUT_OF_MEMORY);
    assert_counts(&host, "owner", "physical", 200);
    assert_counts(&host, "guest", "physical", 256);
    assert_taken(&host, 456);
    for name in ["all", "part"] {
        guest.does(&format!("cuda.cuMemFree_v2(kept['{name}'])"));
    }
    guest.does("cuda.cuMipmappedArrayDestroy(kept['picture'])");
    guest.does("cuda.cuDestroyExternalMemory(kept['import'])");
    guest.does("release('own')");
    assert_counts(&host, "guest", "physical", 0);
    assert_counts(&host, "owner", "physical", 200);
}

#[test]
fn an_array_that_memory_is_mapped_into_later_counts_for_that_as_long_as_it_is_there() {
    let (host, _daemon) = host().with_daemon();
    let mut client = start(&host, "t");
    client.does("array('deferred', DEFERRED)");
    client.does("array('sparse', SPARSE)");
    client.does("mipmapped('levels', SPARSE, 4)");
    assert_counts(&host, "t", "array", 0);
    assert_eq!(client.asks("requirements('deferred')"), (4 * MIB).to_string());
    for (number, name) in ["deferred", "sparse", "levels"].into_iter().enumerate() {
        let resource = if name == "levels" { "MIPMAPPED" } else { "ARRAY" };
        client.does("physical('left', 4 << 20)");
        client.does("physical('right', 4 << 20)");
        client.does(&format!("box({resource}, '{name}', 0, 512, 'left')"));
        client.does(&format!("box({resource}, '{name}', 512, 512, 'right')"));
        client.does("release('left')");
        client.does("release('right')");
        // The handles are gone, and the memory is still there because it is mapped.
        assert_all_counts(&host, "t", "physical", 4 * number as u64 + 8);
        client.does(&format!("box({resource}, '{name}', 0, 512)"));
        assert_all_counts(&host, "t", "physical", 4 * number as u64 + 4);
    }
    client.does("cuda.cuArrayDestroy(kept['deferred'])");
    client.does("cuda.cuMipmappedArrayDestroy(kept['levels'])");
    assert_all_counts(&host, "t", "physical", 4);
    // The rest ends with the context.
    client.does("cuda.cuCtxDestroy_v2(context())");
    assert_all_counts(&host, "t", "physical", 0);
}

#[test]
fn memory_mapped_into_an_array_at_once_and_unmapped_by_parts_counts_until_the_array_ends() {
    let (host, _daemon) = host().with_daemon();
    let mut client = start(&host, "t");
    client.does("array('sparse', SPARSE)");
    client.does("physical('all', 8 << 20)");
    client.does("box(ARRAY, 'sparse', 0, 1024, 'all')");
    client.does("release('all')");
    for (x, width) in [(0, 256), (512, 512), (0, 256)] {
        client.does(&format!("box(ARRAY, 'sparse', {x}, {width})"));
        assert_all_counts(&host, "t", "physical", 8);
    }
    client.does("cuda.cuArrayDestroy(kept['sparse'])");
    assert_all_counts(&host, "t", "physical", 0);
}

/// Requests that no driver grants, however much memory is free.
const WRONG: [&str; 14] = [
    "cuda.cuMemAllocAsync(byref(c_uint64()), c_size_t(1 << 30), c_void_p(0x12340))",
    "cuda.cuMemAllocFromPoolAsync(byref(c_uint64()), c_size_t(1 << 30), c_void_p(0x12340), None)",
    "on_a_dead_context(lambda: cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(1 << 30)))",
    "on_a_dead_context(lambda: cuda.cuMemAllocAsync(byref(c_uint64()), c_size_t(1 << 30), None))",
    "on_a_dead_context(lambda: cuda.cuMemAllocManaged(byref(c_uint64()), c_size_t(1 << 30), 1))",
    "cuda.cuMemAllocManaged(byref(c_uint64()), c_size_t(1 << 30), 0)",
    "cuda.cuMemAllocPitch_v2(byref(c_uint64()), byref(c_size_t()), c_size_t(1 << 20), c_size_t(1 << 10), 3)",
    "physical('odd', (1 << 30) + 1)",
    "cuda.cuMemCreate(byref(c_uint64()), c_size_t(1 << 30), struct.pack('iiiiQ8x', 7, 0, DEVICE, 0, 0), c_uint64(0))",
    "cuda.cuMemCreate(byref(c_uint64()), c_size_t(1 << 30), struct.pack('iiiiQ8x', 1, 0, DEVICE, 99, 0), c_uint64(0))",
    "cuda.cuArray3DCreate_v2(byref(c_void_p()), struct.pack('QQQIII4x', 1 << 15, 1 << 15, 0, FLOAT, 5, 0))",
    "cuda.cuArray3DCreate_v2(byref(c_void_p()), struct.pack('QQQIII4x', 1 << 15, 1 << 15, 0, FLOAT, 3, 0))",
    "cuda.cuArray3DCreate_v2(byref(c_void_p()), struct.pack('QQQIII4x', 1 << 63, 1 << 15, 0, FLOAT, 1, 0))",
    "cuda.cuArray3DCreate_v2(byref(c_void_p()), struct.pack('QQQIII4x', 0, 1 << 15, 1 << 15, FLOAT, 1, 0))",
];

#[test]
fn a_wrong_request_at_the_limit_fails_and_leaves_nothing_behind() {
    let (host, _daemon) = host().with_daemon();
    let mut bare = Calls::run(&host, host.command("python3"), "");
    bare.does("start()");
    let mut full = start(&host, "t");
    full.does("cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(256 << 20))");
    assert_eq!(full.asks("cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(1))"), OUT_OF_MEMORY);
    for wrong in WRONG {
        let expected = bare.asks(wrong);
        assert!(!["0", OUT_OF_MEMORY].contains(&expected.as_str()), "{wrong}: {expected}");
        let said = full.asks(wrong);
        assert!([&expected, OUT_OF_MEMORY].contains(&said.as_str()), "{wrong}: {said}");
    }
    assert_counts(&host, "t", "linear", 256);
}
