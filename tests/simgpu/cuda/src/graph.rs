//! Graphs: nodes with dependencies, copies of graphs, and plans that can be launched.
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use deepres_abi::driver::types as cu;
use simgpu_engine::{Ticket, Work};

use crate::condition;
use crate::context::lock;
use crate::graph_memory;
use crate::handle::{Kind, Table};
use crate::operation::Operation;
use crate::process::{self, host};
use crate::status::{self, Result};
use crate::stream::{Attributes, Stream};

/// All live graphs.
pub static GRAPHS: Table<Graph> = Table::new(Kind::Graph);
/// All nodes of live graphs.
pub static NODES: Table<Node> = Table::new(Kind::GraphNode);
/// All instantiated graphs.
pub static EXECS: Table<Exec> = Table::new(Kind::GraphExec);
/// All user objects.
pub static USER_OBJECTS: Table<UserObject> = Table::new(Kind::UserObject);

/// An edge without ports: the whole first node runs before the whole second node.
pub const PLAIN_EDGE: cu::CUgraphEdgeData =
    cu::CUgraphEdgeData { from_port: 0, to_port: 0, r#type: 0, reserved: [0; 5] };

/// A dependency: the earlier node and the kind of edge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dependency {
    /// Handle of the earlier node.
    pub node: usize,
    /// Kind of edge.
    pub data: cu::CUgraphEdgeData,
}

impl Dependency {
    /// Returns an ordinary dependency.
    pub fn on(node: usize) -> Self {
        Self { node, data: PLAIN_EDGE }
    }
}

/// One node. Its graph never changes, but its operation can.
pub struct Node {
    /// The handle by which clients name the node.
    pub handle: usize,
    /// Handle of the node's graph.
    pub graph: usize,
    /// Number that is unique in the graph.
    pub local_id: u32,
    /// In a cloned graph: the original of this node.
    original: Option<usize>,
    operation: Mutex<Operation>,
    /// Attributes that the client stored.
    pub attributes: Attributes,
}

impl Node {
    /// Returns the node's operation.
    pub fn operation(&self) -> Operation {
        lock(&self.operation).clone()
    }

    /// Replaces the operation by another operation of the same kind.
    pub fn set_operation(&self, operation: Operation) -> Result<()> {
        let mut own = lock(&self.operation);
        status::refuse(own.node_type() != operation.node_type())?;
        *own = operation;
        Ok(())
    }
}

#[derive(Default)]
struct State {
    nodes: Vec<Arc<Node>>,
    /// The edges: earlier node, later node, and kind of edge.
    edges: Vec<(usize, usize, cu::CUgraphEdgeData)>,
    next_local_id: u32,
    user_objects: HashMap<usize, u32>,
}

/// A graph in construction.
pub struct Graph {
    /// The handle by which clients name the graph.
    pub handle: usize,
    /// The number of the graph, unique in this process.
    pub id: u64,
    state: Mutex<State>,
}

impl Drop for Graph {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        for node in &state.nodes {
            NODES.remove(node.handle);
        }
        for (object, count) in &state.user_objects {
            let _ = release_user_object(*object, *count);
        }
    }
}

impl Graph {
    /// Creates an empty graph.
    pub fn create() -> Result<Arc<Self>> {
        GRAPHS
            .insert_with(|handle| Arc::new(Self { handle, id: process::next_id(), state: Mutex::default() }))
            .ok_or(status::OUT_OF_MEMORY)
    }

    fn insert(&self, state: &mut State, operation: Operation, original: Option<usize>) -> Result<Arc<Node>> {
        let local_id = state.next_local_id;
        let node = NODES.insert_with(|handle| {
            Arc::new(Node {
                handle,
                graph: self.handle,
                local_id,
                original,
                operation: Mutex::new(operation),
                attributes: Attributes::default(),
            })
        });
        let node = node.ok_or(status::OUT_OF_MEMORY)?;
        state.next_local_id += 1;
        state.nodes.push(Arc::clone(&node));
        Ok(node)
    }

