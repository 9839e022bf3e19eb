//! The driver functions for copies and memsets.
use std::ffi::c_void;
use std::sync::Arc;

use deepres_abi::driver::types::*;

use crate::array;
use crate::capture;
use crate::copy::{Fill, Plan, blank, describe_linear};
use crate::memory;
use crate::operation::{self, Operation};
use crate::residency;
use crate::status::{self, Result};
use crate::stream::{self, DefaultStream, Stream};

/// Returns the default stream for a synchronous copy. Fails if the copy would break a capture.
fn synchronous(default: DefaultStream) -> Result<Arc<Stream>> {
    let stream = stream::resolve(0, default)?;
    if stream.is_capturing() {
        stream.with_capture(|own| own.as_ref().map(|own| own.session.invalidate()));
        return Err(status::STREAM_CAPTURE_UNSUPPORTED);
    }
    capture::refuse_implicit(&stream)?;
    capture::refuse_unsafe()?;
    Ok(stream)
}

/// Checks that the driver knows an address. The driver accepts unknown addresses as host addresses
/// only.
fn on_device(address: u64, bytes: usize) -> Result<u64> {
    if bytes == 0 || memory::find(address).is_some() { Ok(address) } else { Err(status::INVALID_VALUE) }
}

fn linear_now(target: u64, source: u64, bytes: usize, default: DefaultStream) -> Result<()> {
    let stream = synchronous(default)?;
    if bytes == 0 {
        return Ok(());
    }
    operation::copy_now(&stream, Plan::linear(target, source, bytes as u64)?)
}

fn linear(target: u64, source: u64, bytes: usize, stream: CUstream, default: DefaultStream) -> Result<()> {
    let stream = stream::resolve(stream as usize, default)?;
    if bytes == 0 {
        return Ok(());
    }
    if stream.is_capturing() {
        Plan::linear(target, source, bytes as u64)?;
        return capture::add(
            &stream,
            Operation::Copy(Box::new(describe_linear(target, source, bytes as u64))),
        );
    }
    capture::refuse_implicit(&stream)?;
    operation::submit_copy(&stream, Plan::linear(target, source, bytes as u64)?)
}

fn strided_now(params: &CUDA_MEMCPY3D, default: DefaultStream) -> Result<()> {
    let stream = synchronous(default)?;
    operation::copy_now(&stream, Plan::strided(params)?)
}

fn strided(params: CUDA_MEMCPY3D, stream: CUstream, default: DefaultStream) -> Result<()> {
    Plan::strided(&params)?;
    stream::resolve(stream as usize, default)?.submit(Operation::Copy(Box::new(params)))
}

/// Returns a two-dimensional copy as a three-dimensional copy of depth 1.
fn deepen(flat: &CUDA_MEMCPY2D) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        srcXInBytes: flat.srcXInBytes,
        srcY: flat.srcY,
        srcMemoryType: flat.srcMemoryType,
        srcHost: flat.srcHost,
        srcDevice: flat.srcDevice,
        srcArray: flat.srcArray,
        srcPitch: flat.srcPitch,
        dstXInBytes: flat.dstXInBytes,
        dstY: flat.dstY,
        dstMemoryType: flat.dstMemoryType,
        dstHost: flat.dstHost,
        dstDevice: flat.dstDevice,
        dstArray: flat.dstArray,
        dstPitch: flat.dstPitch,
        WidthInBytes: flat.WidthInBytes,
        Height: flat.Height,
        Depth: 1,
        ..blank()
    }
}

/// Returns a copy between contexts as a copy without contexts, because the addresses identify the
/// memory.
fn without_contexts(peer: &CUDA_MEMCPY3D_PEER) -> Result<CUDA_MEMCPY3D> {
    for context in [peer.srcContext, peer.dstContext] {
        crate::context::by_handle(context as usize)?;
    }
    // SAFETY: the structs have the same fields, except that one has reserved pointers where the
    // other has contexts.
    let copy = unsafe { std::ptr::from_ref(peer).cast::<CUDA_MEMCPY3D>().read() };
    Ok(CUDA_MEMCPY3D { reserved0: std::ptr::null_mut(), reserved1: std::ptr::null_mut(), ..copy })
}

