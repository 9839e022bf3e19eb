//! The plugin's behaviour with a kubelet. For each observed behaviour of a real kubelet, there is a
//! test.

use crate::kubelet::{Container, Pod};
use crate::node::{Node, pass, timing};
use deepres_abi::wire::{self, Hello, Role};
use deepres_daemon_harness::{Daemon, Tenant, hello};
use deepres_k8s::api::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, Empty, PreStartContainerRequest, path,
};
use deepres_k8s::evidence::CHECKPOINT;
use deepres_k8s::grpc::Client;
use deepres_k8s::node::Timing;
use deepres_model::wish::Wish;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tonic::Status;

const SHARE: &str = "deepres.dev/share";
const GPU: &str = "deepres.dev/gpu";

/// Returns the hello of a process of the container with this CDI device, which asks for `wish`.
pub fn hello_of(node: &Node, role: Role, device: &str, wish: Wish) -> Hello {
    let gpu = node.variable(device, "CUDA_VISIBLE_DEVICES");
    let gpu = node.daemon().gpus.iter().find(|own| own.uuid_text == gpu).unwrap();
    let mut hello = hello(role, &node.variable(device, "DEEPRES_TENANT"), &[gpu.uuid]);
    hello.wishes = wish.encode();
    hello
}

pub fn connect(node: &Node, device: &str, wish: Wish) -> Tenant {
    let hello = hello_of(node, Role::Session, device, wish);
    Tenant::connect(&node.daemon().directory.tenant_socket(), &hello).unwrap()
}

#[tokio::test]
async fn the_plugin_registers_each_resource_with_its_options() {
    let node = Node::start(3, 1).await;
    let mut registered = node.kubelet.registered();
    registered.sort_by(|one, other| one.resource_name.cmp(&other.resource_name));
    let said =
        registered.iter().map(|request| (&*request.resource_name, &*request.endpoint, &*request.version));
    let expected = [(GPU, "deepres-gpu.sock", "v1beta1"), (SHARE, "deepres-share.sock", "v1beta1")];
    assert_eq!(said.collect::<Vec<_>>(), expected);
    for request in registered {
        let options = request.options.unwrap();
        assert!(options.get_preferred_allocation_available && options.pre_start_required);
    }
    assert_eq!((node.kubelet.allocatable(SHARE), node.kubelet.capacity(SHARE)), (100, 200));
    assert_eq!((node.kubelet.allocatable(GPU), node.kubelet.capacity(GPU)), (1, 1));
}

#[tokio::test]
async fn the_devices_name_no_numa_node_and_their_ids_have_at_most_63_characters() {
    const MOST_CHARACTERS: usize = 63;
    let node = Node::start(3, 1).await;
    for resource in [SHARE, GPU] {
        for device in node.kubelet.devices(resource) {
            assert_eq!(device.topology, None, "{device:?}");
            assert!(device.id.len() <= MOST_CHARACTERS, "{device:?}");
        }
    }
}

#[tokio::test]
async fn a_container_gets_share_memory_gpu_and_token_by_cdi() {
    let node = Node::start(2, 0).await;
    let pod = node.kubelet.admit(Pod::of_shares("a", 30)).await.unwrap();
    let main = &pod.containers[0];
    assert_eq!(main.ids.len(), 30);
    let [gpu, own] = &main.devices[..] else { panic!("{:?}", main.devices) };
    let uuid = node.variable(own, "CUDA_VISIBLE_DEVICES");
    assert_eq!(*gpu, format!("nvidia.com/gpu={uuid}"));
    assert!(node.daemon().gpus.iter().any(|own| own.uuid_text == uuid));
    assert_eq!(node.variable(own, "DEEPRES_SHARE"), "30%");
    let memory = (1_u64 << 30) * 30 / 100;
    assert_eq!(node.variable(own, "DEEPRES_FALLBACK"), format!("share=30%,memory={memory}"));
    let token = node.variable(own, "DEEPRES_TENANT");
    assert_eq!(node.tokens().iter().map(|token| token.as_str()).collect::<Vec<_>>(), [token]);
}

#[tokio::test]
async fn the_daemons_record_binds_a_process_whatever_it_asks_for() {
    let node = Node::start(2, 0).await;
    let pod = node.kubelet.admit(Pod::of_shares("greedy", 30)).await.unwrap();
    let device = &pod.containers[0].devices[1];
    node.until("the daemon knows the container", || {
        let wish = Wish::default();
        let tenant = connect(&node, device, wish);
        let status = node.daemon().status();
        drop(tenant);
        status.tenants.iter().any(|tenant| tenant.pod.as_deref() == Some("greedy"))
    })
    .await;
    let memory = (1_u64 << 30) * 30 / 100;
    for (asked_memory, granted) in [(1 << 40, memory), (1 << 20, 1 << 20)] {
        let is_gone = || node.daemon().status().tenants.iter().all(|tenant| tenant.sessions.is_empty());
        node.until("no process is left", is_gone).await;
        let wish = Wish { share_ppm: Some(990_000), memory_bytes: Some(asked_memory), ..Wish::default() };
        let _tenant = connect(&node, device, wish);
        let status = node.daemon().status();
        let tenant = status.tenants.iter().find(|tenant| !tenant.sessions.is_empty()).unwrap();
        assert_eq!(tenant.asked_share_ppm, Some(300_000));
        assert_eq!(tenant.memory_limit_bytes, Some(granted), "a process may ask for less memory");
        let labels = (tenant.namespace.as_deref(), tenant.pod.as_deref());
        assert_eq!(labels, (Some("default"), Some("greedy")));
        assert!(
            tenant.name.starts_with("default/greedy/main") || tenant.name == "allocation",
            "{}",
            tenant.name
        );
    }
}

