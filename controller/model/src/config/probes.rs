//! The configuration of watching who uses the GPU.

use super::DeviceKey;
use serde::{Deserialize, Deserializer};

/// Watching who uses the GPU.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProbesKeys {
    /// Programs are attached to the kernel.
    pub enabled: bool,
    /// The devices; none stands for NVIDIA's.
    #[serde(deserialize_with = "devices")]
    pub devices: Vec<DeviceKey>,
    /// What is done with processes that use a GPU and are no tenant's.
    pub unmanaged: UnmanagedPolicy,
}

impl Default for ProbesKeys {
    fn default() -> Self {
        Self { enabled: true, devices: Vec::new(), unmanaged: UnmanagedPolicy::Report }
    }
}

impl ProbesKeys {
    /// Why nobody can be metered from outside, if the configuration says so.
    pub fn metering_refusal(&self) -> Option<String> {
        (!self.enabled)
            .then(|| "the daemon's configuration wants no programs in the kernel (probes.enabled)".to_owned())
    }
}

/// What is done with processes that use a GPU and are no tenant's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnmanagedPolicy {
    /// They are listed.
    Report,
    /// They are listed, and the log has a warning.
    Warn,
    /// Those that compute are stopped until an administrator adopts them.
    Hold,
}

fn devices<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<DeviceKey>, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    names.iter().map(|name| name.parse().map_err(serde::de::Error::custom)).collect()
}
