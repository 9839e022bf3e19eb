//! The requests of a tenant with an SLO. A request is a burst of the tenant: its work between two
//! pauses that are longer than two hand-offs. The latency of a request is the time from the moment
//! at which the tenant wants the GPU until its last work has ended. Waits at the gate are a part of
//! the latency.
//!
//! The core measures requests at its looks, so nothing is on the launch path. A session rings the
//! bell when a thread waits at the gate, and when its work under a lease ends. So beside other
//! tenants, a latency is exact up to the delay of a look. Through an open gate, a session rings
//! seldom. Then the core takes two counters of the meter: how often all work in flight ended, and
//! how long work was in flight. If several requests ended between two looks (50 ms), the core takes
//! their mean latency for each of them.

use crate::TenantId;
use core::time::Duration;

/// Number of requests that the quantiles cover. This many are enough for a 99th percentile.
const REMEMBERED: usize = 256;
/// Number of entries in the counts of latencies by length.
pub const LENGTHS: usize = 22;
/// The time over which the goodput is a mean.
const GOODPUT_NS: u64 = Duration::from_secs(10).as_nanos() as u64;
/// The least time over which the goodput is a mean, when the core has just begun to measure.
const LEAST_GOODPUT_NS: u64 = Duration::from_secs(1).as_nanos() as u64;
/// Number of tenants whose parts in the delay of late requests the core distinguishes.
const RIVALS: usize = 8;
/// At this number of late requests, the core halves the sums of their delays. So the sums follow a
/// change.
const LATE_REMEMBERED: u64 = 128;
const NS_PER_US: u64 = 1_000;

/// The sums of a tenant's requests on one GPU.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct Served {
    /// Number of requests that have ended.
    pub requests: u64,
    /// Number of requests that ended within the SLO.
    pub in_time: u64,
    /// The latencies of all requests, ns.
    pub latency_ns: u64,
    /// Number of requests by latency. Entry N counts latencies from 2^N µs to 2^(N+1) µs. The first
    /// entry also counts all shorter latencies, and the last entry all longer latencies.
    pub latencies_by_length: [u64; LENGTHS],
    /// Time of late requests in which another tenant had the GPU and the gate was closed, ns.
    pub late_waited_ns: u64,
    /// GPU time of late requests, ns.
    pub late_worked_ns: u64,
    /// The rest of the latencies of late requests, ns.
    pub late_rest_ns: u64,
}

impl Served {
    /// Returns whether the tenant has had no request.
    pub fn is_empty(&self) -> bool {
        self.requests == 0
    }
}

/// The tenants that had the GPU while a tenant waited, and for how long, ns. If there are more
/// tenants than places, the least time loses its place.
#[derive(Debug, Default, Clone, Copy)]
struct Waits([(TenantId, u64); RIVALS]);

impl Waits {
    fn add(&mut self, rival: TenantId, waited_ns: u64) {
        let known = self.0.iter().position(|(known, ns)| *known == rival && *ns > 0);
        let least = || (0..RIVALS).min_by_key(|place| self.0[*place].1).unwrap_or(0);
        let place = &mut self.0[known.unwrap_or_else(least)];
        let before_ns = if known.is_some() { place.1 } else { 0 };
        *place = (rival, before_ns.saturating_add(waited_ns));
    }
}

/// The delays of late requests, added up.
#[derive(Debug, Default, Clone, Copy)]
pub struct Late {
    /// Number of late requests in the sums.
    pub requests: u64,
    /// The latencies, ns.
    pub latency_ns: u64,
    /// Time in which another tenant had the GPU and the gate was closed, ns.
    pub waited_ns: u64,
    /// GPU time of the requests, ns.
    pub worked_ns: u64,
    waits: Waits,
}

impl Late {
    /// Returns the tenants that had the GPU while the late requests waited, at most `RIVALS`
    /// tenants. Each tenant comes with the time of the wait, ns.
    pub fn waited_for(&self) -> impl Iterator<Item = (TenantId, u64)> {
        self.waits.0.into_iter().filter(|(_, waited_ns)| *waited_ns > 0)
    }

