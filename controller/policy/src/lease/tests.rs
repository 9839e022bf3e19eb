//! Each rule of the lease policy by itself. `tests/integration/lease_policy.rs` tries them
//! together.

mod due;
mod sets;

use super::state::{MAX_CREDIT_NS, MAX_DEBT_NS};
use super::*;
use crate::entitlement::IDLE_NS;
use crate::tuning::{ASSUMED_HANDOFF_NS, QuantumBounds};
use deepres_abi::PPM;
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const A: TenantId = 1;
const B: TenantId = 2;
const C: TenantId = 3;
const IDLE: Seen = Seen {
    waiting: false,
    in_flight: false,
    used_ns: 0,
    pending_ns: 0,
    longest_ns: 0,
    sm_ppm: 0,
    ended: false,
};
const WAITING: Seen = Seen { waiting: true, ..IDLE };
const RUNNING: Seen = Seen { in_flight: true, ..IDLE };

struct Bench {
    scheduler: Scheduler,
    tuning: Tuning,
    now_ns: u64,
}

impl Bench {
    /// Two tenants with equal weights, of which A came first.
    fn new() -> Self {
        let tuning = Tuning::derive(ASSUMED_HANDOFF_NS, QuantumBounds::default(), 2);
        let mut bench = Self { scheduler: Scheduler::default(), tuning, now_ns: 1_000 * MS };
        bench.scheduler.enter(A, Class::Fair, bench.now_ns);
        bench.scheduler.set_standing(A, Class::Fair, PPM / 2);
        bench.scheduler.decide(bench.now_ns, &tuning);
        bench.scheduler.enter(B, Class::Fair, bench.now_ns);
        bench.scheduler.set_standing(B, Class::Fair, PPM / 2);
        bench
    }

    /// Lets `pass_ns` pass, and shows the scheduler the readings of A and B, until it asks for no
    /// further reading. Returns the time until the next decision, ns.
    fn step(&mut self, pass_ns: u64, a: Seen, b: Seen) -> Option<u64> {
        let mut wake_ns = self.look(pass_ns, a, b);
        while wake_ns == Some(1) {
            // The scheduler has closed a gate, and asks for another reading of the same state.
            wake_ns = self.look(1, Seen { used_ns: 0, ..a }, Seen { used_ns: 0, ..b });
        }
        wake_ns
    }

    /// Does the same with a single reading and a single decision.
    fn look(&mut self, pass_ns: u64, a: Seen, b: Seen) -> Option<u64> {
        self.now_ns += pass_ns;
        self.scheduler.observe(A, self.now_ns, a);
        self.scheduler.observe(B, self.now_ns, b);
        let wake_ns = self.scheduler.decide(self.now_ns, &self.tuning)?;
        Some(wake_ns.saturating_sub(self.now_ns))
    }

    /// Lets A use its request while B waits, until A's gate closes. Then A has work in flight.
    fn drain_a(&mut self) {
        for _ in 0..100 {
            if self.scheduler.phase() == Phase::Draining(A) {
                return;
            }
            self.step(MS, Seen { used_ns: MS, ..RUNNING }, WAITING);
        }
        panic!("A keeps the GPU");
    }

    fn is_open(&self, tenant: TenantId) -> bool {
        self.scheduler.grant(tenant) == Grant::Open
    }

    fn is_leased(&self, tenant: TenantId) -> bool {
        matches!(self.scheduler.grant(tenant), Grant::Leased { .. })
    }

    fn is_closed(&self, tenant: TenantId) -> bool {
        self.scheduler.grant(tenant) == Grant::Closed
    }

    fn may_launch(&self, tenant: TenantId) -> bool {
        self.is_open(tenant) || self.is_leased(tenant)
    }
}

#[test]
fn a_tenant_alone_has_an_open_gate_before_it_asks() {
    let bench = Bench::new();
    assert!(bench.is_open(A) && bench.is_closed(B));
    assert_eq!(bench.scheduler.phase(), Phase::Held(A));
}

#[test]
fn a_decision_looks_at_those_alone_that_want_the_gpu_or_were_touched() {
    let mut bench = Bench::new();
    let set_weights = |bench: &mut Bench, weight_ppm| {
        (10..1_000).for_each(|id| bench.scheduler.set_standing(id, Class::Fair, weight_ppm));
    };
    let astir = |bench: &Bench| bench.scheduler.tenants.astir().map(|(id, _)| *id).collect::<Vec<_>>();
    (10..1_000).for_each(|id| bench.scheduler.enter(id, Class::Fair, bench.now_ns));
    set_weights(&mut bench, PPM / 1_000);
    bench.step(MS, RUNNING, IDLE);
    assert_eq!(astir(&bench), [A]);
    // A change of a tenant's weight alone does not make the next decision look at the tenant.
    set_weights(&mut bench, PPM / 2_000);
    assert_eq!(astir(&bench), [A]);
    bench.scheduler.observe(500, bench.now_ns, WAITING);
    bench.scheduler.set_standing(501, Class::BestEffort, PPM);
    assert_eq!(astir(&bench), [A, 500, 501]);
    bench.step(MS, RUNNING, WAITING);
    assert_eq!(astir(&bench), [A, B, 500]);
}

#[test]
fn a_tenant_that_pauses_at_each_look_owes_nothing_for_time_that_nobody_else_wanted() {
    let mut bench = Bench::new();
    bench.step(MS, IDLE, IDLE);
    bench.step(100 * MS, Seen { used_ns: 90 * MS, ..RUNNING }, WAITING);
    assert_eq!([A, B].map(|tenant| bench.scheduler.lag_ns(tenant)), [0, 0]);
}

#[test]
fn of_those_equally_far_behind_who_is_owed_most_goes_first() {
    // For each turn of another tenant, a waiting tenant falls behind by its own share of that turn.
    let mut bench = Bench::new();
    bench.step(MS, RUNNING, IDLE);
    for (id, weight_ppm) in [(3, PPM / 8), (4, PPM / 4), (5, PPM / 8)] {
        bench.scheduler.enter(id, Class::Fair, bench.now_ns);
        bench.scheduler.set_standing(id, Class::Fair, weight_ppm);
        bench.scheduler.observe(id, bench.now_ns, WAITING);
    }
    bench.step(0, RUNNING, IDLE);
    bench.step(MS, IDLE, IDLE);
    bench.step(MS, IDLE, IDLE);
    assert_eq!(bench.scheduler.phase(), Phase::Held(4));
}

#[test]
fn work_that_begins_in_a_pause_of_another_tenant_costs_nothing_for_the_pause() {
    let mut bench = Bench::new();
    bench.step(MS, RUNNING, WAITING);
    bench.step(5 * MS, Seen { used_ns: 5 * MS, ..IDLE }, WAITING);
    // The thread of B still wakes up.
    bench.step(2 * MS, IDLE, WAITING);
    assert!(bench.may_launch(B));
    bench.step(MS / 100, IDLE, WAITING);
    let before_ns = bench.scheduler.lag_ns(B);
    bench.step(4 * MS, WAITING, RUNNING);
    let lags_ns = [before_ns, bench.scheduler.lag_ns(B)];
    assert!((lags_ns[1] - before_ns).unsigned_abs() < MS / 4, "A did not want the GPU: {lags_ns:?}");
    bench.step(2 * MS, WAITING, Seen { used_ns: 6 * MS, ..RUNNING });
    let paid_ns = before_ns - bench.scheduler.lag_ns(B);
    assert!((paid_ns - MS as i64).unsigned_abs() < MS / 4, "a half of 2 ms, and not {paid_ns}");
}

#[test]
fn a_tenant_that_was_owed_next_to_nothing_for_a_moment_does_not_owe_more_for_it_afterwards() {
    let mut bench = Bench::new();
    let had = |used_ns| Seen { used_ns, ..RUNNING };
    bench.step(MS, had(MS), WAITING);
    for weight_ppm in [1, PPM / 2] {
        for tenant in [A, B] {
            bench.scheduler.set_standing(tenant, Class::Fair, weight_ppm);
        }
        bench.step(MS, had(MS), WAITING);
    }
    let lag_ns = bench.scheduler.lag_ns(A);
    assert!((-4 * MS as i64..0).contains(&lag_ns), "it had three milliseconds, and owes {lag_ns} ns");
}

#[test]
fn a_tenant_with_less_weight_for_a_moment_again_and_again_has_no_more_for_it() {
    let mut bench = Bench::new();
    bench.scheduler.set_standing(A, Class::Fair, PPM / 10);
    bench.scheduler.set_standing(B, Class::Fair, PPM / 10 * 9);
    let mut had_ns = [0_u64; 2];
    for step in 0..10_000 {
        let seen = [A, B].map(|tenant| match bench.is_closed(tenant) {
            true => WAITING,
            false => Seen { used_ns: MS, longest_ns: MS, ..RUNNING },
        });
        for (had_ns, seen) in had_ns.iter_mut().zip(&seen) {
            *had_ns += seen.used_ns;
        }
        bench.step(MS, seen[0], seen[1]);
        if step % 10 == 0 {
            // A's weight falls and rises again, as if a third tenant came and went.
            bench.scheduler.set_standing(A, Class::Fair, PPM / 110);
            bench.scheduler.set_standing(A, Class::Fair, PPM / 10);
        }
    }
    let share = had_ns[0] as f64 / (had_ns[0] + had_ns[1]) as f64;
    assert!((share - 0.1).abs() < 0.02, "it had {share} of the time, and is owed a tenth");
}

/// Lets tenant A do `used` and leave. Returns the debt, ns, with which the next tenant of A's user
/// that wants the GPU begins.
fn owed_by_the_next(used: impl FnOnce(&mut Bench), class: Class) -> i64 {
    const USER: trust::UserId = 7;
    const IDLER: TenantId = 8;
    const NEXT: TenantId = 9;
    let mut bench = Bench::new();
    bench.scheduler.set_user(A, USER, bench.now_ns);
    used(&mut bench);
    bench.scheduler.leave(A, bench.now_ns);
    for tenant in [IDLER, NEXT] {
        bench.scheduler.enter(tenant, class, bench.now_ns);
        bench.scheduler.set_user(tenant, USER, bench.now_ns);
        bench.scheduler.set_standing(tenant, class, PPM / 2);
        if tenant == IDLER {
            bench.scheduler.leave(tenant, bench.now_ns);
        }
    }
    bench.scheduler.observe(NEXT, bench.now_ns, WAITING);
    bench.step(0, IDLE, WAITING);
    -bench.scheduler.lag_ns(NEXT)
}

#[test]
fn a_debt_passes_to_the_next_tenant_that_wants_the_gpu_and_not_to_one_that_only_came() {
    let before_b = |bench: &mut Bench| {
        bench.step(MS, RUNNING, WAITING);
        bench.step(20 * MS, Seen { used_ns: 20 * MS, ..RUNNING }, WAITING);
    };
    let owed_ns = owed_by_the_next(before_b, Class::Fair);
    // A was owed half of the twenty milliseconds, so it owes the other half.
    assert!((9 * MS as i64..=11 * MS as i64).contains(&owed_ns), "{owed_ns}");
    assert_eq!(owed_by_the_next(before_b, Class::BestEffort), 0, "guests did not wait for it");
    let alone = |bench: &mut Bench| {
        bench.step(MS, RUNNING, IDLE);
        bench.now_ns += 40 * MS;
        bench.scheduler.observe(A, bench.now_ns, Seen { used_ns: 40 * MS, ..RUNNING });
    };
    assert_eq!(owed_by_the_next(alone, Class::Fair), 0, "nobody else wanted it");
    let forgiven = |bench: &mut Bench| {
        before_b(bench);
        bench.scheduler.forgive(bench.now_ns, MS);
    };
    assert_eq!(owed_by_the_next(forgiven, Class::Fair), 0);
}

#[test]
fn a_tenant_that_pauses_at_each_look_is_not_idle() {
    let mut bench = Bench::new();
    for _ in 0..10 {
        bench.step(IDLE_NS, Seen { used_ns: IDLE_NS / 10, ..IDLE }, IDLE);
        assert!(!bench.scheduler.is_idle(A, bench.now_ns) && bench.scheduler.is_idle(B, bench.now_ns));
    }
}

