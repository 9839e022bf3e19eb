//! A value whose JSON the daemon writes again and again.

use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// A value that never changes, with its JSON. The first write makes the JSON, and each later write
/// copies it. Clones share the value and the JSON.
#[derive(Debug)]
pub struct Serialized<T>(Arc<Inner<T>>);

#[derive(Debug)]
struct Inner<T> {
    value: T,
    json: OnceLock<Box<RawValue>>,
}

impl<T> Serialized<T> {
    /// Returns the value, without its JSON as yet.
    pub fn new(value: T) -> Self {
        Self(Arc::new(Inner { value, json: OnceLock::new() }))
    }
}

impl<T> Clone for Serialized<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Deref for Serialized<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T: PartialEq> PartialEq for Serialized<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.value == other.0.value
    }
}

impl<T: Serialize> Serialize for Serialized<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let json = match self.0.json.get() {
            Some(json) => json,
            None => {
                let json = to_raw_value(&self.0.value).map_err(S::Error::custom)?;
                self.0.json.get_or_init(|| json)
            }
        };
        json.serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Serialized<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A value that counts how often somebody makes its JSON.
    #[derive(Debug, Default)]
    struct Counted(AtomicUsize);

    impl Serialize for Counted {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            self.0.fetch_add(1, Ordering::Relaxed);
            serializer.serialize_str("text")
        }
    }

    #[test]
    fn all_clones_of_a_value_make_its_json_once() {
        let value = Serialized::new(Counted::default());
        let pair = [value.clone(), value.clone()];
        for _ in 0..2 {
            assert_eq!(serde_json::to_string(&pair).unwrap(), r#"["text","text"]"#);
        }
        assert_eq!(value.0.value.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_value_is_read_from_its_json_and_is_equal_to_any_equal_value() {
        let value = Serialized::new(vec![1.5, -2.0]);
        let json = serde_json::to_string(&value).unwrap();
        let read: Serialized<Vec<f64>> = serde_json::from_str(&json).unwrap();
        assert_eq!((json.as_str(), read.len()), ("[1.5,-2.0]", 2));
        assert!(read == value && value == value.clone() && read != Serialized::new(vec![1.5]));
    }
}
