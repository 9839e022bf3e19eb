//! What deepres asks the driver about pools and the memory of graphs. A driver that lacks a function has no such memory.

use std::ptr::null_mut;

use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::driver::types::{
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, CU_GRAPH_NODE_TYPE_GRAPH,
    CU_GRAPH_NODE_TYPE_MEM_ALLOC, CU_MEM_LOCATION_TYPE_DEVICE, CU_MEMPOOL_ATTR_LOCATION_ID,
    CU_MEMPOOL_ATTR_LOCATION_TYPE, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
    CUDA_MEM_ALLOC_NODE_PARAMS, CUgraph, CUgraphNode, CUmemoryPool,
};

use super::calls::{Calls, Context};
use super::real;
use crate::capture;

/// Children of children of graphs that are looked into.
const DEEPEST_CHILD: u32 = 8;
/// A free may answer with the error of something that ran before.
const ATTEMPTS: u32 = 3;

/// A pool of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolHandle(pub usize);

/// An executable graph of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExecHandle(pub usize);

/// What a pool, or a device's graphs, have of the GPU's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stock {
    /// All of it, bytes.
    pub reserved_bytes: u64,
    /// What is in use of it.
    pub used_bytes: u64,
}

impl Stock {
    /// What is not in use, bytes.
    pub fn spare_bytes(self) -> u64 {
        self.reserved_bytes.saturating_sub(self.used_bytes)
    }
}

impl PoolHandle {
    fn handle(self) -> CUmemoryPool {
        self.0 as CUmemoryPool
    }

    /// The pool that `cuMemAllocAsync` takes from on a device.
    pub fn current(ordinal: usize) -> Option<Self> {
        let (get, device) = real!(cuDeviceGetMemPool).zip(i32::try_from(ordinal).ok())?;
        let mut pool = null_mut();
        // SAFETY: the result has room; the driver checks the ordinal.
        let result = unsafe { get(&mut pool, device) };
        (result == CUDA_SUCCESS && !pool.is_null()).then_some(Self(pool as usize))
    }

    /// A device's own pool.
    fn default_of(ordinal: usize) -> Option<Self> {
        let (get, device) = real!(cuDeviceGetDefaultMemPool).zip(i32::try_from(ordinal).ok())?;
        let mut pool = null_mut();
        // SAFETY: as above.
        let result = unsafe { get(&mut pool, device) };
        (result == CUDA_SUCCESS && !pool.is_null()).then_some(Self(pool as usize))
    }

    fn attribute(self, attribute: u32) -> Option<u64> {
        let get = real!(cuMemPoolGetAttribute)?;
        let mut value = 0_u64;
        // SAFETY: a pool that the process uses, which the driver checks; room for the widest attribute there is.
        let result = unsafe { get(self.handle(), attribute, (&raw mut value).cast()) };
        (result == CUDA_SUCCESS).then_some(value)
    }

    /// What it has now.
    pub fn stock(self) -> Option<Stock> {
        Some(Stock {
            reserved_bytes: self.attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
            used_bytes: self.attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
        })
    }

    /// Of which device's memory it is, among `devices` of them. `None`: of none, or nobody can say.
    pub fn ordinal(self, devices: usize) -> Option<usize> {
        // Later drivers say; before, a pool that was not created here is a device's own.
        if let Some(kind) = self.attribute(CU_MEMPOOL_ATTR_LOCATION_TYPE) {
            let ordinal = self.attribute(CU_MEMPOOL_ATTR_LOCATION_ID)?;
            return (kind == u64::from(CU_MEM_LOCATION_TYPE_DEVICE)).then_some(ordinal as usize);
        }
        (0..devices).find(|ordinal| Self::default_of(*ordinal) == Some(self))
    }

    /// Makes it give back what it does not use.
    pub fn trim(self) {
        if let Some(trim) = real!(cuMemPoolTrimTo) {
            // SAFETY: a pool that the process uses, which the driver checks.
            unsafe { trim(self.handle(), 0) };
        }
    }
}

/// Frees what the driver gave in a context and the process is not to have. It waits for the GPU.
pub fn take_back(calls: &Calls, context: Context, address: u64) {
    let Some(free) = real!(cuMemFree_v2) else { return };
    let _relaxed = capture::is_active().then(|| calls.relaxed());
    calls.in_context(context, || {
        // SAFETY: an allocation that nobody was told of.
        (0..ATTEMPTS).find(|_| unsafe { free(address) } == CUDA_SUCCESS)
    });
}

/// What a device's graphs have now.
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

/// Makes a device's graphs give back what they do not use.
pub fn trim_graphs(ordinal: usize) {
    if let Some((trim, device)) = real!(cuDeviceGraphMemTrim).zip(i32::try_from(ordinal).ok()) {
        // SAFETY: the driver checks the ordinal.
        unsafe { trim(device) };
    }
}

/// Calls `each` with the device and size of every allocation that a graph makes.
pub fn allocations_of(graph: CUgraph, each: &mut dyn FnMut(i32, u64)) {
    look_into(graph, DEEPEST_CHILD, each);
}

fn look_into(graph: CUgraph, depth: u32, each: &mut dyn FnMut(i32, u64)) -> Option<()> {
    let (nodes_of, type_of) = (real!(cuGraphGetNodes)?, real!(cuGraphNodeGetType)?);
    let (params_of, child_of) = (real!(cuGraphMemAllocNodeGetParams)?, real!(cuGraphChildGraphNodeGetGraph)?);
    let mut count = 0;
    // SAFETY: a graph that the process has just used; without a list only the count is written.
    if unsafe { nodes_of(graph, null_mut(), &mut count) } != CUDA_SUCCESS {
        return None;
    }
    let mut nodes: Vec<CUgraphNode> = vec![null_mut(); count];
    // SAFETY: room for as many as there were; at most so many are written.
    if unsafe { nodes_of(graph, nodes.as_mut_ptr(), &mut count) } != CUDA_SUCCESS {
        return None;
    }
    for node in nodes.into_iter().take(count) {
        let mut kind = 0;
        // SAFETY: a node of the graph; the result has room.
        if unsafe { type_of(node, &mut kind) } != CUDA_SUCCESS {
            continue;
        }
        if kind == CU_GRAPH_NODE_TYPE_MEM_ALLOC {
            // SAFETY: all zeroes is a valid value of this plain structure.
            let mut params = unsafe { std::mem::zeroed::<CUDA_MEM_ALLOC_NODE_PARAMS>() };
            // SAFETY: as above.
            if unsafe { params_of(node, &mut params) } == CUDA_SUCCESS {
                each(params.poolProps.location.id, params.bytesize as u64);
            }
        } else if kind == CU_GRAPH_NODE_TYPE_GRAPH && depth != 0 {
            let mut child = null_mut();
            // SAFETY: as above.
            if unsafe { child_of(node, &mut child) } == CUDA_SUCCESS {
                look_into(child, depth - 1, each);
            }
        }
    }
    Some(())
}
