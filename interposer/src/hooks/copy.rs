//! Hooks of copies, memory sets and prefetches. The meter times copies apart from kernels. Copies
//! pass no gate.
//!
//! Each hook names the stream and the number of bytes of its copy. If copies by the same call have
//! the same number of bytes, they take the same time.

use deepres_abi::driver::ApiId;
use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::driver::types::*;

use crate::blocked_calls;
use crate::driver::calls::Stream;
use crate::launch;
use crate::meter::estimates;
use crate::meter::segment::{Kind, Launch};
use crate::record;

/// The size of a copy whose description has an unknown form.
pub const UNKNOWN_BYTES: u64 = 0;

/// Returns the product of the numbers, or the greatest `u64`. The numbers may be arbitrary, because
/// the driver refuses a copy that is too large.
fn product<const N: usize>(factors: [u64; N]) -> u64 {
    factors.into_iter().fold(1, u64::saturating_mul)
}

/// Returns the bytes of all `count` pieces of a batch.
fn sum(sizes: *const usize, count: usize) -> u64 {
    if sizes.is_null() || !sizes.is_aligned() {
        return UNKNOWN_BYTES;
    }
    // SAFETY: by the API's contract, the caller passes a list of this length for the driver to
    // read.
    let sizes = (0..count).map(|place| unsafe { sizes.add(place).read() } as u64);
    sizes.fold(0, u64::saturating_add)
}

/// The description of a copy between rectangles or boxes.
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

