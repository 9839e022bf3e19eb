//! Hooks of copies, memory sets and prefetches.
//!
//! The GPU has engines of its own for copies from and to the host, and between devices. The meter
//! times these copies apart from kernels, and they pass no gate. Sets and copies within a device
//! run on the SMs, as kernels do. So they pass the gate, and the meter times them like kernels.
//!
//! Each hook names the stream and the number of bytes of its copy. If copies by the same call have
//! the same number of bytes, they take the same time.
//!
//! A batch can have copies of both kinds. The hook of a batch then makes a batch of each kind.

use std::collections::BTreeMap;
use std::ops::Range;

use deepres_abi::driver::ApiId;
use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::driver::types::*;

use super::launch::launched;
use super::{Hooked, MISSING};
use crate::blocked_calls;
use crate::capture;
use crate::driver::calls::Stream;
use crate::driver::memory::{allocation_at, device_at};
use crate::driver::real;
use crate::launch;
use crate::meter::estimates;
use crate::meter::segment::{Kind, Launch};
use crate::process;
use crate::record;

/// The size of a copy whose description has an unknown form.
pub const UNKNOWN_BYTES: u64 = 0;

/// Returns the product of the numbers, or the greatest `u64`. The numbers can be arbitrary, because
/// the driver refuses a copy that is too large.
fn product<const N: usize>(factors: [u64; N]) -> u64 {
    factors.into_iter().fold(1, u64::saturating_mul)
}

/// Returns the bytes of all `count` pieces of a batch.
fn sum(sizes: *const usize, count: usize) -> u64 {
    // SAFETY: by the API's contract, the caller passes a list of this length for the driver to
    // read.
    let sizes = unsafe { list(sizes, count) };
    let bytes = |sizes: &[usize]| sizes.iter().fold(0_u64, |sum, size| sum.saturating_add(*size as u64));
    sizes.map_or(UNKNOWN_BYTES, bytes)
}

/// Returns a list of the caller. Returns `None` if no list is there.
///
/// # Safety
/// Unless the pointer is null, the hook's caller passes a list of this length for the driver to
/// read. The list outlives `'a`.
unsafe fn list<'a, T>(first: *const T, length: usize) -> Option<&'a [T]> {
    let is_there = !first.is_null() && first.is_aligned() && length <= isize::MAX as usize / size_of::<T>();
    // SAFETY: the pointer is not null, and the caller guarantees the rest.
    is_there.then(|| unsafe { std::slice::from_raw_parts(first, length) })
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
    /// Returns the side of a copy (source or destination) for the memory at an address.
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
/// `other`. An array counts as on the device of the other side. If the driver does not tell where
/// an address lies, the copy is no kernel.
fn between(one: Side, two: Side, other: Kind) -> Kind {
    between_by(one, two, other, device_at)
}

/// Returns the kind of a copy as [`between`] does. `device_at` says which device has an address.
fn between_by(
    one: Side,
    two: Side,
    other: Kind,
    mut device_at: impl FnMut(CUdeviceptr) -> Option<i32>,
) -> Kind {
    // The outer level is `None` for the host, and the inner level for any device.
    let mut device = |side| match side {
        Side::Host => None,
        Side::Array => Some(None),
        Side::Address(address) => device_at(address).map(Some),
    };
    let mut is_within = || {
        let (one, two) = (device(one)?, device(two)?);
        Some(one.zip(two).is_none_or(|(one, two)| one == two))
    };
    if process::current().is_some() && is_within() == Some(true) { Kind::Kernel } else { other }
}

/// The devices of the allocations that a batch uses. The driver tells the device of each allocation
/// once, because a batch can have thousands of copies between few allocations.
#[derive(Default)]
struct Devices {
    /// The end and the device of each allocation, by its first address.
    known: BTreeMap<CUdeviceptr, (CUdeviceptr, Option<i32>)>,
}

impl Devices {
    /// Returns the device that has the memory at an address. `ask` asks the driver.
    fn at(
        &mut self,
        address: CUdeviceptr,
        ask: impl FnOnce(CUdeviceptr) -> (Option<i32>, Range<CUdeviceptr>),
    ) -> Option<i32> {
        let known = self.known.range(..=address).next_back();
        if let Some((_, (_, device))) = known.filter(|(_, (end, _))| address < *end) {
            return *device;
        }
        let (device, range) = ask(address);
        if range.contains(&address) {
            self.known.insert(range.start, (range.end, device));
        }
        device
    }

    /// Returns the kind of a copy between two sides, as [`between`] does.
    fn between(&mut self, one: Side, two: Side, other: Kind) -> Kind {
        between_by(one, two, other, |address| self.at(address, allocation_at))
    }
}

/// The copies of a batch, which the driver makes in any order.
trait Batch {
    /// The arguments of a smaller batch.
    type Part;
    /// Returns the number of copies.
    fn count(&self) -> usize;
    /// Returns the kind and the bytes of a copy.
    fn piece(&self, number: usize, devices: &mut Devices) -> (Kind, u64);
    /// Returns the batch of the copies with these numbers, in this order.
    fn part(&self, numbers: &[usize]) -> Self::Part;
}

/// A batch of copies between addresses.
struct Linear<'a> {
    targets: &'a [CUdeviceptr],
    sources: &'a [CUdeviceptr],
    sizes: &'a [usize],
    /// The attributes, each with the first copy that has them.
    attributes: &'a [CUmemcpyAttributes],
    firsts: &'a [usize],
}

