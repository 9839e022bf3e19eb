//! Virtual memory management.
use std::ffi::c_void;

use deepres_abi::driver::types::*;

use crate::memory::{self, Kind};
use crate::status;
use crate::vmm;

calls! {
    cuMemGetAllocationGranularity(
        granularity: *mut usize, prop: *const CUmemAllocationProp, option: CUmemAllocationGranularity_flags
    ) {
        status::refuse(option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)?;
        give!(granularity, vmm::granularity(&read!(prop))? as usize);
    }
    cuMemCreate(
        handle: *mut CUmemGenericAllocationHandle, size: usize, prop: *const CUmemAllocationProp, flags: u64
    ) {
        let properties = read!(prop);
        status::refuse(handle.is_null())?;
        give!(handle, vmm::create(size as u64, &properties, flags)?.handle as CUmemGenericAllocationHandle);
    }
    cuMemRelease(handle: CUmemGenericAllocationHandle) { vmm::release(handle as usize)? }
    cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, addr: *mut c_void) {
        status::refuse(handle.is_null())?;
        give!(handle, vmm::retain(addr as u64)? as CUmemGenericAllocationHandle);
    }
    cuMemGetAllocationPropertiesFromHandle(
        prop: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle
    ) { give!(prop, vmm::properties(&*vmm::by_handle(handle as usize)?)) }
    cuMemAddressReserve(ptr: *mut CUdeviceptr, size: usize, alignment: usize, addr: CUdeviceptr, flags: u64) {
        status::refuse(ptr.is_null() || flags != 0)?;
        give!(ptr, vmm::reserve(size as u64, alignment as u64, addr)?);
    }
    cuMemAddressFree(ptr: CUdeviceptr, size: usize) { vmm::unreserve(ptr, size as u64)? }
    cuMemMap(ptr: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64) {
        vmm::map(ptr, size as u64, offset as u64, handle as usize, flags)?;
    }
    cuMemUnmap(ptr: CUdeviceptr, size: usize) { vmm::unmap(ptr, size as u64)? }
    cuMemSetAccess(ptr: CUdeviceptr, size: usize, desc: *const CUmemAccessDesc, count: usize) {
        vmm::set_access(ptr, size as u64, slice!(desc.cast_mut(), count))?;
    }
    cuMemGetAccess(flags: *mut u64, location: *const CUmemLocation, ptr: CUdeviceptr) {
        let location = read!(location);
        let found = memory::find(ptr).ok_or(status::INVALID_VALUE)?;
        let Kind::Mapped { access, .. } = found.kind else { return Err(status::INVALID_VALUE) };
        status::refuse(location.r#type != CU_MEM_LOCATION_TYPE_DEVICE)?;
        give!(flags, access.into());
    }
    cuMemExportToShareableHandle(
        shareableHandle: *mut c_void, handle: CUmemGenericAllocationHandle,
        handleType: CUmemAllocationHandleType, flags: u64
    ) {
        status::refuse(flags != 0 || shareableHandle.is_null())?;
        give!(shareableHandle.cast::<i32>(), vmm::export(handle as usize, handleType)?);
    }
    cuMemImportFromShareableHandle(
        handle: *mut CUmemGenericAllocationHandle, osHandle: *mut c_void,
        shHandleType: CUmemAllocationHandleType
    ) {
        status::refuse(handle.is_null())?;
        // A descriptor is passed as the pointer itself.
        let descriptor = i32::try_from(osHandle as usize).map_err(|_| status::INVALID_VALUE)?;
        give!(handle, vmm::import(descriptor, shHandleType)?.handle as CUmemGenericAllocationHandle);
    }
}
