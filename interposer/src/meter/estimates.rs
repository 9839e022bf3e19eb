//! The table of estimates: the mean time of each known launch, learned from segments with one
//! launch. By the estimates, the interposer bounds the work in flight, and the meter thread charges
//! launches that no event timed. The first few launches of each kernel all get a segment of their
//! own. After these launches, the estimate is *settled*. Under MPS, the meter thread marks all
//! estimates now and then. The next launch of each kernel then goes another way once, and notes its
//! width ([`super::width`]).

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use super::thread::MeterThread;

/// The number of buckets of the table. A bucket is one cache line. If a job has more kernels than
/// the table has places, the kernels overwrite each other, and the table learns them again.
const BUCKETS: usize = 1024;
/// The number of places in a bucket.
const WAYS: usize = 4;
/// The number of measurements and bounds after which an estimate is settled. The first launch of a
/// kernel can include the time in which the driver loads the kernel, and one more can be
/// interrupted.
const SETTLED: u8 = 3;
/// The bit that marks an estimate that is not settled.
const UNSETTLED: u64 = 1 << 63;
/// The bit that marks an estimate whose kernel has not noted its width in this period.
const UNSEEN: u64 = 1 << 62;
/// The bits of an estimate's word that hold the mean time.
const MEAN_BITS: u64 = !(UNSETTLED | UNSEEN);
/// A new measurement has the weight of one divided by this number in the mean.
const WEIGHT: u64 = 4;
/// The most, in multiples of the mean, for which the table counts a measurement. So one measurement
/// that a busy machine made long does not change the estimate for all launches after it. If a
/// kernel really takes longer from now on, the mean follows within a few measurements.
const MOST_TIMES_KNOWN: u64 = 3;
/// The steps by which each measurement above the limit [`MOST_TIMES_KNOWN`] raises the limit. So
/// many steps make the limit four times as large. If a kernel takes long again and again, the
/// machine is not the cause. If the table cut these long times off, no tenant would pay for them.
const MORE_PER_LONG: u8 = 64;
/// The number of steps that double the limit [`MOST_TIMES_KNOWN`]. Each measurement within the
/// limit takes one step back.
const MORE_PER_DOUBLING: u8 = 32;
/// The most steps above the limit [`MOST_TIMES_KNOWN`]. These steps raise the limit to 128 times
/// its lowest value.
const MOST_MORE: u8 = 224;
/// The number of times beside other tenants' work of which the table takes the least.
const BESIDE: u8 = 8;
/// The divisor of the mean for the shortest time of a kernel whose times scatter. The table assumes
/// no shorter time, so a bound above the quotient does not contradict the mean.
const TIMES_SCATTERED: u64 = 2;

/// The table of estimates: the mean time of each known launch, by the key of the launch.
#[derive(Debug)]
pub struct Estimates {
    buckets: Box<[Bucket]>,
    /// The histories of the places, outside the cache line that a launch reads.
    histories: Box<[[History; WAYS]]>,
}

/// The history of a place's measurements. Only the meter thread writes the history.
#[derive(Debug, Default)]
struct History {
    /// The steps by which the limit is above [`MOST_TIMES_KNOWN`]. [`MORE_PER_DOUBLING`] steps
    /// double the limit.
    more: AtomicU8,
    /// The number of measurements and bounds of the place's key, at most the greatest `u8`.
    measured: AtomicU8,
    /// Whether the table has a measurement of the key, and not only bounds.
    is_measured: AtomicBool,
    /// The least of the latest times beside other tenants' work, ns, and the number of these times.
    least_beside_ns: AtomicU64,
    beside: AtomicU8,
}

impl History {
    /// Counts a measurement or bound. Returns the number of measurements and bounds so far.
    fn count(&self) -> u8 {
        let measured = self.measured.load(Ordering::Relaxed).saturating_add(1);
        self.measured.store(measured, Ordering::Relaxed);
        measured
    }
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Bucket([Place; WAYS]);

#[derive(Debug, Default)]
struct Place {
    key: AtomicU64,
    /// The mean time, ns, with the bits [`UNSETTLED`] and [`UNSEEN`].
    mean: AtomicU64,
}

impl Place {
    fn mean_ns(&self) -> u64 {
        self.mean.load(Ordering::Relaxed) & MEAN_BITS
    }

