//! `deepres report`: one archive with the facts that a bug report needs.

mod names;

use crate::{config, doctor, out, ps};
use anyhow::{Context, Result, anyhow, bail};
use deepres_daemon::check_own_directory;
use deepres_model::admin::client::Client;
use deepres_model::admin::{Reply, Request};
use deepres_model::directory::Directory;
use flate2::Compression;
use flate2::write::GzEncoder;
use names::{Names, uids};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};
use tar::{Builder, Header};

/// The most bytes of each log, from its end.
const LOG_BYTES: u64 = 4 << 20;
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
daemon's status, its configuration and its log. It has no environment variables and no memory of jobs. It \
has the command lines of jobs with their arguments, unless `--hash-names` replaces them. Look through the \
archive before you publish it. Under sudo, the archive belongs to the user who called sudo.

Examples:
  sudo deepres report
  deepres report --hash-names --output /tmp/report.tar.gz")]
pub struct Args {
    /// File to write; it must not exist yet [default: deepres-report-TIME.tar.gz]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace command lines and the names of tenants, users, containers and this machine by
    /// hashes. A name has the same hash everywhere in the archive
    #[arg(long)]
    hash_names: bool,
}

/// A part of the report: the name of its file, and its content.
struct Part {
    name: &'static str,
    content: Result<Content>,
}

/// The content of a part.
enum Content {
    /// An answer of the daemon.
    Answer(Value),
    /// The end of a log.
    Log(String),
    /// A text without structure, and the names in it that are known.
    Text(String, Vec<String>),
}

impl Content {
    fn answer(&self) -> Option<&Value> {
        match self {
            Self::Answer(value) => Some(value),
            _ => None,
        }
    }

    fn log(&self) -> Option<&str> {
        match self {
            Self::Log(text) => Some(text),
            _ => None,
        }
    }

    fn text(&self) -> Option<&str> {
        match self {
            Self::Answer(_) => None,
            Self::Log(text) | Self::Text(text, _) => Some(text),
        }
    }

    fn names(&self) -> &[String] {
        match self {
            Self::Text(_, names) => names,
            _ => &[],
        }
    }

    /// Returns the content as text, with hashes in the place of `names`.
    fn written(self, names: Option<&Names>) -> String {
        match (self, names) {
            (Self::Answer(mut value), names) => {
                if let Some(names) = names {
                    names.hash_all(&mut value);
                }
                format!("{value:#}\n")
            }
            (Self::Log(text) | Self::Text(text, _), Some(names)) => names.hashed(&text),
            (Self::Log(text) | Self::Text(text, _), None) => text,
        }
    }
}

/// Writes the archive into the file of the command line.
pub fn run(args: &Args) -> Result<()> {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let path = args.output.clone().unwrap_or_else(|| format!("deepres-report-{now_s}.tar.gz").into());
    let file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&path);
    let file = file.with_context(|| format!("cannot create {}", path.display()))?;
    if let Some((user, group)) = user_of_sudo() {
        fchown(&file, Some(user), group).with_context(|| format!("cannot give away {}", path.display()))?;
    }

    let parts = parts();
    let names = args.hash_names.then(|| names_in(&parts));
    let written = write(file, parts, names.as_ref(), now_s);
    if written.is_err() {
        // A part of an archive would look like an archive. The user gets the first error.
        let _ = fs::remove_file(&path);
    }
    written.with_context(|| format!("cannot write {}", path.display()))?;
    out::say(format_args!("{}: look through it before you publish it", path.display()))
}

/// Returns the user and the group who called sudo. The user is to send the archive, which else only
/// root could read.
fn user_of_sudo() -> Option<(u32, Option<u32>)> {
    let number = |name: &str| -> Option<u32> { std::env::var(name).ok()?.parse().ok() };
    let user = number("SUDO_UID").filter(|_| nix::unistd::getuid().is_root())?;
    Some((user, number("SUDO_GID")))
}

