//! The wishes of a job. This module declares each wish once: its tag in a frame, its field, and its
//! key in the configuration. The declaration also has the wish's option, variable and kind of
//! value.
//!
//! The command line, the environment, the handshake, the configuration, the state file and the
//! admin socket use this list. `controller/model` has the help, caps and rules, by [`Key`].

use crate::class::Class;
use crate::criticality::Criticality;
use crate::grant::NO_LIMIT;
use crate::label::{LABELS_BYTES, Labels};
use crate::quantity::{parse_bytes, parse_share, parse_time_ns};
use core::fmt;
use core::str;

/// The size of a frame's field for wishes, bytes. Each wish takes a tag, a length and a value
/// ([`Wish::encode`]).
pub const WISHES_BYTES: usize = 320;
/// The bytes before each value: the tag and the length.
const HEAD_BYTES: usize = 2;
/// The byte that stands in place of a tag and ends the list of wishes.
const END: u8 = 0;

/// Calls the given macro once with all wishes, in the order in which commands show the wishes to
/// people.
#[macro_export]
macro_rules! for_each_wish {
    ($($callback:tt)+) => {
        $($callback)+! {
            /// The share of each GPU's time, parts per million.
            Share = 1: share_ppm, "share", "share", "DEEPRES_SHARE", Share(u32);
            /// The memory on each GPU, bytes. If an administrator sets [`NO_LIMIT`], the tenant has
            /// no limit, in spite of its wishes and caps.
            Memory = 2: memory_bytes, "memory", "memory", "DEEPRES_MEMORY", Bytes(u64);
            /// The class of the tenant.
            Class = 3: class, "class", "class", "DEEPRES_CLASS", Class(Class);
            /// The criticality of the job.
            Criticality = 4: criticality, "criticality", "criticality", "DEEPRES_CRITICALITY", Criticality(Criticality);
            /// The time within which the job must be done, ns from the moment of the wish.
            Deadline = 5: deadline_ns, "deadline", "deadline", "DEEPRES_DEADLINE", Time(u64);
            /// The GPU time that the whole job takes, ns.
            Size = 6: size_ns, "size", "size", "DEEPRES_SIZE", Time(u64);
            /// The time within which the job wants an answer to a request, ns.
            Slo = 7: slo_ns, "slo", "slo", "DEEPRES_SLO", Time(u64);
            /// Whether other tenants may have the memory that the tenant does not use.
            MemoryFollowUse = 8: memory_follows_use, "memory_follow_use", "memory-follow-use", "DEEPRES_MEMORY_FOLLOW_USE", Switch(bool);
            /// Whether the arbiter charges the time of the job's copies.
            ChargeCopies = 9: charge_copies, "charge_copies", "charge-copies", "DEEPRES_CHARGE_COPIES", Switch(bool);
            /// Labels, for people and tools.
            Label = 10: labels, "label", "label", "DEEPRES_LABEL", Labels(Labels);
            /// The part of each GPU's SMs that the job can use under MPS, parts per million.
            Sm = 11: sm_ppm, "sm", "sm", "DEEPRES_SM", Share(u32);
        }
    };
}

macro_rules! wishes {
    ($($(#[doc = $doc:literal])+ $key:ident = $tag:literal: $field:ident, $name:literal, $option:literal, $variable:literal, $kind:ident($value:ty);)+) => {
        /// The key of a wish: names one wish of a job, without a value.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Key {
            $($(#[doc = $doc])+ $key = $tag,)+
        }

        impl Key {
            /// Every wish, in the order in which commands show the wishes to people.
            pub const ALL: [Self; [$(Self::$key),+].len()] = [$(Self::$key),+];

            /// Returns the wish's key in the configuration.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$key => $name,)+ }
            }

            /// Returns the wish's option on the command line, without dashes.
            pub const fn option(self) -> &'static str {
                match self { $(Self::$key => $option,)+ }
            }

            /// Returns the wish's variable in a job's environment.
            pub const fn variable(self) -> &'static str {
                match self { $(Self::$key => $variable,)+ }
            }

            /// Returns the kind of the wish's value.
            pub const fn kind(self) -> Kind {
                match self { $(Self::$key => Kind::$kind,)+ }
            }

            /// Returns the wish's tag in a frame.
            pub const fn tag(self) -> u8 {
                self as u8
            }
        }

        /// The wishes of a job, field by field. A field is `None` if the job does not state the
        /// wish.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
        pub struct Wish {
            $($(#[doc = $doc])+
            #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
            pub $field: Option<$value>,)+
        }

        impl Wish {
            /// Returns these wishes. For each wish that is absent here, the result has the wish of
            /// `that`.
            #[must_use]
            pub fn or(self, that: Self) -> Self {
                Self { $($field: self.$field.or(that.$field),)+ }
            }

            /// Returns the value of a wish, or `None` if the wish is absent.
            pub fn get(&self, key: Key) -> Option<Value> {
                match key { $(Key::$key => self.$field.map(Value::$kind),)+ }
            }

            /// Removes a wish.
            pub fn remove(&mut self, key: Key) {
                match key { $(Key::$key => self.$field = None,)+ }
            }

            /// Sets a wish. Does nothing if the value is of another kind than the key.
            pub fn set(&mut self, key: Key, value: Value) {
                match (key, value) {
                    $((Key::$key, Value::$kind(value)) => self.$field = Some(value),)+
                    _ => {}
                }
            }
        }
    };
}
crate::for_each_wish!(wishes);

/// The kind of a wish's value, for example a share or a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The wish's value is in parts per million. People write a percentage.
    Share,
    /// Bytes.
    Bytes,
    /// A [`Class`].
    Class,
    /// A [`Criticality`].
    Criticality,
    /// Nanoseconds.
    Time,
    /// True or false.
    Switch,
    /// [`Labels`].
    Labels,
}

