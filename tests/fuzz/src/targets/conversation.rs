//! A whole daemon, and processes that send arbitrary data to its sockets and write arbitrary data
//! into the pages that they get.

use arbitrary::{Result, Unstructured};
use deepres_abi::class::Class;
use deepres_abi::criticality::Criticality;
use deepres_abi::wire::{self, Hello, MAX_FRAME_BYTES, Notice, PAGE_FDS, Refusal, Role, View, Welcome};
use deepres_abi::wish::Wish;
use deepres_daemon_harness::{Daemon, hello, say};
use deepres_model::clock::monotonic_ns;
use deepres_model::config::Config;
use deepres_model::packet;
use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use zerocopy::IntoBytes;

/// Most connections of one input at a time.
const MAX_PEERS: usize = 6;
/// Most steps of one input.
const MAX_STEPS: usize = 48;
/// Longest time that an admin connection waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
const GPUS: usize = 2;

/// One daemon for all inputs. The next input finds everything that an input leaves behind.
static DAEMON: LazyLock<Mutex<Daemon>> = LazyLock::new(|| {
    // The daemon forgets ended tenants at once, so that inputs do not depend on each other for
    // long.
    let config = Config { tenant_linger_s: 0, ..Config::default() };
    Mutex::new(Daemon::start(GPUS, config))
});

/// A process that the daemon admitted.
struct Peer {
    connection: OwnedFd,
    descriptors: Vec<OwnedFd>,
}

/// The daemon answers every process that says hello, and its accounts stay possible, for any
/// packets.
pub fn run(data: &[u8]) {
    let daemon = DAEMON.lock().unwrap_or_else(PoisonError::into_inner);
    let mut input = Unstructured::new(data);
    let mut peers = Vec::new();
    for _ in 0..MAX_STEPS {
        if input.is_empty() || step(&daemon, &mut peers, &mut input).is_err() {
            break;
        }
    }
    let status = daemon.status();
    for tenant in &status.tenants {
        for account in &tenant.gpus {
            assert!(account.gpu_ns <= status.now_ns - status.daemon.started_ns, "{account:?}");
        }
    }
}

fn step(daemon: &Daemon, peers: &mut Vec<Peer>, input: &mut Unstructured<'_>) -> Result<()> {
    match input.int_in_range(0..=7_u8)? {
        0 | 1 => {
            let hello = any_hello(daemon, input)?;
            meet(daemon, peers, hello.as_bytes());
        }
        2 => {
            let length = input.int_in_range(1..=MAX_FRAME_BYTES + 8)?;
            let length = length.min(input.len());
            let bytes = input.bytes(length)?;
            if !bytes.is_empty() {
                meet(daemon, peers, bytes);
            }
        }
        3 => {
            // The frame is correct except for a few bytes.
            let mut bytes = any_hello(daemon, input)?.as_bytes().to_vec();
            for _ in 0..input.int_in_range(1..=4_u8)? {
                let at = input.choose_index(bytes.len())?;
                bytes[at] = input.arbitrary()?;
            }
            bytes.truncate(input.int_in_range(1..=bytes.len())?);
            meet(daemon, peers, &bytes);
        }
        4 | 5 if !peers.is_empty() => {
            let peer = &peers[input.choose_index(peers.len())?];
            scribble(peer, input)?;
        }
        6 if !peers.is_empty() => {
            let gone = peers.swap_remove(input.choose_index(peers.len())?);
            if input.arbitrary()? {
                // The session sends a message that no session ever sends.
                let _ = rustix::io::write(&gone.connection, b"more");
            }
        }
        _ => {
            let length = input.arbitrary_len::<u8>()?;
            ask(daemon, input.bytes(length)?);
        }
    }
    Ok(())
}

