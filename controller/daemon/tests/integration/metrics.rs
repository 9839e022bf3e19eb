//! Metrics over a real socket: a restart, clients that say nothing, and DNS rebinding.

use deepres_daemon_harness::{Daemon, MS, wait_until};
use deepres_model::admin::{Reply, Request};
use deepres_model::config::{Config, WebAddress};
use deepres_model::wish::Wish;
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
    scrape_as(address, &address.to_string())
}

/// Returns the answer to a scrape that names the server `host`.
fn scrape_as(address: SocketAddr, host: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn launches(daemon: &Daemon) -> u64 {
    daemon.status().tenants[0].gpus[0].kernel_launches
}

fn ended_requests(daemon: &Daemon) -> u64 {
    daemon.status().tenants[0].gpus[0].requests.as_ref().map_or(0, |requests| requests.ended)
}

#[test]
fn no_counter_falls_over_a_restart_and_silent_clients_hold_up_nobody() {
    let address = free_address();
    let daemon = Daemon::start(1, Config { metrics: Some(address), ..Config::default() });
    let _silent: Vec<TcpStream> = (0..SILENT).map(|_| TcpStream::connect(address).unwrap()).collect();
    let session = daemon.join("a", 0, 0);
    let slo = Wish { slo_ns: Some(1_000 * MS), ..Wish::default() };
    assert!(matches!(daemon.client().ask(&Request::set("a", slo)).unwrap(), Reply::Set(_)));
    session.slot().in_flight.store(1, Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(50));
    session.slot().compute_ns.fetch_add(20 * MS, Ordering::SeqCst);
    session.slot().kernel_launches.fetch_add(LAUNCHES, Ordering::SeqCst);
    session.meter.ends(0).unwrap().fetch_add(1, Ordering::SeqCst);
    session.slot().in_flight.store(0, Ordering::SeqCst);
    wait_until(PATIENCE, || launches(&daemon) == LAUNCHES && ended_requests(&daemon) == 1);
    // The pause makes the daemon save, and the metrics show what is saved.
    let paused = daemon.client().ask(&Request::Pause { tenant: "a".to_owned() }).unwrap();
    assert!(matches!(paused, Reply::Paused));
    let uuid = &daemon.gpus[0].uuid_text;
    let line = format!(
        "deepres_tenant_kernel_launches_total{{tenant=\"a\",gpu=\"0\",UUID=\"{uuid}\"}} {LAUNCHES}.0"
    );
    let requests = format!("deepres_request_in_time_total{{tenant=\"a\",gpu=\"0\",UUID=\"{uuid}\"}} 1.0");
    let has_both =
        |page: &str| [&line, &requests].iter().all(|line| page.lines().any(|found| found == *line));
    let before = scrape(address);
    assert!(before.starts_with("HTTP/1.1 200") && has_both(&before), "{before}");

    let _daemon = daemon.restart();
    let after = scrape(address);
    assert!(has_both(&after), "{after}");
}

#[test]
fn a_web_page_whose_name_leads_to_this_machine_reads_no_metrics() {
    let address = free_address();
    let _daemon = Daemon::start(1, Config { metrics: Some(address), ..Config::default() });
    wait_until(PATIENCE, || scrape(address).starts_with("HTTP/1.1 200"));
    let answer = scrape_as(address, &format!("evil.example:{}", address.port()));
    assert!(answer.starts_with("HTTP/1.1 421") && !answer.contains("deepres_"), "{answer}");
}

/// Returns the answer to a request to the page's server.
fn ask(address: SocketAddr, head: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "{head}\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_page_follows_the_status_and_changes_a_tenant_with_the_token() {
    let address = free_address();
    let web = Some(WebAddress::Tcp(address));
    let daemon = Daemon::start(1, Config { web, ..Config::default() });
    let _session = daemon.join("a", 0, 0);
    wait_until(PATIENCE, || daemon.status().tenants.len() == 1);
    let mut events = TcpStream::connect(address).unwrap();
    events.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(events, "GET /events HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut shown = String::new();
    let mut follow = |until: &str| {
        let mut bytes = [0; 4096];
        while !shown.contains(until) {
            let read = events.read(&mut bytes).unwrap();
            assert!(read > 0, "the server ended the events: {shown}");
            shown.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    };
    follow("event: history");
    follow("\"name\":\"a\"");
    let explain = "GET /explain?tenant=a HTTP/1.1";
    assert!(ask(address, explain, "").starts_with("HTTP/1.1 401"));
    let pause = r#"{"op":"pause","tenant":"a"}"#;
    let head = "POST /change HTTP/1.1\r\nContent-Type: application/json";
    assert!(ask(address, head, pause).starts_with("HTTP/1.1 401"));
    let token = std::fs::read_to_string(daemon.directory.web_token_file()).unwrap();
    let authorised = |head: &str| format!("{head}\r\nAuthorization: Bearer {}", token.trim());
    assert!(ask(address, &authorised(explain), "").contains("\"reply\":\"explained\""));
    let head = authorised(head);
    assert!(ask(address, &head, pause).ends_with("{\"reply\":\"paused\"}"));
    assert!(daemon.status().tenants[0].paused);
    follow("\"paused\":true");
}
