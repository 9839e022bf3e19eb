//! The Kubernetes device plugin and DRA driver of deepres: give pods shares of GPUs that bind.
//!
//! | module | job |
//! |---|---|
//! | [`evidence`] | which containers have which devices, by the kubelet's word; pure |
//! | [`record`] | the record of an allocation, which is its CDI specification |
//! | [`node`] | brings daemon, kubelet and records together |
//! | [`plugin`] | registers at the kubelet, and answers its calls |
//! | `dra` | the DRA driver, with the feature of this name |
//! | [`daemon`], [`grpc`], [`api`] | the daemon's admin socket, gRPC, and the kubelet's messages |
//!
//! [`deepres_policy::shares`] decides which devices the kubelet may give away, and which GPU a
//! container gets.
//!
//! docs/kubernetes.md describes the plugin for users.

pub mod api;
pub mod daemon;
#[cfg(feature = "dra")]
pub mod dra;
pub mod evidence;
pub mod grpc;
pub mod node;
pub mod plugin;
pub mod record;