/// Returns a copy of a batch as a copy of its own. The extent counts elements, which are bytes if
/// no side is an array.
fn boxed(copy: &CUDA_MEMCPY3D_BATCH_OP) -> Result<CUDA_MEMCPY3D> {
    let CUextent3D { width, height, depth } = copy.extent;
    status::refuse(width == 0 || height == 0 || depth == 0)?;
    let arrays =
        [&copy.src, &copy.dst].into_iter().filter(|side| side.r#type == CU_MEMCPY_OPERAND_TYPE_ARRAY);
    let sizes =
        arrays.map(|side| array::element_bytes_of(side.op[0] as usize)).collect::<Result<Vec<_>>>()?;
    let element = sizes.first().copied().unwrap_or(1) as usize;
    let mut params = CUDA_MEMCPY3D { WidthInBytes: width * element, Height: height, Depth: depth, ..blank() };
    match copy.src.r#type {
        CU_MEMCPY_OPERAND_TYPE_POINTER => {
            params.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
            params.srcDevice = copy.src.op[0];
            (params.srcPitch, params.srcHeight) =
                (copy.src.op[1] as usize * element, copy.src.op[2] as usize);
        }
        CU_MEMCPY_OPERAND_TYPE_ARRAY => {
            params.srcMemoryType = CU_MEMORYTYPE_ARRAY;
            params.srcArray = copy.src.op[0] as CUarray;
            params.srcXInBytes = copy.src.op[1] as usize * element;
            (params.srcY, params.srcZ) = (copy.src.op[2] as usize, copy.src.op[3] as usize);
        }
        _ => return Err(status::INVALID_VALUE),
    }
    match copy.dst.r#type {
        CU_MEMCPY_OPERAND_TYPE_POINTER => {
            params.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
            params.dstDevice = copy.dst.op[0];
            (params.dstPitch, params.dstHeight) =
                (copy.dst.op[1] as usize * element, copy.dst.op[2] as usize);
        }
        CU_MEMCPY_OPERAND_TYPE_ARRAY => {
            params.dstMemoryType = CU_MEMORYTYPE_ARRAY;
            params.dstArray = copy.dst.op[0] as CUarray;
            params.dstXInBytes = copy.dst.op[1] as usize * element;
            (params.dstY, params.dstZ) = (copy.dst.op[2] as usize, copy.dst.op[3] as usize);
        }
        _ => return Err(status::INVALID_VALUE),
    }
    Ok(params)
}

/// Makes the copies of a batch one after another, and returns the error of the first that fails,
/// with its number.
fn batch(
    count: usize,
    stream: CUstream,
    copy: impl Fn(usize) -> Result<()>,
) -> std::result::Result<(), (status::Status, usize)> {
    // The reference requires a stream other than the default streams for a batch.
    if count == 0 || stream as usize <= CU_STREAM_LEGACY as usize {
        return Err((status::INVALID_VALUE, usize::MAX));
    }
    (0..count).try_for_each(|number| copy(number).map_err(|error| (error, number)))
}

/// Checks the attributes of a batch: each entry names its first copy.
fn check_attributes(firsts: &[usize], count: usize) -> Result<()> {
    let is_whole = firsts.first() == Some(&0) && firsts.last().is_some_and(|last| *last < count);
    status::refuse(!is_whole || !firsts.is_sorted_by(|one, next| one < next))
}

fn check_contexts(contexts: [CUcontext; 2]) -> Result<()> {
    contexts.into_iter().try_for_each(|context| crate::context::by_handle(context as usize).map(|_| ()))
}

/// Returns a linear copy with an array on one side, at an offset into the array's first row.
fn with_array(array: CUarray, offset: usize, other: u64, is_source: bool, bytes: usize) -> CUDA_MEMCPY3D {
    let mut params = describe_linear(other, other, bytes as u64);
    if is_source {
        params.srcMemoryType = CU_MEMORYTYPE_ARRAY;
        params.srcArray = array;
        params.srcXInBytes = offset;
    } else {
        params.dstMemoryType = CU_MEMORYTYPE_ARRAY;
        params.dstArray = array;
        params.dstXInBytes = offset;
    }
    params
}

fn fill_now(fill: Fill, default: DefaultStream) -> Result<()> {
    let stream = synchronous(default)?;
    stream.submit(Operation::Fill(fill.check()?))
}

