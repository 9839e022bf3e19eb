//! `deepres config`: checks a configuration file, and shows the values in force and the schema.

use super::out;
use anyhow::{Context, Result, bail};
use deepres_daemon::group_number;
use deepres_model::admin::client::{Client, ClientError};
use deepres_model::admin::{Reply, Request};
use deepres_model::config::{Loaded, Setting, schema};
use rustix::process::geteuid;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The text for a key without a value.
const NO_VALUE: &str = "-";
/// The keys whose values are names of tenants, users or groups.
const NAMING: [&str; 2] = ["admin_group", "shared_names"];

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  deepres config check lab.toml
  deepres config show
  deepres config schema > deepres.schema.json")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Check a configuration file, as a daemon would when it starts
    Check {
        /// File to check [default: the file that a daemon of this user would read]
        file: Option<PathBuf>,
    },
    /// Show every key with its value and the origin of the value
    Show(Show),
    /// Print the JSON schema of the configuration, for editors
    Schema,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without a file, the command asks the running daemon for the values in force. If no daemon runs, the command \
shows the values with which a daemon of this user would start.

Examples:
  deepres config show
  deepres config show lab.toml
  deepres config show --json | jq '.settings[] | select(.origin != \"default\")'")]
struct Show {
    /// File to show instead of the running daemon's values
    file: Option<PathBuf>,
    /// Print everything as one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs a subcommand of `deepres config`.
pub fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::Check { file } => check(file.as_deref()),
        Command::Show(args) => show(args),
        Command::Schema => out::print(|out| writeln!(out, "{:#}", schema())),
    }
}

/// Reads a configuration file. Without a file, reads the file that a daemon of this user would
/// read, as this daemon would.
fn load(file: Option<&Path>) -> Result<Loaded> {
    let loaded = Loaded::load(file)?;
    match file {
        Some(_) => Ok(loaded),
        None => Ok(loaded.for_daemon(geteuid().is_root())?),
    }
}

fn check(file: Option<&Path>) -> Result<()> {
    let loaded = load(file)?;
    let Some(file) = &loaded.file else {
        return out::say("there is no configuration file: the defaults are in force");
    };
    if let Some(group) = &loaded.config.admin_group {
        group_number(group).with_context(|| format!("{}: `admin_group`", file.display()))?;
    }
    out::say(format_args!("{}: no fault found", file.display()))
}

/// The values of a configuration, and the place from which the command has them.
struct Values {
    source: String,
    file: Option<PathBuf>,
    settings: Vec<Setting>,
}

fn show(args: &Show) -> Result<()> {
    let values = match &args.file {
        Some(file) => of_file(Some(file), "values with which a daemon would start")?,
        None => of_daemon()?,
    };
    out::print(|out| match args.json {
        true => writeln!(out, "{:#}", json!({ "file": values.file, "settings": values.settings })),
        false => out.write_all(table(&values).as_bytes()),
    })
}

fn of_file(file: Option<&Path>, source: &str) -> Result<Values> {
    let loaded = load(file)?;
    Ok(Values { source: source.to_owned(), settings: loaded.settings(), file: loaded.file })
}

/// Returns the values of the running daemon. If no daemon runs, returns the values with which a
/// daemon would start.
fn of_daemon() -> Result<Values> {
    let mut client = match Client::connect() {
        Ok(client) => client,
        Err(ClientError::NoDaemon(_)) => {
            return of_file(None, "no daemon runs: values with which a daemon of this user would start");
        }
        Err(error) => return Err(error.into()),
    };
    match client.ask(&Request::Config)? {
        Reply::Config { file, settings } => {
            Ok(Values { source: "values in force in the running daemon".to_owned(), file, settings })
        }
        other => bail!(
            "the daemon sent an unexpected reply: {other:?}; use one deepres release for the daemon and this command"
        ),
    }
}

/// Returns the values as a table for people.
fn table(values: &Values) -> String {
    let file = match &values.file {
        Some(file) => format!("file {}", file.display()),
        None => "no configuration file".to_owned(),
    };
    let rows: Vec<[String; 3]> = values
        .settings
        .iter()
        .map(|Setting { key, value, origin }| {
            [key.clone(), value.clone().unwrap_or_else(|| NO_VALUE.to_owned()), origin.to_string()]
        })
        .collect();
    let width = |column: usize, head: &str| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).max(head.len())
    };
    let (key_width, value_width) = (width(0, "KEY"), width(1, "VALUE"));
    let line =
        |key: &str, value: &str, origin: &str| format!("{key:key_width$}  {value:value_width$}  {origin}\n");
    let mut text = format!("{}; {file}\n", values.source) + &line("KEY", "VALUE", "FROM");
    text.extend(rows.iter().map(|[key, value, origin]| line(key, value, origin)));
    text
}

/// Returns the values of the running daemon, or of the files, as text for a report. Also returns
/// the names in the values.
pub fn report() -> Result<(String, Vec<String>)> {
    let values = of_daemon()?;
    let named = values.settings.iter().filter(|setting| NAMING.contains(&setting.key.as_str()));
    let named = named.filter_map(|setting| setting.value.as_deref());
    // Of the parts of a value between quotation marks, every second is a text.
    let names = named.flat_map(|value| value.split('"').skip(1).step_by(2)).map(str::to_owned).collect();
    Ok((table(&values), names))
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_model::config::Origin;

    #[test]
    fn each_key_has_a_line_with_its_value_and_origin() {
        let setting = |key: &str, value: Option<&str>, origin| Setting {
            key: key.to_owned(),
            value: value.map(str::to_owned),
            origin,
        };
        let settings = vec![
            setting("fail_mode", Some("\"open\""), Origin::Default),
            setting("caps.share", Some("\"50%\""), Origin::Line(12)),
            setting("admin_group", None, Origin::Default),
        ];
        let values = Values { source: "values".to_owned(), file: Some("/etc/d.toml".into()), settings };
        assert_eq!(
            table(&values),
            "values; file /etc/d.toml\n\
             KEY          VALUE   FROM\n\
             fail_mode    \"open\"  default\n\
             caps.share   \"50%\"   line 12\n\
             admin_group  -       default\n"
        );
    }
}
