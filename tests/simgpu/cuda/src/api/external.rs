//! External memory. This file declares the structs, because the table of types has only the structs
//! that the interposer reads.
use super::prelude::*;
use crate::external;

/// `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`. Of the union of handles, this struct declares only the file
/// descriptor.
#[repr(C)]
#[derive(Clone, Copy)]
struct HandleDescription {
    kind: u32,
    padding: u32,
    descriptor: i32,
    rest_of_handle: [i32; 3],
    bytes: u64,
    flags: u32,
    reserved: [u32; 16],
}

/// The C struct `CUDA_EXTERNAL_MEMORY_BUFFER_DESC`.
#[repr(C)]
#[derive(Clone, Copy)]
struct BufferDescription {
    offset: u64,
    bytes: u64,
    flags: u32,
    reserved: [u32; 16],
}

/// The C struct `CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ArrayDescription {
    offset: u64,
    array: CUDA_ARRAY3D_DESCRIPTOR,
    levels: u32,
    reserved: [u32; 16],
}

calls! {
    cuImportExternalMemory(extMem_out, memHandleDesc) {
        let description = read!(memHandleDesc.cast::<HandleDescription>());
        if extMem_out.is_null() || description.flags & !CUDA_EXTERNAL_MEMORY_DEDICATED != 0 {
            return Err(status::INVALID_VALUE);
        }
        match description.kind {
            CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD => {}
            CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32..=CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD => {
                return Err(status::NOT_SUPPORTED);
            }
            _ => return Err(status::INVALID_VALUE),
        }
        give!(extMem_out, external::import(description.descriptor, description.bytes)? as *mut c_void);
    }
    cuDestroyExternalMemory(extMem) { external::destroy(extMem as usize)? }
    cuExternalMemoryGetMappedBuffer(devPtr, extMem, bufferDesc) {
        let description = read!(bufferDesc.cast::<BufferDescription>());
        status::refuse(devPtr.is_null() || description.flags != 0)?;
        give!(devPtr, external::map_buffer(extMem as usize, description.offset, description.bytes)?);
    }
    cuExternalMemoryGetMappedMipmappedArray(mipmap, extMem, mipmapDesc) {
        let ArrayDescription { offset, array, levels, .. } = read!(mipmapDesc.cast::<ArrayDescription>());
        status::refuse(mipmap.is_null())?;
        give!(mipmap, external::map_array(extMem as usize, offset, array, levels)? as CUmipmappedArray);
    }
}
