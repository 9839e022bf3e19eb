//! The account of the GPU time that a tenant uses without a daemon. All processes of the tenant
//! share one account for each GPU.
//!
//! The account keeps two facts. The first fact is *when* the tenant's work was on the GPU. By the
//! first fact, the account counts time in which two processes had work on the GPU only once. The
//! second fact is the moment *until which* the tenant must pause for the GPU time that it used.
//!
//! Each fact consists of words that change independently. So if a process is killed at any
//! instruction, the account stays correct, except for work that this process had not reported yet.
//!
//! The account divides time into ticks. A ring has a word for each block of ticks. The word holds
//! the covered ticks, and the number of the ring's round. If several processes cover the same tick,
//! the account charges the process that covers the tick first.
//!
//! [`Allowance::charge`] is the generic cell rate algorithm of ITU-T I.371, in its virtual
//! scheduling form. GPU time takes the place of cells.

use crate::PPM;
use crate::sync::{AtomicU64, Ordering};

/// The length of a tick, ns. An interval covers each tick that begins in the interval. So on
/// average, the covered ticks are as long as the interval.
pub const TICK_NS: u64 = 8192;
const TICKS_PER_BLOCK: u64 = u32::BITS as u64;
/// The number of blocks in the ring. The ring covers about a second, which is longer than a launch
/// and than the time between two reports of a meter.
#[cfg(not(loom))]
const BLOCKS: usize = 4096;
/// The number of blocks under the model checker, which cannot follow many blocks.
#[cfg(loom)]
const BLOCKS: usize = 2;
/// The number of ticks that the ring surely covers: the ticks of all blocks but one. An interval
/// can begin and end inside a block.
const TICKS_REMEMBERED: u64 = (BLOCKS as u64 - 1) * TICKS_PER_BLOCK;

/// The longest unused time that a tenant may use later, ns. So after a pause, a tenant may use at
/// most its share of this time at once. The value covers the delay with which a thread on a busy
/// machine wakes up.
pub const BURST_NS: u64 = 200_000_000;

/// The GPU time of one tenant on one GPU.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Allowance {
    /// When the pause for the used time ends, ns of `CLOCK_MONOTONIC`.
    due_ns: AtomicU64,
    /// All GPU time that the account ever charged, ns.
    charged_ns: AtomicU64,
    covered: [AtomicU64; BLOCKS],
}

