//! A training program under `deepres run`: its start, its output and its end.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::{Context as _, Result, bail};
use deepres_e2e::demo::TRAINS;

use crate::process::{Running, ended};

/// Number of output lines that the demo keeps, to explain an early end.
const KEPT_LINES: usize = 30;

/// The output of a training program so far.
#[derive(Default)]
struct Heard {
    last: VecDeque<String>,
    trains: bool,
}

/// A training program that runs under `deepres run`.
pub struct Client {
    name: &'static str,
    running: Running,
    heard: Arc<Mutex<Heard>>,
}

impl Client {
    /// Starts the program and listens to its output.
    pub fn start(name: &'static str, command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = Running::start(command)?;
        let heard = Arc::new(Mutex::new(Heard::default()));
        let (output, errors) = (running.child().stdout.take(), running.child().stderr.take());
        listen(output.context("the output was piped")?, Arc::clone(&heard))?;
        listen(errors.context("the errors were piped")?, Arc::clone(&heard))?;
        Ok(Self { name, running, heard })
    }

    /// Returns whether the program has begun its steady state.
    pub fn trains(&self) -> bool {
        self.heard.lock().is_ok_and(|heard| heard.trains)
    }

    /// Checks that the program still runs. The error contains the program's last output.
    pub fn require_alive(&mut self) -> Result<()> {
        let Some(status) = self.running.exited()? else { return Ok(()) };
        let said = self.heard.lock().map(|heard| heard.last.iter().cloned().collect::<Vec<_>>().join("\n"));
        bail!(
            "{} {} too early: {}\n{}",
            self.name,
            ended(status),
            self.running.shown(),
            said.unwrap_or_default()
        );
    }
}

/// Reads the stream to its end, in a thread of its own. Otherwise a full pipe would stop the
/// program.
fn listen(stream: impl Read + Send + 'static, heard: Arc<Mutex<Heard>>) -> Result<()> {
    let listen = move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let Ok(mut heard) = heard.lock() else { return };
            heard.trains |= line.contains(TRAINS);
            if heard.last.len() == KEPT_LINES {
                heard.last.pop_front();
            }
            heard.last.push_back(line);
        }
    };
    thread::Builder::new().spawn(listen).context("cannot start a thread")?;
    Ok(())
}
