//! Shares, sizes and times as text: errors for invalid text, and formatting. The grammar is in
//! [`deepres_abi::quantity`].

use deepres_abi::grant::NO_LIMIT;
pub use deepres_abi::quantity::Bytes;
use deepres_abi::{PPM, quantity};
use std::fmt;

/// Parts per million in one percent.
const PPM_PER_PERCENT: f64 = PPM as f64 / 100.0;

/// The error for a text that is not a share, a size or a time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The text is not a share.
    #[error("`{0}` is not a share; give a percentage from 1% to 100%, for example 30% or 12.5%")]
    Share(String),
    /// The text is not a size.
    #[error(
        "`{0}` is not a size; give a number above zero with KiB, MiB, GiB or TiB (or KB, MB, GB, TB), for example 8GiB or 512MiB"
    )]
    Bytes(String),
    /// The text is a size, but too small for a memory limit.
    #[error(
        "a memory limit of `{0}` is {bytes}, with which no program runs; give a unit, for example {0}MiB or 8GiB",
        bytes = Bytes(*.1)
    )]
    Small(String, u64),
    /// The text is not a time.
    #[error(
        "`{0}` is not a time; give a number above zero with us, ms, s, min, h or d, for example 30ms, 90s or 1.5h, and no more than a year"
    )]
    Time(String),
}

/// Reads a share: a percentage from 1 to 100, with an optional percent sign. Returns the share in
/// parts per million.
///
/// # Errors
/// [`QuantityError::Share`], which says which texts are shares.
pub fn parse_share(text: &str) -> Result<u32, QuantityError> {
    quantity::parse_share(text).ok_or_else(|| QuantityError::Share(text.to_owned()))
}

/// Reads a size. Returns bytes.
///
/// # Errors
/// [`QuantityError::Bytes`], which says which texts are sizes.
pub fn parse_bytes(text: &str) -> Result<u64, QuantityError> {
    quantity::parse_bytes(text).ok_or_else(|| QuantityError::Bytes(text.to_owned()))
}

/// Reads a size that is a memory limit. Returns bytes.
///
/// # Errors
/// [`QuantityError::Bytes`], which says which texts are sizes, or [`QuantityError::Small`].
pub fn parse_memory(text: &str) -> Result<u64, QuantityError> {
    let bytes = parse_bytes(text)?;
    quantity::parse_memory(text).ok_or_else(|| QuantityError::Small(text.trim().to_owned(), bytes))
}

/// The word that means no limit.
const UNLIMITED: &str = "unlimited";

/// Reads a memory limit: a size, or `unlimited`. Returns bytes; [`NO_LIMIT`] for `unlimited`.
///
/// # Errors
/// The same errors as [`parse_memory`].
pub fn parse_limit(text: &str) -> Result<u64, QuantityError> {
    if text == UNLIMITED { Ok(NO_LIMIT) } else { parse_memory(text) }
}

/// Returns the text from which [`parse_limit`] reads exactly this limit, bytes.
pub fn limit_text(bytes: u64) -> String {
    let shown = Bytes(bytes).to_string();
    match bytes {
        NO_LIMIT => UNLIMITED.to_owned(),
        _ if parse_bytes(&shown) == Ok(bytes) => shown,
        _ => bytes.to_string(),
    }
}

/// Reads a time. Returns nanoseconds.
///
/// # Errors
/// [`QuantityError::Time`], which says which texts are times.
pub fn parse_time(text: &str) -> Result<u64, QuantityError> {
    quantity::parse_time_ns(text).ok_or_else(|| QuantityError::Time(text.to_owned()))
}

/// Shows parts per million as a percentage.
#[derive(Debug, Clone, Copy)]
pub struct Percent(pub u32);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Parts per million need at most four decimals. The text has no trailing zeros.
        let text = format!("{:.4}", f64::from(self.0) / PPM_PER_PERCENT);
        let text = text.trim_end_matches('0').trim_end_matches('.');
        f.pad(&format!("{text}%"))
    }
}

/// Shows nanoseconds in the largest unit in which the value is at least 1, with at most three
/// decimals.
#[derive(Debug, Clone, Copy)]
pub struct Time(pub u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [
            ("d", 86_400_000_000_000),
            ("h", 3_600_000_000_000),
            ("min", 60_000_000_000),
            ("s", 1_000_000_000),
            ("ms", 1_000_000),
        ];
        let (unit, factor) =
            units.into_iter().find(|(_, factor)| self.0 >= *factor).unwrap_or(("us", 1_000u64));
        let text = format!("{:.3}", self.0 as f64 / factor as f64);
        f.pad(&format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.')))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_the_accepted_values() {
        for text in ["abc", "0.5%", "120%"] {
            let refused = parse_share(text).unwrap_err().to_string();
            assert!(refused.contains(text) && refused.contains("1% to 100%"), "{refused}");
        }
        for text in ["12XB", "0", "-1GiB"] {
            let refused = parse_bytes(text).unwrap_err().to_string();
            assert!(refused.contains(text) && refused.contains("8GiB"), "{refused}");
        }
        for text in ["512", "0.5MiB", "1023k"] {
            let refused = parse_memory(text).unwrap_err().to_string();
            assert!(refused.contains(text) && refused.contains("give a unit"), "{refused}");
        }
        assert_eq!(parse_memory("1MiB"), Ok(1 << 20));
    }

    #[test]
    fn shown_quantities_are_read_back() {
        assert_eq!(parse_share(&Percent(333_333).to_string()), Ok(333_333));
        assert_eq!(parse_bytes(&Bytes(3 << 19).to_string()), Ok(3 << 19));
        for bytes in [NO_LIMIT, 3 << 19, 1 << 30, 1_234_567_891] {
            assert_eq!(parse_limit(&limit_text(bytes)), Ok(bytes));
        }
        assert!(parse_limit("none").is_err() && parse_bytes("unlimited").is_err());
        for ns in [1_000, 30_000_000, 90_000_000_000, 5_400_000_000_000, 172_800_000_000_000] {
            assert_eq!(parse_time(&Time(ns).to_string()), Ok(ns));
        }
    }

    #[test]
    fn quantities_are_shown_without_noise() {
        assert_eq!(Percent(300_000).to_string(), "30%");
        assert_eq!(Percent(125_000).to_string(), "12.5%");
        assert_eq!(Percent(333_333).to_string(), "33.3333%");
    }
}
