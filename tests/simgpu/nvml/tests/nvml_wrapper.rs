//! Tests the library through the crate nvml-wrapper.
//!
//! There is only one test, because the process's environment names the state directory.

use nvml_wrapper::{
    Device, Nvml,
    enum_wrappers::device::{
        Clock, ComputeMode, P2pCapabilitiesIndex, P2pStatus, TemperatureSensor, TopologyLevel,
    },
    enums::device::UsedGpuMemory,
    error::NvmlError,
};
use nvml_wrapper_sys::bindings as sys;
use simgpu_engine::{Host, Options, WaitPolicy, Work};
use std::{env, path::PathBuf};

/// Returns the path of the library. Cargo builds it next to the tests, without installing it.
fn library() -> PathBuf {
    let test = env::current_exe().expect("the test's own path");
    test.with_file_name("libnvidia_ml.so")
}

/// Calls two functions that the crate nvml-wrapper lacks. Returns the code of the question about a
/// link, the code of the question about the fabric, and the fabric's state.
fn link_and_fabric(device: &Device<'_>) -> (u32, u32, u32) {
    // SAFETY: the library is loaded already.
    let raw = unsafe { sys::NvmlLib::new(library()) }.expect("the library");
    let mut kind = 0;
    // SAFETY: the structure is plain, so all zeroes is a valid value.
    let mut info: sys::nvmlGpuFabricInfoV_t = unsafe { std::mem::zeroed() };
    info.version = size_of::<sys::nvmlGpuFabricInfoV_t>() as u32 | 2 << 24;
    // SAFETY: the handle is of the library, and the results have the types of the reference.
    let (link, fabric) = unsafe {
        let handle = device.handle();
        (
            raw.nvmlDeviceGetNvLinkRemoteDeviceType(handle, 0, &mut kind),
            raw.nvmlDeviceGetGpuFabricInfoV(handle, &mut info),
        )
    };
    (link, fabric, info.state.into())
}

/// Returns the pids of the clients of MPS on a device. The crate nvml-wrapper lacks this function
/// too.
fn mps_clients(device: &Device<'_>) -> Vec<u32> {
    /// More places than the test has processes.
    const PLACES: usize = 4;
    // SAFETY: the library is loaded already.
    let raw = unsafe { sys::NvmlLib::new(library()) }.expect("the library");
    // SAFETY: the structure is plain, so all zeroes is a valid value.
    let mut infos: [sys::nvmlProcessInfo_t; PLACES] = unsafe { std::mem::zeroed() };
    let mut count = PLACES as u32;
    // SAFETY: the handle is of the library, and the list has this many places.
    let code = unsafe {
        raw.nvmlDeviceGetMPSComputeRunningProcesses_v3(device.handle(), &mut count, infos.as_mut_ptr())
    };
    assert_eq!(code, sys::nvmlReturn_enum_NVML_SUCCESS);
    infos[..count as usize].iter().map(|info| info.pid).collect()
}

