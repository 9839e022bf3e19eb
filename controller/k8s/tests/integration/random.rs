//! Random pods on a node with four GPUs, with restarts of kubelet, plugin and daemon. A fake
//! scheduler counts the devices of the node's status, which the kubelet renews every ten seconds.

use crate::behaviour::hello_of;
use crate::kubelet::{Container, Pod};
use crate::node::{Node, SECOND, pass, timing};
use deepres_abi::wire::Role;
use deepres_daemon_harness::shake_hands;
use deepres_k8s::node::Timing;
use deepres_model::wish::Wish;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;
use tokio::task::JoinSet;
use zerocopy::IntoBytes;

const SHARE: &str = "deepres.dev/share";
/// The beginning of the message of a pod that the kubelet did not admit.
const ADMISSION_ERROR: &str = "UnexpectedAdmissionError: Allocate failed due to ";
const GPUS: usize = 4;
/// Seconds between two reports of the node's status.
const STATUS_S: u32 = 10;
/// Mean seconds for which a pod runs, for each second between two pods. The pods ask for more than
/// the GPUs have, so some always wait at the scheduler.
const RUNS: u64 = 8;
/// The most pods of 1,000 that the scheduler admitted and that do not run.
const FAILED_PER_MILLE: usize = 10;

/// A simple source of random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Returns a random pod: one container, or two, a part of them with an init container.
fn pod(number: usize, random: &mut Random) -> Pod {
    let mut share = |name: &str| Container::new(name, SHARE, 1 + random.below(100) as usize);
    let main = share("main");
    let second = share("second");
    let init = share("init").init();
    let mut containers = Vec::new();
    if random.below(4) == 0 {
        containers.push(init);
    }
    // All containers of a pod together may ask for at most one GPU. The node publishes no more free
    // shares than one GPU has, so a larger pod waits for ever (docs/kubernetes.md).
    let has_room = main.size + second.size <= 100;
    containers.push(main);
    if has_room && random.below(4) == 0 {
        containers.push(second);
    }
    Pod::new(&format!("pod-{number}"), containers)
}

/// The devices that the scheduler believes the node to have.
struct Scheduler {
    allocatable: usize,
    reported: Instant,
    /// The requests of the pods that it has bound and that are not over.
    bound: BTreeMap<String, usize>,
}

impl Scheduler {
    fn free(&self) -> usize {
        self.allocatable.saturating_sub(self.bound.values().sum())
    }
}

/// Checks what must hold at each moment. `running` are the names of the pods that run.
fn check(node: &Node, running: impl Iterator<Item = String>) {
    let running: BTreeSet<String> = running.collect();
    let mut given = BTreeMap::<String, String>::new();
    let mut shares = BTreeMap::<String, usize>::new();
    for pod in &node.kubelet.pods() {
        let own: BTreeSet<&String> = pod.containers.iter().flat_map(|one| &one.ids).collect();
        for id in own {
            let other = given.insert(id.clone(), pod.name.clone());
            assert_eq!(other, None, "{id} is given twice, also to {}", pod.name);
        }
        // The init containers of a running pod have ended.
        for one in pod.containers.iter().filter(|one| running.contains(&pod.name) && !one.is_init) {
            let gpus = node.gpus(one);
            assert_eq!(gpus.len(), 1, "{}/{} has several GPUs: {gpus:?}", pod.name, one.name);
            gpus.into_iter().for_each(|gpu| *shares.entry(gpu).or_default() += one.size);
        }
    }
    assert!(shares.values().all(|shares| *shares <= 100), "a GPU has more shares than it has: {shares:?}");
}

/// Parts of the reasons of pods that fail while the kubelet has no plugin or the plugin has no
/// daemon.
const RESTARTING: [&str; 3] =
    ["cannot allocate unregistered device", "no healthy devices present", "cannot reach"];

/// Checks that a job of each container of a pod gets the container's share.
fn check_shares(node: &Node, pod: &Pod) {
    for one in &pod.containers {
        let device = one.devices.last().unwrap();
        let hello = hello_of(node, Role::Keeper, device, Wish::default());
        let (_connection, welcome, _) =
            shake_hands(&node.daemon().directory.tenant_socket(), hello.as_bytes()).unwrap();
        let granted = welcome.fallback().share_ppm;
        assert_eq!(granted, Some(one.size as u32 * 10_000), "{}/{}", pod.name, one.name);
    }
}

