//! The device plugin of one resource: registers at the kubelet, and answers the kubelet's calls.
//!
//! A kubelet that starts removes all sockets of its folder, so the plugin makes its socket again
//! and registers again. The new kubelet's socket can have the old inode number, so the plugin
//! compares the time of its making too.

use crate::api::{
    AllocateRequest, AllocateResponse, ContainerPreferredAllocationResponse, DevicePluginOptions, Empty,
    KUBELET_SOCKET, ListAndWatchResponse, PreStartContainerRequest, PreferredAllocationRequest,
    PreferredAllocationResponse, RegisterRequest, VERSION, path,
};
use crate::grpc::{self, Answer, Call, Client, Serve};
use crate::node::{Node, Refusal};
use deepres_policy::shares::{GPU_RESOURCE, SHARE_RESOURCE};
use inotify::{EventStream, Inotify, WatchMask};
use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::WatchStream;
use tonic::Status;

/// The bytes that one read of the folder's events takes at most.
const EVENTS_BYTES: usize = 4096;
/// A new kubelet listens at its socket within the time between two looks, divided by this number.
const LISTENS_PART: u32 = 20;

/// A resource that the node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Shares, a hundred of each GPU.
    Share,
    /// Whole GPUs.
    Gpu,
}

impl Resource {
    /// Returns the resource's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Share => SHARE_RESOURCE,
            Self::Gpu => GPU_RESOURCE,
        }
    }

    /// Returns the name of the plugin's socket.
    fn endpoint(self) -> &'static str {
        match self {
            Self::Share => "deepres-share.sock",
            Self::Gpu => "deepres-gpu.sock",
        }
    }
}

/// The plugin of one resource.
#[derive(Debug)]
struct Plugin {
    node: Arc<Node>,
    resource: Resource,
}

/// The options of the plugin, for the kubelet.
const OPTIONS: DevicePluginOptions =
    DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: true };

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Impossible(reason) => Self::failed_precondition(reason),
            Refusal::Unavailable(reason) => Self::unavailable(reason),
        }
    }
}

impl Serve for Plugin {
    async fn serve(self: Arc<Self>, call: Call) -> Answer {
        match call.uri().path() {
            path::OPTIONS => grpc::unary(call, |Empty {}| async { Ok(OPTIONS) }).await,
            path::LIST_AND_WATCH => {
                let lists = self.node.devices(self.resource);
                let answer = move |Empty {}| {
                    let lists = WatchStream::new(lists.clone());
                    async { Ok(lists.map(|devices| Ok(ListAndWatchResponse { devices }))) }
                };
                grpc::streaming(call, answer).await
            }
            path::PREFERRED => grpc::unary(call, |request| Arc::clone(&self).prefer(request)).await,
            path::ALLOCATE => grpc::unary(call, |request| Arc::clone(&self).allocate(request)).await,
            path::PRE_START => grpc::unary(call, |request| Arc::clone(&self).start(request)).await,
            _ => grpc::unknown(&call),
        }
    }
}

impl Plugin {
    async fn prefer(
        self: Arc<Self>,
        request: PreferredAllocationRequest,
    ) -> Result<PreferredAllocationResponse, Status> {
        let mut container_responses = Vec::new();
        for container in request.container_requests {
            let size = usize::try_from(container.size).unwrap_or_default();
            let chosen = self.node.prefer(self.resource, container.available, container.must_include, size);
            container_responses.push(ContainerPreferredAllocationResponse { ids: chosen.await? });
        }
        Ok(PreferredAllocationResponse { container_responses })
    }

    async fn start(self: Arc<Self>, request: PreStartContainerRequest) -> Result<Empty, Status> {
        self.node.start(request.ids).await?;
        Ok(Empty {})
    }

    async fn allocate(self: Arc<Self>, request: AllocateRequest) -> Result<AllocateResponse, Status> {
        let mut container_responses = Vec::new();
        for container in request.container_requests {
            container_responses.push(self.node.allocate(self.resource, container.ids).await?);
        }
        Ok(AllocateResponse { container_responses })
    }
}

/// Serves a resource. The plugin registers at each kubelet that comes.
pub async fn serve(node: Arc<Node>, resource: Resource) -> Infallible {
    let (folder, timing) = (node.options().kubelet_dir.clone(), node.options().timing);
    let (own, kubelet) = (folder.join(resource.endpoint()), folder.join(KUBELET_SOCKET));
    loop {
        let listener = match listen(&own) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::warn!("cannot listen at {}: {error}", own.display());
                sleep(timing.retry).await;
                continue;
            }
        };
        let plugin = Arc::new(Plugin { node: Arc::clone(&node), resource });
        let stamps = || (Stamp::of(&own), Stamp::of(&kubelet));
        let mut changes = Changes::of(&folder);
        let before = stamps();
        let membership = async {
            // The kubelet connects to the plugin before it answers.
            let until = match register(&kubelet, resource).await {
                Ok(()) => {
                    tracing::info!("the kubelet has {}", resource.name());
                    None
                }
                Err(error) => {
                    let kubelet = kubelet.display();
                    tracing::warn!("cannot register {} at {kubelet}: {}", resource.name(), error.message());
                    Some(Instant::now() + timing.retry)
                }
            };
            while stamps() == before && until.is_none_or(|until| Instant::now() < until) {
                changes.next(timing.look).await;
            }
        };
        tokio::select! {
            never = grpc::serve(listener, plugin) => match never {},
            () = membership => {}
        }
    }
}

/// Listens at a socket. Replaces the socket that an earlier plugin left.
pub(crate) fn listen(socket: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    UnixListener::bind(socket)
}

async fn register(kubelet: &Path, resource: Resource) -> Result<(), Status> {
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: resource.endpoint().to_owned(),
        resource_name: resource.name().to_owned(),
        options: Some(OPTIONS),
    };
    Client::connect(kubelet).await?.unary(path::REGISTER, request).await.map(|Empty {}| ())
}

/// The sockets that come in the kubelet's folder. Until the plugin registers at a new kubelet, the
/// kubelet refuses pods. So the plugin does not wait for its next look.
struct Changes(Option<EventStream<[u8; EVENTS_BYTES]>>);

impl Changes {
    /// Watches a folder from now on. If the system has no room for a watch, only looks tell
    /// changes.
    fn of(folder: &Path) -> Self {
        let watch = || {
            let events = Inotify::init()?;
            events.watches().add(folder, WatchMask::CREATE | WatchMask::MOVED_TO)?;
            events.into_event_stream([0; EVENTS_BYTES])
        };
        Self(watch().inspect_err(|error| tracing::warn!("cannot watch {}: {error}", folder.display())).ok())
    }

    /// Waits for a change, and for `look` at most.
    async fn next(&mut self, look: Duration) {
        let changed = async {
            match &mut self.0 {
                Some(events) => events.next().await.is_some(),
                None => pending().await,
            }
        };
        if timeout(look, changed).await.is_ok() {
            // A kubelet makes its socket first, and then listens.
            sleep(look / LISTENS_PART).await;
        }
    }
}

/// The properties by which the plugin tells a socket from a later socket at the same path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    inode: u64,
    made_s: i64,
    made_ns: i64,
}

impl Stamp {
    /// Returns the stamp of the socket at a path; `None` if there is none.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::symlink_metadata(path).ok()?;
        Some(Self { inode: metadata.ino(), made_s: metadata.ctime(), made_ns: metadata.ctime_nsec() })
    }
}
