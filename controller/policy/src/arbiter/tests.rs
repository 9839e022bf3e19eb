use super::*;
use crate::class::Class;
use crate::lease::guard::DEFAULT_MAX_HARM_PPM;
use deepres_abi::PPM;

const MS: u64 = 1_000_000;
const LIMIT_NS: u64 = 250 * MS;
const A: TenantId = 1;
const B: TenantId = 2;
const C: TenantId = 3;

/// A GPU with the core of its arbiter, and a meter for each session.
struct Bench {
    core: Core,
    readings: Readings,
    actions: Actions,
    meters: BTreeMap<SessionId, Reading>,
    /// The parts of the SMs that sessions report, parts per million.
    parts_ppm: BTreeMap<SessionId, u32>,
    /// The MPS servers that sessions name, except the server 1.
    servers: BTreeMap<SessionId, u64>,
    gates: BTreeMap<SessionId, Gate>,
    answers: BTreeMap<SessionId, bool>,
    asked: Vec<SessionId>,
    /// The number of questions since the meters last changed.
    questions: u64,
    events: Vec<Event>,
    now_ns: u64,
}

fn setup() -> Setup {
    Setup {
        heartbeat_limit_ns: LIMIT_NS,
        quantum: QuantumBounds::default(),
        weights: Weights::default(),
        max_harm_ppm: DEFAULT_MAX_HARM_PPM,
        processors: 2,
        has_peers: false,
    }
}

fn tenant(id: TenantId) -> TenantSeat {
    TenantSeat {
        id,
        request: Request { class: Class::Fair, ..Request::default() },
        priority: Priority::default(),
        slo_ns: None,
        sm_ppm: None,
        uses_mps: true,
        takes_turns: false,
        is_paused: false,
        is_suspended: false,
    }
}

fn session(id: SessionId) -> SessionSeat {
    SessionSeat { id, process: Some((id as u32, 0)), user: None, continues: false }
}

/// Returns whether two readings differ at most in the work in flight and the waiting threads, which
/// a stopped process goes on to show.
fn has_the_counters_of(one: &Reading, other: &Reading) -> bool {
    let (waiters, in_flight, in_flight_ns) = (other.waiters, other.in_flight, other.in_flight_ns);
    Reading { waiters, in_flight, in_flight_ns, ..*one } == *other
}

impl Bench {
    /// Returns a GPU with one session of each of these tenants. The session has the tenant's
    /// number.
    fn with(tenants: &[TenantId]) -> Self {
        let start_ns = 1_000 * MS;
        let mut bench = Self {
            core: Core::new(setup(), start_ns),
            readings: Readings::default(),
            actions: Actions::default(),
            meters: BTreeMap::new(),
            parts_ppm: BTreeMap::new(),
            servers: BTreeMap::new(),
            gates: BTreeMap::new(),
            answers: BTreeMap::new(),
            asked: Vec::new(),
            questions: 0,
            events: Vec::new(),
            now_ns: start_ns,
        };
        for id in tenants {
            bench.enter(*id, session(*id));
        }
        bench
    }

    fn enter(&mut self, id: TenantId, session: SessionSeat) {
        self.meters.entry(session.id).or_default();
        self.turn([Order::Enter { tenant: tenant(id), session }]);
    }

    /// Takes turns until the core asks for no further turn. The meters stay as they are.
    fn turn(&mut self, orders: impl IntoIterator<Item = Order>) {
        let mut orders: Vec<Order> = orders.into_iter().collect();
        self.questions = 0;
        loop {
            self.read();
            self.core.turn(self.now_ns, &self.readings, orders.drain(..), None, &mut self.actions);
            self.gates.extend(self.actions.gates.iter().map(|gate| (gate.session, *gate)));
            self.asked.clone_from(&self.actions.asks);
            self.questions += self.asked.len() as u64;
            self.events.extend(&self.actions.events);
            if !self.actions.again {
                return;
            }
            self.now_ns += 1;
        }
    }

