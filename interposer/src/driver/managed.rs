//! Driver calls of deepres about managed memory: allocation, moves to a GPU or to the host, and the
//! free memory.

use std::ptr::null_mut;

use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::driver::types::{
    CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, CU_DEVICE_CPU, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
    CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, CU_MEM_ATTACH_GLOBAL, CU_MEM_LOCATION_TYPE_DEVICE,
    CU_MEM_LOCATION_TYPE_HOST, CU_STREAM_NON_BLOCKING, CUdevice, CUmemLocation,
};

use super::calls::Stream;
use super::real;

/// The place to which the driver moves managed memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Location {
    /// The GPU with this ordinal.
    Gpu(usize),
    /// The memory of the host.
    Host,
}

impl Location {
    fn device(self) -> CUdevice {
        match self {
            Self::Gpu(ordinal) => i32::try_from(ordinal).unwrap_or(i32::MAX),
            Self::Host => CU_DEVICE_CPU,
        }
    }

    fn described(self) -> CUmemLocation {
        match self {
            Self::Gpu(_) => CUmemLocation { r#type: CU_MEM_LOCATION_TYPE_DEVICE, id: self.device() },
            Self::Host => CUmemLocation { r#type: CU_MEM_LOCATION_TYPE_HOST, id: 0 },
        }
    }
}

/// Returns whether managed memory moves to a GPU and back by pages, so that a process can have more
/// of it than the GPU has. Returns `None` if the driver does not answer.
pub fn migrates(ordinal: usize) -> Option<bool> {
    let (get, device) = real!(cuDeviceGetAttribute).zip(i32::try_from(ordinal).ok())?;
    let mut value = 0;
    // SAFETY: the result has room; the driver checks the ordinal.
    let result = unsafe { get(&mut value, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, device) };
    (result == CUDA_SUCCESS).then_some(value != 0)
}

/// Returns the size of a GPU's memory, bytes, as the driver itself reports it.
pub fn total_bytes(ordinal: usize) -> Option<u64> {
    let (get, device) = real!(cuDeviceTotalMem_v2).zip(i32::try_from(ordinal).ok())?;
    let mut bytes = 0;
    // SAFETY: the result has room; the driver checks the ordinal.
    let result = unsafe { get(&mut bytes, device) };
    (result == CUDA_SUCCESS).then_some(bytes as u64)
}

/// Returns the free memory on the current context's GPU, bytes, as the driver itself reports it.
pub fn free_bytes() -> Option<u64> {
    let get = real!(cuMemGetInfo_v2)?;
    let (mut free, mut total) = (0, 0);
    // SAFETY: both results have room.
    let result = unsafe { get(&mut free, &mut total) };
    (result == CUDA_SUCCESS).then_some(free as u64)
}

/// Allocates managed memory in the current context, which any stream may use. Returns the driver's
/// result and the address. Returns `None` if the driver lacks the function.
pub fn allocate(bytes: u64) -> Option<(u32, Option<u64>)> {
    let allocate = real!(cuMemAllocManaged)?;
    let mut address = 0;
    // SAFETY: the result has room.
    let result = unsafe { allocate(&mut address, bytes as usize, CU_MEM_ATTACH_GLOBAL) };
    Some((result, (result == CUDA_SUCCESS).then_some(address)))
}

/// Waits for all work on `stream`, and then frees the memory at `address`. Returns the driver's
/// result, or `None` if the driver lacks a function. The driver cannot free managed memory in
/// stream order.
pub fn free_behind(stream: Stream, address: u64) -> Option<u32> {
    let (wait, free) = real!(cuStreamSynchronize).zip(real!(cuMemFree_v2))?;
    // SAFETY: the driver checks the stream.
    let waited = unsafe { wait(stream.0 as *mut _) };
    // SAFETY: the driver checks the address.
    Some(if waited == CUDA_SUCCESS { unsafe { free(address) } } else { waited })
}

/// Creates a stream of the current context that waits for no other stream.
pub fn stream() -> Option<Stream> {
    let create = real!(cuStreamCreate)?;
    let mut stream = null_mut();
    // SAFETY: the result has room.
    let result = unsafe { create(&mut stream, CU_STREAM_NON_BLOCKING) };
    (result == CUDA_SUCCESS && !stream.is_null()).then_some(Stream(stream as usize))
}

/// Tells the driver whether a GPU is the memory's preferred location.
pub fn prefer(address: u64, bytes: u64, ordinal: usize, is_preferred: bool) {
    let advice = match is_preferred {
        true => CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
        false => CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION,
    };
    let gpu = Location::Gpu(ordinal);
    // Nothing depends on the advice, so the driver may refuse it.
    if let Some(advise) = real!(cuMemAdvise_v2) {
        // SAFETY: the driver checks the range.
        unsafe { advise(address, bytes as usize, advice, gpu.described()) };
    } else if let Some(advise) = real!(cuMemAdvise) {
        // SAFETY: the driver checks the range.
        unsafe { advise(address, bytes as usize, advice, gpu.device()) };
    }
}

/// Moves memory to `location` in the order of `stream`. Returns whether the driver accepted the
/// call.
pub fn prefetch(address: u64, bytes: u64, location: Location, stream: Stream) -> bool {
    let (bytes, stream) = (bytes as usize, stream.0 as *mut _);
    // `cuMemPrefetchAsync_v2` came with CUDA 12.2. Older drivers have only the first version.
    if let Some(prefetch) = real!(cuMemPrefetchAsync_v2) {
        // SAFETY: the stream belongs to deepres, and the driver checks the range.
        unsafe { prefetch(address, bytes, location.described(), 0, stream) == CUDA_SUCCESS }
    } else if let Some(prefetch) = real!(cuMemPrefetchAsync) {
        // SAFETY: the stream belongs to deepres, and the driver checks the range.
        unsafe { prefetch(address, bytes, location.device(), stream) == CUDA_SUCCESS }
    } else {
        false
    }
}