    /// Adds a node that depends on the nodes `after` of this graph.
    pub fn add(&self, operation: Operation, after: &[Dependency]) -> Result<Arc<Node>> {
        let mut state = lock(&self.state);
        let mut seen = HashSet::new();
        for dependency in after {
            let is_own = state.nodes.iter().any(|node| node.handle == dependency.node);
            status::refuse(!is_own || !seen.insert(dependency.node))?;
        }
        let node = self.insert(&mut state, operation, None)?;
        state.edges.extend(after.iter().map(|dependency| (dependency.node, node.handle, dependency.data)));
        Ok(node)
    }

    /// Returns one allocation node for each address that is free again for a node that depends on
    /// `after`. At such an address, the graph frees all earlier allocations before that node.
    pub fn spare(&self, after: &[Dependency]) -> Vec<graph_memory::Node> {
        let state = lock(&self.state);
        let mut before: HashMap<usize, Vec<usize>> = HashMap::new();
        for (from, to, _) in &state.edges {
            before.entry(*to).or_default().push(*from);
        }
        let mut behind: HashSet<usize> = HashSet::new();
        let mut next: Vec<usize> = after.iter().map(|dependency| dependency.node).collect();
        while let Some(node) = next.pop() {
            if behind.insert(node) {
                next.extend(before.get(&node).into_iter().flatten());
            }
        }
        // By address: a node, and the number of allocations that are not freed.
        let mut found: HashMap<u64, (graph_memory::Node, i64)> = HashMap::new();
        for node in &state.nodes {
            if let Operation::Allocate(allocation) = node.operation() {
                found.entry(allocation.params.dptr).or_insert(((*allocation).clone(), 0)).1 += 1;
            }
        }
        for node in state.nodes.iter().filter(|node| behind.contains(&node.handle)) {
            if let Operation::Free(address) = node.operation()
                && let Some((_, unfreed)) = found.get_mut(&address)
            {
                *unfreed -= 1;
            }
        }
        found.into_values().filter(|(_, unfreed)| *unfreed == 0).map(|(node, _)| node).collect()
    }

    /// Adds dependencies between existing nodes.
    pub fn connect(&self, edges: &[(usize, usize, cu::CUgraphEdgeData)]) -> Result<()> {
        let mut state = lock(&self.state);
        for (at, (from, to, _)) in edges.iter().enumerate() {
            let is_own = |handle: usize| state.nodes.iter().any(|node| node.handle == handle);
            let is_there = |known: &(usize, usize, cu::CUgraphEdgeData)| (known.0, known.1) == (*from, *to);
            if from == to
                || !is_own(*from)
                || !is_own(*to)
                || state.edges.iter().chain(&edges[..at]).any(is_there)
            {
                return Err(status::INVALID_VALUE);
            }
        }
        state.edges.extend_from_slice(edges);
        Ok(())
    }

    /// Removes dependencies. All of them must exist.
    pub fn disconnect(&self, edges: &[(usize, usize, cu::CUgraphEdgeData)]) -> Result<()> {
        let mut state = lock(&self.state);
        let mut left = state.edges.clone();
        for (from, to, _) in edges {
            let at = left
                .iter()
                .position(|known| (known.0, known.1) == (*from, *to))
                .ok_or(status::INVALID_VALUE)?;
            left.remove(at);
        }
        state.edges = left;
        Ok(())
    }

    /// Removes a node with its dependencies.
    pub fn remove(&self, handle: usize) -> Result<()> {
        let mut state = lock(&self.state);
        let at = state.nodes.iter().position(|node| node.handle == handle).ok_or(status::INVALID_VALUE)?;
        state.nodes.remove(at);
        state.edges.retain(|(from, to, _)| *from != handle && *to != handle);
        NODES.remove(handle);
        Ok(())
    }

    /// Returns the nodes in the order of their creation.
    pub fn nodes(&self) -> Vec<Arc<Node>> {
        lock(&self.state).nodes.clone()
    }

    /// Returns the nodes that depend on no others.
    pub fn roots(&self) -> Vec<usize> {
        let state = lock(&self.state);
        let has_before = |handle: usize| state.edges.iter().any(|(_, to, _)| *to == handle);
        state.nodes.iter().map(|node| node.handle).filter(|handle| !has_before(*handle)).collect()
    }

    /// Returns the dependencies.
    pub fn edges(&self) -> Vec<(usize, usize, cu::CUgraphEdgeData)> {
        lock(&self.state).edges.clone()
    }

