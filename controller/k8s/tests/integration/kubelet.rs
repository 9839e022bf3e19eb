//! A fake kubelet: the device manager's behaviour as it was observed on a real kubelet 1.36, with
//! real gRPC over its sockets. The fake kubelet runs no containers.

use crate::node::SECOND;
use deepres_k8s::api::{
    AllocateRequest, AllocateResponse, CdiDevice, ClaimResource, ContainerAllocateRequest, ContainerDevices,
    ContainerPreferredAllocationRequest, ContainerResources, DevicePluginOptions, DynamicResource, Empty,
    HEALTHY, KUBELET_SOCKET, ListPodResourcesResponse, PodResources, PreStartContainerRequest,
    PreferredAllocationRequest, PreferredAllocationResponse, RegisterRequest, UNHEALTHY, VERSION, path,
};
use deepres_k8s::evidence::CHECKPOINT;
use deepres_k8s::grpc::{self, Answer, Call, Client, Serve};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt;
use tonic::Status;

/// The time after which the kubelet tries again to start a container.
const RETRY: std::time::Duration = std::time::Duration::from_nanos(SECOND.as_nanos() as u64 * 10);
/// The time for which the kubelet waits for the answer to PreStartContainer: 30 s. A busy machine
/// can hold up the plugin of a test for a while more.
const START_LIMIT: std::time::Duration = std::time::Duration::from_nanos(SECOND.as_nanos() as u64 * 30)
    .saturating_add(std::time::Duration::from_secs(1));

/// A container's request, and what the kubelet gave it.
#[derive(Debug, Clone)]
pub struct Container {
    pub name: String,
    pub resource: String,
    pub size: usize,
    pub is_init: bool,
    pub ids: BTreeSet<String>,
    /// The CDI devices of the plugin's answer.
    pub devices: Vec<String>,
}

impl Container {
    pub fn new(name: &str, resource: &str, size: usize) -> Self {
        let (name, resource) = (name.to_owned(), resource.to_owned());
        Self { name, resource, size, is_init: false, ids: BTreeSet::new(), devices: Vec::new() }
    }

    pub fn init(self) -> Self {
        Self { is_init: true, ..self }
    }
}

/// A pod of the fake kubelet. Its init containers come first. A container before an init container
/// is a sidecar: an init container that the kubelet does not wait for.
#[derive(Debug, Clone)]
pub struct Pod {
    pub name: String,
    pub containers: Vec<Container>,
    pub is_over: bool,
}

impl Pod {
    /// Returns a pod with one container that asks for shares.
    pub fn of_shares(name: &str, size: usize) -> Self {
        Self::new(name, vec![Container::new("main", "deepres.dev/share", size)])
    }

    pub fn new(name: &str, containers: Vec<Container>) -> Self {
        Self { name: name.to_owned(), containers, is_over: false }
    }

    /// Returns the amount that the scheduler counts for this pod: the most that its containers need
    /// at a time.
    pub fn request(&self, resource: &str) -> usize {
        let of = |is_init: bool| {
            self.containers.iter().filter(move |one| one.is_init == is_init && one.resource == resource)
        };
        of(true).map(|one| one.size).max().unwrap_or(0).max(of(false).map(|one| one.size).sum())
    }
}

/// A list of devices, as the kubelet's interface has it.
#[derive(Clone, PartialEq, prost::Message)]
struct List {
    #[prost(message, repeated, tag = "1")]
    devices: Vec<Device>,
}

/// A device of a plugin, with the field that the plugin leaves out.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Device {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub health: String,
    /// The NUMA nodes.
    #[prost(message, optional, tag = "3")]
    pub topology: Option<Empty>,
}

/// A plugin at the kubelet, and its devices.
#[derive(Debug, Clone, Default)]
struct Endpoint {
    socket: PathBuf,
    devices: Vec<Device>,
    /// Number of the registration.
    registration: usize,
    options: DevicePluginOptions,
}

#[derive(Debug, Default)]
struct State {
    endpoints: BTreeMap<String, Endpoint>,
    pods: BTreeMap<String, Pod>,
    registrations: usize,
    /// The requests of the plugins that registered.
    registered: Vec<RegisterRequest>,
    /// The devices that the kubelet believes to be given, by resource: also those that it is
    /// giving.
    given: BTreeMap<String, BTreeSet<String>>,
    /// The time that passes before the call of Allocate and after its answer.
    slow: std::time::Duration,
    /// Whether the kubelet answers no question for its pods now.
    holds_lists: bool,
    /// Number of questions for pods that a client gave up.
    lists_given_up: usize,
    /// Random choices of the kubelet.
    random: u64,
    checkpoint: PathBuf,
}

