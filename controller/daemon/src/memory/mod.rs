//! The memory of the GPUs: the guarantees and limits of tenants, and NVML's figures.
//!
//! | module | job |
//! |---|---|
//! | `tenant` | the memory of one tenant: ledger, bounds, ceilings, NVML's figures |
//! | [`host`] | the host's memory that oversubscribing tenants may take |
//! | [`caps`] | each user's caps, shared out among the user's tenants |
//! | [`appraisal`] | tells each session NVML's figure for its process |
//! | [`reconcile`] | compares the ledgers with NVML every second |
//! | [`log`] | logs refusals and differences |
//!
//! The rules are in [`deepres_policy::memory`] and in [`deepres_model::authority`].

pub mod appraisal;
pub mod caps;
pub mod host;
pub mod log;
pub mod reconcile;
mod tenant;

pub use tenant::{ByNvml, TenantMemory};

use crate::gpus::Gpus;
use crate::identity::{Key, read};
use crate::nvml::OnGpu;
use crate::registry::{Lack, Refused, Tenants};
use crate::tenant::Tenant;
use deepres_abi::wire::RefusalKind;
use deepres_model::authority::Wish;
use deepres_model::quantity::Bytes;
use deepres_policy::TenantId;
use deepres_policy::class::Class;
use deepres_policy::memory::{Holding, ceilings};
use std::collections::BTreeMap;
use std::iter::successors;

/// The memory that tenants hold by their ledgers, by tenant and GPU, bytes.
pub type Held = BTreeMap<(TenantId, usize), u64>;

/// The memory that unmanaged processes use on each GPU, by NVML's figures.
#[derive(Debug, Default)]
pub struct Memory {
    unmanaged_bytes: BTreeMap<usize, u64>,
}

/// Returns the memory that each tenant holds by its ledger, bytes. The result leaves out suspended
/// tenants.
pub fn held(tenants: &Tenants) -> Held {
    let there = tenants.iter().filter(|(_, tenant)| !tenant.residence.is_suspended());
    let on_gpus = |tenant: &Tenant| -> Vec<_> {
        let held = |gpu: &usize| ((tenant.id, *gpu), tenant.memory.held_bytes(*gpu));
        tenant.gpus().iter().map(held).collect()
    };
    there.flat_map(|(_, tenant)| on_gpus(tenant)).collect()
}

impl Memory {
    /// Compares NVML's figures (`found`) with the ledgers' figures from just before (`before`) and
    /// from now. Stores the results for each tenant.
    pub fn reconcile(&mut self, tenants: &mut Tenants, found: &BTreeMap<usize, OnGpu>, before: &Held) {
        let after = held(tenants);
        let mut by_tenant = Held::new();
        self.unmanaged_bytes.clear();
        for (gpu, on_gpu) in found {
            let mut own_bytes = 0_u64;
            for (pid, bytes) in &on_gpu.processes {
                let Some(id) = owner_of(tenants, *pid) else { continue };
                let sum = by_tenant.entry((id, *gpu)).or_default();
                *sum = sum.saturating_add(*bytes);
                own_bytes = own_bytes.saturating_add(*bytes);
            }
            self.unmanaged_bytes.insert(*gpu, on_gpu.used_bytes.saturating_sub(own_bytes));
        }
        for (_, tenant) in tenants.iter_mut() {
            // If the tenant came, went or came back during the question, NVML's figures can be of
            // another moment than the accounts. Such a tenant gets no figures.
            let said = tenant.gpus().iter().filter(|gpu| found.contains_key(gpu)).filter_map(|gpu| {
                let place = (tenant.id, *gpu);
                let accounts = [*before.get(&place)?, *after.get(&place)?];
                let bytes = by_tenant.get(&place).copied().unwrap_or(0);
                Some((*gpu, ByNvml { bytes, drift_bytes: drift(bytes, accounts) }))
            });
            let said = said.collect();
            tenant.memory.set_by_nvml(said);
        }
    }

