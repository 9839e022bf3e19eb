//! Computes the status that administrators see.

use crate::Shared;
use crate::arbiter::{Report, SessionId};
use crate::gpus::{Gpu, answers};
use crate::registry::{Registry, Tenants};
use crate::tenant::{Session, Tenant};
use deepres_abi::PPM;
use deepres_model::admin::{
    AccountStatus, DaemonStatus, DriverStatus, GpuStatus, PlacementStatus, ProcessCoverage, SessionGpuStatus,
    SessionStatus, Status, TenantStatus, UnmanagedStatus,
};
use deepres_model::allocation::Allocation;
use deepres_model::clock::{NS_PER_MS, monotonic_ns};
use deepres_policy::TenantId;
use deepres_policy::lease::Phase;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;

/// The name of tenants that the daemon has forgotten, in the waits of late requests.
const FORMER: &str = "former tenants";

/// The word for the gate of a suspended tenant, in the status.
const SUSPENDED: &str = "suspended";

/// If the latest status is younger than this, users and processes get this status. So their
/// questions cost the arbiters no time.
const YOUNG_NS: u64 = Duration::from_millis(1_500).as_nanos() as u64;

/// The accounts that the arbiters of all GPUs report, by tenant.
type Accounts<'a> = HashMap<TenantId, Vec<&'a AccountStatus>>;
/// The states of the sessions that the arbiters of all GPUs report, by session.
type Sessions<'a> = HashMap<SessionId, Vec<&'a SessionGpuStatus>>;