    fn read(&mut self) {
        self.readings.clear();
        let Self { core, readings, meters, parts_ppm, servers, asked, answers, .. } = self;
        for watched in core.sessions() {
            let meter = meters[&watched.session];
            let stands_still = watched.stopped.is_some_and(|last| has_the_counters_of(&meter, last));
            let is_left_out = watched.at_rest == Some(&meter) || stands_still;
            if !is_left_out || asked.contains(&watched.session) {
                let answer = || answers.get(&watched.session).copied().unwrap_or(false);
                readings.sessions.push(SessionReading {
                    session: watched.session,
                    is_carried: true,
                    meter,
                    sm_ppm: parts_ppm.get(&watched.session).copied().unwrap_or(0),
                    mps_server: servers.get(&watched.session).copied().unwrap_or(1),
                    is_stopped: asked.contains(&watched.session).then(answer),
                    ..SessionReading::default()
                });
            }
        }
    }

    /// Replaces the core by the core of the next daemon, which starts after `away_ns` with the
    /// saved state.
    fn restart(&mut self, away_ns: u64) {
        let snapshot = self.core.snapshot();
        let baseline = |meter| Baseline { meter, at_ns: snapshot.now_ns };
        let baselines =
            snapshot.meters.iter().map(|(id, process, meter, _)| (*id, *process, baseline(*meter)));
        let restored = Restored {
            saved_ns: snapshot.now_ns,
            counters: snapshot.counters,
            accounts: snapshot.accounts.iter().map(|(id, saved)| (tenant(*id), *saved)).collect(),
            baselines: baselines.collect(),
        };
        self.now_ns += away_ns;
        self.core = Core::new(setup(), self.now_ns);
        self.turn([Order::Restore(Box::new(restored))]);
    }

    fn after(&mut self, passed_ns: u64) {
        self.now_ns += passed_ns;
        self.turn([]);
    }

    fn meter(&mut self, session: SessionId) -> &mut Reading {
        self.meters.get_mut(&session).unwrap()
    }

    fn waits(&mut self, session: SessionId) {
        *self.meter(session) = Reading { waiters: 1, ..*self.meter(session) };
    }

    /// Lets the session's meter show `used_ns` more GPU time, and work in flight.
    fn runs(&mut self, session: SessionId, used_ns: u64) {
        let now_ns = self.now_ns;
        let meter = self.meter(session);
        meter.waiters = 0;
        meter.in_flight = true;
        meter.compute_ns += used_ns;
        meter.kernel_launches += 1;
        meter.updated_ns = now_ns;
    }

    fn gate(&self, session: SessionId) -> Grant {
        self.gates[&session].grant
    }

    fn gpu_ns(&self, id: TenantId) -> u64 {
        self.core.tenant(id).unwrap().account().totals.gpu_ns
    }
}

#[test]
fn a_tenant_that_is_alone_has_an_open_gate_and_two_have_leases_in_turn() {
    let mut bench = Bench::with(&[A]);
    bench.waits(A);
    bench.after(MS);
    assert_eq!(bench.gate(A), Grant::Open);
    bench.enter(B, session(B));
    bench.waits(B);
    let mut holders = Vec::new();
    for _ in 0..4_000 {
        for id in [A, B] {
            match bench.gate(id) {
                Grant::Closed => {
                    bench.waits(id);
                    bench.meter(id).in_flight = false;
                }
                _ => bench.runs(id, MS),
            }
        }
        bench.after(MS);
        holders.extend([A, B].into_iter().filter(|id| bench.gate(*id) != Grant::Closed));
    }
    holders.dedup();
    assert!(holders.len() >= 10, "{holders:?}");
    let (a, b) = (bench.gpu_ns(A) as f64, bench.gpu_ns(B) as f64);
    let owed = |id| f64::from(bench.core.tenant(id).unwrap().entitled_ppm());
    let owed = owed(A) / owed(B);
    assert!((a / b / owed - 1.0).abs() < 0.1, "{a} and {b}, owed {owed} of it");
}

