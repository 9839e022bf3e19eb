//! The values of a scenario's keys: numbers with their units, within their bounds.

use deepres_abi::quantity::parse_part;
use deepres_model::quantity::parse_share;
use deepres_policy::priority::Criticality;
use serde::{Deserialize, Deserializer, de};
use std::fmt;

use super::check::MAX_TENANTS;
use super::{MAX_S, SECOND};

pub fn one() -> usize {
    1
}

pub fn whole() -> u32 {
    1_000_000
}

/// A number that is displayed without hundreds of digits.
struct Shown(f64);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Numbers that are displayed in full.
        const PLAIN: std::ops::Range<f64> = 1e-6..1e15;
        let Self(number) = self;
        if *number == 0.0 || !number.is_finite() || PLAIN.contains(&number.abs()) {
            write!(f, "{number}")
        } else {
            write!(f, "{number:e}")
        }
    }
}

/// A whole number within bounds.
struct Whole {
    least: u64,
    most: u64,
}

impl Whole {
    fn read<'de, D: Deserializer<'de>>(self, deserializer: D) -> Result<u64, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn within<E: de::Error>(&self, number: i128) -> Result<u64, E> {
        let within = u64::try_from(number).ok().filter(|number| (self.least..=self.most).contains(number));
        within.ok_or_else(|| {
            E::custom(format!("{number} is out of range: give {} to {}", self.least, self.most))
        })
    }
}

impl de::Visitor<'_> for Whole {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from {} to {}", self.least, self.most)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<u64, E> {
        self.within(i128::from(number))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<u64, E> {
        self.within(i128::from(number))
    }

    fn visit_i128<E: de::Error>(self, number: i128) -> Result<u64, E> {
        self.within(number)
    }
}

/// A percentage in quotes.
struct Percentage;

impl Percentage {
    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl de::Visitor<'_> for Percentage {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a percentage in quotes, for example \"30%\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
}

/// A number within `bounds` times `unit_ns`.
fn scaled<'de, D: Deserializer<'de>>(
    deserializer: D,
    least: f64,
    unit_ns: f64,
    unit: &str,
) -> Result<u64, D::Error> {
    let number = f64::deserialize(deserializer)?;
    let ns = number * unit_ns;
    let most = MAX_S * SECOND as f64;
    if !(ns >= least && ns <= most) {
        let least = if least > 0.0 { "1 ns or more" } else { "0 or more" };
        return Err(de::Error::custom(format!(
            "{} {unit} is out of range: give {least}, and a day at most",
            Shown(number)
        )));
    }
    Ok(ns.round() as u64)
}

const MS: f64 = 1e6;
const US: f64 = 1e3;

pub fn seconds<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    scaled(d, 1.0, SECOND as f64, "s")
}

pub fn seconds_or_none<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    scaled(d, 0.0, SECOND as f64, "s")
}

pub fn maybe_seconds<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
    seconds(d).map(Some)
}

pub fn millis<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    scaled(d, 1.0, MS, "ms")
}

pub fn millis_or_none<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    scaled(d, 0.0, MS, "ms")
}

pub fn maybe_millis<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
    millis(d).map(Some)
}

pub fn micros<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    scaled(d, 1.0, US, "us")
}

pub fn micros_or_none<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    scaled(d, 0.0, US, "us")
}

pub fn maybe_kernels<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
    kernels(d).map(Some)
}

pub fn kernels<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    /// The most kernels of one step.
    const MOST: u64 = 1_000_000;
    Whole { least: 1, most: MOST }.read(d)
}

/// Number of GPUs of a large host.
const MOST_GPUS: u64 = 16;

pub fn gpus<'de, D: Deserializer<'de>>(d: D) -> Result<usize, D::Error> {
    Whole { least: 1, most: MOST_GPUS }.read(d).map(|number| number as usize)
}

pub fn maybe_gpu<'de, D: Deserializer<'de>>(d: D) -> Result<Option<usize>, D::Error> {
    Whole { least: 0, most: MOST_GPUS - 1 }.read(d).map(|number| Some(number as usize))
}

