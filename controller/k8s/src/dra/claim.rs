//! Reads what the scheduler gave a claim; pure.

use super::quantity;
use super::slice::{MEMORY, SHARE, uuid_of};
use super::{DRIVER, api};
use crate::node::Grant;
use crate::record::ClaimRequest;
use deepres_policy::shares::{SHARE_PPM, SHARES};
use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use std::collections::BTreeMap;

/// The result for a claim's request: the grant, and the devices in the kubelet's form, still
/// without CDI devices.
#[derive(Debug, PartialEq)]
pub struct Given {
    /// The grant.
    pub grant: Grant,
    /// The devices, each with the UUID of its GPU.
    pub devices: Vec<(String, api::Device)>,
}

/// Returns the results of deepres on this node for the requests of a claim, in the order of the
/// claim.
///
/// # Errors
/// The reason for which the claim cannot be served, as a sentence.
pub fn read(claim: &ResourceClaim, uid: &str, node: &str) -> Result<Vec<Given>, String> {
    if claim.metadata.uid.as_deref() != Some(uid) {
        return Err("the API server has another claim of this name; delete the pod".to_owned());
    }
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let allocation = allocation.ok_or("the claim is not allocated")?;
    let results = allocation.devices.as_ref().and_then(|devices| devices.results.as_deref());
    let own = results.unwrap_or_default().iter().filter(|result| result.driver == DRIVER);
    let mut requests = BTreeMap::<&str, usize>::new();
    let mut grouped: Vec<(&str, Vec<&DeviceRequestAllocationResult>)> = Vec::new();
    for result in own {
        if result.pool != node {
            return Err(format!("the claim's device {} is of the node {}", result.device, result.pool));
        }
        // The kubelet knows a request without its alternative, which follows the slash.
        let request = result.request.split('/').next().unwrap_or_default();
        let place = *requests.entry(request).or_insert_with(|| {
            grouped.push((request, Vec::new()));
            grouped.len() - 1
        });
        grouped[place].1.push(result);
    }
    if grouped.is_empty() {
        return Err(format!("the claim has no device of {DRIVER}"));
    }
    grouped.into_iter().map(|(request, results)| given(uid, request, &results)).collect()
}