/// Sends the hello of a session with this tenant's name on these GPUs. Returns the daemon's reason.
fn refused(daemon: &Daemon, tenant: &str, gpus: &[wire::Uuid]) -> String {
    let hello = hello(Role::Session, tenant, gpus);
    Tenant::connect(&daemon.directory.tenant_socket(), &hello).map(drop).unwrap_err().1
}

#[tokio::test]
async fn a_wrong_token_and_a_gpu_beyond_the_allocation_get_nothing() {
    let node = Node::start(2, 0).await;
    let daemon = node.daemon();
    let said = refused(daemon, &format!("allocation:{}", "0".repeat(32)), &daemon.uuids());
    assert!(said.contains("does not know the allocation"), "{said}");
    let pod = node.kubelet.admit(Pod::of_shares("a", 30)).await.unwrap();
    let token = node.variable(&pod.containers[0].devices[1], "DEEPRES_TENANT");
    let said = refused(daemon, &token, &daemon.uuids());
    assert!(said.contains("which its allocation does not have"), "{said}");
    assert!(node.daemon().status().tenants.is_empty());
}

#[tokio::test]
async fn each_container_that_the_scheduler_admits_fits_on_one_gpu() {
    let node = Node::start(4, 0).await;
    let mut gpus = BTreeSet::new();
    for name in ["a", "b", "c", "d"] {
        let pod = node.kubelet.admit(Pod::of_shares(name, 60)).await.unwrap();
        gpus.extend(node.gpus(&pod.containers[0]));
        let used = node.kubelet.pods().len() * 60;
        let next = if used == 240 { 40 } else { 100 };
        node.until("the next hole is open", || node.kubelet.allocatable(SHARE) == used + next).await;
    }
    assert_eq!(gpus.len(), 4);
    // 160 are free, but the scheduler sees 40: a pod of 90 waits there and does not fail here.
    assert_eq!((node.kubelet.allocatable(SHARE), node.kubelet.capacity(SHARE)), (280, 400));
    node.kubelet.admit(Pod::of_shares("e", 40)).await.unwrap();
    assert_eq!(node.kubelet.start_pod("e").await, Some(Vec::new()));
    let said = node.kubelet.admit(Pod::of_shares("f", 90)).await.unwrap_err();
    assert!(said.contains("requested number of devices unavailable"), "{said}");
}

#[tokio::test]
async fn a_container_of_more_than_a_gpu_fails_with_the_reason() {
    let node = Node::start(2, 0).await;
    node.kubelet.admit(Pod::of_shares("a", 60)).await.unwrap();
    node.until("the other GPU is the hole", || node.kubelet.allocatable(SHARE) == 160).await;
    node.kubelet.end("a");
    // The freed shares stay healthy for a while, so the kubelet asks the plugin.
    let said = node.kubelet.admit(Pod::of_shares("b", 120)).await.unwrap_err();
    assert!(said.contains("between 1 and 100") && said.contains("deepres.dev/gpu"), "{said}");
}

#[tokio::test]
async fn a_container_for_which_no_gpu_has_room_waits_and_then_runs() {
    let mut node = Node::start(2, 0).await;
    for (name, size, healthy) in [("a", 56, 156), ("b", 54, 156), ("c", 40, 196)] {
        node.kubelet.admit(Pod::of_shares(name, size)).await.unwrap();
        node.until("the hole is open", || node.kubelet.allocatable(SHARE) == healthy).await;
    }
    node.kubelet.end("c");
    // The scheduler counts c's shares at once, and the plugin's list does not lag behind.
    let late = node.kubelet.admit(Pod::of_shares("late", 62)).await.unwrap();
    let start = tokio::spawn(node.kubelet.start_pod("late"));
    // A smaller pod fits on the other GPU, and the room is not taken from the pod that waits.
    let small = node.kubelet.admit(Pod::of_shares("small", 20)).await.unwrap();
    assert_eq!(node.kubelet.start_pod("small").await, Some(Vec::new()));
    assert_ne!(node.gpus(&small.containers[0]), node.gpus(&late.containers[0]));
    pass(30).await;
    assert!(!start.is_finished());
    node.restart_plugin();
    pass(5).await;
    node.kubelet.end("b");
    let refusals = start.await.unwrap().unwrap();
    let said = refusals.first().expect("the kubelet tried in vain");
    assert!(said.contains("waits for 62 deepres.dev/share on one GPU, and 16 more"), "{said}");
    node.until("the wait is over", || !node.specifications().concat().contains("DEEPRES_WAITS")).await;
}

