//! Events, losses and the summary of a trace, as lines for people or as JSON.

use crate::has_colours;
use deepres_daemon::trace::decode::Decoded;
use deepres_daemon::trace::summary::{OK, Summary};
use deepres_model::clock::monotonic_ns;
use std::fmt;
use std::io::{self, BufWriter, Stdout, Write};

const RED: &str = "\x1b[31m";
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";
const NS_PER_US: f64 = 1e3;
const NS_PER_MS: f64 = 1e6;
const NS_PER_S: f64 = 1e9;
/// Size of one write, bytes: some hundreds of events.
const BUFFER_BYTES: usize = 256 << 10;

/// The output of `deepres trace`, for people or as JSON.
pub struct Output {
    out: BufWriter<Stdout>,
    is_json: bool,
    shows_events: bool,
    has_colours: bool,
    began_ns: u64,
    has_head: bool,
}

impl Output {
    /// Returns an output to stdout. If stdout is a terminal, the output has colours.
    pub fn new(is_json: bool, shows_events: bool) -> Self {
        Self {
            out: BufWriter::with_capacity(BUFFER_BYTES, io::stdout()),
            is_json,
            shows_events,
            has_colours: !is_json && has_colours(&io::stdout()),
            began_ns: monotonic_ns(),
            has_head: false,
        }
    }

    fn json(&mut self, value: &impl serde::Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, value)?;
        writeln!(self.out)
    }

    /// Shows an event: one ioctl of a traced process.
    pub fn event(&mut self, event: &Decoded<'_>) -> io::Result<()> {
        if !self.shows_events {
            return Ok(());
        }
        if self.is_json {
            return self.json(event);
        }
        if !self.has_head {
            self.has_head = true;
            writeln!(
                self.out,
                "{:>12} {:>8} {:>8} {:<16} {:>11}  CALL",
                "TIME s", "PID", "TID", "THREAD", "TOOK us"
            )?;
        }
        let (red, bold, plain) = if self.has_colours { (RED, BOLD, PLAIN) } else { ("", "", "") };
        let out = &mut self.out;
        write!(
            out,
            "{:>12.6} {:>8} {:>8} {:<16} {:>11.1}  {bold}",
            event.began_ns.saturating_sub(self.began_ns) as f64 / NS_PER_S,
            event.pid,
            event.tid,
            event.thread,
            event.latency_ns as f64 / NS_PER_US,
        )?;
        match event.name {
            Some(name) => write!(out, "{name}{plain}(")?,
            None => write!(out, "{} {:#x}{plain}(", event.family, event.command)?,
        }
        for (index, (name, value)) in event.fields.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(out, "{comma}{name}={value}")?;
        }
        if event.unfinished {
            return writeln!(out, "… unfinished");
        }
        let (answer, is_bad): (&dyn fmt::Display, bool) = match (&event.error, &event.status) {
            (Some(error), _) => (error, true),
            (None, Some(status)) => (status, *status != OK),
            (None, None) => (&event.result, false),
        };
        let (colour, plain) = if is_bad { (red, plain) } else { ("", "") };
        writeln!(out, ") = {colour}{answer}{plain}")
    }

    /// Reports how many events of the traced processes were lost.
    pub fn lost(&mut self, count: u64) -> io::Result<()> {
        if self.is_json {
            return self.json(&serde_json::json!({ "lost": count }));
        }
        self.flush()?;
        eprintln!(
            "deepres: {count} calls are missing here, because they came faster than this command could show them"
        );
        Ok(())
    }

    /// Shows the summary of the trace: the sums of each command.
    pub fn summary(&mut self, summary: &Summary, lost: u64, is_wanted: bool) -> io::Result<()> {
        if is_wanted && self.is_json {
            self.json(&serde_json::json!({
                "summary": summary.lines(),
                "calls": summary.calls(),
                "unfinished": summary.unfinished(),
                "lost": lost,
            }))?;
        } else if is_wanted {
            writeln!(
                self.out,
                "{:>12} {:>9} {:>11} {:>11} {:>8}  CALL",
                "TIME ms", "CALLS", "MEAN us", "LONGEST us", "ERRORS"
            )?;
            for line in summary.lines() {
                writeln!(
                    self.out,
                    "{:>12.3} {:>9} {:>11.1} {:>11.1} {:>8}  {}",
                    line.time_ns as f64 / NS_PER_MS,
                    line.calls,
                    line.time_ns as f64 / line.calls.max(1) as f64 / NS_PER_US,
                    line.longest_ns as f64 / NS_PER_US,
                    line.errors,
                    line.command,
                )?;
            }
            let unfinished = match summary.unfinished() {
                0 => String::new(),
                unfinished => format!(", {unfinished} unfinished"),
            };
            writeln!(self.out, "{} calls{unfinished}, {lost} lost", summary.calls())?;
        }
        self.flush()
    }

    /// Writes the buffered lines.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
