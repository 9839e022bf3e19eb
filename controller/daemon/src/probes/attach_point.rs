//! Chooses where the daemon attaches the probes that see ioctls.
//!
//! The daemon prefers the driver's own functions, because no other calls pass them. If the daemon
//! cannot probe these functions, or if a test shows that ioctls do not pass them, the daemon takes
//! the tracepoints of ioctl. The last choice is the raw tracepoints of all system calls.

use super::devices::Devices;
use deepres_abi::probe::Family;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The file that exists if the kernel allows probes at its functions.
const KPROBES: &str = "/sys/bus/event_source/devices/kprobe";
/// The kernel's list of its functions.
const FUNCTIONS: &str = "/proc/kallsyms";

/// A place in the kernel at which the daemon attaches the probes that see ioctls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachPoint {
    /// The probes are on the driver's own ioctl functions. They slow down no other call.
    DriverFunctions,
    /// The probes are on the tracepoints of ioctl. They slow down other system calls only a little.
    Tracepoints,
    /// The probes are on the raw tracepoints of all system calls. They need no tracing file system.
    RawTracepoints,
}

impl AttachPoint {
    /// Returns the name, as the status and the log show it.
    pub fn name(self) -> &'static str {
        match self {
            Self::DriverFunctions => "driver functions",
            Self::Tracepoints => "tracepoints",
            Self::RawTracepoints => "raw tracepoints",
        }
    }
}

/// An attach point, and the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Where the daemon attaches the probes.
    pub point: AttachPoint,
    /// Why the daemon did not choose a better attach point.
    pub why: String,
}

/// The kernel's folder of loaded modules.
const MODULES: &str = "/sys/module";
/// The driver's modules.
const DRIVERS: [&str; 3] = ["nvidia", "nvidia_uvm", "nvidia_modeset"];

/// Identity of the driver's loaded modules. When the kernel unloads a module, the probes at its
/// functions end. So a module that was loaded again needs new probes, even if its devices have the
/// same numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Modules(Vec<(&'static str, u64, i64)>);

impl Modules {
    /// Returns the loaded modules. If the kernel allows no probes at its functions, the modules do
    /// not matter, and the result is empty.
    pub fn read() -> Self {
        if Path::new(KPROBES).exists() { Self::among(Path::new(MODULES)) } else { Self::default() }
    }

    fn among(folder: &Path) -> Self {
        // When the kernel loads a module, it makes a new folder. The kernel reuses the inode number
        // of the old folder only after all other numbers.
        let loaded = DRIVERS.into_iter().filter_map(|name| {
            let folder = std::fs::metadata(folder.join(name)).ok()?;
            Some((name, folder.ino(), folder.ctime_nsec()))
        });
        Self(loaded.collect())
    }
}

/// Returns the driver's function that every ioctl of a family passes; `None` for an unknown family.
///
/// Source: NVIDIA's open-gpu-kernel-modules, release 595.45.04: `nv.c`, `uvm.c`,
/// `nvidia-modeset-linux.c`.
pub fn function(family: Family) -> Option<&'static str> {
    match family {
        Family::Rm => Some("nvidia_unlocked_ioctl"),
        Family::Uvm => Some("uvm_unlocked_ioctl_entry"),
        Family::Modeset => Some("nvkms_unlocked_ioctl"),
        Family::Other => None,
    }
}

/// The facts on which the choice of the attach point depends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Whether the kernel allows probes at its functions.
    pub has_kprobes: bool,
    /// Whether the configuration names devices of other drivers. The ioctls of such devices pass
    /// other functions.
    pub are_stand_ins: bool,
    /// The driver's functions that the kernel lists.
    pub functions: BTreeSet<&'static str>,
    /// The watched families.
    pub families: Vec<Family>,
}

impl Facts {
    /// Reads the facts on this machine, for these devices.
    pub fn read(devices: &Devices) -> Self {
        let has_kprobes = Path::new(KPROBES).exists();
        let families = devices.families();
        let wanted: Vec<&'static str> = families.iter().filter_map(|family| function(*family)).collect();
        // The list is long, so the function reads it only if it matters.
        let functions = if has_kprobes { listed(&wanted) } else { BTreeSet::new() };
        Self { has_kprobes, are_stand_ins: devices.are_stand_ins(), functions, families }
    }

