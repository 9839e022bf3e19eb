//! Layout of the shared file, word by word.
//!
//! All changing data is in [`Word`]s. A table of zeros is valid and empty, so a fresh sparse file
//! needs almost no initialising. Words store indices plus one; 0 means "none". A slot has an odd
//! generation while it is in use.

use crate::{Config, MAX_GPUS};
use std::sync::atomic::{AtomicU64, Ordering};

/// Marks a complete file of simgpu. The process that creates the file writes this word last.
pub const MAGIC: u64 = u64::from_le_bytes(*b"simgpu01");
/// Version of the layout. Every change of the layout in this file increases the version.
pub const VERSION: u64 = 10;

/// The most contexts of the whole host.
pub const MAX_CONTEXTS: usize = 1024;
/// The most streams of the whole host.
pub const MAX_STREAMS: usize = 4096;
/// The most events of the whole host.
pub const MAX_EVENTS: usize = 1 << 17;
/// The most processes that the state remembers, dead processes included.
pub const MAX_PROCESSES: usize = 1024;
/// The most kernels that run at once (the limit of compute capability 9.0). Also the most copies
/// that run at once.
pub const MAX_CONCURRENT: usize = 128;
/// The number of places of a stream's ring, which holds the stream's queue and the history of
/// completion times.
pub const RING: usize = Config::MAX_QUEUE_DEPTH as usize;
/// Size limit of the configuration's text.
pub const MAX_CONFIG_BYTES: usize = 1 << 16;
/// The most rules of the configuration's table of interference: each rule is a bit of a word.
pub const MAX_INTERFERENCE: usize = u64::BITS as usize;
/// The most words that one transaction may change. The largest transaction is a step with
/// [`MAX_CONCURRENT`] kernels and copies running. The step changes two words for each kernel and
/// copy, and up to five more words for each kernel's or copy's process.
pub const JOURNAL: usize = 2048;
/// Number of buckets that hold the busy time for the utilisation.
pub const BUCKETS: usize = 17;
/// Length of a bucket. All buckets except the present one cover a second together.
pub const BUCKET_NS: u64 = 62_500_000;

const BITS: usize = u64::BITS as usize;

/// One word of shared state. Stores are releases and loads acquires, so all processes see a dead
/// writer's stores in the order in which the writer made them. On x86-64 both are plain moves.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Word(AtomicU64);

impl Word {
    #[inline]
    pub fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Stores a value without the journal. Use this function only for words that no process reads
    /// yet, and for changes of a single word.
    #[inline]
    pub fn store(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }

    /// Adds to a counter that threads change without the lock.
    pub fn add(&self, value: u64) {
        self.0.fetch_add(value, Ordering::AcqRel);
    }

    /// Subtracts from a counter that threads change without the lock.
    pub fn subtract(&self, value: u64) {
        self.0.fetch_sub(value, Ordering::AcqRel);
    }

    /// Returns the low half as a futex.
    pub fn as_futex(&self) -> *const u32 {
        self.0.as_ptr().cast::<u32>().cast_const()
    }
}

/// The contents of the state file.
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
    /// Id of the boot of the machine. The times in the file count from this boot.
    pub boot: [Word; 2],
    pub created_ns: Word,
    pub gpu_count: Word,
    /// The seed of the GPUs' UUIDs.
    pub uuid_seed: [Word; 2],
    pub lock: crate::lock::Lock,
    /// Time of the first event of any GPU. The value can be too early, but never too late.
    pub next_event_ns: Word,
    /// Number of queued waits for other contexts' work.
    pub cross_waits: Word,
    /// Time of the last census of living processes.
    pub liveness_ns: Word,
    /// Number of processes that ever attached.
    pub attached: Word,
    pub contexts: FreeList,
    pub streams: FreeList,
    pub events: FreeList,
    /// Futex that changes when the host lets an item go on at a time that no process could predict.
    pub unforeseen: Word,
    /// Number of threads that wait on `unforeseen`. If a waiting thread is killed, the number still
    /// includes the thread.
    pub unforeseen_waiters: Word,
    /// Number of rules of interference.
    pub interference_rules: Word,
    /// Factor of each rule of interference, parts per million.
    pub interference_ppm: [Word; MAX_INTERFERENCE],
}

/// Free slots of a table: the first free slot that was used before, and the number of slots ever
/// used.
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

/// Activities of a GPU: values of [`Gpu::phase`].
pub mod phase {
    /// No kernels run.
    pub const IDLE: u64 = 0;
    /// Kernels of the current context run.
    pub const RUNNING: u64 = 1;
    /// The GPU switches to the current context until `phase_end_ns`.
    pub const SWITCHING: u64 = 2;
}

