//! Detaches probes that are no longer needed, in a thread of its own. The kernel takes a fifth of a
//! second for each probe, which nobody should wait for.

use super::shares::Shares;
use crate::identity::source::Source;
use aya::programs::uprobe::UProbeLink;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

/// Handle of the detaching thread.
pub struct Undertaker {
    probes: mpsc::Sender<(Option<Source>, Vec<UProbeLink>)>,
}

impl Undertaker {
    /// Starts the thread, which ends after its last work. It gives each detached probe back to
    /// `shares`.
    ///
    /// # Errors
    /// The system's error if it provides no thread.
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

    /// Queues probes for detaching. Until then they count for `source`, if one is given.
    pub fn take(&self, source: Option<Source>, probes: Vec<UProbeLink>) {
        // If the thread has ended, the probes are dropped, and so detached, here.
        let _ = self.probes.send((source, probes));
    }
}