pub fn count<'de, D: Deserializer<'de>>(d: D) -> Result<usize, D::Error> {
    Whole { least: 1, most: MAX_TENANTS as u64 }.read(d).map(|number| number as usize)
}

pub fn seed<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    // TOML has no larger number.
    Whole { least: 0, most: i64::MAX as u64 }.read(d)
}

pub fn load<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
    /// The largest load. A larger load would be another program.
    const MOST: f64 = 100.0;
    match f64::deserialize(d)? {
        number if number > 0.0 && number <= MOST => Ok(number),
        number => Err(de::Error::custom(format!(
            "{} is out of range: give a load above 0, {MOST} at most",
            Shown(number)
        ))),
    }
}

pub fn maybe_micros<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
    micros(d).map(Some)
}

pub fn rate<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
    /// The most requests per second that a process can accept.
    const MOST: f64 = 1e6;
    match f64::deserialize(d)? {
        number if number > 0.0 && number <= MOST => Ok(number),
        number => Err(de::Error::custom(format!(
            "{} is out of range: give a rate above 0, {MOST} at most",
            Shown(number)
        ))),
    }
}

pub fn fraction<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
    match f64::deserialize(d)? {
        number if (0.0..1.0).contains(&number) => Ok(number),
        number => Err(de::Error::custom(format!("{} is out of range: give 0 to less than 1", Shown(number)))),
    }
}

/// Reads a job's criticality: a word, or a number from 0 to 1.
pub fn criticality<'de, D: Deserializer<'de>>(d: D) -> Result<Criticality, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given {
        Word(String),
        Number(f64),
    }
    let text = match Given::deserialize(d)? {
        Given::Word(word) => word,
        Given::Number(number) => number.to_string(),
    };
    text.parse().map_err(de::Error::custom)
}

pub fn from_str<'de, D, T>(d: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    String::deserialize(d)?.parse().map_err(de::Error::custom)
}

pub fn share<'de, D: Deserializer<'de>>(d: D) -> Result<u32, D::Error> {
    parse_share(&Percentage::read(d)?).map_err(de::Error::custom)
}

pub fn maybe_share<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u32>, D::Error> {
    share(d).map(Some)
}

/// Reads pairs of seconds.
pub fn spans<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<(u64, u64)>, D::Error> {
    // The type is a list, because a tuple would take the first two numbers of a longer list.
    let spans: Vec<Vec<f64>> = Vec::deserialize(d)?;
    let ns = |seconds: f64| match seconds {
        seconds if (0.0..=MAX_S).contains(&seconds) => Ok((seconds * SECOND as f64).round() as u64),
        seconds => Err(de::Error::custom(format!(
            "{} s is out of range: give 0 or more, and a day at most",
            Shown(seconds)
        ))),
    };
    let span = |span: Vec<f64>| match span[..] {
        [from, to] => Ok((ns(from)?, ns(to)?)),
        _ => Err(de::Error::custom(format!("a time is a pair, [from, to]; here are {}", span.len()))),
    };
    spans.into_iter().map(span).collect()
}

/// Returns the normal load.
pub fn normal() -> f64 {
    1.0
}

/// Reads a part of a whole, in percent.
pub fn part<'de, D: Deserializer<'de>>(d: D) -> Result<u32, D::Error> {
    let text = Percentage::read(d)?;
    parse_part(&text).ok_or_else(|| de::Error::custom(format!("`{text}` is no part: give 0% to 100%")))
}

/// Reads the weight of a term. Only the ratio of weights matters.
pub fn weight<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
    /// The configuration has the same limit.
    const MOST: f64 = 1e6;
    match f64::deserialize(d)? {
        number if (0.0..=MOST).contains(&number) => Ok(number),
        number => Err(de::Error::custom(format!("{} is out of range: give 0 to {MOST}", Shown(number)))),
    }
}
