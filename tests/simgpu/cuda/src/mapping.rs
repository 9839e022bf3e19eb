//! Address space from the kernel, in place of device memory. Pages cost nothing until a program
//! writes them.
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use crate::status::{self, Result};

/// Alignment of every mapping here, which is the alignment of large device allocations.
pub const ALIGNMENT_BYTES: u64 = 2 << 20;

/// Permitted use of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// No access: the range is only reserved.
    None,
    /// The range may be read.
    Read,
    /// The range may be read and written.
    ReadWrite,
}

impl Access {
    fn protection(self) -> libc::c_int {
        match self {
            Self::None => libc::PROT_NONE,
            Self::Read => libc::PROT_READ,
            Self::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        }
    }
}

/// Maps `bytes` of zeros, aligned to `alignment_bytes` (a power of two), and returns the address.
/// If there is room near `hint`, the function places the mapping there.
pub fn map(bytes: u64, alignment_bytes: u64, hint: u64, access: Access) -> Result<u64> {
    let alignment_bytes = alignment_bytes.max(ALIGNMENT_BYTES);
    let padded = bytes.checked_add(alignment_bytes).ok_or(status::OUT_OF_MEMORY)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: without MAP_FIXED a new mapping touches no memory in use.
    let at =
        unsafe { libc::mmap(hint as *mut libc::c_void, padded as usize, access.protection(), flags, -1, 0) };
    status::refuse_as(at == libc::MAP_FAILED, status::OUT_OF_MEMORY)?;
    let start = at as u64;
    let aligned = start.next_multiple_of(alignment_bytes);
    unmap(start, aligned - start);
    unmap(aligned + bytes, start + padded - aligned - bytes);
    Ok(aligned)
}

/// Unmaps a range of address space.
pub fn unmap(at: u64, bytes: u64) {
    if bytes != 0 {
        // SAFETY: callers pass ranges that they mapped and that no live allocation covers any more.
        unsafe { libc::munmap(at as *mut libc::c_void, bytes as usize) };
    }
}

/// Changes the permitted use of a range.
pub fn protect(at: u64, bytes: u64, access: Access) -> Result<()> {
    // SAFETY: the range is a mapping of this library, and its users obey the access that they were
    // granted.
    let failed = unsafe { libc::mprotect(at as *mut libc::c_void, bytes as usize, access.protection()) } != 0;
    if failed { Err(status::INVALID_VALUE) } else { Ok(()) }
}

/// Zeroes a range by dropping its pages, which saves memory compared with writing zeros. Begin and
/// end must be page-aligned. Returns whether the kernel dropped the pages.
pub fn drop_pages(at: u64, bytes: u64) -> bool {
    // SAFETY: the range is a private anonymous mapping of this library, where dropped pages read as
    // zeros.
    unsafe { libc::madvise(at as *mut libc::c_void, bytes as usize, libc::MADV_DONTNEED) == 0 }
}

/// Does the same as [`drop_pages`], for a mapping of a file. Zeroes the range for all processes
/// that map the file.
pub fn drop_shared_pages(at: u64, bytes: u64) -> bool {
    // SAFETY: the range is a mapping of this library, where dropped pages read as zeros.
    unsafe { libc::madvise(at as *mut libc::c_void, bytes as usize, libc::MADV_REMOVE) == 0 }
}

/// The lock that keeps writes away from memory that a thread moves into a file. The moving thread
/// holds the lock for writing, and threads that write to device memory hold it for reading.
static MOVES: RwLock<()> = RwLock::new(());

/// Returns a guard that writers to device memory hold while they write. So no write is lost when a
/// range moves into a file.
pub fn stay() -> RwLockReadGuard<'static, ()> {
    MOVES.read().unwrap_or_else(PoisonError::into_inner)
}

