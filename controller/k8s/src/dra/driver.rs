//! The driver at the kubelet: registers, and prepares claims.

use super::publisher::{ApiError, within};
use super::{DRIVER, Options, api, claim};
use crate::api::Empty;
use crate::grpc::{self, Answer, Call, Serve};
use crate::node::Node;
use crate::plugin::{Stamp, listen};
use api::path;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube_client::{Api, Client};
use std::collections::HashSet;
use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::UnixListener;
use tokio::time::sleep;
use tonic::Status;

/// The ends of the sockets' names, after the driver's name. The kubelet sends the percent-encoded
/// path of a socket as the authority of its calls (`encodeAuthority` in grpc-go). HTTP allows such
/// a text only before an `@`, and the server refuses other authorities.
const REGISTRATION_ENDING: &str = "@reg.sock";
const SOCKET_ENDING: &str = "@dra.sock";

/// The sockets at which the kubelet finds the driver.
#[derive(Debug, Clone)]
pub struct Sockets {
    /// The socket that the kubelet asks about the driver.
    registration: PathBuf,
    /// The driver's own socket.
    driver: PathBuf,
}

impl Sockets {
    /// Returns the sockets in the kubelet's folders.
    pub fn of(options: &Options) -> Self {
        Self {
            registration: options.registry_dir.join(format!("{DRIVER}{REGISTRATION_ENDING}")),
            driver: options.plugins_dir.join(DRIVER).join(format!("{DRIVER}{SOCKET_ENDING}")),
        }
    }

    /// Makes the sockets. The kubelet must be able to reach the driver before it sees the
    /// registration.
    fn listen(&self) -> io::Result<(UnixListener, UnixListener)> {
        for socket in [&self.driver, &self.registration] {
            std::fs::create_dir_all(socket.parent().unwrap_or(socket))?;
        }
        Ok((listen(&self.driver)?, listen(&self.registration)?))
    }

    /// Removes the sockets. The kubelet then forgets the driver.
    pub fn remove(&self) {
        for socket in [&self.registration, &self.driver] {
            if let Err(error) = std::fs::remove_file(socket) {
                tracing::warn!("cannot remove {}: {error}", socket.display());
            }
        }
    }

    fn stamps(&self) -> [Option<Stamp>; 2] {
        [&self.driver, &self.registration].map(|socket| Stamp::of(socket))
    }
}

/// Serves the driver. Makes its sockets again if they are lost.
pub async fn serve(driver: Arc<Driver>, sockets: &Sockets) -> Infallible {
    let timing = driver.node.options().timing;
    loop {
        let (own, registration) = match sockets.listen() {
            Ok(listeners) => listeners,
            Err(error) => {
                tracing::warn!("cannot listen at {sockets:?}: {error}");
                sleep(timing.retry).await;
                continue;
            }
        };
        let before = sockets.stamps();
        let registrar = Arc::new(Registrar { endpoint: sockets.driver.display().to_string() });
        let lost = async {
            while sockets.stamps() == before {
                sleep(timing.look).await;
            }
        };
        tokio::select! {
            never = grpc::serve(own, Arc::clone(&driver)) => match never {},
            never = grpc::serve(registration, registrar) => match never {},
            () = lost => tracing::warn!("the driver lost its sockets: it makes them anew"),
        }
    }
}

/// Tells the kubelet about the driver.
struct Registrar {
    endpoint: String,
}

impl Serve for Registrar {
    async fn serve(self: Arc<Self>, call: Call) -> Answer {
        match call.uri().path() {
            path::GET_INFO => {
                let info = api::PluginInfo {
                    kind: api::PLUGIN_TYPE.to_owned(),
                    name: DRIVER.to_owned(),
                    endpoint: self.endpoint.clone(),
                    supported_versions: vec![api::SERVICE.to_owned()],
                };
                grpc::unary(call, move |Empty {}| {
                    let info = info.clone();
                    async { Ok(info) }
                })
                .await
            }
            path::NOTIFY => {
                grpc::unary(call, |status: api::RegistrationStatus| async move {
                    if status.plugin_registered {
                        tracing::info!("the kubelet has the driver {DRIVER}");
                    } else {
                        tracing::warn!("the kubelet does not take the driver {DRIVER}: {}", status.error);
                    }
                    Ok(Empty {})
                })
                .await
            }
            _ => grpc::unknown(&call),
        }
    }
}

