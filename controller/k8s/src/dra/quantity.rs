//! Quantities as Kubernetes writes them: `30`, `8Gi`, `1.5G`.

/// The suffixes with powers of two.
const BINARY: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];
/// The suffixes with powers of ten.
const DECIMAL: [(&str, i32); 10] =
    [("", 0), ("n", -9), ("u", -6), ("m", -3), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

/// Returns the value of a quantity, rounded up to a whole number. Returns `None` if the text is no
/// quantity, or the value is negative or too large.
pub fn value(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let (bits, exponent) = match BINARY.iter().find(|(own, _)| *own == suffix) {
        Some((_, bits)) => (*bits, 0),
        None => match DECIMAL.iter().find(|(own, _)| *own == suffix) {
            Some((_, exponent)) => (0, *exponent),
            None => (0, suffix.strip_prefix(['e', 'E'])?.parse().ok()?),
        },
    };
    let exponent = i32::checked_sub(exponent, fraction.len().try_into().ok()?)?;
    let scaled = digits.checked_mul(1 << bits)?;
    let power = 10_u128.checked_pow(exponent.unsigned_abs())?;
    let value = if exponent < 0 { scaled.div_ceil(power) } else { scaled.checked_mul(power)? };
    value.try_into().ok()
}

/// Returns a number of mebibytes as the API server writes it: with the largest suffix that needs no
/// fraction.
pub fn of_mebibytes(mebibytes: u64) -> String {
    const STEP: u64 = 1 << 10;
    let (mut number, mut suffixes) = (mebibytes, BINARY.iter().skip(1));
    while number > 0 && number.is_multiple_of(STEP) && suffixes.len() > 1 {
        number /= STEP;
        suffixes.next();
    }
    format!("{number}{}", suffixes.next().map_or("", |(suffix, _)| suffix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantity_has_the_value_that_kubernetes_gives_it() {
        for (text, expected) in [
            ("30", 30),
            ("0", 0),
            ("8Gi", 8 << 30),
            ("81559Mi", 81559 << 20),
            ("1.5Gi", 3 << 29),
            ("0.1Ki", 103),
            ("1500m", 2),
            ("30k", 30_000),
            ("1e3", 1_000),
            ("12E-1", 2),
            ("1E", 1_000_000_000_000_000_000),
            ("15Ei", 15 << 60),
        ] {
            assert_eq!(value(text), Some(expected), "{text}");
        }
        for text in ["", "-1", "Gi", "1.2.3", "8GiB", "1 Gi", "16Ei", "1e30", "1e-99", "x", "."] {
            assert_eq!(value(text), None, "{text}");
        }
    }

    #[test]
    fn mebibytes_have_the_largest_suffix_without_a_fraction() {
        for (mebibytes, expected) in
            [(1, "1Mi"), (1024, "1Gi"), (81559, "81559Mi"), (81920, "80Gi"), (0, "0Mi")]
        {
            assert_eq!(of_mebibytes(mebibytes), expected);
        }
        assert_eq!(value(&of_mebibytes(1 << 40)), Some(1 << 60));
    }
}