    /// Takes `count` references of a user object.
    pub fn hold(&self, object: usize, count: u32) {
        *lock(&self.state).user_objects.entry(object).or_default() += count;
    }

    /// Releases references of a user object. Fails if the graph has fewer references.
    pub fn give_up(&self, object: usize, count: u32) -> Result<()> {
        let mut state = lock(&self.state);
        let held = state.user_objects.get_mut(&object).ok_or(status::INVALID_VALUE)?;
        status::refuse(*held < count)?;
        *held -= count;
        if *held == 0 {
            state.user_objects.remove(&object);
        }
        drop(state);
        release_user_object(object, count)
    }

    /// Returns a separate copy of the graph, with copies of its child graphs.
    pub fn copy(&self) -> Result<Arc<Self>> {
        if self.nodes().iter().any(|node| matches!(node.operation(), Operation::Conditional(_))) {
            // A condition belongs to only one graph.
            return Err(status::NOT_SUPPORTED);
        }
        let copy = Self::create()?;
        let state = lock(&self.state);
        let mut own = lock(&copy.state);
        let mut copied = HashMap::new();
        for node in &state.nodes {
            let operation = match node.operation() {
                Operation::Child(child) => Operation::Child(child.copy()?),
                other => other,
            };
            let made = copy.insert(&mut own, operation, Some(node.handle))?;
            made.attributes.copy(&node.attributes);
            copied.insert(node.handle, made.handle);
        }
        own.edges = state.edges.iter().map(|(from, to, data)| (copied[from], copied[to], *data)).collect();
        for (object, count) in &state.user_objects {
            if let Some(object) = USER_OBJECTS.get(*object) {
                object.retain(*count);
            }
            own.user_objects.insert(*object, *count);
        }
        drop(own);
        Ok(copy)
    }

    /// Returns the copy of a node of another graph, if this graph is a clone of that graph.
    pub fn copy_of(&self, original: usize) -> Option<usize> {
        lock(&self.state).nodes.iter().find(|node| node.original == Some(original)).map(|node| node.handle)
    }
}

/// Returns the graph of a handle.
pub fn by_handle(handle: usize) -> Result<Arc<Graph>> {
    GRAPHS.get(handle).ok_or(status::INVALID_VALUE)
}

/// Returns the node of a handle.
pub fn node(handle: usize) -> Result<Arc<Node>> {
    NODES.get(handle).ok_or(status::INVALID_VALUE)
}

/// Destroys a graph.
pub fn destroy(handle: usize) -> Result<()> {
    let graph = GRAPHS.remove(handle).ok_or(status::INVALID_VALUE)?;
    for node in graph.nodes() {
        NODES.remove(node.handle);
        for inner in node.operation().graphs() {
            let _ = destroy(inner.handle);
        }
    }
    Ok(())
}

/// One node of a plan.
#[derive(Clone)]
struct Step {
    /// The node from which the step was made.
    node: usize,
    operation: Operation,
    /// Earlier steps on which this step depends, by index.
    after: Vec<usize>,
    is_enabled: bool,
    /// The plans of a child graph, or of a condition's bodies.
    children: Vec<Plan>,
}

/// A graph in an order in which it can run.
#[derive(Clone, Default)]
pub struct Plan {
    steps: Vec<Step>,
}

impl Plan {
    /// Returns the graph in an order in which it can run. Among the nodes that may run next, the
    /// node that was created first comes first. Fails if the graph has a cycle.
    pub fn new(graph: &Graph) -> Result<Self> {
        let state = lock(&graph.state);
        let place: HashMap<usize, usize> =
            state.nodes.iter().enumerate().map(|(at, node)| (node.handle, at)).collect();
        let mut before = vec![Vec::new(); state.nodes.len()];
        let mut after = vec![Vec::new(); state.nodes.len()];
        for (from, to, _) in &state.edges {
            before[place[to]].push(place[from]);
            after[place[from]].push(place[to]);
        }
        let mut missing: Vec<usize> = before.iter().map(Vec::len).collect();
        let mut ready: std::collections::BTreeSet<usize> =
            (0..missing.len()).filter(|at| missing[*at] == 0).collect();
        let mut order = vec![0; missing.len()];
        let mut steps = Vec::with_capacity(missing.len());
        while let Some(at) = ready.pop_first() {
            order[at] = steps.len();
            let node = &state.nodes[at];
            let operation = node.operation();
            let children =
                operation.graphs().iter().map(|graph| Self::new(graph)).collect::<Result<Vec<_>>>()?;
            let after_steps = before[at].iter().map(|earlier| order[*earlier]).collect();
            steps.push(Step { node: node.handle, operation, after: after_steps, is_enabled: true, children });
            for next in &after[at] {
                missing[*next] -= 1;
                if missing[*next] == 0 {
                    ready.insert(*next);
                }
            }
        }
        if steps.len() == state.nodes.len() { Ok(Self { steps }) } else { Err(status::INVALID_VALUE) }
    }

