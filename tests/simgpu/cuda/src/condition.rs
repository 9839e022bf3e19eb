//! Conditional nodes of graphs: their handles, and the body that runs and how often. Simulated
//! kernels compute nothing, and so set no condition. The value of the handle at the launch decides.
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use deepres_abi::driver::types as cu;

use crate::context::lock;
use crate::graph::{self, Graph};
use crate::process::{self, config};
use crate::status::{self, Result};

/// The graph of a handle, and the handle's value at a launch.
#[derive(Clone, Copy)]
struct Condition {
    graph: usize,
    at_launch: u32,
    has_node: bool,
}

/// All handles created so far.
static CONDITIONS: LazyLock<Mutex<HashMap<u64, Condition>>> = LazyLock::new(Mutex::default);

/// Creates a handle for a condition of a graph.
pub fn create(graph: usize, at_launch: u32, flags: u32) -> Result<u64> {
    graph::by_handle(graph)?;
    status::refuse(flags & !cu::CU_GRAPH_COND_ASSIGN_DEFAULT != 0)?;
    // Without a default, CUDA leaves the value undefined. Here the value is 0.
    let at_launch = if flags & cu::CU_GRAPH_COND_ASSIGN_DEFAULT == 0 { 0 } else { at_launch };
    let handle = process::next_id();
    lock(&CONDITIONS).insert(handle, Condition { graph, at_launch, has_node: false });
    Ok(handle)
}

/// Operation of a conditional node.
pub struct Conditional {
    kind: u32,
    at_launch: u32,
    /// Graphs that may run.
    pub bodies: Vec<Arc<Graph>>,
    /// Handles of the bodies, in an array that the client reads.
    handles: Box<[usize]>,
}

impl Conditional {
    /// Creates a node of `graph` with `count` new, empty bodies.
    pub fn new(graph: usize, handle: u64, kind: u32, count: u32) -> Result<Arc<Self>> {
        let is_of_kind = match kind {
            cu::CU_GRAPH_COND_TYPE_IF => (1..=2).contains(&count),
            cu::CU_GRAPH_COND_TYPE_WHILE => count == 1,
            cu::CU_GRAPH_COND_TYPE_SWITCH => count >= 1,
            _ => false,
        };
        let mut conditions = lock(&CONDITIONS);
        let condition = conditions.get_mut(&handle).ok_or(status::INVALID_VALUE)?;
        status::refuse(!is_of_kind || condition.graph != graph || condition.has_node)?;
        let bodies = (0..count).map(|_| Graph::create()).collect::<Result<Vec<_>>>()?;
        let handles = bodies.iter().map(|body| body.handle).collect();
        condition.has_node = true;
        Ok(Arc::new(Self { kind, at_launch: condition.at_launch, bodies, handles }))
    }

    /// Returns the array of the bodies' handles.
    pub fn handles(&self) -> *mut cu::CUgraph {
        self.handles.as_ptr().cast_mut().cast()
    }

    /// Returns the body that runs at a graph's launch number `launch`, and the number of its runs.
    pub fn runs(&self, launch: u64) -> Option<(usize, u64)> {
        let value = self.at_launch;
        match self.kind {
            cu::CU_GRAPH_COND_TYPE_IF if value != 0 => Some((0, 1)),
            cu::CU_GRAPH_COND_TYPE_IF => (self.bodies.len() > 1).then_some((1, 1)),
            cu::CU_GRAPH_COND_TYPE_WHILE if value != 0 => Some((0, rounds(launch))),
            cu::CU_GRAPH_COND_TYPE_SWITCH => {
                ((value as usize) < self.bodies.len()).then_some((value as usize, 1))
            }
            _ => None,
        }
    }
}

/// Returns the number of rounds of a loop on the device at a graph's launch number `launch`. The
/// number is from 1 to `while_rounds`, and differs at each launch.
pub fn rounds(launch: u64) -> u64 {
    /// 2⁶⁴ divided by the golden ratio: spreads consecutive numbers evenly.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let most = u128::from(config().while_rounds);
    1 + ((u128::from(launch.wrapping_mul(SPREAD)) * most) >> u64::BITS) as u64
}
