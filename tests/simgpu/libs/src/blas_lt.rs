//! cuBLASLt: descriptions of products, and the products.

use std::ffi::c_void;

use deepres_abi::driver::types::CUstream;

use crate::blas::{INVALID_VALUE, VERSION, status};
use crate::kernels::{self, Extents, Kernel};
use crate::objects::{SUCCESS, create, destroy};

/// The attribute `CUBLASLT_MATMUL_DESC_TRANSA`.
const TRANSA: u32 = 3;
/// The attribute `CUBLASLT_MATMUL_DESC_TRANSB`.
const TRANSB: u32 = 4;
/// The attribute `CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT`.
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

#[unsafe(no_mangle)]
extern "C" fn cublasLtGetVersion() -> usize {
    VERSION as usize
}

exports! {
    cublasLtCreate | cublasLtMatmulPreferenceCreate(object: *mut *mut Nothing) { create(object, Nothing) }
    cublasLtDestroy | cublasLtMatmulPreferenceDestroy(object: *mut Nothing) { destroy(object) }
    cublasLtMatmulDescCreate(product: *mut *mut Product, _compute: u32, _scale: u32) {
        create(product, Product::default());
    }
    cublasLtMatmulDescDestroy(product: *mut Product) { destroy(product) }
    cublasLtMatrixLayoutCreate(
        layout: *mut *mut Layout, _kind: u32, rows: u64, columns: u64, _leading: i64
    ) {
        create(layout, Layout { rows, columns, batch: 1 });
    }
    cublasLtMatrixLayoutDestroy(layout: *mut Layout) { destroy(layout) }
    // The values of the attributes below are numbers of 32 bits.
    cublasLtMatmulDescSetAttribute(
        product: *mut Product, attribute: u32, value: *const c_void, _bytes: usize
    ) {
        match attribute {
            TRANSA => (*product).transposed_a = value.cast::<u32>().read(),
            TRANSB => (*product).transposed_b = value.cast::<u32>().read(),
            _ => {}
        }
    }
    cublasLtMatrixLayoutSetAttribute(
        layout: *mut Layout, attribute: u32, value: *const c_void, _bytes: usize
    ) {
        if attribute == BATCH_COUNT {
            (*layout).batch = value.cast::<u32>().read();
        }
    }
    cublasLtMatmulAlgoGetHeuristic(
        _handle: *mut Nothing, _product: *mut Product, _a: *mut Layout, _b: *mut Layout, _c: *mut Layout,
        _d: *mut Layout, _preference: *mut Nothing, wanted: i32, choices: *mut Choice, count: *mut i32
    ) {
        if wanted < 1 {
            return INVALID_VALUE;
        }
        choices.write(CHOICE);
        count.write(1);
    }
    cublasLtMatmulAlgoCheck(
        _handle: *mut Nothing, _product: *mut Product, _a: *mut Layout, _b: *mut Layout, _c: *mut Layout,
        _d: *mut Layout, _algorithm: *const Algorithm, choice: *mut Choice
    ) {
        choice.write(CHOICE);
    }
    cublasLtMatmul(
        _handle: *mut Nothing, product: *const Product, _alpha: *const c_void, _a: *const c_void,
        a_layout: *const Layout, _b: *const c_void, b_layout: *const Layout, _beta: *const c_void,
        _c: *const c_void, _c_layout: *const Layout, _d: *mut c_void, _d_layout: *const Layout,
        _algorithm: *const Algorithm, _workspace: *mut c_void, _workspace_bytes: usize, stream: CUstream
    ) {
        let (product, a, b) = (&*product, &*a_layout, &*b_layout);
        let (m, k) = if product.transposed_a == 0 { (a.rows, a.columns) } else { (a.columns, a.rows) };
        let n = if product.transposed_b == 0 { b.columns } else { b.rows };
        status(kernels::multiply(Kernel::LtProduct, stream, Extents { m, n, k, batch: a.batch.into() }))
    }
}

// The stand-in has no use for preferences.
without_effect! {
    cublasLtMatmulPreferenceSetAttribute(*mut Nothing, u32, *const c_void, usize);
}
