//! Moves oversubscribed memory: to the GPU while the process may use the GPU, and off the GPU while
//! other tenants use it. The meter thread runs the mover.
//!
//! While the gate is open or leased, the mover brings oversubscribed memory to the GPU part by
//! part, as far as the GPU has room. When a kernel touches memory that is still on the host, the
//! driver itself brings this memory.
//!
//! Once the gate has closed and nothing is in flight, the mover tells the driver that the memory no
//! longer belongs on the GPU. When the driver needs room, it evicts this memory first. The mover
//! also makes room for the next holder: as much room as this process used for oversubscribed
//! memory. If the GPU has less free memory, the mover moves oversubscribed memory to the host.
//!
//! If the GPU has room for all tenants, the mover moves nothing. If no other process takes the
//! freed room, the other processes need none, and the mover makes no room for a while ([`Room`]).
//!
//! On each GPU, one part is under way at a time, so that the meter thread soon returns to metering.
//! While a thread captures a stream, the mover moves nothing.

use std::mem;

use crate::capture;
use crate::driver::calls::{Context, Progress};
use crate::driver::managed::{self, Location};
use crate::memory::oversubscription::Move;
use crate::meter::context::Inner;
use crate::process::Process;

/// The size of a part, bytes. On a bus of 16 to 32 GB/s, the move of a part takes a millisecond or
/// two.
const PART_BYTES: u64 = 32 << 20;
/// Bytes that the mover leaves free on the GPU, because contexts and code come and go.
const SPARE_BYTES: u64 = 32 << 20;
/// Time between two looks at the gate, while the process has oversubscribed memory and nothing else
/// wakes the meter thread.
pub const LOOK_NS: u64 = 5_000_000;

/// The amount of work for the mover on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moves {
    /// The process has no oversubscribed memory on the GPU, or nothing to do until the gate
    /// changes.
    None,
    /// There is nothing to move at present, but the mover must look again later.
    Rest,
    /// The mover has more memory to move, or waits for work in flight that still needs the memory.
    More,
}

/// The time after which the mover concludes that no process needs the freed room, ns. With leases
/// of some milliseconds, the other processes have brought some memory to the GPU by then.
const TRIED_NS: u64 = 500_000_000;
/// The time for which the mover makes no room after no process took the freed room, ns. The time
/// doubles with each attempt in vain. If a process needs room in this time, the driver itself moves
/// memory off the GPU.
const FIRST_KEEP_NS: u64 = 1_000_000_000;
/// The longest time for which the mover makes no room after several attempts in vain, ns.
const LAST_KEEP_NS: u64 = 8_000_000_000;
/// Bytes that can be on their way to or from the GPU while the mover reads the free memory.
const UNDER_WAY_BYTES: u64 = 2 * PART_BYTES;

/// Decides whether other processes take the room that the mover makes. The decision rests on the
/// sum of the GPU's free memory and this process's oversubscribed memory there. The sum shrinks
/// only if another process takes memory.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Room {
    /// The greatest sum of the GPU's free memory and this process's oversubscribed memory there,
    /// bytes, since another process last took memory.
    most_bytes: u64,
    /// The time since which the mover has made room that no process has taken, ns.
    tried_since_ns: Option<u64>,
    keep_ns: u64,
    /// The time before which the mover makes no room, ns.
    keeps_until_ns: u64,
}

impl Room {
    /// Records `sum_bytes`, the present sum of the GPU's free memory and this process's
    /// oversubscribed memory there.
    fn look(&mut self, sum_bytes: u64) {
        if sum_bytes.saturating_add(UNDER_WAY_BYTES) < self.most_bytes {
            *self = Self { most_bytes: sum_bytes, ..Self::default() };
        }
        self.most_bytes = self.most_bytes.max(sum_bytes);
    }

    /// Returns whether the mover is to make room now.
    fn is_wanted(&mut self, now_ns: u64) -> bool {
        if now_ns < self.keeps_until_ns {
            return false;
        }
        let since_ns = *self.tried_since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since_ns) < TRIED_NS {
            return true;
        }
        self.keep_ns = (self.keep_ns * 2).clamp(FIRST_KEEP_NS, LAST_KEEP_NS);
        self.keeps_until_ns = now_ns.saturating_add(self.keep_ns);
        self.tried_since_ns = None;
        false
    }
}

