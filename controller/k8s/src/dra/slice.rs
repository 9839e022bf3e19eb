//! The ResourceSlice of a node: a device for each GPU, of which several claims can have a part;
//! pure.

use super::{DRIVER, quantity};
use deepres_model::admin::{GpuPlace, GpuStatus};
use deepres_policy::shares::SHARES;
use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, Device, DeviceAttribute, DeviceCapacity, ResourcePool,
    ResourceSlice, ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::collections::{BTreeMap, BTreeSet};

/// The capacity of shares, [`SHARES`] a GPU.
pub const SHARE: &str = "share";
/// The capacity of memory, in whole mebibytes.
pub const MEMORY: &str = "memory";
/// The attribute with the root of the tree of PCI Express, under the name that all drivers use.
const PCIE_ROOT: &str = "resource.kubernetes.io/pcieRoot";
/// The most bytes of an attribute's text.
const TEXT_BYTES: usize = 64;
/// The beginnings of the UUID and of the name of the device, for a GPU and for a MIG device.
const PREFIXES: [(&str, &str); 2] = [("GPU-", "gpu-"), ("MIG-", "mig-")];
const MEBIBYTE: u64 = 1 << 20;

/// Returns the UUID of the GPU whose device has this name; `None` if the name is no GPU's.
pub fn uuid_of(name: &str) -> Option<String> {
    PREFIXES.iter().find_map(|(uuid, own)| Some(format!("{uuid}{}", name.strip_prefix(own)?)))
}

/// Returns the name of a GPU's device. The name is the UUID, because a claim must not change its
/// GPU when the numbers of GPUs change.
fn name_of(uuid: &str) -> Option<String> {
    let is_in_a_label = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-');
    let (name, rest) = PREFIXES.iter().find_map(|(own, name)| Some((name, uuid.strip_prefix(own)?)))?;
    rest.bytes().all(is_in_a_label).then(|| format!("{name}{rest}"))
}

/// Returns the devices of the GPUs that are `open`, in the order of the GPUs' numbers.
pub fn devices(gpus: &[GpuStatus], places: &[GpuPlace], open: &BTreeSet<String>) -> Vec<Device> {
    let open = gpus.iter().filter(|gpu| open.contains(&gpu.uuid));
    open.filter_map(|gpu| device(gpu, places.iter().find(|place| place.uuid == gpu.uuid))).collect()
}

