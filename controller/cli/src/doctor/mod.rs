//! `deepres doctor`: checks the machine for everything that deepres needs, and names remedies.
//!
//! | module | job |
//! |---|---|
//! | `check` | one check and its verdict |
//! | `kernel` | the needs of the probes |
//! | `driver` | the NVIDIA driver and its devices |
//! | `file` | the file of a driver, without a GPU |
//! | `machine` | preloading, confinement, containers |

mod check;
mod driver;
mod file;
mod kernel;
mod machine;

pub use check::{Check, Verdict};
pub use driver::{NO_CHECKPOINTS, has_checkpoints};

use super::has_colours;
use anyhow::Result;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command changes nothing. To try the eBPF programs, it attaches them for a moment. The verdict \
`limited` means that a part of deepres is missing or weaker and the rest works. The verdict `bad` means that \
programs cannot share a GPU on this machine. The exit status is 1 if any verdict is `bad`.

Examples:
  sudo deepres doctor
  deepres doctor --driver /usr/lib/x86_64-linux-gnu/libcuda.so.1
  deepres doctor --json | jq '.[] | select(.verdict != \"good\")'")]
pub struct Args {
    /// Print everything as a JSON list
    #[arg(long)]
    json: bool,
    /// Check only this file of a driver, libcuda.so, which needs no GPU and is not loaded
    #[arg(long, value_name = "FILE")]
    driver: Option<PathBuf>,
}

/// Runs all checks and prints them.
pub fn run(args: &Args) -> Result<ExitCode> {
    let checks = match &args.driver {
        Some(file) => file::checks(file)?,
        None => checks(),
    };
    let worst = checks.iter().map(|check| check.verdict).max();
    match print(&checks, args.json, has_colours(&io::stdout()), &mut io::stdout().lock()) {
        // The reader has closed the pipe (`deepres doctor | head`).
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        printed => printed?,
    }
    Ok(if worst == Some(Verdict::Bad) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns the output of the command, for a report.
pub fn report() -> Result<String> {
    let mut text = Vec::new();
    print(&checks(), false, false, &mut text)?;
    Ok(String::from_utf8(text)?)
}

fn checks() -> Vec<Check> {
    [kernel::checks(), driver::checks(), machine::checks()].concat()
}

fn print(checks: &[Check], is_json: bool, has_colours: bool, mut out: &mut dyn Write) -> io::Result<()> {
    if is_json {
        serde_json::to_writer_pretty(&mut out, checks)?;
        return writeln!(out);
    }
    for check in checks {
        let verdict = format!("{:<7}", check.verdict.name());
        let verdict = match check.verdict {
            Verdict::Bad if has_colours => format!("\x1b[31m{verdict}\x1b[0m"),
            Verdict::Limited if has_colours => format!("\x1b[33m{verdict}\x1b[0m"),
            _ => verdict,
        };
        writeln!(out, "{verdict} {:<14} {}", check.name, check.found)?;
        if let Some(remedy) = &check.remedy {
            writeln!(out, "{:22} → {remedy}", "")?;
        }
    }
    Ok(())
}
