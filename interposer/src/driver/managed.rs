//! What deepres asks the driver about managed memory: to have some, to bring it to a GPU and to the host, and what there is room for.

use std::ptr::null_mut;

use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::driver::types::{
    CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, CU_DEVICE_CPU, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
    CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, CU_MEM_ATTACH_GLOBAL, CU_MEM_LOCATION_TYPE_DEVICE,
    CU_MEM_LOCATION_TYPE_HOST, CU_STREAM_NON_BLOCKING, CUdevice, CUmemLocation,
};

use super::calls::Stream;
use super::real;

/// Where memory is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Location {
    /// On the GPU of that ordinal.
    Gpu(usize),
    /// On the host.
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

/// Whether managed memory moves to a GPU and back by pages, so that there can be more of it than the GPU has. `None`: the driver does not say.
pub fn migrates(ordinal: usize) -> Option<bool> {
    let (get, device) = real!(cuDeviceGetAttribute).zip(i32::try_from(ordinal).ok())?;
    let mut value = 0;
    // SAFETY: the result has room; the driver checks the ordinal.
    let result = unsafe { get(&mut value, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, device) };
    (result == CUDA_SUCCESS).then_some(value != 0)
}

/// All memory of a GPU, bytes, by the driver itself.
pub fn total_bytes(ordinal: usize) -> Option<u64> {
    let (get, device) = real!(cuDeviceTotalMem_v2).zip(i32::try_from(ordinal).ok())?;
    let mut bytes = 0;
    // SAFETY: the result has room; the driver checks the ordinal.
    let result = unsafe { get(&mut bytes, device) };
    (result == CUDA_SUCCESS).then_some(bytes as u64)
}

/// What is free on the GPU of the current context, bytes, by the driver itself.
pub fn free_bytes() -> Option<u64> {
    let get = real!(cuMemGetInfo_v2)?;
    let (mut free, mut total) = (0, 0);
    // SAFETY: both results have room.
    let result = unsafe { get(&mut free, &mut total) };
    (result == CUDA_SUCCESS).then_some(free as u64)
}

/// Managed memory of the current context, which any stream may use. Returns the driver's result, and where it is.
pub fn allocate(bytes: u64) -> Option<(u32, Option<u64>)> {
    let allocate = real!(cuMemAllocManaged)?;
    let mut address = 0;
    // SAFETY: the result has room.
    let result = unsafe { allocate(&mut address, bytes as usize, CU_MEM_ATTACH_GLOBAL) };
    Some((result, (result == CUDA_SUCCESS).then_some(address)))
}

/// Waits for all that is on `stream`, and frees what is at `address`: managed memory is not freed in a stream's order.
pub fn free_behind(stream: Stream, address: u64) -> Option<u32> {
    let (wait, free) = real!(cuStreamSynchronize).zip(real!(cuMemFree_v2))?;
    // SAFETY: the driver checks the stream.
    let waited = unsafe { wait(stream.0 as *mut _) };
    // SAFETY: the driver checks the address.
    Some(if waited == CUDA_SUCCESS { unsafe { free(address) } } else { waited })
}

/// A new stream of the current context that waits for no other.
pub fn stream() -> Option<Stream> {
    let create = real!(cuStreamCreate)?;
    let mut stream = null_mut();
    // SAFETY: the result has room.
    let result = unsafe { create(&mut stream, CU_STREAM_NON_BLOCKING) };
    (result == CUDA_SUCCESS && !stream.is_null()).then_some(Stream(stream as usize))
}

/// Says whether memory belongs on a GPU.
pub fn prefer(address: u64, bytes: u64, ordinal: usize, is_preferred: bool) {
    let advice = match is_preferred {
        true => CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
        false => CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION,
    };
    let gpu = Location::Gpu(ordinal);
    // Nothing depends on advice: the driver may as well refuse it.
    if let Some(advise) = real!(cuMemAdvise_v2) {
        // SAFETY: the driver checks the range.
        unsafe { advise(address, bytes as usize, advice, gpu.described()) };
    } else if let Some(advise) = real!(cuMemAdvise) {
        // SAFETY: as above.
        unsafe { advise(address, bytes as usize, advice, gpu.device()) };
    }
}

/// Has memory brought to `location` in the order of `stream`. Returns whether the driver does so.
pub fn prefetch(address: u64, bytes: u64, location: Location, stream: Stream) -> bool {
    let (bytes, stream) = (bytes as usize, stream.0 as *mut _);
    // The second came with CUDA 12.2; the first stays for programs built before.
    if let Some(prefetch) = real!(cuMemPrefetchAsync_v2) {
        // SAFETY: the stream is ours; the driver checks the range.
        unsafe { prefetch(address, bytes, location.described(), 0, stream) == CUDA_SUCCESS }
    } else if let Some(prefetch) = real!(cuMemPrefetchAsync) {
        // SAFETY: as above.
        unsafe { prefetch(address, bytes, location.device(), stream) == CUDA_SUCCESS }
    } else {
        false
    }
}