    /// Sets the mean time of the launch, which comes from `measured` measurements and bounds.
    fn set(&self, mean_ns: u64, measured: u8) {
        let mark = if measured < SETTLED { UNSETTLED } else { 0 };
        // If a launch removes the mark at this moment, the mark stays, and one more launch goes the
        // other way.
        let unseen = self.mean.load(Ordering::Relaxed) & UNSEEN;
        self.mean.store(mean_ns.clamp(1, MEAN_BITS) | mark | unseen, Ordering::Relaxed);
    }
}

impl Default for Estimates {
    fn default() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| Bucket::default()).collect(),
            histories: (0..BUCKETS).map(|_| Default::default()).collect(),
        }
    }
}

impl Estimates {
    #[inline(always)]
    fn bucket(&self, key: u64) -> Option<&Bucket> {
        self.buckets.get(key as usize % BUCKETS)
    }

    #[inline(always)]
    fn place(&self, key: u64) -> Option<&Place> {
        self.bucket(key)?.0.iter().find(|place| place.key.load(Ordering::Relaxed) == key)
    }

    /// Returns the mean time of a launch with this key, ns, if the table knows the key.
    pub fn get(&self, key: u64) -> Option<u64> {
        self.place(key).map(Place::mean_ns)
    }

    /// Returns the mean time of a launch with this key, ns, if the table has a measurement of it
    /// and not only bounds.
    pub fn measured_ns(&self, key: u64) -> Option<u64> {
        let is_measured = self.history(key)?.is_measured.load(Ordering::Relaxed);
        self.get(key).filter(|_| is_measured)
    }

    /// Returns the mean time of a launch with this key, ns, if its estimate is settled and not
    /// marked by [`Self::mark_unseen`].
    #[inline(always)]
    pub fn settled(&self, key: u64) -> Option<u64> {
        let mean = self.place(key)?.mean.load(Ordering::Relaxed);
        (mean & !MEAN_BITS == 0).then_some(mean)
    }

    /// Marks all estimates, until a launch of their kernels calls [`Self::see`].
    pub fn mark_unseen(&self, _meter: MeterThread) {
        for place in self.buckets.iter().flat_map(|Bucket(places)| places) {
            let is_used = place.key.load(Ordering::Relaxed) != 0;
            // A write takes the cache line away from the launching threads.
            if is_used && place.mean.load(Ordering::Relaxed) & UNSEEN == 0 {
                place.mean.fetch_or(UNSEEN, Ordering::Relaxed);
            }
        }
    }

    /// Removes the mark of [`Self::mark_unseen`] from the estimate of this key. The caller notes
    /// the width of the launch afterwards.
    pub fn see(&self, key: u64) {
        if let Some(place) = self.place(key)
            && place.mean.load(Ordering::Relaxed) & UNSEEN != 0
        {
            place.mean.fetch_and(!UNSEEN, Ordering::Relaxed);
        }
    }

    /// Returns the number of measurements and bounds behind the mean of this key, at most the
    /// greatest `u8`.
    pub fn measured(&self, key: u64) -> u8 {
        self.history(key).map_or(0, |history| history.measured.load(Ordering::Relaxed))
    }

    fn history(&self, key: u64) -> Option<&History> {
        let bucket = key as usize % BUCKETS;
        let (Bucket(places), histories) = self.buckets.get(bucket).zip(self.histories.get(bucket))?;
        let of_key = places.iter().zip(histories).find(|(place, _)| place.key.load(Ordering::Relaxed) == key);
        of_key.map(|(_, history)| history)
    }

    /// Records that a launch took no more than `most_ns`, if the meter could not measure its exact
    /// time. Until the table has a measurement of the key, the least bound is the estimate. From
    /// then on, the table uses a bound only if it is far below the mean. Otherwise the mean of
    /// scattered times would follow the shortest times.
    pub fn bound(&self, _meter: MeterThread, key: u64, most_ns: u64) {
        let scatters = self.history(key).is_some_and(|history| history.is_measured.load(Ordering::Relaxed));
        let part = if scatters { TIMES_SCATTERED } else { 1 };
        if self.get(key).is_none_or(|known_ns| known_ns / part > most_ns) {
            self.take(key, most_ns, false);
        } else if let Some((place, history)) = self.place(key).zip(self.history(key)) {
            place.set(place.mean_ns(), history.count());
        }
    }

    /// Records that a launch took `took_ns`, beside other tenants' work. The time can include their
    /// turns, so it is a bound. The least of [`BESIDE`] times includes no turn of others as a rule.
    /// If it is above the mean, the table counts it in, because the launch takes longer than
    /// before.
    pub fn beside(&self, meter: MeterThread, key: u64, took_ns: u64) {
        self.bound(meter, key, took_ns);
        let Some(history) = self.history(key) else { return };
        let times = history.beside.load(Ordering::Relaxed);
        let before_ns = if times == 0 { u64::MAX } else { history.least_beside_ns.load(Ordering::Relaxed) };
        let least_ns = before_ns.min(took_ns);
        history.least_beside_ns.store(least_ns, Ordering::Relaxed);
        history.beside.store((times + 1) % BESIDE, Ordering::Relaxed);
        if times + 1 == BESIDE && self.get(key).is_some_and(|known_ns| known_ns < least_ns) {
            self.take(key, least_ns, history.is_measured.load(Ordering::Relaxed));
        }
    }

