//! Hooks of copies, memory sets and prefetches.
//!
//! The GPU has engines of its own for copies from and to the host, and between devices. The meter
//! times these copies apart from kernels, and they pass no gate. Sets and copies within a device run
//! on the SMs, as kernels do. So they pass the gate, and the meter times them like kernels.
//!
//! Each hook names the stream and the number of bytes of its copy. If copies by the same call have
//! the same number of bytes, they take the same time.

use deepres_abi::driver::ApiId;
use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::driver::types::*;

use super::launch::launched;
use crate::blocked_calls;
use crate::driver::calls::Stream;
use crate::driver::memory::device_at;
use crate::launch;
use crate::meter::estimates;
use crate::meter::segment::{Kind, Launch};
use crate::process;
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

/// The place of the source or of the target of a copy.
#[derive(Debug, Clone, Copy)]
enum Side {
    /// Memory of the host.
    Host,
    /// An array, which lies on a device.
    Array,
    /// The memory at an address of the one address space of host and devices.
    Address(u64),
}

impl Side {
    /// Returns the side of a copy that is at an address.
    fn at(address: impl Into<u64>) -> Self {
        Self::Address(address.into())
    }

    /// Returns the side that the description of a copy calls `kind`.
    fn of(kind: CUmemorytype, address: u64) -> Self {
        match kind {
            CU_MEMORYTYPE_HOST => Self::Host,
            CU_MEMORYTYPE_ARRAY => Self::Array,
            _ => Self::Address(address),
        }
    }
}

/// Returns the kind of a copy between two sides: a kernel if both lie on the same device, else
/// `other`. An array counts as on the device of the other side. If the driver does not tell where an
/// address lies, the copy is no kernel.
fn between(one: Side, two: Side, other: Kind) -> Kind {
    // The outer level is `None` for the host, and the inner level for any device.
    let device = |side| match side {
        Side::Host => None,
        Side::Array => Some(None),
        Side::Address(address) => device_at(address).map(Some),
    };
    let is_within = || {
        let (one, two) = (device(one)?, device(two)?);
        Some(one.zip(two).is_none_or(|(one, two)| one == two))
    };
    if process::current().is_some() && is_within() == Some(true) { Kind::Kernel } else { other }
}

/// Returns the kind of a batch of `count` copies: the kind of the first piece.
fn batch(targets: *const u64, sources: *const u64, count: usize) -> Kind {
    let first = |list: *const u64| (count != 0 && !list.is_null() && list.is_aligned()).then_some(list);
    match first(targets).zip(first(sources)) {
        // SAFETY: by the API's contract, the caller passes lists of this length for the driver to
        // read.
        Some((target, source)) => unsafe {
            between(Side::Address(target.read()), Side::Address(source.read()), Kind::Copy)
        },
        None => Kind::Copy,
    }
}

/// The description of a copy between rectangles or boxes.
trait Shape {
    fn bytes(&self) -> u64;
    /// Returns the places of the source and of the target of the copy.
    fn sides(&self) -> [Side; 2];
}

