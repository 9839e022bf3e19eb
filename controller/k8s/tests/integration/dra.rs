//! The DRA driver: against a fake API server, a fake kubelet with real gRPC, and a real daemon.

use crate::api_server::{ApiServer, NODE_UID};
use crate::behaviour::{connect, hello_of};
use crate::kubelet::Pod;
use crate::node::{Node, pass, timing};
use deepres_abi::wire::Role;
use deepres_daemon_harness::shake_hands;
use deepres_k8s::api::Empty;
use deepres_k8s::dra::api::{
    Claim, Device, PluginInfo, PrepareAnswer, PrepareRequest, PrepareResponse, RegistrationStatus,
    UnprepareRequest, UnprepareResponse, path,
};
use deepres_k8s::dra::{DRIVER, Options, run};
use deepres_k8s::grpc::Client;
use deepres_model::wish::Wish;
use kube_client::Config;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use tokio::sync::oneshot;
use zerocopy::IntoBytes;

const NODE: &str = "node-1";
const NAMESPACE: &str = "vision";
const SLICE: &str = "node-1-deepres.dev";
const GIB: u64 = 1 << 30;

/// A driver on a thread of its own, as a process has.
struct Driver {
    stop: Option<oneshot::Sender<()>>,
    kill: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Driver {
    fn start(node: &Node, own: &Options) -> Self {
        let (options, own) = (node.options(), own.clone());
        let ((stop, stopped), (kill, killed)) = (oneshot::channel::<()>(), oneshot::channel::<()>());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let thread = thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    outcome = run(options, own, async { drop(stopped.await) }) => outcome.unwrap(),
                    _ = killed => {}
                }
            });
        });
        Self { stop: Some(stop), kill: Some(kill), thread: Some(thread) }
    }

    /// Ends the driver as a signal does, and waits for its end.
    fn stop(mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        drop(self.kill.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A node with a driver, a kubelet and an API server.
struct Cluster {
    driver: Option<Driver>,
    node: Node,
    api: ApiServer,
    own: Options,
    claims: usize,
}

impl Cluster {
    /// Starts a cluster. Returns once the API server has the node's GPUs.
    async fn start(gpus: usize) -> Self {
        let cluster = Self::on(Node::bare(gpus, 0, timing()), ApiServer::start());
        cluster.until_published(gpus).await;
        cluster
    }

    fn on(node: Node, api: ApiServer) -> Self {
        let folder = node.kubelet.plugins.parent().unwrap();
        let mut config = Config::new(api.uri.clone());
        // A test needs no certificates of its machine.
        config.root_cert = Some(Vec::new());
        let own = Options {
            node: NODE.to_owned(),
            plugins_dir: folder.join("plugins"),
            registry_dir: folder.join("plugins_registry"),
            api: config,
        };
        let driver = Some(Driver::start(&node, &own));
        Self { driver, node, api, own, claims: 0 }
    }

    async fn until_published(&self, gpus: usize) {
        self.node.until("the API server has the GPUs", || self.devices().len() == gpus).await;
    }

    /// Returns the names of the devices at the API server.
    fn devices(&self) -> Vec<String> {
        let slice = self.api.slice(SLICE).unwrap_or_default();
        let devices = slice["spec"]["devices"].as_array().cloned().unwrap_or_default();
        devices.iter().map(|device| device["name"].as_str().unwrap().to_owned()).collect()
    }

    fn generation(&self) -> i64 {
        self.api.slice(SLICE).unwrap()["spec"]["pool"]["generation"].as_i64().unwrap()
    }

    /// Kills the driver and starts the next.
    fn restart_driver(&mut self) {
        self.driver = None;
        self.driver = Some(Driver::start(&self.node, &self.own));
    }

    /// Lets the scheduler give a new claim these devices, with share and memory. Returns the claim.
    fn allocate(&mut self, results: &[(&str, u64, u64)]) -> Claim {
        self.claims += 1;
        let result = |(device, share, memory): &(&str, u64, u64)| {
            json!({"driver": DRIVER, "pool": NODE, "request": "gpu", "device": device, "shareID": "5a",
                "consumedCapacity": {"share": share.to_string(), "memory": memory.to_string()}})
        };
        let results: Vec<Value> = results.iter().map(result).collect();
        let claim = Claim {
            namespace: NAMESPACE.to_owned(),
            uid: format!("c1a1-{}", self.claims),
            name: format!("claim-{}", self.claims),
        };
        self.put(&claim, json!({"allocation": {"devices": {"results": results}}}));
        claim
    }

    fn put(&self, claim: &Claim, status: Value) {
        let object = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
            "spec": {}, "status": status});
        self.api.put_claim(&claim.namespace, &claim.name, object);
    }

    /// Finds the driver as the kubelet does, and connects.
    async fn driver(&self) -> Client {
        let find = async || {
            let mut registration = Client::connect(&registration(&self.own.registry_dir)?).await.ok()?;
            let info: PluginInfo = registration.unary(path::GET_INFO, Empty {}).await.ok()?;
            Client::connect(Path::new(&info.endpoint)).await.ok()
        };
        self.node.until_some("the driver has registered", find).await
    }

    /// Prepares a claim once.
    async fn try_prepare(&self, claim: &Claim) -> Result<Vec<Device>, String> {
        let request = PrepareRequest { claims: vec![claim.clone()] };
        let answer = self.driver().await.unary::<_, PrepareResponse>(path::PREPARE, request).await;
        let mut claims = answer.map_err(|status| status.message().to_owned())?.claims;
        assert_eq!(claims.keys().collect::<Vec<_>>(), [&claim.uid]);
        match claims.remove(&claim.uid).unwrap() {
            PrepareAnswer { devices, error } if error.is_empty() => Ok(devices),
            PrepareAnswer { error, .. } => Err(error),
        }
    }

    /// Prepares a claim, as often as it takes. Returns its own CDI device.
    async fn prepare(&self, claim: &Claim) -> String {
        let devices =
            self.node.until_some("the claim is prepared", async || self.try_prepare(claim).await.ok());
        own_device(&devices.await)
    }

    async fn unprepare(&self, claim: &Claim) {
        let ended = self.node.until_some("the claim has ended", async || {
            let request = UnprepareRequest { claims: vec![claim.clone()] };
            let mut driver = self.driver().await;
            let answer: UnprepareResponse = driver.unary(path::UNPREPARE, request).await.ok()?;
            answer.claims[&claim.uid].error.is_empty().then_some(())
        });
        ended.await;
    }
}

