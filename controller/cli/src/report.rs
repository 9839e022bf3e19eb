//! `deepres report`: one archive with the facts that a bug report needs.

mod names;

use crate::{config, doctor};
use anyhow::{Context, Result, anyhow, bail};
use deepres_daemon::check_own_directory;
use deepres_model::admin::client::Client;
use deepres_model::admin::{Reply, Request};
use deepres_model::directory::Directory;
use flate2::Compression;
use flate2::write::GzEncoder;
use names::Names;
use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};
use tar::{Builder, Header};

/// The most bytes of each log, from its end.
const LOG_BYTES: u64 = 4 << 20;
/// The end of the names of logs in the archive.
const LOG_ENDING: &str = ".log";
/// The most lines of the service's log in the journal.
const JOURNAL_LINES: &str = "20000";
/// The unit of the daemon.
const UNIT: &str = "deepres.service";
/// Mode of the archive. A log can have names that other users must not see.
const MODE: u32 = 0o600;
/// Mode of the files in the archive.
const FILE_MODE: u32 = 0o644;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The archive has the versions of deepres, the system and the driver, the output of `deepres doctor`, the \
daemon's status, its configuration and its log. It has no environment variables and no data of jobs. \
Look through the archive before you publish it.

Examples:
  sudo deepres report
  deepres report --hash-names --output /tmp/report.tar.gz")]
pub struct Args {
    /// File to write; it must not exist yet [default: deepres-report-TIME.tar.gz]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the names of tenants, users, containers, programs and this machine by hashes. A name
    /// has the same hash everywhere in the archive
    #[arg(long)]
    hash_names: bool,
}

/// A part of the report: the name of its file, and its text.
struct Part {
    name: &'static str,
    text: Result<String>,
}

/// Writes the archive, and prints its parts.
pub fn run(args: &Args) -> Result<()> {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let path = args.output.clone().unwrap_or_else(|| format!("deepres-report-{now_s}.tar.gz").into());
    let file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&path);
    let file = file.with_context(|| format!("cannot create {}", path.display()))?;

    let status = ask(&Request::Status);
    let present = status.as_ref().ok().cloned();
    let parts = parts(status);
    let logs = parts.iter().filter(|part| part.name.ends_with(LOG_ENDING));
    let logs = logs.filter_map(|part| part.text.as_ref().ok().map(String::as_str));
    let names = args.hash_names.then(|| Names::of(present.as_ref(), logs, machine_and_user()));
    let mut archive = Builder::new(GzEncoder::new(file, Compression::default()));
    for Part { name, text } in parts {
        let said = match &text {
            Ok(_) => "written".to_owned(),
            Err(error) => format!("not there: {error:#}"),
        };
        println!("{name:14} {said}");
        let text = text.unwrap_or_else(|error| format!("{error:#}\n"));
        let text = names.as_ref().map_or_else(|| text.clone(), |names| names.hashed(&text));
        let mut header = Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(FILE_MODE);
        header.set_mtime(now_s);
        archive
            .append_data(&mut header, format!("deepres-report/{name}"), text.as_bytes())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let written = archive.into_inner().and_then(GzEncoder::finish);
    written.with_context(|| format!("cannot write {}", path.display()))?;
    println!("{}: look through it before you publish it", path.display());
    Ok(())
}

/// Returns all parts. A part that cannot be had gives the reason.
fn parts(status: Result<Value>) -> Vec<Part> {
    let pretty = |value: Value| format!("{value:#}\n");
    vec![
        Part { name: "versions.txt", text: Ok(versions()) },
        Part { name: "doctor.txt", text: doctor::report() },
        Part { name: "status.json", text: status.map(pretty) },
        Part { name: "coverage.json", text: ask(&Request::Coverage).map(pretty) },
        Part { name: "config.txt", text: config::report() },
        Part { name: "daemon.log", text: log_of_user() },
        Part { name: "journal.log", text: log_of_service() },
    ]
}

fn ask(request: &Request) -> Result<Value> {
    let reply = match request {
        // A user who may not administer the daemon gets the own tenants.
        Request::Status => Client::question(request)?,
        _ => Client::connect()?.ask(request)?,
    };
    match reply {
        Reply::Status(status) => Ok(serde_json::to_value(status)?),
        Reply::Coverage { processes } => Ok(serde_json::to_value(processes)?),
        other => bail!("the daemon sent an unexpected reply: {other:?}"),
    }
}

fn versions() -> String {
    let line = |path: &str| {
        let text = fs::read_to_string(path).unwrap_or_else(|error| format!("{path}: {error}"));
        text.lines().next().unwrap_or_default().to_owned()
    };
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let release = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or("unknown");
    let program =
        std::env::current_exe().map_or_else(|error| error.to_string(), |path| path.display().to_string());
    format!(
        "deepres {}\nprogram {program}\nsystem {}\nkernel {}\ndriver {}\n",
        env!("CARGO_PKG_VERSION"),
        release.trim_matches('"'),
        line("/proc/version"),
        line("/proc/driver/nvidia/version"),
    )
}

/// Returns the names of this machine and of this user, as far as they are known.
fn machine_and_user() -> impl Iterator<Item = String> {
    let machine = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten();
    [machine.trim().to_owned()].into_iter().chain(user.map(|user| user.name))
}

/// Returns the log of the daemon that `deepres run` started for this user.
fn log_of_user() -> Result<String> {
    let directory = Directory::own();
    let path = directory.log_file();
    let old = path.with_extension("log.old");
    // Another user may have made a directory of this name in /tmp.
    let now = check_own_directory(&directory).and_then(|()| end_of(&path));
    let now = now.with_context(|| format!("cannot read {}", path.display()))?;
    Ok(end_of(&old).unwrap_or_default() + &now)
}

/// Returns the end of a regular file of this user. The function follows no symbolic link.
fn end_of(path: &Path) -> io::Result<String> {
    let mut options = OpenOptions::new();
    // The opening of a FIFO would wait for a writer.
    let mut file = options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() || found.uid() != nix::unistd::getuid().as_raw() {
        return Err(io::Error::other("this is no regular file of yours"));
    }
    let start = found.len().saturating_sub(LOG_BYTES);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the log of the daemon that systemd started.
fn log_of_service() -> Result<String> {
    let mut journal = Command::new("journalctl");
    journal.args([
        "--unit",
        UNIT,
        "--lines",
        JOURNAL_LINES,
        "--no-pager",
        "--output",
        "short-iso",
        "--quiet",
    ]);
    let output = journal.stdin(Stdio::null()).output().context("cannot run journalctl")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match text.is_empty() {
        true => Err(anyhow!("the journal shows no line of {UNIT} to this user")),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_a_long_log_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("daemon.log");
        let size = usize::try_from(LOG_BYTES).unwrap();
        fs::write(&path, "a".repeat(size) + "end\n").unwrap();
        let text = end_of(&path).unwrap();
        assert_eq!((text.len(), text.ends_with("aend\n")), (size, true));
    }

    #[test]
    fn a_link_and_a_file_that_is_not_regular_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("key"), folder.path().join("daemon.log"));
        fs::write(&file, "secret").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(end_of(&file).unwrap(), "secret");
        assert!(end_of(&link).is_err());
        assert!(end_of(Path::new("/dev/null")).is_err());
    }

    #[test]
    fn the_versions_name_deepres_and_the_kernel() {
        let text = versions();
        assert!(text.starts_with(concat!("deepres ", env!("CARGO_PKG_VERSION"), "\n")), "{text}");
        assert!(text.contains("kernel Linux version"), "{text}");
    }
}