#[repr(C)]
pub struct Gpu {
    /// Time up to which the fields below are computed.
    pub now_ns: Word,
    pub phase: Word,
    pub phase_end_ns: Word,
    /// The context that has the SMs, or the context to which the GPU switches. If clients of an MPS
    /// server have the SMs: the server's context.
    pub current: Word,
    /// End of the current context's slice, if other contexts want the SMs then.
    pub slice_end_ns: Word,
    /// The context whose turn it is after the turn of a context that did not wait, and the rest of
    /// its slice. 0: the current context has its turn in the order of turns.
    pub interrupted: Word,
    pub interrupted_left_ns: Word,
    /// Contexts that have had the SMs since they got kernels to run. The engine keeps these bits
    /// only if contexts do not wait for the end of a slice (`newcomers_wait`).
    pub had_turn: [Word; MAX_CONTEXTS / BITS],
    /// Time of the GPU's next event. `u64::MAX`: nothing changes by itself.
    pub next_event_ns: Word,
    pub busy_ns: Word,
    /// Time of kernels, each weighted by its part of the SMs, ps.
    pub sm_ps: Word,
    pub copy_busy_ns: Word,
    pub switch_ns: Word,
    pub idle_ns: Word,
    /// The part of `idle_ns` between the work of one context and the work of another.
    pub handover_idle_ns: Word,
    /// Idle time since the last context ran. If another context runs next, the engine adds the time
    /// to `handover_idle_ns`.
    pub recent_idle_ns: Word,
    /// The context whose kernels ran last on the GPU.
    pub ran_last: Word,
    pub switches: Word,
    pub memory_used_bytes: Word,
    /// The highest value of `memory_used_bytes` so far.
    pub memory_peak_bytes: Word,
    /// Managed memory now on the GPU, not part of `memory_used_bytes`. When other memory needs the
    /// room, the managed memory moves to the host.
    pub managed_bytes: Word,
    /// Contexts that have work in their streams.
    pub occupied: [Word; MAX_CONTEXTS / BITS],
    pub bucket_number: [Word; BUCKETS],
    pub bucket_busy_ns: [Word; BUCKETS],
}

/// Values of [`Process::state`].
pub mod process_state {
    // A fresh file holds 0, which means "never used".
    pub const ALIVE: u64 = 1;
    /// Another process is removing the dead process's objects. If that process dies too, the next
    /// process that finds this value continues.
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
    /// A value of [`checkpoint_state`].
    pub checkpoint: Word,
    /// Calls of the driver in progress. A checkpoint's lock waits for these calls.
    pub calls: Word,
    /// Pieces of memory that a checkpoint leaves out.
    pub unmovable: Word,
    /// Process id in the process's own pid namespace.
    pub pid: Word,
    /// The process's pid namespace.
    pub pid_namespace: Word,
    pub start_time: Word,
    pub comm: [Word; 2],
    /// Position in the order of attaching, from 1.
    pub order: Word,
    /// The MPS server of which the process is a client.
    pub server: Word,
    /// Not 0 if the process's MPS server has ended.
    pub has_lost_server: Word,
    /// For an MPS client: the part of the SMs that its kernels together can use, parts per million.
    /// For other processes: 0.
    pub sm_limit_ppm: Word,
    /// Rules of interference whose `client` is this process, as bits.
    pub interference_client: Word,
    /// Rules of interference whose `beside` is this process, as bits.
    pub interference_beside: Word,
    pub gpus: [ProcessGpu; MAX_GPUS],
}

#[repr(C)]
pub struct ProcessGpu {
    pub busy_ns: Word,
    pub kernel_busy_ns: Word,
    pub sm_ps: Word,
    pub copy_busy_ns: Word,
    pub kernels: Word,
    pub copies: Word,
    pub memory_bytes: Word,
    pub memory_peak_bytes: Word,
    /// Memory that the process held when it was checkpointed.
    pub suspended_bytes: Word,
    /// The process's managed memory now on the GPU. Another process that needs room lowers the
    /// value. The owner then finds that some of its pages have left the GPU.
    pub managed_bytes: Word,
    /// Time at which the process last brought managed memory to the GPU.
    pub managed_at_ns: Word,
    pub contexts: Word,
    /// For an MPS server: the context in whose turns its clients run.
    pub seat: Word,
}

#[repr(C)]
pub struct Context {
    pub generation: Word,
    pub next_free: Word,
    pub process: Word,
    pub gpu: Word,
    /// For a context of an MPS client: the server's context. For other contexts: 0.
    pub seat: Word,
    /// First of the context's streams with work, in the order in which they got work.
    pub first_stream: Word,
    pub last_stream: Word,
    pub memory_bytes: Word,
}

#[repr(C)]
pub struct Stream {
    pub generation: Word,
    pub next_free: Word,
    pub context: Word,
    /// Not 0 if the client has destroyed the stream but the stream is not empty yet.
    pub closing: Word,
    /// Sequence of the last item submitted.
    pub submitted: Word,
    /// Sequence of the last item completed.
    pub completed: Word,
    /// Sequence of the head item if the item has begun to run; `head_ticks` is then the item's
    /// remaining work. With any other value, the head item has not run yet.
    pub head_sequence: Word,
    pub head_ticks: Word,
    pub next: Word,
    pub previous: Word,
    /// Kernels of this stream get SMs before kernels of the context's streams with a lower urgency.
    pub urgency: Word,
    /// Sequence of the head item if it is a kernel that spins for peers and has had the SMs. With
    /// any other value, the head is another kind of item, or has not had the SMs.
    pub arrived_sequence: Word,
    /// Sequence of the head item if it is a kernel that spins for peers, and all its peers have
    /// begun.
    pub met_sequence: Word,
    /// Keeps streams on separate cache lines, because different processes write their streams all
    /// the time.
    pub padding: [Word; 3],
}

