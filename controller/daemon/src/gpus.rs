//! The GPUs of this host, as NVML lists them, and the GPUs that the daemon manages.

use crate::arbiter::{Arbiter, Report, Snapshot};
use crate::faults::Faults;
use crate::nvml;
use crate::registry::Order;
use crate::tenant::Tenant;
use deepres_abi::gpu_name::GpuName;
use deepres_abi::wire::Uuid;
use deepres_model::admin::GpuPlace;
use deepres_policy::placement::{GpuSet, Tier, Topology};
use nvml_wrapper::error::NvmlError;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// The longest wait for an arbiter's answer. An arbiter answers within milliseconds. If no answer
/// comes, the arbiter's thread has ended.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// A word in the name of every simulated GPU.
const SIMULATED: &str = "simulated";
/// The name of a GPU of which NVML told nothing.
const LOST: &str = "lost GPU";
/// The UUID of a lost GPU, but for its number.
const LOST_UUID: u128 = 0xffff_ffff << 96;

/// The number of processes that may have contexts on a GPU: its compute mode (`nvidia-smi -c`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComputeMode {
    /// Any number of processes.
    Default,
    /// One process. An MPS server with all its clients counts as one process.
    ExclusiveProcess,
    /// No process.
    Prohibited,
}

impl ComputeMode {
    /// Returns the mode's name, as `nvidia-smi -c` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "DEFAULT",
            Self::ExclusiveProcess => "EXCLUSIVE_PROCESS",
            Self::Prohibited => "PROHIBITED",
        }
    }
}

/// The GPUs that processes cannot share because of their compute modes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed {
    /// The GPUs and their modes, as a sentence without its end.
    pub found: String,
    /// The remedy.
    pub remedy: String,
    /// Whether processes cannot share any GPU.
    pub are_all: bool,
}

/// A GPU of this host, as NVML describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// The UUID as text, `GPU-…`, or `MIG-…` for a MIG device.
    pub uuid_text: String,
    /// The UUID.
    pub uuid: Uuid,
    /// Whether this is a MIG device, a part of a GPU.
    pub is_mig: bool,
    /// The name.
    pub name: String,
    /// Whether the GPU is simulated.
    pub simulated: bool,
    /// The GPU's memory, bytes.
    pub memory_bytes: u64,
    /// The number of the GPU's device file, as in `/dev/nvidia0`; `None` for a MIG device, or if
    /// NVML does not tell it.
    pub minor: Option<u32>,
    /// The root of the GPU's tree of PCI Express, as the kernel names it: `pci0000:00`.
    pub pcie_root: Option<String>,
    /// The version of the driver.
    pub driver_version: Option<String>,
    /// The compute mode. For a MIG device: the mode of its GPU. [`ComputeMode::Default`] if NVML
    /// does not tell it.
    pub compute_mode: ComputeMode,
    /// Whether NVML told nothing of the GPU. No job can use the GPU, which only keeps its number.
    pub is_lost: bool,
}

/// The reason for which the daemon has no GPUs to manage.
#[derive(Debug, Clone, thiserror::Error)]
pub enum GpuError {
    /// NVML is missing.
    #[error("cannot load {library}, so no GPU can be found ({0}); is the NVIDIA driver installed?", library = nvml::LIBRARY)]
    NoLibrary(Arc<NvmlError>),
    /// NVML is there, but reports an error.
    #[error("NVML fails: {0}; does `nvidia-smi` work?")]
    Nvml(#[source] Arc<NvmlError>),
    /// NVML did not answer within this time.
    #[error("NVML does not answer within {0:?}; does `nvidia-smi` work?")]
    Silent(Duration),
    /// NVML lists no GPU.
    #[error("this machine has no GPU")]
    None,
    /// NVML lists a GPU with a malformed UUID.
    #[error("NVML reports a GPU with the malformed UUID `{0}`")]
    Uuid(String),
}

impl From<NvmlError> for GpuError {
    fn from(error: NvmlError) -> Self {
        Self::Nvml(Arc::new(error))
    }
}

impl Gpu {
    /// Returns a GPU with this UUID.
    ///
    /// # Errors
    /// [`GpuError::Uuid`] if the UUID is malformed.
    pub fn new(uuid_text: &str, name: &str, memory_bytes: u64) -> Result<Self, GpuError> {
        let malformed = || GpuError::Uuid(uuid_text.to_owned());
        let GpuName { uuid, is_mig } = GpuName::parse(uuid_text).ok_or_else(malformed)?;
        Ok(Self {
            uuid_text: uuid_text.to_owned(),
            uuid,
            is_mig,
            name: name.to_owned(),
            simulated: name.to_ascii_lowercase().contains(SIMULATED),
            memory_bytes,
            minor: None,
            pcie_root: None,
            driver_version: None,
            compute_mode: ComputeMode::Default,
            is_lost: false,
        })
    }

