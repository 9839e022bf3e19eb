//! Keeps guests (best-effort tenants) from harming the owners of a GPU, after TGS (NSDI 2023).
//!
//! A guest runs only while no owner wants the GPU. Guests cost an owner time in two ways. First, an
//! owner that wants the GPU again waits for the guest's work in flight. Second, if this work does
//! not end, the owner runs beside the work and is slower. The guard measures the second cost by the
//! owner's progress. The progress is the GPU time that the owner used, as a part of the time in
//! which it wanted the GPU. The guard compares this progress with the progress without guests. The
//! guard bounds the sum of both costs to a part of the time (`max_harm`).
//!
//! The guard forecasts a guest's cost from the owners' last pauses ([`Outlook`]). The *credit* is
//! the time that guests may still cost the owners. The credit grows as time passes, and shrinks by
//! all costs. A guest may launch if cost / time ≤ credit / largest credit. Here *cost* is the
//! expected cost of the launch, and *time* is the time until the guest's work is gone. So the guard
//! always allows a launch that costs nothing. Dear launches ([`DEAR_COST_PART`]) may use at most a
//! quarter of the credit. If a cost exceeds the credit, no guest runs until passing time has paid
//! the excess.
//!
//! If all owners have SLOs, each owner may wait for a guest for a small part of its SLO. Such short
//! waits have a credit of their own that grows faster ([`TOLERATED_PPM`]), because an owner that
//! answers requests can catch up.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;
use deepres_abi::PPM;

/// The part of the time that guests may cost owners by default: 1 %.
pub const DEFAULT_MAX_HARM_PPM: u32 = PPM / 100;

/// If all owners have SLOs, they may lose this part of the time to short waits for guests: 5 %. An
/// owner that works in steps loses at most this part of its work, whatever the length of its steps.
pub const TOLERATED_PPM: u32 = PPM / 20;

/// If all owners have SLOs, a pause must last for a minimum before the guard lets a guest in. The
/// minimum is this many times the shortest time that counts as a pause. So if several requests of
/// an owner queue, only the first request waits for a guest.
const GRACES_BEFORE_TOLERATED: u64 = 3;

/// Number of pauses that the guard remembers.
const PAUSES: usize = 32;
/// If fewer remembered pauses than this are longer than the present pause, the guard does not rely
/// on the remembered pauses alone.
const MIN_PAUSES: usize = 4;
/// The longest lease of a guest if the guard does not know the pause's length. An owner that wants
/// the GPU ends such a lease at once.
const UNFORESEEN_NS: u64 = Duration::from_millis(50).as_nanos() as u64;
/// The largest credit is the larger of this time and `WINDOWS_OF_CREDIT` windows of the slowest
/// waiting guest.
const MAX_CREDIT_NS: u64 = Duration::from_millis(20).as_nanos() as u64;
/// For a guest with a long window, the largest credit is this many of its windows.
const WINDOWS_OF_CREDIT: u64 = 2;
/// The largest debt of guests, so that one kernel without an end does not exclude guests for ever.
const MAX_DEBT_NS: u64 = Duration::from_secs(10).as_nanos() as u64;

/// When the remembered progress without guests covers more than this time, the guard halves its
/// weight, so that newer progress counts more.
const PROGRESS_SPAN_NS: u64 = Duration::from_secs(10).as_nanos() as u64;

/// The guard keeps back `max_harm` divided by this number, for costs that it does not see. The
/// unseen costs are an owner's wake-ups after it got the GPU back, and credit that a guest spends
/// in a moment.
const UNSEEN_PART: u32 = 20;

/// A launch is dear if its expected cost exceeds the time until the guest's work is gone, divided
/// by this number. If no time in a pause is better for a guest (`BETTER_COST_PART`), none of its
/// launches is dear.
const DEAR_COST_PART: u64 = 10;
/// The beginning of a pause is better for a guest if a launch then costs at most the guest's window
/// divided by this number: half of the cost at which a launch is dear.
const BETTER_COST_PART: u64 = 2 * DEAR_COST_PART;
/// Dear launches may cost owners at most `max_harm` divided by this number.
const DEAR_PART: u32 = 4;

/// The state of the owners at a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owners {
    /// Whether there are owners.
    pub present: bool,
    /// Whether an owner wants the GPU.
    pub want: bool,
    /// Whether a guest has the GPU, or has work in flight on it, so that owners wait.
    pub kept_out: bool,
}

/// The progress of owners: a time in which they wanted the GPU, and the GPU time that they used in
/// it.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    wanted_ns: u64,
    used_ns: u64,
}

impl Progress {
    fn add(&mut self, wanted_ns: u64, used_ns: u64) {
        self.wanted_ns = self.wanted_ns.saturating_add(wanted_ns);
        self.used_ns = self.used_ns.saturating_add(used_ns);
    }

