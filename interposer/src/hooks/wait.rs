//! Hooks of the calls by which a thread waits for the GPU: what it launched so far ends there, and is timed to its end.

use deepres_abi::driver::types::{
    CUcontext, CUdeviceptr, CUdeviceptr_v1, CUevent, CUresult, CUstream, c_void,
};

use super::MISSING;
use crate::driver::real;
use crate::launch;

macro_rules! wait {
    ($($name:ident: $symbol:ident($($argument:ident: $type:ty),*);)+) => {$(
        #[doc = concat!("Hook of `", stringify!($symbol), "`.")]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> CUresult {
            let Some(real) = real!($symbol) else { return MISSING };
            launch::flush();
            // SAFETY: the caller's arguments, as they came.
            unsafe { real($($argument),*) }
        }
    )+};
}

wait! {
    context: cuCtxSynchronize();
    context_v2: cuCtxSynchronize_v2(context: CUcontext);
    stream: cuStreamSynchronize(stream: CUstream);
    stream_ptsz: cuStreamSynchronize_ptsz(stream: CUstream);
    event: cuEventSynchronize(event: CUevent);
    copy: cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize);
    copy_ptds: cuMemcpy_ptds(to: CUdeviceptr, from: CUdeviceptr, bytes: usize);
    copy_to_host_v1: cuMemcpyDtoH(to: *mut c_void, from: CUdeviceptr_v1, bytes: u32);
    copy_to_host: cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize);
    copy_to_host_ptds: cuMemcpyDtoH_v2_ptds(to: *mut c_void, from: CUdeviceptr, bytes: usize);
    copy_to_host_async: cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    copy_to_host_async_ptsz: cuMemcpyDtoHAsync_v2_ptsz(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
}
