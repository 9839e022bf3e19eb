//! `deepres man`: writes a man page for each command. `cargo xtask dist` calls it.

use anyhow::{Context, Result};
use clap::CommandFactory as _;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::io;
use std::path::{Path, PathBuf};

/// The source in the last line of each page.
const SOURCE: &str = concat!("deepres ", env!("CARGO_PKG_VERSION"));
/// The line before the examples in the help of a command.
const EXAMPLES: &str = "Examples:";
/// The beginning of each example.
const INDENT: &str = "  ";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder for the pages
    folder: PathBuf,
}

/// Writes the pages.
pub fn run(args: &Args) -> Result<()> {
    write(&commands(), &args.folder)
}

/// Returns all commands, each with its whole name.
fn commands() -> clap::Command {
    let mut command = super::Cli::command().disable_help_subcommand(true);
    command.build();
    command
}

/// Writes the page of a command and those of its subcommands.
fn write(command: &clap::Command, folder: &Path) -> Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write(below, folder)?;
    }
    let path = folder.join(man(command).get_filename());
    page(command)
        .and_then(|page| std::fs::write(&path, page))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn man(command: &clap::Command) -> Man {
    Man::new(command.clone()).source(SOURCE)
}

/// Returns the page of a command. clap_mangen itself would leave out the variables, and fill the
/// lines of the examples.
fn page(command: &clap::Command) -> io::Result<Vec<u8>> {
    let (man, mut page) = (man(command), Vec::new());
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    let mut roff = Roff::default();
    let variables: Vec<_> = command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set())
        .filter_map(|argument| Some((argument.get_env()?.to_string_lossy(), argument.get_long()?)))
        .collect();
    if !variables.is_empty() {
        roff.control("SH", ["ENVIRONMENT"]);
    }
    for (variable, option) in variables {
        roff.control("TP", []);
        roff.text([bold(variable)]);
        roff.text([roman(format!("The value of --{option} if the command line does not have the option"))]);
    }
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (notes, examples) = parts(&help);
    if !notes.is_empty() {
        roff.control("SH", ["NOTES"]);
        for line in notes {
            roff.text([roman(line)]);
        }
    }
    if !examples.is_empty() {
        roff.control("SH", ["EXAMPLES"]);
        roff.control("nf", []);
        for line in examples {
            roff.text([roman(line)]);
        }
        roff.control("fi", []);
    }
    roff.to_writer(&mut page)?;
    Ok(page)
}

/// Returns the lines of a help without the examples, and the examples.
fn parts(help: &str) -> (Vec<&str>, Vec<&str>) {
    let (mut notes, mut examples, mut is_example) = (Vec::new(), Vec::new(), false);
    for line in help.lines() {
        match line.strip_prefix(INDENT) {
            _ if line == EXAMPLES => is_example = true,
            Some(example) if is_example => examples.push(example),
            _ => {
                is_example = false;
                notes.push(line);
            }
        }
    }
    notes.dedup_by(|line, before| line.is_empty() && before.is_empty());
    while notes.last().is_some_and(|line| line.is_empty()) {
        notes.pop();
    }
    let begin = notes.iter().take_while(|line| line.is_empty()).count();
    (notes.split_off(begin), examples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_the_version_the_variables_and_the_examples_as_they_are() {
        let commands = commands();
        let run = commands.find_subcommand("run").unwrap();
        assert_eq!(man(run).get_filename(), "deepres-run.1");
        let page = String::from_utf8(page(run).unwrap()).unwrap();
        for part in [
            SOURCE,
            "\\fBDEEPRES_SHARE\\fR\nThe value of \\-\\-share if",
            ".SH NOTES\nThe program needs no change",
            ".SH EXAMPLES\n.nf\ndeepres run \\-\\- python train.py\n",
        ] {
            assert!(page.contains(part), "{part} is not in\n{page}");
        }
    }

    #[test]
    fn notes_stand_before_and_behind_the_examples() {
        let help = "before\n\nExamples:\n  deepres a\n  deepres b\n\nbehind\n  deep\n";
        assert_eq!(parts(help), (vec!["before", "", "behind", "  deep"], vec!["deepres a", "deepres b"]));
        assert_eq!(parts("Examples:\n  deepres a"), (vec![], vec!["deepres a"]));
        assert_eq!(parts(""), (vec![], vec![]));
    }
}
