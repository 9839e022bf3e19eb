//! The operations of a process on the virtual GPUs.

use crate::{
    Clock, ComputeMode, Config, ContextId, Error, EventId, EventStatus, MAX_GPUS, OutOfMemory, StreamId,
    Ticket, WaitPolicy, Work,
    config::{ALL_SMS_PPM, CopyKind},
    guard::{Census, Guard},
    jitter::jittered_ns,
    journal::{Memory, Overlay},
    layout::{
        Context, Event, FreeList, MAX_CONTEXTS, MAX_EVENTS, MAX_PROCESSES, MAX_STREAMS, NEVER, Process, RING,
        Stream, TICKS_PER_NS, Word, item_kind, pack, pack_meeting, unpack,
    },
    liveness::{self, ByteLock},
    shared::{self, Shared},
    sim::{self, NewItem, Prediction},
    wait,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Options for attaching to a host.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The state directory; `None`: `SIMGPU_STATE`, else `/dev/shm/simgpu-UID`.
    pub state_dir: Option<PathBuf>,
    /// The configuration for a new state, in the form of the configuration file. `None`: the file
    /// that `SIMGPU_CONFIG` names, else the default. An existing state keeps the configuration of
    /// its creation.
    pub config_toml: Option<String>,
    /// The clock. Only tests use another clock than the default.
    pub clock: Clock,
}

/// Device memory of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// All memory of the GPU.
    pub total_bytes: u64,
    /// Memory that all processes together have taken. Includes the contexts' overhead and the
    /// managed memory now on the GPU.
    pub used_bytes: u64,
}

/// Shortest sleep of a thread that found a queue full, for each place of the queue. By default even
/// an empty kernel takes five times as long (`launch_overhead_ns`). So the queue does not run empty
/// during the sleep.
const FULL_QUEUE_NAP_NS_PER_PLACE: u64 = 200;
/// Number of events that a wait looks ahead at once. A look of this length takes some tens of
/// microseconds.
const LOOK_AHEAD_EVENTS: usize = 256;

/// This process's access to the virtual GPUs. A process attaches once and shares the value among
/// its threads, because any thread may call every method.
#[derive(Debug)]
pub struct Host {
    process: ByteLock,
    shared: Shared,
    clock: Clock,
    directory: PathBuf,
    /// Value of [`liveness::forks`] when the process attached. A forked child has a higher value.
    forks: u32,
    /// Number of kernels that this process has launched. The process counts them only if the
    /// configuration varies kernel times.
    launched: AtomicU64,
}

impl Host {
    /// Attaches this process to the host that the environment names. Returns its access.
    pub fn attach() -> Result<Self, Error> {
        Self::attach_with(Options::default())
    }

    /// Attaches this process to the host that `options` name, and creates the host's state if none
    /// exists.
    pub fn attach_with(options: Options) -> Result<Self, Error> {
        let shared = shared::open_or_create(&options)?;
        let clock = options.clock;
        let dir = options.state_dir.unwrap_or_else(shared::default_dir);
        let process = {
            // With many processes a census takes long. The new process needs a census only if it
            // has to reuse the number of a dead process.
            let fresh = (shared.state.header.attached.load() as usize) < MAX_PROCESSES;
            let census = if fresh { Census::WhenDue } else { Census::Now };
            let mut guard = Guard::lock(&shared, &clock, None, census);
            let state = guard.state();
            let number = liveness::free_number(&*guard, state)?;
            // The lock gets an open file description of its own. A query through `shared.alive`
            // must report this process's lock too, and a description does not report its own locks.
            let process = ByteLock::take(shared::open_alive(&dir)?, number)?;
            liveness::enter(&mut *guard, state, &shared.config, number);
            process
        };
        // The process can change its working directory later, so the path must be absolute.
        let directory = std::path::absolute(&dir).unwrap_or(dir);
        Ok(Self { process, shared, clock, directory, forks: liveness::forks(), launched: AtomicU64::new(0) })
    }

    /// Returns whether this process is a forked child of the process that attached. A forked child
    /// cannot use the host: calls that can fail return an error. All other calls do nothing and
    /// report work as complete.
    #[inline]
    pub fn is_forked(&self) -> bool {
        self.forks != liveness::forks()
    }