/// Runs random pods, one in `apart_s` seconds. Restarts something after each `restart_each` pods.
/// Returns the node, which tells a failed test the CPU time that the hypervisor took. Also returns
/// the number of pods that the scheduler admitted, of those that ran, and of those that failed while
/// a part of the node restarted.
async fn run(pods: usize, seed: u64, apart_s: u64, restart_each: usize) -> (Node, [usize; 3]) {
    // A daemon of a test does not restart faster than another, so it can be away for as long.
    let times = Timing { daemon_timeout: Timing::default().daemon_timeout, ..timing() };
    let mut node = Node::start_with(GPUS, 0, times).await;
    let mut random = Random(seed);
    let mut scheduler = Scheduler {
        allocatable: node.kubelet.allocatable(SHARE),
        reported: Instant::now(),
        bound: BTreeMap::new(),
    };
    let mut waiting = VecDeque::new();
    let mut starting = JoinSet::<(Option<Vec<String>>, Pod)>::new();
    let mut ends = BTreeMap::<String, Instant>::new();
    let (mut made, mut admitted, mut run, mut waited) = (0, 0, 0, 0);
    let mut next = Instant::now();
    let mut failed = BTreeMap::<String, usize>::new();
    let mut restarting = 0;
    // The number and the kind of the last restart. For each restart: the number of pods that failed
    // after it, and the time of the last one after the restart, ms.
    let (mut restarted, mut since) = ((0, "none"), Instant::now());
    let mut after_restarts = BTreeMap::new();
    while made < pods || !waiting.is_empty() || !starting.is_empty() || !ends.is_empty() {
        if made < pods && Instant::now() >= next {
            waiting.push_back(pod(made, &mut random));
            made += 1;
            next += SECOND * random.below(2 * apart_s) as u32;
            if made % restart_each == 0 {
                restarted = (restarted.0 + 1, ["kubelet", "plugin", "daemon"][random.below(3) as usize]);
                match restarted.1 {
                    "kubelet" => node.kubelet.restart(),
                    "plugin" => node.restart_plugin(),
                    _ => node.restart_daemon().await,
                }
                since = Instant::now();
            }
        }
        let over: Vec<String> =
            ends.iter().filter(|(_, end)| **end <= Instant::now()).map(|(name, _)| name.clone()).collect();
        for name in over {
            node.kubelet.end(&name);
            scheduler.bound.remove(&name);
            ends.remove(&name);
        }
        while let Some(started) = starting.try_join_next() {
            let (refusals, pod) = started.unwrap();
            run += 1;
            waited += usize::from(!refusals.expect("the pod is not over").is_empty());
            let runs_s = apart_s + random.below(2 * RUNS * apart_s);
            ends.insert(pod.name.clone(), Instant::now() + SECOND * runs_s as u32);
            check(&node, ends.keys().cloned());
            check_shares(&node, &pod);
        }
        if scheduler.reported.elapsed() >= SECOND * STATUS_S {
            (scheduler.allocatable, scheduler.reported) = (node.kubelet.allocatable(SHARE), Instant::now());
        }
        // The scheduler tries all waiting pods, the oldest first.
        let fits = waiting.iter().position(|pod: &Pod| pod.request(SHARE) <= scheduler.free());
        if let Some(pod) = fits.and_then(|place| waiting.remove(place)) {
            admitted += 1;
            let name = pod.name.clone();
            scheduler.bound.insert(name.clone(), pod.request(SHARE));
            match node.kubelet.admit(pod).await {
                Ok(pod) => {
                    let start = node.kubelet.start_pod(&pod.name);
                    starting.spawn(async move { (start.await, pod) });
                }
                Err(reason) => {
                    scheduler.bound.remove(&name);
                    let reason = reason.strip_prefix(ADMISSION_ERROR).expect("a failed pod has the reason");
                    assert!(!reason.is_empty());
                    restarting += usize::from(RESTARTING.iter().any(|part| reason.contains(part)));
                    let kind: String = reason.chars().filter(|c| !c.is_ascii_digit()).take(60).collect();
                    *failed.entry(kind).or_default() += 1;
                    let after: &mut (usize, u128) = after_restarts.entry(restarted).or_default();
                    *after = (after.0 + 1, since.elapsed().as_millis());
                }
            }
        }
        // The scheduler binds a pod a second at most. So the kubelet and the plugin run between two
        // pods, and after a restart not all waiting pods fail at once.
        pass(1).await;
    }
    node.until("all allocations are gone", || node.specifications().is_empty() && node.tokens().is_empty())
        .await;
    println!("{run} of {admitted} admitted pods ran, {waited} of them after a wait; failed: {failed:?}");
    println!("failed after restarts: {after_restarts:?}");
    (node, [admitted, run, restarting])
}

#[tokio::test]
async fn random_pods_run_on_one_gpu_with_their_shares() {
    let (_node, [admitted, run, restarting]) = run(20, 4711, 5, 6).await;
    assert_eq!(admitted, 20, "each pod gets its turn");
    // On a busy machine, a restart takes as long as many pods.
    assert!(run + restarting >= 18, "{run} of {admitted}, and {restarting} came while a part restarted");
}

/// Tests that measure. Each test runs alone on the machine: restarts take longer on a busy machine.
mod measured {
    use super::*;

    #[tokio::test]
    #[ignore = "deep: two and a half minutes of random pods"]
    async fn of_a_thousand_random_pods_that_the_scheduler_admits_nearly_all_run() {
        let (_node, [admitted, run, _]) = run(1_000, 0x00D5_EED5, 16, 40).await;
        assert_eq!(admitted, 1_000, "each pod gets its turn");
        assert!((admitted - run) * 1_000 <= FAILED_PER_MILLE * admitted, "{run} of {admitted}");
    }
}
