//! The file that `deepres run --record` writes: a job's calls to the driver, one by one.
//! docs/traces.md describes it for readers.
//!
//! A file is a [`Head`], followed by chunks. A process appends each chunk by one write, so that
//! chunks of several processes do not mix. A file that ends within a chunk (after a crash, or on a
//! full disk) is valid up to that chunk.
//!
//! A chunk is a [`ChunkHead`], followed by records. A record is a tag, the length of the rest in
//! bytes, and the rest. The rest consists of numbers as varints (LEB128), except texts. So a reader
//! can skip records of later minor versions.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The first bytes of a file.
pub const FILE_MAGIC: [u8; 8] = *b"deepres\x01";
/// The first bytes of a chunk.
pub const CHUNK_MAGIC: [u8; 4] = *b"dchk";
/// Major version. Files of another major version cannot be read.
pub const MAJOR: u16 = 1;
/// Minor version. It is raised when a record or a field is added, or when the table of functions
/// changes, because records contain its numbers.
pub const MINOR: u16 = 0;
/// The most bytes of records in a chunk.
pub const MAX_CHUNK_BYTES: usize = 1 << 20;
/// The most bytes of a record. Longer contents (a name) are cut.
pub const MAX_RECORD_BYTES: usize = 1 << 10;

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

/// The kind of a record. Each variant lists the record's numbers in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Tag {
    /// A kernel with its geometry, before its first launch: number, key, API, function, grid x y z,
    /// block x y z, bytes of shared memory.
    Shape = 1,
    /// A function's name: function, then the name.
    Name = 2,
    /// A launch: ns since the chunk's base, thread, number of the shape, stream. A last number is 1
    /// if the launch was captured into a graph and did not run.
    Launch = 3,
    /// A copy, set or prefetch: ns since the chunk's base, thread, API, stream, bytes.
    Copy = 4,
    /// An allocation of device memory: ns since the chunk's base, thread, API, bytes.
    Memory = 5,
    /// A thread's wait for the GPU: ns since the chunk's base at which it began, thread, API,
    /// duration in ns.
    Wait = 6,
    /// A measured time: key of the shape, ns of GPU time.
    Took = 7,
    /// The number of records that were lost here, because they came faster than they could be
    /// written.
    Lost = 8,
    /// The process ended normally. None of its records are missing, except those counted by
    /// [`Tag::Lost`].
    End = 9,
}

impl Tag {
    /// All tags.
    pub const ALL: [Self; 9] = [
        Self::Shape,
        Self::Name,
        Self::Launch,
        Self::Copy,
        Self::Memory,
        Self::Wait,
        Self::Took,
        Self::Lost,
        Self::End,
    ];

    /// Returns the tag with this number, if this version has it.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|tag| *tag as u8 == number)
    }
}

const BITS: u32 = 7;
const MORE: u8 = 1 << BITS;

/// Writes a number, seven bits a byte, the lowest first.
pub fn put(mut number: u64, mut byte: impl FnMut(u8)) {
    while number >= u64::from(MORE) {
        byte(number as u8 | MORE);
        number >>= BITS;
    }
    byte(number as u8);
}

/// Reads a number from the front of `bytes`. Returns `None` if there is no whole number.
pub fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for (place, byte) in bytes.iter().enumerate() {
        let shift = BITS.checked_mul(u32::try_from(place).ok()?)?;
        let low = u64::from(byte & !MORE);
        let part = low.checked_shl(shift).filter(|part| part >> shift == low)?;
        number |= part;
        if byte & MORE == 0 {
            *bytes = &bytes[place + 1..];
            return Some(number);
        }
    }
    None
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
            (MINOR, crate::driver::TABLE_HASH),
            (0, OF_MINOR_0),
            "raise the version, and say so in docs/traces.md"
        );
    }

    #[test]
    fn numbers_survive_their_bytes() {
        for number in [0, 1, 127, 128, 300, 1 << 31, u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            put(number, |byte| bytes.push(byte));
            let mut rest = bytes.as_slice();
            assert_eq!((take(&mut rest), rest.len()), (Some(number), 0));
            for end in 0..bytes.len() {
                assert_eq!(take(&mut &bytes[..end]), None);
            }
        }
        assert_eq!(take(&mut [0xFF; 11].as_slice()), None, "more than there are bits");
    }

    #[test]
    fn a_byte_that_changed_is_noticed() {
        let mut bytes = [7; 100];
        let before = checksum(&bytes);
        bytes[50] ^= 1;
        assert_ne!(checksum(&bytes), before);
    }
}
