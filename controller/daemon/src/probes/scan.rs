//! Finds in /proc which processes have the GPU's devices open or mapped, and describes these
//! processes.

use super::devices::Devices;
use super::reader::shortened;
use super::users::Evidence;
use crate::identity::read::{place, process};
use deepres_abi::probe::Family;
use deepres_model::process::{ProcessKey, stat};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use rustix::process::getuid;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A process's use of the GPU's devices, and the way in which the daemon saw the use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    /// The way in which the daemon saw that the process uses the devices.
    pub evidence: Evidence,
    /// Whether the process has unified memory open. Only compute processes open unified memory.
    pub is_compute: bool,
}

/// The most descriptors of one process that a quick look reads. A process can have millions.
pub const GLANCE: usize = 4096;

/// The result of a look at a process's descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// The use that the look found among the descriptors that it read.
    pub found: Option<Use>,
    /// Whether the look read all descriptors.
    pub is_whole: bool,
}

/// The result of a look at all processes.
#[derive(Debug, Default)]
pub struct Found {
    /// Processes that have the devices open.
    pub users: Vec<(ProcessKey, Use)>,
    /// Processes without an open device among the descriptors that were read.
    pub others: Vec<ProcessKey>,
    /// Processes with more descriptors than the look read.
    pub large: Vec<ProcessKey>,
}

/// Looks at all processes. If a process has very many descriptors, the scan reads only a part of
/// them.
pub fn all(devices: &Devices) -> Found {
    let mut all = Found::default();
    let Ok(entries) = std::fs::read_dir("/proc") else { return all };
    for pid in entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        let Look { found, is_whole } = glance(pid, devices);
        let Some(who) = ProcessKey::of(pid) else { continue };
        match found {
            Some(found) => all.users.push((who, found)),
            None => all.others.push(who),
        }
        if !is_whole {
            all.large.push(who);
        }
    }
    all
}

/// Looks at a process's first descriptors. Returns the use of the devices among them.
pub fn glance(pid: u32, devices: &Devices) -> Look {
    look(pid, devices, GLANCE)
}

/// Looks at all descriptors of a process, which can take seconds. Returns the use of the devices;
/// `None` without use.
pub fn open(pid: u32, devices: &Devices) -> Option<Use> {
    look(pid, devices, usize::MAX).found
}

fn look(pid: u32, devices: &Devices, most: usize) -> Look {
    let (mut families, mut seen) = open_devices(&format!("/proc/{pid}/fd"), devices, most);
    if seen == 0 && has_lost_its_leader(pid) {
        // The other threads share the descriptors of the first thread, unless a thread made a table
        // of its own.
        for thread in threads(pid) {
            let (its, count) = open_devices(&format!("{thread}/fd"), devices, most - seen);
            families.extend(its);
            // A thread without descriptors takes time too.
            seen += count.max(1);
            if seen >= most {
                break;
            }
        }
    }
    Look { found: used(Evidence::Descriptor, &families), is_whole: seen < most }
}

/// Returns a process's use of the devices by mappings; `None` without use. The process can block
/// this call for as long as it likes.
pub fn mapped(pid: u32, devices: &Devices) -> Option<Use> {
    used(Evidence::Mapping, &mapped_devices(pid, devices))
}

fn used(evidence: Evidence, families: &[Family]) -> Option<Use> {
    (!families.is_empty()).then(|| Use { evidence, is_compute: families.contains(&Family::Uvm) })
}

/// Returns whether a process is part of deepres: it has this user and runs this very binary. For
/// example, a mover of tenants' memory outlives the daemon that started it.
pub fn is_ours(pid: u32) -> bool {
    pid == std::process::id()
        || identity(&format!("/proc/{pid}/exe")).is_some_and(|own| Some(own) == identity("/proc/self/exe"))
            && process(pid).is_some_and(|process| process.user == getuid().as_raw())
}

/// Returns the device and the inode of the file at a path.
fn identity(path: &str) -> Option<(u32, u32, u64)> {
    let status = statx(CWD, path, AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT, StatxFlags::INO).ok()?;
    Some((status.stx_dev_major, status.stx_dev_minor, status.stx_ino))
}

