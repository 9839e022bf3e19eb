//! Encodes events: calls become words of a ring, and these words become records of the trace.

use std::collections::BTreeMap;
use std::ptr;

use deepres_abi::driver::ApiId;
use deepres_abi::recording::{
    CHUNK_MAGIC, ChunkHead, MAX_CHUNK_BYTES, MAX_NAME_BYTES, MAX_RECORD_BYTES, Record, Shape, checksum,
};
use zerocopy::IntoBytes as _;

use super::ring::Event;
use crate::driver::calls::Stream;
use crate::meter::estimates;

/// The most time, ns, by which a call can be earlier than the first call of its chunk. The
/// recording thread reads one ring after the other, so calls of a chunk are not in order.
const BEFORE_NS: u64 = 1_000_000_000;

/// The kind of the event of a launch.
const LAUNCH: u64 = 1;
/// The kind of the event of a copy.
const COPY: u64 = 2;
/// The kind of the event of an allocation.
const MEMORY: u64 = 3;
/// The kind of the event of a wait.
const WAIT: u64 = 4;
/// The kind of the event of a measured time.
const TOOK: u64 = 5;
/// The kind of the event of a function's name.
const NAME: u64 = 6;
/// The kind of the event of the blocks that run at once.
const RESIDENT: u64 = 7;
/// The kind of the event of a stream that waits for an event of the driver.
const FOLLOW: u64 = 8;

/// In an event's second word: the lowest bit of the API's number. The bits below are the kind.
const API_SHIFT: u32 = 8;
/// In a launch's second word: the bit that says whether a stream capture got the launch.
const CAPTURED_SHIFT: u32 = 24;
/// In a launch's second word: the lowest bit of the number of bytes of shared memory.
const SHARED_SHIFT: u32 = 32;
/// The bits of an event's second word that contain the kind.
const KIND_MASK: u64 = (1 << API_SHIFT) - 1;
/// The bits that contain the API's number, after a shift by [`API_SHIFT`].
const API_MASK: u64 = u16::MAX as u64;

const fn head(kind: u64, api: ApiId) -> u64 {
    kind | (api as u64) << API_SHIFT
}

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << u32::BITS
}

/// Returns the event of a launch.
#[expect(clippy::too_many_arguments, reason = "they are a launch's")]
pub fn launch(
    at_ns: u64,
    api: ApiId,
    stream: Stream,
    function: u64,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    is_captured: u64,
) -> Event {
    let head = head(LAUNCH, api) | is_captured << CAPTURED_SHIFT | u64::from(shared_bytes) << SHARED_SHIFT;
    let stream = stream.0 as u64;
    [at_ns, head, function, stream, pair(grid[0], grid[1]), pair(grid[2], block[0]), pair(block[1], block[2])]
}

/// Returns the event of a copy.
pub fn copy(at_ns: u64, api: ApiId, stream: Stream, bytes: u64) -> Event {
    [at_ns, head(COPY, api), bytes, stream.0 as u64, 0, 0, 0]
}

/// Returns the event of an allocation.
pub fn memory(at_ns: u64, api: ApiId, bytes: u64) -> Event {
    [at_ns, head(MEMORY, api), bytes, 0, 0, 0, 0]
}

/// Returns the event of a wait.
pub fn wait(at_ns: u64, api: ApiId, lasted_ns: u64) -> Event {
    [at_ns, head(WAIT, api), lasted_ns, 0, 0, 0, 0]
}

/// Returns the event of a measured time.
pub fn took(key: u64, took_ns: u64) -> Event {
    [0, TOOK, key, took_ns, 0, 0, 0]
}

/// Returns the event of a function's name. [`free`] frees the name.
pub fn name(function: u64, name: Box<[u8]>) -> Event {
    let length = name.len() as u64;
    [0, NAME, function, Box::into_raw(name).cast::<u8>() as u64, length, 0, 0]
}

/// Frees the name of the event of a function's name, once no output needs the event any more. The
/// recording thread calls this once for each event.
pub fn free(event: &Event) {
    let [_, head, _, address, length, ..] = *event;
    if head == NAME {
        let name = ptr::slice_from_raw_parts_mut(address as *mut u8, length as usize);
        // SAFETY: `name` took the address and length from a box, and the caller frees it only once.
        drop(unsafe { Box::from_raw(name) });
    }
}

/// Returns the event of the number of a function's blocks that run at once.
pub fn resident(function: u64, block: [u32; 3], shared_bytes: u32, blocks: u32) -> Event {
    [0, RESIDENT, function, pair(block[0], block[1]), pair(block[2], shared_bytes), u64::from(blocks), 0]
}

/// Returns the event of a stream that waits for an event of the driver.
pub fn follow(at_ns: u64, stream: Stream) -> Event {
    [at_ns, FOLLOW, stream.0 as u64, 0, 0, 0, 0]
}

/// Returns the halves of a word of [`pair`].
const fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> u32::BITS) as u32]
}

/// Makes records of events, and chunks of records.
pub struct Encoder {
    pid: u32,
    began_ns: u64,
    /// The time from which the chunk counts the times of its calls, ns; `None` until the chunk has
    /// a call.
    base_ns: Option<u64>,
    records: Vec<u8>,
    shapes: BTreeMap<[u64; 5], u64>,
    /// The keys of all shapes, in their order.
    keys: Vec<u64>,
}

