//! Finds the GPU's devices: NVIDIA's devices in /proc/devices, or the devices that the
//! configuration names.

use deepres_abi::probe::{Family, MAX_WATCHES, MINOR_MASK, Watch, device, major};
use deepres_model::config::DeviceKey;
use std::collections::BTreeSet;
use std::fmt;

/// The kernel's list of device numbers.
const DEVICES: &str = "/proc/devices";
/// Beginning of the second half of /proc/devices.
const BLOCK_DEVICES: &str = "\nBlock devices:";
/// Prefix of the names of NVIDIA's devices.
const NVIDIA: &str = "nvidia";
/// Minor number of /dev/nvidia-modeset, which shares the GPUs' major number.
const MODESET_MINOR: u32 = 254;

/// The devices whose ioctls the daemon watches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Devices {
    watches: Vec<(String, Watch)>,
    /// Whether the configuration names some of the devices by number.
    are_stand_ins: bool,
    /// Whether a block device has the major number of a watched device.
    have_twins: bool,
}

impl Devices {
    /// Returns the devices that `keys` name; NVIDIA's devices if there are no keys.
    pub fn find(keys: &[DeviceKey]) -> Self {
        Self::among(keys, &std::fs::read_to_string(DEVICES).unwrap_or_default())
    }

    fn among(keys: &[DeviceKey], listed: &str) -> Self {
        let (of_characters, of_blocks) = listed.split_once(BLOCK_DEVICES).unwrap_or((listed, ""));
        let [listed, blocks] = [of_characters, of_blocks].map(|text| {
            text.lines().filter_map(|line| {
                let (number, name) = line.trim().split_once(' ')?;
                Some((number.parse::<u32>().ok()?, name.trim()))
            })
        });
        let mut watches = Vec::new();
        if keys.is_empty() {
            for (major, name) in listed.filter(|(_, name)| name.starts_with(NVIDIA)) {
                add(&mut watches, name, major, None);
            }
        } else {
            let listed: Vec<_> = listed.collect();
            for key in keys {
                match key.number {
                    Some((major, minor)) => add(&mut watches, &key.name, major, minor),
                    None => {
                        for (major, _) in listed.iter().filter(|(_, name)| *name == key.name) {
                            add(&mut watches, &key.name, *major, None);
                        }
                    }
                }
            }
        }
        // Entries for a single device come first, because they are more specific.
        watches.sort_by_key(|(_, watch)| (std::cmp::Reverse(watch.mask), watch.value));
        watches.dedup_by_key(|(_, watch)| (watch.mask, watch.value));
        if watches.len() > MAX_WATCHES {
            tracing::warn!(
                "{} kinds of devices are to be watched; the first {MAX_WATCHES} are",
                watches.len()
            );
            watches.truncate(MAX_WATCHES);
        }
        let blocks: BTreeSet<u32> = blocks.map(|(number, _)| number).collect();
        let have_twins = watches.iter().any(|(_, watch)| blocks.contains(&major(watch.value)));
        Self { watches, are_stand_ins: keys.iter().any(|key| key.number.is_some()), have_twins }
    }

    /// Returns a set without devices.
    pub fn none() -> Self {
        Self { watches: Vec::new(), are_stand_ins: false, have_twins: false }
    }

    /// Returns whether there is nothing to watch.
    pub fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    /// Returns whether the configuration names some devices by number. These devices can belong to
    /// another driver.
    pub fn are_stand_ins(&self) -> bool {
        self.are_stand_ins
    }

    /// Returns whether block devices can have the same numbers. Block devices are other devices.
    pub fn have_twins(&self) -> bool {
        self.have_twins
    }

