//! Bounds the host's memory that oversubscribing tenants may take together: managed memory beyond
//! the limits, and the memory of suspended tenants.
//!
//! A tenant with managed memory reserves host memory in its ledger before the driver takes it. The
//! daemon bounds each tenant by the memory that the tenant has reserved, and an equal part of the
//! host's free room. So two tenants cannot reserve the same memory, however fast they grow.

use crate::Shared;
use crate::registry::Tenants;
use crate::tenant::Tenant;
use deepres_abi::oversubscribe::{HostMemory, Oversubscribe};
use deepres_model::quantity::Bytes;

/// Returns the memory that the host can still give to tenants, bytes. `promised_bytes` is memory
/// that tenants reserved and do not use yet. `away_bytes` is the memory of suspended tenants.
fn room_of(host: &HostMemory, promised_bytes: u64, suspended_bytes: u64) -> u64 {
    // The driver can count the memory of suspended tenants late, or not as used.
    let beside_bytes = host.total_bytes.saturating_sub(host.reserve_bytes()).saturating_sub(suspended_bytes);
    host.room_bytes().min(beside_bytes).saturating_sub(promised_bytes)
}

/// Returns the tenants with managed memory beyond their limits.
fn managed(tenants: &Tenants) -> impl Iterator<Item = &Tenant> {
    let is_managed = |tenant: &&Tenant| tenant.residence.oversubscribe() == Some(Oversubscribe::Managed);
    tenants.iter().map(|(_, tenant)| tenant).filter(is_managed)
}

fn promised_bytes(tenant: &Tenant) -> u64 {
    tenant.memory.ledger().page().host().held_bytes()
}

/// Returns the memory that the host can still give oversubscribing tenants, bytes. Returns `None`
/// if the system does not tell.
fn room_bytes(shared: &Shared) -> Option<u64> {
    let promised =
        managed(shared.registry.borrow().tenancy.tenants()).map(promised_bytes).fold(0, u64::saturating_add);
    let host = HostMemory::parse(&std::fs::read_to_string(HostMemory::FILE).ok()?)?;
    Some(room_of(&host, promised, shared.residency.borrow().suspended_bytes()))
}

/// Bounds the host memory of each tenant with managed memory. The caller does so every second, and
/// before a new session learns of its ledger.
pub fn share_out(shared: &Shared) {
    let count = managed(shared.registry.borrow().tenancy.tenants()).count() as u64;
    if count == 0 {
        return;
    }
    let Some(room_bytes) = room_bytes(shared) else { return };
    for tenant in managed(shared.registry.borrow().tenancy.tenants()) {
        let bound_bytes = promised_bytes(tenant).saturating_add(room_bytes / count);
        // A bound of 0 would mean none.
        tenant.memory.ledger().page().host().set_obtainable(bound_bytes.max(1));
    }
}

/// Returns the reason for which the host cannot take a tenant's memory of `bytes`; `None` if it
/// can.
pub fn refusal(name: &str, bytes: u64, shared: &Shared) -> Option<String> {
    let room_bytes = room_bytes(shared)?;
    (bytes > room_bytes).then(|| {
        format!(
            "the host has no room for the memory of `{name}`: the tenant holds {}, and the host can take {}; end other programs, or let tenants hold less",
            Bytes(bytes),
            Bytes(room_bytes)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_is_what_neither_programs_nor_promises_nor_suspended_tenants_take() {
        let host =
            HostMemory::parse("MemTotal:       160 kB\nMemFree:  1 kB\nMemAvailable:    90 kB\n").unwrap();
        assert_eq!(host, HostMemory { total_bytes: 160 << 10, available_bytes: 90 << 10 });
        let room_kib = |promised: u64, suspended: u64| room_of(&host, promised << 10, suspended << 10) >> 10;
        assert_eq!([room_kib(0, 0), room_kib(30, 0), room_kib(200, 0)], [80, 50, 0]);
        assert_eq!([room_kib(0, 60), room_kib(0, 100), room_kib(10, 100)], [80, 50, 40]);
        assert_eq!(HostMemory::parse("MemTotal: 16 kB\n"), None);
    }
}
