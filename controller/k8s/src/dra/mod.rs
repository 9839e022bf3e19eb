//! The DRA driver: publishes GPUs whose shares and memory claims consume, and gives claims their
//! parts.
//!
//! | module | job |
//! |---|---|
//! | [`slice`] | the ResourceSlice of a node; pure |
//! | [`publisher`] | keeps the slice at the API server |
//! | [`claim`] | reads what the scheduler gave a claim; pure |
//! | [`driver`] | registers at the kubelet, and prepares claims |
//! | [`quantity`], [`api`] | Kubernetes' numbers, and the kubelet's messages |
//!
//! The node keeps the same records for claims as for the kubelet's devices ([`crate::record`]), so
//! a restart loses nothing. A node has either the device plugin or the DRA driver: the scheduler
//! counts plugin and driver independently, and would give a GPU twice. If containers of the device
//! plugin are left, the plugin stays for them, and gives the kubelet no healthy device.

pub mod api;
mod claim;
mod driver;
mod publisher;
mod quantity;
pub mod slice;

use crate::node::{self, Node};
use crate::plugin;
use anyhow::{Context, Result};
use driver::{Driver, Sockets};
use kube_client::{Client, Config};
use publisher::Publisher;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The driver's name.
pub const DRIVER: &str = "deepres.dev";
/// The longest wait for the API server at the end.
const FAREWELL: Duration = Duration::from_secs(10);

/// The driver's settings, which an administrator gives.
#[derive(Debug, Clone)]
pub struct Options {
    /// The node's name at the API server.
    pub node: String,
    /// The kubelet's folder of plugins, in which the driver has a folder.
    pub plugins_dir: PathBuf,
    /// The kubelet's folder of sockets by which plugins register.
    pub registry_dir: PathBuf,
    /// The API server.
    pub api: Config,
}

/// Returns the API server of the cluster in which this pod runs.
///
/// # Errors
/// This process runs in no pod with a service account.
pub fn of_pod() -> Result<Config> {
    Config::incluster().context("the pod has no service account for the API server")
}

/// Serves the driver until `stopped` ends. Then removes the sockets and the slices.
///
/// # Errors
/// The folder of CDI specifications cannot be read, or the API server's certificate.
pub async fn run(options: node::Options, own: Options, stopped: impl Future<Output = ()>) -> Result<()> {
    let node = Arc::new(Node::new(node::Options { by_claims: true, ..options })?);
    let sockets = Sockets::of(&own);
    let client = Client::try_from(own.api).context("cannot make a client of the API server")?;
    let mut publisher = Publisher::new(&client, &own.node);
    let driver = Arc::new(Driver { node: Arc::clone(&node), client, name: own.node });
    let mut plugins = JoinSet::new();
    for resource in node.resources_left().await {
        plugins.spawn(plugin::serve(Arc::clone(&node), resource));
    }
    tokio::select! {
        never = node.watch(|_| ()) => match never {},
        never = publisher.run(&node) => match never {},
        never = driver::serve(driver, &sockets) => match never {},
        () = stopped => {}
    }
    sockets.remove();
    match timeout(FAREWELL, publisher.withdraw()).await {
        Ok(Ok(())) => tracing::info!("the API server has no GPUs of this node any more"),
        Ok(Err(error)) => tracing::warn!("the node's GPUs stay at the API server: {error}"),
        Err(_) => tracing::warn!("the node's GPUs stay at the API server, which does not answer"),
    }
    Ok(())
}
