//! Progress of the state: from event to event, in the order of time, over all GPUs together.
//!
//! The SMs of a GPU belong to one context at a time, or to the contexts of one MPS server's
//! clients. The kernels of their streams run together. If their parts of the SMs fit, all kernels
//! run at full speed. Otherwise all kernels run slower in proportion. The kernels of an MPS client
//! share the client's part of the SMs in the same way. Kernels of more urgent streams get SMs
//! first, and kernels of less urgent streams share the rest. A kernel that waits for peers keeps
//! its SMs, but makes no progress until all peers have begun.
//!
//! Contexts take turns by *seats*. The seat of an MPS client's context is the server's context; the
//! seat of any other context is the context itself.
//!
//! A slice ends only when another context has a kernel to run. A context without a kernel to run
//! gives way at once. If the configuration says so, a *newcomer* interrupts the slice: a context
//! that gets a kernel to run after it had none.
//!
//! Copies have their own engines and run for all contexts at any time; copies of one kind share the
//! bandwidth of their kind. Memsets and copies within a device are kernels to this module. Markers
//! and finished waits take no time and no SMs. Between events all quantities are linear.
//!
//! [`advance`] can continue after each transaction, because a GPU with unfinished changes has an
//! event that is due now.

use crate::{
    Config,
    config::ALL_SMS_PPM,
    journal::Memory,
    layout::{
        BUCKET_NS, BUCKETS, Context, Gpu, Item, MAX_CONCURRENT, MAX_CONTEXTS, NEVER, State, Stream,
        TICKS_PER_NS, Word, checkpoint_state, item_kind, meeting_peers, pack, phase, unpack,
    },
    managed,
};
use smallvec::SmallVec;

/// Picoseconds of a nanosecond.
pub const PS_PER_NS: u64 = 1000;

/// A kernel or copy that is running, or would run if its context had the SMs.
#[derive(Clone, Copy)]
struct Running {
    /// The process of the item's context.
    process: Option<usize>,
    stream: usize,
    sequence: u64,
    ticks: u64,
    engine: Engine,
    /// Urgency of the item's stream. Kernels of higher urgency get SMs first.
    urgency: u64,
    /// For a kernel: the part of the SMs that it can use.
    sm_ppm: u64,
    /// For a kernel: the part of the SMs that it holds.
    held_ppm: u64,
    /// The item runs at `speed.1 / speed.0` of its full speed.
    speed: (u64, u64),
    /// The meeting for which the kernel spins; 0: the item does not spin.
    spins_for: u64,
}

impl Running {
    /// Returns the speed as a fraction (denominator, numerator); 0 while the kernel spins.
    fn speed(&self) -> (u64, u64) {
        if self.spins_for == 0 { self.speed } else { (1, 0) }
    }

    /// Returns the remaining time at the present speed, rounded up: after this time no work is
    /// left.
    fn time_left_ns(&self) -> u64 {
        let ns = match self.speed() {
            (_, 0) => return NEVER,
            (more, less) if more == less => u128::from(self.ticks).div_ceil(TICKS_PER_NS.into()),
            (more, less) => {
                let work = u128::from(self.ticks) * u128::from(more);
                work.div_ceil(u128::from(TICKS_PER_NS) * u128::from(less))
            }
        };
        u64::try_from(ns).unwrap_or(NEVER)
    }

    /// Returns the work that is left after `ns`.
    fn ticks_after(&self, ns: u64) -> u64 {
        let (more, less) = self.speed();
        let done = u128::from(ns) * u128::from(TICKS_PER_NS) * u128::from(less) / u128::from(more);
        self.ticks.saturating_sub(u64::try_from(done).unwrap_or(NEVER))
    }
}

/// The engine that runs an item.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Engine {
    Sms,
    /// The copy engine of one kind.
    Copy(usize),
}

/// Number of kinds of copies.
const COPY_KINDS: usize = 4;

/// Number of words with a bit for each seat.
const SEAT_WORDS: usize = MAX_CONTEXTS / u64::BITS as usize;

/// The kernels of one process on the SMs, and the part that they have.
struct Demand {
    process: Option<usize>,
    /// The part of the SMs that more kernels can have, parts per million.
    left_ppm: u64,
    /// The parts that the kernels of one urgency can use, added up.
    wanted_ppm: u64,
    /// The part that these kernels have.
    granted_ppm: u64,
}

/// A GPU's work at its present moment.
struct Survey {
    /// Kernels of the current seat, and copies of all contexts. There are seldom more than a
    /// few, and at most [`MAX_CONCURRENT`] of each.
    items: SmallVec<[Running; 8]>,
    /// Number of kernels among `items`.
    kernels: usize,
    copies: [usize; COPY_KINDS],
    /// The first seat in turn, except the current one, that has a kernel to run.
    next_seat: Option<usize>,
    /// Earliest time at which the head item of a stream may start or complete, among heads that may
    /// not do so yet.
    next_eligible_ns: u64,
}

impl Survey {
    /// Gives kernels their SMs, the most urgent kernels first, and gives copies their part of the
    /// bandwidth.
    fn share_out<M: Memory>(&mut self, memory: &M, state: &State) {
        let urgency = |item: &Running| std::cmp::Reverse(item.urgency);
        if !self.items.is_sorted_by_key(urgency) {
            self.items.sort_by_key(urgency);
        }
        let mut kernels = 0;
        self.items.retain(|item| {
            kernels += usize::from(item.engine == Engine::Sms);
            item.engine != Engine::Sms || kernels <= MAX_CONCURRENT
        });
        self.kernels = kernels.min(MAX_CONCURRENT);
        let mut free_ppm = u64::from(ALL_SMS_PPM);
        let Self { items, copies, .. } = self;
        let mut demands: SmallVec<[Demand; 4]> = SmallVec::new();
        for level in items.chunk_by_mut(|one, other| one.urgency == other.urgency) {
            demands.iter_mut().for_each(|demand| demand.wanted_ppm = 0);
            for item in level.iter().filter(|item| item.engine == Engine::Sms) {
                match demands.iter_mut().find(|demand| demand.process == item.process) {
                    Some(demand) => demand.wanted_ppm += item.sm_ppm,
                    None => demands.push(Demand {
                        process: item.process,
                        left_ppm: limit_ppm(memory, state, item.process),
                        wanted_ppm: item.sm_ppm,
                        granted_ppm: 0,
                    }),
                }
            }
            let asked_ppm = |demand: &Demand| demand.wanted_ppm.min(demand.left_ppm);
            let all_ppm: u64 = demands.iter().map(asked_ppm).sum();
            for demand in &mut demands {
                let asked_ppm = asked_ppm(demand);
                // A kernel that can use SMs gets at least the least part, as long as any are free.
                demand.granted_ppm = match all_ppm > free_ppm {
                    true => (asked_ppm * free_ppm / all_ppm).max(asked_ppm.min(free_ppm).min(1)),
                    false => asked_ppm,
                };
                demand.left_ppm -= demand.granted_ppm;
            }
            for item in level {
                match item.engine {
                    Engine::Copy(kind) => item.speed = (copies[kind] as u64, 1),
                    Engine::Sms => {
                        let demand = demands.iter().find(|demand| demand.process == item.process);
                        let (wanted, granted) =
                            demand.map_or((1, 0), |demand| (demand.wanted_ppm, demand.granted_ppm));
                        item.speed = if wanted == granted { (1, 1) } else { (wanted, granted) };
                        item.held_ppm = item.sm_ppm * granted / wanted;
                    }
                }
            }
            free_ppm = free_ppm.saturating_sub(all_ppm);
        }
        if demands.len() > 1 && memory.get(&state.header.interference_rules) > 0 {
            self.interfere(memory, state, &demands);
        }
    }