    /// Returns the GPU time that owners would have used in `wanted_ns` at this progress, ns.
    /// Without any recorded progress, returns the whole time.
    fn in_time(&self, wanted_ns: u64) -> u64 {
        match self.wanted_ns {
            0 => wanted_ns,
            whole_ns => {
                let used_ns =
                    u128::from(wanted_ns) * u128::from(self.used_ns.min(whole_ns)) / u128::from(whole_ns);
                u64::try_from(used_ns).unwrap_or(u64::MAX)
            }
        }
    }
}

/// A credit that grows by a part of the passing time, and that costs reduce.
#[derive(Debug)]
struct Budget {
    rate_ppm: u32,
    credit_ns: u64,
    /// The fraction of a nanosecond that the credit has grown beyond `credit_ns`, millionths.
    rest: u64,
    /// Costs beyond the credit, ns. The passing time pays this debt before the credit grows.
    debt_ns: u64,
}

impl Budget {
    fn new(rate_ppm: u32) -> Self {
        Self { rate_ppm: rate_ppm.min(PPM), credit_ns: MAX_CREDIT_NS, rest: 0, debt_ns: 0 }
    }

    fn earn(&mut self, elapsed_ns: u64, limit_ns: u64) {
        let earned = u128::from(elapsed_ns) * u128::from(self.rate_ppm) + u128::from(self.rest);
        self.rest = (earned % u128::from(PPM)) as u64;
        let earned_ns = u64::try_from(earned / u128::from(PPM)).unwrap_or(u64::MAX);
        let repaid_ns = earned_ns.min(self.debt_ns);
        self.debt_ns -= repaid_ns;
        self.credit_ns =
            self.credit_ns.saturating_add(earned_ns - repaid_ns).min(limit_ns.max(self.credit_ns));
    }

    fn spend(&mut self, ns: u64) {
        // A budget that never grows could not pay a debt.
        let beyond_ns = if self.rate_ppm == 0 { 0 } else { ns.saturating_sub(self.credit_ns) };
        self.credit_ns = self.credit_ns.saturating_sub(ns);
        self.debt_ns = self.debt_ns.saturating_add(beyond_ns).min(MAX_DEBT_NS);
    }

    fn has(&self, ns: u64) -> bool {
        self.debt_ns == 0 && self.credit_ns >= ns
    }

    /// Returns when the credit will be at least `ns`, if nothing reduces the credit before, ns.
    /// Returns `None` if the credit never grows.
    fn has_at_ns(&self, ns: u64, now_ns: u64) -> Option<u64> {
        let missing_ns = ns.saturating_sub(self.credit_ns).saturating_add(self.debt_ns);
        let wait_ns = u128::from(missing_ns) * u128::from(PPM) / u128::from(self.rate_ppm.max(1)) + 1;
        let wait_ns = u64::try_from(wait_ns).unwrap_or(u64::MAX);
        (self.rate_ppm > 0).then(|| now_ns.saturating_add(wait_ns))
    }
}

/// The expected wait of owners for a guest whose work is gone after `window_ns`. It is the mean
/// over the remembered pauses that are longer than the present pause so far.
struct Outlook<'a> {
    /// The remembered pauses, shortest first.
    pauses_ns: &'a [u64],
    /// Prefix sums of `pauses_ns`: entry n is the sum of the first n pauses, ns.
    sums_ns: &'a [u64],
    /// The time until the guest's work is gone, ns.
    window_ns: u64,
}

/// The expectation for a launch, if the present pause has lasted for a certain time.
#[derive(Clone, Copy)]
struct Prospect {
    /// Number of remembered pauses that are longer than the present pause so far.
    longer: usize,
    /// The number of remembered pauses that are longer than the present pause, and that end before
    /// the guest's work would be gone.
    over: usize,
    /// The sum of the owners' waits over the longer pauses, ns.
    sum_ns: u128,
}

