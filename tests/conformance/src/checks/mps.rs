//! MPS, as the driver and NVML tell it.

use nvml_wrapper_sys::bindings as nvml;

use super::prelude::*;

checks! { "mps":
    Guess nvml_lists_a_process_with_a_context_exactly_if_it_is_a_client;
}

/// NVML's library, which comes with the driver.
const NVML: &str = "libnvidia-ml.so.1";
/// Places of the list of clients. An MPS server serves some tens of clients (NVIDIA's MPS guide).
const PLACES: usize = 128;
/// Room for the name of a device on the PCI bus, bytes.
const BUS_BYTES: usize = 32;

fn nvml_lists_a_process_with_a_context_exactly_if_it_is_a_client(facts: &mut Facts) -> Result<(), Stop> {
    let _gpu = Gpu::new()?;
    let mut is_client = 0;
    let told = cu!(cuDeviceGetAttribute(&mut is_client, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, 0));
    if told != CUDA_SUCCESS {
        return Err(Stop::Absent("this driver does not tell whether MPS serves a process".to_owned()));
    }
    let is_listed = clients()?.contains(&std::process::id());
    facts.is("whether NVML lists this process as a client of MPS", is_listed, is_client != 0);
    Ok(())
}

/// Returns the process ids of the clients of MPS on the first device, by NVML.
fn clients() -> Result<Vec<u32>, Stop> {
    let answered = |question: &str, code: nvml::nvmlReturn_t| match code {
        nvml::nvmlReturn_enum_NVML_SUCCESS => Ok(()),
        code => Err(Stop::Absent(format!("{question} answered {code}"))),
    };
    let mut bus = [0; BUS_BYTES];
    must!(cuDeviceGetPCIBusId(bus.as_mut_ptr(), BUS_BYTES as i32, 0));
    // SAFETY: loading NVML runs its initialisers, as every client does.
    let library = unsafe { nvml::NvmlLib::new(NVML) }
        .map_err(|error| Stop::Absent(format!("no {NVML} is found: {error}")))?;
    let Ok(list) = &library.nvmlDeviceGetMPSComputeRunningProcesses_v3 else {
        return Err(Stop::Absent("this NVML does not tell the clients of MPS".to_owned()));
    };
    // SAFETY: the function has no arguments.
    answered("nvmlInit_v2", unsafe { library.nvmlInit_v2() })?;
    let mut device = null_mut();
    // SAFETY: the driver ended the text with a NUL, and the result has room.
    let found = unsafe { library.nvmlDeviceGetHandleByPciBusId_v2(bus.as_ptr(), &mut device) };
    answered("nvmlDeviceGetHandleByPciBusId_v2", found)?;
    let none = nvml::nvmlProcessInfo_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };
    let (mut infos, mut count) = ([none; PLACES], PLACES as u32);
    // SAFETY: NVML returned the handle, and the list has this many places.
    let listed = unsafe { list(device, &mut count, infos.as_mut_ptr()) };
    answered("nvmlDeviceGetMPSComputeRunningProcesses_v3", listed)?;
    Ok(infos.iter().take(count as usize).map(|info| info.pid).collect())
}