#[test]
fn a_tenant_that_wants_nothing_for_a_while_is_idle_until_it_wants_something() {
    let mut bench = Bench::new();
    let is_idle = |bench: &Bench| [A, B].map(|tenant| bench.scheduler.is_idle(tenant, bench.now_ns));
    bench.step(IDLE_NS - 1, RUNNING, IDLE);
    assert_eq!(is_idle(&bench), [false, false], "it may have come to work");
    bench.step(1, RUNNING, IDLE);
    assert_eq!(is_idle(&bench), [false, true]);
    bench.scheduler.observe(B, bench.now_ns, WAITING);
    assert_eq!(is_idle(&bench), [false, false], "before anything is decided");
    bench.step(10 * IDLE_NS, IDLE, WAITING);
    assert_eq!(is_idle(&bench), [false, false], "it stopped only now");
    bench.step(IDLE_NS, IDLE, WAITING);
    assert_eq!(is_idle(&bench), [true, false]);
    bench.scheduler.set_paused(B, true);
    assert_eq!(is_idle(&bench), [true, true], "a paused tenant is idle");
    bench.scheduler.leave(A, bench.now_ns);
    bench.now_ns += IDLE_NS;
    bench.scheduler.enter(A, Class::Fair, bench.now_ns);
    assert_eq!(is_idle(&bench), [false, true], "a tenant that comes back is not idle");
}

#[test]
fn the_next_gate_opens_only_when_the_holder_has_drained() {
    let mut bench = Bench::new();
    bench.drain_a();
    assert!(bench.is_closed(A) && bench.is_closed(B));
    assert_eq!(bench.scheduler.phase(), Phase::Draining(A));
    bench.step(MS, RUNNING, WAITING);
    assert!(bench.is_closed(B));
    bench.step(MS, Seen { used_ns: 3 * MS, ..WAITING }, WAITING);
    assert!(bench.is_leased(B) && bench.is_closed(A));
}

#[test]
fn a_drain_that_does_not_end_is_given_up_after_a_while() {
    let mut bench = Bench::new();
    bench.drain_a();
    bench.step(MAX_DRAIN_NS - MS, RUNNING, WAITING);
    assert!(bench.is_closed(B));
    bench.step(MS, RUNNING, WAITING);
    assert!(bench.is_leased(B) && bench.is_closed(A));
    // The scheduler charged A for the drain. So B keeps the GPU for several of its quanta.
    for _ in 0..5 {
        bench.step(5 * MS, RUNNING, Seen { used_ns: 5 * MS, ..RUNNING });
    }
    assert!(bench.is_leased(B));
}

#[test]
fn a_tenant_that_did_not_drain_is_waited_for_briefly_until_something_long_has_ended() {
    let mut bench = Bench::new();
    bench.drain_a();
    bench.step(MAX_DRAIN_NS, RUNNING, WAITING);
    assert!(bench.is_leased(B));
    // Lets A have its next lease, and returns the time from the end of this lease to B's lease.
    let drain_ns = |bench: &mut Bench, a: Seen| {
        while !bench.is_leased(A) {
            let b = if bench.is_leased(B) { Seen { used_ns: MS, ..RUNNING } } else { WAITING };
            bench.step(MS, RUNNING, b);
        }
        while bench.is_leased(A) {
            bench.step(MS, a, WAITING);
        }
        let mut drain_ns = 0;
        while !bench.is_leased(B) {
            bench.step(MS, RUNNING, WAITING);
            drain_ns += MS;
        }
        drain_ns
    };
    assert!(drain_ns(&mut bench, RUNNING) <= STUCK_DRAIN_NS + MS);
    assert!(
        drain_ns(&mut bench, Seen { used_ns: 1, ..RUNNING }) <= STUCK_DRAIN_NS + MS,
        "next to nothing is no sign"
    );
    let whole_ns = bench.now_ns;
    assert!(drain_ns(&mut bench, Seen { used_ns: whole_ns, ..RUNNING }) >= MIN_DRAIN_NS, "it got on");
}

impl Bench {
    /// A always has work, B has an SLO.
    fn latency() -> Self {
        let mut bench = Self::new();
        bench.scheduler.set_slo(B, Some(20 * MS));
        bench
    }
}

#[test]
fn a_tenant_with_an_slo_closes_the_others_gates_when_it_comes() {
    for has_objective in [true, false] {
        let mut bench = Bench::latency();
        bench.scheduler.set_slo(B, has_objective.then_some(20 * MS));
        bench.scheduler.enter(C, Class::Fair, bench.now_ns);
        bench.scheduler.set_standing(C, Class::Fair, PPM / 2);
        bench.scheduler.observe(C, bench.now_ns, WAITING);
        // A and C always have work. The loop goes on until A has a lease.
        while !bench.is_leased(A) {
            bench.step(MS / 2, if bench.is_closed(A) { WAITING } else { RUNNING }, IDLE);
            bench.step(0, WAITING, IDLE);
        }
        bench.step(MS / 10, RUNNING, IDLE);
        assert!(bench.is_leased(A));
        bench.step(MS / 10, RUNNING, WAITING);
        assert_eq!(bench.is_closed(A), has_objective);
    }
}

#[test]
fn a_tenant_with_an_slo_has_no_more_of_the_gpu_for_it() {
    let mut bench = Bench::latency();
    let mut had_ns = [0u64; 2];
    for _ in 0..20_000 {
        let holds = [A, B].map(|tenant| !bench.is_closed(tenant));
        let seen =
            holds.map(|holds| if holds { Seen { used_ns: MS / 2, waiting: true, ..IDLE } } else { WAITING });
        for (had_ns, holds) in had_ns.iter_mut().zip(holds) {
            *had_ns += if holds { MS / 2 } else { 0 };
        }
        bench.step(MS / 2, seen[0], seen[1]);
    }
    let share = had_ns[1] as f64 / (had_ns[0] + had_ns[1]) as f64;
    assert!((share - 0.5).abs() < 0.02, "it had {share} of the time");
}

#[test]
fn requests_with_a_time_objective_that_use_less_than_their_part_do_not_wait_for_each_other() {
    for has_objective in [true, false] {
        let mut bench = Bench::new();
        bench.scheduler.set_slo(B, has_objective.then_some(20 * MS));
        let mut waited_ms = 0;
        for _ in 0..20 {
            // B uses 2 ms in 10 ms. It owes A half of the 2 ms, and is owed half of the pause.
            bench.step(0, RUNNING, WAITING);
            while bench.is_closed(B) {
                waited_ms += 1;
                bench.step(MS, if bench.is_closed(A) { IDLE } else { RUNNING }, WAITING);
            }
            bench.step(MS, WAITING, Seen { used_ns: MS, ..RUNNING });
            bench.step(MS, WAITING, Seen { used_ns: MS, ..IDLE });
            for _ in 0..8 {
                bench.step(MS, Seen { used_ns: MS, ..RUNNING }, IDLE);
            }
        }
        // Each of the 20 requests waits for A's work in flight, which takes a millisecond.
        assert_eq!(waited_ms == 20, has_objective, "{waited_ms} ms, {has_objective}");
    }
}

#[test]
fn haste_costs_a_bounded_number_of_hand_offs() {
    let mut bench = Bench::latency();
    bench.scheduler.enter(C, Class::Fair, bench.now_ns);
    bench.scheduler.set_standing(C, Class::Fair, PPM / 2);
    let step_ns = MS / 4;
    let (steps, mut turns, mut wants, mut held) = (4_000, 0, false, false);
    for step in 0..steps {
        let [a, b, c] = [A, B, C].map(|tenant| bench.is_leased(tenant));
        let busy = |holds| if holds { Seen { used_ns: step_ns, ..RUNNING } } else { WAITING };
        bench.scheduler.observe(C, bench.now_ns + step_ns, busy(c));
        // B comes every half a millisecond, and is done as soon as it is served.
        turns += u64::from(b && !held);
        held = b;
        wants = !b && (wants || step % 2 == 0);
        let used_ns = if b { step_ns / 10 } else { 0 };
        bench.step(step_ns, busy(a), Seen { used_ns, waiting: wants, ..IDLE });
    }
    let most = steps * step_ns / (bench.tuning.handoff_ns * HANDOFFS_PER_PREEMPTION) + 1;
    assert!((most / 8..=most).contains(&turns), "{turns} turns, {most} at most");
}

#[test]
fn nobody_with_nothing_to_do_is_given_a_gpu_that_a_gang_waits_for() {
    let mut bench = Bench::new();
    bench.scheduler.set_order(Order::Apart, [(B, 0)].into());
    bench.step(MS, RUNNING, WAITING);
    bench.step(MS, Seen { used_ns: MS, ..WAITING }, WAITING);
    assert!(bench.is_leased(A), "the gang is not to have it yet");
    bench.scheduler.set_order(Order::Until { tenant: B, at_ns: bench.now_ns }, [(B, 0)].into());
    bench.step(MS, IDLE, WAITING);
    assert_eq!(bench.scheduler.phase(), Phase::Free);
    bench.scheduler.set_order(Order::Apart, [(B, 0)].into());
    bench.step(MS, IDLE, WAITING);
    assert_eq!(bench.scheduler.phase(), Phase::Free);
}

#[test]
fn a_gang_is_charged_for_a_gpu_that_idles_for_it_while_another_waits() {
    let mut bench = Bench::new();
    let until_ns = Some(bench.now_ns + 100 * MS);
    bench.scheduler.set_order(Order::Held { tenant: A, until_ns }, [(A, 0)].into());
    bench.step(MS, RUNNING, WAITING);
    bench.step(MS, Seen { used_ns: MS, ..IDLE }, WAITING);
    let before_ns = bench.scheduler.lag_ns(A);
    for _ in 0..20 {
        bench.step(MS, IDLE, WAITING);
    }
    // Half of the time is its own.
    let charged_ns = 2 * (before_ns - bench.scheduler.lag_ns(A));
    assert!((19 * MS as i64..=20 * MS as i64).contains(&charged_ns), "{charged_ns} ns of 20 ms");
}

#[test]
fn beside_a_time_objective_nobody_has_an_open_gate_or_a_long_window() {
    let mut bench = Bench::latency();
    for _ in 0..300 {
        bench.step(MS, Seen { used_ns: MS, ..RUNNING }, IDLE);
    }
    assert!(bench.is_open(A), "a tenant that never used the GPU answers nobody");
    bench.step(MS, Seen { used_ns: MS, ..RUNNING }, Seen { used_ns: 1, ..IDLE });
    assert!(bench.is_leased(A), "nobody else wants the GPU now");
    let window_ns = |bench: &Bench, tenant| bench.scheduler.window_ns(tenant, 1, 3 * MS, &bench.tuning);
    assert_eq!((window_ns(&bench, A), window_ns(&bench, B)), (3 * MS, 6 * MS));
    bench.scheduler.leave(B, bench.now_ns);
    bench.step(MS, Seen { used_ns: MS, ..RUNNING }, IDLE);
    assert!(bench.is_open(A));
    assert_eq!(window_ns(&bench, A), 6 * MS);
}

#[test]
fn a_tenant_that_may_be_back_at_any_moment_finds_less_queued_than_one_that_is_long_gone() {
    let mut bench = Bench::new();
    let ahead_ns = |bench: &Bench, sessions, longest_ns| {
        bench.scheduler.run_ahead_ns(A, sessions, longest_ns, bench.now_ns, &bench.tuning)
    };
    bench.step(MS, RUNNING, RUNNING);
    bench.step(MS, RUNNING, IDLE);
    let quantum_ns = bench.tuning.quantum_ns;
    assert_eq!(ahead_ns(&bench, 1, 0), quantum_ns);
    assert!(ahead_ns(&bench, 4, 0) < quantum_ns / 2, "of all sessions together");
    assert!(ahead_ns(&bench, 1, 10 * MS) >= 20 * MS, "the next kernel is queued behind a long one");
    bench.step(AWAITED_NS, RUNNING, IDLE);
    assert_eq!(ahead_ns(&bench, 1, 0), RUN_AHEAD_NS);
    bench.step(MS, RUNNING, WAITING);
    bench.scheduler.leave(B, bench.now_ns);
    assert_eq!(ahead_ns(&bench, 1, 0), RUN_AHEAD_NS, "nobody else is here");
    bench.scheduler.set_standing(A, Class::BestEffort, PPM);
    assert_eq!(ahead_ns(&bench, 1, 0), quantum_ns, "but whoever comes goes before a guest");
}

