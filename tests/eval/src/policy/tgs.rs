//! A best-effort job that is limited by the rate of the production job's launches.
//!
//! The rules and constants are those of TGS's hijack/src/{high,low}_priority_hijack_call.c as
//! published (June 2023). Production never waits. Every 5 s production reports the blocks that it
//! launched. While the controller profiles production (five messages), the guest is frozen. After
//! the profile, the guest may launch `limit` blocks in each 50 ms.
//!
//! The guest moves the limit at each message. The limit goes up while production's rate is within 3
//! % of its best rate, and down otherwise. The limit also goes down if the rate is higher than the
//! best rate, because the rule ignores the sign of the difference. The limit has a slow start and a
//! congestion avoidance.
//!
//! One rule is more favourable than in TGS. In TGS, the profile goes on while the last messages are
//! as good as the best message. So with a steady production, the profile never ends. In the
//! evaluation, such messages end the profile, so that the guest runs.
//!
//! The policy treats several production tenants as one tenant, with the sum of their rates. Each
//! guest has a limiter of its own, because the limiter belongs to a process.

use super::blocks;
use crate::device::Tenant;
use crate::gate::{Gate, Launch};
use crate::scenario::Scenario;

/// The time between two messages of production about its launches, ns (`duration` of production's
/// monitor and watcher in TGS).
const MESSAGE_NS: u64 = 5_000_000_000;
/// The time in which the guest may launch `limit` blocks, ns (`duration` of the guest's watcher in
/// TGS).
const UNIT_NS: u64 = 50_000_000;
/// The time for which a guest's launch beyond the limit sleeps, ns (`TIME_TICK` in TGS).
const SLEEP_NS: u64 = 10_000_000;
/// The number of messages of a profile (`PROFILE_TIME` in TGS).
const PROFILE_MESSAGES: u32 = 5;
/// The number of messages whose rates the manager remembers (`WINDOW_SIZE` in TGS).
const WINDOW: usize = 5;
/// The limit with which the guest starts, blocks (`LIMIT_INITIALIZER` in TGS).
const FIRST_LIMIT: f64 = 20_000.0;
/// The least change of the limit, blocks (`RATE_MIN` in TGS).
const MIN_STEP: f64 = 1_000.0;
/// The difference from production's best rate, as a part of it, up to which the limit goes up
/// (`threshold` in TGS).
const THRESHOLD: f64 = 0.03;
/// The rate below which the policy assumes that a tenant does not launch.
const NO_RATE: f64 = 1_000.0;
/// Number of messages before windows without a rate mean anything.
const EARLY: u64 = 15;
/// `UPPER_LIMIT`, and the values to which a limit may rise with any rate of the guest itself.
const UPPER: f64 = 1e14;
const SLOW_START_CEILING: f64 = (1u64 << 40) as f64;
const CEILING: f64 = 65_536.0 * 65_536.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    SlowStart,
    Avoidance,
}

/// The guest's estimate of production's best rate, and the limit that follows from it.
#[derive(Debug)]
struct Manager {
    best: f64,
    window: [f64; WINDOW],
    profiled: u32,
    goes_on: bool,
    profiling: bool,
    messages: u64,
    phase: Phase,
    was_down: bool,
    far_off: u32,
    limit: f64,
}

#[derive(Debug)]
struct Guest {
    is_guest: bool,
    launched: f64,
    launched_before: f64,
    waiting: bool,
}

/// The rate limiter of guests, as in TGS.
#[derive(Debug)]
pub struct TgsLike {
    guests: Vec<Guest>,
    manager: Manager,
    production: f64,
    message_ns: u64,
    unit_ns: u64,
    poll_ns: Option<u64>,
}

impl TgsLike {
    /// Returns a limiter for the guests of a scenario.
    pub fn new(scenario: &Scenario) -> Self {
        let guest = |tenant: &crate::scenario::Tenant| Guest {
            is_guest: tenant.is_guest(),
            launched: 0.0,
            launched_before: 0.0,
            waiting: false,
        };
        Self {
            guests: scenario.tenants.iter().map(guest).collect(),
            manager: Manager::new(),
            production: 0.0,
            message_ns: MESSAGE_NS,
            unit_ns: UNIT_NS,
            poll_ns: None,
        }
    }
}

impl Manager {
    fn new() -> Self {
        Self {
            best: 1.0,
            window: [0.0; WINDOW],
            profiled: 0,
            goes_on: false,
            profiling: true,
            messages: 0,
            phase: Phase::SlowStart,
            was_down: false,
            far_off: 0,
            limit: 0.0,
        }
    }

    /// Returns the best mean of two neighbours before `rate`, and then adds `rate` to the window.
    fn shift(&mut self, rate: f64) -> f64 {
        let best = self.window.windows(2).map(|pair| f64::midpoint(pair[0], pair[1])).fold(0.0, f64::max);
        self.window.rotate_right(1);
        self.window[0] = rate;
        best
    }