#[test]
fn nothing_is_due_between_ticks_unless_a_tenant_wants_the_gpu() {
    let mut bench = Bench::with(&[A]);
    bench.waits(A);
    bench.after(MS);
    assert!(bench.core.is_due(bench.now_ns + 60 * MS), "the meters of who wants the GPU are read");
    *bench.meter(A) = Reading::default();
    bench.after(MS);
    assert!(!bench.core.is_due(bench.now_ns + 60 * MS));
    let beat_ns = bench.core.wake_ns().unwrap();
    assert!(beat_ns <= bench.now_ns + LIMIT_NS / BEATS_PER_LIMIT, "but the heartbeat is");
    bench.core.rest(beat_ns);
    assert!(bench.core.wake_ns() > Some(beat_ns));
    bench.turn([Order::Leave { tenant: A, session: A, may_return: false }]);
    assert_eq!(bench.core.wake_ns(), None, "without sessions nobody misses it");
}

#[test]
fn time_in_which_nobody_arbitrated_is_split_between_those_who_counted_it_twice() {
    let mut bench = Bench::with(&[A, B]);
    for id in [A, B] {
        bench.runs(id, 0);
    }
    bench.after(MS);
    let before = [bench.gpu_ns(A), bench.gpu_ns(B)];
    // The meter of each session counts all of the time.
    bench.now_ns += 2 * LIMIT_NS;
    for id in [A, B] {
        bench.runs(id, 2 * LIMIT_NS);
    }
    assert!(bench.core.is_due(bench.now_ns));
    bench.turn([]);
    let had = [bench.gpu_ns(A) - before[0], bench.gpu_ns(B) - before[1]];
    assert!(had.iter().all(|had_ns| had_ns.abs_diff(LIMIT_NS) <= 2 * MS), "{had:?}");
    assert!(matches!(bench.events[..], [Event::Silence { .. }]), "{:?}", bench.events);
    assert_eq!(bench.core.scheduler().lag_ns(A), 0, "nobody owes anything for it");
}

#[test]
fn a_process_that_shows_nothing_is_asked_about_and_wants_nothing_while_it_is_stopped() {
    let mut bench = Bench::with(&[A, B]);
    bench.answers.insert(A, true);
    bench.waits(A);
    bench.after(MS);
    bench.waits(B);
    for _ in 0..30 {
        bench.after(MS);
    }
    assert_ne!(bench.gate(B), Grant::Closed, "the GPU does not wait for a stopped process");
    assert_eq!(bench.gate(A), Grant::Closed);
    bench.answers.insert(A, false);
    let goes_on = (0..40).any(|_| {
        if bench.gate(B) == Grant::Closed {
            bench.meter(B).in_flight = false;
        } else {
            bench.runs(B, MS);
        }
        bench.after(MS);
        bench.gate(A) != Grant::Closed
    });
    assert!(goes_on, "it has its turns again");
}

#[test]
fn hundreds_of_stopped_processes_cause_few_questions_and_few_further_turns() {
    const PROCESSES: u64 = 500;
    const LOOKS: u64 = 1_000;
    let mut bench = Bench::with(&[]);
    for id in 10..10 + PROCESSES {
        bench.answers.insert(id, true);
        bench.enter(B, session(id));
        bench.waits(id);
    }
    (0..30).for_each(|_| bench.after(MS));
    assert!(!bench.core.tenant(B).unwrap().account().wants, "all are stopped");
    bench.enter(A, session(A));
    bench.waits(A);
    let (mut questions, mut looks) = (0, 0);
    for look in 0..LOOKS {
        if bench.gate(A) == Grant::Closed {
            bench.meter(A).in_flight = false;
        } else {
            bench.runs(A, MS);
        }
        // Others change the meter page of each stopped process before each look, from some look on.
        for id in (10..10 + PROCESSES).filter(|id| id % 100 <= look) {
            bench.meter(id).updated_ns = look + 1;
        }
        bench.after(MS);
        (questions, looks) = (questions + bench.questions, looks + u64::from(bench.questions > 0));
    }
    assert!((10 * PROCESSES..=30 * PROCESSES).contains(&questions), "{questions} questions");
    assert!(looks <= LOOKS / 5, "{looks} looks with questions");
}

