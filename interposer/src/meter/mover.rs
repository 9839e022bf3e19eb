//! Brings memory that is beyond the limit to the GPU when the process may use it, and lets it go when others may. The meter thread's.
//!
//! While the gate is open or a lease is there, such memory is brought by parts, as much of it as there is room for; what does not fit the driver brings by
//! itself when a kernel touches it. Once the gate has closed and nothing is in flight, the driver is told that it belongs on the GPU no longer, so it is what makes room first;
//! and if the GPU has less free than this process used for it, it goes to the host, until whoever comes has as much room. Where there is room for all nothing moves.
//! One part is under way at a time on a GPU, so that the thread is not kept from metering for long, and none while anything is captured.

use crate::capture;
use crate::driver::calls::Progress;
use crate::driver::managed::{self, Location};
use crate::memory::beyond::Move;
use crate::meter::context::Inner;
use crate::process::Process;

/// What is moved at a time: a millisecond or two on a bus of 16 to 32 GB/s.
const PART_BYTES: u64 = 32 << 20;
/// What is left free on the GPU: contexts and code come and go.
const SPARE_BYTES: u64 = 32 << 20;
/// How often it is looked whether the gate has changed while there is memory beyond the limit and nothing else wakes the thread.
pub const LOOK_NS: u64 = 5_000_000;

/// What there was to do on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moves {
    /// Nothing is beyond the limit there.
    None,
    /// Nothing for now.
    Rest,
    /// There is more to move.
    More,
}

/// See the module: one GPU.
#[derive(Debug, Default)]
pub struct Mover {
    /// What has to be free before no more is let go, once the gate has closed.
    owed_bytes: Option<u64>,
    /// There was no room, or no need, when it was last looked: it is looked again then, or once the gate has changed.
    rests_until_ns: u64,
    may_launch: bool,
}

impl Mover {
    /// Does a part of what is to be done on the GPU `ordinal`, on which something is in flight if it `is_busy`. `is_relaxed`: the thread may call the driver while
    /// others capture.
    pub fn step(
        &mut self,
        process: &'static Process,
        ordinal: usize,
        is_busy: bool,
        now_ns: u64,
        is_relaxed: &mut bool,
    ) -> Moves {
        let (held_bytes, brought_bytes) = process.memory.beyond.amounts(ordinal);
        let Some(gpu) = process.gpus.get(ordinal).filter(|_| held_bytes > 0) else {
            *self = Self::default();
            return Moves::None;
        };
        let may_launch = gpu.may_launch();
        if may_launch != self.may_launch {
            *self = Self { may_launch, ..Self::default() };
        }
        if !may_launch && brought_bytes == 0 {
            // Until a launch passes the gate, which wakes the thread, there is nothing to bring, and nothing is there to be let go.
            return Moves::None;
        }
        if capture::is_active() || now_ns < self.rests_until_ns {
            return Moves::Rest;
        }
        let moves = match may_launch {
            true => Self::bring(process, ordinal, is_relaxed),
            // What it runs yet needs it.
            false if is_busy => Moves::More,
            false => {
                let owed_bytes = *self.owed_bytes.get_or_insert(brought_bytes.saturating_add(SPARE_BYTES));
                Self::let_go(process, ordinal, owed_bytes, is_relaxed)
            }
        };
        if moves == Moves::Rest {
            self.rests_until_ns = now_ns.saturating_add(LOOK_NS);
        }
        moves
    }

    fn bring(process: &'static Process, ordinal: usize, is_relaxed: &mut bool) -> Moves {
        let Some(next) = process.memory.beyond.next_to_bring(ordinal, PART_BYTES) else { return Moves::Rest };
        Self::with(process, &next, is_relaxed, |inner| {
            let free_bytes = managed::free_bytes().unwrap_or(0).saturating_sub(SPARE_BYTES);
            if free_bytes < next.bytes {
                return Moves::Rest;
            }
            if next.is_first {
                managed::prefer(next.base, next.whole_bytes, ordinal, true);
            }
            Self::carry(process, inner, &next, Location::Gpu(ordinal))
        })
    }

    fn let_go(process: &'static Process, ordinal: usize, owed_bytes: u64, is_relaxed: &mut bool) -> Moves {
        let beyond = &process.memory.beyond;
        let Some(next) = beyond.next_to_let_go(ordinal, PART_BYTES) else { return Moves::Rest };
        Self::with(process, &next, is_relaxed, |inner| {
            for (base, piece) in beyond.take_preferred(ordinal) {
                managed::prefer(base, piece.bytes, ordinal, false);
            }
            if managed::free_bytes().is_none_or(|free_bytes| free_bytes >= owed_bytes) {
                return Moves::Rest;
            }
            Self::carry(process, inner, &next, Location::Host)
        })
    }

    /// Runs `work` with the context of `part` current, which nobody destroys meanwhile.
    fn with(
        process: &'static Process,
        part: &Move,
        is_relaxed: &mut bool,
        work: impl FnOnce(&mut Inner) -> Moves,
    ) -> Moves {
        let contexts = process.contexts();
        let Some(context) = contexts.iter().find(|context| context.handle().0 == part.context) else {
            return Moves::Rest;
        };
        let mut inner = context.lock();
        if context.is_dead() || context.handle().0 != part.context {
            return Moves::Rest;
        }
        if !process.calls.set_current(context.handle()) {
            return Moves::Rest;
        }
        if !*is_relaxed {
            *is_relaxed = process.calls.relax_this_thread();
        }
        work(&mut inner)
    }

    /// Has the driver move `part`, if what it moved before is there. The caller has the context current.
    fn carry(process: &Process, inner: &mut Inner, part: &Move, location: Location) -> Moves {
        let beyond = &process.memory.beyond;
        inner.moving = inner.moving.or_else(managed::stream);
        let Some(stream) = inner.moving else { return Moves::Rest };
        match process.calls.query_stream(stream) {
            Progress::Pending => return Moves::More,
            Progress::Done => {}
            Progress::Lost => return Moves::Rest,
        }
        if managed::prefetch(part.address, part.bytes, location, stream) {
            beyond.moved(part, location != Location::Host);
        } else {
            beyond.stays(part);
        }
        Moves::More
    }
}
