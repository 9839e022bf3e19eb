//! The memory of one tenant: the tenant's ledger, NVML's figures for the tenant, and the bounds on
//! the memory.

use crate::shm::{SharedPage, Writer};
use deepres_abi::grant::NO_LIMIT;
use deepres_abi::ledger::{LedgerGpu, LedgerPage};
use deepres_policy::memory::Use;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The memory that a tenant holds on a GPU by NVML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByNvml {
    /// The memory that NVML reports for the tenant, bytes.
    pub bytes: u64,
    /// The difference from the tenant's account, bytes; positive if NVML reports more.
    pub drift_bytes: i64,
}

/// The bound of a tenant on a GPU, within its user's cap on memory.
#[derive(Debug, Default)]
struct Bound {
    /// The bound on the tenant's memory on one GPU, bytes. The arbiters have told the tenant's
    /// sessions this bound, or will tell them.
    bytes: u64,
    /// The limit that the arbiter has told the tenant's sessions, bytes.
    in_force: Arc<AtomicU64>,
}

/// The memory of one tenant: its ledger, NVML's figures, and the bounds on its memory.
#[derive(Debug)]
pub struct TenantMemory {
    ledger: Arc<SharedPage<LedgerPage>>,
    by_nvml: BTreeMap<usize, ByNvml>,
    bounds: BTreeMap<usize, Bound>,
    /// The most memory that the tenant may hold on each GPU because other tenants have guarantees,
    /// bytes. On a GPU without an entry, the tenant has no ceiling.
    ceilings: BTreeMap<usize, u64>,
    /// For a tenant with `--memory-follow-use`: the most memory that the tenant held in the present
    /// time window and in the window before, by GPU.
    used: BTreeMap<usize, Use>,
    /// GPUs that the tenant uses, but that have no room for its memory guarantee. On these GPUs,
    /// the tenant has no guarantee.
    unpromised: BTreeSet<usize>,
}