#[tokio::test]
async fn a_container_that_waits_starts_on_any_gpu_with_room() {
    let node = Node::start(2, 0).await;
    let mut pods = Vec::new();
    for (name, size, healthy) in [("a", 56, 156), ("b", 54, 156), ("c", 40, 196)] {
        pods.push(node.kubelet.admit(Pod::of_shares(name, size)).await.unwrap());
        node.until("the hole is open", || node.kubelet.allocatable(SHARE) == healthy).await;
    }
    let other = node.gpus(&pods[0].containers[0]);
    node.kubelet.end("c");
    let late = node.kubelet.admit(Pod::of_shares("late", 62)).await.unwrap();
    let main = &late.containers[0];
    assert_ne!(node.gpus(main), other, "it waits for the GPU that lacks the least");
    assert_eq!(main.devices.len(), 3, "it has the files of both GPUs: {:?}", main.devices);
    let start = tokio::spawn(node.kubelet.start_pod("late"));
    pass(5).await;
    node.kubelet.end("a");
    let started = timeout(Duration::from_secs(20), start).await.expect("the container starts");
    started.unwrap().unwrap();
    assert_eq!(node.gpus(main), other);
    let device = &main.devices[2];
    let memory = (1_u64 << 30) * 62 / 100;
    assert_eq!(node.variable(device, "DEEPRES_FALLBACK"), format!("share=62%,memory={memory}"));
    let _tenant = connect(&node, device, Wish::default());
    let status = node.daemon().status();
    assert_eq!(status.tenants.iter().filter_map(|tenant| tenant.asked_share_ppm).max(), Some(620_000));
}

#[tokio::test]
async fn a_container_that_waits_gets_no_files_of_an_ill_gpu_and_never_starts_there() {
    let node = Node::start(3, 0).await;
    let (faults, ill) = (&node.daemon().faults, &node.daemon().gpus[2].uuid_text);
    faults.set(ill, Some("it fell off the bus"));
    pass(5).await;
    for (name, size, healthy) in [("a", 56, 156), ("b", 54, 156), ("c", 40, 196)] {
        node.kubelet.admit(Pod::of_shares(name, size)).await.unwrap();
        node.until("the hole is open", || node.kubelet.allocatable(SHARE) == healthy).await;
    }
    node.kubelet.end("c");
    let late = node.kubelet.admit(Pod::of_shares("late", 62)).await.unwrap();
    let main = &late.containers[0];
    let has_files = |gpu: &String| main.devices.contains(&format!("nvidia.com/gpu={gpu}"));
    assert!(main.devices.len() == 3 && !has_files(ill), "{:?}", main.devices);
    let start = tokio::spawn(node.kubelet.start_pod("late"));
    faults.set(ill, None);
    node.until("the GPU is well", || node.kubelet.allocatable(SHARE) > 200).await;
    pass(30).await;
    assert!(!start.is_finished(), "the container lacks the files of the GPU with room");
    node.kubelet.end("a");
    start.await.unwrap().unwrap();
    assert!(node.gpus(main).iter().all(has_files));
}

/// Asks the plugin once whether a container can start.
async fn start(node: &Node, container: &Container) -> Result<Empty, Status> {
    let mut plugin = Client::connect(&node.kubelet.plugins.join("deepres-share.sock")).await?;
    let request = PreStartContainerRequest { ids: container.ids.iter().cloned().collect() };
    plugin.unary(path::PRE_START, request).await
}

/// Asks the plugin once whether a container can start. Returns the plugin's reason against it.
async fn refused_start(node: &Node, container: &Container) -> String {
    start(node, container).await.unwrap_err().message().to_owned()
}

#[tokio::test]
async fn a_container_that_waits_learns_of_a_fault_once_no_gpu_is_open_for_it() {
    let node = Node::start(2, 0).await;
    for (name, size, healthy) in [("a", 56, 156), ("b", 54, 156), ("c", 40, 196)] {
        node.kubelet.admit(Pod::of_shares(name, size)).await.unwrap();
        node.until("the hole is open", || node.kubelet.allocatable(SHARE) == healthy).await;
    }
    node.kubelet.end("c");
    let late = node.kubelet.admit(Pod::of_shares("late", 62)).await.unwrap();
    let main = &late.containers[0];
    let own = node.gpus(main).into_iter().next().unwrap();
    node.daemon().faults.set(&own, Some("it fell off the bus"));
    pass(30).await;
    let said = refused_start(&node, main).await;
    assert!(said.contains("waits for 62"), "{said}");
    for gpu in &node.daemon().gpus {
        node.daemon().faults.set(&gpu.uuid_text, Some("it fell off the bus"));
    }
    let is_told = async { while !refused_start(&node, main).await.contains("it fell off the bus") {} };
    timeout(Duration::from_secs(20), is_told).await.expect("the container is told of the fault");
}