impl Kind {
    /// Returns a description of this kind's texts, for messages like "it is not …".
    pub const fn expected(self) -> &'static str {
        match self {
            Self::Share => "a share from 1% to 100%, like 30%",
            Self::Bytes => "a size like 8GiB",
            Self::Class => "one of guaranteed, fair and best-effort",
            Self::Criticality => "one of low, normal, high and critical, or a number from 0 to 1",
            Self::Time => "a time like 30ms, 90s or 1.5h",
            Self::Switch => "true or false",
            Self::Labels => "a list of labels like team=vision,cost=4711",
        }
    }

    /// Reads a value that a person wrote. Returns `None` if the text is no value of this kind.
    pub fn parse(self, text: &str) -> Option<Value> {
        Some(match self {
            Self::Share => Value::Share(parse_share(text)?),
            Self::Bytes => Value::Bytes(parse_bytes(text)?),
            Self::Class => Value::Class(text.parse().ok()?),
            Self::Criticality => Value::Criticality(text.parse().ok()?),
            Self::Time => Value::Time(parse_time_ns(text)?),
            Self::Switch => Value::Switch(switch(text)?),
            Self::Labels => Value::Labels(text.parse().ok()?),
        })
    }
}

/// Reads a word for true or false, as people write it. Returns `None` for any other word.
pub fn switch(text: &str) -> Option<bool> {
    let is_one_of = |words: [&str; 4]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    match () {
        () if is_one_of(["true", "yes", "on", "1"]) => Some(true),
        () if is_one_of(["false", "no", "off", "0"]) => Some(false),
        () => None,
    }
}

/// The value of a wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// A share, parts per million of the time of a GPU.
    Share(u32),
    /// A value in bytes, or [`NO_LIMIT`].
    Bytes(u64),
    /// The class of a tenant.
    Class(Class),
    /// The criticality of a tenant.
    Criticality(Criticality),
    /// A time, ns.
    Time(u64),
    /// True or false.
    Switch(bool),
    /// The labels of a job.
    Labels(Labels),
}

/// Writes the exact value in the form that [`Kind::parse`] reads. Writes `unlimited` for
/// [`NO_LIMIT`]; no job can ask for that.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// The parts per million in one percent.
        const PER_PERCENT: u32 = crate::PPM / 100;
        /// The number of decimals that a share in percent may have.
        const DIGITS: usize = 4;
        const NS_PER_US: u64 = 1_000;
        match *self {
            Self::Share(ppm) => {
                let (whole, mut fraction, mut digits) = (ppm / PER_PERCENT, ppm % PER_PERCENT, DIGITS);
                if fraction == 0 {
                    return write!(f, "{whole}%");
                }
                while fraction % 10 == 0 {
                    (fraction, digits) = (fraction / 10, digits - 1);
                }
                write!(f, "{whole}.{fraction:0digits$}%")
            }
            Self::Bytes(NO_LIMIT) => f.write_str("unlimited"),
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::Class(class) => write!(f, "{class}"),
            Self::Criticality(criticality) => write!(f, "{criticality}"),
            Self::Time(ns) => write!(f, "{}.{:03}us", ns / NS_PER_US, ns % NS_PER_US),
            Self::Switch(is_on) => write!(f, "{is_on}"),
            Self::Labels(labels) => write!(f, "{labels}"),
        }
    }
}