    /// Returns the part of the latencies that was neither a wait for other tenants nor GPU time,
    /// ns.
    pub fn rest_ns(&self) -> u64 {
        self.latency_ns.saturating_sub(self.waited_ns).saturating_sub(self.worked_ns)
    }

    fn halve(&mut self) {
        let waits = self.waits.0.iter_mut().map(|(_, waited_ns)| waited_ns);
        let sums = [&mut self.requests, &mut self.latency_ns, &mut self.waited_ns, &mut self.worked_ns];
        sums.into_iter().chain(waits).for_each(|sum| *sum /= 2);
    }
}

/// A request that has not ended, or whose end a short pause can still undo.
#[derive(Debug, Clone, Copy, Default)]
struct Burst {
    began_ns: u64,
    /// The time at which the work ended, ns; `None` while the tenant wants the GPU.
    ended_ns: Option<u64>,
    waited_ns: u64,
    worked_ns: u64,
    waits: Waits,
}

/// A request that has ended.
#[derive(Debug, Clone, Copy, Default)]
struct Ended {
    at_ns: u64,
    latency_ns: u64,
    is_in_time: bool,
}

/// The figures of one look at a tenant.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Look {
    /// The time of the previous look, ns.
    pub from_ns: u64,
    pub now_ns: u64,
    /// Whether work is in flight or a thread waits.
    pub wants: bool,
    /// Whether the gate has been open since the previous look.
    pub is_open: bool,
    /// The number of times that all work in flight of a session ended since the previous look.
    pub ends: u64,
    /// The time since the previous look in which work was in flight, by the meters, ns.
    pub occupied_ns: u64,
    /// The end of the last work that has ended, ns.
    pub ended_ns: Option<u64>,
    /// GPU time since the previous look, ns.
    pub used_ns: u64,
    /// The tenant that has had the GPU since the previous look while the gate was closed.
    pub rival: Option<TenantId>,
    /// Whether a set of tenants has had the GPU since the previous look while the gate was closed.
    pub awaits_set: bool,
    /// The longest pause that does not end a request, ns.
    pub short_ns: u64,
    pub slo_ns: u64,
}

/// The requests of one tenant with an SLO.
#[derive(Debug)]
pub struct Requests {
    since_ns: u64,
    burst: Option<Burst>,
    latest: [Ended; REMEMBERED],
    count: usize,
    next: usize,
    late: Late,
}

impl Requests {
    /// Returns no requests. The core measures them from `now_ns` on.
    pub(super) fn new(now_ns: u64) -> Self {
        Self {
            since_ns: now_ns,
            burst: None,
            latest: [Ended::default(); REMEMBERED],
            count: 0,
            next: 0,
            late: Late::default(),
        }
    }

    /// Forgets the present request, because an administrator keeps the tenant off the GPU, or the
    /// tenant has left.
    pub(super) fn interrupt(&mut self) {
        self.burst = None;
    }

    /// Returns whether the core must look at the tenant again to see the end of a request.
    pub(super) fn is_pending(&self) -> bool {
        self.burst.is_some()
    }

