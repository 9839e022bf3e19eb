//! Contexts: stacks of contexts, primary contexts, and the remains of destroyed contexts.

use super::prelude::*;

checks! { "contexts":
    Documented each_thread_has_a_stack_of_its_own;
    Documented without_one_most_calls_are_refused;
    Documented a_primary_context_lives_as_long_as_someone_holds_it;
    Guess a_primary_context_is_not_destroyed_but_released;
    Guess objects_of_a_destroyed_one;
    Guess a_reset_ends_it_under_its_holders;
    Guess handles_that_never_were;
    Guess a_kernel_runs_in_its_own_context_only;
    Guess a_green_context_uses_the_events_and_the_code_of_the_primary_context;
}

fn current() -> Result<CUcontext, Stop> {
    Ok(made!(cuCtxGetCurrent()))
}

fn each_thread_has_a_stack_of_its_own(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    facts.is("creating makes current", current()?, gpu.context);
    let second = made!(cuCtxCreate_v2(0, 0));
    facts.is("the newest is current", current()?, second);
    let elsewhere = std::thread::spawn(|| Ok((current()? as usize, cu!(cuCtxSynchronize())))).join();
    let elsewhere: (usize, CUresult) = elsewhere.unwrap_or(Ok((1, CUDA_ERROR_UNKNOWN)))?;
    facts.is("another thread has none", elsewhere, (0, CUDA_ERROR_INVALID_CONTEXT));
    let popped = made!(cuCtxPopCurrent_v2());
    facts.is("popping gives the top", popped, second);
    facts.is("the context below is current again", current()?, gpu.context);
    must!(cuCtxPushCurrent_v2(second));
    must!(cuCtxDestroy_v2(second));
    facts.is("destroying what is current pops it", current()?, gpu.context);
    must!(cuCtxSetCurrent(null_mut()));
    facts.is("setting none empties the top", current()?, null_mut());
    Ok(())
}

fn without_one_most_calls_are_refused(facts: &mut Facts) -> Result<(), Stop> {
    must!(cuInit(0));
    let (mut device, mut popped, mut stream, mut event) = (0, null_mut(), null_mut(), null_mut());
    let (mut free, mut total) = (0, 0);
    facts.is("none is current", current()?, null_mut());
    for (what, code) in [
        ("cuCtxSynchronize", cu!(cuCtxSynchronize())),
        ("cuCtxGetDevice", cu!(cuCtxGetDevice(&mut device))),
        ("cuCtxPopCurrent", cu!(cuCtxPopCurrent_v2(&mut popped))),
        ("cuMemAlloc", cu!(cuMemAlloc_v2(&mut 0, 64))),
        ("cuMemGetInfo", cu!(cuMemGetInfo_v2(&mut free, &mut total))),
        ("cuStreamCreate", cu!(cuStreamCreate(&mut stream, 0))),
        ("cuEventCreate", cu!(cuEventCreate(&mut event, 0))),
    ] {
        facts.code(what, code, CUDA_ERROR_INVALID_CONTEXT);
    }
    Ok(())
}

fn state() -> Result<(u32, i32), Stop> {
    let (mut flags, mut active) = (0, 0);
    must!(cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
    Ok((flags, active))
}

fn a_primary_context_lives_as_long_as_someone_holds_it(facts: &mut Facts) -> Result<(), Stop> {
    must!(cuInit(0));
    facts.is("asking does not make it", state()?.1, 0);
    let (mut one, mut other) = (null_mut(), null_mut());
    must!(cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_BLOCKING_SYNC));
    must!(cuDevicePrimaryCtxRetain(&mut one, 0));
    must!(cuDevicePrimaryCtxRetain(&mut other, 0));
    facts.is("there is one", one, other);
    facts.is("retaining does not make it current", current()?, null_mut());
    must!(cuDevicePrimaryCtxRelease_v2(0));
    facts.is("one holder is left", state()?, (CU_CTX_SCHED_BLOCKING_SYNC, 1));
    must!(cuDevicePrimaryCtxRelease_v2(0));
    facts.is("none is left", state()?.1, 0);
    facts.code("releasing it once more", cu!(cuDevicePrimaryCtxRelease_v2(0)), CUDA_ERROR_INVALID_CONTEXT);
    Ok(())
}

fn a_primary_context_is_not_destroyed_but_released(facts: &mut Facts) -> Result<(), Stop> {
    must!(cuInit(0));
    let context = made!(cuDevicePrimaryCtxRetain(0));
    facts.code("cuCtxDestroy of it", cu!(cuCtxDestroy_v2(context)), CUDA_ERROR_INVALID_CONTEXT);
    facts.is("it is active", state()?.1, 1);
    Ok(())
}