    /// Records that a launch took `took_ns`. Returns the time by which the table counts the launch,
    /// ns. Returns `None` for the first launch with this key.
    pub fn learn(&self, _meter: MeterThread, key: u64, took_ns: u64) -> Option<u64> {
        self.take(key, took_ns, true)
    }

    fn take(&self, key: u64, took_ns: u64, is_measured: bool) -> Option<u64> {
        /// The bits that choose the place of a new key in a full bucket. These bits do not choose
        /// the bucket.
        const VICTIM_SHIFT: u32 = 32;
        let bucket = key as usize % BUCKETS;
        let (Bucket(places), histories) = self.buckets.get(bucket).zip(self.histories.get(bucket))?;
        let of = |wanted: u64| {
            places.iter().zip(histories).find(|(place, _)| place.key.load(Ordering::Relaxed) == wanted)
        };
        let victim = (key >> VICTIM_SHIFT) as usize % WAYS;
        if let Some((place, history)) = of(key) {
            let History { more, measured, .. } = history;
            let was_measured = history.is_measured.load(Ordering::Relaxed);
            history.is_measured.store(was_measured || is_measured, Ordering::Relaxed);
            let mean_ns = place.mean_ns();
            let known_more = more.load(Ordering::Relaxed);
            let most_ns = mean_ns.saturating_mul(MOST_TIMES_KNOWN << (known_more / MORE_PER_DOUBLING));
            let is_long = took_ns > most_ns;
            let next_more = if is_long {
                known_more.saturating_add(MORE_PER_LONG).min(MOST_MORE)
            } else {
                known_more.saturating_sub(1)
            };
            more.store(next_more, Ordering::Relaxed);
            let is_second = measured.load(Ordering::Relaxed) == 1;
            let counted_ns = took_ns.min(most_ns);
            // If a second measurement is shorter, the first one included something else. So did all
            // bounds before a shorter time.
            let replaces = took_ns < mean_ns && (!was_measured || is_measured && is_second);
            let weight = if replaces { 1 } else { WEIGHT };
            place.set(mean_ns - mean_ns / weight + counted_ns / weight, history.count());
            return Some(counted_ns);
        }
        if let Some((place, history)) = of(0).or(places.get(victim).zip(histories.get(victim))) {
            let History { more, measured, .. } = history;
            history.is_measured.store(is_measured, Ordering::Relaxed);
            place.set(took_ns, 1);
            place.key.store(key, Ordering::Relaxed);
            more.store(0, Ordering::Relaxed);
            measured.store(1, Ordering::Relaxed);
            history.beside.store(0, Ordering::Relaxed);
        }
        None
    }
}

/// Odd numbers without a pattern, one for each word of a key. The first number is 2⁶⁴ divided by
/// the golden ratio. The others are digits of π with the last bit set.
const MULTIPLIERS: [u64; 5] = [
    0x9e37_79b9_7f4a_7c15,
    0x243f_6a88_85a3_08d3,
    0x1319_8a2e_0370_7345,
    0xa409_3822_299f_31d1,
    0x082e_fa98_ec4e_6c89,
];

/// Mixes words into a key that is never 0. The function runs on the launch path, so for speed its
/// products do not depend on each other.
#[inline(always)]
pub fn key(words: [u64; 5]) -> u64 {
    const FOLD: u32 = 32;
    let sum = words
        .iter()
        .zip(MULTIPLIERS)
        .fold(0_u64, |sum, (word, multiplier)| sum.wrapping_add(word.wrapping_mul(multiplier)));
    ((sum ^ (sum >> FOLD)).wrapping_mul(MULTIPLIERS[0]) >> 1) | 1 << 63
}

/// Returns the key of a kernel launch. Launches of the same function with the same geometry have
/// the same key, and take the same time.
#[inline(always)]
pub fn launch_key(function: u64, grid: [u64; 3], block: [u64; 3], shared_bytes: u64) -> u64 {
    let pair = |high: u64, low: u64| high << u32::BITS | low;
    key([function, pair(grid[0], grid[1]), pair(grid[2], block[0]), pair(block[1], block[2]), shared_bytes])
}

#[cfg(test)]
mod tests {
    use super::*;

