//! The caps of users: for everybody, by group and by user.

use crate::quantity::{Percent, limit_text, parse_limit, parse_share};
use deepres_abi::PPM;
use deepres_abi::grant::NO_LIMIT;
use deepres_policy::class::Class;
use deepres_policy::priority::Criticality;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// The most that a user may have. Share and memory bound all tenants of the user together. The
/// other caps bind each tenant by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Caps {
    /// The share, parts per million.
    #[serde(rename = "share", serialize_with = "percent", deserialize_with = "share")]
    pub share_ppm: u32,
    /// Memory on each GPU, bytes.
    #[serde(rename = "memory", serialize_with = "limit", deserialize_with = "memory")]
    pub memory_bytes: u64,
    /// The strongest class.
    #[serde(serialize_with = "shown", deserialize_with = "word")]
    pub class: Class,
    /// The highest criticality.
    #[serde(serialize_with = "shown", deserialize_with = "word")]
    pub criticality: Criticality,
    /// Whether deadlines count.
    pub deadline: bool,
    /// Whether SLOs count.
    pub slo: bool,
    /// Whether the arbiter charges copies even if the tenant does not ask for the charge.
    pub charge_copies: bool,
    /// Whether parts of the SMs count. Follows from the key `mps` for all users.
    #[serde(skip)]
    pub sm: bool,
}

impl Default for Caps {
    fn default() -> Self {
        Self::NONE
    }
}

impl Caps {
    /// Caps that bound nothing.
    pub const NONE: Self = Self {
        share_ppm: PPM,
        memory_bytes: NO_LIMIT,
        class: Class::Guaranteed,
        criticality: Criticality::CRITICAL,
        deadline: true,
        slo: true,
        charge_copies: false,
        sm: true,
    };

    /// Returns whether the caps bound the share or the memory.
    pub fn is_any(&self) -> bool {
        self.share_ppm < PPM || self.memory_bytes != NO_LIMIT
    }

    /// Returns the more generous of two caps, key by key.
    pub fn or(self, other: Self) -> Self {
        Self {
            share_ppm: self.share_ppm.max(other.share_ppm),
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
            class: self.class.min(other.class),
            criticality: self.criticality.max(other.criticality),
            deadline: self.deadline || other.deadline,
            slo: self.slo || other.slo,
            charge_copies: self.charge_copies && other.charge_copies,
            sm: self.sm || other.sm,
        }
    }
}

/// The section of the configuration from which a user's caps come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CapOf {
    /// The caps come from the configuration for this user.
    User(u32),
    /// The caps come from the configuration for the user's groups.
    Groups,
    /// The caps come from the configuration for all users.
    Everyone,
    /// The caps are the part of the GPUs that the cluster's scheduler gave to the job.
    Allotment,
}

impl fmt::Display for CapOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(user) => write!(f, "the cap of user {user}"),
            Self::Groups => write!(f, "the cap of its user's groups"),
            Self::Everyone => write!(f, "the cap for everybody"),
            Self::Allotment => write!(f, "the part that the cluster gave to the job"),
        }
    }
}

/// Reads a share as users write it, for example `30%`. Returns parts per million.
pub fn share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    parse_share(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

/// Reads a size of memory, or the word that means no limit.
pub fn memory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    parse_limit(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

/// Reads a class or a criticality.
pub fn word<'de, T: FromStr<Err: fmt::Display>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|error| serde::de::Error::custom(format!("`{text}`: {error}")))
}

/// Writes parts per million as a percentage.
pub fn percent<S: Serializer>(ppm: &u32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&Percent(*ppm))
}

/// Writes a size of memory, or the word that means no limit.
fn limit<S: Serializer>(bytes: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&limit_text(*bytes))
}

/// Writes a value as people read it.
fn shown<T: fmt::Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}
