//! Hooks of the calls that launch kernels and graphs.

use deepres_abi::coverage::Bypass;
use deepres_abi::driver::result::{CUDA_ERROR_NOT_PERMITTED, CUDA_SUCCESS};
use deepres_abi::driver::types::*;
use deepres_abi::driver::{ApiId, StreamKind};

use super::{Hooked, MISSING};
use crate::capture;
use crate::coverage;
use crate::driver::calls::{Calls, Stream};
use crate::driver::kernels::Geometry;
use crate::driver::memory::ExecHandle;
use crate::driver::real;
use crate::launch::{self, Entry};
use crate::memory::graphs::{self as allocations, Taker};
use crate::meter::segment::{Kind, Launch};
use crate::meter::width::Shape;
use crate::meter::{estimates, graphs};
use crate::plan;
use crate::process;
use crate::record;
use crate::reentry;

/// Takes a launch that may not go at once through gate and meter. Returns the result of `call`, or
/// an error if the daemon is gone and the session fails closed.
#[cold]
#[inline(never)]
fn metered(stream: Stream, launch: Launch, shape: Shape, call: &mut dyn FnMut() -> CUresult) -> CUresult {
    match launch::begin(stream, launch, shape) {
        Entry::Pass => call(),
        Entry::Metered(metered) => {
            let result = call();
            launch::end(&metered, result == CUDA_SUCCESS);
            result
        }
        Entry::Refused => CUDA_ERROR_NOT_PERMITTED,
    }
}

/// Makes a memory set, or a copy within a device, by `call`: at once, or through gate and meter.
/// Returns the result of `call`, or an error if the daemon is gone and the session fails closed.
pub fn launched(stream: Stream, launch: Launch, mut call: impl FnMut() -> CUresult) -> CUresult {
    if launch::goes_at_once(stream, || launch) {
        at_once(stream, launch.kind, call)
    } else {
        metered(stream, launch, Shape::Bytes, &mut call)
    }
}

/// Makes a launch by `call`. The launch goes at once, because the lane has counted it. Returns the
/// result of `call`.
#[inline(always)]
fn at_once(stream: Stream, kind: Kind, call: impl FnOnce() -> CUresult) -> CUresult {
    let result = call();
    if result != CUDA_SUCCESS {
        launch::take_back(stream, kind);
    }
    result
}

/// Launches a graph by `call`, in a process in which some graphs allocate memory. Returns the
/// result. A captured launch takes no memory.
#[cold]
fn allocating(api: ApiId, graph: CUgraphExec, on: Stream, mut call: impl FnMut() -> CUresult) -> CUresult {
    let is_captured = |calls: &Calls| capture::is_active() && calls.may_be_capturing(on);
    match process::current().filter(|process| !is_captured(&process.calls)) {
        Some(process) => {
            let taker = Taker::Launch(ExecHandle(graph as usize));
            // The launch waits at the gate first. If it took memory before the wait, other graphs
            // would wait for that memory.
            launch::await_turn(on);
            process.memory.take_for_graph(process, api, taker, call)
        }
        None => call(),
    }
}

/// A kernel launch, as its hook finds it in the arguments.
#[derive(Clone, Copy)]
struct KernelCall {
    api: ApiId,
    on: Stream,
    function: CUfunction,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    kind: Kind,
}

impl KernelCall {
    /// Returns a launch on the stream that `stream` denotes for the function `of`.
    #[inline(always)]
    fn new(
        of: Hooked,
        stream: CUstream,
        function: CUfunction,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
    ) -> Self {
        let kind = Kind::Kernel;
        Self { api: of.api, on: of.stream(stream), function, grid, block, shared_bytes, kind }
    }

    /// Returns the launch for the meter. Launches with the same key take the same time.
    #[inline(always)]
    fn launch(self) -> Launch {
        let (grid, block) = (self.grid.map(u64::from), self.block.map(u64::from));
        let key = estimates::launch_key(self.function as u64, grid, block, u64::from(self.shared_bytes));
        Launch { key, kind: self.kind }
    }

    /// Returns the origin of the launch's width.
    fn shape(self) -> Shape {
        Shape::Kernel(Geometry {
            function: self.function as usize,
            grid: self.grid,
            block: self.block,
            shared_bytes: self.shared_bytes,
        })
    }

    #[inline(always)]
    fn goes_at_once(self) -> bool {
        launch::goes_at_once(self.on, || self.launch())
    }

    /// Makes the launch by `call`: at once, or through gate and meter. Returns the result.
    #[inline(always)]
    fn make(self, mut call: impl FnMut() -> CUresult) -> CUresult {
        if self.goes_at_once() {
            return at_once(self.on, self.kind, call);
        }
        self.make_later(&mut call)
    }

