//! Aligns the device's clock, which gives the times of events, with the host's clock. The
//! calculation is pure.
//!
//! The driver gives an event's time as a distance from a base event, on the device's clock. The
//! driver does not tell the base event's time on the host's clock. An event that a thread sees
//! complete was complete by then, so each look gives an upper bound of the event's time. The
//! promptest look of some seconds gives the time with an error of some tens of microseconds.
//!
//! The two clocks drift apart by some tens of millionths, in either direction. So the time line
//! must move forward as well as back. If the device's clock is slower, a time line that only moved
//! back would fall behind without end. The time lines of contexts and processes that began at
//! different times would then drift apart.

/// The shortest window, ns, after which the alignment may move the time line forward.
const WINDOW_NS: i64 = 1_000_000_000;
/// The fewest looks in a window of [`WINDOW_NS`]. Looks are up to 2 ms apart, so the promptest of
/// these looks comes only some tens of microseconds late.
const LOOKS: u32 = 64;
/// The window length, ns, after which fewer looks are enough. In a longer window, the clocks would
/// drift apart by more than the delay of these looks.
const LONGEST_WINDOW_NS: i64 = 8_000_000_000;

/// The alignment of the times of one context's events with the host's clock.
#[derive(Debug)]
pub struct Alignment {
    /// Time of the base event on the host's clock.
    base_ns: i64,
    /// The beginning of the present window, ns.
    began_ns: i64,
    /// The number of looks at complete events in the window.
    looks: u32,
    /// The shortest time in the window from an event's completion to the look that saw it, ns.
    least_late_ns: i64,
}

impl Alignment {
    /// Returns an alignment whose base event a thread has just seen complete, at `now_ns`.
    pub fn new(now_ns: i64) -> Self {
        Self { base_ns: now_ns, began_ns: now_ns, looks: 0, least_late_ns: i64::MAX }
    }

    /// Compares the clocks by an event that lies `since_base_ns` after the base event, and that a
    /// thread saw complete at `now_ns`. Returns the distance by which the whole time line moved,
    /// ns. The caller moves its own values on the time line by the same distance.
    pub fn look(&mut self, since_base_ns: i64, now_ns: i64) -> i64 {
        let late_ns = now_ns - self.at(since_base_ns);
        self.looks = self.looks.saturating_add(1);
        self.least_late_ns = self.least_late_ns.min(late_ns.max(0));
        let passed_ns = now_ns - self.began_ns;
        let is_over = (passed_ns >= WINDOW_NS && self.looks >= LOOKS) || passed_ns >= LONGEST_WINDOW_NS;
        let moved_ns = if late_ns < 0 {
            late_ns
        } else if is_over {
            self.least_late_ns
        } else {
            0
        };
        if is_over {
            (self.began_ns, self.looks, self.least_late_ns) = (now_ns, 0, i64::MAX);
        }
        self.base_ns += moved_ns;
        moved_ns
    }

    /// Returns the time on the host's clock of an event that lies `since_base_ns` after the base
    /// event.
    pub fn at(&self, since_base_ns: i64) -> i64 {
        self.base_ns + since_base_ns
    }

    /// Makes the event at `at_ns` the new base event.
    pub fn rebase(&mut self, at_ns: i64) {
        self.base_ns = at_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PPM: i64 = 1_000_000;
    const SECOND_NS: i64 = 1_000_000_000;
    /// The longest time between an event and the look that sees it.
    const LATEST_NS: i64 = 2_000_000;

    /// A device whose clock is fast by `ppm` millionths. The test looks at the device every
    /// `every_ns`.
    struct Device {
        ppm: i64,
        every_ns: i64,
        alignment: Alignment,
        base_ns: i64,
        random: u64,
    }

    impl Device {
        fn new(ppm: i64, every_ns: i64, began_ns: i64) -> Self {
            Self {
                ppm,
                every_ns,
                alignment: Alignment::new(began_ns + LATEST_NS),
                base_ns: began_ns,
                random: 1,
            }
        }

        /// Looks at an event that completed at `at_ns`. Returns the error of its place, ns.
        fn look(&mut self, at_ns: i64) -> i64 {
            self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let late_ns = (self.random >> 33) as i64 % LATEST_NS;
            let since_ns = (at_ns - self.base_ns) * (PPM + self.ppm) / PPM;
            self.alignment.look(since_ns, at_ns + late_ns);
            let placed_ns = self.alignment.at(since_ns);
            if at_ns - self.base_ns > 5 * SECOND_NS {
                self.alignment.rebase(placed_ns);
                self.base_ns = at_ns;
            }
            placed_ns - at_ns
        }

        /// Returns the largest error of any place after the first ten seconds, ns.
        fn farthest_ns(&mut self, from_ns: i64, to_ns: i64) -> i64 {
            let mut farthest_ns = 0;
            let mut at_ns = from_ns;
            while at_ns < to_ns {
                let off_ns = self.look(at_ns);
                if at_ns - from_ns > 10 * SECOND_NS {
                    farthest_ns = farthest_ns.max(off_ns.abs());
                }
                at_ns += self.every_ns;
            }
            farthest_ns
        }
    }

    #[test]
    fn a_clock_that_is_fast_or_slow_stays_on_the_hosts_for_an_hour() {
        for ppm in [-100, 0, 100] {
            let farthest_ns = Device::new(ppm, 7_000_000, 0).farthest_ns(0, 3600 * SECOND_NS);
            // The limit covers the drift of one window and the delay of its promptest look.
            assert!(farthest_ns < 300_000, "{ppm} ppm: {farthest_ns} ns off");
        }
    }

    #[test]
    fn contexts_that_began_at_different_times_agree() {
        let mut early = Device::new(-100, 5_000_000, 0);
        early.farthest_ns(0, 1800 * SECOND_NS);
        let mut late = Device::new(-100, 5_000_000, 1800 * SECOND_NS);
        let (from_ns, to_ns) = (1800 * SECOND_NS, 1860 * SECOND_NS);
        assert!(early.farthest_ns(from_ns, to_ns) < 300_000 && late.farthest_ns(from_ns, to_ns) < 300_000);
    }

    #[test]
    fn a_while_in_which_all_looks_were_late_is_made_up_for_by_the_next_prompt_one() {
        let mut alignment = Alignment::new(0);
        for look in 1..=200 {
            alignment.look(look * 10_000_000, look * 10_000_000 + 3_000_000);
        }
        let moved_ns = alignment.look(2_010_000_000, 2_010_000_010);
        assert_eq!((alignment.at(2_010_000_000), moved_ns), (2_010_000_010, -2_999_990));
    }
}
