//! The daemon's log: lines on stderr, for a person or for the journal, or in a file of its own.

use super::log_file::LogFile;
use crate::cli::has_colours;
use anyhow::{Context, Result, bail};
use std::fmt;
use std::io::stderr;
use std::path::Path;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::{DefaultFields, Format, FormatEvent, FormatFields, Writer, format};
use tracing_subscriber::fmt::{FmtContext, SubscriberBuilder, time::SystemTime};
use tracing_subscriber::registry::LookupSpan;

/// Names device and inode of the stream that the service manager reads into the journal.
const JOURNAL_VARIABLE: &str = "JOURNAL_STREAM";

/// Begins to log what `levels` asks for: into `file`, where our output goes already, if one is given.
pub fn init(levels: &str, file: Option<&Path>) -> Result<()> {
    let filter = filter(levels)?;
    if let Some(path) = file {
        let file = LogFile::of_output(path).with_context(|| format!("cannot open {}", path.display()))?;
        let lines = builder(filter).with_writer(move || file.clone());
        lines.with_ansi(false).with_timer(SystemTime).init();
        return Ok(());
    }
    let lines = builder(filter).with_writer(stderr);
    if is_journal() {
        lines.with_ansi(false).event_format(Journal).init();
    } else {
        lines.with_ansi(has_colours(&stderr())).with_timer(SystemTime).init();
    }
    Ok(())
}

/// A line that cannot be written (a full disk, a pipe that nobody reads) is lost. To complain about that on stderr would be to fail again, and to panic.
fn builder(filter: EnvFilter) -> SubscriberBuilder<DefaultFields, Format, EnvFilter> {
    tracing_subscriber::fmt().log_internal_errors(false).with_env_filter(filter)
}

/// What passes where nobody says.
pub const DEFAULT_LEVELS: &str = "info";

/// What passes; by default if nothing is said (a variable that is set to nothing). A word by itself is a level: tracing would take one that is none for the name of a module, and log nothing else.
fn filter(levels: &str) -> Result<EnvFilter> {
    let levels = if levels.is_empty() { DEFAULT_LEVELS } else { levels };
    let is_word = |part: &str| part.chars().all(|c| c.is_ascii_alphabetic());
    let is_level = |part: &str| !part.is_empty() && part.parse::<LevelFilter>().is_ok();
    let no_level = levels.split(',').map(str::trim).find(|part| is_word(part) && !is_level(part));
    if let Some(word) = no_level {
        bail!("`{word}` is no log level: say error, warn, info, debug, trace or off, or MODULE=LEVEL");
    }
    EnvFilter::try_new(levels).with_context(|| {
        format!("`{levels}` are no log levels: say for example info,deepres_controller::arbiter=trace")
    })
}

/// Whether stderr goes straight to the journal.
fn is_journal() -> bool {
    let Ok(stream) = std::env::var(JOURNAL_VARIABLE) else { return false };
    rustix::fs::fstat(stderr()).is_ok_and(|found| stream == format!("{}:{}", found.st_dev, found.st_ino))
}

/// The journal has the time itself, and takes the level from a number in front (sd-daemon(3)).
struct Journal;

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "<{}>", priority(event.metadata().level()))?;
        format().without_time().with_level(false).format_event(context, writer, event)
    }
}

/// The syslog priority of a level.
fn priority(level: &Level) -> u8 {
    match *level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_is_no_level_is_refused_by_name() {
        for good in [
            "info",
            "WARN",
            "trace",
            "",
            "off",
            "info,deepres_controller::arbiter=trace",
            "deepres_controller=debug",
        ] {
            assert!(filter(good).is_ok(), "{good}");
        }
        for (bad, named) in
            [("nonsense", "`nonsense`"), ("info,verbose", "`verbose`"), (",", "``"), ("a=b", "`a=b`")]
        {
            let reason = filter(bad).unwrap_err().to_string();
            assert!(reason.contains(named) && reason.contains("info"), "{reason}");
        }
    }

    #[test]
    fn a_line_for_the_journal_has_its_priority_in_front_and_no_time() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .event_format(Journal)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(gpu = 3, "a thing");
            tracing::info!("another");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let expected = format!("<4>{0}: a thing gpu=3\n<6>{0}: another\n", module_path!());
        assert_eq!(text, expected);
    }
}
