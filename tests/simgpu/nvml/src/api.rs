//! The exported functions. NVIDIA's NVML API reference documents them.

use crate::library::{
    answer, field, handle, init, not_supported, process_name, read_text, shut_down, version_mismatch, whole,
    write, write_list, write_text,
};
use nvml_wrapper_sys::bindings::{self as sys, nvmlDevice_t, nvmlReturn_t};
use simgpu_engine::topology::{Ancestor, P2p, Remote};
use simgpu_engine::truth::Process;
use simgpu_engine::{ComputeMode, Config, PciAddress};
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong};

/// The version word of nvmlMemory_v2_t: the struct's size, and 2 in the highest byte
/// (NVML_STRUCT_VERSION).
const MEMORY_V2: c_uint = size_of::<sys::nvmlMemory_v2_t>() as c_uint | 2 << 24;
/// NVIDIA's vendor number, and the device number of an H200 SXM (pci-ids.ucw.cz).
const PCI_DEVICE_ID: c_uint = 0x2335_10de;
/// CUDA cores of an SM of compute capability 9.0.
const CORES_PER_SM: c_uint = 128;
const KHZ_PER_MHZ: u32 = 1000;
/// The most MIG devices of a GPU (published).
const MOST_PARTS: c_uint = 7;
/// Temperature of a GPU that is neither idle nor hot. The simulation models neither heat nor power.
const TEMPERATURE_C: c_uint = 40;
const IDLE_POWER_MW: u64 = 75_000;
/// The board's limit (published for H200 SXM).
const POWER_LIMIT_MW: u64 = 700_000;
const PPM: u64 = 1_000_000;
/// Percentage of time in which the GPU used its memory. The simulation does not model it.
const MEMORY_BUSY_PERCENT: c_uint = 0;

/// Exports functions that need the library initialised: `name(arguments) |library| body`. The
/// caller of the function supplies the pointers in the body.
macro_rules! export {
    ($($name:ident($($argument:ident: $type:ty),*) |$library:pat_param| $body:block)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> nvmlReturn_t {
            answer(stringify!($name), |$library| $body)
        }
    )* };
}

/// Exports one function under several names, for versions that do not differ in the simulated GPU.
macro_rules! export_versions {
    ($($($name:ident),+ ($($argument:ident: $type:ty),*) |$library:pat_param| $body:block)*) => { $(
        export_versions!(@each ($($name),+) ($($argument: $type),*) |$library| $body);
    )* };
    (@each ($name:ident $(, $more:ident)*) $arguments:tt |$library:pat_param| $body:block) => {
        export_versions!(@one $name $arguments |$library| $body);
        $(export_versions!(@one $more $arguments |$library| $body);)*
    };
    (@one $name:ident ($($argument:ident: $type:ty),*) |$library:pat_param| $body:block) => {
        export! { $name($($argument: $type),*) |$library| $body }
    };
}

