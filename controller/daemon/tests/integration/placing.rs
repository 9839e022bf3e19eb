//! The choice of GPUs for jobs that ask for a number of GPUs.

use deepres_abi::class::Class;
use deepres_abi::wire::{Hello, RefusalKind, Role, UNMANAGED};
use deepres_daemon::Gpu;
use deepres_daemon_harness::{Daemon, Refused, Tenant, new_gpu, shake_hands, wait_until};
use deepres_model::config::Config;
use deepres_model::wish::Wish;
use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::time::Duration;
use zerocopy::IntoBytes;

const PERCENT: u32 = 10_000;

/// Keeps a tenant that asks for this number of GPUs, and for this share of each, percent. 0 asks
/// for no share. Returns the connection and the chosen GPUs. `before` has the GPUs that an earlier
/// daemon chose.
fn keep(
    daemon: &Daemon,
    tenant: &str,
    gpus: u32,
    percent: u32,
    before: Option<&[usize]>,
) -> Result<(OwnedFd, Vec<usize>), Refused> {
    let all: Vec<usize> = (0..daemon.gpus.len()).collect();
    let mut hello = hello(daemon, tenant, gpus, percent);
    hello.sessions_before = u32::from(before.is_some());
    say_hello(daemon, hello, before.unwrap_or(&all))
}

/// Asks as a tenant that waits for GPUs among these.
fn wait(
    daemon: &Daemon,
    tenant: &str,
    gpus: u32,
    percent: u32,
    among: &[usize],
) -> Result<(OwnedFd, Vec<usize>), Refused> {
    let mut hello = hello(daemon, tenant, gpus, percent);
    hello.waits = 1;
    say_hello(daemon, hello, among)
}

fn hello(daemon: &Daemon, tenant: &str, gpus: u32, percent: u32) -> Hello {
    let share_ppm = (percent > 0).then_some(percent * PERCENT);
    let mut hello = daemon.hello(Role::Keeper, tenant);
    hello.wants_gpus = gpus;
    hello.wishes = Wish { share_ppm, ..Wish::default() }.encode();
    hello
}

/// Sends a hello with the GPUs of these numbers. Returns the connection and the chosen GPUs.
fn say_hello(daemon: &Daemon, mut hello: Hello, among: &[usize]) -> Result<(OwnedFd, Vec<usize>), Refused> {
    hello.gpu_count = among.len() as u32;
    for (place, number) in among.iter().enumerate() {
        hello.gpu_uuids[place] = daemon.gpus[*number].uuid;
    }
    let (connection, welcome, _) = shake_hands(&daemon.directory.tenant_socket(), hello.as_bytes())?;
    let chosen = among.iter().zip(welcome.gpu_index).filter(|(_, index)| *index != UNMANAGED);
    Ok((connection, chosen.map(|(number, _)| *number).collect()))
}

fn kept(daemon: &Daemon, tenant: &str, gpus: u32, percent: u32) -> (OwnedFd, Vec<usize>) {
    keep(daemon, tenant, gpus, percent, None).unwrap()
}

#[test]
fn a_gpu_with_a_fault_gets_no_job_until_the_fault_is_gone() {
    let daemon = Daemon::start(2, Config::default());
    let uuid = &daemon.gpus[0].uuid_text;
    daemon.faults.set(uuid, Some("Xid 79"));
    let (_first, gpus) = kept(&daemon, "first", 1, 30);
    assert_eq!(gpus, [1]);
    assert!(keep(&daemon, "gang", 2, 30, None).unwrap_err().1.contains("1 of 2 have room"));
    assert_eq!(daemon.status().gpus[0].fault.as_deref(), Some("Xid 79"));
    daemon.faults.set(uuid, None);
    let (_gang, gpus) = kept(&daemon, "gang", 2, 30);
    assert_eq!(gpus, [0, 1]);
}

