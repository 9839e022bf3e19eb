//! The configuration's keys and their types. By this list, an error message can name a mistyped
//! key, or a value of the wrong type, in words.

use crate::wish;
use toml::de::{DeTable, DeValue};

/// The type of the value that a key of the configuration takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    /// A whole number that is not negative.
    Number,
    /// A text, with an example.
    Text(&'static str),
    /// `true` or `false`.
    Switch,
    /// A list of texts, with an example.
    Texts(&'static str),
    /// A section with the given keys.
    Section(&'static [Key]),
    /// A section for each user or group, each with the given keys.
    Sections(&'static [Key]),
}

/// A key of the configuration: its name, and the type of its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key(&'static str, Takes);

const TOP: &[Key] = &[
    Key("heartbeat_limit_ms", Takes::Number),
    Key("fail_mode", Takes::Text("open")),
    Key("tenant_linger_s", Takes::Number),
    Key("suspend_turn_ms", Takes::Number),
    Key("memory_follow_ms", Takes::Number),
    Key("suspend_limit_ms", Takes::Number),
    Key("idle_exit_s", Takes::Number),
    Key("max_connections", Takes::Number),
    Key("max_connections_per_user", Takes::Number),
    Key("admin_group", Takes::Text("gpuadmin")),
    Key("metrics", Takes::Text("127.0.0.1:9442")),
    Key("web", Takes::Text("127.0.0.1:9443")),
    Key("shared_names", Takes::Texts("train")),
    Key("gangs", Takes::Switch),
    Key("quantum", Takes::Section(QUANTUM)),
    Key("caps", Takes::Section(CAPS)),
    Key("groups", Takes::Sections(CAPS)),
    Key("users", Takes::Sections(CAPS)),
    Key("probes", Takes::Section(PROBES)),
    Key("max_harm", Takes::Text("1%")),
    Key("priority", Takes::Section(PRIORITY)),
    Key("defaults", Takes::Section(DEFAULTS)),
];
const QUANTUM: &[Key] = &[Key("min_ms", Takes::Number), Key("max_ms", Takes::Number)];
const PROBES: &[Key] = &[
    Key("enabled", Takes::Switch),
    Key("devices", Takes::Texts("nvidia-uvm")),
    Key("unmanaged", Takes::Text("report")),
];
const CAPS: &[Key] = &[
    Key("share", Takes::Text("50%")),
    Key("memory", Takes::Text("8GiB")),
    Key("class", Takes::Text("fair")),
    Key("criticality", Takes::Text("high")),
    Key("deadline", Takes::Switch),
    Key("slo", Takes::Switch),
    Key("charge_copies", Takes::Switch),
];
const PRIORITY: &[Key] =
    &[Key("urgency", Takes::Number), Key("size", Takes::Number), Key("criticality", Takes::Number)];
/// The keys of all wishes that may have a default.
const DEFAULTS: &[Key] = &{
    let mut keys = [Key("", Takes::Switch); DEFAULTS_COUNT];
    let (mut wish, mut at) = (0, 0);
    while wish < wish::Key::ALL.len() {
        let key = wish::Key::ALL[wish];
        if wish::about(key).may_be_default {
            keys[at] = Key(key.name(), takes(key.kind()));
            at += 1;
        }
        wish += 1;
    }
    keys
};
const DEFAULTS_COUNT: usize = {
    let (mut wish, mut count) = (0, 0);
    while wish < wish::Key::ALL.len() {
        count += wish::about(wish::Key::ALL[wish]).may_be_default as usize;
        wish += 1;
    }
    count
};

/// Returns the type of a wish's value in the file.
const fn takes(kind: wish::Kind) -> Takes {
    match kind {
        wish::Kind::Switch => Takes::Switch,
        kind => Takes::Text(wish::example(kind)),
    }
}

/// If a name in the file is at least this similar to a known name, the message suggests the known
/// name. The measure is Jaro–Winkler; it is 1 for equal names.
const ALIKE: f64 = 0.8;

/// A fault in the text of a configuration.
pub struct Wrong {
    /// The position of the fault, bytes.
    pub offset: usize,
    /// The message that tells people the fault.
    pub message: String,
}

/// Returns the first fault among a configuration's keys and the types of their values.
pub fn first_wrong(table: &DeTable<'_>) -> Option<Wrong> {
    wrong_in(table, "", TOP)
}

/// Returns the position, in bytes, of the last key of `path` that the table has. `path` begins at
/// the top.
pub fn offset(table: &DeTable<'_>, path: &[String]) -> usize {
    let [first, rest @ ..] = path else { return 0 };
    let Some((name, value)) = table.iter().find(|(name, _)| name.get_ref() == first) else { return 0 };
    let below = match value.get_ref() {
        DeValue::Table(section) => offset(section, rest),
        _ => 0,
    };
    // A nested key stands behind the keys above it.
    if below == 0 { name.span().start } else { below }
}

fn wrong_in(table: &DeTable<'_>, prefix: &str, known: &[Key]) -> Option<Wrong> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    entries.into_iter().find_map(|(name, value)| {
        let path = format!("{prefix}{}", name.get_ref());
        let Some(Key(_, takes)) = known.iter().find(|Key(known, _)| known == name.get_ref()) else {
            let message = format!("unknown key `{path}`; {}", hint(name.get_ref(), known));
            return Some(Wrong { offset: name.span().start, message });
        };
        let is = |expected: String| {
            let message = format!("`{path}` takes {expected}, not {}", kind(value.get_ref()));
            Some(Wrong { offset: name.span().start, message })
        };
        match (takes, value.get_ref()) {
            (Takes::Section(keys), DeValue::Table(section)) => wrong_in(section, &format!("{path}."), keys),
            (Takes::Sections(keys), DeValue::Table(sections)) => {
                let mut sections: Vec<_> = sections.iter().collect();
                sections.sort_by_key(|(name, _)| name.span().start);
                sections.into_iter().find_map(|(name, section)| match section.get_ref() {
                    DeValue::Table(section) => {
                        wrong_in(section, &format!("{path}.{}.", name.get_ref()), keys)
                    }
                    other => {
                        let number = name.get_ref();
                        let message = format!(
                            "`{path}.{number}` is a section (`[{path}.{number}]`), not {}",
                            kind(other)
                        );
                        Some(Wrong { offset: name.span().start, message })
                    }
                })
            }
            (Takes::Section(_) | Takes::Sections(_), _) => is(format!("a section (`[{path}]`)")),
            (Takes::Number, DeValue::Integer(number)) => {
                match i64::from_str_radix(number.as_str(), number.radix()) {
                    Ok(0..) => None,
                    Ok(_) => is("a whole number that is not negative".to_owned()),
                    Err(_) => is("a smaller number".to_owned()),
                }
            }
            (Takes::Text(_), DeValue::String(_)) | (Takes::Switch, DeValue::Boolean(_)) => None,
            (Takes::Texts(example), DeValue::Array(texts)) => {
                let other = texts.iter().find(|text| !matches!(text.get_ref(), DeValue::String(_)))?;
                let kind = kind(other.get_ref());
                let message = format!(
                    "`{path}` takes a list of texts, such as [\"{example}\"], but the list has {kind}"
                );
                Some(Wrong { offset: other.span().start, message })
            }
            (Takes::Switch, _) => is("true or false".to_owned()),
            (Takes::Texts(example), _) => is(format!("a list of texts, such as [\"{example}\"]")),
            (Takes::Number, _) => is("a whole number without quotation marks".to_owned()),
            (Takes::Text(example), _) => is(format!("a text in quotation marks, such as \"{example}\"")),
        }
    })
}

fn hint(name: &str, known: &[Key]) -> String {
    let nearest = known
        .iter()
        .map(|Key(known, _)| (strsim::jaro_winkler(known, name), known))
        .filter(|(alike, _)| *alike >= ALIKE)
        .max_by(|(a, _), (b, _)| a.total_cmp(b));
    match nearest {
        Some((_, nearest)) => format!("did you mean `{nearest}`?"),
        None => {
            let names: Vec<_> = known.iter().map(|Key(name, _)| *name).collect();
            format!("the known keys are {}", names.join(", "))
        }
    }
}

/// Returns the type of a value in words, for an error message.
fn kind(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the text \"{text}\""),
        DeValue::Integer(number) => format!("the number {number}"),
        DeValue::Float(number) => format!("the number {number}"),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(_) => "a date or time".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a section".to_owned(),
    }
}

/// Returns every key that takes a value.
#[cfg(test)]
pub fn all() -> impl Iterator<Item = &'static str> {
    let is_value = |Key(_, takes): &&Key| !matches!(takes, Takes::Section(_) | Takes::Sections(_));
    TOP.iter()
        .chain(QUANTUM)
        .chain(CAPS)
        .chain(PROBES)
        .chain(PRIORITY)
        .chain(DEFAULTS)
        .filter(is_value)
        .map(|Key(name, _)| *name)
}
