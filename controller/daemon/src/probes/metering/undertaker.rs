//! Detaches probes that the daemon no longer needs, in a thread of its own. For each probe, the
//! kernel takes a fifth of a second, for which no other thread should wait.

use super::shares::Shares;
use crate::identity::source::Source;
use aya::programs::uprobe::UProbeLink;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

/// Handle of the thread that detaches probes.
pub struct Undertaker {
    probes: mpsc::Sender<(Option<Source>, Vec<UProbeLink>)>,
}

impl Undertaker {
    /// Starts the thread. After each detachment, the thread gives the probe back to `shares`. The
    /// thread ends after its last work.
    ///
    /// # Errors
    /// The system's error, for lack of threads.
    pub fn start(shares: Arc<Mutex<Shares>>) -> std::io::Result<Self> {
        let (probes, received) = mpsc::channel::<(Option<Source>, Vec<UProbeLink>)>();
        std::thread::Builder::new().name("deepres-detach".to_owned()).spawn(move || {
            for (source, probes) in received {
                for probe in probes {
                    drop(probe);
                    if let Some(source) = &source {
                        shares.lock().unwrap_or_else(PoisonError::into_inner).give_back(source, 1);
                    }
                }
            }
        })?;
        Ok(Self { probes })
    }

    /// Queues probes, which a thread detaches later. Until the thread detaches the probes, they
    /// count for `source`, if there is a source.
    pub fn take(&self, source: Option<Source>, probes: Vec<UProbeLink>) {
        // If the thread has ended, this function drops the probes, and so detaches them.
        let _ = self.probes.send((source, probes));
    }
}
