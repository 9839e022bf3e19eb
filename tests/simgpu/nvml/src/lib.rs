//! `libnvidia-ml.so.1` of the simulated GPU: NVML for the GPUs of a state directory.
//!
//! The library has the functions that nvml-wrapper, nvidia-ml-py and deepres use. Other functions
//! of the real library are absent as symbols; every client must expect that of an older driver.
//! Features that the simulated GPU does not have return NOT_SUPPORTED.

mod api;
mod library;
