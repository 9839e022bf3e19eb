//! Pages that belong to this process alone.

use std::{io, ptr};

use deepres_abi::page::{self, Page};

/// Returns a new page in private memory, which stays mapped until the process ends. A forked child
/// gets a copy.
pub fn page<P: Page>() -> io::Result<&'static P> {
    let bytes = size_of::<P>();
    // SAFETY: a new mapping at an address that the kernel chooses.
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
    // SAFETY: the code has just mapped the memory. The memory is zero and writable, and no code
    // unmaps it.
    unsafe { page::create::<P>(address.cast(), bytes) }.map_err(io::Error::other)
}