    /// Returns the reason for which the daemon cannot probe the driver's functions; `None` if the
    /// daemon can probe them.
    fn obstacle(&self) -> Option<String> {
        if !self.has_kprobes {
            return Some("this kernel has no probes for its functions (CONFIG_KPROBES)".to_owned());
        }
        if self.are_stand_ins {
            return Some("the configuration names devices that are not the driver's".to_owned());
        }
        // The modeset module can be missing, because few compute hosts load it. Without the module,
        // no process makes display calls.
        let needed = self.families.iter().filter(|family| **family != Family::Modeset);
        let wanted = needed.filter_map(|family| function(*family));
        let missing: Vec<&str> = wanted.filter(|name| !self.functions.contains(name)).collect();
        if self.functions.is_empty() {
            return Some("the driver is not loaded".to_owned());
        }
        (!missing.is_empty()).then(|| format!("the kernel lists no {}", missing.join(", ")))
    }

    /// Returns the driver's functions for the watched families that the kernel lists.
    pub fn targets(&self) -> impl Iterator<Item = &'static str> {
        self.functions.iter().copied()
    }
}

fn listed(wanted: &[&'static str]) -> BTreeSet<&'static str> {
    let Ok(file) = std::fs::File::open(FUNCTIONS) else { return BTreeSet::new() };
    let lines = BufReader::new(file).lines().map_while(Result::ok);
    lines
        .filter_map(|line| {
            let name = line.split_ascii_whitespace().nth(2)?;
            wanted.iter().copied().find(|wanted| *wanted == name)
        })
        .collect()
}

/// Returns the attach points to try, the best first.
pub fn choices(facts: &Facts) -> Vec<Choice> {
    let mut choices = Vec::new();
    let obstacle = facts.obstacle();
    if obstacle.is_none() {
        let why = "only calls of GPU devices reach the driver's functions".to_owned();
        choices.push(Choice { point: AttachPoint::DriverFunctions, why });
    }
    let tracepoints = match obstacle {
        Some(obstacle) => format!("not the driver's functions: {obstacle}"),
        None => {
            "tracepoints slow other system calls the least of the ways that work on every host".to_owned()
        }
    };
    choices.push(Choice { point: AttachPoint::Tracepoints, why: tracepoints });
    choices.push(Choice {
        point: AttachPoint::RawTracepoints,
        why: "every kernel has raw tracepoints".to_owned(),
    });
    choices
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver() -> Facts {
        Facts {
            has_kprobes: true,
            are_stand_ins: false,
            functions: ["nvidia_unlocked_ioctl", "uvm_unlocked_ioctl_entry"].into(),
            families: vec![Family::Rm, Family::Uvm, Family::Modeset, Family::Other],
        }
    }

    fn first(facts: &Facts) -> (AttachPoint, String) {
        let mut choices = choices(facts);
        assert_eq!(choices.last().map(|choice| choice.point), Some(AttachPoint::RawTracepoints));
        assert!(choices.iter().any(|choice| choice.point == AttachPoint::Tracepoints));
        let Choice { point, why } = choices.swap_remove(0);
        (point, why)
    }

    #[test]
    fn the_drivers_own_functions_come_first_where_each_of_them_can_be_probed() {
        assert_eq!(first(&driver()).0, AttachPoint::DriverFunctions);
        assert_eq!(driver().targets().count(), 2);
    }

    #[test]
    fn a_module_that_was_loaded_again_is_another_and_one_that_stayed_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let module = |name: &str| folder.path().join(name);
        assert_eq!(Modules::among(folder.path()), Modules::default());
        std::fs::create_dir(module("nvidia")).unwrap();
        let before = Modules::among(folder.path());
        std::fs::create_dir(module("loop")).unwrap();
        assert_eq!(Modules::among(folder.path()), before, "somebody else's");
        // The renamed folder keeps its inode number.
        std::fs::rename(module("nvidia"), module("gone")).unwrap();
        assert_ne!(Modules::among(folder.path()), before);
        std::fs::create_dir(module("nvidia")).unwrap();
        let again = Modules::among(folder.path());
        assert_ne!(again, before);
        std::fs::create_dir(module("nvidia_uvm")).unwrap();
        assert_ne!(Modules::among(folder.path()), again, "a part of the driver that came later");
    }

    #[test]
    fn without_one_of_them_the_tracepoints_come_first_and_the_reason_is_said() {
        for (facts, reason) in [
            (Facts { has_kprobes: false, ..driver() }, "CONFIG_KPROBES"),
            (Facts { are_stand_ins: true, ..driver() }, "configuration"),
            (Facts { functions: BTreeSet::new(), ..driver() }, "not loaded"),
            (Facts { functions: ["nvidia_unlocked_ioctl"].into(), ..driver() }, "uvm_unlocked_ioctl_entry"),
        ] {
            let (point, why) = first(&facts);
            assert!(point == AttachPoint::Tracepoints && why.contains(reason), "{why}");
        }
    }
}
