//! Computes the status that administrators see.

use super::Registry;
use super::tenant::Tenant;
use crate::arbiter::{Report, SessionId};
use crate::gpus::Gpu;
use deepres_model::admin::{
    AccountStatus, DaemonStatus, DriverStatus, GpuStatus, MeteringStatus, ProbesStatus, ProcessCoverage,
    SessionGpuStatus, SessionStatus, ShareStatus, Status, TenantStatus,
};
use deepres_model::clock::monotonic_ns;
use deepres_policy::TenantId;
use deepres_policy::lease::Phase;
use std::collections::HashMap;

/// The word for the gate of a suspended tenant.
const SUSPENDED: &str = "suspended";

/// The accounts and sessions that the arbiters of all GPUs report, by tenant and by session.
struct ByWhom<'a> {
    accounts: HashMap<TenantId, Vec<&'a AccountStatus>>,
    sessions: HashMap<SessionId, Vec<&'a SessionGpuStatus>>,
}

impl<'a> ByWhom<'a> {
    fn of(reports: &'a [Report]) -> Self {
        let mut by_whom = Self { accounts: HashMap::new(), sessions: HashMap::new() };
        for report in reports {
            for (tenant, account) in &report.tenants {
                by_whom.accounts.entry(*tenant).or_default().push(account);
            }
            for (session, status) in &report.sessions {
                by_whom.sessions.entry(*session).or_default().push(status);
            }
        }
        by_whom
    }
}

