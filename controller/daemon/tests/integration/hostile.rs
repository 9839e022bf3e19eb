//! Hostile clients on both sockets. The daemon goes on, the other tenants see no change, and no
//! client gets more than its part.

use deepres_abi::meter::MeterPage;
use deepres_abi::wire::{RefusalKind, Role};
use deepres_abi::wish::{WISHES_BYTES, Wish};
use deepres_daemon_harness::{Daemon, Tenant, hello, shake_hands, wait_until};
use deepres_e2e::users::as_user;
use deepres_model::admin::client::{Client, ClientError};
use deepres_model::admin::{Status, TenantStatus};
use deepres_model::authority::Rule;
use deepres_model::config::{CapOf, Caps, Config};
use deepres_model::packet;
use deepres_policy::class::Class;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rustix::fs::{FallocateFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals, fstat, open};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mprotect};
use std::fs::{File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// The limit for waits without a limit of their own.
const PATIENCE: Duration = Duration::from_secs(5);
/// Users and a group that own nothing.
const MALLORY: u32 = 47_110;
const ALICE: u32 = 47_111;
const ADMINISTRATORS: u32 = 47_112;
/// The most descriptors in one packet (SCM_MAX_FD).
const MAX_SENT: usize = 253;

/// Starts a daemon to which every user can connect.
fn open_to_all(config: Config) -> Daemon {
    let daemon = Daemon::start(1, config);
    let scratch = daemon.directory.path().parent().unwrap();
    std::fs::set_permissions(scratch, Permissions::from_mode(0o755)).unwrap();
    daemon
}

fn tenant<'s>(status: &'s Status, name: &str) -> &'s TenantStatus {
    status
        .tenants
        .iter()
        .find(|tenant| tenant.name == name)
        .unwrap_or_else(|| panic!("no {name}: {status:?}"))
}

/// Checks that the daemon works as before: it admits a new tenant with its memory, and answers an
/// administrator.
fn goes_on(daemon: &Daemon) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = format!("newcomer-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let newcomer = daemon.join(&name, 0, 1_000);
    assert!(newcomer.allocate(1_000) && !newcomer.allocate(1));
    assert_eq!(tenant(&daemon.status(), &name).gpus[0].memory_bytes, 1_000);
}

/// The log of a daemon, for a test to read.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn any_packets_before_and_after_a_hello_change_nothing() {
    let daemon = Daemon::start(1, Config::default());
    let bystander = daemon.join("bystander", 300_000, 1_000);
    let socket = daemon.directory.tenant_socket();
    let good = daemon.hello(Role::Session, "a").as_bytes().to_vec();
    let packets = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..2_000), 1..5);
    // Random bytes, and a hello with some bytes changed and its end cut off or repeated.
    let spoilt = prop::collection::vec((0..good.len(), any::<u8>()), 0..20);
    let strategy = (packets, spoilt, 0..good.len() * 2, any::<bool>());
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() });
    let outcome = runner.run(&strategy, |(packets, spoilt, length, comes_first)| {
        let mut hello = good.clone();
        for (at, byte) in spoilt {
            hello[at] = byte;
        }
        hello.resize(length, 0);
        let connection = packet::connection(&socket).unwrap();
        let mut sent: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
        sent.insert(if comes_first { 0 } else { sent.len() }, &hello);
        for bytes in sent {
            // The daemon may have closed the connection already.
            let _ = packet::send(&connection, bytes, &[]);
        }
        Ok(())
    });
    outcome.unwrap();
    // Some packets were valid hellos, whose sessions end with their connections.
    wait_until(PATIENCE, || bystander.gate().entitled_ppm() == 300_000);
    assert_eq!(bystander.gate().memory_limit(), 1_000);
    assert!(bystander.allocate(1_000));
    goes_on(&daemon);
}

