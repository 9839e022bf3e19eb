//! Driver calls of deepres about memory: the place of an address, pools, and the memory of graphs.
//! A driver without the functions for pools or graphs has no such memory.

use std::ops::Range;
use std::ptr::null_mut;

use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::driver::types::{
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, CU_GRAPH_NODE_TYPE_MEM_ALLOC,
    CU_GRAPH_NODE_TYPE_MEM_FREE, CU_MEM_ALLOCATION_TYPE_MANAGED, CU_MEM_LOCATION_TYPE_DEVICE,
    CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN, CU_MEMORYTYPE_DEVICE, CU_MEMPOOL_ATTR_ALLOCATION_TYPE,
    CU_MEMPOOL_ATTR_LOCATION_ID, CU_MEMPOOL_ATTR_LOCATION_TYPE, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
    CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_IS_MANAGED,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
    CUDA_MEM_ALLOC_NODE_PARAMS, CUdeviceptr, CUgraph, CUmemLocation, CUmemoryPool, CUresult, c_void,
};

use super::calls::{Calls, Context};
use super::{nodes, real};

/// Attempts at a driver call. A free can return the error of earlier asynchronous work.
const ATTEMPTS: u32 = 3;

/// Returns the ordinal of the device that has the memory at `address`. Returns `None` for memory of
/// the host, for managed memory, and for an address that the driver does not know.
pub fn device_at(address: CUdeviceptr) -> Option<i32> {
    describe(address, 3).0
}

/// Returns the answer of [`device_at`], and the addresses for which the answer is the same: those
/// of the allocation at `address`. The range is empty if the driver knows no allocation there.
pub fn allocation_at(address: CUdeviceptr) -> (Option<i32>, Range<CUdeviceptr>) {
    describe(address, 5)
}

/// Asks the driver for the first `count` attributes of an address: the first three name the device,
/// and the others the range.
fn describe(address: CUdeviceptr, count: u32) -> (Option<i32>, Range<CUdeviceptr>) {
    let Some(ask) = real!(cuPointerGetAttributes) else { return (None, 0..0) };
    let (mut kind, mut is_managed, mut ordinal) = (0_u32, 0_u64, 0_i32);
    let (mut start, mut bytes): (CUdeviceptr, usize) = (0, 0);
    let mut attributes = [
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    ];
    let mut places: [*mut c_void; 5] = [
        (&raw mut kind).cast(),
        (&raw mut is_managed).cast(),
        (&raw mut ordinal).cast(),
        (&raw mut start).cast(),
        (&raw mut bytes).cast(),
    ];
    // SAFETY: both lists have at least this length, and each result has room for its attribute.
    let result = unsafe { ask(count, attributes.as_mut_ptr(), places.as_mut_ptr(), address) };
    if result != CUDA_SUCCESS {
        return (None, 0..0);
    }
    let device = (kind == CU_MEMORYTYPE_DEVICE && is_managed == 0).then_some(ordinal);
    (device, start..start.saturating_add(bytes as u64))
}

/// A pool of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolHandle(pub usize);

/// An executable graph of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExecHandle(pub usize);

/// The GPU memory of a pool, or of a device's graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stock {
    /// All memory that the driver reserves for the pool or the graphs, bytes.
    pub reserved_bytes: u64,
    /// The part of the reserved memory that is in use, bytes.
    pub used_bytes: u64,
}

impl Stock {
    /// Returns the reserved memory that is not in use, bytes.
    pub fn spare_bytes(self) -> u64 {
        self.reserved_bytes.saturating_sub(self.used_bytes)
    }
}

/// Returns the ordinal of the device whose memory is at that location. Returns `None` if the
/// location is not on a device.
pub fn ordinal_at(location: CUmemLocation) -> Option<usize> {
    /// In the id of a locality domain, the low byte names the device, and the next byte a part of
    /// the device.
    const LOCALITY_DEVICE_MASK: i32 = 0xff;
    let device = match location.r#type {
        CU_MEM_LOCATION_TYPE_DEVICE => location.id,
        CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN => location.id & LOCALITY_DEVICE_MASK,
        _ => return None,
    };
    usize::try_from(device).ok()
}