    /// Returns the configuration of the GPUs.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Returns the state directory. All processes that share these GPUs see the directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the number of GPUs.
    pub fn gpu_count(&self) -> usize {
        self.shared.config.gpus
    }

    /// Returns the UUID of a GPU. The UUID follows from the state directory's path, so two states
    /// never share one.
    ///
    /// # Panics
    /// If there is no such GPU.
    pub fn uuid(&self, gpu: usize) -> [u8; 16] {
        assert!(gpu < self.gpu_count(), "no GPU {gpu}");
        shared::uuid(&self.shared.state, gpu)
    }

    /// Returns the present time of the host's clock, ns. All times of this type are times of this
    /// clock.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    #[inline]
    fn enter(&self) -> Result<Guard<'_>, Error> {
        self.enter_with(Census::WhenDue)
    }

    #[inline]
    fn enter_with(&self, census: Census) -> Result<Guard<'_>, Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        Ok(Guard::lock(&self.shared, &self.clock, Some(self.process.number), census))
    }

    /// Returns the record of this process.
    #[inline]
    pub(crate) fn own_record(&self) -> &Process {
        &self.shared.state.processes[self.process.number]
    }

    /// Returns the number of this process.
    pub(crate) fn number(&self) -> usize {
        self.process.number
    }

    /// Locks the state and returns it. Returns `None` in a forked child.
    pub(crate) fn lock_state(&self) -> Option<Guard<'_>> {
        self.enter().ok()
    }

    /// Creates a context and returns its id. Charges the context's overhead
    /// (`context_overhead_bytes`) to the GPU's memory.
    pub fn create_context(&self, gpu: usize) -> Result<ContextId, Error> {
        self.create_context_of(gpu, self.shared.config.context_overhead_bytes)
    }

    /// Creates a context that takes `overhead_bytes` of the GPU's memory.
    pub(crate) fn create_context_of(&self, gpu: usize, overhead_bytes: u64) -> Result<ContextId, Error> {
        let count = self.gpu_count();
        if gpu >= count {
            return Err(Error::NoSuchGpu { gpu, count });
        }
        let mode = self.shared.config.compute_mode;
        // A driver frees the GPU before a process that used it has ended.
        let census = if mode == ComputeMode::Default { Census::WhenDue } else { Census::Now };
        let mut guard = self.enter_with(census)?;
        let state = guard.state();
        self.check_server()?;
        match mode {
            ComputeMode::Default => {}
            ComputeMode::ExclusiveProcess if !self.is_in_others_use(&guard, gpu) => {}
            ComputeMode::ExclusiveProcess => return Err(Error::Exclusive { gpu }),
            ComputeMode::Prohibited => return Err(Error::Prohibited { gpu }),
        }
        let own = self.own_record();
        let server = (own.server.load() as usize).checked_sub(1).map(|server| &state.processes[server]);
        let seat = server.map_or(0, |server| server.gpus[gpu].seat.load());
        let index = new_slot(&mut guard, &state.header.contexts, "context", MAX_CONTEXTS, |index| {
            &state.contexts[index].next_free
        })?;
        let context = &state.contexts[index];
        let generation = next_generation(&mut guard, &context.generation);
        guard.put(&context.process, self.process.number as u64 + 1);
        guard.put(&context.gpu, gpu as u64);
        guard.put(&context.seat, seat);
        guard.put(&context.first_stream, 0);
        guard.put(&context.last_stream, 0);
        guard.put(&context.memory_bytes, 0);
        guard.add(&own.gpus[gpu].contexts, 1);
        self.take_memory(&mut guard, index, gpu, overhead_bytes)?;
        guard.commit();
        Ok(ContextId { index: index as u32, generation })
    }

    /// Returns whether another process has a context on a GPU. An MPS server and its clients count
    /// as one process.
    fn is_in_others_use(&self, guard: &Guard<'_>, gpu: usize) -> bool {
        let state = guard.state();
        // Both numbers are greater by one than the process's number.
        let user = |process: u64| match state.processes[process as usize - 1].server.load() {
            0 => process,
            server => server,
        };
        let own = user(self.process.number as u64 + 1);
        let used = state.header.contexts.used.load() as usize;
        let here = state.contexts[..used].iter().filter(|context| context.gpu.load() == gpu as u64);
        let owners = here.map(|context| context.process.load()).filter(|owner| *owner != 0);
        owners.map(user).any(|other| other != own)
    }

    fn take_memory(
        &self,
        guard: &mut Guard<'_>,
        context: usize,
        gpu: usize,
        bytes: u64,
    ) -> Result<(), OutOfMemory> {
        let (state, config) = (guard.state(), &self.shared.config);
        sim::take_memory(&mut **guard, state, config, context, bytes).map_err(|free_bytes| {
            guard.abort();
            OutOfMemory { gpu, requested_bytes: bytes, free_bytes, total_bytes: config.memory_bytes }
        })
    }

    /// Destroys a context with its streams, their work and its memory. Running work stops.
    pub fn destroy_context(&self, context: ContextId) {
        let Ok(mut guard) = self.enter() else { return };
        let (state, now_ns) = (guard.state(), guard.now_ns());
        if live_context(&guard, context).is_some() {
            sim::drop_context(&mut *guard, state, context.index as usize, now_ns);
            self.announce(guard);
        }
    }

    /// Commits the transaction, unlocks the state, and wakes threads that wait for unpredictable
    /// changes.
    fn announce(&self, mut guard: Guard<'_>) {
        let header = &guard.state().header;
        guard.add(&header.unforeseen, 1);
        guard.commit();
        drop(guard);
        wait::wake_all(&header.unforeseen, &header.unforeseen_waiters);
    }

    /// Creates a stream of the lowest urgency. Returns its id.
    pub fn create_stream(&self, context: ContextId) -> Result<StreamId, Error> {
        self.create_urgent_stream(context, 0)
    }

    /// Creates a stream of this urgency, and returns its id. The stream's kernels get SMs before
    /// those of the context's less urgent streams.
    pub fn create_urgent_stream(&self, context: ContextId, urgency: u32) -> Result<StreamId, Error> {
        let mut guard = self.enter()?;
        let state = guard.state();
        live_context(&guard, context).ok_or(Error::Gone("context"))?;
        let index = new_slot(&mut guard, &state.header.streams, "stream", MAX_STREAMS, |index| {
            &state.streams[index].next_free
        })?;
        let stream = &state.streams[index];
        let generation = next_generation(&mut guard, &stream.generation);
        guard.put(&stream.context, u64::from(context.index) + 1);
        let counts = [&stream.submitted, &stream.completed, &stream.head_sequence];
        let meetings = [&stream.arrived_sequence, &stream.met_sequence];
        for word in counts.into_iter().chain(meetings).chain([&stream.closing]) {
            guard.put(word, 0);
        }
        guard.put(&stream.urgency, urgency.into());
        guard.commit();
        Ok(StreamId { index: index as u32, generation })
    }

    /// Destroys a stream. The stream's work still runs, and its tickets stay valid until the work
    /// is complete.
    pub fn destroy_stream(&self, stream: StreamId) {
        let Ok(mut guard) = self.enter() else { return };
        let state = guard.state();
        if open_stream(&guard, stream).is_ok() {
            sim::close_stream(&mut *guard, state, stream.index as usize);
        }
    }

    /// Puts work into a stream, and returns the work's ticket. The work starts after all earlier
    /// work of the stream, after all of `after`, and after the launch latency. The call blocks
    /// while the stream's queue is full (`queue_depth`).
    ///
    /// The tickets of `after` can belong to any stream of the host, also of other contexts, GPUs
    /// and processes. A ticket of another stream that is not complete takes one more place in the
    /// queue.
    pub fn submit(&self, stream: StreamId, work: Work, after: &[Ticket]) -> Result<Ticket, Error> {
        self.submit_all(stream, std::slice::from_ref(&work), after)
    }

    /// Puts several items into a stream with one common launch latency (a graph launch). Returns
    /// the last item's ticket. The call blocks while the stream's queue is full.
    pub fn submit_all(&self, stream: StreamId, work: &[Work], after: &[Ticket]) -> Result<Ticket, Error> {
        let is_waited_for = work.iter().any(|one| matches!(one, Work::Collective { .. }));
        let (mut work, mut after) = (work, after);
        let mut eligible_ns = None;
        loop {
            let mut room = self.room(stream)?;
            let (state, index) = (room.guard.state(), stream.index as usize);
            let eligible_ns =
                *eligible_ns.get_or_insert(room.guard.now_ns() + self.shared.config.launch_latency_ns);
            while room.places > 0 {
                let new = if let Some((first, rest)) = after.split_first() {
                    after = rest;
                    let target = target(*first);
                    if first.stream == stream || sim::is_complete(&*room.guard, state, target) {
                        continue;
                    }
                    sim::wait_item(&*room.guard, state, room.context, target)
                } else if let Some((first, rest)) = work.split_first() {
                    work = rest;
                    self.new_item(*first)
                } else {
                    break;
                };
                sim::append(&mut *room.guard, state, index, new, eligible_ns);
                room.guard.commit();
                room.places -= 1;
            }
            if after.is_empty() && work.is_empty() {
                let sequence = state.streams[index].submitted.load();
                if is_waited_for {
                    self.announce(room.guard);
                }
                return Ok(Ticket { stream, sequence });
            }
        }
    }

    fn new_item(&self, work: Work) -> NewItem {
        let config = &self.shared.config;
        let kernel = |duration_ns: u64, sm_ppm: u32, kernels: u32| {
            let duration_ns = match config.kernel_jitter_ppm {
                0 => duration_ns,
                _ => {
                    let number = self.launched.fetch_add(kernels.into(), Ordering::Relaxed);
                    jittered_ns(config, duration_ns, kernels, number)
                }
            };
            let overhead_ns = config.launch_overhead_ns.saturating_mul(kernels.into());
            let sm_ppm = sm_ppm.clamp(1, ALL_SMS_PPM);
            (item_kind::KERNEL, duration_ns.saturating_add(overhead_ns), sm_ppm.into(), kernels.into())
        };
        let mut meeting = 0;
        let (kind, ns, a, b) = match work {
            Work::Kernel { duration_ns, sm_ppm, kernels } => kernel(duration_ns, sm_ppm, kernels),
            Work::Collective { duration_ns, sm_ppm, name, peers } => {
                meeting = pack_meeting(name, peers);
                // A kernel without any work would be complete before it began.
                kernel(duration_ns.max(1), sm_ppm, 1)
            }
            // The SMs move the bytes, as a kernel that uses all of them.
            Work::Copy { kind: kind @ CopyKind::DeviceToDevice, bytes } => {
                (item_kind::KERNEL, config.copy_ns(kind, bytes), ALL_SMS_PPM.into(), 1)
            }
            Work::Copy { kind, bytes } => (item_kind::COPY, config.copy_ns(kind, bytes), kind as u64, 0),
            Work::HostWait => (item_kind::HOST_WAIT, 0, 0, 0),
            Work::Marker => (item_kind::MARKER, 0, 0, 0),
        };
        NewItem { kind, ticks: ns.saturating_mul(TICKS_PER_NS), a, b, meeting }
    }

    /// Waits until the stream has a free place. Returns the locked state.
    fn room(&self, stream: StreamId) -> Result<Room<'_>, Error> {
        loop {
            let guard = self.enter()?;
            let found = open_stream(&guard, stream)?;
            let completed = found.completed.load();
            let queued = found.submitted.load() - completed;
            let places = u64::from(self.shared.config.queue_depth).saturating_sub(queued);
            if places > 0 {
                let context = found.context.load() as usize - 1;
                return Ok(Room { guard, places, context });
            }
            drop(guard);
            // A wake-up for every single place would keep a CPU busy, and there are fewer CPUs than
            // launching threads.
            let nap_ns = u64::from(self.shared.config.queue_depth) * FULL_QUEUE_NAP_NS_PER_PLACE;
            self.sleep_for(Ticket { stream, sequence: completed + 1 }, WaitPolicy::Block, nap_ns);
        }
    }

    /// Makes all later work of `stream` wait for the tickets (cuStreamWaitEvent, the legacy default
    /// stream).
    pub fn wait_in_stream(&self, stream: StreamId, after: &[Ticket]) -> Result<(), Error> {
        self.submit_all(stream, &[], after).map(|_| ())
    }

    /// Lets a stream go on past a [`Work::HostWait`]. The caller may call this before the stream
    /// reaches the item, and more than once.
    pub fn release(&self, ticket: Ticket) {
        let Ok(mut guard) = self.enter() else { return };
        let (state, index) = (guard.state(), ticket.stream.index as usize);
        let Some(stream) = state.live_stream(ticket.stream.index, ticket.stream.generation) else { return };
        let completed = stream.completed.load();
        if ticket.sequence <= completed || ticket.sequence > stream.submitted.load() {
            return;
        }
        let item = state.item(index, ticket.sequence);
        if item.kind.load() & item_kind::MASK != item_kind::HOST_WAIT || item.released_ns.load() != 0 {
            return;
        }
        // 0 means "not released".
        let now_ns = guard.now_ns().max(1);
        guard.put(&item.released_ns, now_ns);
        if ticket.sequence == completed + 1 {
            sim::wake_gpu_of(&mut *guard, state, index);
        }
        guard.commit();
        self.announce(guard);
    }

    /// Returns the ticket of the stream's last submitted item. The ticket has sequence 0 if there
    /// was no item.
    #[inline]
    pub fn last_ticket(&self, stream: StreamId) -> Ticket {
        let found = self.shared.state.live_stream(stream.index, stream.generation);
        Ticket { stream, sequence: found.map_or(0, |found| found.submitted.load()) }
    }

    /// Returns the item's exact completion time, or `None` while the item is incomplete. The engine
    /// keeps the time of the stream's last 1024 items. For older items, and for streams and
    /// contexts that are gone, the result is 0 (complete, time forgotten). Events keep their times
    /// longer.
    #[inline]
    pub fn query(&self, ticket: Ticket) -> Option<u64> {
        self.look(|| self.peek(ticket)).unwrap_or(Some(0))
    }

    /// Returns the result of `peek`. If `peek` returns `None`, and an event or a census is due,
    /// computes the state up to the present and calls `peek` again.
    #[inline]
    fn look<T>(&self, peek: impl Fn() -> Option<T>) -> Result<Option<T>, Error> {
        if let Some(seen) = peek() {
            return Ok(Some(seen));
        }
        let header = &self.shared.state.header;
        let due_ns = header.next_event_ns.load().min(header.liveness_ns.load() + liveness::INTERVAL_NS);
        if due_ns <= self.clock.now_ns() || self.is_forked() {
            drop(self.enter()?);
            return Ok(peek());
        }
        Ok(None)
    }

    /// Returns the result of [`Host::query`] without computing the state up to the present.
    fn peek(&self, ticket: Ticket) -> Option<u64> {
        const FORGOTTEN: Option<u64> = Some(0);
        let (state, Ticket { stream, sequence }) = (&self.shared.state, ticket);
        let Some(found) = state.live_stream(stream.index, stream.generation) else { return FORGOTTEN };
        if sequence == 0 {
            return FORGOTTEN;
        }
        if found.completed.load() < sequence {
            // Another stream may have got the slot between the two looks.
            return if state.live_stream(stream.index, stream.generation).is_some() {
                None
            } else {
                FORGOTTEN
            };
        }
        let at_ns = state.item(stream.index as usize, sequence).completed_ns.load();
        // The item RING places later uses the same place of the ring, once it is submitted.
        let kept = found.submitted.load() < sequence + RING as u64;
        if kept && state.live_stream(stream.index, stream.generation).is_some() {
            Some(at_ns)
        } else {
            FORGOTTEN
        }
    }

    /// Waits until the item has completed. Returns the value of [`Host::query`].
    pub fn wait(&self, ticket: Ticket, policy: WaitPolicy) -> u64 {
        loop {
            if let Some(at_ns) = self.query(ticket) {
                return at_ns;
            }
            self.sleep_for(ticket, policy, 0);
        }
    }

    /// Sleeps until the predicted completion of the item, and for at least `at_least_ns`. Can
    /// return early.
    fn sleep_for(&self, ticket: Ticket, policy: WaitPolicy, at_least_ns: u64) {
        let Ok(guard) = self.enter() else { return };
        let (state, now_ns) = (guard.state(), guard.now_ns());
        let unforeseen = state.header.unforeseen.load();
        let mut blocked_ns = wait::MAX_NAP_NS;
        let prediction = {
            let mut ahead = Overlay::new(state);
            if !self.clock.is_virtual() && sim::spins_for_peers(&ahead, state, ticket.stream.index as usize) {
                // A peer can submit its kernel at any moment, and each such submission wakes this
                // thread. A submitted peer begins at an event.
                blocked_ns = state.header.next_event_ns.load().saturating_sub(now_ns);
                Prediction::Blocked
            } else {
                sim::predict(&mut ahead, state, &self.shared.config, target(ticket), LOOK_AHEAD_EVENTS)
            }
        };
        drop(guard);
        match prediction {
            Prediction::At(at_ns) | Prediction::After(at_ns) => {
                let until_ns = if self.clock.is_virtual() { at_ns } else { at_ns.max(now_ns + at_least_ns) };
                wait::until(&self.clock, until_ns, policy);
            }
            Prediction::Blocked => {
                let header = &state.header;
                wait::for_change(&header.unforeseen, &header.unforeseen_waiters, unforeseen, blocked_ns);
            }
        }
    }

    /// Returns the earliest time at which any GPU changes by itself: an item completes or a slice
    /// ends. `None`: nothing changes before a submission or release. A helper thread sleeps until
    /// the time, but for at most 10 ms because a process can die.
    pub fn next_event_ns(&self) -> Option<u64> {
        let guard = self.enter().ok()?;
        Some(guard.state().header.next_event_ns.load()).filter(|&event_ns| event_ns != NEVER)
    }

    /// Returns whether all streams of the context are empty.
    pub fn context_is_idle(&self, context: ContextId) -> bool {
        let Ok(guard) = self.enter() else { return true };
        live_context(&guard, context).is_none_or(|context| context.first_stream.load() == 0)
    }

    /// Waits for all work that was submitted to the context's streams before the call.
    pub fn wait_context(&self, context: ContextId, policy: WaitPolicy) {
        let tickets = {
            let Ok(guard) = self.enter() else { return };
            if live_context(&guard, context).is_none() {
                return;
            }
            let state = guard.state();
            let tickets = sim::unfinished_streams(&*guard, state, context.index as usize).map(|index| {
                let stream = &state.streams[index];
                let id = StreamId { index: index as u32, generation: stream.generation.load() as u32 };
                Ticket { stream: id, sequence: stream.submitted.load() }
            });
            tickets.collect::<Vec<_>>()
        };
        for ticket in tickets {
            self.wait(ticket, policy);
        }
    }

    /// Creates an event. The event lives until the client destroys the event or the process dies.
    /// The end of a context does not end the event.
    pub fn create_event(&self) -> Result<EventId, Error> {
        let mut guard = self.enter()?;
        let state = guard.state();
        let index = new_slot(&mut guard, &state.header.events, "event", MAX_EVENTS, |index| {
            &state.events[index].next_free
        })?;
        let event = &state.events[index];
        for word in [&event.recorded, &event.completed, &event.at_ns, &event.stream, &event.sequence] {
            guard.put(word, 0);
        }
        guard.put(&event.process, self.process.number as u64 + 1);
        let generation = next_generation(&mut guard, &event.generation);
        guard.commit();
        Ok(EventId { index: index as u32, generation })
    }

    /// Destroys an event. If a record of the event is pending, the record later completes without
    /// effect.
    pub fn destroy_event(&self, event: EventId) {
        let Ok(mut guard) = self.enter() else { return };
        let state = guard.state();
        if live_event(&guard, event).is_some() {
            liveness::free_event(&mut *guard, state, event.index as usize);
            guard.commit();
        }
    }

    /// Submits a marker that writes its completion time into the event. Returns the marker's
    /// ticket. Until the marker completes, the event is pending.
    pub fn record(&self, stream: StreamId, event: EventId) -> Result<Ticket, Error> {
        let mut room = self.room(stream)?;
        let guard = &mut room.guard;
        let state = guard.state();
        let found = live_event(guard, event).ok_or(Error::Gone("event"))?;
        let number = found.recorded.load() + 1;
        let eligible_ns = guard.now_ns() + self.shared.config.launch_latency_ns;
        let marker = NewItem {
            kind: item_kind::MARKER,
            ticks: 0,
            a: pack(event.index + 1, event.generation),
            b: number,
            meeting: 0,
        };
        let sequence = sim::append(&mut **guard, state, stream.index as usize, marker, eligible_ns);
        guard.put(&found.recorded, number);
        guard.put(&found.stream, pack(stream.index, stream.generation));
        guard.put(&found.sequence, sequence);
        guard.commit();
        Ok(Ticket { stream, sequence })
    }

    /// Returns the event's status.
    #[inline]
    pub fn event_status(&self, event: EventId) -> EventStatus {
        match self.look(|| self.peek_event(event)) {
            Ok(Some(status)) => status,
            Ok(None) => EventStatus::Pending,
            Err(_) => EventStatus::Gone,
        }
    }

    /// Returns the event's status without computing the state up to the present. Returns `None`
    /// while the event is pending.
    fn peek_event(&self, event: EventId) -> Option<EventStatus> {
        let state = &self.shared.state;
        let live = || state.live_event(event.index, event.generation);
        let Some(found) = live() else { return Some(EventStatus::Gone) };
        // The order of these loads matters. A writer stores the time before `completed`, and counts
        // a record in `recorded` before the record can complete. So if `recorded` equals the
        // `completed` loaded first, no later record has written its time.
        let completed = found.completed.load();
        let at_ns = found.at_ns.load();
        let recorded = found.recorded.load();
        let status = match (recorded, completed) {
            (0, _) => EventStatus::NeverRecorded,
            _ if recorded == completed => EventStatus::Done { at_ns },
            _ => return if live().is_some() { None } else { Some(EventStatus::Gone) },
        };
        Some(if live().is_some() { status } else { EventStatus::Gone })
    }

    /// Returns the ticket of the event's last record, for a stream that waits for the event. `None`
    /// if the event was never recorded or is gone.
    pub fn event_ticket(&self, event: EventId) -> Option<Ticket> {
        let guard = self.enter().ok()?;
        let found = live_event(&guard, event)?;
        let (index, generation) = unpack(found.stream.load());
        let ticket = Ticket { stream: StreamId { index, generation }, sequence: found.sequence.load() };
        (found.recorded.load() > 0).then_some(ticket)
    }

    /// Waits for the event's last record at the time of the call. Returns the event's status after
    /// the record.
    pub fn wait_event(&self, event: EventId, policy: WaitPolicy) -> EventStatus {
        match self.event_ticket(event) {
            Some(ticket) => {
                let at_ns = self.wait(ticket, policy);
                match self.event_status(event) {
                    // A thread recorded the event again in the meantime.
                    EventStatus::Pending => EventStatus::Done { at_ns },
                    status => status,
                }
            }
            None => self.event_status(event),
        }
    }

    /// Takes device memory for a context. The engine does not round `bytes`; the caller rounds to
    /// [`Config::ALLOCATION_GRANULARITY_BYTES`] or [`Config::SUBALLOCATION_GRANULARITY_BYTES`].
    pub fn reserve_memory(&self, context: ContextId, bytes: u64) -> Result<(), Error> {
        let guard = self.enter()?;
        let found = live_context(&guard, context).ok_or(Error::Gone("context"))?;
        let gpu = found.gpu.load() as usize;
        let mut guard = self.without_the_dead(guard, gpu, bytes);
        live_context(&guard, context).ok_or(Error::Gone("context"))?;
        self.take_memory(&mut guard, context.index as usize, gpu, bytes)?;
        guard.commit();
        Ok(())
    }

    /// Takes memory of a GPU for this process, independently of contexts. The engine does not round
    /// `bytes`.
    pub fn reserve_process_memory(&self, gpu: usize, bytes: u64) -> Result<(), Error> {
        let count = self.gpu_count();
        if gpu >= count {
            return Err(Error::NoSuchGpu { gpu, count });
        }
        let guard = self.enter()?;
        let mut guard = self.without_the_dead(guard, gpu, bytes);
        self.check_server()?;
        let (state, config) = (guard.state(), &self.shared.config);
        let of = (Some(self.process.number), gpu);
        sim::take_process_memory(&mut *guard, state, config, of, bytes).map_err(|free_bytes| {
            guard.abort();
            OutOfMemory { gpu, requested_bytes: bytes, free_bytes, total_bytes: config.memory_bytes }
        })?;
        guard.commit();
        Ok(())
    }

    /// Removes dead processes if the GPU would otherwise refuse `bytes` or exceed its peak, and
    /// returns the locked state. A real driver has taken a dead process's memory back before other
    /// processes can know of the death.
    fn without_the_dead<'h>(&'h self, guard: Guard<'h>, gpu: usize, bytes: u64) -> Guard<'h> {
        let record = &guard.state().gpus[gpu];
        let used_bytes = guard.get(&record.memory_used_bytes).saturating_add(bytes);
        if used_bytes <= guard.get(&record.memory_peak_bytes).min(self.shared.config.memory_bytes) {
            return guard;
        }
        drop(guard);
        Guard::lock(&self.shared, &self.clock, Some(self.process.number), Census::Now)
    }

    /// Gives back memory of a GPU that this process took with [`Self::reserve_process_memory`].
    pub fn release_process_memory(&self, gpu: usize, bytes: u64) {
        let Ok(mut guard) = self.enter() else { return };
        let state = guard.state();
        sim::take_process_memory_back(&mut *guard, state, (Some(self.process.number), gpu), bytes);
        guard.commit();
    }

    /// Gives back device memory of a context, at most the amount that the context holds.
    pub fn release_memory(&self, context: ContextId, bytes: u64) {
        let Ok(mut guard) = self.enter() else { return };
        let state = guard.state();
        if live_context(&guard, context).is_some() {
            sim::take_memory_back(&mut *guard, state, context.index as usize, bytes);
            guard.commit();
        }
    }

    /// Returns total and used memory of a GPU, over all processes.
    ///
    /// # Panics
    /// If there is no such GPU.
    pub fn memory(&self, gpu: usize) -> MemoryInfo {
        assert!(gpu < self.gpu_count().min(MAX_GPUS), "no GPU {gpu}");
        // The lock frees the memory of dead processes and computes the state up to the present.
        drop(self.enter());
        let gpu = &self.shared.state.gpus[gpu];
        let used_bytes = gpu.memory_used_bytes.load().saturating_add(gpu.managed_bytes.load());
        MemoryInfo { total_bytes: self.shared.config.memory_bytes, used_bytes }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Ok(mut guard) = self.enter() {
            let (state, now_ns) = (guard.state(), guard.now_ns());
            liveness::bury(&mut *guard, state, self.process.number, now_ns);
            self.announce(guard);
        }
    }
}

