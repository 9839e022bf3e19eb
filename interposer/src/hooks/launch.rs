//! Hooks of the launches.

use deepres_abi::driver::ApiId;
use deepres_abi::driver::result::{CUDA_ERROR_NOT_PERMITTED, CUDA_SUCCESS};
use deepres_abi::driver::types::{
    CUDA_LAUNCH_PARAMS, CUfunction, CUgraphExec, CUlaunchConfig, CUresult, CUstream, c_void,
};

use super::MISSING;
use crate::capture;
use crate::driver::calls::{Calls, Stream};
use crate::driver::memory::ExecHandle;
use crate::driver::real;
use crate::launch::{self, Entry};
use crate::memory::graphs::{self as allocations, Taker};
use crate::meter::segment::{Kind, Launch};
use crate::meter::{estimates, graphs};
use crate::process;
use crate::record;

/// Takes a launch that may not go at once through gate and meter.
#[cold]
#[inline(never)]
fn metered(stream: Stream, launch: Launch, call: &mut dyn FnMut() -> CUresult) -> CUresult {
    match launch::enter(stream, launch) {
        Entry::Bypass => call(),
        Entry::Metered(metered) => {
            let result = call();
            launch::leave(&metered, result == CUDA_SUCCESS);
            result
        }
        Entry::Refused => CUDA_ERROR_NOT_PERMITTED,
    }
}

/// Makes a launch that goes at once and was counted.
#[inline(always)]
fn at_once(stream: Stream, kind: Kind, call: impl FnOnce() -> CUresult) -> CUresult {
    let result = call();
    if result != CUDA_SUCCESS {
        launch::take_back(stream, kind);
    }
    result
}

/// A kernel launch. Launches with the same key take the same time.
#[inline(always)]
fn kernel_of(function: CUfunction, grid: [u32; 3], block: [u32; 3], shared_bytes: u32) -> Launch {
    let (grid, block) = (grid.map(u64::from), block.map(u64::from));
    let key = estimates::launch_key(function as u64, grid, block, u64::from(shared_bytes));
    Launch { key, kind: Kind::Kernel }
}

/// A kernel launch that does not go at once. The launch is recorded here, if the process is
/// recorded.
fn recorded(
    api: ApiId,
    on: Stream,
    function: CUfunction,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
) -> Launch {
    record::launch(api, on, function, grid, block, shared_bytes);
    kernel_of(function, grid, block, shared_bytes)
}

macro_rules! kernel {
    ($name:ident, $slow:ident, $symbol:ident, $per_thread:literal) => {
        /// Hook of a variant of `cuLaunchKernel`. A launch that does not go at once continues in a
        /// function of its own, which keeps this function short.
        pub unsafe extern "C" fn $name(
            f: CUfunction,
            grid_x: u32,
            grid_y: u32,
            grid_z: u32,
            block_x: u32,
            block_y: u32,
            block_z: u32,
            shared_bytes: u32,
            stream: CUstream,
            params: *mut *mut c_void,
            extra: *mut *mut c_void,
        ) -> CUresult {
            let Some(real) = real!($symbol) else { return MISSING };
            let launch = || kernel_of(f, [grid_x, grid_y, grid_z], [block_x, block_y, block_z], shared_bytes);
            let on = Stream::new(stream, $per_thread);
            let goes_at_once = launch::goes_at_once(on, launch);
            let way = if goes_at_once { real } else { $slow };
            // SAFETY: the arguments are the caller's, unchanged.
            let result = unsafe {
                way(f, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, params, extra)
            };
            if result != CUDA_SUCCESS && goes_at_once {
                launch::take_back(on, Kind::Kernel);
            }
            result
        }

        #[cold]
        unsafe extern "C" fn $slow(
            f: CUfunction,
            grid_x: u32,
            grid_y: u32,
            grid_z: u32,
            block_x: u32,
            block_y: u32,
            block_z: u32,
            shared_bytes: u32,
            stream: CUstream,
            params: *mut *mut c_void,
            extra: *mut *mut c_void,
        ) -> CUresult {
            let Some(real) = real!($symbol) else { return MISSING };
            let on = Stream::new(stream, $per_thread);
            let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
            // SAFETY: the arguments are the caller's, unchanged.
            metered(on, recorded(ApiId::$symbol, on, f, grid, block, shared_bytes), &mut || unsafe {
                real(
                    f,
                    grid_x,
                    grid_y,
                    grid_z,
                    block_x,
                    block_y,
                    block_z,
                    shared_bytes,
                    stream,
                    params,
                    extra,
                )
            })
        }
    };
}
kernel!(kernel, kernel_slow, cuLaunchKernel, false);
kernel!(kernel_ptsz, kernel_ptsz_slow, cuLaunchKernel_ptsz, true);