/// The mover of one GPU: moves the oversubscribed memory of this process to the GPU and to the
/// host.
#[derive(Debug, Default)]
pub struct Mover {
    room: Room,
    /// Whether the gate has let the process use the GPU again since the last move.
    is_back: bool,
    /// Bytes that must be free on the GPU before the mover stops moving memory to the host.
    owed_bytes: Option<u64>,
    /// The time of the next look, ns, if the last look found no room or no need to move. A change
    /// of the gate brings the next look earlier.
    rests_until_ns: u64,
    may_launch: bool,
}

impl Mover {
    /// Does one part of the work for the GPU `ordinal`. Returns the amount of work that is left.
    /// `is_busy`: this process has work in flight on the GPU. `is_relaxed`: the meter thread can
    /// call the driver while other threads capture; the method sets this flag once the driver
    /// agrees.
    pub fn step(
        &mut self,
        process: &'static Process,
        ordinal: usize,
        is_busy: bool,
        now_ns: u64,
        is_relaxed: &mut bool,
    ) -> Moves {
        let (held_bytes, brought_bytes) = process.memory.oversubscription.amounts(ordinal);
        let Some(gpu) = process.gpus.get(ordinal).filter(|_| held_bytes > 0) else {
            *self = Self::default();
            return Moves::None;
        };
        let may_launch = gpu.may_launch();
        if may_launch != self.may_launch {
            *self = Self { may_launch, is_back: may_launch, room: self.room, ..Self::default() };
        }
        if !may_launch && brought_bytes == 0 {
            // There is nothing to bring until a launch passes the gate, and such a launch wakes the
            // thread. There is also no memory on the GPU that the mover could move to the host.
            return Moves::None;
        }
        if capture::is_active() || now_ns < self.rests_until_ns {
            return Moves::Rest;
        }
        let moves = match may_launch {
            true => self.bring(process, ordinal, is_relaxed),
            // The work in flight still needs the memory.
            false if is_busy => Moves::More,
            false => {
                let owed_bytes = *self.owed_bytes.get_or_insert(brought_bytes.saturating_add(SPARE_BYTES));
                self.let_go(process, ordinal, owed_bytes, now_ns, is_relaxed)
            }
        };
        if moves == Moves::Rest {
            self.rests_until_ns = now_ns.saturating_add(LOOK_NS);
        }
        moves
    }

    fn bring(&mut self, process: &'static Process, ordinal: usize, is_relaxed: &mut bool) -> Moves {
        let oversubscription = &process.memory.oversubscription;
        let (_, brought_bytes) = oversubscription.amounts(ordinal);
        let mut next = oversubscription.next_to_bring(ordinal, PART_BYTES);
        if self.is_back {
            // The mover needs one piece to find a context, even if there is nothing to bring.
            next = next.or_else(|| oversubscription.next_to_let_go(ordinal, 0));
        }
        let Some(next) = next else { return Moves::Rest };
        Self::with(process, (ordinal, &next), is_relaxed, |inner| {
            let free_bytes = managed::free_bytes().unwrap_or(0);
            self.room.look(free_bytes.saturating_add(brought_bytes));
            if mem::take(&mut self.is_back) {
                for (base, piece) in oversubscription.turn_preferred(ordinal, true) {
                    managed::prefer(base, piece.bytes, ordinal, true);
                }
            }
            if next.bytes == 0 || free_bytes.saturating_sub(SPARE_BYTES) < next.bytes {
                return Moves::Rest;
            }
            Self::carry(process, inner, &next, Location::Gpu(ordinal))
        })
    }

    fn let_go(
        &mut self,
        process: &'static Process,
        ordinal: usize,
        owed_bytes: u64,
        now_ns: u64,
        is_relaxed: &mut bool,
    ) -> Moves {
        let oversubscription = &process.memory.oversubscription;
        let (_, brought_bytes) = oversubscription.amounts(ordinal);
        let Some(next) = oversubscription.next_to_let_go(ordinal, PART_BYTES) else { return Moves::Rest };
        Self::with(process, (ordinal, &next), is_relaxed, |inner| {
            for (base, piece) in oversubscription.turn_preferred(ordinal, false) {
                managed::prefer(base, piece.bytes, ordinal, false);
            }
            let Some(free_bytes) = managed::free_bytes() else { return Moves::Rest };
            self.room.look(free_bytes.saturating_add(brought_bytes));
            if free_bytes >= owed_bytes || !self.room.is_wanted(now_ns) {
                return Moves::Rest;
            }
            Self::carry(process, inner, &next, Location::Host)
        })
    }

