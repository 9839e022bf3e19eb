//! The coverage of a process: the driver functions that it looked up, the functions for which it
//! got a hook, and its bypasses.
//!
//! The coverage is a block at the end of the session's meter page. The block identifies functions
//! by [`ApiId`]. These numbers are valid for one version of the table only. So the session also
//! writes [`crate::driver::TABLE_HASH`]. A daemon with another table uses only the sums.

use crate::driver::ApiId;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Room for the functions of the table and for future functions.
pub const PLACES: usize = 896;
const WORDS: usize = PLACES / u32::BITS as usize;
const _: () = assert!(ApiId::COUNT <= PLACES && PLACES.is_multiple_of(u32::BITS as usize));

/// The effect of a function on the GPU, if deepres only counts the function's calls and does not
/// account for the effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unaccounted {
    /// The function puts work on a stream without a gate or a segment of its own, for example a
    /// write of 4 or 8 bytes. Such work ends no segment. Its time counts in the segment during
    /// which it runs.
    Work,
    /// The function obtains device memory that the interposer does not charge: memory of another
    /// process, or the driver's own memory.
    Memory,
    /// The function pins host memory, which no limit covers.
    Host,
}

impl Unaccounted {
    /// Returns the reason's name, as people and JSON read it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Work => "work",
            Self::Memory => "memory",
            Self::Host => "host",
        }
    }
}

/// Calls the given macro once with all functions whose calls deepres only counts, in the form
/// `Class symbol;`.
#[macro_export]
macro_rules! for_each_unaccounted_function {
    ($($callback:tt)+) => {
        $($callback)+! {
            Work cuStreamWriteValue32;
            Work cuStreamWriteValue32_ptsz;
            Work cuStreamWriteValue32_v2;
            Work cuStreamWriteValue32_v2_ptsz;
            Work cuStreamWriteValue64;
            Work cuStreamWriteValue64_ptsz;
            Work cuStreamWriteValue64_v2;
            Work cuStreamWriteValue64_v2_ptsz;
            Work cuSignalExternalSemaphoresAsync;
            Work cuSignalExternalSemaphoresAsync_ptsz;
            Work cuWaitExternalSemaphoresAsync;
            Work cuWaitExternalSemaphoresAsync_ptsz;
            Work cuStreamAttachMemAsync;
            Work cuStreamAttachMemAsync_ptsz;
            Work cuMemBatchDecompressAsync;
            Work cuMemBatchDecompressAsync_ptsz;
            Work cuFabricCpyBatchAsync;
            Work cuFabricCpyBatchAsync_ptsz;
            Work cuGraphicsMapResources;
            Work cuGraphicsMapResources_ptsz;
            Work cuGraphicsUnmapResources;
            Work cuGraphicsUnmapResources_ptsz;
            Work cuMemDiscardBatchAsync;
            Work cuMemDiscardBatchAsync_ptsz;
            Work cuMemDiscardAndPrefetchBatchAsync;
            Work cuMemDiscardAndPrefetchBatchAsync_ptsz;
            Work cuEGLStreamProducerPresentFrame;
            Memory cuIpcOpenMemHandle;
            Memory cuIpcOpenMemHandle_v2;
            Memory cuMemPoolImportPointer;
            Memory cuImportExternalMemory;
            Memory cuExternalMemoryGetMappedBuffer;
            Memory cuExternalMemoryGetMappedMipmappedArray;
            Memory cuGraphicsResourceGetMappedPointer;
            Memory cuGraphicsResourceGetMappedPointer_v2;
            Memory cuGraphicsResourceGetMappedMipmappedArray;
            Memory cuGraphicsResourceGetMappedEglFrame;
            Memory cuEGLStreamConsumerAcquireFrame;
            Memory cuGraphicsSubResourceGetMappedArray;
            Memory cuGLMapBufferObject;
            Memory cuGLMapBufferObject_v2;
            Memory cuGLMapBufferObject_v2_ptds;
            Memory cuGLMapBufferObjectAsync;
            Memory cuGLMapBufferObjectAsync_v2;
            Memory cuGLMapBufferObjectAsync_v2_ptsz;
            Memory cuMulticastCreate;
            Memory cuCtxSetLimit;
            Host cuMemAllocHost;
            Host cuMemAllocHost_v2;
            Host cuMemHostAlloc;
            Host cuMemHostRegister;
            Host cuMemHostRegister_v2;
        }
    };
}

