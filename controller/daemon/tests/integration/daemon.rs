//! The daemon over its real sockets, with tenants made by hand.

use deepres_abi::grant::{GateState, NO_LIMIT};
use deepres_abi::wire::{self, Refusal, RefusalKind, Role, UNMANAGED};
use deepres_daemon::Options;
use deepres_daemon_harness::{Daemon, MS, Tenant, hello, say, shake_hands, wait_until};
use deepres_model::admin::client::ClientError;
use deepres_model::admin::{Reply, Request, ShareStatus};
use deepres_model::authority::{Rule, Wish};
use deepres_model::clock::monotonic_ns;
use deepres_model::config::{CapOf, Caps, Config, Origin};
use deepres_model::directory::Directory;
use deepres_model::packet;
use deepres_model::wish::Key;
use deepres_policy::class::Class;
use deepres_policy::priority::Criticality;
use std::cell::OnceCell;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// Time within which the daemon must see the end of a session.
const RECLAIM_LIMIT: Duration = Duration::from_millis(100);
/// Time within which a change by an administrator must be in force.
const SET_LIMIT: Duration = Duration::from_millis(10);
/// The limit for waits without a limit of their own.
const PATIENCE: Duration = Duration::from_secs(5);

fn daemon_of_one_gpu() -> Daemon {
    Daemon::start(1, Config::default())
}

#[test]
fn a_session_gets_its_pages_its_bells_and_an_open_gate() {
    let daemon = Daemon::start(2, Config::default());
    let mut uuids = daemon.uuids();
    uuids.insert(0, [9; 16]);
    uuids.reverse();
    let tenant =
        Tenant::connect(&daemon.directory.tenant_socket(), &hello(Role::Session, "a", &uuids)).unwrap();
    assert_eq!(tenant.welcome.gpu_index[..4], [1, 0, UNMANAGED, UNMANAGED]);
    assert_eq!(tenant.descriptors.len(), 4 + 2);
    assert_eq!(tenant.grant.session_id(), tenant.welcome.session_id);
    assert_eq!(tenant.grant.heartbeat_limit_ns(), 250 * MS);
    for gpu in 0..2 {
        let slot = tenant.grant.slot(gpu).unwrap();
        assert_eq!(slot.gate().state, GateState::Open);
        assert_eq!((slot.entitled_ppm(), slot.memory_limit()), (1_000_000, NO_LIMIT));
        assert_eq!(slot.share_ppm(), None, "an entitlement is no share");
    }
}

#[test]
fn a_reload_binds_tenants_that_run_ends_no_session_and_refuses_a_faulty_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("deepres.toml");
    std::fs::write(&file, "tenant_linger_s = 60\n").unwrap();
    let daemon = Daemon::start_from(&file);
    let tenant = daemon.join("a", 500_000, 0);
    assert_eq!(tenant.gate().memory_limit(), NO_LIMIT);
    std::fs::write(&file, "\n[caps]\nmemory = \"256MiB\"\n[quantum]\nmin_ms = 5\n").unwrap();
    let reply = daemon.client().ask(&Request::Reload).unwrap();
    let (now, later) = (vec!["caps.memory".to_owned()], vec!["quantum.min_ms".to_owned()]);
    assert_eq!(reply, Reply::Reloaded { file: Some(file.clone()), now, later });
    assert_eq!(tenant.gate().memory_limit(), 256 << 20);

    std::fs::write(&file, "tenant_linger_s = 60\ncaps = 5\n").unwrap();
    let refused = daemon.client().ask(&Request::Reload).unwrap_err().to_string();
    assert!(refused.starts_with("the daemon keeps its configuration: "), "{refused}");
    assert!(refused.contains("deepres.toml:2:1"), "{refused}");
    let Reply::Config { settings, .. } = daemon.client().ask(&Request::Config).unwrap() else { panic!() };
    let shown = settings.into_iter().find(|setting| setting.key == "caps.memory").unwrap();
    assert_eq!((shown.value.as_deref(), shown.origin), (Some("\"256 MiB\""), Origin::Line(3)));

    std::fs::write(&file, "").unwrap();
    daemon.client().ask(&Request::Reload).unwrap();
    assert_eq!(tenant.gate().memory_limit(), NO_LIMIT);
    assert_eq!(daemon.status().tenants[0].sessions.len(), 1);
}

