//! The driver functions for memory pools and stream-ordered allocation.
use std::os::fd::IntoRawFd as _;

use super::prelude::*;
use crate::account;
use crate::capture;
use crate::graph_memory;
use crate::memory::{self, Kind};
use crate::operation::Operation;
use crate::pool::{self, Pool};
use crate::stream::{self, DefaultStream};

/// Allocates in the stream's order. During a capture the allocation becomes memory of the graph.
fn allocate(
    dptr: *mut CUdeviceptr,
    bytes: usize,
    pool: Option<Arc<Pool>>,
    stream: CUstream,
    default: DefaultStream,
) -> Result<()> {
    status::refuse(dptr.is_null())?;
    let stream = stream::resolve(stream as usize, default)?;
    let pool = match pool {
        Some(pool) => pool,
        None => pool::current_of(stream.context.device)?,
    };
    if !stream.is_capturing() {
        capture::refuse_implicit(&stream)?;
        give!(dptr, pool.allocate(&stream, bytes as u64)?);
        return Ok(());
    }
    let params = CUDA_MEM_ALLOC_NODE_PARAMS {
        poolProps: CUmemPoolProps {
            allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: CU_MEM_HANDLE_TYPE_NONE,
            location: CUmemLocation { r#type: CU_MEM_LOCATION_TYPE_DEVICE, id: pool.device },
            win32SecurityAttributes: std::ptr::null_mut(),
            maxSize: 0,
            usage: 0,
            gpuDirectRDMACapable: 0,
            reserved: [0; 53],
        },
        accessDescs: std::ptr::null(),
        accessDescCount: 0,
        bytesize: bytes,
        dptr: 0,
    };
    let node = graph_memory::Node::new(params, &capture::spare(&stream))?;
    give!(dptr, node.params.dptr);
    capture::add(&stream, Operation::Allocate(Box::new(node)))
}

calls! {
    cuMemAllocAsync | cuMemAllocAsync_ptsz(dptr, bytesize, hStream) |default| {
        allocate(dptr, bytesize, None, hStream, default)?;
    }
    cuMemAllocFromPoolAsync | cuMemAllocFromPoolAsync_ptsz(dptr, bytesize, pool, hStream) |default| {
        allocate(dptr, bytesize, Some(pool::by_handle(pool as usize)?), hStream, default)?;
    }
    cuMemFreeAsync | cuMemFreeAsync_ptsz(dptr, hStream) |default| {
        let stream = stream::resolve(hStream as usize, default)?;
        if stream.is_capturing() {
            return capture::add(&stream, Operation::Free(dptr));
        }
        capture::refuse_implicit(&stream)?;
        if dptr == 0 {
            return Ok(());
        }
        let found = memory::find(dptr).filter(|found| found.base == dptr).ok_or(status::INVALID_VALUE)?;
        match found.kind {
            Kind::Pooled(pool) => pool.free_async(&stream, dptr)?,
            Kind::Graph => graph_memory::free_now(dptr)?,
            // Memory from cuMemAlloc may be freed in stream order too. The driver waits for the
            // stream and then frees the memory, which has the same effect.
            Kind::Device | Kind::External { .. } | Kind::Opened { is_pooled: true, .. } => {
                stream.synchronize()?;
                memory::free(dptr)?;
            }
            _ => return Err(status::INVALID_VALUE),
        }
    }
    cuMemPoolCreate(pool, poolProps) {
        status::refuse(pool.is_null())?;
        give!(pool, Pool::create(&read!(poolProps))?.handle as CUmemoryPool);
    }
    cuMemPoolDestroy(pool) { pool::destroy(pool as usize)? }
    cuMemPoolTrimTo(pool, minBytesToKeep) {
        let pool = pool::by_handle(pool as usize)?;
        account::note_free();
        pool.trim(minBytesToKeep as u64);
    }
    cuMemPoolGetAttribute(pool, attr, value) {
        let answer = pool::by_handle(pool as usize)?.attribute(attr)?;
        if Pool::is_narrow(attr) {
            give!(value.cast::<u32>(), answer as u32);
        } else {
            give!(value.cast::<u64>(), answer);
        }
    }
    cuMemPoolSetAttribute(pool, attr, value) {
        let pool = pool::by_handle(pool as usize)?;
        let wanted = if Pool::is_narrow(attr) {
            read!(value.cast::<u32>()).into()
        } else {
            read!(value.cast::<u64>())
        };
        pool.set_attribute(attr, wanted)?;
    }
    cuMemPoolGetAccess(flags, memPool, location) {
        let location = read!(location);
        status::refuse(location.r#type != CU_MEM_LOCATION_TYPE_DEVICE)?;
        give!(flags, pool::by_handle(memPool as usize)?.access(location.id));
    }
    cuMemPoolSetAccess(pool, map, count) {
        let pool = pool::by_handle(pool as usize)?;
        let descriptors: &[CUmemAccessDesc] = slice!(map.cast_mut(), count);
        for descriptor in descriptors {
            status::refuse(descriptor.location.r#type != CU_MEM_LOCATION_TYPE_DEVICE)?;
            pool.set_access(descriptor.location.id, descriptor.flags)?;
        }
    }
}

/// Returns the device whose pools belong to a location, if any.
fn device_at(location: CUmemLocation, kind: CUmemAllocationType) -> Option<i32> {
    let is_device = location.r#type == CU_MEM_LOCATION_TYPE_DEVICE;
    (is_device && kind == CU_MEM_ALLOCATION_TYPE_PINNED).then_some(location.id)
}

calls! {
    cuMemGetDefaultMemPool(pool_out, location, r#type) {
        let location = read!(location);
        let pool = match device_at(location, r#type) {
            Some(device) => pool::default_of(device)?,
            None => pool::default_at((location.r#type, location.id), r#type)?,
        };
        give!(pool_out, pool.handle as CUmemoryPool);
    }
    cuMemGetMemPool(pool, location, r#type) {
        let location = read!(location);
        let found = match device_at(location, r#type) {
            Some(device) => pool::current_of(device)?,
            None => pool::default_at((location.r#type, location.id), r#type)?,
        };
        give!(pool, found.handle as CUmemoryPool);
    }
    cuMemSetMemPool(location, r#type, pool) {
        let device = device_at(read!(location), r#type).ok_or(status::NOT_SUPPORTED)?;
        pool::set_current(device, pool::by_handle(pool as usize)?)?;
    }
    cuMemPoolExportToShareableHandle(handle_out, pool, handleType, flags) {
        status::refuse(flags != 0 || handle_out.is_null())?;
        let descriptor = pool::by_handle(pool as usize)?.export(handleType)?;
        give!(handle_out.cast::<i32>(), descriptor.into_raw_fd());
    }
    cuMemPoolImportFromShareableHandle(pool_out, handle, handleType, flags) {
        status::refuse(flags != 0 || pool_out.is_null())?;
        // For a descriptor, the client passes its number in place of a pointer.
        let descriptor = i32::try_from(handle as usize).map_err(|_| status::INVALID_VALUE)?;
        give!(pool_out, Pool::import(descriptor, handleType)?.handle as CUmemoryPool);
    }
    cuMemPoolExportPointer(shareData_out, ptr) {
        status::refuse(shareData_out.is_null())?;
        give!(shareData_out.cast::<[u8; 64]>(), Pool::export_pointer(ptr)?);
    }
    cuMemPoolImportPointer(ptr_out, pool, shareData) {
        status::refuse(ptr_out.is_null())?;
        let data = read!(shareData.cast::<[u8; 64]>());
        give!(ptr_out, pool::by_handle(pool as usize)?.import_pointer(data)?);
    }
}
