//! NVML. One thread of the process asks NVML all questions ([`mailbox`]). If the driver hangs, NVML
//! answers no question, not even the first (`nvmlInit`). Each question has a deadline, after which
//! its answer is unknown. So a driver that hangs delays neither the daemon's work nor its end.

mod library;
mod mailbox;
mod topology;

pub use library::{Event, Instance, Library};
pub use mailbox::STUCK;

use crate::gpus::{ComputeMode, Gpu, GpuError};
use crate::probes::reader::thread_ns;
use deepres_abi::MAX_GPUS;
use deepres_policy::placement::Topology;
use mailbox::Mailbox;
use nvml_wrapper::enum_wrappers::device::ComputeMode as NvmlMode;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// The name of the NVML library at run time. The name without a version is for linking, and is
/// missing on most machines.
pub const LIBRARY: &str = "libnvidia-ml.so.1";
/// The time for which the daemon's tasks wait for an answer. NVML answers within milliseconds.
const LIMIT: Duration = Duration::from_secs(2);
/// The time for which the daemon waits for NVML when a process asks for its own memory. The
/// interposer waits for a second. One other question can be under way.
const VIEWER_LIMIT: Duration = Duration::from_millis(900);
/// The time for which the daemon's start waits for the list of GPUs. NVML can first load the
/// driver, which takes seconds for each GPU.
const START_LIMIT: Duration = Duration::from_secs(120);

/// NVML's figures for one GPU: the memory in use, and the memory of each process.
#[derive(Debug, Clone)]
pub struct OnGpu {
    /// The GPU's memory in use, bytes.
    pub used_bytes: u64,
    /// The bytes that each process holds, by pid.
    pub processes: BTreeMap<u32, u64>,
}

/// NVML's answer to the question which processes are clients of MPS on a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MpsClients {
    /// NVML does not tell.
    Untold,
    /// The processes with these pids, and no others.
    Listed(BTreeSet<u32>),
}

/// A question. A question names GPUs by UUID, `GPU-…` or `MIG-…`.
#[derive(PartialEq)]
enum Question {
    Gpus,
    Free(Vec<String>),
    Usage(Vec<String>),
    TellsProcesses(Vec<String>),
    MpsClients(Vec<String>),
    Computing,
    Topology(Vec<String>),
}

/// The answer to the question of the same name. The keys are the places of the GPUs in the
/// question.
#[derive(Clone)]
enum Answer {
    Gpus(Result<Vec<Gpu>, GpuError>),
    Free(BTreeMap<usize, u64>),
    Usage(BTreeMap<usize, OnGpu>),
    TellsProcesses(BTreeMap<usize, bool>),
    MpsClients(BTreeMap<usize, MpsClients>),
    Computing(Option<BTreeSet<u32>>, u64),
    Topology(Result<Topology, GpuError>),
}

/// NVML, once the thread could open the library; `None` before. An administrator can load the
/// driver later.
type Kept = Option<Library>;

static MAILBOX: LazyLock<Mailbox<Question, Answer, Kept>> =
    LazyLock::new(|| Mailbox::new("deepres-nvml", STUCK, answer));

/// Returns all GPUs of the host, as [`Gpu::all`] does.
///
/// # Errors
/// [`GpuError`], which names the missing part.
pub fn gpus() -> Result<Vec<Gpu>, GpuError> {
    match MAILBOX.ask_and_wait(Question::Gpus, START_LIMIT) {
        Some(Answer::Gpus(gpus)) => gpus,
        _ => Err(GpuError::Silent(START_LIMIT)),
    }
}

/// Returns the topology of GPUs, in the order of `uuids`. Waits for NVML.
///
/// # Errors
/// [`GpuError`], which names the missing part.
pub fn topology(uuids: Vec<String>) -> Result<Topology, GpuError> {
    match MAILBOX.ask_and_wait(Question::Topology(uuids), START_LIMIT) {
        Some(Answer::Topology(topology)) => topology,
        _ => Err(GpuError::Silent(START_LIMIT)),
    }
}

/// Returns whether NVML tells the memory of a GPU's processes, by the GPU's place in `uuids`. On a
/// vGPU, NVML does not. GPUs for which nothing shows it are left out. Waits for NVML.
pub fn tells_process_memory(uuids: Vec<String>) -> BTreeMap<usize, bool> {
    match MAILBOX.ask_and_wait(Question::TellsProcesses(uuids), LIMIT) {
        Some(Answer::TellsProcesses(tells)) => tells,
        _ => BTreeMap::new(),
    }
}

