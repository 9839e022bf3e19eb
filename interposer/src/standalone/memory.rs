//! Pages of this process alone.

use std::{io, ptr};

use deepres_abi::page::{self, Page};

/// A page in memory of its own, for as long as the process lives. A forked child has a copy.
pub fn page<P: Page>() -> io::Result<&'static P> {
    let bytes = size_of::<P>();
    // SAFETY: a new mapping, wherever the kernel has room.
    let address = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: mapped just now, zero and writable, and never unmapped.
    unsafe { page::create::<P>(address.cast(), bytes) }.map_err(io::Error::other)
}