impl Encoder {
    /// Returns an encoder for the process `pid`, which begins to record at `began_ns`.
    pub fn new(pid: u32, began_ns: u64) -> Self {
        Self { pid, began_ns, base_ns: None, records: Vec::new(), shapes: BTreeMap::new(), keys: Vec::new() }
    }

    /// Returns whether the next records must go into the next chunk.
    pub fn is_full(&self) -> bool {
        // One event makes two records at most.
        self.records.len() > MAX_CHUNK_BYTES - 4 * MAX_RECORD_BYTES
    }

    /// Returns the chunk of the records so far, if there are any, and begins the next chunk.
    pub fn chunk(&mut self) -> Option<Vec<u8>> {
        if self.records.is_empty() {
            return None;
        }
        let records = std::mem::take(&mut self.records);
        let head = ChunkHead {
            magic: CHUNK_MAGIC,
            bytes: records.len() as u32,
            checksum: checksum(&records),
            pid: self.pid,
            began_ns: self.began_ns,
            base_ns: self.base_ns.take().unwrap_or(self.began_ns),
        };
        Some([head.as_bytes(), &records].concat())
    }

    /// Adds a record of the number of lost events, `count`, unless it is 0.
    pub fn lost(&mut self, count: u64) {
        if count > 0 {
            self.record(&Record::Lost(count));
        }
    }

    /// Adds the mean times of the launches so far, if `mean_ns` knows them by the launch's key, and
    /// a chunk of `most_bytes` has room.
    pub fn means(&mut self, mean_ns: impl Fn(u64) -> Option<u64>, most_bytes: usize) {
        let most_bytes = most_bytes.saturating_sub(size_of::<ChunkHead>() + MAX_RECORD_BYTES);
        for key in std::mem::take(&mut self.keys) {
            if let Some(took_ns) = mean_ns(key).filter(|_| self.records.len() < most_bytes) {
                self.record(&Record::Took(key, took_ns));
            }
        }
    }

    /// Adds the record of the recording's end, because the process ends in order.
    pub fn end(&mut self) {
        self.record(&Record::End);
    }

    /// Adds the records of an event of `thread`.
    pub fn event(&mut self, thread: u32, event: &Event) {
        let [call_ns, head, what, more, ..] = *event;
        let (kind, api) = (head & KIND_MASK, (head >> API_SHIFT & API_MASK) as u16);
        if kind == TOOK {
            return self.record(&Record::Took(what, more));
        }
        if kind == NAME {
            // SAFETY: `name` stored the address and length of bytes that `free` has not freed yet.
            let name = unsafe { std::slice::from_raw_parts(more as *const u8, event[4] as usize) };
            return self.record(&Record::Name(what, &name[..name.len().min(MAX_NAME_BYTES)]));
        }
        if kind == RESIDENT {
            let ([x, y], [z, shared_bytes]) = (halves(more), halves(event[4]));
            let (block, blocks) = ([x, y, z], event[5] as u32);
            return self.record(&Record::Resident { function: what, block, shared_bytes, blocks });
        }
        if call_ns < self.began_ns {
            // The call is of an earlier recording.
            return;
        }
        // A thread's call can be a little earlier than the call of another thread that came into
        // the chunk first.
        let base_ns = *self.base_ns.get_or_insert(call_ns.saturating_sub(BEFORE_NS));
        let at_ns = call_ns.saturating_sub(base_ns);
        match kind {
            LAUNCH => {
                let (shape, is_captured) = (self.shape(api, event), head >> CAPTURED_SHIFT & 1 != 0);
                self.record(&Record::Launch { at_ns, thread, shape, stream: more, is_captured });
            }
            COPY => self.record(&Record::Copy { at_ns, thread, api, stream: more, bytes: what }),
            MEMORY => self.record(&Record::Memory { at_ns, thread, api, bytes: what }),
            WAIT => self.record(&Record::Wait { at_ns, thread, api, lasted_ns: what }),
            FOLLOW => self.record(&Record::Follow { at_ns, thread, stream: what }),
            _ => {}
        }
    }

    /// Returns the number of a launch's kernel and geometry. If kernel or geometry is new, adds a
    /// record of the shape.
    fn shape(&mut self, api: u16, launch: &Event) -> u64 {
        let [_, head, function, _, first, second, third] = *launch;
        let shared_bytes = head >> SHARED_SHIFT;
        let number = self.shapes.len() as u64;
        let identity = [function, first, second, third, shared_bytes << u16::BITS | u64::from(api)];
        if let Some(known) = self.shapes.get(&identity) {
            return *known;
        }
        self.shapes.insert(identity, number);
        let ([x, y], [z, block_x], [block_y, block_z]) = (halves(first), halves(second), halves(third));
        let (grid, block) = ([x, y, z], [block_x, block_y, block_z]);
        let key = estimates::launch_key(function, grid.map(u64::from), block.map(u64::from), shared_bytes);
        let shape = Shape { key, api, function, grid, block, shared_bytes: shared_bytes as u32 };
        self.keys.push(key);
        self.record(&Record::Shape(number, shape));
        number
    }

    fn record(&mut self, record: &Record<'_>) {
        record.encode(|part| self.records.extend_from_slice(part));
    }
}
