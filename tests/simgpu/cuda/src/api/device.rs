//! The driver functions for devices.
use super::prelude::*;
use crate::process::{config, device_count, gpu_of, host};
use crate::{device, graph_memory, pool};

/// Length of a UUID, bytes.
const UUID_BYTES: usize = 16;
/// The most texels of a one-dimensional texture over linear memory.
const TEXTURE_1D_LINEAR_TEXELS: usize = 1 << 28;

calls! {
    cuDeviceGet(device, ordinal) {
        gpu_of(ordinal)?;
        give!(device, ordinal);
    }
    cuDeviceGetCount(count) { give!(count, device_count() as i32) }
}

/// Writes a C string into a buffer, truncated if it does not fit.
fn give_text(to: *mut c_char, length: i32, text: &str) -> Result<()> {
    status::refuse(to.is_null() || length <= 0)?;
    let copied = text.len().min(length as usize - 1);
    // SAFETY: by the API's contract the buffer has `length` bytes, and one is left for the NUL.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast::<u8>(), copied);
        to.add(copied).write(0);
    }
    Ok(())
}

calls! {
    cuDeviceGetName(name, len, dev) {
        gpu_of(dev)?;
        give_text(name, len, &config().name)?;
    }
}

calls! {
    cuDeviceGetUuid | cuDeviceGetUuid_v2(uuid, dev) {
        let bytes: [u8; UUID_BYTES] = host().uuid(gpu_of(dev)?);
        give!(uuid, CUuuid { bytes });
    }
    cuDeviceTotalMem_v2(bytes, dev) { give!(bytes, host().memory(gpu_of(dev)?).total_bytes as usize) }
    cuDeviceGetAttribute(pi, attrib, dev) { give!(pi, device::attribute(attrib, dev)?) }
    cuDeviceGetProperties(prop, dev) { give!(prop, device::properties(dev)?) }
    cuDeviceComputeCapability(major, minor, dev) {
        gpu_of(dev)?;
        let [configured_major, configured_minor] = config().compute_capability;
        give!(major, configured_major);
        give!(minor, configured_minor);
    }
    cuDeviceGetPCIBusId(pciBusId, len, dev) { give_text(pciBusId, len, &device::pci_bus_id(dev)?)? }
    cuDeviceGetByPCIBusId(dev, pciBusId) { give!(dev, device::at_pci_bus_id(text!(pciBusId))?) }
    cuDeviceCanAccessPeer(canAccessPeer, dev, peerDev) {
        give!(canAccessPeer, device::can_access_peer(dev, peerDev)?.into());
    }
    cuDeviceGetP2PAttribute(value, attrib, srcDevice, dstDevice) {
        give!(value, device::p2p_attribute(attrib, srcDevice, dstDevice)?);
    }
    cuDeviceGetTexture1DLinearMaxWidth(maxWidthInElements, _format, numChannels, dev) {
        gpu_of(dev)?;
        status::refuse(!matches!(numChannels, 1 | 2 | 4))?;
        give!(maxWidthInElements, TEXTURE_1D_LINEAR_TEXELS);
    }
    cuDeviceGetExecAffinitySupport(pi, r#type, dev) {
        gpu_of(dev)?;
        status::refuse(r#type >= CU_EXEC_AFFINITY_TYPE_MAX)?;
        // This affinity requires MPS, which is absent with time-slicing.
        give!(pi, 0);
    }
}

fn give_pool(to: *mut CUmemoryPool, found: Result<std::sync::Arc<pool::Pool>>) -> Result<()> {
    give!(to, found?.handle as CUmemoryPool);
    Ok(())
}

calls! {
    cuDeviceGetDefaultMemPool(pool_out, dev) { give_pool(pool_out, pool::default_of(dev))? }
    cuDeviceGetMemPool(pool, dev) { give_pool(pool, pool::current_of(dev))? }
    cuDeviceSetMemPool(dev, pool) { pool::set_current(dev, pool::by_handle(pool as usize)?)? }
    cuDeviceGraphMemTrim(device) {
        gpu_of(device)?;
        graph_memory::trim(device);
    }
    cuDeviceGetGraphMemAttribute(device, attr, value) {
        gpu_of(device)?;
        let usage = graph_memory::usage(device);
        let answer = match attr {
            CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT => usage.current,
            CU_GRAPH_MEM_ATTR_USED_MEM_HIGH => usage.high,
            CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT => usage.reserved,
            CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH => usage.reserved_high,
            _ => return Err(status::INVALID_VALUE),
        };
        give!(value.cast::<u64>(), answer);
    }
    cuDeviceSetGraphMemAttribute(device, attr, value) {
        gpu_of(device)?;
        let is_high = matches!(attr, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH | CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH);
        status::refuse(read!(value.cast::<u64>()) != 0 || !is_high)?;
        graph_memory::reset_high(device);
    }
}