#[test]
fn a_container_that_waits_gets_an_answer_before_the_kubelet_gives_up() {
    /// The time for which a kubelet waits for the answer to PreStartContainer.
    const KUBELET_WAITS: Duration = Duration::from_secs(30);
    let Timing { hold, look, wait, .. } = Timing::default();
    // An allocation that waits for the daemon can delay the last look.
    assert!(hold + look + wait < KUBELET_WAITS);
}

#[tokio::test]
async fn a_surplus_of_shares_goes_while_pods_come_and_go() {
    let node = Node::start(4, 0).await;
    let mut used = 0;
    for (size, names) in [(60, ["a", "b", "c", "d"]), (40, ["e", "f", "g", "h"])] {
        for name in names {
            node.kubelet.admit(Pod::of_shares(name, size)).await.unwrap();
            used += size;
            let hole = if used < 240 { 100 } else { 40.min(400 - used) };
            node.until("the next hole is open", || node.kubelet.allocatable(SHARE) == used + hole).await;
        }
    }
    for name in ["e", "f", "g", "h"] {
        node.kubelet.end(name);
    }
    let mut least = usize::MAX;
    for round in 0..12 {
        let name = format!("small-{round}");
        node.kubelet.admit(Pod::of_shares(&name, 2)).await.unwrap();
        pass(10).await;
        node.kubelet.end(&name);
        pass(10).await;
        least = least.min(node.kubelet.allocatable(SHARE));
    }
    assert!(least <= 240 + 44, "the scheduler sees {} free shares, and no GPU has more than 40", least - 240);
}

#[tokio::test]
async fn the_plugin_asks_for_no_list_while_the_kubelet_gives_devices() {
    let node = Node::start_with(1, 0, Timing { giving: Duration::from_millis(150), ..timing() }).await;
    node.kubelet.admit(Pod::of_shares("old", 10)).await.unwrap();
    sleep(Duration::from_millis(300)).await;
    node.kubelet.slow_down(Duration::from_millis(20));
    let end = async {
        sleep(Duration::from_millis(10)).await;
        node.kubelet.end("old");
    };
    let (pod, ()) = tokio::join!(node.kubelet.admit(Pod::of_shares("new", 30)), end);
    let given = node.kubelet.given(SHARE);
    assert!(pod.unwrap().containers[0].ids.is_subset(&given), "a list made the kubelet forget devices");
}

#[tokio::test]
async fn the_plugin_learns_of_a_fault_while_the_kubelet_gives_devices_all_the_time() {
    let (giving, wait) = (Duration::from_millis(150), Duration::from_millis(50));
    let node = Node::start_with(2, 1, Timing { giving, wait, ..timing() }).await;
    let socket = node.kubelet.plugins.join("deepres-share.sock");
    let (begin, began) = oneshot::channel();
    let gives = tokio::spawn(async move {
        let mut begin = Some(begin);
        let mut plugin = Client::connect(&socket).await.unwrap();
        loop {
            let container_requests = vec![ContainerAllocateRequest { ids: vec!["unknown".to_owned()] }];
            let call =
                plugin.unary::<_, AllocateResponse>(path::ALLOCATE, AllocateRequest { container_requests });
            call.await.unwrap_err();
            if let Some(begin) = begin.take() {
                begin.send(()).unwrap();
            }
            sleep(giving / 10).await;
        }
    });
    began.await.unwrap();
    // The look that was under way is over.
    pass(10).await;
    node.daemon().faults.set(&node.daemon().gpus[1].uuid_text, Some("Xid 79"));
    node.until("the GPU is unhealthy", || node.kubelet.allocatable(GPU) == 0).await;
    gives.abort();
}

/// Admits a pod while another pod ends and another client lists the pods. Returns the devices of
/// the pod's first container.
async fn admit_while_another_client_lists(node: &Node, pod: Pod) -> BTreeSet<String> {
    node.kubelet.admit(Pod::of_shares("old", 10)).await.unwrap();
    sleep(Duration::from_millis(30)).await;
    node.kubelet.slow_down(Duration::from_millis(20));
    let list = async {
        sleep(Duration::from_millis(20)).await;
        node.kubelet.end("old");
        node.kubelet.list().await;
    };
    let (pod, ()) = tokio::join!(node.kubelet.admit(pod), list);
    pod.unwrap().containers[0].ids.clone()
}