    /// Takes in a look. Adds the requests that have ended to `served`.
    pub(super) fn look(&mut self, look: &Look, served: &mut Served) {
        let elapsed_ns = look.now_ns.saturating_sub(look.from_ns);
        let mut running = self.burst.filter(|burst| burst.ended_ns.is_none());
        if let Some(burst) = &mut running {
            burst.worked_ns = burst.worked_ns.saturating_add(look.used_ns);
            if look.awaits_set || look.rival.is_some() {
                burst.waited_ns = burst.waited_ns.saturating_add(elapsed_ns);
            }
            if let Some(rival) = look.rival {
                burst.waits.add(rival, elapsed_ns);
            }
            self.burst = Some(*burst);
        }
        // The meter may not count work that is shorter than the time between two looks of its own.
        let occupied_ns = match running {
            Some(_) if !look.is_open => elapsed_ns,
            _ => look.occupied_ns.max(look.used_ns).min(elapsed_ns),
        };
        let parts = look.ends.saturating_add(u64::from(look.wants));
        let pauses_ns = elapsed_ns - occupied_ns;
        if parts > 1 && pauses_ns / look.ends.max(1) > look.short_ns {
            self.split(look, parts, occupied_ns, served);
        } else if look.wants {
            self.begin(look.now_ns - occupied_ns, look, served);
        } else if running.is_some() || look.ends > 0 {
            let is_possible = |ended_ns: &u64| (look.from_ns..=look.now_ns).contains(ended_ns);
            let ended_ns = look.ended_ns.filter(is_possible).unwrap_or(look.now_ns);
            if running.is_none() {
                self.begin(ended_ns.saturating_sub(occupied_ns), look, served);
                self.work(look.used_ns);
            }
            if let Some(burst) = &mut self.burst {
                burst.ended_ns = Some(ended_ns.max(burst.began_ns));
            }
        }
        let is_over = |burst: &Burst| {
            burst.ended_ns.is_some_and(|ended_ns| look.now_ns.saturating_sub(ended_ns) > look.short_ns)
        };
        if self.burst.as_ref().is_some_and(is_over) {
            self.end(look, served);
        }
    }

    /// Begins a request at `began_ns`, or goes on with the present request after a short pause.
    fn begin(&mut self, began_ns: u64, look: &Look, served: &mut Served) {
        if let Some(burst) = &mut self.burst {
            match burst.ended_ns {
                Some(ended_ns) if began_ns.saturating_sub(ended_ns) > look.short_ns => {}
                _ => return burst.ended_ns = None,
            }
        }
        self.end(look, served);
        self.burst = Some(Burst { began_ns, ..Burst::default() });
    }

    fn work(&mut self, worked_ns: u64) {
        if let Some(burst) = &mut self.burst {
            burst.worked_ns = burst.worked_ns.saturating_add(worked_ns);
        }
    }

    /// Takes in a look between which and the previous look several requests began or ended. Each of
    /// these tenants gets an equal part of the time.
    fn split(&mut self, look: &Look, parts: u64, occupied_ns: u64, served: &mut Served) {
        let running = self.burst.filter(|burst| burst.ended_ns.is_none());
        let before_ns = running.map_or(0, |burst| look.from_ns.saturating_sub(burst.began_ns));
        if running.is_none() {
            self.end(look, served);
        }
        let latency_ns = before_ns.saturating_add(occupied_ns) / parts;
        let part = running.unwrap_or(Burst { worked_ns: look.used_ns, ..Burst::default() });
        let mut waits = part.waits;
        waits.0.iter_mut().for_each(|(_, waited_ns)| *waited_ns /= parts);
        let part = Burst {
            began_ns: look.now_ns.saturating_sub(latency_ns),
            ended_ns: Some(look.now_ns),
            waited_ns: part.waited_ns / parts,
            worked_ns: part.worked_ns / parts,
            waits,
        };
        // A broken meter can count any number of ends.
        for _ in 1..parts.min(REMEMBERED as u64) {
            self.burst = Some(part);
            self.end(look, served);
        }
        self.burst = Some(Burst { ended_ns: part.ended_ns.filter(|_| !look.wants), ..part });
    }

