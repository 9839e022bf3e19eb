//! The tenant socket: lets processes in, and notices when they are gone.

use super::connections::{Turn, TurnedAway, Turns};
use super::registry::{Admitted, Guest, Membership, Refused, Registry};
use super::{Shared, view};
use crate::identity::source::Source;
use crate::identity::{self, Facts};
use crate::probes::Announced;
use crate::probes::metering::{self, Purpose};
use deepres_abi::wire::{self, FrameError, Hello, Refusal, RefusalKind, Role};
use deepres_model::clock::monotonic_ns;
use deepres_model::packet::{self, Packet};
use deepres_model::peer::{Peer, is_dead};
use deepres_model::process::ProcessKey;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SocketFlags, accept_with};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;
use zerocopy::IntoBytes;

/// A peer that has not said hello by then is dropped.
const HELLO_LIMIT: Duration = Duration::from_secs(2);
/// Arbiters answer within microseconds; this is for one that is gone.
const READY_LIMIT: Duration = Duration::from_secs(1);
/// How long the driver may take to start in a process that said that it will begin a session. Then it is a stranger like others.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(300);
/// How long whoever closed its connection may take to die of what closed it; after that it lives on without one.
const DYING_LIMIT: Duration = Duration::from_millis(30);
/// Clocks further apart than this are different clocks: a hello is read within milliseconds of being written.
const CLOCK_LIMIT_NS: u64 = Duration::from_secs(5).as_nanos() as u64;
/// Connections that are accepted before those that were before have a turn. They come one after another, whoever's they are: so that nobody waits
/// behind a flood of another's, all are taken in soon, and then each user has its turn ([`super::connections::Connections::enter`]).
const ACCEPTS_AT_A_TIME: usize = 32;
/// Pause after a failed accept (no descriptors left, mostly), so that the failure does not become a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Lets processes in, for ever.
pub async fn serve(listener: OwnedFd, shared: Rc<Shared>) -> io::Result<()> {
    let listener = watched(listener)?;
    loop {
        let mut ready = listener.readable().await?;
        for _ in 0..ACCEPTS_AT_A_TIME {
            let accepted = ready
                .try_io(|listener| Ok(accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?));
            match accepted {
                Ok(Ok(connection)) => admit(connection, &shared),
                Ok(Err(error)) => {
                    if shared.lines.allows_unknown() {
                        tracing::warn!(%error, "cannot accept a tenant");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    break;
                }
                // There are no more, or it was not ready after all.
                Err(_) => break,
            }
        }
        // Whoever floods the socket keeps it ready, and nothing else here would ever have its turn.
        tokio::task::yield_now().await;
    }
}

/// A descriptor whose readiness to read can be awaited.
fn watched(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is one open descriptor until it is dropped, and the result owns it.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?)
}

/// Starts to serve one connection, or to refuse it if there is no room.
fn admit(connection: OwnedFd, shared: &Rc<Shared>) {
    let Ok(peer) = Peer::of(connection.as_fd()) else { return };
    let death = match peer.death(connection.as_fd()) {
        Ok(Some(death)) => Some(death),
        Ok(None) => return,
        // A kernel without pidfds, or a peer in another namespace: the connection's end has to do.
        Err(_) => None,
    };
    // In a user namespace one user can be any of thousands.
    let source = Source::of(peer.pid, identity::read::owner(peer.pid, peer.uid));
    if death.as_ref().is_some_and(|death| is_dead(death.as_fd())) {
        // Whose it was cannot be told any more: it would be counted as one of those thousands.
        return;
    }
    // Counted before the next one is looked at.
    let place = match Counted::enter(&source, shared) {
        Ok(counted) => Place::Counted(counted),
        Err(_) => match shared.connections.turn_away() {
            Some(turned_away) => Place::None(turned_away),
            None => return,
        },
    };
    let shared = Rc::clone(shared);
    tokio::task::spawn_local(async move {
        let (pid, uid) = (peer.pid, peer.uid);
        match attend(connection, peer, death, (source, place), &shared).await {
            Ok(()) => {}
            // It hung up, which is its own affair: whoever does that all the time fills no log.
            Err(error) if is_end_of_peer(&error) => tracing::debug!(pid, uid, %error, "a tenant hung up"),
            Err(error) => tracing::warn!(pid, uid, %error, "a tenant's connection failed"),
        }
    });
}

