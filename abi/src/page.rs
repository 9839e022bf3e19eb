//! The head of each shared page. Before a reader trusts anything else on a page, it checks the
//! head.

use crate::sync::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use core::{cmp, fmt};

/// The major version of the layout. A reader refuses a page of another major version. The minor
/// version of the page can be older or newer than the reader's.
pub const MAJOR: u16 = 2;
/// The minor version of the layout. A change that adds a field raises the minor version. New fields
/// use reserved space, which was zero before, or the end of a page or frame.
pub const MINOR: u16 = 13;

/// The bytes `deepres\0` as a little-endian word.
const MAGIC: u64 = u64::from_le_bytes(*b"deepres\0");
/// The value of [`Head::ready`] in a finished page. A reader may then read the rest of the page.
const READY: u32 = 1;

/// The kind of a page, by which a reader refuses memory that is another page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// The kind of a [`crate::grant::GrantPage`].
    Grant = 1,
    /// The kind of a [`crate::meter::MeterPage`].
    Meter = 2,
    /// The kind of a [`crate::ledger::LedgerPage`].
    Ledger = 3,
    /// The kind of a [`crate::beat::BeatPage`].
    Beat = 4,
    /// The kind of a [`crate::standalone::StandalonePage`].
    Standalone = 5,
}

/// The first 64 bytes of each page, by which a reader recognises the kind and version of the page.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Head {
    magic: AtomicU64,
    kind: AtomicU32,
    size: AtomicU32,
    major: AtomicU16,
    minor: AtomicU16,
    ready: AtomicU32,
}

/// A type through which processes access shared memory.
///
/// # Safety
/// The type is `repr(C)` and begins with a [`Head`]. The type contains only atomics and padding. So
/// each bit pattern is valid, and no code needs a `&mut`. The type contains no address, and is the
/// page that [`Page::KIND`] names.
pub unsafe trait Page: Sized {
    /// The kind that the head contains.
    const KIND: Kind;
    /// Returns the page's head.
    fn head(&self) -> &Head;
}

/// The reason for which a reader cannot use a mapped page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutError {
    /// The mapping is shorter than the page (bytes mapped, bytes needed).
    Short(usize, usize),
    /// The memory holds no page of deepres.
    Magic,
    /// The memory holds another page of deepres (kind found).
    Kind(u32),
    /// A writer of an incompatible version wrote the page (major version found).
    Major(u16),
    /// The writer has not finished the page.
    NotReady,
    /// The page declares a size that its version does not have (bytes declared).
    Size(u32),
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short(got, need) => write!(f, "shared page is {got} bytes, {need} are needed"),
            Self::Magic => write!(f, "shared memory does not hold a page of deepres"),
            Self::Kind(kind) => write!(f, "shared page is of kind {kind}, another was expected"),
            Self::Major(major) => {
                write!(
                    f,
                    "shared page has layout version {major}, this build of deepres reads version {MAJOR}; use the same deepres release for the daemon and the job, and start the job again"
                )
            }
            Self::NotReady => write!(f, "shared page was not finished by its writer"),
            Self::Size(size) => {
                write!(f, "shared page declares {size} bytes, which its version does not have")
            }
        }
    }
}

impl core::error::Error for LayoutError {}

impl Head {
    /// Writes the head of a page `P`. Writes the ready word last, so that no reader trusts a
    /// half-written page.
    pub fn publish<P: Page>(&self) {
        self.magic.store(MAGIC, Ordering::Relaxed);
        self.kind.store(P::KIND as u32, Ordering::Relaxed);
        self.size.store(size_of::<P>() as u32, Ordering::Relaxed);
        self.major.store(MAJOR, Ordering::Relaxed);
        self.minor.store(MINOR, Ordering::Relaxed);
        self.ready.store(READY, Ordering::Release);
    }

