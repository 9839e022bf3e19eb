//! Containers that get a share by the answer of the Kubernetes device plugin, with the CDI device
//! applied as containerd applies it. Containers with the variables and files of HAMi, Volcano and
//! KAI. The manifests of the chart.

use std::path::Path;
use std::sync::Arc;

use deepres_e2e::artefacts::repository;
use deepres_e2e::clients::c_client_on;
use deepres_e2e::containers::{Container, Containers, Users};
use deepres_e2e::prelude::*;
use deepres_e2e::venv;
use deepres_k8s::node::{Node, Options, Timing};
use deepres_k8s::plugin::Resource;
use deepres_model::directory::Directory;
use tokio::runtime::Runtime;

/// Folder in which container runtimes look for CDI specifications. The machine's restart empties
/// it.
const SPECIFICATIONS: &str = "/run/cdi";
/// Time of a measurement: at least 80 quanta, because a quantum is at most 50 ms.
const MEASURED: Duration = Duration::from_secs(4);
/// Time after which both clients are connected, metered and past their first launches.
const SETTLED: Duration = Duration::from_millis(700);
/// Time within which the plugin knows the daemon's GPUs.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);

/// A device plugin without a kubelet. Drop removes its CDI devices.
struct Plugin {
    node: Arc<Node>,
    runtime: Runtime,
    devices: Vec<String>,
}

impl Plugin {
    fn start(host: &Host) -> Self {
        let nowhere = host.path().join("kubelet");
        let options = Options {
            kubelet_dir: nowhere.clone(),
            pod_resources: nowhere,
            cdi_dir: SPECIFICATIONS.into(),
            library: artefacts().library.clone(),
            gpu_device: None,
            whole: Vec::new(),
            directory: Directory::at(host.deepres_dir()),
            timing: Timing::default(),
            by_claims: false,
        };
        let runtime = Runtime::new().expect("a runtime");
        let node = Arc::new(Node::new(options).expect("a node"));
        let watched = Arc::clone(&node);
        runtime.spawn(async move { watched.watch(|_| ()).await });
        let plugin = Self { node, runtime, devices: Vec::new() };
        let devices = plugin.node.devices(Resource::Share);
        eventually_within("the plugin knows the GPUs", KNOWN_WITHIN, || !devices.borrow().is_empty());
        plugin
    }

    /// Gives these shares to a container. Returns the CDI device.
    fn allocate(&mut self, shares: std::ops::Range<usize>) -> String {
        let ids: Vec<String> = shares.map(|share| format!("share-{share:04}")).collect();
        let answer = self.runtime.block_on(self.node.allocate(Resource::Share, ids));
        let device = answer.expect("the GPU has room").cdi_devices.remove(0).name;
        self.devices.push(device.clone());
        device
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        for device in &self.devices {
            let name = device.rsplit_once("=k8s-").expect("the plugin's device").1;
            let _ = std::fs::remove_file(Path::new(SPECIFICATIONS).join(format!("deepres-k8s-{name}.json")));
        }
    }
}

/// Starts the client that keeps the GPU backlogged, as a pod that asks for more than it has.
fn start(containers: &Containers<'_>, device: &str) -> Container {
    let client = c_client_on(CLibrary::OldGlibc, "backlog", Way::ProcAddress).display().to_string();
    let script = format!("export DEEPRES_SHARE=99% DEEPRES_MEMORY=1TiB; exec {client} --kernel busy_1000us");
    let own = ["--env", "DEEPRES_SHARE=99%", "--env", "DEEPRES_TENANT=other"];
    let mut container = containers.start_with(&own, device, Users::Shared, &["sh", "-c", &script]);
    container.process.await_exactly("ready");
    container
}

/// Returns the name of a container's tenant.
fn tenant(containers: &Containers<'_>, container: &Container) -> String {
    format!("podman-{}", &containers.id(container)[..12])
}

#[test]
fn a_container_has_the_share_that_the_plugin_gave_it_whatever_it_asks_for() {
    let host = Host::new();
    let Some(containers) = Containers::on(&host) else { return };
    let _daemon = host.daemon();
    let mut plugin = Plugin::start(&host);
    let device = plugin.allocate(0..30);
    let container = start(&containers, &device);
    let name = tenant(&containers, &container);
    let ps = host.await_ps(|ps| ps.find(&name).is_some_and(|tenant| tenant.entitled_ppm > 0));
    assert_eq!(ps.tenant(&name).entitled_ppm, 300_000);
    let limit = ps.tenant(&name).memory_limit_bytes.expect("a container has a limit");
    assert_eq!(limit, host.truth().gpus[0].memory_total_bytes * 30 / 100);
}