/// The arguments of a batch of copies between addresses.
#[derive(Default)]
struct LinearPart {
    targets: Vec<CUdeviceptr>,
    sources: Vec<CUdeviceptr>,
    sizes: Vec<usize>,
    attributes: Vec<CUmemcpyAttributes>,
    firsts: Vec<usize>,
}

impl Batch for Linear<'_> {
    type Part = LinearPart;

    fn count(&self) -> usize {
        self.targets.len()
    }

    fn piece(&self, number: usize, devices: &mut Devices) -> (Kind, u64) {
        let sides = [self.targets, self.sources].map(|list| Side::Address(list[number]));
        (devices.between(sides[0], sides[1], Kind::Copy), self.sizes[number] as u64)
    }

    fn part(&self, numbers: &[usize]) -> LinearPart {
        let mut part = LinearPart::default();
        let mut last = None;
        for (at, number) in numbers.iter().enumerate() {
            part.targets.push(self.targets[*number]);
            part.sources.push(self.sources[*number]);
            part.sizes.push(self.sizes[*number]);
            let entry = self.firsts.partition_point(|first| first <= number).checked_sub(1);
            if let Some(entry) = entry.filter(|_| entry != last) {
                part.attributes.push(self.attributes[entry]);
                part.firsts.push(at);
                last = Some(entry);
            }
        }
        part
    }
}

impl Batch for &[CUDA_MEMCPY3D_BATCH_OP] {
    type Part = Vec<CUDA_MEMCPY3D_BATCH_OP>;

    fn count(&self) -> usize {
        self.len()
    }

    fn piece(&self, number: usize, devices: &mut Devices) -> (Kind, u64) {
        kind_and_size(&self[number], devices)
    }

    fn part(&self, numbers: &[usize]) -> Self::Part {
        numbers.iter().map(|number| self[*number]).collect()
    }
}

/// Returns the kind and the number of elements of a copy in a batch.
fn kind_and_size(copy: &CUDA_MEMCPY3D_BATCH_OP, devices: &mut Devices) -> (Kind, u64) {
    let side = |operand: &CUmemcpy3DOperand| match operand.r#type {
        CU_MEMCPY_OPERAND_TYPE_ARRAY => Side::Array,
        _ => Side::Address(operand.op[0]),
    };
    let CUextent3D { width, height, depth } = copy.extent;
    let kind = devices.between(side(&copy.dst), side(&copy.src), Kind::Copy);
    (kind, product([width as u64, height as u64, depth as u64]))
}