macro_rules! cooperative {
    ($name:ident, $symbol:ident, $per_thread:literal) => {
        /// Hook of a variant of `cuLaunchCooperativeKernel`.
        pub unsafe extern "C" fn $name(
            f: CUfunction,
            grid_x: u32,
            grid_y: u32,
            grid_z: u32,
            block_x: u32,
            block_y: u32,
            block_z: u32,
            shared_bytes: u32,
            stream: CUstream,
            params: *mut *mut c_void,
        ) -> CUresult {
            let Some(real) = real!($symbol) else { return MISSING };
            // SAFETY: the arguments are the caller's, unchanged.
            let mut call = || unsafe {
                real(f, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, params)
            };
            let on = Stream::new(stream, $per_thread);
            let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
            if launch::goes_at_once(on, || kernel_of(f, grid, block, shared_bytes)) {
                return at_once(on, Kind::Kernel, call);
            }
            metered(on, recorded(ApiId::$symbol, on, f, grid, block, shared_bytes), &mut call)
        }
    };
}
cooperative!(cooperative, cuLaunchCooperativeKernel, false);
cooperative!(cooperative_ptsz, cuLaunchCooperativeKernel_ptsz, true);

macro_rules! kernel_ex {
    ($name:ident, $symbol:ident, $per_thread:literal) => {
        /// Hook of a variant of `cuLaunchKernelEx`.
        pub unsafe extern "C" fn $name(
            config: *const CUlaunchConfig,
            f: CUfunction,
            params: *mut *mut c_void,
            extra: *mut *mut c_void,
        ) -> CUresult {
            let Some(real) = real!($symbol) else { return MISSING };
            // SAFETY: the arguments are the caller's, unchanged.
            let mut call = || unsafe { real(config, f, params, extra) };
            // SAFETY: the pointer is null, or the caller passes it as a configuration for the
            // driver to read.
            let Some(config) = (unsafe { config.as_ref() }) else { return call() };
            let on = Stream::new(config.hStream, $per_thread);
            let grid = [config.gridDimX, config.gridDimY, config.gridDimZ];
            let block = [config.blockDimX, config.blockDimY, config.blockDimZ];
            let launch = || kernel_of(f, grid, block, config.sharedMemBytes);
            if launch::goes_at_once(on, launch) {
                return at_once(on, Kind::Kernel, call);
            }
            metered(on, recorded(ApiId::$symbol, on, f, grid, block, config.sharedMemBytes), &mut call)
        }
    };
}
kernel_ex!(kernel_ex, cuLaunchKernelEx, false);
kernel_ex!(kernel_ex_ptsz, cuLaunchKernelEx_ptsz, true);

/// Launches a graph by `call`, where some graphs of the process allocate memory. A captured launch
/// takes no memory.
#[cold]
fn allocating(api: ApiId, graph: CUgraphExec, on: Stream, mut call: impl FnMut() -> CUresult) -> CUresult {
    let is_captured = |calls: &Calls| capture::is_active() && calls.may_be_capturing(on);
    match process::current().filter(|process| !is_captured(&process.calls)) {
        Some(process) => {
            let taker = Taker::Launch(ExecHandle(graph as usize));
            // The wait at the gate comes first, because memory that this launch has taken would
            // keep other graphs waiting.
            launch::await_turn(on);
            process.memory.take_for_graph(process, api, taker, call)
        }
        None => call(),
    }
}

