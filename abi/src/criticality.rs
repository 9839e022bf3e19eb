//! The criticality of a job, by name or number. Frames on the tenant socket carry parts per
//! million, and people write a name or a number from 0 to 1.

use crate::PPM;
use crate::quantity::parse_fraction;
use core::fmt;
use core::str::FromStr;

/// The criticality of a job, in parts per million of the highest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Criticality(u32);

impl Criticality {
    /// The highest criticality.
    pub const CRITICAL: Self = Self(PPM);
    /// The criticalities that have names.
    const NAMED: [(&str, u32); 4] =
        [("low", PPM / 4), ("normal", PPM / 2), ("high", PPM / 4 * 3), ("critical", PPM)];

    /// Returns a criticality from parts per million. Values above the highest become the highest.
    pub fn from_ppm(ppm: u32) -> Self {
        Self(ppm.min(PPM))
    }

    /// Returns the parts per million of the highest criticality.
    pub fn ppm(self) -> u32 {
        self.0
    }
}

impl Default for Criticality {
    fn default() -> Self {
        Self(PPM / 2)
    }
}

impl fmt::Display for Criticality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::NAMED.into_iter().find(|(_, ppm)| *ppm == self.0) {
            Some((name, _)) => f.pad(name),
            None => write!(f, "{}", f64::from(self.0) / f64::from(PPM)),
        }
    }
}

/// The error for a text that is no criticality.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CriticalityError;

impl fmt::Display for CriticalityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a criticality is one of low, normal, high and critical, or a number from 0 to 1")
    }
}

impl core::error::Error for CriticalityError {}

impl FromStr for Criticality {
    type Err = CriticalityError;

    fn from_str(text: &str) -> Result<Self, CriticalityError> {
        match Self::NAMED.into_iter().find(|(name, _)| *name == text) {
            Some((_, ppm)) => Ok(Self(ppm)),
            None => parse_fraction(text).map(Self).ok_or(CriticalityError),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn criticality_is_a_name_or_a_number_from_0_to_1() {
        for (text, ppm) in
            [("low", 250_000), ("normal", 500_000), ("high", 750_000), ("critical", PPM), ("0.3", 300_000)]
        {
            let read: Criticality = text.parse().unwrap();
            assert_eq!((read.ppm(), read.to_string().as_str()), (ppm, text));
        }
        for text in ["", "urgent", "1.5", "-1", "nan", "inf", "1e-1"] {
            assert!(text.parse::<Criticality>().is_err(), "{text}");
        }
    }
}