/// Writes the archive, and prints its parts. `now_s` is the time of its files, s since 1970.
fn write(file: File, parts: Vec<Part>, names: Option<&Names>, now_s: u64) -> Result<()> {
    let mut archive = Builder::new(GzEncoder::new(file, Compression::default()));
    for Part { name, content } in parts {
        let said = match &content {
            Ok(_) => "written".to_owned(),
            Err(error) => format!("not there: {error:#}"),
        };
        out::say(format_args!("{name:14} {said}"))?;
        let content = content.unwrap_or_else(|error| Content::Text(format!("{error:#}\n"), Vec::new()));
        let text = content.written(names);
        let mut header = Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(FILE_MODE);
        header.set_mtime(now_s);
        archive.append_data(&mut header, format!("deepres-report/{name}"), text.as_bytes())?;
    }
    archive.into_inner().and_then(GzEncoder::finish)?;
    Ok(())
}

/// Returns all parts. A part that cannot be had gives the reason.
fn parts() -> Vec<Part> {
    let text = |text| Content::Text(text, Vec::new());
    let config = config::report().map(|(text, names)| Content::Text(text, names));
    vec![
        Part { name: "versions.txt", content: Ok(text(versions())) },
        Part { name: "doctor.txt", content: doctor::report().map(text) },
        Part { name: "status.json", content: ask(&Request::Status).map(Content::Answer) },
        Part { name: "coverage.json", content: ask(&Request::Coverage).map(Content::Answer) },
        Part { name: "config.txt", content: config },
        Part { name: "daemon.log", content: log_of_user().map(Content::Log) },
        Part { name: "journal.log", content: log_of_service().map(Content::Log) },
    ]
}

/// Returns the names in the parts, the names of the users whose numbers are in the parts, and the
/// names of this machine and of this user.
fn names_in(parts: &[Part]) -> Names {
    let contents: Vec<&Content> = parts.iter().filter_map(|part| part.content.as_ref().ok()).collect();
    let answers = || contents.iter().filter_map(|content| content.answer());
    let logs = || contents.iter().filter_map(|content| content.log());
    let known = contents.iter().flat_map(|content| content.names().iter().cloned());
    let users = uids(answers(), logs()).into_iter().filter_map(ps::name_of);
    let texts = contents.iter().filter_map(|content| content.text());
    Names::of(answers(), logs(), texts, known.chain(users).chain(machine_and_user()))
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

/// Returns the names of this machine and of this user, also of the user of sudo, as far as they are
/// known.
fn machine_and_user() -> impl Iterator<Item = String> {
    let machine = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten();
    let of_sudo = std::env::var("SUDO_USER").ok();
    [machine.trim().to_owned()].into_iter().chain(user.map(|user| user.name)).chain(of_sudo)
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

/// Returns the last lines of a regular file of this user. The function follows no symbolic link.
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
    let text = String::from_utf8_lossy(&bytes).into_owned();
    // The first line can lack its beginning, and so the names of its fields.
    let is_cut = start > 0;
    Ok(text.split_once('\n').filter(|_| is_cut).map_or(text.as_str(), |(_, lines)| lines).to_owned())
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
        let line = "a".repeat((1 << 10) - 1) + "\n";
        fs::write(&path, line.repeat(size / line.len()) + "end\n").unwrap();
        let text = end_of(&path).unwrap();
        assert_eq!((text.len(), text.ends_with("a\nend\n")), (size - line.len() + "end\n".len(), true));
        assert!(text.starts_with(&line), "no line is cut");
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
    fn the_name_of_a_user_is_hashed_if_an_answer_or_a_log_has_only_the_number() {
        // On Debian, this is the user `daemon`, as whom nobody runs tests.
        let uid = 1;
        let name = ps::name_of(uid).unwrap();
        let log = |text: &str| Part { name: "daemon.log", content: Ok(Content::Log(text.to_owned())) };
        let path = format!("WARN cannot read path=/data/{name}/model\n");
        let status = serde_json::json!({ "tenants": [{ "name": "train", "uid": uid }] });
        let status = Part { name: "status.json", content: Ok(Content::Answer(status)) };
        let logged = log(&format!("INFO a tenant came uid={uid} pid=7\n"));
        for known in [status, logged] {
            let hashed = names_in(&[known, log(&path)]).hashed(&path);
            assert!(hashed.contains("/data/name-") && !hashed.contains(&name), "{hashed}");
        }
        assert_eq!(names_in(&[log(&path)]).hashed(&path), path, "nothing tells of the user");
    }

    #[test]
    fn the_versions_name_deepres_and_the_kernel() {
        let text = versions();
        assert!(text.starts_with(concat!("deepres ", env!("CARGO_PKG_VERSION"), "\n")), "{text}");
        assert!(text.contains("kernel Linux version"), "{text}");
    }
}
