//! Linear memory that one process allocates and another opens. The ledger counts the memory only
//! for the process that allocated it.

use deepres_e2e::calls::Calls;
use deepres_e2e::prelude::*;

const SHARED_BYTES: u64 = 32 * MIB;
/// Time within which accounts, counters and NVML are up to date.
const SETTLES_WITHIN: Duration = Duration::from_secs(10);
const CUDA_ERROR_INVALID_VALUE: &str = "1";
const CUDA_ERROR_OUT_OF_MEMORY: &str = "2";
const CUDA_ERROR_INVALID_HANDLE: &str = "400";

/// Functions that export memory to other processes and open it.
const SHARING: &str = r#"
LAZY_PEER_ACCESS = 1
class Handle(ctypes.Structure): _fields_ = [("words", c_uint64 * 8)]
def export(name):
    handle = Handle()
    must(cuda.cuIpcGetMemHandle(byref(handle), kept[name]))
    return bytes(handle).hex()
def open_memory(data):
    kept["opened"] = c_uint64()
    return cuda.cuIpcOpenMemHandle_v2(byref(kept["opened"]), Handle.from_buffer_copy(bytes.fromhex(data)), LAZY_PEER_ACCESS)
def close_memory(): return cuda.cuIpcCloseMemHandle(kept["opened"])
def free(name): return cuda.cuMemFree_v2(kept[name])
"#;

fn start(host: &Host, tenant: &str, limit_bytes: u64) -> Calls {
    let limit = limit_bytes.to_string();
    let mut client = Calls::start(host, &[("DEEPRES_TENANT", tenant), ("DEEPRES_MEMORY", &limit)]);
    client.define(SHARING);
    client
}

/// Allocates `memory` and writes 77 to it. Returns a handle for other processes.
#[track_caller]
fn exported(client: &mut Calls, bytes: u64) -> String {
    client.does(&format!("linear('memory', {bytes})"));
    client.does("write('memory', 77)");
    client.asks("export('memory')")
}

fn held(host: &Host, tenant: &str) -> u64 {
    host.ps().tenant(tenant).memory_bytes
}

/// Returns the memory held on the simulated GPU, bytes.
fn really_held(host: &Host) -> u64 {
    host.truth().gpus[0].memory_used_bytes
}

/// Returns how often processes of a tenant opened memory of other processes, by `ps --coverage`.
fn openings(host: &Host, tenant: &str) -> u64 {
    let processes = host.json(&["ps", "--coverage", "--json"]);
    let own = processes.as_array().into_iter().flatten().filter(|process| process["tenant"] == tenant);
    let calls = own.flat_map(|process| process["unaccounted"].as_array().into_iter().flatten());
    calls
        .filter(|call| call["function"] == "cuIpcOpenMemHandle_v2")
        .filter_map(|call| call["calls"].as_u64())
        .sum()
}

#[track_caller]
fn await_openings(host: &Host, tenant: &str, wanted: u64) {
    await_value_within(|| openings(host, tenant), |openings| *openings == wanted, SETTLES_WITHIN);
}

/// Waits until a tenant's account agrees with NVML. Asserts that the sum over its kinds agrees with
/// its total.
#[track_caller]
fn await_no_drift(host: &Host, tenant: &str) {
    let account = || {
        let account = host.account(tenant);
        assert_eq!(account["kinds_drift_bytes"], 0, "{account}");
        account
    };
    await_value_within(account, |account| account["drift_bytes"] == 0, SETTLES_WITHIN);
}