fn objects_of_a_destroyed_one(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let short = made!(cuCtxCreate_v2(0, 0));
    let (event, recorded, stream) = (gpu.event(0)?, gpu.event(0)?, gpu.stream(0)?);
    let address = gpu.memory(64)?;
    must!(cuEventRecord(recorded, stream));
    must!(cuCtxDestroy_v2(short));
    facts.code("making it current", cu!(cuCtxSetCurrent(short)), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    facts.code("an event of it", cu!(cuEventQuery(event)), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    facts.code("one that was recorded", cu!(cuEventQuery(recorded)), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    facts.code("a stream of it", cu!(cuStreamQuery(stream)), CUDA_ERROR_INVALID_HANDLE);
    facts.code("memory of it", cu!(cuMemFree_v2(address)), CUDA_ERROR_INVALID_VALUE);
    facts.code("destroying it again", cu!(cuCtxDestroy_v2(short)), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    facts.code("another context", gpu.nothing(null_mut())?, CUDA_SUCCESS);
    Ok(())
}

fn a_reset_ends_it_under_its_holders(facts: &mut Facts) -> Result<(), Stop> {
    must!(cuInit(0));
    let context = made!(cuDevicePrimaryCtxRetain(0));
    must!(cuCtxSetCurrent(context));
    let address = made!(cuMemAlloc_v2(64));
    facts.code("resetting", cu!(cuDevicePrimaryCtxReset_v2(0)), CUDA_SUCCESS);
    facts.is("it is not active any more", state()?.1, 0);
    facts.code("a call in it", cu!(cuCtxSynchronize()), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    let mut again = null_mut();
    facts.code("retaining it anew", cu!(cuDevicePrimaryCtxRetain(&mut again, 0)), CUDA_SUCCESS);
    must!(cuCtxSetCurrent(again));
    facts.code("a call in the new one", cu!(cuCtxSynchronize()), CUDA_SUCCESS);
    facts.code("memory of the old one", cu!(cuMemFree_v2(address)), CUDA_ERROR_INVALID_VALUE);
    Ok(())
}

/// A driver that dereferences a stale handle crashes here. The crash counts as an answer.
fn handles_that_never_were(facts: &mut Facts) -> Result<(), Stop> {
    const NEVER: usize = 0x1234_5678;
    let _gpu = Gpu::new()?;
    facts.code("a context", cu!(cuCtxSetCurrent(NEVER as CUcontext)), CUDA_ERROR_INVALID_CONTEXT);
    facts.code("a stream", cu!(cuStreamQuery(NEVER as CUstream)), CUDA_ERROR_INVALID_HANDLE);
    facts.code("an event", cu!(cuEventQuery(NEVER as CUevent)), CUDA_ERROR_INVALID_HANDLE);
    facts.code("a kernel", launch(NEVER as CUfunction, null_mut())?, CUDA_ERROR_INVALID_HANDLE);
    facts.code("a module", cu!(cuModuleUnload(NEVER as CUmodule)), CUDA_ERROR_INVALID_HANDLE);
    Ok(())
}

fn a_kernel_runs_in_its_own_context_only(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let kernel = gpu.kernel(c"nothing")?;
    made!(cuCtxCreate_v2(0, 0));
    let foreign = gpu.stream(CU_STREAM_NON_BLOCKING)?;
    facts.code("on a stream of another context", launch(kernel, foreign)?, CUDA_ERROR_INVALID_HANDLE);
    facts.code("on the default stream of another", launch(kernel, null_mut())?, CUDA_ERROR_INVALID_HANDLE);
    Ok(())
}

/// deepres meters a green context by events of the primary context, and never makes it current.
fn a_green_context_uses_the_events_and_the_code_of_the_primary_context(
    facts: &mut Facts,
) -> Result<(), Stop> {
    must!(cuInit(0));
    let primary = made!(cuDevicePrimaryCtxRetain(0));
    must!(cuCtxSetCurrent(primary));
    let module = made!(cuModuleLoadData(PTX.as_ptr().cast()));
    let nothing = made!(cuModuleGetFunction(module, c"nothing".as_ptr()));
    // The fields of a resource are the driver's.
    let (mut whole, mut part, mut groups) = ([0_u64; 18], [0_u64; 18], 1);
    let resource = (&raw mut whole).cast();
    if cu!(cuDeviceGetDevResource(0, resource, CU_DEV_RESOURCE_TYPE_SM)) != CUDA_SUCCESS {
        return Err(Stop::Absent("this device has no parts of its SMs".to_owned()));
    }
    let out = (&raw mut part).cast();
    must!(cuDevSmResourceSplitByCount(out, &mut groups, resource.cast_const(), null_mut(), 0, 8));
    let descriptor = made!(cuDevResourceGenerateDesc(out, 1));
    let green = made!(cuGreenCtxCreate(descriptor, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    let view = made!(cuCtxFromGreenCtx(green));
    let stream = made!(cuGreenCtxStreamCreate(green, CU_STREAM_NON_BLOCKING, 0));
    let mut own = null_mut();
    must!(cuStreamGetCtx(stream, &mut own));
    facts.is("the context of a stream of it", own, view);
    facts.is("converting it again", made!(cuCtxFromGreenCtx(green)), view);
    facts.has("its context", view, "another than the primary context", view != primary);
    facts.is("the current context", current()?, primary);
    let (start, end) = (made!(cuEventCreate(0)), made!(cuEventCreate(0)));
    facts.code("an event of the primary context there", cu!(cuEventRecord(start, stream)), CUDA_SUCCESS);
    facts.code("a kernel of the primary context there", launch(nothing, stream)?, CUDA_SUCCESS);
    must!(cuEventRecord(end, stream));
    must!(cuEventSynchronize(end));
    let mut ms = 0.0;
    facts.code("the time between both", cu!(cuEventElapsedTime(&mut ms, start, end)), CUDA_SUCCESS);
    must!(cuCtxPushCurrent_v2(view));
    facts.is("once it is current", current()?, view);
    let memory = made!(cuMemAlloc_v2(64));
    let mut popped = null_mut();
    must!(cuCtxPopCurrent_v2(&mut popped));
    must!(cuGreenCtxDestroy(green));
    facts.code("its stream afterwards", cu!(cuStreamQuery(stream)), CUDA_ERROR_STREAM_DETACHED);
    facts.code("memory that was allocated in it", cu!(cuMemFree_v2(memory)), CUDA_SUCCESS);
    facts.code("the events", cu!(cuEventQuery(end)), CUDA_SUCCESS);
    Ok(())
}
