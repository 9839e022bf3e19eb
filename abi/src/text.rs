//! Values that files and the admin socket keep as texts, in the form in which people write them.

use core::fmt;
use core::marker::PhantomData;
use core::str::FromStr;

/// Reads a value from a text, and returns the value.
///
/// # Errors
/// The error of the deserializer, or a custom error if the text is no such value.
pub fn deserialize<'de, T: FromStr<Err: fmt::Display>, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    struct Visitor<T>(PhantomData<T>);
    impl<T: FromStr<Err: fmt::Display>> serde::de::Visitor<'_> for Visitor<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a text")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }
    }
    deserializer.deserialize_str(Visitor(PhantomData))
}