/// The other side is gone.
fn is_end_of_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Whether there was room for a connection when it came.
enum Place {
    Counted(Counted),
    None(TurnedAway),
}

/// A connection that counts, for as long as this lives.
struct Counted {
    shared: Rc<Shared>,
    source: Source,
    turns: Turns,
}

impl Counted {
    fn enter(source: &Source, shared: &Rc<Shared>) -> Result<Self, Refused> {
        let turns = shared.connections.enter(source, shared.registry.borrow().config())?;
        Ok(Self { shared: Rc::clone(shared), source: source.clone(), turns })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.shared.connections.leave(&self.source);
    }
}

/// One connection. Of a source of which enough was logged lately, its failure is none to tell of.
async fn attend(
    connection: OwnedFd,
    peer: Peer,
    death: Option<OwnedFd>,
    (source, place): (Source, Place),
    shared: &Rc<Shared>,
) -> io::Result<()> {
    match hear(connection, peer, death, (&source, place), shared).await {
        Err(error) if !is_end_of_peer(&error) && !shared.lines.allows(&source) => Ok(()),
        outcome => outcome,
    }
}

/// One connection: hears its hello, and refuses whoever comes when there is no room only then, since a connection closed before would be an error to
/// them, and the reason lost.
async fn hear(
    connection: OwnedFd,
    peer: Peer,
    death: Option<OwnedFd>,
    (source, place): (&Source, Place),
    shared: &Rc<Shared>,
) -> io::Result<()> {
    let connection = watched(connection)?;
    let received = timeout(HELLO_LIMIT, receive(&connection)).await;
    let counted = match place {
        Place::Counted(counted) => counted,
        // Those whose place was taken may have been about to begin, and be counted no more.
        Place::None(_turned_away) => match Counted::enter(source, shared) {
            Ok(counted) => counted,
            Err(full) => {
                refuse(connection.as_fd(), &full);
                return Ok(());
            }
        },
    };
    let Ok(packet) = received else { return Ok(()) };
    let Some(packet) = packet? else { return Ok(()) };
    let is_arriving =
        wire::decode::<Hello>(packet.bytes()).is_ok_and(|hello| hello.role() == Some(Role::Arriving));
    if !is_arriving {
        let turn = counted.turns.next(|| has_hung_up(connection.as_fd())).await;
        // Those of others that wait go between this one and the next of its own.
        tokio::task::yield_now().await;
        if has_hung_up(connection.as_fd()) {
            // What letting it in takes is better spent on those who wait for it.
            return Ok(());
        }
        return converse(connection, packet, (peer, source), (death, turn), shared).await;
    }
    // The session that follows is to find the place.
    drop(counted);
    if let Some(_counted) = shared.connections.arrive(source).filter(|_| peer.pid != 0) {
        expect(&connection, peer, death, shared).await?;
    }
    Ok(())
}

/// Takes a process that is about to begin a session for no stranger, until it says no more that it is.
async fn expect(
    connection: &AsyncFd<OwnedFd>,
    peer: Peer,
    death: Option<OwnedFd>,
    shared: &Shared,
) -> io::Result<()> {
    let death = death.map(watched).transpose()?;
    let Some(who) = ProcessKey::of(peer.pid) else { return Ok(()) };
    let now_ns = monotonic_ns();
    let connected = shared.registry.borrow().connected();
    let limit_ns = u64::try_from(ARRIVAL_LIMIT.as_nanos()).unwrap_or(u64::MAX);
    if let Some(announced) = Announced::new(&connected, who, now_ns, limit_ns) {
        let left = Duration::from_nanos(announced.until_ns - now_ns);
        let _ = timeout(left, end_of(connection, death.as_ref())).await;
    }
    Ok(())
}

