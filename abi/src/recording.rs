//! The file that `deepres run --record` writes: a job's calls to the driver, one by one.
//! docs/traces.md describes it for readers.
//!
//! A file is a [`Head`], followed by chunks. A process appends each chunk by one write, so that
//! chunks of several processes do not mix. A file that ends within a chunk (after a crash, or on a
//! full disk) is valid up to that chunk.
//!
//! A chunk is a [`ChunkHead`], followed by records. A record is its length in bytes and a [`Record`]
//! in bincode's format. So a reader can skip records of later minor versions.
//!
//! This module alone uses bincode, and decodes with a limit on the size.

use bincode::config::{Configuration, Limit, standard};
use bincode::error::DecodeError;
use bincode::{BorrowDecode, Decode, Encode};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The first bytes of a file.
pub const FILE_MAGIC: [u8; 8] = *b"deepres\x01";
/// The first bytes of a chunk.
pub const CHUNK_MAGIC: [u8; 4] = *b"dchk";
/// Major version. Files of another major version cannot be read.
pub const MAJOR: u16 = 2;
/// Minor version. It is raised when a record or a field is added, or when the table of functions
/// changes, because records contain its numbers.
pub const MINOR: u16 = 0;
/// The most bytes of records in a chunk.
pub const MAX_CHUNK_BYTES: usize = 1 << 20;
/// The most bytes of a record.
pub const MAX_RECORD_BYTES: usize = 1 << 10;
/// The most bytes of a function's name. The rest of a longer one is cut.
pub const MAX_NAME_BYTES: usize = MAX_RECORD_BYTES / 2;

/// Numbers take a byte if they are small, and the length of a record is bounded.
const CONFIG: Configuration<bincode::config::LittleEndian, bincode::config::Varint, Limit<MAX_RECORD_BYTES>> =
    standard().with_limit();

/// The beginning of a file.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Head {
    /// [`FILE_MAGIC`]
    pub magic: [u8; 8],
    /// [`MAJOR`]
    pub major: u16,
    /// [`MINOR`]
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
    /// [`CHUNK_MAGIC`]
    pub magic: [u8; 4],
    /// Bytes of records that follow.
    pub bytes: u32,
    /// Checksum of those bytes ([`checksum`]).
    pub checksum: u32,
    /// The process's pid, in its own namespace.
    pub pid: u32,
    /// When the process began to record, ns of `CLOCK_MONOTONIC`. Together with `pid` it identifies
    /// the process.
    pub began_ns: u64,
    /// The times of calls in the chunk are relative to this, ns of `CLOCK_MONOTONIC`.
    pub base_ns: u64,
}

const _: () = {
    assert!(size_of::<Head>() == 16);
    assert!(size_of::<ChunkHead>() == 32);
};

/// A kernel with its geometry.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Shape {
    /// Key of the shape's measured times.
    pub key: u64,
    /// Number of the driver function that launched the kernel.
    pub api: u16,
    /// Handle of the function; of the graph for the launch of a graph.
    pub function: u64,
    /// Blocks; zeros for a graph.
    pub grid: [u32; 3],
    /// Threads of a block; zeros for a graph.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared_bytes: u32,
}

/// A record. Times of calls are ns since the chunk's base. A minor version may add variants at the
/// end, and fields at the end of a variant.
#[derive(Debug, Clone, PartialEq, Eq, Encode, BorrowDecode)]
pub enum Record<'a> {
    /// A shape before its first launch, with its number: the shapes of a process count from 0.
    Shape(u64, Shape),
    /// A function and its name.
    Name(u64, &'a [u8]),
    /// A launch.
    Launch {
        /// When it was made.
        at_ns: u64,
        /// Thread of the call.
        thread: u32,
        /// Number of the shape.
        shape: u64,
        /// Handle of the stream.
        stream: u64,
        /// The launch was captured into a graph and did not run.
        is_captured: bool,
    },
    /// A copy, set or prefetch.
    Copy {
        /// When it was made.
        at_ns: u64,
        /// Thread of the call.
        thread: u32,
        /// Number of the driver function.
        api: u16,
        /// Handle of the stream.
        stream: u64,
        /// Bytes.
        bytes: u64,
    },
    /// An allocation of device memory.
    Memory {
        /// When it was made.
        at_ns: u64,
        /// Thread of the call.
        thread: u32,
        /// Number of the driver function.
        api: u16,
        /// Bytes.
        bytes: u64,
    },
    /// A thread's wait for the GPU.
    Wait {
        /// When it began.
        at_ns: u64,
        /// Thread of the call.
        thread: u32,
        /// Number of the driver function.
        api: u16,
        /// Its length, ns.
        lasted_ns: u64,
    },
    /// A measured time: the key of the shape, ns of GPU time.
    Took(u64, u64),
    /// The number of records that were lost here, because they came faster than they could be
    /// written.
    Lost(u64),
    /// The process ended normally. None of its records are missing, except those counted by
    /// [`Record::Lost`].
    End,
}

/// The reason for refusing records: one is longer than its chunk, or is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken;

impl core::fmt::Display for Broken {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("a record is cut off, or longer than its chunk")
    }
}

impl core::error::Error for Broken {}

impl Record<'_> {
    /// Passes the record's bytes to `write`, in two parts.
    pub fn encode(&self, mut write: impl FnMut(&[u8])) {
        let (mut length, mut body) = ([0; size_of::<u64>() + 1], [0; MAX_RECORD_BYTES]);
        // The room suffices for the longest record, which is a name of `MAX_NAME_BYTES`.
        let Ok(bytes) = bincode::encode_into_slice(self, &mut body, CONFIG) else { return };
        let Ok(digits) = bincode::encode_into_slice(bytes as u64, &mut length, CONFIG) else { return };
        write(&length[..digits]);
        write(&body[..bytes]);
    }
}

/// Takes the next record from the front of a chunk's records. Returns `None` for a record of a later
/// minor version.
///
/// # Errors
/// [`Broken`].
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

/// FNV-1a of a chunk's records. It reveals a chunk that was not written whole.
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
        const OF_MINOR_0: u64 = 0x4a1f_9b58_ed8a_a980;
        assert_eq!(
            (MAJOR, MINOR, crate::driver::TABLE_HASH),
            (2, 0, OF_MINOR_0),
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
        // A variant that this version lacks, and the end of a process with two further numbers.
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