    /// Returns the stand-in for a GPU of which NVML told nothing. Its UUID is no GPU's, and not
    /// zero, because a UUID of zeros stands for no GPU.
    pub fn lost(number: usize) -> Self {
        let uuid = (LOST_UUID | number as u128).to_be_bytes();
        Self {
            uuid_text: GpuName { uuid, is_mig: false }.to_string(),
            uuid,
            is_mig: false,
            name: LOST.to_owned(),
            simulated: false,
            memory_bytes: 0,
            minor: None,
            pcie_root: None,
            driver_version: None,
            compute_mode: ComputeMode::Default,
            is_lost: true,
        }
    }

    /// Returns all GPUs of the host, in NVML's order, but at most as many as pages have slots. A
    /// GPU that the driver lost, or that needs a reset, is [lost](Self::lost). Waits for NVML for a
    /// limited time.
    ///
    /// # Errors
    /// [`GpuError`], which names the missing part. NVML fails for another reason, or all GPUs are
    /// lost.
    pub fn all() -> Result<Vec<Self>, GpuError> {
        nvml::gpus()
    }

    /// Returns the topology of these GPUs of the host, in their order. Waits for NVML for a limited
    /// time.
    ///
    /// # Errors
    /// [`GpuError`], which names the missing part.
    pub fn topology(gpus: &[Self]) -> Result<Topology, GpuError> {
        nvml::topology(gpus.iter().map(|gpu| gpu.uuid_text.clone()).collect())
    }

    /// Returns whether NVML tells the memory of processes, by the places of GPUs in `gpus`. Waits
    /// for NVML for a limited time. GPUs for which nothing shows it are left out.
    pub fn tells_process_memory(gpus: &[Self]) -> BTreeMap<usize, bool> {
        nvml::tells_process_memory(gpus.iter().map(|gpu| gpu.uuid_text.clone()).collect())
    }

    /// Returns the places in `gpus` of the GPUs on which NVML does not tell the clients of MPS.
    /// Waits for NVML for a limited time.
    pub fn without_mps_clients(gpus: &[Self]) -> Vec<usize> {
        nvml::without_mps_clients(gpus.iter().map(|gpu| gpu.uuid_text.clone()).collect())
    }

    /// Returns those of all GPUs of the host, in their order, that processes cannot share because
    /// of their compute modes; `None` if there are none. `has_mps` says whether an MPS control
    /// daemon runs, whose clients share a GPU in exclusive mode.
    pub fn closed<'a>(gpus: impl IntoIterator<Item = &'a Self>, has_mps: bool) -> Option<Closed> {
        let gpus: Vec<&Self> = gpus.into_iter().collect();
        let of = |mode: ComputeMode| -> Vec<usize> {
            let is_of = |(_, gpu): &(usize, &&Self)| gpu.compute_mode == mode;
            gpus.iter().enumerate().filter(is_of).map(|(number, _)| number).collect()
        };
        let exclusive = if has_mps { Vec::new() } else { of(ComputeMode::ExclusiveProcess) };
        let prohibited = of(ComputeMode::Prohibited);
        let closed = [exclusive.as_slice(), prohibited.as_slice()].concat();
        let [first, others @ ..] = closed.as_slice() else { return None };
        let mut found = Vec::new();
        if !exclusive.is_empty() {
            let mode = are_in(&exclusive, ComputeMode::ExclusiveProcess);
            found.push(format!("{mode} and no MPS control daemon runs: only one process can use the GPU"));
        }
        if !prohibited.is_empty() {
            let mode = are_in(&prohibited, ComputeMode::Prohibited);
            found.push(format!("{mode}: no process can use the GPU"));
        }
        // The command numbers GPUs, and has no numbers of MIG devices.
        let has_parts = gpus.iter().any(|gpu| gpu.is_mig);
        let command = match others {
            [] if !has_parts => format!("`nvidia-smi -i {first} -c DEFAULT`"),
            _ => "`nvidia-smi -c DEFAULT`, which sets all GPUs".to_owned(),
        };
        let or_mps = if exclusive.is_empty() { "" } else { ", or set `mps = \"start\"` in deepres.toml" };
        Some(Closed {
            found: found.join("; "),
            remedy: format!("run {command}{or_mps}"),
            are_all: closed.len() == gpus.iter().filter(|gpu| !gpu.is_lost).count(),
        })
    }

