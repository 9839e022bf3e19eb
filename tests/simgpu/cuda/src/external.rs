//! Memory of somebody else's, a graphics interface's as a rule, which comes as a file descriptor. Whoever made it is charged for it.
use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::sync::Arc;

use deepres_abi::driver::types as cu;

use crate::array;
use crate::context;
use crate::handle::{Kind as HandleKind, Table};
use crate::mapping;
use crate::memory::{self, Kind};
use crate::pending;
use crate::status::{self, Result};

/// What was imported and not destroyed.
static EXTERNAL: Table<External> = Table::new(HandleKind::External);

/// One import.
struct External {
    handle: usize,
    file: File,
    bytes: u64,
}

/// Takes over a file descriptor, which is the driver's from then on.
pub fn import(descriptor: i32, bytes: u64) -> Result<usize> {
    context::current()?;
    // SAFETY: asking about any number is safe.
    if bytes == 0 || unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
        return Err(status::INVALID_VALUE);
    }
    // SAFETY: open, and the caller's to give away.
    let file = unsafe { File::from_raw_fd(descriptor) };
    if file.metadata().map_or(0, |data| data.len()) < bytes {
        // It stays the caller's.
        std::mem::forget(file);
        return Err(status::INVALID_VALUE);
    }
    let external = EXTERNAL.insert_with(|handle| Arc::new(External { handle, file, bytes }));
    external.map(|external| external.handle).ok_or(status::OUT_OF_MEMORY)
}

/// Forgets an import. What was mapped of it stays until it is freed.
pub fn destroy(handle: usize) -> Result<()> {
    EXTERNAL.remove(handle).map(drop).ok_or(status::INVALID_HANDLE)
}

fn of(handle: usize) -> Result<Arc<External>> {
    EXTERNAL.get(handle).ok_or(status::INVALID_HANDLE)
}

impl External {
    /// Maps all of it: where, and how long that is.
    fn map(&self) -> Result<(u64, u64)> {
        debug_assert!(self.file.as_raw_fd() >= 0);
        let bytes = self.bytes.next_multiple_of(mapping::ALIGNMENT_BYTES);
        Ok((mapping::map_file(&self.file, bytes)?, bytes))
    }
}

/// Maps a part of an import as a buffer.
pub fn map_buffer(handle: usize, offset: u64, bytes: u64) -> Result<u64> {
    let context = context::current()?;
    let external = of(handle)?;
    let fits = offset.checked_add(bytes).is_some_and(|end| end <= external.bytes);
    if bytes == 0 || !fits {
        return Err(status::INVALID_VALUE);
    }
    let (base, length) = external.map()?;
    let address = base + offset;
    memory::enter(address, bytes, Kind::External { base, length }, Some(context));
    Ok(address)
}

/// Maps a part of an import as a mipmapped array.
pub fn map_array(
    handle: usize,
    offset: u64,
    descriptor: cu::CUDA_ARRAY3D_DESCRIPTOR,
    levels: u32,
) -> Result<usize> {
    context::current()?;
    let external = of(handle)?;
    if offset >= external.bytes {
        return Err(status::INVALID_VALUE);
    }
    let (base, length) = external.map()?;
    array::create_external(descriptor, levels, base + offset, (base, length))
        .inspect_err(|_| mapping::unmap(base, length))
}

/// Unmaps a buffer.
pub fn unmap(base: u64, length: u64) {
    pending::drain(base, length);
    mapping::unmap(base, length);
}
