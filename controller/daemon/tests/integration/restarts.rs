//! Restarts: one daemon after another in the same place. Accounts go on. The new daemon believes
//! reports about the time between within bounds.

use deepres_abi::grant::GateState;
use deepres_abi::wire::Role;
use deepres_daemon_harness::{Daemon, MS, Tenant, wait_until};
use deepres_model::admin::{AccountStatus, Reply, Request, TenantStatus};
use deepres_model::authority::Wish;
use deepres_model::config::{Config, FailModeKey};
use deepres_model::directory::Directory;
use std::sync::atomic::Ordering;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(5);
/// Time for several looks. While the arbiter waits for a session's counters, it reads the meters
/// every 50 ms.
const LOOKS: Duration = Duration::from_millis(300);

fn daemon() -> Daemon {
    Daemon::start(1, Config::default())
}

fn tenant(daemon: &Daemon, name: &str) -> TenantStatus {
    daemon.status().tenants.into_iter().find(|tenant| tenant.name == name).expect("the tenant is there")
}

fn account(daemon: &Daemon, name: &str) -> AccountStatus {
    tenant(daemon, name).gpus.remove(0)
}

/// Lets the session run for a while, and report `used_ns` of this time as GPU time.
fn work(session: &Tenant, used_ns: u64) {
    session.slot().in_flight.store(1, Ordering::SeqCst);
    std::thread::sleep(Duration::from_nanos(used_ns) + Duration::from_millis(100));
    session.slot().compute_ns.fetch_add(used_ns, Ordering::SeqCst);
    session.slot().kernel_launches.fetch_add(used_ns / MS, Ordering::SeqCst);
    session.slot().in_flight.store(0, Ordering::SeqCst);
}

/// Connects as a process that had a session before. The process has not carried its counters over
/// yet.
fn return_to(daemon: &Daemon, name: &str) -> Tenant {
    let mut hello = daemon.hello(Role::Session, name);
    hello.sessions_before = 1;
    Tenant::connect(&daemon.directory.tenant_socket(), &hello).unwrap()
}

fn bring(session: &Tenant, compute_ns: u64, launches: u64) {
    session.slot().compute_ns.fetch_add(compute_ns, Ordering::SeqCst);
    session.slot().kernel_launches.fetch_add(launches, Ordering::SeqCst);
    session.meter.set_carried();
}

fn set_share(daemon: &Daemon, name: &str, share_ppm: u32) {
    let request = Request::set(name, Wish { share_ppm: Some(share_ppm), ..Wish::default() });
    assert!(matches!(daemon.client().ask(&request).unwrap(), Reply::Set { .. }));
}

#[test]
fn accounts_and_settings_go_on_and_the_time_between_is_charged_once() {
    let daemon = daemon();
    let session = daemon.join("a", 400_000, 0);
    let _other = daemon.join("b", 0, 0);
    work(&session, 20 * MS);
    wait_until(PATIENCE, || account(&daemon, "a").gpu_ns == 20 * MS);
    set_share(&daemon, "a", 900_000);

    let daemon = daemon.restart();
    let before = account(&daemon, "a");
    assert_eq!((before.gpu_ns, before.kernel_launches), (20 * MS, 20));
    assert_eq!(tenant(&daemon, "a").asked_share_ppm, Some(900_000));

    // The process used 30 ms more before it found the new daemon.
    std::thread::sleep(Duration::from_millis(50));
    let session = return_to(&daemon, "a");
    let _other = return_to(&daemon, "b");
    std::thread::sleep(LOOKS);
    assert_eq!(account(&daemon, "a").gpu_ns, 20 * MS, "nothing is believed before all is there");
    bring(&session, 50 * MS, 50);
    wait_until(PATIENCE, || account(&daemon, "a").gpu_ns == 50 * MS);
    let after = account(&daemon, "a");
    assert_eq!((after.kernel_launches, after.entitled_ppm), (50, Some(900_000)));
    assert!(after.recent_share_ppm < 10_000, "use without a daemon is no burst: {after:?}");

    work(&session, 10 * MS);
    wait_until(PATIENCE, || account(&daemon, "a").gpu_ns == 60 * MS);
    assert_eq!(account(&daemon, "a").kernel_launches, 60);
}

#[test]
fn a_session_that_begins_at_zero_adds_to_the_account() {
    let daemon = daemon();
    let session = daemon.join("a", 0, 0);
    work(&session, 20 * MS);
    wait_until(PATIENCE, || account(&daemon, "a").gpu_ns == 20 * MS);
    let daemon = daemon.restart();
    let session = daemon.join("a", 0, 0);
    work(&session, 10 * MS);
    wait_until(PATIENCE, || account(&daemon, "a").gpu_ns == 30 * MS);
}

#[test]
fn a_tenant_that_came_after_the_last_write_is_charged_from_its_beginning() {
    let daemon = daemon();
    // The state is as if the daemon had been killed before it saved again.
    let path = daemon.directory.state_file();
    let early = std::fs::read(&path).unwrap();
    let session = daemon.join("late", 0, 0);
    work(&session, 20 * MS);
    let daemon = daemon.restart_after(|_| std::fs::write(&path, &early).unwrap());
    assert!(daemon.status().tenants.is_empty());
    let session = return_to(&daemon, "late");
    bring(&session, 25 * MS, 25);
    wait_until(PATIENCE, || account(&daemon, "late").gpu_ns == 25 * MS);
    assert_eq!(account(&daemon, "late").kernel_launches, 25);
}