#[test]
fn a_process_that_comes_back_is_charged_from_where_it_was_left() {
    let mut bench = Bench::with(&[A]);
    bench.runs(A, 0);
    bench.after(MS);
    bench.now_ns += 10 * MS;
    bench.runs(A, 8 * MS);
    bench.turn([Order::Leave { tenant: A, session: A, may_return: true }]);
    assert_eq!((bench.gpu_ns(A), bench.gate(A)), (8 * MS, Grant::Open));
    // The process connects again, and its counters go on in another session.
    bench.meters.insert(9, bench.meters[&A]);
    bench.now_ns += 5 * MS;
    bench.runs(9, 3 * MS);
    let process = session(A).process;
    bench.enter(A, SessionSeat { id: 9, process, user: None, continues: true });
    assert_eq!(bench.gpu_ns(A), 11 * MS);
    let snapshot = bench.core.snapshot();
    assert_eq!(snapshot.accounts[0].1.totals.gpu_ns, 11 * MS);
    assert_eq!(snapshot.meters[0].3, None, "it is connected");
}

#[test]
fn gpu_time_used_between_two_daemons_is_charged_once_all_are_back() {
    let mut bench = Bench::with(&[A]);
    bench.runs(A, 0);
    bench.after(10 * MS);
    bench.restart(100 * MS);
    bench.runs(A, 60 * MS);
    bench.enter(A, SessionSeat { continues: true, ..session(A) });
    assert_eq!(bench.gpu_ns(A), 60 * MS);
    bench.turn([Order::StopWaiting]);
    assert_eq!(bench.gpu_ns(A), 60 * MS);
}

#[test]
fn work_in_flight_at_the_return_of_two_tenants_is_charged_once() {
    let mut bench = Bench::with(&[A, B]);
    bench.restart(100 * MS);
    // Without a daemon, both tenants launch. Each meter counts the turns of the other tenant too.
    for id in [A, B] {
        bench.runs(id, 90 * MS);
        bench.enter(id, SessionSeat { continues: true, ..session(id) });
    }
    let charged_ms = |bench: &Bench| [A, B].map(|id| (bench.gpu_ns(id) + MS / 2) / MS);
    assert_eq!(charged_ms(&bench), [50, 50]);
    // Both meters count the time in which the last launches took turns.
    bench.now_ns += 20 * MS;
    for id in [A, B] {
        bench.runs(id, 20 * MS);
        bench.meter(id).in_flight = false;
    }
    bench.after(0);
    assert_eq!(charged_ms(&bench), [70, 70]);
    for (id, charged) in [(A, [70, 70]), (A, [80, 70]), (B, [80, 70]), (B, [80, 80])] {
        bench.now_ns += 10 * MS;
        bench.runs(id, 10 * MS);
        bench.after(0);
        bench.meter(id).in_flight = false;
        assert_eq!(charged_ms(&bench), charged, "time charged twice is taken off");
    }
}

#[test]
fn a_paused_tenant_waits_and_is_told_so() {
    let mut bench = Bench::with(&[A, B]);
    bench.turn([Order::SetTenant(TenantSeat { is_paused: true, ..tenant(A) })]);
    bench.waits(A);
    bench.waits(B);
    bench.after(MS);
    assert_eq!(bench.gate(A), Grant::Paused);
    assert_ne!(bench.gate(B), Grant::Closed);
    bench.turn([Order::SetTenant(tenant(A)), Order::Forget(B)]);
    assert!(bench.core.tenant(B).is_none());
    bench.after(MS);
    assert_ne!(bench.gate(A), Grant::Paused);
}

impl Bench {
    /// Adds a session that can use a part of the SMs. Its tenant has the session's number, below
    /// ten.
    fn enter_on_part(&mut self, id: SessionId, percent: u32) {
        let part_ppm = percent * (PPM / 100);
        self.parts_ppm.insert(id, part_ppm);
        self.meters.entry(id).or_default();
        let tenant = TenantSeat { sm_ppm: Some(part_ppm), ..tenant(id % 10) };
        self.turn([Order::Enter { tenant, session: session(id) }]);
    }

