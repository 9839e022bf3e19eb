//! The parts of the status that the page shows. Each figure has the name that the status declares.

use deepres_model::admin::{AccountStatus, Declared, GpuStatus, Status, TenantStatus};
use serde_json::{Map, Value, json};

const GPU: [&str; 9] = [
    "index",
    "uuid",
    "name",
    "memory_bytes",
    "phase",
    "holder",
    "handoffs",
    "handoff_p99_ns",
    "fairness_ppm",
];
const TENANT: [&str; 8] =
    ["name", "uid", "class", "paused", "suspended", "asked_share_ppm", "memory_limit_bytes", "oversubscribe"];
const ACCOUNT: [&str; 14] = [
    "gpu",
    "entitled_ppm",
    "is_lent",
    "recent_share_ppm",
    "gpu_ns",
    "wait_ns",
    "waits",
    "kernel_launches",
    "graph_launches",
    "memory_bytes",
    "memory_by_kind",
    "refusals",
    "gate",
    "requests",
];
/// The most processes of a tenant that the page lists.
const MOST_PROCESSES: usize = 5;
/// The most unmanaged processes that the page lists.
const MOST_UNMANAGED: usize = 20;

/// Returns the figures of a status.
pub fn of(status: &Status) -> Value {
    let tenants = status.tenants.iter().map(|tenant| {
        let mut figures = picked::<TenantStatus>(tenant, &TENANT);
        let processes = tenant.sessions.iter().take(MOST_PROCESSES);
        let processes: Vec<Value> =
            processes.map(|session| json!({ "pid": session.pid, "client": session.client })).collect();
        let gpus: Vec<Map<String, Value>> =
            tenant.gpus.iter().map(|account| picked::<AccountStatus>(account, &ACCOUNT)).collect();
        figures.insert("processes".to_owned(), json!(processes));
        figures.insert("sessions".to_owned(), json!(tenant.sessions.len()));
        figures.insert("gpus".to_owned(), json!(gpus));
        figures
    });
    let unmanaged = status.unmanaged.iter().take(MOST_UNMANAGED);
    let unmanaged = unmanaged.map(|process| {
        json!({ "pid": process.pid, "uid": process.uid, "command": process.command, "state": process.state })
    });
    json!({
        "now_ns": status.now_ns,
        "version": status.daemon.version,
        "gpus": status.gpus.iter().map(|gpu| picked::<GpuStatus>(gpu, &GPU)).collect::<Vec<_>>(),
        "tenants": tenants.collect::<Vec<_>>(),
        "waiting": status.waiting.len(),
        "unmanaged": unmanaged.collect::<Vec<_>>(),
        "unmanaged_count": status.unmanaged.len(),
    })
}

/// Returns the fields of these names.
fn picked<T: Declared>(of: &T, fields: &[&str]) -> Map<String, Value> {
    match serde_json::to_value(of) {
        Ok(Value::Object(mut all)) => {
            all.retain(|name, _| fields.contains(&name.as_str()));
            all
        }
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_shows_figures_that_the_status_declares() {
        fn is_declared<T: Declared>(names: &[&str]) -> bool {
            names.iter().all(|name| T::FIELDS.iter().any(|field| field.name == *name))
        }
        assert!(is_declared::<GpuStatus>(&GPU) && is_declared::<TenantStatus>(&TENANT));
        assert!(is_declared::<AccountStatus>(&ACCOUNT));
        let tenant = TenantStatus { gpus: vec![AccountStatus::default()], ..TenantStatus::default() };
        let status = Status { tenants: vec![tenant], ..Status::default() };
        let told = of(&status);
        assert_eq!(told["tenants"][0]["gpus"][0].as_object().unwrap().len(), ACCOUNT.len());
    }
}
