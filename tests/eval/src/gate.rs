//! Who may launch when: the interface of all that stands between a program and the GPU.

use deepres_policy::entitlement::Entitlement;

use crate::device::Tenant;

/// What a gate is asked about: the next kernel of a tenant that wants to launch it.
#[derive(Debug, Clone, Copy)]
pub struct Launch {
    /// Whose it is.
    pub tenant: Tenant,
    /// How long it takes with the whole GPU, ns.
    pub length_ns: u64,
    /// When the batch it belongs to was asked for.
    pub arrived_ns: u64,
    /// When that has to be done, if it has to.
    pub due_ns: Option<u64>,
}

/// Stands between programs and the GPU.
pub trait Gate {
    /// Whether the kernel may be launched now. If not, the tenant waits until the gate names it in [`Gate::wake`], or until one of its own
    /// kernels is done.
    fn admit(&mut self, now_ns: u64, launch: &Launch) -> bool;
    /// One of the tenant's kernels is done; `is_idle` if none of it is left that was launched.
    fn done(&mut self, now_ns: u64, tenant: Tenant, length_ns: u64, is_idle: bool);
    /// A batch of the tenant is done; the next one may be there already.
    fn batch_done(&mut self, _now_ns: u64, _tenant: Tenant) {}
    /// The tenant has nothing left to launch or to wait for, for now.
    fn rests(&mut self, now_ns: u64, tenant: Tenant);
    /// When it wants to be woken.
    fn wake_ns(&self) -> Option<u64>;
    /// Its time has come. Appends who may try again.
    fn wake(&mut self, now_ns: u64, retry: &mut Vec<Tenant>);
    /// What each tenant is owed from now on, if that changed since the last time.
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