#[test]
fn the_limits_of_hami_volcano_and_kai_are_wishes_to_the_daemon() {
    const MEMORY: (&str, &str) = ("CUDA_DEVICE_MEMORY_LIMIT_0", "3000m");
    const POLICY: &str = "GPU_CORE_UTILIZATION_POLICY";
    let (host, _daemon) = Host::new().with_daemon();
    let share = |percent| ("CUDA_DEVICE_SM_LIMIT", percent);
    let of_kai = ("CUDA_DEVICE_MEMORY_LIMIT", "4147m");
    for (name, variables, share_ppm, mebibytes) in [
        ("hami", [MEMORY, share("30"), (POLICY, "force")], json!(300_000), 3000),
        ("lifted", [MEMORY, share("30"), (POLICY, "disable")], json!(null), 3000),
        ("kai", [of_kai, share("27"), (POLICY, "default")], json!(270_000), 4147),
    ] {
        let mut command = host.preloaded(c_client("view"));
        command.env("DEEPRES_TENANT", name).envs(variables);
        let (client, said) = host.told(command);
        let tenant = host.tenant(name);
        let seen = [&said["total"], &tenant["memory_limit_bytes"], &tenant["asked_share_ppm"]];
        assert_eq!(seen, [&json!(mebibytes * MIB), &json!(mebibytes * MIB), &share_ppm], "{name}: {tenant}");
        client.finish().success();
    }
}

/// HAMi, Volcano and KAI mount a library and a file that makes the dynamic linker preload it.
#[test]
fn in_the_place_of_hami_core_the_library_finds_the_daemon_and_keeps_the_limits() {
    let host = Host::new();
    let Some(containers) = Containers::on(&host) else { return };
    let _daemon = host.daemon();
    let preload = host.path().join("ld.so.preload");
    std::fs::write(&preload, "/usr/local/vgpu/libvgpu.so\n").expect("a folder of our own");
    let mount = |from: &Path, to: &str| format!("--volume={}:{to}:ro", from.display());
    let options = [
        mount(&artefacts().library, "/usr/local/vgpu/libvgpu.so"),
        mount(&preload, "/etc/ld.so.preload"),
        mount(&host.deepres_dir().join("tenant"), "/run/deepres/tenant"),
        "--env=CUDA_DEVICE_MEMORY_LIMIT_0=3000m".to_owned(),
        "--env=CUDA_DEVICE_SM_LIMIT=30".to_owned(),
    ];
    let client = c_client_on(CLibrary::OldGlibc, "backlog", Way::ProcAddress).display().to_string();
    let mut container =
        containers.start_on_gpu(&options.each_ref().map(String::as_str), Users::Shared, &[&client]);
    container.process.await_exactly("ready");
    let name = tenant(&containers, &container);
    let ps = host.await_ps(|ps| ps.find(&name).is_some_and(|tenant| tenant.entitled_ppm > 0));
    let tenant = ps.tenant(&name);
    assert_eq!((tenant.entitled_ppm, tenant.memory_limit_bytes), (300_000, Some(3000 * MIB)));
}

#[test]
#[ignore = "deep: installs Helm"]
fn the_chart_passes_helms_linter_and_renders_the_plain_manifests() {
    let helm = venv::kubernetes().expect("the environment with Helm");
    let host = Host::new();
    let mut check = host.command(helm.python());
    check.arg(script("chart")).arg(repository().join("controller/deploy/kubernetes"));
    host.finish(check).success();
}

#[test]
#[ignore = "deep: installs the schemas of Kubernetes"]
fn the_manifests_fit_the_schemas_of_all_supported_kubernetes() {
    let validate = venv::kubernetes().expect("the environment with the schemas");
    let host = Host::new();
    let deploy = repository().join("controller/deploy/kubernetes");
    // The kinds of claims and of their classes exist since 1.34.
    for (file, oldest) in [
        ("deepres.yaml", 31),
        ("deepres-dra.yaml", 34),
        ("examples/share.yaml", 31),
        ("examples/gpu.yaml", 31),
        ("examples/claim.yaml", 34),
    ] {
        let mut check = host.command(validate.python());
        check.args(["-m", "kubernetes_validate", "--strict"]);
        check.args((oldest..=36).flat_map(|minor| ["-k".to_owned(), format!("1.{minor}")]));
        check.arg(deploy.join(file));
        let said = host.finish(check).success().stdout;
        assert!(said.contains("INFO") && !said.contains("WARN"), "{file}: {said}");
    }
}

/// Tests that measure. Each test runs alone on the machine.
mod measured {
    use super::*;

    #[test]
    #[ignore = "deep: two containers for some seconds"]
    fn containers_of_the_plugin_have_their_shares() {
        let host = Host::measuring();
        let Some(containers) = Containers::on(&host) else { return };
        let _daemon = host.daemon();
        let mut plugin = Plugin::start(&host);
        let devices = [plugin.allocate(0..30), plugin.allocate(30..100)];
        let running = devices.map(|device| start(&containers, &device));
        thread::sleep(SETTLED);
        let [minor, major] = running.each_ref().map(|container| tenant(&containers, container));
        Window::measure(&host, MEASURED).assert_shares(&[(&minor, 30.0), (&major, 70.0)]);
    }
}
