//! The class of a tenant: the kind of promise that the daemon gives the tenant. Frames on the
//! tenant socket carry the class as a number, and people write its name.

use core::fmt;
use core::str::FromStr;

/// The kind of promise that the daemon gives a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u32)]
pub enum Class {
    /// The tenant gets the share for which it asked, regardless of other tenants. If the guarantee
    /// does not fit beside the guarantees of other tenants, the daemon refuses the guarantee.
    Guaranteed = 1,
    /// The tenant gets its share, or a part of the rest by its priority. If the shares of all
    /// tenants do not fit together, the shares of fair tenants shrink in proportion.
    #[default]
    Fair = 2,
    /// The tenant gets the GPU while no tenant of another class wants the GPU.
    BestEffort = 3,
}

impl Class {
    /// All classes, the strongest promise first.
    pub const ALL: [Self; 3] = [Self::Guaranteed, Self::Fair, Self::BestEffort];

    /// Returns the class's name, as people write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Guaranteed => "guaranteed",
            Self::Fair => "fair",
            Self::BestEffort => "best-effort",
        }
    }

    /// Returns the class with this number, or `None` if there is none. No class has the number 0.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|class| *class as u32 == number)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error for a word that names no class.
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
