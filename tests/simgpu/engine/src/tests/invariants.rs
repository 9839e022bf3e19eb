//! Properties that hold after any operations in any order.

use super::world::{START_NS, World};
use crate::{
    ContextId, CopyKind, EventId, EventStatus, Host, StreamId, Ticket, WaitPolicy, Work, truth::Snapshot,
};
use proptest::prelude::*;

const PROCESSES: usize = 3;
const CONTEXTS: usize = 5;
const STREAMS: usize = 9;
const GPUS: usize = 2;

#[derive(Clone, Debug)]
enum Step {
    Kernel { stream: usize, ns: u64, sm_ppm: u32 },
    Collective { stream: usize, ns: u64 },
    Copy { stream: usize, bytes: u64 },
    Marker { stream: usize },
    After { stream: usize, other: usize, ns: u64 },
    HostWait { stream: usize },
    Record { stream: usize },
    ReplaceStream { stream: usize },
    ReplaceContext { context: usize },
    ReleaseAll,
    Pass { ns: u64 },
    Look,
}

fn step() -> impl Strategy<Value = Step> {
    let stream = 0..STREAMS;
    prop_oneof![
        5 => (stream.clone(), 0_u64..5000, 1_u32..1_000_000).prop_map(|(stream, ns, sm_ppm)| Step::Kernel { stream, ns, sm_ppm }),
        2 => (stream.clone(), 0_u64..5000).prop_map(|(stream, ns)| Step::Collective { stream, ns }),
        2 => (stream.clone(), 0_u64..5000).prop_map(|(stream, bytes)| Step::Copy { stream, bytes }),
        2 => stream.clone().prop_map(|stream| Step::Marker { stream }),
        3 => (stream.clone(), 0..STREAMS, 0_u64..500).prop_map(|(stream, other, ns)| Step::After { stream, other, ns }),
        1 => stream.clone().prop_map(|stream| Step::HostWait { stream }),
        2 => stream.clone().prop_map(|stream| Step::Record { stream }),
        1 => stream.prop_map(|stream| Step::ReplaceStream { stream }),
        1 => (0..CONTEXTS).prop_map(|context| Step::ReplaceContext { context }),
        1 => Just(Step::ReleaseAll),
        4 => (0_u64..8000).prop_map(|ns| Step::Pass { ns }),
        2 => Just(Step::Look),
    ]
}

fn collective(ns: u64) -> Work {
    Work::Collective { duration_ns: ns, sm_ppm: 300_000, name: 1, peers: 2 }
}

struct Run {
    world: World,
    #[expect(dead_code, reason = "the server serves as long as the value lives")]
    server: Host,
    hosts: Vec<Host>,
    contexts: Vec<(usize, ContextId)>,
    streams: Vec<(usize, StreamId)>,
    events: Vec<EventId>,
    tickets: Vec<Ticket>,
    /// Pairs of tickets. The first ticket of a pair must not complete after the second.
    ordered: Vec<(Ticket, Ticket)>,
    gates: Vec<Ticket>,
    /// Number of submitted kernels that spin for a peer.
    collectives: usize,
    /// Whether a destroyed context has taken unfinished work with it.
    lost: bool,
}

impl Run {
    /// Begins a run in which the first `clients` processes are clients of an MPS server.
    fn new(keys: &str, clients: usize) -> Self {
        let world = World::with(keys);
        let server = world.process();
        let number = server.serve().expect("a server");
        let hosts: Vec<Host> = (0..PROCESSES).map(|_| world.process()).collect();
        for (host, limit_ppm) in hosts[..clients].iter().zip([300_000, 900_000, 1_000_000]) {
            host.join(number, limit_ppm).expect("the server lives");
        }
        let events = hosts.iter().map(|host| host.create_event().expect("event")).collect();
        let (contexts, streams, tickets) = (vec![], vec![], vec![]);
        let mut run = Self {
            world,
            server,
            hosts,
            contexts,
            streams,
            events,
            tickets,
            ordered: vec![],
            gates: vec![],
            collectives: 0,
            lost: false,
        };
        run.contexts = (0..CONTEXTS).map(|n| run.new_context(n)).collect();
        run.streams = (0..STREAMS).map(|n| run.new_stream(n)).collect();
        run
    }

