//! Finds the mapped files of a process that can contain the driver's functions. The daemon opens a
//! file by its mapping and not by its name. The process can be in a container, and the file can be
//! deleted.

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, open, statx};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Name of the driver's library before its version.
const LIBRARY: &str = "libcuda.so";
/// The most files with that name that the daemon examines. One file is usual.
const MAX_NAMED: usize = 16;
/// The most other files that the daemon examines. A program can itself contain the driver's
/// functions.
const MAX_OTHERS: usize = 64;

/// A file that a process has mapped.
#[derive(Debug)]
pub struct Mapped {
    /// The open file.
    pub file: File,
    /// Device and inode of the file.
    pub id: (u64, u64),
    /// Path of the file from the view of the process.
    pub path: String,
}

/// A line of /proc/PID/maps that names a file.
#[derive(Debug, PartialEq, Eq)]
struct Line<'a> {
    range: &'a str,
    device: &'a str,
    inode: &'a str,
    path: &'a str,
}

/// Returns the files that can contain the driver's functions. The files with the library's name
/// come first. Does not open the files in `dismissed`.
pub fn of(pid: u32, dismissed: &BTreeSet<(u64, u64)>) -> Vec<Mapped> {
    let maps = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let maps = String::from_utf8_lossy(&maps);
    let remote = remote_devices(pid);
    let lines: Vec<Line<'_>> = maps
        .lines()
        .filter_map(parse)
        .filter(|line| line.path.starts_with('/') && !line.path.starts_with("/dev/"))
        .filter(|line| !remote.contains(line.device))
        .collect();
    let (named, others): (Vec<_>, Vec<_>) =
        unique(lines.iter()).into_iter().partition(|line| is_library(line.path));
    let others = others.into_iter().take(MAX_OTHERS);
    named.into_iter().take(MAX_NAMED).chain(others).filter_map(|line| opened(pid, line, dismissed)).collect()
}

fn unique<'l, 'm>(lines: impl Iterator<Item = &'l Line<'m>>) -> Vec<&'l Line<'m>> {
    let mut seen = BTreeSet::new();
    lines.filter(|line| seen.insert((line.device, line.inode))).collect()
}

fn is_library(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| name.starts_with(LIBRARY))
}

/// Returns the parts of a line `RANGE MODE OFFSET DEVICE INODE  PATH`; `None` if the line names no
/// file.
fn parse(line: &str) -> Option<Line<'_>> {
    let mut rest = line;
    let mut field = || {
        let (field, after) = rest.trim_start().split_once(' ')?;
        rest = after;
        Some(field)
    };
    let (range, _mode, _offset, device, inode) = (field()?, field()?, field()?, field()?, field()?);
    Some(Line { range, device, inode, path: rest.trim_start() })
}

/// Returns the devices of file systems that a program serves. A read from such a file system waits
/// for the program.
fn remote_devices(pid: u32) -> BTreeSet<String> {
    let mounts = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    let of_line = |line: &str| {
        let (mount, system) = line.split_once(" - ")?;
        let (major, minor) = mount.split_ascii_whitespace().nth(2)?.split_once(':')?;
        let (major, minor) = (major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?);
        // The format is the format of device numbers in /proc/PID/maps.
        system.starts_with("fuse").then(|| format!("{major:02x}:{minor:02x}"))
    };
    mounts.lines().filter_map(of_line).collect()
}

fn opened(pid: u32, line: &Line<'_>, dismissed: &BTreeSet<(u64, u64)>) -> Option<Mapped> {
    let mapping = PathBuf::from(format!("/proc/{pid}/map_files/{}", line.range));
    // Without the right to follow the mapping, the function opens the file by its name. The check
    // of the inode below rejects another file.
    let named = PathBuf::from(format!("/proc/{pid}/root{}", line.path));
    let open = |path: &Path| open_regular(path, dismissed);
    let (file, status, id) = open(&mapping).or_else(|| open(&named))?;
    if status.stx_ino.to_string() != line.inode {
        return None;
    }
    Some(Mapped { file, id, path: line.path.to_owned() })
}

fn open_regular(
    path: &Path,
    dismissed: &BTreeSet<(u64, u64)>,
) -> Option<(File, rustix::fs::Statx, (u64, u64))> {
    // The function checks the type before it opens the file, because opening a device has effects.
    let wanted = StatxFlags::TYPE | StatxFlags::INO;
    let status = statx(CWD, path, AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT, wanted).ok()?;
    if FileType::from_raw_mode(status.stx_mode.into()) != FileType::RegularFile {
        return None;
    }
    let id = (rustix::fs::makedev(status.stx_dev_major, status.stx_dev_minor), status.stx_ino);
    if dismissed.contains(&id) {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    Some((File::from(open(path, flags, Mode::empty()).ok()?), status, id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_maps_comes_apart_whatever_the_file_is_called() {
        let line = "7f0-7f1 r-xp 0001 fd:00 42                         /a b/libcuda.so.1 (deleted)";
        let expected =
            Line { range: "7f0-7f1", device: "fd:00", inode: "42", path: "/a b/libcuda.so.1 (deleted)" };
        assert_eq!(parse(line), Some(expected));
        assert_eq!(
            parse("7f0-7f1 rw-p 0 00:00 0 "),
            Some(Line { range: "7f0-7f1", device: "00:00", inode: "0", path: "" })
        );
        assert_eq!(parse(""), None);
        assert!(
            is_library("/x/libcuda.so.595.45.04")
                && !is_library("/libcuda.so/other")
                && !is_library("/libcudart.so")
        );
    }

    #[test]
    fn a_process_without_the_library_shows_its_other_files_by_what_they_are() {
        let program = std::env::current_exe().unwrap();
        let own = of(std::process::id(), &BTreeSet::new());
        let found = own.iter().find(|mapped| Path::new(&mapped.path) == program).expect("the program itself");
        use std::os::unix::fs::MetadataExt;
        assert_eq!(found.file.metadata().unwrap().ino(), program.metadata().unwrap().ino());
        let dismissed = BTreeSet::from([found.id]);
        assert!(of(std::process::id(), &dismissed).iter().all(|mapped| mapped.id != found.id));
    }
}