#[test]
fn the_heart_beats_well_within_its_limit_while_anyone_is_there() {
    let daemon = daemon_of_one_gpu();
    let tenant = daemon.join("a", 0, 0);
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(20));
        let age_ns = monotonic_ns().saturating_sub(tenant.beat.last_ns(0));
        assert!(age_ns < tenant.grant.heartbeat_limit_ns(), "{age_ns}");
    }
}

#[test]
fn frames_that_are_no_hello_are_refused_and_the_daemon_goes_on() {
    let daemon = daemon_of_one_gpu();
    let socket = daemon.directory.tenant_socket();
    let good = daemon.hello(Role::Session, "a");
    let refused = |bytes: &[u8]| shake_hands(&socket, bytes).unwrap_err().0;
    assert_eq!(refused(b"x"), RefusalKind::Malformed as u32);
    assert_eq!(refused(&[0xA5; 560]), RefusalKind::Malformed as u32);
    assert_eq!(refused(&[0xA5; 150_000]), RefusalKind::Malformed as u32);
    assert_eq!(refused(&good.as_bytes()[..559]), RefusalKind::Malformed as u32);
    let mut other_major = good.as_bytes().to_vec();
    other_major[10] = 99;
    assert_eq!(refused(&other_major), RefusalKind::Version as u32);
    let mut no_role = good;
    no_role.role = 7;
    assert_eq!(refused(no_role.as_bytes()), RefusalKind::Malformed as u32);
    // Clients that send nothing, and a client that hangs up at once, do no harm either.
    let _silent: Vec<_> = (0..100).map(|_| packet::connection(&socket).unwrap()).collect();
    drop(packet::connection(&socket).unwrap());
    daemon.join("a", 0, 0);
}

#[test]
fn impossible_requests_are_refused_with_a_reason() {
    let caps = Caps { share_ppm: 500_000, memory_bytes: 1 << 30, class: Class::Fair, ..Caps::NONE };
    let daemon = Daemon::start(1, Config { caps, ..Config::default() });
    let socket = daemon.directory.tenant_socket();
    let refused = |change: &dyn Fn(&mut deepres_abi::wire::Hello)| {
        let mut hello = daemon.hello(Role::Keeper, "a");
        change(&mut hello);
        let (kind, reason) = shake_hands(&socket, hello.as_bytes()).unwrap_err();
        assert_eq!(kind, RefusalKind::Request as u32, "{reason}");
        reason
    };
    let wishing = |wish: Wish| refused(&|hello| hello.wishes = wish.encode());
    assert!(wishing(Wish { share_ppm: Some(1_200_000), ..Wish::default() }).contains("1% and 100%"));
    assert!(wishing(Wish { share_ppm: Some(800_000), ..Wish::default() }).contains("for everybody is 50%"));
    let memory = wishing(Wish { memory_bytes: Some(2 << 30), ..Wish::default() });
    assert!(memory.contains("for everybody is 1 GiB"), "{memory}");
    let guaranteed = Wish { share_ppm: Some(100_000), class: Some(Class::Guaranteed), ..Wish::default() };
    let guaranteed = wishing(guaranteed);
    assert!(guaranteed.contains("for everybody is fair"), "{guaranteed}");
    let no_class = refused(&|hello| {
        hello.wishes = Wish { class: Some(Class::Fair), ..Wish::default() }.encode();
        hello.wishes[2] = 9;
    });
    assert!(no_class.contains("`class` is not"), "{no_class}");
    assert!(refused(&|hello| hello.tenant[0] = 7).contains("invisible"));
    let unseen = refused(&|hello| deepres_abi::wire::set_text(&mut hello.tenant, "a\u{200b}"));
    assert!(unseen.contains("invisible"), "{unseen}");
    assert!(refused(&|hello| hello.tenant[0] = 0xFF).contains("UTF-8"));
    let tenant = daemon.join("a", 0, 0);
    assert_eq!(tenant.gate().memory_limit(), 1 << 30, "a tenant that asks for no limit has the cap");
    assert_eq!(tenant.gate().entitled_ppm(), 500_000);
}