impl Registry {
    /// Returns the status, from the arbiters' reports and the registry.
    pub fn status(&self, reports: &[Report]) -> Status {
        let names: HashMap<TenantId, &str> =
            self.tenants.iter().map(|(name, tenant)| (tenant.id, name.as_str())).collect();
        let gpus = self.gpus.iter().zip(reports).enumerate();
        let by_whom = ByWhom::of(reports);
        Status {
            now_ns: reports.iter().map(|report| report.now_ns).max().unwrap_or_else(monotonic_ns),
            daemon: DaemonStatus {
                pid: std::process::id(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                directory: self.directory.to_string(),
                started_ns: self.started_ns,
                heartbeat_limit_ns: self.config.heartbeat_limit_ms * deepres_model::clock::NS_PER_MS,
                fail_mode: self.config.fail_mode.name().to_owned(),
            },
            gpus: gpus
                .map(|(index, (managed, report))| gpu_status(index, &managed.gpu, report, &names))
                .collect(),
            tenants: self
                .tenants
                .iter()
                .map(|(name, tenant)| {
                    let gpu_bytes = |gpu: usize| self.gpus.get(gpu).map(|managed| managed.gpu.memory_bytes);
                    tenant_status(name, tenant, &by_whom, gpu_bytes)
                })
                .collect(),
            unmanaged: Vec::new(),
            probes: ProbesStatus::default(),
            driver_activity: Vec::new(),
            metering: MeteringStatus::default(),
        }
    }

    /// Sets the gate of each of a tenant's shares to the word that [`Self::status`] shows.
    pub fn tell_gates(&self, name: &str, shares: &mut [ShareStatus]) {
        let Some(tenant) = self.tenants.get(name) else { return };
        shares.iter_mut().for_each(|share| share.gate = tenant.gate_word(&share.gate));
    }

    /// Returns how each session's process reaches the driver.
    pub fn coverage(&self) -> Vec<ProcessCoverage> {
        let processes = self
            .tenants
            .iter()
            .flat_map(|(name, tenant)| tenant.sessions.values().map(move |session| (name.as_str(), session)));
        processes
            .map(|(tenant, session)| {
                let page = session.meter.page();
                ProcessCoverage::read(tenant, session.pid, &session.client, page.coverage(), page.bypasses())
            })
            .collect()
    }
}

impl Tenant {
    /// Returns the word for the tenant's gate: the arbiter's word `gate`, unless the tenant is
    /// suspended.
    fn gate_word(&self, gate: &str) -> String {
        if self.is_suspended { SUSPENDED.to_owned() } else { gate.to_owned() }
    }
}

/// Returns a tenant's status. `gpu_bytes` returns the memory of a GPU.
fn tenant_status(
    name: &str,
    tenant: &Tenant,
    by_whom: &ByWhom<'_>,
    gpu_bytes: impl Fn(usize) -> Option<u64>,
) -> TenantStatus {
    let accounts = by_whom.accounts.get(&tenant.id).into_iter().flatten().map(|account| {
        // For a deserted tenant the arbiter reports its last figures, which do not hold any more.
        let is_here = !tenant.is_deserted();
        let seen = tenant.by_nvml.get(&account.gpu).filter(|_| is_here);
        let ceiling_bytes = tenant.ceilings.get(&account.gpu).copied();
        // A tenant that has just come keeps all the memory that it may hold.
        let most_bytes = ceiling_bytes.or_else(|| gpu_bytes(account.gpu)).unwrap_or(u64::MAX);
        AccountStatus {
            entitled_ppm: account.entitled_ppm.filter(|_| is_here),
            is_lent: is_here && account.is_lent,
            entitled_by: if is_here { account.entitled_by.clone() } else { String::new() },
            // An awaited tenant keeps its entitlement, but has no process at a gate.
            gate: account.gate.as_ref().filter(|_| tenant.is_present()).map(|gate| tenant.gate_word(gate)),
            nvml_bytes: seen.map(|seen| seen.bytes),
            drift_bytes: seen.map(|seen| seen.drift_bytes),
            ceiling_bytes,
            kept_bytes: tenant.kept_bytes(account.gpu).map(|bytes| bytes.min(most_bytes)),
            ..(*account).clone()
        }
    });
    let on_gpus = |session: &SessionId| -> Vec<SessionGpuStatus> {
        by_whom.sessions.get(session).into_iter().flatten().map(|status| (*status).clone()).collect()
    };
    let granted = tenant.granted();
    TenantStatus {
        name: name.to_owned(),
        uid: tenant.user,
        user: None,
        found: Some(tenant.found.clone()),
        container: tenant.container.clone(),
        asked: tenant.asked,
        granted: Some(granted),
        asked_share_ppm: granted.share_ppm.value,
        memory_limit_bytes: granted.memory_bytes.value,
        class: granted.class.value.name().to_owned(),
        paused: tenant.is_paused,
        suspended: tenant.is_suspended,
        oversubscribe: tenant.oversubscribe.map(|way| way.name().to_owned()),
        keepers: tenant.keepers.len(),
        gpus: accounts.collect::<Vec<AccountStatus>>(),
        sessions: tenant
            .sessions
            .iter()
            .map(|(id, session)| SessionStatus {
                id: *id,
                pid: session.pid,
                container: session.container.clone(),
                client: session.client.clone(),
                gpus: on_gpus(id),
            })
            .collect(),
        driver: DriverStatus { sums: tenant.driver.sums(), lately: tenant.driver.lately() },
    }
}

fn gpu_status(index: usize, gpu: &Gpu, report: &Report, names: &HashMap<TenantId, &str>) -> GpuStatus {
    let (phase, holder) = match report.phase {
        Phase::Free => ("free", None),
        Phase::Held(holder) => (if report.open { "open" } else { "leased" }, Some(holder)),
        Phase::Draining(holder) => ("draining", Some(holder)),
    };
    let [handoff_total_ns, handoff_p50_ns, handoff_p99_ns] = report.handoff_ns;
    GpuStatus {
        index,
        uuid: gpu.uuid_text.clone(),
        name: gpu.name.clone(),
        simulated: gpu.simulated,
        memory_bytes: gpu.memory_bytes,
        phase: phase.to_owned(),
        holder: holder.and_then(|holder| names.get(&holder)).map(|name| (*name).to_owned()),
        contended_ns: report.contended_ns,
        idle_ns: report.idle_ns,
        handoffs: report.handoffs,
        handoff_total_ns,
        handoff_p50_ns,
        handoff_p99_ns,
        quantum_ns: report.tuning.quantum_ns,
        window_ns: report.tuning.window_ns,
        spin_ns: report.tuning.spin_ns,
        handoff_ns: report.tuning.handoff_ns,
        lead_ns: report.tuning.lead_ns,
        grace_ns: report.tuning.grace_ns,
        fairness_ppm: report.fairness_ppm,
    }
}
