//! Runs the tenants of a cell (a combination of shares and work) on a host of their own, and
//! measures their GPU time. Also measures one tenant alone, with deepres and without deepres.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use simgpu_engine::truth;

use super::cell::{Cell, Had, Measured, Tenant};
use crate::bench::pieces::{self, As, SETTLED};
use crate::build::{self, Artefacts};
use crate::host::{Device, Host, Ps};
use crate::process::Interrupt;

/// Configuration of the simulated GPU, with the times of the client's kernels.
const SIMGPU_TOML: &str = "kernel = [
    { name = \"busy_200us\", ns = 200000 },
    { name = \"busy_1000us\", ns = 1000000 },
    { name = \"busy_5000us\", ns = 5000000 },
    { name = \"busy_12000us\", ns = 12000000 },
]
";
/// Further configuration for a GPU that is hard to meter.
const HARD_TOML: &str = "event_step_ns = 500\nrecord_cost_ns = 2000\nclock_drift_ppb = 50000\n";
/// Number of rounds in which a tenant alone and the bare driver take turns. If the machine gets
/// busy, both figures change.
const ALONE_ROUNDS: u32 = 3;
/// The time of each turn of a tenant alone and of the bare driver.
const ALONE_LASTS: Duration = Duration::from_secs(2);

/// Settings that all cells share.
pub struct Bench {
    pub artefacts: Artefacts,
    pub client: PathBuf,
    pub interrupt: Interrupt,
    pub seconds: f64,
    pub is_hard: bool,
}

impl Bench {
    /// Runs the tenants of `cell` together. Returns each tenant's true and metered GPU time over
    /// `seconds`.
    pub fn measure(&self, cell: &Cell) -> Result<Measured> {
        let host = self.host()?;
        let mut clients = Vec::new();
        for tenant in &cell.tenants {
            for _ in 0..tenant.processes {
                let how = ["--name", &tenant.name, "--share", &format!("{}%", tenant.share)];
                clients.push(pieces::start(&host, As::Tenant(&how), &self.client, tenant.steps)?);
            }
        }
        self.interrupt.sleep(SETTLED)?;
        let first = Look::at(&host)?;
        self.interrupt.sleep(Duration::from_secs_f64(self.seconds))?;
        let last = Look::at(&host)?;
        for client in &mut clients {
            client.still_runs()?;
        }
        let tenants = cell.tenants.iter().map(|tenant| had(tenant, &first, &last)).collect::<Result<_>>()?;
        let elapsed_ns = last.truth.at_ns.saturating_sub(first.truth.at_ns);
        let bound_fraction = bound_fraction(cell, &first, &last)?;
        let handoff_ns = last.ps.gpus.first().context("the daemon knows no GPU")?.handoff_ns;
        Ok(Measured { tenants, elapsed_ns, bound_fraction, handoff_ns })
    }

    /// Returns the GPU time of a tenant alone under deepres, divided by its GPU time without
    /// deepres. Runs with deepres and runs without deepres take turns.
    pub fn alone_ratio(&self, tenant: &Tenant) -> Result<f64> {
        let mut used = [0.0; 2];
        for _ in 0..ALONE_ROUNDS {
            for (used, how) in used.iter_mut().zip([As::Tenant(&["--name", &tenant.name]), As::Bare]) {
                *used += self.used_fraction(tenant, how)?;
            }
        }
        Ok(used[0] / used[1])
    }

    /// Returns the part of the time in which each tenant has kernels running, if all run together
    /// without deepres.
    pub fn time_sliced(&self, tenants: &[Tenant]) -> Result<Vec<f64>> {
        let bare: Vec<_> = tenants.iter().map(|tenant| (tenant, As::Bare)).collect();
        self.used_fractions(&bare, Duration::from_secs_f64(self.seconds))
    }

    /// Returns the part of the time in which a tenant alone has kernels running.
    fn used_fraction(&self, tenant: &Tenant, how: As<'_>) -> Result<f64> {
        Ok(self.used_fractions(&[(tenant, how)], ALONE_LASTS)?.iter().sum())
    }

    /// Returns the part of the time in which each tenant has kernels running.
    fn used_fractions(&self, tenants: &[(&Tenant, As<'_>)], lasts: Duration) -> Result<Vec<f64>> {
        let host = self.host()?;
        let start =
            |(tenant, how): &(&Tenant, As<'_>)| pieces::start(&host, *how, &self.client, tenant.steps);
        let mut clients: Vec<_> = tenants.iter().map(start).collect::<Result<_>>()?;
        self.interrupt.sleep(SETTLED)?;
        let pid = |(client, (tenant, how)): (&pieces::Client, &(&Tenant, As<'_>))| {
            client.pid(&host, *how, &tenant.name)
        };
        let pids: Vec<u32> = clients.iter().zip(tenants).map(pid).collect::<Result<_>>()?;
        let before = pieces::record(&host)?;
        self.interrupt.sleep(lasts)?;
        let after = pieces::record(&host)?;
        for client in &mut clients {
            client.still_runs()?;
        }
        let elapsed_ns = (after.at_ns - before.at_ns) as f64;
        let used_ns = |pid: u32| {
            pieces::kernels_ns(&after, pid).saturating_sub(pieces::kernels_ns(&before, pid)) as f64
        };
        Ok(pids.into_iter().map(|pid| used_ns(pid) / elapsed_ns).collect())
    }

    /// Starts a host without tenants.
    fn host(&self) -> Result<Host> {
        let config = build::target().join("deepres/share-simgpu.toml");
        let toml = format!("{}{SIMGPU_TOML}", if self.is_hard { HARD_TOML } else { "" });
        std::fs::write(&config, toml).with_context(|| format!("cannot write {}", config.display()))?;
        Host::start(&self.artefacts, Device::Simulated { config: Some(config) }, &self.interrupt)
    }
}

/// The figures of the daemon and of the simulated GPU at one moment.
struct Look {
    ps: Ps,
    truth: truth::Snapshot,
}

impl Look {
    fn at(host: &Host) -> Result<Self> {
        let truth = pieces::record(host)?;
        Ok(Self { ps: host.ps()?, truth })
    }

    /// Returns the time in which a tenant had work running or waiting, ns.
    fn wanted_ns(&self, tenant: &Tenant) -> Result<u64> {
        let found = self.ps.on_first_gpu(&tenant.name);
        let (_, gpu) = found.with_context(|| format!("{} has no session on the GPU", tenant.name))?;
        Ok(gpu.wanted_ns)
    }

    fn kernels_ns(&self, pids: &BTreeSet<u32>) -> u64 {
        let theirs = self.truth.processes.iter().filter(|process| pids.contains(&process.pid));
        theirs.filter_map(|process| process.gpus.first()).map(|gpu| gpu.kernel_busy_ns).sum()
    }
}

/// Returns the least part of the time in which all tenants wanted the GPU. The function assumes
/// that the moments without a wish never coincide.
fn bound_fraction(cell: &Cell, first: &Look, last: &Look) -> Result<f64> {
    let observed_ns = last.ps.now_ns.saturating_sub(first.ps.now_ns).max(1);
    let mut missing_ns = 0;
    for tenant in &cell.tenants {
        let wanted_ns = last.wanted_ns(tenant)?.saturating_sub(first.wanted_ns(tenant)?);
        missing_ns += observed_ns.saturating_sub(wanted_ns);
    }
    Ok(1.0 - missing_ns.min(observed_ns) as f64 / observed_ns as f64)
}

fn had(tenant: &Tenant, first: &Look, last: &Look) -> Result<Had> {
    let found = |look: &Look| {
        let (found, gpu) = look
            .ps
            .on_first_gpu(&tenant.name)
            .with_context(|| format!("{} has no session on the GPU", tenant.name))?;
        let pids: BTreeSet<u32> = found.sessions.iter().map(|session| session.pid).collect();
        ensure!(pids.len() == tenant.processes, "{} has {} processes", tenant.name, pids.len());
        Ok((pids, gpu.gpu_ns))
    };
    let ((pids, metered_before_ns), (_, metered_ns)) = (found(first)?, found(last)?);
    Ok(Had {
        share: tenant.share,
        true_ns: last.kernels_ns(&pids).saturating_sub(first.kernels_ns(&pids)),
        metered_ns: metered_ns.saturating_sub(metered_before_ns),
    })
}