impl Default for Allowance {
    fn default() -> Self {
        Self {
            due_ns: AtomicU64::new(0),
            charged_ns: AtomicU64::new(0),
            covered: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl Allowance {
    /// Records that the tenant had work on the GPU from `start_ns` to `end_ns` (`CLOCK_MONOTONIC`).
    /// Returns the part of this time that no process had reported, in whole ticks, ns.
    pub fn cover(&self, start_ns: u64, end_ns: u64) -> u64 {
        let (mut tick, end) = (start_ns.div_ceil(TICK_NS), end_ns.div_ceil(TICK_NS));
        // The ring no longer knows older time, so the method takes older time as unreported.
        let remembered = end.saturating_sub(TICKS_REMEMBERED);
        let mut fresh = remembered.saturating_sub(tick);
        tick = tick.max(remembered);
        while tick < end {
            let first = tick % TICKS_PER_BLOCK;
            let count = (TICKS_PER_BLOCK - first).min(end - tick);
            let ticks = (u32::MAX >> (TICKS_PER_BLOCK - count)) << first;
            fresh += u64::from(self.mark(tick / TICKS_PER_BLOCK, ticks));
            tick += count;
        }
        fresh.saturating_mul(TICK_NS)
    }

    /// Marks ticks of a block. Returns the number of ticks that were not marked before.
    fn mark(&self, block: u64, ticks: u32) -> u32 {
        let Some(word) = self.covered.get((block % BLOCKS as u64) as usize) else { return 0 };
        let round = (block / BLOCKS as u64) as u32;
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            let (seen_round, seen_ticks) = ((seen >> u32::BITS) as u32, seen as u32);
            let marked = match round.wrapping_sub(seen_round).cast_signed() {
                0 => seen_ticks,
                1.. => 0,
                // The ring has moved past this block and lost its marks.
                _ => return ticks.count_ones(),
            };
            let next = u64::from(round) << u32::BITS | u64::from(marked | ticks);
            match word.compare_exchange_weak(seen, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return (ticks & !marked).count_ones(),
                Err(now) => seen = now,
            }
        }
    }

    /// Charges `used_ns` of GPU time, used from `start_ns` on, to a tenant with a share of
    /// `share_ppm`. The charge makes the pause longer by the used time divided by the share.
    pub fn charge(&self, start_ns: u64, used_ns: u64, share_ppm: u32) {
        if used_ns == 0 {
            return;
        }
        let made_up_ns = u128::from(used_ns) * u128::from(PPM) / u128::from(share_ppm.max(1));
        let made_up_ns = u64::try_from(made_up_ns).unwrap_or(u64::MAX);
        let earliest_ns = start_ns.saturating_sub(BURST_NS);
        self.charged_ns.fetch_add(used_ns, Ordering::Relaxed);
        let mut due_ns = self.due_ns.load(Ordering::Relaxed);
        while let Err(now_ns) = self.due_ns.compare_exchange_weak(
            due_ns,
            due_ns.max(earliest_ns).saturating_add(made_up_ns),
            Ordering::Relaxed,
            Ordering::Relaxed,
        ) {
            due_ns = now_ns;
        }
    }

    /// Changes the tenant's share from `from_ppm` to `to_ppm` at `now_ns`. The rest of the pause
    /// changes in proportion.
    pub fn change_share(&self, from_ppm: u32, to_ppm: u32, now_ns: u64) {
        let mut due_ns = self.due_ns.load(Ordering::Relaxed);
        while let Some(left_ns) = due_ns.checked_sub(now_ns) {
            let left_ns = u128::from(left_ns) * u128::from(from_ppm) / u128::from(to_ppm.max(1));
            let left_ns = u64::try_from(left_ns).unwrap_or(u64::MAX);
            let next_ns = now_ns.saturating_add(left_ns);
            match self.due_ns.compare_exchange_weak(due_ns, next_ns, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => due_ns = now,
            }
        }
    }

    /// Ends the pause at `now_ns` at the latest, because another arbiter has charged the time.
    pub fn end_pause(&self, now_ns: u64) {
        self.due_ns.fetch_min(now_ns, Ordering::Relaxed);
    }

    /// Returns when the pause ends, ns of `CLOCK_MONOTONIC`. From this time on, the tenant may
    /// launch.
    pub fn due_ns(&self) -> u64 {
        self.due_ns.load(Ordering::Relaxed)
    }

    /// Returns all GPU time that the account ever charged, ns.
    pub fn charged_ns(&self) -> u64 {
        self.charged_ns.load(Ordering::Relaxed)
    }
}

#[cfg(not(loom))]
const _: () = {
    assert!(core::mem::offset_of!(Allowance, covered) == 16);
    assert!(size_of::<Allowance>() == 64 + BLOCKS * 8);
};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;
    /// The present time in the tests: the machine has run for some days.
    const NOW_NS: u64 = 400_000 * SECOND_NS;

    fn ticks(count: u64) -> u64 {
        count * TICK_NS
    }

    #[test]
    fn time_covered_by_several_counts_once_in_any_order() {
        let at = |tick: u64| NOW_NS.next_multiple_of(TICK_NS) + ticks(tick);
        let account = Box::<Allowance>::default();
        assert_eq!(account.cover(at(10), at(100)), ticks(90));
        assert_eq!(account.cover(at(50), at(120)), ticks(20));
        assert_eq!(account.cover(at(0), at(130)), ticks(20), "both ends are new");
        assert_eq!(account.cover(at(5), at(125)), 0);
        assert_eq!(account.cover(at(130), at(130)), 0);
        assert_eq!(account.cover(at(140), at(130)), 0, "backwards is nothing");
    }

    #[test]
    fn short_intervals_are_right_in_the_mean() {
        let account = Box::<Allowance>::default();
        let (length_ns, every_ns, count) = (6_000, 32_123, 10_000);
        let covered_ns: u64 =
            (0..count).map(|i| account.cover(NOW_NS + i * every_ns, NOW_NS + i * every_ns + length_ns)).sum();
        let off = covered_ns.abs_diff(length_ns * count) * 100 / (length_ns * count);
        assert!(off < 2, "{covered_ns} ns, off by {off} %");
    }

    #[test]
    fn time_longer_or_older_than_the_remembered_time_is_charged_in_full() {
        let account = Box::<Allowance>::default();
        let whole_ns = ticks(TICKS_REMEMBERED);
        let start_ns = NOW_NS.next_multiple_of(TICK_NS);
        assert_eq!(account.cover(start_ns, start_ns + 3 * whole_ns), 3 * whole_ns);
        assert_eq!(account.cover(start_ns + 2 * whole_ns, start_ns + 3 * whole_ns), 0, "is remembered");
        assert_eq!(account.cover(start_ns, start_ns + whole_ns), whole_ns, "is not");
        assert_eq!(account.cover(0, u64::MAX / TICK_NS * TICK_NS), u64::MAX / TICK_NS * TICK_NS);
    }

    #[test]
    fn a_backlogged_tenant_gets_exactly_its_share_whatever_the_kernels_length() {
        for kernel_ns in [2_000, 5_000_000, 700_000_000] {
            let account = Box::<Allowance>::default();
            let share_ppm = 300_000;
            let (mut now_ns, mut used_ns) = (NOW_NS, 0);
            account.charge(now_ns, 1, share_ppm);
            while now_ns < NOW_NS + 30 * SECOND_NS {
                // The tenant launches when it may, after the delay of a wake-up.
                now_ns = now_ns.max(account.due_ns()) + 70_000.min(kernel_ns / 2);
                account.charge(now_ns, kernel_ns, share_ppm);
                used_ns += kernel_ns;
                now_ns += kernel_ns;
            }
            // The result can differ by the rounding to whole nanoseconds.
            let owed_ns = (account.due_ns() - NOW_NS + BURST_NS) * 3 / 10;
            assert!(
                used_ns.abs_diff(owed_ns) * 5_000 <= owed_ns,
                "{used_ns} of {owed_ns} by kernels of {kernel_ns}"
            );
        }
    }

    #[test]
    fn a_pause_is_made_up_for_no_longer_than_the_burst_allows() {
        let account = Box::<Allowance>::default();
        account.charge(NOW_NS, 1_000_000, 500_000);
        let later_ns = NOW_NS + 100 * SECOND_NS;
        account.charge(later_ns, BURST_NS / 2, 500_000);
        assert_eq!(account.due_ns(), later_ns);
    }

    #[test]
    fn debt_is_paid_off_by_the_share_in_force() {
        let account = Box::<Allowance>::default();
        account.charge(NOW_NS + BURST_NS, 10 * SECOND_NS, 10_000);
        assert_eq!(account.due_ns(), NOW_NS + 1_000 * SECOND_NS);
        // Half of the pause has passed.
        let now_ns = NOW_NS + 500 * SECOND_NS;
        account.change_share(10_000, 500_000, now_ns);
        assert_eq!(account.due_ns(), now_ns + 10 * SECOND_NS);
        account.change_share(500_000, 10_000, now_ns);
        assert_eq!(account.due_ns(), now_ns + 500 * SECOND_NS, "and back");
        let later_ns = now_ns + 501 * SECOND_NS;
        account.change_share(10_000, 1, later_ns);
        assert_eq!(account.due_ns(), now_ns + 500 * SECOND_NS, "nothing is left");
    }

    #[test]
    fn debts_of_any_size_stay_numbers() {
        let account = Box::<Allowance>::default();
        account.charge(NOW_NS, u64::MAX, 1);
        assert_eq!(account.due_ns(), u64::MAX);
        account.charge(NOW_NS, u64::MAX, 0);
        assert_eq!(account.due_ns(), u64::MAX);
        account.change_share(PPM, 0, NOW_NS);
        assert_eq!(account.due_ns(), u64::MAX);
    }
}