macro_rules! classes {
    ($($class:ident $symbol:ident;)+) => {
        /// Returns the effect of a function whose calls deepres counts and does not account for.
        /// Returns `None` for any other function.
        pub const fn unaccounted(id: ApiId) -> Option<Unaccounted> {
            match id {
                $(ApiId::$symbol => Some(Unaccounted::$class),)+
                // This function has a hook. The hook charges the memory if the process itself
                // exported it.
                ApiId::cuMemImportFromShareableHandle => Some(Unaccounted::Memory),
                _ => None,
            }
        }
    };
}
crate::for_each_unaccounted_function!(classes);

macro_rules! bypasses {
    ($($reason:ident $name:literal $effect:ident $help:literal;)+) => {
        /// A reason for a bypass: the interposer lets a call of a hooked function through without
        /// metering or charging it. Pages contain the numbers of the reasons, so a new reason comes
        /// last.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Bypass {
            $(#[doc = $help] $reason,)+
        }

        impl Bypass {
            /// All reasons, in the order of their numbers.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$reason),+];

            /// Returns the reason's name, as people and JSON read it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$reason => $name,)+
                }
            }

            /// Returns a sentence that explains the reason.
            pub const fn help(self) -> &'static str {
                match self {
                    $(Self::$reason => $help,)+
                }
            }

            /// Returns whether such a call may give the GPU work, or take memory of the GPU.
            pub const fn has_effect(self) -> bool {
                match self {
                    $(Self::$reason => bypasses!(@$effect),)+
                }
            }
        }
    };
    (@effect) => { true };
    (@harmless) => { false };
}

bypasses! {
    NoSession "no-session" effect "The process had no session yet.";
    NoContext "no-context" effect "The driver did not name the context of the stream.";
    UnmanagedGpu "unmanaged-gpu" effect "The daemon does not manage the GPU.";
    NoLane "no-lane" effect "The stream or its context ended during the call.";
    Captured "captured" harmless "The stream was capturing, so the call became a part of a graph.";
    CaptureUnknown "capture-unknown" effect "The driver did not say whether the stream was capturing.";
    CaptureMode "capture-mode" effect "The driver did not let the interposer make calls beside a capture.";
    JoiningCapture "joining-capture" effect "Another thread took long to begin or join a capture.";
    NoEvent "no-event" effect "The driver gave or recorded no event for a marker.";
    Invalid "invalid" harmless "The arguments were invalid, so the driver refuses the call.";
    UnchargedContext "uncharged-context" effect "The driver did not name the context of an allocation.";
    UnchargedGpu "uncharged-gpu" effect "The allocation was on a GPU that the daemon does not manage.";
    Reentered "reentered" effect "A library or the driver made the launch inside another call that has a hook.";
}

/// The number of counters, for the reasons of this version and of later versions.
const BYPASS_PLACES: usize = 16;
const _: () = assert!(Bypass::ALL.len() <= BYPASS_PLACES);

/// The number of bypasses of one session, by [`Bypass`]. Counters only grow.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Bypasses([AtomicU64; BYPASS_PLACES]);

