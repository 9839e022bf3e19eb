//! The order of tenants in `deepres ps` and `deepres top`.

use deepres_model::admin::{AccountStatus, Status, TenantStatus};
use std::cmp::Reverse;

/// A tenant on one GPU.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// The tenant.
    pub tenant: &'a TenantStatus,
    /// The account; `None` for a tenant that never had a session.
    pub account: Option<&'a AccountStatus>,
}

impl Row<'_> {
    /// Returns the tenant's name and the GPU's number, which identify the row.
    pub fn key(&self) -> (String, usize) {
        (self.tenant.name.clone(), self.account.map_or(0, |account| account.gpu))
    }
}

/// The column by which the rows are sorted. The largest figure comes first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// By name and GPU
    #[default]
    Tenant,
    /// By the share that the tenant is owed
    Owed,
    /// By the share of the last second
    Lately,
    /// By GPU time
    GpuTime,
    /// By the time that threads waited
    Waited,
    /// By memory
    Memory,
}

impl Order {
    /// Returns the next order.
    pub fn next(self) -> Self {
        match self {
            Self::Tenant => Self::Owed,
            Self::Owed => Self::Lately,
            Self::Lately => Self::GpuTime,
            Self::GpuTime => Self::Waited,
            Self::Waited => Self::Memory,
            Self::Memory => Self::Tenant,
        }
    }

    /// Returns the tenants of a status on their GPUs, in order.
    pub fn rows(self, status: &Status) -> Vec<Row<'_>> {
        let mut rows: Vec<Row<'_>> = status.tenants.iter().flat_map(of_tenant).collect();
        // The sort keeps the order of equal rows.
        rows.sort_by_key(|row| Reverse(row.account.map_or(0, |account| self.figure(account))));
        rows
    }

    fn figure(self, account: &AccountStatus) -> u64 {
        match self {
            Self::Tenant => 0,
            Self::Owed => account.entitled_ppm.map_or(0, u64::from),
            Self::Lately => account.recent_share_ppm.into(),
            Self::GpuTime => account.gpu_ns,
            Self::Waited => account.wait_ns,
            Self::Memory => account.memory_bytes,
        }
    }
}

/// Returns the rows of a tenant. A tenant without an account has one row.
fn of_tenant(tenant: &TenantStatus) -> Vec<Row<'_>> {
    if tenant.gpus.is_empty() {
        return vec![Row { tenant, account: None }];
    }
    tenant.gpus.iter().map(|account| Row { tenant, account: Some(account) }).collect()
}