/// Returns the socket by which a plugin registers.
fn registration(folder: &Path) -> Option<PathBuf> {
    let mut sockets = std::fs::read_dir(folder).ok()?.map(|entry| entry.unwrap().path());
    sockets.find(|socket| socket.extension().is_some_and(|ending| ending == "sock"))
}

/// Returns the one CDI device of deepres among the devices of a claim.
fn own_device(devices: &[Device]) -> String {
    let all = devices.iter().flat_map(|device| &device.cdi_device_ids);
    let own: Vec<&String> = all.filter(|name| name.starts_with("deepres.dev/share=")).collect();
    let [own] = own[..] else { panic!("{devices:?}") };
    own.clone()
}

#[tokio::test]
async fn the_driver_registers_and_makes_lost_sockets_again() {
    let cluster = Cluster::start(1).await;
    let socket = registration(&cluster.own.registry_dir).unwrap();
    let mut kubelet = Client::connect(&socket).await.unwrap();
    let info: PluginInfo = kubelet.unary(path::GET_INFO, Empty {}).await.unwrap();
    assert_eq!((info.kind.as_str(), info.name.as_str()), ("DRAPlugin", "deepres.dev"));
    assert_eq!(info.supported_versions, ["v1.DRAPlugin"]);
    assert_eq!(Path::new(&info.endpoint), cluster.own.plugins_dir.join("deepres.dev/deepres.dev@dra.sock"));
    let told = RegistrationStatus { plugin_registered: true, error: String::new() };
    kubelet.unary::<_, Empty>(path::NOTIFY, told).await.unwrap();
    for lost in [socket.as_path(), Path::new(&info.endpoint)] {
        std::fs::remove_file(lost).unwrap();
        cluster.node.until("the socket is there again", || lost.exists()).await;
        drop(cluster.driver().await);
    }
}