fn any_hello(daemon: &Daemon, input: &mut Unstructured<'_>) -> Result<Hello> {
    let role = if input.ratio(1, 4)? { Role::Keeper } else { Role::Session };
    let name = *input.choose(&["a", "b", "", "c\u{7}", "\u{202e}d", "é"])?;
    let mut hello = hello(role, name, &daemon.uuids());
    if input.ratio(1, 8)? {
        hello.monotonic_ns = input.arbitrary()?;
    } else {
        hello.monotonic_ns = monotonic_ns();
    }
    let mut wish = Wish::default();
    if input.arbitrary()? {
        wish.share_ppm = Some(input.arbitrary()?);
    }
    if input.arbitrary()? {
        wish.memory_bytes = Some(input.arbitrary()?);
    }
    if input.ratio(1, 8)? {
        hello.gpu_count = input.arbitrary()?;
        hello.gpu_uuids[2] = hello.gpu_uuids[0];
    }
    // A field that takes one of a few numbers often gets one of them, or the next number.
    if input.ratio(1, 8)? {
        hello.role = input.int_in_range(0..=7)?;
    }
    if input.ratio(1, 4)? {
        wish.class = Class::from_number(input.int_in_range(0..=5)?);
        hello.oversubscribe = input.int_in_range(0..=4)?;
    }
    if input.ratio(1, 4)? {
        wish.criticality = Some(Criticality::from_ppm(input.arbitrary()?));
        wish.deadline_ns = Some(input.arbitrary()?);
        wish.size_ns = Some(input.arbitrary()?);
        wish.slo_ns = Some(input.arbitrary()?);
        wish.memory_follows_use = Some(input.arbitrary()?);
        wish.charge_copies = Some(input.arbitrary()?);
        wish.labels = input.arbitrary::<&str>()?.parse().ok();
        wish.sm_ppm = Some(input.arbitrary()?);
    }
    hello.wishes = wish.encode();
    if input.ratio(1, 8)? {
        input.fill_buffer(&mut hello.wishes)?;
    }
    if input.ratio(1, 8)? {
        hello.sessions_before = input.arbitrary()?;
        hello.pid = input.arbitrary()?;
    }
    if input.ratio(1, 8)? {
        input.fill_buffer(&mut hello.tenant)?;
    }
    if input.ratio(1, 8)? {
        input.fill_buffer(&mut hello.client)?;
    }
    if input.ratio(1, 8)? {
        input.fill_buffer(hello.profile.as_mut_bytes())?;
    }
    Ok(hello)
}

/// Sends `bytes` to the tenant socket. The daemon answers with one frame, except to an
/// announcement.
fn meet(daemon: &Daemon, peers: &mut Vec<Peer>, bytes: &[u8]) {
    if peers.len() >= MAX_PEERS {
        peers.remove(0);
    }
    if wire::decode::<Hello>(bytes).is_ok_and(|hello| hello.role() == Some(Role::Arriving)) {
        let connection = packet::connection(&daemon.directory.tenant_socket()).expect("the daemon listens");
        packet::send(&connection, bytes, &[]).expect("there is room");
        peers.push(Peer { connection, descriptors: Vec::new() });
        return;
    }
    let (connection, answer, descriptors) = say(&daemon.directory.tenant_socket(), bytes);
    if let Ok(refusal) = wire::decode::<Refusal>(&answer) {
        let reason = wire::text(&refusal.reason).expect("it is text");
        assert!(!reason.is_empty() && !reason.contains('\n'), "{reason:?}");
    } else if wire::decode::<View>(&answer).is_err() && wire::decode::<Notice>(&answer).is_err() {
        wire::decode::<Welcome>(&answer).expect("a refusal, a welcome, a view or a notice");
        peers.push(Peer { connection, descriptors });
    }
}

/// Writes arbitrary bytes at any place of a page that the peer got, and rings the peer's bells.
fn scribble(peer: &Peer, input: &mut Unstructured<'_>) -> Result<()> {
    let Some(page) = peer.descriptors.get(input.choose_index(PAGE_FDS)?) else { return Ok(()) };
    let offset = u64::from(input.arbitrary::<u16>()?);
    let length = usize::from(input.arbitrary::<u8>()?).min(input.len());
    // The kernel refuses the write to the daemon's pages, and past the end of the others.
    let _ = rustix::io::pwrite(page, input.bytes(length)?, offset);
    for bell in peer.descriptors.iter().skip(PAGE_FDS) {
        let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
    }
    Ok(())
}

/// Sends `line` to the admin socket. Every line that is not empty gets an answer.
fn ask(daemon: &Daemon, line: &[u8]) {
    let mut stream = UnixStream::connect(daemon.directory.admin_socket()).expect("the daemon listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout that is not zero");
    let line: Vec<u8> = line.iter().copied().filter(|byte| *byte != b'\n').collect();
    // The daemon may have closed the connection after the first part of a long line.
    let sent = stream.write_all(&line).and_then(|()| stream.write_all(b"\n"));
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = String::new();
    let read = BufReader::new(stream).read_line(&mut answer);
    if sent.is_ok() {
        assert!(read.expect("an answer") > 0, "no answer to {:?}", String::from_utf8_lossy(&line));
        serde_json::from_str::<deepres_model::admin::Reply>(&answer).expect("a reply");
    }
}
