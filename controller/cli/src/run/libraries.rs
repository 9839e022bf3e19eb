//! The libraries of a job: the preloaded interposer, and the driver's library.

use super::PRELOAD_VARIABLE;
use anyhow::{Context, Result, bail};
use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};
use std::ffi::{OsStr, OsString, c_void};
use std::mem::ManuallyDrop;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};

/// The interposer's file name.
const INTERPOSER: &str = "libdeepres.so";
/// Variable that names another place for the interposer.
const INTERPOSER_VARIABLE: &str = "DEEPRES_LIBRARY";
/// Directory into which packages install the interposer.
const SYSTEM_PLACE: &str = "/usr/lib/deepres";
/// The driver's library.
const DRIVER: &str = "libcuda.so.1";
/// Characters that end a name in `LD_PRELOAD`.
const SEPARATORS: [u8; 2] = *b" :";
/// The character that begins a name such as `$LIB` or `$ORIGIN`, which the dynamic linker replaces.
const REPLACED: u8 = b'$';

/// Prefix of an absolute path, with which only glibc's linker finds the file. The prefix leads to
/// the root directory.
///
/// Glibc's linker replaces `$LIB` by the name of the system's library directory. The linker of musl
/// finds no file, and goes on. Without the prefix, musl's linker would find a library that it
/// cannot link, and would end the program.
const GLIBC_ALONE: &str = "/usr/$LIB/../../../../../../../..";

#[derive(Debug, clap::Args)]
pub struct HasLibraryArgs {
    /// Library to look for
    name: String,
    /// Fail if this library is not already loaded
    #[arg(long)]
    beside: Option<PathBuf>,
    /// Fail if the library does not have this function
    #[arg(long, value_name = "FUNCTION")]
    with: Option<String>,
}

/// Finds the interposer: at the place that the environment names, beside this program, or at the
/// place where packages install it.
pub fn find_interposer() -> Result<PathBuf> {
    let found = match std::env::var_os(INTERPOSER_VARIABLE).filter(|named| !named.is_empty()) {
        Some(named) => {
            let named = PathBuf::from(named);
            if !named.is_file() {
                bail!("{INTERPOSER_VARIABLE} names {}, which does not exist", named.display());
            }
            std::path::absolute(named)?
        }
        None => {
            let program = std::env::current_exe().context("cannot find the path of this program")?;
            let beside = program.parent().unwrap_or(Path::new("/"));
            let prefix = beside.parent().unwrap_or(Path::new("/"));
            let places =
                [beside.to_owned(), prefix.join("lib/deepres"), prefix.join("lib"), SYSTEM_PLACE.into()];
            let Some(found) = places.iter().map(|place| place.join(INTERPOSER)).find(|file| file.is_file())
            else {
                let looked: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
                bail!(
                    "cannot find {INTERPOSER} (looked in {}); name it by {INTERPOSER_VARIABLE}",
                    looked.join(", ")
                );
            };
            found
        }
    };
    if found.as_os_str().as_bytes().iter().any(|byte| SEPARATORS.contains(byte) || *byte == REPLACED) {
        bail!(
            "the dynamic linker cannot load {}, because the path has a space, a colon or a dollar sign; move the library, or name another by {INTERPOSER_VARIABLE}",
            found.display()
        );
    }
    Ok(found)
}

/// Returns the value of `LD_PRELOAD` with the interposer after the libraries of `others`.
///
/// A preloaded tool can itself have some of the driver's functions, and pass calls on to the next
/// library. If the interposer came first, calls would skip this tool. But the interposer comes
/// before other copies of itself, because the first copy does the work.
pub fn preload_with(library: &Path, others: Option<OsString>) -> OsString {
    let others = others.unwrap_or_default();
    let mut names: Vec<&[u8]> = others.as_bytes().split(|byte| SEPARATORS.contains(byte)).collect();
    names.retain(|name| !name.is_empty());
    let is_copy = |name: &&[u8]| name.rsplit(|byte| *byte == b'/').next() == Some(INTERPOSER.as_bytes());
    let place = names.iter().position(is_copy).unwrap_or(names.len());
    names.insert(place, library.as_os_str().as_bytes());
    OsString::from_vec(names.join(&b':'))
}

