//! Test programs. Cargo builds them, and xtask runs them. So some programs run while cargo builds
//! the next.

use std::io::{BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;

use anyhow::{Context as _, Result, bail};
use deepres_e2e::signals::heeded;
use deepres_e2e::skip;
use serde_json::Value;

use crate::{build, command};

/// A built test program.
#[derive(Debug, Clone)]
pub struct Program {
    /// The package and the target, for example `deepres-abi kills`.
    pub name: String,
    file: PathBuf,
    /// The folder of the package, in which cargo runs the package's tests.
    folder: PathBuf,
}

/// The result of running a test program.
pub struct Outcome {
    pub status: ExitStatus,
    /// The program's standard output.
    pub output: String,
    /// The reasons for which the program skipped tests.
    pub skips: Vec<String>,
}

/// Builds the whole workspace and its tests at once. So the programs that tests run have the same
/// features as the tests.
pub fn build_all() -> Result<Vec<Program>> {
    let mut cargo = build::cargo();
    build(cargo.args(["build", "--workspace", "--lib", "--bins", "--tests"]))
}

/// Builds with the command `cargo`. Returns the test programs among the artefacts.
pub fn build(cargo: &mut Command) -> Result<Vec<Program>> {
    cargo.args(["--message-format", "json-render-diagnostics"]);
    let mut child = cargo
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start: {}", command::shown(cargo)))?;
    let messages = BufReader::new(child.stdout.take().context("the output was piped")?);
    let mut programs = Vec::new();
    for line in messages.lines() {
        programs.extend(serde_json::from_str(&line?).ok().as_ref().and_then(Program::of_message));
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("failed ({status}): {}", command::shown(cargo));
    }
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(programs)
}

impl Program {
    /// Returns the test program that a message of cargo is about; `None` for any other message.
    fn of_message(message: &Value) -> Option<Self> {
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            return None;
        }
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
        let package = message["package_id"].as_str()?;
        // For example path+file:///…/abi#deepres-abi@0.1.0. If the folder has the package's name,
        // the id has only the version: …/xtask#0.1.0.
        let package = package.rsplit_once('#')?.1;
        let package = match package.split_once('@') {
            Some((name, _)) => name.to_owned(),
            None => folder.file_name()?.to_string_lossy().into_owned(),
        };
        Some(Self {
            name: format!("{package} {}", message["target"]["name"].as_str()?),
            file: message["executable"].as_str()?.into(),
            folder: folder.to_owned(),
        })
    }

    /// Returns the program's package.
    pub fn package(&self) -> &str {
        self.name.split_once(' ').map_or(&self.name, |(package, _)| package)
    }

    /// Returns the command that runs the program in the same way as cargo.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.file);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command.env("CARGO_TARGET_DIR", build::target());
        // This folder has all programs that tests run, because cargo built them together with the
        // tests.
        command.env("DEEPRES_BUILT", build::target().join("debug"));
        command
    }

    /// Returns the names of the program's tests that contain the filter.
    pub fn list(&self, filter: &str) -> Result<Vec<String>> {
        let listed = command::output(self.command().args([filter, "--list", "--format=terse"]))?;
        Ok(listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    }

    /// Runs the program to its end with these arguments. Shows its output as it comes.
    pub fn run(&self, arguments: &[&str], environment: &[(&str, &Path)]) -> Result<Outcome> {
        let mut command = self.command();
        command.args(arguments).envs(environment.iter().copied());
        run(&mut command)
    }
}

/// Reads all lines, shows each line by `show`, and returns the whole text.
fn teed(from: impl Read, show: impl Fn(&str)) -> String {
    let mut from = BufReader::new(from);
    let (mut all, mut line) = (String::new(), Vec::new());
    while from.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let text = String::from_utf8_lossy(&line);
        show(&text);
        all += &text;
        line.clear();
    }
    all
}

/// Runs a test program, or a command of cargo that runs several.
pub fn run(command: &mut Command) -> Result<Outcome> {
    let mut child = heeded(command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start: {}", command::shown(command)))?;
    let errors = child.stderr.take().context("standard error was piped")?;
    let reader = thread::Builder::new()
        .spawn(move || teed(errors, |line| eprint!("{line}")))
        .context("cannot start a thread")?;
    let output = child.stdout.take().context("the output was piped")?;
    let output = teed(output, |line| print!("{line}"));
    let status = child.wait()?;
    let errors = reader.join().unwrap_or_default();
    Ok(Outcome { status, output, skips: skip::reasons(&errors).map(str::to_owned).collect() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn test_programs_are_told_from_other_artefacts() {
        let mut message = json!({
            "reason": "compiler-artifact", "package_id": "path+file:///w/abi#deepres-abi@0.1.0",
            "manifest_path": "/w/abi/Cargo.toml", "target": {"name": "kills"}, "profile": {"test": true},
            "executable": "/w/target/debug/deps/kills-1"
        });
        let program = Program::of_message(&message).unwrap();
        assert_eq!(
            (program.name.as_str(), program.folder.as_path()),
            ("deepres-abi kills", Path::new("/w/abi"))
        );
        message["package_id"] = json!("path+file:///w/xtask#0.1.0");
        message["manifest_path"] = json!("/w/xtask/Cargo.toml");
        assert_eq!(Program::of_message(&message).unwrap().name, "xtask kills");
        message["profile"]["test"] = json!(false);
        assert!(Program::of_message(&message).is_none());
    }

    #[test]
    fn reasons_for_skipped_tests_are_found_in_a_programs_output() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo output; printf 'x\\n\\nskipped: no wings\\ny\\n' >&2; exit 3"]);
        let outcome = run(&mut shell).unwrap();
        assert_eq!((outcome.status.code(), outcome.output.as_str()), (Some(3), "output\n"));
        assert_eq!(outcome.skips, ["no wings"]);
    }
}