impl Outlook<'_> {
    fn at(&self, lasts_ns: u64) -> Prospect {
        let first = self.pauses_ns.partition_point(|pause_ns| *pause_ns <= lasts_ns);
        let gone_ns = lasts_ns.saturating_add(self.window_ns);
        let longer = &self.pauses_ns[first..];
        let over = longer.partition_point(|pause_ns| *pause_ns <= gone_ns);
        let until_ns = self.sums_ns[first + over].saturating_sub(self.sums_ns[first]);
        let waits_ns = (over as u128 * u128::from(gone_ns)).saturating_sub(u128::from(until_ns));
        // If fewer than `MIN_PAUSES` remembered pauses are longer, the guard fills up with unknown
        // pauses. An unknown pause lasts as long again as so far with a probability of one half.
        let unknown = MIN_PAUSES.saturating_sub(longer.len()) as u128;
        let window_ns = u128::from(self.window_ns);
        let wait_ns = window_ns * window_ns / (2 * (u128::from(lasts_ns) + window_ns)).max(1);
        Prospect { longer: longer.len(), over, sum_ns: waits_ns + unknown * wait_ns }
    }

    fn mean_of(prospect: &Prospect) -> u128 {
        prospect.longer.max(MIN_PAUSES) as u128
    }

    /// Returns the expected wait of owners for a launch when the pause has lasted `lasts_ns`, ns.
    fn cost_ns(&self, lasts_ns: u64) -> u64 {
        let prospect = self.at(lasts_ns);
        u64::try_from(prospect.sum_ns / Self::mean_of(&prospect)).unwrap_or(u64::MAX)
    }

    /// Returns the expected cost above which a launch is dear, ns. For a guest without a better
    /// time, the result is `u64::MAX`, so no launch is dear.
    fn dear_ns(&self) -> u64 {
        let has_better = self.cost_ns(0) <= self.window_ns / BETTER_COST_PART;
        if has_better { self.window_ns / DEAR_COST_PART } else { u64::MAX }
    }

    /// Returns the length of the pause up to which the expected cost of a launch stays at most
    /// `bid_ns`. The pause has lasted `lasts_ns`. Returns `None` if the cost exceeds `bid_ns`
    /// already.
    fn worth_until_ns(&self, lasts_ns: u64, bid_ns: u64) -> Option<u64> {
        let mut at_ns = lasts_ns;
        loop {
            let prospect = self.at(at_ns);
            let most_ns = u128::from(bid_ns) * Self::mean_of(&prospect);
            let spare_ns = most_ns.checked_sub(prospect.sum_ns);
            let Some(spare_ns) = spare_ns else { return (at_ns > lasts_ns).then_some(at_ns) };
            let longer = &self.pauses_ns[self.pauses_ns.len() - prospect.longer..];
            // Up to `next_ns`, `longer` and `over` stay the same. Only the waits in pauses that end
            // before the guest's work is gone grow with the time.
            let begins_ns = longer.get(prospect.over).map(|pause_ns| pause_ns - self.window_ns);
            let Some(next_ns) =
                longer.first().copied().into_iter().chain(begins_ns).filter(|ns| *ns > at_ns).min()
            else {
                return Some(u64::MAX);
            };
            if prospect.over > 0 {
                let reach_ns = u64::try_from(spare_ns / prospect.over as u128).unwrap_or(u64::MAX);
                let end_ns = at_ns.saturating_add(reach_ns);
                if end_ns < next_ns {
                    return (end_ns > lasts_ns).then_some(end_ns);
                }
            }
            at_ns = next_ns;
        }
    }

    /// Returns the length of the pause from which on the expected cost of a launch is at most
    /// `bid_ns`, although the cost is larger now. The cost falls when the present pause becomes
    /// longer than a remembered pause. Returns `None` if the cost does not fall to `bid_ns`.
    fn worth_from_ns(&self, lasts_ns: u64, bid_ns: u64) -> Option<u64> {
        let longer = self.pauses_ns.iter().copied().filter(|pause_ns| *pause_ns > lasts_ns);
        longer.into_iter().find(|at_ns| self.cost_ns(*at_ns) <= bid_ns)
    }
}

/// Returns the largest credit for a guest whose work takes `window_ns` to be gone, ns.
fn saved_up_ns(window_ns: u64) -> u64 {
    MAX_CREDIT_NS.max(window_ns.saturating_mul(WINDOWS_OF_CREDIT))
}

/// The guard of one GPU, which decides whether guests may launch.
#[derive(Debug)]
pub struct Guard {
    max_harm_ppm: u32,
    /// The credit for all costs of guests.
    harm: Budget,
    /// The credit for dear launches.
    dear: Budget,
    /// Whether the last launch that the guard allowed was dear.
    is_dear: bool,
    /// The credit for short waits, which owners with SLOs tolerate.
    tolerated: Budget,
    /// The longest wait that all owners tolerate, as the caller said last, ns.
    tolerated_ns: u64,
    /// The amount above which no credit grows, ns.
    credit_limit_ns: u64,
    /// The time of the last call of [`Guard::observe`], ns.
    seen_ns: Option<u64>,
    owners_present: bool,
    /// The time since which no owner wants the GPU, ns.
    idle_since_ns: Option<u64>,
    /// The shortest time that counts as a pause, ns.
    grace_ns: u64,
    /// The time since which an owner waits for a guest, ns.
    kept_out_since_ns: Option<u64>,
    /// The lengths of the owners' last pauses, oldest first, ns.
    pauses_ns: VecDeque<u64>,
    /// The lengths in `pauses_ns`, shortest first.
    sorted_ns: Vec<u64>,
    /// Prefix sums of `sorted_ns`: entry n is the sum of the n shortest pauses, ns.
    sums_ns: Vec<u64>,
    /// The time that owners lost to guests so far, ns.
    harm_ns: u64,
    /// The owners' progress while no guest had work in flight.
    undisturbed: Progress,
    /// The owners' progress since a guest has had work in flight beside them.
    disturbed: Progress,
}

impl Default for Guard {
    fn default() -> Self {
        Self::new(DEFAULT_MAX_HARM_PPM)
    }
}