impl PoolHandle {
    /// Stand-in for a pool that the driver does not name.
    pub const UNKNOWN: Self = Self(0);

    fn handle(self) -> CUmemoryPool {
        self.0 as CUmemoryPool
    }

    /// Returns the pool from which `cuMemAllocAsync` allocates on a device.
    pub fn current(ordinal: usize) -> Option<Self> {
        let (get, device) = real!(cuDeviceGetMemPool).zip(i32::try_from(ordinal).ok())?;
        let mut pool = null_mut();
        // SAFETY: the result has room; the driver checks the ordinal.
        let result = unsafe { get(&mut pool, device) };
        (result == CUDA_SUCCESS && !pool.is_null()).then_some(Self(pool as usize))
    }

    /// Returns a device's default pool.
    pub fn default_of(ordinal: usize) -> Option<Self> {
        let (get, device) = real!(cuDeviceGetDefaultMemPool).zip(i32::try_from(ordinal).ok())?;
        let mut pool = null_mut();
        // SAFETY: the result has room, and the driver checks the ordinal.
        let result = unsafe { get(&mut pool, device) };
        (result == CUDA_SUCCESS && !pool.is_null()).then_some(Self(pool as usize))
    }

    fn attribute(self, attribute: u32) -> Option<u64> {
        let get = real!(cuMemPoolGetAttribute).filter(|_| self != Self::UNKNOWN)?;
        let mut value = 0_u64;
        // SAFETY: the process uses this pool, and the driver checks it. The result has room for the
        // widest attribute.
        let is_told = || unsafe { get(self.handle(), attribute, (&raw mut value).cast()) } == CUDA_SUCCESS;
        ask(is_told).then_some(value)
    }

    /// Returns the present memory of the pool, reserved and used; `None` if the driver does not
    /// tell.
    pub fn stock(self) -> Option<Stock> {
        Some(Stock {
            reserved_bytes: self.attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
            used_bytes: self.attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
        })
    }