#[test]
fn an_idle_holder_yields_after_a_moment() {
    let mut bench = Bench::new();
    bench.step(MS, RUNNING, IDLE);
    let wake_ns = bench.step(MS, IDLE, WAITING).unwrap();
    assert!(wake_ns <= MS, "{wake_ns}");
    bench.step(wake_ns, IDLE, WAITING);
    assert!(bench.is_open(B) && bench.is_closed(A), "nobody else wants it");
}

#[test]
fn a_tenant_that_was_given_the_gpu_before_it_asked_yields_at_once() {
    let mut bench = Bench::new();
    bench.step(MS, IDLE, WAITING);
    assert!(bench.is_open(B) && bench.is_closed(A));
}

#[test]
fn a_launch_that_passed_the_gate_just_before_it_closed_is_waited_for() {
    let mut bench = Bench::new();
    bench.step(MS, RUNNING, IDLE);
    assert_eq!(bench.look(MS, IDLE, WAITING).and_then(|wake_ns| bench.look(wake_ns, IDLE, WAITING)), Some(1));
    assert!(bench.is_closed(A) && bench.is_closed(B), "A may have launched since it was looked at");
    bench.look(1, RUNNING, WAITING);
    assert!(bench.is_closed(B), "and did");
    bench.look(MS, IDLE, WAITING);
    assert!(bench.is_leased(B));
}

#[test]
fn a_launch_that_passed_a_gate_for_one_launch_just_before_it_closed_is_waited_for() {
    let mut bench = Bench::new();
    let gangs = || Gangs::from([(A, 0)]);
    bench.step(MS, RUNNING, WAITING);
    bench.scheduler.set_order(Order::Drain { tenant: A, catches_up: true }, gangs());
    while bench.scheduler.grant(A) != Grant::Once {
        bench.look(MS, WAITING, WAITING);
    }
    // The grant of one launch ends. The last reading of A shows a waiting thread.
    bench.scheduler.set_order(Order::Apart, gangs());
    bench.look(1, WAITING, WAITING);
    assert!(bench.is_closed(A) && bench.is_closed(B), "A may have launched since it was looked at");
    bench.look(1, RUNNING, WAITING);
    assert!(bench.is_closed(B), "and did");
    bench.step(1, WAITING, WAITING);
    assert!(!bench.is_closed(B));
}

#[test]
fn the_ranks_of_a_gang_run_ahead_by_the_longest_kernel_of_them_all() {
    let mut bench = Bench::new();
    bench.step(MS, RUNNING, WAITING);
    let window_ns =
        |bench: &Bench, tenant, longest_ns| bench.scheduler.window_ns(tenant, 1, longest_ns, &bench.tuning);
    let alone = window_ns(&bench, A, MS);
    bench.scheduler.set_order(Order::Apart, [(A, 8 * MS)].into());
    assert_eq!(window_ns(&bench, A, MS), window_ns(&bench, A, 8 * MS));
    assert!(window_ns(&bench, A, MS) > alone);
    assert_eq!(window_ns(&bench, B, MS), alone, "is no gang");
}

#[test]
fn how_far_others_are_served_is_told_from_whoever_is_furthest_behind_while_that_one_pauses_too() {
    let mut bench = Bench::new();
    let used = |used_ns| Seen { used_ns, ..RUNNING };
    bench.step(MS, used(MS), WAITING);
    bench.step(MS, used(MS), used(8 * MS));
    let position = |bench: &Bench| {
        let members = bench.scheduler.post(bench.now_ns, &bench.tuning).members;
        members.iter().find(|member| member.tenant == B).map(|member| member.position)
    };
    let before = position(&bench);
    // While A pauses, only B wants the GPU, so only the charges to B move the clock.
    bench.look(MS, IDLE, RUNNING);
    bench.look(MS, IDLE, RUNNING);
    assert!(bench.scheduler.lag_ns(A) > 0 && before > Some(0));
    assert!(position(&bench) >= before, "{before:?}, then {:?}", position(&bench));
}

#[test]
fn a_holder_that_leaves_frees_the_gpu_at_once() {
    let mut bench = Bench::new();
    bench.step(MS, RUNNING, WAITING);
    bench.scheduler.leave(A, bench.now_ns);
    bench.step(0, IDLE, WAITING);
    assert!(bench.is_open(B), "nobody else is there");
    assert_eq!(bench.scheduler.phase(), Phase::Held(B));
}

#[test]
fn a_tenant_that_has_the_gpu_to_itself_again_keeps_a_lease_for_a_while_and_then_an_open_gate() {
    let mut bench = Bench::new();
    bench.step(MS, RUNNING, WAITING);
    bench.step(MS, IDLE, WAITING);
    bench.step(MS, IDLE, WAITING);
    assert!(bench.is_leased(B));
    bench.step(MS, IDLE, RUNNING);
    assert!(bench.is_leased(B));
    bench.step(STAY_LEASED_NS, IDLE, RUNNING);
    assert!(bench.is_open(B));
}

#[test]
fn a_lease_is_renewed_before_its_end_while_its_holder_is_behind() {
    let mut bench = Bench::new();
    bench.scheduler.set_standing(B, Class::Fair, PPM);
    bench.step(MS, RUNNING, WAITING);
    bench.step(MS, Seen { used_ns: 100 * MS, ..WAITING }, WAITING);
    let Grant::Leased { expires_ns } = bench.scheduler.grant(B) else { panic!("B has no lease") };
    let wake_ns = bench.step(MS, WAITING, RUNNING).unwrap();
    assert_eq!(bench.now_ns + wake_ns, expires_ns - bench.tuning.lead_ns);
    bench.scheduler.take_changes();
    bench.step(wake_ns, WAITING, RUNNING);
    let changes: Vec<Change> = bench.scheduler.take_changes().collect();
    assert!(changes.iter().any(|change| change.tenant == B && change.renewal), "{changes:?}");
}

#[test]
fn a_tenant_that_never_reports_is_charged_for_the_time_it_holds() {
    let mut bench = Bench::new();
    let mut had_ns = [0, 0];
    for _ in 0..10_000 {
        let held = |tenant| bench.scheduler.grant(tenant) != Grant::Closed;
        let (a_holds, b_holds) = (held(A), held(B));
        had_ns[0] += if a_holds { MS } else { 0 };
        had_ns[1] += if b_holds { MS } else { 0 };
        let a = if a_holds { RUNNING } else { WAITING };
        let b = if b_holds { Seen { used_ns: MS, ..RUNNING } } else { WAITING };
        bench.step(MS, a, b);
    }
    let share = had_ns[1] as f64 / (had_ns[0] + had_ns[1]) as f64;
    assert!((share - 0.5).abs() < 0.05, "the honest one had {share} of the time");
}

#[test]
fn nobody_starves_for_what_happened_once() {
    for forgive in [false, true] {
        let mut bench = Bench::new();
        // Both run for a minute without a decision of the scheduler, and B uses the whole minute.
        bench.step(MS, RUNNING, RUNNING);
        bench.step(60_000 * MS, RUNNING, Seen { used_ns: 60_000 * MS, ..RUNNING });
        if forgive {
            bench.scheduler.forgive(bench.now_ns, 60_000 * MS);
        }
        let mut waited_ns = 0;
        while bench.is_closed(B) {
            waited_ns += MS;
            let a = if bench.is_closed(A) { WAITING } else { Seen { used_ns: MS, ..RUNNING } };
            bench.step(MS, a, WAITING);
        }
        let limit_ns = if forgive { 50 * MS } else { 2 * MAX_DEBT_NS };
        assert!(waited_ns <= limit_ns, "waited {waited_ns} ns");
    }
}

#[test]
fn a_holder_is_not_charged_for_a_silence_in_which_all_ran() {
    const SILENCE: u64 = 550 * MS;
    for is_draining in [false, true] {
        let mut bench = Bench::new();
        bench.step(MS, RUNNING, WAITING);
        while bench.is_closed(A) != is_draining {
            bench.step(MS, Seen { used_ns: MS, ..RUNNING }, WAITING);
        }
        assert!(bench.is_closed(B), "A has the GPU, or drains");
        // In the silence, no gate holds A and B. The meter of each shows a third of the silence,
        // and the last third is still in flight.
        let ran = Seen { used_ns: SILENCE / 3, ..RUNNING };
        bench.now_ns += SILENCE;
        bench.scheduler.observe(A, bench.now_ns, ran);
        bench.scheduler.observe(B, bench.now_ns, ran);
        bench.scheduler.forgive(bench.now_ns, SILENCE);
        let (mut waits_ns, mut longest_ns) = ([0; 2], 0);
        for _ in 0..500 {
            let seen = [A, B].map(|id| match bench.is_closed(id) {
                true => WAITING,
                false => Seen { used_ns: MS, ..RUNNING },
            });
            bench.step(MS, seen[0], seen[1]);
            for (wait_ns, id) in waits_ns.iter_mut().zip([A, B]) {
                *wait_ns = if bench.is_closed(id) { *wait_ns + MS } else { 0 };
                longest_ns = longest_ns.max(*wait_ns);
            }
        }
        assert!(longest_ns <= 50 * MS, "one waited {longest_ns} ns for the other");
    }
}

#[test]
fn a_tenant_that_reports_next_to_nothing_starves_nobody() {
    for toggles in [false, true] {
        let mut bench = Bench::new();
        let mut honest_ns = 0;
        for round in 0..20_000u64 {
            let b_holds = !bench.is_closed(B);
            honest_ns += if b_holds { MS / 2 } else { 0 };
            let a =
                if toggles && round % 2 == 0 { IDLE } else { Seen { waiting: true, used_ns: 1, ..RUNNING } };
            let b = if b_holds { Seen { used_ns: MS / 2, ..RUNNING } } else { WAITING };
            bench.step(MS / 2, if bench.is_closed(A) { WAITING } else { a }, b);
        }
        let share = honest_ns as f64 / (20_000.0 * (MS / 2) as f64);
        // Two parts to one, and a hand-off takes a whole step here.
        let least = 0.28;
        assert!(share >= least, "the honest one had {share} of the time");
    }
}

#[test]
fn gpu_time_that_is_reported_late_is_set_off_against_the_charge_for_silence() {
    let mut bench = Bench::new();
    bench.drain_a();
    bench.step(MIN_DRAIN_NS, RUNNING, WAITING);
    let before_ns = bench.scheduler.lag_ns(A);
    bench.step(MS, Seen { used_ns: 50 * MS, ..RUNNING }, RUNNING);
    let after_ns = bench.scheduler.lag_ns(A);
    // Each has half of the millisecond in which both have work in flight.
    assert!(after_ns >= before_ns - MS as i64, "{before_ns} and {after_ns}");
}

#[test]
fn a_clock_that_stands_still_or_jumps_is_harmless() {
    let mut bench = Bench::new();
    for pass_ns in [0, 0, u64::MAX / 4, 0, u64::MAX / 4, 1] {
        for (a, b) in [(RUNNING, WAITING), (WAITING, RUNNING), (IDLE, IDLE), (WAITING, WAITING)] {
            bench.step(pass_ns, Seen { pending_ns: u64::MAX, longest_ns: u64::MAX, ..a }, b);
            bench.now_ns = bench.now_ns.min(u64::MAX / 2);
        }
    }
}

/// Draws an event for one of the tenants 1 to `tenants`, at any time.
fn anything(tenants: TenantId) -> impl Strategy<Value = (u8, TenantId, u64, Seen, u32)> {
    let ns = || prop_oneof![Just(0), Just(u64::MAX), 0..1_000 * MS, any::<u64>()];
    let sm_ppm = prop_oneof![3 => Just(0), 1 => any::<u32>()];
    let seen = (any::<bool>(), any::<bool>(), ns(), ns(), ns(), sm_ppm, any::<bool>()).prop_map(
        |(waiting, in_flight, used_ns, pending_ns, longest_ns, sm_ppm, ended)| Seen {
            waiting,
            in_flight,
            used_ns,
            pending_ns,
            longest_ns,
            sm_ppm,
            ended,
        },
    );
    // The events stay in the first half of the clock's range, so that there are later times.
    let now_ns = prop_oneof![0..1_000 * MS, 0..u64::MAX / 2];
    (0..12u8, 1..=tenants, now_ns, seen, 0..=PPM)
}

