//! The driver functions that launch kernels and graphs.
use deepres_abi::driver::ApiId;

use super::prelude::*;
use crate::context;
use crate::edge;
use crate::event::{self, Event};
use crate::graph;
use crate::module::{self, Function};
use crate::operation::{Arguments, Launch, Operation};
use crate::process;
use crate::residency;
use crate::stream::{self, DefaultStream, Stream};

/// A launch with the arguments that all entry points have in common.
struct Raw {
    function: CUfunction,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    cooperative: bool,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
}

impl Raw {
    /// Returns a launch of this shape that is not cooperative and has no extra arguments.
    fn new(function: CUfunction, grid: [u32; 3], block: [u32; 3], shared_bytes: u32) -> Self {
        let (params, extra) = (std::ptr::null_mut(), std::ptr::null_mut());
        Self { function, grid, block, shared_bytes, cooperative: false, params, extra }
    }
}

/// The attributes of a launch, except hints and orderings, which take no time in the simulation.
#[derive(Default)]
struct Attributes {
    is_cooperative: bool,
    /// Events that the launch records.
    events: Vec<Arc<Event>>,
    is_device_updatable: bool,
}

impl Attributes {
    fn read(config: &CUlaunchConfig) -> Result<Self> {
        let list: &[CUlaunchAttribute] = slice!(config.attrs, config.numAttrs);
        let grid = [config.gridDimX, config.gridDimY, config.gridDimZ];
        let divides = |parts: [u32; 3], whole: [u32; 3]| {
            parts.iter().zip(whole).all(|(part, whole)| *part != 0 && whole % part == 0)
        };
        let (mut cluster, mut preferred) = (None, None);
        let mut read = Self::default();
        for attribute in list {
            let value = &attribute.value;
            match attribute.id {
                // SAFETY: by the API's contract the identifier names the valid member of the union.
                CU_LAUNCH_ATTRIBUTE_COOPERATIVE => read.is_cooperative = unsafe { value.cooperative } != 0,
                // SAFETY: as above.
                CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => cluster = Some(unsafe { value.clusterDim }),
                CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION => {
                    // SAFETY: as above.
                    preferred = Some(unsafe { value.preferredClusterDim });
                }
                CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT | CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT => {
                    // SAFETY: as above; both members begin alike.
                    let recorded = unsafe { value.programmaticEvent };
                    status::refuse(recorded.flags as u32 != CU_EVENT_RECORD_DEFAULT)?;
                    read.events.push(event::by_handle(recorded.event as usize)?);
                }
                CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE => read.is_device_updatable = true,
                CU_LAUNCH_ATTRIBUTE_IGNORE
                | CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
                | CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE
                | CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
                | CU_LAUNCH_ATTRIBUTE_PRIORITY
                | CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP
                | CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN
                | CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
                | CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING
                | CU_LAUNCH_ATTRIBUTE_PORTABLE_CLUSTER_SIZE_MODE
                | CU_LAUNCH_ATTRIBUTE_SHARED_MEMORY_MODE => {}
                // `SYNCHRONIZATION_POLICY`, which is an attribute of streams only, or an unknown
                // identifier.
                _ => return Err(status::INVALID_VALUE),
            }
        }
        let fits = cluster.is_none_or(|cluster| {
            divides(cluster, grid)
                && preferred.is_none_or(|preferred| divides(cluster, preferred) && divides(preferred, grid))
        });
        if fits { Ok(read) } else { Err(status::INVALID_VALUE) }
    }

    /// Refuses attributes that are invalid on `stream`. During a capture, attributes that would
    /// need a special graph node are unsupported.
    fn check(&self, stream: &Stream) -> Result<()> {
        self.events.iter().try_for_each(|event| event.check_for_launch(stream))?;
        match (stream.is_capturing(), self.is_device_updatable) {
            (false, true) => Err(status::INVALID_VALUE),
            (true, is_updatable) if is_updatable || !self.events.is_empty() => {
                edge::unsupported(ApiId::cuLaunchKernelEx)
            }
            _ => Ok(()),
        }
    }
}