#[test]
fn a_cap_is_a_users_however_many_tenants_the_user_makes() {
    let caps = Caps { share_ppm: 500_000, memory_bytes: 1_000, ..Caps::NONE };
    let daemon = Daemon::start(1, Config { caps, ..Config::default() });
    let asked = daemon.join("asked", 300_000, 600);
    let rest = [daemon.join("one", 0, 0), daemon.join("two", 0, 0)];
    let limits = |bytes| rest.iter().all(|tenant| tenant.gate().memory_limit() == bytes);
    wait_until(PATIENCE, || limits(200));
    assert_eq!((asked.gate().entitled_ppm(), asked.gate().memory_limit()), (300_000, 600));
    let late = daemon.join("late", 300_000, 600);
    wait_until(PATIENCE, || limits(0));
    assert_eq!((late.gate().entitled_ppm(), late.gate().memory_limit()), (200_000, 400), "the rest");
    let granted = |name: &str| {
        let status = daemon.status();
        status.tenants.into_iter().find(|tenant| tenant.name == name).unwrap().granted.unwrap()
    };
    assert_eq!(granted("late").memory_bytes.rule, Rule::CapBesideOthers(CapOf::Everyone));
    let mut keeper = daemon.hello(Role::Keeper, "later");
    keeper.wishes = Wish { share_ppm: Some(100_000), ..Wish::default() }.encode();
    let (_, reason) = shake_hands(&daemon.directory.tenant_socket(), keeper.as_bytes()).unwrap_err();
    assert!(reason.contains("the user's other tenants"), "{reason}");
    drop(late);
    wait_until(PATIENCE, || limits(200));
    daemon
        .client()
        .ask(&Request::set("asked", Wish { memory_bytes: Some(5_000), ..Wish::default() }))
        .unwrap();
    wait_until(PATIENCE, || limits(500));
    assert_eq!(asked.gate().memory_limit(), 5_000, "an administrator is above caps");
    assert!(granted("one").cap_ppm <= 100_000, "{:?}", granted("one"));
}

#[test]
fn the_epochs_of_two_sessions_begin_apart_so_that_no_gate_word_holds_in_both() {
    /// The least distance between the epochs of two sessions. The arbiter changes the gates of a
    /// new session only a few times.
    const CHANGES: u32 = 1_000;
    let daemon = daemon_of_one_gpu();
    let epochs = ["a", "b", "c"].map(|name| daemon.join(name, 0, 0).gate().gate().epoch);
    for (at, epoch) in epochs.iter().enumerate() {
        assert!(epochs[..at].iter().all(|other| other.abs_diff(*epoch) > CHANGES), "{epochs:?}");
    }
}

#[test]
fn an_administrators_settings_can_be_ended_so_that_the_jobs_wishes_hold_again() {
    let daemon = daemon_of_one_gpu();
    let tenant = daemon.join("a", 300_000, 1 << 20);
    let set = |wish: Wish, unset: &[&str]| {
        let unset = unset.iter().map(|name| (*name).to_owned()).collect();
        daemon.client().ask(&Request::Set { tenant: "a".to_owned(), wish: Box::new(wish), unset })
    };
    let both = Wish { share_ppm: Some(600_000), memory_bytes: Some(2 << 20), ..Wish::default() };
    set(both, &[]).unwrap();
    assert_eq!((tenant.gate().entitled_ppm(), tenant.gate().memory_limit()), (600_000, 2 << 20));
    assert_eq!(tenant.gate().share_ppm(), Some(600_000));
    set(Wish { memory_bytes: Some(3 << 20), ..Wish::default() }, &["share"]).unwrap();
    assert_eq!((tenant.gate().entitled_ppm(), tenant.gate().memory_limit()), (300_000, 3 << 20));
    assert_eq!(tenant.gate().share_ppm(), Some(300_000));
    let refused = set(Wish::default(), &["shares"]).unwrap_err().to_string();
    assert!(refused.contains("no setting `shares`"), "{refused}");
    let all: Vec<&str> = Key::ALL.map(Key::name).to_vec();
    set(Wish::default(), &all).unwrap();
    assert_eq!(tenant.gate().memory_limit(), 1 << 20);
}

#[test]
fn a_keeper_that_comes_back_is_let_in_whatever_was_set_meanwhile() {
    let daemon = daemon_of_one_gpu();
    let mut keeper = daemon.hello(Role::Keeper, "a");
    keeper.wishes = Wish { share_ppm: Some(300_000), ..Wish::default() }.encode();
    let (kept, ..) = shake_hands(&daemon.directory.tenant_socket(), keeper.as_bytes()).unwrap();
    daemon.client().ask(&Request::set("a", Wish { share_ppm: Some(600_000), ..Wish::default() })).unwrap();
    let daemon = daemon.restart();
    drop(kept);
    assert_eq!(daemon.status().tenants[0].asked_share_ppm, Some(600_000));
    assert_eq!(daemon.join("a", 300_000, 0).gate().entitled_ppm(), 600_000);
    keeper.sessions_before = 1;
    let (_kept, ..) = shake_hands(&daemon.directory.tenant_socket(), keeper.as_bytes()).unwrap();
    let status = daemon.status();
    assert_eq!((status.tenants[0].keepers, status.tenants[0].asked_share_ppm), (1, Some(600_000)));
    keeper.sessions_before = 0;
    assert!(shake_hands(&daemon.directory.tenant_socket(), keeper.as_bytes()).is_err());
}