impl TenantMemory {
    /// Returns the memory of a tenant that holds nothing.
    ///
    /// # Errors
    /// The system's error, for lack of memory or descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            ledger: Arc::new(SharedPage::create("deepres-ledger", Writer::Anyone)?),
            by_nvml: BTreeMap::new(),
            bounds: BTreeMap::new(),
            ceilings: BTreeMap::new(),
            used: BTreeMap::new(),
            unpromised: BTreeSet::new(),
        })
    }

    /// Returns the page of the tenant's ledger.
    pub fn ledger(&self) -> &Arc<SharedPage<LedgerPage>> {
        &self.ledger
    }

    /// Returns the tenant's ledger of a GPU.
    pub fn on(&self, gpu: usize) -> Option<&LedgerGpu> {
        self.ledger.page().gpu(gpu)
    }

    /// Returns the memory of a GPU that the tenant holds by its ledger, bytes.
    pub fn held_bytes(&self, gpu: usize) -> u64 {
        self.on(gpu).map_or(0, LedgerGpu::held_bytes)
    }

    /// Opens a session's slot on the host and on `gpus`.
    pub fn open_slot(&self, slot: usize, gpus: &[usize]) {
        self.ledger.page().host().open(slot);
        for ledger in gpus.iter().filter_map(|gpu| self.on(*gpu)) {
            ledger.open(slot);
        }
    }

    /// Empties a session's slot on the host and on the first `gpus` GPUs. Returns the memory that
    /// the slot showed on the GPUs, bytes.
    pub fn clear_slot(&self, slot: usize, gpus: usize) -> u64 {
        let freed = (0..gpus).filter_map(|gpu| self.on(gpu)?.clear(slot));
        let freed_bytes = freed.fold(0, u64::saturating_add);
        self.ledger.page().host().clear(slot);
        freed_bytes
    }

    /// Shortens the ledgers of the first `gpus` GPUs to `used` slots. The caller makes sure that no
    /// process can still write a slot behind these.
    pub fn give_slots_back(&self, used: usize, gpus: usize) {
        self.ledger.page().all(gpus).for_each(|ledger| ledger.shrink(used..ledger.slots()));
    }

    /// Returns NVML's figure for a GPU; `None` if NVML gave no figure.
    pub fn by_nvml(&self, gpu: usize) -> Option<ByNvml> {
        self.by_nvml.get(&gpu).copied()
    }

    /// Replaces NVML's figures for the memory of the tenant, by GPU.
    pub fn set_by_nvml(&mut self, by_nvml: BTreeMap<usize, ByNvml>) {
        self.by_nvml = by_nvml;
    }

    /// Prepares the tenant's memory on a GPU on which it gets its first session. The bound within
    /// the user's cap is 0 until the registry shares out the cap again.
    pub fn begin_on(&mut self, gpu: usize) {
        self.bounds.insert(gpu, Bound::default());
    }

    /// Bounds the memory on a GPU within the user's cap. Returns whether the bound has changed.
    pub fn set_bound(&mut self, gpu: usize, bytes: u64) -> bool {
        std::mem::replace(&mut self.bounds.entry(gpu).or_default().bytes, bytes) != bytes
    }

    /// Returns the bound on a GPU within the user's cap, bytes.
    pub fn bound_bytes(&self, gpu: usize) -> u64 {
        self.bounds.get(&gpu).map_or(0, |bound| bound.bytes)
    }

    /// Returns the shared value of the limit on a GPU that the arbiter has told the tenant's
    /// sessions, bytes. The arbiter writes this value.
    pub fn limit_in_force(&self, gpu: usize) -> Arc<AtomicU64> {
        self.bounds.get(&gpu).map(|bound| Arc::clone(&bound.in_force)).unwrap_or_default()
    }

    /// Returns the most memory of a GPU that a tenant holds or can hold before it learns of a lower
    /// limit, bytes. Bounds within a user's cap count only if the tenant `is_bound`.
    pub fn reach_bytes(&self, gpu: usize, is_bound: bool) -> u64 {
        // The limit must be read before the ledger. Then the ledger shows all memory that sessions
        // reserved under an earlier limit.
        let told = self.bounds.get(&gpu).filter(|_| is_bound);
        let told_bytes = told.map_or(0, |bound| bound.bytes.max(bound.in_force.load(Ordering::SeqCst)));
        told_bytes.max(self.on(gpu).map_or(0, LedgerGpu::held_and_pending_bytes))
    }

    /// Returns the ceiling on a GPU beside the guarantees of other tenants, bytes; `None` without a
    /// ceiling.
    pub fn ceiling_bytes(&self, gpu: usize) -> Option<u64> {
        self.ceilings.get(&gpu).copied()
    }

    /// Changes the ceiling on a GPU. Returns whether the ceiling has changed.
    pub fn set_ceiling(&mut self, gpu: usize, ceiling: Option<u64>) -> bool {
        let before = match ceiling {
            Some(bytes) => self.ceilings.insert(gpu, bytes),
            None => self.ceilings.remove(&gpu),
        };
        before != ceiling
    }

    /// Records the memory that the tenant holds on a GPU now.
    pub fn note_use(&mut self, gpu: usize, now_ns: u64, window_ns: u64) {
        let held_bytes = self.held_bytes(gpu);
        self.used.entry(gpu).or_insert_with(|| Use::new(now_ns)).take_in(now_ns, held_bytes, window_ns);
    }

    /// Forgets the memory that the tenant held lately. The caller calls this if the tenant's memory
    /// does not follow its use.
    pub fn forget_use(&mut self) {
        self.used.clear();
    }

    /// Returns the part of `granted_bytes` that the daemon keeps for the tenant on a GPU, by the
    /// memory that the tenant held lately, bytes.
    pub fn kept_bytes(&self, gpu: usize, granted_bytes: Option<u64>) -> Option<u64> {
        Some(self.used.get(&gpu)?.kept_bytes(granted_bytes.unwrap_or(NO_LIMIT)))
    }

    /// Returns whether the tenant's memory guarantee holds on a GPU.
    pub fn is_promised_on(&self, gpu: usize) -> bool {
        !self.unpromised.contains(&gpu)
    }

    /// Records that GPUs have no room for the tenant's memory guarantee.
    pub fn withhold_on(&mut self, gpus: impl IntoIterator<Item = usize>) {
        self.unpromised.extend(gpus);
    }

    /// Forgets which GPUs have no room for the tenant's memory guarantee.
    pub fn promise_everywhere(&mut self) {
        self.unpromised.clear();
    }
}