/// Makes a batch on `stream`, and returns the result. If all copies have the same kind, makes the
/// batch by `call`. Otherwise makes a batch of each kind by `part`. `part` gets the numbers of the
/// copies, and the place for the number of a copy that failed. The caller of the hook gets that
/// number at `failed`, unless `failed` is null.
fn in_batches<B: Batch>(
    (of, stream): (Hooked, Stream),
    batch: &B,
    failed: *mut usize,
    call: impl Fn() -> CUresult,
    part: impl Fn(B::Part, *mut usize) -> CUresult,
) -> CUresult {
    let mut devices = Devices::default();
    let pieces: Vec<_> = (0..batch.count()).map(|number| batch.piece(number, &mut devices)).collect();
    let (kernels, copies): (Vec<usize>, Vec<usize>) =
        (0..pieces.len()).partition(|number| pieces[*number].0 == Kind::Kernel);
    let sum =
        |numbers: &[usize]| numbers.iter().fold(0_u64, |sum, number| sum.saturating_add(pieces[*number].1));
    let (within, copied) = (sum(&kernels), sum(&copies));
    let whole = |kind| measured(of.api, kind, stream, within.saturating_add(copied), &call);
    // A captured batch stays one node.
    let is_captured = || {
        let process = process::current().filter(|_| capture::is_active());
        process.is_some_and(|process| process.calls.may_be_capturing(stream))
    };
    if kernels.is_empty() {
        return whole(Kind::Copy);
    }
    if copies.is_empty() || is_captured() {
        return whole(Kind::Kernel);
    }
    let make = |kind, bytes, numbers: &[usize]| {
        measured(of.api, kind, stream, bytes, || {
            let mut place = usize::MAX;
            let result = part(batch.part(numbers), &mut place);
            if result != CUDA_SUCCESS && !failed.is_null() {
                // SAFETY: the caller of the hook passes room for the number.
                unsafe { failed.write(numbers.get(place).copied().unwrap_or(usize::MAX)) };
            }
            result
        })
    };
    // The copies that pass no gate go first.
    match make(Kind::Copy, copied, &copies) {
        CUDA_SUCCESS => make(Kind::Kernel, within, &kernels),
        error => error,
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
/// through the gate. Returns the result of `call`, or an error if the daemon is gone and the
/// session fails closed.
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
    match launch::begin_copy(stream, Launch { key, kind }) {
        Some(metered) => {
            let result = call();
            launch::end(&metered, result == CUDA_SUCCESS);
            result
        }
        None => call(),
    }
}

/// Defines hooks of copies as `{ kind } pattern on stream => bytes, symbols;`. The pattern names
/// the arguments that the rest uses, as in [`super::hook`]. A function without a stream copies on
/// its default stream.
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

// Copies from and to the host.
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
}

// Copies that can be within a device.
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
    { described(copy).map_or(Kind::Copy, |copy| kind_and_size(copy, &mut Devices::default()).0) }
        (copy, _, stream) on stream
        => described(copy).map_or(UNKNOWN_BYTES, |copy| kind_and_size(copy, &mut Devices::default()).1),
        cuMemcpy3DWithAttributesAsync cuMemcpy3DWithAttributesAsync_ptsz;
}

/// Returns the description that the caller passes for the driver to read, if there is one.
fn described<'a>(copy: *const CUDA_MEMCPY3D_BATCH_OP) -> Option<&'a CUDA_MEMCPY3D_BATCH_OP> {
    // SAFETY: the pointer is null, or the caller passes it for the driver to read during the call.
    unsafe { copy.as_ref() }
}

/// Returns the batch of copies between addresses that the arguments describe. Returns `None` if
/// they describe none, so that the driver refuses the call.
fn linear<'a>(
    (targets, sources): (*const CUdeviceptr, *const CUdeviceptr),
    (sizes, count): (*const usize, usize),
    (attributes, firsts, entries): (*const CUmemcpyAttributes, *const usize, usize),
) -> Option<Linear<'a>> {
    // SAFETY: by the API's contract, the caller passes lists of these lengths for the driver to
    // read during the call.
    let batch = unsafe {
        Linear {
            targets: list(targets, count)?,
            sources: list(sources, count)?,
            sizes: list(sizes, count)?,
            attributes: list(attributes, entries)?,
            firsts: list(firsts, entries)?,
        }
    };
    let is_whole = batch.firsts.first() == Some(&0) && batch.firsts.last().is_some_and(|last| *last < count);
    (is_whole && batch.firsts.is_sorted_by(|one, next| one < next)).then_some(batch)
}

/// Returns the batch of `count` copies of boxes, if there is one.
fn boxes<'a>(copies: *const CUDA_MEMCPY3D_BATCH_OP, count: usize) -> Option<&'a [CUDA_MEMCPY3D_BATCH_OP]> {
    // SAFETY: by the API's contract, the caller passes a list of this length for the driver to read
    // during the call.
    unsafe { list(copies, count) }
}

/// Defines hooks of batches as `[symbols] pattern on stream, batch, failed, |part, place|
/// arguments;`. `batch` is the batch that the caller's arguments describe, if any, and `failed` the
/// caller's place for the number of a copy that failed. `arguments` are the driver's for a part of
/// the batch.
macro_rules! batches {
    ($([$($symbol:ident)+] $pattern:tt on $stream:ident, $batch:expr, $failed:expr,
        |$part:ident, $place:pat_param| $arguments:tt;)+) => {
        super::hook! {
            $($([$symbol] $pattern |of, call| {
                let on = of.stream($stream);
                let Some(batch) = $batch else {
                    return measured(of.api, Kind::Copy, on, UNKNOWN_BYTES, call);
                };
                in_batches((of, on), &batch, $failed, call, |mut $part, $place| {
                    let Some(real) = real!($symbol) else { return MISSING };
                    // SAFETY: the lists live until the end of the call, and hold only copies of the
                    // caller's batch.
                    unsafe { real $arguments }
                })
            };)+)+
        }
    };
}

