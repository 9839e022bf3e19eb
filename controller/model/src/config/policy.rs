//! The configuration's keys for priorities, for the cost of guests, and for default wishes.

use crate::quantity::{limit_text, parse_limit};
use crate::wish::{Key, Kind, Shown, Value, Wish, about, parse};
use deepres_abi::grant::NO_LIMIT;
use deepres_abi::quantity::parse_part;
use deepres_policy::class::Class;
use deepres_policy::lease::guard::DEFAULT_MAX_HARM_PPM;
use deepres_policy::priority::Weights;
use serde::de::{DeserializeSeed, Error, MapAccess, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// The weights of the terms of the priority value. Only their ratio matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PriorityKeys {
    /// The weight of urgency.
    pub urgency: u64,
    /// The weight of size.
    pub size: u64,
    /// The weight of criticality.
    pub criticality: u64,
}

impl Default for PriorityKeys {
    fn default() -> Self {
        Self { urgency: 40, size: 20, criticality: 40 }
    }
}

impl PriorityKeys {
    /// The values that the sum of the three weights may have.
    pub const SUM: std::ops::Range<u64> = 1..1_000_001;

    /// Returns the sum of the weights.
    pub fn sum(&self) -> u64 {
        self.urgency.saturating_add(self.size).saturating_add(self.criticality)
    }

    /// Returns the weights, scaled so that they add up to 1.
    pub fn weights(&self) -> Weights {
        let part = |key: u64| key as f64 / self.sum() as f64;
        Weights { urgency: part(self.urgency), size: part(self.size), criticality: part(self.criticality) }
    }
}

/// The wishes of a tenant that asks for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Defaults(Wish);

impl Defaults {
    /// Returns the default wishes.
    pub fn wish(&self) -> Wish {
        self.0
    }

    /// Returns whether the class is guaranteed but the share is missing, which a guarantee needs.
    pub fn lacks_share(&self) -> bool {
        self.0.class == Some(Class::Guaranteed) && self.0.share_ppm.is_none()
    }
}

impl Serialize for Defaults {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in self.0.iter() {
            match value {
                Value::Switch(is_on) => map.serialize_entry(key.name(), &is_on)?,
                value => map.serialize_entry(key.name(), &text(key, value))?,
            }
        }
        map.end()
    }
}

/// Returns the text from which the configuration reads exactly this value.
fn text(key: Key, value: Value) -> String {
    let shown = Shown(value).to_string();
    match value {
        Value::Bytes(bytes) => limit_text(bytes),
        _ if parse(key.kind(), &shown).is_ok_and(|read| read == value) => shown,
        value => value.to_string(),
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
            // The text `unlimited` sets no wish, because a tenant without a wish has no limit.
            if let Some(value) = map.next_value_seed(ValueOf(key))? {
                wish.set(key, value);
            }
        }
        Ok(Defaults(wish))
    }
}

/// Reads the value of a wish: a switch or a text.
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
            // The errors of the other kinds quote the text themselves.
            Kind::Class | Kind::Criticality | Kind::Labels => D::Error::custom(format!("`{text}`: {error}")),
            _ => D::Error::custom(error),
        })
    }
}

/// The default of `max_harm`, parts per million.
pub const MAX_HARM_PPM: u32 = DEFAULT_MAX_HARM_PPM;

/// Reads a percentage from 0% to 100%. Returns parts per million.
pub fn part<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_part(&text)
        .ok_or_else(|| serde::de::Error::custom(format!("`{text}` is not a percentage from 0% to 100%")))
}