/// Checks that the job will find the driver. Another process looks for the driver as the job's
/// linker will, so this process never loads the driver.
///
/// Returns the interposer's name for `LD_PRELOAD`. If the other process could load the interposer
/// by the name with `GLIBC_ALONE`, the name has this prefix.
pub fn require_driver(library: &Path) -> Result<PathBuf> {
    let mut careful = OsString::from(GLIBC_ALONE);
    careful.push(library);
    if try_driver(Some((library, &careful)))?.status.success() {
        return Ok(careful.into());
    }
    let tried = try_driver(None)?;
    if tried.status.success() {
        return Ok(library.to_owned());
    }
    let reason = String::from_utf8_lossy(&tried.stdout).trim().to_owned();
    let reason = if reason.is_empty() { "the dynamic linker cannot load it".to_owned() } else { reason };
    bail!(
        "there is no CUDA driver on this machine: {reason}; install a driver, or name its directory by LD_LIBRARY_PATH"
    );
}

/// Makes another process load the driver. Preloads the interposer by the given name, if there is
/// one.
fn try_driver(preloaded: Option<(&Path, &OsStr)>) -> Result<Output> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let mut command = Command::new(program);
    command.args(["has-library", DRIVER]).stdin(Stdio::null()).stderr(Stdio::null());
    if let Some((library, name)) = preloaded {
        command.arg("--beside").arg(library).env(PRELOAD_VARIABLE, name);
    }
    command.output().context("cannot start a process to look for the CUDA driver")
}

/// Returns the path at which the dynamic linker found a loaded library.
fn mapped_at(name: &str) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let mut paths = maps.lines().filter_map(|line| Some(&line[line.find('/')?..]));
    // The names of a link and of its target begin alike: libcuda.so.1, libcuda.so.595.45.04.
    let stem = name.split_inclusive(".so").next()?;
    paths.find(|path| path.rsplit('/').next().is_some_and(|file| file.starts_with(stem))).map(PathBuf::from)
}

/// Returns the path of the driver's library that a job's linker would find; `None` if the linker
/// would find no driver.
pub fn find_driver() -> Option<PathBuf> {
    let tried = try_driver(None).ok()?;
    let path = String::from_utf8(tried.stdout).ok()?;
    (tried.status.success() && path.starts_with('/')).then(|| PathBuf::from(path.trim_end()))
}

/// Tries to load a library. Prints its path, or the reason for which it cannot be loaded.
#[expect(clippy::print_stdout, reason = "the command that asks reads the output to its end")]
pub fn has_library(args: &HasLibraryArgs) -> ExitCode {
    if args.beside.as_ref().is_some_and(|library| !is_loaded(library)) {
        return ExitCode::FAILURE;
    }
    // SAFETY: the library's initialisers affect only this process, which then ends.
    let library = match unsafe { Library::open(Some(&args.name), RTLD_LAZY | RTLD_LOCAL) } {
        // The library stays open, because its finalisers can block.
        Ok(library) => ManuallyDrop::new(library),
        Err(error) => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
    };
    if args.with.as_ref().is_some_and(|function| !has_function(&library, function)) {
        return ExitCode::FAILURE;
    }
    if let Some(path) = mapped_at(&args.name) {
        println!("{}", path.display());
    }
    ExitCode::SUCCESS
}

fn has_function(library: &Library, name: &str) -> bool {
    // SAFETY: only the symbol's address is used.
    unsafe { library.get::<*mut c_void>(name.as_bytes()) }.is_ok_and(|address| !address.is_null())
}

fn is_loaded(library: &Path) -> bool {
    // SAFETY: RTLD_NOLOAD loads nothing.
    unsafe { Library::open(Some(library), RTLD_LAZY | libc::RTLD_NOLOAD) }.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_library_comes_before_those_that_were_preloaded_already() {
        assert_eq!(preload_with(Path::new("/a.so"), None), "/a.so");
        assert_eq!(preload_with(Path::new("/a.so"), Some("".into())), "/a.so");
        assert_eq!(preload_with(Path::new("/a.so"), Some("/b.so /c.so:".into())), "/b.so:/c.so:/a.so");
        let with_copy = preload_with(Path::new("/a.so"), Some("/b.so:/old/libdeepres.so:/c.so".into()));
        assert_eq!(with_copy, "/b.so:/a.so:/old/libdeepres.so:/c.so");
    }
}
