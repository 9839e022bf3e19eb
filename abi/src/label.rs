//! The labels of a tenant: `KEY=VALUE` pairs by which people and tools sort tenants. No decision of
//! deepres depends on them.

use crate::visible::is_harmful;
use core::fmt;
use core::str::{self, FromStr};

/// The most bytes of all labels of a tenant together. The sum includes the `=` of each label, and a
/// separator between two labels.
pub const LABELS_BYTES: usize = 192;
/// The byte between two labels.
const SEPARATOR: u8 = b',';

/// Labels, in the order in which the job states them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Labels {
    text: [u8; LABELS_BYTES],
    len: u8,
}

/// The reason for which a text is no list of labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelError {
    /// A label is not of the form `KEY=VALUE`.
    Malformed,
    /// The labels together are too long.
    TooLong,
    /// Two labels have the same key.
    Twice,
}

impl fmt::Display for LabelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => write!(
                f,
                "a label is KEY=VALUE: the key of letters, digits, `-`, `_`, `.` and `/`, the value of visible characters without a comma"
            ),
            Self::TooLong => write!(f, "all labels of a tenant together may have {LABELS_BYTES} bytes"),
            Self::Twice => write!(f, "two labels have the same key"),
        }
    }
}

impl core::error::Error for LabelError {}

impl Labels {
    /// No labels.
    pub const NONE: Self = Self { text: [0; LABELS_BYTES], len: 0 };

    /// Returns the labels as one text, `KEY=VALUE,KEY=VALUE`.
    pub fn as_str(&self) -> &str {
        // The methods store only whole characters, so this text is always UTF-8.
        str::from_utf8(&self.text[..usize::from(self.len)]).unwrap_or_default()
    }

    /// Returns each key with its value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.as_str().split(SEPARATOR as char).filter_map(|label| label.split_once('='))
    }

    /// Returns the value of a key, or `None` if no label has the key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find_map(|(known, value)| (known == key).then_some(value))
    }

    /// Returns these labels with one more label, `KEY=VALUE`.
    ///
    /// # Errors
    /// [`LabelError`] if the text is no label, if a label has the same key, or if there is no room.
    pub fn with(mut self, label: &str) -> Result<Self, LabelError> {
        let (key, value) = label.split_once('=').ok_or(LabelError::Malformed)?;
        let is_of_key = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        let is_refused = |c: char| c == SEPARATOR as char || is_harmful(c);
        if key.is_empty() || !key.chars().all(is_of_key) || value.chars().any(is_refused) {
            return Err(LabelError::Malformed);
        }
        if self.get(key).is_some() {
            return Err(LabelError::Twice);
        }
        let mut end = usize::from(self.len);
        if end > 0 {
            *self.text.get_mut(end).ok_or(LabelError::TooLong)? = SEPARATOR;
            end += 1;
        }
        let place = self.text.get_mut(end..end + label.len()).ok_or(LabelError::TooLong)?;
        place.copy_from_slice(label.as_bytes());
        self.len = u8::try_from(end + label.len()).map_err(|_| LabelError::TooLong)?;
        Ok(self)
    }
}

impl FromStr for Labels {
    type Err = LabelError;

    fn from_str(text: &str) -> Result<Self, LabelError> {
        text.split(SEPARATOR as char).try_fold(Self::NONE, Self::with)
    }
}

impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Labels({self})")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::string::ToString;
    use std::vec::Vec;

    #[test]
    fn labels_are_read_as_they_are_written() {
        let labels: Labels = "team=vision,cost-centre=4 711,x/y.z=".parse().unwrap();
        let pairs: Vec<_> = labels.iter().collect();
        assert_eq!(pairs, [("team", "vision"), ("cost-centre", "4 711"), ("x/y.z", "")]);
        assert_eq!((labels.get("team"), labels.get("none")), (Some("vision"), None));
        assert_eq!(labels.to_string().parse(), Ok(labels));
        assert_eq!(Labels::NONE.iter().count(), 0);
    }

    #[test]
    fn malformed_labels_are_refused_with_the_reason() {
        for text in
            ["", "team", "=vision", "te am=x", "a=b\nc", "a=\u{7f}", "a=\u{202e}b", "a=\u{a0}", "a=b,"]
        {
            assert_eq!(text.parse::<Labels>(), Err(LabelError::Malformed), "{text:?}");
        }
        assert_eq!("a=1,a=2".parse::<Labels>(), Err(LabelError::Twice));
        let long = std::format!("a={}", "x".repeat(LABELS_BYTES - 2));
        let full: Labels = long.parse().unwrap();
        assert_eq!(full.as_str(), long);
        assert_eq!(full.with("b="), Err(LabelError::TooLong));
        assert_eq!(std::format!("{long}x").parse::<Labels>(), Err(LabelError::TooLong));
    }
}
