//! Modules, libraries, and the kernels and variables in them.

use std::ptr::null_mut;

use deepres_abi::driver::result::*;
use deepres_abi::driver::types::*;

use super::checks;
use crate::check::{Facts, Stop};
use crate::gpu::{Gpu, PTX, launch};

checks! { "modules":
    Documented names_that_are_not_there;
    Documented variables_begin_with_their_first_values;
    Guess images_that_are_none;
    Documented the_linker_refuses_ptx_with_errors_and_takes_no_memory;
    Guess a_kernel_of_an_unloaded_module;
    Documented a_librarys_kernel_runs_in_any_context;
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

fn the_linker_refuses_ptx_with_errors_and_takes_no_memory(facts: &mut Facts) -> Result<(), Stop> {
    let _gpu = Gpu::new()?;
    let free_bytes = || {
        let (mut free, mut total) = (0, 0);
        must!(cuMemGetInfo_v2(&mut free, &mut total));
        Ok::<_, Stop>(free)
    };
    let mut state = null_mut();
    must!(cuLinkCreate_v2(0, null_mut(), null_mut(), &mut state));
    let add = |text: &std::ffi::CStr| {
        let (data, length) = (text.as_ptr().cast_mut().cast(), text.count_bytes() + 1);
        let (name, options, values) = (c"text".as_ptr(), null_mut(), null_mut());
        Ok::<_, Stop>(cu!(cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, data, length, name, 0, options, values)))
    };
    let before = free_bytes()?;
    facts.code("PTX", add(PTX)?, CUDA_SUCCESS);
    let large = c".version 7.0\n.target sm_70\n.address_size 64\n.global .b8 large[1073741824];";
    facts.code("with a large variable", add(large)?, CUDA_SUCCESS);
    facts.code(
        "of another version",
        add(c".version 42.0\n.target sm_70")?,
        CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
    );
    facts.code("without a target", add(c".version 7.0\n.global .u32 a;")?, CUDA_ERROR_INVALID_PTX);
    facts.is("memory taken", before - free_bytes()?, 0);
    facts.code("ending it", cu!(cuLinkDestroy(state)), CUDA_SUCCESS);
    Ok(())
}

fn a_kernel_of_an_unloaded_module(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let stale = gpu.kernel(c"nothing")?;
    must!(cuModuleUnload(gpu.module));
    facts.code("launching it", launch(stale, null_mut())?, CUDA_ERROR_INVALID_HANDLE);
    Ok(())
}

fn a_librarys_kernel_runs_in_any_context(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let (mut library, mut kernel, mut function, mut other) = (null_mut(), null_mut(), null_mut(), null_mut());
    let none = null_mut();
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