#[test]
fn a_clock_of_another_namespace_is_refused() {
    let daemon = daemon_of_one_gpu();
    for offset_ns in [-6_000, 6_000] {
        let mut hello = daemon.hello(Role::Session, "a");
        hello.monotonic_ns = hello.monotonic_ns.saturating_add_signed(offset_ns * MS as i64);
        let (kind, reason) = Tenant::connect(&daemon.directory.tenant_socket(), &hello).err().unwrap();
        assert_eq!(kind, RefusalKind::Namespace as u32, "{reason}");
    }
}

#[test]
fn connections_beyond_the_limit_are_refused() {
    let daemon = Daemon::start(1, Config { max_connections: 2, ..Config::default() });
    // Processes that only announce a session take no other process's place.
    let announced: Vec<_> = (0..3)
        .map(|_| {
            let connection = packet::connection(&daemon.directory.tenant_socket()).unwrap();
            packet::send(&connection, daemon.hello(Role::Arriving, "c").as_bytes(), &[]).unwrap();
            connection
        })
        .collect();
    let held = [daemon.join("a", 0, 0), daemon.join("b", 0, 0)];
    let hello = daemon.hello(Role::Session, "c");
    let (kind, reason) = Tenant::connect(&daemon.directory.tenant_socket(), &hello).err().unwrap();
    assert_eq!(kind, RefusalKind::Full as u32, "{reason}");
    drop((held, announced));
    wait_until(PATIENCE, || Tenant::connect(&daemon.directory.tenant_socket(), &hello).is_ok());
}

#[test]
fn a_refusal_tells_the_limits_of_the_tenant_or_those_that_it_would_get() {
    const HALF_BYTES: u64 = 1 << 29;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("deepres.toml");
    let toml = "max_connections = 1\n[caps]\nmemory = \"1GiB\"\n[defaults]\nshare = \"30%\"\n";
    std::fs::write(&file, toml).unwrap();
    let daemon = Daemon::start_from(&file);
    let session = daemon.join("a", 0, HALF_BYTES);
    let told = |name, wish: Wish| {
        let mut hello = daemon.hello(Role::Session, name);
        hello.wishes = wish.encode();
        let (_, answer, _) = say(&daemon.directory.tenant_socket(), hello.as_bytes());
        let fallback = wire::decode::<Refusal>(&answer).unwrap().fallback();
        (fallback.share_ppm, fallback.memory_bytes)
    };
    let greedy = Wish { share_ppm: Some(900_000), memory_bytes: Some(1 << 40), ..Wish::default() };
    let modest = Wish { share_ppm: Some(200_000), memory_bytes: Some(1 << 20), ..Wish::default() };
    for wish in [Wish::default(), greedy] {
        assert_eq!(told("a", wish), (Some(300_000), Some(HALF_BYTES)), "the tenant has so much");
    }
    assert_eq!(told("b", Wish::default()), (Some(300_000), Some(HALF_BYTES)), "`a` leaves half of the cap");
    assert_eq!(told("b", modest), (Some(200_000), Some(1 << 20)));
    let set = Wish { share_ppm: Some(500_000), memory_bytes: Some(4_096), ..Wish::default() };
    daemon.client().ask(&Request::set("a", set)).unwrap();
    assert_eq!(told("a", greedy), (Some(500_000), Some(4_096)));
    // The settings hold for the tenant's next job too.
    drop(session);
    let hello = daemon.hello(Role::Session, "c");
    let join = || Tenant::connect(&daemon.directory.tenant_socket(), &hello).ok();
    let other = OnceCell::new();
    wait_until(PATIENCE, || join().is_some_and(|joined| other.set(joined).is_ok()));
    assert_eq!(told("a", greedy), (Some(500_000), Some(4_096)));
}