    /// Slows kernels down beside those of other processes, by the table of interference.
    fn interfere<M: Memory>(&mut self, memory: &M, state: &State, demands: &[Demand]) {
        const WHOLE: u64 = ALL_SMS_PPM as u64;
        for item in self.items.iter_mut().filter(|item| item.engine == Engine::Sms) {
            let Some(own) = item.process else { continue };
            let rules = memory.get(&state.processes[own].interference_client);
            let others = demands.iter().filter_map(|demand| demand.process).filter(|&process| process != own);
            let excess_ppm: u64 = others
                .map(|other| {
                    let fitting = rules & memory.get(&state.processes[other].interference_beside);
                    let word = state.header.interference_ppm.get(fitting.trailing_zeros() as usize);
                    word.map_or(0, |word| memory.get(word).saturating_sub(WHOLE))
                })
                .sum();
            if excess_ppm > 0 {
                item.speed = (item.speed.0 * (WHOLE + excess_ppm), item.speed.1 * WHOLE);
            }
        }
    }
}

/// Returns the part of the SMs that the kernels of a process together can use, parts per million.
fn limit_ppm<M: Memory>(memory: &M, state: &State, process: Option<usize>) -> u64 {
    match process.map(|process| memory.get(&state.processes[process].sm_limit_ppm)) {
        None | Some(0) => ALL_SMS_PPM.into(),
        Some(limit_ppm) => limit_ppm,
    }
}

/// Returns the seat of a context: for a client of MPS the server's context, else the context
/// itself.
fn seat_of<M: Memory>(memory: &M, state: &State, context: usize) -> usize {
    index_of(memory.get(&state.contexts[context].seat)).unwrap_or(context)
}

/// Returns the stored form of an index, which is the index plus one. Words store 0 for "none".
fn stored(index: usize) -> u64 {
    index as u64 + 1
}

/// Returns the index of a stored form; `None` for 0.
fn index_of(stored: u64) -> Option<usize> {
    (stored as usize).checked_sub(1)
}

/// State of the head of a stream.
enum Head<'a> {
    /// The stream has no items.
    Empty,
    /// A kernel or copy with work left, which may run from `eligible_ns` on.
    Work { item: &'a Item, sequence: u64, ticks: u64, eligible_ns: u64 },
    /// The head item needs only time, and completes at `eligible_ns`.
    Ready { eligible_ns: u64 },
    /// The head item waits for another stream or for the host.
    Blocked,
}

fn head<'a, M: Memory>(memory: &M, state: &'a State, index: usize) -> Head<'a> {
    let stream = &state.streams[index];
    let completed = memory.get(&stream.completed);
    if completed == memory.get(&stream.submitted) {
        return Head::Empty;
    }
    let sequence = completed + 1;
    let item = state.item(index, sequence);
    let eligible_ns = memory.get(&item.eligible_ns);
    match memory.get(&item.kind) & item_kind::MASK {
        item_kind::KERNEL | item_kind::COPY => {
            let started = memory.get(&stream.head_sequence) == sequence;
            let ticks = memory.get(if started { &stream.head_ticks } else { &item.ticks });
            if ticks == 0 {
                Head::Ready { eligible_ns }
            } else {
                Head::Work { item, sequence, ticks, eligible_ns }
            }
        }
        item_kind::WAIT if !wait_is_over(memory, state, item) => Head::Blocked,
        item_kind::HOST_WAIT => match memory.get(&item.released_ns) {
            0 => Head::Blocked,
            released_ns => Head::Ready { eligible_ns: eligible_ns.max(released_ns) },
        },
        _ => Head::Ready { eligible_ns },
    }
}

fn wait_is_over<M: Memory>(memory: &M, state: &State, item: &Item) -> bool {
    let (index, generation) = unpack(memory.get(&item.a));
    let Some(stream) = state.streams.get(index as usize) else { return true };
    memory.get(&stream.generation) != u64::from(generation)
        || memory.get(&stream.completed) >= memory.get(&item.b)
}

/// Returns the first time at which the head of a stream may start or complete.
fn head_ready_ns<M: Memory>(memory: &M, state: &State, index: usize) -> u64 {
    match head(memory, state, index) {
        Head::Work { eligible_ns, .. } | Head::Ready { eligible_ns } => eligible_ns,
        Head::Empty | Head::Blocked => NEVER,
    }
}

/// Returns the first of a context's streams that have work.
fn streams_of<M: Memory>(memory: &M, state: &State, context: usize) -> Option<usize> {
    index_of(memory.get(&state.contexts[context].first_stream))
}

fn next_stream<M: Memory>(memory: &M, state: &State, stream: usize) -> Option<usize> {
    index_of(memory.get(&state.streams[stream].next))
}

/// Returns the streams of a context that have work, in their order.
pub fn unfinished_streams<'a, M: Memory>(
    memory: &'a M,
    state: &'a State,
    context: usize,
) -> impl Iterator<Item = usize> + use<'a, M> {
    std::iter::successors(streams_of(memory, state, context), |&stream| next_stream(memory, state, stream))
}

