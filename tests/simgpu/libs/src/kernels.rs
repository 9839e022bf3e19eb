//! The kernels that stand for the work of the libraries.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use deepres_abi::driver::types::{CUkernel, CUstream};
use simgpu_driver::{Result, driver};

/// Threads of a block, as in NVIDIA's products of matrices.
const BLOCK_THREADS: u32 = 256;
/// Rows and columns of a result that one block makes.
const TILE: u64 = 128;
/// Terms of each sum that one block adds. NVIDIA's kernels add all terms in one block. The
/// simulated GPU times a kernel by its blocks, so the kernel for a longer sum must have more
/// blocks.
const TERMS: u64 = 64;
/// Elements of a vector for one block.
const ELEMENTS: u64 = 1024;
/// The most blocks in each direction of a grid.
const MOST: [u64; 3] = [i32::MAX as u64, u16::MAX as u64, u16::MAX as u64];

/// A kernel that stands for a kind of work.
#[derive(Clone, Copy)]
pub enum Kernel {
    /// A product of matrices by cuBLAS.
    Product,
    /// Work of cuBLAS on vectors.
    Vector,
    /// A product of matrices by cuBLASLt.
    LtProduct,
    /// A convolution by cuDNN, forward or backward.
    Convolution,
    /// A normalisation by cuDNN.
    Norm,
    /// A pooling by cuDNN, forward or backward.
    Pooling,
}

/// The names of the kernels, in the order of [`Kernel`].
const NAMES: [&CStr; 6] = [
    c"standin_cublas_gemm",
    c"standin_cublas_vector",
    c"standin_cublaslt_matmul",
    c"standin_cudnn_convolution",
    c"standin_cudnn_norm",
    c"standin_cudnn_pooling",
];
/// The code of the kernels.
const PTX: &CStr = c"
.version 8.0
.target sm_52
.address_size 64
.visible .entry standin_cublas_gemm() { ret; }
.visible .entry standin_cublas_vector() { ret; }
.visible .entry standin_cublaslt_matmul() { ret; }
.visible .entry standin_cudnn_convolution() { ret; }
.visible .entry standin_cudnn_norm() { ret; }
.visible .entry standin_cudnn_pooling() { ret; }
";

/// Loads code for the simulated GPU. Returns its kernel of this name.
pub fn load(code: &CStr, name: &CStr) -> Result<CUkernel> {
    let (mut library, mut kernel, none) = (null_mut(), null_mut(), null_mut());
    let code = code.as_ptr().cast();
    driver!(cuLibraryLoadData(&mut library, code, none, null_mut(), 0, null_mut(), null_mut(), 0));
    driver!(cuLibraryGetKernel(&mut kernel, library, name.as_ptr()));
    Ok(kernel)
}

/// Returns the driver's kernel. Loads it at the first call.
fn found(kernel: Kernel) -> Result<CUkernel> {
    static KERNELS: [OnceLock<Result<AtomicPtr<c_void>>>; NAMES.len()] =
        [const { OnceLock::new() }; NAMES.len()];
    let known = &KERNELS[kernel as usize];
    match known.get_or_init(|| load(PTX, NAMES[kernel as usize]).map(AtomicPtr::new)) {
        Ok(kernel) => Ok(kernel.load(Ordering::Relaxed)),
        Err(error) => Err(*error),
    }
}

/// Loads a kernel, which shows whether the driver works.
pub fn prepare() -> Result<()> {
    found(Kernel::Product).map(drop)
}

/// Launches a kernel with these blocks. Does nothing if `grid` has no blocks.
pub fn launch(kernel: CUkernel, stream: CUstream, grid: [u64; 3]) -> Result<()> {
    if grid.contains(&0) {
        return Ok(());
    }
    let [x, y, z] = [0, 1, 2].map(|at| grid[at].min(MOST[at]) as u32);
    driver!(cuLaunchKernel(kernel, x, y, z, BLOCK_THREADS, 1, 1, 0, stream, null_mut(), null_mut()));
    Ok(())
}

/// The extents of products: `batch` results of `m` rows and `n` columns, each element a sum of `k`
/// terms.
#[derive(Clone, Copy)]
pub struct Extents {
    /// Number of rows of a result.
    pub m: u64,
    /// Number of columns of a result.
    pub n: u64,
    /// Number of terms in the sum of each element.
    pub k: u64,
    /// Number of results.
    pub batch: u64,
}

/// Launches the kernel of products.
pub fn multiply(kernel: Kernel, stream: CUstream, extents: Extents) -> Result<()> {
    let Extents { m, n, k, batch } = extents;
    launch(found(kernel)?, stream, [m.div_ceil(TILE), n.div_ceil(TILE), batch * k.div_ceil(TERMS)])
}

/// Launches `kernel` with a grid for `elements` elements.
pub fn pass_over(kernel: Kernel, stream: CUstream, elements: u64) -> Result<()> {
    launch(found(kernel)?, stream, [elements.div_ceil(ELEMENTS), 1, 1])
}