/// Passes an event to the scheduler, and then lets the scheduler decide.
fn happen(
    scheduler: &mut Scheduler,
    tuning: &Tuning,
    (what, tenant, now_ns, seen, ppm): (u8, TenantId, u64, Seen, u32),
) {
    let class = if ppm % 2 == 0 { Class::Fair } else { Class::BestEffort };
    match what {
        0..=2 => {
            scheduler.enter(tenant, class, now_ns);
            scheduler.set_standing(tenant, class, ppm);
        }
        3 => scheduler.leave(tenant, now_ns),
        4 => scheduler.forget(tenant),
        5 => scheduler.set_paused(tenant, seen.waiting),
        6 => scheduler.set_slo(tenant, seen.waiting.then_some(seen.used_ns)),
        7 => scheduler.forgive(now_ns, seen.pending_ns),
        _ => scheduler.observe(tenant, now_ns, seen),
    }
    scheduler.decide(now_ns, tuning);
}

fn holders(scheduler: &Scheduler, tenants: TenantId) -> usize {
    let holds = |id: &TenantId| !matches!(scheduler.grant(*id), Grant::Closed | Grant::Paused);
    (1..=tenants).filter(holds).count()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn one_tenant_at_most_has_the_gpu_without_company_whatever_clocks_and_meters_say(events in prop::collection::vec(anything(4), 1..40)) {
        let tuning = Tuning::derive(ASSUMED_HANDOFF_NS, QuantumBounds::default(), 2);
        let mut scheduler = Scheduler::default();
        for event in events {
            let tenant = event.1;
            happen(&mut scheduler, &tuning, event);
            let holders = holders(&scheduler, 4);
            let is_one = holders <= 1 || scheduler.phase() == Phase::Together;
            prop_assert!(is_one, "{holders} have the GPU");
            let _ = scheduler.lag_ns(tenant);
        }
    }

    #[test]
    fn nor_do_two_of_a_thousand_have_it(events in prop::collection::vec(anything(1_000), 1..12)) {
        let tuning = Tuning::derive(ASSUMED_HANDOFF_NS, QuantumBounds::default(), 2);
        let mut scheduler = Scheduler::default();
        for tenant in 1..=1_000 {
            scheduler.enter(tenant, Class::Fair, 0);
            scheduler.set_standing(tenant, Class::Fair, PPM / 1_000);
        }
        for event in events {
            happen(&mut scheduler, &tuning, event);
        }
        let holders = holders(&scheduler, 1_000);
        let is_one = holders <= 1 || scheduler.phase() == Phase::Together;
        prop_assert!(is_one, "{holders} have the GPU");
    }
}

impl Bench {
    /// A is an owner, B a guest.
    fn beside() -> Self {
        let mut bench = Self::new();
        bench.scheduler.set_standing(B, Class::BestEffort, PPM);
        bench
    }
}

#[test]
fn an_owner_with_work_keeps_its_gate_however_long_guests_wait() {
    let mut bench = Bench::beside();
    for _ in 0..1_000 {
        bench.step(MS, Seen { used_ns: MS, ..RUNNING }, WAITING);
        assert!(bench.is_leased(A) && bench.is_closed(B));
    }
}

#[test]
fn a_guest_has_the_gpu_in_an_owners_pause_and_loses_it_at_once() {
    let mut bench = Bench::beside();
    bench.step(MS, RUNNING, WAITING);
    let wake_ns = bench.step(MS, IDLE, WAITING).unwrap();
    assert!(bench.is_leased(A) && wake_ns <= bench.tuning.grace_ns, "a moment may be no pause");
    bench.step(wake_ns, IDLE, WAITING);
    assert!(bench.is_leased(B) && bench.is_closed(A));
    bench.step(MS, IDLE, RUNNING);
    bench.step(MS / 10, WAITING, RUNNING);
    assert!(bench.is_closed(B), "its lease would have gone on");
    bench.step(MS, WAITING, IDLE);
    assert!(bench.is_leased(A) || bench.is_open(A));
}

#[test]
fn an_owner_has_the_gpu_back_before_it_asks_when_a_guest_has_nothing_to_do() {
    let mut bench = Bench::beside();
    bench.step(MS, RUNNING, WAITING);
    bench.step(MS, IDLE, WAITING);
    bench.step(MS, IDLE, WAITING);
    assert!(bench.is_leased(B));
    bench.step(MS, IDLE, IDLE);
    bench.step(MS, IDLE, IDLE);
    assert!(bench.is_closed(B) && !bench.is_closed(A));
}

#[test]
fn a_guest_may_have_one_kernel_in_flight_beside_owners_and_a_window_when_there_are_none() {
    let mut bench = Bench::beside();
    let window_ns = |bench: &Bench| bench.scheduler.window_ns(B, 1, 3 * MS, &bench.tuning);
    assert_eq!(window_ns(&bench), 3 * MS);
    bench.scheduler.leave(A, bench.now_ns);
    assert_eq!(window_ns(&bench), 6 * MS);
}

#[test]
fn how_slowly_a_guest_launches_is_not_taken_for_the_cost_of_a_hand_off() {
    let mut bench = Bench::beside();
    bench.step(MS, RUNNING, WAITING);
    bench.step(MS, IDLE, WAITING);
    bench.step(MS, IDLE, WAITING);
    assert!(bench.is_leased(B));
    bench.scheduler.take_handoffs();
    // B ran for 1 ms of the 30 ms.
    bench.step(30 * MS, IDLE, Seen { used_ns: MS, ..RUNNING });
    bench.step(MS, WAITING, RUNNING);
    bench.step(MS, WAITING, IDLE);
    let handoffs: Vec<Handoff> = bench.scheduler.take_handoffs().collect();
    assert!(!handoffs.is_empty() && handoffs.iter().all(|handoff| handoff.idle_ns.is_none()), "{handoffs:?}");
}

#[test]
fn how_slowly_who_gives_way_launches_is_not_taken_for_the_cost_of_a_hand_off() {
    let handoff = |has_objective: bool| {
        const USED: Seen = Seen { used_ns: MS / 5 * 4, ..RUNNING };
        let mut bench = Bench::new();
        bench.scheduler.set_slo(B, has_objective.then_some(20 * MS));
        for _ in 0..2 {
            bench.step(MS, WAITING, WAITING);
            while !bench.is_closed(A) {
                bench.scheduler.take_handoffs();
                bench.step(MS, USED, WAITING);
            }
            bench.step(MS, WAITING, WAITING);
            while !bench.is_closed(B) {
                bench.step(MS, WAITING, USED);
            }
        }
        bench.scheduler.take_handoffs().next().expect("one of A").idle_ns
    };
    assert!(handoff(false).is_some());
    assert_eq!(handoff(true), None);
}

#[test]
fn a_hand_off_costs_what_lies_between_one_end_and_the_next_beginning() {
    let mut bench = Bench::new();
    bench.step(MS, RUNNING, WAITING);
    bench.scheduler.take_handoffs();
    // B has half of its hold's time: it launches slowly.
    let hold = |bench: &mut Bench, began_after_ns: Option<u64>| {
        const ENDED_BEFORE_NS: u64 = 30_000;
        while !bench.is_leased(B) {
            bench.step(MS, IDLE, WAITING);
        }
        bench.scheduler.take_handoffs();
        let since_ns = bench.now_ns;
        let began_ns = began_after_ns.map(|after_ns| since_ns + after_ns);
        while !bench.is_closed(B) {
            bench.now_ns += MS;
            bench.scheduler.observe_edges(B, began_ns, Some(bench.now_ns));
            bench.step(0, WAITING, Seen { used_ns: MS / 2, waiting: true, ..RUNNING });
        }
        bench.now_ns += MS;
        bench.scheduler.observe_edges(B, began_ns, Some(bench.now_ns - ENDED_BEFORE_NS));
        bench.step(0, WAITING, Seen { used_ns: MS / 2, ..IDLE });
        bench.scheduler.take_handoffs().next().expect("one of B").idle_ns
    };
    assert_eq!(hold(&mut bench, Some(70_000)), Some(100_000));
    assert_eq!(hold(&mut bench, None), None, "its first launch may not have been due");
}

#[test]
fn guests_share_the_pauses_by_their_weights() {
    let mut bench = Bench::beside();
    bench.scheduler.enter(C, Class::Fair, bench.now_ns);
    bench.scheduler.set_standing(B, Class::BestEffort, 750_000);
    bench.scheduler.set_standing(C, Class::BestEffort, 250_000);
    let mut had_ns = [0u64; 2];
    for _ in 0..20_000 {
        bench.now_ns += MS;
        bench.scheduler.observe(A, bench.now_ns, IDLE);
        for (guest, had_ns) in [B, C].into_iter().zip(&mut had_ns) {
            let holds = bench.scheduler.grant(guest) != Grant::Closed;
            *had_ns += if holds { MS } else { 0 };
            let seen = if holds { Seen { waiting: true, used_ns: MS, ..IDLE } } else { WAITING };
            bench.scheduler.observe(guest, bench.now_ns, seen);
        }
        bench.scheduler.decide(bench.now_ns, &bench.tuning);
    }
    let share = had_ns[0] as f64 / (had_ns[0] + had_ns[1]) as f64;
    assert!((share - 0.75).abs() < 0.02, "{share}");
}

#[test]
fn guests_alone_take_turns_from_the_first_moment() {
    let mut bench = Bench::beside();
    bench.scheduler.set_standing(A, Class::BestEffort, PPM);
    bench.step(MS, WAITING, WAITING);
    assert!(bench.is_leased(A) != bench.is_leased(B), "with equal claims one of them has the GPU");
}

#[test]
fn a_paused_tenant_drains_and_wants_nothing_until_it_is_resumed() {
    let mut bench = Bench::new();
    bench.step(MS, RUNNING, IDLE);
    bench.scheduler.set_paused(A, true);
    bench.step(MS, RUNNING, IDLE);
    assert_eq!(bench.scheduler.phase(), Phase::Draining(A), "though nobody else wants the GPU");
    assert_eq!(bench.scheduler.grant(A), Grant::Paused);
    for _ in 0..300 {
        bench.step(MS, WAITING, RUNNING);
        assert_eq!(bench.scheduler.grant(A), Grant::Paused);
    }
    assert!(bench.is_open(B), "it is as if it were alone");
    bench.scheduler.set_paused(A, false);
    assert!(bench.is_closed(A));
    bench.step(MS, WAITING, RUNNING);
    bench.step(MS, WAITING, IDLE);
    bench.step(MS, WAITING, IDLE);
    assert!(bench.is_leased(A), "it has its turn again");
}

#[test]
fn a_tenant_is_of_its_class_before_anything_else_is_known_of_it() {
    let mut bench = Bench::new();
    bench.scheduler.enter(C, Class::BestEffort, bench.now_ns);
    bench.scheduler.observe(C, bench.now_ns, WAITING);
    for _ in 0..300 {
        bench.step(MS, RUNNING, WAITING);
        bench.scheduler.observe(C, bench.now_ns, WAITING);
        assert!(bench.is_closed(C), "others want the GPU");
    }
}