/// Returns a GPU's work at its present moment.
fn survey<M: Memory>(memory: &M, state: &State, gpu: &Gpu) -> Survey {
    let mut survey = Survey {
        items: SmallVec::new(),
        kernels: 0,
        copies: [0; COPY_KINDS],
        next_seat: None,
        next_eligible_ns: NEVER,
    };
    let now_ns = memory.get(&gpu.now_ns);
    let current = index_of(memory.get(&gpu.current));
    let mut copies = 0;
    // The number of places from the current seat to another in the order of turns.
    let distance = |seat: usize| {
        let first = current.map_or(0, |current| current + 1);
        (seat + MAX_CONTEXTS - first) % MAX_CONTEXTS
    };
    for context in occupied_after(memory, gpu, current) {
        let seat = seat_of(memory, state, context);
        let process = index_of(memory.get(&state.contexts[context].process));
        for stream in unfinished_streams(memory, state, context) {
            let (item, sequence, ticks) = match head(memory, state, stream) {
                Head::Work { item, sequence, ticks, eligible_ns } if eligible_ns <= now_ns => {
                    (item, sequence, ticks)
                }
                Head::Work { eligible_ns, .. } | Head::Ready { eligible_ns } => {
                    survey.next_eligible_ns = survey.next_eligible_ns.min(eligible_ns);
                    continue;
                }
                Head::Empty | Head::Blocked => continue,
            };
            let a = memory.get(&item.a);
            let engine = if memory.get(&item.kind) & item_kind::MASK == item_kind::COPY {
                if copies == MAX_CONCURRENT {
                    continue;
                }
                copies += 1;
                let kind = a as usize % COPY_KINDS;
                survey.copies[kind] += 1;
                Engine::Copy(kind)
            } else if Some(seat) == current {
                Engine::Sms
            } else {
                let next = survey.next_seat.into_iter().chain([seat]);
                survey.next_seat = next.min_by_key(|&seat| distance(seat));
                continue;
            };
            survey.items.push(Running {
                process,
                stream,
                sequence,
                ticks,
                engine,
                urgency: memory.get(&state.streams[stream].urgency),
                sm_ppm: a,
                held_ppm: 0,
                speed: (1, 1),
                spins_for: spins_for(memory, state, stream, sequence),
            });
        }
    }
    survey.share_out(memory, state);
    survey
}

/// Returns the occupied contexts behind `after`, then the occupied contexts from the beginning.
fn occupied_after<'a, M: Memory>(
    memory: &'a M,
    gpu: &'a Gpu,
    after: Option<usize>,
) -> impl Iterator<Item = usize> + use<'a, M> {
    const BITS: usize = u64::BITS as usize;
    let words = gpu.occupied.len();
    let start = after.map_or(0, |context| context + 1);
    let (start_word, start_bit) = (start / BITS % words, start % BITS);
    // The loop visits the starting word twice: first from the starting bit on, last up to the
    // starting bit.
    (0..=words).flat_map(move |step| {
        let word = (start_word + step) % words;
        let mut bits = memory.get(&gpu.occupied[word]);
        if step == 0 {
            bits &= u64::MAX << start_bit;
        } else if step == words {
            bits &= !(u64::MAX << start_bit);
        }
        std::iter::from_fn(move || {
            let bit = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
            bits &= bits - 1;
            Some(word * BITS + bit)
        })
    })
}

/// Advances a GPU's clock and accounts to `to_ns`. The present work runs all that time. The
/// function begins one transaction and leaves it open.
fn integrate<M: Memory>(memory: &mut M, state: &State, gpu_index: usize, to_ns: u64) {
    let gpu = &state.gpus[gpu_index];
    let from_ns = memory.get(&gpu.now_ns);
    if to_ns <= from_ns {
        return;
    }
    let elapsed_ns = to_ns - from_ns;
    let phase = memory.get(&gpu.phase);
    let survey = survey(memory, state, gpu);
    // Processes that compute, each with its SM time, and processes that copy.
    let mut computing = SmallVec::<[(usize, u64); 8]>::new();
    let mut copying = SmallVec::<[usize; 8]>::new();
    for item in survey.items.iter().filter(|item| item.engine != Engine::Sms || phase == phase::RUNNING) {
        let stream = &state.streams[item.stream];
        memory.put(&stream.head_sequence, item.sequence);
        memory.put(&stream.head_ticks, item.ticks_after(elapsed_ns));
        if let Some(process) = item.process {
            match item.engine {
                Engine::Sms => {
                    let sm_ps = sm_ps(item.held_ppm, elapsed_ns);
                    match computing.iter_mut().find(|(known, _)| *known == process) {
                        Some((_, sum_ps)) => *sum_ps += sm_ps,
                        None => computing.push((process, sm_ps)),
                    }
                }
                Engine::Copy(_) if !copying.contains(&process) => copying.push(process),
                Engine::Copy(_) => {}
            }
        }
    }
    match phase {
        phase::RUNNING => {
            memory.add(&gpu.busy_ns, elapsed_ns);
            add_to_buckets(memory, gpu, from_ns, to_ns);
            settle_idle(memory, gpu);
        }
        phase::SWITCHING => memory.add(&gpu.switch_ns, elapsed_ns),
        _ => {
            memory.add(&gpu.idle_ns, elapsed_ns);
            memory.add(&gpu.recent_idle_ns, elapsed_ns);
        }
    }
    let account = |process: usize| &state.processes[process].gpus[gpu_index];
    for &(process, sm_ps) in &computing {
        memory.add(&account(process).kernel_busy_ns, elapsed_ns);
        memory.add(&account(process).busy_ns, elapsed_ns);
        memory.add(&account(process).sm_ps, sm_ps);
    }
    if !computing.is_empty() {
        memory.add(&gpu.sm_ps, computing.iter().map(|(_, sm_ps)| sm_ps).sum());
    }
    if !copying.is_empty() {
        memory.add(&gpu.copy_busy_ns, elapsed_ns);
    }
    for process in copying {
        memory.add(&account(process).copy_busy_ns, elapsed_ns);
        if computing.iter().all(|(computes, _)| *computes != process) {
            memory.add(&account(process).busy_ns, elapsed_ns);
        }
    }
    memory.put(&gpu.now_ns, to_ns);
}

/// Returns the SM time of a kernel that held a part of the SMs.
fn sm_ps(held_ppm: u64, elapsed_ns: u64) -> u64 {
    let sm_ps =
        u128::from(held_ppm) * u128::from(elapsed_ns) * u128::from(PS_PER_NS) / u128::from(ALL_SMS_PPM);
    u64::try_from(sm_ps).unwrap_or(NEVER)
}

