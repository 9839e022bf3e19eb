//! Shared pages at addresses that never change. The interposer maps a new daemon's page over the
//! old daemon's page. So no thread needs a new address. The interposer need not know which threads
//! still read the old page. The kernel changes the mapping for all threads.

use std::marker::PhantomData;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::{ffi::c_void, fmt, io, mem, ptr};

use deepres_abi::page::{self, LayoutError, Page};

/// The reason for which the process cannot use a page.
#[derive(Debug)]
pub enum PageError {
    /// The system did not map the page.
    Map(io::Error),
    /// The page has another layout.
    Layout(LayoutError),
}

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Map(error) => write!(f, "cannot map a shared page ({error})"),
            Self::Layout(error) => write!(f, "{error}"),
        }
    }
}

/// A page that stays mapped as long as this value lives.
#[derive(Debug)]
pub struct Mapped<P: Page> {
    address: *mut c_void,
    page: PhantomData<P>,
}

/// The permitted use of a mapping: `PROT_READ`, or `PROT_READ | PROT_WRITE`.
pub type Protection = i32;

impl<P: Page> Mapped<P> {
    /// Maps the page in `memory`, and checks the page's head. Returns the mapping.
    ///
    /// # Errors
    /// [`PageError`] if the system does not map the page, or if the page has another layout.
    pub fn new(memory: &OwnedFd, protection: Protection) -> Result<Self, PageError> {
        // Most memory has room for the whole page. For a shorter page of an older version, the code
        // first reserves a place, and then maps the page and zeros there.
        let is_whole = length(memory).map_err(PageError::Map)? >= size_of::<P>();
        let (protection_now, flags, number) = match is_whole {
            true => (protection, libc::MAP_SHARED, memory.as_raw_fd()),
            false => (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        };
        // SAFETY: a new mapping at an address that the kernel chooses.
        let address =
            unsafe { libc::mmap(ptr::null_mut(), size_of::<P>(), protection_now, flags, number, 0) };
        if address == libc::MAP_FAILED {
            return Err(PageError::Map(io::Error::last_os_error()));
        }
        let mapped = Self { address, page: PhantomData };
        if !is_whole {
            // SAFETY: the code made the mapping just now, and no other code knows it.
            unsafe { lay::<P>(address, memory, protection) }.map_err(PageError::Map)?;
        }
        // SAFETY: the code has just mapped the page, which stays mapped as long as `mapped` lives.
        // The users of a read-only page only read it.
        unsafe { page::view::<P>(address.cast(), size_of::<P>()) }.map_err(PageError::Layout)?;
        Ok(mapped)
    }

    /// Returns the page, as it is mapped in this process.
    pub fn page(&self) -> &P {
        // SAFETY: `new` mapped and checked the page, which stays mapped until drop. A page holds
        // only atomics, so each value that the other side writes is valid.
        unsafe { &*self.address.cast() }
    }

    /// Returns the page, which stays mapped until the process ends.
    pub fn keep(self) -> &'static P {
        let address = self.address;
        mem::forget(self);
        // SAFETY: as in `page`, and no code unmaps the page.
        unsafe { &*address.cast() }
    }
}

impl<P: Page> Drop for Mapped<P> {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value. By the borrow checker, no reference into the
        // mapping exists.
        unsafe { libc::munmap(self.address, size_of::<P>()) };
    }
}

// SAFETY: the mapping belongs to this value alone, and its users reach only atomics through it.
unsafe impl<P: Page> Send for Mapped<P> {}

/// Maps the page in `memory` over `place`. During the call, another thread sees the old page or the
/// new page. After the call, no thread sees the old page.
///
/// # Safety
/// [`Mapped::keep`] returned `place`, and [`Mapped::new`] checked `memory`. `protection` permits
/// each use of references to the place.
///
/// # Errors
/// The system's error. In any case, the place stays mapped: to the old page, the new page, or
/// zeros.
pub unsafe fn replace<P: Page>(
    place: &'static P,
    memory: &OwnedFd,
    protection: Protection,
) -> io::Result<()> {
    let address = ptr::from_ref(place).cast_mut().cast::<c_void>();
    // SAFETY: the caller vouches for the place.
    unsafe { lay::<P>(address, memory, protection) }.inspect_err(|_| {
        // The kernel may have removed the old mapping before it failed.
        // SAFETY: as above. An access finds zeros, which are a valid page, and causes no fault.
        unsafe {
            libc::mmap(address, size_of::<P>(), protection, FIXED_ZEROS, -1, 0);
        }
    })
}

const FIXED_ZEROS: i32 = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Returns the length of `memory`, bytes.
fn length(memory: &OwnedFd) -> io::Result<usize> {
    // SAFETY: all zeroes is a valid stat.
    let mut status = unsafe { mem::zeroed::<libc::stat>() };
    // SAFETY: the result has room.
    if unsafe { libc::fstat(memory.as_raw_fd(), &mut status) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(status.st_size).unwrap_or(0))
}