    /// Makes the launch by `call`, through gate and meter. If the thread is inside another hook,
    /// counts a bypass and only makes the call. Returns the result.
    fn make_later(self, call: &mut dyn FnMut() -> CUresult) -> CUresult {
        match reentry::enter() {
            Some(_inside) => self.make_inside(call),
            None => {
                coverage::bypass(Bypass::Reentered);
                call()
            }
        }
    }

    /// Makes the launch by `call`, through gate and meter, in a thread that is marked as inside a
    /// hook. If the process writes a trace, writes the launch to the trace. If the process follows
    /// a plan, holds the launch at the plan's cuts. Returns the result.
    fn make_inside(self, call: &mut dyn FnMut() -> CUresult) -> CUresult {
        record::launch(self.api, self.on, self.function, self.grid, self.block, self.shared_bytes);
        let launch = self.launch();
        plan::along(self.on, || launch.key, || metered(self.on, launch, self.shape(), call))
    }
}

/// Defines the hook of a variant of `cuLaunchKernel`, and the function `slow`. The hook calls
/// `slow` for a launch that does not go at once, so that the hook itself stays short.
macro_rules! kernel {
    ($symbol:ident $stream:ident ($($argument:ident: $type:ty),*) $slow:ident) => {
        #[doc = concat!("Hook of `", stringify!($symbol), "`.")]
        pub unsafe extern "C" fn $symbol($($argument: $type),*) -> CUresult {
            let Some(real) = real!($symbol) else { return MISSING };
            let kernel = kernel!(@call $symbol $stream ($($argument),*));
            let goes_at_once = kernel.goes_at_once();
            let way = if goes_at_once { real } else { $slow };
            // SAFETY: both ways have the contract of the driver's function, and get the caller's
            // arguments unchanged.
            let result = unsafe { way($($argument),*) };
            if result != CUDA_SUCCESS && goes_at_once {
                launch::take_back(kernel.on, Kind::Kernel);
            }
            result
        }

        #[cold]
        unsafe extern "C" fn $slow($($argument: $type),*) -> CUresult {
            let Some(real) = real!($symbol) else { return MISSING };
            let kernel = kernel!(@call $symbol $stream ($($argument),*));
            // SAFETY: the caller owes this function the contract of the driver's function.
            kernel.make_later(&mut || unsafe { real($($argument),*) })
        }
    };
    (@call $symbol:ident $stream:ident $arguments:tt) => {{
        let (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, ..) = $arguments;
        let of = Hooked::new(ApiId::$symbol, StreamKind::$stream);
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        KernelCall::new(of, stream, function, grid, block, shared_bytes)
    }};
}
deepres_abi::driver_function!(cuLaunchKernel => [kernel] launch_kernel_later);
deepres_abi::driver_function!(cuLaunchKernel_ptsz => [kernel] launch_kernel_ptsz_later);

super::hook! { unguarded:
    [cuLaunchCooperativeKernel cuLaunchCooperativeKernel_ptsz]
    (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, _) |of, call| {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        KernelCall::new(of, stream, function, grid, block, shared_bytes).make(call)
    };

    [cuLaunchKernelEx cuLaunchKernelEx_ptsz] (config, function, ..) |of, call| {
        // SAFETY: the pointer is null, or the caller passes it as a configuration for the driver to
        // read.
        let Some(config) = (unsafe { config.as_ref() }) else {
            coverage::bypass(Bypass::Invalid);
            return call();
        };
        let grid = [config.gridDimX, config.gridDimY, config.gridDimZ];
        let block = [config.blockDimX, config.blockDimY, config.blockDimZ];
        let kernel = KernelCall::new(of, config.hStream, function, grid, block, config.sharedMemBytes);
        KernelCall { kind: kind_of(config), ..kernel }.make(call)
    };

    // These functions do not tell the block's shape.
    [cuLaunch] (function, ..) |of, call| {
        KernelCall::new(of, std::ptr::null_mut(), function, [1; 3], [0; 3], 0).make(call)
    };
    [cuLaunchGrid] (function, width, height) |of, call| {
        let grid = [width as u32, height as u32, 1];
        KernelCall::new(of, std::ptr::null_mut(), function, grid, [0; 3], 0).make(call)
    };
    [cuLaunchGridAsync] (function, width, height, stream) |of, call| {
        let grid = [width as u32, height as u32, 1];
        KernelCall::new(of, stream, function, grid, [0; 3], 0).make(call)
    };
}