#[test]
fn descriptors_sent_to_the_daemon_are_not_kept() {
    let daemon = Daemon::start(1, Config::default());
    let gift = tempfile::tempfile().unwrap();
    let inode = gift.metadata().unwrap().ino();
    let socket = daemon.directory.tenant_socket();
    let connections: Vec<OwnedFd> = (0..20)
        .map(|number| {
            let connection = packet::connection(&socket).unwrap();
            let hello = daemon.hello(Role::Session, &format!("t{number}"));
            send_with(&connection, hello.as_bytes(), &gift);
            connection
        })
        .collect();
    wait_until(PATIENCE, || {
        daemon.status().tenants.iter().map(|tenant| tenant.sessions.len()).sum::<usize>() == 20
    });
    let links = || {
        let entries = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        entries
            .filter(|entry| std::fs::metadata(entry.path()).is_ok_and(|found| found.ino() == inode))
            .count()
    };
    // The daemon is in this process. So this process would have the descriptors that the daemon
    // kept.
    assert_eq!(links(), 1);
    drop(connections);
    goes_on(&daemon);
}

/// Sends a frame with as many copies of a file's descriptor as the kernel allows.
fn send_with(socket: &OwnedFd, frame: &[u8], file: &File) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let copies = [file.as_fd(); MAX_SENT];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SENT))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    assert!(beside.push(SendAncillaryMessage::ScmRights(&copies)));
    sendmsg(socket, &[std::io::IoSlice::new(frame)], &mut beside, SendFlags::empty()).unwrap();
}

#[test]
fn a_client_that_never_reads_keeps_nobody_waiting() {
    let daemon = Daemon::start(1, Config::default());
    let socket = daemon.directory.tenant_socket();
    let _deaf: Vec<_> = (0..100)
        .map(|_| {
            let connection = packet::connection(&socket).unwrap();
            packet::send(&connection, daemon.hello(Role::Session, "deaf").as_bytes(), &[]).unwrap();
            connection
        })
        .collect();
    let mut administrator = UnixStream::connect(daemon.directory.admin_socket()).unwrap();
    administrator.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    // The loop ends when the daemon stops reading, because nobody reads its answers.
    while administrator.write_all(b"{\"op\":\"status\"}\n").is_ok() {}
    goes_on(&daemon);
}

#[test]
fn one_user_cannot_take_all_the_connections() {
    let config = Config { max_connections: 100, max_connections_per_user: 30, ..Config::default() };
    let daemon = open_to_all(config);
    let socket = daemon.directory.tenant_socket();
    let uuids = daemon.uuids();
    let flood = as_user(MALLORY, MALLORY, || {
        let connect = |count| (0..count).filter_map(|_| packet::connection(&socket).ok()).collect::<Vec<_>>();
        let all_there_are = connect(30);
        let refused = shake_hands(&socket, hello(Role::Session, "more", &uuids).as_bytes()).err();
        (refused, all_there_are, connect(2_000))
    });
    let Some((refused, all_there_are, hung_up_on)) = flood else { return };
    let (kind, reason) = refused.unwrap();
    assert_eq!(kind, RefusalKind::Full as u32, "{reason}");
    assert!(reason.contains(&format!("user {MALLORY} has 30 connections")), "{reason}");
    as_user(ALICE, ALICE, || {
        Tenant::connect(&socket, &hello(Role::Session, "alices", &uuids)).map(drop).unwrap();
    });
    goes_on(&daemon);
    drop((all_there_are, hung_up_on));
}

