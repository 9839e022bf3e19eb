//! The messages of the kubelet's interfaces for DRA drivers: registration of plugins (v1), and
//! preparation of claims (v1). As in [`crate::api`], the numbers of the fields are the contract.

use std::collections::HashMap;

/// The kind of plugin that a DRA driver is.
pub const PLUGIN_TYPE: &str = "DRAPlugin";
/// The name of the service, for the registration.
pub const SERVICE: &str = "v1.DRAPlugin";

/// The paths of the calls, as HTTP/2 carries them.
pub mod path {
    /// The kubelet asks which plugin is behind a socket.
    pub const GET_INFO: &str = "/pluginregistration.Registration/GetInfo";
    /// The kubelet says whether it has registered the plugin.
    pub const NOTIFY: &str = "/pluginregistration.Registration/NotifyRegistrationStatus";
    /// The kubelet is about to start containers with claims.
    pub const PREPARE: &str = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources";
    /// No container uses the claims any more.
    pub const UNPREPARE: &str = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources";
}

/// The facts that the kubelet must know of a plugin.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PluginInfo {
    /// [`PLUGIN_TYPE`].
    #[prost(string, tag = "1")]
    pub kind: String,
    /// The driver's name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The path of the driver's socket.
    #[prost(string, tag = "3")]
    pub endpoint: String,
    /// The services at that socket.
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

/// The outcome of a registration.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RegistrationStatus {
    /// Whether the kubelet has registered the plugin.
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    /// The reason, if it has not.
    #[prost(string, tag = "2")]
    pub error: String,
}

/// Names a claim.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Claim {
    /// The namespace.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// The UID.
    #[prost(string, tag = "2")]
    pub uid: String,
    /// The name.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// The claims that the kubelet wants prepared.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PrepareRequest {
    /// The claims.
    #[prost(message, repeated, tag = "1")]
    pub claims: Vec<Claim>,
}

/// The results of the claims, by UID.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PrepareResponse {
    /// An answer for each claim.
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, PrepareAnswer>,
}

/// The result of a claim.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PrepareAnswer {
    /// The devices.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
    /// The reason, if the claim cannot be prepared.
    #[prost(string, tag = "2")]
    pub error: String,
}

/// A device of a claim.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Device {
    /// The requests that have the device.
    #[prost(string, repeated, tag = "1")]
    pub request_names: Vec<String>,
    /// The pool.
    #[prost(string, tag = "2")]
    pub pool_name: String,
    /// The device's name in the pool.
    #[prost(string, tag = "3")]
    pub device_name: String,
    /// The CDI devices that the containers of these requests get.
    #[prost(string, repeated, tag = "4")]
    pub cdi_device_ids: Vec<String>,
    /// The claim's part of a device that several claims share.
    #[prost(string, optional, tag = "5")]
    pub share_id: Option<String>,
}

/// The claims that no container uses any more.
#[derive(Clone, PartialEq, prost::Message)]
pub struct UnprepareRequest {
    /// The claims.
    #[prost(message, repeated, tag = "1")]
    pub claims: Vec<Claim>,
}

/// The outcome for each claim, by UID.
#[derive(Clone, PartialEq, prost::Message)]
pub struct UnprepareResponse {
    /// An answer for each claim.
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, UnprepareAnswer>,
}

/// The outcome for a claim.
#[derive(Clone, PartialEq, prost::Message)]
pub struct UnprepareAnswer {
    /// The reason, if the claim still has something.
    #[prost(string, tag = "1")]
    pub error: String,
}
