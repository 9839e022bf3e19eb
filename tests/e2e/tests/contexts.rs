//! Contexts that are made at the same time: by threads of a process, by many processes, on several GPUs. Each counts, and none is waited for that is another's matter.

use std::path::Path;

use deepres_e2e::{
    Host, Process,
    clients::{Way, c_client, c_library},
    host::COMMAND_LIMIT,
};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const CONTEXT_MIB: u64 = 100;
const TENANT: &str = "t";

fn host() -> Host {
    let bytes = CONTEXT_MIB * MIB;
    Host::new().simgpu(&format!("memory_bytes = 17179869184\ncontext_overhead_bytes = {bytes}\n"))
}

/// A daemon to which NVML answers later by so many milliseconds.
fn daemon_of_slow_nvml(host: &Host, ms: &str) -> Process {
    host.daemon_with(&[("LD_PRELOAD", &c_library("slow_nvml")), ("NVML_MS", Path::new(ms))])
}

/// What the tenant has on its first GPU.
fn account(host: &Host) -> Value {
    let ps: Value =
        serde_json::from_str(&host.finish(host.deepres(&["ps", "--json"])).success().stdout).expect("JSON");
    ps["tenants"][0]["gpus"][0].clone()
}

fn contexts_mib(host: &Host) -> u64 {
    account(host)["memory_by_kind"]["context"].as_u64().unwrap_or(0) / MIB
}

/// A process that makes contexts when it is told.
fn maker(host: &Host) -> Process {
    let mut command = host.preloaded(c_client("overheads", Way::Dlsym));
    command.env("DEEPRES_TENANT", TENANT);
    host.spawn(command)
}

#[test]
fn contexts_of_many_processes_that_begin_at_once_all_count() {
    const PROCESSES: u64 = 40;
    let host = host();
    let _daemon = daemon_of_slow_nvml(&host, "100");
    let mut makers: Vec<Process> = (0..PROCESSES).map(|_| maker(&host)).collect();
    makers.iter_mut().for_each(|maker| maker.say("create 0 0"));
    for maker in &mut makers {
        maker.await_line(|line| line == "0 0", COMMAND_LIMIT);
    }
    host.await_ps(
        |ps| ps.find(TENANT).is_some_and(|tenant| tenant.memory_bytes == PROCESSES * CONTEXT_MIB * MIB),
        COMMAND_LIMIT,
    );
    assert_eq!(contexts_mib(&host), PROCESSES * CONTEXT_MIB);
}
