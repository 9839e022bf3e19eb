//! Code from real compilers (tests/images): the kernels and variables that the driver reads from
//! cubins and compressed fat binaries.
#[macro_use]
mod common;
use std::ptr::null_mut;

use common::*;

fn path(name: &str) -> String {
    format!("{}/tests/images/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn load(name: &str) -> (u32, CUmodule) {
    load_file(&path(name))
}

fn load_file(path: &str) -> (u32, CUmodule) {
    let path = std::ffi::CString::new(path).unwrap();
    let mut module = null_mut();
    (code!(cuModuleLoad(&mut module, path.as_ptr())), module)
}

fn attribute(function: CUfunction, attribute: u32) -> i32 {
    let mut value = -1;
    ok!(cuFuncGetAttribute(&mut value, attribute, function));
    value
}

#[test]
fn a_kernel_is_the_same_in_every_kind_of_image() {
    let gpu = Gpu::new();
    for name in ["kernels.cubin", "zstd.fatbin", "lz4.fatbin"] {
        let (code, module) = load(name);
        assert_eq!(code, 0, "{name}");
        let function = made!(cuModuleGetFunction(module, c"scale".as_ptr()));
        let parameters: Vec<_> = (0..3)
            .map(|at| {
                let (mut offset, mut size) = (0, 0);
                ok!(cuFuncGetParamInfo(function, at, &mut offset, &mut size));
                (offset, size)
            })
            .collect();
        assert_eq!(parameters, [(0, 8), (8, 4), (16, 24)], "{name}");
        assert_eq!(attribute(function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 256, "{name}");
        assert_eq!(attribute(function, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES), 1024, "{name}");
        assert_eq!(attribute(function, CU_FUNC_ATTRIBUTE_BINARY_VERSION), 90, "{name}");
        for (variable, bytes, first, is_managed) in
            [(c"count", 4, 5, 0), (c"table", 64, 0, 0), (c"shared_with_host", 4, 3, 1)]
        {
            let (mut address, mut length, mut managed) = (0, 0, 9_u8);
            ok!(cuModuleGetGlobal_v2(&mut address, &mut length, module, variable.as_ptr()));
            ok!(cuPointerGetAttribute((&raw mut managed).cast(), CU_POINTER_ATTRIBUTE_IS_MANAGED, address));
            assert_eq!(
                (length, gpu.read(address, 1)[0], managed),
                (bytes, first, is_managed),
                "{name} {variable:?}"
            );
        }
        ok!(cuModuleUnload(module));
    }
}

#[test]
fn an_image_without_code_for_this_gpu_is_refused() {
    let _gpu = Gpu::new();
    assert_eq!(load("newer.fatbin").0, CUDA_ERROR_NO_BINARY_FOR_GPU);
    assert_eq!(load("nothing.cubin").0, CUDA_ERROR_FILE_NOT_FOUND);
}

#[test]
fn an_object_that_is_said_to_be_longer_than_its_bytes_can_make_it_is_refused() {
    /// Place of the first object's uncompressed length. The object lies behind the file's header of
    /// 16 bytes.
    const ORIGINAL_BYTES: std::ops::Range<usize> = 72..80;
    let _gpu = Gpu::new();
    let folder = tempfile::tempdir().unwrap();
    let changed = folder.path().join("changed.fatbin");
    let mut bytes = std::fs::read(path("lz4.fatbin")).unwrap();
    let told = u64::from_le_bytes(bytes[ORIGINAL_BYTES].try_into().unwrap());
    let whole = bytes.len() as u64;
    for (original_bytes, code) in
        [(told, 0), (whole * 255, CUDA_ERROR_INVALID_IMAGE), (1 << 31, CUDA_ERROR_INVALID_IMAGE)]
    {
        bytes[ORIGINAL_BYTES].copy_from_slice(&original_bytes.to_le_bytes());
        std::fs::write(&changed, &bytes).unwrap();
        assert_eq!(load_file(changed.to_str().unwrap()).0, code, "{original_bytes} bytes");
    }
}