#[test]
fn a_name_of_another_user_is_another_tenant() {
    let daemon = open_to_all(Config::default());
    let (socket, uuids) = (daemon.directory.tenant_socket(), daemon.uuids());
    let claim = |role| hello(role, "train", &uuids);
    let mut own = claim(Role::Session);
    own.wishes = Wish { share_ppm: Some(300_000), memory_bytes: Some(1_000), ..Wish::default() }.encode();
    // A tenant of root would also be the tenant of this process's threads of other users.
    let victim = as_user(ALICE, ALICE, || Tenant::connect(&socket, &own).unwrap());
    let claimed = as_user(MALLORY, MALLORY, || {
        let refused = shake_hands(&socket, claim(Role::Keeper).as_bytes()).unwrap_err();
        (Tenant::connect(&socket, &claim(Role::Session)).unwrap(), refused)
    });
    let Some((victim, (thief, (kind, reason)))) = victim.zip(claimed) else { return };
    assert_eq!(kind, RefusalKind::Request as u32);
    assert!(reason.contains("belongs to user"), "{reason}");
    let inode = |tenant: &Tenant, page: usize| fstat(&tenant.descriptors[page]).unwrap().st_ino;
    for page in 0..3 {
        assert_ne!(inode(&thief, page), inode(&victim, page), "none of its pages is the other's");
    }
    assert!(thief.allocate(1 << 20) && victim.allocate(1_000));
    let status = daemon.status();
    assert_eq!((tenant(&status, "train").uid, tenant(&status, "train-2").uid), (ALICE, MALLORY));
    assert_eq!(tenant(&status, "train").sessions.len(), 1);
    drop(thief);
    assert_eq!(victim.gate().entitled_ppm(), 300_000);
}

#[test]
fn a_running_session_that_asks_for_too_much_has_the_cap_and_is_told_why() {
    let caps = Caps { share_ppm: 400_000, memory_bytes: 1_000, class: Class::Fair, ..Caps::NONE };
    let users = [(MALLORY.to_string(), caps)].into();
    let daemon = open_to_all(Config { users, ..Config::default() });
    let (socket, uuids) = (daemon.directory.tenant_socket(), daemon.uuids());
    let mut greedy = hello(Role::Session, "greedy", &uuids);
    let wish = Wish {
        share_ppm: Some(900_000),
        memory_bytes: Some(1 << 40),
        class: Some(Class::Guaranteed),
        ..Wish::default()
    };
    greedy.wishes = wish.encode();
    let Some(greedy) = as_user(MALLORY, MALLORY, || Tenant::connect(&socket, &greedy).unwrap()) else {
        return;
    };
    assert_eq!((greedy.gate().entitled_ppm(), greedy.gate().memory_limit()), (400_000, 1_000));
    let status = daemon.status();
    let shown = tenant(&status, "greedy");
    let capped = Rule::Cap(CapOf::User(MALLORY));
    let granted = shown.granted.unwrap();
    assert_eq!((shown.asked.share_ppm, granted.share_ppm.value), (Some(900_000), Some(400_000)));
    assert_eq!([granted.share_ppm.rule, granted.memory_bytes.rule, granted.class.rule], [capped; 3]);
    assert_eq!((granted.class.value, shown.class.as_str()), (Class::Fair, "fair"));
}

#[test]
fn a_tenant_finds_no_way_to_write_its_grant_or_to_resize_a_page() {
    let daemon = Daemon::start(1, Config::default());
    let mallory = daemon.join("mallory", 0, 1_000);
    let [grant, meter, ledger, beat] = &mallory.descriptors[..4] else { panic!("four pages") };
    for read_only in [grant, beat] {
        // The tenant also opens the file again for writing. The seal belongs to the file and not to
        // the descriptor.
        let again = format!("/proc/self/fd/{}", read_only.as_raw_fd());
        let again = open(&again, OFlags::RDWR, Mode::empty()).ok();
        for file in again.iter().chain([read_only]) {
            assert!(rustix::io::pwrite(file, b"x", 0).is_err());
            let punched = fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096);
            assert!(punched.is_err());
            let map = |protection| {
                // SAFETY: a fresh mapping of a memfd that cannot shrink, at an address of the
                // kernel's choice.
                unsafe { mmap(std::ptr::null_mut(), 4096, protection, MapFlags::SHARED, file, 0) }
            };
            assert!(map(ProtFlags::READ | ProtFlags::WRITE).is_err());
            let mapped = map(ProtFlags::READ).unwrap();
            // SAFETY: the mapping is this test's own.
            assert!(unsafe { mprotect(mapped, 4096, MprotectFlags::READ | MprotectFlags::WRITE) }.is_err());
        }
    }
    for page in [grant, meter, ledger, beat] {
        assert!(rustix::fs::ftruncate(page, 0).is_err());
        assert!(rustix::fs::ftruncate(page, 1 << 20).is_err());
        for seal in [SealFlags::WRITE, SealFlags::FUTURE_WRITE, SealFlags::GROW] {
            assert!(fcntl_add_seals(page, seal).is_err(), "no seal is added that the daemon would run into");
        }
    }
    // A tenant can empty its own pages, headers included.
    fallocate(
        meter,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        0,
        size_of::<MeterPage>() as u64,
    )
    .unwrap();
    fallocate(ledger, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096).unwrap();
    mallory.ring();
    assert_eq!(mallory.gate().memory_limit(), 1_000);
    goes_on(&daemon);
}