#[tokio::test]
async fn the_api_server_has_a_device_for_each_gpu() {
    let cluster = Cluster::start(2).await;
    let slice = cluster.api.slice(SLICE).unwrap();
    let owner = &slice["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["name"], &owner["uid"]),
        (&json!("Node"), &json!(NODE), &json!(NODE_UID))
    );
    let spec = &slice["spec"];
    assert_eq!((&spec["driver"], &spec["nodeName"]), (&json!(DRIVER), &json!(NODE)));
    assert_eq!(spec["pool"], json!({"name": NODE, "generation": 1, "resourceSliceCount": 1}));
    for (device, gpu) in spec["devices"].as_array().unwrap().iter().zip(&cluster.node.daemon().gpus) {
        assert_eq!(device["allowMultipleAllocations"], json!(true));
        assert_eq!(device["attributes"]["uuid"]["string"], json!(gpu.uuid_text));
        assert_eq!(device["capacity"]["share"]["value"], json!("100"));
        assert_eq!(device["capacity"]["memory"]["value"], json!("1Gi"));
    }
}

#[tokio::test]
async fn a_gpu_with_a_fault_leaves_the_pool_until_it_is_well() {
    let cluster = Cluster::start(2).await;
    let (before, ill) = (cluster.devices(), cluster.node.daemon().gpus[0].uuid_text.clone());
    cluster.node.daemon().faults.set(&ill, Some("it fell off the bus"));
    cluster.until_published(1).await;
    assert_eq!((cluster.devices(), cluster.generation()), (before[1..].to_vec(), 2));
    cluster.node.daemon().faults.set(&cluster.node.daemon().gpus[1].uuid_text, Some("it fell off the bus"));
    cluster.node.until("no GPU is well", || cluster.api.slices().is_empty()).await;
    for gpu in &cluster.node.daemon().gpus {
        cluster.node.daemon().faults.set(&gpu.uuid_text, None);
    }
    cluster.until_published(2).await;
    assert!(cluster.devices() == before && cluster.generation() > 2);
}

#[tokio::test]
async fn a_node_without_a_daemon_has_no_gpus() {
    let mut cluster = Cluster::start(1).await;
    drop(cluster.node.daemon.take());
    cluster.node.until("the slice is gone", || cluster.api.slices().is_empty()).await;
}

#[tokio::test]
async fn a_slice_that_others_change_or_delete_comes_back() {
    let cluster = Cluster::start(1).await;
    let original = cluster.api.slice(SLICE).unwrap();
    cluster.api.delete_slice(SLICE);
    cluster.until_published(1).await;
    assert!(cluster.generation() > 1);
    let mut other = cluster.api.slice(SLICE).unwrap();
    other["spec"]["devices"][0]["capacity"]["share"]["value"] = json!("200");
    cluster.api.put_slice(SLICE, other);
    let devices = |slice: Option<Value>| slice.map(|slice| slice["spec"]["devices"].clone());
    let is_back = || devices(cluster.api.slice(SLICE)) == devices(Some(original.clone()));
    cluster.node.until("the slice is as before", is_back).await;
    // A slice of another name would be a second slice of the same pool. Other nodes have their own.
    let mut others = original.clone();
    others["metadata"]["name"] = json!("old");
    cluster.api.put_slice("old", others.clone());
    others["spec"]["nodeName"] = json!("node-2");
    cluster.api.put_slice("node-2-deepres.dev", others);
    cluster.node.until("the other slice is gone", || cluster.api.slice("old").is_none()).await;
    pass(10).await;
    assert_eq!(cluster.api.slices(), [SLICE, "node-2-deepres.dev"]);
}

#[tokio::test]
async fn the_slice_of_a_node_that_was_deleted_and_came_back_belongs_to_the_new_node() {
    let cluster = Cluster::start(1).await;
    cluster.api.set_node_uid("9a0c6a54-0000-0000-0000-000000000002");
    // The API server deletes what belonged to the earlier node.
    cluster.api.delete_slice(SLICE);
    cluster.until_published(1).await;
    let owner = cluster.api.slice(SLICE).unwrap()["metadata"]["ownerReferences"][0]["uid"].clone();
    assert_eq!(owner, "9a0c6a54-0000-0000-0000-000000000002");
}

#[tokio::test]
async fn the_driver_writes_only_what_has_changed() {
    let api = ApiServer::start();
    api.lack_parts();
    let cluster = Cluster::on(Node::bare(2, 0, timing()), api);
    cluster.until_published(2).await;
    pass(30).await;
    assert_eq!(cluster.api.writes(), [format!("POST {SLICE}")], "the server leaves out a field");
    let Cluster { node, driver, .. } = cluster;
    drop(driver);
    let mut cluster = Cluster::on(node, ApiServer::start());
    cluster.until_published(2).await;
    cluster.restart_driver();
    drop(cluster.driver().await);
    pass(30).await;
    assert_eq!(cluster.api.writes(), [format!("POST {SLICE}")], "the slice of the earlier driver is right");
}

