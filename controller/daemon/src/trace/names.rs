//! Names of NVIDIA's numbers: control commands, classes of objects, display commands and statuses.

use std::sync::LazyLock;

/// Names, in the order of their numbers.
pub struct Names(LazyLock<Vec<(u32, &'static str)>>);

/// The names of the resource manager's control commands.
pub static CONTROLS: Names = Names(LazyLock::new(|| read(include_str!("names/controls.txt"))));
/// The names of the classes of the resource manager's objects.
pub static CLASSES: Names = Names(LazyLock::new(|| read(include_str!("names/classes.txt"))));
/// The names of the commands for displays.
pub static DISPLAYS: Names = Names(LazyLock::new(|| read(include_str!("names/displays.txt"))));
/// The names of the driver's statuses.
pub static STATUSES: Names = Names(LazyLock::new(|| read(include_str!("names/statuses.txt"))));

impl Names {
    /// Returns the name of a number; `None` if the number is unknown.
    pub fn get(&self, number: u32) -> Option<&'static str> {
        let index = self.0.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        Some(self.0[index].1)
    }
}

fn read(text: &'static str) -> Vec<(u32, &'static str)> {
    let entry = |line: &'static str| {
        let (number, name) = line.split_once(' ')?;
        Some((u32::from_str_radix(number, 16).ok()?, name))
    };
    text.lines().filter(|line| !line.starts_with('#')).filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_names() {
        assert_eq!(CONTROLS.get(0x2080_0102), Some("NV2080_CTRL_CMD_GPU_GET_INFO_V2"));
        assert_eq!(CLASSES.get(0x80), Some("NV01_DEVICE_0"));
        assert_eq!(STATUSES.get(0x51), Some("NV_ERR_NO_MEMORY"));
        assert_eq!(STATUSES.get(0xdead), None);
        assert_eq!(DISPLAYS.get(0), Some("NVKMS_IOCTL_ALLOC_DEVICE"));
        assert_eq!(DISPLAYS.get(15), Some("NVKMS_IOCTL_FLIP"));
        assert_eq!(DISPLAYS.get(63), Some("NVKMS_IOCTL_FRAMEBUFFER_CONSOLE_DISABLED"));
        let displays: Vec<u32> = DISPLAYS.0.iter().map(|(number, _)| *number).collect();
        assert_eq!(displays, (0..64).collect::<Vec<_>>(), "an enumeration without gaps");
        for names in [&CONTROLS, &CLASSES, &STATUSES] {
            assert!(names.0.len() > 100 && names.0.is_sorted_by_key(|(number, _)| *number));
        }
    }
}
