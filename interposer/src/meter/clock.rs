//! How the device's clock, by which events tell the time, lies on the host's. Pure.
//!
//! An event's time is a distance from a base event by the device's clock, and nothing says when the base was on the host's. What is seen complete was
//! complete by then: each look bounds it from above, and the promptest look of some seconds tells it to some microseconds. The clocks run apart by some tens of
//! millionths, either way; a time line that was only ever pulled back would fall behind without end where the device's clock is the slower, and those of contexts and
//! processes that began at different times would run apart.

/// What a time line is moved on by rests on looks over so long, ns, at least …
const WINDOW_NS: i64 = 1_000_000_000;
/// … and on so many: looks are up to 0.4 ms apart, so that the promptest of these is some microseconds late.
const LOOKS: u32 = 64;
/// After so long, ns, fewer do: what they are late by is less than what clocks run apart by otherwise.
const LONGEST_WINDOW_NS: i64 = 8_000_000_000;

/// See the module.
#[derive(Debug)]
pub struct Alignment {
    /// Where the base event lies on the host's clock.
    base_ns: i64,
    /// Since when looks are counted, how many there were, and by how much the promptest was late.
    began_ns: i64,
    looks: u32,
    least_late_ns: i64,
}

/// What came of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Where the event lies on the host's clock.
    pub at_ns: i64,
    /// By how much the whole time line was moved; what lies on it is to be moved too.
    pub moved_ns: i64,
}

impl Alignment {
    /// For a base that was just seen complete, at `now_ns`.
    pub fn new(now_ns: i64) -> Self {
        Self { base_ns: now_ns, began_ns: now_ns, looks: 0, least_late_ns: i64::MAX }
    }

    /// An event `since_base_ns` after the base was seen complete at `now_ns`.
    pub fn place(&mut self, since_base_ns: i64, now_ns: i64) -> Placed {
        let late_ns = now_ns - (self.base_ns + since_base_ns);
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
        Placed { at_ns: self.base_ns + since_base_ns, moved_ns }
    }

    /// The event that lies at `at_ns` is the base from now on.
    pub fn rebase(&mut self, at_ns: i64) {
        self.base_ns = at_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PPM: i64 = 1_000_000;
    const SECOND_NS: i64 = 1_000_000_000;
    /// Looks come this much after what they see, at most.
    const LATEST_NS: i64 = 400_000;

    /// A device whose clock is so many millionths fast, looked at every `every_ns`.
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

        /// How far off what completed at `at_ns` is placed.
        fn look(&mut self, at_ns: i64) -> i64 {
            self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let late_ns = (self.random >> 33) as i64 % LATEST_NS;
            let since_ns = (at_ns - self.base_ns) * (PPM + self.ppm) / PPM;
            let placed = self.alignment.place(since_ns, at_ns + late_ns);
            if at_ns - self.base_ns > 5 * SECOND_NS {
                self.alignment.rebase(placed.at_ns);
                self.base_ns = at_ns;
            }
            placed.at_ns - at_ns
        }

        /// The farthest that anything is placed off, after the first seconds.
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
            // A window's drift, and what the promptest look of one is late by.
            assert!(farthest_ns < 200_000, "{ppm} ppm: {farthest_ns} ns off");
        }
    }

    #[test]
    fn contexts_that_began_at_different_times_agree() {
        let mut early = Device::new(-100, 5_000_000, 0);
        early.farthest_ns(0, 1800 * SECOND_NS);
        let mut late = Device::new(-100, 5_000_000, 1800 * SECOND_NS);
        let (from_ns, to_ns) = (1800 * SECOND_NS, 1860 * SECOND_NS);
        assert!(early.farthest_ns(from_ns, to_ns) < 200_000 && late.farthest_ns(from_ns, to_ns) < 200_000);
    }

    #[test]
    fn a_while_in_which_all_looks_were_late_is_made_up_for_by_the_next_prompt_one() {
        let mut alignment = Alignment::new(0);
        for look in 1..=200 {
            alignment.place(look * 10_000_000, look * 10_000_000 + 3_000_000);
        }
        let placed = alignment.place(2_010_000_000, 2_010_000_010);
        assert_eq!((placed.at_ns, placed.moved_ns), (2_010_000_010, -2_999_990));
    }
}
