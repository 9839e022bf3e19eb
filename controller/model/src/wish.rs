//! The wishes of a job in text: reading, formatting and explaining. [`deepres_abi::wish`] declares
//! the wishes.

use crate::quantity::{Bytes, Percent, Time, parse_memory, parse_share, parse_time};
use deepres_abi::grant::NO_LIMIT;
pub use deepres_abi::wish::{Key, Kind, Value, Wish};
use std::error::Error;
use std::fmt;

/// The description of a wish for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct About {
    /// Help text for a job that starts.
    pub help: &'static str,
    /// Help text for a tenant that already runs.
    pub help_later: &'static str,
    /// Whether the configuration may give a default for tenants that do not state this wish.
    pub may_be_default: bool,
}

/// Returns the description of a wish.
pub const fn about(key: Key) -> About {
    let (help, help_later, may_be_default) = match key {
        Key::Share => (
            "Share of the GPU: 1% to 100%, decimals allowed",
            "The tenant's share of the GPU from now on: 1% to 100%",
            true,
        ),
        Key::Memory => (
            "Limit of device memory on each GPU, for example 8GiB or 512MiB",
            "The tenant's memory limit on each GPU from now on, for example 4GiB; `unlimited` removes the limit",
            true,
        ),
        Key::Class => (
            "Class of the tenant: guaranteed (always its share), fair, or best-effort (the time that others leave)",
            "The tenant's class from now on: guaranteed, fair or best-effort",
            true,
        ),
        Key::Criticality => (
            "How critical the job is: low, normal, high, critical, or a number from 0 to 1",
            "How critical the job is from now on: low, normal, high, critical, or a number from 0 to 1",
            true,
        ),
        Key::Deadline => (
            "Time from its start within which the job has to end, for example 2h",
            "Time from now within which the job has to end, for example 2h",
            false,
        ),
        Key::Size => (
            "GPU time that the whole job takes, for example 40min",
            "GPU time that the whole job takes, with the time that it has used, for example 40min",
            false,
        ),
        Key::Slo => (
            "Time within which the job has to answer a request, for example 30ms",
            "Time within which the job has to answer a request from now on, for example 30ms",
            true,
        ),
        Key::MemoryFollowUse => (
            "Let others have the memory that the tenant does not use, except a margin",
            "Let others have the memory that the tenant does not use, except a margin, from now on; `=false` ends this",
            true,
        ),
        Key::ChargeCopies => (
            "Charge the time of the tenant's copies too, not only of its kernels",
            "Charge the time of the tenant's copies too from now on; `=false` ends this",
            true,
        ),
        Key::Label => (
            "A label for people and tools, for example team=vision; may be given several times",
            "Labels of the tenant from now on, for example team=vision; may be given several times",
            false,
        ),
        Key::Sm => (
            "Part of each GPU's SMs that the job can use under MPS: 1% to 100%",
            "Part of each GPU's SMs that the job can use under MPS, once the job is started again: 1% to 100%",
            true,
        ),
    };
    About { help, help_later, may_be_default }
}

/// Returns an example of a value in text.
pub const fn example(kind: Kind) -> &'static str {
    match kind {
        Kind::Share => "50%",
        Kind::Bytes => "8GiB",
        Kind::Class => "fair",
        Kind::Criticality => "low",
        Kind::Time => "30ms",
        Kind::Switch => "true",
        Kind::Labels => "team=vision",
    }
}

/// Reads the text of a value of this kind.
///
/// # Errors
/// The text is not a value of this kind. The error says which texts are values of this kind.
pub fn parse(kind: Kind, text: &str) -> Result<Value, Box<dyn Error + Send + Sync>> {
    Ok(match kind {
        Kind::Share => Value::Share(parse_share(text)?),
        Kind::Bytes => Value::Bytes(parse_memory(text)?),
        Kind::Time => Value::Time(parse_time(text)?),
        Kind::Class => Value::Class(text.parse()?),
        Kind::Criticality => Value::Criticality(text.parse()?),
        Kind::Labels => Value::Labels(text.parse()?),
        Kind::Switch => kind.parse(text).ok_or_else(|| format!("`{text}` is not {}", kind.expected()))?,
    })
}

/// Formats the value of a wish for people.
#[derive(Debug, Clone, Copy)]
pub struct Shown(pub Value);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Share(ppm) => write!(f, "{}", Percent(ppm)),
            Value::Bytes(NO_LIMIT) => f.write_str("no limit"),
            Value::Bytes(bytes) => write!(f, "{}", Bytes(bytes)),
            Value::Time(ns) => write!(f, "{}", Time(ns)),
            Value::Class(class) => write!(f, "{class}"),
            Value::Criticality(criticality) => write!(f, "{criticality}"),
            Value::Switch(is_on) => f.write_str(if is_on { "yes" } else { "no" }),
            Value::Labels(labels) => write!(f, "{labels}"),
        }
    }
}

/// Shows wishes in a sentence: "a share of 30%, 8 GiB of memory and class fair".
#[derive(Debug, Clone, Copy)]
pub struct Sentence(pub Wish);

impl fmt::Display for Sentence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wish = self.0;
        match wish.share_ppm {
            Some(ppm) => write!(f, "a share of {}", Percent(ppm))?,
            None => write!(f, "no share of its own")?,
        }
        match wish.memory_bytes {
            Some(bytes) if bytes != NO_LIMIT => write!(f, ", {} of memory", Bytes(bytes))?,
            _ => write!(f, ", no memory limit")?,
        }
        let is_told = |key: &Key| !matches!(key, Key::Share | Key::Memory | Key::Class);
        for (key, value) in wish.iter().filter(|(key, _)| is_told(key)) {
            match value {
                Value::Switch(true) => write!(f, ", {}", key.name().replace('_', " "))?,
                Value::Switch(false) => {}
                value => write!(f, ", {} {}", key.name().replace('_', " "), Shown(value))?,
            }
        }
        write!(f, " and class {}", wish.class.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_each_kind_is_read_and_shown() {
        for key in Key::ALL {
            let example = example(key.kind());
            let value = parse(key.kind(), example).unwrap();
            let read_back = parse(key.kind(), &value.to_string()).unwrap();
            assert_eq!(read_back, value, "{example}");
            assert!(!Shown(value).to_string().is_empty());
        }
    }

    #[test]
    fn a_text_that_is_no_value_is_refused_with_the_accepted_form() {
        for (kind, accepted) in [
            (Kind::Share, "1% to 100%"),
            (Kind::Bytes, "8GiB"),
            (Kind::Class, "best-effort"),
            (Kind::Criticality, "critical"),
            (Kind::Time, "30ms"),
            (Kind::Switch, "true or false"),
            (Kind::Labels, "KEY=VALUE"),
        ] {
            let refused = parse(kind, "nonsense!").unwrap_err().to_string();
            assert!(refused.contains(accepted), "{refused}");
        }
    }

    #[test]
    fn wishes_are_told_in_a_sentence() {
        let wish = Wish {
            share_ppm: Some(300_000),
            slo_ns: Some(30_000_000),
            charge_copies: Some(true),
            labels: Some("team=vision".parse().unwrap()),
            ..Wish::default()
        };
        assert_eq!(
            Sentence(wish).to_string(),
            "a share of 30%, no memory limit, slo 30ms, charge copies, label team=vision and class fair"
        );
    }
}