#[tokio::test]
async fn the_devices_of_a_running_init_container_are_not_given_when_another_client_lists_the_pods() {
    let node = Node::start(1, 0).await;
    let containers = vec![Container::new("init", SHARE, 50).init(), Container::new("main", SHARE, 10)];
    let ids = admit_while_another_client_lists(&node, Pod::new("pod", containers)).await;
    assert!(!ids.is_subset(&node.kubelet.given(SHARE)), "the kubelet forgot the devices");
    let said = node.kubelet.admit(Pod::of_shares("large", 60)).await.unwrap_err();
    assert!(said.contains("50 devices that no running container has"), "{said}");
}

#[tokio::test]
async fn no_device_is_given_twice_when_another_client_lists_the_pods() {
    let node = Node::start(1, 0).await;
    let ids = admit_while_another_client_lists(&node, Pod::of_shares("new", 30)).await;
    assert!(ids.is_disjoint(&node.kubelet.given(SHARE)), "the kubelet forgot the devices");
    let next = node.kubelet.admit(Pod::of_shares("next", 60)).await.unwrap();
    assert!(ids.is_disjoint(&next.containers[0].ids));
    let said = node.kubelet.admit(Pod::of_shares("large", 20)).await.unwrap_err();
    assert!(said.contains("10 devices that no running container has"), "{said}");
}

#[tokio::test]
async fn the_part_of_an_init_container_that_has_ended_is_free_for_others() {
    let node = Node::start(2, 0).await;
    let containers = vec![Container::new("init", SHARE, 90).init(), Container::new("main", SHARE, 10)];
    let pod = node.kubelet.admit(Pod::new("pod", containers)).await.unwrap();
    node.until("the other GPU is the hole", || node.kubelet.allocatable(SHARE) == 190).await;
    node.kubelet.admit(Pod::of_shares("other", 60)).await.unwrap();
    pass(10).await;
    assert_eq!(node.kubelet.allocatable(SHARE), 90 + 60 + 40, "the init container may run still");
    assert_eq!(node.kubelet.start_pod("pod").await, Some(Vec::new()));
    node.until("the room is open", || node.kubelet.allocatable(SHARE) == 200).await;
    let next = node.kubelet.admit(Pod::of_shares("next", 50)).await.unwrap();
    assert_eq!(node.kubelet.start_pod("next").await, Some(Vec::new()));
    assert_eq!(node.gpus(&next.containers[0]), node.gpus(&pod.containers[1]));
    // The other GPU has the most room.
    node.kubelet.end("other");
    node.until("the other pod is gone", || node.specifications().len() == 3).await;
    node.kubelet.admit(Pod::of_shares("second", 50)).await.unwrap();
    // The pod starts anew, and its init container with it.
    let again = tokio::spawn(node.kubelet.start_pod("pod"));
    pass(30).await;
    assert!(!again.is_finished());
    let small = node.kubelet.admit(Pod::of_shares("small", 10)).await.unwrap();
    let fullest = node.gpus(&pod.containers[1]);
    assert_ne!(node.gpus(&small.containers[0]), fullest, "room is kept for the init container");
    node.kubelet.end("next");
    let refusals = again.await.unwrap().unwrap();
    assert!(refusals[0].contains("waits for 90") && refusals[0].contains("40 more"), "{refusals:?}");
    let is_over = || node.specifications().concat().contains("DEEPRES_OVER");
    node.until("the init container has ended again", is_over).await;
}

#[tokio::test]
async fn the_room_for_an_init_container_that_runs_again_is_kept_until_the_kubelet_asks() {
    let node = Node::start(2, 0).await;
    let containers = vec![Container::new("init", SHARE, 90).init(), Container::new("main", SHARE, 10)];
    let pod = node.kubelet.admit(Pod::new("pod", containers)).await.unwrap();
    node.until("the other GPU is the hole", || node.kubelet.allocatable(SHARE) == 190).await;
    node.kubelet.admit(Pod::of_shares("other", 60)).await.unwrap();
    assert_eq!(node.kubelet.start_pod("pod").await, Some(Vec::new()));
    node.until("the room is open", || node.kubelet.allocatable(SHARE) == 200).await;
    node.kubelet.admit(Pod::of_shares("next", 50)).await.unwrap();
    let said = refused_start(&node, &pod.containers[0]).await;
    assert!(said.contains("waits for 90"), "{said}");
    node.kubelet.end("next");
    node.until("the wait is over", || !node.specifications().concat().contains("DEEPRES_WAITS")).await;
    pass(30).await;
    assert!(!node.specifications().concat().contains("DEEPRES_OVER"), "the room is for others again");
}

