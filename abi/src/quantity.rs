//! Shares, sizes and times as people write them. The command line, the configuration and a job's
//! environment use this one grammar.
//!
//! The functions return `None` for a wrong text. The caller then reports the error, in words that
//! fit the place.

use core::fmt;

use crate::PPM;

/// The smallest share for which a job can ask: 1 %.
pub const MIN_SHARE_PPM: u32 = PPM / 100;
/// The largest size that the grammar accepts. No machine has so much memory, so a larger size is a
/// mistake.
pub const MAX_BYTES: u64 = 1 << 50;

/// The parts per million in one percent.
const PPM_PER_PERCENT: u64 = PPM as u64 / 100;

/// The unit suffixes of sizes and their factors. A single letter means a binary unit, as in Docker.
/// Kubernetes writes binary units as `Gi`.
const UNITS: [(&str, u64); 18] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("ki", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mi", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gi", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("ti", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
];

/// Shows a number of bytes in the largest binary unit of which there is at least 1.
#[derive(Debug, Clone, Copy)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, factor) = [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]
            .into_iter()
            .find(|(_, factor)| self.0 >= *factor)
            .unwrap_or(("B", 1));
        if self.0.is_multiple_of(factor) {
            write!(f, "{} {unit}", self.0 / factor)
        } else {
            write!(f, "{:.1} {unit}", self.0 as f64 / factor as f64)
        }
    }
}

/// Reads a share: a percentage from 1 to 100, with optional decimals and an optional `%`. Returns
/// parts per million.
pub fn parse_share(text: &str) -> Option<u32> {
    let trimmed = text.trim();
    let number = trimmed.strip_suffix('%').unwrap_or(trimmed).trim_end();
    let ppm = u32::try_from(Decimal::parse(number)?.times(PPM_PER_PERCENT)?).ok()?;
    (MIN_SHARE_PPM..=PPM).contains(&ppm).then_some(ppm)
}

/// Reads a percentage from 0 to 100, with optional decimals. The `%` is required. Returns parts per
/// million.
pub fn parse_part(text: &str) -> Option<u32> {
    let number = text.trim().strip_suffix('%')?.trim_end();
    let ppm = u32::try_from(Decimal::parse(number)?.times(PPM_PER_PERCENT)?).ok()?;
    (ppm <= PPM).then_some(ppm)
}

/// Reads a size above zero, with optional decimals and a unit: `8GiB`, `500 MB`, `1.5t`, `4096`.
/// Returns bytes.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let unit = unit.trim_start();
    let (_, factor) = UNITS.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name))?;
    let bytes = Decimal::parse(number)?.times(*factor)?;
    (1..=MAX_BYTES).contains(&bytes).then_some(bytes)
}

/// The smallest memory limit, bytes. A smaller number lacks its unit.
pub const MIN_MEMORY_BYTES: u64 = 1 << 20;

/// Reads a size that is a memory limit, as [`parse_bytes`] does. Returns bytes, at least
/// [`MIN_MEMORY_BYTES`].
pub fn parse_memory(text: &str) -> Option<u64> {
    parse_bytes(text).filter(|bytes| *bytes >= MIN_MEMORY_BYTES)
}

/// The longest time that the grammar accepts, ns. A longer time is a mistake.
pub const MAX_TIME_NS: u64 = 366 * NS_PER_DAY;
const NS_PER_DAY: u64 = 86_400_000_000_000;

/// The unit suffixes of times and their factors in ns. The grammar accepts no number without a
/// unit, because the unit would be unclear.
const TIME_UNITS: [(&str, u64); 8] = [
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", NS_PER_DAY),
    ("µs", 1_000),
];

/// Reads a time above zero, with optional decimals and its unit: `30ms`, `1.5 h`, `2d`. Returns ns.
pub fn parse_time_ns(text: &str) -> Option<u64> {
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = trimmed.split_at(end);
    let unit = unit.trim_start();
    let (_, factor) = TIME_UNITS.iter().find(|(name, _)| unit == *name)?;
    let ns = Decimal::parse(number)?.times(*factor)?;
    (1..=MAX_TIME_NS).contains(&ns).then_some(ns)
}

/// Reads a number from 0 to 1. Returns parts per million.
pub fn parse_fraction(text: &str) -> Option<u32> {
    let ppm = u32::try_from(Decimal::parse(text)?.times(u64::from(PPM))?).ok()?;
    (ppm <= PPM).then_some(ppm)
}

/// An exact decimal number: digits and at most one point, without sign, exponent or name.
#[derive(Debug, Clone, Copy)]
struct Decimal {
    /// All digits of the number, read as a whole number: 125 for 1.25.
    digits: u128,
    /// The divisor for which the point stands: 100 for 1.25.
    divisor: u128,
}