#[test]
fn false_counts_in_a_tenants_pages_are_shown_within_possible_values() {
    let daemon = Daemon::start(1, Config::default());
    let (liar, bystander) = (daemon.join("liar", 0, 0), daemon.join("bystander", 0, 1_000));
    assert!(bystander.allocate(10));
    let pages = [
        (std::ptr::from_ref(liar.meter).cast::<u8>(), size_of_val(liar.meter)),
        (std::ptr::from_ref(liar.ledger).cast(), size_of_val(liar.ledger)),
    ];
    for (page, bytes) in pages {
        // SAFETY: the page is mapped writable here and consists of atomics, and only this thread
        // writes it.
        unsafe { std::ptr::write_bytes(page.cast_mut(), 0xFF, bytes) };
    }
    for _ in 0..10 {
        liar.ring();
        std::thread::sleep(Duration::from_millis(10));
    }
    let status = daemon.status();
    let gpu = &tenant(&status, "liar").gpus[0];
    assert_eq!((gpu.kernel_launches, gpu.graph_launches, gpu.waits, gpu.refusals), (0, 0, 0, 0));
    assert!(gpu.gpu_ns < 60_000_000_000 && gpu.total_share_ppm <= 1_000_000, "{gpu:?}");
    assert!(gpu.memory_bytes <= 1 << 47, "{gpu:?}");
    let session = &tenant(&status, "liar").sessions[0].gpus[0];
    assert!(session.gpu_ns <= gpu.gpu_ns && session.memory_bytes <= gpu.memory_bytes, "{session:?}");
    assert_eq!((session.kernel_launches, session.graph_launches), (0, 0));
    assert!(session.waiters <= 4096);
    let other = &tenant(&status, "bystander").gpus[0];
    assert_eq!((other.memory_bytes, other.gpu_ns, other.kernel_launches), (10, 0, 0));
    assert!(bystander.allocate(990));
}

#[test]
fn other_users_do_not_administer_unless_their_group_may() {
    let daemon = open_to_all(Config { admin_group: Some(ADMINISTRATORS.to_string()), ..Config::default() });
    let socket = daemon.directory.admin_socket();
    let ask = || -> std::io::Result<String> {
        let mut stream = UnixStream::connect(&socket)?;
        stream.write_all(b"{\"op\":\"status\"}\n")?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        Ok(answer)
    };
    let Some(refused) = as_user(MALLORY, MALLORY, ask) else { return };
    assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    let answer = as_user(ALICE, ADMINISTRATORS, ask).unwrap().unwrap();
    assert!(answer.contains("\"reply\":\"status\""), "{answer}");
    // If the mode of the socket lets a user in, the daemon refuses the user with a message.
    std::fs::set_permissions(&socket, Permissions::from_mode(0o666)).unwrap();
    let answer = as_user(MALLORY, MALLORY, ask).unwrap().unwrap();
    assert!(
        answer.contains("may not administer") && answer.contains(&ADMINISTRATORS.to_string()),
        "{answer}"
    );
}

#[test]
fn an_administrator_for_whom_there_is_no_room_is_told_so() {
    let daemon = Daemon::start(1, Config::default());
    let mut open = Vec::new();
    for _ in 0..64 {
        let mut client = daemon.client();
        client.status().unwrap();
        open.push(client);
    }
    match Client::connect_to(&daemon.directory).unwrap().status() {
        Err(ClientError::Refused(message)) => assert!(message.contains("64 administrators"), "{message}"),
        other => panic!("{other:?}"),
    }
    open.pop();
    wait_until(PATIENCE, || daemon.client().status().is_ok());
}

