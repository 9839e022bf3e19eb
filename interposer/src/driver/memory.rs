//! Driver calls of deepres about pools and the memory of graphs. A driver that lacks these
//! functions has no such memory.

use std::collections::BTreeMap;
use std::ptr::null_mut;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::driver::types::{
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT,
    CU_GRAPH_NODE_TYPE_CONDITIONAL, CU_GRAPH_NODE_TYPE_GRAPH, CU_GRAPH_NODE_TYPE_MEM_ALLOC,
    CU_GRAPH_NODE_TYPE_MEM_FREE, CU_MEM_ALLOCATION_TYPE_MANAGED, CU_MEM_LOCATION_TYPE_DEVICE,
    CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN, CU_MEMPOOL_ATTR_ALLOCATION_TYPE,
    CU_MEMPOOL_ATTR_LOCATION_ID, CU_MEMPOOL_ATTR_LOCATION_TYPE, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
    CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CUDA_CONDITIONAL_NODE_PARAMS, CUDA_MEM_ALLOC_NODE_PARAMS, CUgraph,
    CUgraphNode, CUgraphNodeParams, CUmemLocation, CUmemoryPool,
};

use super::calls::{Calls, Context};
use super::real;

/// Attempts at a driver call. A free may report the error of earlier asynchronous work.
const ATTEMPTS: u32 = 3;

/// A pool of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolHandle(pub usize);

/// An executable graph of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExecHandle(pub usize);

/// GPU memory of a pool, or of a device's graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stock {
    /// All reserved memory, bytes.
    pub reserved_bytes: u64,
    /// The part in use, bytes.
    pub used_bytes: u64,
}

impl Stock {
    /// Returns the part that is not in use, bytes.
    pub fn spare_bytes(self) -> u64 {
        self.reserved_bytes.saturating_sub(self.used_bytes)
    }
}

/// Returns the ordinal of the device whose memory is at that location. Returns `None` if it is not
/// a device's memory.
pub fn ordinal_at(location: CUmemLocation) -> Option<usize> {
    /// For a locality domain, the low byte names the device and the next byte a part of it.
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

    /// Returns the present memory of the pool.
    pub fn stock(self) -> Option<Stock> {
        Some(Stock {
            reserved_bytes: self.attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
            used_bytes: self.attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
        })
    }

    /// Returns the ordinal of the pool's device, among `devices` of them. Returns `likely` if the
    /// device cannot be found out, and `None` if the memory is no device's.
    pub fn ordinal(self, devices: usize, likely: usize) -> Option<usize> {
        // Newer drivers report the location. With older ones, a pool that the process did not
        // create is a device's default pool.
        match self.attribute(CU_MEMPOOL_ATTR_LOCATION_TYPE) {
            Some(kind) => {
                let Some(id) = self.attribute(CU_MEMPOOL_ATTR_LOCATION_ID) else { return Some(likely) };
                let location = CUmemLocation { r#type: kind as u32, id: id as i32 };
                let is_managed = || {
                    let kind = self.attribute(CU_MEMPOOL_ATTR_ALLOCATION_TYPE);
                    kind == Some(u64::from(CU_MEM_ALLOCATION_TYPE_MANAGED))
                };
                // Managed memory is charged wherever its pages are.
                ordinal_at(location).or_else(|| is_managed().then_some(likely))
            }
            None => {
                let own = (0..devices).find(|ordinal| Self::default_of(*ordinal) == Some(self));
                Some(own.unwrap_or(likely))
            }
        }
    }

    /// Makes the pool return unused memory. Returns whether it did.
    pub fn trim(self) -> bool {
        let trim = real!(cuMemPoolTrimTo).filter(|_| self != Self::UNKNOWN);
        // SAFETY: the process uses this pool, and the driver checks it.
        trim.is_some_and(|trim| unsafe { trim(self.handle(), 0) } == CUDA_SUCCESS)
    }
}

/// Whether one of several attempts succeeds. Attempts are repeated because a failed question may
/// distort the accounts.
fn ask(mut is_told: impl FnMut() -> bool) -> bool {
    (0..ATTEMPTS).any(|_| is_told())
}

/// Frees an allocation that the driver made in a context and the job is not to have. The free waits
/// for the GPU.
pub fn take_back(calls: &Calls, context: Context, address: u64) {
    let Some(free) = real!(cuMemFree_v2) else { return };
    let Some(_relaxed) = calls.beside_captures() else { return };
    // SAFETY: the address is an allocation that no caller was told of.
    let freed = || (0..ATTEMPTS).find(|_| unsafe { free(address) } == CUDA_SUCCESS);
    if calls.in_context(context, freed).is_none() {
        // The context could not be made current. Most addresses can be freed without it.
        freed();
    }
}

/// Returns the present memory of a device's graphs.
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

/// A graph node's effect on memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryNode {
    /// The node allocates: device, address and bytes.
    Allocates(i32, u64, u64),
    /// The node frees the memory at an address.
    Frees(u64),
}

