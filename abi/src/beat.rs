//! The daemon's heartbeat, one page for the whole host.

use crate::MAX_GPUS;
use crate::page::{Head, Kind, Page};
use crate::sync::{AtomicU64, Ordering};

/// The heartbeat page. Each arbiter writes the time here at each tick. So a waiting tenant can
/// distinguish two cases: the daemon lives and has no lease for the tenant, or the daemon is
/// stopped or stuck.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct BeatPage {
    head: Head,
    beats_ns: [AtomicU64; MAX_GPUS],
}

// SAFETY: the type is repr(C), begins with the head, contains only atomics, and has its own kind.
unsafe impl Page for BeatPage {
    const KIND: Kind = Kind::Beat;
    fn head(&self) -> &Head {
        &self.head
    }
}

impl BeatPage {
    /// Records that the arbiter of `gpu` is alive at `now_ns` (`CLOCK_MONOTONIC`). Does nothing if
    /// `gpu` is no GPU index.
    pub fn beat(&self, gpu: usize, now_ns: u64) {
        if let Some(beat) = self.beats_ns.get(gpu) {
            beat.store(now_ns, Ordering::Relaxed);
        }
    }

    /// Returns when the arbiter of `gpu` last wrote the time, ns of `CLOCK_MONOTONIC`; 0 if the
    /// arbiter never wrote it.
    pub fn last_ns(&self, gpu: usize) -> u64 {
        self.beats_ns.get(gpu).map_or(0, |beat| beat.load(Ordering::Relaxed))
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<BeatPage>() == 4096);
