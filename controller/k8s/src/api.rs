//! The messages of the kubelet's interfaces: device plugins (v1beta1) and PodResources (v1).
//!
//! The numbers of the fields are the contract. The structs leave out fields that the plugin does
//! not use; a receiver skips fields that it does not know.

use std::collections::HashMap;

/// The version of the interface of device plugins.
pub const VERSION: &str = "v1beta1";
/// The name of the kubelet's socket in the folder of device plugins.
pub const KUBELET_SOCKET: &str = "kubelet.sock";
/// The health of a device that the kubelet may give to a container.
pub const HEALTHY: &str = "Healthy";
/// The health of a device that the kubelet may not give to a container.
pub const UNHEALTHY: &str = "Unhealthy";

/// The paths of the calls, as HTTP/2 carries them.
pub mod path {
    /// A plugin registers at the kubelet.
    pub const REGISTER: &str = "/v1beta1.Registration/Register";
    /// The kubelet asks for a plugin's options.
    pub const OPTIONS: &str = "/v1beta1.DevicePlugin/GetDevicePluginOptions";
    /// The kubelet asks for the list of devices, and for each later list.
    pub const LIST_AND_WATCH: &str = "/v1beta1.DevicePlugin/ListAndWatch";
    /// The kubelet asks which devices a container should get.
    pub const PREFERRED: &str = "/v1beta1.DevicePlugin/GetPreferredAllocation";
    /// The kubelet gives devices to a container.
    pub const ALLOCATE: &str = "/v1beta1.DevicePlugin/Allocate";
    /// The kubelet is about to start a container.
    pub const PRE_START: &str = "/v1beta1.DevicePlugin/PreStartContainer";
    /// Asks the kubelet for the devices of all pods.
    pub const POD_RESOURCES: &str = "/v1.PodResourcesLister/List";
}

/// No content.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Empty {}

/// The options of a plugin.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct DevicePluginOptions {
    /// Whether the kubelet calls `PreStartContainer`.
    #[prost(bool, tag = "1")]
    pub pre_start_required: bool,
    /// Whether the kubelet calls `GetPreferredAllocation`.
    #[prost(bool, tag = "2")]
    pub get_preferred_allocation_available: bool,
}

/// The request by which a plugin registers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RegisterRequest {
    /// [`VERSION`].
    #[prost(string, tag = "1")]
    pub version: String,
    /// The name of the plugin's socket in the folder of device plugins.
    #[prost(string, tag = "2")]
    pub endpoint: String,
    /// The resource's name.
    #[prost(string, tag = "3")]
    pub resource_name: String,
    /// The plugin's options. The kubelet asks for them again.
    #[prost(message, optional, tag = "4")]
    pub options: Option<DevicePluginOptions>,
}

/// A list of all devices of a resource.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListAndWatchResponse {
    /// The devices.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
}

/// A device that the plugin offers to the kubelet.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Device {
    /// The device's name, 63 characters at most.
    #[prost(string, tag = "1")]
    pub id: String,
    /// [`HEALTHY`] or [`UNHEALTHY`].
    #[prost(string, tag = "2")]
    pub health: String,
}

/// The question which devices containers should get.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PreferredAllocationRequest {
    /// A question for each container.
    #[prost(message, repeated, tag = "1")]
    pub container_requests: Vec<ContainerPreferredAllocationRequest>,
}

/// The question which devices a container should get.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerPreferredAllocationRequest {
    /// The devices that are free, with those that the container must get.
    #[prost(string, repeated, tag = "1")]
    pub available: Vec<String>,
    /// The devices that the container must get.
    #[prost(string, repeated, tag = "2")]
    pub must_include: Vec<String>,
    /// The number of devices that the container gets.
    #[prost(int32, tag = "3")]
    pub size: i32,
}

/// The devices that containers should get.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PreferredAllocationResponse {
    /// An answer for each container.
    #[prost(message, repeated, tag = "1")]
    pub container_responses: Vec<ContainerPreferredAllocationResponse>,
}

/// The devices that a container should get.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerPreferredAllocationResponse {
    /// The devices.
    #[prost(string, repeated, tag = "1")]
    pub ids: Vec<String>,
}

/// The kubelet's choice of devices for containers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateRequest {
    /// The choice for each container.
    #[prost(message, repeated, tag = "1")]
    pub container_requests: Vec<ContainerAllocateRequest>,
}

/// The kubelet's choice of devices for a container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerAllocateRequest {
    /// The devices.
    #[prost(string, repeated, tag = "1")]
    pub ids: Vec<String>,
}

/// The needs of the containers for their devices.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateResponse {
    /// An answer for each container.
    #[prost(message, repeated, tag = "1")]
    pub container_responses: Vec<ContainerAllocateResponse>,
}

/// The needs of a container for its devices.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerAllocateResponse {
    /// Environment variables. The pod's own variables replace them.
    #[prost(map = "string, string", tag = "1")]
    pub envs: HashMap<String, String>,
    /// CDI devices. The devices' changes to the container replace the pod's own settings.
    #[prost(message, repeated, tag = "5")]
    pub cdi_devices: Vec<CdiDevice>,
}

/// A CDI device.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CdiDevice {
    /// The qualified name, `VENDOR/CLASS=DEVICE`.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// The devices of a container that is about to start.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PreStartContainerRequest {
    /// The devices.
    #[prost(string, repeated, tag = "1")]
    pub ids: Vec<String>,
}

/// The resources of all pods of the node.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListPodResourcesResponse {
    /// The pods.
    #[prost(message, repeated, tag = "1")]
    pub pod_resources: Vec<PodResources>,
}

/// The resources of a pod.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodResources {
    /// The pod's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The pod's namespace.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// The containers. Init containers are missing, except those that run beside the others.
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<ContainerResources>,
}

/// The resources of a container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerResources {
    /// The container's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The container's devices.
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
    /// The container's claims.
    #[prost(message, repeated, tag = "5")]
    pub claims: Vec<DynamicResource>,
}

/// A container's claim.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DynamicResource {
    /// The container's part of the claim.
    #[prost(message, repeated, tag = "4")]
    pub resources: Vec<ClaimResource>,
}

/// A device of a claim.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClaimResource {
    /// The CDI devices.
    #[prost(message, repeated, tag = "1")]
    pub cdi_devices: Vec<CdiDevice>,
}

/// A container's devices of one resource. The kubelet can list a resource in several parts.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerDevices {
    /// The resource's name.
    #[prost(string, tag = "1")]
    pub resource_name: String,
    /// The devices.
    #[prost(string, repeated, tag = "2")]
    pub ids: Vec<String>,
}