    fn step_mut(&mut self, node: usize) -> Option<&mut Step> {
        for step in &mut self.steps {
            if step.node == node {
                return Some(step);
            }
            if let Some(found) = step.children.iter_mut().find_map(|child| child.step_mut(node)) {
                return Some(found);
            }
        }
        None
    }

    /// Counts for each address the allocations that are not freed.
    fn unfreed(&self, found: &mut HashMap<u64, i64>) {
        for step in &self.steps {
            match &step.operation {
                Operation::Allocate(node) => *found.entry(node.params.dptr).or_default() += 1,
                Operation::Free(address) => *found.entry(*address).or_default() -= 1,
                _ => {}
            }
            for child in &step.children {
                child.unfreed(found);
            }
        }
    }

    /// Collects the memory that a launch uses and that is not in use yet: bytes by address.
    fn mapped(&self, found: &mut HashMap<u64, u64>) {
        for step in self.steps.iter().filter(|step| step.is_enabled) {
            match &step.operation {
                Operation::Allocate(node) if !graph_memory::is_live(node.params.dptr) => {
                    found.insert(node.params.dptr, node.bytes());
                }
                Operation::Child(_) => step.children.iter().for_each(|child| child.mapped(found)),
                _ => {}
            }
        }
    }

    /// Allocates the memory for a launch in a stream.
    fn get_ready(&self, stream: &Stream) -> Result<()> {
        let mut mapped = HashMap::new();
        self.mapped(&mut mapped);
        graph_memory::keep(&stream.context, mapped.values().sum())
    }

    /// Submits every step to one stream in the plan's order. `launch` is the number of the launch.
    /// A straight run of kernels that use the same part of the GPU becomes one item.
    fn submit(&self, stream: &Stream, launch: u64, run: &mut Vec<Work>) -> Result<()> {
        for step in self.steps.iter().filter(|step| step.is_enabled) {
            match &step.operation {
                Operation::Kernel(kernel) => {
                    run.extend(kernel.touch(stream.context.gpu).work());
                    extend_run(run, kernel.work());
                }
                Operation::Child(_) => {
                    for child in &step.children {
                        child.submit(stream, launch, run)?;
                    }
                }
                Operation::Conditional(conditional) => {
                    if let Some((at, times)) = conditional.runs(launch) {
                        for _ in 0..times {
                            step.children[at].submit(stream, launch, run)?;
                        }
                    }
                }
                Operation::Empty => {}
                other => {
                    flush(stream, run)?;
                    other.clone().submit(stream)?;
                }
            }
        }
        Ok(())
    }
}

fn flush(stream: &Stream, run: &mut Vec<Work>) -> Result<()> {
    if !run.is_empty() {
        stream.enqueue_all(run)?;
        run.clear();
    }
    Ok(())
}

fn extend_run(run: &mut Vec<Work>, next: Work) {
    match (run.last_mut(), next) {
        (
            Some(Work::Kernel { duration_ns, sm_ppm, kernels }),
            Work::Kernel { duration_ns: more_ns, sm_ppm: other_ppm, kernels: more },
        ) if *sm_ppm == other_ppm => {
            *duration_ns += more_ns;
            *kernels += more;
        }
        _ => run.push(next),
    }
}

