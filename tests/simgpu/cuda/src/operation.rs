//! Operations: the contents of streams and of graph nodes, and how they run.
use std::ffi::c_void;
use std::sync::Arc;

use deepres_abi::driver::types as cu;
use simgpu_engine::{CopyKind, Ticket, Work};

use crate::condition::Conditional;
use crate::copy::{Fill, Plan};
use crate::event::Event;
use crate::graph::Graph;
use crate::graph_memory;
use crate::module::Function;
use crate::pending::{self, Cell, Comparison, Effect, HostCall};
use crate::process::host;
use crate::residency::{self, Moved};
use crate::status::{self, Result};
use crate::stream::Stream;

/// Largest grid by dimension, which no configuration changes (CUDA programming guide, compute
/// capabilities 3.0 and later).
pub const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65535, 65535];
/// Largest block by dimension.
pub const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
/// The most threads in a block.
pub const MAX_BLOCK_THREADS: u32 = 1024;

/// Values of a kernel's parameters, kept for a graph.
pub struct Arguments {
    /// The argument buffer. `pointers` point into the buffer, which stays in place when this struct
    /// moves.
    bytes: Box<[u8]>,
    /// Pointers to the parameters, in the API's form.
    pointers: Box<[usize]>,
}

impl Arguments {
    /// Copies the values of `kernel_params` or `extra`, as far as the function's parameters are
    /// known.
    ///
    /// # Safety
    /// The pointers are as cuLaunchKernel's: `kernel_params` has one readable value per parameter,
    /// and `extra` is a terminated list.
    pub unsafe fn copy(
        function: &Function,
        kernel_params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Result<Self> {
        let length =
            function.parameters.iter().map(|one| one.offset_bytes + one.size_bytes).max().unwrap_or(0);
        let mut bytes = vec![0_u8; length].into_boxed_slice();
        if !kernel_params.is_null() {
            for (at, parameter) in function.parameters.iter().enumerate() {
                // SAFETY: the caller's array has an element for every parameter. Each points at a
                // value of the parameter's size.
                unsafe {
                    let value = (*kernel_params.add(at)).cast::<u8>();
                    status::refuse(value.is_null())?;
                    std::ptr::copy_nonoverlapping(
                        value,
                        bytes[parameter.offset_bytes..].as_mut_ptr(),
                        parameter.size_bytes,
                    );
                }
            }
        } else if !extra.is_null() {
            // SAFETY: the caller's list is terminated and its pointers are valid.
            let (buffer, buffer_bytes) = unsafe { launch_buffer(extra) }?;
            let length = bytes.len().min(buffer_bytes);
            // SAFETY: the caller's buffer has the length that the list gives.
            unsafe { std::ptr::copy_nonoverlapping(buffer, bytes.as_mut_ptr(), length) };
        } else if length != 0 {
            return Err(status::INVALID_VALUE);
        }
        let base = bytes.as_ptr() as usize;
        let pointers = function.parameters.iter().map(|one| base + one.offset_bytes).collect();
        Ok(Self { bytes, pointers })
    }

    /// Returns every word that could be an address.
    pub fn words(&self) -> impl Iterator<Item = u64> {
        self.bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word))
    }

    /// Returns the pointers in the form of `kernelParams`.
    pub fn kernel_params(&self) -> *mut *mut c_void {
        self.pointers.as_ptr() as *mut *mut c_void
    }
}

/// Returns buffer and length of an `extra` list.
///
/// # Safety
/// The list is terminated and its pointers are valid.
unsafe fn launch_buffer(extra: *mut *mut c_void) -> Result<(*const u8, usize)> {
    let (mut buffer, mut bytes) = (std::ptr::null(), 0);
    let mut at = extra;
    loop {
        // SAFETY: the list is terminated, and every key but the last is followed by a value.
        let (key, value) =
            unsafe { (*at as usize, if *at as usize == 0 { std::ptr::null_mut() } else { *at.add(1) }) };
        match key {
            0 => break,
            1 => buffer = value.cast_const().cast::<u8>(),
            // SAFETY: this value points at the length.
            2 => bytes = unsafe { *value.cast::<usize>() },
            _ => return Err(status::INVALID_VALUE),
        }
        // SAFETY: this entry was not the last one, so the list goes on.
        at = unsafe { at.add(2) };
    }
    if buffer.is_null() && bytes != 0 { Err(status::INVALID_VALUE) } else { Ok((buffer, bytes)) }
}

