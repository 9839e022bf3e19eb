//! The configuration of the probes, which watch the use of GPUs.

use super::DeviceKey;
use serde::{Deserialize, Deserializer, Serialize};

/// The keys of the section `[probes]` of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProbesKeys {
    /// Whether the daemon attaches probes to the kernel.
    pub enabled: bool,
    /// The devices to watch. An empty list means NVIDIA's devices.
    #[serde(deserialize_with = "devices")]
    pub devices: Vec<DeviceKey>,
    /// The treatment of unmanaged processes.
    pub unmanaged: UnmanagedPolicy,
}

impl Default for ProbesKeys {
    fn default() -> Self {
        Self { enabled: true, devices: Vec::new(), unmanaged: UnmanagedPolicy::Report }
    }
}

impl ProbesKeys {
    /// Returns the reason for which the configuration forbids metering from outside; `None` if it
    /// allows this.
    pub fn metering_refusal(&self) -> Option<String> {
        (!self.enabled).then(|| "the daemon's configuration turns the probes off (probes.enabled)".to_owned())
    }
}

/// The ways in which the daemon can treat unmanaged processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnmanagedPolicy {
    /// The daemon only lists unmanaged processes in the status.
    Report,
    /// The daemon lists unmanaged processes in the status, and logs a warning.
    Warn,
    /// The daemon stops unmanaged processes that compute, until an administrator adopts them.
    Hold,
}

fn devices<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<DeviceKey>, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    names.iter().map(|name| name.parse().map_err(serde::de::Error::custom)).collect()
}
