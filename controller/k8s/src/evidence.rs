//! The kubelet's word on which containers have which devices.
//!
//! PodResources lists the containers of all pods that are not over, with their names, but no init
//! containers. The kubelet's checkpoint lists init containers too, and lasts over the kubelet's
//! restart, when PodResources is empty for a time. The checkpoint lags: the kubelet writes it when
//! a container gets devices, and when a plugin sends a list. So a container counts while the
//! checkpoint or PodResources has it.

use crate::api::ListPodResourcesResponse;
use deepres_model::allocation::PodContainer;
use deepres_policy::shares::{GPU_RESOURCE, SHARE_RESOURCE};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// The name of the kubelet's checkpoint in the folder of device plugins.
pub const CHECKPOINT: &str = "kubelet_internal_checkpoint";

/// The devices of one container, of one resource; or one CDI device of its claims.
type Ids = BTreeSet<String>;

/// The containers with devices of this plugin, by their devices.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Evidence(BTreeMap<Ids, Holders>);

/// The containers with the same devices: an init container and a later container of its pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Holders {
    /// The containers in PodResources.
    listed: Vec<PodContainer>,
    /// The pod of each container in the checkpoint, by UID.
    in_checkpoint: Vec<String>,
}

#[derive(Deserialize)]
struct Checkpoint {
    #[serde(rename = "Data")]
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    #[serde(rename = "PodDeviceEntries")]
    entries: Option<Vec<Entry>>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "PodUID", default)]
    pod: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    /// The devices by NUMA node.
    #[serde(rename = "DeviceIDs")]
    ids: Option<BTreeMap<String, Vec<String>>>,
}

fn is_ours(resource: &str) -> bool {
    [SHARE_RESOURCE, GPU_RESOURCE].contains(&resource)
}

impl Evidence {
    /// Returns the containers in an answer of PodResources and in the text of a checkpoint. `None`
    /// stands for a kubelet that has written no checkpoint.
    ///
    /// # Errors
    /// The text is no checkpoint. The checkpoint can be damaged, and then says nothing about
    /// containers.
    pub fn new(
        listed: ListPodResourcesResponse,
        checkpoint: Option<&str>,
    ) -> Result<Self, serde_json::Error> {
        let mut all = BTreeMap::<Ids, Holders>::new();
        for pod in listed.pod_resources {
            for container in pod.containers {
                // The kubelet lists a resource once for each NUMA node.
                let mut by_resource = BTreeMap::<String, Ids>::new();
                for devices in container.devices.into_iter().filter(|devices| is_ours(&devices.resource_name))
                {
                    by_resource.entry(devices.resource_name).or_default().extend(devices.ids);
                }
                let of_claims = container.claims.into_iter().flat_map(|claim| claim.resources);
                let of_claims = of_claims.flat_map(|resource| resource.cdi_devices);
                let of_claims = of_claims.map(|device| Ids::from([device.name]));
                for ids in by_resource.into_values().chain(of_claims) {
                    all.entry(ids).or_default().listed.push(PodContainer {
                        namespace: pod.namespace.clone(),
                        pod: pod.name.clone(),
                        container: container.name.clone(),
                    });
                }
            }
        }
        let checkpoint: Option<Checkpoint> = checkpoint.map(serde_json::from_str).transpose()?;
        let entries = checkpoint.and_then(|checkpoint| checkpoint.data.entries).into_iter().flatten();
        for entry in entries.filter(|entry| is_ours(&entry.resource)) {
            let ids: Ids = entry.ids.into_iter().flat_map(BTreeMap::into_values).flatten().collect();
            all.entry(ids).or_default().in_checkpoint.push(entry.pod);
        }
        Ok(Self(all))
    }

    /// Returns the number of containers that have exactly these devices.
    pub fn count(&self, ids: &BTreeSet<String>) -> usize {
        self.0.get(ids).map_or(0, |holders| holders.listed.len().max(holders.in_checkpoint.len()))
    }

    /// Returns the number of containers that have exactly these devices, as PodResources says.
    pub fn count_listed(&self, ids: &BTreeSet<String>) -> usize {
        self.0.get(ids).map_or(0, |holders| holders.listed.len())
    }

    /// Returns the devices of the later containers of the pod whose init container has exactly
    /// these devices. Empty if no container with these devices is an init container for certain.
    pub fn after_init(&self, ids: &BTreeSet<String>) -> Vec<&BTreeSet<String>> {
        let Some(Holders { listed, in_checkpoint }) = self.0.get(ids) else { return Vec::new() };
        let [pod] = &in_checkpoint[..] else { return Vec::new() };
        if !listed.is_empty() {
            return Vec::new();
        }
        let is_later = |other: &Holders| !other.listed.is_empty() && other.in_checkpoint.contains(pod);
        self.0.iter().filter(|(_, other)| is_later(other)).map(|(ids, _)| ids).collect()
    }

    /// Returns the devices of all containers that run for certain: those that PodResources lists,
    /// and all others of their pods. The checkpoint still has pods that are over, but PodResources
    /// lists none of their containers.
    pub fn running_ids(&self) -> BTreeSet<String> {
        let listed = self.0.values().filter(|holders| !holders.listed.is_empty());
        let pods: BTreeSet<&String> = listed.flat_map(|holders| &holders.in_checkpoint).collect();
        let runs = |holders: &Holders| {
            !holders.listed.is_empty() || holders.in_checkpoint.iter().any(|pod| pods.contains(pod))
        };
        let running = self.0.iter().filter(|(_, holders)| runs(holders));
        running.flat_map(|(ids, _)| ids.iter().cloned()).collect()
    }