/// Bodies of conditional nodes, by node, as the driver named them when the nodes were added.
/// Drivers before 13.2 do not tell them later.
static BODIES: Mutex<BTreeMap<usize, Vec<usize>>> = Mutex::new(BTreeMap::new());
/// Whether `BODIES` ever had an entry.
static HAS_BODIES: AtomicBool = AtomicBool::new(false);

fn bodies() -> MutexGuard<'static, BTreeMap<usize, Vec<usize>>> {
    BODIES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listed(conditional: &CUDA_CONDITIONAL_NODE_PARAMS) -> Vec<usize> {
    if conditional.phGraph_out.is_null() {
        return Vec::new();
    }
    // SAFETY: the driver returned a list of that many graphs, which lives as long as the node.
    unsafe { slice::from_raw_parts(conditional.phGraph_out.cast::<usize>(), conditional.size as usize) }
        .to_vec()
}

/// Records a conditional node that was added, with the parameters that the driver wrote. It must
/// not be called in a forked child, because the child may have inherited a locked mutex.
pub fn conditional_added(node: CUgraphNode, conditional: &CUDA_CONDITIONAL_NODE_PARAMS) {
    HAS_BODIES.store(true, Ordering::Relaxed);
    bodies().insert(node as usize, listed(conditional));
}

/// Removed entries for the conditional nodes of a graph that is about to be destroyed.
#[derive(Debug, Default)]
pub struct Bodies(Vec<(usize, Vec<usize>)>);

/// Removes the entries for the conditional nodes in a graph that is about to be destroyed. The
/// driver may give their handles to other nodes.
pub fn take_bodies_in(graph: CUgraph) -> Bodies {
    if !HAS_BODIES.load(Ordering::Relaxed) {
        return Bodies::default();
    }
    let mut taken = Vec::new();
    walk(graph, &mut |node, kind, _| {
        if kind == CU_GRAPH_NODE_TYPE_CONDITIONAL {
            taken.push(node as usize);
        }
    });
    let mut bodies = bodies();
    Bodies(taken.into_iter().filter_map(|node| Some((node, bodies.remove(&node)?))).collect())
}

