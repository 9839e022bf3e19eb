//! The daemon's log: lines on stderr for a person or the journal, or lines in a file.
//!
//! A thread of its own writes the lines, because the reader or the disk can be slow or stuck. So
//! neither tenants nor arbiters wait for the log.

use super::log_file::LogFile;
use crate::has_colours;
use anyhow::{Context, Result, bail};
use std::fmt;
use std::io::{self, Write, stderr};
use std::path::Path;
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;
use tracing::{Event, Level, Subscriber};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::{DefaultFields, Format, FormatEvent, FormatFields, Writer, format};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, SubscriberBuilder};
use tracing_subscriber::registry::LookupSpan;

/// Variable with device and inode of the stream that the service manager reads into the journal.
const JOURNAL_VARIABLE: &str = "JOURNAL_STREAM";
/// The most lines that may wait for the writing thread: some seconds of the busiest log, in some
/// MiB. The log loses further lines, and says how many.
const WAITING_LINES: usize = 8192;
/// Time for which the daemon waits at its end for the last lines. The log's guard gives up after
/// about a second, but can block while it reports that it gave up.
const END_LIMIT: Duration = Duration::from_millis(1500);

/// The daemon's log. Drop writes the remaining lines. Logging ends when this value is dropped.
#[must_use]
pub struct Log(Option<WorkerGuard>);

impl Drop for Log {
    fn drop(&mut self) {
        let (ending, ended) = mpsc::channel::<()>();
        let guard = self.0.take();
        let end = move || {
            drop(guard);
            drop(ending);
        };
        // If no thread can start, the present thread ends the log.
        let _ = thread::Builder::new().name("log-end".to_owned()).spawn(end);
        let _ = ended.recv_timeout(END_LIMIT);
    }
}

/// Starts the log at `levels`. With `file`, the log goes to this file, and stdout and stderr must
/// already go to it.
pub fn init(levels: &str, file: Option<&Path>) -> Result<Log> {
    let filter = filter(levels)?;
    if let Some(path) = file {
        let file = LogFile::of_output(path).with_context(|| format!("cannot open {}", path.display()))?;
        let (lines, log) = apart(file, false, WAITING_LINES);
        builder(filter).with_writer(lines).with_ansi(false).with_timer(SystemTime).init();
        return Ok(log);
    }
    let is_journal = is_journal();
    let (lines, log) = apart(stderr(), is_journal, WAITING_LINES);
    let lines = builder(filter).with_writer(lines);
    if is_journal {
        lines.with_ansi(false).event_format(Journal).init();
    } else {
        lines.with_ansi(has_colours(&stderr())).with_timer(SystemTime).init();
    }
    Ok(log)
}

/// Returns a subscriber that drops a line if it cannot write the line, for example because the disk
/// is full. Without this setting, the library would write an error on stderr, which would fail too
/// and cause a panic.
fn builder(filter: EnvFilter) -> SubscriberBuilder<DefaultFields, Format, EnvFilter> {
    tracing_subscriber::fmt().log_internal_errors(false).with_env_filter(filter)
}

/// Starts a thread that writes lines to `place`. At most `waiting` lines wait for the thread.
fn apart(place: impl Write + Send + 'static, is_journal: bool, waiting: usize) -> (NonBlocking, Log) {
    let lost = Arc::new(OnceLock::new());
    let lines = Lines { place, is_journal, lost: Arc::clone(&lost), told: 0 };
    let builder = NonBlockingBuilder::default().buffered_lines_limit(waiting).thread_name("log");
    let (writer, guard) = builder.finish(lines);
    // The call succeeds, because no other code sets the value.
    let _ = lost.set(writer.error_counter());
    (writer, Log(Some(guard)))
}

/// Writes lines to `place`. If lines were lost, first writes their number.
struct Lines<W> {
    place: W,
    is_journal: bool,
    /// The counter of lost lines, set before the first line is written.
    lost: Arc<OnceLock<ErrorCounter>>,
    /// The number of lost lines that the log has already reported.
    told: usize,
}