    fn new_context(&self, n: usize) -> (usize, ContextId) {
        let host = n % PROCESSES;
        (host, self.hosts[host].create_context(n % GPUS).expect("context"))
    }

    fn new_stream(&self, n: usize) -> (usize, StreamId) {
        let (host, context) = self.contexts[n % CONTEXTS];
        (host, self.hosts[host].create_urgent_stream(context, n as u32 % 2).expect("stream"))
    }

    fn submit(&mut self, stream: usize, work: Work, after: &[Ticket]) -> Ticket {
        let (host, stream) = self.streams[stream];
        let before = self.hosts[host].last_ticket(stream);
        let ticket = self.hosts[host].submit(stream, work, after).expect("submit");
        self.ordered.extend(after.iter().chain([&before]).map(|&earlier| (earlier, ticket)));
        self.tickets.push(ticket);
        ticket
    }

    fn step(&mut self, step: &Step, looks: bool) {
        match *step {
            Step::Kernel { stream, ns, sm_ppm } => {
                self.submit(stream, Work::Kernel { duration_ns: ns, sm_ppm, kernels: 1 }, &[]);
            }
            Step::Collective { stream, ns } => {
                self.collectives += 1;
                self.submit(stream, collective(ns), &[]);
            }
            Step::Copy { stream, bytes } => {
                self.submit(stream, Work::Copy { kind: CopyKind::HostToDevice, bytes }, &[]);
            }
            Step::Marker { stream } => {
                self.submit(stream, Work::Marker, &[]);
            }
            Step::After { stream, other, ns } => {
                let (host, other) = self.streams[other];
                let other = self.hosts[host].last_ticket(other);
                self.submit(stream, Work::Kernel { duration_ns: ns, sm_ppm: 1000, kernels: 1 }, &[other]);
            }
            Step::HostWait { stream } => {
                let gate = self.submit(stream, Work::HostWait, &[]);
                self.gates.push(gate);
            }
            Step::Record { stream } => {
                let (host, stream) = self.streams[stream];
                let before = self.hosts[host].last_ticket(stream);
                let ticket = self.hosts[host].record(stream, self.events[host]).expect("record");
                self.ordered.push((before, ticket));
                self.tickets.push(ticket);
            }
            Step::ReplaceStream { stream } => {
                let (host, old) = self.streams[stream];
                self.hosts[host].destroy_stream(old);
                self.streams[stream] = self.new_stream(stream);
            }
            Step::ReplaceContext { context } => {
                let (host, old) = self.contexts[context];
                self.lost = true;
                self.hosts[host].destroy_context(old);
                self.contexts[context] = self.new_context(context);
                for stream in (0..STREAMS).filter(|stream| stream % CONTEXTS == context) {
                    self.streams[stream] = self.new_stream(stream);
                }
            }
            Step::ReleaseAll => self.gates.drain(..).for_each(|gate| self.hosts[0].release(gate)),
            Step::Pass { ns } => {
                let now_ns = self.world.clock.now_ns();
                self.world.clock.advance_to(now_ns + ns);
            }
            Step::Look if looks => check(&self.world.truth()),
            Step::Look => {}
        }
    }

