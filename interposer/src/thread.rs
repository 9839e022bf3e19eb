//! State of each thread: the lanes on which the thread launches. By this state, a launch finds its
//! lane without a lock.
//!
//! The state consists of plain cells without destructors. No code runs at the end of a thread, and
//! a thread that never launches does not touch the cells.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::driver::calls::{Calls, Context, Stream};
use crate::meter::context::ContextState;
use crate::meter::lane::LaneOwner;
use crate::os;

/// The most streams whose lanes a thread can remember.
const PLACES: usize = 64;
/// The number of places that a stream can have. The places of two streams are nearly independent.
/// So a stream that loses its place finds another place at its next launch. Cuckoo hashing is
/// similar, but moves the entries.
const PROBES: usize = 4;

/// A number that changes when a stream or context ends, because a remembered lane can then serve
/// another stream. While the number stays, a thread owns each lane that it remembers.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Makes every thread look its lanes up again.
pub fn forget_lanes() {
    GENERATION.fetch_add(1, Ordering::AcqRel);
}

#[derive(Clone, Copy)]
struct Place {
    stream: usize,
    /// The context, if the stream is a default stream; else 0.
    context: usize,
    lane: Option<LaneOwner>,
}

impl Place {
    const EMPTY: Self = Self { stream: 0, context: 0, lane: None };
}

struct Thread {
    id: Cell<u32>,
    generation: Cell<u32>,
    /// The context that was current when the thread last asked.
    context: Cell<Option<&'static ContextState>>,
    places: [Cell<Place>; PLACES],
    /// The state of the random choice of a place.
    drawn: Cell<u64>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread { id: Cell::new(0), generation: Cell::new(0), context: Cell::new(None), places: [const { Cell::new(Place::EMPTY) }; PLACES], drawn: Cell::new(0) }
    };
}

/// Returns the places that a stream can have, the likeliest first.
#[inline(always)]
fn places_of(stream: Stream) -> impl Iterator<Item = usize> {
    let spread = mixed(stream.0 as u64);
    (1..=PROBES as u32).map(move |probe| (spread >> (u64::BITS - probe * PLACES.ilog2())) as usize % PLACES)
}

/// Returns the lane that this thread last used on `stream`, or `None` if the thread must look the
/// lane up. In each context, the handle of a default stream names another stream. So for such a
/// handle, the function asks the driver for the current context.
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

/// Writes the lane of `stream` into a place of the thread's table. If another lane had the place,
/// the function ends that lane's segment.
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
        // The function takes the stream's own place, else a free place, else a random place of the
        // stream. So a stream that the job no longer uses soon loses its place.
        let places = || places_of(stream).map(|place| &thread.places[place]);
        let own = places().find(|place| place.get().stream == stream.0);
        let free = || places().find(|place| place.get().lane.is_none());
        let other = || {
            // The choice is random. In a fixed order, two streams could displace each other for
            // ever.
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

/// Returns the state of the context `handle`, if this thread last asked for this context.
pub fn context(handle: Context) -> Option<&'static ContextState> {
    THREAD.with(|thread| thread.context.get()).filter(|context| context.is_alive_as(handle))
}

/// Returns a number that spreads similar numbers. Two different numbers have different results.
const fn mixed(number: u64) -> u64 {
    /// An odd factor, which therefore keeps different numbers different: 2⁶⁴ divided by the golden
    /// ratio.
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    number.wrapping_mul(MULTIPLIER)
}

/// Returns the state of the context that was current when this thread last asked. Returns `None` if
/// the context no longer exists.
pub fn last_context() -> Option<&'static ContextState> {
    THREAD.with(|thread| thread.context.get()).filter(|context| !context.is_dead())
}

/// Remembers a context for [`context`].
pub fn remember_context(context: &'static ContextState) {
    THREAD.with(|thread| thread.context.set(Some(context)));
}

/// Ends the open segments of this thread, because the thread is about to wait. The segment on the
/// legacy stream stays open ([`Lane::close_late`](crate::meter::lane::Lane::close_late)).
pub fn close_lanes(calls: &Calls) {
    THREAD.with(|thread| {
        for place in &thread.places {
            close(calls, thread, place.get());
        }
    });
}

fn close(calls: &Calls, thread: &Thread, place: Place) {
    // If a stream or context has ended, the lane can belong to another thread or stream by now.
    let still = |lane: LaneOwner| lane.lane().owned_by(thread.id.get(), Stream(place.stream));
    let Some(lane) = place.lane.and_then(still) else { return };
    if lane.is_open() && !lane.context.is_dead() {
        lane.close_late(calls, thread.id.get());
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

/// Clears the state, in a forked child. The child's thread has another id, and has not launched
/// yet.
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
    use crate::gate::Headroom;
    use crate::meter::gpu::Gpu;
    use crate::meter::segment::{Kind, Launch};
    use crate::meter::thread::MeterThread;

    const CONTEXT: Context = Context(0x1000);

    #[test]
    fn a_thread_that_waits_ends_its_segments_but_not_on_the_legacy_stream() {
        const KERNEL: Launch = Launch { key: 5 << 32, kind: Kind::Kernel };
        let calls = fake::calls();
        let gpu: &'static Gpu = Box::leak(Box::default());
        let context: &'static ContextState = Box::leak(Box::new(ContextState::new(CONTEXT, gpu, 0)));
        for _ in 0..8 {
            gpu.estimates.learn(MeterThread::acted(), KERNEL.key, 1_000);
        }
        let opened = |stream| {
            let lane = context.lane(CONTEXT, stream, id()).unwrap();
            remember(&calls, stream, CONTEXT, lane);
            while !lane.is_open() {
                let begun = lane.begin(&calls, KERNEL, Headroom::open(0), None).unwrap();
                lane.launched(begun.opens);
                if begun.ends {
                    lane.end(&calls);
                }
            }
            lane
        };
        let [own, legacy] = [Stream(0x5555_0000), Stream::LEGACY].map(opened);
        let before = fake::records(Stream::LEGACY);
        close_lanes(&calls);
        assert!(!own.is_open() && legacy.is_open());
        assert_eq!(fake::records(Stream::LEGACY), before);
    }

    #[test]
    fn a_thread_finds_its_lanes_on_as_many_streams_as_anybody_has_whatever_it_had_before() {
        const STREAMS: usize = 32;
        const ROUNDS: usize = 16;
        let calls = fake::calls();
        let gpu: &'static Gpu = Box::leak(Box::default());
        let context: &'static ContextState = Box::leak(Box::new(ContextState::new(CONTEXT, gpu, 0)));
        // Allocators leave such distances between streams. The test uses no stream of an earlier
        // round again.
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
