//! The due times of requests: which requests of owners on parts of the SMs the scheduler serves in
//! time, and which requests it refuses.
//!
//! A request of an owner with an SLO is a burst. The request is due when the SLO has passed since
//! the owner began to want the GPU. The scheduler expects a request to take as long on the owner's
//! part of the SMs as the owner's last request. If a burst outlasts its SLO, it is a row of
//! requests. A request of a row ends at its due time, or earlier when all work of one of the owner's
//! processes ends.
//!
//! While all requests can be in time, the scheduler *accepts* all requests. If the GPU cannot do all
//! requests and each request gets some of the GPU, all requests are late. So the scheduler measures
//! by how much each owner is *late*: the time in which the owner wanted the GPU, less an SLO for
//! each request that ended. An owner with a request in each SLO is late by more and more if fewer
//! requests end. If an owner is late by more than [`LATE_SLOS`] SLOs, the GPU is *overloaded*. The
//! scheduler then accepts a request only if the request and all accepted requests can be in time. Of
//! the eligible owners, the owner that is furthest behind its share comes first. The scheduler
//! *refuses* the other requests, and tries again at each decision.
//!
//! The order of the owners ([`super::space`]) has two exceptions from the one rule:
//!
//! - An accepted request that is late unless it is served from now on comes first.
//! - An owner whose request is refused comes last, so that it takes nothing from requests that can
//!   be in time. It pays for its place only if it is the first of the set. Otherwise it takes what
//!   the others leave.
//!
//! Both exceptions are bounded, so each owner gets what it is owed. An owner that is ahead by more
//! than [`MAX_CREDIT_NS`] does not come first. An owner that is behind by more than
//! [`MAX_CREDIT_NS`] does not come last.

use super::clock::VirtualTime;
use super::state::{MAX_CREDIT_NS, Order, Rank, Tenant};
use super::{POLL_NS, Scheduler};
use crate::tuning::Tuning;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::mem;
use deepres_abi::PPM;

/// The GPU is overloaded if an owner that wants the GPU is late by more than this many SLOs.
const LATE_SLOS: u64 = 2;
/// An owner counts as late by this many SLOs at most, so that an overload that is over is forgotten.
const MOST_LATE_SLOS: u64 = 3;
/// The scheduler leaves the SLO divided by this number for its own looks.
const LOOKS_PER_SLO: u64 = 8;
/// In an overload, the scheduler tries at most this many requests at a decision, because each try
/// looks at all accepted requests.
const MOST_TRIED: usize = 64;

/// The urgency of an owner's request. The most urgent request comes first in the order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// The request is late unless it is served from now on. It is due at this time, ns.
    Tight(u64),
    /// The request has time, or the owner has no SLO.
    #[default]
    Usual,
    /// The scheduler does not try to serve the request in time.
    Refused,
}

/// The present request of a tenant with an SLO.
#[derive(Debug, Clone, Copy, Default)]
pub struct Request {
    /// The time at which the request is due, ns; 0 before the first request.
    due_ns: u64,
    /// The time for which the request had its part of the SMs, ns.
    had_ns: u64,
    /// The expected time for which a request needs its part of the SMs, ns; 0 if it is unknown.
    length_ns: u64,
    is_accepted: bool,
    urgency: Urgency,
    /// Whether the burst has outlasted its SLO, so that it is a row of requests.
    is_in_row: bool,
    /// Whether `had_ns` counts from the beginning of the request.
    is_whole: bool,
    /// Whether all work of the tenant ended before the request was due.
    has_ended: bool,
    /// The time in which the tenant wanted the GPU, less an SLO for each request that ended, and
    /// less the pauses, ns.
    late_ns: u64,
}

/// Work that needs a part of the SMs for a time.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    part_ppm: u32,
    /// The time by which the work has to be done.
    due: u64,
    /// The time that the work needs, and the rest of this time in the course of the schedule.
    needs: u64,
    rest: u64,
    runs: bool,
}

/// Inserts work into a schedule, in the order of the due times. Returns its place.
fn insert(jobs: &mut Vec<Job>, part_ppm: u32, due: u64, needs: u64) -> usize {
    let place = jobs.partition_point(|job| (job.due, Reverse(job.needs)) <= (due, Reverse(needs)));
    jobs.insert(place, Job { part_ppm, due, needs, rest: 0, runs: false });
    place
}