#[test]
fn nonsense_on_the_admin_socket_is_answered_or_hung_up_on() {
    let daemon = Daemon::start(1, Config::default());
    let socket = daemon.directory.admin_socket();
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 100, failure_persistence: None, ..Default::default() });
    let outcome = runner.run(&prop::collection::vec(any::<u8>(), 0..10_000), |bytes| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        for line in answer.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let is_refused = line.starts_with(b"{\"reply\":\"error\"");
            prop_assert!(is_refused);
        }
        Ok(())
    });
    outcome.unwrap();
    // A request that is longer and more deeply nested than any real request.
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.write_all("[".repeat(4_000).as_bytes()).unwrap();
    stream.write_all(b"\n").unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    assert!(answer.contains("not a request"), "{answer}");
    goes_on(&daemon);
}

/// These tests use all processors, or read the log, which all daemons of a process share. So each
/// test runs alone on the machine.
mod measured {
    use super::*;
    use deepres_e2e::finally::Finally;

    #[test]
    fn a_flood_of_connections_keeps_nobody_from_being_answered() {
        let daemon = open_to_all(Config::default());
        let victim = daemon.join("victim", 300_000, 0);
        let (socket, uuids) = (daemon.directory.tenant_socket(), daemon.uuids());
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let flood = || {
                as_user(MALLORY, MALLORY, || {
                    while !is_over.load(Ordering::Relaxed) {
                        drop(packet::connection(&socket));
                    }
                })
            };
            (0..2).for_each(|_| drop(scope.spawn(flood)));
            let _finally = Finally(&is_over);
            for number in 0..20 {
                let begin = Instant::now();
                assert!(daemon.status().tenants.iter().any(|tenant| tenant.name == "victim"));
                let name = format!("honest-{number}");
                Tenant::connect(&socket, &hello(Role::Session, &name, &uuids)).map(drop).unwrap();
                assert!(begin.elapsed() < PATIENCE, "answered after {:?}", begin.elapsed());
            }
        });
        assert_eq!(victim.gate().entitled_ppm(), 300_000);
    }

    #[test]
    fn bells_without_end_keep_nobody_from_being_served() {
        let daemon = Daemon::start(1, Config::default());
        let mallory = daemon.join("mallory", 0, 0);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _ = rustix::io::write(&mallory.descriptors[4], &1u64.to_ne_bytes());
                }
            });
            let _finally = Finally(&stop);
            for _ in 0..20 {
                goes_on(&daemon);
            }
        });
    }

    #[test]
    fn a_process_that_connects_in_a_loop_fills_no_log() {
        let log = Log::default();
        let writer = log.clone();
        let lines = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        let daemon =
            Daemon::start_within(Config::default(), |run| tracing::subscriber::with_default(lines, run));
        let socket = daemon.directory.tenant_socket();
        let mut nonsense = daemon.hello(Role::Session, "loop");
        nonsense.wishes = [1; WISHES_BYTES];
        for _ in 0..100 {
            shake_hands(&socket, nonsense.as_bytes()).unwrap_err();
            drop(daemon.join("loop", 0, 0));
        }
        wait_until(PATIENCE, || daemon.status().tenants.iter().all(|tenant| tenant.sessions.is_empty()));
        drop(daemon);
        let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let caused = log.lines().filter(|line| line.contains("refused") || line.contains("session ")).count();
        assert_eq!(caused, 20, "{log}");
        // For each of the hundred attempts, the daemon logs the begin and the end of the session.
        // The daemon logs one refusal, because all refusals have the same reason.
        assert!(log.contains("lines were left out") && log.contains("lines=181"), "{log}");
        assert_eq!(log.lines().filter(|line| line.contains("refused")).count(), 1, "{log}");
    }
}