impl Guard {
    /// Returns a guard that lets guests cost owners `max_harm_ppm` millionths of the time.
    pub fn new(max_harm_ppm: u32) -> Self {
        let mut sums_ns = Vec::with_capacity(PAUSES + 1);
        sums_ns.push(0);
        Self {
            max_harm_ppm: max_harm_ppm.min(PPM),
            harm: Budget::new(max_harm_ppm - max_harm_ppm / UNSEEN_PART),
            dear: Budget::new(max_harm_ppm / DEAR_PART),
            is_dear: false,
            tolerated: Budget::new(TOLERATED_PPM),
            tolerated_ns: 0,
            credit_limit_ns: MAX_CREDIT_NS,
            seen_ns: None,
            owners_present: false,
            idle_since_ns: None,
            grace_ns: 0,
            kept_out_since_ns: None,
            pauses_ns: VecDeque::with_capacity(PAUSES),
            sorted_ns: Vec::with_capacity(PAUSES),
            sums_ns,
            harm_ns: 0,
            undisturbed: Progress::default(),
            disturbed: Progress::default(),
        }
    }

    /// Returns the time that owners lost to guests so far, ns.
    pub fn harm_ns(&self) -> u64 {
        self.harm_ns
    }

    /// Returns the part of the time that guests may cost owners, parts per million.
    pub fn max_harm_ppm(&self) -> u32 {
        self.max_harm_ppm
    }

    /// Returns the time that guests may still cost owners now, ns.
    pub fn credit_ns(&self) -> u64 {
        self.harm.credit_ns
    }

    /// Returns the debt of guests, ns. Passing time must pay the debt before any guest may cost
    /// owners time.
    pub fn debt_ns(&self) -> u64 {
        self.harm.debt_ns
    }

    /// Returns the time since which no owner has wanted the GPU, ns; `None` if an owner wants it.
    pub fn idle_since_ns(&self) -> Option<u64> {
        self.idle_since_ns
    }

    /// Sets the largest credit for the waiting guests. `window_ns` is the time until the work of
    /// the slowest of these guests is gone, ns.
    pub fn save_for(&mut self, window_ns: u64) {
        self.credit_limit_ns = saved_up_ns(window_ns);
    }

