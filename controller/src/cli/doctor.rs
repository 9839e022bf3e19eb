//! `deepres doctor`: checks what deepres needs of this machine, and says what to do.

use anyhow::Result;
use deepres_controller::doctor::{self, Verdict};
use std::io::IsTerminal;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Changes nothing; to try them, it attaches the kernel programs for a moment. `limited` means that something of \
deepres is missing or weaker and the rest works, `bad` that programs cannot share a GPU here. \
Exit status: 1 if anything is bad.

Examples:
  sudo deepres doctor
  deepres doctor --json | jq '.[] | select(.verdict != \"good\")'")]
pub struct Args {
    /// Print everything as a JSON list
    #[arg(long)]
    json: bool,
}

/// Examines the machine.
pub fn run(args: &Args) -> Result<ExitCode> {
    let checks = doctor::examine();
    let worst = checks.iter().map(|check| check.verdict).max();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&checks)?);
    } else {
        let has_colours = std::io::stdout().is_terminal();
        for check in &checks {
            let verdict = format!("{:<7}", check.verdict.name());
            let verdict = match check.verdict {
                Verdict::Bad if has_colours => format!("\x1b[31m{verdict}\x1b[0m"),
                Verdict::Limited if has_colours => format!("\x1b[33m{verdict}\x1b[0m"),
                _ => verdict,
            };
            println!("{verdict} {:<14} {}", check.name, check.found);
            if let Some(remedy) = &check.remedy {
                println!("{:22} → {remedy}", "");
            }
        }
    }
    Ok(if worst == Some(Verdict::Bad) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