    /// Makes a context current in which the driver can move `part`, and runs `work`. Returns the
    /// result of `work`, or [`Moves::Rest`] if there is no such context. Meanwhile no other thread
    /// destroys the context.
    fn with(
        process: &'static Process,
        (ordinal, part): (usize, &Move),
        is_relaxed: &mut bool,
        work: impl FnOnce(&mut Inner) -> Moves,
    ) -> Moves {
        let contexts = process.contexts();
        let contexts: Vec<_> = contexts.into_iter().filter(|context| !context.is_green()).collect();
        let known: Vec<(usize, usize)> =
            contexts.iter().map(|context| (context.handle().0, context.ordinal)).collect();
        let Some(carrier) = carrier(&known, part.context, ordinal) else { return Moves::Rest };
        let (context, handle) = (contexts[carrier], Context(known[carrier].0));
        // While a thread destroys the context, it can hold the lock as long as the context's work
        // takes.
        let Some(mut inner) = context.try_lock() else { return Moves::Rest };
        if !context.is_alive_as(handle) || !process.calls.set_current(handle) {
            return Moves::Rest;
        }
        if !*is_relaxed {
            *is_relaxed = process.calls.relax_this_thread();
        }
        if !*is_relaxed && capture::is_active() {
            return Moves::Rest;
        }
        work(&mut inner)
    }

    /// Makes the driver move `part`, if the previous part has arrived. The caller has made a
    /// context of the GPU current. Returns the amount of work that is left.
    fn carry(process: &Process, inner: &mut Inner, part: &Move, location: Location) -> Moves {
        let oversubscription = &process.memory.oversubscription;
        inner.moving = inner.moving.or_else(managed::stream);
        let Some(stream) = inner.moving else { return Moves::Rest };
        match process.calls.query_stream(stream) {
            Progress::Pending => return Moves::More,
            Progress::Done => {}
            Progress::Lost => return Moves::Rest,
        }
        let prefer = |is_preferred| {
            if let Location::Gpu(ordinal) = location {
                managed::prefer(part.base, part.whole_bytes, ordinal, is_preferred);
            }
        };
        if part.is_first {
            prefer(true);
        }
        if managed::prefetch(part.address, part.bytes, location, stream) {
            oversubscription.moved(part, location != Location::Host);
        } else {
            // If the driver refuses to move a part, the part's allocation gets no preferred GPU.
            prefer(false);
            oversubscription.stays(part);
        }
        Moves::More
    }
}

/// Chooses the context in which the GPU `ordinal` can move memory that was allocated in `context`.
/// Returns its index in `contexts`, which are handles with their GPUs. The choice is `context`
/// itself. If `context` is unknown, the choice is any context of the GPU.
fn carrier(contexts: &[(usize, usize)], context: usize, ordinal: usize) -> Option<usize> {
    let own = contexts.iter().position(|(handle, _)| *handle == context);
    own.or_else(|| contexts.iter().position(|(_, of)| *of == ordinal))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn memory_of_an_unknown_context_is_moved_in_another_context_of_the_gpu() {
        let contexts = [(10, 0), (20, 1), (30, 1)];
        assert_eq!(carrier(&contexts, 30, 1), Some(2));
        assert_eq!(carrier(&contexts, 40, 1), Some(1));
        assert_eq!(carrier(&contexts, 40, 2), None);
    }

    #[test]
    fn room_that_nobody_takes_is_not_made_for_a_while_and_longer_each_time() {
        let mut room = Room::default();
        let mut now_ns = 0;
        for keep_ns in [1, 2, 4, 8, 8].map(|seconds| seconds * FIRST_KEEP_NS) {
            room.look(4 * GIB);
            assert!(room.is_wanted(now_ns) && room.is_wanted(now_ns + TRIED_NS - 1));
            room.look(4 * GIB - UNDER_WAY_BYTES);
            now_ns += TRIED_NS;
            assert!(!room.is_wanted(now_ns) && !room.is_wanted(now_ns + keep_ns - 1));
            now_ns += keep_ns;
        }
    }

    #[test]
    fn room_that_somebody_takes_is_made_again_at_once() {
        let mut room = Room::default();
        room.look(4 * GIB);
        assert!(room.is_wanted(0) && !room.is_wanted(TRIED_NS));
        room.look(3 * GIB);
        assert!(room.is_wanted(TRIED_NS), "somebody has come");
        for round in 1..20 {
            room.look(if round % 2 == 0 { 3 * GIB } else { 4 * GIB });
            assert!(room.is_wanted(round * TRIED_NS / 2), "it comes and goes: {round}");
        }
    }
}