/// Lets an honest tenant compete for 20 s with `liars` tenants of one user, whose meters show
/// `lie`. If `renewed_ms` is set, new tenants of this user replace the liars each time that many ms
/// have passed. Returns the part of the time in which the honest tenant had the GPU, and its
/// longest wait, ms.
fn beside_liars(liars: TenantId, renewed_ms: Option<u64>, slo_ns: Option<u64>, lie: Seen) -> (f64, u64) {
    const USER: trust::UserId = 7;
    let tuning = Tuning::derive(ASSUMED_HANDOFF_NS, QuantumBounds::default(), 2);
    let mut scheduler = Scheduler::default();
    let enter = |scheduler: &mut Scheduler, id: TenantId, now_ns: u64| {
        scheduler.enter(id, Class::Fair, now_ns);
        scheduler.set_user(id, USER, now_ns);
        scheduler.set_standing(id, Class::Fair, 10_000);
        scheduler.set_slo(id, slo_ns);
    };
    let mut now_ns = 1_000 * MS;
    scheduler.enter(A, Class::Fair, now_ns);
    scheduler.set_standing(A, Class::Fair, PPM);
    let mut first = B;
    (first..first + liars).for_each(|id| enter(&mut scheduler, id, now_ns));
    let (steps, mut had_ms, mut waits_ms, mut longest_ms) = (20_000, 0, 0, 0);
    for step in 1..=steps {
        now_ns += MS;
        let has_it = matches!(scheduler.grant(A), Grant::Leased { .. } | Grant::Open);
        had_ms += u64::from(has_it);
        waits_ms = if has_it { 0 } else { waits_ms + 1 };
        longest_ms = longest_ms.max(waits_ms);
        let honest = if has_it { Seen { used_ns: MS, longest_ns: MS, ..RUNNING } } else { WAITING };
        scheduler.observe(A, now_ns, honest);
        if renewed_ms.is_some_and(|renewed_ms| step % renewed_ms == 0) {
            for id in first..first + liars {
                scheduler.leave(id, now_ns);
                enter(&mut scheduler, id + liars, now_ns);
            }
            first += liars;
        }
        (first..first + liars).for_each(|id| scheduler.observe(id, now_ns, lie));
        scheduler.decide(now_ns, &tuning);
        scheduler.take_changes();
        scheduler.take_handoffs();
    }
    (had_ms as f64 / steps as f64, longest_ms)
}

#[test]
fn however_many_tenants_a_user_makes_their_lies_cost_the_others_little() {
    let held = Seen { pending_ns: u64::MAX, longest_ns: 0, ..RUNNING };
    for lie in [held, WAITING, Seen { waiting: true, ..held }] {
        for slo_ns in [None, Some(MS), Some(30 * MS)] {
            for (liars, renewed_ms) in
                [(1, None), (8, None), (1, Some(1_100)), (4, Some(1_100)), (1, Some(10))]
            {
                let (share, longest_ms) = beside_liars(liars, renewed_ms, slo_ns, lie);
                println!(
                    "{liars} anew every {renewed_ms:?} ms, {slo_ns:?}, {lie:?}: {share:.3}, {longest_ms} ms"
                );
                assert!(share >= 0.8, "{liars} anew every {renewed_ms:?} ms, {slo_ns:?}, {lie:?}: {share}");
                assert!(
                    longest_ms <= 1_300,
                    "{liars} anew every {renewed_ms:?} ms, {slo_ns:?}: {longest_ms} ms"
                );
            }
        }
    }
}

#[test]
fn a_tenant_that_gains_by_a_new_quota_does_not_wait_for_the_end_of_a_lease_given_before() {
    let mut bench = Bench::new();
    // A has a lease, and has used a part of it.
    bench.step(0, RUNNING, WAITING);
    while !bench.is_leased(A) {
        bench.step(MS, if bench.is_closed(A) { WAITING } else { RUNNING }, RUNNING);
        bench.step(0, WAITING, WAITING);
    }
    let used = Seen { used_ns: MS, ..RUNNING };
    bench.step(MS, used, WAITING);
    assert!(bench.is_leased(A), "its lease is not over");
    bench.scheduler.set_standing(A, Class::Fair, PPM / 10);
    bench.scheduler.set_standing(B, Class::Fair, PPM / 10 * 9);
    bench.step(0, RUNNING, WAITING);
    assert_eq!(bench.scheduler.phase(), Phase::Draining(A));
}

#[test]
fn a_tenant_that_gains_by_a_new_quota_keeps_its_lease() {
    let mut bench = Bench::new();
    bench.step(0, RUNNING, WAITING);
    while !bench.is_leased(A) {
        bench.step(MS, if bench.is_closed(A) { WAITING } else { RUNNING }, RUNNING);
        bench.step(0, WAITING, WAITING);
    }
    bench.step(MS, Seen { used_ns: MS, ..RUNNING }, WAITING);
    let lease = bench.scheduler.grant(A);
    bench.scheduler.set_standing(B, Class::Fair, PPM / 10);
    bench.scheduler.set_standing(A, Class::Fair, PPM / 10 * 9);
    bench.step(0, RUNNING, WAITING);
    assert_eq!(bench.scheduler.grant(A), lease);
}

#[test]
fn an_owner_that_goes_on_beside_a_guests_work_that_does_not_end_is_known_to_be_slowed() {
    let mut bench = Bench::beside();
    for _ in 0..100 {
        bench.step(MS, Seen { used_ns: MS, ..RUNNING }, WAITING);
    }
    bench.step(MS, IDLE, WAITING);
    bench.step(MS, IDLE, WAITING);
    assert!(bench.is_leased(B));
    bench.step(MS, IDLE, RUNNING);
    while !bench.is_leased(A) {
        bench.step(MS, WAITING, RUNNING);
    }
    let waited_ns = bench.scheduler.guard().harm_ns();
    // The hardware takes turns.
    for _ in 0..100 {
        bench.step(MS, Seen { used_ns: MS / 2, ..RUNNING }, RUNNING);
    }
    bench.step(MS, Seen { used_ns: MS, ..RUNNING }, WAITING);
    bench.step(MS, Seen { used_ns: MS, ..RUNNING }, WAITING);
    let slowed_ns = bench.scheduler.guard().harm_ns() - waited_ns;
    assert!((45 * MS..=55 * MS).contains(&slowed_ns), "{slowed_ns}");
}

#[test]
fn while_a_tenant_waits_to_be_owed_gpu_time_the_scheduler_looks_now_and_then() {
    // B is a short burst beside long kernels of A, and had its part a moment ago.
    let mut bench = Bench::new();
    let long = Seen { pending_ns: 50 * MS, longest_ns: 12 * MS, ..RUNNING };
    for _ in 0..20 {
        let b_ns = if bench.is_leased(B) { MS / 2 } else { 0 };
        let b = if b_ns > 0 { Seen { used_ns: b_ns, ..IDLE } } else { WAITING };
        bench.step(MS / 2, long, b);
        bench.step(MS / 2, long, IDLE);
    }
    let (began_ns, mut looks) = (bench.now_ns, 0);
    while bench.now_ns < began_ns + 20 * MS {
        let b = if bench.is_leased(B) { RUNNING } else { WAITING };
        let wake_ns = bench.look(0, long, b).unwrap_or(MS).clamp(1, MS);
        bench.now_ns += wake_ns;
        looks += 1;
    }
    assert!(looks <= 20 * MS * LOOKS_PER_HANDOFF / bench.tuning.handoff_ns, "{looks} looks");
}

#[test]
fn over_a_pause_a_tenant_keeps_what_it_owes_and_is_owed() {
    for pause_ns in [MS / 5, MS, 50 * MS] {
        let mut bench = Bench::new();
        bench.step(MS, RUNNING, WAITING);
        bench.step(60 * MS, Seen { used_ns: 60 * MS, ..WAITING }, WAITING);
        bench.step(MS, WAITING, Seen { used_ns: MS, ..RUNNING });
        assert!(bench.is_leased(B));
        bench.step(MS / 100, WAITING, Seen { used_ns: MS / 100, ..IDLE });
        let [owes_ns, owed_ns] = [A, B].map(|tenant| bench.scheduler.lag_ns(tenant));
        assert!((-30 * MS as i64..-28 * MS as i64).contains(&owes_ns), "{owes_ns}");
        assert!((28 * MS as i64..30 * MS as i64).contains(&owed_ns), "{owed_ns}");
        for _ in 0..20 {
            bench.step(pause_ns / 20, Seen { used_ns: pause_ns / 20, ..RUNNING }, IDLE);
        }
        bench.step(MS / 100, RUNNING, WAITING);
        let forgotten_ns = pause_ns as i64 / 50 + MS as i64 / 5;
        let [a_ns, b_ns] = [A, B].map(|tenant| bench.scheduler.lag_ns(tenant));
        // While A has the GPU alone, A forgets a part of its debt. The lag that B forgets lowers
        // A's debt too.
        assert!((owes_ns - a_ns).abs() <= 2 * forgotten_ns, "{owes_ns} and {a_ns} after {pause_ns}");
        assert!((owed_ns - b_ns).abs() <= forgotten_ns, "{owed_ns} and {b_ns} after {pause_ns}");
    }
}

#[test]
fn gpu_time_that_a_tenant_that_pauses_is_owed_no_more_the_others_are_owed() {
    for (pause_ns, keeps_ns) in [(MS / 10, 249 * MS), (MS, MAX_CREDIT_NS)] {
        let mut bench = Bench::new();
        bench.step(MS, RUNNING, WAITING);
        bench.step(500 * MS, Seen { used_ns: 500 * MS, ..WAITING }, WAITING);
        bench.step(MS, WAITING, Seen { used_ns: MS, ..RUNNING });
        bench.look(MS / 100, WAITING, IDLE);
        bench.look(pause_ns / 2, WAITING, IDLE);
        bench.look(pause_ns / 2, WAITING, WAITING);
        let [a_ns, b_ns] = [A, B].map(|tenant| bench.scheduler.lag_ns(tenant));
        assert!(b_ns.abs_diff(keeps_ns as i64) < MS, "{b_ns} after {pause_ns} ns");
        assert!((a_ns + b_ns).abs() < MS as i64 / 5, "{a_ns} and {b_ns} after {pause_ns} ns");
    }
}

#[test]
fn an_slo_does_not_pay_for_pauses_in_which_the_gpu_idles_for_its_tenant() {
    let mut bench = Bench::new();
    bench.scheduler.set_slo(A, Some(MS));
    bench.step(7 * MS, Seen { used_ns: 7 * MS, ..RUNNING }, IDLE);
    bench.step(MS / 100, WAITING, WAITING);
    bench.look(MS / 100, IDLE, WAITING);
    let before_ns = bench.scheduler.lag_ns(A);
    let pause_ns = 19 * MS / 100;
    bench.look(pause_ns, WAITING, WAITING);
    assert_eq!(bench.scheduler.phase(), Phase::Held(A));
    let owes_ns = before_ns - bench.scheduler.lag_ns(A);
    assert!(owes_ns > pause_ns as i64 / 3, "{owes_ns} ns for a pause of {pause_ns} ns");
}

#[test]
fn a_tenant_with_an_slo_is_owed_its_share_of_a_pause_however_many_others_pause_too() {
    let tuning = Tuning::derive(ASSUMED_HANDOFF_NS, QuantumBounds::default(), 2);
    let mut clock = Clock::default();
    // Another tenant is owed half and competes. Others, which pause, are owed the rest.
    clock.add(0, PPM / 2);
    let mut tenant = Tenant::new(Rank::Owner, 0);
    (tenant.weight_ppm, tenant.slo_ns) = (PPM / 10, Some(MS));
    tenant.set_lag(-20 * MS as i64, clock.now());
    tenant.rested(30 * MS, true, 0, &mut clock, &tuning);
    assert_eq!(tenant.lag_ns, -17 * MS as i64);
}

#[test]
fn a_request_goes_on_after_a_short_pause() {
    let mut bench = Bench::new();
    let due = |bench: &Bench| bench.scheduler.tenants.get(B).map(|tenant| tenant.due).unwrap();
    bench.step(MS, RUNNING, WAITING);
    bench.drain_a();
    // B has pauses of a tenth of a millisecond between pieces of work of half a millisecond.
    let (work_ns, pause_ns) = (MS / 2, MS / 10);
    bench.step(MS / 10, WAITING, WAITING);
    let asked = due(&bench);
    for _ in 0..4 {
        bench.step(work_ns, WAITING, Seen { used_ns: work_ns, ..IDLE });
        bench.step(pause_ns, WAITING, WAITING);
        assert_eq!(bench.scheduler.phase(), Phase::Held(B));
    }
    let moved = gpu_ns(due(&bench) - asked, PPM / 2);
    assert!(moved.abs() <= 4 * pause_ns as i64, "the request is due {moved} ns later");
}

