//! Shared pages: memfds that the daemon creates, maps and seals before a tenant gets them.

use deepres_abi::page::{self, Page};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The processes that may write a page after the daemon has passed its descriptor on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// Only this process: a tenant can neither map the page writable nor make its mapping writable.
    Controller,
    /// Every process with the descriptor. No process can change the size, so no access can fault.
    Anyone,
}

impl Writer {
    fn seals(self) -> SealFlags {
        let size = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        match self {
            Self::Controller => size | SealFlags::FUTURE_WRITE,
            Self::Anyone => size,
        }
    }
}

/// A page in shared memory. The page stays mapped in this process until the value is dropped.
pub struct SharedPage<P: Page> {
    address: *mut c_void,
    descriptor: OwnedFd,
    page: PhantomData<P>,
}

// SAFETY: this value alone owns the mapping, and unmaps it only when it is dropped. All access
// through the mapping is by atomics (`Page`).
unsafe impl<P: Page> Send for SharedPage<P> {}
// SAFETY: as above; a shared reference gives access to atomics only.
unsafe impl<P: Page> Sync for SharedPage<P> {}

impl<P: Page> SharedPage<P> {
    /// Creates, initialises and seals a page. /proc shows the memfd under `name`.
    ///
    /// # Errors
    /// The system's error, for lack of memory or descriptors.
    pub fn create(name: &str, writer: Writer) -> io::Result<Self> {
        let descriptor = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&descriptor, size_of::<P>() as u64)?;
        // The mapping comes before the seal, because the seal FUTURE_WRITE does not affect existing
        // mappings.
        // SAFETY: a fresh mapping at an address of the kernel's choice, of a file of this size.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                size_of::<P>(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &descriptor,
                0,
            )?
        };
        let shared = Self { address, descriptor, page: PhantomData };
        // SAFETY: the memory was mapped just now. The memory is zero as a new memfd, writable, and
        // stays mapped until `shared` is dropped.
        unsafe { page::create::<P>(shared.address.cast(), size_of::<P>()) }.map_err(io::Error::other)?;
        fcntl_add_seals(&shared.descriptor, writer.seals())?;
        Ok(shared)
    }

    /// Returns the page, as it is mapped in this process.
    pub fn page(&self) -> &P {
        // SAFETY: the page is mapped from `create` until drop, with the right size and alignment.
        // The page consists of atomics only, so any bytes are valid.
        unsafe { &*self.address.cast::<P>() }
    }
}

impl<P: Page> AsFd for SharedPage<P> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl<P: Page> Drop for SharedPage<P> {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `create`, and nothing refers to it any more.
        let unmapped = unsafe { munmap(self.address, size_of::<P>()) };
        debug_assert!(unmapped.is_ok());
    }
}

impl<P: Page> fmt::Debug for SharedPage<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedPage({:?})", P::KIND)
    }
}
