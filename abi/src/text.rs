//! Values that files and the admin socket keep as texts, in the form in which people write them.

use core::fmt;
use core::marker::PhantomData;
use core::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::class::Class;
use crate::criticality::Criticality;
use crate::label::Labels;

/// A visitor for serde, which reads a value from a text.
struct Text<T>(PhantomData<T>);

impl<T: FromStr<Err: fmt::Display>> serde::de::Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

/// Makes serde write these types by `Display`, and read them by `FromStr`.
macro_rules! as_texts {
    ($($kind:ty),+) => {
        $(
            impl Serialize for $kind {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    serializer.collect_str(self)
                }
            }

            impl<'de> Deserialize<'de> for $kind {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    deserializer.deserialize_str(Text(PhantomData))
                }
            }
        )+
    };
}

as_texts!(Class, Criticality, Labels);