/// One launch of a kernel.
#[derive(Clone)]
pub struct Launch {
    /// The kernel.
    pub function: Arc<Function>,
    /// Number of blocks by dimension.
    pub grid: [u32; 3],
    /// Threads of a block by dimension.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Whether all blocks must be resident at once.
    pub cooperative: bool,
    /// Values of the parameters. The driver keeps the values only if a graph needs them, or if they
    /// can contain addresses of managed memory. Simulated kernels compute nothing.
    pub arguments: Option<Arc<Arguments>>,
}

impl Launch {
    /// Refuses a launch that a GPU could not run.
    #[inline]
    pub fn check(&self) -> Result<()> {
        for axis in 0..3 {
            let in_range = |value: u32, most: u32| value != 0 && value <= most;
            if !in_range(self.grid[axis], MAX_GRID[axis]) || !in_range(self.block[axis], MAX_BLOCK[axis]) {
                return Err(status::INVALID_VALUE);
            }
        }
        let threads = self.block.iter().product::<u32>();
        status::refuse(threads > MAX_BLOCK_THREADS)?;
        if threads > self.function.attribute(cu::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)? as u32 {
            return Err(status::LAUNCH_OUT_OF_RESOURCES);
        }
        if self.shared_bytes
            > self.function.attribute(cu::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)? as u32
        {
            return Err(status::INVALID_VALUE);
        }
        if self.cooperative {
            let fixed = self.function.attribute(cu::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)? as u32;
            let resident = crate::process::config()
                .resident_blocks(threads.into(), u64::from(self.shared_bytes + fixed));
            if self.grid.iter().map(|n| u64::from(*n)).product::<u64>() > resident {
                return Err(status::COOPERATIVE_LAUNCH_TOO_LARGE);
            }
        }
        Ok(())
    }

    /// Moves the launch's managed memory and returns the moved bytes, if the parameters are known.
    #[inline]
    pub fn touch(&self, gpu: usize) -> Moved {
        match &self.arguments {
            Some(arguments) if residency::is_used() => residency::touch(arguments.words(), gpu),
            _ => Moved::default(),
        }
    }

    /// Returns the launch as work for the engine.
    #[inline]
    pub fn work(&self) -> Work {
        self.function.cost(self.grid, self.block, self.shared_bytes).work()
    }
}

/// An operation on a value in memory.
#[derive(Clone, Copy, Debug)]
pub enum MemoryOperation {
    /// Wait until the value in memory compares as asked.
    Wait(Cell, Comparison),
    /// Write the value to memory.
    Write(Cell),
    /// Order memory accesses. The simulated driver has nothing to do for this operation.
    Barrier,
}

/// The content of a stream item or a graph node.
#[derive(Clone)]
pub enum Operation {
    /// A kernel.
    Kernel(Launch),
    /// A copy, as the API describes it. The driver looks up the addresses when the copy runs.
    Copy(Box<cu::CUDA_MEMCPY3D>),
    /// A memset.
    Fill(Fill),
    /// A host function.
    Host(HostCall),
    /// Operations on values in memory: waits, writes and barriers.
    Memory(Vec<MemoryOperation>),
    /// An event record that runs with the graph.
    EventRecord(Arc<Event>),
    /// An event wait that runs with the graph.
    EventWait(Arc<Event>),
    /// A child graph.
    Child(Arc<Graph>),
    /// Graphs that run as often as a condition says.
    Conditional(Arc<Conditional>),
    /// Makes memory of the graph usable.
    Allocate(Box<graph_memory::Node>),
    /// Frees memory of the graph.
    Free(u64),
    /// Does nothing, but other nodes can depend on the node.
    Empty,
}

// SAFETY: the raw pointers inside (copy structs, host call data) are addresses from the client,
// which passed them for use by the driver's threads.
unsafe impl Send for Operation {}
// SAFETY: as above; no operation changes while it is shared.
unsafe impl Sync for Operation {}

