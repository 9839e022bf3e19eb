//! Device code in files, which `cuModuleLoad` of the simulated driver reads: cubins, fat binaries,
//! PTX.

use cuda::exports::{cuCtxCreate_v2, cuCtxSetCurrent, cuInit, cuMemGetInfo_v2, cuModuleLoad, cuModuleUnload};
use deepres_abi::driver::result::CUDA_SUCCESS;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::LazyLock;

/// Longest file. Longer files only make the fuzzer slow, because the parsers meet no new case in
/// them.
const MAX_BYTES: usize = 1 << 16;

/// Memory of the GPU. The simulated GPU's memory is real, and a variable can have any size.
const MEMORY_BYTES: u64 = 1 << 30;

/// A simulated GPU of this process, in a folder that is removed when the process ends.
struct Gpu {
    folder: PathBuf,
    context: usize,
}

static GPU: LazyLock<Gpu> = LazyLock::new(|| {
    let folder = super::folder("images");
    let config = folder.join("config.toml");
    std::fs::write(&config, format!("memory_bytes = {MEMORY_BYTES}\n")).expect("a new folder");
    let mut context = null_mut();
    // SAFETY: no other thread of this process reads the environment. The pointers to results are
    // valid.
    unsafe {
        std::env::set_var("SIMGPU_STATE", folder.join("state"));
        std::env::set_var("SIMGPU_CONFIG", &config);
        assert_eq!(cuInit(0), CUDA_SUCCESS);
        assert_eq!(cuCtxCreate_v2(&mut context, 0, 0), CUDA_SUCCESS);
    }
    Gpu { folder, context: context as usize }
});

fn free_bytes() -> usize {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both pointers are valid for a write.
    assert_eq!(unsafe { cuMemGetInfo_v2(&mut free, &mut total) }, CUDA_SUCCESS);
    free
}

/// A file is loaded or refused. After unloading, no memory is left in use.
pub fn run(data: &[u8]) {
    if data.len() > MAX_BYTES {
        return;
    }
    let path = GPU.folder.join("image");
    std::fs::write(&path, data).expect("the folder can be written to");
    let path = CString::new(path.as_os_str().as_bytes()).expect("a path without NUL");
    // SAFETY: the context lives as long as the process.
    assert_eq!(unsafe { cuCtxSetCurrent(GPU.context as *mut _) }, CUDA_SUCCESS);
    let before_bytes = free_bytes();
    let mut module = null_mut();
    // SAFETY: the path ends in NUL, and `module` is valid for a write. A loaded module is unloaded
    // exactly once.
    unsafe {
        if cuModuleLoad(&mut module, path.as_ptr()) == CUDA_SUCCESS {
            assert_eq!(cuModuleUnload(module), CUDA_SUCCESS);
        }
    }
    assert_eq!(free_bytes(), before_bytes, "a module that is gone holds no memory");
}
