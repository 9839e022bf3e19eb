//! `deepres completions`: the code by which a shell completes command lines of deepres. The code
//! calls this program at each completion, so the shell also completes names of tenants.

use clap::CommandFactory as _;
use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};
use clap_complete::{CompleteEnv, CompletionCandidate};
use deepres_model::admin::client::Client;
use deepres_model::admin::{Reply, Request, Status};
use std::ffi::OsStr;
use std::time::Duration;

/// The variable by which the code of a shell asks this program for completions.
const VARIABLE: &str = "DEEPRES_COMPLETE";
/// The longest wait for the daemon. A user waits at the prompt meanwhile.
const PATIENCE: Duration = Duration::from_millis(300);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The packages for distributions install the code. After an installation by pip, add a line to the start-up \
file of your shell.

Examples:
  echo 'source <(deepres completions bash)' >> ~/.bashrc
  echo 'source <(deepres completions zsh)' >> ~/.zshrc
  deepres completions fish > ~/.config/fish/completions/deepres.fish")]
pub struct Args {
    /// Shell for which to print the code
    shell: Shell,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Prints the code for a shell.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let shell: &dyn EnvCompleter = match args.shell {
        Shell::Bash => &Bash,
        Shell::Zsh => &Zsh,
        Shell::Fish => &Fish,
    };
    let name = env!("CARGO_PKG_NAME");
    Ok(shell.write_registration(VARIABLE, name, name, name, &mut std::io::stdout().lock())?)
}

/// If a shell asks for completions, prints them and ends this process.
pub fn answer_shell() {
    CompleteEnv::with_factory(super::Cli::command).var(VARIABLE).complete();
}

/// Returns the names of tenants that begin with the text at the cursor.
pub fn tenants(current: &OsStr) -> Vec<CompletionCandidate> {
    beginning(current, status().tenants.into_iter().map(|tenant| tenant.name))
}

/// Returns the numbers of unmanaged processes that begin with the text at the cursor.
pub fn unmanaged(current: &OsStr) -> Vec<CompletionCandidate> {
    beginning(current, status().unmanaged.into_iter().map(|process| process.pid.to_string()))
}

/// Returns the daemon's status; an empty status if the daemon does not answer in time.
fn status() -> Status {
    match Client::question_within(&Request::Status, PATIENCE) {
        Ok(Reply::Status(status)) => *status,
        _ => Status::default(),
    }
}

fn beginning(current: &OsStr, all: impl Iterator<Item = String>) -> Vec<CompletionCandidate> {
    let begin = current.to_string_lossy();
    all.filter(|text| text.starts_with(&*begin)).map(CompletionCandidate::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_values_with_the_typed_beginning_are_offered() {
        let all = || ["train", "trace", "other"].map(str::to_owned).into_iter();
        let offered = |begin: &str| -> Vec<_> {
            let found = beginning(OsStr::new(begin), all());
            found.iter().map(|candidate| candidate.get_value().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(offered("tra"), ["train", "trace"]);
        assert_eq!(offered("").len(), 3);
        assert!(offered("x").is_empty());
    }
}