/// Assigns recent idle time. A context runs now, so the GPU was idle between the last context and
/// this one.
fn settle_idle<M: Memory>(memory: &mut M, gpu: &Gpu) {
    let (recent_idle_ns, ran_last) = (memory.get(&gpu.recent_idle_ns), memory.get(&gpu.ran_last));
    let runs = memory.get(&gpu.current);
    if recent_idle_ns > 0 {
        if index_of(ran_last).is_some() && ran_last != runs {
            memory.add(&gpu.handover_idle_ns, recent_idle_ns);
        }
        memory.put(&gpu.recent_idle_ns, 0);
    }
    if ran_last != runs {
        memory.put(&gpu.ran_last, runs);
    }
}

/// Adds busy time to the utilisation of the last second.
fn add_to_buckets<M: Memory>(memory: &mut M, gpu: &Gpu, from_ns: u64, to_ns: u64) {
    let last = (to_ns - 1) / BUCKET_NS;
    // Times that are older than all buckets would be overwritten by the loop below, so the loop
    // leaves them out.
    let first = (from_ns / BUCKET_NS).max((last + 1).saturating_sub(BUCKETS as u64));
    for number in first..=last {
        let busy_ns = to_ns.min((number + 1) * BUCKET_NS) - from_ns.max(number * BUCKET_NS);
        let bucket = number as usize % BUCKETS;
        if memory.get(&gpu.bucket_number[bucket]) == number {
            memory.add(&gpu.bucket_busy_ns[bucket], busy_ns);
        } else {
            memory.put(&gpu.bucket_number[bucket], number);
            memory.put(&gpu.bucket_busy_ns[bucket], busy_ns);
        }
    }
}

/// Returns the busy part of the last full buckets, in parts per million.
pub fn utilization_ppm<M: Memory>(memory: &M, gpu: &Gpu, now_ns: u64) -> u32 {
    const FULL: u64 = BUCKETS as u64 - 1;
    let present = now_ns / BUCKET_NS;
    let busy_ns: u64 = (0..BUCKETS)
        .filter(|&bucket| {
            let number = memory.get(&gpu.bucket_number[bucket]);
            number < present && number + FULL >= present
        })
        .map(|bucket| memory.get(&gpu.bucket_busy_ns[bucket]))
        .sum();
    (busy_ns * u64::from(ALL_SMS_PPM) / (FULL * BUCKET_NS)) as u32
}

/// Completes the head of a stream at the GPU's present moment. The function makes one transaction,
/// and another if it wakes other GPUs.
fn complete<M: Memory>(memory: &mut M, state: &State, gpu_index: usize, context: usize, index: usize) {
    let gpu = &state.gpus[gpu_index];
    let stream = &state.streams[index];
    let at_ns = memory.get(&gpu.now_ns);
    let sequence = memory.get(&stream.completed) + 1;
    let item = state.item(index, sequence);
    let kind = memory.get(&item.kind);
    let account = index_of(memory.get(&state.contexts[context].process))
        .map(|process| &state.processes[process].gpus[gpu_index]);
    match (kind & item_kind::MASK, account) {
        (item_kind::KERNEL, Some(account)) => {
            let kernels = memory.get(&item.b);
            memory.add(&account.kernels, kernels);
        }
        (item_kind::COPY, Some(account)) => memory.add(&account.copies, 1),
        (item_kind::MARKER, _) => complete_record(memory, state, item, at_ns),
        (item_kind::WAIT, _) if kind & item_kind::CROSS != 0 => {
            let waits = memory.get(&state.header.cross_waits);
            memory.put(&state.header.cross_waits, waits.saturating_sub(1));
        }
        _ => {}
    }
    memory.put(&item.completed_ns, at_ns);
    memory.put(&stream.completed, sequence);
    if sequence == memory.get(&stream.submitted) {
        unlink_stream(memory, state, index);
        if memory.get(&stream.closing) != 0 {
            free_stream(memory, state, index);
        }
    }
    memory.commit();
    // If this process dies here, `wake_everything` wakes the other GPUs later.
    if memory.get(&state.header.cross_waits) > 0 {
        poke_others(memory, state, Some(gpu_index), at_ns);
    }
}

/// Writes the time into a marker's event, if the marker has an event and the event still lives.
fn complete_record<M: Memory>(memory: &mut M, state: &State, item: &Item, at_ns: u64) {
    let (stored_index, generation) = unpack(memory.get(&item.a));
    let Some(event) = index_of(stored_index.into()).and_then(|index| state.events.get(index)) else { return };
    if memory.get(&event.generation) == u64::from(generation) {
        let number = memory.get(&item.b);
        if memory.get(&event.completed) < number {
            memory.put(&event.at_ns, at_ns);
            memory.put(&event.completed, number);
        }
    }
}

/// Makes the other GPUs check again whether their waits are over. `here` is the GPU that the caller
/// settles itself. The function makes one transaction.
fn poke_others<M: Memory>(memory: &mut M, state: &State, here: Option<usize>, now_ns: u64) {
    let count = state.header.gpu_count.load() as usize;
    for (index, gpu) in state.gpus[..count].iter().enumerate() {
        if Some(index) != here && gpu.occupied.iter().any(|word| memory.get(word) != 0) {
            memory.lower(&gpu.next_event_ns, now_ns);
        }
    }
    memory.commit();
}

/// Makes every GPU check everything again after a holder of the lock died. The holder may have died
/// between two transactions, before it woke a GPU. A needless wake-up does no harm.
pub fn wake_everything<M: Memory>(memory: &mut M, state: &State) {
    let gpus = &state.gpus[..state.header.gpu_count.load() as usize];
    // All GPUs have to reach the time of the latest GPU. At an earlier time, the function would see
    // the future of the latest GPU.
    let now_ns = gpus.iter().map(|gpu| memory.get(&gpu.now_ns)).max().unwrap_or_default();
    for gpu in gpus {
        memory.lower(&gpu.next_event_ns, now_ns);
    }
    memory.put(&state.header.next_event_ns, 0);
    memory.commit();
}

/// Begins a slice of the current context, and returns its length. An interrupted context has the
/// rest of its slice.
fn begin_slice<M: Memory>(memory: &mut M, config: &Config, gpu: &Gpu) -> u64 {
    let interrupted = memory.get(&gpu.interrupted);
    if interrupted == 0 || interrupted != memory.get(&gpu.current) {
        return config.slice_ns;
    }
    memory.put(&gpu.interrupted, 0);
    memory.get(&gpu.interrupted_left_ns)
}