#[test]
fn a_keeper_keeps_its_tenant_and_its_request_holds_for_all_sessions() {
    let daemon = daemon_of_one_gpu();
    let mut keeper = daemon.hello(Role::Keeper, "a");
    keeper.wishes = Wish { share_ppm: Some(300_000), ..Wish::default() }.encode();
    let (kept, ..) = shake_hands(&daemon.directory.tenant_socket(), keeper.as_bytes()).unwrap();
    let status = daemon.status();
    assert_eq!((status.tenants[0].keepers, status.tenants[0].asked_share_ppm), (1, Some(300_000)));
    let session = daemon.join("a", 900_000, 0);
    assert_eq!(session.gate().entitled_ppm(), 300_000, "the first to ask decides");
    keeper.wishes = Wish { share_ppm: Some(400_000), ..Wish::default() }.encode();
    let (_, reason) = shake_hands(&daemon.directory.tenant_socket(), keeper.as_bytes()).unwrap_err();
    assert!(reason.contains("runs already with a share of 30%"), "{reason}");
    drop(kept);
    wait_until(PATIENCE, || daemon.status().tenants[0].keepers == 0);
}

#[test]
fn settings_of_an_administrator_are_in_force_at_once() {
    let daemon = daemon_of_one_gpu();
    let (a, b) = (daemon.join("a", 700_000, 0), daemon.join("b", 300_000, 0));
    let wish = Wish {
        share_ppm: Some(500_000),
        memory_bytes: Some(4_096),
        class: Some(Class::Guaranteed),
        ..Wish::default()
    };
    let request = Request::set("a", wish);
    // The test takes the least time of several changes, because a change may have waited for a
    // processor.
    let took = (0..5).map(|_| {
        let begin = Instant::now();
        let reply = daemon.client().ask(&request).unwrap();
        let Reply::Set(granted) = reply else { panic!("{reply:?}") };
        assert_eq!((granted.share_ppm.value, granted.memory_bytes.value), (Some(500_000), Some(4_096)));
        assert_eq!(granted.class.value, Class::Guaranteed);
        begin.elapsed()
    });
    let took = took.min().unwrap();
    assert!(took < SET_LIMIT, "{took:?}");
    assert_eq!((a.gate().memory_limit(), a.gate().entitled_ppm()), (4_096, 500_000));
    assert_eq!((b.gate().memory_limit(), b.gate().entitled_ppm()), (NO_LIMIT, 300_000));
    let late = daemon.join("a", 900_000, 8_192);
    assert_eq!((late.gate().memory_limit(), late.gate().entitled_ppm()), (4_096, 500_000));
}

#[test]
fn an_administrator_is_told_if_a_setting_will_not_outlive_the_daemon() {
    let daemon = daemon_of_one_gpu();
    let a = daemon.join("a", 300_000, 0);
    let in_the_way = daemon.directory.path().join("state.json.new");
    std::fs::create_dir(&in_the_way).unwrap();
    let set = |ppm| daemon.client().ask(&Request::set("a", Wish { share_ppm: Some(ppm), ..Wish::default() }));
    assert!(matches!(
        set(400_000),
        Err(ClientError::Refused(message)) if message.contains("the change is in force, but") && message.contains("state.json")
    ));
    assert_eq!(a.gate().entitled_ppm(), 400_000);
    std::fs::remove_dir(&in_the_way).unwrap();
    set(400_000).unwrap();
}

#[test]
fn a_tenant_that_ends_and_begins_anew_keeps_settings_of_an_administrator() {
    let daemon = daemon_of_one_gpu();
    let join = |share_ppm| daemon.join("a", share_ppm, 0);
    let first = join(900_000);
    let wish = Wish { share_ppm: Some(100_000), memory_bytes: Some(4_096), ..Wish::default() };
    daemon.client().ask(&Request::set("a", wish)).unwrap();
    daemon.client().ask(&Request::Pause { tenant: "a".to_owned() }).unwrap();
    drop(first);
    wait_until(PATIENCE, || daemon.status().tenants[0].sessions.is_empty());
    let again = join(900_000);
    assert_eq!((again.gate().memory_limit(), again.gate().entitled_ppm()), (4_096, 100_000));
    wait_until(PATIENCE, || again.gate().gate().state == GateState::Paused);
}

