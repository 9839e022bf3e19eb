//! Detaches probes that nobody needs any more. The kernel takes a fifth of a second for each, which is nobody's to wait for.

use super::shares::Shares;
use crate::identity::source::Source;
use aya::programs::uprobe::UProbeLink;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

/// The detaching thread.
pub struct Undertaker {
    probes: mpsc::Sender<(Option<Source>, Vec<UProbeLink>)>,
}

impl Undertaker {
    /// Starts the thread, which ends with the last of its work. What it has detached it gives back to `shares`.
    ///
    /// # Errors
    /// The system's: no thread.
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

    /// Detaches these, some time; if they are counted for a source, they are until then.
    pub fn take(&self, source: Option<Source>, probes: Vec<UProbeLink>) {
        // Without the thread they are detached here.
        let _ = self.probes.send((source, probes));
    }
}