/// Returns the clients of MPS on GPUs, by the GPUs' places in `uuids`. GPUs without an answer are
/// left out.
pub async fn mps_clients(uuids: Vec<String>) -> BTreeMap<usize, MpsClients> {
    match MAILBOX.ask(Question::MpsClients(uuids), LIMIT).await {
        Some(Answer::MpsClients(clients)) => clients,
        _ => BTreeMap::new(),
    }
}

/// Returns the places in `uuids` of the GPUs on which NVML does not tell the clients of MPS. Waits
/// for NVML.
pub fn without_mps_clients(uuids: Vec<String>) -> Vec<usize> {
    let Some(Answer::MpsClients(clients)) = MAILBOX.ask_and_wait(Question::MpsClients(uuids), LIMIT) else {
        return Vec::new();
    };
    let untold = clients.into_iter().filter(|(_, clients)| *clients == MpsClients::Untold);
    untold.map(|(place, _)| place).collect()
}

/// Returns the free memory of GPUs, bytes, by their places in `uuids`. GPUs without a known figure
/// are left out.
pub async fn free_bytes(uuids: Vec<String>) -> BTreeMap<usize, u64> {
    match MAILBOX.ask(Question::Free(uuids), LIMIT).await {
        Some(Answer::Free(free)) => free,
        _ => BTreeMap::new(),
    }
}

/// Returns the figures for GPUs, by their places in `uuids`. GPUs without known figures are left
/// out.
pub async fn usage(uuids: Vec<String>) -> BTreeMap<usize, OnGpu> {
    usage_within(uuids, LIMIT).await
}

/// Returns the memory that the process `pid` holds on the GPU `uuid`, bytes; `None` if the amount
/// is unknown. A process asks for this amount after it created a context, because no call of the
/// driver tells the memory of a context.
pub async fn held_bytes(pid: u32, uuid: String) -> Option<u64> {
    // If the daemon cannot see the pid namespace of a process, the process has the pid 0.
    let on_gpus = if pid == 0 { return None } else { usage_within(vec![uuid], VIEWER_LIMIT).await };
    on_gpus.get(&0)?.processes.get(&pid).copied()
}

async fn usage_within(uuids: Vec<String>, limit: Duration) -> BTreeMap<usize, OnGpu> {
    match MAILBOX.ask(Question::Usage(uuids), limit).await {
        Some(Answer::Usage(usage)) => usage,
        _ => BTreeMap::new(),
    }
}

/// Asks which processes compute on any GPU. The mailbox's thread calls `take` with their pids
/// (`None` without NVML) and the processor time of the question, ns. If no answer comes in time,
/// the mailbox drops `take`.
pub fn ask_who_computes(take: impl FnOnce(Option<BTreeSet<u32>>, u64) + Send + 'static) {
    MAILBOX.post(Question::Computing, LIMIT, |answer| {
        if let Answer::Computing(pids, took_ns) = answer {
            take(pids, took_ns);
        }
    });
}

fn answer(kept: &mut Kept, question: &Question) -> Answer {
    match question {
        Question::Gpus => Answer::Gpus(open(kept).and_then(list)),
        Question::Free(uuids) => {
            let free = |nvml: &Nvml, uuid: &str| nvml.device_by_uuid(uuid)?.memory_info();
            Answer::Free(of_each(kept, uuids, |library, uuid| Some(free(&library.nvml, uuid).ok()?.free)))
        }
        Question::Usage(uuids) => {
            Answer::Usage(of_each(kept, uuids, |library, uuid| on_gpu(&library.nvml, uuid).ok()))
        }
        Question::TellsProcesses(uuids) => {
            Answer::TellsProcesses(of_each(kept, uuids, |library, uuid| tells_processes(&library.nvml, uuid)))
        }
        Question::MpsClients(uuids) => Answer::MpsClients(of_each(kept, uuids, clients_of_mps)),
        Question::Computing => {
            let began_ns = thread_ns();
            let pids = open(kept).ok().map(computing);
            Answer::Computing(pids, thread_ns() - began_ns)
        }
        Question::Topology(uuids) => Answer::Topology(open(kept).map(|nvml| topology::read(nvml, uuids))),
    }
}

/// Returns NVML. Opens NVML if it is not open.
fn open(kept: &mut Kept) -> Result<&Library, GpuError> {
    let opened = match kept.take() {
        Some(library) => library,
        None => Library::open().map_err(|error| match error {
            NvmlError::LibloadingError(_) => GpuError::NoLibrary(Arc::new(error)),
            other => other.into(),
        })?,
    };
    Ok(kept.insert(opened))
}