fn device(gpu: &GpuStatus, place: Option<&GpuPlace>) -> Option<Device> {
    let text = |text: &str| {
        let end = (0..=TEXT_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
        let text = text[..end.unwrap_or_default()].to_owned();
        DeviceAttribute { string: Some(text), ..DeviceAttribute::default() }
    };
    let number = |int: i64| DeviceAttribute { int: Some(int), ..DeviceAttribute::default() };
    let mut attributes =
        BTreeMap::from([("uuid".to_owned(), text(&gpu.uuid)), ("productName".to_owned(), text(&gpu.name))]);
    let place = place.cloned().unwrap_or_default();
    let version = place.driver_version.as_deref().and_then(version);
    let known = [
        ("numaNode", place.numa_node.map(|node| number(node.into()))),
        ("nvlinkComponent", place.nvlink_component.map(|component| number(component as i64))),
        (PCIE_ROOT, place.pcie_root.as_deref().map(text)),
        (
            "driverVersion",
            version.map(|version| DeviceAttribute { version: Some(version), ..DeviceAttribute::default() }),
        ),
    ];
    attributes.extend(known.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    let memory = quantity::of_mebibytes(gpu.memory_bytes / MEBIBYTE);
    let capacity = BTreeMap::from([
        (SHARE.to_owned(), capacity("1", &SHARES.to_string())),
        (MEMORY.to_owned(), capacity("1Mi", &memory)),
    ]);
    Some(Device {
        name: name_of(&gpu.uuid)?,
        allow_multiple_allocations: Some(true),
        attributes: Some(attributes),
        capacity: Some(capacity),
        ..Device::default()
    })
}

/// Returns a capacity of which claims get multiples of `step`. A claim that does not name the
/// capacity gets all of it. So no other claim has a part of the same device without counting.
fn capacity(step: &str, all: &str) -> DeviceCapacity {
    let [step, all] = [step, all].map(|text| Quantity(text.to_owned()));
    let range = CapacityRequestPolicyRange { min: step.clone(), max: Some(all.clone()), step: Some(step) };
    let request_policy = CapacityRequestPolicy {
        default: Some(all.clone()),
        valid_range: Some(range),
        ..CapacityRequestPolicy::default()
    };
    DeviceCapacity { request_policy: Some(request_policy), value: all }
}

/// Returns a driver's version as a semantic version: `580.65.6` for `580.65.06`.
fn version(text: &str) -> Option<String> {
    const PARTS: usize = 3;
    let mut parts = text.split('.').map(|part| part.parse::<u64>().ok()).collect::<Option<Vec<_>>>()?;
    parts.resize(PARTS, 0);
    Some(parts.iter().map(u64::to_string).collect::<Vec<_>>().join("."))
}

/// Returns the name of a node's slice.
pub fn name(node: &str) -> String {
    format!("{node}-{DRIVER}")
}

/// Returns the content of a node's slice. A node has one slice, and a pool of its own.
pub fn spec(node: &str, devices: &[Device], generation: i64) -> ResourceSliceSpec {
    ResourceSliceSpec {
        driver: DRIVER.to_owned(),
        node_name: Some(node.to_owned()),
        pool: ResourcePool { name: node.to_owned(), generation, resource_slice_count: 1 },
        devices: Some(devices.to_vec()),
        ..ResourceSliceSpec::default()
    }
}

/// Returns a node's slice, which goes with the node. `version` is the version of the slice that it
/// replaces.
pub fn slice(node: &str, node_uid: &str, spec: ResourceSliceSpec, version: Option<String>) -> ResourceSlice {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.to_owned(),
        uid: node_uid.to_owned(),
        controller: Some(true),
        ..OwnerReference::default()
    };
    let metadata = ObjectMeta {
        name: Some(name(node)),
        owner_references: Some(vec![owner]),
        resource_version: version,
        ..ObjectMeta::default()
    };
    ResourceSlice { metadata, spec }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_device_shows_share_memory_and_place_of_its_gpu() {
        let uuid = "GPU-0000002a-0000-0000-0000-000000000001".to_owned();
        let gpu = GpuStatus {
            uuid: uuid.clone(),
            name: "NVIDIA H100".to_owned(),
            memory_bytes: (81_559 << 20) + 5,
            ..GpuStatus::default()
        };
        let other = GpuStatus { uuid: "GPU-0000002b".to_owned(), ..gpu.clone() };
        let place = GpuPlace {
            uuid: uuid.clone(),
            numa_node: Some(1),
            pcie_root: Some("pci0000:3a".to_owned()),
            nvlink_component: Some(0),
            driver_version: Some("580.65.06".to_owned()),
        };
        let open = BTreeSet::from([uuid.clone()]);
        let devices = devices(&[other, gpu], &[GpuPlace::default(), place], &open);
        let policy = |step: &str, all: &str| {
            json!({"value": all, "requestPolicy": {"default": all,
                "validRange": {"min": step, "max": all, "step": step}}})
        };
        let expected = json!([{
            "name": "gpu-0000002a-0000-0000-0000-000000000001",
            "allowMultipleAllocations": true,
            "attributes": {
                "uuid": {"string": uuid},
                "productName": {"string": "NVIDIA H100"},
                "driverVersion": {"version": "580.65.6"},
                "numaNode": {"int": 1},
                "nvlinkComponent": {"int": 0},
                "resource.kubernetes.io/pcieRoot": {"string": "pci0000:3a"},
            },
            "capacity": {"share": policy("1", "100"), "memory": policy("1Mi", "81559Mi")},
        }]);
        assert_eq!(serde_json::to_value(&devices).unwrap(), expected);
        assert_eq!(uuid_of(&devices[0].name), Some(uuid));
    }

    #[test]
    fn a_gpu_of_which_little_is_known_has_fewer_attributes() {
        let gpu = GpuStatus { uuid: "GPU-1".to_owned(), name: "ä".repeat(40), ..GpuStatus::default() };
        let open = ["GPU-1", "MIG-2", "MIG-GPU-3/1/0"].map(str::to_owned);
        let gpus = open.clone().map(|uuid| GpuStatus { uuid, ..gpu.clone() });
        let devices = devices(&gpus, &[], &BTreeSet::from(open));
        let [device, mig] = &devices[..] else { panic!("{devices:?}") };
        assert_eq!((mig.name.as_str(), uuid_of(&mig.name).as_deref()), ("mig-2", Some("MIG-2")));
        let attributes = device.attributes.clone().unwrap();
        assert_eq!(attributes.keys().collect::<Vec<_>>(), ["productName", "uuid"]);
        assert_eq!(attributes["productName"].string.as_deref(), Some("ä".repeat(32).as_str()));
    }

    #[test]
    fn a_version_of_the_driver_becomes_a_semantic_version() {
        for (text, expected) in [("570.124.06", Some("570.124.6")), ("535.54", Some("535.54.0")), ("x", None)]
        {
            assert_eq!(version(text).as_deref(), expected, "{text}");
        }
    }
}