/// Returns the first newcomer in turn. A newcomer is another seat than the current one. It has a
/// kernel to run, and has not had the SMs since it got the kernel. Drops what the state says about
/// seats without a kernel to run. The change is part of the caller's transaction.
fn newcomer<M: Memory>(memory: &mut M, state: &State, gpu: &Gpu) -> Option<usize> {
    const BITS: usize = u64::BITS as usize;
    let bit = |seat: Option<usize>, word: usize| {
        seat.filter(|seat| seat / BITS == word).map_or(0, |seat| 1_u64 << (seat % BITS))
    };
    let current = index_of(memory.get(&gpu.current));
    let interrupted = index_of(memory.get(&gpu.interrupted));
    let runnable = runnable_seats(memory, state, gpu);
    let mut newcomers: SmallVec<[usize; 8]> = SmallVec::new();
    for (word, (had_turn, runnable)) in gpu.had_turn.iter().zip(runnable).enumerate() {
        if bit(interrupted, word) & !runnable != 0 {
            memory.put(&gpu.interrupted, 0);
        }
        let known = (memory.get(had_turn) | bit(current, word)) & runnable;
        memory.put(had_turn, known);
        let mut new = runnable & !known;
        while new != 0 {
            newcomers.push(word * BITS + new.trailing_zeros() as usize);
            new &= new - 1;
        }
    }
    let first = current.map_or(0, |current| current + 1);
    newcomers.into_iter().min_by_key(|seat| (seat + MAX_CONTEXTS - first) % MAX_CONTEXTS)
}

/// Returns the seats that have a kernel to run at the GPU's present moment, as bits.
fn runnable_seats<M: Memory>(memory: &M, state: &State, gpu: &Gpu) -> [u64; SEAT_WORDS] {
    const BITS: usize = u64::BITS as usize;
    let now_ns = memory.get(&gpu.now_ns);
    let is_runnable = |stream: usize| match head(memory, state, stream) {
        Head::Work { item, eligible_ns, .. } => {
            eligible_ns <= now_ns && memory.get(&item.kind) & item_kind::MASK == item_kind::KERNEL
        }
        Head::Empty | Head::Ready { .. } | Head::Blocked => false,
    };
    let mut seats = [0; SEAT_WORDS];
    for context in occupied_after(memory, gpu, None) {
        if unfinished_streams(memory, state, context).any(is_runnable) {
            let seat = seat_of(memory, state, context);
            seats[seat / BITS] |= 1 << (seat % BITS);
        }
    }
    seats
}

/// Makes the changes that take no time, at the GPU's present moment. Computes the time of the GPU's
/// next event.
fn settle<M: Memory>(memory: &mut M, state: &State, config: &Config, gpu_index: usize) {
    let gpu = &state.gpus[gpu_index];
    let now_ns = memory.get(&gpu.now_ns);
    complete_all_ready(memory, state, gpu_index);
    let mut survey = survey(memory, state, gpu);
    let first_done_ns = |survey: &Survey, running: fn(Engine) -> bool| {
        let times = survey.items.iter().filter(|item| running(item.engine)).map(Running::time_left_ns);
        now_ns.saturating_add(times.min().unwrap_or(NEVER))
    };
    let mut event_ns = survey.next_eligible_ns.min(first_done_ns(&survey, |engine| engine != Engine::Sms));

    let current = index_of(memory.get(&gpu.current));
    let mut present = memory.get(&gpu.phase);
    let phase_end_ns = memory.get(&gpu.phase_end_ns);
    let mut slice_end_ns = memory.get(&gpu.slice_end_ns);
    if present == phase::SWITCHING && phase_end_ns <= now_ns {
        present = phase::IDLE;
        slice_end_ns = now_ns + begin_slice(memory, config, gpu);
    }
    // While a context is alone, a new slice begins at each slice's end, even if no process looks at
    // that time.
    slice_end_ns += now_ns.saturating_sub(slice_end_ns).div_ceil(config.slice_ns) * config.slice_ns;
    let newcomer = if config.newcomers_wait { None } else { newcomer(memory, state, gpu) };
    let interrupted = index_of(memory.get(&gpu.interrupted));
    let interrupts = newcomer.is_some() && interrupted.is_none();
    let is_over = survey.kernels == 0 || slice_end_ns == now_ns;
    let next_seat = newcomer.or(interrupted).or(survey.next_seat);
    let switch_cost_ns = match (next_seat, survey.kernels) {
        _ if present == phase::SWITCHING => None,
        (None, _) => None,
        (Some(_), 1..) => (is_over || interrupts).then_some(config.preempt_switch_ns),
        (Some(_), 0) if current.is_some() => Some(config.idle_switch_ns),
        // A GPU without a loaded context has nothing to save.
        (Some(_), 0) => Some(0),
    };
    if present == phase::SWITCHING {
        event_ns = event_ns.min(phase_end_ns);
    } else if let (Some(next), Some(cost_ns)) = (next_seat, switch_cost_ns) {
        present = phase::SWITCHING;
        if interrupts {
            let (seat, left_ns) = match is_over {
                true => (survey.next_seat, config.slice_ns),
                false => (current, slice_end_ns - now_ns),
            };
            memory.put(&gpu.interrupted, seat.filter(|seat| *seat != next).map_or(0, stored));
            memory.put(&gpu.interrupted_left_ns, left_ns);
        }
        memory.put(&gpu.phase_end_ns, now_ns + cost_ns);
        memory.put(&gpu.current, stored(next));
        memory.add(&gpu.switches, 1);
        event_ns = event_ns.min(now_ns + cost_ns);
    } else if survey.kernels > 0 {
        present = phase::RUNNING;
        meet(memory, state, gpu_index, &mut survey.items);
        if slice_end_ns == now_ns {
            slice_end_ns += config.slice_ns;
        }
        if survey.next_seat.is_some() {
            event_ns = event_ns.min(slice_end_ns);
        }
        event_ns = event_ns.min(first_done_ns(&survey, |engine| engine == Engine::Sms));
    } else {
        present = phase::IDLE;
    }
    memory.put(&gpu.phase, present);
    memory.put(&gpu.slice_end_ns, slice_end_ns);
    memory.put(&gpu.next_event_ns, event_ns);
    memory.commit();
}

/// Returns the meeting for which the kernel at a stream's head spins. 0: the kernel does not spin,
/// or has stopped spinning.
fn spins_for<M: Memory>(memory: &M, state: &State, stream: usize, sequence: u64) -> u64 {
    let meeting = memory.get(&state.item(stream, sequence).meeting);
    if meeting == 0 || memory.get(&state.streams[stream].met_sequence) == sequence { 0 } else { meeting }
}