#[test]
fn an_administrators_mistake_gets_a_clear_answer() {
    let daemon = daemon_of_one_gpu();
    let _tenant = daemon.join("train", 0, 0);
    let refused = |tenant: &str, share_ppm| {
        let request = Request::set(tenant, Wish { share_ppm, ..Wish::default() });
        match daemon.client().ask(&request) {
            Err(ClientError::Refused(message)) => message,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused("trian", Some(500_000)), "there is no tenant `trian`; there are: train");
    assert!(refused("train", Some(0)).contains("1% and 100%"));
    let mut raw = UnixStream::connect(daemon.directory.admin_socket()).unwrap();
    for nonsense in ["{}\n", "not json\n", "{\"op\":\"set\",\"tenant\":\"train\",\"shar\":1}\n"] {
        raw.write_all(nonsense.as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(&raw).read_line(&mut line).unwrap();
        assert!(line.contains("\"reply\":\"error\"") && line.contains("not a request"), "{line}");
    }
}

#[test]
fn names_that_come_and_go_leave_nothing_behind() {
    let daemon = daemon_of_one_gpu();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    for number in 0..500 {
        let hello = daemon.hello(Role::Keeper, &format!("t{number}"));
        drop(shake_hands(&daemon.directory.tenant_socket(), hello.as_bytes()).unwrap());
    }
    wait_until(PATIENCE, || daemon.status().tenants.is_empty());
    // Other tests run beside this test, with some tens of descriptors of their own.
    assert!(descriptors() < before + 250, "{} after {before}", descriptors());
    for number in 0..300 {
        drop(daemon.join(&format!("s{number}"), 0, 0));
    }
    wait_until(PATIENCE, || daemon.status().tenants.iter().all(|tenant| tenant.sessions.is_empty()));
    assert!(daemon.status().tenants.len() <= 257);
}

#[test]
fn nothing_that_a_tenant_says_of_itself_reaches_a_terminal_as_it_is() {
    let daemon = daemon_of_one_gpu();
    let mut hello = daemon.hello(Role::Session, "a");
    deepres_abi::wire::set_text(&mut hello.client, "py\u{1b}[31m\nthon");
    let _tenant = Tenant::connect(&daemon.directory.tenant_socket(), &hello).unwrap();
    assert_eq!(daemon.status().tenants[0].sessions[0].client, "py?[31m?thon");
    // The daemon ignores a text that cannot be a name. The process then belongs to the tenant of
    // its process tree.
    for text in [" ", "a ", "a\u{1b}[31m", "-a"] {
        deepres_abi::wire::set_text(&mut hello.tenant, text);
        let _again = Tenant::connect(&daemon.directory.tenant_socket(), &hello).unwrap();
        assert!(daemon.status().tenants.iter().all(|tenant| tenant.name == "a"), "{text:?}");
    }
}

#[test]
fn a_tenant_is_remembered_for_a_while_after_its_end_and_then_forgotten() {
    let daemon = Daemon::start(1, Config { tenant_linger_s: 1, ..Config::default() });
    let tenant = daemon.join("a", 0, 0);
    tenant.slot().kernel_launches.store(7, Ordering::Relaxed);
    drop(tenant);
    wait_until(PATIENCE, || daemon.status().tenants[0].sessions.is_empty());
    assert_eq!(daemon.status().tenants[0].gpus[0].kernel_launches, 7);
    wait_until(PATIENCE, || daemon.status().tenants.is_empty());
}

#[test]
fn a_daemon_that_was_started_for_a_job_ends_when_it_was_idle_for_long_enough() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = Directory::at(scratch.path().join("d"));
    let options = Options {
        directory: directory.clone(),
        config: Config { idle_exit_s: 1, ..Config::default() }.into(),
        gpus: Vec::new(),
        topology: None,
        faults: Default::default(),
        locks: vec![scratch.path().to_owned()],
        inherited: Default::default(),
        exits_idle: true,
    };
    let (ready, is_ready) = std::sync::mpsc::channel();
    let serve = move || deepres_daemon::run(options, || ready.send(()).unwrap(), std::future::pending());
    let thread = std::thread::spawn(serve);
    is_ready.recv().unwrap();
    let keeper = hello(Role::Keeper, "a", &[]);
    let (kept, ..) = shake_hands(&directory.tenant_socket(), keeper.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(1_500));
    assert!(!thread.is_finished(), "someone is there");
    drop(kept);
    wait_until(PATIENCE, || thread.is_finished());
    thread.join().unwrap().unwrap();
    assert!(!directory.tenant_socket().exists());
}

#[test]
fn a_daemon_whose_gpu_roots_has_taken_opens_its_gates_and_ends() {
    let daemon = daemon_of_one_gpu();
    let (_a, b) = (daemon.join("a", 0, 0), daemon.join("b", 0, 0));
    assert_eq!(b.gate().gate().state, GateState::Closed);
    let lock = std::fs::read_dir(daemon.locks()).unwrap().map(|entry| entry.unwrap().path());
    let lock = lock.filter(|path| path.extension().is_some_and(|end| end == "lock")).collect::<Vec<_>>();
    let [lock] = lock.as_slice() else { panic!("{lock:?}") };
    let of_another = lock.with_extension("new");
    std::fs::write(&of_another, "root's").unwrap();
    std::fs::rename(&of_another, lock).unwrap();
    wait_until(PATIENCE, || daemon.has_ended());
    assert_eq!(b.gate().gate().state, GateState::Open, "jobs go on");
    assert_eq!(std::fs::read_to_string(lock).unwrap(), "root's", "the daemon leaves root's file alone");
}

#[test]
fn a_session_that_ends_while_its_process_lives_is_left_with_an_open_gate() {
    let daemon = daemon_of_one_gpu();
    let (_a, b) = (daemon.join("a", 0, 0), daemon.join("b", 0, 0));
    let gate = b.gate();
    drop(b.connection);
    wait_until(RECLAIM_LIMIT, || gate.gate().state == GateState::Open);
}

#[test]
fn a_place_in_an_account_in_which_a_living_process_may_still_write_is_given_to_nobody() {
    let daemon = daemon_of_one_gpu();
    let stays = daemon.join("a", 0, 1_000);
    let leaves = daemon.join("a", 0, 1_000);
    let slots = || stays.ledger.gpu(0).unwrap().slots();
    assert_eq!(slots(), 2);
    drop(leaves.connection);
    wait_until(RECLAIM_LIMIT, || daemon.status().tenants[0].sessions.len() == 1);
    let comes = daemon.join("a", 0, 1_000);
    assert_ne!(comes.welcome.ledger_slot, leaves.welcome.ledger_slot, "this process had that one");
    // A call that the process began during its session ends in its former slot, and the tenant's
    // account includes its memory.
    let account = leaves.ledger.gpu(0).unwrap().account(leaves.welcome.ledger_slot as usize).unwrap();
    account.charge(100);
    assert_eq!((slots(), daemon.status().tenants[0].gpus[0].memory_bytes), (3, 100));
    assert!(!comes.allocate(901) && comes.allocate(900));
}

#[test]
fn the_share_of_an_idle_tenant_is_the_others_until_it_wants_it() {
    let daemon = daemon_of_one_gpu();
    let [notebook, half, plain] = [("notebook", 1_000_000), ("half", 500_000), ("plain", 0)]
        .map(|(name, ppm)| daemon.join(name, ppm, 0));
    let wants = |tenant: &Tenant| {
        tenant.slot().enter_wait();
        tenant.ring();
    };
    let owed = || [&notebook, &half, &plain].map(|tenant| tenant.gate().entitled_ppm());
    [&half, &plain].into_iter().for_each(wants);
    wait_until(Duration::from_secs(1), || owed() == [660_000, 330_000, 10_000]);
    wait_until(Duration::from_secs(5), || owed() == [660_000, 500_000, 500_000]);
    let share = explained(&daemon, "notebook").derivation;
    assert!(share.is_idle && share.owed.ppm == 660_000 && share.present.ppm == 0, "{share:?}");
    let lent: Vec<bool> = daemon.status().tenants.iter().map(|tenant| tenant.gpus[0].is_lent).collect();
    assert_eq!(lent, [false, true, false], "half, notebook, plain");
    wants(&notebook);
    wait_until(Duration::from_secs(1), || owed() == [660_000, 330_000, 10_000]);
    // The daemon treats a paused tenant as idle, so the other tenants are owed its part.
    daemon.client().ask(&Request::Pause { tenant: "notebook".to_owned() }).unwrap();
    wait_until(Duration::from_secs(1), || owed() == [660_000, 500_000, 500_000]);
}

/// Returns the derivation of a tenant's share of the only GPU.
fn explained(daemon: &Daemon, tenant: &str) -> ShareStatus {
    match daemon.client().ask(&Request::Explain { tenant: tenant.to_owned() }).unwrap() {
        Reply::Explained { mut gpus } => gpus.remove(0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn facts_about_a_job_weigh_where_no_share_was_asked_for_and_the_terms_add_up_to_the_share() {
    let daemon = daemon_of_one_gpu();
    let plain = daemon.join("plain", 0, 0);
    let mut hello = daemon.hello(Role::Session, "urgent");
    let wish = Wish {
        criticality: Some(Criticality::CRITICAL),
        deadline_ns: Some(7_200_000 * MS),
        size_ns: Some(3_600_000 * MS),
        slo_ns: Some(30 * MS),
        ..Wish::default()
    };
    hello.wishes = wish.encode();
    let urgent = Tenant::connect(&daemon.directory.tenant_socket(), &hello).unwrap();
    let owed = |tenant: &Tenant| tenant.gate().entitled_ppm();
    wait_until(Duration::from_secs(2), || owed(&urgent) > owed(&plain) && owed(&plain) > 0);
    assert!(owed(&urgent) + owed(&plain) <= 1_000_000);

    let share = explained(&daemon, "urgent");
    let priority = share.priority;
    let products = [priority.urgency, priority.size, priority.criticality].map(|term| term.product);
    assert!(
        (products.iter().sum::<f64>() * 1e6 - f64::from(priority.value_ppm)).abs() <= 1.0,
        "{priority:?}"
    );
    assert_eq!((priority.criticality.value, priority.size.value), (1.0, 0.5));
    assert!(priority.urgency.value > 0.1 && priority.deadline_in_ns.unwrap() > 7_000_000 * MS);
    for sum in [&share.derivation.owed, &share.derivation.present] {
        assert_eq!(sum.terms.iter().map(|term| term.ppm).sum::<i64>(), i64::from(sum.ppm), "{sum:?}");
    }
    let granted = daemon.status().tenants.into_iter().find(|tenant| tenant.name == "urgent").unwrap().granted;
    assert_eq!(granted.unwrap().slo_ns.value, Some(30 * MS));

    // An administrator's setting takes precedence over the job's wish.
    let wish =
        Wish { criticality: "low".parse().ok(), deadline_ns: Some(72_000_000 * MS), ..Wish::default() };
    daemon.client().ask(&Request::set("urgent", wish)).unwrap();
    let after = explained(&daemon, "urgent");
    assert_eq!(after.priority.criticality.value, 0.25);
    assert!(after.priority.urgency.value < priority.urgency.value);
    assert!(after.derivation.owed.ppm < share.derivation.owed.ppm);
    assert!(matches!(
        daemon.client().ask(&Request::Explain { tenant: "nobody".to_owned() }),
        Err(ClientError::Refused(message)) if message.contains("plain, urgent")
    ));
}

#[test]
fn the_configuration_bounds_criticality_and_a_job_that_states_nothing_has_the_defaults() {
    let caps = Caps { criticality: Criticality::default(), deadline: false, ..Caps::NONE };
    let defaults = toml::from_str("class = \"best-effort\"\ncriticality = \"low\"").unwrap();
    let daemon = Daemon::start(1, Config { caps, defaults, ..Config::default() });
    let mut hello = daemon.hello(Role::Keeper, "grand");
    let critical = Wish { criticality: Some(Criticality::CRITICAL), ..Wish::default() };
    hello.wishes = critical.encode();
    let socket = daemon.directory.tenant_socket();
    let (_, reason) = shake_hands(&socket, hello.as_bytes()).err().unwrap();
    assert!(reason.contains("the job asked for criticality critical"), "{reason}");
    // A running session gets the largest share that its cap allows.
    hello.role = Role::Session as u32;
    hello.wishes = Wish { deadline_ns: Some(1), ..critical }.encode();
    let _grand = Tenant::connect(&socket, &hello).unwrap();
    let share = explained(&daemon, "grand");
    assert_eq!((share.priority.criticality.value, share.priority.deadline_in_ns), (0.5, None));
    assert_eq!(share.class, "best-effort");
    let _plain = daemon.join("plain", 0, 0);
    assert_eq!(explained(&daemon, "plain").priority.criticality.value, 0.25);
}

#[test]
fn the_time_that_a_job_used_is_counted_on_all_gpus_and_the_next_job_of_that_name_begins_with_none() {
    let daemon = Daemon::start(2, Config::default());
    let each_ns = 20 * MS;
    let job = daemon.join("job", 0, 0);
    // The arbiter charges no more than the time that passed.
    std::thread::sleep(Duration::from_millis(100));
    for gpu in 0..2 {
        job.meter.slot(gpu).unwrap().compute_ns.fetch_add(each_ns, Ordering::Relaxed);
    }
    wait_until(Duration::from_secs(5), || explained(&daemon, "job").priority.used_ns == 2 * each_ns);
    drop(job);
    let explain = || daemon.client().ask(&Request::Explain { tenant: "job".to_owned() }).unwrap();
    wait_until(Duration::from_secs(5), || matches!(explain(), Reply::Explained { gpus } if gpus.is_empty()));
    let _next = daemon.join("job", 0, 0);
    assert_eq!(explained(&daemon, "job").priority.used_ns, 0);
}
