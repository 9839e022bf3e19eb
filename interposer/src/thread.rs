//! State that each thread keeps for itself: the lanes on which it launches, so that a launch finds
//! its lane without a lock.
//!
//! The state is plain cells without destructors. Nothing runs at the end of a thread, and a thread
//! that never launches does not touch the cells.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::driver::calls::{Calls, Context, Stream};
use crate::meter::context::ContextState;
use crate::meter::lane::LaneOwner;
use crate::os;

/// Streams on which a thread can launch in turn without a look-up.
const PLACES: usize = 64;
/// Places that a stream may have. The places of two streams are nearly independent, so a stream
/// that loses its place finds another one at its next launch. In cuckoo hashing, which resembles
/// this, entries are moved instead.
const PROBES: usize = 4;

/// Changes whenever a stream or context dies, because a lane that a thread remembers may then serve
/// another stream. As long as the number stays, the thread is the owner of each lane that it
/// remembers.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Makes every thread look its lanes up again.
pub fn forget_lanes() {
    GENERATION.fetch_add(1, Ordering::AcqRel);
}

#[derive(Clone, Copy)]
struct Place {
    stream: usize,
    /// Context of a default stream, else 0.
    context: usize,
    lane: Option<LaneOwner>,
}

impl Place {
    const EMPTY: Self = Self { stream: 0, context: 0, lane: None };
}

struct Thread {
    id: Cell<u32>,
    generation: Cell<u32>,
    /// The context that was current at the last look.
    context: Cell<Option<&'static ContextState>>,
    places: [Cell<Place>; PLACES],
    /// State of the random choice of the place that another stream takes.
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

/// Returns the lane that this thread last used on `stream`. The handle of a default stream names
/// another stream in each context. So for such a handle, the driver is asked for the current
/// context.
#[inline(always)]
pub fn lane(calls: &Calls, stream: Stream) -> Option<LaneOwner> {
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

/// Remembers the lane for `stream`. A lane that loses its place ends its segment.
pub fn remember(calls: &Calls, stream: Stream, context: Context, lane: LaneOwner) {
    THREAD.with(|thread| {
        let generation = GENERATION.load(Ordering::Acquire);
        if thread.generation.replace(generation) != generation {
            for place in &thread.places {
                close(calls, thread, place.replace(Place::EMPTY));
            }
        }
        let context = if stream.is_default() { context.0 } else { 0 };
        let next = Place { stream: stream.0, context, lane: Some(lane) };
        // The choice is the stream's own place, else a free one, else a random one of its places. A
        // stream that is no longer used soon loses its place in this way.
        let places = || places_of(stream).map(|place| &thread.places[place]);
        let own = places().find(|place| place.get().stream == stream.0);
        let free = || places().find(|place| place.get().lane.is_none());
        let other = || {
            // The choice is random, because in any fixed order two streams could displace each
            // other for ever.
            thread.drawn.set(mixed(thread.drawn.get()).wrapping_add(1));
            places().nth((thread.drawn.get() >> u32::BITS) as usize % PROBES)
        };
        let Some(place) = own.or_else(free).or_else(other) else { return };
        let previous = place.replace(next);
        if previous.lane.is_some_and(|previous| !std::ptr::eq(previous.lane(), lane.lane())) {
            close(calls, thread, previous);
        }
    });
}

/// Returns the state of `handle`, if this thread last asked for that context.
pub fn context(handle: Context) -> Option<&'static ContextState> {
    THREAD.with(|thread| thread.context.get()).filter(|context| context.is_alive_as(handle))
}

/// Spreads similar numbers. Different numbers stay different.
const fn mixed(number: u64) -> u64 {
    /// 2⁶⁴ divided by the golden ratio.
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    number.wrapping_mul(MULTIPLIER)
}

/// Returns the state of the context that was current to this thread at the last look, if the
/// context still exists.
pub fn last_context() -> Option<&'static ContextState> {
    THREAD.with(|thread| thread.context.get()).filter(|context| !context.is_dead())
}

/// Remembers a context for [`context`].
pub fn remember_context(context: &'static ContextState) {
    THREAD.with(|thread| thread.context.set(Some(context)));
}

/// Ends the open segments of this thread, because the thread is about to wait.
pub fn close_lanes(calls: &Calls) {
    THREAD.with(|thread| {
        for place in &thread.places {
            close(calls, thread, place.get());
        }
    });
}

fn close(calls: &Calls, thread: &Thread, place: Place) {
    // After a stream or context died, the lane may belong to another thread or stream.
    let still = |lane: LaneOwner| lane.lane().owned_by(thread.id.get(), Stream(place.stream));
    let Some(lane) = place.lane.and_then(still) else { return };
    if lane.is_open() && !lane.context.is_dead() {
        lane.close(calls);
    }
}

/// Returns this thread's id.
pub fn id() -> u32 {
    THREAD.with(|thread| {
        if thread.id.get() == 0 {
            thread.id.set(os::thread_id());
        }
        thread.id.get()
    })
}

/// Clears the state, in a forked child: the child's thread has another id and has launched nothing.
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
        // The distances are those that an allocator leaves between streams. Streams of an earlier
        // round are never used again.
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
