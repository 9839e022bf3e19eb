//! Virtual memory management.
use std::ffi::c_void;

use deepres_abi::driver::types::*;

use crate::memory::{self, Kind};
use crate::status::{self, Result};
use crate::vmm;

pub fn cuMemGetAllocationGranularity(
    granularity: *mut usize,
    prop: *const CUmemAllocationProp,
    option: CUmemAllocationGranularity_flags,
) -> Result<()> {
    if option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED {
        return Err(status::INVALID_VALUE);
    }
    give!(granularity, vmm::granularity(&read!(prop))? as usize);
    Ok(())
}

pub fn cuMemCreate(
    handle: *mut CUmemGenericAllocationHandle,
    size: usize,
    prop: *const CUmemAllocationProp,
    flags: u64,
) -> Result<()> {
    let properties = read!(prop);
    if handle.is_null() {
        return Err(status::INVALID_VALUE);
    }
    give!(handle, vmm::create(size as u64, &properties, flags)?.handle as CUmemGenericAllocationHandle);
    Ok(())
}

pub fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> Result<()> {
    vmm::release(handle as usize)
}

pub fn cuMemRetainAllocationHandle(
    handle: *mut CUmemGenericAllocationHandle,
    addr: *mut c_void,
) -> Result<()> {
    if handle.is_null() {
        return Err(status::INVALID_VALUE);
    }
    give!(handle, vmm::retain(addr as u64)? as CUmemGenericAllocationHandle);
    Ok(())
}

pub fn cuMemGetAllocationPropertiesFromHandle(
    prop: *mut CUmemAllocationProp,
    handle: CUmemGenericAllocationHandle,
) -> Result<()> {
    give!(prop, vmm::properties(&*vmm::by_handle(handle as usize)?));
    Ok(())
}

pub fn cuMemAddressReserve(
    ptr: *mut CUdeviceptr,
    size: usize,
    alignment: usize,
    addr: CUdeviceptr,
    flags: u64,
) -> Result<()> {
    if ptr.is_null() || flags != 0 {
        return Err(status::INVALID_VALUE);
    }
    give!(ptr, vmm::reserve(size as u64, alignment as u64, addr)?);
    Ok(())
}

pub fn cuMemAddressFree(ptr: CUdeviceptr, size: usize) -> Result<()> {
    vmm::unreserve(ptr, size as u64)
}

pub fn cuMemMap(
    ptr: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
) -> Result<()> {
    vmm::map(ptr, size as u64, offset as u64, handle as usize, flags)
}

pub fn cuMemUnmap(ptr: CUdeviceptr, size: usize) -> Result<()> {
    vmm::unmap(ptr, size as u64)
}

pub fn cuMemSetAccess(
    ptr: CUdeviceptr,
    size: usize,
    desc: *const CUmemAccessDesc,
    count: usize,
) -> Result<()> {
    vmm::set_access(ptr, size as u64, slice!(desc.cast_mut(), count))
}

pub fn cuMemGetAccess(flags: *mut u64, location: *const CUmemLocation, ptr: CUdeviceptr) -> Result<()> {
    let location = read!(location);
    let found = memory::find(ptr).ok_or(status::INVALID_VALUE)?;
    let Kind::Mapped { access, .. } = found.kind else { return Err(status::INVALID_VALUE) };
    if location.r#type != CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(status::INVALID_VALUE);
    }
    give!(flags, access.into());
    Ok(())
}

pub fn cuMemExportToShareableHandle(
    shareableHandle: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    handleType: CUmemAllocationHandleType,
    flags: u64,
) -> Result<()> {
    if flags != 0 || shareableHandle.is_null() {
        return Err(status::INVALID_VALUE);
    }
    give!(shareableHandle.cast::<i32>(), vmm::export(handle as usize, handleType)?);
    Ok(())
}

pub fn cuMemImportFromShareableHandle(
    handle: *mut CUmemGenericAllocationHandle,
    osHandle: *mut c_void,
    shHandleType: CUmemAllocationHandleType,
) -> Result<()> {
    if handle.is_null() {
        return Err(status::INVALID_VALUE);
    }
    // A descriptor is passed as the pointer itself.
    let descriptor = i32::try_from(osHandle as usize).map_err(|_| status::INVALID_VALUE)?;
    give!(handle, vmm::import(descriptor, shHandleType)?.handle as CUmemGenericAllocationHandle);
    Ok(())
}
