//! Publishes the node's GPUs as a ResourceSlice at the API server, and keeps it there.

use super::slice;
use crate::node::Node;
use k8s_openapi::api::core::v1::Node as ClusterNode;
use k8s_openapi::api::resource::v1::{Device, ResourceSlice, ResourceSliceSpec};
use kube_client::api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube_client::{Api, Client};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fmt;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_stream::StreamExt;

/// The time that an answer of the API server may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The time for which the plugin watches the slices before it lists them again. The API server ends
/// a watch a little earlier; the end can get lost with its connection.
const WATCH: Duration = Duration::from_secs(300);
/// HTTP's status codes for an object that has changed, or that no longer exists.
const CONFLICT: u16 = 409;
const GONE: u16 = 404;

/// The reason for which the API server did not do what the plugin asked.
#[derive(Debug)]
pub enum ApiError {
    /// No answer came.
    Late,
    /// The API server refused, or cannot be reached.
    Failed(kube_client::Error),
}

impl ApiError {
    /// Returns whether an object is another than the plugin knows. An event of the watch tells
    /// which.
    fn is_stale(&self) -> bool {
        matches!(self, Self::Failed(kube_client::Error::Api(status)) if [CONFLICT, GONE].contains(&status.code))
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Late => write!(f, "no answer within {} s", PATIENCE.as_secs()),
            Self::Failed(kube_client::Error::Api(status)) => f.write_str(&status.message),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl From<kube_client::Error> for ApiError {
    fn from(error: kube_client::Error) -> Self {
        Self::Failed(error)
    }
}

/// Bounds the time of a call.
pub async fn within<T>(call: impl Future<Output = Result<T, kube_client::Error>>) -> Result<T, ApiError> {
    Ok(timeout(PATIENCE, call).await.map_err(|_| ApiError::Late)??)
}

/// The slices of this node at the API server, by name, as far as the plugin knows.
type Known = BTreeMap<String, ResourceSlice>;

/// The ResourceSlice that the driver wrote last.
struct Written {
    devices: Vec<Device>,
    /// The API server's answer. The server can write the same content in another form, and an older
    /// server leaves out fields.
    answer: ResourceSliceSpec,
}

/// The publisher of a node's GPUs.
pub struct Publisher {
    slices: Api<ResourceSlice>,
    nodes: Api<ClusterNode>,
    node: String,
    written: Option<Written>,
}

impl Publisher {
    /// Returns the publisher of this node's GPUs.
    pub fn new(client: &Client, node: &str) -> Self {
        let (slices, nodes) = (Api::all(client.clone()), Api::all(client.clone()));
        Self { slices, nodes, node: node.to_owned(), written: None }
    }

    /// Publishes the node's GPUs again and again. Never returns.
    pub async fn run(&mut self, node: &Node) -> Infallible {
        loop {
            if let Err(error) = self.follow(node).await {
                tracing::warn!("the plugin cannot publish its GPUs at the API server: {error}");
            }
            sleep(node.options().timing.retry).await;
        }
    }

    /// Removes the node's slices, because no claim can be prepared from now on.
    ///
    /// # Errors
    /// [`ApiError`]. The kubelet removes the slices of a driver that stays away.
    pub async fn withdraw(&mut self) -> Result<(), ApiError> {
        let (known, _) = self.list().await?;
        for name in known.keys() {
            self.delete(name).await?;
        }
        Ok(())
    }

    fn selector(&self) -> String {
        format!("spec.driver={},spec.nodeName={}", super::DRIVER, self.node)
    }

    /// Returns the node's slices, and the version of the list.
    async fn list(&self) -> Result<(Known, String), ApiError> {
        let list = within(self.slices.list(&ListParams::default().fields(&self.selector()))).await?;
        let named = list.items.into_iter().filter_map(|slice| Some((slice.metadata.name.clone()?, slice)));
        Ok((named.collect(), list.metadata.resource_version.unwrap_or_default()))
    }

    /// Publishes the node's GPUs whenever they or the slices change. Returns after the end of a
    /// watch.
    async fn follow(&mut self, node: &Node) -> Result<(), ApiError> {
        let until = Instant::now() + WATCH;
        let (mut known, version) = self.list().await?;
        let own = WatchParams::default().fields(&self.selector());
        let mut changes = pin!(within(self.slices.watch(&own, &version)).await?);
        let mut shown: Option<(BTreeSet<String>, Vec<Device>)> = None;
        loop {
            // Before the daemon has named its GPUs, the slice of an earlier plugin stays.
            if let Some(open) = node.open_gpus().await
                && shown.as_ref().is_none_or(|(before, _)| *before != open)
                && let Some(devices) = devices(node, &open).await
            {
                shown = Some((open, devices));
            }
            if let Some((_, devices)) = &shown {
                match self.bring(&mut known, devices).await {
                    Err(error) if error.is_stale() => tracing::debug!(%error, "a slice is another by now"),
                    brought => brought?,
                }
            }
            let event = tokio::select! {
                event = changes.next() => event,
                () = sleep_until(until) => None,
                () = sleep(node.options().timing.look) => continue,
            };
            match event {
                None => return Ok(()),
                Some(event) => match event? {
                    WatchEvent::Added(slice) | WatchEvent::Modified(slice) => {
                        known.extend(slice.metadata.name.clone().map(|name| (name, slice)));
                    }
                    WatchEvent::Deleted(slice) => {
                        known.remove(slice.metadata.name.as_deref().unwrap_or_default());
                    }
                    WatchEvent::Bookmark(_) => {}
                    WatchEvent::Error(status) => return Err(kube_client::Error::Api(status).into()),
                },
            }
        }
    }

    /// Makes the API server have one slice with these devices; none if there are no devices.
    async fn bring(&mut self, known: &mut Known, devices: &[Device]) -> Result<(), ApiError> {
        let own = slice::name(&self.node);
        let is_wrong = |name: &&String| **name != own || devices.is_empty();
        while let Some(name) = known.keys().find(is_wrong).cloned() {
            self.delete(&name).await?;
            known.remove(&name);
        }
        if devices.is_empty() {
            return Ok(());
        }
        let old = known.get(&own);
        if old.is_some_and(|old| self.is_in_force(&old.spec, devices)) {
            return Ok(());
        }
        let uid = self.uid().await?;
        let before = [old.map(|old| &old.spec), self.written.as_ref().map(|written| &written.answer)];
        let generation = before.into_iter().flatten().map(|spec| spec.pool.generation).max().unwrap_or(0) + 1;
        let version = old.and_then(|old| old.metadata.resource_version.clone());
        let spec = slice::spec(&self.node, devices, generation);
        let next = slice::slice(&self.node, &uid, spec, version);
        let how = PostParams::default();
        let answer = match old {
            Some(_) => within(self.slices.replace(&own, &how, &next)).await?,
            None => within(self.slices.create(&how, &next)).await?,
        };
        tracing::info!(gpus = devices.len(), generation, "the API server has the node's GPUs");
        let has_parts = |device: &Device| device.allow_multiple_allocations == Some(true);
        if !answer.spec.devices.iter().flatten().all(has_parts) {
            tracing::warn!(
                "the API server lets no two claims share a GPU: it lacks the feature DRAConsumableCapacity"
            );
        }
        self.written = Some(Written { devices: devices.to_vec(), answer: answer.spec.clone() });
        known.insert(own, answer);
        Ok(())
    }

    /// Returns whether a slice with this content shows these devices.
    fn is_in_force(&self, spec: &ResourceSliceSpec, devices: &[Device]) -> bool {
        match &self.written {
            Some(written) if written.devices == devices => *spec == written.answer,
            _ => *spec == slice::spec(&self.node, devices, spec.pool.generation),
        }
    }

    async fn delete(&self, name: &str) -> Result<(), ApiError> {
        match within(self.slices.delete(name, &DeleteParams::default())).await {
            Err(error) if error.is_stale() => Ok(()),
            deleted => deleted.map(drop),
        }
    }

    /// Returns the UID of the node. A node that somebody deleted comes back with another UID, and
    /// the API server deletes the slices of the earlier node.
    async fn uid(&self) -> Result<String, ApiError> {
        Ok(within(self.nodes.get(&self.node)).await?.metadata.uid.unwrap_or_default())
    }
}

/// Returns the devices of the open GPUs; `None` if the daemon does not answer.
async fn devices(node: &Node, open: &BTreeSet<String>) -> Option<Vec<Device>> {
    if open.is_empty() {
        return Some(Vec::new());
    }
    let gpus = node.daemon().gpus().await.ok()?;
    let places = node.daemon().places().await.ok()?;
    Some(slice::devices(&gpus, &places, open))
}