    /// Returns the places of GPUs in the order of their device files. Slurm numbers the GPUs of a
    /// node in this order. MIG devices are left out, because `deepres slurm gres-conf` gives Slurm
    /// none.
    pub fn by_device_file<'a>(gpus: impl IntoIterator<Item = &'a Self>) -> Vec<usize> {
        let whole = gpus.into_iter().enumerate().filter(|(_, gpu)| !gpu.is_mig);
        by_minor(whole.map(|(place, gpu)| (place, gpu.minor)))
    }
}

/// The GPUs that the daemon manages, by their numbers, each with its arbiter, their topology and
/// their faults.
#[derive(Debug, Default)]
pub struct Gpus(Vec<(Gpu, Arbiter)>, Option<Topology>, Faults);

impl Gpus {
    /// Adds a GPU with its arbiter.
    pub fn add(&mut self, gpu: Gpu, arbiter: Arbiter) {
        self.0.push((gpu, arbiter));
    }

    /// Sets the topology of all GPUs.
    pub fn set_topology(&mut self, topology: Option<Topology>) {
        self.1 = topology;
    }

    /// Returns the topology. If it is not known, all GPUs are far from each other.
    pub fn topology(&self) -> Topology {
        self.1.clone().unwrap_or_else(|| Topology::unknown(self.count()))
    }

    /// Returns where each GPU is in the machine.
    pub fn places(&self) -> Vec<GpuPlace> {
        places(self.iter(), &self.topology())
    }

    /// Warns of the GPUs that processes cannot share because of their compute modes.
    pub fn warn_of_closed(&self, has_mps: bool) {
        if let Some(Closed { found, remedy, .. }) = Gpu::closed(self.iter(), has_mps) {
            tracing::warn!("{found}; {remedy}");
        }
    }

    /// Sets the record of the faults of all GPUs.
    pub fn set_faults(&mut self, faults: Faults) {
        self.2 = faults;
    }

    /// Returns the record of the faults of all GPUs.
    pub fn faults(&self) -> &Faults {
        &self.2
    }

    /// Returns the numbers of the GPUs without a fault.
    pub fn well(&self) -> GpuSet {
        let faults = self.2.all();
        let is_well = |(_, gpu): &(usize, &Gpu)| !faults.contains_key(&gpu.uuid_text);
        self.iter().enumerate().filter(is_well).map(|(number, _)| number).collect()
    }

    /// Returns the number of GPUs.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the numbers of all GPUs.
    pub fn numbers(&self) -> Range<usize> {
        0..self.count()
    }

    /// Returns the GPUs in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &Gpu> {
        self.0.iter().map(|(gpu, _)| gpu)
    }

    /// Returns the UUIDs of these GPUs as text, `GPU-…`.
    pub fn uuids_of(&self, gpus: GpuSet) -> impl Iterator<Item = &str> {
        let chosen = self.iter().enumerate().filter(move |(number, _)| gpus.contains(*number));
        chosen.map(|(_, gpu)| gpu.uuid_text.as_str())
    }

    /// Returns the number of the GPU with this UUID; `None` if the daemon does not manage the GPU.
    pub fn number_of(&self, uuid: &Uuid) -> Option<usize> {
        self.iter().position(|gpu| gpu.uuid == *uuid)
    }

    /// Returns the number of the GPU with this UUID as text, `GPU-…`.
    pub fn number_named(&self, uuid: &str) -> Option<usize> {
        self.iter().position(|gpu| gpu.uuid_text == uuid)
    }

    /// Returns the numbers of the GPUs that Slurm knows, in the order of their device files.
    pub fn by_device_file(&self) -> Vec<usize> {
        Gpu::by_device_file(self.iter())
    }

    /// Returns the UUIDs as text, `GPU-…`, in the order of the GPUs' numbers.
    pub fn uuids(&self) -> Vec<String> {
        self.iter().map(|gpu| gpu.uuid_text.clone()).collect()
    }

    /// Returns a GPU's memory, bytes; 0 if there is no such GPU.
    pub fn memory_bytes(&self, gpu: usize) -> u64 {
        self.0.get(gpu).map_or(0, |(gpu, _)| gpu.memory_bytes)
    }

    /// Returns a GPU's arbiter.
    pub fn arbiter(&self, gpu: usize) -> Option<&Arbiter> {
        self.0.get(gpu).map(|(_, arbiter)| arbiter)
    }

    /// Returns all arbiters in the order of the GPUs' numbers.
    pub fn arbiters(&self) -> impl Iterator<Item = &Arbiter> {
        self.0.iter().map(|(_, arbiter)| arbiter)
    }

    /// Tells a GPU's arbiter the present wishes, limits and pauses of a tenant. Returns the order;
    /// `None` if there is no such GPU.
    pub fn tell(&self, gpu: usize, tenant: &Tenant) -> Option<Order> {
        Some(self.arbiter(gpu)?.set_tenant(tenant.seat_on(gpu)))
    }

    /// Asks every arbiter for its report.
    pub fn reports(&self) -> Vec<oneshot::Receiver<Report>> {
        self.arbiters().map(Arbiter::report).collect()
    }

    /// Asks every arbiter for its part of the state to save.
    pub fn snapshots(&self) -> Vec<oneshot::Receiver<Snapshot>> {
        self.arbiters().map(Arbiter::snapshot).collect()
    }

    /// Returns whether any tenant wanted a GPU since the last call.
    pub fn have_stirred(&self) -> bool {
        // The fold asks every arbiter, because each resets its own mark.
        self.arbiters().fold(false, |stirred, arbiter| stirred | arbiter.has_stirred())
    }
}