#[repr(C)]
pub struct Event {
    pub generation: Word,
    pub next_free: Word,
    pub process: Word,
    /// Number of the last record submitted.
    pub recorded: Word,
    /// Number of the last record completed. The engine writes `at_ns` before this word.
    pub completed: Word,
    pub at_ns: Word,
    /// Place of the last record: the stream (see [`pack`]) and the item's sequence.
    pub stream: Word,
    pub sequence: Word,
}

/// Values of the low byte of [`Item::kind`].
pub mod item_kind {
    pub const KERNEL: u64 = 0;
    pub const COPY: u64 = 1;
    pub const HOST_WAIT: u64 = 2;
    pub const MARKER: u64 = 3;
    /// Waits for item `b` (a sequence) of stream `a` (packed).
    pub const WAIT: u64 = 4;
    pub const MASK: u64 = 0xff;
    /// Flag of a [`WAIT`] for another context's stream. [`super::Header::cross_waits`] counts the
    /// waits with this flag.
    pub const CROSS: u64 = 0x100;
}

/// One item of a ring. Only `released_ns` and `completed_ns` change between submission and
/// completion.
#[repr(C)]
pub struct Item {
    pub kind: Word,
    /// Time of the item at full speed, in units of 1/[`TICKS_PER_NS`] ns.
    pub ticks: Word,
    pub eligible_ns: Word,
    /// The first argument of the item. For a kernel: `sm_ppm`. For a copy: its kind. For a marker:
    /// event index plus one and generation, packed, or 0. For a wait: the stream, packed.
    pub a: Word,
    /// The second argument of the item. For a kernel: the number of kernels that the item stands
    /// for. For a marker: the number of the event's record. For a wait: the sequence.
    pub b: Word,
    /// For a wait for the host: the time of the release, or 0.
    pub released_ns: Word,
    pub completed_ns: Word,
    /// For a kernel that spins for peers: the meeting, packed ([`pack_meeting`]). For other
    /// items: 0.
    pub meeting: Word,
}

/// Units of work per nanosecond. The engine counts work finer than time, so that sharing SMs does
/// not lose a nanosecond at every event.
pub const TICKS_PER_NS: u64 = 1024;

/// A time that never comes.
pub const NEVER: u64 = u64::MAX;

/// Packs index and generation into one word.
#[inline]
pub fn pack(index: u32, generation: u32) -> u64 {
    u64::from(generation) << u32::BITS | u64::from(index)
}

/// Packs the number that identifies a meeting, and the number of kernels that meet, into one word
/// that is not 0.
#[inline]
pub fn pack_meeting(name: u64, peers: u32) -> u64 {
    name << MEETING_PEERS_BITS | u64::from(peers.clamp(1, MAX_PEERS))
}

/// Returns how many kernels take part in a meeting ([`Item::meeting`]).
#[inline]
pub fn meeting_peers(meeting: u64) -> usize {
    (meeting & ((1 << MEETING_PEERS_BITS) - 1)) as usize
}

const MEETING_PEERS_BITS: u32 = 8;
/// The most kernels that can meet.
pub const MAX_PEERS: u32 = 128;

/// Undoes [`pack`].
#[inline]
pub fn unpack(word: u64) -> (u32, u32) {
    (word as u32, (word >> u32::BITS) as u32)
}

impl State {
    /// Returns the place of a stream's item.
    #[inline]
    pub fn item(&self, stream: usize, sequence: u64) -> &Item {
        &self.rings[stream][sequence as usize % RING]
    }

    /// Returns the stream, if it lives.
    #[inline]
    pub fn live_stream(&self, index: u32, generation: u32) -> Option<&Stream> {
        let stream = self.streams.get(index as usize)?;
        (is_live(generation) && stream.generation.load() == u64::from(generation)).then_some(stream)
    }

    /// Returns the context, if it lives.
    #[inline]
    pub fn live_context(&self, index: u32, generation: u32) -> Option<&Context> {
        let context = self.contexts.get(index as usize)?;
        (is_live(generation) && context.generation.load() == u64::from(generation)).then_some(context)
    }

    /// Returns the event, if it lives.
    #[inline]
    pub fn live_event(&self, index: u32, generation: u32) -> Option<&Event> {
        let event = self.events.get(index as usize)?;
        (is_live(generation) && event.generation.load() == u64::from(generation)).then_some(event)
    }
}

/// Returns whether a slot with this generation is in use.
#[inline]
pub fn is_live(generation: u32) -> bool {
    generation % 2 == 1
}

const _: () = assert!(size_of::<Item>() == 64 && size_of::<Event>() == 64 && size_of::<Stream>() == 128);
const _: () = assert!(align_of::<State>() <= 64 && size_of::<Process>() / size_of::<Word>() < JOURNAL);