/// Returns whether the head of a stream is a kernel whose peers have not all begun.
pub fn spins_for_peers<M: Memory>(memory: &M, state: &State, stream: usize) -> bool {
    match head(memory, state, stream) {
        Head::Work { sequence, .. } => spins_for(memory, state, stream, sequence) != 0,
        Head::Empty | Head::Ready { .. } | Head::Blocked => false,
    }
}

/// Marks the kernels that run on a GPU from now on as begun, and releases kernels whose peers have
/// all begun. Released kernels can be on other GPUs. First advances the accounts of all GPUs to
/// this moment, because until now the kernels were spinning. The function makes several
/// transactions; the state is consistent after each.
fn meet<M: Memory>(memory: &mut M, state: &State, gpu_index: usize, items: &mut [Running]) {
    let now_ns = memory.get(&state.gpus[gpu_index].now_ns);
    for at in 0..items.len() {
        let item = items[at];
        if item.spins_for == 0 || item.speed.1 == 0 {
            continue;
        }
        memory.put(&state.streams[item.stream].arrived_sequence, item.sequence);
        memory.commit();
        let Some(members) = whole_meeting(memory, state, item.spins_for, item.stream) else { continue };
        bring_accounts_to(memory, state, now_ns);
        for (gpu, stream, sequence) in &members {
            memory.put(&state.streams[*stream].met_sequence, *sequence);
            memory.lower(&state.gpus[*gpu].next_event_ns, now_ns);
        }
        memory.commit();
        for other in items.iter_mut() {
            if members.iter().any(|(_, stream, _)| *stream == other.stream) {
                other.spins_for = 0;
            }
        }
    }
}

/// Returns the kernels that meet the kernel at the head of `newcomer`, as (GPU, stream, sequence).
/// The result includes the newcomer, and has one kernel of each context. `None`: too few kernels
/// have begun.
fn whole_meeting<M: Memory>(
    memory: &M,
    state: &State,
    meeting: u64,
    newcomer: usize,
) -> Option<SmallVec<[(usize, usize, u64); 8]>> {
    let own_context = index_of(memory.get(&state.streams[newcomer].context));
    let has_begun = |stream: &usize| {
        let arrived = memory.get(&state.streams[*stream].arrived_sequence);
        matches!(head(memory, state, *stream), Head::Work { sequence, .. } if sequence == arrived)
            && spins_for(memory, state, *stream, arrived) == meeting
    };
    let mut members = SmallVec::new();
    for (index, gpu) in state.gpus[..state.header.gpu_count.load() as usize].iter().enumerate() {
        for context in occupied_after(memory, gpu, None) {
            let begun = if Some(context) == own_context {
                Some(newcomer)
            } else {
                unfinished_streams(memory, state, context).find(has_begun)
            };
            members.extend(
                begun.map(|stream| (index, stream, memory.get(&state.streams[stream].arrived_sequence))),
            );
        }
    }
    let own = members.iter().position(|(_, stream, _)| *stream == newcomer)?;
    // If more kernels have begun than can meet, the newcomer must be among those that meet.
    members.swap(0, own);
    let peers = meeting_peers(meeting);
    (members.len() >= peers).then(|| {
        members.truncate(peers);
        members
    })
}

/// Completes items that need no time: markers, finished waits and finished work.
fn complete_all_ready<M: Memory>(memory: &mut M, state: &State, gpu_index: usize) {
    let gpu = &state.gpus[gpu_index];
    let now_ns = memory.get(&gpu.now_ns);
    loop {
        let mut progress = false;
        let mut blocked = false;
        // Collected first, because completions can remove contexts from the set.
        let occupied: SmallVec<[usize; 8]> = occupied_after(memory, gpu, None).collect();
        for context in occupied {
            let mut next = streams_of(memory, state, context);
            while let Some(stream) = next {
                // Read first, because a completion can remove the stream from the list.
                next = next_stream(memory, state, stream);
                loop {
                    match head(memory, state, stream) {
                        Head::Ready { eligible_ns } if eligible_ns <= now_ns => {
                            complete(memory, state, gpu_index, context, stream);
                            progress = true;
                        }
                        Head::Blocked => {
                            blocked = true;
                            break;
                        }
                        _ => break,
                    }
                }
            }
        }
        // A stream's completion can end the wait of an earlier stream in the list.
        if !(progress && blocked) {
            return;
        }
    }
}

/// Returns the time of the earliest event, and its GPU.
fn first_event<M: Memory>(memory: &M, state: &State) -> (u64, usize) {
    let count = state.header.gpu_count.load() as usize;
    let events = state.gpus[..count].iter().enumerate();
    events.map(|(index, gpu)| (memory.get(&gpu.next_event_ns), index)).min().unwrap_or((NEVER, 0))
}

/// Computes the state up to `now_ns`. Makes at least one transaction for each event, and leaves
/// none open.
pub fn advance<M: Memory>(memory: &mut M, state: &State, config: &Config, now_ns: u64) {
    if memory.get(&state.header.next_event_ns) > now_ns {
        return;
    }
    let next_ns = loop {
        let (event_ns, gpu) = first_event(memory, state);
        if event_ns > now_ns {
            break event_ns;
        }
        step(memory, state, config, gpu, event_ns);
    };
    memory.put(&state.header.next_event_ns, next_ns);
    memory.commit();
}

fn step<M: Memory>(memory: &mut M, state: &State, config: &Config, gpu_index: usize, event_ns: u64) {
    integrate(memory, state, gpu_index, event_ns);
    let gpu = &state.gpus[gpu_index];
    let now_ns = memory.get(&gpu.now_ns);
    memory.put(&gpu.next_event_ns, now_ns);
    memory.commit();
    settle(memory, state, config, gpu_index);
}

/// Advances the accounts of all GPUs to `now_ns`. No event may lie before `now_ns`. Afterwards, the
/// caller can read present accounts from an overlay, or change the running work in the state.
pub fn bring_accounts_to<M: Memory>(memory: &mut M, state: &State, now_ns: u64) {
    for gpu in 0..state.header.gpu_count.load() as usize {
        integrate(memory, state, gpu, now_ns);
        memory.commit();
    }
}

/// Prediction of the completion of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prediction {
    /// The item completes at this time, if no process submits anything before.
    At(u64),
    /// The item completes later than this time, up to which the prediction looked ahead.
    After(u64),
    /// The item does not complete before the host does something.
    Blocked,
}