/// Moves the contents of a private mapping into a file that reads as zeros, and maps the file at
/// the same address.
pub fn move_into(file: &std::fs::File, at: u64, bytes: u64) -> io::Result<()> {
    let _all_stay = MOVES.write().unwrap_or_else(PoisonError::into_inner);
    copy_written_pages(file, at, bytes)?;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let access = Access::ReadWrite.protection();
    // SAFETY: the range is a mapping of this library. The lock keeps writers out, and the new
    // mapping holds the same contents.
    let mapped =
        unsafe { libc::mmap(at as *mut libc::c_void, bytes as usize, access, flags, file.as_raw_fd(), 0) };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Copies the written pages of a range to the same place of a file. Pages that were never written
/// then take no room in the file.
fn copy_written_pages(file: &std::fs::File, at: u64, bytes: u64) -> io::Result<()> {
    const PAGE_BYTES: u64 = 4096;
    /// Bits 63 and 62 of an entry: in memory, and swapped out.
    const IS_THERE: u64 = 0b11 << 62;
    const ENTRY_BYTES: usize = size_of::<u64>();
    /// Number of entries read at a time.
    const ENTRIES: usize = 1024;
    let map = std::fs::File::open("/proc/self/pagemap")?;
    let mut entries = [0_u8; ENTRIES * ENTRY_BYTES];
    let pages = bytes / PAGE_BYTES;
    for first in (0..pages).step_by(ENTRIES) {
        let count = (pages - first).min(ENTRIES as u64) as usize;
        let entries = &mut entries[..count * ENTRY_BYTES];
        map.read_exact_at(entries, (at / PAGE_BYTES + first) * ENTRY_BYTES as u64)?;
        for (page, entry) in (first..).zip(entries.as_chunks::<ENTRY_BYTES>().0) {
            if u64::from_ne_bytes(*entry) & IS_THERE == 0 {
                continue;
            }
            let offset = page * PAGE_BYTES;
            // SAFETY: the page belongs to a readable mapping of this library.
            let content =
                unsafe { std::slice::from_raw_parts((at + offset) as *const u8, PAGE_BYTES as usize) };
            file.write_all_at(content, offset)?;
        }
    }
    Ok(())
}

/// Maps a whole file for reading and writing, at any free place.
pub fn map_file(file: &std::fs::File, bytes: u64) -> Result<u64> {
    let at = map(bytes, ALIGNMENT_BYTES, 0, Access::None)?;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let access = Access::ReadWrite.protection();
    // SAFETY: the range was just reserved, and no other code knows it.
    let mapped =
        unsafe { libc::mmap(at as *mut libc::c_void, bytes as usize, access, flags, file.as_raw_fd(), 0) };
    if mapped == libc::MAP_FAILED {
        unmap(at, bytes);
        return Err(status::MAP_FAILED);
    }
    Ok(at)
}

/// Returns memory that processes can map several times and pass to each other.
pub fn shareable(bytes: u64) -> Result<OwnedFd> {
    // SAFETY: the name is a C string; the call returns a new descriptor or an error.
    let fd = unsafe { libc::memfd_create(c"simgpu".as_ptr(), libc::MFD_CLOEXEC) };
    status::refuse_as(fd < 0, status::OUT_OF_MEMORY)?;
    // SAFETY: `fd` was just opened, and nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the descriptor is open.
    let failed = unsafe { libc::ftruncate(fd.as_raw_fd(), bytes as libc::off_t) } != 0;
    if failed { Err(status::OUT_OF_MEMORY) } else { Ok(fd) }
}

/// Returns a new descriptor of the file of a client's descriptor.
pub fn duplicate(descriptor: RawFd) -> Result<OwnedFd> {
    // SAFETY: `F_DUPFD_CLOEXEC` is safe for any number; a number that is no descriptor gives an
    // error.
    let copy = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0) };
    status::refuse(copy < 0)?;
    // SAFETY: the duplicate is new, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Returns the length of shareable memory.
pub fn length(fd: &OwnedFd) -> io::Result<u64> {
    std::fs::File::from(fd.try_clone()?).metadata().map(|data| data.len())
}

/// Returns the identity of shareable memory: device and inode.
pub fn identity(fd: &OwnedFd) -> io::Result<(u64, u64)> {
    let data = std::fs::File::from(fd.try_clone()?).metadata()?;
    Ok((data.dev(), data.ino()))
}

/// Maps a part of shareable memory over reserved address space, without access.
pub fn map_shareable(fd: &OwnedFd, offset: u64, at: u64, bytes: u64) -> Result<()> {
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let address = at as *mut libc::c_void;
    // SAFETY: the caller reserved this range, and no part of it is in use.
    let mapped = unsafe {
        libc::mmap(address, bytes as usize, libc::PROT_NONE, flags, fd.as_raw_fd(), offset as libc::off_t)
    };
    if mapped == libc::MAP_FAILED { Err(status::OUT_OF_MEMORY) } else { Ok(()) }
}

/// Replaces a mapping by reserved address space without memory.
pub fn reserve_again(at: u64, bytes: u64) -> Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let address = at as *mut libc::c_void;
    // SAFETY: the range belongs to this library, and the caller has ended its use.
    let mapped = unsafe { libc::mmap(address, bytes as usize, libc::PROT_NONE, flags, -1, 0) };
    if mapped == libc::MAP_FAILED { Err(status::OUT_OF_MEMORY) } else { Ok(()) }
}