/// A locked state in which a stream has free places.
struct Room<'a> {
    guard: Guard<'a>,
    places: u64,
    /// Index of the stream's context.
    context: usize,
}

fn target(ticket: Ticket) -> (u32, u32, u64) {
    (ticket.stream.index, ticket.stream.generation, ticket.sequence)
}

fn live_context<'a>(guard: &Guard<'a>, context: ContextId) -> Option<&'a Context> {
    guard.state().live_context(context.index, context.generation)
}

fn live_event<'a>(guard: &Guard<'a>, event: EventId) -> Option<&'a Event> {
    guard.state().live_event(event.index, event.generation)
}

/// Returns the stream. Returns an error if the stream does not live or has been destroyed.
fn open_stream<'a>(guard: &Guard<'a>, stream: StreamId) -> Result<&'a Stream, Error> {
    let found = guard.state().live_stream(stream.index, stream.generation);
    found.filter(|found| found.closing.load() == 0).ok_or(Error::Gone("stream"))
}

/// Takes a free slot of a table, and returns its index and generation. Takes a slot that was used
/// before if there is one, else a fresh slot. The change is part of the caller's transaction.
fn new_slot<'a>(
    guard: &mut Guard<'_>,
    list: &FreeList,
    what: &'static str,
    limit: usize,
    next_free: impl Fn(usize) -> &'a Word,
) -> Result<usize, Error> {
    if let Some(index) = (guard.get(&list.first) as usize).checked_sub(1) {
        let next = guard.get(next_free(index));
        guard.put(&list.first, next);
        return Ok(index);
    }
    let used = guard.get(&list.used);
    if used as usize >= limit {
        return Err(Error::Full { what, limit });
    }
    guard.put(&list.used, used + 1);
    Ok(used as usize)
}

/// Makes a free slot's generation that of a slot in use, and returns the generation. The change is
/// part of the caller's transaction.
fn next_generation(guard: &mut Guard<'_>, word: &Word) -> u32 {
    let generation = (guard.get(word) as u32).wrapping_add(1);
    guard.put(word, generation.into());
    generation
}