#[test]
fn a_tenant_that_is_owed_nothing_and_comes_rarely_is_served_before_backlogged_tenants() {
    let tuning = Tuning::derive(ASSUMED_HANDOFF_NS, QuantumBounds::default(), 2);
    for slo_ns in [None, Some(5 * MS)] {
        let mut scheduler = Scheduler::default();
        for id in [A, B, C] {
            scheduler.enter(id, Class::Fair, MS);
            scheduler.set_standing(id, Class::Fair, PPM / 3);
        }
        scheduler.set_slo(C, slo_ns);
        // C owes something after each visit, and the scheduler forgets that until the next visit.
        let (mut waits_ms, mut left_ms, mut visits) = (0, 0, 0);
        for step in 1..=20_000_u64 {
            let now_ns = (step + 1) * MS;
            if step.is_multiple_of(97) {
                (left_ms, visits) = (2, visits + 1);
            }
            for id in [A, B, C] {
                let has_it = matches!(scheduler.grant(id), Grant::Leased { .. } | Grant::Open);
                let wants = id != C || left_ms > 0;
                let seen = match (has_it, wants) {
                    (true, true) => Seen { used_ns: MS, longest_ns: MS, ..RUNNING },
                    (false, true) => WAITING,
                    (_, false) => IDLE,
                };
                match (id, has_it, wants) {
                    (C, true, true) => left_ms -= 1,
                    (C, false, true) => waits_ms += 1,
                    _ => {}
                }
                scheduler.observe(id, now_ns, seen);
            }
            scheduler.decide(now_ns, &tuning);
            scheduler.take_changes();
            scheduler.take_handoffs();
        }
        assert!(waits_ms <= 4 * visits, "{waits_ms} ms in {visits} visits, {slo_ns:?}");
    }
}

/// Shows long work of A in flight. B has short bursts and got the GPU beside that work. C, whose
/// bursts take `burst_ns`, waits.
fn beside_long_work(long: Seen, burst_ns: u64) -> Bench {
    let mut bench = Bench::new();
    bench.scheduler.enter(C, Class::Fair, bench.now_ns);
    bench.scheduler.set_standing(C, Class::Fair, PPM / 2);
    bench.scheduler.observe(C, bench.now_ns, Seen { used_ns: burst_ns, ..IDLE });
    bench.step(MS, IDLE, Seen { used_ns: MS / 2, ..IDLE });
    bench.step(5 * MS, long, IDLE);
    bench.scheduler.observe(C, bench.now_ns, WAITING);
    bench.step(MS, long, WAITING);
    assert!(bench.is_leased(B) && bench.scheduler.beside() == Some(A));
    bench
}

#[test]
fn beside_long_work_in_flight_short_bursts_go_on_and_long_ones_wait() {
    let long = Seen { pending_ns: 28 * MS, longest_ns: 28 * MS, ..RUNNING };
    let mut bench = beside_long_work(long, 40 * MS);
    for _ in 0..3 {
        bench.step(MS, long, RUNNING);
        bench.step(MS, long, Seen { used_ns: MS / 2, ..IDLE });
        bench.step(MS, long, IDLE);
        assert_eq!((bench.scheduler.phase(), bench.scheduler.beside()), (Phase::Free, Some(A)));
        bench.step(MS, long, WAITING);
        assert!(bench.is_leased(B));
    }
    bench.step(MS, long, Seen { used_ns: MS / 2, ..IDLE });
    bench.step(MS, long, IDLE);
    bench.step(MS, Seen { used_ns: 28 * MS, ..WAITING }, IDLE);
    assert_eq!(bench.scheduler.phase(), Phase::Held(C));
}

#[test]
fn a_holder_that_may_launch_between_two_looks_shares_the_gpu_with_the_work_beside() {
    let long = Seen { pending_ns: 28 * MS, longest_ns: 28 * MS, ..RUNNING };
    let mut bench = beside_long_work(long, 40 * MS);
    bench.scheduler.tenants.get_quietly(B).unwrap().short_pauses_ppm = PPM;
    bench.step(MS / 10, long, Seen { used_ns: MS / 10, ..IDLE });
    assert_eq!(bench.scheduler.phase(), Phase::Held(B), "its pause may be short");
    assert!(bench.scheduler.shares(B) && !bench.scheduler.shares(C));
}

#[test]
fn while_tenants_with_brief_bursts_are_there_long_bursts_wait_for_the_drain() {
    for other_burst_ns in [MS, 10 * MS] {
        let long = Seen { pending_ns: 28 * MS, longest_ns: 28 * MS, ..RUNNING };
        let mut bench = Bench::new();
        bench.scheduler.enter(C, Class::Fair, bench.now_ns);
        bench.scheduler.set_standing(C, Class::Fair, PPM / 2);
        bench.step(5 * MS, IDLE, Seen { used_ns: 5 * MS, ..IDLE });
        bench.scheduler.observe(C, bench.now_ns, Seen { used_ns: other_burst_ns, ..RUNNING });
        bench.step(MS, IDLE, IDLE);
        bench.scheduler.observe(C, bench.now_ns, IDLE);
        bench.step(5 * MS, long, IDLE);
        bench.step(MS, long, WAITING);
        let goes_beside = bench.is_leased(B) && bench.scheduler.beside() == Some(A);
        assert_eq!(goes_beside, other_burst_ns > HARDWARE_SLICE_NS, "{other_burst_ns} ns");
    }
}

/// Returns two tenants in a pause. Both use the GPU by turns, each for `burst_ns`, with 1 ms between
/// two turns. So each is usually away for `burst_ns` and 2 ms. A has the GPU. A hand-off takes
/// `handoff_ns`.
fn pausing_pair(burst_ns: u64, handoff_ns: u64) -> Bench {
    let mut bench = Bench::new();
    bench.tuning = Tuning::derive(handoff_ns, QuantumBounds::default(), 2);
    for _ in 0..4 {
        bench.step(MS, Seen { pending_ns: burst_ns, ..RUNNING }, IDLE);
        bench.step(burst_ns, Seen { used_ns: burst_ns, ..IDLE }, IDLE);
        bench.step(MS, IDLE, Seen { pending_ns: burst_ns, ..RUNNING });
        bench.step(burst_ns, IDLE, Seen { used_ns: burst_ns, ..IDLE });
    }
    bench.step(MS, WAITING, IDLE);
    assert_eq!(bench.scheduler.phase(), Phase::Held(A));
    // A pre-emption of A was lately.
    bench.scheduler.preempted_ns = Some(bench.now_ns);
    bench
}

#[test]
fn a_brief_burst_does_not_wait_for_the_end_of_another_that_is_launched() {
    let mut bench = pausing_pair(MS, ASSUMED_HANDOFF_NS);
    let part = Seen { pending_ns: MS / 2, ..RUNNING };
    bench.step(MS / 10, part, WAITING);
    assert!(bench.is_leased(A) && bench.is_closed(B), "A launches still");
    let all = Seen { pending_ns: MS, ..RUNNING };
    bench.step(MS / 10, Seen { waiting: true, ..all }, WAITING);
    assert!(bench.is_leased(A) && bench.is_closed(B), "a thread of A still launches");
    bench.step(MS / 10, all, WAITING);
    assert!(bench.is_closed(A) && bench.is_leased(B));
    assert_eq!((bench.scheduler.phase(), bench.scheduler.beside()), (Phase::Held(B), Some(A)));
    // A has the GPU again in the same way, without a pause of the GPU.
    bench.step(MS, Seen { used_ns: MS, ..IDLE }, all);
    bench.step(MS / 10, WAITING, all);
    assert!(bench.is_leased(A) && bench.is_closed(B));
}

#[test]
fn a_pause_longer_than_a_hand_off_ends_a_stretch_and_a_pause_longer_than_two_ends_a_burst() {
    let tuning = Tuning::derive(ASSUMED_HANDOFF_NS, QuantumBounds::default(), 2);
    let mut tenant = Tenant::new(Rank::Owner, 0);
    (tenant.bursts.present_ns, tenant.stretches.present_ns) = (MS, MS);
    assert!(!tenant.paused(tuning.handoff_ns, STAY_LEASED_NS, &tuning));
    assert_eq!((tenant.stretches.present_ns, tenant.bursts.present_ns), (MS, MS));
    assert!(!tenant.paused(2 * tuning.handoff_ns, STAY_LEASED_NS, &tuning));
    assert_eq!((tenant.stretches.present_ns, tenant.bursts.present_ns), (0, MS));
    assert!(tenant.paused(2 * tuning.handoff_ns + 1, STAY_LEASED_NS, &tuning));
    assert_eq!((tenant.bursts.present_ns, tenant.bursts.mean_ns), (0, MS));
}

#[test]
fn where_hand_offs_are_slow_brief_tenants_do_not_wait_for_each_others_short_pauses() {
    // A tenant is away for 3 ms, which is longer than a hand-off and shorter than two.
    let mut bench = pausing_pair(MS, 2 * MS);
    assert!([A, B].iter().all(|id| bench.scheduler.tenants.get(*id).is_some_and(Tenant::pauses_shortly)));
    bench.step(MS / 10, Seen { pending_ns: MS, ..RUNNING }, WAITING);
    assert_eq!((bench.scheduler.phase(), bench.scheduler.beside()), (Phase::Held(B), Some(A)));
}

#[test]
fn the_scheduler_looks_soon_whether_a_holder_has_launched_its_brief_burst() {
    let mut bench = pausing_pair(MS, ASSUMED_HANDOFF_NS);
    let wake_ns = bench.step(MS / 10, Seen { pending_ns: MS / 5, ..RUNNING }, WAITING).unwrap();
    assert!((bench.tuning.handoff_ns..=MS / 2).contains(&wake_ns), "{wake_ns}");
}

#[test]
fn a_long_burst_waits_for_the_end_of_a_burst_that_is_launched() {
    let burst_ns = 2 * HARDWARE_SLICE_NS;
    let mut bench = pausing_pair(burst_ns, ASSUMED_HANDOFF_NS);
    bench.step(MS / 10, Seen { pending_ns: burst_ns, ..RUNNING }, WAITING);
    assert!(bench.is_leased(A) && bench.is_closed(B));
}

#[test]
fn a_tenant_with_brief_bursts_does_not_wait_for_a_burst_that_itself_waits_on_the_device() {
    let long = Seen { pending_ns: 28 * MS, longest_ns: 28 * MS, ..RUNNING };
    let mut bench = beside_long_work(long, MS / 2);
    for _ in 0..4 {
        bench.step(MS / 2, long, Seen { pending_ns: MS / 2, ..RUNNING });
    }
    assert_eq!((bench.scheduler.phase(), bench.scheduler.beside()), (Phase::Held(C), Some(A)));
}

#[test]
fn work_that_waits_on_the_device_is_charged_for_its_own_length_at_most() {
    let long = Seen { pending_ns: 900 * MS, longest_ns: 900 * MS, ..RUNNING };
    let mut bench = beside_long_work(long, 40 * MS);
    let before_ns = bench.scheduler.lag_ns(B);
    for _ in 0..20 {
        bench.step(MS, long, Seen { pending_ns: MS, ..RUNNING });
    }
    let charged_ns = before_ns - bench.scheduler.lag_ns(B);
    assert!(charged_ns <= MS as i64, "{charged_ns}");
}

#[test]
fn a_tenant_that_is_owed_nothing_does_not_go_beside_other_work_while_those_that_are_owed_wait() {
    let long = Seen { pending_ns: 900 * MS, longest_ns: 900 * MS, ..RUNNING };
    let mut bench = beside_long_work(long, 40 * MS);
    bench.scheduler.set_standing(B, Class::Fair, PPM / 100);
    let mut goes_on = true;
    for _ in 0..20 {
        bench.step(MS, long, if goes_on { RUNNING } else { WAITING });
        bench.step(MS, long, Seen { used_ns: if goes_on { MS / 2 } else { 0 }, ..IDLE });
        bench.step(MS, long, WAITING);
        goes_on = bench.is_leased(B);
    }
    assert!(!goes_on && bench.scheduler.lag_ns(B) < 0);
}

#[test]
fn work_in_flight_for_whose_end_others_wait_is_given_up_like_a_drain() {
    let endless = Seen { pending_ns: 900 * MS, longest_ns: 28 * MS, ..RUNNING };
    let mut bench = beside_long_work(endless, 2_000 * MS);
    let began_ns = bench.now_ns;
    while bench.scheduler.phase() != Phase::Held(C) {
        bench.step(MS, endless, IDLE);
    }
    let waited_ns = bench.now_ns - began_ns;
    assert!((500 * MS..=MAX_DRAIN_NS + MS).contains(&waited_ns), "{waited_ns}");
}

