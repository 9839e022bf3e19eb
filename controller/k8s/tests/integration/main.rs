//! The device plugin against a fake kubelet with real gRPC, and a real daemon with made-up GPUs.

mod behaviour;
mod kubelet;
mod node;
mod random;
