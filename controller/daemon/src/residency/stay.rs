//! The data that residency needs of each tenant: the amount and place of its memory, its wants and
//! its processes.

use crate::arbiter::{Report, SessionId};
use crate::registry::Tenants;
use crate::tenant::Tenant;
use deepres_abi::ledger::LedgerGpu;
use deepres_abi::oversubscribe::Oversubscribe;
use deepres_model::clock::monotonic_ns;
use deepres_policy::TenantId;
use deepres_policy::class::Class;
use deepres_policy::residency::{Bytes, GpuIndex, Seen};
use std::collections::BTreeSet;

/// Whether the daemon may take a tenant's memory off the GPUs, and whether the daemon has taken the
/// memory off.
#[derive(Debug, Default)]
pub struct Residence {
    /// The way in which the tenant's memory makes room for other tenants; `None` if the tenant did
    /// not opt in.
    oversubscribe: Option<Oversubscribe>,
    /// The driver could not suspend the tenant. The daemon does not ask the driver again before
    /// this time, ns of `CLOCK_MONOTONIC`.
    stays_until_ns: u64,
    /// Whether the tenant is suspended, or on the way off the GPUs.
    is_suspended: bool,
}

impl Residence {
    /// Sets the way of oversubscription to which the tenant opted in.
    pub fn set_oversubscribe(&mut self, way: Option<Oversubscribe>) {
        self.oversubscribe = way;
    }

    /// Combines the tenant's way of oversubscription with the way to which a further process of the
    /// tenant opted in.
    pub fn join_oversubscribe(&mut self, way: Option<Oversubscribe>) {
        self.oversubscribe = match (self.oversubscribe, way) {
            (Some(way), Some(other)) => Some(way.with(other)),
            (way, other) => way.or(other),
        };
    }

    /// Returns the tenant's way of oversubscription; `None` without one.
    pub fn oversubscribe(&self) -> Option<Oversubscribe> {
        self.oversubscribe
    }

    /// Returns whether the tenant opted in to suspension.
    pub fn lets_itself_be_suspended(&self) -> bool {
        self.oversubscribe == Some(Oversubscribe::Suspend)
    }

    /// Returns whether the daemon may suspend the tenant now, to make room for other tenants.
    pub fn may_leave(&self) -> bool {
        self.lets_itself_be_suspended() && monotonic_ns() >= self.stays_until_ns
    }

    /// Records that the driver could not move the tenant, so that the daemon does not ask the
    /// driver before `until_ns`. Until then no other tenant waits for this tenant's memory.
    pub fn stay_until(&mut self, until_ns: u64) {
        self.stays_until_ns = until_ns;
    }

    /// Returns whether the tenant is suspended, or on the way off the GPUs.
    pub fn is_suspended(&self) -> bool {
        self.is_suspended
    }

    /// Records whether the tenant is suspended or on the way off the GPUs.
    pub fn set_suspended(&mut self, is_suspended: bool) {
        self.is_suspended = is_suspended;
    }
}

/// A tenant with processes on GPUs: the data about its memory that residency needs.
#[derive(Debug, Clone)]
pub struct Stay {
    /// The tenant's name.
    pub name: String,
    /// The tenant's number.
    pub id: TenantId,
    /// The tenant's class.
    pub class: Class,
    /// Whether the daemon may suspend the tenant now.
    pub may_leave: bool,
    /// The tenant's processes on GPUs.
    pub pids: Vec<u32>,
    /// The memory that the tenant holds by its account, by GPU.
    pub held: Bytes,
    /// The memory for which the tenant's processes wait, by GPU.
    pub needs: Bytes,
    /// Whether the tenant has work in flight or a waiting thread.
    pub wants: bool,
    /// A number that changes whenever the tenant has done anything on a GPU.
    pub done: u64,
}

/// Returns whether any tenant opted in to suspension.
pub fn is_any_oversubscribed(tenants: &Tenants) -> bool {
    let opted_in = |tenant: &Tenant| {
        tenant.residence.lets_itself_be_suspended() && !tenant.members.sessions().is_empty()
    };
    tenants.iter().any(|(_, tenant)| opted_in(tenant))
}

/// Returns whether any tenant may make room, or waits for room.
pub fn is_anybody_to_make_room(tenants: &Tenants) -> bool {
    let waits = |tenant: &Tenant| ledgers(tenant).any(|ledger| ledger.needed_bytes() > 0);
    is_any_oversubscribed(tenants) || tenants.iter().any(|(_, tenant)| waits(tenant))
}