    /// Lets a millisecond pass, in which each of these sessions uses the GPU if its gate lets it.
    fn pass_ms(&mut self, sessions: &[SessionId]) {
        for id in sessions {
            if self.gate(*id) == Grant::Closed {
                self.waits(*id);
                self.meter(*id).in_flight = false;
            } else {
                self.runs(*id, MS);
            }
        }
        self.after(MS);
    }
}

#[test]
fn an_owner_on_a_tiny_part_is_owed_no_more_than_its_part_beside_owners_on_all_sms() {
    const SESSIONS: [SessionId; 4] = [1, 2, 3, 4];
    let mut bench = Bench::with(&[]);
    [1, 1, 100, 100].into_iter().zip(SESSIONS).for_each(|(percent, id)| bench.enter_on_part(id, percent));
    let mut had_ms = [0; 4];
    for ms in 0..5_000 {
        bench.pass_ms(&SESSIONS);
        for (had_ms, id) in had_ms.iter_mut().zip(SESSIONS) {
            *had_ms += u32::from(ms >= 1_000 && bench.gate(id) != Grant::Closed);
        }
    }
    // The owners on all SMs have the GPU for half of the time, and the others run at once.
    assert!(
        had_ms.iter().zip([1_500, 1_500, 750, 750]).all(|(had_ms, least)| *had_ms >= least),
        "{had_ms:?}"
    );
}

#[test]
fn tenants_that_report_next_to_no_part_leave_an_owner_on_all_sms_its_time() {
    let mut bench = Bench::with(&[A, B, C]);
    bench.parts_ppm.extend([(A, 1), (B, 1)]);
    let mut had_ms = 0;
    for _ in 0..2_000 {
        bench.pass_ms(&[A, B, C]);
        had_ms += u32::from(bench.gate(C) != Grant::Closed);
    }
    assert!(had_ms > 600, "{had_ms} of 2000 ms");
}

#[test]
fn tenants_without_a_granted_part_run_at_once_while_their_sessions_report_parts_that_fit() {
    let mut bench = Bench::with(&[A, B]);
    bench.parts_ppm.extend([(A, 400_000), (B, 500_000)]);
    let both = |bench: &Bench| [A, B].into_iter().all(|id| bench.gate(id) != Grant::Closed);
    (0..200).for_each(|_| bench.pass_ms(&[A, B]));
    assert!(both(&bench));
    for report_ppm in [700_000, PPM, 0] {
        bench.parts_ppm.insert(B, report_ppm);
        (0..50).for_each(|_| bench.pass_ms(&[A, B]));
        for _ in 0..50 {
            bench.pass_ms(&[A, B]);
            assert!(!both(&bench), "{report_ppm}");
        }
    }
    bench.parts_ppm.insert(B, 600_000);
    (0..200).for_each(|_| bench.pass_ms(&[A, B]));
    assert!(both(&bench));
}

#[test]
fn the_sessions_of_a_tenant_on_parts_of_the_sms_run_at_once() {
    let mut bench = Bench::with(&[]);
    for (id, percent) in [(1, 20), (11, 20), (2, 60), (3, 60)] {
        bench.enter_on_part(id, percent);
    }
    let mut had_ms = 0;
    for ms in 0..1_000 {
        bench.pass_ms(&[1, 11, 2, 3]);
        if ms >= 100 {
            assert_eq!(bench.gate(1), bench.gate(11));
            had_ms += u32::from(bench.gate(1) != Grant::Closed);
        }
    }
    assert!(had_ms > 300, "{had_ms}");
}