impl State {
    /// Lets the devices of ended pods go, if there are any. Like a real kubelet, it then counts
    /// anew what its record has, and so forgets what it is giving at this moment.
    fn update(&mut self) {
        let before = self.pods.len();
        self.pods.retain(|_, pod| !pod.is_over);
        if self.pods.len() != before {
            self.count_anew();
        }
    }

    fn count_anew(&mut self) {
        self.given.clear();
        for one in self.pods.values().flat_map(|pod| &pod.containers) {
            self.given.entry(one.resource.clone()).or_default().extend(one.ids.iter().cloned());
        }
    }

    fn healthy(&self, resource: &str) -> BTreeSet<String> {
        let devices = self.endpoints.get(resource).into_iter().flat_map(|endpoint| &endpoint.devices);
        devices.filter(|device| device.health == HEALTHY).map(|device| device.id.clone()).collect()
    }

    fn write_checkpoint(&self) {
        let entries: Vec<_> = self
            .pods
            .iter()
            .flat_map(|(name, pod)| pod.containers.iter().map(move |one| (name, one)))
            .filter(|(_, one)| !one.ids.is_empty())
            .map(|(name, one)| {
                json!({"PodUID": name, "ContainerName": one.name, "ResourceName": one.resource,
                    "DeviceIDs": {"-1": one.ids}, "AllocResp": ""})
            })
            .collect();
        let text = json!({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 0});
        // The kubelet renames a temporary file into place, so no reader sees half of a text.
        let new = self.checkpoint.with_file_name(".checkpoint");
        std::fs::write(&new, text.to_string()).unwrap();
        std::fs::rename(&new, &self.checkpoint).unwrap();
    }

    fn pick(&mut self, from: &BTreeSet<String>, count: usize) -> BTreeSet<String> {
        let mut left: Vec<&String> = from.iter().collect();
        let mut picked = BTreeSet::new();
        while picked.len() < count && !left.is_empty() {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            picked.insert(left.swap_remove((self.random >> 33) as usize % left.len()).clone());
        }
        picked
    }
}

/// The fake kubelet.
pub struct Kubelet {
    pub plugins: PathBuf,
    pub pod_resources: PathBuf,
    state: Arc<Mutex<State>>,
    tasks: JoinSet<()>,
}

struct Service {
    plugins: PathBuf,
    state: Arc<Mutex<State>>,
}

impl Service {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    async fn register(self: Arc<Self>, request: RegisterRequest) -> Result<Empty, Status> {
        if request.version != VERSION || !request.resource_name.contains('/') {
            return Err(Status::invalid_argument("unsupported version or resource"));
        }
        let socket = self.plugins.join(&request.endpoint);
        let mut plugin = Client::connect(&socket).await?;
        let options: DevicePluginOptions = plugin.unary(path::OPTIONS, Empty {}).await?;
        let resource = request.resource_name.clone();
        let number = {
            let mut state = self.state();
            state.registrations += 1;
            let number = state.registrations;
            let endpoint = Endpoint { socket, registration: number, options, ..Endpoint::default() };
            state.endpoints.insert(resource.clone(), endpoint);
            state.registered.push(request);
            number
        };
        let service = Arc::clone(&self);
        tokio::spawn(async move {
            if let Ok(mut lists) = plugin.streaming::<Empty, List>(path::LIST_AND_WATCH, Empty {}).await {
                while let Some(Ok(List { devices })) = lists.next().await {
                    let mut state = service.state();
                    if let Some(endpoint) = state.endpoints.get_mut(&resource)
                        && endpoint.registration == number
                    {
                        endpoint.devices = devices;
                    }
                    state.write_checkpoint();
                }
            }
            // A plugin that goes away: its devices are unhealthy at once.
            let mut state = service.state();
            if let Some(endpoint) = state.endpoints.get_mut(&resource)
                && endpoint.registration == number
            {
                endpoint.devices.iter_mut().for_each(|device| device.health = UNHEALTHY.to_owned());
            }
        });
        Ok(Empty {})
    }