#[test]
fn a_tenant_that_comes_back_is_not_owed_for_work_in_flight_from_its_pause() {
    let mut bench = Bench::new();
    bench.step(MS, IDLE, WAITING);
    bench.step(2 * MS, WAITING, RUNNING);
    bench.step(MS / 10, WAITING, Seen { used_ns: 2 * MS, ..RUNNING });
    let owed_ns = bench.scheduler.lag_ns(A);
    assert!((0..=MS as i64 / 10).contains(&owed_ns), "{owed_ns}");
}

#[test]
fn a_tenant_that_works_between_two_looks_was_not_idle_all_the_time() {
    let mut bench = Bench::new();
    bench.step(MS, Seen { used_ns: MS, ..RUNNING }, WAITING);
    for _ in 0..8 {
        bench.step(MS / 10 + 1, Seen { used_ns: MS / 20, ..IDLE }, WAITING);
        assert!(bench.is_leased(A), "its pauses are short");
    }
    for _ in 0..3 {
        bench.step(MS / 10 + 1, IDLE, WAITING);
    }
    assert!(bench.is_closed(A));
}

#[test]
fn a_holder_owes_its_part_of_a_short_pause_in_which_another_waits() {
    let mut bench = Bench::new();
    bench.step(MS, Seen { used_ns: MS, ..RUNNING }, WAITING);
    bench.step(MS / 100, Seen { used_ns: MS / 100, ..IDLE }, WAITING);
    let before_ns = bench.scheduler.lag_ns(A);
    bench.step(MS / 10, IDLE, WAITING);
    assert!(bench.is_leased(A));
    // Half of the time is its own.
    assert_eq!(before_ns - bench.scheduler.lag_ns(A), MS as i64 / 20);
}

#[test]
fn a_holder_that_is_far_behind_keeps_the_gpu_in_a_longer_pause_if_its_pauses_are_short_in_the_mean() {
    // The lag in quanta, the mean pause in hand-offs, and the patience in hand-offs.
    for (quanta, pause, patience) in [(3, 1, 12), (3, 2, 12), (3, 4, 2), (2, 1, 2), (0, 1, 2), (-1, 1, 2)] {
        let mut bench = Bench::new();
        let tuning = bench.tuning;
        bench.step(MS, Seen { used_ns: MS, ..RUNNING }, WAITING);
        let clock = bench.scheduler.clocks[0].now();
        let tenant = bench.scheduler.tenants.get_mut(A).unwrap();
        tenant.set_lag(quanta * tuning.quantum_ns as i64, clock);
        tenant.mean_pause_ns = pause * tuning.handoff_ns;
        let next = Tenant::new(Rank::Owner, 0);
        let patience_ns = tenant.patience_ns(&next, clock, &tuning);
        assert_eq!(patience_ns, patience * tuning.handoff_ns, "{quanta} {pause}");
    }
}

#[test]
fn a_holder_that_shows_a_little_use_and_wants_nothing_keeps_the_gpu_no_longer_than_its_lease() {
    let mut bench = Bench::new();
    bench.step(MS, WAITING, WAITING);
    let trickle = Seen { used_ns: 1, ..IDLE };
    for _ in 0..500 {
        if bench.is_leased(B) {
            return;
        }
        bench.step(MS / 10, trickle, WAITING);
    }
    panic!("B waits for ever");
}

#[test]
fn a_use_that_no_meter_showed_is_owed_to_the_others_when_its_tenant_leaves() {
    let mut bench = Bench::new();
    bench.step(MS, RUNNING, WAITING);
    while bench.scheduler.phase() == Phase::Held(A) && !bench.is_leased(A) {
        bench.step(MS, RUNNING, WAITING);
    }
    let before_ns = bench.scheduler.lag_ns(B);
    bench.now_ns += 20 * MS;
    bench.scheduler.leave(A, bench.now_ns);
    assert!(bench.scheduler.lag_ns(B) >= before_ns + 5 * MS as i64, "{before_ns}");
}

#[test]
fn a_charge_counts_by_the_weight_that_its_tenant_had() {
    let lags = |decides: bool| {
        let mut bench = Bench::new();
        bench.step(MS, RUNNING, WAITING);
        bench.scheduler.observe(A, bench.now_ns, Seen { used_ns: 8 * MS, ..RUNNING });
        if decides {
            bench.scheduler.decide(bench.now_ns, &bench.tuning);
        }
        bench.scheduler.set_standing(A, Class::Fair, PPM / 4);
        bench.scheduler.decide(bench.now_ns, &bench.tuning);
        [A, B].map(|tenant| bench.scheduler.lag_ns(tenant))
    };
    for (one, other) in lags(true).into_iter().zip(lags(false)) {
        assert!(one.abs_diff(other) <= 2, "{one} and {other}");
    }
}

/// A tenant that has used `us` µs of the GPU in the last millisecond, and pauses now.
fn used_us(us: u64) -> Seen {
    Seen { used_ns: us * 1_000, ..IDLE }
}

/// Two tenants that each use a fifth of the time, until they use the GPU together.
fn together() -> Bench {
    let mut bench = Bench::new();
    for _ in 0..200 {
        bench.step(MS, used_us(200), used_us(200));
    }
    assert!(bench.is_open(A) && bench.is_open(B));
    assert_eq!(bench.scheduler.phase(), Phase::Together);
    bench
}

#[test]
fn owners_whose_demands_fit_use_the_gpu_together_and_others_take_turns() {
    let mut bench = together();
    bench.step(10 * MS, used_us(2_000), Seen { used_ns: MS, ..RUNNING });
    assert!(bench.is_open(A) && bench.is_open(B));
    let mut bench = Bench::new();
    for _ in 0..400 {
        bench.step(MS, used_us(450), used_us(450));
        assert!(!(bench.is_open(A) && bench.is_open(B)), "they want nine tenths");
    }
}

#[test]
fn owners_part_for_a_while_when_they_want_the_whole_gpu_or_hold_each_other_up() {
    let busy = Seen { used_ns: MS / 2, ..RUNNING };
    for (a, b) in [(busy, busy), (used_us(140), used_us(350))] {
        let mut bench = together();
        let steps = (0..500).take_while(|_| {
            bench.step(MS, a, b);
            bench.scheduler.phase() == Phase::Together && bench.is_open(A)
        });
        let steps = steps.count();
        assert!(steps < 400, "{a:?} {b:?}");
        for _ in 0..300 {
            bench.step(MS, used_us(200), used_us(200));
            assert_ne!(bench.scheduler.phase(), Phase::Together);
        }
        (0..300).for_each(|_| _ = bench.step(MS, used_us(200), used_us(200)));
        assert_eq!(bench.scheduler.phase(), Phase::Together);
    }
}

#[test]
fn owners_stay_together_if_one_slows_down_more_than_the_others_can_explain() {
    for (a, b) in [(50, 50), (50, 150), (10, 200)] {
        let mut bench = together();
        for _ in 0..1_000 {
            bench.step(MS, used_us(a), used_us(b));
            assert_eq!(bench.scheduler.phase(), Phase::Together, "{a} {b}");
        }
    }
}

#[test]
fn owners_part_until_at_most_one_has_work_in_flight() {
    let mut bench = together();
    bench.scheduler.enter(C, Class::Fair, bench.now_ns);
    bench.scheduler.set_standing(C, Class::Fair, PPM / 3);
    bench.step(MS, RUNNING, RUNNING);
    bench.scheduler.observe(C, bench.now_ns, WAITING);
    bench.step(MS, RUNNING, RUNNING);
    assert!(bench.is_closed(A) && bench.is_closed(B) && bench.is_closed(C));
    bench.step(MS, RUNNING, RUNNING);
    assert!(bench.is_closed(C), "two tenants have work in flight");
    assert!(bench.scheduler.awaits_end(A) && bench.scheduler.awaits_end(B));
    bench.step(MS, IDLE, RUNNING);
    assert_eq!(bench.scheduler.beside(), Some(B));
    bench.step(MS, IDLE, IDLE);
    assert_eq!(bench.scheduler.phase(), Phase::Held(C));
}

#[test]
fn owners_that_fit_in_time_take_turns_beside_guests_slos_gangs_and_after_a_pause_by_an_administrator() {
    let guest = |bench: &mut Bench| {
        bench.scheduler.enter(C, Class::BestEffort, bench.now_ns);
        bench.scheduler.observe(C, bench.now_ns, WAITING);
    };
    let slo = |bench: &mut Bench| bench.scheduler.set_slo(A, Some(MS));
    let gang = |bench: &mut Bench| bench.scheduler.set_order(Order::Apart, [(C, 0)].into_iter().collect());
    let paused = |bench: &mut Bench| bench.scheduler.set_paused(A, true);
    let changes: [&dyn Fn(&mut Bench); 4] = [&guest, &slo, &gang, &paused];
    for change in changes {
        let mut bench = together();
        change(&mut bench);
        for _ in 0..300 {
            bench.step(MS, used_us(200), used_us(200));
            assert_ne!(bench.scheduler.phase(), Phase::Together);
            assert!(!(bench.is_open(A) && bench.is_open(B)));
        }
    }
}

#[test]
fn a_tenant_that_rests_for_long_leaves_the_others_by_themselves() {
    let mut bench = together();
    for _ in 0..1_100 {
        bench.step(MS, used_us(200), IDLE);
    }
    assert_eq!(bench.scheduler.phase(), Phase::Held(A));
}

#[test]
fn owners_whose_parts_of_the_sms_fit_run_at_once_however_much_they_want() {
    let part = |sm_ppm| Seen { used_ns: MS, sm_ppm, ..RUNNING };
    let mut bench = Bench::new();
    for _ in 0..100 {
        bench.step(MS, part(400_000), part(600_000));
    }
    assert!(bench.is_open(A) && bench.is_open(B));
    assert!(!bench.scheduler.shares(A), "A uses only its own part");
    bench.scheduler.set_slo(A, Some(MS));
    bench.step(10 * MS, part(400_000), part(600_000));
    assert_eq!(bench.scheduler.phase(), Phase::Together);
    bench.step(10 * MS, part(400_000), part(600_001));
    assert!(bench.is_closed(A) && bench.is_closed(B), "the parts no longer fit");
}

#[test]
fn an_owner_with_a_part_of_the_sms_joins_others_at_once_if_it_fits() {
    let part = |sm_ppm, seen: Seen| Seen { used_ns: MS, sm_ppm, ..seen };
    let mut bench = Bench::new();
    bench.scheduler.enter(C, Class::Fair, bench.now_ns);
    for _ in 0..100 {
        bench.step(MS, part(400_000, RUNNING), part(400_000, RUNNING));
    }
    bench.scheduler.observe(C, bench.now_ns, Seen { sm_ppm: 200_000, ..WAITING });
    bench.step(MS, part(400_000, RUNNING), part(400_000, RUNNING));
    assert!([A, B, C].into_iter().all(|tenant| bench.is_open(tenant)));
}

/// Owners on parts of the SMs that always want the GPU.
struct Space {
    bench: Bench,
    parts_ppm: Vec<u32>,
    /// The tenants whose closed gate does not stop the work in flight.
    flying: Vec<TenantId>,
    /// The tenants that want nothing.
    resting: Vec<TenantId>,
    /// The tenants whose meters show no use.
    mute: Vec<TenantId>,
    /// GPU time times part, ns.
    areas_ns: Vec<u64>,
}

impl Space {
    /// Owners with equal weights.
    fn new(parts_percent: &[u32]) -> Self {
        Self::weighted(parts_percent, &vec![1; parts_percent.len()])
    }

    fn weighted(parts_percent: &[u32], weights: &[u32]) -> Self {
        let mut bench = Bench::new();
        for (id, weight) in (1..).zip(weights) {
            bench.scheduler.enter(id, Class::Fair, bench.now_ns);
            bench.scheduler.set_standing(id, Class::Fair, weight * (PPM / weights.iter().sum::<u32>()));
        }
        Self {
            bench,
            parts_ppm: parts_percent.iter().map(|percent| percent * PPM / 100).collect(),
            flying: Vec::new(),
            resting: Vec::new(),
            mute: Vec::new(),
            areas_ns: vec![0; parts_percent.len()],
        }
    }