impl Value {
    /// Writes the value to the beginning of `to`. Returns the number of bytes written, or `None` if
    /// `to` is too short.
    fn encode(&self, to: &mut [u8]) -> Option<usize> {
        let word;
        let bytes: &[u8] = match self {
            Self::Labels(labels) => labels.as_str().as_bytes(),
            Self::Share(ppm) => {
                word = u64::from(*ppm).to_le_bytes();
                &word
            }
            Self::Bytes(number) | Self::Time(number) => {
                word = number.to_le_bytes();
                &word
            }
            Self::Class(class) => {
                word = u64::from(*class as u32).to_le_bytes();
                &word
            }
            Self::Criticality(criticality) => {
                word = u64::from(criticality.ppm()).to_le_bytes();
                &word
            }
            Self::Switch(is_on) => {
                word = u64::from(*is_on).to_le_bytes();
                &word
            }
        };
        to.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(bytes.len())
    }

    /// Reads a value of this kind from bytes that [`Self::encode`] wrote. Returns `None` for any
    /// other bytes.
    fn decode(kind: Kind, bytes: &[u8]) -> Option<Self> {
        if kind == Kind::Labels {
            return Some(Self::Labels(str::from_utf8(bytes).ok()?.parse().ok()?));
        }
        let number = u64::from_le_bytes(bytes.try_into().ok()?);
        let half = u32::try_from(number);
        Some(match kind {
            Kind::Share => Self::Share(half.ok()?),
            Kind::Bytes => Self::Bytes(number),
            Kind::Class => Self::Class(Class::from_number(half.ok()?)?),
            Kind::Criticality => Self::Criticality(Criticality::from_ppm(half.ok()?)),
            Kind::Time => Self::Time(number),
            Kind::Switch if number <= 1 => Self::Switch(number == 1),
            Kind::Switch | Kind::Labels => return None,
        })
    }
}

/// The error for a wish in a frame whose value is not of the wish's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable(pub Key);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not {}; update deepres", self.0.name(), self.0.kind().expected())
    }
}

impl core::error::Error for Unreadable {}

impl Wish {
    /// Returns whether any wish here differs from the wish in `that`, or is absent in `that`.
    pub fn differs_from(&self, that: &Self) -> bool {
        self.or(*that) != *that
    }

    /// Returns each wish that is present, with its value.
    pub fn iter(&self) -> impl Iterator<Item = (Key, Value)> + '_ {
        Key::ALL.into_iter().filter_map(|key| Some((key, self.get(key)?)))
    }

    /// Returns the wishes `keys` of an environment. If the text of a wish is no value, the function
    /// calls `refuse` with the text, and leaves the wish out.
    pub fn read<T: AsRef<str>>(
        keys: impl IntoIterator<Item = Key>,
        variable: impl Fn(&str) -> Option<T>,
        mut refuse: impl FnMut(Key, &str),
    ) -> Self {
        let mut wish = Self::default();
        for key in keys {
            let Some(text) = variable(key.variable()) else { continue };
            match key.kind().parse(text.as_ref()) {
                Some(value) => wish.set(key, value),
                None => refuse(key, text.as_ref()),
            }
        }
        wish
    }

    /// Returns the wishes in the form of a frame's field.
    pub fn encode(&self) -> [u8; WISHES_BYTES] {
        let mut to = [END; WISHES_BYTES];
        let mut at = 0;
        for (key, value) in self.iter() {
            let Some(bytes) = value.encode(&mut to[at + HEAD_BYTES..]) else { break };
            to[at] = key.tag();
            to[at + 1] = bytes as u8;
            at += HEAD_BYTES + bytes;
        }
        to
    }

    /// Returns the wishes in a frame's field. Skips wishes that only a newer sender knows.
    ///
    /// # Errors
    /// [`Unreadable`] if a known wish has a value of another kind.
    pub fn decode(from: &[u8; WISHES_BYTES]) -> Result<Self, Unreadable> {
        let mut wish = Self::default();
        let mut rest = &from[..];
        while let [tag, len, after @ ..] = rest
            && *tag != END
        {
            let key = Key::ALL.into_iter().find(|key| key.tag() == *tag);
            let value = after.get(..usize::from(*len));
            if let Some(key) = key {
                let value = value.and_then(|bytes| Value::decode(key.kind(), bytes));
                wish.set(key, value.ok_or(Unreadable(key))?);
            }
            rest = after.get(usize::from(*len)..).unwrap_or_default();
        }
        Ok(wish)
    }
}

