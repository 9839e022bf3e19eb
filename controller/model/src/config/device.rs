//! The name of a device in the configuration.

use deepres_abi::probe::MINOR_MASK;
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// The largest major number.
const MAX_MAJOR: u32 = 4095;

/// Devices to watch. The configuration gives a name of /proc/devices, or `NAME=MAJOR[:MINOR]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceKey {
    /// The name, as in /proc/devices.
    pub name: String,
    /// The major and the minor number. Without a minor number, the key stands for all minor
    /// numbers.
    pub number: Option<(u32, Option<u32>)>,
}

/// A text that does not name a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a device; give a name from /proc/devices, NAME=MAJOR or NAME=MAJOR:MINOR, for example nvidia-uvm=241:0"
)]
pub struct DeviceKeyError(String);

impl fmt::Display for DeviceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match self.number {
            Some((major, Some(minor))) => write!(f, "={major}:{minor}"),
            Some((major, None)) => write!(f, "={major}"),
            None => Ok(()),
        }
    }
}

impl Serialize for DeviceKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for DeviceKey {
    type Err = DeviceKeyError;

    fn from_str(text: &str) -> Result<Self, DeviceKeyError> {
        let wrong = || DeviceKeyError(text.to_owned());
        let (name, number) = match text.split_once('=') {
            None => (text, None),
            Some((name, numbers)) => {
                let (major, minor) = match numbers.split_once(':') {
                    None => (numbers, None),
                    Some((major, minor)) => (major, Some(minor.parse().map_err(|_| wrong())?)),
                };
                (name, Some((major.parse().map_err(|_| wrong())?, minor)))
            }
        };
        let is_possible = number.is_none_or(|(major, minor): (u32, Option<u32>)| {
            major <= MAX_MAJOR && minor.is_none_or(|minor| minor <= MINOR_MASK)
        });
        if name.is_empty() || name.contains(char::is_whitespace) || !is_possible {
            return Err(wrong());
        }
        Ok(Self { name: name.to_owned(), number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_devices_are_read_back() {
        for text in ["nvidia-uvm", "nvidia-uvm=241", "nvidia-uvm=241:0"] {
            assert_eq!(text.parse::<DeviceKey>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn malformed_devices_are_refused() {
        for text in ["", "=1", "a=", "a=x", "a=1:", "a=1:x", "a=4096", "a=1:1048576", "a b"] {
            assert!(text.parse::<DeviceKey>().is_err(), "{text}");
        }
    }
}
