//! Launches: the launches that the driver refuses, and the codes.

use std::ffi::c_void;

use super::prelude::*;

checks! { "launches":
    Documented shapes_that_no_gpu_could_run;
    Documented more_threads_than_the_kernel_allows;
    Guess parameters_that_are_missing;
    Documented a_cooperative_launch_has_to_fit_at_once;
    Guess attributes_of_the_extended_launch;
    Guess null_handles;
    Guess the_oldest_launches;
    Guess a_cooperative_launch_over_several_devices;
}

fn shape(kernel: CUfunction, grid: [u32; 3], block: [u32; 3], shared: u32) -> Result<CUresult, Stop> {
    shape_with(kernel, grid, block, shared, null_mut())
}

fn shape_with(
    kernel: CUfunction,
    [gx, gy, gz]: [u32; 3],
    [bx, by, bz]: [u32; 3],
    shared: u32,
    params: *mut *mut c_void,
) -> Result<CUresult, Stop> {
    Ok(cu!(cuLaunchKernel(kernel, gx, gy, gz, bx, by, bz, shared, null_mut(), params, null_mut())))
}

fn shapes_that_no_gpu_could_run(facts: &mut Facts) -> Result<(), Stop> {
    /// Shared memory that exceeds a block's limit on any GPU.
    const TOO_MUCH_SHARED: u32 = 1 << 20;
    /// Shared memory that every GPU since Volta has for a block whose kernel asks for it.
    const LARGE_SHARED: u32 = 64 << 10;
    let gpu = Gpu::new()?;
    let kernel = gpu.kernel(c"nothing")?;
    for (what, grid, block, shared) in [
        ("an empty grid", [0, 1, 1], [1; 3], 0),
        ("an empty block", [1; 3], [1, 0, 1], 0),
        ("a grid too wide in y", [1, 65536, 1], [1; 3], 0),
        ("a block of too many threads", [1; 3], [1025, 1, 1], 0),
        ("too many in three dimensions", [1; 3], [32, 32, 2], 0),
        ("too much shared memory", [1; 3], [32, 1, 1], TOO_MUCH_SHARED),
    ] {
        facts.code(what, shape(kernel, grid, block, shared)?, CUDA_ERROR_INVALID_VALUE);
    }
    let large = || shape(kernel, [1; 3], [32, 1, 1], LARGE_SHARED);
    facts.code("more shared memory than a kernel has at first", large()?, CUDA_ERROR_INVALID_VALUE);
    let attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    must!(cuFuncSetAttribute(kernel, attribute, LARGE_SHARED as i32));
    facts.code("the same once that is allowed", large()?, CUDA_SUCCESS);
    facts.code("a launch after these", shape(kernel, [1; 3], [1; 3], 0)?, CUDA_SUCCESS);
    facts.code("none of them stays with the context", cu!(cuCtxSynchronize()), CUDA_SUCCESS);
    Ok(())
}

fn more_threads_than_the_kernel_allows(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let kernel = gpu.kernel(c"two")?;
    let (mut out, mut count) = (0_u64, 0_u32);
    let mut parameters = [(&raw mut out).cast::<c_void>(), (&raw mut count).cast()];
    for (threads, expected) in [(65, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES), (64, CUDA_SUCCESS)] {
        let code = shape_with(kernel, [1; 3], [threads, 1, 1], 0, parameters.as_mut_ptr())?;
        facts.code(&format!("{threads} where the kernel says 64"), code, expected);
    }
    Ok(())
}

fn parameters_that_are_missing(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let code = shape(gpu.kernel(c"two")?, [1; 3], [32, 1, 1], 0)?;
    facts.code("neither kernelParams nor extra", code, CUDA_ERROR_INVALID_VALUE);
    Ok(())
}

