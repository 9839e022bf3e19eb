//! Every second: what NVML says that each tenant's processes hold, beside the tenant's account; and a line in the log for what differs by
//! much and for whom memory was refused.

use super::Shared;
use super::administrators::reports;
use deepres_model::admin::{AccountStatus, RefusalStatus, RefusedBy, TenantStatus};
use deepres_model::quantity::Bytes;
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

const PERIOD: Duration = Duration::from_secs(1);
/// What the management library is called.
pub const NVML_LIBRARY: &str = "libnvidia-ml.so.1";
/// How far an account may be from what NVML says, for each process of the tenant, until the log tells of it: what the driver takes for code that is
/// loaded lazily is some hundreds of MiB, and nobody's mistake.
const TOLD_BYTES_PER_PROCESS: u64 = 1 << 30;

/// What NVML says of a GPU.
#[derive(Debug, Clone)]
pub struct OnGpu {
    /// What is taken of its memory, bytes.
    pub used_bytes: u64,
    /// Processes, and what each holds, bytes.
    pub processes: Vec<(u32, u64)>,
}

/// What was seen of each tenant and GPU when the log was written to last.
type Told = BTreeMap<(String, usize), Seen>;

/// What the log told already, and what held then.
#[derive(Debug, Default)]
struct Seen {
    refusals: u64,
    was_off: bool,
    bound: Option<Bound>,
}

/// The least of what keeps a tenant from more memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bound {
    bytes: u64,
    is_its_limit: bool,
}

impl Bound {
    fn of(tenant: &TenantStatus, account: &AccountStatus) -> Option<Self> {
        let limit = tenant.memory_limit_bytes.map(|bytes| Self { bytes, is_its_limit: true });
        let ceiling = account.ceiling_bytes.map(|bytes| Self { bytes, is_its_limit: false });
        limit.into_iter().chain(ceiling).min_by_key(|bound| bound.bytes)
    }
}

/// Looks, for ever.
pub async fn serve(shared: Rc<Shared>) {
    let mut nvml: Option<Arc<Nvml>> = None;
    let mut told = Told::new();
    loop {
        sleep(PERIOD).await;
        if !shared.registry.borrow().has_tenants() {
            shared.registry.borrow_mut().forget_strangers();
            told.clear();
            continue;
        }
        if nvml.is_none() {
            nvml = Nvml::builder().lib_path(OsStr::new(NVML_LIBRARY)).init().ok().map(Arc::new);
        }
        let before = shared.registry.borrow().held();
        if let Some(nvml) = nvml.clone() {
            let uuids = shared.registry.borrow().gpu_uuids();
            // A driver may take its time, and tenants come and go meanwhile.
            let found = tokio::task::spawn_blocking(move || read(&nvml, &uuids)).await;
            shared.registry.borrow_mut().reconcile(&found.unwrap_or_default(), &before);
        }
        // What others hold has changed, and with it what caps and promises leave. An arbiter takes it up in its time.
        shared.registry.borrow_mut().renew_parts();
        drop(shared.registry.borrow_mut().renew_ceilings());
        if let Some(reports) = reports(&shared).await {
            let tenants = shared.registry.borrow().status(&reports).tenants;
            tell(&tenants, &mut told);
        }
    }
}

/// What NVML says, by GPU; nothing of one that it cannot say it of.
fn read(nvml: &Nvml, uuids: &[String]) -> BTreeMap<usize, OnGpu> {
    let one = |uuid: &str| {
        let device = nvml.device_by_uuid(uuid).ok()?;
        // What is allocated or freed while the processes are listed is not to look like a stranger's.
        let before_bytes = device.memory_info().ok()?.used;
        let listed = device.running_compute_processes().ok()?;
        let after_bytes = device.memory_info().ok()?.used;
        let processes = listed.into_iter().filter_map(|process| match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some((process.pid, bytes)),
            UsedGpuMemory::Unavailable => None,
        });
        Some(OnGpu { processes: processes.collect(), used_bytes: before_bytes.min(after_bytes) })
    };
    uuids.iter().enumerate().filter_map(|(gpu, uuid)| Some((gpu, one(uuid)?))).collect()
}

/// Writes what is new into the log.
fn tell(tenants: &[TenantStatus], told: &mut Told) {
    let accounts = || tenants.iter().flat_map(|tenant| tenant.gpus.iter().map(move |gpu| (tenant, gpu)));
    told.retain(|(name, gpu), _| accounts().any(|(tenant, own)| tenant.name == *name && own.gpu == *gpu));
    for (tenant, account) in accounts() {
        let seen = told.entry((tenant.name.clone(), account.gpu)).or_default();
        let bound = Bound::of(tenant, account);
        if account.refusals > seen.refusals {
            // It may have been changed since: what passed the one passed the lesser.
            let least = seen.bound.into_iter().chain(bound).min_by_key(|bound| bound.bytes);
            tracing::info!(
                tenant = tenant.name,
                gpu = account.gpu,
                refusals = account.refusals - seen.refusals,
                "{}",
                refusal(account, least)
            );
        }
        let is_off = is_far_off(tenant.sessions.len(), account);
        if is_off && !seen.was_off {
            tracing::warn!(
                tenant = tenant.name,
                gpu = account.gpu,
                drift_bytes = account.drift_bytes,
                "NVML says that a tenant holds far more than its account: some of it may go past deepres (`deepres ps --coverage`)"
            );
        }
        *seen = Seen { refusals: account.refusals, was_off: is_off, bound };
    }
}

/// Why memory was refused, in a line. What is held by now is not what was held then.
fn refusal(account: &AccountStatus, bound: Option<Bound>) -> String {
    let last = account.last_refusal.as_ref();
    let what = last.map_or("memory".to_owned(), RefusalStatus::to_string);
    let is_by_driver = last.is_some_and(|last| last.by == RefusedBy::Driver);
    match bound {
        _ if is_by_driver => format!("refused {what}: the driver had not so much left of the GPU's memory"),
        Some(Bound { bytes, is_its_limit: true }) => {
            format!("refused {what}: with what it held that passes its limit of {}", Bytes(bytes))
        }
        Some(Bound { bytes, .. }) => {
            format!("refused {what}: with what it held that passes the {} that others leave it", Bytes(bytes))
        }
        None => format!("refused {what}: it had a limit then"),
    }
}

/// Whether NVML says so much more of a tenant with so many processes that something seems to go past its account. Less does not: managed memory that nobody touched is
/// not on the GPU.
fn is_far_off(processes: usize, account: &AccountStatus) -> bool {
    let allowed = TOLD_BYTES_PER_PROCESS.saturating_mul(processes.max(1) as u64);
    account.drift_bytes.and_then(|drift| u64::try_from(drift).ok()).is_some_and(|more| more > allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_far_off_if_nvml_says_more_by_a_gigabyte_for_each_process() {
        let of = |processes: usize, gib: i64| {
            let drift_bytes = Some((gib << 30) + gib.signum());
            is_far_off(processes, &AccountStatus { drift_bytes, ..AccountStatus::default() })
        };
        assert!(of(0, 1) && of(1, 1) && of(2, 2));
        assert!(!of(1, 0) && !of(2, 1) && !of(1, -3), "less is not on the GPU");
    }
}