    fn believe(&mut self, best: f64) {
        self.best = if best > self.best { self.best.max(best * 0.975) } else { self.best.min(best * 1.025) };
    }

    fn message(&mut self, rate: f64, guest_rate: f64) {
        let rate = rate.max(1.0);
        let best = self.shift(rate);
        let off = (best - self.best) / self.best;
        if self.profiling {
            self.profiled += 1;
            if off.abs() <= 0.05 {
                let before = self.best;
                self.best = self.best.max(best);
                // The original uses whole numbers, so a difference below 1 does not count.
                self.goes_on = (before - best).abs() >= 1.0 && self.best != best;
            } else {
                self.believe(best);
                self.goes_on = true;
            }
            self.profiling = self.profiled < PROFILE_MESSAGES || self.goes_on;
            return;
        }
        if off.abs() <= 0.1 {
            self.best = self.best.max(best);
        } else if off.abs() > 0.2 {
            self.believe(best);
            self.profiling = true;
            self.profiled = 0;
            self.goes_on = false;
            return;
        }
        self.messages += 1;
        if self.messages == 1 {
            return self.start(FIRST_LIMIT);
        }
        let silent = self.window.iter().filter(|rate| **rate < NO_RATE).count();
        if silent <= WINDOW / 5 * 2 || self.messages < EARLY {
            if silent == 2 && self.messages > EARLY {
                self.start(FIRST_LIMIT);
            } else {
                self.adjust(rate, guest_rate);
            }
        } else {
            self.start((3.0 * guest_rate).clamp(CEILING, UPPER));
        }
    }

    fn start(&mut self, limit: f64) {
        self.limit = limit;
        self.phase = Phase::SlowStart;
    }

    fn adjust(&mut self, rate: f64, guest_rate: f64) {
        let off = ((rate - self.best) / self.best).abs();
        let ceiling = |least: f64| (3.0 * guest_rate).clamp(least, UPPER);
        match self.phase {
            Phase::SlowStart if off <= THRESHOLD => {
                self.limit = (self.limit * 1.5 + 1.0).min(ceiling(SLOW_START_CEILING));
            }
            Phase::SlowStart => {
                self.limit /= 1.5;
                self.was_down = true;
                self.phase = Phase::Avoidance;
            }
            Phase::Avoidance => {
                let fine = if self.was_down { off <= THRESHOLD } else { off < THRESHOLD };
                if fine {
                    self.limit += (self.best * 0.000_25).max(MIN_STEP);
                } else {
                    self.limit -= (self.limit * 0.08).max(MIN_STEP);
                }
                self.was_down = !fine;
                self.limit = self.limit.min(ceiling(CEILING));
                if off >= 3.0 * THRESHOLD {
                    self.phase = Phase::SlowStart;
                    self.limit /= 10.0;
                }
            }
        }
        self.far_off = if off >= 0.12 { self.far_off + 1 } else { 0 };
        if self.far_off >= 20 {
            self.best *= 0.8;
            self.far_off = 0;
            self.phase = Phase::SlowStart;
            self.limit /= 2.0;
        }
        self.limit = self.limit.max(0.0).floor();
    }
}

impl Gate for TgsLike {
    fn admit(&mut self, now_ns: u64, launch: &Launch) -> bool {
        let blocks = blocks::of(launch.length_ns) as f64;
        let guest = &mut self.guests[launch.tenant];
        if !guest.is_guest {
            self.production += blocks;
            return true;
        }
        if guest.waiting {
            return false;
        }
        if guest.launched > self.manager.limit {
            guest.waiting = true;
            self.poll_ns.get_or_insert(now_ns + SLEEP_NS);
            return false;
        }
        guest.launched += blocks;
        true
    }

    fn done(&mut self, _: u64, _: Tenant, _: u64, _: bool) {}

    fn rests(&mut self, _: u64, _: Tenant) {}

    fn wake_ns(&self) -> Option<u64> {
        [Some(self.message_ns), Some(self.unit_ns), self.poll_ns].into_iter().flatten().min()
    }

