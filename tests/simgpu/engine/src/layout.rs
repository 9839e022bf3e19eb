//! What lies in the shared file, word by word.
//!
//! Everything that changes is a [`Word`]. All zeros is a valid, empty table, so a fresh sparse file needs
//! almost no initialising. Indices in words are stored plus one, 0 being "none". Generations are odd while
//! the slot is in use.

use crate::{Config, MAX_GPUS};
use std::sync::atomic::{AtomicU64, Ordering};

/// Says that the file is complete and ours; written last.
pub const MAGIC: u64 = u64::from_le_bytes(*b"simgpu01");
/// Changes with every change of this file.
pub const VERSION: u64 = 8;

/// Contexts of the whole host.
pub const MAX_CONTEXTS: usize = 1024;
/// Streams of the whole host.
pub const MAX_STREAMS: usize = 4096;
/// Events of the whole host.
pub const MAX_EVENTS: usize = 1 << 17;
/// Processes remembered, dead ones included.
pub const MAX_PROCESSES: usize = 1024;
/// How many kernels run at once (the limit of compute capability 9.0), and how many copies.
pub const MAX_CONCURRENT: usize = 128;
/// Places of a stream's ring: its queue and its history of completion times.
pub const RING: usize = Config::MAX_QUEUE_DEPTH as usize;
/// The longest configuration that fits the file.
pub const MAX_CONFIG_BYTES: usize = 1 << 16;
/// Words that one transaction may change. The largest is a step with [`MAX_CONCURRENT`] kernels and copies
/// running (two words each, and two of each copy's process).
pub const JOURNAL: usize = 1024;
/// Utilisation is kept for this many buckets …
pub const BUCKETS: usize = 17;
/// … of this length; all but the one being filled make a second.
pub const BUCKET_NS: u64 = 62_500_000;

const BITS: usize = u64::BITS as usize;

/// One word of shared state. Stores are releases and loads acquires, so that in whatever order a dead
/// writer's stores were made, everybody else sees them in that order; on x86-64 both are plain moves.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Word(AtomicU64);

impl Word {
    #[inline]
    pub fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Stores past the journal: only for words that no one reads yet, or single words that are a whole change
    /// by themselves.
    #[inline]
    pub fn store(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }

    /// For counters that many change without the lock.
    pub fn add(&self, value: u64) {
        self.0.fetch_add(value, Ordering::AcqRel);
    }

    /// See [`Word::add`].
    pub fn subtract(&self, value: u64) {
        self.0.fetch_sub(value, Ordering::AcqRel);
    }

    /// The low half as a futex.
    pub fn as_futex(&self) -> *const u32 {
        self.0.as_ptr().cast::<u32>().cast_const()
    }
}

/// The whole file.
#[repr(C)]
pub struct State {
    pub header: Header,
    pub journal: Journal,
    pub config: ConfigText,
    pub gpus: [Gpu; MAX_GPUS],
    pub processes: [Process; MAX_PROCESSES],
    pub contexts: [Context; MAX_CONTEXTS],
    pub streams: [Stream; MAX_STREAMS],
    pub events: [Event; MAX_EVENTS],
    pub rings: [[Item; RING]; MAX_STREAMS],
}

#[repr(C)]
pub struct Header {
    pub magic: Word,
    pub version: Word,
    pub size: Word,
    /// The boot that the times belong to.
    pub boot: [Word; 2],
    pub created_ns: Word,
    pub gpu_count: Word,
    /// The seed of the GPUs' UUIDs.
    pub uuid_seed: [Word; 2],
    pub lock: crate::lock::Lock,
    /// When the first event of any GPU is due. May be too early, never too late.
    pub next_event_ns: Word,
    /// Waits for other contexts' work that are in queues.
    pub cross_waits: Word,
    /// When the processes were last looked at, dead or alive.
    pub liveness_ns: Word,
    /// Counts attaching processes.
    pub attached: Word,
    pub contexts: FreeList,
    pub streams: FreeList,
    pub events: FreeList,
    /// Changes when the host lets something go on that no prediction could foresee; threads wait on it.
    pub unforeseen: Word,
    /// How many threads wait on it; threads that were killed there are never subtracted.
    pub unforeseen_waiters: Word,
}

/// Slots that were used before, and how many ever were.
#[repr(C)]
pub struct FreeList {
    pub first: Word,
    pub used: Word,
}

#[repr(C)]
pub struct Journal {
    pub len: Word,
    pub entries: [JournalEntry; JOURNAL],
}

#[repr(C)]
pub struct JournalEntry {
    pub offset: Word,
    pub old: Word,
}

