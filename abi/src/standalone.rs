//! The file by which the processes of a tenant share their limits without a daemon. For each GPU,
//! the file holds the memory that the processes hold, and their GPU time.
//!
//! Each process owns a slot of the ledger, by a lock on the slot's byte of the file. The kernel
//! releases the lock when the process ends. The file assigns a place to each GPU by UUID, because
//! processes can see the GPUs in different orders.

use crate::MAX_GPUS;
use crate::allowance::Allowance;
use crate::ledger::LedgerPage;
use crate::page::{Head, Kind, Page};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::turn::Turn;
use crate::wire::Uuid;

/// The time for which ranks pause together after one rank spun for another rank, ns. After this
/// time, the interposer checks anew whether the ranks depend on each other, which costs one spin.
pub const DEPENDENCE_NS: u64 = 30_000_000_000;
/// A record that a rank spins is valid for this time, ns, because the rank's process may have died
/// since.
const SPIN_NS: u64 = 20_000_000;
/// The key of a free place.
const FREE: u64 = 0;

/// The state of a tenant without a daemon on one GPU: its GPU time, and the turns of its processes.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct StandaloneGpu {
    /// The GPU's key, or [`FREE`].
    key: AtomicU64,
    memory_bytes: AtomicU64,
    share_ppm: AtomicU32,
    /// The turn of the process that has the GPU.
    pub turn: Turn,
    /// When a rank on this GPU was last seen to spin for a rank on another GPU, ns of
    /// `CLOCK_MONOTONIC`; 0 if no rank spins.
    spins_ns: AtomicU64,
    /// When a process last saw that the ranks on this GPU and on another GPU depend on each other,
    /// ns of `CLOCK_MONOTONIC`; 0 for never.
    depends_ns: AtomicU64,
    /// The tenant's GPU time.
    pub allowance: Allowance,
}

/// The contents of the file that the processes of a tenant share without a daemon.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct StandalonePage {
    head: Head,
    gpus: [StandaloneGpu; MAX_GPUS],
    ledger: LedgerPage,
}

// SAFETY: the type is repr(C), begins with the head, its parts contain only atomics, and it has its
// own kind.
unsafe impl Page for StandalonePage {
    const KIND: Kind = Kind::Standalone;
    fn head(&self) -> &Head {
        &self.head
    }
}

impl StandalonePage {
    /// Returns the tenant's ledger.
    pub fn ledger(&self) -> &LedgerPage {
        &self.ledger
    }

    /// Returns the tenant's state on the GPU at `place`, or `None` if `place` is no place.
    pub fn gpu(&self, place: usize) -> Option<&StandaloneGpu> {
        self.gpus.get(place)
    }

    /// Returns whether the tenant has used a GPU at another place.
    pub fn has_others(&self, place: usize) -> bool {
        self.others(place).next().is_some()
    }

    fn others(&self, place: usize) -> impl Iterator<Item = &StandaloneGpu> {
        let is_other =
            move |(other, gpu): &(usize, &StandaloneGpu)| *other != place && gpu.allowance.charged_ns() != 0;
        self.gpus.iter().enumerate().filter(is_other).map(|(_, gpu)| gpu)
    }

    /// Returns whether a rank on another GPU spins for a rank that waits at its gate on the GPU at
    /// `place`. If such a rank spins, the method notes that the ranks on both GPUs depend on each
    /// other.
    pub fn is_spun_for(&self, place: usize, now_ns: u64) -> bool {
        let mut is_spun_for = false;
        for other in self.others(place).filter(|other| other.spins(now_ns)) {
            is_spun_for = true;
            other.depends_ns.store(now_ns, Ordering::Relaxed);
        }
        if let Some(gpu) = self.gpu(place).filter(|_| is_spun_for) {
            gpu.depends_ns.store(now_ns, Ordering::Relaxed);
        }
        is_spun_for
    }

    /// Returns when the tenant's pause on the GPU at `place` ends, ns of `CLOCK_MONOTONIC`. Ranks
    /// that depend on each other pause together.
    pub fn due_ns(&self, place: usize, now_ns: u64) -> u64 {
        let Some(gpu) = self.gpu(place) else { return 0 };
        let others = self.others(place).filter(|other| gpu.depends(now_ns) && other.depends(now_ns));
        others.map(|other| other.allowance.due_ns()).fold(gpu.allowance.due_ns(), u64::max)
    }

    /// Returns the place of a GPU. If the GPU has no place yet, takes a free place. Returns `None`
    /// if no place is free.
    pub fn place(&self, uuid: &Uuid) -> Option<usize> {
        let key = key(uuid);
        self.gpus.iter().position(|gpu| match gpu.key.load(Ordering::Acquire) {
            FREE => {
                let taken = gpu.key.compare_exchange(FREE, key, Ordering::AcqRel, Ordering::Acquire);
                taken.is_ok() || taken == Err(key)
            }
            found => found == key,
        })
    }
}

impl StandaloneGpu {
    /// Notes whether a rank on this GPU spins at `now_ns`.
    pub fn set_spins(&self, spins: bool, now_ns: u64) {
        let spins_ns = if spins { now_ns } else { 0 };
        if spins || self.spins_ns.load(Ordering::Relaxed) != 0 {
            self.spins_ns.store(spins_ns, Ordering::Relaxed);
        }
    }

