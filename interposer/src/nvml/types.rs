//! The structures of NVML that hooks read and change. The layouts follow NVIDIA's published header.

/// A device, whose content only NVML knows.
pub type Device = *mut core::ffi::c_void;
/// The return code of every call.
pub type Return = u32;

/// `NVML_SUCCESS`: NVML did as the caller asked.
pub const SUCCESS: Return = 0;
/// `NVML_ERROR_NOT_FOUND`: NVML has no such entry.
pub const NOT_FOUND: Return = 6;
/// `NVML_ERROR_INSUFFICIENT_SIZE`: the caller's list is too short.
pub const INSUFFICIENT_SIZE: Return = 7;
/// `NVML_ERROR_FUNCTION_NOT_FOUND`: the library lacks the function.
pub const FUNCTION_NOT_FOUND: Return = 13;

/// `nvmlMemory_t`: the memory of a GPU, bytes.
#[repr(C)]
pub struct Memory {
    pub total: u64,
    pub free: u64,
    pub used: u64,
}

/// `nvmlMemory_v2_t`: the memory of a GPU, bytes, with the reserved part apart.
#[repr(C)]
pub struct MemoryV2 {
    pub version: u32,
    pub total: u64,
    pub reserved: u64,
    pub free: u64,
    pub used: u64,
}

/// `nvmlUtilization_t`: how busy a GPU and its memory are, percent.
#[repr(C)]
pub struct Utilization {
    pub gpu: u32,
    pub memory: u32,
}

/// `nvmlProcessInfo_v1_t`: a process on a GPU, and the memory that it uses.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ProcessV1 {
    pub pid: u32,
    pub used: u64,
}

/// `nvmlProcessInfo_v2_t`: a process on a GPU. The third version of the calls uses this struct too.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ProcessV2 {
    pub pid: u32,
    pub used: u64,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

/// `NVML_GPU_UTILIZATION_SAMPLES`: samples of how busy a GPU is.
pub const GPU_UTILIZATION_SAMPLES: u32 = 1;
/// `NVML_MEMORY_UTILIZATION_SAMPLES`: samples of how busy a GPU's memory is.
pub const MEMORY_UTILIZATION_SAMPLES: u32 = 2;
/// `NVML_VALUE_TYPE_UNSIGNED_INT`: a sample's value is an unsigned int.
const UNSIGNED_INT: u32 = 1;
/// `NVML_VALUE_TYPE_UNSIGNED_LONG`: a sample's value is an unsigned long.
const UNSIGNED_LONG: u32 = 2;
/// `NVML_VALUE_TYPE_UNSIGNED_LONG_LONG`: a sample's value is an unsigned long long.
const UNSIGNED_LONG_LONG: u32 = 3;

/// `nvmlSample_t`: a time and a value. NVML reports the value's type beside the list.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Sample {
    pub at: u64,
    value: u64,
}

impl Sample {
    /// If `kind` is a type that utilisation samples have, replaces the value by `scaled` of the
    /// value.
    pub fn scale(&mut self, kind: u32, scaled: impl Fn(u64) -> u64) {
        /// The bits of the union that an unsigned int does not use.
        const UNUSED: u64 = !(u32::MAX as u64);
        match kind {
            UNSIGNED_INT => {
                self.value = self.value & UNUSED | scaled(self.value & !UNUSED) & !UNUSED;
            }
            UNSIGNED_LONG | UNSIGNED_LONG_LONG => self.value = scaled(self.value),
            _ => (),
        }
    }
}

/// `nvmlProcessUtilizationSample_t`: the utilisation of a GPU by a process at a time.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ProcessSample {
    pub pid: u32,
    pub at: u64,
    pub percent: [u32; 4],
}

/// `nvmlProcessDetail_v1_t`: a process on a GPU, in a list of processes with details.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Detail {
    pub pid: u32,
    pub used: u64,
    pub gpu_instance: u32,
    pub compute_instance: u32,
    pub protected: u64,
}

/// The version by which a caller names the layout of [`DetailList`].
pub const DETAIL_LIST_V1: u32 = 1 << 24 | size_of::<DetailList>() as u32;

/// `nvmlProcessDetailList_v1_t`: a list of processes on a GPU, with details.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct DetailList {
    pub version: u32,
    pub mode: u32,
    pub count: u32,
    pub list: *mut Detail,
}

/// `nvmlProcessUtilizationInfo_v1_t`: the utilisation of a GPU's engines by a process at a time.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UtilizationInfo {
    pub at: u64,
    pub pid: u32,
    pub percent: [u32; 6],
}

/// `nvmlProcessesUtilizationInfo_v1_t`: a list of [`UtilizationInfo`] since a time.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UtilizationList {
    pub version: u32,
    pub count: u32,
    pub since: u64,
    pub list: *mut UtilizationInfo,
}

/// The version by which a caller names the layout of [`UtilizationList`].
pub const UTILIZATION_LIST_V1: u32 = 1 << 24 | size_of::<UtilizationList>() as u32;

/// An element of an NVML list in which each element is about one process.
pub trait OfProcess: Copy {
    /// Returns the process's pid.
    fn pid(&self) -> u32;
}

macro_rules! of_process {
    ($($type:ty: $bytes:literal;)+) => {$(
        const _: () = assert!(size_of::<$type>() == $bytes);
        impl OfProcess for $type {
            fn pid(&self) -> u32 {
                self.pid
            }
        }
    )+};
}

/// An accounting list contains only pids.
impl OfProcess for u32 {
    fn pid(&self) -> u32 {
        *self
    }
}

of_process! {
    ProcessV1: 16;
    ProcessV2: 24;
    ProcessSample: 32;
    Detail: 32;
    UtilizationInfo: 40;
}

const _: () = {
    assert!(size_of::<Memory>() == 24 && size_of::<MemoryV2>() == 40 && size_of::<Utilization>() == 8);
    assert!(size_of::<DetailList>() == 24 && size_of::<UtilizationList>() == 24);
    assert!(size_of::<Sample>() == 16);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_scaled_as_what_it_is_and_left_alone_where_that_is_not_known() {
        let scaled = |kind| {
            let mut sample = Sample { at: 7, value: 0xffff_ffff_0000_0050 };
            sample.scale(kind, |value| value / 2);
            assert_eq!(sample.at, 7);
            sample.value
        };
        assert_eq!(scaled(UNSIGNED_INT), 0xffff_ffff_0000_0028);
        assert_eq!(scaled(UNSIGNED_LONG), 0x7fff_ffff_8000_0028);
        assert_eq!(scaled(UNSIGNED_LONG_LONG), 0x7fff_ffff_8000_0028);
        let double = 0;
        assert_eq!(scaled(double), 0xffff_ffff_0000_0050);
    }
}