/// Returns whether this user may not read the process's descriptors. If the result is true, only
/// the reports of the eBPF programs show the process's use.
pub fn is_hidden(pid: u32) -> bool {
    std::fs::read_dir(format!("/proc/{pid}/fd"))
        .is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

/// Returns whether a process's first thread has ended while other threads go on. Then only the
/// other threads show the process's descriptors.
fn has_lost_its_leader(pid: u32) -> bool {
    let stat = stat(pid).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, fields)| fields.trim_start().starts_with('Z'))
}

/// Returns whether a process is ending, with all of its threads. The kernel can take long to free
/// its memory and files, but the process no longer uses the GPU.
pub fn is_dying(pid: u32) -> bool {
    /// Index of a thread's flags among the fields after the thread's name.
    const FLAGS: usize = 6;
    /// The kernel's flag `PF_EXITING`, which is set while a thread ends.
    const ENDING: u32 = 4;
    let is_ending = |thread: String| {
        let stat = std::fs::read_to_string(format!("{thread}/stat")).unwrap_or_default();
        let flags = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_ascii_whitespace().nth(FLAGS));
        // If a thread has gone meanwhile, it has ended.
        flags.and_then(|flags| flags.parse::<u32>().ok()).is_none_or(|flags| flags & ENDING != 0)
    };
    let mut threads = threads(pid).map(is_ending).peekable();
    // If the function can read no thread, it does not take the process for ending.
    threads.peek().is_some() && threads.all(|is_ending| is_ending)
}

fn threads(pid: u32) -> impl Iterator<Item = String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.map(|task| task.path().to_string_lossy().into_owned())
}

/// Returns the families of the devices among the first `most` open files, and the number of files
/// that it read.
fn open_devices(folder: &str, devices: &Devices, most: usize) -> (Vec<Family>, usize) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut seen = 0;
    let families = entries.take(most).filter_map(|entry| {
        seen += 1;
        let family = family(&entry.path(), devices)?;
        // A descriptor that is open for neither reading nor writing (O_PATH) does not use the
        // device.
        entry.metadata().is_ok_and(|link| link.permissions().mode() & 0o600 != 0).then_some(family)
    });
    let families = families.collect();
    (families, seen)
}

fn mapped_devices(pid: u32, devices: &Devices) -> Vec<Family> {
    let Ok(maps) = std::fs::read_to_string(format!("/proc/{pid}/maps")) else { return Vec::new() };
    let possible = maps.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (range, mode) = (fields.next()?, fields.next()?);
        // Memory of a driver is mapped shared, and its file has a name. The function also checks
        // all mappings of files under /dev.
        (mode.ends_with('s') && line.contains('/') || line.contains(" /dev/")).then_some(range)
    });
    possible
        .filter_map(|range| family(Path::new(&format!("/proc/{pid}/map_files/{range}")), devices))
        .collect()
}

/// Returns the family of the device at a path; `None` without a watched device. The flags avoid
/// requests to remote file systems.
fn family(path: &Path, devices: &Devices) -> Option<Family> {
    let status = statx(CWD, path, AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT, StatxFlags::TYPE).ok()?;
    let is_device = FileType::from_raw_mode(status.stx_mode.into()) == FileType::CharacterDevice;
    if is_device { devices.family(status.stx_rdev_major, status.stx_rdev_minor) } else { None }
}

/// Returns the id of a process's parent.
pub fn parent(pid: u32) -> Option<u32> {
    stat(pid)?.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// A process as the status describes it: its command, user and container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// The command line, shortened. Before a thread has read it, the process's name.
    pub command: String,
    /// The user id.
    pub uid: u32,
    /// The process's id inside its container, if this id differs.
    pub container_pid: Option<u32>,
    /// The container's id, shortened.
    pub container: Option<String>,
}

