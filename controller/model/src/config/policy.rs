//! What the configuration says of priorities, of what guests may cost, and of tenants that ask for nothing.

use crate::quantity::parse_limit;
use crate::wish::{Key, Kind, Value, Wish, about, parse};
use deepres_abi::grant::NO_LIMIT;
use deepres_abi::quantity::parse_part;
use deepres_policy::class::Class;
use deepres_policy::lease::guard::DEFAULT_MAX_HARM_PPM;
use deepres_policy::priority::Weights;
use serde::de::{DeserializeSeed, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;

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

/// The wishes of a tenant that says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Defaults(Wish);

impl Defaults {
    /// The wishes.
    pub fn wish(&self) -> Wish {
        self.0
    }

    /// A guarantee is of a share.
    pub fn lacks_share(&self) -> bool {
        self.0.class == Some(Class::Guaranteed) && self.0.share_ppm.is_none()
    }
}

impl<'de> Deserialize<'de> for Defaults {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(DefaultsVisitor)
    }
}

struct DefaultsVisitor;

impl<'de> Visitor<'de> for DefaultsVisitor {
    type Value = Defaults;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("wishes")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Defaults, A::Error> {
        let mut wish = Wish::default();
        while let Some(name) = map.next_key::<String>()? {
            let is_known = |key: &Key| key.name() == name && about(*key).may_be_default;
            let key = Key::ALL.into_iter().find(is_known);
            let key = key.ok_or_else(|| A::Error::custom(format!("unknown key `{name}`")))?;
            // No limit is what a tenant has without a wish.
            if let Some(value) = map.next_value_seed(ValueOf(key))? {
                wish.set(key, value);
            }
        }
        Ok(Defaults(wish))
    }
}

/// Reads the value of a wish: a switch, or a text.
struct ValueOf(Key);

impl<'de> DeserializeSeed<'de> for ValueOf {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        if self.0.kind() == Kind::Switch {
            return bool::deserialize(deserializer).map(|is_on| Some(Value::Switch(is_on)));
        }
        let text = String::deserialize(deserializer)?;
        if self.0 == Key::Memory && parse_limit(&text) == Ok(NO_LIMIT) {
            return Ok(None);
        }
        parse(self.0.kind(), &text).map(Some).map_err(|error| match self.0.kind() {
            // The others name the text by themselves.
            Kind::Class | Kind::Criticality | Kind::Labels => D::Error::custom(format!("`{text}`: {error}")),
            _ => D::Error::custom(error),
        })
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