#[tokio::test]
async fn the_fault_of_a_gpu_reaches_the_kubelet_and_goes_again() {
    let node = Node::start(3, 1).await;
    let pod = node.kubelet.admit(Pod::of_shares("a", 60)).await.unwrap();
    node.until("the other GPU is the hole", || node.kubelet.allocatable(SHARE) == 160).await;
    let ill: String = node.gpus(&pod.containers[0]).into_iter().next().unwrap();
    let faults = &node.daemon().faults;
    faults.set(&ill, Some("it fell off the bus"));
    // The scheduler still counts the pod's 60 devices. All devices but those of the pod are
    // healthy.
    node.until("the pod's devices are unhealthy", || node.kubelet.allocatable(SHARE) == 140).await;
    let start = tokio::spawn(node.kubelet.start_pod("a"));
    let next = node.kubelet.admit(Pod::of_shares("b", 30)).await.unwrap();
    assert_eq!(node.kubelet.start_pod("b").await, Some(Vec::new()));
    assert!(!node.gpus(&next.containers[0]).contains(&ill));
    pass(30).await;
    assert!(!start.is_finished());
    faults.set(&ill, None);
    let refusals = start.await.unwrap().unwrap();
    assert!(
        refusals[0].contains("it fell off the bus") && refusals[0].contains("delete the pod"),
        "{refusals:?}"
    );
    node.until("the devices are back", || node.kubelet.allocatable(SHARE) == 60 + 30 + 70).await;
    let whole = node.daemon().gpus.last().unwrap().uuid_text.clone();
    faults.set(&whole, Some("Xid 79"));
    node.until("the whole GPU is unhealthy", || node.kubelet.allocatable(GPU) == 0).await;
    assert_eq!(node.kubelet.capacity(GPU), 1);
    faults.set(&whole, None);
    node.until("the whole GPU is back", || node.kubelet.allocatable(GPU) == 1).await;
}

#[tokio::test]
async fn an_init_container_and_its_pod_are_on_one_gpu() {
    let node = Node::start(2, 0).await;
    node.kubelet.admit(Pod::of_shares("other", 30)).await.unwrap();
    node.until("the other GPU is the hole", || node.kubelet.allocatable(SHARE) == 130).await;
    for (name, init, main) in [("small", 20, 80), ("large", 90, 10), ("same", 50, 50)] {
        let containers =
            vec![Container::new("init", SHARE, init).init(), Container::new("main", SHARE, main)];
        let pod = node.kubelet.admit(Pod::new(name, containers)).await.unwrap();
        assert_eq!(node.kubelet.start_pod(name).await, Some(Vec::new()), "{name}");
        assert!(pod.containers.iter().all(|one| node.gpus(one).len() == 1), "{name}");
        // Longer than the plugin waits for a container to be listed: the init container never is.
        pass(30).await;
        assert_eq!(node.specifications().len(), 3, "{name}: both containers keep their devices");
        node.kubelet.end(name);
        node.until("the allocations end with the pod", || node.specifications().len() == 1).await;
        node.until("it is quiet", || node.kubelet.allocatable(SHARE) == 130).await;
    }
}

#[tokio::test]
async fn a_sidecar_that_restarts_ends_no_init_container() {
    let node = Node::start(1, 0).await;
    let containers = vec![
        Container::new("sidecar", SHARE, 10),
        Container::new("init", SHARE, 80).init(),
        Container::new("main", SHARE, 10),
    ];
    let pod = node.kubelet.admit(Pod::new("pod", containers)).await.unwrap();
    let [sidecar, init, main] = &pod.containers[..] else { panic!("{pod:?}") };
    assert!(sidecar.ids.is_disjoint(&init.ids) && main.ids.is_subset(&init.ids), "{pod:?}");
    for one in [sidecar, init, sidecar] {
        start(&node, one).await.unwrap();
    }
    pass(30).await;
    assert!(!node.specifications().concat().contains("DEEPRES_OVER"), "the init container may run still");
    start(&node, main).await.unwrap();
    let is_over = || node.specifications().concat().contains("DEEPRES_OVER");
    node.until("the init container has ended", is_over).await;
}

#[tokio::test]
async fn an_init_container_that_asks_alone_keeps_its_shares_while_its_pod_is_there() {
    let node = Node::start(1, 0).await;
    let pod = Pod::new("setup", vec![Container::new("init", SHARE, 50).init()]);
    node.kubelet.admit(pod).await.unwrap();
    pass(40).await;
    assert_eq!((node.specifications().len(), node.tokens().len()), (1, 1));
    node.kubelet.end("setup");
    node.until("the allocation ends with the pod", || node.specifications().is_empty()).await;
}

#[tokio::test]
async fn the_allocation_of_a_pod_ends_with_the_pod_also_after_restarts() {
    let mut node = Node::start(2, 0).await;
    for name in ["a", "b"] {
        node.kubelet.admit(Pod::of_shares(name, 50)).await.unwrap();
    }
    node.stop_plugin();
    node.kubelet.end("a");
    node.restart_daemon().await;
    assert_eq!((node.tokens().len(), node.specifications().len()), (2, 2), "the daemon's state has both");
    node.start_plugin();
    node.until("a's allocation is gone", || node.specifications().len() == 1 && node.tokens().len() == 1)
        .await;
    pass(30).await;
    assert_eq!(node.specifications().len(), 1, "b's is not");
}

