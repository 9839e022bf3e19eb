//! The file that `deepres run --record` writes: a trace of a job's calls to the driver.
//! docs/traces.md describes the file for people who read traces.
//!
//! A file is a [`Head`], followed by chunks. A process appends each chunk by one write, so chunks
//! of several processes do not mix. A crash or a full disk can cut the last chunk off. Such a file
//! is valid up to that chunk.
//!
//! A chunk is a [`ChunkHead`], followed by records. A record is a length in bytes and a [`Record`]
//! in bincode's format. So a reader can skip records of later minor versions.
//!
//! Only this module uses bincode. The module bounds the size of each record that it decodes.

use bincode::config::{Configuration, Limit, standard};
use bincode::error::DecodeError;
use bincode::{BorrowDecode, Decode, Encode};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The first bytes of the file of a recording.
pub const FILE_MAGIC: [u8; 8] = *b"deepres\x01";
/// The first bytes of a chunk.
pub const CHUNK_MAGIC: [u8; 4] = *b"dchk";
/// The major version. A reader cannot read files of another major version.
pub const MAJOR: u16 = 2;
/// The minor version. A change that adds a record or a field raises the minor version. So does a
/// change of the table of functions, because records contain numbers of the table.
pub const MINOR: u16 = 1;
/// The most bytes of records in a chunk.
pub const MAX_CHUNK_BYTES: usize = 1 << 20;
/// The most bytes of a record.
pub const MAX_RECORD_BYTES: usize = 1 << 10;
/// The most bytes of a function's name. The writer cuts a longer name.
pub const MAX_NAME_BYTES: usize = MAX_RECORD_BYTES / 2;

/// The encoding: small numbers take one byte, and a record has at most [`MAX_RECORD_BYTES`].
const CONFIG: Configuration<bincode::config::LittleEndian, bincode::config::Varint, Limit<MAX_RECORD_BYTES>> =
    standard().with_limit();

/// The beginning of a file.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Head {
    /// The mark of a recording, [`FILE_MAGIC`].
    pub magic: [u8; 8],
    /// The major version of the format, [`MAJOR`].
    pub major: u16,
    /// The minor version of the format, [`MINOR`].
    pub minor: u16,
    reserved: [u8; 4],
}

impl Head {
    /// The head of a file of this version.
    pub const CURRENT: Self = Self { magic: FILE_MAGIC, major: MAJOR, minor: MINOR, reserved: [0; 4] };
}

/// The beginning of a chunk.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ChunkHead {
    /// The mark of a chunk, [`CHUNK_MAGIC`].
    pub magic: [u8; 4],
    /// The number of bytes of the records that follow.
    pub bytes: u32,
    /// The checksum of the bytes of the records ([`checksum`]).
    pub checksum: u32,
    /// The process's id, in its own pid namespace.
    pub pid: u32,
    /// When the process began to record, ns of `CLOCK_MONOTONIC`. The time and `pid` together
    /// identify the process.
    pub began_ns: u64,
    /// The moment from which the times in the chunk's records count, ns of `CLOCK_MONOTONIC`.
    pub base_ns: u64,
}

const _: () = {
    assert!(size_of::<Head>() == 16);
    assert!(size_of::<ChunkHead>() == 32);
};

/// A kernel with its launch geometry, or a graph.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Shape {
    /// The key under which the interposer keeps measured times of this shape.
    pub key: u64,
    /// The number of the driver function that launched the kernel or graph.
    pub api: u16,
    /// The handle of the kernel's function, or of the graph.
    pub function: u64,
    /// The number of blocks; zeros for a graph.
    pub grid: [u32; 3],
    /// The number of threads in a block; zeros for a graph.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared_bytes: u32,
}

/// A record of a trace or an excerpt. Times of calls are ns since the chunk's base. A later minor
/// version can add variants behind the last variant, and fields behind the last field of a variant.
#[derive(Debug, Clone, PartialEq, Eq, Encode, BorrowDecode)]
pub enum Record<'a> {
    /// The number of a shape, and the shape. The record comes before the first launch of the shape.
    /// Each process numbers its shapes from 0.
    Shape(u64, Shape),
    /// The handle of a function, and the function's name.
    Name(u64, &'a [u8]),
    /// The job launched a kernel or a graph.
    Launch {
        /// When the job made the call.
        at_ns: u64,
        /// The thread that made the call.
        thread: u32,
        /// The number of the launch's shape, which an earlier record describes.
        shape: u64,
        /// The driver's handle of the stream.
        stream: u64,
        /// Whether the job captured the launch into a graph. A captured launch did not run.
        is_captured: bool,
    },
    /// The job made a copy, a memory set or a prefetch.
    Copy {
        /// When the job made the call.
        at_ns: u64,
        /// The thread that made the call.
        thread: u32,
        /// The number of the driver function.
        api: u16,
        /// The driver's handle of the stream.
        stream: u64,
        /// The size, bytes.
        bytes: u64,
    },
    /// The job allocated device memory.
    Memory {
        /// When the job made the call.
        at_ns: u64,
        /// The thread that made the call.
        thread: u32,
        /// The number of the driver function.
        api: u16,
        /// The size, bytes.
        bytes: u64,
    },
    /// A thread of the job waited for the GPU.
    Wait {
        /// When the wait began.
        at_ns: u64,
        /// The thread that waited.
        thread: u32,
        /// The number of the driver function.
        api: u16,
        /// The length of the wait, ns.
        lasted_ns: u64,
    },
    /// A measured time: the key of the shape, and the GPU time of one launch, ns.
    Took(u64, u64),
    /// The number of records that are missing here, because the job made calls faster than the
    /// interposer could write them.
    Lost(u64),
    /// The process ended normally. The trace has all its records, except the records that
    /// [`Record::Lost`] counts.
    End,
    /// The number of blocks of a function that a GPU runs at once. The record comes before the
    /// first launch of the function with this block and this shared memory.
    Resident {
        /// The handle of the function.
        function: u64,
        /// The number of threads in a block.
        block: [u32; 3],
        /// Dynamic shared memory, bytes.
        shared_bytes: u32,
        /// The number of blocks that all SMs together run at once, as far as the process can use
        /// the SMs.
        blocks: u32,
    },
    /// The job made a stream wait for an event.
    Follow {
        /// When the job made the call.
        at_ns: u64,
        /// The thread that made the call.
        thread: u32,
        /// The driver's handle of the stream that waits.
        stream: u64,
    },
}

