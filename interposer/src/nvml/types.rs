//! The structures of NVML that hooks read and change, as its published header lays them out.

/// An opaque device.
pub type Device = *mut core::ffi::c_void;
/// What every call returns.
pub type Return = u32;

/// `NVML_SUCCESS`
pub const SUCCESS: Return = 0;
/// `NVML_ERROR_INSUFFICIENT_SIZE`
pub const INSUFFICIENT_SIZE: Return = 7;
/// `NVML_ERROR_FUNCTION_NOT_FOUND`
pub const FUNCTION_NOT_FOUND: Return = 13;

/// `nvmlMemory_t`
#[repr(C)]
pub struct Memory {
    pub total: u64,
    pub free: u64,
    pub used: u64,
}

/// `nvmlMemory_v2_t`
#[repr(C)]
pub struct MemoryV2 {
    pub version: u32,
    pub total: u64,
    pub reserved: u64,
    pub free: u64,
    pub used: u64,
}

/// `nvmlUtilization_t`, in percent.
#[repr(C)]
pub struct Utilization {
    pub gpu: u32,
    pub memory: u32,
}

/// `nvmlProcessInfo_v1_t`
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ProcessV1 {
    pub pid: u32,
    pub used: u64,
}

/// `nvmlProcessInfo_v2_t`, which the third version of the calls has too.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ProcessV2 {
    pub pid: u32,
    pub used: u64,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

/// `nvmlProcessUtilizationSample_t`
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Sample {
    pub pid: u32,
    pub at: u64,
    pub percent: [u32; 4],
}

/// `nvmlProcessDetail_v1_t`
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Detail {
    pub pid: u32,
    pub used: u64,
    pub gpu_instance: u32,
    pub compute_instance: u32,
    pub protected: u64,
}

/// `nvmlProcessDetailList_v1`: how the caller says which layout a list has.
pub const DETAIL_LIST_V1: u32 = 1 << 24 | size_of::<DetailList>() as u32;

/// `nvmlProcessDetailList_v1_t`
#[derive(Clone, Copy)]
#[repr(C)]
pub struct DetailList {
    pub version: u32,
    pub mode: u32,
    pub count: u32,
    pub list: *mut Detail,
}

/// `nvmlProcessUtilizationInfo_v1_t`
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UtilizationInfo {
    pub at: u64,
    pub pid: u32,
    pub percent: [u32; 6],
}

/// `nvmlProcessesUtilizationInfo_v1_t`
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UtilizationList {
    pub version: u32,
    pub count: u32,
    pub since: u64,
    pub list: *mut UtilizationInfo,
}

/// How the caller says which layout that has.
pub const UTILIZATION_LIST_V1: u32 = 1 << 24 | size_of::<UtilizationList>() as u32;

/// Something that is about one process.
pub trait OfProcess: Copy {
    /// Which.
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

of_process! {
    ProcessV1: 16;
    ProcessV2: 24;
    Sample: 32;
    Detail: 32;
    UtilizationInfo: 40;
}

const _: () = {
    assert!(size_of::<Memory>() == 24 && size_of::<MemoryV2>() == 40 && size_of::<Utilization>() == 8);
    assert!(size_of::<DetailList>() == 24 && size_of::<UtilizationList>() == 24);
};
