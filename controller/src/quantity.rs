//! Shares and sizes as people write them.

use deepres_abi::PPM;
use std::fmt;

/// The smallest share that can be asked for: 1 %.
pub const MIN_SHARE_PPM: u32 = PPM / 100;

/// Parts per million in one percent.
const PPM_PER_PERCENT: f64 = PPM as f64 / 100.0;

/// The unit suffixes of sizes and what they stand for. A bare letter is binary, as in Docker.
const UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
];

/// No machine has this much memory; what is larger is a slip of the pen.
const MAX_BYTES: u64 = 1 << 50;

/// A share or a size that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Not a share.
    #[error("`{0}` is not a share: give a percentage from 1% to 100%, for example 30% or 12.5%")]
    Share(String),
    /// Not a size.
    #[error(
        "`{0}` is not a size: give a number above zero with KiB, MiB, GiB or TiB (or KB, MB, GB, TB), for example 8GiB or 512MiB"
    )]
    Bytes(String),
}

/// Reads a share: a percentage from 1 to 100, the sign optional. The result is in parts per million.
///
/// # Errors
/// [`QuantityError::Share`], which says what is accepted.
pub fn parse_share(text: &str) -> Result<u32, QuantityError> {
    let refused = || QuantityError::Share(text.to_owned());
    let trimmed = text.trim();
    let number = trimmed.strip_suffix('%').unwrap_or(trimmed).trim_end();
    let percent = decimal(number).ok_or_else(refused)?;
    let ppm = (percent * PPM_PER_PERCENT).round();
    if ppm < f64::from(MIN_SHARE_PPM) || ppm > f64::from(PPM) {
        return Err(refused());
    }
    Ok(ppm as u32)
}

/// Reads a size in bytes.
///
/// # Errors
/// [`QuantityError::Bytes`], which says what is accepted.
pub fn parse_bytes(text: &str) -> Result<u64, QuantityError> {
    let refused = || QuantityError::Bytes(text.to_owned());
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let unit = unit.trim_start().to_ascii_lowercase();
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(refused)?;
    let bytes = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(*factor).ok_or_else(refused)?,
        Err(_) => (decimal(number).ok_or_else(refused)? * *factor as f64).round() as u64,
    };
    if bytes == 0 || bytes > MAX_BYTES {
        return Err(refused());
    }
    Ok(bytes)
}

/// A plain decimal number: digits and at most one point, no sign, exponent or name.
fn decimal(text: &str) -> Option<f64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    plain.then(|| text.parse().ok()).flatten()
}

/// Shows parts per million as a percentage.
#[derive(Debug, Clone, Copy)]
pub struct Percent(pub u32);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // At most four decimals are left of parts per million; trailing zeros say nothing.
        let text = format!("{:.4}", f64::from(self.0) / PPM_PER_PERCENT);
        let text = text.trim_end_matches('0').trim_end_matches('.');
        f.pad(&format!("{text}%"))
    }
}

/// Shows bytes in the largest binary unit that leaves at least 1.
#[derive(Debug, Clone, Copy)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, factor) = [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]
            .into_iter()
            .find(|(_, factor)| self.0 >= *factor)
            .unwrap_or(("B", 1));
        if self.0.is_multiple_of(factor) {
            f.pad(&format!("{} {unit}", self.0 / factor))
        } else {
            f.pad(&format!("{:.1} {unit}", self.0 as f64 / factor as f64))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_from_one_to_a_hundred_percent_are_read_with_and_without_sign() {
        for (text, ppm) in
            [("30%", 300_000), ("30", 300_000), ("12.5%", 125_000), (" 1 %", 10_000), ("100%", PPM)]
        {
            assert_eq!(parse_share(text), Ok(ppm), "{text}");
        }
    }

    #[test]
    fn anything_else_is_no_share_and_the_message_says_what_is() {
        for text in
            ["abc", "0%", "0.5%", "120%", "-5%", "", "%", "1e1%", "nan", "inf", "3 0%", "30%x", "30%%"]
        {
            let refused = parse_share(text).unwrap_err().to_string();
            assert!(refused.contains("1% to 100%"), "{refused}");
        }
    }

    #[test]
    fn sizes_are_read_in_binary_and_decimal_units() {
        for (text, bytes) in [
            ("8GiB", 8 << 30),
            ("8 gib", 8 << 30),
            ("8g", 8 << 30),
            ("1.5MiB", 3 << 19),
            ("2GB", 2_000_000_000),
            ("4096", 4096),
            ("1B", 1),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn anything_else_is_no_size_and_the_message_says_what_is() {
        for text in [
            "12XB",
            "",
            "GiB",
            "0",
            "0GiB",
            "-1GiB",
            "1e9",
            "1.2.3MiB",
            "99999999999TiB",
            "18446744073709551616",
        ] {
            let refused = parse_bytes(text).unwrap_err().to_string();
            assert!(refused.contains("8GiB"), "{refused}");
        }
    }

    #[test]
    fn quantities_are_shown_without_noise() {
        assert_eq!(Percent(300_000).to_string(), "30%");
        assert_eq!(Percent(125_000).to_string(), "12.5%");
        assert_eq!(Percent(333_333).to_string(), "33.3333%");
        assert_eq!(Bytes(8 << 30).to_string(), "8 GiB");
        assert_eq!(Bytes(1_610_612_736).to_string(), "1.5 GiB");
        assert_eq!(Bytes(100).to_string(), "100 B");
    }
}
