//! The topology of the host's GPUs, as NVML and the kernel tell it.

use super::Library;
use deepres_policy::placement::{Fabric, Gpu, Level, NvLink, P2p, Remote, Topology, Wire};
use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus, TopologyLevel};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings as sys;
use std::collections::BTreeMap;
use std::ffi::c_ulong;
use std::path::Path;

/// The folder in which the kernel describes the NUMA nodes.
const NODES: &str = "/sys/devices/system/node";
/// The folder in which the kernel has a link to each device on PCI Express.
const PCI_DEVICES: &str = "/sys/bus/pci/devices";
/// Most NUMA nodes of which NVML is asked. Linux has 1,024 at most.
const MOST_NODES: usize = 1024;

/// Reads the topology of the GPUs with these UUIDs. A part that NVML does not tell is left out. A
/// GPU that NVML does not know is far from all others.
pub fn read(library: &Library, uuids: &[String]) -> Topology {
    let (nvml, raw) = (&library.nvml, &library.raw);
    let devices: Vec<Option<Device<'_>>> =
        uuids.iter().map(|uuid| nvml.device_by_uuid(uuid.as_str()).ok()).collect();
    let buses: Vec<Option<String>> =
        devices.iter().map(|device| Some(device.as_ref()?.pci_info().ok()?.bus_id)).collect();
    let gpu = |device: &Device<'_>| Gpu {
        links: links(device, raw, &buses),
        numa_node: numa_node(device),
        fabric: fabric(device, raw),
    };
    let gpus = devices.iter().map(|device| device.as_ref().map(&gpu).unwrap_or_default()).collect();
    let wire = |a: usize, b: usize| match (&devices[a], &devices[b]) {
        (Some(one), Some(other)) => wire(nvml, one, other),
        _ => Wire { level: Level::System, p2p: None },
    };
    Topology::new(gpus, wire, &distances(Path::new(NODES)))
}

/// Returns the active NVLinks of a GPU.
fn links(device: &Device<'_>, raw: &sys::NvmlLib, buses: &[Option<String>]) -> Vec<NvLink> {
    let link = |number| {
        let link = device.link_wrapper_for(number);
        if !link.is_active().ok()? {
            return None;
        }
        let bus = link.remote_pci_info().ok().map(|remote| remote.bus_id);
        let peer = buses.iter().position(|own| own.is_some() && *own == bus);
        let remote = match peer {
            Some(peer) => Remote::Gpu(peer),
            // NVML gives the address of the switch. A GPU that this process may not see has an
            // address that is not in the list.
            None if is_switch(device, raw, number) => Remote::Switch,
            None => Remote::Other,
        };
        let generation = link.version().ok().and_then(|version| u8::try_from(version).ok()).unwrap_or(1);
        Some(NvLink { generation, remote })
    };
    (0..sys::NVML_NVLINK_MAX_LINKS).filter_map(link).collect()
}

/// Returns whether an NVLink leads to an NVSwitch.
fn is_switch(device: &Device<'_>, raw: &sys::NvmlLib, link: u32) -> bool {
    let mut kind = sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
    let Ok(ask) = raw.nvmlDeviceGetNvLinkRemoteDeviceType.as_ref() else { return false };
    // SAFETY: the handle is of a living device, and the result has the type of NVML's reference.
    let code = unsafe { ask(device.handle(), link, &mut kind) };
    code == sys::nvmlReturn_enum_NVML_SUCCESS
        && kind == sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH
}

/// Returns the NVLink fabric that a GPU has joined.
fn fabric(device: &Device<'_>, raw: &sys::NvmlLib) -> Option<Fabric> {
    /// The version of the struct stands in the highest byte of its version word.
    const VERSION: u32 = 2 << 24;
    let mut info = sys::nvmlGpuFabricInfoV_t {
        version: size_of::<sys::nvmlGpuFabricInfoV_t>() as u32 | VERSION,
        clusterUuid: [0; 16],
        status: sys::nvmlReturn_enum_NVML_SUCCESS,
        cliqueId: 0,
        state: sys::NVML_GPU_FABRIC_STATE_NOT_SUPPORTED as sys::nvmlGpuFabricState_t,
        healthMask: 0,
    };
    let ask = raw.nvmlDeviceGetGpuFabricInfoV.as_ref().ok()?;
    // SAFETY: the handle is of a living device, and the struct names its own size and version.
    let code = unsafe { ask(device.handle(), &mut info) };
    let is_joined = code == sys::nvmlReturn_enum_NVML_SUCCESS
        && info.status == sys::nvmlReturn_enum_NVML_SUCCESS
        && u32::from(info.state) == sys::NVML_GPU_FABRIC_STATE_COMPLETED;
    is_joined.then_some(Fabric { cluster: info.clusterUuid, clique: info.cliqueId })
}

/// Returns the NUMA node of a GPU, or `None` if the GPU is near several nodes.
fn numa_node(device: &Device<'_>) -> Option<u32> {
    let words = MOST_NODES / c_ulong::BITS as usize;
    let nodes = device.memory_affinity(words, sys::NVML_AFFINITY_SCOPE_NODE).ok()?;
    let bits = |(word, bits): (usize, &c_ulong)| {
        let bits = *bits;
        (0..c_ulong::BITS)
            .filter(move |bit| bits >> bit & 1 == 1)
            .map(move |bit| word as u32 * c_ulong::BITS + bit)
    };
    let mut near = nodes.iter().enumerate().flat_map(bits);
    near.next().filter(|_| near.next().is_none())
}