    fn verify<P: Page>(&self) -> Result<(), LayoutError> {
        if self.ready.load(Ordering::Acquire) != READY {
            return Err(LayoutError::NotReady);
        }
        if self.magic.load(Ordering::Relaxed) != MAGIC {
            return Err(LayoutError::Magic);
        }
        let kind = self.kind.load(Ordering::Relaxed);
        if kind != P::KIND as u32 {
            return Err(LayoutError::Kind(kind));
        }
        let major = self.major.load(Ordering::Relaxed);
        if major != MAJOR {
            return Err(LayoutError::Major(major));
        }
        let size = self.size.load(Ordering::Relaxed);
        let known_bytes = size_of::<P>();
        // If the writer is newer, the reader ignores data behind the page that it knows. If the
        // writer is older, the mapping has zeros for the data that the page lacks.
        let fits = match self.minor().cmp(&MINOR) {
            cmp::Ordering::Less => (size_of::<Head>()..=known_bytes).contains(&(size as usize)),
            cmp::Ordering::Equal => size as usize == known_bytes,
            cmp::Ordering::Greater => size as usize >= known_bytes,
        };
        if fits { Ok(()) } else { Err(LayoutError::Size(size)) }
    }

    /// Returns the minor version of the program that wrote the page.
    pub fn minor(&self) -> u16 {
        self.minor.load(Ordering::Relaxed)
    }
}

/// Returns `bytes` mapped bytes at `address` as a page, after a check of the head.
///
/// # Safety
/// `address` points to `bytes` readable bytes that stay mapped for `'a`. The bytes can change at
/// any time. If the mapping is read-only, the caller stores nothing through the reference. A page
/// of an older minor version can be shorter. The caller then maps zeros behind the page.
///
/// # Errors
/// [`LayoutError`] if the bytes are not a finished page of this kind and version.
pub unsafe fn view<'a, P: Page>(address: *const u8, bytes: usize) -> Result<&'a P, LayoutError> {
    // SAFETY: the caller promises a valid mapping.
    let page = unsafe { overlay::<P>(address, bytes)? };
    page.head().verify::<P>()?;
    Ok(page)
}

/// Makes a page of a new mapping of zeros, and returns the page. The creator calls this before it
/// passes the memory on.
///
/// # Safety
/// The same requirements as for [`view`]. Also, the bytes are zero and writable.
///
/// # Errors
/// [`LayoutError::Short`] if the mapping is too small.
pub unsafe fn create<'a, P: Page>(address: *mut u8, bytes: usize) -> Result<&'a P, LayoutError> {
    // SAFETY: the caller promises a valid mapping.
    let page = unsafe { overlay::<P>(address, bytes)? };
    page.head().publish::<P>();
    Ok(page)
}