    /// Returns the families of the devices, each once.
    pub fn families(&self) -> Vec<Family> {
        let families = self.watches.iter().map(|(_, watch)| Family::from_u32(watch.family));
        families.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns the devices in the form of the eBPF programs.
    pub fn table(&self) -> [Watch; MAX_WATCHES] {
        let mut table = [Watch::NOTHING; MAX_WATCHES];
        for (place, (_, watch)) in table.iter_mut().zip(&self.watches) {
            *place = *watch;
        }
        table
    }

    /// Returns the family of the device with this number; `None` if the daemon does not watch the
    /// device.
    pub fn family(&self, major: u32, minor: u32) -> Option<Family> {
        let number = device(major, minor);
        let watch = self.watches.iter().find(|(_, watch)| number & watch.mask == watch.value);
        watch.map(|(_, watch)| Family::from_u32(watch.family))
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.watches.iter().map(|(name, _)| name.as_str()).collect();
        f.write_str(&names.join(", "))
    }
}

fn add(watches: &mut Vec<(String, Watch)>, name: &str, major: u32, minor: Option<u32>) {
    let family = match name {
        "nvidia" | "nvidiactl" | "nvidia-frontend" => Family::Rm,
        "nvidia-uvm" => Family::Uvm,
        "nvidia-modeset" => Family::Modeset,
        _ => Family::Other,
    };
    let minor = minor.or((family == Family::Modeset).then_some(MODESET_MINOR));
    let mask = if minor.is_some() { u32::MAX } else { !MINOR_MASK };
    let watch = Watch { value: device(major, minor.unwrap_or(0)), mask, family: family as u32 };
    watches.push((name.to_owned(), watch));
    if family == Family::Rm && minor.is_none() {
        // Some driver versions do not list the modeset device separately in /proc/devices.
        let modeset =
            Watch { value: device(major, MODESET_MINOR), mask: u32::MAX, family: Family::Modeset as u32 };
        watches.push(("nvidia-modeset".to_owned(), modeset));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n195 nvidia-modeset\n238 nvidia-caps\n241 nvidia-uvm\n\nBlock devices:\n195 nvidia-block\n";

    fn key(text: &str) -> DeviceKey {
        text.parse().unwrap()
    }

    #[test]
    fn nvidias_devices_are_found_by_name_whatever_their_numbers() {
        let devices = Devices::among(&[], LISTED);
        assert_eq!(devices.family(195, 0), Some(Family::Rm));
        assert_eq!(devices.family(195, 255), Some(Family::Rm));
        assert_eq!(devices.family(195, 254), Some(Family::Modeset));
        assert_eq!(devices.family(241, 0), Some(Family::Uvm));
        assert_eq!(devices.family(238, 7), Some(Family::Other));
        assert_eq!(devices.family(1, 3), None);
        assert!(Devices::among(&[], "Character devices:\n  1 mem\n").is_empty());
    }

    #[test]
    fn block_devices_are_none_of_them_and_those_with_the_same_number_are_known() {
        let devices = Devices::among(&[], LISTED);
        assert!(devices.have_twins() && !devices.watches.iter().any(|(name, _)| name == "nvidia-block"));
        let without = Devices::among(&[], &LISTED.replace("195 nvidia-block", "  7 loop"));
        assert!(!without.have_twins() && without != devices, "the watched devices differ then");
        assert!(
            Devices::among(&[key("nvidia=7")], "Character devices:\n\nBlock devices:\n  7 loop\n")
                .have_twins()
        );
        assert!(!Devices::among(&[key("nvidia=7")], "").have_twins());
    }

    #[test]
    fn a_configuration_may_name_a_device_by_its_number() {
        let devices = Devices::among(&[key("nvidia-uvm=10:200"), key("nvidia=10")], LISTED);
        assert_eq!(devices.family(10, 200), Some(Family::Uvm));
        assert_eq!(devices.family(10, 1), Some(Family::Rm));
        assert_eq!(devices.family(241, 0), None);
        let devices = Devices::among(&[key("nvidia-caps")], LISTED);
        assert_eq!((devices.family(238, 1), devices.family(195, 0)), (Some(Family::Other), None));
    }
}
