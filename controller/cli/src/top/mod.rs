//! `deepres top`: shows the status again and again, and changes tenants at the press of a key.
//!
//! | module | job |
//! |---|---|
//! | `app` | the state of the screen, and the effect of each key |
//! | `history` | the shares of the last minutes |
//! | `view` | the state as lines of text |

mod app;
mod history;
mod view;

#[cfg(test)]
pub use view::tests;

use super::ps;
use crate::ps::order::Order;
use anyhow::{Context, Result, bail};
use app::{Action, App};
use deepres_model::admin::client::Client;
use deepres_model::admin::{Reply, Request};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::terminal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The width of a frame that goes to no terminal, columns.
const USUAL_COLUMNS: u16 = 80;
/// Bounds of the time between two looks, s.
const LEAST_S: f64 = 0.1;
const MOST_S: f64 = 3600.0;
/// Signals that end the command after it has restored the terminal.
const ENDING: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];
/// The most time between two looks for a signal.
const SIGNAL_PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The keys: arrows, PgUp, PgDn, Home and End select a tenant; s sorts; / filters by name; p pauses or resumes the \
tenant; e sets its share and c its class; the space bar stops the screen; Ctrl-L draws it anew; ? shows this list; \
q ends. Only administrators change tenants.

In the bar of a tenant, each full block is a part of the GPU's time that the tenant had in the last second. \
A light block is owed and not had, and a dark block had beyond what is owed. Below the list, two graphs show the \
share that the selected tenant was owed and had in the last three minutes.

Examples:
  deepres top
  deepres top --sort memory
  deepres top --once")]
pub struct Args {
    /// Seconds between two looks
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    interval: Duration,
    /// Print one frame and end
    #[arg(long)]
    once: bool,
    /// Sort the tenants
    #[arg(long, value_enum, value_name = "COLUMN", default_value_t)]
    sort: Order,
}

/// Reads a number of seconds.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (LEAST_S..=MOST_S).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("`{text}` is not a number of seconds from {LEAST_S} to {MOST_S}")),
    }
}

/// Shows the status until the user ends the command.
pub fn run(args: &Args) -> Result<()> {
    let mut app = App::new(ps::ask()?, args.sort);
    if args.once {
        return print(&app);
    }
    if !super::obeys(&io::stdout()) {
        bail!("stdout is no terminal with a cursor; use `deepres top --once`");
    }
    let has_colours = super::has_colours(&io::stdout());
    let signal = Arc::new(AtomicUsize::new(0));
    for number in ENDING {
        signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize)
            .context("cannot catch signals")?;
    }
    let mut terminal =
        ratatui::try_init().inspect_err(|_| ratatui::restore()).context("cannot use the terminal")?;
    let outcome = show(&mut terminal, &mut app, args.interval, has_colours, &signal);
    // If the terminal is gone, both calls fail, and no message can reach the user.
    let _ = terminal.show_cursor();
    let _ = ratatui::try_restore();
    if let number @ 1.. = signal.load(Ordering::SeqCst) {
        // The parent process sees the signal as the reason of the end.
        signal_hook::low_level::emulate_default_handler(number as i32)?;
    }
    outcome
}

/// Prints one frame.
fn print(app: &App) -> Result<()> {
    let mut out = io::stdout().lock();
    let columns = if out.is_terminal() {
        terminal::size().map_or(USUAL_COLUMNS, |(columns, _)| columns)
    } else {
        USUAL_COLUMNS
    };
    for line in view::lines(app, columns.into(), None, false) {
        match writeln!(out, "{}", line.to_string().trim_end()) {
            // The reader has closed the pipe.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            written => written?,
        }
    }
    Ok(())
}

/// Draws and heeds keys until the user or a signal ends the command. `signal` is the number of a
/// signal that came, else 0.
fn show(
    terminal: &mut DefaultTerminal,
    app: &mut App,
    interval: Duration,
    has_colours: bool,
    signal: &AtomicUsize,
) -> Result<()> {
    let mut looked = Instant::now();
    let mut is_away = false;
    loop {
        terminal.draw(|frame| view::draw(app, frame, has_colours))?;
        let has_event = loop {
            if signal.load(Ordering::SeqCst) != 0 {
                return Ok(());
            }
            let left = interval.saturating_sub(looked.elapsed());
            let has_event = event::poll(left.min(SIGNAL_PAUSE))?;
            if has_event || left <= SIGNAL_PAUSE {
                break has_event;
            }
        };
        if !has_event {
            looked = Instant::now();
            match ps::ask() {
                Ok(status) => {
                    app.look(status);
                    if std::mem::take(&mut is_away) {
                        app.say(String::new());
                    }
                }
                // The daemon can be about to return.
                Err(error) => {
                    is_away = true;
                    app.say(super::explain(&error));
                }
            }
            continue;
        }
        let action = match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => app.press(key),
            _ => None,
        };
        let (tenant, said) = match action {
            Some(Action::End) => return Ok(()),
            Some(Action::Stop) => {
                terminal.show_cursor()?;
                ratatui::try_restore()?;
                signal_hook::low_level::emulate_default_handler(SIGTSTP)?;
                *terminal = ratatui::try_init()?;
                continue;
            }
            Some(Action::Redraw) => {
                // The function `clear` would wait for an answer of the terminal, which a slow line
                // delays.
                let area = terminal.get_frame().area();
                terminal.resize(area)?;
                continue;
            }
            Some(Action::Pause(tenant)) => {
                let said = pause(&tenant);
                (tenant, said)
            }
            Some(Action::Ask(tenant, request)) => (tenant, ask(&request)),
            None => continue,
        };
        let said = said.unwrap_or_else(|error| super::explain(&error));
        app.say(format!("{tenant}: {said}"));
    }
}

/// Pauses a tenant, or ends its pause. The tenant's state at this time decides, because the screen
/// can be old. Returns the answer for people.
fn pause(tenant: &str) -> Result<String> {
    ask(&app::pause(&ps::ask()?, tenant).context("the tenant is gone")?)
}

/// Sends a request about a tenant. Returns the answer for people.
fn ask(request: &Request) -> Result<String> {
    Ok(match Client::connect()?.ask(request)? {
        Reply::Set(granted) => granted.to_string(),
        Reply::Paused => "paused".to_owned(),
        Reply::Resumed { resumption } => super::pause::told(resumption).to_owned(),
        other => bail!(
            "the daemon sent an unexpected reply: {other:?}; use one deepres release for the daemon and this command"
        ),
    })
}
