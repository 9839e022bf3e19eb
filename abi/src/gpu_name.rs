//! The names of GPUs: their UUIDs as NVML writes them.

use crate::wire::Uuid;
use core::fmt;

/// The prefix of a GPU's name.
const GPU_PREFIX: &str = "GPU-";
/// The prefix of a MIG device's name. A MIG device is a GPU of its own to deepres.
const MIG_PREFIX: &str = "MIG-";
/// The bytes of a UUID before which a dash stands.
const DASHED: [usize; 4] = [4, 6, 8, 10];

/// The name of a GPU: `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`, or `MIG-…` for a MIG device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuName {
    /// The UUID.
    pub uuid: Uuid,
    /// Whether the GPU is a MIG device.
    pub is_mig: bool,
}

impl GpuName {
    /// Reads a name. Returns `None` if the text is malformed. Drivers before release 470 name MIG
    /// devices in another form, which is malformed too.
    pub fn parse(text: &str) -> Option<Self> {
        let of = |prefix| text.strip_prefix(prefix);
        let (digits, is_mig) =
            of(GPU_PREFIX).map(|digits| (digits, false)).or_else(|| Some((of(MIG_PREFIX)?, true)))?;
        let mut digits = digits.chars().filter(|digit| *digit != '-').map(|digit| digit.to_digit(16));
        let mut uuid = Uuid::default();
        for byte in &mut uuid {
            let (high, low) = (digits.next()??, digits.next()??);
            *byte = u8::try_from(high << 4 | low).ok()?;
        }
        digits.next().is_none().then_some(Self { uuid, is_mig })
    }
}

impl fmt::Display for GpuName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_mig { MIG_PREFIX } else { GPU_PREFIX })?;
        for (place, byte) in self.uuid.iter().enumerate() {
            let dash = if DASHED.contains(&place) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_in_the_order_of_its_digits_and_written_back() {
        let uuid = [0, 0x11, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xff];
        for (prefix, is_mig) in [("GPU", false), ("MIG", true)] {
            let text = format!("{prefix}-00110203-0405-0607-0809-0a0b0c0d0eff");
            let name = GpuName::parse(&text).unwrap();
            assert_eq!(name, GpuName { uuid, is_mig });
            assert_eq!(name.to_string(), text);
        }
    }

    #[test]
    fn a_text_that_is_no_name_is_refused() {
        for text in [
            "",
            "GPU-",
            "GPU-0011",
            "GPU-00110203-0405-0607-0809-0a0b0c0d0eff0",
            "GPU-0011020x-0405-0607-0809-0a0b0c0d0eff",
            "GPU-éééééééé-0405-0607-0809-0a0b0c0d",
            "00110203-0405-0607-0809-0a0b0c0d0eff",
            "MIG-GPU-00110203-0405-0607-0809-0a0b0c0d0eff/1/0",
        ] {
            assert_eq!(GpuName::parse(text), None, "{text}");
        }
    }
}