/// Says that each of these GPUs is in a mode.
fn are_in(gpus: &[usize], mode: ComputeMode) -> String {
    let mode = mode.name();
    match gpus {
        [gpu] => format!("GPU {gpu} is in {mode} mode"),
        _ => {
            let numbers: Vec<String> = gpus.iter().map(usize::to_string).collect();
            format!("each of the GPUs {} is in {mode} mode", numbers.join(", "))
        }
    }
}

/// Waits for the answers of all arbiters. Returns `None` if one of the arbiters does not answer.
pub async fn answers<T>(pending: Vec<oneshot::Receiver<T>>) -> Option<Vec<T>> {
    let until = Instant::now() + ANSWER_LIMIT;
    let mut answers = Vec::new();
    for answer in pending {
        answers.push(timeout_at(until, answer).await.ok().and_then(Result::ok));
    }
    answers.into_iter().collect()
}

/// Returns the numbers of these GPUs in the order of their device files. A GPU without a known
/// device file has the first that no other GPU has. So a lost GPU moves no other.
fn by_minor(gpus: impl Iterator<Item = (usize, Option<u32>)>) -> Vec<usize> {
    let gpus: Vec<_> = gpus.collect();
    let mut free = (0..).filter(|minor| !gpus.iter().any(|(_, own)| *own == Some(*minor)));
    let mut files: Vec<(Option<u32>, usize)> =
        gpus.iter().map(|(gpu, minor)| (minor.or_else(|| free.next()), *gpu)).collect();
    files.sort_unstable();
    files.into_iter().map(|(_, gpu)| gpu).collect()
}

