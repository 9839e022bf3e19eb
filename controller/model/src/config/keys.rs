//! The configuration's keys and their types. By this list, an error message can name a mistyped
//! key, or a value of the wrong type, in words.

use super::{ANY, HEARTBEAT_LIMIT_MS, MAX_CONNECTIONS, MOVING_MS, Position, QUANTUM_MS};
use crate::wish;
use deepres_abi::class::Class;
use std::collections::BTreeMap;
use std::ops::Range;
use toml::de::{DeTable, DeValue};

/// The type of the value that a key of the configuration takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// The key's value is a whole number in these bounds.
    Number(&'static Range<u64>),
    /// The key's value is a text. The variant has an example.
    Text(&'static str),
    /// The key's value is one of these texts.
    Word(&'static [&'static str]),
    /// The key's value is `true` or `false`.
    Switch,
    /// The key's value is a list of texts. The variant has an example.
    Texts(&'static str),
    /// The key is a section with the given keys.
    Section(&'static [Key]),
    /// The key is a table with a section for each user or group. Each section has the given keys.
    Sections(&'static [Key]),
}

/// A key of the configuration: its name, and the type of its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key(pub &'static str, pub Takes);

/// The classes, the strongest first.
const CLASSES: &[&str] = &[Class::ALL[0].name(), Class::ALL[1].name(), Class::ALL[2].name()];

/// All keys, in the order of the documented configuration file.
pub const TOP: &[Key] = &[
    Key("heartbeat_limit_ms", Takes::Number(&HEARTBEAT_LIMIT_MS)),
    Key("fail_mode", Takes::Word(&["open", "closed"])),
    Key("tenant_linger_s", Takes::Number(&ANY)),
    Key("suspend_turn_ms", Takes::Number(&MOVING_MS)),
    Key("memory_follow_ms", Takes::Number(&MOVING_MS)),
    Key("suspend_limit_ms", Takes::Number(&MOVING_MS)),
    Key("idle_exit_s", Takes::Number(&ANY)),
    Key("max_connections", Takes::Number(&MAX_CONNECTIONS)),
    Key("max_connections_per_user", Takes::Number(&MAX_CONNECTIONS)),
    Key("admin_group", Takes::Text("gpuadmin")),
    Key("metrics", Takes::Text("127.0.0.1:9442")),
    Key("web", Takes::Text("127.0.0.1:9443")),
    Key("shared_names", Takes::Texts("train")),
    Key("pods_need_token", Takes::Switch),
    Key("gangs", Takes::Switch),
    Key("mps", Takes::Word(&["off", "use", "start"])),
    Key("mps_users", Takes::Word(&["one", "all"])),
    Key("quantum", Takes::Section(QUANTUM)),
    Key("caps", Takes::Section(CAPS)),
    Key("groups", Takes::Sections(CAPS)),
    Key("users", Takes::Sections(CAPS)),
    Key("probes", Takes::Section(PROBES)),
    Key("slurm", Takes::Section(SLURM)),
    Key("max_harm", Takes::Text("1%")),
    Key("priority", Takes::Section(PRIORITY)),
    Key("defaults", Takes::Section(DEFAULTS)),
];
const QUANTUM: &[Key] =
    &[Key("min_ms", Takes::Number(&QUANTUM_MS)), Key("max_ms", Takes::Number(&QUANTUM_MS))];
const PROBES: &[Key] = &[
    Key("enabled", Takes::Switch),
    Key("devices", Takes::Texts("nvidia-uvm")),
    Key("unmanaged", Takes::Word(&["report", "warn", "hold"])),
];
const SLURM: &[Key] = &[Key("check_claims", Takes::Switch)];
const CAPS: &[Key] = &[
    Key("share", Takes::Text("50%")),
    Key("memory", Takes::Text("8GiB")),
    Key("class", Takes::Word(CLASSES)),
    Key("criticality", Takes::Text("high")),
    Key("deadline", Takes::Switch),
    Key("slo", Takes::Switch),
    Key("charge_copies", Takes::Switch),
];
const PRIORITY: &[Key] = &[
    Key("urgency", Takes::Number(&ANY)),
    Key("size", Takes::Number(&ANY)),
    Key("criticality", Takes::Number(&ANY)),
];
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
        wish::Kind::Class => Takes::Word(CLASSES),
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
            (Takes::Number(bounds), DeValue::Integer(number)) => {
                match i64::from_str_radix(number.as_str(), number.radix()).map(u64::try_from) {
                    Ok(Ok(number)) if bounds.contains(&number) => None,
                    Ok(Ok(number)) => {
                        let (least, most) = (bounds.start, bounds.end - 1);
                        let message = format!("`{path}` is {number}; it must be from {least} to {most}");
                        Some(Wrong { offset: name.span().start, message })
                    }
                    Ok(Err(_)) => is("a whole number that is not negative".to_owned()),
                    Err(_) => is("a smaller number".to_owned()),
                }
            }
            (Takes::Text(_) | Takes::Word(_), DeValue::String(_)) | (Takes::Switch, DeValue::Boolean(_)) => {
                None
            }
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
            (Takes::Number(_), _) => is("a whole number without quotation marks".to_owned()),
            (Takes::Text(example) | Takes::Word([example, ..]), _) => {
                is(format!("a text in quotation marks, such as \"{example}\""))
            }
            (Takes::Word([]), _) => is("a text in quotation marks".to_owned()),
        }
    })
}

/// Returns every key with its value, as the file would give the value, in the order of the
/// documented file. A key without a value has `None`.
pub fn values(table: &toml::Table) -> Vec<(String, Option<String>)> {
    let mut values = Vec::new();
    values_in(table, "", TOP, &mut values);
    values
}

fn values_in(table: &toml::Table, prefix: &str, keys: &[Key], values: &mut Vec<(String, Option<String>)>) {
    for Key(name, takes) in keys {
        let path = format!("{prefix}{name}");
        let value = table.get(*name);
        let sections = value.and_then(toml::Value::as_table);
        match takes {
            Takes::Section(keys) => {
                values_in(sections.unwrap_or(&toml::Table::new()), &format!("{path}."), keys, values);
            }
            Takes::Sections(keys) => {
                for (number, section) in sections.into_iter().flatten() {
                    let section = section.as_table().cloned().unwrap_or_default();
                    values_in(&section, &format!("{path}.{number}."), keys, values);
                }
            }
            _ => values.push((path, value.map(ToString::to_string))),
        }
    }
}

/// Returns the line of each key that the file sets, from 1, by path.
pub fn lines(table: &DeTable<'_>, text: &str) -> BTreeMap<String, usize> {
    let mut lines = BTreeMap::new();
    lines_in(table, "", text, &mut lines);
    lines
}

fn lines_in(table: &DeTable<'_>, prefix: &str, text: &str, lines: &mut BTreeMap<String, usize>) {
    for (name, value) in table {
        let path = format!("{prefix}{}", name.get_ref());
        match value.get_ref() {
            DeValue::Table(section) => lines_in(section, &format!("{path}."), text, lines),
            _ => drop(lines.insert(path, Position::at(text, name.span().start).line)),
        }
    }
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
        .chain(SLURM)
        .chain(PRIORITY)
        .chain(DEFAULTS)
        .filter(is_value)
        .map(|Key(name, _)| *name)
}