/// Times the copy that `call` makes on `stream`. Returns the result of `call`.
pub fn measured(
    api: ApiId,
    kind: Kind,
    stream: Stream,
    bytes: u64,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    record::copy(api, stream, bytes);
    let _blocked = blocked_calls::begin();
    // The key differs from all keys of kernels, because an API's number is far from every
    // function's address.
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

/// Defines hooks of copies as `kind pattern on stream => bytes, symbols;`. The pattern names the
/// arguments that the rest uses, as in [`super::hook`]. A function without a stream copies on its
/// default stream.
macro_rules! copies {
    ($($kind:ident $pattern:tt $(on $stream:ident)? => $bytes:expr, $($symbol:ident)+;)+) => {
        super::hook! {
            $([$($symbol)+] $pattern |of, call| {
                measured(of.api, Kind::$kind, of.stream(copies!(@handle $($stream)?)), $bytes, call)
            };)+
        }
    };
    (@handle) => { std::ptr::null_mut() };
    (@handle $stream:ident) => { $stream };
}

copies! {
    Copy (.., count, _, stream) on stream => count as u64,
        cuMemPrefetchAsync cuMemPrefetchAsync_ptsz;
    Copy (_, count, .., stream) on stream => count as u64,
        cuMemPrefetchAsync_v2 cuMemPrefetchAsync_v2_ptsz;
    Copy (_, sizes, count, .., stream) on stream => sum(sizes, count),
        cuMemPrefetchBatchAsync cuMemPrefetchBatchAsync_ptsz;
    SyncCopy (.., bytes) => bytes as u64,
        cuMemcpy cuMemcpyAtoH cuMemcpyAtoH_v2 cuMemcpyAtoH_v2_ptds cuMemcpyDtoH cuMemcpyDtoH_v2
        cuMemcpyDtoH_v2_ptds cuMemcpyHtoA cuMemcpyHtoA_v2 cuMemcpyHtoA_v2_ptds cuMemcpyHtoD
        cuMemcpyHtoD_v2 cuMemcpyHtoD_v2_ptds cuMemcpyPeer cuMemcpyPeer_ptds cuMemcpy_ptds;
    SyncCopy (.., copy) => bytes_of(copy),
        cuMemcpy2D cuMemcpy2DUnaligned cuMemcpy2DUnaligned_v2 cuMemcpy2DUnaligned_v2_ptds
        cuMemcpy2D_v2 cuMemcpy2D_v2_ptds cuMemcpy3D cuMemcpy3DPeer cuMemcpy3DPeer_ptds cuMemcpy3D_v2
        cuMemcpy3D_v2_ptds;
    Copy (.., copy, stream) on stream => bytes_of(copy),
        cuMemcpy2DAsync cuMemcpy2DAsync_v2 cuMemcpy2DAsync_v2_ptsz cuMemcpy3DAsync
        cuMemcpy3DAsync_v2 cuMemcpy3DAsync_v2_ptsz cuMemcpy3DPeerAsync cuMemcpy3DPeerAsync_ptsz;
    Copy (.., stream) on stream => UNKNOWN_BYTES,
        cuMemcpy3DBatchAsync cuMemcpy3DBatchAsync_ptsz cuMemcpy3DBatchAsync_v2
        cuMemcpy3DBatchAsync_v2_ptsz cuMemcpy3DWithAttributesAsync
        cuMemcpy3DWithAttributesAsync_ptsz;
    Copy (.., bytes, stream) on stream => bytes as u64,
        cuMemcpyAsync cuMemcpyAsync_ptsz cuMemcpyAtoHAsync cuMemcpyAtoHAsync_v2
        cuMemcpyAtoHAsync_v2_ptsz cuMemcpyDtoDAsync cuMemcpyDtoDAsync_v2 cuMemcpyDtoDAsync_v2_ptsz
        cuMemcpyDtoHAsync cuMemcpyDtoHAsync_v2 cuMemcpyDtoHAsync_v2_ptsz cuMemcpyHtoAAsync
        cuMemcpyHtoAAsync_v2 cuMemcpyHtoAAsync_v2_ptsz cuMemcpyHtoDAsync cuMemcpyHtoDAsync_v2
        cuMemcpyHtoDAsync_v2_ptsz cuMemcpyPeerAsync cuMemcpyPeerAsync_ptsz;
    Copy (.., bytes) => bytes as u64,
        cuMemcpyAtoA cuMemcpyAtoA_v2 cuMemcpyAtoA_v2_ptds cuMemcpyAtoD cuMemcpyAtoD_v2
        cuMemcpyAtoD_v2_ptds cuMemcpyDtoA cuMemcpyDtoA_v2 cuMemcpyDtoA_v2_ptds cuMemcpyDtoD
        cuMemcpyDtoD_v2 cuMemcpyDtoD_v2_ptds;
    Copy (_, _, sizes, count, .., stream) on stream => sum(sizes, count),
        cuMemcpyBatchAsync cuMemcpyBatchAsync_ptsz cuMemcpyBatchAsync_v2 cuMemcpyBatchAsync_v2_ptsz;
    Copy (.., bytes, _, stream) on stream => bytes as u64,
        cuMemcpyWithAttributesAsync cuMemcpyWithAttributesAsync_ptsz;
    Copy (.., count) => product([count as u64, 2]),
        cuMemsetD16 cuMemsetD16_v2 cuMemsetD16_v2_ptds;
    Copy (.., count, stream) on stream => product([count as u64, 2]),
        cuMemsetD16Async cuMemsetD16Async_ptsz;
    Copy (.., width, height) => product([width as u64, height as u64, 2]),
        cuMemsetD2D16 cuMemsetD2D16_v2 cuMemsetD2D16_v2_ptds;
    Copy (.., width, height, stream) on stream => product([width as u64, height as u64, 2]),
        cuMemsetD2D16Async cuMemsetD2D16Async_ptsz;
    Copy (.., width, height) => product([width as u64, height as u64, 4]),
        cuMemsetD2D32 cuMemsetD2D32_v2 cuMemsetD2D32_v2_ptds;
    Copy (.., width, height, stream) on stream => product([width as u64, height as u64, 4]),
        cuMemsetD2D32Async cuMemsetD2D32Async_ptsz;
    Copy (.., width, height) => product([width as u64, height as u64]),
        cuMemsetD2D8 cuMemsetD2D8_v2 cuMemsetD2D8_v2_ptds;
    Copy (.., width, height, stream) on stream => product([width as u64, height as u64]),
        cuMemsetD2D8Async cuMemsetD2D8Async_ptsz;
    Copy (.., count) => product([count as u64, 4]),
        cuMemsetD32 cuMemsetD32_v2 cuMemsetD32_v2_ptds;
    Copy (.., count, stream) on stream => product([count as u64, 4]),
        cuMemsetD32Async cuMemsetD32Async_ptsz;
    Copy (.., count) => count as u64,
        cuMemsetD8 cuMemsetD8_v2 cuMemsetD8_v2_ptds;
    Copy (.., count, stream) on stream => count as u64,
        cuMemsetD8Async cuMemsetD8Async_ptsz;
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