/// Returns where each of the GPUs is in a machine of this topology.
fn places<'a>(gpus: impl Iterator<Item = &'a Gpu>, topology: &Topology) -> Vec<GpuPlace> {
    let components = topology.components(Tier::NvLink, GpuSet::first(topology.len()));
    let component = |gpu: usize| components.iter().position(|part| part.len() > 1 && part.contains(gpu));
    let place = |(number, gpu): (usize, &Gpu)| GpuPlace {
        uuid: gpu.uuid_text.clone(),
        numa_node: topology.gpus().get(number).and_then(|facts| facts.numa_node),
        pcie_root: gpu.pcie_root.clone(),
        nvlink_component: component(number),
        driver_version: gpu.driver_version.clone(),
    };
    gpus.enumerate().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_policy::placement::{self, NvLink, Remote};
    use std::collections::BTreeMap;

    #[test]
    fn a_uuid_is_read_in_the_order_of_its_digits() {
        let gpu = Gpu::new("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", "Simulated H200", 1).unwrap();
        assert_eq!(gpu.uuid, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        assert!(gpu.simulated);
        let part = Gpu::new("MIG-00010203-0405-0607-0809-0a0b0c0d0e0f", "H200 MIG 1g.18gb", 1).unwrap();
        assert_eq!((part.uuid, part.is_mig, gpu.is_mig), (gpu.uuid, true, false));
    }

    #[test]
    fn gpus_that_processes_cannot_share_are_told_with_the_remedy() {
        use ComputeMode::{Default, ExclusiveProcess, Prohibited};
        let gpus = |modes: &[ComputeMode]| -> Vec<Gpu> {
            let gpu = |(number, mode): (usize, &ComputeMode)| {
                let uuid = format!("GPU-{number}0000000-0000-0000-0000-000000000000");
                Gpu { compute_mode: *mode, ..Gpu::new(&uuid, "H", 1).unwrap() }
            };
            modes.iter().enumerate().map(gpu).collect()
        };
        let told = |modes: &[ComputeMode], has_mps| Gpu::closed(&gpus(modes), has_mps);
        assert_eq!(told(&[Default, Default], false), None);
        assert_eq!(told(&[ExclusiveProcess], true), None);
        let one = told(&[ExclusiveProcess, Default], false).unwrap();
        let found = "GPU 0 is in EXCLUSIVE_PROCESS mode and no MPS control daemon runs: only one process can use the GPU";
        assert_eq!(one.found, found);
        let remedy = "run `nvidia-smi -i 0 -c DEFAULT`, or set `mps = \"start\"` in deepres.toml";
        assert_eq!((one.remedy.as_str(), one.are_all), (remedy, false));
        let mixed = told(&[Prohibited, ExclusiveProcess, Prohibited], false).unwrap();
        let prohibited = "each of the GPUs 0, 2 is in PROHIBITED mode: no process can use the GPU";
        assert!(mixed.found.ends_with(&format!("; {prohibited}")), "{}", mixed.found);
        assert!(mixed.are_all && mixed.remedy.contains("`nvidia-smi -c DEFAULT`"), "{}", mixed.remedy);
        let without = told(&[Default, Prohibited], true).unwrap();
        assert_eq!(without.remedy, "run `nvidia-smi -i 1 -c DEFAULT`");
        let mut parts = gpus(&[ExclusiveProcess]);
        parts[0].is_mig = true;
        let parts = Gpu::closed(&parts, false).unwrap();
        assert!(parts.remedy.contains("`nvidia-smi -c DEFAULT`"), "{}", parts.remedy);
    }

    #[test]
    fn a_lost_gpu_has_a_uuid_and_a_place_among_the_device_files() {
        let lost = Gpu::lost(11);
        assert_eq!(Gpu::new(&lost.uuid_text, "H", 1).unwrap().uuid, lost.uuid);
        assert_ne!(Gpu::lost(0).uuid, Uuid::default());
        let order = |minors: &[Option<u32>]| by_minor(minors.iter().copied().enumerate());
        assert_eq!(order(&[Some(3), Some(2), None, Some(0)]), [3, 2, 1, 0]);
        assert_eq!(order(&[Some(0), None, Some(1), None]), [0, 2, 1, 3]);
        assert_eq!(order(&[None, None]), [0, 1]);
    }

    #[test]
    fn a_place_names_numa_node_and_nvlink_component_of_each_gpu() {
        let link = |peer| NvLink { generation: 4, remote: Remote::Gpu(peer) };
        let facts = |numa_node, links: &[usize]| placement::Gpu {
            links: links.iter().map(|peer| link(*peer)).collect(),
            numa_node,
            fabric: None,
        };
        let gpus = [facts(Some(0), &[2]), facts(None, &[]), facts(Some(1), &[0])];
        let far = |_, _| placement::Wire { level: placement::Level::System, p2p: None };
        let topology = Topology::new(gpus.to_vec(), far, &BTreeMap::new());
        let own = |number| Gpu { pcie_root: Some(format!("pci0000:0{number}")), ..Gpu::lost(number) };
        let own: Vec<Gpu> = (0..3).map(own).collect();
        let places = places(own.iter(), &topology);
        let said = places.iter().map(|place| (place.numa_node, place.nvlink_component));
        assert_eq!(said.collect::<Vec<_>>(), [(Some(0), Some(0)), (None, None), (Some(1), Some(0))]);
        assert_eq!((&places[2].uuid, &places[2].pcie_root), (&own[2].uuid_text, &own[2].pcie_root));
    }

    #[test]
    fn a_text_that_is_no_uuid_is_refused() {
        assert!(matches!(Gpu::new("GPU-", "x", 1), Err(GpuError::Uuid(text)) if text == "GPU-"));
    }
}
