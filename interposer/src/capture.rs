//! Counts the stream captures that are under way. While there are none, launches pay one load for it.
//!
//! A captured launch does not execute: it is neither gated nor charged, and no marker of ours may get into the graph. The graph's launch
//! is metered instead.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::driver::calls::Stream;

static ACTIVE: AtomicU32 = AtomicU32::new(0);
/// The streams that captures were begun on.
static STREAMS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Whether any stream of the process may be capturing.
#[inline(always)]
pub fn is_active() -> bool {
    ACTIVE.load(Ordering::Relaxed) != 0
}

fn change(change: impl FnOnce(&mut Vec<usize>)) {
    let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    change(&mut streams);
    ACTIVE.store(streams.len() as u32, Ordering::SeqCst);
}

/// A capture is about to begin on `stream`. Counted before it does, so that no marker slips in.
pub fn begin(stream: Stream) {
    change(|streams| streams.push(stream.0));
}

/// A capture on `stream` ended, or did not begin.
pub fn end(stream: Stream) {
    change(|streams| {
        if let Some(place) = streams.iter().position(|capturing| *capturing == stream.0) {
            streams.swap_remove(place);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures_are_active_until_each_one_ended() {
        let (one, other) = (Stream(100), Stream(200));
        begin(one);
        begin(other);
        end(one);
        end(one);
        assert!(is_active(), "ending twice ends one");
        end(other);
        assert!(!is_active());
    }
}
