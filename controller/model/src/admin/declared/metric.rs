//! The fields of the status that are in the metrics. A metric's name follows from the struct, the
//! field and its base unit: `gpu_ns` of `AccountStatus` is `deepres_tenant_gpu_seconds_total`.

use super::{Declared, Unit, paragraph};
use crate::identity::Container;

/// The prefix of the names of all metrics.
const PREFIX: &str = "deepres";
/// The ending of a counter's name.
const TOTAL: &str = "_total";

/// A field's part in the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A number that only grows, also over the daemon's restart.
    Counter,
    /// A number that rises and falls.
    Gauge,
    /// The sum of times that another field counts by length.
    Histogram,
    /// A time of `CLOCK_MONOTONIC`. The metric is the Unix time.
    Time,
    /// A label of the metric [`info_name`].
    Label,
}

/// A field that is in the metrics.
#[derive(Debug)]
pub struct Metric<T> {
    /// The field's name.
    pub field: &'static str,
    /// The field's part in the metrics.
    pub role: Role,
    /// Reads the field.
    pub read: fn(&T) -> Measure<'_>,
}

/// The value of a field, in the field's own unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Measure<'a> {
    /// The field has no value now.
    None,
    /// A number.
    Number(f64),
    /// A text.
    Text(&'a str),
    /// A sum of times, and their number by length: entry N counts times from 2^N µs to 2^(N+1) µs.
    Lengths(f64, &'a [u64]),
}

impl<'a> Measure<'a> {
    /// Returns this sum of times, with the number of times of each length.
    pub fn by_length(self, lengths: &'a [u64]) -> Self {
        match self {
            Self::Number(sum) => Self::Lengths(sum, lengths),
            other => other,
        }
    }
}

/// A type of fields that can be in the metrics.
pub trait Measured {
    /// Returns the field's value for the metrics. A `bool` is 0 or 1, and a list counts by its
    /// length.
    fn measure(&self) -> Measure<'_>;
}

macro_rules! numbers {
    ($($type:ty),+) => {$(
        impl Measured for $type {
            fn measure(&self) -> Measure<'_> {
                // Counters of less than 2^53 are exact.
                Measure::Number(*self as f64)
            }
        }
    )+};
}
numbers!(i64, u32, u64);

impl Measured for f64 {
    fn measure(&self) -> Measure<'_> {
        Measure::Number(*self)
    }
}

impl Measured for bool {
    fn measure(&self) -> Measure<'_> {
        Measure::Number(f64::from(u8::from(*self)))
    }
}

impl Measured for String {
    fn measure(&self) -> Measure<'_> {
        Measure::Text(self)
    }
}

impl Measured for Container {
    fn measure(&self) -> Measure<'_> {
        Measure::Text(self.name.as_deref().unwrap_or_else(|| self.short_id()))
    }
}

impl<T: Measured> Measured for Option<T> {
    fn measure(&self) -> Measure<'_> {
        self.as_ref().map_or(Measure::None, T::measure)
    }
}

impl<T> Measured for Vec<T> {
    fn measure(&self) -> Measure<'_> {
        Measure::Number(self.len() as f64)
    }
}

impl<T: Declared> Metric<T> {
    /// Returns the metric's name.
    pub fn name(&self) -> String {
        let ending = if self.role == Role::Counter { TOTAL } else { "" };
        format!("{}{ending}", self.family())
    }

    /// Returns the name of the metric's family in OpenMetrics: the name without `_total`.
    pub fn family(&self) -> String {
        let unit = Unit::of(self.field);
        let stem = self.field.strip_suffix(unit.name()).unwrap_or(self.field).trim_end_matches('_');
        let stem = stem.strip_suffix(TOTAL).unwrap_or(stem);
        let timestamp = (self.role == Role::Time).then_some("timestamp");
        let base = Some(unit.base_name()).filter(|base| !base.is_empty());
        let subject = subject::<T>();
        [Some(PREFIX), Some(subject.as_str()), Some(stem), timestamp, base]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join("_")
    }

    /// Returns the field's help in one line, with the base unit in place of the field's unit.
    pub fn help(&self) -> String {
        let field = T::FIELDS.iter().find(|field| field.name == self.field);
        let help = field.map_or_else(String::new, |field| paragraph(field.help, " "));
        match self.role {
            Role::Time => help.replace(", ns of `CLOCK_MONOTONIC`", ", seconds since 1970"),
            _ => help.replace(", ns", ", seconds").replace(", parts per million", ", as a part of 1"),
        }
    }

    /// Returns a number of the field in the metric's unit. `unix_s` is the Unix time at the zero of
    /// `CLOCK_MONOTONIC`, s.
    pub fn base(&self, value: f64, unix_s: f64) -> f64 {
        let base = Unit::of(self.field).base(value);
        if self.role == Role::Time { base + unix_s } else { base }
    }
}

/// Returns the name of the metric that carries the labels of a struct, and counts the structs with
/// equal labels.
pub fn info_name<T: Declared>() -> String {
    match subject::<T>().as_str() {
        "unmanaged" => format!("{PREFIX}_unmanaged_processes"),
        subject => format!("{PREFIX}_{subject}_info"),
    }
}

/// Returns the word for a struct in the names of metrics. A tenant's account on a GPU counts as the
/// tenant, because the labels name the GPU.
fn subject<T: Declared>() -> String {
    match T::NAME.strip_suffix("Status") {
        None | Some("") => "status".to_owned(),
        Some("Account") => "tenant".to_owned(),
        Some(subject) => subject.to_lowercase(),
    }
}