    /// Returns the container that has exactly these devices, as PodResources says. If an init
    /// container had the same devices, the result is the later container.
    pub fn holder(&self, ids: &BTreeSet<String>) -> Option<&PodContainer> {
        self.0.get(ids)?.listed.last()
    }

    /// Returns all devices that containers have.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.0.keys().flatten().map(String::as_str)
    }

    /// Returns whether the checkpoint has a container that PodResources does not list. Such a
    /// container is an init container, or the kubelet has not written its end yet.
    pub fn is_doubtful(&self) -> bool {
        self.0.values().any(|holders| holders.in_checkpoint.len() > holders.listed.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{
        CdiDevice, ClaimResource, ContainerDevices, ContainerResources, DynamicResource, PodResources,
    };

    fn ids(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    fn listed(pod: &str, container: &str, parts: &[(&str, &[&str])]) -> ListPodResourcesResponse {
        let devices = parts.iter().map(|(resource, ids)| ContainerDevices {
            resource_name: (*resource).to_owned(),
            ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        });
        let container = ContainerResources {
            name: container.to_owned(),
            devices: devices.collect(),
            ..ContainerResources::default()
        };
        let pod = PodResources {
            name: pod.to_owned(),
            namespace: "default".to_owned(),
            containers: vec![container],
        };
        ListPodResourcesResponse { pod_resources: vec![pod] }
    }

    /// A checkpoint as the kubelet writes it.
    const CHECKPOINT: &str = r#"{"Data":{"PodDeviceEntries":[
        {"PodUID":"0d0f","ContainerName":"init","ResourceName":"deepres.dev/share","DeviceIDs":{"-1":["a","b"]},"AllocResp":"Kh0="},
        {"PodUID":"0d0f","ContainerName":"main","ResourceName":"deepres.dev/share","DeviceIDs":{"0":["a"],"1":["b"]},"AllocResp":""},
        {"PodUID":"1111","ContainerName":"main","ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["a"]},"AllocResp":""}
        ],"RegisteredDevices":{"deepres.dev/share":["a","b","c"]}},"Checksum":1234}"#;

    #[test]
    fn a_container_counts_while_either_source_has_it() {
        let parts: &[(&str, &[&str])] = &[("deepres.dev/share", &["a"]), ("deepres.dev/share", &["b"])];
        let evidence = Evidence::new(listed("pod", "main", parts), Some(CHECKPOINT)).unwrap();
        assert_eq!(evidence.count(&ids(&["a", "b"])), 2, "the init container and the main container");
        assert_eq!(evidence.count(&ids(&["a"])), 0);
        assert_eq!(evidence.holder(&ids(&["a", "b"])).unwrap().to_string(), "default/pod/main");
        assert!(evidence.is_doubtful());
        let restarted = Evidence::new(ListPodResourcesResponse::default(), Some(CHECKPOINT)).unwrap();
        assert_eq!(restarted.count(&ids(&["a", "b"])), 2);
        assert_eq!(restarted.holder(&ids(&["a", "b"])), None);
    }

    #[test]
    fn a_container_of_a_claim_goes_by_the_claims_cdi_devices() {
        let mut listed = listed("pod", "main", &[]);
        let name = "deepres.dev/share=k8s-1".to_owned();
        let cdi_devices =
            vec![CdiDevice { name: name.clone() }, CdiDevice { name: "nvidia.com/gpu=G".to_owned() }];
        let resources = vec![ClaimResource { cdi_devices }];
        listed.pod_resources[0].containers[0].claims = vec![DynamicResource { resources }];
        let evidence = Evidence::new(listed, None).unwrap();
        assert_eq!(evidence.holder(&Ids::from([name])).unwrap().to_string(), "default/pod/main");
        assert!(!evidence.is_doubtful());
    }

    #[test]
    fn the_containers_after_an_init_container_are_of_its_pod() {
        let checkpoint = r#"{"Data":{"PodDeviceEntries":[
            {"PodUID":"0d0f","ContainerName":"init","ResourceName":"deepres.dev/share","DeviceIDs":{"-1":["a","b"]}},
            {"PodUID":"0d0f","ContainerName":"main","ResourceName":"deepres.dev/share","DeviceIDs":{"-1":["a"]}},
            {"PodUID":"1111","ContainerName":"main","ResourceName":"deepres.dev/share","DeviceIDs":{"-1":["c"]}}
            ]}}"#;
        let listed = listed("pod", "main", &[("deepres.dev/share", &["a"])]);
        let evidence = Evidence::new(listed, Some(checkpoint)).unwrap();
        assert_eq!(evidence.after_init(&ids(&["a", "b"])), [&ids(&["a"])]);
        assert!(evidence.after_init(&ids(&["a"])).is_empty(), "the main container is no init container");
        assert!(evidence.after_init(&ids(&["c"])).is_empty(), "its pod has no other container");
        assert_eq!(evidence.running_ids(), ids(&["a", "b"]), "the other pod may be over");
    }

    #[test]
    fn devices_of_others_are_left_out_and_a_text_that_is_no_checkpoint_says_nothing() {
        let parts: &[(&str, &[&str])] = &[("deepres.dev/gpu", &["GPU-1"]), ("cpu.dev/x", &["x"])];
        for empty in [None, Some(r#"{"Data":{"PodDeviceEntries":null}}"#)] {
            let evidence = Evidence::new(listed("pod", "main", parts), empty).unwrap();
            assert_eq!(evidence.ids().collect::<Vec<_>>(), ["GPU-1"], "{empty:?}");
            assert!(!evidence.is_doubtful());
        }
        for garbage in ["", "{}", "[]", "\0", &CHECKPOINT[..CHECKPOINT.len() / 2]] {
            assert!(Evidence::new(listed("pod", "main", parts), Some(garbage)).is_err(), "{garbage}");
        }
    }
}
