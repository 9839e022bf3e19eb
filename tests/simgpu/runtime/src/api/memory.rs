//! Memory: allocations, queries about addresses, and handles of other processes.

use std::ptr::null_mut;

use deepres_abi::driver::types as cu;
use simgpu_driver::{Error, Result, driver};

use crate::edge;
use crate::table::errors;
use crate::table::types::*;

/// The element size that the runtime gives for the rows of a pitched allocation, bytes.
const PITCH_ELEMENT_BYTES: u32 = 4;

/// Writes a NULL address for an allocation of 0 bytes, which the driver would refuse. Returns
/// whether the allocation has 0 bytes.
fn is_empty(address: *mut *mut c_void, bytes: usize) -> Result<bool> {
    edge::refuse(address.is_null())?;
    if bytes == 0 {
        give!(address, null_mut());
    }
    Ok(bytes == 0)
}

calls! {
    cudaMalloc(devPtr, size) {
        if !is_empty(devPtr, size)? {
            driver!(cuMemAlloc_v2(devPtr.cast(), size));
        }
    }
    cudaMallocPitch(devPtr, pitch, width, height) {
        if !is_empty(devPtr, width * height)? {
            driver!(cuMemAllocPitch_v2(devPtr.cast(), pitch, width, height, PITCH_ELEMENT_BYTES));
        }
    }
    cudaMallocAsync(devPtr, size, hStream) {
        if !is_empty(devPtr, size)? {
            driver!(cuMemAllocAsync(devPtr.cast(), size, hStream));
        }
    }
    cudaMallocHost(ptr, size) {
        if !is_empty(ptr, size)? {
            driver!(cuMemHostAlloc(ptr, size, 0));
        }
    }
    cudaHostAlloc(pHost, size, flags) {
        if !is_empty(pHost, size)? {
            driver!(cuMemHostAlloc(pHost, size, flags));
        }
    }
    cudaFree(devPtr) {
        if !devPtr.is_null() {
            driver!(cuMemFree_v2(devPtr as u64));
        }
    }
    cudaFreeAsync(devPtr, hStream) {
        if !devPtr.is_null() {
            driver!(cuMemFreeAsync(devPtr as u64, hStream));
        }
    }
    cudaFreeHost(ptr) {
        if !ptr.is_null() {
            driver!(cuMemFreeHost(ptr));
        }
    }
    cudaMemAdvise(devPtr, count, advice, location) {
        driver!(cuMemAdvise_v2(devPtr as u64, count, advice, place(location)));
    }
    cudaMemPrefetchAsync(devPtr, count, location, flags, stream) {
        driver!(cuMemPrefetchAsync_v2(devPtr as u64, count, place(location), flags, stream));
    }
    cudaIpcOpenMemHandle(devPtr, handle, flags) {
        let handle = cu::CUipcMemHandle { reserved: handle.reserved };
        driver!(cuIpcOpenMemHandle_v2(devPtr.cast(), handle, flags));
    }
    cudaIpcOpenEventHandle(event, handle) {
        driver!(cuIpcOpenEventHandle(event, cu::CUipcEventHandle { reserved: handle.reserved }));
    }
    cudaPointerGetAttributes(attributes, ptr) { give!(attributes, facts(ptr)?) }
}

fn place(location: cudaMemLocation) -> cu::CUmemLocation {
    cu::CUmemLocation { r#type: location.r#type, id: location.id }
}

/// Returns the facts about an address. An address that the driver does not know is an address of
/// host memory.
fn facts(address: *const c_void) -> Result<cudaPointerAttributes> {
    let (mut kind, mut managed, mut ordinal) = (0_u32, 0_u32, cu::CU_DEVICE_INVALID);
    let (mut on_device, mut on_host) = (null_mut::<c_void>(), null_mut::<c_void>());
    let mut wanted = [
        cu::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        cu::CU_POINTER_ATTRIBUTE_IS_MANAGED,
        cu::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        cu::CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
        cu::CU_POINTER_ATTRIBUTE_HOST_POINTER,
    ];
    let mut places = [
        (&raw mut kind).cast(),
        (&raw mut managed).cast(),
        (&raw mut ordinal).cast(),
        (&raw mut on_device).cast(),
        (&raw mut on_host).cast(),
    ];
    let count = wanted.len() as u32;
    let ask = |wanted: *mut u32, places: *mut *mut c_void| -> Result<()> {
        driver!(cuPointerGetAttributes(count, wanted, places, address as u64));
        Ok(())
    };
    match ask(wanted.as_mut_ptr(), places.as_mut_ptr()) {
        Err(Error(errors::cudaErrorInvalidValue)) => kind = 0,
        asked => asked?,
    }
    let kind = match kind {
        0 => cudaMemoryTypeUnregistered,
        _ if managed & 0xff != 0 => cudaMemoryTypeManaged,
        cu::CU_MEMORYTYPE_HOST => cudaMemoryTypeHost,
        _ => cudaMemoryTypeDevice,
    };
    if kind == cudaMemoryTypeUnregistered {
        (ordinal, on_device, on_host) = (cu::CU_DEVICE_INVALID, null_mut(), address.cast_mut());
    }
    Ok(cudaPointerAttributes {
        r#type: kind,
        device: ordinal,
        devicePointer: on_device,
        hostPointer: on_host,
        unused: 0,
        reserved: [0; 7],
    })
}

calls! {
    cudaMemset(devPtr, value, count) {
        if count != 0 {
            driver!(cuMemsetD8_v2(devPtr as u64, value as u8, count));
        }
    }
    cudaMemsetAsync(devPtr, value, count, stream) {
        if count != 0 {
            driver!(cuMemsetD8Async(devPtr as u64, value as u8, count, stream));
        }
    }
    cudaMemset2D(devPtr, pitch, value, width, height) {
        if width * height != 0 {
            driver!(cuMemsetD2D8_v2(devPtr as u64, pitch, value as u8, width, height));
        }
    }
    cudaMemset2DAsync(devPtr, pitch, value, width, height, stream) {
        if width * height != 0 {
            driver!(cuMemsetD2D8Async(devPtr as u64, pitch, value as u8, width, height, stream));
        }
    }
}
