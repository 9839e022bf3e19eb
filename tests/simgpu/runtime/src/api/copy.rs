//! The functions of the runtime for copies.

use deepres_abi::driver::types as cu;
use simgpu_driver::{Result, driver};

use crate::code;
use crate::device;
use crate::edge;
use crate::table::types::*;

/// Begins a copy in a stream.
fn copy(to: *mut c_void, from: *const c_void, bytes: usize, kind: u32, stream: cudaStream_t) -> Result<()> {
    edge::refuse(kind > cudaMemcpyDefault)?;
    match kind {
        _ if bytes == 0 => {}
        cudaMemcpyHostToDevice => driver!(cuMemcpyHtoDAsync_v2(to as u64, from, bytes, stream)),
        cudaMemcpyDeviceToHost => driver!(cuMemcpyDtoHAsync_v2(to, from as u64, bytes, stream)),
        cudaMemcpyDeviceToDevice => driver!(cuMemcpyDtoDAsync_v2(to as u64, from as u64, bytes, stream)),
        _ => driver!(cuMemcpyAsync(to as u64, from as u64, bytes, stream)),
    }
    Ok(())
}

/// Copies, and waits for the copy where the driver does.
fn copy_now(to: *mut c_void, from: *const c_void, bytes: usize, kind: u32) -> Result<()> {
    edge::refuse(kind > cudaMemcpyDefault)?;
    match kind {
        _ if bytes == 0 => {}
        cudaMemcpyHostToDevice => driver!(cuMemcpyHtoD_v2(to as u64, from, bytes)),
        cudaMemcpyDeviceToHost => driver!(cuMemcpyDtoH_v2(to, from as u64, bytes)),
        cudaMemcpyDeviceToDevice => driver!(cuMemcpyDtoD_v2(to as u64, from as u64, bytes)),
        _ => driver!(cuMemcpy(to as u64, from as u64, bytes)),
    }
    Ok(())
}

/// The rows of a two-dimensional copy.
struct Rows {
    to: *mut c_void,
    to_pitch: usize,
    from: *const c_void,
    from_pitch: usize,
    width: usize,
    height: usize,
}

impl Rows {
    /// Returns the copy for the driver; `None` if the copy has no bytes.
    fn described(&self, kind: u32) -> Result<Option<cu::CUDA_MEMCPY2D>> {
        let (from_type, to_type) = match kind {
            cudaMemcpyHostToHost => (cu::CU_MEMORYTYPE_HOST, cu::CU_MEMORYTYPE_HOST),
            cudaMemcpyHostToDevice => (cu::CU_MEMORYTYPE_HOST, cu::CU_MEMORYTYPE_DEVICE),
            cudaMemcpyDeviceToHost => (cu::CU_MEMORYTYPE_DEVICE, cu::CU_MEMORYTYPE_HOST),
            cudaMemcpyDeviceToDevice => (cu::CU_MEMORYTYPE_DEVICE, cu::CU_MEMORYTYPE_DEVICE),
            cudaMemcpyDefault => (cu::CU_MEMORYTYPE_UNIFIED, cu::CU_MEMORYTYPE_UNIFIED),
            _ => return Err(edge::INVALID_VALUE),
        };
        // SAFETY: the structure is plain, so all zeroes is a valid value.
        let mut copy: cu::CUDA_MEMCPY2D = unsafe { std::mem::zeroed() };
        // The driver reads the address that belongs to the type.
        (copy.srcMemoryType, copy.srcHost, copy.srcDevice) = (from_type, self.from, self.from as u64);
        (copy.dstMemoryType, copy.dstHost, copy.dstDevice) = (to_type, self.to, self.to as u64);
        (copy.srcPitch, copy.dstPitch) = (self.from_pitch, self.to_pitch);
        (copy.WidthInBytes, copy.Height) = (self.width, self.height);
        Ok((self.width * self.height != 0).then_some(copy))
    }
}

calls! {
    cudaMemcpy(dst, src, count, kind) { copy_now(dst, src, count, kind)? }
    cudaMemcpyAsync(dst, src, count, kind, stream) { copy(dst, src, count, kind, stream)? }
    cudaMemcpyPeer(dst, dstDevice, src, srcDevice, count) {
        let (to, from) = (device::primary(dstDevice)?, device::primary(srcDevice)?);
        driver!(cuMemcpyPeer(dst as u64, to, src as u64, from, count));
    }
    cudaMemcpyPeerAsync(dst, dstDevice, src, srcDevice, count, stream) {
        let (to, from) = (device::primary(dstDevice)?, device::primary(srcDevice)?);
        driver!(cuMemcpyPeerAsync(dst as u64, to, src as u64, from, count, stream));
    }
    cudaMemcpy2D(dst, dpitch, src, spitch, width, height, kind) {
        let rows = Rows { to: dst, to_pitch: dpitch, from: src, from_pitch: spitch, width, height };
        if let Some(copy) = rows.described(kind)? {
            driver!(cuMemcpy2DUnaligned_v2(&copy));
        }
    }
    cudaMemcpy2DAsync(dst, dpitch, src, spitch, width, height, kind, stream) {
        let rows = Rows { to: dst, to_pitch: dpitch, from: src, from_pitch: spitch, width, height };
        if let Some(copy) = rows.described(kind)? {
            driver!(cuMemcpy2DAsync_v2(&copy, stream));
        }
    }
    cudaMemcpyToSymbol(symbol, src, count, offset, kind) {
        copy_now(code::variable(symbol)?.part(offset, count)?, src, count, kind)?;
    }
    cudaMemcpyFromSymbol(dst, symbol, count, offset, kind) {
        copy_now(dst, code::variable(symbol)?.part(offset, count)?, count, kind)?;
    }
    cudaMemcpyToSymbolAsync(symbol, src, count, offset, kind, stream) {
        copy(code::variable(symbol)?.part(offset, count)?, src, count, kind, stream)?;
    }
    cudaMemcpyFromSymbolAsync(dst, symbol, count, offset, kind, stream) {
        copy(dst, code::variable(symbol)?.part(offset, count)?, count, kind, stream)?;
    }
    cudaGetSymbolAddress(devPtr, symbol) { give!(devPtr, code::variable(symbol)?.part(0, 0)?) }
    cudaGetSymbolSize(size, symbol) { give!(size, code::variable(symbol)?.bytes) }
}