#[tokio::test]
async fn the_end_of_a_driver_withdraws_its_gpus_and_a_kill_does_not() {
    let mut cluster = Cluster::start(1).await;
    cluster.restart_driver();
    assert_eq!(cluster.api.slices(), [SLICE]);
    drop(cluster.driver().await);
    cluster.driver.take().unwrap().stop();
    assert!(cluster.api.slices().is_empty());
    assert_eq!(registration(&cluster.own.registry_dir), None);
}

#[tokio::test]
async fn a_claim_gets_share_memory_gpu_and_token_by_cdi() {
    let mut cluster = Cluster::start(2).await;
    let device = cluster.devices().remove(1);
    let claim = cluster.allocate(&[(&device, 30, GIB / 4)]);
    let devices = cluster.try_prepare(&claim).await.unwrap();
    let [own] = &devices[..] else { panic!("{devices:?}") };
    let names = (own.pool_name.as_str(), own.device_name.as_str(), own.share_id.as_deref());
    assert_eq!(names, (NODE, device.as_str(), Some("5a")));
    assert_eq!(own.request_names, ["gpu"]);
    let node = &cluster.node;
    let uuid = node.daemon().gpus[1].uuid_text.clone();
    let [files, name] = &own.cdi_device_ids[..] else { panic!("{devices:?}") };
    assert_eq!(*files, format!("nvidia.com/gpu={uuid}"));
    assert_eq!(node.variable(name, "CUDA_VISIBLE_DEVICES"), uuid);
    assert_eq!(node.variable(name, "DEEPRES_SHARE"), "30%");
    assert_eq!(node.variable(name, "DEEPRES_FALLBACK"), format!("share=30%,memory={}", GIB / 4));
    let token = node.variable(name, "DEEPRES_TENANT");
    assert_eq!(node.tokens().iter().map(|token| token.as_str()).collect::<Vec<_>>(), [token]);
    // The kubelet lists the container with the claim's devices.
    node.kubelet.run_with_claim("greedy", own.cdi_device_ids.clone());
    let is_named = || {
        let _tenant = connect(node, name, Wish::default());
        node.daemon().status().tenants.iter().any(|tenant| tenant.pod.as_deref() == Some("greedy"))
    };
    node.until("the daemon knows the container", is_named).await;
    let is_gone = || node.daemon().status().tenants.iter().all(|tenant| tenant.sessions.is_empty());
    node.until("no process is left", is_gone).await;
    let wish = Wish { share_ppm: Some(990_000), memory_bytes: Some(1 << 40), ..Wish::default() };
    let _tenant = connect(node, name, wish);
    let status = node.daemon().status();
    let tenant = status.tenants.iter().find(|tenant| !tenant.sessions.is_empty()).unwrap();
    assert_eq!((tenant.asked_share_ppm, tenant.memory_limit_bytes), (Some(300_000), Some(GIB / 4)));
}

#[tokio::test]
async fn a_claim_of_two_gpus_has_the_share_of_each() {
    let mut cluster = Cluster::start(3).await;
    let all = cluster.devices();
    let claim = cluster.allocate(&[(&all[0], 50, GIB / 2), (&all[2], 50, GIB / 2)]);
    let devices = cluster.try_prepare(&claim).await.unwrap();
    let name = own_device(&devices);
    let files: BTreeSet<&str> =
        devices.iter().map(|device| device.cdi_device_ids[0].trim_start_matches("nvidia.com/gpu=")).collect();
    let visible = cluster.node.variable(&name, "CUDA_VISIBLE_DEVICES");
    assert_eq!(visible.split(',').collect::<BTreeSet<_>>(), files);
    assert_eq!((files.len(), cluster.node.variable(&name, "DEEPRES_SHARE").as_str()), (2, "50%"));
}

#[tokio::test]
async fn preparing_again_gives_the_same_also_after_restarts() {
    let mut cluster = Cluster::start(1).await;
    let device = cluster.devices().remove(0);
    let claim = cluster.allocate(&[(&device, 60, GIB / 2)]);
    let first = cluster.try_prepare(&claim).await.unwrap();
    let specifications = cluster.node.specifications();
    assert_eq!(cluster.try_prepare(&claim).await.as_ref(), Ok(&first));
    cluster.restart_driver();
    cluster.prepare(&claim).await;
    assert_eq!(cluster.try_prepare(&claim).await.as_ref(), Ok(&first));
    cluster.node.restart_daemon().await;
    cluster.node.until("the daemon has the allocation", || cluster.node.tokens().len() == 1).await;
    cluster.prepare(&claim).await;
    assert_eq!(cluster.try_prepare(&claim).await.as_ref(), Ok(&first));
    assert_eq!(cluster.node.specifications(), specifications);
    // A driver does not forget claims of which the kubelet lists no container.
    pass(30).await;
    assert_eq!((cluster.node.specifications().len(), cluster.node.tokens().len()), (1, 1));
}

