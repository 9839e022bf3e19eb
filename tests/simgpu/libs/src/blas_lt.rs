//! cuBLASLt: descriptions of products, and the products.

use std::ffi::c_void;

use deepres_abi::driver::types::CUstream;

use crate::blas::{INVALID_VALUE, SUCCESS, VERSION, status};
use crate::kernels::{self, Extents, Kernel};
use crate::objects::{create, destroy};

/// `CUBLASLT_MATMUL_DESC_TRANSA`
const TRANSA: u32 = 3;
/// `CUBLASLT_MATMUL_DESC_TRANSB`
const TRANSB: u32 = 4;
/// `CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT`
const BATCH_COUNT: u32 = 5;

/// The description behind a `cublasLtMatmulDesc_t`. A field other than 0 means a transposed matrix.
#[derive(Default)]
pub struct Product {
    transposed_a: u32,
    transposed_b: u32,
}

/// The description behind a `cublasLtMatrixLayout_t`.
pub struct Layout {
    rows: u64,
    columns: u64,
    batch: u32,
}

/// The object behind a handle or a preference, which keeps nothing.
pub struct Nothing;

/// A `cublasLtMatmulAlgo_t`, which keeps nothing.
#[repr(C)]
pub struct Algorithm {
    data: [u64; 8],
}

/// A `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
pub struct Choice {
    algorithm: Algorithm,
    workspace_bytes: usize,
    status: u32,
    waves: f32,
    reserved: [i32; 4],
}

/// The choice for every product. The choice needs no workspace.
const CHOICE: Choice = Choice {
    algorithm: Algorithm { data: [0; 8] },
    workspace_bytes: 0,
    status: SUCCESS,
    waves: 1.0,
    reserved: [0; 4],
};

// SAFETY (of every block below): by cuBLASLt's contract, a pointer for a result points at room for
// the result. An object comes from the function that makes it, and the caller does not use it after
// its end.

/// Defines functions that end objects.
macro_rules! ends {
    ($($name:ident($type:ty);)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(object: *mut $type) -> u32 {
            // SAFETY: see above.
            unsafe { destroy(object) }
        }
    )* };
}

ends! {
    cublasLtDestroy(Nothing);
    cublasLtMatmulPreferenceDestroy(Nothing);
    cublasLtMatmulDescDestroy(Product);
    cublasLtMatrixLayoutDestroy(Layout);
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtGetVersion() -> usize {
    VERSION as usize
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtCreate(handle: *mut *mut Nothing) -> u32 {
    // SAFETY: see above.
    unsafe { create(handle, Nothing) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulPreferenceCreate(preference: *mut *mut Nothing) -> u32 {
    // SAFETY: see above.
    unsafe { create(preference, Nothing) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulDescCreate(product: *mut *mut Product, _compute: u32, _scale: u32) -> u32 {
    // SAFETY: see above.
    unsafe { create(product, Product::default()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatrixLayoutCreate(
    layout: *mut *mut Layout,
    _kind: u32,
    rows: u64,
    columns: u64,
    _leading: i64,
) -> u32 {
    // SAFETY: see above.
    unsafe { create(layout, Layout { rows, columns, batch: 1 }) }
}

/// Takes an attribute of a preference, which has no effect.
#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulPreferenceSetAttribute(
    _preference: *mut Nothing,
    _attribute: u32,
    _value: *const c_void,
    _bytes: usize,
) -> u32 {
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulDescSetAttribute(
    product: *mut Product,
    attribute: u32,
    value: *const c_void,
    _bytes: usize,
) -> u32 {
    // SAFETY: see above. The values of these attributes are numbers of 32 bits.
    unsafe {
        match attribute {
            TRANSA => (*product).transposed_a = value.cast::<u32>().read(),
            TRANSB => (*product).transposed_b = value.cast::<u32>().read(),
            _ => {}
        }
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatrixLayoutSetAttribute(
    layout: *mut Layout,
    attribute: u32,
    value: *const c_void,
    _bytes: usize,
) -> u32 {
    if attribute == BATCH_COUNT {
        // SAFETY: see above. The value of this attribute is a number of 32 bits.
        unsafe { (*layout).batch = value.cast::<u32>().read() };
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    _handle: *mut Nothing,
    _product: *mut Product,
    _a: *mut Layout,
    _b: *mut Layout,
    _c: *mut Layout,
    _d: *mut Layout,
    _preference: *mut Nothing,
    wanted: i32,
    choices: *mut Choice,
    count: *mut i32,
) -> u32 {
    if wanted < 1 {
        return INVALID_VALUE;
    }
    // SAFETY: see above; there is room for one choice.
    unsafe {
        choices.write(CHOICE);
        count.write(1);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulAlgoCheck(
    _handle: *mut Nothing,
    _product: *mut Product,
    _a: *mut Layout,
    _b: *mut Layout,
    _c: *mut Layout,
    _d: *mut Layout,
    _algorithm: *const Algorithm,
    choice: *mut Choice,
) -> u32 {
    // SAFETY: see above.
    unsafe { choice.write(CHOICE) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmul(
    _handle: *mut Nothing,
    product: *const Product,
    _alpha: *const c_void,
    _a: *const c_void,
    a_layout: *const Layout,
    _b: *const c_void,
    b_layout: *const Layout,
    _beta: *const c_void,
    _c: *const c_void,
    _c_layout: *const Layout,
    _d: *mut c_void,
    _d_layout: *const Layout,
    _algorithm: *const Algorithm,
    _workspace: *mut c_void,
    _workspace_bytes: usize,
    stream: CUstream,
) -> u32 {
    // SAFETY: see above.
    let (product, a, b) = unsafe { (&*product, &*a_layout, &*b_layout) };
    let (m, k) = if product.transposed_a == 0 { (a.rows, a.columns) } else { (a.columns, a.rows) };
    let n = if product.transposed_b == 0 { b.columns } else { b.rows };
    status(kernels::multiply(Kernel::LtProduct, stream, Extents { m, n, k, batch: a.batch.into() }))
}