#[test]
fn a_tenant_with_processes_on_two_mps_servers_runs_beside_no_other_tenant() {
    let mut bench = Bench::with(&[]);
    for (id, percent) in [(1, 20), (11, 20), (2, 40)] {
        bench.enter_on_part(id, percent);
    }
    let both = |bench: &Bench| [1, 2].into_iter().all(|id| bench.gate(id) != Grant::Closed);
    let pass = |bench: &mut Bench, ms: usize| (0..ms).for_each(|_| bench.pass_ms(&[1, 11, 2]));
    pass(&mut bench, 200);
    assert!(both(&bench));
    assert_eq!(bench.core.tenant(1).unwrap().part(), Some((1, 400_000)));
    for servers in [[(1, 1), (11, 2)], [(1, 2), (11, 2)]] {
        bench.servers.extend(servers);
        pass(&mut bench, 50);
        for _ in 0..50 {
            pass(&mut bench, 1);
            assert!(!both(&bench), "{servers:?}");
        }
    }
    let part = bench.core.tenant(1).unwrap().part();
    assert_eq!(part, Some((2, 400_000)), "both processes are on the other server");
    bench.servers.extend([(1, 1), (11, 2)]);
    pass(&mut bench, 2);
    assert_eq!(bench.core.tenant(1).unwrap().part(), None, "all SMs");
    bench.servers.clear();
    pass(&mut bench, 200);
    assert!(both(&bench));
}

#[test]
fn clients_of_one_mps_server_run_at_once_and_take_turns_with_those_of_another() {
    let mut bench = Bench::with(&[]);
    for (id, server) in [(A, 1), (B, 1), (C, 2)] {
        bench.enter_on_part(id, 40);
        bench.servers.insert(id, server);
    }
    (0..200).for_each(|_| bench.pass_ms(&[A, B, C]));
    let (mut had_ms, mut together_ms) = ([0; 3], 0);
    for _ in 0..2_000 {
        bench.pass_ms(&[A, B, C]);
        let open = [A, B, C].map(|id| bench.gate(id) != Grant::Closed);
        assert!(!(open[2] && (open[0] || open[1])), "{open:?}");
        together_ms += u32::from(open[0] && open[1]);
        had_ms.iter_mut().zip(open).for_each(|(had_ms, is_open)| *had_ms += u32::from(is_open));
    }
    assert!(together_ms > 1_200, "{together_ms} of 2000 ms, {had_ms:?}");
    assert!(had_ms[2] > 450, "{had_ms:?}");
}

#[test]
fn a_new_mps_server_takes_no_part_from_the_clients_of_another() {
    let mut bench = Bench::with(&[]);
    for (id, percent) in [(1, 40), (2, 40), (3, 1), (4, 1)] {
        bench.enter_on_part(id, percent);
        // The server with the lower number comes last.
        bench.servers.insert(id, if id < 3 { 7 } else { 2 });
        // Only sessions that have entered use the GPU.
        (0..200).for_each(|_| bench.pass_ms(&[1, 2][..id.min(2) as usize]));
    }
    let all = [1, 2, 3, 4];
    (0..500).for_each(|_| bench.pass_ms(&all));
    assert_eq!(all.map(|id| bench.core.part_ppm(id)), [400_000, 400_000, 0, 0]);
    // Once one client of the first server rests, its clients cannot run at once.
    *bench.meter(2) = Reading { waiters: 0, in_flight: false, ..*bench.meter(2) };
    (0..3_000).for_each(|_| bench.pass_ms(&[1, 3, 4]));
    assert_eq!(all.map(|id| bench.core.part_ppm(id)), [0, 0, 10_000, 10_000]);
}

#[test]
fn no_part_of_the_sms_counts_if_the_daemon_does_not_use_mps() {
    let mut bench = Bench::with(&[A, B]);
    bench.parts_ppm.extend([(A, 400_000), (B, 500_000)]);
    let both = |bench: &Bench| [A, B].into_iter().all(|id| bench.gate(id) != Grant::Closed);
    (0..200).for_each(|_| bench.pass_ms(&[A, B]));
    assert!(both(&bench));
    let seats = [A, B].map(|id| TenantSeat { uses_mps: false, ..tenant(id) });
    bench.turn(seats.map(Order::SetTenant));
    (0..50).for_each(|_| bench.pass_ms(&[A, B]));
    for _ in 0..50 {
        bench.pass_ms(&[A, B]);
        assert!(!both(&bench));
    }
    assert_eq!(bench.core.tenant(A).unwrap().part(), None);
}
