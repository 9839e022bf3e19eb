//! Counts the stream captures that are under way. While there are none, launches pay one load for it.
//!
//! A captured launch does not execute: it is neither gated nor charged, and no marker of ours may get into the graph. The graph's launch
//! is metered instead.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::driver::calls::{Context, Stream};

/// A capture that is under way.
#[derive(Debug, Clone, Copy)]
struct Capture {
    /// Where it was begun.
    stream: Stream,
    /// The context of that stream, if the driver could tell: the capture ends with it.
    context: Option<Context>,
}

static ACTIVE: AtomicU32 = AtomicU32::new(0);
static CAPTURES: Mutex<Vec<Capture>> = Mutex::new(Vec::new());

/// Whether any stream of the process may be capturing.
#[inline(always)]
pub fn is_active() -> bool {
    ACTIVE.load(Ordering::Relaxed) != 0
}

fn change(change: impl FnOnce(&mut Vec<Capture>)) {
    let mut captures = CAPTURES.lock().unwrap_or_else(PoisonError::into_inner);
    change(&mut captures);
    ACTIVE.store(captures.len() as u32, Ordering::SeqCst);
}

/// A capture is about to begin on `stream`, which is of `context`. Counted before it does, so that no marker slips in.
pub fn begin(stream: Stream, context: Option<Context>) {
    change(|captures| captures.push(Capture { stream, context }));
}

/// A capture on `stream` ended, or did not begin.
pub fn end(stream: Stream) {
    change(|captures| {
        if let Some(place) = captures.iter().position(|capture| capture.stream == stream) {
            captures.swap_remove(place);
        }
    });
}

/// A context is gone, and with it every capture on its streams.
pub fn forget_context(context: Context) {
    if is_active() {
        change(|captures| captures.retain(|capture| capture.context != Some(context)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures_are_active_until_each_one_ended_or_lost_its_context() {
        let (one, other) = (Stream(100), Stream(200));
        begin(one, None);
        begin(other, None);
        end(one);
        end(one);
        assert!(is_active(), "ending twice ends one");
        end(other);
        assert!(!is_active());
        begin(one, Some(Context(1)));
        begin(one, Some(Context(2)));
        forget_context(Context(1));
        assert!(is_active(), "the other context lives");
        forget_context(Context(2));
        assert!(!is_active());
    }
}
