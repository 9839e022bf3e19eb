//! Declares each field of the status once: its JSON name, its help, its part in the metrics and its
//! column in `deepres ps`. The structs, their JSON, the metrics, the columns and the list of fields
//! (`deepres ps --fields`) follow from the declaration. A field's unit is the end of its name.

mod metric;

pub use metric::{Measure, Measured, Metric, Role, info_name};

use serde::Serialize;

/// Declares structs of the status. A field may have a [`Role`] in the metrics, and a column: `pub
/// gpu_ns: u64 as Counter => "GPU TIME",`. A histogram names the field that counts by length.
macro_rules! status {
    ($(
        $(#[doc = $about:literal])+
        #[derive($($derive:ident),+)]
        $(#[serde($whole:ident)])?
        pub struct $name:ident {$(
            $(#[doc = $help:literal])+
            $(#[serde($serde:ident)])?
            pub $field:ident: $type:ty $(as $role:ident $(of $lengths:ident)?)? $(=> $column:literal)?,
        )+}
    )+) => {
        $(
            $(#[doc = $about])+
            #[derive($($derive),+)]
            $(#[serde($whole)])?
            pub struct $name {$(
                $(#[doc = $help])+
                $(#[serde($serde)])?
                pub $field: $type,
            )+}

            impl $crate::admin::Declared for $name {
                const NAME: &'static str = stringify!($name);
                const ABOUT: &'static [&'static str] = &[$($about),+];
                const FIELDS: &'static [$crate::admin::Field] = &[$($crate::admin::Field {
                    name: stringify!($field),
                    kind: stringify!($type),
                    help: &[$($help),+],
                    head: concat!($($column)?),
                }),+];
                const METRICS: &'static [$crate::admin::Metric<Self>] = &[$($($crate::admin::Metric {
                    field: stringify!($field),
                    role: $crate::admin::Role::$role,
                    read: |of| $crate::admin::Measured::measure(&of.$field)$(.by_length(&of.$lengths))?,
                },)?)+];
            }
        )+
    };
}
pub(crate) use status;

const NS_PER_US: f64 = 1e3;
const US_PER_S: f64 = 1e6;
const PPM: f64 = 1e6;

/// The unit of a field of the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// The field counts things, or is no number.
    One,
    /// Nanoseconds.
    Ns,
    /// Bytes.
    Bytes,
    /// Parts per million of a whole.
    Ppm,
}

impl Unit {
    /// Returns the unit that a field's name ends with.
    pub fn of(name: &str) -> Self {
        let ends = [("_ns", Self::Ns), ("bytes", Self::Bytes), ("_ppm", Self::Ppm)];
        ends.into_iter().find(|(end, _)| name.ends_with(end)).map_or(Self::One, |(_, unit)| unit)
    }

    /// Returns the unit's name; empty for a number of things.
    pub fn name(self) -> &'static str {
        match self {
            Self::One => "",
            Self::Ns => "ns",
            Self::Bytes => "bytes",
            Self::Ppm => "ppm",
        }
    }

    /// Returns the name of the base unit, for metrics; empty for a number of things.
    pub fn base_name(self) -> &'static str {
        match self {
            Self::One => "",
            Self::Ns => "seconds",
            Self::Bytes => "bytes",
            Self::Ppm => "ratio",
        }
    }

    /// Returns a value in the base unit. Times have whole microseconds, rounded down.
    pub fn base(self, value: f64) -> f64 {
        match self {
            Self::One | Self::Bytes => value,
            Self::Ns => (value / NS_PER_US).floor() / US_PER_S,
            Self::Ppm => value / PPM,
        }
    }
}

/// A field of the status.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// The name, also in JSON.
    pub name: &'static str,
    /// The type in Rust.
    pub kind: &'static str,
    /// The lines of the help.
    pub help: &'static [&'static str],
    /// The head of the field's column in `deepres ps`; empty if the field has no column.
    pub head: &'static str,
}

/// A struct of the status whose fields the macro `status!` declared.
pub trait Declared: Serialize + Sized + 'static {
    /// The struct's name.
    const NAME: &'static str;
    /// The lines of the struct's help.
    const ABOUT: &'static [&'static str];
    /// The struct's fields.
    const FIELDS: &'static [Field];
    /// The fields that are in the metrics.
    const METRICS: &'static [Metric<Self>];

    /// Returns the head of a field's column; empty if the field has no column.
    fn head(field: &str) -> &'static str {
        Self::FIELDS.iter().find(|own| own.name == field).map_or("", |own| own.head)
    }
}

/// Returns the list of a struct's fields as a section in Markdown.
pub fn section<T: Declared>() -> String {
    let row = |field: &Field| {
        let (kind, unit) = (kind(field.kind), Unit::of(field.name).name());
        let separator = if unit.is_empty() { "" } else { ", " };
        let metric = T::METRICS.iter().find(|metric| metric.field == field.name);
        let metric = metric.map_or_else(String::new, |metric| match metric.role {
            Role::Label => format!("label of `{}`", info_name::<T>()),
            _ => format!("`{}`", metric.name()),
        });
        let (head, help) = (field.head, paragraph(field.help, " ").replace('|', "\\|"));
        format!("| `{}` | {kind}{separator}{unit} | {head} | {metric} | {help} |\n", field.name)
    };
    let rows: String = T::FIELDS.iter().map(row).collect();
    let about = paragraph(T::ABOUT, "\n").replace('|', "\\|");
    format!(
        "\n## {}\n\n{about}\n\n| field | value | column | metric | meaning |\n|---|---|---|---|---|\n{rows}",
        T::NAME
    )
}

/// Returns the first paragraph of a help text, with `between` its lines, and without the marks of
/// links in Rust. The result has JSON's `null` in the place of `None`.
fn paragraph(help: &[&str], between: &str) -> String {
    let lines: Vec<&str> = help.iter().map(|line| line.trim()).take_while(|line| !line.is_empty()).collect();
    lines.join(between).replace("[`", "`").replace("`]", "`").replace("`None`", "`null`")
}

/// Returns a type of Rust in words.
fn kind(text: &str) -> String {
    let text: String = text.split_whitespace().collect();
    let inner = |outer: &str| text.strip_prefix(outer)?.strip_suffix('>').map(kind);
    if let Some(inner) = inner("Option<") {
        return format!("{inner} or null");
    }
    if let Some(inner) = inner("Vec<") {
        return format!("list of {inner}");
    }
    match text.as_str() {
        "u32" | "u64" | "usize" | "i64" | "f64" => "number".to_owned(),
        "bool" => "true or false".to_owned(),
        "String" => "text".to_owned(),
        _ if text.starts_with('[') => "list of number".to_owned(),
        _ if text.starts_with("BTreeMap<") => "numbers by name".to_owned(),
        _ => text,
    }
}