fn check_arguments(function: &Function, raw: &Raw) -> Result<()> {
    let (has_params, has_extra) = (!raw.params.is_null(), !raw.extra.is_null());
    status::refuse(has_params && has_extra)?;
    status::refuse(!has_params && !has_extra && !function.parameters.is_empty())?;
    Ok(())
}

#[inline]
fn launch(raw: &Raw, stream: CUstream, default: DefaultStream) -> Result<()> {
    let (stream, launch) = prepare(raw, stream, default)?;
    stream.submit(Operation::Kernel(launch))
}

/// Returns an error if the driver refuses the launch.
#[inline]
fn prepare(raw: &Raw, stream: CUstream, default: DefaultStream) -> Result<(Arc<Stream>, Launch)> {
    status::refuse_as(raw.function.is_null(), status::INVALID_HANDLE)?;
    let function = module::function(raw.function as usize)?;
    let stream = stream::resolve(stream as usize, default)?;
    status::refuse_as(!Arc::ptr_eq(&function.context, &stream.context), status::INVALID_HANDLE)?;
    check_arguments(&function, raw)?;
    let arguments = if stream.is_capturing() || residency::is_used() {
        // SAFETY: by the API's contract the pointers are as cuLaunchKernel's.
        Some(Arc::new(unsafe { Arguments::copy(&function, raw.params, raw.extra) }?))
    } else {
        None
    };
    let launch = Launch {
        function,
        grid: raw.grid,
        block: raw.block,
        shared_bytes: raw.shared_bytes,
        cooperative: raw.cooperative,
        arguments,
    };
    launch.check()?;
    Ok((stream, launch))
}

calls! {
    cuLaunchKernel | cuLaunchKernel_ptsz(
        f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, hStream,
        kernelParams, extra
    ) |default| {
        let (grid, block) = ([gridDimX, gridDimY, gridDimZ], [blockDimX, blockDimY, blockDimZ]);
        let raw = Raw { params: kernelParams, extra, ..Raw::new(f, grid, block, sharedMemBytes) };
        launch(&raw, hStream, default)?;
    }
    cuLaunchKernelEx | cuLaunchKernelEx_ptsz(config, f, kernelParams, extra) |default| {
        let config = read!(config);
        let attributes = Attributes::read(&config)?;
        let grid = [config.gridDimX, config.gridDimY, config.gridDimZ];
        let block = [config.blockDimX, config.blockDimY, config.blockDimZ];
        let cooperative = attributes.is_cooperative;
        let shape = Raw::new(f, grid, block, config.sharedMemBytes);
        let raw = Raw { params: kernelParams, extra, cooperative, ..shape };
        let (stream, launch) = prepare(&raw, config.hStream, default)?;
        attributes.check(&stream)?;
        stream.submit(Operation::Kernel(launch))?;
        // The driver records a launch-completion event here too. The reference allows that at any
        // time after all blocks have begun.
        attributes.events.iter().try_for_each(|event| event.record(&stream))?;
    }
    cuLaunchCooperativeKernel | cuLaunchCooperativeKernel_ptsz(
        f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, hStream,
        kernelParams
    ) |default| {
        let (grid, block) = ([gridDimX, gridDimY, gridDimZ], [blockDimX, blockDimY, blockDimZ]);
        let shape = Raw::new(f, grid, block, sharedMemBytes);
        let raw = Raw { params: kernelParams, cooperative: true, ..shape };
        launch(&raw, hStream, default)?;
    }
    cuGraphLaunch | cuGraphLaunch_ptsz(hGraphExec, hStream) |default| {
        let stream = stream::resolve(hStream as usize, default)?;
        if stream.is_capturing() {
            // A captured launch becomes a child node of the captured graph.
            let source = graph::exec(hGraphExec as usize)?.source().copy()?;
            return stream.submit(Operation::Child(source));
        }
        crate::capture::refuse_implicit(&stream)?;
        graph::exec(hGraphExec as usize)?.launch(&stream)?;
    }
    cuGraphUpload | cuGraphUpload_ptsz(hGraphExec, hStream) |default| {
        graph::exec(hGraphExec as usize)?.upload(&*stream::resolve(hStream as usize, default)?)?;
    }
    cuLaunchCooperativeKernelMultiDevice(launchParamsList, numDevices, flags) {
        let known = CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC
            | CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC;
        let list: &[CUDA_LAUNCH_PARAMS] = slice!(launchParamsList, numDevices);
        status::refuse(flags & !known != 0 || list.is_empty() || list.len() > process::device_count())?;
        // The call submits all launches or, after an error, none.
        let mut launches: Vec<(Arc<Stream>, Launch)> = Vec::new();
        for one in list {
            let grid = [one.gridDimX, one.gridDimY, one.gridDimZ];
            let block = [one.blockDimX, one.blockDimY, one.blockDimZ];
            let shape = Raw::new(one.function, grid, block, one.sharedMemBytes);
            let raw = Raw { params: one.kernelParams, cooperative: true, ..shape };
            // Each launch needs a stream of its own device, never a default stream.
            status::refuse((one.hStream as usize) <= CU_STREAM_PER_THREAD as usize)?;
            let (stream, launch) = prepare(&raw, one.hStream, DefaultStream::Legacy)?;
            let is_alike = |(other, its): &(Arc<Stream>, Launch)| {
                let is_same_shape =
                    (its.grid, its.block, its.shared_bytes) == (raw.grid, raw.block, raw.shared_bytes);
                is_same_shape && other.context.gpu != stream.context.gpu
            };
            status::refuse(!launches.iter().all(is_alike))?;
            launches.push((stream, launch));
        }
        launches.into_iter().try_for_each(|(stream, launch)| stream.submit(Operation::Kernel(launch)))?;
    }
}