fn a_cooperative_launch_has_to_fit_at_once(facts: &mut Facts) -> Result<(), Stop> {
    const THREADS: u32 = 1024;
    let gpu = Gpu::new()?;
    let kernel = gpu.kernel(c"nothing")?;
    let (mut processors, mut blocks) = (0, 0);
    must!(cuDeviceGetAttribute(&mut processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    must!(cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, kernel, THREADS as i32, 0));
    let fits = (processors * blocks) as u32;
    let none = null_mut();
    let launch = |grid| {
        Ok::<_, Stop>(cu!(cuLaunchCooperativeKernel(kernel, grid, 1, 1, THREADS, 1, 1, 0, none, null_mut())))
    };
    facts.code("as many blocks as fit", launch(fits)?, CUDA_SUCCESS);
    facts.code("a block more", launch(fits + 1)?, CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    Ok(())
}

fn attributes_of_the_extended_launch(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let kernel = gpu.kernel(c"nothing")?;
    let mut attribute = zeroed!(CUlaunchAttribute);
    let launch = |attribute: &mut CUlaunchAttribute, count| {
        let config =
            CUlaunchConfig { gridDimX: 4, blockDimX: 32, attrs: attribute, numAttrs: count, ..ONE_THREAD };
        Ok::<_, Stop>(cu!(cuLaunchKernelEx(&config, kernel, null_mut(), null_mut())))
    };
    facts.code("none", launch(&mut attribute, 0)?, CUDA_SUCCESS);
    attribute.id = CU_LAUNCH_ATTRIBUTE_MAX + 1;
    facts.code("one that is none", launch(&mut attribute, 1)?, CUDA_ERROR_INVALID_VALUE);
    attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    attribute.value.cooperative = 1;
    facts.code("cooperative", launch(&mut attribute, 1)?, CUDA_SUCCESS);
    attribute.id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
    attribute.value.priority = 0;
    facts.code("a priority", launch(&mut attribute, 1)?, CUDA_SUCCESS);
    let major = made!(cuDeviceGetAttribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
    if major >= 9 {
        attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attribute.value.clusterDim = [3, 1, 1];
        facts.code(
            "clusters that do not divide the grid",
            launch(&mut attribute, 1)?,
            CUDA_ERROR_INVALID_VALUE,
        );
    }
    facts.code("a launch after these", launch(&mut attribute, 0)?, CUDA_SUCCESS);
    Ok(())
}

fn null_handles(facts: &mut Facts) -> Result<(), Stop> {
    let _gpu = Gpu::new()?;
    facts.code("no kernel", shape(null_mut(), [1; 3], [1; 3], 0)?, CUDA_ERROR_INVALID_HANDLE);
    facts.code("no graph", cu!(cuGraphLaunch(null_mut(), null_mut())), CUDA_ERROR_INVALID_VALUE);
    let extended = cu!(cuLaunchKernelEx(null(), null_mut(), null_mut(), null_mut()));
    facts.code("no configuration", extended, CUDA_ERROR_INVALID_VALUE);
    let host = cu!(cuLaunchHostFunc(null_mut(), None, null_mut()));
    facts.code("no host function", host, CUDA_ERROR_INVALID_VALUE);
    Ok(())
}

fn the_oldest_launches(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let kernel = gpu.kernel(c"nothing")?;
    let stream = gpu.stream(CU_STREAM_NON_BLOCKING)?;
    must!(cuFuncSetBlockShape(kernel, 32, 1, 1));
    facts.code("cuLaunch", cu!(cuLaunch(kernel)), CUDA_SUCCESS);
    facts.code("cuLaunchGrid", cu!(cuLaunchGrid(kernel, 2, 2)), CUDA_SUCCESS);
    facts.code("cuLaunchGridAsync", cu!(cuLaunchGridAsync(kernel, 2, 2, stream)), CUDA_SUCCESS);
    facts.code("a negative grid", cu!(cuLaunchGrid(kernel, -1, 1)), CUDA_ERROR_INVALID_VALUE);
    must!(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    let captured = cu!(cuLaunchGridAsync(kernel, 1, 1, stream));
    facts.code("into a capture", captured, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    Ok(())
}

fn a_cooperative_launch_over_several_devices(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let one = |stream| {
        Ok::<_, Stop>(CUDA_LAUNCH_PARAMS {
            function: gpu.kernel(c"nothing")?,
            gridDimX: 1,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream,
            kernelParams: null_mut(),
        })
    };
    let launch = |stream| Ok::<_, Stop>(cu!(cuLaunchCooperativeKernelMultiDevice(&mut one(stream)?, 1, 0)));
    facts.code("on one device", launch(gpu.stream(CU_STREAM_NON_BLOCKING)?)?, CUDA_SUCCESS);
    facts.code("on a default stream", launch(null_mut())?, CUDA_ERROR_INVALID_VALUE);
    let stream = gpu.stream(CU_STREAM_NON_BLOCKING)?;
    let mut twice = [one(stream)?, one(stream)?];
    let same = cu!(cuLaunchCooperativeKernelMultiDevice(twice.as_mut_ptr(), 2, 0));
    facts.code("twice on one device", same, CUDA_ERROR_INVALID_VALUE);
    let none = cu!(cuLaunchCooperativeKernelMultiDevice(null_mut(), 0, 0));
    facts.code("on none", none, CUDA_ERROR_INVALID_VALUE);
    Ok(())
}