#[test]
fn memory_that_processes_of_one_tenant_share_counts_once() {
    const LIMIT_BYTES: u64 = 2 * SHARED_BYTES;
    let (host, _daemon) = Host::new().light_contexts().with_daemon();
    let mut exporter = start(&host, "family", LIMIT_BYTES);
    let handle = exported(&mut exporter, SHARED_BYTES);
    let open = format!("open_memory('{handle}')");
    let mut opener = start(&host, "family", LIMIT_BYTES);
    opener.does(&open);
    assert_eq!(held(&host, "family"), SHARED_BYTES);
    assert_eq!(opener.asks("read('opened')"), "77");
    opener.does("write('opened', 78)");
    assert_eq!(exporter.asks("read('memory')"), "78", "it is one memory");

    // The rest of the limit is free.
    opener.does(&format!("linear('rest', {SHARED_BYTES})"));
    assert_eq!(opener.asks("linear('more', 1024)"), CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(exporter.asks("linear('more', 1024)"), CUDA_ERROR_OUT_OF_MEMORY);
    // At the limit too, opening takes nothing.
    opener.does(&open);
    assert_eq!((held(&host, "family"), really_held(&host)), (LIMIT_BYTES, LIMIT_BYTES));
    await_openings(&host, "family", 2);
    let shown = host.shows(&["ps", "--coverage"]);
    assert!(
        shown.contains("cuIpcOpenMemHandle_v2 called 2 times: device memory that is not charged"),
        "{shown}"
    );
    await_no_drift(&host, "family");

    assert_eq!(opener.asks("free('opened')"), CUDA_ERROR_INVALID_VALUE, "as without deepres");
    for _ in 0..2 {
        opener.does("close_memory()");
        assert_eq!(held(&host, "family"), LIMIT_BYTES, "closing gives nothing back");
    }
    assert_eq!(opener.asks("close_memory()"), CUDA_ERROR_INVALID_VALUE);
    exporter.does("free('memory')");
    assert_eq!((held(&host, "family"), really_held(&host)), (SHARED_BYTES, SHARED_BYTES));
    assert_eq!(opener.asks(&open), CUDA_ERROR_INVALID_HANDLE, "it is gone");
    // There is room again.
    exporter.does(&format!("linear('memory', {SHARED_BYTES})"));
    exporter.does("free('memory')");
    opener.does("free('rest')");
    assert_eq!((held(&host, "family"), really_held(&host)), (0, 0));
    await_no_drift(&host, "family");
    for client in [exporter, opener] {
        client.0.process.finish().success();
    }
}

#[test]
fn memory_that_another_tenant_opens_counts_for_its_owner() {
    const OPENERS_LIMIT_BYTES: u64 = SHARED_BYTES / 2;
    let (host, _daemon) = Host::new().light_contexts().with_daemon();
    let mut owner = start(&host, "owner", SHARED_BYTES);
    let mut opener = start(&host, "opener", OPENERS_LIMIT_BYTES);
    let handle = exported(&mut owner, SHARED_BYTES);
    let open = format!("open_memory('{handle}')");
    let take_all = format!("linear('own', {OPENERS_LIMIT_BYTES})");
    // The memory is more than the opener's limit, but not its own.
    opener.does(&open);
    assert_eq!(opener.asks("read('opened')"), "77");
    assert_eq!((held(&host, "owner"), held(&host, "opener")), (SHARED_BYTES, 0));
    opener.does(&take_all);
    assert_eq!(opener.asks("linear('more', 1024)"), CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(owner.asks("linear('more', 1024)"), CUDA_ERROR_OUT_OF_MEMORY);
    await_openings(&host, "opener", 1);
    assert_eq!(openings(&host, "owner"), 0);
    await_no_drift(&host, "owner");
    await_no_drift(&host, "opener");

    // When the opener is gone, the owner still has all its memory.
    opener.0.process.kill();
    let await_gone = |name: &str| {
        let holds_nothing = |ps: &Ps| ps.find(name).is_none_or(|tenant| tenant.memory_bytes == 0);
        host.await_ps_within(holds_nothing, SETTLES_WITHIN);
    };
    await_gone("opener");
    assert_eq!(held(&host, "owner"), SHARED_BYTES);
    assert_eq!(owner.asks("read('memory')"), "77");

    // When the owner is gone, memory that another process has open counts for no tenant.
    let mut opener = start(&host, "opener", OPENERS_LIMIT_BYTES);
    opener.does(&open);
    opener.does(&take_all);
    owner.0.process.kill();
    await_gone("owner");
    assert_eq!((held(&host, "opener"), really_held(&host)), (OPENERS_LIMIT_BYTES, OPENERS_LIMIT_BYTES));
    assert_eq!(opener.asks("read('opened')"), "77", "it goes on");
    opener.does("close_memory()");
    assert_eq!(held(&host, "opener"), OPENERS_LIMIT_BYTES);
    opener.does("free('own')");
    assert_eq!(held(&host, "opener"), 0);
    await_no_drift(&host, "opener");
    opener.0.process.finish().success();
}