/// An instantiated graph.
pub struct Exec {
    /// The handle by which clients name the instantiated graph.
    pub handle: usize,
    /// The number of the instantiated graph, unique in this process.
    pub id: u64,
    /// Flags of the instantiation.
    pub flags: u64,
    plan: Mutex<Plan>,
    /// Number of launches so far, and the end of the last launch. Launches of one instantiated
    /// graph do not overlap.
    last: Mutex<(u64, Option<Ticket>)>,
    /// The graph from which this executable graph was made. The reference to the graph keeps the
    /// memory of its nodes, its user objects, and the parameters of captured launches.
    source: Arc<Graph>,
}

/// Reason of a refused update (`CUgraphExecUpdateResult`), and the nodes at which the update
/// failed.
pub type UpdateRefusal = (u32, usize, usize);

/// Returns whether a graph with these flags of its instantiation may be launched from the device.
/// Simulated kernels launch nothing, so the graph itself launches itself again.
fn is_for_device(flags: u64) -> bool {
    flags & u64::from(cu::CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0
}

impl Exec {
    /// Instantiates a graph, and returns the executable graph.
    pub fn create(graph: &Arc<Graph>, flags: u64) -> Result<Arc<Self>> {
        let known = [
            cu::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH,
            cu::CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD,
            cu::CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH,
            cu::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY,
        ];
        status::refuse(flags & !known.iter().fold(0, |all, flag| all | u64::from(*flag)) != 0)?;
        // The driver frees no memory between the launches from the device.
        let frees = flags & u64::from(cu::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
        status::refuse(is_for_device(flags) && frees)?;
        let plan = Plan::new(graph)?;
        EXECS
            .insert_with(|handle| {
                Arc::new(Self {
                    handle,
                    id: process::next_id(),
                    flags,
                    plan: Mutex::new(plan),
                    last: Mutex::default(),
                    source: Arc::clone(graph),
                })
            })
            .ok_or(status::OUT_OF_MEMORY)
    }

    /// Returns the graph from which this executable graph was made.
    pub fn source(&self) -> &Graph {
        &self.source
    }

    /// Allocates the memory for launches in a stream.
    pub fn upload(&self, stream: &Stream) -> Result<()> {
        lock(&self.plan).get_ready(stream)
    }

    /// Submits the whole graph to a stream.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        let plan = lock(&self.plan);
        let mut unfreed = HashMap::new();
        plan.unfreed(&mut unfreed);
        for (address, _) in unfreed.into_iter().filter(|(_, unfreed)| *unfreed > 0) {
            // If the last launch left memory allocated, the launch fails, unless the client asked
            // to free such memory at the next launch.
            if graph_memory::is_live(address) {
                if self.flags & u64::from(cu::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) == 0 {
                    return Err(status::INVALID_VALUE);
                }
                graph_memory::end(address)?;
            }
        }
        // The launch allocates all memory before it submits any work. So the client can repeat a
        // launch that lacks memory.
        plan.get_ready(stream)?;
        let mut last = lock(&self.last);
        if let Some(ticket) = last.1.filter(|ticket| ticket.stream != stream.engine) {
            stream.wait_for(&[ticket])?;
        }
        let mut run = Vec::new();
        let rounds = if is_for_device(self.flags) { condition::rounds(last.0) } else { 1 };
        for _ in 0..rounds {
            plan.submit(stream, last.0, &mut run)?;
        }
        flush(stream, &mut run)?;
        *last = (last.0 + 1, Some(host().last_ticket(stream.engine)));
        Ok(())
    }

    /// Replaces the operation of a node's step by an operation of the same kind.
    pub fn set_operation(&self, node: usize, operation: Operation) -> Result<()> {
        let mut plan = lock(&self.plan);
        let step = plan.step_mut(node).ok_or(status::INVALID_VALUE)?;
        status::refuse(step.operation.node_type() != operation.node_type())?;
        if let Operation::Child(child) = &operation {
            let changed = Plan::new(child)?;
            let own = step.children.first_mut().ok_or(status::INVALID_VALUE)?;
            same_shape(own, &changed).map_err(|_| status::INVALID_VALUE)?;
            take_over(own, &changed);
        }
        step.operation = operation;
        Ok(())
    }

    /// Returns whether a node's step is enabled.
    pub fn is_enabled(&self, node: usize) -> Result<bool> {
        let mut plan = lock(&self.plan);
        plan.step_mut(node).map(|step| step.is_enabled).ok_or(status::INVALID_VALUE)
    }

    /// Enables or disables a node's step. Only kernels, copies and memsets can be disabled.
    pub fn set_enabled(&self, node: usize, is_enabled: bool) -> Result<()> {
        let mut plan = lock(&self.plan);
        let step = plan.step_mut(node).ok_or(status::INVALID_VALUE)?;
        if !matches!(step.operation, Operation::Kernel(_) | Operation::Copy(_) | Operation::Fill(_)) {
            return Err(status::INVALID_VALUE);
        }
        step.is_enabled = is_enabled;
        Ok(())
    }

    /// Replaces the parameters by the parameters of a graph of the same shape.
    pub fn update(&self, graph: &Graph) -> std::result::Result<(), UpdateRefusal> {
        let changed = Plan::new(graph).map_err(|_| (cu::CU_GRAPH_EXEC_UPDATE_ERROR, 0, 0))?;
        let mut plan = lock(&self.plan);
        same_shape(&plan, &changed)?;
        take_over(&mut plan, &changed);
        Ok(())
    }
}

fn same_shape(own: &Plan, other: &Plan) -> std::result::Result<(), UpdateRefusal> {
    if own.steps.len() != other.steps.len() {
        return Err((cu::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, 0, 0));
    }
    for (mine, theirs) in own.steps.iter().zip(&other.steps) {
        if mine.operation.node_type() != theirs.operation.node_type() {
            return Err((cu::CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, theirs.node, mine.node));
        }
        let sorted = |step: &Step| {
            let mut after = step.after.clone();
            after.sort_unstable();
            after
        };
        if sorted(mine) != sorted(theirs) {
            return Err((cu::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, theirs.node, mine.node));
        }
        match (&mine.operation, &theirs.operation) {
            (Operation::Kernel(one), Operation::Kernel(other))
                if one.function.context.id != other.function.context.id =>
            {
                return Err((
                    cu::CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE,
                    theirs.node,
                    mine.node,
                ));
            }
            (Operation::Allocate(_) | Operation::Free(_), _) => {
                return Err((cu::CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED, theirs.node, mine.node));
            }
            _ => {}
        }
        if mine.children.len() != theirs.children.len() {
            return Err((cu::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, theirs.node, mine.node));
        }
        for (mine, theirs) in mine.children.iter().zip(&theirs.children) {
            same_shape(mine, theirs)?;
        }
    }
    Ok(())
}

fn take_over(own: &mut Plan, other: &Plan) {
    for (mine, theirs) in own.steps.iter_mut().zip(&other.steps) {
        mine.operation = theirs.operation.clone();
        for (mine, theirs) in mine.children.iter_mut().zip(&theirs.children) {
            take_over(mine, theirs);
        }
    }
}

/// Returns the instantiated graph of a handle.
pub fn exec(handle: usize) -> Result<Arc<Exec>> {
    EXECS.get(handle).ok_or(status::INVALID_VALUE)
}

/// An object of the client that lives as long as graphs refer to it.
pub struct UserObject {
    /// The handle by which clients name the user object.
    pub handle: usize,
    destroy: unsafe extern "C" fn(*mut std::ffi::c_void),
    data: usize,
    references: Mutex<u32>,
}

impl UserObject {
    /// Creates an object with `references` references.
    pub fn create(
        data: usize,
        destroy: unsafe extern "C" fn(*mut std::ffi::c_void),
        references: u32,
    ) -> Result<Arc<Self>> {
        USER_OBJECTS
            .insert_with(|handle| {
                Arc::new(Self { handle, destroy, data, references: Mutex::new(references) })
            })
            .ok_or(status::OUT_OF_MEMORY)
    }

    /// Adds references.
    pub fn retain(&self, count: u32) {
        *lock(&self.references) += count;
    }
}

/// Removes references. Without references, the function destroys the object.
pub fn release_user_object(handle: usize, count: u32) -> Result<()> {
    let object = USER_OBJECTS.get(handle).ok_or(status::INVALID_VALUE)?;
    let is_last = {
        let mut references = lock(&object.references);
        status::refuse(*references < count)?;
        *references -= count;
        *references == 0
    };
    if is_last {
        USER_OBJECTS.remove(handle);
        // SAFETY: the client passed this destructor for this data. The code calls the destructor
        // once, when the last reference is gone.
        unsafe { (object.destroy)(object.data as *mut std::ffi::c_void) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diamond() -> (Arc<Graph>, [usize; 4]) {
        let graph = Graph::create().unwrap();
        let add = |after: &[usize]| {
            let after: Vec<_> = after.iter().map(|node| Dependency::on(*node)).collect();
            graph.add(Operation::Empty, &after).unwrap().handle
        };
        let top = add(&[]);
        let (left, right) = (add(&[top]), add(&[top]));
        let bottom = add(&[left, right]);
        (graph, [top, left, right, bottom])
    }

    fn order(graph: &Graph) -> Vec<usize> {
        Plan::new(graph).unwrap().steps.iter().map(|step| step.node).collect()
    }

    #[test]
    fn a_plan_runs_nodes_after_what_they_depend_on() {
        let (graph, nodes) = diamond();
        assert_eq!(order(&graph), nodes);
        let early = graph.add(Operation::Empty, &[]).unwrap().handle;
        graph.connect(&[(early, nodes[0], PLAIN_EDGE)]).unwrap();
        assert_eq!(order(&graph)[0], early);
        assert_eq!(graph.roots(), [early]);
    }

    #[test]
    fn a_node_with_several_before_it_waits_for_all_of_them() {
        let graph = Graph::create().unwrap();
        let [last, one, other] = std::array::from_fn(|_| graph.add(Operation::Empty, &[]).unwrap().handle);
        graph.connect(&[(one, last, PLAIN_EDGE), (other, last, PLAIN_EDGE)]).unwrap();
        assert_eq!(order(&graph), [one, other, last]);
    }

    #[test]
    fn strange_and_double_dependencies_are_refused() {
        let (graph, [top, left, ..]) = diamond();
        let (other, [foreign, ..]) = diamond();
        assert_eq!(graph.connect(&[(top, left, PLAIN_EDGE)]), Err(status::INVALID_VALUE));
        assert_eq!(graph.connect(&[(foreign, left, PLAIN_EDGE)]), Err(status::INVALID_VALUE));
        assert_eq!(graph.connect(&[(left, left, PLAIN_EDGE)]), Err(status::INVALID_VALUE));
        assert!(graph.add(Operation::Empty, &[Dependency::on(foreign)]).is_err());
        assert!(graph.add(Operation::Empty, &[Dependency::on(top), Dependency::on(top)]).is_err());
        drop(other);
    }

    #[test]
    fn a_copy_has_its_own_nodes_and_knows_their_originals() {
        let (graph, nodes) = diamond();
        let copy = graph.copy().unwrap();
        assert_eq!(copy.edges().len(), 4);
        for node in nodes {
            let copied = copy.copy_of(node).unwrap();
            assert_ne!(copied, node);
            assert_eq!(super::node(copied).unwrap().graph, copy.handle);
        }
        destroy(graph.handle).unwrap();
        assert_eq!(copy.nodes().len(), 4);
    }

    #[test]
    fn an_update_wants_the_same_shape() {
        let (graph, [_, left, right, _]) = diamond();
        let exec = Exec::create(&graph, 0).unwrap();
        let same = graph.copy().unwrap();
        assert_eq!(exec.update(&same), Ok(()));
        same.connect(&[(same.copy_of(left).unwrap(), same.copy_of(right).unwrap(), PLAIN_EDGE)]).unwrap();
        assert_eq!(exec.update(&same).unwrap_err().0, cu::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
        let (longer, _) = diamond();
        longer.add(Operation::Empty, &[]).unwrap();
        assert_eq!(exec.update(&longer).unwrap_err().0, cu::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    }

    #[test]
    fn kernels_in_a_row_become_one_item_if_they_use_as_much_of_the_gpu() {
        let mut run = Vec::new();
        for (duration_ns, sm_ppm) in [(5, 10), (7, 10), (1, 20)] {
            extend_run(&mut run, Work::Kernel { duration_ns, sm_ppm, kernels: 1 });
        }
        assert_eq!(
            run,
            [
                Work::Kernel { duration_ns: 12, sm_ppm: 10, kernels: 2 },
                Work::Kernel { duration_ns: 1, sm_ppm: 20, kernels: 1 }
            ]
        );
    }
}
