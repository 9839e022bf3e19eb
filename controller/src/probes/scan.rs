//! What /proc tells of processes: who has the GPU's devices open or mapped, and who they are.

use super::devices::Devices;
use super::users::Evidence;
use crate::identity::read::place;
use crate::process::ProcessKey;
use crate::text::harmless;
use deepres_abi::probe::Family;
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use std::path::Path;

/// Characters of a command line that are kept.
const COMMAND_CHARS: usize = 120;

/// How a process uses the devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    /// How it was seen.
    pub evidence: Evidence,
    /// It has unified memory open, which only compute does.
    pub is_compute: bool,
}

/// All processes that use the devices.
pub fn all(devices: &Devices) -> Vec<(ProcessKey, Use)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| Some((pid, of(pid, devices)?)))
        .filter_map(|(pid, found)| Some((ProcessKey::of(pid)?, found)))
        .collect()
}

/// How a process uses the devices at this moment.
pub fn of(pid: u32, devices: &Devices) -> Option<Use> {
    let by = |evidence, families: Vec<Family>| {
        (!families.is_empty()).then(|| Use { evidence, is_compute: families.contains(&Family::Uvm) })
    };
    by(Evidence::Descriptor, open_devices(pid, devices))
        .or_else(|| by(Evidence::Mapping, mapped_devices(pid, devices)))
}

fn open_devices(pid: u32, devices: &Devices) -> Vec<Family> {
    let folder = format!("/proc/{pid}/fd");
    let Ok(entries) = std::fs::read_dir(&folder) else { return Vec::new() };
    entries.flatten().filter_map(|entry| family(&entry.path(), devices)).collect()
}

fn mapped_devices(pid: u32, devices: &Devices) -> Vec<Family> {
    let Ok(maps) = std::fs::read_to_string(format!("/proc/{pid}/maps")) else { return Vec::new() };
    let shared = maps.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (range, mode) = (fields.next()?, fields.next()?);
        // Drivers' memory is mapped shared and has a file's name.
        (mode.ends_with('s') && line.contains('/')).then_some(range)
    });
    shared.filter_map(|range| family(Path::new(&format!("/proc/{pid}/map_files/{range}")), devices)).collect()
}

/// The family of the device that a path leads to. File systems that are far away are not asked.
fn family(path: &Path, devices: &Devices) -> Option<Family> {
    let status = statx(CWD, path, AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT, StatxFlags::TYPE).ok()?;
    let is_device = FileType::from_raw_mode(status.stx_mode.into()) == FileType::CharacterDevice;
    if is_device { devices.family(status.stx_rdev_major, status.stx_rdev_minor) } else { None }
}

/// The parent of a process.
pub fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Who a process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Its command line, shortened.
    pub command: String,
    /// Its user.
    pub uid: u32,
    /// Its id as it sees itself, if that is another.
    pub container_pid: Option<u32>,
    /// Its container's id, shortened.
    pub container: Option<String>,
}

/// Describes a process, as far as it lets itself be seen.
pub fn describe(pid: u32) -> Description {
    let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let words = read("cmdline");
    let words = words.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    let words: Vec<_> = words.map(String::from_utf8_lossy).collect();
    let command = if words.is_empty() {
        String::from_utf8_lossy(&read("comm")).trim_end().to_owned()
    } else {
        words.join(" ")
    };
    let status = read("status");
    let status = String::from_utf8_lossy(&status);
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let inner: Vec<u32> = field("NSpid:")
        .unwrap_or_default()
        .split_ascii_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    Description {
        command: harmless(&command.chars().take(COMMAND_CHARS).collect::<String>()),
        uid: field("Uid:")
            .and_then(|line| line.split_ascii_whitespace().next()?.parse().ok())
            .unwrap_or(u32::MAX),
        container_pid: if inner.len() > 1 { inner.last().copied() } else { None },
        container: place(pid).and_then(|place| Some(place.container()?.short_id().to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tun() -> Devices {
        Devices::find(&["nvidia-uvm=1:8".parse().unwrap()])
    }

    #[test]
    fn a_process_that_has_the_device_open_is_found_and_no_other() {
        let devices = tun();
        assert_eq!(of(std::process::id(), &devices), None);
        let held = std::fs::File::open("/dev/random").unwrap();
        let expected = Use { evidence: Evidence::Descriptor, is_compute: true };
        assert_eq!(of(std::process::id(), &devices), Some(expected));
        let own = ProcessKey::of(std::process::id()).unwrap();
        assert!(all(&devices).contains(&(own, expected)));
        drop(held);
    }

    #[test]
    fn a_process_is_described_by_its_command_line_and_user() {
        let own = describe(std::process::id());
        assert_eq!(own.uid, rustix::process::getuid().as_raw());
        assert!(!own.command.is_empty() && own.command.chars().count() <= COMMAND_CHARS);
        assert_eq!(
            parent(std::process::id()),
            rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get() as u32)
        );
    }
}