#[tokio::test]
async fn unpreparing_takes_everything_also_after_a_restart() {
    let mut cluster = Cluster::start(1).await;
    let device = cluster.devices().remove(0);
    for restarts in [false, true] {
        let claim = cluster.allocate(&[(&device, 100, GIB)]);
        cluster.prepare(&claim).await;
        if restarts {
            cluster.restart_driver();
        }
        for _ in 0..2 {
            cluster.unprepare(&claim).await;
            assert!(cluster.node.specifications().is_empty());
        }
        cluster.node.until("the daemon has no allocation", || cluster.node.tokens().is_empty()).await;
    }
}

#[tokio::test]
async fn a_claim_that_was_given_other_gpus_loses_the_first() {
    let mut cluster = Cluster::start(2).await;
    let all = cluster.devices();
    let claim = cluster.allocate(&[(&all[0], 60, GIB / 2)]);
    let first = cluster.prepare(&claim).await;
    let result = json!({"driver": DRIVER, "pool": NODE, "request": "gpu", "device": all[1],
        "consumedCapacity": {"share": "70", "memory": "512Mi"}});
    cluster.put(&claim, json!({"allocation": {"devices": {"results": [result]}}}));
    let second = cluster.prepare(&claim).await;
    assert!(first != second && cluster.node.specifications().len() == 1);
    assert_eq!(cluster.node.variable(&second, "DEEPRES_SHARE"), "70%");
    assert_eq!(cluster.node.tokens().len(), 1);
}

#[tokio::test]
async fn a_claim_that_cannot_be_served_fails_with_the_reason() {
    let mut cluster = Cluster::start(2).await;
    let all = cluster.devices();
    let nobodys = Claim { uid: "1".to_owned(), ..cluster.allocate(&[(&all[0], 60, GIB / 4)]) };
    assert!(cluster.try_prepare(&nobodys).await.unwrap_err().contains("another claim"));
    let missing = Claim { name: "missing".to_owned(), ..nobodys };
    let said = cluster.try_prepare(&missing).await.unwrap_err();
    assert!(said.contains("no such claim"), "{said}");
    let strange = cluster.allocate(&[("gpu-1", 60, GIB / 4)]);
    assert!(cluster.try_prepare(&strange).await.unwrap_err().contains("does not manage the GPU GPU-1"));
    let first = cluster.allocate(&[(&all[0], 60, GIB / 4)]);
    cluster.prepare(&first).await;
    let second = cluster.allocate(&[(&all[0], 50, GIB / 4)]);
    let said = cluster.try_prepare(&second).await.unwrap_err();
    assert!(said.contains("waits for 50 shares") && said.contains("40 are free"), "{said}");
    let third = cluster.allocate(&[(&all[0], 40, GIB)]);
    let said = cluster.try_prepare(&third).await.unwrap_err();
    assert!(said.contains("bytes on the GPU"), "{said}");
    cluster.node.daemon().faults.set(&cluster.node.daemon().gpus[1].uuid_text, Some("it fell off the bus"));
    cluster.until_published(1).await;
    let ill = cluster.allocate(&[(&all[1], 10, GIB / 4)]);
    let said = cluster.try_prepare(&ill).await.unwrap_err();
    assert!(said.contains("it fell off the bus"), "{said}");
    assert_eq!((cluster.node.specifications().len(), cluster.node.tokens().len()), (1, 1));
}

#[tokio::test]
async fn an_api_server_that_goes_and_comes_back_has_the_gpus_again() {
    let mut cluster = Cluster::start(2).await;
    let device = cluster.devices().remove(0);
    let claim = cluster.allocate(&[(&device, 30, GIB / 4)]);
    cluster.api.set_down(true);
    let said = cluster.try_prepare(&claim).await.unwrap_err();
    assert!(said.contains("the API server does not tell the claim"), "{said}");
    let ill = cluster.node.daemon().gpus[1].uuid_text.clone();
    cluster.node.daemon().faults.set(&ill, Some("it fell off the bus"));
    pass(10).await;
    assert_eq!(cluster.devices().len(), 2);
    cluster.api.set_down(false);
    cluster.until_published(1).await;
    cluster.prepare(&claim).await;
}

