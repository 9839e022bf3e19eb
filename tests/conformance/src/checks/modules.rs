//! Modules, libraries, and the kernels and variables in them.

use super::prelude::*;

checks! { "modules":
    Documented names_that_are_not_there;
    Documented variables_begin_with_their_first_values;
    Guess images_that_are_none;
    Guess a_kernel_of_an_unloaded_module;
    Documented a_librarys_kernel_runs_in_any_context;
    Documented an_attribute_that_a_kernel_got_before_its_first_use_holds;
    Documented parameters_are_described;
}

fn names_that_are_not_there(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let (mut function, mut address, mut bytes) = (null_mut(), 0, 0);
    let kernel = cu!(cuModuleGetFunction(&mut function, gpu.module, c"absent".as_ptr()));
    facts.code("a kernel", kernel, CUDA_ERROR_NOT_FOUND);
    let variable = cu!(cuModuleGetGlobal_v2(&mut address, &mut bytes, gpu.module, c"absent".as_ptr()));
    facts.code("a variable", variable, CUDA_ERROR_NOT_FOUND);
    let file = cu!(cuModuleLoad(&mut function, c"/nonexistent/file".as_ptr()));
    facts.code("a file", file, CUDA_ERROR_FILE_NOT_FOUND);
    Ok(())
}

fn variables_begin_with_their_first_values(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let (mut address, mut bytes) = (0, 0);
    must!(cuModuleGetGlobal_v2(&mut address, &mut bytes, gpu.module, c"answer".as_ptr()));
    facts.is("length", bytes, 4);
    facts.is("value", gpu.read(address, 1)?, vec![42]);
    let module = made!(cuFuncGetModule(gpu.kernel(c"two")?));
    facts.is("a kernel's module", module, gpu.module);
    Ok(())
}

fn images_that_are_none(facts: &mut Facts) -> Result<(), Stop> {
    let _gpu = Gpu::new()?;
    let mut module = null_mut();
    let load = |text: &std::ffi::CStr, module: &mut CUmodule| {
        Ok::<_, Stop>(cu!(cuModuleLoadData(module, text.as_ptr().cast())))
    };
    facts.code("text that is no code", load(c"no code", &mut module)?, CUDA_ERROR_INVALID_IMAGE);
    facts.code("nothing", load(c"", &mut module)?, CUDA_ERROR_INVALID_IMAGE);
    Ok(())
}

fn a_kernel_of_an_unloaded_module(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let stale = gpu.kernel(c"nothing")?;
    must!(cuModuleUnload(gpu.module));
    facts.code("launching it", launch(stale, null_mut())?, CUDA_ERROR_INVALID_HANDLE);
    Ok(())
}

/// Returns a library and its kernel that does nothing.
fn library_with_kernel() -> Result<(CUlibrary, CUkernel), Stop> {
    let (mut library, mut kernel, none) = (null_mut(), null_mut(), null_mut());
    must!(cuLibraryLoadData(
        &mut library,
        PTX.as_ptr().cast(),
        none,
        null_mut(),
        0,
        null_mut(),
        null_mut(),
        0
    ));
    must!(cuLibraryGetKernel(&mut kernel, library, c"nothing".as_ptr()));
    Ok((library, kernel))
}

fn a_librarys_kernel_runs_in_any_context(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let (mut function, mut other) = (null_mut(), null_mut());
    let (library, kernel) = library_with_kernel()?;
    must!(cuKernelGetFunction(&mut function, kernel));
    facts.code("the kernel", launch(kernel as CUfunction, null_mut())?, CUDA_SUCCESS);
    facts.code("its function", launch(function, null_mut())?, CUDA_SUCCESS);
    must!(cuCtxCreate_v2(&mut other, 0, 0));
    facts.code("the kernel in another context", launch(kernel as CUfunction, null_mut())?, CUDA_SUCCESS);
    facts.code("its function there", launch(function, null_mut())?, CUDA_ERROR_INVALID_HANDLE);
    must!(cuCtxSetCurrent(gpu.context));
    facts.code("unloading", cu!(cuLibraryUnload(library)), CUDA_SUCCESS);
    Ok(())
}

fn an_attribute_that_a_kernel_got_before_its_first_use_holds(facts: &mut Facts) -> Result<(), Stop> {
    /// More than a block gets by default.
    const SHARED_BYTES: i32 = 60_000;
    let _gpu = Gpu::new()?;
    let (library, kernel) = library_with_kernel()?;
    let most = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    facts.code("setting it", cu!(cuKernelSetAttribute(most, SHARED_BYTES, kernel, 0)), CUDA_SUCCESS);
    let function = made!(cuKernelGetFunction(kernel));
    let value = made!(cuFuncGetAttribute(most, function));
    facts.is("the function's attribute", value, SHARED_BYTES);
    let shared_bytes = SHARED_BYTES as u32;
    let launched = cu!(cuLaunchKernel(
        kernel as CUfunction,
        1,
        1,
        1,
        32,
        1,
        1,
        shared_bytes,
        null_mut(),
        null_mut(),
        null_mut()
    ));
    facts.code("a launch with as much", launched, CUDA_SUCCESS);
    facts.code("unloading", cu!(cuLibraryUnload(library)), CUDA_SUCCESS);
    Ok(())
}

fn parameters_are_described(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let kernel = gpu.kernel(c"two")?;
    let (mut offset, mut size) = (0, 0);
    must!(cuFuncGetParamInfo(kernel, 0, &mut offset, &mut size));
    facts.is("the first", (offset, size), (0, 8));
    must!(cuFuncGetParamInfo(kernel, 1, &mut offset, &mut size));
    facts.is("the second", (offset, size), (8, 4));
    let third = cu!(cuFuncGetParamInfo(kernel, 2, &mut offset, &mut size));
    facts.code("one too many", third, CUDA_ERROR_INVALID_VALUE);
    Ok(())
}