/// Whether nobody is at the other end any more.
fn has_hung_up(connection: BorrowedFd<'_>) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut polled = [PollFd::from_borrowed_fd(connection, PollFlags::RDHUP)];
    poll(&mut polled, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// One connection of whoever is a tenant's, from hello to its end. Others of its user have their `turn` once it is let in or refused.
async fn converse(
    connection: AsyncFd<OwnedFd>,
    packet: Packet,
    (peer, source): (Peer, &Source),
    (death, turn): (Option<OwnedFd>, Option<Turn<'_>>),
    shared: &Rc<Shared>,
) -> io::Result<()> {
    // Before the session exists, so that there is no moment in which its death would go unnoticed.
    let death = death.map(watched).transpose()?;
    let facts = Facts::read(peer.pid, peer.uid);
    if death.as_ref().is_some_and(|death| is_dead(death.as_fd())) {
        // Its number may be another's by now, and with it what was read.
        return Ok(());
    }
    // A process can be in thousands of groups. Those that no cap names are nothing to us.
    let mut groups = peer.groups(connection.as_fd());
    groups.retain(|group| shared.registry.borrow().config().groups.contains_key(&group.to_string()));
    groups.sort_unstable();
    groups.dedup();
    let guest = Guest { peer, groups, facts, source: source.clone() };
    if let Ok(hello) = wire::decode::<Hello>(packet.bytes())
        && let Some(Role::Viewer | Role::Appraised) = hello.role()
    {
        drop(turn);
        return view::answer(connection.as_fd(), &guest, &hello, shared).await;
    }
    let introduced = if shared.is_stopping.get() {
        Err(Refused::new(RefusalKind::Stopping, "the daemon is going down: try again once it is back"))
    } else {
        introduce(&guest, &packet, &mut shared.registry.borrow_mut())
    };
    drop(turn);
    let admitted = match introduced {
        Ok(admitted) => admitted,
        Err(refused) => {
            if shared.lines.allows_refusal(source, peer.pid, &refused.reason) {
                tracing::info!(pid = peer.pid, uid = peer.uid, reason = refused.reason, "refused");
            }
            refuse(connection.as_fd(), &refused);
            return Ok(());
        }
    };
    let Admitted { tenant, membership, welcome, pages, ready } = admitted;
    shared.note_change();
    for answer in ready {
        // Without an answer the session begins with its gate closed, and goes by the heartbeat.
        let _ = timeout(READY_LIMIT, answer).await;
    }
    // The user's others have been told what they may hold beside it.
    let ready = shared.registry.borrow_mut().share_out_anew(&tenant);
    for answer in ready {
        let _ = timeout(READY_LIMIT, answer).await;
    }
    if let Some(pid) = wants_metering(&packet)
        && let Err(reason) = meter(peer, pid, &tenant, shared).await
    {
        if shared.lines.allows(source) {
            tracing::info!(pid = peer.pid, uid = peer.uid, reason, "not metered from outside");
        }
        refuse(connection.as_fd(), &Refused::new(RefusalKind::Request, reason));
        depart(shared, &tenant, membership);
        return Ok(());
    }
    let sent = {
        let mut descriptors: Vec<BorrowedFd<'_>> = Vec::new();
        if let Some(pages) = &pages {
            descriptors.extend([
                pages.grant.as_fd(),
                pages.meter.as_fd(),
                pages.ledger.as_fd(),
                pages.beat.as_fd(),
            ]);
            descriptors.extend(pages.bells.iter().map(AsFd::as_fd));
        }
        packet::send(&connection, welcome.as_bytes(), &descriptors)
    };
    // The arbiters keep what they need of them.
    drop(pages);
    if sent.is_ok() {
        end_of(&connection, death.as_ref()).await;
    }
    depart(shared, &tenant, membership);
    sent
}

/// Whoever had this membership is gone.
fn depart(shared: &Shared, tenant: &str, membership: Membership) {
    shared.registry.borrow_mut().depart(tenant, membership);
    shared.note_change();
}

/// The process that a keeper asks to have metered from outside: its own number, or, once it was here before, that of one that it started. Numbers
/// of its own namespace, which need not be ours.
fn wants_metering(packet: &Packet) -> Option<Option<u32>> {
    let hello: Hello = wire::decode(packet.bytes()).ok()?;
    let wants = hello.role() == Some(Role::Keeper) && hello.metering != 0;
    wants.then(|| (hello.sessions_before > 0).then_some(hello.pid))
}

/// Meters a process from outside, by the kernel's word for who it is; returns once it is done.
async fn meter(peer: Peer, named: Option<u32>, tenant: &str, shared: &Rc<Shared>) -> Result<(), String> {
    let pid = match named {
        None => peer.pid,
        Some(pid) if identity::read::is_descendant(pid, peer.pid, peer.uid) => pid,
        Some(pid) => return Err(format!("process {pid} is not one that this one started")),
    };
    let purpose = Purpose { tenant: Some(tenant.to_owned()), is_managed: true };
    match timeout(metering::LIMIT, shared.metering.meter(pid, purpose)).await {
        Ok(Ok(metered)) => metered,
        _ => Err("the daemon's metering thread does not answer; see its log".to_owned()),
    }
}

/// Reads the hello and lets its sender in, or says why not.
fn introduce(guest: &Guest, packet: &Packet, registry: &mut Registry) -> Result<Admitted, Refused> {
    let hello: Hello = wire::decode(packet.bytes()).map_err(|error| {
        let kind = match error {
            FrameError::Major(_) => RefusalKind::Version,
            FrameError::Malformed | FrameError::Kind(_) => RefusalKind::Malformed,
        };
        Refused::new(kind, error.to_string())
    })?;
    if guest.peer.pid == 0 {
        let reason =
            "the process is in a pid namespace that the daemon cannot see: run the daemon in the host's";
        return Err(Refused::new(RefusalKind::Namespace, reason));
    }
    if hello.monotonic_ns.abs_diff(monotonic_ns()) > CLOCK_LIMIT_NS {
        let reason =
            "the process has another monotonic clock than the daemon: run it in the host's time namespace";
        return Err(Refused::new(RefusalKind::Namespace, reason));
    }
    registry.admit(guest, &hello)
}

/// Sends a refusal. A peer that does not read it goes without.
pub fn refuse(connection: BorrowedFd<'_>, refused: &Refused) {
    let refusal = Refusal::new(refused.kind, &refused.reason);
    let _ = packet::send(connection, refusal.as_bytes(), &[]);
}

async fn receive(connection: &AsyncFd<OwnedFd>) -> io::Result<Option<Packet>> {
    loop {
        let mut ready = connection.readable().await?;
        if let Ok(received) = ready.try_io(Packet::receive) {
            return received;
        }
    }
}

/// Returns when the process is dead or the connection at its end. A connection carries nothing after the welcome: whoever
/// sends more is taken to mean that it is done.
async fn end_of(connection: &AsyncFd<OwnedFd>, death: Option<&AsyncFd<OwnedFd>>) {
    let Some(death) = death else {
        let _ = receive(connection).await;
        return;
    };
    // Of what is awaited here an error is as good a reason to look no further.
    tokio::select! {
        _ = death.readable() => {}
        _ = receive(connection) => {
            // A dying process closes its descriptors one by one: what it has of the GPU may go after its connection, and is on its account until then.
            let _ = timeout(DYING_LIMIT, death.readable()).await;
        }
    }
}