    /// Records the state of the owners at `now_ns`, and lets the credit grow by the time since the
    /// last call. A time without a wanting owner counts as a pause if it is longer than `grace_ns`.
    pub fn observe(&mut self, now_ns: u64, owners: Owners, grace_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.seen_ns.unwrap_or(now_ns));
        self.seen_ns = Some(now_ns);
        if self.owners_present {
            self.harm.earn(elapsed_ns, self.credit_limit_ns);
            self.dear.earn(elapsed_ns, self.credit_limit_ns);
            self.tolerated.earn(elapsed_ns, self.credit_limit_ns);
        }
        self.owners_present = owners.present;
        self.grace_ns = grace_ns;
        if !owners.want {
            self.idle_since_ns.get_or_insert(now_ns);
            self.kept_out_since_ns = None;
            self.settle();
            return;
        }
        if let Some(since_ns) = self.idle_since_ns.take() {
            let pause_ns = now_ns.saturating_sub(since_ns);
            if pause_ns > grace_ns {
                if self.pauses_ns.len() == PAUSES {
                    self.pauses_ns.pop_front();
                }
                self.pauses_ns.push_back(pause_ns);
                self.sorted_ns.clear();
                self.sorted_ns.extend(&self.pauses_ns);
                self.sorted_ns.sort_unstable();
                self.sums_ns.truncate(1);
                self.sums_ns.extend(self.sorted_ns.iter().scan(0_u64, |sum_ns, pause_ns| {
                    *sum_ns = sum_ns.saturating_add(*pause_ns);
                    Some(*sum_ns)
                }));
            }
        }
        if owners.kept_out {
            self.kept_out_since_ns.get_or_insert(now_ns);
        }
    }

    /// Leaves out the time since the last call of [`Self::observe`]. No scheduler ran in this time,
    /// so the guard does not know whether an owner paused or waited for a guest.
    pub fn skip(&mut self) {
        self.seen_ns = None;
        self.idle_since_ns = None;
        self.kept_out_since_ns = None;
    }

    /// Records that an owner gets the GPU. If the owner waited for a guest, subtracts the wait from
    /// the credit.
    pub fn owner_served(&mut self, now_ns: u64, handoff_ns: u64) {
        if let Some(since_ns) = self.kept_out_since_ns.take() {
            // The owner's bell and the opening of its gate took time too.
            let harm_ns = now_ns.saturating_sub(since_ns).saturating_add(handoff_ns);
            self.harm_ns = self.harm_ns.saturating_add(harm_ns);
            let is_tolerated =
                self.tolerated_ns > 0 && harm_ns <= self.tolerated_ns.saturating_add(handoff_ns);
            let borne_ns = if is_tolerated { harm_ns.min(self.tolerated.credit_ns) } else { 0 };
            self.tolerated.spend(borne_ns);
            self.harm.spend(harm_ns - borne_ns);
            if self.is_dear {
                self.dear.spend(harm_ns - borne_ns);
            }
        }
    }

    /// Records the progress of the owner that has the GPU: of the `wanted_ns` for which it wanted
    /// the GPU, it used `used_ns`. `has_guest_in` says whether a guest had work in flight.
    pub fn owner_progressed(&mut self, wanted_ns: u64, used_ns: u64, has_guest_in: bool) {
        if has_guest_in {
            return self.disturbed.add(wanted_ns, used_ns);
        }
        self.settle();
        self.undisturbed.add(wanted_ns, used_ns);
        if self.undisturbed.wanted_ns > PROGRESS_SPAN_NS {
            self.undisturbed.wanted_ns /= 2;
            self.undisturbed.used_ns /= 2;
        }
    }

    /// Subtracts the time that owners lost beside guests from the credit. A meter shows a use only
    /// when a kernel ends. So the guard compares the whole time in which a guest had work in
    /// flight, and not parts of it.
    fn settle(&mut self) {
        let disturbed = core::mem::take(&mut self.disturbed);
        if disturbed.wanted_ns > 0 {
            let lost_ns = self.undisturbed.in_time(disturbed.wanted_ns).saturating_sub(disturbed.used_ns);
            self.harm_ns = self.harm_ns.saturating_add(lost_ns);
            self.harm.spend(lost_ns);
        }
    }

    /// Returns the time until which a guest may launch, ns; `None` if the guest may not launch now.
    /// The guest's work takes `window_ns` to be gone. Every owner tolerates a single wait of
    /// `tolerated_ns`.
    pub fn until_ns(&mut self, now_ns: u64, window_ns: u64, tolerated_ns: u64) -> Option<u64> {
        if !self.owners_present {
            return Some(u64::MAX);
        }
        let idle_since_ns = self.idle_since_ns?;
        self.tolerated_ns = tolerated_ns;
        let longest_ns = now_ns.saturating_add(UNFORESEEN_NS);
        if now_ns < self.begins_ns(idle_since_ns, window_ns, tolerated_ns) {
            return None;
        }
        if window_ns <= tolerated_ns && self.tolerated.has(window_ns) {
            return Some(longest_ns);
        }
        let lasts_ns = now_ns.saturating_sub(idle_since_ns);
        let bid_ns = self.bid_ns(window_ns)?;
        let outlook = self.outlook(window_ns);
        let cheap_ns = outlook.worth_until_ns(lasts_ns, bid_ns.min(outlook.dear_ns()));
        let until_ns = match cheap_ns {
            Some(until_ns) => until_ns,
            None if self.dear.has(outlook.cost_ns(lasts_ns)) => outlook.worth_until_ns(lasts_ns, bid_ns)?,
            None => return None,
        };
        self.is_dear = cheap_ns.is_none();
        Some(idle_since_ns.saturating_add(until_ns).min(longest_ns))
    }

    /// Returns the earliest time at which a guest may launch in a pause that began at
    /// `idle_since_ns`, ns.
    fn begins_ns(&self, idle_since_ns: u64, window_ns: u64, tolerated_ns: u64) -> u64 {
        let graces = if window_ns <= tolerated_ns { GRACES_BEFORE_TOLERATED } else { 0 };
        idle_since_ns.saturating_add(self.grace_ns.saturating_mul(graces))
    }

    /// Returns the largest expected cost with which a guest may launch now, ns: `window_ns` ×
    /// credit / largest credit. The guest's work takes `window_ns` to be gone. With a small credit,
    /// only launches that cost nearly nothing are allowed. Returns `None` if guests have a debt.
    fn bid_ns(&self, window_ns: u64) -> Option<u64> {
        let bid =
            u128::from(window_ns) * u128::from(self.harm.credit_ns) / u128::from(saved_up_ns(window_ns));
        (self.harm.debt_ns == 0).then(|| u64::try_from(bid).unwrap_or(u64::MAX))
    }

    fn outlook(&self, window_ns: u64) -> Outlook<'_> {
        Outlook { pauses_ns: &self.sorted_ns, sums_ns: &self.sums_ns, window_ns }
    }

    /// Returns when the caller should ask again for a guest that may not launch now, ns. Returns
    /// `None` if only an owner's next pause can change the answer.
    pub fn retry_ns(&self, now_ns: u64, window_ns: u64, tolerated_ns: u64) -> Option<u64> {
        let tolerated = Some(&self.tolerated).filter(|_| window_ns <= tolerated_ns);
        let tolerated_at_ns = tolerated.and_then(|budget| budget.has_at_ns(window_ns, now_ns));
        let harm_at_ns = self.idle_since_ns.and_then(|idle_since_ns| {
            let lasts_ns = now_ns.saturating_sub(idle_since_ns);
            let outlook = self.outlook(window_ns);
            let bid_ns = self.bid_ns(window_ns);
            let outlasted_at_ns = bid_ns
                .and_then(|bid_ns| outlook.worth_from_ns(lasts_ns, bid_ns.min(outlook.dear_ns())))
                .map(|at_ns| idle_since_ns.saturating_add(at_ns));
            let asked = u128::from(outlook.cost_ns(lasts_ns)) * u128::from(saved_up_ns(window_ns));
            let asked_ns = u64::try_from(asked / u128::from(window_ns.max(1)) + 1).unwrap_or(u64::MAX);
            let mut saved_at_ns = self.harm.has_at_ns(asked_ns, now_ns);
            if outlook.cost_ns(lasts_ns) > outlook.dear_ns() {
                saved_at_ns = saved_at_ns.max(self.dear.has_at_ns(outlook.cost_ns(lasts_ns), now_ns));
            }
            [outlasted_at_ns, saved_at_ns].into_iter().flatten().min()
        });
        let begins_ns =
            self.idle_since_ns.map_or(0, |since_ns| self.begins_ns(since_ns, window_ns, tolerated_ns));
        [harm_at_ns, tolerated_at_ns].into_iter().flatten().min().map(|at_ns| at_ns.max(begins_ns))
    }

    /// Returns the shortest of the remembered pauses, ns: the next pause should last at least this
    /// long. Returns `None` while the guard remembers fewer than `MIN_PAUSES` pauses.
    pub fn shortest_pause_ns(&self) -> Option<u64> {
        let shortest_ns = *self.sorted_ns.first()?;
        (self.pauses_ns.len() >= MIN_PAUSES).then_some(shortest_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const GRACE: u64 = MS / 10;
    const IDLE: Owners = Owners { present: true, want: false, kept_out: false };
    const BUSY: Owners = Owners { present: true, want: true, kept_out: false };
    const KEPT_OUT: Owners = Owners { present: true, want: true, kept_out: true };

    /// Returns a guard that has seen four pauses of 10 ms, at the beginning of the next pause.
    fn seasoned(max_harm_ppm: u32) -> (Guard, u64) {
        let mut guard = Guard::new(max_harm_ppm);
        let mut now_ns = 0;
        for _ in 0..MIN_PAUSES {
            guard.observe(now_ns, IDLE, GRACE);
            guard.observe(now_ns + 10 * MS, BUSY, GRACE);
            now_ns += 20 * MS;
        }
        guard.observe(now_ns, IDLE, GRACE);
        (guard, now_ns)
    }

    #[test]
    fn without_owners_nothing_is_guarded() {
        assert_eq!(Guard::default().until_ns(5, 100 * MS, 0), Some(u64::MAX));
    }

    #[test]
    fn while_owners_want_the_gpu_no_guest_may_launch() {
        let mut guard = Guard::default();
        guard.observe(0, BUSY, GRACE);
        assert_eq!(guard.until_ns(MS, MS, 0), None);
    }

    #[test]
    fn in_a_foreseen_pause_a_guest_may_launch_until_its_window_would_outlast_it() {
        let (mut guard, now_ns) = seasoned(0);
        guard.harm.credit_ns = 0;
        assert_eq!(guard.until_ns(now_ns, 2 * MS, 0), Some(now_ns + 10 * MS - 2 * MS));
        assert_eq!(guard.until_ns(now_ns + 9 * MS, 2 * MS, 0), None, "and not beyond, without credit");
        assert_eq!(guard.retry_ns(now_ns, 2 * MS, 0), None, "nor ever");
    }

    #[test]
    fn where_a_pause_is_about_to_end_a_guest_may_launch_only_while_there_is_much_credit() {
        let (mut guard, begun_ns) = seasoned(10_000);
        // A guest that takes 2 ms to be gone costs half of that, 1 ms, if the pause ends in 1 ms.
        let at_ns = begun_ns + 9 * MS;
        for (credit_ns, may_launch) in [(MAX_CREDIT_NS, true), (MAX_CREDIT_NS / 2 - MS, false)] {
            guard.harm.credit_ns = credit_ns;
            assert_eq!(guard.until_ns(at_ns, 2 * MS, 0).is_some(), may_launch, "{credit_ns}");
        }
        assert_eq!(
            guard.until_ns(begun_ns, 2 * MS, 0),
            Some(begun_ns + 8 * MS + 2 * MS / DEAR_COST_PART),
            "until it is dear"
        );
        guard.harm.credit_ns = 6 * MS;
        assert_eq!(guard.retry_ns(at_ns, 2 * MS, 0), Some(begun_ns + 10 * MS), "then it is asked again");
        assert!(guard.until_ns(begun_ns + 10 * MS, 2 * MS, 0).is_some(), "little is expected of longer ones");
    }

    #[test]
    fn between_short_pauses_and_long_ones_guests_wait_until_the_short_ones_are_over() {
        let mut guard = Guard::new(10_000);
        for step in 0..PAUSES as u64 {
            guard.observe(step * 100 * MS, IDLE, GRACE);
            guard.observe(step * 100 * MS + if step % 2 == 0 { 10 * MS } else { 30 * MS }, BUSY, GRACE);
        }
        let begun_ns = PAUSES as u64 * 100 * MS;
        guard.observe(begun_ns, IDLE, GRACE);
        guard.harm.credit_ns = 0;
        assert_eq!(guard.until_ns(begun_ns, 2 * MS, 0), Some(begun_ns + 8 * MS));
        assert_eq!(guard.until_ns(begun_ns + 9 * MS, 2 * MS, 0), None);
        assert_eq!(guard.until_ns(begun_ns + 10 * MS, 2 * MS, 0), Some(begun_ns + 28 * MS));
    }

    #[test]
    fn credit_is_spent_where_it_buys_most() {
        // Pauses of 1 to 20 ms are equally likely. The longer a pause has lasted, the likelier it
        // ends soon.
        let mut guard = Guard::new(10_000);
        for step in 0..20 {
            guard.observe(step * 100 * MS, IDLE, GRACE);
            guard.observe(step * 100 * MS + (step + 1) * MS, BUSY, GRACE);
        }
        guard.observe(2_000 * MS, IDLE, GRACE);
        let mut until_ns = |credit_ns| {
            guard.harm.credit_ns = credit_ns;
            guard.until_ns(2_000 * MS, MS, 0).map_or(0, |until_ns| until_ns - 2_000 * MS)
        };
        let dear_ns = MAX_CREDIT_NS / DEAR_COST_PART;
        let ends_ns = [0, dear_ns / 4, dear_ns / 2, dear_ns].map(&mut until_ns);
        assert!(ends_ns.is_sorted_by(|less, more| less < more), "{ends_ns:?}");
        assert_eq!(until_ns(MAX_CREDIT_NS), ends_ns[3], "and little where it is dear");
    }

    #[test]
    fn owners_that_can_wait_are_met_by_guests_that_are_gone_in_time() {
        let (mut guard, now_ns) = seasoned(0);
        guard.harm.credit_ns = 0;
        assert!(guard.until_ns(now_ns + 20 * MS, 2 * MS, 2 * MS).is_some());
        assert_eq!(guard.until_ns(now_ns + 20 * MS, 2 * MS, 2 * MS - 1), None);
    }

    #[test]
    fn moments_between_two_launches_are_no_pauses() {
        let (mut guard, now_ns) = seasoned(0);
        for step in 0..100 {
            guard.observe(now_ns + step * GRACE, IDLE, GRACE);
            guard.observe(now_ns + step * GRACE + GRACE / 2, BUSY, GRACE);
        }
        assert_eq!(guard.shortest_pause_ns(), Some(10 * MS));
    }

    #[test]
    fn credit_for_the_waits_of_owners_is_spent_and_comes_back_with_time() {
        let (mut guard, mut now_ns) = seasoned(10_000);
        for _ in 0..4 {
            assert!(guard.until_ns(now_ns, 5 * MS, 0).is_some());
            guard.observe(now_ns, KEPT_OUT, GRACE);
            guard.observe(now_ns + 5 * MS, KEPT_OUT, GRACE);
            guard.owner_served(now_ns + 5 * MS, 0);
            guard.observe(now_ns + 5 * MS, IDLE, GRACE);
            now_ns += 5 * MS;
        }
        assert_eq!(guard.harm_ns(), 20 * MS);
        // With pauses of 10 ms the cost is 1 of 5 ms, so a fifth of the largest credit is needed.
        let at_ns = now_ns + 6 * MS;
        assert_eq!(guard.until_ns(at_ns, 5 * MS, 0), None, "the credit is spent");
        let retry_ns = guard.retry_ns(at_ns, 5 * MS, 0).unwrap();
        assert!((400 * MS..=500 * MS).contains(&(retry_ns - now_ns)), "1 % of that is what is missing");
        guard.observe(retry_ns, IDLE, GRACE);
        assert!(guard.until_ns(retry_ns, 5 * MS, 0).is_some());
    }

    #[test]
    fn pauses_that_turn_out_shorter_than_foreseen_keep_guests_out_until_what_they_cost_is_earned_back() {
        let (mut guard, now_ns) = seasoned(10_000);
        assert!(guard.until_ns(now_ns, 2 * MS, 0).is_some());
        guard.observe(now_ns, KEPT_OUT, GRACE);
        guard.owner_served(now_ns + 22 * MS, 0);
        guard.observe(now_ns + 22 * MS, IDLE, GRACE);
        // 2 ms beyond the credit of 20 ms.
        assert!(guard.shortest_pause_ns().is_some());
        assert_eq!(guard.until_ns(now_ns + 22 * MS, MS, 0), None, "though a pause of 10 ms is foreseen");
        // Owners that can wait are kept waiting, once the time is no moment between two requests.
        let tolerated_ns = now_ns + 22 * MS + 3 * GRACE;
        assert_eq!(guard.until_ns(tolerated_ns - 1, MS, MS), None);
        assert_eq!(guard.retry_ns(tolerated_ns - 1, MS, MS), Some(tolerated_ns));
        assert!(guard.until_ns(tolerated_ns, MS, MS).is_some());
        guard.observe(now_ns + 240 * MS, IDLE, GRACE);
        assert_eq!(guard.harm.debt_ns, 0);
        let (mut guard, now_ns) = (guard, now_ns + 250 * MS);
        guard.observe(now_ns, BUSY, GRACE);
        guard.observe(now_ns + MS, IDLE, GRACE);
        assert!(guard.until_ns(now_ns + MS, MS / 2, 0).is_some(), "it is earned back");
    }

    #[test]
    fn the_cost_of_one_long_kernel_is_earned_back_whole() {
        let (mut guard, now_ns) = seasoned(10_000);
        guard.observe(now_ns, KEPT_OUT, GRACE);
        guard.owner_served(now_ns + 1_000 * MS, 0);
        guard.observe(now_ns + 1_000 * MS, IDLE, GRACE);
        let retry_ns = guard.retry_ns(now_ns + 1_000 * MS, MS, 0).unwrap() - now_ns;
        // This leaves out the credit of before, and the part that the guard keeps back.
        assert!((97_000 * MS..=105_000 * MS).contains(&retry_ns), "a hundred times as long: {retry_ns}");
    }

    #[test]
    fn owners_that_can_wait_do_so_for_a_twentieth_of_the_time_and_no_more() {
        let mut guard = Guard::new(10_000);
        let (mut now_ns, mut waited_ns) = (0, 0);
        for _ in 0..10_000 {
            // In a closed loop each step begins with a wait for a guest, if the guard lets one in.
            guard.observe(now_ns, IDLE, GRACE);
            // This is in addition to the 1 % that guests may cost in any case.
            assert_eq!(
                guard.until_ns(now_ns, 2 * MS, 5 * MS),
                None,
                "it may be a moment between two requests"
            );
            let has_guest = guard.until_ns(now_ns + 3 * GRACE, 2 * MS, 5 * MS).is_some();
            now_ns += MS;
            guard.observe(now_ns, if has_guest { KEPT_OUT } else { BUSY }, GRACE);
            if has_guest {
                now_ns += 2 * MS;
                waited_ns += 2 * MS;
            }
            guard.owner_served(now_ns, 0);
            now_ns += 5 * MS;
        }
        let part = waited_ns as f64 / now_ns as f64;
        assert!((0.05..=0.07).contains(&part), "{part} of the time was spent waiting");
    }

    #[test]
    fn where_guests_may_cost_nothing_they_have_the_pauses_that_are_foreseen_after_all_harm() {
        let (mut guard, now_ns) = seasoned(0);
        guard.observe(now_ns, KEPT_OUT, GRACE);
        guard.owner_served(now_ns + 22 * MS, 0);
        guard.observe(now_ns + 22 * MS, IDLE, GRACE);
        assert!(guard.until_ns(now_ns + 22 * MS, MS, 0).is_some());
    }

    #[test]
    fn progress_that_an_owner_loses_beside_a_guest_is_spent_as_credit() {
        for (used_ns, beside_ns, lost_ns) in
            [(10 * MS, 5 * MS, 5 * MS), (8 * MS, 5 * MS, 3 * MS), (5 * MS, 9 * MS, 0)]
        {
            let mut guard = Guard::default();
            let credit_ns = guard.credit_ns();
            guard.owner_progressed(10 * MS, used_ns, false);
            guard.owner_progressed(4 * MS, 0, true);
            guard.owner_progressed(6 * MS, beside_ns, true);
            guard.owner_progressed(10 * MS, used_ns, false);
            assert_eq!(
                (guard.harm_ns(), guard.credit_ns()),
                (lost_ns, credit_ns - lost_ns),
                "{used_ns}, {beside_ns}"
            );
        }
        let mut guard = Guard::default();
        guard.owner_progressed(10 * MS, 4 * MS, true);
        guard.observe(0, IDLE, GRACE);
        assert_eq!(guard.harm_ns(), 6 * MS, "of all the time, where nothing else is known");
    }

    #[test]
    fn a_window_larger_than_the_usual_credit_can_be_saved_up_for() {
        let mut guard = Guard::default();
        guard.observe(0, IDLE, GRACE);
        guard.save_for(100 * MS);
        assert_eq!(guard.until_ns(0, 100 * MS, 0), None);
        let retry_ns = guard.retry_ns(0, 100 * MS, 0).unwrap();
        guard.observe(retry_ns, IDLE, GRACE);
        assert!(guard.until_ns(retry_ns, 100 * MS, 0).is_some());
    }

    #[test]
    fn clocks_that_jump_are_harmless() {
        let mut guard = Guard::new(u32::MAX);
        for now_ns in [0, u64::MAX, 5, u64::MAX / 2] {
            for owners in [IDLE, KEPT_OUT, BUSY, Owners { present: false, ..IDLE }] {
                guard.observe(now_ns, owners, GRACE);
                guard.owner_served(now_ns, u64::MAX);
                let _ = guard.until_ns(now_ns, u64::MAX, 0);
                let _ = guard.retry_ns(now_ns, u64::MAX, u64::MAX);
            }
        }
    }
}