/// # Safety
/// The same requirements as for [`view`].
unsafe fn overlay<'a, P: Page>(address: *const u8, bytes: usize) -> Result<&'a P, LayoutError> {
    if bytes < size_of::<P>() || !(address as usize).is_multiple_of(align_of::<P>()) {
        return Err(LayoutError::Short(bytes, size_of::<P>()));
    }
    // SAFETY: the memory is long enough and aligned, as just checked. The memory is mapped for 'a,
    // as the caller promises. Every bit pattern is a valid `P`, as [`Page`] requires.
    Ok(unsafe { &*address.cast::<P>() })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{beat::BeatPage, grant::GrantPage, ledger::LedgerPage, meter::MeterPage};

    /// Memory of zeros, aligned like a mapping.
    struct Memory(Vec<u128>);

    impl Memory {
        fn of<P>() -> Self {
            Self(vec![0; size_of::<P>() / 16 + 512])
        }

        fn at(&mut self) -> (*mut u8, usize) {
            let start = self.0.as_mut_ptr().cast::<u8>();
            let aligned = start.wrapping_add(start.align_offset(4096));
            (aligned, self.0.len() * 16 - 4096)
        }
    }

    fn round_trip<P: Page>() {
        let mut memory = Memory::of::<P>();
        let (at, bytes) = memory.at();
        // SAFETY: `memory` outlives both references, is zeroed, and is long enough.
        unsafe {
            assert_eq!(view::<P>(at, bytes).err(), Some(LayoutError::NotReady));
            create::<P>(at, bytes).unwrap();
            view::<P>(at, bytes).unwrap();
            assert!(matches!(view::<P>(at, size_of::<P>() - 1), Err(LayoutError::Short(..))));
        }
    }

    #[test]
    fn every_page_is_readable_only_after_it_was_published() {
        round_trip::<GrantPage>();
        round_trip::<MeterPage>();
        round_trip::<LedgerPage>();
        round_trip::<BeatPage>();
    }

    #[test]
    fn a_page_of_another_kind_major_or_size_is_refused_with_the_values_found() {
        let mut memory = Memory::of::<LedgerPage>();
        let (at, bytes) = memory.at();
        // SAFETY: `memory` outlives the reference, is zeroed, and is long enough. `LedgerPage` is
        // the larger page, so both kinds fit.
        unsafe {
            let page = create::<BeatPage>(at, bytes).unwrap();
            assert_eq!(view::<LedgerPage>(at, bytes).err(), Some(LayoutError::Kind(Kind::Beat as u32)));
            page.head().major.store(MAJOR + 1, Ordering::Relaxed);
            let refused = view::<BeatPage>(at, bytes).err().unwrap();
            assert_eq!(refused, LayoutError::Major(MAJOR + 1));
            assert!(refused.to_string().contains("same deepres release"));
            page.head().major.store(MAJOR, Ordering::Relaxed);
            page.head().size.store(7, Ordering::Relaxed);
            assert_eq!(view::<BeatPage>(at, bytes).err(), Some(LayoutError::Size(7)));
            page.head().magic.store(1, Ordering::Relaxed);
            assert_eq!(view::<BeatPage>(at, bytes).err(), Some(LayoutError::Magic));
        }
    }

    #[test]
    fn a_page_of_another_minor_version_may_be_longer_if_newer_and_shorter_if_older() {
        let mut memory = Memory::of::<BeatPage>();
        let (at, bytes) = memory.at();
        let known = size_of::<BeatPage>() as u32;
        // SAFETY: `memory` outlives the reference, and is long enough.
        let refused = |minor: u16, size: u32| unsafe {
            let page = create::<BeatPage>(at, bytes).unwrap();
            page.head().minor.store(minor, Ordering::Relaxed);
            page.head().size.store(size, Ordering::Relaxed);
            view::<BeatPage>(at, bytes).err()
        };
        assert_eq!(refused(MINOR + 1, known + 4096), None);
        assert_eq!(refused(MINOR + 1, known - 64), Some(LayoutError::Size(known - 64)));
        assert_eq!(refused(MINOR - 1, known - 64), None);
        assert_eq!(refused(MINOR - 1, known + 4096), Some(LayoutError::Size(known + 4096)));
        assert_eq!(refused(MINOR - 1, 8), Some(LayoutError::Size(8)));
    }

    #[test]
    fn a_newer_minor_version_is_accepted() {
        let mut memory = Memory::of::<BeatPage>();
        let (at, bytes) = memory.at();
        // SAFETY: `memory` outlives the reference, is zeroed, and is long enough.
        unsafe {
            let page = create::<BeatPage>(at, bytes).unwrap();
            page.head().minor.store(MINOR + 1, Ordering::Relaxed);
            assert_eq!(view::<BeatPage>(at, bytes).unwrap().head().minor(), MINOR + 1);
        }
    }

    #[test]
    fn a_daemon_of_an_older_minor_version_does_not_tell_whether_it_measures_requests() {
        let mut memory = Memory::of::<GrantPage>();
        let (at, bytes) = memory.at();
        // SAFETY: `memory` outlives the reference, is zeroed, and is long enough.
        let page = unsafe { create::<GrantPage>(at, bytes) }.unwrap();
        for (minor, tells) in [(9, false), (10, true), (MINOR, true), (MINOR + 1, true)] {
            page.head().minor.store(minor, Ordering::Relaxed);
            assert_eq!(page.tells_timed(), tells, "minor version {minor}");
        }
    }
}