#[tokio::test]
async fn the_containers_of_the_device_plugin_keep_their_part_of_a_gpu() {
    let mut node = Node::start(1, 0).await;
    let pod = node.kubelet.admit(Pod::of_shares("old", 60)).await.unwrap();
    let old = pod.containers[0].devices[1].clone();
    node.stop_plugin();
    let mut cluster = Cluster::on(node, ApiServer::start());
    cluster.until_published(1).await;
    let device = cluster.devices().remove(0);
    let small = cluster.allocate(&[(&device, 40, GIB * 2 / 5)]);
    cluster.prepare(&small).await;
    let large = cluster.allocate(&[(&device, 60, GIB / 2)]);
    assert!(cluster.try_prepare(&large).await.unwrap_err().contains("0 are free"));
    assert_eq!(cluster.node.variable(&old, "DEEPRES_SHARE"), "60%");
    cluster.node.until("the plugin is there", || cluster.node.kubelet.registered().len() == 2).await;
    assert_eq!(cluster.node.kubelet.start_pod("old").await, Some(Vec::new()));
    assert_eq!(cluster.node.kubelet.allocatable("deepres.dev/share"), 0);
    cluster.node.kubelet.end("old");
    cluster.prepare(&large).await;
    assert_eq!(cluster.node.specifications().len(), 2);
}

/// Checks that each claim has its share of its one GPU, and that no GPU gives more than it has.
fn check(cluster: &Cluster, running: &BTreeMap<String, (Claim, String, u64)>) {
    let mut shares = BTreeMap::<String, u64>::new();
    for (_, device, share) in running.values() {
        let gpu = cluster.node.variable(device, "CUDA_VISIBLE_DEVICES");
        assert_eq!(cluster.node.variable(device, "DEEPRES_SHARE"), format!("{share}%"));
        *shares.entry(gpu).or_default() += share;
    }
    assert!(shares.values().all(|shares| *shares <= 100), "{shares:?}");
}

#[tokio::test]
async fn random_claims_have_their_shares_while_everything_restarts() {
    const CLAIMS: usize = 300;
    let mut cluster = Cluster::start(4).await;
    let all = cluster.devices();
    let mut seed = 0x00D5_EED5_u64;
    let mut below = move |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % bound
    };
    let mut running = BTreeMap::<String, (Claim, String, u64)>::new();
    for number in 0..CLAIMS {
        if number % 20 == 19 {
            match below(3) {
                0 => cluster.restart_driver(),
                1 => cluster.node.restart_daemon().await,
                _ => cluster.node.kubelet.restart(),
            }
        }
        let share = 1 + below(100);
        // The scheduler takes the first device with room. If none has room, some claim ends.
        let device = loop {
            let room = |device: &&String| {
                let gpu = device.replacen("gpu-", "GPU-", 1);
                let on_gpu = running
                    .values()
                    .filter(|(_, own, _)| cluster.node.variable(own, "CUDA_VISIBLE_DEVICES") == gpu);
                on_gpu.map(|(_, _, share)| share).sum::<u64>() + share <= 100
            };
            if let Some(device) = all.iter().find(room) {
                break device;
            }
            let ended = running.keys().nth(below(running.len() as u64) as usize).unwrap().clone();
            let (claim, ..) = running.remove(&ended).unwrap();
            cluster.unprepare(&claim).await;
        };
        let claim = cluster.allocate(&[(device, share, GIB * share / 100)]);
        let own = cluster.prepare(&claim).await;
        running.insert(claim.uid.clone(), (claim, own.clone(), share));
        check(&cluster, &running);
        let daemon = cluster.node.daemon();
        let hello = hello_of(&cluster.node, Role::Keeper, &own, Wish::default());
        let (_connection, welcome, _) =
            shake_hands(&daemon.directory.tenant_socket(), hello.as_bytes()).unwrap();
        assert_eq!(welcome.fallback().share_ppm, Some(share as u32 * 10_000));
    }
    for (claim, ..) in running.values() {
        cluster.unprepare(claim).await;
    }
    let is_empty = || cluster.node.specifications().is_empty() && cluster.node.tokens().is_empty();
    cluster.node.until("all allocations are gone", is_empty).await;
    cluster.until_published(4).await;
}