/// Calls `read` for each GPU. Returns the results by the GPUs' places.
fn of_each<T>(
    kept: &mut Kept,
    uuids: &[String],
    read: impl Fn(&Library, &str) -> Option<T>,
) -> BTreeMap<usize, T> {
    let Ok(library) = open(kept) else { return BTreeMap::new() };
    uuids.iter().enumerate().filter_map(|(gpu, uuid)| Some((gpu, read(library, uuid)?))).collect()
}

fn list(library: &Library) -> Result<Vec<Gpu>, GpuError> {
    let nvml = &library.nvml;
    let driver_version = nvml.sys_driver_version().ok();
    let mut described = Vec::new();
    for index in 0..nvml.device_count()? {
        match nvml.device_by_index(index) {
            Ok(device) => {
                let compute_mode = compute_mode(&device);
                let describe = |device: &Device<'_>| -> Result<Gpu, GpuError> {
                    Ok(Gpu { compute_mode, ..describe(device, driver_version.as_deref())? })
                };
                let parts = parts(library, &device, describe);
                if parts.is_empty() {
                    described.push((false, describe(&device)));
                }
                described.extend(parts.into_iter().map(|part| (true, Ok(part))));
            }
            Err(error) => described.push((false, Err(error.into()))),
        }
    }
    if described.is_empty() {
        return Err(GpuError::None);
    }
    if described.len() > MAX_GPUS {
        tracing::warn!("this machine has {} GPUs: the daemon manages {MAX_GPUS}", described.len());
        // Whole GPUs come first, because many MIG devices would take all places.
        described.sort_by_key(|(is_part, _)| *is_part);
        described.truncate(MAX_GPUS);
    }
    let described = described.into_iter().map(|(_, described)| described).collect();
    numbered(described)
}

fn describe(device: &Device<'_>, driver_version: Option<&str>) -> Result<Gpu, GpuError> {
    let gpu = Gpu::new(&device.uuid()?, &device.name()?, device.memory_info()?.total)?;
    // The device file of a MIG device's GPU stands for the whole GPU.
    let minor = if gpu.is_mig { None } else { device.minor_number().ok() };
    Ok(Gpu {
        minor,
        pcie_root: device.pci_info().ok().and_then(|pci| topology::pcie_root(&pci.bus_id)),
        driver_version: driver_version.map(str::to_owned),
        ..gpu
    })
}

/// Returns the compute mode of a GPU, which also holds for its MIG devices.
fn compute_mode(gpu: &Device<'_>) -> ComputeMode {
    match gpu.compute_mode() {
        Ok(NvmlMode::ExclusiveProcess | NvmlMode::ExclusiveThread) => ComputeMode::ExclusiveProcess,
        Ok(NvmlMode::Prohibited) => ComputeMode::Prohibited,
        Ok(NvmlMode::Default) | Err(_) => ComputeMode::Default,
    }
}

/// Returns the MIG devices of a GPU, which programs use instead of the GPU. The list is empty if
/// the GPU is not in MIG mode, or has no MIG device that NVML describes.
fn parts(
    library: &Library,
    device: &Device<'_>,
    describe: impl Fn(&Device<'_>) -> Result<Gpu, GpuError>,
) -> Vec<Gpu> {
    let described = library.mig_devices(device).into_iter().map(|part| describe(&part));
    let or_warn = |described: Result<Gpu, GpuError>| {
        described.inspect_err(|error| tracing::warn!("a MIG device gets no jobs: {error}")).ok()
    };
    described.filter_map(or_warn).collect()
}

/// Returns the GPUs by their numbers. A GPU that the driver lost, or that needs a reset, only keeps
/// its number. Of a GPU that fell off the bus, drivers often report an unknown error.
///
/// # Errors
/// The first other error, which can pass until the next start. The first error, if all GPUs are
/// lost.
fn numbered(described: Vec<Result<Gpu, GpuError>>) -> Result<Vec<Gpu>, GpuError> {
    if !described.iter().any(Result::is_ok) {
        return described.into_iter().collect();
    }
    let or_lost = |(number, described): (usize, Result<Gpu, GpuError>)| match described {
        Err(GpuError::Nvml(error))
            if matches!(*error, NvmlError::GpuLost | NvmlError::ResetRequired | NvmlError::Unknown) =>
        {
            tracing::warn!("GPU {number} gets no jobs: {error}");
            Ok(Gpu::lost(number))
        }
        described => described,
    };
    described.into_iter().enumerate().map(or_lost).collect()
}

fn on_gpu(nvml: &Nvml, uuid: &str) -> Result<OnGpu, NvmlError> {
    let device = nvml.device_by_uuid(uuid)?;
    // The function reads the use before and after the list, and takes the lower value. Otherwise
    // memory allocated between the readings would look like the memory of an unmanaged process.
    let before_bytes = device.memory_info()?.used;
    let listed = device.running_compute_processes()?;
    let used_bytes = before_bytes.min(device.memory_info()?.used);
    let processes = listed.into_iter().filter_map(|process| match process.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some((process.pid, bytes)),
        UsedGpuMemory::Unavailable => None,
    });
    Ok(OnGpu { used_bytes, processes: processes.collect() })
}

