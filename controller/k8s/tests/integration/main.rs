//! The device plugin against a fake kubelet with real gRPC, and a real daemon with made-up GPUs.
//! The DRA driver (feature `dra`) besides against a fake API server.

#[cfg(feature = "dra")]
mod api_server;
mod behaviour;
#[cfg(feature = "dra")]
mod dra;
mod kubelet;
mod node;
mod random;
