//! The names of the configuration's keys, to tell a slip of the pen from a key, and which key was meant.

use toml::de::{DeTable, DeValue};

const TOP: &[&str] = &[
    "heartbeat_limit_ms",
    "fail_mode",
    "tenant_linger_s",
    "idle_exit_s",
    "max_connections",
    "quantum",
    "caps",
    "users",
];
const QUANTUM: &[&str] = &["min_ms", "max_ms"];
const CAPS: &[&str] = &["share", "memory"];

/// Names less alike than this (Jaro–Winkler, 1 for equal) are not offered.
const ALIKE: f64 = 0.8;

/// A key that is none.
pub struct Unknown {
    /// Where it is, bytes.
    pub offset: usize,
    /// What to say.
    pub message: String,
}

/// The first unknown key, if there is one.
pub fn first_unknown(table: &DeTable<'_>) -> Option<Unknown> {
    unknown_in(table, "", TOP).or_else(|| {
        let section = |name: &str| match table.get(name).map(|value| value.get_ref()) {
            Some(DeValue::Table(section)) => Some(section),
            _ => None,
        };
        let users = section("users").into_iter().flat_map(|users| users.iter());
        section("quantum")
            .and_then(|quantum| unknown_in(quantum, "quantum.", QUANTUM))
            .or_else(|| section("caps").and_then(|caps| unknown_in(caps, "caps.", CAPS)))
            .or_else(|| {
                users.into_iter().find_map(|(uid, caps)| match caps.get_ref() {
                    DeValue::Table(caps) => unknown_in(caps, &format!("users.{}.", uid.get_ref()), CAPS),
                    _ => None,
                })
            })
    })
}

fn unknown_in(table: &DeTable<'_>, prefix: &str, known: &[&str]) -> Option<Unknown> {
    let key = table.keys().find(|key| !known.contains(&key.get_ref().as_ref()))?;
    let name = key.get_ref();
    let nearest = known
        .iter()
        .map(|known| (strsim::jaro_winkler(known, name), known))
        .filter(|(alike, _)| *alike >= ALIKE)
        .max_by(|(a, _), (b, _)| a.total_cmp(b));
    let hint = match nearest {
        Some((_, nearest)) => format!("did you mean `{nearest}`?"),
        None => format!("the keys here are {}", known.join(", ")),
    };
    Some(Unknown { offset: key.span().start, message: format!("unknown key `{prefix}{name}`; {hint}") })
}

/// Every key that takes a value.
#[cfg(test)]
pub fn all() -> impl Iterator<Item = &'static str> {
    let sections = ["quantum", "caps", "users"];
    TOP.iter().filter(move |key| !sections.contains(key)).chain(QUANTUM).chain(CAPS).copied()
}
