//! What each thread keeps for itself: the lanes it launches on, so that a launch finds its own without a lock.
//!
//! Plain cells without destructors: nothing runs at a thread's end, and a thread that never launches never touches them.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::driver::calls::{Calls, Context, Stream};
use crate::memory::mixed;
use crate::meter::context::ContextState;
use crate::meter::lane::Lane;
use crate::os;

/// Streams that a thread launches on by turns without a look-up.
const PLACES: usize = 64;
/// Places that a stream may have, which have little to do with each other: whoever has to make place finds another at its next launch (cuckoo hashing,
/// where the streams themselves move on).
const PROBES: usize = 4;

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
    /// Which of a stream's places is given to another, by chance.
    drawn: Cell<u64>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread { id: Cell::new(0), generation: Cell::new(0), context: Cell::new(None), places: [const { Cell::new(Place::EMPTY) }; PLACES], drawn: Cell::new(0) }
    };
}

/// The places that a stream may have, the likeliest first.
#[inline(always)]
fn places_of(stream: Stream) -> impl Iterator<Item = usize> {
    let spread = mixed(stream.0 as u64);
    (1..=PROBES as u32).map(move |probe| (spread >> (u64::BITS - probe * PLACES.ilog2())) as usize % PLACES)
}

/// The lane that this thread used last on `stream`. A default stream is another one in each context, so the driver is asked
/// which is current.
#[inline(always)]
pub fn lane(calls: &Calls, stream: Stream) -> Option<&'static Lane> {
    THREAD.with(|thread| {
        let mut places = places_of(stream).map(|place| thread.places[place].get());
        let place = places.find(|place| place.stream == stream.0)?;
        if thread.generation.get() != GENERATION.load(Ordering::Acquire) {
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
        // Its own; else one that is free; else one of them makes place, by chance: whoever is not used any more is gone soon.
        let places = || places_of(stream).map(|place| &thread.places[place]);
        let own = places().find(|place| place.get().stream == stream.0);
        let free = || places().find(|place| place.get().lane.is_none());
        let other = || {
            // Not in any order: those that make place for each other would do so for ever.
            thread.drawn.set(mixed(thread.drawn.get()).wrapping_add(1));
            places().nth((thread.drawn.get() >> u32::BITS) as usize % PROBES)
        };
        let Some(place) = own.or_else(free).or_else(other) else { return };
        let previous = place.replace(next);
        if previous.lane.is_some_and(|previous| !std::ptr::eq(previous, lane)) {
            close(calls, thread, previous);
        }
    });
}

/// What is known of `handle`, if this thread asked for it last.
pub fn context(handle: Context) -> Option<&'static ContextState> {
    THREAD.with(|thread| thread.context.get()).filter(|context| context.is_alive_as(handle))
}

/// What was current to this thread when that was last asked for, if it is there still.
pub fn last_context() -> Option<&'static ContextState> {
    THREAD.with(|thread| thread.context.get()).filter(|context| !context.is_dead())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::fake;
    use crate::meter::gpu::Gpu;

    const CONTEXT: Context = Context(0x1000);

    #[test]
    fn a_thread_finds_its_lanes_on_as_many_streams_as_anybody_has_whatever_it_had_before() {
        const STREAMS: usize = 32;
        const ROUNDS: usize = 16;
        let calls = fake::calls();
        let gpu: &'static Gpu = Box::leak(Box::default());
        let context: &'static ContextState = Box::leak(Box::new(ContextState::new(CONTEXT, gpu, 0)));
        // As an allocator places them; those of an earlier time are never used again.
        for apart_bytes in [0x40, 0x200, 0x1000] {
            let streams = |first: usize| (0..STREAMS).map(move |number| Stream(first + number * apart_bytes));
            let mut missed = 0;
            for stream in streams(0x5555_0000).chain((0..ROUNDS).flat_map(|_| streams(0x7fff_0000))) {
                missed = if stream == Stream(0x7fff_0000) { 0 } else { missed };
                if lane(&calls, stream).is_none() {
                    missed += 1;
                    remember(&calls, stream, CONTEXT, context.lane(CONTEXT, stream, id()).unwrap());
                }
            }
            assert_eq!(missed, 0, "in the last round, {apart_bytes} bytes apart");
        }
    }
}