/// Returns whether all work is done in time, if each job runs as soon as the jobs before it leave
/// its part of the SMs free.
fn are_in_time(jobs: &mut [Job]) -> bool {
    jobs.iter_mut().for_each(|job| job.rest = job.needs);
    let mut at = 0u64;
    loop {
        let (mut room_ppm, mut step) = (PPM, u64::MAX);
        for job in jobs.iter_mut() {
            job.runs = job.rest > 0 && job.part_ppm <= room_ppm;
            if job.runs {
                room_ppm -= job.part_ppm;
                step = step.min(job.rest);
            }
        }
        if step == u64::MAX {
            return true;
        }
        at = at.saturating_add(step);
        for job in jobs.iter_mut().filter(|job| job.runs) {
            job.rest -= step;
            if job.rest == 0 && at > job.due {
                return false;
            }
        }
    }
}

/// Returns the longest expected length of a request, ns. A look at the request comes late, so the
/// scheduler could not accept a request as long as the SLO.
const fn most_length_ns(slo_ns: u64) -> u64 {
    slo_ns - slo_ns / LOOKS_PER_SLO
}

impl Tenant {
    /// Begins a request that the tenant asked for at `asked_ns`, after a pause of `pause_ns` or in a
    /// row.
    pub fn begin_request(&mut self, asked_ns: u64, pause_ns: Option<u64>) {
        let Request { had_ns, length_ns, is_in_row, is_whole, late_ns, .. } = self.request;
        let served_ns = self.slo_ns.unwrap_or(0).saturating_add(pause_ns.unwrap_or(0));
        let length_ns = if is_whole && had_ns > 0 { had_ns } else { length_ns };
        self.request = Request {
            due_ns: self.slo_ns.map_or(0, |slo_ns| asked_ns.saturating_add(slo_ns)),
            length_ns: length_ns.min(self.slo_ns.map_or(u64::MAX, most_length_ns)),
            is_in_row: is_in_row && pause_ns.is_none(),
            is_whole: true,
            late_ns: late_ns.saturating_sub(served_ns),
            ..Request::default()
        };
    }

    /// Adds time in which the tenant wanted the GPU, ns. `had_part` tells whether the tenant had its
    /// part of the SMs.
    pub fn wanted_part(&mut self, passed_ns: u64, had_part: bool) {
        let Some(slo_ns) = self.slo_ns else { return };
        let most_ns = slo_ns.saturating_mul(MOST_LATE_SLOS);
        self.request.late_ns = self.request.late_ns.saturating_add(passed_ns).min(most_ns);
        if had_part {
            self.request.had_ns = self.request.had_ns.saturating_add(passed_ns);
        }
    }

    /// Returns whether the tenant's requests are late because of an overload.
    fn is_late(&self) -> bool {
        let most_ns = self.slo_ns.map_or(u64::MAX, |slo_ns| slo_ns.saturating_mul(LATE_SLOS));
        self.has_objective() && self.wanted && self.request.late_ns > most_ns
    }

    /// Notes that all work of the tenant ended.
    pub fn note_end(&mut self, now_ns: u64) {
        self.request.has_ended |= now_ns < self.request.due_ns;
    }

    /// Ends the present request of a tenant that still wants the GPU, if the request is due, or has
    /// ended in a row.
    pub fn pass_due(&mut self, now_ns: u64) {
        let Some(slo_ns) = self.slo_ns.map(|slo_ns| slo_ns.max(1)) else { return };
        if self.request.due_ns == 0 {
            self.begin_request(now_ns, Some(0));
        }
        let request = &mut self.request;
        if now_ns >= request.due_ns {
            if request.had_ns >= request.length_ns && !request.has_ended {
                // The request takes longer than expected, and no figure tells how long.
                request.length_ns = request.had_ns.saturating_mul(2).min(most_length_ns(slo_ns));
            }
            let slos = ((now_ns - request.due_ns) / slo_ns).saturating_add(1);
            request.due_ns = request.due_ns.saturating_add(slos.saturating_mul(slo_ns));
            request.had_ns = 0;
            (request.is_accepted, request.is_whole, request.is_in_row) = (false, false, true);
        }
        if request.is_in_row && mem::take(&mut request.has_ended) {
            self.begin_request(now_ns, None);
        }
    }

    /// Returns the time for which the request still needs the tenant's part of the SMs, ns.
    fn left_ns(&self) -> u64 {
        self.request.length_ns.saturating_sub(self.request.had_ns)
    }