#[repr(C)]
pub struct ConfigText {
    pub len: Word,
    pub words: [Word; MAX_CONFIG_BYTES / size_of::<u64>()],
}

/// What a GPU is doing; values of [`Gpu::phase`].
pub mod phase {
    /// No kernels.
    pub const IDLE: u64 = 0;
    /// Running kernels of the current context.
    pub const RUNNING: u64 = 1;
    /// Going over to the current context, until `phase_end_ns`.
    pub const SWITCHING: u64 = 2;
}

#[repr(C)]
pub struct Gpu {
    /// Up to when everything below has been worked out.
    pub now_ns: Word,
    pub phase: Word,
    pub phase_end_ns: Word,
    /// The context that has the SMs, or is getting them.
    pub current: Word,
    /// When its slice ends, if others want the SMs then.
    pub slice_end_ns: Word,
    /// When something changes next; `u64::MAX`: never by itself.
    pub next_event_ns: Word,
    pub busy_ns: Word,
    pub copy_busy_ns: Word,
    pub switch_ns: Word,
    pub idle_ns: Word,
    /// Of that, what lay between the work of one context and that of another.
    pub handover_idle_ns: Word,
    /// What of it is not known yet to lie there: since the context that ran last.
    pub recent_idle_ns: Word,
    /// That context.
    pub ran_last: Word,
    pub switches: Word,
    pub memory_used_bytes: Word,
    /// The most of it ever taken at once.
    pub memory_peak_bytes: Word,
    /// Managed memory that is here now, beside what is taken: it goes to the host when room is needed.
    pub managed_bytes: Word,
    /// Contexts that have work in their streams.
    pub occupied: [Word; MAX_CONTEXTS / BITS],
    pub bucket_number: [Word; BUCKETS],
    pub bucket_busy_ns: [Word; BUCKETS],
}

/// Values of [`Process::state`].
pub mod process_state {
    // 0, which a fresh file holds, is "never used".
    pub const ALIVE: u64 = 1;
    /// Its things are being taken away; whoever finds this goes on with it.
    pub const DYING: u64 = 2;
    pub const DEAD: u64 = 3;
}

/// Values of [`Process::checkpoint`].
pub mod checkpoint_state {
    pub const RUNNING: u64 = 0;
    pub const LOCKED: u64 = 1;
    pub const CHECKPOINTED: u64 = 2;
}

#[repr(C)]
pub struct Process {
    pub state: Word,
    /// Whether it is locked, or off the GPUs.
    pub checkpoint: Word,
    /// Calls under way that a lock has to wait for.
    pub calls: Word,
    /// Pieces of memory that a checkpoint leaves out.
    pub unmovable: Word,
    /// In its own pid namespace …
    pub pid: Word,
    /// … which is this.
    pub pid_namespace: Word,
    pub start_time: Word,
    pub comm: [Word; 2],
    /// Its place in the order of attaching, from 1.
    pub order: Word,
    pub gpus: [ProcessGpu; MAX_GPUS],
}

#[repr(C)]
pub struct ProcessGpu {
    pub busy_ns: Word,
    pub kernel_busy_ns: Word,
    pub copy_busy_ns: Word,
    pub kernels: Word,
    pub copies: Word,
    pub memory_bytes: Word,
    pub memory_peak_bytes: Word,
    /// What it held when it was checkpointed.
    pub suspended_bytes: Word,
    /// Its managed memory that is here now. Whoever needs room lowers it; the process then finds that some of its pages have gone.
    pub managed_bytes: Word,
    /// When it last brought some here.
    pub managed_at_ns: Word,
    pub contexts: Word,
}

#[repr(C)]
pub struct Context {
    pub generation: Word,
    pub next_free: Word,
    pub process: Word,
    pub gpu: Word,
    /// The streams that have work, in the order in which they got it.
    pub first_stream: Word,
    pub last_stream: Word,
    pub memory_bytes: Word,
}

#[repr(C)]
pub struct Stream {
    pub generation: Word,
    pub next_free: Word,
    pub context: Word,
    /// Not 0: destroyed, but not empty.
    pub closing: Word,
    /// Sequence of the last item submitted.
    pub submitted: Word,
    /// Sequence of the last item completed.
    pub completed: Word,
    /// The head item whose remaining work `head_ticks` is; another sequence: the head has not run yet.
    pub head_sequence: Word,
    pub head_ticks: Word,
    pub next: Word,
    pub previous: Word,
    /// Its kernels get their SMs before those of streams of the same context with a lower one.
    pub urgency: Word,
    /// The head item, if it is a kernel that spins for its peers and has had the SMs; another sequence: it has not.
    pub arrived_sequence: Word,
    /// The head item, if it is such a kernel and its peers have all come.
    pub met_sequence: Word,
    /// Keeps neighbours' lines apart: owners of different streams write here all the time.
    pub padding: [Word; 3],
}