/// Returns the values of each key as a list.
fn grouped<'a, K: Copy + Eq + Hash + 'a, V>(all: impl Iterator<Item = &'a (K, V)>) -> HashMap<K, Vec<&'a V>> {
    let mut grouped = HashMap::<K, Vec<&V>>::new();
    all.for_each(|(about, said)| grouped.entry(*about).or_default().push(said));
    grouped
}

/// Returns the reports of all arbiters, or `None` if an arbiter does not answer.
pub async fn reports(shared: &Shared) -> Option<Vec<Report>> {
    let pending = shared.registry.borrow().tenancy.gpus().reports();
    answers(pending).await
}

/// The latest status, for all parts of the daemon that read it.
pub type Published = watch::Sender<Arc<Status>>;

/// Publishes the present status and returns it. Returns `None` if an arbiter does not answer.
pub async fn publish(shared: &Shared) -> Option<Arc<Status>> {
    let status = Arc::new(now(shared).await?);
    shared.status.send_replace(Arc::clone(&status));
    Some(status)
}

/// Returns the latest status if it is young, else publishes the present status and returns it.
/// Returns `None` if an arbiter does not answer.
pub async fn recent(shared: &Shared) -> Option<Arc<Status>> {
    let latest = Arc::clone(&shared.status.borrow());
    let is_young = monotonic_ns().saturating_sub(latest.now_ns) < YOUNG_NS;
    if is_young { Some(latest) } else { publish(shared).await }
}

async fn now(shared: &Shared) -> Option<Status> {
    let reports = reports(shared).await?;
    let (registry, board) = (shared.registry.borrow(), shared.watcher.board());
    let (config, tenants) = (registry.config(), registry.tenancy.tenants());
    let names = tenants.names();
    let gpus = registry.tenancy.gpus().iter().zip(&reports).enumerate();
    let accounts: Accounts<'_> = grouped(reports.iter().flat_map(|report| &report.tenants));
    let sessions: Sessions<'_> = grouped(reports.iter().flat_map(|report| &report.sessions));
    let late_waits = |tenant: TenantId, gpu: usize| -> BTreeMap<String, u64> {
        let waits = reports.get(gpu).into_iter().flat_map(|report| &report.late_waits);
        let own = waits.filter(|(waited, ..)| *waited == tenant);
        own.fold(BTreeMap::new(), |mut waits, (_, rival, waited_ns)| {
            let name = names.get(rival).map_or(FORMER, |name| *name);
            *waits.entry(name.to_owned()).or_default() += *waited_ns;
            waits
        })
    };
    let gpu_bytes = |gpu: usize| registry.tenancy.gpus().iter().nth(gpu).map(|gpu| gpu.memory_bytes);
    let (faults, points) = (registry.tenancy.gpus().faults(), shared.points.borrow());
    let gpu_status = |(index, (gpu, report)): (usize, (&Gpu, &Report))| GpuStatus {
        fault: faults.of(&gpu.uuid_text),
        ..gpu_status(index, gpu, report, &names)
    };
    Some(Status {
        now_ns: reports.iter().map(|report| report.now_ns).max().unwrap_or_else(monotonic_ns),
        daemon: DaemonStatus {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            directory: shared.directory.to_string(),
            started_ns: shared.started_ns,
            heartbeat_limit_ns: config.heartbeat_limit_ms * NS_PER_MS,
            fail_mode: config.fail_mode.name().to_owned(),
            suspend_limit_ns: config.suspend_limit_ms * NS_PER_MS,
            mps_pipes: shared.mps.borrow().pipes(),
            mps_deaths: shared.mps.borrow().deaths(),
        },
        gpus: gpus.map(gpu_status).collect(),
        tenants: tenants
            .iter()
            .map(|(name, tenant)| {
                let mut status = tenant_status(name, tenant, (&accounts, &sessions), gpu_bytes);
                for account in &mut status.gpus {
                    if let Some(requests) = &mut account.requests {
                        requests.operating_point = points.of(tenant.id, account.gpu);
                    }
                    if let Some(late) = account.requests.as_mut().and_then(|requests| requests.late.as_mut())
                    {
                        late.waited_for_ns = late_waits(tenant.id, account.gpu);
                    }
                }
                with_holder(status, registry.allocations().of_key(&tenant.owner.key))
            })
            .collect(),
        waiting: registry.waiting(),
        unmanaged: with_starters(&registry, board.unmanaged),
        probes: board.probes,
        driver_activity: board.activity,
        metering: shared.metering.board(),
    })
}

/// The most unmanaged processes whose ancestors the daemon reads for one status.
const MOST_STARTED: usize = 32;

/// Adds to each unmanaged process the tenant whose process started it.
fn with_starters(registry: &Registry, mut unmanaged: Vec<UnmanagedStatus>) -> Vec<UnmanagedStatus> {
    for user in unmanaged.iter_mut().filter(|user| user.tenant.is_none()).take(MOST_STARTED) {
        user.started_by = registry.finder().starter_of(user.pid);
    }
    unmanaged
}

/// Returns the coverage of each session's process: how the process reaches the driver.
pub fn coverage(tenants: &Tenants) -> Vec<ProcessCoverage> {
    let of_tenant = |(name, tenant): (&str, &Tenant)| -> Vec<ProcessCoverage> {
        let sessions = tenant.members.sessions().values();
        let read = |session: &Session| {
            let page = session.meter.page();
            ProcessCoverage::read(name, session.pid, &session.client, page.coverage(), page.bypasses())
        };
        sessions.map(read).collect()
    };
    tenants.iter().flat_map(of_tenant).collect()
}

/// Returns the word for a tenant's gate in the status: `SUSPENDED` for a suspended tenant, else
/// `gate`, the word of the arbiter.
pub fn gate(tenant: &Tenant, gate: &str) -> String {
    if tenant.residence.is_suspended() { SUSPENDED.to_owned() } else { gate.to_owned() }
}

/// Returns a tenant's status. `gpu_bytes` returns the memory of a GPU, bytes.
fn tenant_status(
    name: &str,
    tenant: &Tenant,
    (accounts, sessions): (&Accounts<'_>, &Sessions<'_>),
    gpu_bytes: impl Fn(usize) -> Option<u64>,
) -> TenantStatus {
    let accounts = accounts.get(&tenant.id).into_iter().flatten().map(|account| {
        // For a deserted tenant, the arbiter reports the last figures, which no longer hold.
        let is_here = !tenant.is_deserted();
        let seen = tenant.memory.by_nvml(account.gpu).filter(|_| is_here);
        let ceiling_bytes = tenant.memory.ceiling_bytes(account.gpu);
        // For a tenant that has just come, the daemon keeps all the memory that the tenant may
        // hold.
        let most_bytes = ceiling_bytes.or_else(|| gpu_bytes(account.gpu)).unwrap_or(u64::MAX);
        AccountStatus {
            entitled_ppm: account.entitled_ppm.filter(|_| is_here),
            is_lent: is_here && account.is_lent,
            entitled_by: if is_here { account.entitled_by.clone() } else { String::new() },
            // A tenant that the daemon still awaits keeps its entitlement, but has no process at a
            // gate.
            gate: account
                .gate
                .as_ref()
                .filter(|_| tenant.members.is_present())
                .map(|word| gate(tenant, word)),
            nvml_bytes: seen.map(|seen| seen.bytes),
            drift_bytes: seen.map(|seen| seen.drift_bytes),
            ceiling_bytes,
            kept_bytes: tenant.kept_bytes(account.gpu).map(|bytes| bytes.min(most_bytes)),
            ..(*account).clone()
        }
    });
    let on_gpus = |session: &SessionId| -> Vec<SessionGpuStatus> {
        sessions.get(session).into_iter().flatten().map(|status| (*status).clone()).collect()
    };
    let granted = tenant.terms.granted();
    TenantStatus {
        name: name.to_owned(),
        uid: tenant.owner.user,
        user: None,
        found: Some(tenant.owner.found.clone()),
        container: tenant.owner.container.clone(),
        namespace: None,
        pod: None,
        asked: tenant.terms.asked(),
        granted: Some(granted),
        asked_share_ppm: granted.share_ppm.value,
        sm_ppm: granted.sm_ppm.value,
        memory_limit_bytes: granted.memory_bytes.value,
        class: granted.class.value.name().to_owned(),
        paused: tenant.terms.is_paused(),
        suspended: tenant.residence.is_suspended(),
        oversubscribe: tenant.residence.oversubscribe().map(|way| way.name().to_owned()),
        keepers: tenant.members.keepers(),
        placement: tenant
            .placed
            .as_ref()
            .map(|placed| PlacementStatus { gpus: placed.gpus.iter().collect(), why: placed.why.clone() }),
        sm_auto: tenant.sm_auto().map(ToString::to_string),
        gpus: accounts.collect::<Vec<AccountStatus>>(),
        sessions: tenant
            .members
            .sessions()
            .iter()
            .map(|(id, session)| SessionStatus {
                id: *id,
                pid: session.pid,
                container: session.container.clone(),
                client: session.client.clone(),
                lost_ways: session.meter.page().coverage().lost_ways.load(Ordering::Relaxed),
                gpus: on_gpus(id),
            })
            .collect(),
        driver: DriverStatus { sums: tenant.driver.sums(), lately: tenant.driver.lately() },
    }
}

/// Adds the names of the pod and the container that hold the tenant's allocation.
fn with_holder(mut status: TenantStatus, allocation: Option<&Allocation>) -> TenantStatus {
    if let Some(holder) = allocation.and_then(|allocation| allocation.holder.clone()) {
        (status.namespace, status.pod) = (Some(holder.namespace), Some(holder.pod));
        if let Some(container) = &mut status.container {
            container.name = Some(holder.container);
        }
    }
    status
}

fn gpu_status(index: usize, gpu: &Gpu, report: &Report, names: &BTreeMap<TenantId, &str>) -> GpuStatus {
    let (phase, holder) = match report.phase {
        Phase::Free => ("free", None),
        Phase::Held(holder) => (if report.open { "open" } else { "leased" }, Some(holder)),
        Phase::Draining(holder) => ("draining", Some(holder)),
        Phase::Together => ("together", None),
    };
    let [handoff_total_ns, handoff_p50_ns, handoff_p99_ns] = report.handoff_ns;
    let accounts = || report.tenants.iter().map(|(_, account)| account);
    let used_ppm = accounts().fold(0u32, |sum, account| sum.saturating_add(account.recent_share_ppm));
    GpuStatus {
        index,
        uuid: gpu.uuid_text.clone(),
        name: gpu.name.clone(),
        simulated: gpu.simulated,
        memory_bytes: gpu.memory_bytes,
        held_bytes: accounts().fold(0, |sum, account| sum.saturating_add(account.memory_bytes)),
        recent_share_ppm: used_ppm.min(PPM),
        phase: phase.to_owned(),
        holder: holder.and_then(|holder| names.get(&holder)).map(|name| (*name).to_owned()),
        contended_ns: report.contended_ns,
        idle_ns: report.idle_ns,
        handoffs: report.handoffs,
        handoff_total_ns,
        handoff_p50_ns,
        handoff_p99_ns,
        turns: report.turns,
        turn_total_ns: report.turn_total_ns,
        turn_p99_ns: report.turn_p99_ns,
        quantum_ns: report.tuning.quantum_ns,
        window_ns: report.tuning.window_ns,
        spin_ns: report.tuning.spin_ns,
        handoff_ns: report.tuning.handoff_ns,
        lead_ns: report.tuning.lead_ns,
        grace_ns: report.tuning.grace_ns,
        fairness_ppm: report.fairness_ppm,
        fault: None,
    }
}
