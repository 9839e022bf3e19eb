//! A node of a test: a daemon, a kubelet and a plugin.

use crate::kubelet::{Container, Kubelet};
use deepres_daemon_harness::Daemon;
use deepres_k8s::node::{Options, Timing, run};
use deepres_model::allocation::Token;
use deepres_model::config::Config;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::time::sleep;

/// The time that stands for one second of a real node.
pub const SECOND: Duration = Duration::from_millis(5);
/// The time without a daemon after which the devices of a test are unhealthy.
const DAEMON_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest time that the fake kubelet takes to record the devices that it gives to a container.
const GIVING: Duration = Duration::from_millis(10);
/// The longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the times of a plugin on this node.
pub fn timing() -> Timing {
    let real = Timing::default();
    let scaled = |time: Duration| SECOND.mul_f64(time.as_secs_f64());
    Timing {
        look: scaled(real.look),
        young: scaled(real.young),
        settle: scaled(real.settle),
        surplus: scaled(real.surplus),
        // The fake kubelet has no time scale.
        giving: GIVING,
        hold: scaled(real.hold),
        // The daemon of a test does not restart faster than another.
        daemon_timeout: DAEMON_TIMEOUT,
        wait: real.wait,
        nudge: scaled(real.nudge),
        retry: scaled(real.retry),
    }
}

/// A node of a test.
pub struct Node {
    pub daemon: Option<Daemon>,
    pub kubelet: Kubelet,
    plugin: Option<Plugin>,
    options: Options,
    _folder: tempfile::TempDir,
}

impl Node {
    /// Starts a node, of whose GPUs the last `whole` are set aside. Returns once the kubelet has
    /// all devices.
    pub async fn start(gpus: usize, whole: usize) -> Self {
        Self::start_with(gpus, whole, timing()).await
    }

    /// Starts a node whose plugin has these times.
    pub async fn start_with(gpus: usize, whole: usize, timing: Timing) -> Self {
        let mut node = Self::bare(gpus, whole, timing);
        node.start_plugin();
        node.until("all devices are known", || {
            node.kubelet.capacity("deepres.dev/share") == (gpus - whole) * 100
                && node.kubelet.capacity("deepres.dev/gpu") == whole
        })
        .await;
        node
    }

    /// Starts a node without a plugin.
    pub fn bare(gpus: usize, whole: usize, timing: Timing) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let daemon = Daemon::start(gpus, Config { pods_need_token: true, ..Config::default() });
        let kubelet = Kubelet::start(folder.path());
        let options = Options {
            kubelet_dir: kubelet.plugins.clone(),
            pod_resources: kubelet.pod_resources.clone(),
            cdi_dir: folder.path().join("cdi"),
            library: PathBuf::from("/usr/lib/libdeepres.so"),
            gpu_device: Some("nvidia.com/gpu={uuid}".to_owned()),
            whole: (gpus - whole..gpus).map(|gpu| gpu.to_string()).collect(),
            by_claims: false,
            directory: daemon.directory.clone(),
            timing,
        };
        Self { daemon: Some(daemon), kubelet, plugin: None, options, _folder: folder }
    }

    /// Returns the options of a plugin of this node.
    #[cfg(feature = "dra")]
    pub fn options(&self) -> Options {
        self.options.clone()
    }

    /// Returns the tokens of the allocations on the daemon's record.
    pub fn tokens(&self) -> Vec<Token> {
        let asked = self.daemon().client().ask(&deepres_model::admin::Request::Allocations).unwrap();
        let deepres_model::admin::Reply::Allocations { tokens, .. } = asked else { panic!("{asked:?}") };
        tokens
    }

    pub fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().unwrap()
    }

    /// Returns the texts of the CDI specifications.
    pub fn specifications(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(&self.options.cdi_dir) else { return Vec::new() };
        let files = entries.map(|entry| entry.unwrap().path());
        let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "json"));
        // A file can go at any moment.
        files.filter_map(|path| std::fs::read_to_string(path).ok()).collect()
    }

    /// Returns the value of a variable in the CDI specification of a device.
    pub fn variable(&self, device: &str, name: &str) -> String {
        let device = device.strip_prefix("deepres.dev/share=").unwrap();
        let all = self.specifications();
        let text = all.iter().find(|text| text.contains(device)).expect("the device has a specification");
        let spec: serde_json::Value = serde_json::from_str(text).unwrap();
        let env = spec["devices"][0]["containerEdits"]["env"].as_array().unwrap();
        let begin = format!("{name}=");
        let mut values = env.iter().filter_map(|variable| variable.as_str()?.strip_prefix(&begin));
        values.next_back().expect("the specification has the variable").to_owned()
    }

    /// Returns the UUIDs of a container's GPUs.
    pub fn gpus(&self, container: &Container) -> BTreeSet<String> {
        let visible = self.variable(container.devices.last().unwrap(), "CUDA_VISIBLE_DEVICES");
        visible.split(',').map(str::to_owned).collect()
    }

    /// Stops the plugin.
    pub fn stop_plugin(&mut self) {
        self.plugin = None;
    }

    /// Starts a plugin after [`Self::stop_plugin`].
    pub fn start_plugin(&mut self) {
        self.plugin = Some(Plugin::start(&self.options));
    }

    /// Kills the plugin and starts the next.
    pub fn restart_plugin(&mut self) {
        self.stop_plugin();
        self.start_plugin();
    }

    /// Kills the plugin and starts the next, for which these GPUs are set aside.
    pub fn restart_plugin_with(&mut self, whole: Vec<String>) {
        self.options.whole = whole;
        self.restart_plugin();
    }

    /// Stops the daemon and starts the next in its place.
    pub async fn restart_daemon(&mut self) {
        let daemon = self.daemon.take().unwrap();
        self.daemon = Some(tokio::task::spawn_blocking(|| daemon.restart()).await.unwrap());
    }

    /// Asks again and again until there is an answer.
    #[cfg(feature = "dra")]
    pub async fn until_some<T>(&self, what: &str, ask: impl AsyncFn() -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            assert!(began.elapsed() < PATIENCE, "not within {} s: {what}", PATIENCE.as_secs());
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Waits until a condition holds.
    pub async fn until(&self, what: &str, condition: impl Fn() -> bool) {
        let began = Instant::now();
        while !condition() {
            assert!(began.elapsed() < PATIENCE, "not within {} s: {what}", PATIENCE.as_secs());
            sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Waits for as long as `seconds` on a real node.
pub async fn pass(seconds: u32) {
    sleep(SECOND * seconds).await;
}

/// A plugin on a thread of its own, as a process has. Its end waits for the files that it writes.
struct Plugin {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Plugin {
    fn start(options: &Options) -> Self {
        let options = options.clone();
        let (stop, stopped) = oneshot::channel();
        let runs = async {
            tokio::select! {
                outcome = run(options) => match outcome {
                    Ok(never) => match never {},
                    Err(error) => panic!("{error:#}"),
                },
                _ = stopped => {}
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let thread = thread::spawn(move || runtime.block_on(runs));
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
