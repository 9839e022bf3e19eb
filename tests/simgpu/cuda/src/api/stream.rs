//! The driver functions for streams, captures, and stream operations except kernels and copies.
use std::ffi::c_void;

use deepres_abi::driver::types::*;

use super::node::given_dependencies;
use crate::capture;
use crate::context;
use crate::event;
use crate::graph::{self, Dependency};
use crate::memory;
use crate::operation::{MemoryOperation, Operation};
use crate::pending::{Cell, Comparison, HostCall};
use crate::status::{self, Result};
use crate::stream::{self, DefaultStream, Stream};

/// `CUstreamBatchMemOpParams` in the form for waits and writes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemoryOperationParams {
    operation: u32,
    address: u64,
    value: u64,
    flags: u32,
    alias: u64,
    rest: u64,
}

const _: () = assert!(size_of::<MemoryOperationParams>() == 48);

/// The low bits of a wait's flags, which hold the comparison.
const COMPARISON_MASK: u32 = 3;
/// The most operations in one batch.
const MAX_BATCH: u32 = 256;

fn create(phStream: *mut CUstream, flags: u32, priority: i32) -> Result<()> {
    status::refuse(phStream.is_null())?;
    let stream = Stream::create(&context::current()?, context::current_green().as_ref(), flags, priority)?;
    give!(phStream, stream.handle as CUstream);
    Ok(())
}

calls! {
    cuStreamCreate(phStream, Flags) { create(phStream, Flags, 0)? }
    cuStreamCreateWithPriority(phStream, flags, priority) { create(phStream, flags, priority)? }
    cuStreamDestroy | cuStreamDestroy_v2(hStream) { stream::destroy(hStream as usize)? }
}

fn cell(address: CUdeviceptr, value: u64, wide: bool) -> Result<Cell> {
    let bytes = if wide { 8 } else { 4 };
    status::refuse(!address.is_multiple_of(bytes) || !memory::covers(address, bytes))?;
    Ok(Cell { address, value, wide })
}

fn wait(address: CUdeviceptr, value: u64, wide: bool, flags: u32) -> Result<MemoryOperation> {
    status::refuse(flags & !(COMPARISON_MASK | CU_STREAM_WAIT_VALUE_FLUSH) != 0)?;
    let comparison = match flags & COMPARISON_MASK {
        CU_STREAM_WAIT_VALUE_GEQ => Comparison::AtLeast,
        CU_STREAM_WAIT_VALUE_EQ => Comparison::Equal,
        CU_STREAM_WAIT_VALUE_AND => Comparison::And,
        _ => Comparison::Nor,
    };
    Ok(MemoryOperation::Wait(cell(address, value, wide)?, comparison))
}

fn write(address: CUdeviceptr, value: u64, wide: bool, flags: u32) -> Result<MemoryOperation> {
    status::refuse(flags & !CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER != 0)?;
    Ok(MemoryOperation::Write(cell(address, value, wide)?))
}

/// Reads the operations of a batch.
pub fn memory_operations(count: u32, params: *const c_void) -> Result<Vec<MemoryOperation>> {
    status::refuse(count > MAX_BATCH)?;
    let list: &[MemoryOperationParams] = slice!(params.cast::<MemoryOperationParams>().cast_mut(), count);
    list.iter()
        .map(|one| match one.operation {
            CU_STREAM_MEM_OP_WAIT_VALUE_32 => {
                wait(one.address, one.value & u64::from(u32::MAX), false, one.flags)
            }
            CU_STREAM_MEM_OP_WAIT_VALUE_64 => wait(one.address, one.value, true, one.flags),
            CU_STREAM_MEM_OP_WRITE_VALUE_32 => {
                write(one.address, one.value & u64::from(u32::MAX), false, one.flags)
            }
            CU_STREAM_MEM_OP_WRITE_VALUE_64 => write(one.address, one.value, true, one.flags),
            CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES | CU_STREAM_MEM_OP_BARRIER => Ok(MemoryOperation::Barrier),
            _ => Err(status::INVALID_VALUE),
        })
        .collect()
}

fn submit(stream: CUstream, default: DefaultStream, operations: Vec<MemoryOperation>) -> Result<()> {
    stream::resolve(stream as usize, default)?.submit(Operation::Memory(operations))
}

/// Result pointers of cuStreamGetCaptureInfo.
struct CaptureInfo {
    status: *mut CUstreamCaptureStatus,
    id: *mut u64,
    graph: *mut CUgraph,
    dependencies: *mut *const CUgraphNode,
    edges: *mut *const CUgraphEdgeData,
    count: *mut usize,
}

thread_local! {
    /// Arrays that the thread's last cuStreamGetCaptureInfo returned. By the driver API reference,
    /// the arrays stay valid until the thread's next call.
    static LAST_INFO: std::cell::RefCell<(Vec<CUgraphNode>, Vec<CUgraphEdgeData>)> =
        const { std::cell::RefCell::new((Vec::new(), Vec::new())) };
}

