//! What NVML says that one process holds of one GPU, at this moment: processes ask for it when a context was made, whose memory no call of the driver
//! tells of.

use super::reconcile::NVML_LIBRARY;
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use std::ffi::OsStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Whoever asks waits no longer, for others' turns and its own together.
const LIMIT: Duration = Duration::from_millis(500);

/// See the module.
pub struct Appraiser {
    nvml: Arc<Mutex<Option<Nvml>>>,
    /// One asks at a time: a driver that hangs keeps one thread, not all.
    turn: Arc<Semaphore>,
}

impl Default for Appraiser {
    fn default() -> Self {
        Self { nvml: Arc::default(), turn: Arc::new(Semaphore::new(1)) }
    }
}

impl Appraiser {
    /// What the process `pid` holds of the GPU `uuid`, bytes. `None`: NVML does not say, or not in time.
    pub async fn held_bytes(&self, pid: u32, uuid: String) -> Option<u64> {
        // A process that cannot be seen from here has no number.
        if pid == 0 {
            return None;
        }
        let asked = async {
            let turn = Arc::clone(&self.turn).acquire_owned().await.ok()?;
            let nvml = Arc::clone(&self.nvml);
            let asked = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                let mut nvml = nvml.lock().unwrap_or_else(PoisonError::into_inner);
                if nvml.is_none() {
                    *nvml = Nvml::builder().lib_path(OsStr::new(NVML_LIBRARY)).init().ok();
                }
                ask(nvml.as_ref()?, pid, &uuid)
            });
            asked.await.ok()?
        };
        timeout(LIMIT, asked).await.ok()?
    }
}

fn ask(nvml: &Nvml, pid: u32, uuid: &str) -> Option<u64> {
    let processes = nvml.device_by_uuid(uuid).ok()?.running_compute_processes().ok()?;
    match processes.into_iter().find(|process| process.pid == pid)?.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some(bytes),
        UsedGpuMemory::Unavailable => None,
    }
}
