//! Excerpts of a session's calls, from which the daemon learns the tenant's iteration.

use deepres_abi::recording::{CHUNK_MAGIC, ChunkHead, MAX_CHUNK_BYTES, checksum};
use deepres_daemon::plans::reads;
use zerocopy::IntoBytes as _;

/// Any bytes are learned or refused, as an excerpt and as the records of a whole chunk.
pub fn run(data: &[u8]) {
    reads(data);
    let records = &data[..data.len().min(MAX_CHUNK_BYTES)];
    let head = ChunkHead {
        magic: CHUNK_MAGIC,
        bytes: records.len() as u32,
        checksum: checksum(records),
        pid: 1,
        began_ns: 2,
        base_ns: 3,
    };
    reads(&[head.as_bytes(), records].concat());
}
