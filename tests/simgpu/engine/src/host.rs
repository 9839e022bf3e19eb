//! What a process does with the virtual GPUs.

use crate::{Clock, Config, ContextId, Error, EventId, EventStatus, StreamId, Ticket, WaitPolicy, Work};
use std::path::PathBuf;

/// How to attach to a host.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The state directory; `None`: `SIMGPU_STATE`, else `/dev/shm/simgpu-UID`.
    pub state_dir: Option<PathBuf>,
    /// What the GPUs are like if this process is the one that creates the state; `None`: the file that `SIMGPU_CONFIG`
    /// names, else the default. A state that exists keeps the configuration it was created with.
    pub config: Option<Config>,
    /// The clock. Anything but the default is for tests.
    pub clock: Clock,
}

/// Device memory of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// What there is.
    pub total_bytes: u64,
    /// What all processes together have taken, context overhead included.
    pub used_bytes: u64,
}

/// This process's access to the virtual GPUs. Attach once and share it; every method may be called by any thread.
#[derive(Debug)]
pub struct Host {
    config: Config,
}

#[expect(
    unused_variables,
    clippy::unused_self,
    reason = "the signatures land first, the bodies within the hour"
)]
impl Host {
    /// Attaches by the environment.
    pub fn attach() -> Result<Self, Error> {
        Self::attach_with(Options::default())
    }

    /// Attaches; creates the state if there is none.
    pub fn attach_with(options: Options) -> Result<Self, Error> {
        unimplemented!()
    }

    /// True in a forked child of the process that attached: nothing but `drop` may be done with this value there.
    pub fn is_forked(&self) -> bool {
        unimplemented!()
    }

    /// What the GPUs are like.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// How many GPUs there are.
    pub fn gpu_count(&self) -> usize {
        unimplemented!()
    }

    /// The UUID of a GPU. It follows from the state directory's path, so two states never share one.
    ///
    /// # Panics
    /// If there is no such GPU.
    pub fn uuid(&self, gpu: usize) -> [u8; 16] {
        unimplemented!()
    }

    /// The present time of the host's clock, in which all times here are given.
    pub fn now_ns(&self) -> u64 {
        unimplemented!()
    }

    /// Creates a context and charges its overhead ([`Config::context_overhead_bytes`]) to the GPU's memory.
    pub fn create_context(&self, gpu: usize) -> Result<ContextId, Error> {
        unimplemented!()
    }

    /// Drops a context with its streams, the work in them and its memory. Work that was running stops.
    pub fn destroy_context(&self, context: ContextId) {
        unimplemented!()
    }

    /// Creates a stream.
    pub fn create_stream(&self, context: ContextId) -> Result<StreamId, Error> {
        unimplemented!()
    }

    /// Destroys a stream. The work in it still runs; its tickets stay valid until it has.
    pub fn destroy_stream(&self, stream: StreamId) {
        unimplemented!()
    }

    /// Puts work into a stream, to start after everything before it in the stream, after all of `after` and not sooner than the
    /// launch latency from now. Blocks while the stream's queue is full ([`Config::queue_depth`]).
    ///
    /// Each ticket of `after` that is neither of this stream nor complete takes one more place in the queue. They may be of any
    /// stream of the host, other contexts, GPUs and processes included.
    pub fn submit(&self, stream: StreamId, work: Work, after: &[Ticket]) -> Result<Ticket, Error> {
        unimplemented!()
    }

    /// Puts several items into a stream in one go, all with one launch latency (a graph launch); answers the last one's ticket.
    /// May hold more items than the queue is deep; then it blocks like the single submissions would.
    pub fn submit_all(&self, stream: StreamId, work: &[Work], after: &[Ticket]) -> Result<Ticket, Error> {
        unimplemented!()
    }

    /// Makes everything submitted to `stream` from now on wait for the tickets (cuStreamWaitEvent, the legacy default stream).
    pub fn wait_in_stream(&self, stream: StreamId, after: &[Ticket]) -> Result<(), Error> {
        unimplemented!()
    }

    /// Lets a stream go on past a [`Work::HostWait`]. May be called before the stream has come to it, and more than once.
    pub fn release(&self, ticket: Ticket) {
        unimplemented!()
    }

    /// The ticket of the item submitted last to the stream (sequence 0 if there was none).
    pub fn last_ticket(&self, stream: StreamId) -> Ticket {
        unimplemented!()
    }

    /// When the item completed; `None` if it has not yet. The time is the analytic one. It is kept for the last
    /// [`Config::queue_depth`] items of the stream; for older items, and for streams and contexts that are gone, the
    /// answer is 0 (complete, time forgotten). Keep times in events.
    pub fn query(&self, ticket: Ticket) -> Option<u64> {
        unimplemented!()
    }

    /// Waits until the item has completed and answers as [`Host::query`].
    pub fn wait(&self, ticket: Ticket, policy: WaitPolicy) -> u64 {
        unimplemented!()
    }

    /// True when nothing is left to do in any stream of the context.
    pub fn context_is_idle(&self, context: ContextId) -> bool {
        unimplemented!()
    }

    /// Waits until everything that was submitted to the context's streams before the call has completed.
    pub fn wait_context(&self, context: ContextId, policy: WaitPolicy) {
        unimplemented!()
    }

    /// Creates an event. It lives until it is destroyed or its process dies, whatever happens to contexts.
    pub fn create_event(&self) -> Result<EventId, Error> {
        unimplemented!()
    }

    /// Destroys an event; a record of it that is still under way completes without a trace.
    pub fn destroy_event(&self, event: EventId) {
        unimplemented!()
    }

    /// Submits a marker that, when it completes, writes its time into the event. From now until then the event is pending.
    pub fn record(&self, stream: StreamId, event: EventId) -> Result<Ticket, Error> {
        unimplemented!()
    }

    /// What the event says now.
    pub fn event_status(&self, event: EventId) -> EventStatus {
        unimplemented!()
    }

    /// The ticket of the event's last record: what a stream that waits for the event has to wait for. `None` if it was
    /// never recorded or is gone.
    pub fn event_ticket(&self, event: EventId) -> Option<Ticket> {
        unimplemented!()
    }

    /// Waits until the event's last record (as of now) has completed.
    pub fn wait_event(&self, event: EventId, policy: WaitPolicy) -> EventStatus {
        unimplemented!()
    }

    /// Takes device memory for a context. The bytes are taken as given: round to
    /// [`Config::ALLOCATION_GRANULARITY_BYTES`] or [`Config::SUBALLOCATION_GRANULARITY_BYTES`] first.
    pub fn reserve_memory(&self, context: ContextId, bytes: u64) -> Result<(), Error> {
        unimplemented!()
    }

    /// Gives device memory back. More than the context holds is not given back.
    pub fn release_memory(&self, context: ContextId, bytes: u64) {
        unimplemented!()
    }

    /// Total and used memory of a GPU, over all processes.
    ///
    /// # Panics
    /// If there is no such GPU.
    pub fn memory(&self, gpu: usize) -> MemoryInfo {
        unimplemented!()
    }
}
