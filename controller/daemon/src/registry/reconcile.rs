//! Compares what NVML reports for processes, tenant by tenant, with the ledgers. Computes how much
//! memory can still be promised.

use super::Registry;
use super::tenant::Tenant;
use crate::identity::{Key, read};
use crate::reconcile::OnGpu;
use deepres_model::clock::monotonic_ns;
use deepres_policy::TenantId;
use deepres_policy::memory::{Holding, ceilings};
use std::collections::BTreeMap;
use std::iter::successors;
use tokio::sync::oneshot;

/// The memory that tenants hold by their ledgers, by tenant and GPU, bytes.
pub type Held = BTreeMap<(TenantId, usize), u64>;

/// The memory that a tenant holds on a GPU by NVML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByNvml {
    /// The memory, bytes.
    pub bytes: u64,
    /// The difference from the tenant's account, bytes; positive if NVML reports more.
    pub drift_bytes: i64,
}

impl Registry {
    /// Returns whether there is any tenant.
    pub fn has_tenants(&self) -> bool {
        !self.tenants.is_empty()
    }

    /// Forgets the memory of unmanaged processes, because it is not known any more.
    pub fn forget_strangers(&mut self) {
        self.strangers_bytes.clear();
    }

    /// Returns the memory that each tenant holds by its ledger, without suspended tenants.
    pub fn held(&self) -> Held {
        let tenants = self.tenants.values().filter(|tenant| !tenant.is_suspended);
        tenants
            .flat_map(|tenant| {
                tenant.gpus.iter().map(move |gpu| ((tenant.id, *gpu), tenant.held_bytes(*gpu)))
            })
            .collect()
    }

    /// Takes in what NVML `found` after the ledgers said `before`.
    pub fn reconcile(&mut self, found: &BTreeMap<usize, OnGpu>, before: &Held) {
        let after = self.held();
        let mut by_tenant = Held::new();
        self.strangers_bytes.clear();
        for (gpu, on_gpu) in found {
            let mut own_bytes = 0_u64;
            for (pid, bytes) in &on_gpu.processes {
                let Some(id) = self.owner_of(*pid) else { continue };
                let sum = by_tenant.entry((id, *gpu)).or_default();
                *sum = sum.saturating_add(*bytes);
                own_bytes = own_bytes.saturating_add(*bytes);
            }
            self.strangers_bytes.insert(*gpu, on_gpu.used_bytes.saturating_sub(own_bytes));
        }
        for tenant in self.tenants.values_mut() {
            // NVML's figures may be of another moment than the accounts if the tenant came, went or
            // came back meanwhile. Such a tenant gets no figures.
            let said = tenant.gpus.iter().filter(|gpu| found.contains_key(gpu)).filter_map(|gpu| {
                let place = (tenant.id, *gpu);
                let accounts = [*before.get(&place)?, *after.get(&place)?];
                let bytes = by_tenant.get(&place).copied().unwrap_or(0);
                Some((*gpu, ByNvml { bytes, drift_bytes: drift(bytes, accounts) }))
            });
            tenant.by_nvml = said.collect();
        }
    }

    /// Returns the tenant of a process. The process is a session of the tenant, or a descendant of
    /// one of its processes that bypasses deepres.
    fn owner_of(&self, pid: u32) -> Option<TenantId> {
        let is_session = |tenant: &&Tenant| tenant.sessions.values().any(|session| session.pid == pid);
        if let Some(tenant) = self.tenants.values().find(is_session) {
            return Some(tenant.id);
        }
        let line = successors(read::process(pid), read::parent);
        line.take(read::MAX_ANCESTORS).find_map(|process| {
            self.tenants.values().find(|tenant| tenant.has(&process)).map(|tenant| tenant.id)
        })
    }

    /// Returns the most memory of a GPU that can be promised to the tenant of this key, bytes. Not
    /// available is the memory promised to other tenants, the memory of tenants that cannot be
    /// taken off the GPU, and unmanaged memory.
    pub(super) fn promisable_bytes(&self, own: &Key, gpu: usize) -> u64 {
        let others = self.tenants.values().filter(|tenant| tenant.key != *own && !tenant.is_deserted());
        let there = others.filter(|tenant| tenant.gpus.is_empty() || tenant.gpus.contains(&gpu));
        let taken = there.map(|tenant| tenant.claim_bytes(gpu)).fold(0, u64::saturating_add);
        let strangers = self.strangers_bytes.get(&gpu).copied().unwrap_or(0);
        let memory_bytes = self.gpus.get(gpu).map_or(0, |managed| managed.gpu.memory_bytes);
        memory_bytes.saturating_sub(taken).saturating_sub(strangers)
    }