/// Predicts the completion of an item, looking ahead over at most `max_events` events.
pub fn predict<M: Memory>(
    memory: &mut M,
    state: &State,
    config: &Config,
    target: (u32, u32, u64),
    max_events: usize,
) -> Prediction {
    let (index, generation, sequence) = target;
    let Some(stream) = state.streams.get(index as usize) else { return Prediction::At(0) };
    let mut at_ns = 0;
    for _ in 0..max_events {
        if memory.get(&stream.generation) != u64::from(generation)
            || memory.get(&stream.completed) >= sequence
        {
            return Prediction::At(at_ns);
        }
        let (event_ns, gpu) = first_event(memory, state);
        if event_ns == NEVER {
            return Prediction::Blocked;
        }
        at_ns = event_ns;
        step(memory, state, config, gpu, event_ns);
    }
    Prediction::After(at_ns)
}

/// Contents of a new item.
#[derive(Clone, Copy)]
pub struct NewItem {
    pub kind: u64,
    pub ticks: u64,
    pub a: u64,
    pub b: u64,
    pub meeting: u64,
}

/// Returns whether a wait for the item would be over already.
pub fn is_complete<M: Memory>(memory: &M, state: &State, target: (u32, u32, u64)) -> bool {
    let (index, generation, sequence) = target;
    state.streams.get(index as usize).is_none_or(|stream| {
        memory.get(&stream.generation) != u64::from(generation) || memory.get(&stream.completed) >= sequence
    })
}

/// Returns an item for a stream of `context` that waits for `target`.
pub fn wait_item<M: Memory>(memory: &M, state: &State, context: usize, target: (u32, u32, u64)) -> NewItem {
    let (index, generation, sequence) = target;
    let cross = memory.get(&state.streams[index as usize].context) != stored(context);
    let kind = item_kind::WAIT | if cross { item_kind::CROSS } else { 0 };
    NewItem { kind, ticks: 0, a: pack(index, generation), b: sequence, meeting: 0 }
}

/// Appends an item to a live stream that has a free place. Returns the item's sequence. The change
/// is part of the caller's transaction.
pub fn append<M: Memory>(memory: &mut M, state: &State, index: usize, new: NewItem, eligible_ns: u64) -> u64 {
    let stream = &state.streams[index];
    let submitted = memory.get(&stream.submitted);
    let sequence = submitted + 1;
    let item = state.item(index, sequence);
    // No process reads these words before `submitted` includes the item, because the place is free.
    // So the words need no journal.
    item.kind.store(new.kind);
    item.ticks.store(new.ticks);
    item.eligible_ns.store(eligible_ns);
    item.a.store(new.a);
    item.b.store(new.b);
    item.released_ns.store(0);
    item.meeting.store(new.meeting);
    if new.kind & item_kind::CROSS != 0 {
        memory.add(&state.header.cross_waits, 1);
    }
    let was_empty = memory.get(&stream.completed) == submitted;
    memory.put(&stream.submitted, sequence);
    if was_empty {
        link_stream(memory, state, index);
        wake_gpu_of(memory, state, index);
    }
    sequence
}

/// Schedules a check of a stream whose head may have become ready. The change is part of the
/// caller's transaction.
pub fn wake_gpu_of<M: Memory>(memory: &mut M, state: &State, stream: usize) {
    let Some(context_index) = index_of(memory.get(&state.streams[stream].context)) else { return };
    let ready_ns = head_ready_ns(memory, state, stream);
    if ready_ns == NEVER {
        return;
    }
    let gpu = &state.gpus[memory.get(&state.contexts[context_index].gpu) as usize];
    memory.lower(&gpu.next_event_ns, ready_ns);
    memory.lower(&state.header.next_event_ns, ready_ns);
}

fn occupied_word(gpu: &Gpu, context: usize) -> (&Word, u64) {
    const BITS: usize = u64::BITS as usize;
    (&gpu.occupied[context / BITS], 1 << (context % BITS))
}

/// Appends a stream to its context's list of streams with work.
fn link_stream<M: Memory>(memory: &mut M, state: &State, index: usize) {
    let stream = &state.streams[index];
    let Some(context_index) = index_of(memory.get(&stream.context)) else { return };
    let context: &Context = &state.contexts[context_index];
    let last = memory.get(&context.last_stream);
    memory.put(&stream.previous, last);
    memory.put(&stream.next, 0);
    match index_of(last) {
        Some(last) => memory.put(&state.streams[last].next, stored(index)),
        None => {
            memory.put(&context.first_stream, stored(index));
            let gpu = &state.gpus[memory.get(&context.gpu) as usize];
            let (word, bit) = occupied_word(gpu, context_index);
            let bits = memory.get(word);
            memory.put(word, bits | bit);
        }
    }
    memory.put(&context.last_stream, stored(index));
}

/// Removes a stream from its context's list.
fn unlink_stream<M: Memory>(memory: &mut M, state: &State, index: usize) {
    let stream: &Stream = &state.streams[index];
    let Some(context_index) = index_of(memory.get(&stream.context)) else { return };
    let context = &state.contexts[context_index];
    let (previous, next) = (memory.get(&stream.previous), memory.get(&stream.next));
    match index_of(previous) {
        Some(previous) => memory.put(&state.streams[previous].next, next),
        None => memory.put(&context.first_stream, next),
    }
    match index_of(next) {
        Some(next) => memory.put(&state.streams[next].previous, previous),
        None => memory.put(&context.last_stream, previous),
    }
    if previous == 0 && next == 0 {
        let gpu = &state.gpus[memory.get(&context.gpu) as usize];
        let (word, bit) = occupied_word(gpu, context_index);
        let bits = memory.get(word);
        memory.put(word, bits & !bit);
    }
}

/// Changes a slot's generation to that of a free slot. Generations have 32 bits.
pub fn retire_generation<M: Memory>(memory: &mut M, word: &Word) {
    let generation = (memory.get(word) as u32).wrapping_add(1);
    memory.put(word, generation.into());
}

/// Frees an empty stream's slot. The change is part of the caller's transaction.
fn free_stream<M: Memory>(memory: &mut M, state: &State, index: usize) {
    let stream = &state.streams[index];
    retire_generation(memory, &stream.generation);
    memory.put(&stream.context, 0);
    memory.put(&stream.closing, 0);
    let list = &state.header.streams.first;
    let first = memory.get(list);
    memory.put(&stream.next_free, first);
    memory.put(list, stored(index));
}

/// Destroys a stream, in one transaction. If the stream is not empty, the engine destroys the
/// stream as soon as it is empty.
pub fn close_stream<M: Memory>(memory: &mut M, state: &State, index: usize) {
    let stream = &state.streams[index];
    if memory.get(&stream.submitted) == memory.get(&stream.completed) {
        free_stream(memory, state, index);
    } else {
        memory.put(&stream.closing, 1);
    }
    memory.commit();
}