    const METER: MeterThread = MeterThread::acted();

    fn keyed(word: u64) -> u64 {
        key([word, 1, 1, 1, 0])
    }

    #[test]
    fn a_mean_follows_its_measurements_and_keys_do_not_mix() {
        let estimates = Estimates::default();
        assert_eq!(estimates.get(keyed(1)), None);
        estimates.learn(METER, keyed(1), 1_000);
        assert_eq!(estimates.get(keyed(1)), Some(1_000));
        for _ in 0..50 {
            estimates.learn(METER, keyed(1), 3_000);
        }
        assert!(estimates.get(keyed(1)).is_some_and(|ns| (2_900..=3_000).contains(&ns)));
        assert_eq!(estimates.get(keyed(2)), None);
        assert_ne!(key([1, 2, 0, 0, 0]), key([2, 1, 0, 0, 0]));
    }

    #[test]
    fn measurements_count_for_their_own_kernel_alone() {
        let estimates = Estimates::default();
        assert_eq!(estimates.measured(keyed(1)), 0);
        for times in 1..=3 {
            estimates.learn(METER, keyed(1), 1_000);
            assert_eq!((estimates.measured(keyed(1)), estimates.measured(keyed(2))), (times, 0));
        }
        for _ in 0..1_000 {
            estimates.learn(METER, keyed(1), 1_000);
        }
        assert_eq!(estimates.measured(keyed(1)), u8::MAX);
    }

    #[test]
    fn an_estimate_is_settled_after_a_few_measurements_and_a_first_launch_that_took_long_is_forgotten() {
        let estimates = Estimates::default();
        for (took_ns, known_ns) in [(90_000, 90_000), (5_000, 5_000), (5_000, 5_000)] {
            assert_eq!(estimates.settled(keyed(1)), None);
            estimates.learn(METER, keyed(1), took_ns);
            assert_eq!(estimates.get(keyed(1)), Some(known_ns));
        }
        assert_eq!(estimates.settled(keyed(1)), Some(5_000));
        // Bounds count too, because the meter may never measure an exact time.
        (0..SETTLED).for_each(|_| estimates.bound(METER, keyed(2), 7_000));
        assert_eq!(estimates.settled(keyed(2)), Some(7_000));
    }

    #[test]
    fn a_marked_estimate_is_not_settled_until_a_launch_is_seen_and_keeps_its_time() {
        let estimates = Estimates::default();
        for word in [1, 2] {
            (0..SETTLED).for_each(|_| _ = estimates.learn(METER, keyed(word), 1_000));
        }
        estimates.mark_unseen(METER);
        assert_eq!([1, 2].map(|word| estimates.settled(keyed(word))), [None; 2]);
        assert_eq!((estimates.get(keyed(1)), estimates.measured_ns(keyed(1))), (Some(1_000), Some(1_000)));
        // The meter thread does not remove the mark.
        estimates.learn(METER, keyed(1), 1_000);
        estimates.bound(METER, keyed(1), 1_000);
        assert_eq!((estimates.get(keyed(1)), estimates.settled(keyed(1))), (Some(1_000), None));
        estimates.see(keyed(1));
        estimates.see(keyed(3));
        assert_eq!([1, 2, 3].map(|word| estimates.settled(keyed(word))), [Some(1_000), None, None]);
        assert_eq!(estimates.get(keyed(2)), Some(1_000));
        // A new estimate has no mark, because its launches noted their widths without an estimate.
        (0..SETTLED).for_each(|_| _ = estimates.learn(METER, keyed(4), 1_000));
        assert_eq!(estimates.settled(keyed(4)), Some(1_000));
    }

    #[test]
    fn times_beside_other_work_do_not_lengthen_an_estimate_unless_all_are_long() {
        let estimates = Estimates::default();
        (0..SETTLED).for_each(|_| _ = estimates.learn(METER, keyed(1), 1_000));
        for launch in 0..1_000 {
            estimates.beside(METER, keyed(1), if launch % 5 == 0 { 1_000 } else { 90_000 });
        }
        assert_eq!(estimates.get(keyed(1)), Some(1_000));
        for launch in 0..1_000 {
            estimates.beside(METER, keyed(1), if launch % 5 == 0 { 5_000 } else { 90_000 });
        }
        assert!(estimates.get(keyed(1)).is_some_and(|ns| (4_800..=5_000).contains(&ns)));
    }

