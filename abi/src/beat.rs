//! The controller's heartbeat, one page for the whole host.

use crate::MAX_GPUS;
use crate::page::{Head, Kind, Page};
use crate::sync::{AtomicU64, Ordering};

/// Each arbiter thread writes the time here at every tick, so a waiting tenant can tell a controller that lives but has
/// nothing for it from one that is stopped or stuck.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct BeatPage {
    head: Head,
    beats_ns: [AtomicU64; MAX_GPUS],
}

// SAFETY: repr(C), head first, atomics only, and its kind is its own.
unsafe impl Page for BeatPage {
    const KIND: Kind = Kind::Beat;
    fn head(&self) -> &Head {
        &self.head
    }
}

impl BeatPage {
    /// Notes that the arbiter of `gpu` is alive at `now_ns` (`CLOCK_MONOTONIC`). A GPU out of range is ignored.
    pub fn beat(&self, gpu: usize, now_ns: u64) {
        if let Some(beat) = self.beats_ns.get(gpu) {
            beat.store(now_ns, Ordering::Relaxed);
        }
    }

    /// When the arbiter of `gpu` last beat (ns of `CLOCK_MONOTONIC`), 0 if never.
    pub fn last_ns(&self, gpu: usize) -> u64 {
        self.beats_ns.get(gpu).map_or(0, |beat| beat.load(Ordering::Relaxed))
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<BeatPage>() == 4096);
