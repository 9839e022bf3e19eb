//! Hooks of copies, memory sets and prefetches. Copies are timed apart from kernels, and pass no
//! gate.
//!
//! Each hook names its stream and the number of bytes that it moves. Copies by the same call of the
//! same number of bytes take the same time.

use deepres_abi::driver::ApiId;
use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::driver::types::{
    CUDA_MEMCPY2D, CUDA_MEMCPY2D_v1, CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER, CUDA_MEMCPY3D_v1, CUarray, CUcontext,
    CUdevice, CUdeviceptr, CUdeviceptr_v1, CUmemLocation, CUmemcpyAttributes, CUresult, CUstream, c_void,
};

use super::MISSING;
use crate::blocked_calls;
use crate::driver::calls::Stream;
use crate::driver::real;
use crate::launch;
use crate::meter::estimates;
use crate::meter::segment::{Kind, Launch};
use crate::record;

/// Size of a copy whose description has an unknown form.
pub const UNKNOWN_BYTES: u64 = 0;

/// The product of the numbers, or the greatest `u64`. The numbers may be arbitrary, because the
/// driver refuses those that are too large.
fn product<const N: usize>(factors: [u64; N]) -> u64 {
    factors.into_iter().fold(1, u64::saturating_mul)
}

/// Bytes of all `count` pieces of a batch.
fn sum(sizes: *const usize, count: usize) -> u64 {
    if sizes.is_null() || !sizes.is_aligned() {
        return UNKNOWN_BYTES;
    }
    // SAFETY: by the API's contract, the caller passes a list of this length for the driver to
    // read.
    let sizes = (0..count).map(|place| unsafe { sizes.add(place).read() } as u64);
    sizes.fold(0, u64::saturating_add)
}

/// A copy between rectangles or boxes.
trait Shape {
    fn bytes(&self) -> u64;
}

macro_rules! shapes {
    ($($shape:ty: $($extent:ident)*;)+) => {$(
        impl Shape for $shape {
            fn bytes(&self) -> u64 {
                product([$(self.$extent as u64),*])
            }
        }
    )+};
}

shapes! {
    CUDA_MEMCPY2D_v1: WidthInBytes Height;
    CUDA_MEMCPY2D: WidthInBytes Height;
    CUDA_MEMCPY3D_v1: WidthInBytes Height Depth;
    CUDA_MEMCPY3D: WidthInBytes Height Depth;
    CUDA_MEMCPY3D_PEER: WidthInBytes Height Depth;
}

fn bytes_of<S: Shape>(copy: *const S) -> u64 {
    // SAFETY: the pointer is null, or the caller passes it for the driver to read.
    unsafe { copy.as_ref() }.map_or(UNKNOWN_BYTES, Shape::bytes)
}

/// Times the copy that `call` makes on `stream`.
pub fn measured(
    api: ApiId,
    kind: Kind,
    stream: Stream,
    bytes: u64,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    record::copy(api, stream, bytes);
    let _blocked = blocked_calls::begin();
    // The key differs from those of kernels, because an API's number is far from every function's
    // address.
    let key = estimates::key([api as u64, bytes, 0, 0, 0]);
    match launch::enter_copy(stream, Launch { key, kind }) {
        Some(metered) => {
            let result = call();
            launch::leave(&metered, result == CUDA_SUCCESS);
            result
        }
        None => call(),
    }
}

macro_rules! copies {
    ($($kind:ident $symbol:ident($($argument:ident: $type:ty),*) on $stream:expr, $bytes:expr;)+) => {$(
        #[doc = concat!("Hook of `", stringify!($symbol), "`.")]
        #[expect(non_snake_case, reason = "named as the function that it stands for")]
        pub unsafe extern "C" fn $symbol($($argument: $type),*) -> CUresult {
            let Some(real) = real!($symbol) else { return MISSING };
            // SAFETY: the arguments are the caller's, unchanged.
            measured(ApiId::$symbol, Kind::$kind, $stream, $bytes, || unsafe { real($($argument),*) })
        }
    )+};
}