    /// Returns the reason for which the daemon cannot guarantee the memory of `wish`; `None` if the
    /// daemon can. One GPU must have enough memory beside the guarantees and the memory of other
    /// tenants.
    ///
    /// If the tenant of the key `own` holds memory on GPUs, only these GPUs count. If the tenant
    /// holds no memory, the GPUs that it uses count. If the tenant uses no GPU, all GPUs count. If
    /// none of these GPUs is large enough, waiting cannot help, and the refusal is final. Otherwise
    /// the refusal names what the tenant lacks.
    pub fn lacks(&self, tenants: &Tenants, gpus: &Gpus, wish: &Wish, own: &Key) -> Option<Refused> {
        let (Some(Class::Guaranteed), Some(bytes)) = (wish.class, wish.memory_bytes) else { return None };
        let used = tenants.living().map(|(_, tenant)| tenant).find(|tenant| tenant.owner.key == *own);
        let holds = |gpu: usize| used.is_some_and(|own| own.memory.held_bytes(gpu) > 0);
        let holds_any = gpus.numbers().any(holds);
        let is_seen = |gpu: usize| used.is_none_or(|own| own.may_be_on(gpu));
        let is_asked = |gpu: &usize| if holds_any { holds(*gpu) } else { is_seen(*gpu) };
        let asked = || gpus.numbers().filter(is_asked);
        let largest = asked().map(|gpu| gpus.memory_bytes(gpu)).max()?;
        if largest < bytes {
            let reason = format!(
                "the daemon cannot guarantee {} of memory: the largest GPU has {}; ask for less",
                Bytes(bytes),
                Bytes(largest)
            );
            return Some(Refused::new(RefusalKind::Request, reason));
        }
        let most = asked().map(|gpu| self.promisable_bytes(tenants, gpus, own, gpu)).max()?;
        (most < bytes).then(|| {
            let reason = format!(
                "the daemon cannot guarantee {} of memory now: other tenants and their guarantees leave {} on a GPU; ask for less, or for class fair",
                Bytes(bytes),
                Bytes(most)
            );
            Refused::lacking(Lack::Memory(bytes), reason)
        })
    }

    /// Returns the most memory of a GPU that the daemon can guarantee the tenant of this key,
    /// bytes. The guarantees of other tenants, the memory of tenants that the daemon cannot
    /// suspend, and unmanaged memory are not available.
    fn promisable_bytes(&self, tenants: &Tenants, gpus: &Gpus, own: &Key, gpu: usize) -> u64 {
        let others = tenants.living().map(|(_, tenant)| tenant).filter(|tenant| tenant.owner.key != *own);
        let there = others.filter(|tenant| tenant.may_be_on(gpu)).map(|tenant| tenant.holding(gpu));
        let claims = there.map(|holding| holding.promised_bytes.max(holding.firm_bytes));
        let taken = claims.fold(0, u64::saturating_add);
        self.for_tenants(gpus, gpu).saturating_sub(taken)
    }

    /// Returns the memory of a GPU without the memory of unmanaged processes, bytes.
    pub fn for_tenants(&self, gpus: &Gpus, gpu: usize) -> u64 {
        let unmanaged_bytes = self.unmanaged_bytes.get(&gpu).copied().unwrap_or(0);
        gpus.memory_bytes(gpu).saturating_sub(unmanaged_bytes)
    }

    /// Guarantees a tenant its memory on the GPUs in `on` that have room. The tenant is new on
    /// these GPUs. On the other GPUs, the tenant gets no guarantee.
    pub fn promise_on(&self, tenants: &mut Tenants, gpus: &Gpus, name: &str, on: &[usize]) {
        let Some(tenant) = tenants.get(name) else { return };
        let new: Vec<usize> = on.iter().copied().filter(|gpu| !tenant.is_on(*gpu)).collect();
        let lacking = self.lacking(tenants, gpus, tenant, &new);
        let Some(tenant) = tenants.get_mut(name).filter(|_| !lacking.is_empty()) else { return };
        withhold(name, tenant, lacking);
        if !tenant.gpus().iter().chain(on).any(|gpu| tenant.memory.is_promised_on(*gpu)) {
            tenant.terms.set_has_room(false);
        }
    }

    /// Guarantees a tenant its memory anew, after its terms changed. On a GPU without room, the
    /// tenant gets no guarantee.
    pub fn promise_more(&self, tenants: &mut Tenants, gpus: &Gpus, name: &str) {
        let Some(tenant) = tenants.get_mut(name) else { return };
        tenant.memory.promise_everywhere();
        let Some(tenant) = tenants.get(name) else { return };
        let lacking = self.lacking(tenants, gpus, tenant, tenant.gpus());
        if let Some(tenant) = tenants.get_mut(name).filter(|_| !lacking.is_empty()) {
            withhold(name, tenant, lacking);
        }
    }