    /// Promises a tenant its memory on those of `gpus` that have room for it. The tenant is new on
    /// these GPUs. If no GPU has room, it is no guaranteed tenant.
    pub(super) fn promise_on(&mut self, name: &str, gpus: &[usize]) {
        let Some(tenant) = self.tenants.get(name) else { return };
        let new: Vec<usize> = gpus.iter().copied().filter(|gpu| !tenant.gpus.contains(gpu)).collect();
        if !self.promise_where_there_is_room(name, &new)
            && let Some(tenant) = self.tenants.get_mut(name)
        {
            tenant.has_room &= tenant.gpus.iter().chain(gpus).any(|gpu| !tenant.unpromised.contains(gpu));
        }
    }

    /// Promises a tenant more memory than before, on those of its GPUs that have room for it.
    pub(super) fn promise_more(&mut self, name: &str) {
        let Some(tenant) = self.tenants.get_mut(name) else { return };
        tenant.unpromised.clear();
        let gpus = tenant.gpus.clone();
        self.promise_where_there_is_room(name, &gpus);
    }

    /// Returns whether all of `gpus` have room for a tenant's guarantee. On GPUs without room the
    /// tenant has no guarantee, and the log says so.
    fn promise_where_there_is_room(&mut self, name: &str, gpus: &[usize]) -> bool {
        let Some(tenant) = self.tenants.get(name) else { return true };
        let promised_bytes = tenant.promised_bytes();
        let lacks_room = |gpu: &usize| self.promisable_bytes(&tenant.key, *gpu) < promised_bytes;
        let lacking: Vec<usize> = gpus.iter().copied().filter(lacks_room).collect();
        if lacking.is_empty() {
            return true;
        }
        tracing::warn!(
            tenant = name,
            promised_bytes,
            gpus = ?lacking,
            "a guaranteed tenant uses GPUs without room for the memory that it was promised: it is not promised there"
        );
        if let Some(tenant) = self.tenants.get_mut(name) {
            tenant.unpromised.extend(lacking);
        }
        false
    }

    /// Computes the ceiling of each tenant beside the guarantees of others. Tells the arbiters of
    /// changes.
    pub fn renew_ceilings(&mut self) -> Vec<oneshot::Receiver<()>> {
        let mut ready = Vec::new();
        let (now_ns, window_ns) = (monotonic_ns(), self.config.memory_follow_ns());
        for gpu in 0..self.gpus.len() {
            let strangers = self.strangers_bytes.get(&gpu).copied().unwrap_or(0);
            let total_bytes = self.gpus[gpu].gpu.memory_bytes.saturating_sub(strangers);
            let mut here: Vec<&mut Tenant> = self
                .tenants
                .values_mut()
                .filter(|tenant| {
                    !tenant.is_deserted() && (tenant.gpus.is_empty() || tenant.gpus.contains(&gpu))
                })
                .collect();
            here.iter_mut().for_each(|tenant| tenant.note_use(gpu, now_ns, window_ns));
            let holdings: Vec<Holding> = here.iter().map(|tenant| tenant.holding(gpu)).collect();
            for (tenant, ceiling) in here.iter_mut().zip(ceilings(total_bytes, &holdings)) {
                if tenant.ceilings.get(&gpu).copied() == ceiling {
                    continue;
                }
                match ceiling {
                    Some(bytes) => tenant.ceilings.insert(gpu, bytes),
                    None => tenant.ceilings.remove(&gpu),
                };
                if tenant.gpus.contains(&gpu) {
                    ready.push(self.gpus[gpu].arbiter.set_tenant(tenant.seat_on(gpu)));
                }
            }
        }
        ready
    }
}

impl Tenant {
    /// Returns the memory of a GPU that cannot be promised to others because of this tenant, bytes.
    fn claim_bytes(&self, gpu: usize) -> u64 {
        let Holding { promised_bytes, firm_bytes, .. } = self.holding(gpu);
        promised_bytes.max(firm_bytes)
    }

    fn holding(&self, gpu: usize) -> Holding {
        let held = self.ledger.page().gpu(gpu).map_or(0, |ledger| ledger.held_bytes());
        let found = self.by_nvml.get(&gpu).map_or(0, |seen| seen.bytes);
        let firm_bytes = if self.may_leave() { 0 } else { held.max(found) };
        let kept_bytes = self.kept_bytes(gpu);
        let promised_bytes = self.promised_bytes_on(gpu).min(kept_bytes.unwrap_or(u64::MAX));
        Holding { promised_bytes, firm_bytes, kept_bytes }
    }
}

/// Returns how far NVML's figure is from an account that was read before and after it. A figure
/// between the two readings is no difference.
fn drift(bytes: u64, accounts: [u64; 2]) -> i64 {
    let [least, most] = [accounts[0].min(accounts[1]), accounts[0].max(accounts[1])];
    let expected = bytes.clamp(least, most);
    i64::try_from(i128::from(bytes) - i128::from(expected)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::drift;

    #[test]
    fn what_was_allocated_while_nvml_was_asked_is_no_drift() {
        assert_eq!(drift(50, [40, 60]), 0);
        assert_eq!(drift(50, [60, 40]), 0);
        assert_eq!(drift(70, [40, 60]), 10);
        assert_eq!(drift(30, [40, 60]), -10);
    }
}
