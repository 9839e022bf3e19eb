//! Runs other programs. An error contains the whole command as a user would type it.

use std::io;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// Returns the command in the form of a shell, with the variables that were set for it.
pub fn shown(command: &Command) -> String {
    let variables = command.get_envs().filter_map(|(name, value)| {
        value.map(|value| format!("{}={}", name.display(), quoted(&value.to_string_lossy())))
    });
    let words = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| quoted(&word.to_string_lossy()));
    let directory = command.get_current_dir().map(|dir| format!("cd {} &&", quoted(&dir.to_string_lossy())));
    directory.into_iter().chain(variables).chain(words).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=+,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Runs `command` with this process's standard streams. Fails if the command fails.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start: {}", shown(command)))?;
    if !status.success() {
        bail!("failed ({status}): {}", shown(command));
    }
    Ok(())
}

/// Runs a `command` that prepares something. The command's output goes to this process's standard
/// error, so that standard output contains a benchmark's JSON alone.
pub fn prepare(command: &mut Command) -> Result<()> {
    run(command.stdout(io::stderr()))
}

/// Runs `command` and returns its standard output. Fails if the command fails.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start: {}", shown(command)))?;
    if !output.status.success() {
        bail!("failed ({}): {}", output.status, shown(command));
    }
    String::from_utf8(output.stdout).with_context(|| format!("output is not UTF-8: {}", shown(command)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_whole_command() {
        let mut command = Command::new("sh");
        command.args(["-c", "exit 7 # it's"]).env("A", "b c").current_dir("/");
        let error = run(&mut command).unwrap_err().to_string();
        assert!(error.contains(r"cd / && A='b c' sh -c 'exit 7 # it'\''s'"), "{error}");
        assert!(error.contains("exit status: 7"), "{error}");
    }
}
