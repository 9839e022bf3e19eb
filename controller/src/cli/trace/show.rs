//! Events, losses and the summary of a trace, as lines for people or for programs.

use deepres_controller::clock::monotonic_ns;
use deepres_controller::trace::decode::Decoded;
use deepres_controller::trace::summary::Summary;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

const RED: &str = "\x1b[31m";
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";
const NS_PER_US: f64 = 1e3;
const NS_PER_MS: f64 = 1e6;
const NS_PER_S: f64 = 1e9;

/// Where a trace goes.
pub struct Output {
    out: BufWriter<Stdout>,
    is_json: bool,
    shows_events: bool,
    has_colours: bool,
    began_ns: u64,
    has_head: bool,
}

impl Output {
    /// To standard output; in colours if that is a terminal.
    pub fn new(is_json: bool, shows_events: bool) -> Self {
        Self {
            out: BufWriter::new(io::stdout()),
            is_json,
            shows_events,
            has_colours: !is_json && io::stdout().is_terminal(),
            began_ns: monotonic_ns(),
            has_head: false,
        }
    }

    fn coloured(&self, colour: &str, text: &str) -> String {
        if self.has_colours { format!("{colour}{text}{PLAIN}") } else { text.to_owned() }
    }

    fn json(&mut self, value: &impl serde::Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, value)?;
        writeln!(self.out)
    }

    /// One event.
    pub fn event(&mut self, event: &Decoded) -> io::Result<()> {
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
        let name = event.name.map_or_else(|| format!("{} {:#x}", event.family, event.command), str::to_owned);
        let fields: Vec<_> = event.fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let answer = match (&event.error, &event.status) {
            (Some(error), _) => self.coloured(RED, error),
            (None, Some(status)) if status.to_string() != "NV_OK" => self.coloured(RED, &status.to_string()),
            (None, Some(status)) => status.to_string(),
            (None, None) => event.result.to_string(),
        };
        let line = format!(
            "{:>12.6} {:>8} {:>8} {:<16} {:>11.1}  {}({}) = {answer}",
            event.began_ns.saturating_sub(self.began_ns) as f64 / NS_PER_S,
            event.pid,
            event.tid,
            event.thread,
            event.latency_ns as f64 / NS_PER_US,
            self.coloured(BOLD, &name),
            fields.join(", "),
        );
        writeln!(self.out, "{line}")
    }

    /// Events that were lost.
    pub fn lost(&mut self, count: u64) -> io::Result<()> {
        if self.is_json {
            return self.json(&serde_json::json!({ "lost": count }));
        }
        self.flush()?;
        eprintln!("deepres: {count} calls came faster than they could be shown and are missing here");
        Ok(())
    }

    /// What it adds up to.
    pub fn summary(&mut self, summary: &Summary, lost: u64, is_wanted: bool) -> io::Result<()> {
        if is_wanted && self.is_json {
            self.json(
                &serde_json::json!({ "summary": summary.lines(), "calls": summary.calls(), "lost": lost }),
            )?;
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
            writeln!(self.out, "{} calls, {lost} lost", summary.calls())?;
        }
        self.flush()
    }

    /// Hands over what was written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
