//! How a process's tenant was found, and the container it is in, as they are shown and saved.

use serde::{Deserialize, Serialize};

/// Digits by which people know it.
const SHORT_DIGITS: usize = 12;

/// How a process's tenant was found, in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "by")]
pub enum Found {
    /// By the name it gave.
    Name {
        /// The container or pod in which alone that name holds, if it does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        within: Option<String>,
    },
    /// By an ancestor that belongs to it.
    Ancestor {
        /// That process.
        pid: u32,
    },
    /// By its container.
    Container,
    /// By its pod.
    Pod,
    /// By its batch job.
    Slurm {
        /// The job's number.
        job: u32,
    },
    /// By the root of its process tree.
    Tree {
        /// The root.
        root: u32,
    },
}

/// Who runs a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Runtime {
    /// Docker.
    Docker,
    /// podman.
    Podman,
    /// containerd, by Kubernetes or nerdctl.
    Containerd,
    /// CRI-O.
    Crio,
    /// Some runtime that names its cgroups after the bare id.
    #[serde(rename = "container")]
    Unknown,
}

impl Runtime {
    /// Its name, as tenants are named after it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Containerd => "containerd",
            Self::Crio => "crio",
            Self::Unknown => "container",
        }
    }
}

/// A container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// Who runs it.
    pub runtime: Runtime,
    /// Its id.
    pub id: String,
}

impl Container {
    /// The id as people see it in lists of containers.
    pub fn short_id(&self) -> &str {
        self.id.get(..SHORT_DIGITS).unwrap_or(&self.id)
    }
}