macro_rules! shapes {
    ($($shape:ty: $($extent:ident)*;)+) => {$(
        impl Shape for $shape {
            fn bytes(&self) -> u64 {
                product([$(self.$extent as u64),*])
            }

            fn sides(&self) -> [Side; 2] {
                [
                    Side::of(self.srcMemoryType, u64::from(self.srcDevice)),
                    Side::of(self.dstMemoryType, u64::from(self.dstDevice)),
                ]
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

/// Returns the kind under which the meter times a described copy: a kernel if the copy stays within
/// a device, else `other`.
fn kind_of<S: Shape>(copy: *const S, other: Kind) -> Kind {
    // SAFETY: the pointer is null, or the caller passes it for the driver to read.
    unsafe { copy.as_ref() }.map_or(other, |copy| {
        let [source, target] = copy.sides();
        between(source, target, other)
    })
}

/// Makes the copy of `bytes` on `stream` by `call`, through the meter and, if its kind is a kernel,
/// through the gate. Returns the result of `call`, or an error if the daemon is gone and the session
/// fails closed.
pub fn measured(api: ApiId, kind: Kind, stream: Stream, bytes: u64, call: impl Fn() -> CUresult) -> CUresult {
    record::copy(api, stream, bytes);
    // The key differs from all keys of kernels, because an API's number is far from every
    // function's address.
    let key = estimates::key([api as u64, bytes, 0, 0, 0]);
    if kind == Kind::Kernel && bytes != 0 {
        return launched(stream, Launch { key, kind }, call);
    }
    let kind = if kind == Kind::Kernel { Kind::Copy } else { kind };
    let _blocked = blocked_calls::begin();
    match launch::enter_copy(stream, Launch { key, kind }) {
        Some(metered) => {
            let result = call();
            launch::leave(&metered, result == CUDA_SUCCESS);
            result
        }
        None => call(),
    }
}

/// Defines hooks of copies as `{ kind } pattern on stream => bytes, symbols;`. The pattern names the
/// arguments that the rest uses, as in [`super::hook`]. A function without a stream copies on its
/// default stream.
macro_rules! copies {
    ($({ $kind:expr } $pattern:tt $(on $stream:ident)? => $bytes:expr, $($symbol:ident)+;)+) => {
        super::hook! {
            $([$($symbol)+] $pattern |of, call| {
                measured(of.api, $kind, of.stream(copies!(@handle $($stream)?)), $bytes, call)
            };)+
        }
    };
    (@handle) => { std::ptr::null_mut() };
    (@handle $stream:ident) => { $stream };
}

// Prefetches.
copies! {
    { Kind::Copy } (.., count, _, stream) on stream => count as u64,
        cuMemPrefetchAsync cuMemPrefetchAsync_ptsz;
    { Kind::Copy } (_, count, .., stream) on stream => count as u64,
        cuMemPrefetchAsync_v2 cuMemPrefetchAsync_v2_ptsz;
    { Kind::Copy } (_, sizes, count, .., stream) on stream => sum(sizes, count),
        cuMemPrefetchBatchAsync cuMemPrefetchBatchAsync_ptsz;
}

// Copies from and to the host, and copies whose description has an unknown form.
copies! {
    { Kind::SyncCopy } (.., bytes) => bytes as u64,
        cuMemcpyAtoH cuMemcpyAtoH_v2 cuMemcpyAtoH_v2_ptds cuMemcpyDtoH cuMemcpyDtoH_v2
        cuMemcpyDtoH_v2_ptds cuMemcpyHtoA cuMemcpyHtoA_v2 cuMemcpyHtoA_v2_ptds cuMemcpyHtoD
        cuMemcpyHtoD_v2 cuMemcpyHtoD_v2_ptds;
    { Kind::Copy } (.., bytes, stream) on stream => bytes as u64,
        cuMemcpyAtoHAsync cuMemcpyAtoHAsync_v2 cuMemcpyAtoHAsync_v2_ptsz cuMemcpyDtoHAsync
        cuMemcpyDtoHAsync_v2 cuMemcpyDtoHAsync_v2_ptsz cuMemcpyHtoAAsync cuMemcpyHtoAAsync_v2
        cuMemcpyHtoAAsync_v2_ptsz cuMemcpyHtoDAsync cuMemcpyHtoDAsync_v2
        cuMemcpyHtoDAsync_v2_ptsz;
    { Kind::Copy } (.., stream) on stream => UNKNOWN_BYTES,
        cuMemcpy3DBatchAsync cuMemcpy3DBatchAsync_ptsz cuMemcpy3DBatchAsync_v2
        cuMemcpy3DBatchAsync_v2_ptsz cuMemcpy3DWithAttributesAsync
        cuMemcpy3DWithAttributesAsync_ptsz;
}

// Copies that may be within a device.
copies! {
    { between(Side::Address(target), Side::Address(source), Kind::SyncCopy) } (target, source, bytes)
        => bytes as u64, cuMemcpy cuMemcpy_ptds;
    { between(Side::Address(target), Side::Address(source), Kind::Copy) } (target, source, bytes, stream)
        on stream => bytes as u64, cuMemcpyAsync cuMemcpyAsync_ptsz;
    { between(Side::Address(target), Side::Address(source), Kind::Copy) }
        (target, source, bytes, _, stream) on stream => bytes as u64,
        cuMemcpyWithAttributesAsync cuMemcpyWithAttributesAsync_ptsz;
    { between(Side::at(target), Side::at(source), Kind::Copy) }
        (target, source, bytes) => bytes as u64,
        cuMemcpyDtoD cuMemcpyDtoD_v2 cuMemcpyDtoD_v2_ptds;
    { between(Side::at(target), Side::at(source), Kind::Copy) }
        (target, source, bytes, stream) on stream => bytes as u64,
        cuMemcpyDtoDAsync cuMemcpyDtoDAsync_v2 cuMemcpyDtoDAsync_v2_ptsz;
    { between(Side::Address(target), Side::Address(source), Kind::SyncCopy) }
        (target, _, source, _, bytes) => bytes as u64, cuMemcpyPeer cuMemcpyPeer_ptds;
    { between(Side::Address(target), Side::Address(source), Kind::Copy) }
        (target, _, source, _, bytes, stream) on stream => bytes as u64,
        cuMemcpyPeerAsync cuMemcpyPeerAsync_ptsz;
    { batch(targets, sources, count) } (targets, sources, sizes, count, .., stream)
        on stream => sum(sizes, count),
        cuMemcpyBatchAsync cuMemcpyBatchAsync_ptsz cuMemcpyBatchAsync_v2 cuMemcpyBatchAsync_v2_ptsz;
    { Kind::Kernel } (.., bytes) => bytes as u64, cuMemcpyAtoA cuMemcpyAtoA_v2 cuMemcpyAtoA_v2_ptds;
    { between(Side::Array, Side::at(target), Kind::Copy) } (target, .., bytes)
        => bytes as u64, cuMemcpyAtoD cuMemcpyAtoD_v2 cuMemcpyAtoD_v2_ptds;
    { between(Side::Array, Side::at(source), Kind::Copy) } (_, _, source, bytes)
        => bytes as u64, cuMemcpyDtoA cuMemcpyDtoA_v2 cuMemcpyDtoA_v2_ptds;
    { kind_of(copy, Kind::SyncCopy) } (.., copy) => bytes_of(copy),
        cuMemcpy2D cuMemcpy2DUnaligned cuMemcpy2DUnaligned_v2 cuMemcpy2DUnaligned_v2_ptds
        cuMemcpy2D_v2 cuMemcpy2D_v2_ptds cuMemcpy3D cuMemcpy3DPeer cuMemcpy3DPeer_ptds cuMemcpy3D_v2
        cuMemcpy3D_v2_ptds;
    { kind_of(copy, Kind::Copy) } (.., copy, stream) on stream => bytes_of(copy),
        cuMemcpy2DAsync cuMemcpy2DAsync_v2 cuMemcpy2DAsync_v2_ptsz cuMemcpy3DAsync
        cuMemcpy3DAsync_v2 cuMemcpy3DAsync_v2_ptsz cuMemcpy3DPeerAsync cuMemcpy3DPeerAsync_ptsz;
}

// Sets.
copies! {
    { Kind::Kernel } (.., count) => product([count as u64, 2]),
        cuMemsetD16 cuMemsetD16_v2 cuMemsetD16_v2_ptds;
    { Kind::Kernel } (.., count, stream) on stream => product([count as u64, 2]),
        cuMemsetD16Async cuMemsetD16Async_ptsz;
    { Kind::Kernel } (.., width, height) => product([width as u64, height as u64, 2]),
        cuMemsetD2D16 cuMemsetD2D16_v2 cuMemsetD2D16_v2_ptds;
    { Kind::Kernel } (.., width, height, stream) on stream => product([width as u64, height as u64, 2]),
        cuMemsetD2D16Async cuMemsetD2D16Async_ptsz;
    { Kind::Kernel } (.., width, height) => product([width as u64, height as u64, 4]),
        cuMemsetD2D32 cuMemsetD2D32_v2 cuMemsetD2D32_v2_ptds;
    { Kind::Kernel } (.., width, height, stream) on stream => product([width as u64, height as u64, 4]),
        cuMemsetD2D32Async cuMemsetD2D32Async_ptsz;
    { Kind::Kernel } (.., width, height) => product([width as u64, height as u64]),
        cuMemsetD2D8 cuMemsetD2D8_v2 cuMemsetD2D8_v2_ptds;
    { Kind::Kernel } (.., width, height, stream) on stream => product([width as u64, height as u64]),
        cuMemsetD2D8Async cuMemsetD2D8Async_ptsz;
    { Kind::Kernel } (.., count) => product([count as u64, 4]),
        cuMemsetD32 cuMemsetD32_v2 cuMemsetD32_v2_ptds;
    { Kind::Kernel } (.., count, stream) on stream => product([count as u64, 4]),
        cuMemsetD32Async cuMemsetD32Async_ptsz;
    { Kind::Kernel } (.., count) => count as u64,
        cuMemsetD8 cuMemsetD8_v2 cuMemsetD8_v2_ptds;
    { Kind::Kernel } (.., count, stream) on stream => count as u64,
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
