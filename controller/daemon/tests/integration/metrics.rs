//! Metrics over a real socket: a restart, and clients that say nothing.

use deepres_daemon_harness::{Daemon, MS, wait_until};
use deepres_model::admin::{Reply, Request};
use deepres_model::config::Config;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(5);
const LAUNCHES: u64 = 20;
/// A number of silent clients that is greater than the number of connections at a time.
const SILENT: usize = 20;

/// Returns an address that nothing uses.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn scrape(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: deepres\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn launches(daemon: &Daemon) -> u64 {
    daemon.status().tenants[0].gpus[0].kernel_launches
}

#[test]
fn no_counter_falls_over_a_restart_and_silent_clients_hold_up_nobody() {
    let address = free_address();
    let daemon = Daemon::start(1, Config { metrics: Some(address), ..Config::default() });
    let _silent: Vec<TcpStream> = (0..SILENT).map(|_| TcpStream::connect(address).unwrap()).collect();
    let session = daemon.join("a", 0, 0);
    session.slot().in_flight.store(1, Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(50));
    session.slot().compute_ns.fetch_add(20 * MS, Ordering::SeqCst);
    session.slot().kernel_launches.fetch_add(LAUNCHES, Ordering::SeqCst);
    session.slot().in_flight.store(0, Ordering::SeqCst);
    wait_until(PATIENCE, || launches(&daemon) == LAUNCHES);
    // The pause makes the daemon save, and the metrics show what is saved.
    let paused = daemon.client().ask(&Request::Pause { tenant: "a".to_owned() }).unwrap();
    assert!(matches!(paused, Reply::Paused));
    let uuid = &daemon.gpus[0].uuid_text;
    let line = format!(
        "deepres_tenant_kernel_launches_total{{tenant=\"a\",gpu=\"0\",UUID=\"{uuid}\"}} {LAUNCHES}.0"
    );
    let before = scrape(address);
    assert!(before.starts_with("HTTP/1.1 200") && before.lines().any(|found| found == line), "{before}");

    let _daemon = daemon.restart();
    let after = scrape(address);
    assert!(after.lines().any(|found| found == line), "{after}");
}
