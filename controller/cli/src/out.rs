//! Standard output of the commands. The macro `println!` would panic if the reader has closed the
//! pipe (`deepres set train --share 50% | head -0`), so the commands print by these functions.

use anyhow::Result;
use std::fmt::Display;
use std::io::{self, ErrorKind, StdoutLock, Write as _};

/// Writes to standard output. A reader that closes the pipe early is no error.
///
/// # Errors
/// The system's error.
pub fn print(write: impl FnOnce(&mut StdoutLock<'static>) -> io::Result<()>) -> Result<()> {
    heed(write(&mut io::stdout().lock()))
}

/// Prints a line. A reader that closes the pipe early is no error.
///
/// # Errors
/// The system's error.
pub fn say(line: impl Display) -> Result<()> {
    print(|out| writeln!(out, "{line}"))
}

fn heed(printed: io::Result<()>) -> Result<()> {
    match printed {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        printed => Ok(printed?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_closed_pipe_is_no_error() {
        assert!(heed(Ok(())).is_ok() && heed(Err(ErrorKind::BrokenPipe.into())).is_ok());
        assert!(heed(Err(ErrorKind::StorageFull.into())).is_err());
    }
}
