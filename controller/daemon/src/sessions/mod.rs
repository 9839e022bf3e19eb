//! The tenant socket: admits processes, and notices when they die.

pub mod connections;
mod owner;
mod viewer;

use crate::Shared;
use crate::gpus::answers;
use crate::identity::source::Source;
use crate::identity::{self, Facts};
use crate::memory;
use crate::probes::Announced;
use crate::probes::metering::{self, Purpose};
use crate::registry::{Admitted, Guest, Membership, Refused, Registry};
use connections::{Taken, Turn};
use deepres_abi::grant::FailMode;
use deepres_abi::wire::{self, FrameError, Hello, Notice, Refusal, RefusalKind, Role};
use deepres_model::clock::monotonic_ns;
use deepres_model::packet::{self, Packet};
use deepres_model::peer::{Peer, is_dead};
use deepres_model::process::ProcessKey;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SocketFlags, accept_with};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;
use zerocopy::IntoBytes;

/// The time that a peer may take to say hello before the daemon drops the connection.
const HELLO_LIMIT: Duration = Duration::from_secs(2);
/// The time that the driver may take to start in a process that announced a session. After this
/// time, the daemon lists the process as unmanaged.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(300);
/// The time that a process that closed its connection may take to die. After this time, the daemon
/// assumes that the process lives on.
const DYING_LIMIT: Duration = Duration::from_millis(30);
/// The largest difference between the clocks of a process and of the daemon. The daemon reads a
/// hello within milliseconds. So if the difference is larger, the process has another clock than
/// the daemon.
const CLOCK_LIMIT_NS: u64 = Duration::from_secs(5).as_nanos() as u64;
/// The most connections that the daemon accepts before it serves accepted connections. All users
/// share the kernel's queue of connections. The daemon empties this queue fast, and then gives each
/// user its turn ([`connections::Connections::enter`]). So no user waits behind a flood of
/// connections of another user.
const ACCEPTS_AT_A_TIME: usize = 32;
/// The most characters of a command line in a notice.
const COMMAND_SHOWN: usize = 60;
/// Pause after a failed accept, so that the failure does not become a busy loop. Mostly, accept
/// fails because no descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections at the tenant socket, and serves each connection in a task of its own.
/// Returns only with an error.
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
                        tracing::warn!(%error, "the daemon cannot accept a connection");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    break;
                }
                // No more connections wait, or the socket was not ready.
                Err(_) => break,
            }
        }
        // A flood of connections keeps the socket ready. Without this yield, no other task would
        // run.
        tokio::task::yield_now().await;
    }
}

/// Returns the descriptor in a form in which a task can wait until it is readable.
fn watched(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is one open descriptor until it is dropped, and the result owns it.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?)
}

/// Starts to serve one connection. If there is no room, starts to refuse it.
fn admit(connection: OwnedFd, shared: &Rc<Shared>) {
    let Ok(peer) = Peer::of(connection.as_fd()) else { return };
    let death = match peer.death(connection.as_fd()) {
        Ok(Some(death)) => Some(death),
        Ok(None) => return,
        // The kernel has no pidfds, or the peer is in another pid namespace. The daemon then takes
        // the end of the connection for the end of the process.
        Err(_) => None,
    };
    // In a user namespace, one user can have thousands of user ids.
    let source = Source::of(peer.pid, identity::read::owner(peer.pid, peer.uid));
    if death.as_ref().is_some_and(|death| is_dead(death.as_fd())) {
        // The kernel no longer tells the owner of a dead process. So the daemon would count the
        // process for the wrong user.
        return;
    }
    // This line counts the connection before the daemon accepts the next.
    let place = match Counted::enter(&source, shared) {
        Ok(counted) => Place::Counted(counted),
        Err(_) => match shared.connections.turn_away(&source) {
            Some(turned_away) => Place::None(turned_away),
            None => return,
        },
    };
    let shared = Rc::clone(shared);
    tokio::task::spawn_local(async move {
        let (pid, uid) = (peer.pid, peer.uid);
        match attend(connection, peer, death, (source, place), &shared).await {
            Ok(()) => {}
            // If a peer hangs up, the log has no warning. So a peer that hangs up again and again
            // does not fill the log.
            Err(error) if is_end_of_peer(&error) => tracing::debug!(pid, uid, %error, "a tenant hung up"),
            Err(error) => tracing::warn!(pid, uid, %error, "a tenant's connection failed"),
        }
    });
}

