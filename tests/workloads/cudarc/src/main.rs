//! `cudarc-client LAUNCHES`: launches LAUNCHES kernels on two streams, then allocates all device
//! memory. Prints one JSON object with its own counts, and stays until its standard input ends.

use std::io::Read as _;

use anyhow::{Context as _, Result};
use cudarc::driver::{CudaContext, DriverError, LaunchConfig, PushKernelArg as _};
use cudarc::nvrtc::Ptx;

const ELEMENTS: usize = 1 << 16;
const CHUNK_BYTES: usize = 64 << 20;

const SCALE_PTX: &str = "
.version 7.0
.target sm_70
.address_size 64

.visible .entry scale(.param .u64 values, .param .f32 factor)
{
	ret;
}
";

fn main() -> Result<()> {
    let launches: usize =
        std::env::args().nth(1).context("usage: cudarc-client LAUNCHES")?.parse().context("LAUNCHES")?;
    let context = CudaContext::new(0)?;
    let module = context.load_module(Ptx::from_src(SCALE_PTX))?;
    let scale = module.load_function("scale")?;
    let streams = [context.new_stream()?, context.new_stream()?];
    let host = vec![1.0_f32; ELEMENTS];
    let mut values = [streams[0].clone_htod(&host)?, streams[1].clone_htod(&host)?];
    for i in 0..launches {
        let lane = i % streams.len();
        let mut launch = streams[lane].launch_builder(&scale);
        launch.arg(&mut values[lane]).arg(&0.5_f32);
        // SAFETY: the arguments have the kernel's types, and the kernel touches no memory.
        unsafe { launch.launch(LaunchConfig::for_num_elems(ELEMENTS as u32)) }?;
    }
    for (stream, values) in streams.iter().zip(&values) {
        stream.clone_dtoh(values)?;
    }
    drop(values);
    context.synchronize()?;

    let mut held = Vec::new();
    let refusal: DriverError = loop {
        // SAFETY: nothing reads the uninitialised memory.
        match unsafe { streams[0].alloc::<u8>(CHUNK_BYTES) } {
            Ok(chunk) => held.push(chunk),
            Err(refusal) => break refusal,
        }
    };
    println!(
        r#"{{"kernel_launches": {launches}, "total": {}, "filled": {{"bytes": {}, "error": "{:?}"}}}}"#,
        context.total_mem()?,
        held.len() * CHUNK_BYTES,
        refusal.0
    );
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