#[tokio::test]
async fn a_pod_that_fails_half_way_leaves_nothing() {
    let node = Node::start(2, 0).await;
    let containers = vec![Container::new("one", SHARE, 60), Container::new("two", SHARE, 60)];
    let said = node.kubelet.admit(Pod::new("a", containers)).await.unwrap_err();
    assert!(said.contains("requested number of devices unavailable"), "{said}");
    assert_eq!(node.specifications().len(), 1);
    node.until("the first container's allocation ends", || {
        node.specifications().is_empty() && node.tokens().is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_kubelet_that_restarts_gets_the_devices_again_and_keeps_its_pods() {
    let mut node = Node::start(2, 0).await;
    let before = node.kubelet.admit(Pod::of_shares("a", 60)).await.unwrap();
    for restart in 2..5 {
        node.kubelet.restart();
        assert_eq!(node.kubelet.allocatable(SHARE), 0);
        let said = node.kubelet.admit(Pod::of_shares("early", 10)).await.unwrap_err();
        assert!(said.contains("unregistered"), "{said}");
        node.until("the plugin registered again", || node.kubelet.allocatable(SHARE) == 160).await;
        assert_eq!(node.kubelet.registered().len(), restart);
    }
    pass(30).await;
    assert_eq!(node.tokens().len(), 1);
    let device = &before.containers[0].devices[1];
    assert_eq!(node.variable(device, "DEEPRES_SHARE"), "60%");
}

#[tokio::test]
async fn a_kubelet_whose_socket_has_the_old_inode_number_gets_the_devices_again() {
    let node = Node::start(2, 0).await;
    // The clock of the file system moves on.
    pass(10).await;
    node.kubelet.restart_at_the_old_inode();
    assert_eq!(node.kubelet.allocatable(SHARE), 0);
    node.until("the plugin registered again", || node.kubelet.allocatable(SHARE) == 100).await;
    assert_eq!(node.kubelet.registered().len(), 2);
}

#[tokio::test]
async fn a_plugin_that_restarts_makes_its_socket_again() {
    let mut node = Node::start(2, 0).await;
    node.kubelet.admit(Pod::of_shares("a", 60)).await.unwrap();
    node.stop_plugin();
    node.until("the devices are unhealthy", || node.kubelet.allocatable(SHARE) == 0).await;
    node.start_plugin();
    node.until("the devices are back", || node.kubelet.allocatable(SHARE) == 160).await;
    std::fs::remove_file(node.kubelet.plugins.join("deepres-share.sock")).unwrap();
    let before = node.kubelet.registered().len();
    node.until("the plugin noticed the loss", || node.kubelet.registered().len() > before).await;
}

#[tokio::test]
async fn a_plugin_that_restarts_has_its_devices_before_the_kubelet_names_its_pods() {
    let mut node = Node::start(2, 0).await;
    let pod = node.kubelet.admit(Pod::of_shares("a", 60)).await.unwrap();
    node.stop_plugin();
    node.until("the devices are unhealthy", || node.kubelet.allocatable(SHARE) == 0).await;
    node.kubelet.hold_lists(true);
    let given_up = node.kubelet.lists_given_up();
    node.start_plugin();
    node.until("the devices are back", || node.kubelet.allocatable(SHARE) == 160).await;
    assert_eq!(node.kubelet.lists_given_up(), given_up, "the plugin waited for the kubelet");
    // Until the kubelet answers, the plugin knows a container by its own record.
    assert_eq!(node.kubelet.start_pod("a").await, Some(Vec::new()));
    assert_eq!(node.variable(&pod.containers[0].devices[1], "DEEPRES_SHARE"), "60%");
    node.kubelet.end("a");
    node.kubelet.hold_lists(false);
    node.until("the allocation is gone", || node.specifications().is_empty()).await;
}

#[tokio::test]
async fn a_damaged_checkpoint_ends_no_allocation() {
    let node = Node::start(1, 0).await;
    // PodResources names no init containers, so only the checkpoint has this container.
    let pod = Pod::new("setup", vec![Container::new("init", SHARE, 50).init()]);
    node.kubelet.admit(pod).await.unwrap();
    // From now on, the plugin ends the allocation if neither source has the container.
    pass(15).await;
    let checkpoint = node.kubelet.plugins.join(CHECKPOINT);
    let text = std::fs::read_to_string(&checkpoint).unwrap();
    for damaged in ["", &text[..text.len() / 2]] {
        std::fs::write(&checkpoint, damaged).unwrap();
        pass(40).await;
        assert_eq!((node.specifications().len(), node.tokens().len()), (1, 1), "{damaged:?}");
    }
    node.kubelet.end("setup");
    std::fs::write(&checkpoint, r#"{"Data":{"PodDeviceEntries":[]}}"#).unwrap();
    node.until("the allocation ends with the pod", || node.specifications().is_empty()).await;
}

#[tokio::test]
async fn a_daemon_that_restarts_costs_nothing_and_one_that_stays_away_costs_the_health() {
    let mut node = Node::start(2, 0).await;
    node.kubelet.admit(Pod::of_shares("a", 60)).await.unwrap();
    node.restart_daemon().await;
    assert_eq!(node.tokens().len(), 1, "the state file has the allocation");
    node.kubelet.admit(Pod::of_shares("b", 30)).await.unwrap();
    drop(node.daemon.take());
    node.until("all devices are unhealthy", || node.kubelet.allocatable(SHARE) == 0).await;
}

#[tokio::test]
async fn a_container_with_a_whole_gpu_waits_for_a_daemon_that_restarts() {
    let mut node = Node::start(2, 1).await;
    let daemon = node.daemon.take().unwrap();
    let (end, has_ended) = oneshot::channel();
    let (begin, may_begin) = std::sync::mpsc::channel();
    let restarted = spawn_blocking(move || {
        daemon.restart_after(|_| {
            end.send(()).unwrap();
            may_begin.recv().unwrap();
        })
    });
    has_ended.await.unwrap();
    let admitted = node.kubelet.admit(Pod::new("a", vec![Container::new("main", GPU, 1)]));
    let begins = async {
        // The plugin asks in vain meanwhile.
        pass(5).await;
        begin.send(()).unwrap();
    };
    let (admitted, ()) = tokio::join!(admitted, begins);
    node.daemon = Some(restarted.await.unwrap());
    assert_eq!(admitted.unwrap().containers[0].ids.len(), 1);
}

#[tokio::test]
async fn whole_gpus_are_apart_from_shares() {
    let node = Node::start(4, 2).await;
    let containers = vec![Container::new("main", GPU, 2)];
    let pod = node.kubelet.admit(Pod::new("big", containers)).await.unwrap();
    let [one, other, own] = &pod.containers[0].devices[..] else { panic!("{:?}", pod.containers[0]) };
    assert!(
        one.starts_with("nvidia.com/gpu=GPU-") && other.starts_with("nvidia.com/gpu=GPU-") && one != other
    );
    assert_eq!(node.variable(own, "DEEPRES_SHARE"), "100%");
    let visible = node.variable(own, "CUDA_VISIBLE_DEVICES");
    assert_eq!(visible.split(',').map(str::to_owned).collect::<BTreeSet<_>>(), pod.containers[0].ids);
    assert_eq!(node.kubelet.start_pod("big").await, Some(Vec::new()));
    let share = node.kubelet.admit(Pod::of_shares("small", 100)).await.unwrap();
    assert!(node.gpus(&share.containers[0]).is_disjoint(&node.gpus(&pod.containers[0])));
    let said = node.kubelet.admit(Pod::new("more", vec![Container::new("main", GPU, 1)])).await.unwrap_err();
    assert!(said.contains("unavailable"), "{said}");
}

#[tokio::test]
async fn a_gpu_that_moves_to_the_other_pool_gets_no_container_before_the_last_one_has_ended() {
    let mut node = Node::start(2, 1).await;
    let pod = node.kubelet.admit(Pod::new("big", vec![Container::new("main", GPU, 1)])).await.unwrap();
    let small = node.kubelet.admit(Pod::of_shares("small", 30)).await.unwrap();
    let (big, shared) = (node.gpus(&pod.containers[0]), node.gpus(&small.containers[0]));
    // The GPUs change places.
    node.restart_plugin_with(shared.into_iter().collect());
    // The scheduler counts 30 for the small pod still, and so has none for others.
    node.until("the plugin has its devices", || node.kubelet.allocatable(SHARE) == 30).await;
    pass(20).await;
    assert_eq!((node.kubelet.allocatable(GPU), node.kubelet.capacity(GPU)), (0, 1));
    assert_eq!(node.kubelet.start_pod("small").await, Some(Vec::new()), "it goes on where it is");
    node.kubelet.end("small");
    node.until("the GPU is whole", || node.kubelet.allocatable(GPU) == 1).await;
    node.until("the other GPU has no shares", || node.kubelet.allocatable(SHARE) == 0).await;
    node.kubelet.end("big");
    node.until("the GPU has shares", || node.kubelet.allocatable(SHARE) == 100).await;
    let next = node.kubelet.admit(Pod::of_shares("next", 30)).await.unwrap();
    assert_eq!(node.gpus(&next.containers[0]), big);
}

#[tokio::test]
async fn the_ids_of_a_pod_that_ended_serve_the_next() {
    let node = Node::start(1, 0).await;
    for round in 0..20 {
        let name = format!("pod-{round}");
        let pod = node.kubelet.admit(Pod::of_shares(&name, 40 + round)).await.unwrap();
        let device = &pod.containers[0].devices[1];
        assert_eq!(node.variable(device, "DEEPRES_SHARE"), format!("{}%", 40 + round));
        node.kubelet.end(&name);
    }
    node.until("the last allocation is gone", || {
        node.specifications().is_empty() && node.tokens().is_empty()
    })
    .await;
}