/// Returns what a request got. A request can have several parts of one GPU, which then count
/// together.
fn given(uid: &str, request: &str, results: &[&DeviceRequestAllocationResult]) -> Result<Given, String> {
    let mut parts = BTreeMap::<String, (u64, u64)>::new();
    let (mut gpus, mut devices) = (Vec::new(), Vec::new());
    for result in results {
        let device = &result.device;
        if result.admin_access == Some(true) {
            return Err(format!("the request {request} asks for admin access, which {DRIVER} does not give"));
        }
        let uuid = uuid_of(device).ok_or_else(|| format!("the claim's device {device} is no GPU"))?;
        let consumed = |name: &str| {
            let all = result.consumed_capacity.as_ref();
            let found = all.and_then(|all| all.get(name).or_else(|| all.get(&format!("{DRIVER}/{name}"))));
            let found = found.ok_or_else(|| {
                format!(
                    "the claim does not say how much {name} of {device} it has; Kubernetes needs the feature DRAConsumableCapacity"
                )
            })?;
            let value = quantity::value(&found.0);
            value
                .ok_or_else(|| format!("the claim's {name} of {device} is {:?}, which is no amount", found.0))
        };
        let (share, memory_bytes) = (consumed(SHARE)?, consumed(MEMORY)?);
        let part = parts.entry(uuid.clone()).or_insert_with(|| {
            gpus.push(uuid.clone());
            (0, 0)
        });
        *part = (part.0.saturating_add(share), part.1.saturating_add(memory_bytes));
        let named = api::Device {
            request_names: vec![request.to_owned()],
            pool_name: result.pool.clone(),
            device_name: device.clone(),
            cdi_device_ids: Vec::new(),
            share_id: result.share_id.clone(),
        };
        devices.push((uuid, named));
    }
    let mut shares = parts.values().map(|(share, _)| *share);
    let share = shares.next().unwrap_or_default();
    if !(1..=SHARES as u64).contains(&share) {
        return Err(format!("the request {request} has {share} shares of a GPU; a GPU has {SHARES}"));
    }
    if shares.any(|other| other != share) {
        return Err(format!(
            "the request {request} has more of one GPU than of another; let it have distinct GPUs (distinctAttribute: {DRIVER}/uuid)"
        ));
    }
    let grant = Grant {
        claim: ClaimRequest { claim: uid.to_owned(), request: request.to_owned() },
        gpus,
        share_ppm: share as u32 * SHARE_PPM,
        memory_bytes: parts.values().map(|(_, memory_bytes)| *memory_bytes).min().unwrap_or_default(),
    };
    Ok(Given { grant, devices })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const GPU: &str = "gpu-0000002a-0000-0000-0000-000000000001";
    const OTHER: &str = "gpu-0000002a-0000-0000-0000-000000000002";

    fn result(request: &str, device: &str, share: &str) -> Value {
        json!({"driver": DRIVER, "pool": "node-1", "request": request, "device": device,
            "consumedCapacity": {"share": share, "memory": "8Gi"}, "shareID": "0d0f"})
    }

    fn with(mut result: Value, key: &str, value: Value) -> Value {
        result[key] = value;
        result
    }

    fn claim(results: &[Value]) -> ResourceClaim {
        let claim = json!({"metadata": {"name": "c", "uid": "11"}, "spec": {},
            "status": {"allocation": {"devices": {"results": results}}}});
        serde_json::from_value(claim).unwrap()
    }

    fn refused(claim: &ResourceClaim) -> String {
        read(claim, "11", "node-1").unwrap_err()
    }

    #[test]
    fn a_request_gets_share_and_memory_of_its_gpus() {
        let others = json!({"driver": "nic.dev", "pool": "x", "request": "nic", "device": "nic-1"});
        let sub = with(result("gpus", OTHER, "30"), "request", json!("gpus/large"));
        let second = with(
            result("one", GPU, "5"),
            "consumedCapacity",
            json!({"deepres.dev/share": "5", "deepres.dev/memory": "1024Mi"}),
        );
        let given = read(&claim(&[result("gpus", GPU, "30"), others, sub, second]), "11", "node-1").unwrap();
        let [gpus, one] = &given[..] else { panic!("{given:?}") };
        assert_eq!(gpus.grant.claim.to_string(), "11/gpus");
        assert_eq!(gpus.grant.gpus, [GPU, OTHER].map(|name| uuid_of(name).unwrap()));
        assert_eq!((gpus.grant.share_ppm, gpus.grant.memory_bytes), (300_000, 8 << 30));
        let [(uuid, device), _] = &gpus.devices[..] else { panic!("{:?}", gpus.devices) };
        assert_eq!((uuid.as_str(), device.device_name.as_str()), (gpus.grant.gpus[0].as_str(), GPU));
        assert_eq!((device.pool_name.as_str(), device.share_id.as_deref()), ("node-1", Some("0d0f")));
        assert_eq!(gpus.devices[1].1.request_names, ["gpus"]);
        assert_eq!((one.grant.share_ppm, one.grant.memory_bytes), (50_000, 1 << 30));
    }

    #[test]
    fn two_parts_of_one_gpu_count_together() {
        let given = read(&claim(&[result("a", GPU, "30"), result("a", GPU, "20")]), "11", "node-1").unwrap();
        let [Given { grant, devices }] = &given[..] else { panic!("{given:?}") };
        assert_eq!((grant.gpus.len(), devices.len()), (1, 2));
        assert_eq!((grant.share_ppm, grant.memory_bytes), (500_000, 16 << 30));
    }

    #[test]
    fn a_claim_that_cannot_be_served_has_the_reason() {
        let good = result("a", GPU, "30");
        assert!(
            read(&claim(std::slice::from_ref(&good)), "12", "node-1").unwrap_err().contains("another claim")
        );
        let mut bare = claim(&[]);
        assert!(refused(&bare).contains("no device of deepres.dev"));
        bare.status = None;
        assert!(refused(&bare).contains("not allocated"));
        for (result, word) in [
            (with(good.clone(), "pool", json!("node-2")), "of the node node-2"),
            (with(good.clone(), "adminAccess", json!(true)), "admin access"),
            (with(good.clone(), "device", json!("gpu0")), "is no GPU"),
            (with(good.clone(), "consumedCapacity", Value::Null), "DRAConsumableCapacity"),
            (with(good.clone(), "consumedCapacity", json!({"share": "30"})), "how much memory"),
            (with(good.clone(), "consumedCapacity", json!({"share": "x", "memory": "1"})), "no amount"),
            (result("a", GPU, "0"), "has 0 shares"),
            (result("a", GPU, "101"), "has 101 shares"),
        ] {
            let said = refused(&claim(&[result]));
            assert!(said.contains(word), "{said}");
        }
        let said = refused(&claim(&[good, result("a", OTHER, "31")]));
        assert!(said.contains("distinctAttribute"), "{said}");
    }
}