    /// Runs the host to the end of its work. Returns the completion times of the tickets, then of
    /// the events.
    fn finish(&mut self) -> Vec<u64> {
        self.step(&Step::ReleaseAll, false);
        // A companion process meets every kernel that is left without a peer.
        let companion = self.world.process();
        let stream = companion.create_stream(companion.create_context(0).expect("context")).expect("stream");
        for _ in 0..self.collectives {
            companion.submit(stream, collective(1), &[]).expect("submit");
        }
        for &ticket in &self.tickets {
            self.hosts[0].wait(ticket, WaitPolicy::Auto);
        }
        let events = self.events.iter().map(|&event| match self.hosts[0].event_status(event) {
            EventStatus::NeverRecorded => 0,
            EventStatus::Done { at_ns } => at_ns,
            status => panic!("all work is done, but an event is {status:?}"),
        });
        let tickets = self.tickets.iter().map(|&ticket| self.hosts[0].query(ticket).expect("waited for"));
        tickets.chain(events).collect()
    }
}

/// Checks that the accounts add up.
fn check(truth: &Snapshot) {
    for (index, gpu) in truth.gpus.iter().enumerate() {
        assert_eq!(gpu.busy_ns + gpu.switch_ns + gpu.idle_ns, gpu.elapsed_ns, "GPU {index}");
        let accounts = truth.processes.iter().map(|process| process.gpus[index]);
        let kernels_ns: u64 = accounts.clone().map(|account| account.kernel_busy_ns).sum();
        let is_at_once = truth.processes.iter().filter(|process| process.sm_limit_ppm.is_some()).count() > 1;
        assert!(kernels_ns == gpu.busy_ns || is_at_once && kernels_ns > gpu.busy_ns, "GPU {index}");
        let sm_ns: u64 = accounts.clone().map(|account| account.sm_ns).sum();
        assert!(gpu.sm_ns <= gpu.busy_ns && (sm_ns..sm_ns + 10).contains(&gpu.sm_ns), "GPU {index}");
        for account in accounts {
            assert!(account.busy_ns >= account.kernel_busy_ns.max(account.copy_busy_ns));
            assert!(account.busy_ns <= account.kernel_busy_ns + account.copy_busy_ns);
            assert!(account.sm_ns <= account.kernel_busy_ns);
        }
    }
}

fn config(latency_ns: u64, newcomers_wait: bool) -> String {
    format!("gpus = {GPUS}\nlaunch_latency_ns = {latency_ns}\nnewcomers_wait = {newcomers_wait}")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn accounts_add_up_and_order_is_kept(steps in prop::collection::vec(step(), 1..120), latency_ns in 0_u64..50, newcomers_wait in any::<bool>(), clients in 0..=PROCESSES) {
        let mut run = Run::new(&config(latency_ns, newcomers_wait), clients);
        for step in &steps {
            run.step(step, true);
        }
        run.finish();
        for &(earlier, later) in &run.ordered {
            let [earlier, later] = [earlier, later].map(|ticket| run.hosts[0].query(ticket).expect("all are complete"));
            // 0 means that the item is complete, and that the engine forgot the time with the
            // stream.
            prop_assert!(earlier <= later || later == 0);
            prop_assert!(later == 0 || (START_NS..=run.world.clock.now_ns()).contains(&later));
        }
        let truth = run.world.truth();
        check(&truth);
        let kernels = steps.iter().filter(|step| matches!(step, Step::Kernel { .. } | Step::Collective { .. } | Step::After { .. })).count() as u64;
        let ran = truth.processes.iter().skip(1).take(PROCESSES).flat_map(|p| &p.gpus).map(|gpu| gpu.kernels).sum::<u64>();
        prop_assert!(ran == kernels || run.lost && ran < kernels);
        prop_assert!(run.contexts.iter().all(|&(host, context)| run.hosts[host].context_is_idle(context)));
    }

    #[test]
    fn looking_changes_nothing(steps in prop::collection::vec(step(), 1..80), newcomers_wait in any::<bool>(), clients in 0..=PROCESSES) {
        let times = [true, false].map(|looks| {
            let mut run = Run::new(&config(3, newcomers_wait), clients);
            steps.iter().for_each(|step| run.step(step, looks));
            run.finish()
        });
        prop_assert_eq!(&times[0], &times[1]);
    }
}