    #[test]
    fn times_beside_other_work_are_no_measurements() {
        let estimates = Estimates::default();
        let beside = |took_ns: u64| (0..BESIDE).for_each(|_| estimates.beside(METER, keyed(1), took_ns));
        beside(2_000);
        beside(5_000);
        assert!(
            estimates.get(keyed(1)).is_some_and(|ns| ns > 2_000) && estimates.measured_ns(keyed(1)).is_none()
        );
        beside(2_000);
        assert_eq!(estimates.get(keyed(1)), Some(2_000), "the least bound");
    }

    #[test]
    fn one_outlier_does_not_stand_for_what_follows() {
        let estimates = Estimates::default();
        estimates.learn(METER, keyed(1), 1_000);
        estimates.learn(METER, keyed(1), 4_000_000);
        assert!(estimates.get(keyed(1)).is_some_and(|ns| ns < 2_000));
    }

    #[test]
    fn a_kernel_that_takes_long_now_and_then_has_its_long_launches_in_the_estimate() {
        let estimates = Estimates::default();
        let (mut sum_ns, mut charged_ns) = (0, 0);
        for launch in 0..10_000_u64 {
            // A tenth of the launches takes long, without a pattern that the weights could follow.
            let took_ns = if key([launch, 0, 0, 0, 0]).is_multiple_of(10) { 100_000 } else { 5_000 };
            if launch >= 100 {
                sum_ns += took_ns;
                charged_ns += estimates.get(keyed(1)).unwrap_or(0);
            }
            estimates.learn(METER, keyed(1), took_ns);
        }
        let part = charged_ns as f64 / sum_ns as f64;
        assert!((0.93..=1.02).contains(&part), "{part}");
    }

    #[test]
    fn times_that_scatter_are_known_by_their_mean() {
        const MEAN_NS: u64 = 20_000;
        let estimates = Estimates::default();
        let (mut sum_ns, mut known_ns) = (0, 0);
        for launch in 0..20_000_u64 {
            // All times from one half to three halves of the mean are equally likely.
            let took_ns = MEAN_NS / 2 + key([launch, 0, 0, 0, 0]) % MEAN_NS;
            if let Some(estimate_ns) = estimates.get(keyed(1)) {
                sum_ns += took_ns;
                known_ns += estimate_ns;
            }
            estimates.learn(METER, keyed(1), took_ns);
        }
        let part = known_ns as f64 / sum_ns as f64;
        assert!((0.995..=1.005).contains(&part), "{part}");
    }

    #[test]
    fn how_long_one_counts_as_is_told() {
        let estimates = Estimates::default();
        let long = || estimates.learn(METER, keyed(1), 1_000_000);
        assert_eq!(estimates.learn(METER, keyed(1), 1_000), None);
        assert_eq!(long(), Some(3_000));
        assert!(long() > Some(10_000) && long() > Some(100_000), "it is not the only one");
        for _ in 0..1_000 {
            estimates.learn(METER, keyed(1), 1_000);
        }
        assert!(long() < Some(4_000), "it is, for long");
    }

    #[test]
    fn a_kernel_that_is_only_bounded_is_known_until_it_is_measured() {
        let estimates = Estimates::default();
        estimates.bound(METER, keyed(1), 9_000);
        assert_eq!(estimates.get(keyed(1)), Some(9_000));
        estimates.bound(METER, keyed(1), 50_000);
        assert_eq!(estimates.get(keyed(1)), Some(9_000));
        estimates.bound(METER, keyed(1), 5_000);
        assert_eq!((estimates.get(keyed(1)), estimates.measured_ns(keyed(1))), (Some(5_000), None));
        estimates.learn(METER, keyed(1), 2_000);
        assert_eq!(estimates.measured_ns(keyed(1)), Some(2_000));
    }

    #[test]
    fn the_shortest_of_what_scatters_do_not_pass_for_its_mean() {
        let estimates = Estimates::default();
        estimates.learn(METER, keyed(1), 8_000);
        for _ in 0..100 {
            estimates.bound(METER, keyed(1), 5_000);
        }
        assert_eq!(estimates.get(keyed(1)), Some(8_000));
        // A far lower bound shows that the first measurement included something else.
        estimates.bound(METER, keyed(1), 1_000);
        assert!(estimates.get(keyed(1)) < Some(8_000));
    }

    #[test]
    fn a_program_of_a_thousand_kernels_is_known_almost_whole() {
        let estimates = Estimates::default();
        // The keys resemble addresses of functions, which lie far apart at regular steps.
        let kernels = || (0..1_000_u64).map(|number| keyed(0x7f00_0000_0000 + number * 0x140));
        kernels().for_each(|key| {
            estimates.learn(METER, key, 5);
        });
        let known = kernels().filter(|key| estimates.get(*key).is_some()).count();
        assert!(known > 980, "{known}");
    }
}