copies! {
    Copy cuMemPrefetchAsync(at: CUdeviceptr, count: usize, to: CUdevice, stream: CUstream) on Stream::new(stream, false), count as u64;
    Copy cuMemPrefetchAsync_ptsz(at: CUdeviceptr, count: usize, to: CUdevice, stream: CUstream) on Stream::new(stream, true), count as u64;
    Copy cuMemPrefetchAsync_v2(at: CUdeviceptr, count: usize, location: CUmemLocation, flags: u32, stream: CUstream) on Stream::new(stream, false), count as u64;
    Copy cuMemPrefetchAsync_v2_ptsz(at: CUdeviceptr, count: usize, location: CUmemLocation, flags: u32, stream: CUstream) on Stream::new(stream, true), count as u64;
    Copy cuMemPrefetchBatchAsync(at: *mut CUdeviceptr, sizes: *mut usize, count: usize, locations: *mut CUmemLocation, indices: *mut usize, location_count: usize, flags: u64, stream: CUstream) on Stream::new(stream, false), sum(sizes, count);
    Copy cuMemPrefetchBatchAsync_ptsz(at: *mut CUdeviceptr, sizes: *mut usize, count: usize, locations: *mut CUmemLocation, indices: *mut usize, location_count: usize, flags: u64, stream: CUstream) on Stream::new(stream, true), sum(sizes, count);
    SyncCopy cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) on Stream::LEGACY, bytes as u64;
    SyncCopy cuMemcpy2D(copy: *const CUDA_MEMCPY2D_v1) on Stream::LEGACY, bytes_of(copy);
    Copy cuMemcpy2DAsync(copy: *const CUDA_MEMCPY2D_v1, stream: CUstream) on Stream::new(stream, false), bytes_of(copy);
    Copy cuMemcpy2DAsync_v2(copy: *const CUDA_MEMCPY2D, stream: CUstream) on Stream::new(stream, false), bytes_of(copy);
    Copy cuMemcpy2DAsync_v2_ptsz(copy: *const CUDA_MEMCPY2D, stream: CUstream) on Stream::new(stream, true), bytes_of(copy);
    SyncCopy cuMemcpy2DUnaligned(copy: *const CUDA_MEMCPY2D_v1) on Stream::LEGACY, bytes_of(copy);
    SyncCopy cuMemcpy2DUnaligned_v2(copy: *const CUDA_MEMCPY2D) on Stream::LEGACY, bytes_of(copy);
    SyncCopy cuMemcpy2DUnaligned_v2_ptds(copy: *const CUDA_MEMCPY2D) on Stream::PER_THREAD, bytes_of(copy);
    SyncCopy cuMemcpy2D_v2(copy: *const CUDA_MEMCPY2D) on Stream::LEGACY, bytes_of(copy);
    SyncCopy cuMemcpy2D_v2_ptds(copy: *const CUDA_MEMCPY2D) on Stream::PER_THREAD, bytes_of(copy);
    SyncCopy cuMemcpy3D(copy: *const CUDA_MEMCPY3D_v1) on Stream::LEGACY, bytes_of(copy);
    Copy cuMemcpy3DAsync(copy: *const CUDA_MEMCPY3D_v1, stream: CUstream) on Stream::new(stream, false), bytes_of(copy);
    Copy cuMemcpy3DAsync_v2(copy: *const CUDA_MEMCPY3D, stream: CUstream) on Stream::new(stream, false), bytes_of(copy);
    Copy cuMemcpy3DAsync_v2_ptsz(copy: *const CUDA_MEMCPY3D, stream: CUstream) on Stream::new(stream, true), bytes_of(copy);
    Copy cuMemcpy3DBatchAsync(count: usize, list: *mut c_void, failed: *mut usize, flags: u64, stream: CUstream) on Stream::new(stream, false), UNKNOWN_BYTES;
    Copy cuMemcpy3DBatchAsync_ptsz(count: usize, list: *mut c_void, failed: *mut usize, flags: u64, stream: CUstream) on Stream::new(stream, true), UNKNOWN_BYTES;
    Copy cuMemcpy3DBatchAsync_v2(count: usize, list: *mut c_void, flags: u64, stream: CUstream) on Stream::new(stream, false), UNKNOWN_BYTES;
    Copy cuMemcpy3DBatchAsync_v2_ptsz(count: usize, list: *mut c_void, flags: u64, stream: CUstream) on Stream::new(stream, true), UNKNOWN_BYTES;
    SyncCopy cuMemcpy3DPeer(copy: *const CUDA_MEMCPY3D_PEER) on Stream::LEGACY, bytes_of(copy);
    Copy cuMemcpy3DPeerAsync(copy: *const CUDA_MEMCPY3D_PEER, stream: CUstream) on Stream::new(stream, false), bytes_of(copy);
    Copy cuMemcpy3DPeerAsync_ptsz(copy: *const CUDA_MEMCPY3D_PEER, stream: CUstream) on Stream::new(stream, true), bytes_of(copy);
    SyncCopy cuMemcpy3DPeer_ptds(copy: *const CUDA_MEMCPY3D_PEER) on Stream::PER_THREAD, bytes_of(copy);
    Copy cuMemcpy3DWithAttributesAsync(copy: *mut c_void, flags: u64, stream: CUstream) on Stream::new(stream, false), UNKNOWN_BYTES;
    Copy cuMemcpy3DWithAttributesAsync_ptsz(copy: *mut c_void, flags: u64, stream: CUstream) on Stream::new(stream, true), UNKNOWN_BYTES;
    SyncCopy cuMemcpy3D_v2(copy: *const CUDA_MEMCPY3D) on Stream::LEGACY, bytes_of(copy);
    SyncCopy cuMemcpy3D_v2_ptds(copy: *const CUDA_MEMCPY3D) on Stream::PER_THREAD, bytes_of(copy);
    Copy cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) on Stream::new(stream, false), bytes as u64;
    Copy cuMemcpyAsync_ptsz(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) on Stream::new(stream, true), bytes as u64;
    Copy cuMemcpyAtoA(to: CUarray, to_offset: u32, from: CUarray, from_offset: u32, bytes: u32) on Stream::LEGACY, bytes as u64;
    Copy cuMemcpyAtoA_v2(to: CUarray, to_offset: usize, from: CUarray, from_offset: usize, bytes: usize) on Stream::LEGACY, bytes as u64;
    Copy cuMemcpyAtoA_v2_ptds(to: CUarray, to_offset: usize, from: CUarray, from_offset: usize, bytes: usize) on Stream::PER_THREAD, bytes as u64;
    Copy cuMemcpyAtoD(to: CUdeviceptr_v1, from: CUarray, from_offset: u32, bytes: u32) on Stream::LEGACY, bytes as u64;
    Copy cuMemcpyAtoD_v2(to: CUdeviceptr, from: CUarray, from_offset: usize, bytes: usize) on Stream::LEGACY, bytes as u64;
    Copy cuMemcpyAtoD_v2_ptds(to: CUdeviceptr, from: CUarray, from_offset: usize, bytes: usize) on Stream::PER_THREAD, bytes as u64;
    SyncCopy cuMemcpyAtoH(to: *mut c_void, from: CUarray, from_offset: u32, bytes: u32) on Stream::LEGACY, bytes as u64;
    Copy cuMemcpyAtoHAsync(to: *mut c_void, from: CUarray, from_offset: u32, bytes: u32, stream: CUstream) on Stream::new(stream, false), bytes as u64;
    Copy cuMemcpyAtoHAsync_v2(to: *mut c_void, from: CUarray, from_offset: usize, bytes: usize, stream: CUstream) on Stream::new(stream, false), bytes as u64;
    Copy cuMemcpyAtoHAsync_v2_ptsz(to: *mut c_void, from: CUarray, from_offset: usize, bytes: usize, stream: CUstream) on Stream::new(stream, true), bytes as u64;
    SyncCopy cuMemcpyAtoH_v2(to: *mut c_void, from: CUarray, from_offset: usize, bytes: usize) on Stream::LEGACY, bytes as u64;
    SyncCopy cuMemcpyAtoH_v2_ptds(to: *mut c_void, from: CUarray, from_offset: usize, bytes: usize) on Stream::PER_THREAD, bytes as u64;
    Copy cuMemcpyBatchAsync(to: *mut CUdeviceptr, from: *mut CUdeviceptr, sizes: *mut usize, count: usize, attributes: *mut CUmemcpyAttributes, indices: *mut usize, attribute_count: usize, failed: *mut usize, stream: CUstream) on Stream::new(stream, false), sum(sizes, count);
    Copy cuMemcpyBatchAsync_ptsz(to: *mut CUdeviceptr, from: *mut CUdeviceptr, sizes: *mut usize, count: usize, attributes: *mut CUmemcpyAttributes, indices: *mut usize, attribute_count: usize, failed: *mut usize, stream: CUstream) on Stream::new(stream, true), sum(sizes, count);
    Copy cuMemcpyBatchAsync_v2(to: *mut CUdeviceptr, from: *mut CUdeviceptr, sizes: *mut usize, count: usize, attributes: *mut CUmemcpyAttributes, indices: *mut usize, attribute_count: usize, stream: CUstream) on Stream::new(stream, false), sum(sizes, count);
    Copy cuMemcpyBatchAsync_v2_ptsz(to: *mut CUdeviceptr, from: *mut CUdeviceptr, sizes: *mut usize, count: usize, attributes: *mut CUmemcpyAttributes, indices: *mut usize, attribute_count: usize, stream: CUstream) on Stream::new(stream, true), sum(sizes, count);
    Copy cuMemcpyDtoA(to: CUarray, to_offset: u32, from: CUdeviceptr_v1, bytes: u32) on Stream::LEGACY, bytes as u64;
    Copy cuMemcpyDtoA_v2(to: CUarray, to_offset: usize, from: CUdeviceptr, bytes: usize) on Stream::LEGACY, bytes as u64;
    Copy cuMemcpyDtoA_v2_ptds(to: CUarray, to_offset: usize, from: CUdeviceptr, bytes: usize) on Stream::PER_THREAD, bytes as u64;
    Copy cuMemcpyDtoD(to: CUdeviceptr_v1, from: CUdeviceptr_v1, bytes: u32) on Stream::LEGACY, bytes as u64;
    Copy cuMemcpyDtoDAsync(to: CUdeviceptr_v1, from: CUdeviceptr_v1, bytes: u32, stream: CUstream) on Stream::new(stream, false), bytes as u64;
    Copy cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) on Stream::new(stream, false), bytes as u64;
    Copy cuMemcpyDtoDAsync_v2_ptsz(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) on Stream::new(stream, true), bytes as u64;
    Copy cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) on Stream::LEGACY, bytes as u64;
    Copy cuMemcpyDtoD_v2_ptds(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) on Stream::PER_THREAD, bytes as u64;
    SyncCopy cuMemcpyDtoH(to: *mut c_void, from: CUdeviceptr_v1, bytes: u32) on Stream::LEGACY, bytes as u64;
    Copy cuMemcpyDtoHAsync(to: *mut c_void, from: CUdeviceptr_v1, bytes: u32, stream: CUstream) on Stream::new(stream, false), bytes as u64;
    Copy cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) on Stream::new(stream, false), bytes as u64;
    Copy cuMemcpyDtoHAsync_v2_ptsz(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) on Stream::new(stream, true), bytes as u64;
    SyncCopy cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize) on Stream::LEGACY, bytes as u64;
    SyncCopy cuMemcpyDtoH_v2_ptds(to: *mut c_void, from: CUdeviceptr, bytes: usize) on Stream::PER_THREAD, bytes as u64;
    SyncCopy cuMemcpyHtoA(to: CUarray, to_offset: u32, from: *const c_void, bytes: u32) on Stream::LEGACY, bytes as u64;
    Copy cuMemcpyHtoAAsync(to: CUarray, to_offset: u32, from: *const c_void, bytes: u32, stream: CUstream) on Stream::new(stream, false), bytes as u64;
    Copy cuMemcpyHtoAAsync_v2(to: CUarray, to_offset: usize, from: *const c_void, bytes: usize, stream: CUstream) on Stream::new(stream, false), bytes as u64;
    Copy cuMemcpyHtoAAsync_v2_ptsz(to: CUarray, to_offset: usize, from: *const c_void, bytes: usize, stream: CUstream) on Stream::new(stream, true), bytes as u64;
    SyncCopy cuMemcpyHtoA_v2(to: CUarray, to_offset: usize, from: *const c_void, bytes: usize) on Stream::LEGACY, bytes as u64;
    SyncCopy cuMemcpyHtoA_v2_ptds(to: CUarray, to_offset: usize, from: *const c_void, bytes: usize) on Stream::PER_THREAD, bytes as u64;
    SyncCopy cuMemcpyHtoD(to: CUdeviceptr_v1, from: *const c_void, bytes: u32) on Stream::LEGACY, bytes as u64;
    Copy cuMemcpyHtoDAsync(to: CUdeviceptr_v1, from: *const c_void, bytes: u32, stream: CUstream) on Stream::new(stream, false), bytes as u64;
    Copy cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream) on Stream::new(stream, false), bytes as u64;
    Copy cuMemcpyHtoDAsync_v2_ptsz(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream) on Stream::new(stream, true), bytes as u64;
    SyncCopy cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, bytes: usize) on Stream::LEGACY, bytes as u64;
    SyncCopy cuMemcpyHtoD_v2_ptds(to: CUdeviceptr, from: *const c_void, bytes: usize) on Stream::PER_THREAD, bytes as u64;
    SyncCopy cuMemcpyPeer(to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize) on Stream::LEGACY, bytes as u64;
    Copy cuMemcpyPeerAsync(to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize, stream: CUstream) on Stream::new(stream, false), bytes as u64;
    Copy cuMemcpyPeerAsync_ptsz(to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize, stream: CUstream) on Stream::new(stream, true), bytes as u64;
    SyncCopy cuMemcpyPeer_ptds(to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize) on Stream::PER_THREAD, bytes as u64;
    Copy cuMemcpyWithAttributesAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, attribute: *mut CUmemcpyAttributes, stream: CUstream) on Stream::new(stream, false), bytes as u64;
    Copy cuMemcpyWithAttributesAsync_ptsz(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, attribute: *mut CUmemcpyAttributes, stream: CUstream) on Stream::new(stream, true), bytes as u64;
    SyncCopy cuMemcpy_ptds(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) on Stream::PER_THREAD, bytes as u64;
    Copy cuMemsetD16(to: CUdeviceptr_v1, value: u16, count: u32) on Stream::LEGACY, product([count as u64, 1, 2]);
    Copy cuMemsetD16Async(to: CUdeviceptr, value: u16, count: usize, stream: CUstream) on Stream::new(stream, false), product([count as u64, 1, 2]);
    Copy cuMemsetD16Async_ptsz(to: CUdeviceptr, value: u16, count: usize, stream: CUstream) on Stream::new(stream, true), product([count as u64, 1, 2]);
    Copy cuMemsetD16_v2(to: CUdeviceptr, value: u16, count: usize) on Stream::LEGACY, product([count as u64, 1, 2]);
    Copy cuMemsetD16_v2_ptds(to: CUdeviceptr, value: u16, count: usize) on Stream::PER_THREAD, product([count as u64, 1, 2]);
    Copy cuMemsetD2D16(to: CUdeviceptr_v1, pitch: u32, value: u16, width: u32, height: u32) on Stream::LEGACY, product([width as u64, height as u64, 2]);
    Copy cuMemsetD2D16Async(to: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize, stream: CUstream) on Stream::new(stream, false), product([width as u64, height as u64, 2]);
    Copy cuMemsetD2D16Async_ptsz(to: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize, stream: CUstream) on Stream::new(stream, true), product([width as u64, height as u64, 2]);
    Copy cuMemsetD2D16_v2(to: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize) on Stream::LEGACY, product([width as u64, height as u64, 2]);
    Copy cuMemsetD2D16_v2_ptds(to: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize) on Stream::PER_THREAD, product([width as u64, height as u64, 2]);
    Copy cuMemsetD2D32(to: CUdeviceptr_v1, pitch: u32, value: u32, width: u32, height: u32) on Stream::LEGACY, product([width as u64, height as u64, 4]);
    Copy cuMemsetD2D32Async(to: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize, stream: CUstream) on Stream::new(stream, false), product([width as u64, height as u64, 4]);
    Copy cuMemsetD2D32Async_ptsz(to: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize, stream: CUstream) on Stream::new(stream, true), product([width as u64, height as u64, 4]);
    Copy cuMemsetD2D32_v2(to: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize) on Stream::LEGACY, product([width as u64, height as u64, 4]);
    Copy cuMemsetD2D32_v2_ptds(to: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize) on Stream::PER_THREAD, product([width as u64, height as u64, 4]);
    Copy cuMemsetD2D8(to: CUdeviceptr_v1, pitch: u32, value: u8, width: u32, height: u32) on Stream::LEGACY, product([width as u64, height as u64, 1]);
    Copy cuMemsetD2D8Async(to: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream) on Stream::new(stream, false), product([width as u64, height as u64, 1]);
    Copy cuMemsetD2D8Async_ptsz(to: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream) on Stream::new(stream, true), product([width as u64, height as u64, 1]);
    Copy cuMemsetD2D8_v2(to: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize) on Stream::LEGACY, product([width as u64, height as u64, 1]);
    Copy cuMemsetD2D8_v2_ptds(to: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize) on Stream::PER_THREAD, product([width as u64, height as u64, 1]);
    Copy cuMemsetD32(to: CUdeviceptr_v1, value: u32, count: u32) on Stream::LEGACY, product([count as u64, 1, 4]);
    Copy cuMemsetD32Async(to: CUdeviceptr, value: u32, count: usize, stream: CUstream) on Stream::new(stream, false), product([count as u64, 1, 4]);
    Copy cuMemsetD32Async_ptsz(to: CUdeviceptr, value: u32, count: usize, stream: CUstream) on Stream::new(stream, true), product([count as u64, 1, 4]);
    Copy cuMemsetD32_v2(to: CUdeviceptr, value: u32, count: usize) on Stream::LEGACY, product([count as u64, 1, 4]);
    Copy cuMemsetD32_v2_ptds(to: CUdeviceptr, value: u32, count: usize) on Stream::PER_THREAD, product([count as u64, 1, 4]);
    Copy cuMemsetD8(to: CUdeviceptr_v1, value: u8, count: u32) on Stream::LEGACY, count as u64;
    Copy cuMemsetD8Async(to: CUdeviceptr, value: u8, count: usize, stream: CUstream) on Stream::new(stream, false), count as u64;
    Copy cuMemsetD8Async_ptsz(to: CUdeviceptr, value: u8, count: usize, stream: CUstream) on Stream::new(stream, true), count as u64;
    Copy cuMemsetD8_v2(to: CUdeviceptr, value: u8, count: usize) on Stream::LEGACY, count as u64;
    Copy cuMemsetD8_v2_ptds(to: CUdeviceptr, value: u8, count: usize) on Stream::PER_THREAD, count as u64;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_nothing_has_are_no_reason_to_panic() {
        assert_eq!(product([u64::MAX, u64::MAX, 4]), u64::MAX);
        assert_eq!(sum([usize::MAX, 1].as_ptr(), 2), u64::MAX);
    }

    #[test]
    fn a_batch_moves_what_its_pieces_have_together() {
        assert_eq!(sum([1 << 20, 3, 1 << 10].as_ptr(), 2), (1 << 20) + 3);
        assert_eq!(sum(std::ptr::null(), 2), UNKNOWN_BYTES);
    }
}