// The field has room for all wishes at once: all numbers, and labels of full length.
const _: () = assert!(Key::ALL.len() * (HEAD_BYTES + size_of::<u64>()) + LABELS_BYTES <= WISHES_BYTES);
const _: () = assert!(LABELS_BYTES <= u8::MAX as usize);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::PPM;
    use std::string::ToString;
    use std::vec::Vec;

    fn all() -> Wish {
        Wish {
            share_ppm: Some(333_333),
            memory_bytes: Some((8 << 30) + 1),
            class: Some(Class::BestEffort),
            criticality: Some(Criticality::from_ppm(PPM / 3)),
            deadline_ns: Some(7_200_000_000_123),
            size_ns: Some(1_500),
            slo_ns: Some(30_000_000),
            memory_follows_use: Some(false),
            charge_copies: Some(true),
            labels: Some("team=vision".parse().unwrap()),
            sm_ppm: Some(400_000),
        }
    }

    #[test]
    fn every_wish_has_a_tag_an_option_and_a_variable_of_its_own() {
        let names: [fn(Key) -> std::string::String; 3] =
            [|key| key.tag().to_string(), |key| key.option().to_string(), |key| key.variable().to_string()];
        for of in names {
            let mut names: Vec<_> = Key::ALL.into_iter().map(of).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), Key::ALL.len());
        }
        assert!(Key::ALL.into_iter().all(|key| key.tag() != END && key.variable().starts_with("DEEPRES_")));
    }

    #[test]
    fn a_frame_carries_every_wish() {
        assert!(Key::ALL.into_iter().all(|key| all().get(key).is_some()));
        assert_eq!(Wish::decode(&all().encode()), Ok(all()));
        assert_eq!(Wish::decode(&Wish::default().encode()), Ok(Wish::default()));
        let long = Labels::NONE.with(&std::format!("a={}", "x".repeat(LABELS_BYTES - 2))).unwrap();
        // A criticality of 0 is not the same as no criticality.
        let least = Wish { criticality: "0".parse().ok(), ..Wish::default() };
        assert_eq!(Wish::decode(&least.encode()), Ok(least));
        assert!(least.criticality.is_some());
        let full = Wish { labels: Some(long), ..all() };
        assert_eq!(Wish::decode(&full.encode()), Ok(full));
    }

    #[test]
    fn an_environment_carries_every_wish_exactly() {
        let variables: Vec<_> =
            all().iter().map(|(key, value)| (key.variable(), value.to_string())).collect();
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value);
        let read = Wish::read(Key::ALL, variable, |key, text| panic!("{key:?}: {text}"));
        let near = Wish { criticality: read.criticality, ..all() };
        assert_eq!(read, near, "a criticality is a decimal number of a million parts");
        assert_eq!(read.criticality.unwrap().ppm(), PPM / 3);
    }

    #[test]
    fn a_text_that_is_no_value_is_named_and_passed_over() {
        let mut refused = Vec::new();
        let wish =
            Wish::read(Key::ALL, |_| Some("nonsense"), |key, text| refused.push((key, text.to_string())));
        assert_eq!(wish, Wish::default());
        assert_eq!(refused.len(), Key::ALL.len());
    }

    #[test]
    fn an_unknown_wish_is_passed_over_and_one_that_makes_no_sense_is_named() {
        let mut bytes = [0; WISHES_BYTES];
        bytes[..3].copy_from_slice(&[200, 1, 7]);
        bytes[3..][..2].copy_from_slice(&[Key::ChargeCopies.tag(), 8]);
        bytes[5] = 1;
        assert_eq!(Wish::decode(&bytes), Ok(Wish { charge_copies: Some(true), ..Wish::default() }));
        bytes[5] = 2;
        assert_eq!(Wish::decode(&bytes), Err(Unreadable(Key::ChargeCopies)));
        // This length leads past the end of the field.
        assert_eq!(Wish::decode(&[200; WISHES_BYTES]), Ok(Wish::default()));
        assert_eq!(Wish::decode(&[Key::Share.tag(); WISHES_BYTES]), Err(Unreadable(Key::Share)));
    }

    #[test]
    fn a_second_wish_differs_only_where_it_says_something_else() {
        let first = Wish { share_ppm: Some(1), ..Wish::default() };
        assert!(!Wish::default().differs_from(&first));
        assert!(!first.differs_from(&first));
        assert!(Wish { share_ppm: Some(2), ..Wish::default() }.differs_from(&first));
        assert!(Wish { memory_bytes: Some(2), ..Wish::default() }.differs_from(&first));
    }

    #[test]
    fn yes_and_no_are_read_in_any_case() {
        for (text, is_on) in [("true", Some(true)), ("ON", Some(true)), ("0", Some(false)), ("maybe", None)] {
            assert_eq!(switch(text), is_on, "{text}");
        }
    }
}
