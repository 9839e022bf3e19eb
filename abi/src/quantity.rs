//! Shares and sizes as people write them: one grammar, for the command line, the configuration and a job's environment.
//!
//! What is wrong with a text that is refused is for the reader to say, in the words that fit its place.

use crate::PPM;

/// The smallest share that can be asked for: 1 %.
pub const MIN_SHARE_PPM: u32 = PPM / 100;
/// No machine has this much memory; what is larger is a slip of the pen.
pub const MAX_BYTES: u64 = 1 << 50;

/// Parts per million in one percent.
const PPM_PER_PERCENT: u64 = PPM as u64 / 100;

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

/// Reads a share: a percentage from 1 to 100, decimals allowed, the sign optional. The result is in parts per million.
pub fn parse_share(text: &str) -> Option<u32> {
    let trimmed = text.trim();
    let number = trimmed.strip_suffix('%').unwrap_or(trimmed).trim_end();
    let ppm = u32::try_from(Decimal::parse(number)?.times(PPM_PER_PERCENT)?).ok()?;
    (MIN_SHARE_PPM..=PPM).contains(&ppm).then_some(ppm)
}

/// Reads a size above zero, decimals allowed, with its unit: `8GiB`, `500 MB`, `1.5t`, `4096`. The result is in bytes.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let unit = unit.trim_start();
    let (_, factor) = UNITS.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name))?;
    let bytes = Decimal::parse(number)?.times(*factor)?;
    (1..=MAX_BYTES).contains(&bytes).then_some(bytes)
}

/// A plain decimal number, exactly: digits and at most one point, no sign, exponent or name.
#[derive(Debug, Clone, Copy)]
struct Decimal {
    /// The number without its point.
    digits: u128,
    /// What the point divides it by.
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

    /// The number times `factor`, to the nearest whole.
    fn times(self, factor: u64) -> Option<u64> {
        let product = self.digits.checked_mul(u128::from(factor))?;
        u64::try_from(product.checked_add(self.divisor / 2)? / self.divisor).ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

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
