//! Detaches probes that nobody needs any more. The kernel takes a fifth of a second for each, which is nobody's to wait for.

use aya::programs::uprobe::UProbeLink;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

/// The detaching thread.
pub struct Undertaker {
    probes: mpsc::Sender<Vec<UProbeLink>>,
    waiting: Arc<AtomicUsize>,
}

impl Undertaker {
    /// Starts the thread, which ends with the last of its work.
    ///
    /// # Errors
    /// The system's: no thread.
    pub fn start() -> std::io::Result<Self> {
        let (probes, received) = mpsc::channel::<Vec<UProbeLink>>();
        let waiting = Arc::new(AtomicUsize::new(0));
        let done = Arc::clone(&waiting);
        std::thread::Builder::new().name("deepres-detach".to_owned()).spawn(move || {
            for probe in received.into_iter().flatten() {
                drop(probe);
                done.fetch_sub(1, Ordering::Relaxed);
            }
        })?;
        Ok(Self { probes, waiting })
    }

    /// Detaches these, some time.
    pub fn take(&self, probes: Vec<UProbeLink>) {
        self.waiting.fetch_add(probes.len(), Ordering::Relaxed);
        // Without the thread they are detached here.
        let _ = self.probes.send(probes);
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}