fn fill(fill: Fill, stream: CUstream, default: DefaultStream) -> Result<()> {
    let fill = fill.check()?;
    stream::resolve(stream as usize, default)?.submit(Operation::Fill(fill))
}

fn row(address: u64, value: u32, element_bytes: u32, count: usize) -> Fill {
    Fill { address, pitch_bytes: 0, value, element_bytes, width: count as u64, height: 1 }
}

fn rows(address: u64, pitch: usize, value: u32, element_bytes: u32, width: usize, height: usize) -> Fill {
    Fill {
        address,
        pitch_bytes: pitch as u64,
        value,
        element_bytes,
        width: width as u64,
        height: height as u64,
    }
}

/// Moves managed memory. Only memory that is not at the target yet takes time. The bytes themselves
/// stay at an address that both sides see.
pub fn prefetch(stream: Arc<Stream>, (address, bytes): (u64, u64), device: CUdevice) -> Result<()> {
    status::refuse_as(stream.is_capturing(), status::STREAM_CAPTURE_UNSUPPORTED)?;
    capture::refuse_implicit(&stream)?;
    for work in residency::prefetch(address, bytes, device).work() {
        stream.enqueue(work)?;
    }
    Ok(())
}

calls! {
    cuMemcpy | cuMemcpy_ptds(dst, src, ByteCount) |default| { linear_now(dst, src, ByteCount, default)? }
    cuMemcpyAsync | cuMemcpyAsync_ptsz(dst, src, ByteCount, hStream) |default| {
        linear(dst, src, ByteCount, hStream, default)?;
    }
    cuMemcpyHtoD_v2 | cuMemcpyHtoD_v2_ptds(dstDevice, srcHost, ByteCount) |default| {
        linear_now(on_device(dstDevice, ByteCount)?, srcHost as u64, ByteCount, default)?;
    }
    cuMemcpyDtoH_v2 | cuMemcpyDtoH_v2_ptds(dstHost, srcDevice, ByteCount) |default| {
        linear_now(dstHost as u64, on_device(srcDevice, ByteCount)?, ByteCount, default)?;
    }
    cuMemcpyDtoD_v2 | cuMemcpyDtoD_v2_ptds(dstDevice, srcDevice, ByteCount) |default| {
        linear_now(on_device(dstDevice, ByteCount)?, on_device(srcDevice, ByteCount)?, ByteCount, default)?;
    }
    cuMemcpyHtoDAsync_v2 | cuMemcpyHtoDAsync_v2_ptsz(dstDevice, srcHost, ByteCount, hStream) |default| {
        linear(on_device(dstDevice, ByteCount)?, srcHost as u64, ByteCount, hStream, default)?;
    }
    cuMemcpyDtoHAsync_v2 | cuMemcpyDtoHAsync_v2_ptsz(dstHost, srcDevice, ByteCount, hStream) |default| {
        linear(dstHost as u64, on_device(srcDevice, ByteCount)?, ByteCount, hStream, default)?;
    }
    cuMemcpyDtoDAsync_v2 | cuMemcpyDtoDAsync_v2_ptsz(dstDevice, srcDevice, ByteCount, hStream) |default| {
        let ends = [on_device(dstDevice, ByteCount)?, on_device(srcDevice, ByteCount)?];
        linear(ends[0], ends[1], ByteCount, hStream, default)?;
    }
    cuMemcpyPeer | cuMemcpyPeer_ptds(dstDevice, dstContext, srcDevice, srcContext, ByteCount) |default| {
        check_contexts([dstContext, srcContext])?;
        linear_now(on_device(dstDevice, ByteCount)?, on_device(srcDevice, ByteCount)?, ByteCount, default)?;
    }
    cuMemcpyPeerAsync | cuMemcpyPeerAsync_ptsz(
        dstDevice, dstContext, srcDevice, srcContext, ByteCount, hStream
    ) |default| {
        check_contexts([dstContext, srcContext])?;
        let ends = [on_device(dstDevice, ByteCount)?, on_device(srcDevice, ByteCount)?];
        linear(ends[0], ends[1], ByteCount, hStream, default)?;
    }
    cuMemcpy2D_v2 | cuMemcpy2D_v2_ptds(pCopy) |default| { strided_now(&deepen(&read!(pCopy)), default)? }
    cuMemcpy2DUnaligned_v2 | cuMemcpy2DUnaligned_v2_ptds(pCopy) |default| {
        strided_now(&deepen(&read!(pCopy)), default)?;
    }
    cuMemcpy2DAsync_v2 | cuMemcpy2DAsync_v2_ptsz(pCopy, hStream) |default| {
        strided(deepen(&read!(pCopy)), hStream, default)?;
    }
    cuMemcpy3D_v2 | cuMemcpy3D_v2_ptds(pCopy) |default| { strided_now(&read!(pCopy), default)? }
    cuMemcpy3DAsync_v2 | cuMemcpy3DAsync_v2_ptsz(pCopy, hStream) |default| {
        strided(read!(pCopy), hStream, default)?;
    }
    cuMemcpy3DPeer | cuMemcpy3DPeer_ptds(pCopy) |default| {
        strided_now(&without_contexts(&read!(pCopy))?, default)?;
    }
    cuMemcpy3DPeerAsync | cuMemcpy3DPeerAsync_ptsz(pCopy, hStream) |default| {
        strided(without_contexts(&read!(pCopy))?, hStream, default)?;
    }
    cuMemcpyAtoD_v2 | cuMemcpyAtoD_v2_ptds(dstDevice, srcArray, srcOffset, ByteCount) |default| {
        strided_now(&with_array(srcArray, srcOffset, dstDevice, true, ByteCount), default)?;
    }
    cuMemcpyDtoA_v2 | cuMemcpyDtoA_v2_ptds(dstArray, dstOffset, srcDevice, ByteCount) |default| {
        strided_now(&with_array(dstArray, dstOffset, srcDevice, false, ByteCount), default)?;
    }
    cuMemcpyAtoH_v2 | cuMemcpyAtoH_v2_ptds(dstHost, srcArray, srcOffset, ByteCount) |default| {
        strided_now(&with_array(srcArray, srcOffset, dstHost as u64, true, ByteCount), default)?;
    }
    cuMemcpyHtoA_v2 | cuMemcpyHtoA_v2_ptds(dstArray, dstOffset, srcHost, ByteCount) |default| {
        strided_now(&with_array(dstArray, dstOffset, srcHost as u64, false, ByteCount), default)?;
    }
    cuMemcpyAtoHAsync_v2 | cuMemcpyAtoHAsync_v2_ptsz(
        dstHost, srcArray, srcOffset, ByteCount, hStream
    ) |default| {
        strided(with_array(srcArray, srcOffset, dstHost as u64, true, ByteCount), hStream, default)?;
    }
    cuMemcpyHtoAAsync_v2 | cuMemcpyHtoAAsync_v2_ptsz(
        dstArray, dstOffset, srcHost, ByteCount, hStream
    ) |default| {
        strided(with_array(dstArray, dstOffset, srcHost as u64, false, ByteCount), hStream, default)?;
    }
    cuMemsetD8_v2 | cuMemsetD8_v2_ptds(dstDevice, uc, N) |default| {
        fill_now(row(dstDevice, uc.into(), 1, N), default)?;
    }
    cuMemsetD16_v2 | cuMemsetD16_v2_ptds(dstDevice, us, N) |default| {
        fill_now(row(dstDevice, us.into(), 2, N), default)?;
    }
    cuMemsetD32_v2 | cuMemsetD32_v2_ptds(dstDevice, ui, N) |default| {
        fill_now(row(dstDevice, ui, 4, N), default)?;
    }
    cuMemsetD2D8_v2 | cuMemsetD2D8_v2_ptds(dstDevice, dstPitch, uc, Width, Height) |default| {
        fill_now(rows(dstDevice, dstPitch, uc.into(), 1, Width, Height), default)?;
    }
    cuMemsetD2D16_v2 | cuMemsetD2D16_v2_ptds(dstDevice, dstPitch, us, Width, Height) |default| {
        fill_now(rows(dstDevice, dstPitch, us.into(), 2, Width, Height), default)?;
    }
    cuMemsetD2D32_v2 | cuMemsetD2D32_v2_ptds(dstDevice, dstPitch, ui, Width, Height) |default| {
        fill_now(rows(dstDevice, dstPitch, ui, 4, Width, Height), default)?;
    }
    cuMemsetD8Async | cuMemsetD8Async_ptsz(dstDevice, uc, N, hStream) |default| {
        fill(row(dstDevice, uc.into(), 1, N), hStream, default)?;
    }
    cuMemsetD16Async | cuMemsetD16Async_ptsz(dstDevice, us, N, hStream) |default| {
        fill(row(dstDevice, us.into(), 2, N), hStream, default)?;
    }
    cuMemsetD32Async | cuMemsetD32Async_ptsz(dstDevice, ui, N, hStream) |default| {
        fill(row(dstDevice, ui, 4, N), hStream, default)?;
    }
    cuMemsetD2D8Async | cuMemsetD2D8Async_ptsz(dstDevice, dstPitch, uc, Width, Height, hStream) |default| {
        fill(rows(dstDevice, dstPitch, uc.into(), 1, Width, Height), hStream, default)?;
    }
    cuMemsetD2D16Async | cuMemsetD2D16Async_ptsz(dstDevice, dstPitch, us, Width, Height, hStream) |default| {
        fill(rows(dstDevice, dstPitch, us.into(), 2, Width, Height), hStream, default)?;
    }
    cuMemsetD2D32Async | cuMemsetD2D32Async_ptsz(dstDevice, dstPitch, ui, Width, Height, hStream) |default| {
        fill(rows(dstDevice, dstPitch, ui, 4, Width, Height), hStream, default)?;
    }
    cuMemcpyWithAttributesAsync | cuMemcpyWithAttributesAsync_ptsz(dst, src, size, attr, hStream) |default| {
        status::refuse(attr.is_null())?;
        linear(dst, src, size, hStream, default)?;
    }
    cuMemcpy3DWithAttributesAsync | cuMemcpy3DWithAttributesAsync_ptsz(op, flags, hStream) |default| {
        status::refuse(flags != 0)?;
        strided(boxed(&read!(op))?, hStream, default)?;
    }
    cuMemcpyBatchAsync | cuMemcpyBatchAsync_ptsz(
        dsts, srcs, sizes, count, _attrs, attrsIdxs, numAttrs, failIdx, hStream
    ) |default| {
        let (targets, sources): (&[CUdeviceptr], &[CUdeviceptr]) = (slice!(dsts, count), slice!(srcs, count));
        let lengths: &[usize] = slice!(sizes, count);
        check_attributes(slice!(attrsIdxs, numAttrs), count)?;
        let copy = |at: usize| linear(targets[at], sources[at], lengths[at], hStream, default);
        if let Err((error, number)) = batch(count, hStream, copy) {
            give_if_wanted!(failIdx, number);
            return Err(error);
        }
    }
    cuMemcpyBatchAsync_v2 | cuMemcpyBatchAsync_v2_ptsz(
        dsts, srcs, sizes, count, _attrs, attrsIdxs, numAttrs, hStream
    ) |default| {
        let (targets, sources): (&[CUdeviceptr], &[CUdeviceptr]) = (slice!(dsts, count), slice!(srcs, count));
        let lengths: &[usize] = slice!(sizes, count);
        check_attributes(slice!(attrsIdxs, numAttrs), count)?;
        let copy = |at: usize| linear(targets[at], sources[at], lengths[at], hStream, default);
        batch(count, hStream, copy).map_err(|(error, _)| error)?;
    }
    cuMemcpy3DBatchAsync | cuMemcpy3DBatchAsync_ptsz(numOps, opList, failIdx, flags, hStream) |default| {
        let list: &[CUDA_MEMCPY3D_BATCH_OP] = slice!(opList, numOps);
        status::refuse(flags != 0)?;
        if let Err((error, number)) = batch(numOps, hStream, |at| strided(boxed(&list[at])?, hStream, default)) {
            give_if_wanted!(failIdx, number);
            return Err(error);
        }
    }
    cuMemcpy3DBatchAsync_v2 | cuMemcpy3DBatchAsync_v2_ptsz(numOps, opList, flags, hStream) |default| {
        let list: &[CUDA_MEMCPY3D_BATCH_OP] = slice!(opList, numOps);
        status::refuse(flags != 0)?;
        let copy = |at: usize| strided(boxed(&list[at])?, hStream, default);
        batch(numOps, hStream, copy).map_err(|(error, _)| error)?;
    }
}
