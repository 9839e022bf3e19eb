//! What each thread keeps for itself: the lanes it launches on, so that a launch finds its own without a lock.
//!
//! Plain cells without destructors: nothing runs at a thread's end, and a thread that never launches never touches them.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::driver::calls::{Calls, Context, Stream};
use crate::meter::context::ContextState;
use crate::meter::lane::Lane;
use crate::os;

/// Streams that a thread launches on by turns without a look-up.
const PLACES: usize = 8;
/// Handles of streams are addresses of structures of the driver's: their low bits say little.
const HANDLE_SHIFT: u32 = 6;

/// Changes whenever a stream or context dies: lanes that threads remember may then be another's.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Makes every thread look its lanes up again.
pub fn forget_lanes() {
    GENERATION.fetch_add(1, Ordering::AcqRel);
}

#[derive(Clone, Copy)]
struct Place {
    stream: usize,
    /// Of a default stream; else 0.
    context: usize,
    lane: Option<&'static Lane>,
}

impl Place {
    const EMPTY: Self = Self { stream: 0, context: 0, lane: None };
}

struct Thread {
    id: Cell<u32>,
    generation: Cell<u32>,
    /// The context that was current when last asked.
    context: Cell<Option<&'static ContextState>>,
    places: [Cell<Place>; PLACES],
}

thread_local! {
    static THREAD: Thread = const {
        Thread { id: Cell::new(0), generation: Cell::new(0), context: Cell::new(None), places: [const { Cell::new(Place::EMPTY) }; PLACES] }
    };
}

const fn place_of(stream: Stream) -> usize {
    (stream.0 ^ (stream.0 >> HANDLE_SHIFT) ^ (stream.0 >> (2 * HANDLE_SHIFT))) % PLACES
}

/// The lane that this thread used last on `stream`. A default stream is another one in each context, so the driver is asked
/// which is current.
#[inline(always)]
pub fn lane(calls: &Calls, stream: Stream) -> Option<&'static Lane> {
    THREAD.with(|thread| {
        let place = thread.places[place_of(stream)].get();
        if place.stream != stream.0 || thread.generation.get() != GENERATION.load(Ordering::Acquire) {
            return None;
        }
        if stream.is_default() && calls.current_context() != Some(Context(place.context)) {
            return None;
        }
        place.lane
    })
}

/// Remembers the lane for `stream`. A lane that has to make place ends its segment.
pub fn remember(calls: &Calls, stream: Stream, context: Context, lane: &'static Lane) {
    THREAD.with(|thread| {
        let generation = GENERATION.load(Ordering::Acquire);
        if thread.generation.replace(generation) != generation {
            for place in &thread.places {
                close(calls, thread, place.replace(Place::EMPTY));
            }
        }
        let context = if stream.is_default() { context.0 } else { 0 };
        let next = Place { stream: stream.0, context, lane: Some(lane) };
        let previous = thread.places[place_of(stream)].replace(next);
        if previous.lane.is_some_and(|previous| !std::ptr::eq(previous, lane)) {
            close(calls, thread, previous);
        }
    });
}

/// What is known of `handle`, if this thread asked for it last.
pub fn context(handle: Context) -> Option<&'static ContextState> {
    THREAD.with(|thread| thread.context.get()).filter(|context| context.is_alive_as(handle))
}

/// Remembers a context for [`context`].
pub fn remember_context(context: &'static ContextState) {
    THREAD.with(|thread| thread.context.set(Some(context)));
}

/// Ends the open segments of this thread: it is about to wait.
pub fn close_lanes(calls: &Calls) {
    THREAD.with(|thread| {
        for place in &thread.places {
            close(calls, thread, place.get());
        }
    });
}

fn close(calls: &Calls, thread: &Thread, place: Place) {
    let Some(lane) = place.lane else { return };
    // After a stream or context died the lane may be somebody else's.
    let is_own = lane.owner() == thread.id.get() && lane.stream() == Some(Stream(place.stream));
    if is_own && lane.is_open() && !lane.context.is_dead() {
        lane.close(calls);
    }
}

/// This thread's id.
pub fn id() -> u32 {
    THREAD.with(|thread| {
        if thread.id.get() == 0 {
            thread.id.set(os::thread_id());
        }
        thread.id.get()
    })
}

/// In a forked child: another thread, with nothing launched.
pub fn reset() {
    THREAD.with(|thread| {
        thread.id.set(0);
        thread.context.set(None);
        for place in &thread.places {
            place.set(Place::EMPTY);
        }
    });
}