    /// Returns the virtual time in which the tenant has its part of the SMs for a time, ns.
    fn part_vtime(&self, ns: u64) -> VirtualTime {
        self.weighted(self.area_ns(ns))
    }

    /// Returns how urgent the present request is. An owner that waits has its place after
    /// `margin_ns`.
    fn urgency_at(&self, now_ns: u64, mean: VirtualTime, margin_ns: u64) -> Urgency {
        let Request { due_ns, is_accepted, .. } = self.request;
        let ends_ns = now_ns.saturating_add(margin_ns).saturating_add(self.left_ns());
        let behind = mean - self.vtime;
        if is_accepted && ends_ns >= due_ns && -behind <= self.weighted(MAX_CREDIT_NS) {
            Urgency::Tight(due_ns)
        } else if !is_accepted && behind <= self.weighted(MAX_CREDIT_NS) {
            Urgency::Refused
        } else {
            Urgency::Usual
        }
    }

    fn urgency(&self) -> Urgency {
        if self.has_objective() { self.request.urgency } else { Urgency::Usual }
    }

    /// Returns whether the scheduler refuses the tenant's request.
    pub fn is_refused(&self) -> bool {
        self.urgency() == Urgency::Refused
    }

    /// Returns the place in the order of the owners on parts of the SMs, if `mean` is the bound of
    /// eligibility.
    pub fn place(&self, mean: VirtualTime) -> (Urgency, Order) {
        (self.urgency(), self.order(mean))
    }

    /// Returns whether the tenant, which waits, takes the place of `other` before the end of a
    /// quantum. The change costs as much as a pause of `short_ns`.
    pub fn precedes(&self, other: &Self, short_ns: u64, mean: VirtualTime) -> bool {
        match (self.urgency(), other.urgency()) {
            (Urgency::Tight(due_ns), Urgency::Tight(other_ns)) => due_ns.saturating_add(short_ns) < other_ns,
            (own, others) if own != others => own < others,
            _ => self.is_owed(mean) && self.due + self.weighted(short_ns) < other.due,
        }
    }
}

