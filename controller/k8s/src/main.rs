//! The program `deepres-k8s`.

use anyhow::{Context, Result};
use clap::Parser;
#[cfg(feature = "dra")]
use deepres_k8s::dra;
use deepres_k8s::node::{self, Options, Timing};
use deepres_model::directory::Directory;
use std::io;
use std::path::{Path, PathBuf};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// The value of an option that stands for nothing.
const NONE: &str = "none";
/// The variable with the level of the log.
const LOG_VARIABLE: &str = "DEEPRES_LOG";

/// The Kubernetes device plugin of deepres: deepres.dev/share (100 for each GPU) and
/// deepres.dev/gpu
#[derive(Debug, Parser)]
#[command(
    name = "deepres-k8s",
    version,
    after_help = "\
The plugin runs on each node beside `deepres daemon`, in a DaemonSet with both (controller/deploy/kubernetes). \
docs/kubernetes.md explains it. DEEPRES_LOG sets the level of the log."
)]
struct Args {
    /// Directory of the daemon's sockets [default: the directory in which a daemon of this user is]
    #[arg(long, env = "DEEPRES_DIR")]
    directory: Option<PathBuf>,
    /// The kubelet's folder of device plugins
    #[arg(long, default_value = "/var/lib/kubelet/device-plugins")]
    kubelet_dir: PathBuf,
    /// The kubelet's socket of PodResources
    #[arg(long, default_value = "/var/lib/kubelet/pod-resources/kubelet.sock")]
    pod_resources: PathBuf,
    /// Folder of CDI specifications; it must outlive a restart of the node, as the kubelet's
    /// records do
    #[arg(long, default_value = "/etc/cdi")]
    cdi_dir: PathBuf,
    /// Path of libdeepres.so on the node, from which containers get it
    #[arg(long, default_value = "/var/lib/deepres/libdeepres.so")]
    library: PathBuf,
    /// Copy this file to the path of --library first
    #[arg(long, value_name = "FILE")]
    install: Option<PathBuf>,
    /// Further CDI device for each GPU of a container, which brings the GPU's device files and the
    /// driver; `none` for no such device
    #[arg(long, default_value = "nvidia.com/gpu={uuid}")]
    gpu_device: String,
    /// GPUs that are set aside for deepres.dev/gpu, by number or UUID
    #[arg(long, value_name = "GPU,…", env = "DEEPRES_WHOLE_GPUS", value_delimiter = ',')]
    whole_gpus: Vec<String>,
    #[cfg(feature = "dra")]
    #[command(flatten)]
    claims: Claims,
}

/// The options of the DRA driver.
#[cfg(feature = "dra")]
#[derive(Debug, clap::Args)]
struct Claims {
    /// Be the DRA driver deepres.dev, and no device plugin
    #[arg(long, requires = "node_name", conflicts_with = "whole_gpus")]
    dra: bool,
    /// Name of the node at the API server
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node_name: Option<String>,
    /// The kubelet's folder of plugins
    #[arg(long, default_value = "/var/lib/kubelet/plugins")]
    plugins_dir: PathBuf,
    /// The kubelet's folder of sockets by which plugins register
    #[arg(long, default_value = "/var/lib/kubelet/plugins_registry")]
    registry_dir: PathBuf,
}

#[cfg(feature = "dra")]
impl Claims {
    /// Returns the options of the driver; `None` for the device plugin.
    fn driver(self) -> Result<Option<dra::Options>> {
        let Self { dra: true, node_name: Some(node), plugins_dir, registry_dir } = self else {
            return Ok(None);
        };
        Ok(Some(dra::Options { node, plugins_dir, registry_dir, api: dra::of_pod()? }))
    }
}

/// Puts a copy of `from` at `to` at once, so that no container gets half a file.
fn install(from: &Path, to: &Path) -> Result<()> {
    let cannot = || format!("cannot copy {} to {}", from.display(), to.display());
    let folder = to.parent().with_context(cannot)?;
    std::fs::create_dir_all(folder).with_context(cannot)?;
    let new = tempfile::NamedTempFile::new_in(folder).with_context(cannot)?;
    std::fs::copy(from, new.path()).with_context(cannot)?;
    new.persist(to).map(drop).with_context(cannot)
}

fn main() -> Result<()> {
    let args = Args::parse();
    let filter =
        EnvFilter::builder().with_env_var(LOG_VARIABLE).with_default_directive(tracing::Level::INFO.into());
    tracing_subscriber::fmt().with_writer(io::stderr).with_env_filter(filter.from_env()?).init();
    if let Some(from) = &args.install {
        install(from, &args.library)?;
    }
    let options = Options {
        kubelet_dir: args.kubelet_dir,
        pod_resources: args.pod_resources,
        cdi_dir: args.cdi_dir,
        library: args.library,
        gpu_device: Some(args.gpu_device).filter(|device| device != NONE),
        whole: args.whole_gpus.into_iter().filter(|gpu| !gpu.is_empty()).collect(),
        by_claims: false,
        directory: args.directory.map_or_else(Directory::own, Directory::at),
        timing: Timing::default(),
    };
    #[cfg(feature = "dra")]
    let driver = args.claims.driver()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // The first process of a container dies of no signal that it does not handle.
        let mut terminated = signal(SignalKind::terminate())?;
        #[cfg(feature = "dra")]
        if let Some(driver) = driver {
            let stopped = async {
                terminated.recv().await;
            };
            return dra::run(options, driver, stopped).await;
        }
        tokio::select! {
            outcome = node::run(options) => outcome.map(|never| match never {}),
            _ = terminated.recv() => Ok(()),
        }
    })
}
