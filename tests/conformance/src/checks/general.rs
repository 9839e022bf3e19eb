//! Initialisation, errors, devices.

use std::ffi::CStr;

use super::prelude::*;

checks! { "general":
    Documented nothing_but_questions_about_the_driver_works_before_initialisation;
    Documented initialising_takes_no_flags_and_may_be_repeated;
    Guess a_child_forked_after_initialisation_has_no_driver;
    Documented errors_have_names;
    Documented devices_are_described_within_bounds;
}

fn nothing_but_questions_about_the_driver_works_before_initialisation(facts: &mut Facts) -> Result<(), Stop> {
    let (mut count, mut version, mut context, mut name) = (0, 0, null_mut(), null());
    facts.code("cuDeviceGetCount", cu!(cuDeviceGetCount(&mut count)), CUDA_ERROR_NOT_INITIALIZED);
    facts.code("cuCtxGetCurrent", cu!(cuCtxGetCurrent(&mut context)), CUDA_ERROR_NOT_INITIALIZED);
    facts.code("cuCtxSynchronize", cu!(cuCtxSynchronize()), CUDA_ERROR_NOT_INITIALIZED);
    facts.code("cuMemAlloc", cu!(cuMemAlloc_v2(&mut 0, 64)), CUDA_ERROR_NOT_INITIALIZED);
    facts.code("cuDriverGetVersion", cu!(cuDriverGetVersion(&mut version)), CUDA_SUCCESS);
    facts.code("cuGetErrorName", cu!(cuGetErrorName(2, &mut name)), CUDA_SUCCESS);
    Ok(())
}

fn initialising_takes_no_flags_and_may_be_repeated(facts: &mut Facts) -> Result<(), Stop> {
    facts.code("with flags", cu!(cuInit(1)), CUDA_ERROR_INVALID_VALUE);
    facts.code("without", cu!(cuInit(0)), CUDA_SUCCESS);
    facts.code("again", cu!(cuInit(0)), CUDA_SUCCESS);
    Ok(())
}

fn a_child_forked_after_initialisation_has_no_driver(facts: &mut Facts) -> Result<(), Stop> {
    /// Exit status of a child that could not make the calls.
    const FAILED: i32 = 255;
    let gpu = Gpu::new()?;
    let ask = || -> Result<bool, Stop> {
        let codes = [cu!(cuInit(0)), cu!(cuCtxSynchronize()), launch(null_mut(), null_mut())?];
        Ok(codes.iter().all(|code| *code == CUDA_ERROR_NOT_INITIALIZED))
    };
    // SAFETY: this process has no other thread of its own. The child only calls functions that
    // answer at once, and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = ask().map_or(FAILED, i32::from);
        // SAFETY: `_exit` ends the child without running any code of the parent's.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: `child` is our child, and `status` is valid for a write.
    unsafe { libc::waitpid(child, &mut status, 0) };
    let is_told = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1;
    facts.has("the child's calls", status, "all answer NOT_INITIALIZED", is_told);
    facts.code("the parent's next launch", gpu.nothing(null_mut())?, CUDA_SUCCESS);
    facts.code("its end", cu!(cuCtxSynchronize()), CUDA_SUCCESS);
    Ok(())
}

fn errors_have_names(facts: &mut Facts) -> Result<(), Stop> {
    let mut text = null();
    must!(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &mut text));
    // SAFETY: the driver returns a pointer to a constant text with a NUL.
    let name = unsafe { CStr::from_ptr(text) };
    facts.is("the name of 2", name, c"CUDA_ERROR_OUT_OF_MEMORY");
    must!(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &mut text));
    // SAFETY: the driver returns a pointer to a constant text with a NUL.
    let words = unsafe { CStr::from_ptr(text) };
    facts.is("the text of 2", words, c"out of memory");
    facts.code("a code that is none", cu!(cuGetErrorName(424_242, &mut text)), CUDA_ERROR_INVALID_VALUE);
    facts.is("its name", text.is_null(), true);
    Ok(())
}

fn devices_are_described_within_bounds(facts: &mut Facts) -> Result<(), Stop> {
    /// A number that is no attribute.
    const NO_ATTRIBUTE: u32 = 0;
    must!(cuInit(0));
    let (mut count, mut device, mut value, mut total) = (0, 0, 0, 0);
    must!(cuDeviceGetCount(&mut count));
    facts.code("the device after the last", cu!(cuDeviceGet(&mut device, count)), CUDA_ERROR_INVALID_DEVICE);
    facts.code("a negative one", cu!(cuDeviceGet(&mut device, -1)), CUDA_ERROR_INVALID_DEVICE);
    facts.code("memory of no device", cu!(cuDeviceTotalMem_v2(&mut total, count)), CUDA_ERROR_INVALID_DEVICE);
    let code = cu!(cuDeviceGetAttribute(&mut value, NO_ATTRIBUTE, 0));
    facts.code("an attribute that is none", code, CUDA_ERROR_INVALID_VALUE);
    must!(cuDeviceGetAttribute(&mut value, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 0));
    facts.is("threads of a block", value, 1024);
    let mut bus = [0; 16];
    must!(cuDeviceGetPCIBusId(bus.as_mut_ptr(), bus.len() as i32, 0));
    must!(cuDeviceGetByPCIBusId(&mut device, bus.as_ptr()));
    facts.is("the device at its own bus address", device, 0);
    let (mut uuid, mut same) = (CUuuid { bytes: [0; 16] }, CUuuid { bytes: [1; 16] });
    must!(cuDeviceGetUuid_v2(&mut uuid, 0));
    must!(cuDeviceGetUuid(&mut same, 0));
    facts.is("both forms of its UUID are one, without partitions", uuid.bytes, same.bytes);
    Ok(())
}