/// Returns the process's id inside its container, if it differs from `pid`.
pub fn inner_pid(pid: u32) -> Option<u32> {
    inner_of(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn inner_of(status: &str) -> Option<u32> {
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    ids.split_ascii_whitespace().skip(1).last()?.parse().ok()
}

/// Describes a process, from data that the process cannot block. The command is the process's name
/// here.
pub fn describe(pid: u32) -> Description {
    let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let command = String::from_utf8_lossy(&read("comm")).trim_end().to_owned();
    let status = read("status");
    let status = String::from_utf8_lossy(&status);
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    Description {
        command: shortened(&command),
        uid: field("Uid:")
            .and_then(|line| line.split_ascii_whitespace().next()?.parse().ok())
            .unwrap_or(u32::MAX),
        container_pid: inner_of(&status),
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
        assert_eq!(open(std::process::id(), &devices), None);
        let held = std::fs::File::open("/dev/random").unwrap();
        let expected = Use { evidence: Evidence::Descriptor, is_compute: true };
        assert_eq!(open(std::process::id(), &devices), Some(expected));
        let own = ProcessKey::of(std::process::id()).unwrap();
        let found = all(&devices);
        assert!(found.users.contains(&(own, expected)) && !found.others.contains(&own));
        drop(held);
    }

    #[test]
    fn of_a_process_with_very_many_descriptors_a_part_is_looked_at_and_the_rest_when_asked_for() {
        // The program opens the device behind all other descriptors.
        const CODE: &str = "import os, resource, sys\n\
            count = int(sys.argv[1])\n\
            resource.setrlimit(resource.RLIMIT_NOFILE, (2 * count, max(2 * count, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))\n\
            for _ in range(count): os.dup(0)\n\
            held = os.open('/dev/random', os.O_RDONLY)\n\
            print(flush=True)\n\
            sys.stdin.read()";
        let mut python = std::process::Command::new("python3");
        python.args(["-c", CODE, &GLANCE.to_string()]);
        python.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = python.spawn().unwrap();
        let mut line = String::new();
        let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        let devices = tun();
        let expected = Use { evidence: Evidence::Descriptor, is_compute: true };
        assert_eq!(glance(child.id(), &devices), Look { found: None, is_whole: false });
        assert_eq!(open(child.id(), &devices), Some(expected));
        let who = ProcessKey::of(child.id()).unwrap();
        let found = all(&devices);
        assert!(found.large.contains(&who) && found.others.contains(&who));
        let own = ProcessKey::of(std::process::id()).unwrap();
        assert!(!found.large.contains(&own) && glance(own.pid, &devices).is_whole);
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn a_process_is_described_by_its_name_and_user() {
        let own = describe(std::process::id());
        assert_eq!(own.uid, rustix::process::getuid().as_raw());
        assert_eq!(own.command, std::fs::read_to_string("/proc/self/comm").unwrap().trim_end());
        assert_eq!(
            parent(std::process::id()),
            rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get() as u32)
        );
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_shows_what_it_has_open() {
        const CODE: &str = "import ctypes, os, threading, time\n\
            held = os.open('/dev/random', os.O_RDONLY)\n\
            def go_on():\n\
            \x20time.sleep(0.1)\n\
            \x20print(flush=True)\n\
            \x20time.sleep(60)\n\
            threading.Thread(target=go_on).start()\n\
            ctypes.CDLL(None).pthread_exit(None)";
        let mut python = std::process::Command::new("python3");
        let mut child = python.args(["-c", CODE]).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        while !has_lost_its_leader(child.id()) {
            std::thread::yield_now();
        }
        let who = ProcessKey::of(child.id()).expect("it lives on");
        let expected = Use { evidence: Evidence::Descriptor, is_compute: true };
        assert_eq!(open(child.id(), &tun()), Some(expected));
        assert!(who.is_alive() && !is_dying(child.id()));
        child.kill().unwrap();
        while who.is_alive() {
            std::thread::yield_now();
        }
        assert!(is_dying(child.id()), "its threads are ending or have ended");
        assert_eq!(open(child.id(), &tun()), None, "dead, and not buried");
        child.wait().unwrap();
    }
}