    fn spins(&self, now_ns: u64) -> bool {
        is_recent(&self.spins_ns, now_ns, SPIN_NS)
    }

    /// Returns whether a process saw within the last [`DEPENDENCE_NS`] that the ranks on this GPU
    /// and on another GPU depend on each other.
    pub fn depends(&self, now_ns: u64) -> bool {
        is_recent(&self.depends_ns, now_ns, DEPENDENCE_NS)
    }

    /// Sets the tenant's share from `now_ns` on, parts per million; 0 for no share. The pause that
    /// the tenant still owes for used time changes in proportion to the shares.
    pub fn set_share_ppm(&self, ppm: u32, now_ns: u64) {
        let before_ppm = self.share_ppm.swap(ppm, Ordering::Relaxed);
        if before_ppm != ppm && before_ppm != 0 && ppm != 0 {
            self.allowance.change_share(before_ppm, ppm, now_ns);
        }
    }

    /// Returns the tenant's share, parts per million, or `None` if the tenant has no share.
    pub fn share_ppm(&self) -> Option<u32> {
        Some(self.share_ppm.load(Ordering::Relaxed)).filter(|ppm| *ppm != 0)
    }

    /// Sets the tenant's memory limit, bytes; 0 for no limit.
    pub fn set_memory_bytes(&self, bytes: u64) {
        self.memory_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Returns the tenant's memory limit, bytes, or `None` if the tenant has no limit.
    pub fn memory_bytes(&self) -> Option<u64> {
        Some(self.memory_bytes.load(Ordering::Relaxed)).filter(|bytes| *bytes != 0)
    }
}

/// Returns whether `at_ns` is a time within the last `lasts_ns`, and not 0.
fn is_recent(at_ns: &AtomicU64, now_ns: u64, lasts_ns: u64) -> bool {
    let at_ns = at_ns.load(Ordering::Relaxed);
    at_ns != 0 && now_ns.saturating_sub(at_ns) <= lasts_ns
}

/// Returns a hash (FNV-1a) of a UUID in one word, so that a process can take a place in one step.
/// The file assumes that no two GPUs of a host have the same hash.
fn key(uuid: &Uuid) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x100_0000_01b3;
    let hash = uuid.iter().fold(OFFSET, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME));
    if hash == FREE { OFFSET } else { hash }
}

#[cfg(not(loom))]
const _: () = {
    assert!(core::mem::offset_of!(StandaloneGpu, allowance) == 64);
    assert!(core::mem::offset_of!(StandalonePage, gpus) == 64);
    assert!(core::mem::offset_of!(StandalonePage, ledger).is_multiple_of(4096));
    assert!(size_of::<StandalonePage>().is_multiple_of(4096));
};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::page;

    /// Returns a page on zeroed memory that lives as long as the test program.
    fn page() -> &'static StandalonePage {
        const ALIGN: usize = align_of::<StandalonePage>();
        let memory = Box::leak(vec![0_u8; size_of::<StandalonePage>() + ALIGN].into_boxed_slice());
        let start = memory.as_mut_ptr();
        // SAFETY: the memory is zeroed, aligned by the offset, long enough, and never freed.
        unsafe { page::create(start.add(start.align_offset(ALIGN)), size_of::<StandalonePage>()).unwrap() }
    }

    fn uuid(number: u8) -> Uuid {
        let mut uuid = Uuid::default();
        uuid[15] = number;
        uuid
    }

    #[test]
    fn a_gpu_has_one_place_for_all_processes_and_another_gpu_another() {
        let page = page();
        assert_eq!(page.place(&uuid(7)), Some(0));
        assert_eq!(page.place(&uuid(3)), Some(1));
        assert_eq!(page.place(&uuid(7)), Some(0));
        for number in 100..100 + (MAX_GPUS as u8 - 2) {
            assert!(page.place(&uuid(number)).is_some());
        }
        assert_eq!(page.place(&uuid(99)), None, "a host has so many GPUs at most");
        assert_eq!(page.place(&uuid(3)), Some(1));
    }

    #[test]
    fn limits_are_kept_only_once_they_are_set() {
        let gpu = page().gpu(2).unwrap();
        assert_eq!((gpu.share_ppm(), gpu.memory_bytes()), (None, None));
        gpu.set_share_ppm(300_000, 0);
        gpu.set_memory_bytes(1 << 30);
        assert_eq!((gpu.share_ppm(), gpu.memory_bytes()), (Some(300_000), Some(1 << 30)));
        assert!(page().gpu(MAX_GPUS).is_none());
    }

    #[test]
    fn a_tenant_waits_no_longer_than_its_present_share_demands() {
        const SECOND_NS: u64 = 1_000_000_000;
        let gpu = page().gpu(0).unwrap();
        gpu.set_share_ppm(10_000, 0);
        gpu.allowance.charge(0, 10 * SECOND_NS, 10_000);
        assert_eq!(gpu.allowance.due_ns(), 1_000 * SECOND_NS);
        gpu.set_share_ppm(10_000, 0);
        assert_eq!(gpu.allowance.due_ns(), 1_000 * SECOND_NS);
        gpu.set_share_ppm(500_000, 0);
        assert_eq!(gpu.allowance.due_ns(), 20 * SECOND_NS);
    }
}