/// Launches a function with the shape and shared memory that the oldest API calls stored in it.
fn launch_old(f: CUfunction, width: i32, height: i32, stream: CUstream) -> Result<()> {
    let function = module::function(f as usize)?;
    let (Ok(width), Ok(height)) = (u32::try_from(width), u32::try_from(height)) else {
        return Err(status::INVALID_VALUE);
    };
    let (block, shared_bytes) = function.old_shape();
    let stream = stream::resolve(stream as usize, DefaultStream::Legacy)?;
    status::refuse_as(!Arc::ptr_eq(&function.context, &stream.context), status::INVALID_HANDLE)?;
    let launch = Launch {
        function,
        grid: [width, height, 1],
        block,
        shared_bytes,
        cooperative: false,
        arguments: None,
    };
    launch.check()?;
    status::refuse_as(stream.is_capturing(), status::STREAM_CAPTURE_UNSUPPORTED)?;
    stream.submit(Operation::Kernel(launch))
}

calls! {
    cuLaunch(f) { launch_old(f, 1, 1, std::ptr::null_mut())? }
    cuLaunchGrid(f, grid_width, grid_height) { launch_old(f, grid_width, grid_height, std::ptr::null_mut())? }
    cuLaunchGridAsync(f, grid_width, grid_height, hStream) {
        launch_old(f, grid_width, grid_height, hStream)?;
    }
    cuFuncSetBlockShape(hfunc, x, y, z) {
        let shape = [x, y, z].map(|extent| u32::try_from(extent).unwrap_or(0));
        status::refuse(shape.contains(&0))?;
        module::function(hfunc as usize)?.set_old_block(shape);
    }
    cuFuncSetSharedSize(hfunc, bytes) { module::function(hfunc as usize)?.set_old_shared(bytes) }
}

/// Checks the setting of a parameter. The value has no effect, because simulated kernels compute
/// nothing.
fn set_parameter(hfunc: CUfunction, offset: i32) -> Result<()> {
    module::function(hfunc as usize)?;
    context::current()?;
    if offset < 0 { Err(status::INVALID_VALUE) } else { Ok(()) }
}

calls! {
    cuParamSetSize(hfunc, _numbytes) { set_parameter(hfunc, 0)? }
    cuParamSeti(hfunc, offset, _value) { set_parameter(hfunc, offset)? }
    cuParamSetf(hfunc, offset, _value) { set_parameter(hfunc, offset)? }
    cuParamSetv(hfunc, offset, _ptr, _numbytes) { set_parameter(hfunc, offset)? }
}
