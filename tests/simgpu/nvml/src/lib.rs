//! `libnvidia-ml.so.1` of the simulated GPU: what NVML says about the GPUs of a state directory.
//!
//! It holds the functions that nvml-wrapper, nvidia-ml-py and deepres use. A function of the real library
//! that is missing here is missing as a symbol, which every client must expect of an older driver; what the
//! simulated GPU does not have is NOT_SUPPORTED.

mod api;
mod library;
