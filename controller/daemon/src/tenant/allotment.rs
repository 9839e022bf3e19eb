//! The part of the GPUs that a cluster's scheduler gave to a job.

use deepres_abi::PPM;
use deepres_abi::grant::NO_LIMIT;
use deepres_abi::quantity::MIN_SHARE_PPM;
use deepres_model::authority::Wish;
use deepres_model::config::{CapOf, Caps};
use deepres_policy::class::Class;
use serde::{Deserialize, Serialize};

/// The part of the GPUs that a cluster's scheduler gave to a job. The part bounds the job's wishes
/// in place of the user's caps of share, memory and class, and replaces wishes that are missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allotment {
    /// The number of the Slurm job; `None` for the allocation of a node's agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<u32>,
    /// The share of each GPU, parts per million.
    pub share_ppm: u32,
    /// Memory on each GPU, bytes; [`NO_LIMIT`] for whole GPUs.
    pub memory_bytes: u64,
    /// Memory on each GPU that is not part of the allotment, bytes.
    pub elsewhere_bytes: u64,
    /// The strongest class.
    pub class: Class,
    /// The numbers of the GPUs; `None` if they are not known.
    pub gpus: Option<Vec<usize>>,
}

impl Allotment {
    /// Returns the allotment of a job to which the scheduler gave no GPU. Such a job may run in the
    /// pauses of other jobs.
    pub fn none(elsewhere_bytes: u64) -> Self {
        Self {
            job: None,
            share_ppm: MIN_SHARE_PPM,
            memory_bytes: elsewhere_bytes,
            elsewhere_bytes,
            class: Class::BestEffort,
            gpus: Some(Vec::new()),
        }
    }

    /// Returns whether the job has whole GPUs.
    pub fn is_whole(&self) -> bool {
        self.share_ppm == PPM
    }

    /// Returns whether a GPU is certainly not a part of the allotment.
    pub fn lacks(&self, gpu: usize) -> bool {
        self.gpus.as_ref().is_some_and(|gpus| !gpus.contains(&gpu))
    }

    /// Returns the caps of a job with this allotment. The allotment replaces the user's caps of
    /// share, memory and class.
    pub fn caps(&self, of_user: &Caps) -> (Caps, CapOf) {
        let (share_ppm, memory_bytes, class) = (self.share_ppm, self.memory_bytes, self.class);
        (Caps { share_ppm, memory_bytes, class, ..*of_user }, CapOf::Allotment)
    }

    /// Returns the wishes that a job with this allotment has by default.
    pub fn defaults(&self) -> Wish {
        let memory_bytes = Some(self.memory_bytes).filter(|bytes| *bytes != NO_LIMIT);
        Wish { share_ppm: Some(self.share_ppm), memory_bytes, ..Wish::default() }
    }
}