/// The error for records that a reader must refuse: a record is longer than its chunk, or is cut
/// off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken;

impl core::fmt::Display for Broken {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("a record is cut off, or longer than its chunk")
    }
}

impl core::error::Error for Broken {}

impl Record<'_> {
    /// Passes the record's bytes to `write`, in two parts: the length and the record.
    pub fn encode(&self, mut write: impl FnMut(&[u8])) {
        let (mut length, mut body) = ([0; size_of::<u64>() + 1], [0; MAX_RECORD_BYTES]);
        // The buffer has room for the longest record, which is a name of `MAX_NAME_BYTES`.
        let Ok(bytes) = bincode::encode_into_slice(self, &mut body, CONFIG) else { return };
        let Ok(digits) = bincode::encode_into_slice(bytes as u64, &mut length, CONFIG) else { return };
        write(&length[..digits]);
        write(&body[..bytes]);
    }
}

/// Takes the next record from the front of a chunk's records, and returns it. Returns `None` if the
/// record is of a later minor version.
///
/// # Errors
/// [`Broken`] if the record is longer than the rest of the chunk, or is cut off.
pub fn take<'a>(records: &mut &'a [u8]) -> Result<Option<Record<'a>>, Broken> {
    let (body, bytes): (&[u8], usize) =
        bincode::borrow_decode_from_slice(records, CONFIG).map_err(|_| Broken)?;
    *records = &records[bytes..];
    match bincode::borrow_decode_from_slice(body, CONFIG) {
        Ok((record, _)) => Ok(Some(record)),
        Err(DecodeError::UnexpectedVariant { .. }) => Ok(None),
        Err(_) => Err(Broken),
    }
}

/// Takes the next chunk from the front of `bytes`. Returns the chunk's head and its records, or
/// `None` if the bytes do not begin with a whole chunk.
pub fn take_chunk<'a>(bytes: &mut &'a [u8]) -> Option<(ChunkHead, &'a [u8])> {
    let whole: &'a [u8] = bytes;
    let (head, after) = ChunkHead::read_from_prefix(whole).ok()?;
    let length = head.bytes as usize;
    let records = after.get(..length).filter(|_| length <= MAX_CHUNK_BYTES)?;
    if head.magic != CHUNK_MAGIC || checksum(records) != head.checksum {
        return None;
    }
    *bytes = &after[length..];
    Some((head, records))
}

/// Returns a checksum (FNV-1a) of a chunk's records. A reader thus recognises a chunk that is not
/// whole.
pub fn checksum(bytes: &[u8]) -> u32 {
    const BASIS: u32 = 0x811c_9dc5;
    const PRIME: u32 = 0x0100_0193;
    bytes.iter().fold(BASIS, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_version_has_one_table_of_functions() {
        const OF_MINOR_1: u64 = 0x4a1f_9b58_ed8a_a980;
        assert_eq!(
            (MAJOR, MINOR, crate::driver::TABLE_HASH),
            (2, 1, OF_MINOR_1),
            "raise the version, and say so in docs/traces.md"
        );
    }

    #[test]
    fn records_survive_their_bytes() {
        let shape = Shape {
            key: u64::MAX,
            api: u16::MAX,
            function: 300,
            grid: [1, 127, 128],
            block: [u32::MAX, 250, 251],
            shared_bytes: 1 << 16,
        };
        let name = [b'k'; MAX_NAME_BYTES];
        for record in [
            Record::Shape(0, shape),
            Record::Name(7, &name),
            Record::Launch { at_ns: 1 << 40, thread: 3, shape: 4, stream: u64::MAX, is_captured: true },
            Record::Wait { at_ns: 1, thread: 2, api: 3, lasted_ns: 4 },
            Record::End,
            Record::Resident { function: 1 << 40, block: [32, 4, 1], shared_bytes: 0, blocks: 2112 },
            Record::Follow { at_ns: 5, thread: 1, stream: 251 },
        ] {
            let mut bytes = Vec::new();
            record.encode(|part| bytes.extend_from_slice(part));
            for end in 0..bytes.len() {
                assert_eq!(take(&mut &bytes[..end]), Err(Broken));
            }
            let mut rest = bytes.as_slice();
            assert_eq!((take(&mut rest), rest.len()), (Ok(Some(record)), 0));
        }
    }

    #[test]
    fn records_of_a_later_minor_version_are_skipped_and_so_are_numbers_at_the_end() {
        // A variant that this version does not know, and the end of a process with two more
        // numbers.
        let bytes = [3, 200, 1, 2, 3, 8, 1, 2];
        let mut rest = bytes.as_slice();
        assert_eq!(take(&mut rest), Ok(None));
        assert_eq!((take(&mut rest), rest.len()), (Ok(Some(Record::End)), 0));
    }

    #[test]
    fn a_byte_that_changed_is_noticed() {
        let mut bytes = [7; 100];
        let before = checksum(&bytes);
        bytes[50] ^= 1;
        assert_ne!(checksum(&bytes), before);
    }
}
