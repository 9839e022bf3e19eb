//! The ways in which a tenant's memory makes room for other tenants. Frames on the tenant socket
//! carry a way as a number, and people write its name.
//!
//! A way is no wish ([`crate::wish`]): each process of a tenant chooses its own way, and the daemon
//! combines the ways ([`Oversubscribe::with`]). No cap bounds a way, `deepres set` cannot change a
//! way, and the state file has none.

use core::fmt;
use core::str::FromStr;

/// A way in which a tenant's memory makes room for other tenants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Oversubscribe {
    /// The daemon may suspend the whole tenant and bring it back.
    Suspend = 1,
    /// Memory beyond the tenant's limit is managed memory. The memory beyond the limit is on the
    /// GPU while the tenant has a lease.
    Managed = 2,
}

impl Oversubscribe {
    /// All ways of oversubscription.
    pub const ALL: [Self; 2] = [Self::Suspend, Self::Managed];

    /// Returns the way's name, as people write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Suspend => "suspend",
            Self::Managed => "managed",
        }
    }

    /// Returns the way with this number, or `None` if there is none. No way has the number 0.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|way| *way as u32 == number)
    }

    /// Returns the way of a tenant whose processes ask for `self` and for `other`. If the two
    /// differ, returns [`Self::Managed`]. The driver's checkpoint functions do not move managed
    /// memory, so the daemon cannot suspend such a tenant.
    pub fn with(self, other: Self) -> Self {
        if self == other { self } else { Self::Managed }
    }
}

/// The error for a word that names no way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OversubscribeError;

impl fmt::Display for OversubscribeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a way of oversubscription is one of suspend and managed")
    }
}

impl core::error::Error for OversubscribeError {}

impl FromStr for Oversubscribe {
    type Err = OversubscribeError;

    fn from_str(text: &str) -> Result<Self, OversubscribeError> {
        Self::ALL.into_iter().find(|way| text == way.name()).ok_or(OversubscribeError)
    }
}

/// Tenants leave the host's total memory divided by this number to other programs.
const HOST_RESERVE_PARTS: u64 = 16;

/// The memory of the host, to which the driver moves tenants' memory from the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostMemory {
    /// All memory of the host, bytes.
    pub total_bytes: u64,
    /// Host memory that programs can still take without swapping, bytes.
    pub available_bytes: u64,
}

impl HostMemory {
    /// The file whose text [`Self::parse`] reads.
    pub const FILE: &str = "/proc/meminfo";

    /// Returns the memory by the text of [`Self::FILE`], or `None` if the text lacks a figure.
    pub fn parse(meminfo: &str) -> Option<Self> {
        let field = |name: &str| -> Option<u64> {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
        };
        Some(Self { total_bytes: field("MemTotal:")?, available_bytes: field("MemAvailable:")? })
    }

    /// Returns the memory that tenants leave to other programs, bytes.
    pub const fn reserve_bytes(&self) -> u64 {
        self.total_bytes / HOST_RESERVE_PARTS
    }

    /// Returns the memory that the host can still give to tenants, bytes: the available memory,
    /// less the part for other programs. Memory that tenants use already is not "available" in
    /// `/proc/meminfo`.
    pub const fn room_bytes(&self) -> u64 {
        self.available_bytes.saturating_sub(self.reserve_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_has_a_name_and_a_number_and_managed_memory_keeps_its_tenant_where_it_is() {
        for way in Oversubscribe::ALL {
            assert_eq!(way.name().parse(), Ok(way));
            assert_eq!(Oversubscribe::from_number(way as u32), Some(way));
            assert_eq!(way.with(way), way);
        }
        assert_eq!("swap".parse::<Oversubscribe>(), Err(OversubscribeError));
        assert_eq!((Oversubscribe::from_number(0), Oversubscribe::from_number(3)), (None, None));
        assert_eq!(Oversubscribe::Suspend.with(Oversubscribe::Managed), Oversubscribe::Managed);
        assert_eq!(Oversubscribe::Managed.with(Oversubscribe::Suspend), Oversubscribe::Managed);
    }
}
