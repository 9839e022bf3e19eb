//! `deepres reload`: makes the running daemon read its configuration file again.

use super::out;
use anyhow::{Result, bail};
use deepres_model::admin::client::Client;
use deepres_model::admin::{Reply, Request};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The new values are in force when the command returns, also for jobs that run. No session ends. The \
command names the keys whose values are in force when the daemon next starts. If the file has a fault or is \
gone, the daemon keeps all of its values, and the command tells the reason.

Examples:
  deepres config check && deepres reload")]
pub struct Args {}

/// Makes the daemon read its configuration file again, and prints what has changed.
pub fn run(_: &Args) -> Result<()> {
    match Client::connect()?.ask(&Request::Reload)? {
        Reply::Reloaded { file, now, later } => {
            out::print(|out| out.write_all(told(file, &now, &later).as_bytes()))
        }
        other => bail!(
            "the daemon sent an unexpected reply: {other:?}; use one deepres release for the daemon and this command"
        ),
    }
}

/// Returns the effect of the reload, for people.
fn told(file: Option<PathBuf>, now: &[String], later: &[String]) -> String {
    let mut text = match file {
        Some(file) => format!("the daemon read {}\n", file.display()),
        None => "the daemon found no configuration file: the defaults are in force\n".to_owned(),
    };
    if now.is_empty() && later.is_empty() {
        text += "no value has changed\n";
    }
    if !now.is_empty() {
        let _ = writeln!(text, "in force now: {}", now.join(", "));
    }
    if !later.is_empty() {
        let _ = writeln!(
            text,
            "in force when the daemon next starts: {} (jobs run on during a restart)",
            later.join(", ")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_learns_which_values_wait_for_a_start_of_the_daemon() {
        let text = |now: &[&str], later: &[&str]| {
            let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
            told(Some("/etc/d.toml".into()), &keys(now), &keys(later))
        };
        assert_eq!(text(&[], &[]), "the daemon read /etc/d.toml\nno value has changed\n");
        assert_eq!(
            text(&["caps.share", "users.7.slo"], &["gangs"]),
            "the daemon read /etc/d.toml\nin force now: caps.share, users.7.slo\n\
             in force when the daemon next starts: gangs (jobs run on during a restart)\n"
        );
    }
}