/// Returns whether NVML tells the memory of a GPU's processes. Without processes, only the refusal
/// to list them shows that NVML does not. Returns `None` if nothing shows it.
fn tells_processes(nvml: &Nvml, uuid: &str) -> Option<bool> {
    let is_told = |memory: &UsedGpuMemory| !matches!(memory, UsedGpuMemory::Unavailable);
    match nvml.device_by_uuid(uuid).ok()?.running_compute_processes() {
        Ok(listed) if listed.is_empty() => None,
        Ok(listed) => Some(listed.iter().all(|process| is_told(&process.used_gpu_memory))),
        Err(NvmlError::NotSupported) => Some(false),
        Err(_) => None,
    }
}

/// Returns the clients of MPS on a GPU; `None` without an answer, for example if the driver lost
/// the GPU.
fn clients_of_mps(library: &Library, uuid: &str) -> Option<MpsClients> {
    let gpu = library.nvml.device_by_uuid(uuid).ok()?;
    reported_mps_clients(library.mps_clients(&gpu))
}

/// Returns the meaning of NVML's list of the clients of MPS, or of its error.
fn reported_mps_clients(listed: Result<BTreeSet<u32>, NvmlError>) -> Option<MpsClients> {
    match listed {
        Ok(pids) => Some(MpsClients::Listed(pids)),
        // NVML has the function since drivers of 2022. The driver tells processes that they run
        // under MPS since CUDA 12.1, so under an older driver no honest process reports a part.
        Err(NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound) => {
            Some(MpsClients::Listed(BTreeSet::new()))
        }
        Err(NvmlError::NotSupported | NvmlError::NoPermission) => Some(MpsClients::Untold),
        Err(_) => None,
    }
}

fn computing(library: &Library) -> BTreeSet<u32> {
    let nvml = &library.nvml;
    let count = nvml.device_count().unwrap_or(0);
    let gpus = (0..count).filter_map(|index| nvml.device_by_index(index).ok());
    let devices = gpus.flat_map(|gpu| {
        let parts = library.mig_devices(&gpu);
        if parts.is_empty() { vec![gpu] } else { parts }
    });
    let processes = devices.filter_map(|gpu| gpu.running_compute_processes().ok()).flatten();
    processes.map(|process| process.pid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_without_the_list_of_mps_has_no_clients_and_a_refusal_tells_nothing() {
        let none = Some(MpsClients::Listed(BTreeSet::new()));
        assert_eq!(reported_mps_clients(Err(NvmlError::FunctionNotFound)), none);
        assert_eq!(reported_mps_clients(Err(NvmlError::FailedToLoadSymbol(String::new()))), none);
        for refusal in [NvmlError::NotSupported, NvmlError::NoPermission] {
            assert_eq!(reported_mps_clients(Err(refusal)), Some(MpsClients::Untold));
        }
        for error in [NvmlError::GpuLost, NvmlError::Unknown, NvmlError::Timeout] {
            assert_eq!(reported_mps_clients(Err(error)), None, "the earlier answer holds");
        }
        assert_eq!(reported_mps_clients(Ok([7].into())), Some(MpsClients::Listed([7].into())));
    }

    #[test]
    fn a_lost_gpu_keeps_its_number_and_an_error_that_may_pass_fails_the_start() {
        let gpu = |place| Gpu::new(&format!("GPU-{place}0000000-0000-0000-0000-000000000000"), "H", 1);
        let fails = |error: NvmlError| Err(error.into());
        for error in [NvmlError::GpuLost, NvmlError::ResetRequired, NvmlError::Unknown] {
            let gpus = numbered(vec![gpu(1), fails(error), gpu(3)]).unwrap();
            assert_eq!(gpus, [gpu(1).unwrap(), Gpu::lost(1), gpu(3).unwrap()]);
        }
        for error in [NvmlError::InUse, NvmlError::NoPermission] {
            assert!(matches!(numbered(vec![gpu(1), fails(error)]), Err(GpuError::Nvml(_))));
        }
        let lost = || fails(NvmlError::GpuLost);
        assert!(matches!(numbered(vec![lost(), lost()]), Err(GpuError::Nvml(_))), "a daemon has no work");
    }
}
