//! Log lines on stderr, at the level that `DEEPRES_LOG` names. The interposer writes each line in
//! one piece.

use std::fmt;
use std::io::Write as _;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::os;

/// The level of a log line, the most important first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// deepres does not do something for which the job asked.
    Error = 1,
    /// The situation can differ from the user's expectation.
    Warn = 2,
    /// Normal events, once per process.
    Info = 3,
    /// Decisions about single calls or moments, for a developer of deepres.
    Debug = 4,
}

/// The longest line, bytes. The module cuts longer lines.
const LINE_BYTES: usize = 1024;
/// The value of the level until the first line. The module reads the environment at the first line.
const UNREAD: u8 = 0;

static THRESHOLD: AtomicU8 = AtomicU8::new(UNREAD);

/// Returns whether the value is a level, or a list of levels for parts. Only the daemon uses such
/// lists.
fn is_known(levels: &str) -> bool {
    matches!(levels, "" | "error" | "warn" | "info" | "debug" | "trace" | "off")
        || levels.contains(['=', ','])
}

fn threshold() -> u8 {
    let known = THRESHOLD.load(Ordering::Relaxed);
    if known != UNREAD {
        return known;
    }
    let levels = std::env::var_os("DEEPRES_LOG").unwrap_or_default();
    let levels = levels.to_string_lossy();
    let level = match levels.as_ref() {
        "error" => Level::Error,
        "info" => Level::Info,
        // The daemon has one more level.
        "debug" | "trace" => Level::Debug,
        _ => Level::Warn,
    };
    THRESHOLD.store(level as u8, Ordering::Relaxed);
    if !is_known(&levels) {
        line(
            Level::Warn,
            format_args!(
                "DEEPRES_LOG={levels:?} is not one of error, warn, info, debug and trace; the level is warn"
            ),
        );
    }
    level as u8
}

/// Writes a line, if its level is wanted and stderr accepts the line at once. Ignores a failure to
/// write, because stderr belongs to the job.
pub fn line(level: Level, text: fmt::Arguments<'_>) {
    if level as u8 > threshold() {
        return;
    }
    let mut buffer = [0_u8; LINE_BYTES];
    let mut rest = &mut buffer[..LINE_BYTES - 1];
    let _ = write!(rest, "deepres: {text}");
    let used = LINE_BYTES - 1 - rest.len();
    // A line can contain a name that a user chose, and a terminal can show the line.
    buffer[..used].iter_mut().filter(|byte| byte.is_ascii_control()).for_each(|byte| *byte = b'?');
    buffer[used] = b'\n';
    let _ = os::write_gently(libc::STDERR_FILENO, &buffer[..=used]);
}

/// Writes a line at a level: `say!(Warn, "…")`.
macro_rules! say {
    ($level:ident, $($text:tt)+) => { $crate::log::line($crate::log::Level::$level, format_args!($($text)+)) };
}
pub(crate) use say;