impl Scheduler {
    /// Accepts or refuses the requests of the owners that want the GPU, and notes how urgent they
    /// are.
    pub(super) fn admit(&mut self, now_ns: u64, tuning: &Tuning) {
        let Self { tenants, company, clocks, .. } = self;
        let (jobs, asked) = (&mut company.jobs, &mut company.asked);
        let mean = clocks[Rank::Owner as usize].eligible_after(0);
        jobs.clear();
        asked.clear();
        let is_overloaded = tenants.with_objective().any(|(_, tenant)| tenant.is_late());
        tenants.each_with_objective(|id, tenant| {
            if !tenant.has_objective() || !tenant.asks(now_ns, 0) {
                return;
            }
            let Request { due_ns, had_ns, length_ns, is_accepted, .. } = tenant.request;
            // A request that began keeps its eligibility.
            let begun = tenant.part_vtime(length_ns.min(had_ns));
            if !is_overloaded {
                tenant.request.is_accepted = true;
            } else if is_accepted {
                // The request is to be in time, though it can take longer than expected.
                let until_ns = due_ns.saturating_sub(now_ns);
                insert(jobs, tenant.part_ppm(), until_ns, tenant.left_ns().min(until_ns));
            } else if tenant.vtime <= mean + begun {
                asked.push((tenant.vtime, id));
            }
        });
        asked.sort_unstable();
        for (_, id) in asked.iter().take(MOST_TRIED) {
            let Some(tenant) = tenants.get_quietly(*id) else { continue };
            let until_ns = tenant.request.due_ns.saturating_sub(now_ns);
            let place = insert(jobs, tenant.part_ppm(), until_ns, tenant.left_ns());
            tenant.request.is_accepted = are_in_time(jobs);
            if !tenant.request.is_accepted {
                jobs.remove(place);
            }
        }
        // An owner that waits has its place after a look, and after the drain of a window.
        let margin_ns = tuning.window_ns.saturating_add(POLL_NS);
        tenants.each_with_objective(|_, tenant| {
            tenant.request.urgency = tenant.urgency_at(now_ns, mean, margin_ns);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn owner(slo_ms: u64) -> Tenant {
        let mut owner = Tenant { slo_ns: Some(slo_ms * MS), ..Tenant::new(Rank::Owner, 0) };
        owner.begin_request(0, Some(0));
        owner
    }

    fn due_and_length_ms(owner: &Tenant) -> (u64, u64) {
        (owner.request.due_ns / MS, owner.request.length_ns / MS)
    }

    #[test]
    fn work_is_in_time_if_the_work_that_is_due_earlier_leaves_it_its_part_of_the_sms() {
        let are_in_time = |work: &[(u32, u64, u64)]| {
            let mut jobs = Vec::new();
            for (percent, due, needs) in work {
                insert(&mut jobs, percent * PPM / 100, *due, *needs);
            }
            super::are_in_time(&mut jobs)
        };
        assert!(are_in_time(&[(60, 10, 5), (60, 5, 5), (40, 5, 5)]));
        assert!(!are_in_time(&[(60, 9, 5), (60, 9, 5)]));
        assert!(are_in_time(&[(60, 5, 5), (60, 10, 5), (40, 10, 10)]), "beside the other two");
        assert!(!are_in_time(&[(60, 5, 5), (60, 10, 5), (50, 10, 10)]));
        assert!(are_in_time(&[]) && are_in_time(&[(100, 0, 0)]));
    }

    #[test]
    fn the_expected_length_is_the_length_of_the_last_request_that_ended() {
        let mut owner = owner(20);
        owner.wanted_part(8 * MS, true);
        owner.begin_request(20 * MS, Some(0));
        assert_eq!(due_and_length_ms(&owner), (40, 8));
        owner.wanted_part(12 * MS, true);
        owner.begin_request(40 * MS, Some(0));
        assert_eq!(due_and_length_ms(&owner), (60, 12));
    }

    #[test]
    fn a_request_that_is_not_done_after_its_expected_length_is_expected_to_take_twice_as_long() {
        let mut owner = owner(100);
        owner.wanted_part(20 * MS, true);
        owner.pass_due(99 * MS);
        assert_eq!(due_and_length_ms(&owner), (100, 0));
        owner.pass_due(100 * MS);
        assert_eq!(due_and_length_ms(&owner), (200, 40));
        owner.wanted_part(30 * MS, true);
        owner.pass_due(250 * MS);
        assert_eq!(due_and_length_ms(&owner), (300, 40), "the request did not have its length");
        owner.wanted_part(60 * MS, true);
        owner.pass_due(300 * MS);
        assert_eq!(due_and_length_ms(&owner), (400, 87), "a part of the SLO is left for looks");
        owner.begin_request(350 * MS, Some(0));
        assert_eq!(due_and_length_ms(&owner), (450, 87), "the rest of a late request tells no length");
    }

    #[test]
    fn a_burst_that_outlasts_its_slo_is_a_row_of_requests_that_end_with_all_work() {
        let mut owner = owner(20);
        owner.wanted_part(8 * MS, true);
        owner.note_end(8 * MS);
        owner.pass_due(8 * MS);
        assert_eq!(due_and_length_ms(&owner), (20, 0), "the burst can end with a pause");
        owner.pass_due(20 * MS);
        owner.wanted_part(8 * MS, true);
        owner.note_end(30 * MS);
        owner.pass_due(30 * MS);
        assert_eq!(due_and_length_ms(&owner), (50, 8));
        owner.begin_request(60 * MS, Some(0));
        owner.note_end(61 * MS);
        owner.pass_due(61 * MS);
        assert_eq!(due_and_length_ms(&owner), (80, 8), "a pause ends the row");
    }

    #[test]
    fn an_owner_is_late_by_the_time_that_it_wanted_less_an_slo_for_each_request_and_less_its_pauses() {
        let mut owner = Tenant { wanted: true, ..owner(20) };
        owner.wanted_part(40 * MS, false);
        assert!(!owner.is_late());
        owner.wanted_part(1, false);
        assert!(owner.is_late(), "two requests are missing");
        owner.begin_request(40 * MS, None);
        assert!(!owner.is_late(), "a request ended");
        owner.wanted_part(1_000 * MS, false);
        owner.begin_request(60 * MS, Some(5 * MS));
        assert_eq!(owner.request.late_ns, 35 * MS, "three SLOs at most, less an SLO and the pause");
        owner.wanted_part(1_000 * MS, false);
        assert!(
            !Tenant { wanted: false, ..owner }.is_late(),
            "an owner that wants nothing waits for nothing"
        );
    }
}