/// Removes a stream with its items, and ends waits for these items. Makes one transaction for each
/// item, and one at the end.
fn drop_stream<M: Memory>(memory: &mut M, state: &State, index: usize, now_ns: u64) {
    let stream = &state.streams[index];
    loop {
        let completed = memory.get(&stream.completed);
        if completed == memory.get(&stream.submitted) {
            break;
        }
        let item = state.item(index, completed + 1);
        let kind = memory.get(&item.kind);
        if kind & item_kind::MASK == item_kind::MARKER {
            complete_record(memory, state, item, now_ns);
        }
        if kind & item_kind::CROSS != 0 {
            let waits = memory.get(&state.header.cross_waits);
            memory.put(&state.header.cross_waits, waits.saturating_sub(1));
        }
        memory.put(&item.completed_ns, now_ns);
        memory.put(&stream.completed, completed + 1);
        if completed + 1 == memory.get(&stream.submitted) {
            unlink_stream(memory, state, index);
        }
        memory.commit();
    }
    free_stream(memory, state, index);
    memory.commit();
}

/// Removes a context with its streams and memory. The caller has computed the state up to `now_ns`.
/// The function makes several transactions. If the process dies between two transactions, the next
/// process calls the function again.
pub fn drop_context<M: Memory>(memory: &mut M, state: &State, index: usize, now_ns: u64) {
    bring_accounts_to(memory, state, now_ns);
    let context = &state.contexts[index];
    let gpu_index = memory.get(&context.gpu) as usize;
    let gpu = &state.gpus[gpu_index];
    // The context leaves the GPU first, so that the engine runs none of the context's work. If the
    // GPU is switching to the context, the switch continues, but to no context.
    if memory.get(&gpu.ran_last) == stored(index) {
        memory.put(&gpu.ran_last, 0);
    }
    if memory.get(&gpu.current) == stored(index) {
        memory.put(&gpu.current, 0);
        if memory.get(&gpu.phase) == phase::RUNNING {
            memory.put(&gpu.phase, phase::IDLE);
        }
    }
    // The GPU's other work goes on faster without the context's.
    memory.lower(&gpu.next_event_ns, now_ns);
    memory.lower(&state.header.next_event_ns, now_ns);
    memory.commit();
    let used = memory.get(&state.header.streams.used) as usize;
    for stream in 0..used {
        if memory.get(&state.streams[stream].context) == stored(index) {
            drop_stream(memory, state, stream, now_ns);
        }
    }
    let bytes = memory.get(&context.memory_bytes);
    take_memory_back(memory, state, index, bytes);
    if let Some(process) = index_of(memory.get(&context.process)) {
        let contexts = &state.processes[process].gpus[gpu_index].contexts;
        let count = memory.get(contexts);
        memory.put(contexts, count.saturating_sub(1));
    }
    retire_generation(memory, &context.generation);
    memory.put(&context.process, 0);
    let list = &state.header.contexts.first;
    let first = memory.get(list);
    memory.put(&context.next_free, first);
    memory.put(list, stored(index));
    memory.commit();
    if memory.get(&state.header.cross_waits) > 0 {
        memory.lower(&state.header.next_event_ns, now_ns);
        poke_others(memory, state, None, now_ns);
        memory.commit();
    }
}

/// Charges memory to a live context. The change is part of the caller's transaction. The error is
/// the free amount.
pub fn take_memory<M: Memory>(
    memory: &mut M,
    state: &State,
    config: &Config,
    context: usize,
    bytes: u64,
) -> Result<(), u64> {
    let context = &state.contexts[context];
    let gpu = memory.get(&context.gpu) as usize;
    let process = index_of(memory.get(&context.process));
    take_process_memory(memory, state, config, (process, gpu), bytes)?;
    memory.add(&context.memory_bytes, bytes);
    Ok(())
}

/// Charges memory of a GPU to a process, independently of its contexts. The change is part of the
/// caller's transaction. The error is the free amount.
pub fn take_process_memory<M: Memory>(
    memory: &mut M,
    state: &State,
    config: &Config,
    (process, gpu): (Option<usize>, usize),
    bytes: u64,
) -> Result<(), u64> {
    let used = &state.gpus[gpu].memory_used_bytes;
    let free_bytes = config.memory_bytes.saturating_sub(memory.get(used));
    if bytes > free_bytes {
        return Err(free_bytes);
    }
    managed::make_room(memory, state, config, gpu, bytes, None);
    memory.add(used, bytes);
    let peak = &state.gpus[gpu].memory_peak_bytes;
    let now_used = memory.get(used);
    if memory.get(peak) < now_used {
        memory.put(peak, now_used);
    }
    if let Some(process) = process {
        let account = &state.processes[process].gpus[gpu];
        memory.add(&account.memory_bytes, bytes);
        let held = memory.get(&account.memory_bytes);
        if memory.get(&account.memory_peak_bytes) < held {
            memory.put(&account.memory_peak_bytes, held);
        }
    }
    Ok(())
}

/// Ends the charge of a context for memory, at most for the amount that the context holds. The
/// change is part of the caller's transaction.
pub fn take_memory_back<M: Memory>(memory: &mut M, state: &State, context: usize, bytes: u64) {
    let context = &state.contexts[context];
    let gpu = memory.get(&context.gpu) as usize;
    let held = memory.get(&context.memory_bytes);
    let bytes = bytes.min(held);
    memory.put(&context.memory_bytes, held - bytes);
    take_process_memory_back(memory, state, (index_of(memory.get(&context.process)), gpu), bytes);
}

/// Ends the charge of a process for memory of a GPU, at most for the amount that the process holds.
/// The change is part of the caller's transaction.
pub fn take_process_memory_back<M: Memory>(
    memory: &mut M,
    state: &State,
    (process, gpu): (Option<usize>, usize),
    bytes: u64,
) {
    let process = process.map(|process| &state.processes[process]);
    // The memory of a checkpointed process is not on the GPU.
    let is_away =
        process.is_some_and(|process| memory.get(&process.checkpoint) == checkpoint_state::CHECKPOINTED);
    let account = process.map(|process| &process.gpus[gpu]);
    let on_gpu = (!is_away).then_some(&state.gpus[gpu].memory_used_bytes);
    let of_process =
        account.map(|account| if is_away { &account.suspended_bytes } else { &account.memory_bytes });
    let bytes = of_process.map_or(bytes, |held| bytes.min(memory.get(held)));
    for word in [on_gpu, of_process].into_iter().flatten() {
        let held = memory.get(word);
        memory.put(word, held.saturating_sub(bytes));
    }
}
