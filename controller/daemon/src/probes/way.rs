//! How the kernel is asked to tell of ioctls: what it has, and what follows from that.
//!
//! The driver's own functions come first, since nobody else's calls pass them. Where they cannot be probed, or a try shows that
//! they are not passed, the tracepoints of ioctl follow, and the raw ones of all system calls are last.

use super::devices::Devices;
use deepres_abi::probe::Family;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Where the kernel says that probes at its functions can be had.
const KPROBES: &str = "/sys/bus/event_source/devices/kprobe";
/// The kernel's list of its functions.
const FUNCTIONS: &str = "/proc/kallsyms";

/// How the ends of ioctls are heard of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The driver's own ioctl functions: nothing else pays.
    DriverFunctions,
    /// The tracepoints of ioctl alone: other system calls pay little.
    Tracepoints,
    /// The raw tracepoints of all system calls: no tracing file system is needed.
    RawTracepoints,
}

impl Way {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::DriverFunctions => "driver functions",
            Self::Tracepoints => "tracepoints",
            Self::RawTracepoints => "raw tracepoints",
        }
    }
}

/// A way, and why it is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The way.
    pub way: Way,
    /// Why, and why none before it.
    pub why: String,
}

/// Where the kernel shows its modules.
const MODULES: &str = "/sys/module";
/// The driver's.
const DRIVERS: [&str; 3] = ["nvidia", "nvidia_uvm", "nvidia_modeset"];

/// The driver's modules as they are loaded. What is attached to a module's functions goes with the module: one that was loaded again has to be
/// probed again, also if its devices have the numbers that they had.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Modules(Vec<(&'static str, u64, i64)>);

impl Modules {
    /// Looks, where it matters: on a kernel whose functions can be probed.
    pub fn read() -> Self {
        if Path::new(KPROBES).exists() { Self::among(Path::new(MODULES)) } else { Self::default() }
    }

    fn among(folder: &Path) -> Self {
        // The folder is made anew with the module, and its number is not used again before all others were.
        let loaded = DRIVERS.into_iter().filter_map(|name| {
            let folder = std::fs::metadata(folder.join(name)).ok()?;
            Some((name, folder.ino(), folder.ctime_nsec()))
        });
        Self(loaded.collect())
    }
}

/// The driver's function that every ioctl of a family passes.
///
/// As NVIDIA's published open-gpu-kernel-modules, release 595.45.04, have them: `nv.c`, `uvm.c`, `nvidia-modeset-linux.c`.
pub fn function(family: Family) -> Option<&'static str> {
    match family {
        Family::Rm => Some("nvidia_unlocked_ioctl"),
        Family::Uvm => Some("uvm_unlocked_ioctl_entry"),
        Family::Modeset => Some("nvkms_unlocked_ioctl"),
        Family::Other => None,
    }
}

/// What the choice depends on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The kernel lets probes be put to its functions.
    pub has_kprobes: bool,
    /// The configuration names other devices than NVIDIA's: their ioctls pass other functions.
    pub are_stand_ins: bool,
    /// The driver's functions that the kernel lists.
    pub functions: BTreeSet<&'static str>,
    /// The families that are watched.
    pub families: Vec<Family>,
}

impl Facts {
    /// Looks.
    pub fn read(devices: &Devices) -> Self {
        let has_kprobes = Path::new(KPROBES).exists();
        let families = devices.families();
        let wanted: Vec<&'static str> = families.iter().filter_map(|family| function(*family)).collect();
        // A long list, which is read only where it matters.
        let functions = if has_kprobes { listed(&wanted) } else { BTreeSet::new() };
        Self { has_kprobes, are_stand_ins: devices.are_stand_ins(), functions, families }
    }

    /// Why the driver's functions cannot be probed.
    fn obstacle(&self) -> Option<String> {
        if !self.has_kprobes {
            return Some("this kernel lets no probes be put to its functions (CONFIG_KPROBES)".to_owned());
        }
        if self.are_stand_ins {
            return Some("the configuration names devices that are not the driver's".to_owned());
        }
        // Without its module, which few compute hosts load, there is nothing to see of displays.
        let needed = self.families.iter().filter(|family| **family != Family::Modeset);
        let wanted = needed.filter_map(|family| function(*family));
        let missing: Vec<&str> = wanted.filter(|name| !self.functions.contains(name)).collect();
        if self.functions.is_empty() {
            return Some("the driver is not loaded".to_owned());
        }
        (!missing.is_empty()).then(|| format!("the kernel lists no {}", missing.join(", ")))
    }

    /// The functions to probe.
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

/// The ways to try, best first.
pub fn choices(facts: &Facts) -> Vec<Choice> {
    let mut choices = Vec::new();
    let obstacle = facts.obstacle();
    if obstacle.is_none() {
        let why = "the driver's functions can be probed, and nothing else passes them".to_owned();
        choices.push(Choice { way: Way::DriverFunctions, why });
    }
    let tracepoints = match obstacle {
        Some(obstacle) => format!("not the driver's functions: {obstacle}"),
        None => "of what serves everywhere they cost other system calls least".to_owned(),
    };
    choices.push(Choice { way: Way::Tracepoints, why: tracepoints });
    choices.push(Choice { way: Way::RawTracepoints, why: "they are there on every kernel".to_owned() });
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

    fn first(facts: &Facts) -> (Way, String) {
        let mut choices = choices(facts);
        assert_eq!(choices.last().map(|choice| choice.way), Some(Way::RawTracepoints));
        assert!(choices.iter().any(|choice| choice.way == Way::Tracepoints));
        let Choice { way, why } = choices.swap_remove(0);
        (way, why)
    }

    #[test]
    fn the_drivers_own_functions_come_first_where_each_of_them_can_be_probed() {
        assert_eq!(first(&driver()).0, Way::DriverFunctions);
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
        // Whatever has the number of the one that is gone.
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
            let (way, why) = first(&facts);
            assert!(way == Way::Tracepoints && why.contains(reason), "{why}");
        }
    }
}