#[test]
fn a_gpu_that_is_lost_at_the_daemons_start_keeps_its_number_and_gets_no_job() {
    let daemon = Daemon::start_on(vec![new_gpu(), Gpu::lost(1), new_gpu()], Config::default());
    let status = daemon.status();
    let ill: Vec<_> = status.gpus.iter().map(|gpu| (gpu.index, gpu.fault.is_some())).collect();
    assert_eq!(ill, [(0, false), (1, true), (2, false)]);
    assert_eq!(kept(&daemon, "gang", 2, 30).1, [0, 2]);
    assert!(keep(&daemon, "large", 3, 30, None).unwrap_err().1.contains("2 of 3 have room"));
}

#[test]
fn jobs_are_placed_by_what_is_promised_on_each_gpu() {
    let daemon = Daemon::start(4, Config::default());
    let (_single, gpus) = kept(&daemon, "single", 1, 60);
    assert_eq!(gpus, [0]);
    let (_gang, gpus) = kept(&daemon, "gang", 2, 50);
    assert_eq!(gpus, [1, 2], "the others have no room");
    let (small, gpus) = kept(&daemon, "small", 1, 40);
    assert_eq!(gpus, [0], "where it fits best");
    let (_second, gpus) = kept(&daemon, "second", 2, 50);
    assert_eq!(gpus, [1, 2], "whole GPUs stay whole");
    let (kind, reason) = keep(&daemon, "late", 2, 30, None).unwrap_err();
    assert_eq!(kind, RefusalKind::NoRoom as u32);
    assert_eq!(
        reason,
        "the job asks for 2 GPUs: 1 of 4 have room, and what is free on the others is too little on each; \
         ask for less"
    );
    assert!(daemon.status().tenants.iter().all(|tenant| tenant.name != "late"));
    drop(small);
    wait_until(Duration::from_secs(5), || keep(&daemon, "late", 2, 30, None).is_ok());
    let status = daemon.status();
    let gang = status.tenants.iter().find(|tenant| tenant.name == "gang").unwrap();
    let placement = gang.placement.as_ref().unwrap();
    assert_eq!(placement.gpus, [1, 2]);
    assert!(placement.why.starts_with("GPUs with room: 3; "), "{}", placement.why);
}

#[test]
fn a_job_without_a_share_goes_where_most_is_left() {
    let daemon = Daemon::start(3, Config::default());
    let (_owner, gpus) = kept(&daemon, "owner", 1, 70);
    assert_eq!(gpus, [0]);
    let (_first, gpus) = kept(&daemon, "first", 1, 0);
    let (_second, other) = kept(&daemon, "second", 1, 0);
    assert_eq!((gpus, other), (vec![1], vec![2]));
    let (_all, gpus) = kept(&daemon, "all", 3, 0);
    assert_eq!(gpus, [0, 1, 2], "it fits everywhere");
}

#[test]
fn promises_of_jobs_that_chose_their_gpus_themselves_count() {
    let daemon = Daemon::start(2, Config::default());
    let mut hello = daemon.hello(Role::Session, "session");
    hello.gpu_count = 1;
    hello.wishes = Wish { share_ppm: Some(80 * PERCENT), ..Wish::default() }.encode();
    let _session = Tenant::connect(&daemon.directory.tenant_socket(), &hello).unwrap();
    assert_eq!(kept(&daemon, "other", 1, 50).1, [1]);
}

#[test]
fn runs_of_one_tenant_get_the_same_gpus() {
    let daemon = Daemon::start(3, Config::default());
    let (_first, gpus) = kept(&daemon, "sweep", 2, 50);
    assert_eq!(gpus, [0, 1]);
    assert_eq!(kept(&daemon, "sweep", 2, 50).1, [0, 1]);
    let (kind, reason) = keep(&daemon, "sweep", 1, 50, None).unwrap_err();
    assert_eq!(kind, RefusalKind::Request as u32);
    assert!(reason.starts_with("the tenant `sweep` runs already on the GPUs 0, 1"), "{reason}");
}