    /// Returns the GPUs in `on` that have no room for a tenant's guarantee.
    fn lacking(&self, tenants: &Tenants, gpus: &Gpus, tenant: &Tenant, on: &[usize]) -> Vec<usize> {
        let promised_bytes = tenant.terms.promised_bytes();
        let lacks_room = |gpu: &usize| {
            tenant.is_outside(*gpu)
                || self.promisable_bytes(tenants, gpus, &tenant.owner.key, *gpu) < promised_bytes
        };
        on.iter().copied().filter(lacks_room).collect()
    }

    /// Computes the ceiling of each tenant beside the guarantees of other tenants. If a tenant's
    /// memory follows its use, its use counts for `window_ns`. Returns the tenants whose ceilings
    /// changed, each with the GPU.
    pub fn renew_ceilings(
        &self,
        tenants: &mut Tenants,
        gpus: &Gpus,
        now_ns: u64,
        window_ns: u64,
    ) -> Vec<(String, usize)> {
        let mut changed = Vec::new();
        for gpu in gpus.numbers() {
            let there = |tenant: &Tenant| !tenant.is_deserted() && tenant.may_be_on(gpu);
            let mut here: Vec<(&str, &mut Tenant)> =
                tenants.iter_mut().filter(|(_, tenant)| there(tenant)).collect();
            here.iter_mut().for_each(|(_, tenant)| tenant.note_use(gpu, now_ns, window_ns));
            let holdings: Vec<Holding> = here.iter().map(|(_, tenant)| tenant.holding(gpu)).collect();
            let ceilings = ceilings(self.for_tenants(gpus, gpu), &holdings);
            for ((name, tenant), ceiling) in here.into_iter().zip(ceilings) {
                if tenant.memory.set_ceiling(gpu, ceiling) && tenant.is_on(gpu) {
                    changed.push((name.to_owned(), gpu));
                }
            }
        }
        changed
    }
}

/// Withdraws a tenant's guarantee on GPUs without room for the guarantee, and logs the withdrawal.
fn withhold(name: &str, tenant: &mut Tenant, lacking: Vec<usize>) {
    tracing::warn!(
        tenant = name,
        promised_bytes = tenant.terms.promised_bytes(),
        gpus = ?lacking,
        "a guaranteed tenant uses GPUs without room for its memory: the daemon does not guarantee the memory there"
    );
    tenant.memory.withhold_on(lacking);
}

/// Returns the tenant of a process; `None` for an unmanaged process. The process has a session, or
/// descends from a process of the tenant and bypasses deepres.
fn owner_of(tenants: &Tenants, pid: u32) -> Option<TenantId> {
    let is_session = |tenant: &Tenant| tenant.members.sessions().values().any(|session| session.pid == pid);
    let of_session = tenants.iter().find(|(_, tenant)| is_session(tenant)).map(|(_, tenant)| tenant.id);
    of_session.or_else(|| {
        let line = successors(read::process(pid), read::parent);
        line.take(read::MAX_ANCESTORS).find_map(|process| {
            tenants.iter().find(|(_, tenant)| tenant.members.has(&process)).map(|(_, tenant)| tenant.id)
        })
    })
}

/// Returns the difference between NVML's figure and an account. One reading of the account was
/// before the figure, and one after. If the figure is between both readings, the difference is 0.
fn drift(bytes: u64, accounts: [u64; 2]) -> i64 {
    let [least, most] = [accounts[0].min(accounts[1]), accounts[0].max(accounts[1])];
    let expected = bytes.clamp(least, most);
    i64::try_from(i128::from(bytes) - i128::from(expected)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::drift;

    #[test]
    fn memory_allocated_while_nvml_was_asked_is_no_drift() {
        assert_eq!(drift(50, [40, 60]), 0);
        assert_eq!(drift(50, [60, 40]), 0);
        assert_eq!(drift(70, [40, 60]), 10);
        assert_eq!(drift(30, [40, 60]), -10);
    }
}