/// Exports functions that give one value of a device, if there is such a device: `names(type)
/// |library, device| value`.
macro_rules! export_values {
    ($($($name:ident),+ ($type:ty) |$library:ident, $device:ident| $value:block)*) => {
        export_versions! {$(
            $($name),+ ($device: nvmlDevice_t, to: *mut $type) |$library| {
                $library.index($device)?;
                let value = $value;
                // SAFETY: by NVML's contract the pointer is null or points at a variable of this
                // type.
                unsafe { write(to, value) }
            }
        )*}
    };
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit() -> nvmlReturn_t {
    init("nvmlInit")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    init("nvmlInit_v2")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_: c_uint) -> nvmlReturn_t {
    init("nvmlInitWithFlags")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    shut_down("nvmlShutdown")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    let text: &CStr = match result {
        sys::nvmlReturn_enum_NVML_SUCCESS => c"Success",
        sys::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED => c"Uninitialized",
        sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT => c"Invalid Argument",
        sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED => c"Not Supported",
        sys::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION => c"Insufficient Permissions",
        sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND => c"Not Found",
        sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE => c"Insufficient Size",
        sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED => c"Driver Not Loaded",
        sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT => c"Timeout",
        sys::nvmlReturn_enum_NVML_ERROR_LIBRARY_NOT_FOUND => c"NVML Shared Library Not Found",
        sys::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND => c"Function Not Found",
        sys::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST => c"GPU is lost",
        sys::nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH => c"Driver/library version mismatch",
        sys::nvmlReturn_enum_NVML_ERROR_MEMORY => c"Insufficient Memory",
        sys::nvmlReturn_enum_NVML_ERROR_NO_DATA => c"No data",
        sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH => c"Argument version mismatch",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

fn bus_id(PciAddress { domain, bus, device }: PciAddress) -> String {
    format!("{domain:08X}:{bus:02X}:{device:02X}.0")
}

/// Returns the form with a domain of four digits, which older tools use.
fn bus_id_legacy(PciAddress { domain, bus, device }: PciAddress) -> String {
    format!("{domain:04X}:{bus:02X}:{device:02X}.0")
}

// SAFETY (of every block below): the pointers come from the caller. By NVML's contract they are
// null or point at variables of these types. For text and lists they have as many places as the
// caller says.

export_versions! {
    nvmlDeviceGetCount, nvmlDeviceGetCount_v2(count: *mut c_uint) |library| {
        let gpus = if library.config().mig { 1 } else { library.config().gpus };
        // SAFETY: see above.
        unsafe { write(count, gpus as c_uint) }
    }

    nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut nvmlDevice_t) |library| {
        let gpus = if library.config().mig { 1 } else { library.config().gpus };
        if index as usize >= gpus {
            return Err(sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
        }
        let found = if library.config().mig { whole() } else { handle(index as usize) };
        // SAFETY: see above.
        unsafe { write(device, found) }
    }

    nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2(id: *const c_char, device: *mut nvmlDevice_t) |library| {
        // SAFETY: see above.
        let id = unsafe { read_text(id) }?;
        let found = library.find(|index, _| {
            let address = Config::pci_address(index);
            let short = bus_id_legacy(address);
            // The id can lack the domain.
            let bare = short.split_once(':').map(|(_, rest)| rest);
            id.eq_ignore_ascii_case(&bus_id(address))
                || id.eq_ignore_ascii_case(&short)
                || bare.is_some_and(|bare| id.eq_ignore_ascii_case(bare))
        })?;
        // SAFETY: see above.
        unsafe { write(device, found) }
    }

    nvmlSystemGetCudaDriverVersion, nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) |library| {
        // SAFETY: see above.
        unsafe { write(version, library.config().driver_version) }
    }

    nvmlDeviceGetComputeRunningProcesses_v2, nvmlDeviceGetComputeRunningProcesses_v3(
        device: nvmlDevice_t, count: *mut c_uint, infos: *mut sys::nvmlProcessInfo_v2_t
    ) |library| {
        let list = infos_v2(running(library, device)?);
        // SAFETY: see above.
        unsafe { write_list(count, infos, list) }
    }

    nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlDeviceGetMPSComputeRunningProcesses_v3(
        device: nvmlDevice_t, count: *mut c_uint, infos: *mut sys::nvmlProcessInfo_v2_t
    ) |library| {
        let list = infos_v2(mps_clients(library, device)?);
        // SAFETY: see above.
        unsafe { write_list(count, infos, list) }
    }

    // No process draws graphics. The lists have no items, so the type of an item has no effect.
    nvmlDeviceGetGraphicsRunningProcesses, nvmlDeviceGetGraphicsRunningProcesses_v2,
    nvmlDeviceGetGraphicsRunningProcesses_v3(
        device: nvmlDevice_t, count: *mut c_uint, infos: *mut u8
    ) |library| {
        library.index(device)?;
        // SAFETY: see above.
        unsafe { write_list(count, infos, vec![]) }
    }

    // The clocks never change.
    nvmlDeviceGetClockInfo, nvmlDeviceGetMaxClockInfo(
        device: nvmlDevice_t, kind: sys::nvmlClockType_t, mhz: *mut c_uint
    ) |library| {
        library.index(device)?;
        let khz = match kind {
            sys::nvmlClockType_enum_NVML_CLOCK_GRAPHICS | sys::nvmlClockType_enum_NVML_CLOCK_SM => {
                library.config().clock_khz
            }
            sys::nvmlClockType_enum_NVML_CLOCK_MEM => library.config().memory_clock_khz,
            _ => return not_supported(),
        };
        // SAFETY: see above.
        unsafe { write(mhz, khz / KHZ_PER_MHZ) }
    }
}

/// Version word of `nvmlProcessDetailList_v1`: the struct's size and its version.
const PROCESS_DETAIL_LIST_V1: c_uint = size_of::<sys::nvmlProcessDetailList_v1_t>() as c_uint | 1 << 24;
/// Kinds of processes in a list of details.
const PROCESS_MODE_COMPUTE: c_uint = 0;
const PROCESS_MODE_GRAPHICS: c_uint = 1;
const PROCESS_MODE_MPS: c_uint = 2;

/// The version of `nvmlGpuFabricInfoV_t` in the highest byte of its version word.
const VERSION_SHIFT: u32 = 24;
/// The versions of `nvmlGpuFabricInfoV_t`. Each version adds fields at the end of the version
/// before.
const FABRIC_VERSIONS: std::ops::RangeInclusive<c_uint> = 2..=3;
/// The UUID of the cluster to which the cliques of the configuration belong.
const CLUSTER_UUID: [u8; 16] = *b"simulated fabric";

/// Returns the other end of a GPU's NVLink. An error means that the GPU has no such link.
fn remote(
    library: &crate::library::Library,
    device: nvmlDevice_t,
    link: c_uint,
) -> Result<Remote, nvmlReturn_t> {
    let index = library.index(device)?;
    let found = library.config().topology.links(index).nth(link as usize);
    found.ok_or(sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED)
}

/// The first bus of NVSwitches. No GPU is on these buses.
const SWITCH_BUS: u32 = 0xc0;

/// Returns the PCI information of a GPU or of an NVSwitch at this address.
fn pci_info(address: PciAddress) -> sys::nvmlPciInfo_t {
    sys::nvmlPciInfo_t {
        busIdLegacy: field(&bus_id_legacy(address)),
        domain: address.domain,
        bus: address.bus,
        device: address.device,
        pciDeviceId: PCI_DEVICE_ID,
        pciSubSystemId: 0,
        busId: field(&bus_id(address)),
    }
}

/// Returns the processes with contexts or memory on a GPU, and the memory of each. The list also
/// has the clients of MPS.
fn running(
    library: &crate::library::Library,
    device: nvmlDevice_t,
) -> Result<Vec<(c_uint, u64)>, nvmlReturn_t> {
    running_of(library, device, |_| true)
}

/// Returns the clients of MPS with contexts or memory on a GPU, and the memory of each.
fn mps_clients(
    library: &crate::library::Library,
    device: nvmlDevice_t,
) -> Result<Vec<(c_uint, u64)>, nvmlReturn_t> {
    running_of(library, device, |process| process.sm_limit_ppm.is_some())
}

/// Returns the processes of [`running`] for which `is_meant` is true.
fn running_of(
    library: &crate::library::Library,
    device: nvmlDevice_t,
    is_meant: impl Fn(&Process) -> bool,
) -> Result<Vec<(c_uint, u64)>, nvmlReturn_t> {
    let index = library.index(device)?;
    let processes = library.snapshot().processes;
    let here = processes
        .iter()
        .filter(|&process| is_meant(process))
        .map(|process| (process.pid, process.gpus[index]))
        // A process of a pid namespace that is not visible to this process has no id here.
        .filter(|(pid, account)| *pid != 0 && (account.contexts > 0 || account.memory_bytes > 0));
    Ok(here.map(|(pid, account)| (pid, account.memory_bytes)).collect())
}

/// Returns processes in the form of the first version of NVML's lists.
fn infos_v1(processes: Vec<(c_uint, u64)>) -> Vec<sys::nvmlProcessInfo_v1_t> {
    let info = |(pid, bytes)| sys::nvmlProcessInfo_v1_t { pid, usedGpuMemory: bytes };
    processes.into_iter().map(info).collect()
}

/// Returns processes in the form of the later versions of NVML's lists.
fn infos_v2(processes: Vec<(c_uint, u64)>) -> Vec<sys::nvmlProcessInfo_v2_t> {
    let info = |(pid, bytes)| sys::nvmlProcessInfo_v2_t {
        pid,
        usedGpuMemory: bytes,
        // Means "not a MIG instance".
        gpuInstanceId: c_uint::MAX,
        computeInstanceId: c_uint::MAX,
    };
    processes.into_iter().map(info).collect()
}

/// Version word of `nvmlProcessesUtilizationInfo_v1_t`: the struct's size and its version.
const PROCESSES_UTILIZATION_V1: c_uint =
    size_of::<sys::nvmlProcessesUtilizationInfo_v1_t>() as c_uint | 1 << 24;
/// Microseconds in a second, for the samples' times.
const US_PER_S: u64 = 1_000_000;

/// Returns the time of a sample, the GPU's utilisation in percent, and the processes on the GPU.
/// For each process, the function returns the utilisation of the whole GPU.
fn sampled(
    library: &crate::library::Library,
    device: nvmlDevice_t,
) -> Result<(u64, c_uint, Vec<c_uint>), nvmlReturn_t> {
    /// Parts per million in a percent.
    const PER_PERCENT: u32 = 10_000;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let at_us = now.as_secs() * US_PER_S + u64::from(now.subsec_micros());
    let percent = library.gpu(device)?.utilization_ppm.div_ceil(PER_PERCENT);
    Ok((at_us, percent, running(library, device)?.into_iter().map(|(pid, _)| pid).collect()))
}

/// Returns the samples as [`sampled`] does. Returns an error for a GPU without processes, because
/// NVML then finds no samples.
fn sampled_processes(
    library: &crate::library::Library,
    device: nvmlDevice_t,
) -> Result<(u64, c_uint, Vec<c_uint>), nvmlReturn_t> {
    match sampled(library, device)? {
        (_, _, pids) if pids.is_empty() => Err(sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND),
        found => Ok(found),
    }
}

export_values! {
    nvmlDeviceGetPciInfo, nvmlDeviceGetPciInfo_v2, nvmlDeviceGetPciInfo_v3(sys::nvmlPciInfo_t) |library, device| {
        pci_info(Config::pci_address(library.index(device)?))
    }
    nvmlDeviceGetAccountingBufferSize(c_uint) |library, device| {
        /// NVML's default number of records.
        const BUFFER: c_uint = 4000;
        BUFFER
    }
    nvmlDeviceGetIndex, nvmlDeviceGetMinorNumber(c_uint) |library, device| { library.index(device)? as c_uint }
    nvmlDeviceGetBrand(sys::nvmlBrandType_t) |library, device| { sys::nvmlBrandType_enum_NVML_BRAND_NVIDIA }
    nvmlDeviceGetArchitecture(sys::nvmlDeviceArchitecture_t) |library, device| { sys::NVML_DEVICE_ARCH_HOPPER }
    nvmlDeviceGetNumGpuCores(c_uint) |library, device| { library.config().sm_count * CORES_PER_SM }
    nvmlDeviceGetMemoryBusWidth(c_uint) |library, device| { library.config().memory_bus_bits }
    nvmlDeviceGetMemoryInfo(sys::nvmlMemory_t) |library, device| {
        let gpu = library.gpu(device)?;
        let (total, used) = (gpu.memory_total_bytes, gpu.memory_used_bytes + gpu.managed_bytes);
        sys::nvmlMemory_t { total, free: total - used, used }
    }
    nvmlDeviceGetUtilizationRates(sys::nvmlUtilization_t) |library, device| {
        /// Parts per million in a percent.
        const PER_PERCENT: u32 = 10_000;
        let percent = library.gpu(device)?.utilization_ppm.div_ceil(PER_PERCENT);
        sys::nvmlUtilization_t { gpu: percent, memory: MEMORY_BUSY_PERCENT }
    }
    nvmlDeviceGetPowerUsage(c_uint) |library, device| {
        let busy_ppm = u64::from(library.gpu(device)?.utilization_ppm);
        let power = IDLE_POWER_MW + (POWER_LIMIT_MW - IDLE_POWER_MW) * busy_ppm / PPM;
        power as c_uint
    }
    nvmlDeviceGetPowerManagementLimit, nvmlDeviceGetEnforcedPowerLimit(c_uint) |library, device| { POWER_LIMIT_MW as c_uint }
    nvmlDeviceGetPerformanceState(sys::nvmlPstates_t) |library, device| { sys::nvmlPStates_enum_NVML_PSTATE_0 }
    nvmlDeviceGetPersistenceMode(sys::nvmlEnableState_t) |library, device| { sys::nvmlEnableState_enum_NVML_FEATURE_ENABLED }
    nvmlDeviceGetComputeMode(sys::nvmlComputeMode_t) |library, device| {
        match library.config().compute_mode {
            ComputeMode::Default => sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_DEFAULT,
            ComputeMode::ExclusiveProcess => sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
            ComputeMode::Prohibited => sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_PROHIBITED,
        }
    }
    nvmlDeviceIsMigDeviceHandle(c_uint) |library, device| {
        c_uint::from(library.config().mig && !library.is_divided(device))
    }
}

export! {
    // NVML keeps some seconds of samples; this library has only the present one.
    nvmlDeviceGetSamples(
        device: nvmlDevice_t, kind: sys::nvmlSamplingType_t, _since: u64,
        value_kind: *mut sys::nvmlValueType_t, count: *mut c_uint, samples: *mut sys::nvmlSample_t
    ) |library| {
        let (at_us, percent, _) = sampled(library, device)?;
        let value = match kind {
            sys::nvmlSamplingType_enum_NVML_GPU_UTILIZATION_SAMPLES => percent,
            sys::nvmlSamplingType_enum_NVML_MEMORY_UTILIZATION_SAMPLES => MEMORY_BUSY_PERCENT,
            _ => return not_supported(),
        };
        let sample = sys::nvmlSample_t { timeStamp: at_us, sampleValue: sys::nvmlValue_t { uiVal: value } };
        // SAFETY: see above.
        unsafe {
            write(value_kind, sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT)?;
            if samples.is_null() {
                // Without a buffer the call returns the number of places needed.
                return write(count, 1);
            }
            write_list(count, samples, vec![sample])
        }
    }

    nvmlDeviceGetAccountingPids(device: nvmlDevice_t, count: *mut c_uint, pids: *mut c_uint) |library| {
        let pids_here = running(library, device)?.into_iter().map(|(pid, _)| pid);
        // SAFETY: see above.
        unsafe { write_list(count, pids, pids_here.collect()) }
    }

    nvmlDeviceGetProcessUtilization(
        device: nvmlDevice_t, list: *mut sys::nvmlProcessUtilizationSample_t, count: *mut c_uint, _since: u64
    ) |library| {
        let (at_us, percent, pids) = sampled_processes(library, device)?;
        let samples = pids.into_iter().map(|pid| sys::nvmlProcessUtilizationSample_t {
            pid,
            timeStamp: at_us,
            smUtil: percent,
            memUtil: 0,
            encUtil: 0,
            decUtil: 0,
        });
        // SAFETY: see above.
        unsafe { write_list(count, list, samples.collect()) }
    }

    nvmlDeviceGetProcessesUtilizationInfo(device: nvmlDevice_t, info: *mut sys::nvmlProcessesUtilizationInfo_t) |library| {
        // SAFETY: see above.
        let Some(info) = (unsafe { info.as_mut() }) else {
            return Err(sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
        };
        if info.version != PROCESSES_UTILIZATION_V1 {
            return version_mismatch();
        }
        let (at_us, percent, pids) = sampled_processes(library, device)?;
        let infos = pids.into_iter().map(|pid| sys::nvmlProcessUtilizationInfo_v1_t {
            timeStamp: at_us,
            pid,
            smUtil: percent,
            memUtil: 0,
            encUtil: 0,
            decUtil: 0,
            jpgUtil: 0,
            ofaUtil: 0,
        });
        // SAFETY: see above.
        unsafe { write_list(&mut info.processSamplesCount, info.procUtilArray, infos.collect()) }
    }

    nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) |library| {
        // SAFETY: see above.
        unsafe { write_text(version, length, &library.config().driver_release) }
    }

    nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) |library| {
        /// The factor of the major number in a CUDA version, which is 1000 times the major number
        /// plus the minor part.
        const PER_MAJOR: i32 = 1000;
        let config = library.config();
        let text = format!("{}.{}", config.driver_version / PER_MAJOR, config.driver_release);
        // SAFETY: see above.
        unsafe { write_text(version, length, &text) }
    }

    nvmlSystemGetProcessName(pid: c_uint, name: *mut c_char, length: c_uint) |_| {
        // SAFETY: see above.
        unsafe { write_text(name, length, &process_name(pid)?) }
    }

    nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut nvmlDevice_t) |library| {
        // SAFETY: see above.
        let uuid = unsafe { read_text(uuid) }?;
        let found = library
            .find(|index, _| library.uuid(handle(index)).is_ok_and(|own| own.eq_ignore_ascii_case(uuid)))?;
        // SAFETY: see above.
        unsafe { write(device, found) }
    }

    nvmlDeviceGetName(device: nvmlDevice_t, name: *mut c_char, length: c_uint) |library| {
        library.index(device)?;
        // SAFETY: see above.
        unsafe { write_text(name, length, &library.config().name) }
    }

    nvmlDeviceGetUUID(device: nvmlDevice_t, uuid: *mut c_char, length: c_uint) |library| {
        // SAFETY: see above.
        unsafe { write_text(uuid, length, &library.uuid(device)?) }
    }

    nvmlDeviceGetCudaComputeCapability(device: nvmlDevice_t, major: *mut c_int, minor: *mut c_int) |library| {
        library.index(device)?;
        let [major_number, minor_number] = library.config().compute_capability;
        // SAFETY: see above.
        unsafe { write(major, major_number).and_then(|()| write(minor, minor_number)) }
    }

    nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, memory: *mut sys::nvmlMemory_v2_t) |library| {
        let gpu = library.gpu(device)?;
        // SAFETY: see above; the version is the struct's first field, set by the caller.
        if unsafe { memory.as_ref() }.is_some_and(|given| given.version != MEMORY_V2) {
            return version_mismatch();
        }
        let (total, used) = (gpu.memory_total_bytes, gpu.memory_used_bytes + gpu.managed_bytes);
        let value = sys::nvmlMemory_v2_t { version: MEMORY_V2, total, reserved: 0, free: total - used, used };
        // SAFETY: see above.
        unsafe { write(memory, value) }
    }

    nvmlDeviceGetComputeRunningProcesses(device: nvmlDevice_t, count: *mut c_uint, infos: *mut sys::nvmlProcessInfo_v1_t) |library| {
        let list = infos_v1(running(library, device)?);
        // SAFETY: see above.
        unsafe { write_list(count, infos, list) }
    }

    nvmlDeviceGetMPSComputeRunningProcesses(device: nvmlDevice_t, count: *mut c_uint, infos: *mut sys::nvmlProcessInfo_v1_t) |library| {
        let list = infos_v1(mps_clients(library, device)?);
        // SAFETY: see above.
        unsafe { write_list(count, infos, list) }
    }

    nvmlDeviceGetRunningProcessDetailList(device: nvmlDevice_t, details: *mut sys::nvmlProcessDetailList_v1_t) |library| {
        // SAFETY: see above.
        let details = unsafe { details.as_mut() }.ok_or(sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT)?;
        if details.version != PROCESS_DETAIL_LIST_V1 {
            return Err(sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        let computing = running(library, device)?;
        let list = match details.mode {
            PROCESS_MODE_COMPUTE => computing,
            PROCESS_MODE_MPS => mps_clients(library, device)?,
            PROCESS_MODE_GRAPHICS => vec![],
            _ => return Err(sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT),
        };
        let list = list.into_iter().map(|(pid, bytes)| sys::nvmlProcessDetail_v1_t {
            pid,
            usedGpuMemory: bytes,
            // Means "not a MIG instance".
            gpuInstanceId: c_uint::MAX,
            computeInstanceId: c_uint::MAX,
            usedGpuCcProtectedMemory: 0,
        });
        // SAFETY: see above.
        unsafe { write_list(&mut details.numProcArrayEntries, details.procArray, list.collect()) }
    }

    nvmlDeviceGetTemperature(device: nvmlDevice_t, sensor: sys::nvmlTemperatureSensors_t, temperature: *mut c_uint) |library| {
        library.index(device)?;
        if sensor != sys::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU {
            return not_supported();
        }
        // SAFETY: see above.
        unsafe { write(temperature, TEMPERATURE_C) }
    }

    nvmlDeviceGetNvLinkState(device: nvmlDevice_t, link: c_uint, state: *mut sys::nvmlEnableState_t) |library| {
        remote(library, device, link)?;
        // SAFETY: see above.
        unsafe { write(state, sys::nvmlEnableState_enum_NVML_FEATURE_ENABLED) }
    }

    nvmlDeviceGetNvLinkVersion(device: nvmlDevice_t, link: c_uint, version: *mut c_uint) |library| {
        remote(library, device, link)?;
        // SAFETY: see above.
        unsafe { write(version, library.config().topology.nvlink_version) }
    }

    nvmlDeviceGetNvLinkRemoteDeviceType(
        device: nvmlDevice_t, link: c_uint, kind: *mut sys::nvmlIntNvLinkDeviceType_t
    ) |library| {
        let found = match remote(library, device, link)? {
            Remote::Gpu(_) => sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU,
            Remote::Switch => sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH,
        };
        // SAFETY: see above.
        unsafe { write(kind, found) }
    }

    nvmlDeviceGetNvLinkRemotePciInfo_v2(
        device: nvmlDevice_t, link: c_uint, pci: *mut sys::nvmlPciInfo_t
    ) |library| {
        let address = match remote(library, device, link)? {
            Remote::Gpu(peer) => Config::pci_address(peer),
            Remote::Switch => PciAddress { domain: 0, bus: SWITCH_BUS + link, device: 0 },
        };
        // SAFETY: see above.
        unsafe { write(pci, pci_info(address)) }
    }

    nvmlDeviceGetP2PStatus(
        one: nvmlDevice_t, other: nvmlDevice_t, _kind: sys::nvmlGpuP2PCapsIndex_t,
        status: *mut sys::nvmlGpuP2PStatus_t
    ) |library| {
        let found = match library.config().topology.p2p(library.index(one)?, library.index(other)?) {
            P2p::Ok => sys::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_OK,
            P2p::Chipset => sys::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED,
            P2p::Gpu => sys::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_GPU_NOT_SUPPORTED,
            P2p::Topology => sys::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED,
            P2p::Disabled => sys::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_DISABLED_BY_REGKEY,
            P2p::NotSupported => sys::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_NOT_SUPPORTED,
            P2p::Unknown => sys::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_UNKNOWN,
        };
        // SAFETY: see above.
        unsafe { write(status, found) }
    }

    nvmlDeviceGetMemoryAffinity(
        device: nvmlDevice_t, size: c_uint, nodes: *mut c_ulong, _scope: sys::nvmlAffinityScope_t
    ) |library| {
        let node = library.config().numa_node(library.index(device)?);
        for word in 0..size {
            let own = if word == node / c_ulong::BITS { 1 << (node % c_ulong::BITS) } else { 0 };
            // SAFETY: see above. The caller says that there are `size` words.
            unsafe { write(nodes.wrapping_add(word as usize), own) }?;
        }
        Ok(())
    }

    nvmlDeviceGetGpuFabricInfoV(device: nvmlDevice_t, info: *mut sys::nvmlGpuFabricInfoV_t) |library| {
        let clique = library.config().topology.cliques.get(library.index(device)?);
        // SAFETY: see above. Each version of the struct begins with these fields.
        let Some(info) = (unsafe { info.as_mut() }) else {
            return Err(sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
        };
        if !FABRIC_VERSIONS.contains(&(info.version >> VERSION_SHIFT)) {
            return version_mismatch();
        }
        let state = match clique {
            Some(clique) => {
                info.clusterUuid = CLUSTER_UUID;
                info.cliqueId = *clique;
                info.status = sys::nvmlReturn_enum_NVML_SUCCESS;
                sys::NVML_GPU_FABRIC_STATE_COMPLETED
            }
            None => sys::NVML_GPU_FABRIC_STATE_NOT_SUPPORTED,
        };
        info.state = state as sys::nvmlGpuFabricState_t;
        Ok(())
    }

    nvmlDeviceGetMigMode(device: nvmlDevice_t, current: *mut c_uint, pending: *mut c_uint) |library| {
        library.index(device)?;
        if !library.is_divided(device) {
            return not_supported();
        }
        // SAFETY: see above.
        unsafe {
            write(current, sys::NVML_DEVICE_MIG_ENABLE)?;
            write(pending, sys::NVML_DEVICE_MIG_ENABLE)
        }
    }

    nvmlDeviceGetMaxMigDeviceCount(device: nvmlDevice_t, count: *mut c_uint) |library| {
        library.index(device)?;
        let most = if library.is_divided(device) { MOST_PARTS } else { 0 };
        // SAFETY: see above.
        unsafe { write(count, most) }
    }

    nvmlDeviceGetMigDeviceHandleByIndex(device: nvmlDevice_t, index: c_uint, part: *mut nvmlDevice_t) |library| {
        library.index(device)?;
        if !library.is_divided(device) || index >= MOST_PARTS {
            return Err(sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
        }
        if index as usize >= library.config().gpus {
            return Err(sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND);
        }
        // SAFETY: see above.
        unsafe { write(part, handle(index as usize)) }
    }

    nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part: nvmlDevice_t, device: *mut nvmlDevice_t) |library| {
        library.index(part)?;
        if !library.config().mig || library.is_divided(part) {
            return Err(sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: see above.
        unsafe { write(device, whole()) }
    }

    nvmlDeviceGetTopologyCommonAncestor(one: nvmlDevice_t, other: nvmlDevice_t, level: *mut sys::nvmlGpuTopologyLevel_t) |library| {
        let ancestor = match library.config().common_ancestor(library.index(one)?, library.index(other)?) {
            Ancestor::Same | Ancestor::Board => sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_INTERNAL,
            Ancestor::Switch => sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_SINGLE,
            Ancestor::Switches => sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_MULTIPLE,
            Ancestor::HostBridge => sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_HOSTBRIDGE,
            Ancestor::Node => sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_NODE,
            Ancestor::System => sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_SYSTEM,
        };
        // SAFETY: see above.
        unsafe { write(level, ancestor) }
    }
}
