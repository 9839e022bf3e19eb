//! Declares each field of the status once: its JSON name, its help and its column in `deepres ps`.
//! The structs, their JSON, the columns and the list of fields (`deepres ps --fields`) follow from
//! the declaration. A field's unit is the end of its name.

use serde::Serialize;

/// Declares structs of the status. A field may have a column: `pub gpu_ns: u64 => "GPU TIME",`.
macro_rules! status {
    ($(
        $(#[doc = $about:literal])+
        #[derive($($derive:ident),+)]
        $(#[serde($whole:ident)])?
        pub struct $name:ident {$(
            $(#[doc = $help:literal])+
            $(#[serde($serde:ident)])?
            pub $field:ident: $type:ty $(=> $column:literal)?,
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
            }
        )+
    };
}
pub(crate) use status;

/// The unit of a field of the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A number of things, or no number.
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
pub trait Declared: Serialize {
    /// The struct's name.
    const NAME: &'static str;
    /// The lines of the struct's help.
    const ABOUT: &'static [&'static str];
    /// The struct's fields.
    const FIELDS: &'static [Field];

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
        let (head, help) = (field.head, paragraph(field.help));
        format!("| `{}` | {kind}{separator}{unit} | {head} | {help} |\n", field.name)
    };
    let rows: String = T::FIELDS.iter().map(row).collect();
    let about = paragraph(T::ABOUT);
    format!("\n## {}\n\n{about}\n\n| field | value | column | meaning |\n|---|---|---|---|\n{rows}", T::NAME)
}

/// Returns the first paragraph of a help text as one line, without the marks of links in Rust.
fn paragraph(help: &[&str]) -> String {
    let lines: Vec<&str> = help.iter().map(|line| line.trim()).take_while(|line| !line.is_empty()).collect();
    lines.join(" ").replace("[`", "`").replace("`]", "`").replace('|', "\\|")
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