    fn wake(&mut self, now_ns: u64, retry: &mut Vec<Tenant>) {
        if now_ns >= self.unit_ns {
            self.unit_ns += UNIT_NS;
            for guest in &mut self.guests {
                guest.launched_before = std::mem::take(&mut guest.launched);
            }
        }
        if now_ns >= self.message_ns {
            self.message_ns += MESSAGE_NS;
            let guests: f64 = self.guests.iter().map(|guest| guest.launched_before).sum();
            self.manager.message(std::mem::take(&mut self.production), guests);
        }
        if self.poll_ns.is_some_and(|poll_ns| poll_ns <= now_ns) {
            self.poll_ns = None;
            let waiting = self.guests.iter_mut().enumerate().filter(|(_, guest)| guest.waiting);
            for (tenant, guest) in waiting {
                guest.waiting = false;
                retry.push(tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    /// Returns a manager that got this many messages of a rate of 10,000.
    fn told(messages: u32) -> Manager {
        let mut manager = Manager::new();
        (0..messages).for_each(|_| manager.message(10_000.0, 0.0));
        manager
    }

    #[test]
    fn the_guest_is_frozen_for_the_five_messages_of_the_profile_and_begins_with_twenty_thousand_blocks() {
        for messages in 0..=5 {
            assert_eq!(told(messages).limit, 0.0, "after {messages}");
        }
        assert!(told(4).profiling && !told(5).profiling);
        assert_eq!((told(5).best, told(6).limit), (10_000.0, 20_000.0));
    }

    #[test]
    fn a_profile_goes_on_while_productions_rate_moves() {
        let mut manager = Manager::new();
        for message in 1..=8 {
            manager.message(10_000.0 * 1.2f64.powi(message), 0.0);
        }
        assert!(manager.profiling && manager.limit == 0.0);
    }

    #[test]
    fn while_production_is_within_three_percent_of_its_best_the_limit_grows_by_half() {
        assert_eq!(told(7).limit, 30_001.0);
        assert_eq!(told(8).limit, 45_002.0);
        let mut manager = told(7);
        manager.message(9_701.0, 0.0);
        assert_eq!(manager.limit, 45_002.0, "2.99 % slower");
    }

    #[test]
    fn beyond_three_percent_either_way_the_limit_shrinks_by_the_same_and_then_moves_in_small_steps() {
        for rate in [9_690.0, 10_310.0] {
            let mut manager = told(7);
            manager.message(rate, 0.0);
            assert_eq!(
                (manager.limit, manager.phase),
                (20_000.0, Phase::Avoidance),
                "a difference has no sign"
            );
            manager.message(10_000.0, 0.0);
            assert_eq!(manager.limit, 21_000.0, "up by a thousand");
            manager.message(9_600.0, 0.0);
            assert_eq!(manager.limit, 19_320.0, "down by 8 %");
        }
    }

    #[test]
    fn at_three_times_the_threshold_the_limit_falls_to_a_tenth_and_starts_slowly_again() {
        let mut manager = told(7);
        manager.message(9_690.0, 0.0);
        manager.message(9_000.0, 0.0);
        // 20,000 less 8 % is 18,400, and the limit is a tenth of this rate.
        assert_eq!((manager.limit, manager.phase), (1_840.0, Phase::SlowStart));
    }

    #[test]
    fn a_best_rate_that_is_far_from_what_is_seen_is_profiled_again() {
        let mut manager = told(7);
        // The best of two neighbours rises above the best estimate by more than a fifth.
        (0..3).for_each(|_| manager.message(13_000.0, 0.0));
        assert!(manager.profiling);
    }

    #[test]
    fn a_guest_may_launch_its_limit_in_each_fifty_milliseconds_and_production_is_never_held_up() {
        let tenants = [
            ("production", "", "kernels = 10, kernel_us = 1000, pause_ms = 10"),
            ("guest", Scenario::GUEST, "kernels = 1000, kernel_us = 100"),
        ];
        let scenario = Scenario::of("duration_s = 60\nwarmup_s = 34", &tenants);
        let mut gate = TgsLike::new(&scenario);
        gate.manager.limit = 13_200.0;
        let launch = |tenant| Launch { tenant, length_ns: 100_000, arrived_ns: 0, due_ns: None };
        // A kernel of 100 us has 1,320 blocks. Ten kernels reach the limit, and one more kernel may
        // begin at the limit.
        let admitted = (0..100).filter(|_| gate.admit(0, &launch(1))).count();
        assert_eq!(admitted, 11);
        assert!((0..1000).all(|_| gate.admit(0, &launch(0))));
        // The guest looks again every 10 ms, in vain until the unit is over.
        let mut retry = Vec::new();
        gate.wake(SLEEP_NS, &mut retry);
        assert!(retry == [1] && !gate.admit(SLEEP_NS, &launch(1)));
        gate.wake(UNIT_NS, &mut retry);
        assert!(gate.admit(UNIT_NS, &launch(1)));
        // In a whole run the guest gets a part of the gaps after the profile. While frozen, the
        // guest gets one kernel in each unit, because a guest without a launch is not above a limit
        // of 0.
        let run = Policy::TgsLike.run_alone(&scenario);
        assert!(run.outcomes[1].used_ns > 0);
        let profile = Scenario { duration_ns: 29_000_000_000, warmup_ns: 0, ..scenario };
        assert!(Policy::TgsLike.run_alone(&profile).outcomes[1].used_ns <= 29 * 20 * 100_000);
    }
}