    async fn list(self: Arc<Self>, _: Empty) -> Result<ListPodResourcesResponse, Status> {
        let question = Question(&self);
        while self.state().holds_lists {
            sleep(std::time::Duration::from_millis(1)).await;
        }
        std::mem::forget(question);
        let mut state = self.state();
        state.update();
        let devices = |one: &Container| ContainerDevices {
            resource_name: one.resource.clone(),
            ids: one.ids.iter().cloned().collect(),
        };
        // A container of a claim has CDI devices, and none of the kubelet's own.
        let claims = |one: &Container| {
            let names = one.devices.iter().filter(|_| one.ids.is_empty());
            let cdi_devices = names.map(|name| CdiDevice { name: name.clone() }).collect();
            vec![DynamicResource { resources: vec![ClaimResource { cdi_devices }] }]
        };
        let containers = |pod: &Pod| {
            let is_shown = |one: &&Container| !(one.is_init || one.ids.is_empty() && one.devices.is_empty());
            let shown = pod.containers.iter().filter(is_shown);
            shown
                .map(|one| ContainerResources {
                    name: one.name.clone(),
                    devices: vec![devices(one)],
                    claims: claims(one),
                })
                .collect()
        };
        let pod = |pod: &Pod| PodResources {
            name: pod.name.clone(),
            namespace: "default".to_owned(),
            containers: containers(pod),
        };
        Ok(ListPodResourcesResponse { pod_resources: state.pods.values().map(pod).collect() })
    }
}

/// A question for pods without an answer yet.
struct Question<'a>(&'a Service);

impl Drop for Question<'_> {
    fn drop(&mut self) {
        self.0.state().lists_given_up += 1;
    }
}

impl Serve for Service {
    async fn serve(self: Arc<Self>, call: Call) -> Answer {
        match call.uri().path() {
            path::REGISTER => grpc::unary(call, |request| Arc::clone(&self).register(request)).await,
            path::POD_RESOURCES => grpc::unary(call, |empty| Arc::clone(&self).list(empty)).await,
            _ => grpc::unknown(&call),
        }
    }
}

impl Kubelet {
    /// Starts a kubelet whose folders are in `folder`.
    pub fn start(folder: &Path) -> Self {
        let (plugins, resources) = (folder.join("device-plugins"), folder.join("pod-resources"));
        std::fs::create_dir_all(&plugins).unwrap();
        std::fs::create_dir_all(&resources).unwrap();
        let checkpoint = plugins.join(CHECKPOINT);
        let state = State { checkpoint, random: 7, ..State::default() };
        let mut kubelet = Self {
            plugins,
            pod_resources: resources.join(KUBELET_SOCKET),
            state: Arc::new(Mutex::new(state)),
            tasks: JoinSet::new(),
        };
        kubelet.listen();
        kubelet
    }

