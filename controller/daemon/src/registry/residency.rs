//! The registry's part in residency: where tenants' memory is, for [`crate::residency`].

use super::Registry;
use super::tenant::Tenant;
use crate::arbiter::Report;
use deepres_abi::ledger::LedgerGpu;
use deepres_policy::TenantId;
use deepres_policy::class::Class;
use deepres_policy::residency::{Bytes, GpuIndex, Seen};
use tokio::sync::oneshot;

/// A tenant that may hold memory.
#[derive(Debug, Clone)]
pub struct Stay {
    /// The tenant's name.
    pub name: String,
    /// The tenant's number.
    pub id: TenantId,
    /// The tenant's class.
    pub class: Class,
    /// Whether the tenant opted in to being suspended, and the driver can do that.
    pub may_leave: bool,
    /// The tenant's processes on GPUs.
    pub pids: Vec<u32>,
    /// The memory that the tenant holds by its account, by GPU.
    pub held: Bytes,
    /// The memory that its processes wait for, by GPU.
    pub needs: Bytes,
    /// Whether the tenant has work in flight or a waiting thread.
    pub wants: bool,
    /// A number that changes whenever the tenant did anything on a GPU.
    pub done: u64,
}

impl Registry {
    /// Returns whether any tenant opted in to being suspended.
    pub fn is_oversubscribed(&self) -> bool {
        self.tenants.values().any(|tenant| tenant.lets_itself_be_suspended() && !tenant.sessions.is_empty())
    }

    /// Returns whether any tenant could make room, or waits for room.
    pub fn is_anybody_to_make_room(&self) -> bool {
        let waits = |tenant: &Tenant| {
            let mut ledgers = tenant.gpus.iter().filter_map(|gpu| tenant.ledger_on(*gpu));
            ledgers.any(|ledger| ledger.needed_bytes() > 0)
        };
        self.is_oversubscribed() || self.tenants.values().any(waits)
    }

    /// Returns the GPUs' UUIDs, by their numbers.
    pub fn gpu_uuids(&self) -> Vec<String> {
        self.gpus.iter().map(|managed| managed.gpu.uuid_text.clone()).collect()
    }

    /// Returns every tenant with processes on GPUs.
    pub fn stays(&self, reports: &[Report]) -> Vec<Stay> {
        let present = self.tenants.iter().filter(|(_, tenant)| !tenant.sessions.is_empty());
        present
            .map(|(name, tenant)| {
                let sessions = reports.iter().flat_map(|report| &report.sessions);
                let own = sessions.filter(|(id, _)| tenant.sessions.contains_key(id));
                let wants = own.into_iter().any(|(_, session)| session.in_flight || session.waiters > 0);
                Stay { wants, ..tenant.stay(name) }
            })
            .collect()
    }

    /// Returns one tenant, for an administrator's command.
    ///
    /// # Errors
    /// The message for the administrator.
    pub fn stay(&self, name: &str) -> Result<Stay, String> {
        self.tenants.get(name).map(|tenant| tenant.stay(name)).ok_or_else(|| self.unknown(name))
    }

    /// Closes a tenant's gates while it is off the GPUs, or opens them again.
    pub fn set_suspended(&mut self, name: &str, is_suspended: bool) -> Vec<oneshot::Receiver<()>> {
        if let Some(tenant) = self.tenants.get_mut(name) {
            tenant.is_suspended = is_suspended;
            // NVML's figures belong to the state before. For a tenant whose memory is on the host
            // NVML has none.
            tenant.by_nvml.clear();
        }
        self.tell_arbiters(name)
    }

    /// Notes that the driver could not move a tenant, and is not asked to before `until_ns`. So no
    /// other tenant waits for its memory.
    pub fn cannot_leave(&mut self, name: &str, until_ns: u64) {
        if let Some(tenant) = self.tenants.get_mut(name) {
            tenant.stays_until_ns = until_ns;
        }
    }

    /// Returns whether the tenant has work in flight.
    pub fn has_work(&self, name: &str) -> bool {
        let Some(tenant) = self.tenants.get(name) else { return false };
        tenant.sessions.values().any(|session| {
            session
                .gpus
                .iter()
                .any(|gpu| session.meter.page().slot(*gpu).is_some_and(|slot| slot.read().in_flight))
        })
    }

    /// Tells each tenant for how much memory it makes sense to wait.
    pub fn say_what_is_obtainable(&self, seen: &[Seen], free: &Bytes) {
        for tenant in self.tenants.values() {
            let own = seen.iter().find(|seen| seen.id == tenant.id);
            for gpu in &tenant.gpus {
                let Some(ledger) = tenant.ledger_on(*gpu) else { continue };
                let free_bytes = free.get(gpu).copied().unwrap_or(0);
                ledger.set_obtainable(own.map_or(0, |own| own.obtainable_bytes(*gpu, free_bytes, seen)));
            }
        }
    }

    /// Tells all tenants on a GPU, except `applicant`, that `applicant` waits for memory.
    pub fn press_others(&self, applicant: TenantId, gpu: GpuIndex) {
        let others =
            self.tenants.values().filter(|tenant| tenant.id != applicant && tenant.gpus.contains(&gpu));
        others.filter_map(|tenant| tenant.ledger_on(gpu)).for_each(LedgerGpu::press);
    }

    /// Makes a tenant's processes wait for any memory that the driver lacks.
    pub fn let_wait(&self, name: &str) {
        let Some(tenant) = self.tenants.get(name) else { return };
        let ledgers = tenant.gpus.iter().filter_map(|gpu| tenant.ledger_on(*gpu));
        ledgers.for_each(|ledger| ledger.set_obtainable(u64::MAX));
    }

    /// Lets a tenant's processes ask the driver again.
    pub fn announce_room(&self, name: &str) {
        let Some(tenant) = self.tenants.get(name) else { return };
        tenant.gpus.iter().filter_map(|gpu| tenant.ledger_on(*gpu)).for_each(LedgerGpu::announce_room);
    }
}

impl Tenant {
    fn ledger_on(&self, gpu: usize) -> Option<&LedgerGpu> {
        self.ledger.page().gpu(gpu)
    }

    fn stay(&self, name: &str) -> Stay {
        let on_gpus = |of: fn(&LedgerGpu) -> u64| -> Bytes {
            let all = self.gpus.iter().filter_map(|gpu| Some((*gpu, of(self.ledger_on(*gpu)?))));
            all.filter(|(_, bytes)| *bytes > 0).collect()
        };
        let mut pids: Vec<u32> = self.sessions.values().map(|session| session.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        let slots = self.sessions.values().flat_map(|session| {
            session.gpus.iter().filter_map(|gpu| Some(session.meter.page().slot(*gpu)?.read()))
        });
        let done = slots.flat_map(|seen| {
            let launched = [seen.kernel_launches, seen.graph_launches, seen.copy_ns, seen.occupied_ns];
            launched.into_iter().chain(seen.held_bytes)
        });
        Stay {
            name: name.to_owned(),
            id: self.id,
            class: self.granted().class.value,
            may_leave: self.may_leave(),
            pids,
            held: on_gpus(LedgerGpu::held_bytes),
            needs: on_gpus(LedgerGpu::needed_bytes),
            wants: false,
            done: done.fold(0, u64::wrapping_add),
        }
    }
}
