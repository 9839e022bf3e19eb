//! The interface of everything that stands between a program and the GPU, and decides who may
//! launch when.

use deepres_policy::entitlement::Entitlement;

use crate::device::Tenant;

/// The question to a gate: the next kernel of a tenant that wants to launch it.
#[derive(Debug, Clone, Copy)]
pub struct Launch {
    /// Tenant that launches.
    pub tenant: Tenant,
    /// Time that the kernel takes with the whole GPU, ns.
    pub length_ns: u64,
    /// Time when the kernel's batch was asked for.
    pub arrived_ns: u64,
    /// Time when the batch must be done, if there is a limit.
    pub due_ns: Option<u64>,
}

/// A gate between programs and the GPU.
pub trait Gate {
    /// Whether the kernel may be launched now. If not, the tenant waits until the gate names it in
    /// [`Gate::wake`], or until one of its own kernels is done.
    fn admit(&mut self, now_ns: u64, launch: &Launch) -> bool;
    /// One of the tenant's kernels is done. `is_idle` says that no launched kernel of the tenant is
    /// left.
    fn done(&mut self, now_ns: u64, tenant: Tenant, length_ns: u64, is_idle: bool);
    /// A batch of the tenant is done. The next one may be available already.
    fn batch_done(&mut self, _now_ns: u64, _tenant: Tenant) {}
    /// The tenant has nothing left to launch or to wait for, for now.
    fn rests(&mut self, now_ns: u64, tenant: Tenant);
    /// Returns the time when the gate wants to be woken.
    fn wake_ns(&self) -> Option<u64>;
    /// Wakes the gate at that time. Appends the tenants that may try again.
    fn wake(&mut self, now_ns: u64, retry: &mut Vec<Tenant>);
    /// Returns each tenant's entitlement from now on, if it changed since the last call.
    fn take_owed(&mut self) -> Option<Vec<Entitlement>> {
        None
    }
}

/// No gate: every launch goes through.
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
