//! External memory: memory that comes as a file descriptor, usually from a graphics interface. The
//! process that created the memory is charged for it.
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

/// All imports that have not been destroyed.
static EXTERNAL: Table<External> = Table::new(HandleKind::External);

/// An import of external memory.
struct External {
    handle: usize,
    file: File,
    bytes: u64,
}

/// Imports the memory of a file descriptor. The descriptor then belongs to the driver.
pub fn import(descriptor: i32, bytes: u64) -> Result<usize> {
    context::current()?;
    // SAFETY: `F_GETFD` is safe for any number.
    if bytes == 0 || unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
        return Err(status::INVALID_VALUE);
    }
    // SAFETY: the descriptor is open, and the caller gives it away.
    let file = unsafe { File::from_raw_fd(descriptor) };
    if file.metadata().map_or(0, |data| data.len()) < bytes {
        // On an error the caller keeps the descriptor, so the driver must not close it.
        std::mem::forget(file);
        return Err(status::INVALID_VALUE);
    }
    let external = EXTERNAL.insert_with(|handle| Arc::new(External { handle, file, bytes }));
    external.map(|external| external.handle).ok_or(status::OUT_OF_MEMORY)
}

/// Removes an import. Mappings of the import stay until the client frees them.
pub fn destroy(handle: usize) -> Result<()> {
    EXTERNAL.remove(handle).map(drop).ok_or(status::INVALID_HANDLE)
}

fn of(handle: usize) -> Result<Arc<External>> {
    EXTERNAL.get(handle).ok_or(status::INVALID_HANDLE)
}

impl External {
    /// Maps the whole import. Returns address and length of the mapping.
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
    status::refuse(bytes == 0 || !fits)?;
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
    status::refuse(offset >= external.bytes)?;
    let (base, length) = external.map()?;
    array::create_external(descriptor, levels, base + offset, (base, length))
        .inspect_err(|_| mapping::unmap(base, length))
}

/// Unmaps a buffer.
pub fn unmap(base: u64, length: u64) {
    pending::drain(base, length);
    mapping::unmap(base, length);
}