fn capture_info(stream: CUstream, default: DefaultStream, to: &CaptureInfo) -> Result<()> {
    let (state, membership) = capture::status_of(&*stream::resolve(stream as usize, default)?)?;
    give!(to.status, state);
    let Some(membership) = membership.filter(|_| state == CU_STREAM_CAPTURE_STATUS_ACTIVE) else {
        return Ok(());
    };
    give_if_wanted!(to.id, membership.session.id);
    give_if_wanted!(to.graph, membership.session.graph.handle as CUgraph);
    LAST_INFO.with_borrow_mut(|(nodes, edges)| {
        *nodes = membership.after.iter().map(|one| one.node as CUgraphNode).collect();
        *edges = membership.after.iter().map(|one| one.data).collect();
        let is_plain = edges.iter().all(|data| *data == graph::PLAIN_EDGE);
        status::refuse_as(to.edges.is_null() && !is_plain, status::LOSSY_QUERY)?;
        give_if_wanted!(to.dependencies, nodes.as_ptr());
        give_if_wanted!(to.edges, if is_plain { std::ptr::null() } else { edges.as_ptr() });
        give_if_wanted!(to.count, nodes.len());
        Ok(())
    })
}

calls! {
    cuStreamQuery | cuStreamQuery_ptsz(hStream) |default| {
        stream::resolve(hStream as usize, default)?.query()?;
    }
    cuStreamSynchronize | cuStreamSynchronize_ptsz(hStream) |default| {
        stream::resolve(hStream as usize, default)?.synchronize()?;
    }
    cuStreamWaitEvent | cuStreamWaitEvent_ptsz(hStream, hEvent, Flags) |default| {
        let event = event::by_handle(hEvent as usize)?;
        event::wait_in_stream(&stream::resolve(hStream as usize, default)?, &event, Flags)?;
    }
    cuStreamGetPriority | cuStreamGetPriority_ptsz(hStream, priority) |default| {
        give!(priority, stream::resolve(hStream as usize, default)?.priority);
    }
    cuStreamGetFlags | cuStreamGetFlags_ptsz(hStream, flags) |default| {
        give!(flags, stream::resolve(hStream as usize, default)?.flags);
    }
    cuStreamGetId | cuStreamGetId_ptsz(hStream, streamId) |default| {
        give!(streamId, stream::resolve(hStream as usize, default)?.id);
    }
    cuStreamGetCtx | cuStreamGetCtx_ptsz(hStream, pctx) |default| {
        let stream = stream::resolve(hStream as usize, default)?;
        let handle = stream.green.as_ref().map_or(stream.context.handle, |green| green.view());
        give!(pctx, handle as CUcontext);
    }
    cuStreamGetCtx_v2 | cuStreamGetCtx_v2_ptsz(hStream, pCtx, pGreenCtx) |default| {
        let stream = stream::resolve(hStream as usize, default)?;
        give!(pCtx, stream.context.handle as CUcontext);
        give_if_wanted!(pGreenCtx, stream.green.as_ref().map_or(0, |green| green.handle) as CUgreenCtx);
    }
    cuStreamGetDevice | cuStreamGetDevice_ptsz(hStream, device) |default| {
        give!(device, stream::resolve(hStream as usize, default)?.context.device);
    }
    cuStreamGetAttribute | cuStreamGetAttribute_ptsz(hStream, attr, value) |default| {
        let stream = stream::resolve(hStream as usize, default)?;
        give!(value, CUlaunchAttributeValue { pad: stream.attributes.get(attr) });
    }
    cuStreamSetAttribute | cuStreamSetAttribute_ptsz(hStream, attr, param) |default| {
        let stream = stream::resolve(hStream as usize, default)?;
        let value = read!(param);
        // SAFETY: every byte pattern is a valid array of bytes.
        stream.attributes.set(attr, unsafe { value.pad });
    }
    cuStreamCopyAttributes | cuStreamCopyAttributes_ptsz(dstStream, srcStream) |default| {
        let source = stream::resolve(srcStream as usize, default)?;
        stream::resolve(dstStream as usize, default)?.attributes.copy(&source.attributes);
    }
    cuStreamAddCallback | cuStreamAddCallback_ptsz(hStream, callback, userData, flags) |default| {
        let function = callback.ok_or(status::INVALID_VALUE)?;
        status::refuse(flags != 0)?;
        let stream = stream::resolve(hStream as usize, default)?;
        // Unlike host functions, callbacks cannot be part of a graph.
        status::refuse_as(stream.is_capturing(), status::STREAM_CAPTURE_UNSUPPORTED)?;
        stream.submit(Operation::Host(HostCall::Callback(function, hStream as usize, userData as usize)))?;
    }
    cuLaunchHostFunc | cuLaunchHostFunc_ptsz(hStream, function, userData) |default| {
        let function = function.ok_or(status::INVALID_VALUE)?;
        let stream = stream::resolve(hStream as usize, default)?;
        stream.submit(Operation::Host(HostCall::Function(function, userData as usize)))?;
    }
    cuStreamAttachMemAsync | cuStreamAttachMemAsync_ptsz(hStream, dptr, _length, _flags) |default| {
        let stream = stream::resolve(hStream as usize, default)?;
        status::refuse(!memory::find(dptr).is_some_and(|found| found.is_managed()))?;
        status::refuse_as(stream.is_capturing(), status::STREAM_CAPTURE_UNSUPPORTED)?;
    }
    cuStreamWaitValue32_v2 | cuStreamWaitValue32_v2_ptsz(stream, addr, value, flags) |default| {
        submit(stream, default, vec![wait(addr, value.into(), false, flags)?])?;
    }
    cuStreamWaitValue64_v2 | cuStreamWaitValue64_v2_ptsz(stream, addr, value, flags) |default| {
        submit(stream, default, vec![wait(addr, value, true, flags)?])?;
    }
    cuStreamWriteValue32_v2 | cuStreamWriteValue32_v2_ptsz(stream, addr, value, flags) |default| {
        submit(stream, default, vec![write(addr, value.into(), false, flags)?])?;
    }
    cuStreamWriteValue64_v2 | cuStreamWriteValue64_v2_ptsz(stream, addr, value, flags) |default| {
        submit(stream, default, vec![write(addr, value, true, flags)?])?;
    }
    cuStreamBatchMemOp_v2 | cuStreamBatchMemOp_v2_ptsz(stream, count, paramArray, flags) |default| {
        status::refuse(flags != 0)?;
        submit(stream, default, memory_operations(count, paramArray)?)?;
    }
    cuStreamBeginCapture | cuStreamBeginCapture_ptsz(hStream) |default| {
        capture::begin(&stream::resolve(hStream as usize, default)?, CU_STREAM_CAPTURE_MODE_GLOBAL, None)?;
    }
    cuStreamBeginCapture_v2 | cuStreamBeginCapture_v2_ptsz(hStream, mode) |default| {
        capture::begin(&stream::resolve(hStream as usize, default)?, mode, None)?;
    }
    cuStreamBeginCaptureToGraph | cuStreamBeginCaptureToGraph_ptsz(
        hStream, hGraph, nodes, data, count, mode
    ) |default| {
        let target = (graph::by_handle(hGraph as usize)?, given_dependencies(nodes, data, count)?);
        capture::begin(&stream::resolve(hStream as usize, default)?, mode, Some(target))?;
    }
    cuStreamEndCapture | cuStreamEndCapture_ptsz(hStream, phGraph) |default| {
        status::refuse(phGraph.is_null())?;
        let ended = capture::end(&stream::resolve(hStream as usize, default)?);
        give!(phGraph, ended.as_ref().map_or(std::ptr::null_mut(), |graph| graph.handle as CUgraph));
        ended?;
    }
    cuStreamIsCapturing | cuStreamIsCapturing_ptsz(hStream, captureStatus) |default| {
        give!(captureStatus, capture::status_of(&*stream::resolve(hStream as usize, default)?)?.0);
    }
    cuStreamGetCaptureInfo | cuStreamGetCaptureInfo_ptsz(hStream, state, id) |default| {
        let to = CaptureInfo {
            status: state,
            id,
            graph: std::ptr::null_mut(),
            dependencies: std::ptr::null_mut(),
            edges: std::ptr::null_mut(),
            count: std::ptr::null_mut(),
        };
        capture_info(hStream, default, &to)?;
    }
    cuStreamGetCaptureInfo_v2 | cuStreamGetCaptureInfo_v2_ptsz(
        hStream, state, id, graph, dependencies, count
    ) |default| {
        let to = CaptureInfo { status: state, id, graph, dependencies, edges: std::ptr::null_mut(), count };
        capture_info(hStream, default, &to)?;
    }
    cuStreamGetCaptureInfo_v3 | cuStreamGetCaptureInfo_v3_ptsz(
        hStream, state, id, graph, dependencies, edges, count
    ) |default| {
        let to = CaptureInfo { status: state, id, graph, dependencies, edges, count };
        capture_info(hStream, default, &to)?;
    }
    cuStreamUpdateCaptureDependencies | cuStreamUpdateCaptureDependencies_ptsz(
        hStream, nodes, count, flags
    ) |default| {
        update_dependencies(hStream, default, given_dependencies(nodes, std::ptr::null(), count)?, flags)?;
    }
    cuStreamUpdateCaptureDependencies_v2 | cuStreamUpdateCaptureDependencies_v2_ptsz(
        hStream, nodes, data, count, flags
    ) |default| {
        update_dependencies(hStream, default, given_dependencies(nodes, data, count)?, flags)?;
    }
}

fn update_dependencies(
    stream: CUstream,
    default: DefaultStream,
    nodes: Vec<Dependency>,
    flags: u32,
) -> Result<()> {
    status::refuse(flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES)?;
    let stream = stream::resolve(stream as usize, default)?;
    capture::update_dependencies(&stream, nodes, flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
}

calls! {
    cuThreadExchangeStreamCaptureMode(mode) {
        let before = capture::exchange_mode(read!(mode))?;
        give!(mode, before);
    }
}
