//! The log of memory: refusals, and large differences between accounts and NVML. The module reads
//! the published status.

use deepres_model::admin::{AccountStatus, RefusalStatus, RefusedBy, Status, TenantStatus};
use deepres_model::quantity::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;

/// The least time between two lines about the same memory of a tenant.
const PERIOD: Duration = Duration::from_secs(1);
/// If NVML's figure exceeds an account by more than this amount for each process of the tenant, the
/// log names the difference. A smaller difference is no error, because the driver takes some
/// hundreds of MiB for lazily loaded code.
const TOLD_BYTES_PER_PROCESS: u64 = 1 << 30;

/// The state of each tenant on each GPU at its last log line.
type Told = BTreeMap<(String, usize), Seen>;

/// The state of one tenant on one GPU at the last log line.
#[derive(Debug, Default)]
struct Seen {
    refusals: u64,
    was_off: bool,
    bound: Option<Bound>,
}

/// The lower of two bounds on a tenant's memory: its limit, and its ceiling.
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

/// Logs the changes in each status, until the daemon ends.
pub async fn serve(mut published: watch::Receiver<Arc<Status>>) {
    let mut told = Told::new();
    while published.changed().await.is_ok() {
        let status = Arc::clone(&published.borrow_and_update());
        tell(&status.tenants, &mut told);
        sleep(PERIOD).await;
    }
}

/// Logs the refusals and the large differences that are new since the last status.
fn tell(tenants: &[TenantStatus], told: &mut Told) {
    let accounts = || tenants.iter().flat_map(|tenant| tenant.gpus.iter().map(move |gpu| (tenant, gpu)));
    told.retain(|(name, gpu), _| accounts().any(|(tenant, own)| tenant.name == *name && own.gpu == *gpu));
    for (tenant, account) in accounts() {
        let seen = told.entry((tenant.name.clone(), account.gpu)).or_default();
        let bound = Bound::of(tenant, account);
        if account.refusals > seen.refusals {
            // The bound may have changed since the refusal. If a request passed one of the two
            // bounds, the request also passed the lower bound.
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
                "NVML reports far more memory for a tenant than its account has: some allocations may bypass deepres; see `deepres ps --coverage`"
            );
        }
        *seen = Seen { refusals: account.refusals, was_off: is_off, bound };
    }
}

/// Returns the reason of a refusal as one line. The line does not contain the held memory, because
/// this amount has changed since.
fn refusal(account: &AccountStatus, bound: Option<Bound>) -> String {
    let last = account.last_refusal.as_ref();
    let what = last.map_or("memory".to_owned(), RefusalStatus::to_string);
    let is_by_driver = last.is_some_and(|last| last.by == RefusedBy::Driver);
    match bound {
        _ if is_by_driver => format!("the driver refused {what}: the GPU had too little memory left"),
        Some(Bound { bytes, is_its_limit: true }) => {
            format!("deepres refused {what}: with it, the tenant would exceed its limit of {}", Bytes(bytes))
        }
        Some(Bound { bytes, .. }) => {
            format!(
                "deepres refused {what}: with it, the tenant would exceed the {} that others leave",
                Bytes(bytes)
            )
        }
        None => {
            format!("deepres refused {what}: with it, the tenant would have exceeded its limit of that time")
        }
    }
}

/// Returns whether NVML reports far more memory than the account of a tenant with `processes`
/// processes. Some calls then seem to bypass the account. If NVML reports less, nothing is wrong:
/// untouched managed memory is not on the GPU.
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
