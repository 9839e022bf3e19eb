//! A context with kernels, and a way to block a stream independently of any speed.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

use deepres_abi::driver::result::CUresult;
use deepres_abi::driver::types::*;

use crate::check::Stop;

/// Run time of the kernel `spin`. simgpu.toml has the same value for the simulated GPU.
pub const SPIN_NS: u64 = 20_000_000;

/// Kernels that run on any GPU since Volta. `spin` runs for the time in its parameter, ns.
pub const PTX: &CStr = c"
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 answer = 42;
.visible .entry nothing() { ret; }
.visible .entry two(.param .u64 out, .param .u32 n) .maxntid 64, 1, 1 { ret; }
.visible .entry spin(.param .u64 ns) {
  .reg .pred p;
  .reg .b64 t<4>;
  ld.param.u64 t0, [ns];
  mov.u64 t1, %globaltimer;
L:
  mov.u64 t2, %globaltimer;
  sub.u64 t3, t2, t1;
  setp.lt.u64 p, t3, t0;
  @p bra L;
  ret;
}
";

/// A launch of one thread on the default stream.
pub const ONE_THREAD: CUlaunchConfig = CUlaunchConfig {
    gridDimX: 1,
    gridDimY: 1,
    gridDimZ: 1,
    blockDimX: 1,
    blockDimY: 1,
    blockDimZ: 1,
    sharedMemBytes: 0,
    hStream: null_mut(),
    attrs: null_mut(),
    numAttrs: 0,
};

/// A context that is current to this thread, with the kernels above loaded.
pub struct Gpu {
    pub context: CUcontext,
    pub module: CUmodule,
}

impl Gpu {
    /// Makes a context on the first device, and returns it. Every kernel runs once, so that the
    /// driver loads none later while a stream is blocked.
    pub fn new() -> Result<Self, Stop> {
        must!(cuInit(0));
        let (mut context, mut module) = (null_mut(), null_mut());
        must!(cuCtxCreate_v2(&mut context, 0, 0));
        must!(cuModuleLoadData(&mut module, PTX.as_ptr().cast()));
        let gpu = Self { context, module };
        gpu.nothing(null_mut())?;
        gpu.spin(null_mut(), 0)?;
        must!(cuCtxSynchronize());
        Ok(gpu)
    }

    /// Returns one of the kernels.
    pub fn kernel(&self, name: &CStr) -> Result<CUfunction, Stop> {
        Ok(made!(cuModuleGetFunction(self.module, name.as_ptr())))
    }

    /// Launches `nothing` and returns the code.
    pub fn nothing(&self, stream: CUstream) -> Result<CUresult, Stop> {
        launch(self.kernel(c"nothing")?, stream)
    }

    /// Launches the kernel `spin`, which runs for `ns`.
    pub fn spin(&self, stream: CUstream, ns: u64) -> Result<(), Stop> {
        let mut ns = ns;
        let mut parameters = [(&raw mut ns).cast::<c_void>()];
        let kernel = self.kernel(c"spin")?;
        must!(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters.as_mut_ptr(), null_mut()));
        Ok(())
    }

    /// Returns a GPU with streams that do not wait for the default stream.
    pub fn with_streams<const N: usize>() -> Result<(Self, [CUstream; N]), Stop> {
        let gpu = Self::new()?;
        let mut streams = [null_mut(); N];
        for stream in &mut streams {
            *stream = gpu.stream(CU_STREAM_NON_BLOCKING)?;
        }
        Ok((gpu, streams))
    }

    pub fn stream(&self, flags: u32) -> Result<CUstream, Stop> {
        Ok(made!(cuStreamCreate(flags)))
    }

    pub fn event(&self, flags: u32) -> Result<CUevent, Stop> {
        Ok(made!(cuEventCreate(flags)))
    }

    pub fn memory(&self, bytes: usize) -> Result<CUdeviceptr, Stop> {
        Ok(made!(cuMemAlloc_v2(bytes)))
    }

    /// Returns page-locked words of the host, all 0.
    pub fn pinned(&self, count: usize) -> Result<&'static mut [u32], Stop> {
        let mut address = null_mut();
        must!(cuMemHostAlloc(&mut address, count * size_of::<u32>(), 0));
        // SAFETY: the memory is new, long enough, and stays until the process ends.
        let words = unsafe { std::slice::from_raw_parts_mut(address.cast::<u32>(), count) };
        words.fill(0);
        Ok(words)
    }

    /// Waits for the device and returns the first words at a device address.
    pub fn read(&self, address: CUdeviceptr, count: usize) -> Result<Vec<u32>, Stop> {
        let mut words = vec![0_u32; count];
        must!(cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), address, count * size_of::<u32>()));
        Ok(words)
    }

    /// Returns the device memory in use by all processes.
    pub fn used_bytes(&self) -> Result<usize, Stop> {
        let (mut free, mut total) = (0, 0);
        must!(cuMemGetInfo_v2(&mut free, &mut total));
        Ok(total - free)
    }

    /// Blocks `stream` until the caller releases the returned value.
    pub fn hold(&self, stream: CUstream) -> Result<Held, Stop> {
        let held = self.holder()?;
        held.block(stream)?;
        Ok(held)
    }

    /// Waits for the device, and returns a value that can block streams.
    pub fn holder(&self) -> Result<Held, Stop> {
        let held =
            Held { flag: self.memory(size_of::<u32>())?, writer: self.stream(CU_STREAM_NON_BLOCKING)? };
        must!(cuMemsetD32_v2(held.flag, 0, 1));
        must!(cuCtxSynchronize());
        Ok(held)
    }
}

/// A way to block streams, and to unblock them later.
pub struct Held {
    flag: CUdeviceptr,
    writer: CUstream,
}

impl Held {
    /// Makes all later work of `stream` wait until [`Self::release`].
    pub fn block(&self, stream: CUstream) -> Result<(), Stop> {
        must!(cuStreamWaitValue32_v2(stream, self.flag, 1, CU_STREAM_WAIT_VALUE_GEQ));
        Ok(())
    }

    /// Lets the streams that [`Self::block`] stopped go on.
    pub fn release(self) -> Result<(), Stop> {
        must!(cuStreamWriteValue32_v2(self.writer, self.flag, 1, 0));
        Ok(())
    }
}

/// Launches one thread of a kernel without parameters.
pub fn launch(function: CUfunction, stream: CUstream) -> Result<CUresult, Stop> {
    Ok(cu!(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, null_mut(), null_mut())))
}