impl<W: Write> Lines<W> {
    fn tell_of_lost(&mut self) -> io::Result<()> {
        let lost = self.lost.get().map_or(0, ErrorCounter::dropped_lines);
        if lost == self.told {
            return Ok(());
        }
        let mut line = String::new();
        // Writing to a string cannot fail.
        let _ = match self.is_journal {
            true => fmt::write(&mut line, format_args!("<{}>", priority(&Level::WARN))),
            false => SystemTime
                .format_time(&mut Writer::new(&mut line))
                .and_then(|()| fmt::write(&mut line, format_args!("  WARN "))),
        };
        let more = lost - self.told;
        line.push_str(&format!(
            "{more} lines of this log are lost, because they came faster than the daemon could write them\n"
        ));
        self.told = lost;
        self.place.write_all(line.as_bytes())
    }
}

impl<W: Write> Write for Lines<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.write_all(line).map(|()| line.len())
    }

    fn write_all(&mut self, line: &[u8]) -> io::Result<()> {
        let told = self.tell_of_lost();
        self.place.write_all(line).and(told)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.place.flush()
    }
}

/// The log levels of a daemon whose user names no levels.
pub const DEFAULT_LEVELS: &str = "info";

/// Returns the filter for these levels. An empty text stands for the default, because a variable
/// may be set to nothing.
///
/// The function refuses a single word that is not a level. The tracing library would take the word
/// for a module's name, and log nothing else.
fn filter(levels: &str) -> Result<EnvFilter> {
    let levels = if levels.is_empty() { DEFAULT_LEVELS } else { levels };
    let is_word = |part: &str| part.chars().all(|c| c.is_ascii_alphabetic());
    let is_level = |part: &str| !part.is_empty() && part.parse::<LevelFilter>().is_ok();
    let no_level = levels.split(',').map(str::trim).find(|part| is_word(part) && !is_level(part));
    if let Some(word) = no_level {
        bail!("`{word}` is not a log level; give error, warn, info, debug, trace or off, or MODULE=LEVEL");
    }
    EnvFilter::try_new(levels).with_context(|| {
        format!("`{levels}` is not a list of log levels; give for example info,deepres_daemon::arbiter=trace")
    })
}

/// Returns whether stderr goes directly to the journal.
fn is_journal() -> bool {
    let Ok(stream) = std::env::var(JOURNAL_VARIABLE) else { return false };
    rustix::fs::fstat(stderr()).is_ok_and(|found| stream == format!("{}:{}", found.st_dev, found.st_ino))
}

/// The line format for the journal. The journal adds the time itself, and takes the level from a
/// number in front of the line (sd-daemon(3)).
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
    use std::sync::Mutex;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// A writer that waits for permission before each line.
    struct Gate(mpsc::Receiver<()>, Written);

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            // After the sender is dropped, the writer no longer waits.
            let _ = self.0.recv();
            self.1.write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn nobody_waits_for_a_log_that_is_stuck_and_the_log_counts_the_lost_lines() {
        const WAITING: usize = 4;
        const LINES: usize = 100;
        let (opener, gate) = mpsc::channel();
        let lines = Written::default();
        let (mut writer, log) = apart(Gate(gate, lines.clone()), true, WAITING);
        for number in 0..LINES {
            writer.write_all(format!("line {number}\n").as_bytes()).unwrap();
        }
        drop(opener);
        drop(log);
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let written = text.lines().filter(|line| line.starts_with("line ")).count();
        // The thread may have taken one line from the queue already. So the log may write one line
        // more than the queue holds.
        assert!((WAITING..=WAITING + 1).contains(&written), "{text}");
        // Whenever the thread takes a line, it can first say how many are lost until then.
        let told = |line: &str| {
            let (number, rest) = line.strip_prefix("<4>")?.split_once(' ')?;
            rest.contains("of this log").then(|| number.parse::<usize>().ok()).flatten()
        };
        assert_eq!(text.lines().filter_map(told).sum::<usize>(), LINES - written, "{text}");
    }

    #[test]
    fn a_text_that_is_no_level_is_refused_by_name() {
        for good in
            ["info", "WARN", "trace", "", "off", "info,deepres_daemon::arbiter=trace", "deepres_daemon=debug"]
        {
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
        let lines = Written::default();
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