macro_rules! graph {
    ($name:ident, $symbol:ident, $per_thread:literal) => {
        /// Hook of a variant of `cuGraphLaunch`.
        pub unsafe extern "C" fn $name(graph: CUgraphExec, stream: CUstream) -> CUresult {
            let Some(real) = real!($symbol) else { return MISSING };
            // SAFETY: the arguments are the caller's, unchanged.
            let mut call = || unsafe { real(graph, stream) };
            let on = Stream::new(stream, $per_thread);
            let mut pass = || {
                let launch = || graphs::launch(graph as usize);
                if launch::goes_at_once(on, launch) {
                    // Only graphs without conditional nodes go at once.
                    return at_once(on, Kind::Graph, &mut call);
                }
                // The API tells the record that this is a graph and not a kernel.
                record::launch(ApiId::$symbol, on, graph as CUfunction, [0; 3], [0; 3], 0);
                metered(on, launch(), &mut call)
            };
            // Memory comes before the gate, because a launch that waits for memory is not on its
            // way to the GPU.
            if allocations::is_used() { allocating(ApiId::$symbol, graph, on, pass) } else { pass() }
        }
    };
}
graph!(graph, cuGraphLaunch, false);
graph!(graph_ptsz, cuGraphLaunch_ptsz, true);

macro_rules! oldest {
    ($($name:ident: $symbol:ident($($argument:ident: $type:ty),*) => $grid:expr, on $stream:expr;)+) => {$(
        #[doc = concat!("Hook of `", stringify!($symbol), "`. The function keeps the block's shape to itself.")]
        pub unsafe extern "C" fn $name(function: CUfunction $(, $argument: $type)*) -> CUresult {
            let Some(real) = real!($symbol) else { return MISSING };
            // SAFETY: the arguments are the caller's, unchanged.
            let mut call = || unsafe { real(function $(, $argument)*) };
            let on = Stream::new($stream, false);
            let launch = || kernel_of(function, $grid, [0; 3], 0);
            if launch::goes_at_once(on, launch) {
                return at_once(on, Kind::Kernel, call);
            }
            metered(on, recorded(ApiId::$symbol, on, function, $grid, [0; 3], 0), &mut call)
        }
    )+};
}

oldest! {
    oldest: cuLaunch() => [1; 3], on std::ptr::null_mut();
    oldest_grid: cuLaunchGrid(width: i32, height: i32) => [width as u32, height as u32, 1], on std::ptr::null_mut();
    oldest_grid_async: cuLaunchGridAsync(width: i32, height: i32, stream: CUstream) => [width as u32, height as u32, 1], on stream;
}

/// Hook of `cuLaunchCooperativeKernelMultiDevice`, which makes one launch on each device, or none.
pub unsafe extern "C" fn cooperative_multi(
    list: *mut CUDA_LAUNCH_PARAMS,
    count: u32,
    flags: u32,
) -> CUresult {
    let Some(real) = real!(cuLaunchCooperativeKernelMultiDevice) else { return MISSING };
    // SAFETY: the arguments are the caller's, unchanged.
    let mut call = || unsafe { real(list, count, flags) };
    // If the count exceeds the number of devices, the driver refuses the call before it reads the
    // list.
    let devices = process::current().map_or(0, |process| process.gpus.len());
    if list.is_null() || count as usize > devices {
        return call();
    }
    // SAFETY: the caller passes a list of this length, at most one for each device, for the driver
    // to read.
    let list = unsafe { std::slice::from_raw_parts(list, count as usize) };
    if has_a_stream_twice(list) {
        // The driver refuses such a list, and a lane can hold one launch at a time.
        return call();
    }
    on_each(list, &mut call)
}

fn has_a_stream_twice(list: &[CUDA_LAUNCH_PARAMS]) -> bool {
    list.iter().enumerate().any(|(at, one)| list[..at].iter().any(|other| other.hStream == one.hStream))
}

/// Takes each launch through its gate and meter, then makes all of them together.
fn on_each(list: &[CUDA_LAUNCH_PARAMS], call: &mut dyn FnMut() -> CUresult) -> CUresult {
    let Some((one, rest)) = list.split_first() else { return call() };
    let on = Stream::new(one.hStream, false);
    let grid = [one.gridDimX, one.gridDimY, one.gridDimZ];
    let block = [one.blockDimX, one.blockDimY, one.blockDimZ];
    let launch = || kernel_of(one.function, grid, block, one.sharedMemBytes);
    // Only the last launch may go at once. An earlier one would be counted, but not be under way
    // while the next one waits at its gate. The meter thread could then take the earlier launch for
    // complete.
    if rest.is_empty() && launch::goes_at_once(on, launch) {
        return at_once(on, Kind::Kernel, || on_each(rest, call));
    }
    let api = ApiId::cuLaunchCooperativeKernelMultiDevice;
    let launch = recorded(api, on, one.function, grid, block, one.sharedMemBytes);
    metered(on, launch, &mut || on_each(rest, call))
}