/// Returns whether the error means that the peer closed the connection.
fn is_end_of_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// The answer of the limits to a new connection: a place, or no room.
enum Place {
    Counted(#[expect(dead_code, reason = "its drop ends the counting")] Counted),
    None(Taken),
}

/// A connection that the limits count. The drop ends the counting.
struct Counted {
    shared: Rc<Shared>,
    source: Source,
}

impl Counted {
    fn enter(source: &Source, shared: &Rc<Shared>) -> Result<Self, Refused> {
        shared.connections.enter(source, shared.registry.borrow().config())?;
        Ok(Self { shared: Rc::clone(shared), source: source.clone() })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.shared.connections.leave(&self.source);
    }
}

/// Serves one connection. Does not log the error if the source has caused too many log lines
/// lately.
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

/// Serves one connection: reads the hello, and then admits the peer or refuses it. Without room,
/// the refusal also waits for the hello, which says whose limits the refusal has to tell.
async fn hear(
    connection: OwnedFd,
    peer: Peer,
    death: Option<OwnedFd>,
    (source, place): (&Source, Place),
    shared: &Rc<Shared>,
) -> io::Result<()> {
    let connection = watched(connection)?;
    let received = timeout(HELLO_LIMIT, receive(&connection)).await;
    let (place, full) = match place {
        // Processes that are about to begin a session may have taken the room, and no longer count
        // now.
        Place::None(turned_away) => match Counted::enter(source, shared) {
            Ok(counted) => (Place::Counted(counted), None),
            Err(full) => (Place::None(turned_away), Some(full)),
        },
        counted => (counted, None),
    };
    let Some(packet) = received.unwrap_or(Ok(None))? else { return Ok(()) };
    let (hello, unseen) = match heard(packet.bytes(), peer) {
        Ok(heard) => heard,
        Err(refused) => {
            turn_down(connection.as_fd(), (peer, source), &refused, None, shared);
            return Ok(());
        }
    };
    if hello.role() != Some(Role::Arriving) {
        let turns = shared.connections.turns(source);
        let turn = turns.next(|| has_hung_up(connection.as_fd())).await;
        // The yield lets the waiting connections of other sources go before the next connection of
        // this source.
        tokio::task::yield_now().await;
        if has_hung_up(connection.as_fd()) {
            // The daemon does not spend time on a peer that no longer waits.
            return Ok(());
        }
        return converse(connection, (&hello, unseen.or(full)), (peer, source), (death, turn), shared).await;
    }
    // The drop frees the place for the session that follows.
    drop(place);
    if full.is_none()
        && let Some(_counted) = shared.connections.arrive(source).filter(|_| peer.pid != 0)
    {
        expect(&connection, peer, death, shared).await?;
    }
    Ok(())
}

/// Remembers that a process is about to begin a session, so that the daemon does not list the
/// process as unmanaged. The daemon forgets this when the connection ends.
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

/// Returns whether the peer has hung up.
fn has_hung_up(connection: BorrowedFd<'_>) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut polled = [PollFd::from_borrowed_fd(connection, PollFlags::RDHUP)];
    poll(&mut polled, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// Serves one connection of a tenant, from the hello to its end. `refused` is the reason for which
/// the daemon answers no hello of the peer, if there is one. `turn` ends when the daemon has
/// admitted or refused the peer. The next connection of the source then gets its turn.
async fn converse(
    connection: AsyncFd<OwnedFd>,
    (hello, refused): (&Hello, Option<Refused>),
    (peer, source): (Peer, &Source),
    (death, turn): (Option<OwnedFd>, Option<Turn<'_>>),
    shared: &Rc<Shared>,
) -> io::Result<()> {
    let role = hello.role();
    if let (Some(refused), Some(Role::Viewer | Role::Appraised | Role::Owner)) = (&refused, role) {
        // A program can ask for its view many times a second, so the log leaves out these roles.
        refuse(connection.as_fd(), refused, None, shared);
        return Ok(());
    }
    // The watch begins before the session exists, so that the daemon does not miss the death of the
    // process.
    let death = death.map(watched).transpose()?;
    let facts = Facts::read(peer.pid, peer.uid);
    if death.as_ref().is_some_and(|death| is_dead(death.as_fd())) {
        // Another process can have the pid by now, and the facts can be of that process.
        return Ok(());
    }
    // A process can be in thousands of groups. Only the groups that have caps matter here.
    let mut groups = peer.groups(connection.as_fd());
    groups.retain(|group| shared.registry.borrow().config().groups.contains_key(&group.to_string()));
    groups.sort_unstable();
    groups.dedup();
    // A refused process must not make the daemon ask Slurm again and again.
    let joins = refused.is_none() && matches!(role, Some(Role::Session | Role::Keeper));
    let allotment = shared.slurm.allotment(&facts, &shared.registry, joins).await;
    if death.as_ref().is_some_and(|death| is_dead(death.get_ref().as_fd())) {
        // The process died while Slurm answered.
        return Ok(());
    }
    let guest = Guest { peer, groups, facts, source: source.clone(), allotment };
    match role {
        Some(Role::Viewer | Role::Appraised) => {
            drop(turn);
            return viewer::answer(connection.as_fd(), &guest, hello, shared).await;
        }
        // The turn lasts, so that the questions of one user come one after another.
        Some(Role::Owner) => return owner::answer(connection.as_fd(), &guest, hello, shared).await,
        _ => {}
    }
    let introduced = match refused {
        Some(refused) => Err(refused),
        None if shared.is_stopping.get() => {
            let reason = "the daemon is stopping; try again once a daemon runs again";
            Err(Refused::new(RefusalKind::Stopping, reason))
        }
        None => introduce(&guest, hello, &mut shared.registry.borrow_mut()),
    };
    drop(turn);
    let admitted = match introduced {
        Ok(admitted) => admitted,
        Err(refused) => {
            turn_down(connection.as_fd(), (peer, source), &refused, Some((&guest, hello)), shared);
            return Ok(());
        }
    };
    let Admitted { tenant, membership, mut welcome, pages, ready } = admitted;
    welcome.is_of_run = u32::from(shared.is_of_run);
    if matches!(membership, Membership::Keeper(_)) {
        shared.mps.borrow().hand_on(&mut welcome);
    }
    shared.note_change();
    // If the arbiters do not answer, the session begins with a closed gate, and watches the
    // heartbeat.
    let _ = answers(ready).await;
    // This line waits until the user's other tenants know how much they may hold beside the new
    // tenant.
    let ready = shared.registry.borrow_mut().tenancy.share_out_anew(&tenant);
    let _ = answers(ready).await;
    memory::host::share_out(shared);
    if let Some(pid) = wants_metering(hello)
        && let Err(reason) = meter(peer, pid, &tenant, shared).await
    {
        if shared.lines.allows(source) {
            tracing::info!(
                pid = peer.pid,
                uid = peer.uid,
                reason,
                "the daemon does not meter a process from outside"
            );
        }
        refuse(connection.as_fd(), &Refused::new(RefusalKind::Request, reason), None, shared);
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
    // The arbiters have their own references to the pages that they need.
    drop(pages);
    if sent.is_ok() {
        let end = end_of(&connection, death.as_ref());
        match membership {
            Membership::Session(_) => {
                shared.came.notify_one();
                end.await;
            }
            Membership::Keeper(_) => {
                tokio::select! {
                    () = end => {}
                    () = tell_of_strays(connection.as_fd(), &tenant, shared) => {}
                }
            }
        }
    }
    depart(shared, &tenant, membership);
    sent
}

/// Ends a membership after its process has died or disconnected.
fn depart(shared: &Shared, tenant: &str, membership: Membership) {
    shared.registry.borrow_mut().depart(tenant, membership);
    shared.note_change();
}

/// Tells a keeper about each process that uses a GPU without the interposer and that a process of
/// the keeper's tenant started. Never returns.
async fn tell_of_strays(keeper: BorrowedFd<'_>, tenant: &str, shared: &Shared) {
    let mut published = shared.status.subscribe();
    let mut told = BTreeSet::new();
    // The registry publishes as long as the daemon serves.
    while published.changed().await.is_ok() {
        let mut strays = BTreeSet::new();
        for user in &published.borrow_and_update().unmanaged {
            if user.started_by.as_deref() != Some(tenant) {
                continue;
            }
            let who = (user.pid, user.since_ns);
            strays.insert(who);
            if !told.contains(&who) {
                let command: String = user.command.chars().take(COMMAND_SHOWN).collect();
                let text = format!(
                    "process {} ({command}) uses a GPU without deepres: it lost the preloaded library, so no limit of `{tenant}` holds for it; see that its environment keeps LD_PRELOAD",
                    user.pid
                );
                // If the keeper does not read, the notice is lost.
                let _ = packet::send(keeper, Notice::new(&text).as_bytes(), &[]);
            }
        }
        told = strays;
    }
}

/// Returns the process that a keeper wants metered from outside: `Some(None)` for the keeper
/// itself. A keeper that reconnects names a process that it has started. The pid of this process is
/// that of the keeper's pid namespace, which can differ from the daemon's.
fn wants_metering(hello: &Hello) -> Option<Option<u32>> {
    let wants = hello.role() == Some(Role::Keeper) && hello.metering != 0;
    wants.then(|| (hello.sessions_before > 0).then_some(hello.pid))
}

/// Meters a process from outside. The kernel says which process the pid means. Returns once
/// metering has begun.
async fn meter(peer: Peer, named: Option<u32>, tenant: &str, shared: &Rc<Shared>) -> Result<(), String> {
    let pid = match named {
        None => peer.pid,
        Some(pid) if identity::read::is_descendant(pid, peer.pid, peer.uid) => pid,
        Some(pid) => return Err(format!("process {pid} is not a child of this process")),
    };
    let purpose = Purpose { tenant: Some(tenant.to_owned()), is_managed: true };
    match timeout(metering::LIMIT, shared.metering.meter(pid, purpose)).await {
        Ok(Ok(metered)) => metered,
        _ => Err("the daemon's metering thread does not answer; see its log".to_owned()),
    }
}

/// Returns the hello in a packet, and the reason for which the daemon answers no hello of its
/// sender, whatever the role. If the daemon does not see the sender's pid namespace, it knows only
/// the user of the sender. The sender may then be in any container of this user, so the name in its
/// hello says nothing.
///
/// # Errors
///
/// Returns [`Refused`] if the packet is no hello.
fn heard(packet: &[u8], peer: Peer) -> Result<(Hello, Option<Refused>), Refused> {
    let mut hello: Hello = wire::decode(packet).map_err(|error| {
        let kind = match error {
            FrameError::Major(_) => RefusalKind::Version,
            FrameError::Malformed | FrameError::Kind(_) => RefusalKind::Malformed,
        };
        Refused::new(kind, error.to_string())
    })?;
    if peer.pid != 0 {
        return Ok((hello, None));
    }
    hello.tenant.fill(0);
    let reason = "the daemon cannot see the pid namespace of the process; run the daemon in the host's";
    Ok((hello, Some(Refused::new(RefusalKind::Namespace, reason))))
}

/// Admits the sender of a hello, or returns the reason of the refusal.
fn introduce(guest: &Guest, hello: &Hello, registry: &mut Registry) -> Result<Admitted, Refused> {
    if hello.monotonic_ns.abs_diff(monotonic_ns()) > CLOCK_LIMIT_NS {
        let reason = "the process has another monotonic clock than the daemon; run the process in the host's time namespace";
        return Err(Refused::new(RefusalKind::Namespace, reason));
    }
    registry.admit(guest, hello)
}

/// Refuses a process, and logs the reason. `whom` is as for [`refuse`].
fn turn_down(
    connection: BorrowedFd<'_>,
    (peer, source): (Peer, &Source),
    refused: &Refused,
    whom: Option<(&Guest, &Hello)>,
    shared: &Shared,
) {
    if shared.lines.allows_refusal(source, peer.pid, &refused.reason) {
        tracing::info!(
            pid = peer.pid,
            uid = peer.uid,
            reason = refused.reason,
            "the daemon refused a process"
        );
    }
    refuse(connection, refused, whom, shared);
}

/// Sends a refusal. The refusal tells the process `whom` its limits, because it runs on without a
/// session. If the peer does not read, the refusal is lost.
fn refuse(connection: BorrowedFd<'_>, refused: &Refused, whom: Option<(&Guest, &Hello)>, shared: &Shared) {
    let registry = shared.registry.borrow();
    let mut fallback = whom.map(|(guest, hello)| registry.fallback_of(guest, hello)).unwrap_or_default();
    fallback.fail_mode = match refused.is_shut {
        true => FailMode::Closed,
        false => registry.config().fail_mode.mode(),
    };
    let mut refusal = Refusal::new(refused.kind, &refused.reason);
    refusal.set_fallback(&fallback);
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

/// Waits until the process has died or the connection has ended. After the welcome, a peer sends
/// nothing. If a peer sends anything, the wait ends too.
async fn end_of(connection: &AsyncFd<OwnedFd>, death: Option<&AsyncFd<OwnedFd>>) {
    let Some(death) = death else {
        let _ = receive(connection).await;
        return;
    };
    // If either wait fails, the wait ends too.
    tokio::select! {
        _ = death.readable() => {}
        _ = receive(connection) => {
            // A dying process closes its descriptors one by one. Its GPU memory can go after its
            // connection, and stays in its account until then.
            let _ = timeout(DYING_LIMIT, death.readable()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_the_daemon_does_not_see_is_refused_in_every_role_and_its_role_is_known() {
        let unseen = Peer { pid: 0, uid: 0, gid: 0 };
        let seen = Peer { pid: std::process::id(), ..unseen };
        for role in [Role::Session, Role::Keeper, Role::Viewer, Role::Appraised, Role::Owner] {
            let mut sent = Hello::new(role);
            wire::set_text(&mut sent.tenant, "train");
            for (peer, name, kind) in [(seen, "train", None), (unseen, "", Some(RefusalKind::Namespace))] {
                let (hello, refused) = heard(sent.as_bytes(), peer).unwrap();
                assert_eq!((hello.role(), wire::text(&hello.tenant)), (Some(role), Some(name)));
                assert_eq!(refused.map(|refused| refused.kind), kind);
            }
        }
        assert_eq!(heard(b"nonsense", seen).unwrap_err().kind, RefusalKind::Malformed);
    }
}