/// Returns every tenant with processes on GPUs.
pub fn stays(tenants: &Tenants, reports: &[Report]) -> Vec<Stay> {
    let sessions = reports.iter().flat_map(|report| &report.sessions);
    let busy = sessions.filter(|(_, session)| session.in_flight || session.waiters > 0);
    let busy: BTreeSet<SessionId> = busy.map(|(id, _)| *id).collect();
    let present = tenants.iter().filter(|(_, tenant)| !tenant.members.sessions().is_empty());
    present
        .map(|(name, tenant)| {
            let wants = tenant.members.sessions().keys().any(|id| busy.contains(id));
            Stay { wants, ..Stay::of(name, tenant) }
        })
        .collect()
}

/// Returns `seen` with the memory that the tenants hold now, where this is more. Between the look
/// at the tenants and NVML's figure for free memory, tenants may have taken or freed memory. With
/// the larger amounts, no memory is missing in the sum of free and held memory.
pub fn grown(seen: &[Seen], tenants: &Tenants) -> Vec<Seen> {
    let grown = |seen: &Seen| {
        let mut grown = seen.clone();
        if let Some((name, tenant)) = tenants.iter().find(|(_, tenant)| tenant.id == seen.id) {
            for (gpu, now) in Stay::of(name, tenant).held {
                grown.bytes.entry(gpu).and_modify(|held| *held = (*held).max(now)).or_insert(now);
            }
        }
        grown
    };
    seen.iter().map(grown).collect()
}

/// Returns whether a tenant has work in flight.
pub fn has_work(tenant: &Tenant) -> bool {
    tenant.members.sessions().values().any(|session| {
        let mut slots = session.gpus.iter().filter_map(|gpu| session.meter.page().slot(*gpu));
        slots.any(|slot| slot.read().in_flight)
    })
}

/// Writes into the ledgers of each tenant in `seen` the most memory for which its threads may
/// reasonably wait. The ledgers of a tenant that came later stay as [`let_wait`] left them.
pub fn say_what_is_obtainable(tenants: &Tenants, seen: &[Seen], free: &Bytes) {
    for (_, tenant) in tenants.iter() {
        let Some(own) = seen.iter().find(|seen| seen.id == tenant.id) else { continue };
        for gpu in tenant.gpus() {
            let Some(ledger) = tenant.memory.on(*gpu) else { continue };
            let free_bytes = free.get(gpu).copied().unwrap_or(0);
            ledger.set_obtainable(own.obtainable_bytes(*gpu, free_bytes, seen));
        }
    }
}

/// Tells all tenants on a GPU, except `applicant`, that `applicant` waits for memory.
pub fn press_others(tenants: &Tenants, applicant: TenantId, gpu: GpuIndex) {
    let others = tenants.iter().filter(|(_, tenant)| tenant.id != applicant && tenant.is_on(gpu));
    others.filter_map(|(_, tenant)| tenant.memory.on(gpu)).for_each(LedgerGpu::press);
}

/// Makes a tenant's processes wait for any memory that the driver lacks, until residency has
/// computed how much memory the daemon can free.
pub fn let_wait(tenant: &Tenant) {
    ledgers(tenant).for_each(|ledger| ledger.set_obtainable(u64::MAX));
}

/// Tells a tenant's waiting processes that the GPU has room, so that they ask the driver for memory
/// again.
pub fn announce_room(tenant: &Tenant) {
    ledgers(tenant).for_each(LedgerGpu::announce_room);
}

/// Returns a tenant's ledgers of the GPUs on which the tenant has been.
fn ledgers(tenant: &Tenant) -> impl Iterator<Item = &LedgerGpu> {
    tenant.gpus().iter().filter_map(|gpu| tenant.memory.on(*gpu))
}

impl Stay {
    /// Returns the data of a tenant. The caller sets [`Self::wants`].
    pub fn of(name: &str, tenant: &Tenant) -> Self {
        let on_gpus = |of: fn(&LedgerGpu) -> u64| -> Bytes {
            let all = tenant.gpus().iter().filter_map(|gpu| Some((*gpu, of(tenant.memory.on(*gpu)?))));
            all.filter(|(_, bytes)| *bytes > 0).collect()
        };
        let sessions = || tenant.members.sessions().values();
        let mut pids: Vec<u32> = sessions().map(|session| session.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        let slots = sessions().flat_map(|session| {
            session.gpus.iter().filter_map(|gpu| Some(session.meter.page().slot(*gpu)?.read()))
        });
        let done = slots.flat_map(|seen| {
            let launched = [seen.kernel_launches, seen.graph_launches, seen.copy_ns, seen.occupied_ns];
            launched.into_iter().chain(seen.held_bytes)
        });
        Self {
            name: name.to_owned(),
            id: tenant.id,
            class: tenant.terms.granted().class.value,
            may_leave: tenant.residence.may_leave(),
            pids,
            held: on_gpus(LedgerGpu::held_bytes),
            needs: on_gpus(LedgerGpu::needed_bytes),
            wants: false,
            done: done.fold(0, u64::wrapping_add),
        }
    }
}