    /// Makes the sockets, as a kubelet does when it starts: it removes all sockets of its folder.
    fn listen(&mut self) {
        for entry in std::fs::read_dir(&self.plugins).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().is_some_and(|name| name != CHECKPOINT) {
                std::fs::remove_file(path).unwrap();
            }
        }
        let _ = std::fs::remove_file(&self.pod_resources);
        for socket in [self.plugins.join(KUBELET_SOCKET), self.pod_resources.clone()] {
            let service = Service { plugins: self.plugins.clone(), state: Arc::clone(&self.state) };
            let listener = UnixListener::bind(socket).unwrap();
            self.tasks.spawn(async move { match grpc::serve(listener, Arc::new(service)).await {} });
        }
    }

    /// Restarts the kubelet. Containers go on; no plugin is registered.
    pub fn restart(&mut self) {
        self.tasks.abort_all();
        self.state().endpoints.clear();
        self.listen();
    }

    /// Puts the next kubelet in the place of the kubelet. Its socket has the inode number of the
    /// old socket, and the sockets of plugins stay.
    pub fn restart_at_the_old_inode(&self) {
        let (socket, aside) = (self.plugins.join(KUBELET_SOCKET), self.plugins.join("aside"));
        let inode = || std::fs::symlink_metadata(&socket).unwrap().ino();
        let before = inode();
        self.state().endpoints.clear();
        // A file that moves keeps its number, and gets the time of the change as a new file does.
        std::fs::rename(&socket, &aside).unwrap();
        std::fs::rename(&aside, &socket).unwrap();
        assert_eq!(inode(), before);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Returns the devices of a resource, healthy or not.
    pub fn devices(&self, resource: &str) -> Vec<Device> {
        self.state().endpoints.get(resource).map_or_else(Vec::new, |endpoint| endpoint.devices.clone())
    }

    /// Returns the number of healthy devices, as the node's status says at this moment.
    pub fn allocatable(&self, resource: &str) -> usize {
        self.state().healthy(resource).len()
    }

    /// Returns the devices that the kubelet will not give to another container.
    pub fn given(&self, resource: &str) -> BTreeSet<String> {
        self.state().given.get(resource).cloned().unwrap_or_default()
    }

    /// Makes the kubelet take its time before a call of Allocate and after its answer.
    pub fn slow_down(&self, slow: std::time::Duration) {
        self.state().slow = slow;
    }

    /// Makes the kubelet answer no question for its pods, or answer them again.
    pub fn hold_lists(&self, holds: bool) {
        self.state().holds_lists = holds;
    }

    /// Returns the number of questions for pods that a client gave up.
    pub fn lists_given_up(&self) -> usize {
        self.state().lists_given_up
    }

    /// Lists the pods, as any client of the node may.
    pub async fn list(&self) -> ListPodResourcesResponse {
        Client::connect(&self.pod_resources)
            .await
            .unwrap()
            .unary(path::POD_RESOURCES, Empty {})
            .await
            .unwrap()
    }

    /// Returns the number of devices.
    pub fn capacity(&self, resource: &str) -> usize {
        self.state().endpoints.get(resource).map_or(0, |endpoint| endpoint.devices.len())
    }

    /// Returns the requests of all plugins that registered.
    pub fn registered(&self) -> Vec<RegisterRequest> {
        self.state().registered.clone()
    }

    /// Returns the pods that are not over.
    pub fn pods(&self) -> Vec<Pod> {
        self.state().pods.values().filter(|pod| !pod.is_over).cloned().collect()
    }

    /// Lets a pod run whose one container has these CDI devices of a claim.
    #[cfg(feature = "dra")]
    pub fn run_with_claim(&self, name: &str, devices: Vec<String>) {
        let container = Container { devices, ..Container::new("main", "", 0) };
        self.state().pods.insert(name.to_owned(), Pod::new(name, vec![container]));
    }

    /// Ends a pod.
    pub fn end(&self, name: &str) {
        if let Some(pod) = self.state().pods.get_mut(name) {
            pod.is_over = true;
        }
    }

    /// Starts the containers of a pod, one after the other. The kubelet tries again and again while
    /// the plugin refuses. Returns the refusals once all containers have started, or `None` if the
    /// pod is over before.
    pub fn start_pod(&self, name: &str) -> impl Future<Output = Option<Vec<String>>> + Send + use<> {
        let (state, name) = (Arc::clone(&self.state), name.to_owned());
        async move {
            let mut refusals = Vec::new();
            let containers = state.lock().unwrap().pods.get(&name)?.containers.clone();
            for one in containers.iter().filter(|one| one.size > 0) {
                loop {
                    let socket = {
                        let state = state.lock().unwrap();
                        state.pods.get(&name).filter(|pod| !pod.is_over)?;
                        state.endpoints.get(&one.resource).map(|endpoint| {
                            assert!(endpoint.options.pre_start_required);
                            endpoint.socket.clone()
                        })
                    };
                    let request = PreStartContainerRequest { ids: one.ids.iter().cloned().collect() };
                    let started = async {
                        let socket = socket.ok_or_else(|| Status::unavailable("no plugin is registered"))?;
                        Client::connect(&socket).await?.unary(path::PRE_START, request).await
                    };
                    match timeout(START_LIMIT, started).await {
                        Ok(Ok(Empty {})) => break,
                        Ok(Err(status)) => refusals.push(status.message().to_owned()),
                        Err(_) => refusals.push("the plugin did not answer in time".to_owned()),
                    }
                    sleep(RETRY).await;
                }
            }
            Some(refusals)
        }
    }

    /// Admits a pod: gives devices to its containers, one after the other, init containers first.
    ///
    /// # Errors
    /// The message of the pod, which then has failed with the reason UnexpectedAdmissionError.
    pub async fn admit(&self, pod: Pod) -> Result<Pod, String> {
        let name = pod.name.clone();
        let containers = pod.containers.len();
        self.state().pods.insert(name.clone(), pod);
        for container in 0..containers {
            if let Err(reason) = self.admit_container(&name, container).await {
                self.end(&name);
                return Err(format!("UnexpectedAdmissionError: Allocate failed due to {reason}"));
            }
        }
        Ok(self.state().pods[&name].clone())
    }

    async fn admit_container(&self, pod: &str, container: usize) -> Result<(), String> {
        let (resource, size) = {
            let state = self.state();
            let one = &state.pods[pod].containers[container];
            (one.resource.clone(), one.size)
        };
        if size == 0 {
            return Ok(());
        }
        self.state().update();
        let ids = self.choose(pod, container, &resource, size).await?;
        let (socket, slow) = {
            let mut state = self.state();
            state.given.entry(resource.clone()).or_default().extend(ids.iter().cloned());
            (state.endpoints[&resource].socket.clone(), state.slow)
        };
        sleep(slow).await;
        let request = AllocateRequest {
            container_requests: vec![ContainerAllocateRequest { ids: ids.iter().cloned().collect() }],
        };
        let answer = async {
            let mut plugin = Client::connect(&socket).await?;
            plugin.unary::<_, AllocateResponse>(path::ALLOCATE, request).await
        };
        let answer = match answer.await {
            Ok(answer) => answer,
            Err(status) => {
                self.state().count_anew();
                return Err(format!("rpc error: code = {:?} desc = {}", status.code(), status.message()));
            }
        };
        let [response] = &answer.container_responses[..] else { return Err("not one response".to_owned()) };
        sleep(slow).await;
        let mut state = self.state();
        let devices = response.cdi_devices.iter().map(|device| device.name.clone()).collect();
        // A real kubelet does not put the devices into `given` again.
        let one = &mut state.pods.get_mut(pod).unwrap().containers[container];
        (one.ids, one.devices) = (ids, devices);
        state.write_checkpoint();
        Ok(())
    }

    async fn choose(
        &self,
        pod: &str,
        container: usize,
        resource: &str,
        size: usize,
    ) -> Result<BTreeSet<String>, String> {
        let (must, available, socket, asks) = {
            let mut state = self.state();
            let in_use = state.given.get(resource).cloned().unwrap_or_default();
            let healthy = state.healthy(resource);
            let endpoint = state.endpoints.get(resource).cloned();
            let Some(endpoint) = endpoint else {
                return Err(format!("cannot allocate unregistered device {resource}"));
            };
            if healthy.is_empty() {
                return Err("no healthy devices present; cannot allocate unhealthy devices".to_owned());
            }
            // The devices of finished init containers are used first, at random.
            let before = &state.pods[pod].containers[..container];
            let reusable: BTreeSet<String> = before
                .iter()
                .filter(|one| one.is_init && one.resource == resource)
                .flat_map(|one| one.ids.iter().cloned())
                .collect();
            let taken = before.iter().filter(|one| !one.is_init).flat_map(|one| &one.ids);
            let reusable: BTreeSet<String> = {
                let taken: BTreeSet<&String> = taken.collect();
                reusable.into_iter().filter(|id| !taken.contains(id)).collect()
            };
            let must = state.pick(&reusable, size);
            let available: BTreeSet<String> = healthy.difference(&in_use).cloned().collect();
            (must, available, endpoint.socket, endpoint.options.get_preferred_allocation_available)
        };
        let needed = size - must.len();
        if needed == 0 {
            return Ok(must);
        }
        if available.len() < needed {
            return Err(format!(
                "requested number of devices unavailable for {resource}. Requested: {needed}, Available: {}",
                available.len()
            ));
        }
        let mut preferred = BTreeSet::new();
        if asks {
            let request = PreferredAllocationRequest {
                container_requests: vec![ContainerPreferredAllocationRequest {
                    available: available.union(&must).cloned().collect(),
                    must_include: must.iter().cloned().collect(),
                    size: size as i32,
                }],
            };
            let answer = async {
                let mut plugin = Client::connect(&socket).await?;
                plugin.unary::<_, PreferredAllocationResponse>(path::PREFERRED, request).await
            };
            let answer = answer.await.map_err(|status| {
                format!("rpc error: code = {:?} desc = {}", status.code(), status.message())
            })?;
            preferred = answer.container_responses.into_iter().flat_map(|response| response.ids).collect();
        }
        // The hint is followed as far as it goes; the kubelet fills up at random.
        let mut chosen: BTreeSet<String> = preferred.intersection(&available).take(needed).cloned().collect();
        let rest = available.difference(&chosen).cloned().collect();
        let missing = needed - chosen.len();
        chosen.extend(self.state().pick(&rest, missing));
        chosen.extend(must);
        Ok(chosen)
    }
}
