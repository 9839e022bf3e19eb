//! The rule by which the daemon found a process's tenant, and the process's container, in the form
//! in which deepres shows and saves them.

use crate::slurm::JobName;
use serde::{Deserialize, Serialize};

/// Number of digits of a container's id that deepres shows.
const SHORT_DIGITS: usize = 12;

/// The rule by which the daemon found a process's tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "by")]
pub enum Found {
    /// The process belongs to the tenant by the name that the process gave.
    Name {
        /// The container or pod within which the name holds, if it holds only there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        within: Option<String>,
    },
    /// The process belongs to the tenant because an ancestor of the process does.
    Ancestor {
        /// The ancestor's process id.
        pid: u32,
    },
    /// The process belongs to the tenant by its container.
    Container,
    /// The process belongs to the tenant by its Kubernetes pod.
    Pod,
    /// The process belongs to the tenant by the token of an allocation, which the process or its
    /// container has.
    Allocation,
    /// The process belongs to the tenant by its Slurm job.
    Slurm {
        /// The job's number, or the SLUID of its run while Slurm has not told the number.
        job: JobName,
    },
    /// The process belongs to the tenant by the root of its process tree.
    Tree {
        /// The root's process id.
        root: u32,
    },
}

/// A container runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Runtime {
    /// Docker.
    Docker,
    /// Podman.
    Podman,
    /// containerd, used by Kubernetes or nerdctl.
    Containerd,
    /// CRI-O.
    Crio,
    /// An unknown runtime, whose cgroups are named after the bare id.
    #[serde(rename = "container")]
    Unknown,
}

impl Runtime {
    /// Returns the runtime's name, which is also part of tenants' names.
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

/// The container of a process, by its runtime and id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// The container's runtime.
    pub runtime: Runtime,
    /// The container's id.
    pub id: String,
    /// The container's name, if a node's agent told the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Container {
    /// Returns the id, shortened as container runtimes show it in lists.
    pub fn short_id(&self) -> &str {
        self.id.get(..SHORT_DIGITS).unwrap_or(&self.id)
    }
}
