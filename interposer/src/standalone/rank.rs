//! This process's rank on one GPU: whether it spins for a rank on another GPU, and whether it can
//! go on.
//!
//! A kernel can spin until a rank on another GPU launches its part. If the gate of the other rank
//! is closed, the spin would last as long as the tenant's pause, and be charged as used time. So
//! the other rank gets a lease of one launch at a time, until no rank spins. Ranks that depend on
//! each other then pause together ([`StandalonePage::due_ns`]).
//!
//! [`StandalonePage::due_ns`]: deepres_abi::standalone::StandalonePage::due_ns

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use deepres_abi::meter::Reading;
use deepres_abi::standalone::StandaloneGpu;

/// The rank counts as spinning if its work exceeds the usual time by more than the usual time over
/// this number, plus a look's delay. The lengths of a kernel vary less.
const USUAL_PER_SPIN: u64 = 2;
/// The longest spin of one rank for a second rank, ns. Within this time, the second rank can
/// launch.
const ENDLESS_NS: u64 = 1_000_000_000;
/// Processes look at their kernels at different moments. If kernels of two ranks end together, the
/// ranks see the ends within this time, ns.
const SKEW_NS: u64 = 500_000;

/// The last known state of the rank. Only the meter thread uses this state.
#[derive(Debug, Default)]
pub struct Rank {
    used_ns: AtomicU64,
    runs: AtomicBool,
    /// When work of the rank last began or ended, ns.
    progressed_ns: AtomicU64,
}

impl Rank {
    /// Decides by a reading of the rank's meter whether the rank spins, and records the result in
    /// the tenant's state on the GPU.
    pub fn note(&self, gpu: &StandaloneGpu, reading: &Reading, now_ns: u64) {
        let used_ns = self.used_ns.swap(reading.compute_ns, Ordering::Relaxed);
        let runs = self.runs.swap(reading.in_flight, Ordering::Relaxed);
        if (used_ns, runs) != (reading.compute_ns, reading.in_flight) {
            self.progressed_ns.store(now_ns, Ordering::Relaxed);
        }
        // Among ranks that depend on each other, a rank spins if it has ended no kernel for longer
        // than its longest kernel takes.
        let is_known = gpu.depends(now_ns);
        let most_ns = if is_known { reading.longest_ns } else { u64::MAX };
        let usual_ns = reading.in_flight_ns.min(most_ns);
        let since_ns = self.progressed_ns.load(Ordering::Relaxed);
        let longest_ns = usual_ns.saturating_add(usual_ns / USUAL_PER_SPIN).saturating_add(SKEW_NS);
        // Without a measured kernel, no length is usual. Work that never ends waits for no rank.
        let spins_ns = now_ns.saturating_sub(since_ns);
        let spins = reading.in_flight
            && reading.longest_ns != 0
            && spins_ns > longest_ns
            && spins_ns - longest_ns < ENDLESS_NS;
        gpu.set_spins(spins, now_ns);
    }

    /// Returns whether the rank has had nothing in flight for so long that its peers have seen its
    /// end.
    pub fn is_settled(&self, runs: bool, now_ns: u64) -> bool {
        !runs && now_ns >= self.progressed_ns.load(Ordering::Relaxed).saturating_add(SKEW_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::standalone::memory;
    use deepres_abi::standalone::{DEPENDENCE_NS, StandalonePage};

    const MS: u64 = 1_000_000;
    const NOW_NS: u64 = 400_000_000 * MS;
    const KERNEL_NS: u64 = 2 * MS;

    fn reading(compute_ns: u64, in_flight_ns: u64) -> Reading {
        Reading {
            compute_ns,
            in_flight: in_flight_ns != 0,
            in_flight_ns,
            longest_ns: KERNEL_NS,
            ..Reading::default()
        }
    }

    /// Returns a page on which the tenant has used two GPUs, with shares of a half.
    fn page() -> &'static StandalonePage {
        let page = memory::page::<StandalonePage>().unwrap();
        for (place, used_ns) in [(0, MS), (1, 5 * MS)] {
            page.gpu(place).unwrap().allowance.charge(NOW_NS, used_ns, deepres_abi::PPM / 2);
        }
        page
    }

    #[test]
    fn ranks_of_which_one_spins_for_the_other_pause_together_for_a_while() {
        let (page, rank) = (page(), Rank::default());
        let gpu = page.gpu(0).unwrap();
        let due_ns = |now_ns| [0, 1].map(|place| page.due_ns(place, now_ns));
        let [first_ns, second_ns] = due_ns(NOW_NS);
        assert!(first_ns < second_ns, "each GPU by itself");
        rank.note(gpu, &reading(0, 3 * KERNEL_NS), NOW_NS);
        let usual_ns = NOW_NS + 3 * KERNEL_NS * 3 / 2 + SKEW_NS;
        rank.note(gpu, &reading(0, 3 * KERNEL_NS), usual_ns);
        assert!(!page.is_spun_for(1, usual_ns), "all of it may take so long");
        let now_ns = usual_ns + 1;
        rank.note(gpu, &reading(0, 3 * KERNEL_NS), now_ns);
        assert!(page.is_spun_for(1, now_ns) && !page.is_spun_for(0, now_ns));
        assert_eq!(due_ns(now_ns), [second_ns, second_ns]);
        assert_eq!(due_ns(now_ns + DEPENDENCE_NS + 1), [first_ns, second_ns], "for a while");
        // Once the ranks are known to depend on each other, one kernel shows a spin.
        rank.note(gpu, &reading(1, 3 * KERNEL_NS), now_ns);
        assert!(!page.is_spun_for(1, now_ns), "it went on");
        let now_ns = now_ns + KERNEL_NS * 3 / 2 + SKEW_NS + 1;
        rank.note(gpu, &reading(1, 3 * KERNEL_NS), now_ns);
        assert!(page.is_spun_for(1, now_ns));
        assert!(!page.is_spun_for(1, now_ns + 1_000 * MS), "its process may have died");
        rank.note(gpu, &reading(2, 0), now_ns);
        assert!(!page.is_spun_for(1, now_ns), "it has ended");
    }

    #[test]
    fn a_rank_goes_on_only_once_its_peers_have_seen_it_idle() {
        let (page, rank) = (page(), Rank::default());
        let gpu = page.gpu(0).unwrap();
        rank.note(gpu, &reading(0, MS), NOW_NS);
        assert!(!rank.is_settled(true, NOW_NS + SKEW_NS));
        rank.note(gpu, &reading(MS, 0), NOW_NS + MS);
        assert!(!rank.is_settled(false, NOW_NS + MS + SKEW_NS - 1));
        assert!(rank.is_settled(false, NOW_NS + MS + SKEW_NS));
    }
}