/// Returns the root of the tree of PCI Express with the device at this address, which NVML writes
/// as `00000000:3B:00.0`.
pub fn pcie_root(address: &str) -> Option<String> {
    pcie_root_in(Path::new(PCI_DEVICES), address)
}

fn pcie_root_in(folder: &Path, address: &str) -> Option<String> {
    /// Digits of a domain in the kernel's form of an address.
    const DOMAIN_DIGITS: usize = 4;
    let (domain, rest) = address.split_once(':')?;
    let domain = domain.get(domain.len().checked_sub(DOMAIN_DIGITS)?..)?;
    // The link leads to …/devices/pci0000:00/…/0000:3b:00.0.
    let device = folder.join(format!("{domain}:{rest}").to_ascii_lowercase()).read_link().ok()?;
    let parts = device.iter().filter_map(|part| part.to_str());
    parts.map(str::to_owned).find(|part| part.starts_with("pci"))
}

/// Returns the connection of two GPUs apart from NVLinks. GPUs of which NVML knows no common
/// ancestor count as far apart.
fn wire(nvml: &Nvml, one: &Device<'_>, other: &Device<'_>) -> Wire {
    let level = match nvml.topology_common_ancestor(one, other) {
        Ok(TopologyLevel::Internal) => Level::Board,
        Ok(TopologyLevel::Single) => Level::Pix,
        Ok(TopologyLevel::Multiple) => Level::Pxb,
        Ok(TopologyLevel::HostBridge) => Level::Phb,
        Ok(TopologyLevel::Node) => Level::Node,
        Ok(TopologyLevel::System) | Err(_) => Level::System,
    };
    let status = |kind| Some(p2p(one.p2p_status(other, kind).ok()?));
    // A job reads and writes. If NVML refuses one of them, the refusal counts.
    let p2p = [P2pCapabilitiesIndex::Read, P2pCapabilitiesIndex::Write].map(status);
    let refusal = p2p.into_iter().flatten().find(|status| *status != P2p::Ok);
    Wire { level, p2p: refusal.or(p2p[0]).or(p2p[1]) }
}

fn p2p(status: P2pStatus) -> P2p {
    match status {
        P2pStatus::Ok => P2p::Ok,
        P2pStatus::ChipsetNotSupported => P2p::Chipset,
        P2pStatus::GpuNotSupported => P2p::Gpu,
        P2pStatus::IohTopologyNotSupported => P2p::Topology,
        P2pStatus::DisabledByRegkey => P2p::Disabled,
        P2pStatus::NotSupported => P2p::NotSupported,
        P2pStatus::Unknown => P2p::Unknown,
    }
}

/// Returns the distances of the NUMA nodes that the kernel describes in this folder. The file
/// `distance` of a node has the distances to all nodes, in the order of their numbers.
fn distances(folder: &Path) -> BTreeMap<(u32, u32), u32> {
    let number = |name: &str| name.strip_prefix("node")?.parse::<u32>().ok();
    let entries = folder.read_dir().into_iter().flatten().flatten();
    let mut nodes: Vec<u32> = entries.filter_map(|entry| number(entry.file_name().to_str()?)).collect();
    nodes.sort_unstable();
    let mut distances = BTreeMap::new();
    for one in &nodes {
        let text = std::fs::read_to_string(folder.join(format!("node{one}/distance"))).unwrap_or_default();
        let row = text.split_whitespace().map_while(|distance| distance.parse().ok());
        distances.extend(
            nodes
                .iter()
                .zip(row)
                .filter(|(other, _)| one < *other)
                .map(|(other, distance)| ((*one, *other), distance)),
        );
    }
    distances
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_of_a_device_stands_in_the_kernels_path_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let target = "../../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0";
        std::os::unix::fs::symlink(target, folder.path().join("0000:3b:00.0")).unwrap();
        let root = |address| pcie_root_in(folder.path(), address);
        assert_eq!(root("00000000:3B:00.0").as_deref(), Some("pci0000:3a"));
        assert_eq!(root("0000:3b:00.0").as_deref(), Some("pci0000:3a"));
        for other in ["00000000:3C:00.0", "", "3b", ":"] {
            assert_eq!(root(other), None, "{other}");
        }
    }

    #[test]
    fn distances_are_in_the_order_of_the_nodes() {
        let folder = tempfile::tempdir().unwrap();
        for (node, row) in [("node0", "10 12 32\n"), ("node2", "12 10 28\n"), ("node10", "32 28 10\n")] {
            std::fs::create_dir(folder.path().join(node)).unwrap();
            std::fs::write(folder.path().join(node).join("distance"), row).unwrap();
        }
        std::fs::create_dir(folder.path().join("power")).unwrap();
        let expected = BTreeMap::from([((0, 2), 12), ((0, 10), 32), ((2, 10), 28)]);
        assert_eq!(distances(folder.path()), expected);
        assert_eq!(distances(Path::new("/nonexistent")), BTreeMap::new());
    }
}
