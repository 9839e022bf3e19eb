//! cuDNN: only its version. PyTorch asks for the version and compares the answer with the version
//! with which PyTorch was built. Programs that convolve must switch cuDNN off.

/// The version of cuDNN with which PyTorch is built: 10000 × major + 100 × minor + patch.
const VERSION: usize = 92_600;
/// The version of CUDA with which this cuDNN was built: 1000 × major + 10 × minor.
const CUDART_VERSION: usize = 13_020;

#[unsafe(no_mangle)]
extern "C" fn cudnnGetVersion() -> usize {
    VERSION
}

#[unsafe(no_mangle)]
extern "C" fn cudnnGetCudartVersion() -> usize {
    CUDART_VERSION
}