impl Decimal {
    const BASE: u128 = 10;

    fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let mut number = Self { digits: 0, divisor: 1 };
        for (text, divisor) in [(whole, 1), (fraction, Self::BASE)] {
            for byte in text.bytes() {
                let digit = byte.is_ascii_digit().then(|| u128::from(byte - b'0'))?;
                number.digits = number.digits.checked_mul(Self::BASE)?.checked_add(digit)?;
                number.divisor = number.divisor.checked_mul(divisor)?;
            }
        }
        Some(number)
    }

    /// Returns the number times `factor`, rounded to the nearest whole number.
    fn times(self, factor: u64) -> Option<u64> {
        let product = self.digits.checked_mul(u128::from(factor))?;
        u64::try_from(product.checked_add(self.divisor / 2)? / self.divisor).ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_without_noise() {
        assert_eq!(Bytes(8 << 30).to_string(), "8 GiB");
        assert_eq!(Bytes(1_610_612_736).to_string(), "1.5 GiB");
        assert_eq!(Bytes(100).to_string(), "100 B");
    }

    #[test]
    fn shares_from_one_to_a_hundred_percent_are_read_with_and_without_sign() {
        for (text, ppm) in [
            ("30%", 300_000),
            ("30", 300_000),
            ("12.5%", 125_000),
            (" 1 %", 10_000),
            ("1.00004%", 10_000),
            ("1.00005%", 10_001),
            ("33.3333", 333_333),
            ("100%", PPM),
        ] {
            assert_eq!(parse_share(text), Some(ppm), "{text}");
        }
    }

    #[test]
    fn a_part_may_be_nothing_and_has_its_sign() {
        for (text, ppm) in
            [("0%", Some(0)), ("0.5%", Some(5_000)), ("100 %", Some(PPM)), ("1", None), ("101%", None)]
        {
            assert_eq!(parse_part(text), ppm, "{text}");
        }
        for (text, ppm) in
            [("0", Some(0)), ("0.25", Some(PPM / 4)), ("1", Some(PPM)), ("1.01", None), ("", None)]
        {
            assert_eq!(parse_fraction(text), ppm, "{text}");
        }
    }

    #[test]
    fn anything_else_is_no_share() {
        for text in [
            "abc",
            "0%",
            "0.5%",
            "120%",
            "100.0001%",
            "-5%",
            "+5%",
            "",
            "%",
            ".",
            "1.2.3",
            "1e1%",
            "nan",
            "inf",
            "3 0%",
            "30%x",
            "30%%",
            "99999999999999999999999999999999999999999%",
        ] {
            assert_eq!(parse_share(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_are_read_in_binary_and_decimal_units() {
        for (text, bytes) in [
            ("8GiB", 8 << 30),
            ("8 gib", 8 << 30),
            ("8g", 8 << 30),
            ("8Gi", 8 << 30),
            ("1.5Mi", 3 << 19),
            ("3000m", 3000 << 20),
            ("1.5MiB", 3 << 19),
            ("1.5KiB", 1536),
            ("500 MB", 500_000_000),
            ("2GB", 2_000_000_000),
            ("4096", 4096),
            ("1B", 1),
            ("1024TiB", MAX_BYTES),
        ] {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
    }

    #[test]
    fn a_memory_limit_has_a_unit_or_at_least_a_mebibyte() {
        assert_eq!(parse_memory("1MiB"), Some(MIN_MEMORY_BYTES));
        assert_eq!(parse_memory("1048576"), Some(MIN_MEMORY_BYTES));
        for text in ["8", "1023k", "0.5MiB", "12XB", ""] {
            assert_eq!(parse_memory(text), None, "{text}");
        }
    }

    #[test]
    fn times_are_read_with_their_unit() {
        for (text, ns) in [
            ("30ms", 30_000_000),
            ("1.5 h", 5_400_000_000_000),
            ("2d", 2 * NS_PER_DAY),
            ("10min", 600_000_000_000),
            (" 250us ", 250_000),
            ("0.5s", 500_000_000),
        ] {
            assert_eq!(parse_time_ns(text), Some(ns), "{text}");
        }
        for text in ["", "5", "0s", "-1s", "1e3s", "s", "1 year", "367d", "10M", "1h30m"] {
            assert_eq!(parse_time_ns(text), None, "{text}");
        }
    }

    #[test]
    fn anything_else_is_no_size() {
        for text in [
            "12XB",
            "",
            "GiB",
            ".GiB",
            "0",
            "0GiB",
            "0.1B",
            "-1GiB",
            "1e9",
            "1.2.3MiB",
            "1025TiB",
            "99999999999TiB",
            "18446744073709551616",
            "340282366920938463463374607431768211456",
        ] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
    }
}