    /// Lets a millisecond pass, in which each tenant that may launch uses the GPU.
    fn pass_ms(&mut self) {
        self.look(MS);
        self.look(1);
        let members = self.ids().filter(|id| self.bench.may_launch(*id));
        let members_ppm: u32 = members.map(|id| self.part_ppm(id)).sum();
        assert!(members_ppm <= PPM, "{members_ppm}");
    }

    /// Adds a guest that always waits, and returns its number.
    fn enter_guest(&mut self) -> TenantId {
        let guest = self.ids().end() + 1;
        self.bench.scheduler.enter(guest, Class::BestEffort, self.bench.now_ns);
        self.bench.scheduler.observe(guest, self.bench.now_ns, WAITING);
        guest
    }

    /// Lets the time pass. Returns the time of the next decision, ns.
    fn look(&mut self, pass_ns: u64) -> Option<u64> {
        self.bench.now_ns += pass_ns;
        let now_ns = self.bench.now_ns;
        for id in self.ids() {
            let sm_ppm = self.part_ppm(id);
            let seen = match self.bench.may_launch(id) || self.flying.contains(&id) {
                _ if self.resting.contains(&id) => IDLE,
                true => {
                    self.areas_ns[id as usize - 1] += pass_ns * u64::from(sm_ppm) / u64::from(PPM);
                    Seen { used_ns: if self.mute.contains(&id) { 0 } else { pass_ns }, ..RUNNING }
                }
                false => WAITING,
            };
            self.bench.scheduler.observe(id, now_ns, Seen { sm_ppm, ..seen });
        }
        self.bench.scheduler.decide(now_ns, &self.bench.tuning)
    }

    fn ids(&self) -> std::ops::RangeInclusive<TenantId> {
        1..=self.parts_ppm.len() as TenantId
    }

    fn part_ppm(&self, id: TenantId) -> u32 {
        self.parts_ppm[id as usize - 1]
    }

    /// Lets some seconds pass. Returns the area of each tenant in the last of them, as a part of
    /// the GPU.
    fn areas(&mut self) -> Vec<f64> {
        (0..1_000).for_each(|_| self.pass_ms());
        self.areas_ns.fill(0);
        (0..4_000).for_each(|_| self.pass_ms());
        self.areas_ns.iter().map(|ns| *ns as f64 / 4e9).collect()
    }
}

#[test]
fn sets_of_owners_whose_parts_of_the_sms_fit_take_turns_and_each_gets_its_area() {
    let areas = Space::new(&[40, 60, 30]).areas();
    // The sets are 40 % and 60 %, 40 % and 30 %, 60 % and 30 %.
    assert!(areas.iter().all(|area| (area - 0.267).abs() < 0.01), "{areas:?}");
    let areas = Space::new(&[100, 40, 60]).areas();
    // The third owner uses what the second leaves.
    assert!((areas[0] - areas[1]).abs() < 0.01 && areas.iter().sum::<f64>() > 0.98, "{areas:?}");
}

#[test]
fn an_owner_that_loses_its_place_keeps_its_part_until_its_work_has_drained() {
    let mut space = Space::new(&[60, 60, 30]);
    (0..100).for_each(|_| space.pass_ms());
    let [holder, other] = if space.bench.may_launch(A) { [A, B] } else { [B, A] };
    space.flying = vec![holder];
    for _ in 0..30 {
        space.pass_ms();
        assert!(space.bench.is_closed(other));
    }
    assert!(space.bench.is_closed(holder) && space.bench.may_launch(C));
    space.flying.clear();
    space.pass_ms();
    assert!(space.bench.may_launch(other));
}

#[test]
fn an_owner_that_waits_takes_the_place_of_an_owner_that_pauses() {
    let mut space = Space::new(&[60, 60, 30]);
    (0..100).for_each(|_| space.pass_ms());
    let [holder, other] = if space.bench.may_launch(A) { [A, B] } else { [B, A] };
    space.resting = vec![holder];
    (0..3).for_each(|_| space.pass_ms());
    assert!(space.bench.may_launch(other) && space.bench.may_launch(C) && space.bench.is_closed(holder));
}

#[test]
fn owners_of_a_set_have_leases_while_others_wait_and_open_gates_while_all_fit() {
    let mut space = Space::new(&[60, 60, 30]);
    for _ in 0..100 {
        space.pass_ms();
        let is_waiting = |id: &TenantId| space.bench.is_closed(*id);
        assert!(space.ids().any(|id| is_waiting(&id)) && !space.ids().any(|id| space.bench.is_open(id)));
    }
    let mut space = Space::new(&[40, 30, 30]);
    (0..100).for_each(|_| space.pass_ms());
    assert!(space.ids().all(|id| space.bench.is_open(id)));
}

#[test]
fn owners_of_a_set_lose_their_places_if_the_part_of_another_owner_grows() {
    // In the first case all owners fit at first, and in the second case sets take turns.
    for parts_percent in [[40, 30, 30], [60, 30, 30]] {
        let mut space = Space::new(&parts_percent);
        (0..100).for_each(|_| space.pass_ms());
        let holder = space.ids().find(|id| space.bench.may_launch(*id)).unwrap();
        space.parts_ppm[holder as usize - 1] = 700_000;
        // Each step asserts that the parts of all owners that may launch fit.
        let areas = space.areas();
        assert!(areas.iter().all(|area| *area > 0.2), "{areas:?}");
        // And back.
        space.parts_ppm[holder as usize - 1] = 100_000;
        let areas = space.areas();
        assert!(areas.iter().sum::<f64>() > 0.6, "{areas:?}");
    }
}

#[test]
fn a_lease_of_a_set_goes_on_before_it_expires_while_its_owner_keeps_the_place() {
    let mut space = Space::new(&[60, 60, 30]);
    let mut renewals = 0;
    for _ in 0..100 {
        space.pass_ms();
        for id in space.ids() {
            if let Grant::Leased { expires_ns } = space.bench.scheduler.grant(id) {
                assert!(expires_ns > space.bench.now_ns);
            }
        }
        let changes = space.bench.scheduler.take_changes();
        renewals += changes.filter(|change| change.tenant == C && change.renewal).count();
    }
    assert!(renewals > 5, "{renewals}");
}

#[test]
fn a_short_pause_keeps_the_place_for_the_time_of_two_hand_offs() {
    let mut space = Space::new(&[60, 60, 30]);
    (0..100).for_each(|_| space.pass_ms());
    let [holder, other] = if space.bench.may_launch(A) { [A, B] } else { [B, A] };
    let short_ns = short_pause_ns(&space.bench.tuning);
    space.resting = vec![holder];
    let wake_ns = space.look(1).unwrap();
    assert!(space.bench.may_launch(holder) && wake_ns <= space.bench.now_ns + short_ns + 1);
    space.look(short_ns + 1);
    space.look(1);
    assert!(space.bench.may_launch(other) && space.bench.is_closed(holder));
}

#[test]
fn an_owner_in_spare_places_owes_a_quantum_at_most() {
    let mut space = Space::new(&[100, 40, 60]);
    let areas = space.areas();
    assert!(areas[2] > 0.4, "{areas:?}");
    let (lag_ns, quantum_ns) = (space.bench.scheduler.lag_ns(C), space.bench.tuning.quantum_ns as i64);
    assert!((-quantum_ns..0).contains(&lag_ns), "{lag_ns}");
}

#[test]
fn an_owner_that_pauses_in_its_place_does_not_pay_for_the_pause() {
    let mut space = Space::new(&[60, 60, 30]);
    while !space.bench.may_launch(C) {
        space.pass_ms();
    }
    // The place of the third owner is too small for the owner that waits.
    space.resting = vec![C];
    (0..2).for_each(|_| space.pass_ms());
    let before_ns = space.bench.scheduler.lag_ns(C);
    (0..3).for_each(|_| space.pass_ms());
    assert_eq!(space.bench.scheduler.lag_ns(C), before_ns);
}

#[test]
fn a_guest_that_waits_takes_no_places_from_owners_that_run_at_once() {
    for parts_percent in [vec![50, 50], vec![60, 60, 30]] {
        let mut space = Space::new(&parts_percent);
        let before = space.areas().iter().sum::<f64>();
        let guest = space.enter_guest();
        let areas = space.areas();
        assert!(areas.iter().sum::<f64>() > before - 0.01, "{areas:?} after {before}");
        assert!(space.bench.is_closed(guest));
    }
}

#[test]
fn a_guest_has_the_gpu_while_all_owners_that_run_at_once_pause() {
    let mut space = Space::new(&[50, 50]);
    (0..100).for_each(|_| space.pass_ms());
    let guest = space.enter_guest();
    (0..100).for_each(|_| space.pass_ms());
    space.resting = vec![A];
    for _ in 0..100 {
        space.pass_ms();
        assert!(space.bench.is_closed(guest) && space.bench.may_launch(B), "B goes on");
    }
    space.resting = vec![A, B];
    (0..5).for_each(|_| space.pass_ms());
    assert!(space.bench.may_launch(guest) && space.bench.is_closed(A) && space.bench.is_closed(B));
    space.resting.clear();
    (0..5).for_each(|_| space.pass_ms());
    assert!(space.bench.is_closed(guest) && space.bench.may_launch(A) && space.bench.may_launch(B));
}

#[test]
fn owners_on_all_sms_get_what_they_are_owed_beside_two_on_tiny_parts() {
    // As the core caps the weights by the parts: 1, 1, 49 and 49 of a hundred.
    let areas = Space::weighted(&[1, 1, 100, 100], &[1, 1, 49, 49]).areas();
    assert!(areas[2..].iter().all(|area| *area >= 0.23), "{areas:?}");
    assert!(areas[..2].iter().all(|area| *area >= 0.004), "{areas:?}");
}

#[test]
fn owners_that_come_together_in_space_while_work_drains_wait_for_the_drain() {
    let part = |sm_ppm, seen: Seen| Seen { sm_ppm, ..seen };
    let mut bench = Bench::new();
    bench.drain_a();
    bench.step(MS, part(600_000, RUNNING), part(600_000, WAITING));
    bench.scheduler.enter(C, Class::Fair, bench.now_ns);
    bench.scheduler.set_standing(C, Class::Fair, PPM / 2);
    bench.scheduler.observe(C, bench.now_ns, part(300_000, WAITING));
    (0..30).for_each(|_| _ = bench.step(MS, part(600_000, RUNNING), part(600_000, WAITING)));
    assert_eq!(bench.scheduler.phase(), Phase::Together);
    assert!(bench.is_leased(C) && bench.is_closed(B));
}

#[test]
fn tenants_are_beside_each_other_while_the_hardware_may_take_turns_between_them() {
    let beside = |bench: &Bench| [A, B].map(|tenant| bench.scheduler.is_beside(tenant));
    assert_eq!(beside(&together()), [true, true]);
    let mut bench = Bench::new();
    bench.step(MS, RUNNING, IDLE);
    assert_eq!(beside(&bench), [false, false]);
    bench.drain_a();
    assert_eq!(beside(&bench), [false, false], "A's work drains, and B's gate is closed");
    bench.step(MS, RUNNING, RUNNING);
    assert_eq!(beside(&bench), [true, true], "B has work in flight from before");
}

#[test]
fn an_owner_pays_for_its_place_whatever_its_meter_shows() {
    let mut space = Space::new(&[60, 60, 30]);
    space.mute = vec![A];
    let areas = space.areas();
    assert!((areas[0] - areas[1]).abs() < 0.02, "{areas:?}");
}

#[test]
fn others_run_at_once_on_their_parts_if_the_work_of_an_owner_does_not_end_within_a_drain() {
    let mut space = Space::new(&[60, 60, 30]);
    (0..100).for_each(|_| space.pass_ms());
    let [holder, other] = if space.bench.may_launch(A) { [A, B] } else { [B, A] };
    space.flying = vec![holder];
    space.mute = vec![holder];
    let areas = space.areas();
    assert_eq!(space.bench.scheduler.phase(), Phase::Together);
    assert!(areas[other as usize - 1] > 0.4 && areas[C as usize - 1] > 0.2, "{areas:?}");
    (space.flying, space.mute) = (Vec::new(), Vec::new());
    let areas = space.areas();
    assert!(areas.iter().all(|area| *area > 0.2), "{areas:?}");
}