/// Removes the entries for a node that is about to be destroyed, and for all nodes inside it.
pub fn take_bodies_of(node: CUgraphNode) -> Bodies {
    if !HAS_BODIES.load(Ordering::Relaxed) {
        return Bodies::default();
    }
    let Some((type_of, child_of)) = real!(cuGraphNodeGetType).zip(real!(cuGraphChildGraphNodeGetGraph))
    else {
        return Bodies::default();
    };
    let (mut kind, mut child) = (0, null_mut());
    // SAFETY: the process is about to destroy this node, and the driver checks it. The result has
    // room.
    if unsafe { type_of(node, &mut kind) } != CUDA_SUCCESS {
        return Bodies::default();
    }
    let mut taken = Bodies::default();
    if kind == CU_GRAPH_NODE_TYPE_CONDITIONAL {
        for body in bodies_of(node) {
            taken.0.extend(take_bodies_in(body as CUgraph).0);
        }
        taken.0.extend(bodies().remove(&(node as usize)).map(|bodies| (node as usize, bodies)));
    // SAFETY: the node still exists, and the result has room.
    } else if kind == CU_GRAPH_NODE_TYPE_GRAPH && unsafe { child_of(node, &mut child) } == CUDA_SUCCESS {
        taken = take_bodies_in(child);
    }
    taken
}

impl Bodies {
    /// Restores the entries, because the graph was not destroyed.
    pub fn put_back(self) {
        if !self.0.is_empty() {
            bodies().extend(self.0);
        }
    }
}

/// Returns the graphs that a conditional node may run.
fn bodies_of(node: CUgraphNode) -> Vec<usize> {
    if let Some(params_of) = real!(cuGraphNodeGetParams) {
        // SAFETY: all zeroes are a valid value of this plain structure.
        let mut params = unsafe { std::mem::zeroed::<CUgraphNodeParams>() };
        // SAFETY: the node belongs to its graph, and the result has room.
        let result = unsafe { params_of(node, &mut params) };
        if result == CUDA_SUCCESS && params.r#type == CU_GRAPH_NODE_TYPE_CONDITIONAL {
            // SAFETY: the node's type says that the driver wrote this member of the union.
            return listed(unsafe { &params.params.conditional });
        }
    }
    bodies().get(&(node as usize)).cloned().unwrap_or_default()
}

/// Calls `each` with every memory node of a graph, at any depth. The flag is true if every launch
/// runs the node, and false if it depends on a condition.
pub fn memory_nodes_of(graph: CUgraph, each: &mut dyn FnMut(MemoryNode, bool)) {
    let Some((allocation_of, freed_by)) =
        real!(cuGraphMemAllocNodeGetParams).zip(real!(cuGraphMemFreeNodeGetParams))
    else {
        return;
    };
    walk(graph, &mut |node, kind, is_certain| {
        if kind == CU_GRAPH_NODE_TYPE_MEM_ALLOC {
            // SAFETY: all zeroes are a valid value of this plain structure.
            let mut params = unsafe { std::mem::zeroed::<CUDA_MEM_ALLOC_NODE_PARAMS>() };
            // SAFETY: the node is of that kind, and the result has room.
            if unsafe { allocation_of(node, &mut params) } == CUDA_SUCCESS {
                let (device, bytes) = (params.poolProps.location.id, params.bytesize as u64);
                each(MemoryNode::Allocates(device, params.dptr, bytes), is_certain);
            }
        } else if kind == CU_GRAPH_NODE_TYPE_MEM_FREE {
            let mut address = 0;
            // SAFETY: the node is of that kind, and the result has room.
            if unsafe { freed_by(node, &mut address) } == CUDA_SUCCESS {
                each(MemoryNode::Frees(address), is_certain);
            }
        }
    });
}

fn nodes_of(graph: CUgraph) -> Option<Vec<CUgraphNode>> {
    let nodes_of = real!(cuGraphGetNodes)?;
    let mut count = 0;
    // SAFETY: the process has just used the graph. Without a list only the count is written.
    if unsafe { nodes_of(graph, null_mut(), &mut count) } != CUDA_SUCCESS {
        return None;
    }
    let mut nodes: Vec<CUgraphNode> = vec![null_mut(); count];
    // SAFETY: the list has room for `count` nodes, and the driver writes at most that many.
    if unsafe { nodes_of(graph, nodes.as_mut_ptr(), &mut count) } != CUDA_SUCCESS {
        return None;
    }
    nodes.truncate(count);
    Some(nodes)
}