    /// Returns the ordinal of the pool's device, if the process has `devices` devices. Returns
    /// `likely` if the driver does not tell the device, and `None` if the pool's memory is not on a
    /// device.
    pub fn ordinal(self, devices: usize, likely: usize) -> Option<usize> {
        // Newer drivers tell the location. With older drivers, a pool that the process did not
        // create is a device's default pool.
        match self.attribute(CU_MEMPOOL_ATTR_LOCATION_TYPE) {
            Some(kind) => {
                let Some(id) = self.attribute(CU_MEMPOOL_ATTR_LOCATION_ID) else { return Some(likely) };
                let location = CUmemLocation { r#type: kind as u32, id: id as i32 };
                let is_managed = || {
                    let kind = self.attribute(CU_MEMPOOL_ATTR_ALLOCATION_TYPE);
                    kind == Some(u64::from(CU_MEM_ALLOCATION_TYPE_MANAGED))
                };
                // Managed memory can lie anywhere, so the interposer charges it to the likely
                // device.
                ordinal_at(location).or_else(|| is_managed().then_some(likely))
            }
            None => {
                let own = (0..devices).find(|ordinal| Self::default_of(*ordinal) == Some(self));
                Some(own.unwrap_or(likely))
            }
        }
    }

    /// Makes the pool return unused memory. Returns whether the driver did so.
    pub fn trim(self) -> bool {
        self.trim_to(0)
    }

    /// Makes the pool return unused memory beyond `kept_bytes`. Returns whether the driver did so.
    pub fn trim_to(self, kept_bytes: u64) -> bool {
        let trim = real!(cuMemPoolTrimTo).filter(|_| self != Self::UNKNOWN);
        // SAFETY: the process uses this pool, and the driver checks it.
        trim.is_some_and(|trim| unsafe { trim(self.handle(), kept_bytes as usize) } == CUDA_SUCCESS)
    }
}

/// Asks the driver by `is_told`, in several attempts, and returns whether an attempt succeeded.
/// Without the answer, the accounts of memory could be wrong.
fn ask(mut is_told: impl FnMut() -> bool) -> bool {
    (0..ATTEMPTS).any(|_| is_told())
}

/// Frees an object of the driver by `free`, in several attempts. Returns whether an attempt
/// succeeded.
pub fn insist(mut free: impl FnMut() -> CUresult) -> bool {
    (0..ATTEMPTS).any(|_| free() == CUDA_SUCCESS)
}

/// Frees an allocation that the driver made in a context, because a limit forbids the allocation.
/// The free waits for the GPU.
pub fn take_back(calls: &Calls, context: Context, address: u64) {
    let Some(free) = real!(cuMemFree_v2) else { return };
    let Some(_relaxed) = calls.beside_captures() else { return };
    // SAFETY: the address is an allocation whose address no caller knows.
    let freed = || insist(|| unsafe { free(address) }).then_some(());
    if calls.in_context(context, freed).is_none() {
        // The driver did not make the context current. Without a current context, the driver can
        // still free most addresses.
        freed();
    }
}

/// Returns the present memory of a device's graphs, if the driver tells it.
pub fn graphs_stock(ordinal: usize) -> Option<Stock> {
    let (get, device) = real!(cuDeviceGetGraphMemAttribute).zip(i32::try_from(ordinal).ok())?;
    let ask = |attribute| {
        let mut value = 0_u64;
        // SAFETY: the result has room; the driver checks the ordinal.
        let result = unsafe { get(device, attribute, (&raw mut value).cast()) };
        (result == CUDA_SUCCESS).then_some(value)
    };
    Some(Stock {
        reserved_bytes: ask(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)?,
        used_bytes: ask(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT)?,
    })
}

/// Makes a device's graphs return unused memory.
pub fn trim_graphs(ordinal: usize) {
    if let Some((trim, device)) = real!(cuDeviceGraphMemTrim).zip(i32::try_from(ordinal).ok()) {
        // SAFETY: the driver checks the ordinal.
        unsafe { trim(device) };
    }
}

/// The effect of a graph node on memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryNode {
    /// The node allocates memory: device, address and bytes.
    Allocates(i32, u64, u64),
    /// The node frees the memory at an address.
    Frees(u64),
}

/// Returns all memory nodes of a graph, at any depth. The driver allows no memory nodes in the body
/// of a conditional node.
pub fn memory_nodes_of(graph: CUgraph) -> Vec<MemoryNode> {
    let mut found = Vec::new();
    let Some((allocation_of, freed_by)) =
        real!(cuGraphMemAllocNodeGetParams).zip(real!(cuGraphMemFreeNodeGetParams))
    else {
        return found;
    };
    nodes::walk(graph, &mut |node, kind| {
        if kind == CU_GRAPH_NODE_TYPE_MEM_ALLOC {
            // SAFETY: all zeroes are a valid value of this plain structure.
            let mut params = unsafe { std::mem::zeroed::<CUDA_MEM_ALLOC_NODE_PARAMS>() };
            // SAFETY: the node is of that kind, and the result has room.
            if unsafe { allocation_of(node, &mut params) } == CUDA_SUCCESS {
                let (device, bytes) = (params.poolProps.location.id, params.bytesize as u64);
                found.push(MemoryNode::Allocates(device, params.dptr, bytes));
            }
        } else if kind == CU_GRAPH_NODE_TYPE_MEM_FREE {
            let mut address = 0;
            // SAFETY: the node is of that kind, and the result has room.
            if unsafe { freed_by(node, &mut address) } == CUDA_SUCCESS {
                found.push(MemoryNode::Frees(address));
            }
        }
    });
    found
}
