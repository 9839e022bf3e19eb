//! The interface of a policy in the evaluation: a gate stands between programs and the GPU, and
//! decides which tenant may launch when.

use deepres_policy::entitlement::Entitlement;

use crate::device::Tenant;

/// A launch about which a gate decides: the next kernel of a tenant.
#[derive(Debug, Clone, Copy)]
pub struct Launch {
    /// Tenant that launches.
    pub tenant: Tenant,
    /// Time that the kernel takes with the whole GPU, ns.
    pub length_ns: u64,
    /// Time when the program asked for the kernel's batch.
    pub arrived_ns: u64,
    /// Time when the batch must be done, if there is a limit.
    pub due_ns: Option<u64>,
}

/// A gate between programs and the GPU.
pub trait Gate {
    /// Returns whether the tenant may launch the kernel now. If the result is false, the tenant
    /// tries again when [`Gate::wake`] names the tenant, or when one of its kernels is done.
    fn admit(&mut self, now_ns: u64, launch: &Launch) -> bool;
    /// Tells the gate that one of the tenant's kernels is done. `is_idle` says that no launched
    /// kernel of the tenant is left.
    fn done(&mut self, now_ns: u64, tenant: Tenant, length_ns: u64, is_idle: bool);
    /// Tells the gate that a batch of the tenant is done. The tenant's next batch can be available
    /// already.
    fn batch_done(&mut self, _now_ns: u64, _tenant: Tenant) {}
    /// Tells the gate that the tenant has nothing to launch and no running kernel at this moment.
    fn rests(&mut self, now_ns: u64, tenant: Tenant);
    /// Returns the time when the gate wants to be woken.
    fn wake_ns(&self) -> Option<u64>;
    /// Wakes the gate at the time of [`Gate::wake_ns`]. Appends the tenants that may try again to
    /// `retry`.
    fn wake(&mut self, now_ns: u64, retry: &mut Vec<Tenant>);
    /// Returns each tenant's entitlement from now on, if it changed since the last call.
    fn take_owed(&mut self) -> Option<Vec<Entitlement>> {
        None
    }
}

/// The gate of a policy without a gate: every launch goes through.
pub struct Absent;

impl Gate for Absent {
    fn admit(&mut self, _: u64, _: &Launch) -> bool {
        true
    }
    fn done(&mut self, _: u64, _: Tenant, _: u64, _: bool) {}
    fn rests(&mut self, _: u64, _: Tenant) {}
    fn wake_ns(&self) -> Option<u64> {
        None
    }
    fn wake(&mut self, _: u64, _: &mut Vec<Tenant>) {}
}