/// The driver of a node.
pub struct Driver {
    /// The node.
    pub node: Arc<Node>,
    /// The client of the API server.
    pub client: Client,
    /// The node's name.
    pub name: String,
}

impl Serve for Driver {
    async fn serve(self: Arc<Self>, call: Call) -> Answer {
        match call.uri().path() {
            path::PREPARE => grpc::unary(call, |request| Arc::clone(&self).prepare(request)).await,
            path::UNPREPARE => grpc::unary(call, |request| Arc::clone(&self).unprepare(request)).await,
            _ => grpc::unknown(&call),
        }
    }
}

impl Driver {
    async fn prepare(self: Arc<Self>, request: api::PrepareRequest) -> Result<api::PrepareResponse, Status> {
        let mut response = api::PrepareResponse::default();
        for claim in request.claims {
            let answer = match self.prepare_claim(&claim).await {
                Ok(devices) => api::PrepareAnswer { devices, error: String::new() },
                Err(error) => {
                    let api::Claim { namespace, name, .. } = &claim;
                    tracing::warn!("the claim {namespace}/{name} cannot be prepared: {error}");
                    api::PrepareAnswer { devices: Vec::new(), error }
                }
            };
            response.claims.insert(claim.uid, answer);
        }
        Ok(response)
    }

    /// Prepares a claim by what the API server says about it. Returns the claim's devices.
    async fn prepare_claim(&self, claim: &api::Claim) -> Result<Vec<api::Device>, String> {
        let claims: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &claim.namespace);
        let found = within(claims.get_opt(&claim.name)).await;
        let found =
            found.map_err(|error: ApiError| format!("the API server does not tell the claim: {error}"))?;
        let found = found.ok_or("the API server has no such claim")?;
        let given = claim::read(&found, &claim.uid, &self.name)?;
        let grants = given.iter().map(|given| given.grant.clone()).collect();
        let specifications = self.node.prepare(claim.uid.clone(), grants).await;
        let specifications = specifications.map_err(|refusal| refusal.to_string())?;
        let mut devices = Vec::new();
        for (given, specification) in given.into_iter().zip(specifications) {
            // A container that has a request has all of its devices. So each CDI device needs to
            // stand beside one of them only.
            let mut specification = Some(specification);
            let mut seen = HashSet::new();
            for (uuid, mut device) in given.devices {
                let files = self.node.files_of(&uuid).filter(|_| seen.insert(uuid));
                device.cdi_device_ids = files.into_iter().chain(specification.take()).collect();
                devices.push(device);
            }
        }
        Ok(devices)
    }

    async fn unprepare(
        self: Arc<Self>,
        request: api::UnprepareRequest,
    ) -> Result<api::UnprepareResponse, Status> {
        let mut response = api::UnprepareResponse::default();
        for claim in request.claims {
            let ended = self.node.unprepare(claim.uid.clone()).await;
            let error = ended.err().map(|refusal| refusal.to_string()).unwrap_or_default();
            response.claims.insert(claim.uid, api::UnprepareAnswer { error });
        }
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube_client::Config;

    /// Returns the authority with which the kubelet calls a service at this path.
    fn authority(path: &str) -> String {
        let is_kept = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]@".contains(&byte);
        let encoded = path.bytes().map(|byte| match byte {
            byte if is_kept(byte) => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        });
        encoded.collect()
    }

    #[test]
    fn the_kubelet_can_call_the_sockets() {
        let sockets = Sockets::of(&Options {
            node: "node-1".to_owned(),
            plugins_dir: PathBuf::from("/var/lib/kubelet/plugins"),
            registry_dir: PathBuf::from("/var/lib/kubelet/plugins_registry"),
            api: Config::new(http::Uri::from_static("http://localhost")),
        });
        for socket in [&sockets.registration, &sockets.driver] {
            let authority = authority(socket.to_str().unwrap());
            assert!(authority.starts_with("%2Fvar%2Flib"), "{authority}");
            // The server parses the authority so, and refuses the call after an error.
            authority.parse::<http::uri::Authority>().unwrap();
        }
        authority("/var/lib/kubelet/dra.sock").parse::<http::uri::Authority>().unwrap_err();
    }
}