super::hook! {
    [cuGraphLaunch cuGraphLaunch_ptsz] (graph, stream) |of, call| {
        let on = of.stream(stream);
        let pass = || {
            let launch = || graphs::launch(graph as usize);
            if launch::goes_at_once(on, launch) {
                // Only graphs without conditional nodes go at once.
                return at_once(on, Kind::Graph, call);
            }
            // The API tells the reader of the trace that this is a graph and not a kernel.
            record::launch(of.api, on, graph as CUfunction, [0; 3], [0; 3], 0);
            metered(on, launch(), Shape::Graph(graph as usize), &mut &call)
        };
        // The graph takes memory before it passes the gate, because a launch that waits for memory
        // is not yet on its way to the GPU.
        let may_allocate = allocations::may_need(ExecHandle(graph as usize));
        let take = || if may_allocate { allocating(of.api, graph, on, pass) } else { pass() };
        // The key of the recording, because the daemon learned the plan from a recording. The
        // launch waits at the cuts before it takes memory, because other graphs would wait for that
        // memory.
        plan::along(on, || estimates::launch_key(graph as u64, [0; 3], [0; 3], 0), take)
    };

    // This function makes one launch on each device, or none.
    [cuLaunchCooperativeKernelMultiDevice] (list, count, _) |of, call| {
        // If the count exceeds the number of devices, the driver refuses the call before it reads
        // the list.
        let devices = process::current().map_or(0, |process| process.gpus.len());
        let is_readable = !list.is_null() && count as usize <= devices;
        // SAFETY: the caller passes a list of this length, at most one entry for each device, for
        // the driver to read.
        let list = is_readable.then(|| unsafe { std::slice::from_raw_parts(list, count as usize) });
        // The driver refuses a list that has a stream twice, and a lane can hold one launch at a
        // time.
        match list.filter(|list| !has_a_stream_twice(list)) {
            Some(list) => on_each(of, list, &mut &call),
            None => {
                coverage::bypass(Bypass::Invalid);
                call()
            }
        }
    };
}

/// Returns the kind of a launch by its attributes.
#[inline(always)]
fn kind_of(config: &CUlaunchConfig) -> Kind {
    if config.attrs.is_null() || config.numAttrs > CU_LAUNCH_ATTRIBUTE_MAX {
        return Kind::Kernel;
    }
    // SAFETY: the caller passes a list of this length for the driver to read.
    let mut attributes = (0..config.numAttrs as usize).map(|place| unsafe { config.attrs.add(place).read() });
    let is_dependent = attributes.any(|attribute| match attribute.id {
        CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION => {
            // SAFETY: the id says that this member of the union was written.
            (unsafe { attribute.value.programmaticStreamSerializationAllowed }) != 0
        }
        CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT => true,
        _ => false,
    });
    if is_dependent { Kind::Dependent } else { Kind::Kernel }
}

fn has_a_stream_twice(list: &[CUDA_LAUNCH_PARAMS]) -> bool {
    list.iter().enumerate().any(|(at, one)| list[..at].iter().any(|other| other.hStream == one.hStream))
}

/// Takes each launch through its gate and meter, and then makes all launches together by `call`.
/// Returns the result.
fn on_each(of: Hooked, list: &[CUDA_LAUNCH_PARAMS], call: &mut dyn FnMut() -> CUresult) -> CUresult {
    let Some((one, rest)) = list.split_first() else { return call() };
    let grid = [one.gridDimX, one.gridDimY, one.gridDimZ];
    let block = [one.blockDimX, one.blockDimY, one.blockDimZ];
    let kernel = KernelCall::new(of, one.hStream, one.function, grid, block, one.sharedMemBytes);
    // No launch goes at once. A launch that goes at once is counted, but is not under way while the
    // driver checks the whole list. The meter thread could then close the launch's segment, and the
    // count would keep a launch that the driver refuses.
    kernel.make_inside(&mut || on_each(of, rest, call))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_inside_another_hook_is_made_and_counted_as_a_bypass() {
        let of = Hooked::new(ApiId::cuLaunchKernel, StreamKind::Legacy);
        let kernel = KernelCall::new(of, std::ptr::null_mut(), std::ptr::null_mut(), [1; 3], [1; 3], 0);
        let _inside = reentry::enter();
        let before = coverage::BYPASSES.calls(Bypass::Reentered);
        assert_eq!(kernel.make_later(&mut || CUDA_ERROR_NOT_PERMITTED), CUDA_ERROR_NOT_PERMITTED);
        assert_eq!(coverage::BYPASSES.calls(Bypass::Reentered), before + 1);
    }
}