    /// Counts the present request, if there is one.
    fn end(&mut self, look: &Look, served: &mut Served) {
        let Some(burst) = self.burst.take() else { return };
        let at_ns = burst.ended_ns.unwrap_or(look.now_ns);
        let latency_ns = at_ns.saturating_sub(burst.began_ns);
        let is_in_time = latency_ns <= look.slo_ns;
        served.requests = served.requests.saturating_add(1);
        served.latency_ns = served.latency_ns.saturating_add(latency_ns);
        let length = (latency_ns / NS_PER_US).checked_ilog2().unwrap_or(0) as usize;
        let count = &mut served.latencies_by_length[length.min(LENGTHS - 1)];
        *count = count.saturating_add(1);
        self.latest[self.next] = Ended { at_ns, latency_ns, is_in_time };
        self.next = (self.next + 1) % REMEMBERED;
        self.count = (self.count + 1).min(REMEMBERED);
        if is_in_time {
            served.in_time = served.in_time.saturating_add(1);
            return;
        }
        let waited_ns = burst.waited_ns.min(latency_ns);
        let worked_ns = burst.worked_ns.min(latency_ns - waited_ns);
        served.late_waited_ns = served.late_waited_ns.saturating_add(waited_ns);
        served.late_worked_ns = served.late_worked_ns.saturating_add(worked_ns);
        served.late_rest_ns = served.late_rest_ns.saturating_add(latency_ns - waited_ns - worked_ns);
        let late = &mut self.late;
        if late.requests >= LATE_REMEMBERED {
            late.halve();
        }
        late.requests += 1;
        late.latency_ns = late.latency_ns.saturating_add(latency_ns);
        late.waited_ns = late.waited_ns.saturating_add(waited_ns);
        late.worked_ns = late.worked_ns.saturating_add(worked_ns);
        for (rival, waited_ns) in burst.waits.0.into_iter().filter(|(_, waited_ns)| *waited_ns > 0) {
            late.waits.add(rival, waited_ns);
        }
    }

    fn latest(&self) -> &[Ended] {
        &self.latest[..self.count]
    }

    /// Returns the latencies that 50 % and 99 % of the latest requests do not exceed, ns. Returns
    /// `None` without requests.
    pub fn quantiles_ns(&self) -> Option<[u64; 2]> {
        let mut sorted = self.latest.map(|ended| ended.latency_ns);
        let sorted = &mut sorted[..self.count];
        sorted.sort_unstable();
        let quantile = |percent: usize| sorted.get((sorted.len() * percent).div_ceil(100).checked_sub(1)?);
        Some([*quantile(50)?, *quantile(99)?])
    }

    /// Returns the part of the latest requests that ended within the SLO, parts per million.
    /// Returns `None` without requests.
    pub fn attained_ppm(&self) -> Option<u32> {
        let in_time = self.latest().iter().filter(|ended| ended.is_in_time).count() as u64;
        let ppm = (in_time * u64::from(deepres_abi::PPM)).checked_div(self.count as u64)?;
        u32::try_from(ppm).ok()
    }

    /// Returns the requests that ended within the SLO in the last ten seconds, per second. If more
    /// requests ended than the core remembers, returns the rate of the remembered ones.
    pub fn goodput_per_s(&self, now_ns: u64) -> f64 {
        self.per_s(now_ns, |ended| ended.is_in_time)
    }

    /// Returns the requests that ended, in time or late, over the time of the goodput, per second.
    pub fn rate_per_s(&self, now_ns: u64) -> f64 {
        self.per_s(now_ns, |_| true)
    }

    fn per_s(&self, now_ns: u64, counts: impl Fn(&Ended) -> bool) -> f64 {
        let begun_ns = self.since_ns.max(now_ns.saturating_sub(GOODPUT_NS));
        // Nothing is known of the time before the oldest remembered request.
        let full = (self.count == REMEMBERED).then(|| self.latest[self.next].at_ns);
        let (from_ns, least_ns) = match full.filter(|oldest_ns| *oldest_ns > begun_ns) {
            Some(oldest_ns) => (oldest_ns, 1),
            None => (begun_ns, LEAST_GOODPUT_NS),
        };
        let counted = self.latest().iter().filter(|ended| counts(ended) && ended.at_ns > from_ns).count();
        let over_ns = now_ns.saturating_sub(from_ns).max(least_ns);
        counted as f64 / Duration::from_nanos(over_ns).as_secs_f64()
    }