#[test]
fn the_next_daemon_keeps_the_chosen_gpus() {
    let daemon = Daemon::start(3, Config::default());
    let (gone, gpus) = kept(&daemon, "filler", 1, 100);
    assert_eq!(gpus, [0]);
    let (kept_before, gpus) = kept(&daemon, "job", 2, 60);
    assert_eq!(gpus, [1, 2]);
    drop(gone);
    // The next daemon would wait for a job whose end this daemon had not seen.
    let is_gone = || daemon.status().tenants.iter().all(|tenant| tenant.name != "filler");
    wait_until(Duration::from_secs(5), is_gone);
    let daemon = daemon.restart();
    drop(kept_before);
    let (_job, gpus) = keep(&daemon, "job", 2, 60, Some(&[1, 2])).unwrap();
    assert_eq!(gpus, [1, 2]);
    assert_eq!(kept(&daemon, "new", 1, 60).1, [0]);
}

#[test]
fn the_next_daemon_knows_the_chosen_gpus_of_a_job_that_is_not_back_yet() {
    let daemon = Daemon::start(2, Config::default());
    let (_job, gpus) = kept(&daemon, "job", 1, 60);
    assert_eq!(gpus, [0]);
    // The job has no session, and its keeper does not come back in this test.
    let daemon = daemon.restart();
    let status = daemon.status();
    let job = status.tenants.iter().find(|tenant| tenant.name == "job").unwrap();
    assert_eq!(job.placement.as_ref().unwrap().gpus, [0]);
    assert_eq!(kept(&daemon, "new", 1, 60).1, [1]);
}

#[test]
fn jobs_that_wait_for_gpus_get_them_in_the_order_in_which_they_came() {
    let daemon = Daemon::start(3, Config::default());
    let (filler, gpus) = kept(&daemon, "filler", 1, 60);
    assert_eq!(gpus, [0]);
    let large = || wait(&daemon, "large", 2, 50, &[0, 1]);
    let small = || wait(&daemon, "small", 1, 30, &[0, 1]);
    let (kind, reason) = large().unwrap_err();
    assert!(kind == RefusalKind::NoRoom as u32 && reason.contains("have room"), "{reason}");
    // There is room for these jobs, and the large job came before.
    for refused in [small(), keep(&daemon, "hasty", 1, 30, None)] {
        let (kind, reason) = refused.map(drop).unwrap_err();
        assert!(kind == RefusalKind::NoRoom as u32 && reason.contains("other jobs came before"), "{reason}");
    }
    assert_eq!(wait(&daemon, "apart", 1, 30, &[2]).unwrap().1, [2], "the large job does not want this GPU");
    // No end of another job would help this job, so nobody waits for it.
    assert!(wait(&daemon, "impossible", 2, 50, &[2]).is_err());
    let waiting = || daemon.status().waiting;
    let told: Vec<_> = waiting().into_iter().map(|job| (job.tenant, job.gpus, job.memory_bytes)).collect();
    assert_eq!(told, [("large".to_owned(), Some(2), 0), ("small".to_owned(), Some(1), 0)]);
    drop(filler);
    let placed = RefCell::new(None);
    wait_until(Duration::from_secs(5), || {
        assert!(small().is_err(), "the large job came before");
        *placed.borrow_mut() = large().ok();
        placed.borrow().is_some()
    });
    let (_large, gpus) = placed.take().unwrap();
    assert_eq!(gpus, [0, 1]);
    small().unwrap();
    assert!(waiting().is_empty());
}

#[test]
fn a_guaranteed_job_that_has_not_begun_counts_on_its_own_gpus_alone() {
    let daemon = Daemon::start(2, Config::default());
    let guaranteed = |tenant: &str| {
        let mut hello = daemon.hello(Role::Keeper, tenant);
        hello.wants_gpus = 1;
        let wish = Wish { share_ppm: Some(60 * PERCENT), class: Some(Class::Guaranteed), ..Wish::default() };
        hello.wishes = wish.encode();
        let (connection, welcome, _) =
            shake_hands(&daemon.directory.tenant_socket(), hello.as_bytes()).unwrap();
        (connection, welcome.gpu_index.iter().position(|index| *index != UNMANAGED))
    };
    let (_first, first) = guaranteed("first");
    let (_second, second) = guaranteed("second");
    assert_eq!((first, second), (Some(0), Some(1)));
}
