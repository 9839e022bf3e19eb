//! How a tenant lets its memory make room for others'. Numbers go over the tenant socket, names are what people write.

use core::fmt;
use core::str::FromStr;

/// How a tenant lets its memory make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Oversubscribe {
    /// It may be taken off the GPU whole, and brought back.
    Suspend = 1,
}

impl Oversubscribe {
    /// Its name, as people write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Suspend => "suspend",
        }
    }

    /// The one of this number in a frame, if it is one; 0 is none.
    pub fn from_number(number: u32) -> Option<Self> {
        (number == Self::Suspend as u32).then_some(Self::Suspend)
    }
}

/// A word that names no way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OversubscribeError;

impl fmt::Display for OversubscribeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory makes room in one way only: suspend")
    }
}

impl core::error::Error for OversubscribeError {}

impl FromStr for Oversubscribe {
    type Err = OversubscribeError;

    fn from_str(text: &str) -> Result<Self, OversubscribeError> {
        if text == Self::Suspend.name() { Ok(Self::Suspend) } else { Err(OversubscribeError) }
    }
}
