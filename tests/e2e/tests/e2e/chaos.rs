//! Kills, stops and restarts tenants and the daemon at random. Afterwards no trace of dead
//! processes is left, and shares are right.

use deepres_e2e::prelude::*;
use deepres_e2e::random::Random;

/// Tenants and their shares, percent.
const TENANTS: [(&str, f64); 3] = [("a", 50.0), ("b", 30.0), ("c", 20.0)];
/// Number of processes of each tenant.
const PROCESSES: usize = 2;
/// Memory that each process holds.
const HELD_BYTES: u64 = 64 << 20;
/// Time after which shares are right again.
const RIGHT_WITHIN: Duration = Duration::from_secs(1);
/// Greatest allowed difference from a tenant's share, percentage points. A measurement of
/// [`MEASURED`] has only some hundred turns.
const ALLOWED_POINTS: f64 = 4.0;
const MEASURED: Duration = Duration::from_secs(3);
/// Time within which tenants find a new daemon on a busy machine. Within the same time the memory
/// of dead processes is free.
const SETTLES_WITHIN: Duration = Duration::from_secs(5);

struct Client {
    tenant: usize,
    process: Process,
    stopped_until: Option<Instant>,
}

impl Client {
    fn start(host: &Host, tenant: usize) -> Self {
        let (name, percent) = TENANTS[tenant];
        let mut command = host.preloaded(c_client("backlog"));
        command
            .args(["--kernel", "busy_1000us", "--progress", "--hold", &HELD_BYTES.to_string()])
            .env("DEEPRES_TENANT", name)
            .env("DEEPRES_SHARE", format!("{percent}%"));
        Self { tenant, process: host.spawn(command), stopped_until: None }
    }

    fn go_on(&mut self) {
        self.process.signal(Signal::CONT);
        self.stopped_until = None;
    }
}

/// Kills, stops and restarts tenants and the daemon at random for this long.
fn reign(host: &Host, daemon: &mut Process, clients: &mut [Client], random: &mut Random, lasts: Duration) {
    let ends = Instant::now() + lasts;
    while Instant::now() < ends {
        thread::sleep(random.millis(200));
        for client in clients.iter_mut() {
            if client.stopped_until.is_some_and(|until| Instant::now() >= until) {
                client.go_on();
            }
        }
        let victim = random.below(clients.len() as u64) as usize;
        let client = &mut clients[victim];
        match random.below(10) {
            0..=3 => {
                client.process.kill();
                *client = Client::start(host, client.tenant);
            }
            4..=7 if client.stopped_until.is_none() => {
                host.stop(client.process.pid());
                client.stopped_until = Some(Instant::now() + random.millis(800));
            }
            8 => {
                host.stop(daemon.pid());
                thread::sleep(random.millis(600));
                daemon.signal(Signal::CONT);
            }
            9 => {
                daemon.kill();
                thread::sleep(random.millis(400));
                *daemon = host.daemon();
            }
            _ => {}
        }
    }
    clients.iter_mut().filter(|client| client.stopped_until.is_some()).for_each(Client::go_on);
}

fn survive(lasts: Duration) {
    let (host, mut daemon) = Host::measuring().lasting(lasts).light_contexts().with_daemon();
    let mut clients: Vec<Client> =
        (0..TENANTS.len() * PROCESSES).map(|number| Client::start(&host, number % TENANTS.len())).collect();
    let mut random = Random::new();
    reign(&host, &mut daemon, &mut clients, &mut random, lasts);
    assert!(daemon.try_wait().is_none(), "the daemon ended:\n{}", daemon.stderr());

    // Now all tenants are connected, and the accounts hold no memory of dead processes.
    let held_bytes = HELD_BYTES * PROCESSES as u64;
    host.await_ps_within(
        |ps| {
            TENANTS.iter().all(|(name, _)| {
                ps.find(name).is_some_and(|tenant| {
                    tenant.sessions.len() == PROCESSES && tenant.memory_bytes == held_bytes
                })
            })
        },
        SETTLES_WITHIN,
    );
    thread::sleep(RIGHT_WITHIN);
    let before: Vec<u64> = clients.iter().map(|client| client.process.last_number()).collect();
    let window = Window::measure(&host, MEASURED);
    for (name, percent) in TENANTS {
        let had = window.true_percent(name);
        println!("{name} is owed {percent} % and had {had:.1} %");
        assert!((had - percent).abs() <= ALLOWED_POINTS, "{name} had {had:.1} % and is owed {percent} %");
    }
    for (client, before) in clients.iter_mut().zip(before) {
        let (name, _) = TENANTS[client.tenant];
        assert!(
            client.process.try_wait().is_none(),
            "a process of {name} ended: {}",
            client.process.stderr()
        );
        assert!(client.process.last_number() > before, "a process of {name} is stuck");
    }

    drop(clients);
    host.await_ps_within(
        |ps| ps.tenants.iter().all(|tenant| tenant.memory_bytes == 0 && tenant.sessions.is_empty()),
        SETTLES_WITHIN,
    );
    assert_eq!(host.truth().gpus[0].memory_used_bytes, 0, "the GPU's memory is free");
}

/// Tests that measure. Each test runs alone on the machine.
mod measured {
    use super::*;

    #[test]
    fn nothing_is_left_of_some_seconds_of_chaos() {
        survive(Duration::from_secs(6));
    }

    #[test]
    #[ignore = "deep: takes five minutes"]
    fn nothing_is_left_of_five_minutes_of_chaos() {
        survive(Duration::from_secs(300));
    }
}
