//! What the configuration says of priorities, of what guests may cost, and of tenants that ask for nothing.

use super::caps::{memory, share, word};
use crate::authority::Wish;
use crate::quantity::parse_time;
use deepres_abi::grant::NO_LIMIT;
use deepres_abi::quantity::parse_part;
use deepres_policy::class::Class;
use deepres_policy::lease::guard::DEFAULT_MAX_HARM_PPM;
use deepres_policy::priority::{Criticality, Weights};
use serde::{Deserialize, Deserializer};

/// What each term of the priority value weighs; only their ratio matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PriorityKeys {
    /// Of urgency.
    pub urgency: u64,
    /// Of size.
    pub size: u64,
    /// Of criticality.
    pub criticality: u64,
}

impl Default for PriorityKeys {
    fn default() -> Self {
        Self { urgency: 40, size: 20, criticality: 40 }
    }
}

impl PriorityKeys {
    /// What they add up to, at most and at least.
    pub const SUM: std::ops::Range<u64> = 1..1_000_001;

    /// The sum of the weights.
    pub fn sum(&self) -> u64 {
        self.urgency.saturating_add(self.size).saturating_add(self.criticality)
    }

    /// The weights, adding up to 1.
    pub fn weights(&self) -> Weights {
        let part = |key: u64| key as f64 / self.sum() as f64;
        Weights { urgency: part(self.urgency), size: part(self.size), criticality: part(self.criticality) }
    }
}

/// What a tenant is taken to ask for where it says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Defaults {
    #[serde(deserialize_with = "some_share")]
    share: Option<u32>,
    #[serde(deserialize_with = "some_memory")]
    memory: Option<u64>,
    #[serde(deserialize_with = "some_class")]
    class: Option<Class>,
    #[serde(deserialize_with = "some_criticality")]
    criticality: Option<Criticality>,
    #[serde(deserialize_with = "some_time")]
    slo: Option<u64>,
    memory_follow_use: Option<bool>,
    charge_copies: Option<bool>,
}

impl Defaults {
    /// As a wish.
    pub fn wish(&self) -> Wish {
        Wish {
            share_ppm: self.share,
            memory_bytes: self.memory,
            class: self.class,
            criticality: self.criticality,
            slo_ns: self.slo,
            memory_follows_use: self.memory_follow_use,
            charge_copies: self.charge_copies,
            ..Wish::default()
        }
    }

    /// A guarantee is of a share.
    pub fn lacks_share(&self) -> bool {
        self.class == Some(Class::Guaranteed) && self.share.is_none()
    }
}

/// The default of `max_harm`, parts per million.
pub const MAX_HARM_PPM: u32 = DEFAULT_MAX_HARM_PPM;

/// Reads a part from 0% to 100%, in parts per million.
pub fn part<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_part(&text)
        .ok_or_else(|| serde::de::Error::custom(format!("`{text}` is not a percentage from 0% to 100%")))
}

fn some_share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    share(deserializer).map(Some)
}

fn some_memory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    memory(deserializer).map(|bytes| Some(bytes).filter(|bytes| *bytes != NO_LIMIT))
}

fn some_class<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Class>, D::Error> {
    word(deserializer).map(Some)
}

fn some_criticality<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Criticality>, D::Error> {
    word(deserializer).map(Some)
}

fn some_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    parse_time(&String::deserialize(deserializer)?).map(Some).map_err(serde::de::Error::custom)
}
