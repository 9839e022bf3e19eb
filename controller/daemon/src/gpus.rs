//! The GPUs of this host, as NVML lists them.

use deepres_abi::MAX_GPUS;
use deepres_abi::wire::Uuid;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use std::ffi::OsStr;

/// What the library is called at run time. The name without a version is for compilers, and on most machines absent.
const NVML_LIBRARY: &str = "libnvidia-ml.so.1";
/// What a GPU's UUID starts with.
const UUID_PREFIX: &str = "GPU-";
/// What the name of a GPU that is not real says.
const SIMULATED: &str = "simulated";

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Its UUID as text, `GPU-…`.
    pub uuid_text: String,
    /// Its UUID.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// It is not real.
    pub simulated: bool,
    /// Its memory, bytes.
    pub memory_bytes: u64,
}

/// Why there are no GPUs to manage.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// NVML is not there.
    #[error("cannot load {NVML_LIBRARY}, so no GPU can be found ({0}); is the NVIDIA driver installed?")]
    NoLibrary(NvmlError),
    /// NVML fails.
    #[error("NVML fails: {0}; does `nvidia-smi` work?")]
    Nvml(#[from] NvmlError),
    /// NVML lists none.
    #[error("this machine has no GPU")]
    None,
    /// NVML lists a GPU whose UUID is none.
    #[error("NVML gives a GPU the UUID `{0}`, which is none")]
    Uuid(String),
}

impl Gpu {
    /// A GPU with this UUID.
    ///
    /// # Errors
    /// [`GpuError::Uuid`] if that is none.
    pub fn new(uuid_text: &str, name: &str, memory_bytes: u64) -> Result<Self, GpuError> {
        let uuid = parse_uuid(uuid_text).ok_or_else(|| GpuError::Uuid(uuid_text.to_owned()))?;
        Ok(Self {
            uuid_text: uuid_text.to_owned(),
            uuid,
            name: name.to_owned(),
            simulated: name.to_ascii_lowercase().contains(SIMULATED),
            memory_bytes,
        })
    }

    /// All GPUs of the host, in NVML's order; as many as pages have room for.
    ///
    /// # Errors
    /// [`GpuError`], saying what is missing.
    pub fn all() -> Result<Vec<Self>, GpuError> {
        let nvml =
            Nvml::builder().lib_path(OsStr::new(NVML_LIBRARY)).init().map_err(|error| match error {
                NvmlError::LibloadingError(_) => GpuError::NoLibrary(error),
                other => GpuError::Nvml(other),
            })?;
        let count = nvml.device_count()?;
        if count == 0 {
            return Err(GpuError::None);
        }
        if count as usize > MAX_GPUS {
            tracing::warn!("this machine has {count} GPUs; the first {MAX_GPUS} are managed");
        }
        (0..count.min(MAX_GPUS as u32))
            .map(|index| {
                let device = nvml.device_by_index(index)?;
                Self::new(&device.uuid()?, &device.name()?, device.memory_info()?.total)
            })
            .collect()
    }
}

/// The bytes of `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`, in the order of its digits.
fn parse_uuid(text: &str) -> Option<Uuid> {
    let digits: String = text.strip_prefix(UUID_PREFIX)?.chars().filter(|digit| *digit != '-').collect();
    let mut uuid = Uuid::default();
    if digits.len() != 2 * uuid.len() || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, at) in uuid.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(digits.get(at..at + 2)?, 16).ok()?;
    }
    Some(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_read_in_the_order_of_its_digits() {
        let gpu = Gpu::new("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", "Simulated H200", 1).unwrap();
        assert_eq!(gpu.uuid, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        assert!(gpu.simulated);
    }

    #[test]
    fn what_is_no_uuid_is_refused() {
        for text in
            ["", "GPU-", "MIG-00010203-0405-0607-0809-0a0b0c0d0e0f", "GPU-éééééééé-0405-0607-0809-0a0b0c0d"]
        {
            assert!(matches!(Gpu::new(text, "x", 1), Err(GpuError::Uuid(_))), "{text}");
        }
    }
}
