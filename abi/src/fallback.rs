//! The limits that a job keeps by itself while it has no session.
//!
//! `deepres run` learns the limits from the daemon, and hands the limits on to the job's processes
//! in one variable of the environment. A process that the daemon refuses learns them from the
//! refusal too. A process with a session ignores both, because the daemon's record is newer.

use core::fmt;

use crate::PPM;
use crate::grant::FailMode;
use crate::quantity::{MAX_BYTES, MIN_SHARE_PPM, parse_bytes, parse_share};
use crate::wish::{Key, Value};

/// The environment variable with the limits, as [`Fallback`] writes and reads them.
pub const FALLBACK_VARIABLE: &str = "DEEPRES_FALLBACK";

/// The name of the fail mode in the text of [`Fallback`].
const FAIL_MODE: &str = "fail_mode";
/// The name of [`FailMode::Closed`] in the text of [`Fallback`].
const CLOSED: &str = "closed";

/// The limits on each GPU, and the fail mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fallback {
    /// The share, parts per million; `None` for no limit.
    pub share_ppm: Option<u32>,
    /// The memory, bytes; `None` for no limit.
    pub memory_bytes: Option<u64>,
    /// Whether launches pass or fail without a daemon.
    pub fail_mode: FailMode,
}

impl Fallback {
    /// Returns the limits in the fields of a frame: the share (parts per million), the memory
    /// (bytes) and the number of a [`FailMode`]. 0 stands for no limit. For any other number, the
    /// nearest limit that a job can have counts.
    pub(crate) fn of_fields((share_ppm, memory_bytes, fail_mode): (u32, u64, u32)) -> Self {
        Self {
            share_ppm: (share_ppm != 0).then(|| share_ppm.clamp(MIN_SHARE_PPM, PPM)),
            memory_bytes: (memory_bytes != 0).then(|| memory_bytes.min(MAX_BYTES)),
            fail_mode: FailMode::from_number(fail_mode),
        }
    }

    /// Returns the limits as the fields of a frame, for [`Self::of_fields`].
    pub(crate) fn fields(&self) -> (u32, u64, u32) {
        // A limit of 0 bytes must not look like no limit.
        let memory_bytes = self.memory_bytes.map_or(0, |bytes| bytes.max(1));
        (self.share_ppm.unwrap_or(0), memory_bytes, self.fail_mode as u32)
    }

    /// Returns the lower of the two shares and of the two memory limits. The fail mode is closed if
    /// one of the two is.
    #[must_use]
    pub fn within(self, other: &Self) -> Self {
        Self {
            share_ppm: self.share_ppm.into_iter().chain(other.share_ppm).min(),
            memory_bytes: self.memory_bytes.into_iter().chain(other.memory_bytes).min(),
            fail_mode: if self.is_shut() { self.fail_mode } else { other.fail_mode },
        }
    }

    /// Returns whether there is a limit.
    pub fn is_limited(&self) -> bool {
        self.share_ppm.is_some() || self.memory_bytes.is_some()
    }

    /// Returns whether launches fail without a daemon.
    pub fn is_shut(&self) -> bool {
        self.fail_mode == FailMode::Closed
    }

    /// Reads the text that [`fmt::Display`] wrote. Ignores names that a newer release wrote.
    /// Returns `None` if a part of the text makes no sense.
    pub fn parse(text: &str) -> Option<Self> {
        let mut read = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=')?;
            if name == Key::Share.name() {
                read.share_ppm = Some(parse_share(value)?);
            } else if name == Key::Memory.name() {
                read.memory_bytes = Some(parse_bytes(value)?);
            } else if name == FAIL_MODE {
                read.fail_mode = if value == CLOSED { FailMode::Closed } else { FailMode::Open };
            }
        }
        Some(read)
    }
}

/// Writes the limits and a closed fail mode, separated by commas. Without limits, and with an open
/// fail mode, the text is empty.
impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = [
            (Key::Share, self.share_ppm.map(Value::Share)),
            (Key::Memory, self.memory_bytes.map(Value::Bytes)),
        ];
        let mut separator = "";
        for (key, value) in limits {
            if let Some(value) = value {
                write!(f, "{separator}{}={value}", key.name())?;
                separator = ",";
            }
        }
        match self.fail_mode {
            FailMode::Open => Ok(()),
            FailMode::Closed => write!(f, "{separator}{FAIL_MODE}={CLOSED}"),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::string::ToString as _;

    #[test]
    fn a_fallback_is_read_as_it_was_written() {
        for (fallback, text) in [
            (Fallback::default(), ""),
            (Fallback { share_ppm: Some(300_000), ..Fallback::default() }, "share=30%"),
            (Fallback { memory_bytes: Some(2 << 30), ..Fallback::default() }, "memory=2147483648"),
            (Fallback { fail_mode: FailMode::Closed, ..Fallback::default() }, "fail_mode=closed"),
            (
                Fallback {
                    share_ppm: Some(12_500),
                    memory_bytes: Some(1 << 30),
                    fail_mode: FailMode::Closed,
                },
                "share=1.25%,memory=1073741824,fail_mode=closed",
            ),
        ] {
            assert_eq!((fallback.to_string().as_str(), Fallback::parse(text)), (text, Some(fallback)));
        }
    }

    #[test]
    fn of_two_fallbacks_the_lower_limits_and_the_closed_fail_mode_hold() {
        let open = Fallback { share_ppm: Some(300_000), ..Fallback::default() };
        let closed =
            Fallback { share_ppm: Some(200_000), memory_bytes: Some(1 << 30), fail_mode: FailMode::Closed };
        let smaller = Fallback { memory_bytes: Some(1 << 20), ..open };
        assert_eq!((open.within(&closed), closed.within(&open)), (closed, closed));
        assert_eq!(closed.within(&smaller), Fallback { memory_bytes: Some(1 << 20), ..closed });
        assert_eq!(open.within(&Fallback::default()), open);
        assert!(open.is_limited() && smaller.is_limited() && !Fallback::default().is_limited());
        assert!(closed.is_shut() && !open.is_shut());
    }

    #[test]
    fn a_newer_release_may_add_names_and_garbage_is_no_fallback() {
        let read = Fallback::parse("colour=red,memory=1GiB").unwrap();
        assert_eq!(read.memory_bytes, Some(1 << 30));
        for garbage in ["memory", "memory=much", "share=120%"] {
            assert_eq!(Fallback::parse(garbage), None, "{garbage}");
        }
    }
}