/// Calls `each` with the nodes of a graph and of all graphs inside it. The arguments are the node,
/// its kind, and whether every launch runs it. Any depth is supported, because the graphs still to
/// visit are kept on the heap.
fn walk(graph: CUgraph, each: &mut dyn FnMut(CUgraphNode, u32, bool)) {
    let Some((type_of, child_of)) = real!(cuGraphNodeGetType).zip(real!(cuGraphChildGraphNodeGetGraph))
    else {
        return;
    };
    let mut left = vec![(graph as usize, true)];
    while let Some((graph, is_certain)) = left.pop() {
        for node in nodes_of(graph as CUgraph).unwrap_or_default() {
            let mut kind = 0;
            // SAFETY: the node belongs to the graph, and the result has room.
            if unsafe { type_of(node, &mut kind) } != CUDA_SUCCESS {
                continue;
            }
            each(node, kind, is_certain);
            if kind == CU_GRAPH_NODE_TYPE_GRAPH {
                let mut child = null_mut();
                // SAFETY: the node has a child graph, and the result has room.
                if unsafe { child_of(node, &mut child) } == CUDA_SUCCESS {
                    left.push((child as usize, is_certain));
                }
            } else if kind == CU_GRAPH_NODE_TYPE_CONDITIONAL {
                left.extend(bodies_of(node).into_iter().map(|body| (body, false)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_abi::driver::ApiId;
    use deepres_abi::driver::types::{CUgraphNodeType, CUresult};

    /// A conditional node with a conditional node in its body, and a node whose child graph has a
    /// conditional node.
    const OUTER: usize = 0x10;
    const BODY: usize = 0x20;
    const INNER: usize = 0x30;
    const PARENT: usize = 0x40;
    const CHILD: usize = 0x50;
    const COUSIN: usize = 0x60;

    unsafe extern "C" fn type_of(node: CUgraphNode, kind: *mut CUgraphNodeType) -> CUresult {
        let found =
            if node as usize == PARENT { CU_GRAPH_NODE_TYPE_GRAPH } else { CU_GRAPH_NODE_TYPE_CONDITIONAL };
        // SAFETY: the result has room.
        unsafe { kind.write(found) };
        CUDA_SUCCESS
    }

    unsafe extern "C" fn child_of(_: CUgraphNode, child: *mut CUgraph) -> CUresult {
        // SAFETY: the result has room.
        unsafe { child.write(CHILD as CUgraph) };
        CUDA_SUCCESS
    }

    unsafe extern "C" fn nodes_of(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) -> CUresult {
        let node = if graph as usize == BODY { INNER } else { COUSIN };
        // SAFETY: the results have room.
        unsafe {
            if !nodes.is_null() {
                nodes.write(node as CUgraphNode);
            }
            count.write(1);
        }
        CUDA_SUCCESS
    }

    #[test]
    fn with_a_node_goes_what_is_remembered_of_it_and_of_all_that_is_inside_of_it() {
        crate::driver::remember(ApiId::cuGraphNodeGetType, type_of as *const () as usize);
        crate::driver::remember(ApiId::cuGraphChildGraphNodeGetGraph, child_of as *const () as usize);
        crate::driver::remember(ApiId::cuGraphGetNodes, nodes_of as *const () as usize);
        HAS_BODIES.store(true, Ordering::Relaxed);
        bodies().extend([(OUTER, vec![BODY]), (INNER, vec![]), (COUSIN, vec![])]);
        let left = || bodies().keys().copied().collect::<Vec<_>>();
        let taken = take_bodies_of(OUTER as CUgraphNode);
        assert_eq!(left(), [COUSIN]);
        taken.put_back();
        assert_eq!(left(), [OUTER, INNER, COUSIN]);
        drop(take_bodies_of(PARENT as CUgraphNode));
        assert_eq!(left(), [OUTER, INNER]);
        bodies().clear();
    }
}
