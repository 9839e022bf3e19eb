//! Linear memory that one process allocates and another opens. The ledger counts the memory only
//! for the process that allocated it.

use deepres_e2e::prelude::*;

const SHARED_BYTES: u64 = 32 * MIB;
/// Time within which accounts, counters and NVML are up to date.
const SETTLES_WITHIN: Duration = Duration::from_secs(10);
const CUDA_SUCCESS: u64 = 0;
const CUDA_ERROR_INVALID_VALUE: u64 = 1;
const CUDA_ERROR_OUT_OF_MEMORY: u64 = 2;
const CUDA_ERROR_INVALID_HANDLE: u64 = 400;

/// A client that executes orders, one line after another.
struct Client(Orders);

impl Client {
    fn start(host: &Host, tenant: &str, limit_bytes: u64) -> Self {
        let limit = format!("{}MiB", limit_bytes / MIB);
        let options = ["--name", tenant, "--memory", &limit];
        let process = host.spawn(host.run(&options, c_client_by("ipc", Way::ProcAddress), &[]));
        Self(Orders::new(process, 1, |line| format!("{{\"line\":{line},")))
    }

    #[track_caller]
    fn code(&mut self, line: &str) -> u64 {
        self.0.ask_json(line)["code"].as_u64().expect("a code")
    }

    #[track_caller]
    fn read(&mut self) -> String {
        self.0.ask_json("read")["said"].as_str().expect("text").to_owned()
    }

    #[track_caller]
    fn exported(&mut self, bytes: u64) -> String {
        assert_eq!(self.code(&format!("allocate {bytes}")), CUDA_SUCCESS);
        assert_eq!(self.code("write 77"), CUDA_SUCCESS);
        self.0.ask_json("export")["said"].as_str().expect("a handle").to_owned()
    }
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
    let mut exporter = Client::start(&host, "family", LIMIT_BYTES);
    let handle = exporter.exported(SHARED_BYTES);
    let mut opener = Client::start(&host, "family", LIMIT_BYTES);
    assert_eq!(opener.code(&format!("open {handle}")), CUDA_SUCCESS);
    assert_eq!(held(&host, "family"), SHARED_BYTES);
    assert_eq!(opener.read(), "77");
    assert_eq!(opener.code("write 78"), CUDA_SUCCESS);
    assert_eq!(exporter.read(), "78", "it is one memory");

    assert_eq!(
        opener.code(&format!("allocate {SHARED_BYTES}")),
        CUDA_SUCCESS,
        "the rest of the limit is free"
    );
    assert_eq!(opener.code("allocate 1024"), CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(exporter.code("allocate 1024"), CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(opener.code(&format!("open {handle}")), CUDA_SUCCESS, "at the limit too: it takes nothing");
    assert_eq!((held(&host, "family"), really_held(&host)), (LIMIT_BYTES, LIMIT_BYTES));
    await_openings(&host, "family", 2);
    let shown = host.shows(&["ps", "--coverage"]);
    assert!(
        shown.contains("cuIpcOpenMemHandle_v2 called 2 times: device memory that is not charged"),
        "{shown}"
    );
    await_no_drift(&host, "family");

    assert_eq!(opener.code("free"), CUDA_ERROR_INVALID_VALUE, "as without deepres");
    for _ in 0..2 {
        assert_eq!(opener.code("close"), CUDA_SUCCESS);
        assert_eq!(held(&host, "family"), LIMIT_BYTES, "closing gives nothing back");
    }
    assert_eq!(opener.code("close"), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(exporter.code("give_back"), CUDA_SUCCESS);
    assert_eq!((held(&host, "family"), really_held(&host)), (SHARED_BYTES, SHARED_BYTES));
    assert_eq!(opener.code(&format!("open {handle}")), CUDA_ERROR_INVALID_HANDLE, "it is gone");
    assert_eq!(exporter.code(&format!("allocate {SHARED_BYTES}")), CUDA_SUCCESS, "there is room again");
    assert_eq!(exporter.code("give_back"), CUDA_SUCCESS);
    assert_eq!(opener.code("give_back"), CUDA_SUCCESS);
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
    let mut owner = Client::start(&host, "owner", SHARED_BYTES);
    let mut opener = Client::start(&host, "opener", OPENERS_LIMIT_BYTES);
    let handle = owner.exported(SHARED_BYTES);
    assert_eq!(opener.code(&format!("open {handle}")), CUDA_SUCCESS, "more than its limit, but not its own");
    assert_eq!(opener.read(), "77");
    assert_eq!((held(&host, "owner"), held(&host, "opener")), (SHARED_BYTES, 0));
    assert_eq!(opener.code(&format!("allocate {OPENERS_LIMIT_BYTES}")), CUDA_SUCCESS);
    assert_eq!(opener.code("allocate 1024"), CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(owner.code("allocate 1024"), CUDA_ERROR_OUT_OF_MEMORY);
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
    assert_eq!(owner.read(), "77");

    // When the owner is gone, memory that another process has open counts for no tenant.
    let mut opener = Client::start(&host, "opener", OPENERS_LIMIT_BYTES);
    assert_eq!(opener.code(&format!("open {handle}")), CUDA_SUCCESS);
    assert_eq!(opener.code(&format!("allocate {OPENERS_LIMIT_BYTES}")), CUDA_SUCCESS);
    owner.0.process.kill();
    await_gone("owner");
    assert_eq!((held(&host, "opener"), really_held(&host)), (OPENERS_LIMIT_BYTES, OPENERS_LIMIT_BYTES));
    assert_eq!(opener.read(), "77", "it goes on");
    assert_eq!(opener.code("close"), CUDA_SUCCESS);
    assert_eq!(held(&host, "opener"), OPENERS_LIMIT_BYTES);
    assert_eq!(opener.code("give_back"), CUDA_SUCCESS);
    assert_eq!(held(&host, "opener"), 0);
    await_no_drift(&host, "opener");
    opener.0.process.finish().success();
}