batches! {
    [cuMemcpyBatchAsync cuMemcpyBatchAsync_ptsz]
    (targets, sources, sizes, count, attributes, firsts, entries, failed, stream) on stream,
    linear((targets, sources), (sizes, count), (attributes, firsts, entries)), failed,
    |part, place| (
        part.targets.as_mut_ptr(), part.sources.as_mut_ptr(), part.sizes.as_mut_ptr(), part.sizes.len(),
        part.attributes.as_mut_ptr(), part.firsts.as_mut_ptr(), part.firsts.len(), place, stream
    );
    [cuMemcpyBatchAsync_v2 cuMemcpyBatchAsync_v2_ptsz]
    (targets, sources, sizes, count, attributes, firsts, entries, stream) on stream,
    linear((targets, sources), (sizes, count), (attributes, firsts, entries)), std::ptr::null_mut(),
    |part, _| (
        part.targets.as_mut_ptr(), part.sources.as_mut_ptr(), part.sizes.as_mut_ptr(), part.sizes.len(),
        part.attributes.as_mut_ptr(), part.firsts.as_mut_ptr(), part.firsts.len(), stream
    );
    [cuMemcpy3DBatchAsync cuMemcpy3DBatchAsync_ptsz] (count, copies, failed, flags, stream) on stream,
    boxes(copies, count), failed,
    |part, place| (part.len(), part.as_mut_ptr(), place, flags, stream);
    [cuMemcpy3DBatchAsync_v2 cuMemcpy3DBatchAsync_v2_ptsz] (count, copies, flags, stream) on stream,
    boxes(copies, count), std::ptr::null_mut(),
    |part, _| (part.len(), part.as_mut_ptr(), flags, stream);
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

    #[test]
    fn the_driver_is_asked_once_for_each_allocation_of_a_batch() {
        let mut asked = Vec::new();
        let mut ask = |address: CUdeviceptr| {
            asked.push(address);
            match address {
                100..200 => (Some(0), 100..200),
                200..300 => (Some(1), 200..300),
                300..400 => (None, 300..400),
                // The driver knows nothing of this memory.
                _ => (None, 0..0),
            }
        };
        let mut devices = Devices::default();
        let mut at = |address| devices.at(address, &mut ask);
        assert_eq!([250, 299, 200].map(&mut at), [Some(1); 3]);
        assert_eq!([199, 100].map(&mut at), [Some(0); 2]);
        assert_eq!([350, 399, 400, 400, 99].map(&mut at), [None; 5]);
        assert_eq!(asked, [250, 199, 350, 400, 400, 99]);
    }

    #[test]
    fn a_part_of_a_batch_has_its_copies_with_the_attributes_that_they_had() {
        let with = |flags| {
            let hint = CUmemLocation { r#type: 0, id: 0 };
            CUmemcpyAttributes { srcAccessOrder: 1, srcLocHint: hint, dstLocHint: hint, flags }
        };
        let (targets, sources, sizes) = ([10, 11, 12, 13, 14], [20, 21, 22, 23, 24], [1, 2, 3, 4, 5]);
        let (attributes, firsts) = ([with(7), with(8), with(9)], [0, 2, 3]);
        let lists = (targets.as_ptr(), sources.as_ptr());
        let batch = linear(lists, (sizes.as_ptr(), 5), (attributes.as_ptr(), firsts.as_ptr(), 3)).unwrap();
        let part = batch.part(&[1, 3, 4]);
        assert_eq!(
            (&*part.targets, &*part.sources, &*part.sizes),
            (&[11, 13, 14][..], &[21, 23, 24][..], &[2, 4, 5][..])
        );
        let flags: Vec<u32> = part.attributes.iter().map(|one| one.flags).collect();
        assert_eq!((flags, part.firsts), (vec![7, 9], vec![0, 1]));
        // The driver refuses such lists.
        for wrong in [&[1, 2, 3], &[0, 2, 2], &[0, 2, 5]] {
            let entries = (attributes.as_ptr(), wrong.as_ptr(), 3);
            assert!(linear(lists, (sizes.as_ptr(), 5), entries).is_none(), "{wrong:?}");
        }
    }
}