#[test]
fn use_reported_for_the_time_between_is_bounded_by_that_time() {
    let daemon = daemon();
    let _session = daemon.join("a", 0, 0);
    let daemon = daemon.restart();
    let began_ns = deepres_model::clock::monotonic_ns();
    let session = return_to(&daemon, "a");
    bring(&session, u64::MAX / 2, u64::MAX);
    std::thread::sleep(LOOKS);
    let gpu_ns = account(&daemon, "a").gpu_ns;
    // The limit is the time of the whole test. The margin is for the time before `began_ns`.
    assert!(gpu_ns <= deepres_model::clock::monotonic_ns() - began_ns + 3_000 * MS, "{gpu_ns}");
    assert!(account(&daemon, "a").total_share_ppm <= 1_000_000);
}

#[test]
fn a_process_that_never_brings_its_counters_is_metered_from_then_on() {
    let daemon = daemon();
    let _session = daemon.join("a", 0, 0);
    let daemon = daemon.restart();
    let session = return_to(&daemon, "a");
    work(&session, 1_200 * MS);
    wait_until(PATIENCE, || account(&daemon, "a").gpu_ns > 0);
}

#[test]
fn a_process_that_comes_back_to_the_same_daemon_is_charged_once() {
    let daemon = daemon();
    let session = daemon.join("a", 0, 0);
    work(&session, 20 * MS);
    wait_until(PATIENCE, || account(&daemon, "a").gpu_ns == 20 * MS);
    drop(session);
    wait_until(PATIENCE, || tenant(&daemon, "a").sessions.is_empty());
    let session = return_to(&daemon, "a");
    bring(&session, 25 * MS, 25);
    std::thread::sleep(LOOKS);
    assert_eq!(account(&daemon, "a").gpu_ns, 25 * MS);
    // A daemon that comes after a daemon which the process never met does the same.
    drop(session);
    wait_until(PATIENCE, || tenant(&daemon, "a").sessions.is_empty());
    let daemon = daemon.restart().restart();
    let session = return_to(&daemon, "a");
    // The arbiter believes no more than the time that passed.
    std::thread::sleep(LOOKS);
    bring(&session, 30 * MS, 30);
    wait_until(PATIENCE, || account(&daemon, "a").gpu_ns == 30 * MS);
}

#[test]
fn a_tenant_that_was_left_before_is_forgotten_after_its_time() {
    let daemon = Daemon::start(1, Config { tenant_linger_s: 1, ..Config::default() });
    drop(daemon.join("a", 0, 0));
    wait_until(PATIENCE, || tenant(&daemon, "a").sessions.is_empty());
    let daemon = daemon.restart();
    assert_eq!(daemon.status().tenants.len(), 1);
    wait_until(PATIENCE, || daemon.status().tenants.is_empty());
}

#[test]
fn a_state_that_cannot_be_believed_is_set_aside_and_nobody_is_turned_away() {
    let daemon = daemon();
    let session = daemon.join("a", 0, 0);
    work(&session, 20 * MS);
    let daemon = daemon.restart_after(|directory: &Directory| {
        std::fs::write(directory.state_file(), b"{\"deepres_state\":{\"major\":9}}").unwrap();
    });
    assert!(daemon.directory.path().join("state.json.refused").exists());
    let session = return_to(&daemon, "a");
    bring(&session, 99 * MS, 99);
    std::thread::sleep(LOOKS);
    assert_eq!(account(&daemon, "a").gpu_ns, 0, "earlier use is unknown");
    work(&session, 10 * MS);
    wait_until(PATIENCE, || account(&daemon, "a").gpu_ns == 10 * MS);
}

#[test]
fn gates_are_left_as_the_configuration_says_for_the_time_without_a_daemon() {
    for (fail_mode, state) in [(FailModeKey::Open, GateState::Open), (FailModeKey::Closed, GateState::Closed)]
    {
        let daemon = Daemon::start(1, Config { fail_mode, ..Config::default() });
        let (a, b) = (daemon.join("a", 0, 0), daemon.join("b", 0, 0));
        drop(daemon);
        assert_eq!((a.gate().gate().state, b.gate().gate().state), (state, state));
    }
}

#[test]
fn facts_about_a_job_go_on_and_its_deadline_comes_nearer_meanwhile() {
    let daemon = daemon();
    let mut hello = daemon.hello(Role::Session, "a");
    let wish = Wish {
        deadline_ns: Some(60_000 * MS),
        size_ns: Some(7 * MS),
        slo_ns: Some(30 * MS),
        ..Wish::default()
    };
    hello.wishes = wish.encode();
    let _session = Tenant::connect(&daemon.directory.tenant_socket(), &hello).unwrap();
    let wish = Wish { criticality: "high".parse().ok(), ..Wish::default() };
    daemon.client().ask(&Request::set("a", wish)).unwrap();
    let granted = |daemon: &Daemon| tenant(daemon, "a").granted.unwrap();
    let before = granted(&daemon);
    assert_eq!((before.deadline_ns.value, before.slo_ns.value), (Some(60_000 * MS), Some(30 * MS)));

    let daemon = daemon.restart();
    assert_eq!(granted(&daemon), before);
    let _session = return_to(&daemon, "a");
    wait_until(PATIENCE, || {
        let Reply::Explained { gpus } =
            daemon.client().ask(&Request::Explain { tenant: "a".into() }).unwrap()
        else {
            return false;
        };
        gpus.iter().any(|share| {
            let left_ns = share.priority.deadline_in_ns.unwrap();
            left_ns < 60_000 * MS && left_ns > 0 && share.priority.criticality.value == 0.75
        })
    });
}