#[test]
fn nvml_wrapper_sees_the_simulated_gpus() {
    const MIB: u64 = 1 << 20;
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in shared memory");
    // SAFETY: this program has one test, so no other thread reads the environment yet.
    unsafe { env::set_var("SIMGPU_STATE", dir.path()) };
    let config = "gpus = 4\nname = 'A GPU'\nmemory_bytes = 1_000_000_000\ncontext_overhead_bytes = 1_048_576\n\
        compute_mode = 'exclusive-process'\n\
        topology = { nvlinks = [[0, 0, 2, 0], [0, 0, 0, 0], [2, 0, 0, 0], [0, 0, 0, 0]], nvlink_version = 3, \
        numa_nodes = [0, 0, 70, 1], p2p = [['X', 'OK', 'OK', 'CNS'], ['OK', 'X', 'OK', 'OK'], \
        ['OK', 'OK', 'X', 'OK'], ['CNS', 'OK', 'OK', 'X']] }";
    let host = Host::attach_with(Options { config_toml: Some(config.into()), ..Options::default() })
        .expect("attach");
    let context = host.create_context(1).expect("context");
    host.reserve_memory(context, MIB).expect("memory");

    let nvml = Nvml::builder().lib_path(library().as_os_str()).init().expect("nvmlInit");
    assert_eq!(nvml.device_count().expect("count"), 4);
    assert_eq!(nvml.sys_driver_version().expect("version"), "580.00");
    assert_eq!(nvml.sys_nvml_version().expect("version"), "13.580.00");
    assert_eq!(nvml.sys_cuda_driver_version().expect("version"), 13000);

    let device = nvml.device_by_index(1).expect("device");
    assert_eq!(device.name().expect("name"), "A GPU");
    assert_eq!(device.index().expect("index"), 1);
    assert_eq!(device.minor_number().expect("number"), 1);
    let uuid = device.uuid().expect("uuid");
    let hex: String = host.uuid(1).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(uuid.strip_prefix("GPU-").map(|uuid| uuid.replace('-', "")), Some(hex));
    assert_eq!(nvml.device_by_uuid(&*uuid).expect("device").index().expect("index"), 1);
    let pci = device.pci_info().expect("pci");
    assert_eq!(pci.bus_id, "00000000:41:00.0");
    for id in [&*pci.bus_id, "0000:41:00.0", "41:00.0"] {
        assert_eq!(nvml.device_by_pci_bus_id(id).expect(id).index().expect("index"), 1);
    }

    let memory = device.memory_info().expect("memory");
    assert_eq!((memory.total, memory.used, memory.free), (1_000_000_000, 2 * MIB, 1_000_000_000 - 2 * MIB));
    let processes = device.running_compute_processes().expect("processes");
    let [process] = &processes[..] else { panic!("one process: {processes:?}") };
    assert_eq!(process.pid, std::process::id());
    assert!(matches!(process.used_gpu_memory, UsedGpuMemory::Used(bytes) if bytes == 2 * MIB));
    let other = nvml.device_by_index(2).expect("device");
    assert!(other.running_compute_processes().expect("processes").is_empty());
    assert_eq!(other.running_compute_processes_count().expect("count"), 0);

    // More than a second of work, of which only the last second counts.
    let stream = host.create_stream(context).expect("stream");
    let work = Work::Kernel { duration_ns: 1_200_000_000, sm_ppm: 1, kernels: 1 };
    let ticket = host.submit(stream, work, &[]).expect("submit");
    host.wait(ticket, WaitPolicy::Block);
    let rates = device.utilization_rates().expect("rates");
    assert!((90..=100).contains(&rates.gpu), "{rates:?}");
    assert_eq!(other.utilization_rates().expect("rates").gpu, 0);

    assert_eq!(device.compute_mode().expect("mode"), ComputeMode::ExclusiveProcess);
    assert!(device.temperature(TemperatureSensor::Gpu).expect("temperature") > 0);
    assert!(device.power_usage().expect("power") > 0);
    assert_eq!(device.clock_info(Clock::SM).expect("clock"), 1980);
    assert!(matches!(device.clock_info(Clock::Video), Err(NvmlError::NotSupported)));
    assert!(matches!(device.mig_mode(), Err(NvmlError::NotSupported)));
    assert!(matches!(device.link_wrapper_for(0).remote_pci_info(), Err(NvmlError::NotSupported)));
    let (link, fabric, state) = link_and_fabric(&device);
    assert_eq!(link, sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED);
    assert_eq!(
        (fabric, state),
        (sys::nvmlReturn_enum_NVML_SUCCESS, sys::NVML_GPU_FABRIC_STATE_NOT_SUPPORTED)
    );
    let [first, third] = [0, 2].map(|index| nvml.device_by_index(index).expect("device"));
    let link = first.link_wrapper_for(1);
    assert_eq!((link.is_active().expect("state"), link.version().expect("version")), (true, 3));
    assert_eq!(link.remote_pci_info().expect("remote").bus_id, third.pci_info().expect("pci").bus_id);
    assert_eq!(link_and_fabric(&first).0, sys::nvmlReturn_enum_NVML_SUCCESS);
    assert!(matches!(first.link_wrapper_for(2).is_active(), Err(NvmlError::NotSupported)));
    let can_read = |index| {
        let other = nvml.device_by_index(index).expect("device");
        first.p2p_status(&other, P2pCapabilitiesIndex::Read).expect("status")
    };
    assert_eq!([1, 3].map(can_read), [P2pStatus::Ok, P2pStatus::ChipsetNotSupported]);
    let nodes = third.memory_affinity(2, sys::NVML_AFFINITY_SCOPE_NODE).expect("nodes");
    assert_eq!(nodes, [0, 1 << 6]);
    let ancestor =
        |index| device.topology_common_ancestor(nvml.device_by_index(index).expect("device")).expect("level");
    assert_eq!(
        [0, 1, 2].map(ancestor),
        [TopologyLevel::Single, TopologyLevel::Internal, TopologyLevel::Node]
    );

    assert!(mps_clients(&device).is_empty(), "the process is no client yet");
    let server = host.serve().expect("a server");
    host.join(server, 400_000).expect("its own server");
    assert_eq!(mps_clients(&device), [std::process::id()]);

    assert!(matches!(nvml.device_by_index(4), Err(NvmlError::InvalidArg)));
    assert!(matches!(nvml.device_by_uuid("GPU-0"), Err(NvmlError::NotFound)));
    nvml.shutdown().expect("shutdown");
}