#[repr(C)]
pub struct Event {
    pub generation: Word,
    pub next_free: Word,
    pub process: Word,
    /// Number of the last record submitted.
    pub recorded: Word,
    /// Number of the last record completed; its time is written before it.
    pub completed: Word,
    pub at_ns: Word,
    /// Where the last record is: stream (see [`pack`]) and sequence.
    pub stream: Word,
    pub sequence: Word,
}

/// Values of the low byte of [`Item::kind`].
pub mod item_kind {
    pub const KERNEL: u64 = 0;
    pub const COPY: u64 = 1;
    pub const HOST_WAIT: u64 = 2;
    pub const MARKER: u64 = 3;
    /// Waits for `a` = packed stream, `b` = sequence.
    pub const WAIT: u64 = 4;
    pub const MASK: u64 = 0xff;
    /// A [`WAIT`] for another context's stream, which [`super::Header::cross_waits`] counts.
    pub const CROSS: u64 = 0x100;
}

/// One item of a ring. Immutable from submission to completion, but for `released_ns` and `completed_ns`.
#[repr(C)]
pub struct Item {
    pub kind: Word,
    /// Work at full speed, in [`TICKS_PER_NS`].
    pub ticks: Word,
    pub eligible_ns: Word,
    /// Kernel: `sm_ppm`. Copy: kind. Marker: event plus one packed, or 0. Wait: stream packed.
    pub a: Word,
    /// Kernel: how many it stands for. Marker: number of the event's record. Wait: sequence.
    pub b: Word,
    /// HostWait: 0 until released.
    pub released_ns: Word,
    pub completed_ns: Word,
    /// Kernel that spins for its peers: what they have in common (see [`pack_meeting`]); else 0.
    pub meeting: Word,
}

/// Work is counted finer than time, so that sharing SMs does not lose a nanosecond at every event.
pub const TICKS_PER_NS: u64 = 1024;

/// "Never".
pub const NEVER: u64 = u64::MAX;

/// Index and generation in one word.
#[inline]
pub fn pack(index: u32, generation: u32) -> u64 {
    u64::from(generation) << u32::BITS | u64::from(index)
}

/// What kernels that spin for each other have in common, and how many they are, in one word that is not 0.
#[inline]
pub fn pack_meeting(name: u64, peers: u32) -> u64 {
    name << MEETING_PEERS_BITS | u64::from(peers.clamp(1, MAX_PEERS))
}

/// How many kernels a [`Item::meeting`] is of.
#[inline]
pub fn meeting_peers(meeting: u64) -> usize {
    (meeting & ((1 << MEETING_PEERS_BITS) - 1)) as usize
}

const MEETING_PEERS_BITS: u32 = 8;
/// As many kernels may spin for each other.
pub const MAX_PEERS: u32 = 128;

/// The inverse of [`pack`].
#[inline]
pub fn unpack(word: u64) -> (u32, u32) {
    (word as u32, (word >> u32::BITS) as u32)
}

impl State {
    /// The place of a stream's item.
    #[inline]
    pub fn item(&self, stream: usize, sequence: u64) -> &Item {
        &self.rings[stream][sequence as usize % RING]
    }

    /// The stream, if it lives.
    #[inline]
    pub fn live_stream(&self, index: u32, generation: u32) -> Option<&Stream> {
        let stream = self.streams.get(index as usize)?;
        (is_live(generation) && stream.generation.load() == u64::from(generation)).then_some(stream)
    }

    /// The context, if it lives.
    #[inline]
    pub fn live_context(&self, index: u32, generation: u32) -> Option<&Context> {
        let context = self.contexts.get(index as usize)?;
        (is_live(generation) && context.generation.load() == u64::from(generation)).then_some(context)
    }

    /// The event, if it lives.
    #[inline]
    pub fn live_event(&self, index: u32, generation: u32) -> Option<&Event> {
        let event = self.events.get(index as usize)?;
        (is_live(generation) && event.generation.load() == u64::from(generation)).then_some(event)
    }
}

/// Generations of slots in use are odd.
#[inline]
pub fn is_live(generation: u32) -> bool {
    generation % 2 == 1
}

const _: () = assert!(size_of::<Item>() == 64 && size_of::<Event>() == 64 && size_of::<Stream>() == 128);
const _: () = assert!(align_of::<State>() <= 64 && size_of::<Process>() / size_of::<Word>() < JOURNAL);
