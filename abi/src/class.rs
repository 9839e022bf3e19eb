//! The class of a tenant: what kind of promise it is given. Numbers go over the tenant socket, names are what people write.

use core::fmt;
use core::str::FromStr;

/// What kind of promise a tenant is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u32)]
pub enum Class {
    /// The share it asked for, however many others come: promises that would not fit together are refused.
    Guaranteed = 1,
    /// A part by its weight. Shares that were asked for shrink in proportion when they do not fit together.
    #[default]
    Fair = 2,
    /// The GPU while no tenant of another class wants it.
    BestEffort = 3,
}

impl Class {
    /// Every class, the strongest promise first.
    pub const ALL: [Self; 3] = [Self::Guaranteed, Self::Fair, Self::BestEffort];

    /// Its name, as people write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Guaranteed => "guaranteed",
            Self::Fair => "fair",
            Self::BestEffort => "best-effort",
        }
    }

    /// The class of this number in a frame, if it is one; 0 is none.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|class| *class as u32 == number)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A word that names no class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassError;

impl fmt::Display for ClassError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a class is one of guaranteed, fair and best-effort")
    }
}

impl core::error::Error for ClassError {}

impl FromStr for Class {
    type Err = ClassError;

    fn from_str(text: &str) -> Result<Self, ClassError> {
        Self::ALL.into_iter().find(|class| class.name() == text).ok_or(ClassError)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Class {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Class {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::text::deserialize(deserializer)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_known_by_its_name_and_by_its_number() {
        for class in Class::ALL {
            assert_eq!(class.name().parse(), Ok(class));
            assert_eq!(Class::from_number(class as u32), Some(class));
        }
        assert!("urgent".parse::<Class>().unwrap_err().to_string().contains("best-effort"));
        assert_eq!(Class::from_number(0), None);
    }
}