impl Operation {
    /// Returns the `CUgraphNodeType` of a node with this operation.
    pub fn node_type(&self) -> u32 {
        match self {
            Self::Kernel(_) => cu::CU_GRAPH_NODE_TYPE_KERNEL,
            Self::Copy(_) => cu::CU_GRAPH_NODE_TYPE_MEMCPY,
            Self::Fill(_) => cu::CU_GRAPH_NODE_TYPE_MEMSET,
            Self::Host(_) => cu::CU_GRAPH_NODE_TYPE_HOST,
            Self::Memory(_) => cu::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
            Self::EventRecord(_) => cu::CU_GRAPH_NODE_TYPE_EVENT_RECORD,
            Self::EventWait(_) => cu::CU_GRAPH_NODE_TYPE_WAIT_EVENT,
            Self::Child(_) => cu::CU_GRAPH_NODE_TYPE_GRAPH,
            Self::Conditional(_) => cu::CU_GRAPH_NODE_TYPE_CONDITIONAL,
            Self::Allocate(_) => cu::CU_GRAPH_NODE_TYPE_MEM_ALLOC,
            Self::Free(_) => cu::CU_GRAPH_NODE_TYPE_MEM_FREE,
            Self::Empty => cu::CU_GRAPH_NODE_TYPE_EMPTY,
        }
    }

    /// Returns the graphs inside the operation.
    pub fn graphs(&self) -> &[Arc<Graph>] {
        match self {
            Self::Child(child) => std::slice::from_ref(child),
            Self::Conditional(conditional) => &conditional.bodies,
            _ => &[],
        }
    }

    /// Submits the operation to a stream.
    pub fn submit(self, stream: &Stream) -> Result<()> {
        match self {
            Self::Kernel(launch) => {
                for work in launch.touch(stream.context.gpu).work() {
                    stream.enqueue(work)?;
                }
                stream.enqueue(launch.work())?;
            }
            Self::Copy(params) => submit_copy(stream, Plan::strided(&params)?)?,
            Self::Fill(fill) => {
                let fill = fill.check()?;
                if fill.bytes() != 0 {
                    let work = Work::Copy { kind: CopyKind::DeviceToDevice, bytes: fill.bytes() };
                    pending::add(stream.enqueue(work)?, Effect::Fill(fill));
                }
            }
            Self::Host(call) => submit_gated(stream, |gate| Effect::Call(call, gate))?,
            Self::Memory(operations) => {
                for operation in operations {
                    match operation {
                        MemoryOperation::Wait(cell, comparison) => {
                            submit_gated(stream, |gate| Effect::Wait(cell, comparison, gate))?;
                        }
                        MemoryOperation::Write(cell) => {
                            pending::add(stream.enqueue(Work::Marker)?, Effect::Write(cell));
                        }
                        MemoryOperation::Barrier => {}
                    }
                }
            }
            Self::EventRecord(event) => event.record_now(stream)?,
            Self::EventWait(event) => {
                if let Some(ticket) = event.ticket() {
                    stream.wait_for(&[ticket])?;
                }
            }
            Self::Allocate(node) => node.begin(&stream.context)?,
            Self::Free(address) => graph_memory::end(address)?,
            // A child belongs to its graph's plan, which runs the child's nodes one by one.
            Self::Child(_) | Self::Conditional(_) | Self::Empty => {}
        }
        Ok(())
    }
}

/// Submits an action of the host. The stream waits until the action is done.
fn submit_gated(stream: &Stream, effect: impl FnOnce(Ticket) -> Effect) -> Result<()> {
    let gate = stream.enqueue(Work::HostWait)?;
    let due = Ticket { sequence: gate.sequence - 1, ..gate };
    pending::add(due, effect(gate));
    Ok(())
}

/// Submits a copy. If the driver does not know the memory of one side, gives the API's guarantees
/// for host memory that is not page-locked.
pub fn submit_copy(stream: &Stream, mut plan: Plan) -> Result<()> {
    if plan.bytes() == 0 {
        return Ok(());
    }
    let waits = plan.to_pageable;
    if plan.from_pageable && !waits {
        plan.stage();
    }
    let ticket = stream.enqueue(Work::Copy { kind: plan.kind, bytes: plan.bytes() })?;
    pending::add(ticket, Effect::Copy(plan));
    if waits {
        host().wait(ticket, stream.context.wait_policy());
        pending::settle();
    }
    Ok(())
}

/// Runs a copy and returns when it is done, as synchronous copies between host and device do.
pub fn copy_now(stream: &Stream, plan: Plan) -> Result<()> {
    if plan.bytes() == 0 {
        return Ok(());
    }
    let ticket = stream.enqueue(Work::Copy { kind: plan.kind, bytes: plan.bytes() })?;
    // Only copies without host memory can still run when the call returns.
    if plan.kind == CopyKind::DeviceToDevice || plan.kind == CopyKind::PeerToPeer {
        pending::add(ticket, Effect::Copy(plan));
        return Ok(());
    }
    host().wait(ticket, stream.context.wait_policy());
    pending::settle();
    plan.run();
    Ok(())
}