impl Bypasses {
    /// Returns counters that are all 0.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; BYPASS_PLACES])
    }

    /// Counts one bypass for the given reason.
    pub fn count(&self, reason: Bypass) {
        self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of bypasses for `reason`.
    pub fn calls(&self, reason: Bypass) -> u64 {
        self.0[reason as usize].load(Ordering::Relaxed)
    }

    /// Resets all counters in a forked child. A child does not inherit its parent's calls.
    pub fn forget(&self) {
        self.0.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }

    /// Copies all counters from `other`.
    pub fn copy_from(&self, other: &Self) {
        for (to, from) in self.0.iter().zip(&other.0) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

/// The coverage of one session: the functions that its process looked up, and its bypasses.
/// Counters only grow.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Coverage {
    /// The hash of the table of driver functions in the session's interposer
    /// ([`crate::driver::TABLE_HASH`]); 0 until the session has written the coverage.
    pub table: AtomicU64,
    /// Look-ups of hooked functions that got the driver's own function, because the function
    /// belongs to a second copy of the driver.
    pub other_instance: AtomicU64,
    /// Look-ups of hooked functions that got the driver's own function, because no export of the
    /// driver has its address.
    pub unknown_address: AtomicU64,
    /// Look-ups of functions that the table does not have, because the driver is newer than the
    /// table.
    pub unknown_names: AtomicU64,
    /// Requests for the driver's private tables. By these tables, a process can launch without the
    /// interposer.
    pub export_tables: AtomicU64,
    /// Loaded libraries whose calls or look-ups bypass the interposer. Most were opened with
    /// `RTLD_DEEPBIND`.
    pub bound_past: AtomicU64,
    /// Look-ups that got the C library's own `dlsym` or `dlvsym`. The interposer does not see
    /// look-ups by these functions.
    pub given_lookups: AtomicU64,
    /// Ways of look-up by which the process gets the driver's own `cuLaunchKernel`, by the
    /// session's own attempts at its beginning.
    pub lost_ways: AtomicU64,
    looked_up: [AtomicU32; WORDS],
    hooked: [AtomicU32; WORDS],
    calls: [AtomicU64; PLACES],
}

/// Returns the offset of a function's counter of calls in [`Coverage`], bytes.
pub const fn calls_offset(id: ApiId) -> usize {
    core::mem::offset_of!(Coverage, calls) + id as usize * size_of::<AtomicU64>()
}

#[cfg(not(loom))]
impl Coverage {
    /// Returns the coverage of a process that has looked up nothing yet.
    pub const fn new() -> Self {
        Self {
            table: AtomicU64::new(0),
            other_instance: AtomicU64::new(0),
            unknown_address: AtomicU64::new(0),
            unknown_names: AtomicU64::new(0),
            export_tables: AtomicU64::new(0),
            bound_past: AtomicU64::new(0),
            given_lookups: AtomicU64::new(0),
            lost_ways: AtomicU64::new(0),
            looked_up: [const { AtomicU32::new(0) }; WORDS],
            hooked: [const { AtomicU32::new(0) }; WORDS],
            calls: [const { AtomicU64::new(0) }; PLACES],
        }
    }
}

#[cfg(not(loom))]
impl Default for Coverage {
    fn default() -> Self {
        Self::new()
    }
}

const fn place(id: ApiId) -> (usize, u32) {
    (id as usize / u32::BITS as usize, 1 << (id as u32 % u32::BITS))
}

impl Coverage {
    /// Records a look-up of `id`, and whether the answer was a hook or the driver's own function.
    pub fn note(&self, id: ApiId, is_hooked: bool) {
        let (word, bit) = place(id);
        self.looked_up[word].fetch_or(bit, Ordering::Relaxed);
        if is_hooked {
            self.hooked[word].fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Returns whether the process looked `id` up.
    pub fn is_looked_up(&self, id: ApiId) -> bool {
        let (word, bit) = place(id);
        self.looked_up[word].load(Ordering::Relaxed) & bit != 0
    }

    /// Returns whether a look-up of `id` got a hook.
    pub fn is_hooked(&self, id: ApiId) -> bool {
        let (word, bit) = place(id);
        self.hooked[word].load(Ordering::Relaxed) & bit != 0
    }

    /// Counts a call of `id`. The hook of `id` calls this if deepres does not account for the call.
    pub fn note_call(&self, id: ApiId) {
        self.calls[id as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of counted calls of `id` ([`unaccounted`]).
    pub fn calls(&self, id: ApiId) -> u64 {
        self.calls[id as usize].load(Ordering::Relaxed)
    }

    /// Resets the counters of calls in a forked child. A child inherits its parent's look-ups, but
    /// not its calls.
    pub fn forget_calls(&self) {
        for count in &self.calls {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Copies everything from `other`, and writes the hash of the table.
    pub fn copy_from(&self, other: &Self) {
        let words = |this: &[AtomicU32], other: &[AtomicU32]| {
            for (to, from) in this.iter().zip(other) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        };
        let copy =
            |to: &AtomicU64, from: &AtomicU64| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        words(&self.looked_up, &other.looked_up);
        words(&self.hooked, &other.hooked);
        copy(&self.other_instance, &other.other_instance);
        copy(&self.unknown_address, &other.unknown_address);
        copy(&self.unknown_names, &other.unknown_names);
        copy(&self.export_tables, &other.export_tables);
        copy(&self.bound_past, &other.bound_past);
        copy(&self.given_lookups, &other.given_lookups);
        copy(&self.lost_ways, &other.lost_ways);
        for (to, from) in self.calls.iter().zip(&other.calls) {
            copy(to, from);
        }
        self.table.store(crate::driver::TABLE_HASH, Ordering::Release);
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Coverage>() == 7488 && size_of::<Bypasses>() == 128);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_noted_functions_are_read_on_the_other_side() {
        let (own, page) = (Coverage::new(), Coverage::new());
        own.note(ApiId::cuLaunchKernel, true);
        own.note(ApiId::cuCtxGetId, false);
        own.unknown_names.store(3, Ordering::Relaxed);
        own.calls[ApiId::cuMemHostAlloc as usize].store(7, Ordering::Relaxed);
        page.copy_from(&own);
        let looked_up = ApiId::ALL.into_iter().filter(|id| page.is_looked_up(*id));
        assert!(looked_up.eq([ApiId::cuCtxGetId, ApiId::cuLaunchKernel]));
        assert!(page.is_hooked(ApiId::cuLaunchKernel) && !page.is_hooked(ApiId::cuCtxGetId));
        assert_eq!((page.calls(ApiId::cuMemHostAlloc), page.calls(ApiId::cuInit)), (7, 0));
        assert_eq!(page.table.load(Ordering::Relaxed), crate::driver::TABLE_HASH);
        own.forget_calls();
        assert_eq!(own.calls(ApiId::cuMemHostAlloc), 0);
        assert!(own.is_looked_up(ApiId::cuCtxGetId));
    }

    #[test]
    fn each_reason_of_a_bypass_has_its_own_name_and_counter() {
        let (own, page) = (Bypasses::new(), Bypasses::default());
        for (number, reason) in Bypass::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
            let is_named_alike = |other: &Bypass| *other != reason && other.name() == reason.name();
            assert!(!Bypass::ALL.iter().any(is_named_alike), "{}", reason.name());
            (0..=number).for_each(|_| own.count(reason));
        }
        page.copy_from(&own);
        let counted = Bypass::ALL.map(|reason| page.calls(reason) as usize);
        assert!(counted.into_iter().eq(1..=Bypass::ALL.len()));
        own.forget();
        assert!(Bypass::ALL.into_iter().all(|reason| own.calls(reason) == 0));
        assert!(Bypass::NoEvent.has_effect() && !Bypass::Captured.has_effect());
    }

    #[test]
    fn functions_have_their_class_and_their_place() {
        assert_eq!(unaccounted(ApiId::cuMemHostAlloc), Some(Unaccounted::Host));
        assert_eq!(unaccounted(ApiId::cuLaunchKernel), None);
        let coverage = Coverage::new();
        let base = (&raw const coverage).addr();
        for id in [ApiId::ALL[0], ApiId::cuMemHostAlloc, ApiId::ALL[ApiId::COUNT - 1]] {
            assert_eq!((&raw const coverage.calls[id as usize]).addr() - base, calls_offset(id));
        }
    }
}