/// Maps `memory` at `address`. If the memory is shorter than a page `P`, maps zeros behind the
/// memory. So fields that an older daemon does not know are zero.
///
/// # Safety
/// `address` is the start of a mapping of a page's size, and the mapping belongs to the interposer.
unsafe fn lay<P: Page>(address: *mut c_void, memory: &OwnedFd, protection: Protection) -> io::Result<()> {
    let bytes = length(memory)?.min(size_of::<P>());
    // The kernel fills the rest of the last page with zeros.
    let mapped_bytes = bytes.next_multiple_of(align_of::<P>());
    let flags = libc::MAP_FIXED | libc::MAP_SHARED;
    if bytes != 0 {
        // SAFETY: the range lies within the caller's mapping, and the file has this length.
        let page = unsafe { libc::mmap(address, bytes, protection, flags, memory.as_raw_fd(), 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
    }
    if mapped_bytes < size_of::<P>() {
        let rest_bytes = size_of::<P>() - mapped_bytes;
        // SAFETY: the range lies within the caller's mapping.
        let rest =
            unsafe { libc::mmap(address.byte_add(mapped_bytes), rest_bytes, protection, FIXED_ZEROS, -1, 0) };
        if rest == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd as _;
    use std::sync::atomic::Ordering;

    use deepres_abi::beat::BeatPage;
    use deepres_abi::meter::MeterPage;

    use super::*;

    const BOTH: Protection = libc::PROT_READ | libc::PROT_WRITE;

    /// Returns memory with a page, as a daemon makes it.
    fn memory<P: Page>() -> OwnedFd {
        // SAFETY: the name ends with a null byte, the descriptor is new, and the mapping is removed
        // again.
        unsafe {
            let memory = OwnedFd::from_raw_fd(libc::memfd_create(c"page".as_ptr(), libc::MFD_CLOEXEC));
            let bytes = size_of::<P>();
            assert_eq!(libc::ftruncate(memory.as_raw_fd(), bytes as i64), 0);
            let address = libc::mmap(ptr::null_mut(), bytes, BOTH, libc::MAP_SHARED, memory.as_raw_fd(), 0);
            page::create::<P>(address.cast(), bytes).unwrap();
            libc::munmap(address, bytes);
            memory
        }
    }

    #[test]
    fn a_reader_of_a_place_sees_the_new_page_after_it_was_replaced() {
        let (old, new) = (memory::<MeterPage>(), memory::<MeterPage>());
        let page = Mapped::<MeterPage>::new(&old, BOTH).unwrap().keep();
        page.slot(3).unwrap().waits.store(7, Ordering::Relaxed);
        // SAFETY: the code above kept the page, and the code below checks the memory. The
        // protection is the same.
        unsafe { replace(page, &new, BOTH).unwrap() };
        assert_eq!(page.slot(3).unwrap().waits.load(Ordering::Relaxed), 0);
        page.slot(3).unwrap().waits.store(9, Ordering::Relaxed);
        let other = Mapped::<MeterPage>::new(&new, BOTH).unwrap();
        assert_eq!(other.page().slot(3).unwrap().waits.load(Ordering::Relaxed), 9);
        let before = Mapped::<MeterPage>::new(&old, BOTH).unwrap();
        assert_eq!(before.page().slot(3).unwrap().waits.load(Ordering::Relaxed), 7);
    }

    #[test]
    fn a_page_that_is_no_page_is_refused_and_a_shorter_one_of_ours_too() {
        let beat = memory::<BeatPage>();
        assert!(matches!(
            Mapped::<MeterPage>::new(&beat, BOTH),
            Err(PageError::Layout(LayoutError::Kind(_)))
        ));
        // SAFETY: the call takes no pointers.
        unsafe { libc::ftruncate(beat.as_raw_fd(), 0) };
        assert!(matches!(
            Mapped::<BeatPage>::new(&beat, BOTH),
            Err(PageError::Layout(LayoutError::NotReady))
        ));
    }

    #[test]
    fn a_shorter_page_of_an_older_version_has_zeros_behind_it() {
        const SHORT_BYTES: usize = 4096;
        const MINOR_OFFSET: i64 = 18;
        const SIZE_OFFSET: i64 = 12;
        let short = memory::<MeterPage>();
        let put = |at: i64, bytes: &[u8]| {
            // SAFETY: the bytes are readable and have this length.
            let written = unsafe { libc::pwrite(short.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), at) };
            assert_eq!(written, bytes.len() as isize);
        };
        put(SIZE_OFFSET, &(SHORT_BYTES as u32).to_le_bytes());
        // SAFETY: the call takes no pointers.
        assert_eq!(unsafe { libc::ftruncate(short.as_raw_fd(), SHORT_BYTES as i64) }, 0);
        assert!(matches!(
            Mapped::<MeterPage>::new(&short, BOTH),
            Err(PageError::Layout(LayoutError::Size(_)))
        ));
        put(MINOR_OFFSET, &0u16.to_le_bytes());
        let mapped = Mapped::<MeterPage>::new(&short, BOTH).unwrap();
        let last = mapped.page().slot(deepres_abi::MAX_GPUS - 1).unwrap();
        last.waits.store(5, Ordering::Relaxed);
        assert_eq!(last.waits.load(Ordering::Relaxed), 5);
    }
}