    /// Returns the delays of about the latest hundred late requests.
    pub fn late(&self) -> &Late {
        &self.late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const SHORT_NS: u64 = MS / 5;
    const SLO_NS: u64 = 10 * MS;
    const RIVAL: TenantId = 7;

    struct Bench {
        requests: Requests,
        served: Served,
        now_ns: u64,
    }

    impl Bench {
        fn new() -> Self {
            Self { requests: Requests::new(0), served: Served::default(), now_ns: 0 }
        }

        fn look(&mut self, after_ns: u64, look: Look) {
            let from_ns = self.now_ns;
            self.now_ns += after_ns;
            let look = Look { from_ns, now_ns: self.now_ns, short_ns: SHORT_NS, slo_ns: SLO_NS, ..look };
            self.requests.look(&look, &mut self.served);
        }

        fn latencies_ms(&self) -> Vec<u64> {
            self.requests.latest().iter().map(|ended| ended.latency_ns / MS).collect()
        }
    }

    const WANTS: Look = Look {
        from_ns: 0,
        now_ns: 0,
        wants: true,
        is_open: false,
        ends: 0,
        occupied_ns: 0,
        ended_ns: None,
        used_ns: 0,
        rival: None,
        awaits_set: false,
        short_ns: 0,
        slo_ns: 0,
    };
    const RESTS: Look = Look { wants: false, ..WANTS };

    #[test]
    fn a_request_lasts_from_the_wait_at_the_gate_to_the_end_of_its_last_work() {
        let mut bench = Bench::new();
        bench.look(100 * MS, WANTS);
        bench.look(4 * MS, Look { rival: Some(RIVAL), ..WANTS });
        bench.look(MS, WANTS);
        let ended_ns = Some(bench.now_ns + 3 * MS);
        bench.look(4 * MS, Look { ends: 1, ended_ns, used_ns: 3 * MS, ..RESTS });
        assert!(bench.requests.is_pending() || bench.served.requests == 1);
        bench.look(MS, RESTS);
        assert_eq!((bench.latencies_ms(), bench.served.in_time), (vec![8], 1));
        assert_eq!(bench.served.latencies_by_length[12], 1, "8 ms is from 4 to 8.2 ms");
        assert!(!bench.requests.is_pending());
        assert_eq!(bench.requests.quantiles_ns(), Some([8 * MS; 2]));
    }

    #[test]
    fn a_short_pause_does_not_end_a_request_and_a_long_pause_does() {
        let mut bench = Bench::new();
        for pause_ns in [SHORT_NS / 2, MS] {
            bench.look(MS, WANTS);
            bench.look(2 * MS, Look { ends: 1, ..RESTS });
            bench.look(pause_ns, WANTS);
            bench.look(MS, Look { ends: 1, ..RESTS });
            bench.look(MS, RESTS);
        }
        assert_eq!(bench.latencies_ms(), [3, 2, 1]);
    }

    #[test]
    fn the_delays_of_late_requests_add_up_to_their_latency() {
        let mut bench = Bench::new();
        bench.look(MS, WANTS);
        bench.look(12 * MS, Look { rival: Some(RIVAL), ..WANTS });
        bench.look(MS, WANTS);
        bench.look(4 * MS, Look { ends: 1, used_ns: 3 * MS, ..RESTS });
        bench.look(MS, RESTS);
        let late = bench.requests.late();
        assert_eq!((late.requests, late.latency_ns), (1, 17 * MS));
        assert_eq!((late.waited_ns, late.worked_ns, late.rest_ns()), (12 * MS, 3 * MS, 2 * MS));
        assert_eq!(late.waited_for().collect::<Vec<_>>(), [(RIVAL, 12 * MS)]);
        let Served { late_waited_ns, late_worked_ns, late_rest_ns, .. } = bench.served;
        assert_eq!((late_waited_ns, late_worked_ns, late_rest_ns), (12 * MS, 3 * MS, 2 * MS));
        assert_eq!((bench.requests.attained_ppm(), bench.served.in_time), (Some(0), 0));
    }

    #[test]
    fn a_wait_for_a_set_of_tenants_counts_as_a_wait_for_none_of_them() {
        let mut bench = Bench::new();
        bench.look(MS, WANTS);
        bench.look(12 * MS, Look { awaits_set: true, ..WANTS });
        bench.look(4 * MS, Look { ends: 1, used_ns: 3 * MS, ..RESTS });
        bench.look(MS, RESTS);
        let late = bench.requests.late();
        assert_eq!((late.waited_ns, late.waited_for().count()), (12 * MS, 0));
    }

    #[test]
    fn requests_that_end_between_two_looks_through_an_open_gate_share_the_time() {
        let mut bench = Bench::new();
        let open = Look { is_open: true, ..WANTS };
        bench.look(50 * MS, Look { ends: 4, occupied_ns: 20 * MS, used_ns: 18 * MS, ..open });
        assert_eq!(bench.latencies_ms(), [4; 4], "the fifth goes on");
        bench.look(50 * MS, Look { wants: false, ends: 2, occupied_ns: 8 * MS, ..open });
        bench.look(MS, Look { wants: false, ..open });
        assert_eq!(bench.latencies_ms()[4..], [6; 2], "4 ms before the look and 8 ms after it");
        // A single request that the meter's own looks missed.
        bench.look(50 * MS, Look { wants: false, ends: 1, used_ns: 3 * MS, ..open });
        bench.look(MS, Look { wants: false, ..open });
        assert_eq!(bench.latencies_ms()[6..], [3]);
    }

    #[test]
    fn work_without_longer_pauses_is_one_request() {
        let mut bench = Bench::new();
        let busy = Look { is_open: true, ends: 50, occupied_ns: 45 * MS, ..WANTS };
        (0..4).for_each(|_| bench.look(50 * MS, busy));
        assert_eq!(bench.served.requests, 0);
        bench.look(MS, Look { wants: false, ends: 1, occupied_ns: MS, ..busy });
        bench.look(MS, Look { is_open: true, ..RESTS });
        assert_eq!(bench.latencies_ms(), [196]);
    }

    #[test]
    fn the_goodput_is_of_the_last_seconds_and_counts_requests_in_time() {
        let mut bench = Bench::new();
        for latency_ms in [2, 4, 20, 6] {
            bench.look(MS, WANTS);
            bench.look(latency_ms * MS, Look { ends: 1, ..RESTS });
            bench.look(500 * MS, RESTS);
        }
        let per_s = bench.requests.goodput_per_s(bench.now_ns);
        assert!((per_s - 3.0 / 2.036).abs() < 0.01, "{per_s}");
        let rate_per_s = bench.requests.rate_per_s(bench.now_ns);
        assert!((rate_per_s - 4.0 / 2.036).abs() < 0.01, "{rate_per_s}");
        assert_eq!(bench.requests.attained_ppm(), Some(750_000));
        assert_eq!(bench.requests.goodput_per_s(bench.now_ns + 2 * GOODPUT_NS), 0.0);
    }

    #[test]
    fn the_goodput_is_right_for_more_requests_a_second_than_the_core_remembers() {
        let mut bench = Bench::new();
        for _ in 0..1_000 {
            bench.look(MS / 2, WANTS);
            bench.look(MS / 4, Look { ends: 1, ..RESTS });
            bench.look(MS / 4, RESTS);
        }
        assert_eq!((bench.now_ns, bench.served.in_time), (1_000 * MS, 1_000));
        let per_s = bench.requests.goodput_per_s(bench.now_ns);
        assert!((per_s - 1_000.0).abs() < 10.0, "{per_s}");
    }

    #[test]
    fn absurd_figures_are_harmless() {
        let mut bench = Bench::new();
        for (ends, occupied_ns, ended_ns) in [(u64::MAX, u64::MAX, None), (u64::MAX, 0, Some(u64::MAX))] {
            for is_open in [false, true] {
                let absurd = Look { is_open, ends, occupied_ns, ended_ns, used_ns: u64::MAX, ..WANTS };
                bench.look(MS, absurd);
                bench.look(MS, Look { wants: false, ..absurd });
                bench.look(MS, RESTS);
            }
        }
        assert!(bench.served.latency_ns <= bench.now_ns * REMEMBERED as u64);
        let mut waits = Waits::default();
        (1..20).for_each(|rival| waits.add(rival, rival));
        assert!(waits.0.contains(&(19, 19)));
    }
}
