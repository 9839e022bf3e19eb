//! The driver functions of virtual memory management: reservations, physical memory and mappings.
use super::prelude::*;
use crate::memory::{self, Kind};
use crate::vmm;

calls! {
    cuMemGetAllocationGranularity(granularity, prop, option) {
        status::refuse(option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)?;
        give!(granularity, vmm::granularity(&read!(prop))? as usize);
    }
    cuMemCreate(handle, size, prop, flags) {
        let properties = read!(prop);
        status::refuse(handle.is_null())?;
        give!(handle, vmm::create(size as u64, &properties, flags)?.handle as CUmemGenericAllocationHandle);
    }
    cuMemRelease(handle) { vmm::release(handle as usize)? }
    cuMemRetainAllocationHandle(handle, addr) {
        status::refuse(handle.is_null())?;
        give!(handle, vmm::retain(addr as u64)? as CUmemGenericAllocationHandle);
    }
    cuMemGetAllocationPropertiesFromHandle(prop, handle) {
        give!(prop, vmm::properties(&*vmm::by_handle(handle as usize)?));
    }
    cuMemAddressReserve(ptr, size, alignment, addr, flags) {
        status::refuse(ptr.is_null() || flags != 0)?;
        give!(ptr, vmm::reserve(size as u64, alignment as u64, addr)?);
    }
    cuMemAddressFree(ptr, size) { vmm::unreserve(ptr, size as u64)? }
    cuMemMap(ptr, size, offset, handle, flags) {
        vmm::map(ptr, size as u64, offset as u64, handle as usize, flags)?;
    }
    cuMemUnmap(ptr, size) { vmm::unmap(ptr, size as u64)? }
    cuMemSetAccess(ptr, size, desc, count) {
        vmm::set_access(ptr, size as u64, slice!(desc.cast_mut(), count))?;
    }
    cuMemGetAccess(flags, location, ptr) {
        let location = read!(location);
        let found = memory::find(ptr).ok_or(status::INVALID_VALUE)?;
        let Kind::Mapped { access, .. } = found.kind else { return Err(status::INVALID_VALUE) };
        status::refuse(location.r#type != CU_MEM_LOCATION_TYPE_DEVICE)?;
        give!(flags, access.into());
    }
    cuMemExportToShareableHandle(shareableHandle, handle, handleType, flags) {
        status::refuse(flags != 0 || shareableHandle.is_null())?;
        give!(shareableHandle.cast::<i32>(), vmm::export(handle as usize, handleType)?);
    }
    cuMemImportFromShareableHandle(handle, osHandle, shHandleType) {
        status::refuse(handle.is_null())?;
        // For a descriptor, the client passes its number in place of a pointer.
        let descriptor = i32::try_from(osHandle as usize).map_err(|_| status::INVALID_VALUE)?;
        give!(handle, vmm::import(descriptor, shHandleType)?.handle as CUmemGenericAllocationHandle);
    }
}
