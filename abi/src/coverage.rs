//! How a process reaches the driver: which functions it looked up, which of them led to a hook, and what went past.
//!
//! A block at the end of the session's meter page. Functions are named by [`ApiId`], whose numbers hold for one version of the table only; so the session
//! writes [`crate::driver::TABLE_HASH`] beside them, and a controller with another table believes the sums alone.

use crate::driver::ApiId;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Room for functions: what is in the table, and what may come.
pub const PLACES: usize = 896;
const WORDS: usize = PLACES / u32::BITS as usize;
const _: () = assert!(ApiId::COUNT <= PLACES && PLACES.is_multiple_of(u32::BITS as usize));

/// What a function does to the GPU that deepres sees and does not account for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unaccounted {
    /// It puts work on a stream that is neither gated nor metered by itself: a write of 4 or 8 bytes and its like end no segment, and count in the one that they
    /// fall into.
    Work,
    /// It brings device memory that is not charged: another's that is opened here, or the driver's own.
    Memory,
    /// It pins memory of the host, which no limit is on.
    Host,
}

impl Unaccounted {
    /// For people and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Work => "work",
            Self::Memory => "memory",
            Self::Host => "host",
        }
    }
}

/// Calls the macro named by the argument once, with each function that deepres counts and does not account for, whatever it is called with: `Class symbol;`.
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
            Memory cuGreenCtxCreate;
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
        /// What a function does that is counted and not accounted for; `None` for every other.
        pub const fn unaccounted(id: ApiId) -> Option<Unaccounted> {
            match id {
                $(ApiId::$symbol => Some(Unaccounted::$class),)+
                // Hooked: what the process exported itself is charged.
                ApiId::cuMemImportFromShareableHandle => Some(Unaccounted::Memory),
                _ => None,
            }
        }
    };
}
crate::for_each_unaccounted_function!(classes);

/// See the module. Counters only grow.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Coverage {
    /// [`crate::driver::TABLE_HASH`] of whoever writes, or 0 as long as nobody has.
    pub table: AtomicU64,
    /// Functions that we hook, handed out unhooked since they are another copy of the driver's than the first.
    pub other_instance: AtomicU64,
    /// Functions that we hook, handed out unhooked since their address is no export's.
    pub unknown_address: AtomicU64,
    /// Functions handed out whose name is not in the table: the driver is newer than it.
    pub unknown_names: AtomicU64,
    /// Requests for the driver's private tables, through which a client may launch without us.
    pub export_tables: AtomicU64,
    /// Libraries whose calls, or look-ups, go to the driver without us: opened with `RTLD_DEEPBIND`, mostly.
    pub bound_past: AtomicU64,
    /// Times that somebody was given the C library's own `dlsym` or `dlvsym`: what is found by it is not seen.
    pub given_lookups: AtomicU64,
    reserved: [AtomicU64; 1],
    looked_up: [AtomicU32; WORDS],
    hooked: [AtomicU32; WORDS],
    calls: [AtomicU64; PLACES],
}

/// Where a function's count of calls lies in [`Coverage`], bytes.
pub const fn calls_offset(id: ApiId) -> usize {
    core::mem::offset_of!(Coverage, calls) + id as usize * size_of::<AtomicU64>()
}

#[cfg(not(loom))]
impl Coverage {
    /// Nothing yet.
    pub const fn new() -> Self {
        Self {
            table: AtomicU64::new(0),
            other_instance: AtomicU64::new(0),
            unknown_address: AtomicU64::new(0),
            unknown_names: AtomicU64::new(0),
            export_tables: AtomicU64::new(0),
            bound_past: AtomicU64::new(0),
            given_lookups: AtomicU64::new(0),
            reserved: [const { AtomicU64::new(0) }; 1],
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
    /// `id` was asked for, and the answer was a hook or the driver's own function.
    pub fn note(&self, id: ApiId, is_hooked: bool) {
        let (word, bit) = place(id);
        self.looked_up[word].fetch_or(bit, Ordering::Relaxed);
        if is_hooked {
            self.hooked[word].fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Whether `id` was asked for.
    pub fn is_looked_up(&self, id: ApiId) -> bool {
        let (word, bit) = place(id);
        self.looked_up[word].load(Ordering::Relaxed) & bit != 0
    }

    /// Whether a hook was handed out for `id`.
    pub fn is_hooked(&self, id: ApiId) -> bool {
        let (word, bit) = place(id);
        self.hooked[word].load(Ordering::Relaxed) & bit != 0
    }

    /// A call of `id`, whose hook counts by itself what it does not account for.
    pub fn note_call(&self, id: ApiId) {
        self.calls[id as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Calls of `id`, if it is counted ([`unaccounted`]).
    pub fn calls(&self, id: ApiId) -> u64 {
        self.calls[id as usize].load(Ordering::Relaxed)
    }

    /// Forgets the calls: in a forked child, whose look-ups are its parent's and whose calls are not.
    pub fn forget_calls(&self) {
        for count in &self.calls {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Takes over what `other` has.
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
        for (to, from) in self.calls.iter().zip(&other.calls) {
            copy(to, from);
        }
        self.table.store(crate::driver::TABLE_HASH, Ordering::Release);
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Coverage>() == 7488);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_read_on_the_other_side_and_nothing_else() {
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
